//! Findings in machine-readable formats.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::json;
use weir_control::Diagnostic;

/// A file with its findings.
pub(super) struct CheckedFile {
    pub name: String,
    /// Whether the configuration is accepted.
    pub is_valid: bool,
    pub findings: Vec<CheckFinding>,
}

#[derive(Serialize)]
pub(super) struct CheckFinding {
    pub severity: CheckSeverity,
    #[serde(flatten)]
    pub diagnostic: Diagnostic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum CheckSeverity {
    Error,
    Warning,
}

impl CheckSeverity {
    /// The name of the severity in GitHub's commands and in SARIF.
    fn name(self) -> &'static str {
        match self {
            CheckSeverity::Error => "error",
            CheckSeverity::Warning => "warning",
        }
    }
}

impl CheckFinding {
    /// The problem and the advice, without the position.
    fn message(&self) -> String {
        let Diagnostic { path, problem, advice, .. } = &self.diagnostic;
        let path = if path.is_empty() { String::new() } else { format!("{path}: ") };
        let advice = advice.as_ref().map(|advice| format!("; {advice}")).unwrap_or_default();
        format!("{path}{problem}{advice}")
    }
}

fn findings(checked: &[CheckedFile]) -> impl Iterator<Item = &CheckFinding> {
    checked.iter().flat_map(|file| &file.findings)
}

/// `{"files": [{"file", "valid"}], "findings": [{"severity", "source", "line", …}]}`.
pub(super) fn json(checked: &[CheckedFile]) -> String {
    let files: Vec<_> = checked.iter().map(|file| json!({"file": file.name, "valid": file.is_valid})).collect();
    let findings: Vec<&CheckFinding> = findings(checked).collect();
    format!("{:#}\n", json!({"files": files, "findings": findings}))
}

/// Workflow commands of GitHub Actions, one per line.
pub(super) fn github(checked: &[CheckedFile]) -> String {
    let data = |text: &str| text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    let property = |text: &str| data(text).replace(':', "%3A").replace(',', "%2C");
    let line = |finding: &CheckFinding| {
        let Diagnostic { source, line, column, .. } = &finding.diagnostic;
        let place = match (line, column) {
            (Some(line), Some(column)) => format!(",line={line},col={column}"),
            _ => String::new(),
        };
        format!("::{} file={}{place}::{}\n", finding.severity.name(), property(source), data(&finding.message()))
    };
    findings(checked).map(line).collect()
}

/// A path as a URI reference (RFC 3986 §4.2), in which spaces, `%`, `:` and so on are percent-encoded.
fn uri(path: &str) -> String {
    const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');
    utf8_percent_encode(path, RESERVED).to_string()
}

/// A SARIF log with one run.
pub(super) fn sarif(checked: &[CheckedFile]) -> String {
    let result = |finding: &CheckFinding| {
        let Diagnostic { source, line, column, .. } = &finding.diagnostic;
        let mut place = json!({"artifactLocation": {"uri": uri(source)}});
        if let (Some(line), Some(column)) = (line, column) {
            place["region"] = json!({"startLine": line, "startColumn": column});
        }
        json!({
            "ruleId": "configuration",
            "level": finding.severity.name(),
            "message": {"text": finding.message()},
            "locations": [{"physicalLocation": place}],
        })
    };
    let results: Vec<_> = findings(checked).map(result).collect();
    let rule = json!({"id": "configuration", "shortDescription": {"text": "The configuration has errors or warnings"}});
    let driver = json!({"name": "weir", "version": env!("CARGO_PKG_VERSION"), "rules": [rule]});
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}],
    });
    format!("{log:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_references() {
        assert_eq!(uri("/etc/weir/a-1_b.yaml"), "/etc/weir/a-1_b.yaml");
        assert_eq!(uri("my file: 50%.yaml"), "my%20file%3A%2050%25.yaml");
        assert_eq!(uri("caf\u{e9}.yaml"), "caf%C3%A9.yaml");
    }
}
