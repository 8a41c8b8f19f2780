mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use clap::{Args, ValueEnum};
use weir_control::Diagnostic;

use crate::exit::{self, ExitFailure};
use crate::node::{PLUGINS, controller};
use crate::say::say;
use report::{CheckFinding, CheckSeverity, CheckedFile};
use weir_telemetry::stderr;

/// Checks configuration files and prints every error and warning.
///
/// With `--format text`, the findings go to standard error, one per line, each with file, line and column; the other formats
/// go to standard output. Host names are not looked up.
#[derive(Debug, Args)]
pub(crate) struct CheckCommand {
    /// Configuration files; `-` is standard input, and a directory means every .yaml, .yml and .json file in it and below, without names that begin with a dot.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The output format.
    #[arg(long, value_enum, default_value_t = CheckFormat::Text)]
    format: CheckFormat,
    /// Exits with 1 also if there are only warnings.
    #[arg(long)]
    deny_warnings: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CheckFormat {
    /// Plain text, one finding per line.
    Text,
    /// One JSON object: `files` and `findings`.
    Json,
    /// Annotations of GitHub Actions.
    Github,
    /// SARIF 2.1.0, for code scanning.
    Sarif,
}

impl CheckCommand {
    pub(crate) fn of(file: PathBuf) -> Self {
        Self { files: vec![file], format: CheckFormat::Text, deny_warnings: false }
    }

    pub(crate) fn execute(self) -> ExitCode {
        let mut files = Vec::new();
        for path in &self.files {
            if let Err(error) = add_files(path, &mut files) {
                say!("{}: cannot be read: {error}", path.display());
                return ExitFailure::Configuration.into();
            }
        }
        if files.is_empty() {
            say!("no file to check: the directories contain no .yaml, .yml or .json file");
            return ExitFailure::Configuration.into();
        }
        let checked: Vec<CheckedFile> = files.iter().map(|file| check(file)).collect();
        match self.format {
            CheckFormat::Text => say_lines(&checked, self.deny_warnings),
            CheckFormat::Json => print(&report::json(&checked)),
            CheckFormat::Github => print(&report::github(&checked)),
            CheckFormat::Sarif => print(&report::sarif(&checked)),
        }
        let is_refused = |file: &CheckedFile| !file.is_valid || self.deny_warnings && !file.findings.is_empty();
        if checked.iter().any(is_refused) { ExitFailure::Configuration.into() } else { exit::DONE }
    }
}

/// Adds the file itself, or the files in a directory and below it, in the order of their names.
pub(super) fn add_files(path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let mut entries = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    entries.sort();
    // As for `include`. What Kubernetes mounts has each file twice, once below such a name.
    let is_hidden = |entry: &PathBuf| entry.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    for entry in entries.into_iter().filter(|entry| !is_hidden(entry)) {
        let is_configuration =
            entry.extension().is_some_and(|name| ["yaml", "yml", "json"].iter().any(|own| name == *own));
        if is_configuration || entry.is_dir() {
            add_files(&entry, files)?;
        }
    }
    Ok(())
}

fn check(file: &Path) -> CheckedFile {
    let (name, outcome) = if file == Path::new("-") {
        ("standard input".to_owned(), weir_control::check_standard_input(&PLUGINS))
    } else {
        (file.display().to_string(), weir_control::check_file(file, &PLUGINS))
    };
    let of_files = of_controller(file);
    let (is_valid, severity, diagnostics) = match outcome {
        Ok(_) if !of_files.is_empty() => (false, CheckSeverity::Error, of_files),
        Ok(warnings) => (true, CheckSeverity::Warning, warnings),
        Err(faults) => (false, CheckSeverity::Error, faults),
    };
    let findings = diagnostics.into_iter().map(|diagnostic| CheckFinding { severity, diagnostic }).collect();
    CheckedFile { name, is_valid, findings }
}

/// What is wrong with the files of a controller, if the file is that of one.
fn of_controller(file: &Path) -> Vec<Diagnostic> {
    if file == Path::new("-") { Vec::new() } else { controller::faults_of_files(file) }
}

fn say_lines(checked: &[CheckedFile], deny_warnings: bool) {
    for CheckedFile { name, is_valid, findings } in checked {
        for CheckFinding { severity, diagnostic } in findings {
            match severity {
                CheckSeverity::Warning => say!("warning: {diagnostic}"),
                // Without the name of the program: editors and CI find `FILE:LINE:COLUMN` at the beginning of a line.
                CheckSeverity::Error => stderr::write_line(format!("{diagnostic}\n").as_bytes()),
            }
        }
        let count = findings.len();
        let counted = |what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        match is_valid {
            true if deny_warnings && count > 0 => {
                say!("{name} is valid, but --deny-warnings rejects {}", counted("warning"));
            }
            true => say!("{name} is valid"),
            false => say!("{name} is not valid: {}", counted("fault")),
        }
    }
}

/// Writes to standard output. A closed pipe is not a failure.
fn print(text: &str) {
    let _ = io::Write::write_all(&mut io::stdout(), text.as_bytes());
}
