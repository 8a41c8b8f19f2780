//! The conditions of `--fail-if`: a figure of the result, a comparison, and a bound.

use std::fmt;
use std::str::FromStr;

use super::report::{thousands, time};
use crate::backend::behaviour::parse_duration;
use crate::engine::{LatencyHistogram, LoadResult, LoadTally};
use crate::errors::ValueError;

/// A condition under which a run has failed.
#[derive(Clone, Debug, PartialEq)]
pub struct FailCondition {
    text: String,
    figure: FailFigure,
    /// The figure is that of this request only.
    request: Option<String>,
    is_above: bool,
    /// The bound itself is part of the condition.
    is_inclusive: bool,
    /// In ns, requests, requests per second, or as a share of 1.
    bound: f64,
    is_share: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum FailFigure {
    Time(MeasuredTime, TimeStatistic),
    /// Requests that failed in any way.
    Errors,
    /// Answers that failed a check.
    Checks,
    Rate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MeasuredTime {
    Latency,
    Service,
    FirstByte,
    FirstMessage,
    Pass,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum TimeStatistic {
    Mean,
    Share(f64),
}

/// What became of a condition.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ConditionOutcome {
    condition: String,
    /// The figure in words.
    figure: String,
    pub failed: bool,
}

impl fmt::Display for ConditionOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { condition, figure, failed } = self;
        write!(f, "{}: {condition}: {figure}", if *failed { "failed" } else { "passed" })
    }
}

impl FromStr for FailCondition {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let examples = "'p99>20ms', 'errors>0.1%', 'checks>0', 'rate<1000' or 'p99[NAME]>20ms'";
        let wrong = || ValueError::new(text, "a condition", examples);
        let at = text.find(['<', '>']).ok_or_else(wrong)?;
        let (name, bound) = (text[..at].trim(), &text[at + 1..]);
        let (is_inclusive, bound) = bound.strip_prefix('=').map_or((false, bound), |rest| (true, rest));
        let bound = bound.trim();
        let (name, request) = match name.split_once('[') {
            None => (name, None),
            Some((name, request)) => (name, Some(request.strip_suffix(']').ok_or_else(wrong)?.to_owned())),
        };
        let figure = figure(name).ok_or_else(wrong)?;
        if request.is_some() && matches!(figure, FailFigure::Time(MeasuredTime::Pass, _)) {
            return Err(ValueError::new(
                text,
                "a condition",
                "'pass.p99>1s', since a pass is one through all requests",
            ));
        }
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
        let (bound, is_share) = match (figure, bound.strip_suffix('%')) {
            (FailFigure::Time(..), _) => {
                // A bare number would be seconds, as elsewhere, and is easily meant as milliseconds.
                let has_unit = bound.ends_with(|last: char| last.is_ascii_alphabetic());
                (parse_duration(bound).filter(|_| has_unit).map(|time| time.as_nanos() as f64), false)
            }
            (FailFigure::Errors | FailFigure::Checks, Some(percent)) => {
                (number(percent).map(|share| share / 100.0), true)
            }
            (FailFigure::Errors | FailFigure::Checks | FailFigure::Rate, _) => (number(bound), false),
        };
        let bound = bound.ok_or_else(wrong)?;
        let is_above = text.as_bytes()[at] == b'>';
        Ok(Self { text: text.to_owned(), figure, request, is_above, is_inclusive, bound, is_share })
    }
}

fn figure(name: &str) -> Option<FailFigure> {
    let (time, statistic) = match name.split_once('.') {
        Some(("service", rest)) => (MeasuredTime::Service, rest),
        Some(("first_byte", rest)) => (MeasuredTime::FirstByte, rest),
        Some(("first_message", rest)) => (MeasuredTime::FirstMessage, rest),
        Some(("pass", rest)) => (MeasuredTime::Pass, rest),
        _ => (MeasuredTime::Latency, name),
    };
    let statistic = match statistic {
        "errors" if time == MeasuredTime::Latency => return Some(FailFigure::Errors),
        "checks" if time == MeasuredTime::Latency => return Some(FailFigure::Checks),
        "rate" if time == MeasuredTime::Latency => return Some(FailFigure::Rate),
        "mean" | "avg" => TimeStatistic::Mean,
        "max" => TimeStatistic::Share(1.0),
        other => {
            let percent = other.strip_prefix('p')?.parse::<f64>().ok()?;
            TimeStatistic::Share(Some(percent / 100.0).filter(|share| (0.0..=1.0).contains(share))?)
        }
    };
    Some(FailFigure::Time(time, statistic))
}

impl FailCondition {
    /// Whether a result meets the condition. It does so as well if it has no such figure.
    pub fn outcome(&self, result: &LoadResult) -> ConditionOutcome {
        let figure = self.value(result);
        let failed = figure.is_none_or(|figure| {
            let beyond = if self.is_above { figure > self.bound } else { figure < self.bound };
            beyond || (self.is_inclusive && figure == self.bound)
        });
        let words = match (figure, self.figure) {
            (None, _) => self.absence(result),
            (Some(ns), FailFigure::Time(..)) => time(ns),
            (Some(rate), FailFigure::Rate) => format!("{rate:.1} per second"),
            (Some(share), _) if self.is_share => format!("{:.3} %", share * 100.0),
            (Some(count), _) => thousands(count as u64),
        };
        ConditionOutcome { condition: self.text.clone(), figure: words, failed }
    }

    fn tally<'a>(&self, result: &'a LoadResult) -> Option<&'a LoadTally> {
        match &self.request {
            None => Some(&result.total),
            Some(name) => {
                let mut named = result.requests.iter().filter(|request| request.name == *name);
                named.next().filter(|_| named.next().is_none()).map(|request| &request.tally)
            }
        }
    }

    fn value(&self, result: &LoadResult) -> Option<f64> {
        let tally = self.tally(result)?;
        let share_or_count = |count: u64| match self.is_share {
            true => (tally.due > 0).then(|| count as f64 / tally.due as f64),
            // Without a request, no answer was looked at.
            false => (tally.due > 0).then_some(count as f64),
        };
        match self.figure {
            FailFigure::Errors => share_or_count(tally.failed()),
            FailFigure::Checks => share_or_count(tally.failed_checks + tally.unexpected),
            FailFigure::Rate => match self.request {
                None => Some(result.rate()),
                Some(_) => Some(tally.completed as f64 * 1e9 / result.measured_ns.max(1) as f64),
            },
            FailFigure::Time(time, statistic) => {
                let histogram: Option<&LatencyHistogram> = match time {
                    MeasuredTime::Latency => Some(&tally.latency),
                    MeasuredTime::Service => Some(&tally.service_time),
                    MeasuredTime::FirstByte => tally.first_byte.as_ref(),
                    MeasuredTime::FirstMessage => tally.first_message.as_ref(),
                    MeasuredTime::Pass => {
                        result.flow.as_ref().and_then(|flow| flow.passes.as_ref()).map(|passes| &passes.time)
                    }
                };
                let histogram = histogram.filter(|histogram| !histogram.is_empty())?;
                Some(match statistic {
                    TimeStatistic::Mean => histogram.mean(),
                    TimeStatistic::Share(share) => histogram.quantile(share) as f64,
                })
            }
        }
    }

    /// Why a result has no such figure.
    fn absence(&self, result: &LoadResult) -> String {
        match (&self.request, self.figure) {
            (Some(name), _) if self.tally(result).is_none() => {
                let names: Vec<&str> = result.requests.iter().map(|request| request.name.as_str()).collect();
                match names.as_slice() {
                    [] => format!("there is one request only; leave out [{name}]"),
                    names if names.contains(&name.as_str()) => {
                        format!("several requests are {name}; give each a `name` of its own")
                    }
                    names => format!("there is no request {name}, but {}", names.join(", ")),
                }
            }
            (_, FailFigure::Time(MeasuredTime::FirstByte, _)) => "it was not measured (--first-byte)".to_owned(),
            (_, FailFigure::Time(MeasuredTime::FirstMessage, _)) => {
                "no call of gRPC was answered with a stream of messages".to_owned()
            }
            (_, FailFigure::Time(MeasuredTime::Pass, _)) => "no pass through all requests was completed".to_owned(),
            (_, FailFigure::Errors | FailFigure::Checks) => "no request was due in the measured time".to_owned(),
            _ => "there was no answer".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Errors, FlowTally, PassTally, RequestTally};

    fn result() -> LoadResult {
        let mut result: LoadResult = serde_json::from_value(serde_json::json!({
            "started_unix_ns": 0, "warm_up_ns": 0, "measured_ns": 2_000_000_000_u64, "drain_ns": 0,
            "total": LoadTally::default(), "intervals": [],
            "connections": crate::engine::Connections::default(), "generator": crate::engine::Generator::default(),
        }))
        .expect("the fields of a result");
        let total = &mut result.total;
        (1..=1_000).for_each(|ms| total.latency.record(ms * 1_000_000));
        (total.due, total.completed, total.failed_checks, total.unexpected) = (1_000, 990, 3, 2);
        total.errors = Errors { timeout: 10, ..Errors::default() };
        result.requests = vec![RequestTally { name: "log in".to_owned(), tally: result.total.clone() }];
        result
    }

    fn outcome(text: &str) -> (bool, String) {
        let outcome = text.parse::<FailCondition>().expect(text).outcome(&result());
        (outcome.failed, outcome.figure)
    }

    #[test]
    fn conditions_name_the_figure() {
        assert_eq!(outcome("p50>600ms"), (false, "500.17 ms".to_owned()));
        assert!(outcome("p99 > 20ms").0 && outcome("p99.9>0.9s").0 && outcome("max>=1s").0 && outcome("mean>500us").0);
        assert_eq!(outcome("errors>1.5%"), (false, "1.500 %".to_owned()));
        assert_eq!(outcome("errors>=1.5%"), (true, "1.500 %".to_owned()));
        assert_eq!(outcome("errors>14"), (true, "15".to_owned()));
        assert_eq!(outcome("checks>0"), (true, "5".to_owned()));
        assert_eq!(outcome("rate<1000"), (true, "495.0 per second".to_owned()));
        assert!(!outcome("rate[log in]<400").0 && outcome("p99[log in]>20ms").0);
    }

    #[test]
    fn condition_without_a_figure_is_met() {
        assert_eq!(outcome("p99[pay]>20ms"), (true, "there is no request pay, but log in".to_owned()));
        assert_eq!(outcome("first_byte.p99>20ms"), (true, "it was not measured (--first-byte)".to_owned()));
        assert_eq!(
            outcome("first_message.p99>20ms"),
            (true, "no call of gRPC was answered with a stream of messages".to_owned())
        );
        assert_eq!(outcome("service.p99>20ms"), (true, "there was no answer".to_owned()));
        assert_eq!(outcome("pass.p99>20ms"), (true, "no pass through all requests was completed".to_owned()));
        let mut twice = result();
        twice.requests.push(twice.requests[0].clone());
        let ambiguous = "p99[log in]>2h".parse::<FailCondition>().expect("a condition").outcome(&twice);
        assert!(ambiguous.failed && ambiguous.figure.contains("several requests are log in"), "{ambiguous}");
        let mut unsent = result();
        unsent.requests.push(RequestTally { name: "cart".to_owned(), tally: LoadTally::default() });
        for text in ["errors[cart]>0", "checks[cart]>0", "errors[cart]>1%"] {
            let outcome = text.parse::<FailCondition>().expect(text).outcome(&unsent);
            assert!(outcome.failed && outcome.figure == "no request was due in the measured time", "{outcome}");
        }
        let mut passed = result();
        let mut passes = PassTally { completed: 1, ..PassTally::default() };
        passes.time.record(5_000_000);
        passed.flow = Some(FlowTally { checks: Vec::new(), passes: Some(passes) });
        assert!(!"pass.max>20ms".parse::<FailCondition>().expect("a condition").outcome(&passed).failed);
    }

    #[test]
    fn fault_of_a_condition_shows_good_ones() {
        for text in ["p99", "p99>20", "p99=20ms", "p101>1s", "latency>1s", "errors>x", "rate<-1", "p99[a>1s", "rate>5%"]
        {
            let error = text.parse::<FailCondition>().expect_err(text).to_string();
            assert!(error.contains("try 'p99>20ms'"), "{error}");
        }
        assert!("pass.p99[a]>1s".parse::<FailCondition>().is_err());
    }
}
