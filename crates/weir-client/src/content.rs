//! The content of a response, as a stream.

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::time::{Instant, timeout_at};

use crate::error::CallError;
use crate::pool::{self, ConnectionKey, PooledConnection};
use crate::settings::CallSettings;

/// The trailer fields of a complete answer, among the extensions of a [`http::Response`] if there are any.
#[derive(Clone, Debug)]
pub struct AnswerTrailers(pub HeaderMap);

/// The content of a streamed response. Dropping it before the end closes the connection.
#[derive(Debug)]
pub struct AnswerContent {
    incoming: Incoming,
    left: usize,
    trailers: HeaderMap,
    settings: CallSettings,
    /// `None` after the end or an error.
    connection: Option<(ConnectionKey, PooledConnection)>,
}

impl AnswerContent {
    pub(crate) fn new(
        incoming: Incoming,
        key: ConnectionKey,
        connection: PooledConnection,
        settings: CallSettings,
    ) -> Self {
        let left = settings.max_content_bytes;
        AnswerContent { incoming, left, trailers: HeaderMap::new(), settings, connection: Some((key, connection)) }
    }

    /// The next piece; `None` at the end. Each piece is given [`CallSettings::timeout`].
    ///
    /// # Errors
    /// The piece does not arrive in time, the connection fails, or the content is larger than allowed.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        self.next_until(Instant::now() + self.settings.timeout).await
    }

    /// The whole content, by a deadline, and the trailer fields after it.
    pub(crate) async fn collect(mut self, deadline: Instant) -> Result<(Bytes, HeaderMap), CallError> {
        let content = self.whole(deadline).await?;
        Ok((content, self.trailers))
    }

    async fn whole(&mut self, deadline: Instant) -> Result<Bytes, CallError> {
        let first = self.next_until(deadline).await?;
        let Some(second) = self.next_until(deadline).await? else { return Ok(first.unwrap_or_default()) };
        let mut all = Vec::from(first.unwrap_or_default());
        all.extend_from_slice(&second);
        while let Some(piece) = self.next_until(deadline).await? {
            all.extend_from_slice(&piece);
        }
        Ok(all.into())
    }

    async fn next_until(&mut self, deadline: Instant) -> Result<Option<Bytes>, CallError> {
        // A declared length above the limit is refused before reading.
        if self.incoming.size_hint().lower() > self.left as u64 {
            return Err(self.too_large());
        }
        loop {
            let Ok(frame) = timeout_at(deadline, self.incoming.frame()).await else {
                let origin = self.origin();
                self.close();
                return Err(CallError::AnswerTimedOut { origin, after: self.settings.timeout });
            };
            let Some(frame) = frame else {
                self.give_back(deadline).await;
                return Ok(None);
            };
            match frame.map(|frame| frame.into_data()) {
                Ok(Ok(piece)) if piece.len() > self.left => return Err(self.too_large()),
                Ok(Ok(piece)) if piece.is_empty() => {}
                Ok(Ok(piece)) => {
                    self.left -= piece.len();
                    if let Some((_, connection)) = &self.connection {
                        connection.conduct.progress();
                    }
                    return Ok(Some(piece));
                }
                Ok(Err(frame)) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        self.trailers = trailers;
                    }
                }
                Err(error) => {
                    let origin = self.origin();
                    let excess = self.connection.as_ref().and_then(|(_, connection)| connection.conduct.excess());
                    self.close();
                    return Err(match excess {
                        Some(excess) => CallError::Excess { origin, excess },
                        None => CallError::Broken { origin, error },
                    });
                }
            }
        }
    }

    async fn give_back(&mut self, deadline: Instant) {
        let Some((key, mut connection)) = self.connection.take() else { return };
        // A connection that is being closed is of no use to another call.
        if self.settings.idle.max_per_origin > 0
            && timeout_at(deadline, connection.is_reusable()).await.unwrap_or(false)
        {
            pool::keep(&key, connection, self.settings.idle);
        }
    }

    fn too_large(&mut self) -> CallError {
        let origin = self.origin();
        self.close();
        CallError::AnswerTooLarge { origin, max_bytes: self.settings.max_content_bytes }
    }

    fn origin(&self) -> String {
        self.connection.as_ref().map(|(key, _)| key.origin.to_string()).unwrap_or_default()
    }

    fn close(&mut self) {
        self.connection = None;
        self.left = 0;
    }
}
