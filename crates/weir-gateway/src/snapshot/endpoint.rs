//! An endpoint, and how it is checked.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_net::proxy_protocol::ProxyProtocolVersion;
use weir_net::tls::{ServerName, TlsConnector, server_name};

/// One `host:port` of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// As written: `host:port`, or `[v6]:port`. With `addr` the identity of connections and health.
    pub name: Box<str>,
    pub addr: SocketAddr,
    /// 0 is drained: it gets nothing new.
    pub weight: u32,
    pub priority: i64,
    /// The `Host` of `pass_host: node`: the host as written, with the port unless it is the scheme's own.
    pub host: Box<str>,
    /// APISIX `checks.active`.
    pub checks: Option<Arc<ActiveChecks>>,
}

/// APISIX `checks.active`: how the process asks an endpoint whether it can serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveChecks {
    pub question: Question,
    /// How an endpoint is asked over TLS.
    pub tls: Option<CheckTls>,
    pub timeout: Duration,
    /// Endpoints of one upstream that are asked at a time.
    pub concurrency: usize,
    /// Between checks while the endpoint is in rotation, and while it is not.
    pub healthy_interval: Duration,
    pub unhealthy_interval: Duration,
    pub healthy_statuses: Vec<u16>,
    pub unhealthy_statuses: Vec<u16>,
    /// In a row, to come back; and by kind in a row, to be taken out.
    pub healthy_successes: u32,
    pub http_failures: u32,
    pub tcp_failures: u32,
    pub timeouts: u32,
}

/// What an endpoint is asked. The same question is asked once, however many upstreams need it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    /// Where, if not on the port that traffic goes to.
    pub port: Option<u16>,
    /// Sends a PROXY header without a client's address first.
    pub proxy_protocol: Option<ProxyProtocolVersion>,
    pub kind: CheckKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CheckKind {
    /// Does it take connections?
    Tcp,
    /// What does it answer to this request?
    Http { asked: CheckRequest, http2: bool, tls: Option<CheckIdentity> },
    /// Does it serve this service, as gRPC asks for health? An empty name is the server as a whole.
    Grpc { service: Box<str>, host: Box<str>, tls: Option<CheckIdentity> },
}

/// The request of a check.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CheckRequest {
    pub method: Box<str>,
    /// With the query.
    pub path: Box<str>,
    /// Whom it is for, unless the headers say so.
    pub host: Box<str>,
    /// Each as `Name: value`.
    pub headers: Box<[Box<str>]>,
    pub body: Box<str>,
}

impl CheckRequest {
    /// `GET /` of a host.
    pub fn of(host: &str) -> CheckRequest {
        CheckRequest {
            method: "GET".into(),
            path: "/".into(),
            host: host.into(),
            headers: Box::default(),
            body: "".into(),
        }
    }
}

/// A check over TLS: whom to believe, and who the endpoint has to be.
#[derive(Clone, Debug)]
pub struct CheckTls {
    pub client: TlsConnector,
    pub name: ServerName<'static>,
}

impl CheckTls {
    /// Asks for the name or address in `host`, or for `addr` where that is neither.
    pub fn new(client: TlsConnector, host: &str, addr: SocketAddr) -> CheckTls {
        let name = server_name(host).unwrap_or_else(|| ServerName::IpAddress(addr.ip().into()));
        CheckTls { client, name }
    }

    pub fn identity(&self) -> CheckIdentity {
        CheckIdentity { terms: self.client.id(), name: self.name.clone() }
    }
}

/// The same, if it is on the same terms.
impl PartialEq for CheckTls {
    fn eq(&self, other: &CheckTls) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for CheckTls {}

/// What two checks over TLS differ in: the terms, and the name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CheckIdentity {
    terms: [u8; 32],
    name: ServerName<'static>,
}
