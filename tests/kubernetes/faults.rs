//! An API server that does not answer as it should.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use weir_testkit::{Authority, Client, DEADLINE, TlsClient, eventually, free_port};

use crate::edge::{Edge, serving, weir};
use crate::load::Load;
use crate::objects::{gateway, route, service};
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
fn a_server_that_refuses_is_asked_again() {
    let (cluster, _origin, edge) = serving();
    // Such as with a token that has expired, with rights that were taken away, or with versions that are forgotten.
    for status in [401, 403, 410, 429, 500] {
        cluster.refuse(status);
        let refused = cluster.requests("httproutes");
        eventually("requests are refused", DEADLINE, || cluster.requests("httproutes") > refused);
        cluster.refuse(0);
        changes_arrive(&cluster, &edge, &format!("/after-{status}"));
    }
}

#[test]
fn an_event_that_is_cut_in_its_middle_is_read_again() {
    let (cluster, _origin, edge) = serving();
    for number in 0..5 {
        cluster.cut_next_event();
        changes_arrive(&cluster, &edge, &format!("/after-{number}"));
        assert!(cluster.has_cut(), "an event was cut");
    }
}

#[test]
fn a_slow_server_delays_changes_and_no_request() {
    let (cluster, _origin, edge) = serving();
    cluster.slow_down(Duration::from_millis(500));
    let load = Load::start(&format!("http://{}/orders --connections 2 --rate 100", edge.address()));
    for number in 0..3 {
        cluster.apply([route("other", &format!("/other-{number}"))]);
        // Its Service does not exist.
        edge.wait(&format!("/other-{number}"), 500);
    }
    assert!(load.finish_unharmed() > 0);
}

#[test]
fn a_grant_that_is_withdrawn_closes_the_way_at_once() {
    let (cluster, origin, edge) = serving();
    let mut of_stock = service("stock", origin.addr());
    of_stock.iter_mut().for_each(|object| object["metadata"]["namespace"] = "warehouse".into());
    let mut to_stock = route("stock", "/stock");
    to_stock["spec"]["rules"][0]["backendRefs"][0]["namespace"] = "warehouse".into();
    let grant = json!({
        "apiVersion": "gateway.networking.k8s.io/v1beta1",
        "kind": "ReferenceGrant",
        "metadata": { "name": "to-stock", "namespace": "warehouse" },
        "spec": {
            "from": [{ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "shop" }],
            "to": [{ "group": "", "kind": "Service" }],
        },
    });
    cluster.apply(of_stock.into_iter().chain([to_stock, grant]));
    edge.wait("/stock", 200);
    let load = Load::start(&format!("http://{}/orders --connections 2 --rate 100", edge.address()));
    cluster.objects().delete("referencegrants", "warehouse", "to-stock");
    edge.wait("/stock", 500);
    assert!(load.finish_unharmed() > 0, "other routes are not touched");
}

#[test]
fn a_broken_certificate_leaves_the_last_one_in_use() {
    let cluster = StandIn::start();
    let (port, authority) = (free_port(), Authority::of_tests());
    let [class, mut edge] = gateway(port);
    edge["spec"]["listeners"][0] = json!({
        "name": "https", "port": port, "protocol": "HTTPS", "tls": { "certificateRefs": [{ "name": "site" }] },
    });
    let secret = |certificate: &str, key: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": { "name": "site", "namespace": "shop" }, "stringData": { "tls.crt": certificate, "tls.key": key },
        })
    };
    let [first, second] = [authority.identity(&["site.example"]), authority.identity(&["site.example"])];
    cluster.apply([class, edge, route("orders", "/orders"), secret(&first.certificate, &first.key)]);
    let _node = weir().start(&format!("{}resource_listeners: [\":{port}\"]\n", cluster.node("")));
    let client = TlsClient::trusting(authority);
    // The certificate that a new connection is shown.
    let shown = || {
        let connection = Client::connect_tls(([127, 0, 0, 1], port).into(), &client, "site.example").ok()?;
        connection.agreed()?.certificates.into_iter().next()
    };
    eventually("the certificate is shown", DEADLINE, || shown().is_some());
    let of_first = shown();
    // What is told of the listener: the route has no Service here, which is told of the route.
    let told = || {
        let events = cluster.objects().all("events").into_iter();
        let of_edge =
            |event: &Value| [&event["regarding"], &event["involvedObject"]].iter().any(|it| it["name"] == "edge");
        let texts = events.filter(|event| event["reason"] == "NotServed" && of_edge(event));
        texts.map(|event| format!("{}{}", event["note"], event["message"])).collect::<Vec<_>>()
    };
    assert_eq!(told(), [""; 0], "nothing is wrong yet");
    cluster.apply([secret(&second.certificate, &first.key)]);
    eventually("an Event says so", DEADLINE, || told().iter().any(|text| text.contains("key")));
    assert_eq!(shown(), of_first, "the last one that was valid stays");
    cluster.apply([secret(&second.certificate, &second.key)]);
    eventually("the next valid one is shown", DEADLINE, || shown().is_some_and(|it| Some(it) != of_first));
    cluster.objects().delete("secrets", "shop", "site");
    eventually("handshakes are refused without the Secret", DEADLINE, || shown().is_none());
}

/// Two controllers that serve different classes of one cluster, each with a Gateway of its own, and one route for both.
#[test]
fn controllers_of_two_classes_leave_each_other_their_entries() {
    let (cluster, _origin, edge) = serving();
    let port = free_port();
    let [mut class, mut gateway] = gateway(port);
    class["metadata"]["name"] = "other".into();
    class["spec"]["controllerName"] = "example.com/other".into();
    gateway["metadata"]["name"] = "other".into();
    gateway["spec"]["gatewayClassName"] = "other".into();
    cluster.apply([class, gateway]);
    let settings = ", gateway_controller: example.com/other, ingress_controller: example.com/others, \
                    leader_election: { namespace: weir-system, name: other }, publish_addresses: [\"203.0.113.8\"]";
    let other = weir().start(&format!("{}resource_listeners: [\":{port}\"]\n", cluster.node(settings)));
    let of_both = |path: &str| {
        let mut both = route("orders", path);
        both["spec"]["parentRefs"] = json!([{ "name": "edge" }, { "name": "other" }]);
        both
    };
    let accepting = || {
        let orders = cluster.objects().all("httproutes").into_iter().find(|it| it["metadata"]["name"] == "orders");
        let parents = orders.unwrap_or_default()["status"]["parents"].as_array().cloned().unwrap_or_default();
        let is_accepted = |parent: &Value| {
            let mut conditions = parent["conditions"].as_array().into_iter().flatten();
            conditions.any(|condition| condition["type"] == "Accepted" && condition["status"] == "True")
        };
        let names = parents.iter().filter(|parent| is_accepted(parent)).map(|it| it["controllerName"].to_string());
        names.collect::<BTreeSet<_>>().len()
    };
    for path in ["/both", "/again", "/at-last"] {
        cluster.apply([of_both(path)]);
        edge.wait(path, 200);
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        eventually("the other one serves it, too", DEADLINE, || {
            Client::try_connect(address).is_ok_and(|mut client| client.get(path).is_ok_and(|it| it.status == 200))
        });
        eventually("both have written that they accept it", DEADLINE, || accepting() == 2);
    }
    // Nothing changes any more, so neither of them writes over the other one's entry.
    eventually("nothing is written while Leases are renewed", DEADLINE * 3, || {
        let (writes, renewals) = (cluster.objects().write_count(), cluster.requests("leases"));
        eventually("Leases are renewed", DEADLINE * 2, || cluster.requests("leases") >= renewals + 6);
        cluster.objects().write_count() == writes
    });
    assert_eq!(accepting(), 2);
    drop(other);
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
