use std::collections::BTreeMap;

use aws_lc_rs::digest;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use minijinja::{Environment, UndefinedBehavior, syntax::SyntaxConfig, value::Serde};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{PeerDefinition, PeerError};
use crate::library;

/// The values that templates can use.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Inputs {
    /// The directory of the files and of the process.
    pub dir: String,
    /// The IPv4 address to listen on.
    pub host: String,
    pub port: u16,
    /// A second free port, for peers that need one.
    pub admin_port: u16,
    pub workers: u32,
    /// The limit of open files of the process.
    pub open_files: u64,
    /// The number of idle upstream connections to keep: the number of clients, at least 512.
    pub upstream_connections: u32,
    pub backends: Vec<BackendAddress>,
    /// The backends as URLs.
    pub hosts: Vec<String>,
    pub backend_tls: bool,
    pub backend_http2: bool,
    /// Present if the clients use TLS.
    pub tls: Option<RunCertificate>,
    pub http2: bool,
    pub http3: bool,
    pub websocket: bool,
    pub sse: bool,
    pub websub: bool,
    /// Whether the path `/hub` is a hub's, beside routes that lead to the backends.
    pub fan_out: bool,
    /// Whether the target carries bytes and no HTTP.
    pub streams: bool,
    /// The directory in which the lab has installed the target; empty if the machine's program is used.
    pub installed: String,
    /// Additional settings of the hub.
    pub hub: BTreeMap<String, Value>,
    pub routes: Vec<TemplateRoute>,
    /// Whether each route has an upstream of its own.
    pub own_upstreams: bool,
    /// The name of the route whose upstream has a different time-out, or `all`; empty for none.
    pub changed: String,
    /// The time-out of the changed upstreams, in seconds.
    pub changed_timeout_s: u32,
    /// The value of `X-Change` in answers of the route `changed`; 0 for no such field.
    pub change_number: u64,
    pub consumers: Vec<TemplateConsumer>,
    pub policies: BTreeMap<String, Value>,
    /// Additional settings of the upstream.
    pub upstream: BTreeMap<String, Value>,
    /// Additional settings of the node.
    pub node: BTreeMap<String, Value>,
    /// Backends only: certificate and body.
    pub certificate: Option<RunCertificate>,
    pub body: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendAddress {
    pub host: String,
    pub port: u16,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunCertificate {
    pub cert_pem: String,
    pub key_pem: String,
    pub cert_file: String,
    pub key_file: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TemplateRoute {
    pub name: String,
    /// The prefix of the path; empty for a single route, which matches every path.
    pub prefix: String,
    /// The endpoints of the route's own upstream, if it has one.
    pub endpoints: Vec<BackendAddress>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TemplateConsumer {
    pub name: String,
    pub key: String,
    /// The key for tokens and signatures.
    pub secret: String,
    pub password: String,
    /// The password in the `{SHA}` form of htpasswd files.
    pub sha1: String,
}

/// The routes and consumers of a row: `route-0`, `route-1`…
pub fn credentials(routes: u32, consumers: u32) -> (Vec<TemplateRoute>, Vec<TemplateConsumer>) {
    let routes = (0..routes).map(|index| TemplateRoute {
        name: format!("route-{index}"),
        prefix: if routes == 1 { String::new() } else { format!("/route-{index}") },
        endpoints: Vec::new(),
    });
    let consumers = (0..consumers).map(|index| {
        let password = format!("password-{index}");
        let sha1 = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, password.as_bytes());
        TemplateConsumer {
            name: format!("consumer{index}"),
            key: format!("key-{index}"),
            secret: format!("secret-of-consumer-{index}-0123456789abcdef"),
            password,
            sha1: format!("{{SHA}}{}", STANDARD.encode(sha1)),
        }
    });
    (routes.collect(), consumers.collect())
}

/// Renders the templates of a peer: the files of its configuration by name. Pure.
pub fn render(peer: &PeerDefinition, inputs: &Inputs) -> Result<BTreeMap<String, String>, PeerError> {
    let mut files = BTreeMap::new();
    for file in &peer.files {
        let path = format!("{}/{file}", peer.folder);
        let template = format!("{path}.j2");
        let text = match library::text(&template) {
            Some(text) => render_text(&template, &text, inputs)?,
            None => library::text(&path).ok_or(PeerError::Missing { file: template })?,
        };
        files.insert(file.clone(), text);
    }
    Ok(files)
}

/// Renders one template; `place` names it in errors.
fn render_text(place: &str, template: &str, inputs: &Inputs) -> Result<String, PeerError> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build().expect("the default delimiters differ");
    environment.set_syntax(syntax);
    let wrong = |source| PeerError::Template { file: place.to_owned(), source };
    environment.render_str(template, Serde(inputs)).map_err(wrong)
}

/// SHA-256 over names and contents, in hexadecimal.
pub fn hash(files: &BTreeMap<String, String>) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    for (name, contents) in files {
        for part in [name, contents] {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part.as_bytes());
        }
    }
    hex::encode(context.finish())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{
        super::peer::{Policies, backend_names, names, read, read_backend},
        *,
    };
    use std::path::Path;

    pub(crate) fn inputs() -> Inputs {
        let (mut routes, consumers) = credentials(2, 2);
        for route in &mut routes {
            route.endpoints = vec![BackendAddress { host: "127.0.0.1".to_owned(), port: 9001 }];
        }
        let tls = RunCertificate {
            cert_pem: "CERT\n".to_owned(),
            key_pem: "KEY\n".to_owned(),
            cert_file: "/d/cert.pem".to_owned(),
            key_file: "/d/key.pem".to_owned(),
        };
        Inputs {
            dir: "/d".to_owned(),
            host: "127.0.0.1".to_owned(),
            port: 8080,
            admin_port: 8081,
            workers: 2,
            open_files: 20_000,
            upstream_connections: 512,
            backends: vec![
                BackendAddress { host: "127.0.0.1".to_owned(), port: 9001 },
                BackendAddress { host: "127.0.0.1".to_owned(), port: 9002 },
            ],
            hosts: vec!["http://127.0.0.1:9001".to_owned(), "http://127.0.0.1:9002".to_owned()],
            backend_http2: false,
            backend_tls: true,
            tls: Some(tls.clone()),
            http2: true,
            http3: true,
            websocket: true,
            sse: true,
            websub: true,
            fan_out: true,
            streams: false,
            installed: String::new(),
            hub: [("delivery".to_owned(), serde_json::json!({ "per_second": 100 }))].into(),
            routes,
            own_upstreams: true,
            changed: "all".to_owned(),
            changed_timeout_s: 61,
            change_number: 0,
            consumers,
            policies: BTreeMap::new(),
            node: BTreeMap::new(),
            upstream: BTreeMap::new(),
            certificate: Some(tls),
            body: "OK".to_owned(),
        }
    }

    #[test]
    fn every_template_renders_with_everything_and_with_nothing() {
        let peers = names().into_iter().map(|name| read(&name).unwrap());
        let backends = backend_names().into_iter().map(|name| read_backend(&name, Path::new("/cache")).unwrap());
        for peer in peers.chain(backends) {
            let name = &peer.folder;
            let mut full = inputs();
            if let Policies::Named(policies) = &peer.policies {
                full.policies = policies.iter().map(|name| (name.clone(), serde_json::json!({}))).collect();
            }
            let (routes, _) = credentials(1, 0);
            let bare = Inputs {
                backend_tls: false,
                tls: None,
                http2: false,
                http3: false,
                websocket: false,
                sse: false,
                websub: false,
                fan_out: false,
                hub: BTreeMap::new(),
                routes,
                own_upstreams: false,
                changed: String::new(),
                consumers: Vec::new(),
                ..inputs()
            };
            let streams = Inputs { streams: true, installed: "/cache".to_owned(), ..bare.clone() };
            for inputs in [full, bare, streams] {
                let rendered = render(&peer, &inputs).unwrap();
                for (file, text) in &rendered {
                    assert!(!text.contains("{{") && !text.contains("{%"), "{name}/{file}:\n{text}");
                    if file.ends_with(".yaml") {
                        serde_saphyr::from_str::<Value>(text)
                            .unwrap_or_else(|error| panic!("{name}/{file}: {error}\n{text}"));
                    }
                }
            }
        }
    }

    #[test]
    fn the_hash_changes_with_the_contents() {
        let one = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let other = BTreeMap::from([("a".to_owned(), "c".to_owned())]);
        assert_ne!(hash(&one), hash(&other));
        assert_eq!(hash(&one).len(), 64);
    }

    #[test]
    fn a_broken_template_is_named() {
        let error = render_text("peers/x/y.j2", "{% if %}", &inputs()).unwrap_err().to_string();
        assert!(error.starts_with("peers/x/y.j2: "), "{error}");
    }
}
