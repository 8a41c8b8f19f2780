//! Objects that tests have in common.

use std::net::SocketAddr;

use serde_json::{Value, json};

/// The IngressClass that the node serves.
pub fn class() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": { "name": "weir" },
        "spec": { "controller": "weir.dev/ingress-controller" },
    })
}

/// An Ingress of the class from a path, and those below it, to the Service of the same name.
pub fn ingress(name: &str, path: &str) -> Value {
    let backend = json!({ "service": { "name": name, "port": { "number": 80 } } });
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": { "name": name, "namespace": "shop" },
        "spec": {
            "ingressClassName": "weir",
            "rules": [{ "http": { "paths": [{ "path": path, "pathType": "Prefix", "backend": backend }] } }],
        },
    })
}

/// A Service with one endpoint.
pub fn service(name: &str, endpoint: SocketAddr) -> [Value; 2] {
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
