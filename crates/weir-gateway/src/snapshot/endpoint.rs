//! An endpoint, and its active checks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_net::proxy_protocol::ProxyProtocolVersion;
use weir_net::tls::{ServerName, TlsConnector, server_name};

/// One `host:port` of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// As written: `host:port`, or `[v6]:port`. Name and `addr` together identify its connections and its health.
    pub name: Box<str>,
    pub addr: SocketAddr,
    /// 0 is drained: it gets no new exchanges.
    pub weight: u32,
    pub priority: i64,
    /// The `Host` of `pass_host: node`: the host as written, with the port unless it is the scheme's own.
    pub host: Box<str>,
    /// APISIX `checks.active`.
    pub checks: Option<Arc<ActiveChecks>>,
}

/// APISIX `checks.active`: how the process checks whether an endpoint can serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveChecks {
    pub question: CheckSpec,
    /// The TLS settings of the check, if it uses TLS.
    pub tls: Option<CheckTls>,
    pub timeout: Duration,
    /// The most endpoints of one upstream that are checked at a time.
    pub concurrency: usize,
    /// The intervals between checks while the endpoint is in rotation, and while it is not.
    pub healthy_interval: Duration,
    pub unhealthy_interval: Duration,
    pub healthy_statuses: Vec<u16>,
    pub unhealthy_statuses: Vec<u16>,
    /// The number of successes in a row that bring the endpoint back, and of failures of each kind in a row that take it
    /// out.
    pub healthy_successes: u32,
    pub http_failures: u32,
    pub tcp_failures: u32,
    pub timeouts: u32,
}

/// What is checked, apart from intervals and thresholds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CheckSpec {
    /// The port, if it is not the one that traffic uses.
    pub port: Option<u16>,
    /// Begins the connection with a PROXY header of this version, without a client's address.
    pub proxy_protocol: Option<ProxyProtocolVersion>,
    pub kind: CheckKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CheckKind {
    /// The endpoint accepts a TCP connection.
    Tcp,
    /// The status of the response to this request.
    Http { asked: CheckRequest, http2: bool, tls: Option<CheckIdentity> },
    /// The answer of the gRPC health service for this service; an empty name stands for the server as a whole.
    Grpc { service: Box<str>, host: Box<str>, tls: Option<CheckIdentity> },
}

/// The request of a check.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CheckRequest {
    pub method: Box<str>,
    /// The path with the query.
    pub path: Box<str>,
    /// The `Host`, unless the headers name one.
    pub host: Box<str>,
    /// The header fields, each as `Name: value`.
    pub headers: Box<[Box<str>]>,
    pub body: Box<str>,
}

impl CheckRequest {
    /// `GET /` with this `Host`.
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

/// A check over TLS: the connector with its trusted authorities, and the server name to verify.
#[derive(Clone, Debug)]
pub struct CheckTls {
    pub client: TlsConnector,
    pub name: ServerName<'static>,
}

impl CheckTls {
    /// Verifies the name or address in `host`, or `addr` if `host` is neither.
    pub fn new(client: TlsConnector, host: &str, addr: SocketAddr) -> CheckTls {
        let name = client.server().cloned().or_else(|| server_name(host));
        let name = name.unwrap_or_else(|| ServerName::IpAddress(addr.ip().into()));
        CheckTls { client, name }
    }

    pub fn identity(&self) -> CheckIdentity {
        CheckIdentity { terms: self.client.id(), name: self.name.clone() }
    }
}

/// Equal if the TLS settings and the name are the same.
impl PartialEq for CheckTls {
    fn eq(&self, other: &CheckTls) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for CheckTls {}

/// What distinguishes two checks over TLS: the TLS settings, and the server name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CheckIdentity {
    terms: [u8; 32],
    name: ServerName<'static>,
}
