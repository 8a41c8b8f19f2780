//! The directives of `stream` by what becomes of them.

use super::names::is_of_names;
use crate::nginx::Conversion;
use crate::nginx::directives::{DirectiveFate, UNREAD, fate, is_off};
use crate::nginx::scope::BlockScope;
use crate::nginx::syntax::Directive;

/// Directives that are converted.
const CARRIED: &[&str] = &[
    "server",
    "upstream",
    "map",
    "listen",
    "server_name",
    "proxy_pass",
    "proxy_timeout",
    "proxy_connect_timeout",
    "proxy_protocol",
    "proxy_next_upstream",
    "proxy_next_upstream_tries",
    "proxy_next_upstream_timeout",
    "proxy_ssl",
    "proxy_ssl_verify",
    "proxy_ssl_trusted_certificate",
    "proxy_ssl_certificate",
    "proxy_ssl_certificate_key",
    "proxy_ssl_name",
    "ssl_preread",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_protocols",
    "ssl_client_certificate",
    "ssl_trusted_certificate",
    "ssl_verify_client",
    "ssl_verify_depth",
    "allow",
    "deny",
    "set_real_ip_from",
];

/// More directives without need of a counterpart than those of HTTP.
const NEEDLESS: &[&str] = &["preread_buffer_size", "proxy_half_close"];

/// Directives without a counterpart, or with another one than in HTTP.
const INSTEAD: &[(&str, &str)] = &[
    ("access_log", LOG),
    ("log_format", LOG),
    ("error_log", "the whole node has one error log"),
    ("limit_conn", LIMIT),
    ("limit_conn_zone", LIMIT),
    ("limit_conn_status", LIMIT),
    ("limit_conn_log_level", LIMIT),
    ("preread_timeout", "see `ssl_handshake_timeout`"),
    ("proxy_download_rate", RATE),
    ("proxy_upload_rate", RATE),
    ("proxy_requests", SESSION),
    ("proxy_responses", SESSION),
    ("resolver", "see `dns_resolver`"),
    ("ssl_alpn", "no application protocol is negotiated"),
    ("return", "a stream route answers nothing itself"),
];

const LOG: &str = "streams are logged as `enable_access_log` says, with requests";
const LIMIT: &str = "write `limit-conn` in the stream route";
const RATE: &str = "the rate of a stream is not limited";
const SESSION: &str = "a session over UDP ends when nothing comes for `idle_timeout`";

/// Directives that control access, which the table of HTTP does not say.
const REFUSING: &[&str] = &["js_access", "js_preread", "pass"];

/// What becomes of the stream routes that a restriction without a counterpart applies to.
pub(super) const CLOSED: &str = "the stream routes that it applies to refuse all clients";

fn fate_in_stream(name: &str) -> DirectiveFate {
    if CARRIED.contains(&name) {
        return DirectiveFate::Carried;
    }
    if NEEDLESS.contains(&name) {
        return DirectiveFate::Needless;
    }
    if let Some((_, instead)) = INSTEAD.iter().find(|(known, _)| *known == name) {
        return DirectiveFate::Instead(instead);
    }
    let nothing = "there is no counterpart";
    match fate(name) {
        _ if REFUSING.contains(&name) => DirectiveFate::Closes(nothing),
        DirectiveFate::Carried => DirectiveFate::Instead(nothing),
        other => other,
    }
}

/// Adds a finding for each directive without a counterpart.
pub(crate) fn report(conversion: &mut Conversion, block: &[Directive]) {
    for directive in block {
        match (directive.name.as_str(), fate_in_stream(&directive.name)) {
            ("server", _) => report(conversion, directive.children()),
            ("map", _) if !is_of_names(directive) => {
                let text = format!("`{}`: write a stream route for each case", directive.head());
                conversion.lost(&directive.place, text);
            }
            (_, DirectiveFate::Instead(instead)) => {
                conversion.lost(&directive.place, format!("`{}`: {instead}", directive.head()));
            }
            // A file that could not be read is told where that was tried.
            (UNREAD, _) => {}
            (_, DirectiveFate::Closes(instead)) if !is_off(directive) => {
                conversion.lost(&directive.place, format!("`{}`: {instead}; {CLOSED}", directive.head()));
            }
            _ => {}
        }
    }
}

/// Whether a directive in effect controls access, or may do so, and is not converted.
pub(super) fn closes(scope: &BlockScope) -> bool {
    scope.every().any(|directive| {
        matches!(fate_in_stream(&directive.name), DirectiveFate::Closes(_))
            && scope.last(&directive.name).is_some_and(|in_effect| !is_off(in_effect))
    })
}
