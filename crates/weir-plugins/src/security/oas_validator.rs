mod body;
mod definition;
mod depth;
mod document;
mod faults;
mod fetched;
mod parameter;
mod response_rules;
mod responses;
mod schemas;
mod shape;
mod style;
mod template;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::{Framing, Head};
use weir_plugin::{
    Build, ConfigError, Definition, Exchange, Flow, HasMetadata, Phases, Plugin, PluginMetadata, Stage, Stop, form,
};

use self::definition::{ApiDefinition, NoOperation, OasOperation};
use self::faults::RequestFaults;
use self::fetched::{FetchedDefinition, SpecUrlOptions, unavailable};
use self::parameter::{JsonReader, ParameterPlace, ParameterTexts};
use self::response_rules::ResponseRules;
use self::style::TextPairs;
use super::request_validation::{BodyBounds, Fault};
use crate::answer::RefusalResponse;
use crate::content::elsewhere::{MOST_AT_ONCE, elsewhere, is_long};
use crate::content::{coding, content_type};
use crate::rate_limited_log::RateLimitedLog;

/// Requires that a request is an operation of an OpenAPI definition, with the parameters and the body that this takes.
///
/// Definitions are of OpenAPI 3.0 or 3.1. The path of the client's request is looked for below the paths of `servers`; of several
/// paths that fit, the most specific one with an operation for the method counts. `HEAD` is judged as `GET` if it has no operation of
/// its own. A value is read by the type in its schema: `5` as a number where the schema has one. Arguments, header fields and cookies
/// that the definition does not name are let through. A parameter that takes one value, and occurs twice, is refused.
///
/// Bodies in JSON, forms and `text/*` are validated, of others only that their type is one of the operation. A property that is
/// `readOnly` is refused in a request, and never required. Formats are validated, of those that JSON Schema defines, with `int32` and
/// `int64`. Regular expressions are those of `request-validation`. `$ref` leads to places in the definition alone. Bodies of more than
/// 16 KiB are validated on another thread. That a required body of another type is empty is told if it has a `Content-Length`.
///
/// A definition has at most 5,000 operations with 256 parameters each and 50,000 in all, 20 base paths of servers, 100,000 schemas and 100
/// levels, and 1,000 levels of schemas that lead into each other, counted once for each level of a value where they lead back to
/// themselves. Responses, media types and the fields in `encoding` are 50,000 at most, and properties of parameters and forms 1,000,000;
/// what several operations refer to counts for each. Names of parameters and media types have at most 256 bytes. Where schemas that lead
/// back to themselves have alternatives (`oneOf`, `anyOf`), a fault is told without its place.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OasValidator {
    /// The definition, as a text in JSON or YAML. APISIX takes JSON alone.
    #[schemars(length(min = 1, max = MAX_SPEC))]
    spec: Option<String>,
    /// The `http` or `https` URL of the definition, in place of `spec`. It is read when the first request needs it, and again when it is
    /// older than `spec_url_ttl`, while requests are judged by the last one; so they are if it cannot be read again, or what is read has
    /// a fault. A request and its response are judged by the same definition. Earlier ones that requests still need take at most 256 MiB together;
    /// then the oldest are given up: bodies still to be judged by them get 503, and responses do not fit. As long as it could never be read, requests are answered with 503. After a failure, the next attempt is made at the
    /// earliest 5 seconds later. Redirects are not followed. The regular expressions in it take at most 256 MiB when they are compiled, two
    /// such definitions are compiled at a time, and requests wait 10 seconds longer than `timeout` at most.
    #[schemars(length(min = 1))]
    #[schemars(extend("x-weir-reaches" = "server"))]
    spec_url: Option<String>,
    /// Header fields of the request for `spec_url`.
    #[serde(default)]
    spec_url_request_headers: BTreeMap<String, String>,
    /// Whether the certificate of an `https` server is verified, against the CA certificates of the system. APISIX's default is `false`.
    #[serde(default = "default_true")]
    ssl_verify: bool,
    /// Time-out for reading `spec_url`, in milliseconds, including the time to connect.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 100, max = 60_000))]
    #[schemars(extend("x-weir-unit" = "ms"))]
    timeout: u64,
    /// A refusal names the faults of the request, each with its place: `query.limit: …`. Those of the head are told before the body is
    /// read.
    #[serde(default)]
    verbose_errors: bool,
    /// Bodies are not validated, and not held.
    #[serde(default)]
    skip_request_body_validation: bool,
    /// Header fields and cookies are not validated.
    #[serde(default)]
    skip_request_header_validation: bool,
    /// Arguments of the query are not validated.
    #[serde(default)]
    skip_query_param_validation: bool,
    /// Parameters in the path are not validated.
    #[serde(default)]
    skip_path_params_validation: bool,
    /// `false`: a request that does not fit is not refused; its faults are written to the error log, at most once in ten seconds.
    /// Bodies larger than `max_req_body_size` are refused if their size is not known in advance.
    #[serde(default = "default_true")]
    reject_if_not_match: bool,
    /// The status of a refusal, 400 to 599.
    #[serde(default = "default_rejection_status_code")]
    #[schemars(range(min = 400, max = 599))]
    rejection_status_code: u16,
    /// The largest body, in bytes, both as received and after decoding. A larger body is refused. APISIX's default is 64 MiB.
    #[serde(default = "default_max_req_body_size")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_req_body_size: u64,
    /// Responses of the upstream are validated, too: that their status is one of the operation, their type one of this status, and their
    /// body, as for requests, one of this type. `log` writes faults to the error log, at most once in ten seconds; `refuse` also replaces
    /// the response by a 502. Responses with 304 are let through, of those with 206 and of streams the content, and so are properties
    /// that the definition does not forbid; one that is `writeOnly` is refused, and never required. The upstream is asked for content
    /// without a coding. Not in APISIX.
    validate_responses: Option<ResponseValidation>,
    /// The largest body of a response that is validated, in bytes, both as received and after decoding, at most 16 KiB: responses are
    /// validated where exchanges are served, which wait meanwhile. A larger one does not fit. With `log`, a body whose size is not known
    /// in advance is not validated.
    #[serde(default = "default_max_resp_body_size")]
    #[schemars(range(min = 1, max = MOST_AT_ONCE))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_resp_body_size: u64,
}

/// What becomes of a response that does not fit the definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ResponseValidation {
    Log,
    Refuse,
}

/// The largest definition, in characters; of one at a URL, in bytes.
const MAX_SPEC: usize = 4 << 20;

fn default_true() -> bool {
    true
}

fn default_timeout() -> u64 {
    10_000
}

fn default_rejection_status_code() -> u16 {
    400
}

fn default_max_req_body_size() -> u64 {
    1 << 20
}

fn default_max_resp_body_size() -> u64 {
    MOST_AT_ONCE as u64
}

/// Options in `plugin_metadata`, for every use of the plugin.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OasValidatorMetadata {
    /// How old a definition at a `spec_url` becomes before it is read again, in seconds.
    #[serde(default = "default_spec_url_ttl")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "s"))]
    spec_url_ttl: u64,
}

fn default_spec_url_ttl() -> u64 {
    3600
}

impl Default for OasValidatorMetadata {
    fn default() -> OasValidatorMetadata {
        OasValidatorMetadata { spec_url_ttl: default_spec_url_ttl() }
    }
}

impl PluginMetadata for OasValidatorMetadata {}

impl HasMetadata for OasValidator {
    type Metadata = OasValidatorMetadata;
}

impl Definition for OasValidator {
    const NAME: &'static str = "oas-validator";
    const PRIORITY: i32 = 512;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"oas-validator:
  verbose_errors: true
  spec: |
    openapi: 3.1.0
    info: { title: Pets, version: "1" }
    paths:
      /pets/{id}:
        get:
          parameters:
            - { name: id, in: path, required: true, schema: { type: integer, minimum: 1 } }
          responses: { "200": { description: A pet } }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let source = self.source(build)?;
        Ok(Arc::new(DefinedRequests(Arc::new(RequestRules {
            source,
            bounds: BodyBounds::of_bytes(self.max_req_body_size),
            skipped: SkippedParts {
                path: self.skip_path_params_validation,
                query: self.skip_query_param_validation,
                header: self.skip_request_header_validation,
                body: self.skip_request_body_validation,
            },
            refuses: self.reject_if_not_match,
            tells: self.verbose_errors,
            status: self.rejection_status_code,
            log: RateLimitedLog::default(),
            responses: self.validate_responses.map(|validation| ResponseRules {
                bounds: BodyBounds::of_bytes(self.max_resp_body_size),
                refuses: validation == ResponseValidation::Refuse,
                log: RateLimitedLog::default(),
            }),
        }))))
    }
}

impl OasValidator {
    fn source(&self, build: &mut Build) -> Result<DefinitionSource, ConfigError> {
        if self.spec.is_some() && self.spec_url.is_some() {
            build.fault("spec_url", "stands beside `spec`; write one of the two");
        }
        match (&self.spec, &self.spec_url) {
            (Some(spec), _) => match ApiDefinition::shared(spec.clone(), self.validate_responses.is_some()) {
                Ok(definition) => Ok(DefinitionSource::Written(definition)),
                Err(mut told) => {
                    let last = told.pop().unwrap_or_default();
                    told.into_iter().for_each(|problem| build.fault("spec", problem));
                    Err(ConfigError::new("spec", last))
                }
            },
            (None, Some(url)) => {
                let options = SpecUrlOptions {
                    url: url.clone(),
                    fields: self.spec_url_request_headers.clone(),
                    verifies: self.ssl_verify,
                    timeout: Duration::from_millis(self.timeout),
                    renewed_after: Duration::from_secs(build.metadata::<Self>().spec_url_ttl),
                    with_responses: self.validate_responses.is_some(),
                };
                options.compile(build).map(DefinitionSource::Fetched)
            }
            (None, None) => {
                let problem = "is missing: the OpenAPI definition as a text in YAML or JSON, or its URL as `spec_url`";
                Err(ConfigError::new("spec", problem))
            }
        }
    }
}

/// Where the definition comes from.
enum DefinitionSource {
    Written(Arc<ApiDefinition>),
    Fetched(FetchedDefinition),
}

impl DefinitionSource {
    /// The definition by which an exchange is judged since it began.
    ///
    /// # Errors
    /// There is none any more.
    fn of(&self, exchange: &mut Exchange) -> Result<Arc<ApiDefinition>, Stop> {
        let known = self.known(exchange).or_else(|| match self {
            // The body was made here for a request without one, for which nothing was held.
            DefinitionSource::Fetched(fetched) if !exchange.request.framing.has_body() => fetched.begin(exchange),
            _ => None,
        });
        known.ok_or_else(|| unavailable(exchange))
    }

    fn release(&self, exchange: &mut Exchange) {
        if let DefinitionSource::Fetched(fetched) = self {
            fetched.release(exchange);
        }
    }

    fn known(&self, exchange: &Exchange) -> Option<Arc<ApiDefinition>> {
        match self {
            DefinitionSource::Written(definition) => Some(Arc::clone(definition)),
            DefinitionSource::Fetched(fetched) => fetched.of(exchange),
        }
    }
}

/// The parts of requests that are not validated.
#[derive(Clone, Copy, Debug)]
struct SkippedParts {
    path: bool,
    query: bool,
    header: bool,
    body: bool,
}

/// What requests are held to.
struct RequestRules {
    source: DefinitionSource,
    bounds: BodyBounds,
    skipped: SkippedParts,
    refuses: bool,
    /// Refusals name the faults.
    tells: bool,
    status: u16,
    log: RateLimitedLog,
    responses: Option<ResponseRules>,
}

struct DefinedRequests(Arc<RequestRules>);

impl RequestRules {
    fn faults(&self) -> RequestFaults {
        RequestFaults::new(self.tells)
    }

    fn check_head(&self, definition: &ApiDefinition, exchange: &mut Exchange) -> Result<(), Stop> {
        let mut faults = self.faults();
        self.add_faults_of_head(definition, exchange, &mut faults);
        if self.skipped.body || !exchange.request.framing.has_body() {
            self.end_request(exchange);
        }
        self.answer(exchange, &faults)
    }

    fn add_faults_of_head(&self, definition: &ApiDefinition, exchange: &Exchange, faults: &mut RequestFaults) {
        let request = &exchange.request;
        let found = match definition.find(request.client_method_name(), request.client_path()) {
            Ok(found) => found,
            Err(NoOperation::Path) => return faults.add("path", "is none of the definition"),
            Err(NoOperation::Method) => return faults.add("method", "the path has no operation for it"),
        };
        let query = if self.skipped.query { None } else { request.client_query() };
        let operation = found.operation;
        let texts = ParameterTexts {
            path: &found.values,
            query: query.map(text_pairs).unwrap_or_default(),
            cookies: if self.skipped.header { TextPairs::new() } else { cookies(&request.head) },
            header: &|name| header(&request.head, name),
            declared: &operation.arguments,
            json: JsonReader { bounds: &self.bounds, client: exchange.client.addr },
        };
        for parameter in &operation.parameters {
            let is_skipped = match parameter.at {
                ParameterPlace::Path => self.skipped.path,
                ParameterPlace::Query => self.skipped.query,
                ParameterPlace::Header | ParameterPlace::Cookie => self.skipped.header,
            };
            if !is_skipped && !faults.are_enough() {
                parameter.check(&texts, &definition.schemas, faults);
            }
        }
        if !self.skipped.body {
            self.check_framing(request.framing, operation, media_type(&request.head), faults);
        }
    }

    /// Nothing more of the request is judged: a definition is held for its response at most, which can last.
    fn end_request(&self, exchange: &mut Exchange) {
        if self.responses.is_none() {
            self.source.release(exchange);
        }
    }

    fn check_framing(
        &self,
        framing: Framing,
        operation: &OasOperation,
        media_type: Option<&str>,
        faults: &mut RequestFaults,
    ) {
        let Some(body) = &operation.body else { return };
        match framing {
            Framing::None | Framing::Sized(0) if body.required => faults.add("body", "is required"),
            Framing::None | Framing::Sized(0) => {}
            Framing::Sized(length)
                if length > self.bounds.max_bytes && media_type.is_some_and(|kind| body.is_read(kind)) =>
            {
                faults.add("body", self.bounds.too_large());
            }
            _ => body.check_type(media_type, faults),
        }
    }

    fn check_body(&self, target: &BodyTarget, content: &[u8]) -> Result<RequestFaults, Stop> {
        let mut faults = self.faults();
        let Some(body) = &target.operation.body else { return Ok(faults) };
        if content.is_empty() {
            if body.required {
                faults.add("body", "is required");
            }
            return Ok(faults);
        }
        let plain = match self.bounds.plain(&target.head, content) {
            Ok(plain) => plain,
            Err(Fault::Stop(stop)) => return Err(stop),
            Err(Fault::Problem(problem)) => {
                faults.add("body", problem);
                return Ok(faults);
            }
        };
        let reading = (&self.bounds, target.client);
        let media_type = media_type(&target.head).unwrap_or_default();
        body.check(media_type, &plain, &target.definition.schemas, reading, &mut faults)?;
        Ok(faults)
    }

    /// Lets a request pass, or refuses it.
    fn answer(&self, exchange: &mut Exchange, faults: &RequestFaults) -> Result<(), Stop> {
        if faults.told.is_empty() {
            return Ok(());
        }
        let told = faults.told.join("; ");
        if !self.refuses {
            let (method, path) = quoted_path(exchange);
            self.log.error(format_args!("oas-validator: {method} {path:?} does not fit the definition: {told:?}"));
            return Ok(());
        }
        let text = if self.tells { format!("failed to validate request. {told}") } else { SHORT.to_owned() };
        Err(RefusalResponse::new(self.status, "message", &text).send(exchange))
    }
}

const SHORT: &str = "failed to validate request.";

/// What a body is judged by.
struct BodyTarget {
    definition: Arc<ApiDefinition>,
    operation: Arc<OasOperation>,
    head: Head,
    client: std::net::IpAddr,
}

impl DefinedRequests {
    async fn check_elsewhere(
        &self,
        exchange: &mut Exchange,
        body: &mut Vec<u8>,
        target: BodyTarget,
    ) -> Result<(), Stop> {
        let (rules, client, content) = (Arc::clone(&self.0), exchange.client.addr, std::mem::take(body));
        let judge = move || {
            let faults = rules.check_body(&target, &content);
            (content, faults)
        };
        let (content, faults) = elsewhere(client, judge).await?;
        *body = content;
        self.0.answer(exchange, &faults?)
    }
}

impl Plugin for DefinedRequests {
    fn phases(&self) -> Phases {
        let requests = match self.0.skipped.body {
            true => Phases::REQUEST,
            false => Phases::REQUEST.and(Phases::REQUEST_BODY),
        };
        match &self.0.responses {
            Some(_) => requests.and(Phases::RESPONSE).and(Phases::RESPONSE_BODY),
            None => requests,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        // Ends the exchange if recipients could read the type in different ways.
        content_type::of_request(exchange)?;
        let rules = &self.0;
        if rules.responses.is_some() {
            coding::ask_for_plain(exchange);
        }
        let fetched = match &rules.source {
            DefinitionSource::Written(definition) => return Ok(rules.check_head(definition, exchange)?.into()),
            DefinitionSource::Fetched(fetched) => fetched,
        };
        if let Some(definition) = fetched.begin(exchange) {
            return Ok(rules.check_head(&definition, exchange)?.into());
        }
        Ok(Flow::wait(async move {
            let definition = fetched.begin_later(exchange).await?;
            rules.check_head(&definition, exchange)
        }))
    }

    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        let bounds = &self.0.bounds;
        // Only where it is not refused is it still here.
        let is_larger = matches!(exchange.request.framing, Framing::Sized(length) if length > bounds.max_bytes);
        let definition = self.0.source.of(exchange)?;
        let body = definition.operation(exchange).ok().and_then(|operation| operation.body.as_ref());
        let kind = media_type(&exchange.request.head);
        let is_read = !is_larger && body.zip(kind).is_some_and(|(body, kind)| body.is_read(kind));
        if !is_read {
            self.0.end_request(exchange);
        }
        Ok(is_read.then_some(bounds.max_bytes))
    }

    fn too_much_content(&self, exchange: &mut Exchange) -> Stop {
        let mut faults = self.0.faults();
        faults.add("body", self.0.bounds.too_large());
        self.0.answer(exchange, &faults).err().unwrap_or(Stop::BodyTooLarge)
    }

    fn on_request_body<'a>(&'a self, exchange: &'a mut Exchange, body: &'a mut Vec<u8>) -> Result<Flow<'a>, Stop> {
        let definition = self.0.source.of(exchange)?;
        self.0.end_request(exchange);
        let Ok(operation) = definition.operation(exchange).map(Arc::clone) else { return Ok(Flow::Continue) };
        let target =
            BodyTarget { definition, operation, head: exchange.request.head.clone(), client: exchange.client.addr };
        if is_long(&target.head, body) {
            return Ok(Flow::wait(self.check_elsewhere(exchange, body, target)));
        }
        let faults = self.0.check_body(&target, body)?;
        Ok(self.0.answer(exchange, &faults)?.into())
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let Some(responses) = &self.0.responses else { return Ok(()) };
        let definition = self.0.source.known(exchange);
        responses.check_head(definition.as_deref(), exchange)
    }

    fn whole_response(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        let Some(responses) = &self.0.responses else { return Ok(None) };
        responses.whole(self.0.source.known(exchange).as_deref(), exchange, OasValidator::NAME)
    }

    fn on_response_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<(), Stop> {
        let Some(responses) = &self.0.responses else { return Ok(()) };
        let definition = self.0.source.known(exchange);
        responses.check_body(definition.as_deref(), exchange, body)
    }
}

/// Why a definition from a server is not used.
pub(crate) fn compiled(text: String, with_responses: bool) -> Result<(), String> {
    fetched::compile(text, with_responses).map(drop)
}

/// The method and the path of a request, for the log.
fn quoted_path(exchange: &Exchange) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(exchange.request.client_method_name()), text(exchange.request.client_path()))
}

fn media_type(head: &Head) -> Option<&str> {
    content_type::of(head).ok().flatten().and_then(|value| std::str::from_utf8(value).ok())
}

fn text_pairs(query: &[u8]) -> TextPairs {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    form::pairs(query).map(|(name, value)| (text(&name), text(&value))).collect()
}

/// The cookies of a request (RFC 6265 §4.2.1), which HTTP/2 may send in several fields.
fn cookies(head: &Head) -> TextPairs {
    let pairs = head.values(b"cookie").flat_map(|value| value.split(|byte| *byte == b';'));
    pairs
        .map(|pair| {
            let (name, value) = form::halves(pair.trim_ascii());
            let text = |bytes: &[u8]| percent_encoding::percent_decode(bytes).decode_utf8_lossy().into_owned();
            (text(name), text(value))
        })
        .collect()
}

/// The values of a field, joined as in a list (RFC 9110 §5.3).
fn header(head: &Head, name: &str) -> Option<String> {
    let values: Vec<_> = head.values(name.as_bytes()).map(String::from_utf8_lossy).collect();
    (!values.is_empty()).then(|| values.join(", "))
}
