//! A scripted HTTP/1.1 peer on plain threads: it shares nothing with the engine it tests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// What the peer does after an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    Next,
    Close,
    /// Close so that the other side sees a reset.
    Reset,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Position among all requests of the peer, from 0.
    pub number: usize,
    pub line: String,
    pub fields: Vec<String>,
    pub body: Vec<u8>,
    pub from: SocketAddr,
}

pub(crate) struct PeerDefinition {
    pub address: SocketAddr,
    pub connections: Arc<AtomicUsize>,
    pub requests: Arc<AtomicUsize>,
}

impl PeerDefinition {
    /// Starts a peer that answers every request as `script` does.
    pub(crate) fn start(script: impl Fn(&Seen, &mut TcpStream) -> Then + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let (connections, requests) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (counted, numbers, script) = (connections.clone(), requests.clone(), Arc::new(script));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::SeqCst);
                let (numbers, script) = (numbers.clone(), script.clone());
                thread::spawn(move || serve(stream, &numbers, &*script));
            }
        });
        Self { address, connections, requests }
    }

    /// Answers `200` with the body `OK` to everything.
    pub(crate) fn ok() -> Self {
        Self::start(|_, stream| answer(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"))
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Writes an answer and goes on.
pub(crate) fn answer(stream: &mut TcpStream, text: &str) -> Then {
    match stream.write_all(text.as_bytes()) {
        Ok(()) => Then::Next,
        Err(_) => Then::Close,
    }
}

fn serve(stream: TcpStream, numbers: &AtomicUsize, script: &(impl Fn(&Seen, &mut TcpStream) -> Then + ?Sized)) {
    let _ = stream.set_nodelay(true);
    let Ok(mut writer) = stream.try_clone() else { return };
    let Ok(from) = stream.peer_addr() else { return };
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let mut fields = Vec::new();
        let mut length = 0;
        loop {
            let mut field = String::new();
            if reader.read_line(&mut field).unwrap_or(0) == 0 {
                return;
            }
            let field = field.trim_end().to_owned();
            if field.is_empty() {
                break;
            }
            if let Some(value) = field.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("the engine sends a number");
            }
            fields.push(field);
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let number = numbers.fetch_add(1, Ordering::SeqCst);
        match script(&Seen { number, line: line.trim_end().to_owned(), fields, body, from }, &mut writer) {
            Then::Next => {}
            Then::Close => {
                let _ = writer.shutdown(Shutdown::Both);
                return;
            }
            Then::Reset => {
                let _ = socket2::SockRef::from(&writer).set_linger(Some(std::time::Duration::ZERO));
                return;
            }
        }
    }
}
