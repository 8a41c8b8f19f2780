//! Addresses of sites: `[SCHEME://]HOST[:PORT][/PATH]`.

use super::options::GlobalOptions;
use crate::SourcePlace;
use crate::output::Converted;

/// An address that a site serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SiteAddress {
    /// In lower case; empty for every host.
    pub host: String,
    pub port: u16,
    pub is_https: bool,
    /// The path, in the syntax of the matcher `path`; empty for every path.
    pub path: String,
}

/// Replaces environment variables by their defaults, since a port must be known here.
fn known(converted: &mut Converted, place: &SourcePlace, text: &str) -> String {
    let mut text = text.to_owned();
    while let Some((before, variable, after)) = first_variable(&text)
        && let Some((name, default)) = variable.split_once(":=")
    {
        converted.differs(place, format!("`{{${name}:{default}}}` in the address of a site: the default is used"));
        text = format!("{before}{default}{after}");
    }
    text
}

/// The first variable of a text, and what is before and after it.
fn first_variable(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once("${{")?;
    let (variable, after) = rest.split_once("}}")?;
    Some((before, variable, after))
}

/// Parses an address. `has_tls`: the site has a directive `tls`.
pub(super) fn parse(
    converted: &mut Converted,
    place: &SourcePlace,
    text: &str,
    options: &GlobalOptions,
    has_tls: bool,
) -> Option<SiteAddress> {
    let text = known(converted, place, text);
    let (scheme, rest) = text.split_once("://").map_or(("", text.as_str()), |(scheme, rest)| (scheme, rest));
    let (authority, path) = match rest.find('/') {
        Some(slash) if !rest.contains("${{") => rest.split_at(slash),
        _ => (rest, ""),
    };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (authority, ""),
    };
    let explicit = port.parse::<u16>().ok().filter(|&port| port > 0);
    if !port.is_empty() && explicit.is_none() || !["", "http", "https"].contains(&scheme) {
        converted.lost(place, format!("`{text}`: the address of a site is `[http://|https://]host[:port]`"));
        return None;
    }
    let host = match host {
        "*" => String::new(),
        // A variable keeps its case.
        _ if authority.contains("${{") => authority.to_owned(),
        host => host.to_ascii_lowercase(),
    };
    let default = if scheme == "http" { options.http_port } else { options.https_port };
    let port = explicit.unwrap_or(default);
    let is_https = match scheme {
        "http" => false,
        "https" => true,
        _ => port != options.http_port && (has_tls || !host.is_empty() || port == options.https_port),
    };
    Some(SiteAddress { host, port, is_https, path: path.to_owned() })
}

/// Whether a public certificate authority would issue a certificate for the host.
pub(super) fn is_public(host: &str) -> bool {
    let is_private = ["localhost", ".localhost", ".local", ".internal", ".home.arpa", ".test"]
        .iter()
        .any(|end| host == *end || host.ends_with(end) && end.starts_with('.'));
    let is_address = host.starts_with('[') || host.parse::<std::net::IpAddr>().is_ok();
    !host.is_empty() && !is_private && !is_address && !host.starts_with('*')
}
