//! Manifests as teams have them: what is written for them passes `weir check`, and what is not served is as listed.

use std::path::Path;
use std::process::Command;

use weir_testkit::TempDir;

/// Files, and the losses: each object with the annotation, or another part of the text.
const FILES: &[(&str, &[&str])] = &[
    ("blog.yaml", &["there is no Secret `blog-tls`"]),
    ("canary.yaml", &[]),
    ("dashboards.yaml", &["there is no Secret `dashboards-tls`"]),
    ("grpc.yaml", &["there is no Secret `inventory-tls`"]),
    ("helm-list.yaml", &[]),
    ("legacy.yaml", &["`configuration-snippet`", "`/v1` of `api.legacy.example` belongs to Ingress legacy/a-api"]),
    ("media.yaml", &[]),
    ("microservices.yaml", &[]),
    ("oauth.yaml", &["there is no Secret `wiki-tls`"]),
    ("shop.yaml", &[]),
];

#[test]
fn converted_manifests_pass_the_check_and_each_loss_is_listed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/operations/ingress/manifests");
    let directory = TempDir::new();
    for (name, losses) in FILES {
        let file = folder.join(name);
        let weir =
            |arguments: &[&str]| Command::new(env!("CARGO_BIN_EXE_weir")).args(arguments).output().expect("it runs");
        let path = file.to_str().expect("text");
        let output = weir(&["convert", "ingress", path]);
        let errors = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.success(), "{name}: {errors}");
        let lost: Vec<&str> = errors.lines().filter(|line| line.contains(": not converted: ")).collect();
        assert_eq!(lost.len(), losses.len(), "{name}: {errors}");
        assert!(losses.iter().all(|loss| lost.iter().any(|line| line.contains(loss))), "{name}: {errors}");
        let denied = weir(&["convert", "ingress", path, "--deny-losses"]);
        assert_eq!(denied.status.code(), Some(i32::from(!losses.is_empty())), "{name}");
        let written = directory.write("weir.yaml", &output.stdout);
        let check = weir(&["check", written.to_str().expect("text")]);
        let said = String::from_utf8_lossy(&check.stderr).into_owned();
        assert!(check.status.success(), "{name}: {said}\n{}", String::from_utf8_lossy(&output.stdout));
    }
}
