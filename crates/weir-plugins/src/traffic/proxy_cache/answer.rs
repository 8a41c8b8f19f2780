//! The answer to one request: from the cache, or from the upstream.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use weir_plugin::proto::{Method, RequestHead};
use weir_plugin::{
    Content, ForwardedContent, Reply, ReplyHead, Responder, ResponderRequest, Responding, Retry, RouteUpstream, Stop,
    UpstreamAnswer,
};

use super::CacheRules;
use super::directives::CacheDirectives;
use super::fill::{Fetch, Fill, FillPiece, FillReader, FillStage, LeftAnswer, PassedAnswer, PassedPlace};
use super::freshness::StoredUse;
use super::reply::{CacheOutcome, ClientHead, ReplyPart, head_for, marked, part_for};
use super::zone::{ResourceScope, ScopeParts, StoredHead, StoredResponse, VaryFields};
use crate::clock::now;

/// The most bytes that are handed to the client's side at once.
const STEP: usize = 8 << 10;

/// Answers one request of a route with a cache.
pub(super) struct CacheResponder {
    pub key: Box<[u8]>,
    /// How the client has addressed the gateway.
    pub addressed: ResourceScope,
    /// Nothing that is kept may be used.
    pub bypasses: bool,
    /// The response may be kept.
    pub keeps: bool,
    pub rules: Arc<CacheRules>,
}

impl Responder for CacheResponder {
    fn respond(self: Arc<Self>, request: ResponderRequest, _: Content, reply: Reply) -> Responding {
        Box::pin(async move {
            let upstream = request.upstream.clone().ok_or(Stop::NoUpstream)?;
            let scope = self.scope(&request, upstream.name());
            let head = request.head;
            let wanted = match self.rules.follows_clients {
                true => wanted(&head),
                false => CacheDirectives::default(),
            };
            CachedRequest { cache: &self, scope, head, client: request.client, wanted, upstream, reply }.answer().await
        })
    }

    fn takes_made_content(&self) -> bool {
        false
    }
}

impl CacheResponder {
    /// What else requests must have in common to get the same response.
    fn scope(&self, request: &ResponderRequest, upstream: &str) -> ResourceScope {
        let mut scope = ScopeParts::default();
        scope.add(&self.addressed);
        scope.add(upstream.as_bytes());
        let consumer = request.identity.as_ref().filter(|_| self.rules.separates_consumers);
        scope.add(consumer.map_or("", |credential| &*credential.consumer.username).as_bytes());
        // Like a field, an argument that a plugin has set may be about the client.
        let (query, asked) = (request.head.query(), request.head.client_query());
        let changed = (query != asked).then(|| query.unwrap_or_default());
        scope.add(if changed.is_some() { b"changed" } else { b"" });
        scope.add(changed.unwrap_or_default());
        for name in &request.personal_fields {
            scope.add_values(&request.head, name);
        }
        scope.finished()
    }
}

/// What the client's `Cache-Control` asks for. `Pragma: no-cache` counts without it (RFC 9111 §5.4).
fn wanted(head: &RequestHead) -> CacheDirectives {
    let mut wanted = CacheDirectives::read(head.head.values(b"cache-control"));
    let is_old = head.head.value(b"cache-control").is_none();
    wanted.no_cache |=
        is_old && head.head.value(b"pragma").is_some_and(|value| value.eq_ignore_ascii_case(b"no-cache"));
    wanted
}

/// Other requests would fail in the same way, whatever they contain: the upstream has seen nothing of this one.
fn is_for_all(stop: Stop) -> bool {
    stop.ending().retry == Retry::Unseen || matches!(stop, Stop::NoEndpoint | Stop::Overloaded)
}

struct CachedRequest<'a> {
    cache: &'a CacheResponder,
    scope: Box<[u8]>,
    head: RequestHead,
    client: IpAddr,
    wanted: CacheDirectives,
    upstream: Rc<dyn RouteUpstream>,
    reply: Reply,
}

/// A request's part in a fill.
enum FillRole {
    /// The response has arrived meanwhile.
    Stored(Arc<StoredResponse>),
    /// This request is the one that is sent.
    Sends(FillReader, Box<[u8]>),
    Waits(FillReader),
}

impl CachedRequest<'_> {
    async fn answer(mut self) -> Result<(), Stop> {
        let mut stale = None;
        if !self.cache.bypasses
            && let Some(stored) = self.stored()
        {
            let age = stored.head.age.at(now());
            match stored.head.lifetime.use_at(age, &self.wanted) {
                StoredUse::Fresh => return self.send(&stored, CacheOutcome::Hit).await,
                StoredUse::Accepted => return self.send(&stored, CacheOutcome::Stale).await,
                StoredUse::WhileRevalidating => {
                    let is_updating = self.revalidate(&stored);
                    let outcome = if is_updating { CacheOutcome::Updating } else { CacheOutcome::Stale };
                    return self.send(&stored, outcome).await;
                }
                StoredUse::AfterValidation => stale = Some(stored),
            }
        }
        if self.wanted.only_if_cached {
            return Err(Stop::Respond(504));
        }
        let outcome = match (self.cache.bypasses, &stale) {
            (true, _) => CacheOutcome::Bypass,
            (false, Some(_)) => CacheOutcome::Expired,
            (false, None) => CacheOutcome::Miss,
        };
        if !self.can_be_kept(stale.is_some()) {
            return self.forward(outcome).await;
        }
        if self.cache.bypasses || stale.is_none() && self.cache.rules.zone.passes_on(&self.cache.key, now()) {
            return self.fetch_alone(stale, outcome).await;
        }
        let vary = self.cache.rules.zone.vary(&self.cache.key, &self.scope).unwrap_or_default();
        self.share(vary, stale, outcome).await
    }

    fn stored(&self) -> Option<Arc<StoredResponse>> {
        self.cache.rules.zone.find(&self.cache.key, &self.scope, &self.head)
    }

    /// The response to this request may be kept: it is a whole one.
    fn can_be_kept(&self, replaces_stale: bool) -> bool {
        let has = |name: &[u8]| self.head.head.value(name).is_some();
        // Where responses are not kept, the upstream decides about preconditions.
        let is_conditional = has(b"if-none-match") || has(b"if-modified-since");
        let passes = !replaces_stale && is_conditional && self.cache.rules.zone.passes_on(&self.cache.key, now());
        self.brings_content() && !has(b"range") && !passes
    }

    /// The response to this request, without its range and preconditions, may be kept. The one to HEAD has no content.
    fn brings_content(&self) -> bool {
        let is_get = self.head.method == Method::Get && self.head.client_method() == Method::Get;
        is_get && self.cache.keeps && !self.wanted.no_store
    }

    /// Finds the fill for this response, or begins one. Requests that differ in the fields of `vary` have different fills.
    fn role(&self, vary: &VaryFields) -> FillRole {
        let mut name = ScopeParts::default();
        name.add(&self.cache.key);
        name.add(&self.scope);
        vary.name_variant(&self.head, &mut name);
        let name = name.finished();
        let mut fills = self.cache.rules.fills.all();
        if let Some(fill) = fills.get(&name) {
            return FillRole::Waits(fill.read());
        }
        // A fill may have ended since the cache was searched.
        let usable = |stored: &Arc<StoredResponse>| {
            stored.head.lifetime.use_at(stored.head.age.at(now()), &self.wanted) == StoredUse::Fresh
        };
        if let Some(stored) = self.stored().filter(usable) {
            return FillRole::Stored(stored);
        }
        let fill = Arc::<Fill>::default();
        let reader = fill.read();
        fills.insert(name.clone(), fill);
        FillRole::Sends(reader, name)
    }

    /// Requests a newer response in the background, unless that is under way. `false` if the response to this request could not
    /// be kept.
    fn revalidate(&self, stale: &Arc<StoredResponse>) -> bool {
        let can_be_kept = self.brings_content();
        if can_be_kept && let FillRole::Sends(reader, name) = self.role(&stale.head.vary) {
            reader.fill.keep_on();
            self.begin_fetch((reader.fill, Some(name)), Some(Arc::clone(stale)), CacheOutcome::Expired);
        }
        can_be_kept
    }

    /// Sends the request to the upstream in a task of its own: it goes on if this client leaves and others wait, or, within limits, if
    /// the response has begun.
    fn begin_fetch(
        &self,
        (fill, listed): (Arc<Fill>, Option<Box<[u8]>>),
        stale: Option<Arc<StoredResponse>>,
        outcome: CacheOutcome,
    ) -> PassedPlace {
        let mut request = self.head.clone();
        for name in [&b"If-None-Match"[..], b"If-Modified-Since", b"If-Range", b"Range"] {
            request.head.remove(name);
        }
        let passed = PassedPlace::default();
        let fetch = Fetch {
            rules: Arc::clone(&self.cache.rules),
            key: self.cache.key.clone(),
            scope: self.scope.clone(),
            purges: self.cache.rules.zone.purges(&self.cache.key),
            fill,
            listed,
            client: self.client,
            upstream: Rc::clone(&self.upstream),
            request,
            stale,
            outcome,
            passed: Rc::clone(&passed),
        };
        tokio::task::spawn_local(fetch.run());
        passed
    }

    async fn fetch_alone(self, stale: Option<Arc<StoredResponse>>, outcome: CacheOutcome) -> Result<(), Stop> {
        self.fetch((Arc::<Fill>::default().read(), None), stale, outcome).await
    }

    async fn fetch(
        mut self,
        (mut reader, listed): (FillReader, Option<Box<[u8]>>),
        stale: Option<Arc<StoredResponse>>,
        outcome: CacheOutcome,
    ) -> Result<(), Stop> {
        let passed = self.begin_fetch((Arc::clone(&reader.fill), listed), stale, outcome);
        match reader.answered().await {
            FillStage::Stored(stored, outcome) => self.send(&stored, outcome).await,
            FillStage::Storing(head, length) => self.follow(&mut reader, (&head, length), outcome, Some(&passed)).await,
            FillStage::Failed(stop) => Err(stop),
            FillStage::Asked | FillStage::Passed => {
                let left = passed.borrow_mut().take().ok_or(Stop::Internal)?;
                match left {
                    LeftAnswer::Received(answer) => self.pass_on(answer, outcome).await,
                    LeftAnswer::Confirmed(stored) => self.send(&stored, CacheOutcome::Revalidated).await,
                }
            }
        }
    }

    /// Waits for the response to another request, or has this one sent. A response that turns out to be for other requests
    /// (RFC 9111 §4.1) says which ones can share one: those are looked for once more. If it takes too long, or the response is
    /// not stored, this request is sent itself.
    async fn share(
        mut self,
        mut vary: VaryFields,
        stale: Option<Arc<StoredResponse>>,
        outcome: CacheOutcome,
    ) -> Result<(), Stop> {
        let until = tokio::time::Instant::now() + self.cache.rules.longest_wait;
        for _ in 0..2 {
            let mut reader = match self.role(&vary) {
                FillRole::Stored(stored) => return self.send(&stored, CacheOutcome::Hit).await,
                FillRole::Sends(reader, name) => return self.fetch((reader, Some(name)), stale, outcome).await,
                FillRole::Waits(reader) => reader,
            };
            match tokio::time::timeout_at(until, reader.shared(&self.head)).await {
                Ok(FillStage::Stored(stored, outcome)) if stored.head.vary.matches(&self.head) => {
                    return self.send(&stored, outcome).await;
                }
                Ok(FillStage::Storing(head, length)) if head.vary.matches(&self.head) => {
                    return self.follow(&mut reader, (&head, length), outcome, None).await;
                }
                Ok(FillStage::Stored(stored, _)) => vary.clone_from(&stored.head.vary),
                Ok(FillStage::Storing(head, _)) => vary.clone_from(&head.vary),
                Ok(FillStage::Failed(stop)) if is_for_all(stop) => return Err(stop),
                Ok(_) | Err(_) => break,
            }
        }
        self.fetch_alone(stale, outcome).await
    }

    fn begin(&mut self, head: &StoredHead, part: &ReplyPart, length: Option<u64>, outcome: CacheOutcome) {
        let rules = &self.cache.rules;
        rules.totals.count(outcome);
        let ClientHead { shared, own } = head_for(head, part, length, (outcome, now()), rules.hides_control);
        self.reply.begin_sharing(shared, own);
    }

    /// Sends a stored response.
    async fn send(&mut self, stored: &StoredResponse, outcome: CacheOutcome) -> Result<(), Stop> {
        let length = stored.content.length;
        let part = part_for(&self.head, &stored.head.head, Some(length));
        let trailers =
            Some(&stored.content.trailers).filter(|trailers| !trailers.is_empty() && part == ReplyPart::Whole);
        // A message of HTTP/1.1 with trailers has no `Content-Length` (RFC 9112 §7.1.2).
        let announced = if trailers.is_some() { None } else { Some(length) };
        self.begin(&stored.head, &part, announced, outcome);
        let bytes = match part {
            ReplyPart::Whole => 0..length,
            ReplyPart::Bytes(bytes) => bytes,
            ReplyPart::NotModified | ReplyPart::Unsatisfiable => return Ok(()),
        };
        if self.head.client_method() == Method::Head {
            return Ok(());
        }
        let mut start = 0;
        for piece in &stored.content.pieces {
            let end = start + piece.len() as u64;
            let within = |at: u64| (at.clamp(start, end) - start) as usize;
            self.send_piece(&piece[within(bytes.start)..within(bytes.end)]).await;
            start = end;
        }
        if let Some(trailers) = trailers {
            self.reply.set_trailers(trailers.clone());
        }
        Ok(())
    }

    /// Sends a response while it arrives.
    async fn follow(
        &mut self,
        reader: &mut FillReader,
        (head, length): (&StoredHead, Option<u64>),
        outcome: CacheOutcome,
        passed: Option<&PassedPlace>,
    ) -> Result<(), Stop> {
        let part = part_for(&self.head, &head.head, None);
        self.begin(head, &part, length, outcome);
        if part == ReplyPart::NotModified {
            reader.fill.keep_on();
            return Ok(());
        }
        for number in 0.. {
            match reader.piece(number).await? {
                FillPiece::Piece(piece) => self.send_piece(&piece).await,
                FillPiece::End(content) => {
                    self.reply.set_trailers(content.trailers.clone());
                    break;
                }
                FillPiece::Passed => {
                    let rest = passed.and_then(|passed| passed.borrow_mut().take());
                    let Some(LeftAnswer::Received(rest)) = rest else { return Err(Stop::ResponseTooLarge) };
                    return self.pass_on(rest, outcome).await;
                }
            }
        }
        Ok(())
    }

    async fn send_piece(&mut self, piece: &[u8]) {
        for part in piece.chunks(STEP) {
            self.reply.send(part).await;
        }
    }

    /// Sends what is left of a response, with its trailers.
    async fn send_rest(&mut self, answer: &mut UpstreamAnswer) -> Result<(), Stop> {
        while let Some(piece) = answer.next().await? {
            self.send_piece(&piece).await;
        }
        self.reply.set_trailers(answer.take_trailers());
        Ok(())
    }

    /// Sends a response, or the rest of one, that is not kept.
    async fn pass_on(&mut self, passed: PassedAnswer, outcome: CacheOutcome) -> Result<(), Stop> {
        let PassedAnswer { head, begun, mut answer, memory: _memory } = passed;
        if let Some(head) = head {
            let part = part_for(&self.head, &head, None);
            self.begin_passed(head, &part, outcome);
            if part == ReplyPart::NotModified {
                return Ok(());
            }
        }
        self.send_piece(&begun).await;
        self.send_rest(&mut answer).await
    }

    fn begin_passed(&mut self, head: ReplyHead, part: &ReplyPart, outcome: CacheOutcome) {
        let rules = &self.cache.rules;
        rules.totals.count(outcome);
        let mut head = marked(head, outcome, 0, rules.hides_control);
        if *part == ReplyPart::NotModified {
            head.status = 304;
            head.fields.retain(|(name, _)| !name.starts_with(b"content-") || **name == *b"content-location");
        }
        self.reply.begin_with(head);
    }

    /// Sends the request as it is, and its response without keeping it.
    async fn forward(mut self, outcome: CacheOutcome) -> Result<(), Stop> {
        let mut answer = self.upstream.forward(self.head.clone(), ForwardedContent::Nothing);
        let head = answer.head().await?.end_to_end();
        self.begin_passed(head, &ReplyPart::Whole, outcome);
        self.send_rest(&mut answer).await
    }
}
