//! A collector, reached by OTLP over HTTP or over gRPC.

use std::time::Duration;

use http::Method;
use http::header::{HeaderMap, HeaderValue, TE};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_client::{CallError, HttpProtocol};
use weir_plugin::ConfigError;
use weir_services::grpc_call::framed;
use weir_services::receivers::{ReceiverRequest, Receivers};

use crate::answer::ExportAnswer;
use crate::grpc;

/// How exports are sent to a collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum OtlpProtocol {
    /// OTLP over HTTP, with protobuf.
    #[default]
    #[serde(rename = "http/protobuf")]
    Http,
    /// OTLP over gRPC.
    #[serde(rename = "grpc")]
    Grpc,
}

/// What is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtlpSignal {
    Traces,
    Logs,
    Metrics,
}

impl OtlpSignal {
    fn http_path(self) -> &'static str {
        match self {
            OtlpSignal::Traces => "/v1/traces",
            OtlpSignal::Logs => "/v1/logs",
            OtlpSignal::Metrics => "/v1/metrics",
        }
    }

    fn grpc_path(self) -> &'static str {
        match self {
            OtlpSignal::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            OtlpSignal::Logs => "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
            OtlpSignal::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
        }
    }
}

/// Collectors for one signal, which get exports in turn.
pub struct OtlpService {
    receivers: Receivers,
    protocol: OtlpProtocol,
    signal: OtlpSignal,
    timeout: Duration,
}

impl OtlpService {
    /// # Errors
    /// With gRPC, a URL has a path: a gRPC service is named by its host and port alone. `option` names the one with the URLs.
    pub fn new(
        mut receivers: Receivers,
        protocol: OtlpProtocol,
        signal: OtlpSignal,
        (option, timeout): (&str, Duration),
    ) -> Result<OtlpService, ConfigError> {
        if protocol == OtlpProtocol::Grpc {
            if receivers.have_paths() {
                return Err(ConfigError::new(
                    option,
                    "has a path, and a gRPC service has none: write as `http://127.0.0.1:4317`",
                ));
            }
            receivers.speak(HttpProtocol::Http2);
            receivers.headers.insert(TE, HeaderValue::from_static("trailers"));
        }
        Ok(OtlpService { receivers, protocol, signal, timeout })
    }

    /// Adds fields to every request.
    pub fn with_fields(mut self, fields: HeaderMap) -> OtlpService {
        let own = std::mem::replace(&mut self.receivers.headers, fields);
        self.receivers.headers.extend(own);
        self
    }

    /// The names of the collectors.
    pub fn name(&self) -> String {
        self.receivers.name()
    }

    /// Sends an `Export…ServiceRequest`.
    pub async fn export(&mut self, message: Vec<u8>) -> ExportAnswer {
        let bytes = message.len();
        match self.protocol {
            OtlpProtocol::Http => {
                match self.receivers.post(self.signal.http_path(), "application/x-protobuf", message).await {
                    Ok(answer) => ExportAnswer::of_http(&answer),
                    Err(error) => ExportAnswer::none(&error, bytes),
                }
            }
            OtlpProtocol::Grpc => self.call(&message).await.unwrap_or_else(|error| ExportAnswer::none(&error, bytes)),
        }
    }

    async fn call(&mut self, message: &[u8]) -> Result<ExportAnswer, CallError> {
        // The server learns for how long somebody waits for its answer; the value has at most eight digits.
        let deadline = format!("{}m", self.timeout.as_millis().min(99_999_999));
        if let Ok(value) = HeaderValue::try_from(deadline) {
            self.receivers.headers.insert("grpc-timeout", value);
        }
        let request = ReceiverRequest {
            method: Method::POST,
            path: self.signal.grpc_path(),
            content_type: "application/grpc",
            is_gzip: false,
            body: framed(message),
        };
        let answer = grpc::read(&self.receivers.ask(request).await?);
        if matches!(answer, ExportAnswer::Retry { .. }) {
            // The HTTP status is 200 whatever the gRPC status is.
            self.receivers.avoid_last();
        }
        Ok(answer)
    }
}
