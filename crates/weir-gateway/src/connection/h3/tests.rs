//! The gateway's HTTP/3 against clients of `quinn` and `h3`, over a network in memory and in simulated time: both state machines, with
//! loss, delay, reordering, duplication, damage, congestion and moving clients, thousands of connections in a minute. Whatever the
//! network does, every response is whole, no connection stays behind, and no first address of a client gets more than three times what it
//! has sent before it is proven.

mod client;
mod network;
mod server;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use client::{PlannedRequest, RequestOutcome, SimulatedClient};
use network::{NetworkCounts, NetworkRules, SimulatedNetwork};
use server::SimulatedServer;

/// The name in the certificate of the gateway.
const NAME: &str = "a.test";
/// All time-outs, and the longest time that anything may take, in simulated time.
const PATIENCE: Duration = Duration::from_secs(120);

/// Content in which lost, repeated and displaced bytes are noticed.
fn pattern(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect()
}

/// The length and a checksum of content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    length: usize,
    sum: u64,
}

impl Sum {
    fn add(&mut self, content: &[u8]) {
        self.length += content.len();
        self.sum = content.iter().fold(self.sum, |sum, byte| sum.rotate_left(5).wrapping_add(u64::from(*byte) + 1));
    }

    fn of_pattern(length: usize) -> Sum {
        let mut sum = Sum::default();
        sum.add(&pattern(0, length));
        sum
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{:x}", self.length, self.sum)
    }
}

/// What one simulation does, by its seed.
struct Scenario {
    random: fastrand::Rng,
    rules: NetworkRules,
    clients: Vec<Vec<PlannedRequest>>,
    /// The first client is gone after this time.
    vanishes_after: Option<Duration>,
    /// The gateway begins to drain.
    drains_after: Option<Duration>,
}

impl Scenario {
    fn new(seed: u64) -> Scenario {
        let mut random = fastrand::Rng::with_seed(seed);
        let rules = rules(&mut random);
        let clients = (0..random.usize(1..=3)).map(|_| requests(&mut random)).collect();
        let mut time = |share: u32| (random.u32(0..100) < share).then(|| Duration::from_millis(random.u64(0..3000)));
        let (vanishes_after, drains_after) = (time(15), time(25));
        Scenario { random, rules, clients, vanishes_after, drains_after }
    }
}

fn rules(random: &mut fastrand::Rng) -> NetworkRules {
    let mut share = |most: u32| if random.bool() { random.u32(0..=most) } else { 0 };
    let (lost, duplicated, late, damaged, marked) = (share(50), share(100), share(100), share(20), share(50));
    NetworkRules {
        lost,
        duplicated,
        late,
        damaged,
        marked,
        delay: Duration::from_micros(random.u64(200..60_000)),
        rate: random.bool().then(|| random.u64(100_000..20_000_000)),
        moves_after: (random.u32(0..4) == 0).then(|| random.u64(20..200)),
    }
}

fn requests(random: &mut fastrand::Rng) -> Vec<PlannedRequest> {
    let length = |random: &mut fastrand::Rng| match random.u32(0..10) {
        0..4 => 0,
        4..8 => random.usize(1..5000),
        _ => random.usize(5000..400_000),
    };
    let count = random.usize(1..=8);
    (0..count)
        .map(|_| PlannedRequest {
            upload: length(random),
            download: length(random),
            is_early: random.u32(0..8) == 0,
            cancelled_after: (random.u32(0..8) == 0).then(|| random.usize(0..50_000)),
            begins_after: Duration::from_millis(random.u64(0..2000)),
        })
        .collect()
}

/// Runs in simulated time.
fn simulated<T>(run: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build_local(Default::default()).expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(20 * PATIENCE, run).await.expect("it does not stand still") })
}

/// What simulations came to, so that it is seen that they do what they are for.
#[derive(Debug, Default)]
struct Tally {
    connections: u64,
    whole: u64,
    cancelled: u64,
    rejected: u64,
    datagrams: u64,
    lost: u64,
    duplicated: u64,
    late: u64,
    moved: u64,
    /// How long all of it has lasted for the clients and the gateway.
    simulated: Duration,
}

impl Tally {
    fn add(&mut self, outcome: RequestOutcome) {
        match outcome {
            RequestOutcome::Whole => self.whole += 1,
            RequestOutcome::Cancelled => self.cancelled += 1,
            RequestOutcome::Rejected => self.rejected += 1,
        }
    }

    fn count(&mut self, counts: NetworkCounts) {
        self.datagrams += counts.take_from_gateway + counts.from_clients;
        self.lost += counts.lost;
        self.duplicated += counts.duplicated;
        self.late += counts.late;
        self.moved += counts.moved;
    }
}

async fn play(seed: u64, tally: &mut Tally) {
    let begun = tokio::time::Instant::now();
    let Scenario { random, rules, clients, vanishes_after, drains_after } = Scenario::new(seed);
    let drains = Arc::new(AtomicBool::new(false));
    let network = SimulatedNetwork::new(rules, random);
    let server = SimulatedServer::start(&network);
    let mut playing = Vec::new();
    for (index, requests) in clients.into_iter().enumerate() {
        tally.connections += 1;
        let link = Arc::new(network.add_client());
        let vanishes_after = vanishes_after.filter(|_| index == 0);
        let drains = Arc::clone(&drains);
        let play = async move {
            let Some(client) = SimulatedClient::connect(Arc::clone(&link), seed, drains).await else {
                return vec![RequestOutcome::Rejected];
            };
            let running: Vec<_> = requests.into_iter().map(|request| client.begin(request)).collect();
            if let Some(time) = vanishes_after {
                tokio::time::sleep(time).await;
                link.vanish();
                running.into_iter().for_each(|request| request.abort());
                return Vec::new();
            }
            let mut outcomes = Vec::new();
            for request in running {
                outcomes.push(request.await.expect("the request does not fail"));
            }
            client.close().await;
            outcomes
        };
        playing.push(tokio::spawn(tokio::time::timeout(4 * PATIENCE, play)));
    }
    if let Some(time) = drains_after {
        tokio::time::sleep(time).await;
        drains.store(true, Ordering::Relaxed);
        server.drain();
    }
    for client in playing {
        let outcomes = client.await.expect("the client does not fail").expect("it does not stand still");
        outcomes.iter().for_each(|outcome| tally.add(*outcome));
    }
    server.wait_idle(2 * PATIENCE).await;
    server.end().await;
    tally.count(network.counts());
    tally.simulated += begun.elapsed();
}

/// How long to go on, in seconds, if `WEIR_TEST_FULL` is set, and `WEIR_SIMULATION_SECONDS` says nothing else.
const FULL_SECONDS: u64 = 120;

#[test]
fn clients_over_any_network_get_whole_responses() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("WEIR_SIMULATION_SEED");
    let seconds = number("WEIR_SIMULATION_SECONDS").or(weir_testkit::is_full().then_some(FULL_SECONDS));
    let first = first.unwrap_or(1);
    let (begun, mut tally) = (Instant::now(), Tally::default());
    let is_over = |count: u64| match seconds {
        Some(seconds) => begun.elapsed() >= Duration::from_secs(seconds),
        None => count >= SHORT,
    };
    let mut count = 0;
    while !is_over(count) {
        let seed = first + count;
        let printed = SeedOnPanic(seed);
        simulated(play(seed, &mut tally));
        std::mem::forget(printed);
        count += 1;
    }
    println!("{count} simulations from seed {first}, in {:?}: {tally:?}", begun.elapsed());
    assert!(tally.whole > 0 && tally.cancelled > 0 && tally.lost > 0 && tally.moved > 0, "{tally:?}");
    assert!(tally.duplicated > 0 && tally.late > 0, "{tally:?}");
}

/// How many simulations there are by default.
const SHORT: u64 = 60;

/// Says which simulation has failed. The seed repeats the scenario: the network's rules, the requests and their times. Datagrams differ from
/// one run to the next, since keys, ids and signatures do, so a failure may come only after some attempts.
struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        eprintln!(
            "to repeat its scenario, if not each datagram: WEIR_SIMULATION_SEED={} WEIR_SIMULATION_SECONDS=1",
            self.0
        );
    }
}

/// How long 1 MiB takes from the request to the last byte, over a network that loses 1 % and has a round trip of 30 ms.
async fn lossy_download(seed: u64) -> Duration {
    let rules = NetworkRules { lost: 10, delay: Duration::from_millis(15), ..NetworkRules::default() };
    let network = SimulatedNetwork::new(rules, fastrand::Rng::with_seed(seed));
    let server = SimulatedServer::start(&network);
    let client = SimulatedClient::connect(Arc::new(network.add_client()), seed, Arc::default()).await;
    let client = client.expect("it is served");
    let request = PlannedRequest { download: 1 << 20, ..PlannedRequest::default() };
    let begun = tokio::time::Instant::now();
    assert_eq!(client.begin(request).await.expect("it does not fail"), RequestOutcome::Whole);
    let took = begun.elapsed();
    client.close().await;
    server.end().await;
    took
}

/// Without losses, a window that begins with 32 packets and doubles has sent 1 MiB after five round trips; each loss costs about a third
/// of the window for the rest.
#[test]
fn a_mebibyte_over_a_lossy_network_takes_few_round_trips() {
    let count = weir_testkit::scaled(21, 501) as u64;
    let mut times: Vec<Duration> = (1..=count).map(|seed| simulated(lossy_download(seed))).collect();
    times.sort();
    let median = times[times.len() / 2];
    let mean = times.iter().sum::<Duration>() / times.len() as u32;
    println!("1 MiB: median {median:?}, mean {mean:?}, {:?} to {:?}", times[0], times[times.len() - 1]);
    assert!(median <= Duration::from_millis(600), "{median:?}");
}
