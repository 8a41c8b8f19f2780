//! A small process that ends what an agent has started if the agent itself is killed.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, Write as _},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::process_tree::{process_tree, stat};

/// The agent's end of a pipe to its keeper. The kernel closes the pipe however the agent ends.
#[derive(Debug)]
pub struct AgentKeeper {
    tell: Mutex<Option<ChildStdin>>,
    process: Mutex<Child>,
    running: Mutex<BTreeSet<KeptProcess>>,
}

/// A process by its number and its start in clock ticks: the kernel gives the number of one that has ended to others.
type KeptProcess = (u32, u64);

impl AgentKeeper {
    /// Starts `command`, which calls [`keep`], in a process group of its own: a Ctrl-C is for the agent.
    pub fn start(mut command: Command) -> io::Result<AgentKeeper> {
        use std::os::unix::process::CommandExt as _;
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn()?;
        let tell = process.stdin.take();
        Ok(AgentKeeper { tell: Mutex::new(tell), process: Mutex::new(process), running: Mutex::default() })
    }

    /// The agent has started this process, which leads a group.
    pub(super) fn started(&self, pid: u32) {
        let Some(ticks) = started_ticks(pid) else { return };
        self.running().insert((pid, ticks));
        self.say('+', (pid, ticks));
    }

    /// The agent has ended this process and its group.
    pub(super) fn ended(&self, pid: u32) {
        let mut running = self.running();
        let ended: Vec<KeptProcess> = running.iter().copied().filter(|one| one.0 == pid).collect();
        for one in ended {
            running.remove(&one);
            self.say('-', one);
        }
    }

    /// Kills what runs now. The agent still has to wait for its children.
    pub(super) fn kill_all(&self) {
        self.running().iter().for_each(|one| kill(*one));
    }

    fn running(&self) -> MutexGuard<'_, BTreeSet<KeptProcess>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, sign: char, (pid, ticks): KeptProcess) {
        if let Some(tell) = &mut *self.tell.lock().unwrap_or_else(PoisonError::into_inner) {
            // Without a keeper the agent still ends what it has started when it ends by itself.
            let _ = writeln!(tell, "{sign}{pid} {ticks}");
        }
    }
}

impl Drop for AgentKeeper {
    fn drop(&mut self) {
        drop(self.tell.lock().unwrap_or_else(PoisonError::into_inner).take());
        let _ = self.process.lock().unwrap_or_else(PoisonError::into_inner).wait();
    }
}

/// Reads what an agent starts and ends until the agent itself has ended; then kills what is left.
pub fn keep(lines: impl BufRead) {
    let mut running = BTreeSet::new();
    for line in lines.lines().map_while(Result::ok) {
        let Some((sign, numbers)) = line.split_at_checked(1) else { continue };
        let numbers = numbers.split_once(' ').and_then(|(pid, ticks)| pid.parse().ok().zip(ticks.parse().ok()));
        match (sign, numbers) {
            ("+", Some(one)) => drop(running.insert(one)),
            ("-", Some(one)) => drop(running.remove(&one)),
            _ => {}
        }
    }
    running.into_iter().for_each(kill);
}

fn started_ticks(pid: u32) -> Option<u64> {
    stat(&PathBuf::from(format!("/proc/{pid}/stat"))).map(|stat| stat.started_ticks)
}

/// Kills a process with its group and its descendants, unless its number is another one's now.
fn kill((root, ticks): KeptProcess) {
    let is_another = started_ticks(root).is_some_and(|now| now != ticks);
    let Some(leader) = Pid::from_raw(root as i32).filter(|_| !is_another) else { return };
    let tree = process_tree(root);
    // What has ended meanwhile is not there to be killed. The number of a group that has members is given to no process.
    let _ = kill_process_group(leader, Signal::KILL);
    for pid in tree.into_iter().filter(|pid| *pid != root).filter_map(|pid| Pid::from_raw(pid as i32)) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};

    use super::*;

    #[test]
    fn processes_that_an_agent_leaves_are_killed_and_those_that_it_has_ended_are_not() {
        let start = || Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        let (mut left, ended, another) = (start(), start(), start());
        let named = |child: &Child| format!("{} {}", child.id(), started_ticks(child.id()).unwrap());
        let said = format!("+{}\n+{}\n-{}\nnonsense\n", named(&left), named(&ended), named(&ended));
        // The number has been given to another process since.
        let said = format!("{said}+{} 1\n", another.id());
        keep(said.as_bytes());
        assert_eq!(left.wait().unwrap().signal(), Some(9));
        for mut runs in [ended, another] {
            assert_eq!(runs.try_wait().unwrap(), None, "it still runs");
            runs.kill().unwrap();
            runs.wait().unwrap();
        }
    }
}
