//! The files under version control.

use std::fs;
use std::process::Command;

use crate::{Problems, output};

/// Every file under version control.
pub(crate) fn tracked() -> Result<Vec<String>, Problems> {
    let list = output(Command::new("git").args(["ls-files", "-z"]))?;
    Ok(list.split_terminator('\0').map(str::to_owned).collect())
}

/// The text of one of them.
pub(crate) fn read(path: &str) -> Result<String, Problems> {
    fs::read_to_string(path).map_err(|error| vec![format!("{path}: {error}")])
}
