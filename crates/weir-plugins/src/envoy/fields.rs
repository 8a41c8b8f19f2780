//! Changes of header fields, as services of Envoy's API ask for them.

use std::fmt;

use weir_plugin::Stop;
use weir_plugin::proto::{Head, Known};

use super::messages::HeaderValueOption;

/// The most fields of one kind, arguments or members of metadata that an answer may change.
pub(crate) const MOST_CHANGES: usize = 128;
/// The most bytes that an answer may add to a request, to a response, or to variables.
pub(crate) const MOST_CHANGED_BYTES: usize = 64 << 10;

/// What becomes of fields with the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldAction {
    Append = 0,
    AddIfAbsent = 1,
    Overwrite = 2,
    OverwriteIfPresent = 3,
}

impl FieldAction {
    /// By a number of `HeaderAppendAction`.
    pub(crate) fn of(number: i32) -> Option<FieldAction> {
        use FieldAction::{AddIfAbsent, Append, Overwrite, OverwriteIfPresent};
        [Append, AddIfAbsent, Overwrite, OverwriteIfPresent].into_iter().find(|action| *action as i32 == number)
    }
}

/// A field that is added, or replaces others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldChange {
    pub name: Box<[u8]>,
    pub value: Box<[u8]>,
    pub action: FieldAction,
}

/// The number of an action that is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnknownAction(pub i32);

impl fmt::Display for UnknownAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`append_action` is {}, which is unknown", self.0)
    }
}

/// The changes that a message asks for.
///
/// # Errors
/// One has an action that is unknown.
pub(crate) fn field_changes(options: Vec<HeaderValueOption>) -> Result<Vec<FieldChange>, UnknownAction> {
    let change = |option: HeaderValueOption| {
        let header = option.header.unwrap_or_default();
        let value = if header.value.is_empty() { header.raw_value } else { header.value.into_bytes() };
        let action = action(option.append, option.append_action)?;
        Ok(FieldChange { name: header.key.into_bytes().into(), value: value.into(), action })
    };
    options.into_iter().map(change).collect()
}

/// Without `append`, fields are replaced, unless there is another action. The action to append has the number 0, as has none: so it
/// needs `append: true`. Else a field that the client has forged would stay beside that of a service which names no action.
fn action(append: Option<bool>, number: i32) -> Result<FieldAction, UnknownAction> {
    match (append, FieldAction::of(number).ok_or(UnknownAction(number))?) {
        (Some(true), _) => Ok(FieldAction::Append),
        (Some(false), _) | (None, FieldAction::Append) => Ok(FieldAction::Overwrite),
        (None, action) => Ok(action),
    }
}

/// Fields that the gateway manages itself.
pub(crate) fn is_managed(name: &[u8]) -> bool {
    let known = Known::parse(name);
    known.is_hop_by_hop() || matches!(known, Known::ContentLength | Known::Host | Known::Expect)
}

/// Fields by which upstreams learn of the client from the gateway. `X-Forwarded-User` and the like are not among them.
pub(crate) fn is_of_gateway(name: &[u8]) -> bool {
    let known = Known::parse(name);
    known == Known::Identity || known.is_forwarding() && known != Known::XForwardedOther
}

/// Changes a head. The change has been checked.
pub(crate) fn apply(change: &FieldChange, head: &mut Head) -> Result<(), Stop> {
    let is_present = head.value(&change.name).is_some();
    match change.action {
        FieldAction::AddIfAbsent if is_present => return Ok(()),
        FieldAction::OverwriteIfPresent if !is_present => return Ok(()),
        FieldAction::Overwrite | FieldAction::OverwriteIfPresent => {
            head.remove(&change.name);
        }
        FieldAction::Append | FieldAction::AddIfAbsent => {}
    }
    head.add(&change.name, &change.value).map_err(|_| Stop::Internal)
}
