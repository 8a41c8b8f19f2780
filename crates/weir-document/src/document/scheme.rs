//! APISIX `scheme`: the protocol between the gateway and an upstream.

use crate::text::read::MapReader;

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

pub(super) fn read(fields: &MapReader) -> Scheme {
    const SCHEMES: &[(&str, Option<Scheme>)] = &[
        ("http", Some(Scheme::Http)),
        ("https", Some(Scheme::Https)),
        ("grpc", Some(Scheme::Grpc)),
        ("grpcs", Some(Scheme::Grpcs)),
        ("tcp", None),
        ("tls", None),
        ("udp", None),
        ("kafka", None),
    ];
    let Some(at) = fields.get("scheme") else { return Scheme::default() };
    match at.choice(SCHEMES) {
        Some(Some(scheme)) => scheme,
        Some(None) => {
            at.report_advising("is not supported yet by this version", "write `http`, `https`, `grpc` or `grpcs`");
            Scheme::default()
        }
        None => Scheme::default(),
    }
}
