//! Many connections with many streams each, all of which wait.

use std::io::{Read, Write};
use std::net::TcpStream;

use weir_testkit::{DEADLINE, eventually, scaled};

use super::frames::{ACK, PING, SETTINGS, WHOLE, frame, get, headers};
use crate::harness::weir;

const STREAMS: usize = 100;
/// What a waiting stream may take, with its exchange, its task and its timer.
const MOST_BYTES: u64 = 8 * 1024;

/// A connection whose streams all wait, once the gateway has read them.
fn begin(addr: std::net::SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(addr).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("not zero");
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, b""));
    (0..STREAMS).for_each(|number| bytes.extend(headers(2 * number as u32 + 1, WHOLE, &get("/held", &[]))));
    bytes.extend(frame(PING, 0, 0, [7; 8]));
    stream.write_all(&bytes).expect("it reads");
    let (answer, mut seen) = (frame(PING, ACK, 0, [7; 8]), Vec::new());
    let mut buffer = [0; 1024];
    while !seen.ends_with(&answer) {
        let count = stream.read(&mut buffer).expect("it answers");
        assert!(count > 0, "it has closed");
        seen.extend_from_slice(&buffer[..count]);
    }
    stream
}

#[test]
fn connections_with_a_hundred_waiting_streams_each_are_held() {
    let gateway = weir().start(
        "routes:
  - { id: held, uri: /held, plugins: { fault-injection: { delay: { duration: 3600 } } }, upstream: { nodes: { '127.0.0.1:1': 1 } } }
  - { id: other, uri: /other, plugins: { mocking: { response_example: here } } }
",
    );
    assert_eq!(gateway.get("/other").text(), "here");
    let before = gateway.rss();
    let count = scaled(100, 10_000);
    let connections: Vec<TcpStream> = (0..count).map(|_| begin(gateway.addr())).collect();
    let each = gateway.rss().saturating_sub(before) / (count * STREAMS) as u64;
    println!("{count} connections with {STREAMS} streams: {each} bytes for each stream");
    assert!(each <= MOST_BYTES, "{each} bytes for each stream");
    assert_eq!(gateway.get("/other").text(), "here", "others are served");
    drop(connections);
    eventually("all have gone", DEADLINE * 3, || gateway.metrics().sum("weir_client_connections", &[]) == 0.0);
    assert_eq!(gateway.get("/other").text(), "here");
}
