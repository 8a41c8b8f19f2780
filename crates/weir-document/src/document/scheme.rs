//! APISIX `scheme`: the protocol between the gateway and an upstream.

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
}

/// In place of a port: nodes have none by default.
pub(super) const NO_PORT: u16 = 0;

impl Scheme {
    /// The default port of nodes; [`NO_PORT`] if there is none.
    pub fn port(self) -> u16 {
        match self {
            Scheme::Http | Scheme::Grpc => 80,
            Scheme::Https | Scheme::Grpcs => 443,
            Scheme::Tcp | Scheme::Tls => NO_PORT,
        }
    }

    pub fn is_secured(self) -> bool {
        matches!(self, Scheme::Https | Scheme::Grpcs | Scheme::Tls)
    }

    /// Whether only stream routes can use it.
    pub fn is_of_streams(self) -> bool {
        matches!(self, Scheme::Tcp | Scheme::Tls)
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
];
