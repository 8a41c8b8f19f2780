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

/// A value with variables, all of which are known here.
///
/// # Errors
/// If one is not, or if there is none.
pub(super) fn known(text: &str) -> Result<String, String> {
    if !VARIABLE.is_match(text) {
        return Err(format!("`{text}` has no variable"));
    }
    all_known(text, false)
}

/// A value all of whose variables are known here, if it has any. `has_groups`: `$1` to `$9` are groups of an expression.
///
/// # Errors
/// If one is not.
pub(super) fn all_known(text: &str, has_groups: bool) -> Result<String, String> {
    let text = renamed(text);
    // nginx takes one digit for the number of a group, and the plugin all of them.
    let is_group = |name: &str| match *name.as_bytes() {
        [first, ..] if !(b'1'..=b'9').contains(&first) => false,
        [_, second, ..] => !second.is_ascii_digit(),
        _ => true,
    };
    let is_known = |name: &str| {
        let begins = ["arg_", "cookie_", "http_"].iter().any(|start| name.starts_with(start));
        SAME.contains(&name) || begins || (has_groups && is_group(name))
    };
    let mut names = VARIABLE.captures_iter(&text).map(|found| found.extract::<2>().1[1]);
    match names.find(|name| !is_known(name)) {
        Some(name) => Err(format!("`${name}` is not a variable here")),
        None => Ok(text),
    }
}
