//! Reads logs in a thread of its own, ahead of what is sent by a bounded number of lines.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread;

use tokio::sync::mpsc;
use weir_rehearsal::log::{self, LogLine};

use crate::command::recorded_requests::open;

/// The lines that are read ahead. Each has at most [`log::MAX_LINE_BYTES`].
const LINES_AHEAD: usize = 64;

pub(super) struct LinesAhead {
    pub(super) lines: mpsc::Receiver<(u64, LogLine)>,
    /// Why a log could not be read to its end. It is set before `lines` ends.
    pub(super) fault: Arc<OnceLock<String>>,
}

impl LinesAhead {
    /// # Errors
    /// A log cannot be opened, or there is no thread.
    pub(super) fn read(files: &[PathBuf]) -> Result<LinesAhead, String> {
        let unreadable = |file: &PathBuf, error| format!("{} cannot be read: {error}", file.display());
        let opened = files
            .iter()
            .map(|file| open(file).map(|input| (file.clone(), input)).map_err(|error| unreadable(file, error)));
        let logs = opened.collect::<Result<Vec<_>, String>>()?;
        let (sender, lines) = mpsc::channel(LINES_AHEAD);
        let fault = Arc::new(OnceLock::new());
        let told = Arc::clone(&fault);
        let reading = move || {
            for (file, input) in logs {
                let read = log::read(input, |number, line| match sender.blocking_send((number, line)) {
                    Ok(()) => ControlFlow::Continue(()),
                    // The rehearsal has ended.
                    Err(_) => ControlFlow::Break(()),
                });
                if let Err(error) = read {
                    let _ = told.set(unreadable(&file, error));
                    return;
                }
            }
        };
        let started = thread::Builder::new().name("log".to_owned()).spawn(reading);
        started.map_err(|error| format!("the thread that reads the log cannot be started: {error}"))?;
        Ok(LinesAhead { lines, fault })
    }
}
