//! Pages that an upstream makes.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::proto::RequestHead;
use weir_plugin::{Build, ConfigError, Exchange, PageRequest};

use crate::options::headers::{HeaderEdits, SetHeaderOptions};

/// Where pages are fetched, and for which errors.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FetchOptions {
    /// The statuses of the errors, 400 to 599.
    #[schemars(length(min = 1, max = 200), extend("items" = { "type": "integer", "minimum": 400, "maximum": 599 }))]
    statuses: Vec<u16>,
    /// The definition of the upstream that makes the pages, as in a route.
    #[schemars(extend("x-weir-reaches" = "server"))]
    upstream: Option<Value>,
    /// Its id.
    #[schemars(extend("x-weir-reaches" = "server"))]
    upstream_id: Option<Value>,
    /// The path of the request for a page.
    #[serde(default = "root")]
    #[schemars(regex(pattern = r"^/"))]
    path: String,
    /// Header fields of the request for a page. Values may contain `$variables`.
    headers: Option<SetHeaderOptions>,
    /// The client gets the status of the error. Otherwise it gets that of the page, as in ingress-nginx.
    #[serde(default = "yes")]
    keep_status: bool,
}

fn root() -> String {
    "/".to_owned()
}

fn yes() -> bool {
    true
}

/// The fields of the client's request that the request for a page has, too: those that a page can depend on. Credentials are not
/// among them.
const SHARED: [&[u8]; 8] = [
    b"host",
    b"accept",
    b"accept-encoding",
    b"accept-language",
    b"user-agent",
    b"x-request-id",
    b"traceparent",
    b"tracestate",
];

/// What marks a request for a page (RFC 8586). Such a request gets no pages itself, wherever it has come from: otherwise an upstream that
/// leads back to the gateway would be asked for pages of pages.
const LOOP: (&[u8], &[u8]) = (b"CDN-Loop", b"weir-page");

/// Where the page of an error is fetched.
pub(super) struct FetchedPages {
    statuses: Box<[u16]>,
    upstream: u32,
    path: Box<[u8]>,
    headers: HeaderEdits,
    keeps_status: bool,
}

impl FetchOptions {
    /// `None` if the upstream is not known, which has been reported already.
    pub(super) fn compile(self, build: &mut Build) -> Result<Option<FetchedPages>, ConfigError> {
        if self.upstream.is_none() && self.upstream_id.is_none() {
            return Err(ConfigError::new(
                "fetch",
                "has no upstream; write its id as `upstream_id`, or it as `upstream`",
            ));
        }
        let mut probe = RequestHead::default();
        if probe.set_path(self.path.as_bytes(), None).is_err() {
            return Err(ConfigError::new("fetch.path", "is not a path; write as `/errors`"));
        }
        let headers = self.headers.map(|headers| headers.compile("fetch.headers", build)).transpose()?;
        let Some(upstream) = build.upstream("fetch") else { return Ok(None) };
        Ok(Some(FetchedPages {
            statuses: self.statuses.into(),
            upstream,
            path: self.path.into_bytes().into(),
            headers: headers.unwrap_or_default(),
            keeps_status: self.keep_status,
        }))
    }
}

impl FetchedPages {
    /// The request for the page of an error. `None` if there is none for this status, or if the client cannot show a page.
    pub(super) fn request(&self, exchange: &mut Exchange) -> Option<PageRequest> {
        let is_for_a_page = exchange.request.head.values(LOOP.0).any(|value| value == LOOP.1);
        if !self.statuses.contains(&exchange.response.status) || exchange.request.is_grpc() || is_for_a_page {
            return None;
        }
        let original = exchange.request.clone();
        let told = self.write_head(exchange);
        let head = std::mem::replace(&mut exchange.request, original);
        told.then_some(PageRequest { upstream: self.upstream, head, keeps_status: self.keeps_status })
    }

    /// Turns the request of the exchange into the one for the page; `false` if something in it is not valid.
    fn write_head(&self, exchange: &mut Exchange) -> bool {
        let status = exchange.response.status.to_string();
        let format = exchange.request.head.value(b"accept").unwrap_or_default().to_vec();
        // Without the query, which can have credentials.
        let mut uri = exchange.request.origin_form().into_owned();
        uri.truncate(uri.iter().position(|&byte| byte == b'?').unwrap_or(uri.len()));
        let request = &mut exchange.request;
        let names: Vec<Box<[u8]>> = request.head.fields().map(|(name, _)| name.into()).collect();
        for name in names.iter().filter(|name| !SHARED.iter().any(|shared| shared.eq_ignore_ascii_case(name))) {
            request.head.remove(name);
        }
        let told: [(&[u8], &[u8]); 4] =
            [(b"X-Code", status.as_bytes()), (b"X-Format", &format), (b"X-Original-URI", &uri), LOOP];
        let is_told = told.into_iter().all(|(name, value)| request.head.set(name, value).is_ok());
        // Before the path changes, which variables may name.
        let is_told = is_told && self.headers.apply(exchange, |exchange| &mut exchange.request.head, &[]).is_ok();
        let request = &mut exchange.request;
        let is_get = request.set_method(b"GET") && request.set_path(&self.path, Some(b"")).is_ok();
        request.forget_client_method(); // the page of a HEAD has content
        (request.takes_trailers, request.sends_te) = (false, false);
        is_told && is_get
    }
}
