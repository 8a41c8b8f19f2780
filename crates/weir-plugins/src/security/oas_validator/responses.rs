//! Responses of operations, by their statuses.

use serde_json::Value;

use super::body::DeclaredBody;
use super::document::{OasDocument, SpecFaults, below};
use super::schemas::{SchemaCollection, SchemaSide};

/// The most responses of an operation.
const MOST_RESPONSES: usize = 100;

/// The responses of an operation, by their statuses.
#[derive(Debug, Default)]
pub(super) struct DeclaredResponses(Vec<(DeclaredStatus, Option<DeclaredBody>)>);

/// A name in `responses` (OpenAPI "Responses Object").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeclaredStatus {
    One(u16),
    /// `4XX`, by its first digit.
    Class(u16),
    Default,
}

impl DeclaredStatus {
    fn parse(name: &str) -> Option<DeclaredStatus> {
        if name == "default" {
            return Some(DeclaredStatus::Default);
        }
        let digits = name.strip_suffix("XX").or(name.strip_suffix("xx")).unwrap_or(name);
        let number = digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
        match (number, digits.len(), name.len()) {
            (1..=5, 1, 3) => Some(DeclaredStatus::Class(number)),
            (100..=599, 3, 3) => Some(DeclaredStatus::One(number)),
            _ => None,
        }
    }
}

impl DeclaredResponses {
    /// Reads the responses of the operation at a place.
    pub(super) fn read(
        document: &OasDocument,
        (operation, at): (&Value, &str),
        schemas: &mut SchemaCollection<'_>,
        faults: &mut SpecFaults,
    ) -> DeclaredResponses {
        let mut responses = DeclaredResponses::default();
        let Some(declared) = operation["responses"].as_object() else { return responses };
        let at = below(at, "responses");
        if declared.len() > MOST_RESPONSES {
            faults.add(&at, format!("has more than {MOST_RESPONSES} responses"));
            return responses;
        }
        if !schemas.count_contents(declared.len(), &at, faults) {
            return responses;
        }
        for name in declared.keys().filter(|name| !name.starts_with("x-")) {
            let at = below(&at, name);
            let Some(status) = DeclaredStatus::parse(name) else {
                faults.add(&at, "is no status; write as `200`, `4XX` or `default`");
                continue;
            };
            let Some((response, at)) = document.resolve(&at, faults) else { continue };
            let body = response.get("content").map(|_| {
                schemas.of_side(SchemaSide::Response, |schemas| DeclaredBody::read(document, &at, schemas, faults))
            });
            responses.0.push((status, body.flatten()));
        }
        responses
    }

    pub(super) fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// What is declared for a status: for itself, for its class, or for all others.
    pub(super) fn of(&self, status: u16) -> Option<&Option<DeclaredBody>> {
        let wanted = [DeclaredStatus::One(status), DeclaredStatus::Class(status / 100), DeclaredStatus::Default];
        wanted.iter().find_map(|wanted| self.0.iter().find(|(declared, _)| declared == wanted)).map(|(_, body)| body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_numbers_classes_or_all_others() {
        for (name, status) in [
            ("200", Some(DeclaredStatus::One(200))),
            ("4XX", Some(DeclaredStatus::Class(4))),
            ("4xx", Some(DeclaredStatus::Class(4))),
            ("default", Some(DeclaredStatus::Default)),
            ("20X", None),
            ("44XX", None),
            ("99", None),
            ("600", None),
            ("+20", None),
            ("XX", None),
            ("", None),
        ] {
            assert_eq!(DeclaredStatus::parse(name), status, "{name}");
        }
    }
}
