//! What `data-mask` hides, and credentials, in every byte that leaves the process or lies in a spool.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::path::Path;
use std::thread;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use serde_json::Value;
use weir_testkit::{
    Answer, Authority, DEADLINE, Gateway, KeyKind, Origin, Reading, Signal, TempDir, TlsServer, eventually, free_port,
    scaled,
};

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
    eventually("all have been posted", DEADLINE, || http.requests().len() >= all);
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

/// A word that stands nowhere else.
const WORD: &str = "q7Zk2vXw9TbR4mLs";
/// What every record shows.
const KEPT: &str = "kept0by1all";

/// xorshift64*: requests that are the same in each run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    fn pick<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        (1..items.len()).rev().for_each(|last| items.swap(last, self.below(last + 1)));
    }

    /// A text in which some characters are written in another way.
    fn written(&mut self, text: &str, other: impl Fn(u8) -> String) -> String {
        text.bytes().map(|byte| if self.one_in(4) { other(byte) } else { char::from(byte).to_string() }).collect()
    }

    fn in_query(&mut self, text: &str) -> String {
        self.written(text, |byte| format!("%{byte:02x}"))
    }

    fn in_json(&mut self, text: &str) -> String {
        self.written(text, |byte| format!("\\u{byte:04x}"))
    }

    /// Names of fields have no case.
    fn field(&mut self, name: &str) -> String {
        name.chars().map(|char| if self.one_in(3) { char.to_ascii_uppercase() } else { char }).collect()
    }

    fn query(&mut self) -> String {
        let mut pairs = vec![format!("b={KEPT}"), format!("c={}", self.pick(&["%22%5c", "%00", "a+b", "%c3%a9", ""]))];
        for name in ["q", "apikey", "q"] {
            if self.one_in(2) {
                pairs.push(format!("{}={}", self.in_query(name), self.in_query(WORD)));
            }
        }
        self.shuffle(&mut pairs);
        pairs.join("&")
    }

    fn fields(&mut self) -> String {
        let mut fields =
            vec![format!("x-kept: {KEPT}"), format!("x-odd: {}", self.pick(&["\"\\\"", "{}", "%41", "<a>"]))];
        for name in ["authorization", "proxy-authorization", "x-access-token", "x-id-token", "x-own", "x-key"] {
            if self.one_in(2) {
                let scheme = self.pick(&["", "Bearer ", "Basic "]);
                let scheme = if name == "x-key" { "" } else { scheme };
                fields.push(format!("{}: {scheme}{WORD}", self.field(name)));
            }
        }
        if self.one_in(2) {
            fields.push(format!("{}: a=1; b={WORD}", self.field("cookie")));
        }
        if self.one_in(2) {
            fields.push(format!("Referer: http://h/?{}", self.query()));
        }
        self.shuffle(&mut fields);
        fields.join("\r\n")
    }

    /// The media type, which may be wrong, and the body.
    fn body(&mut self) -> (&'static str, String) {
        let types = ["application/json", "application/x-www-form-urlencoded", "text/plain"];
        let (name, word) = (self.in_json("pin"), self.in_json(WORD));
        let secret =
            format!("{{\"{name}\": {}}}", self.pick(&["\"_\"", "[\"_\", 1]", "{\"x\": \"_\"}"])).replace('_', &word);
        let json = (0..self.below(4)).fold(secret, |inner, _| match self.below(3) {
            0 => format!("[1, {inner}]"),
            1 => format!("{{\"a\": {inner}, \"b\": \"\\\"\"}}"),
            _ => format!("{{\"\": [{inner}]}}"),
        });
        let form = format!("a=1&{}={}", self.in_query("pin"), self.in_query(WORD));
        match self.below(6) {
            0 | 1 => (types[0], json),
            2 | 3 => (types[1], form),
            4 => (types[self.below(3)], json[..self.below(json.len() + 1)].to_owned()),
            _ => (types[self.below(3)], if self.one_in(2) { form } else { json }),
        }
    }

    /// A body in a content coding, which is sometimes incomplete, or is not in this coding; or as it is.
    fn coded(&mut self, body: String) -> (&'static str, Vec<u8>) {
        let body = body.into_bytes();
        // Writing to a `Vec` does not fail.
        let (field, mut coded) = match self.below(4) {
            0 => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
                encoder.write_all(&body).expect("in memory");
                ("Content-Encoding: gzip\r\n", encoder.finish().expect("in memory"))
            }
            1 => {
                let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
                encoder.write_all(&body).expect("in memory");
                ("Content-Encoding: deflate\r\n", encoder.finish().expect("in memory"))
            }
            2 if self.one_in(4) => ("Content-Encoding: br\r\n", body),
            _ => return ("", body),
        };
        if self.one_in(4) {
            coded.truncate(self.below(coded.len() + 1));
        }
        (field, coded)
    }

    /// A request, and its body if that is in a content coding.
    fn request(&mut self, path: &str) -> (Vec<u8>, Option<Vec<u8>>) {
        let (query, fields, (media_type, body)) = (self.query(), self.fields(), self.body());
        let (coding, body) = self.coded(body);
        let length = body.len();
        let head = format!(
            "POST {path}?{query} HTTP/1.1\r\nHost: h\r\n{fields}\r\nContent-Type: {media_type}\r\n{coding}Content-Length: {length}\r\n\r\n"
        );
        ([head.as_bytes(), &body].concat(), (!coding.is_empty()).then_some(body))
    }
}

/// Bytes without the notations of queries and of JSON: `%41` and `\u0041`.
fn plain(bytes: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(bytes.len()), bytes);
    let digits = |bytes: &[u8]| u8::from_str_radix(std::str::from_utf8(bytes).ok()?, 16).ok();
    while let Some(&byte) = rest.first() {
        let (decoded, length) = match rest {
            [b'%', a, b, ..] => (digits(&[*a, *b]), 3),
            [b'\\', b'u', b'0', b'0', a, b, ..] => (digits(&[*a, *b]), 6),
            _ => (None, 1),
        };
        out.push(decoded.unwrap_or(byte));
        rest = &rest[if decoded.is_some() { length } else { 1 }..];
    }
    out
}

/// Whether the word is in `bytes`, in any notation in which a record could show it.
fn has_word(bytes: &[u8]) -> bool {
    let in_base64 = (0..3).map(|before| {
        let encoded = BASE64_STANDARD.encode([&vec![0; before][..], WORD.as_bytes()].concat());
        // Without what also depends on the bytes around it.
        encoded[before.div_ceil(3) * 4..(before + WORD.len()) / 3 * 4].to_owned()
    });
    let notations: Vec<String> = in_base64.chain([WORD.to_owned()]).collect();
    let plain = plain(bytes);
    let is_in = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    notations.iter().any(|notation| is_in(bytes, notation) || is_in(&plain, notation))
}

/// Where the loggers send to.
struct LogPlaces<'a> {
    http: &'a Origin,
    tcp: &'a Origin,
    /// By TLS.
    tls: &'a Origin,
    /// A port.
    udp: u16,
    data: &'a Path,
    /// A private RSA key in PEM.
    key: &'a str,
}

/// All loggers, and both plugins of tracing. `format` is that of the records.
fn every_logger(format: &str, places: &LogPlaces<'_>) -> String {
    let common = format!(
        "batch_max_size: 3, inactive_timeout: 1, include_req_body: true, include_resp_body: true, decode_body: true{format}"
    );
    let LogPlaces { udp, key, .. } = places;
    let (http, tcp, tls) = (places.http.addr(), places.tcp.addr().port(), places.tls.addr().port());
    let data = places.data.display();
    format!(
        "      elasticsearch-logger: {{ endpoint_addr: \"http://{http}/elasticsearch\", field: {{ index: weir }}, {common} }}
      loki-logger: {{ endpoint_addrs: [\"http://{http}\"], endpoint_uri: /loki, log_labels: {{ a: $http_x_key, b: $args }}, {common} }}
      http-logger: {{ uri: \"http://{http}/http\", {common} }}
      clickhouse-logger: {{ endpoint_addr: \"http://{http}/clickhouse\", logtable: t, {common} }}
      splunk-hec-logging: {{ endpoint: {{ uri: \"http://{http}/splunk\", token: t }}, {common} }}
      otlp-logger: {{ endpoint_addrs: [\"http://{http}/otlp\"], {common} }}
      skywalking-logger: {{ endpoint_addr: \"http://{http}\", {common} }}
      tencent-cloud-cls: {{ cls_host: \"{http}\", scheme: http, cls_topic: t, secret_id: i, secret_key: k, {common} }}
      google-cloud-logging: {{ auth_config: {{ client_email: a@b, private_key: {key:?}, project_id: p, token_uri: \"http://{http}/token\",
        entries_uri: \"http://{http}/v2/entries:write\" }}, {plain} }}
      sls-logger: {{ host: 127.0.0.1, port: {tls}, project: p, logstore: l, access_key_id: i, access_key_secret: k, ssl_verify: false, {common} }}
      lago: {{ endpoint_addrs: [\"http://{http}\"], endpoint_uri: /lago, token: t, event_transaction_id: $request_id,
        event_subscription_id: \"$http_x_key $args\", event_code: c, event_properties: {{ a: $http_x_key, b: $request_uri }}, inactive_timeout: 1 }}
      loggly: {{ customer_token: t, {common} }}
      kafka-logger: {{ brokers: [{{ host: 127.0.0.1, port: {closed} }}], kafka_topic: t, spool: {{}}, {common} }}
      syslog: {{ host: 127.0.0.1, port: {tcp}, {common} }}
      tcp-logger: {{ host: 127.0.0.1, port: {tcp}, {common} }}
      udp-logger: {{ host: 127.0.0.1, port: {udp}, {common} }}
      file-logger: {{ path: {data}/log, include_req_body: true, decode_body: true{format} }}
      opentelemetry: {{ sampler: {{ name: always_on }}, additional_attributes: [request_uri, args, http_x_key, http_referer],
        additional_header_prefix_attributes: [\"x-*\", authorization, cookie, referer] }}
      zipkin: {{ endpoint: \"http://{http}/zipkin\", sample_ratio: 1 }}
",
        closed = free_port(),
        plain = format_args!("batch_max_size: 3, inactive_timeout: 1{format}"),
    )
}

/// The default record, one of a format that names what is secret, and the default one with more.
const FORMATS: [&str; 3] = [
    "",
    ", log_format: { uri: $request_uri, all: '$args and $arg_b', line: $request, up: $upstream_uri, key: $http_x_key, own: $http_x_own, \
     who: $http_authorization, cookies: $http_cookie, from: $http_referer, inner: { q: $arg_q, set: 'is $sent_http_set_cookie' } }",
    ", log_format_extra: { apikey: $arg_apikey, again: '$request_uri $http_authorization', token: $http_x_access_token }",
];

fn file_of_all_loggers(places: &LogPlaces<'_>, upstream: &Origin) -> String {
    let LogPlaces { http, udp, data, .. } = places;
    let mut text = format!(
        "data_dir: {}
consumers: [{{ username: jack, plugins: {{ key-auth: {{ key: {WORD} }} }} }}]
upstreams: [{{ id: one, nodes: {{ \"{}\": 1 }} }}]
plugin_metadata: [{{ id: loggly, host: 127.0.0.1, port: {udp} }}, {{ id: opentelemetry, collector: {{ address: \"{}\" }}, batch_span_processor: {{ batch_timeout: 0.2, inactive_timeout: 0.1 }} }}]
global_rules:
  - id: refused
    plugins:
      loki-logger: {{ endpoint_addrs: [\"http://{}\"], endpoint_uri: /refused, batch_max_size: 2, include_req_body: true }}
routes:
",
        data.display(),
        upstream.addr(),
        http.addr(),
        http.addr(),
    );
    for (index, format) in FORMATS.iter().enumerate() {
        text.push_str(&format!(
            "  - uri: /{index}
    upstream_id: one
    plugins:
      key-auth: {{ header: X-Key }}
      data-mask: {MASK}
{}",
            every_logger(format, places)
        ));
    }
    text
}

#[test]
fn p31_no_logger_shows_a_secret_in_any_format() {
    let (upstream, data) =
        (Origin::serving(|_| Answer::with(200, &format!("Set-Cookie: s={WORD}\r\n"), "ok")), TempDir::new());
    let http = Origin::serving(|request| match request.target.split('/').nth(1) {
        Some("elasticsearch") => Answer::ok("{\"errors\": false}"),
        Some("splunk") => Answer::ok("{\"code\": 0}"),
        Some("refused") => Answer::status(400, "no"),
        Some("token") => Answer::ok("{\"access_token\": \"t\"}"),
        _ => Answer::ok(""),
    });
    let tcp =
        Origin::scripted(Reading::Strict, |connection| while connection.some().is_ok_and(|bytes| !bytes.is_empty()) {});
    let identity = Authority::of_tests().identity_with(&["logs.example"], KeyKind::Rsa, |_| ());
    let tls = Origin::scripted_tls(&TlsServer::new(&identity), Reading::Strict, |connection| {
        while connection.some().is_ok_and(|bytes| !bytes.is_empty()) {}
    });
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
    udp.set_nonblocking(true).expect("it can be");
    let port = udp.local_addr().expect("it is bound").port();
    let places = LogPlaces { http: &http, tcp: &tcp, tls: &tls, udp: port, data: data.path(), key: &identity.key };
    let mut gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file_of_all_loggers(&places, &upstream));
    let (mut chance, mut datagrams, mut undecoded) = (Chance(0x9E37_79B9_7F4A_7C15), Vec::new(), BTreeSet::new());
    let mut receive = || {
        let mut datagram = vec![0; 1 << 16];
        while let Ok(length) = udp.recv(&mut datagram) {
            datagrams.extend_from_slice(&datagram[..length]);
        }
    };
    for turn in 0..scaled(150, 10_000) {
        let (request, coded) = chance.request(&format!("/{}", turn % FORMATS.len()));
        let shown = String::from_utf8_lossy(&request);
        let status = gateway.client().ask(&request).unwrap_or_else(|error| panic!("{error:?}: {shown}")).status;
        assert!([200, 401].contains(&status), "{status}: {shown}");
        // What a record would show of a body that is not decoded, and therefore not masked.
        undecoded.extend(coded.filter(|body| body.len() >= 18).map(|body| BASE64_STANDARD.encode(&body[..18])));
        receive();
    }
    assert!(upstream.raw().iter().any(|bytes| has_word(bytes)), "what goes upstream is not masked");
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(3 * DEADLINE).success());
    receive();
    eventually("all has been read", DEADLINE, || {
        http.open_connections() + tcp.open_connections() + tls.open_connections() == 0
    });
    let log = fs::read(data.path().join("log")).expect("it is written");
    let mut on_disk = Vec::new();
    files_below(&data.path().join("records"), &mut on_disk);
    let places = [
        ("tcp", tcp.raw()),
        ("tls", tls.raw()),
        ("udp", vec![datagrams]),
        ("file", vec![log]),
        ("disk", on_disk),
        ("http", http.raw()),
    ];
    for (place, contents) in &places {
        let kept = KEPT.as_bytes();
        assert!(
            contents.iter().any(|bytes| bytes.windows(kept.len()).any(|window| window == kept)),
            "nothing in {place}"
        );
        for bytes in contents {
            assert!(!has_word(bytes), "{place}: {}", String::from_utf8_lossy(bytes));
            let text = String::from_utf8_lossy(bytes);
            assert_eq!(undecoded.iter().find(|start| text.contains(&***start)), None, "{place}: {text}");
        }
    }
    assert!(
        places[5].1.iter().any(|bytes| String::from_utf8_lossy(bytes).contains("body_decoded")),
        "some are decoded"
    );
    let targets: BTreeSet<String> = http.targets().into_iter().collect();
    for path in [
        "/elasticsearch/",
        "/loki",
        "/http",
        "/clickhouse",
        "/splunk",
        "/otlp/v1/logs",
        "/v3/logs",
        "/v2/entries:write",
        "/structuredlog",
        "/lago",
        "/v1/traces",
        "/zipkin",
        "/refused",
    ] {
        assert!(targets.iter().any(|target| target.starts_with(path)), "{path} of {targets:?}");
    }
    let is_there = |name: &str| {
        fs::read_dir(data.path().join("records")).is_ok_and(|mut entries| {
            entries.any(|entry| entry.is_ok_and(|entry| entry.file_name().to_string_lossy().contains(name)))
        })
    };
    assert!(is_there("kafka-logger") && is_there("rejected"), "a spool, and what was refused");
}
