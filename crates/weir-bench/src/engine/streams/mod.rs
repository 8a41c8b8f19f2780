//! Load with all protocols other than HTTP/1.1: one task per connection, on one current-thread runtime per generator thread.

mod dial;
mod echo;
mod http2;
mod http3;
mod idle;
mod multiplexed;
mod publish;
mod slots;
mod sse;
mod ticker;
mod websocket;
mod websub;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use tokio::runtime;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use super::clock::now_ns;
use super::flow::{JudgedAnswer, LoadFlow};
use super::job::{Chooser, Job, RequestBudget};
use super::plan::{LoadPlan, Pacing, Protocol, Think};
use super::prepare::PreparedLoad;
use super::recorder::{Cause, MeasuredWindow, Recorder};
use super::result::Connections;
use crate::engine::pacing::client_start;

/// The most connections being opened at the same time, so that a listener's backlog does not overflow.
const CONNECT_BURST: usize = 64;
/// The delay before a client retries after a failed connection.
const RETRY: Duration = Duration::from_millis(100);
/// How often the run checks whether it has been stopped.
const LOOK_NS: u64 = 100_000_000;

/// Runs one thread's part of a plan.
pub(super) fn run(job: Job) {
    let runtime =
        runtime::Builder::new_current_thread().enable_all().build().expect("a runtime needs only descriptors");
    LocalSet::new().block_on(&runtime, async {
        match job.plan().protocol {
            Protocol::Http1 => unreachable!("HTTP/1.1 has an engine of its own"),
            Protocol::Http2 { streams } => multiplexed::run::<http2::DialedHttp2>(job, streams).await,
            Protocol::Http3 { streams } => multiplexed::run::<http3::DialedHttp3>(job, streams).await,
            Protocol::WebSocket { message_bytes, check } => websocket::messages(job, message_bytes, check).await,
            Protocol::WebSocketConnect => websocket::storm(job).await,
            Protocol::Sse => sse::run(job).await,
            Protocol::Idle { first_request } => idle::run(job, first_request).await,
            Protocol::Tcp { message_bytes } => echo::run::<dial::DialedStream>(job, message_bytes).await,
            Protocol::Udp { message_bytes } => echo::run::<tokio::net::UdpSocket>(job, message_bytes).await,
            Protocol::WebSub { ref topic, ref secret, payload_bytes } => {
                let (topic, secret) = (topic.clone(), secret.clone());
                websub::run(job, topic, secret, payload_bytes).await;
            }
        }
    });
}

/// The state that the tasks of a thread share.
pub(super) struct StreamsState {
    pub prepared: std::sync::Arc<PreparedLoad>,
    pub window: MeasuredWindow,
    /// Clients of this thread, numbered over the whole run.
    pub clients: Range<usize>,
    pub thread: usize,
    tickets: RequestBudget,
    chooser: RefCell<Chooser>,
    recorder: RefCell<Recorder>,
    lobby: Rc<PreparedStreams>,
    in_flight: Cell<u64>,
    over: watch::Sender<bool>,
}

/// The state from before the clock starts: the connections.
pub(super) struct PreparedStreams {
    pub prepared: std::sync::Arc<PreparedLoad>,
    pub connections: RefCell<Connections>,
    open: Cell<u64>,
    pub dialing: Semaphore,
    /// How requests are made of data and depend on answers.
    pub flow: Option<RefCell<LoadFlow>>,
}

impl PreparedStreams {
    fn new(prepared: std::sync::Arc<PreparedLoad>) -> Rc<Self> {
        Self::with_flow(prepared, None)
    }

    /// For protocols whose requests may be made of data: those of HTTP.
    fn of_requests(job: &Job, slots_per_client: usize) -> Rc<Self> {
        let (clients, prepared) = (&job.clients, &job.prepared);
        let flow = |plan| LoadFlow::new(plan, job.thread, clients.start, clients.len(), slots_per_client);
        Self::with_flow(prepared.clone(), prepared.flow.clone().map(flow).map(RefCell::new))
    }

    fn with_flow(prepared: std::sync::Arc<PreparedLoad>, flow: Option<RefCell<LoadFlow>>) -> Rc<Self> {
        Rc::new(Self {
            prepared,
            connections: RefCell::default(),
            open: Cell::new(0),
            dialing: Semaphore::new(CONNECT_BURST),
            flow,
        })
    }

    /// Counts a connection that is ready, and whose opening began at `since`.
    pub(super) fn opened(&self, since: u64) {
        self.open.set(self.open.get() + 1);
        let mut connections = self.connections.borrow_mut();
        connections.opened += 1;
        connections.open_max = connections.open_max.max(self.open.get());
        connections.connect_time.record(now_ns() - since);
    }

    /// Notes how many connections are open when each has been tried once, before the clock starts.
    pub(super) fn all_tried(&self) {
        self.connections.borrow_mut().open_at_start = Some(self.open.get());
    }

    pub(super) fn refused(&self, cause: Cause) {
        self.connections.borrow_mut().failed.count(cause);
    }

    pub(super) fn closed(&self) {
        self.open.set(self.open.get() - 1);
    }
}

/// An exchange in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamExchange {
    pub request: usize,
    pub due: u64,
    pub started: u64,
}

/// The result of an exchange.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Answered {
    pub status: Option<u16>,
    pub sent: u64,
    pub received: u64,
    /// When the first byte came, and how the answer is judged, if the plan has a flow.
    pub first_byte: Option<u64>,
    pub judged: Option<JudgedAnswer>,
    /// The messages of a call of gRPC.
    pub messages: u64,
    /// When the first message of a stream was complete.
    pub first_message: Option<u64>,
}

impl StreamsState {
    /// Waits until all threads are ready; `None` if the run was cancelled meanwhile.
    pub(super) fn start(job: Job, lobby: Rc<PreparedStreams>) -> Option<Rc<Self>> {
        let Job { thread, clients, prepared, tickets, gate } = job;
        let chooser = RefCell::new(Chooser::new(&prepared.plan, thread, clients.len()));
        let (recorder, window) = gate.pass()?;
        if let Some(flow) = &lobby.flow {
            flow.borrow_mut().measure_from(window.measure);
        }
        let shared = Rc::new(Self {
            prepared,
            window,
            clients,
            thread,
            tickets,
            chooser,
            recorder: RefCell::new(recorder),
            lobby,
            in_flight: Cell::new(0),
            over: watch::channel(false).0,
        });
        spawn_local(shared.clone().keep_time());
        Some(shared)
    }

    pub(super) fn plan(&self) -> &LoadPlan {
        &self.prepared.plan
    }

    /// Whether the plan has a request that publishes the events which the connections receive.
    pub(super) fn publishes(&self) -> bool {
        self.prepared.requests.len() > publish::EVENTS
    }

    pub(super) fn lobby(&self) -> &Rc<PreparedStreams> {
        &self.lobby
    }

    /// Whether no further request is due.
    pub(super) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Returns when no further request is due.
    pub(super) async fn ended(&self) {
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }

    pub(super) fn end(&self) {
        if !self.over.send_replace(true) {
            self.recorder.borrow_mut().end(now_ns());
        }
    }

    /// Like [`StreamsState::due`], for a slot that belongs to a client; `None` also if no data is left for it.
    fn due_in(&self, slot: usize, client: usize, due: u64) -> Option<usize> {
        self.due_if(client, due, |request| self.draw(slot, request, due))
    }

    /// Draws the values of a request; false if no data is left.
    fn draw(&self, slot: usize, request: usize, due: u64) -> bool {
        self.lobby.flow.as_ref().is_none_or(|flow| flow.borrow_mut().draw(slot, request, due))
    }

    /// The pause after a request, if it has its own.
    fn think(&self, request: usize) -> Option<Think> {
        self.lobby.flow.as_ref().and_then(|flow| flow.borrow().think(request))
    }

    /// Lets a client begin with its first request again, if an exchange had no value for the others.
    fn restart_without_values(&self, slot: usize, client: usize, request: usize, outcome: &Result<Answered, Cause>) {
        let Some(flow) = &self.lobby.flow else { return };
        let ends_pass = match outcome {
            Ok(answered) => answered.judged.is_some_and(|judged| judged.ends_pass),
            Err(_) => flow.borrow_mut().failed(slot, request),
        };
        if ends_pass {
            self.chooser.borrow_mut().restart(client);
        }
    }

    /// Counts a request that becomes due; `None` if the run ends before it. `client` is one of this thread's, from 0.
    pub(super) fn due(&self, client: usize, due: u64) -> Option<usize> {
        self.due_if(client, due, |_| true)
    }

    fn due_if(&self, client: usize, due: u64, draw: impl FnOnce(usize) -> bool) -> Option<usize> {
        if self.is_over() || due >= self.window.end {
            return None;
        }
        let mut recorder = self.recorder.borrow_mut();
        if recorder.measures(due) && !self.tickets.take() {
            drop(recorder);
            self.end();
            return None;
        }
        let request = self.chooser.borrow_mut().next(client, self.prepared.requests.len());
        if !draw(request) {
            return None;
        }
        recorder.due(request, due);
        Some(request)
    }

    /// Whether the run was ended by its duration or a signal, rather than by its count.
    pub(super) fn is_cut(&self) -> bool {
        now_ns() >= self.window.end || self.tickets.stopped()
    }

    /// Counts a request that was due before the end and can no longer be sent.
    pub(super) fn miss(&self, due: u64) {
        let mut recorder = self.recorder.borrow_mut();
        if !recorder.measures(due) || self.tickets.take() {
            let request = self.chooser.borrow_mut().next(0, self.prepared.requests.len());
            recorder.due(request, due);
            recorder.missed(request, due);
        }
    }

    /// Counts an exchange that is sent now. `waited`: the target, not the generator, delayed it.
    pub(super) fn begin(&self, request: usize, due: u64, waited: bool) -> StreamExchange {
        let now = now_ns();
        self.begin_at(now, request, due, if waited { 0 } else { now.saturating_sub(due) })
    }

    /// Begins an exchange at `now`, with a `lag` in ns that the generator itself caused.
    fn begin_at(&self, now: u64, request: usize, due: u64, lag: u64) -> StreamExchange {
        self.recorder.borrow_mut().sent(request, due, lag);
        self.change_in_flight(1, now);
        StreamExchange { request, due, started: now }
    }

    pub(super) fn finish(&self, exchange: StreamExchange, outcome: Result<Answered, Cause>) {
        let now = now_ns();
        let StreamExchange { request, due, started } = exchange;
        let mut recorder = self.recorder.borrow_mut();
        match outcome {
            Ok(answered) => {
                recorder.completed(request, due, started, now);
                if let Some(status) = answered.status {
                    let judged = answered.judged;
                    let expected = judged
                        .map_or_else(|| self.prepared.requests[request].expects(status), |judged| judged.is_expected);
                    if judged.is_some_and(|judged| judged.failed_check) {
                        recorder.failed_check(request, due);
                    }
                    recorder.status(request, due, status, (!expected).then(|| now.saturating_sub(started)));
                }
                if let Some(at) = answered.first_byte {
                    recorder.first_byte(request, due, at.saturating_sub(started));
                }
                if answered.messages > 0 {
                    let first_after = answered.first_message.map(|at| at.saturating_sub(started));
                    recorder.messages(request, due, answered.messages, first_after);
                }
                recorder.bytes(request, due, answered.sent, answered.received);
            }
            Err(cause) => recorder.failed(request, due, cause),
        }
        drop(recorder);
        self.change_in_flight(-1, now);
    }

    /// Counts an event, which has no request of its own. `due` and `since` are the starting points of latency and service time.
    pub(super) fn arrived(&self, due: u64, since: u64, bytes: u64) {
        let mut recorder = self.recorder.borrow_mut();
        recorder.due(0, due);
        recorder.completed(0, due, since, now_ns());
        recorder.bytes(0, due, 0, bytes);
    }

    /// Counts an event that should have been received and was not.
    pub(super) fn lost(&self, cause: Cause) {
        let now = now_ns();
        let mut recorder = self.recorder.borrow_mut();
        recorder.due(0, now);
        recorder.failed(0, now, cause);
    }

    pub(super) fn record(&self) -> std::cell::RefMut<'_, Recorder> {
        self.recorder.borrow_mut()
    }

    /// Limits an answer to the plan's time-out.
    pub(super) async fn in_time<T>(&self, answer: impl Future<Output = Result<T, Cause>>) -> Result<T, Cause> {
        let limit = Duration::from_millis(self.plan().timeouts.response_ms);
        timeout(limit, answer).await.unwrap_or(Err(Cause::Timeout))
    }

    /// Limits the answer to a request to the plan's time-out. A call with a deadline has this time in addition, for all that is
    /// outside of the deadline, such as opening a connection.
    pub(super) async fn in_time_of<T>(
        &self,
        request: usize,
        answer: impl Future<Output = Result<T, Cause>>,
    ) -> Result<T, Cause> {
        let deadline = self.prepared.requests[request].call.as_ref().and_then(|call| call.deadline);
        let limit = Duration::from_millis(self.plan().timeouts.response_ms) + deadline.unwrap_or_default();
        timeout(limit, answer).await.unwrap_or(Err(Cause::Timeout))
    }

    /// When a client of this thread starts, on the monotonic clock.
    pub(super) fn client_start(&self, client: usize) -> u64 {
        let ramp_up_ms = match self.plan().pacing {
            Pacing::Closed { ramp_up_ms, .. } => ramp_up_ms,
            _ => 0,
        };
        self.window.start + client_start(self.clients.start + client, self.plan().connections, ramp_up_ms)
    }

    fn change_in_flight(&self, by: i64, now: u64) {
        let count = self.in_flight.get().saturating_add_signed(by);
        self.in_flight.set(count);
        self.recorder.borrow_mut().in_flight(count, now);
    }

    /// Ends intervals, and the run, at their times.
    async fn keep_time(self: Rc<Self>) {
        loop {
            let now = now_ns();
            let next = {
                let mut recorder = self.recorder.borrow_mut();
                recorder.roll(now);
                recorder.next_roll()
            };
            if now >= self.window.end || self.tickets.stopped() {
                self.end();
            }
            let end = if self.is_over() { u64::MAX } else { self.window.end };
            let until = next.min(end).min(now + LOOK_NS);
            sleep(Duration::from_nanos(until.saturating_sub(now)).max(Duration::from_millis(1))).await;
        }
    }

    /// Waits for the tasks, which end by themselves once the run is over, and passes on the counts.
    pub(super) async fn conclude(self: Rc<Self>, tasks: Vec<JoinHandle<()>>) {
        for task in tasks {
            if let Err(error) = task.await
                && let Ok(panic) = error.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
        }
        let now = now_ns();
        self.end();
        let mut connections = std::mem::take(&mut *self.lobby.connections.borrow_mut());
        connections.open_at_end = self.lobby.open.get();
        if let Some(flow) = &self.lobby.flow {
            self.recorder.borrow_mut().flow(flow.borrow_mut().take_tally());
        }
        self.recorder.borrow_mut().finish(now, connections);
    }
}

/// Sleeps until a time of the monotonic clock, with the millisecond precision of the runtime.
pub(super) async fn sleep_until(at: u64) {
    let left = at.saturating_sub(now_ns());
    if left > 0 {
        sleep(Duration::from_nanos(left)).await;
    }
}

/// Runs one task per client, all concurrently, before the clock starts.
pub(super) async fn all<T>(clients: Range<usize>, task: impl AsyncFn(usize) -> T) -> Vec<T> {
    futures_util::future::join_all(clients.map(|client| task(client))).await
}
