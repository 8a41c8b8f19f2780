//! Server names in the TLS handshake: which of them a target is for.

use super::listening::StreamListen;
use crate::SourcePlace;
use crate::nginx::Conversion;
use crate::nginx::selector::ServerBlock;
use crate::nginx::syntax::Directive;

/// What a `proxy_pass` names, for connections with one of these server names; without names, for all others.
pub(super) struct NamedTarget<'a> {
    pub names: Vec<String>,
    pub authority: String,
    /// nginx has no target for these names.
    pub is_closed: bool,
    /// Where it is written, if that is not the `proxy_pass`.
    pub place: Option<&'a SourcePlace>,
}

/// The variables that have the server name.
const NAME: [&str; 2] = ["$ssl_preread_server_name", "$ssl_server_name"];

/// The targets of a `proxy_pass`: one, or those of the map that it names.
pub(super) fn targets<'a>(conversion: &mut Conversion<'a>, pass: &Directive) -> Vec<NamedTarget<'a>> {
    let authority = pass.argument(0);
    if !authority.contains('$') {
        let authority = authority.to_owned();
        return vec![NamedTarget { names: Vec::new(), authority, is_closed: false, place: None }];
    }
    let variable = format!("${}", authority.trim_start_matches('$').trim_matches(['{', '}']));
    let is_it = |map: &&Directive| map.name == "map" && map.argument(1) == variable;
    match conversion.stream.iter().find(is_it).filter(|map| is_of_names(map)) {
        Some(map) => of_map(conversion, map),
        None => {
            let text = "only a `map` of `$ssl_preread_server_name` can select the upstream";
            conversion.lost(&pass.place, format!("`{}`: {text}", pass.head()));
            Vec::new()
        }
    }
}

/// Whether a map is one of server names.
pub(super) fn is_of_names(map: &Directive) -> bool {
    NAME.contains(&map.argument(0))
}

fn of_map<'a>(conversion: &mut Conversion, map: &'a Directive) -> Vec<NamedTarget<'a>> {
    let entries = || map.children().iter();
    let has_wildcards = entries().any(|entry| entry.name == "hostnames");
    let default = match entries().find(|entry| entry.name == "default") {
        Some(entry) if entry.argument(0).contains('$') => {
            tell_variable(conversion, entry);
            ""
        }
        entry => entry.map_or("", |entry| entry.argument(0)),
    };
    let mut targets: Vec<NamedTarget> = Vec::new();
    for entry in entries().filter(|entry| !["hostnames", "volatile", "default"].contains(&entry.name.as_str())) {
        let Some(names) = entry_names(conversion, entry, has_wildcards, default) else { continue };
        let authority = entry.argument(0);
        if authority.contains('$') {
            tell_variable(conversion, entry);
        }
        let is_closed = authority.is_empty() || authority.contains('$');
        let authority = if is_closed { default } else { authority };
        match targets.iter_mut().find(|known| (&*known.authority, known.is_closed) == (authority, is_closed)) {
            Some(known) => known.names.extend(names),
            None => {
                let place = Some(&entry.place);
                targets.push(NamedTarget { names, authority: authority.to_owned(), is_closed, place });
            }
        }
    }
    targets.push(NamedTarget { names: Vec::new(), authority: default.to_owned(), is_closed: false, place: None });
    // Connections for which there is no target find no stream route.
    targets.retain(|target| !target.authority.is_empty());
    targets
}

/// The server names of an entry; `None` if it has none that Weir can compare.
fn entry_names(
    conversion: &mut Conversion,
    entry: &Directive,
    has_wildcards: bool,
    default: &str,
) -> Option<Vec<String>> {
    match entry.name.as_str() {
        "" if entry.argument(0) == default => None,
        "" => {
            let text = format!(
                "`\"\" {}`: connections without a server name go where those with an unknown one go",
                entry.argument(0)
            );
            conversion.lost(&entry.place, text);
            None
        }
        name if has_wildcards || name.starts_with('~') => {
            let names = snis(name);
            if names.is_none() {
                tell_unsupported(conversion, entry, &entry.head());
            }
            names
        }
        // Without `hostnames`, nginx compares the text.
        name if name.contains('*') || name.starts_with('.') => None,
        name => Some(vec![name.to_ascii_lowercase()]),
    }
}

fn tell_variable(conversion: &mut Conversion, entry: &Directive) {
    conversion.lost(&entry.place, format!("`{}`: a variable cannot select the upstream", entry.head()));
}

fn tell_unsupported(conversion: &mut Conversion, directive: &Directive, what: &str) {
    let text = format!("`{what}`: a server name is a name, or a wildcard such as `*.example.com`");
    conversion.lost(&directive.place, text);
}

/// A name in nginx's syntax as names of a stream route; `None` for a regular expression, or a wildcard at the end.
fn snis(name: &str) -> Option<Vec<String>> {
    let lower = name.to_ascii_lowercase();
    match lower.strip_prefix('.') {
        _ if lower.starts_with('~') || lower.ends_with(".*") => None,
        Some(domain) => Some(vec![domain.to_owned(), format!("*.{domain}")]),
        None => Some(vec![lower]),
    }
}

/// The names with which a server takes the connections to one of its addresses: one list for each stream route. An empty list
/// stands for all that no other server takes.
pub(super) fn server_names(
    conversion: &mut Conversion,
    server: &ServerBlock,
    listen: &StreamListen,
    listens: &[StreamListen],
) -> Vec<Vec<String>> {
    let servers = listen.servers(listens);
    let is_default = servers.first() == Some(&listen.server);
    if is_default && servers.len() == 1 {
        return vec![Vec::new()];
    }
    let mut names = Vec::new();
    for name in server.names.iter().filter(|name| !["", "_", "*"].contains(*name)) {
        match snis(name) {
            Some(known) => names.extend(known),
            None => tell_unsupported(conversion, server.directive, &format!("server_name {name}")),
        }
    }
    let mut lists = Vec::new();
    if !names.is_empty() {
        lists.push(names);
    }
    if is_default {
        lists.push(Vec::new());
    }
    lists
}
