//! Data sets, counters and cookies.

use std::collections::BTreeSet;

use super::reading::JmxElement;
use super::texts::{TextPart, Texts, parts, rewritten};
use crate::engine::{AtEnd, CsvData, CsvOrder, LoadPlan, PlanVariable, RequestBody};

/// Adds what the elements of a group say about data and cookies.
pub(super) fn add_data(plan: &mut LoadPlan, elements: &[&JmxElement], texts: &Texts<'_>, notes: &mut Vec<String>) {
    for element in elements {
        let name = &element.name;
        match element.class.as_str() {
            "CSVDataSet" => plan.data.csv.push(csv(element, texts, notes)),
            "CounterConfig" => match counter(element, texts) {
                Some((variable, counter)) => drop(plan.data.variables.insert(variable, counter)),
                None => notes
                    .push(format!("{name}: CounterConfig: left out: a counter of each user, or one without a name")),
            },
            "CookieManager" => {
                plan.cookies = true;
                if element.is_true("CookieManager.clearEachIteration") {
                    notes.push(format!("{name}: cookies are kept for the whole run, not cleared in each iteration"));
                }
            }
            _ => {}
        }
    }
    plan.data.variables.extend(texts.variables());
}

fn csv(element: &JmxElement, texts: &Texts<'_>, notes: &mut Vec<String>) -> CsvData {
    let text = |name: &str| texts.evaluate(element.text(name));
    let name = &element.name;
    let mut data = CsvData::of(text("filename"));
    if data.file.is_relative() {
        notes.push(format!("{name}: {} is read from the working directory of the run", data.file.display()));
    }
    if text("quotedData") == "false" {
        notes.push(format!("{name}: quotes around values are those of CSV, where JMeter keeps them"));
    }
    if !matches!(text("fileEncoding").to_ascii_lowercase().as_str(), "" | "utf-8" | "utf8" | "us-ascii") {
        notes.push(format!("{name}: the file must be UTF-8; convert it from {}", text("fileEncoding")));
    }
    let names = text("variableNames");
    data.names = names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    data.skip_first_line = !data.names.is_empty() && element.is_true("ignoreFirstLine");
    data.delimiter = match text("delimiter").as_str() {
        "\\t" => '\t',
        other => other.chars().next().unwrap_or(','),
    };
    data.order = match text("shareMode").as_str() {
        "shareMode.thread" => CsvOrder::EveryClient,
        _ => CsvOrder::Sequential,
    };
    if text("recycle") == "false" {
        data.at_end = AtEnd::Stop;
        if !element.is_true("stopThread") {
            notes.push(format!("{name}: clients end after the last row, in place of sending <EOF>"));
        }
    }
    data
}

fn counter(element: &JmxElement, texts: &Texts<'_>) -> Option<(String, PlanVariable)> {
    let number = |name: &str, usual: i64| match texts.evaluate(element.text(name)).as_str() {
        "" => Some(usual),
        text => text.parse().ok(),
    };
    let name = element.text("CounterConfig.name");
    let has_own = element.is_true("CounterConfig.per_user");
    let variable =
        PlanVariable::Sequence { from: number("CounterConfig.start", 0)?, step: number("CounterConfig.incr", 1)? };
    (!name.is_empty() && !has_own).then(|| (name.to_owned(), variable))
}

/// Keeps references to variables that the plan does not have as texts, and reports them.
pub(super) fn settle_references(plan: &mut LoadPlan, notes: &mut Vec<String>) {
    let has_values = plan.has_values();
    let csv = plan.data.csv.iter().flat_map(|csv| csv.names.iter().cloned());
    let takes = plan.requests.iter().flat_map(|request| request.take.keys().cloned());
    let known: BTreeSet<String> = csv.chain(takes).chain(plan.data.variables.keys().cloned()).collect();
    // Names that a file itself contains are not known here.
    let is_open = plan.data.csv.iter().any(|csv| csv.names.is_empty());
    let mut unknown = BTreeSet::new();
    let mut settle = |text: &mut String| {
        for part in parts(text) {
            if let TextPart::Reference(inside) = part {
                let name = inside.strip_suffix(":raw").unwrap_or(inside);
                if !known.contains(name) && (!is_open || name.contains('(')) {
                    unknown.insert(name.to_owned());
                }
            }
        }
        *text = rewritten(text, str::to_owned, |inside| match inside.strip_suffix(":raw").unwrap_or(inside) {
            name if !unknown.contains(name) => format!("${{{inside}}}"),
            name if has_values => format!("$${{{name}}}"),
            name => format!("${{{name}}}"),
        });
    };
    for request in &mut plan.requests {
        settle(&mut request.url);
        request.headers.iter_mut().for_each(|(_, value)| settle(value));
        match &mut request.body {
            RequestBody::Text(text) => settle(text),
            RequestBody::Multipart(parts) => {
                parts.iter_mut().filter_map(|part| part.value.as_mut()).for_each(&mut settle)
            }
            _ => {}
        }
        for check in &mut request.check {
            [&mut check.equals, &mut check.contains].into_iter().flatten().for_each(&mut settle);
        }
    }
    notes.extend(unknown.iter().map(|name| format!("${{{name}}} has no value, and is sent as it is")));
}
