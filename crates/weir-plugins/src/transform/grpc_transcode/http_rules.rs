//! The rules of the option `google.api.http`, by which a request chooses the method that it calls (AIP-127).

use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, MethodDescriptor, ServiceDescriptor, Value};
use serde_json::Map;

use super::arguments;
use super::path_template::{BoundField, RulePath};

/// The most rules of a plugin: each request is compared with them, one after the other.
pub(super) const MOST_RULES: usize = 1_024;
/// How deep `additional_bindings` are read. The option allows one level.
const BINDINGS: usize = 1;

/// What of the message the body is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum BodyOf {
    /// All of it, or the query if there is no body: of a call that no rule has chosen.
    MessageOrQuery,
    Message,
    Field(FieldDescriptor),
    Nothing,
}

impl BodyOf {
    /// Whether an argument of the query can set the field that it names: the body has the others.
    pub(super) fn is_of_query(&self, name: &[u8]) -> bool {
        match self {
            BodyOf::MessageOrQuery | BodyOf::Nothing => true,
            BodyOf::Message => false,
            BodyOf::Field(field) => {
                let first = name.split(|byte| *byte == b'.').next().unwrap_or_default();
                first != field.name().as_bytes() && first != field.json_name().as_bytes()
            }
        }
    }
}

/// One rule, or one of its further bindings.
#[derive(Debug)]
pub(super) struct TranscodingRule {
    pub calls: MethodDescriptor,
    /// The method of the request; `*` is any.
    method: String,
    template: RulePath,
    pub body: BodyOf,
    /// The field that is the content of the response.
    pub response: Option<FieldDescriptor>,
}

/// What fits a request.
#[derive(Debug)]
pub(super) enum RuleMatch<'r> {
    Rule(usize, Vec<BoundField<'r>>),
    /// Rules fit the path, for these methods.
    OtherMethods(Vec<&'r str>),
    None,
}

/// Rules in the order in which they are compared with a request.
#[derive(Debug)]
pub(super) struct HttpRules(pub Vec<TranscodingRule>);

impl HttpRules {
    /// The rules of these services.
    ///
    /// # Errors
    /// What is wrong with a rule, or that there is none.
    pub(super) fn of(
        pool: &DescriptorPool,
        services: impl Iterator<Item = ServiceDescriptor>,
    ) -> Result<HttpRules, String> {
        let without = "the proto has no rule `google.api.http`; name the `method`";
        let option = pool.get_extension_by_name("google.api.http").ok_or(without)?;
        let mut rules = Vec::new();
        for method in services.flat_map(|service| service.methods().collect::<Vec<_>>()) {
            let options = method.options();
            if !options.has_extension(&option) {
                continue;
            }
            if let Value::Message(rule) = &*options.get_extension(&option) {
                let fault = |problem: String| format!("the rule of `{}` {problem}", method.full_name());
                add(&method, rule, BINDINGS, &mut rules).map_err(fault)?;
            }
        }
        match rules.len() {
            0 => return Err(without.to_owned()),
            count if count > MOST_RULES => {
                return Err(format!("the proto has {count} rules, and the limit is {MOST_RULES}; name one `service`"));
            }
            _ => {}
        }
        // Stable: of equal templates the first one is taken.
        rules.sort_by(|a, b| a.template.precedence().cmp(&b.template.precedence()));
        Ok(HttpRules(rules))
    }

    pub(super) fn find(&self, method: &[u8], path: &[u8]) -> RuleMatch<'_> {
        let mut others = Vec::new();
        for (index, rule) in self.0.iter().enumerate() {
            let Some(bound) = rule.template.bind(path) else { continue };
            if rule.method == "*" || rule.method.as_bytes() == method {
                return RuleMatch::Rule(index, bound);
            }
            if !others.contains(&&*rule.method) {
                others.push(&*rule.method);
            }
        }
        if others.is_empty() { RuleMatch::None } else { RuleMatch::OtherMethods(others) }
    }
}

fn text(message: &DynamicMessage, field: &str) -> String {
    let value = message.get_field_by_name(field);
    value.and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// The method and the template of a rule.
fn pattern(rule: &DynamicMessage) -> Option<(String, String)> {
    for name in ["get", "put", "post", "delete", "patch"] {
        if rule.has_field_by_name(name) {
            return Some((name.to_uppercase(), text(rule, name)));
        }
    }
    match &*rule.get_field_by_name("custom").filter(|_| rule.has_field_by_name("custom"))? {
        Value::Message(custom) => Some((text(custom, "kind").to_uppercase(), text(custom, "path"))),
        _ => None,
    }
}

/// Adds a rule and its further bindings.
fn add(
    calls: &MethodDescriptor,
    rule: &DynamicMessage,
    below: usize,
    rules: &mut Vec<TranscodingRule>,
) -> Result<(), String> {
    let (method, written) = pattern(rule).ok_or("has no path")?;
    if calls.is_client_streaming() {
        return Err("is of a method that takes a stream of messages, which a request cannot contain".to_owned());
    }
    let takes = calls.input();
    let template = RulePath::parse(&written).map_err(|fault| format!("has the path `{written}`, which {fault}"))?;
    for field in template.fields() {
        arguments::add(&takes, &mut Map::new(), field.as_bytes(), b"")
            .map_err(|fault| format!("has the path `{written}`, and `{field}` in it: {fault}"))?;
    }
    let field = |name: &str, of: prost_reflect::MessageDescriptor| {
        of.get_field_by_name(name).ok_or_else(|| format!("names `{name}`, which `{}` does not have", of.full_name()))
    };
    let body = match &*text(rule, "body") {
        "" => BodyOf::Nothing,
        "*" => BodyOf::Message,
        name => BodyOf::Field(field(name, takes)?),
    };
    let response = Some(text(rule, "response_body")).filter(|name| !name.is_empty());
    let response = response.map(|name| field(&name, calls.output())).transpose()?;
    rules.push(TranscodingRule { calls: calls.clone(), method, template, body, response });
    if rules.len() > MOST_RULES {
        return Err(format!("is one of more than {MOST_RULES}; name one `service`"));
    }
    let Some(more) = rule.get_field_by_name("additional_bindings") else { return Ok(()) };
    for binding in more.as_list().into_iter().flatten() {
        match binding {
            Value::Message(_) if below == 0 => return Err("has bindings within its further bindings".to_owned()),
            Value::Message(binding) => add(calls, binding, below - 1, rules)?,
            _ => {}
        }
    }
    Ok(())
}

/// The JSON of the value of a member, of JSON that is an object without white space between its parts.
pub(super) fn member<'j>(json: &'j [u8], name: &str) -> Option<&'j [u8]> {
    let mut at = 1;
    while json.get(at) == Some(&b'"') {
        let end = at + value_length(&json[at..]);
        let start = end + 1;
        let length = value_length(json.get(start..)?);
        if json.get(at + 1..end - 1)? == name.as_bytes() {
            return json.get(start..start + length);
        }
        at = start + length + 1;
    }
    None
}

/// The bytes of the value that a text begins with.
fn value_length(json: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => {
                at += 1;
                while let Some(byte) = json.get(at).filter(|byte| **byte != b'"') {
                    at += if *byte == b'\\' { 2 } else { 1 };
                }
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' | b',' | b':' if depth == 0 => return at,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 && matches!(byte, b'"' | b'}' | b']') {
            return at.min(json.len());
        }
    }
    at.min(json.len())
}

#[cfg(test)]
mod tests {
    use weir_plugin::ProtoDefinitions;

    use super::*;

    fn rules(methods: &str) -> Result<HttpRules, String> {
        let text = format!(
            "syntax = \"proto3\"; package t; import \"google/api/annotations.proto\";
            service S {{ {methods} }}
            message A {{ string name = 1; A inner = 2; repeated A list = 3; }}"
        );
        let definitions = ProtoDefinitions::parse(&text).expect("a proto");
        HttpRules::of(definitions.pool(), definitions.pool().services())
    }

    fn found(rules: &HttpRules, method: &str, path: &str) -> String {
        match rules.find(method.as_bytes(), path.as_bytes()) {
            RuleMatch::Rule(index, bound) => format!("{} {bound:?}", rules.0[index].calls.name()),
            RuleMatch::OtherMethods(methods) => methods.join(", "),
            RuleMatch::None => "none".to_owned(),
        }
    }

    #[test]
    fn a_request_chooses_the_method_whose_rule_says_most() {
        let rules = rules(
            "rpc Get (A) returns (A) { option (google.api.http) = { get: \"/v1/{name=as/*}\" }; }
            rpc Put (A) returns (A) { option (google.api.http) = { put: \"/v1/{name=as/*}\" body: \"inner\"
                additional_bindings { post: \"/v1/{name=as/*}:put\" body: \"*\" } }; }
            rpc First (A) returns (A) { option (google.api.http) = { get: \"/v1/as/first\" response_body: \"list\" }; }
            rpc Any (A) returns (A) { option (google.api.http) = { custom: { kind: \"*\" path: \"/any/{inner.name}\" } }; }
            rpc Without (A) returns (A);",
        )
        .expect("rules");
        assert_eq!(found(&rules, "GET", "/v1/as/7"), "Get [(\"name\", [97, 115, 47, 55])]");
        assert_eq!(found(&rules, "GET", "/v1/as/first"), "First []");
        assert!(found(&rules, "PUT", "/v1/as/first").starts_with("Put "));
        assert!(found(&rules, "POST", "/v1/as/7:put").starts_with("Put "));
        assert!(found(&rules, "TRACE", "/any/b").starts_with("Any [(\"inner.name\""));
        assert_eq!(found(&rules, "DELETE", "/v1/as/7"), "GET, PUT");
        assert_eq!(found(&rules, "GET", "/v2"), "none");
        let first = rules.0.iter().find(|rule| rule.calls.name() == "First").expect("it is there");
        assert_eq!(first.response.as_ref().map(|field| field.name().to_owned()).as_deref(), Some("list"));
    }

    #[test]
    fn rules_that_cannot_be_kept_are_refused() {
        for (methods, fault) in [
            ("rpc Get (A) returns (A);", "has no rule `google.api.http`"),
            (
                "rpc Get (A) returns (A) { option (google.api.http) = { get: \"/{other}\" }; }",
                "the rule of `t.S.Get` has the path `/{other}`, and `other` in it: the message has no such field",
            ),
            (
                "rpc Get (A) returns (A) { option (google.api.http) = { get: \"/{inner}\" }; }",
                "is no field with a single value",
            ),
            (
                "rpc Get (A) returns (A) { option (google.api.http) = { get: \"/a/\" }; }",
                "has the path `/a/`, which has an empty segment",
            ),
            (
                "rpc Get (A) returns (A) { option (google.api.http) = { post: \"/a\" body: \"x\" }; }",
                "names `x`, which `t.A` does not have",
            ),
            ("rpc Get (A) returns (A) { option (google.api.http) = { body: \"*\" }; }", "has no path"),
            (
                "rpc Get (stream A) returns (A) { option (google.api.http) = { post: \"/a\" body: \"*\" }; }",
                "takes a stream of messages",
            ),
        ] {
            let told = rules(methods).expect_err(methods);
            assert!(told.contains(fault), "{told}");
        }
    }

    #[test]
    fn a_member_is_found_whatever_stands_before_it() {
        let json = br#"{"a":"}\"],","b":{"c":[1,{"d":"]"}],"list":0},"list":[{"x":1},2],"n":-1.5e3,"t":true}"#;
        let text = |name| member(json, name).map(|value| String::from_utf8_lossy(value).into_owned());
        assert_eq!(text("a").as_deref(), Some(r#""}\"],""#));
        assert_eq!(text("list").as_deref(), Some(r#"[{"x":1},2]"#));
        assert_eq!(text("n").as_deref(), Some("-1.5e3"));
        assert_eq!(text("t").as_deref(), Some("true"));
        assert_eq!((text("c"), member(b"{}", "a"), member(b"", "a")), (None, None, None));
    }
}
