//! The parsers of this crate that the targets in `fuzz/` exercise.

pub use crate::signature::fuzzing::{private_key_signs, public_key_again, signature_again};
pub use crate::stacks::{DEEPEST_STACK, FoldedStacks, MOST_BYTES as MOST_BYTES_OF_STACKS, OTHERS as OTHER_STACKS};
