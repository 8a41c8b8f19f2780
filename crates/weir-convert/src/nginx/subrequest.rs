//! Locations that requests of nginx itself are for, such as those of `auth_request` and `mirror`.

use regex::RegexBuilder;

use super::Conversion;
use super::directives::{DirectiveFate, fate};
use super::location::Matching;
use super::lua::LUA_ANSWER;
use super::syntax::Directive;
use super::target::PassTarget;

/// What such a location must not have: it would decide by itself.
const DECIDING: [&str; 14] = [
    "if",
    "return",
    "rewrite",
    "set",
    "allow",
    "deny",
    "auth_basic",
    "proxy_cache",
    "location",
    "try_files",
    LUA_ANSWER,
    // It would change the request for its own target alone.
    "proxy_method",
    "more_set_input_headers",
    "more_clear_input_headers",
];

/// The location that a URI is for, if it does nothing but pass the request on.
pub(super) fn location<'a>(server: &'a [Directive], uri: &str) -> Option<&'a Directive> {
    let locations = || server.iter().filter(|child| child.name == "location");
    let is_exact = |location: &&Directive| matches!(Matching::of(location), Some(Matching::Exact(path)) if path == uri);
    let location = match locations().find(is_exact) {
        Some(location) => location,
        None if locations().any(|location| may_match(location, uri)) => return None,
        None => {
            let prefixes = locations().filter_map(|location| Some((prefix_of(location, uri)?, location)));
            prefixes.max_by_key(|(length, _)| *length)?.1
        }
    };
    let decides = |child: &Directive| {
        DECIDING.contains(&child.name.as_str()) || matches!(fate(&child.name), DirectiveFate::Closes(_))
    };
    (!location.children().iter().any(decides)).then_some(location)
}

/// Whether the location has an expression that may match a URI.
fn may_match(location: &Directive, uri: &str) -> bool {
    let Some(Matching::Regex { pattern, ignores_case }) = Matching::of(location) else { return false };
    let expression = RegexBuilder::new(&pattern).case_insensitive(ignores_case).build();
    expression.map_or(true, |expression| expression.is_match(uri))
}

/// The length of a location's prefix, if the URI begins with it.
fn prefix_of(location: &Directive, uri: &str) -> Option<usize> {
    match Matching::of(location)? {
        Matching::Prefix { path, .. } if uri.starts_with(&path) => Some(path.len()),
        _ => None,
    }
}

/// The path that a location asks the target of its `proxy_pass` for.
pub(super) fn path(target: &PassTarget, location: &Directive, uri: &str) -> String {
    match target.path {
        None => uri.to_owned(),
        Some(path) => format!("{path}{}", &uri[prefix_of(location, uri).unwrap_or(uri.len())..]),
    }
}

/// The host and port of a target; `None` if it is an `upstream` block with several servers.
pub(super) fn authority<'a>(conversion: &Conversion<'a>, target: &PassTarget<'a>) -> Option<&'a str> {
    let block = conversion.http.iter().find(|block| block.name == "upstream" && block.argument(0) == target.authority);
    let mut servers = block.into_iter().flat_map(Directive::children).filter(|child| child.name == "server");
    match (block, servers.next()) {
        (None, _) => Some(target.authority),
        (Some(_), Some(server)) if servers.next().is_none() && !server.argument(0).starts_with("unix:") => {
            Some(server.argument(0))
        }
        (Some(_), _) => None,
    }
}

/// Why no single target of a location can be told that a URI is for, if that is so.
pub(super) fn obstacle(conversion: &Conversion, server: &[Directive], uri: &str) -> Option<String> {
    let Some(location) = location(server, uri) else {
        return Some(format!("no location is for `{uri}` alone, or it does more than pass requests on"));
    };
    let Some(pass) = location.children().iter().find(|child| child.name == "proxy_pass") else {
        return Some(format!("the location of `{uri}` has no `proxy_pass`"));
    };
    let target = PassTarget::of(pass)?;
    authority(conversion, &target).is_none().then(|| {
        format!(
            "`{}` has several servers, or one at a Unix socket, and here is one URL: name one of them, a name of DNS for all, or an \
             address of this gateway with a route to them",
            target.authority
        )
    })
}

/// Whether one of the blocks of a server has a directive of this name with a URI that is for the location.
pub(super) fn is_named(server: &[Directive], location: &Directive, name: &str) -> bool {
    fn within(server: &[Directive], block: &[Directive], location: &Directive, name: &str) -> bool {
        block.iter().any(|child| {
            let names_it = child.name == name
                && self::location(server, child.argument(0)).is_some_and(|asked| asked.place == location.place);
            names_it || within(server, child.children(), location, name)
        })
    }
    within(server, server, location, name)
}

#[cfg(test)]
mod tests {
    use super::super::syntax::parse;

    #[test]
    fn the_location_that_nginx_would_choose_is_asked_if_it_only_passes_on() {
        for (server, want) in [
            ("location = /auth { proxy_pass http://a; } location /auth { proxy_pass http://b; }", Some("=")),
            ("location / { proxy_pass http://a; } location /au { proxy_pass http://b; }", Some("/au")),
            ("location /au { proxy_pass http://b; } location ~ th$ { return 200; }", None),
            ("location /au { proxy_pass http://b; } location ~ ^/x { return 200; }", Some("/au")),
            ("location = /auth { internal; return 401; }", None),
            ("location = /auth { proxy_pass http://a; proxy_method POST; }", None),
            ("location = /auth { proxy_pass http://a; more_set_input_headers 'X-A: b'; }", None),
            ("location = /auth { proxy_pass http://a; more_clear_input_headers X-A; }", None),
            ("location /other { proxy_pass http://a; }", None),
        ] {
            let server = parse("t", server).expect("correct");
            let found = super::location(&server, "/auth").map(|location| location.argument(0));
            assert_eq!(found, want, "{server:?}");
        }
    }
}
