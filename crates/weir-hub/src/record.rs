//! The records in the hub's journals: events, changes of subscriptions, and outcomes.
//!
//! Numbers are LEB128, texts are preceded by their length. The journal verifies checksums, so a record that cannot be decoded was
//! written by a newer version.

use std::sync::Arc;

use bytes::Bytes;

use crate::account::Tally;
use crate::attempt::DeliveryFailure;
use crate::ends::EndReason;
use crate::form::{SubscriptionMode, SubscriptionRequest};
use crate::limit::{DeliveryLimit, ExcessDelivery, LimitWindow};

/// Published content of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its number in the journal.
    pub seq: u64,
    pub time_ms: u64,
    pub topic: Arc<str>,
    /// As sent by the publisher; empty if none.
    pub content_type: Box<str>,
    pub content: Bytes,
}

/// A subscription as it is stored.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SavedSubscription {
    pub id: u64,
    pub topic: Box<str>,
    pub callback: Box<str>,
    pub secret: Option<Box<[u8]>>,
    pub owner: Box<str>,
    /// The address of the caller that made it, if that was no consumer. Empty for one of versions that did not keep it.
    pub address: Box<str>,
    pub expires_ms: u64,
    /// Limits of its deliveries.
    pub limits: Box<[DeliveryLimit]>,
    /// The topic's event count when the subscription began.
    pub base: u64,
    /// The last event with an outcome.
    pub done: u64,
    pub tally: Tally,
}

/// The outcome of one event for one subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub subscription: u64,
    /// The event, which becomes the last one with an outcome.
    pub seq: u64,
    /// The event was a dead letter; the position `done` of the subscription does not change.
    pub is_replay: bool,
    pub outcome: MarkOutcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkOutcome {
    Delivered,
    /// Given up after the last attempt.
    Dead(AbandonedDelivery),
    /// This many events were removed before they could be delivered.
    Expired(u64),
    /// Not delivered, since a limit of the subscription was used up.
    Throttled,
}

/// The circumstances in which an event was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AbandonedDelivery {
    /// The failure of the last attempt.
    pub failure: DeliveryFailure,
    pub attempts: u32,
    pub at_ms: u64,
}

/// A dead letter as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SavedDeadLetter {
    pub subscription: u64,
    pub seq: u64,
    pub given_up: AbandonedDelivery,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum StateRecord {
    /// Begins a snapshot, which replaces all records before it.
    SnapshotBegin,
    /// Ends a snapshot: from here on it is valid.
    SnapshotEnd,
    /// Each topic's event count up to and with event `processed`, and the last event removed by retention.
    Position {
        processed: u64,
        dropped: u64,
        next_id: u64,
        topics: Vec<(Box<str>, u64)>,
    },
    /// In a snapshot: the outcomes of subscriptions that have ended.
    EndedTally(Tally),
    /// A request was accepted; its verification is to be sent.
    Requested {
        number: u64,
        request: SubscriptionRequest,
    },
    /// The request was not verified, and has no effect.
    Unverified {
        number: u64,
    },
    /// The request was verified, with this subscription as the result.
    Subscribed {
        number: u64,
        subscription: SavedSubscription,
    },
    Ended {
        subscription: u64,
        reason: EndReason,
        cancelled: u64,
    },
    Marks(Vec<Mark>),
    /// In a snapshot.
    DeadLetters(Vec<SavedDeadLetter>),
    /// In a snapshot: dead letters queued for one more delivery, by subscription and event.
    Replays(Vec<(u64, u64)>),
    /// These dead letters, by subscription and event, are queued for one more delivery.
    Replayed {
        number: u64,
        letters: Vec<(u64, u64)>,
    },
    /// All requests in a shared log of events up to this number are taken in.
    RequestsTaken {
        seq: u64,
    },
}

/// A record of a log of events that several nodes share.
pub(crate) enum LogEntry {
    Event(Arc<Event>),
    /// A request, with its number in the log.
    Request(u64, SubscriptionRequest),
}

/// The error for a record that cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownRecord;

/// The first byte of an event's record, and of a request's. Requests of kind 2 were written by versions without limits.
const EVENT: u8 = 1;
const REQUEST_WITHOUT_LIMITS: u8 = 2;
const REQUEST: u8 = 3;

impl Event {
    pub fn encode(topic: &str, content_type: &str, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + topic.len() + content_type.len() + content.len());
        out.push(EVENT);
        put_bytes(&mut out, topic.as_bytes());
        put_bytes(&mut out, content_type.as_bytes());
        out.extend_from_slice(content);
        out
    }

    /// # Errors
    /// The record is of a newer version.
    pub fn decode(seq: u64, time_ms: u64, record: &[u8]) -> Result<Event, UnknownRecord> {
        let mut from = RecordDecoder(record);
        if from.byte()? != EVENT {
            return Err(UnknownRecord);
        }
        let (topic, content_type) = (from.text()?, from.text()?);
        Ok(Event { seq, time_ms, topic: (*topic).into(), content_type, content: Bytes::copy_from_slice(from.0) })
    }

    /// Decodes only the topic, and the size of the content in bytes.
    pub fn topic_and_size(record: &[u8]) -> Result<(&str, u32), UnknownRecord> {
        let mut from = RecordDecoder(record);
        if from.byte()? != EVENT {
            return Err(UnknownRecord);
        }
        let (topic, _content_type) = (from.bytes()?, from.bytes()?);
        let topic = std::str::from_utf8(topic).map_err(|_| UnknownRecord)?;
        Ok((topic, from.0.len() as u32))
    }
}

/// Encodes a request for a shared log of events.
pub(crate) fn encode_request(request: &SubscriptionRequest) -> Vec<u8> {
    let mut out = vec![REQUEST];
    put_request(&mut out, 0, request);
    out
}

/// Whether a record of a log of events is a request.
pub(crate) fn is_request(record: &[u8]) -> bool {
    matches!(record.first(), Some(&REQUEST | &REQUEST_WITHOUT_LIMITS))
}

impl LogEntry {
    /// # Errors
    /// The record is of a newer version.
    pub(crate) fn decode(seq: u64, time_ms: u64, record: &[u8]) -> Result<LogEntry, UnknownRecord> {
        if !is_request(record) {
            return Ok(LogEntry::Event(Arc::new(Event::decode(seq, time_ms, record)?)));
        }
        match RecordDecoder(&record[1..]).requested(record[0] == REQUEST)? {
            StateRecord::Requested { request, .. } => Ok(LogEntry::Request(seq, request)),
            _ => Err(UnknownRecord),
        }
    }
}

/// The size of a payload after which another one begins, in bytes. Kafka's brokers take messages of 1 MiB by default.
const PAYLOAD_BYTES: usize = 256 << 10;

/// Encodes records as payloads of the journal, each with its records; a payload is written as a whole or not at all.
pub(crate) fn encode(records: &[StateRecord]) -> impl Iterator<Item = (Vec<u8>, &[StateRecord])> {
    let (mut payloads, mut out, mut begin) = (Vec::new(), Vec::new(), 0);
    for (index, record) in records.iter().enumerate() {
        put_record(&mut out, record);
        if out.len() >= PAYLOAD_BYTES || index + 1 == records.len() {
            payloads.push((std::mem::take(&mut out), &records[begin..=index]));
            begin = index + 1;
        }
    }
    payloads.into_iter()
}

/// # Errors
/// One of the records is of a newer version.
pub(crate) fn decode(payload: &[u8]) -> Result<Vec<StateRecord>, UnknownRecord> {
    let mut from = RecordDecoder(payload);
    let mut records = Vec::new();
    while !from.0.is_empty() {
        records.push(from.record()?);
    }
    Ok(records)
}

fn put_record(out: &mut Vec<u8>, record: &StateRecord) {
    match record {
        StateRecord::SnapshotBegin => out.push(1),
        StateRecord::SnapshotEnd => out.push(2),
        StateRecord::Position { processed, dropped, next_id, topics } => {
            out.push(3);
            put_numbers(out, [*processed, *dropped, *next_id, topics.len() as u64]);
            for (topic, events) in topics {
                put_bytes(out, topic.as_bytes());
                put_numbers(out, [*events]);
            }
        }
        StateRecord::EndedTally(tally) => {
            out.push(18);
            put_tally(out, tally);
        }
        StateRecord::Requested { number, request } => {
            out.push(16);
            put_request(out, *number, request);
        }
        StateRecord::Unverified { number } => put_numbered(out, 6, *number),
        StateRecord::Subscribed { number, subscription } => {
            out.push(if subscription.address.is_empty() { 17 } else { 19 });
            put_numbers(out, [*number]);
            put_subscription(out, subscription);
        }
        StateRecord::Ended { subscription, reason, cancelled } => {
            out.push(8);
            put_numbers(out, [*subscription, *reason as u64, *cancelled]);
        }
        StateRecord::Marks(marks) => {
            out.push(9);
            put_numbers(out, [marks.len() as u64]);
            marks.iter().for_each(|mark| put_mark(out, mark));
        }
        StateRecord::DeadLetters(letters) => {
            out.push(12);
            put_numbers(out, [letters.len() as u64]);
            for SavedDeadLetter { subscription, seq, given_up } in letters {
                put_numbers(out, [*subscription, *seq]);
                put_given_up(out, given_up);
            }
        }
        StateRecord::Replays(replays) => {
            out.push(13);
            put_pairs(out, replays);
        }
        StateRecord::Replayed { number, letters } => {
            out.push(14);
            put_numbers(out, [*number]);
            put_pairs(out, letters);
        }
        StateRecord::RequestsTaken { seq } => put_numbered(out, 15, *seq),
    }
}

/// The kinds of outcomes, and the bit of a replay. Kind 1 and records 4 and 7 were written by versions without dead letters,
/// records 5, 10 and 11 by versions without limits.
const DELIVERED: u64 = 0;
const DEAD_WITHOUT_TIME: u64 = 1;
const EXPIRED: u64 = 2;
const DEAD: u64 = 3;
const OF_REPLAY: u64 = 4;
const THROTTLED: u64 = 8;

fn put_mark(out: &mut Vec<u8>, mark: &Mark) {
    let kind = match mark.outcome {
        MarkOutcome::Delivered => DELIVERED,
        MarkOutcome::Dead(_) => DEAD,
        MarkOutcome::Expired(_) => EXPIRED,
        MarkOutcome::Throttled => THROTTLED,
    };
    put_numbers(out, [mark.subscription, mark.seq, kind | if mark.is_replay { OF_REPLAY } else { 0 }]);
    match mark.outcome {
        MarkOutcome::Delivered | MarkOutcome::Throttled => put_numbers(out, [0]),
        MarkOutcome::Dead(given_up) => put_given_up(out, &given_up),
        MarkOutcome::Expired(count) => put_numbers(out, [count]),
    }
}

fn put_given_up(out: &mut Vec<u8>, given_up: &AbandonedDelivery) {
    put_numbers(out, [u64::from(given_up.failure.code()), u64::from(given_up.attempts), given_up.at_ms]);
}

fn put_pairs(out: &mut Vec<u8>, pairs: &[(u64, u64)]) {
    put_numbers(out, [pairs.len() as u64]);
    pairs.iter().for_each(|(one, other)| put_numbers(out, [*one, *other]));
}

fn put_request(out: &mut Vec<u8>, number: u64, request: &SubscriptionRequest) {
    put_numbers(out, [number, u64::from(request.mode == SubscriptionMode::Unsubscribe), request.lease_s]);
    put_bytes(out, request.topic.as_bytes());
    put_bytes(out, request.callback.as_bytes());
    put_bytes(out, request.owner.as_bytes());
    put_bytes(out, request.secret.as_deref().unwrap_or_default());
    put_bytes(out, request.client.as_bytes());
    put_limits(out, &request.limits);
}

/// Amounts are one greater than they are; 0 is no limit.
fn put_limits(out: &mut Vec<u8>, limits: &[DeliveryLimit]) {
    put_numbers(out, [limits.len() as u64]);
    for DeliveryLimit { key, count, bytes, window_s, window, excess } in limits {
        put_bytes(out, key.as_bytes());
        let amount = |amount: &Option<u64>| amount.map_or(0, |amount| amount.saturating_add(1));
        put_numbers(out, [amount(count), amount(bytes), *window_s, *window as u64, *excess as u64]);
    }
}

fn put_subscription(out: &mut Vec<u8>, subscription: &SavedSubscription) {
    let SavedSubscription { id, topic, callback, secret, owner, address, expires_ms, limits, base, done, tally } =
        subscription;
    put_numbers(out, [*id, *expires_ms, *base, *done]);
    put_bytes(out, topic.as_bytes());
    put_bytes(out, callback.as_bytes());
    put_bytes(out, owner.as_bytes());
    put_bytes(out, secret.as_deref().unwrap_or_default());
    put_tally(out, tally);
    put_limits(out, limits);
    if !address.is_empty() {
        put_bytes(out, address.as_bytes());
    }
}

fn put_tally(out: &mut Vec<u8>, tally: &Tally) {
    let Tally { delivered, dead_lettered, expired, cancelled, throttled, replayed } = tally;
    put_numbers(out, [*delivered, *dead_lettered, *expired, *cancelled, *replayed, *throttled]);
}

/// Writes a record that consists of one number.
fn put_numbered(out: &mut Vec<u8>, kind: u8, number: u64) {
    out.push(kind);
    put_numbers(out, [number]);
}

fn put_numbers<const N: usize>(out: &mut Vec<u8>, numbers: [u64; N]) {
    for mut number in numbers {
        while number >= 0x80 {
            out.push(number as u8 | 0x80);
            number >>= 7;
        }
        out.push(number as u8);
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_numbers(out, [bytes.len() as u64]);
    out.extend_from_slice(bytes);
}

/// Which members a tally has, by the versions that wrote it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TallyForm {
    First,
    WithReplayed,
    WithThrottled,
}

struct RecordDecoder<'a>(&'a [u8]);

impl<'a> RecordDecoder<'a> {
    fn byte(&mut self) -> Result<u8, UnknownRecord> {
        let (first, rest) = self.0.split_first().ok_or(UnknownRecord)?;
        self.0 = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Result<u64, UnknownRecord> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(UnknownRecord)
    }

    fn bytes(&mut self) -> Result<&'a [u8], UnknownRecord> {
        let length = usize::try_from(self.number()?).map_err(|_| UnknownRecord)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(UnknownRecord)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<Box<str>, UnknownRecord> {
        std::str::from_utf8(self.bytes()?).map(Box::from).map_err(|_| UnknownRecord)
    }

    fn secret(&mut self) -> Result<Option<Box<[u8]>>, UnknownRecord> {
        Ok(Some(self.bytes()?).filter(|secret| !secret.is_empty()).map(Box::from))
    }

    fn tally(&mut self, form: TallyForm) -> Result<Tally, UnknownRecord> {
        let [delivered, dead_lettered, expired, cancelled] =
            [self.number()?, self.number()?, self.number()?, self.number()?];
        let mut since = |first| if form >= first { self.number() } else { Ok(0) };
        let (replayed, throttled) = (since(TallyForm::WithReplayed)?, since(TallyForm::WithThrottled)?);
        Ok(Tally { delivered, dead_lettered, expired, cancelled, throttled, replayed })
    }

    fn limits(&mut self) -> Result<Box<[DeliveryLimit]>, UnknownRecord> {
        let amount = |amount: u64| amount.checked_sub(1);
        let limit = |from: &mut Self| {
            let (key, count, bytes) = (from.text()?, amount(from.number()?), amount(from.number()?));
            let window_s = from.number()?;
            let window = match from.number()? {
                0 => LimitWindow::Fixed,
                1 => LimitWindow::Sliding,
                _ => return Err(UnknownRecord),
            };
            let excess = match from.number()? {
                0 => ExcessDelivery::Wait,
                1 => ExcessDelivery::Drop,
                _ => return Err(UnknownRecord),
            };
            Ok(DeliveryLimit { key, count, bytes, window_s, window, excess })
        };
        self.list(limit).map(Vec::into_boxed_slice)
    }

    fn given_up(&mut self) -> Result<AbandonedDelivery, UnknownRecord> {
        let code = self.code()?;
        let attempts = u32::try_from(self.number()?).map_err(|_| UnknownRecord)?;
        Ok(AbandonedDelivery { failure: DeliveryFailure::from_code(code), attempts, at_ms: self.number()? })
    }

    fn code(&mut self) -> Result<u16, UnknownRecord> {
        u16::try_from(self.number()?).map_err(|_| UnknownRecord)
    }

    fn dead_letter(&mut self) -> Result<SavedDeadLetter, UnknownRecord> {
        Ok(SavedDeadLetter { subscription: self.number()?, seq: self.number()?, given_up: self.given_up()? })
    }

    fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, UnknownRecord>,
    ) -> Result<Vec<T>, UnknownRecord> {
        let count = self.number()?;
        (0..count).map(|_| item(self)).collect()
    }

    fn pairs(&mut self) -> Result<Vec<(u64, u64)>, UnknownRecord> {
        self.list(|from| Ok((from.number()?, from.number()?)))
    }

    fn record(&mut self) -> Result<StateRecord, UnknownRecord> {
        Ok(match self.byte()? {
            1 => StateRecord::SnapshotBegin,
            2 => StateRecord::SnapshotEnd,
            3 => self.position()?,
            4 => StateRecord::EndedTally(self.tally(TallyForm::First)?),
            5 => self.requested(false)?,
            6 => StateRecord::Unverified { number: self.number()? },
            7 => self.subscribed(TallyForm::First, false)?,
            8 => self.ended()?,
            9 => StateRecord::Marks(self.list(Self::mark)?),
            10 => StateRecord::EndedTally(self.tally(TallyForm::WithReplayed)?),
            11 => self.subscribed(TallyForm::WithReplayed, false)?,
            12 => StateRecord::DeadLetters(self.list(Self::dead_letter)?),
            13 => StateRecord::Replays(self.pairs()?),
            14 => StateRecord::Replayed { number: self.number()?, letters: self.pairs()? },
            15 => StateRecord::RequestsTaken { seq: self.number()? },
            16 => self.requested(true)?,
            17 => self.subscribed(TallyForm::WithThrottled, false)?,
            19 => self.subscribed(TallyForm::WithThrottled, true)?,
            18 => StateRecord::EndedTally(self.tally(TallyForm::WithThrottled)?),
            _ => return Err(UnknownRecord),
        })
    }

    fn position(&mut self) -> Result<StateRecord, UnknownRecord> {
        let (processed, dropped, next_id) = (self.number()?, self.number()?, self.number()?);
        let topics = self.list(|from| Ok((from.text()?, from.number()?)))?;
        Ok(StateRecord::Position { processed, dropped, next_id, topics })
    }

    fn requested(&mut self, has_limits: bool) -> Result<StateRecord, UnknownRecord> {
        let number = self.number()?;
        let mode = match self.number()? {
            0 => SubscriptionMode::Subscribe,
            _ => SubscriptionMode::Unsubscribe,
        };
        let lease_s = self.number()?;
        let (topic, callback, owner, secret) = (self.text()?, self.text()?, self.text()?, self.secret()?);
        let client = if has_limits { self.text()? } else { owner.clone() };
        let limits = if has_limits { self.limits()? } else { Box::default() };
        let request = SubscriptionRequest { mode, topic, callback, lease_s, secret, owner, client, limits };
        Ok(StateRecord::Requested { number, request })
    }

    fn subscribed(&mut self, form: TallyForm, has_address: bool) -> Result<StateRecord, UnknownRecord> {
        Ok(StateRecord::Subscribed { number: self.number()?, subscription: self.subscription(form, has_address)? })
    }

    fn subscription(&mut self, form: TallyForm, has_address: bool) -> Result<SavedSubscription, UnknownRecord> {
        let (id, expires_ms, base, done) = (self.number()?, self.number()?, self.number()?, self.number()?);
        let (topic, callback, owner, secret) = (self.text()?, self.text()?, self.text()?, self.secret()?);
        let tally = self.tally(form)?;
        let limits = if form >= TallyForm::WithThrottled { self.limits()? } else { Box::default() };
        let address = if has_address { self.text()? } else { Box::default() };
        Ok(SavedSubscription { id, topic, callback, secret, owner, address, expires_ms, limits, base, done, tally })
    }

    fn ended(&mut self) -> Result<StateRecord, UnknownRecord> {
        let subscription = self.number()?;
        let number = usize::try_from(self.number()?).map_err(|_| UnknownRecord)?;
        let reason = *EndReason::ALL.get(number).ok_or(UnknownRecord)?;
        Ok(StateRecord::Ended { subscription, reason, cancelled: self.number()? })
    }

    fn mark(&mut self) -> Result<Mark, UnknownRecord> {
        let (subscription, seq, kind) = (self.number()?, self.number()?, self.number()?);
        let is_replay = kind & OF_REPLAY != 0;
        let outcome = match kind & !OF_REPLAY {
            DELIVERED => self.number().map(|_| MarkOutcome::Delivered)?,
            DEAD_WITHOUT_TIME => {
                let failure = DeliveryFailure::from_code(self.code()?);
                MarkOutcome::Dead(AbandonedDelivery { failure, attempts: 0, at_ms: 0 })
            }
            EXPIRED => MarkOutcome::Expired(self.number()?),
            DEAD => MarkOutcome::Dead(self.given_up()?),
            THROTTLED => self.number().map(|_| MarkOutcome::Throttled)?,
            _ => return Err(UnknownRecord),
        };
        Ok(Mark { subscription, seq, is_replay, outcome })
    }
}

/// One payload of these records.
#[cfg(test)]
pub(crate) fn whole(records: &[StateRecord]) -> Vec<u8> {
    encode(records).flat_map(|(payload, _)| payload).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_record() -> Vec<StateRecord> {
        let tally = Tally {
            delivered: 1,
            dead_lettered: 200,
            expired: 70_000,
            cancelled: u64::MAX,
            throttled: 300,
            replayed: 3,
        };
        let limit = DeliveryLimit {
            key: "k".into(),
            count: Some(0),
            bytes: None,
            window_s: 60,
            window: LimitWindow::Sliding,
            excess: ExcessDelivery::Drop,
        };
        let request = SubscriptionRequest {
            mode: SubscriptionMode::Unsubscribe,
            topic: "http://t/".into(),
            callback: "http://c/?x".into(),
            lease_s: 300,
            secret: Some(Box::from(*b"secret")),
            owner: "jack".into(),
            client: "192.0.2.1".into(),
            limits: [
                limit.clone(),
                DeliveryLimit { bytes: Some(1 << 40), window: LimitWindow::Fixed, ..limit.clone() },
            ]
            .into(),
        };
        let subscription = SavedSubscription {
            id: 7,
            topic: "http://t/".into(),
            callback: "http://c/?x".into(),
            secret: None,
            owner: Box::default(),
            address: Box::default(),
            expires_ms: 1 << 40,
            limits: [DeliveryLimit { excess: ExcessDelivery::Wait, ..limit }].into(),
            base: 3,
            done: 128,
            tally,
        };
        let given_up = AbandonedDelivery { failure: DeliveryFailure::Status(503), attempts: 9, at_ms: 1 << 41 };
        let (dead, expired) = (MarkOutcome::Dead(given_up), MarkOutcome::Expired(1 << 33));
        let outcomes = [MarkOutcome::Delivered, dead, expired, MarkOutcome::Throttled];
        let marks = outcomes.map(|outcome| Mark { subscription: 7, seq: 129, is_replay: false, outcome });
        let of_replays = marks.map(|mark| Mark { is_replay: true, ..mark });
        vec![
            StateRecord::SnapshotBegin,
            StateRecord::Position { processed: 9, dropped: 4, next_id: 8, topics: vec![("http://t/".into(), 300)] },
            StateRecord::EndedTally(tally),
            StateRecord::Requested { number: 1, request },
            StateRecord::Unverified { number: 1 },
            StateRecord::Subscribed { number: 2, subscription: subscription.clone() },
            StateRecord::Subscribed {
                number: 3,
                subscription: SavedSubscription { address: "192.0.2.1".into(), ..subscription },
            },
            StateRecord::Ended { subscription: 7, reason: EndReason::NotPermitted, cancelled: 4 },
            StateRecord::Marks([marks, of_replays].concat()),
            StateRecord::DeadLetters(vec![SavedDeadLetter { subscription: 7, seq: 300, given_up }]),
            StateRecord::Replays(vec![(7, 128), (300, 5)]),
            StateRecord::Replayed { number: 3, letters: vec![(7, 300)] },
            StateRecord::RequestsTaken { seq: 1 << 20 },
            StateRecord::SnapshotEnd,
        ]
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let records = every_record();
        assert!(decode(&whole(&records)).is_ok_and(|read| read == records));
    }

    #[test]
    fn records_of_versions_without_dead_letters_are_read() {
        let tally = Tally { delivered: 1, dead_lettered: 2, expired: 3, cancelled: 4, ..Tally::default() };
        assert!(decode(&[4, 1, 2, 3, 4]).is_ok_and(|read| read == [StateRecord::EndedTally(tally)]));
        let given_up = AbandonedDelivery { failure: DeliveryFailure::Status(100), attempts: 0, at_ms: 0 };
        let mark = Mark { subscription: 7, seq: 9, is_replay: false, outcome: MarkOutcome::Dead(given_up) };
        assert!(decode(&[9, 1, 7, 9, 1, 100]).is_ok_and(|read| read == [StateRecord::Marks(vec![mark])]));
        let subscribed = [7, 1, 5, 6, 2, 3, 1, b't', 1, b'c', 0, 0, 1, 2, 3, 4];
        let read = decode(&subscribed).unwrap_or_default();
        let Some(StateRecord::Subscribed { number: 1, subscription }) = read.first() else { panic!("a subscription") };
        assert_eq!((subscription.id, subscription.tally), (5, tally));
    }

    #[test]
    fn records_of_versions_without_limits_are_read() {
        let tally = Tally { delivered: 1, dead_lettered: 2, expired: 3, cancelled: 4, replayed: 5, ..Tally::default() };
        assert!(decode(&[10, 1, 2, 3, 4, 5]).is_ok_and(|read| read == [StateRecord::EndedTally(tally)]));
        let subscribed = [11, 1, 5, 6, 2, 3, 1, b't', 1, b'c', 0, 0, 1, 2, 3, 4, 5];
        let read = decode(&subscribed).unwrap_or_default();
        let Some(StateRecord::Subscribed { number: 1, subscription }) = read.first() else { panic!("a subscription") };
        assert!(subscription.tally == tally && subscription.limits.is_empty());
        let request = [7, 0, 60, 1, b't', 1, b'c', 2, b'm', b'e', 0];
        let read = decode(&[&[5], &request[..]].concat()).unwrap_or_default();
        let Some(StateRecord::Requested { number: 7, request: of_state }) = read.first() else { panic!("a request") };
        assert_eq!((&*of_state.client, of_state.limits.len()), ("me", 0), "the consumer");
        let Ok(LogEntry::Request(7, of_log)) = LogEntry::decode(7, 0, &[&[2], &request[..]].concat()) else {
            panic!("a request")
        };
        assert!(of_log == *of_state);
    }

    #[test]
    fn decode_does_not_panic_on_cut_or_changed_records() {
        let payload = whole(&every_record());
        for end in 0..payload.len() {
            let _ = decode(&payload[..end]);
            let mut changed = payload.clone();
            changed[end] ^= 0xff;
            let _ = decode(&changed);
        }
    }

    #[test]
    fn requests_are_read_as_they_were_written() {
        let Some(StateRecord::Requested { request, .. }) = every_record().into_iter().nth(3) else {
            panic!("a request")
        };
        let record = encode_request(&request);
        let Ok(LogEntry::Request(7, read)) = LogEntry::decode(7, 0, &record) else { panic!("a request") };
        assert!(read == request);
        assert!((0..record.len()).all(|end| LogEntry::decode(7, 0, &record[..end]).is_err()));
    }

    #[test]
    fn events_are_read_as_they_were_written() {
        let record = Event::encode("http://t/", "text/plain", b"hello");
        let event = Event::decode(3, 4, &record).expect("an event");
        assert_eq!((&*event.topic, &*event.content_type, &*event.content), ("http://t/", "text/plain", &b"hello"[..]));
        assert_eq!(Event::topic_and_size(&record), Ok(("http://t/", 5)));
        assert_eq!(Event::decode(3, 4, b"\x02"), Err(UnknownRecord));
        assert_eq!(Event::decode(3, 4, b"\x03"), Err(UnknownRecord));
    }
}
