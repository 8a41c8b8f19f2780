//! Each policy against its definition: shares over a million picks, with weights, while endpoints come and go.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use weir_plugin::Variable;

use super::*;
use crate::snapshot::HashKey;

mod definitions;

const PICKS: usize = 1_000_000;

/// Loads for tests.
#[derive(Default)]
struct FakeLoads {
    in_flight: RefCell<Vec<u32>>,
    /// The number in flight at which an endpoint is full.
    limit: Option<u32>,
    latencies: Vec<LatencyEstimate>,
}

impl FakeLoads {
    fn idle(count: usize) -> FakeLoads {
        let latencies = (0..count).map(|_| LatencyEstimate::default()).collect();
        FakeLoads { in_flight: RefCell::new(vec![0; count]), limit: None, latencies }
    }
}

impl EndpointLoads for FakeLoads {
    fn in_flight(&self, endpoint: usize) -> u32 {
        self.in_flight.borrow()[endpoint]
    }

    fn has_room(&self, endpoint: usize) -> bool {
        self.limit.is_none_or(|limit| self.in_flight(endpoint) < limit)
    }

    fn latency(&self, endpoint: usize) -> &LatencyEstimate {
        &self.latencies[endpoint]
    }
}

fn endpoint(number: usize, weight: u32, priority: i64) -> Endpoint {
    let addr = ([10, 0, (number >> 8) as u8, number as u8], 8080).into();
    Endpoint { name: "".into(), addr, weight, priority, host: "".into(), checks: None }
}

fn endpoints(weights: &[u32]) -> Vec<Endpoint> {
    weights.iter().enumerate().map(|(number, &weight)| endpoint(number, weight, 0)).collect()
}

fn by_argument(endpoints: &[Endpoint]) -> Balance {
    let key = HashKey::Variable(Variable::Argument("k".into()));
    Balance::Hash(Arc::new(Hashing::new(key, endpoints)))
}

fn all(endpoints: &[Endpoint]) -> [Balance; 6] {
    let hash = by_argument(endpoints);
    [Balance::RoundRobin, Balance::Random, Balance::LeastConn, Balance::LeastTime, Balance::Ewma, hash]
}

/// A request whose argument `k` is this number.
fn request(exchange: &mut Exchange, key: usize) {
    let head = format!("GET /?k={key} HTTP/1.1\r\nHost: t\r\n\r\n");
    exchange.clear();
    weir_proto::h1::parse_request(head.as_bytes(), &Default::default(), &mut exchange.request)
        .expect("valid")
        .expect("complete");
}

fn shares(counts: &[usize]) -> Vec<f64> {
    let total: usize = counts.iter().sum();
    counts.iter().map(|&count| count as f64 / total as f64).collect()
}

#[track_caller]
fn assert_shares(counts: &[usize], weights: &[u32], within: f64, what: &str) {
    let total: u32 = weights.iter().sum();
    for (endpoint, (share, &weight)) in shares(counts).iter().zip(weights).enumerate() {
        let due = f64::from(weight) / f64::from(total);
        assert!((share - due).abs() <= within, "{what}: endpoint {endpoint} has {share:.5}, due {due:.5}");
    }
}

#[test]
fn shares_are_weights_over_a_million_picks() {
    let weights = [5, 1, 1, 0, 13];
    let endpoints = endpoints(&weights);
    let (loads, exchange) = (FakeLoads::idle(5), Exchange::default());
    for (balance, within) in [(Balance::RoundRobin, 0.00001), (Balance::Random, 0.002), (Balance::LeastConn, 0.002)] {
        let balancer = Balancer::new(&balance, &endpoints);
        let mut counts = [0; 5];
        for _ in 0..PICKS {
            counts[balancer.pick(&exchange, &loads, 1, |_| true).expect("there are some")] += 1;
        }
        assert_shares(&counts, &weights, within, &format!("{balance:?}"));
        assert_eq!(counts[3], 0, "{balance:?}: it is drained");
    }
}

#[test]
fn shares_are_weights_also_while_endpoints_come_and_go() {
    let weights = [4, 3, 2, 1, 10];
    let endpoints = endpoints(&weights);
    let (loads, exchange) = (FakeLoads::idle(5), Exchange::default());
    for balance in [Balance::RoundRobin, Balance::Random, Balance::LeastConn] {
        let balancer = Balancer::new(&balance, &endpoints);
        for out in 0..5 {
            let mut counts = [0; 5];
            for _ in 0..PICKS / 5 {
                counts[balancer.pick(&exchange, &loads, 1, |endpoint| endpoint != out).expect("four are left")] += 1;
            }
            let mut left = weights;
            left[out] = 0;
            assert_shares(&counts, &left, 0.005, &format!("{balance:?} without {out}"));
        }
    }
}

#[test]
fn a_thousand_endpoints_get_their_shares() {
    let weights: Vec<u32> = (0..1_000).map(|number| 1 + number % 3).collect();
    let endpoints = endpoints(&weights);
    let (loads, exchange) = (FakeLoads::idle(1_000), Exchange::default());
    // Six standard deviations of chance are 0.00003. Of eight drawn endpoints without load the choice is by weight among
    // themselves only.
    for (balance, within) in [(Balance::RoundRobin, 0.00001), (Balance::Random, 0.0002), (Balance::LeastConn, 0.0003)] {
        let balancer = Balancer::new(&balance, &endpoints);
        let mut counts = vec![0; 1_000];
        for _ in 0..PICKS {
            counts[balancer.pick(&exchange, &loads, 1, |_| true).expect("there are some")] += 1;
        }
        assert_shares(&counts, &weights, within, &format!("{balance:?}"));
    }
}

#[test]
fn every_policy_keeps_to_priorities_weights_and_what_is_usable() {
    let endpoints = [endpoint(0, 1, 5), endpoint(1, 0, 5), endpoint(2, 2, 1), endpoint(3, 1, 1), endpoint(4, 0, 9)];
    let mut exchange = Exchange::default();
    for balance in all(&endpoints) {
        let (balancer, loads) = (Balancer::new(&balance, &endpoints), FakeLoads::idle(5));
        let mut seen = [0; 5];
        for key in 0..2_000 {
            request(&mut exchange, key);
            let mut pick = |usable: &dyn Fn(usize) -> bool| {
                let picked = balancer.pick(&exchange, &loads, 1, usable);
                picked.inspect(|&picked| seen[picked] += 1)
            };
            assert_eq!(pick(&|_| true), Some(0), "{balance:?}");
            assert!(matches!(pick(&|endpoint| endpoint != 0), Some(2 | 3)), "{balance:?}");
            assert_eq!(pick(&|endpoint| endpoint == 3), Some(3), "{balance:?}");
        }
        assert_eq!(balancer.pick(&exchange, &loads, 1, |_| false), None, "{balance:?}");
        assert!(seen[2] > 0 && seen[3] > 2_000, "{balance:?}: {seen:?}");
    }
}

#[test]
fn balancer_picks_none_of_no_endpoints_and_of_drained_ones() {
    let exchange = Exchange::default();
    for endpoints in [vec![], vec![endpoint(0, 0, 0)], vec![endpoint(0, 0, 0), endpoint(1, 0, 2)]] {
        for balance in all(&endpoints) {
            let balancer = Balancer::new(&balance, &endpoints);
            assert_eq!(balancer.pick(&exchange, &FakeLoads::idle(2), 1, |_| true), None, "{balance:?}");
        }
    }
}

#[test]
fn least_conn_takes_the_fewest_for_its_weight() {
    let endpoints = endpoints(&[1, 2, 4]);
    let balancer = Balancer::new(&Balance::LeastConn, &endpoints);
    let (loads, exchange) = (FakeLoads::idle(3), Exchange::default());
    // No exchange ends: the numbers in flight grow by the weights.
    for _ in 0..700 {
        let picked = balancer.pick(&exchange, &loads, 1, |_| true).expect("there are some");
        loads.in_flight.borrow_mut()[picked] += 1;
    }
    let filled = loads.in_flight.borrow().clone();
    assert!(filled.iter().zip([100_u32, 200, 400]).all(|(&filled, due)| filled.abs_diff(due) <= 4), "{filled:?}");
    loads.in_flight.replace(vec![3, 7, 11]);
    assert_eq!(balancer.pick(&exchange, &loads, 1, |_| true), Some(2), "11 of 4 are fewer than 3 of 1");
}

/// Picks among endpoints that serve one exchange at a time in these times; returns how often each was picked.
fn queueing(balance: &Balance, service_ns: &[u64], arrivals_ns: u64, count: usize) -> Vec<usize> {
    let endpoints = endpoints(&vec![1; service_ns.len()]);
    let (balancer, loads, exchange) =
        (Balancer::new(balance, &endpoints), FakeLoads::idle(service_ns.len()), Exchange::default());
    let free_at: Vec<Cell<u64>> = service_ns.iter().map(|_| Cell::new(0)).collect();
    let mut running: Vec<(u64, usize, u64)> = Vec::new();
    let mut counts = vec![0; service_ns.len()];
    for number in 0..count as u64 {
        let now_ns = 1 + number * arrivals_ns;
        running.sort_unstable();
        while let Some(&(end_ns, endpoint, begin_ns)) = running.first().filter(|(end_ns, ..)| *end_ns <= now_ns) {
            running.remove(0);
            loads.in_flight.borrow_mut()[endpoint] -= 1;
            loads.latencies[endpoint].record(end_ns - begin_ns, end_ns);
        }
        let picked = balancer.pick(&exchange, &loads, now_ns, |_| true).expect("there are some");
        counts[picked] += 1;
        loads.in_flight.borrow_mut()[picked] += 1;
        let end_ns = free_at[picked].get().max(now_ns) + service_ns[picked];
        free_at[picked].set(end_ns);
        running.push((end_ns, picked, now_ns));
    }
    counts
}

#[test]
fn those_that_go_by_time_avoid_who_is_slow() {
    const MS: u64 = 1_000_000;
    for balance in [Balance::LeastTime, Balance::Ewma] {
        let counts = queueing(&balance, &[2 * MS, 2 * MS, 2 * MS, 40 * MS], MS, 20_000);
        let slow = counts[3] as f64 / 20_000.0;
        assert!(slow < 0.05, "{balance:?}: {counts:?}");
        assert!(counts[3] > 0, "{balance:?}: it is tried again: {counts:?}");
        assert!(counts[..3].iter().all(|&count| count > 4_000), "{balance:?}: {counts:?}");
    }
}

#[test]
fn a_missing_key_falls_back_to_the_client() {
    let endpoints = endpoints(&[1; 20]);
    let by_argument = Balancer::new(&by_argument(&endpoints), &endpoints);
    let by_client = Balance::Hash(Arc::new(Hashing::new(HashKey::ClientAddr, &endpoints)));
    let by_client = Balancer::new(&by_client, &endpoints);
    let loads = FakeLoads::idle(20);
    let mut seen = HashMap::new();
    for client in 0..200 {
        let mut exchange = Exchange::default();
        exchange.client.addr = [192, 0, 2, client].into();
        let picked = by_client.pick(&exchange, &loads, 1, |_| true);
        assert_eq!(by_argument.pick(&exchange, &loads, 1, |_| true), picked);
        *seen.entry(picked).or_insert(0) += 1;
    }
    assert!(seen.len() > 15, "clients are spread: {seen:?}");
}

#[test]
fn a_retry_takes_nobody_s_turn() {
    let endpoints = endpoints(&[1, 1, 1]);
    let (balancer, loads) = (Balancer::new(&Balance::RoundRobin, &endpoints), FakeLoads::idle(3));
    let mut retry = Exchange::default();
    retry.upstream.attempts = 1;
    let mut counts = [0; 3];
    for _ in 0..300 {
        let first = balancer.pick(&Exchange::default(), &loads, 1, |_| true).expect("all are usable");
        counts[first] += 1;
        // The first endpoint always fails.
        let second =
            (first == 0).then(|| balancer.pick(&retry, &loads, 1, |index| index != 0).expect("two are usable"));
        assert_ne!(second, Some(0));
    }
    assert_eq!(counts, [100; 3], "who fails gets no more than its turns");
}

#[test]
fn balancer_passes_over_endpoints_without_room() {
    for balance in [Balance::RoundRobin, Balance::Random] {
        let endpoints = endpoints(&[1, 1, 2, 1]);
        let balancer = Balancer::new(&balance, &endpoints);
        let loads = FakeLoads { limit: Some(16), ..FakeLoads::idle(4) };
        let picks_with = |in_flight: [u32; 4], usable: &dyn Fn(usize) -> bool| {
            *loads.in_flight.borrow_mut() = in_flight.to_vec();
            let picks = (0..1000).map(|_| balancer.pick(&Exchange::default(), &loads, 1, usable));
            picks.fold([0; 4], |mut counts, picked| {
                counts[picked.expect("there are some")] += 1;
                counts
            })
        };
        let turns = picks_with([15, 0, 15, 15], &|_| true);
        assert!(turns.iter().all(|&count| count > 150), "{balance:?}: turns are kept where there is room: {turns:?}");
        assert_eq!(picks_with([40, 50, 15, 42], &|_| true), [0, 0, 1000, 0], "{balance:?}: where there is room");
        let [_, second, third, _] = picks_with([40, 15, 15, 42], &|_| true);
        assert!(second + third == 1000 && third > second, "{balance:?}: by weight: {second} and {third}");
        assert_eq!(picks_with([40, 15, 40, 42], &|endpoint| endpoint != 1)[1], 0, "{balance:?}: room is not all");
        let waiting = picks_with([40, 50, 41, 42], &|_| true);
        assert!(waiting.iter().all(|&count| count > 150), "{balance:?}: {waiting:?}");
    }
}

#[test]
fn an_endpoint_that_was_tried_is_known_whatever_its_number() {
    for endpoint in [0, 63, 64, 127, 128, 200, 4095] {
        let tried = TriedEndpoints::default().with(endpoint);
        assert!(tried.contains(endpoint) && !tried.contains(endpoint + 1), "{endpoint}");
    }
}
