//! `weir load`: one run of the load engine from the command line, with the options of wrk, wrk2, ab and hey.

mod condition;
mod data;
mod grpc;
mod push;
mod report;
mod verdict;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal as _, Read as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::SIGINT;
use signal_hook::flag;

use crate::backend::behaviour::{parse_bytes, parse_duration};
use crate::cli::LoadCommandError;
use crate::cli::print::out;
use crate::engine::{
    ClientTls, EchoCheck, FormPart, LatencyHistogram, LoadPlan, LoadProgress, LoadResult, LoadTimeouts, PERCENTILES,
    Pacing, PlanError, Protocol, Rate, RequestBody, RequestTemplate, Spacing, StopCondition, Think, run_until,
};
use crate::errors::{FileError, ValueError};

pub use self::condition::{ConditionOutcome, FailCondition};
use self::data::DataArguments;
use self::grpc::GrpcArguments;
use self::push::{FigurePusher, PushArguments};
pub use self::report::report;
pub use self::verdict::verdict;

/// Generates load on a URL, and reports throughput and latency: in a closed loop as wrk, or at a fixed rate as wrk2.
///
/// Latency is measured from when a request was due, service time from when it was sent. Both are always printed. Throughput
/// counts the responses that came within the measured time. Requests that are unanswered at its end are waited for, up to
/// --timeout, so that slow responses are not missing from the percentiles. Exits with 1 if nothing was answered, or if a
/// condition of --fail-if is met.
#[derive(Clone, Debug, clap::Args)]
pub struct LoadArguments {
    /// The URL: http://, https://, ws:// or wss://; tcp://HOST:PORT, tls://HOST:PORT or udp://HOST:PORT without HTTP. With
    /// several URLs, each request uses one of them at random
    #[arg(required_unless_present = "plan")]
    url: Vec<String>,
    /// The number of connections
    #[arg(short, long, default_value_t = 10)]
    connections: usize,
    /// The number of threads. One is enough unless the report says that the generator is busy
    #[arg(short, long, default_value_t = 1)]
    threads: usize,
    /// The duration of the run: 10s, 2m, or a number of seconds [default: 10s, unless --requests is given]
    #[arg(short, long, short_alias = 'z', value_name = "TIME", value_parser = time)]
    duration: Option<Duration>,
    /// Ends after this number of requests
    #[arg(short = 'n', long, value_name = "COUNT")]
    requests: Option<u64>,
    /// Open loop: requests or messages per second, sent on schedule even if earlier ones are not answered yet
    #[arg(short = 'R', long, value_name = "PER SECOND")]
    rate: Option<f64>,
    /// Open loop: exponentially distributed intervals (Poisson arrivals), as from independent users
    #[arg(long, requires = "rate")]
    poisson: bool,
    /// Open loop: the rate grows from this rate to --rate over the whole run
    #[arg(long, value_name = "PER SECOND", requires = "rate", conflicts_with = "requests")]
    ramp_from: Option<f64>,
    /// Closed loop: the pause of a client between a response and its next request: 100ms, 50ms..150ms (uniform), exp:100ms
    /// (exponential)
    #[arg(long, value_name = "TIME", conflicts_with = "rate", value_parser = think)]
    think: Option<Think>,
    /// Closed loop: starts the clients one after another over this time
    #[arg(long, value_name = "TIME", conflicts_with = "rate", value_parser = time)]
    ramp_up: Option<Duration>,
    /// The duration of the warm-up, which is not measured
    #[arg(short = 'w', long, alias = "warm-up", value_name = "TIME", default_value = "0s", value_parser = time)]
    warmup: Duration,
    /// The method [default: GET, or POST with a body]
    #[arg(short, long, short_alias = 'X')]
    method: Option<String>,
    /// A header field, as `Name: value`. Can be given several times
    #[arg(short = 'H', long, value_name = "HEADER", value_parser = header)]
    header: Vec<(String, String)>,
    /// The body; `@FILE` is the content of a file
    #[arg(long, alias = "body", value_name = "TEXT")]
    data: Option<String>,
    /// A body of this size, such as 5KiB
    #[arg(long, value_name = "SIZE", conflicts_with = "data", value_parser = bytes)]
    data_size: Option<u64>,
    /// A part of a form (multipart/form-data): `NAME=VALUE`, or `NAME=@FILE` for the content of a file. Can be given several
    /// times
    #[arg(short = 'F', long, value_name = "PART", conflicts_with_all = ["data", "data_size", "plan"], value_parser = form_part)]
    form: Vec<FormPart>,
    /// The time-out of a request
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    timeout: Duration,
    /// The time-out for opening a connection
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    connect_timeout: Duration,
    /// HTTP/1.1, tcp: opens a connection for each request or message; udp: uses another port for each datagram
    #[arg(long, alias = "disable-keepalive")]
    no_keepalive: bool,
    /// The protocol [default: http1; http2 with --call; websocket for ws:// and wss://; tcp for tcp:// and tls://; udp for udp://]
    #[arg(short, long, value_enum)]
    protocol: Option<ProtocolName>,
    /// HTTP/2, HTTP/3: concurrent streams on each connection
    #[arg(long, default_value_t = 1)]
    streams: usize,
    /// WebSocket, tcp, udp: the size of a message
    #[arg(long, value_name = "SIZE", default_value = "500", value_parser = bytes)]
    message_size: u64,
    /// WebSocket: the expected answer to a message
    #[arg(long, value_enum, default_value_t = EchoName::Same)]
    echo: EchoName,
    /// The local address to connect from. Several are used in turn; `127.0.0.2-127.0.0.9` is a range
    #[arg(long, value_name = "ADDRESS", value_parser = addresses)]
    source: Vec<Vec<IpAddr>>,
    /// Connects to this address instead of the host of the URL
    #[arg(long, value_name = "HOST:PORT")]
    connect_to: Option<String>,
    /// A PEM file with the CA certificates that certificates are verified with. Without this option, certificates are not
    /// verified
    #[arg(long, alias = "ca", value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// The server name in the TLS handshake (SNI)
    #[arg(long, value_name = "NAME")]
    sni: Option<String>,
    /// Resumes TLS sessions
    #[arg(long)]
    tls_resume: bool,
    /// The processors that threads are pinned to, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "CPU")]
    cpus: Vec<usize>,
    /// The seed of all random choices
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Runs the plan in this JSON or YAML file (`-`: standard input), instead of a URL with options
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    plan: Option<PathBuf>,
    /// Writes the result as JSON to this file (`-`: standard output, without the report)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Prints no progress during the run
    #[arg(short, long)]
    quiet: bool,
    /// Accepted for compatibility with wrk: latency is always printed
    #[arg(long, hide = true)]
    latency: bool,
    /// The run has failed if this is true, and the exit status is 1: `p99>20ms`, `mean`, `max`, `service.p99` (from when a
    /// request was sent), `first_byte.p99`, `first_message.p99` (of gRPC), `pass.p99` (all requests in sequence), `errors>0.1%`, `checks>0`, `rate<1000`;
    /// `p99[NAME]` of one request. Can be given several times
    #[arg(long, value_name = "CONDITION", help_heading = "Data and checks")]
    fail_if: Vec<FailCondition>,
    // Last, since the heading of each in the help text is that of all options after it.
    #[command(flatten)]
    values: DataArguments,
    #[command(flatten)]
    grpc: GrpcArguments,
    #[command(flatten)]
    push: PushArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ProtocolName {
    /// HTTP/1.1
    Http1,
    /// HTTP/2: negotiated over TLS, by prior knowledge otherwise
    Http2,
    /// HTTP/3, for https:// only
    Http3,
    /// WebSocket messages, each with an answer
    #[value(alias = "ws")]
    Websocket,
    /// WebSocket connections that are opened and closed, repeatedly
    WebsocketConnect,
    /// Server-sent events that clients receive
    Sse,
    /// Connections that are opened and stay idle
    Idle,
    /// Messages over TCP or TLS that come back as they are, without HTTP
    Tcp,
    /// Datagrams that come back as they are
    Udp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum EchoName {
    /// The message itself
    Same,
    /// The bytes of the message in reverse order
    Reversed,
    /// Any message
    Any,
}

/// Runs the load and prints what it measured. Fails when the plan cannot be run, nothing was answered, or a condition of the plan
/// or the options is met.
pub fn main(args: LoadArguments) -> ExitCode {
    let json = args.json.clone();
    let (quiet, push) = (args.quiet, args.push.clone());
    let outcome = plan_with_conditions(args).and_then(|(plan, conditions)| {
        let mut pusher = push.start(&plan)?;
        let result = run_with_progress(&plan, quiet, pusher.as_mut())?;
        Ok((plan, conditions, result, pusher))
    });
    let (plan, conditions, result, pusher) = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("weir load: {error}");
            return ExitCode::from(2);
        }
    };
    let code = show_result(&plan, &conditions, &result, json.as_deref());
    // Last, so that a database that does not answer delays no result.
    if let Some(problem) = pusher.and_then(|pusher| pusher.finish(&result)) {
        eprintln!("weir load: {problem}");
    }
    code
}

/// Writes and prints the result; the exit status is that of the whole command.
fn show_result(plan: &LoadPlan, conditions: &[FailCondition], result: &LoadResult, json: Option<&Path>) -> ExitCode {
    let outcomes: Vec<ConditionOutcome> = conditions.iter().map(|condition| condition.outcome(result)).collect();
    if let Some(path) = json
        && let Err(error) = write_json(path, result, &outcomes)
    {
        eprintln!("weir load: {}: {error}", path.display());
        return ExitCode::from(2);
    }
    if json.is_none_or(|path| path.as_os_str() != "-") {
        print!("{}", report(plan, result));
    }
    for outcome in &outcomes {
        eprintln!("{outcome}");
    }
    let failed = outcomes.iter().any(|outcome| outcome.failed);
    if answered(plan, result) && !failed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The plan, and the conditions under which its run has failed.
fn plan_with_conditions(args: LoadArguments) -> Result<(LoadPlan, Vec<FailCondition>), LoadCommandError> {
    let mut conditions = args.fail_if.clone();
    let plan = plan(args)?;
    for (index, text) in plan.fail_if.iter().enumerate() {
        let condition =
            text.parse().map_err(|error| PlanError::new(format!("fail_if[{index}]"), format!("{error}")))?;
        conditions.push(condition);
    }
    Ok((plan, conditions))
}

/// Whether the target answered: a request or message, or the opening of a connection if the plan has only those.
fn answered(plan: &LoadPlan, result: &LoadResult) -> bool {
    match plan.protocol {
        Protocol::Idle { .. } => result.connections.opened > 0,
        _ => result.total.completed > 0,
    }
}

fn write_json(path: &Path, result: &LoadResult, outcomes: &[ConditionOutcome]) -> io::Result<()> {
    let mut value = with_percentiles(result)?;
    if !outcomes.is_empty() {
        value["fail_if"] = serde_json::to_value(outcomes)?;
    }
    let text = serde_json::to_string(&value)?;
    if path.as_os_str() == "-" {
        out!("{text}");
        return Ok(());
    }
    fs::write(path, text)
}

/// The result with percentiles in milliseconds in addition to the histograms, for readers that cannot decode these.
fn with_percentiles(result: &LoadResult) -> io::Result<serde_json::Value> {
    let mut value = serde_json::to_value(result)?;
    let percentiles = |histogram: &LatencyHistogram| {
        let ms = |share: f64| (!histogram.is_empty()).then(|| histogram.quantile(share) as f64 / 1e6);
        let mean = (!histogram.is_empty()).then(|| histogram.mean() / 1e6);
        let shares = [("p50", 0.5), ("p75", 0.75), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999)];
        let named = shares.into_iter().map(|(name, share)| (name, ms(share)));
        let all = named.chain([("p99.99", ms(0.9999)), ("max", ms(1.0)), ("mean", mean)]);
        all.map(|(name, ms)| (name.to_owned(), ms)).collect::<BTreeMap<_, _>>()
    };
    value[PERCENTILES] = serde_json::json!({
        "latency": percentiles(&result.total.latency),
        "service_time": percentiles(&result.total.service_time),
    });
    let passes = result.flow.as_ref().and_then(|flow| flow.passes.as_ref()).map(|passes| &passes.time);
    let more = [
        ("first_byte", result.total.first_byte.as_ref()),
        ("first_message", result.total.first_message.as_ref()),
        ("pass", passes),
        ("connect", Some(&result.connections.connect_time).filter(|times| !times.is_empty())),
        ("tls", result.connections.tls_time.as_ref()),
    ];
    for (name, histogram) in more {
        if let Some(histogram) = histogram {
            value[PERCENTILES][name] = serde_json::json!(percentiles(histogram));
        }
    }
    Ok(value)
}

/// A plan as it is written in a file: a JSON object, or YAML.
fn read_plan(path: &Path, text: &str) -> Result<LoadPlan, LoadCommandError> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|source| LoadCommandError::Json { path: path.to_owned(), source });
    }
    let wrong = |source| LoadCommandError::Yaml { path: path.to_owned(), source: Box::new(source) };
    serde_saphyr::from_str(text).map_err(wrong)
}

/// The plan that the options describe.
fn plan(args: LoadArguments) -> Result<LoadPlan, LoadCommandError> {
    if let Some(path) = &args.plan {
        let mut text = String::new();
        let read = if path.as_os_str() == "-" {
            io::stdin().read_to_string(&mut text)
        } else {
            fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text))
        };
        read.map_err(FileError::at(path))?;
        return read_plan(path, &text);
    }
    let body = match (&args.data, args.data_size) {
        _ if !args.form.is_empty() => RequestBody::Multipart(args.form.clone()),
        (Some(text), _) => match text.strip_prefix('@') {
            Some(path) => RequestBody::File(path.into()),
            None => RequestBody::Text(text.clone()),
        },
        (None, Some(bytes)) => RequestBody::Sized(bytes),
        (None, None) => RequestBody::Empty,
    };
    let method = args.method.clone().unwrap_or_else(|| if body.is_empty() { "GET" } else { "POST" }.to_owned());
    let requests = args.url.iter().map(|url| RequestTemplate {
        method: method.clone(),
        headers: args.header.clone(),
        body: body.clone(),
        // As with curl, a URL without a scheme is http.
        ..RequestTemplate::get(if url.contains("://") { url.clone() } else { format!("http://{url}") })
    });
    let requests: Vec<RequestTemplate> = requests.collect();
    let protocol = protocol(&args, &requests);
    if args.rate.is_some() && matches!(protocol, Protocol::Sse | Protocol::Idle { .. }) {
        return Err(LoadCommandError::RateWithoutRequests { protocol: protocol.name() });
    }
    let duration = args.duration.or(args.requests.is_none().then_some(Duration::from_secs(10)));
    let pacing = pacing(&args, duration);
    let first = requests.first().map(|request| request.url.clone()).unwrap_or_default();
    let mut plan = LoadPlan {
        requests,
        protocol,
        threads: args.threads,
        pacing,
        warm_up_ms: ms(args.warmup),
        timeouts: LoadTimeouts { connect_ms: ms(args.connect_timeout), response_ms: ms(args.timeout) },
        keep_alive: !args.no_keepalive,
        source_addresses: args.source.into_iter().flatten().collect(),
        connect_to: args.connect_to,
        tls: ClientTls { ca_file: args.cacert, server_name: args.sni, resume: args.tls_resume },
        cpus: args.cpus,
        seed: args.seed,
        ..LoadPlan::closed(
            first,
            args.connections,
            StopCondition { duration_ms: duration.map(ms), count: args.requests },
        )
    };
    args.values.apply(&mut plan);
    args.grpc.apply(&mut plan);
    Ok(plan)
}

fn protocol(args: &LoadArguments, requests: &[RequestTemplate]) -> Protocol {
    let begins = |scheme: &str| requests.iter().any(|request| request.url.starts_with(scheme));
    let is_stream = begins("tcp:") || begins("tls:");
    let by_url = match () {
        () if args.grpc.is_used() => ProtocolName::Http2,
        () if begins("ws") => ProtocolName::Websocket,
        () if is_stream => ProtocolName::Tcp,
        () if begins("udp:") => ProtocolName::Udp,
        () => ProtocolName::Http1,
    };
    let message_bytes = args.message_size as usize;
    let check = match args.echo {
        EchoName::Same => EchoCheck::Same,
        EchoName::Reversed => EchoCheck::Reversed,
        EchoName::Any => EchoCheck::Any,
    };
    match args.protocol.unwrap_or(by_url) {
        ProtocolName::Http1 => Protocol::Http1,
        ProtocolName::Http2 => Protocol::Http2 { streams: args.streams },
        ProtocolName::Http3 => Protocol::Http3 { streams: args.streams },
        ProtocolName::Websocket => Protocol::WebSocket { message_bytes, check },
        ProtocolName::WebsocketConnect => Protocol::WebSocketConnect,
        ProtocolName::Sse => Protocol::Sse,
        ProtocolName::Idle => Protocol::Idle { first_request: !is_stream },
        ProtocolName::Tcp => Protocol::Tcp { message_bytes },
        ProtocolName::Udp => Protocol::Udp { message_bytes },
    }
}

fn pacing(args: &LoadArguments, duration: Option<Duration>) -> Pacing {
    let spacing = if args.poisson { Spacing::Poisson } else { Spacing::Even };
    match (args.rate, args.ramp_from) {
        (Some(to), Some(from)) => {
            let over_ms = ms(args.warmup + duration.unwrap_or_default());
            Pacing::Open { rate: Rate::Ramp { from, to, over_ms }, spacing }
        }
        (Some(rate), None) => Pacing::Open { rate: Rate::Constant(rate), spacing },
        (None, _) => {
            let think = args.think.unwrap_or_default();
            Pacing::Closed { think, ramp_up_ms: args.ramp_up.map_or(0, ms) }
        }
    }
}

fn ms(time: Duration) -> u64 {
    time.as_millis() as u64
}

/// Runs a plan, with a line of progress if stderr is a terminal; an interrupt ends it early, with the measurements so far.
fn run_with_progress(
    plan: &LoadPlan,
    quiet: bool,
    mut pusher: Option<&mut FigurePusher>,
) -> Result<LoadResult, PlanError> {
    let stop = Arc::new(AtomicBool::new(false));
    stop_on_interrupt(&stop);
    let bar = if quiet || !io::stderr().is_terminal() { ProgressBar::hidden() } else { ProgressBar::no_length() };
    bar.set_style(ProgressStyle::with_template("{wide_bar} {percent:>3} %  {msg}").expect("the template is valid"));
    let result = run_until(plan, &stop, &mut |progress| {
        if !bar.is_hidden() {
            show(&bar, progress);
        }
        if let Some(pusher) = &mut pusher {
            pusher.offer(progress);
        }
    });
    bar.finish_and_clear();
    result
}

fn show(bar: &ProgressBar, progress: &LoadProgress) {
    match (progress.planned_ns, progress.planned_count) {
        (Some(planned), _) => {
            bar.set_length(planned);
            bar.set_position(progress.elapsed_ns.min(planned));
        }
        (None, Some(count)) => {
            bar.set_length(count);
            bar.set_position(progress.completed);
        }
        (None, None) => {}
    }
    let latency = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), |ns| report::time(ns as f64));
    bar.set_message(format!(
        "{:.0}/s  p50 {}  p99 {}  {} failed",
        progress.rate.unwrap_or_default(),
        latency(progress.p50_ns),
        latency(progress.p99_ns),
        progress.failed
    ));
}

/// The first SIGINT ends the run, the second the program.
fn stop_on_interrupt(stop: &Arc<AtomicBool>) {
    // If a handler cannot be installed, SIGINT ends the program as usual.
    let _ = flag::register_conditional_shutdown(SIGINT, 130, stop.clone());
    let _ = flag::register(SIGINT, stop.clone());
}

fn time(text: &str) -> Result<Duration, ValueError> {
    parse_duration(text).ok_or_else(|| ValueError::new(text, "a time", "500ms, 10s or 2m"))
}

fn bytes(text: &str) -> Result<u64, ValueError> {
    parse_bytes(text).ok_or_else(|| ValueError::new(text, "a size", "500, 5KiB or 1MB"))
}

fn header(text: &str) -> Result<(String, String), ValueError> {
    let (name, value) = text.split_once(':').ok_or_else(|| ValueError::new(text, "a header", "`Name: value`"))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn form_part(text: &str) -> Result<FormPart, ValueError> {
    let wrong = || ValueError::new(text, "a part of a form", "user=ann or picture=@cat.png");
    let (name, value) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(wrong)?;
    let (value, file) = match value.strip_prefix('@') {
        Some(path) => (None, Some(PathBuf::from(path))),
        None => (Some(value.to_owned()), None),
    };
    Ok(FormPart { name: name.to_owned(), value, file, content_type: None })
}

fn think(text: &str) -> Result<Think, ValueError> {
    let ms = |text: &str| time(text).map(|time| time.as_secs_f64() * 1e3);
    if let Some(mean) = text.strip_prefix("exp:") {
        return ms(mean).map(Think::ExponentialMs);
    }
    match text.split_once("..") {
        Some((from, to)) => Ok(Think::UniformMs { from: ms(from)?, to: ms(to)? }),
        None => ms(text).map(Think::FixedMs),
    }
}

/// An address, or a range of IPv4 addresses.
fn addresses(text: &str) -> Result<Vec<IpAddr>, ValueError> {
    let wrong = || ValueError::new(text, "an address", "127.0.0.2 or 127.0.0.2-127.0.0.9");
    match text.split_once('-') {
        None => text.parse().map(|address| vec![address]).map_err(|_| wrong()),
        Some((from, to)) => {
            let number = |text: &str| text.parse::<std::net::Ipv4Addr>().map(u32::from).map_err(|_| wrong());
            let (from, to) = (number(from)?, number(to)?);
            if from > to || to - from > 65_535 {
                return Err(wrong());
            }
            Ok((from..=to).map(|number| IpAddr::from(std::net::Ipv4Addr::from(number))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: LoadArguments,
    }

    fn parsed(line: &str) -> Result<LoadPlan, String> {
        let command = Command::try_parse_from(["load"].into_iter().chain(line.split_whitespace()));
        plan(command.map_err(|error| error.to_string())?.args).map_err(|error| error.to_string())
    }

    #[test]
    fn takes_the_options_people_know() {
        let wrk = parsed("-t2 -c100 -d30s --latency http://127.0.0.1:8080/").expect("wrk's options");
        assert_eq!((wrk.threads, wrk.connections, wrk.stop), (2, 100, StopCondition::after_ms(30_000)));
        let wrk2 = parsed("-c 10 -d 5 -R 2000 -H X-A:b 127.0.0.1/x").expect("wrk2's options");
        assert_eq!(wrk2.pacing, Pacing::Open { rate: Rate::Constant(2_000.0), spacing: Spacing::Even });
        assert_eq!(wrk2.requests[0].url, "http://127.0.0.1/x");
        assert_eq!(wrk2.requests[0].headers, [("X-A".to_owned(), "b".to_owned())]);
        let ab = parsed("-n 1000 -c 5 http://a/").expect("ab's options");
        assert_eq!(ab.stop, StopCondition::after_count(1_000));
        let hey = parsed("-z 3s -m PUT --data hello http://a/").expect("hey's options");
        assert_eq!(
            (hey.requests[0].method.as_str(), &hey.requests[0].body),
            ("PUT", &RequestBody::Text("hello".into()))
        );
        let curl = parsed("-F user=${id} -F file=@/cat.png http://a/").expect("curl's options");
        let RequestBody::Multipart(parts) = &curl.requests[0].body else { panic!("{curl:?}") };
        assert_eq!((curl.requests[0].method.as_str(), parts[0].value.as_deref()), ("POST", Some("${id}")));
        assert_eq!(parts[1].file.as_deref(), Some(Path::new("/cat.png")));
        let websocket = parsed("ws://a/ --echo reversed").expect("a WebSocket URL");
        assert_eq!(websocket.protocol, Protocol::WebSocket { message_bytes: 500, check: EchoCheck::Reversed });
        let tcp = parsed("tcp://127.0.0.1:5432 --message-size 64 --no-keepalive").expect("a TCP address");
        assert_eq!((tcp.protocol, tcp.keep_alive), (Protocol::Tcp { message_bytes: 64 }, false));
        assert_eq!(parsed("udp://127.0.0.1:53").expect("a UDP address").protocol, Protocol::Udp { message_bytes: 500 });
        assert_eq!(
            parsed("-p idle tcp://127.0.0.1:5432").expect("idle connections").protocol,
            Protocol::Idle { first_request: false }
        );
        assert_eq!(parsed("http://a/ --source 127.0.0.2-127.0.0.4").expect("a range").source_addresses.len(), 3);
        let call = parsed("http://a/ --call a.B/C --proto b.proto --deadline 2s --data {}").expect("a call");
        assert_eq!(call.protocol, Protocol::Http2 { streams: 1 });
        let grpc = call.requests[0].grpc.as_ref().expect("it is a call");
        assert_eq!(
            (grpc.call.as_str(), grpc.proto.as_path(), grpc.deadline_ms),
            ("a.B/C", Path::new("b.proto"), Some(2_000))
        );
    }

    #[test]
    fn plan_is_read_from_json_and_yaml() {
        let path = Path::new("plan.yaml");
        let yaml = "requests:\n- url: http://a/\n  headers: {B: c, A: d}\n  check: [{status: [200, 3xx]}, {json: /n, equals: 5}]\n\
                    \x20 body: {text: hi}\n  think: {fixed_ms: 5}\nconnections: 1\nstop: {count: 1}\nfail_if: ['p99>1s']\n\
                    data:\n  variables: {id: uuid, n: {number: {from: 1, to: 2}}}\n";
        let plan = read_plan(path, yaml).expect("a good plan");
        assert_eq!(plan.requests[0].headers, [("B", "c"), ("A", "d")].map(|(name, value)| (name.into(), value.into())));
        assert_eq!((plan.requests[0].check.len(), plan.data.variables.len()), (2, 2));
        let json = serde_json::to_string(&plan).expect("a plan has string keys");
        assert_eq!(read_plan(path, &json).expect("what was written is read"), plan);
        let fault = |text: &str| read_plan(path, text).expect_err("a fault").to_string();
        assert!(fault("{\"requests\": 1}").contains("plan.yaml: "));
        let unknown = fault("requests: []\nconections: 1\n");
        assert!(unknown.contains("conections") && unknown.contains("line 2"), "{unknown}");
    }

    #[test]
    fn plan_of_the_guide_is_read() {
        let guide = include_str!("../../../../../docs/guide/load.md");
        let (_, block) = guide.split_once("```yaml fragment\n").expect("the guide has a plan");
        let (text, _) = block.split_once("```").expect("the block ends");
        let plan = read_plan(Path::new("shop.yaml"), text).expect("a good plan");
        assert_eq!((plan.requests.len(), plan.data.csv.len(), plan.cookies), (2, 1, true));
        let conditions = plan.fail_if.iter().map(|text| text.parse::<FailCondition>());
        assert!(conditions.collect::<Result<Vec<_>, _>>().is_ok());
    }

    #[test]
    fn a_run_whose_connections_opened_without_an_answer_fails() {
        let mut result = LoadResult {
            started_unix_ns: 0,
            warm_up_ns: 0,
            measured_ns: 1,
            drain_ns: 0,
            completed_in_time: Some(0),
            total: Default::default(),
            requests: Vec::new(),
            intervals: Vec::new(),
            connections: Default::default(),
            flow: None,
            generator: Default::default(),
        };
        result.connections.opened = 5;
        let [requests, idle] = ["http://a/", "-p idle http://a/"].map(|line| parsed(line).expect("a good plan"));
        assert_eq!([&requests, &idle].map(|plan| answered(plan, &result)), [false, true]);
        result.total.completed = 1;
        assert!(answered(&requests, &result));
    }

    #[test]
    fn says_what_is_wrong() {
        for (line, hint) in [
            ("", "required"),
            ("http://a/ -d soon", "try 500ms"),
            ("http://a/ -H nothing", "try `Name: value`"),
            ("http://a/ --think 1s --rate 5", "cannot be used"),
            ("http://a/ -p sse -R 5", "--rate applies to requests and messages"),
            ("http://a/ -p idle -R 5", "--rate applies to requests and messages"),
            ("--plan /nowhere.json", "/nowhere.json"),
            ("--plan p.yaml --csv u.csv", "cannot be used"),
            ("--plan p.yaml --var n=seq", "cannot be used"),
            ("--plan p.yaml --check status=200", "cannot be used"),
            ("--plan p.yaml --cookies", "cannot be used"),
            ("--plan p.yaml --follow-redirects 2", "cannot be used"),
            ("--plan p.yaml --first-byte", "cannot be used"),
            ("--plan p.yaml -F a=b", "cannot be used"),
            ("http://a/ --fail-if p99", "try 'p99>20ms'"),
            ("http://a/ -F x", "try user=ann"),
            ("http://a/ --csv-end stop", "required"),
            ("http://a/ --call a.B/C", "--proto <FILE>"),
            ("http://a/ --proto b.proto", "--call <METHOD>"),
            ("http://a/ --call a.B/C --proto b.proto --data-size 5", "cannot be used"),
        ] {
            let error = parsed(line).expect_err(line);
            assert!(error.contains(hint), "{line}: {error}");
        }
    }
}
