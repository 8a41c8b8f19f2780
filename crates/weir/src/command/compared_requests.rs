//! `weir diff --requests`: which requests two configurations handle differently, as a node answers it or found out from two files.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;
use weir_control::explain::{self, RequestDescription, compare_documents};
use weir_control::{Diagnostic, DocumentLoader};

use super::recorded_requests;
use crate::exit::{self, ExitFailure};
use crate::node::PLUGINS;
use crate::say::say;

/// Prints the requests that two configuration files handle differently. No node is asked.
pub(super) fn compare_files(files: [&PathBuf; 2], requests: &Path) -> ExitCode {
    let requests = match descriptions(requests) {
        Ok(requests) => requests,
        Err(problem) => {
            say!("{problem}");
            return ExitFailure::Configuration.into();
        }
    };
    match compared(files, &requests) {
        Ok(told) => {
            // A closed pipe is not a failure.
            let _ = io::stdout().write_all(in_words(&told).as_bytes());
            let differs = told["changed"].as_array().is_some_and(|changed| !changed.is_empty());
            if differs { ExitFailure::Configuration.into() } else { exit::DONE }
        }
        Err(faults) => {
            faults.iter().for_each(|fault| say!("{fault}"));
            ExitFailure::Configuration.into()
        }
    }
}

fn descriptions(file: &Path) -> Result<Vec<RequestDescription>, String> {
    let described = |request: &Value| {
        explain::described(request).map_err(|problem| format!("{}: {request}: {problem}", file.display()))
    };
    recorded_requests::read(file)?.iter().map(described).collect()
}

/// The comparison, as the Admin API shows it.
fn compared(files: [&PathBuf; 2], requests: &[RequestDescription]) -> Result<Value, Vec<Diagnostic>> {
    let [before, after] = files.map(|file| DocumentLoader::of_file_directly(file).read());
    let compared = compare_documents(&before?.document, &after?.document, &PLUGINS, requests)?;
    Ok(explain::told(&compared))
}

/// One line for each request that is handled differently, and one for each that is malformed.
pub(super) fn in_words(requests: &Value) -> String {
    let list = |name: &str| requests[name].as_array().cloned().unwrap_or_default();
    let (changed, malformed) = (list("changed"), list("malformed"));
    let mut text =
        format!("{} different requests compared, {} handled differently\n", requests["compared"], changed.len());
    for one in &changed {
        let part = |name: &Value| {
            let name = name.as_str().unwrap_or_default();
            let words = name.replace('_', " ");
            match (handled(&one["before"][name]), handled(&one["after"][name])) {
                (before, after) if before == after => format!("{words} {before} has other settings"),
                (before, after) => format!("{words} {before} -> {after}"),
            }
        };
        let parts: Vec<String> = one["differs"].as_array().into_iter().flatten().map(part).collect();
        text.push_str(&format!("  {}: {}\n", one["request"].as_str().unwrap_or_default(), parts.join("; ")));
    }
    for one in &malformed {
        let of = |name: &str| one[name].as_str().unwrap_or_default();
        text.push_str(&format!("  {}: is rejected with and without the change: {}\n", of("request"), of("problem")));
    }
    text
}

/// A route, plugins or an upstream, as text.
fn handled(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) if !items.is_empty() => {
            let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            format!("[{}]", items.join(", "))
        }
        _ => "none".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_that_are_handled_differently_are_shown() {
        let of = |route: &str, upstream: &str| json!({"route": route, "plugins": [], "upstream": upstream});
        let told = in_words(&json!({
            "compared": 3,
            "changed": [
                {"request": "GET http://a/", "differs": ["route", "upstream"], "before": of("r", "upstreams/u"), "after": of("s", "upstreams/u")},
                {"request": "GET http://b/", "differs": ["route", "plugins"], "before": {"route": null, "plugins": []}, "after": {"route": "s", "plugins": ["cors from route/s"]}},
            ],
            "malformed": [{"request": "G T http://a/", "problem": "400"}],
        }));
        let expected = "3 different requests compared, 2 handled differently\n  \
             GET http://a/: route r -> s; upstream upstreams/u has other settings\n  \
             GET http://b/: route none -> s; plugins none -> [cors from route/s]\n  \
             G T http://a/: is rejected with and without the change: 400\n";
        assert_eq!(told, expected);
    }
}
