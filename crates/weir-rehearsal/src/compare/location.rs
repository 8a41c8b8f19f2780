//! Redirect targets, compared as URLs: each gateway's own address means the same.

use crate::answer::RehearsedAnswer;
use crate::compare::OwnNames;

/// What stands for the gateway itself.
pub(super) const GATEWAY: &str = "{gateway}";

/// The target of a redirect, with `/path` for one on the gateway itself.
pub(super) fn of(answer: &RehearsedAnswer, names: &OwnNames) -> Option<String> {
    Some(normalised(answer.value("location")?, names))
}

pub(super) fn normalised(place: &str, names: &OwnNames) -> String {
    let Some((scheme, rest)) =
        place.split_once("://").filter(|(scheme, _)| scheme.bytes().all(|byte| byte.is_ascii_alphabetic()))
    else {
        return place.to_owned();
    };
    let (authority, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let target = if target.is_empty() { "/" } else { target };
    if !is_own(authority, names) {
        return format!("{scheme}://{}{target}", authority.to_ascii_lowercase());
    }
    match scheme.eq_ignore_ascii_case(names.scheme) {
        true => target.to_owned(),
        // Over another scheme it is another listener, whose port is not compared.
        false => format!("{}://{GATEWAY}{target}", scheme.to_ascii_lowercase()),
    }
}

/// Whether a host, with or without a port, is the one that the request was sent to.
fn is_own(authority: &str, names: &OwnNames) -> bool {
    let name = |text: &str| match text.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name.to_ascii_lowercase(),
        _ => text.to_ascii_lowercase(),
    };
    let host = name(authority);
    host == name(&names.host) || host == name(&names.authority)
}

/// Whether two paths are the same but for the last slash.
pub(super) fn is_apart_by_slash(one: &str, other: &str) -> bool {
    one != other && one.trim_end_matches('/') == other.trim_end_matches('/')
}

/// A value in which the address of the gateway is replaced.
pub(super) fn without_address<'t>(text: &'t str, names: &OwnNames) -> std::borrow::Cow<'t, str> {
    let of_port = format!("{}:{}", names.host.split(':').next().unwrap_or_default(), names.port);
    let mut told = std::borrow::Cow::Borrowed(text);
    for address in [names.authority.as_str(), of_port.as_str()] {
        // A name alone may be anything; with its port it is an address.
        if address.contains(':') && told.contains(address) {
            told = told.replace(address, GATEWAY).into();
        }
    }
    told
}
