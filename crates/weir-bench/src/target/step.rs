//! The steps of an installation.

use std::{fs, path::Path, process::Command};

use super::CommandError;
use crate::errors::FileError;

/// Runs a command, after telling it; its last words are the error if it fails.
pub(super) fn run(command: &[String], tell: &impl Fn(&str)) -> Result<(), CommandError> {
    let line = command.join(" ");
    tell(&line);
    let output = Command::new(&command[0]).args(&command[1..]).output().map_err(CommandError::start(&line))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    // Maven writes errors to stdout.
    let said = String::from_utf8_lossy(&output.stdout);
    let words = [text.lines().last(), said.lines().find(|line| line.contains("ERROR"))];
    Err(CommandError::ended(&line, &output, words.into_iter().flatten().next().unwrap_or_default()))
}

/// Moves a complete directory to its place, and removes an older one.
pub(super) fn replace(part: &Path, whole: &Path) -> Result<(), FileError> {
    if whole.exists() {
        fs::remove_dir_all(whole).map_err(FileError::at(whole))?;
    }
    fs::rename(part, whole).map_err(FileError::at(whole))
}
