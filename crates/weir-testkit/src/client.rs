//! A client that sends exactly the bytes it is given.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use crate::http2::{self, Http2Connection};
use crate::reading::{ReadError, Reading};
use crate::secured;
use crate::tls::{NegotiatedTls, TlsClient, Wire};
use crate::wait::DEADLINE;
use crate::wire::{BodyFraming, Fields, MessageReader, Response};

/// One TCP connection to a gateway.
pub struct Client {
    stream: Wire,
    incoming: MessageReader,
    local: SocketAddr,
    /// Requests go over HTTP/2, on a connection beside this one.
    by_http2: bool,
    http2: Option<Http2Connection>,
}

impl Client {
    /// Connects, and panics when that is not possible.
    #[track_caller]
    pub fn connect(address: SocketAddr) -> Client {
        Client::try_connect(address).unwrap_or_else(|error| panic!("cannot connect to {address}: {error}"))
    }

    /// Connects.
    pub fn try_connect(address: SocketAddr) -> std::io::Result<Client> {
        Client::over(TcpStream::connect_timeout(&address, DEADLINE)?)
    }

    /// Connects from a given loopback address, for tests that count clients or need more ports than one address has.
    pub fn connect_from(source: Ipv4Addr, address: SocketAddr) -> std::io::Result<Client> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SockAddr::from(SocketAddr::from((source, 0))))?;
        socket.connect_timeout(&SockAddr::from(address), DEADLINE)?;
        Client::over(socket.into())
    }

    /// Connects with a receive buffer as small as the kernel allows, so that a client that does not read is felt soon.
    pub fn connect_narrow(address: SocketAddr) -> std::io::Result<Client> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_recv_buffer_size(4096)?;
        socket.connect_timeout(&SockAddr::from(address), DEADLINE)?;
        Client::over(socket.into())
    }

    /// Connects to something that speaks HTTP/2 as well, and asks over it where tests are to.
    #[track_caller]
    pub(crate) fn connect_either(address: SocketAddr) -> Client {
        Client { by_http2: http2::is_wanted(), ..Client::connect(address) }
    }

    /// The same client, asking over HTTP/2 what means the same there.
    pub fn by_http2(self) -> Client {
        Client { by_http2: true, ..self }
    }

    fn over(stream: TcpStream) -> std::io::Result<Client> {
        if let Some(tls) = secured::client_for(stream.peer_addr()?) {
            return Client::over_tls(stream, tls, secured::NAME);
        }
        Client::speaking(Wire::plain(prepared(stream)?))
    }

    /// Connects and shakes hands, asking for `name`.
    pub fn connect_tls(address: SocketAddr, tls: &TlsClient, name: &str) -> std::io::Result<Client> {
        Client::over_tls(TcpStream::connect_timeout(&address, DEADLINE)?, tls, name)
    }

    /// Shakes hands on a connection on which something else was said before.
    pub fn over_tls(stream: TcpStream, tls: &TlsClient, name: &str) -> std::io::Result<Client> {
        Client::speaking(tls.begin(name, prepared(stream)?)?)
    }

    /// What was agreed in the handshake; `None` where there was none.
    pub fn agreed(&self) -> Option<NegotiatedTls> {
        self.stream.agreed()
    }

    fn speaking(stream: Wire) -> std::io::Result<Client> {
        let local = stream.tcp().local_addr()?;
        Ok(Client { incoming: MessageReader::new(stream.clone(), None), stream, local, by_http2: false, http2: None })
    }

    /// This end's address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// How long a read waits before it is [`ReadError::TimedOut`]; [`DEADLINE`] unless told.
    pub fn set_deadline(&self, deadline: Duration) {
        self.stream.tcp().set_read_timeout(Some(deadline)).expect("not zero");
    }

    /// Sends all of `bytes`, and panics when the peer does not take them.
    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).unwrap_or_else(|error| panic!("cannot send: {error}"));
    }

    /// Sends all of `bytes`. A gateway may answer and close before it has read everything, so an error is an outcome.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Sends nothing more (FIN) and goes on reading.
    pub fn finish_sending(&self) {
        self.stream.finish_sending();
    }

    /// Drops the connection with a reset (RST).
    pub fn reset(self) {
        SockRef::from(self.stream.tcp()).set_linger(Some(Duration::ZERO)).expect("a TCP socket can linger");
    }

    /// Reads the response to a request whose method is neither HEAD nor CONNECT, with the 1xx responses before it. A
    /// 101 is a response of its own: nothing follows it but the tunnel.
    pub fn response(&mut self) -> Result<Response, ReadError> {
        self.response_to("GET")
    }

    /// Reads the response to a request with `method`.
    pub fn response_to(&mut self, method: &str) -> Result<Response, ReadError> {
        let mut response = self.response_head(method)?;
        (response.body, response.trailers) = self.incoming.body(response.framing, Reading::Strict)?;
        Ok(response)
    }

    /// Reads the head of the response, with the 1xx responses before it, and leaves the body.
    pub fn response_head(&mut self, method: &str) -> Result<Response, ReadError> {
        let mut informational = Vec::new();
        loop {
            let mut response = self.incoming.response_head(method)?;
            if response.status < 200 && response.status != 101 {
                informational.push(response);
                continue;
            }
            response.informational = informational;
            return Ok(response);
        }
    }

    /// Reads one response head as it comes, 1xx included.
    pub fn next_head(&mut self) -> Result<Response, ReadError> {
        self.incoming.response_head("GET")
    }

    /// Reads the rest of a body announced by `framing`, after [`Client::response_head`].
    pub fn body(&mut self, framing: BodyFraming) -> Result<(Vec<u8>, Fields), ReadError> {
        self.incoming.body(framing, Reading::Strict)
    }

    /// Reads one chunk of a chunked body; empty is the last one, whose trailers are left.
    pub fn chunk(&mut self) -> Result<Vec<u8>, ReadError> {
        self.incoming.chunk(Reading::Strict)
    }

    /// Reads the trailers after the last chunk.
    pub fn trailers(&mut self) -> Result<Fields, ReadError> {
        self.incoming.trailers(Reading::Strict)
    }

    /// Reads what is there, at least a byte and at most `limit`; empty when the peer has ended its stream.
    pub fn up_to(&mut self, limit: u64) -> Result<Vec<u8>, ReadError> {
        self.incoming.up_to(limit)
    }

    /// Reads exactly `count` bytes.
    pub fn exact(&mut self, count: u64) -> Result<Vec<u8>, ReadError> {
        self.incoming.exact(count)
    }

    /// Reads what is there, at least a byte; empty when the peer has ended its stream.
    pub fn some(&mut self) -> Result<Vec<u8>, ReadError> {
        self.incoming.some()
    }

    /// Reads until the peer closes and returns what still came. A reset counts as closed: a peer that closes without
    /// having read everything sends one. Panics when the peer keeps the connection open.
    #[track_caller]
    pub fn until_closed(&mut self) -> Vec<u8> {
        match self.incoming.rest() {
            Ok(rest) => rest,
            Err(ReadError::Reset { partial }) => crate::wire::latin1_bytes(&partial),
            Err(error) => panic!("the connection should have been closed, but: {error}"),
        }
    }

    /// Sends a request and reads its response, on this connection; on one of HTTP/2 where that is wanted and the request
    /// means the same there.
    pub fn ask(&mut self, request: impl AsRef<[u8]>) -> Result<Response, ReadError> {
        if self.by_http2
            && let Some(request) = http2::request(request.as_ref())
        {
            return self.ask_http2(request);
        }
        let method = request.as_ref().split(|&byte| byte == b' ').next().unwrap_or_default();
        let method = String::from_utf8_lossy(method).into_owned();
        if let Err(error) = self.try_send(&request) {
            return Err(ReadError::Reset { partial: format!("cannot send: {error}") });
        }
        self.response_to(&method)
    }

    fn ask_http2(&mut self, request: Request<Bytes>) -> Result<Response, ReadError> {
        let http2 = match &mut self.http2 {
            Some(http2) => http2,
            none => {
                let address = self.stream.tcp().peer_addr().and_then(Http2Connection::connect);
                none.insert(address.map_err(|error| ReadError::Reset { partial: format!("cannot connect: {error}") })?)
            }
        };
        http2.ask(request)
    }

    /// Sends a GET for `target` with `Host: t` and reads its response, on this connection.
    pub fn get(&mut self, target: &str) -> Result<Response, ReadError> {
        self.ask(format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n"))
    }
}

fn prepared(stream: TcpStream) -> std::io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    Ok(stream)
}
