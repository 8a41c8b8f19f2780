//! Pages under docs/reference that follow from the program: they are written from it, and compared with it in CI.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use weir_plugin::Stage;
use weir_plugin::definition::Entry;

use crate::{Problems, binary, cargo, output, step};

const FOLDER: &str = "docs/reference";

/// Writes every page.
pub fn write() -> Result<(), Problems> {
    fs::create_dir_all(FOLDER).map_err(|error| vec![format!("{FOLDER}: {error}")])?;
    for (name, text) in pages()? {
        let path = Path::new(FOLDER).join(name);
        fs::write(&path, text).map_err(|error| vec![format!("{}: {error}", path.display())])?;
    }
    Ok(())
}

/// Says which page is not what it would be if it were written now.
pub fn compare() -> Result<(), Problems> {
    let stale = |(name, text): (&str, String)| {
        let path = Path::new(FOLDER).join(name);
        let is_same = fs::read_to_string(&path).is_ok_and(|written| written == text);
        (!is_same).then(|| format!("{} is out of date; run `cargo xtask docs`", path.display()))
    };
    let problems: Problems = pages()?.into_iter().filter_map(stale).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

fn pages() -> Result<Vec<(&'static str, String)>, Problems> {
    Ok(vec![("plugins.md", plugins()), ("command-line.md", command_line()?)])
}

/// One section for each plugin of the registry, from its schema.
fn plugins() -> String {
    let mut page = String::from(
        "# Plugins\n\nWritten by `cargo xtask docs` from the plugins themselves.\n\nPlugins of the rewrite stage run before \
         those of the access stage; within a stage, the higher priority runs first.\n",
    );
    let mut entries: Vec<&Entry> = weir_plugins::REGISTRY.entries().iter().collect();
    entries.sort_by_key(|entry| entry.name);
    for entry in entries {
        let schema = (entry.schema)();
        let stage = match entry.stage {
            Stage::Rewrite => "rewrite",
            Stage::Access => "access",
        };
        let _ = write!(page, "\n## {}\n\n", entry.name);
        if let Some(text) = schema["description"].as_str() {
            let _ = write!(page, "{text}\n\n");
        }
        let _ = write!(page, "Stage: {stage}. Priority: {}.\n\n```yaml\nplugins:\n", entry.priority);
        for line in entry.example.lines() {
            let _ = writeln!(page, "  {line}");
        }
        page.push_str("```\n");
        options(&schema, &mut page);
        if let Some(credential) = entry.credential {
            page.push_str("\nUnder a consumer:\n");
            options(&(credential.schema)(), &mut page);
        }
        if let Some(metadata) = entry.metadata {
            page.push_str("\nIn `plugin_metadata`, for wherever it is used:\n");
            options(&(metadata.schema)(), &mut page);
        }
    }
    page
}

fn options(schema: &Value, page: &mut String) {
    let Some(properties) = schema["properties"].as_object() else { return };
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    page.push_str("\n| option | type | default | meaning |\n|---|---|---|---|\n");
    for (name, option) in properties {
        let default = match option.get("default") {
            _ if required.contains(&name.as_str()) => "required".to_owned(),
            None | Some(Value::Null) => String::new(),
            Some(value) => format!("`{value}`"),
        };
        let meaning = option["description"].as_str().unwrap_or_default().replace('\n', " ").replace('|', "\\|");
        let _ = writeln!(page, "| `{name}` | {} | {default} | {meaning} |", kind(option));
    }
}

/// A schema's type in a word or two.
fn kind(option: &Value) -> String {
    let alternatives = option["anyOf"].as_array().or(option["oneOf"].as_array());
    match (&option["type"], alternatives) {
        (Value::String(kind), _) => kind.clone(),
        (Value::Array(kinds), _) => {
            let kinds = kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null");
            kinds.collect::<Vec<_>>().join(" or ")
        }
        (_, Some(alternatives)) => {
            let mut kinds: Vec<String> = alternatives.iter().map(kind).filter(|kind| kind != "null").collect();
            kinds.dedup();
            kinds.join(" or ")
        }
        _ => option["$ref"].as_str().map(|_| "object".to_owned()).unwrap_or_else(|| "any".to_owned()),
    }
}

/// What `weir --help` and the help of each command say.
fn command_line() -> Result<String, Problems> {
    let mut page = String::from("# The command line\n\nWritten by `cargo xtask docs` from `weir --help`.\n");
    // Built as the tests are, so that `make test` builds everything once.
    step("the tests do not build", cargo().args(["test", "--quiet", "--workspace", "--no-run"]))?;
    let binary = binary()?;
    let help = |arguments: &[&str]| output(Command::new(&binary).args(arguments));
    let overview = help(&["--help"])?;
    let _ = write!(page, "\n## weir\n\n```text\n{}\n```\n", overview.trim_end());
    let commands = overview.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    for name in commands.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()) {
        if !name.is_empty() && name != "help" {
            let _ = write!(page, "\n## weir {name}\n\n```text\n{}\n```\n", help(&[name, "--help"])?.trim_end());
        }
    }
    Ok(page)
}
