use std::borrow::Cow;
use std::sync::Arc;

use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::{AllOf, BodyMask, Build, ConfigError, Definition, Exchange, Phases, Plugin, Stage, form};

use crate::content::json::JsonError;
use crate::content::json::path::JsonPath;
use crate::options::pattern;

/// Masks parts of requests in log records and in the access log. The requests themselves are not changed.
///
/// The mask applies to all loggers of the route, including those of global rules, to `$variables` in their formats, and to
/// requests that another plugin has refused. Records are masked before they leave the worker, so masked values are never
/// written to a spool or sent. A request body that cannot be masked reliably (because it is truncated, encoded, or not in the
/// format of the masks) is left out of the record, which then contains `request.body_omitted`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DataMask {
    /// The parts of requests that are masked, in this order.
    #[serde(default)]
    request: Vec<MaskRule>,
    /// The largest body that is masked, in bytes. Larger bodies are left out of records.
    #[serde(default = "default_max_body_size")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_body_size: usize,
    /// The largest number of fields of a form that is masked; 0 is no limit. Forms with more fields are left out of records.
    #[serde(default = "default_max_req_post_args")]
    max_req_post_args: usize,
}

/// One thing to mask.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MaskRule {
    /// Where the value is: in the `query`, in a `header`, or in the `body`.
    #[serde(rename = "type")]
    place: MaskPlace,
    /// The name of the query argument, header field or form field. For a JSON body, a path such as `$.users[*].password`.
    #[schemars(length(min = 1))]
    name: String,
    /// `remove` removes the value, `replace` replaces the value by `value`, `regex` replaces all matches of `regex` in it by
    /// `value`.
    action: MaskActionSpec,
    /// The format of the body. Required if `type` is `body`.
    #[schemars(extend("x-weir-only-if" = { "type": ["body"] }))]
    body_format: Option<MaskBodyFormat>,
    /// The regular expression to match, without look-around and back-references. Required for the action `regex`.
    regex: Option<String>,
    /// The new value. Required for `replace` and `regex`. For `regex`, `$0` is the match, `$1`, `$2`... are its capture
    /// groups, and `$$` is a dollar sign.
    value: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum MaskPlace {
    Query,
    Header,
    Body,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum MaskActionSpec {
    Regex,
    Replace,
    Remove,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum MaskBodyFormat {
    Json,
    Urlencoded,
}

fn default_max_body_size() -> usize {
    1 << 20
}

fn default_max_req_post_args() -> usize {
    100
}

/// The deepest nesting of a JSON body that is masked.
const MAX_DEPTH: usize = 128;

impl Definition for DataMask {
    const NAME: &'static str = "data-mask";
    const PRIORITY: i32 = 1500;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"data-mask: { request: [{ type: query, name: card, action: regex, regex: '\d{12}(\d{4})', value: '****$1' }, { type: header, name: X-Session, action: remove }, { type: body, body_format: json, name: '$.users[*].password', action: replace, value: '***' }] }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if self.request.is_empty() {
            build.warnings.push(ConfigError::new("request", "is empty, so nothing is masked"));
        }
        let mut body = RequestBodyMask {
            json: Vec::new(),
            form: Vec::new(),
            most: self.max_body_size,
            most_fields: self.max_req_post_args,
        };
        let (mut query, mut headers) = (Vec::new(), Vec::new());
        for (index, rule) in self.request.into_iter().enumerate() {
            let path = format!("request[{index}]");
            let action = build.keep(rule.action(&path).map(Some)).unwrap_or(MaskAction::Remove);
            match (rule.place, rule.body_format) {
                (MaskPlace::Query, _) => query.push((rule.name, action)),
                (MaskPlace::Header, _) => headers.push((rule.name, action)),
                (MaskPlace::Body, Some(MaskBodyFormat::Urlencoded)) => body.form.push((rule.name, action)),
                (MaskPlace::Body, Some(MaskBodyFormat::Json)) => match JsonPath::parse(&rule.name) {
                    Some(json_path) => body.json.push((json_path, action)),
                    // An empty name has been reported.
                    None if rule.name.is_empty() => {}
                    None => {
                        let problem = "is not a JSON path; write `$.a.b[0]`, `$.list[*].name` or `$..password`";
                        build.fault(format!("{path}.name"), problem);
                    }
                },
                (MaskPlace::Body, None) => {
                    let problem = "is required where `type` is `body`: `json` or `urlencoded`";
                    build.fault(format!("{path}.body_format"), problem);
                }
            }
        }
        let has_body = !body.json.is_empty() || !body.form.is_empty();
        Ok(Arc::new(RequestMask { query, headers, body: has_body.then(|| Arc::new(body)) }))
    }
}

impl MaskRule {
    fn action(&self, path: &str) -> Result<MaskAction, ConfigError> {
        let named = match self.name.is_empty() {
            true => Err(ConfigError::new(format!("{path}.name"), "must not be empty")),
            false => Ok(()),
        };
        (named, self.masking(path)).all_of().map(|((), action)| action)
    }

    fn masking(&self, path: &str) -> Result<MaskAction, ConfigError> {
        let required = |name: &str, option: &Option<String>| {
            let missing = || ConfigError::new(format!("{path}.{name}"), "is required for this `action`");
            option.clone().ok_or_else(missing)
        };
        Ok(match self.action {
            MaskActionSpec::Remove => MaskAction::Remove,
            MaskActionSpec::Replace => MaskAction::Replace(required("value", &self.value)?.into_bytes()),
            MaskActionSpec::Regex => {
                let regex = required("regex", &self.regex);
                let regex = regex.and_then(|regex| pattern::compile(&regex, false, &format!("{path}.regex")));
                let (regex, value) = (regex, required("value", &self.value)).all_of()?;
                MaskAction::Matches { regex, replacement: pattern::braced(&value).into_bytes() }
            }
        })
    }
}

#[derive(Debug)]
enum MaskAction {
    Remove,
    Replace(Vec<u8>),
    Matches { regex: Arc<Regex>, replacement: Vec<u8> },
}

impl MaskAction {
    /// The masked value; `None` if it is removed.
    fn apply<'a>(&'a self, value: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        match self {
            MaskAction::Remove => None,
            MaskAction::Replace(new) => Some(Cow::Borrowed(new)),
            MaskAction::Matches { regex, replacement } => Some(regex.replace_all(value, &replacement[..])),
        }
    }
}

/// The masks by name.
type NamedMasks = Vec<(String, MaskAction)>;

struct RequestMask {
    query: NamedMasks,
    headers: NamedMasks,
    body: Option<Arc<RequestBodyMask>>,
}

impl Plugin for RequestMask {
    fn phases(&self) -> Phases {
        Phases::MASK
    }

    fn mask(&self, _: &Exchange, shown: &mut Exchange) {
        if !self.query.is_empty() {
            shown.request.replace_query(|query| masked_pairs(query, &self.query));
            // The previous page may have been requested with the same arguments.
            shown.request.head.replace_values(b"Referer", |url| Some(masked_url(url, &self.query)));
        }
        for (name, action) in &self.headers {
            shown.request.head.replace_values(name.as_bytes(), |value| action.apply(value).map(Cow::into_owned));
        }
        if let Some(body) = &self.body {
            shown.mask_body(Arc::<RequestBodyMask>::clone(body));
        }
    }
}

/// Masks a query or a form. Pairs without a mask are kept byte by byte.
fn masked_pairs(text: &[u8], masks: &NamedMasks) -> Vec<u8> {
    let pairs = text.split(|&byte| byte == b'&').filter_map(|pair| {
        let (name, value) = form::halves(pair);
        let decoded_name = form::decoded(name);
        let mut masks = masks.iter().filter(|(masked, _)| masked.as_bytes() == &*decoded_name).peekable();
        if masks.peek().is_none() {
            return Some(Cow::Borrowed(pair));
        }
        let mut shown = form::decoded(value).into_owned();
        for (_, action) in masks {
            shown = action.apply(&shown)?.into_owned();
        }
        let mut out = [name, b"="].concat();
        form::write_encoded(&shown, &mut out);
        Some(Cow::Owned(out))
    });
    pairs.collect::<Vec<_>>().join(&b'&')
}

fn masked_url(url: &[u8], masks: &NamedMasks) -> Vec<u8> {
    let Some(mark) = url.iter().position(|&byte| byte == b'?') else { return url.to_vec() };
    let end = url[mark..].iter().position(|&byte| byte == b'#').map_or(url.len(), |end| mark + end);
    [&url[..=mark], &masked_pairs(&url[mark + 1..end], masks), &url[end..]].concat()
}

/// The masks for bodies, for both formats.
#[derive(Debug)]
struct RequestBodyMask {
    json: Vec<(JsonPath, MaskAction)>,
    form: NamedMasks,
    most: usize,
    most_fields: usize,
}

impl BodyMask for RequestBodyMask {
    fn masked(&self, shown: &Exchange, body: Vec<u8>, is_cut: bool) -> Option<Vec<u8>> {
        if body.is_empty() {
            return Some(body);
        }
        // Only the declared type counts: receivers may interpret the content by that field alone.
        if is_form(shown) && !self.form.is_empty() { self.form(&body, is_cut) } else { self.json(body, is_cut) }
    }

    fn most_bytes(&self) -> usize {
        self.most
    }
}

impl RequestBodyMask {
    fn form(&self, body: &[u8], is_cut: bool) -> Option<Vec<u8>> {
        let is_odd = |byte: &u8| !byte.is_ascii_graphic() || b"\"{}<>\\".contains(byte);
        let has_too_many = self.most_fields != 0 && body.split(|&byte| byte == b'&').count() > self.most_fields;
        let is_whole = !is_cut && body.len() <= self.most;
        if !is_whole || has_too_many || body[0] == b'[' || body.iter().any(is_odd) {
            return None;
        }
        Some(masked_pairs(body, &self.form))
    }

    fn json(&self, body: Vec<u8>, is_cut: bool) -> Option<Vec<u8>> {
        if self.json.is_empty() || is_cut || body.len() > self.most {
            return None;
        }
        self.json.iter().try_fold(body, |body, (path, action)| masked_json(&body, path, action).ok())
    }
}

fn is_form(shown: &Exchange) -> bool {
    let media_type = shown.request.head.original(b"Content-Type").unwrap_or_default();
    let end = media_type.iter().position(|&byte| byte == b';').unwrap_or(media_type.len());
    media_type[..end].trim_ascii().eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
}

fn masked_json(body: &[u8], path: &JsonPath, action: &MaskAction) -> Result<Vec<u8>, JsonError> {
    let mut out = Vec::with_capacity(body.len());
    let mut rest = 0;
    match action {
        MaskAction::Remove => {
            for value in path.values(body, MAX_DEPTH)? {
                out.extend_from_slice(&body[rest..value.item]);
                rest = end_of_item(body, value.end, &mut out);
            }
        }
        MaskAction::Replace(new) => {
            for value in path.values(body, MAX_DEPTH)? {
                out.extend_from_slice(&body[rest..value.start]);
                write_string(new, &mut out);
                rest = value.end;
            }
        }
        // For objects and lists, it applies to the values within.
        MaskAction::Matches { regex, replacement } => {
            for found in path.find(body, MAX_DEPTH)? {
                let text = &body[found.span.clone()];
                let value = match found.is_text {
                    // Unpaired surrogates have no text to match.
                    true => serde_json::from_slice(text).map_err(|_| JsonError::Syntax(found.span.start))?,
                    false => String::from_utf8_lossy(text).into_owned(),
                };
                if let Cow::Owned(new) = regex.replace_all(value.as_bytes(), &replacement[..]) {
                    out.extend_from_slice(&body[rest..found.span.start]);
                    write_string(&new, &mut out);
                    rest = found.span.end;
                }
            }
        }
    }
    out.extend_from_slice(&body[rest..]);
    Ok(out)
}

/// Where the next item begins after a removed one, whose comma is removed as well.
fn end_of_item(body: &[u8], end: usize, out: &mut Vec<u8>) -> usize {
    let after = end + body[end..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    if body.get(after) == Some(&b',') {
        return after + 1;
    }
    out.truncate(out.trim_ascii_end().len());
    if out.last() == Some(&b',') {
        out.pop();
    }
    end
}

fn write_string(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    weir_plugin::escape::json(out, text);
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::log::capture::{Capture, REQUEST_BODY, REQUEST_BODY_OMITTED};
    use crate::log::captured::RecordWriter;
    use crate::testing::{build, exchange, refused};

    fn masked(rules: Value, head: &str) -> Exchange {
        let mask = build::<DataMask>(json!({"request": rules}));
        let mut exchange = exchange(head);
        exchange.mask_copy_for_records(|exchange, shown| {
            mask.mask(exchange, shown);
            Ok::<_, ()>(())
        });
        exchange
    }

    fn recorded(exchange: &Exchange, format: Option<Value>, flags: u8, body: Option<Vec<u8>>) -> Value {
        let format = format.as_ref().and_then(Value::as_object);
        let capture = Capture::compile(format, None, &mut Build::default()).expect("valid");
        let (mut payload, mut text) = (Vec::new(), Vec::new());
        capture.write(exchange.shown(), flags, &mut payload);
        assert!(!payload.windows(6).any(|bytes| bytes == b"secret"), "before it leaves the worker");
        let attachments = body.into_iter().map(weir_records::Attachment::new).collect();
        let record = weir_records::Record { boot: 1, sequence: 1, payload, attachments };
        RecordWriter::default().batch().json(&record, &mut text);
        serde_json::from_slice(&text).expect("JSON")
    }

    #[test]
    fn arguments_and_fields_are_masked_wherever_records_show_them() {
        let rules = json!([
            {"type": "query", "name": "card", "action": "regex", "regex": "[a-z]+-(\\d)", "value": "*$1"},
            {"type": "query", "name": "to ken", "action": "remove"},
            {"type": "header", "name": "x-key", "action": "replace", "value": "hidden"},
            {"type": "header", "name": "X-Gone", "action": "remove"},
        ]);
        let query = "a=1%2b&c%61rd=secret-1&to+ken=secret&card=none";
        let exchange = masked(
            rules,
            &format!(
                "GET /p?{query} HTTP/1.1\nHost: h\nReferer: http://h/?{query}#x\nX-Key: secret\nX-KEY: secret\nX-Gone: secret"
            ),
        );
        let shown = "a=1%2b&c%61rd=*1&card=none";
        let request = &recorded(&exchange, None, 0, None)["request"];
        assert_eq!(request["uri"], format!("/p?{shown}"));
        assert_eq!(request["url"], format!("http://h:0/p?{shown}"));
        assert_eq!(request["querystring"], json!({"a": "1%2b", "c%61rd": "*1", "card": "none"}));
        let headers = &request["headers"];
        assert_eq!(headers["referer"], format!("http://h/?{shown}#x"));
        assert_eq!((&headers["x-key"], &headers["x-gone"]), (&json!(["hidden", "hidden"]), &Value::Null));
        let format = json!({"q": "$args", "u": "$request_uri", "up": "$upstream_uri", "l": "$request", "k": "$http_x_key",
            "g": "$http_x_gone", "r": "$http_referer"});
        let record = recorded(&exchange, Some(format), 0, None);
        assert_eq!((&record["q"], &record["k"], &record["g"]), (&json!(shown), &json!("hidden, hidden"), &Value::Null));
        assert_eq!(exchange.request.query(), Some(query.as_bytes()), "the exchange itself stays");
    }

    fn body(rules: Value, media_type: &str, text: &str, is_cut: bool) -> Option<String> {
        let exchange = masked(rules, &format!("POST / HTTP/1.1\nHost: h\nContent-Type: {media_type}"));
        let body = exchange.shown().masked_body(text.as_bytes().to_vec(), is_cut);
        body.map(|body| String::from_utf8(body).expect("text"))
    }

    #[test]
    fn json_is_masked_by_path_and_the_rest_stays() {
        for (path, action, text, want) in [
            ("$.p", "remove", r#"{"p": 1, "q": 2}"#, r#"{ "q": 2}"#),
            ("$.p", "remove", r#"{"q": 2 , "p": {"a": [1]} }"#, r#"{"q": 2  }"#),
            ("$.*", "remove", r#"{"p":1,"q":[2],"r":{}}"#, "{}"),
            ("$.l[*].p", "remove", r#"{"l": [{"p": 1}, {"a": 0, "p": 2}]}"#, r#"{"l": [{}, {"a": 0}]}"#),
            ("$.p", "replace", r#"{"\u0070": "a", "p": {"b": 1}}"#, r#"{"\u0070": "\"*", "p": "\"*"}"#),
            ("$..p", "replace", r#"[{"p": 1.50}, {"x": {"p": null}}]"#, r#"[{"p": "\"*"}, {"x": {"p": "\"*"}}]"#),
            ("$", "remove", "[1]", ""),
            ("$.p", "regex", r#"{"p": "a\u0031-22", "q": 7, "p": [31]}"#, r#"{"p": "a\"*-\"*", "q": 7, "p": ["\"*"]}"#),
        ] {
            let rule = json!([{"type": "body", "body_format": "json", "name": path, "action": action, "regex": "\\d+",
                "value": "\"*"}]);
            let shown = body(rule, "application/json", text, false).expect("it is JSON");
            assert_eq!(shown, want, "{path} {action}");
            assert!(shown.is_empty() || serde_json::from_str::<Value>(&shown).is_ok(), "{shown}");
        }
    }

    #[test]
    fn forms_are_masked_by_name() {
        let rules =
            json!([{"type": "body", "body_format": "urlencoded", "name": "pin", "action": "replace", "value": "***"}]);
        let form = "application/x-www-form-urlencoded; charset=utf-8";
        assert_eq!(body(rules.clone(), form, "a=b+c&p%69n=1&pin", false).as_deref(), Some("a=b+c&p%69n=***&pin=***"));
        let many = vec!["a=1"; 101].join("&");
        for (media_type, text) in
            [("text/plain", "pin=1"), (form, r#"{"pin":1}"#), (form, "[1]"), (form, "\x01"), (form, many.as_str())]
        {
            assert_eq!(body(rules.clone(), media_type, text, false), None, "{media_type} {text}");
        }
        assert_eq!(body(rules, form, "a=1&pin=12", true), None);
    }

    #[test]
    fn p29_a_body_that_cannot_be_read_is_left_out_and_the_record_says_so() {
        let rules = json!([{"type": "body", "body_format": "json", "name": "$.p", "action": "remove"}]);
        for text in [r#"{"p": "secret""#, "secret", "p=secret", r#"{"p": "secret"} x"#, "\u{1f}\u{8b}secret"] {
            for media_type in ["application/json", "application/x-www-form-urlencoded", "text/plain"] {
                assert_eq!(body(rules.clone(), media_type, text, false), None, "{text}");
            }
        }
        assert_eq!(body(rules.clone(), "application/json", r#"{"q": 1}"#, true), None, "there is more");
        let deep = "[".repeat(1000) + &"]".repeat(1000);
        assert_eq!(body(rules.clone(), "application/json", &deep, false), None);
        let exchange = masked(rules, "POST / HTTP/1.1\nHost: h");
        let record = recorded(&exchange, None, REQUEST_BODY_OMITTED, None);
        assert_eq!(record["request"]["body_omitted"], "data-mask could not read the body");
        assert_eq!(record["request"]["body"], Value::Null);
        let record = recorded(&exchange, None, REQUEST_BODY, Some(b"{}".to_vec()));
        assert_eq!((&record["request"]["body"], &record["request"]["body_omitted"]), (&json!("{}"), &Value::Null));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (rule, want) in [
            (json!({"type": "query", "name": "a", "action": "replace"}), "request[0].value: is required"),
            (json!({"type": "query", "name": "a", "action": "regex", "value": ""}), "request[0].regex: is required"),
            (json!({"type": "body", "name": "a", "action": "remove"}), "request[0].body_format: is required"),
            (
                json!({"type": "body", "body_format": "json", "name": "a", "action": "remove"}),
                "request[0].name: is not a",
            ),
            (json!({"type": "query", "name": "a", "action": "regex", "regex": "(", "value": ""}), "request[0].regex:"),
            (
                json!({"type": "cookie", "name": "a", "action": "remove"}),
                "request[0].type: `cookie` is not an allowed value",
            ),
        ] {
            let error = refused::<DataMask>(json!({"request": [rule]}));
            assert!(error.starts_with(want), "{error}");
        }
    }
}
