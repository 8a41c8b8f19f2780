//! The methods that a route matches and that a check can send (APISIX).

pub(super) const METHODS: &[(&str, &str)] = &[
    ("GET", "GET"),
    ("POST", "POST"),
    ("PUT", "PUT"),
    ("DELETE", "DELETE"),
    ("PATCH", "PATCH"),
    ("HEAD", "HEAD"),
    ("OPTIONS", "OPTIONS"),
    ("CONNECT", "CONNECT"),
    ("TRACE", "TRACE"),
    ("PURGE", "PURGE"),
];
