//! The frames of futures on the heap.

use std::pin::Pin;

/// Makes a future in the memory where it stays. `Box::pin` would make it on the stack and copy its whole frame, most of which
/// is empty before the first poll: there the memory is asked for when the future exists already, and if that failed the
/// future would have to be dropped where it is.
#[inline(always)]
pub fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let memory = Box::new_uninit();
    Box::into_pin(Box::write(memory, make()))
}
