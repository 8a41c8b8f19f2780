//! Loggers of services that have protocols of their own, against receivers that speak them.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rsa::KeyPair;
use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use aws_lc_rs::{digest, hmac};
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use weir_testkit::{
    Answer, Authority, DEADLINE, Gateway, KeyKind, Origin, Reading, Request, Signal, TempDir, TlsServer, eventually,
    eventually_some, free_port,
};

/// An upstream whose status is in the path.
fn upstream() -> Origin {
    Origin::serving(|request| {
        let status = request.target.strip_prefix("/status/").and_then(|status| status.parse().ok()).unwrap_or(200);
        Answer::with(status, "Set-Cookie: a=secret\r\n", "ok")
    })
}

/// A gateway with one route, and further settings.
fn gateway(upstream: &Origin, settings: &str, plugin: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "{settings}
routes:
  - {{ id: logged, name: orders, uri: /*, plugins: {{ {plugin} }}, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}
",
        upstream.addr()
    ))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn parsed(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(bytes)))
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// The account of the one sink.
fn account(gateway: &Gateway) -> Value {
    parsed(&gateway.ask_status("/records").body)["sinks"][0].clone()
}

fn records(gateway: &Gateway, outcome: &str) -> f64 {
    gateway.metrics().sum("weir_log_records_total", &[&format!("outcome=\"{outcome}\"")])
}

/// Longer than the longest pause between two tries, which grows while a test stands still.
const RETRIED: Duration = Duration::from_secs(60);

/// A receiver that is not there takes records when it is, and fails and refuses them by its answers. `plugin` has the address of the
/// receiver.
fn fares_by_the_answers(settings: &str, plugin: impl Fn(SocketAddr) -> String) {
    let (upstream, data) = (upstream(), TempDir::new());
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let settings =
        format!("data_dir: {}\n{}", data.join("data").display(), settings.replace("ADDRESS", &address.to_string()));
    let gateway = gateway(&upstream, &settings, &plugin(address));
    for _ in 0..3 {
        assert_eq!(gateway.get("/a").status, 200);
    }
    eventually("it is not there", DEADLINE, || {
        let account = account(&gateway);
        !account["last_error"].is_null() && account["accepted"]["records"] == 3
    });
    let status = Arc::new(AtomicU16::new(503));
    let answered = Arc::clone(&status);
    let receiver = Origin::scripted_at(address, Reading::Strict, move |connection| {
        while let Ok(request) = connection.request() {
            connection.record(&request);
            let status = answered.load(Ordering::Relaxed);
            // What CLS answers if it does not accept a log; the others look at the status.
            let body = if status == 400 { "{\"errorcode\":\"InvalidContent\"}" } else { "{}" };
            let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            if connection.send(answer).is_err() {
                return;
            }
        }
    });
    eventually("it fails", RETRIED, || account(&gateway)["last_error"] == "the answer is 503");
    assert_eq!((records(&gateway, "delivered"), records(&gateway, "dropped")), (0.0, 0.0));
    status.store(200, Ordering::Relaxed);
    eventually("all are delivered", RETRIED, || records(&gateway, "delivered") == 3.0);
    status.store(400, Ordering::Relaxed);
    assert_eq!(gateway.get("/a").status, 200);
    eventually("it is refused", DEADLINE, || records(&gateway, "rejected") == 1.0);
    assert!(receiver.requests().len() >= 3);
    assert_eq!((records(&gateway, "delivered"), records(&gateway, "dropped")), (3.0, 0.0));
}

#[test]
fn skywalking_gets_records_with_the_segment_of_their_request() {
    let (upstream, receiver) = (upstream(), Origin::serving(|_| Answer::ok("")));
    let options = "service_name: shop, service_instance_name: $hostname, include_req_body: true, batch_max_size: 2, inactive_timeout: 60";
    let plugin = format!("skywalking-logger: {{ endpoint_addr: \"http://{}\", {options} }}", receiver.addr());
    let gateway = gateway(&upstream, "", &plugin);
    let mut client = gateway.client();
    let sw8 = "1-dGhlLXRyYWNl-dGhlLXNlZ21lbnQ=-3-c2hvcA==-aW5z-L2E=-MTI3LjAuMC4x";
    for field in [format!("sw8: {sw8}\r\n"), String::new()] {
        let request = format!("POST /a?b=1 HTTP/1.1\r\nHost: t\r\n{field}Content-Length: 2\r\n\r\nhi");
        assert_eq!(client.ask(request).expect("an answer").status, 200);
    }
    let sent = receiver.wait_requests(1).remove(0);
    assert_eq!((&*sent.method, &*sent.target), ("POST", "/v3/logs"));
    assert_eq!(sent.headers.get("content-type"), Some("application/json"));
    let logs = parsed(&sent.body);
    let record = parsed(logs[0]["body"]["json"]["json"].as_str().expect("a text").as_bytes());
    assert_eq!((&record["request"]["body"], &record["request"]["uri"]), (&json!("hi"), &json!("/a?b=1")));
    assert_eq!(record["response"]["headers"]["set-cookie"], "***");
    let instance = &record["server"]["hostname"];
    for (index, context) in
        [(0, json!({"traceId": "the-trace", "traceSegmentId": "the-segment", "spanId": 3})), (1, Value::Null)]
    {
        let log = &logs[index];
        assert_eq!(
            (&log["service"], &log["serviceInstance"], &log["endpoint"]),
            (&json!("shop"), instance, &json!("/a"))
        );
        assert_eq!(log["traceContext"], context);
        let ms = log["timestamp"].as_u64().expect("a number");
        assert!(ms / 1000 <= now_s() && ms / 1000 + 60 > now_s(), "{ms}");
    }
}

#[test]
fn skywalking_logger_fares_by_the_answers() {
    fares_by_the_answers("", |address| {
        format!("skywalking-logger: {{ endpoint_addr: \"http://{address}\", inactive_timeout: 1, spool: {{}} }}")
    });
}

#[test]
fn loggly_gets_messages_of_syslog_with_its_token() {
    let (upstream, receiver) = (upstream(), UdpSocket::bind("127.0.0.1:0").expect("a port"));
    receiver.set_read_timeout(Some(DEADLINE)).expect("it can be");
    let port = receiver.local_addr().expect("an address").port();
    let settings = format!(
        "plugin_metadata: [{{ id: loggly, host: 127.0.0.1, port: {port}, log_format: {{ path: $uri, status: $status }} }}]"
    );
    let options = "customer_token: the-token, tags: [shop, 'a \"b\"'], severity_map: { '503': err }, batch_max_size: 1";
    let gateway = gateway(&upstream, &settings, &format!("loggly: {{ {options} }}"));
    let mut datagram = [0; 4096];
    for (path, status, priority) in [("/a", 200, 14), ("/status/503", 503, 11)] {
        assert_eq!(gateway.get(path).status, status);
        let length = receiver.recv(&mut datagram).expect("a message");
        let message = text(&datagram[..length]);
        let begin = format!("<{priority}>1 ");
        let rest = message.strip_prefix(&begin).unwrap_or_else(|| panic!("{message}"));
        let (time, rest) = rest.split_once(' ').expect("a time");
        assert!(time.len() == 24 && time.ends_with('Z'), "{message}");
        let data = r#"[the-token@41058 tag="shop" tag="a \"b\""]"#;
        let record = format!(r#"{{"path":"{path}","status":"{status}","route_id":"logged"}}"#);
        assert_eq!(rest, format!("t apisix {} - {data} {record}", gateway.pid()));
    }
    eventually("both are counted", DEADLINE, || records(&gateway, "delivered") == 2.0);
}

#[test]
fn loggly_gets_lines_at_its_bulk_endpoint() {
    let (upstream, receiver) = (upstream(), Origin::serving(|_| Answer::ok("{\"response\": \"ok\"}")));
    let settings =
        format!("plugin_metadata: [{{ id: loggly, host: \"{}\", protocol: http, timeout: 2s }}]", receiver.addr());
    let options =
        "customer_token: the-token, tags: [a, b], log_format: { path: $uri }, batch_max_size: 2, inactive_timeout: 60";
    let gateway = gateway(&upstream, &settings, &format!("loggly: {{ {options} }}"));
    for path in ["/a", "/b"] {
        assert_eq!(gateway.get(path).status, 200);
    }
    let sent = receiver.wait_requests(1).remove(0);
    assert_eq!((&*sent.method, &*sent.target), ("POST", "/bulk/the-token/tag/bulk"));
    assert_eq!(sent.headers.get("x-loggly-tag"), Some("a,b"));
    let line = |path: &str| format!(r#"{{"path":"{path}","route_id":"logged"}}"#);
    assert_eq!(text(&sent.body), format!("{}\n{}", line("/a"), line("/b")));
    eventually("both are counted", DEADLINE, || records(&gateway, "delivered") == 2.0);
}

#[test]
fn loggly_fares_by_the_answers() {
    let settings = "plugin_metadata: [{ id: loggly, host: \"ADDRESS\", protocol: http }]";
    fares_by_the_answers(settings, |_| {
        "loggly: { customer_token: the-token, inactive_timeout: 1, spool: {} }".to_owned()
    });
}

#[test]
fn datadog_gets_metrics_of_each_exchange() {
    let (upstream, receiver) = (upstream(), UdpSocket::bind("127.0.0.1:0").expect("a port"));
    receiver.set_read_timeout(Some(DEADLINE)).expect("it can be");
    let port = receiver.local_addr().expect("an address").port();
    let settings = format!("plugin_metadata: [{{ id: datadog, host: 127.0.0.1, port: {port}, namespace: shop }}]");
    let options = "include_path: true, include_method: true, constant_tags: [\"team:blue\"], batch_max_size: 1";
    let gateway = gateway(&upstream, &settings, &format!("datadog: {{ {options} }}"));
    assert_eq!(gateway.get("/status/404").status, 404);
    let mut datagram = [0; 4096];
    let length = receiver.recv(&mut datagram).expect("metrics");
    let metrics = text(&datagram[..length]);
    let tags = "source:apisix,team:blue,route_name:orders,balancer_ip:127.0.0.1,response_status:404,\
                response_status_class:4xx,scheme:http,path:/*,method:GET";
    let mut names = Vec::new();
    for line in metrics.lines() {
        let (metric, found) = line.split_once("|#").expect("tags");
        assert_eq!(found, tags, "{line}");
        let (name, value) = metric.split_once(':').expect("a value");
        let (value, kind) = value.split_once('|').expect("a kind");
        assert!(value.parse::<f64>().expect("a number") >= 0.0, "{line}");
        names.push((name, kind));
    }
    let expected = [
        ("shop.request.counter", "c"),
        ("shop.request.latency", "h"),
        ("shop.upstream.latency", "h"),
        ("shop.apisix.latency", "h"),
        ("shop.ingress.size", "ms"),
        ("shop.egress.size", "ms"),
    ];
    assert_eq!(names, expected);
    assert!(metrics.starts_with("shop.request.counter:1|c|#"), "{metrics}");
    eventually("it is counted", DEADLINE, || records(&gateway, "delivered") == 1.0);
}

#[test]
fn lago_gets_events_once() {
    let (upstream, turns) = (upstream(), AtomicUsize::new(0));
    let receiver = Origin::serving(move |_| match turns.fetch_add(1, Ordering::Relaxed) {
        0 => Answer::ok("{\"events\": []}"),
        _ => {
            let details =
                json!({"0": {"transaction_id": ["value_already_exist"]}, "1": {"code": ["value_is_mandatory"]}});
            Answer::status(422, json!({"status": 422, "error_details": details}).to_string())
        }
    });
    let options = "token: the-key, event_transaction_id: \"id-${arg_id}\", event_subscription_id: \"cus_$http_x_customer\", \
                   event_code: calls, event_properties: { status: \"$status\", secret: \"$http_authorization\" }, \
                   batch_max_size: 2, inactive_timeout: 60";
    let plugin = format!("lago: {{ endpoint_addrs: [\"http://{}\"], {options} }}", receiver.addr());
    let data = TempDir::new();
    let gateway = gateway(&upstream, &format!("data_dir: {}", data.path().display()), &plugin);
    let mut client = gateway.client();
    for id in 1..=4 {
        let request =
            format!("GET /a?id={id} HTTP/1.1\r\nHost: t\r\nX-Customer: jack\r\nAuthorization: Bearer t\r\n\r\n");
        assert_eq!(client.ask(request).expect("an answer").status, 200);
    }
    let sent = receiver.wait_requests(2).remove(0);
    assert_eq!((&*sent.method, &*sent.target), ("POST", "/api/v1/events/batch"));
    assert_eq!(sent.headers.get("authorization"), Some("Bearer the-key"));
    let body = parsed(&sent.body);
    assert_eq!(body["events"].as_array().map(Vec::len), Some(2));
    for (event, id) in body["events"].as_array().expect("a list").iter().zip(["id-1", "id-2"]) {
        let mut event = event.clone();
        let time_s = event["timestamp"].take().as_f64().expect("a number");
        assert!((time_s - now_s() as f64).abs() < 60.0, "{time_s}");
        let expected = json!({"transaction_id": id, "external_subscription_id": "cus_jack", "code": "calls",
            "timestamp": null, "properties": {"status": "200", "secret": "***"}});
        assert_eq!(event, expected);
    }
    eventually("one was there already, and one is refused", DEADLINE, || {
        let account = account(&gateway);
        account["delivered"]["records"] == 3 && account["duplicates"]["records"] == 1
    });
    assert_eq!(records(&gateway, "rejected"), 1.0);
    let rejected = eventually_some("it is kept", DEADLINE, || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let output = command.arg("records").arg("--rejected").arg(data.path()).output().expect("it was built");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        text.ends_with('\n').then(|| parsed(text.as_bytes()))
    });
    let event = &rejected["record"];
    assert_eq!((&event["transaction_id"], &event["code"]), (&json!("id-4"), &json!("calls")), "{rejected}");
    assert_eq!(event["properties"], json!({"status": "200", "secret": "***"}));
}

#[test]
fn lago_fares_by_the_answers() {
    fares_by_the_answers("", |address| {
        format!(
            "lago: {{ endpoint_addrs: [\"http://{address}\"], token: t, event_transaction_id: $request_id, \
             event_subscription_id: s, event_code: c, inactive_timeout: 1, spool: {{}} }}"
        )
    });
}

#[test]
fn sls_gets_messages_over_tls_with_its_access_key() {
    let upstream = upstream();
    let identity = Authority::of_tests().identity(&["sls.example"]);
    let receiver = Origin::scripted_tls(&TlsServer::new(&identity), Reading::Strict, |connection| {
        while connection.some().is_ok_and(|bytes| !bytes.is_empty()) {}
    });
    let options = "project: p, logstore: \"l\\\"s\", access_key_id: the-id, access_key_secret: the-secret, batch_max_size: 2, \
                   log_format: { path: $uri }";
    let plugin = |more: &str| {
        let port = receiver.addr().port();
        format!("sls-logger: {{ host: 127.0.0.1, port: {port}, {options}{more} }}")
    };
    let unverified = gateway(&upstream, "", &plugin(", ssl_verify: false, inactive_timeout: 60"));
    for path in ["/a", "/b"] {
        assert_eq!(unverified.get(path).status, 200);
    }
    let received = eventually_some("both have come", DEADLINE, || {
        let all = receiver.raw_text();
        (all.matches('\n').count() == 2).then_some(all)
    });
    for (message, path) in received.lines().zip(["/a", "/b"]) {
        let rest = message.strip_prefix("<46>1 ").unwrap_or_else(|| panic!("{message}"));
        let (time, rest) = rest.split_once(' ').expect("a time");
        assert!(time.len() == 24 && time.ends_with('Z'), "{message}");
        let data = r#"[logservice project="p" logstore="l\"s" access-key-id="the-id" access-key-secret="the-secret"]"#;
        let record = format!(r#"{{"path":"{path}","route_id":"logged"}}"#);
        assert_eq!(rest, format!("t apisix {} - {data} {record}", unverified.pid()));
    }
    eventually("both are counted", DEADLINE, || records(&unverified, "delivered") == 2.0);
    // The key is not sent to a server that is another one.
    receiver.forget();
    let verified = gateway(&upstream, "", &plugin(", inactive_timeout: 1"));
    assert_eq!(verified.get("/a").status, 200);
    let error =
        eventually_some("it is told", DEADLINE, || account(&verified)["last_error"].as_str().map(str::to_owned));
    assert!(error.contains("certificate"), "{error}");
    assert_eq!(receiver.raw_text(), "");
}

/// The fields of a message of protobuf: numbers, and bytes with a length.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Result<u64, &[u8]>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let length = bytes.iter().position(|byte| byte & 0x80 == 0).expect("it ends") + 1;
        let (number, rest) = bytes.split_at(length);
        *bytes = rest;
        number.iter().rev().fold(0, |sum, byte| sum << 7 | u64::from(byte & 0x7f))
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let number = varint(&mut bytes);
        found.push(match tag & 7 {
            0 => (tag >> 3, Ok(number)),
            2 => {
                let (content, rest) = bytes.split_at(number as usize);
                bytes = rest;
                (tag >> 3, Err(content))
            }
            kind => panic!("type {kind}"),
        });
    }
    found
}

/// The content of the only field with this number.
fn field(bytes: &[u8], number: u64) -> &[u8] {
    let mut all = fields(bytes).into_iter().filter(|(found, _)| *found == number);
    let (_, content) = all.next().expect("it is there");
    assert!(all.next().is_none(), "there is one");
    content.expect_err("it has a length")
}

fn hmac_sha1(key: &str, text: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes());
    hex(hmac::sign(&key, text.as_bytes()).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks the signature of a request as CLS describes it.
fn assert_signed(request: &Request, key: &str) {
    let value = request.headers.get("authorization").expect("a signature");
    let pairs: Vec<(&str, &str)> = value.split('&').map(|pair| pair.split_once('=').expect("a value")).collect();
    let names: Vec<&str> = pairs.iter().map(|(name, _)| *name).collect();
    let expected =
        ["q-sign-algorithm", "q-ak", "q-sign-time", "q-key-time", "q-header-list", "q-url-param-list", "q-signature"];
    assert_eq!(names, expected);
    let time = pairs[2].1;
    let (from, until) = time.split_once(';').expect("two times");
    let [from, until] = [from, until].map(|time| time.parse::<u64>().expect("a time"));
    assert!(from <= now_s() && now_s() <= until && pairs[3].1 == time, "{value}");
    let request = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, b"post\n/structuredlog\n\n\n");
    let to_sign = format!("sha1\n{time}\n{}\n", hex(request.as_ref()));
    assert_eq!((pairs[1].1, pairs[6].1), ("the-id", &*hmac_sha1(&hmac_sha1(key, time), &to_sign)));
}

#[test]
fn tencent_cloud_gets_signed_logs_with_fields() {
    let (upstream, receiver) = (upstream(), Origin::serving(|_| Answer::ok("")));
    let options = "scheme: http, cls_topic: \"a topic\", secret_id: the-id, secret_key: the-key, batch_max_size: 2, inactive_timeout: 60, \
                   log_format: { path: $uri, inner: { status: $status } }, global_tag: { env: test, number: 7 }";
    let plugin = format!("tencent-cloud-cls: {{ cls_host: \"{}\", {options} }}", receiver.addr());
    let gateway = gateway(&upstream, "", &plugin);
    for path in ["/a", "/b"] {
        assert_eq!(gateway.get(path).status, 200);
    }
    let sent = receiver.wait_requests(1).remove(0);
    assert_eq!((&*sent.method, &*sent.target), ("POST", "/structuredlog?topic_id=a%20topic"));
    assert_eq!(sent.headers.get("content-type"), Some("application/x-protobuf"));
    assert_signed(&sent, "the-key");
    let group = field(&sent.body, 1);
    assert!(!field(group, 4).is_empty(), "the name of the machine");
    let logs: Vec<&[u8]> =
        fields(group).into_iter().filter(|(number, _)| *number == 1).map(|(_, log)| log.expect_err("a log")).collect();
    assert_eq!(logs.len(), 2);
    for (log, path) in logs.into_iter().zip(["/a", "/b"]) {
        let (mut time, mut contents) = (0, Vec::new());
        for (number, value) in fields(log) {
            match (number, value) {
                (1, Ok(ms)) => time = ms,
                (2, Err(pair)) => contents.push((text(field(pair, 1)), text(field(pair, 2)))),
                other => panic!("{other:?}"),
            }
        }
        assert!(time / 1000 <= now_s() && time / 1000 + 60 > now_s(), "{time}");
        contents.sort();
        let expected = [
            ("env", "test"),
            ("inner", "{\"status\":\"200\"}"),
            ("number", "7"),
            ("path", path),
            ("route_id", "logged"),
        ];
        assert_eq!(contents, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }
    eventually("both are counted", DEADLINE, || records(&gateway, "delivered") == 2.0);
}

#[test]
fn tencent_cloud_cls_fares_by_the_answers() {
    fares_by_the_answers("", |address| {
        format!(
            "tencent-cloud-cls: {{ cls_host: \"{address}\", scheme: http, cls_topic: t, secret_id: i, secret_key: k, \
             inactive_timeout: 1, spool: {{}} }}"
        )
    });
}

#[test]
fn tencent_cloud_gets_a_share_of_the_records() {
    let (upstream, receiver) = (upstream(), Origin::serving(|_| Answer::ok("")));
    let options = "scheme: http, cls_topic: t, secret_id: i, secret_key: k, inactive_timeout: 1, sample_ratio: 0.5, include_req_body: true";
    let plugin = format!("tencent-cloud-cls: {{ cls_host: \"{}\", {options} }}", receiver.addr());
    let mut gateway = gateway(&upstream, "", &plugin);
    let mut client = gateway.client();
    // Of 200, the share is outside of these bounds less than once in 10^18 runs.
    for turn in 0..200 {
        let body = if turn % 2 == 0 { "Content-Length: 2\r\n\r\nhi" } else { "\r\n" };
        let request = format!("POST /a HTTP/1.1\r\nHost: t\r\n{body}");
        assert_eq!(client.ask(request).expect("an answer").status, 200);
    }
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(DEADLINE).success(), "what waits is sent before the process ends");
    let mut count = 0;
    for sent in receiver.requests() {
        for (_, log) in fields(field(&sent.body, 1)).into_iter().filter(|(number, _)| *number == 1) {
            count += 1;
            let contents = fields(log.expect_err("a log")).into_iter().filter_map(|(_, pair)| pair.err());
            let mut requests = contents.filter(|pair| field(pair, 1) == b"request").map(|pair| parsed(field(pair, 2)));
            let request = requests.next().expect("a request");
            let has_body = request["headers"]["content-length"] == "2";
            assert_eq!(request["body"], if has_body { json!("hi") } else { Value::Null }, "{request}");
        }
    }
    assert!((35..=165).contains(&count), "{count}");
}

/// Google's token endpoint, and its API for entries. A token is accepted `uses` times.
struct Google {
    origin: Origin,
    private_key: String,
}

impl Google {
    fn start(uses: usize) -> Google {
        let identity = Authority::of_tests().identity_with(&["google"], KeyKind::Rsa, |_| ());
        let base64: String = identity.key.lines().filter(|line| !line.starts_with("-----")).collect();
        let key = KeyPair::from_pkcs8(&BASE64_STANDARD.decode(base64).expect("base64")).expect("an RSA key");
        let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, key.public_key().as_ref().to_vec());
        let (tokens, written) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let origin = Origin::serving(move |request| match &*request.target {
            "/token" => {
                Google::check_assertion(request, &public);
                let number = tokens.fetch_add(1, Ordering::Relaxed) + 1;
                written.store(0, Ordering::Relaxed);
                let token =
                    json!({"access_token": format!("token-{number}"), "token_type": "Bearer", "expires_in": 3599});
                Answer::ok(token.to_string())
            }
            "/v2/entries:write" => {
                let token = format!("Bearer token-{}", tokens.load(Ordering::Relaxed));
                let is_used_up = written.fetch_add(1, Ordering::Relaxed) >= uses;
                match request.headers.get("authorization") == Some(&token) && !is_used_up {
                    true => Answer::ok("{}"),
                    false => Answer::status(401, "{}"),
                }
            }
            _ => Answer::status(404, ""),
        });
        Google { origin, private_key: identity.key }
    }

    /// RFC 7523 §2.1, as Google describes it for service accounts.
    fn check_assertion(request: &Request, public: &UnparsedPublicKey<Vec<u8>>) {
        assert_eq!(request.headers.get("content-type"), Some("application/x-www-form-urlencoded"));
        let body = text(&request.body);
        let grant = "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=";
        let assertion = body.strip_prefix(grant).unwrap_or_else(|| panic!("{body}"));
        let (signed, signature) = assertion.rsplit_once('.').expect("a signature");
        let (header, claims) = signed.split_once('.').expect("claims");
        let decoded = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).expect("base64");
        public.verify(signed.as_bytes(), &decoded(signature)).expect("RS256 by the key of the account");
        assert_eq!(parsed(&decoded(header)), json!({"alg": "RS256", "typ": "JWT"}));
        let claims = parsed(&decoded(claims));
        assert_eq!(claims["iss"], "gateway@shop.iam.gserviceaccount.com");
        assert!(claims["aud"].as_str().is_some_and(|audience| audience.ends_with("/token")), "{claims}");
        assert_eq!(claims["scope"], "https://www.googleapis.com/auth/logging.write");
        let [issued, expires] = ["iat", "exp"].map(|name| claims[name].as_u64().expect("a time"));
        assert!(issued <= now_s() && expires == issued + 3600, "{claims}");
    }

    /// The key of the account, as Google offers it.
    fn account(&self) -> Value {
        let address = self.origin.addr();
        json!({"client_email": "gateway@shop.iam.gserviceaccount.com", "private_key": self.private_key, "project_id": "shop",
            "token_uri": format!("http://{address}/token"), "entries_uri": format!("http://{address}/v2/entries:write"),
            "scope": ["https://www.googleapis.com/auth/logging.write"]})
    }

    fn wait(&self, target: &str, count: usize) -> Vec<Request> {
        eventually_some(target, DEADLINE, || {
            let mut found = self.origin.requests();
            found.retain(|request| request.target == target);
            (found.len() >= count).then_some(found)
        })
    }
}

#[test]
fn google_gets_entries_with_a_token_for_the_service_account() {
    let (upstream, google) = (upstream(), Google::start(usize::MAX));
    let options = format!(
        "auth_config: {}, resource: {{ type: global, labels: {{ a: b }} }}, batch_max_size: 1",
        google.account()
    );
    let gateway = gateway(&upstream, "", &format!("google-cloud-logging: {{ {options} }}"));
    let mut client = gateway.client();
    for turn in 0..3 {
        let request = format!("GET /a?turn={turn} HTTP/1.1\r\nHost: t\r\nUser-Agent: test\r\n\r\n");
        assert_eq!(client.ask(request).expect("an answer").status, 200);
    }
    let written = google.wait("/v2/entries:write", 3);
    assert_eq!(google.wait("/token", 1).len(), 1, "it is kept");
    let body = parsed(&written[0].body);
    assert_eq!((body["entries"].as_array().map(Vec::len), &body["partialSuccess"]), (Some(1), &json!(false)));
    let entry = &body["entries"][0];
    let request = &entry["httpRequest"];
    assert_eq!(
        (&request["requestMethod"], &request["status"], &request["userAgent"]),
        (&json!("GET"), &json!(200), &json!("test"))
    );
    assert!(request["requestUrl"].as_str().is_some_and(|url| url.ends_with("/a?turn=0")), "{request}");
    assert_eq!(request["serverIp"], upstream.addr().to_string());
    assert!(request["latency"].as_str().is_some_and(|latency| latency.ends_with('s')), "{request}");
    assert_eq!(entry["jsonPayload"]["route_id"], "logged");
    assert_eq!(entry["resource"], json!({"type": "global", "labels": {"a": "b"}}));
    assert_eq!(entry["logName"], "projects/shop/logs/apisix.apache.org%2Flogs");
    assert_eq!(entry["labels"], json!({"source": "apache-apisix-google-cloud-logging"}));
    let ids: std::collections::BTreeSet<String> =
        written.iter().map(|request| parsed(&request.body)["entries"][0]["insertId"].to_string()).collect();
    assert_eq!(ids.len(), 3);
    eventually("all are counted", DEADLINE, || records(&gateway, "delivered") == 3.0);
}

#[test]
fn google_gets_a_new_token_when_one_is_refused() {
    let (upstream, google, folder) = (upstream(), Google::start(1), TempDir::new());
    let file = folder.join("google.json");
    // It has more members than are read.
    let mut account = google.account();
    account["type"] = json!("service_account");
    std::fs::write(&file, account.to_string()).expect("a directory of our own");
    let options =
        format!("auth_file: {}, batch_max_size: 1, max_retry_count: 0, log_format: {{ path: $uri }}", file.display());
    let gateway = gateway(&upstream, "", &format!("google-cloud-logging: {{ {options} }}"));
    for path in ["/a", "/b"] {
        assert_eq!(gateway.get(path).status, 200);
    }
    eventually("both are delivered", DEADLINE, || records(&gateway, "delivered") == 2.0);
    let written = google.wait("/v2/entries:write", 3);
    let tokens: Vec<_> = written.iter().map(|request| request.headers.get("authorization").expect("a token")).collect();
    assert_eq!(tokens, ["Bearer token-1", "Bearer token-1", "Bearer token-2"]);
    let payload = parsed(&written[2].body)["entries"][0]["jsonPayload"].clone();
    assert_eq!(payload, json!({"path": "/b", "route_id": "logged"}));
}

#[test]
fn google_cloud_logging_fares_by_the_answers() {
    let google = Google::start(usize::MAX);
    fares_by_the_answers("", |address| {
        let mut account = google.account();
        account["entries_uri"] = json!(format!("http://{address}/v2/entries:write"));
        format!("google-cloud-logging: {{ auth_config: {account}, inactive_timeout: 1, spool: {{}} }}")
    });
}

#[test]
fn a_missing_file_of_a_service_account_is_told_and_loses_nothing() {
    let (upstream, google, folder) = (upstream(), Google::start(usize::MAX), TempDir::new());
    let file = folder.join("google.json");
    let options = format!("auth_file: {}, inactive_timeout: 1", file.display());
    let gateway = gateway(&upstream, "", &format!("google-cloud-logging: {{ {options} }}"));
    assert_eq!(gateway.get("/a").status, 200);
    let told = |what: &str| {
        eventually(what, DEADLINE, || {
            account(&gateway)["last_error"].as_str().is_some_and(|error| error.contains(what))
        });
    };
    told("google.json cannot be used: No such file");
    std::fs::write(&file, "{\"private_key\": 1}").expect("a directory of our own");
    told("google.json cannot be used: a member is missing or has another type (line 1)");
    std::fs::write(&file, google.account().to_string()).expect("a directory of our own");
    eventually("it is delivered", DEADLINE, || records(&gateway, "delivered") == 1.0);
}
