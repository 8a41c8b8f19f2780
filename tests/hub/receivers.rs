//! Subscribers that fail in every way and keep their own account of what they were sent. Nothing of what comes in is
//! kept but its numbers, so that millions of deliveries fit into memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_testkit::{Origin, OriginConnection, Reading, Request};

use crate::peers::value;

/// Hosts of callbacks. Those before [`STEADY_HOSTS`] never fail, and have the first subscribers.
const HOSTS: usize = 10;
const STEADY_HOSTS: usize = 2;
/// Subscribers that never fail, and leave and come back.
pub const STEADY: usize = 20;
/// The size of an event, in bytes.
pub const EVENT_BYTES: usize = 1_000;

/// The content of an event. No two have the same.
pub fn content(number: u64) -> Vec<u8> {
    let mut content = format!("{number:>20} ").into_bytes();
    content.resize(EVENT_BYTES, b'a' + (number % 26) as u8);
    content
}

/// What one subscriber has got.
#[derive(Default)]
pub struct Received {
    /// A bit for each event, by its number at the hub.
    accepted: Vec<u64>,
    pub accepted_count: u64,
    /// The event that it has accepted last.
    last: u64,
    /// Events that came again after they were accepted.
    pub repeated: usize,
    /// Accepted events whose answer was not sent.
    pub cut: usize,
}

impl Received {
    pub fn has(&self, event: u64) -> bool {
        self.accepted.get(event as usize / 64).is_some_and(|word| word & 1 << (event % 64) != 0)
    }

    fn accept(&mut self, event: u64) {
        let word = event as usize / 64;
        if self.accepted.len() <= word {
            self.accepted.resize(word + 1, 0);
        }
        self.accepted[word] |= 1 << (event % 64);
        self.accepted_count += 1;
        self.last = event;
    }
}

/// How a subscriber takes an event.
enum Reaction {
    Accept,
    Refuse(&'static str),
    /// Accepts, and closes without an answer.
    Cut,
    /// Says nothing.
    Freeze,
}

/// All subscribers, and what their hosts do at the moment.
pub struct Receivers {
    pub received: Vec<Mutex<Received>>,
    /// The publisher's number of each event that has come, by its number at the hub.
    pub published: Mutex<HashMap<u64, u64>>,
    /// What must never happen, and has.
    faults: Mutex<Vec<String>>,
    /// How often the hub was killed, from which it follows which host fails how.
    pub life: AtomicUsize,
    /// Each subscriber refuses every event again and again whose number is a multiple of this and some of its own.
    pub poison: u64,
    /// All hosts are well again, but for so many requests that one of them leaves without an answer.
    pub is_calm: AtomicBool,
    pub freezes: AtomicU32,
    /// Nobody refuses anything any more.
    pub is_healed: AtomicBool,
    /// Everybody refuses everything that was not accepted before.
    pub is_closed: AtomicBool,
    /// Steady subscribers answer 410 to events from this one on.
    pub gone_from: AtomicU64,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Receivers {
    pub fn new(count: usize, poison: u64) -> Arc<Receivers> {
        Arc::new(Receivers {
            received: (0..count).map(|_| Mutex::default()).collect(),
            published: Mutex::default(),
            faults: Mutex::default(),
            life: AtomicUsize::new(0),
            poison,
            is_calm: AtomicBool::new(false),
            freezes: AtomicU32::new(0),
            is_healed: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            gone_from: AtomicU64::new(u64::MAX),
        })
    }

    /// The servers of all callbacks.
    pub fn serve(self: &Arc<Self>) -> Vec<Origin> {
        let host = |host: usize| {
            let own = Arc::clone(self);
            Origin::scripted(Reading::Strict, move |connection| own.connection(host, connection))
        };
        (0..HOSTS).map(host).collect()
    }

    /// The index of the server of a subscriber's callback.
    pub fn host_of(subscriber: usize) -> usize {
        match subscriber < STEADY {
            true => subscriber % STEADY_HOSTS,
            false => STEADY_HOSTS + subscriber % (HOSTS - STEADY_HOSTS),
        }
    }

    pub fn accepted(&self) -> u64 {
        self.received.iter().map(|received| lock(received).accepted_count).sum()
    }

    #[track_caller]
    pub fn assert_no_faults(&self) {
        let faults = lock(&self.faults);
        assert!(faults.is_empty(), "{} faults, such as {:?}", faults.len(), &faults[..faults.len().min(5)]);
    }

    fn connection(&self, host: usize, connection: &mut OriginConnection) {
        while let Ok(mut request) = connection.head() {
            if let Some(challenge) = value(&request.target, "hub.challenge").filter(|_| request.method == "GET") {
                let length = challenge.len();
                if connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{challenge}")).is_err() {
                    return;
                }
                continue;
            }
            let Ok((body, _)) = connection.body(request.framing) else { return };
            request.body = body;
            let sent = match self.take(host, &request) {
                Reaction::Accept => connection.send("HTTP/1.1 204 Accepted\r\n\r\n"),
                Reaction::Refuse(lines) => connection.send(format!("HTTP/1.1 {lines}Content-Length: 0\r\n\r\n")),
                Reaction::Cut => return,
                Reaction::Freeze => return connection.wait_gone(),
            };
            if sent.is_err() {
                return;
            }
        }
    }

    fn fault(&self, fault: String) {
        lock(&self.faults).push(fault);
    }

    /// An event has come.
    fn take(&self, host: usize, request: &Request) -> Reaction {
        let subscriber = request.target.rsplit('/').next().and_then(|text| text.parse::<usize>().ok());
        let id = request.headers.get("webhook-id").and_then(|id| id.split_once('-')?.1.parse::<u64>().ok());
        let number = request.body.get(..20).and_then(|text| std::str::from_utf8(text).ok()?.trim().parse::<u64>().ok());
        let (Some(subscriber), Some(event), Some(number)) = (subscriber, id, number) else {
            self.fault(format!("{} is no delivery", request.target));
            return Reaction::Accept;
        };
        if *lock(&self.published).entry(event).or_insert(number) != number || request.body != content(number) {
            self.fault(format!("event {event} has another content than before, or than was published"));
        }
        let mut received = lock(&self.received[subscriber]);
        if received.has(event) {
            // What was accepted is accepted again. Only the one delivery in flight may be repeated.
            if event != received.last {
                self.fault(format!("{subscriber} got {event} again after {}", received.last));
            }
            received.repeated += 1;
            return Reaction::Accept;
        }
        let reaction = self.reaction(host, subscriber, number);
        if matches!(reaction, Reaction::Cut) {
            received.cut += 1;
        }
        if matches!(reaction, Reaction::Cut | Reaction::Accept) {
            if event < received.last && !self.is_healed.load(Relaxed) {
                self.fault(format!("{subscriber} got {event} after {}", received.last));
            }
            received.accept(event);
        }
        reaction
    }

    fn reaction(&self, host: usize, subscriber: usize, number: u64) -> Reaction {
        if self.is_closed.load(Relaxed) {
            return Reaction::Refuse("503 Closed\r\n");
        }
        if host < STEADY_HOSTS && number >= self.gone_from.load(Relaxed) {
            return Reaction::Refuse("410 Gone\r\n");
        }
        if host < STEADY_HOSTS || self.is_healed.load(Relaxed) {
            return Reaction::Accept;
        }
        if (number + subscriber as u64).is_multiple_of(self.poison) {
            return Reaction::Refuse("400 Bad\r\n");
        }
        if self.is_calm.load(Relaxed) {
            let freezes =
                host == STEADY_HOSTS && self.freezes.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
            return if freezes { Reaction::Freeze } else { Reaction::Accept };
        }
        match (host + self.life.load(Relaxed)) % 8 {
            0 => Reaction::Refuse("500 Failed\r\n"),
            1 => Reaction::Refuse("429 Busy\r\nRetry-After: 1\r\n"),
            2 => Reaction::Freeze,
            3 => Reaction::Cut,
            _ => Reaction::Accept,
        }
    }
}
