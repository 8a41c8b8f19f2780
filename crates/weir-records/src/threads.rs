//! The threads that sinks run on.

use std::io;
use std::sync::Mutex;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;

use crate::lock::locked;

/// A closure that starts a task on the thread it runs on.
pub type StartTask = Box<dyn FnOnce() + Send>;

/// Threads, each with a runtime of its own. Sinks are assigned to them in turn.
#[derive(Default)]
pub struct SinkThreads(Mutex<Threads>);

#[derive(Default)]
struct Threads {
    running: Vec<UnboundedSender<StartTask>>,
    next: usize,
}

impl SinkThreads {
    /// Runs `start` on one of at most `most` threads, within a [`LocalSet`].
    ///
    /// # Errors
    /// The system refuses to start a thread.
    pub fn run(&self, most: usize, start: StartTask) -> io::Result<()> {
        let mut threads = locked(&self.0);
        if threads.running.len() < most.max(1) {
            let thread = spawn(threads.running.len())?;
            threads.running.push(thread);
        }
        threads.next = (threads.next + 1) % threads.running.len();
        let sent = threads.running[threads.next].send(start);
        sent.map_err(|_| io::Error::other("a thread that sends records has ended"))
    }
}

fn spawn(number: usize) -> io::Result<UnboundedSender<StartTask>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (sender, mut tasks) = unbounded_channel::<StartTask>();
    std::thread::Builder::new().name(format!("records-{number}")).spawn(move || {
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
