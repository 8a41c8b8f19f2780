//! What is written to the cluster.

use serde_json::json;
use weir_testkit::{DEADLINE, eventually};

use crate::edge::{Edge, serving};
use crate::objects::route;
use crate::stand_in::{ObjectPath, StandIn};

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
fn a_node_without_the_lease_writes_nothing() {
    let cluster = StandIn::start();
    cluster.apply([json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": "weir-status-writer", "namespace": "weir-system" },
            "spec": { "holderIdentity": "another", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z" },
    })]);
    let edge = Edge::start(&cluster);
    cluster.apply([route("orders", "/orders")]);
    eventually("the route is served", DEADLINE, || edge.get("/orders").status != 404);
    let asked = cluster.requests("leases");
    eventually("the Lease has been asked for again", DEADLINE, || cluster.requests("leases") > asked + 1);
    assert_eq!(cluster.objects().writes(), []);
}
