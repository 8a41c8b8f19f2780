//! A network namespace with a link to this one that delays and loses packets: by netem, or in this process where the kernel has none.

use std::{
    fs::{self, File},
    io,
    net::Ipv4Addr,
    os::fd::AsFd as _,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{
    super::machine_error::NetworkError,
    relay::{PacketRelay, tun},
};
use crate::scenario::NetworkSettings;

/// The range of addresses for benchmarks, 198.18.0.0/15 (RFC 2544 appendix C.2.2), and the number of networks of four in it.
const FIRST_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const NETWORKS: u32 = 1 << 15;
/// How long a namespace may take to be there.
const LIMIT: Duration = Duration::from_secs(10);
/// Where `ip` and `tc` are that are not in every user's path.
const MORE_PATHS: &str = "/usr/sbin:/sbin";
/// The queue of the link, in packets: enough for a fast link with a long delay.
const QUEUE: &str = "100000";
/// The queue of a TUN device, in packets.
const DEVICE_QUEUE: &str = "10000";

/// A namespace, which ends with this value, and the link with it.
pub(super) struct NetworkNamespace {
    /// It keeps the namespace alive until its standard input is closed, at the latest when this process ends.
    holder: Child,
    file: File,
    /// The link, if the kernel has no netem.
    relay: Option<PacketRelay>,
    /// The address of the end of the link that is not in it, and of the one that is.
    pub near: Ipv4Addr,
    pub far: Ipv4Addr,
}

impl NetworkNamespace {
    pub(super) fn new(settings: &NetworkSettings) -> Result<NetworkNamespace, NetworkError> {
        let delay = settings.delay().map_err(NetworkError)?;
        let loss = settings.loss_percent().map_err(NetworkError)?;
        let mut namespace = NetworkNamespace::hold()?;
        let link = format!("lab{}", std::process::id());
        if !namespace.has_netem()? {
            namespace.relay = Some(namespace.relay(&link, delay, loss)?);
            return Ok(namespace);
        }
        let there = format!("/proc/{}/ns/net", namespace.holder.id());
        run(&format!("ip link add {link} type veth peer name {link} netns {there}"))?;
        let delayed =
            format!("tc qdisc add dev {link} root netem limit {QUEUE} delay {}us loss {loss}%", delay.as_micros());
        let side = |address: Ipv4Addr| {
            run(&format!("ip address add {address}/30 dev {link}"))?;
            run(&format!("ip link set {link} up"))?;
            run(&delayed)
        };
        side(namespace.near)?;
        namespace.within(|| {
            run("ip link set lo up")?;
            side(namespace.far)
        })?;
        Ok(namespace)
    }

    /// Whether the kernel delays packets itself.
    fn has_netem(&self) -> Result<bool, NetworkError> {
        match self.within(|| run("tc qdisc add dev lo root netem").and_then(|()| run("tc qdisc del dev lo root"))) {
            Ok(()) => Ok(true),
            Err(error) if error.0.contains("unknown") => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What delays the packets, for the result.
    pub(super) fn by(&self) -> &'static str {
        if self.relay.is_some() { "relay of the lab over TUN devices" } else { "netem" }
    }

    /// A link without netem.
    fn relay(&self, link: &str, delay: Duration, loss: f64) -> Result<PacketRelay, NetworkError> {
        let wrong = |error: io::Error| NetworkError(format!("/dev/net/tun: {error}; and the kernel has no netem"));
        let side = |address: Ipv4Addr| {
            let device = tun(link).map_err(wrong)?;
            run(&format!("ip address add {address}/30 dev {link}"))?;
            run(&format!("ip link set {link} txqueuelen {DEVICE_QUEUE} up"))?;
            Ok(device)
        };
        let near = side(self.near)?;
        let far = self.within(|| {
            run("ip link set lo up")?;
            side(self.far)
        })?;
        PacketRelay::new([near, far], delay, loss).map_err(wrong)
    }

    fn hold() -> Result<NetworkNamespace, NetworkError> {
        let mut command = Command::new("unshare");
        command.args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let wrong = |error: io::Error| NetworkError(format!("unshare: {error}; it is in the package util-linux"));
        let mut holder = command.spawn().map_err(wrong)?;
        let path = format!("/proc/{}/ns/net", holder.id());
        let here = fs::read_link("/proc/thread-self/ns/net").ok();
        let deadline = Instant::now() + LIMIT;
        while fs::read_link(&path).ok().is_none_or(|there| Some(there) == here) {
            if holder.try_wait().is_ok_and(|status| status.is_some()) || Instant::now() > deadline {
                let _ = holder.kill();
                let said = holder.wait_with_output().map(|output| output.stderr).unwrap_or_default();
                let said = String::from_utf8_lossy(&said).trim().to_owned();
                return Err(NetworkError(format!("a network namespace needs root: {said}")));
            }
            thread::sleep(Duration::from_millis(2));
        }
        let file = File::open(&path).map_err(|error| NetworkError(format!("{path}: {error}")))?;
        // Runs side by side have other networks.
        let network = FIRST_ADDRESS.to_bits() + std::process::id() % NETWORKS * 4;
        let end = |number: u32| Ipv4Addr::from_bits(network + number);
        Ok(NetworkNamespace { holder, file, relay: None, near: end(1), far: end(2) })
    }

    /// The namespace as a file, to enter it.
    pub(super) fn file(&self) -> Result<File, NetworkError> {
        self.file.try_clone().map_err(|error| NetworkError(error.to_string()))
    }

    fn within<T: Send>(&self, act: impl FnOnce() -> Result<T, NetworkError> + Send) -> Result<T, NetworkError> {
        thread::scope(|scope| {
            let acting = scope.spawn(|| {
                let entered = move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network));
                entered.map_err(|error| NetworkError(format!("setns: {error}")))?;
                act()
            });
            acting.join().expect("it does not panic")
        })
    }
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// Runs `ip` or `tc`.
fn run(line: &str) -> Result<(), NetworkError> {
    let mut words = line.split(' ');
    let program = words.next().unwrap_or_default();
    let path = format!("{}:{MORE_PATHS}", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(program).args(words).env("PATH", path).output();
    let output = output.map_err(|error| NetworkError(format!("{program}: {error}; it is in the package iproute2")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(NetworkError(format!("{line}: {said}")))
}
