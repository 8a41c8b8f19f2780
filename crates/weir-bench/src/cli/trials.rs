use clap::Args;
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};

use super::{
    LabError,
    run::{self as run_command, chosen},
};
use crate::{
    analysis::summary,
    cli::print::out,
    errors::FileError,
    result::write_json,
    run::{self, RunOptions},
    scenario,
    trials::TrialsFile,
};

/// Seeds of trials are so far from each other that those of their repeats differ.
const SEED_STEP: u64 = 1_000;

#[derive(Debug, Args)]
pub struct TrialsArguments {
    /// How many times the scenario is measured, each with another seed
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000), conflicts_with_all = ["valgrind", "flame_graph"])]
    pub count: u32,
    #[command(flatten)]
    pub run: run_command::Arguments,
}

/// Measures a scenario many times. After each trial the file has what was found until then.
pub(super) fn trials(arguments: TrialsArguments) -> Result<u8, LabError> {
    let scenario = chosen(scenario::read(&arguments.run.scenario)?, &arguments.run)?;
    let out = arguments.run.common.out.clone();
    std::fs::create_dir_all(&out).map_err(FileError::at(&out))?;
    let options = run_command::options_of(arguments.run)?;
    let mut trials: Option<TrialsFile> = None;
    for number in 0..arguments.count {
        let seed = options.seed.wrapping_add(u64::from(number) * SEED_STEP);
        let result = match (run::run(scenario.clone(), &RunOptions { seed, ..options.clone() }), &mut trials) {
            (Ok(result), _) => result,
            (Err(error), None) => return Err(error.into()),
            (Err(error), Some(trials)) => {
                trials.incomplete = Some(error.to_string());
                break;
            }
        };
        let findings = summary::findings(&result);
        let trials = trials.get_or_insert_with(|| TrialsFile::begin(&result, arguments.count));
        trials.add(&findings);
        write_json(&out.join(format!("{}.json", trials.id)), trials)?;
        if trials.incomplete.is_some() {
            break;
        }
        let words = trials.trials.last().map(|trial| trial.words()).unwrap_or_default();
        eprintln!("weir bench: trial {} of {}: {words}", number + 1, arguments.count);
    }
    let trials = trials.expect("there is at least one trial");
    let file = out.join(format!("{}.json", trials.id));
    write_json(&file, &trials)?;
    let status = show(&trials);
    out!("\nresult  {}", file.display());
    Ok(status)
}

/// Prints how often each target was called different, and what is wrong with that; then the status is 1.
fn show(trials: &TrialsFile) -> u8 {
    let method = &trials.scenario.method;
    let summaries = trials.summaries();
    let mut table = Table::new();
    let ratio = format!("ratio to {}", trials.scenario.baseline);
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["row", "clients", "target", "figure", "different", "of all", ratio.as_str()]);
    for summary in &summaries {
        table.add_row(summary.line(method.confidence));
    }
    out!("{table}");
    let compared: usize = summaries.iter().filter(|one| one.is_equal).map(|one| one.compared()).sum();
    let percent = method.confidence_percent();
    if compared > 0 {
        let expected = compared as f64 * (1.0 - method.confidence);
        out!(
            "  equal: the baseline under another name; chance alone calls {expected:.2} of its {compared} comparisons different \
             at {percent} %"
        );
    }
    out!("  different: of trials with valid figures; ratio: of all trials, the median, the lowest and the highest");
    let problems = trials.problems();
    for problem in &problems {
        out!("  {problem}");
    }
    u8::from(!problems.is_empty())
}
