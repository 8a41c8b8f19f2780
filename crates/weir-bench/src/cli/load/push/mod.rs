//! Sends the figures of a run to a database of metrics while it runs.

mod otlp;
mod remote_write;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::header;
use crate::engine::{
    ClientTls, LoadPlan, LoadProgress, LoadResult, LoadTimeouts, PlanError, RequestBody, RequestTemplate,
    StopCondition, run,
};
use crate::errors::ValueError;

/// How often figures are sent.
const EVERY: Duration = Duration::from_secs(1);
/// The time-outs of one transmission. The end of a run waits for the last two.
const TIMEOUTS: LoadTimeouts = LoadTimeouts { connect_ms: 2_000, response_ms: 3_000 };

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Figures while the load runs")]
pub(super) struct PushArguments {
    /// Sends figures every second, as the path says: http://HOST:9090/api/v1/write is the remote write of Prometheus,
    /// http://HOST:4318/v1/metrics OTLP of OpenTelemetry
    #[arg(long, value_name = "URL", value_parser = destination)]
    push: Option<PushDestination>,
    /// A header field of --push, as `Name: value`. Can be given several times
    #[arg(long, value_name = "HEADER", requires = "push", value_parser = header)]
    push_header: Vec<(String, String)>,
    /// A label of all figures of --push, as `NAME=VALUE`. Can be given several times
    #[arg(long, value_name = "LABEL", requires = "push", value_parser = label)]
    push_label: Vec<(String, String)>,
    /// A PEM file with the CA certificates that an https:// server of --push is verified with
    #[arg(long, value_name = "FILE", requires = "push")]
    push_cacert: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PushDestination {
    url: String,
    format: PushFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PushFormat {
    RemoteWrite,
    Otlp,
}

fn destination(text: &str) -> Result<PushDestination, ValueError> {
    let examples = "http://127.0.0.1:9090/api/v1/write (Prometheus) or http://127.0.0.1:4318/v1/metrics (OTLP)";
    let path = text.split_once("://").and_then(|(scheme, rest)| {
        matches!(scheme, "http" | "https").then(|| rest.split_once('?').map_or(rest, |(path, _)| path))
    });
    let format = match path {
        Some(path) if path.ends_with("/write") || path.ends_with("/push") => PushFormat::RemoteWrite,
        Some(path) if path.ends_with("/v1/metrics") => PushFormat::Otlp,
        _ => return Err(ValueError::new(text, "the URL of a database of metrics", examples)),
    };
    Ok(PushDestination { url: text.to_owned(), format })
}

fn label(text: &str) -> Result<(String, String), ValueError> {
    let is_name = |name: &str| {
        !name.starts_with(|first: char| first.is_ascii_digit())
            && !name.starts_with("__")
            && !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let split = text.split_once('=').filter(|(name, _)| is_name(name));
    let (name, value) = split.ok_or_else(|| ValueError::new(text, "a label", "team=shop"))?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The figures at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct PushedFigures {
    at_unix_ms: u64,
    completed: u64,
    failed: u64,
    rate: f64,
    p50_ns: u64,
    p99_ns: u64,
    lag_p999_ns: u64,
}

/// A figure with its name in both formats.
struct PushedMetric {
    /// In the words of Prometheus.
    name: &'static str,
    about: &'static str,
    /// It only grows.
    is_count: bool,
    quantile: Option<&'static str>,
    value: f64,
}

impl PushedFigures {
    fn of(progress: &LoadProgress) -> Self {
        Self {
            at_unix_ms: unix_ms(),
            completed: progress.completed,
            failed: progress.failed,
            rate: progress.rate,
            p50_ns: progress.p50_ns,
            p99_ns: progress.p99_ns,
            lag_p999_ns: progress.lag_p999_ns,
        }
    }

    fn metrics(&self) -> [PushedMetric; 6] {
        let seconds = |ns: u64| ns as f64 / 1e9;
        let latency = |quantile, ns| PushedMetric {
            name: "weir_load_latency_seconds",
            about: "Latency of the last interval, from when requests were due.",
            is_count: false,
            quantile: Some(quantile),
            value: seconds(ns),
        };
        let count =
            |name, about, value: u64| PushedMetric { name, about, is_count: true, quantile: None, value: value as f64 };
        [
            count("weir_load_answers_total", "Complete answers in the measured time.", self.completed),
            count("weir_load_failures_total", "Requests that failed in any way in the measured time.", self.failed),
            PushedMetric {
                name: "weir_load_answers_per_second",
                about: "Complete answers per second of the last interval.",
                is_count: false,
                quantile: None,
                value: self.rate,
            },
            latency("0.5", self.p50_ns),
            latency("0.99", self.p99_ns),
            PushedMetric {
                name: "weir_load_generator_lag_seconds",
                about: "Delay of requests in the last interval that the generator itself caused.",
                is_count: false,
                quantile: Some("0.999"),
                value: seconds(self.lag_p999_ns),
            },
        ]
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// A thread that sends figures, so that a slow database delays neither the load nor its figures.
pub(super) struct FigurePusher {
    figures: SyncSender<PushedFigures>,
    sender: JoinHandle<PushOutcome>,
    last: PushedFigures,
    next: Instant,
}

/// What became of the transmissions.
#[derive(Debug, Default, PartialEq, Eq)]
struct PushOutcome {
    sent: u64,
    failed: u64,
    last_problem: String,
}

impl PushArguments {
    /// Starts the thread, if the options ask for it.
    pub(super) fn start(self, plan: &LoadPlan) -> Result<Option<FigurePusher>, PlanError> {
        let Some(destination) = self.push else { return Ok(None) };
        if destination.url.starts_with("https:") && self.push_cacert.is_none() {
            return Err(PlanError::new("--push", "an https:// server is verified; add --push-cacert FILE"));
        }
        let url = plan.requests.first().map_or_else(String::new, |request| request.url.clone());
        let mut labels = vec![("job".to_owned(), "weir-load".to_owned()), ("url".to_owned(), url)];
        labels.retain(|(name, _)| self.push_label.iter().all(|(given, _)| given != name));
        labels.extend(self.push_label);
        let transmission = Transmission {
            destination,
            headers: self.push_header,
            tls: ClientTls { ca_file: self.push_cacert, ..ClientTls::default() },
            labels,
            started_unix_ms: unix_ms(),
        };
        // Of one place: figures that cannot be sent in time are left out, and newer ones follow.
        let (figures, inbox) = sync_channel(1);
        let sender = thread::Builder::new().name("load-push".to_owned()).spawn(move || transmission.send_all(&inbox));
        let sender = sender.map_err(|error| PlanError::new("--push", format!("cannot start a thread: {error}")))?;
        Ok(Some(FigurePusher { figures, sender, last: PushedFigures::default(), next: Instant::now() }))
    }
}

impl FigurePusher {
    /// Sends the figures, if it is time.
    pub(super) fn offer(&mut self, progress: &LoadProgress) {
        self.last = PushedFigures::of(progress);
        if Instant::now() >= self.next {
            self.next = Instant::now() + EVERY;
            let _ = self.figures.try_send(self.last);
        }
    }

    /// Sends the counts of the whole run, and waits for that; says what went wrong.
    pub(super) fn finish(self, result: &LoadResult) -> Option<String> {
        let FigurePusher { figures, sender, last, .. } = self;
        let (completed, failed) = (result.total.completed, result.total.failed());
        let _ = figures.send(PushedFigures { at_unix_ms: unix_ms(), completed, failed, ..last });
        drop(figures);
        let outcome = sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let PushOutcome { sent, failed, last_problem } = outcome;
        (failed > 0).then(|| {
            format!("--push: {failed} of {} transmissions failed, the last one: {last_problem}", sent + failed)
        })
    }
}

/// How figures are sent.
struct Transmission {
    destination: PushDestination,
    headers: Vec<(String, String)>,
    tls: ClientTls,
    labels: Vec<(String, String)>,
    started_unix_ms: u64,
}

impl Transmission {
    fn send_all(&self, inbox: &Receiver<PushedFigures>) -> PushOutcome {
        let mut outcome = PushOutcome::default();
        while let Ok(figures) = inbox.recv() {
            match self.send(&figures) {
                Ok(()) => outcome.sent += 1,
                Err(problem) => {
                    outcome.failed += 1;
                    outcome.last_problem = problem;
                }
            }
        }
        outcome
    }

    fn request(&self, figures: &PushedFigures) -> RequestTemplate {
        let (fields, body): (&[(&str, &str)], Vec<u8>) = match self.destination.format {
            PushFormat::RemoteWrite => (&remote_write::FIELDS, remote_write::body(figures, &self.labels)),
            PushFormat::Otlp => (&otlp::FIELDS, otlp::body(figures, &self.labels, self.started_unix_ms)),
        };
        let mut headers: Vec<(String, String)> = self.headers.clone();
        headers.extend(fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        RequestTemplate {
            method: "POST".to_owned(),
            headers,
            body: RequestBody::Base64(STANDARD.encode(body)),
            ..RequestTemplate::get(self.destination.url.clone())
        }
    }

    /// One transmission is one request of the load engine.
    fn send(&self, figures: &PushedFigures) -> Result<(), String> {
        let plan = LoadPlan {
            requests: vec![self.request(figures)],
            keep_alive: false,
            timeouts: TIMEOUTS,
            tls: self.tls.clone(),
            ..LoadPlan::closed("", 1, StopCondition::after_count(1))
        };
        let total = run(&plan, &mut |_| {}).map_err(|error| error.to_string())?.total;
        if total.class(2) == 1 {
            return Ok(());
        }
        let status = total.statuses.keys().next().map(|status| format!("status {status}"));
        let cause =
            total.errors.by_cause().into_iter().find(|(_, count)| *count > 0).map(|(cause, _)| cause.replace('_', " "));
        Err(status.or(cause).unwrap_or_else(|| "no answer".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_of_the_url_decides_the_format() {
        let format = |url: &str| destination(url).map(|destination| destination.format);
        assert_eq!(format("http://127.0.0.1:9090/api/v1/write"), Ok(PushFormat::RemoteWrite));
        assert_eq!(format("https://mimir.example/api/v1/push?tenant=a"), Ok(PushFormat::RemoteWrite));
        assert_eq!(format("http://127.0.0.1:4318/v1/metrics"), Ok(PushFormat::Otlp));
        for bad in ["http://127.0.0.1:9090", "127.0.0.1:4318/v1/metrics", "ftp://a/v1/metrics"] {
            assert!(format(bad).is_err_and(|error| error.to_string().contains("/api/v1/write (Prometheus)")), "{bad}");
        }
        assert_eq!(label("team=a=b"), Ok(("team".to_owned(), "a=b".to_owned())));
        assert!(["=a", "1a=b", "__name__=b", "a-b=c", "a"].iter().all(|bad| label(bad).is_err()));
    }
}
