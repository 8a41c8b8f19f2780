//! A small process that ends what an agent has started if the agent itself is killed.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Mutex, PoisonError},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::process_tree::process_tree;

/// The agent's end of a pipe to its keeper. The kernel closes the pipe however the agent ends.
#[derive(Debug)]
pub struct AgentKeeper {
    tell: Mutex<Option<ChildStdin>>,
    process: Mutex<Child>,
}

impl AgentKeeper {
    /// Starts `command`, which calls [`keep`], in a process group of its own: a Ctrl-C is for the agent.
    pub fn start(mut command: Command) -> io::Result<AgentKeeper> {
        use std::os::unix::process::CommandExt as _;
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn()?;
        let tell = process.stdin.take();
        Ok(AgentKeeper { tell: Mutex::new(tell), process: Mutex::new(process) })
    }

    /// The agent has started this process, which leads a group.
    pub(super) fn started(&self, pid: u32) {
        self.say('+', pid);
    }

    /// The agent has ended this process and its group.
    pub(super) fn ended(&self, pid: u32) {
        self.say('-', pid);
    }

    fn say(&self, sign: char, pid: u32) {
        if let Some(tell) = &mut *self.tell.lock().unwrap_or_else(PoisonError::into_inner) {
            // Without a keeper the agent still ends what it has started when it ends by itself.
            let _ = writeln!(tell, "{sign}{pid}");
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
        match line.split_at_checked(1).map(|(sign, pid)| (sign, pid.parse::<u32>())) {
            Some(("+", Ok(pid))) => drop(running.insert(pid)),
            Some(("-", Ok(pid))) => drop(running.remove(&pid)),
            _ => {}
        }
    }
    for root in running {
        let tree = process_tree(root);
        let Some(leader) = Pid::from_raw(root as i32) else { continue };
        // What has ended meanwhile is not there to be killed.
        let _ = kill_process_group(leader, Signal::KILL);
        for pid in tree.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};

    use super::*;

    #[test]
    fn processes_that_an_agent_leaves_are_killed_and_those_that_it_has_ended_are_not() {
        let start = || Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        let (mut left, mut ended) = (start(), start());
        let said = format!("+{}\n+{}\n-{}\nnonsense\n", left.id(), ended.id(), ended.id());
        keep(said.as_bytes());
        assert_eq!(left.wait().unwrap().signal(), Some(9));
        assert_eq!(ended.try_wait().unwrap(), None, "it still runs");
        ended.kill().unwrap();
        ended.wait().unwrap();
    }
}
