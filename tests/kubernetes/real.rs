//! A node on a real API server.

use std::net::TcpListener;

use serde_json::{Value, json};
use weir_testkit::{Client, DEADLINE, Gateway, TempDir, eventually};

use crate::control_plane::ControlPlane;
use crate::edge::weir;
use crate::objects::{class, ingress, service};

const CLASSES: &str = "/apis/networking.k8s.io/v1/ingressclasses";
const INGRESSES: &str = "/apis/networking.k8s.io/v1/namespaces/shop/ingresses";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
const SERVICES: &str = "/api/v1/namespaces/shop/services";

/// Answers each connection with a name, on the side of the node. It ends with the test's process.
fn endpoint(plane: &ControlPlane, name: &'static str) -> u16 {
    let listener = plane.beside(|| TcpListener::bind("0.0.0.0:0")).expect("there are free ports");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let answer = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{name}", name.len());
            let mut head = [0; 1024];
            // What does not come, or is not taken, is the client's affair.
            let _ = std::io::Read::read(&mut stream, &mut head);
            let _ = std::io::Write::write_all(&mut stream, answer.as_bytes());
        }
    });
    port
}

fn get(plane: &ControlPlane, node: &Gateway, path: &str) -> (u16, String) {
    let answer = plane.beside(|| Client::connect(node.addr()).get(path)).expect("the node answers");
    (answer.status, answer.text())
}

#[track_caller]
fn wait(plane: &ControlPlane, node: &Gateway, path: &str, wanted: (u16, &str)) {
    eventually(&format!("{path} is answered with {wanted:?}"), DEADLINE * 3, || {
        let (status, text) = get(plane, node, path);
        status == wanted.0 && (wanted.1.is_empty() || text == wanted.1)
    });
}

#[test]
fn an_ingress_of_a_real_cluster_is_served_through_all_its_changes() {
    let Some(mut plane) = ControlPlane::start() else { return };
    let first = endpoint(&plane, "first");
    plane.create("/api/v1/namespaces", &json!({ "metadata": { "name": "shop" } }));
    plane.create(CLASSES, &class());
    plane.create(INGRESSES, &ingress("orders", "/orders"));
    let [mut of_service, slice] = service("orders", ControlPlane::endpoint(first));
    of_service["spec"]["clusterIP"] = Value::Null;
    plane.create(SERVICES, &of_service);
    plane.create(SLICES, &slice);
    let data = TempDir::new();
    let file = format!("{}data_dir: {}\n", plane.node(), data.path().display());
    let node = plane.beside(|| weir().start(&file));
    wait(&plane, &node, "/orders", (200, "first"));

    // The status, by the rights of the node.
    let path = format!("{INGRESSES}/orders");
    eventually("the Ingress has an address", DEADLINE * 3, || {
        plane.get(&path)["status"]["loadBalancer"]["ingress"][0]["ip"].is_string()
    });
    let version = plane.get(&path)["metadata"]["resourceVersion"].clone();

    let second = endpoint(&plane, "second");
    plane.patch(&format!("{SLICES}/orders-1"), &json!({ "ports": [{ "name": "http", "port": second, "protocol": "TCP" }] }));
    wait(&plane, &node, "/orders", (200, "second"));
    assert_eq!(plane.get(&path)["metadata"]["resourceVersion"], version, "a status that is right is not written again");

    // Changes that nobody watches, of an API server that was killed.
    plane.stop();
    assert_eq!(get(&plane, &node, "/orders"), (200, "second".to_owned()));
    plane.resume();
    plane.delete(&path);
    wait(&plane, &node, "/orders", (404, ""));
    plane.create(INGRESSES, &ingress("orders", "/sales"));
    wait(&plane, &node, "/sales", (200, "second"));
}
