//! Sends the requests of a log to both gateways, and compares the answers.
//!
//! Each safe request is sent to the old gateway, to the new one, and to the old one again: what is between two answers of the old
//! gateway, such as a time or a counter, then differs between these two as well. A difference that remains is looked at again with
//! more answers of both, until it was confirmed some times in its shape.

mod replayed;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{HeaderName, HeaderValue};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::answer::AnswerOutcome;
use crate::cause::{DifferenceCause, DifferenceKey};
use crate::compare::{AnswerDifference, ComparedAnswer, OwnNames, differences};
use crate::findings::{RehearsalFindings, RehearsalTotals};
use crate::log::{LogLine, RecordedRequest};
use crate::pace::{Pace, Pacer};
use crate::replay::replayed::ReplayedRequest;
use crate::shape;
use crate::target::GatewayTarget;

/// The methods that change nothing (RFC 9110 9.2.1) and are sent unless others are named.
pub const SAFE_METHODS: [&str; 3] = ["GET", "HEAD", "OPTIONS"];
/// How often a request is sent again to both gateways, to confirm a difference: where two nodes behind a gateway answer in turns, each
/// round clears three of four differences that are not the gateway's.
const CONFIRMING_ROUNDS: usize = 4;
/// How many requests of a shape confirm a difference.
const CONFIRMING_REQUESTS: u32 = 5;
/// The most requests that are remembered to send each once. Repeats of later ones are sent.
const MAX_REMEMBERED: usize = 1_000_000;
/// The last answers of the old gateway that decide whether it is overloaded.
const WATCHED_ANSWERS: usize = 50;
/// The most failures among them that the log does not have.
const MAX_NEW_FAILURES: usize = 10;

/// Whether requests like an earlier one are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distinct {
    /// Each method, host, target, body and set of fields once. `User-Agent` and `Referer` do not count.
    Once,
    /// Every request of the log.
    All,
}

/// Why a rehearsal ended before the log, in words.
pub type StopReason = String;

/// What is sent, and how.
#[derive(Clone, Debug)]
pub struct RehearsalPlan {
    /// Empty for all methods.
    pub methods: Vec<String>,
    pub pace: Pace,
    /// How much faster than the log, with [`Pace::Recorded`].
    pub speed: f64,
    /// The requests of the log that are in flight at a time.
    pub concurrency: usize,
    /// The most requests of the log that are sent.
    pub limit: u64,
    /// One of this many requests is sent.
    pub sample: u64,
    pub distinct: Distinct,
    /// In place of the host of the log.
    pub host: Option<String>,
    /// Fields that are added to each request, in place of those of the log.
    pub fields: Vec<(HeaderName, HeaderValue)>,
    pub with_credentials: bool,
    /// Differences that do not count: a cause, and a subject that may end with `*`. An empty subject is any.
    pub ignored: Vec<(DifferenceCause, String)>,
    /// The most bytes of a body that are compared by content.
    pub max_body_bytes: usize,
}

/// A rehearsal: two gateways and a plan.
pub struct Rehearsal {
    pub plan: RehearsalPlan,
    pub old: GatewayTarget,
    pub new: GatewayTarget,
}

/// The state of a rehearsal that runs.
struct RunningRehearsal<'a> {
    rehearsal: &'a Rehearsal,
    findings: RefCell<RehearsalFindings>,
    /// Whether each of the last answers of the old gateway is a failure that the log does not have.
    recent: RefCell<VecDeque<bool>>,
}

impl Rehearsal {
    /// Sends the requests of these lines, until they end or `ended` is ready. `progress` is called after each request that is sent.
    pub async fn run(
        &self,
        mut lines: mpsc::Receiver<(u64, LogLine)>,
        ended: impl Future<Output = StopReason>,
        mut progress: impl FnMut(&RehearsalTotals),
    ) -> RehearsalFindings {
        let run = RunningRehearsal { rehearsal: self, findings: RefCell::default(), recent: RefCell::default() };
        let mut pacer = Pacer::new(self.plan.pace, self.plan.speed);
        let mut seen = HashSet::new();
        let mut in_flight = FuturesUnordered::new();
        let mut ended = pin!(ended);
        loop {
            let next = async {
                tokio::select! {
                    reason = &mut ended => Err(reason),
                    line = lines.recv() => Ok(line),
                }
            };
            let line = match alongside(&mut in_flight, next).await {
                Ok(None) => break,
                Ok(Some(line)) => line,
                Err(reason) => {
                    run.findings.borrow_mut().stopped = Some(reason);
                    break;
                }
            };
            let Some((request, status, at_ms)) = self.chosen(line, &mut seen, &mut run.findings.borrow_mut()) else {
                continue;
            };
            let due = pacer.due(at_ms, Instant::now());
            alongside(&mut in_flight, sleep_until(due)).await;
            while in_flight.len() >= self.plan.concurrency {
                in_flight.next().await;
            }
            if run.findings.borrow().stopped.is_some() {
                break;
            }
            run.findings.borrow_mut().totals.sent += 1;
            in_flight.push(run.rehearse(request, status));
            progress(&run.findings.borrow().totals);
            if run.findings.borrow().totals.sent == self.plan.limit {
                break;
            }
        }
        while in_flight.next().await.is_some() {}
        drop(in_flight);
        run.findings.into_inner()
    }

    /// The request of a line with its status and time in the log, if it is to be sent.
    fn chosen(
        &self,
        (number, line): (u64, LogLine),
        seen: &mut HashSet<u64>,
        findings: &mut RehearsalFindings,
    ) -> Option<(ReplayedRequest, Option<u16>, Option<i64>)> {
        let totals: &mut RehearsalTotals = &mut findings.totals;
        totals.lines += 1;
        let recorded = match line {
            Err(problem) => {
                findings.add_problem(number, &problem);
                return None;
            }
            Ok(None) => {
                totals.without_request += 1;
                return None;
            }
            Ok(Some(recorded)) => recorded,
        };
        let RecordedRequest { status, at_ms, .. } = recorded;
        if !self.plan.methods.is_empty() && !self.plan.methods.contains(&recorded.method) {
            totals.other_methods += 1;
            return None;
        }
        let Some(request) = ReplayedRequest::of(recorded, &self.plan, self.old.authority()) else {
            totals.without_request += 1;
            return None;
        };
        let mut hasher = DefaultHasher::new();
        request.identity().hash(&mut hasher);
        let hash = hasher.finish();
        if self.plan.distinct == Distinct::Once && seen.contains(&hash) {
            totals.repeated += 1;
            return None;
        }
        if seen.len() < MAX_REMEMBERED {
            seen.insert(hash);
        }
        if !(totals.sent + totals.not_sampled).is_multiple_of(self.plan.sample) {
            totals.not_sampled += 1;
            return None;
        }
        Some((request, status, at_ms))
    }

    fn is_ignored(&self, (cause, subject): &DifferenceKey) -> bool {
        self.plan.ignored.iter().any(|(ignored, of)| {
            ignored == cause
                && match of.strip_suffix('*') {
                    _ if of.is_empty() => true,
                    Some(begin) => subject.starts_with(begin),
                    None => {
                        subject == of || subject.strip_prefix(of.as_str()).is_some_and(|rest| rest.starts_with(' '))
                    }
                }
        })
    }
}

/// Waits for one thing while others run.
async fn alongside<T>(running: &mut FuturesUnordered<impl Future<Output = ()>>, awaited: impl Future<Output = T>) -> T {
    let mut awaited = pin!(awaited);
    loop {
        tokio::select! {
            biased;
            done = &mut awaited => return done,
            Some(()) = running.next(), if !running.is_empty() => {}
        }
    }
}

/// Both gateways' answers to one request.
struct AnswerPair<'a> {
    names: [OwnNames; 2],
    request: &'a ReplayedRequest,
    max_body: usize,
}

impl AnswerPair<'_> {
    /// What differs between answers of these gateways: 0 is the old one, 1 the new one.
    fn differences(&self, one: (usize, &AnswerOutcome), other: (usize, &AnswerOutcome)) -> Vec<AnswerDifference> {
        let [one, other] = [one, other].map(|(side, outcome)| ComparedAnswer { outcome, names: &self.names[side] });
        differences(one, other, &self.request.target, self.max_body)
    }

    fn keys(&self, one: &AnswerOutcome, other: &AnswerOutcome) -> BTreeSet<DifferenceKey> {
        self.differences((0, one), (0, other)).into_iter().map(|one| one.key).collect()
    }
}

impl RunningRehearsal<'_> {
    async fn rehearse(&self, request: ReplayedRequest, logged: Option<u16>) {
        let Rehearsal { plan, old, new } = self.rehearsal;
        let names = [old, new].map(|side| OwnNames {
            scheme: if side.is_https() { "https" } else { "http" },
            authority: side.authority().to_owned(),
            port: side.port(),
            host: request.host.clone(),
        });
        let pair = AnswerPair { names, request: &request, max_body: plan.max_body_bytes };
        let shape = shape::of(request.method.as_str(), &request.host, &request.target);
        let began = Instant::now();
        let first = request.ask(old).await;
        let between = Instant::now();
        self.watch(&first, logged);
        if first.is_err() {
            self.findings.borrow_mut().totals.unanswered_by_old += 1;
            return;
        }
        let answer = request.ask(new).await;
        let times = [between - began, between.elapsed()].map(|time| time.as_micros() as u64);
        let is_safe = request.method.is_safe();
        let mut varying = BTreeSet::new();
        if is_safe {
            let again = request.ask(old).await;
            varying = pair.keys(&first, &again);
            // The whole answer is another one.
            if again.is_err()
                || varying
                    .iter()
                    .any(|(cause, _)| matches!(cause, DifferenceCause::Status | DifferenceCause::TrailingSlash))
            {
                self.findings.borrow_mut().totals.unsteady_in_old += 1;
                return;
            }
        }
        let mut found = pair.differences((0, &first), (1, &answer));
        found.retain(|one| !varying.contains(&one.key) && !self.rehearsal.is_ignored(&one.key));
        let is_new = |one: &AnswerDifference| {
            let findings = self.findings.borrow();
            !findings.is_known_to_vary(&shape, &one.key)
                && !findings.is_confirmed(&shape, &one.key, CONFIRMING_REQUESTS)
        };
        if is_safe && found.iter().any(is_new) {
            self.confirm(&pair, &first, &mut found, &mut varying).await;
        }
        let mut findings = self.findings.borrow_mut();
        findings.totals.compared += 1;
        findings.time_us[0] += times[0];
        findings.time_us[1] += times[1];
        findings.learn(&shape, varying);
        findings.add(&shape, found, is_safe, || request.example());
    }

    /// Keeps the differences that more answers of both gateways have as well.
    async fn confirm(
        &self,
        pair: &AnswerPair<'_>,
        first: &AnswerOutcome,
        found: &mut Vec<AnswerDifference>,
        varying: &mut BTreeSet<DifferenceKey>,
    ) {
        let Rehearsal { old, new, .. } = self.rehearsal;
        for _ in 0..CONFIRMING_ROUNDS {
            let (old, new) = (pair.request.ask(old).await, pair.request.ask(new).await);
            if old.is_err() {
                continue;
            }
            varying.extend(pair.keys(first, &old));
            let again: BTreeSet<DifferenceKey> =
                pair.differences((0, &old), (1, &new)).into_iter().map(|one| one.key).collect();
            found.retain(|one| again.contains(&one.key) && !varying.contains(&one.key));
            // A missing answer is no value that could vary, and takes time.
            if found.iter().all(|one| one.key.0.is_absence()) {
                return;
            }
        }
    }

    /// Ends the rehearsal if the old gateway fails more than it did.
    fn watch(&self, answer: &AnswerOutcome, logged: Option<u16>) {
        let is_failure = |status: u16| status >= 500 || status == 429;
        let failed =
            answer.as_ref().map_or(true, |answer| is_failure(answer.status)) && !logged.is_some_and(is_failure);
        let mut recent = self.recent.borrow_mut();
        recent.push_back(failed);
        if recent.len() > WATCHED_ANSWERS {
            recent.pop_front();
        }
        let failures = recent.iter().filter(|failed| **failed).count();
        if failures > MAX_NEW_FAILURES {
            let mut findings = self.findings.borrow_mut();
            let reason = match answer {
                Err(missing) => missing.reason().to_owned(),
                Ok(answer) => format!("the last one with {}", answer.status),
            };
            findings.stopped.get_or_insert(format!(
                "the old gateway answered {failures} of the last {} requests with 5xx or 429 or not at all, where the log has other \
                 answers: {reason}",
                recent.len()
            ));
        }
    }
}
