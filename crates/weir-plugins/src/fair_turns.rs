//! Turns for work of which little is done at a time, such as verifying passwords or asking a directory. A client that sends much of it
//! waits for itself: of its requests only as many as have turns at a time stand in the common queue, so that those of others come
//! next, and not last.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_plugin::proto::address::client_network;

/// Gives turns to the requests of all clients.
pub(crate) struct FairTurns {
    free: Arc<Semaphore>,
    /// The number of turns at a time.
    places: usize,
    /// The most requests that have a turn or wait for one, and the most of one client address (IPv6: /64).
    most: usize,
    most_of_client: usize,
    requests: Mutex<TurnRequests>,
}

#[derive(Default)]
struct TurnRequests {
    count: usize,
    clients: HashMap<IpAddr, ClientTurns>,
}

/// The requests of one client.
struct ClientTurns {
    /// For those in the common queue, and those that have a turn.
    own: Arc<Semaphore>,
    count: usize,
}

impl FairTurns {
    /// One client may have a quarter of the `most` requests that have a turn or wait for one.
    pub(crate) fn new(places: usize, most: usize) -> FairTurns {
        FairTurns {
            free: Arc::new(Semaphore::new(places)),
            places,
            most,
            most_of_client: most.div_ceil(4),
            requests: Mutex::default(),
        }
    }

    fn requests(&self) -> MutexGuard<'_, TurnRequests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn; `None` if too many wait.
    pub(crate) async fn take(self: &Arc<Self>, client: IpAddr) -> Option<FairTurn> {
        let (own, waiting) = self.enter(client)?;
        // Neither semaphore is ever closed.
        let own = own.acquire_owned().await.ok()?;
        let free = Arc::clone(&self.free).acquire_owned().await.ok()?;
        Some(FairTurn { _free: free, _own: own, _request: waiting })
    }

    fn enter(self: &Arc<Self>, client: IpAddr) -> Option<(Arc<Semaphore>, TurnRequest)> {
        let client = client_network(client);
        let mut requests = self.requests();
        let of_client = requests.clients.get(&client).map_or(0, |turns| turns.count);
        if requests.count >= self.most || of_client >= self.most_of_client {
            return None;
        }
        requests.count += 1;
        let new = || ClientTurns { own: Arc::new(Semaphore::new(self.places)), count: 0 };
        let turns = requests.clients.entry(client).or_insert_with(new);
        turns.count += 1;
        Some((Arc::clone(&turns.own), TurnRequest { turns: Arc::clone(self), client }))
    }
}

/// A turn, until it is dropped.
pub(crate) struct FairTurn {
    _free: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
    _request: TurnRequest,
}

/// A request that has a turn or waits for one.
struct TurnRequest {
    turns: Arc<FairTurns>,
    client: IpAddr,
}

impl Drop for TurnRequest {
    fn drop(&mut self) {
        let mut requests = self.turns.requests();
        requests.count -= 1;
        if let Some(turns) = requests.clients.get_mut(&self.client) {
            turns.count -= 1;
            if turns.count == 0 {
                requests.clients.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn client(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    type Taking<'a> = Pin<Box<dyn Future<Output = Option<FairTurn>> + 'a>>;

    fn poll(taking: &mut Taking<'_>) -> Option<Option<FairTurn>> {
        match taking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_client_with_many_requests_delays_others_by_one_turn() {
        let turns = Arc::new(FairTurns::new(1, 1000));
        let take = |last: u8| -> Taking<'_> { Box::pin(turns.take(client(last))) };
        let first = poll(&mut take(1)).flatten().expect("all are free");
        let mut of_first: Vec<_> = (0..100).map(|_| take(1)).collect();
        assert!(of_first.iter_mut().all(|taking| poll(taking).is_none()));
        let mut of_other = take(2);
        assert!(poll(&mut of_other).is_none());
        drop(first);
        assert!(of_first.iter_mut().all(|taking| poll(taking).is_none()), "they are behind the other client");
        let other = poll(&mut of_other).flatten().expect("the next turn");
        drop(other);
        assert!(poll(&mut of_first[0]).flatten().is_some());
    }

    #[test]
    fn requests_are_bounded_for_all_and_for_each_client() {
        let turns = Arc::new(FairTurns::new(1, 8));
        let take = |last: u8| -> Taking<'_> { Box::pin(turns.take(client(last))) };
        let first = poll(&mut take(9)).flatten().expect("all are free");
        let mut waiting: Vec<Taking<'_>> = Vec::new();
        let mut wait = |last: u8| {
            let mut taking = take(last);
            let waits = poll(&mut taking).is_none();
            waiting.push(taking);
            waits
        };
        for last in 1..=3 {
            assert_eq!([wait(last), wait(last), wait(last)], [true, true, false], "a quarter for each");
        }
        assert_eq!([wait(4), wait(5)], [true, false], "all places are taken");
        drop((waiting, first));
        let requests = turns.requests();
        assert!(requests.count == 0 && requests.clients.is_empty());
    }
}
