//! The rules of Ingress v1, as the documentation of Kubernetes states them.

use super::{Cluster, IngressCase, IngressRequest, convert, ingress};
use weir_testkit::{Authority, Client, TlsClient};

const CLASS: &str = "---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: { name: weir, annotations: { ingressclass.kubernetes.io/is-default-class: 'true' } }
spec: { controller: weir.dev/ingress-controller }
";

const fn get(target: &'static str, host: &'static str) -> IngressRequest {
    ("GET", target, host, "")
}

/// One rule, one request; whether the rule takes it.
const PATHS: &[(&str, &str, &str, bool)] = &[
    ("Exact", "/foo", "/foo", true),
    ("Exact", "/foo", "/bar", false),
    ("Exact", "/foo", "/foo/", false),
    ("Exact", "/foo/", "/foo", false),
    ("Exact", "/foo", "/Foo", false),
    ("Exact", "/foo", "/foobar", false),
    ("Prefix", "/", "/any/thing", true),
    ("Prefix", "/foo", "/foo", true),
    ("Prefix", "/foo", "/foo/", true),
    ("Prefix", "/foo", "/FOO", false),
    ("Prefix", "/foo/", "/foo", true),
    ("Prefix", "/foo/", "/foo/", true),
    ("Prefix", "/aaa/bb", "/aaa/bbb", false),
    ("Prefix", "/aaa/bbb", "/aaa/bbb", true),
    ("Prefix", "/aaa/bbb/", "/aaa/bbb", true),
    ("Prefix", "/aaa/bbb", "/aaa/bbb/", true),
    ("Prefix", "/aaa/bbb", "/aaa/bbb/ccc", true),
    ("Prefix", "/aaa/bbb", "/aaa/bbbxyz", false),
    ("Prefix", "/a/:id", "/a/7", false),
    ("Prefix", "/a/:id", "/a/:id/b", true),
    ("Exact", "/a/*", "/a/b", false),
    ("ImplementationSpecific", "/foo", "/foo/bar", true),
    ("ImplementationSpecific", "/foo", "/foobar", false),
];

#[test]
fn a_path_takes_what_its_type_says() {
    let cluster = Cluster::new();
    let mut rules = Vec::new();
    for (number, (kind, path, _, _)) in PATHS.iter().enumerate() {
        rules.push(format!("h{number}.example {path} {kind} one"));
    }
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    let (gateway, yaml) = cluster.serve(&format!("{CLASS}{}", ingress("paths", &[], &rules)));
    for (number, (kind, path, target, takes)) in PATHS.iter().enumerate() {
        let response = gateway.client().ask(format!("GET {target} HTTP/1.1\r\nHost: h{number}.example\r\n\r\n"));
        let status = response.expect("an answer").status;
        assert_eq!(status == 200, *takes, "{kind} {path} and {target}: {status}\n{yaml}");
    }
}

#[test]
fn rules_have_the_order_and_the_hosts_that_the_api_states() {
    let cases = [
        IngressCase {
            name: "the longest prefix",
            manifests: ingress("a", &[], &["h / Prefix one", "h /aaa Prefix two", "h /aaa/bbb Prefix three"]),
            asked: &[
                (get("/ccc", "h"), "one GET /ccc"),
                (get("/aaa/ccc", "h"), "two GET /aaa/ccc"),
                (get("/aaa/bbb", "h"), "three GET /aaa/bbb"),
                (get("/aaaccc", "h"), "one GET"),
            ],
        },
        IngressCase {
            name: "an exact path before a prefix",
            manifests: ingress("a", &[], &["h /foo Prefix one", "h /foo Exact two"]),
            asked: &[(get("/foo", "h"), "two GET"), (get("/foo/", "h"), "one GET"), (get("/foo/a", "h"), "one GET")],
        },
        IngressCase {
            name: "exact hosts",
            manifests: ingress("a", &[], &["foo.example / Prefix one", "bar.example / Prefix two"]),
            asked: &[
                (get("/", "foo.example"), "one GET"),
                (get("/", "FOO.example:8080"), "one GET"),
                (get("/", "bar.example"), "two GET"),
                (get("/", "other.example"), "404"),
                (get("/", "a.foo.example"), "404"),
            ],
        },
        IngressCase {
            name: "a wildcard covers one label",
            manifests: ingress("a", &[], &["*.foo.example / Prefix one", "bar.foo.example / Prefix two"]),
            asked: &[
                (get("/", "baz.foo.example"), "one GET"),
                (get("/", "bar.foo.example"), "two GET"),
                (get("/", "foo.example"), "404"),
                (get("/", "baz.bar.foo.example"), "404"),
            ],
        },
        IngressCase {
            name: "a rule without a host",
            manifests: ingress("a", &[], &["- /any Prefix one", "h /own Prefix two"]),
            asked: &[
                (get("/any", "other"), "one GET"),
                (get("/any", "h"), "one GET"),
                (get("/own", "h"), "two GET"),
                (get("/own", "other"), "404"),
            ],
        },
        IngressCase {
            name: "a default backend, and a port by its name",
            manifests: format!(
                "{}  defaultBackend: {{ service: {{ name: three, port: {{ name: web }} }} }}\n",
                ingress("a", &[], &["h /foo Prefix one"])
            ),
            asked: &[
                (get("/foo", "h"), "one GET"),
                (get("/bar", "h"), "three GET /bar"),
                (get("/foo", "other"), "three GET"),
            ],
        },
        IngressCase {
            name: "a Service and a port that are not there",
            manifests: ingress("a", &[], &["h / Prefix one", "h /gone Prefix two"])
                .replace("{ name: two, port: { number: 80 } }", "{ name: two, port: { number: 81 } }"),
            asked: &[(get("/", "h"), "one GET"), (get("/gone", "h"), "503")],
        },
    ];
    let cases = cases.map(|case| IngressCase { manifests: format!("{CLASS}{}", case.manifests), ..case });
    Cluster::new().check(&cases);
}

#[test]
fn the_older_of_two_ingresses_has_a_path_and_the_other_is_told() {
    let with_time = |name: &str, time: &str, service: &str| {
        let rule = format!("h / Prefix {service}");
        let text = ingress(name, &[], &[&rule]);
        text.replace("  namespace: shop\n", &format!("  namespace: shop\n  creationTimestamp: {time:?}\n"))
    };
    let manifests =
        [with_time("a", "2026-02-01T00:00:00Z", "one"), with_time("b", "2026-01-01T00:00:00Z", "two")].concat();
    let cluster = Cluster::new();
    let (gateway, _) = cluster.serve(&manifests);
    assert!(Cluster::ask(&gateway, get("/", "h")).contains("two GET"));
    let errors = String::from_utf8(convert(&manifests, &[]).stderr).expect("text");
    assert!(errors.contains("Ingress shop/a: `/` of `h` belongs to Ingress shop/b, which is older"), "{errors}");
}

#[test]
fn an_ingress_of_another_class_is_not_served() {
    let other = "---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: { name: other }
spec: { controller: example.com/other }
";
    let ours = ingress("ours", &[], &["h / Prefix one"]);
    let named = ingress("named", &[], &["n / Prefix one"]).replace("spec:\n", "spec:\n  ingressClassName: other\n");
    let old = ingress("old", &[], &["o / Prefix one"])
        .replace("  namespace: shop\n", "  namespace: shop\n  annotations: { kubernetes.io/ingress.class: other }\n");
    let manifests = format!("{CLASS}{other}{ours}{named}{old}");
    let cluster = Cluster::new();
    let (gateway, _) = cluster.serve(&manifests);
    let answers = ["h", "n", "o"].map(|host| Cluster::ask(&gateway, get("/", host)));
    assert!(
        answers[0].starts_with("200") && answers[1].starts_with("404") && answers[2].starts_with("404"),
        "{answers:?}"
    );
    let output = convert(&manifests, &["--deny-losses"]);
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).expect("text");
    assert!(errors.contains("Ingress shop/named: its class belongs to another controller"), "{errors}");
}

#[test]
fn a_host_shows_the_certificate_of_its_secret() {
    let authority = Authority::of_tests();
    let identity = authority.identity(&["a.example"]);
    let indented = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let secret = format!(
        "---\napiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\nmetadata: {{ name: a-tls, namespace: shop }}\nstringData:\n  \
         tls.crt: |\n{}  tls.key: |\n{}",
        indented(&identity.certificate),
        indented(&identity.key)
    );
    let tls = "  tls: [{ hosts: [a.example], secretName: a-tls }]\n";
    let rules = ["a.example / Prefix one", "b.example / Prefix two"];
    let cluster = Cluster::new();
    let (gateway, _) = cluster.serve(&format!("{CLASS}{secret}{}{tls}", ingress("a", &[], &rules)));
    let client = TlsClient::trusting(authority);
    let ask = |host: &str| {
        let mut client = Client::connect_tls(gateway.tls_addr(), &client, host).ok()?;
        client.ask(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).ok()
    };
    assert!(ask("a.example").expect("a trusted certificate").text().starts_with("one GET"));
    assert!(ask("b.example").is_none(), "no certificate has this name");
    assert!(
        Cluster::ask(&gateway, get("/", "a.example")).contains("one GET"),
        "without an annotation, HTTP is served, too"
    );
}
