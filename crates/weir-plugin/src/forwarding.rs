//! Which forwarding fields of a request count (`X-Real-IP`, `X-Forwarded-*`). The gateway says itself what none that counts says.

use weir_proto::authority::HostPort;
use weir_proto::{Field, Head, Known, RequestHead};

use crate::exchange::ClientFacts;

impl ClientFacts {
    /// Whether a forwarding field is kept: a trusted client's fields are, and so are those that a plugin has added.
    #[inline]
    pub fn trusts(&self, field: &Field) -> bool {
        self.trusted || field.added
    }

    /// The same for `X-Real-IP`. The client's own is not kept if a plugin has determined another client address.
    #[inline]
    pub fn trusts_real_ip(&self, field: &Field) -> bool {
        self.trusted && self.addr == self.peer.ip() || field.added
    }
}

/// Which forwarding fields are present in a request and kept.
#[derive(Debug, Default)]
pub struct TrustedForwarding {
    pub has_real_ip: bool,
    pub has_list: bool,
    pub has_proto: bool,
    pub has_host: bool,
    pub has_port: bool,
}

impl TrustedForwarding {
    #[inline]
    pub fn by(client: &ClientFacts, head: &Head) -> TrustedForwarding {
        let mut said = TrustedForwarding::default();
        for field in head.present() {
            let place = match field.known {
                Known::XRealIp => {
                    said.has_real_ip |= client.trusts_real_ip(field);
                    continue;
                }
                Known::XForwardedFor => &mut said.has_list,
                Known::XForwardedProto => &mut said.has_proto,
                Known::XForwardedHost => &mut said.has_host,
                Known::XForwardedPort => &mut said.has_port,
                _ => continue,
            };
            *place |= client.trusts(field);
        }
        said
    }

    /// The port for `X-Forwarded-Port`: the one that the client addressed, taken from its `Host`, since with a mapped port it differs from
    /// the local one. If a trusted peer sent `X-Forwarded-Host` or `X-Forwarded-Proto`, the port is taken from these.
    #[inline]
    pub fn port(&self, client: &ClientFacts, request: &RequestHead) -> u16 {
        self.stated_port(client, request).unwrap_or(client.public_port)
    }

    #[inline]
    fn stated_port(&self, client: &ClientFacts, request: &RequestHead) -> Option<u16> {
        let head = &request.head;
        let value = |known: Known| {
            let mut fields = head.present().filter(|field| field.known == known);
            fields.find(|field| client.trusts(field)).map(|field| head.slice(field.value))
        };
        let port = match self.has_host {
            true => value(Known::XForwardedHost).and_then(|host| HostPort::parse(host).ok()?.port),
            false => request.port(),
        };
        if port.is_some() || !self.has_proto {
            return port;
        }
        match value(Known::XForwardedProto)? {
            b"https" => Some(443),
            b"http" => Some(80),
            _ => None,
        }
    }
}
