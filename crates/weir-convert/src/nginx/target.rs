//! What `proxy_pass` and `grpc_pass` name.

use super::syntax::Directive;

/// `scheme://authority/path` of a `proxy_pass`.
pub(super) struct PassTarget<'a> {
    pub scheme: &'a str,
    pub authority: &'a str,
    /// Begins with a slash. If `None`, the path is not changed.
    pub path: Option<&'a str>,
}

impl PassTarget<'_> {
    /// The target of a `proxy_pass`, or of a `grpc_pass`, which may be without a scheme.
    pub(super) fn of(pass: &Directive) -> Option<PassTarget<'_>> {
        let text = pass.argument(0);
        if pass.name != "grpc_pass" || text.contains("://") {
            return PassTarget::parse(text);
        }
        let is_address = !text.is_empty() && !text.starts_with("unix:");
        is_address.then_some(PassTarget { scheme: "grpc", authority: text, path: None })
    }

    fn parse(text: &str) -> Option<PassTarget<'_>> {
        let (scheme, rest) = text.split_once("://")?;
        // The path of the request, if it stands alone.
        let own = ["$request_uri", "$uri$is_args$args"].iter().find_map(|own| rest.strip_suffix(own));
        let rest = own.filter(|authority| !authority.contains('/')).unwrap_or(rest);
        let end = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let is_known = ["http", "https", "grpc", "grpcs"].contains(&scheme) && !authority.is_empty();
        let path = (!path.is_empty()).then_some(path);
        (is_known && !authority.starts_with("unix:")).then_some(PassTarget { scheme, authority, path })
    }
}
