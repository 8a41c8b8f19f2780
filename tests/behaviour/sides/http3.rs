//! HTTP/3, by way of libraries: `quinn` and `h3`.

use bytes::{Buf, Bytes};
use h3::client::RequestStream;
use h3::error::Code;
use http::Request;
use tokio::runtime::Runtime;
use weir_testkit::http2::fields;
use weir_testkit::{Authority, DEADLINE, Fields, Gateway};

use super::http2::{header_map, wait};
use super::{ClientSide, Field, Length};
use crate::http3_client::{Sender, endpoint};

/// One connection of HTTP/3, with one request at a time.
pub(crate) struct Http3 {
    /// Keeps the connection going also while nothing is asked of it: what is received and not read is bounded by the windows.
    runtime: Runtime,
    requests: Sender,
    sending: Option<RequestStream<h3_quinn::SendStream<Bytes>, Bytes>>,
    /// Bytes of the body that are still to be sent, where their number was said.
    left: Option<u64>,
    receiving: Option<RequestStream<h3_quinn::RecvStream, Bytes>>,
    trailers: Fields,
}

impl Http3 {
    /// The next head of a response, interim or final.
    fn head(&mut self) -> Result<(u16, Fields), String> {
        let receiving = self.receiving.as_mut().expect("a request has begun");
        let head = wait(&self.runtime, DEADLINE, receiving.recv_response())?;
        Ok((head.status().as_u16(), fields(head.headers())))
    }

    fn end(&mut self) -> Result<(), String> {
        let sending = self.sending.as_mut().expect("a request has begun");
        wait(&self.runtime, DEADLINE, sending.finish())
    }
}

impl ClientSide for Http3 {
    const TLS: bool = true;
    const HTTP3: bool = true;

    fn connect(gateway: &Gateway) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let requests = runtime.block_on(async {
            let connecting = endpoint(Authority::of_tests()).connect(gateway.tls_addr(), "t").expect("it is begun");
            let quic = connecting.await.expect("it is established");
            let (mut driver, requests) = h3::client::new(h3_quinn::Connection::new(quic)).await.expect("it begins");
            // What goes wrong with the connection goes wrong with its streams.
            tokio::spawn(async move { std::future::poll_fn(|context| driver.poll_close(context)).await });
            requests
        });
        Http3 { runtime, requests, sending: None, left: None, receiving: None, trailers: Fields::default() }
    }

    fn begin(&mut self, method: &str, target: &str, fields: &[Field], length: Length) {
        let mut request = Request::new(());
        *request.method_mut() = method.parse().expect("a test writes methods");
        *request.uri_mut() = format!("https://t{target}").parse().expect("a test writes targets");
        *request.headers_mut() = header_map(fields);
        self.left = None;
        if let Length::Exactly(length) = length {
            request.headers_mut().insert("content-length", length.into());
            self.left = Some(length);
        }
        let stream = wait(&self.runtime, DEADLINE, self.requests.send_request(request)).expect("it is sent");
        let (sending, receiving) = stream.split();
        (self.sending, self.receiving) = (Some(sending), Some(receiving));
        if length == Length::None {
            self.end().expect("the stream stands");
        }
    }

    fn send(&mut self, part: &[u8]) -> Result<(), String> {
        let sending = self.sending.as_mut().expect("a request has begun");
        if !part.is_empty() {
            wait(&self.runtime, DEADLINE, sending.send_data(Bytes::copy_from_slice(part)))?;
        }
        let Some(left) = &mut self.left else { return Ok(()) };
        *left -= part.len() as u64;
        if *left == 0 { self.end() } else { Ok(()) }
    }

    fn finish(&mut self, trailers: &[Field]) {
        let sending = self.sending.as_mut().expect("a request has begun");
        if !trailers.is_empty() {
            wait(&self.runtime, DEADLINE, sending.send_trailers(header_map(trailers))).expect("the stream stands");
        }
        self.end().expect("the stream stands");
    }

    fn interim(&mut self) -> Result<(u16, Fields), String> {
        let head = self.head()?;
        if head.0 < 200 { Ok(head) } else { Err(format!("{} is final", head.0)) }
    }

    fn response(&mut self) -> Result<(u16, Fields), String> {
        loop {
            let head = self.head()?;
            if head.0 >= 200 {
                return Ok(head);
            }
        }
    }

    fn part(&mut self) -> Result<Vec<u8>, String> {
        let receiving = self.receiving.as_mut().expect("a response has begun");
        let part = async {
            if let Some(mut part) = receiving.recv_data().await? {
                return Ok::<_, h3::error::StreamError>(part.copy_to_bytes(part.remaining()).to_vec());
            }
            if let Some(trailers) = receiving.recv_trailers().await? {
                self.trailers = fields(&trailers);
            }
            Ok(Vec::new())
        };
        wait(&self.runtime, DEADLINE, part)
    }

    fn trailers(&self) -> &Fields {
        &self.trailers
    }

    fn abort(mut self) {
        self.sending.as_mut().expect("a request has begun").stop_stream(Code::H3_REQUEST_CANCELLED);
        drop(self.receiving.take());
        // The reset leaves on a connection that stands: it lasts as long as the test.
        std::mem::forget(self);
    }
}
