//! A snapshot as one worker uses it: with its own pools, its own rotation positions, and a reference count that no other
//! core writes to.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_plugin::{Exchange, RouteFacts, Routes};
use weir_telemetry::routes::{RouteCells, RouteMetrics, RouteSlot};
use weir_telemetry::upstreams::UpstreamCounters;

use super::Worker;
use crate::context::WorkerContext;
use crate::endpoint::balance::{Balancer, BalancerRandom, EndpointLoads, LatencyEstimate, RetryBudget, TriedEndpoints};
use crate::endpoint::concurrency::LimiterGroup;
use crate::endpoint::persistence::StickySessions;
use crate::endpoint::pool::{EndpointBuilder, EndpointPool, Pools, QueueSeats, SharedQueue};
use crate::endpoint::state::{Health, SharedState};
use crate::pieces::Pieces;
use crate::published::Published;
use crate::snapshot::{self, AllDownPolicy, Snapshot, WhenEndpointGone};

pub(crate) struct WorkerSnapshot {
    pub snapshot: Arc<Snapshot>,
    published: Arc<Published>,
    /// Has the same indices as [`Snapshot::upstreams`].
    upstreams: Pieces<Rc<WorkerUpstream>>,
    retired: Rc<RetiredParts>,
}

/// A worker's state of an upstream.
pub(crate) struct WorkerUpstream {
    pub endpoints: Vec<Rc<EndpointPool>>,
    /// Has the same indices as the endpoints.
    pub health: Arc<[Arc<Health>]>,
    balancer: Balancer,
    /// For exchanges that any endpoint of the upstream may serve; `None` if the policy assigns each to one endpoint.
    shared_queue: Option<Rc<SharedQueue>>,
    dice: BalancerRandom,
    pub sessions: Arc<StickySessions>,
    pub retries: RetryBudget,
    pub counters: Arc<UpstreamCounters>,
}

/// The parts of an upstream that stay when its settings change.
#[derive(Clone, Copy)]
struct LastingParts<'a> {
    /// The worker's state of the upstream with its earlier settings.
    before: Option<&'a WorkerUpstream>,
    /// Has the same indices as the endpoints.
    health: &'a Arc<[Arc<Health>]>,
    sessions: &'a Arc<StickySessions>,
    counters: &'a Arc<UpstreamCounters>,
}

/// How long a worker adopts a snapshot, or frees an old one, before other tasks on its thread run.
const SLICE: Duration = Duration::from_micros(250);

/// Upstreams with more endpoints are built in several slices, and their [`BalancePlan`] on another thread.
const LARGE: usize = 256;

/// Work that yields to the other tasks of the worker after each slice.
struct SlicedWork<'w> {
    worker: &'w WorkerContext,
    began: Instant,
}

impl<'w> SlicedWork<'w> {
    fn begin(worker: &'w WorkerContext) -> SlicedWork<'w> {
        SlicedWork { worker, began: Instant::now() }
    }

    /// Yields if the slice is over. Called where the work may be interrupted.
    async fn yield_if_slice_used(&mut self) {
        if self.began.elapsed() >= SLICE {
            self.end_slice();
            tokio::task::yield_now().await;
            self.began = Instant::now();
        }
    }

    fn end_slice(&self) {
        self.worker.metrics.adoption_slice.record(self.began.elapsed());
    }
}

/// Upstreams of snapshots that are no longer in use. They are freed piece by piece.
#[derive(Default)]
pub(crate) struct RetiredParts(RefCell<Vec<Pieces<Rc<WorkerUpstream>>>>);

impl RetiredParts {
    /// Frees some of them. Called with every tick.
    pub(crate) fn free_some(&self, pools: &Pools) {
        let began = Instant::now();
        while began.elapsed() < SLICE {
            let mut retired = self.0.borrow_mut();
            let Some(last) = retired.last_mut() else { return };
            match last.take_some() {
                None => drop(retired.pop()),
                // An upstream that the current snapshot uses as well has other references, and stays.
                Some(upstreams) => {
                    upstreams.filter_map(Rc::into_inner).for_each(|upstream| pools.release(upstream.endpoints))
                }
            }
        }
    }
}

impl Drop for WorkerSnapshot {
    /// Defers the freeing to [`RetiredParts::free_some`], so that the last exchange of a snapshot does not have to do it.
    fn drop(&mut self) {
        self.retired.0.borrow_mut().push(std::mem::take(&mut self.upstreams));
    }
}

impl WorkerSnapshot {
    /// The first snapshot of a worker.
    pub(crate) fn new(
        published: Arc<Published>,
        worker: usize,
        pools: &Rc<Pools>,
        shared: &SharedState,
    ) -> WorkerSnapshot {
        let of = |(number, settings): (usize, &Arc<snapshot::Upstream>)| {
            let kept = LastingParts::new(&published, number, worker, shared);
            (number, Rc::new(WorkerUpstream::new(settings, kept, pools)))
        };
        let mut upstreams = Pieces::default();
        published.snapshot.upstreams.iter().map(of).for_each(|(number, upstream)| upstreams.set(number, upstream));
        let snapshot = Arc::clone(&published.snapshot);
        WorkerSnapshot { snapshot, published, upstreams, retired: Rc::default() }
    }

    /// The next snapshot of the same worker. Upstreams that did not change keep what the worker has learnt about them; the
    /// others are built in slices, between which other tasks run.
    pub(crate) async fn successor(
        &self,
        published: Arc<Published>,
        worker: &Worker,
        shared: &SharedState,
    ) -> WorkerSnapshot {
        let snapshot = Arc::clone(&published.snapshot);
        let mut upstreams = self.upstreams.clone();
        let mut work = SlicedWork::begin(worker);
        for number in snapshot.upstreams.changes_from(&self.snapshot.upstreams) {
            match snapshot.upstreams.get(number) {
                Some(settings) => {
                    let before = self.state_of(number, &settings.name);
                    let kept = LastingParts { before, ..LastingParts::new(&published, number, worker.index(), shared) };
                    let upstream = match settings.endpoints.len() > LARGE {
                        true => WorkerUpstream::in_slices(settings, kept, &worker.pools, &mut work).await,
                        false => WorkerUpstream::new(settings, kept, &worker.pools),
                    };
                    upstreams.set(number, Rc::new(upstream));
                }
                None => drop(upstreams.remove(number)),
            }
            work.yield_if_slice_used().await;
        }
        work.end_slice();
        WorkerSnapshot { snapshot, published, upstreams, retired: Rc::clone(&self.retired) }
    }

    pub(crate) fn upstream(&self, number: usize) -> UpstreamView<'_> {
        UpstreamView { settings: &self.snapshot.upstreams[number], state: &self.upstreams[number] }
    }

    /// The state of the upstream with this number, if it has this name. A number may be of another upstream in a later snapshot.
    fn state_of(&self, number: usize, name: &str) -> Option<&WorkerUpstream> {
        let is_same = *self.snapshot.upstreams.get(number)?.name == *name;
        is_same.then(|| &*self.upstreams[number])
    }

    /// The upstreams of earlier snapshots that are not freed yet.
    pub(crate) fn retired(&self) -> &RetiredParts {
        &self.retired
    }

    /// The worker's metrics for the route of an exchange.
    pub(crate) fn metrics_of<'a>(&self, worker: &'a WorkerContext, exchange: &Exchange) -> &'a RouteMetrics {
        worker.metrics.route(self.slot_of(exchange))
    }

    /// The slot of these metrics.
    pub(crate) fn slot_of(&self, exchange: &Exchange) -> RouteSlot {
        exchange.route.as_ref().map(|route| self.published.slots[route.number()]).unwrap_or_default()
    }
}

impl<'a> LastingParts<'a> {
    fn new(published: &'a Published, number: usize, worker: usize, shared: &'a SharedState) -> LastingParts<'a> {
        LastingParts {
            before: None,
            health: &published.health[number],
            sessions: &shared.sessions,
            counters: &published.counters[number][worker],
        }
    }

    fn endpoints(self) -> &'a [Rc<EndpointPool>] {
        self.before.map_or(&[], |before| &before.endpoints)
    }

    /// The shared queue, if it has the same endpoints, under the same limits.
    fn shared_queue(self, endpoints: &[Rc<EndpointPool>]) -> Option<&'a Rc<SharedQueue>> {
        let before = self.endpoints();
        let is_same = |(before, now): (&Rc<EndpointPool>, &Rc<EndpointPool>)| before.has_limit_of(now);
        let are_same = before.len() == endpoints.len() && before.iter().zip(endpoints).all(is_same);
        self.before?.shared_queue.as_ref().filter(|_| are_same)
    }
}

/// How many endpoints may be skipped because another exchange is trying them, before one is taken anyway.
const MAX_PASSED_BY: usize = 4;

/// What has to be computed from all endpoints of an upstream at once, on any thread.
struct BalancePlan {
    balancer: Balancer,
    /// The seats of the shared queue; `None` if the policy assigns each exchange to one endpoint.
    seats: Option<QueueSeats>,
}

impl BalancePlan {
    fn new(upstream: &snapshot::Upstream, health: &[Arc<Health>]) -> BalancePlan {
        let balancer = Balancer::new(&upstream.balance, &upstream.endpoints);
        let seats = balancer.picks_by_weight_alone().then(|| QueueSeats::new(&upstream.endpoints, health));
        BalancePlan { balancer, seats }
    }
}

impl WorkerUpstream {
    fn new(upstream: &snapshot::Upstream, kept: LastingParts<'_>, pools: &Rc<Pools>) -> WorkerUpstream {
        let mut builder = EndpointBuilder::new(pools, upstream);
        kept.endpoints().iter().for_each(|before| builder.know(before));
        let endpoints = upstream.endpoints.iter().zip(kept.health.iter());
        let endpoints = endpoints.map(|(endpoint, health)| builder.build(endpoint, health)).collect();
        let plan = BalancePlan::new(upstream, kept.health);
        WorkerUpstream::of_parts(upstream, kept, (endpoints, builder.group()), plan)
    }

    /// The same for many endpoints, in slices.
    async fn in_slices(
        upstream: &Arc<snapshot::Upstream>,
        kept: LastingParts<'_>,
        pools: &Rc<Pools>,
        work: &mut SlicedWork<'_>,
    ) -> WorkerUpstream {
        let plan = {
            let (upstream, health) = (Arc::clone(upstream), Arc::clone(kept.health));
            tokio::task::spawn_blocking(move || BalancePlan::new(&upstream, &health))
        };
        let mut builder = EndpointBuilder::new(pools, upstream);
        for before in kept.endpoints() {
            builder.know(before);
            work.yield_if_slice_used().await;
        }
        let mut endpoints = Vec::with_capacity(upstream.endpoints.len());
        for (endpoint, health) in upstream.endpoints.iter().zip(kept.health.iter()) {
            endpoints.push(builder.build(endpoint, health));
            work.yield_if_slice_used().await;
        }
        work.end_slice();
        let plan = plan.await.expect("planning does not panic, and is not cancelled while the runtime lives");
        work.began = Instant::now();
        WorkerUpstream::of_parts(upstream, kept, (endpoints, builder.group()), plan)
    }

    fn of_parts(
        upstream: &snapshot::Upstream,
        kept: LastingParts<'_>,
        (endpoints, group): (Vec<Rc<EndpointPool>>, &Rc<LimiterGroup>),
        plan: BalancePlan,
    ) -> WorkerUpstream {
        let BalancePlan { balancer, seats } = plan;
        let shared_queue = seats.map(|seats| match kept.shared_queue(&endpoints) {
            Some(queue) => {
                queue.configure(seats, upstream.queue, upstream.slow_start, group);
                Rc::clone(queue)
            }
            None => Rc::new(SharedQueue::new(seats, upstream.queue, upstream.slow_start, group)),
        });
        WorkerUpstream {
            endpoints,
            health: Arc::clone(kept.health),
            balancer,
            shared_queue,
            dice: BalancerRandom::from_entropy(),
            sessions: Arc::clone(kept.sessions),
            retries: kept.before.map_or_else(RetryBudget::default, |before| before.retries.clone()),
            counters: Arc::clone(kept.counters),
        }
    }
}

/// An upstream as an exchange sees it: its settings in the snapshot, and the worker's state of it.
#[derive(Clone, Copy)]
pub(crate) struct UpstreamView<'a> {
    pub settings: &'a snapshot::Upstream,
    pub state: &'a WorkerUpstream,
}

impl<'a> UpstreamView<'a> {
    /// The queue in which an exchange waits for the first endpoint with a free permit; `None` if it must wait for the
    /// picked one.
    pub(crate) fn shared_queue_for(
        self,
        exchange: &Exchange,
        picked: usize,
        tried: TriedEndpoints,
        now_ns: u64,
    ) -> Option<&'a Rc<SharedQueue>> {
        let shared_queue = self.state.shared_queue.as_ref()?;
        // An endpoint that is on trial, or picked because all are down or the others have been tried, was picked on
        // purpose.
        let is_any = self.state.health[picked].is_proven() && tried == TriedEndpoints::default();
        (is_any && self.persistent_endpoint(exchange, now_ns).is_none()).then_some(shared_queue)
    }

    /// The endpoint that persistence assigns to the client, if there is one. Otherwise an endpoint in rotation that has not
    /// been tried; if none is, any that has not been tried, unless the upstream refuses requests then.
    pub(crate) fn pick(self, exchange: &Exchange, tried: TriedEndpoints, now_ns: u64) -> Option<usize> {
        if let Some((home, when_gone)) = self.persistent_endpoint(exchange, now_ns) {
            if !tried.contains(home) && self.state.health[home].is_up(now_ns) {
                return Some(home);
            }
            if when_gone == WhenEndpointGone::Refuse {
                return None;
            }
        }
        let mut passed_by = tried;
        for _ in 0..MAX_PASSED_BY {
            let Some(picked) = self.in_rotation(exchange, passed_by, now_ns) else { break };
            if self.state.health[picked].admits(self.settings.passive.retry_after, now_ns) {
                return Some(picked);
            }
            passed_by.add(picked);
        }
        match self.settings.all_down {
            AllDownPolicy::Try => {
                self.state.balancer.pick(exchange, &*self.state.endpoints, now_ns, |index| !tried.contains(index))
            }
            AllDownPolicy::Refuse => None,
        }
    }

    /// Whether `pick` finds an endpoint, without the state that it changes.
    pub(crate) fn has_endpoint(self, exchange: &Exchange, tried: TriedEndpoints, now_ns: u64) -> bool {
        let UpstreamView { settings, state } = self;
        let is_up = |index: usize| state.health[index].is_up(now_ns);
        if let Some((home, WhenEndpointGone::Refuse)) = self.persistent_endpoint(exchange, now_ns) {
            return !tried.contains(home) && is_up(home);
        }
        let tries_all = settings.all_down == AllDownPolicy::Try;
        let is_usable = |(index, endpoint): (usize, &snapshot::Endpoint)| {
            endpoint.weight > 0 && !tried.contains(index) && (tries_all || is_up(index))
        };
        settings.endpoints.iter().enumerate().any(is_usable)
    }

    /// The endpoint that persistence assigns to the client, and what to do if it is out of rotation.
    fn persistent_endpoint(self, exchange: &Exchange, now_ns: u64) -> Option<(usize, WhenEndpointGone)> {
        let persistence = self.settings.persistence.as_ref()?;
        let home = persistence.persistent_endpoint(exchange, &self.state.sessions, &self.settings.endpoints, now_ns)?;
        Some((home, persistence.when_gone))
    }

    fn in_rotation(self, exchange: &Exchange, tried: TriedEndpoints, now_ns: u64) -> Option<usize> {
        let in_rotation = |index: usize| !tried.contains(index) && self.state.health[index].is_up(now_ns);
        if let Some(ramp) = self.settings.slow_start {
            // The part that an endpoint in slow start does not get yet goes to the others.
            let takes_its_share = |index: usize| {
                let share = self.state.health[index].share(ramp, now_ns);
                in_rotation(index) && (share >= 1.0 || self.state.dice.is_chosen_with_probability(share))
            };
            let picked = self.state.balancer.pick(exchange, &*self.state.endpoints, now_ns, takes_its_share);
            if picked.is_some() {
                return picked;
            }
        }
        self.state.balancer.pick(exchange, &*self.state.endpoints, now_ns, in_rotation)
    }
}

impl EndpointLoads for [Rc<EndpointPool>] {
    fn in_flight(&self, endpoint: usize) -> u32 {
        self[endpoint].in_flight()
    }

    fn has_room(&self, endpoint: usize) -> bool {
        self[endpoint].has_room()
    }

    fn latency(&self, endpoint: usize) -> &LatencyEstimate {
        self[endpoint].latency()
    }
}

impl Routes for WorkerSnapshot {
    fn facts(&self, route: usize) -> &RouteFacts {
        &self.snapshot.routes[route].facts
    }
}

#[cfg(test)]
mod tests;
