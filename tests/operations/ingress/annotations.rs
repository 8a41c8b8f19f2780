//! What annotations of ingress-nginx do.

use super::{Cluster, IngressCase, IngressRequest, convert, ingress};
use weir_testkit::{Answer, Origin};

const fn get(target: &'static str, host: &'static str) -> IngressRequest {
    ("GET", target, host, "")
}

const fn with(target: &'static str, fields: &'static str) -> IngressRequest {
    ("GET", target, "h", fields)
}

/// A case whose Ingress has one rule for all paths of the host `h`.
fn one_rule<'a>(annotations: &[(&'a str, &str)], asked: &'a [(IngressRequest, &'a str)]) -> IngressCase<'a> {
    let name = annotations.first().map_or("no annotation", |(name, _)| name);
    IngressCase { name, manifests: ingress("a", annotations, &["h / Prefix one"]), asked }
}

#[test]
fn paths_and_hosts() {
    Cluster::new().check(&[
        IngressCase {
            name: "rewrite-target with groups",
            manifests: ingress("a", &[("rewrite-target", "/$2")], &["h /api(/|$)(.*) ImplementationSpecific one"]),
            asked: &[
                (get("/api/x/y?q=1", "h"), "one GET /x/y?q=1"),
                (get("/API", "h"), "one GET / "),
                (get("/apis", "h"), "404"),
                (get("/other", "h"), "404"),
            ],
        },
        IngressCase {
            name: "rewrite-target without groups replaces the whole path",
            manifests: ingress("a", &[("rewrite-target", "/app")], &["h /old Prefix one"]),
            asked: &[(get("/old/x", "h"), "one GET /app "), (get("/older", "h"), "one GET /app ")],
        },
        IngressCase {
            name: "one expression makes all paths of the host expressions, and the longest is tried first",
            manifests: [
                ingress("a", &[("use-regex", "true")], &["h /v[0-9]+/items ImplementationSpecific one"]),
                ingress("b", &[], &["h /v1 Exact two", "h / Prefix three", "other /v1 Exact two"]),
            ]
            .concat(),
            asked: &[
                (get("/V12/Items/3", "h"), "one GET /V12/Items/3"),
                (get("/v1", "h"), "two GET"),
                (get("/V1/x", "h"), "two GET"),
                (get("/x", "h"), "three GET"),
                (get("/v1/x", "other"), "404"),
            ],
        },
        IngressCase {
            name: "a path that is no expression is a prefix of the text",
            manifests: ingress("a", &[], &["h /foo ImplementationSpecific one", "h /foo/bar Prefix two"]),
            asked: &[
                (get("/foobar", "h"), "one GET"),
                (get("/foo/bar", "h"), "two GET"),
                (get("/foo/barx", "h"), "one GET"),
            ],
        },
        IngressCase {
            name: "a host does not fall back to rules without a host",
            manifests: ingress("a", &[], &["h /own Prefix one", "- / Prefix two"]),
            asked: &[(get("/own", "h"), "one GET"), (get("/x", "h"), "404"), (get("/x", "other"), "two GET")],
        },
        one_rule(
            &[("server-alias", "b.example, c.example")],
            &[(get("/", "c.example"), "one GET"), (get("/", "d.example"), "404")],
        ),
        one_rule(&[("app-root", "/app")], &[(get("/", "h"), "302 location=/app"), (get("/x", "h"), "one GET /x")]),
        one_rule(&[("upstream-vhost", "inner.example")], &[(get("/", "h"), "host=inner.example")]),
        one_rule(&[("x-forwarded-prefix", "/shop")], &[(get("/", "h"), "x-forwarded-prefix=/shop")]),
    ]);
}

#[test]
fn an_alias_is_no_claim_to_a_host_with_rules() {
    let aliasing = ingress("a", &[("server-alias", "other")], &["h / Prefix one"]);
    Cluster::new().check(&[IngressCase {
        name: "server-alias that is the host of another Ingress",
        manifests: aliasing + &ingress("b", &[], &["other /own Prefix two"]),
        asked: &[(get("/own", "other"), "two GET"), (get("/x", "other"), "404"), (get("/x", "h"), "one GET")],
    }]);
}

#[test]
fn redirects() {
    let with_tls =
        format!("{}  tls: [{{ hosts: [h], secretName: missing }}]\n", ingress("a", &[], &["h / Prefix one"]));
    let challenge = format!(
        "{}  tls: [{{ hosts: [h], secretName: missing }}]\n",
        ingress("a", &[], &["h /.well-known/acme-challenge/token Exact two", "h / Prefix one"])
    );
    let not_redirected = with_tls.replace(
        "  namespace: shop\n",
        "  namespace: shop\n  annotations: { nginx.ingress.kubernetes.io/ssl-redirect: 'false' }\n",
    );
    Cluster::new().check(&[
        IngressCase {
            name: "a host with a certificate",
            manifests: with_tls,
            asked: &[
                (get("/a?b=1", "h"), "308 location=https://h/a?b=1"),
                (("POST", "/", "h", "Content-Length: 1\r\n"), "308 location=https://h/"),
            ],
        },
        IngressCase {
            name: "challenges of ACME come without TLS",
            manifests: challenge,
            asked: &[
                (get("/.well-known/acme-challenge/token", "h"), "two GET"),
                (get("/.well-known/acme-challenge/other", "h"), "308 location=https://h/"),
            ],
        },
        IngressCase { name: "ssl-redirect=false", manifests: not_redirected, asked: &[(get("/a", "h"), "one GET /a")] },
        one_rule(&[("force-ssl-redirect", "true")], &[(get("/a", "h"), "308 location=https://h/a")]),
        one_rule(&[("force-ssl-redirect", "True")], &[(get("/a", "h"), "308 location=https://h/a")]),
        one_rule(&[("force-ssl-redirect", "F")], &[(get("/a", "h"), "one GET")]),
        one_rule(&[("backend-protocol", "http")], &[(get("/a", "h"), "one GET")]),
        one_rule(
            &[("permanent-redirect", "https://new.example")],
            &[(get("/a", "h"), "301 location=https://new.example")],
        ),
        one_rule(
            &[("permanent-redirect", "https://new.example$request_uri"), ("permanent-redirect-code", "308")],
            &[(get("/a?b", "h"), "308 location=https://new.example/a?b")],
        ),
        one_rule(
            &[("temporal-redirect", "https://now.example")],
            &[(get("/a", "h"), "302 location=https://now.example")],
        ),
        IngressCase {
            name: "from-to-www-redirect",
            manifests: ingress("a", &[("from-to-www-redirect", "true")], &["shop.example / Prefix one"]),
            asked: &[
                (get("/a?b", "www.shop.example"), "308 location=http://shop.example/a?b"),
                (get("/", "shop.example"), "one GET"),
            ],
        },
    ]);
}

#[test]
fn redirects_and_cookies_of_services() {
    let unchanged = "302 location=http://inner.example/one/x set-cookie=a=1; Domain=inner.example; Path=/one/x";
    Cluster::new().check(&[
        one_rule(
            &[("proxy-redirect-from", "http://inner.example/one/"), ("proxy-redirect-to", "https://$host/two/")],
            &[(get("/moved", "h"), "302 location=https://h/two/x set-cookie=a=1; Domain=inner.example; Path=/one/x")],
        ),
        one_rule(
            &[("proxy-redirect-from", "~^http://([a-z]+)\\.example/(.*)$"), ("proxy-redirect-to", "/$1/$2")],
            &[(get("/moved", "h"), "302 location=/inner/one/x ")],
        ),
        one_rule(
            &[("proxy-cookie-domain", "Inner.example h"), ("proxy-cookie-path", "/one/ /")],
            &[(get("/moved", "h"), "location=http://inner.example/one/x set-cookie=a=1; Domain=h; Path=/x")],
        ),
        one_rule(
            &[("proxy-cookie-domain", "other.example h"), ("proxy-redirect-from", "default")],
            &[(get("/moved", "h"), unchanged)],
        ),
        one_rule(
            &[("proxy-cookie-path", "/one/ /two/"), ("affinity", "cookie"), ("session-cookie-path", "/one/")],
            &[(get("/moved", "h"), "Path=/two/x set-cookie=INGRESSCOOKIE="), (get("/moved", "h"), "; Path=/one/;")],
        ),
    ]);
}

#[test]
fn limits_and_access() {
    Cluster::new().check(&[
        one_rule(
            &[("proxy-body-size", "4")],
            &[
                (("POST", "/", "h", "Content-Length: 4\r\n"), "one POST"),
                (("POST", "/", "h", "Content-Length: 5\r\n"), "413"),
            ],
        ),
        one_rule(
            &[],
            &[
                (("POST", "/", "h", "Content-Length: 1048576\r\n"), "one POST"),
                (("POST", "/", "h", "Content-Length: 1048577\r\n"), "413"),
            ],
        ),
        one_rule(&[("proxy-body-size", "0")], &[(("POST", "/", "h", "Content-Length: 1048577\r\n"), "one POST")]),
        one_rule(&[("whitelist-source-range", "127.0.0.0/8, ::1")], &[(get("/", "h"), "one GET")]),
        one_rule(&[("allowlist-source-range", "10.0.0.0/8")], &[(get("/", "h"), "403")]),
        one_rule(
            &[("allowlist-source-range", "10.0.0.0/8"), ("whitelist-source-range", "127.0.0.0/8")],
            &[(get("/", "h"), "403")],
        ),
        one_rule(&[("denylist-source-range", "127.0.0.1")], &[(get("/", "h"), "403")]),
        one_rule(
            &[("whitelist-source-range", "127.0.0.0/8"), ("denylist-source-range", "127.0.0.1")],
            &[(get("/", "h"), "403")],
        ),
        one_rule(
            &[("satisfy", "any"), ("auth-url", "http://127.0.0.1:9/check"), ("whitelist-source-range", "127.0.0.0/8")],
            &[(get("/", "h"), "one GET")],
        ),
        one_rule(
            &[("satisfy", "any"), ("auth-url", "http://127.0.0.1:9/check"), ("whitelist-source-range", "10.0.0.0/8")],
            // The service that decides cannot be reached.
            &[(get("/", "h"), "403")],
        ),
        one_rule(&[("satisfy", "any"), ("whitelist-source-range", "10.0.0.0/8")], &[(get("/", "h"), "403")]),
        one_rule(
            &[("limit-rpm", "1"), ("limit-burst-multiplier", "1")],
            &[(get("/1", "h"), "one GET"), (get("/2", "h"), "one GET"), (get("/3", "h"), "503")],
        ),
        one_rule(
            &[("limit-rpm", "1"), ("limit-burst-multiplier", "1"), ("limit-whitelist", "127.0.0.1")],
            &[(get("/1", "h"), "one GET"), (get("/2", "h"), "one GET"), (get("/3", "h"), "one GET")],
        ),
        one_rule(
            &[("enable-cors", "true"), ("cors-allow-origin", "https://*.shop.example")],
            &[
                (
                    with("/", "Origin: https://www.shop.example\r\n"),
                    "access-control-allow-origin=https://www.shop.example",
                ),
                (with("/", "Origin: https://evil.example\r\n"), "200  one GET"),
            ],
        ),
        one_rule(&[("affinity", "cookie"), ("session-cookie-name", "route")], &[(get("/", "h"), "set-cookie=route=")]),
        one_rule(&[("upstream-hash-by", "$binary_remote_addr")], &[(get("/", "h"), "one GET")]),
        IngressCase {
            name: "the cookie of a path is not sent to others",
            manifests: ingress("a", &[("affinity", "cookie")], &["h /cart Prefix one", "h /cart/pay Exact one"]),
            asked: &[(get("/cart/x", "h"), "; Path=/cart;"), (get("/cart/pay", "h"), "; Path=/cart/pay;")],
        },
    ]);
}

#[test]
fn a_canary_gets_its_share() {
    let main = ingress("main", &[], &["h / Prefix one"]);
    let canary = |annotations: &[(&str, &str)]| {
        let annotations = [annotations, &[("canary", "true")]].concat();
        format!("{main}{}", ingress("canary", &annotations, &["h / Prefix two"]))
    };
    Cluster::new().check(&[
        IngressCase {
            name: "canary-by-header",
            manifests: canary(&[("canary-by-header", "X-Canary")]),
            asked: &[
                (with("/", "X-Canary: always\r\n"), "two GET"),
                (with("/", "X-Canary: never\r\n"), "one GET"),
                (with("/", "X-Canary: other\r\n"), "one GET"),
                (get("/", "h"), "one GET"),
            ],
        },
        IngressCase {
            name: "canary-by-header-value, then the cookie, then the weight",
            manifests: canary(&[
                ("canary-by-header", "X-Canary"),
                ("canary-by-header-value", "beta"),
                ("canary-by-cookie", "canary"),
                ("canary-weight", "100"),
            ]),
            asked: &[
                (with("/", "X-Canary: beta\r\nCookie: canary=never\r\n"), "two GET"),
                (with("/", "X-Canary: always\r\nCookie: canary=never\r\n"), "one GET"),
                (get("/", "h"), "two GET"),
            ],
        },
        IngressCase {
            name: "canary-weight-total",
            manifests: canary(&[("canary-weight", "1000"), ("canary-weight-total", "1000")]),
            asked: &[(get("/", "h"), "two GET"), (get("/x", "h"), "two GET")],
        },
        IngressCase {
            name: "canary-by-header-pattern",
            manifests: canary(&[("canary-by-header", "X-Canary"), ("canary-by-header-pattern", "^b[0-9]$")]),
            asked: &[(with("/", "X-Canary: b7\r\n"), "two GET"), (with("/", "X-Canary: b77\r\n"), "one GET")],
        },
    ]);
}

#[test]
fn another_service_decides_and_a_client_without_a_session_is_sent_to_the_sign_in_page() {
    let service = Origin::serving(|request| match request.headers.get("cookie") {
        Some("session=jack") => Answer::with(202, "X-User: jack\r\nSet-Cookie: session=jack2\r\n", String::new()),
        _ => Answer::with(401, "", "no"),
    });
    let url = format!("http://{}/check", service.addr());
    let cluster = Cluster::new();
    let annotations = [
        ("auth-url", url.as_str()),
        ("auth-signin", "https://$host/oauth2/start"),
        ("auth-response-headers", "X-User"),
    ];
    let (gateway, _) = cluster.serve(&ingress("a", &annotations, &["h / Prefix one"]));
    let signed_in = Cluster::ask(&gateway, with("/a?b=1", "Cookie: session=jack\r\nX-User: admin\r\n"));
    assert!(signed_in.contains("x-user=jack") && signed_in.contains("set-cookie=session=jack2"), "{signed_in}");
    let other = Cluster::ask(&gateway, get("/a?b=1", "h"));
    assert!(other.starts_with("302 location=https://h/oauth2/start?rd=http%3A%2F%2Fh%2Fa%3Fb%3D1"), "{other}");
    let asked = &service.requests()[0];
    assert_eq!(asked.headers.get("x-original-url"), Some("http://h/a?b=1"));
    assert_eq!(asked.headers.get("x-original-method"), Some("GET"));

    let escaped = [("auth-url", url.as_str()), ("auth-signin", "https://login.example/?rd=$escaped_request_uri")];
    let (gateway, _) = cluster.serve(&ingress("a", &escaped, &["h / Prefix one"]));
    let other = Cluster::ask(&gateway, get("/a?b=1", "h"));
    assert!(other.starts_with("302 location=https://login.example/?rd=%2Fa%3Fb%3D1 "), "{other}");
}

/// A Secret whose users are as `htpasswd` writes them: jack by default, jill with `-B`.
const USERS: &str = r"---
apiVersion: v1
kind: Secret
metadata: { name: users, namespace: shop }
stringData:
  auth: |
    # people
    jack:$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/

    jill:$2y$04$abcdefghijklmnopqrstuuFmEfrkTQnczNzw475xE2VhDrK1uwJiC:a comment
  joe: secret
";

#[test]
fn users_of_a_secret() {
    let manifests = |annotations: &[(&str, &str)]| {
        let all = [&[("auth-type", "basic"), ("auth-secret", "users")], annotations].concat();
        ingress("a", &all, &["h / Prefix one"]) + USERS
    };
    Cluster::new().check(&[
        IngressCase {
            name: "auth-file",
            manifests: manifests(&[("auth-realm", "the shop")]),
            asked: &[
                (get("/", "h"), "401 www-authenticate=Basic realm=\"the shop\""),
                // jack:myPassword, jill:right, jack:right, joe:secret
                (with("/", "Authorization: Basic amFjazpteVBhc3N3b3Jk\r\n"), "200"),
                (with("/", "Authorization: Basic amlsbDpyaWdodA==\r\n"), "200"),
                (with("/", "Authorization: Basic amFjazpyaWdodA==\r\n"), "401"),
                (with("/", "Authorization: Basic am9lOnNlY3JldA==\r\n"), "401"),
            ],
        },
        IngressCase {
            name: "auth-map",
            manifests: manifests(&[("auth-secret-type", "auth-map")]).replace("  auth: |", "  other: |"),
            asked: &[
                (with("/", "Authorization: Basic am9lOnNlY3JldA==\r\n"), "200"),
                (with("/", "Authorization: Basic amFjazpteVBhc3N3b3Jk\r\n"), "401"),
            ],
        },
    ]);
}

#[test]
fn passwords_do_not_reach_the_service() {
    let annotations = [("auth-type", "basic"), ("auth-secret", "users")];
    let cluster = Cluster::new();
    let ask = |manifests: &str| {
        let (gateway, _) = cluster.serve(manifests);
        Cluster::ask(&gateway, with("/", "Authorization: Basic amFjazpteVBhc3N3b3Jk\r\n"))
    };
    let guarded = ask(&(ingress("a", &annotations, &["h / Prefix one"]) + USERS));
    assert!(guarded.contains("one GET") && !guarded.contains("authorization"), "{guarded}");
    let open = ask(&ingress("a", &[], &["h / Prefix one"]));
    assert!(open.contains("authorization=Basic"), "{open}");
}

/// Annotations with which an Ingress must not be served, and a part of what is said.
const REFUSED: &[(&str, &str, &str)] = &[
    ("configuration-snippet", "deny all;", "Configuration of nginx cannot be included"),
    ("server-snippet", "x", "Configuration of nginx cannot be included"),
    ("auth-snippet", "x", "Configuration of nginx cannot be included"),
    ("auth-type", "digest", "`digest` is not served"),
    ("auth-type", "basic", "there is no Secret"),
    ("auth-url", "", "is not understood"),
    ("auth-url", "https://$arg_a/check", "has a variable that has no fixed value here"),
    ("whitelist-source-range", "10.0.0.0/33", "`10.0.0.0/33` is not understood"),
    ("denylist-source-range", "office", "`office` is not understood"),
    ("auth-tls-secret", "shop/missing", "there is no Secret"),
    ("auth-tls-secret", "other/ca", "is in another namespace"),
    ("enable-modsecurity", "true", "no such firewall"),
    ("backend-protocol", "FCGI", "FCGI are not served"),
    ("proxy-ssl-secret", "missing", "there is no Secret"),
    ("limit-rps", "many", "`many` is not understood"),
    ("ssl-passthrough", "true", "TLS of an Ingress ends at the gateway"),
    ("use-regex", "yes", "`yes` is not understood"),
];

#[test]
fn an_ingress_whose_protection_is_not_served_answers_503_alone() {
    let cluster = Cluster::new();
    for (name, value, told) in REFUSED {
        let manifests =
            [ingress("guarded", &[(name, value)], &["h /admin Prefix one"]), ingress("open", &[], &["h / Prefix two"])]
                .concat();
        let (gateway, yaml) = cluster.serve(&manifests);
        let answer = Cluster::ask(&gateway, get("/admin", "h"));
        assert!(answer.starts_with("503"), "{name}: {answer}\n{yaml}");
        // A host at which certificates were to be asked for is closed as a whole, as by ingress-nginx.
        let of_other = if name.starts_with("auth-tls-") { "503" } else { "two GET" };
        assert!(Cluster::ask(&gateway, get("/", "h")).contains(of_other), "{name}");
        let errors = String::from_utf8(convert(&manifests, &[]).stderr).expect("text");
        assert!(errors.contains(told), "{name}: {errors}");
    }
}

#[test]
fn an_expression_that_cannot_be_served_closes_its_path() {
    let annotations = [("use-regex", "true")];
    let rules = ["h /shop/(?!x)y ImplementationSpecific one", "h / Prefix two"];
    let cluster = Cluster::new();
    let (gateway, yaml) = cluster.serve(&ingress("a", &annotations, &rules));
    for (target, expected) in [("/shop/y", "503"), ("/shop/z", "503"), ("/z", "200  two GET /z")] {
        let answer = Cluster::ask(&gateway, get(target, "h"));
        assert!(answer.starts_with(expected), "{target}: {answer}\n{yaml}");
    }
}
