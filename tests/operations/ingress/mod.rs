//! Ingresses, converted and served: what the Kubernetes API says of paths, hosts and classes, and what annotations of
//! ingress-nginx do. Manifests, requests, answers.

mod annotations;
mod effects;
mod manifests;
mod rules;

use std::process::{Command, Output};

use weir_testkit::{Answer, Gateway, Origin, Reading, Request, TempDir};

use crate::weir;

/// A request: method, target, host, and further fields.
type IngressRequest = (&'static str, &'static str, &'static str, &'static str);

/// Ingresses, requests, and what their answers contain.
struct IngressCase<'a> {
    name: &'a str,
    manifests: String,
    asked: &'a [(IngressRequest, &'a str)],
}

/// Services `one`, `two` and `three` with a port 80 named `web`, each with an endpoint of its own.
struct Cluster {
    services: Vec<Origin>,
}

const SERVICES: [&str; 3] = ["one", "two", "three"];

impl Cluster {
    fn new() -> Cluster {
        Cluster { services: SERVICES.map(echo).into() }
    }

    /// The manifests of the Services.
    fn manifests(&self) -> String {
        let service = |(name, origin): (&str, &Origin)| {
            format!(
                "---
apiVersion: v1
kind: Service
metadata: {{ name: {name}, namespace: shop }}
spec: {{ ports: [{{ name: web, port: 80, targetPort: 8080 }}] }}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{ name: {name}-1, namespace: shop, labels: {{ kubernetes.io/service-name: {name} }} }}
addressType: IPv4
ports: [{{ name: web, port: {} }}]
endpoints: [{{ addresses: [127.0.0.1] }}]
",
                origin.addr().port()
            )
        };
        SERVICES.into_iter().zip(&self.services).map(service).collect()
    }

    /// A gateway with the converted manifests, and the file.
    fn serve(&self, manifests: &str) -> (Gateway, String) {
        let output = convert(&format!("{}---\n{manifests}", self.manifests()), &[]);
        let yaml = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success(), "{manifests}: {}", String::from_utf8_lossy(&output.stderr));
        let local = yaml.replace("\":80\"", "\"127.0.0.1:0\"").replace("\":443\"", "\"127.0.0.1:0\"");
        (weir().start(&local), yaml)
    }

    /// The answer in one line: the status, the fields that matter, and what the service says.
    fn ask(gateway: &Gateway, (method, target, host, fields): IngressRequest) -> String {
        let length: usize =
            fields.split("Content-Length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok()).unwrap_or(0);
        let request = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n{}", "b".repeat(length));
        let response = gateway.client().ask(request).expect("an answer");
        let shown = ["location", "www-authenticate", "set-cookie", "access-control-allow-origin", "x-added"];
        let fields =
            shown.iter().flat_map(|name| response.headers.all(name).map(move |value| format!("{name}={value}")));
        let fields: Vec<String> = fields.collect();
        format!(
            "{} {} {}",
            response.status,
            fields.join(" "),
            if response.status < 300 { response.text() } else { String::new() }
        )
    }

    /// Serves each case, and compares the answers.
    fn check(&self, cases: &[IngressCase<'_>]) {
        let mut wrong = Vec::new();
        for case in cases {
            let (gateway, yaml) = self.serve(&case.manifests);
            for &(asked, expected) in case.asked {
                let answer = Cluster::ask(&gateway, asked);
                if !answer.contains(expected) {
                    wrong.push(format!(
                        "{}: {asked:?}\n  expected: {expected}\n    answer: {answer}\n{yaml}",
                        case.name
                    ));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// A service that tells what it was asked. Below `/moved` it redirects, and sets a cookie, as if clients knew it by another name.
fn echo(name: &'static str) -> Origin {
    Origin::reading(Reading::Strict, move |request: &Request| {
        if request.target.starts_with("/moved") {
            let cookie = "Set-Cookie: a=1; Domain=inner.example; Path=/one/x\r\n";
            return Answer::with(302, &format!("Location: http://inner.example/one/x\r\n{cookie}"), "");
        }
        let fields = ["x-forwarded-prefix", "x-user", "cookie", "authorization"];
        let told = fields.iter().filter_map(|field| Some(format!("{field}={}", request.headers.get(field)?)));
        let host = request.headers.get("host").unwrap_or_default();
        let told: Vec<String> = told.collect();
        Answer::ok(format!("{name} {} {} host={host} {}", request.method, request.target, told.join(" ")))
    })
}

fn convert(manifests: &str, options: &[&str]) -> Output {
    let directory = TempDir::new();
    let file = directory.write("manifests.yaml", manifests);
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["convert", "ingress"]).args(options).arg(&file).output().expect("it runs")
}

/// An Ingress with these annotations and rules, each `host path type service`; `-` is no host.
fn ingress(name: &str, annotations: &[(&str, &str)], rules: &[&str]) -> String {
    let annotations: String = annotations
        .iter()
        .map(|(name, value)| format!("    nginx.ingress.kubernetes.io/{name}: {value:?}\n"))
        .collect();
    let rules: String = rules.iter().map(|rule| self::rule(rule)).collect();
    let annotations = if annotations.is_empty() { String::new() } else { format!("  annotations:\n{annotations}") };
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: {name}\n  namespace: shop\n{annotations}spec:\n  \
         rules:\n{rules}"
    )
}

fn rule(rule: &str) -> String {
    let words: Vec<&str> = rule.split(' ').collect();
    let [host, path, kind, service] = words[..] else { panic!("`{rule}` has four words") };
    let host = if host == "-" { String::new() } else { format!("host: {host:?}, ") };
    format!(
        "  - {{ {host}http: {{ paths: [{{ path: {path:?}, pathType: {kind}, backend: {{ service: {{ name: {service}, port: {{ \
         number: 80 }} }} }} }}] }} }}\n"
    )
}
