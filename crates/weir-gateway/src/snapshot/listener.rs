//! What a listener is: what clients speak on an address.

pub use weir_net::listener::Transport;

/// The protocols of a listener, from the transport up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListenerProtocol {
    /// HTTP/1.1 over TCP; a client that begins with the preface of HTTP/2 gets that.
    Http,
    /// HTTP/2 over TCP, and nothing else (`h2c`).
    Http2,
    /// TLS over TCP; ALPN chooses HTTP/1.1 or HTTP/2.
    Https,
    /// Bytes of any protocol over TCP, for stream routes.
    Tcp,
    /// The same over TLS, which ends here.
    Tls,
    /// TLS that is passed through to the endpoint, by the server name in the ClientHello.
    TlsPassthrough,
    /// TLS that ends here or is passed through, as the stream route says.
    TlsByRoute,
    /// Datagrams of any protocol over UDP, for stream routes.
    Udp,
}

impl ListenerProtocol {
    /// Whether connections begin with a handshake of TLS with this node, all or some of them.
    pub(crate) fn begins_with_handshake(self) -> bool {
        matches!(self, ListenerProtocol::Https | ListenerProtocol::Tls | ListenerProtocol::TlsByRoute)
    }
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
    pub const ALL: [ListenerProtocol; 8] = [
        ListenerProtocol::Http,
        ListenerProtocol::Https,
        ListenerProtocol::Http2,
        ListenerProtocol::Tcp,
        ListenerProtocol::Tls,
        ListenerProtocol::TlsPassthrough,
        ListenerProtocol::TlsByRoute,
        ListenerProtocol::Udp,
    ];

    pub fn transport(self) -> Transport {
        match self {
            ListenerProtocol::Udp => Transport::Udp,
            _ => Transport::Tcp,
        }
    }

    /// Whether what arrives is for stream routes.
    pub fn is_stream(self) -> bool {
        !matches!(self, ListenerProtocol::Http | ListenerProtocol::Http2 | ListenerProtocol::Https)
    }

    /// Whether connections use TLS that ends here, and need a certificate.
    pub fn uses_tls(self) -> bool {
        matches!(self, ListenerProtocol::Https | ListenerProtocol::Tls | ListenerProtocol::TlsByRoute)
    }

    /// Whether it carries HTTP, and not bytes for stream routes.
    pub fn is_http(self) -> bool {
        matches!(self, ListenerProtocol::Http | ListenerProtocol::Http2 | ListenerProtocol::Https)
    }
}

impl ListenerSettings {
    /// Every listener of a transport that there can be.
    pub fn all(transport: Transport) -> impl Iterator<Item = ListenerSettings> {
        [false, true].into_iter().flat_map(move |proxy_protocol| {
            let protocols = ListenerProtocol::ALL.into_iter().filter(move |protocol| protocol.transport() == transport);
            protocols.map(move |protocol| ListenerSettings { protocol, proxy_protocol })
        })
    }

    /// The name in messages, and for the process that takes the sockets over.
    pub fn name(self) -> &'static str {
        match (self.proxy_protocol, self.protocol) {
            (false, ListenerProtocol::Http) => "http",
            (false, ListenerProtocol::Http2) => "h2c",
            (false, ListenerProtocol::Https) => "https",
            (false, ListenerProtocol::Tcp) => "tcp",
            (false, ListenerProtocol::Tls) => "tls",
            (false, ListenerProtocol::TlsPassthrough) => "tls-passthrough",
            (false, ListenerProtocol::TlsByRoute) => "tls-by-route",
            // Datagrams have no PROXY header.
            (_, ListenerProtocol::Udp) => "udp",
            (true, ListenerProtocol::Http) => "proxy-http",
            (true, ListenerProtocol::Http2) => "proxy-h2c",
            (true, ListenerProtocol::Https) => "proxy-https",
            (true, ListenerProtocol::Tcp) => "proxy-tcp",
            (true, ListenerProtocol::Tls) => "proxy-tls",
            (true, ListenerProtocol::TlsPassthrough) => "proxy-tls-passthrough",
            (true, ListenerProtocol::TlsByRoute) => "proxy-tls-by-route",
        }
    }
}

impl From<ListenerProtocol> for ListenerSettings {
    fn from(protocol: ListenerProtocol) -> ListenerSettings {
        ListenerSettings { protocol, proxy_protocol: false }
    }
}
