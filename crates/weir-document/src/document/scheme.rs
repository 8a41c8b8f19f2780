//! APISIX `scheme`: the protocol between the gateway and an upstream.

use weir_gateway::snapshot::Transport;

/// The protocol of an upstream (APISIX `scheme`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    #[default]
    Http,
    Https,
    /// HTTP/2 without TLS; `Grpcs`: with TLS.
    Grpc,
    Grpcs,
    /// Bytes without HTTP, from stream routes; `Tls`: over TLS.
    Tcp,
    Tls,
    /// Datagrams, from stream routes.
    Udp,
}

/// In place of a port: nodes have none by default.
pub(super) const NO_PORT: u16 = 0;

impl Scheme {
    /// The default port of nodes; [`NO_PORT`] if there is none.
    pub fn port(self) -> u16 {
        match self {
            Scheme::Http | Scheme::Grpc => 80,
            Scheme::Https | Scheme::Grpcs => 443,
            Scheme::Tcp | Scheme::Tls | Scheme::Udp => NO_PORT,
        }
    }

    pub fn is_secured(self) -> bool {
        matches!(self, Scheme::Https | Scheme::Grpcs | Scheme::Tls)
    }

    /// What is carried, if only stream routes can use it.
    pub fn of_streams(self) -> Option<Transport> {
        match self {
            Scheme::Tcp | Scheme::Tls => Some(Transport::Tcp),
            Scheme::Udp => Some(Transport::Udp),
            Scheme::Http | Scheme::Https | Scheme::Grpc | Scheme::Grpcs => None,
        }
    }

    /// The scheme of URLs by which the gateway's own client calls such an upstream; `None` if it speaks no HTTP/1.1.
    pub fn of_calls(self) -> Option<&'static str> {
        match self {
            Scheme::Http => Some("http"),
            Scheme::Https => Some("https"),
            Scheme::Grpc | Scheme::Grpcs | Scheme::Tcp | Scheme::Tls | Scheme::Udp => None,
        }
    }

    pub(super) fn is_http2(self) -> bool {
        matches!(self, Scheme::Grpc | Scheme::Grpcs)
    }
}

pub(super) const SCHEMES: &[(&str, Scheme)] = &[
    ("http", Scheme::Http),
    ("https", Scheme::Https),
    ("grpc", Scheme::Grpc),
    ("grpcs", Scheme::Grpcs),
    ("tcp", Scheme::Tcp),
    ("tls", Scheme::Tls),
    ("udp", Scheme::Udp),
];
