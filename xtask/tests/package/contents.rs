//! What is in each package.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use weir_testkit::{Program, TempDir};

use crate::{DiskSpace, one, package, packages, said, weir};

#[track_caller]
fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("readable")).expect("JSON")
}

#[test]
fn two_builds_are_the_same_bytes() {
    let (Some(binary), Some(first)) = (weir(), packages()) else { return };
    let (_space, second) = (DiskSpace::wait(), TempDir::new());
    package(&binary, second.path());
    let sums = |folder: &Path| fs::read_to_string(folder.join("SHA256SUMS")).expect("checksums");
    assert_eq!(sums(first), sums(second.path()));
    said(Command::new("sha256sum").args(["--check", "--quiet", "SHA256SUMS"]).current_dir(first));
}

#[test]
fn packages_are_complete() {
    let (Some(binary), Some(out)) = (weir(), packages()) else { return };
    let (_space, place) = (DiskSpace::wait(), TempDir::new());
    debian_package(&one(out, ".deb"), &place.join("deb"));
    rpm_package(&one(out, ".rpm"), &place.join("deb"));
    fs::remove_dir_all(place.join("deb")).expect("it is ours");
    tarball(&one(out, ".tar.gz"), &place.join("tar"));
    image(&one(out, ".oci.tar"), &place.join("oci"));
    parts(&json(&one(out, ".cdx.json")), &binary);
}

#[track_caller]
fn debian_package(package: &Path, root: &Path) {
    said(Command::new("dpkg-deb").arg("--raw-extract").arg(package).arg(root));
    for path in [
        "usr/lib/systemd/system/weir.service",
        "etc/logrotate.d/weir",
        "usr/share/man/man1/weir.1.gz",
        "usr/share/man/man1/weir-run.1.gz",
        "usr/share/man/man1/weir-top.1.gz",
        "usr/share/man/man1/weir-hub-replay.1.gz",
        "usr/share/bash-completion/completions/weir",
    ] {
        assert!(root.join(path).exists(), "{path} is missing");
    }
    let checked = said(Command::new(root.join("usr/bin/weir")).arg("check").arg(root.join("etc/weir/weir.yaml")));
    assert!(checked.contains("is valid"), "{checked}");
    let conffiles = fs::read_to_string(root.join("DEBIAN/conffiles")).expect("conffiles");
    assert!(conffiles.lines().all(|path| root.join(&path[1..]).exists()), "{conffiles}");
    for script in ["preinst", "postinst", "prerm", "postrm"] {
        said(Command::new("sh").arg("-n").arg(root.join("DEBIAN").join(script)));
    }
}

/// It has the files of the Debian package, which was unpacked at `debian`, with the same two as configuration.
#[track_caller]
fn rpm_package(package: &Path, debian: &Path) {
    let ask = |what: &[&str]| {
        said(Program::find("rpm").expect("comes with rpmbuild").args(["--query", "--package"]).args(what).arg(package))
    };
    let inside: BTreeSet<String> = ask(&["--list"]).lines().map(str::to_owned).collect();
    let of_debian = files(debian).into_iter().filter(|path| !path.starts_with(debian.join("DEBIAN")));
    let of_debian = of_debian.map(|path| format!("/{}", path.strip_prefix(debian).expect("below it").display()));
    let mut expected: BTreeSet<String> =
        of_debian.map(|path| path.replace("vendor-completions", "site-functions")).collect();
    for folder in ["/etc/weir", "/usr/share/doc/weir"] {
        expected.insert(folder.to_owned());
    }
    // With the folders that would otherwise stay when the package is removed.
    for (folder, below) in
        [("bash-completion", "completions"), ("zsh", "site-functions"), ("fish", "vendor_completions.d")]
    {
        expected.extend([format!("/usr/share/{folder}"), format!("/usr/share/{folder}/{below}")]);
    }
    assert_eq!(inside, expected);
    let flags = ask(&["--queryformat", "[%{FILENAMES} %{FILEFLAGS:fflags} %{FILEUSERNAME}\n]"]);
    let configuration: Vec<&str> = flags.lines().filter(|line| line.contains(" cn ")).collect();
    assert_eq!(configuration, ["/etc/logrotate.d/weir cn root", "/etc/weir/weir.yaml cn root"]);
    assert!(flags.lines().all(|line| line.ends_with(" root")), "{flags}");
    let needs = ask(&["--requires"]);
    assert!(needs.contains("libc.so.6(GLIBC_") && needs.contains("/usr/sbin/useradd"), "{needs}");
    let about = ask(&["--info"]);
    assert!(about.contains("Apache-2.0") && about.contains(env!("CARGO_PKG_VERSION")), "{about}");
    said(Program::find("rpmkeys").expect("comes with rpm").args(["--checksig", "--nosignature"]).arg(package));
}

#[track_caller]
fn tarball(archive: &Path, root: &Path) {
    fs::create_dir(root).expect("its own directory");
    said(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(root));
    let folder = fs::read_dir(root).expect("a folder").next().expect("one").expect("readable").path();
    let version = said(Command::new(folder.join("usr/bin/weir")).arg("version"));
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    fs::remove_dir_all(root).expect("it is ours");
}

/// What an image says of itself, and its files.
pub(crate) struct UnpackedImage {
    pub root: PathBuf,
    pub user: String,
    pub command: Vec<String>,
    pub health_check: Vec<String>,
}

/// Blobs are what their names say.
#[track_caller]
pub(crate) fn unpack_image(archive: &Path, layout: &Path) -> UnpackedImage {
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
    let config = &json(&blob(&manifest["config"]))["config"];
    let root = layout.join("root");
    fs::create_dir(&root).expect("its own directory");
    said(Command::new("tar").arg("-xzf").arg(blob(&manifest["layers"][0])).arg("-C").arg(&root));
    let words = |list: &Value| -> Vec<String> { serde_json::from_value(list.clone()).expect("a list of texts") };
    UnpackedImage {
        root,
        user: config["User"].as_str().expect("a user").to_owned(),
        command: [words(&config["Entrypoint"]), words(&config["Cmd"])].concat(),
        health_check: words(&config["Healthcheck"]["Test"])[1..].to_vec(),
    }
}

/// The binary runs with nothing but what is in the layer: by its loader and its libraries, as in a container.
#[track_caller]
fn image(archive: &Path, layout: &Path) {
    if let Some(mut skopeo) = Program::find("skopeo") {
        let copy = layout.with_extension("copy");
        let (from, to) = (format!("oci-archive:{}", archive.display()), format!("dir:{}", copy.display()));
        said(skopeo.args(["--insecure-policy", "copy", &from, &to]));
        fs::remove_dir_all(copy).expect("it is ours");
    }
    fs::create_dir(layout).expect("its own directory");
    let UnpackedImage { root: layer, user, .. } = unpack_image(archive, layout);
    assert_eq!(user, "65532:65532");
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
fn parts(document: &Value, binary: &Path) {
    assert_eq!((&document["bomFormat"], &document["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let components = document["components"].as_array().expect("components");
    let text = |component: &Value, key: &str| component[key].as_str().map(str::to_owned);
    let named = components.iter().filter_map(|it| Some(format!("{}-{}", text(it, "name")?, text(it, "version")?)));
    let named: BTreeSet<String> = named.collect();
    let compiled = crates_in(binary);
    assert!(compiled.len() > 100, "{compiled:?}");
    let missing: Vec<_> = compiled.difference(&named).collect();
    assert!(missing.is_empty(), "the binary contains code of {missing:?}");
    for component in components {
        let is_ours = component["name"].as_str().is_some_and(|name| name.starts_with("weir"));
        assert!(is_ours || component["purl"].is_string() && component["licenses"].is_array(), "{component}");
    }
}

/// The crates, as `NAME-VERSION`, whose sources the binary names: where code panics, and in debug symbols.
fn crates_in(binary: &Path) -> BTreeSet<String> {
    let sources = "/registry/src/[^/]+/[A-Za-z0-9_.+-]+";
    let named = said(Command::new("grep").args(["-aohE", sources]).arg(binary));
    named.lines().filter_map(|path| path.rsplit('/').next()).map(str::to_owned).collect()
}
