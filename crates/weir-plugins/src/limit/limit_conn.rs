use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::{
    AllOf, Build, CollectAll, ConfigError, Definition, Exchange, Flow, NoteKey, Phases, Plugin, Stage, Stop,
};

use crate::answer::RefusalResponse;
use crate::clock;
use crate::limit::key::{Amount, KeyType, LimitKey, digest, unique_keys};
use crate::limit::limit_req::delayed;
use crate::limit::policy::counted_somewhere;
use crate::limit::replacement::{self, Replaceable};
use crate::store::counters::{self, CounterKey, CounterTable, PackedCounter};

mod remote;

use remote::{HeldPermits, RedisConnLimiter};

counted_somewhere! {
/// Limits how many requests are in progress at the same time, for each client, key or tenant.
///
/// A request is in progress until its response has ended, whether successfully or not. The number is exact over all
/// workers, and with one of the `redis` policies over all gateways whose options are the same.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitConn {
    /// The maximum number of requests in progress at the same time, or a `$variable` that holds the number.
    #[schemars(extend("type" = ["integer", "string"]))]
    conn: Option<Value>,
    /// The number of requests beyond `conn` that are delayed instead of refused, or a `$variable` that holds the
    /// number.
    #[schemars(extend("type" = ["integer", "string"]))]
    burst: Option<Value>,
    /// The delay, in seconds, of requests beyond `conn`. It is multiplied by the number of requests in progress divided
    /// by `conn`, rounded down.
    #[schemars(range(max = 86_400), extend("exclusiveMinimum" = 0))]
    #[schemars(extend("x-weir-unit" = "s"))]
    default_conn_delay: f64,
    /// Always uses `default_conn_delay`. Otherwise the delay adapts: after each request, it is set to the average of
    /// the previous delay and the duration of the request. The duration is without the delay of the request itself.
    /// Requests that a plugin has answered are left out. The delay becomes 30 seconds at most, or
    /// `default_conn_delay` if that is longer.
    #[serde(default)]
    only_use_default_delay: bool,
    /// The key by which requests are counted, as `key_type` defines. A request without this key is counted by the
    /// client's address.
    key: Option<String>,
    /// How `key` is interpreted.
    #[serde(default)]
    key_type: KeyType,
    /// Several limits, instead of `conn`, `burst` and `key`. A request is refused if any of the limits is reached.
    #[schemars(length(min = 1))]
    rules: Option<Vec<ConnRuleOptions>>,
    /// The status of a refusal, 200 to 599.
    #[serde(default = "default_rejected_code")]
    #[schemars(range(min = 200, max = 599))]
    rejected_code: u16,
    /// The message in the body of a refusal, `{"error_msg":"..."}`. Without it, a refusal has only the status.
    #[schemars(length(min = 1))]
    rejected_msg: Option<String>,
    /// Lets a request through if its limit cannot be determined: a variable holds no number, or the Redis server does
    /// not answer. Otherwise the request is answered with 500.
    #[serde(default)]
    allow_degradation: bool,
    /// Only with the Redis policies: seconds after which a request no longer counts if its end could not be reported,
    /// because the gateway crashed or the server was not reachable. Values above 30 have the effect of 30. Requests in
    /// progress are renewed before this time, however long they take.
    #[serde(default = "default_key_ttl")]
    #[schemars(extend("x-weir-only-if" = { "policy": ["redis", "redis-cluster", "redis-sentinel"] }))]
    #[schemars(range(min = 1, max = MAX_TTL_S))]
    #[schemars(extend("x-weir-unit" = "s"))]
    key_ttl: u64,
}
}

/// One of several limits.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ConnRuleOptions {
    /// The maximum number of requests in progress at the same time, or a `$variable` that holds the number.
    #[schemars(extend("type" = ["integer", "string"]))]
    conn: Value,
    /// The number of requests beyond `conn` that are delayed instead of refused, or a `$variable` that holds the
    /// number.
    #[schemars(extend("type" = ["integer", "string"]))]
    burst: Value,
    /// The key by which requests are counted: text with `$variables`. The rule does not apply to a request in which all
    /// these variables are missing.
    key: String,
}

fn default_rejected_code() -> u16 {
    503
}

fn default_key_ttl() -> u64 {
    3600
}

/// An upper bound of `conn` and of `burst`.
const MAX_CONN: u64 = 1 << 30;
/// The longest `key_ttl`, in seconds: a month.
const MAX_TTL_S: u64 = 2_678_400;
/// The longest delay that long requests can lead to, unless `default_conn_delay` is longer. Without it, event streams of
/// an hour would make others wait for half an hour.
const LONGEST_LEARNED: Duration = Duration::from_secs(30);

impl LimitConn {
    fn limiter(self, build: &mut Build) -> Result<ConnLimiter, ConfigError> {
        let quotas = match (self.conn, self.burst, self.key, self.rules) {
            (Some(conn), Some(burst), Some(key), None) => {
                let key = LimitKey::compile(&key, self.key_type, "key", build);
                vec![ConnQuota::new(&conn, &burst, key, "", build.identity(), false)?]
            }
            (None, None, None, Some(rules)) if !rules.is_empty() => {
                build.keep(unique_keys(rules.iter().map(|rule| &*rule.key)));
                let quota = |(index, rule): (usize, ConnRuleOptions)| {
                    let path = format!("rules[{index}].");
                    let key = LimitKey::compile(&rule.key, KeyType::VarCombination, "", build)
                        .or_else(|_| LimitKey::compile(&rule.key, KeyType::Constant, "", build));
                    let name = format!("{} rule {index}", build.identity());
                    ConnQuota::new(&rule.conn, &rule.burst, key, &path, &name, true)
                };
                rules.into_iter().enumerate().map(quota).collect_all()?
            }
            (_, _, _, Some(_)) => {
                return Err(ConfigError::new(
                    "rules",
                    "must not be empty, and cannot be combined with `conn`, `burst` or `key`",
                ));
            }
            _ => return Err(ConfigError::new("", "needs `conn`, `burst` and `key`, or `rules`")),
        };
        let waits = quotas.iter().any(|quota| quota.burst != Amount::Fixed(0));
        Ok(ConnLimiter {
            replaceable: Replaceable::new(&replacement::LIMIT_CONN, build),
            quotas: quotas.into(),
            pause: AdaptiveDelay {
                name: counters::name(&format!("{} pause", build.identity())),
                default: Duration::from_secs_f64(self.default_conn_delay),
                adapts: !self.only_use_default_delay && waits,
            },
            refusal: RefusalResponse::error(self.rejected_code, self.rejected_msg.as_deref()),
            allow_degradation: self.allow_degradation,
            waits,
            table: build.shared("limit-conn", "", || CounterTable::new(MOST_KEYS)),
        })
    }
}

impl Definition for LimitConn {
    const NAME: &'static str = "limit-conn";
    const PRIORITY: i32 = 1003;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str =
        "limit-conn: { conn: 100, burst: 0, default_conn_delay: 0.1, key: remote_addr, rejected_code: 429 }";

    fn build(mut self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let (server, key_ttl) = (self.counting(build), self.key_ttl);
        let (server, limiter) = (server, self.limiter(build)).all_of()?;
        Ok(match server {
            None => Arc::new(limiter),
            Some(server) => {
                let lease = RedisConnLimiter::lease(Duration::from_secs(key_ttl));
                Arc::new(RedisConnLimiter {
                    limiter,
                    server,
                    lease,
                    held: build.per_worker("limit-conn-held", "", HeldPermits::default),
                })
            }
        })
    }
}

struct ConnLimiter {
    replaceable: Replaceable,
    quotas: Box<[ConnQuota]>,
    pause: AdaptiveDelay,
    refusal: RefusalResponse,
    allow_degradation: bool,
    /// Whether requests beyond `conn` may be delayed.
    waits: bool,
    table: Arc<CounterTable<RequestsInFlight>>,
}

/// One limit and its key.
struct ConnQuota {
    conn: Amount,
    burst: Amount,
    key: LimitKey,
    /// Whether it is one of several rules: these do not apply to requests that have none of the key's variables.
    is_rule: bool,
    name: u64,
    /// The prefix of its keys in a Redis server.
    title: Box<str>,
    /// The note of a request that is counted: the key under which it is counted, and when its delay had ended, in
    /// nanoseconds of `clock::now`; 0 until then, and if another limit refuses the request.
    note: NoteKey,
}

impl ConnQuota {
    fn new(
        conn: &Value,
        burst: &Value,
        key: Result<LimitKey, ConfigError>,
        path: &str,
        name: &str,
        is_rule: bool,
    ) -> Result<ConnQuota, ConfigError> {
        let conn = Amount::compile(conn, 1..=MAX_CONN, &format!("{path}conn"));
        let burst = Amount::compile(burst, 0..=MAX_CONN, &format!("{path}burst"));
        let (conn, burst, key) = (conn, burst, key).all_of()?;
        Ok(ConnQuota {
            conn,
            burst,
            key,
            is_rule,
            name: counters::name(name),
            title: format!("weir:limit-conn:{}", digest(name.as_bytes())).into(),
            note: NoteKey::unique(),
        })
    }

    /// The values of `conn` and `burst` for a request; `None` if this rule does not apply to it. A variable that holds
    /// no number is an error, unless `allow_degradation` is set.
    fn ask(&self, exchange: &Exchange, allow_degradation: bool) -> Result<Option<(u64, u64)>, Stop> {
        if self.is_rule && !self.key.is_present(exchange) {
            return Ok(None);
        }
        match (self.conn.of(exchange, 1..=MAX_CONN), self.burst.of(exchange, 0..=MAX_CONN)) {
            (Some(conn), Some(burst)) => Ok(Some((conn, burst))),
            _ if allow_degradation => Ok(None),
            _ => Err(Stop::Respond(500)),
        }
    }
}

/// The most keys at a time: 262,144, in at most 4 MiB. A key is kept only while requests of it are in progress.
const MOST_KEYS: usize = 1 << 18;

/// How many requests of a key are in progress; in the entry of a `AdaptiveDelay`, its length in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct RequestsInFlight(u64);

impl PackedCounter for RequestsInFlight {
    fn from_bits(bits: u128) -> RequestsInFlight {
        RequestsInFlight(bits as u64)
    }

    fn bits(self) -> u128 {
        u128::from(self.0)
    }

    fn is_live(self, _: u64) -> bool {
        self.0 > 0
    }

    fn weight(self, _: u64) -> u64 {
        self.0
    }
}

/// The delay of requests beyond the limit.
struct AdaptiveDelay {
    name: u64,
    default: Duration,
    adapts: bool,
}

impl AdaptiveDelay {
    fn key(&self, table: &CounterTable<RequestsInFlight>) -> CounterKey {
        table.key(self.name, b"")
    }

    fn now(&self, table: &CounterTable<RequestsInFlight>) -> Duration {
        match table.read(self.key(table)) {
            RequestsInFlight(0) => self.default,
            RequestsInFlight(ns) => Duration::from_nanos(ns),
        }
    }

    fn learn(&self, table: &CounterTable<RequestsInFlight>, took: Duration) {
        let default_ns = self.default.as_nanos() as u64;
        let longest_ns = default_ns.max(LONGEST_LEARNED.as_nanos() as u64);
        table.update(self.key(table), 0, |RequestsInFlight(ns)| {
            let before = if ns == 0 { default_ns } else { ns };
            (Some(RequestsInFlight((before / 2 + took.as_nanos() as u64 / 2).clamp(1, longest_ns))), ())
        });
    }
}

/// Counts a request. Returns the length of its delay in pauses; `None` if the request has to be refused.
fn enter(table: &CounterTable<RequestsInFlight>, key: CounterKey, conn: u64, burst: u64) -> Option<u64> {
    table.update(key, 0, |RequestsInFlight(count)| match count >= conn + burst {
        true => (None, None),
        false => (Some(RequestsInFlight(count + 1)), Some(count / conn)),
    })
}

fn leave(table: &CounterTable<RequestsInFlight>, key: CounterKey) {
    table.update(key, 0, |RequestsInFlight(count)| (count.checked_sub(1).map(RequestsInFlight), ()));
}

impl ConnLimiter {
    fn admit(&self, exchange: &mut Exchange) -> Result<Duration, Stop> {
        let mut pauses = 0;
        for quota in &self.quotas {
            let Some((conn, burst)) = quota.ask(exchange, self.allow_degradation)? else { continue };
            let key = quota.key.in_table(&self.table, quota.name, exchange);
            let entered = enter(&self.table, key, conn, burst).ok_or_else(|| self.refusal.send(exchange))?;
            exchange.notes.write(quota.note, [key.number(), 0, 0]);
            pauses = entered.max(pauses);
        }
        Ok(self.wait(pauses))
    }

    /// How long this number of pauses takes.
    fn wait(&self, pauses: u64) -> Duration {
        match pauses {
            0 => Duration::ZERO,
            pauses => self.pause.now(&self.table).saturating_mul(u32::try_from(pauses).unwrap_or(u32::MAX)),
        }
    }

    /// Delays a request that has been counted, and notes when the delay has ended.
    fn delay<'a>(&'a self, exchange: &'a mut Exchange, wait: Duration) -> Flow<'a> {
        let flow = if self.waits { delayed(wait) } else { Flow::Continue };
        match flow {
            Flow::Continue => {
                self.pass(exchange);
                Flow::Continue
            }
            Flow::Wait(waiting) => Flow::wait(async move {
                waiting.await?;
                self.pass(exchange);
                Ok(())
            }),
        }
    }

    /// Notes that the request goes on from here.
    fn pass(&self, exchange: &mut Exchange) {
        if !self.pause.adapts {
            return;
        }
        let now_ns = clock::now().as_nanos() as u64;
        for quota in &self.quotas {
            if let Some([key, ..]) = exchange.notes.read(quota.note) {
                exchange.notes.write(quota.note, [key, now_ns, 0]);
            }
        }
    }

    /// Adapts the pause to the duration of an exchange that has ended. An exchange that ended in its delay, or that a
    /// plugin has answered, says nothing of how long requests take.
    fn learn(&self, exchange: &Exchange) {
        if !self.pause.adapts || !exchange.refused_by().is_empty() {
            return;
        }
        let passed_ns = self.quotas.iter().find_map(|quota| Some(exchange.notes.read(quota.note)?[1]));
        if let Some(passed_ns) = passed_ns.filter(|&passed_ns| passed_ns != 0) {
            let now_ns = clock::now().as_nanos() as u64;
            self.pause.learn(&self.table, Duration::from_nanos(now_ns.saturating_sub(passed_ns)));
        }
    }

    fn end(&self, exchange: &Exchange) {
        for quota in &self.quotas {
            let Some([key, ..]) = exchange.notes.read(quota.note) else { continue };
            leave(&self.table, CounterKey::from_number(key));
        }
        self.learn(exchange);
    }
}

const PHASES: Phases = Phases::REQUEST.and(Phases::LOG);

impl Plugin for ConnLimiter {
    fn phases(&self) -> Phases {
        PHASES
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        if self.replaceable.is_replaced(exchange) {
            return Ok(Flow::Continue);
        }
        let wait = self.admit(exchange)?;
        Ok(self.delay(exchange, wait))
    }

    fn on_log(&self, exchange: &Exchange) {
        self.end(exchange);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{body, build, get, on_request, refused};

    #[test]
    fn as_many_are_let_in_as_the_limit_says() {
        let table = CounterTable::new(0);
        let key = table.key(1, b"a");
        let enter = || enter(&table, key, 2, 3);
        assert_eq!(
            [enter(), enter(), enter(), enter(), enter(), enter()],
            [Some(0), Some(0), Some(1), Some(1), Some(2), None]
        );
        leave(&table, key);
        assert_eq!([enter(), enter()], [Some(2), None]);
    }

    #[test]
    fn counts_are_exact_over_threads() {
        let table = CounterTable::new(0);
        let key = table.key(1, b"a");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        if enter(&table, key, 3, 0).is_some() {
                            assert!(table.read(key).0 <= 3);
                            leave(&table, key);
                        }
                    }
                });
            }
        });
        assert_eq!(table.read(key).0, 0);
    }

    #[test]
    fn an_exchange_is_counted_until_it_ends() {
        let options =
            json!({"conn": 1, "burst": 0, "default_conn_delay": 0.1, "key": "remote_addr", "rejected_msg": "busy"});
        let step = build::<LimitConn>(options);
        let (mut first, mut second) = (get("/"), get("/"));
        assert_eq!(on_request(&step, &mut first), Ok(()));
        assert_eq!(on_request(&step, &mut second), Err(Stop::Answered));
        assert_eq!((second.response.status, body(&second)), (503, "{\"error_msg\":\"busy\"}\n"));
        step.on_log(&second); // was never admitted
        assert_eq!(on_request(&step, &mut second), Err(Stop::Answered));
        step.on_log(&first);
        assert_eq!(on_request(&step, &mut second), Ok(()));
    }

    #[test]
    fn a_burst_waits() {
        let options = json!({"conn": 1, "burst": 1, "default_conn_delay": 3600, "key": "$remote_addr$arg_a",
            "key_type": "var_combination", "only_use_default_delay": true});
        let step = build::<LimitConn>(options);
        assert!(step.phases().log);
        for _ in 0..2 {
            assert_eq!(on_request(&step, &mut get("/?a=1")), Ok(()), "on a clock that jumps to the next deadline");
        }
        assert_eq!(on_request(&step, &mut get("/?a=1")), Err(Stop::Respond(503)));
    }

    #[test]
    fn a_refusal_by_the_second_rule_takes_nothing_from_the_first_for_good() {
        let rules = json!([{"conn": 2, "burst": 0, "key": "$remote_addr"}, {"conn": 1, "burst": 0, "key": "$arg_a"}]);
        let step = build::<LimitConn>(json!({"default_conn_delay": 1, "rules": rules}));
        let mut first = get("/?a=1");
        assert_eq!(on_request(&step, &mut first), Ok(()));
        for _ in 0..3 {
            let mut refused = get("/?a=1");
            assert_eq!(on_request(&step, &mut refused), Err(Stop::Respond(503)));
            step.on_log(&refused);
        }
        assert_eq!(on_request(&step, &mut get("/?a=2")), Ok(()));
        assert_eq!(on_request(&step, &mut get("/")), Err(Stop::Respond(503)), "two under way");
    }

    #[test]
    fn the_pause_follows_what_requests_take() {
        let table = CounterTable::new(0);
        let pause = AdaptiveDelay { name: 1, default: Duration::from_secs(1), adapts: true };
        assert_eq!(pause.now(&table), Duration::from_secs(1));
        pause.learn(&table, Duration::from_secs(3));
        assert_eq!(pause.now(&table), Duration::from_secs(2));
        for _ in 0..40 {
            pause.learn(&table, Duration::from_secs(3600));
        }
        assert_eq!(pause.now(&table), LONGEST_LEARNED, "however long streams last");
    }

    fn limiter(options: serde_json::Value) -> ConnLimiter {
        let options: LimitConn = serde_json::from_value(options).expect("valid");
        options.limiter(&mut weir_plugin::Build::default()).expect("valid")
    }

    fn in_paused_time<T>(future: impl Future<Output = T>) -> T {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().expect("a runtime").block_on(future)
    }

    #[test]
    fn the_delay_of_a_request_is_no_part_of_its_duration() {
        let limiter = limiter(json!({"conn": 1, "burst": 1, "default_conn_delay": 3600, "key": "remote_addr"}));
        let (mut first, mut second) = (get("/"), get("/"));
        assert!(matches!(limiter.on_request(&mut first), Ok(Flow::Continue)));
        let waited_until = in_paused_time(async {
            let turn = limiter.on_request(&mut second).expect("admitted").finish();
            let mut turn = std::pin::pin!(turn);
            let began = std::future::poll_fn(|context| std::task::Poll::Ready(turn.as_mut().poll(context))).await;
            assert!(began.is_pending(), "it is delayed");
            let waiting = clock::now();
            turn.await.expect("let through");
            waiting
        });
        let [_, passed_ns, _] = second.notes.read(limiter.quotas[0].note).expect("it is counted");
        assert!(Duration::from_nanos(passed_ns) >= waited_until, "its duration begins after the delay");
    }

    #[test]
    fn the_pause_learns_nothing_from_what_was_refused_or_left() {
        let rules = json!([{"conn": 1, "burst": 1, "key": "$remote_addr"}, {"conn": 1, "burst": 0, "key": "$arg_a"}]);
        let limiter = limiter(json!({"default_conn_delay": 10, "rules": rules}));
        let pause = || limiter.pause.now(&limiter.table);
        let mut first = get("/?a=1");
        assert!(matches!(limiter.on_request(&mut first), Ok(Flow::Continue)));
        let mut by_a_rule = get("/?a=1");
        assert!(limiter.on_request(&mut by_a_rule).is_err());
        limiter.on_log(&by_a_rule);
        assert_eq!(pause(), Duration::from_secs(10), "refused by the second rule");
        let mut gone = get("/");
        drop(limiter.on_request(&mut gone).expect("admitted, and delayed"));
        limiter.on_log(&gone);
        assert_eq!(pause(), Duration::from_secs(10), "the client left while it waited");
        first.set_refused_by("key-auth");
        limiter.on_log(&first);
        assert_eq!(pause(), Duration::from_secs(10), "refused by a later plugin");
        let mut served = get("/?a=1");
        assert!(matches!(limiter.on_request(&mut served), Ok(Flow::Continue)));
        limiter.on_log(&served);
        assert!(pause() < Duration::from_secs(10));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"default_conn_delay": 1}), "needs `conn`, `burst` and `key`, or `rules`"),
            (
                json!({"conn": 0, "burst": 0, "default_conn_delay": 1, "key": "remote_addr"}),
                "conn: must be a whole number",
            ),
            (
                json!({"conn": 1, "burst": -1, "default_conn_delay": 1, "key": "remote_addr"}),
                "burst: must be a whole number",
            ),
            (
                json!({"conn": 1, "burst": 0, "default_conn_delay": 1, "key": "x", "policy": "redis"}),
                "redis_host: is needed",
            ),
        ] {
            let error = refused::<LimitConn>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
