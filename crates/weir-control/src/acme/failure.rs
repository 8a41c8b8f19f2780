//! Why orders fail.

use std::time::SystemTime;

use instant_acme::{Error, Problem};

use super::authority::NoAnswer;

/// Why an order has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OrderFailure {
    pub reason: String,
    /// Set unless the authority did not respond. The authority counts refusals, so the next attempt waits longer after one.
    pub refused: bool,
    /// The authority requests no further order until then.
    pub wait_until: Option<SystemTime>,
    /// The authority does not know the account.
    pub unknown_account: bool,
}

/// The type of the problem that an authority has with an account that it does not know (RFC 8555 §6.7).
const UNKNOWN_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

impl OrderFailure {
    /// A local failure. The next attempt is delayed as after a refusal.
    pub(super) fn own(reason: impl std::fmt::Display) -> OrderFailure {
        OrderFailure { reason: reason.to_string(), refused: true, wait_until: None, unknown_account: false }
    }
}

impl From<Error> for OrderFailure {
    fn from(error: Error) -> OrderFailure {
        let silent = matches!(&error, Error::Other(inner) if inner.is::<NoAnswer>());
        let unknown_account =
            matches!(&error, Error::Api(problem) if problem.r#type.as_deref() == Some(UNKNOWN_ACCOUNT));
        let reason = match error {
            Error::Api(problem) => in_words(&problem),
            error => error.to_string(),
        };
        OrderFailure { refused: !silent, unknown_account, ..OrderFailure::own(reason) }
    }
}

/// The detail of a problem from the authority, and its type, if present.
pub(super) fn in_words(problem: &Problem) -> String {
    let kind = problem.r#type.as_deref().map(|kind| kind.trim_start_matches("urn:ietf:params:acme:error:"));
    match (&problem.detail, kind) {
        (Some(detail), Some(kind)) => format!("{detail} ({kind})"),
        (Some(detail), None) => detail.clone(),
        (None, kind) => kind.unwrap_or("no reason given").to_owned(),
    }
}
