use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_plugin::{
    AllOf, Build, CollectAll, ConfigError, Definition, Exchange, Flow, HasMetadata, Phases, Plugin, PluginMetadata,
    Stage, Stop,
};

use crate::answer::RefusalResponse;
use crate::clock;
use crate::limit::key::{KeyType, LimitKey, unique_keys};
use crate::limit::policy::{CounterPolicy, counted_somewhere};
use crate::limit::replacement::{self, Replaceable};
use crate::options::headers::header_name;
use crate::store::durable::Startable;
use crate::store::redis_server::NoRedisAnswer;

pub(super) mod delayed;
pub(super) mod local;
pub(super) mod quota;
mod remote;
#[cfg(test)]
mod tests;

use delayed::DelayedSync;
#[cfg(test)]
pub(super) use local::Fixed;
use local::{CountedAmount, Windows};
use quota::{CountQuota, LimitHeaders, MAX_COUNT, MAX_PAIRED_COUNT};
use remote::RedisCountLimiter;

counted_somewhere! {
/// Limits the number of requests in a time window, for each client, key or tenant.
///
/// The count is exact over all workers, and with one of the `redis` policies over all gateways whose options are the
/// same. A reload and a binary upgrade keep the count, unless the options of this plugin have changed.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitCount {
    /// The maximum number of requests in one window, or a `$variable` that holds the number, such as `${http_x_limit ??
    /// 100}`. With sliding windows and with `sync_interval`, at most 268,435,455.
    #[schemars(extend("type" = ["integer", "string"]))]
    count: Option<Value>,
    /// The length of a window in seconds, or a `$variable` that holds it.
    #[schemars(extend("type" = ["integer", "string"]))]
    #[schemars(extend("x-weir-unit" = "s"))]
    time_window: Option<Value>,
    /// `fixed`: a window begins with the first request of a key. `sliding`: the limit applies to the last `time_window`
    /// seconds at any time. The requests of the previous window are counted in proportion to its part that lies within
    /// these seconds.
    #[serde(default)]
    window_type: WindowType,
    /// The key by which requests are counted, as `key_type` defines. A request without this key is counted by the
    /// client's address.
    #[serde(default = "default_key")]
    key: String,
    /// How `key` is interpreted.
    #[serde(default)]
    key_type: KeyType,
    /// Several limits, instead of `count`, `time_window` and `key`. A request is refused if any of the limits is used
    /// up.
    #[schemars(length(min = 1))]
    rules: Option<Vec<CountRuleOptions>>,
    /// Shares the counters with all plugins of the same group. All plugins of a group must have the same options.
    group: Option<String>,
    /// The status of a refusal, 200 to 599.
    #[serde(default = "default_rejected_code")]
    #[schemars(range(min = 200, max = 599))]
    rejected_code: u16,
    /// The message in the body of a refusal, `{"error_msg":"..."}`. Without it, a refusal has only the status.
    #[schemars(length(min = 1))]
    rejected_msg: Option<String>,
    /// `local`: keeps the counters in the node's `data_dir`, so that they survive restarts and crashes. A process that is killed
    /// forgets at most the requests of its last 0.1 seconds, and a loss of power those of its last 1.1 seconds, plus the time that
    /// the disk takes to write. At most 262,144 keys count at a time, in 32 MiB on disk. If the disk cannot be written, limits count
    /// in memory, and no request is refused for it. Not in APISIX.
    #[serde(default)]
    #[schemars(extend("x-weir-only-if" = { "policy": ["local"] }))]
    durable: bool,
    /// Lets a request through if its limit cannot be determined: a variable holds no number, or the Redis server does
    /// not answer. Otherwise the request is answered with 500.
    #[serde(default)]
    allow_degradation: bool,
    /// Adds `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (seconds) to every response, and
    /// `Retry-After` to refusals.
    #[serde(default = "default_true")]
    show_limit_quota_header: bool,
    /// Also adds the header fields `RateLimit-Policy` and `RateLimit` of the IETF draft. Not in APISIX.
    #[serde(default)]
    ietf_headers: bool,
    /// Counts in the gateway and synchronizes with the Redis server at this interval, in seconds, instead of asking the
    /// server for each request. All gateways together can then let through `count` requests, plus those that other
    /// gateways let through since the last synchronization. At least 0.1, and less than `time_window`; -1 disables it.
    /// Not available with the policy `local`, nor with sliding windows.
    #[serde(default = "default_sync_interval")]
    #[schemars(extend("x-weir-unit" = "s"))]
    sync_interval: f64,
}
}

/// One of several limits.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CountRuleOptions {
    /// The maximum number of requests in one window, or a `$variable` that holds the number.
    #[schemars(extend("type" = ["integer", "string"]))]
    count: Value,
    /// The length of a window in seconds, or a `$variable` that holds it.
    #[schemars(extend("type" = ["integer", "string"]))]
    #[schemars(extend("x-weir-unit" = "s"))]
    time_window: Value,
    /// The key by which requests are counted: text with `$variables`. The rule does not apply to a request in which all
    /// these variables are missing.
    key: String,
    /// The prefix in the names of the header fields of this rule: `X-<prefix>-RateLimit-Limit` and so on. The default
    /// is the number of the rule, counted from 1.
    header_prefix: Option<String>,
}

/// How the fields are called that tell clients what is left to them.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitCountMetadata {
    /// The name of the header field with the limit of requests in one window.
    limit_header: String,
    /// The name of the header field with the number of remaining requests.
    remaining_header: String,
    /// The name of the header field with the seconds until the window ends.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum WindowType {
    #[default]
    Fixed,
    Sliding,
}

fn default_key() -> String {
    "remote_addr".to_owned()
}

fn default_rejected_code() -> u16 {
    503
}

fn default_true() -> bool {
    true
}

fn default_sync_interval() -> f64 {
    -1.0
}

impl Definition for LimitCount {
    const NAME: &'static str = "limit-count";
    const PRIORITY: i32 = 1002;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str =
        "limit-count: { count: 100, time_window: 60, rejected_code: 429, rejected_msg: slow down }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let names = build.metadata::<LimitCount>();
        let replaceable = Replaceable::new(&replacement::LIMIT_COUNT, build);
        Ok(match self.limits(LimitCount::NAME, replaceable, &names, build)? {
            CountedLimits::Here(limiter) => Arc::new(limiter),
            CountedLimits::Server(limiter) => Arc::new(limiter),
        })
    }
}

impl LimitCount {
    /// Whether responses tell what is left.
    pub(super) fn shows_quota(&self) -> bool {
        self.show_limit_quota_header
    }

    /// The limits of a plugin with these options; `names` are those of the response fields.
    pub(super) fn limits(
        mut self,
        plugin: &str,
        replaceable: Replaceable,
        names: &LimitCountMetadata,
        build: &mut Build,
    ) -> Result<CountedLimits, ConfigError> {
        let (server, delay) = (self.counting(build), self.delay());
        let identity = build.keep(self.identity(plugin, build));
        let windows = self.windows(build);
        let quotas = self.quotas(delay.as_ref().is_ok_and(Option::is_some), &identity, names, build);
        let (server, delay, (windows, kept), quotas) = (server, delay, windows, quotas).all_of()?;
        let limiter = CountLimiter {
            replaceable,
            quotas: quotas.into(),
            windows,
            kept,
            refusal: RefusalResponse::error(self.rejected_code, self.rejected_msg.as_deref()),
            allow_degradation: self.allow_degradation,
            shown: LimitHeaders { usual: self.show_limit_quota_header, ietf: self.ietf_headers },
        };
        Ok(match server {
            None => CountedLimits::Here(limiter),
            Some(server) => {
                let delayed = delay.map(|interval| DelayedSync::new(interval, &identity, build));
                let remote = RedisCountLimiter { server, window: self.window_type, delayed };
                CountedLimits::Server(RedisLimitCount { remote, limiter })
            }
        })
    }

    /// The name of the counters: plugins of one group share them.
    fn identity(&self, plugin: &str, build: &Build) -> Result<String, ConfigError> {
        let Some(group) = &self.group else { return Ok(build.identity().to_owned()) };
        if self.rules.is_some() {
            return Err(ConfigError::new("group", "cannot be used with `rules`"));
        }
        // Without the owner of the plugin, which differs within a group and is part of the plugin's identity.
        let options = build.written_options().to_owned();
        if !build.agree(&format!("{plugin} group {group}"), &options) {
            let problem = format!(
                "`{group}` is used by another plugin with different options; all plugins of a group need the same options"
            );
            return Err(ConfigError::new("group", problem));
        }
        Ok(format!("{plugin} group {group}: {options}"))
    }

    /// The limits, each with its key.
    fn quotas(
        &mut self,
        is_delayed: bool,
        identity: &str,
        names: &LimitCountMetadata,
        build: &mut Build,
    ) -> Result<Vec<CountQuota>, ConfigError> {
        let max_count = match (self.window_type, is_delayed) {
            (WindowType::Fixed, false) => MAX_COUNT,
            _ => MAX_PAIRED_COUNT,
        };
        match (self.count.take(), self.time_window.take(), self.rules.take()) {
            (Some(count), Some(window), None) => {
                let key = LimitKey::compile(&self.key, self.key_type, "key", build);
                let quota = CountQuota::new(max_count, (&count, &window), key, "", identity, None);
                Ok(vec![quota?.renamed(names)?])
            }
            (None, None, Some(rules)) if !rules.is_empty() => {
                build.keep(unique_keys(rules.iter().map(|rule| &*rule.key)));
                let quota = |(index, rule): (usize, CountRuleOptions)| {
                    let path = format!("rules[{index}].");
                    let key = LimitKey::compile(&rule.key, KeyType::VarCombination, &format!("{path}key"), build)
                        .or_else(|_| LimitKey::compile(&rule.key, KeyType::Constant, "", build));
                    let prefix = rule.header_prefix.unwrap_or_else(|| (index + 1).to_string());
                    let name = format!("{identity} rule {index}");
                    CountQuota::new(max_count, (&rule.count, &rule.time_window), key, &path, &name, Some(prefix))
                };
                rules.into_iter().enumerate().map(quota).collect_all()
            }
            (_, _, Some(_)) => Err(ConfigError::new(
                "rules",
                "must not be empty, and cannot be combined with `count` or `time_window`",
            )),
            (count, ..) => {
                let missing = if count.is_none() { "count" } else { "time_window" };
                Err(ConfigError::new("", format!("needs `{missing}`, or `rules`")))
            }
        }
    }

    /// The counters, and what keeps them on disk.
    fn windows(&self, build: &Build) -> Result<(Windows, Option<Arc<dyn Startable>>), ConfigError> {
        if !self.durable {
            return Ok((Windows::new(self.window_type, build), None));
        }
        if self.policy != CounterPolicy::Local {
            return Err(ConfigError::new("durable", "has a meaning only with the policy `local`; leave it out"));
        }
        let (windows, kept) = Windows::durable(self.window_type, build).ok_or_else(|| {
            ConfigError::new("durable", "needs the node's `data_dir`: set it at the top, as `data_dir: /var/lib/weir`")
        })?;
        Ok((windows, Some(kept)))
    }

    /// The interval of synchronization with the server; `None` if the server is asked for each request.
    fn delay(&self) -> Result<Option<Duration>, ConfigError> {
        let wrong = |problem: &str| Err(ConfigError::new("sync_interval", problem));
        let shortest_s = match (&self.time_window, &self.rules) {
            (Some(window), _) => window.as_u64(),
            (None, Some(rules)) => rules.iter().filter_map(|rule| rule.time_window.as_u64()).min(),
            (None, None) => None,
        };
        match self.sync_interval {
            -1.0 => Ok(None),
            _ if self.policy == CounterPolicy::Local => wrong("has no meaning with the policy `local`; leave it out"),
            _ if self.window_type == WindowType::Sliding => {
                wrong("is not supported with sliding windows; leave it out")
            }
            // As in APISIX.
            seconds if !(0.1..=86_400.0).contains(&seconds) => wrong("must be from 0.1 to 86400 seconds, or -1"),
            seconds if shortest_s.is_some_and(|window_s| seconds >= window_s as f64) => {
                wrong("must be less than `time_window`")
            }
            seconds => Ok(Some(Duration::from_secs_f64(seconds))),
        }
    }
}

impl HasMetadata for LimitCount {
    type Metadata = LimitCountMetadata;
}

impl PluginMetadata for LimitCountMetadata {
    fn check(self) -> Result<(), ConfigError> {
        let names = (
            header_name(&self.limit_header, "limit_header"),
            header_name(&self.remaining_header, "remaining_header"),
            header_name(&self.reset_header, "reset_header"),
        );
        names.all_of().map(drop)
    }
}

/// Limits whose counters are in this process, or on a Redis server.
pub(super) enum CountedLimits {
    Here(CountLimiter),
    Server(RedisLimitCount),
}

impl CountedLimits {
    fn limiter(&self) -> &CountLimiter {
        match self {
            CountedLimits::Here(limiter) => limiter,
            CountedLimits::Server(limiter) => &limiter.limiter,
        }
    }

    pub(super) fn phases(&self) -> Phases {
        self.limiter().phases()
    }

    pub(super) fn start(&self) -> Result<(), String> {
        self.limiter().start()
    }

    /// Counts a request that costs as much as `cost` requests. It costs nothing if one of several rules refuses it.
    pub(super) fn take<'a>(&'a self, exchange: &'a mut Exchange, cost: u64) -> Result<Flow<'a>, Stop> {
        let is_checked = self.limiter().quotas.len() > 1;
        let check = is_checked.then(|| CountedAmount::none_of(cost));
        let mut steps = check.into_iter().chain([CountedAmount::whole(cost)]);
        match self {
            CountedLimits::Here(limiter) => {
                steps.try_for_each(|step| limiter.take(exchange, step)).map(|()| Flow::Continue)
            }
            CountedLimits::Server(limiter) => Ok(Flow::wait(async move {
                for step in steps {
                    limiter.take(exchange, step).await?;
                }
                Ok(())
            })),
        }
    }

    /// Tells the client what is left.
    pub(super) fn show(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        self.limiter().on_response(exchange)
    }
}

pub(super) struct CountLimiter {
    replaceable: Replaceable,
    quotas: Box<[CountQuota]>,
    windows: Windows,
    /// Keeps the counters on disk.
    kept: Option<Arc<dyn Startable>>,
    refusal: RefusalResponse,
    allow_degradation: bool,
    shown: LimitHeaders,
}

impl CountLimiter {
    fn take(&self, exchange: &mut Exchange, cost: CountedAmount) -> Result<(), Stop> {
        let now = clock::now();
        for quota in &self.quotas {
            let Some(asked) = quota.ask(exchange, self.allow_degradation)? else { continue };
            let verdict = self.windows.take(quota, asked, exchange, cost, now);
            quota.note(exchange, asked, verdict);
            if !verdict.accepted {
                return Err(self.refusal.send(exchange));
            }
        }
        Ok(())
    }
}

impl Plugin for CountLimiter {
    fn phases(&self) -> Phases {
        let is_shown = self.shown.usual || self.shown.ietf;
        Phases { response: is_shown, start: self.kept.is_some(), ..Phases::REQUEST }
    }

    fn start(&self) -> Result<(), String> {
        self.kept.as_ref().map_or(Ok(()), |kept| kept.start())
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        if self.replaceable.is_replaced(exchange) {
            return Ok(Flow::Continue);
        }
        self.take(exchange, CountedAmount::whole(1))?;
        Ok(Flow::Continue)
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        self.quotas.iter().try_for_each(|quota| quota.show(exchange, self.shown))
    }
}

/// Limits whose counters are on a Redis server.
pub(super) struct RedisLimitCount {
    limiter: CountLimiter,
    remote: RedisCountLimiter,
}

impl RedisLimitCount {
    async fn take(&self, exchange: &mut Exchange, cost: CountedAmount) -> Result<(), Stop> {
        let CountLimiter { quotas, refusal, allow_degradation, .. } = &self.limiter;
        for quota in quotas {
            let Some(asked) = quota.ask(exchange, *allow_degradation)? else { continue };
            match self.remote.take(quota, asked, exchange, cost, clock::now()).await {
                Ok(verdict) => {
                    quota.note(exchange, asked, verdict);
                    if !verdict.accepted {
                        return Err(refusal.send(exchange));
                    }
                }
                Err(NoRedisAnswer) if *allow_degradation => exchange.note_service_failure(),
                Err(NoRedisAnswer) => return Err(Stop::Respond(500)),
            }
        }
        Ok(())
    }
}

impl Plugin for RedisLimitCount {
    fn phases(&self) -> Phases {
        self.limiter.phases()
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        match self.limiter.replaceable.is_replaced(exchange) {
            true => Ok(Flow::Continue),
            false => Ok(Flow::wait(self.take(exchange, CountedAmount::whole(1)))),
        }
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        self.limiter.on_response(exchange)
    }
}
