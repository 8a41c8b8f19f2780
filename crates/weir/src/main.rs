//! The `weir` command, which connects all crates; the functions of the gateway are in these crates.

#![deny(unsafe_code)]

mod command;
mod exit;
mod node;
mod say;

use std::process::ExitCode;

/// Workers allocate little, and an allocation must not wait for other threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    weir_telemetry::process::started();
    command::execute()
}
