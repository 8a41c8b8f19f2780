//! Ingresses with annotations of ingress-nginx.

use serde_json::{Value, json};
use weir_testkit::{Answer, Client, DEADLINE, Origin, Reading, Request, eventually, free_port};

use crate::control_plane::ControlPlane;
use crate::edge::weir;
use crate::objects::service;
use crate::stand_in::StandIn;

/// An Ingress of the class of ingress-nginx for the Service `web`, with its class.
fn ingress(annotations: Value) -> [Value; 2] {
    let backend = json!({ "service": { "name": "web", "port": { "number": 80 } } });
    let path = json!({ "path": "/", "pathType": "Prefix", "backend": backend });
    [
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "IngressClass",
            "metadata": { "name": "nginx" },
            "spec": { "controller": "k8s.io/ingress-nginx" },
        }),
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": { "name": "web", "namespace": "shop", "annotations": annotations },
            "spec": { "ingressClassName": "nginx", "rules": [{ "http": { "paths": [path] } }] },
        }),
    ]
}

#[test]
fn a_default_backend_answers_from_the_last_endpoint_of_a_service_to_its_next() {
    let cluster = StandIn::start();
    let web = Origin::serving(|_| Answer::ok("web"));
    let sorry = Origin::serving(|request: &Request| {
        let told = ["x-code", "x-format", "x-namespace", "x-ingress-name", "x-service-name", "x-service-port"];
        let told = told.map(|name| request.headers.get(name).unwrap_or_default().to_owned());
        Answer::ok(format!("sorry {} {}", request.target, told.join(" ")))
    });
    cluster.apply(ingress(json!({ "nginx.ingress.kubernetes.io/default-backend": "sorry" })));
    cluster.apply(service("web", web.addr()));
    cluster.apply(service("sorry", sorry.addr()));
    let port = free_port();
    let file = format!("{}listen: [\"127.0.0.1:{port}\"]\n", cluster.node(", adopt_ingress_nginx: true"));
    let _node = weir().start(&file);
    let ask = || {
        let request = "GET /cart?a=1 HTTP/1.1\r\nHost: h\r\nAccept: text/html\r\n\r\n".to_owned();
        let mut client = Client::try_connect(([127, 0, 0, 1], port).into()).ok()?;
        client.ask(request).ok().map(|answer| answer.text())
    };
    let wait = |what: &str, text: &str| eventually(what, DEADLINE, || ask().as_deref() == Some(text));
    wait("the Service answers", "web");
    let [object, mut slice] = service("web", web.addr());
    slice["endpoints"] = json!([]);
    cluster.apply([object, slice]);
    wait("the default backend answers", "sorry /cart?a=1 503 text/html shop web web 80");
    cluster.apply(service("web", web.addr()));
    wait("the Service answers again", "web");
}

#[test]
fn a_default_backend_makes_the_pages_of_errors() {
    let cluster = StandIn::start();
    let web = Origin::serving(|request| {
        let status = if request.target == "/gone" { 404 } else { 200 };
        Answer::with(status, "Content-Type: text/plain\r\n", "web")
    });
    let sorry = Origin::serving(|request: &Request| {
        let told =
            ["x-code", "x-format", "x-original-uri", "x-namespace", "x-ingress-name", "x-service-name", "cookie"];
        let told = told.map(|name| request.headers.get(name).unwrap_or("-").to_owned());
        Answer::with(410, "", format!("{} {} {}", request.method, request.target, told.join(" ")))
    });
    let annotations =
        ["default-backend", "custom-http-errors"].map(|name| format!("nginx.ingress.kubernetes.io/{name}"));
    let [backend, errors] = annotations;
    cluster.apply(ingress(json!({ backend: "sorry", errors: "404,502" })));
    cluster.apply(service("web", web.addr()));
    cluster.apply(service("sorry", sorry.addr()));
    let port = free_port();
    let file = format!("{}listen: [\"127.0.0.1:{port}\"]\n", cluster.node(", adopt_ingress_nginx: true"));
    let _node = weir().start(&file);
    let ask = |path: &str| {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: h\r\nAccept: text/html\r\nCookie: a=b\r\nContent-Length: 2\r\n\r\nok"
        );
        let mut client = Client::try_connect(([127, 0, 0, 1], port).into()).ok()?;
        client.ask(request).ok().map(|answer| (answer.status, answer.text()))
    };
    eventually("the Service answers", DEADLINE, || {
        ask("/").is_some_and(|(status, text)| status == 200 && text == "web")
    });
    assert_eq!(ask("/gone"), Some((410, "GET / 404 text/html /gone shop web web -".to_owned())));
    drop(web);
    assert_eq!(ask("/a"), Some((410, "GET / 502 text/html /a shop web web -".to_owned())));
}

/// Annotations of an Ingress in a real cluster change what clients are told of a service's address, and come and go without a restart.
#[test]
fn redirects_and_cookies_of_a_service_are_rewritten_as_annotations_of_a_real_ingress_say() {
    let Some(plane) = ControlPlane::start() else { return };
    let web = plane.beside(|| {
        Origin::scripted_at(([0, 0, 0, 0], 0).into(), Reading::Strict, |connection| {
            while connection.request().is_ok() {
                let cookie = "Set-Cookie: a=1; Domain=web.internal; Path=/one/x\r\n";
                let place = "Location: http://web.internal/one/x\r\n";
                if connection.send(format!("HTTP/1.1 302 Found\r\n{place}{cookie}Content-Length: 0\r\n\r\n")).is_err() {
                    return;
                }
            }
        })
    });
    plane.define_gateway_api();
    plane.create("/api/v1/namespaces", &json!({ "metadata": { "name": "shop" } }));
    let [mut object, slice] = service("web", ControlPlane::endpoint(web.addr().port()));
    object["spec"]["clusterIP"] = Value::Null;
    let annotated = |annotations: &[(&str, &str)]| {
        let named = |(name, value): &(&str, &str)| (format!("nginx.ingress.kubernetes.io/{name}"), (*value).into());
        let [class, ingress] = ingress(Value::Object(annotations.iter().map(named).collect()));
        plane.apply(&class);
        plane.apply(&ingress);
    };
    plane.apply(&object);
    plane.apply(&slice);
    annotated(&[]);
    let file = plane.node_with("adopt_ingress_nginx: true");
    let _node = plane.beside(|| weir().start(&format!("{file}listen: [\":8080\"]\n")));
    let told = || {
        let request = "GET /one/x HTTP/1.1\r\nHost: shop.example\r\n\r\n";
        let ask = || Client::try_connect(([127, 0, 0, 1], 8080).into()).ok()?.ask(request).ok();
        let answer = plane.beside(ask)?;
        Some([answer.headers.get("location")?.to_owned(), answer.headers.get("set-cookie")?.to_owned()])
    };
    let wait = |what: &str, wanted: [&str; 2]| {
        eventually(what, DEADLINE * 3, || told().is_some_and(|told| told == wanted));
    };
    let unchanged = ["http://web.internal/one/x", "a=1; Domain=web.internal; Path=/one/x"];
    wait("the service answers", unchanged);
    annotated(&[
        ("proxy-redirect-from", "http://web.internal/one/"),
        ("proxy-redirect-to", "http://$host/"),
        ("proxy-cookie-domain", "web.internal shop.example"),
        ("proxy-cookie-path", "/one/ /"),
    ]);
    wait("both are rewritten", ["http://shop.example/x", "a=1; Domain=shop.example; Path=/x"]);
    annotated(&[("proxy-redirect-from", "~*^HTTP://([a-z]+)[.]internal/(.*)$"), ("proxy-redirect-to", "/$1/$2")]);
    wait("an expression is found", ["/web/one/x", unchanged[1]]);
    let [_, mut grouped] = ingress(json!({
        "nginx.ingress.kubernetes.io/use-regex": "true",
        "nginx.ingress.kubernetes.io/proxy-redirect-from": "http://web.internal/one/",
        "nginx.ingress.kubernetes.io/proxy-redirect-to": "http://$host/from-$1/",
    }));
    grouped["spec"]["rules"][0]["http"]["paths"][0]["path"] = "/([a-z]+)/".into();
    plane.apply(&grouped);
    wait("a group of the path is known", ["http://shop.example/from-one/x", unchanged[1]]);
    annotated(&[("proxy-redirect-from", "off"), ("proxy-cookie-path", "off")]);
    wait("both pass", unchanged);
}
