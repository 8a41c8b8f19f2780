//! Handshakes of TLS one after the other, so that clients that all connect at once do not hold up those that are connected.

use std::cell::Cell;
use std::sync::Arc;

use tokio::sync::Semaphore;

/// The most handshakes of clients that wait while more connections are accepted. The others wait in the socket's queue, where they take
/// no descriptor, and no time of their handshake has begun.
const MOST_WAITING: usize = 16;

/// The turns of one worker towards clients, or towards endpoints. Each answer to a ClientHello, or to an endpoint's certificate, waits for
/// its turn; whatever is ready then, such as requests of other connections, runs before the next one. The turns are given in the order in
/// which they were asked for.
pub(crate) struct HandshakeTurns {
    turns: Arc<Semaphore>,
    waiting: Cell<usize>,
}

impl Default for HandshakeTurns {
    fn default() -> HandshakeTurns {
        HandshakeTurns { turns: Arc::new(Semaphore::new(1)), waiting: Cell::new(0) }
    }
}

/// One that waits for its turn, until it is dropped.
struct HandshakeWait<'a>(&'a Cell<usize>);

impl Drop for HandshakeWait<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl HandshakeTurns {
    /// Whether so many wait that no further connections should be accepted.
    pub(crate) fn are_many_waiting(&self) -> bool {
        self.waiting.get() >= MOST_WAITING
    }

    /// Waits for a turn. It is used by what the task computes before it waits again.
    pub(crate) async fn next(&self) {
        self.waiting.set(self.waiting.get() + 1);
        let waiting = HandshakeWait(&self.waiting);
        let turn = Arc::clone(&self.turns).acquire_owned().await.expect("the semaphore is never closed");
        drop(waiting);
        // The scheduler resumes a task that yields after it has asked the kernel for what is ready.
        tokio::task::spawn_local(async {
            tokio::task::yield_now().await;
            drop(turn);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    use super::*;

    #[test]
    fn ready_tasks_run_between_two_turns() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
        runtime.expect("a runtime").block_on(async {
            let (mut client, mut served) = UnixStream::pair().expect("a pair of sockets");
            let events = Rc::new(RefCell::new(Vec::new()));
            let of_request = Rc::clone(&events);
            let request = tokio::task::spawn_local(async move {
                let mut byte = [0];
                served.read_exact(&mut byte).await.expect("a request");
                of_request.borrow_mut().push("request");
            });
            let turns = Rc::new(HandshakeTurns::default());
            let handshakes: Vec<_> = (0..20)
                .map(|number| {
                    let (turns, events) = (Rc::clone(&turns), Rc::clone(&events));
                    tokio::task::spawn_local(async move {
                        turns.next().await;
                        events.borrow_mut().push("handshake");
                        // The request arrives while a handshake is computed, and 15 others wait.
                        if number == 4 {
                            events.borrow_mut().push("arrival");
                            return true;
                        }
                        false
                    })
                })
                .collect();
            for handshake in handshakes {
                if handshake.await.expect("it ends") {
                    client.write_all(b"r").await.expect("the socket takes it");
                }
            }
            request.await.expect("it ends");
            let events = events.borrow();
            let place = |event: &str| events.iter().position(|it| *it == event).expect("it happened");
            assert!(place("request") - place("arrival") <= 3, "{events:?}");
        });
    }
}
