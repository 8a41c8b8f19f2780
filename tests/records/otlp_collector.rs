//! A collector of OTLP over gRPC: `otlp_grpc.py`.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;
use weir_testkit::skipped;

pub(crate) struct GrpcCollector {
    child: Child,
    orders: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    pub port: u16,
}

impl GrpcCollector {
    /// `None` without the Python packages.
    pub(crate) fn start() -> Option<GrpcCollector> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let python = root.join(".cache/python/bin/python");
        let imports =
            Command::new(&python).args(["-c", "import grpc, opentelemetry.proto"]).stderr(Stdio::null()).status();
        if !imports.is_ok_and(|status| status.success()) {
            skipped("there is no Python with `grpcio` and `opentelemetry-proto`");
            return None;
        }
        let mut command = Command::new(python);
        let command = command.arg(root.join("tests/records/otlp_grpc.py")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("Python starts");
        let orders = child.stdin.take().expect("it is a pipe");
        let mut lines = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
        let port = lines.next().expect("it says its port").expect("text");
        let port = port.strip_prefix("port ").and_then(|port| port.parse().ok()).expect("a port");
        Some(GrpcCollector { child, orders, lines, port })
    }

    /// The answer to the next export that has none yet.
    pub(crate) fn answer(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it listens");
    }

    /// Waits for the next export.
    pub(crate) fn export(&mut self) -> Value {
        let line = self.lines.next().expect("it is running").expect("text");
        serde_json::from_str(&line).expect("JSON")
    }
}

impl Drop for GrpcCollector {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
