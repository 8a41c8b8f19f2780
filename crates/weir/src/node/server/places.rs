//! The places of a server: which connections are open, who has to give way to whom, and what all of them hold.

mod room;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

use super::bounds::{LOOK, REQUESTS, ServerBounds, WAIT, WAITING, share};
use super::executor::StreamReset;
use super::peer::ServerClient;
use super::progress::{ConnectionProgress, RequestPhase};
use crate::node::server_tally::{ConnectionEnd, ServerTally};
use room::HeldBytesOf;
pub(super) use room::{AnswerRoom, BodyRoom, BodyRoomFault};

/// How a connection is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndOrder {
    /// After the requests in progress, with a goodbye.
    Gently,
    AtOnce,
}

pub(super) struct ServerPlaces {
    bounds: ServerBounds,
    has_handshake: bool,
    tally: Arc<ServerTally>,
    table: Mutex<PlaceTable>,
    /// A connection has ended, has become idle, or may give way by now.
    changed: Notify,
    /// There is a connection.
    entered: Notify,
}

#[derive(Default)]
struct PlaceTable {
    entries: BTreeMap<u64, PlaceEntry>,
    next: u64,
    waiting: Vec<ServerClient>,
}

struct PlaceEntry {
    client: ServerClient,
    progress: ConnectionProgress,
    /// `None` once the connection has been told to end.
    order: Option<oneshot::Sender<EndOrder>>,
    /// It has been told to end gently: it counts until its requests in progress have ended, and gets no further ones.
    drains: bool,
    held: HeldBytesOf,
    streams: usize,
}

/// The place of one connection, until it and its requests have ended.
pub(super) struct ServerPlace {
    id: u64,
    places: Arc<ServerPlaces>,
}

impl ServerPlaces {
    pub(super) fn new(bounds: ServerBounds, has_handshake: bool, tally: Arc<ServerTally>) -> ServerPlaces {
        ServerPlaces {
            bounds,
            has_handshake,
            tally,
            table: Mutex::default(),
            changed: Notify::new(),
            entered: Notify::new(),
        }
    }

    /// A place for a new connection, and the order to end it. Another connection is told to end if necessary. If the node works
    /// for all of them, waits for one that has been answered; `None`: in vain.
    pub(super) async fn enter(
        self: &Arc<Self>,
        client: ServerClient,
    ) -> Option<(ServerPlace, oneshot::Receiver<EndOrder>)> {
        if let Some(entered) = self.try_enter(client) {
            return Some(entered);
        }
        let _waiting = WaitingClient::begin(self, client)?;
        let entering = async {
            loop {
                let changed = self.changed.notified();
                if let Some(entered) = self.try_enter(client) {
                    return entered;
                }
                changed.await;
            }
        };
        timeout(WAIT, entering).await.ok()
    }

    fn try_enter(self: &Arc<Self>, client: ServerClient) -> Option<(ServerPlace, oneshot::Receiver<EndOrder>)> {
        let now = Instant::now();
        let mut table = self.table();
        for (most, counts) in self.groups(client) {
            if table.count(&counts) >= most {
                let longest_idle = table.longest_idle(&counts, now)?;
                let how = table.farewell(longest_idle, self.bounds);
                self.end(&mut table, longest_idle, ConnectionEnd::Shed, how);
            }
        }
        let (order, ordered) = oneshot::channel();
        let id = table.next;
        table.next += 1;
        let progress = ConnectionProgress::new(now, self.has_handshake);
        table.entries.insert(
            id,
            PlaceEntry {
                client,
                progress,
                order: Some(order),
                drains: false,
                held: HeldBytesOf::default(),
                streams: 0,
            },
        );
        self.tally.connections.fetch_add(1, Relaxed);
        self.entered.notify_one();
        Some((ServerPlace { id, places: Arc::clone(self) }, ordered))
    }

    /// The groups of connections that a new one of this client counts in, each with the most that there may be.
    fn groups(&self, client: ServerClient) -> [(usize, impl Fn(ServerClient) -> bool); 3] {
        let is_remote = client.is_remote();
        let (all, remote) = (self.bounds.connections, self.bounds.remote());
        let (own, remote) = if is_remote { (share(all, client), remote) } else { (all, usize::MAX) };
        let group = |scope: u8| {
            move |other: ServerClient| match scope {
                0 => other == client,
                1 => other.is_remote(),
                _ => true,
            }
        };
        [(own, group(0)), (remote, group(1)), (all, group(2))]
    }

    fn end(&self, table: &mut PlaceTable, id: u64, why: ConnectionEnd, how: EndOrder) {
        let Some(entry) = table.entries.get_mut(&id) else { return };
        let Some(order) = entry.order.take() else { return };
        entry.drains = how == EndOrder::Gently;
        self.tally.ended(why).fetch_add(1, Relaxed);
        // The connection may have ended by itself.
        let _ = order.send(how);
    }

    /// Tells a connection that has been answered to end gently, if a client waits for its place. Its next request may have been
    /// received already and begin before those that wait are asked again: pipelined requests would keep them out otherwise.
    fn make_way(&self, table: &mut PlaceTable, id: u64) {
        let now = Instant::now();
        let Some(entry) = table.entries.get(&id).filter(|entry| entry.order.is_some()) else { return };
        let (client, is_idle) = (entry.client, entry.progress.in_progress() == 0);
        let is_waited_for = |waiting: &ServerClient| {
            let groups = self.groups(*waiting);
            let mut full = groups.iter().filter(|(most, counts)| table.count(counts) >= *most);
            // A client has to be in the first group that is full, which is a part of the others.
            full.next().is_some_and(|(_, counts)| counts(client) && table.is_next(id, counts, now))
        };
        if entry.progress.has_stream() || !table.waiting.iter().any(is_waited_for) {
            return;
        }
        if table.may_leave(self.bounds) {
            self.end(table, id, ConnectionEnd::Shed, EndOrder::Gently);
        } else if is_idle {
            self.end(table, id, ConnectionEnd::Shed, EndOrder::AtOnce);
        }
    }

    /// Closes the connection that has been idle for the longest time, to have its file descriptor.
    pub(super) fn shed_one(&self) {
        let mut table = self.table();
        if let Some(longest_idle) = table.longest_idle(&|_| true, Instant::now()) {
            self.end(&mut table, longest_idle, ConnectionEnd::Shed, EndOrder::AtOnce);
        }
    }

    /// Ends what has exceeded its time, again and again.
    pub(super) async fn watch_times(self: Arc<Self>) {
        loop {
            if self.table().entries.is_empty() {
                self.entered.notified().await;
            }
            sleep(LOOK).await;
            self.look(Instant::now());
            self.changed.notify_waiters();
        }
    }

    fn look(&self, now: Instant) {
        let mut table = self.table();
        let overdue = |(id, entry): (&u64, &PlaceEntry)| Some((*id, entry.progress.overdue(now)?));
        let overdue: Vec<(u64, ConnectionEnd)> = table.entries.iter().filter_map(overdue).collect();
        for (id, why) in overdue {
            let how = if why == ConnectionEnd::Idle { EndOrder::Gently } else { EndOrder::AtOnce };
            self.end(&mut table, id, why, how);
        }
        let resets = |entry: &mut PlaceEntry| entry.progress.take_resets(now);
        let resets: Vec<StreamReset> = table.entries.values_mut().flat_map(resets).collect();
        let unread: Vec<_> =
            table.entries.values().flat_map(|entry| entry.progress.unread_streams(now)).cloned().collect();
        drop(table);
        resets.iter().for_each(StreamReset::reset);
        let ended = unread.iter().filter(|stream| stream.end()).count();
        self.tally.streams_unread.fetch_add(ended as u64, Relaxed);
    }

    /// Tells all connections to end after their requests, and waits until they have.
    pub(super) async fn end_all(&self) {
        for entry in self.table().entries.values_mut() {
            let _ = entry.order.take().map(|order| order.send(EndOrder::Gently));
        }
        loop {
            let changed = self.changed.notified();
            if self.table().entries.is_empty() {
                return;
            }
            changed.await;
        }
    }

    fn table(&self) -> MutexGuard<'_, PlaceTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PlaceTable {
    fn among(&self, counts: &impl Fn(ServerClient) -> bool) -> impl Iterator<Item = (u64, &PlaceEntry)> {
        self.entries.iter().filter(|(_, entry)| entry.counts() && counts(entry.client)).map(|(id, of)| (*id, of))
    }

    fn count(&self, counts: &impl Fn(ServerClient) -> bool) -> usize {
        self.among(counts).count()
    }

    /// The connection of these that is the first to give way.
    fn longest_idle(&self, counts: &impl Fn(ServerClient) -> bool, now: Instant) -> Option<u64> {
        let of_client = |client| self.count(&|other| other == client);
        let give_way = self.among(counts).filter(|(_, entry)| entry.order.is_some()).filter_map(|(id, entry)| {
            let order = entry.progress.gives_way(now)?.among(|| of_client(entry.client));
            Some((order, id))
        });
        give_way.min().map(|(_, id)| id)
    }

    /// How a connection gives way: gently if it has been answered and has no request.
    fn farewell(&self, id: u64, bounds: ServerBounds) -> EndOrder {
        let is_idle = |entry: &PlaceEntry| entry.progress.answered() > 0 && entry.progress.in_progress() == 0;
        let may_leave = self.entries.get(&id).is_some_and(is_idle) && self.may_leave(bounds);
        if may_leave { EndOrder::Gently } else { EndOrder::AtOnce }
    }

    /// Whether one more connection may take its time to end.
    fn may_leave(&self, bounds: ServerBounds) -> bool {
        self.entries.values().filter(|entry| entry.order.is_none()).count() < bounds.connections
    }

    /// Whether a connection that has just been answered is the next to make way: fewer of these do so already than clients wait, and
    /// none that will probably end a request soon has been answered more often.
    fn is_next(&self, id: u64, counts: &impl Fn(ServerClient) -> bool, now: Instant) -> bool {
        let Some(own) = self.entries.get(&id).map(|entry| entry.progress.answered()) else { return false };
        let soon = || self.among(counts).filter(|(_, entry)| entry.progress.ends_soon(now));
        let leaving = soon().filter(|(_, entry)| entry.drains).count();
        let has_more = |entry: &PlaceEntry| entry.order.is_some() && entry.progress.answered() > own;
        leaving < self.waiting.len() && !soon().any(|(other, entry)| other != id && has_more(entry))
    }
}

impl PlaceEntry {
    fn counts(&self) -> bool {
        self.order.is_some() || self.drains && self.progress.in_progress() > 0
    }
}

struct WaitingClient<'a> {
    client: ServerClient,
    places: &'a ServerPlaces,
}

impl<'a> WaitingClient<'a> {
    fn begin(places: &'a ServerPlaces, client: ServerClient) -> Option<WaitingClient<'a>> {
        let mut table = places.table();
        let own = table.waiting.iter().filter(|other| **other == client).count();
        if table.waiting.len() >= WAITING || own >= share(WAITING, client) {
            return None;
        }
        table.waiting.push(client);
        Some(WaitingClient { client, places })
    }
}

impl Drop for WaitingClient<'_> {
    fn drop(&mut self) {
        let mut table = self.places.table();
        let place = table.waiting.iter().position(|other| *other == self.client).expect("it was added when it began");
        table.waiting.swap_remove(place);
    }
}

impl ServerPlace {
    /// Notes what has happened on the connection.
    pub(super) fn note(&self, what: impl FnOnce(&mut ConnectionProgress, Instant)) {
        if let Some(entry) = self.places.table().entries.get_mut(&self.id) {
            what(&mut entry.progress, Instant::now());
        }
    }

    /// Begins a request.
    pub(super) fn begin(self: &Arc<Self>) -> Result<RequestProgress, PlaceRefusal> {
        let mut table = self.places.table();
        let entry = table.entries.get_mut(&self.id).filter(|entry| !entry.drains).ok_or(PlaceRefusal::Ending)?;
        if entry.progress.in_progress() >= REQUESTS {
            return Err(PlaceRefusal::TooMany);
        }
        let number = entry.progress.begin(Instant::now());
        Ok(RequestProgress { number, place: Arc::clone(self) })
    }

    /// Whether the node works for requests of the connection.
    pub(super) fn is_worked_for(&self) -> bool {
        let table = self.places.table();
        table.entries.get(&self.id).is_some_and(|entry| entry.progress.is_worked_for(Instant::now()))
    }
}

/// Why a connection may not begin another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceRefusal {
    /// As many are in progress as may be.
    TooMany,
    /// The connection has been told to end.
    Ending,
}

impl Drop for ServerPlace {
    fn drop(&mut self) {
        self.places.table().entries.remove(&self.id);
        self.places.tally.connections.fetch_sub(1, Relaxed);
        self.places.changed.notify_waiters();
    }
}

/// A request in progress, until its response has been sent, or whoever works for it has finished.
pub(crate) struct RequestProgress {
    number: u64,
    place: Arc<ServerPlace>,
}

impl RequestProgress {
    pub(crate) fn enter(&self, phase: RequestPhase) {
        self.place.note(|progress, now| progress.set_phase(self.number, phase, now));
    }

    pub(crate) fn set_wanted(&self, is_wanted: bool) {
        self.place.note(|progress, now| progress.set_wanted(self.number, is_wanted, now));
    }

    /// Notes how the stream of the request can be reset.
    pub(crate) fn set_reset(&self, reset: Option<StreamReset>) {
        self.place.note(|progress, _| progress.set_reset(self.number, reset));
    }

    pub(crate) fn taken(&self) {
        self.place.note(|progress, now| progress.taken(self.number, now));
    }

    /// Notes that the request waits, and is not to hold the place of its connection meanwhile.
    pub(crate) fn pause(&self) {
        self.enter(RequestPhase::Paused);
        self.place.places.changed.notify_waiters();
    }

    /// Notes that the client has shown that it may use the server.
    pub(crate) fn recognize(&self) {
        self.place.note(|progress, now| progress.recognize(self.number, now));
    }

    /// The right to a response that stays open; `None` if there are as many as may be.
    pub(crate) fn open_stream(&self) -> Option<ServerStreamPermit> {
        let places = &self.place.places;
        let mut table = places.table();
        let client = table.entries.get(&self.place.id)?.client;
        let all: usize = table.entries.values().map(|entry| entry.streams).sum();
        let own = table.entries.values().filter(|entry| entry.client == client).map(|entry| entry.streams);
        if all >= places.bounds.streams || own.sum::<usize>() >= share(places.bounds.streams, client) {
            places.tally.streams_refused.fetch_add(1, Relaxed);
            return None;
        }
        table.entries.get_mut(&self.place.id)?.streams += 1;
        places.tally.streams.fetch_add(1, Relaxed);
        Some(ServerStreamPermit(Arc::clone(&self.place)))
    }
}

impl Drop for RequestProgress {
    fn drop(&mut self) {
        let mut table = self.place.places.table();
        let Some(entry) = table.entries.get_mut(&self.place.id) else { return };
        if entry.progress.finish(self.number, Instant::now()) {
            self.place.places.changed.notify_waiters();
        }
        self.place.places.make_way(&mut table, self.place.id);
    }
}

/// The right to one stream.
pub(crate) struct ServerStreamPermit(Arc<ServerPlace>);

impl Drop for ServerStreamPermit {
    fn drop(&mut self) {
        let places = &self.0.places;
        if let Some(entry) = places.table().entries.get_mut(&self.0.id) {
            entry.streams -= 1;
            places.tally.streams.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    type Entered = (ServerPlace, oneshot::Receiver<EndOrder>);

    fn enter(places: &Arc<ServerPlaces>, address: &str) -> Option<Entered> {
        places.try_enter(ServerClient::Network(address.parse::<IpAddr>().expect("an address")))
    }

    /// Connections that the node works for.
    fn busy(places: &Arc<ServerPlaces>, address: &str) -> Option<(Arc<ServerPlace>, RequestProgress)> {
        let (place, _) = enter(places, address)?;
        let place = Arc::new(place);
        let request = place.begin().expect("it has none yet");
        Some((place, request))
    }

    fn places() -> Arc<ServerPlaces> {
        let bounds = ServerBounds { connections: 16, streams: 4 };
        Arc::new(ServerPlaces::new(bounds, false, Arc::default()))
    }

    #[test]
    fn u05_one_client_address_locks_out_itself_and_other_machines_not_this_one() {
        let places = places();
        let greedy: Vec<_> = (0..8).filter_map(|_| busy(&places, "192.0.2.1")).collect();
        assert_eq!(greedy.len(), 8);
        assert!(enter(&places, "192.0.2.1").is_none(), "half of the connections is its share");
        let others: Vec<_> = (2..20).filter_map(|last| busy(&places, &format!("192.0.2.{last}"))).collect();
        assert_eq!(others.len(), 6, "an eighth is left for this machine");
        let local: Vec<_> = (0..3).filter_map(|_| busy(&places, "127.0.0.1")).collect();
        assert_eq!(local.len(), 2);
        drop(others);
        assert!(busy(&places, "127.0.0.1").is_some());
        assert!(enter(&places, "192.0.2.1").is_none());
        drop(greedy);
        assert!(enter(&places, "192.0.2.1").is_some());
    }

    #[test]
    fn u05_a_client_at_its_share_loses_its_own_idle_connection() {
        let places = places();
        let (_other, mut of_other) = enter(&places, "192.0.2.2").expect("room");
        let mut own: Vec<Entered> = (0..9).filter_map(|_| enter(&places, "192.0.2.1")).collect();
        assert_eq!(own.len(), 9, "the first gives way");
        assert_eq!(own[0].1.try_recv(), Ok(EndOrder::AtOnce));
        assert!(own[1].1.try_recv().is_err() && of_other.try_recv().is_err());
        assert_eq!(places.tally.ended(ConnectionEnd::Shed).load(Relaxed), 1);
        drop(own);
        assert_eq!(places.tally.connections.load(Relaxed), 1);
    }

    #[test]
    fn u05_who_connects_without_end_takes_no_place_of_another_client() {
        let places = places();
        let (_other, mut of_other) = enter(&places, "127.0.0.1").expect("room");
        let flood: Vec<Entered> = (0..100).filter_map(|_| enter(&places, "127.0.0.2")).collect();
        assert_eq!(flood.len(), 100);
        assert!(of_other.try_recv().is_err(), "it has been there for less than a second");
    }

    fn waits<'a>(places: &'a ServerPlaces, address: &str) -> WaitingClient<'a> {
        let client = ServerClient::Network(address.parse().expect("an address"));
        WaitingClient::begin(places, client).expect("few wait")
    }

    #[test]
    fn u05_a_connection_that_is_answered_while_others_wait_gets_no_further_request() {
        let places = places();
        let mut busy: Vec<_> = (0..16).filter_map(|_| busy(&places, "127.0.0.1")).collect();
        // As if the next request had been received with the former.
        let mut again = |place: usize| {
            let (place, request) = &mut busy[place];
            place.begin().map(|next| drop(std::mem::replace(request, next)))
        };
        again(0).expect("nobody waits");
        again(0).expect("nobody waits");
        assert!(enter(&places, "127.0.0.1").is_none());
        let _waits = waits(&places, "127.0.0.1");
        again(1).expect("one that has been answered more often will end its request soon");
        again(0).expect("the next one begins before the former ends, as over HTTP/2");
        assert_eq!(again(0), Err(PlaceRefusal::Ending));
        assert!(enter(&places, "127.0.0.1").is_none(), "the node works for it");
        again(1).expect("one is on its way for the one that waits");
        busy.remove(0);
        let entered = enter(&places, "127.0.0.1").expect("the place of the one that has been answered most often");
        assert_eq!(places.tally.ended(ConnectionEnd::Shed).load(Relaxed), 1);
        drop(entered);
    }

    #[test]
    fn u05_a_waiting_client_ends_only_connections_whose_place_it_may_have() {
        let places = places();
        let (other, request) = busy(&places, "127.0.0.1").expect("room");
        let mut greedy: Vec<_> = (0..8).filter_map(|_| busy(&places, "192.0.2.1")).collect();
        let _waits = waits(&places, "192.0.2.1");
        drop(request);
        other.begin().expect("the share of the other client is what is full");
        let (place, request) = greedy.pop().expect("there are eight");
        drop(request);
        assert_eq!(place.begin().err(), Some(PlaceRefusal::Ending));
    }

    #[test]
    fn u05_an_answered_connection_gives_way_gently() {
        let places = places();
        let (place, mut order) = enter(&places, "127.0.0.1").expect("room");
        let place = Arc::new(place);
        drop(place.begin());
        let _busy: Vec<_> = (0..15).filter_map(|_| busy(&places, "127.0.0.1")).collect();
        assert!(enter(&places, "127.0.0.1").is_some());
        assert_eq!(order.try_recv(), Ok(EndOrder::Gently));
    }

    #[test]
    fn u05_streams_are_shared_too() {
        let places = places();
        let clients = ["192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.3"];
        let requests: Vec<_> = clients.iter().map(|address| busy(&places, address).expect("room")).collect();
        let permits: Vec<bool> =
            requests.iter().map(|(_, request)| request.open_stream().map(std::mem::forget).is_some()).collect();
        assert_eq!(permits, [true, true, false, true, true]);
    }
}
