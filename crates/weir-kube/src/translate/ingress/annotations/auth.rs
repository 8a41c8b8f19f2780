//! Authentication: another service that decides, and passwords.

use serde_json::{Map, Value, json};

use super::access::or_by_address;
use super::{
    Annotation, Differs, Given, IngressSettings, NEEDED, Nothing, OPTIONAL, Reads, Refused, Served, With, annotation,
    variables,
};

pub(super) const TABLE: &[Annotation] = &[
    annotation(
        "auth-url",
        Reads::Url,
        Differs(forward_auth),
        NEEDED,
        "`forward-auth`, which gets all fields of the request, and `X-Original-URL` and `X-Original-Method`. `$host` in the URL \
         is the host of the rule. The certificate of an `https` service is verified, which ingress-nginx does not do.",
    ),
    annotation(
        "auth-method",
        Reads::OneOf(&["GET", "POST"]),
        With("auth-url"),
        NEEDED,
        "`forward-auth.request_method`.",
    ),
    annotation(
        "auth-signin",
        Reads::Url,
        With("auth-url"),
        OPTIONAL,
        "`forward-auth.signin_url`: a redirect with 302 in place of a 401, with the URL of the request in the argument `rd`.",
    ),
    annotation(
        "auth-signin-redirect-param",
        Reads::Text,
        With("auth-signin"),
        OPTIONAL,
        "`forward-auth.signin_redirect_param`.",
    ),
    annotation(
        "auth-response-headers",
        Reads::List,
        With("auth-url"),
        OPTIONAL,
        "`forward-auth.upstream_headers`. `Set-Cookie` of the service always reaches the client.",
    ),
    annotation(
        "auth-request-redirect",
        Reads::Text,
        With("auth-url"),
        OPTIONAL,
        "`X-Auth-Request-Redirect` in `forward-auth.extra_headers`.",
    ),
    annotation(
        "auth-proxy-set-headers",
        Reads::Object,
        With("auth-url"),
        NEEDED,
        "The values of the ConfigMap in `forward-auth.extra_headers`.",
    ),
    annotation(
        "auth-cache-key",
        Reads::Text,
        With("auth-url"),
        OPTIONAL,
        "`forward-auth.cache_key`. With `auth-method: POST` decisions are not kept: the content decides, too.",
    ),
    annotation(
        "auth-cache-duration",
        Reads::Text,
        With("auth-cache-key"),
        OPTIONAL,
        "`forward-auth.cache_ttl`: the first time in it, for all statuses.",
    ),
    annotation(
        "auth-always-set-cookie",
        Reads::Flag,
        Nothing,
        OPTIONAL,
        "`Set-Cookie` of the service is added to all responses.",
    ),
    annotation("auth-keepalive", Reads::Number, Nothing, OPTIONAL, "Connections to the service are kept in any case."),
    annotation("auth-keepalive-share-vars", Reads::Flag, Nothing, OPTIONAL, "The same."),
    annotation("auth-keepalive-requests", Reads::Number, Nothing, OPTIONAL, "The same."),
    annotation("auth-keepalive-timeout", Reads::Seconds, Nothing, OPTIONAL, "The same."),
    annotation(
        "enable-global-auth",
        Reads::Flag,
        Nothing,
        OPTIONAL,
        "Weir has no `global-auth-url`; for all routes of a node, write a global rule with `forward-auth`.",
    ),
    annotation(
        "auth-snippet",
        Reads::Text,
        Refused,
        NEEDED,
        "Configuration of nginx cannot be included; use options of `forward-auth`.",
    ),
    annotation(
        "auth-type",
        Reads::OneOf(&["basic", "digest"]),
        Served(basic_auth),
        NEEDED,
        "`basic-auth.users`. Without `auth-url`, passwords are not passed on to the service. `digest` is refused: it needs passwords that are hashed by MD5 \
         alone.",
    ),
    annotation(
        "auth-secret",
        Reads::Object,
        With("auth-type"),
        OPTIONAL,
        "The users, with hashes of bcrypt (`$2y$`), Argon2 or `htpasswd` (`$apr1$`), or passwords. With hashes of another kind, the Ingress \
         is not served.",
    ),
    annotation(
        "auth-secret-type",
        Reads::OneOf(&["auth-file", "auth-map"]),
        With("auth-type"),
        OPTIONAL,
        "`auth-file` (the default): the key `auth` of the Secret is a file of users; `auth-map`: each key is a user.",
    ),
    annotation("auth-realm", Reads::Text, With("auth-type"), OPTIONAL, "`basic-auth.realm`."),
];

fn basic_auth(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    if given.text("auth-type") == Some("digest") {
        return Err("`digest` is not served, use `basic`".to_owned());
    }
    let secret = given.secret("auth-secret")?;
    let users = match given.text("auth-secret-type") {
        Some("auth-map") => {
            let names = secret.data.keys().chain(secret.string_data.keys());
            let user = |name: &String| Ok((name.clone(), secret.text(name)?.trim().to_owned()));
            names.map(user).collect::<Result<Vec<_>, String>>()?
        }
        _ => users(&secret.text("auth")?)?,
    };
    if users.is_empty() {
        return Err(format!("the Secret `{}` has no users", secret.metadata.name));
    }
    let users: Vec<Value> =
        users.into_iter().map(|(name, password)| json!({ "username": name, "password": password })).collect();
    // The service of `auth-url`, which is asked after this, may decide by them as well.
    let hides = given.text("auth-url").is_none();
    let mut options = json!({ "users": users, "hide_credentials": hides });
    if let Some(realm) = given.text("auth-realm") {
        options["realm"] = realm.into();
    }
    settings.plugins.insert("basic-auth".to_owned(), options);
    or_by_address(given, settings, "basic-auth");
    Ok(())
}

/// The names and passwords of a file of `htpasswd`.
fn users(text: &str) -> Result<Vec<(String, String)>, String> {
    let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let user = |(index, line): (usize, &str)| {
        let (name, rest) = line.split_once(':').ok_or_else(|| format!("line {} of `auth` has no colon", index + 1))?;
        // What follows a second colon is a comment.
        let password = rest.split(':').next().unwrap_or_default();
        Ok((name.to_owned(), password.to_owned()))
    };
    lines.map(user).collect()
}

fn forward_auth(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let url = given.text("auth-url").unwrap_or_default();
    if url.is_empty() {
        return Err("the URL is empty".to_owned());
    }
    let mut options = Map::new();
    options.insert("uri".to_owned(), url.into());
    if let Some(method) = given.text("auth-method") {
        options.insert("request_method".to_owned(), method.into());
    }
    options.insert("request_headers".to_owned(), json!(["*"]));
    options.insert("extra_headers".to_owned(), extra_headers(given)?);
    let upstream = given.list("auth-response-headers");
    if !upstream.is_empty() {
        options.insert("upstream_headers".to_owned(), json!(upstream));
    }
    options.insert("client_headers".to_owned(), json!(["WWW-Authenticate", "Location", "Set-Cookie"]));
    options.insert("client_headers_on_success".to_owned(), json!(["Set-Cookie"]));
    if let Some(page) = given.text("auth-signin") {
        options.insert("signin_url".to_owned(), variables::renamed(page).into());
        if let Some(argument) = given.text("auth-signin-redirect-param") {
            options.insert("signin_redirect_param".to_owned(), argument.into());
        }
    }
    let decides_content = given.text("auth-method") == Some("POST");
    if let Some(key) = given.text("auth-cache-key").filter(|_| !decides_content) {
        // Requests that a variable tells apart would be one if it is not known, and one decision would count for all.
        let known = variables::known(key).map_err(|problem| format!("`auth-cache-key`: {problem}"))?;
        options.insert("cache_key".to_owned(), known.into());
        options.insert("cache_ttl".to_owned(), json!(cache_ttl(given)));
    }
    settings.plugins.insert("forward-auth".to_owned(), Value::Object(options));
    or_by_address(given, settings, "forward-auth");
    Ok(())
}

fn extra_headers(given: &Given) -> Result<Value, String> {
    let mut fields = json!({
        "X-Original-URL": "$scheme://$http_host$request_uri",
        "X-Original-Method": "$request_method",
        "X-Auth-Request-Redirect": variables::renamed(given.text("auth-request-redirect").unwrap_or("$request_uri")),
    });
    if given.text("auth-proxy-set-headers").is_some() {
        for (name, value) in given.config_map("auth-proxy-set-headers")? {
            fields[name] = variables::renamed(value).into();
        }
    }
    Ok(fields)
}

/// Seconds of the first time in a text such as `200 202 5m, 401 1m`.
fn cache_ttl(given: &Given) -> u64 {
    let text = given.text("auth-cache-duration").unwrap_or_default();
    let time = |word: &str| {
        let (number, unit) = word.split_at(word.find(|c: char| !c.is_ascii_digit())?);
        let factor = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return None,
        };
        Some(number.parse::<u64>().ok()?.saturating_mul(factor).clamp(1, 86_400))
    };
    text.split([' ', ',']).find_map(time).unwrap_or(300)
}
