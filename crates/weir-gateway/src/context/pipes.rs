//! The pipes of a worker, through which the kernel moves the bytes of streams. One is lent only while it holds something.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use weir_net::kernel_pipe::KernelPipe;

/// The most pipes of a worker, in use and spare. Each has [`PIPE_DESCRIPTORS`], and holds up to 1 MiB of a stream. Without one, bytes are
/// copied.
pub const PIPES: usize = 16;
/// The file descriptors of a pipe.
pub const PIPE_DESCRIPTORS: usize = 2;
/// The most spare pipes of a worker: descriptors are for connections.
const SPARE_PIPES: usize = 2;

/// The pipes of a worker.
pub(crate) struct Pipes(Rc<PipeAccount>);

struct PipeAccount {
    most: usize,
    lent: Cell<usize>,
    spare: RefCell<Vec<KernelPipe>>,
    /// One could not be made. None is asked for again: that would cost calls in vain, and copying works.
    has_failed: Cell<bool>,
}

impl Pipes {
    /// `most`: how many there may be, up to [`PIPES`].
    pub(super) fn new(most: usize) -> Pipes {
        let (lent, spare, has_failed) = Default::default();
        Pipes(Rc::new(PipeAccount { most: most.min(PIPES), lent, spare, has_failed }))
    }

    /// Lends an empty pipe, if one is left.
    pub(crate) fn lend(&self) -> Option<LentPipe> {
        let Pipes(account) = self;
        if account.lent.get() == account.most || account.has_failed.get() {
            return None;
        }
        let spare = account.spare.borrow_mut().pop();
        let pipe = spare.or_else(|| KernelPipe::new().ok());
        account.has_failed.set(pipe.is_none());
        pipe.is_some().then(|| {
            account.lent.set(account.lent.get() + 1);
            LentPipe { pipe, account: Rc::clone(account) }
        })
    }

    #[cfg(test)]
    pub(crate) fn spare(&self) -> usize {
        self.0.spare.borrow().len()
    }
}

/// A pipe that is lent. When it is dropped it goes back; what is in it is lost then.
pub(crate) struct LentPipe {
    /// Always there, until it is dropped.
    pipe: Option<KernelPipe>,
    account: Rc<PipeAccount>,
}

const HAS_PIPE: &str = "it has its pipe until it is dropped";

impl Deref for LentPipe {
    type Target = KernelPipe;

    fn deref(&self) -> &KernelPipe {
        self.pipe.as_ref().expect(HAS_PIPE)
    }
}

impl DerefMut for LentPipe {
    fn deref_mut(&mut self) -> &mut KernelPipe {
        self.pipe.as_mut().expect(HAS_PIPE)
    }
}

impl Drop for LentPipe {
    fn drop(&mut self) {
        let account = &self.account;
        account.lent.set(account.lent.get() - 1);
        let mut spare = account.spare.borrow_mut();
        if spare.len() < SPARE_PIPES {
            spare.extend(self.pipe.take().filter(|pipe| pipe.held() == 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_pipes_are_lent_than_there_may_be_and_few_are_kept() {
        for (most, lends) in [(0, 0), (3, 3), (PIPES + 1, PIPES)] {
            let pipes = Pipes::new(most);
            for _ in 0..2 {
                let lent: Vec<LentPipe> = std::iter::from_fn(|| pipes.lend()).take(PIPES + 2).collect();
                assert_eq!(lent.len(), lends, "of {most}");
                drop(lent);
                assert_eq!(pipes.spare(), lends.min(SPARE_PIPES));
            }
        }
    }
}
