//! Where configurations come from. A store brings along whatever takes I/O, so that compiling needs none.

mod beside;
pub mod file;
mod names;
mod secrets;
mod seen;
mod trusted;
