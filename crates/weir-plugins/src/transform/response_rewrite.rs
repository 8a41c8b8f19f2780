use std::ops::Range;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use regex::bytes::{Captures, Regex};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_plugin::{
    AllOf, Build, CollectAll, ConfigError, Definition, Exchange, Expression, Flow, NoteKey, Phases, Plugin, Stage, Stop,
};

use crate::content::coding::Opaque;
use crate::content::streams::StreamHandling;
use crate::content::{coding, replace_response_content};
use crate::options::headers::{HeaderEdits, HeaderOptions};
use crate::options::pattern;

/// Changes the response on its way to the client: status, header fields, and the whole body.
///
/// It applies to every response of the route, including responses that the gateway or another plugin generates.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResponseRewrite {
    /// The new status, 200 to 598.
    #[schemars(range(min = 200, max = 598))]
    status_code: Option<u16>,
    /// The new body, which replaces the body of the upstream.
    body: Option<String>,
    /// `body` is encoded in base64.
    #[serde(default)]
    body_base64: bool,
    /// Header fields to add (names and values, or a list of `name: value`), set and remove, in this order; or a map of
    /// names and values, which are set. Values may contain `$variables`.
    headers: Option<HeaderOptions>,
    /// An expression over the request and the response. The response is changed only if the expression is true.
    vars: Option<Value>,
    /// Replacements in the body of the upstream, in this order. The whole body is buffered for them. Cannot be combined
    /// with `body`.
    #[serde(default)]
    filters: Vec<FilterOptions>,
    /// The largest body for `filters`, in bytes. A larger response is replaced by a response with the status 502.
    #[serde(default = "default_max_resp_body_size")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_resp_body_size: u64,
    /// What becomes of a stream (`text/event-stream`, `multipart/x-mixed-replace`) that `filters` would hold back until its
    /// end: `refuse` or `pass`.
    #[serde(default)]
    streams: StreamHandling,
}

/// A replacement in a body.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FilterOptions {
    /// The regular expression to match, without look-around and back-references.
    #[schemars(length(min = 1))]
    regex: String,
    /// The text that replaces a match; `$0` is the match, `$1`, `$2`... are its capture groups, and `$$` is a dollar
    /// sign.
    replace: String,
    /// Whether the first match (`once`) or all matches (`global`) are replaced.
    #[serde(default)]
    scope: ReplaceScope,
    /// Flags of the regular expression: `i` ignores case, `s` lets a dot match line ends, `m` lets `^` and `$` match at
    /// line ends, `x` ignores white space in the expression. `j`, `o` and `u` have no effect.
    #[serde(default = "default_options")]
    options: String,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ReplaceScope {
    #[default]
    Once,
    Global,
}

fn default_max_resp_body_size() -> u64 {
    64 << 20
}

fn default_options() -> String {
    "jo".to_owned()
}

impl Definition for ResponseRewrite {
    const NAME: &'static str = "response-rewrite";
    const PRIORITY: i32 = 899;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"response-rewrite: { status_code: 200, headers: { set: { X-Served-By: $upstream_addr }, remove: [X-Powered-By] }, vars: [[status, "==", 404]] }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if !self.filters.is_empty() && self.body.is_some() {
            build.fault("filters", "cannot be combined with `body`, which replaces the whole body");
        }
        let filter = |(index, filter): (usize, FilterOptions)| filter.compile(&format!("filters[{index}]"));
        let filters = self.filters.into_iter().enumerate().map(filter).collect_all::<Box<[BodyReplacement]>>();
        let body = match self.body {
            Some(text) if self.body_base64 => {
                let wrong = |_| ConfigError::new("body", "is not base64, as `body_base64` says");
                STANDARD.decode(text).map_err(wrong).map(Some)
            }
            Some(text) => Ok(Some(text.into_bytes())),
            None if self.body_base64 => Err(ConfigError::new("body_base64", "needs a `body`")),
            None => Ok(None),
        };
        let vars = self.vars.as_ref().map(|vars| build.condition_of_record(vars, "vars")).transpose();
        let headers = self.headers.map(|options| options.compile("headers", build)).transpose();
        let (filters, body, vars, headers) = (filters, body, vars, headers).all_of()?;
        if self.status_code.is_none() && body.is_none() && headers.is_none() && filters.is_empty() {
            build
                .warnings
                .push(ConfigError::new("", "changes nothing; give `status_code`, `headers`, `body` or `filters`"));
        }
        Ok(Arc::new(ResponseRewriter {
            status: self.status_code,
            body: body.map(Vec::into_boxed_slice),
            headers: headers.unwrap_or_default(),
            vars,
            filters,
            limit: self.max_resp_body_size,
            streams: self.streams,
            applied: NoteKey::unique(),
        }))
    }
}

struct ResponseRewriter {
    status: Option<u16>,
    body: Option<Box<[u8]>>,
    headers: HeaderEdits,
    vars: Option<Expression>,
    filters: Box<[BodyReplacement]>,
    limit: u64,
    streams: StreamHandling,
    /// The note of an exchange whose expression was true: it must not be evaluated again, because the status may have
    /// changed since.
    applied: NoteKey,
}

struct BodyReplacement {
    regex: Arc<Regex>,
    replacement: Vec<u8>,
    scope: ReplaceScope,
    /// Whether the expression contains `$`, which in PCRE also matches before a last line end.
    is_anchored: bool,
}

impl BodyReplacement {
    fn apply(&self, content: &[u8]) -> Vec<u8> {
        let short = content.strip_suffix(b"\n").filter(|_| self.is_anchored);
        let Some(short) = short else {
            let most = if self.scope == ReplaceScope::Once { 1 } else { 0 };
            return self.regex.replacen(content, most, self.replacement.as_slice()).into_owned();
        };
        let (mut out, mut copied, mut from) = (Vec::new(), 0, 0);
        while let Some((found, range)) = self.next(content, short, from) {
            out.extend_from_slice(&content[copied..range.start]);
            found.expand(&self.replacement, &mut out);
            copied = range.end;
            // After an empty match, the search continues one byte later.
            from = if range.is_empty() { range.end + 1 } else { range.end };
            if self.scope == ReplaceScope::Once || from > content.len() {
                break;
            }
        }
        out.extend_from_slice(&content[copied..]);
        out
    }

    /// The first match in the content, or in the content without its last line end.
    fn next<'c>(&self, content: &'c [u8], short: &'c [u8], from: usize) -> Option<(Captures<'c>, Range<usize>)> {
        let at = |text: &'c [u8]| {
            let found = (from <= text.len()).then(|| self.regex.captures_at(text, from)).flatten()?;
            let range = found.get(0).expect("group 0 is the match").range();
            Some((found, range))
        };
        match (at(content), at(short)) {
            (Some(whole), Some(cut)) => Some(if cut.1.start < whole.1.start { cut } else { whole }),
            (whole, cut) => whole.or(cut),
        }
    }
}

/// Whether an expression has a `$` that is neither escaped nor in a class.
fn asks_for_end(regex: &str) -> bool {
    let (mut is_escaped, mut in_class) = (false, false);
    regex.bytes().any(|byte| {
        let escaped = std::mem::take(&mut is_escaped);
        match byte {
            _ if escaped => {}
            b'\\' => is_escaped = true,
            b'[' => in_class = true,
            b']' => in_class = false,
            b'$' => return !in_class,
            _ => {}
        }
        false
    })
}

impl FilterOptions {
    fn compile(self, path: &str) -> Result<BodyReplacement, ConfigError> {
        let flags: String = self.options.chars().filter(|letter| "ismx".contains(*letter)).collect();
        let known = match self.options.chars().find(|letter| !"ismxjou".contains(*letter)) {
            None => Ok(()),
            Some(letter) => {
                let problem = format!("has the letter `{letter}`, which is none of `i`, `s`, `m`, `x`, `j`, `o`, `u`");
                Err(ConfigError::new(format!("{path}.options"), problem))
            }
        };
        let place = format!("{path}.regex");
        let is_anchored = !flags.contains('m') && asks_for_end(&self.regex);
        let text = if flags.is_empty() { self.regex } else { format!("(?{flags}){}", self.regex) };
        let ((), regex) = (known, pattern::compile(&text, false, &place)).all_of()?;
        Ok(BodyReplacement {
            regex,
            replacement: pattern::braced(&self.replace).into_bytes(),
            scope: self.scope,
            is_anchored,
        })
    }
}

impl Plugin for ResponseRewriter {
    fn phases(&self) -> Phases {
        match self.filters.is_empty() {
            true => Phases::RESPONSE,
            false => Phases::REQUEST.and(Phases::RESPONSE).and(Phases::RESPONSE_BODY),
        }
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        coding::ask_for_plain(exchange);
        Ok(Flow::Continue)
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        if self.vars.as_ref().is_some_and(|vars| !vars.holds(exchange)) {
            return Ok(());
        }
        if !self.filters.is_empty() {
            exchange.notes.write(self.applied, [1, 0, 0]);
        }
        if let Some(status) = self.status {
            exchange.response.set_status(status);
        }
        let end = self.body.as_ref().map(|body| replace_response_content(exchange, body));
        // A value is invalid only because of the content of a variable. That is no reason to lose the response.
        self.headers.apply_valid(exchange, |exchange| &mut exchange.response.head);
        end.map_or(Ok(()), Err)
    }

    fn whole_response(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        match exchange.notes.read(self.applied) {
            Some(_) => self.streams.whole(ResponseRewrite::NAME, exchange, self.limit),
            None => Ok(None),
        }
    }

    fn on_response_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<(), Stop> {
        let plain = coding::plain(&exchange.response.head, body, self.limit).map_err(Opaque::stop_of_response)?;
        let mut content = plain.into_owned();
        for replacement in &self.filters {
            content = replacement.apply(&content);
        }
        if content != *body {
            exchange.forget_response_content();
            *body = content;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{body, build, get, refused, sent};

    fn answered(status: u16) -> Exchange {
        let mut exchange = get("/?a=1");
        exchange.response.set_status(status);
        exchange.response.head.add(b"Content-Type", b"text/html").expect("valid");
        exchange.response.head.add(b"ETag", b"\"1\"").expect("valid");
        exchange
    }

    #[test]
    fn status_fields_and_body_are_replaced() {
        let options = json!({"status_code": 209, "body": "hi\n",
            "headers": {"set": {"X-A": "$status"}, "add": ["X-B: 1", "X-B:2"], "remove": ["Content-Type"]}});
        let mut exchange = answered(200);
        assert_eq!(build::<ResponseRewrite>(options).on_response(&mut exchange), Err(Stop::Answered));
        assert_eq!((exchange.response.status, body(&exchange)), (209, "hi\n"));
        assert_eq!(
            (sent(&exchange, "x-a"), sent(&exchange, "content-type"), sent(&exchange, "etag")),
            (Some("209"), None, None)
        );
        assert_eq!(exchange.response.head.values(b"x-b").collect::<Vec<_>>(), [b"1", b"2"]);
    }

    #[test]
    fn only_where_the_expression_holds() {
        let step = build::<ResponseRewrite>(json!({"vars": [["status", "==", 404]], "headers": {"X-A": "1"}}));
        let (mut found, mut missing) = (answered(200), answered(404));
        assert_eq!(step.on_response(&mut found), Ok(()));
        assert_eq!(step.on_response(&mut missing), Ok(()));
        assert_eq!((sent(&found, "x-a"), sent(&missing, "x-a")), (None, Some("1")));
        assert_eq!(sent(&missing, "etag"), Some("\"1\""), "the body is the upstream's");
    }

    #[test]
    fn a_value_that_would_break_its_line_is_left_out_and_the_response_stays() {
        let headers = json!({"set": {"X-A": "$arg_a", "X-B": "b"}, "add": {"X-C": "$arg_a"}});
        let mut exchange = get("/?a=x%0d%0aSet-Cookie:%20b%00");
        exchange.response.set_status(200);
        assert_eq!(build::<ResponseRewrite>(json!({"headers": headers})).on_response(&mut exchange), Ok(()));
        assert_eq!((sent(&exchange, "x-a"), sent(&exchange, "x-b"), sent(&exchange, "x-c")), (None, Some("b"), None));
    }

    #[test]
    fn streams_are_refused_or_pass() {
        for (streams, want) in [("refuse", Err(Stop::HeldStream)), ("pass", Ok(None))] {
            let options = json!({"filters": [{"regex": "a", "replace": "b"}], "streams": streams});
            let step = build::<ResponseRewrite>(options);
            let mut exchange = get("/");
            exchange.response.set_status(200);
            exchange.response.head.add(b"Content-Type", b"Text/Event-Stream; charset=utf-8").expect("valid");
            step.on_response(&mut exchange).expect("the head passes");
            assert_eq!(step.whole_response(&mut exchange), want, "{streams}");
        }
    }

    /// The new body; `None` if the plugin does not want to see the body.
    fn replaced(options: Value, exchange: &mut Exchange, content: &str) -> Option<String> {
        let step = build::<ResponseRewrite>(options);
        step.on_response(exchange).expect("the head passes");
        match step.whole_response(exchange).expect("it is asked") {
            Some(_) => {
                let mut content = content.as_bytes().to_vec();
                step.on_response_body(exchange, &mut content).expect("it is changed");
                Some(String::from_utf8(content).expect("text"))
            }
            _ => None,
        }
    }

    #[test]
    fn parts_of_a_body_are_replaced() {
        let options = json!({"status_code": 200, "vars": [["status", "==", 404]], "filters": [
            {"regex": "(H)ello", "replace": "$1a$$$x${1}", "options": "ijo"},
            {"regex": "l", "replace": "<$0>", "scope": "global"},
        ]});
        let mut exchange = answered(404);
        let content = replaced(options.clone(), &mut exchange, "hello hello");
        assert_eq!(content.as_deref(), Some("ha$$xh he<l><l>o"));
        assert_eq!((exchange.response.status, sent(&exchange, "etag")), (200, None));
        assert_eq!(replaced(options, &mut answered(200), "hello"), None);
    }

    #[test]
    fn u18_the_end_is_before_a_last_line_end_too() {
        for (regex, scope, content, want) in [
            ("hello$", "once", "hello\n", "<>\n"),
            ("hello$", "once", "hello", "<>"),
            ("hello$", "once", "hello\n\n", "hello\n\n"),
            (".*$", "once", "hello\n", "<>\n"),
            ("(?s).*$", "once", "hello\n", "<>"),
            ("o\\$", "once", "o$\n", "<>\n"),
            ("l|o$", "global", "hello\n", "he<><><>\n"),
            ("$", "global", "a\n", "a<>\n<>"),
        ] {
            let options = json!({"filters": [{"regex": regex, "replace": "<>", "scope": scope}]});
            assert_eq!(replaced(options, &mut answered(200), content).as_deref(), Some(want), "{regex} {content:?}");
        }
    }

    #[test]
    fn digests_of_the_old_body_are_removed() {
        let digests = ["content-md5", "content-digest", "repr-digest", "digest"];
        let with_digests = || {
            let mut exchange = answered(200);
            for name in digests {
                exchange.response.head.add(name.as_bytes(), b"sha-256=:x:").expect("valid");
            }
            exchange
        };
        let mut filtered = with_digests();
        replaced(json!({"filters": [{"regex": "h", "replace": "H"}]}), &mut filtered, "hello")
            .expect("it wants the body");
        let mut replaced = with_digests();
        let step = build::<ResponseRewrite>(json!({"body": "new"}));
        assert_eq!(step.on_response(&mut replaced), Err(Stop::Answered));
        for name in digests {
            assert_eq!((sent(&filtered, name), sent(&replaced, name)), (None, None), "{name}");
        }
    }

    #[test]
    fn an_empty_body_needs_no_decoding() {
        let mut exchange = answered(200);
        exchange.response.head.add(b"Content-Encoding", b"gzip").expect("valid");
        let content = replaced(json!({"filters": [{"regex": "x", "replace": "y"}]}), &mut exchange, "");
        assert_eq!(content.as_deref(), Some(""));
        assert_eq!(sent(&exchange, "content-encoding"), Some("gzip"), "as the upstream said");
    }

    #[test]
    fn a_body_that_stays_the_same_keeps_its_tag() {
        let options = json!({"filters": [{"regex": "x", "replace": "y"}]});
        let mut exchange = answered(200);
        assert_eq!(replaced(options, &mut exchange, "hello").as_deref(), Some("hello"));
        assert_eq!(sent(&exchange, "etag"), Some("\"1\""));
    }

    #[test]
    fn a_body_can_be_binary() {
        let mut exchange = answered(200);
        let step = build::<ResponseRewrite>(json!({"body": "/wA=", "body_base64": true}));
        assert_eq!(step.on_response(&mut exchange), Err(Stop::Answered));
        assert_eq!(exchange.body, [0xff, 0]);
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"body": "%", "body_base64": true}), "body: is not base64"),
            (json!({"body_base64": true}), "body_base64: needs a `body`"),
            (json!({"vars": [["status"]]}), "vars[0]: rule too short"),
            (json!({"headers": {"add": ["X-A"]}}), "headers.add[0]: is not `name: value`"),
            (
                json!({"headers": {"set": {"Transfer-Encoding": "x"}}}),
                "headers.set.Transfer-Encoding: controls the framing",
            ),
            (
                json!({"filters": [{"regex": "a", "replace": ""}], "body": "b"}),
                "filters: cannot be combined with `body`",
            ),
            (json!({"filters": [{"regex": "(", "replace": ""}]}), "filters[0].regex: is not a regular expression"),
            (json!({"filters": [{"regex": "a", "replace": "", "options": "d"}]}), "filters[0].options: has the letter"),
        ] {
            let error = refused::<ResponseRewrite>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
