//! A worker's endpoint: datagrams in, events of connections out, and back.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::BytesMut;
use quinn_proto::{
    AcceptError, Connection, ConnectionEvent, ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint, Incoming,
    Transmit, TransportConfig,
};
use quinn_udp::RecvMeta;

use super::config::{self, QuicLimits, QuicSecrets, QuicTerms};
use super::connection_ids::{WorkerConnectionIds, WorkerIdGenerator};
use super::hello::ChooseServer;
use super::processes::OtherProcesses;
use super::socket::QuicLink;

/// The most buffers filled in one system call, and the size of each: with GRO a buffer takes several datagrams.
const BUFFERS: usize = 8;
const BUFFER_BYTES: usize = 64 * 1024;
/// The most system calls that receive in one wake-up.
const READS: usize = 4;
/// The most datagrams of a connection that are sent at once.
const MOST_SEGMENTS: usize = 10;
/// The most connections that have begun and are not accepted or refused yet. They are decided on at once.
const MAX_INCOMING: usize = 64;

/// What a datagram came to.
#[expect(clippy::large_enum_variant, reason = "the large one is that of nearly every datagram, and is moved once")]
pub enum EndpointEvent {
    /// For a connection that is open.
    Connection(ConnectionHandle, ConnectionEvent),
    /// A client begins a connection.
    Incoming(Box<Incoming>),
}

/// The QUIC of one socket. Used by one task.
pub struct QuicEndpoint {
    endpoint: Endpoint,
    socket: Box<dyn QuicLink>,
    secrets: QuicSecrets,
    /// What all connections with these limits share.
    transport: (QuicLimits, Arc<TransportConfig>),
    /// The next connection id that is made is for a Retry packet.
    is_retrying: Arc<AtomicBool>,
    receive: Box<[u8]>,
    /// Datagrams that the socket did not take yet.
    unsent: Option<(Transmit, Vec<u8>)>,
    /// The memory of the last datagrams that were sent.
    spare: Vec<u8>,
}

impl QuicEndpoint {
    /// `others`: the processes whose connections are not reset.
    pub fn new(
        socket: Box<dyn QuicLink>,
        ids: WorkerConnectionIds,
        others: Arc<OtherProcesses>,
        secrets: QuicSecrets,
    ) -> QuicEndpoint {
        let is_retrying = Arc::new(AtomicBool::new(false));
        let ids = WorkerIdGenerator { ids, is_for_retry: Arc::clone(&is_retrying), others };
        let config = Arc::new(config::endpoint(&secrets, ids));
        let transport = Arc::new(config::transport(QuicLimits::NONE));
        let mut server = config::server(&secrets, Arc::new(NoServer), Arc::clone(&transport));
        server.max_incoming(MAX_INCOMING);
        QuicEndpoint {
            endpoint: Endpoint::new(config, Some(Arc::new(server)), true, None),
            socket,
            secrets,
            transport: (QuicLimits::NONE, transport),
            is_retrying,
            receive: vec![0; BUFFERS * BUFFER_BYTES].into_boxed_slice(),
            unsent: None,
            spare: Vec::new(),
        }
    }

    /// Receives what has come, in a limited number of reads, and calls `each` with the events.
    pub fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        now: Instant,
        mut each: impl FnMut(&mut QuicEndpoint, EndpointEvent),
    ) -> io::Result<()> {
        let mut receive = std::mem::take(&mut self.receive);
        let mut outcome = Ok(());
        for read in 0..READS {
            let mut meta = [RecvMeta::default(); BUFFERS];
            let mut chunks = receive.chunks_mut(BUFFER_BYTES);
            let mut buffers: [_; BUFFERS] = std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
            let count = match self.socket.poll_receive(context, &mut buffers, &mut meta) {
                Poll::Pending => break,
                Poll::Ready(Ok(count)) => count,
                Poll::Ready(Err(error)) => {
                    // The socket may be readable, and does not say so again.
                    context.waker().wake_by_ref();
                    outcome = Err(error);
                    break;
                }
            };
            for (meta, buffer) in meta[..count].iter().zip(receive.chunks(BUFFER_BYTES)) {
                for datagram in buffer[..meta.len].chunks(meta.stride.max(1)) {
                    if let Some(event) = self.datagram(context, now, meta, datagram) {
                        each(self, event);
                    }
                }
            }
            if read + 1 == READS {
                context.waker().wake_by_ref();
            }
        }
        self.receive = receive;
        outcome
    }

    fn datagram(
        &mut self,
        context: &mut Context<'_>,
        now: Instant,
        meta: &RecvMeta,
        bytes: &[u8],
    ) -> Option<EndpointEvent> {
        let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
        let mut out = std::mem::take(&mut self.spare);
        let event = self.endpoint.handle(now, meta.addr, meta.dst_ip, ecn, BytesMut::from(bytes), &mut out);
        let response = match event {
            Some(DatagramEvent::Response(transmit)) => Some(transmit),
            None => None,
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                self.spare = out;
                return Some(EndpointEvent::Connection(handle, event));
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.spare = out;
                return Some(EndpointEvent::Incoming(Box::new(incoming)));
            }
        };
        self.respond(context, response, out);
        None
    }

    /// Sends a response of the endpoint itself. If the socket does not take it, it is lost, as the network may lose it.
    fn respond(&mut self, context: &mut Context<'_>, response: Option<Transmit>, mut out: Vec<u8>) {
        if let Some(transmit) = response {
            let _ = self.socket.poll_send(context, &datagrams(&transmit, &out));
        }
        out.clear();
        self.spare = out;
    }

    /// Accepts a connection. `None` if its first packet is invalid.
    pub fn accept(
        &mut self,
        context: &mut Context<'_>,
        now: Instant,
        incoming: Incoming,
        terms: QuicTerms,
    ) -> Option<(ConnectionHandle, Connection)> {
        let QuicTerms { limits, choose, trace } = terms;
        let transport = match trace {
            Some(trace) => Arc::new(config::traced_transport(limits, trace)),
            None => self.shared_transport(limits),
        };
        let mut out = std::mem::take(&mut self.spare);
        let server = Arc::new(config::server(&self.secrets, choose, transport));
        match self.endpoint.accept(incoming, now, &mut out, Some(server)) {
            Ok(accepted) => {
                self.spare = out;
                Some(accepted)
            }
            Err(AcceptError { response, .. }) => {
                self.respond(context, response, out);
                None
            }
        }
    }

    fn shared_transport(&mut self, limits: QuicLimits) -> Arc<TransportConfig> {
        if self.transport.0 != limits {
            self.transport = (limits, Arc::new(config::transport(limits)));
        }
        Arc::clone(&self.transport.1)
    }

    /// Refuses a connection (CONNECTION_REFUSED): the client may try TCP at once.
    pub fn refuse(&mut self, context: &mut Context<'_>, incoming: Incoming) {
        let mut out = std::mem::take(&mut self.spare);
        let response = self.endpoint.refuse(incoming, &mut out);
        self.respond(context, Some(response), out);
    }

    /// Says nothing: the client repeats its first packet.
    pub fn ignore(&mut self, incoming: Incoming) {
        self.endpoint.ignore(incoming);
    }

    /// Lets the client prove its address first (a Retry packet, RFC 9000 §8.1.2).
    pub fn retry(&mut self, context: &mut Context<'_>, incoming: Incoming) {
        let mut out = std::mem::take(&mut self.spare);
        self.is_retrying.store(true, Ordering::Relaxed);
        let outcome = self.endpoint.retry(incoming, &mut out);
        self.is_retrying.store(false, Ordering::Relaxed);
        match outcome {
            Ok(response) => self.respond(context, Some(response), out),
            Err(error) => {
                self.spare = out;
                self.refuse(context, error.into_incoming());
            }
        }
    }

    /// Exchanges what the endpoint and a connection have for each other.
    pub fn settle(&mut self, handle: ConnectionHandle, connection: &mut Connection) {
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(handle, event) {
                connection.handle_event(event);
            }
        }
    }

    /// Sends what a connection has to send; pending if the socket does not take all of it now.
    pub fn poll_transmit(&mut self, context: &mut Context<'_>, now: Instant, connection: &mut Connection) -> Poll<()> {
        if self.poll_unsent(context).is_pending() {
            return Poll::Pending;
        }
        let segments = self.socket.max_segments().min(MOST_SEGMENTS);
        loop {
            let mut out = std::mem::take(&mut self.spare);
            out.clear();
            let Some(transmit) = connection.poll_transmit(now, segments, &mut out) else {
                self.spare = out;
                return Poll::Ready(());
            };
            self.unsent = Some((transmit, out));
            if self.poll_unsent(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Sends what the socket did not take before.
    pub fn poll_unsent(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some((transmit, out)) = self.unsent.take() {
            if self.socket.poll_send(context, &datagrams(&transmit, &out)).is_pending() {
                self.unsent = Some((transmit, out));
                return Poll::Pending;
            }
            self.spare = out;
        }
        Poll::Ready(())
    }

    /// The socket has not taken all datagrams; the task is woken once it takes more.
    pub fn is_blocked(&self) -> bool {
        self.unsent.is_some()
    }

    /// The address of this end for a connection: that which its datagrams were sent to, as far as known.
    pub fn local_addr(&self, local_ip: Option<IpAddr>) -> SocketAddr {
        let bound = self.socket.local_addr();
        SocketAddr::new(local_ip.unwrap_or(bound.ip()).to_canonical(), bound.port())
    }
}

fn datagrams<'d>(transmit: &Transmit, bytes: &'d [u8]) -> quinn_udp::Transmit<'d> {
    quinn_udp::Transmit {
        destination: transmit.destination,
        ecn: transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
        contents: &bytes[..transmit.size],
        segment_size: transmit.segment_size,
        src_ip: transmit.src_ip,
    }
}

/// For an endpoint, whose connections are accepted with a configuration of their own.
struct NoServer;

impl ChooseServer for NoServer {
    fn choose(&self, _: Option<&str>) -> Option<crate::tls::Server> {
        None
    }
}
