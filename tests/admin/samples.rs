//! Every request of `samples.txt` is answered as Apache APISIX answers it.

use serde_json::Value;
use weir_testkit::{DEADLINE, eventually};

use crate::api::{Api, file, json};
use crate::weir;

#[derive(Debug, Default)]
struct Sample<'a> {
    method: &'a str,
    path: &'a str,
    body: &'a str,
    status: u16,
    answer: &'a str,
}

fn samples(text: &str) -> Vec<Sample<'_>> {
    let mut samples: Vec<Sample> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(request) = line.strip_prefix("> ") {
            let (method, path) = request.split_once(' ').expect("a method and a path");
            samples.push(Sample { method, path, ..Sample::default() });
            continue;
        }
        let last = samples.last_mut().expect("a request comes first");
        match line.strip_prefix("< ") {
            Some(status) => last.status = status.parse().expect("a status"),
            None if last.status == 0 => last.body = line,
            None => last.answer = line,
        }
    }
    samples
}

/// Whether a value is of the shape of another; what is not, is said.
fn differs(path: &str, shape: &Value, value: &Value) -> Option<String> {
    let told = || Some(format!("{path}: expected {shape}, found {value}"));
    match (shape, value) {
        (Value::String(shape), _) if shape == "<any>" => None,
        (Value::String(shape), Value::Number(_)) if shape == "<number>" => None,
        (Value::String(shape), Value::String(text)) => match shape.strip_suffix("<rest>") {
            _ if shape == "<text>" => None,
            Some(begin) if text.starts_with(begin) => None,
            None if shape == text => None,
            _ => told(),
        },
        (Value::Object(shapes), Value::Object(members)) => {
            let is_open = shapes.contains_key("<some>");
            // What APISIX does not say.
            let is_own = |name: &str| ["diagnostics", "warnings", "description"].contains(&name);
            let unknown = members.keys().find(|name| !is_open && !is_own(name) && !shapes.contains_key(*name));
            if let Some(name) = unknown {
                return Some(format!("{path}: `{name}` is more than expected"));
            }
            let mut wanted = shapes.iter().filter(|(name, _)| *name != "<some>");
            wanted.find_map(|(name, shape)| differs(&format!("{path}.{name}"), shape, members.get(name)?)).or_else(
                || {
                    let missing = shapes.keys().find(|name| *name != "<some>" && !members.contains_key(*name));
                    missing.map(|name| format!("{path}: `{name}` is missing"))
                },
            )
        }
        (Value::Array(shapes), Value::Array(items)) if shapes.len() == items.len() => {
            let mut pairs = shapes.iter().zip(items).enumerate();
            pairs.find_map(|(index, (shape, item))| differs(&format!("{path}[{index}]"), shape, item))
        }
        (shape, value) if shape == value => None,
        _ => told(),
    }
}

#[test]
fn every_sample_is_answered_as_apisix_answers_it() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let mut problems = Vec::new();
    for Sample { method, path, body, status, answer } in samples(include_str!("samples.txt")) {
        let answered = api.ask(method, path, "", body);
        let text = answered.text();
        let problem = if answered.status != status {
            Some(format!("status {} instead of {status}: {text}", answered.status))
        } else if let Some(begin) = answer.strip_prefix('~') {
            (!text.starts_with(begin.trim())).then(|| format!("found {text}"))
        } else {
            differs("", &serde_json::from_str(answer).expect("a shape"), &json(&answered))
        };
        problems.extend(problem.map(|problem| format!("{method} {path} {body}\n    {problem}")));
        let server = answered.headers.get("server").unwrap_or_default();
        assert!(server.contains("APISIX/3.18.0"), "ADC reads the version here: {server}");
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    // A route that lives for a second is gone by itself.
    eventually("it expires", DEADLINE, || api.ask("GET", "routes/t1", "", "").status == 404);
}
