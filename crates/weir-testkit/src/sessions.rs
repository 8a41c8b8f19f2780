//! TLS sessions that a client offers to every server.

use rustls::NamedGroup;
use rustls::client::{ClientSessionMemoryCache, ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

/// Stores the sessions of all servers under one name, so that a server is offered those of others, which it must refuse.
#[derive(Debug)]
pub(crate) struct Mixed(ClientSessionMemoryCache);

impl Mixed {
    pub(crate) fn new() -> Mixed {
        Mixed(ClientSessionMemoryCache::new(16))
    }
}

fn any_server() -> ServerName<'static> {
    ServerName::try_from("any.example").expect("it is a name")
}

impl ClientSessionStore for Mixed {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.0.set_kx_hint(any_server(), group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.0.kx_hint(&any_server())
    }

    fn set_tls12_session(&self, _: ServerName<'static>, session: Tls12ClientSessionValue) {
        self.0.set_tls12_session(any_server(), session);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.0.tls12_session(&any_server())
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.0.remove_tls12_session(&any_server());
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        self.0.insert_tls13_ticket(any_server(), ticket);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.0.take_tls13_ticket(&any_server())
    }
}
