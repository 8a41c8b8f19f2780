//! `error_page` with pages that are texts: the location of the page answers with a `return`. Such a directive is replaced by one with
//! the text, which routes have as `error-page`. A page of a file or an upstream would have to be fetched, and is reported.

use super::media_types;
use super::scope::BlockScope;
use super::syntax::Directive;
use crate::yaml::{Yaml, YamlMembers};

/// What takes the place of an `error_page`: the location of the page, the type and the text of the page, and the statuses.
pub(super) const ERROR_TEXT: &str = "error_page text";
/// What takes the place of `proxy_intercept_errors`, in a server whose pages are all texts.
pub(super) const ERRORS_INTERCEPTED: &str = "proxy_intercept_errors text";

/// The statuses for which there are pages.
const STATUSES: [&str; 10] = ["400", "401", "403", "404", "413", "429", "500", "502", "503", "504"];
/// What the location of a text may have.
const BESIDE_TEXT: [&str; 6] = ["return", "internal", "types", "default_type", "access_log", "log_not_found"];

/// Replaces the directives in a server block. `types`: what the outer block says about media types.
pub(super) fn replace(server: &mut Directive, types: &[Directive]) {
    let locations: Vec<Directive> = server
        .children()
        .iter()
        .filter(|child| child.name == "location" || media_types::DECIDING.contains(&child.name.as_str()))
        .cloned()
        .collect();
    let replaced = replace_pages(server, &locations, types);
    if replaced.texts > 0 && replaced.others == 0 {
        rename_interception(server);
    }
}

#[derive(Default)]
struct ReplacedPages {
    texts: usize,
    others: usize,
}

fn replace_pages(block: &mut Directive, server: &[Directive], types: &[Directive]) -> ReplacedPages {
    let mut replaced = ReplacedPages::default();
    for child in block.block.iter_mut().flatten() {
        if child.name != "error_page" {
            let within = replace_pages(child, server, types);
            replaced = ReplacedPages { texts: replaced.texts + within.texts, others: replaced.others + within.others };
            continue;
        }
        match text_of(child, server, types) {
            Some(arguments) => {
                (child.name, child.arguments) = (ERROR_TEXT.to_owned(), arguments);
                replaced.texts += 1;
            }
            None => replaced.others += 1,
        }
    }
    replaced
}

fn rename_interception(block: &mut Directive) {
    for child in block.block.iter_mut().flatten() {
        match child.name.as_str() {
            "proxy_intercept_errors" => child.name = ERRORS_INTERCEPTED.to_owned(),
            _ => rename_interception(child),
        }
    }
}

/// The arguments of the directive that takes the place of an `error_page`; `None` if its page is no text, or changes the status.
fn text_of(error_page: &Directive, server: &[Directive], types: &[Directive]) -> Option<Vec<String>> {
    let (target, rest) = error_page.arguments.split_last()?;
    let (status, statuses) = match rest.split_last() {
        Some((last, statuses)) if last.starts_with('=') => (Some(last), statuses),
        _ => (None, rest),
    };
    let is_target = |child: &&Directive| match child.arguments.as_slice() {
        [modifier, path] => modifier == "=" && path == target,
        [name] => name == target && name.starts_with('@'),
        _ => false,
    };
    let location = server.iter().filter(|child| child.name == "location").find(is_target)?;
    let block = location.children();
    let returns = block.iter().find(|child| child.name == "return")?;
    let (code, text) = (returns.argument(0), returns.arguments.get(1)?);
    let is_plain = block.iter().all(|child| BESIDE_TEXT.contains(&child.name.as_str())) && !text.contains('$');
    let is_page = code.parse::<u16>().is_ok_and(|code| !(300..400).contains(&code) && code != 444);
    // Without `=`, nginx keeps the status of the error.
    let keeps_status = status.is_none_or(|status| {
        let status = status.strip_prefix('=').filter(|status| !status.is_empty()).unwrap_or(code);
        statuses.iter().all(|error| error == status)
    });
    let are_known = !statuses.is_empty() && statuses.iter().all(|error| STATUSES.contains(&error.as_str()));
    if !(is_plain && is_page && keeps_status && are_known) {
        return None;
    }
    let scope = BlockScope::new(types).inside(server).inside(block);
    // At a named location the path remains that of the request.
    let kind = media_types::of_text(&scope, Some(target.as_str()).filter(|target| !target.starts_with('@'))).to_owned();
    Some([target.clone(), kind, text.clone()].into_iter().chain(statuses.iter().cloned()).collect())
}

/// Whether a location is that of a text for errors.
pub(super) fn is_text(server: &[Directive], location: &Directive) -> bool {
    server.iter().any(|child| {
        let is_its = child.name == ERROR_TEXT && location.arguments.last() == child.arguments.first();
        is_its || is_text(child.children(), location)
    })
}

/// The pages in effect at this place.
pub(super) fn plugin(scope: &BlockScope) -> Option<(String, Yaml)> {
    let mut options = YamlMembers::new();
    // An `error_page` of this place, or an inner one, replaces all outer ones.
    for page in scope.all_of(&["error_page", ERROR_TEXT]).into_iter().filter(|page| page.name == ERROR_TEXT) {
        let [_, kind, text, statuses @ ..] = page.arguments.as_slice() else { continue };
        for status in statuses {
            let name = format!("error_{status}");
            if options.iter().all(|(known, _)| *known != name) {
                let page = [("body", Yaml::text(text.as_str())), ("content_type", Yaml::text(kind.as_str()))];
                options.push((name, Yaml::map(page)));
            }
        }
    }
    if options.is_empty() {
        return None;
    }
    if scope.is_on("proxy_intercept_errors") || scope.is_on(ERRORS_INTERCEPTED) {
        options.push(("upstream_errors".to_owned(), Yaml::Boolean(true)));
    }
    Some(("error-page".to_owned(), Yaml::Map(options)))
}
