//! Active checks as gRPC asks for health, of a server by other people.

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use weir_testkit::{Authority, DEADLINE, Gateway, Identity, TempDir, eventually, skipped};

use crate::health::is_in_rotation as is_up;
use crate::weir;

/// A server whose health can be changed.
struct Patient {
    child: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
    address: String,
}

impl Patient {
    /// `None` where there is no Python with `grpcio-health-checking`.
    fn start(arguments: &[&Path]) -> Option<Patient> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let python: PathBuf = root.join(".cache/python/bin/python");
        let imports = Command::new(&python).args(["-c", "import grpc_health.v1"]).stderr(Stdio::null()).status();
        if !imports.is_ok_and(|status| status.success()) {
            skipped("there is no Python with `grpcio-health-checking`");
            return None;
        }
        let mut command = Command::new(python);
        let command = command.arg(root.join("tests/balancing/health.py")).args(arguments);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("Python starts");
        let orders = child.stdin.take().expect("it is a pipe");
        let mut said = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
        let line = said.next().expect("it says its port").expect("it says text");
        let address = format!("127.0.0.1:{}", line.strip_prefix("port ").expect("it says its port"));
        Some(Patient { child, orders, said, address })
    }

    fn becomes(&mut self, service: &str, status: &str) {
        writeln!(self.orders, "{service} {status}").expect("it listens");
        assert_eq!(self.said.next().expect("it answers").expect("it says text"), "ok");
    }
}

impl Drop for Patient {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const OFTEN: &str = "timeout: 5, healthy: { interval: 50ms, successes: 2 }, \
    unhealthy: { interval: 50ms, http_failures: 2, tcp_failures: 2, timeouts: 1 }";

/// A gateway that asks this server.
fn asking(address: &str, checks: &str, upstream: &str) -> Gateway {
    weir().start(&format!(
        "routes: [{{ uri: /*, upstream: {{ nodes: {{ \"{address}\": 1 }}, {upstream}, \
         checks: {{ active: {{ {checks}, {OFTEN} }} }} }} }}]\n"
    ))
}

fn follows(gateway: &Gateway, patient: &mut Patient, service: &str) {
    for status in ["NOT_SERVING", "UNKNOWN", "SERVICE_UNKNOWN"] {
        patient.becomes(service, status);
        eventually("it is taken out", DEADLINE, || !is_up(gateway, &patient.address));
        patient.becomes(service, "SERVING");
        eventually("it is taken back", DEADLINE, || is_up(gateway, &patient.address));
    }
}

#[test]
fn an_endpoint_is_in_rotation_while_its_server_serves() {
    let Some(mut patient) = Patient::start(&[]) else { return };
    let gateway = asking(&patient.address, "type: grpc", "scheme: grpc");
    follows(&gateway, &mut patient, "-");
}

#[test]
fn a_service_is_asked_about_by_name() {
    let Some(mut patient) = Patient::start(&[]) else { return };
    patient.becomes("shop.Orders", "SERVING");
    let gateway = asking(&patient.address, "type: grpc, grpc_service: shop.Orders", "scheme: grpc");
    follows(&gateway, &mut patient, "shop.Orders");
    // What becomes of others says nothing.
    patient.becomes("-", "NOT_SERVING");
    let healthy = || gateway.metrics().get("weir_health_checks_total{outcome=\"healthy\"}");
    let before = healthy();
    eventually("it is asked on", DEADLINE, || healthy() > before.map(|count| count + 3.0));
    assert!(is_up(&gateway, &patient.address));
    // A service that the server does not know is not served.
    let unknown = asking(&patient.address, "type: grpc, grpc_service: shop.Nothing", "scheme: grpc");
    eventually("it is taken out", DEADLINE, || !is_up(&unknown, &patient.address));
}

#[test]
fn a_server_is_asked_over_tls_and_has_to_prove_who_it_is() {
    let place = TempDir::new();
    let Identity { certificate, key } = Authority::of_tests().identity(&["127.0.0.1"]);
    let (certificate, key) = (place.write("certificate.pem", certificate), place.write("key.pem", key));
    let Some(mut patient) = Patient::start(&[&certificate, &key]) else { return };
    let authority = &Authority::of_tests().certificate;
    let tls = format!("scheme: grpcs, pass_host: node, tls: {{ ca: {authority:?} }}");
    let gateway = asking(&patient.address, "type: grpcs", &tls);
    follows(&gateway, &mut patient, "-");
    let stranger = asking(&patient.address, "type: grpcs, host: b.test", &tls);
    eventually("it is for another user", DEADLINE, || !is_up(&stranger, &patient.address));
}

#[test]
fn a_server_without_the_service_or_without_a_word_is_ill() {
    let Some(patient) = Patient::start(&[Path::new("none")]) else { return };
    let gateway = asking(&patient.address, "type: grpc", "scheme: grpc");
    eventually("UNIMPLEMENTED is not SERVING", DEADLINE, || !is_up(&gateway, &patient.address));
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("it is bound").to_string();
    let gateway = asking(&address, "type: grpc", "scheme: grpc");
    eventually("it has had its time", DEADLINE, || !is_up(&gateway, &address));
}
