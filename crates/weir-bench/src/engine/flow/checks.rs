//! Checks of answers, and the values taken from them.

use std::ops::RangeInclusive;

use regex::bytes::Regex;

use super::answer::{AnswerPart, CompleteAnswer, NeededParts, NoValue};
use super::template::{TextTemplate, ValuePlace};
use crate::engine::grpc::{status_named, status_words};
use crate::engine::plan::{AnswerCheck, StatusPattern, Take};

/// The longest part of a value in an example, in characters.
const LONGEST_EXAMPLE: usize = 120;

/// A check that is ready to be made.
#[derive(Debug)]
pub(super) struct PreparedCheck {
    /// The check in words.
    pub(super) label: String,
    rule: CheckRule,
    is_not: bool,
}

#[derive(Debug)]
enum CheckRule {
    Status(Vec<RangeInclusive<u16>>),
    Value(AnswerPart, ValueComparison),
}

#[derive(Debug)]
enum ValueComparison {
    Exists,
    Equals(TextTemplate),
    Contains(TextTemplate),
    Matches(Regex),
}

impl PreparedCheck {
    /// Reads a check of a request, or of a call of gRPC; the error says what is wrong with it.
    pub(super) fn read(check: &AnswerCheck, names: &[String], is_call: bool) -> Result<Self, String> {
        let AnswerCheck { status, field, json, equals, contains, matches, not } = check;
        let compared = [equals, contains, matches].into_iter().flatten().count();
        let says_not = if *not { "not " } else { "" };
        if !status.is_empty() {
            if field.is_some() || json.is_some() || compared > 0 {
                return Err("`status` is a check of its own; write the others as another check".to_owned());
            }
            let ranges = status.iter().map(|pattern| status_range(pattern, is_call)).collect::<Result<_, _>>()?;
            let words: Vec<String> = status.iter().map(status_text).collect();
            let label = format!("status is {says_not}{}", words.join(" or "));
            return Ok(Self { label, rule: CheckRule::Status(ranges), is_not: *not });
        }
        if compared > 1 {
            return Err("has several of `equals`, `contains` and `matches`; use one of them".to_owned());
        }
        let part = AnswerPart::read(field.as_deref(), json.as_deref())?;
        let text = |text: &String| TextTemplate::read(text, names, ValuePlace::Plain);
        let (comparison, words) = match (equals, contains, matches) {
            (Some(wanted), ..) => (ValueComparison::Equals(text(wanted)?), format!("is {says_not}\"{wanted}\"")),
            (_, Some(wanted), _) => (
                ValueComparison::Contains(text(wanted)?),
                format!("{} \"{wanted}\"", verb(*not, "contains", "does not contain")),
            ),
            (.., Some(pattern)) => {
                let regex = pattern_of(pattern)?;
                (ValueComparison::Matches(regex), format!("{} /{pattern}/", verb(*not, "matches", "does not match")))
            }
            _ if part == AnswerPart::Body => {
                return Err("has no comparison; use `status`, `equals`, `contains` or `matches`".to_owned());
            }
            _ => (ValueComparison::Exists, verb(*not, "exists", "does not exist").to_owned()),
        };
        let label = format!("{part} {words}");
        Ok(Self { label, rule: CheckRule::Value(part, comparison), is_not: *not })
    }

    pub(super) fn needs(&self) -> NeededParts {
        match &self.rule {
            CheckRule::Status(_) => NeededParts::default(),
            CheckRule::Value(part, _) => part.needs(),
        }
    }

    /// The text that values are part of, if there is one.
    pub(super) fn text(&self) -> Option<&TextTemplate> {
        match &self.rule {
            CheckRule::Value(_, ValueComparison::Equals(text) | ValueComparison::Contains(text)) => Some(text),
            _ => None,
        }
    }

    pub(super) fn is_of_status(&self) -> bool {
        matches!(self.rule, CheckRule::Status(_))
    }

    /// Checks an answer; the error is what the answer had instead.
    pub(super) fn check(&self, status: u16, answer: &CompleteAnswer<'_>, values: &[String]) -> Result<(), String> {
        match &self.rule {
            CheckRule::Status(ranges) => {
                let matched = ranges.iter().any(|range| range.contains(&status));
                if matched == self.is_not { Err(format!("it was {}", status_words(status))) } else { Ok(()) }
            }
            CheckRule::Value(part, comparison) => {
                let value = match answer.value(part) {
                    Ok(value) => value,
                    // A part that does not exist is neither equal to a text nor contains one.
                    Err(NoValue::Absent(_)) if self.is_not => return Ok(()),
                    Err(reason) => return Err(reason.into()),
                };
                let matched = match comparison {
                    ValueComparison::Exists => true,
                    ValueComparison::Equals(wanted) => *value == *wanted.text(values).as_bytes(),
                    ValueComparison::Contains(wanted) => {
                        memchr::memmem::find(&value, wanted.text(values).as_bytes()).is_some()
                    }
                    ValueComparison::Matches(regex) => regex.is_match(&value),
                };
                if matched == self.is_not { Err(format!("it was {}", shown(&value))) } else { Ok(()) }
            }
        }
    }
}

fn verb(is_not: bool, positive: &'static str, negative: &'static str) -> &'static str {
    if is_not { negative } else { positive }
}

/// The beginning of a value, in quotes.
fn shown(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    let beginning: String = text.chars().take(LONGEST_EXAMPLE).collect();
    let more = if beginning.len() < text.len() { "…" } else { "" };
    format!("{beginning:?}{more}")
}

fn status_text(pattern: &StatusPattern) -> String {
    match pattern {
        StatusPattern::Code(code) => code.to_string(),
        StatusPattern::Class(text) => text.clone(),
    }
}

fn status_range(pattern: &StatusPattern, is_call: bool) -> Result<RangeInclusive<u16>, String> {
    let text = status_text(pattern);
    let class = text.strip_suffix("xx").or_else(|| text.strip_suffix("XX"));
    let range = match class {
        Some(digit) => match digit.as_bytes() {
            [digit @ b'1'..=b'5'] => {
                let first = u16::from(digit - b'0') * 100;
                Some(first..=first + 99)
            }
            _ => None,
        },
        None => {
            let of_http = text.parse().ok().filter(|status| (100..=599).contains(status));
            of_http.or_else(|| status_named(&text).filter(|_| is_call)).map(|status| status..=status)
        }
    };
    // A gateway may answer a call with a status of HTTP, but a call that the service answers has one of gRPC.
    match range {
        Some(range) if is_call && range.contains(&200) => {
            Err(format!("`status`: \"{text}\" is no status of a call of gRPC; try OK or NOT_FOUND"))
        }
        Some(range) => Ok(range),
        None if is_call => Err(format!("`status`: \"{text}\" is no status of gRPC; try OK or NOT_FOUND")),
        None => {
            Err(format!("`status`: \"{text}\" is neither a status between 100 and 599 nor a class; try 200 or 2xx"))
        }
    }
}

fn pattern_of(pattern: &str) -> Result<Regex, String> {
    Regex::new(pattern).map_err(|error| format!("`matches`: not a regular expression: {error}"))
}

/// An extraction that is ready to be made.
#[derive(Debug)]
pub(super) struct PreparedTake {
    /// The extraction in words.
    pub(super) label: String,
    pub(super) variable: usize,
    part: AnswerPart,
    pattern: Option<Regex>,
    pub(super) default: Option<String>,
}

impl PreparedTake {
    /// Reads an extraction; the error says what is wrong with it.
    pub(super) fn read(name: &str, take: &Take, variable: usize) -> Result<Self, String> {
        let part = AnswerPart::read(take.field.as_deref(), take.json.as_deref())?;
        let pattern = take.matches.as_deref().map(pattern_of).transpose()?;
        if part == AnswerPart::Body && pattern.is_none() {
            return Err("says nothing; use `json`, `field` or `matches`".to_owned());
        }
        let label = match &take.matches {
            Some(pattern) => format!("{part} has {name} (/{pattern}/)"),
            None => format!("{part} has {name}"),
        };
        Ok(Self { label, variable, part, pattern, default: take.default.clone() })
    }

    pub(super) fn needs(&self) -> NeededParts {
        self.part.needs()
    }

    /// The value; the error says why there is none.
    pub(super) fn value(&self, answer: &CompleteAnswer<'_>) -> Result<String, String> {
        let value = answer.value(&self.part)?;
        let part = match &self.pattern {
            None => &value[..],
            Some(pattern) => {
                let groups = pattern.captures(&value).ok_or_else(|| format!("it was {}", shown(&value)))?;
                groups.get(1).or_else(|| groups.get(0)).map_or(&[][..], |group| group.as_bytes())
            }
        };
        Ok(String::from_utf8_lossy(part).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::flow::answer::tests::captured;

    fn outcome(check: &AnswerCheck, status: u16, body: &str) -> (String, Result<(), String>) {
        let is_call = status < 100;
        let prepared = PreparedCheck::read(check, &["user".to_owned()], is_call).expect("a good check");
        let answer = captured(&[("Content-Type", "application/json")], body);
        let outcome = prepared.check(status, &CompleteAnswer::new(&answer), &["ann".to_owned()]);
        (prepared.label, outcome)
    }

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn checks_say_what_an_answer_had_instead() {
        let status = AnswerCheck {
            status: vec![StatusPattern::Class("2xx".to_owned()), StatusPattern::Code(404)],
            ..AnswerCheck::default()
        };
        assert_eq!(outcome(&status, 404, ""), ("status is 2xx or 404".to_owned(), Ok(())));
        assert_eq!(outcome(&status, 500, "").1, Err("it was 500".to_owned()));
        let field = AnswerCheck { field: text("content-type"), contains: text("json"), ..AnswerCheck::default() };
        assert_eq!(outcome(&field, 200, ""), ("field content-type contains \"json\"".to_owned(), Ok(())));
        let json = AnswerCheck { json: text("/user"), equals: text("${user}"), ..AnswerCheck::default() };
        assert_eq!(outcome(&json, 200, r#"{"user": "ann"}"#), ("JSON /user is \"${user}\"".to_owned(), Ok(())));
        assert_eq!(outcome(&json, 200, r#"{"user": "bob"}"#).1, Err("it was \"bob\"".to_owned()));
        assert!(outcome(&json, 200, "no").1.is_err_and(|reason| reason.starts_with("the body was not JSON: ")));
        let body = AnswerCheck { matches: text("^a.c$"), not: true, ..AnswerCheck::default() };
        assert_eq!(
            outcome(&body, 200, "abc"),
            ("body does not match /^a.c$/".to_owned(), Err("it was \"abc\"".to_owned()))
        );
        assert_eq!(outcome(&body, 200, "abd").1, Ok(()));
        let absent = AnswerCheck { field: text("x-none"), not: true, ..AnswerCheck::default() };
        assert_eq!(outcome(&absent, 200, ""), ("field x-none does not exist".to_owned(), Ok(())));
        let long = outcome(&AnswerCheck { equals: text("x"), ..AnswerCheck::default() }, 200, &"y".repeat(500))
            .1
            .expect_err("it differs");
        assert!(long.chars().count() < 140 && long.ends_with('…'), "{long}");
    }

    #[test]
    fn opposite_needs_an_answer_that_can_be_looked_at() {
        let absent = AnswerCheck { json: text("/error"), not: true, ..AnswerCheck::default() };
        assert_eq!(outcome(&absent, 200, "{}").1, Ok(()));
        assert!(outcome(&absent, 200, "<html>").1.is_err_and(|reason| reason.starts_with("the body was not JSON")));
        let clean = AnswerCheck { contains: text("error"), not: true, ..AnswerCheck::default() };
        let long = "x".repeat(1024 * 1024 + 1);
        assert_eq!(outcome(&clean, 200, &long).1, Err("the body was longer than 1 MiB".to_owned()));
    }

    #[test]
    fn status_of_a_call_is_named() {
        let check =
            AnswerCheck { status: vec![StatusPattern::Class("NOT_FOUND".to_owned())], ..AnswerCheck::default() };
        assert_eq!(outcome(&check, 5, "").1, Ok(()));
        assert_eq!(outcome(&check, 14, "").1, Err("it was UNAVAILABLE".to_owned()));
        let read = |text: &str, is_call| {
            let status = vec![StatusPattern::Class(text.to_owned())];
            PreparedCheck::read(&AnswerCheck { status, ..AnswerCheck::default() }, &[], is_call).map(|_| ())
        };
        let [ok, of_gateway, of_http] = ["5", "503", "2xx"].map(|text| (read(text, true), read(text, false)));
        assert!(ok.0.is_ok() && ok.1.is_err_and(|error| error.contains("try 200 or 2xx")));
        assert!(of_gateway.0.is_ok() && of_gateway.1.is_ok() && of_http.1.is_ok());
        assert!(of_http.0.is_err_and(|error| error.contains("no status of a call of gRPC; try OK or NOT_FOUND")));
    }

    #[test]
    fn fault_of_a_check_says_what_would_be_right() {
        let fault = |check: AnswerCheck| PreparedCheck::read(&check, &["user".to_owned()], false).expect_err("a fault");
        assert!(fault(AnswerCheck { equals: text("${a}"), ..AnswerCheck::default() }).contains("${a} is not a name"));
        assert!(fault(AnswerCheck::default()).contains("use `status`, `equals`"));
        assert!(
            fault(AnswerCheck { matches: text("("), ..AnswerCheck::default() })
                .starts_with("`matches`: not a regular expression")
        );
        for class in ["9xx", "700xx", "+2xx", "xx", "02xx"] {
            let status = vec![StatusPattern::Class(class.to_owned())];
            let wanted =
                format!("`status`: \"{class}\" is neither a status between 100 and 599 nor a class; try 200 or 2xx");
            assert_eq!(fault(AnswerCheck { status, ..AnswerCheck::default() }), wanted);
        }
        let two = AnswerCheck { equals: text("a"), contains: text("b"), ..AnswerCheck::default() };
        assert!(fault(two).contains("use one of them"));
    }

    #[test]
    fn values_are_taken_from_each_part() {
        let answer = captured(&[("X-Session", "id=77;x")], r#"{"token": "t1", "page": "<a href='/7'>"}"#);
        let taken = |take: Take| {
            let prepared = PreparedTake::read("v", &take, 0).expect("a good extraction");
            prepared.value(&CompleteAnswer::new(&answer))
        };
        assert_eq!(taken(Take { json: text("/token"), ..Take::default() }).as_deref(), Ok("t1"));
        assert_eq!(
            taken(Take { field: text("x-session"), matches: text("id=(\\d+)"), ..Take::default() }).as_deref(),
            Ok("77")
        );
        assert_eq!(taken(Take { matches: text("t\\d"), ..Take::default() }).as_deref(), Ok("t1"));
        assert_eq!(taken(Take { json: text("/none"), ..Take::default() }), Err("there was no such place".to_owned()));
        assert!(PreparedTake::read("v", &Take::default(), 0).is_err_and(|problem| problem.contains("use `json`")));
    }
}
