//! Mirrors, errors, logs, and configuration of nginx.

use serde_json::json;

use super::{
    Annotation, Differs, Given, IngressSettings, NEEDED, Nothing, OPTIONAL, Reads, Refused, Served, Told, With,
    annotation,
};

pub(super) const TABLE: &[Annotation] = &[
    annotation(
        "mirror-target",
        Reads::Url,
        Served(mirror),
        OPTIONAL,
        "`proxy-mirror`. Copies have the host of the target in `Host`, without its port.",
    ),
    annotation(
        "mirror-request-body",
        Reads::OneOf(&["on", "off"]),
        With("mirror-target"),
        OPTIONAL,
        "`proxy-mirror.body`. With `on`, copies have bodies of up to 1 MiB; requests with more are not copied.",
    ),
    annotation("mirror-host", Reads::Text, With("mirror-target"), OPTIONAL, "`proxy-mirror.host_header`."),
    annotation(
        "custom-headers",
        Reads::Object,
        Served(custom_headers),
        OPTIONAL,
        "The values of the ConfigMap in `response-rewrite.headers`.",
    ),
    annotation(
        "custom-http-errors",
        Reads::List,
        Differs(custom_http_errors),
        OPTIONAL,
        "In a cluster, with `default-backend`: `error-page.fetch` from the first port of that Service, whose status the client gets, \
         up to 1 MiB, without cookies. The request for a page has the fields by which ingress-nginx tells what was asked, but neither \
         content, query nor credentials, and goes over HTTP, whatever `backend-protocol` is.",
    ),
    annotation(
        "default-backend",
        Reads::Text,
        Served(default_backend),
        OPTIONAL,
        "In a cluster: where the Service of a path has no endpoint, the first port of this one gets the requests, with `X-Code: 503` \
         and the other fields by which ingress-nginx tells it what was asked. A file of `weir convert ingress` names Services by \
         their DNS names, and has no such rule.",
    ),
    annotation(
        "disable-proxy-intercept-errors",
        Reads::Flag,
        Served(pass_errors),
        OPTIONAL,
        "`true`: errors of the upstream are passed on; `custom-http-errors` is for those of the gateway.",
    ),
    annotation(
        "enable-access-log",
        Reads::Flag,
        Told,
        OPTIONAL,
        "The access log is a setting of the node, for all routes.",
    ),
    annotation(
        "enable-rewrite-log",
        Reads::Flag,
        Nothing,
        OPTIONAL,
        "`weir explain` and `weir trace` tell how a request is handled.",
    ),
    annotation(
        "enable-opentelemetry",
        Reads::Flag,
        Told,
        OPTIONAL,
        "Use the plugin `opentelemetry`, for example in a global rule.",
    ),
    annotation(
        "opentelemetry-trust-incoming-span",
        Reads::Flag,
        With("enable-opentelemetry"),
        OPTIONAL,
        "As `enable-opentelemetry`.",
    ),
    annotation(
        "opentelemetry-operation-name",
        Reads::Text,
        With("enable-opentelemetry"),
        OPTIONAL,
        "As `enable-opentelemetry`.",
    ),
    annotation("ssl-ciphers", Reads::Text, Nothing, OPTIONAL, "Weir has safe ciphers only."),
    annotation("ssl-prefer-server-ciphers", Reads::Flag, Nothing, OPTIONAL, "The same."),
    annotation(
        "enable-modsecurity",
        Reads::Flag,
        Served(firewall),
        NEEDED,
        "`true` is refused: Weir has no such firewall.",
    ),
    annotation("enable-owasp-core-rules", Reads::Flag, Served(firewall), NEEDED, "The same."),
    annotation(
        "modsecurity-transaction-id",
        Reads::Text,
        With("enable-modsecurity"),
        OPTIONAL,
        "As `enable-modsecurity`.",
    ),
    annotation("modsecurity-snippet", Reads::Text, Refused, NEEDED, "Weir has no such firewall."),
    annotation("configuration-snippet", Reads::Text, Refused, NEEDED, NO_SNIPPETS),
    annotation("server-snippet", Reads::Text, Refused, NEEDED, NO_SNIPPETS),
    annotation("stream-snippet", Reads::Text, Refused, NEEDED, NO_SNIPPETS),
];

const NO_SNIPPETS: &str =
    "Configuration of nginx cannot be included; use plugins, such as `response-rewrite`, `proxy-rewrite`, `redirect`.";

fn mirror(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let target = given.text("mirror-target").unwrap_or_default();
    let (scheme, rest) = target.split_once("://").unwrap_or_default();
    let (host, path) = rest.split_at(rest.find(['/', '$']).unwrap_or(rest.len()));
    if host.is_empty() || scheme.starts_with('$') {
        return Err(format!("`{target}` has no host"));
    }
    let name = match host.rsplit_once(':') {
        // The last colon of an IPv6 address stands within brackets.
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let host_header = given.text("mirror-host").filter(|text| !text.is_empty()).unwrap_or(name);
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    if !host_header.bytes().all(is_host) {
        return Err(format!("`{host_header}` of `mirror-host` is not the name of a host"));
    }
    let mut options = json!({ "host": format!("{scheme}://{host}"), "host_header": host_header });
    if given.text("mirror-request-body") == Some("off") {
        options["body"] = false.into();
    }
    match path {
        "" | "$request_uri" | "/$request_uri" => {}
        path => match path.strip_suffix("$request_uri") {
            Some(prefix) if !prefix.contains('$') => {
                options["path"] = prefix.trim_end_matches('/').into();
                options["path_concat_mode"] = "prefix".into();
            }
            None if !path.contains('$') => options["path"] = path.into(),
            _ => return Err(format!("`{path}` has variables other than `$request_uri` at its end")),
        },
    }
    settings.plugins.insert("proxy-mirror".to_owned(), options);
    Ok(())
}

fn custom_http_errors(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let status = |text: &str| {
        let status = text.parse().ok().filter(|status| (400..600).contains(status));
        status.ok_or_else(|| format!("`{text}` is not the status of an error, 400 to 599"))
    };
    let statuses = given.list("custom-http-errors").into_iter().map(status).collect::<Result<Vec<u16>, String>>()?;
    if given.text("default-backend").is_none() {
        return Err("needs `default-backend`, the Service that makes the pages; errors are passed on".to_owned());
    }
    settings.custom_errors = statuses;
    Ok(())
}

fn pass_errors(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    settings.passes_errors = given.flag("disable-proxy-intercept-errors", false);
    Ok(())
}

fn custom_headers(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let fields = given.config_map("custom-headers")?;
    settings.plugin("response-rewrite", "headers", json!({ "set": fields }));
    Ok(())
}

fn default_backend(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let name = given.text("default-backend").unwrap_or_default();
    if name.is_empty() || name.contains('/') {
        return Err(format!("`{name}` is not the name of a Service of the namespace"));
    }
    settings.default_backend = Some(name.to_owned());
    Ok(())
}

fn firewall(given: &Given, _: &mut IngressSettings) -> Result<(), String> {
    let is_asked = ["enable-modsecurity", "enable-owasp-core-rules"].iter().any(|name| given.flag(name, false));
    if is_asked { Err("Weir has no such firewall".to_owned()) } else { Ok(()) }
}
