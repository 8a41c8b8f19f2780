//! The RPM package, by rpmbuild: it finds out itself which libraries, in which versions, the binary needs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::VERSION;
use crate::{Problems, output, step};

const SPEC: &str = "deploy/rpm/weir.spec";

/// Writes the package of the files below `root`. Whatever rpmbuild would note of this machine and of the time is fixed.
pub(super) fn write_rpm(
    root: &Path,
    work: &Path,
    package: &Path,
    architecture: &str,
    epoch: &str,
    effort: &str,
) -> Result<(), Problems> {
    let missing =
        |_| vec!["there is no rpmbuild: install the package `rpm` (Debian) or `rpm-build` (Fedora)".to_owned()];
    output(Command::new("rpmbuild").arg("--version")).map_err(missing)?;
    let package = absolute(package)?;
    let mut build = Command::new("rpmbuild");
    build.args(["-bb", "--quiet", "--target"]).arg(format!("{architecture}-linux"));
    for (name, value) in [
        ("_topdir", absolute(work)?.display().to_string()),
        ("_rpmdir", package.parent().expect("below the root").display().to_string()),
        ("_rpmfilename", package.file_name().expect("has a name").to_string_lossy().into_owned()),
        ("package_version", VERSION.to_owned()),
        ("package_root", absolute(root)?.display().to_string()),
        ("_buildhost", "localhost".to_owned()),
        ("use_source_date_epoch_as_buildtime", "1".to_owned()),
        ("clamp_mtime_to_source_date_epoch", "1".to_owned()),
        // Compressed by zstd, which is read by rpm 4.14 (2018) and later.
        ("_binary_payload", effort.to_owned()),
    ] {
        build.arg("--define").arg(format!("{name} {value}"));
    }
    step("the RPM package cannot be built", build.arg(SPEC).env("SOURCE_DATE_EPOCH", epoch).stdout(Stdio::null()))
}

fn absolute(path: &Path) -> Result<PathBuf, Problems> {
    std::path::absolute(path).map_err(|error| vec![format!("{}: {error}", path.display())])
}
