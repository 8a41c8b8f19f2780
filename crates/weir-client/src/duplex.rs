//! Calls whose request and response are streams at the same time, over HTTP/2.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use hyper::body::{Body, Incoming};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::call_content::CallContent;
use crate::client::{HttpClient, call_error, prepared};
use crate::error::CallError;
use crate::pool::{self, ConnectionKey, PooledConnection};
use crate::settings::CallSettings;
use crate::url::ServiceUrl;

/// Limit of the pieces of a request that wait for the connection.
const MAX_WAITING_PIECES: usize = 2;

/// The request of a duplex call. Dropping it ends the request.
#[derive(Debug)]
pub struct CallSender(mpsc::Sender<Bytes>);

impl CallSender {
    /// Sends a piece, and waits while others wait. `false` if the call has ended: the response says why.
    pub async fn send(&self, piece: Bytes) -> bool {
        self.0.send(piece).await.is_ok()
    }
}

type DuplexOpening = Pin<Box<dyn Future<Output = Result<Response<Incoming>, CallError>> + Send>>;

enum ReceiverState {
    Opening(DuplexOpening),
    Open(Incoming),
    /// The response is complete, or has failed.
    Ended,
}

/// The response of a duplex call. Dropping it cancels the call, unless the response is complete.
pub struct CallReceiver {
    key: ConnectionKey,
    state: ReceiverState,
    head: Option<Response<()>>,
    trailers: HeaderMap,
}

impl fmt::Debug for CallReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallReceiver").field("origin", &self.key.origin).finish_non_exhaustive()
    }
}

impl CallReceiver {
    /// The next piece of the response's content, which is not empty; `None` at its end.
    ///
    /// # Errors
    /// There is no response, or it has broken off.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, CallError>> {
        ready!(self.poll_open(context))?;
        loop {
            let ReceiverState::Open(incoming) = &mut self.state else { return Poll::Ready(Ok(None)) };
            match ready!(Pin::new(incoming).poll_frame(context)) {
                None => self.state = ReceiverState::Ended,
                Some(Err(error)) => {
                    self.state = ReceiverState::Ended;
                    return Poll::Ready(Err(CallError::Broken { origin: self.key.origin.to_string(), error }));
                }
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(piece) if piece.is_empty() => {}
                    Ok(piece) => return Poll::Ready(Ok(Some(piece))),
                    Err(frame) => self.trailers = frame.into_trailers().unwrap_or_default(),
                },
            }
        }
    }

    /// Ready once the head of the response has come, or never will.
    fn poll_open(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        let ReceiverState::Opening(opening) = &mut self.state else { return Poll::Ready(Ok(())) };
        let answer = ready!(opening.as_mut().poll(context));
        self.state = ReceiverState::Ended;
        let (head, incoming) = answer?.into_parts();
        (self.head, self.state) = (Some(Response::from_parts(head, ())), ReceiverState::Open(incoming));
        Poll::Ready(Ok(()))
    }

    /// See [`CallReceiver::poll_next`].
    ///
    /// # Errors
    /// There is no response, or it has broken off.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Nothing of the response has come although it should have: the connection may be one that the network has lost, so further calls
    /// take another one.
    pub fn forget_silent_connection(&self) {
        if matches!(self.state, ReceiverState::Opening(_)) {
            pool::forget_http2(&self.key);
        }
    }

    /// The head of the response, once a piece or the end has come.
    pub fn head(&self) -> Option<&Response<()>> {
        self.head.as_ref()
    }

    /// The fields after the content, once its end has come.
    pub fn trailers(&self) -> &HeaderMap {
        &self.trailers
    }
}

impl HttpClient {
    /// Begins a call whose request is sent piece by piece while its response is read, over HTTP/2. The connection is open when this
    /// returns, and nothing of the response has been waited for. Neither stream has a time-out: the caller sets those.
    ///
    /// # Errors
    /// There is no connection that can be used within [`CallSettings::timeout`].
    pub async fn duplex(
        &self,
        to: &ServiceUrl,
        request: &Request<()>,
        how: &CallSettings,
    ) -> Result<(CallSender, CallReceiver), CallError> {
        let key = self.connection_key(to, how);
        let mut connection = self.http2_connection(to, &key, how).await?;
        let (sender, pieces) = mpsc::channel(MAX_WAITING_PIECES);
        let request = prepared(to, request, true)?.map(|()| CallContent::Pieces(pieces));
        let (to, of_receiver) = (to.clone(), key.clone());
        let opening = async move {
            let sent = connection.send(request).await;
            if sent.is_err() {
                pool::forget_http2(&key);
            }
            sent.map_err(|failed| call_error(&to, failed))
        };
        let state = ReceiverState::Opening(Box::pin(opening));
        let mut receiver = CallReceiver { key: of_receiver, state, head: None, trailers: HeaderMap::new() };
        // The first poll gives the request to the connection, which sends it while nothing waits for the response.
        poll_fn(|context| match receiver.poll_open(context) {
            Poll::Pending => Poll::Ready(Ok(())),
            done => done,
        })
        .await?;
        Ok((CallSender(sender), receiver))
    }

    /// A connection over HTTP/2: the one that other calls use, or a new one.
    async fn http2_connection(
        &self,
        to: &ServiceUrl,
        key: &ConnectionKey,
        how: &CallSettings,
    ) -> Result<PooledConnection, CallError> {
        if let Some(connection) = pool::take(key).filter(PooledConnection::is_http2) {
            return Ok(connection);
        }
        let late = || CallError::AnswerTimedOut { origin: to.origin().to_string(), after: how.timeout };
        let opened = timeout_at(Instant::now() + how.timeout, self.connect(&to.origin, how)).await;
        let connection = opened.map_err(|_| late())??;
        let Some(shared) = connection.shared() else {
            return Err(CallError::NoHttp2 { origin: to.origin().to_string() });
        };
        pool::keep(key, shared, how.idle);
        Ok(connection)
    }
}
