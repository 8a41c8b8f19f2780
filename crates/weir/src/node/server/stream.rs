//! Responses that stay open: streams.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;

/// The source of a stream's content.
pub(crate) trait AnswerStream: Send {
    /// The next piece; `None` at the end.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>>;
}

/// A stream that the server can end while its client reads nothing.
pub(crate) struct SharedStream(Mutex<SharedStreamState>);

enum SharedStreamState {
    Open {
        source: Box<dyn AnswerStream>,
        /// Sent if the server ends the stream.
        last_words: Bytes,
    },
    /// These are to be sent.
    Ending(Bytes),
    Ended,
}

impl SharedStream {
    pub(crate) fn new(source: Box<dyn AnswerStream>, last_words: Bytes) -> SharedStream {
        SharedStream(Mutex::new(SharedStreamState::Open { source, last_words }))
    }

    pub(crate) fn poll_piece(&self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.state();
        match &mut *state {
            SharedStreamState::Open { source, .. } => source.poll_piece(context),
            SharedStreamState::Ending(words) => {
                let words = std::mem::take(words);
                *state = SharedStreamState::Ended;
                Poll::Ready(Some(words))
            }
            SharedStreamState::Ended => Poll::Ready(None),
        }
    }

    /// Drops the source with all that waits there, if the stream is still open. Its client gets the last words if it reads again.
    pub(crate) fn end(&self) -> bool {
        let mut state = self.state();
        let SharedStreamState::Open { last_words, .. } = &mut *state else { return false };
        let last_words = std::mem::take(last_words);
        // The source is dropped after the lock is given back.
        let source = std::mem::replace(&mut *state, SharedStreamState::Ending(last_words));
        drop(state);
        drop(source);
        true
    }

    fn state(&self) -> MutexGuard<'_, SharedStreamState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
