//! The commander's end of the connection to an agent. Parts of a run on the commander's own machine have the same interface.

use std::{
    fmt,
    fs::File,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs as _},
    os::fd::AsFd as _,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use rustls::{ClientConnection, StreamOwned, pki_types::ServerName};

use super::{
    super::machine_error::LinkError,
    AgentKey, AgentSession,
    key::SERVER_NAME,
    message::{AgentAnswer, AgentMachine, AgentRequest, AgentVersion, LONGEST_ANSWER, receive, send},
};

/// How long an agent may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long an answer may take: a target may need 20 s to listen, and its checker some more.
const ANSWER_LIMIT: Duration = Duration::from_secs(90);
/// How long the answer to a sign of life may take.
const ALIVE_LIMIT: Duration = Duration::from_secs(10);

/// One machine of a run.
pub(in crate::run) struct AgentLink {
    /// The address, or words for the own machine.
    pub name: String,
    hand: Mutex<Hand>,
}

impl fmt::Debug for AgentLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

enum Hand {
    There(Box<StreamOwned<ClientConnection, TcpStream>>),
    /// With the network namespace that its threads are in, if it is another one.
    Here(Box<AgentSession>, Option<File>),
    Lost(String),
}

impl AgentLink {
    /// Connects to an agent, and learns about its machine.
    pub(in crate::run) fn connect(address: &str, key: &AgentKey) -> Result<(AgentLink, AgentMachine), LinkError> {
        let named = || address.to_owned();
        let resolved = address.to_socket_addrs().map_err(|source| LinkError::Address { address: named(), source })?;
        let to =
            resolved.into_iter().find(SocketAddr::is_ipv4).ok_or_else(|| LinkError::NotIpv4 { address: named() })?;
        let failed = |source: io::Error| match is_wrong_key(&source) {
            true => LinkError::WrongKey { address: named() },
            false => LinkError::Connect { address: named(), source },
        };
        let stream = TcpStream::connect_timeout(&to, CONNECT_LIMIT).map_err(failed)?;
        let stream = shake(stream, key).map_err(failed)?;
        let link = AgentLink { name: named(), hand: Mutex::new(Hand::There(Box::new(stream))) };
        let machine = match link.call(AgentRequest::Hello(AgentVersion::own())) {
            Ok(AgentAnswer::Hello { machine, .. }) => *machine,
            Ok(other) => return Err(link.unexpected(&other)),
            Err(error) => return Err(error),
        };
        let IpAddr::V4(reached) = to.ip() else { return Err(LinkError::NotIpv4 { address: named() }) };
        Ok((link, AgentMachine { address: reached, ..machine }))
    }

    /// The own machine; its programs are in this network namespace, if there is one.
    pub(in crate::run) fn here(
        name: &str,
        session: AgentSession,
        namespace: Option<File>,
    ) -> Result<(AgentLink, AgentMachine), LinkError> {
        let link = AgentLink { name: name.to_owned(), hand: Mutex::new(Hand::Here(Box::new(session), namespace)) };
        match link.call(AgentRequest::Hello(AgentVersion::own()))? {
            AgentAnswer::Hello { machine, .. } => Ok((link, *machine)),
            other => Err(link.unexpected(&other)),
        }
    }

    /// The address by which this machine is seen from that of the agent; `None` for the own machine.
    pub(in crate::run) fn own_address(&self) -> Option<Ipv4Addr> {
        match &*self.hand.lock().unwrap_or_else(PoisonError::into_inner) {
            Hand::There(stream) => match stream.sock.local_addr().ok()?.ip() {
                IpAddr::V4(address) => Some(address),
                IpAddr::V6(_) => None,
            },
            Hand::Here(..) | Hand::Lost(_) => None,
        }
    }

    /// Asks, and waits for the answer. An agent that does not answer is lost for the rest of the run.
    pub(in crate::run) fn call(&self, request: AgentRequest) -> Result<AgentAnswer, LinkError> {
        let mut hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = match &mut *hand {
            Hand::Here(session, namespace) => handle_within(session, namespace.as_ref(), request),
            Hand::There(stream) => match ask(stream, &request) {
                Ok(answer) => answer,
                Err(error) => {
                    let reason = words(&error);
                    *hand = Hand::Lost(reason.clone());
                    return Err(LinkError::Lost { address: self.name.clone(), reason });
                }
            },
            Hand::Lost(reason) => {
                return Err(LinkError::Lost { address: self.name.clone(), reason: reason.clone() });
            }
        };
        match answer {
            AgentAnswer::Refused(reason) => Err(LinkError::Refused { address: self.name.clone(), reason }),
            answer => Ok(answer),
        }
    }

    /// Why it is lost, if it is known to be.
    pub(in crate::run) fn lost(&self) -> Option<LinkError> {
        // While a request is under way, its answer will tell.
        match &*self.hand.try_lock().ok()? {
            Hand::Lost(reason) => Some(LinkError::Lost { address: self.name.clone(), reason: reason.clone() }),
            Hand::Here(..) | Hand::There(_) => None,
        }
    }

    /// Asks for something whose answer has no content.
    pub(in crate::run) fn order(&self, request: AgentRequest) -> Result<(), LinkError> {
        match self.call(request)? {
            AgentAnswer::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Shows a sign of life, unless a request is under way.
    pub(in crate::run) fn keep_alive(&self) {
        if let Ok(mut hand) = self.hand.try_lock()
            && let Hand::There(stream) = &mut *hand
            && let Err(error) = ask_soon(stream)
        {
            *hand = Hand::Lost(words(&error));
        }
    }

    /// An answer to another question.
    pub(in crate::run) fn unexpected(&self, answer: &AgentAnswer) -> LinkError {
        let kind = serde_json::to_value(answer).ok();
        let kind = kind.as_ref().and_then(|value| value.as_object()?.keys().next().cloned()).unwrap_or_default();
        LinkError::Refused { address: self.name.clone(), reason: format!("it answered something else: {kind}") }
    }
}

fn shake(stream: TcpStream, key: &AgentKey) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    let name = ServerName::try_from(SERVER_NAME).map_err(io::Error::other)?;
    let config = key.client().map_err(io::Error::other)?;
    let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

fn ask(stream: &mut StreamOwned<ClientConnection, TcpStream>, request: &AgentRequest) -> io::Result<AgentAnswer> {
    send(stream, request)?;
    receive(stream, LONGEST_ANSWER)
}

/// A sign of life. An agent that does not answer soon is lost.
fn ask_soon(stream: &mut StreamOwned<ClientConnection, TcpStream>) -> io::Result<AgentAnswer> {
    stream.sock.set_read_timeout(Some(ALIVE_LIMIT))?;
    let answer = ask(stream, &AgentRequest::Alive);
    stream.sock.set_read_timeout(Some(ANSWER_LIMIT))?;
    answer
}

/// Handles a request on a thread in the namespace: processes, sockets and threads that it starts are in it.
fn handle_within(session: &mut AgentSession, namespace: Option<&File>, request: AgentRequest) -> AgentAnswer {
    let Some(namespace) = namespace else { return session.handle(request) };
    thread::scope(|scope| {
        let handling =
            scope.spawn(|| match move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)) {
                Ok(()) => session.handle(request),
                Err(error) => AgentAnswer::Refused(format!("setns: {error}")),
            });
        handling.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Whether a handshake failed since the agent does not show the expected key, or does not accept this one.
fn is_wrong_key(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_)))
}

fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
        io::ErrorKind::WouldBlock => "it does not answer".to_owned(),
        _ => error.to_string(),
    }
}
