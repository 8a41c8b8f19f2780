//! Variables of nginx, and those that ingress-nginx adds, in the values of annotations.

use std::sync::LazyLock;

use regex::{Captures, Regex};

/// Those that have another name here.
const RENAMED: &[(&str, &str)] = &[
    ("best_http_host", "http_host"),
    ("binary_remote_addr", "remote_addr"),
    ("pass_access_scheme", "scheme"),
    ("pass_server_port", "server_port"),
    ("the_real_ip", "remote_addr"),
];

/// Those of a request that are the same here, besides fields, cookies and arguments.
const SAME: &[&str] = &[
    "args",
    "content_type",
    "document_uri",
    "host",
    "query_string",
    "remote_addr",
    "remote_port",
    "remote_user",
    "request_method",
    "request_uri",
    "scheme",
    "server_addr",
    "server_port",
    "ssl_client_fingerprint",
    "ssl_client_i_dn",
    "ssl_client_s_dn",
    "ssl_client_serial",
    "uri",
];

static VARIABLE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\$(\{?)([A-Za-z0-9_]+)").expect("it is a regular expression"));

/// A value with the names that variables have here.
pub(super) fn renamed(text: &str) -> String {
    let name = |found: &Captures| {
        let known = RENAMED.iter().find(|(name, _)| *name == &found[2]);
        format!("${}{}", &found[1], known.map_or(&found[2], |(_, name)| name))
    };
    VARIABLE.replace_all(text, name).into_owned()
}

/// A value all of whose variables are known here.
///
/// # Errors
/// If one is not, or if there is none.
pub(super) fn known(text: &str) -> Result<String, String> {
    let text = renamed(text);
    let mut names = VARIABLE.captures_iter(&text).map(|found| found.extract::<2>().1[1]).peekable();
    if names.peek().is_none() {
        return Err(format!("`{text}` has no variable"));
    }
    let is_known =
        |name: &&str| SAME.contains(name) || ["arg_", "cookie_", "http_"].iter().any(|start| name.starts_with(start));
    match names.find(|name| !is_known(name)) {
        Some(name) => Err(format!("`${name}` is not a variable here")),
        None => Ok(text),
    }
}
