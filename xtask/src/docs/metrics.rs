//! docs/reference/metrics.md: the families of `/metrics`, read from the sources that write them, since some are there only
//! once something has happened.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::Problems;

/// Where `/metrics` is written.
const SOURCES: [&str; 2] = ["crates/weir-telemetry/src", "crates/weir/src/node"];

const HEAD: &str = "\
# Metrics

Written by `cargo xtask docs` from the sources. What `/metrics` on the status address (`status`) says, for Prometheus or, where
the scraper asks for it, in OpenMetrics. Counters begin at 0 with the process, and go on over reloads; after a binary upgrade
the new process counts anew. A histogram has the label `le` besides, and `_bucket`, `_sum` and `_count`.

The causes of `weir_http_errors_total` stand in [Statuses](../guide/statuses.md). With the plugin
[`prometheus`](plugins.md#prometheus) there are `apisix_http_status`, `apisix_http_latency` and `apisix_bandwidth` besides.
";

/// A family as its sources have it.
#[derive(Debug, PartialEq, Eq)]
struct Family {
    name: String,
    kind: &'static str,
    help: String,
    labels: Vec<String>,
}

/// The page.
pub fn page() -> Result<String, Problems> {
    let mut families = Vec::new();
    for folder in SOURCES {
        let entries = fs::read_dir(folder).map_err(|error| vec![format!("{folder}: {error}")])?;
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| is_source(path)) {
            let text = fs::read_to_string(&path).map_err(|error| vec![format!("{}: {error}", path.display())])?;
            families.extend(families_of(&text));
        }
    }
    families.retain(|family| !family.name.starts_with("apisix_"));
    families.sort_by(|one, other| one.name.cmp(&other.name));
    let mut page = HEAD.to_owned();
    page.push_str("\n| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for Family { name, kind, help, labels } in families {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let _ = writeln!(page, "| `{name}` | {kind} | {} | {help} |", labels.join(", "));
    }
    Ok(page)
}

fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

/// What begins a family, and what its samples' names end with.
const KINDS: [(&str, &str, &str); 3] =
    [("page.counter(", "counter", "_total"), ("page.gauge(", "gauge", ""), ("page.histogram(", "histogram", "")];

/// The families that a source begins, each with the labels that it names before the next one, or before its function ends.
fn families_of(source: &str) -> Vec<Family> {
    let source = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let mut begins: Vec<(usize, &str, &str)> = KINDS
        .iter()
        .flat_map(|&(call, kind, suffix)| source.match_indices(call).map(move |(at, _)| (at, kind, suffix)))
        .collect();
    begins.sort_unstable();
    let ends = begins.iter().skip(1).map(|(at, ..)| *at).chain([source.len()]);
    begins
        .iter()
        .zip(ends)
        .filter_map(|(&(begin, kind, suffix), end)| family(&source[begin..end], kind, suffix))
        .collect()
}

fn family(text: &str, kind: &'static str, suffix: &str) -> Option<Family> {
    let text =
        ["\n}\n", "\n    }\n\n"].iter().filter_map(|end| text.split(end).next()).min_by_key(|text| text.len())?;
    let mut parts = text.split('"');
    let (name, help) = (parts.nth(1)?, parts.nth(1)?);
    let rest = text.split_once(help)?.1;
    let mut labels = Vec::new();
    for (_, after) in rest.match_indices("(\"").map(|(at, found)| rest.split_at(at + found.len())) {
        let label = after.split_once("\",").map_or("", |(label, _)| label);
        let is_name = !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        if is_name && !labels.iter().any(|known| known == label) {
            labels.push(label.to_owned());
        }
    }
    Some(Family { name: format!("{name}{suffix}"), kind, help: help.to_owned(), labels })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_read_with_their_labels() {
        let source = "
fn write(page: &mut Page) {
    page.counter(\"weir_a\", \"Things.\").total(&[], 1);
    page.gauge(
        \"weir_b\",
        \"Others, by kind.\",
    );
    for (kind, of) in all(\"x\") {
        page.value(&[(\"kind\", kind), (\"of\", &of.to_string())], 1);
        page.value(&[(\"kind\", kind)], 1);
    }
}

fn other() { with((\"no_label\", 1)) }

#[cfg(test)]
mod tests {
    fn none() { page.gauge(\"weir_c\", \"\"); }
}
";
        let found = families_of(source);
        let family = |name: &str, kind, help: &str, labels: &[&str]| Family {
            name: name.to_owned(),
            kind,
            help: help.to_owned(),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        };
        let expected = [
            family("weir_a_total", "counter", "Things.", &[]),
            family("weir_b", "gauge", "Others, by kind.", &["kind", "of"]),
        ];
        assert_eq!(found, expected);
    }
}
