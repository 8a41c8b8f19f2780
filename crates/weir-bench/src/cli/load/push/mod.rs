//! Sends the figures of a run to a database of metrics while it runs.

mod otlp;
mod remote_write;

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;

use super::header;
use crate::engine::{
    AnswerCheck, ClientTls, LoadPhase, LoadPlan, LoadProgress, LoadResult, LoadTimeouts, PlanError, RequestBody,
    RequestTemplate, StopCondition, checked_address, run,
};
use crate::errors::ValueError;

/// How often figures are sent.
const EVERY: Duration = Duration::from_secs(1);
/// The time-outs of one transmission.
const TIMEOUTS: LoadTimeouts = LoadTimeouts { connect_ms: 2_000, response_ms: 3_000 };
/// How long the end of a run waits for the transmission in progress and the last one together.
const LONGEST_END: Duration = Duration::from_secs(5);

/// An answer of OTLP that refuses figures has the status 200.
const REFUSED_FIGURES: &str = r#""rejectedDataPoints"\s*:\s*"?[1-9]"#;

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Figures while the load runs")]
pub(super) struct PushArguments {
    /// Sends figures every second, as the path says: http://HOST:9090/api/v1/write is the remote write of Prometheus,
    /// http://HOST:4318/v1/metrics OTLP of OpenTelemetry
    // Read later, since clap repeats values that it refuses, and a URL may have a password.
    #[arg(long, value_name = "URL")]
    push: Option<String>,
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

/// Reads the URL. The error does not repeat it, since it may have a password.
fn destination(text: &str) -> Result<PushDestination, PlanError> {
    let wrong = |problem: &str| PlanError::new("--push", problem);
    let examples = "must be the URL of a database of metrics, such as http://127.0.0.1:9090/api/v1/write (Prometheus) or \
                    http://127.0.0.1:4318/v1/metrics (OTLP)";
    let uri: Uri = text.parse().map_err(|_| wrong(examples))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
        return Err(wrong(examples));
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(wrong(
            "has a user in the URL, which would not be sent; use --push-header 'Authorization: Basic BASE64'",
        ));
    }
    let format = match uri.path() {
        path if path.ends_with("/write") || path.ends_with("/push") => PushFormat::RemoteWrite,
        path if path.ends_with("/v1/metrics") => PushFormat::Otlp,
        _ => return Err(wrong(examples)),
    };
    Ok(PushDestination { url: text.to_owned(), format })
}

fn label(text: &str) -> Result<(String, String), ValueError> {
    let is_name = |name: &str| {
        !name.starts_with(|first: char| first.is_ascii_digit())
            && !name.starts_with("__")
            && !name.is_empty()
            && name != "quantile"
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let split = text.split_once('=').filter(|(name, _)| is_name(name));
    let (name, value) =
        split.ok_or_else(|| ValueError::new(text, "a label (`quantile` is one of the figures)", "team=shop"))?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The labels of all figures: the given ones, and others where those are not given.
fn labels(given: Vec<(String, String)>, plan: &LoadPlan) -> Result<Vec<(String, String)>, PlanError> {
    let mut names: Vec<&str> = given.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|two| two[0] == two[1]) {
        return Err(PlanError::new("--push-label", format!("{} is given twice", twice[0])));
    }
    let url = plan.requests.first().map_or_else(String::new, |request| without_secrets(&request.url));
    let mut labels = vec![("job".to_owned(), "weir-load".to_owned()), ("url".to_owned(), url)];
    labels.retain(|(name, _)| given.iter().all(|(given, _)| given != name));
    labels.extend(given);
    Ok(labels)
}

/// A URL without user, query and fragment, which may have passwords and keys: all who may query see labels.
fn without_secrets(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let Some((scheme, rest)) = url[..end].split_once("://") else { return url[..end].to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// The figures at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct PushedFigures {
    at_unix_ms: u64,
    completed: u64,
    failed: u64,
    /// The figures of the last interval, as far as it has some.
    rate: Option<f64>,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    lag_p999_ns: Option<u64>,
    /// An interval has ended before, so that the receiver is told which figures there are no more.
    has_begun: bool,
}

/// A figure with its name in both formats.
struct PushedMetric {
    /// In the words of Prometheus.
    name: &'static str,
    about: &'static str,
    /// It only grows.
    is_count: bool,
    quantile: Option<&'static str>,
    /// None if there was a value before, and is no more.
    value: Option<f64>,
}

impl PushedFigures {
    fn of(progress: &LoadProgress) -> Self {
        let counts = Self {
            at_unix_ms: unix_ms(),
            completed: progress.completed,
            failed: progress.failed,
            has_begun: progress.rate.is_some(),
            ..Self::default()
        };
        // After the measured time, the figures of its last interval are those of no time any more.
        if progress.phase == LoadPhase::Drain {
            return counts;
        }
        let LoadProgress { rate, p50_ns, p99_ns, lag_p999_ns, .. } = *progress;
        Self { rate, p50_ns, p99_ns, lag_p999_ns, ..counts }
    }

    /// The counts of a whole run. One that is shorter than an interval is an interval itself.
    fn at_end(result: &LoadResult, has_begun: bool) -> Self {
        let total = &result.total;
        let (completed, failed) = (total.completed, total.failed());
        let counts = Self { at_unix_ms: unix_ms(), completed, failed, has_begun, ..Self::default() };
        if has_begun {
            return counts;
        }
        Self {
            rate: (result.measured_ns > 0).then(|| result.rate()),
            p50_ns: total.latency.quantile_if_any(0.5),
            p99_ns: total.latency.quantile_if_any(0.99),
            lag_p999_ns: total.lag.quantile_if_any(0.999),
            ..counts
        }
    }

    fn metrics(&self) -> Vec<PushedMetric> {
        let seconds = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e9);
        let latency = |quantile, ns| PushedMetric {
            name: "weir_load_latency_seconds",
            about: "Latency of the last interval, from when requests were due.",
            is_count: false,
            quantile: Some(quantile),
            value: seconds(ns),
        };
        let count = |name, about, value: u64| {
            let value = Some(value as f64);
            PushedMetric { name, about, is_count: true, quantile: None, value }
        };
        let metrics = [
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
        ];
        metrics.into_iter().filter(|metric| metric.value.is_some() || self.has_begun).collect()
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// A thread that sends figures, so that a slow database delays neither the load nor its figures.
pub(super) struct FigurePusher {
    place: Arc<PushPlace>,
    sender: JoinHandle<()>,
    /// Ends when the thread does.
    ended: Receiver<()>,
    has_begun: bool,
    next: Instant,
}

/// What the thread has to send, and what came of the rest.
#[derive(Default)]
struct PushPlace {
    state: Mutex<PushState>,
    changed: Condvar,
}

#[derive(Default)]
struct PushState {
    /// Only the newest ones: those that could not be sent in time are replaced.
    figures: Option<PushedFigures>,
    is_over: bool,
    sent: u64,
    failed: u64,
    last_problem: String,
}

impl PushPlace {
    fn state(&self) -> MutexGuard<'_, PushState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, figures: PushedFigures, is_over: bool) {
        let mut state = self.state();
        (state.figures, state.is_over) = (Some(figures), is_over);
        self.changed.notify_one();
    }

    /// Waits for figures; none at the end.
    fn next(&self) -> Option<PushedFigures> {
        let waits = |state: &mut PushState| state.figures.is_none() && !state.is_over;
        let mut state = self.changed.wait_while(self.state(), waits).unwrap_or_else(PoisonError::into_inner);
        state.figures.take()
    }
}

impl PushArguments {
    /// Starts the thread, if the options ask for it.
    pub(super) fn start(self, plan: &LoadPlan) -> Result<Option<FigurePusher>, PlanError> {
        let Some(url) = &self.push else { return Ok(None) };
        let destination = destination(url)?;
        if destination.url.starts_with("https:") && self.push_cacert.is_none() {
            return Err(PlanError::new("--push", "an https:// server is verified; add --push-cacert FILE"));
        }
        let mut transmission = Transmission {
            destination,
            headers: self.push_header,
            tls: ClientTls { ca_file: self.push_cacert, ..ClientTls::default() },
            labels: labels(self.push_label, plan)?,
            started_unix_ms: unix_ms(),
            address: None,
        };
        let checked = checked_address(&transmission.plan(&PushedFigures::default())).map_err(as_option)?;
        transmission.address = Some(checked.to_string());
        let place = Arc::new(PushPlace::default());
        let ((over, ended), of_thread) = (channel::<()>(), place.clone());
        let body = move || {
            let _over = over;
            transmission.send_all(&of_thread);
        };
        let sender = thread::Builder::new().name("load-push".to_owned()).spawn(body);
        let sender =
            sender.map_err(|error: io::Error| PlanError::new("--push", format!("cannot start a thread: {error}")))?;
        Ok(Some(FigurePusher { place, sender, ended, has_begun: false, next: Instant::now() }))
    }
}

/// An error of the plan of a transmission, under the name of the option that it is about. It does not repeat the URL.
fn as_option(error: PlanError) -> PlanError {
    let option = match error.field.as_str() {
        field if field.starts_with("requests[0].headers") => "--push-header",
        field if field.starts_with("tls.ca_file") => "--push-cacert",
        _ => "--push",
    };
    PlanError::new(option, error.problem)
}

impl FigurePusher {
    /// Sends the figures, if it is time.
    pub(super) fn offer(&mut self, progress: &LoadProgress) {
        if Instant::now() >= self.next {
            self.next = Instant::now() + EVERY;
            let figures = PushedFigures::of(progress);
            self.has_begun |= figures.has_begun;
            self.place.put(figures, false);
        }
    }

    /// Sends the counts of the whole run, and waits for that; says what went wrong.
    pub(super) fn finish(self, result: &LoadResult) -> Option<String> {
        self.place.put(PushedFigures::at_end(result, self.has_begun), true);
        let in_time = self.ended.recv_timeout(LONGEST_END) != Err(RecvTimeoutError::Timeout);
        if in_time {
            self.sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        let state = self.place.state();
        let (failed, all) = (state.failed, state.sent + state.failed);
        let late = format!("the last figures were not sent within {} seconds", LONGEST_END.as_secs());
        let faults = format!("{failed} of {all} transmissions failed, the last one: {}", state.last_problem);
        match (in_time, failed) {
            (true, 0) => None,
            (true, _) => Some(format!("--push: {faults}")),
            (false, 0) => Some(format!("--push: {late}")),
            (false, _) => Some(format!("--push: {late}, and {faults}")),
        }
    }
}

/// How figures are sent.
struct Transmission {
    destination: PushDestination,
    headers: Vec<(String, String)>,
    tls: ClientTls,
    labels: Vec<(String, String)>,
    started_unix_ms: u64,
    /// The address of the host, so that no transmission waits for a resolver.
    address: Option<String>,
}

impl Transmission {
    fn send_all(&self, place: &PushPlace) {
        while let Some(figures) = place.next() {
            let outcome = self.send(&figures);
            let mut state = place.state();
            match outcome {
                Ok(()) => state.sent += 1,
                Err(problem) => {
                    state.failed += 1;
                    state.last_problem = problem;
                }
            }
        }
    }

    fn request(&self, figures: &PushedFigures) -> RequestTemplate {
        let (fields, body): (&[(&str, &str)], Vec<u8>) = match self.destination.format {
            PushFormat::RemoteWrite => (&remote_write::FIELDS, remote_write::body(figures, &self.labels)),
            PushFormat::Otlp => (&otlp::FIELDS, otlp::body(figures, &self.labels, self.started_unix_ms)),
        };
        let mut headers: Vec<(String, String)> = self.headers.clone();
        headers.extend(fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let refused = AnswerCheck { matches: Some(REFUSED_FIGURES.to_owned()), not: true, ..AnswerCheck::default() };
        RequestTemplate {
            method: "POST".to_owned(),
            headers,
            body: RequestBody::Base64(STANDARD.encode(body)),
            check: if self.destination.format == PushFormat::Otlp { vec![refused] } else { Vec::new() },
            ..RequestTemplate::get(self.destination.url.clone())
        }
    }

    /// One transmission is one request of the load engine.
    fn plan(&self, figures: &PushedFigures) -> LoadPlan {
        LoadPlan {
            requests: vec![self.request(figures)],
            keep_alive: false,
            timeouts: TIMEOUTS,
            tls: self.tls.clone(),
            connect_to: self.address.clone(),
            ..LoadPlan::closed("", 1, StopCondition::after_count(1))
        }
    }

    fn send(&self, figures: &PushedFigures) -> Result<(), String> {
        let result = run(&self.plan(figures), &mut |_| {}).map_err(|error| error.to_string())?;
        let total = &result.total;
        if total.class(2) == 1 {
            let refusals = result.flow.iter().flat_map(|flow| &flow.checks).find_map(|check| check.example.clone());
            return refusals.map_or(Ok(()), |answer| Err(format!("the receiver refused figures: {answer}")));
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
        assert!(["=a", "1a=b", "__name__=b", "a-b=c", "a", "quantile=1"].iter().all(|bad| label(bad).is_err()));
    }

    #[test]
    fn secrets_of_urls_are_neither_labels_nor_in_errors() {
        for bad in ["https://ann:s3cr3t@prom/api/v1/write", "https://ann:s3cr3t@prom/api", "http://a b/?key=s3cr3t"] {
            let error = destination(bad).expect_err("a fault").to_string();
            assert!(error.starts_with("--push: ") && !error.contains("s3cr3t"), "{error}");
        }
        let plan = LoadPlan::closed("http://ann:s3cr3t@a:1/pay?key=s3cr3t#f", 1, StopCondition::after_count(1));
        let given =
            |names: &[&str]| labels(names.iter().map(|name| ((*name).to_owned(), "x".to_owned())).collect(), &plan);
        let all = given(&["team"]).expect("good labels");
        assert_eq!(all[1], ("url".to_owned(), "http://a:1/pay".to_owned()));
        assert_eq!(given(&["a", "b", "a"]).expect_err("a fault").to_string(), "--push-label: a is given twice");
    }

    #[test]
    fn figures_of_an_interval_are_there_only_if_it_had_some() {
        let of = |progress: &LoadProgress| {
            let metrics = PushedFigures::of(progress).metrics();
            metrics.iter().map(|metric| metric.value).collect::<Vec<_>>()
        };
        let mut progress = LoadProgress { completed: 7, ..LoadProgress::default() };
        assert_eq!(of(&progress), [Some(7.0), Some(0.0)], "before the first interval has ended");
        (progress.rate, progress.lag_p999_ns) = (Some(0.0), Some(1_000));
        let silent = [Some(7.0), Some(0.0), Some(0.0), None, None, Some(1e-6)];
        assert_eq!(of(&progress), silent, "an interval without an answer has no latency");
        progress.phase = LoadPhase::Drain;
        assert_eq!(of(&progress), [Some(7.0), Some(0.0), None, None, None, None]);
    }

    #[test]
    fn newest_figures_are_sent_and_then_the_end() {
        let place = PushPlace::default();
        let figures = |completed| PushedFigures { completed, ..PushedFigures::default() };
        place.put(figures(1), false);
        place.put(figures(2), false);
        assert_eq!(place.next(), Some(figures(2)));
        place.put(figures(3), true);
        assert_eq!([place.next(), place.next()], [Some(figures(3)), None]);
    }
}
