//! Two networks with a cable between them, to test what happens when packets are lost. Needs root and Linux network namespaces.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::skipped::skipped;
use crate::wait::{DEADLINE, eventually};

/// The two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkSide {
    Left,
    Right,
}

/// Two network namespaces, each with an address of its own and a loopback interface. They end with this value.
pub struct SplitNetwork {
    namespaces: [Namespace; 2],
}

struct Namespace {
    /// It keeps the namespace alive until its standard input is closed, at the latest when this process ends.
    holder: Child,
    file: File,
}

impl SplitNetwork {
    /// `None` if namespaces are not permitted here, with a line that reports the test as skipped.
    pub fn new() -> Option<SplitNetwork> {
        match SplitNetwork::create() {
            Ok(network) => Some(network),
            Err(reason) => {
                skipped(&format!("network namespaces cannot be used: {reason}"));
                None
            }
        }
    }

    fn create() -> Result<SplitNetwork, String> {
        let network = SplitNetwork { namespaces: [Namespace::create()?, Namespace::create()?] };
        let right = format!("/proc/{}/ns/net", network.namespaces[1].holder.id());
        network.within(NetworkSide::Left, || {
            run("ip", &["link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", &right])
        })?;
        for side in [NetworkSide::Left, NetworkSide::Right] {
            network.within(side, || {
                run("ip", &["address", "add", &format!("{}/24", SplitNetwork::address(side)), "dev", "cable"])?;
                run("ip", &["link", "set", "cable", "up"])?;
                run("ip", &["link", "set", "lo", "up"])
            })?;
        }
        // Tried once, since a kernel may lack it.
        network.try_cut(true)?;
        network.try_cut(false)?;
        Ok(network)
    }

    /// The address of a side on the cable.
    pub fn address(side: NetworkSide) -> &'static str {
        match side {
            NetworkSide::Left => "10.99.0.1",
            NetworkSide::Right => "10.99.0.2",
        }
    }

    /// Calls `act` with the calling thread on a side: the sockets that it opens, the processes and threads that it starts belong to
    /// this side.
    pub fn within<T>(&self, side: NetworkSide, act: impl FnOnce() -> T) -> T {
        let before = File::open("/proc/thread-self/ns/net").expect("Linux has this file");
        enter(&self.namespaces[side as usize].file).expect("entering has been permitted before");
        let done = act();
        enter(&before).expect("it is where the thread comes from");
        done
    }

    /// Cuts the cable: packets in both directions disappear, and no end gets an error. `false` joins it again.
    #[track_caller]
    pub fn cut(&self, is_cut: bool) {
        self.try_cut(is_cut).expect("it has been tried");
    }

    fn try_cut(&self, is_cut: bool) -> Result<(), String> {
        for side in [NetworkSide::Left, NetworkSide::Right] {
            let verb = if is_cut { "add" } else { "del" };
            let kind: &[&str] = if is_cut { &["blackhole"] } else { &[] };
            self.within(side, || run("tc", &[&["qdisc", verb, "dev", "cable", "root"], kind].concat()))?;
        }
        Ok(())
    }
}

impl Namespace {
    fn create() -> Result<Namespace, String> {
        let mut command = Command::new("unshare");
        command.args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut holder = command.spawn().map_err(|error| format!("unshare: {error}"))?;
        let path = format!("/proc/{}/ns/net", holder.id());
        let here = fs::read_link("/proc/thread-self/ns/net").ok();
        let mut has_ended = false;
        eventually("it is in a namespace of its own", DEADLINE, || {
            has_ended = holder.try_wait().is_ok_and(|status| status.is_some());
            has_ended || fs::read_link(&path).ok().is_some_and(|there| Some(there) != here)
        });
        if has_ended {
            let told =
                holder.wait_with_output().map(|output| String::from_utf8_lossy(&output.stderr).trim().to_owned());
            return Err(told.unwrap_or_default());
        }
        let file = File::open(&path).map_err(|error| format!("{path}: {error}"))?;
        let namespace = Namespace { holder, file };
        namespace.can_be_entered().map_err(|error| format!("setns: {error}"))?;
        Ok(namespace)
    }

    /// Tries it on a thread of its own.
    fn can_be_entered(&self) -> io::Result<()> {
        let file = self.file.try_clone()?;
        let trying = std::thread::spawn(move || enter(&file));
        Ok(trying.join().expect("it does not panic")?)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// Moves the calling thread.
fn enter(namespace: &File) -> rustix::io::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    // `ip` and `tc` are in a directory that is not in the path of every user.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(program).args(arguments).env("PATH", path).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim())),
    }
}
