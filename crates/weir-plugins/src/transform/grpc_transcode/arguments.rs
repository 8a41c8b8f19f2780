//! Arguments of a request, as members of the JSON form of a message: `user.name=a&tag=b&tag=c`.

use std::fmt;

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage, Value as ReflectValue};
use serde_json::{Map, Value};

/// How many names an argument may have, with points between them.
const MOST_NAMES: usize = 32;
/// The most bytes of a name in an error.
const QUOTED: usize = 100;

/// Why an argument cannot be a part of the message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ArgumentFault {
    /// The message has no such field.
    Unknown,
    NotUtf8,
    /// It names a message, or a list of them.
    NotAValue,
}

impl fmt::Display for ArgumentFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ArgumentFault::Unknown => "the message has no such field",
            ArgumentFault::NotUtf8 => "is not UTF-8",
            ArgumentFault::NotAValue => "is no field with a single value",
        })
    }
}

/// A part of a message that an argument names.
enum PlaceStep {
    /// A field, by the name in its `.proto`.
    Field(FieldDescriptor),
    /// A key of the map that the step before is.
    Key(String),
}

/// The part of a message that an argument names.
pub(super) struct ArgumentPlace {
    steps: Vec<PlaceStep>,
    kind: Kind,
}

impl ArgumentPlace {
    /// Finds the whole name, so that one that names no field changes nothing.
    pub(super) fn find(message: &MessageDescriptor, name: &[u8]) -> Result<ArgumentPlace, ArgumentFault> {
        let name = str::from_utf8(name).map_err(|_| ArgumentFault::Unknown)?;
        let mut names = name.split('.');
        let (mut message, mut steps) = (message.clone(), Vec::new());
        loop {
            if steps.len() >= MOST_NAMES {
                return Err(ArgumentFault::NotAValue);
            }
            let name = names.next().ok_or(ArgumentFault::NotAValue)?;
            let field = message.get_field_by_name(name).or_else(|| message.get_field_by_json_name(name));
            let field = field.ok_or(ArgumentFault::Unknown)?;
            let (is_map, is_list, mut kind) = (field.is_map(), field.is_list(), field.kind());
            if is_map {
                kind = value_of_map(&field);
            }
            steps.push(PlaceStep::Field(field));
            if is_map {
                steps.push(PlaceStep::Key(names.next().ok_or(ArgumentFault::NotAValue)?.to_owned()));
            }
            let is_last = names.clone().next().is_none();
            match kind {
                Kind::Message(inner) if !is_last && !is_list && has_own_form(&inner) => {
                    return Err(ArgumentFault::NotAValue);
                }
                Kind::Message(inner) if !is_last && !is_list => message = inner,
                _ if !is_last => return Err(ArgumentFault::Unknown),
                Kind::Message(inner) if !has_single_value(&inner) => return Err(ArgumentFault::NotAValue),
                kind => return Ok(ArgumentPlace { steps, kind }),
            }
        }
    }

    /// Adds a value to the JSON form of the message.
    pub(super) fn add(&self, form: &mut Map<String, Value>, value: &[u8]) -> Result<(), ArgumentFault> {
        let value = str::from_utf8(value).map_err(|_| ArgumentFault::NotUtf8)?;
        let value = single_value(&self.kind, value);
        let key = |step: &PlaceStep| match step {
            PlaceStep::Field(field) => field.name().to_owned(),
            PlaceStep::Key(key) => key.clone(),
        };
        let Some((last, before)) = self.steps.split_last() else { return Err(ArgumentFault::NotAValue) };
        let mut form = form;
        for step in before {
            let below = form.entry(key(step)).or_insert_with(|| Map::new().into());
            form = below.as_object_mut().ok_or(ArgumentFault::NotAValue)?;
        }
        if matches!(last, PlaceStep::Field(field) if field.is_list()) {
            let list = form.entry(key(last)).or_insert_with(|| Value::Array(Vec::new()));
            list.as_array_mut().ok_or(ArgumentFault::NotAValue)?.push(value);
        } else {
            // The last one counts, as in messages themselves.
            form.insert(key(last), value);
        }
        Ok(())
    }

    /// Sets the part in a message to what it is in another one.
    pub(super) fn copy(&self, from: &DynamicMessage, to: &mut DynamicMessage) {
        let Some((PlaceStep::Field(field), rest)) = self.steps.split_first() else { return };
        copy(field, rest, from, to);
    }
}

fn copy(field: &FieldDescriptor, rest: &[PlaceStep], from: &DynamicMessage, to: &mut DynamicMessage) {
    let value = from.get_field(field);
    match (rest, &*value) {
        ([PlaceStep::Field(inner), rest @ ..], ReflectValue::Message(below)) => {
            if !to.has_field(field) {
                to.set_field(field, ReflectValue::Message(DynamicMessage::new(below.descriptor())));
            }
            if let ReflectValue::Message(target) = to.get_field_mut(field) {
                copy(inner, rest, below, target);
            }
        }
        ([PlaceStep::Key(_), ..], ReflectValue::Map(entries)) => {
            if let ReflectValue::Map(target) = to.get_field_mut(field) {
                target.extend(entries.clone());
            }
        }
        _ => to.set_field(field, value.into_owned()),
    }
}

/// Adds an argument to the JSON form of a message.
pub(super) fn add(
    message: &MessageDescriptor,
    form: &mut Map<String, Value>,
    name: &[u8],
    value: &[u8],
) -> Result<(), ArgumentFault> {
    ArgumentPlace::find(message, name)?.add(form, value)
}

/// The name for an error.
pub(super) fn quoted(name: &[u8]) -> String {
    String::from_utf8_lossy(&name[..name.len().min(QUOTED)]).into_owned()
}

fn value_of_map(field: &FieldDescriptor) -> Kind {
    match field.kind() {
        Kind::Message(entry) => entry.map_entry_value_field().kind(),
        kind => kind,
    }
}

/// Whether a message has a text, a number or a truth value as its JSON form.
fn has_single_value(message: &MessageDescriptor) -> bool {
    matches!(
        message.full_name(),
        "google.protobuf.Timestamp"
            | "google.protobuf.Duration"
            | "google.protobuf.FieldMask"
            | "google.protobuf.Value"
            | "google.protobuf.BoolValue"
            | "google.protobuf.BytesValue"
            | "google.protobuf.DoubleValue"
            | "google.protobuf.FloatValue"
            | "google.protobuf.Int32Value"
            | "google.protobuf.Int64Value"
            | "google.protobuf.StringValue"
            | "google.protobuf.UInt32Value"
            | "google.protobuf.UInt64Value"
    )
}

/// Whether the JSON form of a message is another than an object with its fields.
fn has_own_form(message: &MessageDescriptor) -> bool {
    has_single_value(message)
        || matches!(message.full_name(), "google.protobuf.Any" | "google.protobuf.Struct" | "google.protobuf.ListValue")
}

/// The JSON form of a text for a field of this kind. A text that does not fit stays one, and is refused where the message is made;
/// numbers may be texts in the JSON form of messages.
fn single_value(kind: &Kind, text: &str) -> Value {
    let is_truth = match kind {
        Kind::Bool => true,
        Kind::Message(message) => message.full_name() == "google.protobuf.BoolValue",
        _ => false,
    };
    match (kind, text) {
        (_, "true") if is_truth => Value::Bool(true),
        (_, "false") if is_truth => Value::Bool(false),
        (Kind::Enum(_), text) => text.parse::<i32>().map_or_else(|_| text.into(), Value::from),
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_plugin::{ProtoDefinitions, form};

    use super::*;

    fn message() -> MessageDescriptor {
        let text = r#"syntax = "proto3";
            import "google/protobuf/timestamp.proto"; import "google/protobuf/struct.proto"; import "google/protobuf/wrappers.proto";
            enum Colour { RED = 0; BLUE = 1; }
            message Inner { string user_name = 1; Inner inner = 2; repeated int32 numbers = 3; }
            message A { Inner inner = 1; repeated Inner inners = 2; map<string, string> texts = 3; map<int32, Inner> by_number = 4;
                repeated Colour colours = 5; bool flag = 6; google.protobuf.Timestamp at = 7; google.protobuf.BoolValue maybe = 8;
                google.protobuf.Struct any = 9; int64 number = 10; }"#;
        ProtoDefinitions::parse(text).expect("valid").pool().get_message_by_name("A").expect("defined")
    }

    fn form_of(query: &str) -> Result<Value, ArgumentFault> {
        let mut form = Map::new();
        let message = message();
        form::pairs(query.as_bytes()).try_for_each(|(name, value)| add(&message, &mut form, &name, &value))?;
        Ok(form.into())
    }

    #[test]
    fn arguments_become_members() {
        for (query, want) in [
            (
                "inner.user_name=a%20b&inner.inner.userName=c",
                json!({"inner": {"user_name": "a b", "inner": {"user_name": "c"}}}),
            ),
            ("inner.numbers=1&inner.numbers=2", json!({"inner": {"numbers": ["1", "2"]}})),
            ("texts.a=1&texts.b=2&texts.a=3", json!({"texts": {"a": "3", "b": "2"}})),
            ("by_number.7.user_name=a", json!({"by_number": {"7": {"user_name": "a"}}})),
            ("colours=BLUE&colours=0&colours=1", json!({"colours": ["BLUE", 0, 1]})),
            (
                "flag=true&maybe=false&number=9007199254740993",
                json!({"flag": true, "maybe": false, "number": "9007199254740993"}),
            ),
            ("flag=yes&at=2026-01-01T00:00:00Z", json!({"flag": "yes", "at": "2026-01-01T00:00:00Z"})),
        ] {
            assert_eq!(form_of(query), Ok(want), "{query}");
        }
    }

    #[test]
    fn arguments_that_are_no_field_are_told_apart_from_those_without_a_single_value() {
        for (query, want) in [
            ("other=1", ArgumentFault::Unknown),
            ("inner.other=1", ArgumentFault::Unknown),
            ("number.a=1", ArgumentFault::Unknown),
            ("inners.user_name=1", ArgumentFault::Unknown),
            ("inner=1", ArgumentFault::NotAValue),
            ("inners=1", ArgumentFault::NotAValue),
            ("texts=1", ArgumentFault::NotAValue),
            ("any=1", ArgumentFault::NotAValue),
            ("by_number.7=1", ArgumentFault::NotAValue),
            ("inner.user_name=%ff", ArgumentFault::NotUtf8),
            ("%ff=1", ArgumentFault::Unknown),
            ("any.fields.a=1", ArgumentFault::NotAValue),
            ("at.seconds=1", ArgumentFault::NotAValue),
        ] {
            assert_eq!(form_of(query), Err(want), "{query}");
        }
        let deep = format!("{}user_name=1", "inner.".repeat(100_000));
        assert_eq!(form_of(&deep), Err(ArgumentFault::NotAValue));
    }
}
