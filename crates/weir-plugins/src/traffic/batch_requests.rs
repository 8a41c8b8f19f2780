use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use weir_plugin::proto::Method;
use weir_plugin::proto::head::reason;
use weir_plugin::{
    AnswersInPlace, Build, ClientGateway, CollectAll, ConfigError, Content, Definition, Exchange, Flow, HasMetadata,
    Held, InnerRequest, Plugin, PluginMetadata, Reply, ReplyHead, Responder, ResponderRequest, Responding, Stage, Stop,
    UpstreamAnswer,
};

use crate::answer::RefusalResponse;
use crate::content::content_type;
use crate::options::headers::header_name;

mod batch;

use batch::{BatchRules, OtherHost, RequestBatch};

/// Answers a POST whose body has several requests with the responses to all of them, so that clients far away wait for one answer.
///
/// The body is JSON, and so is its `Content-Type`: `{"pipeline": [{"method": "GET", "path": "/a"}, ...]}`; `headers` and `query` beside
/// `pipeline` or in a request, and `body` in a request, are optional. Each request is served as if the client had sent it by itself on a
/// connection of its own, one after the other: a route is chosen and all its plugins run, for the address and the certificate of the
/// client, and it is counted and logged by itself. The response is a list of `{"status": 200, "reason": "OK", "headers": {}, "body": ""}`,
/// in the order of the requests. A body that is not UTF-8 is in `body_base64`. `timeout` beside `pipeline` is for all requests together,
/// in milliseconds; those that are not answered by then have the status 504, and the last that was begun may have taken effect. A batch cannot contain a batch, nor the methods `CONNECT` and
/// `TRACE`. The limits are in the plugin's metadata.
///
/// A request has the header fields that the client has sent with the batch, and `headers` replace them. Those that describe the content,
/// `Accept-Encoding`, `Range`, conditions (`If-...`) and those of the connection are left out. What plugins of the batch's route add to
/// its request or remove from it does not hold for the requests in it. A request whose `headers` name another `Host` than the batch
/// has the status 403 in place of a response, since a page could otherwise read other sites from the address of its visitor. With
/// `other_hosts` in the metadata it is served, with the client's address and certificate and without the fields sent with the batch, so
/// that no credentials reach another site.
///
/// `headers` never set what browsers and proxies tell about the client: `Forwarded`, `X-Forwarded-...`, `X-Real-IP`, `X-Original-URL` and
/// `X-Rewrite-URL`; `Via`, `CDN-Loop`, `Origin`, `Referer`, `Sec-...`; `CF-...`, `X-Amzn-...`, `X-SSL-Client-...`, `Client-Cert`,
/// `Client-Cert-Chain`, `True-Client-IP`, `X-Client-IP`, `X-Cluster-Client-IP`, `Fastly-Client-IP`, `X-Azure-ClientIP`; and the
/// `protected_headers` of the metadata. There, the fields sent with the batch count for all its requests. `Set-Cookie` is left out of
/// the list, since scripts could read cookies there that are not meant for them.
///
/// Records of the batch have no bodies, whatever their logger includes: each request is in a record of its own, with the masks of its route.
///
/// A proxy in front sees only the batch: what it checks or removes by path or by field does not hold for the requests in it. A page of
/// another site that `cors` allows to read the batch reads all responses in it, whatever `cors` says on their routes.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchRequests {}

/// The limits of all batches.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BatchLimits {
    /// The largest body of a batch, in bytes. A larger one is answered with 413.
    #[schemars(range(min = 1, max = 67_108_864))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_body_size: usize,
    /// The maximum number of requests in a batch. A batch with more is answered with 400.
    #[schemars(range(min = 1, max = 1000))]
    max_pipeline_items: usize,
    /// The largest response to a request of a batch, in bytes, with its fields and as it is written in the list. In place of a larger one is
    /// the status 502. Not in APISIX.
    #[schemars(range(min = 1, max = 67_108_864))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_response_size: usize,
    /// The largest list of responses, in bytes. The requests that come after it has become larger are not served: in place of their
    /// responses is the status 503. Not in APISIX.
    #[schemars(range(min = 1, max = 1_073_741_824))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_total_response_size: usize,
    /// The time for all requests of a batch together, in milliseconds, if the batch has no `timeout`, or a longer one. Not in
    /// APISIX.
    #[schemars(range(min = 1, max = 3_600_000))]
    #[schemars(extend("x-weir-unit" = "ms"))]
    max_timeout: u64,
    /// Names of more header fields that requests in a batch cannot set: those that a proxy in front of the gateway sets, such as
    /// `X-Authenticated-User`, if upstreams trust them. Not in APISIX.
    #[schemars(length(max = 100))]
    protected_headers: Vec<String>,
    /// Serves requests of a batch that name another `Host` than the batch. Not in APISIX, where this is always so.
    other_hosts: bool,
}

impl Default for BatchLimits {
    fn default() -> BatchLimits {
        BatchLimits {
            max_body_size: 1 << 20,
            max_pipeline_items: 100,
            max_response_size: 1 << 20,
            max_total_response_size: 16 << 20,
            max_timeout: 30_000,
            protected_headers: Vec::new(),
            other_hosts: false,
        }
    }
}

impl PluginMetadata for BatchLimits {
    fn check(self) -> Result<(), ConfigError> {
        let names = self.protected_headers.iter().enumerate();
        names.map(|(index, name)| header_name(name, &format!("protected_headers[{index}]")).map(drop)).collect_all()
    }
}

impl Definition for BatchRequests {
    const NAME: &'static str = "batch-requests";
    const PRIORITY: i32 = 4010;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "batch-requests: {}";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(BatchEndpoint::new(build)))
    }
}

impl HasMetadata for BatchRequests {
    type Metadata = BatchLimits;
}

/// Answers batches.
pub(crate) struct BatchEndpoint(Arc<dyn Responder>);

impl BatchEndpoint {
    pub(crate) fn new(build: &Build) -> BatchEndpoint {
        BatchEndpoint(Arc::new(BatchResponder { limits: build.metadata::<BatchRequests>() }))
    }
}

impl Plugin for BatchEndpoint {
    fn answers_in_place(&self) -> AnswersInPlace {
        AnswersInPlace::SomeRequests
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        if exchange.request.method != Method::Post {
            let stop = RefusalResponse::error(405, Some("a batch is sent with POST")).send(exchange);
            exchange.response.head.add(b"Allow", b"POST").expect("constant and valid");
            return Err(stop);
        }
        // A browser sends other types to any site without asking it (forms, for example), with the cookies of that site.
        if !content_type::of_request(exchange)?.is_some_and(content_type::is_json) {
            return Err(
                RefusalResponse::error(415, Some("a batch has the Content-Type application/json")).send(exchange)
            );
        }
        exchange.answer_by(&self.0);
        Ok(Flow::Continue)
    }
}

struct BatchResponder {
    limits: BatchLimits,
}

impl Responder for BatchResponder {
    fn respond(self: Arc<Self>, request: ResponderRequest, mut content: Content, mut reply: Reply) -> Responding {
        Box::pin(async move {
            let body = content.whole(self.limits.max_body_size).await?;
            let Some(gateway) = &request.gateway else {
                return refuse(&mut reply, "a batch cannot contain a batch").await;
            };
            let batch = match RequestBatch::read(&body, self.limits.max_pipeline_items) {
                Ok(batch) => batch,
                Err(problem) => return refuse(&mut reply, &format!("bad request body: {problem}")).await,
            };
            let longest = self.limits.max_timeout;
            let patience = Duration::from_millis(batch.timeout_ms().unwrap_or(longest).min(longest));
            reply.begin(200, &[("Content-Type", "application/json")]);
            let run = BatchRun {
                gateway: &**gateway,
                client: request.client,
                limits: &self.limits,
                until: Instant::now() + patience,
            };
            let mut sent = 0;
            let rules = BatchRules { protected: &self.limits.protected_headers, other_hosts: self.limits.other_hosts };
            for (index, request) in batch.requests(gateway.carrier(), rules).enumerate() {
                let response = match request {
                    _ if sent >= self.limits.max_total_response_size => {
                        run.failed(503, "the responses before are larger than `max_total_response_size`")
                    }
                    Ok(request) => run.response(request).await,
                    Err(OtherHost) => run.failed(403, "it names another `Host` than the batch"),
                };
                reply.send(if index == 0 { b"[" } else { b"," }).await;
                reply.send(&response.text).await;
                sent += response.text.len();
            }
            reply.send(b"]").await;
            Ok(())
        })
    }

    fn asks_gateway(&self) -> bool {
        true
    }
}

async fn refuse(reply: &mut Reply, problem: &str) -> Result<(), Stop> {
    reply.begin(400, &[("Content-Type", "application/json")]);
    reply.send(format!("{}\n", json!({ "error_msg": problem })).as_bytes()).await;
    Ok(())
}

/// The response to one request, as a member of the list.
struct BatchedResponse {
    text: Vec<u8>,
    /// Counts the text as content held for the client.
    _held: Held,
}

/// The text of a response while it is written: JSON can be six times as long as what it describes.
struct ResponseText {
    bytes: Vec<u8>,
    most: usize,
    /// How large the described body is, which is held beside the text.
    raw: usize,
    held: Held,
    /// Why it could not grow.
    fault: Option<Stop>,
}

impl Write for ResponseText {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + more.len() > self.most {
            self.fault = Some(Stop::ResponseTooLarge);
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.reserve(more.len());
        if let Err(stop) = self.held.set((self.raw + self.bytes.capacity()) as u64) {
            self.fault = Some(stop.into());
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Has the requests of a batch served.
struct BatchRun<'a> {
    gateway: &'a dyn ClientGateway,
    client: IpAddr,
    limits: &'a BatchLimits,
    until: Instant,
}

impl BatchRun<'_> {
    async fn response(&self, request: InnerRequest) -> BatchedResponse {
        if Instant::now() >= self.until {
            return self.failed(504, "the time for the batch is over");
        }
        let mut content = Held::of(self.client);
        if content.set(request.content.capacity() as u64).is_err() {
            return self.failed(503, "there is no room for its body");
        }
        let mut answer = self.gateway.serve(request);
        match tokio::time::timeout_at(self.until, self.read(&mut answer)).await {
            Ok(Ok(response)) => response,
            Ok(Err(Stop::ResponseTooLarge)) => self.failed(502, "the response is larger than `max_response_size`"),
            Ok(Err(stop)) => self.failed(stop.ending().status, "the response is not complete"),
            Err(_) => self.failed(504, "the time for the batch is over"),
        }
    }

    /// Reads a whole response.
    ///
    /// # Errors
    /// It is too large, there is no room for it, or its upstream has broken it off.
    async fn read(&self, answer: &mut UpstreamAnswer) -> Result<BatchedResponse, Stop> {
        let head = answer.head().await?;
        let (mut body, mut held) = (Vec::new(), Held::of(self.client));
        while let Some(piece) = answer.next().await? {
            if body.len() + piece.len() > self.limits.max_response_size {
                return Err(Stop::ResponseTooLarge);
            }
            body.extend_from_slice(&piece);
            held.set(body.capacity() as u64)?;
        }
        let raw = body.capacity();
        let mut text = ResponseText { bytes: Vec::new(), most: self.limits.max_response_size, raw, held, fault: None };
        let written = serde_json::to_writer(&mut text, &described(&head, body));
        let ResponseText { bytes, mut held, fault, .. } = text;
        if written.is_err() {
            return Err(fault.unwrap_or(Stop::ResponseTooLarge));
        }
        held.set(bytes.capacity() as u64)?;
        Ok(BatchedResponse { text: bytes, _held: held })
    }

    fn failed(&self, status: u16, why: &str) -> BatchedResponse {
        let text = json!({ "status": status, "reason": why }).to_string().into_bytes();
        BatchedResponse { text, _held: Held::of(self.client) }
    }
}

/// A response as JSON.
fn described(head: &ReplyHead, body: Vec<u8>) -> Value {
    let mut fields = Map::new();
    for (name, value) in &head.fields {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        let value = Value::String(String::from_utf8_lossy(value).into_owned());
        match fields.get_mut(&name) {
            _ if name == "set-cookie" => {}
            None => {
                fields.insert(name, value);
            }
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = Value::Array(vec![first.take(), value]),
        }
    }
    let mut described = Map::new();
    described.insert("status".to_owned(), head.status.into());
    described.insert("reason".to_owned(), reason(head.status).into());
    described.insert("headers".to_owned(), fields.into());
    match String::from_utf8(body) {
        Ok(text) => described.insert("body".to_owned(), text.into()),
        Err(bytes) => described.insert("body_base64".to_owned(), STANDARD.encode(bytes.as_bytes()).into()),
    };
    described.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{build, exchange, on_request, refused, sent};

    #[test]
    fn batches_are_posts_of_json() {
        let step = build::<BatchRequests>(json!({}));
        let mut post = exchange("POST /batch HTTP/1.1\nHost: h\nContent-Type: application/json; charset=utf-8");
        assert_eq!(on_request(&step, &mut post), Ok(()));
        assert!(post.responder().is_some_and(|responder| responder.asks_gateway()));
        let mut get = exchange("GET /batch HTTP/1.1\nHost: h");
        assert_eq!(on_request(&step, &mut get), Err(Stop::Answered));
        assert_eq!((get.response.status, sent(&get, "allow")), (405, Some("POST")));
        for (kind, want) in [
            ("", 415),
            ("\nContent-Type: text/plain", 415),
            ("\nContent-Type: application/x-www-form-urlencoded", 415),
            ("\nContent-Type: text/plain, application/json", 400),
        ] {
            let mut form = exchange(&format!("POST /batch HTTP/1.1\nHost: h{kind}"));
            assert_eq!(on_request(&step, &mut form), Err(Stop::Answered), "{kind}");
            assert_eq!((form.response.status, form.responder().is_some()), (want, false), "{kind}");
        }
    }

    #[test]
    fn responses_are_described_with_all_their_fields_but_cookies() {
        let field = |name: &str, value: &str| (name.as_bytes().into(), value.as_bytes().into());
        let fields =
            vec![field("Content-Type", "text/plain"), field("Set-Cookie", "a=1"), field("b", "1"), field("b", "2")];
        let head = ReplyHead { status: 201, fields };
        let headers = json!({"content-type": "text/plain", "b": ["1", "2"]});
        let told = json!({"status": 201, "reason": "Created", "headers": headers, "body": "hi"});
        assert_eq!(described(&head, b"hi".to_vec()), told);
        assert_eq!(described(&head, vec![0xff, 0])["body_base64"], "/wA=");
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let error = refused::<BatchRequests>(json!({"max_body_size": 1}));
        assert!(error.starts_with("max_body_size: the option `max_body_size` is not known"), "{error}");
    }
}
