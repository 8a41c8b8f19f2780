//! Whether a gateway can be operated: reloaded, drained, upgraded, run out of descriptors and asked what it does, while
//! nothing its clients have begun goes wrong. The numbers (F13, F15, P14 …) name a fault or an attack and stay with it.

mod acme;
mod agents;
mod command;
mod convert;
mod converted;
mod definitions;
mod descriptors;
mod failures;
mod gateway_api;
mod ingress;
mod listener_hosts;
mod listeners;
mod load;
mod load_steps;
mod logs;
mod mistakes;
mod pages;
mod quotas;
mod recipes;
mod rehearsal;
mod reload;
mod spiffe;
mod stalls;
mod systemd;
mod tail;
mod top;
mod upgrade;

use std::path::PathBuf;
use std::process::Command;

use weir_testkit::{Gateway, Launcher, TempDir};

/// The gateway under test.
fn weir() -> Launcher {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir"))
}

/// Writes a program. Another process does that, because a file that is open for writing cannot be started, and what is
/// open here is for a moment also open in whatever other tests start meanwhile.
fn script(place: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = place.join(name);
    let write = "printf %s \"$0\" > \"$1\" && chmod 755 \"$1\"";
    let status = Command::new("sh").args(["-c", write, text]).arg(&path).status();
    assert!(status.is_ok_and(|status| status.success()), "{} cannot be written", path.display());
    path
}
