//! What is wrong with options by their schema, in the words of a configuration: the place of each fault, what was found there, and
//! what would be right.

use jsonschema::error::ValidationErrorKind as Kind;
use jsonschema::paths::{Location, LocationSegment};
use jsonschema::{ValidationError, Validator};
use serde_json::Value;

use super::expected::{self, Bounds};
use super::units;
use crate::config_error::{ConfigError, MOST_FAULTS};
use crate::option_error::{self, Quoting};
use crate::secret_name::may_be_secret;

/// The faults of some options.
pub(super) struct OptionFaults<'s> {
    schema: &'s Value,
    options: &'s Value,
    quoting: Quoting,
    found: Vec<ConfigError>,
    /// The maps and names of required options that are missing.
    missing: Vec<(String, String)>,
    /// The maps and names of options that others were probably meant to be.
    misspelt: Vec<(String, String)>,
}

/// All faults that a schema finds in options.
pub(super) fn of(schema: &Value, validator: &Validator, options: &Value, quoting: Quoting) -> Vec<ConfigError> {
    // The usual case, which is much faster than a list of errors.
    if validator.is_valid(options) {
        return Vec::new();
    }
    let (found, missing, misspelt) = (Vec::new(), Vec::new(), Vec::new());
    let mut faults = OptionFaults { schema, options, quoting, found, missing, misspelt };
    for error in validator.iter_errors(options) {
        faults.add(&error);
        if faults.found.len() >= MOST_FAULTS {
            break;
        }
    }
    faults.tell_missing();
    faults.found
}

impl OptionFaults<'_> {
    fn add(&mut self, error: &ValidationError<'_>) {
        // A key with the value null counts as absent.
        if error.instance().is_null() {
            return;
        }
        let place = place(error.instance_path());
        let value = self.quotable(error);
        let node = self.node(error);
        let problem = match error.kind() {
            Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
                return self.tell_unknown(&place, unexpected, &expected::names(self.schema, node));
            }
            // Of a map that has no options: the error has the first member as its instance, and the place of the map.
            Kind::FalseSchema => {
                let map = self.options.pointer(error.instance_path().as_str()).and_then(Value::as_object);
                let names: Vec<String> = map.into_iter().flat_map(|map| map.keys().cloned()).collect();
                return self.tell_unknown(&place, &names, &[]);
            }
            Kind::Required { property } => {
                return self.missing.push((place, property.as_str().unwrap_or_default().to_owned()));
            }
            Kind::AnyOf { context } | Kind::OneOfNotValid { context } => return self.add_alternatives(error, context),
            Kind::Enum { .. } | Kind::Constant { .. } => choice(&expected::words(self.schema, node), value),
            Kind::Type { .. } if units::of(node).is_some() && !error.instance().is_number() => {
                of_unit(units::of(node).unwrap_or_default(), error.instance(), value)
            }
            Kind::Type { .. }
            | Kind::Minimum { .. }
            | Kind::Maximum { .. }
            | Kind::ExclusiveMinimum { .. }
            | Kind::ExclusiveMaximum { .. } => self.mismatch(node, value, error.instance()),
            Kind::MinLength { .. } | Kind::MaxLength { .. } => {
                let count = error.instance().as_str().map_or(0, |text| text.chars().count());
                count_problem(count, ["character", "characters"], &Bounds::of(node, "minLength", "maxLength"))
            }
            Kind::MinItems { .. } | Kind::MaxItems { .. } => {
                let count = error.instance().as_array().map_or(0, Vec::len);
                count_problem(count, ["item", "items"], &Bounds::of(node, "minItems", "maxItems"))
            }
            Kind::MinProperties { .. } | Kind::MaxProperties { .. } => {
                let count = error.instance().as_object().map_or(0, serde_json::Map::len);
                count_problem(count, ["entry", "entries"], &Bounds::of(node, "minProperties", "maxProperties"))
            }
            Kind::UniqueItems => "has an item twice; keep one of them".to_owned(),
            _ => error.masked_with("the value").to_string(),
        };
        self.tell(ConfigError::new(place, problem));
    }

    fn tell(&mut self, fault: ConfigError) {
        if self.found.len() < MOST_FAULTS && !self.found.contains(&fault) {
            self.found.push(fault);
        }
    }

    fn tell_unknown(&mut self, place: &str, names: &[String], known: &[String]) {
        for name in names {
            self.tell(ConfigError::new("", option_error::unknown_option(name, known)).below(name).below(place));
            if let Some(meant) = option_error::meant_option(name, known) {
                self.misspelt.push((place.to_owned(), meant.to_owned()));
            }
        }
    }

    /// Tells the options that are missing and not misspelt.
    fn tell_missing(&mut self) {
        for missing in std::mem::take(&mut self.missing) {
            if !self.misspelt.contains(&missing) {
                let (place, name) = missing;
                self.tell(ConfigError::new(place, format!("the option `{name}` is missing")));
            }
        }
    }

    /// The faults of a value with several forms: those of the form that was meant, if that is clear.
    fn add_alternatives(&mut self, error: &ValidationError<'_>, context: &[Vec<ValidationError<'static>>]) {
        let at = error.instance_path().as_str();
        // Of another type, or with another word in a key that tells the forms apart.
        let is_other = |fault: &ValidationError<'static>| {
            let inner = fault.instance_path().as_str();
            let is_word = matches!(fault.kind(), Kind::Constant { .. } | Kind::Enum { .. });
            let is_key = inner.strip_prefix(at).is_some_and(|rest| rest.matches('/').count() == 1);
            (inner == at && matches!(fault.kind(), Kind::Type { .. } | Kind::Constant { .. } | Kind::Enum { .. }))
                || (is_word && is_key)
        };
        // The only form of the value's type was meant, even if a word in it is wrong.
        let is_of_type = |fault: &ValidationError<'static>| {
            let is_form = matches!(fault.kind(), Kind::Type { .. } | Kind::Constant { .. } | Kind::Enum { .. });
            !(is_form && fault.instance_path().as_str() == at)
        };
        let mut of_type = context.iter().filter(|faults| faults.iter().all(is_of_type));
        if let (Some(faults), None) = (of_type.next(), of_type.next()) {
            return faults.iter().for_each(|fault| self.add(fault));
        }
        let meant: Vec<_> = context.iter().filter(|faults| !faults.iter().any(is_other)).collect();
        // Of several forms of one type, the form that has the fewest faults.
        if let Some(faults) = meant.into_iter().min_by_key(|faults| faults.len()) {
            return faults.iter().for_each(|fault| self.add(fault));
        }
        let node = self.node(error);
        let words = expected::words(self.schema, node);
        let value = self.quotable(error);
        let expected = expected::value(self.schema, node);
        let problem = match error.instance() {
            text if text.is_string() && expected == option_error::one_of(&words) => choice(&words, value),
            _ => match tag_fault(at, context) {
                Some((tag, words)) => {
                    let value = value.and_then(|value| value.get(&tag));
                    self.tell(ConfigError::new(tag, choice(&words, value)).below(&place(error.instance_path())));
                    return;
                }
                None => self.mismatch(node, value, error.instance()),
            },
        };
        self.tell(ConfigError::new(place(error.instance_path()), problem));
    }

    /// Of a value that is not what a schema expects. `quotable`: the value, unless it must not be repeated.
    fn mismatch(&self, node: &Value, quotable: Option<&Value>, found: &Value) -> String {
        let expected = expected::value(self.schema, node);
        match expected.as_str() {
            // A key or a password of digits.
            "text" if quotable.is_none() && found.is_number() => "expected text; put it in quotes".to_owned(),
            "a map" => {
                let (required, known) = (expected::required(self.schema, node), expected::names(self.schema, node));
                option_error::no_map(quotable, node["x-weir-form"].as_str(), &required, &known)
            }
            expected => option_error::mismatch(expected, quotable),
        }
    }

    /// The value at an error, if it may be repeated.
    fn quotable<'e>(&self, error: &'e ValidationError<'_>) -> Option<&'e Value> {
        let segments = error.instance_path().segments();
        let names: Vec<String> = segments
            .filter_map(|segment| match segment {
                LocationSegment::Property(name) => Some(name.to_string()),
                LocationSegment::Index(_) => None,
            })
            .collect();
        let is_secret = may_be_secret(names.iter().rev().map(String::as_str));
        (self.quoting == Quoting::Allowed && !is_secret).then(|| &**error.instance())
    }

    /// The schema with the keyword that is violated.
    fn node(&self, error: &ValidationError<'_>) -> &Value {
        let path = error.schema_path().as_str();
        let node = path.rsplit_once('/').and_then(|(node, _)| self.schema.pointer(node));
        node.unwrap_or(&Value::Null)
    }
}

/// The key whose word tells maps of several forms apart, if none of them has the word that was found; with all words.
fn tag_fault(at: &str, context: &[Vec<ValidationError<'static>>]) -> Option<(String, Vec<String>)> {
    let mut tag = None;
    let mut words = Vec::new();
    for faults in context {
        let (inner, word) = faults.iter().find_map(|fault| match fault.kind() {
            Kind::Constant { expected_value } => {
                Some((fault.instance_path().as_str(), expected_value.as_str()?.to_owned()))
            }
            _ => None,
        })?;
        let name = inner.strip_prefix(at)?.strip_prefix('/')?;
        if name.contains('/') || tag.get_or_insert(name.to_owned()) != name {
            return None;
        }
        words.push(word);
    }
    Some((tag?, words))
}

/// Of a value that is none of some words.
fn choice(words: &[String], found: Option<&Value>) -> String {
    match found {
        Some(Value::String(text)) => option_error::unknown_word(Some(text), words),
        None => option_error::unknown_word(None, words),
        Some(_) => option_error::mismatch(&option_error::one_of(words), found),
    }
}

/// Of a value that is no time or size.
fn of_unit(unit: &str, found: &Value, quotable: Option<&Value>) -> String {
    match (found, quotable) {
        (Value::String(_), Some(Value::String(text))) => {
            units::problem(unit, &format!("`{}`", option_error::shortened(text)))
        }
        (Value::String(_), _) => units::problem(unit, "the value"),
        _ => option_error::mismatch(units::expected(unit), quotable),
    }
}

/// `names` are the singular and the plural of what is counted.
fn count_problem(count: usize, names: [&str; 2], bounds: &Bounds) -> String {
    let counted = |number: u64| format!("{number} {}", names[usize::from(number != 1)]);
    let found = if count == 0 { "is empty".to_owned() } else { format!("has {}", counted(count as u64)) };
    match (bounds.least, bounds.most) {
        (Some(least), Some(most)) => format!("{found}; {least} to {} are allowed", counted(most)),
        (Some(1), None) => format!("{found}; at least {} is needed", counted(1)),
        (Some(least), None) => format!("{found}; at least {} are needed", counted(least)),
        (None, most) => format!("{found}; at most {} are allowed", counted(most.unwrap_or_default())),
    }
}

fn place(path: &Location) -> String {
    path.segments().fold(String::new(), |place, segment| match segment {
        LocationSegment::Property(name) if place.is_empty() => name.to_string(),
        LocationSegment::Property(name) => format!("{place}.{name}"),
        LocationSegment::Index(index) => format!("{place}[{index}]"),
    })
}
