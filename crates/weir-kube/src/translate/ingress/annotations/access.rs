//! Who may send requests: addresses and certificates.

use serde_json::{Value, json};

use super::{
    Annotation, Given, IngressSettings, NEEDED, OPTIONAL, Reads, Served, Told, With, annotation, check_expression,
};

pub(super) const TABLE: &[Annotation] = &[
    annotation(
        "whitelist-source-range",
        Reads::Networks,
        Served(allowed),
        NEEDED,
        "`ip-restriction.whitelist`. Behind a load balancer, set `trusted_addresses`, and add `real-ip` in a global rule.",
    ),
    annotation(
        "allowlist-source-range",
        Reads::Networks,
        Served(allowed),
        NEEDED,
        "The same. It takes the place of `whitelist-source-range`.",
    ),
    annotation(
        "denylist-source-range",
        Reads::Networks,
        Served(denied),
        NEEDED,
        "`ip-restriction.blacklist`; together with a list of allowed addresses, `fault-injection` with 403.",
    ),
    annotation(
        "satisfy",
        Reads::OneOf(&["all", "any"]),
        Served(satisfy),
        NEEDED,
        "`all` is how plugins work. With `any`, `_meta.filter` of `basic-auth` or `forward-auth`: the addresses of `whitelist-source-range` \
         need no credential, and `Authorization` of theirs is passed on. `any` is refused with `auth-response-headers`, which they could \
         claim, with `denylist-source-range`, or with both `auth-type` and `auth-url`.",
    ),
    annotation(
        "auth-tls-secret",
        Reads::Object,
        Served(client_certificates),
        NEEDED,
        "`ssls[].client` with `ca.crt` of the Secret, for all paths of the hosts of the Ingress. A host without a certificate in `spec.tls` is answered with 503.",
    ),
    annotation(
        "auth-tls-verify-client",
        Reads::OneOf(&["on", "off", "optional", "optional_no_ca"]),
        Served(verify_client),
        NEEDED,
        "`ssls[].client.mode`. `optional_no_ca` is refused: a certificate of any authority would count.",
    ),
    annotation("auth-tls-verify-depth", Reads::Number, With("auth-tls-secret"), OPTIONAL, "`ssls[].client.depth`."),
    annotation(
        "auth-tls-match-cn",
        Reads::Text,
        Served(match_subject),
        NEEDED,
        "`fault-injection`: 403 for requests without a certificate whose subject (`ssl_client_s_dn`) this expression matches, on all paths of \
         the hosts of the Ingress. It begins with `CN=`, needs `auth-tls-secret`, and has neither look-around nor back-references.",
    ),
    annotation(
        "auth-tls-pass-certificate-to-upstream",
        Reads::Flag,
        Served(pass_certificate),
        NEEDED,
        "With `auth-tls-secret`, `ssl-client-cert` in `proxy-rewrite.headers.set`, with `$ssl_client_escaped_cert`, on all paths of the hosts \
         of the Ingress. Otherwise this field is removed there, so that clients cannot write it.",
    ),
    annotation(
        "auth-tls-error-page",
        Reads::Text,
        Told,
        OPTIONAL,
        "A client without a valid certificate is not redirected: the handshake fails.",
    ),
];

/// The older name counts only where the other one is not there: both together would allow more than either.
fn allowed_networks<'a>(given: &Given<'a>) -> Vec<&'a str> {
    let mut lists = ["allowlist-source-range", "whitelist-source-range"].into_iter().map(|name| given.list(name));
    lists.find(|list| !list.is_empty()).unwrap_or_default()
}

fn allowed(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    settings.plugin("ip-restriction", "whitelist", json!(allowed_networks(given)));
    Ok(())
}

fn denied(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let denied = given.list("denylist-source-range");
    match settings.plugins.contains_key("ip-restriction") {
        false => settings.plugin("ip-restriction", "blacklist", json!(denied)),
        true => {
            let vars = json!([[["remote_addr", "ipmatch", denied]]]);
            settings.plugin("fault-injection", "abort", json!({ "http_status": 403, "vars": vars }));
        }
    }
    Ok(())
}

fn satisfy(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    if given.text("satisfy") != Some("any") {
        return Ok(());
    }
    let credentials = ["auth-type", "auth-url"].into_iter().filter(|name| given.text(name).is_some()).count();
    if credentials > 0 && !given.list("denylist-source-range").is_empty() {
        return Err(
            "either no denied address or a credential cannot be demanded: use `allowlist-source-range`".to_owned()
        );
    }
    if credentials > 1 {
        return Err("either of `auth-type` and `auth-url` cannot be demanded, only both".to_owned());
    }
    let is_open_to_some = credentials == 1 && !allowed_networks(given).is_empty();
    if is_open_to_some && !given.list("auth-response-headers").is_empty() {
        // Allowed clients are not asked for, and could send these fields themselves.
        return Err("with `auth-response-headers`, allowed addresses could claim the fields of others".to_owned());
    }
    if is_open_to_some {
        // What demands the credential looks at the address instead.
        settings.plugins.remove("ip-restriction");
    }
    Ok(())
}

/// With `satisfy: any`, lets the allowed addresses pass a plugin that demands a credential.
pub(super) fn or_by_address(given: &Given, settings: &mut IngressSettings, plugin: &str) {
    let allowed = allowed_networks(given);
    if given.text("satisfy") == Some("any") && !allowed.is_empty() {
        settings.plugin(plugin, "_meta", json!({ "filter": [["remote_addr", "!", "ipmatch", allowed]] }));
    }
}

fn client_certificates(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let mut client = json!({ "ca": given.secret("auth-tls-secret")?.text("ca.crt")? });
    if let Some(depth) = given.number("auth-tls-verify-depth") {
        client["depth"] = Value::from(depth.min(16));
    }
    settings.client_certificates = Some(client);
    Ok(())
}

fn verify_client(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    match given.text("auth-tls-verify-client") {
        Some("off") => settings.client_certificates = None,
        Some("on") | None => {}
        Some("optional") => {
            if let Some(client) = &mut settings.client_certificates {
                client["mode"] = "optional".into();
            }
        }
        Some(other) => return Err(format!("`{other}`: a certificate that is shown must be valid, use `optional`")),
    }
    Ok(())
}

fn match_subject(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let text = given.text("auth-tls-match-cn").unwrap_or_default();
    if !text.starts_with("CN=") {
        return Err(format!("`{text}` does not begin with `CN=`"));
    }
    if settings.client_certificates.is_none() {
        return Err(
            "no certificate is asked for: it needs `auth-tls-secret`, and not `auth-tls-verify-client: off`".to_owned()
        );
    }
    check_expression(text)?;
    settings.client_subject = Some(text.to_owned());
    Ok(())
}

fn pass_certificate(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    settings.passes_certificate = given.flag("auth-tls-pass-certificate-to-upstream", false);
    Ok(())
}
