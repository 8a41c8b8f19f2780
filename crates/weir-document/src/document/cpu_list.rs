//! A list of processors, as in `taskset -c`.

use serde_json::{Value, json};

use crate::keys::schema::Definitions;
use crate::text::read::{NodeReader, shortened};
use crate::text::tree::NodeKind;

/// The processors that `sched_setaffinity` can name here: the size of glibc's `cpu_set_t`.
const MAX_CPUS: u16 = 1024;

/// Reads `1` or `0,2-3`; the numbers are in order, each once. Whether the machine has them is
/// known where threads start: a file may be checked on another machine.
pub(super) fn read(at: &NodeReader) -> Option<Box<[u16]>> {
    let cpus = match &at.node().kind {
        NodeKind::Number(_) => vec![at.integer(0..=MAX_CPUS - 1)?],
        _ => {
            let text = at.text()?;
            let cpus = parse(text);
            if cpus.is_none() {
                let problem = format!("`{}` is not a list of processors", shortened(text));
                at.report_advising(
                    problem,
                    format!("write as `1` or `0,2-3`, with numbers from 0 to {}", MAX_CPUS - 1),
                );
            }
            cpus?
        }
    };
    Some(cpus.into())
}

pub(super) fn schema(_: &mut Definitions) -> Value {
    let list = json!({ "type": "string", "pattern": "^ *[0-9]{1,4} *(- *[0-9]{1,4} *)?(, *[0-9]{1,4} *(- *[0-9]{1,4} *)?)*$" });
    json!({ "oneOf": [{ "type": "integer", "minimum": 0, "maximum": MAX_CPUS - 1 }, list] })
}

fn parse(text: &str) -> Option<Vec<u16>> {
    let number = |text: &str| {
        let text = text.trim();
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|number| is_number && *number < MAX_CPUS)
    };
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if last < first {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_numbers_and_ranges() {
        for (text, cpus) in [("1", &[1][..]), ("0,2-3", &[0, 2, 3]), (" 3 , 1-2,2 ", &[1, 2, 3]), ("1023", &[1023])] {
            assert_eq!(parse(text).as_deref(), Some(cpus), "{text}");
        }
        for text in ["", ",", "1,", "a", "-1", "1-", "3-2", "1024", "+1", "0x1", "1-2-3", "99999"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
