use std::{
    collections::BTreeMap,
    env,
    io::IsTerminal as _,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use clap::Args;

use super::LabError;
use crate::{
    analysis::{
        lint::{LintVerdict, Severity},
        summary::{self, Findings},
    },
    cli::print::out,
    errors::{FileError, ValueError},
    report,
    result::ResultFile,
    run::{self, MachineOptions, RunOptions},
    scenario::{self, BackendKind, NetworkSettings, Scenario, ScenarioError, ScenarioRow},
};

/// Runs a scenario and writes its result.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The name of a scenario (`weir bench list` shows them), or a YAML file
    pub scenario: String,
    /// Runs for a few minutes, with the settings in `quick` of the scenario, instead of the full procedure
    #[arg(long)]
    pub quick: bool,
    /// Only these targets, separated by commas. The first becomes the baseline if the scenario's is not among them
    #[arg(long, value_delimiter = ',')]
    pub targets: Vec<String>,
    /// Only rows whose name contains this text, and the rows that their rates or costs are computed from
    #[arg(long)]
    pub row: Option<String>,
    /// Measures the cost of each plugin of a row: without the plugin, and with this plugin alone
    #[arg(long)]
    pub ablation: bool,
    /// After the repeats, counts user instructions under valgrind. The counts are exact even where times are noisy. With
    /// `--repeats 0`, only instructions are counted
    #[arg(long)]
    pub valgrind: bool,
    /// Samples where targets spend their processor time, by perf; the report has a flame graph of the slowest run of each figure.
    /// The samples cost some time: figures of such a run are for comparisons within it
    #[arg(long)]
    pub flame_graph: bool,
    /// Numbers of clients, ascending, separated by commas
    #[arg(long, value_delimiter = ',')]
    pub connections: Vec<u32>,
    /// Numbers of workers of the targets, separated by commas: everything is measured with each of them
    #[arg(long, value_delimiter = ',')]
    pub workers: Vec<u32>,
    /// The backend behind the targets, instead of the scenario's. It is installed into the cache if necessary
    #[arg(long, value_enum)]
    pub backend: Option<BackendKind>,
    /// Makes a network between clients and targets in which each packet takes this much longer in each direction, such as 10ms. Needs
    /// root, `ip` and `tc`
    #[arg(long, value_name = "TIME")]
    pub delay: Option<String>,
    /// Makes a network between clients and targets in which this share of the packets is lost in each direction, such as 0.1%
    #[arg(long, value_name = "SHARE")]
    pub loss: Option<String>,
    /// The number of repeats
    #[arg(long)]
    pub repeats: Option<u32>,
    /// The measured part of each run, in seconds
    #[arg(long)]
    pub seconds: Option<f64>,
    /// The seed of all random choices, such as the order of targets
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub machines: MachineArguments,
    #[command(flatten)]
    pub common: Common,
}

/// Other machines, each with an agent (`weir bench agent`). What has no machine is on this one.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("on").args(["generators", "gateway", "backend_machine"]).multiple(true))]
pub struct MachineArguments {
    /// The agent that generates load, as HOST:PORT. Given several times, the agents share the clients
    #[arg(long = "generator-on", value_name = "AGENT", requires = "key")]
    pub generators: Vec<String>,
    /// The agent that runs the targets
    #[arg(long = "gateway-on", value_name = "AGENT", requires = "key")]
    pub gateway: Option<String>,
    /// The agent that runs the backends
    #[arg(long = "backend-on", value_name = "AGENT", requires = "key")]
    pub backend_machine: Option<String>,
    /// The file with the secret that the agents were started with
    #[arg(long, value_name = "FILE", requires = "on")]
    pub key: Option<PathBuf>,
}

/// What every command that runs something takes.
#[derive(Debug, Args)]
pub struct Common {
    /// The program of a target or a backend, instead of the installed one; or that of a version, as in weir@old=PATH for the
    /// target weir@old. Can be given several times
    #[arg(long = "program", value_name = "NAME=PATH", value_parser = name_and_path)]
    pub programs: Vec<(String, PathBuf)>,
    /// The directory for the result file and the HTML report
    #[arg(long, value_name = "DIRECTORY", default_value = "bench-results")]
    pub out: PathBuf,
    /// The directory of the installed targets and backends
    #[arg(long, value_name = "DIRECTORY", env = "WEIR_BENCH_CACHE", default_value = ".cache/bench")]
    pub cache: PathBuf,
}

pub(super) fn name_and_path(text: &str) -> Result<(String, PathBuf), ValueError> {
    let pair = text.split_once('=');
    let (name, path) = pair.ok_or_else(|| ValueError::new(text, "NAME=PATH", "nginx=/usr/sbin/nginx"))?;
    Ok((name.to_owned(), PathBuf::from(path)))
}

pub(super) fn run(arguments: Arguments) -> Result<u8, LabError> {
    let scenario = chosen(scenario::read(&arguments.scenario)?, &arguments)?;
    let out = arguments.common.out.clone();
    finish(&run::run(scenario, &options_of(arguments)?)?, &out)
}

/// What the command line says besides the scenario.
pub(super) fn options_of(arguments: Arguments) -> Result<RunOptions, LabError> {
    let MachineArguments { generators, gateway, backend_machine, key } = arguments.machines;
    Ok(RunOptions {
        valgrind: arguments.valgrind,
        flame_graph: arguments.flame_graph,
        machines: MachineOptions { generators, gateway, backend: backend_machine, key },
        ..options(&arguments.common, arguments.quick, arguments.seed)?
    })
}

pub(super) fn options(common: &Common, quick: bool, seed: u64) -> Result<RunOptions, LabError> {
    Ok(RunOptions {
        quick,
        programs: common.programs.iter().cloned().collect::<BTreeMap<_, _>>(),
        cache: common.cache.clone(),
        seed,
        valgrind: false,
        flame_graph: false,
        machines: MachineOptions::default(),
        command: command_line(),
        stop: interrupt()?,
    })
}

/// The command line with only the file name of the program, so that it can be used on another machine.
fn command_line() -> Vec<String> {
    let mut words: Vec<String> = env::args().collect();
    if let Some(program) = words.first_mut()
        && let Some(name) = Path::new(&*program).file_name()
    {
        *program = name.to_string_lossy().into_owned();
    }
    words
}

/// Writes a result and its report, prints the table, and judges.
pub(super) fn finish(result: &ResultFile, out: &Path) -> Result<u8, LabError> {
    std::fs::create_dir_all(out).map_err(FileError::at(out))?;
    let file = out.join(format!("{}.json", result.id));
    result.write(&file)?;
    let findings = summary::findings(result);
    let page = file.with_extension("html");
    std::fs::write(&page, report::html(&findings)).map_err(FileError::at(&page))?;
    show(&findings);
    out!("\nresult  {}\nreport  {}", file.display(), page.display());
    Ok(u8::from(findings.worst() == Some(Severity::Invalid)))
}

/// Prints the table, its summary, and the verdicts.
pub(super) fn show(findings: &Findings<'_>) {
    out!("{}\n", report::headline(findings).as_deref().unwrap_or("Valid: nothing was found that weakens a figure."));
    // Only a terminal has a width.
    let width = if std::io::stdout().is_terminal() { comfy_table::Table::new().width() } else { None };
    if !findings.result.cells.is_empty() {
        out!("{}", report::table(findings, width));
        for line in report::legend(findings) {
            out!("  {line}");
        }
    }
    let left_out = report::left_out(findings);
    if !left_out.is_empty() {
        out!("not in the table:");
    }
    for line in left_out {
        out!("  {line}");
    }
    for line in report::missing_flame_graphs(findings) {
        out!("{line}");
    }
    for table in [report::instruction_counts, report::costs, report::searches, report::knees]
        .iter()
        .filter_map(|table| table(findings))
    {
        out!("{table}");
    }
    out!("processors  {}", report::processors(findings.result));
    let counts = report::counted(findings);
    if !counts.is_empty() {
        out!("findings    {}; the report explains each", counts.join(", "));
    }
}

/// Prints verdicts, grouped by rule.
pub(super) fn say(verdicts: &[LintVerdict]) {
    for group in report::grouped(verdicts) {
        let verdict = group[0];
        let subject = verdict.subject.as_ref().map_or(String::new(), |subject| format!("{subject}: "));
        let more = if group.len() > 1 { format!(" (and {} more like this)", group.len() - 1) } else { String::new() };
        out!("{:>7}  {subject}{}{more}", verdict.severity.word(), verdict.words);
    }
    if verdicts.is_empty() {
        out!("  valid  no finding");
    }
}

/// The scenario with the changes of the command line.
pub(super) fn chosen(scenario: Scenario, arguments: &Arguments) -> Result<Scenario, ScenarioError> {
    let mut scenario = if arguments.quick { scenario.quickened() } else { scenario };
    if !arguments.targets.is_empty() {
        scenario.targets = arguments.targets.clone();
        if !scenario.targets.contains(&scenario.baseline) {
            scenario.baseline = scenario.targets[0].clone();
        }
    }
    if let Some(part) = &arguments.row {
        let names: Vec<String> = scenario.rows.iter().map(|row| row.name.clone()).collect();
        let chosen = |row: &ScenarioRow| row.name.contains(part.as_str());
        let rates = scenario.rows.iter().filter(|row| chosen(row)).filter_map(|row| row.rate_of.as_ref());
        let mut needed: Vec<String> = rates.map(|rate_of| rate_of.row.clone()).collect();
        let compared = scenario.ablations.iter().filter(|one| one.with.contains(part.as_str()));
        needed.extend(compared.map(|one| one.without.clone()));
        scenario.rows.retain(|row| chosen(row) || needed.contains(&row.name));
        if scenario.rows.is_empty() {
            return Err(ScenarioError::NoRow { part: part.clone(), rows: names });
        }
    }
    if !arguments.connections.is_empty() {
        scenario.connections = arguments.connections.clone();
        scenario.rows.iter_mut().for_each(|row| row.connections = None);
    }
    if !arguments.workers.is_empty() {
        scenario.workers = arguments.workers.clone();
    }
    scenario.method.repeats = arguments.repeats.unwrap_or(scenario.method.repeats);
    scenario.method.measured_s = arguments.seconds.unwrap_or(scenario.method.measured_s);
    if arguments.delay.is_some() || arguments.loss.is_some() {
        let NetworkSettings { delay, loss } = scenario.network.unwrap_or_default();
        let (delay, loss) = (arguments.delay.clone().or(delay), arguments.loss.clone().or(loss));
        scenario.network = Some(NetworkSettings { delay, loss });
    }
    if let Some(kind) = arguments.backend {
        scenario = scenario.with_backend(kind)?;
    }
    let scenario = if arguments.ablation { scenario.ablated()? } else { scenario };
    scenario::check_settings(&scenario, arguments.valgrind)?;
    Ok(scenario)
}

/// A flag that the first SIGINT or SIGTERM sets, so that targets are stopped before the lab ends.
pub(super) fn interrupt() -> Result<Arc<AtomicBool>, LabError> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone()).map_err(LabError::Signals)?;
    }
    Ok(stop)
}
