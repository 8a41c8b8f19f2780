//! Sessions of browsers: log in, what a session may, and its end.

use std::net::SocketAddr;

use serde_json::{Value, json};
use weir_testkit::{Authority, Client, DEADLINE, Response, TlsClient, eventually_some, skipped};

use crate::api::{ADMIN, Api, EDITOR, VIEWER, admin_addr, file};
use crate::weir;

/// A browser with a session.
pub(crate) struct Browser {
    client: Client,
    pub token: String,
    pub cookie: String,
    /// What the log-in answered.
    pub told: Value,
}

#[track_caller]
pub(crate) fn log_in(address: SocketAddr, key: &str) -> Browser {
    let mut client = Client::connect(address);
    let answer = send(&mut client, "POST", "/weir/v1/session", "", &json!({ "key": key }).to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let set = answer.headers.get("set-cookie").expect("a cookie").to_owned();
    let told: Value = serde_json::from_str(&answer.text()).expect("JSON");
    let token = told["token"].as_str().expect("a token").to_owned();
    let cookie = set.split(';').next().expect("a pair").to_owned();
    Browser { client, token, cookie, told }
}

impl Browser {
    #[track_caller]
    pub(crate) fn ask(&mut self, method: &str, path: &str, fields: &str, body: &str) -> Response {
        let fields = format!("X-Weir-Session: {}\r\nCookie: {}\r\n{fields}", self.token, self.cookie);
        send(&mut self.client, method, path, &fields, body)
    }

    #[track_caller]
    pub(crate) fn get(&mut self, path: &str) -> Value {
        let answer = self.ask("GET", path, "", "");
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        serde_json::from_str(&answer.text()).expect("JSON")
    }

    /// Begins a stream, and returns the client to read its chunks from.
    #[track_caller]
    fn stream(&mut self, address: SocketAddr, path: &str) -> Client {
        let mut client = Client::connect(address);
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Weir-Session: {}\r\nCookie: {}\r\n\r\n",
            self.token, self.cookie
        ));
        let head = client.response_head("GET").expect("a head");
        assert_eq!(head.status, 200);
        client
    }
}

#[track_caller]
fn send(client: &mut Client, method: &str, path: &str, fields: &str, body: &str) -> Response {
    let host = if fields.contains("Host:") { "" } else { "Host: 127.0.0.1\r\n" };
    let length = body.len();
    let request = format!("{method} {path} HTTP/1.1\r\n{host}{fields}Content-Length: {length}\r\n\r\n{body}");
    client.ask(request).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

#[test]
fn a_session_stands_for_its_key_until_log_out() {
    let gateway = weir().start(&file());
    let mut browser = log_in(admin_addr(&gateway), EDITOR);
    let (token, cookie) = (browser.token.clone(), browser.cookie.clone());
    assert!(token.len() == 64 && cookie.starts_with("__Host-weir=") && !cookie.contains(&token));
    for (name, expected) in [
        ("name", json!("ed")),
        ("role", json!("editor")),
        ("scopes", json!([])),
        ("mode", json!("embedded")),
        ("can_write", json!(true)),
        ("can_tail", json!(true)),
        ("can_rollback", json!(false)),
        ("version", json!(env!("CARGO_PKG_VERSION"))),
        ("pid", json!(gateway.pid())),
    ] {
        assert_eq!(browser.told[name], expected, "{name}");
    }
    let told = browser.get("/weir/v1/session");
    assert_eq!((&told["name"], told.get("token")), (&json!("ed"), None), "the token is told once");
    let lasts_ms = told["expires_ms"].as_u64().zip(told["now_ms"].as_u64()).map(|(end, now)| end - now);
    assert!(lasts_ms.is_some_and(|ms| ms > 7 * 3_600_000 && ms <= 8 * 3_600_000), "{told}");

    let put = browser.ask("PUT", "/apisix/admin/routes/r", "", r#"{"uri": "/r", "plugins": {}}"#);
    assert_eq!(put.status, 201, "{}", put.text());
    assert_eq!(browser.get("/apisix/admin/routes")["total"], 1);
    assert_eq!(browser.get("/weir/v1/session")["revision"], 1);
    assert_eq!(browser.ask("PUT", "/apisix/admin/secrets/vault/1", "", "{}").status, 403, "as the key");

    let gone = browser.ask("DELETE", "/weir/v1/session", "", "");
    assert_eq!(gone.status, 204);
    assert!(gone.headers.get("set-cookie").is_some_and(|set| set.contains("Max-Age=0")), "{:?}", gone.headers);
    assert_eq!(browser.ask("GET", "/apisix/admin/routes", "", "").status, 401);
    assert_eq!(browser.ask("DELETE", "/weir/v1/session", "", "").status, 204, "it is over already");
}

#[test]
fn neither_secret_is_worth_anything_alone() {
    let gateway = weir().start(&file());
    let address = admin_addr(&gateway);
    let (one, two) = (log_in(address, ADMIN), log_in(address, VIEWER));
    let client = &mut Client::connect(address);
    for fields in [
        format!("Cookie: {}\r\n", one.cookie),
        format!("X-Weir-Session: {}\r\n", one.token),
        format!("X-Weir-Session: {}\r\nCookie: {}\r\n", one.token, two.cookie),
        format!("X-Weir-Session: {}\r\nCookie: {}\r\n", two.token, one.cookie),
        format!("X-Weir-Session: \r\nCookie: {}\r\n", one.cookie),
        // A wrong session is not made good by a key: the page must notice.
        format!("X-Weir-Session: x\r\nX-API-KEY: {ADMIN}\r\n"),
    ] {
        for path in ["/apisix/admin/routes", "/weir/v1/session", "/weir/v1/status"] {
            assert_eq!(send(client, "GET", path, &fields, "").status, 401, "{path} {fields}");
        }
    }
    let fields = format!("Cookie: a=b; {}\r\nX-Weir-Session: {}\r\n", two.cookie, two.token);
    assert_eq!(send(client, "GET", "/apisix/admin/routes", &fields, "").status, 200);
}

#[test]
fn a_log_in_ends_the_session_that_it_replaces() {
    let gateway = weir().start(&file());
    let mut browser = log_in(admin_addr(&gateway), VIEWER);
    let again = browser.ask("POST", "/weir/v1/session", "", &json!({ "key": ADMIN }).to_string());
    assert_eq!(again.status, 200);
    assert!(!again.text().contains(&browser.token), "a fixed session is not taken over");
    assert_eq!(browser.ask("GET", "/weir/v1/session", "", "").status, 401);
}

#[test]
fn pages_of_other_origins_have_no_session() {
    let gateway = weir().start(&format!("{}  origins: [\"http://friend.example\"]\n", file()));
    let address = admin_addr(&gateway);
    let browser = log_in(address, ADMIN);
    let client = &mut Client::connect(address);
    let own = format!("X-Weir-Session: {}\r\nCookie: {}\r\n", browser.token, browser.cookie);
    let log_in = json!({ "key": ADMIN }).to_string();
    for (fields, status) in [
        ("Sec-Fetch-Site: same-origin\r\nOrigin: http://127.0.0.1\r\n", 200),
        ("Sec-Fetch-Site: none\r\n", 200),
        ("Sec-Fetch-Site: same-site\r\n", 403),
        ("Sec-Fetch-Site: cross-site\r\n", 403),
        ("Origin: null\r\n", 403),
        ("Origin: http://127.0.0.1:81\r\n", 403),
        ("Origin: https://127.0.0.1\r\n", 403),
        ("Origin: http://friend.example\r\n", 403),
        ("Host: rebound.example\r\n", 421),
        ("Host: localhost\r\n", 200),
    ] {
        let all = format!("{own}{fields}");
        assert_eq!(send(client, "GET", "/apisix/admin/routes", &all, "").status, status, "{fields}");
        let answer = send(client, "POST", "/weir/v1/session", fields, &log_in);
        assert_eq!(answer.status, status, "log in with {fields}: {}", answer.text());
        // No setting helps, and the advice names none.
        let helps = "`admin.origins` does not change that: open the console at the address of the Admin API";
        assert_eq!(answer.text().contains(helps), status == 403, "{fields}: {}", answer.text());
    }
}

#[test]
fn keys_do_not_cross_a_network_in_the_clear() {
    let authority = Authority::new();
    let identity = authority.identity(&["gw.example"]);
    let settings = file().replace("127.0.0.1:0", "0.0.0.0:0");
    let Some(outside) = outside_address() else { return skipped("this machine has loopback only") };
    let log_in = json!({ "key": ADMIN }).to_string();

    let plain = weir().start(&settings);
    let mut client = Client::connect(SocketAddr::new(outside, admin_addr(&plain).port()));
    let host = format!("Host: {outside}\r\n");
    let refused = send(&mut client, "POST", "/weir/v1/session", &host, &log_in);
    let told: Value = serde_json::from_str(&refused.text()).expect("JSON");
    assert_eq!((refused.status, &told["reason"]), (403, &json!("insecure")), "{told}");
    let hint = send(&mut client, "GET", "/weir/v1/session/hint", &host, "");
    let hint: Value = serde_json::from_str(&hint.text()).expect("JSON");
    assert_eq!(hint, json!({ "secure": false, "key_file": null, "tokens": false }));
    assert_eq!(
        send(&mut client, "GET", "/apisix/admin/routes", &format!("{host}X-API-KEY: {ADMIN}\r\n"), "").status,
        200
    );

    let tls = format!("{settings}  tls: {{ cert: gw.crt, key: gw.key }}\n  hosts: [gw.example]\n");
    let secure = weir().file("gw.crt", &identity.certificate).file("gw.key", &identity.key).start(&tls);
    let address = SocketAddr::new(outside, admin_addr(&secure).port());
    let mut client =
        Client::connect_tls(address, &TlsClient::trusting(&authority), "gw.example").expect("a connection");
    let answer =
        send(&mut client, "POST", "/weir/v1/session", "Host: gw.example\r\nOrigin: https://gw.example\r\n", &log_in);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let other =
        send(&mut client, "POST", "/weir/v1/session", "Host: gw.example\r\nOrigin: http://gw.example\r\n", &log_in);
    assert_eq!(other.status, 403, "{}", other.text());
}

/// An address of this machine that is not a loopback address.
fn outside_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    // Sends nothing: the kernel only chooses the address.
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

#[test]
fn guesses_are_limited_and_right_keys_are_not_kept_out_by_them() {
    let gateway = weir().start(&file());
    let address = admin_addr(&gateway);
    for _ in 0..25 {
        log_in(address, VIEWER);
    }
    let client = &mut Client::connect(address);
    let wrong = json!({ "key": "a-key-that-nobody-has" }).to_string();
    let statuses: Vec<u16> = (0..20).map(|_| send(client, "POST", "/weir/v1/session", "", &wrong).status).collect();
    assert_eq!(statuses, [401; 20]);
    // One more is allowed every six seconds.
    let refused = eventually_some("a refused log-in", DEADLINE, || {
        let answer = send(client, "POST", "/weir/v1/session", "", &wrong);
        (answer.status == 429).then_some(answer)
    });
    assert!(refused.headers.get("retry-after").is_some_and(|wait| wait.parse::<u64>().is_ok()));
    for (body, status) in [("", 400), ("{}", 400), (r#"{"key": 7}"#, 400), (r#"{"bearer": "x"}"#, 400)] {
        let answer = send(client, "POST", "/weir/v1/session", "", body);
        assert!(matches!(answer.status, 429) || answer.status == status, "{body}: {}", answer.text());
    }
    log_in(address, VIEWER);
}

#[test]
fn log_in_and_log_out_are_in_the_audit_log() {
    let gateway = weir().start(&format!("{}  audit: {{ path: audit.log }}\n", file()));
    let address = admin_addr(&gateway);
    let mut browser = log_in(address, EDITOR);
    browser.ask("DELETE", "/weir/v1/session", "", "");
    send(&mut Client::connect(address), "POST", "/weir/v1/session", "", r#"{"key": "a-key-that-nobody-has"}"#);
    let lines = eventually_some("three lines", DEADLINE, || {
        let text = std::fs::read_to_string(gateway.directory().join("audit.log")).ok()?;
        let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (lines.len() == 3).then_some(lines)
    });
    let told =
        |line: &Value| [&line["method"], &line["who"], &line["outcome"]].map(|text| text.as_str().map(str::to_owned));
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(told(&lines[0]), [some("POST"), some("ed"), some("accepted")]);
    assert_eq!(told(&lines[1]), [some("DELETE"), some("ed"), some("accepted")]);
    assert_eq!(told(&lines[2]), [some("POST"), None, some("refused")]);
    let text = lines.iter().map(Value::to_string).collect::<String>();
    assert!(!text.contains(&browser.token) && !text.contains(EDITOR), "{text}");
}

#[test]
fn without_the_console_nobody_logs_in() {
    let gateway = weir().start(&file().replacen("admin:\n", "admin:\n  console: false\n", 1));
    let client = &mut Client::connect(admin_addr(&gateway));
    let answer = send(client, "POST", "/weir/v1/session", "", &json!({ "key": ADMIN }).to_string());
    assert_eq!(answer.status, 401, "the path needs a key like any other");
    let mut api = Api::of(&gateway);
    assert_eq!(api.ask("POST", "/weir/v1/session", "", "{}").status, 404);
    assert_eq!(api.ask("GET", "/weir/v1/status", "", "").status, 200, "tools have the other pages");
}

#[test]
fn the_state_of_the_node_needs_a_key_and_the_whole_node() {
    let settings = file().replace(
        "role: viewer }\n",
        "role: viewer }\n  - { name: part, key: the-key-of-a-part, role: editor, scopes: [{ kinds: [routes] }] }\n",
    );
    let gateway = weir().start(&settings);
    let address = admin_addr(&gateway);
    let client = &mut Client::connect(address);
    for path in ["status", "metrics", "policies", "records", "certificates", "metrics/history", "tail", "events"] {
        let path = format!("/weir/v1/{path}");
        assert_eq!(send(client, "GET", &path, "", "").status, 401, "{path}");
        assert_eq!(Api::with_key(address, "the-key-of-a-part").ask("GET", &path, "", "").status, 403, "{path}");
        let is_stream = path.ends_with("tail") || path.ends_with("events");
        if !is_stream {
            assert_eq!(log_in(address, VIEWER).ask("GET", &path, "", "").status, 200, "{path}");
        }
        assert!(matches!(Api::with_key(address, ADMIN).ask("POST", &path, "", "").status, 405), "{path}");
    }
    let mut viewer = log_in(address, VIEWER);
    assert_eq!(viewer.ask("GET", "/weir/v1/tail", "", "").status, 403, "it shows the addresses of clients");
    assert_eq!(log_in(address, EDITOR).ask("GET", "/weir/v1/tail?vars=x", "", "").status, 400);
    let status = viewer.get("/weir/v1/status");
    assert_eq!((&status["status"], &status["pid"]), (&json!("ok"), &json!(gateway.pid())));
    assert!(viewer.ask("GET", "/weir/v1/metrics", "", "").text().contains("weir_http_requests_total"));
}

#[test]
fn large_answers_are_compressed_for_who_accepts_it() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let plain = api.ask("GET", "plugins?all=true", "", "");
    for coding in ["br", "gzip"] {
        let fields = format!("Accept-Encoding: {coding}\r\n");
        let small = api.ask("GET", "plugins?all=true", &fields, "");
        assert_eq!(small.headers.get("content-encoding"), Some(coding));
        assert!(small.body.len() * 3 < plain.body.len(), "{} of {}", small.body.len(), plain.body.len());
        assert!(small.headers.get("vary").is_some_and(|vary| vary.contains("Accept-Encoding")));
        assert_eq!(api.ask("GET", "routes", &fields, "").headers.get("content-encoding"), None, "it is short");
    }
    let mut gzip = String::new();
    let small = api.ask("GET", "plugins?all=true", "Accept-Encoding: gzip\r\n", "");
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&*small.body), &mut gzip).expect("gzip");
    assert_eq!(gzip, plain.text());
}

#[test]
fn a_stream_of_figures_ends_with_its_session() {
    let gateway = weir().start(&file());
    let address = admin_addr(&gateway);
    let mut browser = log_in(address, VIEWER);
    let mut stream = browser.stream(address, "/weir/v1/events");
    let frame: Value = serde_json::from_str(&stream.text_to("\n").expect("a frame")).expect("JSON");
    assert_eq!((&frame["type"], &frame["step_ms"]), (&json!("frame"), &json!(1_000)), "{frame}");
    assert_eq!(frame["revision"], gateway.revision().expect("a revision"));
    for name in ["requests_per_second", "memory_bytes", "connections", "cpu_cores", "p99_ms"] {
        assert!(frame["values"].get(name).is_some(), "{name}: {frame}");
    }
    assert!(frame["values"]["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{frame}");
    let next: Value = serde_json::from_str(&stream.text_to("\n").expect("a frame")).expect("JSON");
    assert!(next["at_ms"].as_u64() > frame["at_ms"].as_u64(), "{next}");
    let mut tail = log_in(address, EDITOR);
    let mut requests = tail.stream(address, "/weir/v1/tail");
    browser.ask("DELETE", "/weir/v1/session", "", "");
    tail.ask("DELETE", "/weir/v1/session", "", "");
    let last = loop {
        let line: Value = serde_json::from_str(&stream.text_to("\n").expect("a line")).expect("JSON");
        if line["type"] != "frame" {
            break line;
        }
    };
    assert_eq!(last, json!({ "type": "ended", "reason": "session" }));
    assert!(stream.chunk().is_ok_and(|chunk| chunk.is_empty()), "the stream is over");
    let last: Value = serde_json::from_str(&requests.text_to("\n").expect("a line")).expect("JSON");
    assert_eq!(last, json!({ "ended": "the session or the token has ended" }));
}

#[test]
fn the_history_of_figures_grows_second_by_second() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let history = eventually_some("two seconds of history", DEADLINE, || {
        let history = api.get("/weir/v1/metrics/history");
        (history["series"]["connections"].as_array().map_or(0, Vec::len) >= 2).then_some(history)
    });
    assert_eq!(history["step_ms"], 1_000);
    let lengths: Vec<usize> =
        history["series"].as_object().expect("a map").values().map(|one| one.as_array().map_or(0, Vec::len)).collect();
    assert!(lengths.iter().all(|length| *length == lengths[0]), "{history}");
    assert_eq!(history["series"]["requests_per_second"][0], 0);
    assert_eq!(history["series"]["p99_ms"][0], Value::Null, "there was no request");
    assert_eq!(api.get("/weir/v1/metrics/history?range=1h")["step_ms"], 10_000);
    assert_eq!(api.get("/weir/v1/metrics/history?by=route")["routes"], json!({}));
    assert_eq!(api.ask("GET", "/weir/v1/metrics/history?range=1d", "", "").status, 400);
}
