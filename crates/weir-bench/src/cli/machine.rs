use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::LabError;
use crate::{
    cli::print::out,
    doctor,
    engine::{FanOutFloor, Interruptions, allow_files},
    manifest::{Manifest, Pinning},
    run::{self, counters_available},
    scenario,
    target::{self, PeerDefinition},
};

#[derive(Debug, Args)]
pub struct ListArguments {
    /// The directory of the installed targets and backends
    #[arg(long, value_name = "DIRECTORY", env = "WEIR_BENCH_CACHE", default_value = ".cache/bench")]
    pub cache: PathBuf,
}

pub(super) fn list(arguments: ListArguments) -> Result<u8, LabError> {
    out!("Scenarios");
    for name in scenario::names() {
        let scenario = scenario::read(&name)?;
        out!("  {name:<16} {} ({} rows, {} targets)", scenario.title, scenario.rows.len(), scenario.targets.len());
    }
    out!("\nTargets");
    for name in target::names() {
        show(&target::read(&name)?, &arguments.cache);
    }
    out!("\nBackends");
    out!("  {:<16} always available", "builtin");
    for name in target::backend_names() {
        show(&target::read_backend(&name, &arguments.cache)?, &arguments.cache);
    }
    Ok(0)
}

/// Prints one peer: where it is installed, or how to install it.
fn show(peer: &PeerDefinition, cache: &Path) {
    let state = if peer.direct {
        "always available".to_owned()
    } else {
        match target::locate(peer, None, cache) {
            Ok(found) => format!("{}, {}", found.program.display(), found.version.unwrap_or_default()),
            Err(error) => error.to_string(),
        }
    };
    out!("  {:<16} {state}", peer.name);
}

/// How long each processor is observed.
const WATCH: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub struct DoctorArguments {}

pub(super) fn doctor(_: DoctorArguments) -> Result<u8, LabError> {
    let mut manifest = Manifest::read(Pinning::default());
    manifest.counters = counters_available();
    let watched = run::usable_cpus(&manifest.cpu).into_iter().map(|cpu| cpu.id);
    let interruptions: Vec<(u32, Interruptions)> =
        watched.map(|cpu| (cpu, Interruptions::watch(Some(cpu as usize), WATCH))).collect();
    let findings = doctor::examine(&manifest, &interruptions, fan_out_floor(&interruptions));
    for finding in &findings {
        let mark = if finding.advice.is_some() { "!" } else { "✓" };
        out!("{mark} {:<32} {}", finding.what, finding.now);
        if let Some(advice) = &finding.advice {
            out!("    {advice}");
        }
    }
    Ok(0)
}

/// Clients of the fan-out whose floor is measured.
const FAN_OUT_CLIENTS: usize = 5_000;
/// Open files that the program needs for other things.
const OTHER_FILES: u64 = 100;

/// The floor of a fan-out from the first processor to clients on the last one. `None` if the connections cannot be opened.
fn fan_out_floor(processors: &[(u32, Interruptions)]) -> Option<FanOutFloor> {
    let (sender, reader) = (processors.first()?.0, processors.last()?.0);
    allow_files(2 * FAN_OUT_CLIENTS as u64 + OTHER_FILES).ok()?;
    FanOutFloor::measure(FAN_OUT_CLIENTS, sender as usize, reader as usize).ok()
}

#[derive(Debug, Args)]
pub struct InstallArguments {
    /// Targets and backends, by the names of their folders in `bench/peers` and `bench/backends`
    #[arg(required = true)]
    pub targets: Vec<String>,
    /// The directory to install into
    #[arg(long, value_name = "DIRECTORY", env = "WEIR_BENCH_CACHE", default_value = ".cache/bench")]
    pub cache: PathBuf,
}

pub(super) fn install(arguments: InstallArguments) -> Result<u8, LabError> {
    for name in &arguments.targets {
        let peer = match target::read(name) {
            Ok(peer) => peer,
            Err(_) if target::backend_names().contains(name) => target::read_backend(name, &arguments.cache)?,
            Err(peer) => return Err(LabError::NothingToInstall { peer, backends: target::backend_names() }),
        };
        target::install(&peer, &arguments.cache, |line| out!("{line}"))?;
        if !peer.direct {
            let found = target::locate(&peer, None, &arguments.cache)?;
            out!("{name}: {}, {}", found.program.display(), found.version.unwrap_or_default());
        }
    }
    Ok(0)
}
