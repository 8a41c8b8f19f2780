//! The options, and what they are compiled to.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_client::IdleConnections;
use weir_plugin::{AllOf, Build, CollectAll, ConfigError, NoteKey, Template};

use super::grpc::GrpcCheck;
use super::http::HttpCheck;
use super::told::ToldParts;
use super::{Check, ContentTerms, ExternalAuthorizer};
use crate::envoy::fields::is_of_gateway;
use crate::envoy::names::FieldNameList;
use crate::envoy::service::{GrpcServiceOptions, default_timeout, service, templates};
use crate::options::early_template::needs_no_content;
use crate::options::headers::Scalar;
use crate::rate_limited_log::OutageLog;

/// Asks an external service whether a request is allowed, as the filter `ext_authz` of Envoy does: over gRPC
/// (`envoy.service.auth.v3.Authorization/Check`), or over HTTP.
///
/// The service is told of the request as the client has sent it, before `proxy-rewrite`; only the header fields are those that come to
/// this plugin. The path is the one that routes are matched with: decoded and normalised. The fields do not include what an
/// untrusted client says about forwarding, and `x-forwarded-for` and `x-forwarded-proto` are those that the gateway sees.
///
/// A gRPC service allows a request with the status OK, and refuses it with any other one. It can change header fields and arguments
/// of the request, add fields to the response, and send metadata, whose members are the variables `ext_authz_NAME`. A field that the
/// service sets replaces those of the client, unless it has `append: true` or another `append_action`. An HTTP service allows
/// a request with the status 200. Its other answers are sent to the client, except 500 and above, which are failures.
///
/// A service that does not answer in time fails, and so does one whose answer is not a decision: one that sets `Host`, a pseudo-header
/// field or a field of the connection, that has an invalid field or status, or more than 128 changes or 64 KiB of them. Then no
/// request passes, unless `failure_mode_allow` is set. Not in APISIX.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExtAuthz {
    /// A service that is asked over gRPC.
    grpc_service: Option<GrpcServiceOptions>,
    /// A service that is asked over HTTP.
    http_service: Option<HttpServiceOptions>,
    /// Sends the content of requests to the service, after all plugins have accepted the head of the request. The content is held
    /// until the service has decided, so streams of requests do not pass.
    with_request_body: Option<RequestBodyOptions>,
    /// Allows requests when the service fails.
    #[serde(default)]
    failure_mode_allow: bool,
    /// With `failure_mode_allow`, adds `x-envoy-auth-failure-mode-allowed: true` to requests that pass because the service has failed.
    #[serde(default)]
    failure_mode_allow_header_add: bool,
    /// The status of refusals when the service fails, 200 to 599.
    #[serde(default = "default_status_on_error")]
    #[schemars(range(min = 200, max = 599))]
    status_on_error: u16,
    /// Header fields of requests that the service is told. A name may end in `*`: `X-App-*`. By default a gRPC service is told all
    /// fields, and an HTTP service only `Authorization`, which it is always told.
    allowed_headers: Option<Vec<String>>,
    /// Header fields that the service is not told, also if `allowed_headers` lists them.
    #[serde(default)]
    disallowed_headers: Vec<String>,
    /// Header fields of clients that are removed before the service is asked, such as those that only the service may set. Not in Envoy.
    #[serde(default)]
    remove_client_headers: Vec<String>,
    /// Fields about clients that a gRPC service may set, of `Forwarded`, `X-Forwarded-For`, `X-Forwarded-Host`, `X-Forwarded-Port`,
    /// `X-Forwarded-Prefix`, `X-Forwarded-Proto`, `X-Real-IP`, `X-Original-URL`, `X-Rewrite-URL` and `X-Consumer-*`. Otherwise an answer
    /// that sets one is a failure. Not in Envoy.
    #[serde(default)]
    trusted_headers: Vec<String>,
    /// Texts that a gRPC service gets with each request (`context_extensions`). They may contain `$variables`, such as `$route_id` or
    /// `$consumer_name`.
    #[serde(default)]
    context_extensions: BTreeMap<String, String>,
    /// Sends the client's certificate to a gRPC service, as PEM in URL encoding.
    #[serde(default)]
    include_peer_certificate: bool,
    /// Sends the server name in the client's TLS handshake to a gRPC service.
    #[serde(default)]
    include_tls_session: bool,
}

/// A service that is asked over HTTP, with the method, the host and the path of the request.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct HttpServiceOptions {
    /// The `http` or `https` URL of the service, without a path.
    #[schemars(extend("x-weir-reaches" = "server"))]
    server_uri: String,
    /// A text before the path of the request: with `/check`, the service is asked for `/check/orders` in place of `/orders`.
    #[serde(default)]
    path_prefix: String,
    /// Time-out for a call, in milliseconds, including the time to connect.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 1, max = 60_000))]
    #[schemars(extend("x-weir-unit" = "ms"))]
    timeout: u64,
    /// Whether the certificate of an `https` service is verified, against the CA certificates of the system.
    #[serde(default = "default_true")]
    ssl_verify: bool,
    /// The maximum number of idle connections of each worker.
    #[serde(default = "default_keepalive_pool")]
    #[schemars(range(min = 1))]
    keepalive_pool: usize,
    /// Header fields that are sent to the service. Values may contain `$variables`.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    headers_to_add: BTreeMap<String, Scalar>,
    /// Header fields of an allowing answer that are sent to the upstream. A name may end in `*`. Fields of these names in the client's
    /// request are removed, also those that the service has not set, unlike in Envoy.
    #[serde(default)]
    allowed_upstream_headers: Vec<String>,
    /// Header fields of an allowing answer that are sent to the upstream in addition to those of the client with these names.
    #[serde(default)]
    allowed_upstream_headers_to_append: Vec<String>,
    /// Header fields of a refusing answer that are sent to the client; `WWW-Authenticate`, `Location` and those that describe the content
    /// are always sent. By default all fields are sent.
    allowed_client_headers: Option<Vec<String>>,
    /// Header fields of an allowing answer that are added to the response to the client.
    #[serde(default)]
    allowed_client_headers_on_success: Vec<String>,
    /// Header fields of an answer whose values become variables: `X-Org` is `$ext_authz_x_org`.
    #[serde(default)]
    dynamic_metadata_from_headers: Vec<String>,
}

/// How content is sent to a service.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RequestBodyOptions {
    /// The maximum size of the content that is sent to the service, in bytes. Requests with more content are refused with 413 before
    /// the service is asked, unless `allow_partial_message` is set.
    #[schemars(range(min = 1, max = 67_108_864))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_request_bytes: u64,
    /// Sends the beginning of content that is larger. The field `x-envoy-auth-partial-body` tells the service so.
    #[serde(default)]
    allow_partial_message: bool,
    /// With `allow_partial_message`, the maximum size of content that is held until the service has decided, in bytes. Requests with
    /// more content are refused with 413. Not in Envoy, which forwards the rest as it comes.
    #[serde(default = "default_max_held_bytes")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_held_bytes: u64,
    /// Sends the content to a gRPC service as bytes (`raw_body`) in place of text (`body`), in which bytes that are not UTF-8 are replaced by `?`.
    #[serde(default)]
    pack_as_bytes: bool,
}

fn default_true() -> bool {
    true
}

/// As in Envoy.
fn default_status_on_error() -> u16 {
    403
}

fn default_keepalive_pool() -> usize {
    64
}

fn default_max_held_bytes() -> u64 {
    64 << 20
}

impl ExtAuthz {
    /// Reports options that have no effect, or one that opens a door.
    fn check(&self, build: &mut Build) {
        let is_http = self.http_service.is_some();
        if self.failure_mode_allow_header_add && !self.failure_mode_allow {
            build.fault("failure_mode_allow_header_add", "has no effect without `failure_mode_allow: true`");
        }
        let of_grpc = [
            ("trusted_headers", !self.trusted_headers.is_empty()),
            ("context_extensions", !self.context_extensions.is_empty()),
            ("include_peer_certificate", self.include_peer_certificate),
            ("include_tls_session", self.include_tls_session),
            ("with_request_body.pack_as_bytes", self.with_request_body.as_ref().is_some_and(|body| body.pack_as_bytes)),
        ];
        for (option, _) in of_grpc.into_iter().filter(|(_, is_set)| is_http && *is_set) {
            build.fault(option, "has no effect with `http_service`");
        }
        if !is_http && self.failure_mode_allow && self.remove_client_headers.is_empty() {
            let problem = "lists nothing: while the service fails, clients are let in with the fields that it sets otherwise; \
                           list these, and those of clients are removed";
            build.warnings.push(ConfigError::new("remove_client_headers", problem));
        }
    }

    pub(super) fn authorizer(self, build: &mut Build) -> Result<ExternalAuthorizer, ConfigError> {
        let is_http = self.http_service.is_some();
        self.check(build);
        let check = match (self.grpc_service, self.http_service) {
            (Some(grpc), None) => grpc.compile(build).map(GrpcCheck).map(Check::Grpc),
            (None, Some(http)) => http.compile(build).map(Check::Http),
            (grpc, http) => {
                let options = [("grpc_service", grpc.is_some()), ("http_service", http.is_some())];
                Err(ConfigError::one_of(&options))
            }
        };
        let (as_bytes, content) = match self.with_request_body.map(RequestBodyOptions::compile) {
            None => (false, Ok(None)),
            Some((as_bytes, terms)) => (as_bytes, terms.map(Some)),
        };
        let allowed = match (&self.allowed_headers, is_http) {
            (Some(names), _) => FieldNameList::compile(names, "allowed_headers").map(Some),
            // An HTTP service is told no other fields by default.
            (None, true) => Ok(Some(FieldNameList::default())),
            (None, false) => Ok(None),
        };
        let names = (
            allowed,
            FieldNameList::compile(&self.disallowed_headers, "disallowed_headers"),
            FieldNameList::compile(&self.remove_client_headers, "remove_client_headers"),
            trusted_headers(&self.trusted_headers),
        );
        let (check, content, names) = (check, content, names.all_of()).all_of()?;
        let (allowed, disallowed, removed_of_client, trusted) = names;
        let extension = |(name, text): (String, String)| {
            let path = format!("context_extensions.{name}");
            let template = build.template(&text, &path);
            needs_no_content(&template, &path).map(|()| (name, template))
        };
        let extensions: Box<[(String, Template)]> = self.context_extensions.into_iter().map(extension).collect_all()?;
        Ok(ExternalAuthorizer {
            check,
            told: ToldParts {
                allowed,
                disallowed,
                extensions,
                peer_certificate: self.include_peer_certificate,
                tls_session: self.include_tls_session,
                as_bytes,
            },
            content,
            removed_of_client,
            trusted,
            granted: NoteKey::unique(),
            allows_failures: self.failure_mode_allow,
            marks_failures: self.failure_mode_allow_header_add,
            status_on_error: self.status_on_error,
            outages: OutageLog::default(),
        })
    }
}

/// Names of fields that only the gateway may set otherwise.
fn trusted_headers(names: &[String]) -> Result<FieldNameList, ConfigError> {
    let is_other = |name: &String| !is_of_gateway(name.as_bytes());
    if let Some((index, _)) = names.iter().enumerate().find(|(_, name)| is_other(name)) {
        let place = format!("trusted_headers[{index}]");
        return Err(ConfigError::new(place, "is a field that needs no trust, or can never be set; leave it out"));
    }
    FieldNameList::compile(names, "trusted_headers")
}

impl HttpServiceOptions {
    fn compile(self, build: &mut Build) -> Result<HttpCheck, ConfigError> {
        let idle = IdleConnections { max_per_origin: self.keepalive_pool, ..IdleConnections::default() };
        let path = "http_service.server_uri";
        let service = service(build, (&self.server_uri, path), (self.ssl_verify, self.timeout), idle);
        let names = |names: &[String], option: &str| FieldNameList::compile(names, &format!("http_service.{option}"));
        let upstream = names(&self.allowed_upstream_headers, "allowed_upstream_headers").and_then(|names| {
            let problem = "lists all fields, and those of clients are removed; list those that the service sets";
            match names.contain_all() {
                true => Err(ConfigError::new("http_service.allowed_upstream_headers", problem)),
                false => Ok(names),
            }
        });
        let client = self.allowed_client_headers.as_ref().map(|list| names(list, "allowed_client_headers"));
        let fields = (
            upstream,
            names(&self.allowed_upstream_headers_to_append, "allowed_upstream_headers_to_append"),
            client.transpose(),
            names(&self.allowed_client_headers_on_success, "allowed_client_headers_on_success"),
            names(&self.dynamic_metadata_from_headers, "dynamic_metadata_from_headers"),
        );
        let added = templates(self.headers_to_add, "http_service.headers_to_add", build);
        let prefix = path_prefix(self.path_prefix);
        let (service, prefix, added, fields) = (service, prefix, added, fields.all_of()).all_of()?;
        let (upstream, upstream_appended, client, client_on_success, metadata) = fields;
        Ok(HttpCheck {
            service,
            path_prefix: prefix,
            added,
            upstream,
            upstream_appended,
            client,
            client_on_success,
            metadata,
        })
    }
}

fn path_prefix(prefix: String) -> Result<Box<str>, ConfigError> {
    let is_path = |byte: u8| byte.is_ascii_graphic() && !b"?#\"<>".contains(&byte);
    let problem = match prefix.as_bytes() {
        [] | [b'/', ..] if prefix.bytes().all(is_path) => return Ok(prefix.into()),
        [] | [b'/', ..] => "has a character that must be percent-encoded in a path, or a query",
        _ => "must begin with `/`",
    };
    Err(ConfigError::new("http_service.path_prefix", problem))
}

impl RequestBodyOptions {
    /// Whether content is sent as bytes, and how much of it.
    fn compile(self) -> (bool, Result<ContentTerms, ConfigError>) {
        let most_held = if self.allow_partial_message { self.max_held_bytes } else { self.max_request_bytes };
        let terms = match most_held < self.max_request_bytes {
            // The schema limits it to 64 MiB.
            false => Ok(ContentTerms { most_told: self.max_request_bytes as usize, most_held }),
            true => Err(ConfigError::new("with_request_body.max_held_bytes", "must be at least `max_request_bytes`")),
        };
        (self.pack_as_bytes, terms)
    }
}
