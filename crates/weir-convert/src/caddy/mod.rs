//! Caddy: the sites of a Caddyfile.
//!
//! Caddy sorts the directives of a site and passes each request through all of them, evaluating each matcher. In Weir, one route
//! is selected for a request, and contains all of its processing. The directives are therefore walked once, symbolically for all
//! requests ([`steps`]): every matcher splits the set of requests, and every path to a response becomes a route ([`routes`]).

mod address;
mod answers;
mod checks;
mod conditions;
mod error_pages;
mod fields;
mod headers;
mod import;
mod instead;
mod matcher;
mod options;
mod order;
mod path;
mod placeholder;
mod policies;
mod proxy;
mod rewriting;
mod routes;
mod share;
mod site;
mod state;
mod steps;
mod syntax;
mod tls;
mod transport;
mod units;
mod upstream;

use crate::SyntaxError;
use crate::directive::Directive;
pub use crate::directive::Include;
use crate::forwarding;
use crate::output::Converted;
use crate::yaml::Yaml;

/// Converts a Caddyfile.
pub fn convert(file: &str, text: &str, include: Include) -> Result<Converted, SyntaxError> {
    let mut converted = Converted::default();
    let directives = syntax::parse(file, text)?;
    let mut directives = import::Importer::new(include, &mut converted).expanded(directives, 0)?;
    let options = match directives.first() {
        Some(first) if first.name.is_empty() => directives.remove(0).block.unwrap_or_default(),
        _ => Vec::new(),
    };
    let sites = sites(directives);
    let order = order::DirectiveOrder::new(&options, &mut converted);
    let mut options = options::GlobalOptions::read(&options, &mut converted);
    site::carry_over(&mut converted, &mut options, &order, &sites);
    path_letters(&mut converted);
    forwarding::report(&mut converted);
    share::upstreams(&mut converted);
    share::consumers(&mut converted);
    share::compression(&mut converted);
    Ok(converted.finished())
}

/// The sites of a file. Without braces, the whole file is one site, whose addresses are in the first line.
fn sites(directives: Vec<Directive>) -> Vec<Directive> {
    let mut sites = Vec::new();
    let mut directives = directives.into_iter();
    while let Some(mut directive) = directives.next() {
        if directive.block.is_none() {
            directive.block = Some(directives.by_ref().collect());
        }
        sites.push(directive);
    }
    sites
}

/// Reports that paths are case-sensitive, which they are not in Caddy.
fn path_letters(converted: &mut Converted) {
    let has_letters = |uri: &Yaml| matches!(uri, Yaml::Text(uri) if uri.contains(|char: char| char.is_alphabetic()));
    let is_named = |(name, value): &(String, Yaml)| match value {
        Yaml::List(uris) => name == "uris" && uris.iter().any(has_letters),
        uri => name == "uri" && has_letters(uri),
    };
    let with_path = converted.routes.iter().find(|route| route.members.iter().any(is_named));
    if let Some((place, _)) = with_path.and_then(|route| route.comment.clone()) {
        converted.differs(&place, "paths are matched case-sensitively; Caddy ignores the case");
    }
}

#[cfg(test)]
mod tests;
