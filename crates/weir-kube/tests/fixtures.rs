//! Manifests, and the resources and statuses that they mean: `NAME.yaml` and `NAME.json`.
//!
//! `WEIR_WRITE_FIXTURES=yes` writes the results anew; read the difference before it is committed.

use std::path::Path;
use std::{env, fs};

use serde_json::{Map, Value, json};
use weir_kube::{KubeOptions, Translation, World, translate};

fn readable(translation: &Translation) -> Value {
    let mut resources = Map::new();
    for resource in &translation.resources {
        resources.insert(format!("{}/{} of {}", resource.kind, resource.id, resource.origin), resource.value.clone());
    }
    let statuses: Map<String, Value> =
        translation.statuses.iter().map(|one| (one.object.to_string(), one.status.clone())).collect();
    json!({ "resources": resources, "statuses": statuses })
}

fn check(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let manifests = World::from_manifests(&fs::read_to_string(folder.join(format!("{name}.yaml"))).unwrap()).unwrap();
    assert_eq!(manifests.skipped, Vec::<String>::new());
    let found = readable(&translate(&manifests.world, &KubeOptions::default()));
    let file = folder.join(format!("{name}.json"));
    if env::var("WEIR_WRITE_FIXTURES").is_ok() {
        fs::write(&file, format!("{found:#}\n")).unwrap();
    }
    let expected: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    assert!(found == expected, "{name}.json differs; now it is:\n{found:#}");
}

#[test]
fn routes_with_matches_and_filters() {
    check("shop");
}

#[test]
fn listeners_and_their_conditions() {
    check("listeners");
}

#[test]
fn streams_over_tcp_tls_and_udp() {
    check("streams");
}

#[test]
fn upstreams_with_policies_and_retries() {
    check("policies");
}
