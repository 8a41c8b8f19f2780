//! Pipes through which bytes move from one socket to another within the kernel (splice(2)).

use std::io;
use std::os::fd::OwnedFd;

use rustix::fd::AsFd;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

/// The most bytes that a pipe holds. The kernel counts them in pages, and one of a segment takes a whole one.
pub const PIPE_BYTES: usize = 1024 * 1024;

/// A pipe, and how many bytes are in it.
#[derive(Debug)]
pub struct KernelPipe {
    read: OwnedFd,
    write: OwnedFd,
    held: usize,
}

impl KernelPipe {
    /// # Errors
    /// No file descriptor is left, or the user may not have more memory in pipes.
    pub fn new() -> io::Result<KernelPipe> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A user with many pipes gets no more of this size: in smaller ones, bytes move no faster than by copying.
        fcntl_setpipe_size(&write, PIPE_BYTES)?;
        Ok(KernelPipe { read, write, held: 0 })
    }

    /// The bytes that have come in and not left.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Moves bytes from a socket into the empty pipe.
    pub(crate) fn fill(&mut self, from: impl AsFd) -> rustix::io::Result<usize> {
        debug_assert_eq!(self.held, 0, "of a pipe that holds something it is not known what `EAGAIN` is about");
        let count = splice(from, None, &self.write, None, PIPE_BYTES, SpliceFlags::NONBLOCK)?;
        self.held = count;
        Ok(count)
    }

    /// Moves bytes from the pipe to a socket.
    pub(crate) fn drain(&mut self, to: impl AsFd) -> rustix::io::Result<usize> {
        let count = splice(&self.read, None, to, None, self.held, SpliceFlags::NONBLOCK)?;
        self.held -= count;
        Ok(count)
    }
}
