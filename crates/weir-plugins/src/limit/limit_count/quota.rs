//! One limit: its count, window and key, and the response fields that report what is left.

use serde_json::Value;
use weir_plugin::proto::decimal::Decimal;
use weir_plugin::proto::field::{Name, PreparedField};
use weir_plugin::proto::head::{BadField, Head};
use weir_plugin::{AllOf, ConfigError, Exchange, NoteKey, Stop};

use super::LimitCountMetadata;
use crate::limit::key::{Amount, LimitKey, digest};
use crate::store::counters;

/// A leap year; fits into `WINDOW_BITS`.
pub(in crate::limit) const MAX_WINDOW_S: u64 = 366 * 86_400;
const WINDOW_BITS: u32 = 25;
/// The largest count in a counter of a fixed window.
pub(in crate::limit) const MAX_COUNT: u64 = (1 << 44) - 1;
/// The largest count in a counter of a sliding window, which stores two.
pub(in crate::limit) const MAX_PAIRED_COUNT: u64 = (1 << 28) - 1;

/// One limit.
pub(super) struct CountQuota {
    count: Amount,
    max_count: u64,
    /// The complete field with the limit, if the limit is the same for all requests.
    fixed_limit_field: Option<PreparedField>,
    window: Amount,
    pub(super) key: LimitKey,
    /// Whether it is one of several rules: these do not apply to requests that have none of the key's variables.
    is_rule: bool,
    pub(super) name: u64,
    /// The prefix of its keys in a Redis server.
    pub(super) title: Box<str>,
    note: NoteKey,
    fields: FieldNames,
}

/// The limit and window that apply to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::limit) struct EffectiveLimit {
    pub(in crate::limit) limit: u64,
    pub(in crate::limit) window_s: u64,
}

/// The result of counting one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::limit) struct LimitDecision {
    pub(in crate::limit) accepted: bool,
    pub(in crate::limit) remaining: u64,
    pub(in crate::limit) reset_ms: u64,
}

/// The kinds of response fields that report limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitHeaders {
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, or as the metadata names them.
    pub(super) usual: bool,
    /// `RateLimit` and `RateLimit-Policy` of the IETF's draft.
    pub(super) ietf: bool,
}

struct FieldNames {
    limit: Name,
    remaining: Name,
    reset: Name,
    /// The name of the policy in the IETF's fields.
    policy: Box<str>,
}

impl CountQuota {
    /// `path` is the path of the limit in the options, and `prefix` the prefix of the response fields of one of several rules.
    pub(super) fn new(
        max_count: u64,
        (count, window): (&Value, &Value),
        key: Result<LimitKey, ConfigError>,
        path: &str,
        name: &str,
        prefix: Option<String>,
    ) -> Result<CountQuota, ConfigError> {
        let field = |last: &str| {
            let name = match &prefix {
                Some(prefix) => format!("X-{prefix}-RateLimit-{last}"),
                None => format!("X-RateLimit-{last}"),
            };
            Name::new(name.as_bytes()).ok_or_else(|| {
                ConfigError::new(format!("{path}header_prefix"), "cannot be part of a header field name")
            })
        };
        let limit = field("Limit").and_then(|limit| Ok((limit, field("Remaining")?, field("Reset")?)));
        let count = Amount::compile(count, 1..=max_count, &format!("{path}count"));
        let window = Amount::compile(window, 1..=MAX_WINDOW_S, &format!("{path}time_window"));
        let (count, window, key, (limit, remaining, reset)) = (count, window, key, limit).all_of()?;
        Ok(CountQuota {
            fixed_limit_field: fixed_limit_field(&count, &limit),
            count,
            max_count,
            window,
            key,
            is_rule: prefix.is_some(),
            name: counters::name(name),
            title: format!("weir:limit-count:{}", digest(name.as_bytes())).into(),
            note: NoteKey::unique(),
            fields: FieldNames { limit, remaining, reset, policy: prefix.as_deref().unwrap_or("default").into() },
        })
    }

    /// Uses the names of fields from the plugin metadata.
    pub(super) fn renamed(mut self, names: &LimitCountMetadata) -> Result<CountQuota, ConfigError> {
        self.fields.limit = field_name(&names.limit_header)?;
        self.fixed_limit_field = fixed_limit_field(&self.count, &self.fields.limit);
        self.fields.remaining = field_name(&names.remaining_header)?;
        self.fields.reset = field_name(&names.reset_header)?;
        Ok(self)
    }

    /// The limit for a request; `None` if this rule does not apply to it. A variable that holds no number is an error,
    /// unless `allow_degradation` is set.
    pub(super) fn ask(&self, exchange: &Exchange, allow_degradation: bool) -> Result<Option<EffectiveLimit>, Stop> {
        if self.is_rule && !self.key.is_present(exchange) {
            return Ok(None);
        }
        match (self.count.of(exchange, 1..=self.max_count), self.window.of(exchange, 1..=MAX_WINDOW_S)) {
            (Some(limit), Some(window_s)) => Ok(Some(EffectiveLimit { limit, window_s })),
            _ if allow_degradation => Ok(None),
            _ => Err(Stop::Respond(500)),
        }
    }

    /// Stores the decision in a note of the exchange, for the response.
    pub(super) fn note(&self, exchange: &mut Exchange, asked: EffectiveLimit, verdict: LimitDecision) {
        let EffectiveLimit { limit, window_s } = asked;
        let LimitDecision { accepted, remaining, reset_ms } = verdict;
        let note = [limit, remaining << 1 | u64::from(!accepted), reset_ms << WINDOW_BITS | window_s];
        exchange.notes.write(self.note, note);
    }

    /// Adds the response fields for the stored decision, if there is one.
    pub(super) fn show(&self, exchange: &mut Exchange, shown: LimitHeaders) -> Result<(), Stop> {
        let Some([limit, outcome, times]) = exchange.notes.read(self.note) else { return Ok(()) };
        let (remaining, refused) = (outcome >> 1, outcome & 1 == 1);
        let (reset_ms, window_s) = (times >> WINDOW_BITS, times & ((1 << WINDOW_BITS) - 1));
        let head = &mut exchange.response.head;
        // Fails only for invalid values, which numbers never are.
        self.add_fields(head, shown, [limit, remaining, window_s], reset_ms).map_err(|_| Stop::Internal)?;
        if refused {
            let retry_after = reset_ms.div_ceil(1000).to_string();
            head.set(b"Retry-After", retry_after.as_bytes()).map_err(|_| Stop::Internal)?;
        }
        Ok(())
    }

    fn add_fields(
        &self,
        head: &mut Head,
        shown: LimitHeaders,
        [limit, remaining, window_s]: [u64; 3],
        reset_ms: u64,
    ) -> Result<(), BadField> {
        let names = &self.fields;
        if shown.usual {
            head.remove_named([&names.limit, &names.remaining, &names.reset]);
            match &self.fixed_limit_field {
                Some(line) => head.add_prepared_field(line),
                None => head.add_number(&names.limit, &Decimal::whole(limit)),
            }
            head.add_number(&names.remaining, &Decimal::whole(remaining));
            head.add_number(&names.reset, &Decimal::hundredths(reset_ms.div_ceil(10)));
        }
        if shown.ietf {
            let policy = &names.policy;
            head.add(b"RateLimit-Policy", format!("\"{policy}\";q={limit};w={window_s}").as_bytes())?;
            let reset = reset_ms.div_ceil(1000);
            head.add(b"RateLimit", format!("\"{policy}\";r={remaining};t={reset}").as_bytes())?;
        }
        Ok(())
    }
}

/// The complete field with the limit, if the limit is the same for all requests.
fn fixed_limit_field(count: &Amount, name: &Name) -> Option<PreparedField> {
    count.fixed().and_then(|count| name.with(count.to_string().as_bytes()))
}

/// A field name from the metadata. An invalid one is reported there, and once more by each plugin that uses it.
fn field_name(name: &str) -> Result<Name, ConfigError> {
    Name::new(name.as_bytes())
        .ok_or_else(|| ConfigError::new("plugin_metadata", "has a name that no header field can have"))
}
