//! What a controller answers: the state and reports of nodes at one address, pages about itself at the other.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Method, Response, StatusCode};
use serde_json::Value;
use weir_control::document::NodeNames;
use weir_control::stores::{
    CertificateIssuer, EnrolmentRefusal, MOST_NODE_NAME, MOST_REPORT, MOST_SIGNING_REQUEST, NodeIntroduction,
    StateFeed, StateStream,
};
use weir_net::tls::{self, CertificateDer};
use weir_plugin::form;

use crate::exit::ExitFailure;
use crate::node::server::bounds::ServerBounds;
use crate::node::server::{
    AnswerStream, NodeServer, ReceivedBodyFault, ServerAnswer, ServerOptions, ServerPeer, ServerRequest, whole,
};
use crate::node::{status, system};

/// A node has one connection with one stream.
pub(super) const BOUNDS: ServerBounds = ServerBounds { connections: 1_280, streams: 1_024 };

/// The most characters of the names in a certificate that are told.
const MOST_NAMES_TOLD: usize = 200;
/// The last line for a node that does not read.
const UNREAD: &str = "{\"ended\":\"nothing was read for a long time\"}\n";

/// Answers requests.
pub(super) struct ControllerService {
    feed: StateFeed,
    node_names: NodeNames,
    /// If nodes get their certificates here.
    issuer: Option<CertificateIssuer>,
}

/// Starts a server whose requests `answer` answers. An error has been reported when this returns it.
pub(super) fn start<F>(
    options: ServerOptions,
    service: &Arc<ControllerService>,
    answer: fn(Arc<ControllerService>, ServerRequest) -> F,
) -> Result<NodeServer, ExitFailure>
where
    F: Future<Output = Response<ServerAnswer>> + Send + 'static,
{
    let service = Arc::clone(service);
    let started = NodeServer::start(options, Arc::new(move |request| Box::pin(answer(Arc::clone(&service), request))));
    started.map_err(|error| system("a thread or its async runtime cannot be started", &error))
}

impl ControllerService {
    pub(super) fn new(feed: StateFeed, node_names: NodeNames, issuer: Option<CertificateIssuer>) -> ControllerService {
        ControllerService { feed, node_names, issuer }
    }

    /// Answers nodes. The TLS handshake has shown that the authority has issued the certificate of the client, if it has one: where
    /// nodes get theirs here, they come without one first.
    pub(super) async fn state(self: Arc<Self>, request: ServerRequest) -> Response<ServerAnswer> {
        if let Some(issuer) = &self.issuer
            && request.head.uri.path() == "/v1/certificate"
        {
            return whole(certificate(issuer, request).await);
        }
        if let Some(refused) = self.refusal(request.certificate.as_deref()) {
            return whole(refused);
        }
        let (method, path) = (request.head.method.clone(), request.head.uri.path().to_owned());
        match (&method, &*path) {
            (&Method::GET, "/v1/state") => self.stream(&request),
            (&Method::POST, "/v1/report") => whole(self.report(request).await),
            (&Method::GET, "/v1/nodes") => whole(status::json(StatusCode::OK, &self.feed.page())),
            (_, "/v1/state" | "/v1/nodes") => whole(not_allowed("GET")),
            (_, "/v1/report") => whole(not_allowed("POST")),
            _ => {
                let more = if self.issuer.is_some() { " /v1/certificate" } else { "" };
                let told = format!("the paths are /v1/state /v1/report /v1/nodes{more}\n");
                whole(status::text(StatusCode::NOT_FOUND, told))
            }
        }
    }

    /// The answer to a client whose certificate is not that of a node: controllers and other programs may have one of the same authority.
    fn refusal(&self, certificate: Option<&CertificateDer<'static>>) -> Option<Response<Bytes>> {
        if certificate.is_none() && self.issuer.is_some() {
            let problem = "a client certificate is needed: POST /v1/certificate, with a token, issues it\n".to_owned();
            return Some(unauthorized(problem));
        }
        let names = certificate.map(tls::identities).unwrap_or_default();
        if names.iter().any(|name| self.node_names.has(name)) {
            return None;
        }
        let is_for = match &*names {
            [] => "no name".to_owned(),
            [..] => names.join(", ").chars().take(MOST_NAMES_TOLD).collect(),
        };
        let problem = format!(
            "the client certificate is for {is_for}, and those of nodes for {} (`controller.node_names`)\n",
            self.node_names
        );
        Some(status::text(StatusCode::FORBIDDEN, problem))
    }

    fn stream(&self, request: &ServerRequest) -> Response<ServerAnswer> {
        let (node, is_for_writer) = match introduction(request) {
            Ok(introduced) => introduced,
            Err(problem) => return whole(status::text(StatusCode::BAD_REQUEST, problem)),
        };
        if is_for_writer && !self.feed.writes_statuses() {
            return whole(unavailable("this controller does not write the statuses\n".to_owned()));
        }
        let Some(permit) = request.progress.open_stream() else {
            return whole(unavailable(format!(
                "there are as many nodes as there may be: {}, half of them of one client address\n",
                BOUNDS.streams
            )));
        };
        let Some(stream) = self.feed.open(node) else {
            return whole(unavailable("the cluster has not been read yet\n".to_owned()));
        };
        let (source, last_words) = (Box::new(FeedStream(stream)), Bytes::from_static(UNREAD.as_bytes()));
        let mut answer = Response::new(ServerAnswer::Stream { permit, source, last_words });
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
        answer
    }

    async fn report(&self, request: ServerRequest) -> Response<Bytes> {
        let text = match request.body.read(MOST_REPORT).await {
            Ok(text) => text,
            Err(ReceivedBodyFault::TooLarge) => {
                let problem = format!("a report may have {MOST_REPORT} bytes\n");
                return status::text(StatusCode::PAYLOAD_TOO_LARGE, problem);
            }
            Err(_) => return status::text(StatusCode::BAD_REQUEST, "the report is not complete\n".to_owned()),
        };
        match self.feed.report(&text) {
            Ok(true) => status::text(StatusCode::NO_CONTENT, String::new()),
            Ok(false) => {
                status::text(StatusCode::NOT_FOUND, "this controller has no such stream; open one\n".to_owned())
            }
            Err(problem) => status::text(StatusCode::BAD_REQUEST, format!("{problem}\n")),
        }
    }

    fn page(&self) -> Value {
        let mut page = self.feed.page();
        if let Some(issuer) = &self.issuer {
            page["certificates"] = issuer.page();
        }
        page
    }

    /// Answers requests about the controller itself: its status and probes.
    pub(super) async fn status(self: Arc<Self>, request: ServerRequest) -> Response<ServerAnswer> {
        let local = match request.peer {
            ServerPeer::Tcp { local, .. } => local.ip(),
            ServerPeer::Unix => IpAddr::from([127, 0, 0, 1]),
        };
        if let Some(refused) = status::refusal(&request.head, local) {
            return whole(refused);
        }
        whole(match request.head.uri.path() {
            "/status" => status::json(StatusCode::OK, &self.page()),
            "/status/ready" | "/readyz" | "/healthz"
                if self.issuer.as_ref().is_some_and(|issuer| !issuer.is_ready()) =>
            {
                unavailable("there is no authority for certificates yet\n".to_owned())
            }
            "/status/ready" | "/readyz" | "/healthz" if !self.feed.is_ready() => {
                unavailable("the cluster has not been read yet\n".to_owned())
            }
            "/status/ready" | "/readyz" | "/healthz" | "/livez" => status::text(StatusCode::OK, "ok\n".to_owned()),
            _ => status::text(StatusCode::NOT_FOUND, "the paths are /status /status/ready /livez /readyz\n".to_owned()),
        })
    }
}

/// Answers a node that asks for a certificate.
async fn certificate(issuer: &CertificateIssuer, request: ServerRequest) -> Response<Bytes> {
    if request.head.method != Method::POST {
        return not_allowed("POST");
    }
    let token = request.head.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = token.and_then(bearer_token).unwrap_or_default().to_owned();
    let client = match request.peer {
        ServerPeer::Tcp { remote, .. } => remote.ip(),
        ServerPeer::Unix => IpAddr::from([127, 0, 0, 1]),
    };
    let text = match request.body.read(MOST_SIGNING_REQUEST).await {
        Ok(text) => text,
        Err(ReceivedBodyFault::TooLarge) => {
            let problem = format!("a request for a certificate may have {MOST_SIGNING_REQUEST} bytes\n");
            return status::text(StatusCode::PAYLOAD_TOO_LARGE, problem);
        }
        Err(_) => return status::text(StatusCode::BAD_REQUEST, "the request is not complete\n".to_owned()),
    };
    match issuer.enrol(client, &token, &text).await {
        Ok(issued) => status::text(StatusCode::OK, issued),
        Err(refused) => {
            let problem = format!("{refused}\n");
            match refused {
                EnrolmentRefusal::Request(_) => status::text(StatusCode::BAD_REQUEST, problem),
                EnrolmentRefusal::Token(_) => unauthorized(problem),
                EnrolmentRefusal::Account(_) => status::text(StatusCode::FORBIDDEN, problem),
                EnrolmentRefusal::Later(_) => unavailable(problem),
            }
        }
    }
}

/// The token in a header `Authorization`. The scheme is not case-sensitive (RFC 9110 section 11.1).
fn bearer_token(value: &str) -> Option<&str> {
    let (scheme, token) = value.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Says by which scheme a client proves itself.
fn unauthorized(problem: String) -> Response<Bytes> {
    let mut refused = status::text(StatusCode::UNAUTHORIZED, problem);
    refused.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    refused
}

/// Who opens a stream, from the query: `node` and `version`; and whether only the controller that writes the statuses is meant, by
/// `if=writer`.
fn introduction(request: &ServerRequest) -> Result<(NodeIntroduction, bool), String> {
    let (mut name, mut version, mut is_for_writer) = (String::new(), String::new(), false);
    for (key, value) in form::pairs(request.head.uri.query().unwrap_or_default().as_bytes()) {
        if value.len() > MOST_NODE_NAME {
            return Err(format!("an argument may have {MOST_NODE_NAME} bytes\n"));
        }
        let value = String::from_utf8_lossy(&value).into_owned();
        match &*key {
            b"node" => name = value,
            b"version" => version = value,
            b"if" => is_for_writer = value == "writer",
            // Later versions may have more.
            _ => {}
        }
    }
    Ok((NodeIntroduction { name, version, address: request.peer.to_string() }, is_for_writer))
}

fn not_allowed(allowed: &'static str) -> Response<Bytes> {
    let mut refused = status::text(StatusCode::METHOD_NOT_ALLOWED, format!("only {allowed} is supported\n"));
    refused.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    refused
}

fn unavailable(problem: String) -> Response<Bytes> {
    let mut refused = status::text(StatusCode::SERVICE_UNAVAILABLE, problem);
    refused.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    refused
}

struct FeedStream(StateStream);

impl AnswerStream for FeedStream {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.0.poll_piece(context)
    }
}

#[cfg(test)]
mod tests {
    use super::bearer_token;

    #[test]
    fn a_token_is_read_whatever_the_case_of_its_scheme() {
        for good in ["Bearer a", "bearer a", "BEARER  a "] {
            assert_eq!(bearer_token(good), Some("a"), "{good}");
        }
        for other in ["a", "Basic a", "", "Bearer"] {
            assert_eq!(bearer_token(other), None, "{other}");
        }
    }
}
