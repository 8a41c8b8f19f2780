//! The environment of a result: enough to explain why the figures of two machines differ.

use std::{collections::BTreeMap, fs};

use serde::{Deserialize, Serialize};

/// The machine and its settings at the start of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub hostname: String,
    /// The content of `/proc/version`: release, compiler and build.
    pub kernel: String,
    pub distribution: Option<String>,
    pub cpu: Cpu,
    pub memory_bytes: u64,
    /// The machine or hypervisor, from DMI: vendor and product.
    pub machine: Option<String>,
    /// `RLIMIT_NOFILE`, soft and hard.
    pub open_files: (u64, u64),
    /// Kernel settings that limit load tests, by their `sysctl` names.
    pub sysctl: BTreeMap<String, String>,
    /// Versions of the lab and of what it called.
    pub versions: BTreeMap<String, String>,
    /// The processors of each role.
    pub pinning: Pinning,
    /// Whether hardware counters are available.
    pub counters: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    pub model: String,
    pub logical: u32,
    pub cores: u32,
    pub sockets: u32,
    /// Threads of one core share it: two vCPUs may have half the capacity of two cores.
    pub threads_per_core: u32,
    /// The scaling governor, if the kernel has one.
    pub governor: Option<String>,
    /// The logical processors and their cores.
    pub topology: Vec<LogicalCpu>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogicalCpu {
    pub id: u32,
    pub core: u32,
    pub socket: u32,
}

/// The processors of each role. Roles that share a processor compete for it, which the lint reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pinning {
    pub target: Vec<u32>,
    pub generator: Vec<u32>,
    pub backend: Vec<u32>,
}

const SYSCTLS: [&str; 15] = [
    "fs.file-max",
    "fs.nr_open",
    "net.core.somaxconn",
    "net.core.netdev_max_backlog",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_tw_reuse",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_congestion_control",
    "net.netfilter.nf_conntrack_max",
    "vm.swappiness",
    "vm.max_map_count",
];

/// The text of [`NOT_OPTIMISED`], for [`VERSION`].
macro_rules! not_optimised {
    () => {
        " (not optimised)"
    };
}
/// What ends the versions of programs of this workspace that were built without optimisation. The lab tells builds apart by it.
pub(crate) const NOT_OPTIMISED: &str = not_optimised!();
/// The version of the programs of this workspace, and whether this build is one for development.
pub const VERSION: &str = if cfg!(debug_assertions) {
    concat!(env!("CARGO_PKG_VERSION"), not_optimised!())
} else {
    env!("CARGO_PKG_VERSION")
};

impl Manifest {
    /// Reads the current state of the machine.
    pub fn read(pinning: Pinning) -> Manifest {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let mut versions = BTreeMap::new();
        versions.insert("weir-bench".to_owned(), VERSION.to_owned());
        Manifest {
            hostname: line("/proc/sys/kernel/hostname").unwrap_or_default(),
            kernel: line("/proc/version").unwrap_or_default(),
            distribution: fs::read_to_string("/etc/os-release").ok().and_then(|text| {
                let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
                Some(name.trim_matches('"').to_owned())
            }),
            cpu: Cpu::read(),
            memory_bytes: memory_bytes().unwrap_or(0),
            machine: match (line("/sys/class/dmi/id/sys_vendor"), line("/sys/class/dmi/id/product_name")) {
                (None, None) => None,
                (vendor, product) => {
                    Some([vendor, product].into_iter().flatten().collect::<Vec<_>>().join(" ").trim().to_owned())
                }
            },
            open_files: (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX)),
            sysctl: SYSCTLS
                .iter()
                .filter_map(|name| {
                    let value = line(&format!("/proc/sys/{}", name.replace('.', "/")))?;
                    Some(((*name).to_owned(), value.split_whitespace().collect::<Vec<_>>().join(" ")))
                })
                .collect(),
            versions,
            pinning,
            counters: false,
        }
    }

    /// Name and release of the kernel, such as `Linux 6.12.57`.
    pub fn kernel_release(&self) -> String {
        let mut words = self.kernel.split_whitespace().filter(|word| *word != "version");
        [words.next(), words.next()].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// Processors that more than one role uses.
    pub fn shared_cpus(&self) -> Vec<u32> {
        let target = &self.pinning.target;
        target
            .iter()
            .copied()
            .filter(|cpu| self.pinning.generator.contains(cpu) || self.pinning.backend.contains(cpu))
            .collect()
    }
}

impl Cpu {
    pub fn read() -> Cpu {
        let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let mut cpu = Cpu {
            model: "unknown".to_owned(),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            ..Cpu::default()
        };
        let mut current = LogicalCpu { id: 0, core: 0, socket: 0 };
        for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            match key.trim() {
                "model name" => cpu.model = value.to_owned(),
                "processor" => {
                    let id = value.parse().unwrap_or(cpu.topology.len() as u32);
                    // Machines without `core id` have one thread per core.
                    current = LogicalCpu { id, core: id, socket: 0 };
                    cpu.topology.push(current);
                }
                "core id" => current.core = value.parse().unwrap_or(current.id),
                "physical id" => current.socket = value.parse().unwrap_or(0),
                _ => continue,
            }
            if let Some(last) = cpu.topology.last_mut() {
                *last = current;
            }
        }
        let distinct = |key: fn(&LogicalCpu) -> (u32, u32)| {
            let mut keys: Vec<_> = cpu.topology.iter().map(key).collect();
            keys.sort_unstable();
            keys.dedup();
            keys.len() as u32
        };
        (cpu.cores, cpu.sockets) = (distinct(|cpu| (cpu.socket, cpu.core)), distinct(|cpu| (cpu.socket, 0)));
        cpu.logical = cpu.topology.len() as u32;
        cpu.threads_per_core = cpu.logical / cpu.cores.max(1);
        cpu
    }
}

fn memory_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kib: u64 =
        text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

fn line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_machine() {
        let manifest = Manifest::read(Pinning::default());
        assert!(manifest.cpu.logical >= manifest.cpu.cores && manifest.cpu.cores > 0);
        assert!(manifest.memory_bytes > 0 && !manifest.kernel.is_empty());
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux has it");
        assert_eq!(manifest.kernel_release(), format!("Linux {}", release.trim()));
        assert!(manifest.open_files.0 > 0);
    }

    #[test]
    fn names_the_processors_that_roles_share() {
        let pinning = Pinning { target: vec![0, 1], generator: vec![1], backend: vec![2] };
        assert_eq!(Manifest { pinning, ..Manifest::default() }.shared_cpus(), [1]);
    }
}
