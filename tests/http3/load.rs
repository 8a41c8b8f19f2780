//! `weir load` over HTTP/3, on a gateway and on servers that do not answer.

use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, kill_process};
use serde_json::{Value, json};
use weir_testkit::{Answer, Authority, DEADLINE, Gate, Origin, Signal, TempDir, free_port};

use crate::client::NAME;
use crate::{Served, serve, with_workers};

/// The file with the certificates of an authority.
struct Trusted {
    directory: TempDir,
}

impl Trusted {
    fn new(authority: &Authority) -> Trusted {
        let directory = TempDir::new();
        std::fs::write(directory.join("ca.pem"), &authority.certificate).expect("it is written");
        Trusted { directory }
    }

    /// A load on `address` over HTTP/3, with further options in `words`.
    fn command(&self, address: SocketAddr, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["load", "--quiet", "--protocol", "http3", "--connect-to", &address.to_string()]);
        command.arg("--cacert").arg(self.directory.join("ca.pem")).arg(format!("https://{NAME}/path"));
        command.args(words.split_whitespace()).stdin(Stdio::null());
        command
    }

    /// The result of such a load.
    #[track_caller]
    fn load(&self, address: SocketAddr, words: &str) -> LoadOutcome {
        let output = self.command(address, words).args(["--json", "-"]).output().expect("it runs");
        LoadOutcome::of(&output)
    }
}

struct LoadOutcome {
    code: Option<i32>,
    result: Value,
}

impl LoadOutcome {
    #[track_caller]
    fn of(output: &Output) -> LoadOutcome {
        let result = serde_json::from_slice(&output.stdout);
        let result: Value = result.unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let outcome = LoadOutcome { code: output.status.code(), result };
        let all = outcome.count("completed") + outcome.errors().values().sum::<u64>() + outcome.count("missed");
        assert_eq!(outcome.count("due"), all, "every request has one outcome");
        outcome
    }

    fn count(&self, name: &str) -> u64 {
        self.result["total"][name].as_u64().expect("a count")
    }

    fn opened(&self) -> u64 {
        self.result["connections"]["opened"].as_u64().expect("a count")
    }

    /// The causes that occurred.
    fn errors(&self) -> std::collections::BTreeMap<String, u64> {
        let causes = self.result["total"]["errors"].as_object().expect("counts by cause");
        let causes = causes.iter().map(|(cause, count)| (cause.clone(), count.as_u64().expect("a count")));
        causes.filter(|(_, count)| *count > 0).collect()
    }

    #[track_caller]
    fn expect_errors(&self, cause: &str, count: u64) {
        assert_eq!(self.errors(), [(cause.to_owned(), count)].into(), "{}", self.result["connections"]["failed"]);
        assert_eq!((self.count("completed"), self.code), (0, Some(1)));
    }
}

fn trusted(served: &Served) -> Trusted {
    Trusted::new(&served.authority)
}

#[test]
fn load_counts_and_times_what_a_gateway_answers() {
    let origin = Origin::serving(|_| Answer::ok("a body"));
    for pacing in ["", "--rate 2000", "--rate 2000 --poisson"] {
        let served = with_workers(&origin, 2);
        let outcome =
            trusted(&served).load(served.gateway.tls_addr(), &format!("-n 400 -c 4 -t 2 --streams 8 {pacing}"));
        assert_eq!((outcome.code, outcome.count("completed"), outcome.errors().len()), (Some(0), 400, 0), "{pacing}");
        assert_eq!(outcome.result["total"]["statuses"], json!({"200": 400}));
        assert_eq!(outcome.count("bytes_received"), 400 * "a body".len() as u64);
        assert_eq!((outcome.opened(), &outcome.result["connections"]["handshakes"]), (4, &json!(4)));
        assert!(outcome.result["generator"]["in_flight_max"].as_u64().expect("a count") <= 32);
        for name in ["latency", "service_time"] {
            assert!(outcome.result["percentiles_ms"][name]["p99"].as_f64().is_some_and(|ms| ms > 0.0), "{name}");
        }
        let metrics = served.gateway.metrics();
        assert_eq!(metrics.sum("weir_quic_connections_total", &["outcome=\"accepted\""]) as u64, 4);
    }
}

#[test]
fn load_sends_bodies_and_receives_them() {
    let origin = Origin::serving(|request| Answer::ok(&request.body));
    let served = serve(&origin, "");
    let outcome = trusted(&served).load(served.gateway.tls_addr(), "-n 40 -c 2 --streams 4 --data-size 300KiB");
    assert_eq!((outcome.count("completed"), outcome.errors().len()), (40, 0));
    let all = 40 * 300 * 1024;
    assert_eq!((outcome.count("bytes_sent"), outcome.count("bytes_received")), (all, all));
}

#[test]
fn load_checks_that_each_answer_has_the_value_of_its_request() {
    let origin = Origin::serving(|request| Answer::ok(&request.body));
    let served = serve(&origin, "");
    let words =
        "-n 40 -c 2 --streams 4 --var n=seq:1 --data number-${n} --check body=number-${n} --check field:server!*=${n}-";
    let outcome = trusted(&served).load(served.gateway.tls_addr(), words);
    assert_eq!((outcome.code, outcome.count("completed"), outcome.errors().len()), (Some(0), 40, 0));
    let checks = outcome.result["flow"]["checks"].as_array().expect("a list");
    let counts: Vec<_> = checks.iter().map(|check| (&check["passed"], &check["failed"])).collect();
    assert_eq!(counts, [(&json!(40), &json!(0)); 2], "{checks:?}");
    // Numbers of one and of two digits.
    assert_eq!(outcome.count("bytes_received"), 40 * "number-".len() as u64 + 9 + 31 * 2);
    assert!(outcome.result["percentiles_ms"]["first_byte"]["p50"].as_f64() > Some(0.0));
}

#[test]
fn load_takes_an_answer_that_comes_before_its_body_was_sent() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "client_max_body_size: 64KiB\n");
    let outcome = trusted(&served).load(served.gateway.tls_addr(), "-n 10 -c 1 --data-size 4MiB");
    assert_eq!((outcome.count("unexpected"), outcome.errors().len()), (10, 0));
    assert_eq!(outcome.result["total"]["statuses"], json!({"413": 10}));
}

#[test]
fn load_counts_unexpected_statuses() {
    let origin = Origin::serving(|_| Answer::status(503, "busy"));
    let served = serve(&origin, "");
    let outcome = trusted(&served).load(served.gateway.tls_addr(), "-n 20 -c 2");
    assert_eq!((outcome.count("completed"), outcome.count("unexpected")), (20, 20));
    assert_eq!(outcome.result["total"]["statuses"], json!({"503": 20}));
}

#[test]
fn load_takes_another_connection_when_one_says_goodbye() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "keepalive_requests: 10\n");
    let outcome = trusted(&served).load(served.gateway.tls_addr(), "-n 200 -c 2");
    assert_eq!((outcome.count("completed"), outcome.errors().len()), (200, 0));
    assert!((20..=24).contains(&outcome.opened()), "{}", outcome.opened());
}

#[test]
fn load_counts_answers_that_come_too_late() {
    let gate = Gate::new();
    let opener = gate.clone();
    let origin = Origin::serving(move |_| {
        gate.wait();
        Answer::ok("ok")
    });
    let served = serve(&origin, "");
    let outcome = trusted(&served).load(served.gateway.tls_addr(), "-n 6 -c 1 --streams 3 --timeout 300ms");
    opener.open();
    outcome.expect_errors("timeout", 6);
}

#[test]
fn load_on_a_port_without_a_server_is_refused() {
    let trusted = Trusted::new(&Authority::new());
    let nowhere = SocketAddr::from(([127, 0, 0, 1], free_port()));
    trusted.load(nowhere, "-n 3 -c 1").expect_errors("connect", 3);
    let report = trusted.command(nowhere, "-n 1 -c 1").output().expect("it runs");
    let report = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(report.contains("no connection could be opened (does the target listen there?)."), "{report}");
}

#[test]
fn load_on_a_server_that_is_silent_times_out() {
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let address = silent.local_addr().expect("a bound socket has an address");
    let trusted = Trusted::new(&Authority::new());
    trusted.load(address, "-n 2 -c 1 --connect-timeout 200ms").expect_errors("connect_timeout", 2);
}

#[test]
fn load_verifies_the_certificate_if_it_has_an_authority() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "");
    let address = served.gateway.tls_addr();
    let others = Trusted::new(&Authority::new());
    others.load(address, "-n 3 -c 1").expect_errors("tls", 3);
    let mut unverified = Command::new(env!("CARGO_BIN_EXE_weir"));
    unverified.args(["load", "--quiet", "-p", "http3", "-n", "5", "-c", "1", "--json", "-", "--connect-to"]);
    let output = unverified.args([address.to_string(), format!("https://{NAME}/")]).output().expect("it runs");
    assert_eq!(LoadOutcome::of(&output).count("completed"), 5);
}

/// A load that goes on until it is ended.
struct RunningLoad {
    child: Child,
    _trusted: Trusted,
}

impl RunningLoad {
    fn start(served: &Served, words: &str) -> RunningLoad {
        let trusted = trusted(served);
        let mut command = trusted.command(served.gateway.tls_addr(), words);
        command.args(["--duration", "1h", "--json", "-"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        RunningLoad { child: command.spawn().expect("it starts"), _trusted: trusted }
    }

    #[track_caller]
    fn end(self) -> LoadOutcome {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it runs");
        LoadOutcome::of(&self.child.wait_with_output().expect("it is a child of ours"))
    }
}

#[test]
fn load_counts_what_a_server_that_is_killed_leaves_unanswered() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let mut served = serve(&origin, "");
    let load = RunningLoad::start(&served, "-c 2 --streams 4 --timeout 2s");
    origin.wait_requests(200);
    served.gateway.signal(Signal::KILL);
    served.gateway.wait_exit(DEADLINE);
    let outcome = load.end();
    assert!(outcome.count("completed") >= 192, "{}", outcome.count("completed"));
    let errors = outcome.errors();
    let known = ["connect", "reset", "timeout"];
    assert!(!errors.is_empty() && errors.keys().all(|cause| known.contains(&cause.as_str())), "{errors:?}");
}

#[test]
fn load_loses_no_answer_of_a_server_that_drains() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let mut served = serve(&origin, "");
    let load = RunningLoad::start(&served, "-c 2 --streams 4");
    origin.wait_requests(200);
    served.gateway.signal(Signal::TERM);
    assert!(served.gateway.wait_exit(DEADLINE).success());
    let outcome = load.end();
    let errors = outcome.errors();
    assert!(errors.keys().all(|cause| cause == "connect"), "{errors:?}");
}

#[test]
fn load_without_keep_alive_or_without_tls_is_refused() {
    let trusted = Trusted::new(&Authority::new());
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    for (words, hint) in [
        ("--no-keepalive", "keep_alive: HTTP/2 and HTTP/3 keep their connections"),
        ("--tls-resume", "tls.resume: HTTP/3 makes a full handshake for each connection"),
        ("http://127.0.0.1/", "requests[1].url: \"http://127.0.0.1/\" must start with https://"),
    ] {
        let output = trusted.command(nowhere, words).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(hint), "{said}");
    }
}
