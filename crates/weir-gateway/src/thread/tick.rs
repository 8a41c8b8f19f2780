//! The regular work of a worker.

use std::rc::Rc;
use std::time::Duration;

use weir_net::timer::TICK_NS;

use crate::worker::Worker;

/// Advances the timers, and does the regular work, once per tick.
pub(super) async fn tick(worker: Rc<Worker>) {
    let mut ticks = tokio::time::interval(Duration::from_nanos(TICK_NS));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let due = ticks.tick().await;
        worker.metrics.tick_delay.record(due.elapsed());
        let now_ns = worker.wake_up();
        worker.wheel.advance(now_ns);
        worker.stop_drained(now_ns);
        worker.pools.maintain(&worker);
        worker.current().retired().free_some(&worker.pools);
        if let Some(log) = &worker.access_log {
            log.flush_if_due(now_ns);
        }
    }
}
