//! The options of a plugin.

use super::consumers::GROUPS;
use super::observers::{self, ConvertedPlugin};
use super::{bodies, limits, mtls, transformers};
use crate::answer::answer;
use crate::document::DocumentValue;
use crate::yaml::Yaml;

/// The supported options, and the converted plugin; or why it cannot be converted. `has_consumer`: requests have one.
pub(super) fn converted(
    config: &DocumentValue,
    name: &str,
    has_consumer: bool,
) -> Result<ConvertedPlugin, &'static str> {
    // Long, since there is one arm per plugin.
    let hides = ("hide_credentials", Yaml::Boolean(config.is_true("hide_credentials", false)));
    let plugin = |name: &str, options: Yaml| (name.to_owned(), options);
    Ok(match name {
        "key-auth" => {
            let names = config.texts("key_names");
            let key = match names.as_slice() {
                [] => "apikey",
                [name] => name,
                _ => return Err("several `key_names`"),
            };
            let places = ["key_in_header", "key_in_query"].map(|place| config.is_true(place, true));
            if places != [true, true] {
                return Err("keys that are read at one place only");
            }
            let options = Yaml::map([("header", Yaml::text(key)), ("query", Yaml::text(key)), hides]);
            (
                &["key_names", "hide_credentials", "key_in_header", "key_in_query", "run_on_preflight"],
                plugin(name, options),
            )
        }
        "basic-auth" => (&["hide_credentials", "run_on_preflight"], plugin(name, Yaml::map([hides]))),
        "jwt" => {
            let claim = Yaml::text(config.text("key_claim_name").unwrap_or("iss"));
            // Kong passes the token on.
            let mut options =
                vec![("key_claim_name".to_owned(), claim), ("hide_credentials".to_owned(), Yaml::Boolean(false))];
            let claims = config.texts("claims_to_verify");
            if !claims.is_empty() {
                options.push(("claims_to_verify".to_owned(), Yaml::texts(claims)));
            }
            (&["key_claim_name", "claims_to_verify", "run_on_preflight"], plugin("jwt-auth", Yaml::Map(options)))
        }
        "mtls-auth" => (&mtls::OPTIONS, plugin(name, mtls::options(config))),
        "acl" => {
            let (list, groups) = allow_or_deny(config, ["allow_labels", "deny_labels"])?;
            let options = Yaml::map([
                (list, Yaml::map([(GROUPS, groups)])),
                ("rejected_msg", Yaml::text("You cannot consume this service")),
            ]);
            (&["allow", "deny", "hide_groups_header"], plugin(name, options))
        }
        "ip-restriction" => {
            (&["allow", "deny"], plugin(name, Yaml::map([allow_or_deny(config, ["whitelist", "blacklist"])?])))
        }
        "rate-limiting" => (&limits::OPTIONS, plugin("limit-count", limits::options(config, has_consumer)?)),
        "request-size-limiting" => {
            let factor = match config.text("size_unit").unwrap_or("megabytes") {
                "megabytes" => 1 << 20,
                "kilobytes" => 1 << 10,
                _ => 1,
            };
            let size =
                config.number("allowed_payload_size").unwrap_or(128).checked_mul(factor).filter(|&size| size > 0);
            let size = size.ok_or("a size that is not positive")?;
            let options = Yaml::map([("max_body_size", Yaml::Integer(size))]);
            (&["allowed_payload_size", "size_unit"], plugin("client-control", options))
        }
        "request-termination" => {
            let status = config.number("status_code").unwrap_or(503);
            let body = config.text("body").unwrap_or("");
            let message = config.text("message").map(|message| serde_json::json!({ "message": message }).to_string());
            let kind = message.as_ref().map(|_| "application/json; charset=utf-8").or(config.text("content_type"));
            let body = message.as_deref().unwrap_or(body);
            (&["status_code", "body", "content_type", "message"], answer(status, body, kind))
        }
        "correlation-id" => {
            let header = config.text("header_name").unwrap_or("Kong-Request-ID");
            let options = Yaml::map([
                ("header_name", Yaml::text(header)),
                ("include_in_response", Yaml::Boolean(config.is_true("echo_downstream", false))),
            ]);
            (&["header_name", "generator", "echo_downstream"], plugin("request-id", options))
        }
        "cors" => (&transformers::CORS, plugin(name, transformers::cors(config)?)),
        "request-transformer" => (&transformers::STEPS, plugin("proxy-rewrite", transformers::headers(config)?)),
        "response-transformer" => (&transformers::STEPS, plugin("response-rewrite", transformers::headers(config)?)),
        "redirect" => (&["status_code", "location", "keep_incoming_path"], plugin(name, redirect(config)?)),
        _ => return bodies::converted(config, name).unwrap_or_else(|| observers::converted(config, name)),
    })
}

/// The options of `redirect`.
fn redirect(config: &DocumentValue) -> Result<Yaml, &'static str> {
    let location = config.text("location").filter(|location| !location.contains('$'));
    let location = location.ok_or("a `location` that is missing, or has a dollar sign")?;
    // The path of `location` gives way to that of the request.
    let uri = if config.is_true("keep_incoming_path", false) {
        let (scheme, rest) = location.split_once("://").ok_or("a `location` without a host")?;
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        format!("{scheme}://{host}$request_uri")
    } else {
        location.to_owned()
    };
    let status = config.number("status_code").unwrap_or(301);
    Ok(Yaml::map([("uri", Yaml::text(uri)), ("ret_code", Yaml::Integer(status))]))
}

/// The list of `allow` or `deny`, whichever there is, under one of our names; an error if there is not exactly one of them.
fn allow_or_deny(config: &DocumentValue, names: [&'static str; 2]) -> Result<(&'static str, Yaml), &'static str> {
    let (allow, deny) = (config.texts("allow"), config.texts("deny"));
    match (allow.is_empty(), deny.is_empty()) {
        (false, true) => Ok((names[0], Yaml::texts(allow))),
        (true, false) => Ok((names[1], Yaml::texts(deny))),
        _ => Err("it needs either `allow` or `deny`"),
    }
}
