use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request};
use http_body_util::Full;
use hyper::body::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_client::IdleConnections;
use weir_plugin::{AllOf, Build, ConfigError, Definition, HasMetadata, Plugin, Stage};
use weir_records::{Destination, Record, RecordSending, SendOutcome};
use weir_services::http_answer;
use weir_services::http_service::HttpService;
use weir_services::receivers::secret_header_value;

use crate::log::bodies::BodyOptions;
use crate::log::captured::RecordWriter;
use crate::log::logger::{self, ExchangeLogger};
use crate::log::options::{self, BatchOptions, FormatOptions, LoggerMetadata, SinkIdentity};

/// Sends a record of each exchange to a service over HTTP, in batches of JSON.
///
/// Requests never wait for the logger. `/records` and the metric `weir_log_records_total` report the outcome of every
/// record. The values of the fields `Authorization`, `Cookie` and `Set-Cookie` are masked.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HttpLogger {
    /// The `http` or `https` URL of the service. A response with a status of 400 or more is a failure.
    #[schemars(extend("x-weir-reaches" = "server"))]
    uri: String,
    /// The value of the field `Authorization` of the requests.
    auth_header: Option<String>,
    /// Time-out for a batch, in seconds, including the time to connect.
    #[serde(default = "options::default_timeout_s")]
    #[schemars(range(min = 1, max = 86_400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    timeout: u64,
    /// Whether the certificate of an `https` service is verified. Off by default in APISIX.
    #[serde(default = "options::default_true")]
    ssl_verify: bool,
    /// `json`: a batch is a JSON array, or a JSON object if `batch_max_size` is 1. `new_line`: a batch has one JSON
    /// object per line.
    #[serde(default)]
    concat_method: ConcatMethod,
    #[serde(flatten)]
    format: FormatOptions,
    #[serde(flatten)]
    batch: BatchOptions,
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

/// How long a connection is kept for the next batch.
const IDLE: Duration = Duration::from_secs(86_400);

impl Definition for HttpLogger {
    const NAME: &'static str = "http-logger";
    const PRIORITY: i32 = 410;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "http-logger: { uri: \"http://127.0.0.1:9000/logs\", batch_max_size: 100 }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let timeout = Duration::from_secs(self.timeout);
        let metadata = build.metadata::<HttpLogger>();
        let common = logger::compile_common((&self.bodies, &self.format, &self.batch), &metadata, build);
        let idle = IdleConnections { max_per_origin: 1, timeout: IDLE };
        let service = HttpService::parse(build.http(), &self.uri, self.ssl_verify, timeout, idle, "uri");
        let authorization = self.auth_header.as_deref().map(|text| secret_header_value(text, "auth_header"));
        let ((bodies, capture, batch), service, authorization) =
            (common, service, authorization.transpose()).all_of()?;
        let sink = SinkIdentity::new(format!("http-logger {}", service.name()), &[&self.uri]);
        let options = batch.named(sink);
        let receiver = HttpReceiver {
            service,
            authorization,
            method: self.concat_method,
            is_single: self.batch.is_single(),
            writer: RecordWriter::default(),
        };
        Ok(ExchangeLogger::with_batches::<Self>(build, (capture, bodies), options, receiver))
    }
}

impl HasMetadata for HttpLogger {
    type Metadata = LoggerMetadata;
}

/// A receiver and the format of its batches.
struct HttpReceiver {
    service: HttpService,
    authorization: Option<HeaderValue>,
    method: ConcatMethod,
    is_single: bool,
    writer: RecordWriter,
}

impl HttpReceiver {
    fn packed(&self, batch: &[Record]) -> (&'static str, Vec<u8>) {
        if self.method == ConcatMethod::Json {
            return ("application/json", self.writer.list(batch, self.is_single));
        }
        ("text/plain", self.writer.lines(batch))
    }
}

impl Destination for HttpReceiver {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        let (content_type, body) = self.packed(batch);
        let bytes = body.len();
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
        Box::pin(async move {
            match self.service.ask(request, http_answer::MOST_BYTES).await {
                Ok(answer) if answer.status().is_success() => SendOutcome::Taken,
                Ok(answer) => http_answer::strict_failure(&answer),
                Err(error) => http_answer::no_answer(&error, bytes),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use weir_client::HttpClient;

    use super::*;
    use crate::testing::{captured, refused};

    #[test]
    fn batches_look_as_asked_for() {
        let (client, idle) = (HttpClient::default(), IdleConnections::default());
        let packed = |method, is_single, count: u64| {
            let service = HttpService::parse(&client, "http://a", false, Duration::ZERO, idle, "").expect("valid");
            let writer = RecordWriter::default();
            let batch: Vec<Record> = (1..=count).map(|number| captured(number, json!({"a": number}))).collect();
            let receiver = HttpReceiver { service, authorization: None, method, is_single, writer };
            String::from_utf8(receiver.packed(&batch).1).expect("text")
        };
        assert_eq!(packed(ConcatMethod::Json, false, 2), r#"[{"a":1},{"a":2}]"#);
        assert_eq!(packed(ConcatMethod::Json, true, 1), r#"{"a":1}"#);
        assert_eq!(packed(ConcatMethod::NewLine, false, 2), "{\"a\":1}\n{\"a\":2}");
        let _: Value = serde_json::from_str(&packed(ConcatMethod::Json, false, 1)).expect("JSON");
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "the option `uri` is missing"),
            (json!({"uri": "/logs"}), "uri: `/logs` is not a URL"),
            (json!({"uri": "http://a", "auth_header": "a\nb"}), "auth_header: has a character"),
            (json!({"uri": "http://a", "nonsense": 0}), "nonsense: the option `nonsense` is not known"),
            (json!({"uri": "http://a", "concat_method": "csv"}), "concat_method: `csv` is not an allowed value"),
        ] {
            let error = refused::<HttpLogger>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
