//! Directives and options that are not converted, and their alternatives.

const FILES: &str = "static files are not served; use a file server as an upstream";
const PHP: &str = "only HTTP upstreams are supported; use a server that speaks HTTP in front of PHP";
const LOGGED: &str = "write `match` of a logger, such as `file-logger`";

const INSTEAD: &[(&str, &str)] = &[
    ("file_server", FILES),
    ("root", FILES),
    ("try_files", FILES),
    ("fs", FILES),
    ("templates", FILES),
    ("php_fastcgi", PHP),
    ("metrics", "see `status`: `/metrics`"),
    ("acme_server", "Weir is no certificate authority"),
    ("tracing", "write `opentelemetry`"),
    ("map", "write routes with `vars`, one for each case"),
    ("vars", "variables cannot be defined; write routes with `vars`"),
    ("skip_log", LOGGED),
    ("log_skip", LOGGED),
    ("log_append", LOGGED),
    ("log_name", LOGGED),
    ("push", "HTTP/2 push is not supported"),
    ("intercept", "write `response-rewrite` with `vars: [[status, ...]]`"),
    ("copy_response", "write `response-rewrite` with `vars: [[status, ...]]`"),
    ("copy_response_headers", "write `response-rewrite` with `vars: [[status, ...]]`"),
    ("handle_errors", "write `error-page` with the text of a page for each status"),
    ("invoke", "named routes are not converted; write a snippet"),
    ("rate_limit", "write `limit-count`"),
    ("storage", "see `acme.storage`"),
    ("admin", "see `admin`: Weir has its own Admin API"),
    ("default_sni", "write `snis: [\"*\"]` in an entry of `ssls`"),
    ("on_demand_tls", "certificates are ordered for the hosts that `acme.hosts` names"),
    ("preferred_chains", "the authority chooses the chain"),
    ("cert_issuer", "see `acme`"),
    ("ocsp_stapling", "OCSP stapling is not supported"),
    ("pki", "Weir is no certificate authority"),
    ("key_type", "keys of ordered certificates are ECDSA, P-256"),
];

/// The alternative to a directive or option.
pub(super) fn instead(name: &str) -> &'static str {
    INSTEAD.iter().find(|(known, _)| *known == name).map_or("this directive is not known", |(_, instead)| instead)
}
