//! A request to the upstream whose response is stored, and those who wait for it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use weir_plugin::proto::RequestHead;
use weir_plugin::{ForwardedContent, ReplyField, ReplyHead, RouteUpstream, Stop, UpstreamAnswer};

use super::CacheRules;
use super::freshness::{ArrivalTimes, Lifetime, StoredAge, date, value};
use super::kept::{KeptFetch, MOST_UNREAD_BYTES};
use super::reply::CacheOutcome;
use super::zone::{
    CacheZone, PIECE_OVERHEAD, Reservation, ScopeParts, StoredContent, StoredHead, StoredResponse, VaryFields,
};
use crate::clock::now;

/// How far a fill has come.
#[derive(Clone)]
pub(super) enum FillStage {
    /// The upstream has not answered yet.
    Asked,
    /// The response is stored while it arrives; with the length of its content, if it is known.
    Storing(Arc<StoredHead>, Option<u64>),
    /// The response is complete, or an older one is used in its place.
    Stored(Arc<StoredResponse>, CacheOutcome),
    /// The response, or the rest of it, is only for the client whose request was sent.
    Passed,
    Failed(Stop),
}

struct FillState {
    stage: FillStage,
    pieces: Vec<Arc<[u8]>>,
    /// It goes on without a reader.
    keeps_on: bool,
}

/// A response that is being requested, seen by the clients that wait for it, on all workers.
pub(super) struct Fill {
    state: Mutex<FillState>,
    /// Each reader has a receiver.
    changes: watch::Sender<()>,
}

/// A client's part in a fill. The response is received as long as there is one.
pub(super) struct FillReader {
    pub(super) fill: Arc<Fill>,
    changes: watch::Receiver<()>,
}

/// The requests to upstreams that are under way, by key and scope.
#[derive(Default)]
pub(super) struct Fills(Mutex<HashMap<Box<[u8]>, Arc<Fill>>>);

impl Fills {
    pub(super) fn all(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Arc<Fill>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Later requests with this key do not get the responses that are on their way.
    pub(super) fn forget(&self, key: &[u8]) {
        let mut of_key = ScopeParts::default();
        of_key.add(key);
        let of_key = of_key.finished();
        self.all().retain(|name, _| !name.starts_with(&of_key));
    }
}

/// The next part of a content.
pub(super) enum FillPiece {
    Piece(Arc<[u8]>),
    /// All of it has been stored, with the trailers.
    End(Arc<StoredContent>),
    /// The rest was left to the client whose request was sent.
    Passed,
}

impl Default for Fill {
    fn default() -> Fill {
        let state = FillState { stage: FillStage::Asked, pieces: Vec::new(), keeps_on: false };
        Fill { state: Mutex::new(state), changes: watch::Sender::new(()) }
    }
}

impl Fill {
    /// A fill that is listed gets its readers under the lock of the list, so that none begins to read one that was given up.
    pub(super) fn read(self: &Arc<Self>) -> FillReader {
        FillReader { fill: Arc::clone(self), changes: self.changes.subscribe() }
    }

    /// No client gets the response, or waits for it.
    fn is_unread(&self) -> bool {
        self.changes.receiver_count() == 0 && !self.state().keeps_on
    }

    fn state(&self) -> MutexGuard<'_, FillState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, stage: FillStage) {
        self.state().stage = stage;
        self.changes.send_replace(());
    }

    /// The rest of the response is received even if no client reads it. The client that caused the request already has the
    /// response, and has only asked whether it has changed.
    pub(super) fn keep_on(&self) {
        self.state().keeps_on = true;
    }

    fn push(&self, piece: Arc<[u8]>) {
        self.state().pieces.push(piece);
        self.changes.send_replace(());
    }
}

impl FillReader {
    /// Waits until `found` finds something in the state.
    async fn until<T>(&mut self, found: impl Fn(&FillState) -> Option<T>) -> T {
        loop {
            self.changes.mark_unchanged();
            if let Some(found) = found(&self.fill.state()) {
                return found;
            }
            // Cannot fail: the sender belongs to the fill.
            let _ = self.changes.changed().await;
        }
    }

    /// The stage for the client whose request was sent: as soon as the upstream has answered.
    pub(super) async fn answered(&mut self) -> FillStage {
        self.until(|state| match &state.stage {
            FillStage::Asked => None,
            stage => Some(stage.clone()),
        })
        .await
    }

    /// The stage for the client of another request: a response of unknown length has to be complete first, as it may turn out to
    /// be too large. One that is not for this request (`Vary`) is not waited for.
    pub(super) async fn shared(&mut self, request: &RequestHead) -> FillStage {
        self.until(|state| match &state.stage {
            FillStage::Asked => None,
            FillStage::Storing(head, None) if head.vary.matches(request) => None,
            stage => Some(stage.clone()),
        })
        .await
    }

    /// The piece with this number.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn piece(&mut self, number: usize) -> Result<FillPiece, Stop> {
        self.until(|state| match (state.pieces.get(number), &state.stage) {
            (_, FillStage::Failed(stop)) => Some(Err(*stop)),
            (Some(piece), _) => Some(Ok(FillPiece::Piece(Arc::clone(piece)))),
            (None, FillStage::Stored(stored, _)) => Some(Ok(FillPiece::End(Arc::clone(&stored.content)))),
            (None, FillStage::Passed) => Some(Ok(FillPiece::Passed)),
            (None, FillStage::Asked | FillStage::Storing(..)) => None,
        })
        .await
    }
}

/// What is left to the client whose request was sent.
pub(super) enum LeftAnswer {
    Received(PassedAnswer),
    /// The stored response with a head that is for this client only.
    Confirmed(Arc<StoredResponse>),
}

/// A response, or the rest of one, that is not stored.
pub(super) struct PassedAnswer {
    /// `None` if the client has it already.
    pub head: Option<ReplyHead>,
    /// What was received and is not among the fill's pieces.
    pub begun: Vec<u8>,
    pub answer: UpstreamAnswer,
    /// Held as long as the client reads the fill's pieces.
    pub memory: Option<Reservation>,
}

/// Where a [`LeftAnswer`] is left. The client's side has dropped its end if it has gone.
pub(super) type PassedPlace = Rc<RefCell<Option<LeftAnswer>>>;

/// Requests a response, and stores it.
pub(super) struct Fetch {
    pub rules: Arc<CacheRules>,
    pub key: Box<[u8]>,
    pub scope: Box<[u8]>,
    /// How often the resource was removed before this request.
    pub purges: u64,
    pub fill: Arc<Fill>,
    /// The fill is listed under this name.
    pub listed: Option<Box<[u8]>>,
    /// The client whose request is sent.
    pub client: IpAddr,
    pub upstream: Rc<dyn RouteUpstream>,
    /// The request that a client has sent, without preconditions.
    pub request: RequestHead,
    /// The stored response that is to be validated.
    pub stale: Option<Arc<StoredResponse>>,
    /// The outcome of a new response.
    pub outcome: CacheOutcome,
    pub passed: PassedPlace,
}

impl Drop for Fetch {
    fn drop(&mut self) {
        if let Some(name) = &self.listed {
            let mut fills = self.rules.fills.all();
            if self.is_listed(&fills, name) {
                fills.remove(name);
            }
        }
        let is_over = !matches!(self.fill.state().stage, FillStage::Asked | FillStage::Storing(..));
        if !is_over {
            self.fill.enter(FillStage::Failed(Stop::Shutdown));
        }
    }
}

/// Fields that are made anew for each client.
const MADE_ANEW: [&[u8]; 2] = [b"age", b"content-length"];

/// Fields that describe the stored content, which a 304 does not change.
const OF_CONTENT: [&[u8]; 4] = [b"content-encoding", b"content-length", b"content-range", b"content-type"];

/// The length of the content that a head announces.
fn announced_length(head: &ReplyHead) -> Option<u64> {
    std::str::from_utf8(value(head, b"content-length")?).ok()?.parse().ok()
}

impl Fetch {
    fn zone(&self) -> &CacheZone {
        &self.rules.zone
    }

    pub(super) async fn run(self) {
        let asked = now();
        let mut answer = self.upstream.forward(self.validating_request(), ForwardedContent::Nothing);
        let head = tokio::select! {
            biased;
            head = answer.head() => head,
            // Otherwise a client could have any number of requests under way, as each outlives its connection.
            () = self.abandoned() => return self.fill.enter(FillStage::Failed(Stop::ClientGone)),
        };
        let times = ArrivalTimes::of_request(asked);
        match (head, &self.stale) {
            (Ok(head), Some(stale)) if head.status == 304 => self.freshen(stale, head, times),
            (Ok(head), stale) => {
                let failed = matches!(head.status, 500 | 502 | 503 | 504);
                match stale.as_ref().filter(|stale| failed && covers_errors(stale)) {
                    Some(stale) => self.fill.enter(FillStage::Stored(Arc::clone(stale), CacheOutcome::Stale)),
                    None => self.answered(head, answer, times).await,
                }
            }
            (Err(stop), Some(stale)) if is_failure(stop) && covers_errors(stale) => {
                self.fill.enter(FillStage::Stored(Arc::clone(stale), CacheOutcome::Stale));
            }
            (Err(stop), _) => self.fill.enter(FillStage::Failed(stop)),
        }
    }

    /// The request, with the validators of the stored response (RFC 9111 §4.3.1).
    fn validating_request(&self) -> RequestHead {
        let mut request = self.request.clone();
        request.sends_te = true; // trailers are stored for clients that take them, whichever client asks first
        if let Some(stale) = &self.stale {
            for (name, validator) in [(&b"If-None-Match"[..], &b"etag"[..]), (b"If-Modified-Since", b"last-modified")] {
                if let Some(validator) = value(&stale.head.head, validator) {
                    // Cannot fail: the value comes from a field.
                    let _ = request.head.set(name, validator);
                }
            }
        }
        request
    }

    /// How long a response can be used, and for which requests; `None` if it is not stored.
    fn terms(&self, head: &ReplyHead) -> Option<(Lifetime, VaryFields)> {
        let is_authorized = self.request.head.value(b"authorization").is_some();
        let lifetime = self.rules.storage.lifetime(head, is_authorized)?;
        Some((lifetime, VaryFields::of(head, &self.request)))
    }

    /// The upstream has confirmed the stored response (RFC 9111 §4.3.4).
    fn freshen(&self, stale: &Arc<StoredResponse>, confirmed: ReplyHead, times: ArrivalTimes) {
        let age = StoredAge::of(&confirmed, times);
        let mut news = confirmed.end_to_end().fields;
        news.retain(|(name, _)| !OF_CONTENT.contains(&&**name));
        let old = &stale.head.head;
        let stays = |(name, _): &&ReplyField| !news.iter().any(|(new, _)| new == name);
        let fields = old.fields.iter().filter(stays).cloned().chain(news.iter().cloned()).collect();
        let head = dated(ReplyHead { status: old.status, fields }, times);
        let terms = self.terms(&head);
        let (lifetime, vary) = terms.clone().unwrap_or_else(|| (stale.head.lifetime, stale.head.vary.clone()));
        let head = stored_head(head, age, lifetime, vary);
        let fresh = Arc::new(StoredResponse::new(Arc::new(head), Arc::clone(&stale.content)));
        if terms.is_none() {
            // It must not be stored any more: its new fields, such as a cookie, are for the client whose request was sent.
            self.zone().remove(&self.key, &self.scope, stale);
            self.zone().pass(&self.key, now());
            return self.leave(LeftAnswer::Confirmed(fresh));
        }
        self.zone().store((&self.key, self.purges), &self.scope, &fresh);
        self.fill.enter(FillStage::Stored(fresh, CacheOutcome::Revalidated));
    }

    async fn answered(&self, head: ReplyHead, answer: UpstreamAnswer, times: ArrivalTimes) {
        let age = StoredAge::of(&head, times);
        // A 204 has no content, and no length.
        let length = if head.status == 204 { Some(0) } else { announced_length(&head) };
        let head = dated(head.end_to_end(), times);
        let Some((lifetime, vary)) = self.terms(&head) else {
            // A failure of the upstream says nothing about the stored response (RFC 9111 §4.3.3).
            if let Some(stale) = self.stale.as_ref().filter(|_| head.status < 500) {
                self.zone().remove(&self.key, &self.scope, stale);
            }
            self.zone().pass(&self.key, now());
            return self.pass(head, answer);
        };
        let head_bytes: usize = head.fields.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
        let bytes = head_bytes as u64 + vary.bytes() + (self.key.len() + self.scope.len()) as u64;
        // As if the content came in pieces of one kibibyte; `store` adds what smaller ones take.
        let with_overhead = |length: u64| pieces_of(length).saturating_mul(PIECE_OVERHEAD).saturating_add(length);
        let content = length.map_or(0, with_overhead);
        let is_too_large = length.is_some_and(|length| length > self.rules.most_content);
        match (!is_too_large).then(|| self.zone().reserve(bytes.saturating_add(content))).flatten() {
            Some(memory) => self.store(Arc::new(stored_head(head, age, lifetime, vary)), length, answer, memory).await,
            None => self.pass(head, answer),
        }
    }

    fn is_listed(&self, fills: &HashMap<Box<[u8]>, Arc<Fill>>, name: &[u8]) -> bool {
        fills.get(name).is_some_and(|fill| Arc::ptr_eq(fill, &self.fill))
    }

    /// Completes when all clients that have waited for the response have left. It is not listed any more then.
    async fn abandoned(&self) {
        loop {
            self.unread().await;
            if self.unlist_if_unread() {
                return;
            }
        }
    }

    /// Completes when no client gets the response, or waits for it.
    async fn unread(&self) {
        while !self.fill.is_unread() {
            if self.fill.state().keeps_on {
                return std::future::pending().await;
            }
            self.fill.changes.closed().await;
        }
    }

    /// Takes the fill from the list if no client reads it, so that none begins to wait; `false` if one has come.
    fn unlist_if_unread(&self) -> bool {
        let mut fills = self.rules.fills.all();
        let is_unread = self.fill.is_unread();
        if let Some(name) = self.listed.as_deref().filter(|name| is_unread && self.is_listed(&fills, name)) {
            fills.remove(name);
        }
        is_unread
    }

    /// Whether a response that no client reads goes on: it is kept from now on, or a client has come again.
    fn goes_on(&self, kept: &mut Option<KeptFetch>) -> bool {
        *kept = match kept {
            Some(over) if over.until <= Instant::now() => None,
            _ => self.zone().kept.keep(self.client),
        };
        kept.is_some() || !self.unlist_if_unread()
    }

    fn leave(&self, left: LeftAnswer) {
        *self.passed.borrow_mut() = Some(left);
        self.fill.enter(FillStage::Passed);
    }

    /// Leaves the whole response to the client whose request was sent.
    fn pass(&self, head: ReplyHead, answer: UpstreamAnswer) {
        self.leave(LeftAnswer::Received(PassedAnswer { head: Some(head), begun: Vec::new(), answer, memory: None }));
    }

    async fn store(
        &self,
        head: Arc<StoredHead>,
        length: Option<u64>,
        mut answer: UpstreamAnswer,
        mut memory: Reservation,
    ) {
        self.fill.enter(FillStage::Storing(Arc::clone(&head), length));
        let (mut received, mut kept) = (0, None);
        let mut small = SmallPieces { paid: length.map_or(0, pieces_of), fit: true };
        // How much may have been received while no client reads.
        let mut most_unread = u64::MAX;
        loop {
            let next = tokio::select! {
                biased;
                next = answer.next() => Some(next),
                () = self.unread(), if kept.is_none() => None,
                () = expired(kept.as_ref()), if kept.is_some() => None,
            };
            // An upstream that sends all the time leaves no time to notice that all have left.
            if next.is_none() || kept.is_none() && self.fill.is_unread() {
                if !self.goes_on(&mut kept) {
                    return self.fill.enter(FillStage::Failed(Stop::ClientGone));
                }
                most_unread = if length.is_none() { received + MOST_UNREAD_BYTES } else { u64::MAX };
            }
            let Some(next) = next else { continue };
            match next {
                Ok(Some(piece)) => {
                    received += piece.len() as u64;
                    if received > most_unread && self.unlist_if_unread() {
                        return self.fill.enter(FillStage::Failed(Stop::ClientGone));
                    }
                    if length.is_some() {
                        small.take(self.zone(), &mut memory);
                    }
                    let has_room = length.is_some()
                        || received <= self.rules.most_content
                            && self.zone().extend(&mut memory, piece.len() as u64 + PIECE_OVERHEAD);
                    if !has_room {
                        self.zone().pass(&self.key, now());
                        let passed = PassedAnswer { head: None, begun: piece, answer, memory: Some(memory) };
                        return self.leave(LeftAnswer::Received(passed));
                    }
                    self.fill.push(piece.into());
                }
                Ok(None) => break,
                Err(stop) => return self.fill.enter(FillStage::Failed(stop)),
            }
        }
        let (pieces, trailers) = (self.fill.state().pieces.clone(), answer.take_trailers());
        let has_room = small.fit && self.zone().extend(&mut memory, trailers.len() as u64);
        let content = Arc::new(StoredContent::new(pieces, trailers, memory));
        let stored = Arc::new(StoredResponse::new(head, content));
        if has_room {
            self.zone().store((&self.key, self.purges), &self.scope, &stored);
        }
        self.fill.enter(FillStage::Stored(stored, self.outcome));
    }
}

/// The pieces of a response of known length, whose content is reserved as a whole.
struct SmallPieces {
    /// How many more the reservation includes.
    paid: u64,
    /// There was room for those beyond them.
    fit: bool,
}

impl SmallPieces {
    /// Counts a piece. The response goes on in any case, as several clients may follow it.
    fn take(&mut self, zone: &CacheZone, memory: &mut Reservation) {
        match self.paid.checked_sub(1) {
            Some(left) => self.paid = left,
            None => self.fit = self.fit && zone.extend(memory, PIECE_OVERHEAD),
        }
    }
}

/// How many pieces of one kibibyte a content of this length has, with one that is not full.
fn pieces_of(length: u64) -> u64 {
    length / 1024 + 1
}

/// Completes when a fetch has gone on without a reader for as long as it may.
async fn expired(kept: Option<&KeptFetch>) {
    if let Some(kept) = kept {
        sleep_until(kept.until).await;
    }
}

fn stored_head(mut head: ReplyHead, age: StoredAge, lifetime: Lifetime, vary: VaryFields) -> StoredHead {
    head.fields.retain(|(name, _)| !MADE_ANEW.contains(&&**name));
    StoredHead { head: Arc::new(head), age, lifetime, vary }
}

/// Not with a status of `retry_on` that is no failure, such as 404.
fn is_failure(stop: Stop) -> bool {
    !matches!(stop, Stop::UpstreamStatus(status) if status < 500)
}

fn covers_errors(stale: &StoredResponse) -> bool {
    stale.head.lifetime.covers_errors(stale.head.age.at(now()))
}

/// A response without a date gets that of its arrival (RFC 9110 §6.6.1).
fn dated(mut head: ReplyHead, times: ArrivalTimes) -> ReplyHead {
    if date(&head, b"date").is_none() {
        let arrival = std::time::UNIX_EPOCH + Duration::from_secs(times.system.as_secs());
        head.fields.push((b"date"[..].into(), httpdate::fmt_http_date(arrival).into_bytes().into()));
    }
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(fields: &[(&str, &str)]) -> ReplyHead {
        let field = |(name, value): &(&str, &str)| (name.as_bytes().into(), value.as_bytes().into());
        ReplyHead { status: 200, fields: fields.iter().map(field).collect() }
    }

    #[test]
    fn fields_for_one_connection_are_left_out() {
        let all = head(&[
            ("Connection", "X-Own, close"),
            ("X-Own", "1"),
            ("Transfer-Encoding", "chunked"),
            ("ETag", "\"a\""),
        ]);
        assert_eq!(all.end_to_end().fields, [(b"etag"[..].into(), b"\"a\""[..].into())]);
    }

    #[tokio::test]
    async fn those_who_wait_see_each_stage() {
        let fill = Arc::<Fill>::default();
        let mut reader = fill.read();
        fill.push(b"one"[..].into());
        assert!(matches!(reader.piece(0).await, Ok(FillPiece::Piece(piece)) if *piece == *b"one"));
        fill.enter(FillStage::Passed);
        assert!(matches!(reader.shared(&RequestHead::default()).await, FillStage::Passed));
        assert!(matches!(reader.piece(1).await, Ok(FillPiece::Passed)));
        fill.enter(FillStage::Failed(Stop::UpstreamAborted));
        assert!(matches!(reader.piece(0).await, Err(Stop::UpstreamAborted)));
    }

    #[test]
    fn fills_are_unread_without_a_reader_unless_they_keep_on() {
        let fill = Arc::<Fill>::default();
        assert!(fill.is_unread());
        let readers = (fill.read(), fill.read());
        drop(readers.0);
        assert!(!fill.is_unread());
        drop(readers.1);
        assert!(fill.is_unread());
        fill.keep_on();
        assert!(!fill.is_unread());
    }
}
