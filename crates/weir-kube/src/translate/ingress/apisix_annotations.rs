//! The annotations of the APISIX ingress controller, for Ingresses of its class.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::super::node_references::is_reference;
use super::annotations::{Remark, Treatment};
use super::settings::{IngressSettings, IngressTimeouts};

/// What all of them begin with.
const PREFIX: &str = "k8s.apisix.apache.org/";
/// A part of a time-out of which nothing is said, in seconds.
const DEFAULT_TIMEOUT: f64 = 60.0;

/// Annotations that belong together.
struct AnnotationGroup {
    names: &'static [&'static str],
    /// Whether the Ingress must not be served without them: they protect something, or their absence sends requests to the wrong place.
    is_needed: bool,
    read: fn(&ApisixAnnotations, &mut IngressSettings) -> Result<(), String>,
}

const fn group(
    names: &'static [&'static str],
    is_needed: bool,
    read: fn(&ApisixAnnotations, &mut IngressSettings) -> Result<(), String>,
) -> AnnotationGroup {
    AnnotationGroup { names, is_needed, read }
}

const NEEDED: bool = true;
const OPTIONAL: bool = false;

const GROUPS: [AnnotationGroup; 16] = [
    // Upgrades are passed on in any case.
    group(&["enable-websocket"], OPTIONAL, |_, _| Ok(())),
    group(&["upstream-scheme"], NEEDED, scheme),
    group(&["upstream-retries"], OPTIONAL, retries),
    group(&["upstream-connect-timeout", "upstream-read-timeout", "upstream-send-timeout"], OPTIONAL, timeouts),
    group(&["enable-cors", "cors-allow-origin", "cors-allow-headers", "cors-allow-methods"], OPTIONAL, cors),
    group(&["enable-csrf", "csrf-key"], NEEDED, csrf),
    group(&["http-to-https", "http-redirect", "http-redirect-code"], NEEDED, redirect),
    group(&["rewrite-target", "rewrite-target-regex", "rewrite-target-regex-template"], NEEDED, rewrite),
    group(
        &[
            "enable-response-rewrite",
            "response-rewrite-status-code",
            "response-rewrite-body",
            "response-rewrite-body-base64",
            "response-rewrite-add-header",
            "response-rewrite-set-header",
            "response-rewrite-remove-header",
        ],
        OPTIONAL,
        response,
    ),
    group(
        &["auth-uri", "auth-ssl-verify", "auth-request-headers", "auth-upstream-headers", "auth-client-headers"],
        NEEDED,
        forward_auth,
    ),
    group(&["allowlist-source-range", "blocklist-source-range"], NEEDED, addresses),
    group(&["http-allow-methods", "http-block-methods"], NEEDED, methods),
    group(&["auth-type"], NEEDED, authentication),
    group(&["use-regex"], NEEDED, |given, _| match given.flag("use-regex") {
        true => {
            Err("paths as regular expressions are not supported: write an ApisixRoute with `exprs` on the path"
                .to_owned())
        }
        false => Ok(()),
    }),
    group(&["plugin-config-name"], NEEDED, |_, _| {
        Err("is not supported: write an ApisixRoute with `plugin_config_name`, or a WeirPolicy".to_owned())
    }),
    group(&["svc-namespace"], NEEDED, |_, _| {
        Err("Services of other namespaces are not supported: write an HTTPRoute, and a ReferenceGrant there".to_owned())
    }),
];

/// The annotations of an Ingress, without the prefix.
struct ApisixAnnotations<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> ApisixAnnotations<'a> {
    fn new(annotations: &'a BTreeMap<String, String>) -> ApisixAnnotations<'a> {
        let own = annotations.iter().filter_map(|(name, text)| Some((name.strip_prefix(PREFIX)?, text.trim())));
        ApisixAnnotations(own.collect())
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).copied().filter(|text| !text.is_empty())
    }

    fn flag(&self, name: &str) -> bool {
        self.text(name) == Some("true")
    }

    fn list(&self, name: &str) -> Vec<&'a str> {
        let items = self.text(name).into_iter().flat_map(|text| text.split(','));
        items.map(str::trim).filter(|item| !item.is_empty()).collect()
    }
}

/// Reads the annotations of an Ingress into its settings.
pub(super) fn read(annotations: &BTreeMap<String, String>, settings: &mut IngressSettings) -> Vec<Remark> {
    let given = ApisixAnnotations::new(annotations);
    let mut remarks = Vec::new();
    for group in &GROUPS {
        let there: Vec<&str> = group.names.iter().copied().filter(|name| given.0.contains_key(name)).collect();
        if there.is_empty() {
            continue;
        }
        let result = match there.iter().any(|name| given.text(name).is_some_and(is_reference)) {
            true => Err("`$env://` and `$secret://` would be values of the node".to_owned()),
            false => (group.read)(&given, settings),
        };
        let treatment = match &result {
            Ok(()) => Treatment::Served,
            Err(_) if group.is_needed => Treatment::Refused,
            Err(_) => Treatment::Left,
        };
        let text = result.err().unwrap_or_default();
        remarks.extend(there.iter().map(|name| Remark { name: (*name).to_owned(), treatment, text: text.clone() }));
    }
    let unknown = given.0.keys().filter(|name| GROUPS.iter().all(|group| !group.names.contains(name)));
    remarks.extend(unknown.map(|name| Remark {
        name: (*name).to_owned(),
        treatment: Treatment::Left,
        text: "the APISIX ingress controller has no annotation of this name".to_owned(),
    }));
    remarks
}

/// Remarks on the annotations of an Ingress whose class does not read them.
pub(super) fn unread(annotations: &BTreeMap<String, String>) -> Vec<Remark> {
    let given = ApisixAnnotations::new(annotations);
    let remark = |name: &&str| {
        let is_needed = GROUPS.iter().any(|group| group.is_needed && group.names.contains(name));
        let treatment = if is_needed { Treatment::Refused } else { Treatment::Left };
        let text = "the class of this Ingress does not read annotations of the APISIX ingress controller.".to_owned();
        Remark { name: (*name).to_owned(), treatment, text }
    };
    given.0.keys().map(remark).collect()
}

fn scheme(given: &ApisixAnnotations, settings: &mut IngressSettings) -> Result<(), String> {
    let scheme = given.text("upstream-scheme").unwrap_or("http");
    if !["http", "https", "grpc", "grpcs"].contains(&scheme) {
        return Err(format!("`{scheme}` is none of http, https, grpc and grpcs"));
    }
    settings.upstream.insert("scheme".to_owned(), scheme.into());
    if scheme.ends_with('s') {
        // As with APISIX.
        settings.upstream_tls("verify", false.into());
    }
    Ok(())
}

fn retries(given: &ApisixAnnotations, settings: &mut IngressSettings) -> Result<(), String> {
    let text = given.text("upstream-retries").unwrap_or_default();
    let retries: u16 = text.parse().map_err(|_| format!("`{text}` is not a number of retries"))?;
    settings.upstream.insert("retries".to_owned(), retries.into());
    Ok(())
}

fn timeouts(given: &ApisixAnnotations, settings: &mut IngressSettings) -> Result<(), String> {
    let seconds = |name: &str| {
        let Some(text) = given.text(name) else { return Ok(DEFAULT_TIMEOUT) };
        let number = text.strip_suffix('s').unwrap_or(text).parse::<f64>();
        let number = number.ok().filter(|seconds| seconds.is_finite() && *seconds > 0.0);
        number.ok_or_else(|| format!("`{text}` is not a time in seconds"))
    };
    settings.timeout = Some(IngressTimeouts {
        connect: seconds("upstream-connect-timeout")?,
        send: seconds("upstream-send-timeout")?,
        read: seconds("upstream-read-timeout")?,
    });
    Ok(())
}

fn cors(given: &ApisixAnnotations, settings: &mut IngressSettings) -> Result<(), String> {
    if given.flag("enable-cors") {
        let mut options = Map::new();
        for (option, name) in [
            ("allow_origins", "cors-allow-origin"),
            ("allow_headers", "cors-allow-headers"),
            ("allow_methods", "cors-allow-methods"),
        ] {
            let items = given.list(name);
            if !items.is_empty() {
                options.insert(option.to_owned(), items.join(",").into());
            }
        }
        settings.plugins.insert("cors".to_owned(), Value::Object(options));
    }
    Ok(())
}

fn csrf(given: &ApisixAnnotations, settings: &mut IngressSettings) -> Result<(), String> {
    if given.flag("enable-csrf") {
        let key = given.text("csrf-key").ok_or("`csrf-key` is missing")?;
        settings.plugins.insert("csrf".to_owned(), json!({ "key": key }));
    }
    Ok(())
}

fn redirect(given: &ApisixAnnotations, settings: &mut IngressSettings) -> Result<(), String> {
    let options = if given.flag("http-to-https") {
        json!({ "http_to_https": true })
    } else if let Some(uri) = given.text("http-redirect") {
        let code = given.text("http-redirect-code").unwrap_or("301");
        let code = code.parse::<u16>().ok().filter(|code| (301..=308).contains(code));
        json!({ "uri": uri, "ret_code": code.ok_or("`http-redirect-code` is not from 301 to 308")? })
    } else {
        return Ok(());
    };
    settings.plugins.insert("redirect".to_owned(), options);
    Ok(())
}

fn rewrite(given: &ApisixAnnotations, settings: &mut IngressSettings) -> Result<(), String> {
    let target = given.text("rewrite-target");
    let regex = given.text("rewrite-target-regex").zip(given.text("rewrite-target-regex-template"));
    match (target, regex) {
        (_, Some((regex, template))) => settings.plugin("proxy-rewrite", "regex_uri", json!([regex, template])),
        (Some(target), None) => settings.plugin("proxy-rewrite", "uri", target.into()),
        (None, None) => {
            return Err("`rewrite-target-regex` and `rewrite-target-regex-template` belong together".to_owned());
        }
    }
    Ok(())
}

fn response(given: &ApisixAnnotations, settings: &mut IngressSettings) -> Result<(), String> {
    if !given.flag("enable-response-rewrite") {
        return Ok(());
    }
    let mut options = Map::new();
    if let Some(code) = given.text("response-rewrite-status-code") {
        let code = code.parse::<u16>().ok().filter(|code| (200..=598).contains(code));
        options.insert("status_code".to_owned(), code.ok_or("`response-rewrite-status-code` is not a status")?.into());
    }
    if let Some(body) = given.text("response-rewrite-body") {
        options.insert("body".to_owned(), body.into());
        options.insert("body_base64".to_owned(), given.flag("response-rewrite-body-base64").into());
    }
    let mut headers = Map::new();
    let fields = |name: &str| {
        let field =
            |text: &&str| text.split_once(':').map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()));
        let read: Option<Vec<(String, String)>> = given.list(name).iter().map(field).collect();
        read.ok_or_else(|| format!("`{name}` is a list of `name:value`"))
    };
    let added: Vec<Value> = fields("response-rewrite-add-header")?
        .into_iter()
        .map(|(name, value)| format!("{name}: {value}").into())
        .collect();
    let set: Map<String, Value> =
        fields("response-rewrite-set-header")?.into_iter().map(|(name, value)| (name, value.into())).collect();
    let removed = given.list("response-rewrite-remove-header");
    if !added.is_empty() {
        headers.insert("add".to_owned(), added.into());
    }
    if !set.is_empty() {
        headers.insert("set".to_owned(), set.into());
    }
    if !removed.is_empty() {
        headers.insert("remove".to_owned(), json!(removed));
    }
    if !headers.is_empty() {
        options.insert("headers".to_owned(), headers.into());
    }
    settings.plugins.insert("response-rewrite".to_owned(), Value::Object(options));
    Ok(())
}

fn forward_auth(given: &ApisixAnnotations, settings: &mut IngressSettings) -> Result<(), String> {
    let uri = given.text("auth-uri").ok_or("`auth-uri` is missing")?;
    let mut options = json!({ "uri": uri, "ssl_verify": given.text("auth-ssl-verify") != Some("false") });
    for (option, name) in [
        ("request_headers", "auth-request-headers"),
        ("upstream_headers", "auth-upstream-headers"),
        ("client_headers", "auth-client-headers"),
    ] {
        let items = given.list(name);
        if !items.is_empty() {
            options[option] = json!(items);
        }
    }
    settings.plugins.insert("forward-auth".to_owned(), options);
    Ok(())
}

fn addresses(given: &ApisixAnnotations, settings: &mut IngressSettings) -> Result<(), String> {
    let mut options = Map::new();
    for (option, name) in [("whitelist", "allowlist-source-range"), ("blacklist", "blocklist-source-range")] {
        let items = given.list(name);
        if let Some(wrong) = items.iter().find(|item| !is_network(item)) {
            return Err(format!("`{wrong}` is neither an address nor a network"));
        }
        if !items.is_empty() {
            options.insert(option.to_owned(), json!(items));
        }
    }
    if options.is_empty() {
        return Err("the list is empty".to_owned());
    }
    settings.plugins.insert("ip-restriction".to_owned(), Value::Object(options));
    Ok(())
}

fn is_network(text: &str) -> bool {
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    bits.is_none_or(|bits| bits.parse::<u8>().is_ok_and(|bits| bits <= most))
}

fn methods(given: &ApisixAnnotations, settings: &mut IngressSettings) -> Result<(), String> {
    let (allowed, blocked) = (given.list("http-allow-methods"), given.list("http-block-methods"));
    // As with APISIX, a list of what is allowed comes first.
    let condition = match (allowed.is_empty(), blocked.is_empty()) {
        (false, _) => json!(["request_method", "!", "in", allowed]),
        (true, false) => json!(["request_method", "in", blocked]),
        (true, true) => return Err("the list is empty".to_owned()),
    };
    let abort = json!({ "http_status": 405, "vars": [[condition]] });
    settings.plugins.insert("fault-injection".to_owned(), json!({ "abort": abort }));
    Ok(())
}

fn authentication(given: &ApisixAnnotations, settings: &mut IngressSettings) -> Result<(), String> {
    let plugin = match given.text("auth-type") {
        Some("keyAuth") => "key-auth",
        Some("basicAuth") => "basic-auth",
        other => return Err(format!("`{}` is neither keyAuth nor basicAuth", other.unwrap_or_default())),
    };
    settings.plugins.insert(plugin.to_owned(), json!({}));
    Ok(())
}
