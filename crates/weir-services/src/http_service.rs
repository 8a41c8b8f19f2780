//! A service that a plugin calls over HTTP, such as an auth service or a log receiver, through the gateway's HTTP client.

use std::time::Duration;

use http::header::HeaderValue;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_client::{
    AnswerContent, CallError, CallReceiver, CallSender, CallSettings, HttpClient, HttpProtocol, IdleConnections,
    ServerVerification, ServiceUrl,
};
use weir_plugin::ConfigError;

/// How a service is called: options of the plugins that ask one for each request.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct ServiceCallOptions {
    /// Time-out for a call, in milliseconds, including the time to connect.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 1, max = 60_000))]
    #[schemars(extend("x-weir-unit" = "ms"))]
    timeout: u64,
    /// Reuses connections to the service (keep-alive).
    #[serde(default = "default_true")]
    keepalive: bool,
    /// How long an idle connection is kept, in milliseconds.
    #[serde(default = "default_keepalive_timeout")]
    #[schemars(range(min = 1000))]
    #[schemars(extend("x-weir-unit" = "ms"))]
    keepalive_timeout: u64,
    /// The maximum number of idle connections of each worker.
    #[serde(default = "default_keepalive_pool")]
    #[schemars(range(min = 1))]
    keepalive_pool: usize,
    /// Whether the certificate of an `https` service is verified, against the CA certificates of the system.
    #[serde(default = "default_true")]
    ssl_verify: bool,
}

fn default_true() -> bool {
    true
}

fn default_timeout() -> u64 {
    3000
}

fn default_keepalive_timeout() -> u64 {
    60_000
}

fn default_keepalive_pool() -> usize {
    5
}

impl ServiceCallOptions {
    /// The time-out for a call.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout)
    }

    /// Whether the certificate of an `https` service is verified.
    pub fn verifies(&self) -> bool {
        self.ssl_verify
    }

    /// The service of an option, at `path`, that holds a URL.
    pub fn service(&self, client: &HttpClient, url: &str, path: &str) -> Result<HttpService, ConfigError> {
        let idle = IdleConnections {
            max_per_origin: if self.keepalive { self.keepalive_pool } else { 0 },
            timeout: Duration::from_millis(self.keepalive_timeout),
        };
        HttpService::parse(client, url, self.ssl_verify, self.timeout(), idle, path)
    }
}

/// The URL of a service, with the settings for calls to it.
#[derive(Clone)]
pub struct HttpService {
    client: HttpClient,
    url: ServiceUrl,
    /// The path and query as configured; `/` if there are none.
    pub target: Box<str>,
    pub timeout: Duration,
    settings: CallSettings,
}

impl HttpService {
    /// From an option that holds an `http` or `https` URL. `verify`: the certificate of the service is verified.
    pub fn parse(
        client: &HttpClient,
        url: &str,
        verify: bool,
        timeout: Duration,
        idle: IdleConnections,
        path: &str,
    ) -> Result<HttpService, ConfigError> {
        let parsed = ServiceUrl::parse(url).map_err(|error| {
            ConfigError::new(path, format!("`{url}` is not a URL: {error}; write as `http://auth.example:8080`"))
        })?;
        let verification = if verify { ServerVerification::Verify } else { ServerVerification::Skip };
        let settings =
            CallSettings { connect_timeout: timeout, timeout, idle, verification, ..CallSettings::default() };
        let target = parsed.target().as_str().into();
        let service = HttpService { client: client.clone(), url: parsed, target, timeout, settings };
        service.prepare_tls();
        Ok(service)
    }

    /// Loads the CA certificates in advance, so that no worker has to. If that fails, each call reports the error.
    fn prepare_tls(&self) {
        if self.url.origin().is_https {
            let _ = self.client.prepare_tls(&self.settings);
        }
    }

    /// Sends requests by this version of HTTP; without this, it is HTTP/1.1.
    pub fn speak(&mut self, protocol: HttpProtocol) {
        self.settings.protocol = protocol;
        self.prepare_tls();
    }

    /// The origin, for log messages: path and query are left out, because they may contain secrets.
    pub fn name(&self) -> String {
        self.url.origin().to_string()
    }

    /// Sends a request, whose URI is a path and query, and waits for the whole answer, which has at most `most` bytes.
    ///
    /// # Errors
    /// If the answer cannot be received within the time-out.
    pub async fn ask(&self, request: Request<Full<Bytes>>, most: usize) -> Result<Response<Bytes>, CallError> {
        let (head, content) = request.into_parts();
        let content = match content.collect().await {
            Ok(content) => content.to_bytes(),
            Err(never) => match never {},
        };
        let settings = CallSettings { max_content_bytes: most, ..self.settings.clone() };
        self.client.call(&self.url, Request::from_parts(head, content), &settings).await
    }

    /// Sends a request, whose URI is a path and query, and waits for the head of the answer. Its content is read piece by piece, and has
    /// any length.
    ///
    /// # Errors
    /// If the head cannot be received within the time-out.
    pub async fn open(&self, request: Request<Bytes>) -> Result<Response<AnswerContent>, CallError> {
        let settings = CallSettings { max_content_bytes: usize::MAX, ..self.settings.clone() };
        self.client.open(&self.url, request, &settings).await
    }

    /// Host and port as written, the value of `Host`.
    pub fn authority(&self) -> &HeaderValue {
        self.url.authority()
    }

    /// Begins a call whose request is sent while its response is read.
    ///
    /// # Errors
    /// There is no connection over HTTP/2 within the time-out.
    pub async fn duplex(&self, request: &Request<()>) -> Result<(CallSender, CallReceiver), CallError> {
        self.client.duplex(&self.url, request, &self.settings).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<HttpService, ConfigError> {
        let client = HttpClient::default();
        HttpService::parse(&client, url, false, Duration::from_secs(1), IdleConnections::default(), "uri")
    }

    #[test]
    fn services_are_named_by_urls() {
        for (url, name, target) in [
            ("http://a.example", "http://a.example:80", "/"),
            ("https://a.example/check?b=1", "https://a.example:443", "/check?b=1"),
            ("http://[::1]:9000/x", "http://[::1]:9000", "/x"),
        ] {
            let service = parse(url).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((&*service.name(), &*service.target), (name, target));
        }
        for url in ["a.example", "/check", "ftp://a.example", "http://user@a.example/", "http://", "http://a b/"] {
            let error = parse(url).err().expect("refused").to_string();
            assert!(error.starts_with("uri: `") && error.contains("is not a URL"), "{error}");
        }
    }
}
