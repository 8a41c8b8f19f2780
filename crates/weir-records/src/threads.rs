//! The threads that sinks run on.

use std::io;
use std::sync::Mutex;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;

use crate::lock::locked;

/// Makes a task on the thread it will run on.
pub type StartTask = Box<dyn FnOnce() + Send>;

/// Threads, each with a runtime of its own. Sinks are spread over them in turn.
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
    /// The system gives no thread.
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
        // A disk that does not answer must not keep the process.
        runtime.shutdown_background();
    })?;
    Ok(sender)
}
