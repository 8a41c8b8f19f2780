//! The options, and what they are compiled to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{AllOf, Build, CollectAll, ConfigError, Template};

use super::ProcessorTerms;
use super::fields::{ForwardRules, MutationRules};
use super::mode::{BodyMode, HeaderMode, SentModes, SentParts};
use crate::envoy::fields::is_of_gateway;
use crate::envoy::names::FieldNameList;
use crate::envoy::service::GrpcServiceOptions;
use crate::options::early_template::needs_no_content;
use crate::rate_limited_log::OutageLog;

/// Sends requests and responses to an external service that changes them, as the filter `ext_proc` of Envoy does: over gRPC
/// (`envoy.service.ext_proc.v3.ExternalProcessor/Process`), with one stream of messages for each exchange.
///
/// By default the service gets the heads of requests and of responses. It answers each message, and can change header fields, the path,
/// content and trailers, or answer the client by itself (`immediate_response`). A field that it sets replaces those with its name, unless
/// it has `append: true` or another `append_action`. If it ends the stream without an error, the exchange goes on without it.
///
/// This plugin runs after the others: the service gets requests as the upstream would, and what other plugins add to responses is not
/// sent to it. The route is chosen before, so `clear_route_cache` has no effect. Of a WebSocket only the head of the request is sent. A
/// route with this plugin needs an upstream: with a hub, `proxy-cache`, `sse-fanout` or `batch-requests` its responses cannot be processed,
/// and requests fail, unless only the heads of requests are sent. A request whose content is sent as `STREAMED` is not repeated at another
/// endpoint once content has been sent. Not in APISIX.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExtProc {
    /// The service.
    grpc_service: GrpcServiceOptions,
    /// What the service gets.
    #[serde(default)]
    processing_mode: ProcessingModeOptions,
    /// Goes on without the service when it fails. Otherwise clients get `status_on_error`, or an incomplete response if it has begun.
    #[serde(default)]
    failure_mode_allow: bool,
    /// The status of responses when the service fails, 400 to 599.
    #[serde(default = "default_status_on_error")]
    #[schemars(range(min = 400, max = 599))]
    status_on_error: u16,
    /// How long the service may take to answer a message, in milliseconds. There is no such limit with `FULL_DUPLEX_STREAMED`, where
    /// messages have no answers of their own.
    #[serde(default = "default_message_timeout")]
    #[schemars(range(min = 1, max = 60_000))]
    #[schemars(extend("x-weir-unit" = "ms"))]
    message_timeout: u64,
    /// The longest time that the service may ask for by `override_message_timeout`, in milliseconds. 0 is none.
    #[serde(default)]
    #[schemars(range(max = 600_000))]
    #[schemars(extend("x-weir-unit" = "ms"))]
    max_message_timeout: u64,
    /// Lets the service change `processing_mode` of an exchange by `mode_override` in an answer to a head.
    #[serde(default)]
    allow_mode_override: bool,
    /// Treats an answer of the service to the client (`immediate_response`) as a failure.
    #[serde(default)]
    disable_immediate_response: bool,
    /// The maximum size of content that is held for `BUFFERED`, in bytes. Larger requests get 413, and larger responses are failures; with
    /// `BUFFERED_PARTIAL`, the service gets the beginning, and the rest passes as it is.
    #[serde(default = "default_max_buffered_bytes")]
    #[schemars(range(min = 1, max = 3_145_728))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_buffered_bytes: usize,
    /// Which fields the service gets.
    #[serde(default)]
    forward_rules: ForwardRuleOptions,
    /// Which fields the service may change.
    #[serde(default)]
    mutation_rules: MutationRuleOptions,
    /// Texts that the service gets with the first message, as attributes below `envoy.filters.http.ext_proc`. They may contain
    /// `$variables`, such as `$route_id` or `$consumer_name`. Not in Envoy, which has a list of attributes of its own.
    #[serde(default)]
    request_attributes: BTreeMap<String, String>,
    /// Which metadata of the service counts.
    #[serde(default)]
    metadata_options: MetadataOptions,
}

/// Which metadata of a service counts.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MetadataOptions {
    /// The namespaces of `dynamic_metadata`, in the messages of the service, that count.
    #[serde(default)]
    receiving_namespaces: ReceivedNamespaces,
}

/// Namespaces of metadata.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReceivedNamespaces {
    /// Namespaces whose members become the variables `$ext_proc_NAME`: text as it is, and everything else as JSON. Log records have all of
    /// them, at most 64 KiB of an exchange. Plugins have those of the answer to the head of a request, once that has come, and with the
    /// response all that came before it was sent.
    #[serde(default)]
    #[schemars(length(max = 16))]
    untyped: Vec<String>,
}

/// What a service gets. Heads: `DEFAULT` is `SEND`; trailers: `DEFAULT` is `SKIP`. Content: `NONE`; `STREAMED`, piece by piece, each of
/// which is answered; `BUFFERED`, as a whole; `BUFFERED_PARTIAL`, its beginning; `FULL_DUPLEX_STREAMED`, piece by piece, and what the service
/// sends takes its place.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ProcessingModeOptions {
    /// Whether the service gets the heads of requests.
    #[serde(default)]
    request_header_mode: HeaderMode,
    /// Whether the service gets the heads of responses.
    #[serde(default)]
    response_header_mode: HeaderMode,
    /// How the service gets the content of requests.
    #[serde(default)]
    request_body_mode: BodyMode,
    /// How the service gets the content of responses.
    #[serde(default)]
    response_body_mode: BodyMode,
    /// Whether the service gets the trailers of requests.
    #[serde(default)]
    request_trailer_mode: HeaderMode,
    /// Whether the service gets the trailers of responses.
    #[serde(default)]
    response_trailer_mode: HeaderMode,
}

/// Which fields a service gets.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ForwardRuleOptions {
    /// Names of fields that the service gets. A name may end in `*`: `X-App-*`. By default all.
    allowed_headers: Option<Vec<String>>,
    /// Names of fields that the service does not get, also if `allowed_headers` lists them.
    #[serde(default)]
    disallowed_headers: Vec<String>,
}

/// Which fields a service may change. It can never change fields of the connection, and `Content-Length`.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MutationRuleOptions {
    /// Allows changes of `:method`, `:authority` and `Host`.
    #[serde(default)]
    allow_all_routing: bool,
    /// Allows no changes of `:path` and the like.
    #[serde(default)]
    disallow_system: bool,
    /// Allows no changes at all.
    #[serde(default)]
    disallow_all: bool,
    /// Treats a change that is not allowed as a failure. Otherwise it is ignored.
    #[serde(default)]
    disallow_is_error: bool,
    /// Fields about clients that the service may set, of `Forwarded`, `X-Forwarded-For`, `X-Real-IP`, `X-Consumer-*` and the like. Not in
    /// Envoy.
    #[serde(default)]
    trusted_headers: Vec<String>,
}

fn default_status_on_error() -> u16 {
    500
}

/// As in Envoy.
fn default_message_timeout() -> u64 {
    200
}

fn default_max_buffered_bytes() -> usize {
    1 << 20
}

impl ProcessingModeOptions {
    fn compile(&self) -> SentModes {
        let parts = |head: HeaderMode, content, trailers: HeaderMode| SentParts {
            head: head.is_sent(true),
            content,
            trailers: trailers.is_sent(false),
        };
        SentModes {
            request: parts(self.request_header_mode, self.request_body_mode, self.request_trailer_mode),
            response: parts(self.response_header_mode, self.response_body_mode, self.response_trailer_mode),
        }
    }
}

impl ForwardRuleOptions {
    fn compile(&self) -> Result<ForwardRules, ConfigError> {
        let allowed = self.allowed_headers.as_ref();
        let allowed = allowed.map(|names| FieldNameList::compile(names, "forward_rules.allowed_headers")).transpose();
        let disallowed = FieldNameList::compile(&self.disallowed_headers, "forward_rules.disallowed_headers");
        let (allowed, disallowed) = (allowed, disallowed).all_of()?;
        Ok(ForwardRules { allowed, disallowed })
    }
}

impl MutationRuleOptions {
    fn compile(&self) -> Result<MutationRules, ConfigError> {
        let path = "mutation_rules.trusted_headers";
        let is_other = |name: &String| !is_of_gateway(name.as_bytes());
        if let Some((index, _)) = self.trusted_headers.iter().enumerate().find(|(_, name)| is_other(name)) {
            let problem = "is a field that needs no trust, or can never be set; leave it out";
            return Err(ConfigError::new(format!("{path}[{index}]"), problem));
        }
        Ok(MutationRules {
            allows_routing: self.allow_all_routing,
            disallows_system: self.disallow_system,
            disallows_all: self.disallow_all,
            disallowed_is_error: self.disallow_is_error,
            trusted: FieldNameList::compile(&self.trusted_headers, path)?,
        })
    }
}

impl ExtProc {
    pub(super) fn terms(self, build: &mut Build) -> Result<Arc<ProcessorTerms>, ConfigError> {
        let modes = self.processing_mode.compile();
        let sends_nothing = modes.request == SentParts::NOTHING && modes.response == SentParts::NOTHING;
        if sends_nothing {
            build.fault("processing_mode", "sends nothing to the service; leave the plugin out");
        }
        if self.mutation_rules.disallow_all && self.mutation_rules.allow_all_routing {
            build.fault("mutation_rules.allow_all_routing", "has no effect with `disallow_all: true`");
        }
        if self.max_message_timeout != 0 && self.max_message_timeout < self.message_timeout {
            build.fault("max_message_timeout", "must be at least `message_timeout`, or 0");
        }
        let service = self.grpc_service.compile(build);
        let attribute = |(name, text): (String, String)| {
            let path = format!("request_attributes.{name}");
            let template = build.template(&text, &path);
            needs_no_content(&template, &path).map(|()| (name, template))
        };
        let attributes: Result<Box<[(String, Template)]>, _> =
            self.request_attributes.into_iter().map(attribute).collect_all();
        let (service, attributes, forwarded, mutations) =
            (service, attributes, self.forward_rules.compile(), self.mutation_rules.compile()).all_of()?;
        Ok(Arc::new(ProcessorTerms {
            service,
            modes,
            attributes,
            namespaces: self.metadata_options.receiving_namespaces.untyped,
            forwarded,
            mutations,
            message_timeout: Duration::from_millis(self.message_timeout),
            max_message_timeout: Duration::from_millis(self.max_message_timeout),
            allows_override: self.allow_mode_override,
            allows_immediate: !self.disable_immediate_response,
            allows_failures: self.failure_mode_allow,
            status_on_error: self.status_on_error,
            max_buffered_bytes: self.max_buffered_bytes,
            outages: OutageLog::default(),
        }))
    }
}
