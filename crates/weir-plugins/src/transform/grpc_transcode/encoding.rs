//! Encodes messages from the inside out. `prost` asks at each level for the size of all that is below it, so that what is nested deeply
//! takes time by its depth for each of its parts.

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value};

/// Appends the bytes of a message, which is left without its fields.
pub(super) fn encode(message: &mut DynamicMessage, out: &mut Vec<u8>) {
    let descriptor = message.descriptor();
    let fields: Vec<(FieldDescriptor, Value)> = message.take_fields().collect();
    for (field, value) in fields {
        match (value, field.kind()) {
            // Groups have no length, and only old definitions have them.
            (value, _) if field.is_group() => without_messages(&descriptor, &field, value, out),
            (Value::Message(mut inner), _) => with_length(field.number(), &content_of(&mut inner), out),
            (Value::Map(entries), Kind::Message(entry)) if has_messages(&entry) => {
                for (key, value) in entries {
                    with_length(field.number(), &entry_content(&entry, key, value), out);
                }
            }
            (Value::List(items), Kind::Message(_)) => {
                for item in items {
                    if let Value::Message(mut inner) = item {
                        with_length(field.number(), &content_of(&mut inner), out);
                    }
                }
            }
            (value, _) => without_messages(&descriptor, &field, value, out),
        }
    }
    // Extensions, which JSON can name, too.
    message.encode_raw(out);
}

/// Appends a field that contains no messages.
fn without_messages(descriptor: &MessageDescriptor, field: &FieldDescriptor, value: Value, out: &mut Vec<u8>) {
    let mut alone = DynamicMessage::new(descriptor.clone());
    alone.set_field(field, value);
    alone.encode_raw(out);
}

fn content_of(message: &mut DynamicMessage) -> Vec<u8> {
    let mut content = Vec::new();
    encode(message, &mut content);
    content
}

fn with_length(number: u32, content: &[u8], out: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

/// Whether the values of a map are messages.
fn has_messages(entry: &MessageDescriptor) -> bool {
    matches!(entry.map_entry_value_field().kind(), Kind::Message(_))
}

fn entry_content(entry: &MessageDescriptor, key: MapKey, value: Value) -> Vec<u8> {
    let mut of_key = DynamicMessage::new(entry.clone());
    of_key.set_field(&entry.map_entry_key_field(), key.into());
    let mut content = of_key.encode_to_vec();
    if let Value::Message(mut inner) = value {
        with_length(entry.map_entry_value_field().number(), &content_of(&mut inner), &mut content);
    }
    content
}

#[cfg(test)]
mod tests {
    use weir_plugin::ProtoDefinitions;

    use super::super::json;
    use super::*;

    fn message(text: &str) -> DynamicMessage {
        let proto = r#"syntax = "proto3"; enum E { NONE = 0; ONE = 1; }
            message A { A inner = 1; repeated A list = 2; map<string, A> by_name = 3; map<int32, string> texts = 4; repeated int32 numbers = 5;
                optional string maybe = 6; oneof one { string text = 7; A other = 8; } repeated E colours = 9; bytes bytes = 20; }"#;
        let definitions = ProtoDefinitions::parse(proto).expect("a proto");
        json::read(&definitions.pool().get_message_by_name("A").expect("it is there"), text.as_bytes()).expect(text)
    }

    #[test]
    fn messages_are_encoded_as_prost_does() {
        for text in [
            "{}",
            r#"{"inner": {}, "maybe": "", "numbers": [1, 0, -1], "bytes": "AAE="}"#,
            r#"{"list": [{}, {"inner": {"list": [{"text": "a"}]}}], "colours": ["ONE", "NONE"]}"#,
            r#"{"byName": {"a": {"byName": {"b": {"maybe": "x"}}}}, "texts": {"7": ""}, "other": {"texts": {"1": "a"}}}"#,
        ] {
            let mut out = Vec::new();
            encode(&mut message(text), &mut out);
            let want = message(text);
            assert_eq!(out.len(), want.encoded_len(), "{text}");
            assert_eq!(DynamicMessage::decode(want.descriptor(), &*out).expect("a message"), want, "{text}");
        }
        let mut out = Vec::new();
        encode(&mut message(r#"{"maybe": "x", "inner": {"text": "y"}}"#), &mut out);
        assert_eq!(out, b"\x0a\x03\x3a\x01y\x32\x01x", "in the order of their numbers");
    }
}
