//! Controllers and nodes with the rights that the chart gives them, and no others, on a real API server.

use serde_json::{Value, json};
use weir_testkit::{Authority, DEADLINE, Gateway, KeyKind, SigningRequest, TempDir, eventually};

use crate::control_plane::{ControlPlane, collection};
use crate::edge::weir;
use crate::issuing::ask;
use crate::objects::{gateway, route, service, stream_route};
use crate::policies::policy;
use crate::pulling::{MutualTrust, RunningController, pulling_at, pulling_by};
use crate::real::endpoint;

/// Of the Gateway; the network is the test's own.
const PORT: u16 = 8080;

fn of_gateway_api(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": kind,
        "metadata": { "name": name, "namespace": "shop" },
        "spec": spec,
    })
}

/// A Gateway with listeners of all kinds, and a ListenerSet.
fn listeners() -> Vec<Value> {
    let [class, mut edge] = gateway(PORT);
    let others = [("hidden", 8443, "TLS"), ("bytes", 8081, "TCP"), ("datagrams", 8081, "UDP")];
    for (name, port, protocol) in others {
        let listener = json!({ "name": name, "port": port, "protocol": protocol });
        edge["spec"]["listeners"].as_array_mut().expect("a list").push(listener);
    }
    edge["spec"]["listeners"][1]["tls"] = json!({ "mode": "Passthrough" });
    edge["spec"]["allowedListeners"] = json!({ "namespaces": { "from": "Same" } });
    let more = json!({
        "parentRef": { "name": "edge" },
        "listeners": [{ "name": "more", "port": 8082, "protocol": "HTTP" }],
    });
    vec![class, edge, of_gateway_api("ListenerSet", "more", more)]
}

/// An object of each kind that has a status, with what it refers to.
fn objects(port: u16) -> Vec<Value> {
    let mut all = listeners();
    for (name, protocol) in [("orders", "TCP"), ("secure", "TCP"), ("bytes", "TCP"), ("datagrams", "UDP")] {
        let [mut object, mut slice] = service(name, ControlPlane::endpoint(port));
        object["spec"]["clusterIP"] = Value::Null;
        object["spec"]["ports"][0]["protocol"] = protocol.into();
        slice["ports"][0]["protocol"] = protocol.into();
        all.extend([object, slice]);
    }
    let mut hidden = of_gateway_api("TLSRoute", "hidden", json!({ "hostnames": ["hidden.test"] }));
    hidden["spec"]["parentRefs"] = json!([{ "name": "edge", "sectionName": "hidden" }]);
    hidden["spec"]["rules"] = json!([{ "backendRefs": [{ "name": "bytes", "port": 80 }] }]);
    let calls = json!({
        "parentRefs": [{ "name": "edge" }],
        "hostnames": ["calls.test"],
        "rules": [{ "backendRefs": [{ "name": "orders", "port": 80 }] }],
    });
    let verified = json!({
        "targetRefs": [{ "group": "", "kind": "Service", "name": "secure" }],
        "validation": {
            "hostname": "secure.test",
            "caCertificateRefs": [{ "group": "", "kind": "ConfigMap", "name": "authorities" }],
        },
    });
    let users = json!({ "users": [{ "username": "jack", "password": "$secret://kubernetes/login/jack" }] });
    let backend = json!({ "service": { "name": "orders", "port": { "number": 80 } } });
    all.extend([
        route("orders", "/orders"),
        route("secure", "/secure"),
        of_gateway_api("GRPCRoute", "calls", calls),
        hidden,
        stream_route("TCPRoute", "bytes"),
        stream_route("UDPRoute", "datagrams"),
        of_gateway_api("BackendTLSPolicy", "verified", verified),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "authorities", "namespace": "shop" },
            "data": { "ca.crt": Authority::of_tests().certificate },
        }),
        policy("login", ("HTTPRoute", "secure"), json!({ "basic-auth": users })),
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "login", "namespace": "shop" },
            "type": "weir.dev/plugin", "stringData": { "jack": "hunter2" },
        }),
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": { "name": "weir" },
            "spec": { "controller": "weir.dev/ingress-controller" },
        }),
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            // An annotation of another controller is told by an Event.
            "metadata": {
                "name": "web", "namespace": "shop", "annotations": { "nginx.ingress.kubernetes.io/app-root": "/app" },
            },
            "spec": {
                "ingressClassName": "weir",
                "rules": [{ "host": "web.test", "http": { "paths": [{ "path": "/", "pathType": "Prefix", "backend": backend }] } }],
            },
        }),
    ]);
    all
}

/// The kinds whose objects get a status here.
const WITH_STATUS: [&str; 11] = [
    "GatewayClass",
    "Gateway",
    "ListenerSet",
    "HTTPRoute",
    "GRPCRoute",
    "TLSRoute",
    "TCPRoute",
    "UDPRoute",
    "BackendTLSPolicy",
    "WeirPolicy",
    "Ingress",
];

/// Whether Weir has written the status of an object: its name stands in conditions, and an Ingress has an address.
fn is_told(object: &Value) -> bool {
    let status = object["status"].to_string();
    match object["kind"].as_str() {
        Some("GatewayClass" | "Gateway" | "ListenerSet") => {
            let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
            conditions.any(|condition| condition["type"] == "Accepted" && condition["status"] == "True")
        }
        Some("Ingress") => object["status"]["loadBalancer"]["ingress"][0].is_object(),
        _ => status.contains("weir.dev/gateway-controller"),
    }
}

/// A cluster with the rights that the chart renders with a file of values, and with these objects; the settings of who follows it.
fn cluster(values: &str) -> Option<(ControlPlane, Vec<Value>, Value)> {
    let plane = ControlPlane::start()?;
    plane.define_gateway_api();
    for namespace in ["shop", "blog"] {
        plane.apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }));
    }
    let settings = plane.installed_with(values)?;
    let objects = objects(endpoint(&plane, "first"));
    plane.create_all(objects.iter().cloned());
    Some((plane, objects, settings))
}

/// Waits until all that may be written has been, and no request has been refused for a missing right.
#[track_caller]
fn all_is_written(plane: &ControlPlane, objects: &[Value]) {
    for object in objects.iter().filter(|object| WITH_STATUS.iter().any(|kind| object["kind"] == *kind)) {
        let path = format!("{}/{}", collection(object), object["metadata"]["name"].as_str().expect("a name"));
        eventually(&format!("the status of {path} is written"), DEADLINE * 3, || is_told(&plane.get(&path)));
    }
    eventually("an Event is written", DEADLINE * 3, || {
        plane.get("/api/v1/namespaces/shop/events")["items"].as_array().is_some_and(|events| !events.is_empty())
    });
    assert_eq!(plane.refusals(), [""; 0], "the rights that the chart gives are enough");
}

#[test]
fn requests_without_a_right_are_seen() {
    let Some(plane) = ControlPlane::start() else { return };
    assert_eq!(plane.refusals(), [""; 0]);
    assert_eq!(plane.ask_as("weir", "/api/v1/nodes"), 403, "no node of Weir reads those of the cluster");
    let refusals = plane.refusals();
    assert!(refusals.len() == 1 && refusals[0].ends_with(":weir list /api/v1/nodes"), "{refusals:?}");
}

#[test]
fn a_controller_needs_no_rights_beyond_those_of_the_chart() {
    let Some((plane, objects, settings)) = cluster("controller.yaml") else { return };
    let trust = MutualTrust::new();
    let controller = plane.beside(|| RunningController::following(&settings.to_string(), &trust, ""));
    eventually("the controller is ready", DEADLINE * 3, || plane.beside(|| controller.is_ready()));
    let _edge = plane.beside(|| pulling_at(PORT, &trust, &[controller.address], ""));
    all_is_written(&plane, &objects);
}

#[test]
fn controllers_issue_certificates_for_tokens_of_a_real_cluster() {
    let Some((plane, objects, settings)) = cluster("controller.yaml") else { return };
    let mut issue = ControlPlane::issue_settings("controller.yaml").expect("the chart lets them");
    // The pods of the test have no names.
    issue["names"] = json!(["127.0.0.1"]);
    let audience = issue["audience"].as_str().expect("there is one").to_owned();
    let issue = format!("issue: {issue}");
    let controller = plane.beside(|| RunningController::with_certificates(&settings.to_string(), &issue, ""));
    eventually("the controller is ready", DEADLINE * 3, || plane.beside(|| controller.is_ready()));
    let of_chart = |kind: &str| plane.get(&format!("/api/v1/namespaces/weir-system/{kind}/edge-weir-controller-ca"));
    let authorities = of_chart("configmaps")["data"]["ca.crt"].as_str().expect("it is published").to_owned();
    assert!(of_chart("secrets")["data"]["active.key"].is_string());
    let pod = TempDir::new();
    let ca = pod.write("ca.crt", &authorities).display().to_string();
    let token = pod.write("token", plane.token_for("edge-weir", &audience)).display().to_string();
    let enrolment = format!("enrolment: {{ token: {token}, ca: {ca} }}");
    let _edge = plane.beside(|| pulling_by(PORT, &enrolment, &[controller.address], ""));
    all_is_written(&plane, &objects);
    let request = SigningRequest::new(&[], KeyKind::Ecdsa).der;
    for (account, token, status) in [
        ("edge-weir", plane.token_for("edge-weir", "another"), 401),
        ("edge-weir-controller", plane.token_for("edge-weir-controller", &audience), 403),
        ("edge-weir", plane.token_without_pod("edge-weir", &audience), 403),
        ("edge-weir", plane.token_for("edge-weir", &audience), 200),
    ] {
        let answer = plane.beside(|| ask(controller.address, &authorities, &token, &request));
        assert_eq!(answer.status, status, "{account}: {}", answer.text());
    }
    assert_eq!(plane.refusals(), [""; 0], "the rights that the chart gives are enough");
}

/// A node that follows the cluster itself, with the rights that the chart renders with a file of values.
#[track_caller]
fn a_node_needs_no_others(values: &str) -> Option<(ControlPlane, Gateway)> {
    let (plane, objects, settings) = cluster(values)?;
    let data = TempDir::new();
    let data_dir = data.path().display();
    let file =
        format!("store: {{ kubernetes: {settings} }}\ndata_dir: {data_dir}\nresource_listeners: [\":{PORT}\"]\n");
    let node = plane.beside(|| weir().start(&file));
    all_is_written(&plane, &objects);
    Some((plane, node))
}

#[test]
fn a_node_of_some_namespaces_needs_no_rights_beyond_theirs() {
    let _ = a_node_needs_no_others("namespaces.yaml");
}

#[test]
fn a_node_that_makes_services_needs_no_rights_beyond_those_of_the_chart() {
    let Some((plane, _node)) = a_node_needs_no_others("gateway-api.yaml") else { return };
    for path in ["/api/v1/namespaces/shop/services", "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"] {
        eventually(&format!("{path} has that of the Gateway"), DEADLINE * 3, || {
            plane.ask("GET", path, None).1.contains("gateway.networking.k8s.io/gateway-name")
        });
    }
    assert_eq!(plane.refusals(), [""; 0]);
}
