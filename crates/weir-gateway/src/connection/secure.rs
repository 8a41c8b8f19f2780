//! The TLS handshake of a client connection.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;

use tokio::net::TcpStream;
use weir_net::handshake::{ACME_TLS, AcceptError, ClientHello, RequestedServer, accept_after, read_hello};
use weir_net::quic::QuicHandshake;
use weir_net::stream::Stream;
use weir_net::tls::{CertificateDer, CertificateFacts, Scope, Server};
use weir_plugin::{ClientCertificate, Tls};

use super::accepted::Accepted;
use super::{h1, h2, within_timeout};
use crate::context::lifecycle::{WaitsFor, WorkerPhase};
use crate::worker::TaskGuard;

/// The answer to a plain HTTP request on a TLS port.
const NOT_TLS: &str = "HTTP/1.1 400 Bad Request\r\nServer: weir\r\nContent-Type: text/plain; charset=utf-8\r\n\
                       Content-Length: 38\r\nConnection: close\r\n\r\n400 Bad Request: this port speaks TLS\n";

/// Serves one connection over TLS from accept to close.
pub(crate) async fn run(worker: TaskGuard, tcp: TcpStream, peer: SocketAddr) {
    let Some((mut stream, tls)) = handshake(&worker, tcp, peer, Offer::Http, None).await else { return };
    if is_validation(&stream) {
        return stream.send_close_notify();
    }
    let speaks_http2 = stream.tls().and_then(|session| session.protocol()) == Some(b"h2");
    let connection = Accepted::new(worker, stream, peer, Some(tls));
    match speaks_http2 {
        false => h1::run(connection).await,
        true => h2::spawn(connection),
    }
}

/// Whether the handshake itself was the validation of a name by an authority, which no data follows (RFC 8737 §3).
pub(super) fn is_validation(stream: &Stream) -> bool {
    stream.tls().and_then(|session| session.protocol()) == Some(ACME_TLS.as_bytes())
}

/// The application protocols that are offered by ALPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offer {
    Http,
    /// None: what a stream carries is between the client and the endpoint.
    Nothing,
}

/// `None` if the handshake failed. `received`: the ClientHello, if it has been read.
pub(super) async fn handshake(
    worker: &TaskGuard,
    tcp: TcpStream,
    peer: SocketAddr,
    offer: Offer,
    received: Option<ClientHello>,
) -> Option<(Stream, Rc<Tls>)> {
    let timeout_ns = worker.current().snapshot.clients.handshake_timeout.as_nanos() as u64;
    let deadline_ns = worker.now_ns().saturating_add(timeout_ns);
    let is_begun =
        received.is_some() || within_timeout(worker, WaitsFor::FirstByte, deadline_ns, tcp.readable()).await.is_some();
    let mut proof = Scope::default();
    let local = worker.service().local_addr(|| tcp.local_addr());
    // Boxed, since the handshake is over before the long part of a connection's life, and its state would take room all the
    // time.
    let choose = |wanted: &RequestedServer| {
        let server = server(worker, wanted, local, offer)?;
        proof = server.scope();
        Some(server)
    };
    let accepting = Box::pin(async {
        let hello = match received {
            Some(hello) => hello,
            None => read_hello(&tcp).await?,
        };
        accept_after(tcp, hello, choose, async || worker.handshakes.next().await).await
    });
    let outcome = match is_begun {
        true => within_timeout(worker, WaitsFor::RestOfHead, deadline_ns, accepting).await,
        false => {
            drop(accepting);
            None
        }
    };
    match outcome {
        Some(Ok(stream)) => {
            let tls = Rc::new(tls_facts(&stream, proof));
            worker.metrics.tls_handshakes.increment();
            if tls.resumed {
                worker.metrics.tls_resumptions.increment();
            }
            return Some((stream, tls));
        }
        Some(Err(error)) => {
            tracing::info!("TLS handshake with {peer} failed: {error}");
            if let (AcceptError::NotTls(stream, said), Offer::Http) = (error, offer) {
                answer_plain_http(stream, &said).await;
            }
        }
        None if worker.now_ns() < deadline_ns && worker.service().phase() != WorkerPhase::Stopping => {
            tracing::info!("TLS handshake with {peer} aborted: the connection limit of the worker is reached");
        }
        None => tracing::info!("TLS handshake with {peer} timed out after {} s", timeout_ns as f64 / 1e9),
    }
    worker.metrics.tls_failures.increment();
    None
}

/// The configuration for the requested server. `None` if there is no certificate for it.
fn server(worker: &TaskGuard, wanted: &RequestedServer, local: Option<SocketAddr>, offer: Offer) -> Option<Server> {
    // The newest configuration: the client may have taken long to send its `ClientHello`.
    let current = worker.current();
    let certificates = &current.snapshot.certificates;
    let name = wanted.name.as_deref();
    if wanted.proof
        && let Some(server) = certificates.challenge_certificate(name)
    {
        return Some(server);
    }
    let certificate = current.snapshot.certificate_of(local, name)?;
    Some(match offer {
        Offer::Http => certificate.server.clone(),
        Offer::Nothing => certificate.server.without_protocols(),
    })
}

/// The facts of a connection of QUIC.
pub(super) fn quic_facts(handshake: &QuicHandshake) -> Tls {
    Tls {
        version: "TLSv1.3",
        cipher: handshake.cipher,
        curve: handshake.curve,
        server_name: handshake.server_name.clone(),
        resumed: handshake.resumed,
        certificate: handshake.certificate.as_ref().map(certificate),
        proof: handshake.scope,
    }
}

fn tls_facts(stream: &Stream, proof: Scope) -> Tls {
    let session = stream.tls().expect("its handshake is done");
    Tls {
        version: session.version(),
        cipher: session.cipher(),
        curve: session.curve(),
        server_name: session.server_name().map(Box::from),
        resumed: session.is_resumed(),
        certificate: session.peer_certificate().map(certificate),
        proof,
    }
}

fn certificate(certificate: &CertificateDer<'_>) -> ClientCertificate {
    // The certificate was verified; fields that cannot be parsed stay empty.
    let Ok((facts, names)) = CertificateFacts::of_client(certificate) else { return ClientCertificate::default() };
    ClientCertificate {
        subject: facts.subject.into(),
        issuer: facts.issuer.into(),
        serial: facts.serial.into(),
        fingerprint: facts.fingerprint.into(),
        pem: facts.pem.into(),
        san_uri: names.uris.join(",").into(),
        san_dns: names.hosts.join(",").into(),
        san_email: names.emails.join(",").into(),
        common_name: names.common_name.unwrap_or_default().into(),
        sha256: names.fingerprint.into(),
        until: facts.until,
    }
}

/// Answers a plain HTTP request with an explanation that a browser shows. Other protocols get no answer.
async fn answer_plain_http(mut stream: Stream, said: &[u8]) {
    if said.first().is_some_and(u8::is_ascii_uppercase) {
        // The answer fits into the socket's send buffer unless the client has gone.
        let _ = poll_fn(|context| stream.poll_write(context, NOT_TLS.as_bytes())).await;
        let _ = poll_fn(|context| stream.poll_shutdown(context)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_in_the_clear_is_as_long_as_it_says() {
        let (head, body) = NOT_TLS.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{}", body.len());
    }
}
