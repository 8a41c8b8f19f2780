//! Plugins that read or make bodies: prompts of language models, validation, functions of Azure, gRPC-Web.

use super::observers::ConvertedPlugin;
use crate::document::{self, DocumentValue};
use crate::pattern::{regex_quoted, supported};
use crate::yaml::{Yaml, YamlMembers};

/// The supported options, and the converted plugin; `None` for a plugin of another kind.
pub(super) fn converted(config: &DocumentValue, name: &str) -> Option<Result<ConvertedPlugin, &'static str>> {
    let (known, options): (&'static [&'static str], _) = match name {
        "ai-prompt-decorator" => (&DECORATOR, prompts(config)),
        "ai-prompt-guard" => (&GUARD, prompt_guard(config)),
        "azure-functions" => (&AZURE, azure_function(config)),
        "grpc-web" => (&["allow_origin_header"], grpc_web(config)),
        "oas-validation" => (&DEFINITION, definition(config)),
        "request-validator" => (&VALIDATOR, schema(config)),
        _ => return None,
    };
    let ours = match name {
        "oas-validation" => "oas-validator",
        "request-validator" => "request-validation",
        same => same,
    };
    Some(options.map(|options| (known, (ours.to_owned(), Yaml::Map(options)))))
}

/// What is different after the conversion of a plugin.
pub(super) fn difference(name: &str) -> Option<&'static str> {
    match name {
        "ai-prompt-decorator" => Some("`ai-prompt-decorator`: a request without `messages` is answered with 400"),
        "ai-prompt-guard" => Some(
            "`ai-prompt-guard`: a request without `messages`, or with other prompts beside them, is answered with 400; a pattern over \
             several prompts finds them the oldest first, in Kong the newest",
        ),
        "azure-functions" => Some(
            "`azure-functions`: what follows the path of the route is appended to that of the function, and keys of clients are passed on",
        ),
        "oas-validation" => {
            Some("`oas-validation`: refusals have another text, and larger bodies than 1 MiB are refused")
        }
        "request-validator" => Some(
            "`request-validator`: a request of another type than the allowed ones is refused with the text for a wrong body; larger \
             bodies than 1 MiB are refused",
        ),
        _ => None,
    }
}

const DECORATOR: [&str; 4] = ["prompts", "max_request_body_size", "genai_category", "llm_format"];
const GUARD: [&str; 7] = [
    "allow_patterns",
    "deny_patterns",
    "allow_all_conversation_history",
    "match_all_roles",
    "max_request_body_size",
    "genai_category",
    "llm_format",
];
const AZURE: [&str; 10] = [
    "appname",
    "functionname",
    "hostdomain",
    "https",
    "https_verify",
    "routeprefix",
    "apikey",
    "clientid",
    "timeout",
    "keepalive",
];
const DEFINITION: [&str; 14] = [
    "api_spec",
    "api_spec_encoded",
    "include_base_path",
    "validate_request_body",
    "validate_request_header_params",
    "validate_request_query_params",
    "validate_request_uri_params",
    "validate_response_body",
    "notify_only_request_validation_failure",
    "notify_only_response_body_validation_failure",
    "verbose_response",
    // Unused, since the checks that they belong to are refused.
    "allowed_header_parameters",
    "header_parameter_check",
    "query_parameter_check",
];
const VALIDATOR: [&str; 5] =
    ["body_schema", "version", "verbose_response", "allowed_content_types", "content_type_parameter_validation"];

fn named(members: impl IntoIterator<Item = (&'static str, Yaml)>) -> YamlMembers {
    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Whether the plugin is for chats in OpenAI's format.
fn is_chat(config: &DocumentValue) -> bool {
    config.text("genai_category").is_none_or(|kind| kind == "text/generation")
        && config.text("llm_format").is_none_or(|format| format == "openai")
}

const NOT_CHAT: &str = "another format than OpenAI's chat";

/// The largest body, by default Kong's own; with 0 Kong has no limit.
fn size(config: &DocumentValue) -> Option<(&'static str, Yaml)> {
    let bytes = config.number("max_request_body_size").unwrap_or(8 << 10);
    (bytes > 0).then_some(("max_req_body_size", Yaml::Integer(bytes)))
}

fn prompts(config: &DocumentValue) -> Result<YamlMembers, &'static str> {
    if !is_chat(config) {
        return Err(NOT_CHAT);
    }
    let lists = config.get("prompts").ok_or("it has no `prompts`")?;
    let mut options = YamlMembers::new();
    for side in ["prepend", "append"] {
        let mut messages = Vec::new();
        for message in lists.list(side) {
            let role = message.text("role").unwrap_or("system");
            let content = message.text("content").ok_or("a prompt without `content`")?;
            messages.push(Yaml::map([("role", Yaml::text(role)), ("content", Yaml::text(content))]));
        }
        if !messages.is_empty() {
            options.push((side.to_owned(), Yaml::List(messages)));
        }
    }
    if options.is_empty() {
        return Err("it has no `prompts`");
    }
    options.extend(named(size(config)));
    Ok(options)
}

fn prompt_guard(config: &DocumentValue) -> Result<YamlMembers, &'static str> {
    if !is_chat(config) {
        return Err(NOT_CHAT);
    }
    let patterns = |name: &str| config.texts(name).into_iter().map(supported).collect::<Option<Vec<String>>>();
    let (allowed, denied) = patterns("allow_patterns")
        .zip(patterns("deny_patterns"))
        .ok_or("a pattern with look-around or a back-reference")?;
    // Kong joins prompts the newest first, so such a pattern would be held against another prompt.
    if allowed.iter().chain(&denied).any(|pattern| has_anchor(pattern)) {
        return Err("a pattern with `^` or `$`, since Kong joins the prompts in another order");
    }
    let mut options = named([
        ("match_all_roles", Yaml::Boolean(config.is_true("match_all_roles", false))),
        // Kong's option says that the history is not looked at.
        ("match_all_conversation_history", Yaml::Boolean(!config.is_true("allow_all_conversation_history", false))),
        ("fail_mode", Yaml::text("error")),
    ]);
    for (name, texts) in [("allow_patterns", allowed), ("deny_patterns", denied)] {
        if !texts.is_empty() {
            options.push((name.to_owned(), Yaml::texts(texts)));
        }
    }
    options.extend(named(size(config)));
    Ok(options)
}

/// Whether a pattern may depend on where the text begins or ends. `$` in a class counts as well.
fn has_anchor(pattern: &str) -> bool {
    let (mut chars, mut opens_class) = (pattern.chars(), false);
    while let Some(char) = chars.next() {
        let is_anchor = match char {
            '\\' => chars.next().is_some_and(|escaped| "AGZz".contains(escaped)),
            '^' => !opens_class,
            '$' => true,
            _ => false,
        };
        if is_anchor {
            return true;
        }
        opens_class = char == '[';
    }
    false
}

fn azure_function(config: &DocumentValue) -> Result<YamlMembers, &'static str> {
    let name = |option: &str| config.text(option).filter(|name| !name.is_empty());
    let (app, function) = name("appname").zip(name("functionname")).ok_or("it has no `appname` and `functionname`")?;
    let domain = config.text("hostdomain").unwrap_or("azurewebsites.net");
    let scheme = if config.is_true("https", true) { "https" } else { "http" };
    let prefix = config.text("routeprefix").unwrap_or("api").trim_matches('/');
    let slash = if prefix.is_empty() { "" } else { "/" };
    let uri = format!("{scheme}://{app}.{domain}/{prefix}{slash}{}", function.trim_start_matches('/'));
    let keys = ["apikey", "clientid"].into_iter().filter_map(|key| Some((key, Yaml::text(name(key)?))));
    let keys = named(keys);
    let mut options = named([
        ("function_uri", Yaml::text(uri)),
        ("ssl_verify", Yaml::Boolean(config.is_true("https_verify", false))),
        ("timeout", Yaml::Integer(config.number("timeout").unwrap_or(600_000))),
    ]);
    if !keys.is_empty() {
        options.push(("authorization".to_owned(), Yaml::Map(keys)));
    }
    Ok(options)
}

fn grpc_web(config: &DocumentValue) -> Result<YamlMembers, &'static str> {
    if config.text("proto").is_some_and(|proto| !proto.is_empty()) {
        return Err("JSON by the definition in `proto`; see `grpc-transcode`");
    }
    match config.text("allow_origin_header").unwrap_or("*") {
        "*" => Ok(YamlMembers::new()),
        _ => Err("`allow_origin_header`; see `cors`"),
    }
}

fn schema(config: &DocumentValue) -> Result<YamlMembers, &'static str> {
    let written = match config.text("version").unwrap_or("kong") {
        "draft4" => Some("http://json-schema.org/draft-04/schema#"),
        "draft6" => Some("http://json-schema.org/draft-06/schema#"),
        "draft7" => None,
        "draft201909" => Some("https://json-schema.org/draft/2019-09/schema"),
        "draft202012" => Some("https://json-schema.org/draft/2020-12/schema"),
        _ => return Err("a schema in Kong's own form; write it as JSON Schema for `request-validation`"),
    };
    let text = config.text("body_schema").filter(|text| !text.is_empty()).ok_or("it has no `body_schema`")?;
    let parsed = document::parse("body_schema", text).map_err(|_| "a `body_schema` that is no JSON")?;
    let Yaml::Map(mut schema) = parsed.to_yaml() else { return Err("a `body_schema` that is no object") };
    // Kong goes by `version` alone.
    schema.retain(|(name, _)| name != "$schema");
    if let Some(draft) = written {
        schema.insert(0, ("$schema".to_owned(), Yaml::text(draft)));
    }
    let mut options = named([("header_schema", content_type(config)?), ("body_schema", Yaml::Map(schema))]);
    if !config.is_true("verbose_response", false) {
        options.push(("rejected_msg".to_owned(), Yaml::text("request body doesn't conform to schema")));
    }
    Ok(options)
}

/// Whether a server of a definition, of one of its paths or of an operation has a path.
fn has_server_with_path(definition: &DocumentValue) -> bool {
    let has_path = |server: &DocumentValue| {
        let url = server.text("url").unwrap_or_default();
        let path = url.split_once("://").map_or(url, |(_, rest)| rest.find('/').map_or("", |slash| &rest[slash..]));
        !path.trim_matches('/').is_empty()
    };
    let paths = definition.get("paths").map_or(&[][..], DocumentValue::members);
    // What `$ref` may lead to, which are paths as well.
    let referred = definition.at_pointer("/components/pathItems").map_or(&[][..], DocumentValue::members);
    let paths = paths.iter().chain(referred).map(|(_, path)| path);
    let lower =
        paths.flat_map(|path| std::iter::once(path).chain(path.members().iter().map(|(_, operation)| operation)));
    std::iter::once(definition).chain(lower).any(|holder| holder.list("servers").iter().any(has_path))
}

/// A schema of header fields that requires one of the allowed types.
fn content_type(config: &DocumentValue) -> Result<Yaml, &'static str> {
    let allowed = match config.texts("allowed_content_types") {
        kinds if kinds.is_empty() => vec!["application/json"],
        kinds => kinds,
    };
    let is_exact = config.is_true("content_type_parameter_validation", true);
    let mut ways = Vec::new();
    for kind in allowed {
        let mut parts = kind.split(';').map(str::trim);
        if !parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
            return Err("other `allowed_content_types` than JSON");
        }
        let parameters: String = match is_exact {
            true => parts.map(parameter).collect::<Option<_>>().ok_or("`allowed_content_types` with a quoted value")?,
            false => "(;.*)?".to_owned(),
        };
        ways.push(format!("{}[ \t]*{parameters}", in_any_case("application/json")));
    }
    let pattern = Yaml::map([("pattern", Yaml::text(format!("^({})$", ways.join("|"))))]);
    Ok(Yaml::map([
        ("type", Yaml::text("object")),
        ("required", Yaml::texts(["Content-Type"])),
        ("properties", Yaml::map([("Content-Type", pattern)])),
    ]))
}

/// An expression for a parameter of a type (RFC 9110 §5.6.6), such as `charset=utf-8`. `None` if its value is no token.
fn parameter(text: &str) -> Option<String> {
    let (name, value) = text.split_once('=')?;
    let is_token = |text: &str| {
        !text.is_empty() && text.chars().all(|char| char.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(char))
    };
    if !is_token(name) || !is_token(value) {
        return None;
    }
    let value = if name.eq_ignore_ascii_case("charset") { in_any_case(value) } else { regex_quoted(value) };
    Some(format!(";[ \t]*{}=(\"{value}\"|{value})[ \t]*", in_any_case(name)))
}

/// An expression for a text in upper or lower case.
fn in_any_case(text: &str) -> String {
    let one = |char: char| match char.is_ascii_alphabetic() {
        true => format!("[{}{}]", char.to_ascii_lowercase(), char.to_ascii_uppercase()),
        false => regex_quoted(&char.to_string()),
    };
    text.chars().map(one).collect()
}

fn definition(config: &DocumentValue) -> Result<YamlMembers, &'static str> {
    let text = config.text("api_spec").filter(|text| !text.is_empty()).ok_or("it has no `api_spec`")?;
    let parsed = document::parse("api_spec", text).map_err(|_| "an `api_spec` that is percent-encoded or no YAML")?;
    if !parsed.text("openapi").is_some_and(|version| version.starts_with("3.")) {
        return Err("an `api_spec` that is percent-encoded, or not of OpenAPI 3");
    }
    if config.is_true("query_parameter_check", false) || config.is_true("header_parameter_check", false) {
        return Err("the refusal of parameters that the definition has not");
    }
    if !config.is_true("include_base_path", false) && has_server_with_path(&parsed) {
        return Err("`servers` with paths, which Kong ignores; remove them for `oas-validator`");
    }
    let mut options = named([("spec", Yaml::text(text))]);
    for (theirs, ours) in [
        ("validate_request_body", "skip_request_body_validation"),
        ("validate_request_header_params", "skip_request_header_validation"),
        ("validate_request_query_params", "skip_query_param_validation"),
        ("validate_request_uri_params", "skip_path_params_validation"),
    ] {
        if !config.is_true(theirs, true) {
            options.push((ours.to_owned(), Yaml::Boolean(true)));
        }
    }
    if config.is_true("notify_only_request_validation_failure", false) {
        options.push(("reject_if_not_match".to_owned(), Yaml::Boolean(false)));
    }
    if config.is_true("verbose_response", false) {
        options.push(("verbose_errors".to_owned(), Yaml::Boolean(true)));
    }
    if config.is_true("validate_response_body", false) {
        let only_told = config.is_true("notify_only_response_body_validation_failure", false);
        let word = if only_told { "log" } else { "refuse" };
        options.push(("validate_responses".to_owned(), Yaml::text(word)));
    }
    Ok(options)
}
