//! Standard error, which may be a pipe whose reader has stopped reading: a write to it waits for a moment, and then the line
//! is lost instead of the gateway.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::room;

/// How long a line waits for the reader. Once one was lost, none waits until there is room again.
const LIMIT: Duration = Duration::from_millis(200);
/// A pipe that has room takes this much without waiting, and in one piece (PIPE_BUF, pipe(7)).
const PIPE_PIECE: usize = 4096;

/// Lines that were lost since the last that was written.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Writes one line, with its line break. A standard error that is closed or full is no reason to stop.
pub fn write_line(line: &[u8]) {
    let lost = LOST.load(Relaxed);
    let limit = if lost == 0 { LIMIT } else { Duration::ZERO };
    if lost > 0 {
        let told = format!("weir: {lost} lines were lost, because standard error was not read\n");
        if !write_pieces(told.as_bytes(), limit) {
            LOST.fetch_add(1, Relaxed);
            return;
        }
        LOST.fetch_sub(lost, Relaxed);
    }
    if !write_pieces(line, limit) {
        LOST.fetch_add(1, Relaxed);
    }
}

/// False where there is no room in time.
fn write_pieces(line: &[u8], limit: Duration) -> bool {
    let mut stderr = io::stderr().lock();
    for piece in line.chunks(PIPE_PIECE) {
        match room::is_there(&stderr, limit) {
            Ok(true) => {
                // Whoever read it has gone.
                let _ = stderr.write_all(piece);
            }
            Ok(false) => return false,
            Err(_) => return true,
        }
    }
    true
}

/// For the error log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StderrLines;

impl Write for StderrLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write_line(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
