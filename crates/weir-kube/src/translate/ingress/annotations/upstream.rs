//! How a request is sent to the endpoints.

use serde_json::json;

use super::{Annotation, Given, IngressSettings, NEEDED, Nothing, OPTIONAL, Reads, Served, annotation};

pub(super) const TABLE: &[Annotation] = &[
    annotation(
        "backend-protocol",
        Reads::Word(&["HTTP", "HTTPS", "GRPC", "GRPCS", "AUTO_HTTP", "FCGI"]),
        Served(protocol),
        NEEDED,
        "`scheme` of the upstream. `HTTPS` and `GRPCS` without verification of certificates, as in ingress-nginx, unless \
         `proxy-ssl-verify` is `on`. `AUTO_HTTP` and `FCGI` are refused.",
    ),
    annotation(
        "proxy-ssl-secret",
        Reads::Object,
        Served(certificates),
        NEEDED,
        "`tls` of the upstream: `client_cert` and `client_key` from `tls.crt` and `tls.key`, `ca` from `ca.crt`.",
    ),
    annotation(
        "proxy-ssl-verify",
        Reads::OneOf(&["on", "off"]),
        Served(verify),
        NEEDED,
        "`tls.verify` of the upstream.",
    ),
    annotation("proxy-ssl-verify-depth", Reads::Number, Nothing, OPTIONAL, "Chains of any usual length are accepted."),
    annotation("proxy-ssl-name", Reads::Text, Served(server_name), NEEDED, "`tls.server_name` of the upstream."),
    annotation("proxy-ssl-server-name", Reads::OneOf(&["on", "off"]), Nothing, OPTIONAL, "The name is always sent."),
    annotation("proxy-ssl-ciphers", Reads::Text, Nothing, OPTIONAL, "Weir has safe ciphers only."),
    annotation("proxy-ssl-protocols", Reads::Text, Nothing, OPTIONAL, "TLS 1.2 and 1.3."),
    annotation("upstream-vhost", Reads::Text, Served(vhost), NEEDED, "`pass_host: rewrite` and `upstream_host`."),
    annotation(
        "x-forwarded-prefix",
        Reads::Text,
        Served(forwarded_prefix),
        OPTIONAL,
        "`X-Forwarded-Prefix` in `proxy-rewrite.headers.set`.",
    ),
    annotation(
        "service-upstream",
        Reads::Flag,
        Served(cluster_ip),
        OPTIONAL,
        "The cluster IP of the Service is the only node.",
    ),
    annotation(
        "proxy-next-upstream",
        Reads::Text,
        Served(next_upstream),
        OPTIONAL,
        "`retry_on`; `off` is `retries: 0`. Requests that may have been processed are repeated for idempotent methods only.",
    ),
    annotation("proxy-next-upstream-tries", Reads::Number, Served(tries), OPTIONAL, "`retries`, one less."),
    annotation("proxy-next-upstream-timeout", Reads::Seconds, Served(retry_timeout), OPTIONAL, "`retry_timeout`."),
    annotation(
        "connection-proxy-header",
        Reads::Text,
        Nothing,
        OPTIONAL,
        "Connections to endpoints are managed by Weir.",
    ),
    annotation("proxy-http-version", Reads::Text, Nothing, OPTIONAL, "HTTP/1.1, or HTTP/2 as `backend-protocol` says."),
    annotation(
        "proxy-buffering",
        Reads::OneOf(&["on", "off"]),
        Nothing,
        OPTIONAL,
        "Responses are passed on as they arrive.",
    ),
    annotation(
        "proxy-request-buffering",
        Reads::OneOf(&["on", "off"]),
        Nothing,
        OPTIONAL,
        "Requests are passed on as they arrive, as with `off`.",
    ),
    annotation(
        "proxy-buffer-size",
        Reads::Size,
        Nothing,
        OPTIONAL,
        "`response_max_header_size` of the upstream is 64 KiB.",
    ),
    annotation("proxy-buffers-number", Reads::Number, Nothing, OPTIONAL, "Buffers are those of the worker."),
    annotation("proxy-busy-buffers-size", Reads::Size, Nothing, OPTIONAL, "The same."),
    annotation("proxy-max-temp-file-size", Reads::Size, Nothing, OPTIONAL, "Nothing is written to files."),
    annotation("http2-push-preload", Reads::Flag, Nothing, OPTIONAL, "Browsers have given up HTTP/2 push."),
];

fn protocol(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let scheme = match &*given.text("backend-protocol").unwrap_or_default().to_ascii_uppercase() {
        "HTTPS" => "https",
        "GRPC" => "grpc",
        "GRPCS" => "grpcs",
        other @ ("AUTO_HTTP" | "FCGI") => return Err(format!("endpoints that speak {other} are not served")),
        _ => return Ok(()),
    };
    settings.upstream.insert("scheme".to_owned(), scheme.into());
    if scheme.ends_with('s') {
        settings.upstream_tls("verify", json!(given.text("proxy-ssl-verify") == Some("on")));
    }
    Ok(())
}

fn certificates(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let secret = given.secret("proxy-ssl-secret")?;
    for (key, name) in [("client_cert", "tls.crt"), ("client_key", "tls.key"), ("ca", "ca.crt")] {
        match secret.text(name) {
            Ok(text) => settings.upstream_tls(key, json!(text)),
            // A Secret for verification alone has no certificate for clients, and one for clients alone has no `ca.crt`.
            Err(_) if !secret.data.contains_key(name) => {}
            Err(problem) => return Err(problem),
        }
    }
    Ok(())
}

fn verify(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let is_on = given.text("proxy-ssl-verify") == Some("on");
    if is_on || settings.upstream.contains_key("tls") {
        settings.upstream_tls("verify", json!(is_on));
    }
    Ok(())
}

fn server_name(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let name = given.text("proxy-ssl-name").unwrap_or_default();
    if name.contains('$') || name.is_empty() {
        return Err(format!("`{name}` is not the name of a host"));
    }
    settings.upstream_tls("server_name", json!(name));
    Ok(())
}

fn vhost(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let host = given.text("upstream-vhost").unwrap_or_default();
    if host.contains('$') || host.is_empty() {
        return Err(format!("`{host}` is not the name of a host"));
    }
    settings.upstream.insert("pass_host".to_owned(), "rewrite".into());
    settings.upstream.insert("upstream_host".to_owned(), host.into());
    Ok(())
}

fn forwarded_prefix(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    settings.request_header("X-Forwarded-Prefix", given.text("x-forwarded-prefix").unwrap_or_default());
    Ok(())
}

fn cluster_ip(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    settings.to_cluster_ip = given.flag("service-upstream", false);
    Ok(())
}

/// Statuses that both `proxy_next_upstream` of nginx and `retry_on` know.
const STATUSES: [&str; 7] = ["http_403", "http_404", "http_429", "http_500", "http_502", "http_503", "http_504"];

fn next_upstream(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let words: Vec<&str> = given.text("proxy-next-upstream").unwrap_or_default().split_whitespace().collect();
    if words == ["off"] {
        settings.upstream.insert("retries".to_owned(), json!(0));
        return Ok(());
    }
    let reason = |word: &str| match word {
        "timeout" => Some("read_timeout".to_owned()),
        word => STATUSES.contains(&word).then(|| word.to_owned()),
    };
    let reasons: Vec<String> = words.iter().filter_map(|word| reason(word)).collect();
    if !reasons.is_empty() {
        settings.upstream.insert("retry_on".to_owned(), json!(reasons));
    }
    match words.iter().find(|word| !["error", "timeout", "invalid_header"].contains(word) && !STATUSES.contains(word)) {
        Some(word) => Err(format!("`{word}` is not served; the others are")),
        None => Ok(()),
    }
}

fn tries(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    if let Some(tries) = given.number("proxy-next-upstream-tries").filter(|tries| *tries > 0)
        && !settings.upstream.contains_key("retries")
    {
        settings.upstream.insert("retries".to_owned(), json!((tries - 1).min(65_535)));
    }
    Ok(())
}

fn retry_timeout(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    if let Some(time) = given.seconds("proxy-next-upstream-timeout").filter(|time| *time > 0.0) {
        settings.upstream.insert("retry_timeout".to_owned(), json!(time));
    }
    Ok(())
}
