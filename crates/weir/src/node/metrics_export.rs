//! `otlp_metrics`: sends the metrics of the node to an OpenTelemetry collector, on a thread of its own.
//!
//! Metrics are cumulative, so an export that fails loses nothing: the next one has newer values. Exports are therefore not kept.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep_until};
use tracing::warn;
use weir_client::HttpClient;
use weir_control::document::{MetricsProtocol, OtlpMetricsSettings, ResourceAttribute};
use weir_otlp::metrics::MetricsPeriod;
use weir_otlp::metrics_collector::{MetricsCollector, MetricsCollectorOptions, MetricsExported};
use weir_otlp::resource::ResourceSpec;
use weir_otlp::service::OtlpProtocol;
use weir_records::{Retries, RetryPauses};
use weir_telemetry::process;

use super::state::NodeState;
use crate::say::say;

/// The least time between two lines about a collector that fails.
const SAID_EVERY: Duration = Duration::from_secs(60);

enum ExportOrder {
    /// From now on, export to this collector.
    Follow(Option<Box<(OtlpMetricsSettings, HttpClient)>>),
    /// Export once more, and end.
    Finish,
}

/// Exports metrics until it is dropped.
pub(super) struct MetricsExporter {
    state: Arc<NodeState>,
    running: Mutex<RunningExport>,
}

#[derive(Default)]
struct RunningExport {
    /// What the thread was told last.
    followed: Option<(OtlpMetricsSettings, HttpClient)>,
    /// The thread's orders, and the end of the thread. It is started with the first collector.
    thread: Option<(UnboundedSender<ExportOrder>, mpsc::Receiver<()>)>,
}

impl MetricsExporter {
    pub(super) fn new(state: Arc<NodeState>) -> MetricsExporter {
        MetricsExporter { state, running: Mutex::default() }
    }

    /// Exports as these settings say, with this client for outgoing requests. Without a change, exports go on undisturbed.
    ///
    /// # Errors
    /// The system refuses to start a thread.
    pub(super) fn follow(&self, settings: Option<&OtlpMetricsSettings>, http: &HttpClient) -> io::Result<()> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let RunningExport { followed, thread } = &mut *running;
        let is_same = match (&*followed, settings) {
            (Some((before, client)), Some(now)) => before == now && client.settings() == http.settings(),
            (None, None) => true,
            _ => false,
        };
        if is_same {
            return Ok(());
        }
        let wanted = settings.map(|settings| (settings.clone(), http.clone()));
        let orders = match thread {
            Some((orders, _)) => orders,
            None => &thread.insert(spawn(Arc::clone(&self.state))?).0,
        };
        // The thread ends only after `finish`.
        let _ = orders.send(ExportOrder::Follow(wanted.clone().map(Box::new)));
        *followed = wanted;
        Ok(())
    }

    /// Exports the last values, for at most `patience`.
    pub(super) fn finish(&self, patience: Duration) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((orders, ended)) = running.thread.take() else { return };
        if orders.send(ExportOrder::Finish).is_ok() {
            // An error means that the thread has ended, or that it takes too long.
            let _ = ended.recv_timeout(patience);
        }
    }
}

fn spawn(state: Arc<NodeState>) -> io::Result<(UnboundedSender<ExportOrder>, mpsc::Receiver<()>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (sender, orders) = unbounded_channel();
    let (ends, ended) = mpsc::channel();
    std::thread::Builder::new().name("otlp-metrics".into()).spawn(move || {
        LocalSet::new().block_on(&runtime, export_all(orders, state));
        drop(ends);
    })?;
    Ok((sender, ended))
}

async fn export_all(mut orders: UnboundedReceiver<ExportOrder>, state: Arc<NodeState>) {
    let mut export: Option<MetricsExport> = None;
    loop {
        let due = export.as_ref().map(|export| export.due);
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(ExportOrder::Follow(wanted)) => export = wanted.and_then(|wanted| MetricsExport::new(*wanted)),
                Some(ExportOrder::Finish) => {
                    if let Some(export) = &mut export {
                        export.once(&state).await;
                    }
                    return;
                }
                None => return,
            },
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                if let Some(export) = &mut export {
                    export.once(&state).await;
                }
            }
        }
    }
}

/// The exports to one collector.
struct MetricsExport {
    collector: MetricsCollector,
    interval: Duration,
    due: Instant,
    pauses: RetryPauses,
    /// When a failure was logged last.
    said: Option<Instant>,
}

impl MetricsExport {
    fn new((settings, http): (OtlpMetricsSettings, HttpClient)) -> Option<MetricsExport> {
        let OtlpMetricsSettings { endpoint, protocol, headers, interval, timeout, verify, resource } = settings;
        let attribute = |(name, value)| {
            let value = match value {
                ResourceAttribute::Text(text) => ResourceSpec::Text(text),
                ResourceAttribute::Flag(flag) => ResourceSpec::Flag(flag),
                ResourceAttribute::Number(number) => ResourceSpec::Number(number),
            };
            (name, value)
        };
        let protocol = match protocol {
            MetricsProtocol::Http => OtlpProtocol::Http,
            MetricsProtocol::Grpc => OtlpProtocol::Grpc,
        };
        let resource = resource.into_iter().map(attribute).collect();
        let options =
            MetricsCollectorOptions { endpoint: endpoint.into(), protocol, headers, timeout, verify, resource };
        match MetricsCollector::new(&options, &http) {
            Ok(collector) => {
                let due = Instant::now() + interval;
                Some(MetricsExport { collector, interval, due, pauses: RetryPauses::default(), said: None })
            }
            // The settings were checked when the file was read.
            Err(error) => {
                warn!("otlp_metrics: {error}; metrics are not exported");
                None
            }
        }
    }

    /// Exports the present values, and decides when the next export is due.
    async fn once(&mut self, state: &NodeState) {
        let since_1970 = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let begun = Instant::now();
        let page = state.page();
        let period =
            MetricsPeriod { start_ns: since_1970(process::start_time()), now_ns: since_1970(SystemTime::now()) };
        let exported = self.collector.export(page.families(), period).await;
        self.due = begun + self.interval;
        let tally = &state.metrics_exports;
        match exported {
            MetricsExported::Taken { rejected, why } => {
                tally.delivered.fetch_add(1, Relaxed);
                tally.rejected_points.fetch_add(rejected, Relaxed);
                self.pauses.reset();
                match rejected {
                    0 => self.recovered(),
                    _ => self.complain(&format!("the collector has rejected {rejected} data points: {why}")),
                }
            }
            MetricsExported::Later { error, after } => {
                tally.failed.fetch_add(1, Relaxed);
                let pause = self.pauses.next(Retries::Always, after).unwrap_or(self.interval);
                // Without a wish of the collector, the pause is not longer than between two exports.
                let pause = if after.is_some() { pause } else { pause.min(self.interval) };
                self.due = Instant::now() + pause;
                self.complain(&error);
            }
            MetricsExported::Refused(error) => {
                tally.refused.fetch_add(1, Relaxed);
                self.complain(&error);
            }
        }
    }

    /// Logs a failure: the first one, and later ones at most once a minute.
    fn complain(&mut self, error: &str) {
        if self.said.is_none_or(|said| said.elapsed() >= SAID_EVERY) {
            self.said = Some(Instant::now());
            warn!("otlp_metrics: metrics cannot be delivered to {}: {error}", self.collector.name());
        }
    }

    fn recovered(&mut self) {
        if self.said.take().is_some() {
            say!("otlp_metrics: metrics are delivered to {} again", self.collector.name());
        }
    }
}
