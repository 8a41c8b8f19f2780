//! A client and a server of ours run against each other in random steps from a seed. Valid steps must never cause an error or
//! lose data; invalid frames must never cause a panic or exceed the memory limit.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::*;
use crate::h2::frame::kind;
use crate::head::Framing;
use crate::method::Method;

const STREAMS: u32 = 8;
const BOUNDS: PeerLimits =
    PeerLimits { limits: Limits::DEFAULT, streams: STREAMS, stream_window: 20_000, connection_window: 70_000 };
const STEPS: u64 = 400;
/// Without unsent output, a side uses no more than its HPACK tables and the largest section.
const MOST_MEMORY: usize = 256 * 1024;

/// SplitMix64, so that a seed gives the same steps on every machine.
struct SimulationRandom(u64);

impl SimulationRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// One message, as both ends know it.
#[derive(Debug, Default)]
struct SimulatedMessage {
    length: usize,
    /// Bytes of the content sent, and received.
    sent: usize,
    received: usize,
    has_head: bool,
    has_ended: bool,
    trailers: bool,
}

#[derive(Debug, Default)]
struct SimulatedExchange {
    request: SimulatedMessage,
    response: SimulatedMessage,
    is_reset: bool,
}

/// The content of a message, a pattern in which lost or repeated bytes are detected.
fn content(stream: u32, offset: usize, count: usize) -> Vec<u8> {
    (offset..offset + count).map(|at| (at * 7 + stream as usize) as u8).collect()
}

struct SimulatedWorld {
    draw: SimulationRandom,
    client: Connection,
    server: Connection,
    /// Bytes in flight, delivered in pieces of any size.
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    exchanges: BTreeMap<u32, SimulatedExchange>,
    /// Received and not released, by stream.
    held: [BTreeMap<u32, usize>; 2],
    now_ns: u64,
    is_legal: bool,
    /// The server has announced its shutdown.
    is_leaving: bool,
}

/// The connection has ended.
#[derive(Debug)]
struct SimulatedEnd(ErrorCode);

impl SimulatedWorld {
    fn new(seed: u64, is_legal: bool) -> SimulatedWorld {
        SimulatedWorld {
            draw: SimulationRandom(seed),
            client: Connection::new(Role::Client, BOUNDS, 0),
            server: Connection::new(Role::Server, BOUNDS, 0),
            to_server: Vec::new(),
            to_client: Vec::new(),
            exchanges: BTreeMap::new(),
            held: Default::default(),
            now_ns: 0,
            is_legal,
            is_leaving: false,
        }
    }

    fn step(&mut self) -> Result<(), SimulatedEnd> {
        match self.draw.below(12) {
            0 | 1 => self.begin(),
            2 => self.send(Role::Client),
            3 => self.respond(),
            4 => self.send(Role::Server),
            5 if self.draw.one_in(10) => self.reset(),
            6 if self.draw.one_in(4) => self.say_something(),
            7 if !self.is_legal => self.break_rules(),
            8 => self.release(),
            9 | 10 => return self.deliver(Role::Server),
            _ => return self.deliver(Role::Client),
        }
        Ok(())
    }

    fn begin(&mut self) {
        if self.is_leaving || !self.client.may_request() {
            return;
        }
        let (has_content, length) = (self.draw.one_in(2), self.draw.below(60_000) as usize);
        let says_length = has_content && self.draw.one_in(2);
        let odd = self.draw.below(1_000).to_string();
        let begun = self.client.request(usize::MAX, Method::Post, !has_content, |writer| {
            for (name, value) in [(":method", "POST"), (":scheme", "http"), (":authority", "t"), (":path", "/a")] {
                writer.add(name.as_bytes(), value.as_bytes());
            }
            writer.add(b"x-number", odd.as_bytes());
            writer.add(b"user-agent", b"simulation");
            if says_length {
                writer.add(b"content-length", length.to_string().as_bytes());
            }
        });
        let (id, _) = begun.expect("it may");
        self.client.set_key(id, id as usize);
        let mut exchange = SimulatedExchange::default();
        exchange.request.length = if has_content { length } else { 0 };
        self.exchanges.insert(id, exchange);
    }

    /// A random stream on which this side may still send.
    fn any(&mut self, role: Role) -> Option<u32> {
        let side = self.side(role);
        let ids: Vec<u32> = side.keys().map(|(id, _)| id).filter(|id| !side.has_sent_all(*id)).collect();
        let at = self.draw.below(ids.len() as u64) as usize;
        ids.get(at).copied()
    }

    fn side(&mut self, role: Role) -> &mut Connection {
        if role == Role::Client { &mut self.client } else { &mut self.server }
    }

    fn respond(&mut self) {
        let Some(id) = self.any(Role::Server) else { return };
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        let length = self.draw.below(60_000) as usize;
        let says_length = self.draw.one_in(2);
        if exchange.response.has_head || !exchange.request.has_head {
            return;
        }
        if self.draw.one_in(5) {
            self.server.respond(id, 103, false, |writer| writer.add(b"link", b"</a>"));
        }
        exchange.response.has_head = true;
        exchange.response.length = length;
        self.server.respond(id, 200, false, |writer| {
            writer.add(b"content-type", b"text/plain");
            if says_length {
                writer.add(b"content-length", length.to_string().as_bytes());
            }
        });
    }

    /// Sends a piece of a message or its end.
    fn send(&mut self, role: Role) {
        let Some(id) = self.any(role) else { return };
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        let message = if role == Role::Client { &mut exchange.request } else { &mut exchange.response };
        if role == Role::Server && !message.has_head {
            return;
        }
        let left = message.length - message.sent;
        let piece = self.draw.below(left as u64 + 1).min(30_000) as usize;
        let piece = if self.draw.one_in(3) { left.min(30_000) } else { piece };
        let bytes = content(id, message.sent, piece);
        let trailers = self.draw.one_in(3);
        let is_last = piece == left;
        message.trailers |= is_last && trailers;
        let side = if role == Role::Client { &mut self.client } else { &mut self.server };
        let sent = side.send_data(id, &bytes, is_last && !trailers);
        message.sent += sent;
        if is_last && trailers && sent == piece {
            side.send_trailers(id, &Trailers::from_lines(b"x-sum: 1\r\n".to_vec()));
        }
    }

    fn reset(&mut self) {
        let role = if self.draw.one_in(2) { Role::Client } else { Role::Server };
        let Some(id) = self.any(role) else { return };
        self.side(role).reset(id, ErrorCode::CANCEL);
        self.exchanges.entry(id).or_default().is_reset = true;
    }

    /// Sends a frame that is valid at any time.
    fn say_something(&mut self) {
        let role = if self.draw.one_in(2) { Role::Client } else { Role::Server };
        let (choice, value) = (self.draw.below(5), self.draw.below(40_000) as u32);
        let side = self.side(role);
        match choice {
            0 => side.send_ping(),
            1 => {
                let mut setting = settings::HEADER_TABLE_SIZE.to_be_bytes().to_vec();
                // Our decoder's table has a fixed size; this only changes the peer's encoder.
                setting.extend_from_slice(&4096u32.to_be_bytes());
                frame::write_head(&mut side.out, kind::SETTINGS, 0, 0, 6);
                side.out.extend_from_slice(&setting);
            }
            2 => {
                frame::write_head(&mut side.out, 0xfa, 0, 0, 4); // an unknown frame type (§4.1)
                side.out.extend_from_slice(&value.to_be_bytes());
            }
            3 => side.rest(),
            _ if self.draw.one_in(20) => self.server.leave(),
            _ => {}
        }
    }

    /// Inserts a frame that may be invalid in any way.
    fn break_rules(&mut self) {
        let role = if self.draw.one_in(2) { Role::Client } else { Role::Server };
        let kind = if self.draw.one_in(8) { self.draw.next() as u8 } else { self.draw.below(11) as u8 };
        let stream = match self.draw.below(4) {
            0 => 0,
            1 => self.draw.below(40) as u32,
            2 => self.draw.next() as u32 & MAX_STREAM_ID,
            _ => self.any(role).unwrap_or(1),
        };
        let flags = self.draw.next() as u8;
        let length = [0, 4, 5, 6, 8, 9, 40][self.draw.below(7) as usize];
        let payload: Vec<u8> = (0..length).map(|_| self.draw.next() as u8 >> (self.draw.0 % 7)).collect();
        let out = &mut self.side(role).out;
        frame::write_head(out, kind, flags, stream, payload.len());
        out.extend_from_slice(&payload);
        self.exchanges.entry(stream).or_default().is_reset = true;
    }

    /// Consumes content that was held.
    fn release(&mut self) {
        for (at, side) in [&mut self.client, &mut self.server].into_iter().enumerate() {
            for (&id, held) in &mut self.held[at] {
                let count = if self.draw.one_in(2) { *held } else { self.draw.below(*held as u64 + 1) as usize };
                side.release(id, count);
                *held -= count;
            }
            self.held[at].retain(|_, held| *held > 0);
        }
    }

    /// Delivers bytes in flight to this side, in pieces of any size.
    fn deliver(&mut self, role: Role) -> Result<(), SimulatedEnd> {
        self.now_ns += 2_000_000_000;
        self.server.credit().earn_time(self.now_ns);
        self.to_server.append(self.client.output());
        self.to_client.append(self.server.output());
        let waiting = if role == Role::Server { &mut self.to_server } else { &mut self.to_client };
        let count =
            if self.draw.one_in(3) { waiting.len() } else { self.draw.below(waiting.len() as u64 + 1) as usize };
        let bytes = std::mem::take(waiting);
        let mut rest = &bytes[..count];
        let outcome = self.take(role, &mut rest);
        let used = count - rest.len();
        let waiting = if role == Role::Server { &mut self.to_server } else { &mut self.to_client };
        waiting.extend_from_slice(&bytes[used..]);
        let memory = {
            let side = self.side(role);
            // The number of a client's streams is limited by its peer.
            assert!(role == Role::Client || side.streams() <= STREAMS as usize, "{} streams", side.streams());
            side.capacity() - side.out.capacity()
        };
        assert!(memory <= MOST_MEMORY, "{memory} bytes of memory");
        outcome
    }

    fn take(&mut self, role: Role, rest: &mut &[u8]) -> Result<(), SimulatedEnd> {
        loop {
            let (mut request, mut response) = (RequestHead::default(), ResponseHead::default());
            let (mut lent, side, at) = match role {
                Role::Server => (HeadTarget::Request(&mut request), &mut self.server, 1),
                Role::Client => (HeadTarget::Response(&mut response), &mut self.client, 0),
            };
            let Some(event) = side.next(rest, &mut lent).map_err(SimulatedEnd)? else { return Ok(()) };
            let of = |exchange| if role == Role::Server { request_of(exchange) } else { response_of(exchange) };
            match event {
                ConnectionEvent::Request { stream, ended, parsed } => {
                    side.set_key(stream, stream as usize);
                    let exchange = self.exchanges.entry(stream).or_default();
                    assert!(!self.is_legal || parsed.is_ok(), "{parsed:?}");
                    exchange.request.has_head = true;
                    exchange.request.has_ended |= ended;
                    if let Framing::Sized(length) = request.framing {
                        assert!(!self.is_legal || length as usize == exchange.request.length);
                    }
                }
                ConnectionEvent::Response { key, ended, parsed } => {
                    let exchange = self.exchanges.entry(key as u32).or_default();
                    assert!(!self.is_legal || parsed.is_ok(), "{parsed:?}");
                    exchange.response.has_ended |= ended;
                }
                ConnectionEvent::Data { key, bytes, ended } => {
                    *self.held[at].entry(key as u32).or_default() += bytes.len();
                    let message = of(self.exchanges.entry(key as u32).or_default());
                    if self.is_legal {
                        assert_eq!(bytes, content(key as u32, message.received, bytes.len()));
                    }
                    message.received += bytes.len();
                    message.has_ended |= ended;
                }
                ConnectionEvent::Trailers { key, trailers } => {
                    let message = of(self.exchanges.entry(key as u32).or_default());
                    assert!(!self.is_legal || message.trailers && trailers.fields().count() == 1);
                    message.has_ended = true;
                }
                ConnectionEvent::Reset { key, .. } | ConnectionEvent::Failed { key, .. } => {
                    self.exchanges.entry(key as u32).or_default().is_reset = true;
                }
                ConnectionEvent::Malformed { stream } => {
                    assert!(!self.is_legal, "malformed");
                    self.exchanges.entry(stream).or_default().is_reset = true;
                }
                ConnectionEvent::GoAway { last, .. } => {
                    // §6.8: streams above `last` are not processed.
                    self.is_leaving = true;
                    for (&id, exchange) in self.exchanges.range_mut(last.saturating_add(1)..) {
                        exchange.is_reset = true;
                        side.reset(id, ErrorCode::CANCEL);
                    }
                }
                ConnectionEvent::WindowOpened { .. } => {}
            }
        }
    }

    /// Runs all open exchanges to their end.
    fn finish(&mut self) {
        for _ in 0..20_000 {
            if self.client.streams() + self.server.streams() == 0 && self.to_client.len() + self.to_server.len() == 0 {
                break;
            }
            self.respond();
            self.send(Role::Client);
            self.send(Role::Server);
            self.release();
            for role in [Role::Server, Role::Client] {
                self.deliver(role).expect("all of it was legal");
            }
        }
        for (id, SimulatedExchange { request, response, is_reset }) in &self.exchanges {
            let is_whole = |message: &SimulatedMessage| message.has_ended && message.received == message.length;
            assert!(*is_reset || is_whole(request) && is_whole(response), "stream {id}: {request:?} {response:?}");
        }
        assert_eq!((self.client.streams(), self.server.streams()), (0, 0));
        while self.held.iter().any(|held| !held.is_empty()) {
            self.release();
        }
        assert_eq!((self.client.receive.held(), self.server.receive.held()), (0, 0), "windows are open again");
    }
}

fn request_of(exchange: &mut SimulatedExchange) -> &mut SimulatedMessage {
    &mut exchange.request
}

fn response_of(exchange: &mut SimulatedExchange) -> &mut SimulatedMessage {
    &mut exchange.response
}

fn run(seed: u64) {
    let is_legal = seed.is_multiple_of(2);
    let mut world = SimulatedWorld::new(seed, is_legal);
    for _ in 0..STEPS {
        if let Err(SimulatedEnd(code)) = world.step() {
            assert!(!is_legal, "what is legal ended with {}", code.name());
            return;
        }
    }
    if is_legal {
        world.finish();
    }
}

/// Runs 400 seeds, or as many as fit into `WEIR_SIMULATION_SECONDS`. A failure reports its seed; `WEIR_SIMULATION_SEED` runs one
/// seed alone.
#[test]
fn two_sides_from_seeds() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("WEIR_SIMULATION_SEED") {
        return run(seed);
    }
    let full = if std::env::var_os("WEIR_TEST_FULL").is_some() { 100_000 } else { 400 };
    let (until, begin) = match number("WEIR_SIMULATION_SECONDS") {
        Some(seconds) => (Some(Instant::now() + Duration::from_secs(seconds)), 1_000_000),
        None => (None, 0),
    };
    for seed in begin.. {
        if until.map_or(seed == full, |until| Instant::now() >= until) {
            println!("{} seeds", seed - begin);
            return;
        }
        let outcome = std::panic::catch_unwind(|| run(seed));
        if let Err(panic) = outcome {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
