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
    if !is_own(scheme, authority, names) {
        return format!("{scheme}://{}{target}", authority.to_ascii_lowercase());
    }
    match scheme.eq_ignore_ascii_case(names.scheme) {
        true => target.to_owned(),
        // Over another scheme it is another listener, whose port is not compared.
        false => format!("{}://{GATEWAY}{target}", scheme.to_ascii_lowercase()),
    }
}

/// Whether a host, with or without a port, is the one that the request was sent to. Another port of the same scheme is another server.
fn is_own(scheme: &str, authority: &str, names: &OwnNames) -> bool {
    let usual = if scheme.eq_ignore_ascii_case("https") { 443 } else { 80 };
    let ((host, port), (sent, sent_port), (address, _)) =
        (parts(authority), parts(&names.host), parts(&names.authority));
    let is_same_scheme = scheme.eq_ignore_ascii_case(names.scheme);
    if host.eq_ignore_ascii_case(sent) {
        return !is_same_scheme
            || port.is_none_or(|port| port == names.port || port == usual || Some(port) == sent_port);
    }
    host.eq_ignore_ascii_case(address) && (!is_same_scheme || port.unwrap_or(usual) == names.port)
}

/// Host and port.
fn parts(authority: &str) -> (&str, Option<u16>) {
    match authority.rsplit_once(':').map(|(host, port)| (host, port.parse())) {
        Some((host, Ok(port))) => (host, Some(port)),
        _ => (authority, None),
    }
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
            told = replaced(&told, address).into();
        }
    }
    told
}

/// Replaces an address where it is not a part of a longer one.
fn replaced(text: &str, address: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(address) {
        let (before, after) = (&rest[..at], &rest[at + address.len()..]);
        out.push_str(before);
        let begins = !out.ends_with(|char: char| char.is_ascii_alphanumeric() || ".-_".contains(char));
        let ends = !after.starts_with(|char: char| char.is_ascii_digit());
        out.push_str(if begins && ends { GATEWAY } else { address });
        rest = after;
    }
    out + rest
}
