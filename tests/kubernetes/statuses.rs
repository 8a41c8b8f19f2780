//! What is written to the cluster.

use serde_json::Value;
use weir_testkit::{DEADLINE, eventually, eventually_some};

use crate::edge::Edge;
use crate::objects::{CONTROLLER, route, service};
use crate::stand_in::{ObjectPath, StandIn};

fn path(plural: &str, namespace: Option<&str>, name: &str) -> ObjectPath {
    ObjectPath { plural: plural.to_owned(), namespace: namespace.map(str::to_owned), name: Some(name.to_owned()) }
}

/// The condition of this type among those at `conditions`.
fn status_of<'v>(conditions: &'v Value, kind: &str) -> Option<&'v str> {
    conditions.as_array()?.iter().find(|condition| condition["type"] == kind)?["status"].as_str()
}

#[test]
fn a_route_that_is_served_is_accepted_and_nothing_is_written_twice() {
    let cluster = StandIn::start();
    let _edge = Edge::start(&cluster, |cluster| {
        cluster.apply([route("orders", "/orders")]);
        cluster.apply(service("orders", &["127.0.0.1:9".parse().expect("an address")]));
    });
    let orders = path("httproutes", Some("shop"), "orders");
    let parent = eventually_some("the route is accepted", DEADLINE, || {
        let parent = cluster.objects().get(&orders)?["status"]["parents"][0].clone();
        (status_of(&parent["conditions"], "Accepted") == Some("True")).then_some(parent)
    });
    assert_eq!(parent["controllerName"], CONTROLLER);
    assert!(parent["conditions"][0]["lastTransitionTime"].as_str().is_some_and(|time| time.ends_with('Z')));
    let edge = path("gateways", Some("shop"), "edge");
    eventually("the Gateway is programmed", DEADLINE, || {
        let gateway = cluster.objects().get(&edge).expect("it is there");
        status_of(&gateway["status"]["conditions"], "Programmed") == Some("True")
    });
    // An object that means nothing is translated, too: if a status were written for no reason, it would be now.
    let writes = cluster.objects().writes();
    cluster.apply(service("other", &[]));
    cluster.apply([route("later", "/later")]);
    let later = path("httproutes", Some("shop"), "later");
    eventually("a later route has its status", DEADLINE, || {
        cluster.objects().get(&later).is_some_and(|route| route["status"]["parents"][0].is_object())
    });
    let new: Vec<ObjectPath> = cluster.objects().writes()[writes.len()..].to_vec();
    assert!(!new.contains(&orders), "{new:?}");
}

#[test]
fn entries_of_other_controllers_stay() {
    let cluster = StandIn::start();
    let other = serde_json::json!({
        "parentRef": { "name": "other" },
        "controllerName": "example.com/other",
        "conditions": [],
    });
    let _edge = Edge::start(&cluster, |cluster| {
        let mut orders = route("orders", "/orders");
        orders["status"] = serde_json::json!({ "parents": [other.clone()] });
        cluster.apply([orders]);
        cluster.apply(service("orders", &[]));
    });
    let parents = eventually_some("the route has two entries", DEADLINE, || {
        let route = cluster.objects().get(&path("httproutes", Some("shop"), "orders"))?;
        let parents = route["status"]["parents"].as_array()?.clone();
        (parents.len() == 2).then_some(parents)
    });
    assert!(parents.contains(&other), "{parents:?}");
}

#[test]
fn a_node_without_the_lease_writes_nothing() {
    let cluster = StandIn::start();
    cluster.apply([serde_json::json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": "weir-status-writer", "namespace": "weir-system" },
        "spec": { "holderIdentity": "another", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z" },
    })]);
    let edge = Edge::start(&cluster, |cluster| cluster.apply([route("orders", "/orders")]));
    // It serves, and has asked for the Lease more than once.
    edge.wait("/orders", 500);
    assert_eq!(cluster.objects().writes(), []);
}
