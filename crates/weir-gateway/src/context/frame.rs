//! Tasks: the frames of their futures, and their wakers.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use pin_project_lite::pin_project;
use weir_net::prefetch::MemoryRegion;

pin_project! {
    /// Prefetches the whole frame of a future when it is polled: other tasks have used the processor's caches since the last poll.
    pub struct Frame<F> {
        #[pin]
        future: F,
    }
}

impl<F> Frame<F> {
    pub(crate) fn new(future: F) -> Frame<F> {
        Frame { future }
    }
}

impl<F: Future> Future for Frame<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        MemoryRegion::of(&*self).prefetch();
        self.project().future.poll(context)
    }
}

/// The waker of the task that calls it.
pub(crate) async fn own_waker() -> Waker {
    poll_fn(|context| Poll::Ready(context.waker().clone())).await
}

/// Builds a future directly in its heap memory. `Box::pin` would build it on the stack and copy its whole frame, most of
/// which is unused before the first poll: its memory is allocated after the future exists, and a failed allocation would
/// have to drop the future where it is.
#[inline(always)]
pub(crate) fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<Frame<F>>> {
    let memory = Box::new_uninit();
    Box::into_pin(Box::write(memory, Frame::new(make())))
}
