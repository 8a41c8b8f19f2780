//! How far a connection has come, and which of its bounds it exceeds. Decisions only: no sockets, no clock.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::bounds::{ANSWER, FIRST_BYTE, HANDSHAKE, HEAD, IDLE, LAST_WORDS, SILENT, UNREAD, YOUNG};
use super::executor::StreamReset;
use super::stream::SharedStream;
use crate::node::server_tally::ConnectionEnd;

/// What a request in progress waits for.
#[derive(Clone)]
pub(crate) enum RequestPhase {
    /// For its client, who sends the body.
    Receiving,
    /// For the node.
    Working,
    /// For something before the client has shown that it may use the server, or for room that its other responses take. The connection
    /// is not kept for that.
    Paused,
    /// For its client, who takes the response. A large one takes room of others.
    Sending { is_large: bool },
    /// For whatever the stream is about, if the connection has room for it (`is_wanted`); otherwise for its client.
    Streaming { is_wanted: bool, stream: Arc<SharedStream> },
}

struct ServedRequest {
    phase: RequestPhase,
    since: Instant,
    /// When the client last took a part of the response.
    taken: Instant,
    /// The parts that it has taken.
    pieces: usize,
    /// How its stream of HTTP/2 can be reset; `None` over HTTP/1, and once it has been.
    reset: Option<StreamReset>,
}

impl ServedRequest {
    /// Whether the client has taken nothing of the response for too long.
    fn is_untaken(&self, now: Instant) -> bool {
        let is_past = |since: Instant, bound| now.saturating_duration_since(since) >= bound;
        match self.phase {
            RequestPhase::Sending { .. } => is_past(self.taken, ANSWER),
            RequestPhase::Streaming { is_wanted: false, .. } => is_past(self.since, UNREAD + LAST_WORDS),
            _ => false,
        }
    }
}

/// The requests of a connection, and the times of what has happened on it.
pub(super) struct ConnectionProgress {
    accepted: Instant,
    first_byte: Option<Instant>,
    /// When the TLS handshake was complete; without TLS, when the connection was accepted.
    secured: Option<Instant>,
    /// When the last response ended; `None` before the first request.
    idle_since: Option<Instant>,
    requests: BTreeMap<u64, ServedRequest>,
    begun: u64,
    /// Whether its client has shown that it may use the server: by a key of the Admin API.
    is_recognized: bool,
}

/// How little a client has done: the less, the sooner its connection gives way to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClientEffort {
    Nothing,
    Part,
    Requests,
}

/// The order in which connections give way to others, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GivesWay {
    /// Connections without a request in progress come first.
    has_request: bool,
    /// Of these, those whose client has had the time to send a request and has not, then those that are idle for some time, the
    /// longest idle first. Then those whose clients have done least: a client that is about to send a request is then not closed
    /// for others who send nothing.
    idleness: Idleness,
    /// Of those, clients come first that have shown no key.
    is_recognized: bool,
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Idleness {
    NoRequest,
    Long,
    Young(ClientEffort),
}

impl GivesWay {
    /// The order with the number of connections of the same client: of young ones, and of those without any request, those of the
    /// client with the most come first. A client is then not closed for another one that makes new connections without end.
    pub(super) fn among(self, of_client: impl FnOnce() -> usize) -> impl Ord {
        let (is_long, is_young) =
            (matches!(self.idleness, Idleness::Long), matches!(self.idleness, Idleness::Young(_)));
        (self.has_request, is_young, is_long, self.is_recognized, (!is_long).then(|| Reverse(of_client())), self)
    }
}

impl ConnectionProgress {
    pub(super) fn new(now: Instant, has_handshake: bool) -> ConnectionProgress {
        ConnectionProgress {
            accepted: now,
            first_byte: None,
            secured: (!has_handshake).then_some(now),
            idle_since: None,
            requests: BTreeMap::new(),
            begun: 0,
            is_recognized: false,
        }
    }

    pub(super) fn received(&mut self, now: Instant) {
        self.first_byte.get_or_insert(now);
    }

    pub(super) fn secured(&mut self, now: Instant) {
        self.secured = Some(now);
    }

    pub(super) fn in_progress(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn answered(&self) -> u64 {
        self.begun - self.requests.len() as u64
    }

    /// Begins a request. Returns its number.
    pub(super) fn begin(&mut self, now: Instant) -> u64 {
        self.begun += 1;
        self.requests.insert(
            self.begun,
            ServedRequest { phase: RequestPhase::Working, since: now, taken: now, pieces: 0, reset: None },
        );
        self.begun
    }

    pub(super) fn set_phase(&mut self, request: u64, phase: RequestPhase, now: Instant) {
        if let Some(state) = self.requests.get_mut(&request) {
            (state.phase, state.since, state.taken) = (phase, now, now);
        }
    }

    pub(super) fn set_reset(&mut self, request: u64, reset: Option<StreamReset>) {
        if let Some(state) = self.requests.get_mut(&request) {
            state.reset = reset;
        }
    }

    /// Notes that the client has taken a part of the response.
    pub(super) fn taken(&mut self, request: u64, now: Instant) {
        if let Some(state) = self.requests.get_mut(&request) {
            state.taken = now;
            state.pieces += 1;
        }
    }

    /// Notes that the client of a request has shown that it may use the server.
    pub(super) fn recognize(&mut self, request: u64, now: Instant) {
        self.is_recognized = true;
        self.set_phase(request, RequestPhase::Working, now);
    }

    /// Since when bodies are received, if that is all that happens on the connection.
    pub(super) fn receiving_since(&self) -> Option<Instant> {
        let is_receiving = |state: &ServedRequest| matches!(state.phase, RequestPhase::Receiving);
        let all = self.requests.values().all(is_receiving);
        self.requests.values().map(|state| state.since).min().filter(|_| all)
    }

    /// Since when each large response is sent, and the number of its parts that its client has taken.
    pub(super) fn large_answers(&self) -> impl Iterator<Item = (Instant, usize)> {
        let is_large = |state: &&ServedRequest| matches!(state.phase, RequestPhase::Sending { is_large: true });
        self.requests.values().filter(is_large).map(|state| (state.since, state.pieces))
    }

    /// The reset of the large response whose client has taken nothing for the longest time, if there is one over HTTP/2.
    pub(super) fn take_reset_of_large_answer(&mut self) -> Option<StreamReset> {
        let is_large = |state: &&mut ServedRequest| matches!(state.phase, RequestPhase::Sending { is_large: true });
        let large = self.requests.values_mut().filter(is_large).filter(|state| state.reset.is_some());
        large.min_by_key(|state| state.taken)?.reset.take()
    }

    /// Notes that a stream was asked for its next piece, and whether the connection had room for more than there was.
    pub(super) fn set_wanted(&mut self, request: u64, wanted: bool, now: Instant) {
        let Some(state) = self.requests.get_mut(&request) else { return };
        if let RequestPhase::Streaming { is_wanted, .. } = &mut state.phase {
            (*is_wanted, state.since) = (wanted, now);
        }
    }

    /// Returns whether the connection has become idle.
    pub(super) fn finish(&mut self, request: u64, now: Instant) -> bool {
        self.requests.remove(&request);
        let is_idle = self.requests.is_empty();
        if is_idle {
            self.idle_since = Some(now);
        }
        is_idle
    }

    /// The bound of time that the connection has exceeded.
    pub(super) fn overdue(&self, now: Instant) -> Option<ConnectionEnd> {
        let is_past = |since: Instant, bound| now.saturating_duration_since(since) >= bound;
        if !self.requests.is_empty() {
            let untaken = || self.requests.values().filter(|state| state.is_untaken(now));
            let cannot_reset = untaken().any(|state| state.reset.is_none());
            let is_end = cannot_reset || untaken().count() == self.requests.len();
            return is_end.then_some(ConnectionEnd::Untaken);
        }
        if let Some(since) = self.idle_since {
            return is_past(since, IDLE).then_some(ConnectionEnd::Idle);
        }
        match (self.first_byte, self.secured) {
            (None, _) => is_past(self.accepted, FIRST_BYTE).then_some(ConnectionEnd::FirstByte),
            (Some(_), None) => is_past(self.accepted, HANDSHAKE).then_some(ConnectionEnd::Handshake),
            (Some(first), Some(secured)) => is_past(first.max(secured), HEAD).then_some(ConnectionEnd::Head),
        }
    }

    /// The resets of the streams of HTTP/2 that are not read while other requests of the connection are in progress.
    pub(super) fn take_resets(&mut self, now: Instant) -> Vec<StreamReset> {
        if self.requests.values().all(|state| state.is_untaken(now)) {
            return Vec::new();
        }
        let untaken = self.requests.values_mut().filter(|state| state.is_untaken(now));
        untaken.filter_map(|state| state.reset.take()).collect()
    }

    /// The streams whose client has taken nothing for too long.
    pub(super) fn unread_streams(&self, now: Instant) -> impl Iterator<Item = &Arc<SharedStream>> {
        self.requests.values().filter_map(move |state| match &state.phase {
            RequestPhase::Streaming { is_wanted: false, stream } => {
                (now.saturating_duration_since(state.since) >= UNREAD).then_some(stream)
            }
            _ => None,
        })
    }

    /// When the connection gives way to others; `None` while the node works for it.
    pub(super) fn gives_way(&self, now: Instant) -> Option<GivesWay> {
        let is_young = |since: Instant| now.saturating_duration_since(since) < YOUNG;
        if self.requests.is_empty() {
            let is_silent = |since: Instant| now.saturating_duration_since(since) >= SILENT;
            let (idleness, since) = match (self.idle_since, self.first_byte) {
                (Some(since), _) if is_young(since) => (Idleness::Young(ClientEffort::Requests), since),
                (Some(since), _) => (Idleness::Long, since),
                (None, Some(since)) if is_young(since) => (Idleness::Young(ClientEffort::Part), since),
                (None, None) if !is_silent(self.accepted) => (Idleness::Young(ClientEffort::Nothing), self.accepted),
                (None, _) => (Idleness::NoRequest, self.accepted),
            };
            return Some(GivesWay { has_request: false, idleness, is_recognized: self.is_recognized, since });
        }
        let since = self.requests.values().map(|state| state.since).min()?;
        if self.requests.values().all(|state| matches!(state.phase, RequestPhase::Paused)) {
            let idleness = Idleness::NoRequest;
            return Some(GivesWay { has_request: false, idleness, is_recognized: self.is_recognized, since });
        }
        let waits_for_client = |state: &ServedRequest| {
            matches!(state.phase, RequestPhase::Receiving | RequestPhase::Paused | RequestPhase::Sending { .. })
        };
        let gives_way = self.requests.values().all(waits_for_client) && !is_young(since);
        gives_way.then_some(GivesWay {
            has_request: true,
            idleness: Idleness::Long,
            is_recognized: self.is_recognized,
            since,
        })
    }

    /// Whether the node works for the connection, and none of its bounds is exceeded.
    pub(super) fn is_worked_for(&self, now: Instant) -> bool {
        !self.requests.is_empty() && self.gives_way(now).is_none() && self.overdue(now).is_none()
    }

    pub(super) fn has_stream(&self) -> bool {
        self.requests.values().any(|state| matches!(state.phase, RequestPhase::Streaming { .. }))
    }

    /// Whether there are requests in progress and all of them will probably have ended within about a second.
    pub(super) fn ends_soon(&self, now: Instant) -> bool {
        let is_short = |state: &ServedRequest| {
            matches!(state.phase, RequestPhase::Working | RequestPhase::Sending { .. })
                && now.saturating_duration_since(state.since) < YOUNG
        };
        !self.requests.is_empty() && self.requests.values().all(is_short)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn accepted(has_handshake: bool) -> (ConnectionProgress, Instant) {
        let now = Instant::now();
        (ConnectionProgress::new(now, has_handshake), now)
    }

    #[track_caller]
    fn ends(progress: &ConnectionProgress, at: Instant, reason: ConnectionEnd) {
        assert_eq!((progress.overdue(at - MS), progress.overdue(at)), (None, Some(reason)));
    }

    #[test]
    fn a_connection_ends_by_what_it_has_not_done_in_time() {
        let (mut connection, start) = accepted(true);
        ends(&connection, start + FIRST_BYTE, ConnectionEnd::FirstByte);
        connection.received(start + MS);
        ends(&connection, start + HANDSHAKE, ConnectionEnd::Handshake);
        connection.secured(start + 5 * MS);
        ends(&connection, start + 5 * MS + HEAD, ConnectionEnd::Head);
        let request = connection.begin(start + 6 * MS);
        assert_eq!(connection.overdue(start + 3_600_000 * MS), None, "the node works for it");
        connection.set_phase(request, RequestPhase::Sending { is_large: false }, start + 10 * MS);
        ends(&connection, start + 10 * MS + ANSWER, ConnectionEnd::Untaken);
        connection.taken(request, start + 15 * MS);
        ends(&connection, start + 15 * MS + ANSWER, ConnectionEnd::Untaken);
        assert!(connection.finish(request, start + 20 * MS));
        connection.received(start + 30 * MS);
        ends(&connection, start + 20 * MS + IDLE, ConnectionEnd::Idle);
    }

    #[test]
    fn a_response_that_is_not_read_ends_its_stream_and_the_connection_only_if_it_is_alone() {
        let (mut connection, start) = accepted(false);
        let [unread, other] = [connection.begin(start), connection.begin(start)];
        connection.set_reset(unread, Some(StreamReset::default()));
        connection.set_phase(unread, RequestPhase::Sending { is_large: false }, start);
        assert_eq!(connection.take_resets(start + ANSWER - MS).len(), 0);
        assert_eq!(connection.overdue(start + ANSWER), None);
        assert_eq!(connection.take_resets(start + ANSWER).len(), 1);
        assert_eq!(
            connection.overdue(start + ANSWER),
            Some(ConnectionEnd::Untaken),
            "it is still there, in spite of that"
        );
        connection.set_reset(unread, Some(StreamReset::default()));
        connection.finish(other, start);
        ends(&connection, start + ANSWER, ConnectionEnd::Untaken);
        assert_eq!(connection.take_resets(start + ANSWER).len(), 0, "it is alone");
    }

    struct NoPieces;

    impl super::super::stream::AnswerStream for NoPieces {
        fn poll_piece(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Option<bytes::Bytes>> {
            std::task::Poll::Pending
        }
    }

    #[test]
    fn a_stream_ends_that_is_not_read_and_not_one_that_has_nothing_to_say() {
        let (mut connection, start) = accepted(false);
        let request = connection.begin(start);
        let stream = Arc::new(SharedStream::new(Box::new(NoPieces), bytes::Bytes::new()));
        connection.set_phase(request, RequestPhase::Streaming { is_wanted: true, stream }, start);
        let late = start + 3_600_000 * MS;
        assert_eq!((connection.overdue(late), connection.unread_streams(late).count()), (None, 0));
        connection.set_wanted(request, false, start);
        assert_eq!(connection.unread_streams(start + UNREAD - MS).count(), 0);
        assert_eq!(connection.unread_streams(start + UNREAD).count(), 1);
        ends(&connection, start + UNREAD + LAST_WORDS, ConnectionEnd::Untaken);
        assert_eq!(connection.gives_way(late), None);
    }

    #[test]
    fn silent_connections_give_way_first_then_the_longest_idle_and_of_young_ones_that_which_did_least() {
        let (silent, start) = accepted(false);
        let mut begun = ConnectionProgress::new(start, false);
        begun.received(start);
        let mut answered = ConnectionProgress::new(start - 20 * MS, false);
        let request = answered.begin(start - 10 * MS);
        answered.finish(request, start - 5 * MS);
        let order = |now: Instant| {
            let mut order = [("silent", &silent), ("begun", &begun), ("answered", &answered)];
            order.sort_by_key(|(_, connection)| connection.gives_way(now).map(|order| order.among(|| 1)));
            order.map(|(name, _)| name)
        };
        assert_eq!(order(start + 100 * MS), ["silent", "begun", "answered"]);
        assert_eq!(order(start + 997 * MS), ["silent", "answered", "begun"], "it is idle, the other is about to ask");
        assert_eq!(order(start + 2_000 * MS)[2], "answered", "the others have never sent a request");

        let mut busy = ConnectionProgress::new(start, false);
        let request = busy.begin(start);
        assert_eq!(busy.gives_way(start + YOUNG), None, "the node works for it");
        busy.set_phase(request, RequestPhase::Receiving, start);
        assert_eq!(busy.gives_way(start + YOUNG - MS), None);
        assert!(busy.gives_way(start + YOUNG) > silent.gives_way(start + MS), "after all without a request");
    }

    #[test]
    fn a_paused_request_holds_no_place_and_clients_with_a_key_give_way_last() {
        let (mut paused, start) = accepted(false);
        let wrong_key = paused.begin(start);
        paused.set_phase(wrong_key, RequestPhase::Paused, start);
        let idle = |is_recognized: bool| {
            let (mut connection, _) = accepted(false);
            let request = connection.begin(start);
            if is_recognized {
                connection.recognize(request, start);
            }
            connection.finish(request, start);
            connection
        };
        let (unknown, known) = (idle(false), idle(true));
        for now in [start + MS, start + 2 * YOUNG] {
            let mut order = [("known", &known), ("unknown", &unknown), ("paused", &paused)];
            order.sort_by_key(|(_, connection)| connection.gives_way(now).map(|order| order.among(|| 1)));
            assert_eq!(order.map(|(name, _)| name), ["paused", "unknown", "known"]);
        }
        paused.recognize(wrong_key, start);
        assert_eq!(paused.gives_way(start + YOUNG), None, "the node works for it");
    }
}
