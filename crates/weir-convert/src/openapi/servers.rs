//! `servers`, as upstreams.

use crate::conversion::DocumentConversion;
use crate::document::DocumentValue;
use crate::servers::{base_path, upstream, with_defaults};

/// The upstream of an operation and the base path of its server, which is the first one of the nearest `servers`.
pub(super) fn upstream_of(conversion: &mut DocumentConversion, nearest: &[&DocumentValue]) -> (String, String) {
    let root = conversion.root;
    let lists = nearest.iter().copied().chain([root]).map(|at| at.list("servers"));
    let servers = lists.into_iter().find(|servers| !servers.is_empty()).unwrap_or_default();
    for other in servers.iter().skip(1) {
        let url = other.text("url").unwrap_or_default();
        conversion.lost(other, format!("server `{url}`: only the first server is converted"));
    }
    let at = servers.first().unwrap_or(root);
    let url = with_defaults(at, "url");
    let (scheme, authority, path) = match url.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            (scheme, authority, path)
        }
        None => ("", "", url.as_str()),
    };
    (upstream(conversion, at, scheme, authority), base_path(path))
}
