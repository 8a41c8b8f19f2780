//! Manifests of the Gateway API, translated to a file that a gateway serves: request by request.

use std::net::{IpAddr, SocketAddr};

use serde_json::json;
use weir_kube::{GatewayAddresses, KubeOptions, World, translate};
use weir_testkit::{Answer, Client, Gateway, Origin, Response, free_port};

use crate::weir;

/// An origin that answers with its name, the request line and the field `X-Seen`.
fn origin(name: &'static str) -> Origin {
    Origin::serving(move |request| {
        let field = |name: &str| request.headers.get(name).unwrap_or("-").to_owned();
        let line = format!("{name} {} {} {}", request.target, field("host"), field("x-seen"));
        Answer::with(200, "X-From: origin\r\n", line)
    })
}

/// A Service with one endpoint.
fn service(name: &str, namespace: &str, addr: SocketAddr) -> String {
    let (ip, port) = (addr.ip(), addr.port());
    format!(
        "---
{{ apiVersion: v1, kind: Service, metadata: {{ name: {name}, namespace: {namespace} }}, spec: {{ ports: [{{ port: 80 }}] }} }}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{ name: {name}-1, namespace: {namespace}, labels: {{ kubernetes.io/service-name: {name} }} }}
addressType: IPv4
ports: [{{ port: {port} }}]
endpoints: [{{ addresses: [{ip}] }}]
"
    )
}

struct Cluster {
    _gateway: Gateway,
    _origins: [Origin; 2],
    addr: SocketAddr,
}

/// A gateway with the listeners and rules of a fixture, in which `PORT` stands for a free port.
fn serve(manifests: &str) -> Cluster {
    let port = free_port();
    let origins = [origin("one"), origin("two")];
    let mut text = manifests.replace("PORT", &port.to_string());
    text += &service("one", "shop", origins[0].addr());
    text += &service("two", "shop", origins[1].addr());
    text += "---\n{ apiVersion: v1, kind: Service, metadata: { name: empty, namespace: shop }, spec: { ports: [{ port: 80 }] } }\n";
    let world = World::from_manifests(&text).expect("manifests").world;
    let address = IpAddr::from([127, 0, 0, 1]);
    let addresses = GatewayAddresses::Pool { first: address, last: address };
    let translation = translate(&world, &KubeOptions { addresses, ..KubeOptions::default() });
    let document = translation.document();
    let lists = document.as_object().expect("a map").iter().map(|(list, items)| format!("{list}: {items}\n"));
    let gateway = weir().start(&lists.collect::<String>());
    Cluster { _gateway: gateway, _origins: origins, addr: SocketAddr::new(address, port) }
}

impl Cluster {
    #[track_caller]
    fn ask(&self, method: &str, host: &str, target: &str, fields: &str) -> Response {
        let request = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
        Client::connect(self.addr).ask(request).expect("an answer")
    }

    /// The name of the origin, or the status.
    #[track_caller]
    fn whose(&self, method: &str, host: &str, target: &str, fields: &str) -> String {
        let answer = self.ask(method, host, target, fields);
        match answer.status {
            200 => answer.text().split(' ').next().unwrap_or_default().to_owned(),
            status => status.to_string(),
        }
    }
}

const BASE: &str = "
{ apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: { name: weir }, spec: { controllerName: weir.dev/gateway-controller } }
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: { name: public, namespace: shop }
spec:
  gatewayClassName: weir
  listeners:
  - { name: any, port: PORT, protocol: HTTP }
  - { name: wild, port: PORT, protocol: HTTP, hostname: '*.example.com' }
  - { name: exact, port: PORT, protocol: HTTP, hostname: www.example.com }
---
";

/// An HTTPRoute with these members of its specification, in YAML.
fn route(name: &str, spec: &str) -> String {
    format!(
        "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{ name: {name}, namespace: shop, creationTimestamp: '2026-01-01T00:00:00Z' }}
spec:
{spec}
"
    )
}

fn to(name: &str) -> String {
    format!("backendRefs: [{{ name: {name}, port: 80 }}]")
}

#[test]
fn the_most_specific_match_takes_a_request() {
    let (one, two) = (to("one"), to("two"));
    let cluster = serve(
        &[
            BASE.to_owned(),
            route(
                "paths",
                &format!(
                    "  parentRefs: [{{ name: public, sectionName: any }}]
  rules:
  - {{ {one} }}
  - {{ matches: [{{ path: {{ value: /a }} }}], {one} }}
  - {{ matches: [{{ path: {{ type: Exact, value: /a/b }} }}], {two} }}
  - {{ matches: [{{ path: {{ value: /a/b }} }}], {one} }}
  - {{ matches: [{{ path: {{ value: /a }}, method: POST }}], {two} }}
  - {{ matches: [{{ path: {{ value: /h }}, headers: [{{ name: X-One, value: a }}] }}], {one} }}
  - {{ matches: [{{ path: {{ value: /h }}, headers: [{{ name: X-One, value: a }}, {{ name: X-Two, value: b }}] }}], {two} }}
  - {{ matches: [{{ path: {{ value: /q }}, queryParams: [{{ name: v, value: '2' }}] }}, {{ path: {{ value: /r }} }}], {two} }}
  - {{ matches: [{{ path: {{ type: RegularExpression, value: '/v[0-9]+/x' }} }}], {two} }}"
                ),
            ),
        ]
        .concat(),
    );
    for (method, target, fields, wanted) in [
        ("GET", "/", "", "one"),
        ("GET", "/a", "", "one"),
        ("GET", "/ab", "", "one"),
        ("GET", "/a/b", "", "two"),
        ("GET", "/a/b/c", "", "one"),
        ("POST", "/a/x", "", "two"),
        ("POST", "/a/b", "", "two"),
        ("GET", "/h", "X-One: a\r\n", "one"),
        ("GET", "/h", "x-two: b\r\nx-one: a\r\n", "two"),
        ("GET", "/h", "X-Two: b\r\n", "one"),
        ("GET", "/q?v=2", "", "two"),
        ("GET", "/q?v=3", "", "one"),
        ("GET", "/r/s", "", "two"),
        ("GET", "/v12/x", "", "two"),
        ("GET", "/v12/xy", "", "one"),
    ] {
        assert_eq!(cluster.whose(method, "a.test", target, fields), wanted, "{method} {target} {fields}");
    }
}

#[test]
fn a_listener_has_the_requests_of_its_host_to_itself() {
    let rules = |name: &str| format!("  rules: [{{ {} }}]", to(name));
    let of =
        |section: &str, more: &str| format!("  parentRefs: [{{ name: public, sectionName: {section} }}]\n{more}\n");
    let cluster = serve(
        &[
            BASE.to_owned(),
            route("any", &(of("any", "  hostnames: [other.test, api.example.com]") + &rules("one"))),
            route("wild", &(of("wild", "  hostnames: ['*.example.com', 'b.api.example.com']") + &rules("two"))),
        ]
        .concat(),
    );
    for (host, wanted) in [
        ("other.test", "one"),
        ("OTHER.test:80", "one"),
        ("third.test", "404"),
        ("api.example.com", "two"),
        ("b.api.example.com", "two"),
        ("example.com", "404"),
        // The listener `exact` has no route.
        ("www.example.com", "404"),
    ] {
        assert_eq!(cluster.whose("GET", host, "/", ""), wanted, "{host}");
    }
}

#[test]
fn a_missing_backend_answers_500_and_an_empty_one_503() {
    let cluster = serve(
        &[
            BASE.to_owned(),
            route(
                "faulty",
                &format!(
                    "  parentRefs: [{{ name: public, sectionName: any }}]
  rules:
  - {{ matches: [{{ path: {{ value: /gone }} }}], {} }}
  - {{ matches: [{{ path: {{ value: /empty }} }}], {} }}
  - {{ matches: [{{ path: {{ value: /none }} }}] }}
  - {{ matches: [{{ path: {{ value: /zero }} }}], backendRefs: [{{ name: one, port: 80, weight: 0 }}] }}
  - {{ matches: [{{ path: {{ value: /kind }} }}], backendRefs: [{{ kind: Bucket, group: a.example, name: one, port: 80 }}] }}
  - {{ matches: [{{ path: {{ value: /filter }} }}], {}, filters: [{{ type: ExtensionRef }}] }}
  - {{ matches: [{{ path: {{ value: /split }} }}], backendRefs: [{{ name: one, port: 80, weight: 3 }}, {{ name: two, port: 80 }}] }}",
                    to("gone"),
                    to("empty"),
                    to("one"),
                ),
            ),
        ]
        .concat(),
    );
    for (target, wanted) in
        [("/gone", "500"), ("/empty", "503"), ("/none", "500"), ("/zero", "500"), ("/kind", "500"), ("/filter", "500")]
    {
        assert_eq!(cluster.whose("GET", "a.test", target, ""), wanted, "{target}");
    }
    let answers: Vec<String> = (0..40).map(|_| cluster.whose("GET", "a.test", "/split", "")).collect();
    assert_eq!(answers.iter().filter(|name| *name == "one").count(), 30, "{answers:?}");
    assert_eq!(answers.iter().filter(|name| *name == "two").count(), 10, "{answers:?}");
}

#[test]
fn filters_change_requests_and_responses() {
    let one = to("one");
    let cluster = serve(
        &[
            BASE.to_owned(),
            route(
                "filters",
                &format!(
                    "  parentRefs: [{{ name: public, sectionName: any }}]
  rules:
  - matches: [{{ path: {{ value: /set }} }}]
    filters:
    - {{ type: RequestHeaderModifier, requestHeaderModifier: {{ set: [{{ name: X-Seen, value: 5$ }}] }} }}
    - {{ type: ResponseHeaderModifier, responseHeaderModifier: {{ add: [{{ name: X-New, value: n }}], remove: [X-From] }} }}
    {one}
  - matches: [{{ path: {{ value: /add }} }}]
    filters: [{{ type: RequestHeaderModifier, requestHeaderModifier: {{ add: [{{ name: X-Seen, value: b }}] }} }}]
    {one}
  - matches: [{{ path: {{ value: /host }} }}]
    filters: [{{ type: URLRewrite, urlRewrite: {{ hostname: new.test, path: {{ type: ReplaceFullPath, replaceFullPath: /whole }} }} }}]
    {one}
  - matches: [{{ path: {{ value: /old }} }}]
    filters: [{{ type: URLRewrite, urlRewrite: {{ path: {{ type: ReplacePrefixMatch, replacePrefixMatch: /new }} }} }}]
    {one}
  - matches: [{{ path: {{ value: /strip }} }}]
    filters: [{{ type: URLRewrite, urlRewrite: {{ path: {{ type: ReplacePrefixMatch, replacePrefixMatch: / }} }} }}]
    {one}"
                ),
            ),
        ]
        .concat(),
    );
    for (target, fields, wanted) in [
        ("/set", "X-Seen: a\r\n", "one /set a.test 5$"),
        ("/add", "", "one /add a.test b"),
        ("/host/x?y=1", "", "one /whole?y=1 new.test -"),
        ("/old", "", "one /new a.test -"),
        ("/old/", "", "one /new/ a.test -"),
        ("/old/x?y=1", "", "one /new/x?y=1 a.test -"),
        ("/older", "", ""),
        ("/strip", "", "one / a.test -"),
        ("/strip/x", "", "one /x a.test -"),
    ] {
        let answer = cluster.ask("GET", "a.test", target, fields);
        match wanted {
            "" => assert_eq!(answer.status, 404, "{target}"),
            wanted => assert_eq!(answer.text(), wanted, "{target}"),
        }
    }
    let answer = cluster.ask("GET", "a.test", "/set", "");
    assert_eq!((answer.headers.get("x-new"), answer.headers.get("x-from")), (Some("n"), None));
}

#[test]
fn redirects_have_scheme_host_port_and_path() {
    let redirect = |path: &str, redirect: serde_json::Value| {
        let filters = json!([{ "type": "RequestRedirect", "requestRedirect": redirect }]);
        format!("\n  - {{ matches: [{{ path: {{ value: {path} }} }}], filters: {filters} }}")
    };
    let full = json!({ "path": { "type": "ReplaceFullPath", "replaceFullPath": "/x" }, "hostname": "b.test" });
    let prefix = json!({ "path": { "type": "ReplacePrefixMatch", "replacePrefixMatch": "/y" }, "statusCode": 301 });
    let rules = [
        redirect("/plain", json!({})),
        redirect("/tls", json!({ "scheme": "https", "statusCode": 308 })),
        redirect("/port", json!({ "port": 8443, "scheme": "https" })),
        redirect("/full", full),
        redirect("/prefix", prefix),
    ];
    let spec = format!("  parentRefs: [{{ name: public, sectionName: any }}]\n  rules:{}", rules.concat());
    let cluster = serve(&[BASE.to_owned(), route("redirects", &spec)].concat());
    let port = cluster.addr.port();
    for (target, status, location) in [
        ("/plain/a?b=c", 302, format!("http://a.test:{port}/plain/a?b=c")),
        ("/tls", 308, "https://a.test/tls".to_owned()),
        ("/port", 302, "https://a.test:8443/port".to_owned()),
        ("/full/a?b=c", 302, format!("http://b.test:{port}/x?b=c")),
        ("/prefix/a", 301, format!("http://a.test:{port}/y/a")),
        ("/prefix", 301, format!("http://a.test:{port}/y")),
    ] {
        let answer = cluster.ask("GET", "a.test", target, "");
        assert_eq!((answer.status, answer.headers.get("location")), (status, Some(&*location)), "{target}");
    }
}
