//! What was acknowledged is there, whatever ends the process.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_testkit::timing::Random;
use weir_testkit::{
    Authority, Client, DEADLINE, Gateway, Signal, TempDir, TlsClient, eventually, on_small_disk, scaled,
};

use crate::api::{ADMIN, Api, admin_addr, file};
use crate::weir;

fn kept_in(directory: &TempDir) -> String {
    format!("{}data_dir: {}\nstore: {{ path: store.redb, history: 100000 }}\n", file(), directory.path().display())
        .replace("path: store.redb", &format!("path: {}", directory.join("store.redb").display()))
}

/// Writes until the process is gone; every write that was acknowledged goes into `acknowledged`, with its revision.
fn write_until_killed(
    gateway: &Gateway,
    kill_after: Duration,
    acknowledged: &mut BTreeMap<String, (u64, u64)>,
    next: &mut u64,
) {
    let mut client = Client::connect(admin_addr(gateway));
    let mut killed = false;
    let begin = Instant::now();
    loop {
        *next += 1;
        let (id, number) = (format!("r{}", *next % 17), *next);
        let body = format!("{{\"uri\":\"/{id}\",\"name\":\"n{number}\",\"plugins\":{{}}}}");
        let length = body.len();
        let request = format!(
            "PUT /apisix/admin/routes/{id} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-KEY: {ADMIN}\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        if client.try_send(&request).is_err() {
            return;
        }
        if !killed && begin.elapsed() >= kill_after {
            // While a write is on its way.
            gateway.signal(Signal::KILL);
            killed = true;
        }
        let Ok(answer) = client.response() else { return };
        assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
        let revision = answer.headers.get("x-weir-revision").and_then(|text| text.parse().ok()).expect("a number");
        acknowledged.insert(id, (number, revision));
    }
}

#[test]
fn kill_9_at_any_instant_loses_nothing_that_was_acknowledged() {
    let directory = TempDir::new();
    let mut acknowledged = BTreeMap::new();
    let (mut next, mut random) = (0, Random::seeded(7));
    for round in 0..scaled(50, 1_000) {
        let mut gateway = weir().start(&kept_in(&directory));
        let mut api = Api::of(&gateway);
        for (id, (number, revision)) in &acknowledged {
            let found = api.get(&format!("routes/{id}"));
            let name = found["value"]["name"].as_str().and_then(|name| name[1..].parse::<u64>().ok()).expect("a name");
            // A write that was not acknowledged may have been made as well.
            assert!(name >= *number && found["modifiedIndex"].as_u64() >= Some(*revision), "round {round}: {found}");
        }
        let history = api.get("history?count=1000");
        let list = history["list"].as_array().expect("a list");
        let numbers: Vec<u64> = list.iter().filter_map(|record| record["revision"].as_u64()).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] == pair[1] + 1), "round {round}: history has a gap: {numbers:?}");
        assert_eq!(history["revision"].as_u64().unwrap_or_default(), numbers.first().copied().unwrap_or_default());
        write_until_killed(&gateway, Duration::from_millis(random.number() % 200), &mut acknowledged, &mut next);
        gateway.wait_exit(DEADLINE);
    }
    assert!(acknowledged.len() == 17 || next < 40, "it has written");
}

#[test]
fn a_damaged_store_is_refused_with_advice_and_left_alone() {
    let directory = TempDir::new();
    let gateway = weir().start(&kept_in(&directory));
    Api::of(&gateway).put("routes/r", r#"{"uri": "/r", "plugins": {"mocking": {"response_example": "r"}}}"#);
    drop(gateway);
    let path = directory.join("store.redb");
    let good = fs::read(&path).expect("a file");
    let damaged = vec![7; 10_000];
    fs::write(&path, &damaged).expect("a disk");
    let mut refused = weir().spawn(&kept_in(&directory));
    assert_eq!(refused.wait_exit(DEADLINE).code(), Some(1));
    assert!(refused.stderr().contains("store.redb cannot be read"), "{}", refused.stderr());
    assert!(refused.stderr().contains("the file was not changed"), "{}", refused.stderr());
    assert_eq!(fs::read(&path).expect("a file"), damaged);
    fs::write(&path, good).expect("a disk");
    let gateway = weir().start(&kept_in(&directory));
    assert_eq!(gateway.get("/r").text(), "r");
    // The copy from this start takes its place.
    drop(gateway);
    let copy = directory.join("store.redb.previous");
    fs::write(&path, &damaged).expect("a disk");
    let mut refused = weir().spawn(&kept_in(&directory));
    assert_eq!(refused.wait_exit(DEADLINE).code(), Some(1));
    assert!(refused.stderr().contains("store.redb.previous is a copy from 2"), "{}", refused.stderr());
    fs::rename(&copy, &path).expect("a file");
    assert_eq!(weir().start(&kept_in(&directory)).get("/r").text(), "r");
}

#[test]
fn a_full_disk_refuses_changes_until_there_is_space_again() {
    let directory = TempDir::new();
    let Some(place) = on_small_disk(env!("CARGO_BIN_EXE_weir"), 8, directory.path()) else { return };
    let gateway =
        Gateway::with_binary(place.path().join("weir")).start(&(kept_in(&directory) + "error_log_level: info\n"));
    let mut api = Api::of(&gateway);
    let route = |text: &str| format!(r#"{{"uri": "/r", "plugins": {{"mocking": {{"response_example": "{text}"}}}}}}"#);
    api.put("routes/r", &route("before"));
    assert_eq!(gateway.metrics().get("weir_store_writable"), Some(1.0));
    // The disk as the process sees it.
    let filler = format!("/proc/{}/root{}/filler", gateway.pid(), directory.path().display());
    let mut file = fs::File::create(&filler).expect("a file");
    while file.write_all(&[7; 4_096]).is_ok() {}
    let large = route(&"x".repeat(100_000));
    let mut refused = 0;
    eventually("a change is refused", DEADLINE, || {
        let answer = api.ask("PUT", "routes/r", "", &large);
        refused += u64::from(answer.status == 503);
        assert!(matches!(answer.status, 200 | 503), "{}", answer.text());
        refused == 3
    });
    let answer = api.ask("PUT", "routes/r", "", &large);
    assert!(answer.text().contains("check the disk"), "{}", answer.text());
    gateway
        .wait_stderr("the failure", |line| line.contains("ERROR the store ") && line.contains("changes are refused: "));
    assert_eq!(gateway.metrics().get("weir_store_writable"), Some(0.0));
    let served = gateway.get("/r").text();
    assert!(served == "before" || served.len() == 100_000, "it serves on");
    let revision = api.get("routes/r")["modifiedIndex"].clone();
    drop(file);
    fs::remove_file(&filler).expect("the file");
    let made = api.put("routes/r", &route("after"));
    assert_eq!(made.status, 200, "there is space again");
    gateway.wait_stderr("its end", |line| line.contains("the store ") && line.contains("can be written again"));
    assert_eq!(gateway.metrics().get("weir_store_writable"), Some(1.0));
    assert_eq!(gateway.get("/r").text(), "after");
    let history = api.get("history?count=1000");
    let numbers: Vec<u64> =
        history["list"].as_array().expect("a list").iter().filter_map(|one| one["revision"].as_u64()).collect();
    assert_eq!(numbers.first().copied(), revision.as_u64().map(|last| last + 1), "a refused change is no revision");
    assert!(numbers.windows(2).all(|pair| pair[0] == pair[1] + 1), "{numbers:?}");
}

#[test]
fn another_binary_takes_the_store_over() {
    let directory = TempDir::new();
    let gateway = weir().start(&kept_in(&directory));
    Api::of(&gateway).put("routes/r", r#"{"uri": "/r", "plugins": {"mocking": {"response_example": "before"}}}"#);
    let before = gateway.pid();
    gateway.signal(Signal::USR2);
    gateway.wait_stderr("that another serves", |line| line.ends_with(&format!("; process {before} drains")));
    assert_eq!(gateway.get("/r").text(), "before");
    let mut api = Api::of(&gateway);
    api.put("routes/r", r#"{"uri": "/r", "plugins": {"mocking": {"response_example": "after"}}}"#);
    assert_eq!(gateway.get("/r").text(), "after");
    assert_eq!(api.get("history")["revision"], 2);
}

#[test]
fn settings_are_those_of_the_file_and_resources_those_of_the_store() {
    let directory = TempDir::new();
    let gateway = weir().start(&kept_in(&directory));
    let mut api = Api::of(&gateway);
    api.put("routes/r", r#"{"uri": "/r", "plugins": {"mocking": {"response_example": "r"}}}"#);
    gateway.rewrite(&format!("{}client_max_uri_size: 300\n", kept_in(&directory)));
    assert_eq!(gateway.get("/r").text(), "r");
    assert_eq!(gateway.get(&format!("/r?{}", "a".repeat(400))).status, 414);
    // A file that is wrong keeps nobody from changing resources.
    gateway.replace_file(&format!("{}client_max_uri_size: nothing\n", kept_in(&directory)));
    eventually("it is refused", DEADLINE, || gateway.status()["configuration"]["last_error"].is_object());
    api.put("routes/s", r#"{"uri": "/s", "plugins": {"mocking": {"response_example": "s"}}}"#);
    assert_eq!(gateway.get("/s").text(), "s");
    // Resources beside a store are refused.
    gateway.replace_file(&format!("{}routes: [{{ uri: /x, plugins: {{}} }}]\n", kept_in(&directory)));
    let told =
        |status: &Value| status["configuration"]["last_error"].to_string().contains("this file contains resources");
    eventually("it is refused", DEADLINE, || told(&gateway.status()));
}

#[test]
fn the_api_speaks_tls_and_asks_for_certificates() {
    let directory = TempDir::new();
    let authority = Authority::of_tests();
    let identity = authority.identity(&["localhost"]);
    directory.write("admin.crt", &identity.certificate);
    directory.write("admin.key", &identity.key);
    directory.write("ca.crt", &authority.certificate);
    let at = |name: &str| directory.join(name).display().to_string();
    let tls = format!("  tls: {{ cert: {}, key: {}, ca: {} }}\n", at("admin.crt"), at("admin.key"), at("ca.crt"));
    let gateway = weir().start(&format!("{}{tls}", file()));
    let address = admin_addr(&gateway);
    let request = format!("GET /apisix/admin/routes HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: {ADMIN}\r\n\r\n");
    let known = TlsClient::known_as(authority, &authority.identity(&["ops"]));
    let answer = Client::connect_tls(address, &known, "localhost").expect("a connection").ask(&request);
    assert_eq!(answer.expect("an answer").status, 200);
    let unknown = Client::connect_tls(address, &TlsClient::trusting(authority), "localhost");
    assert!(unknown.is_err() || unknown.is_ok_and(|mut client| client.ask(&request).is_err()));
}
