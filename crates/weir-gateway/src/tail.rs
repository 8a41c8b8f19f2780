//! Shows exchanges as they end to readers that watch a running node (`weir tail`, `weir trace`).
//!
//! Without a reader, an exchange costs the read of one counter. With readers, the worker formats a line for each exchange
//! that is wanted, once for all readers; a line that a reader has no room for is dropped and counted. No request waits for a reader.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, PoisonError, RwLock, RwLockWriteGuard};
use std::task::{Context, Poll};

use tokio::sync::mpsc;
use weir_plugin::template::{Template, TemplateStyle};
use weir_plugin::{Exchange, Expression, LoggedExchange};
use weir_proto::RequestHead;

/// The most lines that wait for one reader.
const MOST_LINES: usize = 1024;
/// The most bytes that wait for one reader.
pub const MOST_READER_BYTES: usize = 512 << 10;
/// The most bytes that wait for all readers, a line that several readers share counted for each.
pub const MOST_BYTES: usize = 4 << 20;

/// The field that names a trace. A request with this field is traced if a reader has opened a tail for that name.
pub const TRACE_FIELD: &str = "X-Weir-Trace";

/// The template of a line, without its end.
const LINE: &str = concat!(
    r#"{"time":"$time_iso8601","request_id":"$request_id","client":"$remote_addr","consumer":"$consumer_name","#,
    r#""method":"$request_method","scheme":"$scheme","host":"$host","uri":"$request_uri","protocol":"$server_protocol","#,
    r#""status":$status,"request_time":${request_time ?? 0},"bytes_received":$request_length,"bytes_sent":$bytes_sent,"#,
    r#""route_id":"$route_id","service_id":"$service_id","refused_by":"$refused_by","error_cause":"$error_cause","#,
    r#""upstream_addr":"$upstream_addr","upstream_uri":"$upstream_uri","upstream_status":"$upstream_status","upstream_error":"$upstream_error","#,
    r#""upstream_queue_time":"$upstream_queue_time","upstream_start_time":"$upstream_start_time","#,
    r#""upstream_connect_time":"$upstream_connect_time","upstream_header_time":"$upstream_header_time","#,
    r#""upstream_response_time":"$upstream_response_time""#
);

static OPEN: AtomicUsize = AtomicUsize::new(0);
static TAILS: RwLock<Vec<Arc<TailState>>> = RwLock::new(Vec::new());

/// Which exchanges a reader wants.
#[derive(Debug)]
pub enum TailFilter {
    All,
    /// Those for which the expression holds.
    Condition(Expression),
    /// Those whose request has this value in [`TRACE_FIELD`].
    Trace(Box<str>),
}

struct TailState {
    filter: TailFilter,
    lines: mpsc::Sender<TailLine>,
    waiting_bytes: AtomicUsize,
    skipped: AtomicU64,
    /// The bytes of the last line that there was no room for; 0 if the last one was sent. Before there is room for as many, no line is
    /// formatted for this reader.
    needed_bytes: AtomicUsize,
}

/// A line with its end, shared by the readers.
pub type TailLine = Arc<[u8]>;

/// Receives lines about exchanges, as JSON objects, until it is dropped.
pub struct Tail {
    state: Arc<TailState>,
    lines: mpsc::Receiver<TailLine>,
}

impl Tail {
    pub fn open(filter: TailFilter) -> Tail {
        let (sender, lines) = mpsc::channel(MOST_LINES);
        let state = Arc::new(TailState {
            filter,
            lines: sender,
            waiting_bytes: AtomicUsize::new(0),
            skipped: AtomicU64::new(0),
            needed_bytes: AtomicUsize::new(0),
        });
        let mut tails = tails();
        tails.push(Arc::clone(&state));
        OPEN.store(tails.len(), Relaxed);
        Tail { state, lines }
    }

    /// The next line; `None` if there will be no more.
    pub fn poll_line(&mut self, context: &mut Context<'_>) -> Poll<Option<TailLine>> {
        let line = self.lines.poll_recv(context);
        if let Poll::Ready(Some(line)) = &line {
            self.state.waiting_bytes.fetch_sub(line.len(), Relaxed);
        }
        line
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let mut tails = tails();
        tails.retain(|tail| !Arc::ptr_eq(tail, &self.state));
        OPEN.store(tails.len(), Relaxed);
    }
}

fn tails() -> RwLockWriteGuard<'static, Vec<Arc<TailState>>> {
    TAILS.write().unwrap_or_else(PoisonError::into_inner)
}

/// The number of readers.
pub fn count() -> usize {
    OPEN.load(Relaxed)
}

/// Whether there is a reader.
#[inline]
pub fn is_open() -> bool {
    OPEN.load(Relaxed) > 0
}

/// Whether a reader waits for the trace of this request.
#[cold]
pub fn is_traced(request: &RequestHead) -> bool {
    let Some(name) = request.head.value(TRACE_FIELD.as_bytes()) else { return false };
    let tails = TAILS.read().unwrap_or_else(PoisonError::into_inner);
    tails.iter().any(|tail| matches!(&tail.filter, TailFilter::Trace(wanted) if wanted.as_bytes() == name))
}

/// Sends an exchange that has ended to the readers that want it.
#[cold]
pub fn show(exchange: &Exchange) {
    show_to(&TAILS.read().unwrap_or_else(PoisonError::into_inner), exchange);
}

/// Returns whether a line was formatted, which is done only if a reader has room for it.
fn show_to(tails: &[Arc<TailState>], exchange: &Exchange) -> bool {
    static TEMPLATE: LazyLock<Template> = LazyLock::new(|| Template::compile(LINE));
    let mut line = None;
    for tail in tails.iter().filter(|tail| tail.wants(exchange)) {
        let waiting: usize = tails.iter().map(|tail| tail.waiting_bytes.load(Relaxed)).sum();
        let room = MOST_BYTES.saturating_sub(waiting);
        if !tail.may_have_room(room) {
            tail.skipped.fetch_add(1, Relaxed);
            continue;
        }
        let line = line.get_or_insert_with(|| {
            let mut line = Vec::new();
            TEMPLATE.render_as(TemplateStyle::JSON, &LoggedExchange(exchange.shown()), &mut line);
            write_plugin_turns(exchange, &mut line);
            line.extend_from_slice(b"}\n");
            TailLine::from(line)
        });
        tail.send(line, room);
    }
    line.is_some()
}

fn write_plugin_turns(exchange: &Exchange, line: &mut Vec<u8>) {
    let Some(turns) = exchange.turns() else { return };
    let turn = |turn: &weir_plugin::PluginTurn| {
        format!(r#"{{"name":"{}","phase":"{}","us":{}}}"#, turn.plugin, turn.phase, turn.ns as f64 / 1e3)
    };
    let turns: Vec<String> = turns.iter().map(turn).collect();
    line.extend_from_slice(format!(r#","plugins":[{}]"#, turns.join(",")).as_bytes());
}

impl TailState {
    fn wants(&self, exchange: &Exchange) -> bool {
        match &self.filter {
            TailFilter::All => true,
            TailFilter::Condition(condition) => condition.holds(exchange),
            TailFilter::Trace(name) => exchange.request.head.original(TRACE_FIELD.as_bytes()) == Some(name.as_bytes()),
        }
    }

    /// Whether a line is worth to be formatted for this reader: as large a one as the last that it had no room for would fit.
    fn may_have_room(&self, room: usize) -> bool {
        let needed = self.needed_bytes.load(Relaxed).max(1);
        let own = MOST_READER_BYTES.saturating_sub(self.waiting_bytes.load(Relaxed));
        self.lines.capacity() > 0 && needed <= room.min(own)
    }

    /// Sends a line, before it the number of those that were skipped. Skips it if there is no room for it.
    fn send(&self, line: &TailLine, room: usize) {
        let skipped = self.skipped.swap(0, Relaxed);
        if skipped > 0 && !self.try_send(format!("{{\"skipped\":{skipped}}}\n").into_bytes().into(), room) {
            self.skipped.fetch_add(skipped + 1, Relaxed);
        } else if !self.try_send(Arc::clone(line), room) {
            self.skipped.fetch_add(1, Relaxed);
        }
    }

    fn try_send(&self, line: TailLine, room: usize) -> bool {
        let bytes = line.len();
        // Counted first, so that the reader never subtracts what is not counted yet.
        let waiting = self.waiting_bytes.fetch_add(bytes, Relaxed);
        let is_sent = bytes <= room && waiting + bytes <= MOST_READER_BYTES && self.lines.try_send(line).is_ok();
        if !is_sent {
            self.waiting_bytes.fetch_sub(bytes, Relaxed);
        }
        // A line that never fits must not keep the reader from shorter ones.
        self.needed_bytes.store(if is_sent { 0 } else { bytes.min(MOST_READER_BYTES) }, Relaxed);
        is_sent
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use weir_proto::h1::{Limits, parse_request};

    use super::*;

    fn exchange(status: u16) -> Exchange {
        let mut exchange = Exchange::default();
        exchange.response.set_status(status);
        exchange
    }

    /// Other tests of this process show exchanges too, so each test uses a status of its own.
    fn tail(status: u16) -> Tail {
        let condition = Expression::compile(&json!([["status", "==", status]])).expect("valid");
        Tail::open(TailFilter::Condition(condition))
    }

    fn next(tail: &mut Tail) -> Vec<Value> {
        let line = try_next(tail).expect("a line");
        let text = String::from_utf8(line.to_vec()).expect("UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    fn try_next(tail: &mut Tail) -> Option<TailLine> {
        match tail.poll_line(&mut Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(line) => line,
            Poll::Pending => None,
        }
    }

    #[test]
    fn those_that_are_wanted_are_shown() {
        let mut one = tail(231);
        assert!(is_open());
        show(&exchange(232));
        show(&exchange(231));
        assert_eq!(next(&mut one)[0]["status"], 231);
        assert!(try_next(&mut one).is_none());
    }

    #[test]
    fn tail_counts_lines_that_were_not_read() {
        let mut slow = tail(233);
        for _ in 0..MOST_LINES + 5 {
            show(&exchange(233));
        }
        let mut kept = 0;
        while try_next(&mut slow).is_some() {
            kept += 1;
        }
        assert!((1..=MOST_LINES).contains(&kept), "{kept}");
        show(&exchange(233));
        assert_eq!(next(&mut slow)[0]["skipped"].as_u64(), Some((MOST_LINES + 5 - kept) as u64));
        assert_eq!(next(&mut slow)[0]["status"], 233);
    }

    #[test]
    fn u05_lines_are_shared_and_bounded_in_bytes() {
        let mut long = exchange(235);
        let head = format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", "a".repeat(8_000));
        parse_request(head.as_bytes(), &Limits::default(), &mut long.request).expect("valid").expect("complete");
        let mut readers: Vec<Tail> = (0..12).map(|_| tail(235)).collect();
        show(&long);
        let lines: Vec<TailLine> = readers.iter_mut().map(|reader| try_next(reader).expect("a line")).collect();
        assert!(lines.iter().all(|line| Arc::ptr_eq(line, &lines[0])), "encoded once");

        for _ in 0..MOST_LINES {
            show(&long);
        }
        let waiting: Vec<usize> = readers.iter().map(|reader| reader.state.waiting_bytes.load(Relaxed)).collect();
        assert!(waiting.iter().all(|bytes| *bytes <= MOST_READER_BYTES), "{waiting:?}");
        let all: usize = waiting.iter().sum();
        assert!((MOST_BYTES / 2..=MOST_BYTES).contains(&all), "{all}");
        for reader in &mut readers {
            while try_next(reader).is_some() {}
            assert_eq!(reader.state.waiting_bytes.load(Relaxed), 0);
        }
    }

    #[test]
    fn u05_no_line_is_formatted_that_no_reader_has_room_for() {
        let mut long = exchange(236);
        let head = format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", "a".repeat(8_000));
        parse_request(head.as_bytes(), &Limits::default(), &mut long.request).expect("valid").expect("complete");
        let mut reader = tail(236);
        let only = [Arc::clone(&reader.state)];
        let formatted = |count: usize| (0..count).filter(|_| show_to(&only, &long)).count();
        let fitting = formatted(MOST_LINES);
        assert!((1..MOST_READER_BYTES / 8_000 + 2).contains(&fitting), "{fitting}");
        assert_eq!(formatted(100), 0, "it has no room");
        while try_next(&mut reader).is_some() {}
        assert_eq!(formatted(1), 1, "it has room again");
    }

    #[test]
    fn a_traced_exchange_shows_its_plugins() {
        let mut one = tail(234);
        let mut traced = exchange(234);
        traced.trace();
        traced.note_turn(weir_plugin::PluginTurn { plugin: "key-auth", phase: "request", ns: 1500 });
        show(&traced);
        assert_eq!(next(&mut one)[0]["plugins"], json!([{"name": "key-auth", "phase": "request", "us": 1.5}]));
    }
}
