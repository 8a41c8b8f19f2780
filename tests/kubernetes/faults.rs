//! An API server that does not answer as it should.

use weir_testkit::{DEADLINE, eventually};

use crate::edge::{Edge, serving};
use crate::objects::route;
use crate::stand_in::StandIn;

/// Changes the route, and waits until the change is served.
#[track_caller]
fn changes_arrive(cluster: &StandIn, edge: &Edge, path: &str) {
    cluster.apply([route("orders", path)]);
    edge.wait(path, 200);
}

#[test]
fn a_server_that_is_gone_and_back_is_followed_again() {
    let (mut cluster, _origin, edge) = serving();
    cluster.stop();
    edge.wait_store(false);
    assert_eq!(edge.get("/orders").status, 200, "what was served is served");
    // While the node has no watch.
    cluster.apply([route("orders", "/changed-meanwhile")]);
    cluster.resume();
    edge.wait("/changed-meanwhile", 200);
    edge.wait_store(true);
    changes_arrive(&cluster, &edge, "/after");
}

#[test]
fn a_server_that_refuses_with_429_is_asked_again() {
    let (cluster, _origin, edge) = serving();
    cluster.refuse(429);
    let refused = cluster.requests("httproutes");
    eventually("requests are refused", DEADLINE, || cluster.requests("httproutes") > refused);
    cluster.refuse(0);
    changes_arrive(&cluster, &edge, "/after");
}

#[test]
fn after_forgotten_versions_the_objects_are_listed_again() {
    let (cluster, _origin, edge) = serving();
    cluster.apply([route("other", "/other")]);
    eventually("the other one is served", DEADLINE, || edge.get("/other").status != 404);
    cluster.refuse(500);
    edge.wait_store(false);
    // No history has this deletion.
    cluster.objects().delete("httproutes", "shop", "other");
    cluster.objects().forget_history();
    cluster.refuse(0);
    edge.wait("/other", 404);
    changes_arrive(&cluster, &edge, "/after");
}

#[test]
fn a_kind_that_is_not_installed_does_not_stop_the_others() {
    let (cluster, _origin, edge) = serving();
    cluster.objects().install("backendtlspolicies", false);
    changes_arrive(&cluster, &edge, "/after");
    let node = Edge::start(&cluster);
    node.wait("/after", 200);
    assert!(cluster.requests("backendtlspolicies") > 0, "it was there before");
}

#[test]
fn a_node_starts_from_its_copy_while_the_server_is_gone() {
    let (mut cluster, _origin, mut edge) = serving();
    cluster.stop();
    // The copy is complete when the process has ended.
    edge.restart();
    assert!(edge.data().join("kubernetes-copy.redb").exists());
    edge.wait("/orders", 200);
    cluster.resume();
    changes_arrive(&cluster, &edge, "/after");
}

#[test]
fn a_node_without_a_copy_is_not_ready_until_it_has_read_the_objects() {
    let mut cluster = StandIn::start();
    cluster.stop();
    let edge = Edge::spawn(&cluster);
    edge.node.wait_stderr("it says what it waits for", |line| line.contains("cannot be used yet"));
    assert!(!edge.node.stderr().contains("weir: ready"), "{}", edge.node.stderr());
    cluster.resume();
    edge.node.wait_stderr("it is ready", |line| line.starts_with("weir: ready"));
}
