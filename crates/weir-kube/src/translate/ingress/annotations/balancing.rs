//! Which endpoint gets a request.

use serde_json::{Map, Value, json};

use super::{
    Annotation, Differs, Given, IngressSettings, Nothing, OPTIONAL, Reads, Served, Told, With, annotation, variables,
};

pub(super) const TABLE: &[Annotation] = &[
    annotation(
        "affinity",
        Reads::OneOf(&["cookie"]),
        Differs(affinity),
        OPTIONAL,
        "`persistence` of the upstream, `type: cookie`. Cookies of ingress-nginx are not read: sessions move once.",
    ),
    annotation(
        "affinity-mode",
        Reads::OneOf(&["balanced", "persistent"]),
        With("affinity"),
        OPTIONAL,
        "Both: a client stays with its endpoint while that is in use.",
    ),
    annotation(
        "affinity-canary-behavior",
        Reads::OneOf(&["sticky", "legacy"]),
        With("affinity"),
        OPTIONAL,
        "As `legacy`: the canary is chosen anew for each request.",
    ),
    annotation(
        "session-cookie-name",
        Reads::Text,
        With("affinity"),
        OPTIONAL,
        "`persistence.name`, `INGRESSCOOKIE` without it.",
    ),
    annotation(
        "session-cookie-path",
        Reads::Text,
        With("affinity"),
        OPTIONAL,
        "`persistence.path`. Without it, the path of the rule, unless it is a regular expression.",
    ),
    annotation("session-cookie-domain", Reads::Text, With("affinity"), OPTIONAL, "`persistence.domain`."),
    annotation(
        "session-cookie-secure",
        Reads::Flag,
        With("affinity"),
        OPTIONAL,
        "`persistence.secure`. Without it, `true` where HTTP is redirected to HTTPS.",
    ),
    annotation(
        "session-cookie-samesite",
        Reads::OneOf(&["None", "Lax", "Strict"]),
        With("affinity"),
        OPTIONAL,
        "`persistence.same_site`.",
    ),
    annotation("session-cookie-conditional-samesite-none", Reads::Flag, Nothing, OPTIONAL, "For browsers before 2020."),
    annotation("session-cookie-max-age", Reads::Number, With("affinity"), OPTIONAL, "`persistence.max_age`."),
    annotation(
        "session-cookie-expires",
        Reads::Number,
        With("affinity"),
        OPTIONAL,
        "`persistence.max_age`, if that is not stated.",
    ),
    annotation(
        "session-cookie-change-on-failure",
        Reads::Flag,
        With("affinity"),
        OPTIONAL,
        "As `true`: a client whose endpoint fails gets another one.",
    ),
    annotation(
        "load-balance",
        Reads::OneOf(&["round_robin", "ewma"]),
        Served(load_balance),
        OPTIONAL,
        "`type` of the upstream: `roundrobin` or `ewma`.",
    ),
    annotation(
        "upstream-hash-by",
        Reads::Text,
        Differs(hash_by),
        OPTIONAL,
        "`type: chash` with `hash_on: vars_combinations`. Clients move to other endpoints once.",
    ),
    annotation(
        "upstream-hash-by-subset",
        Reads::Flag,
        Told,
        OPTIONAL,
        "A hash leads to one endpoint, not to a subset of them.",
    ),
    annotation(
        "upstream-hash-by-subset-size",
        Reads::Number,
        With("upstream-hash-by-subset"),
        OPTIONAL,
        "As `upstream-hash-by-subset`.",
    ),
];

fn affinity(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let mut cookie = Map::new();
    cookie.insert("type".to_owned(), "cookie".into());
    cookie.insert("name".to_owned(), given.text("session-cookie-name").unwrap_or("INGRESSCOOKIE").into());
    let texts = [
        ("path", "session-cookie-path"),
        ("domain", "session-cookie-domain"),
        ("same_site", "session-cookie-samesite"),
    ];
    for (key, name) in texts {
        if let Some(text) = given.text(name) {
            cookie.insert(key.to_owned(), text.into());
        }
    }
    // Without the annotation, it is secure where requests come over TLS.
    let stated = given.text("session-cookie-secure").map(|_| given.flag("session-cookie-secure", false));
    let is_secure = if given.text("session-cookie-samesite") == Some("None") { Some(true) } else { stated };
    if let Some(is_secure) = is_secure {
        cookie.insert("secure".to_owned(), is_secure.into());
    }
    // All nodes, and those that start again, know one another's cookies.
    if let Some(uid) = given.uid() {
        cookie.insert("secret".to_owned(), uid.into());
    }
    if let Some(age) = given.number("session-cookie-max-age").or(given.number("session-cookie-expires")) {
        cookie.insert("max_age".to_owned(), json!(age));
    }
    settings.upstream.insert("persistence".to_owned(), Value::Object(cookie));
    Ok(())
}

fn load_balance(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    if given.text("load-balance") == Some("ewma") {
        settings.upstream.insert("type".to_owned(), "ewma".into());
    }
    Ok(())
}

fn hash_by(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let key = variables::known(given.text("upstream-hash-by").unwrap_or_default())?;
    settings.upstream.insert("type".to_owned(), "chash".into());
    settings.upstream.insert("hash_on".to_owned(), "vars_combinations".into());
    settings.upstream.insert("key".to_owned(), key.into());
    Ok(())
}
