//! Clients and endpoints that are scripted in the test.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use weir_testkit::{DEADLINE, eventually_some};

/// A TCP server: each connection is served by a thread.
pub(crate) struct Endpoint {
    pub addr: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Endpoint {
    pub(crate) fn new(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Endpoint {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        // The standard library's queue of 128 is too short for tests that open more at once.
        rustix::net::listen(&listener, 4096).expect("it listens already");
        let addr = listener.local_addr().expect("it is bound");
        let (serve, accepted) = (Arc::new(serve), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&accepted);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                let serve = Arc::clone(&serve);
                thread::spawn(move || serve(stream));
            }
        });
        Endpoint { addr, accepted }
    }

    /// Sends this line first, and then everything back; closes its half after the client has closed its own.
    pub(crate) fn echo(greeting: &str) -> Endpoint {
        let greeting = greeting.to_owned();
        Endpoint::new(move |mut stream| {
            let _ = stream.write_all(greeting.as_bytes());
            let mut buffer = [0; 16 * 1024];
            while let Ok(count) = stream.read(&mut buffer) {
                if count == 0 || stream.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            let _ = stream.shutdown(Shutdown::Write);
        })
    }

    /// Connections accepted so far.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// As the nodes of an upstream.
    pub(crate) fn node(&self) -> String {
        format!("\"{}\": 1", self.addr)
    }
}

/// The keys `upstream` of a stream route to these nodes.
pub(crate) fn upstream(nodes: &[String]) -> String {
    format!("upstream: {{ scheme: tcp, nodes: {{ {} }} }}", nodes.join(", "))
}

/// An address on which nothing listens.
pub(crate) fn refusing() -> String {
    format!("\"127.0.0.1:{}\": 1", weir_testkit::free_port())
}

/// A connection that fails rather than waits for ever.
#[track_caller]
pub(crate) fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("set");
    stream.set_write_timeout(Some(DEADLINE)).expect("set");
    stream
}

/// The next bytes, exactly as many as `expected` has.
#[track_caller]
pub(crate) fn expect(stream: &mut impl Read, expected: &str) {
    let mut got = vec![0; expected.len()];
    stream.read_exact(&mut got).unwrap_or_else(|error| panic!("waiting for {expected:?}: {error}"));
    assert_eq!(String::from_utf8_lossy(&got), expected);
}

/// A connection that has been greeted. On a busy machine a stream with a short idle time may end before that.
#[track_caller]
pub(crate) fn greeted(addr: SocketAddr, greeting: &str) -> TcpStream {
    eventually_some("a greeting", DEADLINE, || {
        let (mut stream, mut got) = (connect(addr), vec![0; greeting.len()]);
        stream.read_exact(&mut got).is_ok().then(|| {
            assert_eq!(String::from_utf8_lossy(&got), greeting);
            stream
        })
    })
}

/// Sends a line, and waits until it has come back.
#[track_caller]
pub(crate) fn ping(stream: &mut (impl Read + Write), line: &str) {
    stream.write_all(line.as_bytes()).expect("sent");
    expect(stream, line);
}

/// What comes until the end. A connection that is reset has no end.
pub(crate) fn rest(stream: &mut impl Read) -> std::io::Result<String> {
    let mut text = Vec::new();
    stream.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
