//! The end of a stream: metrics are counted, the log record is written.

use std::rc::Rc;

use weir_plugin::{EndedBy, Stop};

use crate::context::WorkerContext;
use crate::context::served_exchange::ServedExchange;
use crate::plugins::chain::Plugins;
use crate::tail;
use crate::worker::snapshot::WorkerSnapshot;

/// The status of a stream that has ended by itself; the same as in nginx.
const COMPLETE: u16 = 200;

/// Ends the exchange of a stream.
pub(super) fn finish(
    worker: &Rc<WorkerContext>,
    current: &WorkerSnapshot,
    mut exchange: Box<ServedExchange>,
    end: Result<(), Stop>,
) {
    record(worker, current, &mut exchange, end);
    worker.metrics.streams_closed.increment();
    worker.buffers.recycle_exchange(exchange);
}

fn record(worker: &Rc<WorkerContext>, current: &WorkerSnapshot, exchange: &mut ServedExchange, end: Result<(), Stop>) {
    let (now_ns, metrics) = (worker.now_ns(), &worker.metrics);
    exchange.ended_ns = now_ns;
    exchange.response.status = match end {
        Ok(()) => COMPLETE,
        Err(Stop::Answered) => exchange.response.status, // a plugin has chosen it
        Err(stop) => stop.ending().status,
    };
    if let Err(stop) = end
        && stop.ending().blame != EndedBy::Policy
    {
        exchange.end_by(stop);
        metrics.stream_errors.increment(stop.ending().name);
    }
    if exchange.route.is_some() {
        let route = current.metrics_of(worker, exchange);
        route.streams_closed.increment();
        route.bytes_received.add(exchange.request_bytes);
        route.bytes_sent.add(exchange.response_bytes);
    }
    let plugins = Plugins::of(worker, current, exchange);
    plugins.mask(exchange);
    plugins.on_log(exchange);
    if let Some(log) = &worker.access_log {
        log.record_stream(exchange.shown(), now_ns);
    }
    if tail::is_open() {
        tail::show(exchange);
    }
}
