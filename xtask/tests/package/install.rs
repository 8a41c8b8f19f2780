//! Packages are installed into an empty root, upgraded under load, and removed; the image is started.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use weir_testkit::{DEADLINE, TempDir, eventually, eventually_some};

use crate::contents::unpack_image;
use crate::isolation::{DebianRoot, Isolation};
use crate::{DiskSpace, one, packages, said};

const WELCOME: &str = "Weir is installed. Its routes stand in /etc/weir/weir.yaml.";
/// So few requests per second that a busy machine keeps up, and time-outs for one that stands still. It is ended long before its time.
const LOAD: &str = "echo $$ >/run/load.pid; \
                    exec weir load --quiet --rate 200 --duration 1h --timeout 60s --connect-timeout 60s \
                    --json /run/load.json http://127.0.0.1:9080/";

/// `weir load` of the package itself, until it is told to stop.
struct PackageLoad<'a> {
    debian: &'a DebianRoot,
    process: Child,
}

impl PackageLoad<'_> {
    fn start(debian: &DebianRoot) -> PackageLoad<'_> {
        let process = debian.script(LOAD).stdout(Stdio::null()).spawn().expect("it runs");
        let load = PackageLoad { debian, process };
        load.wait_for_requests();
        load
    }

    /// Until the gateway that serves now has got some of its requests.
    #[track_caller]
    fn wait_for_requests(&self) {
        let count = || {
            let status = self.debian.status()?;
            let workers = status["workers"].as_array()?.iter();
            Some(workers.filter_map(|worker| worker["requests"].as_u64()).sum::<u64>())
        };
        eventually("requests arrive", DEADLINE, || count().is_some_and(|count| count > 100));
    }

    /// Ends it. Every request that was sent must have been answered with 200.
    #[track_caller]
    fn finish(mut self) {
        self.debian.run("kill -s INT $(cat /run/load.pid)");
        assert!(self.process.wait().expect("it runs").success());
        let result: Value = serde_json::from_str(&self.debian.run("cat /run/load.json")).expect("JSON");
        let total = &result["total"];
        let count = |name: &str| total[name].as_u64().expect("a count");
        assert_eq!(count("due") - count("missed"), count("completed"), "{total:#}");
        assert!(count("completed") > 200, "{total:#}");
        assert_eq!(total["unexpected"], 0, "{total:#}");
        let errors = total["errors"].as_object().expect("causes");
        assert!(errors.values().all(|count| *count == 0), "{total:#}");
    }
}

/// The process that serves.
#[track_caller]
fn process(debian: &DebianRoot) -> u64 {
    eventually_some("the gateway serves", DEADLINE, || {
        debian.status().filter(|status| status["state"] == "serving")?["pid"].as_u64()
    })
}

/// Upgrades under load by this command. Another process serves afterwards, and the one before has ended.
#[track_caller]
fn upgrade(debian: &DebianRoot, install: &mut Command) {
    let before = process(debian);
    let load = PackageLoad::start(debian);
    said(install);
    eventually("another process serves", DEADLINE, || process(debian) != before);
    eventually("the process before ends", DEADLINE, || {
        !debian.script(&format!("test -d /proc/{before}")).status().expect("it runs").success()
    });
    load.wait_for_requests();
    load.finish();
}

/// The command that installs a package.
fn installing(debian: &DebianRoot, package: &Path) -> Command {
    let package = debian.take(package);
    debian.script(&format!("apt-get install --yes --no-install-recommends {}", package.display()))
}

/// What an operator changes, so that it has to survive an upgrade.
#[track_caller]
fn edit_configuration(debian: &DebianRoot) {
    debian.run("echo '# edited' >>/etc/weir/weir.yaml");
}

#[track_caller]
fn leaves(debian: &DebianRoot, before: &BTreeSet<String>, expected: &[&str]) {
    let left: Vec<String> = debian.files().difference(before).cloned().collect();
    assert_eq!(left, expected);
}

/// The package again, with another number: only its control files are unpacked.
#[track_caller]
fn next_version(package: &Path, place: &TempDir) -> PathBuf {
    let (folder, archive, next) = (place.join("control"), place.join("control.tar.gz"), place.join("weir-next.deb"));
    said(Command::new("dpkg-deb").arg("--control").arg(package).arg(&folder));
    let control = folder.join("control");
    let text = fs::read_to_string(&control).expect("readable");
    let version = format!("Version: {}", env!("CARGO_PKG_VERSION"));
    fs::write(&control, text.replace(&version, &format!("{version}+next"))).expect("its own directory");
    said(Command::new("tar").args(["--owner=0", "--group=0", "-czf"]).arg(&archive).arg("-C").arg(&folder).arg("."));
    fs::copy(package, &next).expect("there is room");
    // It takes the place of the file with this name.
    said(Command::new("ar").arg("r").arg(&next).arg(&archive));
    next
}

#[test]
fn the_debian_package_serves_is_upgraded_without_a_lost_request_and_goes() {
    let Some((folder, debian)) = packages().zip(DebianRoot::start()) else { return };
    let before = debian.files();
    let (first, place) = (one(folder, ".deb"), TempDir::new());
    let next = next_version(&first, &place);
    let apt = |package: &Path| installing(&debian, package);
    said(&mut apt(&first));
    assert_eq!(debian.run("curl -s http://127.0.0.1:9080/"), WELCOME);
    assert_eq!(debian.run(&format!("stat --format %U /proc/{}", process(&debian))), "weir\n");
    edit_configuration(&debian);
    upgrade(&debian, &mut apt(&next));
    assert!(debian.run("dpkg-query --showformat '${Version}' --show weir").ends_with("+next"));
    assert!(debian.run("cat /etc/weir/weir.yaml").ends_with("# edited\n"));

    // Also while the unit reloads.
    debian.run("echo reloading >/run/weir.state");
    let place = TempDir::new();
    upgrade(&debian, &mut apt(&next_version(&next, &place)));
    debian.run("rm /run/weir.state");

    debian.run("rm /*.deb; apt-get remove --yes weir");
    let configuration = ["/etc/logrotate.d/weir", "/etc/weir", "/etc/weir/weir.yaml"];
    leaves(&debian, &before, &[&configuration[..], &["/var/lib/weir", "/var/log/weir"]].concat());
    assert_eq!(debian.status(), None);

    said(&mut apt(&next));
    process(&debian);
    debian.run("rm /*.deb; apt-get purge --yes weir");
    leaves(&debian, &before, &["/var/lib/weir"]);
    assert!(!debian.run("cat /etc/passwd /etc/group").contains("weir"));
}

#[test]
fn an_installation_that_failed_does_not_make_an_upgrade_start_the_service() {
    let Some((folder, debian)) = packages().zip(DebianRoot::start()) else { return };
    let (first, place) = (one(folder, ".deb"), TempDir::new());
    let next = next_version(&first, &place);
    let apt = |package: &Path| installing(&debian, package);
    said(&mut apt(&first));
    process(&debian);
    debian.run("systemctl disable --now weir.service; touch /run/weir.installing");
    said(&mut apt(&next));
    assert_eq!(debian.status(), None, "an operator had stopped it");
    assert!(!debian.script("test -e /run/weir.installing").status().expect("it runs").success());
}

#[test]
fn a_purge_succeeds_while_a_process_runs_as_the_user_of_the_package() {
    let Some((folder, debian)) = packages().zip(DebianRoot::start()) else { return };
    let package = debian.take(&one(folder, ".deb"));
    debian.run(&format!("apt-get install --yes --no-install-recommends {}", package.display()));
    process(&debian);
    // It has said that it runs as this user before the package is removed.
    debian.run(
        "mkfifo -m 666 /run/runs; \
         setsid setpriv --reuid=weir --regid=weir --clear-groups sh -c 'echo yes >/run/runs; exec sleep 3000' \
         </dev/null >/dev/null 2>&1 & read -r _ </run/runs",
    );
    let told = debian.run("apt-get purge --yes weir 2>&1");
    assert!(told.contains("the user weir stays, as a process of it runs"), "{told}");
    assert!(debian.run("cat /etc/passwd").contains("weir"));
}

/// Debian's rpm installs into a Debian root: the libraries that the package asks for are there, but no database says so.
#[test]
fn the_rpm_package_serves_is_upgraded_without_a_lost_request_and_goes() {
    let Some((folder, debian)) = packages().zip(DebianRoot::start()) else { return };
    let before = debian.files();
    let package = one(folder, ".rpm");
    let rpm = |arguments: &[&str]| {
        let mut rpm = debian.outside("rpm");
        // Debian's rpm would keep its database in the home directory.
        rpm.args(["--define", "_dbpath /var/lib/rpm", "--root"]).arg(debian.path()).args(arguments);
        rpm
    };
    said(rpm(&["--install", "--nodeps"]).arg(&package));
    assert_eq!(debian.run("curl -s http://127.0.0.1:9080/"), WELCOME);
    edit_configuration(&debian);
    // The same version once more, which runs the scripts of an upgrade.
    upgrade(&debian, rpm(&["--upgrade", "--force", "--nodeps"]).arg(&package));
    assert!(debian.run("cat /etc/weir/weir.yaml").ends_with("# edited\n"));

    said(&mut rpm(&["--erase", "weir"]));
    leaves(&debian, &before, &["/etc/weir", "/etc/weir/weir.yaml.rpmsave", "/var/lib/weir", "/var/log/weir"]);
    assert_eq!(debian.status(), None);
}

#[test]
fn the_image_serves_as_nobody_from_a_root_that_cannot_be_written() {
    let Some((folder, isolation)) = packages().zip(Isolation::start()) else { return };
    let (_space, place) = (DiskSpace::wait(), TempDir::new());
    let image = unpack_image(&one(folder, ".oci.tar"), place.path());
    let mount = |arguments: &[&str]| said(isolation.command("mount").args(arguments).arg(&image.root));
    said(isolation.command("mount").arg("--bind").arg(&image.root).arg(&image.root));
    mount(&["-o", "remount,ro,bind"]);
    let mut start = isolation.command("chroot");
    start.arg(format!("--userspec={}", image.user)).arg(&image.root).args(&image.command);
    let mut gateway = start.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    let ask = || isolation.command("curl").args(["-s", "http://127.0.0.1:9080/"]).output().expect("it runs").stdout;
    eventually("the gateway in the image answers", DEADLINE, || ask() == WELCOME.as_bytes());
    said(isolation.command("chroot").arg(&image.root).args(&image.health_check));
    drop(isolation);
    gateway.wait().expect("it ran");
}
