//! Heap allocation of large futures.

use std::pin::Pin;

/// Builds a future directly in its heap memory. `Box::pin` would build it on the stack and copy its whole frame, most of
/// which is unused before the first poll: its memory is allocated after the future exists, and a failed allocation would
/// have to drop the future where it is.
#[inline(always)]
pub fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let memory = Box::new_uninit();
    Box::into_pin(Box::write(memory, make()))
}
