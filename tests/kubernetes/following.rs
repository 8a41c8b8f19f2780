//! What changes in the cluster, and what the node serves then.

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use serde_json::json;
use weir_testkit::{Answer, Client, DEADLINE, Origin, TempDir, eventually, free_port};

use crate::edge::{Edge, serving, weir};
use crate::objects::{gateway, route, service, stream_route};
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

/// The cluster gives endpoints to zones, and the node knows its own.
#[test]
fn endpoints_of_the_nodes_zone_are_used_and_others_while_none_of_these_can_be() {
    let (cluster, data, port) = (StandIn::start(), TempDir::new(), free_port());
    let [near, far] = ["near", "far"].map(|name| Origin::serving(move |_| Answer::ok(name)));
    let of_zone = |origin: &Origin, zone: &str| {
        let [of_service, mut slice] = service("orders", origin.addr());
        slice["metadata"]["name"] = format!("orders-{zone}").into();
        slice["endpoints"][0]["hints"] = json!({ "forZones": [{ "name": zone }] });
        [of_service, slice]
    };
    cluster.apply(gateway(port).into_iter().chain([route("orders", "/orders")]));
    cluster.apply(of_zone(&near, "a").into_iter().chain(of_zone(&far, "b")));
    let store = cluster.node("").replacen('{', "{ zone: a,", 1);
    let file = format!("{store}data_dir: {}\nresource_listeners: [\":{port}\"]\n", data.path().display());
    let edge = Edge::with_file(file, data, port);
    edge.wait("/orders", 200);
    for _ in 0..20 {
        assert_eq!(edge.get("/orders").text(), "near");
    }
    assert_eq!(far.requests().len(), 0);
    drop(near);
    for _ in 0..20 {
        assert_eq!(edge.get("/orders").text(), "far", "no request is lost with the zone");
    }
}

/// An endpoint that sends each datagram back.
pub(crate) fn datagram_echo() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback has a free port");
    let addr = socket.local_addr().expect("it is bound");
    thread::spawn(move || {
        let mut buffer = [0; 1024];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    addr
}

#[test]
fn streams_over_tcp_and_udp_are_carried_until_their_route_is_gone() {
    let (cluster, port) = (StandIn::start(), free_port());
    let [class, mut edge] = gateway(port);
    edge["spec"]["listeners"] = json!([
        { "name": "bytes", "port": port, "protocol": "TCP" },
        { "name": "datagrams", "port": port, "protocol": "UDP" },
    ]);
    let origin = Origin::serving(|_| Answer::ok("bytes"));
    let [mut datagrams, mut slice] = service("datagrams", datagram_echo());
    datagrams["spec"]["ports"][0]["protocol"] = "UDP".into();
    slice["ports"][0]["protocol"] = "UDP".into();
    cluster.apply([class, edge, datagrams, slice]);
    cluster.apply(service("bytes", origin.addr()));
    cluster.apply([stream_route("TCPRoute", "bytes"), stream_route("UDPRoute", "datagrams")]);
    let _node = weir().start(&format!("{}resource_listeners: [\":{port}\"]\n", cluster.node("")));

    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    let get = || Client::try_connect(addr).ok()?.get("/").ok().map(|answer| answer.text());
    eventually("bytes are carried", DEADLINE, || get().is_some_and(|text| text == "bytes"));
    let client = UdpSocket::bind("127.0.0.1:0").expect("loopback has a free port");
    client.set_read_timeout(Some(Duration::from_millis(100))).expect("an option");
    eventually("datagrams are carried", DEADLINE, || {
        let mut answer = [0; 16];
        client.send_to(b"datagram", addr).expect("it is sent");
        client.recv(&mut answer).is_ok_and(|length| answer[..length] == *b"datagram")
    });

    cluster.objects().delete("tcproutes", "shop", "bytes");
    eventually("connections are reset", DEADLINE, || get().is_none());
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
