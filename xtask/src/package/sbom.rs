//! The crates that the binary is made of, as a CycloneDX 1.5 document.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use super::VERSION;
use crate::{Problems, cargo, output};

/// Every crate that the binary is built of, with its licence.
pub(super) fn page(epoch: &str) -> Result<String, Problems> {
    let arguments = ["tree", "--package", "weir", "--offline", "--edges", "normal,build", "--prefix", "none"];
    let tree = output(cargo().args(arguments).args(["--format", "{p}\t{l}\t{r}"]))?;
    let components: BTreeSet<&str> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    let components: Vec<Value> = components.into_iter().filter_map(component).collect();
    let date = output(Command::new("date").args(["--utc", "--iso-8601=seconds", "--date"]).arg(format!("@{epoch}")))?;
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": date.trim().replace("+00:00", "Z"),
            "component": { "type": "application", "name": "weir", "version": VERSION },
        },
        "components": components,
    });
    Ok(format!("{document:#}\n"))
}

/// `name v1.2.3 (more)`, its licence and its repository, apart by tabs.
fn component(line: &str) -> Option<Value> {
    let mut cells = line.split('\t');
    let mut package = cells.next()?.split(' ');
    let (name, version) = (package.next()?, package.next()?.trim_start_matches('v'));
    let licence = cells.next().unwrap_or_default();
    let mut component = json!({ "type": "library", "name": name, "version": version });
    if !licence.is_empty() {
        // `/` is how `OR` was written once.
        component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
    }
    if !name.starts_with("weir") {
        component["purl"] = json!(format!("pkg:cargo/{name}@{version}"));
    }
    Some(component)
}
