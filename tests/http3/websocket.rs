//! WebSockets that have a stream of HTTP/3 (RFC 9220), by a client that writes and reads the frames of HTTP/3 itself: the libraries for
//! clients have none.

use std::collections::VecDeque;

use quinn::{RecvStream, SendStream};
use weir_testkit::{Origin, OriginConnection, Reading};

use crate::client::{connect, run};
use crate::serve;

/// `CONNECT https://a.test/` with `:protocol: websocket` and the fields of its handshake, as a HEADERS frame.
fn handshake() -> Vec<u8> {
    let field = |name: &str, value: &str| {
        [&[0x27, name.len() as u8 - 7][..], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
    };
    let section = [
        &b"\x00\x00\xcf"[..],
        &field(":protocol", "websocket"),
        b"\xd7\x50\x06a.test\xc1",
        &field("sec-websocket-version", "13"),
    ]
    .concat();
    [&[1, 0x40, section.len() as u8][..], &section].concat()
}

/// A DATA frame.
fn data(content: &[u8]) -> Vec<u8> {
    [&[0, content.len() as u8][..], content].concat()
}

/// A tunnel, with what has been received of it and not read.
struct Tunnel {
    /// A connection ends with its control stream.
    _control: SendStream,
    send: SendStream,
    receive: RecvStream,
    received: VecDeque<u8>,
}

impl Tunnel {
    async fn open(quic: &quinn::Connection) -> Tunnel {
        let mut control = quic.open_uni().await.expect("a stream");
        control.write_all(&[0, 4, 0]).await.expect("SETTINGS");
        let (mut send, receive) = quic.open_bi().await.expect("a stream");
        send.write_all(&handshake()).await.expect("it is sent");
        let mut tunnel = Tunnel { _control: control, send, receive, received: VecDeque::new() };
        let (kind, section) = tunnel.frame().await.expect("a head");
        // Entry 25 of the static table is `:status: 200`.
        assert_eq!((kind, section.get(2)), (1, Some(&0xd9)), "{section:?}");
        tunnel
    }

    /// Whether there is another byte.
    async fn fill(&mut self) -> bool {
        while self.received.is_empty() {
            let mut buffer = [0; 65_536];
            let Some(count) = self.receive.read(&mut buffer).await.expect("the stream is whole") else { return false };
            self.received.extend(&buffer[..count]);
        }
        true
    }

    /// A variable-length integer (RFC 9000 §16); `None` at the end.
    async fn number(&mut self) -> Option<u64> {
        if !self.fill().await {
            return None;
        }
        let first = self.received.pop_front().expect("it is there");
        let mut value = u64::from(first & 0x3f);
        for _ in 1..1 << (first >> 6) {
            assert!(self.fill().await, "the end cuts a number");
            value = value << 8 | u64::from(self.received.pop_front().expect("it is there"));
        }
        Some(value)
    }

    /// The type and the content of the next frame; `None` at the end.
    async fn frame(&mut self) -> Option<(u64, Vec<u8>)> {
        let kind = self.number().await?;
        let length = self.number().await.expect("a length") as usize;
        let mut content = Vec::with_capacity(length);
        while content.len() < length {
            assert!(self.fill().await, "the end cuts a frame");
            let count = self.received.len().min(length - content.len());
            content.extend(self.received.drain(..count));
        }
        Some((kind, content))
    }

    /// So many bytes of content.
    async fn content(&mut self, length: usize) -> Vec<u8> {
        let mut content = Vec::new();
        while content.len() < length {
            let (kind, part) = self.frame().await.expect("content");
            assert_eq!(kind, 0, "DATA");
            content.extend(part);
        }
        content
    }
}

/// An origin that agrees to the WebSocket, and goes on with `then`.
fn origin(then: impl Fn(&mut OriginConnection) + Send + Sync + 'static) -> Origin {
    Origin::scripted(Reading::Strict, move |connection| {
        let Ok(request) = connection.request() else { return };
        assert_eq!((&*request.method, request.headers.get("Upgrade")), ("GET", Some("websocket")));
        let _ = connection
            .send("HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n");
        then(connection);
    })
}

/// An origin that sends back what is sent to it.
pub(crate) fn echo() -> Origin {
    origin(|connection| {
        while let Ok(part) = connection.some() {
            if part.is_empty() || connection.send(part).is_err() {
                return;
            }
        }
    })
}

#[test]
fn a_websocket_goes_both_ways_to_its_end() {
    let origin = echo();
    let served = serve(&origin, "");
    run(async {
        let quic = connect(&served.authority, served.gateway.tls_addr()).await;
        let mut settings = quic.accept_uni().await.expect("the control stream");
        let mut tunnel = Tunnel::open(&quic).await;
        let mut start = [0; 32];
        let count = settings.read(&mut start).await.expect("it is open").expect("SETTINGS");
        assert!(start[..count].ends_with(&[8, 1]), "SETTINGS_ENABLE_CONNECT_PROTOCOL: {:?}", &start[..count]);
        // Frames of WebSocket, masked with zeros.
        for word in ["one", "two", "three"] {
            let frame = [&[0x81, 0x80 | word.len() as u8, 0, 0, 0, 0][..], word.as_bytes()].concat();
            tunnel.send.write_all(&data(&frame)).await.expect("it is sent");
            assert_eq!(tunnel.content(frame.len()).await, frame);
        }
        tunnel.send.finish().expect("it ends");
        assert_eq!(tunnel.frame().await, None, "the origin has closed its end, too");
    });
}

#[test]
fn the_end_of_a_burst_reaches_the_client_although_nothing_follows() {
    const BURST: usize = 4 * 1024 * 1024;
    let origin = origin(|connection| {
        let mut frame = [&[0x82, 0x7f][..], &(BURST as u64).to_be_bytes()].concat();
        frame.resize(10 + BURST, 7);
        let _ = connection.send(frame);
        // Nothing more comes until the client has all of it.
        let _ = connection.some();
    });
    let served = serve(&origin, "");
    run(async {
        let quic = connect(&served.authority, served.gateway.tls_addr()).await;
        let mut tunnel = Tunnel::open(&quic).await;
        let burst = tunnel.content(10 + BURST).await;
        assert_eq!((burst.len(), burst.last()), (10 + BURST, Some(&7)));
        tunnel.send.finish().expect("it ends");
        assert_eq!(tunnel.frame().await, None);
    });
}
