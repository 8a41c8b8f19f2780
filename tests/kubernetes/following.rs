//! What changes in the cluster, and what the node serves then.

use weir_testkit::{Answer, Client, DEADLINE, Origin, eventually, free_port};

use crate::edge::{serving, weir};
use crate::objects::{route, service};
use crate::stand_in::StandIn;

#[test]
fn a_route_is_served_changed_and_removed() {
    let (cluster, _origin, edge) = serving();
    assert_eq!(edge.get("/orders").text(), "orders");
    cluster.apply([route("orders", "/sales")]);
    edge.wait("/sales", 200);
    edge.wait("/orders", 404);
    cluster.objects().delete("httproutes", "shop", "orders");
    edge.wait("/sales", 404);
}

#[test]
fn endpoints_come_and_go() {
    let (cluster, first, edge) = serving();
    let second = Origin::serving(|_| Answer::ok("second"));
    cluster.apply(service("orders", second.addr()));
    eventually("the new endpoint answers", DEADLINE, || edge.get("/orders").text() == "second");
    let before = first.requests().len();
    assert_eq!(edge.get("/orders").text(), "second");
    assert_eq!(first.requests().len(), before, "nothing goes to the old one");
}

#[test]
fn the_admin_api_changes_no_resources() {
    let cluster = StandIn::start();
    let admin = free_port();
    let settings = "keys: [{ name: ops, key: a-key-of-an-operator, role: admin }]";
    let _node = weir().start(&format!("{}admin: {{ listen: \"127.0.0.1:{admin}\", {settings} }}\n", cluster.node("")));
    let put = Client::connect(([127, 0, 0, 1], admin).into()).ask(
        "PUT /apisix/admin/routes/r HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: a-key-of-an-operator\r\nContent-Length: 12\r\n\r\n\
         {\"uri\": \"/\"}",
    );
    let put = put.expect("the Admin API answers");
    assert_eq!(put.status, 409, "{}", put.text());
    assert!(put.text().contains("Kubernetes"), "{}", put.text());
}
