//! A service of Envoy's API that is called over gRPC: options and the form of calls.

use std::collections::BTreeMap;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, TE};
use http::uri::Authority;
use http::{Method, Request, Uri};
use schemars::JsonSchema;
use serde::Deserialize;
use weir_client::{HttpProtocol, IdleConnections};
use weir_plugin::{AllOf, Build, CollectAll, ConfigError, Exchange, Template};
use weir_services::http_service::HttpService;

use crate::options::early_template::needs_no_content;
use crate::options::headers::{Scalar, header_name};

/// A service that is asked over gRPC.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GrpcServiceOptions {
    /// The address of the service: `http://HOST:PORT` for gRPC without TLS, `https://HOST:PORT` with TLS.
    #[schemars(extend("x-weir-reaches" = "server"))]
    uri: String,
    /// Time-out for a call, in milliseconds, including the time to connect.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 1, max = 60_000))]
    #[schemars(extend("x-weir-unit" = "ms"))]
    timeout: u64,
    /// Whether the certificate of an `https` service is verified, against the CA certificates of the system.
    #[serde(default = "default_true")]
    ssl_verify: bool,
    /// The `:authority` of calls. By default the host and port of `uri`.
    authority: Option<String>,
    /// Metadata of calls: names and values, which may contain `$variables`.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    initial_metadata: BTreeMap<String, Scalar>,
}

fn default_true() -> bool {
    true
}

/// As in Envoy.
pub(crate) fn default_timeout() -> u64 {
    200
}

/// A service whose URL has no path.
pub(crate) fn service(
    build: &Build,
    (url, path): (&str, &str),
    (verify, timeout_ms): (bool, u64),
    idle: IdleConnections,
) -> Result<HttpService, ConfigError> {
    let timeout = Duration::from_millis(timeout_ms);
    let service = HttpService::parse(build.http(), url, verify, timeout, idle, path)?;
    match &*service.target {
        "/" => Ok(service),
        _ => Err(ConfigError::new(path, "has a path; write as `http://127.0.0.1:9191`")),
    }
}

/// Fields of calls, whose values may contain variables.
pub(crate) fn templates(
    fields: BTreeMap<String, Scalar>,
    path: &str,
    build: &mut Build,
) -> Result<Box<[(HeaderName, Template)]>, ConfigError> {
    let compile = |(name, value): (String, Scalar)| {
        let path = format!("{path}.{name}");
        let template = value.template(&path, build).and_then(|template| {
            needs_no_content(&template, &path)?;
            Ok(template)
        });
        let name = header_name(&name, &path).and_then(|name| {
            HeaderName::from_bytes(name).map_err(|_| ConfigError::new(&path, "is not the name of a header field"))
        });
        (name, template).all_of()
    };
    fields.into_iter().map(compile).collect_all()
}

impl GrpcServiceOptions {
    pub(crate) fn compile(self, build: &mut Build) -> Result<GrpcService, ConfigError> {
        // One connection carries all calls of a worker.
        let service = service(
            build,
            (&self.uri, "grpc_service.uri"),
            (self.ssl_verify, self.timeout),
            IdleConnections::default(),
        );
        let service = service.map(|mut service| {
            service.speak(HttpProtocol::Http2);
            service
        });
        let authority = self.authority.map(|authority| {
            let is_authority = authority.parse::<Authority>().is_ok_and(|parsed| !parsed.as_str().contains('@'));
            let value = HeaderValue::try_from(authority).ok().filter(|_| is_authority);
            value.ok_or_else(|| ConfigError::new("grpc_service.authority", "is not a host with an optional port"))
        });
        let path = "grpc_service.initial_metadata";
        let of_call = |name: &&String| {
            let name = name.to_ascii_lowercase();
            name.starts_with("grpc-") || ["content-type", "te", "host"].contains(&&*name)
        };
        if let Some(name) = self.initial_metadata.keys().find(of_call) {
            build.fault(format!("{path}.{name}"), "is set by the call itself; leave it out");
        }
        let metadata = templates(self.initial_metadata, path, build);
        let (service, authority, metadata) = (service, authority.transpose(), metadata).all_of()?;
        Ok(GrpcService { service, authority, metadata })
    }
}

/// A gRPC service.
pub(crate) struct GrpcService {
    pub service: HttpService,
    authority: Option<HeaderValue>,
    metadata: Box<[(HeaderName, Template)]>,
}

impl GrpcService {
    /// The fields of a call for a request; `None` if the value of a variable is not valid in a field.
    pub(crate) fn metadata(&self, exchange: &Exchange) -> Option<HeaderMap> {
        let mut fields = HeaderMap::new();
        for (name, template) in &self.metadata {
            let mut value = Vec::new();
            template.render(exchange, &mut value);
            fields.insert(name, HeaderValue::from_bytes(&value).ok()?);
        }
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        fields.insert(TE, HeaderValue::from_static("trailers"));
        if let Some(authority) = &self.authority {
            fields.insert(HOST, authority.clone());
        }
        Some(fields)
    }

    /// The head of a call.
    pub(crate) fn call(&self, path: &'static str, fields: HeaderMap) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static(path);
        *request.headers_mut() = fields;
        request
    }
}
