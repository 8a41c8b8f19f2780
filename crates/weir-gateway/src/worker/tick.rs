//! What a worker does at regular intervals.

use std::rc::Rc;
use std::time::Duration;

use weir_net::timer::TICK_NS;

use super::Worker;

/// How often idle upstream connections are looked through.
const SWEEP: Duration = Duration::from_secs(1);

/// Drives deadlines, and what is done now and then.
pub async fn tick(worker: Rc<Worker>) {
    let mut ticks = tokio::time::interval(Duration::from_nanos(TICK_NS));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut swept_ns = 0;
    loop {
        ticks.tick().await;
        let now_ns = worker.wake_up();
        worker.wheel.advance(now_ns);
        worker.pools.look_after_queues(now_ns);
        if let Some(log) = &worker.access_log {
            log.flush_if_due(now_ns);
        }
        if now_ns - swept_ns >= SWEEP.as_nanos() as u64 {
            swept_ns = now_ns;
            worker.current().keep_none_of_those_out(&worker);
            worker.pools.sweep(&worker);
        }
    }
}
