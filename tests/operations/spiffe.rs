//! The node's identity from a SPIFFE Workload API that is made with the library go-spiffe, and workloads that use the library itself.
//! Where the program is not installed the tests are skipped, and say so.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use serde_json::Value;
use weir_testkit::{DEADLINE, Gateway, Program, Signal, TempDir, eventually, scaled};

use crate::load::Load;
use crate::upgrade::upgrade;
use crate::weir;

/// A program that answers each line with one.
struct Dialog {
    child: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl Dialog {
    fn start(arguments: &[&str]) -> Option<Dialog> {
        let mut command = Program::find("workload_api")?;
        let mut child =
            command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it is there");
        let orders = child.stdin.take().expect("it is a pipe");
        let said = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
        Some(Dialog { child, orders, said })
    }

    fn hear(&mut self) -> String {
        self.said.next().expect("it goes on").expect("it says text")
    }

    fn order(&mut self, line: &str) -> String {
        writeln!(self.orders, "{line}").expect("it reads");
        self.hear()
    }
}

impl Drop for Dialog {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The Workload API, with a socket for each workload.
struct WorkloadApi {
    dialog: Dialog,
    place: TempDir,
}

impl WorkloadApi {
    fn start() -> Option<WorkloadApi> {
        let place = TempDir::new();
        let mut dialog = Dialog::start(&["serve", &place.path().display().to_string()])?;
        assert_eq!(dialog.hear(), "ready");
        Some(WorkloadApi { dialog, place })
    }

    fn order(&mut self, line: &str) {
        assert_eq!(self.dialog.order(line), "done");
    }

    fn socket(&self, workload: &str) -> String {
        self.place.join(&format!("{workload}.sock")).display().to_string()
    }

    /// The setting of the node.
    fn setting(&self) -> String {
        format!("spiffe: {{ socket: \"unix://{}\" }}\n", self.socket("gateway"))
    }

    /// A server that is this workload, for clients that are `id`.
    fn origin(&self, workload: &str, id: &str) -> (Dialog, String) {
        let mut dialog = Dialog::start(&["origin", &self.socket(workload), id]).expect("it is there");
        let address = dialog.hear();
        (dialog, address)
    }

    /// A client that is this workload, of the gateway that has to be `id`.
    fn client(&self, workload: &str, id: &str, gateway: &Gateway, name: &str) -> Dialog {
        let address = gateway.tls_addr().to_string();
        Dialog::start(&["ask", &self.socket(workload), id, &address, name]).expect("it is there")
    }

    /// What comes of a request on a new connection.
    fn ask(&self, workload: &str, id: &str, gateway: &Gateway, name: &str) -> String {
        self.client(workload, id, gateway, name).order("/peer")
    }
}

const GATEWAY: &str = "spiffe://example.org/gateway";
const LISTEN: &str = "listen: [\"127.0.0.1:0\", { address: \"127.0.0.1:0\", tls: true }]\n";

/// A route to an origin, with this `tls`.
fn route(origin: &str, tls: &str) -> String {
    format!(
        "routes:\n  - {{ uri: /*, upstream: {{ scheme: https, retries: 0, nodes: {{ \"{origin}\": 1 }}, tls: {{ {tls} }} }} }}\n"
    )
}

fn spiffe(gateway: &Gateway) -> Value {
    gateway.status()["spiffe"].take()
}

fn updates(gateway: &Gateway) -> u64 {
    spiffe(gateway)["updates"].as_u64().unwrap_or_default()
}

/// Status and content of a request without TLS.
fn ask(gateway: &Gateway) -> (u16, String) {
    let answer = gateway.client().ask("GET /peer HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer");
    (answer.status, answer.text())
}

#[track_caller]
fn eventually_ask(gateway: &Gateway, status: u16) {
    eventually(&format!("the answer is {status}"), DEADLINE, || ask(gateway).0 == status);
}

/// The text has the private number of a key in no form that programs write bytes in.
#[track_caller]
fn assert_no_key(shown: &str, text: &str, key: &str) {
    assert_eq!(key.len(), 64, "{key}");
    let hex = |at: usize| u8::from_str_radix(&key[at..at + 2], 16).expect("hexadecimal");
    let bytes: Vec<u8> = (0..key.len()).step_by(2).map(hex).collect();
    // A part of the bytes is enough. Base64 of it depends on where it begins among three bytes.
    let lists = [bytes[..12].iter().map(u8::to_string).collect::<Vec<_>>().join(", ")];
    let encoded = (0..3).map(|skipped| BASE64.encode(&bytes[skipped..skipped + 24]));
    for form in [key[..32].to_owned(), key[..32].to_uppercase()].into_iter().chain(lists).chain(encoded) {
        assert!(!text.contains(&form), "{shown} has a private key");
    }
}

#[test]
fn svids_are_shown_and_spiffe_ids_are_required_on_both_legs() {
    let Some(mut api) = WorkloadApi::start() else { return };
    let (_orders, orders) = api.origin("orders", GATEWAY);
    let own = "svid: default, spiffe_ids: [\"spiffe://example.org/orders\"]";
    let file = |tls: &str| {
        let ssls = "ssls:\n  - { sni: a.test, svid: default, client: { spiffe_ids: [\"spiffe://example.org/shop\", \"spiffe://partner.test\"] } }\n  \
                    - { sni: b.test, svid: outside }\n  \
                    - { sni: c.test, svid: \"spiffe://example.org/edge\", client: { spiffe_ids: [\"spiffe://stranger.test\"] } }\n  \
                    - { sni: d.test, svid: nothing }\n";
        format!("{}{LISTEN}{ssls}{}", api.setting(), route(&orders, tls))
    };
    let gateway = weir().start(&file(own));
    // It may begin without, if the Workload API takes seconds to answer.
    eventually_ask(&gateway, 200);
    let edge = "spiffe://example.org/edge";
    let served = format!("new 200 {GATEWAY} ");
    for (workload, id, name, expected) in [
        ("shop", GATEWAY, "a.test", &*served),
        ("partner", GATEWAY, "a.test", &served),
        ("orders", GATEWAY, "a.test", "refused:"),
        ("stranger", GATEWAY, "a.test", "refused:"),
        // It has the right SPIFFE ID, from the authority of another trust domain that is trusted.
        ("forger", GATEWAY, "a.test", "refused:"),
        ("shop", edge, "b.test", &served),
        ("shop", edge, "a.test", "refused:"),
        ("stranger", edge, "c.test", "refused:"),
        ("shop", GATEWAY, "d.test", "refused:"),
    ] {
        let said = api.ask(workload, id, &gateway, name);
        assert!(said.starts_with(expected), "{workload} {id} {name}: {said}");
    }
    let (_billing, billing) = api.origin("partner", "spiffe://example.org");
    for (tls, status) in [
        ("svid: default, spiffe_ids: [\"spiffe://example.org\"]", 200),
        ("svid: default, spiffe_ids: [\"spiffe://example.org/other\", \"spiffe://example.org/orders\"]", 200),
        ("svid: default, spiffe_ids: [\"spiffe://example.org/other\"]", 502),
        ("svid: default, spiffe_ids: [\"spiffe://partner.test\"]", 502),
        ("svid: default, spiffe_ids: [\"spiffe://stranger.test\"]", 502),
        ("svid: \"spiffe://example.org/edge\", spiffe_ids: [\"spiffe://example.org\"]", 502),
        ("svid: nothing, verify: false", 502),
        ("spiffe_ids: [\"spiffe://example.org\"]", 502),
    ] {
        gateway.rewrite(&file(tls));
        assert_eq!(ask(&gateway).0, status, "{tls}");
    }
    gateway.wait_stderr("why", |line| {
        line.contains("the SPIFFE ID `spiffe://example.org/orders` is not among those accepted")
    });
    gateway.rewrite(&file(own).replace(&orders, &billing).replace("example.org/orders", "partner.test/billing"));
    assert_eq!(ask(&gateway).0, 200, "a trust domain that is federated");
    let told = spiffe(&gateway);
    assert!(told["connected"] == true && told["svids"][1]["hint"] == "outside", "{told}");
    assert_eq!(told["trust_domains"], serde_json::json!(["example.org", "partner.test"]));
    let metrics = gateway.ask_status("/metrics").text();
    for (shown, text) in
        [("status", gateway.status().to_string()), ("metrics", metrics.clone()), ("log", gateway.stderr())]
    {
        for id in [GATEWAY, edge] {
            assert_no_key(shown, &text, &api.dialog.order(&format!("key {id}")));
        }
    }
    let expiry =
        gateway.metrics().get("weir_spiffe_svid_expiry_timestamp_seconds{spiffe_id=\"spiffe://example.org/edge\"}");
    assert!(expiry.is_some_and(|at| at > 1.7e9), "{metrics}");
}

#[test]
fn rotations_under_load_fail_nothing_and_reach_all_workers() {
    let Some(mut api) = WorkloadApi::start() else { return };
    let (_orders, orders) = api.origin("orders", GATEWAY);
    let ssls = "ssls:\n  - { sni: a.test, svid: default, client: { spiffe_ids: [\"spiffe://example.org/shop\"] } }\n";
    let tls = route(&orders, "svid: default, spiffe_ids: [\"spiffe://example.org/orders\"]");
    let gateway = weir().start(&format!("worker_processes: 2\n{}{LISTEN}{ssls}{tls}", api.setting()));
    eventually_ask(&gateway, 200);
    let load = Load::start(gateway.addr());
    let (mut renewing, is_over) = (api.client("shop", GATEWAY, &gateway, "a.test"), Arc::new(AtomicBool::new(false)));
    let over = Arc::clone(&is_over);
    // New handshakes with a client's certificate all the time.
    let handshakes = thread::spawn(move || {
        let mut count = 0;
        while !over.load(Relaxed) {
            let said = renewing.order("new /a");
            assert!(said.starts_with("new 200 "), "{said}");
            count += 1;
        }
        count
    });
    let mut asked = api.client("shop", GATEWAY, &gateway, "a.test");
    let mut kept = api.client("shop", GATEWAY, &gateway, "a.test");
    assert_eq!(kept.order("/a"), "new 200 GET /a 0");
    let before = ask(&gateway).1;
    let mut steps = vec!["rotate"; scaled(2, 20)];
    // A new authority is trusted before it issues, and the old one until it issues no more.
    steps.extend(["prepare example.org", "activate example.org", "rotate", "forget example.org", "rotate"]);
    for step in steps {
        let known = updates(&gateway);
        api.order(step);
        eventually(step, DEADLINE, || updates(&gateway) > known);
        let shown = |asked: &mut Dialog| {
            let expected =
                spiffe(&gateway)["svids"][0]["fingerprint"].as_str().map(|it| it.replace(':', "").to_lowercase());
            // Connections come to both workers.
            (0..8).all(|_| asked.order("new /a").split(' ').next_back() == expected.as_deref())
        };
        eventually("all workers show the new certificate", DEADLINE, || shown(&mut asked));
        load.wait_for(scaled(50, 1_000));
        assert_eq!(kept.order("/a"), "kept 200 GET /a 0", "after {step}");
    }
    eventually("the upstream sees a new certificate", DEADLINE, || ask(&gateway).1 != before);
    assert!(api.ask("shop", GATEWAY, &gateway, "a.test").starts_with("new 200 "), "with the new authority");
    upgrade(&gateway);
    load.wait_for(scaled(50, 1_000));
    assert!(api.ask("shop", GATEWAY, &gateway, "a.test").starts_with("new 200 "), "by the new process");
    is_over.store(true, Relaxed);
    assert!(handshakes.join().expect("none is refused") > 10);
    load.finish();
}

#[test]
fn identity_is_not_replaced_by_none_in_an_upgrade_or_by_another_socket() {
    let Some(mut api) = WorkloadApi::start() else { return };
    let (_orders, orders) = api.origin("orders", GATEWAY);
    let tls = route(&orders, "svid: default, spiffe_ids: [\"spiffe://example.org/orders\"]");
    let file = format!("{}{LISTEN}ssls: [{{ sni: a.test, svid: default }}]\n{tls}", api.setting());
    let gateway = weir().start(&file);
    eventually_ask(&gateway, 200);
    gateway.replace_file(&file.replace("gateway.sock", "absent.sock"));
    gateway.wait_stderr("the refusal", |line| {
        line.contains("absent.sock") && line.contains("the node keeps the identity")
    });
    assert_eq!(ask(&gateway).0, 200);
    assert!(spiffe(&gateway)["socket"].as_str().is_some_and(|socket| socket.ends_with("gateway.sock")));
    gateway.replace_file(&file);
    api.order("close gateway");
    gateway.signal(Signal::USR2);
    gateway.wait_stderr("the failure", |line| line.starts_with("weir: upgrade failed: "));
    assert!(gateway.stderr().contains("the process to be replaced has one"), "{}", gateway.stderr());
    assert_eq!(ask(&gateway).0, 200);
}

#[test]
fn workload_api_may_come_late_vanish_and_come_again() {
    let Some(mut api) = WorkloadApi::start() else { return };
    let (_orders, orders) = api.origin("orders", GATEWAY);
    api.order("close gateway");
    let tls = route(&orders, "svid: default, spiffe_ids: [\"spiffe://example.org/orders\"]");
    let gateway = weir().start(&format!("{}{LISTEN}ssls: [{{ sni: a.test, svid: default }}]\n{tls}", api.setting()));
    assert_eq!(ask(&gateway).0, 502, "there is no identity to show");
    assert!(api.ask("shop", GATEWAY, &gateway, "a.test").starts_with("refused:"));
    gateway.wait_stderr("what is missing", |line| line.contains("gives the node no identity: "));
    let told = spiffe(&gateway);
    assert!(told["connected"] == false && told["svids"] == serde_json::json!([]), "{told}");
    assert_eq!(gateway.metrics().get("weir_spiffe_up"), Some(0.0));
    assert!(gateway.status()["configuration"]["warnings"].to_string().contains("spiffe.socket"));

    api.order("open gateway");
    eventually_ask(&gateway, 200);
    assert!(api.ask("shop", GATEWAY, &gateway, "a.test").starts_with("new 200 "));
    eventually("the warning is gone", DEADLINE, || {
        !gateway.status()["configuration"]["warnings"].to_string().contains("spiffe.socket")
    });
    api.order("close gateway");
    eventually("the loss is noticed", DEADLINE, || spiffe(&gateway)["connected"] == false);
    gateway.wait_stderr("the loss", |line| line.contains("what it gave last stays in use"));
    assert_eq!(ask(&gateway).0, 200);
    assert!(api.ask("shop", GATEWAY, &gateway, "a.test").starts_with("new 200 "));
    let (known, before) = (updates(&gateway), ask(&gateway).1);
    api.order("open gateway");
    eventually("it has a new certificate", DEADLINE, || updates(&gateway) > known && ask(&gateway).1 != before);
}

#[test]
fn answers_that_cannot_be_used_change_nothing_and_a_denial_ends_the_identity() {
    let Some(mut api) = WorkloadApi::start() else { return };
    let (_orders, orders) = api.origin("orders", GATEWAY);
    let tls = route(&orders, "svid: default, spiffe_ids: [\"spiffe://example.org/orders\"]");
    let gateway = weir().start(&format!("{}{LISTEN}ssls: [{{ sni: a.test, svid: default }}]\n{tls}", api.setting()));
    eventually_ask(&gateway, 200);
    let error = |gateway: &Gateway| spiffe(gateway)["error"].as_str().unwrap_or_default().to_owned();
    for (instead, expected) in
        [("garbage", "the chain cannot be read"), ("empty", "no X.509-SVID"), ("huge", "OutOfRange")]
    {
        api.order(&format!("instead gateway {instead}"));
        eventually(expected, DEADLINE, || error(&gateway).contains(expected));
        assert_eq!(ask(&gateway).0, 200, "{instead}");
        api.order("instead gateway");
        eventually("it is used again", DEADLINE, || spiffe(&gateway)["connected"] == true);
    }
    let known = updates(&gateway);
    api.order("instead gateway deny-once");
    eventually("it asks again", DEADLINE, || updates(&gateway) > known);
    assert!(!gateway.stderr().contains("has taken the identity"), "one denial ends nothing: {}", gateway.stderr());
    api.order("instead gateway deny");
    eventually_ask(&gateway, 502);
    assert!(error(&gateway).starts_with("PermissionDenied: no identity issued"), "{}", error(&gateway));
    assert!(api.ask("shop", GATEWAY, &gateway, "a.test").starts_with("refused:"));
    api.order("instead gateway");
    eventually_ask(&gateway, 200);
}

#[test]
fn expired_svid_is_told_and_peers_refuse_it() {
    let Some(mut api) = WorkloadApi::start() else { return };
    let (_orders, orders) = api.origin("orders", GATEWAY);
    api.order("ttl 3s");
    let tls = route(&orders, "svid: default, spiffe_ids: [\"spiffe://example.org/orders\"]");
    let gateway = weir().start(&format!("{}{LISTEN}ssls: [{{ sni: a.test, svid: default }}]\n{tls}", api.setting()));
    // The origin has one that lasts, and the node keeps the short one.
    api.order("close gateway");
    api.order("ttl 1h");
    gateway.wait_stderr("that it has expired", |line| line.contains("an X.509-SVID has expired"));
    eventually_ask(&gateway, 502);
    api.order("open gateway");
    eventually_ask(&gateway, 200);
}
