//! Slots for one exchange at a time, and the assignment of due requests to them, in a closed and in an open loop.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;

use super::ticker::Ticker;
use super::{Answered, RETRY, StreamExchange, StreamsState, sleep_until};
use crate::engine::clock::now_ns;
use crate::engine::pacing::{Arrivals, Pauses};
use crate::engine::plan::Pacing;
use crate::engine::recorder::Cause;

/// Performs one exchange; `slot` is numbered from 0 in this thread.
pub(super) trait Exchanges: 'static {
    async fn exchange(&self, slot: usize, exchange: StreamExchange) -> Result<Answered, Cause>;
}

/// The free slots, and the requests that wait for one.
struct SlotPool {
    free: VecDeque<usize>,
    /// The request, and when it was due.
    backlog: VecDeque<(usize, u64)>,
}

/// Runs `slots` slots, `per_client` of which belong to each client, until the run is over.
pub(super) fn run(
    shared: &Rc<StreamsState>,
    slots: usize,
    per_client: usize,
    exchanges: &Rc<impl Exchanges>,
) -> Vec<JoinHandle<()>> {
    let plan = shared.plan();
    match Arrivals::new(&plan.pacing, plan.seed, shared.thread, plan.threads) {
        Some(arrivals) => open(shared, slots, exchanges, arrivals),
        None => {
            let Pacing::Closed { think, .. } = plan.pacing else { unreachable!("the others have arrivals") };
            let pauses = Rc::new(RefCell::new(Pauses::new(think, plan.seed, shared.thread)));
            let slot =
                |slot| spawn_local(closed(shared.clone(), slot, slot / per_client, exchanges.clone(), pauses.clone()));
            (0..slots).map(slot).collect()
        }
    }
}

async fn closed(
    shared: Rc<StreamsState>,
    slot: usize,
    client: usize,
    exchanges: Rc<impl Exchanges>,
    pauses: Rc<RefCell<Pauses>>,
) {
    let mut due = shared.client_start(client);
    loop {
        tokio::select! {
            () = sleep_until(due) => {}
            () = shared.ended() => return,
        }
        let Some(request) = shared.due_in(slot, client, due) else { return };
        let exchange = shared.begin(request, due, false);
        let outcome = shared.in_time_of(request, exchanges.exchange(slot, exchange)).await;
        shared.finish(exchange, outcome);
        shared.restart_without_values(slot, client, request, &outcome);
        if let Err(Cause::Connect | Cause::ConnectTimeout | Cause::Tls | Cause::Local) = outcome {
            sleep(RETRY).await;
        }
        let think = shared.think(request);
        let pause = think.map_or_else(|| pauses.borrow_mut().draw(), |think| pauses.borrow_mut().draw_of(think));
        due = now_ns() + pause;
    }
}

fn open(
    shared: &Rc<StreamsState>,
    slots: usize,
    exchanges: &Rc<impl Exchanges>,
    arrivals: Arrivals,
) -> Vec<JoinHandle<()>> {
    let pool = Rc::new(RefCell::new(SlotPool { free: (0..slots).collect(), backlog: VecDeque::new() }));
    let mut inboxes = Vec::new();
    let mut tasks = Vec::new();
    for slot in 0..slots {
        let (inbox, orders) = mpsc::unbounded_channel();
        inboxes.push(inbox);
        tasks.push(spawn_local(work(shared.clone(), slot, exchanges.clone(), pool.clone(), orders)));
    }
    tasks.push(spawn_local(hand_out(shared.clone(), arrivals, pool, inboxes)));
    tasks
}

/// Assigns due requests to slots until the run is over; then each slot ends after its current exchange.
async fn hand_out(
    shared: Rc<StreamsState>,
    arrivals: Arrivals,
    pool: Rc<RefCell<SlotPool>>,
    inboxes: Vec<mpsc::UnboundedSender<(usize, u64)>>,
) {
    let cut = due(&shared, arrivals, |request, due| {
        let free = pool.borrow_mut().free.pop_front();
        match free {
            // Does not fail: the receivers exist until this function ends.
            Some(slot) => drop(inboxes[slot].send((request, due))),
            None => {
                shared.record().queued(request, due);
                pool.borrow_mut().backlog.push_back((request, due));
            }
        }
    })
    .await;
    if cut {
        for (request, due) in std::mem::take(&mut pool.borrow_mut().backlog) {
            shared.record().missed(request, due);
        }
    }
}

/// Calls `send` for each request as it becomes due. True if the run was ended by its duration or a signal: then
/// requests that still wait are never sent.
pub(super) async fn due(shared: &StreamsState, mut arrivals: Arrivals, mut send: impl FnMut(usize, u64)) -> bool {
    let ticker = Ticker::new().expect("the plan's check left room for a descriptor");
    let mut next = arrivals.next().map(|at| shared.window.start + at);
    while let Some(due) = next.filter(|due| *due < shared.window.end) {
        if now_ns() < due {
            tokio::select! {
                () = ticker.until(due, shared) => {}
                () = shared.ended() => break,
            }
        }
        let Some(request) = shared.due(0, due) else { break };
        send(request, due);
        next = arrivals.next().map(|at| shared.window.start + at);
    }
    if !shared.is_over() && shared.window.end == u64::MAX {
        // A finite schedule ends a run that has no duration.
        shared.end();
    }
    if shared.is_over() && !shared.is_cut() {
        return false;
    }
    shared.ended().await;
    // Requests that became due and were not sent in time are missed, regardless of the cause.
    let end = now_ns().min(shared.window.end);
    while let Some(due) = next.filter(|due| *due < end) {
        shared.miss(due);
        next = arrivals.next().map(|at| shared.window.start + at);
    }
    true
}

async fn work(
    shared: Rc<StreamsState>,
    slot: usize,
    exchanges: Rc<impl Exchanges>,
    pool: Rc<RefCell<SlotPool>>,
    mut orders: mpsc::UnboundedReceiver<(usize, u64)>,
) {
    while let Some((request, due)) = orders.recv().await {
        let mut order = Some((request, due, false));
        while let Some((request, due, waited)) = order {
            // An open loop always has data: the plan's check accepts no file with an end.
            shared.draw(slot, request, due);
            let exchange = shared.begin(request, due, waited);
            let outcome = shared.in_time_of(request, exchanges.exchange(slot, exchange)).await;
            shared.finish(exchange, outcome);
            let mut pool = pool.borrow_mut();
            order = pool.backlog.pop_front().map(|(request, due)| (request, due, true));
            if order.is_none() {
                pool.free.push_back(slot);
            }
        }
    }
}
