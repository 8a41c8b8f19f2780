//! Where packages are installed and started: a Debian with nothing but its own packages, in namespaces.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use weir_testkit::{TempDir, skipped};

use crate::{DiskSpace, said};

/// Network, processes and mounts apart from those of this machine. What runs in it ends with it.
pub(crate) struct Isolation {
    init: Child,
    /// The first process in it, as seen from outside.
    first: String,
}

impl Isolation {
    /// `None` where the user may not have one, which has been said then.
    pub(crate) fn start() -> Option<Isolation> {
        if !rustix::process::geteuid().is_root() {
            skipped("only root can install packages into a root of their own");
            return None;
        }
        // The shell waits, so that processes whose parent has ended are reaped.
        let first = "ip link set lo up && echo ready && { sleep infinity & wait; }";
        let mut init = Command::new("unshare")
            .args(["--net", "--pid", "--mount", "--fork", "--kill-child", "sh", "-c", first])
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare is part of every Linux");
        let mut line = String::new();
        let output = init.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("it writes text");
        if line != "ready\n" {
            let _ = init.wait();
            skipped("namespaces cannot be made here, or there is no `ip`");
            return None;
        }
        let children = format!("/proc/{0}/task/{0}/children", init.id());
        let first = fs::read_to_string(children).expect("Linux lists children").trim().to_owned();
        Some(Isolation { init, first })
    }

    /// A program of this machine, in there.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--pid", "--mount", "--target", &self.first, "--", program]);
        command
    }
}

impl Drop for Isolation {
    fn drop(&mut self) {
        // With the first process all others end.
        let _ = self.init.kill();
        let _ = self.init.wait();
    }
}

/// An installed Debian, with a stand-in for systemd, which cannot run there.
pub(crate) struct DebianRoot {
    isolation: Isolation,
    place: TempDir,
    _space: DiskSpace,
}

impl DebianRoot {
    /// `None` where there is none to copy, which has been said then.
    pub(crate) fn start() -> Option<DebianRoot> {
        let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/debian-root.tar");
        if !archive.exists() {
            skipped("there is no .cache/debian-root.tar");
            return None;
        }
        let space = DiskSpace::wait();
        let debian = DebianRoot { isolation: Isolation::start()?, place: TempDir::new(), _space: space };
        said(Command::new("tar").args(["--numeric-owner", "-xf"]).arg(archive).arg("-C").arg(debian.path()));
        said(debian.isolation.command("mount").args(["-t", "proc", "proc"]).arg(debian.path().join("proc")));
        // The scripts of packages ask for this directory before they ask for anything of systemd.
        fs::create_dir_all(debian.path().join("run/systemd/system")).expect("a new root");
        let systemctl = debian.path().join("usr/bin/systemctl");
        fs::write(&systemctl, include_str!("systemctl.sh")).expect("a new root");
        fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755)).expect("it is there");
        Some(debian)
    }

    pub(crate) fn path(&self) -> &Path {
        self.place.path()
    }

    /// Puts a file into `/`, and returns its path in there.
    #[track_caller]
    pub(crate) fn take(&self, file: &Path) -> PathBuf {
        let name = file.file_name().expect("a file");
        let inside = self.path().join(name);
        // That of an earlier version must not be written through its link.
        let _ = fs::remove_file(&inside);
        // It takes room only where the root is on another disk.
        if fs::hard_link(file, &inside).is_err() {
            fs::copy(file, &inside).expect("there is room");
        }
        Path::new("/").join(name)
    }

    /// A script in there.
    pub(crate) fn script(&self, text: &str) -> Command {
        let mut command = self.isolation.command("chroot");
        command.arg(self.path()).args([
            "env",
            "-i",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "DEBIAN_FRONTEND=noninteractive",
        ]);
        // Whatever hangs fails. A busy machine may need minutes.
        command.args(["timeout", "600", "sh", "-ec", text]);
        command
    }

    /// Runs a script in there, which must succeed.
    #[track_caller]
    pub(crate) fn run(&self, text: &str) -> String {
        said(&mut self.script(text))
    }

    /// A program of this machine, in the namespaces and outside of the root.
    pub(crate) fn outside(&self, program: &str) -> Command {
        self.isolation.command(program)
    }

    /// What the gateway says of itself, if it answers.
    pub(crate) fn status(&self) -> Option<Value> {
        let output = self.script("curl -sf http://127.0.0.1:7085/status").output().expect("it runs");
        serde_json::from_slice(&output.stdout).ok()
    }

    /// All files and directories, but for those that package managers and users' databases keep for themselves.
    pub(crate) fn files(&self) -> BTreeSet<String> {
        const OF_OTHERS: [&str; 7] = [
            "/run/",
            "/var/cache/",
            "/var/lib/apt/",
            "/var/lib/dpkg/",
            "/var/lib/rpm",
            "/var/log/apt/",
            "/var/log/dpkg",
        ];
        let all = self.run("find / -xdev");
        let is_ours = |path: &&str| {
            // `passwd-` and the like are useradd's copies.
            let is_copy = path.starts_with("/etc/") && path.ends_with('-');
            !is_copy && !OF_OTHERS.iter().any(|other| path.starts_with(other))
        };
        all.lines().filter(is_ours).map(str::to_owned).collect()
    }
}
