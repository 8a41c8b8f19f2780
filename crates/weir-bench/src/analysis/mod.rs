//! The evaluation of results: pure functions over measurements. Nothing here starts a process or reads a clock.

pub mod compare;
pub mod knee;
pub mod lint;
pub mod recovery;
pub mod search;
pub mod summary;
