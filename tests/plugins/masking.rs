//! What `data-mask` hides, and credentials, in every byte that leaves the process or lies in a spool.

use std::fs;
use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::path::Path;
use std::thread;

use serde_json::Value;
use weir_testkit::{Answer, DEADLINE, Gateway, Origin, TempDir, eventually};

const MASK: &str = "{ request: [{ type: query, name: q, action: replace, value: shown }, \
    { type: header, name: X-Own, action: remove }, \
    { type: body, body_format: json, name: '$..pin', action: replace, value: shown }, \
    { type: body, body_format: urlencoded, name: pin, action: replace, value: shown }] }";
const BODIES: &str = "batch_max_size: 1, include_req_body: true, max_req_body_bytes: 400";

/// Whether a secret is in `bytes`, in any form in which a record could show it.
fn has_secret(bytes: &[u8]) -> bool {
    // The second is the base64 of `jack:secret`, and what follows of `secret` at each place in a base64 group.
    ["secret", "amFjazpzZWNyZXQ=", "c2VjcmV", "NlY3Jld", "zZWNyZX"]
        .iter()
        .any(|secret| bytes.windows(secret.len()).any(|window| window == secret.as_bytes()))
}

fn files_below(place: &Path, contents: &mut Vec<Vec<u8>>) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        match entry.path().is_dir() {
            true => files_below(&entry.path(), contents),
            false => contents.extend(fs::read(entry.path())),
        }
    }
}

/// Every place of a request that can hold a secret, in bodies that can be masked and in some that cannot.
fn requests() -> Vec<String> {
    let fields = "Authorization: Basic amFjazpzZWNyZXQ=\r\nCookie: a=secret\r\nX-Own: secret\r\nX-Key: secret\r\nReferer: http://h/?q=secret&apikey=secret\r\n";
    let long = format!("{{\"pad\": \"{}\", \"pin\": \"secret\"}}", "x".repeat(500));
    let cut = format!("{{\"pin\": \"secret\", \"pad\": \"{}\"}}", "x".repeat(500));
    let bodies = [
        ("application/json", r#"{"pin": "secret", "l": [{"p\u0069n": {"deep": "secret"}}], "kept": 1}"#),
        ("application/json", r#"{"pin": "secret""#),
        ("application/json", long.as_str()),
        ("application/json", cut.as_str()),
        ("application/x-www-form-urlencoded", "a=1&p%69n=secret&pin=secret"),
        ("application/x-www-form-urlencoded", r#"{"pin": "secret"}"#),
        ("application/octet-stream", "\u{1}\u{fffd}secret"),
    ];
    let target = "/a?q=secret&%71=secret&apikey=secret&b=2";
    let request = |(media_type, body): &(&str, &str)| {
        format!(
            "POST {target} HTTP/1.1\r\nHost: h\r\n{fields}Content-Type: {media_type}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    bodies.iter().map(request).collect()
}

#[test]
fn p30_no_secret_leaves_the_process_or_lies_in_a_spool() {
    let (origin, data) = (Origin::serving(|_| Answer::ok("ok")), TempDir::new());
    let http = Origin::serving(|_| Answer::ok(""));
    // Never answers well: its records stay in the spool.
    let down = Origin::serving(|_| Answer::status(503, ""));
    let (tcp, udp) =
        (TcpListener::bind("127.0.0.1:0").expect("a port"), UdpSocket::bind("127.0.0.1:0").expect("a port"));
    udp.set_read_timeout(Some(DEADLINE)).expect("it can have one");
    let text = format!(
        "data_dir: {data}
consumers: [{{ username: jack, plugins: {{ key-auth: {{ key: secret }} }} }}]
global_rules:
  - id: 1
    plugins:
      udp-logger: {{ host: 127.0.0.1, port: {udp}, {BODIES} }}
routes:
  - uri: /a
    plugins:
      key-auth: {{ header: X-Key }}
      data-mask: {MASK}
      http-logger: {{ uri: \"http://{http}/\", {BODIES} }}
      tcp-logger: {{ host: 127.0.0.1, port: {tcp}, {BODIES} }}
      loki-logger: {{ endpoint_addrs: [\"http://{down}\"], spool: {{}}, {BODIES} }}
      file-logger: {{ path: {data}/log, include_req_body: true, max_req_body_bytes: 400 }}
    upstream: {{ nodes: {{ \"{origin}\": 1 }}, type: roundrobin }}
",
        data = data.path().display(),
        udp = udp.local_addr().expect("bound").port(),
        tcp = tcp.local_addr().expect("bound").port(),
        http = http.addr(),
        down = down.addr(),
        origin = origin.addr(),
    );
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&text);
    let received = thread::spawn(move || {
        let mut bytes = Vec::new();
        tcp.accept().expect("the gateway connects").0.read_to_end(&mut bytes).map(|_| bytes)
    });
    let requests = requests();
    for request in &requests {
        assert_eq!(gateway.client().ask(request.clone()).expect("an answer").status, 200);
        // Refused before `data-mask` has its turn.
        let refused = request.replace("X-Key: secret", "X-Key: secret2");
        assert_eq!(gateway.client().ask(refused).expect("an answer").status, 401);
    }
    assert!(has_secret(&origin.requests()[0].body), "what goes upstream is not masked");
    let all = 2 * requests.len();
    let mut datagram = vec![0; 1 << 16];
    for _ in 0..all {
        let length = udp.recv(&mut datagram).expect("a datagram for each exchange");
        assert!(!has_secret(&datagram[..length]), "{}", String::from_utf8_lossy(&datagram[..length]));
    }
    eventually("all have been posted", DEADLINE, || http.requests().len() == all);
    let posted: Vec<Value> =
        http.requests().iter().map(|sent| serde_json::from_slice(&sent.body).expect("JSON")).collect();
    assert!(posted.iter().any(|record| record["request"]["body"].as_str().is_some_and(|body| body.contains("kept"))));
    assert!(posted.iter().any(|record| record["request"]["body_omitted"].is_string()));
    let log = || fs::read(data.path().join("log")).unwrap_or_default();
    eventually("all are in the file", DEADLINE, || log().iter().filter(|&&byte| byte == b'\n').count() == all);
    let in_spool = || {
        let report: Value = serde_json::from_slice(&gateway.ask_status("/records").body).expect("JSON");
        report["sinks"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|sink| sink["pending"]["spool"]["records"].as_u64())
            .sum::<u64>()
    };
    // Memory comes first; what follows while the sink lags goes through the disk.
    eventually("records lie in the spool", DEADLINE, || {
        requests.iter().for_each(|request| drop(gateway.client().ask(request.clone()).expect("an answer")));
        in_spool() > 0
    });
    drop(gateway);
    let tcp = received.join().expect("no panic").expect("bytes");
    let mut contents = vec![tcp, log()];
    contents.extend(http.requests().into_iter().chain(down.requests()).map(|sent| sent.body.to_vec()));
    files_below(&data.path().join("records"), &mut contents);
    assert!(contents.iter().map(Vec::len).sum::<usize>() > 10_000, "something was written");
    for bytes in contents {
        assert!(!has_secret(&bytes), "{}", String::from_utf8_lossy(&bytes));
    }
}
