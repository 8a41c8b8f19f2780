//! Active health checks: the gateway sends requests of its own to endpoints.
//!
//! One thread makes the checks for the whole process. A check runs once, however many workers, routes and upstreams with equal
//! settings use its result, and goes on across reloads as long as a snapshot wants it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::AbortHandle;
use weir_net::clock::Clock;
use weir_net::handshake::connect;
use weir_net::proxy_protocol;
use weir_net::stream::Stream;
use weir_proto::h1::{Limits, Tolerance, parse_response};
use weir_proto::head::MAX_INTERIM_RESPONSES;
use weir_proto::{Method, ResponseHead};

use crate::endpoint::balance::BalancerRandom;
use crate::endpoint::state::{Health, HealthTable};
use crate::snapshot::{ActiveChecks, CheckKind, CheckRequest, Upstream};

mod http2;

/// First checks are spread over this time, so that many do not go out at once.
const SPREAD: Duration = Duration::from_millis(300);

/// An endpoint that relapses pauses for this many intervals, doubled with each further relapse.
const PAUSE_INTERVALS: u32 = 4;

/// The thread that makes the checks. It is started with the first snapshot that wants one.
pub(crate) struct Prober {
    table: Arc<HealthTable>,
    clock: Clock,
    thread: Mutex<Option<ProberThread>>,
}

struct ProberThread {
    wanted: mpsc::UnboundedSender<WantedChecks>,
    thread: JoinHandle<()>,
    /// How many checks of an upstream may run at a time: by its name the number, and what counts them.
    places: CheckPlaces,
}

type CheckPlaces = HashMap<Box<str>, (usize, Arc<Semaphore>)>;

/// All checks that should run from now on: one for each health.
type WantedChecks = HashMap<HealthId, CheckOrder>;

/// The address of a [`Health`] in memory.
type HealthId = usize;

struct CheckOrder {
    endpoint: SocketAddr,
    checks: Arc<ActiveChecks>,
    health: Arc<Health>,
    places: Arc<Semaphore>,
}

impl Prober {
    pub(crate) fn new(table: Arc<HealthTable>, clock: Clock) -> Prober {
        Prober { table, clock, thread: Mutex::new(None) }
    }

    /// Runs the checks that these upstreams want, and stops all others.
    pub(crate) fn follow<'u>(
        &self,
        upstreams: impl Iterator<Item = (&'u Upstream, &'u [Arc<Health>])>,
    ) -> io::Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let (wanted, places) = wanted(upstreams, thread.as_ref().map(|thread| &thread.places));
        if wanted.is_empty() && thread.is_none() {
            return Ok(());
        }
        if thread.is_none() {
            *thread = Some(self.start()?);
        }
        let prober = thread.as_mut().expect("it was started");
        prober.places = places;
        // If the thread has panicked, that has been logged.
        let _ = prober.wanted.send(wanted);
        Ok(())
    }

    fn start(&self) -> io::Result<ProberThread> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (wanted, inbox) = mpsc::unbounded_channel();
        let (table, clock) = (Arc::clone(&self.table), self.clock);
        let thread = std::thread::Builder::new()
            .name("health".into())
            .spawn(move || runtime.block_on(supervise(inbox, table, clock)))?;
        Ok(ProberThread { wanted, thread, places: CheckPlaces::new() })
    }
}

/// The checks that these upstreams want. Upstreams with equal checks share the health of an address, and one check: it counts
/// as one of the upstream whose name comes first.
fn wanted<'u>(
    upstreams: impl Iterator<Item = (&'u Upstream, &'u [Arc<Health>])>,
    before: Option<&CheckPlaces>,
) -> (WantedChecks, CheckPlaces) {
    let mut wanted: HashMap<HealthId, (&str, CheckOrder)> = HashMap::new();
    let mut all_places = CheckPlaces::new();
    for (upstream, health) in upstreams {
        for (endpoint, health) in upstream.endpoints.iter().zip(health) {
            let Some(checks) = &endpoint.checks else { continue };
            let id = Arc::as_ptr(health).addr();
            if wanted.get(&id).is_some_and(|(name, _)| **name <= *upstream.name) {
                continue;
            }
            let (count, name) = (checks.concurrency, &upstream.name);
            let (_, places) = all_places.entry(name.clone()).or_insert_with(|| {
                let known = before.and_then(|before| before.get(name)).filter(|(known, _)| *known == count);
                known.cloned().unwrap_or_else(|| (count, Arc::new(Semaphore::new(count))))
            });
            let order = CheckOrder {
                endpoint: endpoint.addr,
                checks: Arc::clone(checks),
                health: Arc::clone(health),
                places: Arc::clone(places),
            };
            wanted.insert(id, (name, order));
        }
    }
    (wanted.into_iter().map(|(id, (_, order))| (id, order)).collect(), all_places)
}

impl Drop for Prober {
    fn drop(&mut self) {
        let asking = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ProberThread { wanted, thread, .. }) = asking {
            drop(wanted);
            // If the thread has panicked, that has been logged.
            let _ = thread.join();
        }
    }
}

struct RunningCheck {
    /// As long as it is held, no other health has its address.
    _health: Arc<Health>,
    places: watch::Sender<Arc<Semaphore>>,
    task: AbortHandle,
}

/// Keeps one task running for each check that is wanted.
async fn supervise(mut inbox: mpsc::UnboundedReceiver<WantedChecks>, table: Arc<HealthTable>, clock: Clock) {
    let mut running: HashMap<HealthId, RunningCheck> = HashMap::new();
    let dice = BalancerRandom::from_entropy();
    while let Some(mut wanted) = inbox.recv().await {
        running.retain(|id, running| {
            let stays = wanted.contains_key(id);
            if !stays {
                running.task.abort();
            }
            stays
        });
        for (id, CheckOrder { endpoint, checks, health, places }) in wanted.drain() {
            match running.entry(id) {
                Entry::Occupied(known) => {
                    known.get().places.send_replace(places);
                }
                Entry::Vacant(vacant) => {
                    let delay = SPREAD.min(checks.healthy_interval).mul_f64(dice.below(1_000) as f64 / 1_000.0);
                    let (places, counted) = watch::channel(places);
                    let (checked, table) = (Arc::clone(&health), Arc::clone(&table));
                    let task = repeat_check(endpoint, checks, checked, counted, table, clock, delay);
                    let task = tokio::spawn(task).abort_handle();
                    vacant.insert(RunningCheck { _health: health, places, task });
                }
            }
        }
    }
}

async fn repeat_check(
    endpoint: SocketAddr,
    checks: Arc<ActiveChecks>,
    health: Arc<Health>,
    places: watch::Receiver<Arc<Semaphore>>,
    table: Arc<HealthTable>,
    clock: Clock,
    delay: Duration,
) {
    tokio::time::sleep(delay).await;
    let mut tally = CheckTally::default();
    loop {
        let places = Arc::clone(&places.borrow());
        let outcome = {
            let _place = places.acquire().await.expect("it is never closed");
            tokio::time::timeout(checks.timeout, ask(endpoint, &checks)).await
        };
        let outcome = match outcome {
            Ok(Ok(answer)) => CheckOutcome::Answered(answer),
            Ok(Err(error)) => CheckOutcome::Failed(error),
            Err(_) => CheckOutcome::TimedOut,
        };
        tracing::debug!("health check of {endpoint}: {outcome}");
        match tally.count(&outcome, &checks) {
            CheckVerdict::Healthy(enough) => {
                table.checks.healthy.fetch_add(1, Relaxed);
                if enough {
                    health.checked_up(clock.now_ns());
                }
            }
            CheckVerdict::Unhealthy(enough) => {
                table.checks.unhealthy.fetch_add(1, Relaxed);
                if enough {
                    let cause = format_args!("health checks failed, the last one with: {outcome}");
                    health.checked_down(checks.unhealthy_interval * PAUSE_INTERVALS, &cause, clock.now_ns());
                }
            }
            CheckVerdict::Nothing => {}
        }
        let is_up = health.is_up(clock.now_ns());
        tokio::time::sleep(if is_up { checks.healthy_interval } else { checks.unhealthy_interval }).await;
    }
}

#[derive(Debug)]
enum CheckOutcome {
    Answered(CheckAnswer),
    Failed(io::Error),
    TimedOut,
}

impl fmt::Display for CheckOutcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckOutcome::Answered(CheckAnswer::Serving) => write!(out, "the endpoint is serving"),
            CheckOutcome::Answered(CheckAnswer::NotServing) => {
                write!(out, "the endpoint's gRPC health service reports that it is not serving")
            }
            CheckOutcome::Answered(CheckAnswer::Status(status)) => write!(out, "response with status {status}"),
            CheckOutcome::Failed(error) => write!(out, "{error}"),
            CheckOutcome::TimedOut => write!(out, "no answer in time"),
        }
    }
}

/// The answer of an endpoint to a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckAnswer {
    /// It accepts connections, or reports that it is serving.
    Serving,
    NotServing,
    /// A status, which the settings of the check classify.
    Status(u16),
}

/// What an outcome means; `true` once its threshold is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckVerdict {
    Healthy(bool),
    Unhealthy(bool),
    Nothing,
}

/// The counts of consecutive outcomes of each kind.
#[derive(Debug, Default)]
struct CheckTally {
    successes: u32,
    http_failures: u32,
    tcp_failures: u32,
    timeouts: u32,
}

impl CheckTally {
    fn count(&mut self, outcome: &CheckOutcome, checks: &ActiveChecks) -> CheckVerdict {
        let healthy = match outcome {
            CheckOutcome::Answered(CheckAnswer::Serving) => true,
            CheckOutcome::Answered(CheckAnswer::Status(status)) if checks.healthy_statuses.contains(status) => true,
            // As in APISIX, a status in neither list counts for nothing.
            CheckOutcome::Answered(CheckAnswer::Status(status)) if !checks.unhealthy_statuses.contains(status) => {
                return CheckVerdict::Nothing;
            }
            _ => false,
        };
        if healthy {
            *self = CheckTally { successes: self.successes.saturating_add(1), ..CheckTally::default() };
            return CheckVerdict::Healthy(self.successes >= checks.healthy_successes);
        }
        self.successes = 0;
        let (count, most) = match outcome {
            CheckOutcome::Answered(_) => (&mut self.http_failures, checks.http_failures),
            CheckOutcome::Failed(_) => (&mut self.tcp_failures, checks.tcp_failures),
            CheckOutcome::TimedOut => (&mut self.timeouts, checks.timeouts),
        };
        *count = count.saturating_add(1);
        CheckVerdict::Unhealthy(*count >= most)
    }
}

/// Makes one check.
async fn ask(endpoint: SocketAddr, checks: &ActiveChecks) -> io::Result<CheckAnswer> {
    let question = &checks.question;
    let addr = question.port.map_or(endpoint, |port| SocketAddr::new(endpoint.ip(), port));
    let mut tcp = weir_net::connect::open(addr).await?;
    if let Some(version) = question.proxy_protocol {
        tcp.write_all(&proxy_protocol::header(version, None)).await?;
    }
    if question.kind == CheckKind::Tcp {
        return Ok(CheckAnswer::Serving);
    }
    let stream = match &checks.tls {
        None => Stream::plain(tcp),
        Some(tls) => connect(tcp, &tls.client, tls.name.clone()).await?,
    };
    match &question.kind {
        CheckKind::Tcp => Ok(CheckAnswer::Serving),
        CheckKind::Http { asked, http2: true, .. } => http2::status(stream, asked).await,
        CheckKind::Http { asked, .. } => status(stream, asked).await,
        CheckKind::Grpc { service, host, .. } => http2::check_grpc_health(stream, service, host).await,
    }
}

/// Sends a request over HTTP/1.1; returns the status of the response.
async fn status(mut stream: Stream, asked: &CheckRequest) -> io::Result<CheckAnswer> {
    let (method, request) = (Method::parse(asked.method.as_bytes()), request(asked));
    let mut unsent = request.as_bytes();
    while !unsent.is_empty() {
        let count = poll_fn(|context| stream.poll_write(context, unsent)).await?;
        unsent = &unsent[count..];
    }
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    let mut head = ResponseHead::default();
    let mut interim = InterimCount::default();
    loop {
        match poll_fn(|context| stream.poll_read(context, &mut buffer)).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => received.extend_from_slice(&buffer[..count]),
        }
        loop {
            head.clear();
            match parse_response(&received, &Limits::default(), Tolerance::default(), method, &mut head) {
                Ok(None) => break,
                // RFC 9110 §15.2: an interim response, the final one is still to come.
                Ok(Some(length)) if head.status < 200 => {
                    interim.add()?;
                    received.drain(..length);
                }
                Ok(Some(_)) => return Ok(CheckAnswer::Status(head.status)),
                Err(bad) => return Err(io::Error::new(io::ErrorKind::InvalidData, bad.name())),
            }
        }
    }
}

/// Counts the interim responses to a check.
#[derive(Debug, Default)]
struct InterimCount(u8);

impl InterimCount {
    fn add(&mut self) -> io::Result<()> {
        self.0 += 1;
        match self.0 {
            0..=MAX_INTERIM_RESPONSES => Ok(()),
            _ => Err(io::Error::other(format!("more than {MAX_INTERIM_RESPONSES} interim responses (1xx)"))),
        }
    }
}

/// The `User-Agent` of checks, unless their headers name another.
const USER_AGENT: &str = "weir-health-check";

fn request(CheckRequest { method, path, host, headers, body }: &CheckRequest) -> String {
    let own = |name: &str| {
        headers.iter().any(|header| header.split(':').next().is_some_and(|of| of.trim().eq_ignore_ascii_case(name)))
    };
    let mut request = format!("{method} {path} HTTP/1.1\r\n");
    if !own("host") {
        request += &format!("Host: {host}\r\n");
    }
    if !own("user-agent") {
        request += &format!("User-Agent: {USER_AGENT}\r\n");
    }
    for header in headers {
        request += &format!("{header}\r\n");
    }
    if !body.is_empty() {
        request += &format!("Content-Length: {}\r\n", body.len());
    }
    request + &format!("Connection: close\r\n\r\n{body}")
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::snapshot::CheckSpec;

    /// The error of a check of a server that sends these bytes again and again once it has a request.
    async fn failure(http2: bool, first: &'static [u8], again: &'static [u8]) -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let addr = listener.local_addr().expect("it is bound");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut request = [0; 4096];
            let count = stream.read(&mut request).expect("a request");
            assert!(count > 0);
            let mut sent = stream.write_all(first);
            while sent.is_ok() {
                sent = stream.write_all(again);
            }
        });
        let stream = Stream::plain(weir_net::connect::open(addr).await.expect("it listens"));
        let asked = CheckRequest::of("a");
        let answer = if http2 { http2::status(stream, &asked).await } else { status(stream, &asked).await };
        server.join().expect("it ends with the connection");
        answer.expect_err("it never answers").to_string()
    }

    #[test]
    fn a_server_that_sends_interim_responses_for_ever_fails_its_check() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let over_http1 = failure(false, b"", b"HTTP/1.1 102 Processing\r\n\r\n").await;
            // SETTINGS, and HEADERS with `:status: 102`.
            let settings = b"\0\0\0\x04\0\0\0\0\0";
            let over_http2 = failure(true, settings, b"\0\0\x05\x01\x04\0\0\0\x01\x08\x03102").await;
            for error in [over_http1, over_http2] {
                assert_eq!(error, "more than 8 interim responses (1xx)");
            }
        });
    }

    fn checks() -> ActiveChecks {
        ActiveChecks {
            question: CheckSpec { port: None, proxy_protocol: None, kind: CheckKind::Tcp },
            tls: None,
            timeout: Duration::from_secs(1),
            concurrency: 1,
            healthy_interval: Duration::from_secs(1),
            healthy_statuses: vec![200],
            healthy_successes: 2,
            unhealthy_interval: Duration::from_secs(1),
            unhealthy_statuses: vec![500],
            http_failures: 3,
            tcp_failures: 2,
            timeouts: 1,
        }
    }

    #[test]
    fn outcomes_count_in_a_row_and_by_kind() {
        let (mut tally, checks) = (CheckTally::default(), checks());
        let mut count = |outcome: CheckOutcome| tally.count(&outcome, &checks);
        let refused = || CheckOutcome::Failed(io::ErrorKind::ConnectionRefused.into());
        assert_eq!(count(refused()), CheckVerdict::Unhealthy(false));
        assert_eq!(count(CheckOutcome::Answered(CheckAnswer::Status(500))), CheckVerdict::Unhealthy(false));
        assert_eq!(count(refused()), CheckVerdict::Unhealthy(true));
        assert_eq!(count(CheckOutcome::TimedOut), CheckVerdict::Unhealthy(true));
        assert_eq!(count(CheckOutcome::Answered(CheckAnswer::Status(200))), CheckVerdict::Healthy(false));
        assert_eq!(count(CheckOutcome::Answered(CheckAnswer::Status(418))), CheckVerdict::Nothing);
        assert_eq!(count(CheckOutcome::Answered(CheckAnswer::Serving)), CheckVerdict::Healthy(true));
        assert_eq!(count(refused()), CheckVerdict::Unhealthy(false), "from the beginning");
        let ill = [(); 3].map(|()| count(CheckOutcome::Answered(CheckAnswer::NotServing)));
        assert_eq!(ill, [false, false, true].map(CheckVerdict::Unhealthy));
    }

    #[test]
    fn a_request_says_who_asks_unless_told_otherwise() {
        let asked = CheckRequest { path: "/health?x".into(), ..CheckRequest::of("a:1") };
        assert_eq!(
            request(&asked),
            "GET /health?x HTTP/1.1\r\nHost: a:1\r\nUser-Agent: weir-health-check\r\nConnection: close\r\n\r\n"
        );
        let headers = ["HOST: b".into(), "User-Agent: me".into()].into();
        let asked = CheckRequest { method: "POST".into(), headers, body: "ping".into(), ..CheckRequest::of("a") };
        assert_eq!(
            request(&asked),
            "POST / HTTP/1.1\r\nHOST: b\r\nUser-Agent: me\r\nContent-Length: 4\r\nConnection: close\r\n\r\nping"
        );
    }
}
