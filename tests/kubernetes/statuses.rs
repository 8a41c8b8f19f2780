//! What is written to the cluster.

use serde_json::json;
use weir_testkit::{DEADLINE, eventually};

use crate::edge::{Edge, serving};
use crate::objects::{class, ingress};
use crate::stand_in::{ObjectPath, StandIn};

fn named(name: &str) -> ObjectPath {
    ObjectPath { plural: "ingresses".to_owned(), namespace: Some("shop".to_owned()), name: Some(name.to_owned()) }
}

/// Waits until an Ingress has the address of the node.
#[track_caller]
fn wait_address(cluster: &StandIn, name: &str) {
    eventually(&format!("{name} has an address"), DEADLINE, || {
        let object = cluster.objects().get(&named(name)).expect("it is there");
        object["status"]["loadBalancer"]["ingress"] == json!([{ "ip": "203.0.113.7" }])
    });
}

#[test]
fn a_status_is_written_once() {
    let (cluster, _origin, edge) = serving();
    wait_address(&cluster, "orders");
    // Each of these is translated: a status that is written for no reason would be written again.
    for name in ["second", "third"] {
        cluster.apply([ingress(name, &format!("/{name}"))]);
        wait_address(&cluster, name);
    }
    let mut writes = cluster.objects().writes();
    // Their Services are missing, of which Events tell.
    writes.retain(|path| path.plural == "ingresses");
    assert_eq!(writes, ["orders", "second", "third"].map(named));
    assert_eq!(edge.get("/orders").status, 200);
}

#[test]
fn a_status_that_another_process_replaced_is_written_again() {
    let (cluster, _origin, _edge) = serving();
    wait_address(&cluster, "orders");
    let mut object = cluster.objects().get(&named("orders")).expect("it is there");
    object["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] } });
    cluster.objects().put(&named("orders"), object, true);
    wait_address(&cluster, "orders");
}

#[test]
fn a_node_without_the_lease_writes_nothing() {
    let cluster = StandIn::start();
    cluster.apply([
        class(),
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": "weir-status-writer", "namespace": "weir-system" },
            "spec": { "holderIdentity": "another", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z" },
        }),
    ]);
    let edge = Edge::start(&cluster);
    cluster.apply([ingress("orders", "/orders")]);
    eventually("the Ingress is served", DEADLINE, || edge.get("/orders").status != 404);
    let asked = cluster.requests("leases");
    eventually("the Lease has been asked for again", DEADLINE, || cluster.requests("leases") > asked + 1);
    assert_eq!(cluster.objects().writes(), []);
}
