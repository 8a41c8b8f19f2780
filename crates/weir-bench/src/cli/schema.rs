use clap::{Args, ValueEnum};
use schemars::schema_for;

use super::LabError;
use crate::{analysis::lint::Evidence, cli::print::out, scenario::Scenario};

/// Print what a file may say, for editors and for the reference.
#[derive(Debug, Args)]
pub struct SchemaArguments {
    /// The kind of file
    #[arg(value_enum, default_value_t = SchemaKind::Scenario)]
    pub of: SchemaKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SchemaKind {
    /// The input of `weir bench run`
    Scenario,
    /// The input of `weir bench judge`
    Publication,
}

pub(super) fn schema(arguments: SchemaArguments) -> Result<u8, LabError> {
    let schema = match arguments.of {
        SchemaKind::Scenario => schema_for!(Scenario),
        SchemaKind::Publication => schema_for!(Evidence),
    };
    out!("{}", serde_json::to_string_pretty(&schema).expect("a schema has string keys"));
    Ok(0)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Keys below `at` that have no description.
    fn unexplained(at: &str, schema: &Value, found: &mut Vec<String>) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            // The tag of an alternative is explained by the alternative.
            if property.get("description").is_none() && property.get("const").is_none() {
                found.push(format!("{at}.{name}"));
            }
        }
        for alternative in ["oneOf", "anyOf"].iter().flat_map(|part| schema[*part].as_array()).flatten() {
            // An alternative with a single key is explained as a whole.
            let single = alternative["properties"].as_object().is_some_and(|keys| keys.len() == 1);
            if !single || alternative.get("description").is_none() {
                unexplained(at, alternative, found);
            }
        }
        for (name, definition) in schema["$defs"].as_object().into_iter().flatten() {
            unexplained(name, definition, found);
        }
    }

    #[test]
    fn every_key_of_a_file_is_explained() {
        let mut found = Vec::new();
        for schema in [schema_for!(Scenario), schema_for!(Evidence)] {
            unexplained("", &serde_json::to_value(schema).unwrap(), &mut found);
        }
        assert!(found.is_empty(), "{found:?}");
    }
}
