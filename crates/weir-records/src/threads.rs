//! The threads that sinks run on.

use std::io;
use std::sync::Mutex;

use rustix::thread::{CpuSet, sched_setaffinity};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;

use crate::lock::locked;

/// A closure that starts a task on the thread it runs on.
pub(crate) type StartTask = Box<dyn FnOnce() + Send>;

/// Threads, each with a runtime of its own. Sinks are assigned to them in turn.
#[derive(Default)]
pub(crate) struct SinkThreads(Mutex<Threads>);

#[derive(Default)]
struct Threads {
    running: Vec<UnboundedSender<StartTask>>,
    next: usize,
}

impl SinkThreads {
    /// Runs `start` on one of at most `most` threads, within a [`LocalSet`]. A new thread runs on `cpus`, unless that is empty.
    ///
    /// # Errors
    /// The system refuses to start a thread.
    pub(crate) fn run(&self, most: usize, cpus: &[u16], start: StartTask) -> io::Result<()> {
        let mut threads = locked(&self.0);
        if threads.running.len() < most.max(1) {
            let thread = spawn(threads.running.len(), cpus)?;
            threads.running.push(thread);
        }
        threads.next = (threads.next + 1) % threads.running.len();
        let sent = threads.running[threads.next].send(start);
        sent.map_err(|_| io::Error::other("a thread that sends records has ended"))
    }
}

fn spawn(number: usize, cpus: &[u16]) -> io::Result<UnboundedSender<StartTask>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (sender, mut tasks) = unbounded_channel::<StartTask>();
    let cpus: Vec<u16> = cpus.to_vec();
    std::thread::Builder::new().name(format!("records-{number}")).spawn(move || {
        // Threads that the runtime starts later, for disk operations, inherit this.
        if let Err(error) = move_to(&cpus) {
            tracing::error!(
                "`records_cpus`: log records are sent on any processor, because the system refuses: {error}"
            );
        }
        let local = LocalSet::new();
        local.block_on(&runtime, async {
            while let Some(start) = tasks.recv().await {
                start();
            }
        });
        // A blocked disk operation must not delay the end of the process.
        runtime.shutdown_background();
    })?;
    Ok(sender)
}

/// Lets the calling thread run on these processors only.
fn move_to(cpus: &[u16]) -> io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(usize::from(*cpu)));
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::mpsc::channel;

    use rustix::thread::sched_getaffinity;

    use super::*;

    #[test]
    fn tasks_share_no_more_threads_than_are_allowed() {
        for (most, names) in [(0, &["records-0"][..]), (1, &["records-0"]), (2, &["records-0", "records-1"])] {
            let (sender, receiver) = channel();
            let threads = SinkThreads::default();
            for _ in 0..5 {
                let sender = sender.clone();
                let name = || std::thread::current().name().map(str::to_owned);
                threads.run(most, &[], Box::new(move || sender.send(name()).expect("heard"))).expect("a thread");
            }
            drop(sender);
            let seen: BTreeSet<_> = receiver.into_iter().flatten().collect();
            assert_eq!(seen.iter().collect::<Vec<_>>(), names);
        }
    }

    #[test]
    fn threads_run_where_they_are_told_to() {
        let all = sched_getaffinity(None).expect("it is known");
        let last = (0..CpuSet::MAX_CPU).rfind(|cpu| all.is_set(*cpu)).expect("this thread runs somewhere");
        // A processor that does not exist changes nothing.
        for (cpus, count) in [(vec![], all.count()), (vec![last as u16], 1), (vec![1023], all.count())] {
            let (sender, receiver) = channel();
            let start = Box::new(move || sender.send(sched_getaffinity(None).expect("known")).expect("heard"));
            SinkThreads::default().run(1, &cpus, start).expect("a thread");
            let set = receiver.recv().expect("it runs");
            assert_eq!((set.count(), set.is_set(last)), (count, true), "{cpus:?}");
        }
        assert_eq!(sched_getaffinity(None).expect("known"), all, "this thread was not moved");
    }
}
