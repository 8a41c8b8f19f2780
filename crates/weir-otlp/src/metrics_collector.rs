//! Sends the metrics of the node to an OpenTelemetry collector.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_client::HttpClient;
use weir_plugin::{AllOf, ConfigError};
use weir_services::receivers::{ReceiverOptions, Receivers, header_fields};
use weir_telemetry::page::MetricFamily;

use crate::answer::ExportAnswer;
use crate::metrics::{self, MetricsPeriod};
use crate::resource::{ResourceSpec, SCOPE, resource};
use crate::service::{OtlpProtocol, OtlpService, OtlpSignal};

/// The collector of the metrics.
#[derive(Clone, Debug)]
pub struct MetricsCollectorOptions {
    /// An `http` or `https` URL; see [`OtlpProtocol`].
    pub endpoint: String,
    pub protocol: OtlpProtocol,
    /// Header fields that are added to the requests.
    pub headers: BTreeMap<String, String>,
    /// For one request, including the time to connect.
    pub timeout: Duration,
    /// Whether the certificate of the collector is verified.
    pub verify: bool,
    /// Attributes of the resource; `service.name` is `weir` unless it is set.
    pub resource: BTreeMap<String, ResourceSpec>,
}

/// The most bytes of a request at first. Servers of gRPC accept 4 MiB unless they are told otherwise.
const MOST_BYTES: usize = 2 << 20;
/// If a collector says that this is too large, smaller requests do not help.
const LEAST_BYTES: usize = 16 << 10;

/// A collector that accepts metrics. It is used within a `tokio::task::LocalSet`, like its HTTP client.
pub struct MetricsCollector {
    service: OtlpService,
    resource: Vec<u8>,
    most_bytes: usize,
}

/// What became of the metrics.
#[derive(Debug, PartialEq, Eq)]
pub enum MetricsExported {
    /// The collector has accepted them, without this many data points.
    Taken { rejected: u64, why: String },
    /// It will accept later ones: after this time, if it has said when.
    Later { error: String, after: Option<Duration> },
    /// It will not accept the like of them.
    Refused(String),
}

impl MetricsCollector {
    /// # Errors
    /// An option is invalid.
    pub fn new(options: &MetricsCollectorOptions, client: &HttpClient) -> Result<MetricsCollector, ConfigError> {
        let MetricsCollectorOptions { endpoint, protocol, headers, timeout, verify, resource: attributes } = options;
        let receiver = ReceiverOptions { option: "endpoint", verify: *verify, timeout: *timeout };
        let service = Receivers::one(client, endpoint, &receiver)
            .and_then(|receivers| OtlpService::new(receivers, *protocol, OtlpSignal::Metrics, ("endpoint", *timeout)));
        let (service, fields) = (service, header_fields(headers, "headers")).all_of()?;
        let service = service.with_fields(fields);
        Ok(MetricsCollector { service, resource: resource(attributes, "weir"), most_bytes: MOST_BYTES })
    }

    /// The origin of the collector, for messages.
    pub fn name(&self) -> String {
        self.service.name()
    }

    /// Sends the metrics, in several requests if they are many.
    pub async fn export(&mut self, families: &[MetricFamily], period: MetricsPeriod) -> MetricsExported {
        'again: loop {
            let requests = metrics::requests(&self.resource, SCOPE, families, period, self.most_bytes);
            let (mut rejected, mut why) = (0_u64, String::new());
            for request in requests {
                match self.service.export(request).await {
                    ExportAnswer::Taken { rejected: 0, .. } => {}
                    ExportAnswer::Taken { rejected: more, why: reason } => {
                        (rejected, why) = (rejected.saturating_add(more), reason);
                    }
                    // Points that are sent again have the same time and value, so a collector keeps one of them.
                    ExportAnswer::TooLarge(_) if self.most_bytes > LEAST_BYTES => {
                        self.most_bytes /= 2;
                        continue 'again;
                    }
                    ExportAnswer::Retry { error, after, .. } => return MetricsExported::Later { error, after },
                    ExportAnswer::TooLarge(error) | ExportAnswer::Invalid(error) | ExportAnswer::Refused(error) => {
                        return MetricsExported::Refused(error);
                    }
                }
            }
            return MetricsExported::Taken { rejected, why };
        }
    }
}
