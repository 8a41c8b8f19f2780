//! nginx: `server`, `location` and `upstream` of its `http` block, and the servers of its `stream` block.
//!
//! nginx finds the longest matching prefix, and then tries regular expressions in their order. In Weir the most specific path
//! wins. Both are equivalent if the route of each expression has all the prefixes under which nginx would try it
//! ([`location::regions`]).

mod access;
mod addresses;
mod auth_request;
mod basic_auth;
mod caching;
mod client_address;
mod comparison;
mod compression;
mod conditions;
mod constants;
mod defaults;
mod directives;
mod echo;
mod error_pages;
mod fields;
mod forwarding;
mod headers_more;
mod health_checks;
mod listening;
mod location;
mod lua;
mod map_entries;
mod media_types;
mod mirroring;
mod pass_path;
mod policies;
mod proxy;
mod redirects;
mod referers;
mod reverse;
mod rewrite;
mod routes;
mod scope;
mod selector;
mod server;
mod settings;
mod sign_in;
mod status_match;
mod sticky;
mod stream;
mod subrequest;
mod substitution;
mod survey;
mod syntax;
mod target;
mod target_cases;
mod target_choice;
mod target_split;
mod tracing;
mod upstream;
mod values;
mod variables;

use std::collections::BTreeSet;

pub use crate::directive::Include;
use crate::output::Converted;
use crate::{ConversionFinding, FindingKind, SourcePlace, SyntaxError};
use listening::ListenSetting;
use scope::BlockScope;
use syntax::Directive;

/// The most levels of nested includes.
const INCLUDES: usize = 16;

/// Converts a configuration.
pub fn convert(file: &str, text: &str, include: Include) -> Result<Converted, SyntaxError> {
    let mut findings = Vec::new();
    let mut directives = expanded(syntax::parse(file, text)?, include, 0, &mut findings)?;
    basic_auth::read_users(&mut directives, include, &mut findings);
    let mut blocks = match directives.iter().position(|directive| directive.name == "http") {
        Some(http) => directives[http].block.as_mut(),
        None => Some(&mut directives),
    };
    if let Some(blocks) = &mut blocks {
        defaults::replace(blocks);
        lua::replace(blocks);
    }
    let has_redirects = blocks.as_ref().is_some_and(|blocks| blocks.iter().any(|block| block.name == "proxy_redirect"));
    let is_of_types = |block: &&Directive| media_types::DECIDING.contains(&block.name.as_str());
    let types: Vec<Directive> =
        blocks.as_ref().map_or_else(Vec::new, |blocks| blocks.iter().filter(is_of_types).cloned().collect());
    for server in blocks.into_iter().flatten().filter(|block| block.name == "server") {
        variables::name_server(server);
        constants::replace(server, has_redirects);
        error_pages::replace(server, &types);
    }
    // A file of conf.d is included in the http block, so it has none.
    let http = directives.iter().find(|directive| directive.name == "http");
    let within = http.map_or(&directives[..], Directive::children);
    let main = if http.is_some() { &directives[..] } else { &[] };
    let stream = directives.iter().find(|directive| directive.name == "stream").map_or(&[][..], Directive::children);

    let mut conversion = Conversion {
        main,
        http: within,
        stream,
        converted: Converted::default(),
        limited: Vec::new(),
        told: BTreeSet::new(),
        selecting: BTreeSet::new(),
        covered: BTreeSet::new(),
        checked: Vec::new(),
        finds_by_route: false,
    };
    conversion.converted.findings = findings;
    health_checks::collect(conversion.scope(), &mut conversion.checked);
    settings::carry_over(&mut conversion);
    tracing::carry_over(&mut conversion);
    let mut addresses = ListenSetting::default();
    server::carry_over(&mut conversion, &mut addresses);
    stream::carry_over(&mut conversion, &mut addresses);
    conversion.converted.settings.insert(0, ("listen".to_owned(), addresses.yaml()));
    health_checks::report(&mut conversion);
    survey::report(&mut conversion);
    forwarding::report(&mut conversion);
    Ok(conversion.converted.finished())
}

/// Where a limit of a zone is in effect: the place of the zone, and where the block is in memory that a route comes from.
struct LimitedBlock {
    zone: SourcePlace,
    block: *const Directive,
}

/// The input, and the output so far.
struct Conversion<'a> {
    /// The directives outside of `http`.
    main: &'a [Directive],
    http: &'a [Directive],
    /// The directives of the `stream` block.
    stream: &'a [Directive],
    converted: Converted,
    /// The zones of limits that routes have, once for each route.
    limited: Vec<LimitedBlock>,
    /// What there is a finding about already, of which one is enough for all.
    told: BTreeSet<&'static str>,
    /// The variables that select the upstream of a location.
    selecting: BTreeSet<String>,
    /// The directives that are converted where they are in effect, with all their variables.
    covered: BTreeSet<String>,
    /// The scopes of locations with a `health_check`.
    checked: Vec<BlockScope<'a>>,
    /// The client's address is found by plugins of routes, since not all find it in the same way.
    finds_by_route: bool,
}

impl<'a> Conversion<'a> {
    fn scope(&self) -> BlockScope<'a> {
        BlockScope::new(self.http)
    }

    /// Whether `merge_slashes` is off, everywhere or in a server: there is a finding about it.
    fn keeps_slashes(&self) -> bool {
        let servers = self.http.iter().filter(|directive| directive.name == "server");
        let all = self.http.iter().chain(servers.flat_map(|server| server.children()));
        all.into_iter().any(|directive| directive.name == "merge_slashes" && directive.argument(0) == "off")
    }

    /// The server, if there is exactly one.
    fn only_server(&self) -> Option<&'a Directive> {
        let mut servers = self.http.iter().filter(|directive| directive.name == "server");
        servers.next().filter(|_| servers.next().is_none())
    }

    /// Whether clients have to name the port in their `Host`, for one of the servers.
    fn has_unusual_port(&self) -> bool {
        let servers = self.http.iter().filter(|directive| directive.name == "server");
        let mut listens = servers.flat_map(Directive::children).filter(|directive| directive.name == "listen");
        listens.any(|listen| {
            let address = listen.argument(0);
            let port = address.parse().ok().or(upstream::host_and_port(address).1).unwrap_or(80);
            ![80, 443].contains(&port)
        })
    }

    /// Remembers that nothing of a directive is lost.
    fn cover(&mut self, directive: &Directive) {
        self.covered.insert(format!("{} {}", directive.place, directive.head()));
    }

    fn is_covered(&self, directive: &Directive) -> bool {
        !self.covered.is_empty() && self.covered.contains(&format!("{} {}", directive.place, directive.head()))
    }

    fn lost(&mut self, place: &SourcePlace, text: impl Into<String>) {
        self.converted.lost(place, text);
    }

    /// The same for a difference that one finding tells for all places: the first one.
    fn differs_here_first(&mut self, topic: &'static str, place: &SourcePlace, text: impl Into<String>) {
        if self.told.insert(topic) {
            self.converted.differs(place, text);
        }
    }

    fn differs(&mut self, place: &SourcePlace, text: impl Into<String>) {
        self.converted.differs(place, text);
    }
}

/// Replaces each `include` by the directives of its files.
fn expanded(
    directives: Vec<Directive>,
    include: Include,
    depth: usize,
    findings: &mut Vec<ConversionFinding>,
) -> Result<Vec<Directive>, SyntaxError> {
    let mut all = Vec::with_capacity(directives.len());
    for mut directive in directives {
        if directive.name == "include" {
            all.extend(included(&directive, include, depth, findings)?);
            continue;
        }
        if let Some(block) = directive.block.take() {
            directive.block = Some(expanded(block, include, depth, findings)?);
        }
        all.push(directive);
    }
    Ok(all)
}

fn included(
    directive: &Directive,
    include: Include,
    depth: usize,
    findings: &mut Vec<ConversionFinding>,
) -> Result<Vec<Directive>, SyntaxError> {
    let pattern = directive.argument(0);
    if depth == INCLUDES {
        let text = format!("`{pattern}`: files are included more than {INCLUDES} levels deep");
        return Err(SyntaxError { place: directive.place.clone(), text });
    }
    // Parameters of FastCGI and the like, which have no counterpart.
    if ["fastcgi_params", "fastcgi.conf", "uwsgi_params", "scgi_params"].iter().any(|name| pattern.ends_with(name)) {
        return Ok(Vec::new());
    }
    let files = match include(pattern) {
        Ok(files) => files,
        Err(_) if pattern.ends_with("mime.types") => vec![(pattern.to_owned(), media_types::COMMON.to_owned())],
        Err(error) => {
            // The directive stays where it is: the file may control access there.
            let text = format!("`include {pattern}`: {error}; {}", directives::CLOSED);
            findings.push(ConversionFinding { place: directive.place.clone(), kind: FindingKind::Lost, text });
            return Ok(vec![directive.clone()]);
        }
    };
    let mut all = Vec::new();
    for (name, text) in files {
        all.extend(expanded(syntax::parse(&name, &text)?, include, depth + 1, findings)?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
