use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{AllOf, Build, ConfigError, Definition, Exchange, Flow, Plugin, Stage, Stop};

use crate::answer::RefusalResponse;
use crate::clock;
use crate::limit::key::{KeyType, LimitKey, digest};
use crate::limit::policy::counted_somewhere;
use crate::store::counters::{self, CounterKey, CounterTable, PackedCounter};

mod remote;

use remote::RedisReqLimiter;

counted_somewhere! {
/// Limits the request rate: requests above the rate are delayed, up to `burst` requests, and then refused (leaky
/// bucket).
///
/// The rate is exact over all workers, and with one of the `redis` policies over all gateways whose options are the
/// same. A reload keeps the state, unless the options of this plugin have changed.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitReq {
    /// The rate in requests per second. Fractions such as 0.5 are allowed.
    #[schemars(range(max = 1_000_000_000), extend("exclusiveMinimum" = 0))]
    rate: f64,
    /// The number of requests above the rate that are delayed; further requests are refused. Fractions are allowed.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    burst: f64,
    /// The key by which requests are counted, as `key_type` defines. A request without this key is counted by the
    /// client's address.
    #[schemars(length(min = 1))]
    key: String,
    /// How `key` is interpreted.
    #[serde(default)]
    key_type: KeyType,
    /// The status of a refusal, 200 to 599.
    #[serde(default = "default_rejected_code")]
    #[schemars(range(min = 200, max = 599))]
    rejected_code: u16,
    /// The message in the body of a refusal, `{"error_msg":"..."}`. Without it, a refusal has only the status.
    #[schemars(length(min = 1))]
    rejected_msg: Option<String>,
    /// Does not delay the requests of a burst.
    #[serde(default)]
    nodelay: bool,
    /// Lets requests through if the Redis server does not answer. Otherwise they are answered with 500.
    #[serde(default)]
    allow_degradation: bool,
}
}

fn default_rejected_code() -> u16 {
    503
}

impl Definition for LimitReq {
    const NAME: &'static str = "limit-req";
    const PRIORITY: i32 = 1001;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str =
        "limit-req: { rate: 10, burst: 5, key: remote_addr, rejected_code: 429, nodelay: true }";

    fn build(mut self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        // From one request per day to a billion per second, the resolution of nanoseconds.
        if !(1.0 / 86_400.0..=1e9).contains(&self.rate) {
            build.fault("rate", "must be above 0: from 1 request per day to 1,000,000,000 per second");
        }
        if self.key_type == KeyType::Constant {
            build.fault("key_type", "must be `var` or `var_combination`");
        }
        let key = LimitKey::compile(&self.key, self.key_type, "key", build);
        let (server, key) = (self.counting(build), key).all_of()?;
        let interval_ns = (1e9 / self.rate).round() as u64;
        let bucket = Bucket {
            interval_ns,
            max_wait_ns: (self.burst * interval_ns as f64) as u64,
            key,
            name: counters::name(build.identity()),
            refusal: RefusalResponse::error(self.rejected_code, self.rejected_msg.as_deref()),
            waits: !self.nodelay && self.burst > 0.0,
            table: build.shared("limit-req", "", || CounterTable::passed_on("limit-req", MOST_KEYS)),
        };
        Ok(match server {
            None => Arc::new(bucket),
            // The scripts in the server calculate in microseconds.
            Some(_) if interval_ns < 1000 => {
                return Err(ConfigError::new("rate", "must be at most 1,000,000 per second with a Redis policy"));
            }
            Some(server) => {
                let title = format!("weir:limit-req:{}", digest(build.identity().as_bytes()));
                Arc::new(RedisReqLimiter { bucket, server, title, allow_degradation: self.allow_degradation })
            }
        })
    }
}

/// The most keys at a time: a million, in at most 16 MiB.
const MOST_KEYS: usize = 1 << 20;

/// When the next request of a key is due, in nanoseconds since 1970. A request before that exceeds the rate.
#[derive(Clone, Copy, Debug)]
struct NextTurn(u64);

impl PackedCounter for NextTurn {
    fn from_bits(bits: u128) -> NextTurn {
        NextTurn(bits as u64)
    }

    fn bits(self) -> u128 {
        u128::from(self.0)
    }

    fn is_live(self, now_ns: u64) -> bool {
        self.0 > now_ns
    }

    fn weight(self, now_ns: u64) -> u64 {
        self.0.saturating_sub(now_ns)
    }
}

struct Bucket {
    /// The time between two requests at the configured rate.
    interval_ns: u64,
    /// The longest time that a request is delayed; one that would have to wait longer is refused.
    max_wait_ns: u64,
    key: LimitKey,
    name: u64,
    refusal: RefusalResponse,
    /// Whether early requests are delayed, by at most `max_wait_ns`; otherwise they pass at once.
    waits: bool,
    table: Arc<CounterTable<NextTurn>>,
}

impl Bucket {
    /// How long the request has to wait; `None` if that would be too long.
    fn take(&self, table: &CounterTable<NextTurn>, key: CounterKey, now: Duration) -> Option<Duration> {
        let now_ns = now.as_nanos() as u64;
        table.update(key, now_ns, |NextTurn(due_ns)| {
            let turn_ns = due_ns.max(now_ns);
            let wait_ns = turn_ns - now_ns;
            match wait_ns > self.max_wait_ns {
                true => (None, None),
                false => (Some(NextTurn(turn_ns + self.interval_ns)), Some(Duration::from_nanos(wait_ns))),
            }
        })
    }

    fn admit(&self, exchange: &mut Exchange) -> Result<Duration, Stop> {
        let key = self.key.in_table(&self.table, self.name, exchange);
        self.take(&self.table, key, clock::now()).ok_or_else(|| self.refusal.send(exchange))
    }
}

impl Plugin for Bucket {
    /// Delays an early request until it is due, or lets it pass at once (`nodelay`).
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let wait = self.admit(exchange)?;
        Ok(if self.waits { delayed(wait) } else { Flow::Continue })
    }
}

/// Waits for this time; does not wait for less than 1 ms, the resolution of timers.
pub(crate) fn delayed(wait: Duration) -> Flow<'static> {
    match wait < Duration::from_millis(1) {
        true => Flow::Continue,
        false => Flow::wait(async move {
            tokio::time::sleep(wait).await;
            Ok(())
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use serde_json::json;

    use super::*;
    use crate::testing::{body, build, get, on_request, refused};

    fn bucket(rate: u64, burst: u64) -> Bucket {
        let interval_ns = 1_000_000_000 / rate;
        Bucket {
            interval_ns,
            max_wait_ns: burst * interval_ns,
            key: LimitKey::Address,
            name: 0,
            refusal: RefusalResponse::error(503, None),
            waits: false,
            table: Arc::new(CounterTable::new(0)),
        }
    }

    #[test]
    fn requests_wait_for_their_turn_up_to_the_burst() {
        let (table, bucket) = (CounterTable::new(0), bucket(10, 2));
        let key = table.key(1, b"a");
        let take = |ms| bucket.take(&table, key, Duration::from_millis(ms)).map(|wait| wait.as_millis());
        assert_eq!([take(1000), take(1000), take(1000), take(1000)], [Some(0), Some(100), Some(200), None]);
        assert_eq!([take(1100), take(1100)], [Some(200), None]);
        assert_eq!([take(5000), take(5100), take(5199)], [Some(0), Some(0), Some(1)]);
    }

    #[test]
    fn the_rate_is_kept_over_all_threads() {
        let (table, bucket) = (CounterTable::new(0), bucket(1000, 0));
        let key = table.key(1, b"a");
        // All threads are in the same millisecond, and one of them has its turn.
        let millisecond = Barrier::new(4);
        let take = |ms: &u64| {
            millisecond.wait();
            bucket.take(&table, key, Duration::from_millis(*ms)).is_some()
        };
        let passed: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| (1..=1000).filter(take).count())).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!(passed, 1000, "in 1000 ms at 1000 a second");
    }

    #[test]
    fn request_that_is_too_early_is_refused_or_waits() {
        let slow =
            json!({"rate": 0.001, "burst": 0, "key": "remote_addr", "rejected_code": 429, "rejected_msg": "slow"});
        let step = build::<LimitReq>(slow);
        let mut exchange = get("/");
        assert_eq!(on_request(&step, &mut exchange), Ok(()));
        assert_eq!(on_request(&step, &mut exchange), Err(Stop::Answered));
        assert_eq!((exchange.response.status, body(&exchange)), (429, "{\"error_msg\":\"slow\"}\n"));
        // This would take a quarter of an hour on a real clock.
        let patient = build::<LimitReq>(json!({"rate": 0.001, "burst": 1, "key": "remote_addr"}));
        assert_eq!(on_request(&patient, &mut exchange), Ok(()));
        assert_eq!(on_request(&patient, &mut exchange), Ok(()));
        assert_eq!(on_request(&patient, &mut exchange), Err(Stop::Respond(503)));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"rate": 1, "key": "remote_addr"}), "the option `burst` is missing"),
            (json!({"rate": 1, "burst": 0, "key": "x", "key_type": "constant"}), "key_type: must be"),
            (json!({"rate": 1, "burst": 0, "key": "x", "key_type": "var_combination"}), "key: has no variable"),
            (json!({"rate": 1, "burst": 0, "key": "remote_addr", "policy": "redis"}), "redis_host: is needed"),
            (
                json!({"rate": 2e6, "burst": 0, "key": "remote_addr", "policy": "redis", "redis_host": "redis"}),
                "rate: must be at most 1,000,000",
            ),
        ] {
            let error = refused::<LimitReq>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
