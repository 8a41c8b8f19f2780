//! The figures of a run in databases of metrics.

use std::process::{Command, Output};

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
    let latency = query("weir_load_latency_seconds");
    assert_eq!(latency.as_array().map(Vec::len), Some(2), "{latency}");
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
