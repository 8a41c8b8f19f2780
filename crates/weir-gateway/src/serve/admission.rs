//! Checks and settings that apply to every request, whatever its route.

use weir_plugin::{Exchange, Stop};
use weir_proto::{Framing, Method};

use crate::certificates::Admission;
use crate::worker::snapshot::WorkerSnapshot;

/// Refuses requests that no route may serve, and sets the exchange's fields that do not depend on the route.
pub(super) fn admit(current: &WorkerSnapshot, exchange: &mut Exchange) -> Result<(), Stop> {
    if let Some(stop) = exchange.stop() {
        return Err(stop); // refused while its head was read
    }
    let clients = &current.snapshot.clients;
    if !clients.trusted_addresses.is_empty() {
        exchange.client.trusted = clients.trusts(exchange.client.peer.ip());
    }
    if exchange.request.method == Method::Connect {
        return Err(Stop::ConnectMethod);
    }
    if let Some(tls) = &exchange.tls {
        let mut certificates = &current.snapshot.certificates;
        let listeners = &current.snapshot.listeners;
        if !listeners.is_empty() {
            let (local, host) = (exchange.client.local, exchange.request.host());
            if tls.server_name.as_ref().is_some_and(|name| listeners.is_misdirected(local, name.as_bytes(), host)) {
                return Err(Stop::Misdirected);
            }
            certificates = certificates.of_listener(listeners.find(local, host).and_then(|found| found.id.as_deref()));
        }
        match certificates.admit(exchange.request.host(), exchange.request.path(), tls) {
            Admission::Admitted => exchange.client_is_proved = false,
            Admission::Proved => exchange.client_is_proved = true,
            Admission::Misdirected => return Err(Stop::Misdirected),
            Admission::Unproved => return Err(Stop::NoCertificate),
        }
    }
    exchange.body_limit = clients.body_bytes.unwrap_or(u64::MAX);
    match exchange.request.framing {
        Framing::Sized(length) if length > exchange.body_limit => Err(Stop::BodyTooLarge),
        _ => Ok(()),
    }
}
