//! An API server that does not answer as it should.

use weir_testkit::{Answer, DEADLINE, Origin, eventually};

use crate::edge::Edge;
use crate::objects::{route, service};
use crate::stand_in::StandIn;

fn serving() -> (StandIn, Origin, Edge) {
    let cluster = StandIn::start();
    let origin = Origin::serving(|_| Answer::ok("here"));
    let edge = Edge::start(&cluster, |cluster| {
        cluster.apply([route("orders", "/orders")]);
        cluster.apply(service("orders", &[origin.addr()]));
    });
    (cluster, origin, edge)
}

/// Changes the route, and waits until the change is served.
fn changes_arrive(cluster: &StandIn, edge: &Edge, path: &str) {
    cluster.apply([route("orders", path)]);
    edge.wait(path, 200);
}

#[test]
fn an_api_server_that_is_gone_and_back_is_followed_again() {
    let (mut cluster, _origin, edge) = serving();
    cluster.stop();
    edge.wait_store(false);
    assert_eq!(edge.get("/orders").status, 200, "what was served is served");
    // While nobody watches.
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
    edge.wait_store(false);
    cluster.refuse(0);
    changes_arrive(&cluster, &edge, "/after");
}

#[test]
fn forgotten_versions_are_listed_again() {
    let (cluster, _origin, edge) = serving();
    cluster.apply([route("other", "/other")]);
    edge.wait("/other", 500);
    // Its deletion is in no history any more.
    cluster.refuse(500);
    edge.wait_store(false);
    cluster.objects().delete("httproutes", "shop", "other");
    cluster.objects().forget_history();
    cluster.refuse(0);
    edge.wait("/other", 404);
    changes_arrive(&cluster, &edge, "/after");
}

#[test]
fn a_kind_that_is_not_installed_is_looked_for() {
    let cluster = StandIn::start();
    cluster.objects().install("backendtlspolicies", false);
    let origin = Origin::serving(|_| Answer::ok("here"));
    let edge = Edge::start(&cluster, |cluster| {
        cluster.apply([route("orders", "/orders")]);
        cluster.apply(service("orders", &[origin.addr()]));
    });
    edge.wait("/orders", 200);
    assert!(edge.node.stderr().contains("BackendTLSPolicy"), "{}", edge.node.stderr());
}

#[test]
fn a_node_starts_from_its_copy_while_the_server_is_gone() {
    let (mut cluster, _origin, mut edge) = serving();
    edge.wait_copy();
    cluster.stop();
    edge.restart();
    edge.wait("/orders", 200);
    cluster.resume();
    changes_arrive(&cluster, &edge, "/after");
}

#[test]
fn a_node_without_a_copy_is_not_ready_until_it_has_read_the_objects() {
    let mut cluster = StandIn::start();
    cluster.stop();
    let edge = Edge::spawn(&cluster);
    let node = &edge.node;
    node.wait_stderr("it says what it waits for", |line| line.contains("cannot be used yet"));
    assert!(!node.stderr().contains("weir: ready"), "{}", node.stderr());
    cluster.resume();
    eventually("it is ready", DEADLINE, || node.stderr().contains("weir: ready"));
}
