//! One TLS session over a socket, with rustls' unbuffered interface: records are read into and written from buffers of the
//! thread, so an idle session owns none.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::task::{Context, Poll, ready};

use rustls::client::UnbufferedClientConnection;
use rustls::crypto::SupportedKxGroup;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus, WriteTraffic};
use rustls::{CipherSuite, CommonState, HandshakeKind, NamedGroup, ProtocolVersion, SupportedCipherSuite};
use tokio::net::TcpStream;

use super::early_data::{self, CHANGE_CIPHER_SPEC, ENCRYPTED};
use crate::plain::{poll_read, poll_write};

/// The largest record on the wire (RFC 8446 §5.2, and the older RFC 5246 §6.2.3, which allows more): header and payload.
const RECORD: usize = 5 + 16 * 1024 + 2048;
/// Limit of received bytes of an incomplete record or handshake message (at most 64 KiB, in records).
const MOST_RECEIVED: usize = 96 * 1024;
/// The least number of bytes requested from the socket at once: enough for a ticket, even if the reader wants a single byte.
const LEAST_READ: usize = 4 * 1024;
const MOST_READ: usize = 64 * 1024;
/// Limit of record bytes in a row without plaintext: tickets, key updates, padding. rustls counts key updates and empty records,
/// but each kind resets the count of the other, and every key update costs CPU.
const MOST_BARREN: usize = 64 * 1024;
/// Plaintext encrypted at once, which limits the memory a peer that does not read can occupy.
const MOST_WRITTEN: usize = 32 * 1024;

/// Buffers through which the records of this thread's sessions pass.
struct SessionBuffers {
    inbound: Box<[u8]>,
    outbound: Box<[u8]>,
}

thread_local! {
    static BUFFERS: RefCell<SessionBuffers> = RefCell::new(SessionBuffers {
        inbound: vec![0; MOST_RECEIVED + MOST_READ].into(),
        outbound: vec![0; MOST_WRITTEN + 4 * RECORD].into(),
    });
}

/// The keys of one connection and its pending bytes.
pub struct TlsSession {
    side: Side,
    /// The name the client requested, or the name we requested as a client.
    name: Option<Box<str>>,
    /// Received records, or the start of one, that are not processed yet.
    received: Vec<u8>,
    /// `received` may contain a complete record, because the reader had no room for more plaintext.
    left_over: bool,
    /// Decrypted bytes the reader has not taken yet.
    plain: Vec<u8>,
    /// Records the socket does not accept yet.
    unsent: Vec<u8>,
    /// Plaintext bytes in `unsent` that have not been reported to the writer as written.
    unreported: usize,
    /// Record bytes since the last plaintext.
    bytes_without_data: usize,
    /// The client may be sending early data.
    skips_early_data: bool,
    /// The peer has sent close_notify.
    ended: bool,
    closing: bool,
    /// A fatal error has occurred; the session cannot be used any more.
    broken: bool,
    disregards_certificate: bool,
}

enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// The result of [`TlsSession::process`].
struct TlsProgress {
    /// Bytes of records that were consumed.
    used: usize,
    /// Processing stopped because the reader has no more room.
    stopped: bool,
}

/// A rustls connection of either side; their states differ only in a type parameter.
trait TlsConnection {
    type Data;
    fn process<'c, 'i>(&'c mut self, records: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn state(&self) -> &CommonState;
}

impl TlsConnection for UnbufferedClientConnection {
    type Data = rustls::client::ClientConnectionData;
    fn process<'c, 'i>(&'c mut self, records: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(records)
    }

    fn state(&self) -> &CommonState {
        self
    }
}

impl TlsConnection for UnbufferedServerConnection {
    type Data = rustls::server::ServerConnectionData;
    fn process<'c, 'i>(&'c mut self, records: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(records)
    }

    fn state(&self) -> &CommonState {
        self
    }
}

/// An action that needs the session's write state.
enum Task<'t> {
    Nothing,
    /// Encrypts plaintext into the buffer, and sets the number of bytes written.
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

/// Processes all complete records: plaintext is passed to `reader`, which returns whether it has room for more, and replies are
/// appended to `unsent`.
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
                // Encode the alert for the peer, after any handshake messages that precede it. Nothing else: rustls must not see the
                // records that follow.
                while connection.state().wants_write()
                    && let Ok(ConnectionState::EncodeTlsData(message)) =
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
            // The bytes are in `unsent`, which keeps the order.
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
            // Early data is disabled, since it can be replayed (RFC 8446 §8).
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
    pub(crate) fn server(
        connection: UnbufferedServerConnection,
        name: Option<Box<str>>,
        received: Vec<u8>,
    ) -> TlsSession {
        let skips_early_data = early_data::is_announced(&received);
        TlsSession { skips_early_data, ..TlsSession::new(Side::Server(connection), name, received) }
    }

    pub(crate) fn client(connection: UnbufferedClientConnection, name: Option<Box<str>>) -> TlsSession {
        TlsSession::new(Side::Client(connection), name, Vec::new())
    }

    fn new(side: Side, name: Option<Box<str>>, received: Vec<u8>) -> TlsSession {
        TlsSession {
            side,
            name,
            // A server has received the client's first flight already, and a client's own first flight is produced by
            // processing.
            left_over: true,
            received,
            plain: Vec::new(),
            unsent: Vec::new(),
            unreported: 0,
            bytes_without_data: 0,
            skips_early_data: false,
            ended: false,
            closing: false,
            broken: false,
            disregards_certificate: false,
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

    /// Processes records, and skips early data. rustls finds out by trial that it cannot decrypt such a record, and does not say so:
    /// if it got the record again with the next one, it would count it again. So each record is passed once, until one is consumed:
    /// that is the first of the client's answer. It is taken for early data if it has only a part of a message, which no client's is.
    fn process_received(
        &mut self,
        records: &mut [u8],
        mut reader: impl FnMut(&[u8]) -> bool,
    ) -> io::Result<TlsProgress> {
        let (mut used, mut end) = (0, 0);
        while self.skips_early_data
            && let Some(length) = early_data::record_length(&records[end..])
        {
            let kind = records[end];
            end += length;
            let progress = self.process(&mut records[used..end], &mut reader, Task::Nothing)?;
            used += progress.used;
            match (progress.used, kind) {
                (0, ENCRYPTED | CHANGE_CIPHER_SPEC) => used = end,
                (_, ENCRYPTED) => self.skips_early_data = false,
                _ => {}
            }
            if progress.stopped {
                return Ok(TlsProgress { used, stopped: true });
            }
        }
        let TlsProgress { used: more, stopped } = self.process(&mut records[used..], reader, Task::Nothing)?;
        Ok(TlsProgress { used: used + more, stopped })
    }

    fn state(&self) -> &CommonState {
        match &self.side {
            Side::Client(connection) => connection.state(),
            Side::Server(connection) => connection.state(),
        }
    }

    /// Completes the handshake. The last flight may still be on its way to the peer then.
    pub(crate) fn poll_handshake(&mut self, tcp: &TcpStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if !self.left_over {
                ready!(self.poll_flush(tcp, context))?;
                if !self.state().is_handshaking() {
                    return Poll::Ready(Ok(()));
                }
            }
            ready!(self.poll_receive_handshake(tcp, context))?;
        }
    }

    /// Processes the records received before the handshake began, or else reads some; what there is to send in response is kept
    /// until [`TlsSession::poll_handshake`] is called.
    pub(crate) fn poll_receive_handshake(
        &mut self,
        tcp: &TcpStream,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut plain = std::mem::take(&mut self.plain);
        let received = self.poll_receive(tcp, context, MOST_READ, |payload| {
            plain.extend_from_slice(payload);
            true
        });
        self.plain = plain;
        received.map_ok(|_| ())
    }

    /// Decrypts records that were received before or are read from the socket. Returns the number of record bytes consumed.
    fn poll_receive(
        &mut self,
        tcp: &TcpStream,
        context: &mut Context<'_>,
        most: usize,
        reader: impl FnMut(&[u8]) -> bool,
    ) -> Poll<io::Result<usize>> {
        BUFFERS.with_borrow_mut(|passage| {
            let waiting = self.received.len();
            let mut filled = waiting;
            if !self.left_over {
                if waiting > MOST_RECEIVED {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "a TLS message is too long")));
                }
                let room = &mut passage.inbound[waiting..waiting + most];
                match ready!(poll_read(tcp, context, room))? {
                    // RFC 8446 §6.1: without close_notify the data may be truncated.
                    0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                    count => filled += count,
                }
            }
            passage.inbound[..waiting].copy_from_slice(&self.received);
            self.received = Vec::new();
            let records = &mut passage.inbound[..filled];
            let progress = self.process_received(records, reader);
            if progress.is_err() {
                self.send_alert(tcp, context);
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
        // A pending reply of the TLS layer. An error is reported by the next write.
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
            self.bytes_without_data = if count > 0 { 0 } else { self.bytes_without_data + used };
            if self.bytes_without_data > MOST_BARREN {
                // rustls sends no alert of ours but this one. What matters is that the peer sees an end that was meant.
                let _ = self.poll_close(tcp, context);
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
        if self.unreported > 0 {
            return Poll::Ready(Ok(std::mem::take(&mut self.unreported).min(bytes.len())));
        }
        let bytes = &bytes[..bytes.len().min(MOST_WRITTEN)];
        BUFFERS.with_borrow_mut(|passage| {
            let mut length = 0;
            self.now(tcp, context, Task::Encrypt(bytes, &mut passage.outbound, &mut length))?;
            let written = self.poll_send(tcp, context, &passage.outbound[..length]);
            if written.is_pending() {
                self.unreported = bytes.len();
            }
            written.map_ok(|()| bytes.len())
        })
    }

    /// Sends close_notify, so that the peer knows that the data is complete (RFC 8446 §6.1).
    pub(crate) fn poll_close(&mut self, tcp: &TcpStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(tcp, context))?;
        if std::mem::replace(&mut self.closing, true) {
            return Poll::Ready(Ok(()));
        }
        BUFFERS.with_borrow_mut(|passage| {
            let mut length = 0;
            self.now(tcp, context, Task::Close(&mut passage.outbound, &mut length))?;
            self.poll_send(tcp, context, &passage.outbound[..length])
        })
    }

    /// Performs a task, outside of reading.
    fn now(&mut self, tcp: &TcpStream, context: &mut Context<'_>, task: Task<'_>) -> io::Result<()> {
        // rustls keeps state about a partly received message, so its bytes must be passed again.
        let mut received = std::mem::take(&mut self.received);
        let mut plain = std::mem::take(&mut self.plain);
        let reader = |payload: &[u8]| {
            plain.extend_from_slice(payload);
            true
        };
        let progress = self.process(&mut received, reader, task);
        self.plain = plain;
        if progress.is_err() {
            self.send_alert(tcp, context);
        }
        received.drain(..progress?.used);
        self.received = received;
        Ok(())
    }

    /// Sends records after those pending in `unsent`; what the socket does not accept is added to them.
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

    /// Sends the alert of an error, if the socket accepts it.
    fn send_alert(&mut self, tcp: &TcpStream, context: &mut Context<'_>) {
        let _ = self.poll_flush(tcp, context);
    }

    fn poll_flush(&mut self, tcp: &TcpStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            let count = ready!(poll_write(tcp, context, &self.unsent))?;
            take_front(&mut self.unsent, count);
        }
        Poll::Ready(Ok(()))
    }

    /// The name the client requested (RFC 6066 §3), or the name we requested as a client.
    pub fn server_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The negotiated ALPN protocol (RFC 7301).
    pub fn protocol(&self) -> Option<&[u8]> {
        self.state().alpn_protocol()
    }

    /// The name in nginx and OpenSSL: `TLSv1.3`.
    pub fn version(&self) -> &'static str {
        match self.state().protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
            _ => "TLSv1.3",
        }
    }

    /// The name in nginx and OpenSSL.
    pub fn cipher(&self) -> &'static str {
        cipher_name(self.state().negotiated_cipher_suite())
    }

    /// The group of the key exchange, as nginx and OpenSSL name it; empty if there was none.
    pub fn curve(&self) -> &'static str {
        curve_name(self.state().negotiated_key_exchange_group())
    }

    /// The session was resumed from an earlier one.
    pub fn is_resumed(&self) -> bool {
        self.state().handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// The peer's own certificate, if it sent one that is valid.
    pub fn peer_certificate(&self) -> Option<&CertificateDer<'static>> {
        self.peer_certificates().first()
    }

    /// The same with those between it and an authority.
    pub(crate) fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        match self.disregards_certificate {
            false => self.state().peer_certificates().unwrap_or_default(),
            true => &[],
        }
    }

    /// From now on the peer's certificate is taken for none.
    pub(crate) fn disregard_certificate(&mut self) {
        self.disregards_certificate = true;
    }
}

/// The name of a cipher suite in nginx and OpenSSL; empty if there is none yet.
pub(crate) fn cipher_name(suite: Option<SupportedCipherSuite>) -> &'static str {
    match suite.map(|suite| suite.suite()) {
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

/// The name of a group in OpenSSL.
pub(crate) fn curve_name(group: Option<&'static dyn SupportedKxGroup>) -> &'static str {
    match group.map(|group| group.name()) {
        Some(NamedGroup::secp256r1) => "prime256v1",
        group => group.and_then(|group| group.as_str()).unwrap_or_default(),
    }
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("name", &self.name).field("version", &self.version()).finish_non_exhaustive()
    }
}

/// Moves as many bytes as fit from the front of `from`; returns their number.
fn take(from: &mut Vec<u8>, buffer: &mut [u8]) -> usize {
    let count = from.len().min(buffer.len());
    buffer[..count].copy_from_slice(&from[..count]);
    take_front(from, count);
    count
}

/// Removes the first `count` bytes, and frees the memory if nothing remains.
fn take_front(from: &mut Vec<u8>, count: usize) {
    if count == from.len() {
        *from = Vec::new();
    } else {
        from.drain(..count);
    }
}
