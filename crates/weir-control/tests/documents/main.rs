//! Documents: what comes of them, and of changes of them. One binary, since each that links the whole control plane takes seconds to
//! build.

mod compile;
mod diagnostics;
mod explain;
mod include;
mod incremental;
mod panics;
mod plugins;
mod properties;
mod store;
mod values_of_references;
mod watch;
