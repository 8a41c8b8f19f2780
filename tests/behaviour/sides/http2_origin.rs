//! An origin of HTTP/2, by way of a library. A connection is driven by its thread; each of its streams has a script in a
//! thread of its own.

use std::future::poll_fn;
use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{Method, Response};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use weir_testkit::http2::fields;
use weir_testkit::{DEADLINE, Fields, Origin, OriginConnection, Reading, TlsServer};

use super::http2::{Bytestream, Http2, header_map, piece_by_piece, wait};
use super::{Exchange, Field, Length, Security, UpstreamSide, identity};

type Script = dyn Fn(&mut dyn Exchange) + Send + Sync;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

impl<S: Security> UpstreamSide for Http2<S> {
    const TLS: bool = S::TLS;
    const HTTP2: bool = true;

    fn origin(script: impl Fn(&mut dyn Exchange) + Send + Sync + 'static) -> Origin {
        let script: Arc<Script> = Arc::new(script);
        let tls = S::TLS.then(|| TlsServer::new(identity()).speaking(&["h2"]));
        Origin::scripted(Reading::Strict, move |connection: &mut OriginConnection| {
            runtime().block_on(serve(connection.socket(), tls.as_ref(), &script));
        })
    }
}

async fn serve(socket: std::net::TcpStream, tls: Option<&TlsServer>, script: &Arc<Script>) {
    socket.set_nonblocking(true).expect("a socket takes options");
    let tcp = TcpStream::from_std(socket).expect("the runtime takes it");
    let stream: Box<dyn Bytestream> = match tls {
        None => Box::new(tcp),
        Some(tls) => match tokio_rustls::TlsAcceptor::from(Arc::clone(tls.config())).accept(tcp).await {
            Ok(stream) => Box::new(stream),
            Err(_) => return,
        },
    };
    let Ok(mut library) = h2::server::handshake(stream).await else { return };
    // What goes wrong with the connection goes wrong with its streams.
    while let Some(Ok((request, respond))) = library.accept().await {
        let script = Arc::clone(script);
        thread::spawn(move || {
            let (head, receiving) = request.into_parts();
            let mut exchange = Http2Exchange {
                runtime: runtime(),
                method: head.method.to_string(),
                target: head.uri.path_and_query().map_or_else(String::new, ToString::to_string),
                fields: fields(&head.headers),
                receiving,
                trailers: Fields::default(),
                respond,
                sending: None,
                left: None,
                complete: false,
            };
            script(&mut exchange);
        });
    }
}

struct Http2Exchange {
    runtime: Runtime,
    method: String,
    target: String,
    fields: Fields,
    receiving: RecvStream,
    trailers: Fields,
    respond: SendResponse<Bytes>,
    sending: Option<SendStream<Bytes>>,
    /// Bytes of the body that are still to be sent, where their number was said.
    left: Option<u64>,
    /// The request's body has been read to its end.
    complete: bool,
}

impl Http2Exchange {
    fn head(&self, status: u16, fields: &[Field]) -> Response<()> {
        let mut head = Response::new(());
        *head.status_mut() = status.try_into().expect("a test writes statuses");
        *head.headers_mut() = header_map(fields);
        head
    }
}

impl Exchange for Http2Exchange {
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
        if self.complete {
            return Ok(Vec::new());
        }
        let receiving = &mut self.receiving;
        let part = async {
            loop {
                match receiving.data().await {
                    Some(part) => {
                        let part = part?;
                        receiving.flow_control().release_capacity(part.len())?;
                        if !part.is_empty() {
                            return Ok::<_, h2::Error>((part, None));
                        }
                    }
                    None => return Ok((Bytes::new(), receiving.trailers().await?)),
                }
            }
        };
        // Longer than any test waits: a request may stand still while nobody reads its answer.
        let (part, trailers) = wait(&self.runtime, DEADLINE * 30, part)?;
        self.complete = part.is_empty();
        if let Some(trailers) = trailers {
            self.trailers = fields(&trailers);
        }
        Ok(part.to_vec())
    }

    fn trailers(&self) -> &Fields {
        &self.trailers
    }

    fn interim(&mut self, status: u16, fields: &[Field]) {
        let _ = self.respond.send_informational(self.head(status, fields));
    }

    fn respond(&mut self, status: u16, fields: &[Field], length: Length) {
        let mut head = self.head(status, fields);
        self.left = None;
        if let Length::Exactly(length) = length {
            head.headers_mut().insert("content-length", length.into());
            self.left = Some(length);
        }
        let bodiless = self.method == Method::HEAD.as_str() || matches!(status, 204 | 304);
        let ends = bodiless || matches!(length, Length::None | Length::Exactly(0));
        // A gateway that has gone is what the test will see from the other side.
        self.sending = self.respond.send_response(head, ends).ok();
    }

    fn send(&mut self, part: &[u8]) -> Result<(), String> {
        let ends = match &mut self.left {
            None => false,
            Some(left) => {
                *left -= part.len() as u64;
                *left == 0
            }
        };
        let Some(sending) = &mut self.sending else { return Err("the gateway has gone".to_owned()) };
        wait(&self.runtime, DEADLINE * 30, piece_by_piece(sending, Bytes::copy_from_slice(part), ends))
    }

    fn finish(&mut self, trailers: &[Field]) {
        let Some(sending) = &mut self.sending else { return };
        let _ = match trailers {
            [] => sending.send_data(Bytes::new(), true),
            trailers => sending.send_trailers(header_map(trailers)),
        };
    }

    fn wait_gone(&mut self) {
        let (respond, sending) = (&mut self.respond, &mut self.sending);
        let reset = poll_fn(|context| match sending {
            Some(sending) => sending.poll_reset(context),
            None => respond.poll_reset(context),
        });
        let _ = wait(&self.runtime, DEADLINE * 30, reset);
    }

    fn abort(&mut self) {
        match &mut self.sending {
            Some(sending) => sending.send_reset(Reason::INTERNAL_ERROR),
            None => self.respond.send_reset(Reason::INTERNAL_ERROR),
        }
    }
}
