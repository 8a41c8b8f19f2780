//! Checks and reads what makes a plan a flow. All errors have their place in the plan.

use super::answer::NeededParts;
use super::checks::{PreparedCheck, PreparedTake};
use super::request::{BodyPiece, FlowBody, FlowRequest};
use super::template::{TextTemplate, ValuePlace, split_url};
use super::variables::ValueSources;
use crate::engine::form::{FormPiece, pieces};
use crate::engine::histogram::LatencyHistogram;
use crate::engine::plan::{LoadPlan, PlanError, RequestBody, RequestTemplate, Selection};
use crate::engine::result::{AnswerCheckTally, FlowTally, PassTally};

/// The most redirects that one request may follow.
const MOST_REDIRECTS: u32 = 50;

/// The most bytes of all bodies that are sent at the same time.
const MOST_BODY_BYTES: usize = 2 << 30;

/// A plan with data, checks, steps, cookies or redirects, ready to run. All threads share it.
#[derive(Debug)]
pub(in crate::engine) struct FlowPlan {
    pub(super) sources: ValueSources,
    pub(super) requests: Vec<FlowRequest>,
    /// Each client sends the requests in sequence and keeps its values; otherwise each request has its own.
    pub(super) by_client: bool,
    pub(super) keeps_cookies: bool,
    pub(super) seed: u64,
    /// Of each check the request and its words.
    checks: Vec<(String, String)>,
}

/// What has been found out about a request before.
pub(in crate::engine) struct FlowPlace<'a> {
    pub(in crate::engine) authority: &'a str,
    pub(in crate::engine) is_tls: bool,
    pub(in crate::engine) body: &'a [u8],
}

impl FlowPlan {
    /// Reads a plan; `None` if nothing in it needs a flow. The places are those of the requests.
    pub(in crate::engine) fn new(plan: &LoadPlan, places: &[FlowPlace<'_>]) -> Result<Option<Self>, PlanError> {
        if !plan.is_flow() {
            return Ok(None);
        }
        check_plan(plan)?;
        check_bodies(plan, places)?;
        let sources = ValueSources::new(plan)?;
        let (mut requests, mut checks, mut hosts) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (template, place)) in plan.requests.iter().zip(places).enumerate() {
            let reader = FlowRequestReader { plan, sources: &sources, template, place, index };
            requests.push(reader.read(&mut checks, &mut hosts)?);
        }
        check_order(&sources, &requests)?;
        let in_order = plan.selection == Selection::Sequence || plan.requests.len() == 1;
        let by_client = in_order && !plan.pacing.is_open() && plan.protocol.streams().unwrap_or(1) == 1;
        Ok(Some(Self { sources, requests, by_client, keeps_cookies: plan.cookies, seed: plan.seed, checks }))
    }

    pub(super) fn empty_tally(&self) -> FlowTally {
        let empty = |(request, check): &(String, String)| AnswerCheckTally {
            request: request.clone(),
            check: check.clone(),
            ..AnswerCheckTally::default()
        };
        let has_passes = self.by_client && self.requests.len() > 1;
        let no_passes = || PassTally { completed: 0, abandoned: 0, time: LatencyHistogram::new() };
        FlowTally { checks: self.checks.iter().map(empty).collect(), passes: has_passes.then(no_passes) }
    }
}

/// Each exchange renders its request, so the bodies of those that are in flight at the same time are bounded.
fn check_bodies(plan: &LoadPlan, places: &[FlowPlace<'_>]) -> Result<(), PlanError> {
    let Some((index, largest)) = places.iter().map(|place| place.body.len()).enumerate().max_by_key(|(_, size)| *size)
    else {
        return Ok(());
    };
    let exchanges = plan.connections * plan.protocol.streams().unwrap_or(1);
    match largest.saturating_mul(exchanges) {
        0..=MOST_BODY_BYTES => Ok(()),
        _ => {
            let problem = format!(
                "has {largest} bytes, for {exchanges} requests at the same time; with data, checks or steps, all bodies \
                 together may have {} GiB. Use fewer connections or a smaller body",
                MOST_BODY_BYTES >> 30
            );
            Err(PlanError::new(format!("requests[{index}].body"), problem))
        }
    }
}

/// Checks what the parts of a flow need of the rest of the plan.
fn check_plan(plan: &LoadPlan) -> Result<(), PlanError> {
    let wrong = |field: &str, problem: &str| Err(PlanError::new(field, problem));
    if !plan.protocol.is_http() {
        let problem =
            "data, checks, steps, cookies and the time to the first byte are for requests; use http1, http2 or http3";
        return wrong("protocol", problem);
    }
    let takes = plan.requests.iter().position(|request| !request.take.is_empty());
    let keeps = match takes {
        Some(request) => Some(format!("requests[{request}].take")),
        None => plan.cookies.then(|| "cookies".to_owned()),
    };
    if let Some(field) = keeps {
        if plan.pacing.is_open() {
            return wrong(&field, "needs a closed loop, in which a client waits for an answer before its next request");
        }
        if plan.protocol.streams().is_some_and(|streams| streams > 1) {
            return wrong(&field, "needs one stream on each connection; set `streams` to 1");
        }
        if plan.requests.len() > 1 && plan.selection != Selection::Sequence {
            return wrong(
                &field,
                "needs `selection: sequence`, in which each client sends the requests in their order",
            );
        }
    }
    for (index, think) in plan.requests.iter().enumerate().filter_map(|(index, one)| Some((index, one.think?))) {
        think.check().map_err(|problem| PlanError::new(format!("requests[{index}].think"), problem))?;
    }
    if plan.pacing.is_open() && plan.requests.iter().any(|request| request.think.is_some()) {
        return wrong(
            "requests",
            "`think` needs a closed loop; in an open loop the rate decides when a request is due",
        );
    }
    Ok(())
}

/// Refuses a value of an answer in a request that is sent before this answer has come: it would be empty on the first pass,
/// and that of the pass before on all others.
fn check_order(sources: &ValueSources, requests: &[FlowRequest]) -> Result<(), PlanError> {
    for (index, request) in requests.iter().enumerate() {
        for variable in request.variables() {
            let takes = |request: &FlowRequest| request.takes.iter().any(|(_, take)| take.variable == variable);
            let Some(first) = requests.iter().position(takes).filter(|first| *first >= index) else { continue };
            let name = &sources.names[variable];
            let problem = format!(
                "contains ${{{name}}}, which requests[{first}].take.{name} takes only after this request was sent; take it in a \
                 request before"
            );
            return Err(PlanError::new(format!("requests[{index}]"), problem));
        }
    }
    Ok(())
}

/// Reads one request.
struct FlowRequestReader<'a> {
    plan: &'a LoadPlan,
    sources: &'a ValueSources,
    template: &'a RequestTemplate,
    place: &'a FlowPlace<'a>,
    index: usize,
}

impl FlowRequestReader<'_> {
    fn wrong(&self, part: &str) -> impl FnOnce(String) -> PlanError {
        let field = format!("requests[{}].{part}", self.index);
        move |problem| PlanError::new(field, problem)
    }

    /// `checks` are those of the requests before, `hosts` the names of their hosts.
    fn read(&self, checks: &mut Vec<(String, String)>, hosts: &mut Vec<String>) -> Result<FlowRequest, PlanError> {
        let template = self.template;
        let (origin, target) = split_url(&template.url);
        let names = &self.sources.names;
        let target = TextTemplate::read(target, names, ValuePlace::Target).map_err(self.wrong("url"))?;
        let fields = self.fields()?;
        let body = self.body()?;
        let host = host_of(self.place.authority);
        let host = hosts.iter().position(|known| known == host).unwrap_or_else(|| {
            hosts.push(host.to_owned());
            hosts.len() - 1
        });
        let mut count = |words: String| {
            checks.push((template.label().to_owned(), words));
            checks.len() - 1
        };
        let redirect_check =
            self.redirects()?.then(|| count(format!("at most {} redirects", template.follow_redirects)));
        let mut prepared = Vec::new();
        for (index, check) in template.check.iter().enumerate() {
            let check = PreparedCheck::read(check, names, template.grpc.is_some())
                .map_err(self.wrong(&format!("check[{index}]")))?;
            prepared.push((count(check.label.clone()), check));
        }
        let mut takes = Vec::new();
        for (name, take) in &template.take {
            let variable = self.sources.index(name).expect("the names of all extractions have been added");
            let take = PreparedTake::read(name, take, variable).map_err(self.wrong(&format!("take.{name}")))?;
            takes.push((count(take.label.clone()), take));
        }
        let mut needs = NeededParts { fields: self.plan.cookies, location: redirect_check.is_some(), body: false };
        for part in prepared.iter().map(|(_, check)| check.needs()).chain(takes.iter().map(|(_, take)| take.needs())) {
            (needs.fields, needs.body) = (needs.fields | part.fields, needs.body | part.body);
        }
        Ok(FlowRequest {
            method: template.method.clone(),
            origin: origin.to_owned(),
            authority: self.place.authority.to_owned(),
            is_tls: self.place.is_tls,
            host,
            target,
            fields,
            body,
            closes: !self.plan.keep_alive,
            is_fixed: !self.plan.has_values() && !self.plan.cookies,
            checks_status: prepared.iter().any(|(_, check)| check.is_of_status()),
            checks: prepared,
            takes,
            redirect_check,
            follow_redirects: template.follow_redirects,
            expect_status: template.expect_status.clone(),
            needs,
            think: template.think,
        })
    }

    fn fields(&self) -> Result<Vec<(String, TextTemplate)>, PlanError> {
        let mut fields = Vec::new();
        for (name, value) in &self.template.headers {
            if self.plan.cookies && name.eq_ignore_ascii_case("cookie") {
                return Err(self.wrong("headers")("has a Cookie, and `cookies` sends one; use one of them".to_owned()));
            }
            let text =
                TextTemplate::read(value, &self.sources.names, ValuePlace::Field).map_err(self.wrong("headers"))?;
            if let Some(place) = text.variables().find_map(|variable| self.sources.unfit_for_field(variable)) {
                let problem = format!("the value of {name} would have a control character, from {place}");
                return Err(self.wrong("headers")(problem));
            }
            fields.push((name.clone(), text));
        }
        Ok(fields)
    }

    fn body(&self) -> Result<FlowBody, PlanError> {
        let bytes = || Ok(FlowBody::Bytes(self.place.body.to_owned()));
        if matches!(self.template.body, RequestBody::Sized(_) | RequestBody::Base64(_) | RequestBody::Empty) {
            return bytes();
        }
        if let RequestBody::Multipart(parts) = &self.template.body {
            return self.form(pieces(parts).map_err(self.wrong("body"))?);
        }
        let Ok(text) = std::str::from_utf8(self.place.body) else { return self.binary() };
        let place = match &self.template.grpc {
            Some(_) => ValuePlace::Json,
            None => body_place(&self.template.headers, text),
        };
        let text = TextTemplate::read(text, &self.sources.names, place);
        text.map(|text| FlowBody::Pieces(vec![BodyPiece::Text(text)])).map_err(self.wrong("body"))
    }

    /// A form, in which values stand for names in the values of the plan, and never in the content of files.
    fn form(&self, pieces: Vec<FormPiece>) -> Result<FlowBody, PlanError> {
        let piece = |piece: FormPiece| match piece {
            FormPiece::Fixed(bytes) => Ok(BodyPiece::Bytes(bytes)),
            FormPiece::Value(text) => {
                TextTemplate::read(&text, &self.sources.names, ValuePlace::Plain).map(BodyPiece::Text)
            }
        };
        let pieces = pieces.into_iter().map(piece).collect::<Result<_, _>>();
        pieces.map(FlowBody::Pieces).map_err(self.wrong("body"))
    }

    /// A body that is not a text is sent as it is, unless it contains a name that would stand for a value in a text.
    fn binary(&self) -> Result<FlowBody, PlanError> {
        let contains = |text: String| memchr::memmem::find(self.place.body, text.as_bytes()).is_some();
        let is_there = |name: &&String| contains(format!("${{{name}}}")) || contains(format!("${{{name}:raw}}"));
        match self.sources.names.iter().find(is_there) {
            None => Ok(FlowBody::Bytes(self.place.body.to_owned())),
            Some(name) => {
                let problem = format!(
                    "contains ${{{name}}} and is not UTF-8; values can stand in a text only, and `base64` sends a body as it is"
                );
                Err(self.wrong("body")(problem))
            }
        }
    }

    /// Whether redirects are followed.
    fn redirects(&self) -> Result<bool, PlanError> {
        match self.template.follow_redirects {
            0 => Ok(false),
            1..=MOST_REDIRECTS => Ok(true),
            _ => Err(self.wrong("follow_redirects")(format!("must be at most {MOST_REDIRECTS}"))),
        }
    }
}

/// The host of an authority, without its port.
fn host_of(authority: &str) -> &str {
    match authority.rfind(':') {
        Some(colon) if !authority[colon..].contains(']') => &authority[..colon],
        _ => authority,
    }
}

/// How the values of a body are encoded: as its type says, or as it looks like if it has none.
fn body_place(headers: &[(String, String)], text: &str) -> ValuePlace {
    let is_type = |(name, _): &&(String, String)| name.eq_ignore_ascii_case("content-type");
    match headers.iter().find(is_type).map(|(_, value)| value.to_ascii_lowercase()) {
        Some(value) if value.contains("json") => ValuePlace::Json,
        Some(value) if value.starts_with("application/x-www-form-urlencoded") => ValuePlace::Form,
        Some(_) => ValuePlace::Plain,
        None if text.trim_start().starts_with(['{', '[']) => ValuePlace::Json,
        None => ValuePlace::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_encoded_as_their_type_says() {
        let place = |value: &str, text: &str| {
            let headers = [("Content-type".to_owned(), value.to_owned())];
            body_place(if value.is_empty() { &[] } else { &headers }, text)
        };
        assert_eq!(place("application/problem+JSON", "x"), ValuePlace::Json);
        assert_eq!(place("application/x-www-form-urlencoded; charset=utf-8", "x"), ValuePlace::Form);
        assert_eq!(place("text/plain", "{}"), ValuePlace::Plain);
        assert_eq!((place("", " {}"), place("", "a=b")), (ValuePlace::Json, ValuePlace::Plain));
    }

    #[test]
    fn hosts_are_told_apart_without_their_ports() {
        assert_eq!(["a:1", "a", "[::1]:80", "[::1]"].map(host_of), ["a", "a", "[::1]", "[::1]"]);
    }
}
