//! Objects of the APISIX ingress controller. The manifests in the folder `apisix` say themselves what they do: `#>` a request and its answer,
//! `#!` a condition that an object has.

use std::net::SocketAddr;
use std::time::Instant;
use std::{fs, path::Path};

use serde_json::{Value, json};
use weir_kube::objects::Kind;
use weir_testkit::{Answer, Authority, Client, DEADLINE, Gateway, Origin, Request, TlsClient, eventually, free_port};

use crate::edge::weir;
use crate::objects::{gateway, service};
use crate::stand_in::{ObjectPath, StandIn};

/// A cluster with the class `apisix`, and a node that serves it.
pub(crate) struct Adopting {
    pub cluster: StandIn,
    pub node: Gateway,
    address: SocketAddr,
    _origins: Vec<Origin>,
}

/// A Service of each of these names, whose program says what it was asked.
pub(crate) const SERVICES: [&str; 5] = ["web", "cart", "beta", "rewritten", "hashed"];

fn program(name: &'static str) -> Origin {
    Origin::serving(move |request: &Request| Answer::ok(asked(name, request)))
}

/// What a program says of a request.
pub(crate) fn asked(name: &str, request: &Request) -> String {
    let told = |field: &str| request.headers.get(field).unwrap_or("-").to_owned();
    let [host, user, key, team] = ["host", "x-consumer-username", "x-api-key", "x-team"].map(told);
    let (method, target) = (&request.method, &request.target);
    format!("{name} {method} {target} host={host} user={user} key={key} team={team}")
}

pub(crate) fn classes() -> [Value; 2] {
    [("apisix", "apisix.apache.org/apisix-ingress-controller"), ("of-another-controller", "example.com/controller")]
        .map(|(name, controller)| {
            json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "IngressClass",
                "metadata": { "name": name }, "spec": { "controller": controller },
            })
        })
}

impl Adopting {
    pub(crate) fn start(settings: &str) -> Adopting {
        Adopting::start_with(StandIn::start(), settings)
    }

    pub(crate) fn start_with(cluster: StandIn, settings: &str) -> Adopting {
        Adopting::with_file(cluster, settings, "")
    }

    /// The same with further settings of the node.
    pub(crate) fn with_file(cluster: StandIn, settings: &str, more: &str) -> Adopting {
        cluster.apply(classes());
        let mut origins: Vec<Origin> = SERVICES.map(program).into();
        for (name, origin) in SERVICES.iter().zip(&origins) {
            cluster.apply(service(name, origin.addr()));
        }
        // Its cluster IP is where its program listens.
        let fixed = program("fixed");
        let [mut object, slice] = service("fixed", ([127, 0, 0, 1], 1).into());
        object["spec"]["clusterIP"] = "127.0.0.1".into();
        object["spec"]["ports"][0]["port"] = fixed.addr().port().into();
        cluster.apply([object, slice]);
        origins.push(fixed);
        let port = free_port();
        let node = cluster.node(settings);
        let node = weir().start(&format!("{node}listen: [\"127.0.0.1:{port}\"]\n{more}"));
        Adopting { cluster, node, address: ([127, 0, 0, 1], port).into(), _origins: origins }
    }

    /// The status and the body of an answer.
    #[track_caller]
    pub(crate) fn ask(&self, method: &str, url: &str, field: &str) -> (u16, String) {
        ask(&mut Client::connect(self.address), method, url, field)
    }

    #[track_caller]
    pub(crate) fn wait(&self, url: &str, field: &str, status: u16, text: &str) {
        eventually(&format!("{url} has {status} {text}"), DEADLINE, || {
            let (found, body) = self.ask("GET", url, field);
            found == status && body.contains(text)
        });
    }

    /// The conditions of an object, as `TYPE=STATUS MESSAGE`; none if it has no status.
    fn conditions(&self, kind: &str, object: &str) -> Vec<String> {
        let (namespace, name) = object.split_once('/').expect("objects are in namespaces");
        let kind = Kind::find("apisix.apache.org/v2", kind).expect("it is read");
        let path = ObjectPath {
            plural: kind.plural().to_owned(),
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
        };
        conditions_of(&self.cluster.objects().get(&path).unwrap_or_default())
    }

    #[track_caller]
    pub(crate) fn wait_condition(&self, kind: &str, object: &str, begin: &str, text: &str) {
        eventually(&format!("{kind} {object} has {begin} {text}"), DEADLINE, || {
            let has = |condition: &String| condition.starts_with(begin) && condition.contains(text);
            self.conditions(kind, object).iter().any(has)
        });
    }
}

/// The status and the body of an answer. `url` begins with the host.
#[track_caller]
pub(crate) fn ask(client: &mut Client, method: &str, url: &str, field: &str) -> (u16, String) {
    let (host, path) = url.find('/').map_or((url, "/"), |slash| url.split_at(slash));
    let field = if field.is_empty() { String::new() } else { format!("{field}\r\n") };
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{field}Content-Length: 0\r\n\r\n");
    let answer = client.ask(&request).unwrap_or_else(|error| panic!("{url}: {error}"));
    (answer.status, answer.text())
}

/// The conditions of an object, as `TYPE=STATUS MESSAGE`.
pub(crate) fn conditions_of(object: &Value) -> Vec<String> {
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let text = |condition: &Value, key: &str| condition[key].as_str().unwrap_or_default().to_owned();
    all.iter().map(|one| format!("{}={} {}", text(one, "type"), text(one, "status"), text(one, "message"))).collect()
}

/// Waits until objects and requests have what the manifests say: `conditions` of a kind and an object, and the answer to a method, a URL
/// and a field.
#[track_caller]
pub(crate) fn check_manifests(
    files: &[(String, String)],
    conditions: impl Fn(&str, &str) -> Vec<String>,
    ask: impl Fn(&str, &str, &str) -> (u16, String),
) {
    let lines = |mark: &'static str| {
        let marked = move |line: &str| line.strip_prefix(mark).map(str::to_owned);
        files.iter().flat_map(move |(file, text)| text.lines().filter_map(marked).map(move |line| (file.clone(), line)))
    };
    for (_, line) in lines("#! ") {
        let (kind, rest) = line.split_once(' ').expect("a kind");
        let (object, condition) = rest.split_once(' ').expect("an object and a condition");
        let (begin, text) = condition.split_once(' ').unwrap_or((condition, ""));
        let has = |condition: &String| condition.starts_with(begin) && condition.contains(text);
        match begin {
            "-" => assert_eq!(conditions(kind, object), [""; 0], "{line}"),
            // A real cluster on a busy machine takes statuses slowly.
            _ => eventually(&line, 3 * DEADLINE, || conditions(kind, object).iter().any(has)),
        }
    }
    for (file, line) in lines("#> ") {
        let (request, answer) = line.split_once(" => ").expect("a request and an answer");
        let mut words = request.splitn(3, ' ');
        let mut word = || words.next().unwrap_or_default();
        let (method, url, field) = (word(), word(), word());
        let (status, text) = answer.split_once(' ').unwrap_or((answer, ""));
        // Each kind of objects has a watch of its own: what a route refers to may arrive after it.
        let end = Instant::now() + DEADLINE;
        loop {
            let (found, body) = ask(method, url, field);
            if found.to_string().starts_with(status) && body.contains(text) {
                break;
            }
            assert!(Instant::now() < end, "{file}: {line}: {found} {body}");
        }
    }
}

pub(crate) fn objects(manifests: &str) -> Vec<Value> {
    let all: Vec<Value> = serde_saphyr::from_multiple(manifests).expect("manifests are YAML");
    all.into_iter().filter(|object| !object.is_null()).collect()
}

/// The files of manifests, by name.
pub(crate) fn files() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/kubernetes/apisix");
    let files = fs::read_dir(folder).expect("the folder is there").flatten();
    let mut files: Vec<_> = files
        .map(|file| {
            let text = fs::read_to_string(file.path()).expect("it can be read");
            (file.file_name().to_string_lossy().into_owned(), text)
        })
        .collect();
    files.sort();
    files
}

/// All of them in one cluster: what one says wrongly changes nothing about the others.
#[test]
fn manifests_answer_and_tell_as_they_say() {
    let adopting = Adopting::start(", adopt_apisix: true");
    let files = files();
    let mut count = 0;
    for (_, text) in &files {
        let all = objects(text);
        count += all.iter().filter(|object| object["apiVersion"] == "apisix.apache.org/v2").count();
        adopting.cluster.apply(all);
    }
    assert!(count >= 25, "{count} manifests");
    let conditions = |kind: &str, object: &str| adopting.conditions(kind, object);
    check_manifests(&files, conditions, |method, url, field| adopting.ask(method, url, field));
    let answer = Client::connect(adopting.address).get("/").expect("it is answered");
    assert_eq!(answer.headers.get("x-served-by"), Some("apisix-objects"), "global rules are for all requests");
    let status = adopting.node.status().to_string();
    for secret in ["a-key-of-the-partner", "key-of-jill"] {
        assert!(!status.contains(secret), "{secret} is not shown");
        for kind in Kind::ALL.iter().filter(|kind| kind.is_of_apisix()) {
            let told: String =
                adopting.cluster.objects().all(kind.plural()).iter().map(|one| one["status"].to_string()).collect();
            assert!(!told.contains(secret), "{secret} is in a status of {kind}");
        }
    }
}

/// A route of the namespace `shop` for a host.
pub(crate) fn route(name: &str, host: &str, rule: Value) -> Value {
    let mut rule = rule;
    rule["name"] = "all".into();
    rule["match"] = json!({ "hosts": [host], "paths": ["/*"] });
    if rule["backends"].is_null() {
        rule["backends"] = json!([{ "serviceName": "web", "servicePort": 80 }]);
    }
    json!({
        "apiVersion": "apisix.apache.org/v2", "kind": "ApisixRoute",
        "metadata": { "name": name, "namespace": "shop" },
        "spec": { "ingressClassName": "apisix", "http": [rule] },
    })
}

/// An Ingress of Weir's own class for the host `i.example`, with its class.
fn ingress() -> [Value; 2] {
    let ingress = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": { "name": "i", "namespace": "shop" },
        "spec": { "ingressClassName": "weir", "rules": [{ "host": "i.example", "http": { "paths": [
            { "path": "/", "pathType": "Prefix", "backend": { "service": { "name": "web", "port": { "number": 80 } } } },
        ] } }] },
    });
    let class = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IngressClass",
        "metadata": { "name": "weir" }, "spec": { "controller": "weir.dev/ingress-controller" },
    });
    [class, ingress]
}

#[test]
fn changes_are_followed_and_what_is_gone_is_not_served() {
    let adopting = Adopting::start(", adopt_apisix: true");
    let cluster = &adopting.cluster;
    let key = |value: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": { "name": "jack", "namespace": "shop" }, "data": { "key": value },
        })
    };
    let consumer = json!({
        "apiVersion": "apisix.apache.org/v2", "kind": "ApisixConsumer",
        "metadata": { "name": "jack", "namespace": "shop" },
        "spec": { "ingressClassName": "apisix", "authParameter": { "keyAuth": { "secretRef": { "name": "jack" } } } },
    });
    let authentication = json!({ "enable": true, "type": "keyAuth", "keyAuth": { "header": "X-Key" } });
    cluster.apply([consumer, route("a", "a.example", json!({ "authentication": authentication }))]);
    adopting.wait("a.example/", "X-Key: key-one", 401, "");
    // key-one, then key-two
    cluster.apply([key("a2V5LW9uZQ==")]);
    adopting.wait("a.example/", "X-Key: key-one", 200, "user=shop_jack");
    cluster.apply([key("a2V5LXR3bw==")]);
    adopting.wait("a.example/", "X-Key: key-two", 200, "user=shop_jack");
    adopting.wait("a.example/", "X-Key: key-one", 401, "");
    cluster.objects().delete("apisixconsumers", "shop", "jack");
    adopting.wait("a.example/", "X-Key: key-two", 401, "");
    cluster.apply([route("a", "a.example", json!({ "plugin_config_name": "later" }))]);
    adopting.wait("a.example/", "", 503, "");
    adopting.wait_condition(
        "ApisixRoute",
        "shop/a",
        "ResolvedRefs=False",
        "there is no ApisixPluginConfig `shop/later`",
    );
    let config = json!({
        "apiVersion": "apisix.apache.org/v2", "kind": "ApisixPluginConfig",
        "metadata": { "name": "later", "namespace": "shop" },
        "spec": { "ingressClassName": "apisix", "plugins": [{ "name": "mocking", "enable": true, "config": { "response_example": "later" } }] },
    });
    cluster.apply([config]);
    adopting.wait("a.example/", "", 200, "later");
    cluster.objects().delete("apisixroutes", "shop", "a");
    adopting.wait("a.example/", "", 404, "");
}

#[test]
fn kinds_that_are_not_adopted_are_neither_watched_nor_served() {
    let adopting = Adopting::start("");
    adopting.cluster.apply([route("a", "a.example", json!({}))]);
    adopting.cluster.apply(ingress());
    adopting.wait("i.example/", "", 200, "web");
    assert_eq!(adopting.ask("GET", "a.example/", "").0, 404);
    assert_eq!(adopting.cluster.requests("apisixroutes"), 0);
}

#[test]
fn a_cluster_without_the_kinds_is_served() {
    let cluster = StandIn::start();
    for kind in Kind::ALL.iter().filter(|kind| kind.is_of_apisix()) {
        cluster.objects().install(kind.plural(), false);
    }
    let adopting = Adopting::start_with(cluster, ", adopt_apisix: true");
    adopting.cluster.apply(ingress());
    adopting.wait("i.example/", "", 200, "web");
}

#[test]
fn global_rules_stay_in_force_while_their_kind_is_not_served() {
    let adopting = Adopting::start(", adopt_apisix: true");
    let rule = json!({
        "apiVersion": "apisix.apache.org/v2", "kind": "ApisixGlobalRule",
        "metadata": { "name": "closed", "namespace": "shop" },
        "spec": { "ingressClassName": "apisix", "plugins": [{ "name": "ip-restriction", "enable": true, "config": { "blacklist": ["127.0.0.1"] } }] },
    });
    adopting.cluster.apply([rule, route("a", "a.example", json!({}))]);
    adopting.wait("a.example/", "", 403, "");
    // Counted before: the next request after the one that finds that out may be half a minute later.
    let asked = adopting.cluster.requests("apisixglobalrules");
    adopting.cluster.objects().install("apisixglobalrules", false);
    eventually("the kind is looked for", DEADLINE, || adopting.cluster.requests("apisixglobalrules") > asked);
    // Other changes are followed meanwhile.
    adopting.cluster.apply([route("b", "b.example", json!({ "backends": [] }))]);
    adopting.wait_condition("ApisixRoute", "shop/b", "Accepted=True", "");
    assert_eq!(adopting.ask("GET", "a.example/", "").0, 403);
}

/// A Gateway with a GatewayProxy, and an HTTPRoute with what the APISIX ingress controller has beside the Gateway API.
fn beside_gateway_api(port: u16) -> Vec<Value> {
    let [class, mut edge] = gateway(port);
    let version = "apisix.apache.org/v1alpha1";
    let parameters = json!({ "group": "apisix.apache.org", "kind": "GatewayProxy", "name": "proxy" });
    edge["spec"]["infrastructure"] = json!({ "parametersRef": parameters });
    let metadata = |name: &str| json!({ "name": name, "namespace": "shop" });
    let extension = json!({ "group": "apisix.apache.org", "kind": "PluginConfig", "name": "keys" });
    let mut keys = crate::objects::route("web", "/keys");
    keys["metadata"]["name"] = "keys".into();
    keys["spec"]["rules"][0]["filters"] = json!([{ "type": "ExtensionRef", "extensionRef": extension }]);
    let stage = json!([["http_x_stage", "==", "test"]]);
    let target = |group: &str, kind: &str, name: &str| json!([{ "group": group, "kind": kind, "name": name }]);
    vec![
        class,
        edge,
        json!({ "apiVersion": version, "kind": "GatewayProxy", "metadata": metadata("proxy"), "spec": {
            "provider": { "type": "ControlPlane", "controlPlane": { "endpoints": ["http://admin:9180"] } },
            "statusAddress": ["203.0.113.80"],
            "plugins": [{ "name": "response-rewrite", "enabled": true, "config": { "headers": { "set": { "X-Proxy": "yes" } } } }],
        } }),
        json!({ "apiVersion": version, "kind": "PluginConfig", "metadata": metadata("keys"), "spec": {
            "plugins": [{ "name": "key-auth", "config": { "header": "X-Key" } }],
        } }),
        json!({ "apiVersion": version, "kind": "Consumer", "metadata": metadata("jane"), "spec": {
            "gatewayRef": { "name": "edge" },
            "credentials": [
                { "type": "key-auth", "name": "one", "config": { "key": "key-one" } },
                { "type": "key-auth", "name": "two", "config": { "key": "key-two" } },
            ],
        } }),
        json!({ "apiVersion": version, "kind": "BackendTrafficPolicy", "metadata": metadata("host"), "spec": {
            "targetRefs": target("", "Service", "web"), "passHost": "rewrite", "upstreamHost": "internal.example",
        } }),
        json!({ "apiVersion": version, "kind": "HTTPRoutePolicy", "metadata": metadata("stage"), "spec": {
            "targetRefs": target("gateway.networking.k8s.io", "HTTPRoute", "staged"), "priority": 10, "vars": stage,
        } }),
        keys,
        {
            let mut staged = crate::objects::route("web", "/staged");
            staged["metadata"]["name"] = "staged".into();
            staged
        },
    ]
}

#[test]
fn gateways_have_what_stands_beside_the_gateway_api() {
    let cluster = StandIn::start();
    let origin = program("web");
    cluster.apply(service("web", origin.addr()));
    let port = free_port();
    cluster.apply(beside_gateway_api(port));
    let node = cluster.node(", adopt_apisix: true");
    let node = weir().start(&format!("{node}resource_listeners: [\":{port}\"]\n"));
    let adopting = Adopting { cluster, node, address: ([127, 0, 0, 1], port).into(), _origins: vec![origin] };
    adopting.wait("h/keys", "X-Key: key-one", 200, "host=internal.example user=shop_jane");
    assert_eq!(adopting.ask("GET", "h/keys", "X-Key: key-two").0, 200);
    assert_eq!(adopting.ask("GET", "h/keys", "").0, 401);
    assert_eq!(adopting.ask("GET", "h/staged", "X-Stage: test").0, 200);
    assert_eq!(adopting.ask("GET", "h/staged", "").0, 404);
    let answer = Client::connect(adopting.address).get("/staged").expect("it is answered");
    assert_eq!(answer.headers.get("x-proxy"), Some("yes"), "plugins of a GatewayProxy are for all requests");
    let told = |plural: &str, name: &str, pointer: &str| {
        let path =
            ObjectPath { plural: plural.to_owned(), namespace: Some("shop".to_owned()), name: Some(name.to_owned()) };
        let object = adopting.cluster.objects().get(&path).unwrap_or_default();
        object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    for (plural, name, pointer, expected) in [
        ("gateways", "edge", "/status/addresses/0/value", "203.0.113.80"),
        ("consumers", "jane", "/status/conditions/0/reason", "Accepted"),
        ("backendtrafficpolicies", "host", "/status/ancestors/0/conditions/0/reason", "Accepted"),
        ("httproutepolicies", "stage", "/status/ancestors/0/conditions/0/reason", "Accepted"),
    ] {
        eventually(&format!("{plural} {name}: {expected}"), DEADLINE, || told(plural, name, pointer) == expected);
    }
    eventually("the ignored provider is told", DEADLINE, || {
        adopting.cluster.objects().all("events").iter().any(|event| event["reason"] == "ProviderIgnored")
    });
    adopting.cluster.objects().delete("pluginconfigs", "shop", "keys");
    adopting.wait("h/keys", "X-Key: key-one", 500, "");
}

#[test]
fn a_secret_that_is_made_again_with_another_type_is_followed() {
    let adopting = Adopting::start(", adopt_apisix: true");
    let cluster = &adopting.cluster;
    let secret = |kind: &str, key: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": kind,
            "metadata": { "name": "jack", "namespace": "shop" }, "stringData": { "key": key },
        })
    };
    let consumer = json!({
        "apiVersion": "apisix.apache.org/v2", "kind": "ApisixConsumer",
        "metadata": { "name": "jack", "namespace": "shop" },
        "spec": { "ingressClassName": "apisix", "authParameter": { "keyAuth": { "secretRef": { "name": "jack" } } } },
    });
    let authentication = json!({ "enable": true, "type": "keyAuth", "keyAuth": { "header": "X-Key" } });
    // It is watched by its type.
    cluster.apply([secret("weir.dev/plugin", "key-one"), consumer]);
    cluster.apply([route("a", "a.example", json!({ "authentication": authentication }))]);
    adopting.wait("a.example/", "X-Key: key-one", 200, "user=shop_jack");
    cluster.objects().delete("secrets", "shop", "jack");
    adopting.wait("a.example/", "X-Key: key-one", 401, "");
    cluster.apply([secret("Opaque", "key-two")]);
    adopting.wait("a.example/", "X-Key: key-two", 200, "user=shop_jack");
}

#[test]
fn certificates_of_apisix_tls_are_shown_and_clients_are_asked_for_theirs() {
    let cluster = StandIn::start();
    cluster.apply(classes());
    let origin = program("web");
    cluster.apply(service("web", origin.addr()));
    cluster.apply([route("a", "site.example", json!({}))]);
    let authority = Authority::of_tests();
    let (site, inner) = (authority.identity(&["site.example"]), authority.identity(&["inner.example"]));
    let secret = |name: &str, kind: &str, data: Value| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": kind,
            "metadata": { "name": name, "namespace": "shop" }, "stringData": data,
        })
    };
    cluster.apply([
        secret("site", "kubernetes.io/tls", json!({ "tls.crt": site.certificate, "tls.key": site.key })),
        secret("inner", "Opaque", json!({ "cert": inner.certificate, "key": inner.key })),
        secret("authority", "Opaque", json!({ "ca.crt": authority.certificate })),
    ]);
    let tls = |name: &str, client: Value| {
        let mut spec = json!({
            "ingressClassName": "apisix", "hosts": [format!("{name}.example")], "secret": { "name": name, "namespace": "shop" },
        });
        if !client.is_null() {
            spec["client"] = client;
        }
        json!({
            "apiVersion": "apisix.apache.org/v2", "kind": "ApisixTls",
            "metadata": { "name": name, "namespace": "shop" }, "spec": spec,
        })
    };
    cluster.apply([
        tls("site", Value::Null),
        tls("inner", json!({ "caSecret": { "name": "authority", "namespace": "shop" }, "depth": 1 })),
    ]);
    let port = free_port();
    let node = cluster.node(", adopt_apisix: true");
    let _node = weir().start(&format!("{node}listen: [{{ address: \"127.0.0.1:{port}\", tls: true }}]\n"));
    let address = ([127, 0, 0, 1], port).into();
    let shows = |name: &str, tls: &TlsClient| {
        Client::connect_tls(address, tls, name).ok().and_then(|mut client| client.get("/").ok()).is_some()
    };
    let (stranger, known) =
        (TlsClient::trusting(authority), TlsClient::known_as(authority, &authority.client_identity(&["jack"])));
    eventually("the certificate is shown", DEADLINE, || shows("site.example", &stranger));
    eventually("a client with a certificate is answered", DEADLINE, || shows("inner.example", &known));
    assert!(!shows("inner.example", &stranger), "without a certificate there is no answer");
    cluster.objects().delete("secrets", "shop", "authority");
    eventually("handshakes are refused without authorities", DEADLINE, || !shows("inner.example", &known));
    assert!(shows("site.example", &stranger));
}
