//! The JSON form of messages (the JSON mapping of protobuf), in both directions and within bounds.

use std::io::{self, Write};

use prost_reflect::{DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde::de::Deserializer;
use serde_json::ser::Formatter;
use serde_json::{Map, Value};

/// How deep objects and lists may stand in each other. What is decoded has this limit as well, apart from messages within `Any`.
const MOST_NESTED: usize = 100;
/// How many `Any` may stand in each other: all bytes of the inner ones are held once more for each.
const MOST_ANY: usize = 4;
/// The most characters of a fault.
const TOLD: usize = 300;

/// Reads a message from JSON.
///
/// # Errors
/// What is wrong, with the place in the JSON.
pub(super) fn read(message: &MessageDescriptor, json: &[u8]) -> Result<DynamicMessage, String> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let read = read_from(message, &mut deserializer)?;
    deserializer.end().map_err(|error| error.to_string())?;
    Ok(read)
}

/// Reads a message from its JSON form.
///
/// # Errors
/// What is wrong, with the place in the form.
pub(super) fn read_form(message: &MessageDescriptor, form: Map<String, Value>) -> Result<DynamicMessage, String> {
    read_from(message, Value::from(form))
}

/// Reads a message that has one field, from the JSON of its value.
///
/// # Errors
/// What is wrong, with the place in the message.
pub(super) fn read_member(message: &MessageDescriptor, name: &str, json: &[u8]) -> Result<DynamicMessage, String> {
    // One value, so that what follows it cannot be a member of the message.
    serde_json::from_slice::<serde::de::IgnoredAny>(json).map_err(|error| error.to_string())?;
    read(message, &[b"{\"", name.as_bytes(), b"\":", json, b"}"].concat())
}

fn read_from<'de>(
    message: &MessageDescriptor,
    deserializer: impl Deserializer<'de, Error = serde_json::Error>,
) -> Result<DynamicMessage, String> {
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(deserializer, &mut track);
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    DynamicMessage::deserialize_with_options(message.clone(), tracked, &options).map_err(|error| {
        let place = track.path().to_string();
        // The end of the text, or the whole, is at no place.
        let told = if matches!(&*place, "." | "?") { error.to_string() } else { format!("{place}: {error}") };
        told.chars().take(TOLD).collect()
    })
}

/// Why a message has no JSON form.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum JsonFormFault {
    /// It is not a message of this type.
    NotAMessage,
    TooLarge,
    /// It contains what has no JSON form, such as an `Any` of a type that is not known.
    NoForm(String),
}

/// How messages are written as JSON.
#[derive(Clone, Debug)]
pub(super) struct JsonForm {
    pub options: SerializeOptions,
    /// 64-bit integers are texts with hexadecimal digits.
    pub hexadecimal: bool,
    /// The most bytes of the JSON of a message.
    pub most: usize,
}

impl JsonForm {
    /// Appends the JSON of an encoded message.
    pub(super) fn write(
        &self,
        message: &MessageDescriptor,
        encoded: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), JsonFormFault> {
        let message = DynamicMessage::decode(message.clone(), encoded).map_err(|_| JsonFormFault::NotAMessage)?;
        let room = self.most;
        let writer = BoundedWriter { out, room };
        let formatter = BoundedFormatter { hexadecimal: self.hexadecimal, ..BoundedFormatter::default() };
        let mut serializer = serde_json::Serializer::with_formatter(writer, formatter);
        message.serialize_with_options(&mut serializer, &self.options).map_err(|error| match error.io_error_kind() {
            Some(_) => JsonFormFault::TooLarge,
            None => JsonFormFault::NoForm(error.to_string().chars().take(TOLD).collect()),
        })
    }
}

/// Appends up to a number of bytes: few bytes of a message can have a long JSON form.
struct BoundedWriter<'a> {
    out: &'a mut Vec<u8>,
    room: usize,
}

impl Write for BoundedWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.room = self.room.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        self.out.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Compact JSON that is not nested too deep. Messages within `Any` are decoded one by one while they are written, so that only this
/// bounds them.
#[derive(Default)]
struct BoundedFormatter {
    depth: usize,
    /// The depths of the objects that are the form of an `Any`.
    of_any: Vec<usize>,
    is_in_key: bool,
    hexadecimal: bool,
}

impl BoundedFormatter {
    fn begin(&mut self) -> io::Result<()> {
        self.depth += 1;
        if self.depth > MOST_NESTED { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(()) }
    }
}

impl Formatter for BoundedFormatter {
    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin()?;
        writer.write_all(b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.of_any.pop_if(|depth| *depth == self.depth);
        self.depth -= 1;
        writer.write_all(b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        self.is_in_key = true;
        if is_first { Ok(()) } else { writer.write_all(b",") }
    }

    fn end_object_key<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.is_in_key = false;
        Ok(())
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if self.is_in_key && fragment == "@type" {
            self.of_any.push(self.depth);
            if self.of_any.len() > MOST_ANY {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
        }
        writer.write_all(fragment.as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin()?;
        writer.write_all(b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth -= 1;
        writer.write_all(b"]")
    }

    fn write_i64<W: ?Sized + Write>(&mut self, writer: &mut W, value: i64) -> io::Result<()> {
        let sign = if value < 0 { "-" } else { "" };
        match self.hexadecimal {
            true => write!(writer, "\"{sign}0x{:x}\"", value.unsigned_abs()),
            false => write!(writer, "{value}"),
        }
    }

    fn write_u64<W: ?Sized + Write>(&mut self, writer: &mut W, value: u64) -> io::Result<()> {
        match self.hexadecimal {
            true => write!(writer, "\"0x{value:x}\""),
            false => write!(writer, "{value}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use serde_json::json;
    use weir_plugin::ProtoDefinitions;

    use super::*;

    const TYPES: &str = r#"syntax = "proto3"; package t;
        import "google/protobuf/any.proto"; import "google/protobuf/duration.proto"; import "google/protobuf/struct.proto";
        import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
        enum Colour { RED = 0; BLUE = 1; }
        message All { int32 a = 1; sint64 b = 2; uint64 c = 3; fixed32 d = 4; double e = 5; float f = 6; bool g = 7; string h = 8;
            bytes i = 9; Colour j = 10; repeated int64 k = 11; map<string, All> l = 12; oneof m { string n = 13; int32 o = 14; }
            All p = 15; optional int32 q = 16; google.protobuf.Any r = 17; google.protobuf.Timestamp s = 18;
            google.protobuf.Duration t = 19; google.protobuf.Struct u = 20; google.protobuf.Int64Value v = 21; int64 long_name = 22;
            repeated All w = 23; google.protobuf.Value x = 24; }"#;

    fn message() -> MessageDescriptor {
        ProtoDefinitions::parse(TYPES).expect("valid").pool().get_message_by_name("t.All").expect("defined")
    }

    fn form() -> JsonForm {
        let options = SerializeOptions::new().use_proto_field_name(true).stringify_64_bit_integers(false);
        JsonForm { options, hexadecimal: false, most: 1 << 20 }
    }

    fn written(form: &JsonForm, json: &str) -> Result<String, String> {
        let encoded = read(&message(), json.as_bytes())?.encode_to_vec();
        let mut out = Vec::new();
        form.write(&message(), &encoded, &mut out).map_err(|fault| format!("{fault:?}"))?;
        Ok(String::from_utf8(out).expect("JSON"))
    }

    #[test]
    fn messages_keep_their_values() {
        for json in [
            json!({"a": -7, "b": -9_007_199_254_740_993_i64, "c": u64::MAX, "d": 7, "e": 1.5, "f": 2.5, "g": true, "h": "ü\"\n",
                   "i": "AP8=", "j": "BLUE"}),
            json!({"k": [1, 2], "l": {"x": {"a": 1}, "y": {}}, "n": "", "p": {"p": {}}, "q": 0, "w": [{}, {"a": 1}]}),
            json!({"r": {"@type": "type.googleapis.com/t.All", "a": 3}, "s": "2026-01-02T03:04:05.006Z", "t": "1.500s",
                   "u": {"a": [1.0, null, {"b": "c"}]}, "v": 3, "x": [true]}),
        ] {
            let out = written(&form(), &json.to_string()).expect("valid");
            assert_eq!(serde_json::from_str::<Value>(&out).expect("JSON"), json);
        }
        // Numbers as texts, the other name of a field, a null, and an enum's number.
        let read = written(
            &form(),
            r#"{"a": "7", "longName": "9007199254740993", "e": "NaN", "h": null, "j": 1, "g": false}"#,
        );
        assert_eq!(read.expect("valid"), r#"{"a":7,"e":"NaN","j":"BLUE","long_name":9007199254740993}"#);
    }

    #[test]
    fn defaults_enums_and_integers_are_written_as_configured() {
        let all = JsonForm { options: form().options.skip_default_fields(false).use_enum_numbers(true), ..form() };
        let out: Value = serde_json::from_str(&written(&all, r#"{"j": "BLUE"}"#).expect("valid")).expect("JSON");
        assert_eq!(out["j"], 1);
        assert_eq!((&out["a"], &out["h"], &out["k"], &out["l"]), (&json!(0), &json!(""), &json!([]), &json!({})));
        assert_eq!(
            (out.get("n"), out.get("p"), out.get("q")),
            (None, None, None),
            "these are not there, which differs from a default"
        );
        let text = JsonForm { options: form().options.stringify_64_bit_integers(true), ..form() };
        assert_eq!(written(&text, r#"{"a": 1, "b": "-2", "k": [3]}"#).expect("valid"), r#"{"a":1,"b":"-2","k":["3"]}"#);
        let hexadecimal = JsonForm { hexadecimal: true, ..form() };
        let out = written(&hexadecimal, r#"{"a": 255, "b": -255, "c": 18446744073709551615}"#);
        assert_eq!(out.expect("valid"), r#"{"a":255,"b":"-0xff","c":"0xffffffffffffffff"}"#);
    }

    #[test]
    fn faults_are_told_with_their_place() {
        for (json, want) in [
            (r#"{"p": {"a": "x"}}"#, "p.a: "),
            (r#"{"w": [{}, {"a": 1.5}]}"#, "w[1].a: "),
            (r#"{"l": {"x": {"other": 1}}}"#, "l.x"),
            (r#"{"n": "a", "o": 1}"#, "multiple fields provided for oneof 'm'"),
            (r#"{"a": 2147483648}"#, "a: "),
            (r#"{"i": "?"}"#, "i: "),
            (r#"{"j": "GREEN"}"#, "j: "),
            (r#"{"s": "yesterday"}"#, "s: "),
            (r#"{"r": {"@type": "type.googleapis.com/no.Such"}}"#, "r"),
            ("[]", "invalid type"),
            ("{} {}", "trailing characters at line 1 column 4"),
            ("{", "EOF while parsing"),
        ] {
            let fault = read(&message(), json.as_bytes()).expect_err("it is wrong");
            assert!(fault.starts_with(want), "{json}: {fault}");
        }
        let unknown = read(&message(), br#"{"other": 1}"#).expect_err("it is wrong");
        assert!(unknown.contains("other"), "{unknown}");
        let long = format!(r#"{{"j": "{}"}}"#, "x".repeat(1 << 16));
        assert!(read(&message(), long.as_bytes()).expect_err("it is wrong").len() <= TOLD);
    }

    #[test]
    fn deep_messages_are_refused_in_both_directions() {
        let nested = |depth: usize| format!("{}{}", r#"{"p":"#.repeat(depth) + "{}", "}".repeat(depth));
        let message = message();
        assert!(read(&message, nested(90).as_bytes()).is_ok());
        assert!(read(&message, nested(100_000).as_bytes()).is_err());
        let wrapped = |inner: Vec<u8>| {
            let length = |length: usize| {
                let mut out = Vec::new();
                prost::encoding::encode_varint(length as u64, &mut out);
                out
            };
            [vec![122], length(inner.len()), inner].concat()
        };
        let deep = |depth: usize| (0..depth).fold(Vec::new(), |inner, _| wrapped(inner));
        let mut out = Vec::new();
        assert_eq!(form().write(&message, &deep(90), &mut out), Ok(()));
        assert_eq!(form().write(&message, &deep(2_000), &mut out), Err(JsonFormFault::NotAMessage));
    }

    #[test]
    fn messages_within_any_are_bounded() {
        let any = |inner: Vec<u8>| prost_reflect::prost_types::Any {
            type_url: "type.googleapis.com/google.protobuf.Any".to_owned(),
            value: inner,
        };
        let deep = |depth: usize| (0..depth).fold(Vec::new(), |inner, _| any(inner).encode_to_vec());
        let message = message().parent_pool().get_message_by_name("google.protobuf.Any").expect("it is imported");
        for depth in [MOST_ANY + 2, 2_000] {
            assert_eq!(form().write(&message, &deep(depth), &mut Vec::new()), Err(JsonFormFault::TooLarge), "{depth}");
        }
        let unknown = prost_reflect::prost_types::Any { type_url: "a/no.Such".to_owned(), value: Vec::new() };
        let fault = form().write(&message, &unknown.encode_to_vec(), &mut Vec::new());
        assert_eq!(fault, Err(JsonFormFault::NoForm("message 'no.Such' not found".to_owned())));
    }

    #[test]
    fn json_is_bounded_whatever_the_length_of_the_message() {
        let many = [0xba, 1, 0].repeat(1_000);
        let all = JsonForm { options: form().options.skip_default_fields(false), most: 10_000, ..form() };
        let mut out = Vec::new();
        assert_eq!(all.write(&message(), &many, &mut out), Err(JsonFormFault::TooLarge));
        assert!(out.len() <= 10_000);
    }
}
