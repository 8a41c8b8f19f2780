//! Objects that tests have in common.

use std::net::SocketAddr;

use serde_json::{Value, json};

/// What the gateway of these tests is called as a controller.
pub const CONTROLLER: &str = "weir.dev/gateway-controller";

/// A GatewayClass and a Gateway of it in the namespace `shop`, with one listener on `port`.
pub fn gateway(port: u16) -> [Value; 3] {
    [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop" } }),
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "GatewayClass",
            "metadata": { "name": "weir" },
            "spec": { "controllerName": CONTROLLER },
        }),
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": { "name": "edge", "namespace": "shop" },
            "spec": {
                "gatewayClassName": "weir",
                "listeners": [{ "name": "http", "port": port, "protocol": "HTTP" }],
            },
        }),
    ]
}

/// An HTTPRoute of the Gateway from a path to the Service of the same name.
pub fn route(name: &str, path: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": { "name": name, "namespace": "shop" },
        "spec": {
            "parentRefs": [{ "name": "edge" }],
            "rules": [{
                "matches": [{ "path": { "type": "PathPrefix", "value": path } }],
                "backendRefs": [{ "name": name, "port": 80 }],
            }],
        },
    })
}

/// A Service with these endpoints.
pub fn service(name: &str, endpoints: &[SocketAddr]) -> Vec<Value> {
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name, "namespace": "shop" },
        "spec": { "clusterIP": "10.96.0.9", "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] },
    });
    // The ports of a slice are those of all its endpoints, and origins of tests differ in their ports.
    let slice = |(index, endpoint): (usize, &SocketAddr)| {
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{name}-{index}"),
                "namespace": "shop",
                "labels": { "kubernetes.io/service-name": name },
            },
            "addressType": "IPv4",
            "ports": [{ "name": "http", "port": endpoint.port(), "protocol": "TCP" }],
            "endpoints": [{ "addresses": [endpoint.ip().to_string()], "conditions": { "ready": true } }],
        })
    };
    std::iter::once(service).chain(endpoints.iter().enumerate().map(slice)).collect()
}
