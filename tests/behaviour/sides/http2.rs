//! HTTP/2, by way of a library: attacks are written byte by byte elsewhere.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use weir_testkit::http2::fields;
use weir_testkit::{Authority, DEADLINE, Fields, Gateway, TlsClient};

use super::{ClientSide, Field, Length, Security};

/// One connection of HTTP/2, with one stream at a time.
pub(crate) struct Http2<S> {
    security: PhantomData<S>,
    runtime: Runtime,
    requests: SendRequest<Bytes>,
    sending: Option<SendStream<Bytes>>,
    /// Bytes of the body that are still to be sent, where their number was said.
    left: Option<u64>,
    answer: Option<ResponseFuture>,
    receiving: Option<RecvStream>,
    trailers: Fields,
}

pub(super) trait Bytestream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytestream for T {}

async fn dial(address: SocketAddr) -> TcpStream {
    let tcp = TcpStream::connect(address).await.expect("it listens");
    tcp.set_nodelay(true).expect("a socket takes options"); // windows open in small frames
    tcp
}

async fn connect<S: Security>(gateway: &Gateway) -> SendRequest<Bytes> {
    let stream: Box<dyn Bytestream> = match S::TLS {
        false => Box::new(dial(gateway.addr()).await),
        true => {
            let tls = TlsClient::trusting(Authority::of_tests()).speaking(&["h2", "http/1.1"]);
            let connector = tokio_rustls::TlsConnector::from(Arc::clone(tls.config()));
            let tcp = dial(gateway.tls_addr()).await;
            let stream = connector.connect("t".try_into().expect("a name"), tcp).await.expect("a handshake");
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]), "agreed upon in the handshake");
            Box::new(stream)
        }
    };
    let (requests, connection) = h2::client::handshake(stream).await.expect("HTTP/2 is spoken");
    tokio::spawn(async move {
        // What goes wrong with the connection goes wrong with its streams.
        let _ = connection.await;
    });
    requests
}

pub(super) fn header_map(fields: &[Field]) -> HeaderMap {
    let pair = |(name, value): &Field| {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a test writes names");
        (name, HeaderValue::from_str(value).expect("a test writes values"))
    };
    fields.iter().map(pair).collect()
}

/// Waits for something, while the connection makes progress: it does so at no other time, and reads nothing unasked.
pub(super) fn wait<T, E: ToString>(
    runtime: &Runtime,
    deadline: Duration,
    what: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    runtime.block_on(async {
        match tokio::time::timeout(deadline, what).await {
            Ok(outcome) => outcome.map_err(|error| error.to_string()),
            Err(_) => Err("nothing came".to_owned()),
        }
    })
}

/// Lets the connection send what it was given.
fn flush(runtime: &Runtime) {
    runtime.block_on(async {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    });
}

/// Sends bytes as the window for them opens.
pub(super) async fn piece_by_piece(stream: &mut SendStream<Bytes>, mut part: Bytes, ends: bool) -> Result<(), String> {
    while !part.is_empty() {
        stream.reserve_capacity(part.len());
        let room = match poll_fn(|context| stream.poll_capacity(context)).await {
            Some(Ok(room)) => room,
            Some(Err(error)) => return Err(error.to_string()),
            None => return Err("the gateway takes no more".to_owned()),
        };
        let piece = part.split_to(room.min(part.len()));
        let is_last = ends && part.is_empty();
        stream.send_data(piece, is_last).map_err(|error| error.to_string())?;
    }
    Ok(())
}

impl<S: Security> ClientSide for Http2<S> {
    const TLS: bool = S::TLS;

    fn connect(gateway: &Gateway) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let requests = runtime.block_on(connect::<S>(gateway));
        Http2 {
            security: PhantomData,
            runtime,
            requests,
            sending: None,
            left: None,
            answer: None,
            receiving: None,
            trailers: Fields::default(),
        }
    }

    fn begin(&mut self, method: &str, target: &str, fields: &[Field], length: Length) {
        let scheme = if S::TLS { "https" } else { "http" };
        let mut request = Request::new(());
        *request.method_mut() = method.parse().expect("a test writes methods");
        *request.uri_mut() = format!("{scheme}://t{target}").parse().expect("a test writes targets");
        *request.headers_mut() = header_map(fields);
        self.left = None;
        if let Length::Exactly(length) = length {
            request.headers_mut().insert("content-length", length.into());
            self.left = Some(length);
        }
        let ready = poll_fn(|context| self.requests.poll_ready(context));
        wait(&self.runtime, DEADLINE, ready).expect("the gateway takes requests");
        let (answer, sending) =
            self.requests.send_request(request, length == Length::None).expect("the connection stands");
        (self.answer, self.sending, self.receiving) = (Some(answer), Some(sending), None);
        flush(&self.runtime);
    }

    fn send(&mut self, part: &[u8]) -> Result<(), String> {
        let ends = match &mut self.left {
            None => false,
            Some(left) => {
                *left -= part.len() as u64;
                *left == 0
            }
        };
        let stream = self.sending.as_mut().expect("a request has begun");
        wait(&self.runtime, DEADLINE, piece_by_piece(stream, Bytes::copy_from_slice(part), ends))?;
        flush(&self.runtime);
        Ok(())
    }

    fn finish(&mut self, trailers: &[Field]) {
        let stream = self.sending.as_mut().expect("a request has begun");
        let ended = match trailers {
            [] => stream.send_data(Bytes::new(), true),
            trailers => stream.send_trailers(header_map(trailers)),
        };
        ended.expect("the stream stands");
        flush(&self.runtime);
    }

    fn interim(&mut self) -> Result<(u16, Fields), String> {
        let answer = self.answer.as_mut().expect("a request has begun");
        let interim = async {
            match poll_fn(|context| answer.poll_informational(context)).await {
                Some(Ok(interim)) => Ok((interim.status().as_u16(), fields(interim.headers()))),
                Some(Err(error)) => Err(error.to_string()),
                None => Err("the answer is final".to_owned()),
            }
        };
        wait(&self.runtime, DEADLINE, interim)
    }

    fn response(&mut self) -> Result<(u16, Fields), String> {
        let answer = self.answer.take().expect("a request has begun");
        let (head, receiving) = wait(&self.runtime, DEADLINE, answer)?.into_parts();
        self.receiving = Some(receiving);
        Ok((head.status.as_u16(), fields(&head.headers)))
    }

    fn part(&mut self) -> Result<Vec<u8>, String> {
        let receiving = self.receiving.as_mut().expect("a response has begun");
        let part = async {
            let part = match receiving.data().await {
                Some(part) => part?,
                None => {
                    if let Some(trailers) = receiving.trailers().await? {
                        self.trailers = fields(&trailers);
                    }
                    Bytes::new()
                }
            };
            receiving.flow_control().release_capacity(part.len())?;
            Ok::<_, h2::Error>(part.to_vec())
        };
        wait(&self.runtime, DEADLINE, part)
    }

    fn trailers(&self) -> &Fields {
        &self.trailers
    }

    fn abort(mut self) {
        self.sending.expect("a request has begun").send_reset(Reason::CANCEL);
        // The reset leaves on a connection that stands, as the library closes one only when nothing is left to send.
        drop((self.answer.take(), self.receiving.take(), self.requests));
        flush(&self.runtime);
    }
}
