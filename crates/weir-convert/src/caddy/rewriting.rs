//! `rewrite`, `uri` and `method`: changes of the request for the upstream.

use super::path::{PathState, pair};
use super::placeholder::literal;
use super::state::{RequestState, TextFault};
use crate::output::Converted;
use crate::pattern::{regex_quoted, whole};
use crate::yaml::{Yaml, YamlMembers};

/// A rewrite that could not be converted: the route has to refuse requests, since its upstream would receive another path.
pub(super) struct NotRewritten(pub String);

/// `rewrite TARGET`.
pub(super) fn rewrite(
    converted: &mut Converted,
    state: &mut RequestState,
    place: &crate::SourcePlace,
    target: &str,
) -> Result<(), NotRewritten> {
    let fault = |TextFault(why): TextFault| NotRewritten(why);
    let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
    if let Some(captured) = state.captured(path) {
        if query.is_some() || state.path != PathState::Same {
            return Err(NotRewritten("groups of an expression together with a query are not converted".to_owned()));
        }
        let captured = captured.map_err(fault)?;
        let options = pair(whole(&captured.pattern, false), captured.template);
        state.path = PathState::Changed { options, begins: beginning(path) };
        return Ok(());
    }
    let query = match query {
        // Weir keeps the query in any case.
        None | Some("{query}") => None,
        Some(query) => {
            let own = query.strip_suffix("&{query}").or_else(|| query.strip_prefix("{query}&"));
            if !query.ends_with("&{query}") {
                converted
                    .differs(place, format!("`rewrite {target}`: the query of the request is sent behind the new one"));
            }
            Some(state.text(own.unwrap_or(query)).map_err(fault)?)
        }
    };
    if let Some(prefix) = ["{uri}", "{path}"].iter().find_map(|end| path.strip_suffix(end))
        && !prefix.contains('{')
        && query.is_none()
    {
        return prepend(state, prefix);
    }
    if !path.contains('{') && path.starts_with('/') {
        state.path = PathState::Fixed { path: path.to_owned(), query };
        return Ok(());
    }
    let begins = beginning(path);
    let path = match path {
        "" | "{path}" if state.path == PathState::Same => "$uri".to_owned(),
        path => state.text(path).map_err(fault)?,
    };
    let uri = query.map_or(path.clone(), |query| format!("{path}?{query}"));
    state.path = PathState::Changed { options: vec![("uri".to_owned(), Yaml::text(uri))], begins };
    Ok(())
}

/// The text before the first placeholder.
fn beginning(path: &str) -> String {
    path.split('{').next().unwrap_or_default().to_owned()
}

/// Adds a prefix to the path.
fn prepend(state: &mut RequestState, prefix: &str) -> Result<(), NotRewritten> {
    let options = match &mut state.path {
        PathState::Same => vec![("uri".to_owned(), Yaml::text(format!("{}$uri", literal(prefix))))],
        PathState::Stripped(_) => {
            let mut options = state.path.rewritten(&state.conditions.uris);
            if let Some((_, Yaml::List(texts))) = options.first_mut()
                && let Some(Yaml::Text(replacement)) = texts.last_mut()
            {
                replacement.insert_str(0, &literal(prefix));
            }
            options
        }
        PathState::Fixed { path, .. } => {
            path.insert_str(0, prefix);
            return Ok(());
        }
        PathState::Changed { .. } => return Err(NotRewritten("the path was rewritten before".to_owned())),
    };
    state.path = PathState::Changed { options, begins: prefix.to_owned() };
    Ok(())
}

/// `uri strip_prefix` and its variants.
pub(super) fn uri(
    converted: &mut Converted,
    state: &mut RequestState,
    place: &crate::SourcePlace,
    arguments: &[String],
) -> Result<(), NotRewritten> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let options = match words.as_slice() {
        _ if words[1.min(words.len())..].iter().any(|word| word.contains('{')) => {
            return Err(NotRewritten("placeholders in `uri` are not converted".to_owned()));
        }
        ["strip_prefix", prefix] => return strip_prefix(state, &format!("/{}", prefix.trim_start_matches('/'))),
        ["strip_suffix", suffix] => pair(format!("^(.*){}$", regex_quoted(suffix)), "$1".to_owned()),
        ["replace", find, replacement] => first_only(converted, place, regex_quoted(find), literal(replacement)),
        ["path_regexp", find, replacement] => first_only(converted, place, (*find).to_owned(), groups(replacement)),
        _ => {
            return Err(NotRewritten(
                "only `strip_prefix`, `strip_suffix`, `replace` and `path_regexp` are converted".to_owned(),
            ));
        }
    };
    if state.path != PathState::Same {
        return Err(NotRewritten("the path was rewritten before".to_owned()));
    }
    state.path = PathState::Changed { options, begins: String::new() };
    Ok(())
}

fn first_only(converted: &mut Converted, place: &crate::SourcePlace, find: String, replacement: String) -> YamlMembers {
    converted.differs(place, format!("`uri`: only the first part of the path that is `{find}` is replaced"));
    pair(find, replacement)
}

/// Translates `${1}` to `$1`.
fn groups(replacement: &str) -> String {
    (1..=9).fold(replacement.to_owned(), |text, group| text.replace(&format!("${{{group}}}"), &format!("${group}")))
}

fn strip_prefix(state: &mut RequestState, prefix: &str) -> Result<(), NotRewritten> {
    let of_client = match &state.path {
        PathState::Stripped(before) => format!("{before}{prefix}"),
        _ => prefix.to_owned(),
    };
    let uris = &state.conditions.uris;
    let has_prefix = !uris.is_empty() && uris.iter().all(|uri| uri.starts_with(&of_client));
    let is_fixed = matches!(state.path, PathState::Fixed { .. });
    if is_fixed || has_prefix {
        // A fixed path without the prefix stays as it is.
        let is_stripped = state.path.strip(prefix);
        return if is_stripped || is_fixed {
            Ok(())
        } else {
            Err(NotRewritten("the path was rewritten before".to_owned()))
        };
    }
    if state.path != PathState::Same {
        return Err(NotRewritten("the path was rewritten before".to_owned()));
    }
    let options = pair(format!("^{}/?(.*)", regex_quoted(prefix)), "/$1".to_owned());
    state.path = PathState::Changed { options, begins: String::new() };
    Ok(())
}
