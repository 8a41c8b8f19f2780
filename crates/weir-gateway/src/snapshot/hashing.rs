//! Consistent hashing: a key keeps its endpoint when others are added or removed.
//!
//! Points are placed as nginx's `hash … consistent` and APISIX's `chash` place them (the ketama of Cache::Memcached::Fast):
//! 160 for each unit of weight, each the CRC-32 of host, NUL, port and the point before it. The host is the endpoint's
//! address. Weights are divided by their greatest common divisor, as APISIX does and nginx does not.

use std::net::SocketAddr;

use crc32fast::Hasher;
use weir_plugin::template::Template;
use weir_plugin::{Exchange, Variable, Variables};

use super::endpoint::Endpoint;
use super::seats::{self, WeightedEndpoint, gcd};
use weir_proto::address::write_ip;

const POINTS: u32 = 160;
/// The most points of one ring. Weights that would make more are scaled down, to at least 1 each.
const MAX_POINTS: u64 = 1 << 20;
/// The most points that are searched for a usable endpoint, before the fallback in [`Ring::find`].
const MAX_STEPS: usize = 256;

/// What is hashed, and the rings on which it is looked up.
#[derive(Debug)]
pub struct Hashing {
    key: HashKey,
    /// One for each priority.
    rings: Vec<Ring>,
}

/// The hash key of requests. Where it is missing, the client's address is used, as in APISIX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashKey {
    ClientAddr,
    Variable(Variable),
    /// Several variables in one text (APISIX `vars_combinations`).
    Combination(Template),
}

#[derive(Debug)]
struct Ring {
    seats: Vec<WeightedEndpoint>,
    /// Sorted by hash, without duplicates.
    points: Box<[Point]>,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    hash: u32,
    endpoint: u32,
}

impl Hashing {
    pub fn new(key: HashKey, endpoints: &[Endpoint]) -> Hashing {
        Hashing {
            key,
            rings: seats::by_priority(endpoints).into_iter().map(|seats| Ring::new(seats, endpoints)).collect(),
        }
    }

    pub(crate) fn pick(&self, exchange: &Exchange, usable: impl Fn(usize) -> bool) -> Option<usize> {
        let hash = self.key.hash(exchange);
        self.rings.iter().find_map(|ring| ring.find(hash, &usable))
    }
}

impl HashKey {
    fn hash(&self, exchange: &Exchange) -> u32 {
        match self {
            HashKey::ClientAddr => {}
            HashKey::Variable(variable) => {
                if let Some(value) = exchange.variable(variable) {
                    return crc32fast::hash(&value);
                }
            }
            HashKey::Combination(template) => {
                if template.variables().any(|variable| exchange.variable(variable).is_some()) {
                    let mut key = Vec::new();
                    template.render(exchange, &mut key);
                    return crc32fast::hash(&key);
                }
            }
        }
        let mut text = Vec::with_capacity(40);
        write_ip(&mut text, exchange.client.addr);
        crc32fast::hash(&text)
    }
}

impl Ring {
    fn new(seats: Vec<WeightedEndpoint>, endpoints: &[Endpoint]) -> Ring {
        let divisor = seats.iter().fold(0, |divisor, seat| gcd(divisor, seat.weight));
        let total: u64 = seats.iter().map(|seat| u64::from(seat.weight / divisor)).sum();
        let most = MAX_POINTS / u64::from(POINTS);
        let mut points = Vec::new();
        for seat in &seats {
            let weight = u64::from(seat.weight / divisor);
            let weight = if total > most { (weight * most / total).max(1) } else { weight };
            points.extend(ring_points(endpoints[seat.endpoint].addr, weight as u32 * POINTS, seat.endpoint as u32));
        }
        // The sort is stable: if two endpoints have the same point, the first one keeps it.
        points.sort_by_key(|point: &Point| point.hash);
        points.dedup_by_key(|point| point.hash);
        Ring { seats, points: points.into() }
    }

    /// The endpoint of the first point at or after the hash; if that is not usable, the endpoint of the next point.
    fn find(&self, hash: u32, usable: &impl Fn(usize) -> bool) -> Option<usize> {
        let first = self.points.partition_point(|point| point.hash < hash);
        let around = self.points[first..].iter().chain(&self.points[..first]);
        around.take(MAX_STEPS).map(|point| point.endpoint as usize).find(|&endpoint| usable(endpoint)).or_else(|| {
            // Almost all endpoints are unusable. By rendezvous hashing each usable one always gets the same keys.
            let left = self.seats.iter().map(|seat| seat.endpoint).filter(|&endpoint| usable(endpoint));
            left.max_by_key(|&endpoint| {
                crc32fast::hash(&[hash.to_le_bytes(), (endpoint as u32).to_le_bytes()].concat())
            })
        })
    }
}

fn ring_points(addr: SocketAddr, count: u32, endpoint: u32) -> impl Iterator<Item = Point> {
    let mut base = Hasher::new();
    let host = match addr {
        SocketAddr::V4(addr) => addr.ip().to_string(),
        SocketAddr::V6(addr) => format!("[{}]", addr.ip()),
    };
    base.update(host.as_bytes());
    base.update(b"\0");
    base.update(addr.port().to_string().as_bytes());
    let mut last = 0_u32;
    (0..count).map(move |_| {
        let mut hasher = base.clone();
        hasher.update(&last.to_le_bytes());
        last = hasher.finalize();
        Point { hash: last, endpoint }
    })
}
