//! Requests that are made of data, and what is done with their answers: checks, values for later requests, cookies, redirects.
//!
//! A plan without any of these has no [`FlowPlan`], and its requests are rendered once. Nothing here opens a socket.

mod answer;
mod checks;
mod cookies;
mod names;
mod prepare;
mod redirect;
mod request;
mod table;
mod template;
mod variables;

use std::sync::Arc;

pub(super) use self::answer::CapturedAnswer;
use self::answer::CompleteAnswer;
use self::cookies::CookieJar;
pub(super) use self::prepare::{FlowPlace, FlowPlan};
use self::redirect::{RedirectedRequest, is_redirect, redirected};
use self::request::FlowRequest;
pub(super) use self::request::RenderedRequest;
pub(super) use self::template::{breaks_field, without_values};
use self::variables::DrawnValues;
use super::plan::Think;
use super::result::{AnswerCheckTally, FlowTally};
use crate::stats::SeededRandom;

/// One thread's part of a flow.
#[derive(Debug)]
pub(super) struct LoadFlow {
    plan: Arc<FlowPlan>,
    /// The number of this thread's first client in the whole run.
    first_client: usize,
    slots_per_client: usize,
    users: Vec<FlowUser>,
    slots: Vec<FlowSlot>,
    random: SeededRandom,
    /// Exchanges that are due from then on are measured, ns.
    measure_from: u64,
    tally: FlowTally,
}

/// A client that sends its requests in sequence, or a slot for one exchange at a time.
#[derive(Debug)]
struct FlowUser {
    drawn: DrawnValues,
    cookies: CookieJar,
    /// When its pass through the requests was due.
    pass_due: u64,
    /// A request of its pass had no answer.
    is_incomplete: bool,
}

/// An exchange at present.
#[derive(Debug, Default)]
struct FlowSlot {
    answer: CapturedAnswer,
    /// The target that was sent last.
    target: String,
    redirect: Option<RedirectedRequest>,
    redirects: u32,
    first_byte: Option<u64>,
}

/// What follows an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerVerdict {
    /// Another request of the same exchange, because the answer was a redirect.
    Again,
    Done(JudgedAnswer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JudgedAnswer {
    pub(super) is_expected: bool,
    /// A check failed other than that of the status.
    pub(super) failed_check: bool,
    /// The client begins again with the first request, because the answer had no value for the others.
    pub(super) ends_pass: bool,
}

impl LoadFlow {
    /// The part of a thread; `first_client` is numbered over the whole run.
    pub(super) fn new(
        plan: Arc<FlowPlan>,
        thread: usize,
        first_client: usize,
        clients: usize,
        slots_per_client: usize,
    ) -> Self {
        let slots = clients * slots_per_client;
        let users = if plan.by_client { clients } else { slots };
        let user = || FlowUser {
            drawn: plan.sources.empty_values(),
            cookies: CookieJar::default(),
            pass_due: 0,
            is_incomplete: false,
        };
        Self {
            first_client,
            slots_per_client,
            users: (0..users).map(|_| user()).collect(),
            slots: (0..slots).map(|_| FlowSlot::default()).collect(),
            random: SeededRandom::new(plan.seed ^ (thread as u64 + 1).wrapping_mul(0xA076_1D64_78BD_642F)),
            measure_from: 0,
            tally: plan.empty_tally(),
            plan,
        }
    }

    /// Only exchanges that are due from then on are counted.
    pub(super) fn measure_from(&mut self, at: u64) {
        self.measure_from = at;
    }

    fn user(&self, slot: usize) -> usize {
        if self.plan.by_client { slot / self.slots_per_client } else { slot }
    }

    /// Draws the values of a request that is due; false if a file has no row left for the client.
    pub(super) fn draw(&mut self, slot: usize, request: usize, due: u64) -> bool {
        if self.plan.by_client && request != 0 {
            return true;
        }
        let client = self.first_client + slot / self.slots_per_client;
        let index = self.user(slot);
        let user = &mut self.users[index];
        (user.pass_due, user.is_incomplete) = (due, false);
        self.plan.sources.draw(client, &mut user.drawn, &mut self.random)
    }

    /// Begins an exchange.
    pub(super) fn begin(&mut self, slot: usize, request: usize) {
        let current = &mut self.slots[slot];
        current.answer.begin(self.plan.requests[request].needs);
        (current.redirect, current.redirects, current.first_byte) = (None, 0, None);
    }

    /// Whether the request that is to be sent is always the same, and has been rendered before the run.
    pub(super) fn is_fixed(&mut self, slot: usize, request: usize) -> bool {
        let (asked, current) = (&self.plan.requests[request], &mut self.slots[slot]);
        let is_fixed = asked.is_fixed && current.redirect.is_none();
        if is_fixed && asked.redirect_check.is_some() {
            current.target = asked.target.text(&[]);
        }
        is_fixed
    }

    /// The request that is to be sent: that of the plan, or the one that a redirect asks for.
    pub(super) fn render(&mut self, slot: usize, request: usize) -> RenderedRequest<'_> {
        let user = self.user(slot);
        let FlowUser { drawn, cookies, .. } = &self.users[user];
        let current = &mut self.slots[slot];
        let kept = self.plan.keeps_cookies.then_some(cookies);
        let rendered = self.plan.requests[request].render(&drawn.values, current.redirect.as_ref(), kept);
        current.target.clone_from(&rendered.target);
        rendered
    }

    /// Where the answer of an exchange is received.
    pub(super) fn answer(&mut self, slot: usize) -> &mut CapturedAnswer {
        &mut self.slots[slot].answer
    }

    /// The first byte of an answer has come; only that of the first answer of an exchange counts.
    pub(super) fn received(&mut self, slot: usize, now: u64) {
        self.slots[slot].first_byte.get_or_insert(now);
    }

    pub(super) fn first_byte(&self, slot: usize) -> Option<u64> {
        self.slots[slot].first_byte
    }

    /// The pause after a request, if it has its own.
    pub(super) fn think(&self, request: usize) -> Option<Think> {
        self.plan.requests[request].think
    }

    /// Looks at a complete answer to a request that was due at `due`.
    pub(super) fn answered(&mut self, slot: usize, request: usize, status: u16, due: u64, now: u64) -> AnswerVerdict {
        let index = self.user(slot);
        let asked = &self.plan.requests[request];
        let (user, current) = (&mut self.users[index], &mut self.slots[slot]);
        if self.plan.keeps_cookies {
            for cookie in current.answer.fields("set-cookie") {
                user.cookies.take(asked.host, &current.target, &String::from_utf8_lossy(cookie));
            }
        }
        let mut counter = CheckCounter { checks: &mut self.tally.checks, counts: due >= self.measure_from };
        let mut judged = JudgedAnswer { is_expected: true, failed_check: false, ends_pass: false };
        if let Some(check) = asked.redirect_check {
            match next_request(asked, current, status) {
                Ok(Some(next)) => {
                    (current.redirect, current.redirects) = (Some(next), current.redirects + 1);
                    current.answer.restart(0);
                    return AnswerVerdict::Again;
                }
                Ok(None) => drop(counter.count(check, Ok(()))),
                Err(problem) => judged.failed_check |= !counter.count(check, Err(problem)),
            }
        }
        judge(asked, &current.answer, status, &mut user.drawn.values, &mut counter, &mut judged);
        let (pass_due, is_incomplete) = (user.pass_due, user.is_incomplete);
        let is_last = request + 1 == self.plan.requests.len();
        if judged.ends_pass || (is_last && is_incomplete) {
            self.abandon(pass_due);
        } else if is_last {
            self.complete_pass(pass_due, now);
        }
        AnswerVerdict::Done(judged)
    }

    /// An exchange ended without an answer: values that it would have given are the default ones. Returns whether the client
    /// begins again with the first request, because values for the others are missing.
    pub(super) fn failed(&mut self, slot: usize, request: usize) -> bool {
        let index = self.user(slot);
        let user = &mut self.users[index];
        user.is_incomplete = true;
        let mut ends_pass = false;
        for (_, take) in &self.plan.requests[request].takes {
            match &take.default {
                Some(default) => default.clone_into(&mut user.drawn.values[take.variable]),
                None => ends_pass = true,
            }
        }
        if ends_pass || request + 1 == self.plan.requests.len() {
            let pass_due = user.pass_due;
            self.abandon(pass_due);
        }
        ends_pass
    }

    fn abandon(&mut self, pass_due: u64) {
        if let Some(passes) = self.tally.passes.as_mut().filter(|_| pass_due >= self.measure_from) {
            passes.abandoned += 1;
        }
    }

    fn complete_pass(&mut self, pass_due: u64, now: u64) {
        if let Some(passes) = self.tally.passes.as_mut().filter(|_| pass_due >= self.measure_from) {
            passes.completed += 1;
            passes.time.record(now.saturating_sub(pass_due));
        }
    }

    /// The counts so far.
    pub(super) fn take_tally(&mut self) -> FlowTally {
        std::mem::take(&mut self.tally)
    }
}

/// Counts the outcomes of checks.
struct CheckCounter<'a> {
    checks: &'a mut [AnswerCheckTally],
    /// Whether the exchange belongs to the measurement.
    counts: bool,
}

impl CheckCounter<'_> {
    /// Counts an outcome, and returns whether the check was passed.
    fn count(&mut self, check: usize, outcome: Result<(), String>) -> bool {
        let passed = outcome.is_ok();
        if self.counts {
            let tally = &mut self.checks[check];
            *(if passed { &mut tally.passed } else { &mut tally.failed }) += 1;
            if let Err(example) = outcome {
                tally.example.get_or_insert(example);
            }
        }
        passed
    }
}

/// Makes the checks of an answer, and takes values from it.
fn judge(
    asked: &FlowRequest,
    answer: &CapturedAnswer,
    status: u16,
    values: &mut [String],
    counter: &mut CheckCounter<'_>,
    judged: &mut JudgedAnswer,
) {
    let answer = CompleteAnswer::new(answer);
    judged.is_expected = asked.checks_status || asked.expects(status);
    for (index, check) in &asked.checks {
        let passed = counter.count(*index, check.check(status, &answer, values));
        match check.is_of_status() {
            true => judged.is_expected &= passed,
            false => judged.failed_check |= !passed,
        }
    }
    for (index, take) in &asked.takes {
        let taken = take.value(&answer);
        match taken.or_else(|problem| take.default.clone().ok_or(problem)) {
            Ok(value) => {
                counter.count(*index, Ok(()));
                values[take.variable] = value;
            }
            Err(problem) => {
                counter.count(*index, Err(problem));
                (judged.failed_check, judged.ends_pass) = (true, true);
            }
        }
    }
    judged.failed_check &= judged.is_expected;
}

/// The request that a redirect asks for; the error says why it is not followed.
fn next_request(asked: &FlowRequest, current: &FlowSlot, status: u16) -> Result<Option<RedirectedRequest>, String> {
    if !is_redirect(status) {
        return Ok(None);
    }
    let Some(location) = current.answer.fields("location").next() else { return Ok(None) };
    if current.redirects == asked.follow_redirects {
        return Err(format!("it was one redirect more than {}", asked.follow_redirects));
    }
    let drops_content = current.redirect.as_ref().is_some_and(|redirect| !redirect.keeps_method);
    let method = if drops_content { "GET" } else { &asked.method };
    let mut next = redirected(status, method, &String::from_utf8_lossy(location), &asked.origin, &current.target)?;
    next.keeps_method &= !drops_content;
    Ok(Some(next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::{LoadPlan, RequestTemplate, Selection, StopCondition, Take};

    /// A client that takes a value, with a default or without, and sends it.
    fn two_steps(default: Option<&str>) -> LoadFlow {
        let mut plan = LoadPlan::closed("http://a/", 1, StopCondition::after_count(9));
        let default = default.map(str::to_owned);
        let take = Take { json: Some("/t".to_owned()), default, ..Take::default() };
        plan.requests[0].take = [("t".to_owned(), take)].into();
        plan.requests.push(RequestTemplate::get("http://a/${t}"));
        plan.selection = Selection::Sequence;
        let places = [(); 2].map(|()| FlowPlace { authority: "a", is_tls: false, body: &[] });
        let plan = FlowPlan::new(&plan, &places).expect("a good plan").expect("a flow");
        LoadFlow::new(Arc::new(plan), 0, 0, 1, 1)
    }

    fn begin(flow: &mut LoadFlow, request: usize) {
        assert!(flow.draw(0, request, 1));
        flow.begin(0, request);
    }

    fn answer(flow: &mut LoadFlow, request: usize, body: &str) {
        begin(flow, request);
        flow.answer(0).content(body.as_bytes());
        flow.answered(0, request, 200, 1, 2);
    }

    fn passes(flow: &mut LoadFlow) -> (u64, u64) {
        let passes = flow.take_tally().passes.expect("two requests in sequence");
        (passes.completed, passes.abandoned)
    }

    #[test]
    fn failed_request_gives_the_defaults_and_an_incomplete_pass() {
        let mut flow = two_steps(Some("none"));
        answer(&mut flow, 0, r#"{"t": "x"}"#);
        begin(&mut flow, 1);
        assert_eq!(flow.render(0, 1).target, "/x");
        flow.answered(0, 1, 200, 1, 2);
        begin(&mut flow, 0);
        assert!(!flow.failed(0, 0));
        begin(&mut flow, 1);
        assert_eq!(flow.render(0, 1).target, "/none");
        flow.answered(0, 1, 200, 1, 2);
        answer(&mut flow, 0, r#"{"t": "y"}"#);
        begin(&mut flow, 1);
        assert!(!flow.failed(0, 1));
        answer(&mut flow, 0, r#"{"t": "z"}"#);
        answer(&mut flow, 1, "");
        assert_eq!(passes(&mut flow), (2, 2));
    }

    #[test]
    fn failed_request_without_a_default_ends_the_pass() {
        let mut flow = two_steps(None);
        begin(&mut flow, 0);
        assert!(flow.failed(0, 0));
        answer(&mut flow, 0, r#"{"t": "y"}"#);
        answer(&mut flow, 1, "");
        assert_eq!(passes(&mut flow), (1, 1));
    }
}
