//! The chart: what it renders for each file of values below `deploy/helm/weir/ci`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use weir_kube::objects::Kind;
use weir_testkit::{Authority, Program, TempDir};

use crate::control_plane::{ControlPlane, collection};

const READ: [&str; 3] = ["get", "list", "watch"];

fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path)
}

/// What helm writes; it must succeed. `None` if there is no helm.
#[track_caller]
fn helm(words: &[&str]) -> Option<String> {
    let mut command = Program::find("helm")?;
    let output = command.args(words).output().expect("helm runs");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).expect("helm writes text"))
}

/// What `deploy/kubernetes/install.yaml` is made with, but for the name of the release and the values.
fn template(release: &str, values: &[&str]) -> Option<String> {
    let chart = folder("helm/weir").display().to_string();
    let mut words = vec!["template", release, &chart, "--namespace", "weir-system"];
    words.extend(["--api-versions", "gateway.networking.k8s.io/v1", "--api-versions", "monitoring.coreos.com/v1"]);
    words.extend(values);
    helm(&words)
}

fn objects(text: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).expect("helm writes YAML");
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

/// The objects of a release with a file of values.
pub(crate) fn rendered_with(release: &str, file: &str) -> Option<Vec<Value>> {
    let values = folder("helm/weir/ci").join(file).display().to_string();
    Some(objects(&template(release, &["--values", &values])?))
}

/// The objects by the name of their file of values.
fn rendered() -> Option<Vec<(String, Vec<Value>)>> {
    let mut all = Vec::new();
    for file in fs::read_dir(folder("helm/weir/ci")).expect("there are values").flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let objects = rendered_with("edge", &name)?;
        all.push((name, objects));
    }
    assert!(all.len() >= 10, "all files of values are tried");
    Some(all)
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

#[test]
fn charts_are_linted_and_nodes_take_their_configuration() {
    let chart = folder("helm/weir").display().to_string();
    let Some(rendered) = rendered() else { return };
    for (name, objects) in rendered {
        let values = format!("{chart}/ci/{name}");
        helm(&["lint", "--strict", &chart, "--values", &values]);
        let directory = TempDir::new();
        let config = of_kind(&objects, "ConfigMap").find_map(|map| map["data"]["weir.yaml"].as_str());
        let file = directory.write("weir.yaml", config.expect("there is a configuration"));
        let checked = Command::new(env!("CARGO_BIN_EXE_weir")).arg("check").arg(&file).output().expect("weir runs");
        assert!(checked.status.success(), "{name}: {}", String::from_utf8_lossy(&checked.stderr));
    }
}

#[test]
fn rights_are_those_that_nodes_need() {
    let Some(rendered) = rendered() else { return };
    for (name, objects) in rendered.iter().filter(|(name, _)| name != "no-rights.yaml") {
        let roles = objects.iter().filter(|object| object["kind"] == "ClusterRole" || object["kind"] == "Role");
        // That of the authority of controllers is compared elsewhere, as a whole.
        let roles = roles.filter(|role| role["metadata"]["name"] != "edge-weir-controller-ca");
        let rules: Vec<&Value> = roles.flat_map(|role| role["rules"].as_array().expect("roles have rules")).collect();
        let may = |group: &str, resource: &str, verb: &str| {
            let has =
                |value: &Value, wanted: &str| value.as_array().is_some_and(|list| list.iter().any(|one| one == wanted));
            rules.iter().any(|rule| {
                has(&rule["apiGroups"], group) && has(&rule["resources"], resource) && has(&rule["verbs"], verb)
            })
        };
        for kind in Kind::ALL {
            let is_read = !kind.is_of_apisix() || name == "apisix.yaml";
            for verb in READ {
                assert_eq!(may(kind.group(), kind.plural(), verb), is_read, "{name}: {verb} {}", kind.plural());
            }
            assert!(!may(kind.group(), kind.plural(), "update"), "{name}: {} are only read", kind.plural());
            let makes = name == "gateway-api.yaml" && matches!(kind, Kind::Service | Kind::EndpointSlice);
            assert_eq!(may(kind.group(), kind.plural(), "create"), makes, "{name}: create {}", kind.plural());
        }
        let in_namespaces = of_kind(objects, "Role").any(|role| role["metadata"]["namespace"] == "shop");
        assert_eq!(in_namespaces, name == "namespaces.yaml", "{name}");
    }
}

#[test]
fn nodes_have_no_rights_if_controllers_follow_the_cluster() {
    let Some(rendered) = rendered() else { return };
    let (_, objects) = rendered.iter().find(|(name, _)| name == "controller.yaml").expect("there is one");
    let pod = |name: &str| {
        let workload = of_kind(objects, "Deployment").find(|workload| workload["metadata"]["name"] == name);
        &workload.expect("it is deployed")["spec"]["template"]["spec"]
    };
    let (node, controller) = (pod("edge-weir"), pod("edge-weir-controller"));
    assert_eq!(node["automountServiceAccountToken"], false);
    let bindings: Vec<&Value> = objects
        .iter()
        .filter(|object| matches!(object["kind"].as_str(), Some("ClusterRoleBinding" | "RoleBinding")))
        .collect();
    assert!(!bindings.is_empty());
    for binding in bindings {
        let subjects = binding["subjects"].as_array().expect("a list");
        assert!(subjects.iter().all(|one| one["name"] == controller["serviceAccountName"]), "{subjects:?}");
    }
    assert_ne!(node["serviceAccountName"], controller["serviceAccountName"]);
    for account in of_kind(objects, "ServiceAccount") {
        let is_of_node = account["metadata"]["name"] == node["serviceAccountName"];
        assert_eq!(account["automountServiceAccountToken"] == false, is_of_node);
    }
    let directory = TempDir::new();
    let authority = Authority::of_tests();
    let identity = authority.identity(&["weir-controller"]);
    directory.write("ca.crt", &authority.certificate);
    directory.write("tls.crt", &identity.certificate);
    directory.write("tls.key", &identity.key);
    let (_, given) = rendered.iter().find(|(name, _)| name == "given-certificates.yaml").expect("there is one");
    for (name, follows) in [("controller.yaml", true), ("weir.yaml", false)] {
        for objects in [objects, given] {
            let config = of_kind(objects, "ConfigMap").find_map(|map| map["data"][name].as_str());
            let config = config.unwrap_or_else(|| panic!("{name} is rendered"));
            // What the values say of following the cluster is for who follows it.
            assert_eq!(config.contains("gateway_addresses: 203.0.113.0/24"), follows, "{config}");
            // The Secret is not mounted here.
            let file = directory.write(name, config.replace("/etc/weir-tls", &directory.path().display().to_string()));
            let checked = Command::new(env!("CARGO_BIN_EXE_weir")).arg("check").arg(&file).output().expect("weir runs");
            assert!(checked.status.success(), "{name}: {}", String::from_utf8_lossy(&checked.stderr));
        }
    }
}

#[test]
fn certificates_are_issued_unless_they_are_given() {
    let Some(rendered) = rendered() else { return };
    for (name, objects) in &rendered {
        let issues = name == "controller.yaml";
        let has_controllers = issues || name == "given-certificates.yaml";
        let authority = |kind| of_kind(objects, kind).find(|one| one["metadata"]["name"] == "edge-weir-controller-ca");
        for kind in ["Secret", "ConfigMap", "Role", "RoleBinding"] {
            assert_eq!(authority(kind).is_some(), issues, "{name}: {kind}");
        }
        let reviews = of_kind(objects, "ClusterRole").any(|role| role.to_string().contains("tokenreviews"));
        assert_eq!(reviews, issues, "{name}");
        if let Some(role) = authority("Role") {
            let rule = json!({
                "apiGroups": [""], "resources": ["secrets", "configmaps"],
                "resourceNames": ["edge-weir-controller-ca"], "verbs": ["get", "update"],
            });
            assert_eq!(role["rules"], json!([rule]), "{name}");
            assert!(
                authority("Secret").is_some_and(|secret| secret["data"].is_null()),
                "nothing of it is in the chart"
            );
        }
        let pods: Vec<&Value> = of_kind(objects, "Deployment").map(|one| &one["spec"]["template"]["spec"]).collect();
        let volumes = |part: &str| pods.iter().filter(|pod| pod["volumes"].to_string().contains(part)).count();
        assert_eq!(volumes("serviceAccountToken"), usize::from(issues), "{name}: nodes have a token for controllers");
        assert_eq!(volumes("secretName"), if has_controllers && !issues { 2 } else { 0 }, "{name}");
        let config = |file: &str| of_kind(objects, "ConfigMap").find_map(|map| map["data"][file].as_str());
        assert_eq!(config("controller.yaml").is_some_and(|text| text.contains("issue:")), issues, "{name}");
        assert_eq!(config("weir.yaml").is_some_and(|text| text.contains("enrolment:")), issues, "{name}");
    }
}

#[test]
fn controllers_are_apart_and_evicted_one_at_a_time() {
    let Some(rendered) = rendered() else { return };
    let (_, objects) = rendered.iter().find(|(name, _)| name == "controller.yaml").expect("there is one");
    let deployed = |name: &str| {
        let found = of_kind(objects, "Deployment").find(|workload| workload["metadata"]["name"] == name);
        found.expect("it is deployed")["spec"]["template"].clone()
    };
    let (controller, node) = (deployed("edge-weir-controller"), deployed("edge-weir"));
    let selects = |selector: &Value, pod: &Value| {
        let labels = selector["matchLabels"].as_object().expect("labels");
        labels.iter().all(|(name, value)| pod["metadata"]["labels"][name] == *value)
    };
    let of_controllers = |selector: &Value| selects(selector, &controller) && !selects(selector, &node);
    let budget = of_kind(objects, "PodDisruptionBudget").find(|budget| of_controllers(&budget["spec"]["selector"]));
    assert_eq!(budget.expect("controllers have one")["spec"]["maxUnavailable"], 1);
    let apart = "/spec/affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution/0/podAffinityTerm";
    let apart = controller.pointer(apart).expect("they are apart");
    assert!(apart["topologyKey"] == "kubernetes.io/hostname" && of_controllers(&apart["labelSelector"]));
    let spread = controller["spec"]["topologySpreadConstraints"].as_array().expect("they are spread");
    assert!(spread.len() == 2 && spread.iter().all(|over| of_controllers(&over["labelSelector"])));
}

#[test]
fn manifests_are_what_the_chart_renders() {
    let Some(text) = template("weir", &["--set", "crds.install=false"]) else { return };
    let path = folder("kubernetes/install.yaml");
    let stored = fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == text, "deploy/kubernetes/install.yaml differs: `scripts/manifests` writes it anew");
}

/// Has the API server validate an object as if it were created.
#[track_caller]
fn try_out(plane: &ControlPlane, name: &str, object: &Value) {
    let path = format!("{}?dryRun=All&fieldValidation=Strict", collection(object));
    let (status, answer) = plane.ask("POST", &path, Some(object));
    assert_eq!(status, 201, "{name}: {}: {answer}", object["kind"]);
}

/// The API server validates every field, and its admission of pods the restricted standard.
#[test]
fn api_servers_take_every_object() {
    let Some(rendered) = rendered() else { return };
    let Some(plane) = ControlPlane::start() else { return };
    plane.define_gateway_api();
    for namespace in ["shop", "blog"] {
        let labels = json!({ "pod-security.kubernetes.io/enforce": "restricted" });
        plane.create(
            "/api/v1/namespaces",
            &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace, "labels": labels } }),
        );
    }
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" } });
    plane.create("/api/v1/namespaces/weir-system/serviceaccounts", &account);
    for (name, objects) in rendered {
        for object in &objects {
            // The definitions of the Prometheus operator are not installed, and that of WeirPolicy is already.
            let version = object["apiVersion"].as_str().expect("objects have a version");
            if version.starts_with("monitoring.coreos.com") || object["kind"] == "CustomResourceDefinition" {
                continue;
            }
            try_out(&plane, &name, object);
            let pod = &object["spec"]["template"];
            // Pods that share the network of their machine are not restricted ones.
            if pod.is_object() && pod["spec"]["hostNetwork"].is_null() {
                let mut metadata = pod["metadata"].clone();
                metadata["name"] = "weir".into();
                metadata["namespace"] = "weir-system".into();
                let mut spec = pod["spec"].clone();
                spec["serviceAccountName"] = "default".into();
                // The class of priority is the cluster's.
                spec.as_object_mut().expect("a map").remove("priorityClassName");
                let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
                try_out(&plane, &name, &pod);
            }
        }
    }
}
