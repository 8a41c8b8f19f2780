//! Which addresses of Services get requests, by the controllers of a real cluster.

use serde_json::{Value, json};
use weir_testkit::{Client, DEADLINE, TempDir, eventually};

use crate::control_plane::ControlPlane;
use crate::edge::weir;
use crate::objects::{gateway, route};
use crate::real::endpoint;

const ROUTES: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/shop/httproutes";
const SERVICES: &str = "/api/v1/namespaces/shop/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
/// Of the Gateway, and of the pods; the network is the test's own.
const PORT: u16 = 8080;
const POD_PORT: u16 = 9000;

/// A Deployment of one pod of `weir backend`. With a readiness gate, its pod is never ready.
fn deployment(name: &str, gates: Value) -> Value {
    let labels = json!({ "app": name });
    let args = ["backend".to_owned(), "--listen".to_owned(), format!("0.0.0.0:{POD_PORT}")];
    let container = json!({ "name": "echo", "image": "weir", "args": args });
    json!({
        "metadata": { "name": name, "namespace": "shop" },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [container], "readinessGates": gates } },
        },
    })
}

/// A Service with its route, which has the path of its name.
fn create(plane: &ControlPlane, name: &str, mut spec: Value) {
    if spec["ports"].is_null() {
        spec["ports"] = json!([{ "name": "http", "port": 80, "targetPort": POD_PORT }]);
    }
    plane.create(SERVICES, &json!({ "metadata": { "name": name, "namespace": "shop" }, "spec": spec }));
    plane.create(ROUTES, &route(name, &format!("/{name}")));
}

#[track_caller]
fn wait(plane: &ControlPlane, name: &str, status: u16) {
    eventually(&format!("{name} is answered with {status}"), DEADLINE * 3, || {
        let mut client = plane.beside(|| Client::connect(([127, 0, 0, 1], PORT).into()));
        client.get(&format!("/{name}")).is_ok_and(|answer| answer.status == status)
    });
}

/// Whether the EndpointSlices of a Service have an endpoint with this condition.
fn has_endpoint(plane: &ControlPlane, service: &str, condition: &str, is: bool) -> bool {
    let slices = plane.get(&format!("{SLICES}?labelSelector=kubernetes.io/service-name={service}"));
    let endpoints = slices["items"].as_array().into_iter().flatten().flat_map(|slice| slice["endpoints"].as_array());
    endpoints.flatten().any(|endpoint| endpoint["conditions"][condition] == is)
}

#[test]
fn services_of_each_kind_lead_where_the_cluster_says() {
    let Some(plane) = ControlPlane::start() else { return };
    plane.define_gateway_api();
    let Some(_controllers) = plane.start_controllers() else { return };
    let Some(_agent) = plane.start_agent() else { return };
    plane.create("/api/v1/namespaces", &json!({ "metadata": { "name": "shop" } }));
    for (name, gates) in [("ready", Value::Null), ("unready", json!([{ "conditionType": "shop.test/open" }]))] {
        plane.create("/apis/apps/v1/namespaces/shop/deployments", &deployment(name, gates));
    }
    let [class, edge] = gateway(PORT);
    plane.create("/apis/gateway.networking.k8s.io/v1/gatewayclasses", &class);
    plane.create("/apis/gateway.networking.k8s.io/v1/namespaces/shop/gateways", &edge);
    let data = TempDir::new();
    let file = format!("{}data_dir: {}\nresource_listeners: [\":{PORT}\"]\n", plane.node(), data.path().display());
    let _node = plane.beside(|| weir().start(&file));

    create(&plane, "headless", json!({ "clusterIP": "None", "selector": { "app": "ready" } }));
    wait(&plane, "headless", 200);

    // Pods that are not ready, and those that are published all the same.
    create(&plane, "unready", json!({ "selector": { "app": "unready" } }));
    create(&plane, "published", json!({ "selector": { "app": "unready" }, "publishNotReadyAddresses": true }));
    wait(&plane, "published", 200);
    eventually("the pod that is not ready is listed", DEADLINE * 3, || has_endpoint(&plane, "unready", "ready", false));
    wait(&plane, "unready", 503);
    assert!(has_endpoint(&plane, "published", "serving", false), "it is the same pod");
    plane.patch(&format!("{SERVICES}/published"), &json!({ "spec": { "publishNotReadyAddresses": false } }));
    wait(&plane, "published", 503);

    // Without a selector: what is written by hand.
    let at = ControlPlane::endpoint(endpoint(&plane, "by hand"));
    let (address, port) = (at.ip().to_string(), at.port());
    for (name, address_of_cluster) in [("by-hand", Value::Null), ("headless-by-hand", json!("None"))] {
        create(&plane, name, json!({ "clusterIP": address_of_cluster }));
    }
    wait(&plane, "by-hand", 503);
    let endpoints = json!({
        "metadata": { "name": "by-hand", "namespace": "shop" },
        "subsets": [{ "addresses": [{ "ip": address }], "ports": [{ "name": "http", "port": port }] }],
    });
    plane.create("/api/v1/namespaces/shop/endpoints", &endpoints);
    wait(&plane, "by-hand", 200);
    let slice = json!({
        "metadata": {
            "name": "any-name", "namespace": "shop", "labels": { "kubernetes.io/service-name": "headless-by-hand" },
        },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "port": port }],
        "endpoints": [{ "addresses": [address] }],
    });
    plane.create(SLICES, &slice);
    wait(&plane, "headless-by-hand", 200);
    plane.delete("/api/v1/namespaces/shop/endpoints/by-hand");
    wait(&plane, "by-hand", 503);

    // A name could lead past the borders of namespaces.
    create(&plane, "elsewhere", json!({ "type": "ExternalName", "externalName": "published.shop.svc.cluster.local" }));
    wait(&plane, "elsewhere", 500);
    eventually("the route says so", DEADLINE * 3, || {
        let status = plane.get(&format!("{ROUTES}/elsewhere"))["status"]["parents"][0]["conditions"].take();
        let mut conditions = status.as_array().into_iter().flatten();
        conditions.any(|it| it["type"] == "ResolvedRefs" && it["reason"] == "UnsupportedProtocol")
    });
}
