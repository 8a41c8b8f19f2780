//! The values of a plan: where they come from, and drawing them for a client.

use std::sync::atomic::{AtomicI64, Ordering};

use super::names::check_name;
use super::table::CsvTable;
use super::template::breaks_field;
use crate::engine::plan::{LoadPlan, PlanError, PlanVariable};
use crate::stats::SeededRandom;

/// The most values of a plan.
const MOST_VALUES: usize = 256;
/// The longest random text, in characters.
const LONGEST_TEXT: usize = 64 * 1024;
/// The characters of random texts, unless a plan has its own.
const CHARACTERS: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/// The sources of all values of a plan.
#[derive(Debug, Default)]
pub(super) struct ValueSources {
    /// All names: the columns of the files, the variables, and what is taken from answers.
    pub(super) names: Vec<String>,
    tables: Vec<CsvTable>,
    /// Of each variable: the index of its name, and its source.
    generators: Vec<(usize, ValueGenerator)>,
}

#[derive(Debug)]
enum ValueGenerator {
    Sequence { next: AtomicI64, step: i64 },
    Number { from: i64, to: i64 },
    Text { length: usize, characters: Vec<char> },
    Uuid,
    Fixed(String),
}

/// What one client has at present.
#[derive(Debug)]
pub(super) struct DrawnValues {
    /// In the order of the names; empty until drawn or taken.
    pub(super) values: Vec<String>,
    /// Rows that it has got from each file.
    seen: Vec<usize>,
}

impl ValueSources {
    pub(super) fn new(plan: &LoadPlan) -> Result<Self, PlanError> {
        let mut sources = Self::default();
        for (index, file) in plan.data.csv.iter().enumerate() {
            let at = format!("data.csv[{index}]");
            let table = CsvTable::read(file, &at)?;
            if table.stops() && !table.has_end() {
                return Err(PlanError::new(
                    at,
                    "`at_end: stop` needs an order that has an end: sequential or every_client",
                ));
            }
            if table.stops() && plan.pacing.is_open() {
                let problem = "`at_end: stop` needs a closed loop; in an open loop set the number of requests to that of the rows";
                return Err(PlanError::new(at, problem));
            }
            for name in &table.columns {
                sources.add(name, &at)?;
            }
            sources.tables.push(table);
        }
        for (name, variable) in &plan.data.variables {
            let at = format!("data.variables.{name}");
            check_name(name).map_err(|problem| PlanError::new(at.as_str(), problem))?;
            let index = sources.add(name, &at)?;
            let generator = ValueGenerator::new(variable).map_err(|problem| PlanError::new(at, problem))?;
            sources.generators.push((index, generator));
        }
        let of_data = sources.names.len();
        for (request, template) in plan.requests.iter().enumerate() {
            for name in template.take.keys() {
                let at = format!("requests[{request}].take.{name}");
                check_name(name).map_err(|problem| PlanError::new(at.as_str(), problem))?;
                if sources.names[..of_data].contains(name) {
                    return Err(PlanError::new(at, "is also a name of `data`; choose another one"));
                }
                if !sources.names.contains(name) {
                    sources.add(name, &at)?;
                }
            }
        }
        Ok(sources)
    }

    fn add(&mut self, name: &str, at: &str) -> Result<usize, PlanError> {
        if self.names.iter().any(|known| known == name) {
            return Err(PlanError::new(at, format!("there are two values of the name \"{name}\"; rename one of them")));
        }
        if self.names.len() == MOST_VALUES {
            return Err(PlanError::new(at, format!("a plan has at most {MOST_VALUES} values")));
        }
        self.names.push(name.to_owned());
        Ok(self.names.len() - 1)
    }

    pub(super) fn index(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }

    /// A value with a character that cannot stand in a header field, if this variable has one, with its place.
    pub(super) fn unfit_for_field(&self, variable: usize) -> Option<String> {
        let is_unfit = |value: &str| value.bytes().any(breaks_field);
        let mut first = 0;
        for (index, table) in self.tables.iter().enumerate() {
            if let Some(column) = variable.checked_sub(first).filter(|column| *column < table.columns.len()) {
                let row = (0..table.rows()).find(|row| is_unfit(table.value(*row, column)))?;
                return Some(format!("row {} of data.csv[{index}]", row + 1));
            }
            first += table.columns.len();
        }
        self.generators.iter().find_map(|(index, generator)| match generator {
            ValueGenerator::Fixed(text) if *index == variable && is_unfit(text) => {
                Some(format!("data.variables.{}", self.names[variable]))
            }
            _ => None,
        })
    }

    pub(super) fn empty_values(&self) -> DrawnValues {
        DrawnValues { values: vec![String::new(); self.names.len()], seen: vec![0; self.tables.len()] }
    }

    /// Draws new values for a client, which is numbered over the whole run; false if a file has no row left.
    pub(super) fn draw(&self, client: usize, drawn: &mut DrawnValues, random: &mut SeededRandom) -> bool {
        let mut first = 0;
        for (table, seen) in self.tables.iter().zip(&mut drawn.seen) {
            let Some(row) = table.next(client, seen, random) else { return false };
            for column in 0..table.columns.len() {
                let value = &mut drawn.values[first + column];
                value.clear();
                value.push_str(table.value(row, column));
            }
            first += table.columns.len();
        }
        for (index, generator) in &self.generators {
            generator.write(random, &mut drawn.values[*index]);
        }
        true
    }
}

impl ValueGenerator {
    fn new(variable: &PlanVariable) -> Result<Self, String> {
        Ok(match variable {
            PlanVariable::Sequence { from, step } => {
                ValueGenerator::Sequence { next: AtomicI64::new(*from), step: *step }
            }
            PlanVariable::Number { from, to } if from <= to => ValueGenerator::Number { from: *from, to: *to },
            PlanVariable::Number { from, to } => return Err(format!("`from` ({from}) must not be above `to` ({to})")),
            PlanVariable::Text { length, .. } if *length == 0 || *length > LONGEST_TEXT => {
                return Err(format!("`length` must be between 1 and {LONGEST_TEXT}"));
            }
            PlanVariable::Text { length, characters } => {
                let characters: Vec<char> = characters.as_deref().unwrap_or(CHARACTERS).chars().collect();
                if characters.is_empty() {
                    return Err("`characters` must contain at least one".to_owned());
                }
                ValueGenerator::Text { length: *length, characters }
            }
            PlanVariable::Uuid => ValueGenerator::Uuid,
            PlanVariable::Environment(name) => match std::env::var(name) {
                Ok(value) => ValueGenerator::Fixed(value),
                Err(_) => return Err(format!("the environment variable {name} is not set, or is not UTF-8")),
            },
            PlanVariable::Value(text) => ValueGenerator::Fixed(text.clone()),
        })
    }

    fn write(&self, random: &mut SeededRandom, value: &mut String) {
        use std::fmt::Write as _;
        // Writing to a string does not fail.
        match self {
            ValueGenerator::Fixed(text) if value == text => {}
            ValueGenerator::Fixed(text) => value.clone_from(text),
            ValueGenerator::Sequence { next, step } => {
                value.clear();
                let _ = write!(value, "{}", next.fetch_add(*step, Ordering::Relaxed));
            }
            ValueGenerator::Number { from, to } => {
                value.clear();
                let span = (i128::from(*to) - i128::from(*from) + 1) as u128;
                let drawn = i128::from(*from) + ((u128::from(random.bits()) * span) >> 64) as i128;
                let _ = write!(value, "{drawn}");
            }
            ValueGenerator::Text { length, characters } => {
                value.clear();
                value.extend((0..*length).map(|_| characters[random.below(characters.len())]));
            }
            ValueGenerator::Uuid => {
                value.clear();
                let (high, low) = (random.bits(), random.bits());
                let _ = write!(
                    value,
                    "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
                    high >> 32,
                    high >> 16 & 0xFFFF,
                    high & 0xFFF,
                    0x8000 | low >> 48 & 0x3FFF,
                    low & 0xFFFF_FFFF_FFFF
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::{PlanData, StopCondition};

    fn sources(variables: &[(&str, PlanVariable)]) -> Result<ValueSources, String> {
        let mut plan = LoadPlan::closed("http://a/", 1, StopCondition::after_count(1));
        let variables = variables.iter().map(|(name, variable)| ((*name).to_owned(), variable.clone()));
        plan.data = PlanData { variables: variables.collect(), ..PlanData::default() };
        ValueSources::new(&plan).map_err(|error| error.to_string())
    }

    fn drawn(variable: PlanVariable, times: usize) -> Vec<String> {
        let sources = sources(&[("v", variable)]).expect("a good variable");
        let (mut values, mut random) = (sources.empty_values(), SeededRandom::new(3));
        let mut draw = || {
            assert!(sources.draw(0, &mut values, &mut random));
            values.values[0].clone()
        };
        (0..times).map(|_| draw()).collect()
    }

    #[test]
    fn each_kind_of_variable_gives_its_values() {
        assert_eq!(drawn(PlanVariable::Sequence { from: 5, step: -2 }, 3), ["5", "3", "1"]);
        let numbers = drawn(PlanVariable::Number { from: -1, to: 1 }, 60);
        for number in ["-1", "0", "1"] {
            assert!(numbers.iter().any(|drawn| drawn == number), "{numbers:?}");
        }
        assert!(numbers.iter().all(|drawn| ["-1", "0", "1"].contains(&drawn.as_str())), "{numbers:?}");
        let text = &drawn(PlanVariable::Text { length: 8, characters: Some("ä1".to_owned()) }, 1)[0];
        assert!(text.chars().count() == 8 && text.chars().all(|one| "ä1".contains(one)), "{text}");
        assert_eq!(drawn(PlanVariable::Value("x".to_owned()), 2), ["x", "x"]);
        let whole = drawn(PlanVariable::Number { from: i64::MIN, to: i64::MAX }, 2);
        assert_ne!(whole[0], whole[1]);
    }

    #[test]
    fn uuids_have_their_version_and_variant() {
        let uuids = drawn(PlanVariable::Uuid, 20);
        for uuid in &uuids {
            let parts: Vec<usize> = uuid.split('-').map(str::len).collect();
            assert_eq!(parts, [8, 4, 4, 4, 12], "{uuid}");
            assert!(uuid.as_bytes()[14] == b'4' && b"89ab".contains(&uuid.as_bytes()[19]), "{uuid}");
        }
        assert_ne!(uuids[0], uuids[1]);
    }

    #[test]
    fn fault_of_a_variable_has_its_place() {
        let fault = |variable| sources(&[("v", variable)]).expect_err("a fault");
        assert_eq!(
            fault(PlanVariable::Number { from: 2, to: 1 }),
            "data.variables.v: `from` (2) must not be above `to` (1)"
        );
        assert!(
            fault(PlanVariable::Environment("WEIR_NOT_SET_AT_ALL".to_owned()))
                .contains("WEIR_NOT_SET_AT_ALL is not set")
        );
        assert!(fault(PlanVariable::Text { length: 0, characters: None }).contains("between 1 and 65536"));
        let name = sources(&[("a b", PlanVariable::Uuid)]).expect_err("a fault");
        assert!(name.starts_with("data.variables.a b: \"a b\" is not a name"), "{name}");
    }

    #[test]
    fn value_with_a_line_break_is_found() {
        let sources =
            sources(&[("a", PlanVariable::Value("x\ny".to_owned())), ("b", PlanVariable::Uuid)]).expect("good ones");
        assert_eq!(sources.unfit_for_field(0).as_deref(), Some("data.variables.a"));
        assert_eq!(sources.unfit_for_field(1), None);
    }
}
