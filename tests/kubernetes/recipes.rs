//! The recipes of the guide, applied to a real cluster as they are on their page, with every command answered as the page shows.

use std::process::Command;

use serde_json::{Value, json};
use weir_testkit::{DEADLINE, TempDir, eventually};

use crate::control_plane::{ControlPlane, collection};
use crate::edge::weir;
use crate::objects::service;
use crate::real::endpoint;

const PAGE: &str = include_str!("../../docs/guide/kubernetes-recipes.md");
/// Those of the Gateway and of Ingresses; the network is the test's own.
const EDGE: &str = "127.0.0.1:8080";
const INGRESS: &str = "127.0.0.1:8081";

/// The texts of the blocks of a section whose fence has this mark.
fn blocks<'a>(section: &'a str, mark: &str) -> impl Iterator<Item = &'a str> {
    let fence = format!("```{mark}\n");
    let begins: Vec<&str> = section.split(fence.as_str()).skip(1).collect();
    begins.into_iter().map(|text| text.split("```").next().unwrap_or_default())
}

/// Each command with the line that it is answered with.
fn steps(section: &str) -> Vec<(&str, &str)> {
    let lines: Vec<&str> = blocks(section, "console").flat_map(str::lines).collect();
    let steps = lines.chunks(2).map(|step| match step {
        [command, shown] => (command.strip_prefix("$ ").unwrap_or_else(|| panic!("{command}: is no command")), *shown),
        _ => panic!("{step:?}: a command has one line of an answer"),
    });
    steps.collect()
}

/// Applies the manifests of a section, and waits until its policies are in force: a request without them would not be counted.
fn apply(plane: &ControlPlane, section: &str) {
    for text in blocks(section, "yaml fragment") {
        let objects: Vec<Value> = serde_saphyr::from_multiple(text).expect("manifests are YAML");
        objects.iter().for_each(|object| plane.apply(object));
        for policy in objects.iter().filter(|object| object["kind"] == "WeirPolicy") {
            let name = policy["metadata"]["name"].as_str().expect("it has a name");
            let path = format!("{}/{name}", collection(policy));
            eventually(&format!("WeirPolicy {name} is accepted"), DEADLINE * 3, || {
                plane.get(&path)["status"]["ancestors"][0]["conditions"][0]["reason"] == "Accepted"
            });
        }
    }
}

#[test]
fn recipes_are_answered_as_their_page_shows() {
    let Some(plane) = ControlPlane::start() else { return };
    plane.define_gateway_api();
    for namespace in ["shop", "blog"] {
        plane.create("/api/v1/namespaces", &json!({ "metadata": { "name": namespace } }));
    }
    for name in ["web", "api", "new"] {
        let [mut of_service, slice] = service(name, ControlPlane::endpoint(endpoint(&plane, name)));
        of_service["spec"]["clusterIP"] = Value::Null;
        plane.create("/api/v1/namespaces/shop/services", &of_service);
        plane.create("/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices", &slice);
    }
    let data = TempDir::new();
    let file = format!(
        "{}data_dir: {}\nresource_listeners: [\":8080\"]\nlisten: [\"{INGRESS}\"]\n",
        plane.node(),
        data.path().display()
    );
    let _node = plane.beside(|| weir().start(&file));
    let mut sections = PAGE.split("\n## ");
    apply(&plane, sections.next().expect("the page begins"));
    let mut count = 0;
    for section in sections {
        let title = section.lines().next().unwrap_or_default();
        apply(&plane, section);
        for (command, shown) in steps(section) {
            eventually(&format!("{title}: `{command}` is answered with `{shown}`"), DEADLINE * 6, || {
                let mut shell = Command::new("sh");
                shell.args(["-c", command]).env("EDGE", EDGE).env("INGRESS", INGRESS);
                let output = plane.beside(|| shell.output()).expect("a shell");
                String::from_utf8_lossy(&output.stdout).trim() == shown
            });
            count += 1;
        }
    }
    assert!(count >= 10, "{count} commands");
}
