//! Plugins that change header fields: `cors`, `request-transformer`, `response-transformer`.

use crate::document::DocumentValue;
use crate::yaml::{Yaml, YamlMembers};

/// The options of `cors` that are converted.
pub(super) const CORS: [&str; 7] =
    ["origins", "methods", "headers", "exposed_headers", "credentials", "max_age", "preflight_continue"];

/// The steps of transformers, as their options are named.
pub(super) const STEPS: [&str; 4] = ["remove", "replace", "add", "append"];

/// Kong's default for `methods`.
const METHODS: &str = "GET,HEAD,PUT,PATCH,POST,DELETE,OPTIONS,TRACE,CONNECT";

/// The options of `cors`, or why there are none.
pub(super) fn cors(config: &DocumentValue) -> Result<Yaml, &'static str> {
    if config.is_true("preflight_continue", false) {
        return Err("`preflight_continue`");
    }
    let origins = config.texts("origins");
    let is_plain = |origin: &&str| {
        origin.contains("://") && origin.chars().all(|char| char.is_ascii_alphanumeric() || ":/.-_".contains(char))
    };
    let allows_all = origins.is_empty() || origins.contains(&"*");
    if !allows_all && !origins.iter().all(is_plain) {
        return Err("an origin that is a regular expression; see `allow_origins_by_regex` of `cors`");
    }
    let has_credentials = config.is_true("credentials", false);
    let joined = |name: &str| Some(config.texts(name).join(",")).filter(|list| !list.is_empty());
    let origins = match (allows_all, has_credentials) {
        (true, true) => "**".to_owned(),
        (true, false) => "*".to_owned(),
        (false, _) => origins.join(","),
    };
    let mut options = vec![
        ("allow_origins".to_owned(), Yaml::text(origins)),
        ("allow_methods".to_owned(), Yaml::text(joined("methods").unwrap_or_else(|| METHODS.to_owned()))),
        ("allow_headers".to_owned(), Yaml::text(joined("headers").unwrap_or_else(|| "**".to_owned()))),
    ];
    options.extend(joined("exposed_headers").map(|list| ("expose_headers".to_owned(), Yaml::text(list))));
    options.extend(config.number("max_age").map(|seconds| ("max_age".to_owned(), Yaml::Integer(seconds))));
    if has_credentials {
        options.push(("allow_credential".to_owned(), Yaml::Boolean(true)));
    }
    Ok(Yaml::Map(options))
}

/// The option `headers` of `proxy-rewrite` and `response-rewrite`, or why there is none.
pub(super) fn headers(config: &DocumentValue) -> Result<Yaml, &'static str> {
    let is_used = |part: &DocumentValue| !part.items().is_empty() || part.as_text().is_some();
    let others = STEPS.iter().filter_map(|step| config.get(step)).flat_map(DocumentValue::members);
    if others.into_iter().any(|(part, value)| part != "headers" && is_used(value)) {
        return Err("it changes more than header fields");
    }
    let step = |name: &str| config.get(name).map(|step| step.texts("headers")).unwrap_or_default();
    let (added, replaced) = (step("add"), step("replace"));
    if replaced.iter().any(|field| !added.contains(field)) {
        return Err("`replace` without the same `add`: a field is set only if there is one");
    }
    let (set, appended) = (fields(&added)?, fields(&step("append"))?);
    let removed = step("remove");
    let parts = [("add", appended), ("set", set), ("remove", Yaml::texts(removed))];
    let parts: YamlMembers =
        parts.into_iter().filter(|(_, part)| !part.is_empty()).map(|(name, part)| (name.to_owned(), part)).collect();
    if parts.is_empty() {
        return Err("it changes nothing that is converted");
    }
    Ok(Yaml::map([("headers", Yaml::Map(parts))]))
}

/// Lines `name: value` as a map.
fn fields(lines: &[&str]) -> Result<Yaml, &'static str> {
    let mut fields = YamlMembers::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or("a field without a value")?;
        if value.contains('$') {
            return Err("a value with a template");
        }
        fields.push((name.trim().to_owned(), Yaml::text(value.trim())));
    }
    Ok(Yaml::Map(fields))
}

/// What is different after the conversion of a plugin.
pub(super) fn difference(config: &DocumentValue, name: &str) -> Option<&'static str> {
    match name {
        "cors" => Some(
            "`cors`: all OPTIONS requests are answered by the gateway, and such fields of the upstream are removed",
        ),
        "request-transformer" | "response-transformer" => {
            let step = |name: &str| config.get(name).map(|step| step.texts("headers")).unwrap_or_default();
            let is_replaced = step("add").iter().all(|field| step("replace").contains(field));
            (!is_replaced).then_some("`add`: the field is set also if there is one already")
        }
        "correlation-id" if config.text("generator") != Some("uuid") => {
            Some("`correlation-id`: the ids are random UUIDs")
        }
        _ => None,
    }
}
