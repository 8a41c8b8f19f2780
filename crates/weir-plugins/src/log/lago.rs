use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http::header::AUTHORIZATION;
use http::uri::PathAndQuery;
use hyper::body::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_plugin::{AllOf, Build, ConfigError, Definition, HasMetadata, Plugin, PluginMetadata, Stage};
use weir_records::{Destination, Outcome, Record, RecordSending, RejectReason, SendOutcome};
use weir_services::http_answer;
use weir_services::receivers::{ReceiverOptions, Receivers, secret_header_value};

use crate::log::bodies::BodyCaptures;
use crate::log::capture::Capture;
use crate::log::captured;
use crate::log::json::{JsonObjectWriter, known};
use crate::log::logger::ExchangeLogger;
use crate::log::options::{self, BatchOptions, SinkIdentity};

/// Sends a usage event for each exchange to Lago, which bills by them.
///
/// An event has the values of the templates of these options at the end of the exchange. Lago recognises an event that it has already by
/// `event_transaction_id`; such an event counts as delivered. Requests never wait for the plugin. `/records` and the metric
/// `weir_log_records_total` report the outcome of every event.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lago {
    /// The servers, as `http` or `https` URLs, such as `https://api.getlago.com`. Batches are sent to the servers in turn. A server that
    /// fails is skipped for 30 seconds, as long as another server works.
    #[schemars(extend("x-weir-reaches" = "server"))]
    endpoint_addrs: Vec<String>,
    /// The path of the API for batches of events.
    #[serde(default = "default_endpoint_uri")]
    #[schemars(length(min = 1))]
    endpoint_uri: String,
    /// The API key of the organization.
    token: String,
    /// The id of an event, different for each: a text with `$variables`, such as `$request_id`.
    event_transaction_id: String,
    /// The external id of the subscription, a text with `$variables`, such as `customer_$consumer_name`.
    event_subscription_id: String,
    /// The code of the billable metric.
    event_code: String,
    /// The properties of an event: names, and values with `$variables`.
    #[serde(default)]
    #[schemars(extend("maxProperties" = MAX_PROPERTIES))]
    event_properties: BTreeMap<String, String>,
    /// Whether the certificate of an `https` server is verified.
    #[serde(default = "options::default_true")]
    ssl_verify: bool,
    /// Time-out for a batch, in milliseconds, including the time to connect.
    #[serde(default = "options::default_timeout_ms")]
    #[schemars(range(min = 1, max = 60000))]
    #[schemars(extend("x-weir-unit" = "ms"))]
    timeout: u64,
    /// Has no effect: connections are always kept for the next batch.
    #[serde(default, rename = "keepalive")]
    #[schemars(extend("deprecated" = true))]
    _keepalive: Option<bool>,
    /// Has no effect.
    #[serde(default, rename = "keepalive_timeout")]
    #[schemars(extend("deprecated" = true))]
    _keepalive_timeout: Option<u64>,
    /// Has no effect: there is one connection for each server.
    #[serde(default, rename = "keepalive_pool")]
    #[schemars(extend("deprecated" = true))]
    _keepalive_pool: Option<u64>,
    #[serde(flatten)]
    batch: BatchOptions,
    // Behind the options of all loggers, whose description and default of this one it replaces.
    /// The maximum number of events in a batch. Lago accepts 100, unless it is configured otherwise.
    #[serde(default = "default_batch_max_size")]
    #[schemars(range(min = 1))]
    batch_max_size: usize,
}

/// Properties of an event: a record counts its hidden texts in a byte.
const MAX_PROPERTIES: usize = 200;

fn default_endpoint_uri() -> String {
    "/api/v1/events/batch".to_owned()
}

fn default_batch_max_size() -> usize {
    100
}

/// What holds for every `lago`.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LagoMetadata {
    /// The maximum number of events that wait in memory. Further events are dropped, or go to the disk if the plugin has a `spool`.
    /// Without it, only the memory that the events take is limited. APISIX's default is 8192.
    #[schemars(range(min = 1, max = 1048576))]
    max_pending_entries: Option<usize>,
}

impl PluginMetadata for LagoMetadata {}

impl Definition for Lago {
    const NAME: &'static str = "lago";
    const PRIORITY: i32 = 415;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"lago: { endpoint_addrs: ["http://127.0.0.1:3000"], token: $env://LAGO_TOKEN, event_transaction_id: $request_id, event_subscription_id: $consumer_name, event_code: calls }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let metadata = build.metadata::<Lago>();
        let mut hidden = vec![
            build.template_of_record(&self.event_transaction_id, "event_transaction_id"),
            build.template_of_record(&self.event_subscription_id, "event_subscription_id"),
        ];
        for (name, text) in &self.event_properties {
            hidden.push(build.template_of_record(text, &format!("event_properties.{name}")));
        }
        // An event has nothing of an ordinary record.
        let capture = Capture::compile(Some(&Map::new()), None, build);
        if !self.endpoint_uri.starts_with('/') || self.endpoint_uri.parse::<PathAndQuery>().is_err() {
            build.fault("endpoint_uri", "must be a path: write as `/api/v1/events/batch`");
        }
        let sink = self.batch.compile(metadata.max_pending_entries, build);
        let timeout = Duration::from_millis(self.timeout);
        let options = ReceiverOptions { option: "endpoint_addrs", verify: self.ssl_verify, timeout };
        let receivers = Receivers::parse(build.http(), &self.endpoint_addrs, &options);
        let token = secret_header_value(&format!("Bearer {}", self.token), "token");
        let (capture, mut sink, mut receivers, token) = (capture, sink, receivers, token).all_of()?;
        sink.batching.max_records = self.batch_max_size;
        receivers.headers.insert(AUTHORIZATION, token);
        let name = format!("lago {}", receivers.name());
        let names: Vec<&str> = self.event_properties.keys().map(String::as_str).collect();
        // The token decides whose events they are.
        let place = [&*self.endpoint_uri, &self.event_code, &names.join(","), &self.token];
        let names = self.event_properties.keys().cloned().collect();
        let format = Arc::new(LagoFormat { code: self.event_code.clone(), names });
        let shown = Arc::clone(&format);
        let sink = sink.showing(move |record| {
            let mut event = Vec::new();
            shown.event(record, &mut event);
            event
        });
        let options = sink.named(SinkIdentity::new(name, &place));
        let parts = (capture.with_hidden(hidden).without_tests(), BodyCaptures::none());
        let events = LagoEvents { receivers, path: self.endpoint_uri, format };
        Ok(ExchangeLogger::with_batches::<Self>(build, parts, options, events))
    }
}

impl HasMetadata for Lago {
    type Metadata = LagoMetadata;
}

struct LagoEvents {
    receivers: Receivers,
    path: String,
    format: Arc<LagoFormat>,
}

/// What events are made with.
struct LagoFormat {
    code: String,
    /// The names of the properties. Their values are in the records, behind the two ids.
    names: Vec<String>,
}

impl LagoFormat {
    fn packed(&self, batch: &[Record]) -> Vec<u8> {
        let mut body = b"{\"events\":[".to_vec();
        for (index, record) in batch.iter().enumerate() {
            body.extend((index > 0).then_some(b','));
            self.event(record, &mut body);
        }
        body.extend_from_slice(b"]}");
        body
    }

    fn event(&self, record: &Record, out: &mut Vec<u8>) {
        let mut values = captured::hidden(record).into_iter();
        let end_ms = captured::end_ms(record);
        let mut event = JsonObjectWriter::begin(out);
        event.text(known!("transaction_id"), values.next().unwrap_or_default());
        event.text(known!("external_subscription_id"), values.next().unwrap_or_default());
        event.text(known!("code"), self.code.as_bytes());
        event.value(known!("timestamp"), |out| {
            out.extend_from_slice(format!("{}.{:03}", end_ms / 1000, end_ms % 1000).as_bytes());
        });
        if !self.names.is_empty() {
            let mut properties = event.object(known!("properties"));
            self.names.iter().zip(values).for_each(|(name, value)| properties.text_bytes(name.as_bytes(), value));
        }
    }
}

impl Destination for LagoEvents {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        let body = self.format.packed(batch);
        let bytes = body.len();
        Box::pin(async move {
            match self.receivers.post(&self.path, "application/json", body).await {
                Ok(answer) => judge(&answer, batch.len()),
                Err(error) => http_answer::no_answer(&error, bytes),
            }
        })
    }
}

/// Lago stores a batch as a whole or not at all. If it refuses one (422), `error_details` has the faults of events by their index:
/// `{"0": {"transaction_id": ["value_already_exist"]}}`, or `{"events": ["too_many_events"]}` for the batch.
fn judge(answer: &Response<Bytes>, count: usize) -> SendOutcome {
    if answer.status().is_success() {
        return SendOutcome::Taken;
    }
    let report = serde_json::from_slice::<Value>(answer.body()).ok().filter(|_| answer.status().as_u16() == 422);
    let Some(Value::Object(details)) = report.and_then(|mut report| Some(report.get_mut("error_details")?.take()))
    else {
        return http_answer::strict_failure(answer);
    };
    if details.get("events").is_some_and(|faults| *faults == json!(["too_many_events"])) {
        return SendOutcome::TooLarge(http_answer::quoted(answer));
    }
    let outcome = |index: usize| match details.get(&index.to_string())? {
        faults if *faults == json!({"transaction_id": ["value_already_exist"]}) => Some(Outcome::Duplicate),
        _ => Some(Outcome::Rejected(RejectReason::Invalid)),
    };
    match (0..count).map(outcome).collect::<Option<Vec<_>>>() {
        Some(outcomes) => {
            let is_error = outcomes.iter().any(|outcome| *outcome != Outcome::Duplicate);
            SendOutcome::Each { outcomes, error: is_error.then(|| http_answer::quoted(answer)) }
        }
        // The other events are stored without those at fault.
        None => http_answer::strict_failure(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{captured_at, refused};

    #[test]
    fn events_have_the_values_of_the_templates() {
        let names = ["status", "tier"].map(str::to_owned).into();
        let events = LagoFormat { code: "calls".to_owned(), names };
        let batch = [
            captured_at(1_700_000_000_007, 1, json!({}), &[b"id-1", b"jack", b"200", b"gold\""]),
            captured_at(1_700_000_001_000, 2, json!({}), &[b"id-2", b"anna", b"404", b""]),
        ];
        let text = String::from_utf8(events.packed(&batch)).expect("text");
        assert_eq!(
            text,
            r#"{"events":[{"transaction_id":"id-1","external_subscription_id":"jack","code":"calls","timestamp":1700000000.007,"properties":{"status":"200","tier":"gold\""}},{"transaction_id":"id-2","external_subscription_id":"anna","code":"calls","timestamp":1700000001.000,"properties":{"status":"404","tier":""}}]}"#
        );
    }

    #[test]
    fn faults_of_events_are_told_from_events_that_lago_has() {
        let answer = |status: u16, details: Value| {
            let body = json!({"status": status, "error": "Unprocessable Entity", "error_details": details}).to_string();
            Response::builder().status(status).body(Bytes::from(body)).expect("valid")
        };
        let known = json!({"transaction_id": ["value_already_exist"]});
        let wrong = json!({"code": ["value_is_mandatory"]});
        assert!(matches!(judge(&answer(200, json!({})), 2), SendOutcome::Taken));
        let SendOutcome::Each { outcomes, error } = judge(&answer(422, json!({"0": known, "1": wrong})), 2) else {
            panic!("each fares for itself")
        };
        assert_eq!(outcomes, [Outcome::Duplicate, Outcome::Rejected(RejectReason::Invalid)]);
        assert!(error.is_some());
        let SendOutcome::Each { outcomes, error: None } = judge(&answer(422, json!({"0": known})), 1) else {
            panic!("it is there already")
        };
        assert_eq!(outcomes, [Outcome::Duplicate]);
        assert!(matches!(judge(&answer(422, json!({"1": known})), 2), SendOutcome::Invalid { .. }));
        let too_many = json!({"events": ["too_many_events"]});
        assert!(matches!(judge(&answer(422, too_many), 200), SendOutcome::TooLarge(_)));
        assert!(matches!(judge(&answer(401, json!({})), 1), SendOutcome::Failed { .. }));
        assert!(matches!(judge(&answer(500, json!({"0": wrong})), 1), SendOutcome::Failed { .. }));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let valid = json!({"endpoint_addrs": ["http://a"], "token": "t", "event_transaction_id": "$request_id",
            "event_subscription_id": "s", "event_code": "c"});
        for (name, value, want) in [
            ("token", Value::Null, "the option `token` is missing"),
            ("token", json!("a\nb"), "token: has a character"),
            ("endpoint_addrs", json!([]), "endpoint_addrs: is needed"),
            ("batch_max_size", json!(0), "batch_max_size"),
            ("endpoint_uri", json!("events"), "endpoint_uri: must be a path"),
            ("event_properties", json!({"a": 1}), "event_properties.a"),
        ] {
            let mut options = valid.clone();
            match value {
                Value::Null => drop(options.as_object_mut().expect("a map").remove(name)),
                value => options[name] = value,
            }
            let error = refused::<Lago>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
