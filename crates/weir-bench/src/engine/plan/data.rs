//! The data of a plan: values that requests contain as `${name}`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Values for requests. `${name}` in a URL, a header field or a body is replaced by the value of this name.
///
/// Where the requests are sent in sequence, a client gets new values each time it begins with the first one; otherwise each
/// request gets new values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PlanData {
    /// Files of comma-separated values. A name is that of a column.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub csv: Vec<CsvData>,
    /// Values that are generated, by their names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, PlanVariable>,
}

impl PlanData {
    pub fn is_empty(&self) -> bool {
        self.csv.is_empty() && self.variables.is_empty()
    }
}

/// A file of comma-separated values (RFC 4180).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CsvData {
    /// The path.
    pub file: PathBuf,
    /// The names of the columns. Without them, the first line of the file contains the names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// With `names`: the first line is not data and is skipped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_first_line: bool,
    /// The character between two values.
    #[serde(default = "comma", skip_serializing_if = "is_comma")]
    pub delimiter: char,
    /// The row that is next.
    #[serde(default)]
    pub order: CsvOrder,
    /// What follows the last row.
    #[serde(default)]
    pub at_end: AtEnd,
}

impl CsvData {
    /// A file whose first line has the names, read in order.
    pub fn of(file: impl Into<PathBuf>) -> Self {
        CsvData {
            file: file.into(),
            names: Vec::new(),
            skip_first_line: false,
            delimiter: comma(),
            order: CsvOrder::default(),
            at_end: AtEnd::default(),
        }
    }
}

/// The row of a file that is next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CsvOrder {
    /// The rows in their order, each for one client.
    #[default]
    Sequential,
    /// Any row, each with the same probability.
    Random,
    /// The first client always has the first row, the second client the second row, and so on.
    PerClient,
    /// Every client goes through all rows in their order.
    EveryClient,
}

/// What follows the last row of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AtEnd {
    /// The first row.
    #[default]
    Again,
    /// A client that gets no row sends no further request. The run ends when no client is left.
    Stop,
}

/// A value that is generated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PlanVariable {
    /// Numbers in their order. Each is used once in the whole run.
    Sequence {
        /// The first number.
        #[serde(default = "one")]
        from: i64,
        /// The difference between two numbers.
        #[serde(default = "one")]
        step: i64,
    },
    /// A random whole number.
    Number {
        /// The lowest number.
        from: i64,
        /// The highest number.
        to: i64,
    },
    /// Random characters.
    Text {
        /// The number of characters.
        length: usize,
        /// The characters that are used. Without them, letters and digits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        characters: Option<String>,
    },
    /// A random UUID (RFC 9562, version 4).
    Uuid,
    /// The environment variable of this name.
    Environment(String),
    /// This text.
    Value(String),
}

fn comma() -> char {
    ','
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_comma(delimiter: &char) -> bool {
    *delimiter == ','
}

fn one() -> i64 {
    1
}
