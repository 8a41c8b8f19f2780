use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Weir;
use crate::exit;

/// Prints a script that completes this command in a shell.
///
/// For bash: `weir completions bash > ~/.local/share/bash-completion/completions/weir`. The packages install the scripts for
/// bash, zsh and fish.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn execute(self) -> ExitCode {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Weir::command(), "weir", &mut script);
        // A closed pipe is not a failure.
        let _ = io::stdout().write_all(&script);
        exit::DONE
    }
}
