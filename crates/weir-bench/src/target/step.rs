//! The steps of an installation: commands, and files.

use std::path::Path;
use std::process::Command;

/// Runs a command, after telling it; its last words are the error if it fails.
pub fn run(command: &[String], tell: &impl Fn(&str)) -> Result<(), String> {
    let line = command.join(" ");
    tell(&line);
    let output = Command::new(&command[0]).args(&command[1..]).output().map_err(|error| format!("{line}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    // Maven writes errors to stdout.
    let said = String::from_utf8_lossy(&output.stdout);
    let words = [text.lines().last(), said.lines().find(|line| line.contains("ERROR"))];
    Err(format!("{line}: {}: {}", output.status, words.into_iter().flatten().next().unwrap_or_default()))
}

/// An error with the path that it is about.
pub fn named(path: &Path, error: std::io::Error) -> String {
    format!("{}: {error}", path.display())
}
