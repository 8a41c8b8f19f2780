use std::sync::LazyLock;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::proto::field::Name;
use weir_plugin::proto::head::{BadField, Head};
use weir_plugin::{Build, ConfigError, Definition, Described, Exchange, NoteKey, Phases, Plugin, Stage, Step, Stop};

use crate::answer::Refusal;
use crate::clock;
use crate::counters::{self, Counter, Key, Table};
use crate::headers::header_name;
use crate::limit_key::{Amount, KeyType, LimitKey};

/// Lets through so many requests in a time, for each client, key or tenant.
///
/// The count is exact over all workers. It goes on over a reload unless the options of this plugin have changed.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitCount {
    /// Requests let through in one window; or a `$variable` that holds the number.
    #[schemars(extend("type" = ["integer", "string"]))]
    count: Option<Value>,
    /// The length of a window in seconds; or a `$variable` that holds it.
    #[schemars(extend("type" = ["integer", "string"]))]
    time_window: Option<Value>,
    /// `fixed`: a window begins with the first request of a key. `sliding`: windows follow each other, and the one before
    /// counts for the share of it that still lies within the last `time_window` seconds.
    #[serde(default)]
    window_type: WindowType,
    /// What is counted, as `key_type` says. When it is missing from a request, the client's address is counted.
    #[serde(default = "remote_addr")]
    key: String,
    /// How `key` is read.
    #[serde(default)]
    key_type: KeyType,
    /// Several limits instead of `count`, `time_window` and `key`. The first that is used up refuses.
    #[schemars(length(min = 1))]
    rules: Option<Vec<RuleOptions>>,
    /// Shares the counters with every plugin that names the same group. All options of those must be the same.
    group: Option<String>,
    /// The status of a refusal, 200 to 599.
    #[serde(default = "unavailable")]
    #[schemars(range(min = 200, max = 599))]
    rejected_code: u16,
    /// What a refused client is told: `{"error_msg":"..."}`. Without it, only the status.
    #[schemars(length(min = 1))]
    rejected_msg: Option<String>,
    /// Where counters are. This version knows `local`: in this process.
    #[serde(default)]
    policy: Policy,
    /// Lets requests through whose limit cannot be found, because a variable holds no number. Otherwise they are answered
    /// with 500.
    #[serde(default)]
    allow_degradation: bool,
    /// Adds `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (seconds) to every response, and
    /// `Retry-After` to refusals.
    #[serde(default = "yes")]
    show_limit_quota_header: bool,
    /// Adds the fields `RateLimit-Policy` and `RateLimit` of the IETF's draft as well. Not an option of APISIX.
    #[serde(default)]
    ietf_headers: bool,
    /// Seconds between exchanges with a counter elsewhere; -1 is none. Only -1 has a meaning with `local`.
    #[serde(default = "never")]
    sync_interval: f64,
}

/// One of several limits.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RuleOptions {
    /// Requests let through in one window; or a `$variable` that holds the number.
    #[schemars(extend("type" = ["integer", "string"]))]
    count: Value,
    /// The length of a window in seconds; or a `$variable` that holds it.
    #[schemars(extend("type" = ["integer", "string"]))]
    time_window: Value,
    /// What is counted: text with `$variables`. A request that has none of them passes this rule by.
    key: String,
    /// Names the fields of this rule: `X-<prefix>-RateLimit-Limit` and so on. Its number, from 1, without it.
    header_prefix: Option<String>,
}

/// How the fields are called that tell clients what is left to them.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitCountMetadata {
    /// The field with the requests let through in one window.
    limit_header: String,
    /// The field with the requests that are left.
    remaining_header: String,
    /// The field with the seconds until the window ends.
    reset_header: String,
}

impl Default for LimitCountMetadata {
    fn default() -> LimitCountMetadata {
        LimitCountMetadata {
            limit_header: "X-RateLimit-Limit".to_owned(),
            remaining_header: "X-RateLimit-Remaining".to_owned(),
            reset_header: "X-RateLimit-Reset".to_owned(),
        }
    }
}

/// When windows begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum WindowType {
    #[default]
    Fixed,
    Sliding,
}

/// Where limits are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    #[default]
    Local,
    Redis,
    RedisCluster,
    RedisSentinel,
}

impl Policy {
    pub fn check(self) -> Result<(), ConfigError> {
        match self {
            Policy::Local => Ok(()),
            _ => Err(ConfigError::new("policy", "is not supported by this version, which counts `local` only")),
        }
    }
}

fn remote_addr() -> String {
    "remote_addr".to_owned()
}

fn unavailable() -> u16 {
    503
}

fn yes() -> bool {
    true
}

fn never() -> f64 {
    -1.0
}

/// 25 bits.
const MAX_WINDOW_S: u64 = 366 * 86_400;
const WINDOW_BITS: u32 = 25;
/// What a cell of a sliding window can count.
const MAX_COUNT: u64 = (1 << 28) - 1;

impl Definition for LimitCount {
    const NAME: &'static str = "limit-count";
    const PRIORITY: i32 = 1002;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str =
        "limit-count: { count: 100, time_window: 60, rejected_code: 429, rejected_msg: slow down }";

    fn build(self, build: &mut Build) -> Result<Step, ConfigError> {
        self.policy.check()?;
        if !(200..=599).contains(&self.rejected_code) {
            return Err(ConfigError::new("rejected_code", "must be from 200 to 599"));
        }
        if self.sync_interval != -1.0 {
            return Err(ConfigError::new("sync_interval", "has no meaning with the policy `local`; leave it out"));
        }
        let identity = match &self.group {
            Some(_) if self.rules.is_some() => {
                return Err(ConfigError::new("group", "cannot be used with `rules`"));
            }
            Some(group) => {
                // The owner stands before the options, and differs.
                let options = build.identity().split_once(": ").map_or("", |(_, options)| options).to_owned();
                if !build.agree(&format!("limit-count group {group}"), &options) {
                    let problem = format!("`{group}` is used elsewhere with other options; make them the same");
                    return Err(ConfigError::new("group", problem));
                }
                format!("limit-count group {group}: {options}")
            }
            None => build.identity().to_owned(),
        };
        let quotas = match (self.count, self.time_window, self.rules) {
            (Some(count), Some(window), None) => {
                let key = LimitKey::compile(&self.key, self.key_type, "key", build)?;
                let mut quota = Quota::new(&count, &window, key, "", &identity, None)?;
                let names = build.metadata::<LimitCount>();
                quota.fields.limit = field_name(&names.limit_header)?;
                quota.fields.remaining = field_name(&names.remaining_header)?;
                quota.fields.reset = field_name(&names.reset_header)?;
                vec![quota]
            }
            (None, None, Some(rules)) if !rules.is_empty() => {
                let quota = |(index, rule): (usize, RuleOptions)| {
                    let path = format!("rules[{index}].");
                    let key = LimitKey::compile(&rule.key, KeyType::VarCombination, &format!("{path}key"), build)
                        .or_else(|_| LimitKey::compile(&rule.key, KeyType::Constant, "", build))?;
                    let prefix = rule.header_prefix.unwrap_or_else(|| (index + 1).to_string());
                    let name = format!("{identity} rule {index}");
                    Quota::new(&rule.count, &rule.time_window, key, &path, &name, Some(prefix))
                };
                rules.into_iter().enumerate().map(quota).collect::<Result<_, _>>()?
            }
            (_, _, Some(_)) => {
                return Err(ConfigError::new("rules", "must not be empty, nor stand beside `count` or `time_window`"));
            }
            (count, ..) => {
                let missing = if count.is_none() { "count" } else { "time_window" };
                return Err(ConfigError::new("", format!("needs `{missing}`, or `rules`")));
            }
        };
        Ok(Step::new(Limiter {
            quotas: quotas.into(),
            window: self.window_type,
            refusal: Refusal::error(self.rejected_code, self.rejected_msg.as_deref()),
            allow_degradation: self.allow_degradation,
            show: self.show_limit_quota_header,
            show_ietf: self.ietf_headers,
        }))
    }
}

impl Described for LimitCount {
    type Metadata = LimitCountMetadata;

    fn check_metadata(metadata: LimitCountMetadata) -> Result<(), ConfigError> {
        header_name(&metadata.limit_header, "limit_header")?;
        header_name(&metadata.remaining_header, "remaining_header")?;
        header_name(&metadata.reset_header, "reset_header").map(|_| ())
    }
}

struct Limiter {
    quotas: Box<[Quota]>,
    window: WindowType,
    refusal: Refusal,
    allow_degradation: bool,
    show: bool,
    show_ietf: bool,
}

/// One limit.
struct Quota {
    count: Amount,
    window: Amount,
    key: LimitKey,
    /// One of several: passes requests by that have nothing to count.
    is_rule: bool,
    name: u64,
    note: NoteKey,
    fields: FieldNames,
}

struct FieldNames {
    limit: Name,
    remaining: Name,
    reset: Name,
    /// What the IETF's fields call it.
    policy: Box<str>,
}

/// A name out of the metadata, which has been checked for itself; a bad one is told there, and here again.
fn field_name(name: &str) -> Result<Name, ConfigError> {
    Name::new(name.as_bytes()).ok_or_else(|| ConfigError::new("plugin_metadata", "names no header field"))
}

impl Quota {
    fn new(
        count: &Value,
        window: &Value,
        key: LimitKey,
        path: &str,
        name: &str,
        prefix: Option<String>,
    ) -> Result<Quota, ConfigError> {
        let field = |last: &str| {
            let name = match &prefix {
                Some(prefix) => format!("X-{prefix}-RateLimit-{last}"),
                None => format!("X-RateLimit-{last}"),
            };
            Name::new(name.as_bytes())
                .ok_or_else(|| ConfigError::new(format!("{path}header_prefix"), "is no part of a field's name"))
        };
        Ok(Quota {
            count: Amount::compile(count, 1..=MAX_COUNT, &format!("{path}count"))?,
            window: Amount::compile(window, 1..=MAX_WINDOW_S, &format!("{path}time_window"))?,
            key,
            is_rule: prefix.is_some(),
            name: counters::name(name),
            note: NoteKey::unique(),
            fields: FieldNames {
                limit: field("Limit")?,
                remaining: field("Remaining")?,
                reset: field("Reset")?,
                policy: prefix.as_deref().unwrap_or("default").into(),
            },
        })
    }
}

/// A million keys at a time each, in 16 MiB at most. They are two, since windows of both kinds end differently.
static FIXED: LazyLock<Table<Fixed>> = LazyLock::new(|| Table::new(1 << 20));
static SLIDING: LazyLock<Table<Sliding>> = LazyLock::new(|| Table::new(1 << 20));

/// What a limit says of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Verdict {
    accepted: bool,
    remaining: u64,
    reset_ms: u64,
}

impl Plugin for Limiter {
    fn phases(&self) -> Phases {
        if self.show || self.show_ietf { Phases::REQUEST.and(Phases::RESPONSE) } else { Phases::REQUEST }
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let now = clock::now();
        for quota in &self.quotas {
            if quota.is_rule && !quota.key.is_present(exchange) {
                continue;
            }
            let count = quota.count.of(exchange, 1..=MAX_COUNT);
            let window = quota.window.of(exchange, 1..=MAX_WINDOW_S);
            let (Some(count), Some(window)) = (count, window) else {
                match self.allow_degradation {
                    true => continue,
                    false => return Err(Stop::Respond(500)),
                }
            };
            let verdict = match self.window {
                WindowType::Fixed => {
                    take_fixed(&FIXED, quota.key.in_table(&FIXED, quota.name, exchange), count, window, now)
                }
                WindowType::Sliding => {
                    take_sliding(&SLIDING, quota.key.in_table(&SLIDING, quota.name, exchange), count, window, now)
                }
            };
            let Verdict { accepted, remaining, reset_ms } = verdict;
            exchange
                .notes
                .write(quota.note, [count, remaining << 1 | u64::from(!accepted), reset_ms << WINDOW_BITS | window]);
            if !accepted {
                return Err(self.refusal.send(exchange));
            }
        }
        Ok(())
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        for quota in &self.quotas {
            let Some([limit, outcome, times]) = exchange.notes.read(quota.note) else { continue };
            let (remaining, refused) = (outcome >> 1, outcome & 1 == 1);
            let (reset_ms, window) = (times >> WINDOW_BITS, times & ((1 << WINDOW_BITS) - 1));
            let head = &mut exchange.response.head;
            // Numbers are valid values.
            self.add_fields(head, &quota.fields, [limit, remaining, window], reset_ms).map_err(|_| Stop::Internal)?;
            if refused {
                let retry_after = reset_ms.div_ceil(1000).to_string();
                head.set(b"Retry-After", retry_after.as_bytes()).map_err(|_| Stop::Internal)?;
            }
        }
        Ok(())
    }
}

impl Limiter {
    fn add_fields(
        &self,
        head: &mut Head,
        names: &FieldNames,
        [limit, remaining, window]: [u64; 3],
        reset_ms: u64,
    ) -> Result<(), BadField> {
        let digits = |number: u64| move |out: &mut Vec<u8>| write_digits(out, number);
        if self.show {
            head.put(&names.limit, digits(limit))?;
            head.put(&names.remaining, digits(remaining))?;
            head.put(&names.reset, |out| write_seconds(out, reset_ms))?;
        }
        if self.show_ietf {
            let policy = &names.policy;
            head.add(b"RateLimit-Policy", format!("\"{policy}\";q={limit};w={window}").as_bytes())?;
            let reset = reset_ms.div_ceil(1000);
            head.add(b"RateLimit", format!("\"{policy}\";r={remaining};t={reset}").as_bytes())?;
        }
        Ok(())
    }
}

fn write_digits(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// With at most two decimals.
fn write_seconds(out: &mut Vec<u8>, ms: u64) {
    let hundredths = ms.div_ceil(10);
    write_digits(out, hundredths / 100);
    match hundredths % 100 {
        0 => {}
        tens if tens % 10 == 0 => out.extend_from_slice(&[b'.', b'0' + (tens / 10) as u8]),
        rest => out.extend_from_slice(&[b'.', b'0' + (rest / 10) as u8, b'0' + (rest % 10) as u8]),
    }
}

/// A window that began with the first request of its key.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    /// Milliseconds since 1970, 44 bits.
    until_ms: u64,
    /// 44 bits.
    count: u64,
}

impl Counter for Fixed {
    fn from_bits(bits: u128) -> Fixed {
        Fixed { until_ms: (bits >> 44) as u64, count: bits as u64 & ((1 << 44) - 1) }
    }

    fn bits(self) -> u128 {
        u128::from(self.until_ms) << 44 | u128::from(self.count)
    }

    fn is_live(self, now_ms: u64) -> bool {
        self.until_ms > now_ms
    }

    fn weight(self, _: u64) -> u64 {
        self.count
    }
}

fn take_fixed(table: &Table<Fixed>, key: Key, limit: u64, window_s: u64, now: Duration) -> Verdict {
    let now_ms = now.as_millis() as u64;
    table.update(key, now_ms, |Fixed { until_ms, count }| match until_ms > now_ms {
        true if count >= limit => (None, Verdict { accepted: false, remaining: 0, reset_ms: until_ms - now_ms }),
        true => {
            let verdict = Verdict { accepted: true, remaining: limit - count - 1, reset_ms: until_ms - now_ms };
            (Some(Fixed { until_ms, count: count + 1 }), verdict)
        }
        false => {
            let window_ms = window_s * 1000;
            let verdict = Verdict { accepted: true, remaining: limit - 1, reset_ms: window_ms };
            (Some(Fixed { until_ms: now_ms + window_ms, count: 1 }), verdict)
        }
    })
}

/// Two windows that follow each other.
#[derive(Clone, Copy, Debug)]
pub struct Sliding {
    /// When the window after the current one ends, and with it all meaning: seconds since 1970, 32 bits.
    until_s: u64,
    /// 28 bits each.
    current: u64,
    previous: u64,
}

impl Counter for Sliding {
    fn from_bits(bits: u128) -> Sliding {
        let count = |shift: u32| (bits >> shift) as u64 & MAX_COUNT;
        Sliding { until_s: (bits >> 56) as u64, current: count(28), previous: count(0) }
    }

    fn bits(self) -> u128 {
        u128::from(self.until_s) << 56 | u128::from(self.current) << 28 | u128::from(self.previous)
    }

    fn is_live(self, now_s: u64) -> bool {
        self.until_s > now_s
    }

    fn weight(self, _: u64) -> u64 {
        self.current.max(self.previous)
    }
}

fn take_sliding(table: &Table<Sliding>, key: Key, limit: u64, window_s: u64, now: Duration) -> Verdict {
    let (now_s, window_ms) = (now.as_secs(), window_s * 1000);
    let start_s = now_s / window_s * window_s;
    let left_ms = window_ms - (now.as_millis() as u64 - start_s * 1000);
    let until_s = start_s + 2 * window_s;
    table.update(key, now_s, |counter| {
        let (current, previous) = match counter.until_s {
            until if until == until_s => (counter.current, counter.previous),
            until if until == start_s + window_s => (0, counter.current),
            _ => (0, 0),
        };
        // In thousandths of a request and a window, so that nothing is rounded.
        let weighted = u128::from(previous) * u128::from(left_ms) + u128::from(current) * u128::from(window_ms);
        let free = (u128::from(limit) * u128::from(window_ms)).saturating_sub(weighted) / u128::from(window_ms);
        match free {
            0 => (None, Verdict { accepted: false, remaining: 0, reset_ms: left_ms }),
            free => {
                let verdict = Verdict { accepted: true, remaining: free as u64 - 1, reset_ms: left_ms };
                (Some(Sliding { until_s, current: current + 1, previous }), verdict)
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use std::rc::Rc;
    use weir_plugin::{Entry, Shared};

    use super::*;
    use crate::testing::{body, build, get, on_request, refused, sent};

    fn at(ms: u64) -> Duration {
        Duration::from_millis(1_000_000_000 + ms)
    }

    #[test]
    fn a_fixed_window_begins_with_the_first_request() {
        let table = Table::new(0);
        let key = table.key(1, b"a");
        let take = |ms| take_fixed(&table, key, 2, 10, at(ms));
        let verdict = |accepted, remaining, reset_ms| Verdict { accepted, remaining, reset_ms };
        assert_eq!(take(3_000), verdict(true, 1, 10_000));
        assert_eq!(take(4_000), verdict(true, 0, 9_000));
        assert_eq!(take(12_999), verdict(false, 0, 1));
        assert_eq!(take(13_000), verdict(true, 1, 10_000));
        assert_eq!(take_fixed(&table, table.key(1, b"b"), 2, 10, at(13_000)), verdict(true, 1, 10_000));
    }

    #[test]
    fn a_sliding_window_counts_a_share_of_the_one_before() {
        let table = Table::new(0);
        let key = table.key(1, b"a");
        let take = |ms| take_sliding(&table, key, 10, 10, at(ms));
        for left in (0..10).rev() {
            assert_eq!(take(4_000), Verdict { accepted: true, remaining: left, reset_ms: 6_000 });
        }
        assert!(!take(9_999).accepted);
        assert!(!take(10_000).accepted, "the whole of the last window still counts");
        assert_eq!(take(15_000), Verdict { accepted: true, remaining: 4, reset_ms: 5_000 });
        assert_eq!((0..10).filter(|_| take(15_000).accepted).count(), 4);
        assert_eq!(take(40_000), Verdict { accepted: true, remaining: 9, reset_ms: 10_000 });
    }

    #[test]
    fn exactly_as_many_as_the_limit_pass_from_all_threads() {
        let (fixed, sliding) = (Table::new(0), Table::new(0));
        let (in_fixed, in_sliding) = (fixed.key(1, b"a"), sliding.key(1, b"a"));
        let passed: usize = std::thread::scope(|scope| {
            let work = || {
                let accepted = |turn: u64| {
                    let now = at(turn % 10);
                    let a = take_fixed(&fixed, in_fixed, 1_000, 60, now).accepted;
                    let b = take_sliding(&sliding, in_sliding, 1_000, 60, now).accepted;
                    usize::from(a) + usize::from(b)
                };
                (0..20_000).map(accepted).sum::<usize>()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!(passed, 2_000);
    }

    #[test]
    fn a_client_is_told_what_is_left() {
        let step = build::<LimitCount>(json!({"count": 1, "time_window": 60}));
        let mut exchange = get("/");
        assert_eq!(on_request(&step, &mut exchange), Ok(()));
        step.on_response(&mut exchange).expect("let through");
        let told = |exchange: &Exchange| {
            ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after"]
                .map(|name| sent(exchange, name).map(str::to_owned))
        };
        assert_eq!(told(&exchange), [Some("1".into()), Some("0".into()), Some("60".into()), None]);
        let mut again = get("/");
        assert_eq!(on_request(&step, &mut again), Err(Stop::Respond(503)));
        step.on_response(&mut again).expect("let through");
        let [limit, remaining, reset, retry_after] = told(&again);
        assert_eq!((limit.as_deref(), remaining.as_deref()), (Some("1"), Some("0")));
        let reset: f64 = reset.expect("told").parse().expect("a number");
        assert!(reset > 0.0 && reset <= 60.0 && retry_after.expect("told").parse::<u64>().expect("whole") <= 60);
    }

    #[test]
    fn keys_have_counters_of_their_own() {
        let options = json!({"count": 1, "time_window": 60, "key": "http_x", "rejected_code": 429,
            "rejected_msg": "too many", "window_type": "sliding", "ietf_headers": true});
        let step = build::<LimitCount>(options);
        let with = |value: &str| crate::testing::exchange(&format!("GET / HTTP/1.1\nHost: h\nX: {value}"));
        assert_eq!(on_request(&step, &mut with("a")), Ok(()));
        assert_eq!(on_request(&step, &mut with("b")), Ok(()));
        let mut refused = with("a");
        assert_eq!(on_request(&step, &mut refused), Err(Stop::Answered));
        assert_eq!((refused.response.status, body(&refused)), (429, "{\"error_msg\":\"too many\"}\n"));
        step.on_response(&mut refused).expect("let through");
        assert_eq!(sent(&refused, "ratelimit-policy"), Some("\"default\";q=1;w=60"));
        assert!(sent(&refused, "ratelimit").expect("told").starts_with("\"default\";r=0;t="));
    }

    #[test]
    fn several_rules_have_fields_of_their_own() {
        let rules = json!([{"count": 1, "time_window": 1, "key": "$arg_user", "header_prefix": "User"},
            {"count": "$arg_most", "time_window": 60, "key": "$remote_addr"}]);
        let step = build::<LimitCount>(json!({"rules": rules}));
        let mut exchange = get("/?user=jack&most=5");
        assert_eq!(on_request(&step, &mut exchange), Ok(()));
        step.on_response(&mut exchange).expect("let through");
        assert_eq!(sent(&exchange, "x-user-ratelimit-limit"), Some("1"));
        assert_eq!(sent(&exchange, "x-2-ratelimit-remaining"), Some("4"));
        assert_eq!(on_request(&step, &mut get("/?user=jack&most=5")), Err(Stop::Respond(503)));
        assert_eq!(on_request(&step, &mut get("/?most=5")), Ok(()), "no user, no rule");
        assert_eq!(on_request(&step, &mut get("/?user=jill&most=none")), Err(Stop::Respond(500)));
    }

    fn build_for(owner: &str, options: Value, shared: &Rc<Shared>) -> Result<Step, ConfigError> {
        (Entry::of::<LimitCount>().build)(&options, &mut Build::of(owner.to_owned(), shared))
    }

    #[test]
    fn counters_survive_a_reload_that_changes_nothing_about_them() {
        let build = |options| build_for("route/reload", options, &Rc::default()).expect("valid");
        let options = json!({"count": 1, "time_window": 60, "key_type": "constant", "key": "reload"});
        assert_eq!(on_request(&build(options.clone()), &mut get("/")), Ok(()));
        assert_eq!(on_request(&build(options), &mut get("/")), Err(Stop::Respond(503)));
        let changed = json!({"count": 2, "time_window": 60, "key_type": "constant", "key": "reload"});
        assert_eq!(on_request(&build(changed), &mut get("/")), Ok(()));
    }

    #[test]
    fn fields_have_the_names_that_hold_everywhere() {
        let mut shared = Shared::default();
        shared.metadata.insert("limit-count".into(), json!({"remaining_header": "X-Left"}));
        let options = json!({"count": 2, "time_window": 60, "key_type": "constant", "key": "named"});
        let step = build_for("route/named", options, &Rc::new(shared)).expect("valid");
        let mut exchange = get("/");
        assert_eq!(on_request(&step, &mut exchange), Ok(()));
        step.on_response(&mut exchange).expect("let through");
        assert_eq!((sent(&exchange, "x-left"), sent(&exchange, "x-ratelimit-limit")), (Some("1"), Some("2")));
        let wrong = LimitCountMetadata { reset_header: "a b".to_owned(), ..LimitCountMetadata::default() };
        assert!(LimitCount::check_metadata(wrong).is_err_and(|error| error.path == "reset_header"));
    }

    #[test]
    fn a_group_shares_its_counters_and_must_agree() {
        let shared = Rc::default();
        let options = json!({"count": 1, "time_window": 60, "group": "g1"});
        let first = build_for("route/1", options.clone(), &shared).expect("valid");
        let second = build_for("route/2", options, &shared).expect("valid");
        assert_eq!(on_request(&first, &mut get("/")), Ok(()));
        assert_eq!(on_request(&second, &mut get("/")), Err(Stop::Respond(503)));
        let other = json!({"count": 2, "time_window": 60, "group": "g1"});
        let error = build_for("route/3", other, &shared).err().expect("refused").to_string();
        assert!(error.starts_with("group: `g1` is used elsewhere with other options"), "{error}");
    }

    #[test]
    fn resets_have_at_most_two_decimals() {
        for (ms, want) in [(60_000, "60"), (59_990, "59.99"), (36_400, "36.4"), (1, "0.01"), (1_050, "1.05")] {
            let mut out = Vec::new();
            write_seconds(&mut out, ms);
            assert_eq!(out, want.as_bytes());
        }
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "needs `count`, or `rules`"),
            (json!({"count": 1}), "needs `time_window`, or `rules`"),
            (json!({"count": 0, "time_window": 1}), "count: must be a whole number from 1"),
            (json!({"count": 1, "time_window": "soon"}), "time_window: must be a whole number"),
            (
                json!({"rules": [{"count": 1, "time_window": 1, "key": "x"}, {"count": -1, "time_window": 1, "key": "x"}]}),
                "rules[1].count: must be",
            ),
            (json!({"rules": []}), "rules: must not be empty"),
            (json!({"count": 1, "time_window": 1, "rejected_code": 199}), "rejected_code: must be from 200"),
            (json!({"count": 1, "time_window": 1, "policy": "redis"}), "policy: is not supported"),
            (json!({"count": 1, "time_window": 1, "sync_interval": 2}), "sync_interval: has no meaning"),
            (json!({"count": 1, "time_window": 1, "key_type": "header"}), "key_type: unknown variant"),
        ] {
            let error = refused::<LimitCount>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
