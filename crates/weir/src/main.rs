//! `weir`, the command. Here every crate meets every other; what the gateway does stands in the crates themselves.

mod command;
mod exit;
mod node;
mod say;

use std::process::ExitCode;

use clap::Parser;

/// Workers allocate little, but what they do allocate must not wait for other threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    weir_telemetry::process::started();
    command::Weir::parse().execute()
}
