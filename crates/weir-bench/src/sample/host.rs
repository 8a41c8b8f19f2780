use std::fs;

use crate::result::HostSample;

/// Reads the machine's counters.
pub(super) fn read() -> HostSample {
    let mut sample = HostSample::default();
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    for line in stat.lines() {
        if let Some(times) = line.strip_prefix("cpu ") {
            // user nice system idle iowait irq softirq steal
            let times: Vec<f64> = times.split_whitespace().map(|field| field.parse().unwrap_or(0.0) / ticks).collect();
            let at = |index: usize| times.get(index).copied().unwrap_or(0.0);
            sample.cpu_idle_s = at(3) + at(4);
            sample.cpu_steal_s = at(7);
            sample.cpu_interrupts_s = at(5) + at(6);
            sample.cpu_busy_s = at(0) + at(1) + at(2) + at(5) + at(6);
        } else if let Some(running) = line.strip_prefix("procs_running ") {
            sample.run_queue = running.trim().parse().unwrap_or(0);
        }
    }
    let snmp = fs::read_to_string("/proc/thread-self/net/snmp").unwrap_or_default();
    sample.retransmits = pair(&snmp, "Tcp:", "RetransSegs");
    sample.active_opens = pair(&snmp, "Tcp:", "ActiveOpens");
    sample.passive_opens = pair(&snmp, "Tcp:", "PassiveOpens");
    let netstat = fs::read_to_string("/proc/thread-self/net/netstat").unwrap_or_default();
    sample.listen_overflows = pair(&netstat, "TcpExt:", "ListenOverflows");
    let sockets = fs::read_to_string("/proc/thread-self/net/sockstat").unwrap_or_default();
    sample.time_wait = sockets
        .lines()
        .find_map(|line| line.strip_prefix("TCP:"))
        .and_then(|line| {
            let mut words = line.split_whitespace().skip_while(|word| *word != "tw").skip(1);
            words.next()?.parse().ok()
        })
        .unwrap_or(0);
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    sample.memory_available_bytes = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024;
    let counts = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    sample.oom_kills = counts.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0);
    sample
}

/// A value from a pair of lines with the same prefix: the first has the names, the second the values.
fn pair(text: &str, group: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter(|line| line.starts_with(group));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0 };
    names
        .split_whitespace()
        .zip(values.split_whitespace())
        .find(|(have, _)| *have == name)
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_value_under_its_name() {
        let text = "Tcp: A B C\nTcp: 1 2 3\nUdp: A\nUdp: 9\n";
        assert_eq!(pair(text, "Tcp:", "B"), 2);
        assert_eq!(pair(text, "Tcp:", "D"), 0);
        assert_eq!(pair(text, "Icmp:", "A"), 0);
    }
}
