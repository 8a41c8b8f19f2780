//! Load from several processes, for when one process may not have as many open files as there are clients.

use std::{
    env,
    io::Write as _,
    net::{IpAddr, Ipv4Addr},
    process::{Child, Command, Output, Stdio},
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::LoadError;
use crate::engine::{LoadPlan, LoadResult, LoadStart, PERCENTILES};

/// Connections from one local address to one destination; the kernel's default range of ports has 28,232.
const PORTS: usize = 20_000;
/// How often the stop flag is checked.
const LOOK: Duration = Duration::from_millis(100);

/// Runs a plan in several processes of this program, and adds up their results. `start_of_load` is set when they begin to
/// connect.
pub(super) fn run(
    plan: &LoadPlan,
    processes: usize,
    stop: &Arc<AtomicBool>,
    start_of_load: &LoadStart,
) -> Result<LoadResult, LoadError> {
    let shares = shares(plan, processes);
    let children = shares.iter().map(|_| start()).collect::<Result<Vec<Child>, LoadError>>()?;
    let pids: Vec<Pid> = children.iter().filter_map(|child| Pid::from_raw(child.id() as i32)).collect();
    // Each process starts when its input ends; the barrier lets all start, and so end, at the same time.
    let begin = Arc::new(Barrier::new(shares.len()));
    let mut waiting = Vec::new();
    for (mut child, share) in children.into_iter().zip(shares) {
        let (begin, start_of_load) = (begin.clone(), start_of_load.clone());
        waiting.push(thread::spawn(move || {
            let mut input = child.stdin.take().expect("it was asked for");
            let text = serde_json::to_string(&share).expect("a plan has string keys");
            // If the process has ended already, its output has the reason.
            let _ = input.write_all(text.as_bytes());
            begin.wait();
            start_of_load.set(Instant::now());
            drop(input);
            child.wait_with_output()
        }));
    }
    let mut told = false;
    while waiting.iter().any(|one| !one.is_finished()) {
        if !told && stop.load(Ordering::Relaxed) {
            told = true;
            for pid in &pids {
                // Fails if the process has ended meanwhile, which is fine.
                let _ = kill_process(*pid, Signal::INT);
            }
        }
        thread::sleep(LOOK);
    }
    let mut whole: Option<LoadResult> = None;
    for one in waiting {
        let output = one.join().expect("waiting does not panic").map_err(LoadError::Generator)?;
        let part = result(&output)?;
        match &mut whole {
            None => whole = Some(part),
            Some(whole) => whole.merge(&part),
        }
    }
    whole.ok_or(LoadError::NoClients)
}

/// The parts of a plan, each with its own clients, addresses and seed.
fn shares(plan: &LoadPlan, processes: usize) -> Vec<LoadPlan> {
    let processes = processes.clamp(1, plan.connections.max(1));
    let bound = |index: usize| plan.connections * index / processes;
    let share = |index: usize| {
        let connections = bound(index + 1) - bound(index);
        let address = |last: usize| IpAddr::from(Ipv4Addr::new(127, 0, index as u8 + 1, last as u8));
        LoadPlan {
            connections,
            source_addresses: (1..=connections.div_ceil(PORTS).min(250)).map(address).collect(),
            threads: plan.threads.min(connections),
            seed: plan.seed ^ (index as u64) << 32,
            ..plan.clone()
        }
    };
    (0..processes).map(share).collect()
}

/// Starts this program as `weir load`, which waits for its plan on standard input.
fn start() -> Result<Child, LoadError> {
    let program = env::current_exe().map_err(LoadError::Generator)?;
    Command::new(program)
        .args(["load", "--plan", "-", "--json", "-", "--quiet"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(LoadError::Generator)
}

fn result(output: &Output) -> Result<LoadResult, LoadError> {
    let read = serde_json::from_slice(&output.stdout).and_then(|mut whole: serde_json::Value| {
        whole.as_object_mut().map(|members| members.remove(PERCENTILES));
        serde_json::from_value(whole)
    });
    read.map_err(|_| LoadError::generator_ended(output))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::StopCondition;

    #[test]
    fn every_client_is_in_one_process_with_addresses_of_its_own() {
        let plan = LoadPlan::closed("http://localhost:1/", 100_001, StopCondition::after_ms(1));
        let shares = shares(&plan, 4);
        assert_eq!(shares.iter().map(|share| share.connections).sum::<usize>(), 100_001);
        let addresses: Vec<String> =
            shares.iter().flat_map(|share| &share.source_addresses).map(IpAddr::to_string).collect();
        assert_eq!(addresses[..3], ["127.0.1.1", "127.0.1.2", "127.0.2.1"]);
        assert_eq!(addresses.len(), 8);
        assert_eq!(shares_of_one_client(&plan), 1);
    }

    fn shares_of_one_client(plan: &LoadPlan) -> usize {
        shares(&LoadPlan { connections: 1, ..plan.clone() }, 4).len()
    }

    #[test]
    fn a_generator_that_fails_says_why() {
        let output =
            Command::new("sh").args(["-c", "echo 'this run needs 9 open files' >&2; exit 1"]).output().unwrap();
        let error = result(&output).unwrap_err().to_string();
        assert!(error.contains("exit status: 1: this run needs 9 open files"), "{error}");
    }
}
