//! Objects that tests have in common.

use std::net::SocketAddr;

use serde_json::{Value, json};

/// A GatewayClass of the node, and a Gateway of it with one listener on this port.
pub(crate) fn gateway(port: u16) -> [Value; 2] {
    [
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "GatewayClass",
            "metadata": { "name": "weir" },
            "spec": { "controllerName": "weir.dev/gateway-controller" },
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

/// An HTTPRoute of the Gateway from a path, and those below it, to the Service of the same name.
pub(crate) fn route(name: &str, path: &str) -> Value {
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

/// A TCPRoute or a UDPRoute from a listener of the Gateway to the Service of the same name.
pub(crate) fn stream_route(kind: &str, name: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1alpha2",
        "kind": kind,
        "metadata": { "name": name, "namespace": "shop" },
        "spec": {
            "parentRefs": [{ "name": "edge", "sectionName": name }],
            "rules": [{ "backendRefs": [{ "name": name, "port": 80 }] }],
        },
    })
}

/// A Service with one endpoint.
pub(crate) fn service(name: &str, endpoint: SocketAddr) -> [Value; 2] {
    [
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": name, "namespace": "shop" },
            "spec": { "clusterIP": "10.96.0.9", "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] },
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{name}-1"),
                "namespace": "shop",
                "labels": { "kubernetes.io/service-name": name },
            },
            "addressType": "IPv4",
            "ports": [{ "name": "http", "port": endpoint.port(), "protocol": "TCP" }],
            "endpoints": [{ "addresses": [endpoint.ip().to_string()], "conditions": { "ready": true } }],
        }),
    ]
}
