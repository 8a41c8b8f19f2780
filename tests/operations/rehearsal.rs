//! `weir rehearse`: an old gateway and the one that its configuration was converted for.
//!
//! The configurations are in `rehearsed/`. Differences are planted in the text that is converted for the new gateway.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use weir_testkit::{
    Answer, Authority, DEADLINE, Gateway, Nginx, Origin, Request, TempDir, TlsServer, eventually, free_port, is_full,
    skipped,
};

use crate::weir;

/// What a rehearsal says.
struct RehearsalOutcome {
    code: Option<i32>,
    report: serde_json::Value,
    errors: String,
}

fn rehearse(log: &str, old: impl Into<String>, new: impl Into<String>, options: &[&str]) -> RehearsalOutcome {
    let directory = TempDir::new();
    let log = directory.write("access.log", log);
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.env("WEIR_ADMIN_KEY", "the-key-of-a-test");
    command.arg("rehearse").arg("--log").arg(log).args([
        "--json",
        "--pace",
        "none",
        "--old",
        &old.into(),
        "--new",
        &new.into(),
    ]);
    if !options.contains(&"--timeout") {
        // A machine may stand still for longer than the usual time.
        command.args(["--timeout", "60"]);
    }
    let Output { status, stdout, stderr } = command.args(options).output().expect("it runs");
    let report = serde_json::from_slice(&stdout).unwrap_or_default();
    RehearsalOutcome { code: status.code(), report, errors: String::from_utf8_lossy(&stderr).into_owned() }
}

impl RehearsalOutcome {
    /// Each cause with the first part of each path.
    fn found(&self) -> BTreeSet<(String, String)> {
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let mut found = BTreeSet::new();
        for cause in self.report["causes"].as_array().into_iter().flatten() {
            for one in cause["differences"].as_array().into_iter().flatten() {
                for shape in one["shapes"].as_array().into_iter().flatten() {
                    let shape = text(&shape["shape"]);
                    let first = shape.split('/').nth(1).unwrap_or_default();
                    found.insert((text(&cause["cause"]), first.split('?').next().unwrap_or_default().to_owned()));
                }
            }
        }
        found
    }

    #[track_caller]
    fn expect(&self, code: i32, planted: &[(&str, &str)]) {
        let planted = planted.iter().map(|(cause, path)| ((*cause).to_owned(), (*path).to_owned())).collect();
        assert_eq!(self.found(), planted, "{:#}\n{}", self.report, self.errors);
        assert_eq!(self.code, Some(code), "{:#}\n{}", self.report, self.errors);
    }

    fn total(&self, name: &str) -> u64 {
        self.report["totals"][name].as_u64().unwrap_or_default()
    }
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// A service in the first or second version. Its answers have numbers, times and nodes that vary.
fn service(is_second: bool) -> Origin {
    let count = AtomicUsize::new(0);
    Origin::serving(move |request: &Request| {
        let number = count.fetch_add(1, Relaxed);
        let path = request.target.split('?').next().unwrap_or_default();
        let node = if number.is_multiple_of(2) { "a" } else { "b" };
        let varying = format!("X-Request-Id: {number:08}\r\nX-Node: {node}\r\nSet-Cookie: visit={number}; Path=/\r\n");
        let json = |body: String| Answer::with(200, &format!("{varying}Content-Type: application/json\r\n"), body);
        match (path, is_second) {
            ("/members", false) => json(format!(r#"{{"id":{number},"name":"ann","mail":"a@b.example"}}"#)),
            ("/members", true) => json(format!(r#"{{"id":"{number}","name":"ann"}}"#)),
            ("/writing", false) => json(r#"{"open":true,"since":2020}"#.to_owned()),
            ("/writing", true) => json(r#"{ "since": 2020, "open": true }"#.to_owned()),
            ("/bytes", _) => Answer::ok(if is_second { [0u8, 1, 2, 3] } else { [0, 1, 2, 4] }),
            ("/empty", true) => Answer::ok(""),
            ("/broken", true) => Answer::raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf").then_close(),
            ("/late", true) => Answer::raw(""),
            ("/length", _) => {
                Answer::raw(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", if is_second { 20 } else { 10 }))
            }
            ("/links", false) => Answer::with(200, "Link: <a>\r\nLink: <b>\r\n", "x"),
            ("/links", true) => Answer::with(200, "Link: <b>\r\nLink: <a>\r\n", "x"),
            _ => json(format!(
                r#"{{"path":"{path}","method":"{}","served":{number},"by":"{node}","seen":["{number}"]}}"#,
                request.method
            )),
        }
    })
}

/// A configuration of `rehearsed/`, and both versions of the service.
struct RehearsedFile {
    first: Origin,
    second: Origin,
    text: String,
}

impl RehearsedFile {
    fn read(name: &str) -> RehearsedFile {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/operations/rehearsed").join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        RehearsedFile { first: service(false), second: service(true), text }
    }

    fn filled(&self, text: &str, port: u16) -> String {
        let (one, two) = (self.first.addr().to_string(), self.second.addr().to_string());
        text.replace("PORT", &port.to_string()).replace("ONE", &one).replace("TWO", &two)
    }

    /// A gateway with the converted text, in which differences are planted.
    fn converted(&self, dialect: &str, planted: &[(&str, &str)]) -> Gateway {
        let mut text = self.text.clone();
        for (before, after) in planted {
            assert!(text.contains(before), "`{before}` is in the file");
            text = text.replace(before, after);
        }
        let text = self.filled(&text, free_port());
        if dialect == "apisix" {
            return weir().start(&format!("listen: [\"127.0.0.1:0\"]\n{text}"));
        }
        let directory = TempDir::new();
        let path = directory.write("original", &text);
        let output =
            Command::new(env!("CARGO_BIN_EXE_weir")).args(["convert", dialect]).arg(path).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        weir().start(&String::from_utf8(output.stdout).expect("text").replace(":8000", "127.0.0.1:0"))
    }
}

/// The line of a combined log.
fn combined(method: &str, target: &str) -> String {
    format!("203.0.113.9 - - [10/Oct/2026:13:55:36 +0200] \"{method} {target} HTTP/1.1\" 200 5 \"-\" \"agent/1\"\n")
}

const PLANTED_IN_SITE: &[(&str, &str)] = &[
    ("return 410", "return 403"),
    ("/new-place", "/other-place"),
    ("301 /folder/", "301 /folder"),
    ("add_header X-Site shop; ", ""),
    ("location /unnamed/ {", "location /unnamed/ { add_header X-New yes;"),
    ("X-Version 1", "X-Version 2"),
    ("default_type text/plain", "default_type text/html"),
    ("gzip on; gzip_min_length 10; gzip_types application/json; ", ""),
    ("max-age=60", "max-age=3600"),
    ("https://app.example", "https://www.example"),
    ("add_header Strict-Transport-Security \"max-age=31536000\"; ", ""),
    ("add_header Set-Cookie \"seen=yes; Path=/\"; ", ""),
    ("; Path=/; Secure", "; Path=/"),
];
const FOUND_IN_SITE: &[(&str, &str)] = &[
    ("status", "retired"),
    ("redirect", "moved"),
    ("trailing-slash", "folder"),
    ("field-missing", "named"),
    ("field-added", "unnamed"),
    ("field-changed", "version"),
    ("content-type", "motto"),
    ("content-encoding", "packed"),
    ("caching", "kept"),
    ("cors", "shared"),
    ("security-fields", "safe"),
    ("cookie", "seen"),
    ("cookie-attributes", "secure"),
];
const PLANTED_IN_SERVICES: &[(&str, &str)] = &[
    ("http://ONE/v1", "http://ONE/v2"),
    ("- name: key-auth\n        config: { key_names: [X-Api-Key] }", "- name: basic-auth"),
    ("minute: 100000", "minute: 200000"),
    ("until May", "until June"),
    ("body: '{\"open\": false}'", "body: not open"),
];
const FOUND_IN_SERVICES: &[(&str, &str)] = &[
    ("body-values", "items"),
    ("authentication", "members"),
    ("rate-limit", "metered"),
    ("body-text", "announced"),
    ("body-kind", "listed"),
];
const PLANTED_IN_ROUTES: &[(&str, &str)] = &[
    ("uri: /members, upstream_id: first", "uri: /members, upstream_id: second"),
    ("uri: /writing, upstream_id: first", "uri: /writing, upstream_id: second"),
    ("uri: /bytes, upstream_id: first", "uri: /bytes, upstream_id: second"),
    ("uri: /empty, upstream_id: first", "uri: /empty, upstream_id: second"),
    ("uri: /broken, upstream_id: first", "uri: /broken, upstream_id: second"),
    ("uri: /late, upstream_id: first", "uri: /late, upstream_id: second"),
    ("uri: /length, upstream_id: first", "uri: /length, upstream_id: second"),
    ("uri: /links, upstream_id: first", "uri: /links, upstream_id: second"),
];
const FOUND_IN_ROUTES: &[(&str, &str)] = &[
    ("body-members", "members"),
    ("body-writing", "writing"),
    ("body-bytes", "bytes"),
    ("body-missing", "empty"),
    ("closed", "broken"),
    ("head-length", "length"),
    ("field-order", "links"),
];

#[test]
fn rehearsal_finds_differences_planted_in_a_site_of_nginx() {
    let file = RehearsedFile::read("site.conf");
    let Some(nginx) = Nginx::start(|port| file.filled(&file.text, port)) else { return skipped("there is no nginx") };
    let new = file.converted("nginx", PLANTED_IN_SITE);
    let targets = [
        "/items/1",
        "/retired",
        "/moved",
        "/folder",
        "/named/1",
        "/unnamed/1",
        "/version/1",
        "/motto",
        "/packed/1",
        "/kept/1",
        "/shared/1",
        "/safe/1",
        "/seen/1",
        "/secure/1",
    ];
    let log: String = targets.iter().map(|target| combined("GET", target)).collect();
    let options = ["--host", "shop.example", "-H", "Accept-Encoding: gzip", "--concurrency", "1"];
    rehearse(&log, url(nginx.addr()), url(new.addr()), &options).expect(1, FOUND_IN_SITE);
}

#[test]
fn rehearsal_finds_differences_planted_in_a_file_of_kong() {
    let file = RehearsedFile::read("services.yml");
    let (old, new) = (file.converted("kong", &[]), file.converted("kong", PLANTED_IN_SERVICES));
    let targets = ["/items/1", "/members", "/metered", "/announced", "/listed"];
    let line = |target: &&str| {
        format!("{{\"request_method\":\"GET\",\"request_uri\":\"{target}\",\"host\":\"api.example\"}}\n")
    };
    let log: String = targets.iter().map(line).collect();
    let found = rehearse(
        &log,
        url(old.addr()),
        url(new.addr()),
        &["--ignore", "content-type", "--ignore", "body-members", "--concurrency", "1"],
    );
    // The answer to a request without credentials is another text as well.
    found.expect(1, &[FOUND_IN_SERVICES, &[("body-values", "members")]].concat());
}

#[test]
fn rehearsal_finds_differences_planted_in_routes_of_apisix() {
    let file = RehearsedFile::read("apisix.yaml");
    let (old, new) = (file.converted("apisix", &[]), file.converted("apisix", PLANTED_IN_ROUTES));
    let entry = |path: &str, method: &str| {
        format!(
            r#"{{"request":{{"method":"{method}","url":"http://api.example/{path}","headers":[]}},"response":{{"status":200}}}}"#
        )
    };
    let paths = ["items/1", "members", "writing", "bytes", "empty", "broken", "links"];
    let mut entries: Vec<String> = paths.iter().map(|path| entry(path, "GET")).collect();
    entries.push(entry("length", "HEAD"));
    let log = format!(r#"{{"log":{{"entries":[{}]}}}}"#, entries.join(","));
    let configuration = new.file().display().to_string();
    let ignored =
        ["--concurrency", "1", "--ignore", "cookie", "--ignore", "field-missing:x-*", "--ignore", "content-type"];
    let found =
        rehearse(&log, url(old.addr()), url(new.addr()), &[&["--explain", &configuration], &ignored[..]].concat());
    found.expect(1, FOUND_IN_ROUTES);
    let text = found.report.to_string();
    assert!(text.contains("\"route\":\"route members\"") && text.contains("\"route\":\"route links\""), "{text}");
    let late = || rehearse("GET http://api.example/late\n", url(old.addr()), url(new.addr()), &["--timeout", "2"]);
    // Where the other gateway has been late as well, the machine has stood still.
    let late = (0..5).map(|_| late()).find(|told| told.total("unanswered_by_old") == 0);
    late.expect("the old gateway answers in time").expect(1, &[("time-out", "late")]);
}

#[test]
fn planted_differences_are_of_twenty_kinds() {
    let all = [FOUND_IN_SITE, FOUND_IN_SERVICES, FOUND_IN_ROUTES, &[("time-out", "late")]].concat();
    let causes: BTreeSet<&str> = all.iter().map(|(cause, _)| *cause).collect();
    assert!(causes.len() >= 20, "{causes:?}");
}

/// Requests for many items, of which the answers vary.
fn items(count: usize) -> String {
    (0..count).map(|number| combined("GET", &format!("/items/{number}?page={number}"))).collect()
}

#[test]
fn equal_gateways_have_no_differences_though_their_answers_vary() {
    let count = if is_full() { 10_000 } else { 1_000 };
    let (site, services) = (RehearsedFile::read("site.conf"), RehearsedFile::read("services.yml"));
    let options = ["--host", "shop.example", "--concurrency", "8"];
    let (old, new) = (services.converted("kong", &[]), services.converted("kong", &[]));
    let alike = rehearse(&items(count), url(old.addr()), url(new.addr()), &options);
    alike.expect(0, &[]);
    assert_eq!((alike.total("compared"), alike.total("unreadable")), (count as u64, 0), "{:#}", alike.report);
    assert!(alike.report["varying"].to_string().contains("x-request-id"), "{:#}", alike.report);
    let Some(nginx) = Nginx::start(|port| site.filled(&site.text, port)) else { return skipped("there is no nginx") };
    let new = site.converted("nginx", &[]);
    let alike = rehearse(&items(count), url(nginx.addr()), url(new.addr()), &options);
    alike.expect(0, &[]);
    assert_eq!(alike.total("compared"), count as u64, "{:#}", alike.report);
}

#[test]
fn errors_of_one_moment_in_the_old_gateway_hide_nothing() {
    let count = AtomicUsize::new(0);
    // The third answer is the first that confirms.
    let old = Origin::serving(move |_| match count.fetch_add(1, Relaxed) {
        2 => Answer::status(503, ""),
        _ => Answer::ok("a"),
    });
    let new = Origin::serving(|_| Answer::status(503, ""));
    let told = rehearse(&items(3), url(old.addr()), url(new.addr()), &["--concurrency", "1"]);
    told.expect(1, &[("status", "items")]);
    assert_eq!((told.total("unsteady_in_old"), told.total("compared")), (1, 2), "{:#}", told.report);
}

#[test]
fn failures_count_in_every_answer_of_the_old_gateway() {
    let count = AtomicUsize::new(0);
    let old = Origin::serving(move |_| match count.fetch_add(1, Relaxed) % 2 {
        0 => Answer::ok("a"),
        _ => Answer::status(503, ""),
    });
    let (_, new) = pair();
    let told = rehearse(&items(100), url(old.addr()), url(new.addr()), &["--concurrency", "1"]);
    assert!(told.report["stopped"].is_string() && told.total("sent") < 20, "{:#}", told.report);
    assert_eq!(told.code, Some(5));
}

#[test]
fn answers_without_end_and_foreign_hosts_are_no_overload() {
    let endless = |request: &Request| {
        Answer::raw(match request.target.starts_with("/events") {
            true => "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 100\r\n\r\ndata: a\n\n",
            false => "HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\nx",
        })
    };
    let (old, new) = (Origin::serving(endless), Origin::serving(endless));
    let log: String = (0..15).map(|number| format!("GET /events/{number}\nGET /large/{number}\n")).collect();
    let told = rehearse(&log, url(old.addr()), url(new.addr()), &[]);
    told.expect(0, &[]);
    assert_eq!((told.total("compared"), told.total("bodies_not_compared")), (30, 30), "{:#}", told.report);

    let late = Origin::serving(|_| Answer::raw(""));
    let log: String = (0..16).map(|number| format!("GET /poll/{number}\n")).collect();
    let told = rehearse(&log, url(late.addr()), url(new.addr()), &["--timeout", "1", "--concurrency", "16"]);
    assert_eq!((told.code, told.total("unanswered_by_old")), (Some(5), 16), "{:#}", told.report);
    assert!(told.report["stopped"].is_null(), "{:#}", told.report);

    let authority = Authority::of_tests();
    let tls = TlsServer::new(&authority.identity(&["shop.example"]));
    let ca = TempDir::new();
    let ca = ca.write("ca.pem", &authority.certificate).display().to_string();
    let secure = Origin::serving_tls(&tls, |_| Answer::ok("a"));
    let named = format!("https://{}", secure.addr());
    let log: String = (0..15).map(|number| format!("GET https://other{number}.example/a\n")).collect();
    let told = rehearse(&format!("{log}GET https://shop.example/a\n"), &*named, &*named, &["--ca", &ca]);
    assert_eq!((told.total("foreign_hosts"), told.total("compared")), (15, 1), "{:#}", told.report);
    assert!(told.report["stopped"].is_null(), "{:#}", told.report);
    assert_eq!(told.code, Some(1), "one of sixteen says little");
}

#[test]
fn unsafe_requests_are_compared_by_structure() {
    let (old, new) = (service(false), service(false));
    let log: String = (0..5).map(|number| format!("POST /orders/{number}\n")).collect();
    rehearse(&log, url(old.addr()), url(new.addr()), &["--unsafe", "--concurrency", "1"]).expect(0, &[]);
    let second = service(true);
    let told = rehearse("POST /members\n", url(old.addr()), url(second.addr()), &["--unsafe"]);
    told.expect(1, &[("body-members", "members")]);
}

#[test]
fn results_are_told_beside_a_late_fault_and_early_ones_send_nothing() {
    let (old, new) = pair();
    let directory = TempDir::new();
    let broken = directory.write("broken.har", "{\"log\": {\"entries\": [").display().to_string();
    let told = rehearse(&items(2), url(old.addr()), url(new.addr()), &["--log", &broken]);
    assert_eq!((told.code, told.total("compared")), (Some(2), 2), "{:#}", told.report);
    assert!(told.errors.contains("HTTP archive is not valid"), "{}", told.errors);

    let (sent, closed) = (new.requests().len(), url(([127, 0, 0, 1], free_port()).into()));
    let tls = TlsServer::new(&Authority::new().identity(&["127.0.0.1"]));
    let foreign = Origin::serving_tls(&tls, |_| Answer::ok("{}"));
    let admin = format!("https://{}", foreign.addr());
    for (options, problem) in [
        (&["--html", "/nowhere/report.html"][..], "/nowhere/report.html cannot be written"),
        (&["--explain", &closed], &*closed),
        // The gateways' option does not hold for the Admin API.
        (&["--insecure", "--explain", &admin], "certificate"),
        (&["--admin-insecure", "--explain", &admin], "not one of Weir's Admin API"),
        (&["--log", "/nowhere.log"], "/nowhere.log cannot be read"),
    ] {
        let told = rehearse(&items(2), url(old.addr()), url(new.addr()), options);
        assert_eq!(told.code, Some(2), "{options:?}: {:#} {}", told.report, told.errors);
        assert!(told.errors.contains(problem), "{options:?}: {}", told.errors);
    }
    assert_eq!(new.requests().len(), sent, "nothing was sent");
}

#[cfg(unix)]
#[test]
fn interrupted_rehearsals_end_at_once_and_tell_what_they_found() {
    let (old, new) = pair();
    let directory = TempDir::new();
    let log = directory.write("access.log", items(2));
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("rehearse").arg("--log").arg(log).args(["--json", "--pace", "0.01/s"]);
    command.args(["--old", &url(old.addr()), "--new", &url(new.addr())]);
    let child = command.stdout(Stdio::piped()).spawn().expect("it runs");
    eventually("the first request is compared", DEADLINE, || old.requests().len() == 2);
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("it runs");
    assert!(interrupted.success());
    let output = child.wait_with_output().expect("it ends");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), &report["stopped"]), (Some(5), &"it was interrupted".into()), "{report:#}");
    assert_eq!(report["totals"]["sent"], 1, "{report:#}");
}

/// Two gateways that answer alike.
fn pair() -> (Origin, Origin) {
    (Origin::serving(|_| Answer::ok("a")), Origin::serving(|_| Answer::ok("a")))
}

#[test]
fn rehearsal_sends_only_safe_methods_once_and_without_credentials() {
    let (old, new) = pair();
    let line = |method: &str| {
        format!(
            "{{\"method\":\"{method}\",\"uri\":\"/a\",\"host\":\"h\",\"request_headers\":{{\"authorization\":\"Bearer x\",\"x-tenant\":\"t\"}}}}\n"
        )
    };
    let log: String = ["GET", "POST", "DELETE", "GET", "HEAD"].map(line).concat();
    let told = rehearse(&log, url(old.addr()), url(new.addr()), &[]);
    told.expect(0, &[]);
    assert_eq!(
        [told.total("other_methods"), told.total("repeated"), told.total("compared")],
        [2, 1, 2],
        "{:#}",
        told.report
    );
    let requests = [old.requests(), new.requests()].concat();
    assert!(requests.iter().all(|request| ["GET", "HEAD"].contains(&request.method.as_str())), "{requests:?}");
    assert!(
        requests.iter().all(|request| !request.headers.has("authorization") && request.headers.has("x-tenant")),
        "{requests:?}"
    );
    assert!(requests.iter().all(|request| request.headers.get("host") == Some("h")), "{requests:?}");

    let told = rehearse(&log, url(old.addr()), url(new.addr()), &["--unsafe", "--with-credentials"]);
    told.expect(0, &[]);
    let posts: Vec<Request> = new.requests().into_iter().filter(|request| request.method == "POST").collect();
    assert_eq!(posts.len(), 1, "{posts:?}");
    assert_eq!(posts[0].headers.get("authorization"), Some("Bearer x"));
    assert_eq!(old.requests().iter().filter(|request| request.method == "DELETE").count(), 1);
}

#[test]
fn rehearsal_ends_when_the_old_gateway_fails_more_than_before() {
    let (_, new) = pair();
    let old = Origin::serving(|_| Answer::status(503, ""));
    let told = rehearse(&items(500), url(old.addr()), url(new.addr()), &["--concurrency", "1"]);
    assert!(
        told.report["stopped"].as_str().is_some_and(|reason| reason.contains("11 of its last")),
        "{:#}",
        told.report
    );
    assert!(told.total("sent") < 20, "{:#}", told.report);
    let logged = items(30).replace(" 200 5 ", " 503 5 ");
    let told = rehearse(&logged, url(old.addr()), url(old.addr()), &[]);
    told.expect(0, &[]);
    let nothing = rehearse(&items(3), url(([127, 0, 0, 1], free_port()).into()), url(new.addr()), &[]);
    assert_eq!((nothing.code, nothing.total("unanswered_by_old")), (Some(5), 3), "{:#}", nothing.report);
}

#[test]
fn rehearsal_over_tls_verifies_the_certificate_of_the_host() {
    let authority = Authority::of_tests();
    let trusted = TlsServer::new(&authority.identity(&["shop.example"]));
    let strange = TlsServer::new(&Authority::new().identity(&["shop.example"]));
    let [old, new, other] = [&trusted, &trusted, &strange].map(|tls| Origin::serving_tls(tls, |_| Answer::ok("a")));
    let directory = TempDir::new();
    let ca = directory.write("ca.pem", &authority.certificate).display().to_string();
    let secure = |origin: &Origin| format!("https://{}", origin.addr());
    let ask =
        |new: &Origin, options: &[&str]| rehearse("GET https://shop.example/a\n", secure(&old), secure(new), options);
    ask(&new, &["--ca", &ca]).expect(0, &[]);
    ask(&other, &["--ca", &ca]).expect(1, &[("tls", "a")]);
    ask(&other, &["--insecure"]).expect(0, &[]);
    let named = format!("https://shop.example:{}", old.addr().port());
    let resolved = format!("shop.example:{}:127.0.0.1", old.addr().port());
    rehearse("GET /a\n", named, secure(&new), &["--ca", &ca, "--resolve", &resolved]).expect(0, &[]);
}

#[test]
fn rehearsal_refuses_what_it_cannot_use() {
    let (old, new) = pair();
    for (log, options, problem) in [
        ("GET /a\n", &["--speed", "2"][..], "`--speed` needs `--pace recorded`"),
        ("GET /a\n", &["--host", "http://a/"], "is not a host"),
        ("GET /a\n", &["--ignore", "colour"], "`colour` is no cause"),
        ("GET /a\n", &["--explain", "/nowhere.yaml"], "/nowhere.yaml"),
        ("{\"log\": {\"entries\": [", &[], "HTTP archive is not valid"),
    ] {
        let told = rehearse(log, url(old.addr()), url(new.addr()), options);
        assert!(
            told.code == Some(2) && told.errors.contains(problem),
            "{log} {options:?}: {:?} {}",
            told.code,
            told.errors
        );
    }
    let path = rehearse("GET /a\n", format!("{}/base", url(old.addr())), url(new.addr()), &[]);
    assert!(path.code == Some(2) && path.errors.contains("has a path"), "{}", path.errors);
    assert!(old.requests().is_empty() && new.requests().is_empty(), "nothing was sent");
    let none = rehearse("hello\n\u{1}\n", url(old.addr()), url(new.addr()), &[]);
    assert_eq!((none.code, none.total("unreadable")), (Some(5), 2), "{:#}", none.report);
}

#[test]
fn rehearsal_of_all_lines_keeps_order_sample_and_limit() {
    let (old, new) = pair();
    let options = ["--all", "--concurrency", "1", "--sample", "1/2", "--limit", "3"];
    let told = rehearse(&(items(10) + &items(10)), url(old.addr()), url(new.addr()), &options);
    told.expect(0, &[]);
    assert_eq!(new.targets(), ["/items/0?page=0", "/items/2?page=2", "/items/4?page=4"]);
    let repeated = rehearse(&items(1).repeat(4), url(old.addr()), url(new.addr()), &["--all"]);
    assert_eq!(repeated.total("compared"), 4, "{:#}", repeated.report);
}

#[test]
fn reports_of_rehearsals_are_a_text_and_a_page() {
    let (old, new) = (Origin::serving(|_| Answer::with(200, "X-A: 1\r\n", "a")), Origin::serving(|_| Answer::ok("a")));
    let directory = TempDir::new();
    let log = directory.write("list", "GET http://shop.example/a?token=abc\n");
    let page = directory.path().join("report.html");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("rehearse").arg("--log").arg(log).args([
        "--old",
        &url(old.addr()),
        "--new",
        &url(new.addr()),
        "--with-credentials",
        "--html",
    ]);
    let output = command.arg(&page).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("The gateways answered 1 of 1 compared requests differently."), "{text}");
    assert!(
        text.contains("Field missing [field-missing]") && text.contains("as GET shop.example/a?token=***"),
        "{text}"
    );
    let page = std::fs::read_to_string(page).expect("it is written");
    assert!(page.starts_with("<!doctype html>") && page.contains("Field missing") && !page.contains("abc"), "{page}");
    assert!(!page.contains("<script") && !page.contains("src="), "{page}");
}
