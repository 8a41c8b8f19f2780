use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use clap::Args;
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};

use super::{
    LabError,
    run::{Common, finish, options, say, show},
};
use crate::{
    analysis::{
        compare::{circumstances, differences},
        lint::{self, LintVerdict, Severity},
        summary::{self, Findings},
    },
    cli::print::out,
    errors::FileError,
    export::{self, ExportFormat},
    plot::{Unit, standalone},
    report::{self, ProgramChanges, markdown},
    result::ResultFile,
    run,
    stats::Comparison,
    target::CommandError,
};

#[derive(Debug, Args)]
pub struct CompareArguments {
    /// The first result file
    pub before: PathBuf,
    /// The result file that is compared with the first
    pub after: PathBuf,
}

pub(super) fn compare(arguments: CompareArguments) -> Result<u8, LabError> {
    show_differences(&ResultFile::read(&arguments.before)?, &ResultFile::read(&arguments.after)?)
}

fn show_differences(before: &ResultFile, after: &ResultFile) -> Result<u8, LabError> {
    for note in circumstances(before, after) {
        out!("not the same: {note}");
    }
    for (which, result) in [("first", before), ("second", after)] {
        for subject in invalid(&lint::judge(&lint::evidence_of(result))) {
            out!("invalid in the {which} result: {subject}");
        }
    }
    let differences = differences(before, after);
    if differences.is_empty() {
        return Err(LabError::NothingToCompare);
    }
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(report::COMPARED_HEADER);
    for one in &differences {
        table.add_row(report::compared(one));
    }
    out!("{table}");
    out!("{}", report::compared_legend(before));
    let different = |comparison: Option<Comparison>| comparison.is_some_and(|one| one.different);
    Ok(u8::from(differences.iter().any(|one| different(one.throughput) || different(one.cpu))))
}

/// The figures that are invalid.
fn invalid(verdicts: &[LintVerdict]) -> impl Iterator<Item = &str> {
    let subjects =
        verdicts.iter().filter(|one| one.severity == Severity::Invalid).filter_map(|one| one.subject.as_deref());
    subjects.collect::<BTreeSet<_>>().into_iter()
}

#[derive(Debug, Args)]
pub struct ReportArguments {
    /// Result files of `weir bench run`
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Also writes each plot as an SVG file, into a directory next to the report
    #[arg(long)]
    pub svg: bool,
    /// Also writes each plot as a PNG file; needs Chromium
    #[arg(long)]
    pub png: bool,
}

pub(super) fn report(arguments: ReportArguments) -> Result<u8, LabError> {
    let mut worst = 0;
    for path in &arguments.files {
        let result = ResultFile::read(path)?;
        let findings = summary::findings(&result);
        let page = path.with_extension("html");
        write(&page, &report::html(&findings))?;
        if arguments.svg || arguments.png {
            let directory = path.with_extension("figures");
            fs::create_dir_all(&directory).map_err(FileError::at(&directory))?;
            for figure in report::figures(&findings) {
                let svg = directory.join(format!("{}.svg", figure.name));
                write(&svg, &figure.svg)?;
                if arguments.png {
                    rasterise(&svg, &figure.svg)?;
                }
            }
        }
        show(&findings);
        out!("\nreport  {}", page.display());
        worst = worst.max(u8::from(findings.worst() == Some(Severity::Invalid)));
    }
    Ok(worst)
}

#[derive(Debug, Args)]
pub struct PageArguments {
    /// Result files of `weir bench run`
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Writes the page of plugin costs, from results of the scenario `policies` or with `--ablation`
    #[arg(long)]
    pub prices: bool,
    /// Writes a page with its figures for each result into this folder, and an index of them, README.md
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["prices", "to"])]
    pub folder: Option<PathBuf>,
    /// A file with the times of changes of the measured program, such as `git log --format=%aI`, one a line: pages say how many of them
    /// are younger than a result
    #[arg(long, value_name = "FILE", requires = "folder")]
    pub changes: Option<PathBuf>,
    /// Writes the page to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
}

/// Generates a Markdown page from stored results.
pub(super) fn page(arguments: PageArguments) -> Result<u8, LabError> {
    let head = if arguments.prices { markdown::PRICES_HEAD } else { markdown::RESULTS_HEAD };
    let mut page = head.to_owned();
    if arguments.folder.is_some() {
        page.push_str(markdown::INDEX_TABLE);
    }
    let changes = arguments.changes.as_deref().map(read_changes).transpose()?.unwrap_or_default();
    let results = arguments.files.iter().map(|path| ResultFile::read(path)).collect::<Result<Vec<_>, _>>()?;
    let findings: Vec<Findings<'_>> = results.iter().map(summary::findings).collect();
    if arguments.prices {
        page.push_str(&markdown::prices(&findings));
    }
    // A run that only counted instructions has no figures of its own: they are on the page of prices.
    let mut pages = Vec::new();
    for one in findings.iter().filter(|one| !arguments.prices && !one.result.cells.is_empty()) {
        let Some(folder) = &arguments.folder else {
            page.push_str(&markdown::results(one));
            continue;
        };
        let name = result_page(one, folder, &changes)?;
        page.push_str(&markdown::index_row(one, &name));
        pages.push((one.result, name));
    }
    page.push_str(&changes.index_line(pages.iter().map(|(result, name)| (*result, name.as_str()))));
    match (&arguments.folder, &arguments.to) {
        (Some(folder), _) => write(&folder.join("README.md"), &page)?,
        (None, Some(path)) => write(path, &page)?,
        (None, None) => out!("{}", page.trim_end()),
    }
    Ok(0)
}

fn read_changes(path: &Path) -> Result<ProgramChanges, LabError> {
    let text = fs::read_to_string(path).map_err(FileError::at(path))?;
    ProgramChanges::read(&text).map_err(|source| LabError::Changes { path: path.to_owned(), source })
}

/// Writes the page of a result and its figures into a folder. Returns the name of the page.
fn result_page(findings: &Findings<'_>, folder: &Path, changes: &ProgramChanges) -> Result<String, FileError> {
    fs::create_dir_all(folder).map_err(FileError::at(folder))?;
    let scenario = &findings.result.scenario.name;
    let mut pictures = Vec::new();
    for figure in report::essential(findings) {
        let file = format!("{scenario}-{}.svg", figure.name);
        write(&folder.join(&file), &format!("{}\n", standalone(&figure.svg)))?;
        let shows = figure.name.replace('-', " ");
        pictures.push((shows, file));
    }
    let page = format!("{scenario}.md");
    write(&folder.join(&page), &markdown::result_page(findings, &pictures, changes))?;
    Ok(page)
}

/// The program that draws PNG files.
const BROWSER: &str = "chromium";

/// Renders an SVG file as a PNG beside it, at twice its size.
fn rasterise(svg: &Path, text: &str) -> Result<(), LabError> {
    let size = |name: &str| {
        let start = text.find(&format!(" {name}=\""))? + name.len() + 3;
        text[start..].split('"').next()?.parse::<u32>().ok()
    };
    let (width, height) = (size("width").unwrap_or(720), size("height").unwrap_or(400));
    let path = svg.canonicalize().map_err(FileError::at(svg))?;
    let profile = svg.with_extension("profile");
    let output = Command::new(BROWSER)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"])
        .args(["--disable-background-networking", "--disable-component-update", "--hide-scrollbars"])
        .args(["--force-device-scale-factor=2", &format!("--window-size={width},{height}")])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("--screenshot={}", path.with_extension("png").display()))
        .arg(format!("file://{}", path.display()))
        .output();
    // The browser's profile is not needed any more.
    let _ = fs::remove_dir_all(&profile);
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(LabError::Browser(CommandError::ended(BROWSER, &output, ""))),
        Err(error) => Err(LabError::Browser(CommandError::start(BROWSER)(error))),
    }
}

#[derive(Debug, Args)]
pub struct ReplayArguments {
    /// The result file
    pub file: PathBuf,
    #[command(flatten)]
    pub common: Common,
}

pub(super) fn replay(arguments: ReplayArguments) -> Result<u8, LabError> {
    let before = ResultFile::read(&arguments.file)?;
    let options = options(&arguments.common, before.quick, before.seed)?;
    let after = run::run(before.scenario.clone(), &options)?;
    let judged = finish(&after, &arguments.common.out)?;
    out!("");
    let differs = show_differences(&before, &after)?;
    Ok(judged.max(differs))
}

#[derive(Debug, Args)]
pub struct ExportArguments {
    /// The result file
    pub file: PathBuf,
    /// The format. All formats but OpenMetrics hold one cell: choose it with the other options
    #[arg(long, value_enum)]
    pub format: ExportFormat,
    /// Only rows whose name contains this text
    #[arg(long)]
    pub row: Option<String>,
    /// Only this target
    #[arg(long)]
    pub target: Option<String>,
    /// Only this number of clients
    #[arg(long)]
    pub connections: Option<u32>,
}

pub(super) fn export(arguments: ExportArguments) -> Result<u8, LabError> {
    let result = ResultFile::read(&arguments.file)?;
    let cells: Vec<_> = result
        .cells
        .iter()
        .filter(|cell| !cell.runs().is_empty())
        .filter(|cell| arguments.row.as_ref().is_none_or(|part| cell.row.contains(part.as_str())))
        .filter(|cell| arguments.target.as_ref().is_none_or(|target| cell.target == *target))
        .filter(|cell| arguments.connections.is_none_or(|connections| cell.level.connections == connections))
        .collect();
    let Some(cell) = cells.first() else {
        return Err(LabError::NoCell);
    };
    if cells.len() > 1 && arguments.format.is_of_one_cell() {
        let names: Vec<String> =
            cells.iter().map(|one| format!("{} · {} · {}", one.row, one.target, one.level.connections)).collect();
        return Err(LabError::SeveralCells(names));
    }
    print!("{}", export::export(&result, cell, arguments.format)?);
    Ok(0)
}

#[derive(Debug, Args)]
pub struct JudgeArguments {
    /// The statements and figures of the publication, as YAML or JSON; `bench/publications` has examples
    pub file: PathBuf,
}

pub(super) fn judge(arguments: JudgeArguments) -> Result<u8, LabError> {
    let place = arguments.file.display().to_string();
    let text = fs::read_to_string(&arguments.file).map_err(FileError::at(&arguments.file))?;
    let evidence = lint::read(&place, &text)?;
    if !evidence.title.is_empty() {
        out!("{}", evidence.title);
    }
    let verdicts = lint::judge(&evidence);
    say(&verdicts);
    Ok(u8::from(lint::worst(&verdicts) == Some(Severity::Invalid)))
}

#[derive(Debug, Args)]
pub struct CapacityArguments {
    /// A result file with at least three worker counts (`--workers 1,2,4`)
    pub file: PathBuf,
    /// The required requests per second
    #[arg(long)]
    pub rate: f64,
}

pub(super) fn capacity(arguments: CapacityArguments) -> Result<u8, LabError> {
    let result = ResultFile::read(&arguments.file)?;
    let findings = summary::findings(&result);
    if findings.scaling.is_empty() {
        return Err(LabError::TooFewWorkerCounts);
    }
    for one in &findings.scaling {
        let begin = format!("{}: {}, ", one.target, one.row);
        for subject in invalid(&findings.verdicts).filter(|subject| subject.starts_with(&begin)) {
            out!("invalid: {subject}");
        }
        let answer = match one.fit.units_for(arguments.rate) {
            Some(units) => format!("{units} workers"),
            None => "no number of workers on one machine".to_owned(),
        };
        out!(
            "{} · {}: {answer} for {}/s (one carries {}/s, contention {:.4}, coherency {:.6}, fit error {:.1} %)",
            one.row,
            one.target,
            Unit::Count.label(arguments.rate),
            Unit::Count.label(one.fit.rate),
            one.fit.contention,
            one.fit.coherency,
            one.fit.error * 100.0
        );
    }
    Ok(0)
}

fn write(path: &Path, text: &str) -> Result<(), FileError> {
    fs::write(path, text).map_err(FileError::at(path))
}
