//! Whether a write would block.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// A write of up to this many bytes to a pipe with room is not divided, and does not block (PIPE_BUF, pipe(7)).
pub const PIPE_PIECE: usize = 4096;

/// Waits until a write would not block: there is room, or an error to report. `false` on a time-out.
///
/// # Errors
/// The descriptor cannot be polled.
pub fn is_there(fd: &impl AsFd, limit: Duration) -> io::Result<bool> {
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(fd, PollFlags::OUT)], Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
