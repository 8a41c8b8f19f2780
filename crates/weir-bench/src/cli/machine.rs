use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::{
    doctor,
    engine::Interruptions,
    manifest::{Manifest, Pinning},
    run::{self, counters_available},
    scenario, target,
};

#[derive(Debug, Args)]
pub struct List {
    /// Where installed peers are
    #[arg(long, env = "WEIR_BENCH_CACHE", default_value = ".cache/bench")]
    pub cache: PathBuf,
}

pub fn list(arguments: List) -> Result<u8, String> {
    println!("Scenarios");
    for name in scenario::names() {
        let scenario = scenario::read(&name)?;
        println!("  {name:<16} {} ({} rows, {} targets)", scenario.title, scenario.rows.len(), scenario.targets.len());
    }
    println!("\nTargets");
    for name in target::names() {
        let peer = target::read(&name)?;
        let state = if peer.direct {
            "always there".to_owned()
        } else {
            match target::locate(&peer, None, &arguments.cache) {
                Ok(found) => format!("{}, {}", found.program.display(), found.version.unwrap_or_default()),
                Err(reason) => reason,
            }
        };
        println!("  {name:<16} {state}");
    }
    Ok(0)
}

/// How long each processor is watched.
const WATCH: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub struct Doctor {}

pub fn doctor(_: Doctor) -> Result<u8, String> {
    let mut manifest = Manifest::read(Pinning::default());
    manifest.counters = counters_available();
    let watched = run::usable_cpus(&manifest.cpu).into_iter().map(|cpu| cpu.id);
    let interruptions: Vec<(u32, Interruptions)> =
        watched.map(|cpu| (cpu, Interruptions::watch(Some(cpu as usize), WATCH))).collect();
    let findings = doctor::examine(&manifest, &interruptions);
    for finding in &findings {
        let mark = if finding.advice.is_some() { "!" } else { "✓" };
        println!("{mark} {:<32} {}", finding.what, finding.now);
        if let Some(advice) = &finding.advice {
            println!("    {advice}");
        }
    }
    Ok(0)
}

#[derive(Debug, Args)]
pub struct Install {
    /// Targets, by the names of their folders
    #[arg(required = true)]
    pub targets: Vec<String>,
    /// Where they are put
    #[arg(long, env = "WEIR_BENCH_CACHE", default_value = ".cache/bench")]
    pub cache: PathBuf,
}

pub fn install(arguments: Install) -> Result<u8, String> {
    for name in &arguments.targets {
        let peer = target::read(name)?;
        target::install(&peer, &arguments.cache, |line| println!("{line}"))?;
        if !peer.direct {
            let found = target::locate(&peer, None, &arguments.cache)?;
            println!("{name}: {}, {}", found.program.display(), found.version.unwrap_or_default());
        }
    }
    Ok(0)
}
