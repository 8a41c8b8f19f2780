//! The definition of WeirPolicy, and those of the kinds of the APISIX ingress controller, as a real API server takes them.

use serde_json::{Value, json};
use weir_plugins::REGISTRY;
use weir_testkit::{DEADLINE, eventually};

use crate::apisix::{files, objects};
use crate::control_plane::{ControlPlane, collection};
use crate::policies::{policy, settings};

const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/weirpolicies.weir.dev";

/// A control plane that serves WeirPolicies, with the namespace of the policies.
fn serving_policies() -> Option<ControlPlane> {
    let plane = ControlPlane::start()?;
    plane.create("/api/v1/namespaces", &json!({ "metadata": { "name": "shop" } }));
    let policies = collection(&limit());
    eventually("WeirPolicies are served", DEADLINE * 3, || plane.ask("GET", &policies, None).0 == 200);
    Some(plane)
}

/// What the API server answers when it is asked whether it would create an object.
fn dry_run(plane: &ControlPlane, object: &Value) -> (u16, String) {
    plane.ask("POST", &format!("{}?dryRun=All&fieldValidation=Strict", collection(object)), Some(object))
}

fn limit() -> Value {
    policy("limit", ("HTTPRoute", "orders"), json!({ "limit-count": { "count": 1, "time_window": 60 } }))
}

#[test]
fn the_definition_is_structural_and_described() {
    let Some(plane) = serving_policies() else { return };
    let conditions = plane.get(DEFINITION)["status"]["conditions"].clone();
    let of =
        |name: &str| conditions.as_array().into_iter().flatten().find(|condition| condition["type"] == name).cloned();
    assert_eq!(of("Established").expect("it has this condition")["status"], "True", "{conditions}");
    // The API server adds this one if a schema is not.
    assert_eq!(of("NonStructuralSchema"), None, "{conditions}");
    eventually("`kubectl explain` has the options", DEADLINE * 3, || {
        let (status, schema) = plane.ask("GET", "/openapi/v3/apis/weir.dev/v1alpha1", None);
        status == 200 && schema.contains("rejected_code")
    });
}

#[test]
fn the_definition_accepts_the_example_of_each_plugin() {
    let Some(plane) = serving_policies() else { return };
    let mut refused = Vec::new();
    for entry in REGISTRY.entries() {
        let mut plugins: Value = serde_saphyr::from_str(entry.example).expect("examples are YAML");
        if plugins[entry.name].is_null() {
            plugins[entry.name] = json!({});
        }
        let (status, answer) = dry_run(&plane, &policy("example", ("HTTPRoute", "orders"), plugins));
        if status != 201 {
            refused.push(format!("{}: {answer}", entry.name));
        }
    }
    assert_eq!(refused, [""; 0]);
    let reference = json!({ "csrf": { "key": "$secret://kubernetes/csrf/key" } });
    assert_eq!(dry_run(&plane, &policy("secret", ("Gateway", "edge"), reference)).0, 201);
    let disabled = json!({ "csrf": { "_meta": { "disable": true } } });
    assert_eq!(dry_run(&plane, &policy("disabled", ("Gateway", "edge"), disabled)).0, 201);
    let upstream = json!({
        "type": "chash", "hash_on": "header", "key": "x-user", "retries": 1, "timeout": { "connect": 1, "send": 2, "read": "3s" },
        "checks": { "active": { "http_path": "/healthy" }, "passive": {} }, "concurrency": "auto", "slow_start": "30s",
        "persistence": { "type": "cookie", "name": "s" }, "keepalive_pool": { "size": 8 }, "retry_on": ["http_503"],
    });
    let (status, answer) = dry_run(&plane, &settings(upstream));
    assert_eq!(status, 201, "{answer}");
    let mut ingress = limit();
    ingress["spec"]["targetRefs"] = json!([{ "group": "networking.k8s.io", "kind": "Ingress", "name": "shop" }]);
    assert_eq!(dry_run(&plane, &ingress).0, 201);
}

#[test]
fn the_definition_refuses_what_no_policy_can_be() {
    let Some(plane) = serving_policies() else { return };
    assert_eq!(dry_run(&plane, &limit()).0, 201, "without a fault it is accepted");
    let ingress = |section: Value| json!([{ "group": "networking.k8s.io", "kind": "Ingress", "name": "a", "sectionName": section }]);
    let route = |name: &str| json!({ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name });
    for (path, value, told) in [
        ("/spec/targetRefs/0/group", json!("networking.k8s.io"), "Ingress is of the group networking.k8s.io"),
        ("/spec/targetRefs/0/kind", json!("Ingress"), "Ingress is of the group networking.k8s.io"),
        ("/spec/targetRefs", ingress(json!("rule")), "an Ingress has no parts"),
        ("/spec/targetRefs/0/group", json!(""), "Service of none"),
        ("/spec/targetRefs/0/kind", json!("Service"), "Service of none"),
        ("/spec/targetRefs/0/group", json!("apps"), "Unsupported value"),
        ("/spec/targetRefs/0/kind", json!("Deployment"), "Unsupported value"),
        ("/spec/targetRefs/0/name", json!(""), "spec.targetRefs[0].name"),
        ("/spec/targetRefs/0/name", json!("a".repeat(254)), "spec.targetRefs[0].name"),
        ("/spec/targetRefs/0/sectionName", json!(""), "spec.targetRefs[0].sectionName"),
        ("/spec/targetRefs", json!([]), "spec.targetRefs"),
        (
            "/spec/targetRefs",
            Value::Array((0..17).map(|number| route(&number.to_string())).collect()),
            "spec.targetRefs",
        ),
        ("/spec/targetRefs", Value::Null, "spec.targetRefs"),
        ("/spec/plugins", json!({}), "spec.plugins"),
        ("/spec/plugins", Value::Null, "plugins"),
        ("/spec/upstream", json!({}), "spec.upstream"),
        ("/spec/upstream", json!({ "retries": -1 }), "spec.upstream.retries"),
        ("/spec/plugins/limit-count", json!("x"), "must be of type object"),
        ("/spec/plugins/limit-count/time_window", json!(true), "spec.plugins.limit-count.time_window"),
        ("/spec/plugins/limit-count/rejected_code", json!(99), "spec.plugins.limit-count.rejected_code"),
        ("/spec", Value::Null, "spec"),
        ("/specification", json!({}), "unknown field"),
        ("/spec/targetRefs/0/namespace", json!("other"), "unknown field"),
    ] {
        let mut wrong = limit();
        put(&mut wrong, path, value);
        let (status, answer) = dry_run(&plane, &wrong);
        assert!(matches!(status, 400 | 422) && answer.contains(told), "{path}: {status}: {answer}");
    }
}

#[test]
fn the_definitions_of_apisix_accept_the_manifests() {
    let Some(plane) = ControlPlane::start() else { return };
    // The manifests have a ReferenceGrant, too.
    plane.define_gateway_api();
    plane.define_apisix();
    for namespace in ["shop", "blog", "platform"] {
        plane.create("/api/v1/namespaces", &json!({ "metadata": { "name": namespace } }));
    }
    for (file, text) in files() {
        for object in objects(&text) {
            let is_taken = || {
                let (status, answer) = dry_run(&plane, &object);
                (status == 201).then_some(()).ok_or(answer)
            };
            // A kind can be established before its objects are taken.
            eventually(&format!("{file}: {}: {:?}", object["metadata"]["name"], is_taken()), DEADLINE * 3, || {
                is_taken().is_ok()
            });
        }
    }
}

/// Puts a member at a path of JSON Pointer, which leads to it.
fn put(object: &mut Value, path: &str, value: Value) {
    let (above, member) = path.rsplit_once('/').expect("a path has a member");
    let above =
        if above.is_empty() { object } else { object.pointer_mut(above).expect("what has the member is there") };
    above[member] = value;
}
