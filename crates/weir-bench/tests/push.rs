//! The figures of a run in databases of metrics.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::thread;

use serde_json::Value;
use weir_bench::backend::{BackendServer, Config};
use weir_testkit::{DEADLINE, Program, TempDir, eventually, free_port};

fn backend() -> (BackendServer, String) {
    let backend = BackendServer::start(&Config::default()).expect("a free port");
    let url = format!("http://{}/", backend.addresses()[0]);
    (backend, url)
}

fn load(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-bench"));
    command.args(["load", "-c", "2", "--json", "-"]).args(arguments).output().expect("the program starts")
}

fn curl(arguments: &[&str]) -> Option<String> {
    let output = Command::new("curl").args(["-sS", "-f", "--max-time", "20"]).args(arguments).output();
    let output = output.expect("curl is installed");
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn figures_of_a_run_are_in_prometheus() {
    let Some(mut command) = Program::find("prometheus") else { return };
    let (directory, port) = (TempDir::new(), free_port());
    std::fs::write(directory.path().join("prometheus.yml"), "").expect("the directory is writable");
    command.args([
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        "--web.enable-remote-write-receiver",
        &format!("--web.listen-address=127.0.0.1:{port}"),
    ]);
    let _prometheus = Program::start(command, directory);
    let at = format!("http://127.0.0.1:{port}");
    eventually("Prometheus is ready", DEADLINE, || curl(&[&format!("{at}/-/ready")]).is_some());

    let (_backend, url) = backend();
    let target = format!("{at}/api/v1/write");
    let output = load(&["-d", "2s", "--push", &target, "--push-label", "team=shop", &url]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "every transmission is accepted");
    let result: Value = serde_json::from_slice(&output.stdout).expect("a result");

    let query = |expression: &str| {
        let expression = format!("query={expression}");
        let answer = curl(&["-G", "--data-urlencode", &expression, &format!("{at}/api/v1/query")]).expect("an answer");
        serde_json::from_str::<Value>(&answer).expect("JSON")["data"]["result"].clone()
    };
    let answers = query(r#"weir_load_answers_total{team="shop", job="weir-load"}"#);
    let last: u64 = answers[0]["value"][1].as_str().and_then(|text| text.parse().ok()).expect("a number");
    assert_eq!(Some(last), result["total"]["completed"].as_u64(), "{answers}");
    let samples = query("count_over_time(weir_load_answers_total[1m])");
    let samples: u64 = samples[0]["value"][1].as_str().and_then(|text| text.parse().ok()).expect("a number");
    assert!(samples >= 2, "{samples} transmissions while the load ran and at its end");
    let latency = query("last_over_time(weir_load_latency_seconds[1m])");
    assert_eq!(latency.as_array().map(Vec::len), Some(2), "{latency}");
    let lowest = query("min(min_over_time(weir_load_latency_seconds[1m]))");
    let lowest: f64 = lowest[0]["value"][1].as_str().and_then(|text| text.parse().ok()).expect("a number");
    assert!(lowest > 0.0, "no latency is sent for a time without answers");
    assert_eq!(query("weir_load_answers_per_second"), serde_json::json!([]), "the load has no rate after its end");
}

/// Takes one transmission whole, and returns its connection.
fn transmission(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().expect("a connection");
    let (mut reader, mut length) = (BufReader::new(stream), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line");
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().expect("a number");
        }
        if line.trim().is_empty() {
            break;
        }
    }
    reader.read_exact(&mut vec![0; length]).expect("the body");
    reader.into_inner()
}

fn listener(path: &str) -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}{path}", listener.local_addr().expect("a bound listener has an address"));
    (listener, url)
}

#[test]
fn result_is_there_before_the_last_figures_are_taken() {
    let (_backend, url) = backend();
    let (database, push) = listener("/api/v1/write");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-bench"));
    command.args(["load", "-c", "2", "-n", "50", "--json", "-", "--push", &push, &url]);
    let mut load = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut last = transmission(&database);
    let mut result = String::new();
    BufReader::new(load.stdout.take().expect("it is piped")).read_line(&mut result).expect("a line");
    assert!(result.contains("\"completed\":50"), "{result}");
    last.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").expect("the load still waits");
    drop(last);
    let output = load.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success());
}

#[test]
fn figures_that_a_receiver_refuses_in_an_answer_of_success_have_failed() {
    let (_backend, url) = backend();
    let outcome = |body: &'static str| {
        let (collector, push) = listener("/v1/metrics");
        let answering = thread::spawn(move || {
            let mut stream = transmission(&collector);
            let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).expect("it is read");
        });
        let output = load(&["-n", "50", "--push", &push, &url]);
        answering.join().expect("one transmission came");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let refused = outcome(r#"{"partialSuccess": {"rejectedDataPoints": "6", "errorMessage": "too old"}}"#);
    assert!(refused.contains("1 of 1 transmissions failed, the last one: the receiver refused figures"), "{refused}");
    assert!(refused.contains("too old"), "{refused}");
    for taken in ["", "{}", r#"{"partialSuccess": {"rejectedDataPoints": 0}}"#] {
        assert_eq!(outcome(taken), "", "{taken}");
    }
}

#[test]
fn fault_of_an_option_is_told_before_the_load() {
    let (backend, url) = backend();
    let push = format!("http://127.0.0.1:{}/v1/metrics", free_port());
    let with_user = push.replace("http://", "https://ann:s3cr3t@");
    let cases: [(&[&str], &str); 4] = [
        (&["--push", &with_user], "--push: has a user in the URL"),
        (&["--push", &push, "--push-header", "a b: c"], "--push-header: "),
        (&["--push", &push.replace("http:", "https:"), "--push-cacert", "/nowhere.pem"], "--push-cacert: "),
        (&["--push", "http://no-such-host.invalid/v1/metrics"], "--push: "),
    ];
    for (arguments, wanted) in cases {
        let output = load(&[arguments, &["-n", "5", &url]].concat());
        let problem = String::from_utf8_lossy(&output.stderr);
        assert!(problem.starts_with(&format!("weir load: {wanted}")) && !problem.contains("s3cr3t"), "{problem}");
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{problem}");
    }
    drop(backend);
}

#[test]
fn load_goes_on_where_its_figures_cannot_be_sent() {
    let (_backend, url) = backend();
    let nowhere = format!("http://127.0.0.1:{}/v1/metrics", free_port());
    let output = load(&["-n", "50", "--push", &nowhere, &url]);
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && problem.ends_with("failed, the last one: connect\n"), "{problem}");
    let https = load(&["--push", "https://a/v1/metrics", &url]);
    let refused = String::from_utf8_lossy(&https.stderr);
    assert_eq!(refused, "weir load: --push: an https:// server is verified; add --push-cacert FILE\n");
    assert_eq!(https.status.code(), Some(2));
}
