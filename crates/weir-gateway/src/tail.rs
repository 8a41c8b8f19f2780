//! Shows exchanges as they end to readers that watch a running node (`weir tail`, `weir trace`).
//!
//! Without a reader, an exchange costs the read of one counter. With readers, the worker formats a line for each exchange
//! that is wanted; a line that a reader has no room for is dropped and counted. No request waits for a reader.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, PoisonError, RwLock, RwLockWriteGuard};

use tokio::sync::mpsc;
use weir_plugin::template::{Template, TemplateStyle};
use weir_plugin::{Exchange, Expression, LoggedExchange};
use weir_proto::RequestHead;

/// The most lines that wait for one reader.
const MOST_LINES: usize = 1024;

/// The field that names a trace. A request with this field is traced if a reader has opened a tail for that name.
pub const TRACE_FIELD: &str = "X-Weir-Trace";

/// The template of a line, without its end.
const LINE: &str = concat!(
    r#"{"time":"$time_iso8601","request_id":"$request_id","client":"$remote_addr","consumer":"$consumer_name","#,
    r#""method":"$request_method","scheme":"$scheme","host":"$host","uri":"$request_uri","protocol":"$server_protocol","#,
    r#""status":$status,"request_time":${request_time ?? 0},"bytes_received":$request_length,"bytes_sent":$bytes_sent,"#,
    r#""route_id":"$route_id","service_id":"$service_id","refused_by":"$refused_by","error_cause":"$error_cause","#,
    r#""upstream_addr":"$upstream_addr","upstream_uri":"$upstream_uri","upstream_status":"$upstream_status","#,
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
    lines: mpsc::Sender<Vec<u8>>,
    skipped: AtomicU64,
}

/// Receives lines about exchanges, as JSON objects, until it is dropped.
pub struct Tail {
    state: Arc<TailState>,
    pub lines: mpsc::Receiver<Vec<u8>>,
}

impl Tail {
    pub fn open(filter: TailFilter) -> Tail {
        let (sender, lines) = mpsc::channel(MOST_LINES);
        let state = Arc::new(TailState { filter, lines: sender, skipped: AtomicU64::new(0) });
        let mut tails = tails();
        tails.push(Arc::clone(&state));
        OPEN.store(tails.len(), Relaxed);
        Tail { state, lines }
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
    static TEMPLATE: LazyLock<Template> = LazyLock::new(|| Template::compile(LINE));
    let tails = TAILS.read().unwrap_or_else(PoisonError::into_inner);
    let mut line = Vec::new();
    for tail in tails.iter().filter(|tail| tail.wants(exchange)) {
        if line.is_empty() {
            TEMPLATE.render_as(TemplateStyle::JSON, &LoggedExchange(exchange.shown()), &mut line);
            write_plugin_turns(exchange, &mut line);
            line.extend_from_slice(b"}\n");
        }
        tail.send(&line);
    }
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

    fn send(&self, line: &[u8]) {
        let skipped = self.skipped.swap(0, Relaxed);
        let line = match skipped {
            0 => line.to_vec(),
            count => [format!("{{\"skipped\":{count}}}\n").as_bytes(), line].concat(),
        };
        if self.lines.try_send(line).is_err() {
            self.skipped.fetch_add(skipped + 1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

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
        let line = tail.lines.try_recv().expect("a line");
        let text = String::from_utf8(line).expect("UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    #[test]
    fn those_that_are_wanted_are_shown() {
        let mut one = tail(231);
        assert!(is_open());
        show(&exchange(232));
        show(&exchange(231));
        assert_eq!(next(&mut one)[0]["status"], 231);
        assert!(one.lines.try_recv().is_err());
    }

    #[test]
    fn tail_counts_lines_that_were_not_read() {
        let mut slow = tail(233);
        for _ in 0..MOST_LINES + 5 {
            show(&exchange(233));
        }
        next(&mut slow);
        show(&exchange(233));
        for _ in 1..MOST_LINES {
            assert_eq!(next(&mut slow).len(), 1);
        }
        let last = next(&mut slow);
        assert_eq!((last[0]["skipped"].as_u64(), last[1]["status"].as_u64()), (Some(5), Some(233)));
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
