//! Manifests, and the resources and statuses that they mean: `NAME.yaml` and `NAME.json`.
//!
//! `WEIR_WRITE_FIXTURES=yes` writes the results anew; read the difference before it is committed.

mod plugins;

use std::path::Path;
use std::{env, fs};

use serde_json::{Map, Value, json};
use weir_kube::{KubeOptions, ResourceList, Translation, World, translate};

fn readable(translation: &Translation) -> Value {
    let mut resources = Map::new();
    for resource in &translation.resources {
        resources.insert(format!("{}/{} of {}", resource.kind, resource.id, resource.origin), resource.value.clone());
    }
    let statuses: Map<String, Value> =
        translation.statuses.iter().map(|one| (one.object.to_string(), one.status.clone())).collect();
    json!({ "resources": resources, "statuses": statuses })
}

fn check(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let manifests = World::from_manifests(&fs::read_to_string(folder.join(format!("{name}.yaml"))).unwrap()).unwrap();
    assert_eq!(manifests.skipped, Vec::<String>::new());
    let options = KubeOptions { adopt_apisix: true, ..plugins::options() };
    let found = readable(&translate(&manifests.world, &options));
    let file = folder.join(format!("{name}.json"));
    if env::var("WEIR_WRITE_FIXTURES").is_ok() {
        fs::write(&file, format!("{found:#}\n")).unwrap();
    }
    let expected: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    assert!(found == expected, "{name}.json differs; now it is:\n{found:#}");
}

#[test]
fn routes_with_matches_and_filters() {
    check("shop");
}

#[test]
fn listeners_and_their_conditions() {
    check("listeners");
}

#[test]
fn streams_over_tcp_tls_and_udp() {
    check("streams");
}

#[test]
fn upstreams_with_policies_and_retries() {
    check("policies");
}

#[test]
fn plugins_of_policies() {
    check("weirpolicies");
}

#[test]
fn objects_of_the_apisix_ingress_controller() {
    check("apisix");
}

#[test]
fn objects_of_apisix_beside_the_gateway_api() {
    check("apisix-gateway");
}

/// One Service for an Ingress and a GRPCRoute of one name, which ask different things of its upstream.
const NAMESAKES: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: { name: weir }
spec: { controllerName: weir.dev/gateway-controller }
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: { name: public, namespace: shop }
spec: { gatewayClassName: weir, listeners: [{ name: any, port: 8080, protocol: HTTP }] }
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: { name: nginx }
spec: { controller: k8s.io/ingress-nginx }
---
apiVersion: v1
kind: Service
metadata: { name: bills, namespace: shop }
spec: { clusterIP: 10.96.0.7, ports: [{ name: web, port: 80 }] }
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: { name: bills-1, namespace: shop, labels: { kubernetes.io/service-name: bills } }
addressType: IPv4
ports: [{ name: web, port: 8001 }]
endpoints: [{ addresses: [10.1.0.9] }]
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: { name: grpc, namespace: shop }
spec: { parentRefs: [{ name: public }], rules: [{ backendRefs: [{ name: bills, port: 80 }] }] }
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: { name: grpc, namespace: shop, annotations: { nginx.ingress.kubernetes.io/load-balance: ewma } }
spec:
  ingressClassName: nginx
  rules:
  - http: { paths: [{ path: /, pathType: Prefix, backend: { service: { name: bills, port: { number: 80 } } } }] }
";

#[test]
fn an_ingress_and_a_route_of_one_name_have_upstreams_of_their_own() {
    let world = World::from_manifests(NAMESAKES).unwrap().world;
    let options = KubeOptions { adopt_ingress_nginx: true, ..KubeOptions::default() };
    let translation = translate(&world, &options);
    let upstreams = translation.resources.iter().filter(|resource| resource.kind == ResourceList::Upstreams);
    let mut ids: Vec<&str> = upstreams.map(|resource| resource.id.as_str()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["shop_bills_80_grpc", "shop_bills_80_ingress_grpc"]);
}
