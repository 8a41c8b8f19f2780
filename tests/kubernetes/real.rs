//! A node on a real API server.

use std::net::TcpListener;

use serde_json::{Value, json};
use weir_testkit::{Client, DEADLINE, Gateway, TempDir, eventually};

use crate::control_plane::ControlPlane;
use crate::edge::weir;
use crate::objects::{gateway, route, service};
use crate::policies::policy;

const CLASSES: &str = "/apis/gateway.networking.k8s.io/v1/gatewayclasses";
const GATEWAYS: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/shop/gateways";
const ROUTES: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/shop/httproutes";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
const SERVICES: &str = "/api/v1/namespaces/shop/services";
const POLICIES: &str = "/apis/weir.dev/v1alpha1/namespaces/shop/weirpolicies";
const SECRETS: &str = "/api/v1/namespaces/shop/secrets";
/// Of the Gateway; the network is the test's own.
const PORT: u16 = 8080;

/// Answers each connection with a name, on the side of the node. It ends with the test's process.
pub(crate) fn endpoint(plane: &ControlPlane, name: &'static str) -> u16 {
    let listener = plane.beside(|| TcpListener::bind("0.0.0.0:0")).expect("there are free ports");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let answer =
                format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{name}", name.len());
            let mut head = [0; 1024];
            // What does not come, or is not taken, is the client's affair.
            let _ = std::io::Read::read(&mut stream, &mut head);
            let _ = std::io::Write::write_all(&mut stream, answer.as_bytes());
        }
    });
    port
}

fn get(plane: &ControlPlane, path: &str) -> (u16, String) {
    let answer = plane.beside(|| Client::connect(([127, 0, 0, 1], PORT).into()).get(path)).expect("the node answers");
    (answer.status, answer.text())
}

#[track_caller]
fn wait(plane: &ControlPlane, path: &str, wanted: (u16, &str)) {
    eventually(&format!("{path} is answered with {wanted:?}"), DEADLINE * 3, || {
        let (status, text) = get(plane, path);
        status == wanted.0 && (wanted.1.is_empty() || text == wanted.1)
    });
}

/// A node that serves a cluster. It ends with this value.
struct RealEdge {
    node: Gateway,
    _data: TempDir,
}

/// Puts a Gateway into the cluster, with an HTTPRoute from `/orders` to an endpoint that answers with `first`, and starts a node.
fn serving(plane: &ControlPlane) -> RealEdge {
    let first = endpoint(plane, "first");
    plane.create("/api/v1/namespaces", &json!({ "metadata": { "name": "shop" } }));
    plane.define_gateway_api();
    let [class, edge] = gateway(PORT);
    plane.create(CLASSES, &class);
    plane.create(GATEWAYS, &edge);
    plane.create(ROUTES, &route("orders", "/orders"));
    let [mut of_service, slice] = service("orders", ControlPlane::endpoint(first));
    of_service["spec"]["clusterIP"] = Value::Null;
    plane.create(SERVICES, &of_service);
    plane.create(SLICES, &slice);
    let data = TempDir::new();
    let file = format!("{}data_dir: {}\nresource_listeners: [\":{PORT}\"]\n", plane.node(), data.path().display());
    let node = plane.beside(|| weir().start(&file));
    wait(plane, "/orders", (200, "first"));
    RealEdge { node, _data: data }
}

#[test]
fn a_route_of_a_real_cluster_is_served_through_all_its_changes() {
    let Some(mut plane) = ControlPlane::start() else { return };
    let _edge = serving(&plane);

    // The status, by the rights of the node.
    let path = format!("{ROUTES}/orders");
    eventually("the route is accepted", DEADLINE * 3, || {
        let status = &plane.get(&path)["status"]["parents"][0]["conditions"];
        let mut conditions = status.as_array().into_iter().flatten();
        conditions.any(|condition| condition["type"] == "Accepted" && condition["status"] == "True")
    });
    let version = plane.get(&path)["metadata"]["resourceVersion"].clone();

    let second = endpoint(&plane, "second");
    plane.patch(
        &format!("{SLICES}/orders-1"),
        &json!({ "ports": [{ "name": "http", "port": second, "protocol": "TCP" }] }),
    );
    wait(&plane, "/orders", (200, "second"));
    assert_eq!(plane.get(&path)["metadata"]["resourceVersion"], version, "a status that is right is not written again");

    // The API server ends and comes back; what changes then is followed.
    plane.stop();
    assert_eq!(get(&plane, "/orders"), (200, "second".to_owned()));
    plane.resume();
    plane.delete(&path);
    wait(&plane, "/orders", (404, ""));
    plane.create(ROUTES, &route("orders", "/sales"));
    wait(&plane, "/sales", (200, "second"));
}

#[test]
fn a_policy_of_a_real_cluster_applies_with_its_secret_and_says_so() {
    let Some(plane) = ControlPlane::start() else { return };
    let edge = serving(&plane);
    let users = json!({ "users": [{ "username": "jack", "password": "$secret://kubernetes/login/jack" }] });
    plane.create(POLICIES, &policy("login", ("HTTPRoute", "orders"), json!({ "basic-auth": users })));
    wait(&plane, "/orders", (500, ""));
    wait_reason(&plane, "login", "Invalid");
    let secret = json!({
        "metadata": { "name": "login" }, "type": "weir.dev/plugin", "stringData": { "jack": "hunter2" },
    });
    plane.create(SECRETS, &secret);
    wait(&plane, "/orders", (401, ""));
    wait_reason(&plane, "login", "Accepted");
    plane.delete(&format!("{SECRETS}/login"));
    wait(&plane, "/orders", (500, ""));
    wait_reason(&plane, "login", "Invalid");
    plane.delete(&format!("{POLICIES}/login"));
    wait(&plane, "/orders", (200, "first"));
    let told = edge.node.stderr();
    assert!(!told.contains("forbidden"), "the chart gives all rights that the node needs: {told}");
}

/// Waits until the condition `Accepted` of the policy's target has this reason.
#[track_caller]
fn wait_reason(plane: &ControlPlane, policy: &str, reason: &str) {
    eventually(&format!("{policy} is {reason}"), DEADLINE * 3, || {
        let found = plane.get(&format!("{POLICIES}/{policy}"));
        found["status"]["ancestors"][0]["conditions"][0]["reason"] == reason
    });
}
