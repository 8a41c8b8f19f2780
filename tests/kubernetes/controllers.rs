//! Nodes without rights in the cluster, which pull their resources from controllers.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use weir_testkit::{
    Answer, Authority, Client, DEADLINE, Identity, KeyKind, Origin, TempDir, TlsClient, eventually, free_port,
};

use crate::edge::{Edge, weir};
use crate::load::Load;
use crate::objects::{gateway, route, service};
use crate::pulling::{MutualTrust, RunningController, ScriptedNode, pulling, pulling_with, report_newest};
use crate::stand_in::{ObjectPath, StandIn};

/// A cluster with an HTTPRoute from `/orders` to an origin.
pub(crate) fn cluster() -> (StandIn, Origin) {
    let cluster = StandIn::start();
    let origin = Origin::serving(|_| Answer::ok("orders"));
    cluster.apply([route("orders", "/orders")]);
    cluster.apply(service("orders", origin.addr()));
    (cluster, origin)
}

/// The same with a controller, and a node that serves it.
fn serving() -> (StandIn, Origin, MutualTrust, RunningController, Edge) {
    let (cluster, origin) = cluster();
    let trust = MutualTrust::new();
    let controller = RunningController::ready(&cluster, &trust);
    let edge = pulling(&cluster, &trust, &[&controller]);
    edge.wait("/orders", 200);
    (cluster, origin, trust, controller, edge)
}

fn named(plural: &str, name: &str) -> ObjectPath {
    ObjectPath { plural: plural.to_owned(), namespace: Some("shop".to_owned()), name: Some(name.to_owned()) }
}

/// Whether an object has this condition, in the list at `pointer`.
fn is_told(cluster: &StandIn, plural: &str, name: &str, pointer: &str, kind: &str) -> bool {
    let object = cluster.objects().get(&named(plural, name)).unwrap_or_default();
    let conditions = object.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == kind && condition["status"] == "True")
}

pub(crate) fn is_accepted(cluster: &StandIn, name: &str) -> bool {
    is_told(cluster, "httproutes", name, "/status/parents/0/conditions", "Accepted")
}

fn is_programmed(cluster: &StandIn) -> bool {
    is_told(cluster, "gateways", "edge", "/status/conditions", "Programmed")
}

#[test]
fn a_state_its_changes_and_deletions_arrive() {
    let (cluster, _origin, _trust, controller, edge) = serving();
    cluster.apply([route("orders", "/sales")]);
    edge.wait("/sales", 200);
    edge.wait("/orders", 404);
    let second = Origin::serving(|_| Answer::ok("second"));
    cluster.apply(service("orders", second.addr()));
    eventually("the new endpoint answers", DEADLINE, || edge.get("/sales").text() == "second");
    cluster.objects().delete("httproutes", "shop", "orders");
    edge.wait("/sales", 404);
    controller.wait_nodes(1);
    edge.wait_store(true);
}

#[test]
fn a_change_of_endpoints_is_a_change_of_one_upstream() {
    let (cluster, _origin) = cluster();
    cluster.apply(gateway(free_port()));
    let trust = MutualTrust::new();
    let controller = RunningController::ready(&cluster, &trust);
    let (mut person, state) = ScriptedNode::connect(&controller, &trust, "person");
    assert!(state[0]["stream"].is_string(), "{state:?}");
    let is_upstream = |line: &Value| line["put"].as_str().is_some_and(|key| key.starts_with("upstreams/"));
    let other = Origin::serving(|_| Answer::ok("other"));
    let [_, slice] = service("orders", other.addr());
    cluster.apply([slice]);
    let change = person.lines_to_end();
    assert_eq!(change.len(), 2, "{change:?}");
    assert!(is_upstream(&change[0]), "{change:?}");
}

#[test]
fn a_controller_that_is_killed_and_replaced_harms_no_request() {
    let (cluster, _origin, _trust, mut controller, edge) = serving();
    let load = Load::start(&format!("http://{}/orders --connections 4 --rate 200", edge.address()));
    controller.crash();
    edge.wait_store(false);
    cluster.apply([route("second", "/second")]);
    controller.restart();
    eventually("the change meanwhile is served", DEADLINE, || edge.get("/second").status != 404);
    edge.wait_store(true);
    assert!(load.finish_unharmed() > 0);
}

#[test]
fn a_node_starts_from_its_copy_without_a_controller() {
    let (cluster, _origin, _trust, mut controller, mut edge) = serving();
    controller.crash();
    edge.restart();
    assert!(edge.data().join("controller-copy.redb").exists());
    edge.wait("/orders", 200);
    cluster.apply([route("orders", "/after")]);
    controller.restart();
    edge.wait("/after", 200);
    edge.wait("/orders", 404);
}

#[test]
fn a_node_goes_on_with_another_controller_when_its_own_dies() {
    let (cluster, _origin) = cluster();
    let trust = MutualTrust::new();
    let mut controllers = [RunningController::ready(&cluster, &trust), RunningController::ready(&cluster, &trust)];
    let edge = pulling(&cluster, &trust, &[&controllers[0], &controllers[1]]);
    edge.wait("/orders", 200);
    let has_node = |controller: &RunningController| controller.page()["nodes"] != json!([]);
    let is_leader = |controller: &RunningController| controller.page()["leader"] == true;
    eventually("the node is at the one that writes statuses", DEADLINE, || {
        controllers.iter().any(|controller| is_leader(controller) && has_node(controller))
    });
    let dead = controllers.iter().position(has_node).expect("one has it");
    controllers[dead].crash();
    cluster.apply([route("orders", "/after")]);
    edge.wait("/after", 200);
    eventually("the other one has it", DEADLINE, || has_node(&controllers[1 - dead]));
}

#[test]
fn statuses_wait_until_nodes_report_that_they_serve() {
    let (cluster, _origin) = cluster();
    let trust = MutualTrust::new();
    let controller = RunningController::ready(&cluster, &trust);
    eventually("it may write statuses", DEADLINE, || controller.page()["leader"] == true);
    // A person that reads along is a node that reports nothing.
    let (_person, state) = ScriptedNode::connect(&controller, &trust, "person");
    let edge = pulling(&cluster, &trust, &[&controller]);
    edge.wait("/orders", 200);
    eventually("both are connected", DEADLINE, || {
        controller.page()["nodes"].as_array().is_some_and(|all| all.len() == 2)
    });
    assert!(!is_programmed(&cluster) && !is_accepted(&cluster, "orders"), "one of them has not reported");
    eventually("the reports of both let the statuses be written", DEADLINE, || {
        report_newest(&controller, &trust, &state);
        is_programmed(&cluster) && is_accepted(&cluster, "orders")
    });
}

/// Whether a client gets an answer from a controller.
fn is_answered(controller: &RunningController, client: &TlsClient) -> bool {
    let Ok(mut client) = Client::connect_tls(controller.address, client, "127.0.0.1") else { return false };
    client.ask("GET /v1/nodes HTTP/1.1\r\nHost: controller\r\n\r\n").is_ok_and(|answer| answer.status == 200)
}

fn expired(authority: &Authority) -> Identity {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    authority.identity_with(&["weir-node"], KeyKind::Ecdsa, |params| {
        let now = SystemTime::now();
        (params.not_before, params.not_after) = ((now - 3 * DAY).into(), (now - DAY).into());
    })
}

#[test]
fn clients_without_a_valid_certificate_get_nothing() {
    let (cluster, _origin) = cluster();
    let (trust, other) = (MutualTrust::new(), Authority::new());
    let controller = RunningController::ready(&cluster, &trust);
    assert!(is_answered(&controller, &trust.client()));
    for (who, client) in [
        ("one without a certificate", TlsClient::trusting(&trust.authority)),
        ("one whose certificate has expired", TlsClient::known_as(&trust.authority, &expired(&trust.authority))),
        ("one of another authority", TlsClient::known_as(&trust.authority, &other.identity(&["weir-node"]))),
    ] {
        assert!(!is_answered(&controller, &client), "{who}");
    }
    let plain = Client::connect(controller.address).ask("GET /v1/state HTTP/1.1\r\nHost: controller\r\n\r\n");
    assert!(plain.is_err(), "one without TLS");
}

#[test]
fn certificates_that_are_not_of_nodes_are_refused() {
    let (cluster, _origin) = cluster();
    let trust = MutualTrust::new();
    let controller = RunningController::ready_with(&cluster, &trust, "node_names: [weir-node, \"*.nodes.example\"]");
    let ask = |names: &[&str], path: &str| {
        let client = TlsClient::known_as(&trust.authority, &trust.authority.identity(names));
        let mut client = Client::connect_tls(controller.address, &client, "127.0.0.1").expect("it has a certificate");
        let answer = client.ask(format!("GET {path} HTTP/1.1\r\nHost: controller\r\n\r\n")).expect("an answer");
        (answer.status, answer.text())
    };
    for names in [&["other", "weir-node"][..], &["a.nodes.example"]] {
        assert_eq!(ask(names, "/v1/nodes").0, 200, "{names:?}");
    }
    for name in ["weir-controller.weir-system.svc", "weir-node2", "nodes.example"] {
        for path in ["/v1/state?node=a", "/v1/nodes", "/v1/report"] {
            let (status, told) = ask(&[name], path);
            assert_eq!(status, 403, "{name}");
            assert!(
                told.contains(&format!("is for {name}, and those of nodes for weir-node, *.nodes.example")),
                "{told}"
            );
        }
    }
}

#[test]
fn a_node_tells_that_its_certificate_is_none_of_a_node() {
    let (_cluster, _origin, trust, mut controller, edge) = serving();
    trust.write("node", &trust.authority.identity(&["another-purpose"]));
    controller.crash();
    controller.restart();
    eventually("it says why", DEADLINE, || {
        let told = edge.node.status()["configuration"]["store"]["problem"].to_string();
        told.contains("403") && told.contains("is for another-purpose, and those of nodes for weir-node")
    });
}

#[test]
fn certificates_are_read_again_when_their_files_change() {
    let (cluster, _origin) = cluster();
    let (trust, other) = (MutualTrust::new(), Authority::new());
    let controller = RunningController::ready(&cluster, &trust);
    let (of_before, of_after) =
        (trust.client(), TlsClient::known_as(&trust.authority, &other.identity(&["weir-node"])));
    assert!(is_answered(&controller, &of_before) && !is_answered(&controller, &of_after));
    trust.trust("controller", &other);
    eventually("the new authority counts", DEADLINE, || is_answered(&controller, &of_after));
    assert!(!is_answered(&controller, &of_before), "and the one before does not");
}

#[test]
fn a_file_is_for_a_node_or_for_a_controller() {
    let tls = "tls: { cert: a, key: a, ca: a }";
    let file = format!("controller: {{ kubernetes: {{ in_cluster: true }}, {tls} }}\n");
    let mut node = weir().spawn(&file);
    node.wait_stderr("it is refused", |line| line.contains("is the file of a controller"));
    assert!(!node.wait_exit(DEADLINE).success());
    let directory = TempDir::new();
    for (name, text) in [
        ("pulls.yaml", format!("store: {{ controller: {{ hosts: ['https://controller:9443'], {tls} }} }}\n")),
        (
            "serves.yaml",
            "listen: [':8080']\nroutes: [{ id: a, uri: /, upstream: { nodes: { '127.0.0.1:1': 1 } } }]\n".to_owned(),
        ),
    ] {
        let path = directory.write(name, &text);
        let mut controller = Command::new(env!("CARGO_BIN_EXE_weir"));
        let ended = controller.arg("controller").arg("--config").arg(&path).output().expect("weir runs");
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && told.contains(&format!("{name}: has no `controller`")), "{told}");
        assert!(told.contains("use `weir run` for a node"), "{told}");
    }
}

/// The settings of an Admin API at this port.
fn admin(port: u16) -> String {
    let keys = "keys: [{ name: ops, key: a-key-of-an-operator, role: admin }]";
    format!("admin: {{ listen: \"127.0.0.1:{port}\", {keys} }}\n")
}

/// What the Admin API at this port says at a path.
fn asked(admin: u16, path: &str) -> Value {
    let request =
        format!("GET /apisix/admin/{path} HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: a-key-of-an-operator\r\n\r\n");
    let answer = Client::connect(([127, 0, 0, 1], admin).into()).ask(request).expect("the Admin API answers");
    serde_json::from_str(&answer.text()).expect("it is JSON")
}

#[test]
fn a_node_asks_its_controller_for_the_other_nodes() {
    let (cluster, _origin) = cluster();
    let trust = MutualTrust::new();
    let mut controller = RunningController::ready(&cluster, &trust);
    let port = free_port();
    let edge = pulling_with(&cluster, &trust, &[&controller], &admin(port));
    edge.wait("/orders", 200);
    let (_other, _) = ScriptedNode::connect(&controller, &trust, "behind");
    let in_step = |page: &Value| -> Vec<(bool, bool)> {
        let list = page["list"].as_array().cloned().unwrap_or_default();
        list.iter().map(|node| (node["id"] == "behind", node["in_step"] == true)).collect()
    };
    eventually("the controller lists both, and one is in step", DEADLINE, || {
        let page = asked(port, "nodes");
        page["told_by"] == format!("the controller https://{}", controller.address)
            && in_step(&page) == [(false, true), (true, false)]
    });
    controller.crash();
    edge.wait_store(false);
    let told = asked(port, "nodes").to_string();
    assert!(told.contains("no controller answers"), "{told}");
}

#[test]
fn a_node_that_reads_the_cluster_says_that_it_knows_itself_alone() {
    let (cluster, _origin) = cluster();
    let port = free_port();
    let _node = weir().start(&format!("{}{}", cluster.node(", write_status: false"), admin(port)));
    let page = asked(port, "nodes");
    assert_eq!((&page["total"], &page["list"][0]["in_step"]), (&json!(1), &json!(true)), "{page}");
    assert!(page["told_by"].to_string().contains("this node"), "{page}");
}

/// The resources of a node as its Admin API shows them, without revisions.
fn resources(admin: u16) -> BTreeMap<String, Value> {
    let lists = ["listeners", "upstreams", "services", "routes"].map(|list| {
        let items = asked(admin, list)["list"].as_array().cloned().unwrap_or_default();
        items
            .into_iter()
            .map(|mut item| {
                let value = item["value"].as_object_mut().expect("a resource");
                value.retain(|key, _| key != "create_time" && key != "update_time");
                (item["key"].to_string(), item["value"].take())
            })
            .collect::<Vec<_>>()
    });
    lists.into_iter().flatten().collect()
}

#[test]
fn after_random_changes_a_node_has_what_one_that_reads_the_cluster_has() {
    let (cluster, origin) = cluster();
    let trust = MutualTrust::new();
    let controller = RunningController::ready(&cluster, &trust);
    let [pulled, read] = [free_port(), free_port()];
    let edge = pulling_with(&cluster, &trust, &[&controller], &admin(pulled));
    // It opens no listener: that of the Gateway is open already.
    let _reading = weir().start(&format!("{}{}", cluster.node(", write_status: false"), admin(read)));
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..20 {
        for _ in 0..random.usize(1..6) {
            let name = format!("r{}", random.u8(0..6));
            match random.u8(0..4) {
                0 if cluster.objects().get(&named("httproutes", &name)).is_some() => {
                    cluster.objects().delete("httproutes", "shop", &name);
                }
                1 => cluster.apply([route(&name, &format!("/{}", random.u8(0..9)))]),
                2 => cluster.apply(service(&name, origin.addr())),
                _ => cluster.apply(service(&name, ([10, 0, 0, random.u8(1..9)], 80).into())),
            }
        }
        eventually("both have the same", DEADLINE, || resources(pulled) == resources(read));
    }
    assert!(!resources(pulled).is_empty());
    edge.wait("/orders", 200);
}
