//! Definitions of protobuf messages and gRPC services: the text of a `.proto`, or a set of descriptors.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use miette::Diagnostic as _;
use prost::Message as _;
use prost_reflect::prost_types::FileDescriptorSet;
use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage, Value};
use protox::file::{ChainFileResolver, DescriptorSetFileResolver, File, FileResolver, GoogleFileResolver};
use protox::{Compiler, Error};

use crate::state;

/// The most bytes of a definition, as written.
pub const MOST_BYTES: usize = 1 << 20;
/// The most messages of a definition, with those that it imports.
const MOST_MESSAGES: usize = 10_000;
/// How deep brackets may stand in each other in a `.proto`. The values of options are read by recursion, which nothing else bounds.
const MOST_NESTED: usize = 64;

/// The name of the text among the files that it may import.
const OWN_NAME: &str = "content.proto";

/// What a definition defines, with everything that it imports.
pub struct ProtoDefinitions(Result<DescriptorPool, ProtoFault>);

impl fmt::Debug for ProtoDefinitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProtoDefinitions").field(&self.pool().all_messages().len()).finish()
    }
}

/// What is wrong with a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtoFault {
    /// The line and the column in the text, from 1, if it is at one place.
    pub place: Option<(usize, usize)>,
    pub problem: String,
}

impl ProtoFault {
    fn new(problem: impl Into<String>) -> ProtoFault {
        ProtoFault { place: None, problem: problem.into() }
    }
}

impl fmt::Display for ProtoFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.place {
            write!(f, "line {line} column {column}: ")?;
        }
        f.write_str(&self.problem)
    }
}

impl ProtoDefinitions {
    /// Reads a definition: the text of a `.proto`, or a `FileDescriptorSet` in base64. Equal definitions are read once, as long as one of
    /// them is in use.
    ///
    /// # Errors
    /// The definition is not valid, imports what is not known, or has more than is allowed.
    pub fn parse(content: &str) -> Result<Arc<ProtoDefinitions>, ProtoFault> {
        if content.len() > MOST_BYTES {
            return Err(ProtoFault::new(format!("has more than {MOST_BYTES} bytes")));
        }
        let made = state::shared("protos", content, || {
            // The parser is given what an editor of the configuration has written.
            let pool = catch_unwind(AssertUnwindSafe(|| read(content)));
            ProtoDefinitions(pool.unwrap_or_else(|_| Err(ProtoFault::new("is not a `.proto` that can be read"))))
        });
        if let Err(fault) = &made.0 { Err(fault.clone()) } else { Ok(made) }
    }

    pub fn pool(&self) -> &DescriptorPool {
        self.0.as_ref().expect("`parse` returns no others")
    }
}

fn read(content: &str) -> Result<DescriptorPool, ProtoFault> {
    let mut resolver = ChainFileResolver::new();
    let is_coded = content.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/= \t\r\n".contains(&byte));
    let names = if is_coded {
        let set = descriptors(content)?;
        let names = set.file.iter().map(|file| file.name().to_owned()).collect();
        resolver.add(DescriptorSetFileResolver::new(set));
        names
    } else {
        if let Some(place) = too_deep(content) {
            let problem = format!("has more than {MOST_NESTED} brackets within each other");
            return Err(ProtoFault { place: Some(position(content, place)), problem });
        }
        resolver.add(OwnText(content.to_owned()));
        vec![OWN_NAME.to_owned()]
    };
    resolver.add(GoogleFileResolver::new());
    resolver.add(HttpAnnotations);
    let mut compiler = Compiler::with_file_resolver(resolver);
    compiler.open_files(&names).map_err(|error| fault(content, &error))?;
    let pool = compiler.descriptor_pool();
    if pool.all_messages().len() > MOST_MESSAGES {
        return Err(ProtoFault::new(format!("defines and imports more than {MOST_MESSAGES} messages")));
    }
    Ok(pool)
}

fn descriptors(content: &str) -> Result<FileDescriptorSet, ProtoFault> {
    let coded: Vec<u8> = content.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let not_a_set = || {
        ProtoFault::new(
            "is neither the text of a `.proto` nor a FileDescriptorSet in base64, which \
             `protoc --include_imports --descriptor_set_out` writes",
        )
    };
    let bytes = STANDARD.decode(coded).map_err(|_| not_a_set())?;
    let set = FileDescriptorSet::decode(&*bytes).ok().filter(|set| !set.file.is_empty()).ok_or_else(not_a_set)?;
    // Their values are texts, which would be read by recursion without a bound. No compiler leaves them in a set.
    if is_uninterpreted(&set.transcode_to_dynamic()) {
        return Err(ProtoFault::new("has options that its compiler has not interpreted"));
    }
    Ok(set)
}

/// Whether a descriptor has options as they are written.
fn is_uninterpreted(message: &DynamicMessage) -> bool {
    fn is_in(value: &Value) -> bool {
        match value {
            Value::Message(message) => is_uninterpreted(message),
            Value::List(values) => values.iter().any(is_in),
            _ => false,
        }
    }
    message.descriptor().full_name() == "google.protobuf.UninterpretedOption"
        || message.fields().any(|(_, value)| is_in(value))
}

/// The place of the first bracket that stands in too many others; none that stands in a text or in a comment counts.
fn too_deep(content: &str) -> Option<usize> {
    let bytes = content.as_bytes();
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(&byte) = bytes.get(at) {
        let rest = &bytes[at + 1..];
        at += 1 + match byte {
            b'"' | b'\'' => text_length(byte, rest),
            b'/' if rest.starts_with(b"/") => memchr::memchr(b'\n', rest).unwrap_or(rest.len()),
            b'/' if rest.starts_with(b"*") => {
                memchr::memmem::find(&rest[1..], b"*/").map_or(rest.len(), |length| length + 3)
            }
            b'{' | b'[' | b'(' | b'<' => {
                depth += 1;
                if depth > MOST_NESTED {
                    return Some(at);
                }
                0
            }
            b'}' | b']' | b')' | b'>' => {
                depth = depth.saturating_sub(1);
                0
            }
            // A comment in the values of options. Elsewhere it is a fault, so nothing that follows is read.
            b'#' => memchr::memchr(b'\n', rest).unwrap_or(rest.len()),
            _ => 0,
        };
    }
    None
}

/// The bytes after the first quote up to the one that ends the text, or to the end of the line, where no text goes on.
fn text_length(quote: u8, rest: &[u8]) -> usize {
    let mut at = 0;
    while let Some(&byte) = rest.get(at) {
        at += match byte {
            b'\\' => 2,
            b'\n' => return at + 1,
            byte if byte == quote => return at + 1,
            _ => 1,
        };
    }
    at.min(rest.len())
}

/// The text that is read.
struct OwnText(String);

impl FileResolver for OwnText {
    fn open_file(&self, name: &str) -> Result<File, Error> {
        if name == OWN_NAME { File::from_source(name, &self.0) } else { Err(Error::file_not_found(name)) }
    }
}

/// The definitions of the option `google.api.http`, which many `.proto` files import.
struct HttpAnnotations;

impl FileResolver for HttpAnnotations {
    fn open_file(&self, name: &str) -> Result<File, Error> {
        match name {
            "google/api/annotations.proto" => File::from_source(name, ANNOTATIONS),
            "google/api/http.proto" => File::from_source(name, HTTP_RULES),
            _ => Err(Error::file_not_found(name)),
        }
    }
}

const ANNOTATIONS: &str = r#"syntax = "proto3";
package google.api;
import "google/api/http.proto";
import "google/protobuf/descriptor.proto";
extend google.protobuf.MethodOptions { HttpRule http = 72295728; }
"#;

const HTTP_RULES: &str = r#"syntax = "proto3";
package google.api;
message Http {
  repeated HttpRule rules = 1;
  bool fully_decode_reserved_expansion = 2;
}
message HttpRule {
  string selector = 1;
  oneof pattern {
    string get = 2;
    string put = 3;
    string post = 4;
    string delete = 5;
    string patch = 6;
    CustomHttpPattern custom = 8;
  }
  string body = 7;
  string response_body = 12;
  repeated HttpRule additional_bindings = 11;
}
message CustomHttpPattern {
  string kind = 1;
  string path = 2;
}
"#;

fn fault(content: &str, error: &Error) -> ProtoFault {
    let first = error.labels().and_then(|mut labels| labels.next());
    let place = first.filter(|_| error.file() == Some(OWN_NAME)).map(|label| position(content, label.offset()));
    let mut problem = error.to_string();
    if error.is_file_not_found() {
        problem.push_str(
            "; known are `google/protobuf/*.proto` and `google/api/annotations.proto`: give a FileDescriptorSet with all others in \
             base64, which `protoc --include_imports --descriptor_set_out` writes",
        );
    }
    ProtoFault { place, problem }
}

/// The line and the column of a byte.
fn position(content: &str, at: usize) -> (usize, usize) {
    let before = &content.as_bytes()[..at.min(content.len())];
    let line_start = memchr::memrchr(b'\n', before).map_or(0, |end| end + 1);
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    (line, String::from_utf8_lossy(&before[line_start..]).chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREETER: &str = r#"syntax = "proto3"; package greet; import "google/protobuf/timestamp.proto";
        import "google/api/annotations.proto";
        service Greeter { rpc Hello (Request) returns (Reply) { option (google.api.http) = { get: "/hello/{name}" }; } }
        message Request { string name = 1; } message Reply { google.protobuf.Timestamp at = 1; }"#;

    fn refused(content: &str) -> String {
        ProtoDefinitions::parse(content).expect_err("it is not valid").to_string()
    }

    #[test]
    fn definitions_are_texts_or_sets_of_descriptors() {
        let definitions = ProtoDefinitions::parse(GREETER).expect("valid");
        let again = ProtoDefinitions::parse(GREETER).expect("valid");
        assert!(Arc::ptr_eq(&definitions, &again), "it is read once");
        let set = definitions.pool().encode_to_vec();
        let coded = STANDARD.encode(&set);
        let (first, second) = coded.split_at(40);
        for content in [coded.clone(), format!("{first}\n  {second}\n")] {
            let read = ProtoDefinitions::parse(&content).expect("valid");
            assert_eq!(read.pool().get_service_by_name("greet.Greeter").expect("known").methods().len(), 1);
            assert!(read.pool().get_message_by_name("google.protobuf.Timestamp").is_some());
        }
    }

    #[test]
    fn faults_are_told_with_line_and_column() {
        assert_eq!(
            refused("syntax = \"proto3\";\nmessage A {\n  strin g = 1;\n}"),
            "line 3 column 3: name 'strin' is not defined"
        );
        assert_eq!(
            refused("syntax = \"proto3\";\n message A { string g = ; }").split_once(": ").expect("a place").0,
            "line 2 column 25"
        );
        let missing = refused("syntax = \"proto3\";\nimport \"other/names.proto\";");
        assert!(missing.starts_with("line 2 column 1: import 'other/names.proto' not found; known are"), "{missing}");
        for wrong in ["", "AAAA", "not base64", "abc="] {
            assert!(refused(wrong).starts_with("is neither the text of a `.proto` nor"), "{wrong}");
        }
    }

    #[test]
    fn definitions_are_bounded() {
        assert_eq!(refused(&"a".repeat(MOST_BYTES + 1)), "has more than 1048576 bytes");
        let many: String = (0..=MOST_MESSAGES).map(|number| format!("message M{number}{{}}")).collect();
        assert_eq!(refused(&many), "defines and imports more than 10000 messages");
        let nested = |depth: usize, open: &str, close: &str| {
            let value = format!("{}{}", open.repeat(depth), close.repeat(depth));
            let option = format!("option (google.api.http) = {{ {value} }};");
            let service = format!("service S {{ rpc C (A) returns (A) {{ {option} }} }} message A {{}}");
            format!("import \"google/api/annotations.proto\";\n{service}")
        };
        for (open, close) in
            [("additional_bindings {", "}"), ("additional_bindings <", ">"), ("additional_bindings: [", "]")]
        {
            let deep = refused(&nested(100_000 / open.len(), open, close));
            assert!(deep.contains("line 2 column") && deep.contains("more than 64 brackets"), "{deep}");
        }
        // What looks like the end of a bracket, or the start of a text, in what is not read.
        for hidden in ["/* } */", "/* \" */", "// } \" '\n", "# } \" '\n", "selector: \"}\\\"}\"", "selector: '}\\'}'"]
        {
            let deep = refused(&nested(200, &format!("additional_bindings {{ {hidden} "), "}"));
            assert!(deep.contains("more than 64 brackets"), "{hidden}: {deep}");
        }
        assert!(ProtoDefinitions::parse(&nested(50, "additional_bindings {", "}")).is_ok());
    }

    #[test]
    fn options_that_were_not_interpreted_are_refused() {
        use prost_reflect::prost_types::{FileDescriptorProto, FileOptions, UninterpretedOption};
        let option = UninterpretedOption { aggregate_value: Some("a{".repeat(100_000)), ..Default::default() };
        let options = FileOptions { uninterpreted_option: vec![option], ..Default::default() };
        let file =
            FileDescriptorProto { name: Some("a.proto".to_owned()), options: Some(options), ..Default::default() };
        let set = FileDescriptorSet { file: vec![file] };
        let coded = STANDARD.encode(set.encode_to_vec());
        assert_eq!(refused(&coded), "has options that its compiler has not interpreted");
    }
}
