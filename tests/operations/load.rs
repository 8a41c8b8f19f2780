//! Clients of every kind at once, and an account of what went wrong for them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use weir_testkit::{BodyFraming, Client, DEADLINE, Origin, OriginConnection, Reading, eventually};

/// An origin for all of them: says what it was asked, upgrades `/tunnel` to an echo, and sends events at `/events`
/// until its client leaves.
pub(crate) fn origin() -> Origin {
    Origin::scripted(Reading::Strict, |connection| {
        while let Ok(request) = connection.request() {
            let served = match request.target.as_str() {
                "/tunnel" => return echo(connection),
                "/events" => return events(connection),
                _ => {
                    let body = format!("{} {} {}", request.method, request.target, request.body.len());
                    connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
                }
            };
            if served.is_err() {
                return;
            }
        }
    })
}

fn echo(connection: &mut OriginConnection) {
    let upgraded = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    if connection.send(upgraded).is_err() {
        return;
    }
    while let Ok(bytes) = connection.some() {
        if bytes.is_empty() || connection.send(bytes).is_err() {
            return;
        }
    }
}

fn events(connection: &mut OriginConnection) {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    if connection.send(head).is_err() {
        return;
    }
    for number in 0.. {
        let event = format!("data: {number}\n\n");
        if connection.send(format!("{:x}\r\n{event}\r\n", event.len())).is_err() {
            return;
        }
        // The pace of the stream, which nothing waits for.
        thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// The routes for it.
pub(crate) fn routes(origin: &Origin) -> String {
    let addr = origin.addr();
    format!("routes:\n  - {{ id: all, uri: /*, upstream: {{ type: roundrobin, nodes: {{ \"{addr}\": 1 }} }} }}\n")
}

/// Clients that go on until told to stop.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Result<(), String>>>,
    done: Arc<AtomicUsize>,
}

impl Load {
    /// Clients that honour `Connection: close`: new connections, and kept ones with GET and POST.
    pub(crate) fn start(addr: SocketAddr) -> Load {
        Load::by(move || Client::try_connect(addr))
    }

    /// The same, over connections of any kind.
    pub(crate) fn by(connect: impl Fn() -> io::Result<Client> + Clone + Send + 'static) -> Load {
        Load::through(move || connect().map_err(|error| Failure::Other(format!("connect: {error}"))))
    }

    /// The same, until connections are refused: clients of a listener that is removed.
    pub(crate) fn until_refused(connect: impl Fn() -> io::Result<Client> + Clone + Send + 'static) -> Load {
        Load::through(move || {
            connect().map_err(|error| match error.kind() {
                io::ErrorKind::ConnectionRefused => Failure::Refused,
                _ => Failure::Other(format!("connect: {error}")),
            })
        })
    }

    /// Only kept connections, for listeners without HTTP/1.
    pub(crate) fn kept_by(connect: impl Fn() -> io::Result<Client> + Clone + Send + 'static) -> Load {
        let mut load = Load { stop: Arc::default(), clients: Vec::new(), done: Arc::default() };
        load.keep(move || connect().map_err(|error| Failure::Other(format!("connect: {error}"))));
        load
    }

    fn through(connect: impl Fn() -> Result<Client, Failure> + Clone + Send + 'static) -> Load {
        let mut load = Load { stop: Arc::default(), clients: Vec::new(), done: Arc::default() };
        load.keep(connect.clone());
        load.spawn(move |stop, done| {
            until(stop, done, || {
                let request = "GET /new HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
                Ok(expect(&mut connect()?, request, "GET /new 0").map(|_| ())?)
            })
        });
        load
    }

    fn keep(&mut self, connect: impl Fn() -> Result<Client, Failure> + Clone + Send + 'static) {
        for kind in 0..4 {
            let request = match kind % 2 {
                0 => "GET /kept HTTP/1.1\r\nHost: t\r\n\r\n".to_owned(),
                _ => format!("POST /kept HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\n{}", "x".repeat(1000)),
            };
            let answer = if kind % 2 == 0 { "GET /kept 0" } else { "POST /kept 1000" };
            let connect = connect.clone();
            self.spawn(move |stop, done| {
                let mut kept: Option<Client> = None;
                until(stop, done, || {
                    let mut client = kept.take().map_or_else(&connect, Ok)?;
                    if !expect(&mut client, &request, answer)? {
                        kept = Some(client);
                    }
                    Ok(())
                })
            });
        }
    }

    /// Waits until all clients have ended by themselves.
    #[track_caller]
    pub(crate) fn wait_ended(&self) {
        eventually("no client is left", DEADLINE, || self.clients.iter().all(JoinHandle::is_finished));
    }

    /// The same, and a tunnel and a stream of events that stay open all the time.
    pub(crate) fn with_streams(addr: SocketAddr) -> Load {
        let mut load = Load::start(addr);
        load.spawn(move |stop, done| {
            let mut tunnel = Tunnel::open(addr);
            until(stop, done, || Ok(tunnel.echo()?))
        });
        load.spawn(move |stop, done| {
            let mut events = Events::open(addr);
            until(stop, done, || Ok(events.next()?))
        });
        load
    }

    fn spawn(&mut self, client: impl FnOnce(&AtomicBool, &AtomicUsize) -> Result<(), String> + Send + 'static) {
        let (stop, done) = (Arc::clone(&self.stop), Arc::clone(&self.done));
        self.clients.push(thread::spawn(move || client(&stop, &done)));
    }

    /// Waits until so many more exchanges have come to a good end.
    #[track_caller]
    pub(crate) fn wait_for(&self, more: usize) {
        let wanted = self.done.load(Relaxed) + more;
        eventually("clients are served", DEADLINE, || {
            self.done.load(Relaxed) >= wanted || self.clients.iter().any(JoinHandle::is_finished)
        });
    }

    /// Ends the clients. Panics when anything went wrong for any of them.
    #[track_caller]
    pub(crate) fn finish(self) {
        self.stop.store(true, Relaxed);
        let ends = self.clients.into_iter().map(|client| client.join().expect("clients do not panic"));
        let failures: Vec<String> = ends.filter_map(Result::err).collect();
        assert!(failures.is_empty(), "after {} exchanges: {failures:#?}", self.done.load(Relaxed));
    }
}

fn until(
    stop: &AtomicBool,
    done: &AtomicUsize,
    mut exchange: impl FnMut() -> Result<(), Failure>,
) -> Result<(), String> {
    while !stop.load(Relaxed) {
        match exchange() {
            Ok(()) => done.fetch_add(1, Relaxed),
            Err(Failure::Refused) => return Ok(()),
            Err(Failure::Other(why)) => return Err(why),
        };
    }
    Ok(())
}

/// Why an exchange is not served.
enum Failure {
    /// No process listens, as expected.
    Refused,
    Other(String),
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure::Other(why)
    }
}

/// One exchange. Says whether the connection is to be closed.
fn expect(client: &mut Client, request: &str, body: &str) -> Result<bool, String> {
    let (method, _) = request.split_once(' ').expect("a request has a method");
    let answer = client.ask(request).map_err(|error| format!("{method}: {error}"))?;
    match (answer.status, answer.text()) {
        (200, text) if text == body => Ok(answer.closes()),
        (status, text) => Err(format!("{method}: {status} {text:?} instead of {body:?}")),
    }
}

/// An open tunnel.
pub(crate) struct Tunnel {
    client: Client,
    sent: usize,
}

impl Tunnel {
    #[track_caller]
    pub(crate) fn open(addr: SocketAddr) -> Tunnel {
        let mut client = Client::connect(addr);
        client.send("GET /tunnel HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n");
        let head = client.response_head("GET").expect("an answer");
        assert_eq!(head.status, 101);
        Tunnel { client, sent: 0 }
    }

    /// Sends something and gets it back.
    pub(crate) fn echo(&mut self) -> Result<(), String> {
        self.sent += 1;
        let message = format!("message {}\n", self.sent);
        self.client.try_send(&message).map_err(|error| format!("tunnel: {error}"))?;
        match self.client.exact(message.len() as u64) {
            Ok(back) if back == message.as_bytes() => Ok(()),
            Ok(back) => Err(format!("tunnel: {back:?} came back instead of {message:?}")),
            Err(error) => Err(format!("tunnel: {error}")),
        }
    }
}

/// An open stream of events.
pub(crate) struct Events {
    client: Client,
    seen: usize,
}

impl Events {
    #[track_caller]
    pub(crate) fn open(addr: SocketAddr) -> Events {
        let mut client = Client::connect(addr);
        client.send("GET /events HTTP/1.1\r\nHost: t\r\n\r\n");
        let head = client.response_head("GET").expect("an answer");
        assert_eq!((head.status, head.framing), (200, BodyFraming::Chunked));
        Events { client, seen: 0 }
    }

    /// Waits for the next event, which must be the right one.
    pub(crate) fn next(&mut self) -> Result<(), String> {
        let event = self.client.text_to("\n\n").map_err(|error| format!("events: {error}"))?;
        let expected = format!("data: {}\n\n", self.seen);
        self.seen += 1;
        if event == expected { Ok(()) } else { Err(format!("events: {event:?} instead of {expected:?}")) }
    }
}
