//! Plugins that observe requests: loggers, metrics and traces; and advice for those that have no equivalent.

use super::tracing;
use crate::document::DocumentValue;
use crate::yaml::{Yaml, YamlMembers};

/// The options of Kong that are converted, and the name and options of the plugin here.
pub(super) type ConvertedPlugin = (&'static [&'static str], (String, Yaml));

/// Plugins whose service has another way to it here.
const OTHERWISE: [(&str, &str); 30] = [
    (
        "proxy-cache",
        "which content types are kept cannot be said here; see the cache's page before you set `proxy-cache`",
    ),
    ("syslog", "it writes to the log of the system; `syslog` here needs a server: its `host` and `port`"),
    (
        "datadog",
        "write `datadog`, whose metrics have other names; its agent is set once for the node: `plugin_metadata` of `datadog`",
    ),
    ("statsd", "an agent of StatsD has to read `/metrics` of the address `status`"),
    ("session", "sessions are part of `openid-connect`"),
    ("acme", "write the setting `acme`"),
    ("ai-prompt-template", "write `ai-prompt-template`, whose requests name a template as `template_name`"),
    (
        "aws-lambda",
        "write `aws-lambda` with the URL of the function; it gets the request, and not a description of it in JSON",
    ),
    ("bot-detection", "write `ua-restriction`"),
    ("canary", "write `traffic-split`"),
    ("degraphql", "write `degraphql` in a route for each path"),
    ("exit-transformer", "Lua is not run; `error-page` and `response-rewrite` replace bodies, statuses and fields"),
    ("graphql-rate-limiting-advanced", "write `graphql-limit-count`"),
    ("grpc-gateway", "write `grpc-transcode`, with the definition as an entry of `protos`"),
    ("hmac-auth", "write `hmac-auth` in the route, and a consumer for each key"),
    ("jwe-decrypt", "write `jwe-decrypt`, and its secrets in consumers"),
    ("kafka-log", "write `kafka-logger`"),
    ("ldap-auth", "write `ldap-auth`"),
    ("ldap-auth-advanced", "write `ldap-auth`"),
    ("mocking", "write `mocking` with an example or a schema of the definition"),
    ("oauth2", "tokens are not issued here; write `openid-connect` or `jwt-auth` for those of an identity provider"),
    ("oauth2-introspection", "write `openid-connect`"),
    ("opa", "write `opa`, whose policies get the request in the form of Apache APISIX: `input.request`, `input.var`"),
    ("openid-connect", "write `openid-connect`"),
    ("post-function", "Lua is not run"),
    ("pre-function", "Lua is not run"),
    ("rate-limiting-advanced", "write `limit-count`"),
    ("request-transformer-advanced", "write `proxy-rewrite`"),
    ("response-transformer-advanced", "write `response-rewrite`"),
    ("route-transformer-advanced", "write `uri` of `proxy-rewrite`, and `traffic-split` for another upstream"),
];

/// The supported options, and the converted plugin; or why it cannot be converted.
pub(super) fn converted(config: &DocumentValue, name: &str) -> Result<ConvertedPlugin, &'static str> {
    let plugin = |name: &str, options: YamlMembers| (name.to_owned(), Yaml::Map(options));
    Ok(match name {
        "http-log" => (
            &[
                "http_endpoint",
                "method",
                "content_type",
                "timeout",
                "keepalive",
                "headers",
                "queue",
                "queue_size",
                "flush_timeout",
                "retry_count",
                "ssl_verify",
            ],
            plugin("http-logger", http_log(config)?),
        ),
        "file-log" => {
            let path = config.text("path").ok_or("it has no `path`")?;
            (&["path", "reopen"], plugin("file-logger", vec![("path".to_owned(), Yaml::text(path))]))
        }
        "tcp-log" => {
            let mut options = receiver(config)?;
            options.push(("timeout".to_owned(), Yaml::Integer(config.number("timeout").unwrap_or(10_000))));
            if config.is_true("tls", false) {
                options.push(("tls".to_owned(), Yaml::Boolean(true)));
                options.extend(config.text("tls_sni").map(|name| ("tls_options".to_owned(), Yaml::text(name))));
            }
            (&["host", "port", "timeout", "keepalive", "tls", "tls_sni"], plugin("tcp-logger", options))
        }
        "udp-log" => {
            let mut options = receiver(config)?;
            options.push(("timeout".to_owned(), Yaml::Integer(seconds(config, 10_000))));
            (&["host", "port", "timeout"], plugin("udp-logger", options))
        }
        "prometheus" => (
            &[
                "status_code_metrics",
                "latency_metrics",
                "bandwidth_metrics",
                "upstream_health_metrics",
                "per_consumer",
                "ai_metrics",
            ],
            plugin(name, vec![("prefer_name".to_owned(), Yaml::Boolean(true))]),
        ),
        "zipkin" => (&ZIPKIN, plugin(name, zipkin(config)?)),
        "loggly" => (&LOGGLY, plugin(name, loggly(config)?)),
        "opentelemetry" => (&tracing::OPTIONS, tracing::converted(config)?),
        _ => {
            let told = OTHERWISE.iter().find(|(theirs, _)| *theirs == name).map(|(_, way)| *way);
            return Err(told.unwrap_or("there is no conversion for it"));
        }
    })
}

/// Milliseconds of `timeout` as whole seconds, at least one.
fn seconds(config: &DocumentValue, default: i64) -> i64 {
    (config.number("timeout").unwrap_or(default).max(1) - 1) / 1_000 + 1
}

fn receiver(config: &DocumentValue) -> Result<YamlMembers, &'static str> {
    let (host, port) = config.text("host").zip(config.number("port")).ok_or("it has no `host` and `port`")?;
    Ok(vec![
        ("host".to_owned(), Yaml::text(host)),
        ("port".to_owned(), Yaml::Integer(port)),
        // One record in each message.
        ("batch_max_size".to_owned(), Yaml::Integer(1)),
    ])
}

fn http_log(config: &DocumentValue) -> Result<YamlMembers, &'static str> {
    let endpoint = config.text("http_endpoint").ok_or("it has no `http_endpoint`")?;
    if config.text("method").is_some_and(|method| method != "POST") {
        return Err("records are sent by POST");
    }
    let headers = config.get("headers").map(DocumentValue::members).unwrap_or_default();
    if headers.iter().any(|(name, _)| !name.eq_ignore_ascii_case("authorization")) {
        return Err("of its `headers`, only `Authorization` is sent");
    }
    let queue = config.get("queue");
    let queued = |name: &str, older: &str| {
        queue.and_then(|queue| queue.number(name)).or_else(|| config.number(older)).unwrap_or(1).max(1)
    };
    let mut options = vec![
        ("uri".to_owned(), Yaml::text(endpoint)),
        ("timeout".to_owned(), Yaml::Integer(seconds(config, 10_000))),
        ("batch_max_size".to_owned(), Yaml::Integer(queued("max_batch_size", "queue_size"))),
        ("inactive_timeout".to_owned(), Yaml::Integer(queued("max_coalescing_delay", "flush_timeout"))),
    ];
    let value = headers.first().and_then(|(_, value)| value.as_text().or_else(|| value.items().first()?.as_text()));
    options.extend(value.map(|value| ("auth_header".to_owned(), Yaml::text(value))));
    if config.text("ssl_verify") == Some("false") {
        options.push(("ssl_verify".to_owned(), Yaml::Boolean(false)));
    }
    Ok(options)
}

/// The options of `loggly` that are converted.
const LOGGLY: [&str; 9] = [
    "key",
    "host",
    "port",
    "tags",
    "timeout",
    "log_level",
    "successful_severity",
    "client_errors_severity",
    "server_errors_severity",
];

fn loggly(config: &DocumentValue) -> Result<YamlMembers, &'static str> {
    let is_usual = config.text("host").is_none_or(|host| host == "logs-01.loggly.com")
        && config.number("port").is_none_or(|port| port == 514);
    if !is_usual {
        return Err("write `loggly`; its server is set once for the node: `plugin_metadata` of `loggly`");
    }
    if LOGGLY[5..].iter().any(|severity| config.text(severity).is_some_and(|word| word != "info")) {
        return Err("write `loggly`; its `severity_map` has the severities by status");
    }
    let key = config.text("key").ok_or("it has no `key`")?;
    let tags = config.texts("tags");
    let tags = if tags.is_empty() { vec!["kong"] } else { tags };
    Ok(vec![("customer_token".to_owned(), Yaml::text(key)), ("tags".to_owned(), Yaml::texts(tags))])
}

/// The options of `zipkin` that are converted.
const ZIPKIN: [&str; 8] = [
    "http_endpoint",
    "sample_ratio",
    "default_service_name",
    "include_credential",
    "traceid_byte_count",
    "header_type",
    "default_header_type",
    "local_service_name",
];

fn zipkin(config: &DocumentValue) -> Result<YamlMembers, &'static str> {
    let endpoint = config.text("http_endpoint").ok_or("it has no `http_endpoint`")?;
    let is_b3 = |name: &str| config.text(name).is_none_or(|kind| ["preserve", "b3", "b3-single"].contains(&kind));
    if !is_b3("header_type") || !is_b3("default_header_type") {
        return Err("the trace context is read from `b3` and `X-B3-…` only; `opentelemetry` reads `traceparent`");
    }
    let ratio = config.text("sample_ratio").unwrap_or("0.001");
    let ratio = ratio.parse::<f64>().ok().filter(|ratio| (0.000_01..=1.0).contains(ratio));
    Ok(vec![
        ("endpoint".to_owned(), Yaml::text(endpoint)),
        ("sample_ratio".to_owned(), Yaml::Decimal(ratio.ok_or("a `sample_ratio` outside of 0.00001 to 1")?)),
        ("service_name".to_owned(), Yaml::text(config.text("local_service_name").unwrap_or("kong"))),
    ])
}

/// What is different after the conversion of a plugin.
pub(super) fn difference(config: &DocumentValue, name: &str) -> Option<&'static str> {
    match name {
        "http-log" if is_verified_now(config) => Some(
            "records have the members of Apache APISIX (`log_format` sets others), and the certificate is verified",
        ),
        "http-log" | "file-log" | "tcp-log" | "udp-log" | "loggly" => {
            Some("records have the members of Apache APISIX; `log_format` sets others")
        }
        "opentelemetry" => Some(tracing::DIFFERENCE),
        "prometheus" => Some(
            "`prometheus`: the metrics have names of Apache APISIX (`apisix_http_status`), and are at `/metrics` of the address `status`",
        ),
        _ => None,
    }
}

/// Whether the certificate of the service is verified because nothing is said of it.
fn is_verified_now(config: &DocumentValue) -> bool {
    config.text("http_endpoint").is_some_and(|url| url.starts_with("https:")) && config.text("ssl_verify").is_none()
}
