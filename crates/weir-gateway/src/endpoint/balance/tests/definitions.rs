//! The definition of each policy, computed in a second way and compared with a million picks.

use std::collections::VecDeque;

use super::*;

const MS: u64 = 1_000_000;

/// Picks of one policy; each stays in flight until a given number of others have been made.
struct Loop {
    loads: FakeLoads,
    running: VecDeque<usize>,
    width: usize,
}

impl Loop {
    fn new(endpoints: usize, width: usize) -> Loop {
        Loop { loads: FakeLoads::idle(endpoints), running: VecDeque::new(), width }
    }

    fn begin(&mut self, endpoint: usize) {
        self.loads.in_flight.borrow_mut()[endpoint] += 1;
        self.running.push_back(endpoint);
        if self.running.len() > self.width {
            let ended = self.running.pop_front().expect("it is not empty");
            self.loads.in_flight.borrow_mut()[ended] -= 1;
        }
    }
}

/// The endpoint that is unusable for this pick; `endpoints` stands for none.
fn out(pick: usize, endpoints: usize) -> usize {
    pick / 10_000 % (endpoints + 1)
}

#[test]
fn every_pick_of_the_least_is_the_least_while_endpoints_come_and_go() {
    let weights = [4, 3, 2, 1, 10];
    let endpoints = endpoints(&weights);
    let exchange = Exchange::default();
    let took_ns = [3, 1, 4, 1, 5].map(|ms| ms * MS);
    for balance in [Balance::LeastConn, Balance::LeastTime] {
        let balancer = Balancer::new(&balance, &endpoints);
        let mut going = Loop::new(5, 40);
        // Each endpoint has always answered in the same time, and has just answered, so that no average has decayed.
        going.loads.latencies.iter().zip(took_ns).for_each(|(latency, took_ns)| latency.record(took_ns, MS));
        for pick in 0..PICKS {
            let out = out(pick, 5);
            let cost = |endpoint: usize| {
                let in_flight = f64::from(going.loads.in_flight.borrow()[endpoint]);
                let time = match balance {
                    Balance::LeastConn => in_flight,
                    _ => (in_flight + 1.0) * took_ns[endpoint] as f64,
                };
                time / f64::from(weights[endpoint])
            };
            let least = (0..5).filter(|&endpoint| endpoint != out).map(cost).fold(f64::INFINITY, f64::min);
            let picked = balancer.pick(&exchange, &going.loads, MS, |endpoint| endpoint != out).expect("four are left");
            assert!(picked != out && cost(picked) <= least * (1.0 + 1e-9), "{balance:?}: {picked} at pick {pick}");
            going.begin(picked);
        }
    }
}

#[test]
fn least_conn_shares_by_weight_when_all_take_the_same_time() {
    for count in [5, 200] {
        let weights: Vec<u32> = (0..count).map(|number| 1 + number % 3).collect();
        let endpoints = endpoints(&weights);
        let balancer = Balancer::new(&Balance::LeastConn, &endpoints);
        let mut going = Loop::new(count as usize, 40 * count as usize);
        let exchange = Exchange::default();
        let mut counts = vec![0; count as usize];
        for _ in 0..PICKS {
            let picked = balancer.pick(&exchange, &going.loads, 1, |_| true).expect("there are some");
            counts[picked] += 1;
            going.begin(picked);
        }
        // Within a twentieth of the share by weight.
        assert_shares(&counts, &weights, 0.05 / f64::from(count), &format!("{count} endpoints"));
    }
}

#[test]
fn of_many_endpoints_the_least_of_four_is_picked() {
    let count = 64;
    let endpoints = endpoints(&vec![1; count]);
    let loads = FakeLoads::idle(count);
    // The load of each endpoint equals its number, and does not change.
    loads.in_flight.replace((0..count as u32).collect());
    loads.latencies.iter().for_each(|latency| latency.record(MS, 1));
    for balance in [Balance::LeastConn, Balance::LeastTime] {
        let balancer = Balancer::new(&balance, &endpoints);
        let mut counts = vec![0_usize; count];
        for _ in 0..PICKS {
            counts[balancer.pick(&Exchange::default(), &loads, 1, |_| true).expect("there are some")] += 1;
        }
        let none_below = |endpoint: usize| ((count - endpoint) as f64 / count as f64).powi(4);
        for (endpoint, share) in shares(&counts).into_iter().enumerate() {
            let due = none_below(endpoint) - none_below(endpoint + 1);
            assert!((share - due).abs() < 0.002, "{balance:?}: endpoint {endpoint} has {share:.4}, due {due:.4}");
        }
    }
}

#[test]
fn ewma_takes_the_better_of_two_while_endpoints_come_and_go() {
    let weights = [1, 2, 1, 4, 1];
    // Relative to their weights, the endpoints with lower numbers are better.
    let took_ns = [1, 4, 3, 16, 5].map(|ms| ms * MS);
    let endpoints = endpoints(&weights);
    let balancer = Balancer::new(&Balance::Ewma, &endpoints);
    let (loads, exchange) = (FakeLoads::idle(5), Exchange::default());
    loads.latencies.iter().zip(took_ns).for_each(|(latency, took_ns)| latency.record(took_ns, MS));
    for out in 0..=5 {
        let mut counts = [0; 5];
        for _ in 0..PICKS / 6 {
            counts[balancer.pick(&exchange, &loads, MS, |endpoint| endpoint != out).expect("some are left")] += 1;
        }
        let left: Vec<usize> = (0..5).filter(|&endpoint| endpoint != out).collect();
        let pairs = left.len() * (left.len() - 1) / 2;
        for (rank, &endpoint) in left.iter().enumerate() {
            // It wins those of its pairs in which the other endpoint is worse.
            let due = (left.len() - 1 - rank) as f64 / pairs as f64;
            let share = shares(&counts)[endpoint];
            assert!((share - due).abs() < 0.006, "without {out}: endpoint {endpoint} has {share:.4}, due {due:.4}");
        }
    }
}

#[test]
fn shares_are_kept_while_snapshots_follow_one_another() {
    // Every few picks the balancer is rebuilt for a new snapshot, in which a different endpoint is missing.
    let weights = [4, 3, 2, 1, 10];
    let (loads, exchange) = (FakeLoads::idle(5), Exchange::default());
    for balance in [Balance::RoundRobin, Balance::Random, Balance::LeastConn] {
        let (mut counts, mut due) = ([0_usize; 5], [0.0; 5]);
        let each = 7;
        for snapshot in 0..PICKS / each {
            let missing = snapshot % 6;
            let numbers: Vec<usize> = (0..5).filter(|&number| number != missing).collect();
            let endpoints: Vec<Endpoint> = numbers.iter().map(|&number| endpoint(number, weights[number], 0)).collect();
            let total: u32 = endpoints.iter().map(|endpoint| endpoint.weight).sum();
            numbers.iter().for_each(|&number| due[number] += f64::from(weights[number]) / f64::from(total));
            let balancer = Balancer::new(&balance, &endpoints);
            for _ in 0..each {
                counts[numbers[balancer.pick(&exchange, &loads, 1, |_| true).expect("there are some")]] += 1;
            }
        }
        let total: f64 = due.iter().sum();
        for (endpoint, share) in shares(&counts).into_iter().enumerate() {
            let due = due[endpoint] / total;
            assert!((share - due).abs() < 0.003, "{balance:?}: endpoint {endpoint} has {share:.4}, due {due:.4}");
        }
    }
}

/// A second implementation of ketama: the points of all endpoints, sorted.
fn ketama(endpoints: &[Endpoint]) -> Vec<(u32, usize)> {
    let mut points = Vec::new();
    for (number, endpoint) in endpoints.iter().enumerate() {
        let mut before = [0; 4];
        for _ in 0..160 * endpoint.weight {
            let text = [format!("{}\0{}", endpoint.addr.ip(), endpoint.addr.port()).as_bytes(), &before].concat();
            let point = crc32fast::hash(&text);
            points.push((point, number));
            before = point.to_le_bytes();
        }
    }
    points.sort_by_key(|&(point, _)| point);
    points.dedup_by_key(|&mut (point, _)| point);
    points
}

/// The fraction of all hashes that belongs to each endpoint, where the next point after a hash decides.
fn parts(points: &[(u32, usize)], endpoints: usize) -> Vec<f64> {
    let mut parts = vec![0.0; endpoints];
    let mut before = i64::from(points[points.len() - 1].0) - (1 << 32);
    for &(point, endpoint) in points {
        parts[endpoint] += (i64::from(point) - before) as f64 / (1_u64 << 32) as f64;
        before = i64::from(point);
    }
    parts
}

#[test]
fn hashing_shares_as_the_ring_says_while_endpoints_come_and_go() {
    let endpoints = endpoints(&[3, 1, 2, 1, 4]);
    let points = ketama(&endpoints);
    let by_client = Balance::Hash(Arc::new(Hashing::new(HashKey::ClientAddr, &endpoints)));
    let (loads, mut exchange) = (FakeLoads::idle(5), Exchange::default());
    for (what, balance) in [("chash", by_argument(&endpoints)), ("ip_hash", by_client)] {
        let balancer = Balancer::new(&balance, &endpoints);
        for out in 0..=5 {
            let left: Vec<(u32, usize)> = points.iter().copied().filter(|&(_, endpoint)| endpoint != out).collect();
            let mut counts = [0; 5];
            for key in 0..PICKS / 6 {
                request(&mut exchange, key);
                exchange.client.addr = std::net::Ipv4Addr::from_bits((key as u32).wrapping_mul(25_789)).into();
                counts[balancer.pick(&exchange, &loads, 1, |endpoint| endpoint != out).expect("some are left")] += 1;
            }
            for (endpoint, due) in parts(&left, 5).into_iter().enumerate() {
                let share = shares(&counts)[endpoint];
                assert!((share - due).abs() < 0.006, "{what} without {out}: {endpoint} has {share:.4}, due {due:.4}");
            }
        }
    }
}

#[test]
fn keys_move_only_where_they_must() {
    let keys = 20_000;
    let part = |count: usize| count as f64 / keys as f64;
    let (loads, mut exchange) = (FakeLoads::idle(11), Exchange::default());
    let (mut rings, mut joined, mut left) = (0.0, 0.0, 0.0);
    // With 160 points an endpoint's share of one ring varies. Several rings average that out.
    for ring in 0..10 {
        let all: Vec<Endpoint> = (0..11).map(|number| endpoint(ring * 11 + number, 1, 0)).collect();
        let (before, after) =
            (Balancer::new(&by_argument(&all[..10]), &all[..10]), Balancer::new(&by_argument(&all), &all));
        let (mut moved, mut own, mut left_moved) = (0, 0, 0);
        let leaves = ring % 10;
        for key in 0..keys {
            request(&mut exchange, key);
            let was = before.pick(&exchange, &loads, 1, |_| true).expect("there are some");
            let is = after.pick(&exchange, &loads, 1, |_| true).expect("there are some");
            if was != is {
                moved += 1;
                assert_eq!(is, 10, "a key moves to the new endpoint or not at all");
            }
            own += usize::from(was == leaves);
            let without = before.pick(&exchange, &loads, 1, |endpoint| endpoint != leaves).expect("there are some");
            left_moved += usize::from(without != was);
        }
        assert_eq!(left_moved, own, "only the keys of the endpoint that left have moved");
        let due = parts(&ketama(&all), 11)[10];
        assert!(part(moved) <= due + 0.01, "ring {ring}: {:.4} moved, {due:.4} of the ring is new", part(moved));
        let due = parts(&ketama(&all[..10]), 10)[leaves];
        assert!(part(left_moved) <= due + 0.01, "ring {ring}: {:.4} moved, {due:.4} has left", part(left_moved));
        (rings, joined, left) = (rings + 1.0, joined + part(moved), left + part(left_moved));
    }
    assert!(joined / rings <= 1.0 / 11.0 + 0.01, "{:.4} of the keys moved to one of eleven", joined / rings);
    assert!(left / rings <= 1.0 / 10.0 + 0.01, "{:.4} of the keys left one of ten", left / rings);
}
