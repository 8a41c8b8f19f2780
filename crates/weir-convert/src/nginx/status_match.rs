//! The statuses with which an endpoint is healthy: `match` blocks of `health_check`, and `check_http_expect_alive`.

use super::Conversion;
use super::syntax::Directive;

/// The statuses of successes and of failures.
pub(super) struct StatusMatch {
    pub good: Vec<i64>,
    pub bad: Vec<i64>,
}

/// The statuses that are registered for HTTP and that an endpoint may answer with.
const REGISTERED: [i64; 58] = [
    200, 201, 202, 203, 204, 205, 206, 207, 208, 226, 300, 301, 302, 303, 304, 305, 307, 308, 400, 401, 402, 403, 404,
    405, 406, 407, 408, 409, 410, 411, 412, 413, 414, 415, 416, 417, 418, 421, 422, 423, 424, 425, 426, 428, 429, 431,
    451, 500, 501, 502, 503, 504, 505, 506, 507, 508, 510, 511,
];

/// A status that is not registered, for a list that would be empty, which `checks` does not take.
const NEVER: i64 = 599;

impl StatusMatch {
    fn of(is_good: impl Fn(i64) -> bool) -> StatusMatch {
        let (mut good, mut bad): (Vec<i64>, Vec<i64>) = REGISTERED.into_iter().partition(|status| is_good(*status));
        [&mut good, &mut bad].into_iter().filter(|list| list.is_empty()).for_each(|list| list.push(NEVER));
        StatusMatch { good, bad }
    }
}

/// Those of a `health_check` without a `match`.
pub(super) fn usual() -> StatusMatch {
    StatusMatch::of(|status| (200..400).contains(&status))
}

/// Those of a `check_http_expect_alive`, such as `http_2xx`.
pub(super) fn of_classes(classes: &[String]) -> StatusMatch {
    if classes.is_empty() {
        return usual();
    }
    StatusMatch::of(|status| classes.contains(&format!("http_{}xx", status / 100)))
}

/// Those of a `match` block. What it demands beside them is reported.
pub(super) fn of(conversion: &mut Conversion, name: &str) -> StatusMatch {
    let is_it = |block: &&Directive| block.name == "match" && block.argument(0) == name;
    let Some(block) = conversion.http.iter().find(is_it) else { return usual() };
    let mut statuses: Vec<&Directive> = Vec::new();
    for child in block.children() {
        match child.name.as_str() {
            "status" => statuses.push(child),
            _ => {
                let text =
                    format!("`{}` in `{}`: only the status of an endpoint is looked at", child.head(), block.head());
                conversion.lost(&child.place, text);
            }
        }
    }
    StatusMatch::of(|status| statuses.iter().all(|line| allows(line, status)))
}

/// Whether a `status` line, such as `status 200-399` or `status ! 500`, allows a status.
fn allows(line: &Directive, status: i64) -> bool {
    let (is_negated, ranges) = match line.arguments.split_first() {
        Some((first, rest)) if first == "!" => (true, rest),
        _ => (false, line.arguments.as_slice()),
    };
    let is_in = |range: &String| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let bounds = first.parse::<i64>().ok().zip(last.parse().ok());
        bounds.is_some_and(|(first, last)| (first..=last).contains(&status))
    };
    ranges.iter().any(is_in) != is_negated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_list_is_empty() {
        for (class, good, bad) in [("http_9xx", 1, 58), ("http_2xx", 10, 48)] {
            let found = of_classes(&[class.to_owned()]);
            assert_eq!((found.good.len(), found.bad.len()), (good, bad), "{class}");
        }
        let all = StatusMatch::of(|_| true);
        assert_eq!((all.good.len(), all.bad), (58, vec![NEVER]));
    }
}
