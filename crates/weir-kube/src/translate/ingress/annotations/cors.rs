//! Requests of pages of other origins.

use serde_json::{Map, Value, json};

use super::{Annotation, Differs, Given, IngressSettings, OPTIONAL, Reads, With, annotation};

pub(super) const TABLE: &[Annotation] = &[
    annotation(
        "enable-cors",
        Reads::Flag,
        Differs(cors),
        OPTIONAL,
        "`cors`, with the defaults of ingress-nginx. A preflight request is answered with 200, not 204.",
    ),
    annotation(
        "cors-allow-origin",
        Reads::List,
        With("enable-cors"),
        OPTIONAL,
        "`cors.allow_origins`; with a `*` in a host, `allow_origins_by_regex`.",
    ),
    annotation("cors-allow-methods", Reads::List, With("enable-cors"), OPTIONAL, "`cors.allow_methods`."),
    annotation("cors-allow-headers", Reads::List, With("enable-cors"), OPTIONAL, "`cors.allow_headers`."),
    annotation("cors-expose-headers", Reads::List, With("enable-cors"), OPTIONAL, "`cors.expose_headers`."),
    annotation(
        "cors-allow-credentials",
        Reads::Flag,
        With("enable-cors"),
        OPTIONAL,
        "`cors.allow_credential`, unless all origins are allowed: browsers refuse credentials then.",
    ),
    annotation("cors-max-age", Reads::Number, With("enable-cors"), OPTIONAL, "`cors.max_age`."),
];

const METHODS: &str = "GET,PUT,POST,DELETE,PATCH,OPTIONS";
const HEADERS: &str =
    "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization";
const MAX_AGE_S: u64 = 1_728_000;

fn cors(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    if !given.flag("enable-cors", false) {
        return Ok(());
    }
    let mut options = Map::new();
    let origins = given.list("cors-allow-origin");
    let allows_all = origins.is_empty() || origins.contains(&"*");
    if allows_all {
        options.insert("allow_origins".to_owned(), "*".into());
    } else if origins.iter().any(|origin| origin.contains('*')) {
        let expressions: Vec<Value> = origins.iter().map(|origin| expression(origin).into()).collect();
        options.insert("allow_origins_by_regex".to_owned(), Value::Array(expressions));
    } else {
        options.insert("allow_origins".to_owned(), origins.join(",").into());
    }
    let joined = |name: &str, default: &str| {
        let items = given.list(name);
        if items.is_empty() { default.to_owned() } else { items.join(",") }
    };
    options.insert("allow_methods".to_owned(), joined("cors-allow-methods", METHODS).into());
    options.insert("allow_headers".to_owned(), joined("cors-allow-headers", HEADERS).into());
    let exposed = joined("cors-expose-headers", "");
    if !exposed.is_empty() {
        options.insert("expose_headers".to_owned(), exposed.into());
    }
    options.insert("max_age".to_owned(), json!(given.number("cors-max-age").unwrap_or(MAX_AGE_S)));
    let has_star = options.values().any(|value| value == "*");
    if given.flag("cors-allow-credentials", true) && !has_star {
        options.insert("allow_credential".to_owned(), true.into());
    }
    settings.plugins.insert("cors".to_owned(), Value::Object(options));
    Ok(())
}

/// `https://*.example.com`: one label in place of the star.
fn expression(origin: &str) -> String {
    format!("^{}$", regex::escape(origin).replace("\\*", "[A-Za-z0-9-]+"))
}
