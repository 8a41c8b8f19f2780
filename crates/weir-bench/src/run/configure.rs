//! Writes the files of a target and has them checked by the target's own program.

use std::{collections::BTreeMap, path::Path, process::Command};

use super::{
    SetupError,
    not_started::{StartFailure, StartFailureKind},
    place::{RunDirectory, write},
};
use crate::{
    result::{Configuration, ConfigurationCheck},
    target::{self, CommandError, Inputs, Installed, PeerDefinition},
};

/// Writes the files of a target and runs its checker, where it has one; the result records both. `started` is called with the
/// process of the checker.
pub(super) fn configure(
    place: &RunDirectory,
    (peer, installed): (&PeerDefinition, &Installed),
    inputs: &Inputs,
    dir: &Path,
    (row, started): (&str, &dyn Fn(u32)),
) -> Result<Configuration, Box<StartFailure>> {
    let workers = inputs.workers;
    let rendered = target::render(peer, inputs).map_err(SetupError::from)?;
    for (name, text) in &rendered {
        write(&dir.join(name), text).map_err(SetupError::from)?;
    }
    // The published result must not contain this machine's paths.
    let name = installed.program.file_name().unwrap_or_default().to_string_lossy();
    let recorded = |words: &[String]| peer.command(words, &name, ".", workers);
    let without_place = |text: String| {
        let text = text.replace(&inputs.dir, ".");
        // An empty name would be found between all characters.
        let is_installed = !inputs.installed.is_empty();
        place.redacted(&if is_installed { text.replace(&inputs.installed, "{installed}") } else { text })
    };
    let files = rendered.into_iter().map(|(name, text)| (name, without_place(text))).collect();
    let mut configuration = Configuration {
        row: row.to_owned(),
        sha256: target::hash(&files),
        files: files.into_iter().map(|(name, text)| (name, recorded_text(text))).collect(),
        command: recorded(&peer.start),
        check: None,
    };
    if peer.check.is_empty() {
        return Ok(configuration);
    }
    let command = peer.command(&peer.check, &installed.program.display().to_string(), &inputs.dir, workers);
    let ConfigurationCheck { passed, output, .. } =
        check(&command, &peer.environment(&inputs.dir, workers), dir, started).map_err(SetupError::Check)?;
    let output = place.redacted(&output);
    configuration.check = Some(ConfigurationCheck { command: recorded(&peer.check), passed, output: output.clone() });
    if passed {
        return Ok(configuration);
    }
    let unsupported = matches!(peer.policies, target::Policies::Word(_));
    let output = output.trim_start_matches(&format!("{}: ", peer.name));
    Err(Box::new(StartFailure {
        kind: if unsupported { StartFailureKind::Unsupported } else { StartFailureKind::Failed },
        reason: format!("not supported by {}: {output}", peer.name),
        configuration: Some(configuration),
    }))
}

/// Bytes; of a longer configuration, a result keeps only the length and the hash.
const LONGEST_CONFIGURATION: usize = 1 << 20;

fn recorded_text(text: String) -> String {
    match text.len() <= LONGEST_CONFIGURATION {
        true => text,
        false => format!("{} bytes, too long to be stored here; the template shows the content\n", text.len()),
    }
}

fn check(
    command: &[String],
    environment: &BTreeMap<String, String>,
    dir: &Path,
    started: &dyn Fn(u32),
) -> Result<ConfigurationCheck, CommandError> {
    let mut checker = Command::new(&command[0]);
    checker.args(&command[1..]).envs(environment).current_dir(dir);
    let output =
        target::output_within(checker, target::COMMAND_LIMIT, started).map_err(CommandError::start(&command[0]))?;
    let text = [output.stdout, output.stderr].concat();
    // The directory in which the lab put the file does not belong in the result.
    let output_text = String::from_utf8_lossy(&text).trim().replace(&format!("{}/", dir.display()), "");
    Ok(ConfigurationCheck { command: command.to_vec(), passed: output.status.success(), output: output_text })
}
