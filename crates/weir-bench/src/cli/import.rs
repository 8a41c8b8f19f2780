use std::{collections::BTreeMap, fs, path::PathBuf};

use clap::Args;

use super::{LabError, load};
use crate::{
    cli::print::out,
    engine,
    errors::{FileError, ValueError},
    jmx,
};

#[derive(Debug, Args)]
pub struct ImportArguments {
    /// The JMeter test plan (.jmx)
    pub plan: PathBuf,
    /// A property, as with -J of JMeter. Can be given several times
    #[arg(short = 'J', value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub properties: Vec<(String, String)>,
    /// Connects to this address instead of the hosts in the plan
    #[arg(long, value_name = "HOST:PORT")]
    pub connect_to: Option<String>,
    /// Runs the plan at once, instead of printing it for `weir load --plan`
    #[arg(long)]
    pub run: bool,
}

fn name_and_value(text: &str) -> Result<(String, String), ValueError> {
    let pair = text.split_once('=');
    let (name, value) = pair.ok_or_else(|| ValueError::new(text, "NAME=VALUE", "threads=100"))?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(super) fn import(arguments: ImportArguments) -> Result<u8, LabError> {
    let text = fs::read_to_string(&arguments.plan).map_err(FileError::at(&arguments.plan))?;
    let properties: BTreeMap<String, String> = arguments.properties.into_iter().collect();
    let imported = jmx::import(&text, &properties);
    let imported = imported.map_err(|source| LabError::Import { plan: arguments.plan.clone(), source })?;
    for note in &imported.notes {
        eprintln!("note: {note}");
    }
    for (name, mut plan) in imported.groups {
        plan.connect_to = arguments.connect_to.clone();
        if !arguments.run {
            out!("{}", serde_json::to_string_pretty(&plan).expect("a plan has string keys"));
            continue;
        }
        let result = engine::run(&plan, &mut |_| {});
        let result = result.map_err(|source| LabError::Group { name: name.clone(), source })?;
        out!("{name}");
        print!("{}", load::report(&plan, &result));
    }
    Ok(0)
}
