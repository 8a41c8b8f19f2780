//! The index template that a logger creates in the store, so that new indices have the right types for records.

use http::Method;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_plugin::{AllOf, ConfigError};
use weir_services::http_answer;
use weir_services::receivers::{ReceiverRequest, Receivers};

use crate::log::capture::Capture;

/// An index template that the logger creates before its first batch.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TemplateOptions {
    /// The name of the template. A template of this name that Weir has created is replaced; any other one stays, and
    /// records wait until it is gone.
    name: String,
    /// If several templates apply to an index, the store uses the one with the highest priority.
    #[serde(default = "default_priority")]
    priority: u32,
    /// Settings of the indices. Without this option: `{ number_of_shards: 1, refresh_interval: 5s }`.
    settings: Option<Map<String, Value>>,
    /// Types of fields (`properties` of the mapping). They are added to those of the default record, or replace them.
    #[serde(default)]
    properties: Map<String, Value>,
}

fn default_priority() -> u32 {
    500
}

/// A template that has not been created yet.
pub(super) struct IndexTemplate {
    name: String,
    body: Value,
}

const JSON: &str = "application/json";

impl TemplateOptions {
    /// Compiles the template for indices whose names match `pattern`.
    ///
    /// # Errors
    /// An option is invalid.
    pub(super) fn compile(
        self,
        pattern: &str,
        is_stream: bool,
        capture: &Capture,
    ) -> Result<IndexTemplate, ConfigError> {
        let is_fit = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || "._-".contains(char);
        let named = match self.name.is_empty()
            || self.name.starts_with(['_', '.', '-'])
            || !self.name.chars().all(is_fit)
        {
            true => {
                let problem = format!(
                    "`{}` is not the name of a template: use lower-case letters, digits, `.`, `_` and `-`, and begin with a letter or a digit",
                    self.name
                );
                Err(ConfigError::new("template.name", problem))
            }
            false => Ok(()),
        };
        let bounded = match pattern.starts_with('*') {
            true => {
                let problem =
                    "the template would apply to all indices: begin `field.index` with a text, as `weir-$host`";
                Err(ConfigError::new("template", problem))
            }
            false => Ok(()),
        };
        (named, bounded).all_of()?;
        let default =
            || Map::from_iter([("number_of_shards".into(), 1.into()), ("refresh_interval".into(), "5s".into())]);
        let mut properties = properties_of(capture);
        properties.extend(self.properties);
        let strings = json!({"match_mapping_type": "string", "mapping": {"type": "keyword", "ignore_above": 1024}});
        let mut body = json!({
            "index_patterns": [pattern],
            "priority": self.priority,
            "_meta": {"managed_by": "weir"},
            "template": {
                "settings": self.settings.unwrap_or_else(default),
                "mappings": {"dynamic_templates": [{"strings": strings}], "properties": properties},
            },
        });
        if is_stream {
            body["data_stream"] = json!({});
        }
        Ok(IndexTemplate { name: self.name, body })
    }
}

/// The type for objects whose member names clients choose, such as header fields and arguments: with the default type,
/// each name would become a field of the index, which has at most a thousand. Elasticsearch and OpenSearch name the
/// type differently.
const FLAT: &str = "flattened";
const FLAT_OF_OPENSEARCH: &str = "flat_object";

/// The types of the members of the default record, except for those that a `log_format_extra` replaces.
fn properties_of(capture: &Capture) -> Map<String, Value> {
    let mut properties = Map::from_iter([("@timestamp".to_owned(), json!({"type": "date"}))]);
    if !capture.has_everything() {
        return properties;
    }
    let (flat, size, float) = (json!({"type": FLAT}), json!({"type": "long"}), json!({"type": "float"}));
    let body = json!({"type": "text", "norms": false});
    let request = json!({"headers": flat, "querystring": flat, "size": size, "body": body});
    let response = json!({"headers": flat, "status": {"type": "short"}, "size": size, "body": body});
    for (name, kind) in [
        ("request", json!({"properties": request})),
        ("response", json!({"properties": response})),
        ("client_ip", json!({"type": "ip", "ignore_malformed": true})),
        ("start_time", json!({"type": "date", "format": "epoch_millis"})),
        ("latency", float.clone()),
        ("upstream_latency", float.clone()),
        ("apisix_latency", float),
    ] {
        if !capture.has_extra(name) {
            properties.insert(name.to_owned(), kind);
        }
    }
    properties
}

/// Replaces the type by the one of OpenSearch.
fn for_opensearch(value: &mut Value) {
    match value {
        Value::Object(members) => members.values_mut().for_each(for_opensearch),
        Value::String(text) if text == FLAT => FLAT_OF_OPENSEARCH.clone_into(text),
        _ => {}
    }
}

impl IndexTemplate {
    /// Creates the template, or replaces the one from an earlier start.
    ///
    /// # Errors
    /// If the store did not accept it; a later attempt may succeed.
    pub(super) async fn create(&self, receivers: &mut Receivers) -> Result<(), String> {
        let wrong = |problem: &str| format!("the index template `{}` cannot be created: {problem}", self.name);
        let mut ask = async |method: Method, path: &str, body: Vec<u8>| {
            let request = ReceiverRequest { method, path, content_type: JSON, is_gzip: false, body };
            receivers.ask(request).await.map_err(|error| wrong(&error.to_string()))
        };
        let about = ask(Method::GET, "/", Vec::new()).await?;
        let about: Value = match about.status().as_u16() {
            200 => serde_json::from_slice(about.body()).unwrap_or_default(),
            _ => return Err(wrong(&http_answer::quoted(&about))),
        };
        let path = format!("/_index_template/{}", self.name);
        let found = ask(Method::GET, &path, Vec::new()).await?;
        match found.status().as_u16() {
            404 => {}
            200 if is_ours(&serde_json::from_slice(found.body()).unwrap_or_default()) => {}
            200 => {
                return Err(wrong("another one of this name was not created by Weir; choose another `template.name`"));
            }
            _ => return Err(wrong(&http_answer::quoted(&found))),
        }
        let mut body = self.body.clone();
        if about["version"]["distribution"] == "opensearch" {
            for_opensearch(&mut body["template"]["mappings"]["properties"]);
        }
        let answer = ask(Method::PUT, &path, body.to_string().into_bytes()).await?;
        match answer.status().as_u16() {
            200 => Ok(()),
            _ => Err(wrong(&http_answer::quoted(&answer))),
        }
    }
}

fn is_ours(found: &Value) -> bool {
    found["index_templates"][0]["index_template"]["_meta"]["managed_by"] == "weir"
}

#[cfg(test)]
mod tests {
    use weir_plugin::Build;

    use super::*;

    fn compiled(options: Value, pattern: &str, format: Option<Value>, extra: Value) -> Result<Value, String> {
        let format = format.as_ref().and_then(Value::as_object);
        let capture = Capture::compile(format, extra.as_object(), &mut Build::default()).expect("valid");
        let options: TemplateOptions = serde_json::from_value(options).expect("its form is right");
        let template = options.compile(pattern, false, &capture).map_err(|error| error.to_string())?;
        Ok(template.body)
    }

    #[test]
    fn members_have_the_types_that_they_need_unless_a_format_says_what_they_are() {
        let body =
            compiled(json!({"name": "weir"}), "weir-*", None, json!({"latency": "$request_time"})).expect("valid");
        assert_eq!((&body["index_patterns"], &body["priority"]), (&json!(["weir-*"]), &json!(500)));
        let properties = &body["template"]["mappings"]["properties"];
        assert_eq!(properties["request"]["properties"]["headers"]["type"], "flattened");
        assert_eq!((&properties["client_ip"]["type"], &properties["latency"]), (&json!("ip"), &Value::Null));
        assert_eq!(body["template"]["settings"]["refresh_interval"], "5s");
        let options =
            json!({"name": "weir", "settings": {"number_of_shards": 3}, "properties": {"n": {"type": "integer"}}});
        let body = compiled(options, "weir-*", Some(json!({"n": "$status"})), json!({})).expect("valid");
        let own = json!({"@timestamp": {"type": "date"}, "n": {"type": "integer"}});
        assert_eq!(body["template"]["mappings"]["properties"], own);
        assert_eq!(body["template"]["settings"], json!({"number_of_shards": 3}));
    }

    #[test]
    fn opensearch_has_another_name_for_a_type() {
        let mut value = json!({"a": {"type": "flattened"}, "b": {"type": "text"}});
        for_opensearch(&mut value);
        assert_eq!(value, json!({"a": {"type": "flat_object"}, "b": {"type": "text"}}));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (name, pattern, want) in [
            ("", "weir-*", "template.name: `` is not the name of a template"),
            ("a/b", "weir-*", "template.name: `a/b` is not"),
            ("_a", "weir-*", "template.name: `_a` is not"),
            ("a", "*-weir", "template: the template would apply to all indices"),
        ] {
            let error = compiled(json!({"name": name}), pattern, None, json!({})).expect_err(name);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
