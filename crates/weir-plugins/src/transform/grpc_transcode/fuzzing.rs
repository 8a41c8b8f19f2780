//! What is made of bytes from clients and from services.

use prost::Message;
use prost_reflect::{DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::Map;
use weir_plugin::{ProtoDefinitions, form};

use super::arguments;
use super::encoding;
use super::frames::{MessageFault, MessageFrames};
use super::json::{self, JsonForm};
use super::path_template::RulePath;

/// A call whose messages have fields of every kind.
pub struct TranscodedCall {
    message: MessageDescriptor,
    form: JsonForm,
}

const KINDS: &str = r#"syntax = "proto3"; package kinds;
import "google/protobuf/any.proto"; import "google/protobuf/duration.proto"; import "google/protobuf/field_mask.proto";
import "google/protobuf/struct.proto"; import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
enum Colour { NONE = 0; RED = 1; BLUE = 2; }
message All { int64 number = 1; string text = 2; All inner = 3; repeated All list = 4; map<string, string> texts = 5;
  map<int32, All> by_number = 6; Colour colour = 7; repeated Colour colours = 8; bool flag = 9; bytes bytes = 10; double real = 11;
  float small = 12; oneof choice { string one = 13; uint32 other = 14; } optional sint32 maybe_there = 15; fixed64 fixed = 16;
  google.protobuf.Any any = 17; google.protobuf.Timestamp at = 18; google.protobuf.Duration lasts = 19; google.protobuf.Struct tree = 20;
  google.protobuf.Int64Value maybe = 21; google.protobuf.FieldMask mask = 22; google.protobuf.Value value = 23; }"#;

impl TranscodedCall {
    pub fn of_every_kind() -> TranscodedCall {
        let definitions = ProtoDefinitions::parse(KINDS).expect("it is valid");
        let message = definitions.pool().get_message_by_name("kinds.All").expect("it is defined");
        let options = SerializeOptions::new().use_proto_field_name(true);
        TranscodedCall { message, form: JsonForm { options, hexadecimal: false, most: 1 << 20 } }
    }

    /// The message of JSON, encoded as for a call. It is the message that `prost` encodes.
    pub fn of_json(&self, json: &[u8]) -> Option<Vec<u8>> {
        let mut message = json::read(&self.message, json).ok()?;
        let whole = message.clone();
        let mut encoded = Vec::new();
        encoding::encode(&mut message, &mut encoded);
        assert_eq!(encoded.len(), whole.encoded_len());
        let decoded = DynamicMessage::decode(self.message.clone(), &*encoded).expect("it is a message");
        assert_eq!(decoded.encoded_len(), whole.encoded_len());
        Some(encoded)
    }

    /// How many values a path has by a template.
    pub fn bound(template: &str, path: &[u8]) -> Option<usize> {
        let template = RulePath::parse(template).ok()?;
        let bound = template.bind(path)?;
        assert_eq!(bound.len(), template.fields().count());
        Some(bound.len())
    }

    /// The message of a query string.
    pub fn of_arguments(&self, query: &[u8]) -> Option<Vec<u8>> {
        let mut members = Map::new();
        for (name, value) in form::pairs(query) {
            arguments::add(&self.message, &mut members, &name, &value).ok()?;
        }
        Some(json::read_form(&self.message, members).ok()?.encode_to_vec())
    }

    /// The JSON of a message.
    pub fn to_json(&self, encoded: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.form.write(&self.message, encoded, &mut out).ok().map(|()| out)
    }

    /// The messages in the content of an answer that comes in pieces of this size, and how it ends.
    pub fn messages(&self, content: &[u8], piece: usize) -> (Vec<Vec<u8>>, Result<bool, MessageFault>) {
        let (mut frames, mut found) = (MessageFrames::new(100), Vec::new());
        for piece in content.chunks(piece) {
            frames.push(piece);
            loop {
                match frames.next() {
                    Ok(Some(message)) => found.push(message.to_vec()),
                    Ok(None) => break,
                    Err(fault) => return (found, Err(fault)),
                }
            }
        }
        (found, Ok(frames.is_empty()))
    }
}
