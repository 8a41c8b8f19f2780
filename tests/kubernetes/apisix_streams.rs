//! TCP and UDP by objects of the APISIX ingress controller.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use serde_json::{Value, json};
use weir_testkit::{Answer, Client, DEADLINE, Gateway, Origin, eventually, free_port};

use crate::edge::weir;
use crate::following::datagram_echo;
use crate::objects::{gateway, service, stream_route};
use crate::stand_in::{ObjectPath, StandIn};

/// A cluster with Services for both, and what answers them.
fn cluster() -> (StandIn, Origin) {
    let cluster = StandIn::start();
    let origin = Origin::serving(|_| Answer::ok("bytes"));
    cluster.apply(service("bytes", origin.addr()));
    let [mut datagrams, mut slice] = service("datagrams", datagram_echo());
    datagrams["spec"]["ports"][0]["protocol"] = "UDP".into();
    slice["ports"][0]["protocol"] = "UDP".into();
    cluster.apply([datagrams, slice]);
    cluster.apply([json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IngressClass",
        "metadata": { "name": "apisix" }, "spec": { "controller": "apisix.apache.org/apisix-ingress-controller" },
    })]);
    (cluster, origin)
}

fn rule(protocol: &str, service: &str, port: u16) -> Value {
    let backend = json!({ "serviceName": service, "servicePort": 80 });
    json!({ "name": service, "protocol": protocol, "match": { "ingressPort": port }, "backend": backend })
}

fn route(name: &str, rules: Value) -> Value {
    json!({
        "apiVersion": "apisix.apache.org/v2", "kind": "ApisixRoute",
        "metadata": { "name": name, "namespace": "shop" },
        "spec": { "ingressClassName": "apisix", "stream": rules },
    })
}

/// What is answered to a request through the port, if anything.
fn carried(port: u16) -> Option<String> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    Client::try_connect(address).ok()?.get("/").ok().map(|answer| answer.text())
}

#[track_caller]
fn wait(port: u16, expected: Option<&str>) {
    eventually(&format!("{expected:?} comes back"), DEADLINE, || carried(port).as_deref() == expected);
}

fn is_echoed(port: u16) -> bool {
    let client = UdpSocket::bind("127.0.0.1:0").expect("loopback has a free port");
    client.set_read_timeout(Some(Duration::from_millis(100))).expect("an option");
    client.send_to(b"datagram", ("127.0.0.1", port)).expect("it is sent");
    let mut answer = [0; 16];
    client.recv(&mut answer).is_ok_and(|length| answer[..length] == *b"datagram")
}

fn node(cluster: &StandIn, port: u16) -> Gateway {
    let listen = |protocol: &str| format!("{{ address: \"127.0.0.1:{port}\", protocol: {protocol} }}");
    let file = cluster.node(", adopt_apisix: true");
    weir().start(&format!("{file}listen: [{}, {}]\n", listen("tcp"), listen("udp")))
}

/// The first condition of an object of the namespace, as `REASON MESSAGE`.
fn told(cluster: &StandIn, plural: &str, name: &str, pointer: &str) -> String {
    let namespace = Some("shop".to_owned());
    let path = ObjectPath { plural: plural.to_owned(), namespace, name: Some(name.to_owned()) };
    let object = cluster.objects().get(&path).unwrap_or_default();
    let text = |key: &str| object.pointer(&format!("{pointer}/{key}")).and_then(Value::as_str).unwrap_or_default();
    format!("{} {}", text("reason"), text("message"))
}

#[test]
fn rules_for_tcp_and_udp_are_served_and_closed_while_they_are_wrong() {
    let ((cluster, _origin), port) = (cluster(), free_port());
    cluster.apply([route("both", json!([rule("TCP", "bytes", port), rule("UDP", "datagrams", port)]))]);
    let _node = node(&cluster, port);
    wait(port, Some("bytes"));
    eventually("datagrams are carried", DEADLINE, || is_echoed(port));

    let with = |plugin: Value| {
        let mut rule = rule("TCP", "bytes", port);
        rule["plugins"] = json!([plugin]);
        cluster.apply([route("both", json!([rule]))]);
    };
    with(json!({ "name": "ip-restriction", "enable": true, "config": { "blacklist": ["127.0.0.1"] } }));
    wait(port, None);
    with(json!({ "name": "ip-restriction", "enable": true, "config": { "blacklist": ["192.0.2.1"] } }));
    wait(port, Some("bytes"));
    // It cannot protect what is no HTTP.
    with(json!({ "name": "key-auth", "enable": true, "config": {} }));
    wait(port, None);
    let expected = "InvalidSpec stream rule bytes: resets its connections: plugin key-auth: works with HTTP alone";
    let accepted = || told(&cluster, "apisixroutes", "both", "/status/conditions/0");
    eventually("the status says so", DEADLINE, || accepted().starts_with(expected));
    cluster.apply([route("both", json!([rule("TCP", "bytes", port)]))]);
    wait(port, Some("bytes"));
    cluster.objects().delete("apisixroutes", "shop", "both");
    wait(port, None);
}

#[test]
fn plugins_of_an_l4_route_policy_apply_to_a_tcp_route_until_it_is_gone() {
    let ((cluster, _origin), port) = (cluster(), free_port());
    let [class, mut edge] = gateway(port);
    edge["spec"]["listeners"] = json!([{ "name": "bytes", "port": port, "protocol": "TCP" }]);
    cluster.apply([class, edge, stream_route("TCPRoute", "bytes")]);
    let policy = |plugin: Value| {
        cluster.apply([json!({
            "apiVersion": "apisix.apache.org/v1alpha1", "kind": "L4RoutePolicy",
            "metadata": { "name": "closed", "namespace": "shop" },
            "spec": {
                "targetRefs": [{ "group": "gateway.networking.k8s.io", "kind": "TCPRoute", "name": "bytes" }],
                "plugins": [plugin],
            },
        })]);
    };
    let settings = format!("{}resource_listeners: [\":{port}\"]\n", cluster.node(", adopt_apisix: true"));
    let _node = weir().start(&settings);
    wait(port, Some("bytes"));
    policy(json!({ "name": "ip-restriction", "config": { "blacklist": ["127.0.0.1"] } }));
    wait(port, None);
    let accepted = || told(&cluster, "l4routepolicies", "closed", "/status/ancestors/0/conditions/0");
    eventually("it is accepted", DEADLINE, || accepted() == "Accepted ");
    policy(json!({ "name": "ip-restriction", "config": { "whitelist": ["127.0.0.1"] } }));
    wait(port, Some("bytes"));
    policy(json!({ "name": "key-auth", "config": {} }));
    wait(port, None);
    eventually("it is refused", DEADLINE, || accepted().starts_with("Invalid plugin key-auth: works with HTTP alone"));
    cluster.objects().delete("l4routepolicies", "shop", "closed");
    wait(port, Some("bytes"));
}
