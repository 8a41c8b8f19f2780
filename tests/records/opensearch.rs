//! `elasticsearch-logger` before a real OpenSearch.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use weir_testkit::{Answer, Client, Gateway, Origin, Program, TempDir, eventually, skipped};

/// It starts in half a minute on an idle machine.
const START: Duration = Duration::from_secs(180);
const SETTLE: Duration = Duration::from_secs(60);

struct Store {
    child: Child,
    addr: SocketAddr,
    _directory: TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// Two of one process would have the same ports.
static ALONE: Mutex<()> = Mutex::new(());

impl Store {
    /// `None` where there is no Java, or no OpenSearch.
    fn start() -> Option<Store> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let jars: PathBuf = root.join(".cache/opensearch");
        let mut command = Program::java()?;
        if !jars.is_dir() {
            skipped("there is no OpenSearch");
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = TempDir::new();
        // The runner takes ports from 9200 to 9299 only. The lab, which another test starts meanwhile, takes the first that is free.
        let base = 9210 + std::process::id() % 80;
        let said = File::create(directory.path().join("said.log")).expect("its own directory");
        command.args(["-Xmx512m", "-cp"]).arg(jars.join("*")).arg(root.join("tests/records/OpenSearch.java"));
        command.arg(directory.path().join("node")).arg(base.to_string());
        command.stdin(Stdio::piped()).stdout(said.try_clone().expect("a file")).stderr(said);
        let child = command.spawn().expect("Java starts");
        let addr = SocketAddr::from(([127, 0, 0, 1], (base + 1) as u16));
        let mut store = Store { child, addr, _directory: directory, _alone: alone };
        eventually("OpenSearch answers", START, || {
            assert!(store.child.try_wait().expect("it is ours").is_none(), "OpenSearch has ended");
            TcpStream::connect(addr).is_ok() && store.ask("GET", "/_cluster/health", "").0 == 200
        });
        Some(store)
    }

    fn ask(&self, method: &str, target: &str, body: &str) -> (u16, Value) {
        let kind = "Content-Type: application/json\r\n";
        let length = body.len();
        let request = format!("{method} {target} HTTP/1.1\r\nHost: t\r\n{kind}Content-Length: {length}\r\n\r\n{body}");
        let Ok(mut client) = Client::try_connect(self.addr) else { return (0, Value::Null) };
        match client.ask(request) {
            Ok(answer) => (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default()),
            Err(_) => (0, Value::Null),
        }
    }

    fn count(&self, index: &str) -> u64 {
        self.ask("POST", &format!("/{index}/_refresh"), "");
        self.ask("GET", &format!("/{index}/_count"), "").1["count"].as_u64().unwrap_or_default()
    }

    fn put(&self, target: &str, body: &Value) {
        let (status, answer) = self.ask("PUT", target, &body.to_string());
        assert_eq!(status, 200, "{answer:#}");
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn sink(gateway: &Gateway) -> Value {
    let report: Value = serde_json::from_slice(&gateway.ask_status("/records").body).expect("JSON");
    report["sinks"][0].clone()
}

fn settled(gateway: &Gateway, delivered: u64, rejected: u64) {
    eventually("every record is settled", SETTLE, || {
        let sink = sink(gateway);
        let mapping = sink["rejected"]["mapping"]["records"].as_u64().unwrap_or_default();
        sink["delivered"]["records"] == delivered && mapping == rejected
    });
}

#[test]
fn a_real_store_has_every_record_once() {
    let Some(store) = Store::start() else { return };
    let origin = Origin::serving(|_| Answer::with(200, "X-Large: abcdefghijklmnopqrstuvwxyz\r\n", "ok"));
    let data = TempDir::new();
    let text = format!(
        "data_dir: {}
routes:
  - uri: /*
    plugins:
      elasticsearch-logger:
        endpoint_addrs: [\"http://{}\"]
        field: {{ index: \"weir-{{%Y}}\" }}
        batch_max_size: 500
        inactive_timeout: 1
        spool: {{}}
    upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }}
",
        data.path().display(),
        store.addr,
        origin.addr()
    );
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&text);
    let ask = |from: usize, count: usize| {
        let mut client = gateway.client();
        for turn in from..from + count {
            assert_eq!(client.get(&format!("/a?turn={turn}")).expect("an answer").status, 200);
        }
    };
    // A batch of 500 is larger than 64 KiB: the answers are 413 until it has been halved often enough.
    ask(0, 500);
    settled(&gateway, 500, 0);
    assert_eq!(store.count("weir-*"), 500);
    // A full disk, as the store says it: 429 for each record.
    let block = |is_on: Value| store.put("/weir-*/_settings", &json!({"index.blocks.read_only_allow_delete": is_on}));
    block(true.into());
    ask(500, 300);
    eventually("it is said", SETTLE, || {
        sink(&gateway)["last_error"].as_str().is_some_and(|error| error.contains("429"))
    });
    block(Value::Null);
    settled(&gateway, 800, 0);
    assert_eq!(store.count("weir-*"), 800);
    // What does not fit the mapping is rejected, each record for itself.
    store.put("/weir-*/_mapping", &json!({"properties": {"marker": {"type": "integer"}}}));
    let compressed = text.replace("spool: {}", "spool: {}\n        compression: gzip");
    gateway.rewrite(&compressed.replace("gzip", "gzip\n        log_format_extra: { marker: $arg_marker }"));
    let mut client = gateway.client();
    for marker in ["1", "two", "3", "four", "5"] {
        client.get(&format!("/a?marker={marker}")).expect("an answer");
    }
    settled(&gateway, 803, 2);
    assert_eq!(store.count("weir-*"), 803);
    let (_, found) = store.ask("GET", "/weir-*/_search?q=marker:3", "");
    assert_eq!(found["hits"]["hits"][0]["_source"]["request"]["uri"], "/a?marker=3", "{found:#}");
}

/// One sink, of which the store has every record.
fn delivered(gateway: &Gateway, count: u64) {
    eventually("every record is stored", SETTLE, || sink(gateway)["delivered"]["records"] == count);
}

#[test]
fn indices_and_data_streams_have_a_template() {
    let Some(store) = Store::start() else { return };
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let start = |index: &str, more: &str| {
        Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
            "routes:
  - uri: /*
    plugins:
      elasticsearch-logger: {{ endpoint_addr: \"http://{}\", field: {{ index: \"{index}\" }}, inactive_timeout: 1, {more},
        log_format_extra: {{ marker: $arg_marker }} }}
    upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }}
",
            store.addr,
            origin.addr()
        ))
    };
    let ask = |gateway: &Gateway, count: usize| {
        let mut client = gateway.client();
        (0..count).for_each(|turn| {
            // Names of fields and arguments are not fields of the index.
            let request = format!("GET /a?marker={turn}&n{turn}=1 HTTP/1.1\r\nHost: t\r\nX-N{turn}: 1\r\n\r\n");
            assert_eq!(client.ask(request).expect("an answer").status, 200);
        });
    };
    let properties = |index: &str| {
        let mappings = store.ask("GET", &format!("/{index}/_mapping"), "").1;
        let (_, first) = mappings.as_object().and_then(|all| all.iter().next()).expect("there is one");
        first["mappings"]["properties"].clone()
    };
    // Somebody else's template of the same name stays, and records wait.
    store.put("/_index_template/weir-plain", &json!({"index_patterns": ["other-*"]}));
    let options = "compression: gzip, template: { name: weir-plain, properties: { marker: { type: integer } } }";
    let gateway = start("plain-{%Y}", options);
    ask(&gateway, 40);
    eventually("it is said", SETTLE, || {
        sink(&gateway)["last_error"].as_str().is_some_and(|error| error.contains("was not created by Weir"))
    });
    assert_eq!(store.ask("DELETE", "/_index_template/weir-plain", "").0, 200);
    delivered(&gateway, 40);
    assert_eq!(store.count("plain-*"), 40);
    let found = properties("plain-*");
    for (path, kind) in [
        ("/marker/type", "integer"),
        ("/client_ip/type", "ip"),
        ("/start_time/type", "date"),
        ("/response/properties/status/type", "short"),
        ("/request/properties/headers/type", "flat_object"),
        ("/request/properties/querystring/type", "flat_object"),
        ("/route_id/type", "keyword"),
    ] {
        assert_eq!(found.pointer(path).and_then(Value::as_str), Some(kind), "{path} in {found:#}");
    }
    let (_, found) = store.ask("GET", "/plain-*/_search?q=request.headers.x-n7:1", "");
    assert_eq!(found["hits"]["total"]["value"], 1, "{found:#}");
    drop(gateway);
    // Our own template is replaced.
    let gateway = start("plain-{%Y}", "template: { name: weir-plain, priority: 501 }");
    ask(&gateway, 1);
    delivered(&gateway, 1);
    let (_, found) = store.ask("GET", "/_index_template/weir-plain", "");
    assert_eq!(found["index_templates"][0]["index_template"]["priority"], 501, "{found:#}");
    drop(gateway);
    // A data stream, which is rolled over in between.
    let gateway = start("logs-weir-default", "data_stream: true, template: { name: weir-stream }");
    ask(&gateway, 20);
    delivered(&gateway, 20);
    assert_eq!(store.ask("POST", "/logs-weir-default/_rollover", "").0, 200);
    ask(&gateway, 20);
    delivered(&gateway, 40);
    assert_eq!(store.count("logs-weir-default"), 40);
    let (_, found) = store.ask("GET", "/_data_stream/logs-weir-default", "");
    let stream = &found["data_streams"][0];
    assert_eq!(
        (&stream["template"], stream["indices"].as_array().map(Vec::len)),
        (&json!("weir-stream"), Some(2)),
        "{found:#}"
    );
}
