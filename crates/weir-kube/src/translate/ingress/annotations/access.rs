//! Who may send requests: addresses and certificates.

use serde_json::{Value, json};

use super::{Annotation, Given, IngressSettings, NEEDED, OPTIONAL, Reads, Refused, Served, Told, With, annotation};

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
        "`all` is how plugins work. `any` is refused.",
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
        Refused,
        NEEDED,
        "A certificate cannot be accepted by its common name here; let the certificate authority sign only those that may come.",
    ),
    annotation(
        "auth-tls-pass-certificate-to-upstream",
        Reads::Flag,
        Served(pass_certificate),
        NEEDED,
        "`false` is how it is. `true` is refused: an upstream that reads the certificate would find none.",
    ),
    annotation(
        "auth-tls-error-page",
        Reads::Text,
        Told,
        OPTIONAL,
        "A client without a valid certificate is not redirected: the handshake fails.",
    ),
];

fn allowed(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    // The older name counts only where the other one is not there: both together would allow more than either.
    let mut lists = ["allowlist-source-range", "whitelist-source-range"].into_iter().map(|name| given.list(name));
    let list = lists.find(|list| !list.is_empty()).unwrap_or_default();
    settings.plugin("ip-restriction", "whitelist", json!(list));
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

fn satisfy(given: &Given, _: &mut IngressSettings) -> Result<(), String> {
    match given.text("satisfy") {
        Some("any") => Err("either an address or a credential cannot be demanded, only both".to_owned()),
        _ => Ok(()),
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

fn pass_certificate(given: &Given, _: &mut IngressSettings) -> Result<(), String> {
    match given.flag("auth-tls-pass-certificate-to-upstream", false) {
        true => Err("certificates of clients are not passed on".to_owned()),
        false => Ok(()),
    }
}
