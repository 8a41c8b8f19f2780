use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request};
use http_body_util::Full;
use hyper::body::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_client::IdleConnections;
use weir_plugin::{Build, ConfigError, Definition, Described, Exchange, Filter, Phases, Plugin, Stage, Stop};

use crate::http_service::HttpService;
use crate::log::bodies::{Bodies, BodyOptions};
use crate::log::entry::RecordFormat;
use crate::log::sink::{Batching, RecordSink};

/// Sends a record of each exchange to a service over HTTP, in batches of JSON.
///
/// No request waits for it. Records that cannot be delivered are lost, and counted as `weir_log_records_total` with the
/// outcome `dropped`. Values of `Authorization`, `Cookie` and `Set-Cookie` fields are not shown.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpLogger {
    /// The service, as an `http` or `https` URL. A status of 400 or more is a failure.
    uri: String,
    /// The `Authorization` of the batches.
    auth_header: Option<String>,
    /// Seconds the service may take for a batch, connecting included.
    #[serde(default = "three")]
    #[schemars(range(min = 1))]
    timeout: u64,
    /// Whether an `https` service has to prove with a certificate who it is. Off by default in APISIX.
    #[serde(default = "yes")]
    ssl_verify: bool,
    /// `json`: a batch is a list, or where `batch_max_size` is 1 an object. `new_line`: an object in each line.
    #[serde(default)]
    concat_method: ConcatMethod,
    /// What a record says instead of everything: names, and values with `$variables`.
    log_format: Option<Map<String, Value>>,
    /// What a record says besides.
    log_format_extra: Option<Map<String, Value>>,
    /// Records in a batch.
    #[serde(default = "thousand")]
    #[schemars(range(min = 1))]
    batch_max_size: usize,
    /// A batch to which nothing was added for so many seconds is sent.
    #[serde(default = "five")]
    #[schemars(range(min = 1))]
    inactive_timeout: u64,
    /// A batch that is so many seconds old is sent.
    #[serde(default = "sixty")]
    #[schemars(range(min = 1))]
    buffer_duration: u64,
    /// Further tries for a batch that could not be delivered.
    #[serde(default)]
    max_retry_count: u32,
    /// Seconds before each further try.
    #[serde(default = "one")]
    retry_delay: u64,
    /// What it is called. It has no effect.
    #[serde(default, rename = "name")]
    _name: Option<String>,
    #[serde(flatten)]
    bodies: BodyOptions,
}

/// How records become a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ConcatMethod {
    #[default]
    Json,
    NewLine,
}

/// What holds for every `http-logger`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HttpLoggerMetadata {
    /// What records say where a plugin has no `log_format` of its own.
    log_format: Option<Map<String, Value>>,
    /// What records say besides, where a plugin has no `log_format_extra` of its own.
    log_format_extra: Option<Map<String, Value>>,
    /// Records that wait for their delivery, for each service. Further ones are lost.
    max_pending_entries: usize,
}

impl Default for HttpLoggerMetadata {
    fn default() -> HttpLoggerMetadata {
        HttpLoggerMetadata { log_format: None, log_format_extra: None, max_pending_entries: 8192 }
    }
}

fn yes() -> bool {
    true
}

fn one() -> u64 {
    1
}

fn three() -> u64 {
    3
}

fn five() -> u64 {
    5
}

fn sixty() -> u64 {
    60
}

fn thousand() -> usize {
    1000
}

const DAY_S: u64 = 86_400;
/// Bytes of an answer that nobody reads.
const MOST_ANSWERED: usize = 64 * 1024;

impl Definition for HttpLogger {
    const NAME: &'static str = "http-logger";
    const PRIORITY: i32 = 410;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "http-logger: { uri: \"http://127.0.0.1:9000/logs\", batch_max_size: 100 }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let bodies = Bodies::compile(&self.bodies, build)?;
        for (seconds, option, least) in [
            (self.timeout, "timeout", 1),
            (self.inactive_timeout, "inactive_timeout", 1),
            (self.buffer_duration, "buffer_duration", 1),
            (self.retry_delay, "retry_delay", 0),
        ] {
            if !(least..=DAY_S).contains(&seconds) {
                return Err(ConfigError::new(option, format!("must be from {least} to {DAY_S} seconds")));
            }
        }
        if self.batch_max_size == 0 {
            return Err(ConfigError::new("batch_max_size", "must be at least 1"));
        }
        let metadata = build.metadata::<HttpLogger>();
        let entry = RecordFormat::compile(
            self.log_format.as_ref().or(metadata.log_format.as_ref()),
            self.log_format_extra.as_ref().or(metadata.log_format_extra.as_ref()),
            build,
        )?;
        let idle = IdleConnections { max_per_origin: 1, timeout: Duration::from_secs(DAY_S) };
        let timeout = Duration::from_secs(self.timeout);
        let service = HttpService::parse(build.http(), &self.uri, self.ssl_verify, timeout, idle, "uri")?;
        let authorization = self.auth_header.as_deref().map(|text| {
            let mut value = HeaderValue::from_str(text)
                .map_err(|_| ConfigError::new("auth_header", "has a character that no header field may have"))?;
            value.set_sensitive(true);
            Ok(value)
        });
        let authorization = authorization.transpose()?;
        let batching = Batching {
            most: self.batch_max_size,
            inactive: Duration::from_secs(self.inactive_timeout),
            oldest: Duration::from_secs(self.buffer_duration),
            retries: self.max_retry_count,
            retry_delay: Duration::from_secs(self.retry_delay),
            pending: metadata.max_pending_entries.max(1),
        };
        // The owner stands before the options: the same options elsewhere mean the same sink.
        let options = build.identity().split_once(": ").map_or("", |(_, options)| options);
        let identity = format!("http-logger {} {options}", batching.pending);
        let parcel = Parcel { service, authorization, method: self.concat_method, is_single: self.batch_max_size == 1 };
        let name = format!("http-logger {}", parcel.service.name());
        let sink = RecordSink::of(build, &identity, name, batching, move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
            Ok(move |batch: &[Vec<u8>]| runtime.block_on(parcel.deliver(batch)))
        });
        Ok(Arc::new(HttpRecordLogger { entry, bodies, sink }))
    }
}

impl Described for HttpLogger {
    type Metadata = HttpLoggerMetadata;

    fn check_metadata(metadata: HttpLoggerMetadata) -> Result<(), ConfigError> {
        if !(1..=1 << 20).contains(&metadata.max_pending_entries) {
            return Err(ConfigError::new("max_pending_entries", "must be from 1 to 1048576"));
        }
        // What is warned of is said where the settings are used.
        let build = &mut Build::default();
        RecordFormat::compile(metadata.log_format.as_ref(), metadata.log_format_extra.as_ref(), build).map(drop)
    }
}

/// Records each exchange.
struct HttpRecordLogger {
    entry: RecordFormat,
    bodies: Bodies,
    sink: Arc<RecordSink>,
}

impl Plugin for HttpRecordLogger {
    fn phases(&self) -> Phases {
        self.bodies.phases().and(Phases::START)
    }

    fn start(&self) -> Result<(), String> {
        self.sink.start()
    }

    fn request_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        Ok(self.bodies.request_filter(exchange))
    }

    fn response_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        Ok(self.bodies.response_filter(exchange))
    }

    fn kept_bytes(&self, exchange: &Exchange) -> usize {
        self.bodies.kept_bytes(exchange)
    }

    fn on_log(&self, exchange: &Exchange) {
        self.sink.record(self.entry.write(exchange, &self.bodies));
    }
}

/// How a batch gets to its service.
struct Parcel {
    service: HttpService,
    authorization: Option<HeaderValue>,
    method: ConcatMethod,
    is_single: bool,
}

impl Parcel {
    fn packed(&self, batch: &[Vec<u8>]) -> (&'static str, Vec<u8>) {
        match self.method {
            ConcatMethod::NewLine => ("text/plain", batch.join(&b'\n')),
            ConcatMethod::Json if self.is_single => ("application/json", batch.concat()),
            ConcatMethod::Json => ("application/json", [&b"["[..], &batch.join(&b','), b"]"].concat()),
        }
    }

    async fn deliver(&self, batch: &[Vec<u8>]) -> Result<(), String> {
        let (content_type, body) = self.packed(batch);
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.service.target.parse().map_err(|_| "its path is none".to_owned())?;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
        let answer = self.service.ask(request, MOST_ANSWERED).await.map_err(|failure| failure.to_string())?;
        match answer.status().as_u16() {
            0..400 => Ok(()),
            status => Err(format!("the answer is {status}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_client::HttpClient;

    use super::*;
    use crate::testing::refused;

    #[test]
    fn batches_look_as_asked_for() {
        let (client, idle) = (HttpClient::default(), IdleConnections::default());
        let packed = |method, is_single, batch: &[&str]| {
            let service = HttpService::parse(&client, "http://a", false, Duration::ZERO, idle, "").expect("valid");
            let batch: Vec<Vec<u8>> = batch.iter().map(|text| text.as_bytes().to_vec()).collect();
            let (_, body) = Parcel { service, authorization: None, method, is_single }.packed(&batch);
            String::from_utf8(body).expect("text")
        };
        assert_eq!(packed(ConcatMethod::Json, false, &["{}", "{\"a\":1}"]), "[{},{\"a\":1}]");
        assert_eq!(packed(ConcatMethod::Json, true, &["{}"]), "{}");
        assert_eq!(packed(ConcatMethod::NewLine, false, &["{}", "{}"]), "{}\n{}");
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "missing field `uri`"),
            (json!({"uri": "/logs"}), "uri: `/logs` is no URL"),
            (json!({"uri": "http://a", "batch_max_size": 0}), "batch_max_size: must be at least 1"),
            (json!({"uri": "http://a", "timeout": 0}), "timeout: must be from 1"),
            (json!({"uri": "http://a", "auth_header": "a\nb"}), "auth_header: has a character"),
            (json!({"uri": "http://a", "max_req_body_bytes": 0}), "max_req_body_bytes: must be from 1"),
            (json!({"uri": "http://a", "nonsense": 0}), "unknown field `nonsense`"),
            (json!({"uri": "http://a", "concat_method": "csv"}), "concat_method: unknown variant"),
        ] {
            let error = refused::<HttpLogger>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
