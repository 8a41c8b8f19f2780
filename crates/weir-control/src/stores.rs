//! Where configurations come from. A store brings along whatever takes I/O, so that compiling needs none.

pub mod file;
mod names;
