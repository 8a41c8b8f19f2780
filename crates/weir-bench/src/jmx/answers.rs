//! Assertions and extractors.

use super::reading::JmxElement;
use crate::engine::{AnswerCheck, StatusPattern, Take};

/// The parts of `Assertion.test_type`.
const MATCH: u32 = 1;
const CONTAINS: u32 = 2;
const NOT: u32 = 4;
const EQUALS: u32 = 8;
const SUBSTRING: u32 = 16;
const OR: u32 = 32;

/// The checks that an assertion means; the error says why it has no counterpart.
pub(super) fn checks(element: &JmxElement, evaluate: &dyn Fn(&str) -> String) -> Result<Vec<AnswerCheck>, String> {
    match element.class.as_str() {
        "ResponseAssertion" => response_checks(element, evaluate),
        _ => json_check(element, evaluate).map(|check| vec![check]),
    }
}

fn response_checks(element: &JmxElement, evaluate: &dyn Fn(&str) -> String) -> Result<Vec<AnswerCheck>, String> {
    let wanted: Vec<String> = element.items().map(evaluate).collect();
    let kind: u32 = element.text("Assertion.test_type").parse().unwrap_or(SUBSTRING);
    let not = kind & NOT != 0;
    let scope = element.text("Assertion.scope");
    if !scope.is_empty() && scope != "main" && scope != "all" {
        return Err(format!("the scope \"{scope}\" has no counterpart"));
    }
    let mut checks = match element.text("Assertion.test_field") {
        "Assertion.response_code" => {
            let mut checks = vec![status_check(&wanted, kind, not)?];
            // JMeter fails an answer from 400 on by itself, unless its status is to be ignored.
            if !element.is_true("Assertion.assume_success") {
                let success = ["1xx", "2xx", "3xx"].map(|class| StatusPattern::Class(class.to_owned()));
                checks.push(AnswerCheck { status: success.into(), ..AnswerCheck::default() });
            }
            checks
        }
        "Assertion.response_data" | "" => body_checks(&wanted, kind, not)?,
        "Assertion.response_headers" if kind & SUBSTRING != 0 && kind & OR == 0 => {
            let field = |text: &String| match text.split_once(':') {
                Some((name, value)) => Ok(AnswerCheck {
                    field: Some(name.trim().to_owned()),
                    contains: Some(value.trim().to_owned()),
                    not,
                    ..AnswerCheck::default()
                }),
                None => Err(format!("\"{text}\" is not a header field and its value")),
            };
            wanted.iter().map(field).collect::<Result<_, _>>()?
        }
        other => return Err(format!("an assertion of {other} of this kind has no counterpart")),
    };
    if element.is_true("Assertion.assume_success") && !checks.iter().any(|check| !check.status.is_empty()) {
        let any = ["1xx", "2xx", "3xx", "4xx", "5xx"].map(|class| StatusPattern::Class(class.to_owned()));
        checks.push(AnswerCheck { status: any.into(), ..AnswerCheck::default() });
    }
    Ok(checks)
}

fn status_check(wanted: &[String], kind: u32, not: bool) -> Result<AnswerCheck, String> {
    // Without OR, all texts would have to be the status.
    if wanted.len() > 1 && (kind & OR != 0) == not {
        return Err("several statuses have no counterpart in this combination".to_owned());
    }
    let pattern = |text: &String| match text.as_bytes() {
        [b'1'..=b'5', rest @ ..] if rest.len() == 2 && rest.iter().all(u8::is_ascii_digit) => {
            Ok(StatusPattern::Class(text.clone()))
        }
        [class @ b'1'..=b'5', rest @ ..] if kind & (MATCH | CONTAINS) != 0 && is_any_two(rest) => {
            Ok(StatusPattern::Class(format!("{}xx", char::from(*class))))
        }
        _ => Err(format!("the status \"{text}\" has no counterpart; one such as 200 or 2.. has")),
    };
    let status = wanted.iter().map(pattern).collect::<Result<_, _>>()?;
    Ok(AnswerCheck { status, not, ..AnswerCheck::default() })
}

/// Whether a part of a regular expression means any two digits.
fn is_any_two(pattern: &[u8]) -> bool {
    [&b".."[..], b"\\d\\d", b"[0-9][0-9]", b"\\d{2}", b"[0-9]{2}", b".*"].contains(&pattern)
}

fn body_checks(wanted: &[String], kind: u32, not: bool) -> Result<Vec<AnswerCheck>, String> {
    let is_pattern = kind & (MATCH | CONTAINS) != 0;
    let one = |text: &String| {
        let mut check = AnswerCheck { not, ..AnswerCheck::default() };
        match kind {
            kind if kind & MATCH != 0 => check.matches = Some(format!(r"\A(?:{text})\z")),
            kind if kind & CONTAINS != 0 => check.matches = Some(text.clone()),
            kind if kind & EQUALS != 0 => check.equals = Some(text.clone()),
            _ => check.contains = Some(text.clone()),
        }
        check
    };
    if kind & OR == 0 || wanted.len() < 2 {
        return wanted.iter().map(one).map(valid).collect();
    }
    if wanted.iter().any(|text| text.contains("${")) {
        return Err("several texts, one with a variable, have no counterpart".to_owned());
    }
    let alternative = |text: &String| match is_pattern {
        true => format!("(?:{text})"),
        false => regex::escape(text),
    };
    let any = wanted.iter().map(alternative).collect::<Vec<_>>().join("|");
    let whole = kind & (MATCH | EQUALS) != 0;
    let matches = if whole { format!(r"\A(?:{any})\z") } else { any };
    // JMeter negates each text, and one that is not there is enough.
    if not {
        return Err("several texts of which one must be missing have no counterpart".to_owned());
    }
    Ok(vec![valid(AnswerCheck { matches: Some(matches), ..AnswerCheck::default() })?])
}

/// Refuses expressions that are not known here, such as those that look behind.
fn valid(check: AnswerCheck) -> Result<AnswerCheck, String> {
    if check.matches.as_deref().is_some_and(|pattern| pattern.contains("${")) {
        return Err("a regular expression with a variable has no counterpart".to_owned());
    }
    match check.matches.as_deref().map(regex::bytes::Regex::new) {
        Some(Err(error)) => Err(format!("not a regular expression here: {error}")),
        _ => Ok(check),
    }
}

fn json_check(element: &JmxElement, evaluate: &dyn Fn(&str) -> String) -> Result<AnswerCheck, String> {
    scope(element)?;
    let mut check = AnswerCheck {
        json: Some(pointer(&evaluate(element.text("JSON_PATH")))?),
        not: element.is_true("INVERT"),
        ..AnswerCheck::default()
    };
    let expected = evaluate(element.text("EXPECTED_VALUE"));
    if element.is_true("JSONVALIDATION") {
        match () {
            () if element.is_true("EXPECT_NULL") => check.equals = Some("null".to_owned()),
            () if element.is_true("ISREGEX") => check.matches = Some(format!(r"\A(?:{expected})\z")),
            () => check.equals = Some(expected),
        }
    }
    valid(check)
}

/// Refuses an element that does not look at the answer itself.
fn scope(element: &JmxElement) -> Result<(), String> {
    match element.text("Sample.scope") {
        "" | "parent" | "all" | "main" => Ok(()),
        other => Err(format!("the scope \"{other}\" has no counterpart")),
    }
}

/// In what the values of an extractor differ from JMeter's.
pub(super) fn differences(element: &JmxElement, evaluate: &dyn Fn(&str) -> String) -> Vec<String> {
    let (numbers, defaults, is_empty) = match element.class.as_str() {
        "RegexExtractor" => {
            ("RegexExtractor.match_number", "RegexExtractor.default", "RegexExtractor.default_empty_value")
        }
        _ => ("JSONPostProcessor.match_numbers", "JSONPostProcessor.defaultValues", ""),
    };
    let mut differences = Vec::new();
    if evaluate(element.text(numbers)).split(';').any(|number| matches!(number.trim(), "" | "0")) {
        differences.push("the first match is taken, where JMeter takes a random one".to_owned());
    }
    if !element.is_true(is_empty) && evaluate(element.text(defaults)).split(';').any(|text| text.trim().is_empty()) {
        let text = "without a match the answer has failed and the client begins again, where JMeter goes on with what the \
                    variable was";
        differences.push(text.to_owned());
    }
    differences
}

/// The values that an extractor takes, by their names; the error says why it has no counterpart.
pub(super) fn takes(element: &JmxElement, evaluate: &dyn Fn(&str) -> String) -> Result<Vec<(String, Take)>, String> {
    scope(element)?;
    if element.class == "RegexExtractor" {
        return regex_take(element, evaluate).map(|take| vec![take]);
    }
    let list = |name: &str| -> Vec<String> {
        let text = evaluate(element.text(name));
        text.split(';').map(|part| part.trim().to_owned()).collect()
    };
    let (names, paths) = (list("JSONPostProcessor.referenceNames"), list("JSONPostProcessor.jsonPathExprs"));
    let (defaults, numbers) = (list("JSONPostProcessor.defaultValues"), list("JSONPostProcessor.match_numbers"));
    if names.len() != paths.len() {
        return Err("it has not as many names as paths".to_owned());
    }
    if numbers.iter().any(|number| !matches!(number.as_str(), "" | "0" | "1")) {
        return Err("only the first match has a counterpart".to_owned());
    }
    let take = |(index, (name, path)): (usize, (String, String))| {
        let default = defaults.get(index).filter(|text| !text.is_empty()).cloned();
        Ok((name, Take { json: Some(pointer(&path)?), default, ..Take::default() }))
    };
    names.into_iter().zip(paths).enumerate().map(take).collect()
}

fn regex_take(element: &JmxElement, evaluate: &dyn Fn(&str) -> String) -> Result<(String, Take), String> {
    let text = |name: &str| evaluate(element.text(&format!("RegexExtractor.{name}")));
    if !matches!(text("useHeaders").as_str(), "" | "false") {
        return Err(
            "only extractors of the body have a counterpart; `take` with `field` is one of a header field".to_owned()
        );
    }
    if !matches!(text("template").as_str(), "" | "$1$") || !matches!(text("match_number").as_str(), "" | "0" | "1") {
        return Err("only the first group of the first match has a counterpart".to_owned());
    }
    let has_default = element.is_true("RegexExtractor.default_empty_value");
    let default = Some(text("default")).filter(|text| has_default || !text.is_empty());
    if text("regex").contains("${") {
        return Err("a regular expression with a variable has no counterpart".to_owned());
    }
    let take = Take { matches: Some(text("regex")), default, ..Take::default() };
    if let Err(error) = regex::bytes::Regex::new(take.matches.as_deref().unwrap_or_default()) {
        return Err(format!("not a regular expression here: {error}"));
    }
    Ok((text("refname"), take))
}

/// The JSON pointer to what a JSONPath of names and positions means.
fn pointer(path: &str) -> Result<String, String> {
    let wrong =
        || format!("the path \"{path}\" has no counterpart; only names and positions have, such as $.items[0].id");
    let mut rest = path.trim().strip_prefix('$').ok_or_else(wrong)?;
    let mut pointer = String::new();
    while !rest.is_empty() {
        let (name, after) = if let Some(after) = rest.strip_prefix("['").or_else(|| rest.strip_prefix("[\"")) {
            let (name, after) = after.split_once(['\'', '"']).ok_or_else(wrong)?;
            (name, after.strip_prefix(']').ok_or_else(wrong)?)
        } else if let Some(after) = rest.strip_prefix('[') {
            let (position, after) = after.split_once(']').ok_or_else(wrong)?;
            position.parse::<u32>().map_err(|_| wrong())?;
            (position, after)
        } else {
            let after = rest.strip_prefix('.').ok_or_else(wrong)?;
            after.split_at(after.find(['.', '[']).unwrap_or(after.len()))
        };
        if name.is_empty() || name.contains(['*', '(', '?', '@', ',', ':']) {
            return Err(wrong());
        }
        pointer += &format!("/{}", name.replace('~', "~0").replace('/', "~1"));
        rest = after;
    }
    Ok(pointer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_pointers() {
        for (path, expected) in [("$", ""), ("$.a.b[0]", "/a/b/0"), ("$['a/b'].c", "/a~1b/c"), ("$[2]['x']", "/2/x")] {
            assert_eq!(pointer(path).as_deref(), Ok(expected));
        }
        for path in ["a", "$..a", "$.a[*]", "$.a[?(@.b)]", "$.a[-1]", "$['a'"] {
            assert!(pointer(path).is_err_and(|problem| problem.contains(path)), "{path}");
        }
    }

    #[test]
    fn statuses_become_patterns() {
        let check = |wanted: &[&str], kind, not| {
            let wanted: Vec<String> = wanted.iter().map(|text| (*text).to_owned()).collect();
            status_check(&wanted, kind, not).map(|check| check.status)
        };
        let class = |text: &str| StatusPattern::Class(text.to_owned());
        assert_eq!(check(&["200"], EQUALS, false), Ok(vec![class("200")]));
        assert_eq!(check(&["2..", r"3\d\d"], MATCH | OR, false), Ok(vec![class("2xx"), class("3xx")]));
        assert!(check(&["2.."], EQUALS, false).is_err());
        assert!(check(&["200", "201"], EQUALS, false).is_err(), "a status cannot be both");
        assert!(check(&["500", "503"], EQUALS, true).is_ok());
    }
}
