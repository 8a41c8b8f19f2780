//! One TLS session over a socket, by rustls' unbuffered interface: records are read into and written from buffers of
//! the thread, so a session that waits owns neither.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::task::{Context, Poll, ready};

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus, WriteTraffic};
use rustls::{CipherSuite, CommonState, HandshakeKind, ProtocolVersion};
use tokio::net::TcpStream;

use crate::stream::{poll_read, poll_write};

/// The largest record on the wire (RFC 8446 §5.2, and the older RFC 5246 §6.2.3, which allows more): header and payload.
const RECORD: usize = 5 + 16 * 1024 + 2048;
/// Received bytes wait for the rest of their record, or of their handshake message (at most 64 KiB, in records).
const MOST_RECEIVED: usize = 96 * 1024;
/// Bytes asked of the socket at once, at least: enough for a ticket, also where the reader wants a single byte.
const LEAST_READ: usize = 4 * 1024;
const MOST_READ: usize = 64 * 1024;
/// Records in a row that bring no plaintext: tickets, changes of keys, padding. The library counts changes of keys, and
/// empty records, but each of them ends a row of the other, and every change costs us the making of keys.
const MOST_BARREN: usize = 64 * 1024;
/// Plaintext encrypted at once: what a peer that does not read can make us hold.
const MOST_WRITTEN: usize = 32 * 1024;

/// Where records of this thread's sessions pass through.
struct SessionBuffers {
    inbound: Box<[u8]>,
    outbound: Box<[u8]>,
}

thread_local! {
    static PASSAGE: RefCell<SessionBuffers> = RefCell::new(SessionBuffers {
        inbound: vec![0; MOST_RECEIVED + MOST_READ].into(),
        outbound: vec![0; MOST_WRITTEN + 4 * RECORD].into(),
    });
}

/// The keys of one connection and what is on its way.
pub struct TlsSession {
    side: Side,
    /// Who the client asked for, or whom we asked for.
    name: Option<Box<str>>,
    /// Records, or the beginning of one, that came and were not looked at yet.
    received: Vec<u8>,
    /// `received` may hold a whole record: its reader had no room for more.
    left_over: bool,
    /// Decrypted, and not taken by the reader yet.
    plain: Vec<u8>,
    /// Records that the socket does not take yet.
    unsent: Vec<u8>,
    /// Plaintext in `unsent` that the writer has not been told is taken.
    owed: usize,
    /// Bytes of records since the last plaintext.
    barren: usize,
    /// The peer has said that nothing more comes.
    ended: bool,
    closing: bool,
    /// Something went wrong for good.
    broken: bool,
}

enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// What [`TlsSession::process`] did.
struct TlsProgress {
    /// Bytes that are done with.
    used: usize,
    /// It stopped because the reader has no more room.
    stopped: bool,
}

/// Both sides' connections, whose states differ only in a type.
trait TlsConnection {
    type Data;
    fn process<'c, 'i>(&'c mut self, records: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
}

impl TlsConnection for UnbufferedClientConnection {
    type Data = rustls::client::ClientConnectionData;
    fn process<'c, 'i>(&'c mut self, records: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(records)
    }
}

impl TlsConnection for UnbufferedServerConnection {
    type Data = rustls::server::ServerConnectionData;
    fn process<'c, 'i>(&'c mut self, records: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(records)
    }
}

/// What to do once the session may send.
enum Task<'t> {
    Nothing,
    /// Encrypts into the buffer, and says how many bytes that made.
    Encrypt(&'t [u8], &'t mut [u8], &'t mut usize),
    Close(&'t mut [u8], &'t mut usize),
}

impl Task<'_> {
    fn perform<D>(self, mut traffic: WriteTraffic<'_, D>) -> io::Result<()> {
        let written = match self {
            Task::Nothing => return Ok(()),
            Task::Encrypt(plain, out, length) => traffic.encrypt(plain, out).map(|count| *length = count),
            Task::Close(out, length) => traffic.queue_close_notify(out).map(|count| *length = count),
        };
        written.map_err(io::Error::other)
    }
}

/// Takes records to their end: plaintext goes to `reader`, which says whether it has room for more, answers to `unsent`.
fn drive<C: TlsConnection>(
    connection: &mut C,
    records: &mut [u8],
    unsent: &mut Vec<u8>,
    ended: &mut bool,
    mut reader: impl FnMut(&[u8]) -> bool,
    task: Task<'_>,
) -> io::Result<TlsProgress> {
    let mut used = 0;
    loop {
        let UnbufferedStatus { mut discard, state, .. } = connection.process(&mut records[used..]);
        let mut stopped = false;
        let state = match state {
            Ok(state) => state,
            Err(error) => {
                // What is left to do is to tell the peer why. Before that may come what the alert is sealed for.
                while let Ok(ConnectionState::EncodeTlsData(message)) =
                    connection.process(&mut records[used + discard..]).state
                {
                    encode(message, unsent)?;
                }
                return Err(invalid(error));
            }
        };
        match state {
            ConnectionState::ReadTraffic(mut traffic) => {
                while let Some(record) = traffic.next_record() {
                    let record = record.map_err(invalid)?;
                    discard += record.discard;
                    stopped = !reader(record.payload);
                }
            }
            ConnectionState::EncodeTlsData(message) => encode(message, unsent)?,
            // It is in `unsent`, which keeps the order.
            ConnectionState::TransmitTlsData(transmit) => transmit.done(),
            ConnectionState::PeerClosed => *ended = true,
            ConnectionState::WriteTraffic(traffic) => {
                task.perform(traffic)?;
                return Ok(TlsProgress { used: used + discard, stopped: false });
            }
            ConnectionState::BlockedHandshake => return Ok(TlsProgress { used: used + discard, stopped: false }),
            ConnectionState::Closed => {
                *ended = true;
                return Ok(TlsProgress { used: used + discard, stopped: false });
            }
            // Early data is switched off: it can be replayed (RFC 8446 §8).
            _ => return Err(io::Error::other("unexpected state of the TLS session")),
        }
        used += discard;
        if stopped {
            return Ok(TlsProgress { used, stopped: true });
        }
    }
}

fn encode<D>(mut message: EncodeTlsData<'_, D>, unsent: &mut Vec<u8>) -> io::Result<()> {
    let Err(EncodeError::InsufficientSize(size)) = message.encode(&mut []) else { return Ok(()) };
    let end = unsent.len();
    unsent.resize(end + size.required_size, 0);
    message.encode(&mut unsent[end..]).map_err(io::Error::other)?;
    Ok(())
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl TlsSession {
    pub(super) fn server(
        connection: UnbufferedServerConnection,
        name: Option<Box<str>>,
        received: Vec<u8>,
    ) -> TlsSession {
        TlsSession::new(Side::Server(connection), name, received)
    }

    pub(super) fn client(connection: UnbufferedClientConnection, name: Option<Box<str>>) -> TlsSession {
        TlsSession::new(Side::Client(connection), name, Vec::new())
    }

    fn new(side: Side, name: Option<Box<str>>, received: Vec<u8>) -> TlsSession {
        TlsSession {
            side,
            name,
            // The client's first flight is here already, and a client begins by asking its own side for one.
            left_over: true,
            received,
            plain: Vec::new(),
            unsent: Vec::new(),
            owed: 0,
            barren: 0,
            ended: false,
            closing: false,
            broken: false,
        }
    }

    fn process(
        &mut self,
        records: &mut [u8],
        reader: impl FnMut(&[u8]) -> bool,
        task: Task<'_>,
    ) -> io::Result<TlsProgress> {
        if self.broken {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let (unsent, ended) = (&mut self.unsent, &mut self.ended);
        let progress = match &mut self.side {
            Side::Client(connection) => drive(connection, records, unsent, ended, reader, task),
            Side::Server(connection) => drive(connection, records, unsent, ended, reader, task),
        };
        self.broken = progress.is_err();
        progress
    }

    fn state(&self) -> &CommonState {
        match &self.side {
            Side::Client(connection) => connection,
            Side::Server(connection) => connection,
        }
    }

    /// Completes when both sides have what they need to talk. What the peer must still be told is on its way then.
    pub(super) fn poll_handshake(&mut self, tcp: &TcpStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if !self.left_over {
                ready!(self.poll_flush(tcp, context))?;
                if !self.state().is_handshaking() {
                    return Poll::Ready(Ok(()));
                }
            }
            let mut plain = std::mem::take(&mut self.plain);
            let received = self.poll_receive(tcp, context, MOST_READ, |payload| {
                plain.extend_from_slice(payload);
                true
            });
            self.plain = plain;
            ready!(received)?;
        }
    }

    /// Takes what is there of records, from before or from the socket, and decrypts it. Says how many bytes of them are
    /// done with.
    fn poll_receive(
        &mut self,
        tcp: &TcpStream,
        context: &mut Context<'_>,
        most: usize,
        reader: impl FnMut(&[u8]) -> bool,
    ) -> Poll<io::Result<usize>> {
        PASSAGE.with_borrow_mut(|passage| {
            let waiting = self.received.len();
            let mut filled = waiting;
            if !self.left_over {
                if waiting > MOST_RECEIVED {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "a TLS message is too long")));
                }
                let room = &mut passage.inbound[waiting..waiting + most];
                match ready!(poll_read(tcp, context, room))? {
                    // RFC 8446 §6.1: without close_notify what came may have been cut short.
                    0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                    count => filled += count,
                }
            }
            passage.inbound[..waiting].copy_from_slice(&self.received);
            self.received = Vec::new();
            let records = &mut passage.inbound[..filled];
            let progress = self.process(records, reader, Task::Nothing);
            if progress.is_err() {
                // The peer is told why, if it still listens.
                let _ = self.poll_flush(tcp, context);
            }
            let TlsProgress { used, stopped } = progress?;
            self.received.extend_from_slice(&records[used..]);
            self.left_over = stopped;
            Poll::Ready(Ok(used))
        })
    }

    pub(crate) fn poll_read(
        &mut self,
        tcp: &TcpStream,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        // An answer to the peer's TLS that did not go out in one piece. A failure shows where something is written.
        if !self.unsent.is_empty() {
            let _ = self.poll_flush(tcp, context);
        }
        let mut count = take(&mut self.plain, buffer);
        let most = buffer.len().clamp(LEAST_READ, MOST_READ);
        while count == 0 && !self.ended {
            let mut more = std::mem::take(&mut self.plain);
            let received = self.poll_receive(tcp, context, most, |payload| {
                let fits = payload.len().min(buffer.len() - count);
                buffer[count..count + fits].copy_from_slice(&payload[..fits]);
                count += fits;
                more.extend_from_slice(&payload[fits..]);
                count < buffer.len()
            });
            self.plain = more;
            let used = ready!(received)?;
            self.barren = if count > 0 { 0 } else { self.barren + used };
            if self.barren > MOST_BARREN {
                self.broken = true;
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "too many TLS records without data",
                )));
            }
            if !self.unsent.is_empty() {
                let _ = self.poll_flush(tcp, context);
            }
        }
        Poll::Ready(Ok(count))
    }

    pub(crate) fn poll_write(
        &mut self,
        tcp: &TcpStream,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(tcp, context))?;
        if self.owed > 0 {
            return Poll::Ready(Ok(std::mem::take(&mut self.owed).min(bytes.len())));
        }
        let bytes = &bytes[..bytes.len().min(MOST_WRITTEN)];
        PASSAGE.with_borrow_mut(|passage| {
            let mut length = 0;
            self.now(Task::Encrypt(bytes, &mut passage.outbound, &mut length))?;
            let written = self.poll_send(tcp, context, &passage.outbound[..length]);
            if written.is_pending() {
                self.owed = bytes.len();
            }
            written.map_ok(|()| bytes.len())
        })
    }

    /// Says goodbye, so that the peer knows that nothing was cut off (RFC 8446 §6.1).
    pub(crate) fn poll_close(&mut self, tcp: &TcpStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(tcp, context))?;
        if std::mem::replace(&mut self.closing, true) {
            return Poll::Ready(Ok(()));
        }
        PASSAGE.with_borrow_mut(|passage| {
            let mut length = 0;
            self.now(Task::Close(&mut passage.outbound, &mut length))?;
            self.poll_send(tcp, context, &passage.outbound[..length])
        })
    }

    /// Performs a task between two records.
    fn now(&mut self, task: Task<'_>) -> io::Result<()> {
        // Of a message that has come in part rustls remembers what it has seen, so it is shown that again.
        let mut received = std::mem::take(&mut self.received);
        let mut plain = std::mem::take(&mut self.plain);
        let reader = |payload: &[u8]| {
            plain.extend_from_slice(payload);
            true
        };
        let progress = self.process(&mut received, reader, task);
        self.plain = plain;
        received.drain(..progress?.used);
        self.received = received;
        Ok(())
    }

    /// Sends records after those that wait; what the socket does not take waits, too.
    fn poll_send(&mut self, tcp: &TcpStream, context: &mut Context<'_>, records: &[u8]) -> Poll<io::Result<()>> {
        let mut sent = 0;
        while self.unsent.is_empty() && sent < records.len() {
            match poll_write(tcp, context, &records[sent..])? {
                Poll::Ready(count) => sent += count,
                Poll::Pending => break,
            }
        }
        self.unsent.extend_from_slice(&records[sent..]);
        self.poll_flush(tcp, context)
    }

    fn poll_flush(&mut self, tcp: &TcpStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            let count = ready!(poll_write(tcp, context, &self.unsent))?;
            take_front(&mut self.unsent, count);
        }
        Poll::Ready(Ok(()))
    }

    /// Whom the client asked for (RFC 6066 §3), or whom we asked for.
    pub fn server_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// What both sides agreed to speak (RFC 7301).
    pub fn protocol(&self) -> Option<&[u8]> {
        self.state().alpn_protocol()
    }

    /// As nginx and OpenSSL call it: `TLSv1.3`.
    pub fn version(&self) -> &'static str {
        match self.state().protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
            _ => "TLSv1.3",
        }
    }

    /// As nginx and OpenSSL call it.
    pub fn cipher(&self) -> &'static str {
        match self.state().negotiated_cipher_suite().map(|suite| suite.suite()) {
            Some(CipherSuite::TLS13_AES_256_GCM_SHA384) => "TLS_AES_256_GCM_SHA384",
            Some(CipherSuite::TLS13_AES_128_GCM_SHA256) => "TLS_AES_128_GCM_SHA256",
            Some(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256) => "TLS_CHACHA20_POLY1305_SHA256",
            Some(CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384) => "ECDHE-ECDSA-AES256-GCM-SHA384",
            Some(CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256) => "ECDHE-ECDSA-AES128-GCM-SHA256",
            Some(CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256) => "ECDHE-ECDSA-CHACHA20-POLY1305",
            Some(CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384) => "ECDHE-RSA-AES256-GCM-SHA384",
            Some(CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256) => "ECDHE-RSA-AES128-GCM-SHA256",
            Some(CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256) => "ECDHE-RSA-CHACHA20-POLY1305",
            suite => suite.and_then(|suite| suite.as_str()).unwrap_or_default(),
        }
    }

    /// The session goes on with what an earlier one agreed on.
    pub fn is_resumed(&self) -> bool {
        self.state().handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// The certificate the peer has proved to be its own.
    pub fn peer_certificate(&self) -> Option<&CertificateDer<'static>> {
        self.state().peer_certificates()?.first()
    }
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("name", &self.name).field("version", &self.version()).finish_non_exhaustive()
    }
}

/// Moves what fits from the front of `from`; says how much that is.
fn take(from: &mut Vec<u8>, buffer: &mut [u8]) -> usize {
    let count = from.len().min(buffer.len());
    buffer[..count].copy_from_slice(&from[..count]);
    take_front(from, count);
    count
}

/// Drops the first `count` bytes, and the memory with the last of them.
fn take_front(from: &mut Vec<u8>, count: usize) {
    if count == from.len() {
        *from = Vec::new();
    } else {
        from.drain(..count);
    }
}
