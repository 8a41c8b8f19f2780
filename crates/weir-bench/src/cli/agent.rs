//! `weir bench agent`: runs parts of the lab for a commander on another machine.

use std::{
    collections::BTreeMap, env, ffi::OsStr, io::stdin, net::SocketAddrV4, os::unix::process::CommandExt as _,
    path::PathBuf, process::Command, sync::Arc,
};

use clap::Args;

use super::{
    LabError,
    run::{interrupt, name_and_path},
};
use crate::{
    cli::print::out,
    run::agent::{AgentKeeper, AgentKey, AgentServer, AgentSettings, keep},
};

/// Waits for `weir bench run` on another machine, and runs generators, targets and backends for it.
///
/// A program with the key can send load from this machine to any address, and run the listed programs with any configuration, as the
/// user of the agent. A gateway that runs with any configuration can read and write that user's files. When the connection to the commanding program ends, the agent ends everything that it has started.
#[derive(Debug, Args)]
pub struct AgentArguments {
    /// The IPv4 address and port to listen on
    #[arg(long, value_name = "ADDRESS", required_unless_present_any = ["new_key", "keeper"])]
    listen: Option<SocketAddrV4>,
    /// The file with the shared secret: at least 16 characters, and only its owner may read it
    #[arg(long, value_name = "FILE", required_unless_present_any = ["new_key", "keeper"])]
    key: Option<PathBuf>,
    /// Writes a new key file with a random secret, and ends
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "key", "keeper"])]
    new_key: Option<PathBuf>,
    /// A program that may be started, by the name of its target or backend. Can be given several times. Other programs are refused,
    /// Weir as a target included; the lab's own generator and backend need no entry
    #[arg(long = "program", value_name = "NAME=PATH", value_parser = name_and_path)]
    programs: Vec<(String, PathBuf)>,
    /// The directory for files of runs, and of installed programs
    #[arg(long, value_name = "DIRECTORY", env = "WEIR_BENCH_CACHE", default_value = ".cache/bench")]
    cache: PathBuf,
    /// Ends what an agent that was killed has left: the agent starts this itself
    #[arg(long, hide = true)]
    keeper: bool,
}

pub(super) fn agent(arguments: AgentArguments) -> Result<u8, LabError> {
    if arguments.keeper {
        keep(stdin().lock());
        return Ok(0);
    }
    if let Some(path) = &arguments.new_key {
        AgentKey::create(path)?;
        out!("{}: copy it to the other machines; only its owner may read it", path.display());
        return Ok(0);
    }
    let (Some(listen), Some(key)) = (arguments.listen, &arguments.key) else { return Ok(0) };
    let unknown = env::vars_os().any(|(name, _)| !is_kept(&name));
    if unknown {
        return Err(LabError::Agent(without_environment()?));
    }
    let key = AgentKey::read(key)?;
    let stop = interrupt()?;
    let settings = AgentSettings {
        programs: arguments.programs.into_iter().collect::<BTreeMap<_, _>>(),
        cache: arguments.cache,
        only_listed: true,
    };
    let keeper = Arc::new(AgentKeeper::start(keeper_command()?).map_err(LabError::Agent)?);
    let server = AgentServer::bind(listen, &key, settings, Some(keeper), |line| eprintln!("weir bench agent: {line}"))?;
    let address = server.address().map_err(LabError::Agent)?;
    out!("listening on {address}");
    server.run(&stop).map_err(LabError::Agent)?;
    Ok(0)
}

/// The environment variables that an agent keeps. Others may be secrets, and a configuration of a gateway can send them anywhere.
const KEPT_VARIABLES: [&str; 7] = ["PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "WEIR_BENCH_CACHE"];

fn is_kept(name: &OsStr) -> bool {
    KEPT_VARIABLES.iter().any(|kept| name == *kept)
}

/// Replaces this process by itself with the variables that it keeps: so no program that it starts, and no reader of its memory,
/// finds the others. Returns if that fails.
fn without_environment() -> Result<std::io::Error, LabError> {
    let mut command = Command::new(env::current_exe().map_err(LabError::Agent)?);
    command.args(env::args_os().skip(1)).env_clear().envs(env::vars_os().filter(|(name, _)| is_kept(name)));
    Ok(command.exec())
}

/// This program with the words that have led here, as the keeper.
fn keeper_command() -> Result<Command, LabError> {
    let mut command = Command::new(env::current_exe().map_err(LabError::Agent)?);
    for word in env::args().skip(1) {
        let is_last = word == "agent";
        command.arg(word);
        if is_last {
            break;
        }
    }
    command.arg("--keeper");
    Ok(command)
}
