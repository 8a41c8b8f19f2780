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
}

impl Scheme {
    /// The default port of nodes.
    pub fn port(self) -> u16 {
        match self {
            Scheme::Http | Scheme::Grpc => 80,
            Scheme::Https | Scheme::Grpcs => 443,
        }
    }

    pub fn is_secured(self) -> bool {
        matches!(self, Scheme::Https | Scheme::Grpcs)
    }

    pub(super) fn is_http2(self) -> bool {
        matches!(self, Scheme::Grpc | Scheme::Grpcs)
    }
}

pub(super) const SCHEMES: &[(&str, Scheme)] =
    &[("http", Scheme::Http), ("https", Scheme::Https), ("grpc", Scheme::Grpc), ("grpcs", Scheme::Grpcs)];
