//! Servers that do what a test says.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpStream as BlockingStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use weir_testkit::{Identity, TlsServer};

/// What a server does with a connection. Requests have no content, or one that comes with their head.
#[derive(Clone)]
pub(crate) enum Script {
    /// Answers each request with these bytes.
    Answers(&'static str),
    /// Closes each connection after its first answer.
    OneAnswerEach(&'static str),
    /// Answers the first request of a connection, and closes it when it has read the second.
    ClosesAtSecond(&'static str),
    /// Reads, and never writes.
    Silent,
    /// Answers with a piece, and with another when the gate opens.
    TwoPieces(Arc<Notify>),
    /// Answers with these bytes, and then with these again and again for ever.
    Endless(&'static str, &'static str),
}

pub(crate) struct Server {
    pub address: SocketAddr,
    log: Arc<Log>,
}

#[derive(Default)]
struct Log {
    connections: AtomicUsize,
    requests: AtomicUsize,
    recorded: Mutex<String>,
}

impl Server {
    pub(crate) async fn start(script: Script) -> Server {
        Self::listen(move |stream, log| tokio::spawn(follow(stream, script.clone(), log))).await
    }

    pub(crate) async fn start_tls(identity: &Identity, protocols: &[&str], script: Script) -> Server {
        let acceptor = acceptor(identity, protocols);
        Self::listen(move |stream, log| {
            let (acceptor, script) = (acceptor.clone(), script.clone());
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    follow(stream, script, log).await;
                }
            })
        })
        .await
    }

    /// Answers `h2` to each request, or the content that it has as it comes, with TLS if there is an identity for it.
    pub(crate) async fn start_http2(identity: Option<&Identity>) -> Server {
        let acceptor = identity.map(|identity| acceptor(identity, &["h2"]));
        Self::listen(move |stream, log| {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                match acceptor {
                    None => serve_http2(stream, log).await,
                    Some(acceptor) => serve_http2(acceptor.accept(stream).await.expect("a handshake"), log).await,
                }
            })
        })
        .await
    }

    async fn listen<T>(serve: impl Fn(tokio::net::TcpStream, Arc<Log>) -> T + Send + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let log: Arc<Log> = Arc::default();
        let shared = Arc::clone(&log);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Relaxed);
                serve(stream, Arc::clone(&shared));
            }
        });
        Server { address, log }
    }

    pub(crate) fn url(&self, target: &str) -> String {
        format!("http://{}{target}", self.address)
    }

    pub(crate) fn connections(&self) -> usize {
        self.log.connections.load(Relaxed)
    }

    pub(crate) fn requests(&self) -> usize {
        self.log.requests.load(Relaxed)
    }

    /// All requests so far, one after the other.
    pub(crate) fn recorded(&self) -> String {
        self.log.recorded.lock().expect("no test panics with it").clone()
    }
}

fn acceptor(identity: &Identity, protocols: &[&str]) -> TlsAcceptor {
    Arc::clone(TlsServer::new(identity).speaking(protocols).config()).into()
}

async fn serve_http2(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, log: Arc<Log>) {
    let answer = service_fn(move |request: http::Request<Incoming>| {
        log.requests.fetch_add(1, Relaxed);
        let content = match request.method() {
            &http::Method::POST => request.into_body().boxed(),
            _ => Full::new(Bytes::from_static(b"h2")).map_err(|never| match never {}).boxed(),
        };
        async { Ok::<_, Infallible>(http::Response::new(content)) }
    });
    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let _ = builder.serve_connection(TokioIo::new(stream), answer).await;
}

async fn follow(mut stream: impl AsyncRead + AsyncWrite + Unpin, script: Script, log: Arc<Log>) {
    for number in 0.. {
        if !read_request(&mut stream, &log).await {
            return;
        }
        let written = match &script {
            Script::Silent => continue,
            Script::ClosesAtSecond(_) if number > 0 => return,
            Script::Answers(answer) | Script::OneAnswerEach(answer) | Script::ClosesAtSecond(answer) => {
                stream.write_all(answer.as_bytes()).await
            }
            Script::TwoPieces(gate) => two_pieces(&mut stream, gate).await,
            Script::Endless(first, again) => return endless(&mut stream, first.as_bytes(), again.as_bytes()).await,
        };
        if written.is_err() || stream.flush().await.is_err() || matches!(script, Script::OneAnswerEach(_)) {
            return;
        }
    }
}

async fn two_pieces(stream: &mut (impl AsyncWrite + Unpin), gate: &Notify) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n").await?;
    gate.notified().await;
    stream.write_all(b"3\r\ntwo\r\n0\r\n\r\n").await
}

async fn endless(stream: &mut (impl AsyncWrite + Unpin), first: &[u8], again: &[u8]) {
    let many = again.repeat(10_000 / again.len() + 1);
    let mut written = stream.write_all(first).await;
    while written.is_ok() {
        written = stream.write_all(&many).await;
    }
}

/// A server over HTTP/2 that sends these frames again and again for ever once it has a request.
pub(crate) async fn endless_http2(again: Vec<u8>) -> Server {
    const PREFACE: usize = 24;
    const HEADERS: u8 = 1;
    Server::listen(move |mut stream, log| {
        let again = again.clone();
        tokio::spawn(async move {
            let mut received = Vec::new();
            let has_request = |received: &[u8]| {
                let mut frames = received.get(PREFACE..).unwrap_or_default();
                while let Some(&[_, high, low, kind, ..]) = frames.get(..9) {
                    if kind == HEADERS {
                        return true;
                    }
                    frames = frames.get(9 + usize::from(high) * 256 + usize::from(low)..).unwrap_or_default();
                }
                false
            };
            while !has_request(&received) {
                match stream.read_buf(&mut received).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                }
            }
            log.requests.fetch_add(1, Relaxed);
            let (mut reading, mut writing) = stream.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut reading, &mut tokio::io::sink()).await });
            let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
            endless(&mut writing, &settings, &again).await;
        })
    })
    .await
}

/// A server over HTTP/2 that answers the first request of each connection, and allows one request at a time. On the second request of
/// its first connection it sends these frames again and again for ever; other connections answer every request.
pub(crate) async fn http2_that_turns_bad(again: Vec<u8>) -> Server {
    const PREFACE: usize = 24;
    const HEADERS: u8 = 1;
    Server::listen(move |mut stream, log| {
        let again = again.clone();
        let is_first = log.connections.load(Relaxed) == 1;
        tokio::spawn(async move {
            // SETTINGS_MAX_CONCURRENT_STREAMS: 1.
            let settings = b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x01";
            if stream.write_all(settings).await.is_err() {
                return;
            }
            let (mut received, mut at, mut requests) = (Vec::new(), PREFACE, 0);
            loop {
                while let Some(&[_, high, low, kind, _, a, b, c, d]) = received.get(at..at + 9) {
                    at += 9 + usize::from(high) * 256 + usize::from(low);
                    if kind != HEADERS {
                        continue;
                    }
                    requests += 1;
                    log.requests.fetch_add(1, Relaxed);
                    if is_first && requests == 2 {
                        return endless(&mut stream, b"", &again).await;
                    }
                    // `:status: 200`, and the end of the stream.
                    let answer = [0, 0, 1, HEADERS, 5, a, b, c, d, 0x88];
                    if stream.write_all(&answer).await.is_err() {
                        return;
                    }
                }
                match stream.read_buf(&mut received).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                }
            }
        })
    })
    .await
}

/// Reads to the end of a head; what follows it at once is its content. False at the end of the connection.
async fn read_request(stream: &mut (impl AsyncRead + Unpin), log: &Log) -> bool {
    let mut head = Vec::new();
    let mut piece = [0; 4096];
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return false,
            Ok(length) => head.extend_from_slice(&piece[..length]),
        }
    }
    log.requests.fetch_add(1, Relaxed);
    log.recorded.lock().expect("no test panics with it").push_str(&String::from_utf8_lossy(&head));
    true
}

/// An address where connecting takes for ever: its backlog is full, and the kernel drops further SYNs.
pub(crate) struct FullBacklog {
    pub address: SocketAddr,
    _listener: socket2::Socket,
    _waiting: Vec<BlockingStream>,
}

pub(crate) fn with_full_backlog() -> FullBacklog {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("loopback has a free port");
    socket.listen(0).expect("a bound socket can listen");
    let address = socket.local_addr().expect("it is bound").as_socket().expect("of IPv4");
    let mut waiting = Vec::new();
    let soon = std::time::Duration::from_millis(100);
    while let Ok(stream) = BlockingStream::connect_timeout(&address, soon) {
        waiting.push(stream);
        assert!(waiting.len() < 100, "the kernel keeps to the backlog");
    }
    FullBacklog { address, _listener: socket, _waiting: waiting }
}
