//! The listener of an agent: one commander at a time, and only with the secret.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::{
    AgentKeeper, AgentKey, AgentSettings,
    message::{AgentAnswer, AgentRequest, LONGEST_REQUEST, receive, send},
    session::AgentSession,
};

/// How long a handshake may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// The most handshakes at one time; further connections are closed.
const MOST_HANDSHAKES: usize = 64;
/// The most handshakes at one time with one address, so that one machine cannot keep others out.
const MOST_OF_ADDRESS: usize = 2;
/// The most lines about failed handshakes.
const MOST_FAILURES_TOLD: usize = 100;
/// The pause after a connection that could not be accepted, for example for lack of files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A commander that is silent for so long is gone. It says something every few seconds.
pub(super) const SILENCE: Duration = Duration::from_secs(30);
/// How long an answer may wait for the commander to read it.
const WRITE_LIMIT: Duration = Duration::from_secs(30);
/// The most bytes of the first message, which has only the release.
const LONGEST_HELLO: usize = 4_096;
/// How often a session looks whether its commander has gone.
const WATCH: Duration = Duration::from_millis(200);
/// How often the listener looks at the stop flag.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Why an agent does not listen.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("{address}: {source}")]
    Listen { address: SocketAddrV4, source: io::Error },
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// An agent that listens.
pub struct AgentServer {
    listener: TcpListener,
    shared: Arc<AgentServerState>,
}

struct AgentServerState {
    tls: Arc<ServerConfig>,
    settings: AgentSettings,
    keeper: Option<Arc<AgentKeeper>>,
    /// The addresses of the connections that are in their handshake.
    handshakes: Mutex<Vec<IpAddr>>,
    failures_told: AtomicUsize,
    commander: Mutex<Commander>,
    tell: Box<dyn Fn(&str) + Send + Sync>,
}

/// Who commands the agent.
#[derive(Default)]
struct Commander {
    /// The connection of the commander, while there is one.
    connection: Option<(SocketAddr, TcpStream)>,
    /// The agent ends, and serves no further one.
    is_over: bool,
}

impl AgentServer {
    /// Listens. `tell` gets a line about each commander that comes, goes or is refused.
    pub fn bind(
        address: SocketAddrV4,
        key: &AgentKey,
        settings: AgentSettings,
        keeper: Option<Arc<AgentKeeper>>,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<AgentServer, ServeError> {
        let wrong = |source| ServeError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(wrong)?;
        listener.set_nonblocking(true).map_err(wrong)?;
        let shared = AgentServerState {
            tls: key.server()?,
            settings,
            keeper,
            handshakes: Mutex::default(),
            failures_told: AtomicUsize::new(0),
            commander: Mutex::default(),
            tell: Box::new(tell),
        };
        Ok(AgentServer { listener, shared: Arc::new(shared) })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is set; then ends the session of the commander.
    pub fn run(&self, stop: &AtomicBool) -> io::Result<()> {
        let mut sessions: Vec<thread::JoinHandle<()>> = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            match poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&LOOK)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            sessions.retain(|session| !session.is_finished());
            let Ok((stream, peer)) = self.listener.accept() else {
                thread::sleep(ACCEPT_PAUSE);
                continue;
            };
            if !self.shared.begins_handshake(peer.ip()) {
                continue;
            }
            let shared = self.shared.clone();
            sessions.push(thread::spawn(move || shared.connection(stream, peer)));
        }
        let mut commander = self.shared.commander();
        commander.is_over = true;
        if let Some((_, stream)) = &commander.connection {
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(commander);
        for session in sessions {
            let _ = session.join();
        }
        Ok(())
    }
}

impl AgentServerState {
    fn commander(&self) -> MutexGuard<'_, Commander> {
        self.commander.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handshakes(&self) -> MutexGuard<'_, Vec<IpAddr>> {
        self.handshakes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a handshake with this address. `false` if there are too many.
    fn begins_handshake(&self, address: IpAddr) -> bool {
        let mut handshakes = self.handshakes();
        let of_address = handshakes.iter().filter(|one| **one == address).count();
        let has_room = handshakes.len() < MOST_HANDSHAKES && of_address < MOST_OF_ADDRESS;
        if has_room {
            handshakes.push(address);
        }
        has_room
    }

    fn ends_handshake(&self, address: IpAddr) {
        let mut handshakes = self.handshakes();
        if let Some(index) = handshakes.iter().position(|one| *one == address) {
            handshakes.swap_remove(index);
        }
    }

    fn connection(&self, stream: TcpStream, peer: SocketAddr) {
        let shaken = self.handshake(stream);
        self.ends_handshake(peer.ip());
        match shaken {
            Ok(stream) => {
                if let Err(error) = self.session(stream, peer) {
                    (self.tell)(&format!("{peer}: {error}"));
                }
            }
            Err(error) => match self.failures_told.fetch_add(1, Ordering::Relaxed) {
                told if told < MOST_FAILURES_TOLD => (self.tell)(&format!("{peer}: {error}")),
                MOST_FAILURES_TOLD => (self.tell)("further failed handshakes are not told"),
                _ => {}
            },
        }
    }

    /// The TLS handshake, which only a holder of the secret completes.
    fn handshake(&self, stream: TcpStream) -> io::Result<StreamOwned<ServerConnection, TcpStream>> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(WRITE_LIMIT))?;
        let connection = ServerConnection::new(self.tls.clone()).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, stream);
        let watched = stream.sock.try_clone()?;
        let (done, is_done) = channel::<()>();
        thread::scope(|scope| {
            // A limit for each read would allow a peer that sends one byte at a time to stay.
            scope.spawn(move || {
                if is_done.recv_timeout(HANDSHAKE_LIMIT) == Err(RecvTimeoutError::Timeout) {
                    let _ = watched.shutdown(Shutdown::Both);
                }
            });
            let shaken = complete(&mut stream);
            drop(done);
            shaken
        })?;
        stream.sock.set_read_timeout(Some(SILENCE))?;
        Ok(stream)
    }

    /// Serves one commander until it leaves or is silent.
    fn session(&self, mut stream: StreamOwned<ServerConnection, TcpStream>, peer: SocketAddr) -> io::Result<()> {
        let address = match stream.sock.local_addr()?.ip() {
            IpAddr::V4(address) => address,
            IpAddr::V6(_) => Ipv4Addr::LOCALHOST,
        };
        let watched = stream.sock.try_clone()?;
        let claim = match self.claim(&stream.sock, peer)? {
            Ok(claim) => claim,
            Err(reason) => {
                let _: AgentRequest = receive(&mut stream, LONGEST_HELLO)?;
                return send(&mut stream, &AgentAnswer::Refused(reason));
            }
        };
        (self.tell)(&format!("{peer} commands this agent"));
        let mut session = AgentSession::new(self.settings.clone(), address, self.keeper.clone());
        let ended = thread::scope(|scope| {
            let (done, is_done) = channel::<()>();
            scope.spawn(move || self.end_with(&watched, &is_done));
            // Also if it panics, the thread above ends with this value.
            let _done = done;
            serve(&mut session, &mut stream)
        });
        drop(session);
        drop(claim);
        (self.tell)(&format!("{peer} has left; everything that it started has ended"));
        ended
    }

    /// Kills what runs for a commander that has gone, so that an order that waits for it ends.
    fn end_with(&self, stream: &TcpStream, is_done: &Receiver<()>) {
        let Some(keeper) = &self.keeper else { return };
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        while is_done.recv_timeout(WATCH) == Err(RecvTimeoutError::Timeout) {
            let mut watched = [PollFd::new(stream, PollFlags::RDHUP)];
            if poll(&mut watched, Some(&Timespec::default())).is_ok() && watched[0].revents().intersects(gone) {
                keeper.kill_all();
            }
        }
    }

    /// Makes this connection that of the commander, or says why it is not.
    fn claim(&self, stream: &TcpStream, peer: SocketAddr) -> io::Result<Result<CommanderClaim<'_>, String>> {
        let mut commander = self.commander();
        if commander.is_over {
            return Ok(Err("the agent ends".to_owned()));
        }
        if let Some((other, _)) = &commander.connection {
            return Ok(Err(format!("the agent is commanded by {other} already; it serves one at a time")));
        }
        commander.connection = Some((peer, stream.try_clone()?));
        Ok(Ok(CommanderClaim(self)))
    }
}

/// The right of one connection to command the agent. It ends with this value, also if the session panics.
struct CommanderClaim<'a>(&'a AgentServerState);

impl Drop for CommanderClaim<'_> {
    fn drop(&mut self) {
        self.0.commander().connection = None;
    }
}

/// Completes a handshake; the error of TLS is sent as an alert.
fn complete(stream: &mut StreamOwned<ServerConnection, TcpStream>) -> io::Result<()> {
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(())
}

/// Answers requests until the commander closes the connection. The first one must be the greeting, with the release.
fn serve(session: &mut AgentSession, stream: &mut StreamOwned<ServerConnection, TcpStream>) -> io::Result<()> {
    let mut is_known = false;
    loop {
        let request = match receive(stream, if is_known { LONGEST_REQUEST } else { LONGEST_HELLO }) {
            Ok(request) => request,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let words = format!("silent for {} s", SILENCE.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, words));
            }
            Err(error) => return Err(error),
        };
        let is_hello = matches!(request, AgentRequest::Hello(_));
        let answer = match is_known || is_hello {
            true => session.handle(request),
            false => AgentAnswer::Refused("the first message of a connection has the release".to_owned()),
        };
        send(stream, &answer)?;
        is_known |= is_hello && !matches!(answer, AgentAnswer::Refused(_));
        if !is_known {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        io::{Read as _, Write as _},
        path::{Path, PathBuf},
    };

    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

    use super::{
        super::{link::AgentLink, message::AgentVersion},
        *,
    };

    /// An agent in this process, which ends with the value.
    struct Agent {
        address: SocketAddr,
        stop: Arc<AtomicBool>,
        thread: Option<thread::JoinHandle<()>>,
        heard: Arc<Mutex<Vec<String>>>,
    }

    fn key(name: &str, secret: &str) -> AgentKey {
        use std::os::unix::fs::PermissionsExt as _;
        let path = std::env::temp_dir().join(format!("weir-bench-server-{name}-{}", std::process::id()));
        std::fs::write(&path, secret).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let key = AgentKey::read(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        key
    }

    impl Agent {
        fn start(key: &AgentKey) -> Agent {
            let settings =
                AgentSettings { programs: BTreeMap::new(), cache: PathBuf::from("/nonexistent"), only_listed: true };
            let heard = Arc::new(Mutex::new(Vec::new()));
            let hears = heard.clone();
            let tell = move |line: &str| hears.lock().unwrap().push(line.to_owned());
            let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
            let server = AgentServer::bind(address, key, settings, None, tell).unwrap();
            let (address, stop) = (server.address().unwrap(), Arc::new(AtomicBool::new(false)));
            let told = stop.clone();
            let thread = thread::spawn(move || server.run(&told).unwrap());
            Agent { address, stop, thread: Some(thread), heard }
        }

        fn hears(&self, words: &str) {
            let deadline = std::time::Instant::now() + Duration::from_secs(60);
            while !self.heard.lock().unwrap().iter().any(|line| line.contains(words)) {
                assert!(std::time::Instant::now() < deadline, "{words}: {:?}", self.heard.lock().unwrap());
                thread::yield_now();
            }
        }
    }

    impl Drop for Agent {
        fn drop(&mut self) {
            self.stop.store(true, Ordering::Relaxed);
            self.thread.take().unwrap().join().unwrap();
        }
    }

    #[test]
    fn a_commander_with_the_key_is_served_one_at_a_time() {
        let key = key("one", "sixteen letters and more");
        let agent = Agent::start(&key);
        let (link, machine) = AgentLink::connect(&agent.address.to_string(), &key).unwrap();
        assert_eq!(machine.address, Ipv4Addr::LOCALHOST);
        let error = AgentLink::connect(&agent.address.to_string(), &key).unwrap_err().to_string();
        assert!(error.contains("one at a time"), "{error}");
        drop(link);
        agent.hears("has left");
        AgentLink::connect(&agent.address.to_string(), &key).unwrap();
    }

    #[test]
    fn orders_of_a_commander_that_has_not_said_its_release_are_refused() {
        let key = key("hello", "sixteen letters and more");
        let agent = Agent::start(&key);
        let name = rustls::pki_types::ServerName::try_from(super::super::key::SERVER_NAME).unwrap();
        let connection = rustls::ClientConnection::new(key.client().unwrap(), name).unwrap();
        let mut stream = StreamOwned::new(connection, TcpStream::connect(agent.address).unwrap());
        send(&mut stream, &AgentRequest::Clock).unwrap();
        let answer = receive::<AgentAnswer>(&mut stream, 1_000_000).unwrap();
        assert!(matches!(&answer, AgentAnswer::Refused(reason) if reason.contains("release")), "{answer:?}");
        assert!(receive::<AgentAnswer>(&mut stream, 1_000_000).is_err(), "the connection ends");
    }

    #[test]
    fn one_address_cannot_take_all_handshakes() {
        let key = key("crowd", "sixteen letters and more");
        let agent = Agent::start(&key);
        let _idle: Vec<TcpStream> = (0..MOST_OF_ADDRESS).map(|_| TcpStream::connect(agent.address).unwrap()).collect();
        let mut third = TcpStream::connect(agent.address).unwrap();
        third.set_read_timeout(Some(HANDSHAKE_LIMIT / 2)).unwrap();
        let closed = third.read(&mut [0]);
        assert!(
            closed.as_ref().is_ok_and(|read| *read == 0)
                || closed.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
        );
    }

    #[test]
    fn another_key_is_refused_by_name() {
        let agent = Agent::start(&key("theirs", "sixteen letters and more"));
        let other = key("other", "sixteen letters or more");
        let error = AgentLink::connect(&agent.address.to_string(), &other).unwrap_err().to_string();
        assert!(error.contains("another key"), "{error}");
    }

    #[test]
    fn a_client_with_another_certificate_or_none_gets_no_answer() {
        let agent = Agent::start(&key("certificate", "sixteen letters and more"));
        let made = rcgen::generate_simple_self_signed(["agent.invalid".to_owned()]).unwrap();
        let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let trusting = || {
            rustls::ClientConfig::builder_with_provider(crate::engine::provider())
                .with_protocol_versions(&[&rustls::version::TLS13])
                .unwrap()
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyServer))
        };
        let with_other = trusting().with_client_auth_cert(vec![made.cert.der().clone()], private).unwrap();
        for config in [with_other, trusting().with_no_client_auth()] {
            let name = rustls::pki_types::ServerName::try_from("agent.invalid").unwrap();
            let connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
            let mut stream = StreamOwned::new(connection, TcpStream::connect(agent.address).unwrap());
            let sent = send(&mut stream, &AgentRequest::Hello(AgentVersion::own()));
            let answered = sent.and_then(|()| receive::<AgentAnswer>(&mut stream, 1_000_000));
            assert!(answered.is_err(), "{answered:?}");
        }
        assert!(agent.heard.lock().unwrap().iter().all(|line| !line.contains("commands")), "{:?}", agent.heard);
    }

    #[test]
    fn plain_bytes_are_no_handshake_and_the_agent_goes_on() {
        let key = key("plain", "sixteen letters and more");
        let agent = Agent::start(&key);
        let mut stream = TcpStream::connect(agent.address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut rest = Vec::new();
        // The agent sends an alert, or resets the connection.
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.len() < 100, "{rest:?}");
        AgentLink::connect(&agent.address.to_string(), &key).unwrap();
    }

    #[test]
    fn an_address_where_no_agent_listens_says_what_would() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = AgentLink::connect(&free.to_string(), &key("none", "sixteen letters and more")).unwrap_err();
        assert!(error.to_string().contains("weir bench agent --listen"), "{error}");
        let error = AgentLink::connect("gen1", &key("port", "sixteen letters and more")).unwrap_err().to_string();
        assert!(error.contains("gen1") && error.contains("HOST:PORT"), "{error}");
        assert!(!Path::new("/nonexistent").exists());
    }

    /// Accepts every server, so that only the agent's own check is left.
    #[derive(Debug)]
    struct AnyServer;

    impl rustls::client::danger::ServerCertVerifier for AnyServer {
        fn verify_server_cert(
            &self,
            _: &rustls::pki_types::CertificateDer<'_>,
            _: &[rustls::pki_types::CertificateDer<'_>],
            _: &rustls::pki_types::ServerName<'_>,
            _: &[u8],
            _: rustls::pki_types::UnixTime,
        ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
            Ok(rustls::client::danger::ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &rustls::pki_types::CertificateDer<'_>,
            _: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &rustls::pki_types::CertificateDer<'_>,
            _: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            vec![rustls::SignatureScheme::ED25519]
        }
    }
}
