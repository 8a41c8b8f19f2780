//! Sends the requests of a log to both gateways, and compares the answers.
//!
//! Each safe request is sent to the old gateway, to the new one, and to the old one again: what is between two answers of the old
//! gateway, such as a time or a counter, then differs between these two as well. A difference that remains is looked at again with
//! more answers of both, until it was confirmed some times in its shape.

mod choice;
mod replayed;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::future::Future;
use std::pin::pin;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{HeaderName, HeaderValue};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::answer::{AnswerAbsence, AnswerOutcome};
use crate::cause::{DifferenceCause, DifferenceKey};
use crate::compare::{AnswerDifference, ComparedAnswer, DifferenceList, OwnNames, differences};
use crate::findings::{RehearsalFindings, RehearsalTotals};
use crate::log::LogLine;
use crate::pace::{Pace, Pacer};
use crate::replay::choice::RequestChoice;
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
/// The last answers of the old gateway that decide whether it is overloaded.
const WATCHED_ANSWERS: usize = 50;
/// The most failures among them that the log does not have.
const MAX_NEW_FAILURES: usize = 10;

/// The most bytes of contents that the old gateway is made to send.
const MAX_RUN_BYTES: u64 = 64 << 30;
/// The most shapes of late requests that are remembered.
const MAX_LATE_SHAPES: usize = 1000;

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
    /// Requests that the log shows as refused are sent as well.
    pub with_refused: bool,
    /// Paths that are not sent; `*` stands for any text.
    pub excluded: Vec<String>,
    /// Differences that do not count: a cause, and a subject that may end with `*`. An empty subject is any.
    pub ignored: Vec<(DifferenceCause, String)>,
    /// The most bytes of a body that are compared by content.
    pub max_body_bytes: usize,
}

#[cfg(test)]
impl RehearsalPlan {
    /// Everything is sent once, as fast as it can be.
    fn of_tests() -> RehearsalPlan {
        RehearsalPlan {
            methods: Vec::new(),
            pace: Pace::None,
            speed: 1.0,
            concurrency: 1,
            limit: 1,
            sample: 1,
            distinct: Distinct::All,
            host: None,
            fields: Vec::new(),
            with_credentials: false,
            with_refused: false,
            excluded: Vec::new(),
            ignored: Vec::new(),
            max_body_bytes: 10,
        }
    }
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
    /// The shapes of requests that the old gateway did not answer in time.
    late: RefCell<HashSet<String>>,
}

impl Rehearsal {
    /// Sends the requests of these lines, until they end or `ended` is ready. `progress` is called after each request that is sent.
    pub async fn run(
        &self,
        lines: mpsc::Receiver<(u64, LogLine)>,
        ended: impl Future<Output = StopReason>,
        progress: impl FnMut(&RehearsalTotals),
    ) -> RehearsalFindings {
        let run = RunningRehearsal {
            rehearsal: self,
            findings: RefCell::default(),
            recent: RefCell::default(),
            late: RefCell::default(),
        };
        // What is in flight or waits is dropped, and what was found stays.
        tokio::select! {
            biased;
            reason = ended => {
                run.findings.borrow_mut().stopped.get_or_insert(reason);
            }
            () = run.replay(lines, progress) => {}
        }
        run.findings.into_inner()
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
    shape: &'a str,
    /// The status that the log has.
    logged: Option<u16>,
    max_body: usize,
}

impl AnswerPair<'_> {
    /// What differs between answers of these gateways: 0 is the old one, 1 the new one.
    fn differences(&self, one: (usize, &AnswerOutcome), other: (usize, &AnswerOutcome)) -> DifferenceList {
        let [one, other] = [one, other].map(|(side, outcome)| ComparedAnswer { outcome, names: &self.names[side] });
        differences(one, other, &self.request.target, self.max_body)
    }

    /// What differs between two answers of the old gateway. `None` if one is missing, or is another one as a whole: an error of one
    /// moment says nothing about what varies.
    fn varying(&self, first: &AnswerOutcome, again: &AnswerOutcome) -> Option<BTreeSet<DifferenceKey>> {
        let is_other = |(cause, _): &DifferenceKey| {
            matches!(cause, DifferenceCause::Status | DifferenceCause::TrailingSlash) && status(first) != status(again)
        };
        let found = self.differences((0, first), (0, again)).found;
        let keys: BTreeSet<DifferenceKey> = found.into_iter().map(|one| one.key).collect();
        (again.is_ok() && !keys.iter().any(is_other)).then_some(keys)
    }
}

fn status(answer: &AnswerOutcome) -> Option<u16> {
    answer.as_ref().ok().map(|answer| answer.status)
}

/// Whether a difference is none of a value, which could vary.
fn is_structural((cause, subject): &DifferenceKey) -> bool {
    use DifferenceCause::{
        BodyKind, BodyMembers, BodyMissing, ContentEncoding, ContentType, FieldAdded, FieldMissing, Status,
        TrailingSlash,
    };
    match cause {
        Status | TrailingSlash | ContentType | ContentEncoding | FieldMissing | FieldAdded | BodyMissing | BodyKind => {
            true
        }
        BodyMembers => !subject.ends_with(" length"),
        cause => cause.is_absence() || subject.ends_with(" missing") || subject.ends_with(" added"),
    }
}

fn is_ignored(ignored: &[(DifferenceCause, String)], (cause, subject): &DifferenceKey) -> bool {
    let subject = subject.to_ascii_lowercase();
    ignored.iter().filter(|(ignored, _)| ignored == cause).any(|(_, of)| match of.strip_suffix('*') {
        _ if of.is_empty() => true,
        Some(begin) => subject.starts_with(begin),
        None => subject == *of || subject.strip_prefix(of.as_str()).is_some_and(|rest| rest.starts_with(' ')),
    })
}

impl RunningRehearsal<'_> {
    async fn replay(&self, mut lines: mpsc::Receiver<(u64, LogLine)>, mut progress: impl FnMut(&RehearsalTotals)) {
        let plan = &self.rehearsal.plan;
        let mut pacer = Pacer::new(plan.pace, plan.speed);
        let mut choice = RequestChoice::new(plan, self.rehearsal.old.authority());
        let mut in_flight = FuturesUnordered::new();
        while let Some(line) = alongside(&mut in_flight, lines.recv()).await {
            let chosen = choice.chosen(line, &mut self.findings.borrow_mut());
            let Some((request, status, at_ms)) = chosen else { continue };
            let due = pacer.due(at_ms, Instant::now());
            alongside(&mut in_flight, sleep_until(due)).await;
            while in_flight.len() >= plan.concurrency {
                in_flight.next().await;
            }
            if self.is_stopped() {
                break;
            }
            self.findings.borrow_mut().totals.sent += 1;
            in_flight.push(self.rehearse(request, status));
            progress(&self.findings.borrow().totals);
            if self.findings.borrow().totals.sent == plan.limit {
                break;
            }
        }
        while in_flight.next().await.is_some() {}
    }

    fn is_stopped(&self) -> bool {
        self.findings.borrow().stopped.is_some()
    }

    async fn rehearse(&self, request: ReplayedRequest, logged: Option<u16>) {
        let Rehearsal { plan, old, new } = self.rehearsal;
        let names = [old, new].map(|side| OwnNames {
            scheme: if side.is_https() { "https" } else { "http" },
            authority: side.authority().to_owned(),
            port: side.port(),
            host: request.host.clone(),
        });
        let shape = shape::of(request.method.as_str(), &request.host, &request.target);
        let pair = AnswerPair { names, request: &request, shape: &shape, logged, max_body: plan.max_body_bytes };
        let began = Instant::now();
        let first = self.ask_old(&pair).await;
        let between = Instant::now();
        if let Err(missing) = &first {
            let mut findings = self.findings.borrow_mut();
            match missing {
                AnswerAbsence::Tls(_) => findings.totals.foreign_hosts += 1,
                _ => findings.totals.unanswered_by_old += 1,
            }
            findings.add_unanswered(&request.host, missing.reason());
            return;
        }
        let answer = request.ask(new).await;
        let times = [between - began, between.elapsed()].map(|time| time.as_micros() as u64);
        let Some((found, varying, is_body_uncompared)) = self.compared(&pair, &first, &answer).await else {
            self.findings.borrow_mut().totals.unsteady_in_old += 1;
            return;
        };
        let mut findings = self.findings.borrow_mut();
        findings.totals.compared += 1;
        findings.totals.bodies_not_compared += u64::from(is_body_uncompared);
        findings.time_us[0] += times[0];
        findings.time_us[1] += times[1];
        findings.learn(&shape, varying);
        findings.add(&shape, found, request.method.is_safe(), || request.example());
    }

    /// The old gateway's answer to a request, which is watched.
    async fn ask_old(&self, pair: &AnswerPair<'_>) -> AnswerOutcome {
        let answer = pair.request.ask(&self.rehearsal.old).await;
        self.watch(pair, &answer);
        answer
    }

    /// What differs, what varies, and whether the contents were not compared. `None` if the old gateway gives another answer as a
    /// whole when it is asked again, or none.
    async fn compared(
        &self,
        pair: &AnswerPair<'_>,
        first: &AnswerOutcome,
        answer: &AnswerOutcome,
    ) -> Option<(Vec<AnswerDifference>, BTreeSet<DifferenceKey>, bool)> {
        let is_safe = pair.request.method.is_safe();
        let mut varying = BTreeSet::new();
        if is_safe {
            let again = self.ask_old(pair).await;
            varying = pair.varying(first, &again)?;
        }
        let DifferenceList { mut found, uncounted, is_body_uncompared } = pair.differences((0, first), (1, answer));
        found.retain(|one| {
            !varying.contains(&one.key)
                && !is_ignored(&self.rehearsal.plan.ignored, &one.key)
                && !self.findings.borrow().is_known_to_vary(pair.shape, &one.key)
                // What varies is not known: the request is sent once.
                && (is_safe || is_structural(&one.key))
        });
        let is_new =
            |one: &AnswerDifference| !self.findings.borrow().is_confirmed(pair.shape, &one.key, CONFIRMING_REQUESTS);
        if is_safe && found.iter().any(is_new) {
            self.confirm(pair, first, &mut found, &mut varying).await?;
        }
        self.findings.borrow_mut().totals.differences_not_kept += uncounted;
        Some((found, varying, is_body_uncompared))
    }

    /// Keeps the differences that more answers of both gateways have as well. `None` if the old gateway answers in another way.
    async fn confirm(
        &self,
        pair: &AnswerPair<'_>,
        first: &AnswerOutcome,
        found: &mut Vec<AnswerDifference>,
        varying: &mut BTreeSet<DifferenceKey>,
    ) -> Option<()> {
        for _ in 0..CONFIRMING_ROUNDS {
            if self.is_stopped() {
                return None;
            }
            let (old, new) = (self.ask_old(pair).await, pair.request.ask(&self.rehearsal.new).await);
            varying.extend(pair.varying(first, &old)?);
            let again: BTreeSet<DifferenceKey> =
                pair.differences((0, &old), (1, &new)).found.into_iter().map(|one| one.key).collect();
            found.retain(|one| again.contains(&one.key) && !varying.contains(&one.key));
            // A missing answer is no value that could vary, and takes time.
            if found.iter().all(|one| one.key.0.is_absence()) {
                break;
            }
        }
        Some(())
    }

    /// Ends the rehearsal if the old gateway fails more than it did, or has sent very much.
    fn watch(&self, pair: &AnswerPair<'_>, answer: &AnswerOutcome) {
        let read = self.rehearsal.old.read_bytes();
        if read > MAX_RUN_BYTES {
            let reason = format!("the old gateway has sent {read} bytes, and the limit is {MAX_RUN_BYTES}");
            self.findings.borrow_mut().stopped.get_or_insert(reason);
        }
        let is_failure = |status: u16| status >= 500 || status == 429;
        let failed = match answer {
            Ok(answer) => is_failure(answer.status),
            // The log has a host that is not the gateway's.
            Err(AnswerAbsence::Tls(_)) => false,
            Err(AnswerAbsence::TimedOut(_)) => !self.is_long_poll(pair.shape),
            Err(_) => true,
        };
        let failed = failed && !pair.logged.is_some_and(is_failure);
        let mut recent = self.recent.borrow_mut();
        recent.push_back(failed);
        if recent.len() > WATCHED_ANSWERS {
            recent.pop_front();
        }
        let failures = recent.iter().filter(|failed| **failed).count();
        if failures > MAX_NEW_FAILURES {
            let reason = match answer {
                Err(missing) => missing.reason().to_owned(),
                Ok(answer) => format!("the last one with {}", answer.status),
            };
            self.findings.borrow_mut().stopped.get_or_insert(format!(
                "the old gateway gave {failures} of its last {} answers with 5xx or 429 or not at all, where the log has other answers: \
                 {reason}",
                recent.len()
            ));
        }
    }

    /// Whether requests of this shape were late before and never answered in time, as those that wait for an event.
    fn is_long_poll(&self, shape: &str) -> bool {
        let mut late = self.late.borrow_mut();
        if self.findings.borrow().was_compared(shape) {
            return false;
        }
        late.contains(shape) || late.len() < MAX_LATE_SHAPES && !late.insert(shape.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_differences_are_named_without_case() {
        let ignored = |of: &str, subject: &str| {
            is_ignored(
                &[(DifferenceCause::CookieSet, of.to_owned())],
                &(DifferenceCause::CookieSet, subject.to_owned()),
            )
        };
        assert!(ignored("jsessionid", "JSESSIONID value") && ignored("jsess*", "JSESSIONID added") && ignored("", "A"));
        assert!(!ignored("jsession", "JSESSIONID value") && !ignored("jsessionid", "JSESSIONID2 value"));
    }

    #[test]
    fn structure_is_what_differs_without_a_value() {
        let is = |cause, subject: &str| is_structural(&(cause, subject.to_owned()));
        assert!(is(DifferenceCause::Status, "200 -> 500") && is(DifferenceCause::Security, "x-frame-options missing"));
        assert!(is(DifferenceCause::BodyMembers, "$.a missing") && is(DifferenceCause::TimedOut, ""));
        assert!(!is(DifferenceCause::BodyMembers, "$.a length") && !is(DifferenceCause::BodyValues, "$.id"));
        assert!(!is(DifferenceCause::FieldChanged, "x-id") && !is(DifferenceCause::CookieSet, "a value"));
    }
}
