use std::collections::HashSet;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, Phases, Plugin, Stage, Stop};

use crate::content::content_type;
use crate::content::json::{Container, JsonError, JsonToken, Scanner};
use crate::security::threat::{self, ThreatBounds};

/// Refuses requests whose JSON body could harm the upstream: nested too deeply, with too many or too long parts, with
/// duplicate names in an object, or not valid JSON.
///
/// All request bodies must be JSON, whatever their `Content-Type`, because many servers parse a body without checking
/// its type. With `only_json_types`, bodies of other types are not checked.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct JsonThreatProtection {
    /// The largest body, in bytes after decoding. A larger body is refused with 413.
    #[serde(default = "threat::default_max_body_size")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_body_size: u64,
    /// The maximum nesting depth of objects and arrays, 1 to 1000.
    #[serde(default = "threat::default_max_depth")]
    #[schemars(range(min = 1, max = 1000))]
    max_depth: usize,
    /// The maximum number of members of an object.
    #[serde(default = "default_max_members")]
    max_members: u64,
    /// The maximum number of items of an array.
    #[serde(default = "threat::default_max_parts")]
    max_items: u64,
    /// The maximum length of a string, in bytes of UTF-8.
    #[serde(default = "threat::default_max_text_length")]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_string_length: usize,
    /// The maximum length of the name of a member, in bytes of UTF-8.
    #[serde(default = "default_max_name_length")]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_name_length: usize,
    /// The maximum number of characters of a number.
    #[serde(default = "default_max_number_length")]
    max_number_length: usize,
    /// Allows duplicate names in an object. JSON parsers disagree about which of the values they use.
    #[serde(default)]
    allow_duplicate_names: bool,
    /// Does not check bodies whose `Content-Type` is not JSON.
    #[serde(default)]
    only_json_types: bool,
    /// The status of a refusal, 400 to 599.
    #[serde(default = "threat::default_rejected_code")]
    #[schemars(range(min = 400, max = 599))]
    rejected_code: u16,
}

fn default_max_members() -> u64 {
    1000
}

fn default_max_name_length() -> usize {
    1024
}

fn default_max_number_length() -> usize {
    64
}

impl Definition for JsonThreatProtection {
    const NAME: &'static str = "json-threat-protection";
    const PRIORITY: i32 = 2820;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "json-threat-protection: { max_depth: 8, max_members: 100, max_string_length: 4096 }";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(self))
    }
}

impl Plugin for JsonThreatProtection {
    fn phases(&self) -> Phases {
        Phases::REQUEST_BODY
    }

    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        let is_json = content_type::of_request(exchange)?.is_some_and(content_type::is_json);
        let passes = self.only_json_types && !is_json;
        Ok(if passes { None } else { Some(self.max_body_size) })
    }

    fn on_request_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<Flow<'static>, Stop> {
        self.bounds().judge(exchange, body, |plain| self.check(plain)).map(Flow::from)
    }
}

/// An open object or list.
struct ContainerLevel {
    parts: u64,
    names: HashSet<Box<str>>,
}

impl JsonThreatProtection {
    fn bounds(&self) -> ThreatBounds {
        ThreatBounds { max_body_size: self.max_body_size, rejected_code: self.rejected_code }
    }

    fn check(&self, body: &[u8]) -> Result<(), &'static str> {
        let fault = |fault: JsonError| match fault {
            JsonError::Syntax(_) => "The body is not JSON",
            JsonError::Depth => "The body is nested too deep",
        };
        let mut scanner = Scanner::new(body, self.max_depth).map_err(fault)?;
        let mut open: Vec<ContainerLevel> = Vec::new();
        let mut in_list: Vec<bool> = Vec::new();
        while let Some(token) = scanner.token().map_err(fault)? {
            if in_list.last() == Some(&true) && !matches!(token, JsonToken::Close(_) | JsonToken::Name(_)) {
                let level = open.last_mut().expect("a list is open");
                level.parts += 1;
                if level.parts > self.max_items {
                    return Err("A list of the body has too many items");
                }
            }
            match token {
                JsonToken::Open(container) => {
                    open.push(ContainerLevel { parts: 0, names: HashSet::new() });
                    in_list.push(container == Container::List);
                }
                JsonToken::Close(_) => {
                    open.pop();
                    in_list.pop();
                }
                JsonToken::Name(span) => {
                    let name = scanner.unquoted(&span).map_err(fault)?;
                    let level = open.last_mut().expect("an object is open");
                    level.parts += 1;
                    if level.parts > self.max_members {
                        return Err("An object of the body has too many members");
                    }
                    if name.len() > self.max_name_length {
                        return Err("A name in the body is too long");
                    }
                    if !self.allow_duplicate_names && !level.names.insert(name.into()) {
                        return Err("An object of the body has a name twice");
                    }
                }
                JsonToken::Text(span) => {
                    if scanner.unquoted(&span).map_err(fault)?.len() > self.max_string_length {
                        return Err("A string in the body is too long");
                    }
                }
                JsonToken::Plain(span) if span.len() > self.max_number_length => {
                    return Err("A number in the body is too long");
                }
                JsonToken::Plain(_) => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{body, build, exchange, on_request_body, refused};

    const LIMITS: &str = r#"{"max_depth": 3, "max_members": 2, "max_items": 3, "max_string_length": 5,
        "max_name_length": 4, "max_number_length": 6}"#;

    #[test]
    fn json_within_its_limits_passes() {
        let step = build::<JsonThreatProtection>(serde_json::from_str(LIMITS).expect("JSON"));
        for (content, want) in [
            (r#"{"a": [1, 2, {"b": "12345"}], "c": null}"#, None),
            ("", None),
            ("[[[[1]]]]", Some("The body is nested too deep")),
            (r#"{"a": 1, "b": 2, "c": 3}"#, Some("An object of the body has too many members")),
            ("[1, [2], {}, 4]", Some("A list of the body has too many items")),
            (r#""123456""#, Some("A string in the body is too long")),
            (r#""\u0031\u0032345""#, None),
            (r#"{"abcde": 1}"#, Some("A name in the body is too long")),
            ("1234567", Some("A number in the body is too long")),
            (r#"{"a": 1, "\u0061": 2}"#, Some("An object of the body has a name twice")),
            ("{'a': 1}", Some("The body is not JSON")),
            ("{} {}", Some("The body is not JSON")),
        ] {
            let mut exchange = exchange("POST / HTTP/1.1\nHost: h\nContent-Type: text/plain");
            let end = on_request_body(&step, &mut exchange, content);
            let said = want.map(|text| format!("{{\"message\":\"{text}\"}}\n"));
            assert_eq!(end.is_err(), want.is_some(), "{content}");
            assert_eq!((!body(&exchange).is_empty()).then(|| body(&exchange).to_owned()), said, "{content}");
        }
    }

    #[test]
    fn other_types_pass_unread_only_when_told() {
        let json = || exchange("POST / HTTP/1.1\nHost: h\nContent-Type: application/problem+json\nContent-Length: 1");
        let other = || exchange("POST / HTTP/1.1\nHost: h\nContent-Type: image/png\nContent-Length: 1");
        let strict = build::<JsonThreatProtection>(json!({"max_body_size": 10}));
        assert!(matches!(strict.whole_request(&mut other()), Ok(Some(10))));
        let lenient = build::<JsonThreatProtection>(json!({"only_json_types": true}));
        assert!(matches!(lenient.whole_request(&mut other()), Ok(None)));
        assert!(matches!(lenient.whole_request(&mut json()), Ok(Some(_))));
        let both = || exchange("POST / HTTP/1.1\nHost: h\nContent-Type: text/plain, application/json");
        for step in [&strict, &lenient] {
            assert!(matches!(step.whole_request(&mut both()), Err(Stop::Answered)), "u06: two readers, two types");
        }
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let error = refused::<JsonThreatProtection>(json!({"max_member": 1}));
        assert!(error.starts_with("max_member: the option `max_member` is not known"), "{error}");
    }
}
