//! The bytes of bodies and of answers that the node holds. Each client has a share of each, and bodies take nothing from answers. If
//! there is no room, clients that send or read too slowly give way to others.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Instant;

use tokio::time::timeout;

use super::{ConnectionEnd, EndOrder, PlaceEntry, PlaceTable, RequestProgress, ServerPlace, ServerPlaces};
use crate::node::server::bounds::{ANSWER_BYTES, HELD_BYTES, PIECE, ROOM_WAIT, SLOW, WAIT, YOUNG, share};
use crate::node::server::peer::ServerClient;

/// The bytes that a connection holds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldBytesOf {
    bodies: usize,
    answers: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldKind {
    Bodies,
    Answers,
}

impl HeldKind {
    fn of(self, held: &mut HeldBytesOf) -> &mut usize {
        match self {
            HeldKind::Bodies => &mut held.bodies,
            HeldKind::Answers => &mut held.answers,
        }
    }

    fn most(self) -> usize {
        match self {
            HeldKind::Bodies => HELD_BYTES,
            HeldKind::Answers => ANSWER_BYTES,
        }
    }
}

/// Why there is no room for further bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoRoom {
    /// The client holds its share.
    OfClient,
    OfAll,
}

impl PlaceTable {
    fn held_by(&self, kind: HeldKind, counts: impl Fn(ServerClient) -> bool) -> usize {
        let entries = self.entries.values().filter(|entry| counts(entry.client));
        entries.map(|entry| *kind.of(&mut entry.held.clone())).sum()
    }

    fn check_room(&self, kind: HeldKind, client: ServerClient, more: usize) -> Result<(), NoRoom> {
        if self.held_by(kind, |other| other == client) + more > share(kind.most(), client) {
            return Err(NoRoom::OfClient);
        }
        match self.held_by(kind, |_| true) + more <= kind.most() {
            true => Ok(()),
            false => Err(NoRoom::OfAll),
        }
    }

    /// The slow connection that gives way to others who need its room: of the client that holds the most, the one that has been slow
    /// for the longest time.
    fn slowest(&self, kind: HeldKind, counts: impl Fn(ServerClient) -> bool, now: Instant) -> Option<u64> {
        let slow = self.among(&counts).filter_map(|(id, entry)| {
            let since = entry.slow_since(kind, now)?;
            Some((Reverse(self.held_by(kind, |other| other == entry.client)), since, id))
        });
        slow.min().map(|(_, _, id)| id)
    }
}

impl PlaceEntry {
    /// Since when the client sends bodies, or reads answers, more slowly than it has to if others need the room.
    fn slow_since(&self, kind: HeldKind, now: Instant) -> Option<Instant> {
        let is_slow = |since: Instant, bytes: usize| {
            let elapsed = now.saturating_duration_since(since);
            elapsed >= YOUNG && (bytes as f64) < SLOW as f64 * elapsed.as_secs_f64()
        };
        match kind {
            HeldKind::Bodies if self.held.bodies == 0 => None,
            HeldKind::Bodies => self.progress.receiving_since().filter(|since| is_slow(*since, self.held.bodies)),
            HeldKind::Answers if self.held.answers == 0 => None,
            HeldKind::Answers => {
                let large = self.progress.large_answers();
                large.filter(|(since, pieces)| is_slow(*since, pieces * PIECE)).map(|(since, _)| since).min()
            }
        }
    }
}

impl ServerPlaces {
    /// Ends what holds room and is slow, for others who need it. Over HTTP/2 only the streams that are not read, if they can be reset.
    fn end_slowest(&self, table: &mut PlaceTable, kind: HeldKind, counts: impl Fn(ServerClient) -> bool) {
        let Some(id) = table.slowest(kind, counts, Instant::now()) else { return };
        let entry = table.entries.get_mut(&id).expect("it was found there");
        match (kind, entry.progress.take_reset_of_large_answer()) {
            (HeldKind::Answers, Some(reset)) => reset.reset(),
            _ => self.end(table, id, ConnectionEnd::Slow, EndOrder::AtOnce),
        }
    }
}

/// Bytes that the node holds for a request.
struct HeldRoom {
    kind: HeldKind,
    bytes: usize,
    place: Arc<ServerPlace>,
}

impl HeldRoom {
    fn empty(kind: HeldKind, place: &Arc<ServerPlace>) -> HeldRoom {
        HeldRoom { kind, bytes: 0, place: Arc::clone(place) }
    }

    /// Adds bytes if there is room for them. Otherwise a slow connection gives way: one of the same client for `NoRoom::OfClient`.
    fn grow(&mut self, more: usize, shifts: &[NoRoom]) -> Result<(), NoRoom> {
        let places = &self.place.places;
        let mut table = places.table();
        let Some(client) = table.entries.get(&self.place.id).map(|entry| entry.client) else { return Ok(()) };
        let checked = table.check_room(self.kind, client, more);
        match checked {
            Ok(()) => {
                let entry = table.entries.get_mut(&self.place.id).expect("it was found above");
                *self.kind.of(&mut entry.held) += more;
                self.bytes += more;
            }
            Err(why) if shifts.contains(&why) => {
                places.end_slowest(&mut table, self.kind, |other| why == NoRoom::OfAll || other == client);
            }
            Err(_) => {}
        }
        checked
    }
}

impl Drop for HeldRoom {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        if let Some(entry) = self.place.places.table().entries.get_mut(&self.place.id) {
            *self.kind.of(&mut entry.held) -= self.bytes;
        }
        self.place.places.changed.notify_waiters();
    }
}

/// The bytes of a body that have been received.
pub(crate) struct BodyRoom(HeldRoom);

/// There is no room for more of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyRoomFault;

impl BodyRoom {
    /// Adds bytes. If the bodies of others take all room, waits until a slow one has given way.
    pub(crate) async fn grow(&mut self, more: usize) -> Result<(), BodyRoomFault> {
        let place = Arc::clone(&self.0.place);
        let waiting = async {
            loop {
                let changed = place.places.changed.notified();
                match self.0.grow(more, &[NoRoom::OfAll]) {
                    Ok(()) => return Ok(()),
                    Err(NoRoom::OfClient) => return Err(BodyRoomFault),
                    Err(NoRoom::OfAll) => changed.await,
                }
            }
        };
        timeout(WAIT, waiting).await.unwrap_or(Err(BodyRoomFault))
    }
}

/// The bytes of an answer that are not sent yet.
pub(crate) struct AnswerRoom(#[expect(dead_code, reason = "dropping it gives the room back")] HeldRoom);

impl RequestProgress {
    /// Room for the body of this request, none so far.
    pub(crate) fn body_room(&self) -> BodyRoom {
        BodyRoom(HeldRoom::empty(HeldKind::Bodies, &self.place))
    }

    /// Room for an answer of this size, if there is any now. An answer of at most one piece has room always. One that is larger than the
    /// share of its client counts as that, so that it can be sent if the client holds no other.
    pub(crate) fn try_answer_room(&self, bytes: usize) -> Option<AnswerRoom> {
        let mut room = HeldRoom::empty(HeldKind::Answers, &self.place);
        if bytes <= PIECE {
            return Some(AnswerRoom(room));
        }
        let client = self.place.client()?;
        let counted = bytes.min(share(ANSWER_BYTES, client));
        let grown = room.grow(counted, &[NoRoom::OfClient, NoRoom::OfAll]);
        grown.is_ok().then_some(AnswerRoom(room))
    }

    /// Like [`RequestProgress::try_answer_room`]; waits until slow readers have given way. The connection is not kept for that.
    pub(crate) async fn answer_room(&self, bytes: usize) -> Option<AnswerRoom> {
        let waiting = async {
            loop {
                let changed = self.place.places.changed.notified();
                if let Some(room) = self.try_answer_room(bytes) {
                    return room;
                }
                changed.await;
            }
        };
        timeout(ROOM_WAIT, waiting).await.ok()
    }
}

impl ServerPlace {
    fn client(&self) -> Option<ServerClient> {
        self.places.table().entries.get(&self.id).map(|entry| entry.client)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use tokio::sync::oneshot;

    use super::*;
    use crate::node::server::bounds::ServerBounds;
    use crate::node::server::progress::RequestPhase;

    struct OfTests {
        request: RequestProgress,
        order: oneshot::Receiver<EndOrder>,
    }

    fn clients(addresses: &[&str]) -> Vec<OfTests> {
        let bounds = ServerBounds { connections: 16, streams: 4 };
        let places = Arc::new(ServerPlaces::new(bounds, false, Arc::default()));
        let client = |address: &&str| {
            let address = ServerClient::Network(address.parse::<IpAddr>().expect("an address"));
            let (place, order) = places.try_enter(address).expect("room");
            let request = Arc::new(place).begin().expect("it has none yet");
            OfTests { request, order }
        };
        addresses.iter().map(client).collect()
    }

    /// Sends a large answer, and is as slow as a client that has taken nothing for this long.
    fn sends(client: &OfTests, since: Instant) {
        let phase = RequestPhase::Sending { is_large: true };
        client.request.place.note(|progress, _| progress.set_phase(client.request.number, phase, since));
    }

    #[tokio::test]
    async fn u05_bodies_of_one_client_take_half_of_the_room_and_nothing_from_answers() {
        let clients = clients(&["192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.3"]);
        let mut rooms: Vec<BodyRoom> = clients.iter().map(|client| client.request.body_room()).collect();
        assert_eq!(rooms[0].grow(HELD_BYTES / 2).await, Ok(()));
        assert_eq!(rooms[1].grow(1).await, Err(BodyRoomFault), "half of the bytes for one client");
        assert_eq!(rooms[2].grow(HELD_BYTES / 2).await, Ok(()));
        assert_eq!(rooms[3].0.grow(1, &[]), Err(NoRoom::OfAll));
        assert!(clients[3].request.try_answer_room(ANSWER_BYTES / 2).is_some());
    }

    #[test]
    fn u05_answers_of_one_client_take_no_room_of_another_client() {
        let clients = clients(&["192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.3"]);
        let room = |client: usize, bytes: usize| clients[client].request.try_answer_room(bytes);
        let huge = room(0, 4 * ANSWER_BYTES).expect("an answer that is larger than all is sent alone");
        assert!(room(1, PIECE + 1).is_none(), "that is the share of the client");
        let _small = room(1, PIECE).expect("a small answer always has room");
        let _other = room(2, ANSWER_BYTES / 2).expect("the share of another client");
        assert!(room(3, PIECE + 1).is_none(), "all is held, and no connection is slow");
        drop(huge);
        assert!(room(3, ANSWER_BYTES / 2).is_some());
    }

    #[test]
    fn u05_answers_that_are_read_slowly_give_way_to_those_of_others() {
        let mut clients = clients(&["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
        let _held: Vec<AnswerRoom> =
            clients[..2].iter().filter_map(|client| client.request.try_answer_room(ANSWER_BYTES / 2)).collect();
        let now = Instant::now();
        sends(&clients[0], now - 2 * YOUNG);
        sends(&clients[1], now - 3 * YOUNG);
        assert!(clients[2].request.try_answer_room(PIECE + 1).is_none());
        assert_eq!(clients[1].order.try_recv(), Ok(EndOrder::AtOnce), "it has been slow for longer");
        assert!(clients[0].order.try_recv().is_err());
        (0..1_000).for_each(|_| clients[0].request.taken());
        assert!(clients[2].request.try_answer_room(PIECE + 1).is_none());
        assert!(clients[0].order.try_recv().is_err(), "it reads fast enough");
    }

    #[test]
    fn u05_bodies_that_are_sent_slowly_give_way_to_those_of_others() {
        let mut clients = clients(&["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
        let now = Instant::now();
        let mut rooms: Vec<BodyRoom> = clients.iter().map(|client| client.request.body_room()).collect();
        for (client, room) in clients[..2].iter().zip(&mut rooms) {
            assert_eq!(room.0.grow(HELD_BYTES / 2, &[]), Ok(()));
            let since = now - 1_000 * YOUNG;
            client.request.place.note(|progress, _| {
                progress.set_phase(client.request.number, RequestPhase::Receiving, since);
            });
        }
        assert_eq!(rooms[2].0.grow(1, &[NoRoom::OfAll]), Err(NoRoom::OfAll));
        assert_eq!(clients[0].order.try_recv(), Ok(EndOrder::AtOnce));
    }
}
