//! The faults of a message, and what is said about them.

use jsonschema::ValidationError;
use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::paths::LocationSegment;

use crate::content::quoted;

/// The most faults of a request that are told.
const MOST_TOLD: usize = 20;
/// The most bytes of one message.
const MAX_MESSAGE: usize = 300;

/// The faults of one request, in the order in which they were found.
#[derive(Debug)]
pub(super) struct RequestFaults {
    pub told: Vec<String>,
    most: usize,
}

impl RequestFaults {
    /// Collects all faults up to a bound, or only the first.
    pub(super) fn new(all: bool) -> RequestFaults {
        RequestFaults { told: Vec::new(), most: if all { MOST_TOLD } else { 1 } }
    }

    pub(super) fn are_enough(&self) -> bool {
        self.told.len() >= self.most
    }

    pub(super) fn add(&mut self, place: &str, problem: impl std::fmt::Display) {
        if !self.are_enough() {
            let mut told = format!("{place}: {problem}");
            told.truncate(told.floor_char_boundary(MAX_MESSAGE));
            self.told.push(told);
        }
    }
}

/// What makes a property read-only, in the form that [`told`] knows again.
pub(super) const READ_ONLY: &str = "readOnly";
/// The same for a write-only one.
pub(super) const WRITE_ONLY: &str = "writeOnly";

/// The place below `outer` and the problem of an error; the first `skipped` steps of its path belong to the validator.
pub(super) fn told(error: &ValidationError<'_>, outer: &str, skipped: usize) -> (String, String) {
    let mut place = outer.to_owned();
    for segment in error.instance_path().segments().skip(skipped) {
        match segment {
            LocationSegment::Property(name) => {
                place.push('.');
                place.push_str(quoted(&name));
            }
            LocationSegment::Index(index) => place.push_str(&format!("[{index}]")),
        }
        if place.len() > MAX_MESSAGE / 2 {
            place.push_str("...");
            break;
        }
    }
    (place, problem(error))
}

fn problem(error: &ValidationError<'_>) -> String {
    match error.kind() {
        ValidationErrorKind::Required { property } => format!("{property:.70} is required"),
        ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
            format!("has properties that are not defined: {}", quoted(&unexpected.join(", ")))
        }
        ValidationErrorKind::Type { kind: TypeKind::Single(expected) } => format!("is not of the type {expected}"),
        ValidationErrorKind::Not { schema } if schema["title"] == READ_ONLY => {
            "is read-only, and not part of a request".to_owned()
        }
        ValidationErrorKind::Not { schema } if schema["title"] == WRITE_ONLY => {
            "is write-only, and not part of a response".to_owned()
        }
        ValidationErrorKind::AnyOf { .. } | ValidationErrorKind::OneOfNotValid { .. } => {
            "fits none of the possible schemas".to_owned()
        }
        ValidationErrorKind::OneOfMultipleValid { .. } => "fits more than one of the possible schemas".to_owned(),
        ValidationErrorKind::FalseSchema => "is not possible here".to_owned(),
        ValidationErrorKind::Format { format } => format!("is no {format}"),
        // The value itself, which may be long and is the client's own, is not repeated.
        _ => error.masked_with("the value").to_string(),
    }
}
