//! Each annotation of ingress-nginx by itself: what it becomes in the route, or what is said of it, and whether requests are then answered
//! or refused. How plugins act on requests is tested with the plugins. Other annotations are tried in `annotations` and in the manifests.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use weir_testkit::{Authority, Client, TlsClient};

use super::{Cluster, convert, ingress};

/// What comes of annotations.
enum Effect {
    /// Nothing changes, and nothing is said.
    None,
    /// The Ingress is served without it, and this is said.
    Left(&'static str),
    /// The paths of the Ingress are answered with 503, and this is said.
    Refused(&'static str),
    /// A value of the route, or below `/upstream` of its upstream, as JSON.
    Sets(&'static [(&'static str, &'static str)]),
}

use Effect::{Left, None as Nothing, Refused, Sets};

type Row = (&'static [(&'static str, &'static str)], Effect);

const ROWS: &[Row] = &[
    (&[("relative-redirects", "true")], Nothing),
    (&[("preserve-trailing-slash", "true")], Nothing),
    (&[("proxy-redirect-from", "off")], Nothing),
    (&[("proxy-redirect-from", "default"), ("proxy-redirect-to", "http://b/")], Nothing),
    (
        &[("proxy-redirect-from", "http://a/"), ("proxy-redirect-to", "http://b/")],
        Sets(&[("/plugins/reverse-rewrite/redirects", r#"[{"from": "http://a/", "to": "http://b/"}]"#)]),
    ),
    (
        &[("proxy-redirect-from", "~*^http://(a+)/"), ("proxy-redirect-to", "https://$1.example/")],
        Sets(&[(
            "/plugins/reverse-rewrite/redirects",
            r#"[{"regex": "^http://(a+)/", "to": "https://$1.example/", "ignore_case": true}]"#,
        )]),
    ),
    (
        &[("proxy-redirect-from", "/"), ("proxy-redirect-to", "/$1/")],
        Sets(&[("/plugins/reverse-rewrite/redirects", r#"[{"from": "/", "to": "/$1/"}]"#)]),
    ),
    (
        &[("use-regex", "true"), ("proxy-redirect-from", "/"), ("proxy-redirect-to", "/$1/")],
        Sets(&[("/plugins/reverse-rewrite/redirects", r#"[{"from": "/", "to": "/$1/", "path": "(?i)^/"}]"#)]),
    ),
    (&[("proxy-redirect-from", "/"), ("proxy-redirect-to", "/$10/")], Left("`$10` is not a variable here")),
    (&[("satisfy", "all")], Nothing),
    (
        &[("satisfy", "any"), ("auth-url", "http://127.0.0.1:9/check"), ("whitelist-source-range", "127.0.0.0/8")],
        Sets(&[
            ("/plugins/ip-restriction", "null"),
            ("/plugins/forward-auth/_meta/filter", r#"[["remote_addr", "!", "ipmatch", ["127.0.0.0/8"]]]"#),
        ]),
    ),
    (
        &[("satisfy", "any"), ("auth-url", "http://127.0.0.1:9/check")],
        Sets(&[("/plugins/forward-auth/_meta", "null"), ("/plugins/ip-restriction", "null")]),
    ),
    (
        &[("satisfy", "any"), ("auth-url", "http://127.0.0.1:9/check"), ("denylist-source-range", "10.0.0.0/8")],
        Refused("either no denied address or a credential"),
    ),
    (
        &[
            ("satisfy", "any"),
            ("auth-url", "http://127.0.0.1:9/check"),
            ("whitelist-source-range", "127.0.0.0/8"),
            ("auth-response-headers", "X-User"),
        ],
        Refused("allowed addresses could claim the fields"),
    ),
    (&[("auth-tls-verify-client", "optional_no_ca")], Refused("must be valid, use `optional`")),
    (&[("auth-tls-match-cn", "CN=a")], Refused("no certificate is asked for")),
    (&[("auth-tls-match-cn", "a")], Refused("does not begin with `CN=`")),
    (&[("auth-tls-pass-certificate-to-upstream", "false")], Nothing),
    (&[("auth-tls-pass-certificate-to-upstream", "true")], Nothing),
    (&[("auth-tls-error-page", "https://a/")], Left("the handshake fails")),
    (&[("enable-global-auth", "false")], Nothing),
    (&[("auth-always-set-cookie", "true")], Nothing),
    (&[("auth-keepalive", "10"), ("auth-keepalive-requests", "10")], Nothing),
    (&[("auth-keepalive-share-vars", "true"), ("auth-keepalive-timeout", "10")], Nothing),
    (
        &[("auth-url", "http://127.0.0.1:9/check"), ("auth-method", "POST"), ("auth-cache-key", "$cookie_session")],
        Sets(&[
            ("/plugins/forward-auth/request_method", r#""POST""#),
            ("/plugins/forward-auth/cache_key", "null"),
            ("/plugins/forward-auth/cache_ttl", "null"),
        ]),
    ),
    (
        &[
            ("auth-url", "http://127.0.0.1:9/check"),
            ("auth-method", "GET"),
            ("auth-signin", "https://login.example/"),
            ("auth-signin-redirect-param", "back"),
            ("auth-request-redirect", "https://back.example/"),
            ("auth-proxy-set-headers", "shop/added"),
            ("auth-cache-key", "$cookie_session"),
            ("auth-cache-duration", "200 1m"),
        ],
        Sets(&[
            ("/plugins/forward-auth/signin_redirect_param", r#""back""#),
            ("/plugins/forward-auth/extra_headers/X-Auth-Request-Redirect", r#""https://back.example/""#),
            ("/plugins/forward-auth/extra_headers/X-Added", r#""1""#),
            ("/plugins/forward-auth/cache_key", r#""$cookie_session""#),
            ("/plugins/forward-auth/cache_ttl", "60"),
        ]),
    ),
    (
        &[
            ("enable-cors", "true"),
            ("cors-allow-origin", "https://site.example"),
            ("cors-allow-methods", "GET"),
            ("cors-allow-headers", "X-A"),
            ("cors-expose-headers", "X-B"),
            ("cors-allow-credentials", "false"),
            ("cors-max-age", "5"),
        ],
        Sets(&[
            ("/plugins/cors/allow_methods", r#""GET""#),
            ("/plugins/cors/allow_headers", r#""X-A""#),
            ("/plugins/cors/expose_headers", r#""X-B""#),
            ("/plugins/cors/allow_credential", "null"),
            ("/plugins/cors/max_age", "5"),
        ]),
    ),
    (&[("proxy-connect-timeout", "7")], Sets(&[("/timeout", r#"{"connect": 7, "send": 60, "read": 60}"#)])),
    (&[("proxy-send-timeout", "8")], Sets(&[("/timeout/send", "8")])),
    (&[("proxy-read-timeout", "9")], Sets(&[("/timeout/read", "9")])),
    (&[("limit-connections", "6")], Sets(&[("/plugins/limit-conn/conn", "6")])),
    (
        &[("limit-rate", "100"), ("limit-rate-after", "1000")],
        Sets(&[("/plugins/limit-rate", r#"{"rate": 102400, "after": 1024000}"#)]),
    ),
    (&[("limit-rate", "0"), ("limit-rate-after", "1000")], Nothing),
    (&[("limit-rate", "1000000000")], Sets(&[("/plugins/limit-rate", r#"{"rate": 1000000000000, "after": 0}"#)])),
    (
        &[
            ("global-rate-limit", "10"),
            ("global-rate-limit-window", "1m"),
            ("global-rate-limit-key", "$remote_addr"),
            ("global-rate-limit-ignored-cidrs", "10.0.0.0/8"),
        ],
        Refused("with `policy: redis`"),
    ),
    (&[("client-body-buffer-size", "1m"), ("client-body-timeout", "10")], Nothing),
    (
        &[
            ("affinity", "cookie"),
            ("affinity-mode", "balanced"),
            ("affinity-canary-behavior", "legacy"),
            ("session-cookie-name", "session"),
            ("session-cookie-path", "/p"),
            ("session-cookie-domain", "site.example"),
            ("session-cookie-secure", "true"),
            ("session-cookie-samesite", "Strict"),
            ("session-cookie-conditional-samesite-none", "true"),
            ("session-cookie-max-age", "60"),
            ("session-cookie-change-on-failure", "true"),
        ],
        Sets(&[(
            "/upstream/persistence",
            r#"{"type": "cookie", "name": "session", "path": "/p", "domain": "site.example", "same_site": "Strict",
                "secure": true, "max_age": 60}"#,
        )]),
    ),
    (&[("affinity", "cookie"), ("session-cookie-expires", "61")], Sets(&[("/upstream/persistence/max_age", "61")])),
    (&[("load-balance", "ewma")], Sets(&[("/upstream/type", r#""ewma""#)])),
    (&[("load-balance", "round_robin")], Nothing),
    (
        &[("upstream-hash-by", "$request_uri")],
        Sets(&[("/upstream/type", r#""chash""#), ("/upstream/key", r#""$request_uri""#)]),
    ),
    (&[("upstream-hash-by-subset", "true"), ("upstream-hash-by-subset-size", "3")], Left("not to a subset")),
    (&[("service-upstream", "true")], Sets(&[("/upstream/nodes/0/host", r#""10.0.0.1""#)])),
    (
        &[("proxy-next-upstream", "error timeout http_502")],
        Sets(&[("/upstream/retry_on", r#"["read_timeout", "http_502"]"#)]),
    ),
    (&[("proxy-next-upstream", "off")], Sets(&[("/upstream/retries", "0")])),
    (&[("proxy-next-upstream-tries", "4")], Sets(&[("/upstream/retries", "3")])),
    (&[("proxy-next-upstream-timeout", "11")], Sets(&[("/upstream/retry_timeout", "11")])),
    (&[("connection-proxy-header", "keep-alive"), ("proxy-http-version", "1.1")], Nothing),
    (&[("proxy-buffering", "on"), ("proxy-request-buffering", "on")], Nothing),
    (&[("proxy-buffer-size", "16k"), ("proxy-buffers-number", "4")], Nothing),
    (&[("proxy-busy-buffers-size", "16k"), ("proxy-max-temp-file-size", "1m")], Nothing),
    (&[("http2-push-preload", "true")], Nothing),
    (&[("proxy-ssl-verify", "off"), ("proxy-ssl-verify-depth", "2"), ("proxy-ssl-server-name", "on")], Nothing),
    (&[("proxy-ssl-ciphers", "HIGH"), ("proxy-ssl-protocols", "TLSv1.3")], Nothing),
    (&[("proxy-ssl-name", "inner")], Sets(&[("/upstream/tls/server_name", r#""inner""#)])),
    (&[("proxy-cookie-domain", "off"), ("proxy-cookie-path", "off")], Nothing),
    (&[("proxy-cookie-domain", "a")], Left("`a` is not `off`, or two words")),
    (&[("proxy-cookie-path", "/a /;")], Left("which is not served there")),
    (
        &[("proxy-cookie-domain", "a b"), ("proxy-cookie-path", "/a /b")],
        Sets(&[(
            "/plugins/reverse-rewrite",
            r#"{"cookie_domains": [{"from": "a", "to": "b"}], "cookie_paths": [{"from": "/a", "to": "/b"}]}"#,
        )]),
    ),
    (
        &[
            ("mirror-target", "http://127.0.0.1:9$request_uri"),
            ("mirror-request-body", "off"),
            ("mirror-host", "m.example"),
        ],
        Sets(&[(
            "/plugins/proxy-mirror",
            r#"{"host": "http://127.0.0.1:9", "host_header": "m.example", "body": false}"#,
        )]),
    ),
    (&[("custom-headers", "shop/added")], Sets(&[("/plugins/response-rewrite/headers/set", r#"{"X-Added": "1"}"#)])),
    (&[("custom-http-errors", "404,503")], Left("needs `default-backend`")),
    (&[("default-backend", "two")], Left("does not know whether they have endpoints")),
    (&[("disable-proxy-intercept-errors", "true")], Nothing),
    (&[("enable-access-log", "false")], Left("a setting of the node")),
    (&[("enable-rewrite-log", "true")], Nothing),
    (
        &[
            ("enable-opentelemetry", "true"),
            ("opentelemetry-trust-incoming-span", "true"),
            ("opentelemetry-operation-name", "x"),
        ],
        Left("Use the plugin `opentelemetry`"),
    ),
    (&[("ssl-ciphers", "HIGH"), ("ssl-prefer-server-ciphers", "true")], Nothing),
    (&[("enable-modsecurity", "false"), ("modsecurity-transaction-id", "x")], Nothing),
    (&[("enable-owasp-core-rules", "false")], Nothing),
    (&[("enable-owasp-core-rules", "true")], Refused("no such firewall. The paths")),
    (&[("modsecurity-snippet", "x")], Refused("no such firewall. The paths")),
    (&[("stream-snippet", "x")], Refused("Configuration of nginx cannot be included")),
    (
        &[("temporal-redirect", "https://t.example/"), ("temporal-redirect-code", "303")],
        Sets(&[("/plugins/redirect", r#"{"uri": "https://t.example/", "ret_code": 303}"#)]),
    ),
    (
        &[("permanent-redirect", "https://p.example/"), ("permanent-redirect-code", "308")],
        Sets(&[("/plugins/redirect", r#"{"uri": "https://p.example/", "ret_code": 308}"#)]),
    ),
];

/// A Service with an address of its own, one for `default-backend`, and values for fields.
const OTHERS: &str = "---
apiVersion: v1
kind: Service
metadata: { name: addressed, namespace: shop }
spec: { clusterIP: 10.0.0.1, ports: [{ name: web, port: 80, targetPort: 8080 }] }
---
apiVersion: v1
kind: ConfigMap
metadata: { name: added, namespace: shop }
data: { X-Added: \"1\" }
";

/// The route of an Ingress, with its upstream in place of the name of that.
fn route(document: &Value, number: usize) -> Value {
    let with_id = |list: &str, id: &Value| {
        document[list].as_array().and_then(|all| all.iter().find(|one| one["id"] == *id)).cloned().unwrap_or_default()
    };
    let mut route = with_id("routes", &json!(format!("ingress_shop_a{number}_0")));
    route["upstream"] = with_id("upstreams", &route["upstream_id"]);
    route
}

#[test]
fn each_annotation_has_the_effect_that_the_reference_states() {
    let cluster = Cluster::new();
    let mut manifests = OTHERS.to_owned();
    for (number, (annotations, _)) in ROWS.iter().enumerate() {
        let service = if annotations[0].0 == "service-upstream" { "addressed" } else { "one" };
        manifests += &ingress(&format!("a{number}"), annotations, &[&format!("h{number}.example / Prefix {service}")]);
    }
    let (gateway, yaml) = cluster.serve(&manifests);
    let document: Value = serde_saphyr::from_str(&yaml).expect("YAML");
    let said = String::from_utf8(convert(&format!("{}{manifests}", cluster.manifests()), &[]).stderr).expect("text");
    for (number, (annotations, effect)) in ROWS.iter().enumerate() {
        let route = route(&document, number);
        let of_ingress = format!("Ingress shop/a{number}: ");
        let lost = said.lines().find(|line| line.contains(": not converted: ") && line.contains(&of_ingress));
        let request = format!("GET / HTTP/1.1\r\nHost: h{number}.example\r\n\r\n");
        let ask = || gateway.client().ask(&request).expect("an answer").status;
        match effect {
            Nothing => {
                let plugins = json!({ "client-control": { "max_body_size": 1_048_576 } });
                assert_eq!((&route["plugins"], lost, ask()), (&plugins, None, 200), "{annotations:?}");
                assert!(route["upstream"]["type"].is_null(), "{annotations:?}: {route}");
            }
            Left(told) => {
                assert!(lost.is_some_and(|line| line.contains(told)), "{annotations:?}: {said}");
                assert_eq!(ask(), 200, "{annotations:?}");
            }
            Refused(told) => {
                assert!(lost.is_some_and(|line| line.contains(told)), "{annotations:?}: {said}");
                assert_eq!(ask(), 503, "{annotations:?}");
            }
            Sets(values) => {
                assert_eq!(lost, None, "{annotations:?}");
                for (pointer, value) in *values {
                    let wanted: Value = serde_json::from_str(value).expect("JSON");
                    assert_eq!(
                        route.pointer(pointer).unwrap_or(&Value::Null),
                        &wanted,
                        "{annotations:?} {pointer}: {route}"
                    );
                }
            }
        }
    }
}

fn secret(name: &str, data: &Value) -> String {
    let metadata = json!({ "name": name, "namespace": "shop" });
    format!("---\n{}\n", json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data }))
}

#[test]
fn certificates_of_clients_are_demanded_as_annotations_say() {
    let authority = Authority::of_tests();
    let identity = authority.identity(&["h"]);
    let annotations = [
        ("auth-tls-secret", "shop/ca"),
        ("auth-tls-verify-client", "optional"),
        ("auth-tls-verify-depth", "3"),
        ("ssl-redirect", "false"),
    ];
    let manifests = ingress("a", &annotations, &["h / Prefix one"])
        + "  tls: [{ hosts: [h], secretName: own }]\n"
        + &secret("ca", &json!({ "ca.crt": authority.certificate }))
        + &secret("own", &json!({ "tls.crt": identity.certificate, "tls.key": identity.key }));
    let (_gateway, yaml) = Cluster::new().serve(&manifests);
    let document: Value = serde_saphyr::from_str(&yaml).expect("YAML");
    let client = &document["ssls"][0]["client"];
    assert_eq!((&client["mode"], &client["depth"]), (&json!("optional"), &json!(3)), "{yaml}");
    assert!(client["ca"].as_str().is_some_and(|ca| ca.contains("BEGIN CERTIFICATE")), "{yaml}");
}

#[test]
fn certificates_of_clients_reach_all_services_of_a_host_and_other_subjects_none() {
    let authority = Authority::of_tests();
    let [own, orders, other] = ["h", "orders", "order"].map(|name| authority.identity(&[name]));
    let annotations = [
        ("auth-tls-secret", "shop/ca"),
        ("auth-tls-verify-client", "optional"),
        ("auth-tls-match-cn", "CN=orders(,|$)"),
        ("auth-tls-pass-certificate-to-upstream", "true"),
        ("whitelist-source-range", "127.0.0.0/8"),
        ("denylist-source-range", "192.0.2.0/24"),
    ];
    let manifests = ingress("a", &annotations, &["h /a Prefix one"])
        + "  tls: [{ hosts: [h], secretName: own }]\n"
        + &ingress("b", &[], &["h /b Prefix two"])
        + &secret("ca", &json!({ "ca.crt": authority.certificate }))
        + &secret("own", &json!({ "tls.crt": own.certificate, "tls.key": own.key }));
    let cluster = Cluster::new();
    let (gateway, _) = cluster.serve(&manifests);
    let ask = |target: &str, tls: &TlsClient| {
        let mut client = Client::connect_tls(gateway.tls_addr(), tls, "h").expect("a connection");
        let forged = "ssl-client-cert: forged\r\nssl-client-verify: SUCCESS\r\nssl-client-subject-dn: CN=orders\r\n";
        client.ask(format!("GET {target} HTTP/1.1\r\nHost: h\r\n{forged}\r\n")).expect("an answer").status
    };
    let escape = |byte: u8| match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    let escaped: String = orders.certificate.replace("\r\n", "\n").bytes().map(escape).collect();
    for (target, service) in [("/a", 0), ("/b", 1)] {
        assert_eq!(ask(target, &TlsClient::known_as(authority, &other)), 403, "{target}");
        assert_eq!(ask(target, &TlsClient::trusting(authority)), 403, "{target}");
        assert_eq!(ask(target, &TlsClient::known_as(authority, &orders)), 200, "{target}");
        let requests = cluster.services[service].requests();
        assert_eq!(requests.len(), 1, "{target}");
        let told = ["ssl-client-cert", "ssl-client-verify", "ssl-client-subject-dn"]
            .map(|name| requests[0].headers.all(name).collect::<Vec<_>>().join(" + "));
        assert_eq!(told, [&*escaped, "SUCCESS", "CN=orders"], "{target}");
    }
}

/// The reference is made from the table by which annotations are read.
#[test]
fn each_annotation_of_the_reference_is_tried() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut tried = String::new();
    for folder in ["tests/operations/ingress", "tests/operations/ingress/manifests"] {
        for file in fs::read_dir(root.join(folder)).expect("the folder is there").flatten() {
            if file.path().is_file() {
                tried += &read(&file.path());
            }
        }
    }
    let reference = read(&root.join("docs/reference/ingress-nginx.md"));
    let names: Vec<&str> = reference.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert!(names.len() > 130, "{}", names.len());
    let is_tried = |name: &&str| tried.contains(&format!("\"{name}\"")) || tried.contains(&format!("/{name}: "));
    let missing: Vec<&str> = names.into_iter().filter(|name| !is_tried(name)).collect();
    assert_eq!(missing, [""; 0]);
}
