//! Reads options into their types. Errors of the deserializer are translated into the words of a configuration: lists, maps,
//! texts and numbers, with the options and the values that are right.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use crate::ConfigError;
use crate::secret_name::may_be_secret;
use crate::suggest::closest;

/// Whether an error may contain the value that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quoting {
    Allowed,
    /// The options are secrets.
    Never,
}

/// Reads the options `value`.
pub(crate) fn read<T: DeserializeOwned>(value: &Value, quoting: Quoting) -> Result<T, ConfigError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let found = at(value, error.path()).filter(|_| quoting == Quoting::Allowed && !leads_to_secret(error.path()));
        let problem = translated(&error.inner().to_string(), found);
        ConfigError::new(if path == "." { String::new() } else { path }, problem)
    })
}

fn leads_to_secret(path: &Path) -> bool {
    let names: Vec<&str> = path
        .iter()
        .filter_map(|segment| match segment {
            Segment::Map { key } => Some(key.as_str()),
            _ => None,
        })
        .collect();
    may_be_secret(names.into_iter().rev())
}

/// The value at a path, if it exists.
fn at<'v>(value: &'v Value, path: &Path) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, segment| match segment {
        Segment::Seq { index } => value.get(index),
        Segment::Map { key } => value.get(key),
        Segment::Enum { .. } | Segment::Unknown => Some(value),
    })
}

/// A message of the deserializer in other words. Messages of option types themselves are returned as they are.
fn translated(message: &str, found: Option<&Value>) -> String {
    if let Some((unknown, expected)) = quoted_after(message, "unknown field `") {
        return format!("the option `{unknown}` is not known; {}", option_advice(unknown, &quoted(expected)));
    }
    if let Some((missing, _)) = quoted_after(message, "missing field `") {
        return format!("the option `{missing}` is missing");
    }
    if let Some((unknown, expected)) = quoted_after(message, "unknown variant `") {
        let shown = found.map_or(String::new(), |_| format!("`{unknown}` "));
        return format!("{shown}is not an allowed value; {}", choice_advice(unknown, &quoted(expected)));
    }
    let is_mismatch = message.starts_with("invalid type: ") || message.starts_with("invalid value: ");
    match message.rsplit_once(", expected ") {
        Some((_, expected)) if is_mismatch => mismatch(expected, found),
        _ => message.to_owned(),
    }
}

/// The text in backticks after `begin`, and the rest.
fn quoted_after<'m>(message: &'m str, begin: &str) -> Option<(&'m str, &'m str)> {
    message.strip_prefix(begin)?.split_once('`')
}

/// All texts in backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Of an option that does not exist.
pub(crate) fn unknown_option(unknown: &str, known: &[String]) -> String {
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    format!("the option `{unknown}` is not known; {}", option_advice(unknown, &known))
}

/// The option that was probably meant by one that does not exist.
pub(crate) fn meant_option<'k>(unknown: &str, known: &'k [String]) -> Option<&'k str> {
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    meant(unknown, &known)
}

/// Of a text that is none of some words; `None` if it must not be quoted.
pub(crate) fn unknown_word(unknown: Option<&str>, known: &[String]) -> String {
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let shown = unknown.map_or(String::new(), |text| format!("`{}` ", shortened(text)));
    format!("{shown}is not an allowed value; {}", choice_advice(unknown.unwrap_or_default(), &known))
}

/// `one of` some words, in a message.
pub(crate) fn one_of(words: &[String]) -> String {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    format!("{}{}", if words.len() > 1 { "one of " } else { "" }, listed(&words))
}

fn option_advice(unknown: &str, known: &[&str]) -> String {
    match (meant(unknown, known), known.len()) {
        (Some(meant), _) => format!("did you mean `{meant}`?"),
        (None, 0) => "there are no options here".to_owned(),
        (None, 1) => format!("the only option is `{}`", known[0]),
        (None, _) => format!("the options are {}", listed(known)),
    }
}

fn choice_advice(unknown: &str, known: &[&str]) -> String {
    match meant(unknown, known) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("write {}{}", if known.len() > 1 { "one of " } else { "" }, listed(known)),
    }
}

/// A typing mistake, or the last or first part of a longer name: `origins` for `allow_origins`, `endpoint` for `endpoint_addr`.
fn meant<'k>(unknown: &str, known: &[&'k str]) -> Option<&'k str> {
    let (begin, end) = (format!("{unknown}_"), format!("_{unknown}"));
    let longer = |is_longer: &dyn Fn(&str) -> bool| {
        known.iter().copied().filter(|name| is_longer(name)).min_by_key(|name| name.len())
    };
    let by_end = || longer(&|name| name.ends_with(&end));
    closest(unknown, known.iter().copied()).or_else(by_end).or_else(|| longer(&|name| name.starts_with(&begin)))
}

fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The most options that a message lists.
const LISTED: usize = 8;

/// Of a value in place of a map. `form`: how the map is written, if its schema says so; `required`: the options that it must have;
/// `known`: all options.
pub(crate) fn no_map(found: Option<&Value>, form: Option<&str>, required: &[String], known: &[String]) -> String {
    let problem = mismatch("a map", found);
    let names: Vec<&str> = known.iter().map(String::as_str).collect();
    match (form, required, names.len()) {
        (Some(form), ..) => format!("{problem}; write `{form}`"),
        (None, [_, ..], _) => {
            let written: Vec<String> = required.iter().map(|name| format!("{name}: …")).collect();
            format!("{problem}; write `{{ {} }}`", written.join(", "))
        }
        (None, [], 1..=LISTED) => format!("{problem}; its options are {}", listed(&names)),
        (None, [], _) => problem,
    }
}

/// Of a value that is not what is expected; `None` if it must not be quoted.
pub(crate) fn mismatch(expected: &str, found: Option<&Value>) -> String {
    let wanted = match expected {
        "f32" | "f64" => "a number",
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" | "u64" | "u128" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "a whole number",
        "a string" | "string" => "text",
        "a sequence" => "a list",
        "a boolean" => "true or false",
        _ if expected.starts_with("struct ") || expected.starts_with("internally tagged enum") => "a map",
        _ => expected,
    };
    match found {
        Some(value) => format!("expected {wanted}, found {}{}", shown(wanted, value), advice(wanted, value)),
        None => format!("expected {wanted}"),
    }
}

/// The value that was found. Its text is left out where the option may be a secret: those are texts, such as a password, and maps
/// with one, such as the header fields for a receiver.
fn shown(wanted: &str, value: &Value) -> String {
    let is_secret = matches!(wanted, "text" | "a map");
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(value) => format!("the boolean {value}"),
        Value::Number(_) if is_secret => "a number".to_owned(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(_) if is_secret => "text".to_owned(),
        Value::String(text) => format!("the text `{}`", shortened(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a map".to_owned(),
    }
}

fn advice(wanted: &str, value: &Value) -> String {
    match (wanted, value) {
        ("a list", Value::String(text)) => format!("; write `[{}]`", shortened(text)),
        ("text", Value::Number(_) | Value::Bool(_)) => "; put it in quotes".to_owned(),
        (_, Value::String(text)) if text.parse::<f64>().is_ok() => "; write it without quotes".to_owned(),
        (_, Value::String(text)) if wanted.contains("number") && text.starts_with(|c: char| c.is_ascii_digit()) => {
            "; write the number without a unit".to_owned()
        }
        _ => String::new(),
    }
}

pub(crate) fn shortened(text: &str) -> String {
    const SHOWN: usize = 60;
    let mut shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only errors are read")]
    struct Limits {
        allow_origins: Option<String>,
        rate: f64,
        count: Option<u16>,
        items: Option<Vec<String>>,
        kind: Option<Kind>,
        inner: Option<Box<Limits>>,
        strict: Option<bool>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase", deny_unknown_fields)]
    enum Kind {
        Local,
        Redis,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}

    fn error<T: DeserializeOwned + std::fmt::Debug>(value: Value, quoting: Quoting) -> String {
        read::<T>(&value, quoting).expect_err("it is wrong").to_string()
    }

    #[test]
    fn errors_are_in_the_words_of_a_configuration() {
        for (value, expected) in [
            (json!({"origins": 1}), "origins: the option `origins` is not known; did you mean `allow_origins`?"),
            (json!({"cuont": 1}), "cuont: the option `cuont` is not known; did you mean `count`?"),
            (json!({}), "the option `rate` is missing"),
            (json!({"inner": {}}), "inner: the option `rate` is missing"),
            (
                json!({"rate": "10r/s"}),
                "rate: expected a number, found the text `10r/s`; write the number without a unit",
            ),
            (json!({"rate": "10"}), "rate: expected a number, found the text `10`; write it without quotes"),
            (json!({"count": -1}), "count: expected a whole number from 0 to 65535, found the number -1"),
            (json!({"count": "many"}), "count: expected a whole number from 0 to 65535, found the text `many`"),
            (json!({"allow_origins": 1}), "allow_origins: expected text, found a number; put it in quotes"),
            (json!({"items": "a"}), "items: expected a list, found the text `a`; write `[a]`"),
            (json!({"kind": "redsi"}), "kind: `redsi` is not an allowed value; did you mean `redis`?"),
            (json!({"kind": "x"}), "kind: `x` is not an allowed value; write one of `local`, `redis`"),
            (json!({"inner": 5}), "inner: expected a map, found a number"),
            (json!({"inner": "user:password"}), "inner: expected a map, found text"),
            (json!({"strict": "yes"}), "strict: expected true or false, found the text `yes`"),
            (json!({"items": ["a", {}]}), "items[1]: expected text, found a map"),
        ] {
            assert_eq!(error::<Limits>(value.clone(), Quoting::Allowed), expected, "{value}");
        }
        let unknown = error::<Limits>(json!({"zebra": 1}), Quoting::Allowed);
        assert!(unknown.contains("the options are `allow_origins`, `rate`,"), "{unknown}");
        let nothing = error::<Nothing>(json!({"a": 1}), Quoting::Allowed);
        assert_eq!(nothing, "a: the option `a` is not known; there are no options here");
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only errors are read")]
    struct Secrets {
        keyring: Option<Vec<String>>,
        secret: Option<Kind>,
        password: Option<u8>,
    }

    #[test]
    fn options_named_like_secrets_are_not_quoted() {
        for (value, expected) in [
            (json!({"keyring": "hunter2"}), "keyring: expected a list"),
            (json!({"secret": "hunter2"}), "secret: is not an allowed value; write one of `local`, `redis`"),
            (json!({"password": 12345}), "password: expected a whole number from 0 to 255"),
        ] {
            assert_eq!(error::<Secrets>(value.clone(), Quoting::Allowed), expected, "{value}");
        }
    }

    #[test]
    fn secrets_are_not_quoted() {
        for (value, expected) in [
            (json!({"allow_origins": 12345}), "allow_origins: expected text"),
            (json!({"kind": "hunter2"}), "kind: is not an allowed value; write one of `local`, `redis`"),
        ] {
            assert_eq!(error::<Limits>(value.clone(), Quoting::Never), expected, "{value}");
        }
    }
}
