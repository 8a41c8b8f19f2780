//! HTTP/2: connections with several streams each.

use std::rc::Rc;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use tokio::task::spawn_local;

use super::dial::dial;
use super::multiplexed::{Multiplexed, MultiplexedRequest, WINDOW, captured_head};
use super::{Answered, PreparedStreams};
use crate::engine::flow::CapturedAnswer;
use crate::engine::recorder::Cause;

pub(super) struct DialedHttp2(SendRequest<Bytes>);

impl Multiplexed for DialedHttp2 {
    type Sent = (ResponseFuture, SendStream<Bytes>);

    async fn open(lobby: &Rc<PreparedStreams>, client: usize, request: usize) -> Result<Self, Cause> {
        let stream = dial(lobby, client, request).await?;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
        let (sender, connection) = builder.handshake(stream).await.map_err(|_| Cause::Protocol)?;
        let lobby = lobby.clone();
        spawn_local(async move {
            // The error is ignored here, because the streams report it.
            let _ = connection.await;
            lobby.closed();
        });
        Ok(DialedHttp2(sender))
    }

    async fn send(&mut self, request: &MultiplexedRequest) -> Result<Self::Sent, Cause> {
        // An error means that the connection has ended.
        let mut sender = self.0.clone().ready().await.map_err(|error| cause(&error))?;
        sender.send_request(request.head.clone(), request.body.is_empty()).map_err(|error| cause(&error))
    }

    async fn answer(
        (response, mut send): Self::Sent,
        request: &MultiplexedRequest,
        capture: &mut CapturedAnswer,
    ) -> Result<Option<Answered>, Cause> {
        let body = &request.body;
        if !body.is_empty() {
            send.send_data(body.clone(), true).map_err(|error| cause(&error))?;
        }
        let response = match response.await {
            // RFC 9113 §8.7
            Err(error) if error.is_remote() && error.reason() == Some(Reason::REFUSED_STREAM) => return Ok(None),
            response => response.map_err(|error| cause(&error))?,
        };
        let status = response.status().as_u16();
        let first_byte = captured_head(capture, response.status(), response.headers());
        let mut content = response.into_body();
        let mut received = 0;
        while let Some(data) = content.data().await {
            let data = data.map_err(|error| cause(&error))?;
            received += data.len() as u64;
            capture.content(&data);
            content.flow_control().release_capacity(data.len()).map_err(|error| cause(&error))?;
        }
        content.trailers().await.map_err(|error| cause(&error))?;
        Ok(Some(Answered { status: Some(status), sent: body.len() as u64, received, first_byte, judged: None }))
    }
}

fn cause(error: &h2::Error) -> Cause {
    match error {
        error if error.is_reset() || error.is_io() => Cause::Reset,
        error if error.is_go_away() => Cause::Closed,
        _ => Cause::Protocol,
    }
}
