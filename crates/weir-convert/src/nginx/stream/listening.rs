//! `listen` of the servers of `stream`.

use crate::nginx::Conversion;
use crate::nginx::listening::ListenPlace;
use crate::nginx::syntax::Directive;

pub(super) struct StreamListen<'a> {
    /// The position of its server among all.
    pub server: usize,
    pub directive: &'a Directive,
    pub address: ListenPlace<'a>,
    pub is_udp: bool,
}

/// The addresses of all servers.
pub(super) fn all<'a>(conversion: &mut Conversion, servers: &[&'a Directive]) -> Vec<StreamListen<'a>> {
    let mut all = Vec::new();
    for (server, block) in servers.iter().enumerate() {
        for directive in block.children().iter().filter(|directive| directive.name == "listen") {
            if let Some(address) = ListenPlace::of(conversion, directive, None) {
                let is_udp = directive.after_first().iter().any(|argument| argument == "udp");
                all.push(StreamListen { server, directive, address, is_udp });
            }
        }
    }
    all
}

impl StreamListen<'_> {
    pub(super) fn has(&self, parameter: &str) -> bool {
        self.directive.after_first().iter().any(|argument| argument == parameter)
    }

    /// Whether another server or the same one listens at the same port of other addresses.
    pub(super) fn shares_port(&self, all: &[StreamListen]) -> bool {
        all.iter().any(|other| self.has_port_of(other) && other.address.host != self.address.host)
    }

    /// The servers at the same address, the default one first.
    pub(super) fn servers(&self, all: &[StreamListen]) -> Vec<usize> {
        let same = || all.iter().filter(|other| self.has_port_of(other) && other.address.host == self.address.host);
        let mut servers: Vec<usize> = same().map(|listen| listen.server).collect();
        if let Some(default) = same().position(|listen| listen.has("default_server")) {
            servers.swap(0, default);
        }
        servers
    }

    fn has_port_of(&self, other: &StreamListen) -> bool {
        (self.address.port, self.is_udp) == (other.address.port, other.is_udp)
    }
}
