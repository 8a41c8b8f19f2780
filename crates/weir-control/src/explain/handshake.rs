//! What an https request meets before its route: the TLS handshake, and whether its connection may ask for its host.

use weir_gateway::snapshot::{Admission, Snapshot};
use weir_plugin::{Exchange, Tls};

/// Why a request does not reach its route, or only with a certificate of its client.
pub(crate) struct HandshakeNote {
    /// The server name that has no certificate; `None` if it has one.
    pub(crate) unknown_name: Option<Box<str>>,
    pub(crate) text: String,
}

const NO_SVID: &str = "The certificate for this server name comes from the SPIFFE Workload API, which has not given it or was not asked here. \
                       Without it, the TLS handshake fails.";

/// `None` if nothing is to be said: the request is in the clear, or its connection may ask for its host. A node without certificates does
/// not end TLS itself. The exchange has the server name.
pub(super) fn note(snapshot: &Snapshot, exchange: &Exchange) -> Option<HandshakeNote> {
    let named = exchange.tls.as_deref()?;
    if snapshot.certificates.is_empty() {
        return None;
    }
    let (listeners, port) = (&snapshot.listeners, exchange.client.public_port);
    let listener = |host: &[u8]| listeners.find_by_port(port, host);
    let name = named.server_name.as_deref();
    let of_name = listener(name.unwrap_or_default().as_bytes());
    let certificates = |id: Option<&str>| snapshot.certificates.of_listener(id);
    let certificate = of_name.and_then(|listener| certificates(listener.id.as_deref()).find(name));
    let Some(certificate) = certificate else {
        let shown = name.unwrap_or("*");
        let text = format!(
            "No entry of `ssls` has a certificate for the server name `{shown}`, so the TLS handshake fails (unrecognized_name)."
        );
        return Some(HandshakeNote { unknown_name: Some(shown.into()), text });
    };
    let host = exchange.request.host();
    let of_host = listener(host);
    let is_elsewhere = of_host.zip(of_name).is_some_and(|(wanted, named)| !std::ptr::eq(wanted, named));
    let tls = Tls { server_name: named.server_name.clone(), proof: certificate.server.scope(), ..Tls::default() };
    let id = of_host.and_then(|listener| listener.id.as_deref());
    let text = match certificates(id).admit(host, exchange.request.path(), &tls) {
        _ if is_elsewhere && name.is_some() => misdirected(name, host, "which is that of another listener"),
        Admission::Misdirected => misdirected(name, host, "which has a certificate with other rules for clients"),
        Admission::Unproved => {
            "The client needs a certificate of its own: `client` of the entry of `ssls` demands it.".to_owned()
        }
        Admission::Admitted | Admission::Proved if certificate.server.has_keys() => return None,
        Admission::Admitted | Admission::Proved => NO_SVID.to_owned(),
    };
    Some(HandshakeNote { unknown_name: None, text })
}

fn misdirected(name: Option<&str>, host: &[u8], reason: &str) -> String {
    let (name, host) = (name.unwrap_or_default(), String::from_utf8_lossy(host));
    format!("The answer is 421: the handshake named `{name}`, and the request is for `{host}`, {reason}.")
}
