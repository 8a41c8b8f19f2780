//! What is written to the cluster.

use serde_json::json;
use weir_testkit::{DEADLINE, eventually, free_port};

use crate::edge::{Edge, serving, weir};
use crate::objects::{gateway, route, service};
use crate::pulling::{MutualTrust, RunningController, pulling};
use crate::stand_in::{ObjectPath, StandIn};
use crate::writers::lease_of_another;

fn named(name: &str) -> ObjectPath {
    ObjectPath { plural: "httproutes".to_owned(), namespace: Some("shop".to_owned()), name: Some(name.to_owned()) }
}

/// Waits until a route is accepted by the node.
#[track_caller]
fn wait_accepted(cluster: &StandIn, name: &str) {
    eventually(&format!("{name} is accepted"), DEADLINE, || {
        let object = cluster.objects().get(&named(name)).expect("it is there");
        let parent = &object["status"]["parents"][0];
        let mut conditions = parent["conditions"].as_array().into_iter().flatten();
        parent["controllerName"] == "weir.dev/gateway-controller"
            && conditions.any(|condition| condition["type"] == "Accepted" && condition["status"] == "True")
    });
}

#[test]
fn a_status_is_written_once() {
    let (cluster, _origin, edge) = serving();
    wait_accepted(&cluster, "orders");
    // Each of these is translated: a status that is written for no reason would be written again.
    for name in ["second", "third"] {
        cluster.apply([route(name, &format!("/{name}"))]);
        wait_accepted(&cluster, name);
    }
    let mut writes = cluster.objects().writes();
    writes.retain(|path| path.plural == "httproutes");
    assert_eq!(writes, ["orders", "second", "third"].map(named));
    assert_eq!(edge.get("/orders").status, 200);
}

#[test]
fn a_status_that_another_process_replaced_is_written_again() {
    let (cluster, _origin, _edge) = serving();
    wait_accepted(&cluster, "orders");
    let mut object = cluster.objects().get(&named("orders")).expect("it is there");
    object["status"] = json!({ "parents": [] });
    cluster.objects().put(&named("orders"), object, true);
    wait_accepted(&cluster, "orders");
}

#[test]
fn a_gateway_gets_a_service_that_has_its_addresses_and_labels() {
    let (cluster, port, other_port) = (StandIn::start(), free_port(), free_port());
    let [class, mut gateway] = gateway(port);
    gateway["spec"]["infrastructure"] = json!({ "labels": { "team": "a" }, "annotations": { "note": "b" } });
    // That of another program.
    let [taken, _] = service("taken-weir", ([127, 0, 0, 1], 80).into());
    let mut other = gateway.clone();
    other["metadata"]["name"] = "taken".into();
    other["spec"]["listeners"][0]["port"] = other_port.into();
    cluster.apply([class, gateway, taken, other]);
    let settings = ", publish_addresses: [\"203.0.113.7\", \"edge.example\"], gateway_services: true";
    let listeners = format!("resource_listeners: [\":{port}\", \":{other_port}\"]\n");
    let _node = weir().start(&(cluster.node(settings) + &listeners));
    let find = |plural: &str, name: &str| {
        let path =
            ObjectPath { plural: plural.to_owned(), namespace: Some("shop".to_owned()), name: Some(name.to_owned()) };
        cluster.objects().get(&path)
    };
    eventually("both are there", DEADLINE, || find("endpointslices", "edge-weir").is_some());
    let made = find("services", "edge-weir").expect("it is made first");
    assert_eq!(made["spec"]["ports"][0]["port"], port);
    assert_eq!(made["metadata"]["ownerReferences"][0]["name"], "edge");
    let slice = find("endpointslices", "edge-weir").expect("it is there");
    assert_eq!(slice["endpoints"], json!([{ "addresses": ["203.0.113.7"], "conditions": { "ready": true } }]));
    assert_eq!(slice["metadata"]["labels"]["kubernetes.io/service-name"], "edge-weir");
    for object in [made, slice] {
        assert_eq!(object["metadata"]["labels"]["team"], "a");
        assert_eq!(object["metadata"]["labels"]["gateway.networking.k8s.io/gateway-name"], "edge");
        assert_eq!(object["metadata"]["annotations"]["note"], "b");
    }
    // One that is deleted is made again, with what is true then, and only then.
    let count = || cluster.objects().writes().iter().filter(|path| path.plural == "services").count();
    let before = count();
    cluster.objects().delete("services", "shop", "edge-weir");
    eventually("it is back", DEADLINE, || find("services", "edge-weir").is_some());
    assert_eq!((before, count()), (1, 2));
    assert_eq!(find("services", "taken-weir").expect("it stays")["metadata"]["labels"], json!(null));
    let is_told =
        |event: &serde_json::Value| event["reason"] == "NoService" && event["involvedObject"]["name"] == "taken";
    eventually("an Event says so", DEADLINE, || cluster.objects().all("events").iter().any(is_told));
}

#[test]
fn a_node_without_the_lease_writes_nothing() {
    let cluster = StandIn::start();
    // It would be free if it were not renewed for 15 seconds.
    let mut renewal = 0;
    let mut renew = || {
        renewal += 1;
        cluster.apply([lease_of_another(renewal)]);
    };
    renew();
    let edge = Edge::start(&cluster);
    cluster.apply([route("orders", "/orders")]);
    eventually("the route is served", DEADLINE, || {
        renew();
        edge.get("/orders").status != 404
    });
    let asked = cluster.requests("leases");
    eventually("the Lease has been asked for again", DEADLINE, || {
        renew();
        cluster.requests("leases") > asked + 1
    });
    assert_eq!(cluster.objects().writes(), []);
}

/// The status of `Programmed` of each listener of the Gateway, with its name.
fn programmed(cluster: &StandIn) -> Vec<(String, String)> {
    let path =
        ObjectPath { plural: "gateways".to_owned(), namespace: Some("shop".to_owned()), name: Some("edge".to_owned()) };
    let gateway = cluster.objects().get(&path).unwrap_or_default();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let one = |listener: &serde_json::Value| {
        let mut conditions = listener["conditions"].as_array().into_iter().flatten();
        let status = conditions.find(|condition| condition["type"] == "Programmed");
        (text(&listener["name"]), status.map(|condition| text(&condition["status"])).unwrap_or_default())
    };
    gateway["status"]["listeners"].as_array().into_iter().flatten().map(one).collect()
}

/// Gives the Gateway of `edge` a second listener, on a port that the node refuses until its file allows it.
#[track_caller]
fn a_refused_port_is_not_programmed(cluster: &StandIn, edge: &Edge) {
    let (port, other) = (edge.address().port(), free_port());
    let [_, mut gateway] = gateway(port);
    let listeners = gateway["spec"]["listeners"].as_array_mut().expect("a list");
    listeners.push(json!({ "name": "other", "port": other, "protocol": "HTTP" }));
    cluster.apply([gateway]);
    let wait = |status: &str| {
        let wanted = [("http".to_owned(), "True".to_owned()), ("other".to_owned(), status.to_owned())];
        eventually(&format!("`other` is {status}"), DEADLINE, || programmed(cluster) == wanted);
    };
    wait("False");
    assert!(std::net::TcpStream::connect(("127.0.0.1", other)).is_err(), "nothing listens there");
    edge.rewrite(&format!("[\":{port}\"]"), &format!("[\":{port}\", \":{other}\"]"));
    wait("True");
    std::net::TcpStream::connect(("127.0.0.1", other)).expect("it is served");
}

#[test]
fn a_listener_on_a_port_that_a_node_refuses_is_not_programmed() {
    let cluster = StandIn::start();
    let edge = Edge::start(&cluster);
    a_refused_port_is_not_programmed(&cluster, &edge);
}

#[test]
fn a_listener_on_a_port_that_a_node_of_a_controller_refuses_is_not_programmed() {
    let (cluster, trust) = (StandIn::start(), MutualTrust::new());
    let controller = RunningController::ready(&cluster, &trust);
    let edge = pulling(&cluster, &trust, &[&controller]);
    a_refused_port_is_not_programmed(&cluster, &edge);
}
