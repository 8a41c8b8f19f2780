//! Packages of the binary that the tests use: made, unpacked into an empty root, and started from there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use weir_testkit::{TempDir, skipped};

#[track_caller]
fn said(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout) + &text(&output.stderr)
}

/// The binary beside this test, if the tests of the whole workspace are run.
fn weir() -> Option<PathBuf> {
    let binary = Path::new(env!("CARGO_BIN_EXE_xtask")).with_file_name("weir");
    if !binary.exists() {
        skipped("`weir` is not built");
    }
    binary.exists().then_some(binary)
}

#[track_caller]
fn package(binary: &Path, place: &TempDir) -> PathBuf {
    let out = place.join("packages");
    fs::create_dir(&out).expect("its own directory");
    said(Command::new(env!("CARGO_BIN_EXE_xtask")).args(["package", "--binary"]).arg(binary).arg(&out));
    out
}

/// The file whose name ends so.
#[track_caller]
fn one(folder: &Path, ending: &str) -> PathBuf {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("readable").path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    assert_eq!(found.len(), 1, "{ending}: {found:?}");
    found.remove(0)
}

#[track_caller]
fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("readable")).expect("JSON")
}

#[test]
fn packages_are_complete_run_and_come_out_the_same_twice() {
    let Some(binary) = weir() else { return };
    let (first, second) = (TempDir::new(), TempDir::new());
    let (out, again) = (package(&binary, &first), package(&binary, &second));
    let sums = |folder: &Path| fs::read_to_string(folder.join("SHA256SUMS")).expect("checksums");
    assert_eq!(sums(&out), sums(&again));
    said(Command::new("sha256sum").args(["--check", "--quiet", "SHA256SUMS"]).current_dir(&out));
    debian_package(&one(&out, ".deb"), &first.join("deb"));
    tarball(&one(&out, ".tar.gz"), &first.join("tar"));
    image(&one(&out, ".oci.tar"), &first.join("oci"));
    parts(&json(&one(&out, ".cdx.json")));
}

#[track_caller]
fn debian_package(package: &Path, root: &Path) {
    said(Command::new("dpkg-deb").arg("--raw-extract").arg(package).arg(root));
    for path in [
        "usr/lib/systemd/system/weir.service",
        "etc/logrotate.d/weir",
        "usr/share/man/man1/weir.1.gz",
        "usr/share/man/man1/weir-run.1.gz",
        "usr/share/bash-completion/completions/weir",
    ] {
        assert!(root.join(path).exists(), "{path} is missing");
    }
    let checked = said(Command::new(root.join("usr/bin/weir")).arg("check").arg(root.join("etc/weir/weir.yaml")));
    assert!(checked.contains("is valid"), "{checked}");
    let conffiles = fs::read_to_string(root.join("DEBIAN/conffiles")).expect("conffiles");
    assert!(conffiles.lines().all(|path| root.join(&path[1..]).exists()), "{conffiles}");
    for script in ["postinst", "prerm", "postrm"] {
        said(Command::new("sh").arg("-n").arg(root.join("DEBIAN").join(script)));
    }
}

#[track_caller]
fn tarball(archive: &Path, root: &Path) {
    fs::create_dir(root).expect("its own directory");
    said(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(root));
    let folder = fs::read_dir(root).expect("a folder").next().expect("one").expect("readable").path();
    let version = said(Command::new(folder.join("usr/bin/weir")).arg("version"));
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
}

/// Blobs are what their names say, and the binary runs with nothing but what is in the layer.
#[track_caller]
fn image(archive: &Path, layout: &Path) {
    fs::create_dir(layout).expect("its own directory");
    said(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(layout));
    let blobs = layout.join("blobs/sha256");
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().expect("a digest").trim_start_matches("sha256:");
        let path = blobs.join(digest);
        assert_eq!(fs::metadata(&path).expect("a blob").len(), descriptor["size"].as_u64().expect("a size"));
        assert!(said(Command::new("sha256sum").arg(&path)).starts_with(digest), "{digest}");
        path
    };
    let manifest = json(&blob(&json(&layout.join("index.json"))["manifests"][0]));
    let config = json(&blob(&manifest["config"]));
    assert_eq!(config["config"]["User"], "65532:65532");
    let layer = layout.join("root");
    fs::create_dir(&layer).expect("its own directory");
    said(Command::new("tar").arg("-xzf").arg(blob(&manifest["layers"][0])).arg("-C").arg(&layer));
    // By the loader of the layer and its libraries, as in a container.
    let libraries = files(&layer).into_iter().filter(|path| path.to_string_lossy().contains(".so"));
    let libraries: Vec<PathBuf> = libraries.collect();
    let loader = libraries.iter().find(|path| path.to_string_lossy().contains("/ld-linux")).expect("a loader");
    let folders: BTreeSet<String> =
        libraries.iter().map(|path| path.parent().expect("a folder").display().to_string()).collect();
    let folders: Vec<String> = folders.into_iter().collect();
    let mut run = Command::new(loader);
    run.arg("--inhibit-cache").arg("--library-path").arg(folders.join(":")).arg(layer.join("usr/bin/weir"));
    let checked = said(run.arg("check").arg(layer.join("etc/weir/weir.yaml")));
    assert!(checked.contains("is valid"), "{checked}");
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("readable").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The list of parts names every crate, those of others with where they come from.
#[track_caller]
fn parts(document: &Value) {
    assert_eq!((&document["bomFormat"], &document["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let components = document["components"].as_array().expect("components");
    let names: BTreeSet<&str> = components.iter().filter_map(|component| component["name"].as_str()).collect();
    assert!(["rustls", "tokio", "aws-lc-sys", "weir-proto"].iter().all(|name| names.contains(name)), "{names:?}");
    for component in components {
        let is_ours = component["name"].as_str().is_some_and(|name| name.starts_with("weir"));
        assert!(is_ours || component["purl"].is_string() && component["licenses"].is_array(), "{component}");
    }
}
