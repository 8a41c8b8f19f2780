//! `cargo xtask package`: a tarball, a Debian package, an RPM package and an OCI image of a binary, with a list of its parts
//! (SBOM) and checksums. Times and owners are fixed, so that the same binary gives the same bytes.

mod image;
mod rpm;
mod sbom;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Problems, output, step};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What to package, and where to.
pub(crate) struct Package<'a> {
    /// A binary that is built already; without one, the profile `dist` is built.
    pub binary: Option<&'a str>,
    pub out: &'a str,
    pub effort: CompressionEffort,
}

/// How small the files are made, in the words of the programs that do it.
#[derive(Clone, Copy)]
pub(crate) struct CompressionEffort {
    gzip: &'static str,
    debian: &'static str,
    rpm: &'static str,
}

impl CompressionEffort {
    /// For packages that are shipped.
    pub(crate) const MUCH: CompressionEffort = CompressionEffort { gzip: "-6", debian: "-z9", rpm: "w9.zstdio" };
    /// For packages that are tried: the binary of the tests is large, since it is not optimised.
    pub(crate) const LITTLE: CompressionEffort = CompressionEffort { gzip: "-1", debian: "-z1", rpm: "w1.zstdio" };
}

impl Package<'_> {
    /// Writes all of them. What one was made of goes before the next is made, so that little more than the packages is on the disk.
    pub(crate) fn make(&self) -> Result<(), Problems> {
        let built = match self.binary {
            Some(binary) => Built { binary: PathBuf::from(binary), symbols: None },
            None => Built::dist()?,
        };
        let out = Path::new(self.out);
        let work = out.join("work");
        remove(&work)?;
        let root = work.join("root");
        let epoch = epoch()?;
        lay_out(&built, &root, &out.join("weir.debug"))?;
        let architecture = architecture()?;
        let name = format!("weir-{VERSION}-linux-{}", architecture.rust);
        let CompressionEffort { gzip, debian: effort, rpm } = self.effort;
        tarball(&root, &work.join(&name), &out.join(format!("{name}.tar.gz")), &epoch, gzip)?;
        let package = out.join(format!("weir_{VERSION}_{}.deb", architecture.debian));
        debian(&root, &work.join("deb"), &package, &epoch, effort)?;
        let package = out.join(format!("weir-{VERSION}-1.{}.rpm", architecture.rust));
        let folder = work.join("rpm");
        rpm::write_rpm(&root, &folder, &package, architecture.rust, &epoch, rpm)?;
        remove(&folder)?;
        let archive = out.join(format!("{name}.oci.tar"));
        image::write_image(&root, &work.join("image"), &archive, architecture.debian, &epoch, gzip)?;
        write(&out.join(format!("{name}.cdx.json")), &sbom::page(&epoch)?)?;
        remove(&work)?;
        checksums(out)
    }
}

/// The names of this machine's kind.
struct Architecture {
    rust: &'static str,
    debian: &'static str,
}

fn architecture() -> Result<Architecture, Problems> {
    match std::env::consts::ARCH {
        "x86_64" => Ok(Architecture { rust: "x86_64", debian: "amd64" }),
        "aarch64" => Ok(Architecture { rust: "aarch64", debian: "arm64" }),
        other => Err(vec![format!("packages are made for x86_64 and aarch64, not for {other}")]),
    }
}

/// The binary to package.
struct Built {
    binary: PathBuf,
    /// The file with its debug symbols, if they were moved out of the binary already.
    symbols: Option<PathBuf>,
}

impl Built {
    /// Builds the profile `dist` as `make dist` does: nothing is compiled twice, and no path of this machine is in it.
    fn dist() -> Result<Built, Problems> {
        step("weir does not build", Command::new("scripts/release").arg("dist"))?;
        let folder = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(target) => PathBuf::from(target).join("dist"),
            None => PathBuf::from("target/dist"),
        };
        Ok(Built { binary: folder.join("weir"), symbols: Some(folder.join("weir.debug")) })
    }

    /// The binary without debug symbols to `installed`, and these to `debug`.
    fn install(&self, installed: &Path, debug: &Path) -> Result<(), Problems> {
        copy(&self.binary, installed, 0o755)?;
        if let Some(symbols) = &self.symbols {
            return copy(symbols, debug, 0o644);
        }
        let mut split = Command::new("objcopy");
        step("debug symbols cannot be copied", split.arg("--only-keep-debug").arg(&self.binary).arg(debug))?;
        step("the binary cannot be stripped", Command::new("strip").arg("--strip-all").arg(installed))?;
        let link = format!("--add-gnu-debuglink={}", debug.display());
        step("debug symbols cannot be linked to", Command::new("objcopy").arg(link).arg(installed))
    }
}

/// Seconds since 1970 of the commit, or SOURCE_DATE_EPOCH where it is set.
fn epoch() -> Result<String, Problems> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(epoch) => Ok(epoch),
        Err(_) => Ok(output(Command::new("git").args(["log", "-1", "--format=%ct"]))?.trim().to_owned()),
    }
}

/// The files as they are installed, below `root`. Debug symbols go to a file apart.
fn lay_out(built: &Built, root: &Path, debug: &Path) -> Result<(), Problems> {
    built.install(&root.join("usr/bin/weir"), debug)?;
    for (from, to) in [
        ("deploy/weir.service", "usr/lib/systemd/system/weir.service"),
        ("deploy/weir.socket", "usr/lib/systemd/system/weir.socket"),
        ("deploy/weir.yaml", "etc/weir/weir.yaml"),
        ("deploy/logrotate", "etc/logrotate.d/weir"),
        ("deploy/alerts.yaml", "usr/share/doc/weir/alerts.yaml"),
        ("deploy/dashboard.json", "usr/share/doc/weir/dashboard.json"),
        ("LICENSE", "usr/share/doc/weir/copyright"),
        ("CHANGELOG.md", "usr/share/doc/weir/CHANGELOG.md"),
    ] {
        copy(Path::new(from), &root.join(to), 0o644)?;
    }
    for (shell, to) in [
        ("bash", "bash-completion/completions/weir"),
        ("zsh", "zsh/vendor-completions/_weir"),
        ("fish", "fish/vendor_completions.d/weir.fish"),
    ] {
        let text = output(Command::new(&built.binary).args(["completions", shell]))?;
        write(&root.join("usr/share").join(to), &text)?;
    }
    let pages = root.join("usr/share/man/man1");
    fs::create_dir_all(&pages).map_err(|error| vec![format!("{}: {error}", pages.display())])?;
    step("manual pages cannot be written", Command::new(&built.binary).args(["man", "--to"]).arg(&pages))?;
    step("manual pages cannot be compressed", Command::new("gzip").args(["--no-name", "-r"]).arg(pages))
}

fn tarball(root: &Path, folder: &Path, archive: &Path, epoch: &str, effort: &str) -> Result<(), Problems> {
    link_files(root, folder)?;
    let plain = archive.with_extension("");
    tar(folder.parent().expect("below work"), &[folder.file_name().expect("has a name")], &plain, epoch)?;
    step("the tarball cannot be compressed", Command::new("gzip").args(["--no-name", "--force", effort]).arg(&plain))
}

/// An archive that says nothing of who made it, and when.
fn tar(from: &Path, names: &[&std::ffi::OsStr], archive: &Path, epoch: &str) -> Result<(), Problems> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
    tar.arg(format!("--mtime=@{epoch}")).arg("--directory").arg(from).arg("--file").arg(archive).args(names);
    step("the archive cannot be written", &mut tar)
}

/// The folder with its files once more, without room for their bytes.
fn link_files(from: &Path, to: &Path) -> Result<(), Problems> {
    step("the files cannot be linked", Command::new("cp").args(["--archive", "--link"]).arg(from).arg(to))
}

fn debian(root: &Path, folder: &Path, package: &Path, epoch: &str, effort: &str) -> Result<(), Problems> {
    link_files(root, folder)?;
    let kilobytes = output(Command::new("du").args(["--summarize", "--apparent-size", "--block-size=1K"]).arg(root))?;
    let kilobytes = kilobytes.split_whitespace().next().unwrap_or_default();
    let control = format!(
        "Package: weir\nVersion: {VERSION}\nArchitecture: {}\nMaintainer: The Weir project <weir@localhost>\n\
         Installed-Size: {kilobytes}\nDepends: libc6 (>= {}), libgcc-s1, passwd\nRecommends: ca-certificates, logrotate\n\
         Section: net\nPriority: optional\nDescription: API gateway that measures itself\n \
         Carries HTTP traffic from one configuration file, the one Apache APISIX users know.\n",
        architecture()?.debian,
        libc(&root.join("usr/bin/weir"))?
    );
    write(&folder.join("DEBIAN/control"), &control)?;
    write(&folder.join("DEBIAN/conffiles"), "/etc/weir/weir.yaml\n/etc/logrotate.d/weir\n")?;
    for script in ["preinst", "postinst", "prerm", "postrm"] {
        copy(&Path::new("deploy/debian").join(script), &folder.join("DEBIAN").join(script), 0o755)?;
    }
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Zgzip", effort, "--build"]).arg(folder).arg(package);
    build.env("SOURCE_DATE_EPOCH", epoch);
    step("the Debian package cannot be built", build.stdout(std::process::Stdio::null()))
}

/// The newest version of the C library that the binary asks for.
fn libc(binary: &Path) -> Result<String, Problems> {
    let symbols = output(Command::new("objdump").arg("-T").arg(binary))?;
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
        let text: String = rest.chars().take_while(|letter| letter.is_ascii_digit() || *letter == '.').collect();
        let numbers: Option<Vec<u32>> = text.split('.').map(|number| number.parse().ok()).collect();
        Some((numbers?, text))
    });
    let newest = versions.max().ok_or_else(|| vec!["the binary names no version of the C library".to_owned()])?;
    Ok(newest.1)
}

/// SHA-256 of everything that was written, in the form that `sha256sum --check` reads.
fn checksums(out: &Path) -> Result<(), Problems> {
    let entries = fs::read_dir(out).map_err(|error| vec![format!("{}: {error}", out.display())])?;
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.retain(|name| name != "SHA256SUMS");
    names.sort();
    let sums = output(Command::new("sha256sum").args(names).current_dir(out))?;
    eprint!("{sums}");
    write(&out.join("SHA256SUMS"), &sums)
}

fn write(path: &Path, text: &str) -> Result<(), Problems> {
    let fault = |error: std::io::Error| vec![format!("{}: {error}", path.display())];
    fs::create_dir_all(path.parent().expect("not the root")).map_err(fault)?;
    fs::write(path, text).map_err(fault)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).map_err(fault)
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), Problems> {
    let fault = |error: std::io::Error| vec![format!("{} to {}: {error}", from.display(), to.display())];
    fs::create_dir_all(to.parent().expect("not the root")).map_err(fault)?;
    fs::copy(from, to).map_err(fault)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).map_err(fault)
}

fn remove(path: &Path) -> Result<(), Problems> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(vec![format!("{}: {error}", path.display())]),
        _ => Ok(()),
    }
}
