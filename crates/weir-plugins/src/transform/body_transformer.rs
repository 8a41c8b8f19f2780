use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::proto::{Method, field};
use weir_plugin::{AllOf, Build, ConfigError, Definition, Exchange, Flow, Phases, Plugin, Stage, Stop};

use crate::answer::RefusalResponse;
use crate::content::coding::{self, Opaque};
use crate::content::streams::StreamHandling;
use crate::content::{content_type, forget_request_content};
use crate::rate_limited_log::RateLimitedLog;

pub(crate) mod decoding;
mod expression;
mod fault;
mod template;

use decoding::InputFormat;
pub use expression::{Scene, SceneVariables};
pub use template::BodyTemplate;

/// Makes new bodies of the bodies of requests and responses, by templates: JSON of XML, for example, or the reverse.
///
/// A template is text in which `{{name}}` is a member of the body, escaped for HTML (also `/`), and `{*name*}` the same unchanged.
/// `{{order.items[1].name}}` is a member of members, and `context["odd name"]` one with another name. `{% if a == "b" then %}`,
/// `{% elseif ... then %}`, `{% else %}`, `{% for i, item in ipairs(items) do %}`, `{% for name, value in pairs(a) do %}`,
/// `{% local a = b %}` and `{% end %}` are as in Lua, and so are the operators of expressions, without `^`. `{# ... #}` is a comment.
/// `_body` is the body as text, `_ctx.var.NAME` a variable, `_escape_json(a)` JSON (with quotes), and `_escape_xml(a)` text of XML, which
/// `{{_escape_xml(a)}}` does not escape again. The other functions are `tostring`, `tonumber`, `type`, `string.lower`, `string.upper`
/// and, for texts without patterns, `string.gsub`. Other Lua is refused with its place. What a JSON body has as `null` is `nil`.
///
/// XML becomes objects: an element with text only is this text; others have their elements as members (those with the same name as a
/// list), their attributes in `_attr`, and their texts as `[1]`, `[2]` and so on; prefixes of names are left out.
///
/// The query of a GET or HEAD is its input (`args`), and the result its body. `Content-Type` stays as it is, unless `content_type` replaces it. A
/// request whose body is not of its format, or of which the template cannot be made, is answered with 400, and such a response is
/// replaced by 502. Responses that the gateway itself gives are not changed, nor the list of a batch.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BodyTransformer {
    /// What becomes of the bodies of requests.
    request: Option<TransformOptions>,
    /// What becomes of the bodies of responses.
    response: Option<TransformOptions>,
    /// The largest body of a request, before, decoded, and after, in bytes. A larger request is refused with 413, and one that would
    /// become larger with 400.
    #[serde(default = "default_max_body_size")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_req_body_size: u64,
    /// The same for a response, which is replaced by a response with the status 502.
    #[serde(default = "default_max_body_size")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_resp_body_size: u64,
    /// What becomes of a stream (`text/event-stream`, `multipart/x-mixed-replace`) that `response` would hold back until its end:
    /// `refuse` or `pass`. Not in APISIX.
    #[serde(default)]
    streams: StreamHandling,
}

/// A template, and what it is applied to.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TransformOptions {
    /// The format of the body: `xml`, `json`, `encoded` (a form), `args` (the query of the request), `plain` (only `_body`) or `multipart`
    /// (a form in parts, of which those that are not UTF-8 are left out). Without it, that of the `Content-Type`; for other types, there is
    /// only `_body`.
    input_format: Option<InputFormat>,
    /// The template.
    #[schemars(length(min = 1))]
    template: String,
    /// `template` is encoded in base64. A template that is base64 of a template is decoded without it, too.
    #[serde(default)]
    template_is_base64: bool,
    /// The new `Content-Type`. Not in APISIX.
    content_type: Option<String>,
}

fn default_max_body_size() -> u64 {
    64 << 20
}

impl Definition for BodyTransformer {
    const NAME: &'static str = "body-transformer";
    const PRIORITY: i32 = 1080;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = r#"body-transformer: { request: { input_format: json, template: "<name>{{_escape_xml(name)}}</name>", content_type: text/xml } }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if self.request.is_none() && self.response.is_none() {
            build.fault("", "changes nothing; give `request` or `response`");
        }
        let transformer = |options: Option<TransformOptions>, place: &str, limit: u64| {
            options.map(|options| options.compile(place, limit)).transpose()
        };
        let request = transformer(self.request, "request", self.max_req_body_size);
        let response = transformer(self.response, "response", self.max_resp_body_size);
        let (request, response) = (request, response).all_of()?;
        Ok(Arc::new(Transformers { request, response, streams: self.streams, log: RateLimitedLog::default() }))
    }
}

impl TransformOptions {
    fn compile(self, place: &str, limit: u64) -> Result<Transformer, ConfigError> {
        let wrong = |option: &str, problem: String| ConfigError::new(format!("{place}.{option}"), problem);
        let content_type = match self.content_type {
            Some(value) if !field::is_value(value.as_bytes()) => {
                Err(wrong("content_type", "is no value of a header field".to_owned()))
            }
            value => Ok(value),
        };
        let template = match (STANDARD.decode(&self.template).ok().map(String::from_utf8), self.template_is_base64) {
            (Some(Ok(text)), true) => Ok(text),
            (_, true) => Err(wrong("template", "is not base64 of UTF-8, as `template_is_base64` says".to_owned())),
            (Some(Ok(text)), false) if text.contains(['{', '<']) => Ok(text),
            (_, false) => Ok(self.template),
        };
        let template = template.and_then(|text| {
            BodyTemplate::parse(&text).map_err(|error| wrong("template", format!("{error} (in the template)")))
        });
        let (content_type, template) = (content_type, template).all_of()?;
        Ok(Transformer { format: self.input_format, template, content_type, limit })
    }
}

/// Whether the response is that of an upstream, and not one of the gateway, or a batch of responses.
fn is_from_upstream(exchange: &Exchange) -> bool {
    let is_batch = exchange.responder().is_some_and(|responder| responder.asks_gateway());
    !exchange.is_answered_here() && !is_batch
}

struct Transformers {
    request: Option<Transformer>,
    response: Option<Transformer>,
    streams: StreamHandling,
    log: RateLimitedLog,
}

struct Transformer {
    /// `None`: by the `Content-Type`.
    format: Option<InputFormat>,
    template: BodyTemplate,
    content_type: Option<String>,
    limit: u64,
}

impl Transformer {
    /// The new body.
    ///
    /// # Errors
    /// Why there is none, for the client or the error log.
    fn made(
        &self,
        exchange: &Exchange,
        plain: &[u8],
        format: Option<InputFormat>,
        kind: &[u8],
    ) -> Result<Vec<u8>, String> {
        let root = match format.or(self.format).or_else(|| InputFormat::of(kind)) {
            None => Value::Object(Map::new()),
            Some(InputFormat::Args) => {
                let query = exchange.request.client_query().unwrap_or_default();
                InputFormat::Args.read(query, kind).map_err(|problem| format!("the query {problem}"))?
            }
            Some(format) => format.read(plain, kind).map_err(|problem| format!("the body {problem}"))?,
        };
        let body = match str::from_utf8(plain) {
            _ if !self.template.uses_body => Value::Null,
            Ok(text) => Value::from(text),
            Err(_) => return Err("the body is not UTF-8".to_owned()),
        };
        let most = usize::try_from(self.limit).unwrap_or(usize::MAX);
        self.template
            .render(&mut Scene::new(&root, &body, SceneVariables::Exchange(exchange), most))
            .map(String::into_bytes)
    }
}

impl Plugin for Transformers {
    fn phases(&self) -> Phases {
        let of_request = self.request.as_ref().map(|_| Phases::REQUEST_BODY);
        let of_response = self.response.as_ref().map(|_| Phases::RESPONSE_BODY);
        let of_response = of_response.map(|body| body.and(Phases::RESPONSE));
        of_request.into_iter().chain(of_response).fold(Phases::REQUEST, Phases::and)
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        if self.response.is_some() {
            coding::ask_for_plain(exchange);
            // The validators of a reader are not those of the content before it is transformed. In a PUT they protect what is there.
            if matches!(exchange.request.client_method(), Method::Get | Method::Head) {
                for name in [&b"If-None-Match"[..], b"If-Modified-Since"] {
                    exchange.request.head.remove(name);
                }
            }
        }
        let Some(own) = self.request.as_ref().filter(|_| !exchange.request.upgrade) else { return Ok(Flow::Continue) };
        if own.format.is_none() {
            content_type::of_request(exchange)?;
        }
        // The template makes a body for a request without one, too. RFC 9110 §9.3.8: a TRACE has none.
        let is_empty = !exchange.request.framing.has_body() && exchange.request_body().is_none();
        if is_empty && exchange.request.method_name() != b"TRACE" {
            exchange.set_request_body(Vec::new());
        }
        Ok(Flow::Continue)
    }

    fn whole_request(&self, _: &mut Exchange) -> Result<Option<u64>, Stop> {
        Ok(self.request.as_ref().map(|own| own.limit))
    }

    fn on_request_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<Flow<'static>, Stop> {
        let Some(own) = &self.request else { return Ok(Flow::Continue) };
        let made = {
            let head = &exchange.request.head;
            let plain = coding::plain(head, body, own.limit).map_err(|opaque| Stop::Respond(opaque.status()))?;
            let asks_only = matches!(exchange.request.client_method(), Method::Get | Method::Head);
            let format = asks_only.then_some(InputFormat::Args);
            // `proxy-rewrite` may have set that of the result already.
            own.made(exchange, &plain, format, head.original(b"content-type").unwrap_or_default())
        };
        *body = match made {
            Ok(made) => made,
            Err(problem) => {
                let text = format!("body-transformer: {problem}");
                return Err(RefusalResponse::new(400, "message", &text).send(exchange));
            }
        };
        forget_request_content(exchange);
        if let Some(kind) = &own.content_type {
            exchange.request.head.set(b"Content-Type", kind.as_bytes()).map_err(|_| Stop::Internal)?;
        }
        Ok(Flow::Continue)
    }

    /// A response to HEAD, and one with 304, has the fields that the transformed content would have.
    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let Some(own) = self.response.as_ref().filter(|_| is_from_upstream(exchange)) else { return Ok(()) };
        if exchange.request.client_method() != Method::Head && exchange.response.status != 304 {
            return Ok(());
        }
        exchange.forget_response_content();
        if let Some(kind) = &own.content_type {
            exchange.response.head.set(b"Content-Type", kind.as_bytes()).map_err(|_| Stop::Internal)?;
        }
        Ok(())
    }

    fn whole_response(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        match &self.response {
            Some(own) if is_from_upstream(exchange) => self.streams.whole(BodyTransformer::NAME, exchange, own.limit),
            _ => Ok(None),
        }
    }

    fn on_response_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<(), Stop> {
        let Some(own) = &self.response else { return Ok(()) };
        let made = {
            let head = &exchange.response.head;
            let plain: Cow<'_, [u8]> = coding::plain(head, body, own.limit).map_err(Opaque::stop_of_response)?;
            own.made(exchange, &plain, None, head.original(b"content-type").unwrap_or_default())
        };
        match made {
            Ok(made) => *body = made,
            Err(problem) => {
                let route = exchange.route.as_ref().map_or("", |route| &route.route_id);
                self.log.error(format_args!(
                    "body-transformer replaces a response of the route `{route}` with the status {} by a 502: {problem}",
                    exchange.response.status
                ));
                return Err(Stop::Respond(502));
            }
        }
        exchange.forget_response_content();
        if let Some(kind) = &own.content_type {
            exchange.response.head.set(b"Content-Type", kind.as_bytes()).map_err(|_| Stop::Internal)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{body, build, exchange, get, refused, sent};

    /// The new body of a request, or the refusal.
    fn made(options: Value, head: &str, content: &str) -> Result<(String, Exchange), String> {
        let step = build::<BodyTransformer>(options);
        let mut exchange = exchange(head);
        let mut content = content.as_bytes().to_vec();
        let end = step.on_request(&mut exchange).map(drop).and_then(|()| {
            assert!(step.whole_request(&mut exchange).is_ok_and(|limit| limit.is_some()));
            step.on_request_body(&mut exchange, &mut content).map(drop)
        });
        match end {
            Ok(()) => Ok((String::from_utf8(content).expect("text"), exchange)),
            Err(Stop::Answered) => Err(format!("{} {}", exchange.response.status, body(&exchange))),
            Err(stop) => Err(format!("{stop:?}")),
        }
    }

    #[test]
    fn requests_are_transformed() {
        let post = "POST /a?q=1 HTTP/1.1\nHost: h\nContent-Length: 1\nDigest: x\nContent-Type: ";
        let world = json!({"request": {"template": "{\"foo\":\"{{name .. \" world\"}}\",\"bar\":{{age+10}}}"}});
        let want = r#"{"foo":"hello world","bar":30}"#;
        for (kind, content) in [
            ("application/json", r#"{"name":"hello","age":20}"#),
            ("application/x-www-form-urlencoded", "name=hello&age=20"),
            ("text/xml", "<name>hello</name>"),
            (
                "multipart/form-data; boundary=b",
                "--b\r\nContent-Disposition: form-data; name=name\r\n\r\nhello\r\n--b--",
            ),
        ] {
            let options = match kind {
                "text/xml" | "multipart/form-data; boundary=b" => {
                    json!({"request": {"template": "{\"foo\":\"{{name}} world\",\"bar\":30}"}})
                }
                _ => world.clone(),
            };
            let (text, exchange) = made(options, &format!("{post}{kind}"), content).expect(kind);
            assert_eq!((text.as_str(), exchange.request.head.value(b"digest")), (want, None), "{kind}");
            assert_eq!(exchange.request.head.value(b"content-type"), Some(kind.as_bytes()));
        }
        let args = json!({"request": {"template": "{{q}}", "content_type": "text/a"}});
        assert_eq!(made(args.clone(), "HEAD /a?q=1 HTTP/1.1\nHost: h", "").expect("made").0, "1");
        let (text, exchange) = made(args, "GET /a?q=1 HTTP/1.1\nHost: h", "").expect("made");
        assert_eq!((text.as_str(), exchange.request_body()), ("1", Some(&b""[..])));
        assert_eq!(exchange.request.head.value(b"content-type"), Some(&b"text/a"[..]));
        let plain = json!({"request": {"template": "e3tfYm9keX19", "template_is_base64": true}});
        assert_eq!(made(plain.clone(), &format!("{post}image/png"), "x").expect("made").0, "x");
        let by_itself = json!({"request": {"template": plain["request"]["template"]}});
        assert_eq!(made(by_itself, &format!("{post}text/plain"), "x").expect("made").0, "x");
    }

    #[test]
    fn requests_that_cannot_be_transformed_are_refused() {
        let post = "POST / HTTP/1.1\nHost: h\nContent-Length: 1\nContent-Type: application/json";
        let options = |template: &str| json!({"request": {"template": template}, "max_req_body_size": 20});
        for (template, content, want) in [
            ("x", "{", "400 {\"message\":\"body-transformer: the body is no JSON"),
            ("{{a.b.c}}", "{}", "400 {\"message\":\"body-transformer: line 1 of the template: `a` is a nil"),
            (
                "{{a}}{{a}}",
                "{\"a\": \"0123456789a\"}",
                "400 {\"message\":\"body-transformer: the template makes more than 20",
            ),
        ] {
            let refusal = made(options(template), post, content).expect_err(template);
            assert!(refusal.starts_with(want), "{refusal}");
        }
        let coded = format!("{post}\nContent-Encoding: zstd");
        assert_eq!(made(options("x"), &coded, "x").expect_err("unknown coding"), "Respond(415)");
        let two = format!("{post}\nContent-Type: text/xml");
        assert!(made(options("x"), &two, "x").expect_err("ambiguous").starts_with("400"));
    }

    #[test]
    fn responses_are_transformed() {
        let step = build::<BodyTransformer>(
            json!({"response": {"input_format": "xml", "template": "{{a.b}} {{_ctx.var.status}}", "content_type": "text/plain"}}),
        );
        let mut exchange = get("/");
        exchange.request.head.add(b"Accept-Encoding", b"gzip").expect("valid");
        assert!(step.on_request(&mut exchange).is_ok());
        assert_eq!((exchange.request.head.value(b"accept-encoding"), exchange.request_body()), (None, None));
        exchange.response.set_status(200);
        exchange.upstream.status = 200;
        exchange.response.head.add(b"Content-Type", b"text/xml").expect("valid");
        exchange.response.head.add(b"ETag", b"\"1\"").expect("valid");
        assert_eq!(step.whole_response(&mut exchange), Ok(Some(64 << 20)));
        let mut content = b"<a><b>1</b></a>".to_vec();
        assert_eq!(step.on_response_body(&mut exchange, &mut content), Ok(()));
        assert_eq!((content.as_slice(), sent(&exchange, "etag")), (&b"1 200"[..], None));
        assert_eq!(sent(&exchange, "content-type"), Some("text/plain"));
        let mut wrong = b"<a>".to_vec();
        assert_eq!(step.on_response_body(&mut exchange, &mut wrong), Err(Stop::Respond(502)));
        exchange.upstream.status = 0;
        assert_eq!(step.whole_response(&mut exchange), Ok(None), "the gateway's own");
    }

    #[test]
    fn responses_without_content_have_the_fields_of_a_transformed_one() {
        let options = json!({"response": {"input_format": "xml", "template": "{{a}}", "content_type": "text/plain"}});
        let step = build::<BodyTransformer>(options);
        for (method, status, want) in [
            ("HEAD", 200, (None, "text/plain")),
            ("GET", 304, (None, "text/plain")),
            ("GET", 200, (Some("\"1\""), "text/xml")),
        ] {
            let mut exchange = exchange(&format!("{method} / HTTP/1.1\nHost: h\nIf-None-Match: \"1\""));
            assert!(step.on_request(&mut exchange).is_ok());
            assert_eq!(exchange.request.head.value(b"if-none-match"), None);
            let mut put = super::tests::exchange("PUT / HTTP/1.1\nHost: h\nIf-None-Match: *");
            assert!(step.on_request(&mut put).is_ok());
            assert_eq!(put.request.head.value(b"if-none-match"), Some(&b"*"[..]));
            exchange.response.set_status(status);
            exchange.upstream.status = status;
            exchange.response.head.add(b"Content-Type", b"text/xml").expect("valid");
            exchange.response.head.add(b"ETag", b"\"1\"").expect("valid");
            assert_eq!(step.on_response(&mut exchange), Ok(()));
            assert_eq!(
                (sent(&exchange, "etag"), sent(&exchange, "content-type").unwrap_or_default()),
                want,
                "{method} {status}"
            );
        }
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "changes nothing; give `request` or `response`"),
            (json!({"request": {}}), "request: the option `template` is missing"),
            (
                json!({"request": {"template": "a\n{{ ngx.now() }}"}}),
                "request.template: line 2, column 4: `ngx` of Lua is not supported",
            ),
            (json!({"response": {"template": "{", "template_is_base64": true}}), "response.template: is not base64"),
            (json!({"request": {"template": "a", "input_format": "yaml"}}), "request.input_format"),
            (json!({"request": {"template": "a", "content_type": "a\nb"}}), "request.content_type: is no value"),
        ] {
            let error = refused::<BodyTransformer>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
