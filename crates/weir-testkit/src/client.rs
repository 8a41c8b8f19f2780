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
    /// Requests are sent over HTTP/2, on an additional connection.
    by_http2: bool,
    http2: Option<Http2Connection>,
    /// What [`Client::text_to`] has read and not returned yet.
    read_ahead: String,
}

impl Client {
    /// Connects; panics on failure.
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

    /// Connects with the smallest receive buffer that the kernel allows, so that a client that does not read causes
    /// back-pressure soon.
    pub fn connect_narrow(address: SocketAddr) -> std::io::Result<Client> {
        Client::over(Client::narrow_stream(address)?)
    }

    /// The connection of [`Client::connect_narrow`], for [`Client::over_tls`].
    pub fn narrow_stream(address: SocketAddr) -> std::io::Result<TcpStream> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_recv_buffer_size(4096)?;
        socket.connect_timeout(&SockAddr::from(address), DEADLINE)?;
        Ok(socket.into())
    }

    /// Connects to a server that supports HTTP/2 as well; requests use it if tests run with HTTP/2.
    #[track_caller]
    pub(crate) fn connect_either(address: SocketAddr) -> Client {
        Client { by_http2: http2::is_wanted(), ..Client::connect(address) }
    }

    /// The same client; requests that have the same meaning in HTTP/2 are sent over it.
    pub fn by_http2(self) -> Client {
        Client { by_http2: true, ..self }
    }

    fn over(stream: TcpStream) -> std::io::Result<Client> {
        if let Some(tls) = secured::client_for(stream.peer_addr()?) {
            return Client::over_tls(stream, tls, secured::NAME);
        }
        Client::speaking(Wire::plain(prepared(stream)?))
    }

    /// Connects, and completes a TLS handshake with the server name `name`.
    pub fn connect_tls(address: SocketAddr, tls: &TlsClient, name: &str) -> std::io::Result<Client> {
        Client::over_tls(TcpStream::connect_timeout(&address, DEADLINE)?, tls, name)
    }

    /// Completes a TLS handshake on a connection that has been used before.
    pub fn over_tls(stream: TcpStream, tls: &TlsClient, name: &str) -> std::io::Result<Client> {
        Client::speaking(tls.begin(name, prepared(stream)?)?)
    }

    /// The result of the TLS handshake; `None` without TLS.
    pub fn agreed(&self) -> Option<NegotiatedTls> {
        self.stream.agreed()
    }

    fn speaking(stream: Wire) -> std::io::Result<Client> {
        let local = stream.tcp().local_addr()?;
        let incoming = MessageReader::new(stream.clone(), None);
        Ok(Client { incoming, stream, local, by_http2: false, http2: None, read_ahead: String::new() })
    }

    /// This end's address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// How long a read waits before it fails with [`ReadError::TimedOut`]; [`DEADLINE`] by default.
    pub fn set_deadline(&self, deadline: Duration) {
        self.stream.tcp().set_read_timeout(Some(deadline)).expect("not zero");
    }

    /// Sends all of `bytes`; panics if the peer does not accept them.
    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).unwrap_or_else(|error| panic!("cannot send: {error}"));
    }

    /// Sends all of `bytes`. A gateway may answer and close before it has read everything, so an error is an outcome.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Closes the sending side (FIN), and continues to read.
    pub fn finish_sending(&self) {
        self.stream.finish_sending();
    }

    /// Drops the connection with a reset (RST).
    pub fn reset(self) {
        SockRef::from(self.stream.tcp()).set_linger(Some(Duration::ZERO)).expect("a TCP socket can linger");
    }

    /// Reads the response to a request whose method is neither HEAD nor CONNECT, with the 1xx responses before it. A
    /// 101 is a final response: only the tunnel follows it.
    pub fn response(&mut self) -> Result<Response, ReadError> {
        self.response_to("GET")
    }

    /// Reads the response to a request with `method`.
    pub fn response_to(&mut self, method: &str) -> Result<Response, ReadError> {
        let mut response = self.response_head(method)?;
        (response.body, response.trailers) = self.incoming.body(response.framing, Reading::Strict)?;
        Ok(response)
    }

    /// Reads the head of the response, with the 1xx responses before it, but not the body.
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

    /// Reads one response head, which may be a 1xx.
    pub fn next_head(&mut self) -> Result<Response, ReadError> {
        self.incoming.response_head("GET")
    }

    /// Reads the rest of a body announced by `framing`, after [`Client::response_head`].
    pub fn body(&mut self, framing: BodyFraming) -> Result<(Vec<u8>, Fields), ReadError> {
        self.incoming.body(framing, Reading::Strict)
    }

    /// Reads one chunk of a chunked body; empty for the last chunk, whose trailers are not read.
    pub fn chunk(&mut self) -> Result<Vec<u8>, ReadError> {
        self.incoming.chunk(Reading::Strict)
    }

    /// Reads the text of a chunked body up to and with the next `end`, however the text was cut into chunks; empty at
    /// the end of the body. What the last chunk holds beyond is for the next call.
    pub fn text_to(&mut self, end: &str) -> Result<String, ReadError> {
        loop {
            if let Some(at) = self.read_ahead.find(end) {
                return Ok(self.read_ahead.drain(..at + end.len()).collect());
            }
            let chunk = self.chunk()?;
            if chunk.is_empty() {
                return Ok(std::mem::take(&mut self.read_ahead));
            }
            self.read_ahead += &String::from_utf8(chunk).expect("UTF-8");
        }
    }

    /// Reads the trailers after the last chunk.
    pub fn trailers(&mut self) -> Result<Fields, ReadError> {
        self.incoming.trailers(Reading::Strict)
    }

    /// Reads the bytes that are available, at least one and at most `limit`; empty at the end of the stream.
    pub fn up_to(&mut self, limit: u64) -> Result<Vec<u8>, ReadError> {
        self.incoming.up_to(limit)
    }

    /// Reads exactly `count` bytes.
    pub fn exact(&mut self, count: u64) -> Result<Vec<u8>, ReadError> {
        self.incoming.exact(count)
    }

    /// Reads the bytes that are available, at least one; empty at the end of the stream.
    pub fn some(&mut self) -> Result<Vec<u8>, ReadError> {
        self.incoming.some()
    }

    /// Reads until the peer closes, and returns the remaining bytes. A reset counts as closed: a peer that closes
    /// before it has read everything sends one. Panics if the peer keeps the connection open.
    #[track_caller]
    pub fn until_closed(&mut self) -> Vec<u8> {
        match self.incoming.rest() {
            Ok(rest) => rest,
            Err(ReadError::Reset { partial }) => crate::wire::latin1_bytes(&partial),
            Err(error) => panic!("the connection should have been closed, but: {error}"),
        }
    }

    /// Sends a request and reads its response, on this connection, or over HTTP/2 if that is enabled and the request
    /// has the same meaning there.
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

    /// Sends a GET whose answer has no length, and reads it; `arrived` is called for each part of its content that has come.
    pub fn get_noting(&mut self, target: &str, mut arrived: impl FnMut()) -> Result<Response, ReadError> {
        let request = format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n");
        if self.by_http2
            && let Some(request) = http2::request(request.as_bytes())
        {
            return self.http2()?.ask_noting(request, arrived);
        }
        let closed = |error: std::io::Error| ReadError::Reset { partial: format!("cannot send: {error}") };
        self.try_send(&request).map_err(closed)?;
        let mut response = self.response_head("GET")?;
        loop {
            let chunk = self.chunk()?;
            if chunk.is_empty() {
                break;
            }
            arrived();
            response.body.extend(chunk);
        }
        response.trailers = self.trailers()?;
        Ok(response)
    }

    fn ask_http2(&mut self, request: Request<Bytes>) -> Result<Response, ReadError> {
        self.http2()?.ask(request)
    }

    /// The additional connection, which is made when it is needed.
    fn http2(&mut self) -> Result<&mut Http2Connection, ReadError> {
        let http2 = match &mut self.http2 {
            Some(http2) => http2,
            none => {
                let address = self.stream.tcp().peer_addr().and_then(Http2Connection::connect);
                none.insert(address.map_err(|error| ReadError::Reset { partial: format!("cannot connect: {error}") })?)
            }
        };
        Ok(http2)
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
