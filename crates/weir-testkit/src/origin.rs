//! An upstream that records every byte it receives, and answers as a test defines.

use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use socket2::{SockFilter, SockRef};

use crate::gate::Gate;
use crate::reading::{ReadError, Reading};
use crate::tls::{NegotiatedTls, TlsServer, Wire};
use crate::wait::{DEADLINE, eventually_some};
use crate::wire::{BodyFraming, Fields, MessageReader, Recording, Request, latin1};

/// One answer of an origin that serves request by request.
#[derive(Clone, Debug)]
pub struct Answer {
    bytes: Vec<u8>,
    close: bool,
}

impl Answer {
    /// `200 OK` with `body`.
    pub fn ok(body: impl AsRef<[u8]>) -> Answer {
        Answer::status(200, body)
    }

    /// A status with `body` and its `Content-Length`.
    pub fn status(status: u16, body: impl AsRef<[u8]>) -> Answer {
        Answer::with(status, "", body)
    }

    /// A status with further header lines (each with its CRLF), and `body` with its `Content-Length`.
    pub fn with(status: u16, lines: &str, body: impl AsRef<[u8]>) -> Answer {
        let body = body.as_ref();
        let mut bytes = format!("HTTP/1.1 {status} X\r\n{lines}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
        bytes.extend_from_slice(body);
        Answer { bytes, close: false }
    }

    /// An answer of exactly these bytes.
    pub fn raw(bytes: impl AsRef<[u8]>) -> Answer {
        Answer { bytes: bytes.as_ref().to_vec(), close: false }
    }

    /// The same, after which the connection is closed.
    pub fn then_close(self) -> Answer {
        Answer { close: true, ..self }
    }
}

/// A recording upstream on a loopback port, with one thread per connection. Dropping it closes all its connections.
pub struct Origin {
    address: SocketAddr,
    log: Arc<OriginLog>,
}

/// The number of connections, open or ended, whose sockets the log keeps open: closing the last handle with unread
/// bytes would reset the connection, and lose an answer that is still in transit.
const MOST_HELD: usize = 8000;

/// The return instruction of a socket filter, with the number of bytes of a segment that it accepts (bpf(2), `BPF_RET | BPF_K`).
const BPF_RET: u16 = 0x06;

#[derive(Default)]
struct OriginLog {
    connections: Mutex<Vec<(Recording, Option<TcpStream>)>>,
    requests: Mutex<Vec<Request>>,
    violations: Mutex<Vec<String>>,
    open: AtomicUsize,
    stopped: AtomicBool,
    listener: OnceLock<TcpListener>,
}

impl Origin {
    /// Answers every request on every connection with the result of `answer`, and reads strictly.
    pub fn serving(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Origin {
        Origin::reading(Reading::Strict, answer)
    }

    /// The same on a given address, for an origin that begins late or comes back.
    pub fn serving_at(address: SocketAddr, answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Origin {
        Origin::scripted_at(address, Reading::Strict, by_request(answer))
    }

    /// Answers every request on every connection with the result of `answer`.
    pub fn reading(reading: Reading, answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Origin {
        Origin::scripted(reading, by_request(answer))
    }

    /// Answers every request with its own method, target and body length, so that a client can tell answers apart.
    pub fn echo(reading: Reading) -> Origin {
        Origin::reading(reading, |request| {
            Answer::ok(format!("{} {} {}", request.method, request.target, request.body.len()))
        })
    }

    /// Runs `script` for each connection, in a thread of its own; the connection is closed when it returns.
    pub fn scripted(reading: Reading, script: impl Fn(&mut OriginConnection) + Send + Sync + 'static) -> Origin {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has free ports");
        Origin::on(listener, None, reading, script)
    }

    /// The same over TLS. A connection whose handshake fails is counted, but no script runs for it.
    pub fn scripted_tls(
        tls: &TlsServer,
        reading: Reading,
        script: impl Fn(&mut OriginConnection) + Send + Sync + 'static,
    ) -> Origin {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has free ports");
        Origin::on(listener, Some(tls.clone()), reading, script)
    }

    /// Answers every request on every connection over TLS with the result of `answer`, and reads strictly.
    pub fn serving_tls(tls: &TlsServer, answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Origin {
        Origin::scripted_tls(tls, Reading::Strict, by_request(answer))
    }

    /// The same on a given port, for origins that return to the address of an earlier one.
    pub fn scripted_at(
        address: SocketAddr,
        reading: Reading,
        script: impl Fn(&mut OriginConnection) + Send + Sync + 'static,
    ) -> Origin {
        let listener = eventually_some("the origin's port is free", DEADLINE, || TcpListener::bind(address).ok());
        Origin::on(listener, None, reading, script)
    }

    fn on(
        listener: TcpListener,
        tls: Option<TlsServer>,
        reading: Reading,
        script: impl Fn(&mut OriginConnection) + Send + Sync + 'static,
    ) -> Origin {
        // The standard library listens with a backlog of 128, too few for tests with many connections at once.
        let _ = rustix::net::listen(&listener, 4096);
        let address = listener.local_addr().expect("a bound socket has an address");
        let log = Arc::new(OriginLog::default());
        let _ = log.listener.set(listener.try_clone().expect("a descriptor is left"));
        let (script, own) = (Arc::new(script), Arc::clone(&log));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if own.stopped.load(Ordering::Acquire) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let Ok(prepared) = AcceptedConnection::new(stream, &own) else { continue };
                // It may have been accepted before the end, and noted after it.
                if own.stopped.load(Ordering::Acquire) {
                    return own.end_connections();
                }
                let (script, own, tls) = (Arc::clone(&script), Arc::clone(&own), tls.clone());
                own.open.fetch_add(1, Ordering::AcqRel);
                thread::spawn(move || {
                    let _open = OpenGuard(Arc::clone(&own));
                    let Ok(mut connection) = prepared.begin(tls.as_ref(), reading, own) else { return };
                    script(&mut connection);
                    connection.close();
                });
            }
        });
        Origin { address, log }
    }

    /// The address it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// The requests read so far, in the order in which they were completed.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.log.requests).clone()
    }

    /// Waits until `count` requests have been read, and returns all that have been read.
    #[track_caller]
    pub fn wait_requests(&self, count: usize) -> Vec<Request> {
        eventually_some(&format!("{count} requests at the origin"), DEADLINE, || {
            let requests = lock(&self.log.requests);
            (requests.len() >= count).then(|| requests.clone())
        })
    }

    /// The targets of the requests read so far.
    pub fn targets(&self) -> Vec<String> {
        lock(&self.log.requests).iter().map(|request| request.target.clone()).collect()
    }

    /// All bytes that each connection has received so far (up to 4 MiB each).
    pub fn raw(&self) -> Vec<Vec<u8>> {
        lock(&self.log.connections).iter().map(|(recording, _)| lock(recording).clone()).collect()
    }

    /// Everything received so far on all connections, one after the other, as Latin-1.
    pub fn raw_text(&self) -> String {
        self.raw().iter().map(|bytes| latin1(bytes)).collect()
    }

    /// How many connections have been accepted.
    pub fn connections(&self) -> usize {
        lock(&self.log.connections).len()
    }

    /// How many connections are open on this side.
    pub fn open_connections(&self) -> usize {
        self.log.open.load(Ordering::Acquire)
    }

    /// The violations that strict reading has found.
    pub fn violations(&self) -> Vec<String> {
        lock(&self.log.violations).clone()
    }

    /// With `true`, discards all segments from now on without acknowledging them, on open and on new connections. With
    /// `false`, ends that.
    pub fn swallow(&self, everything: bool) {
        // A filter that accepts 0 bytes of each segment, before TCP processes it. Connections that are accepted later inherit it.
        let nothing = [SockFilter::new(BPF_RET, 0, 0, 0)];
        let set = |socket: SockRef<'_>| match everything {
            true => socket.attach_filter(&nothing),
            false => socket.detach_filter(),
        };
        let listener = self.log.listener.get().expect("it is set with the origin");
        set(SockRef::from(listener)).expect("sockets take filters");
        for stream in lock(&self.log.connections).iter().filter_map(|(_, stream)| stream.as_ref()) {
            // Fails for a socket without a filter, which is fine.
            let _ = set(SockRef::from(stream));
        }
    }

    /// Discards the requests, bytes and violations recorded so far; connections stay open.
    pub fn forget(&self) {
        // Frees the memory as well: loads of millions of requests call this to limit it.
        *lock(&self.log.requests) = Vec::new();
        lock(&self.log.violations).clear();
        for (recording, _) in lock(&self.log.connections).iter() {
            *lock(recording) = Vec::new();
        }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.log.stopped.store(true, Ordering::Release);
        // Refuses new connections from now on. The thread of the listener closes it only later.
        if let Some(listener) = self.log.listener.get() {
            let _ = SockRef::from(listener).shutdown(Shutdown::Both);
        }
        self.log.end_connections();
    }
}

impl OriginLog {
    fn end_connections(&self) {
        for stream in lock(&self.connections).iter().filter_map(|(_, stream)| stream.as_ref()) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// A script that answers request by request.
fn by_request(answer: impl Fn(&Request) -> Answer) -> impl Fn(&mut OriginConnection) {
    move |connection| {
        while let Ok(request) = connection.request() {
            let answer = answer(&request);
            if connection.send(&answer.bytes).is_err() || answer.close {
                return;
            }
        }
    }
}

/// Counts a connection as open while its script runs, also when the script panics.
struct OpenGuard(Arc<OriginLog>);

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// An accepted connection, as a script uses it.
pub struct OriginConnection {
    /// The index of the connection at this origin, from 0.
    pub index: usize,
    stream: Wire,
    incoming: MessageReader,
    reading: Reading,
    log: Arc<OriginLog>,
}

/// An accepted connection before the TLS handshake.
struct AcceptedConnection {
    stream: TcpStream,
    recording: Recording,
    index: usize,
}

impl AcceptedConnection {
    fn new(stream: TcpStream, log: &OriginLog) -> std::io::Result<AcceptedConnection> {
        stream.set_nodelay(true)?;
        // An idle connection in the gateway's pool may outlive a test, so reads wait longer than the deadline of tests.
        stream.set_read_timeout(Some(DEADLINE * 30))?;
        stream.set_write_timeout(Some(DEADLINE * 30))?;
        let recording = Recording::default();
        let mut connections = lock(&log.connections);
        let index = connections.len();
        connections.push((Arc::clone(&recording), Some(stream.try_clone()?)));
        if let Some(long_ago) = index.checked_sub(MOST_HELD) {
            connections[long_ago].1 = None;
        }
        Ok(AcceptedConnection { stream, recording, index })
    }

    fn begin(
        self,
        tls: Option<&TlsServer>,
        reading: Reading,
        log: Arc<OriginLog>,
    ) -> std::io::Result<OriginConnection> {
        let stream = match tls {
            None => Wire::plain(self.stream),
            Some(tls) => tls.begin(self.stream)?,
        };
        let incoming = MessageReader::new(stream.clone(), Some(self.recording));
        Ok(OriginConnection { index: self.index, stream, incoming, reading, log })
    }
}

impl OriginConnection {
    /// Reads the next request with its body, and records it.
    pub fn request(&mut self) -> Result<Request, ReadError> {
        let mut request = self.head()?;
        (request.body, request.trailers) = self.body(request.framing)?;
        self.record(&request);
        Ok(request)
    }

    /// Reads the head of the next request, but not its body. It is not recorded in [`Origin::requests`].
    pub fn head(&mut self) -> Result<Request, ReadError> {
        let head = self.incoming.request_head(self.reading, self.index);
        self.noted(head)
    }

    /// Reads the body announced by `framing`.
    pub fn body(&mut self, framing: BodyFraming) -> Result<(Vec<u8>, Fields), ReadError> {
        let body = self.incoming.body(framing, self.reading);
        self.noted(body)
    }

    /// Adds a request that was read in parts to [`Origin::requests`].
    pub fn record(&self, request: &Request) {
        lock(&self.log.requests).push(request.clone());
    }

    /// Reads the bytes that are available, at least one; empty at the end of the stream.
    pub fn some(&mut self) -> Result<Vec<u8>, ReadError> {
        self.incoming.some()
    }

    /// Reads one chunk of a chunked body; empty for the last chunk, whose trailers are not read.
    pub fn chunk(&mut self) -> Result<Vec<u8>, ReadError> {
        let chunk = self.incoming.chunk(self.reading);
        self.noted(chunk)
    }

    /// Reads the trailers after the last chunk.
    pub fn trailers(&mut self) -> Result<Fields, ReadError> {
        let trailers = self.incoming.trailers(self.reading);
        self.noted(trailers)
    }

    /// Reads the bytes that are available, at least one and at most `limit`; empty at the end of the stream.
    pub fn up_to(&mut self, limit: u64) -> Result<Vec<u8>, ReadError> {
        self.incoming.up_to(limit)
    }

    /// Reads exactly `count` bytes.
    pub fn exact(&mut self, count: u64) -> Result<Vec<u8>, ReadError> {
        self.incoming.exact(count)
    }

    /// Reads until the gateway ends its stream.
    pub fn rest(&mut self) -> Result<Vec<u8>, ReadError> {
        self.incoming.rest()
    }

    /// Sends all of `bytes`; an error means that the gateway has closed the connection.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Sends one part at a time, each after waiting at the gate.
    pub fn send_gated(&mut self, gate: &Gate, parts: &[&[u8]]) -> std::io::Result<()> {
        for part in parts {
            gate.wait();
            self.send(part)?;
        }
        Ok(())
    }

    /// Waits until the gateway closes or resets the connection; what is received meanwhile is discarded.
    pub fn wait_gone(&mut self) {
        while self.incoming.some().is_ok_and(|bytes| !bytes.is_empty()) {}
    }

    /// Closes the sending side (FIN), and continues to read.
    pub fn finish_sending(&self) {
        self.stream.finish_sending();
    }

    /// The result of the TLS handshake; `None` without TLS.
    pub fn agreed(&self) -> Option<NegotiatedTls> {
        self.stream.agreed()
    }

    /// Another handle to the socket, for servers of other libraries. What they receive is not recorded.
    pub fn socket(&self) -> TcpStream {
        self.stream.tcp().try_clone().expect("a descriptor is left")
    }

    /// Closes the connection without a reset.
    pub fn close(&mut self) {
        self.stream.finish_sending();
        let _ = self.stream.tcp().shutdown(Shutdown::Both);
    }

    /// Closes the connection with a reset. The log has another handle to the socket, so it is disconnected, which
    /// resets it without waiting for the last handle.
    pub fn reset(&mut self) {
        let _ = SockRef::from(self.stream.tcp()).set_linger(Some(Duration::ZERO));
        let _ = rustix::net::connect_unspec(self.stream.tcp());
    }

    fn noted<T>(&self, outcome: Result<T, ReadError>) -> Result<T, ReadError> {
        if let Err(ReadError::Malformed(what)) = &outcome {
            lock(&self.log.violations).push(what.clone());
        }
        outcome
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
