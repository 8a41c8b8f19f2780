//! Turns: a peer that sends as fast as the worker moves its bytes must not keep the worker's other connections waiting.

use std::pin::pin;
use std::task::Context;

use crate::context::buffers::READ_BYTES;

/// The most pieces, each of up to 64 KiB in each direction, that a connection moves in one turn.
const PIECES: u32 = 4;

/// One turn of a connection.
#[derive(Default)]
pub(crate) struct ConnectionTurn {
    pieces: u32,
}

impl ConnectionTurn {
    /// Counts a piece. `true`: the turn is over. The task must then wait; it is woken once the worker has looked at its other
    /// connections.
    #[inline]
    pub(crate) fn ends_with_piece(&mut self, context: &mut Context<'_>) -> bool {
        self.ends_with_bytes(context, 0)
    }

    /// The same for a piece that may be larger.
    #[inline]
    pub(crate) fn ends_with_bytes(&mut self, context: &mut Context<'_>, bytes: usize) -> bool {
        self.pieces += 1 + (bytes.saturating_sub(1) / READ_BYTES) as u32;
        if self.pieces < PIECES {
            return false;
        }
        let_others(context);
        true
    }
}

/// Wakes the task again after the worker has looked for events of other connections.
#[cold]
fn let_others(context: &mut Context<'_>) {
    let mut others = pin!(tokio::task::yield_now());
    let _ = others.as_mut().poll(context);
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::rc::Rc;
    use std::task::Poll;

    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn events_of_other_connections_are_seen_while_a_connection_always_has_something_to_move() {
        let (mut peer, other) = UnixStream::pair().expect("sockets");
        other.set_nonblocking(true).expect("set");
        let mut other = tokio::net::UnixStream::from_std(other).expect("registered");
        let served = Rc::new(Cell::new(false));
        let busy = poll_fn(|context| {
            if served.get() {
                return Poll::Ready(());
            }
            let mut turn = ConnectionTurn::default();
            while !turn.ends_with_piece(context) {}
            Poll::Pending
        });
        let serves = async {
            // It becomes readable only after the other task has begun to move.
            peer.write_all(b"x").expect("sent");
            other.read_u8().await.expect("a byte");
            served.set(true);
        };
        tokio::join!(busy, serves);
    }
}
