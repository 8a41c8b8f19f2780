//! Checks whether a machine is suitable for load tests, and what to change. Only reads the manifest.

use crate::{
    engine::{FanOutFloor, Interruptions},
    manifest::{Manifest, NOT_OPTIMISED},
};

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub what: String,
    pub now: String,
    /// What to change; `None` if nothing.
    pub advice: Option<String>,
}

/// The precision of an open loop that a quiet machine allows.
const ON_TIME_NS: u64 = 100_000;

/// All checks, whatever their results; `interruptions` are those of the processors with these numbers.
pub fn examine(
    manifest: &Manifest,
    interruptions: &[(u32, Interruptions)],
    fan_out: Option<FanOutFloor>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut look = |what: &str, now: String, well: bool, advice: &str| {
        findings.push(Finding { what: what.to_owned(), now, advice: (!well).then(|| advice.to_owned()) });
    };
    let own = manifest.versions.get("weir-bench").map(String::as_str).unwrap_or_default();
    look(
        "this program",
        own.to_owned(),
        !own.ends_with(NOT_OPTIMISED),
        "use an optimised build, for the lab and for the Weir that it measures (`make release`, target/release/weir): others are \
         several times slower",
    );
    processors(manifest, interruptions, &mut look);
    let (soft, hard) = manifest.open_files;
    look(
        "open files",
        format!("{soft} soft, {hard} hard"),
        hard >= 100_000,
        "raise the hard limit: a gateway needs two files for each client. `* hard nofile 1048576` in /etc/security/limits.conf",
    );
    kernel_limits(manifest, &mut look);
    if let Some(floor) = fan_out {
        look(
            &format!("one event to {} clients", floor.connections),
            format!(
                "{:.1} µs for each send and nothing else: the last client has it after {:.0} ms",
                floor.send().as_secs_f64() * 1e6,
                floor.event.as_secs_f64() * 1e3
            ),
            true,
            "",
        );
    }
    look(
        "hardware counters",
        if manifest.counters { "readable" } else { "not readable" }.to_owned(),
        manifest.counters,
        "instructions per request are reproducible to a few percent where times are not; they need a machine with a PMU \
         and kernel.perf_event_paranoid at 1 or below",
    );
    findings
}

/// Reports a check: its name, the current value, whether that is good, and the advice otherwise.
type Look<'a> = dyn FnMut(&str, String, bool, &str) + 'a;

fn processors(manifest: &Manifest, interruptions: &[(u32, Interruptions)], look: &mut Look<'_>) {
    let cpu = &manifest.cpu;
    look(
        "processors",
        format!("{} ({} cores, {} threads each), {}", cpu.logical, cpu.cores, cpu.threads_per_core, cpu.model),
        cpu.cores >= 3,
        "with 3 or more cores, target, generator and backend have a core each; with 2, generator and backend share one; \
         with 1, throughput figures are meaningless",
    );
    look(
        "hardware threads",
        cpu.threads_per_core.to_string(),
        cpu.threads_per_core == 1,
        "two threads share a core: pin to one thread of each core, or turn SMT off: \
         echo off > /sys/devices/system/cpu/smt/control",
    );
    if let Some(governor) = &cpu.governor {
        let advice = "the clock frequency changes with the load: cpupower frequency-set -g performance";
        look("frequency governor", governor.clone(), governor == "performance", advice);
    }
    for (cpu, seen) in interruptions {
        let us = |ns: u64| format!("{:.0} µs", ns as f64 / 1e3);
        let within = seen.noticed_within(0.999);
        look(
            &format!("interruptions of processor {cpu}"),
            format!(
                "a busy thread is interrupted for at most {} in 99.9 % of the time; longest interruption {}",
                us(within),
                us(seen.longest())
            ),
            within <= ON_TIME_NS,
            "other programs or the hypervisor interrupt this processor, so an open loop cannot send within 0.1 ms of its \
             schedule: stop other programs, or use a machine with dedicated processors",
        );
    }
}

fn kernel_limits(manifest: &Manifest, look: &mut Look<'_>) {
    let number = |name: &str, field: usize| -> Option<u64> {
        manifest.sysctl.get(name)?.split_whitespace().nth(field)?.parse().ok()
    };
    let mut sysctl = |name: &str, least: u64, why: &str| {
        if let Some(value) = number(name, 0) {
            look(name, value.to_string(), value >= least, &format!("{why}: sysctl -w {name}={least}"));
        }
    };
    sysctl("fs.file-max", 1_020_000, "open files of the whole machine");
    sysctl("fs.nr_open", 1_048_576, "the highest limit of open files a process may get");
    sysctl("net.core.somaxconn", 4_096, "connections waiting to be accepted; a larger burst overflows the queue");
    sysctl("net.ipv4.tcp_max_syn_backlog", 4_096, "connections in the handshake");
    sysctl("net.netfilter.nf_conntrack_max", 1_020_000, "tracked connections; above it packets are dropped");
    if let (Some(low), Some(high)) =
        (number("net.ipv4.ip_local_port_range", 0), number("net.ipv4.ip_local_port_range", 1))
    {
        look(
            "net.ipv4.ip_local_port_range",
            format!("{low} {high}"),
            high.saturating_sub(low) >= 50_000,
            "ports for connections to one address: sysctl -w net.ipv4.ip_local_port_range=\"1024 65535\"",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_to_change_and_leaves_the_rest_alone() {
        let mut manifest = Manifest { open_files: (1_024, 1_048_576), counters: true, ..Manifest::default() };
        (manifest.cpu.cores, manifest.cpu.logical, manifest.cpu.threads_per_core) = (8, 8, 1);
        manifest.sysctl.insert("net.core.somaxconn".to_owned(), "128".to_owned());
        manifest.sysctl.insert("net.ipv4.ip_local_port_range".to_owned(), "32768 60999".to_owned());
        let mut quiet = Interruptions { watched_ns: 1_000_000_000, ..Interruptions::default() };
        quiet.lengths.record(50_000);
        let mut disturbed = quiet.clone();
        (0..5).for_each(|_| disturbed.lengths.record(4_000_000));
        let seen = [(0, quiet), (1, disturbed)];
        let bad: Vec<String> = examine(&manifest, &seen, None)
            .into_iter()
            .filter(|one| one.advice.is_some())
            .map(|one| one.what)
            .collect();
        assert_eq!(bad, ["interruptions of processor 1", "net.core.somaxconn", "net.ipv4.ip_local_port_range"]);
    }
}
