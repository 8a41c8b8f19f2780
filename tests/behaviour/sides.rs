//! A client and an upstream as features see them: messages, not bytes. A protocol is a type that implements one of these.

mod http2;
mod http2_origin;
mod http3;

use std::marker::PhantomData;
use std::sync::OnceLock;

use weir_testkit::{
    Authority, BodyFraming, Client, Fields, Gateway, Identity, Origin, OriginConnection, Reading, TlsClient, TlsServer,
};

pub(crate) use http2::Http2;
pub(crate) use http3::Http3;

/// A field of a header or trailer section.
pub(crate) type Field<'a> = (&'a str, &'a str);

/// What a sender says beforehand about a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// There is none.
    None,
    /// So many bytes.
    Exactly(u64),
    /// It ends when it ends.
    Unknown,
}

/// The client side of one connection.
pub(crate) trait ClientSide: Sized + Send + 'static {
    const TLS: bool;
    const HTTP3: bool = false;
    fn connect(gateway: &Gateway) -> Self;
    /// Sends a request's head.
    fn begin(&mut self, method: &str, target: &str, fields: &[Field], length: Length);
    /// Sends a part of the body; fails once the gateway does not take it any more.
    fn send(&mut self, part: &[u8]) -> Result<(), String>;
    /// Ends a body of unknown length.
    fn finish(&mut self, trailers: &[Field]);
    /// Waits for an interim response.
    fn interim(&mut self) -> Result<(u16, Fields), String>;
    /// Waits for the final response's head.
    fn response(&mut self) -> Result<(u16, Fields), String>;
    /// Waits for a part of the response's body; empty when it is complete, an error when it was cut short.
    fn part(&mut self) -> Result<Vec<u8>, String>;
    /// The trailers, once the body is complete.
    fn trailers(&self) -> &Fields;
    /// Walks away in the middle.
    fn abort(self);

    /// A whole exchange.
    fn ask(&mut self, method: &str, target: &str, fields: &[Field], body: &[u8]) -> Result<Answer, String> {
        let length = if body.is_empty() { Length::None } else { Length::Exactly(body.len() as u64) };
        self.begin(method, target, fields, length);
        self.send(body)?;
        self.answer()
    }

    /// The response to what was sent.
    fn answer(&mut self) -> Result<Answer, String> {
        let (status, fields) = self.response()?;
        let mut body = Vec::new();
        loop {
            let part = self.part()?;
            if part.is_empty() {
                return Ok(Answer { status, fields, body: String::from_utf8_lossy(&body).into_owned() });
            }
            body.extend_from_slice(&part);
        }
    }
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    pub fields: Fields,
    pub body: String,
}

/// The upstream side: how an origin takes one request and answers it.
pub(crate) trait UpstreamSide: Sized + 'static {
    const TLS: bool;
    const HTTP2: bool;
    /// An origin that runs `script` for each request.
    fn origin(script: impl Fn(&mut dyn Exchange) + Send + Sync + 'static) -> Origin;
}

/// One request at an origin.
pub(crate) trait Exchange {
    fn method(&self) -> &str;
    fn target(&self) -> &str;
    fn fields(&self) -> &Fields;
    /// Waits for a part of the request's body; empty when it is complete, an error when the gateway gave up.
    fn part(&mut self) -> Result<Vec<u8>, String>;
    /// The request's trailers, once its body is complete.
    fn trailers(&self) -> &Fields;
    fn interim(&mut self, status: u16, fields: &[Field]);
    /// Sends the response's head.
    fn respond(&mut self, status: u16, fields: &[Field], length: Length);
    /// Sends a part of the response's body; fails once the gateway does not take it any more.
    fn send(&mut self, part: &[u8]) -> Result<(), String>;
    /// Ends a body of unknown length.
    fn finish(&mut self, trailers: &[Field]);
    /// Waits until the gateway gives this exchange up.
    fn wait_gone(&mut self);
    /// Breaks the exchange off.
    fn abort(&mut self);

    /// The rest of the request's body.
    fn body(&mut self) -> Result<Vec<u8>, String> {
        let mut body = Vec::new();
        loop {
            let part = self.part()?;
            if part.is_empty() {
                return Ok(body);
            }
            body.extend_from_slice(&part);
        }
    }

    /// A whole response.
    fn answer(&mut self, status: u16, fields: &[Field], body: &str) {
        self.respond(status, fields, Length::Exactly(body.len() as u64));
        // A gateway that has gone is what the test will see from the other side.
        let _ = self.send(body.as_bytes());
    }
}

/// Whether TLS is between.
pub(crate) trait Security: Send + 'static {
    const TLS: bool;
}

pub(crate) enum Plain {}

impl Security for Plain {
    const TLS: bool = false;
}

pub(crate) enum Secure {}

impl Security for Secure {
    const TLS: bool = true;
}

/// The certificate of both the gateway and the origin: for the host that clients ask for.
fn identity() -> &'static Identity {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    IDENTITY.get_or_init(|| Authority::of_tests().identity(&["t"]))
}

/// Where a gateway waits for such clients.
pub(crate) fn listen<C: ClientSide>() -> String {
    let Identity { certificate, key } = identity();
    match C::TLS {
        true => format!(
            "listen: [{{ address: \"127.0.0.1:0\", tls: true, http3: {} }}]\nssls:\n  - {{ sni: t, cert: {certificate:?}, key: \
             {key:?} }}\n",
            C::HTTP3
        ),
        false => String::new(),
    }
}

/// A gateway between such a client and such an upstream.
pub(crate) fn file<C: ClientSide, U: UpstreamSide>(origin: &Origin) -> String {
    file_of::<C>(&[&format!("id: all, uri: /*, upstream: {}", upstream::<U>(&[origin]))])
}

/// A file with these routes.
pub(crate) fn file_of<C: ClientSide>(routes: &[&str]) -> String {
    let routes: String = routes.iter().map(|route| format!("  - {{ {route} }}\n")).collect();
    format!("{}routes:\n{routes}", listen::<C>())
}

/// An upstream of these origins.
pub(crate) fn upstream<U: UpstreamSide>(origins: &[&Origin]) -> String {
    let mut spoken = match U::TLS {
        true => format!(", scheme: https, tls: {{ ca: {:?} }}", Authority::of_tests().certificate),
        false => String::new(),
    };
    if U::HTTP2 {
        spoken += ", http2: true";
    }
    let nodes: Vec<String> = origins.iter().map(|origin| format!("\"{}\": 1", origin.addr())).collect();
    format!("{{ type: roundrobin, nodes: {{ {} }}{spoken} }}", nodes.join(", "))
}

/// HTTP/1.1, on either side.
pub(crate) struct Http1<S> {
    security: PhantomData<S>,
    client: Client,
    method: String,
    sending: Length,
    left: Left,
    trailers: Fields,
}

/// What of a body is still to come.
#[derive(Clone, Copy, Debug)]
enum Left {
    Bytes(u64),
    Chunks,
    UntilClose,
}

impl Left {
    fn of(framing: BodyFraming) -> Left {
        match framing {
            BodyFraming::None => Left::Bytes(0),
            BodyFraming::Length(length) => Left::Bytes(length),
            BodyFraming::Chunked => Left::Chunks,
            BodyFraming::Close => Left::UntilClose,
        }
    }
}

fn lines(fields: &[Field], length: Length) -> String {
    let mut lines: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    match length {
        Length::None => {}
        Length::Exactly(length) => lines.push_str(&format!("Content-Length: {length}\r\n")),
        Length::Unknown => lines.push_str("Transfer-Encoding: chunked\r\n"),
    }
    lines + "\r\n"
}

fn framed(part: &[u8], length: Length) -> Vec<u8> {
    match length {
        Length::Unknown if !part.is_empty() => {
            [format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n".as_slice()].concat()
        }
        _ => part.to_vec(),
    }
}

impl<S: Security> ClientSide for Http1<S> {
    const TLS: bool = S::TLS;

    fn connect(gateway: &Gateway) -> Self {
        Http1 {
            security: PhantomData,
            client: match S::TLS {
                true => Client::connect_tls(gateway.tls_addr(), &TlsClient::trusting(Authority::of_tests()), "t")
                    .expect("a handshake"),
                false => gateway.client(),
            },
            method: String::new(),
            sending: Length::None,
            left: Left::Bytes(0),
            trailers: Fields::default(),
        }
    }

    fn begin(&mut self, method: &str, target: &str, fields: &[Field], length: Length) {
        self.method = method.to_owned();
        self.sending = length;
        self.client.send(format!("{method} {target} HTTP/1.1\r\nHost: t\r\n{}", lines(fields, length)));
    }

    fn send(&mut self, part: &[u8]) -> Result<(), String> {
        self.client.try_send(framed(part, self.sending)).map_err(|error| error.to_string())
    }

    fn finish(&mut self, trailers: &[Field]) {
        self.client.send(format!("0\r\n{}", lines(trailers, Length::None)));
    }

    fn interim(&mut self) -> Result<(u16, Fields), String> {
        let head = self.client.next_head().map_err(|error| error.to_string())?;
        if head.status < 200 { Ok((head.status, head.headers)) } else { Err(format!("{} is final", head.status)) }
    }

    fn response(&mut self) -> Result<(u16, Fields), String> {
        let head = self.client.response_head(&self.method).map_err(|error| error.to_string())?;
        self.left = Left::of(head.framing);
        Ok((head.status, head.headers))
    }

    fn part(&mut self) -> Result<Vec<u8>, String> {
        let part = match &mut self.left {
            Left::Bytes(0) => return Ok(Vec::new()),
            Left::Bytes(left) => {
                let part = self.client.up_to(*left).map_err(|error| error.to_string())?;
                *left -= part.len() as u64;
                if part.is_empty() {
                    return Err(format!("closed {left} bytes before the end"));
                }
                part
            }
            Left::UntilClose => self.client.some().map_err(|error| error.to_string())?,
            Left::Chunks => {
                let part = self.client.chunk().map_err(|error| error.to_string())?;
                if part.is_empty() {
                    self.trailers = self.client.trailers().map_err(|error| error.to_string())?;
                    self.left = Left::Bytes(0);
                }
                part
            }
        };
        Ok(part)
    }

    fn trailers(&self) -> &Fields {
        &self.trailers
    }

    fn abort(self) {
        self.client.reset();
    }
}

impl<S: Security> UpstreamSide for Http1<S> {
    const TLS: bool = S::TLS;
    const HTTP2: bool = false;

    fn origin(script: impl Fn(&mut dyn Exchange) + Send + Sync + 'static) -> Origin {
        let serve = move |connection: &mut OriginConnection| {
            while let Ok(request) = connection.head() {
                connection.record(&request);
                let left = Left::of(request.framing);
                let mut exchange = Http1Exchange {
                    connection,
                    method: request.method,
                    target: request.target,
                    fields: request.headers,
                    left,
                    trailers: Fields::default(),
                    answering: Length::None,
                    aborted: false,
                };
                script(&mut exchange);
                // What the script did not read is read now, so that the next request starts where it begins.
                if exchange.aborted || exchange.body().is_err() {
                    return;
                }
            }
        };
        match S::TLS {
            true => Origin::scripted_tls(&TlsServer::new(identity()), Reading::Strict, serve),
            false => Origin::scripted(Reading::Strict, serve),
        }
    }
}

struct Http1Exchange<'c> {
    connection: &'c mut OriginConnection,
    method: String,
    target: String,
    fields: Fields,
    left: Left,
    trailers: Fields,
    answering: Length,
    aborted: bool,
}

impl Exchange for Http1Exchange<'_> {
    fn method(&self) -> &str {
        &self.method
    }

    fn target(&self) -> &str {
        &self.target
    }

    fn fields(&self) -> &Fields {
        &self.fields
    }

    fn part(&mut self) -> Result<Vec<u8>, String> {
        match &mut self.left {
            Left::Bytes(0) | Left::UntilClose => Ok(Vec::new()),
            Left::Bytes(left) => {
                let part = self.connection.up_to(*left).map_err(|error| error.to_string())?;
                *left -= part.len() as u64;
                if part.is_empty() { Err(format!("closed {left} bytes before the end")) } else { Ok(part) }
            }
            Left::Chunks => {
                let part = self.connection.chunk().map_err(|error| error.to_string())?;
                if part.is_empty() {
                    self.trailers = self.connection.trailers().map_err(|error| error.to_string())?;
                    self.left = Left::Bytes(0);
                }
                Ok(part)
            }
        }
    }

    fn trailers(&self) -> &Fields {
        &self.trailers
    }

    fn interim(&mut self, status: u16, fields: &[Field]) {
        let _ = self.connection.send(format!("HTTP/1.1 {status} X\r\n{}", lines(fields, Length::None)));
    }

    fn respond(&mut self, status: u16, fields: &[Field], length: Length) {
        self.answering = length;
        let _ = self.connection.send(format!("HTTP/1.1 {status} X\r\n{}", lines(fields, length)));
    }

    fn send(&mut self, part: &[u8]) -> Result<(), String> {
        self.connection.send(framed(part, self.answering)).map_err(|error| error.to_string())
    }

    fn finish(&mut self, trailers: &[Field]) {
        let _ = self.connection.send(format!("0\r\n{}", lines(trailers, Length::None)));
    }

    fn wait_gone(&mut self) {
        self.connection.wait_gone();
        self.aborted = true;
    }

    fn abort(&mut self) {
        self.connection.reset();
        self.aborted = true;
    }
}
