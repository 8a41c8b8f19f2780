//! One request to a hub: its arguments, and the rights of its caller.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{Instant, sleep, timeout, timeout_at};

use weir_hub::{
    DeliveryLimit, ExcessDelivery, HeldEvents, Hub, HubSettings, LimitWindow, Listened, PermittedCallers, Refusal,
    is_signed, links,
};
use weir_plugin::{DeliveryQuota, PublishRefusal, Reply, ResponderRequest, Stop, form};

use super::permission::{self, HubCaller};
use super::places::{ClientPlace, PlaceLimit, PlaceLimits};
use super::slot::HubSlot;

/// The interval of comments or pings in an idle stream, so that proxies in between do not cut it off.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(15);
/// The most events taken from the hub at once.
pub(super) const BATCH: usize = 64;

/// The bytes of a response of which a client has to take some within `listen.unread_timeout`.
const SENT_AT_ONCE: usize = 8 << 10;
/// What `Retry-After` says to one who may not listen now, in seconds.
const RETRY_AFTER_S: u64 = 10;
/// How often a listener asks again for an event for which there is no room: first after this time, and then after twice as long.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LONGEST_LOOK: Duration = Duration::from_secs(1);
/// How long a listener waits for room for its next event.
const ROOM_TIMEOUT: Duration = Duration::from_secs(30);

/// One request to a hub.
pub(super) struct HubCall {
    slot: Arc<HubSlot>,
    pub(super) hub: Arc<Hub>,
    pub(super) settings: Arc<HubSettings>,
    pub(super) request: ResponderRequest,
    /// When the caller may not listen any more, since its token expires.
    listens_until: Option<Instant>,
    /// Since when there is no room for its next event, and what is said of that.
    lacks_room: Option<(Instant, Refusal)>,
}

/// Why a call ends before it is answered.
pub(super) enum CallEnd {
    Refused(Refusal),
    /// The exchange cannot go on.
    Stopped(Stop),
}

impl From<Refusal> for CallEnd {
    fn from(refusal: Refusal) -> CallEnd {
        CallEnd::Refused(refusal)
    }
}

impl From<Stop> for CallEnd {
    fn from(stop: Stop) -> CallEnd {
        CallEnd::Stopped(stop)
    }
}

/// Responds with a refusal's status and reason (W3C WebSub §5.1.2: errors in plain text).
pub(super) async fn refuse(reply: &mut Reply, refusal: &Refusal) -> Result<(), Stop> {
    let content = format!("{}\n", refusal.reason);
    let (length, wait) = (content.len().to_string(), refusal.retry_after_s.map(|seconds| seconds.to_string()));
    let mut fields = vec![("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", &*length)];
    fields.extend(wait.as_deref().map(|seconds| ("Retry-After", seconds)));
    fields.extend(refusal.challenge.as_deref().map(|challenge| ("WWW-Authenticate", challenge)));
    reply.begin(refusal.status, &fields);
    reply.send(content.as_bytes()).await;
    Ok(())
}

fn refused_by_plugin(refusal: &PublishRefusal) -> Refusal {
    Refusal { retry_after_s: refusal.retry_after_s, ..Refusal::new(refusal.status, refusal.reason.clone()) }
}

/// The refusal of a listener whose token has expired (RFC 6750 §3.1).
fn expired() -> Refusal {
    let challenge = Some("Bearer error=\"invalid_token\"".to_owned());
    Refusal { challenge, ..Refusal::new(401, "the token has expired") }
}

impl HubCall {
    pub(super) fn new(slot: &Arc<HubSlot>, hub: Arc<Hub>, request: ResponderRequest) -> HubCall {
        let (slot, settings) = (Arc::clone(slot), hub.settings());
        HubCall { slot, settings, hub, request, listens_until: None, lacks_room: None }
    }

    /// The topic whose URL has the path of this request. Scheme and host do not matter, since a proxy in front may have changed them;
    /// of several topics with this path, one with the host of the request comes first.
    pub(super) fn topic_at_path(&self) -> Option<String> {
        let path = std::str::from_utf8(self.request.head.path()).ok()?;
        let mut found = self.settings.topics.iter().filter_map(|pattern| pattern.at_path(path));
        let first = found.next()?;
        let authority = self.request.head.client_authority();
        let is_here = |topic: &String| {
            let host = topic.split_once("://").map_or("", |(_, rest)| rest.split(['/', '?']).next().unwrap_or(""));
            host.as_bytes().eq_ignore_ascii_case(authority)
        };
        Some(if is_here(&first) { first } else { found.find(is_here).unwrap_or(first) })
    }

    /// What was requested, for the refusal of a request whose path is of no topic. The topics are not listed: the caller may have no
    /// right to any.
    pub(super) fn other_topics(&self) -> String {
        let head = &self.request.head;
        let (authority, path) = (head.client_authority(), head.path());
        let (authority, path) = (String::from_utf8_lossy(authority), String::from_utf8_lossy(path));
        format!(
            "no topic of this hub has the path of the request, `{path}` (host `{authority}`); its option `topics` lists those that it has"
        )
    }

    /// The value of a query argument.
    ///
    /// # Errors
    /// It is given twice, or is not UTF-8.
    pub(super) fn argument(&self, name: &str) -> Result<Option<String>, Refusal> {
        let Some(query) = self.request.head.query() else { return Ok(None) };
        let mut values = form::pairs(query).filter(|(key, _)| **key == *name.as_bytes()).map(|(_, value)| value);
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(Refusal::new(400, format!("the query argument `{name}` is given twice")));
        }
        let not_text = |_| Refusal::new(400, format!("the query argument `{name}` is not UTF-8"));
        String::from_utf8(value.into_owned()).map(Some).map_err(not_text)
    }

    pub(super) fn field(&self, name: &[u8]) -> Option<&[u8]> {
        self.request.head.head.value(name)
    }

    fn permit(&self, permitted: &PermittedCallers, topic: &str, action: &str) -> Result<(), Refusal> {
        let caller = HubCaller { identity: self.request.identity.as_deref(), claims: self.request.claims.as_ref() };
        permission::permit(permitted, caller, topic, action)
    }

    pub(super) fn consumer(&self) -> Option<&str> {
        self.request.identity.as_ref().map(|credential| &*credential.consumer.username)
    }

    /// What requests of the same client have in common: the consumer, or else the address. Of an IPv6 address, only the prefix of
    /// 64 bits counts, since one client has the rest for itself (RFC 4291 §2.5.4).
    pub(super) fn client(&self) -> Box<str> {
        match (self.consumer(), self.request.client.to_canonical()) {
            (Some(consumer), _) => consumer.into(),
            (None, IpAddr::V4(address)) => address.to_string().into(),
            (None, IpAddr::V6(address)) => {
                let prefix = Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX));
                format!("{prefix}/64").into()
            }
        }
    }

    /// Whether the caller may publish this content. A signature is enough for every topic.
    pub(super) fn may_publish(&self, topic: &str, content: &[u8]) -> Result<(), Refusal> {
        let publish = &self.settings.publish;
        if let Some(secret) = &publish.secret
            && let Some(signature) = self.field(publish.signature_header.as_bytes())
        {
            return match is_signed(secret.as_bytes(), content, signature) {
                true => Ok(()),
                false => Err(Refusal::new(401, "the signature does not match the content")),
            };
        }
        let of_topic = self.settings.rights_of(topic).map(|rights| &rights.publish);
        if !publish.anonymous {
            // A token with the claims that are asked for needs no consumer.
            let asks_for_claims = publish.permitted.ask_for_claims() || of_topic.is_some_and(|it| it.ask_for_claims());
            if self.consumer().is_none() && !asks_for_claims {
                return Err(Refusal::new(401, "publishing needs an auth plugin of the route, or a signature"));
            }
            self.permit(&publish.permitted, topic, "publish")?;
        }
        of_topic.map_or(Ok(()), |permitted| self.permit(permitted, topic, "publish"))
    }

    /// Counts an event against the quotas of the route's plugins.
    pub(super) fn count_event(&self, topic: &str, bytes: usize) -> Result<(), Refusal> {
        for quota in &self.request.publish_quotas {
            quota.take(topic, bytes as u64).map_err(|refusal| refused_by_plugin(&refusal))?;
        }
        Ok(())
    }

    /// The limits of the deliveries to a subscription, by the quotas of the route's plugins.
    pub(super) fn delivery_limits(&self, topic: &str) -> Result<Box<[DeliveryLimit]>, Refusal> {
        let quotas = self.request.delivery_quotas.as_ref().map_err(refused_by_plugin)?;
        let limit = |quota: &DeliveryQuota| DeliveryLimit {
            key: if quota.per_topic { format!("{} {topic}", quota.key).into() } else { quota.key.clone() },
            count: quota.count,
            bytes: quota.bytes,
            window_s: quota.window_s,
            window: if quota.slides { LimitWindow::Sliding } else { LimitWindow::Fixed },
            excess: if quota.drops { ExcessDelivery::Drop } else { ExcessDelivery::Wait },
        };
        Ok(quotas.iter().map(limit).collect())
    }

    /// How long the right of the caller to receive events of a topic lasts; `None` if it does not depend on a token, or if the token
    /// does not expire.
    pub(super) fn time_left(&self, topic: &str) -> Option<Duration> {
        let of_topic = self.settings.rights_of(topic).map(|rights| &rights.subscribe);
        let asks_for_claims =
            self.settings.subscribe.permitted.ask_for_claims() || of_topic.is_some_and(|it| it.ask_for_claims());
        let claims = self.request.claims.as_ref().filter(|_| asks_for_claims)?;
        permission::time_left(claims, SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    /// Whether the caller may listen to a topic, and until when.
    pub(super) fn begin_listening(&mut self, topic: &str) -> Result<(), Refusal> {
        self.may_listen(topic)?;
        self.listens_until = self.time_left(topic).and_then(|left| Instant::now().checked_add(left));
        Ok(())
    }

    /// Whether the caller may subscribe to the events of a topic, read them and stream them.
    pub(super) fn may_listen(&self, topic: &str) -> Result<(), Refusal> {
        // The request may be older than the configuration, and its consumer removed.
        if self.consumer().is_some_and(|consumer| !self.settings.permits_receiving(consumer, topic)) {
            return Err(Refusal::new(403, "this consumer may not subscribe here"));
        }
        self.permit(&self.settings.subscribe.permitted, topic, "subscribe")?;
        let of_topic = self.settings.rights_of(topic).map(|rights| &rights.subscribe);
        of_topic.map_or(Ok(()), |permitted| self.permit(permitted, topic, "subscribe"))
    }

    /// A place among those who listen.
    ///
    /// # Errors
    /// The hub, or the client, has as many listeners as it may.
    pub(super) fn take_place(&self) -> Result<ClientPlace, Refusal> {
        let listen = &self.settings.listen;
        let limits = PlaceLimits { all: listen.max, client: listen.max_per_client };
        self.slot.listeners.take(self.client(), limits).map_err(|limit| {
            let refusal = match limit {
                PlaceLimit::Client => {
                    let most = limits.client;
                    let open =
                        format!("this client has {most} event streams, WebSockets and long polls open at this hub");
                    Refusal::new(429, format!("{open}, as many as it may have"))
                }
                PlaceLimit::All => Refusal::new(
                    503,
                    "this hub has as many event streams, WebSockets and long polls open as it may have",
                ),
            };
            Refusal { retry_after_s: Some(RETRY_AFTER_S), ..refusal }
        })
    }

    /// Sends content, and waits until the client has taken most of it.
    ///
    /// # Errors
    /// The client has taken nothing for as long as it may.
    pub(super) async fn send(&self, reply: &mut Reply, content: &[u8]) -> Result<(), Stop> {
        for piece in content.chunks(SENT_AT_ONCE) {
            self.unless_unread(reply.send(piece)).await?;
        }
        Ok(())
    }

    /// Waits until the client has taken all that was sent.
    ///
    /// # Errors
    /// It does not.
    pub(super) async fn all_taken(&self, reply: &mut Reply) -> Result<(), Stop> {
        self.unless_unread(reply.taken()).await
    }

    async fn unless_unread(&self, sending: impl Future<Output = ()>) -> Result<(), Stop> {
        let sent = timeout(self.settings.listen.unread_timeout, sending).await;
        sent.map_err(|_| {
            self.slot.unread.fetch_add(1, Relaxed);
            Stop::ClientStalled
        })
    }

    /// The newest event of a topic.
    ///
    /// # Errors
    /// The hub is closing, the event cannot be read, or there is no room for it.
    pub(super) async fn latest(&self, topic: &str) -> Result<Option<HeldEvents>, Refusal> {
        self.hub.latest(topic, Box::new(self.slot.held.of(self.request.client))).await
    }

    /// Events of a topic after event `after`, at most `limit`; waits until there is at least one, and room for it.
    ///
    /// # Errors
    /// The hub is closing, or the caller may not listen any more: the configuration has changed, its token has expired, or there is
    /// no room for its next event for long.
    pub(super) async fn events_after(&mut self, topic: &str, after: u64, limit: usize) -> Result<HeldEvents, Refusal> {
        let mut pause = FIRST_LOOK;
        loop {
            self.check_settings(topic)?;
            let events = self.hub.events_after(topic, after, limit, Box::new(self.slot.held.of(self.request.client)));
            let listened = match self.listens_until {
                None => events.await?,
                Some(until) if Instant::now() >= until => return Err(expired()),
                Some(until) => timeout_at(until, events).await.map_err(|_| expired())??,
            };
            self.check_settings(topic)?;
            match listened {
                Listened::Events(events) => {
                    self.lacks_room = None;
                    return Ok(events);
                }
                Listened::NoRoom(refusal) => {
                    let (since, _) = self.lacks_room.get_or_insert_with(|| (Instant::now(), refusal.clone()));
                    if since.elapsed() >= ROOM_TIMEOUT {
                        return Err(refusal);
                    }
                    sleep(pause).await;
                    pause = (2 * pause).min(LONGEST_LOOK);
                }
                Listened::Reconfigured => {}
            }
        }
    }

    /// Refuses to say that there is no event if there is one, but no room for it.
    pub(super) fn refuse_lack_of_room(&mut self) -> Result<(), Refusal> {
        self.lacks_room.take().map_or(Ok(()), |(_, refusal)| Err(refusal))
    }

    /// Refuses to wait for the event after one that does not exist, because the log was lost or replaced: none would come for long.
    pub(super) async fn refuse_future(&self, after: u64) -> Result<(), Refusal> {
        let newest = self.hub.newest().await?;
        if after <= newest {
            return Ok(());
        }
        let problem = format!(
            "`after={after}` is beyond the newest event of this hub, {newest}: the id is of another hub, or of a log that was \
             lost; go on with `after=earliest`, or with the `Event-Id` of a GET without `after`"
        );
        Err(Refusal::new(400, problem))
    }

    /// Applies settings that have changed since the last look to the caller.
    fn check_settings(&mut self, topic: &str) -> Result<(), Refusal> {
        let settings = self.hub.settings();
        if Arc::ptr_eq(&settings, &self.settings) {
            return Ok(());
        }
        self.settings = settings;
        if !self.settings.has_topic(topic) {
            return Err(Refusal::new(404, "this hub has no such topic any more"));
        }
        self.begin_listening(topic)
    }

    /// The last event that the client has seen, from `Last-Event-ID` or the argument `last_event_id`; otherwise the newest one.
    pub(super) async fn after_last_seen(&self, topic: &str) -> Result<u64, Refusal> {
        let newest = self.hub.newest_of(topic).await?.unwrap_or_default();
        let of_field = self.field(b"last-event-id").map(|value| String::from_utf8_lossy(value).into_owned());
        let last = match of_field {
            Some(last) => Some(("`Last-Event-ID`", last)),
            None => self.argument("last_event_id")?.map(|last| ("the query argument `last_event_id`", last)),
        };
        // A client that has seen no event may send an empty field (HTML Standard §9.2.3).
        let Some((place, last)) = last.filter(|(_, last)| !last.trim().is_empty()) else { return Ok(newest) };
        // An id that is greater than the newest one is from a lost log, and is ignored.
        Ok(position(place, last.trim())?).map(|seq| if seq <= newest { seq } else { newest })
    }

    /// The `Link` field with the hub and the topic (§4).
    pub(super) fn links(&self, topic: &str) -> String {
        links(&self.settings.url, topic)
    }
}

/// The position after an event: its id, or before the oldest one.
///
/// # Errors
/// The text, which stood at `place`, is neither.
pub(super) fn position(place: &str, text: &str) -> Result<u64, Refusal> {
    match text {
        "earliest" => Ok(0),
        text => {
            let wrong = |_| Refusal::new(400, format!("{place} is neither an event id (a number) nor `earliest`"));
            text.parse().map_err(wrong)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_ids_or_the_beginning() {
        let of = |text| position("`after`", text).map_err(|refusal| (refusal.status, refusal.reason));
        let wrong = Err((400, "`after` is neither an event id (a number) nor `earliest`".to_owned()));
        assert_eq!((of("earliest"), of("12"), of("x"), of("-1")), (Ok(0), Ok(12), wrong.clone(), wrong));
    }
}
