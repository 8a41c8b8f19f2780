//! What requests of OTLP over HTTP contain: `otlp.py`.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use weir_testkit::{Request, skipped};

/// The spans (`traces`), log records (`logs`) or metrics (`metrics`) in requests of OTLP over HTTP; `None` without the Python package.
pub(crate) fn decoded(kind: &str, requests: &[Request]) -> Option<Vec<Value>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join(".cache/python/bin/python");
    let imports = Command::new(&python).args(["-c", "import opentelemetry.proto"]).stderr(Stdio::null()).status();
    if !imports.is_ok_and(|status| status.success()) {
        skipped("there is no Python with `opentelemetry-proto`");
        return None;
    }
    let mut command = Command::new(python);
    let command = command.arg(root.join("tests/records/otlp.py")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("Python starts");
    let mut orders = child.stdin.take().expect("it is a pipe");
    for request in requests {
        let digits: String = request.body.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(orders, "{kind} {digits}").expect("it listens");
    }
    drop(orders);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "it is not OTLP");
    let lines = String::from_utf8(output.stdout).expect("text");
    Some(lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect())
}
