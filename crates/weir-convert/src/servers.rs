//! Converts servers of OpenAPI and AsyncAPI to upstreams.

use crate::conversion::DocumentConversion;
use crate::document::DocumentValue;
use crate::output::ConvertedResource;
use crate::yaml::{Yaml, YamlMembers};

/// The address of an upstream whose address is not known, to be replaced by the user.
const PLACEHOLDER: &str = "127.0.0.1:8080";

/// A text with a server's variables replaced by their defaults.
pub(crate) fn with_defaults(server: &DocumentValue, member: &str) -> String {
    let mut text = server.text(member).unwrap_or_default().to_owned();
    for (name, variable) in server.get("variables").map_or(&[][..], DocumentValue::members) {
        text = text.replace(&format!("{{{name}}}"), variable.text("default").unwrap_or_default());
    }
    text
}

/// The path of a URL as a prefix: without a final slash, or empty.
pub(crate) fn base_path(path: &str) -> String {
    let path = path.trim_end_matches('/');
    if path.is_empty() || path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

/// The id of the upstream at an address; without an address, of an upstream with the placeholder.
pub(crate) fn upstream(
    conversion: &mut DocumentConversion,
    at: &DocumentValue,
    scheme: &str,
    authority: &str,
) -> String {
    let (scheme, node) = address(scheme, authority).unwrap_or_else(|| {
        conversion.lost(at, format!("no address of a server: write that of the API in place of {PLACEHOLDER}"));
        ("http", PLACEHOLDER.to_owned())
    });
    registered(conversion, at, scheme, node)
}

/// The scheme of an upstream, and its node with a port.
fn address(scheme: &str, authority: &str) -> Option<(&'static str, String)> {
    let port = match scheme {
        "http" | "ws" => 80,
        "https" | "wss" => 443,
        _ => return None,
    };
    let is_allowed = |char: char| char.is_ascii_alphanumeric() || "-._:[]".contains(char);
    if authority.is_empty() || !authority.chars().all(is_allowed) {
        return None;
    }
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let scheme = if port == 80 { "http" } else { "https" };
    Some((scheme, if has_port { authority.to_owned() } else { format!("{authority}:{port}") }))
}

/// The id of the upstream with this node, which is added if it does not exist.
fn registered(conversion: &mut DocumentConversion, at: &DocumentValue, scheme: &str, node: String) -> String {
    let mut members: YamlMembers = vec![("nodes".to_owned(), Yaml::Map(vec![(node.clone(), Yaml::Integer(1))]))];
    if scheme != "http" {
        members.push(("scheme".to_owned(), Yaml::text(scheme)));
    }
    members.push(("pass_host".to_owned(), Yaml::text("node")));
    let upstreams = &mut conversion.converted.upstreams;
    let known = upstreams.iter().find(|upstream| upstream.members[1..] == members[..]);
    if let Some(Yaml::Text(id)) = known.map(|upstream| &upstream.members[0].1) {
        return id.clone();
    }
    let id = match upstreams.len() {
        0 => "api".to_owned(),
        count => format!("api-{}", count + 1),
    };
    members.insert(0, ("id".to_owned(), Yaml::text(&id)));
    let item = ConvertedResource::new(&conversion.place(at), "server", members);
    conversion.converted.upstreams.push(item);
    id
}
