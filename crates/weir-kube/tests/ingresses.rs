//! Ingresses with annotations of ingress-nginx, in a cluster: what depends on endpoints, and on what only a cluster knows.

use serde_json::{Value, json};
use weir_kube::{KubeOptions, Translation, World, translate};

/// A Service with a port 80, and with an endpoint if it has an address.
fn service(name: &str, address: Option<&str>) -> String {
    let endpoints = address.map(|address| format!("{{ addresses: [{address}] }}")).unwrap_or_default();
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{ name: {name}, namespace: shop }}
spec: {{ ports: [{{ name: web, port: 80 }}] }}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{ name: {name}-1, namespace: shop, labels: {{ kubernetes.io/service-name: {name} }} }}
addressType: IPv4
ports: [{{ name: web, port: 8080 }}]
endpoints: [{endpoints}]
"
    )
}

/// An Ingress for the host `h`, with these annotations and paths, each with its Service.
fn ingress(name: &str, annotations: &[(&str, &str)], paths: &[(&str, &str)]) -> String {
    let annotations: serde_json::Map<String, Value> =
        annotations.iter().map(|(name, value)| (format!("nginx.ingress.kubernetes.io/{name}"), json!(value))).collect();
    let path = |&(path, service): &(&str, &str)| {
        let backend = json!({ "service": { "name": service, "port": { "number": 80 } } });
        json!({ "path": path, "pathType": "Prefix", "backend": backend })
    };
    let paths: Vec<Value> = paths.iter().map(path).collect();
    let object = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": { "name": name, "namespace": "shop", "uid": format!("uid-of-{name}-0123456789"), "annotations": annotations },
        "spec": { "ingressClassName": "nginx", "rules": [{ "host": "h", "http": { "paths": paths } }] },
    });
    format!("---\n{object}\n")
}

const CLASS: &str = "
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: { name: nginx }
spec: { controller: k8s.io/ingress-nginx }
";

fn translated(manifests: &[String]) -> Translation {
    let world = World::from_manifests(&format!("{CLASS}{}", manifests.concat())).expect("correct").world;
    translate(&world, &KubeOptions { adopt_ingress_nginx: true, ..KubeOptions::default() })
}

/// The resource with this id.
fn resource<'t>(translation: &'t Translation, id: &str) -> &'t Value {
    let ids: Vec<&str> = translation.resources.iter().map(|resource| &*resource.id).collect();
    let found = translation.resources.iter().find(|resource| resource.id == id);
    &found.unwrap_or_else(|| panic!("{id} is one of {ids:?}")).value
}

fn messages(translation: &Translation) -> Vec<&str> {
    translation.events.iter().map(|event| &*event.message).collect()
}

const WITH_DEFAULT: &[(&str, &str)] = &[("default-backend", "sorry"), ("load-balance", "ewma")];

#[test]
fn default_backend_answers_while_the_service_of_a_path_has_no_endpoint() {
    let of = |web: Option<&str>, sorry: Option<&str>| {
        translated(&[ingress("a", WITH_DEFAULT, &[("/", "web")]), service("web", web), service("sorry", sorry)])
    };
    let usual = of(Some("10.0.0.1"), Some("10.0.0.2"));
    let route = resource(&usual, "ingress_shop_a_0");
    assert_eq!(route["upstream_id"], "shop_web_80_ingress_a");
    assert_eq!(route["plugins"]["proxy-rewrite"], Value::Null);
    assert_eq!(messages(&usual), Vec::<&str>::new());

    let in_place = of(None, Some("10.0.0.2"));
    let route = resource(&in_place, "ingress_shop_a_0");
    assert_eq!(route["upstream_id"], "shop_sorry_80_ingress_a");
    assert_eq!(resource(&in_place, "shop_sorry_80_ingress_a")["type"], "ewma", "it has the settings of the Ingress");
    let told = json!({
        "X-Code": "503", "X-Format": "$http_accept", "X-Namespace": "shop", "X-Ingress-Name": "a", "X-Service-Name": "web",
        "X-Service-Port": "80",
    });
    assert_eq!(route["plugins"]["proxy-rewrite"]["headers"]["set"], told);
    let said = "`/` of `h`: the Service `shop/web` has no endpoint; `default-backend` answers";
    assert_eq!(messages(&in_place), [said]);

    let neither = of(None, None);
    let closed = json!({ "fault-injection": { "abort": { "http_status": 503 } } });
    assert_eq!(resource(&neither, "ingress_shop_a_0")["plugins"], closed);
}

#[test]
fn pages_of_errors_come_from_the_default_backend() {
    let of = |more: &[(&str, &str)], sorry: Option<&str>| {
        let annotations = [&[("custom-http-errors", "404, 503")], more].concat();
        let paths = &[("/", "web")];
        translated(&[ingress("a", &annotations, paths), service("web", Some("10.0.0.1")), service("sorry", sorry)])
    };
    let options = |found: &Translation| resource(found, "ingress_shop_a_0")["plugins"]["error-page"].clone();
    let found = of(&[("default-backend", "sorry")], Some("10.0.0.2"));
    let asked =
        json!({ "X-Namespace": "shop", "X-Ingress-Name": "a", "X-Service-Name": "web", "X-Service-Port": "80" });
    let fetch = json!({
        "statuses": [404, 503], "upstream_id": "shop_sorry_80", "headers": asked, "keep_status": false,
    });
    assert_eq!(options(&found), json!({ "upstream_errors": true, "fetch": fetch }));
    let passed = of(&[("default-backend", "sorry"), ("disable-proxy-intercept-errors", "true")], Some("10.0.0.2"));
    assert_eq!(options(&passed)["upstream_errors"], false);
    for (more, sorry, said) in [
        (&[("default-backend", "sorry")][..], None, "`shop/sorry` has no endpoint; errors are passed on"),
        (&[], None, "needs `default-backend`"),
    ] {
        let found = of(more, sorry);
        assert_eq!(options(&found), Value::Null);
        assert!(messages(&found).iter().any(|message| message.contains(said)), "{:?}", messages(&found));
    }
}

#[test]
fn redirects_know_the_groups_of_paths_that_are_expressions() {
    let redirects = |more: &[(&str, &str)], to: &str, path: &str| {
        let annotations = [&[("proxy-redirect-from", "http://web/"), ("proxy-redirect-to", to)], more].concat();
        let found = translated(&[ingress("a", &annotations, &[(path, "web")]), service("web", Some("10.0.0.1"))]);
        assert_eq!(messages(&found), Vec::<&str>::new());
        resource(&found, "ingress_shop_a_0")["plugins"]["reverse-rewrite"]["redirects"].clone()
    };
    let path = "/shop/([a-z]+)(/|$)(.*)";
    let rule = |to: &str| json!([{ "from": "http://web/", "to": to, "path": format!("(?i)^{path}") }]);
    assert_eq!(redirects(&[("use-regex", "true")], "https://$host/$1/", path), rule("https://$host/$1/"));
    assert_eq!(redirects(&[("rewrite-target", "/$3")], "/${1}/", path), rule("/${1}/"));
    let without_path = |to: &str| json!([{ "from": "http://web/", "to": to }]);
    assert_eq!(redirects(&[("use-regex", "true")], "/$host/", path), without_path("/$host/"), "it names no group");
    assert_eq!(redirects(&[], "/$1/", "/shop"), without_path("/$1/"), "the path has none");
}

#[test]
fn a_canary_without_endpoints_leaves_all_requests_to_the_main_ingress() {
    let canary = ingress("b", &[("canary", "true"), ("canary-weight", "50")], &[("/", "next")]);
    let of = |next| {
        translated(&[
            ingress("a", &[], &[("/", "web")]),
            canary.clone(),
            service("web", Some("10.0.0.1")),
            service("next", next),
        ])
    };
    let split = of(Some("10.0.0.2"));
    assert!(resource(&split, "ingress_shop_a_0")["plugins"]["traffic-split"].is_object());
    let alone = of(None);
    let route = resource(&alone, "ingress_shop_a_0");
    assert_eq!((&route["upstream_id"], &route["plugins"]["traffic-split"]), (&json!("shop_web_80"), &Value::Null));
    let said =
        "`canary`: the Service `shop/next` has no endpoint; all requests of `h` stay with Ingress shop/a".to_owned();
    assert_eq!(messages(&alone), [said]);
}

#[test]
fn session_cookies_are_known_to_all_nodes_and_bound_to_the_path_and_to_https() {
    let affinity = ("affinity", "cookie");
    let cookie = |annotations: &[(&str, &str)]| {
        let found = translated(&[ingress("a", annotations, &[("/cart", "web")]), service("web", Some("10.0.0.1"))]);
        let id = resource(&found, "ingress_shop_a_0")["upstream_id"].as_str().expect("text").to_owned();
        resource(&found, &id)["persistence"].clone()
    };
    let usual = json!({ "type": "cookie", "name": "INGRESSCOOKIE", "secret": "uid-of-a-0123456789", "path": "/cart" });
    assert_eq!(cookie(&[affinity]), usual);
    assert_eq!(cookie(&[affinity, ("force-ssl-redirect", "true")])["secure"], true);
    let stated = cookie(&[affinity, ("force-ssl-redirect", "true"), ("session-cookie-secure", "false")]);
    assert_eq!(stated["secure"], false);
    assert_eq!(cookie(&[affinity, ("session-cookie-path", "/")])["path"], "/");
    assert_eq!(cookie(&[affinity, ("use-regex", "true")])["path"], Value::Null, "an expression is no path");
}

const AUTHORITY: &str = "---
apiVersion: v1
kind: Secret
metadata: { name: ca, namespace: shop }
stringData: { ca.crt: certificate }
---
apiVersion: v1
kind: Secret
metadata: { name: tls, namespace: shop }
type: kubernetes.io/tls
stringData: { tls.crt: certificate, tls.key: key }
";

/// An Ingress with `spec.tls` for this name.
fn with_tls(ingress: &str, name: &str) -> String {
    ingress.replace("\"rules\":", &format!("\"tls\":[{{\"hosts\":[\"{name}\"],\"secretName\":\"tls\"}}],\"rules\":"))
}

const CLOSED: &str = r#"{"fault-injection":{"abort":{"http_status":503}}}"#;

#[test]
fn clients_are_asked_for_certificates_whichever_ingress_has_the_certificate_of_the_host() {
    let guarded = ingress("b", &[("auth-tls-secret", "shop/ca")], &[("/admin", "web")]);
    let of = |older: String, guarded: String| {
        translated(&[older, guarded, AUTHORITY.to_owned(), service("web", Some("10.0.0.1"))])
    };
    let older = ingress("a", &[], &[("/", "web")]);
    let found = of(with_tls(&older, "h"), with_tls(&guarded, "h"));
    let entry = resource(&found, "ingress_shop_tls_b");
    assert_eq!((&entry["snis"], &entry["client"]["ca"]), (&json!(["h"]), &json!("certificate")), "{entry:#}");
    // The certificate of the wildcard asks no client for a certificate, so the host has an entry of its own.
    let host = |text: &str| text.replace("\"host\":\"h\"", "\"host\":\"h.example\"");
    let found = of(with_tls(&host(&older), "*.example"), with_tls(&host(&guarded), "*.example"));
    assert_eq!(resource(&found, "ingress_shop_tls")["snis"], json!(["*.example"]));
    assert_eq!(resource(&found, "ingress_shop_tls_b")["snis"], json!(["h.example"]));
    // A host without a certificate has no TLS, so no client can be asked for one.
    let found = of(older, with_tls(&guarded, "other"));
    for id in ["ingress_shop_a_0", "ingress_shop_b_0"] {
        assert_eq!(resource(&found, id)["plugins"].to_string(), CLOSED, "{id}");
    }
    let said = "`auth-tls-secret`: `h` has no certificate in `spec.tls`; it is answered with 503";
    assert!(messages(&found).contains(&said), "{:?}", messages(&found));
}

#[test]
fn an_ingress_without_rules_for_a_host_takes_neither_its_certificate_nor_its_clients() {
    let foreign = ingress("a", &[], &[("/", "web")]).replace("\"host\":\"h\"", "\"host\":\"other\"");
    let guarded = ingress("b", &[("auth-tls-secret", "shop/ca")], &[("/", "web")]);
    let own = AUTHORITY.replace("name: tls,", "name: own,").replace("name: ca,", "name: ca2,");
    let found = translated(&[
        with_tls(&foreign, "h"),
        with_tls(&guarded, "h").replace("\"secretName\":\"tls\"", "\"secretName\":\"own\""),
        AUTHORITY.to_owned(),
        own,
        service("web", Some("10.0.0.1")),
    ]);
    assert_eq!(resource(&found, "ingress_shop_own_b")["snis"], json!(["h"]));
    assert!(found.resources.iter().all(|resource| resource.id != "ingress_shop_tls"));
}

#[test]
fn an_alias_serves_all_paths_of_its_host_with_their_protection() {
    let found = translated(&[
        ingress("a", &[("server-alias", "alt")], &[("/", "web")]),
        ingress("b", &[("whitelist-source-range", "10.0.0.0/8")], &[("/admin", "web")]),
        service("web", Some("10.0.0.1")),
    ]);
    let [own, alias] = ["ingress_shop_b_0", "ingress_shop_b_0_alt"].map(|id| resource(&found, id));
    assert_eq!((&own["host"], &alias["host"]), (&json!("h"), &json!("alt")));
    assert_eq!((&own["uris"], &own["plugins"]), (&alias["uris"], &alias["plugins"]));
    assert!(alias["plugins"]["ip-restriction"].is_object());
    assert_eq!(resource(&found, "ingress_shop_a_0_alt")["host"], "alt");
}

#[test]
fn a_host_does_not_fall_to_the_default_backend_of_another_ingress() {
    let backend = json!({ "service": { "name": "web", "port": { "number": 80 } } });
    let default = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": { "name": "d", "namespace": "shop" },
        "spec": { "ingressClassName": "nginx", "defaultBackend": backend },
    });
    let found = translated(&[
        ingress("a", &[], &[("/api", "web")]),
        format!("---\n{default}\n"),
        service("web", Some("10.0.0.1")),
    ]);
    assert_eq!(resource(&found, "ingress_shop_d_default")["upstream_id"], "shop_web_80");
    let rest = resource(&found, "ingress_shop_a_rest_h");
    assert_eq!(rest["plugins"]["fault-injection"]["abort"]["http_status"], 404, "{rest:#}");
}

#[test]
fn certificates_of_clients_are_told_to_all_services_of_the_host_in_place_of_what_the_client_says() {
    let guarded = ingress("a", &[("auth-tls-secret", "shop/ca")], &[("/", "web")]);
    let guarded = guarded.replace("\"rules\":", "\"tls\":[{\"hosts\":[\"h\"],\"secretName\":\"tls\"}],\"rules\":");
    let beside = ingress("b", &[], &[("/b", "web")]);
    let found = translated(&[guarded, beside.clone(), AUTHORITY.to_owned(), service("web", Some("10.0.0.1"))]);
    let told = json!({
        "ssl-client-cert": "", "ssl-client-verify": "$ssl_client_verify", "ssl-client-subject-dn": "$ssl_client_s_dn",
        "ssl-client-issuer-dn": "$ssl_client_i_dn",
    });
    for id in ["ingress_shop_a_0", "ingress_shop_b_0"] {
        assert_eq!(resource(&found, id)["plugins"]["proxy-rewrite"]["headers"]["set"], told, "{id}");
    }
    let alone = translated(&[beside, service("web", Some("10.0.0.1"))]);
    assert_eq!(resource(&alone, "ingress_shop_b_0")["plugins"]["proxy-rewrite"], Value::Null);
}

#[test]
fn subjects_of_certificates_are_demanded_on_all_paths_of_the_host_and_of_a_default_backend() {
    let annotations = [
        ("auth-tls-secret", "shop/ca"),
        ("auth-tls-match-cn", "CN=a"),
        ("auth-tls-pass-certificate-to-upstream", "true"),
        ("whitelist-source-range", "10.0.0.0/8"),
        ("denylist-source-range", "10.0.0.0/16"),
    ];
    let guarded = ingress("a", &annotations, &[("/", "web")]);
    let beside = ingress("b", &[], &[("/b", "web")]);
    let mut alone: Value = serde_json::from_str(guarded.trim_start_matches("---")).expect("JSON");
    let backend = json!({ "service": { "name": "web", "port": { "number": 80 } } });
    alone["spec"] = json!({ "ingressClassName": "nginx", "defaultBackend": backend, "tls": [{ "secretName": "tls" }] });
    let others = [AUTHORITY.to_owned(), service("web", Some("10.0.0.1"))];
    let of_host = translated(&[&[with_tls(&guarded, "h"), beside][..], &others].concat());
    let of_default = translated(&[&[format!("---\n{alone}\n")][..], &others].concat());
    let denied = json!([["remote_addr", "ipmatch", ["10.0.0.0/16"]]]);
    let demanded = json!([["ssl_client_s_dn", "!", "~~", "CN=a"]]);
    for (found, id, vars) in [
        (&of_host, "ingress_shop_a_0", json!([denied, demanded])),
        (&of_host, "ingress_shop_b_0", json!([demanded])),
        (&of_default, "ingress_shop_a_default", json!([denied, demanded])),
    ] {
        let plugins = &resource(found, id)["plugins"];
        assert_eq!(plugins["fault-injection"], json!({ "abort": { "http_status": 403, "vars": vars } }), "{id}");
        let set = &plugins["proxy-rewrite"]["headers"]["set"];
        assert_eq!(set["ssl-client-cert"], "$ssl_client_escaped_cert", "{id}: {set}");
        assert_eq!(set["ssl-client-verify"], "$ssl_client_verify", "{id}: {set}");
    }
}

#[test]
fn a_refused_demand_for_certificates_closes_all_paths_of_the_host() {
    let closed = json!({ "fault-injection": { "abort": { "http_status": 503 } } });
    for annotations in [
        &[("auth-tls-secret", "shop/ca"), ("auth-tls-match-cn", "CN=(?!guest)")][..],
        &[("auth-tls-secret", "shop/none")],
        &[("auth-tls-match-cn", "CN=a")],
    ] {
        let guarded = with_tls(&ingress("a", annotations, &[("/a", "web")]), "h");
        let beside = ingress("b", &[("app-root", "/b")], &[("/b", "web")]);
        let found = translated(&[guarded, beside, AUTHORITY.to_owned(), service("web", Some("10.0.0.1"))]);
        for id in ["ingress_shop_a_0", "ingress_shop_b_0"] {
            assert_eq!(resource(&found, id)["plugins"], closed, "{id} {annotations:?}");
        }
        assert!(found.resources.iter().all(|resource| resource.id != "ingress_shop_b_root_h"), "{annotations:?}");
        let said =
            "`/b` of `h`: Ingress shop/a asks for certificates of clients, and is refused; it is answered with 503";
        assert!(messages(&found).contains(&said), "{:?}", messages(&found));
    }
    let refused = ingress("a", &[("server-snippet", "return 200;")], &[("/a", "web")]);
    let found = translated(&[refused, ingress("b", &[], &[("/b", "web")]), service("web", Some("10.0.0.1"))]);
    assert_eq!(resource(&found, "ingress_shop_a_0")["plugins"], closed);
    assert_eq!(resource(&found, "ingress_shop_b_0")["upstream_id"], "shop_web_80");
}

#[test]
fn the_default_backend_of_an_ingress_has_the_protection_of_its_paths() {
    let backend = r#""defaultBackend":{"service":{"name":"web","port":{"number":80}}},"rules""#;
    let of = |annotations: &[(&str, &str)]| {
        let own = ingress("a", annotations, &[("/api", "web")]).replace("\"rules\"", backend);
        let wider = ingress("b", &[], &[("/", "web")]).replace("\"host\":\"h\"", "\"host\":\"\"");
        translated(&[own, wider, service("web", Some("10.0.0.1"))])
    };
    let restricted = of(&[("whitelist-source-range", "10.0.0.0/8")]);
    let [path, rest] = ["ingress_shop_a_0", "ingress_shop_a_rest_h"].map(|id| resource(&restricted, id));
    assert!(path["plugins"]["ip-restriction"].is_object(), "{path:#}");
    assert_eq!(rest["plugins"]["ip-restriction"], path["plugins"]["ip-restriction"], "{rest:#}");
    assert_eq!(rest["upstream_id"], path["upstream_id"]);
    let refused = of(&[("server-snippet", "return 200;")]);
    let rest = resource(&refused, "ingress_shop_a_rest_h");
    assert_eq!(rest["plugins"]["fault-injection"]["abort"]["http_status"], 503, "{rest:#}");
}

#[test]
fn a_decision_of_an_auth_service_is_kept_for_no_key_that_is_not_known() {
    let of = |key: &str| {
        let annotations = [("auth-url", "http://auth.example/"), ("auth-cache-key", key)];
        translated(&[ingress("a", &annotations, &[("/", "web")]), service("web", Some("10.0.0.1"))])
    };
    let known = of("$host$binary_remote_addr");
    let auth = &resource(&known, "ingress_shop_a_0")["plugins"]["forward-auth"];
    assert_eq!(auth["cache_key"], "$host$remote_addr", "{auth:#}");
    let unknown = of("$host$no_such_variable");
    let route = resource(&unknown, "ingress_shop_a_0");
    assert!(route["plugins"]["forward-auth"].is_null(), "{route:#}");
    assert_eq!(route["plugins"]["fault-injection"]["abort"]["http_status"], 503, "{route:#}");
    assert!(
        messages(&unknown).iter().any(|message| message.contains("`$no_such_variable`")),
        "{:?}",
        messages(&unknown)
    );
}
