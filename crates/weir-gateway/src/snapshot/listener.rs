//! What a listener is: what clients speak on an address.

/// The protocols of a listener, from the transport up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListenerProtocol {
    /// HTTP/1.1 over TCP; a client that begins with the preface of HTTP/2 gets that.
    Http,
    /// HTTP/2 over TCP, and nothing else (`h2c`).
    Http2,
    /// TLS over TCP; ALPN chooses HTTP/1.1 or HTTP/2.
    Https,
}

/// What a listener takes its connections from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    Tcp,
}

/// The settings of one listener. They apply to the connections that it accepts from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerSettings {
    pub protocol: ListenerProtocol,
    /// A PROXY protocol header comes first, in which a load balancer names the client.
    pub proxy_protocol: bool,
}

impl ListenerProtocol {
    /// All of them.
    pub const ALL: [ListenerProtocol; 3] = [ListenerProtocol::Http, ListenerProtocol::Https, ListenerProtocol::Http2];

    pub fn transport(self) -> Transport {
        match self {
            ListenerProtocol::Http | ListenerProtocol::Http2 | ListenerProtocol::Https => Transport::Tcp,
        }
    }

    /// Whether connections use TLS, and need a certificate.
    pub fn uses_tls(self) -> bool {
        match self {
            ListenerProtocol::Https => true,
            ListenerProtocol::Http | ListenerProtocol::Http2 => false,
        }
    }
}

impl ListenerSettings {
    /// Every listener that there can be.
    pub fn all() -> impl Iterator<Item = ListenerSettings> {
        [false, true].into_iter().flat_map(|proxy_protocol| {
            ListenerProtocol::ALL.map(|protocol| ListenerSettings { protocol, proxy_protocol })
        })
    }

    /// The name in messages, and for the process that takes the sockets over.
    pub fn name(self) -> &'static str {
        match (self.proxy_protocol, self.protocol) {
            (false, ListenerProtocol::Http) => "http",
            (false, ListenerProtocol::Http2) => "h2c",
            (false, ListenerProtocol::Https) => "https",
            (true, ListenerProtocol::Http) => "proxy-http",
            (true, ListenerProtocol::Http2) => "proxy-h2c",
            (true, ListenerProtocol::Https) => "proxy-https",
        }
    }
}

impl From<ListenerProtocol> for ListenerSettings {
    fn from(protocol: ListenerProtocol) -> ListenerSettings {
        ListenerSettings { protocol, proxy_protocol: false }
    }
}
