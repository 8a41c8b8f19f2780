//! gRPC by other people's code: a server and a client in Python. Without them the tests are skipped, and say so.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use weir_testkit::{Authority, Gateway, Identity};

/// Server and client in one process.
struct Peers {
    child: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
    port: String,
}

impl Peers {
    /// `None` where there is no Python with `grpcio`.
    fn start() -> Option<Peers> {
        let python: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/python/bin/python");
        let imports = Command::new(&python).args(["-c", "import grpc"]).stderr(Stdio::null()).status();
        if !imports.is_ok_and(|status| status.success()) {
            let _ = writeln!(std::io::stderr(), "skipped: there is no Python with `grpcio`; run scripts/setup");
            return None;
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/behaviour/calls.py");
        let mut command = Command::new(python);
        let command = command.arg(script).arg("calls").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("Python starts");
        let orders = child.stdin.take().expect("it is a pipe");
        let mut said = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
        let line = said.next().expect("it says its port").expect("it says text");
        let port = line.strip_prefix("port ").expect("it says its port").to_owned();
        Some(Peers { child, orders, said, port })
    }

    fn gateway(&self, listen: &str) -> Gateway {
        Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
            "{listen}routes: [{{ uri: /*, upstream: {{ scheme: grpc, nodes: {{ \"127.0.0.1:{}\": 1 }} }} }}]\n",
            self.port
        ))
    }

    /// Tells it to do something; what it says to that.
    fn ask(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").expect("it listens");
        self.said.next().expect("it answers").expect("it says text")
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn calls_of_every_kind_pass() {
    let Some(mut peers) = Peers::start() else { return };
    let gateway = peers.gateway("");
    assert_eq!(peers.ask(&format!("calls {}", gateway.addr())), "ok");
}

#[test]
fn calls_of_every_kind_pass_over_tls() {
    let Some(mut peers) = Peers::start() else { return };
    let Identity { certificate, key } = Authority::of_tests().identity(&["t"]);
    let gateway = peers.gateway(&format!(
        "listen: [{{ address: \"127.0.0.1:0\", tls: true }}]\nssls: [{{ sni: t, cert: {certificate:?}, key: {key:?} }}]\n"
    ));
    let file = gateway.directory().write("ca.pem", &Authority::of_tests().certificate);
    assert_eq!(peers.ask(&format!("calls {} {}", gateway.tls_addr(), file.display())), "ok");
}

#[test]
fn h12_a_call_whose_server_dies_is_unavailable() {
    let (Some(server), Some(mut client)) = (Peers::start(), Peers::start()) else { return };
    let gateway = server.gateway("");
    assert_eq!(client.ask(&format!("dies {}", gateway.addr())), "ok");
}
