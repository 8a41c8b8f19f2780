//! Subscribers that fail in every way and keep their own account of what they were sent. Nothing of what comes in is
//! kept but its numbers, so that millions of deliveries fit into memory.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::peers::value;

/// Hosts of callbacks. Those before [`STEADY_HOSTS`] never fail, and have the first subscribers.
const HOSTS: usize = 10;
const STEADY_HOSTS: usize = 2;
/// Subscribers that never fail, and leave and come back.
pub(crate) const STEADY: usize = 20;
/// The size of an event, in bytes.
pub(crate) const EVENT_BYTES: usize = 1_000;

/// The content of an event. No two have the same.
pub(crate) fn content(number: u64) -> Vec<u8> {
    let mut content = format!("{number:>20} ").into_bytes();
    content.resize(EVENT_BYTES, b'a' + (number % 26) as u8);
    content
}

/// What one subscriber has got.
#[derive(Default)]
pub(crate) struct Received {
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
    pub(crate) fn has(&self, event: u64) -> bool {
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

/// A request as far as it matters here.
#[derive(Default)]
struct ReceivedRequest {
    method: String,
    target: String,
    webhook_id: String,
    body: Vec<u8>,
}

impl ReceivedRequest {
    /// Nothing if the connection has ended.
    fn read(reader: &mut impl BufRead) -> io::Result<Option<ReceivedRequest>> {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split(' ').map(str::to_owned);
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (mut request, mut length) = (ReceivedRequest { method, target, ..ReceivedRequest::default() }, 0);
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().map_err(io::Error::other)?,
                "webhook-id" => request.webhook_id = value.trim().to_owned(),
                _ => {}
            }
        }
        request.body.resize(length, 0);
        reader.read_exact(&mut request.body)?;
        Ok(Some(request))
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
pub(crate) struct Receivers {
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

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Receivers {
    pub(crate) fn new(count: usize, poison: u64) -> Arc<Receivers> {
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

    /// Serves all callbacks, each host at an address of its own, until the process ends.
    pub(crate) fn serve(self: &Arc<Self>) -> Vec<SocketAddr> {
        (0..HOSTS).map(|host| self.listen(host).expect("loopback has free ports")).collect()
    }

    fn listen(self: &Arc<Self>, host: usize) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let (address, own) = (listener.local_addr()?, Arc::clone(self));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = Arc::clone(&own);
                // A hub that is killed ends its connections.
                std::thread::spawn(move || own.connection(host, stream));
            }
        });
        Ok(address)
    }

    /// The index of the server of a subscriber's callback.
    pub(crate) fn host_of(subscriber: usize) -> usize {
        match subscriber < STEADY {
            true => subscriber % STEADY_HOSTS,
            false => STEADY_HOSTS + subscriber % (HOSTS - STEADY_HOSTS),
        }
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.received.iter().map(|received| lock(received).accepted_count).sum()
    }

    #[track_caller]
    pub(crate) fn assert_no_faults(&self) {
        let faults = lock(&self.faults);
        assert!(faults.is_empty(), "{} faults, such as {:?}", faults.len(), &faults[..faults.len().min(5)]);
    }

    fn connection(&self, host: usize, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        while let Some(request) = ReceivedRequest::read(&mut reader)? {
            if request.method == "GET" {
                let challenge = value(&request.target, "hub.challenge").unwrap_or_default();
                let length = challenge.len();
                stream
                    .write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{challenge}").as_bytes())?;
                continue;
            }
            match self.take(host, &request) {
                Reaction::Accept => stream.write_all(b"HTTP/1.1 204 Accepted\r\n\r\n")?,
                Reaction::Refuse(lines) => {
                    stream.write_all(format!("HTTP/1.1 {lines}Content-Length: 0\r\n\r\n").as_bytes())?;
                }
                Reaction::Cut => return stream.shutdown(Shutdown::Both),
                // Until the hub gives it up, or is killed.
                Reaction::Freeze => return reader.read_to_end(&mut Vec::new()).map(drop),
            }
        }
        Ok(())
    }

    fn fault(&self, fault: String) {
        lock(&self.faults).push(fault);
    }

    /// An event has come.
    fn take(&self, host: usize, request: &ReceivedRequest) -> Reaction {
        let subscriber = request.target.rsplit('/').next().and_then(|text| text.parse::<usize>().ok());
        let id = request.webhook_id.split_once('-').and_then(|(_, event)| event.parse::<u64>().ok());
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
            // What was accepted is accepted again. Only the one delivery in flight may be repeated, and a dead letter whose answer
            // the hub did not get.
            if event != received.last && !self.is_healed.load(Relaxed) {
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
            // Not what a host that fails answers: it would get one delivery at a time.
            return Reaction::Refuse("400 Closed\r\n");
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
