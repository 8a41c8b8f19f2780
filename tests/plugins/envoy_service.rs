//! A service with one of Envoy's protocols: a program in Python or Go, with the library of gRPC and the public messages.

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;
use weir_testkit::{Program, skipped};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Python with gRPC and the messages of Envoy, if it is there.
pub(crate) fn python() -> Option<Command> {
    let mut program = Command::new(root().join(".cache/python/bin/python"));
    // What is imported from the folder of the tests leaves nothing there.
    program.env("PYTHONPATH", root().join(".cache/xds-protos")).env("PYTHONDONTWRITEBYTECODE", "1");
    let imports = "import grpc; from envoy.service.auth.v3 import external_auth_pb2";
    let mut import = Command::new(program.get_program());
    import.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if import.args(["-c", imports]).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return Some(program);
    }
    skipped("there is no Python with `grpcio` and `xds-protos`");
    None
}

/// A program of the tests.
fn script(name: &str) -> PathBuf {
    root().join("tests/plugins").join(name)
}

/// Has the program in Python call the authorization service at an address by gRPC: the code of the answer, and its content.
pub(crate) fn call(address: SocketAddr) -> String {
    let mut client = python().expect("it is there");
    let output = client.arg(script("authz.py")).args(["call", &address.to_string()]).output().expect("Python runs");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A service that takes orders, and tells what it was asked.
pub(crate) struct Service {
    child: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
    pub address: String,
}

impl Service {
    /// `None` where there is no Python for it.
    pub(crate) fn start(name: &str, arguments: &[&Path]) -> Option<Service> {
        let mut program = python()?;
        program.arg(script(name)).args(arguments);
        Some(Service::run(program))
    }

    /// The program in Go with this name, of tests/clients/go. `None` where it could not be built.
    pub(crate) fn start_go(name: &str, arguments: &[&Path]) -> Option<Service> {
        let mut program = Program::find(name)?;
        program.args(arguments);
        Some(Service::run(program))
    }

    fn run(mut program: Command) -> Service {
        let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let orders = child.stdin.take().expect("it is a pipe");
        let mut said = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
        let line = said.next().expect("it says its port").expect("it says text");
        let address = format!("127.0.0.1:{}", line.strip_prefix("port ").expect("it says its port"));
        Service { child, orders, said, address }
    }

    /// Gives an order, and returns what the service was asked since the last one.
    pub(crate) fn order(&mut self, order: &Value) -> Vec<Value> {
        writeln!(self.orders, "{order}").expect("it reads");
        let line = self.said.next().expect("it answers").expect("it says text");
        serde_json::from_str(&line).expect("JSON")
    }

    /// Ends the service at once.
    pub(crate) fn kill(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
    }
}
