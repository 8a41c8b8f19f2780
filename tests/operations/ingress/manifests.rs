//! Manifests as teams have them, after such as they publish: what is written for them passes `weir check`, requests are answered, and what
//! is not served is as listed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use weir_testkit::{Answer, Authority, Origin, Reading, TempDir};

use super::{Cluster, IngressRequest};

/// Files, and the losses: each object with the annotation, or another part of the text.
const FILES: &[(&str, &[&str])] = &[
    ("argo-cd.yaml", &["there is no Secret `argocd-tls`", "there is no Secret `argocd-grpc-tls`"]),
    ("blog.yaml", &["there is no Secret `blog-tls`"]),
    ("canary.yaml", &[]),
    ("cluster-dashboard.yaml", &["`ssl-passthrough`"]),
    ("cors-api.yaml", &[]),
    ("cost-report.yaml", &["`configuration-snippet`"]),
    ("dashboards.yaml", &["there is no Secret `dashboards-tls`"]),
    ("downloads.yaml", &[]),
    ("exporters.yaml", &[]),
    ("grafana.yaml", &["there is no Secret `grafana-tls`"]),
    ("grpc.yaml", &["there is no Secret `inventory-tls`"]),
    ("harbor.yaml", &[]),
    ("helm-list.yaml", &[]),
    ("keycloak.yaml", &[]),
    ("legacy.yaml", &["`configuration-snippet`", "`/v1` of `api.legacy.example` belongs to Ingress legacy/a-api"]),
    ("live-updates.yaml", &[]),
    ("media.yaml", &[]),
    ("microservices.yaml", &[]),
    ("oauth.yaml", &["there is no Secret `wiki-tls`"]),
    ("redirects.yaml", &[]),
    ("registry.yaml", &["there is no Secret `registry-tls`"]),
    ("shop.yaml", &[]),
    ("sockets.yaml", &[]),
    ("static-files.yaml", &[]),
    ("streamlit.yaml", &[]),
    ("tenants.yaml", &[]),
    ("tracing.yaml", &[]),
    ("two-apps.yaml", &[]),
    ("uptime.yaml", &[]),
    ("video.yaml", &[]),
    ("weblogic.yaml", &[]),
    ("webhook.yaml", &[]),
    ("webmail.yaml", &[]),
];

const fn get(target: &'static str, host: &'static str) -> IngressRequest {
    ("GET", target, host, "")
}

const fn with(target: &'static str, host: &'static str, fields: &'static str) -> IngressRequest {
    ("GET", target, host, fields)
}

/// Requests over HTTP without TLS, and a part of the answers: the name of the Service and what it was asked, or the status.
const SERVED: &[(&str, &[(IngressRequest, &str)])] = &[
    (
        "argo-cd.yaml",
        &[
            (get("/x", "argocd.example"), "308 location=https://argocd.example/x"),
            (get("/x", "grpc.argocd.example"), "308 location=https://grpc.argocd.example/x"),
        ],
    ),
    ("blog.yaml", &[(get("/a?b", "blog.example"), "308 location=https://blog.example/a?b")]),
    (
        "canary.yaml",
        &[
            (with("/checkout", "pay.example", "X-Release: next\r\n"), "200  checkout-next GET /checkout"),
            (get("/other", "pay.example"), "404"),
        ],
    ),
    ("cluster-dashboard.yaml", &[(get("/", "dashboard.example"), "503")]),
    (
        "cors-api.yaml",
        &[
            (
                with("/v1/a", "api.example", "Origin: https://shop.example\r\n"),
                "200 access-control-allow-origin=https://shop.example api GET /v1/a",
            ),
            (with("/ws", "api.example", "Origin: https://other.example\r\n"), "200  sockets GET /ws"),
        ],
    ),
    ("cost-report.yaml", &[(get("/costs/a", "demo.costs.example"), "503")]),
    ("dashboards.yaml", &[(get("/dashboards/a", "ops.example"), "308 location=https://ops.example/dashboards/a")]),
    ("downloads.yaml", &[(get("/large", "files.example"), "200  files GET /large")]),
    (
        "exporters.yaml",
        &[
            (
                get("/primary/metrics", "metrics.example"),
                "401 www-authenticate=Basic realm=\"Authentication Required\"",
            ),
            // jack:myPassword
            (
                with("/replica/metrics", "metrics.example", "Authorization: Basic amFjazpteVBhc3N3b3Jk\r\n"),
                "200  replica GET /metrics",
            ),
        ],
    ),
    ("grafana.yaml", &[(get("/d/1", "grafana.example"), "308 location=https://grafana.example/d/1")]),
    ("grpc.yaml", &[(get("/stock.v1.Inventory/List", "inventory.example"), "308")]),
    (
        "harbor.yaml",
        &[
            (get("/v2/_catalog", "harbor.example"), "200  core GET /v2/_catalog"),
            (("POST", "/v2/blob", "harbor.example", "Content-Length: 2000000\r\n"), "200  core POST /v2/blob"),
            (get("/harbor", "harbor.example"), "200  portal GET /harbor"),
        ],
    ),
    ("keycloak.yaml", &[(get("/realms/a", "login.example"), "200  keycloak GET /realms/a")]),
    (
        "legacy.yaml",
        &[
            (get("/v1/a", "api.legacy.example"), "200  api GET /v1/a"),
            (get("/v2/a", "api.legacy.example"), "200  old GET /v2/a"),
            (get("/admin", "api.legacy.example"), "503"),
        ],
    ),
    ("live-updates.yaml", &[(get("/hub", "chat.example"), "set-cookie=affinity=")]),
    (
        "media.yaml",
        &[
            (("POST", "/upload", "media.example", "Content-Length: 2000000\r\n"), "upload POST /upload"),
            (get("/film", "media.example"), "set-cookie=MEDIA="),
        ],
    ),
    (
        "microservices.yaml",
        &[
            (get("/users/7/orders", "api.apps.example"), "200  orders GET"),
            (get("/users/7", "api.apps.example"), "200  users GET"),
            (get("/suggest?q=a", "api.apps.example"), "200  search GET"),
            (get("/healthz", "any.example"), "200  health GET"),
        ],
    ),
    ("oauth.yaml", &[(get("/page", "wiki.example"), "308 location=https://wiki.example/page")]),
    (
        "redirects.yaml",
        &[
            (get("/a", "shop-old.example"), "308 location=https://www.shop.example "),
            (get("/a", "down.example"), "307 location=https://status.example/ "),
            (get("/a", "www.bare.example"), "308 location=http://bare.example/a "),
            (get("/a", "bare.example"), "200  pages GET /a"),
        ],
    ),
    ("registry.yaml", &[(get("/v2/", "registry.example"), "308 location=https://registry.example/v2/")]),
    (
        "sockets.yaml",
        &[
            (get("/", "status.example"), "200  web GET / "),
            (get("/socket.io/?EIO=4", "status.example"), "set-cookie=status-rt="),
        ],
    ),
    (
        "static-files.yaml",
        &[
            (get("/page", "hello.example"), "200  hello GET /page"),
            (get("/static/a.css", "hello.example"), "200  hello GET /static/a.css"),
        ],
    ),
    (
        "streamlit.yaml",
        &[
            (("POST", "/", "app.example", "Content-Length: 2000000\r\n"), "200  streamlit-app POST /"),
            (get("/", "other.example"), "404"),
        ],
    ),
    (
        "tenants.yaml",
        &[
            (get("/a/b", "red.saas.example"), "red GET /a/b"),
            (get("/", "green.saas.example"), "green GET / "),
            (get("/a", "grey.saas.example"), "404"),
        ],
    ),
    (
        "tracing.yaml",
        &[
            (get("/page", "any.example"), "200  frontend GET /page"),
            (get("/api/now", "any.example"), "200  gateway GET /now"),
            (get("/jaeger", "any.example"), "200  jaeger GET / "),
        ],
    ),
    (
        "two-apps.yaml",
        &[
            (get("/first/a", "apps.example"), "200  first GET /a"),
            (get("/second", "apps.example"), "200  second GET / "),
            (get("/third", "apps.example"), "404"),
        ],
    ),
    (
        "uptime.yaml",
        &[
            (get("/page", "uptime.example"), "200  pages GET /page"),
            (get("/api/v1/a", "uptime.example"), "200  calls GET /v1/a"),
        ],
    ),
    ("video.yaml", &[(("POST", "/film", "video.example", "Content-Length: 2000000\r\n"), "peertube POST /film")]),
    ("weblogic.yaml", &[(get("/console", "java.example"), "set-cookie=INGRESSCOOKIE=")]),
    ("webhook.yaml", &[(get("/", "hooks.example"), "403")]),
    ("webmail.yaml", &[(get("/", "mail.example"), "403"), (get("/", "lists.example"), "200  lists GET / ")]),
];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/operations/ingress/manifests").join(name)
}

/// The ports of Services, by namespace and name: the name of each, and its number.
type Services = BTreeMap<(String, String), BTreeMap<String, u64>>;

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The Services of a file, and those that its Ingresses lead to and that it leaves out.
fn services(objects: &[Value]) -> (Services, Services) {
    let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let key = |object: &Value, name: &Value| (text(&object["metadata"]["namespace"]), text(name));
    let (mut defined, mut missing) = (Services::new(), Services::new());
    for service in of_kind("Service") {
        let ports = list(&service["spec"]["ports"]);
        let ports = ports.iter().map(|port| (text(&port["name"]), port["port"].as_u64().unwrap_or(80))).collect();
        defined.insert(key(service, &service["metadata"]["name"]), ports);
    }
    for ingress in of_kind("Ingress") {
        for path in list(&ingress["spec"]["rules"]).iter().flat_map(|rule| list(&rule["http"]["paths"])) {
            let service = &path["backend"]["service"];
            let of_ingress = key(ingress, &service["name"]);
            let number = service["port"]["number"].as_u64();
            let name = number.map_or_else(|| text(&service["port"]["name"]), |number| format!("p{number}"));
            if !defined.contains_key(&of_ingress) {
                missing.entry(of_ingress).or_default().insert(name, number.unwrap_or(80));
            }
        }
    }
    (defined, missing)
}

/// What a file leaves to the cluster: the Services that it has not, an endpoint for each, and certificates.
fn rest_of_cluster(manifests: &str) -> (Vec<Origin>, String) {
    let documents: Vec<Value> = serde_saphyr::from_multiple(manifests).expect("YAML");
    let objects: Vec<Value> =
        documents.into_iter().flat_map(|it| it["items"].as_array().cloned().unwrap_or(vec![it])).collect();
    let (defined, missing) = services(&objects);
    let mut rest = Vec::new();
    for ((namespace, name), ports) in &missing {
        let ports: Vec<Value> = ports.iter().map(|(name, port)| json!({ "name": name, "port": port })).collect();
        rest.push(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": namespace },
            "spec": { "ports": ports },
        }));
    }
    let mut origins = Vec::new();
    for ((namespace, name), ports) in defined.into_iter().chain(missing) {
        let said = name.clone();
        let origin = Origin::reading(Reading::Strict, move |request| {
            Answer::ok(format!("{said} {} {} ", request.method, request.target))
        });
        let port = origin.addr().port();
        let ports: Vec<Value> = ports.into_keys().map(|name| json!({ "name": name, "port": port })).collect();
        rest.push(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "name": format!("{name}-test"), "namespace": namespace, "labels": { "kubernetes.io/service-name": name },
            },
            "ports": ports, "endpoints": [{ "addresses": ["127.0.0.1"] }],
        }));
        origins.push(origin);
    }
    for ingress in objects.iter().filter(|object| object["kind"] == "Ingress") {
        for tls in ingress["spec"]["tls"].as_array().into_iter().flatten() {
            let identity = Authority::of_tests().identity(&[tls["hosts"][0].as_str().expect("a host")]);
            rest.push(json!({
                "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
                "metadata": { "name": tls["secretName"], "namespace": ingress["metadata"]["namespace"] },
                "stringData": { "tls.crt": identity.certificate, "tls.key": identity.key },
            }));
        }
    }
    (origins, rest.iter().map(|object| format!("---\n{object}\n")).collect())
}

#[test]
fn manifests_of_teams_are_served() {
    let cluster = Cluster::new();
    let mut wrong = Vec::new();
    for (name, asked) in SERVED {
        let manifests = std::fs::read_to_string(file(name)).expect("it is there");
        let (_origins, rest) = rest_of_cluster(&manifests);
        let (gateway, yaml) = cluster.serve(&format!("{manifests}{rest}"));
        for &(asked, expected) in *asked {
            let answer = Cluster::ask(&gateway, asked);
            if !answer.contains(expected) {
                wrong.push(format!("{name}: {asked:?}\n  expected: {expected}\n    answer: {answer}\n{yaml}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(SERVED.len() >= 30 && FILES.len() > SERVED.len());
}

#[test]
fn converted_manifests_pass_the_check_and_each_loss_is_listed() {
    let directory = TempDir::new();
    for (name, losses) in FILES {
        let file = file(name);
        let weir =
            |arguments: &[&str]| Command::new(env!("CARGO_BIN_EXE_weir")).args(arguments).output().expect("it runs");
        let path = file.to_str().expect("text");
        let output = weir(&["convert", "ingress", path]);
        let errors = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.success(), "{name}: {errors}");
        let lost: Vec<&str> = errors.lines().filter(|line| line.contains(": not converted: ")).collect();
        assert_eq!(lost.len(), losses.len(), "{name}: {errors}");
        assert!(losses.iter().all(|loss| lost.iter().any(|line| line.contains(loss))), "{name}: {errors}");
        let denied = weir(&["convert", "ingress", path, "--deny-losses"]);
        assert_eq!(denied.status.code(), Some(i32::from(!losses.is_empty())), "{name}");
        let written = directory.write("weir.yaml", &output.stdout);
        let check = weir(&["check", written.to_str().expect("text")]);
        let said = String::from_utf8_lossy(&check.stderr).into_owned();
        assert!(check.status.success(), "{name}: {said}\n{}", String::from_utf8_lossy(&output.stdout));
    }
}
