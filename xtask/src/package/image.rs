//! An OCI image without a daemon: one layer with the binary, the libraries it needs, certificates and a configuration. It
//! runs as a user that is not root, and needs no file that it could write.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{VERSION, copy, remove, tar, write};
use crate::{Problems, output, step};

const ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";
const USER: &str = "65532:65532";
/// It fails where the status address does not answer. There is no other client in the image.
const HEALTH_CHECK: [&str; 4] = ["CMD", "/usr/bin/weir", "top", "--once"];

/// The files of the image.
fn write_layer_files(root: &Path, layer: &Path) -> Result<(), Problems> {
    let binary = root.join("usr/bin/weir");
    copy(&binary, &layer.join("usr/bin/weir"), 0o755)?;
    copy(&root.join("etc/weir/weir.yaml"), &layer.join("etc/weir/weir.yaml"), 0o644)?;
    for library in libraries(&binary)? {
        let inside = layer.join(library.strip_prefix("/").expect("ldd prints absolute paths"));
        copy(&library, &inside, 0o755)?;
    }
    if Path::new(ROOTS).exists() {
        copy(Path::new(ROOTS), &layer.join(&ROOTS[1..]), 0o644)?;
    }
    write(&layer.join("etc/passwd"), "weir:x:65532:65532:weir:/:/sbin/nologin\n")?;
    write(&layer.join("etc/group"), "weir:x:65532:\n")
}

/// The libraries that the binary asks the loader for, and the loader.
fn libraries(binary: &Path) -> Result<Vec<PathBuf>, Problems> {
    let printed = output(Command::new("ldd").arg(binary))?;
    let paths = printed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(paths.map(PathBuf::from).collect())
}

/// Writes the image as an archive of an OCI layout.
pub(super) fn write_image(
    root: &Path,
    work: &Path,
    archive: &Path,
    architecture: &str,
    epoch: &str,
    effort: &str,
) -> Result<(), Problems> {
    let (layer, layout) = (work.join("layer"), work.join("layout"));
    write_layer_files(root, &layer)?;
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).map_err(|error| vec![format!("{}: {error}", blobs.display())])?;
    let plain = work.join("layer.tar");
    tar(&layer, &[".".as_ref()], &plain, epoch)?;
    let uncompressed = digest(&plain)?;
    step("the layer cannot be compressed", Command::new("gzip").args(["--no-name", effort]).arg(&plain))?;
    remove(&layer)?;
    let layer = blob(&blobs, &work.join("layer.tar.gz"), "application/vnd.oci.image.layer.v1.tar+gzip")?;
    let created =
        output(Command::new("date").args(["--utc", "+%Y-%m-%dT%H:%M:%SZ", "--date"]).arg(format!("@{epoch}")))?;
    let labels = json!({
        "org.opencontainers.image.title": "weir",
        "org.opencontainers.image.description": "API gateway that measures itself",
        "org.opencontainers.image.version": VERSION,
        "org.opencontainers.image.licenses": "Apache-2.0",
    });
    let config = json!({
        "created": created.trim(),
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": USER,
            "Entrypoint": ["/usr/bin/weir"],
            "Cmd": ["run", "/etc/weir/weir.yaml"],
            "ExposedPorts": { "9080/tcp": {} },
            "StopSignal": "SIGTERM",
            // Not of OCI but of Docker, which reads it here; times are in nanoseconds.
            "Healthcheck": { "Test": HEALTH_CHECK, "Interval": 30_000_000_000_u64, "Timeout": 10_000_000_000_u64 },
            "Labels": labels,
        },
        "rootfs": { "type": "layers", "diff_ids": [uncompressed] },
    });
    let config = json_blob(work, &blobs, &config, "application/vnd.oci.image.config.v1+json")?;
    let manifest_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({ "schemaVersion": 2, "mediaType": manifest_type, "config": config, "layers": [layer] });
    let mut manifest = json_blob(work, &blobs, &manifest, manifest_type)?;
    manifest["annotations"] = json!({
        "org.opencontainers.image.ref.name": VERSION,
        // Containerd, and with it k3s and kind, and podman call the image so once they have loaded it.
        "io.containerd.image.name": format!("docker.io/library/weir:{VERSION}"),
    });
    manifest["platform"] = json!({ "architecture": architecture, "os": "linux" });
    write(&layout.join("index.json"), &json!({ "schemaVersion": 2, "manifests": [manifest] }).to_string())?;
    write(&layout.join("oci-layout"), &json!({ "imageLayoutVersion": "1.0.0" }).to_string())?;
    tar(&layout, &["blobs".as_ref(), "index.json".as_ref(), "oci-layout".as_ref()], archive, epoch)
}

/// `sha256:…` of a file.
fn digest(path: &Path) -> Result<String, Problems> {
    let sum = output(Command::new("sha256sum").arg(path))?;
    Ok(format!("sha256:{}", sum.split(' ').next().unwrap_or_default()))
}

/// Moves a file among the blobs, and describes it.
fn blob(blobs: &Path, path: &Path, media_type: &str) -> Result<Value, Problems> {
    let fault = |error: std::io::Error| vec![format!("{}: {error}", path.display())];
    let digest = digest(path)?;
    let size = fs::metadata(path).map_err(fault)?.len();
    fs::rename(path, blobs.join(digest.trim_start_matches("sha256:"))).map_err(fault)?;
    Ok(json!({ "mediaType": media_type, "digest": digest, "size": size }))
}

fn json_blob(work: &Path, blobs: &Path, content: &Value, media_type: &str) -> Result<Value, Problems> {
    let path = work.join("blob.json");
    write(&path, &content.to_string())?;
    blob(blobs, &path, media_type)
}
