//! Writing to standard error, which may be a pipe whose reader has stopped reading: a write waits for a short time, then the
//! line is dropped, so that the gateway never blocks.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::room;

/// How long a line waits for the reader. Once a line was lost, further lines do not wait until there is room again.
const LIMIT: Duration = Duration::from_millis(200);
/// A write of up to this size to a pipe with room does not block and is atomic (PIPE_BUF, pipe(7)).
const PIPE_PIECE: usize = 4096;

/// Lines lost since the last one written.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Writes one line, which includes its line break. Errors are ignored: a closed or full standard error must not stop the
/// gateway.
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

/// `false` if there is no room in time.
fn write_pieces(line: &[u8], limit: Duration) -> bool {
    let mut stderr = io::stderr().lock();
    for piece in line.chunks(PIPE_PIECE) {
        match room::is_there(&stderr, limit) {
            Ok(true) => {
                // An error means that the reader has gone.
                let _ = stderr.write_all(piece);
            }
            Ok(false) => return false,
            Err(_) => return true,
        }
    }
    true
}

/// The writer of the error log.
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
