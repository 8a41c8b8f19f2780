//! The options for requests that are made of data, and for what is expected of answers.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::engine::{AnswerCheck, AtEnd, CsvData, CsvOrder, LoadPlan, PlanData, PlanVariable, StatusPattern};
use crate::errors::ValueError;

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Data and checks")]
pub(super) struct DataArguments {
    /// A CSV file. `${NAME}` in URLs, header fields and bodies is the value of the column NAME; the first line has the names.
    /// Can be given several times
    #[arg(long, value_name = "FILE", conflicts_with = "plan")]
    csv: Vec<PathBuf>,
    /// The row of the CSV files that is next
    #[arg(long, value_enum, default_value_t = CsvOrderName::Sequential, requires = "csv")]
    csv_order: CsvOrderName,
    /// What follows the last row of the CSV files
    #[arg(long, value_enum, default_value_t = CsvEndName::Again, requires = "csv")]
    csv_end: CsvEndName,
    /// The value of `${NAME}`: `seq:1` or `seq:FROM,STEP` (each number once), `int:1..100` (random), `text:16` (random
    /// characters), `uuid`, `env:VARIABLE`, `value:TEXT`. Can be given several times
    #[arg(long, value_name = "NAME=KIND", conflicts_with = "plan", value_parser = variable)]
    var: Vec<(String, PlanVariable)>,
    /// A check of each answer: `status=200,2xx`; of `body`, `field:NAME` or `json:/POINTER` with `=TEXT` (equal), `*=TEXT`
    /// (contains) or `=~REGEX`, each with `!` before it for the opposite; `field:NAME` alone for one that exists. Can be given
    /// several times
    #[arg(long, value_name = "CHECK", conflicts_with = "plan", value_parser = check)]
    check: Vec<AnswerCheck>,
    /// Keeps the cookies of each client, and sends them
    #[arg(long, conflicts_with = "plan")]
    cookies: bool,
    /// Follows up to this number of redirects of a request, within the origin of its URL
    #[arg(long, value_name = "COUNT", conflicts_with = "plan", default_value_t = 0)]
    follow_redirects: u32,
    /// Measures the time to the first byte of answers as well
    #[arg(long, conflicts_with = "plan")]
    first_byte: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CsvOrderName {
    /// The rows in their order, each for one client
    Sequential,
    /// Any row
    Random,
    /// The first client always has the first row, the second client the second row, and so on
    PerClient,
    /// Every client goes through all rows in their order
    EveryClient,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CsvEndName {
    /// The first row
    Again,
    /// Nothing: a client without a row ends, and the run with the last client
    Stop,
}

impl DataArguments {
    /// Adds what the options say to a plan.
    pub(super) fn apply(self, plan: &mut LoadPlan) {
        let order = match self.csv_order {
            CsvOrderName::Sequential => CsvOrder::Sequential,
            CsvOrderName::Random => CsvOrder::Random,
            CsvOrderName::PerClient => CsvOrder::PerClient,
            CsvOrderName::EveryClient => CsvOrder::EveryClient,
        };
        let at_end = match self.csv_end {
            CsvEndName::Again => AtEnd::Again,
            CsvEndName::Stop => AtEnd::Stop,
        };
        let csv = self.csv.into_iter().map(|file| CsvData { order, at_end, ..CsvData::of(file) });
        plan.data = PlanData { csv: csv.collect(), variables: self.var.into_iter().collect() };
        (plan.cookies, plan.first_byte) = (self.cookies, self.first_byte);
        for request in &mut plan.requests {
            (request.check, request.follow_redirects) = (self.check.clone(), self.follow_redirects);
        }
    }
}

fn variable(text: &str) -> Result<(String, PlanVariable), ValueError> {
    let wrong = || {
        ValueError::new(
            text,
            "a variable",
            "id=seq:1, n=int:1..100, code=text:16, id=uuid, key=env:KEY or a=value:TEXT",
        )
    };
    let (name, kind) = text.split_once('=').ok_or_else(wrong)?;
    let (kind, rest) = kind.split_once(':').map_or((kind, None), |(kind, rest)| (kind, Some(rest)));
    let number = |text: &str| text.trim().parse::<i64>().map_err(|_| wrong());
    let variable = match (kind, rest) {
        ("seq", None) => PlanVariable::Sequence { from: 1, step: 1 },
        ("seq", Some(rest)) => {
            let (from, step) = rest.split_once(',').unwrap_or((rest, "1"));
            PlanVariable::Sequence { from: number(from)?, step: number(step)? }
        }
        ("int", Some(rest)) => {
            let (from, to) = rest.split_once("..").ok_or_else(wrong)?;
            PlanVariable::Number { from: number(from)?, to: number(to)? }
        }
        ("text", Some(rest)) => {
            PlanVariable::Text { length: rest.trim().parse().map_err(|_| wrong())?, characters: None }
        }
        ("uuid", None) => PlanVariable::Uuid,
        ("env", Some(rest)) => PlanVariable::Environment(rest.to_owned()),
        ("value", Some(rest)) => PlanVariable::Value(rest.to_owned()),
        _ => return Err(wrong()),
    };
    Ok((name.to_owned(), variable))
}

fn check(text: &str) -> Result<AnswerCheck, ValueError> {
    let wrong = || {
        let examples = "status=2xx, body*=hello, field:Content-Type=~json, json:/user/name=ann or !field:X-Debug";
        ValueError::new(text, "a check", examples)
    };
    let (mut subject, operator, wanted) = match text.split_once('=') {
        None => (text, "", ""),
        Some((subject, wanted)) => match (subject.strip_suffix('*'), wanted.strip_prefix('~')) {
            (Some(subject), _) => (subject, "*=", wanted),
            (None, Some(pattern)) => (subject, "=~", pattern),
            (None, None) => (subject, "=", wanted),
        },
    };
    let mut check = AnswerCheck::default();
    let opposite = if operator.is_empty() { subject.strip_prefix('!') } else { subject.strip_suffix('!') };
    if let Some(rest) = opposite {
        (subject, check.not) = (rest, true);
    }
    match subject {
        "status" if operator == "=" => {
            check.status = wanted.split(',').map(|status| StatusPattern::Class(status.trim().to_owned())).collect();
            return Ok(check);
        }
        "body" if !operator.is_empty() => {}
        subject => match (subject.strip_prefix("field:"), subject.strip_prefix("json:")) {
            (Some(name), _) => check.field = Some(name.to_owned()),
            (_, Some(pointer)) => check.json = Some(pointer.to_owned()),
            (None, None) => return Err(wrong()),
        },
    }
    match operator {
        "=" => check.equals = Some(wanted.to_owned()),
        "*=" => check.contains = Some(wanted.to_owned()),
        "=~" => check.matches = Some(wanted.to_owned()),
        _ => {}
    }
    Ok(check)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_read() {
        for (text, expected) in [
            ("seq", PlanVariable::Sequence { from: 1, step: 1 }),
            ("seq:10,-2", PlanVariable::Sequence { from: 10, step: -2 }),
            ("int:-5..7", PlanVariable::Number { from: -5, to: 7 }),
            ("text:16", PlanVariable::Text { length: 16, characters: None }),
            ("uuid", PlanVariable::Uuid),
            ("env:API_KEY", PlanVariable::Environment("API_KEY".to_owned())),
            ("value:a:b=c", PlanVariable::Value("a:b=c".to_owned())),
        ] {
            assert_eq!(variable(&format!("v={text}")), Ok(("v".to_owned(), expected)), "{text}");
        }
        for bad in ["v", "v=any", "v=int:5", "v=uuid:4", "v=text:x"] {
            assert!(variable(bad).is_err_and(|error| error.to_string().contains("try id=seq:1")), "{bad}");
        }
    }

    #[test]
    fn checks_are_read() {
        let text = |text: &str| Some(text.to_owned());
        for (written, expected) in [
            (
                "status=200,3xx",
                AnswerCheck {
                    status: ["200", "3xx"].map(|status| StatusPattern::Class(status.to_owned())).into(),
                    ..AnswerCheck::default()
                },
            ),
            ("body*=a=b", AnswerCheck { contains: text("a=b"), ..AnswerCheck::default() }),
            ("body!*=error", AnswerCheck { contains: text("error"), not: true, ..AnswerCheck::default() }),
            ("body=~^a~", AnswerCheck { matches: text("^a~"), ..AnswerCheck::default() }),
            (
                "field:X-A!=1",
                AnswerCheck { field: text("X-A"), equals: text("1"), not: true, ..AnswerCheck::default() },
            ),
            ("!field:X-A", AnswerCheck { field: text("X-A"), not: true, ..AnswerCheck::default() }),
            ("json:/a~1b/0=5", AnswerCheck { json: text("/a~1b/0"), equals: text("5"), ..AnswerCheck::default() }),
            ("json:/a", AnswerCheck { json: text("/a"), ..AnswerCheck::default() }),
        ] {
            assert_eq!(check(written), Ok(expected), "{written}");
        }
        for bad in ["body", "status", "header:X=1", "=x"] {
            assert!(check(bad).is_err_and(|error| error.to_string().contains("try status=2xx")), "{bad}");
        }
    }
}
