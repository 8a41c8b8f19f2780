//! Connections to controllers, one at a time.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use weir_client::{
    AnswerContent, CallError, CallSettings, HttpClient, HttpClientSettings, HttpProtocol, IdleConnections,
    ServerVerification,
};
use weir_kube::cluster::ControllerState;
use weir_net::backoff::Backoff;
use weir_net::tls::TlsConnector;

use super::super::followed::FollowedSet;
use super::super::lines::{
    MOST_LINE, MOST_PROBLEM, MOST_SET_ASIDE, MOST_STATE, SILENCE, ServedReport, StateLine, StatusWriting,
};
use super::calls::ControllerCalls;
use super::enrolment::RenewalTask;
use super::nodes::NodesQuestion;
use super::terms::{self, CONNECT};
use super::{PullFiles, RevisionPairs};
use crate::stores::mailbox::Mailbox;

/// The pauses between rounds of all controllers.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(3));
/// The time for the answer to a report.
const REPORT: Duration = Duration::from_secs(5);
/// The time in which a node that ends says so.
const FAREWELL: Duration = Duration::from_secs(1);
/// The pauses after which a node looks for the controller that writes the statuses, if its own does not: that one has to know what nodes
/// serve. They are short first, since a Service leads to any of the controllers, and when another one begins to write. They grow, since
/// the writer may be none that nodes can reach.
const LOOK_FOR_WRITER: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
/// The most bytes of an error of a controller that are told.
const MOST_ERROR: usize = 300;
/// What the error says of a handshake that the other end has refused.
const ALERT: &str = "received fatal alert";

/// Pulls the state until the store is dropped.
pub(super) struct Puller {
    controllers: KnownControllers,
    mailbox: Arc<Mailbox>,
    followed: FollowedSet,
    served: watch::Receiver<ControllerState>,
    questions: mpsc::Receiver<NodesQuestion>,
    failures: u32,
}

/// The controllers of the settings, and how they are connected to.
struct KnownControllers {
    files: PullFiles,
    node: String,
    /// The index of the controller to connect to next.
    next: usize,
}

/// The store has been dropped.
struct StoreDropped;

/// Why a stream has not been opened.
struct OpenFailure {
    problem: String,
    /// Whether the certificate of this node may be what the controller refuses: not if it cannot be reached, or is busy.
    is_of_certificate: bool,
}

impl From<String> for OpenFailure {
    fn from(problem: String) -> OpenFailure {
        OpenFailure { problem, is_of_certificate: false }
    }
}

impl From<CallError> for OpenFailure {
    fn from(error: CallError) -> OpenFailure {
        // With TLS 1.3 a handshake is over for the client before its certificate is verified: a refusal breaks the connection.
        let is_of_certificate = match &error {
            CallError::Broken { .. } => true,
            CallError::Tls { .. } => error.to_string().contains(ALERT),
            _ => false,
        };
        OpenFailure { problem: error.to_string(), is_of_certificate }
    }
}

/// An open stream of a controller.
struct PullSession {
    calls: ControllerCalls,
    lines: LineReader,
    stream: String,
    statuses: StatusWriting,
    /// Whether all of the state has been read.
    has_state: bool,
    pairs: RevisionPairs,
    told: Option<ServedReport>,
    /// Renews the certificate of this node, if this controller issues it.
    _renewal: Option<RenewalTask>,
}

impl Puller {
    pub(super) fn new(
        files: PullFiles,
        node: String,
        (mailbox, followed): (Arc<Mailbox>, FollowedSet),
        (served, questions): (watch::Receiver<ControllerState>, mpsc::Receiver<NodesQuestion>),
    ) -> Puller {
        // A random first one, so that nodes that start together do not all use the same.
        let next = rand::random_range(0..files.settings.hosts.len().max(1));
        let controllers = KnownControllers { files, node, next };
        Puller { controllers, mailbox, followed, served, questions, failures: 0 }
    }

    pub(super) async fn run(mut self) {
        loop {
            let host = self.controllers.next_host();
            let KnownControllers { files, node, .. } = &self.controllers;
            let ended = tokio::select! {
                opened = PullSession::open(files, &host, node, false) => opened.map(Some),
                () = dropped(self.served.clone()) => return,
            };
            let problem = match ended {
                Ok(Some(session)) => match self.follow(session).await {
                    Ok(problem) => problem,
                    Err(StoreDropped) => return,
                },
                Ok(None) => return,
                Err(problem) => format!("{host}: {problem}"),
            };
            self.failures += 1;
            self.mailbox.state(false, &host, Some(problem));
            let rounds = self.failures / self.controllers.count();
            let pause = PAUSES.after(rounds.saturating_add(1)).mul_f64(rand::random_range(0.5..1.5));
            tokio::select! {
                () = sleep(pause) => {}
                () = dropped(self.served.clone()) => return,
            }
        }
    }

    /// Follows controllers for as long as there is a stream. Returns why there is none.
    async fn follow(&mut self, mut session: PullSession) -> Result<String, StoreDropped> {
        self.followed.begin_all();
        let mut search = WriterSearch::default();
        loop {
            let turn = tokio::select! {
                line = session.lines.next() => PullTurn::Line(line),
                changed = self.served.changed() => match changed {
                    Ok(()) => PullTurn::Report,
                    Err(_) => {
                        session.leave().await;
                        return Err(StoreDropped);
                    }
                },
                Some(question) = self.questions.recv() => {
                    question.pass_on(session.calls.clone());
                    continue;
                }
                // Lines are read meanwhile: a controller that does not answer must not delay what another one says.
                found = search.next(|| self.controllers.look()), if !session.statuses.is_here => PullTurn::Looked(found.map(Box::new)),
            };
            let done = match turn {
                PullTurn::Line(line) => match line.and_then(|line| self.take(&mut session, line)) {
                    Ok(true) => self.report(&mut session).await,
                    Ok(false) => Ok(()),
                    Err(problem) => Err(problem),
                },
                PullTurn::Report => self.report(&mut session).await,
                PullTurn::Looked(None) => Ok(()),
                PullTurn::Looked(Some(found)) => {
                    session = *found;
                    self.followed.begin_all();
                    Ok(())
                }
            };
            search.is_for(&session.statuses);
            if let Err(problem) = done {
                return Ok(format!("{}: {problem}", session.calls.host()));
            }
        }
    }

    /// Takes a line. Returns whether there is a revision that is not reported yet.
    fn take(&mut self, session: &mut PullSession, line: StateLine) -> Result<bool, String> {
        match line {
            StateLine::State { statuses, .. } => {
                session.statuses = statuses;
                session.has_state = false;
                session.lines.begin_state();
                self.followed.begin_all();
            }
            StateLine::Put(key, value) => self.followed.put(key, value),
            StateLine::Delete(key) => self.followed.remove(key),
            StateLine::End(revision) => {
                session.lines.begin_state();
                session.has_state = true;
                self.mailbox.state(true, session.calls.host(), self.controllers.problem());
                session.pairs.add(self.followed.publish(), revision);
                return Ok(true);
            }
            StateLine::Beat(statuses) => {
                session.statuses = statuses;
                if session.has_state {
                    self.mailbox.state(true, session.calls.host(), self.controllers.problem());
                }
            }
            StateLine::Ended(reason) => return Err(format!("it has ended the stream: {reason}")),
            StateLine::Unknown => {}
        }
        Ok(false)
    }

    /// Reports what is served, if that is news.
    async fn report(&mut self, session: &mut PullSession) -> Result<(), String> {
        let serves = self.served.borrow_and_update().clone();
        let Some(revision) = session.pairs.served(serves.revision) else { return Ok(()) };
        let bounded = |(key, problem): (String, String)| (key, problem.chars().take(MOST_PROBLEM).collect());
        let set_aside = serves.set_aside.into_iter().take(MOST_SET_ASIDE).map(bounded).collect();
        let report = ServedReport { stream: session.stream.clone(), revision, set_aside, leaves: false };
        if session.told.as_ref() == Some(&report) {
            return Ok(());
        }
        session.send(&report).await?;
        self.failures = 0;
        session.told = Some(report);
        Ok(())
    }
}

impl KnownControllers {
    /// What is wrong though there is a stream.
    fn problem(&self) -> Option<String> {
        self.files.enrolment.as_ref().and_then(|enrolment| enrolment.problem())
    }

    fn count(&self) -> u32 {
        u32::try_from(self.files.settings.hosts.len()).unwrap_or(1).max(1)
    }

    fn next_host(&mut self) -> String {
        let hosts = &self.files.settings.hosts;
        let host = hosts[self.next % hosts.len()].to_string();
        self.next = self.next.wrapping_add(1);
        host
    }

    /// The stream of the controller that writes statuses, if it is the next one. The present stream stays open meanwhile.
    fn look(&mut self) -> BoxFuture<'static, Option<PullSession>> {
        let (files, host, node) = (self.files.clone(), self.next_host(), self.node.clone());
        Box::pin(async move {
            let opened = timeout(CONNECT, PullSession::open(&files, &host, &node, true)).await;
            opened.ok()?.ok().filter(|session| session.statuses.is_here)
        })
    }
}

/// What a session does next.
enum PullTurn {
    Line(Result<StateLine, String>),
    Report,
    Looked(Option<Box<PullSession>>),
}

/// The search for the controller that writes the statuses.
struct WriterSearch {
    /// The name of the controller that is looked for.
    writer: String,
    looks: u32,
    due: Instant,
    look: Option<BoxFuture<'static, Option<PullSession>>>,
}

impl Default for WriterSearch {
    fn default() -> WriterSearch {
        let pause = LOOK_FOR_WRITER.after(1).mul_f64(rand::random_range(0.5..1.5));
        WriterSearch { writer: String::new(), looks: 1, due: Instant::now() + pause, look: None }
    }
}

impl WriterSearch {
    /// What is said about the writer. If it is another one, or has been found, the next search begins anew.
    fn is_for(&mut self, statuses: &StatusWriting) {
        let is_over = statuses.is_here && (self.looks > 1 || self.look.is_some());
        if is_over || self.writer != statuses.writer {
            *self = WriterSearch { writer: statuses.writer.clone(), ..WriterSearch::default() };
        }
    }

    /// What the next look finds, which `begin` begins. Nothing is lost when the future is dropped.
    async fn next(&mut self, begin: impl FnOnce() -> BoxFuture<'static, Option<PullSession>>) -> Option<PullSession> {
        if self.look.is_none() {
            sleep_until(self.due).await;
        }
        let found = self.look.get_or_insert_with(begin).await;
        self.look = None;
        self.looks += 1;
        self.due = Instant::now() + LOOK_FOR_WRITER.after(self.looks).mul_f64(rand::random_range(0.5..1.5));
        found
    }
}

/// Waits until the store is dropped.
async fn dropped(mut served: watch::Receiver<ControllerState>) {
    while served.changed().await.is_ok() {}
}

/// A connection ends with its stream, or with silence.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

impl PullSession {
    /// Opens a stream on a connection of its own, with the certificates as they are in the files now.
    /// With `if_writer`, a controller that does not write the statuses refuses.
    async fn open(files: &PullFiles, host: &str, node: &str, if_writer: bool) -> Result<PullSession, String> {
        // A look for the writer must not take long.
        let terms = terms::of_node(files, host, !if_writer).await?;
        let opened = PullSession::open_with(terms, files, host, node, if_writer).await;
        opened.map_err(|failure| {
            if let (true, Some(enrolment)) = (failure.is_of_certificate, &files.enrolment) {
                enrolment.doubt();
            }
            failure.problem
        })
    }

    async fn open_with(
        terms: TlsConnector,
        files: &PullFiles,
        host: &str,
        node: &str,
        if_writer: bool,
    ) -> Result<PullSession, OpenFailure> {
        let client = HttpClient::new(HttpClientSettings { dns: files.dns.clone(), ..HttpClientSettings::default() });
        let how = CallSettings {
            connect_timeout: CONNECT,
            timeout: SILENCE,
            // As long as the stream: a report over another connection could reach another controller, behind the same name.
            idle: IdleConnections { max_per_origin: 1, timeout: FOR_EVER },
            protocol: HttpProtocol::Http2,
            verification: ServerVerification::Terms(terms),
            max_content_bytes: usize::MAX,
            max_redirects: 0,
        };
        let calls = ControllerCalls::new(host, client, how)?;
        let name = utf8_percent_encode(node, NON_ALPHANUMERIC);
        let only = if if_writer { "&if=writer" } else { "" };
        let path = format!("/v1/state?node={name}&version={}{only}", env!("CARGO_PKG_VERSION"));
        let answer = calls.open(&path).await?;
        let status = answer.status();
        let mut content = answer.into_body();
        if status != StatusCode::OK {
            let said = content.next().await.ok().flatten().unwrap_or_default();
            let said = String::from_utf8_lossy(&said[..said.len().min(MOST_ERROR)]).trim().to_owned();
            let is_of_certificate = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
            return Err(OpenFailure { problem: format!("it answers with {status}: {said}"), is_of_certificate });
        }
        let mut lines = LineReader::new(content);
        let StateLine::State { stream, statuses, .. } = lines.next().await? else {
            return Err("its stream does not begin with a state; is it a controller of Weir?".to_owned().into());
        };
        let renewal = files.enrolment.as_ref().map(|_| RenewalTask::start(files.clone(), host.to_owned()));
        let pairs = RevisionPairs::default();
        Ok(PullSession { calls, lines, stream, statuses, has_state: false, pairs, told: None, _renewal: renewal })
    }

    /// Says that this node ends, so that it is not waited for. If that cannot be said, it is waited for a short time.
    async fn leave(&self) {
        let Some(told) = &self.told else { return };
        let _ = timeout(FAREWELL, self.send(&ServedReport { leaves: true, ..told.clone() })).await;
    }

    async fn send(&self, report: &ServedReport) -> Result<(), String> {
        let text = serde_json::to_vec(report).expect("it has text keys alone");
        let answer = timeout(REPORT, self.calls.post("/v1/report", text.into())).await;
        let answer = answer.map_err(|_| format!("it does not take a report within {REPORT:?}"))??;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("it answers a report with {status}")),
        }
    }
}

/// Reads lines, of a bounded size.
struct LineReader {
    content: AnswerContent,
    buffer: Vec<u8>,
    /// So many bytes of the buffer have no end of a line.
    searched: usize,
    /// The bytes of the state, or the change, that is being read.
    bytes: usize,
    heard: Instant,
}

impl LineReader {
    fn new(content: AnswerContent) -> LineReader {
        LineReader { content, buffer: Vec::new(), searched: 0, bytes: 0, heard: Instant::now() }
    }

    fn begin_state(&mut self) {
        self.bytes = 0;
    }

    /// The next line. Nothing is lost when the future is dropped.
    async fn next(&mut self) -> Result<StateLine, String> {
        loop {
            if let Some(found) = memchr::memchr(b'\n', &self.buffer[self.searched..]) {
                let length = self.searched + found + 1;
                let line = StateLine::parse(&self.buffer[..length]);
                self.buffer.drain(..length);
                self.searched = 0;
                self.bytes += length;
                if self.bytes > MOST_STATE {
                    return Err(format!("its state has more than {MOST_STATE} bytes"));
                }
                return line;
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > MOST_LINE {
                return Err(format!("it sends a line of more than {MOST_LINE} bytes"));
            }
            let piece = timeout_at(self.heard + SILENCE, self.content.next()).await;
            let piece = piece.map_err(|_| format!("it has said nothing for {SILENCE:?}"))?;
            let piece = piece.map_err(|error| error.to_string())?.ok_or("it has ended the stream")?;
            self.heard = Instant::now();
            self.buffer.extend_from_slice(&piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_controller_that_cannot_be_reached_says_nothing_of_the_certificate() {
        let (host, address) = ("a.test".into(), ([127, 0, 0, 1], 1).into());
        let error = io::Error::from(io::ErrorKind::ConnectionRefused);
        let refused = OpenFailure::from(CallError::Connect { host, address, error });
        assert!(!refused.is_of_certificate);
        let timed_out = CallError::AnswerTimedOut { origin: "a.test".into(), after: SILENCE };
        assert!(!OpenFailure::from(timed_out).is_of_certificate);
        for (told, expected) in [("received fatal alert: CertificateExpired", true), ("unexpected end of file", false)]
        {
            let failure = CallError::Tls { host: "a.test".into(), address, error: io::Error::other(told) };
            assert_eq!(OpenFailure::from(failure).is_of_certificate, expected, "{told}");
        }
    }
}
