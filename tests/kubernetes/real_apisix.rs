//! Objects of the APISIX ingress controller on a real API server, which knows their definitions.

use std::process::Command;

use serde_json::{Value, json};
use weir_kube::objects::Kind;
use weir_testkit::{Client, DEADLINE, Gateway, Origin, Reading, eventually};

use crate::apisix::{SERVICES, ask, asked, check_manifests, classes, conditions_of, files, objects};
use crate::control_plane::{ControlPlane, collection};
use crate::edge::weir;
use crate::objects::service;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const ROUTES: &str = "/apis/apisix.apache.org/v2/namespaces/shop/apisixroutes";
/// Of the node; the network is the test's own.
const PORT: u16 = 8080;
/// The cluster IP of the Service `fixed`.
const FIXED: &str = "10.96.0.50";

/// A cluster with the Services that the manifests name, and without definitions.
struct AdoptedCluster {
    plane: ControlPlane,
    _origins: Vec<Origin>,
}

impl AdoptedCluster {
    fn start() -> Option<AdoptedCluster> {
        let plane = ControlPlane::start()?;
        plane.define_gateway_api();
        plane.grant_by_chart("apisix.yaml")?;
        for namespace in ["shop", "blog", "platform"] {
            plane.create("/api/v1/namespaces", &json!({ "metadata": { "name": namespace } }));
        }
        let made_local = plane.beside(|| {
            Command::new("ip").args(["route", "add", "local", &format!("{FIXED}/32"), "dev", "lo"]).status()
        });
        assert!(made_local.is_ok_and(|status| status.success()), "the cluster IP is local");
        let mut origins = Vec::new();
        for name in SERVICES {
            let origin = program(&plane, name);
            let [mut object, slice] = service(name, ControlPlane::endpoint(origin.addr().port()));
            object["spec"]["clusterIP"] = Value::Null;
            plane.create(&collection(&object), &object);
            plane.create(&collection(&slice), &slice);
            origins.push(origin);
        }
        let fixed = program(&plane, "fixed");
        let [mut object, _] = service("fixed", ControlPlane::endpoint(1));
        object["spec"]["clusterIP"] = FIXED.into();
        object["spec"]["ports"][0]["port"] = fixed.addr().port().into();
        plane.create(&collection(&object), &object);
        origins.push(fixed);
        classes().iter().for_each(|class| plane.create(&collection(class), class));
        Some(AdoptedCluster { plane, _origins: origins })
    }

    fn node(&self) -> Gateway {
        let file = self.plane.node_with("adopt_apisix: true");
        self.plane.beside(|| weir().start(&format!("{file}listen: [\":{PORT}\"]\n")))
    }

    fn ask(&self, method: &str, url: &str, field: &str) -> (u16, String) {
        self.plane.beside(|| ask(&mut Client::connect(([127, 0, 0, 1], PORT).into()), method, url, field))
    }

    #[track_caller]
    fn wait(&self, url: &str, status: u16) {
        eventually(&format!("{url} has {status}"), DEADLINE * 3, || self.ask("GET", url, "").0 == status);
    }

    fn get(&self, kind: &str, object: &str) -> Value {
        let (namespace, name) = object.split_once('/').expect("objects are in namespaces");
        let kind = Kind::find("apisix.apache.org/v2", kind).expect("it is read");
        let path = format!("/apis/apisix.apache.org/v2/namespaces/{namespace}/{}/{name}", kind.plural());
        self.plane.get(&path)
    }
}

/// What answers for a Service, at any address on the side of the node.
fn program(plane: &ControlPlane, name: &'static str) -> Origin {
    plane.beside(|| {
        Origin::scripted_at(([0, 0, 0, 0], 0).into(), Reading::Strict, move |connection| {
            while let Ok(request) = connection.request() {
                let text = asked(name, &request);
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len());
                if connection.send(answer).is_err() {
                    return;
                }
            }
        })
    })
}

/// An ApisixRoute with one rule, for a host.
fn route(name: &str, host: &str) -> Value {
    let backends = json!([{ "serviceName": "web", "servicePort": 80 }]);
    let rule = json!({ "name": "all", "match": { "hosts": [host], "paths": ["/*"] }, "backends": backends });
    json!({
        "apiVersion": "apisix.apache.org/v2", "kind": "ApisixRoute",
        "metadata": { "name": name, "namespace": "shop" },
        "spec": { "ingressClassName": "apisix", "http": [rule] },
    })
}

/// The definitions prune and complete objects, and the node has the rights of the chart.
#[test]
fn manifests_of_apisix_answer_and_tell_as_they_say_on_a_real_cluster() {
    let Some(cluster) = AdoptedCluster::start() else { return };
    cluster.plane.define_apisix();
    let node = cluster.node();
    let files = files();
    // What refers to others comes first.
    let mut all: Vec<Value> = files.iter().flat_map(|(_, text)| objects(text)).collect();
    all.reverse();
    all.iter().for_each(|object| cluster.plane.apply(object));
    let conditions = |kind: &str, object: &str| conditions_of(&cluster.get(kind, object));
    check_manifests(&files, conditions, |method, url, field| cluster.ask(method, url, field));
    let told = node.stderr();
    assert!(!told.contains("forbidden"), "the rights are enough: {told}");

    // Nothing is left of what is deleted.
    for object in all.iter().rev().filter(|object| object["kind"] != "IngressClass") {
        let name = object["metadata"]["name"].as_str().expect("it has a name");
        cluster.plane.delete(&format!("{}/{name}", collection(object)));
    }
    let routes = all.iter().filter(|object| object["kind"] == "ApisixRoute");
    let rules = routes.filter_map(|route| route["spec"]["http"].as_array()).flatten();
    let hosts = rules.filter_map(|rule| rule["match"]["hosts"].as_array()).flatten().filter_map(Value::as_str);
    let hosts: std::collections::BTreeSet<&str> = hosts.filter(|host| !host.starts_with('*')).collect();
    assert!(hosts.contains("refused.example") && hosts.contains("fixed.example"), "{hosts:?}");
    hosts.iter().for_each(|host| cluster.wait(&format!("{host}/"), 404));
}

/// The definitions keep what is for TCP and UDP, and refuse a reference to a Secret that names none.
#[test]
fn objects_for_streams_are_kept_and_told_by_a_real_cluster() {
    let Some(cluster) = AdoptedCluster::start() else { return };
    cluster.plane.define_apisix();
    let target = json!({ "group": "gateway.networking.k8s.io", "kind": "TCPRoute", "name": "lines" });
    let plugins =
        json!([{ "name": "ip-restriction", "config": { "whitelist": ["10.0.0.0/8"] }, "secretRef": { "name": "s" } }]);
    let policy = json!({
        "apiVersion": "apisix.apache.org/v1alpha1", "kind": "L4RoutePolicy",
        "metadata": { "name": "policy", "namespace": "shop" },
        "spec": { "targetRefs": [target], "plugins": plugins },
    });
    cluster.plane.apply(&policy);
    let path = collection(&policy);
    assert_eq!(cluster.plane.get(&format!("{path}/policy"))["spec"], policy["spec"]);
    let mut nameless = policy.clone();
    nameless["metadata"]["name"] = "nameless".into();
    nameless["spec"]["plugins"][0]["secretRef"] = json!({});
    let (status, answer) = cluster.plane.ask("POST", &path, Some(&nameless));
    assert!(status == 422 && answer.to_string().contains("secretRef.name"), "{status} {answer}");

    let streams = |name: &str, host: &str| {
        let rule = json!({
            "name": "lines", "protocol": "TCP", "match": { "ingressPort": 9100, "host": host },
            "backend": { "serviceName": "web", "servicePort": 80 },
        });
        json!({
            "apiVersion": "apisix.apache.org/v2", "kind": "ApisixRoute",
            "metadata": { "name": name, "namespace": "shop" },
            "spec": { "ingressClassName": "apisix", "stream": [rule] },
        })
    };
    cluster.plane.apply(&streams("a-first", "db.example"));
    let _node = cluster.node();
    let told = |name: &str| conditions_of(&cluster.get("ApisixRoute", name)).concat();
    eventually("the first is accepted", DEADLINE, || told("shop/a-first").contains("Accepted=True"));
    cluster.plane.apply(&streams("b-second", "DB.example"));
    let problem = "match: a rule that comes first has port 9100 and `db.example`";
    eventually("the second is not", DEADLINE, || told("shop/b-second").contains(problem));
}

/// As long as another program has something to clean up, the cluster keeps an object that is deleted.
#[test]
fn a_deleted_apisix_route_is_not_served_while_a_finalizer_keeps_it() {
    let Some(cluster) = AdoptedCluster::start() else { return };
    cluster.plane.define_apisix();
    let mut kept = route("kept", "kept.example");
    kept["metadata"]["finalizers"] = json!(["example.com/clean-up"]);
    cluster.plane.apply(&kept);
    let _node = cluster.node();
    cluster.wait("kept.example/", 200);
    cluster.plane.delete(&format!("{ROUTES}/kept"));
    cluster.wait("kept.example/", 404);
    assert!(cluster.get("ApisixRoute", "shop/kept")["metadata"]["deletionTimestamp"].is_string(), "it is kept");
    cluster.plane.patch(&format!("{ROUTES}/kept"), &json!({ "metadata": { "finalizers": null } }));
    eventually("it is gone", DEADLINE, || cluster.plane.ask("GET", &format!("{ROUTES}/kept"), None).0 == 404);
    cluster.plane.apply(&route("kept", "kept.example"));
    cluster.wait("kept.example/", 200);
}

/// A definition of another program, with a schema that says little.
fn foreign_definition() -> Value {
    let open = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let schema = json!({ "openAPIV3Schema": { "type": "object", "properties": { "spec": open, "status": open } } });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "apisixroutes.apisix.apache.org" },
        "spec": {
            "group": "apisix.apache.org", "scope": "Namespaced",
            "names": { "kind": "ApisixRoute", "listKind": "ApisixRouteList", "plural": "apisixroutes", "singular": "apisixroute", "shortNames": ["ar"] },
            "versions": [{ "name": "v2", "served": true, "storage": true, "subresources": { "status": {} }, "schema": schema }],
        },
    })
}

/// The kinds have the names of APISIX, so a cluster may have their definitions already.
#[test]
fn definitions_that_are_there_already_stay_and_their_objects_are_served() {
    let Some(cluster) = AdoptedCluster::start() else { return };
    cluster.plane.create(&format!("{DEFINITIONS}?fieldManager=another-program"), &foreign_definition());
    cluster.plane.wait_established("apisixroutes.apisix.apache.org");
    let path = format!("{DEFINITIONS}/apisixroutes.apisix.apache.org");
    let before = cluster.plane.get(&path)["spec"].clone();
    let (status, answer) = cluster.plane.try_define_apisix("ApisixRoute");
    assert_eq!(status, 409, "{answer}");
    assert!(answer.contains("another-program"), "{answer}");
    assert_eq!(cluster.plane.get(&path)["spec"], before);

    // What the schema of Weir would refuse is refused by the translation, on the object itself.
    let mut odd = route("odd", "odd.example");
    odd["spec"]["http"][0]["backends"][0]["weight"] = "many".into();
    odd["spec"]["http"][0]["nothing"] = json!({ "known": false });
    let mut unknown = route("unknown", "unknown.example");
    unknown["spec"]["http"][0]["match"]["methods"] = json!(["FETCH"]);
    for object in [&route("right", "right.example"), &odd, &unknown] {
        cluster.plane.apply(object);
    }
    let _node = cluster.node();
    cluster.wait("right.example/", 200);
    assert_eq!(cluster.ask("GET", "odd.example/", "").0, 404);
    let told = |object: &str| conditions_of(&cluster.get("ApisixRoute", object)).concat();
    eventually("it is accepted", DEADLINE, || told("shop/right").contains("Accepted=True"));
    let problem = "Accepted=False rule all: match.methods[0]: `FETCH` cannot be served";
    eventually("its fault is told", DEADLINE, || told("shop/unknown").contains(problem));
    let unreadable = || {
        let events = cluster.plane.get("/api/v1/namespaces/shop/events")["items"].clone();
        let mut all = events.as_array().cloned().unwrap_or_default().into_iter();
        all.any(|event| event["reason"] == "NotRead" && event["involvedObject"]["name"] == "odd")
    };
    eventually("what cannot be read is told", DEADLINE, unreadable);
    // The kinds without a definition are looked for, and hold nothing up.
    cluster.plane.apply(&route("right", "later.example"));
    cluster.wait("later.example/", 200);
}
