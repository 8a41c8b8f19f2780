//! Encodes spans and log records in OTLP: the messages of `opentelemetry/proto/{trace,logs}/v1` (`metrics` encodes metrics).
//! Workers write the spans of an exchange with [`span`]; the sink's thread writes log records with [`log_record`], and joins the
//! items of a batch with [`request`].

use serde_json::Value;

use crate::span::{AttributeValue, SpanKind, TraceSpan};

const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const BYTES: u64 = 2;
const FIXED_32: u64 = 5;

/// The flags of a span which say that its parent is known to be in another process.
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

pub(crate) fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(crate) fn key(out: &mut Vec<u8>, field: u64, wire: u64) {
    varint(out, field << 3 | wire);
}

pub(crate) fn number(out: &mut Vec<u8>, field: u64, value: u64) {
    key(out, field, VARINT);
    varint(out, value);
}

pub(crate) fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    key(out, field, BYTES);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

pub(crate) fn fixed_64(out: &mut Vec<u8>, field: u64, value: u64) {
    key(out, field, FIXED_64);
    out.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn double(out: &mut Vec<u8>, field: u64, value: f64) {
    fixed_64(out, field, value.to_bits());
}

/// Writes a `string`; bytes that are not UTF-8 are replaced.
pub(crate) fn text(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    bytes(out, field, String::from_utf8_lossy(value).as_bytes());
}

/// Writes an embedded message. Its length is inserted in front once it is known.
pub(crate) fn message(out: &mut Vec<u8>, field: u64, write: impl FnOnce(&mut Vec<u8>)) {
    key(out, field, BYTES);
    let start = out.len();
    write(out);
    let end = out.len();
    varint(out, (end - start) as u64);
    let length = out.len() - end;
    out[start..].rotate_right(length);
}

fn any_value(out: &mut Vec<u8>, value: &AttributeValue<'_>) {
    match value {
        AttributeValue::Text(value) => text(out, 1, value),
        AttributeValue::Number(value) => number(out, 3, *value as u64),
        AttributeValue::Texts(values) => message(out, 5, |out| {
            values.iter().for_each(|value| message(out, 1, |out| text(out, 1, value)));
        }),
    }
}

/// Writes JSON as an `AnyValue`; `null` is one without a value.
fn json_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => {}
        Value::String(value) => text(out, 1, value.as_bytes()),
        Value::Bool(value) => number(out, 2, (*value).into()),
        Value::Number(value) => match value.as_i64() {
            Some(integer) => number(out, 3, integer as u64),
            None => double(out, 4, value.as_f64().unwrap_or_default()),
        },
        Value::Array(values) => message(out, 5, |out| {
            values.iter().for_each(|value| message(out, 1, |out| json_value(out, value)));
        }),
        Value::Object(members) => message(out, 6, |out| {
            members.iter().for_each(|(name, value)| key_value(out, 1, name, |out| json_value(out, value)));
        }),
    }
}

/// Writes a `KeyValue` with an `AnyValue`.
pub(crate) fn key_value(out: &mut Vec<u8>, field: u64, name: &str, value: impl FnOnce(&mut Vec<u8>)) {
    message(out, field, |out| {
        bytes(out, 1, name.as_bytes());
        message(out, 2, value);
    });
}

/// The value of a resource attribute.
pub enum ResourceValue<'a> {
    Text(&'a str),
    Flag(bool),
    Number(f64),
}

/// Appends a resource attribute.
pub fn resource_attribute(out: &mut Vec<u8>, name: &str, value: &ResourceValue<'_>) {
    key_value(out, 1, name, |out| match value {
        ResourceValue::Text(value) => bytes(out, 1, value.as_bytes()),
        ResourceValue::Flag(value) => number(out, 2, (*value).into()),
        ResourceValue::Number(value) => double(out, 4, *value),
    });
}

/// Appends a `Span`, as a field of the message that contains spans.
pub fn span(out: &mut Vec<u8>, span: &TraceSpan<'_>) {
    message(out, 2, |out| {
        bytes(out, 1, &span.trace.to_be_bytes());
        bytes(out, 2, &span.id.to_be_bytes());
        if span.parent != 0 {
            bytes(out, 4, &span.parent.to_be_bytes());
        }
        text(out, 5, &span.name);
        let kind = match span.kind {
            SpanKind::Server => 2,
            SpanKind::Client => 3,
        };
        number(out, 6, kind);
        for (field, time_ns) in [(7, span.start_ns), (8, span.end_ns)] {
            fixed_64(out, field, time_ns);
        }
        for (name, value) in &span.attributes {
            key_value(out, 9, name, |out| any_value(out, value));
        }
        if span.is_failed {
            message(out, 15, |out| number(out, 3, 2));
        }
        let remote = if span.is_parent_remote { IS_REMOTE } else { 0 };
        let flags = u32::from(span.is_sampled) | HAS_IS_REMOTE | remote;
        key(out, 16, FIXED_32);
        out.extend_from_slice(&flags.to_le_bytes());
    });
}

/// The data of a `LogRecord`.
pub struct LogRecord<'a> {
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    pub severity: (u64, &'a str),
    pub body: &'a Value,
    /// The unique id, by which a receiver can recognise duplicates.
    pub id: &'a str,
    /// The trace id, span id and sampled flag, if the record belongs to a trace.
    pub context: Option<(u128, u64, bool)>,
}

/// The severity number and text for an exchange with this status.
pub fn severity_of(status: u16) -> (u64, &'static str) {
    match status {
        500.. => (17, "ERROR"),
        400.. => (13, "WARN"),
        _ => (9, "INFO"),
    }
}

/// Appends a `LogRecord`, as a field of the message that contains log records.
pub fn log_record(out: &mut Vec<u8>, record: &LogRecord<'_>) {
    message(out, 2, |out| {
        fixed_64(out, 1, record.time_ns);
        number(out, 2, record.severity.0);
        bytes(out, 3, record.severity.1.as_bytes());
        message(out, 5, |out| json_value(out, record.body));
        key_value(out, 6, "log.record.uid", |out| bytes(out, 1, record.id.as_bytes()));
        if let Some((trace, span, is_sampled)) = record.context {
            key(out, 8, FIXED_32);
            out.extend_from_slice(&u32::from(is_sampled).to_le_bytes());
            bytes(out, 9, &trace.to_be_bytes());
            bytes(out, 10, &span.to_be_bytes());
        }
    });
}

/// An `ExportTraceServiceRequest`, `ExportLogsServiceRequest` or `ExportMetricsServiceRequest`: they differ only in the items,
/// from [`span`], [`log_record`] or `metrics`.
pub fn request<'a>(resource: &[u8], scope: (&str, &str), items: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    message(&mut out, 1, |out| {
        bytes(out, 1, resource);
        message(out, 2, |out| {
            message(out, 1, |out| {
                bytes(out, 1, scope.0.as_bytes());
                bytes(out, 2, scope.1.as_bytes());
            });
            items.for_each(|items| out.extend_from_slice(items));
        });
    });
    out
}

/// The number of rejected items and the reason, from an `Export…ServiceResponse`. An
/// answer of another form rejects nothing.
pub fn rejected(answer: &[u8]) -> (u64, String) {
    let mut rejected = (0, String::new());
    for (field, value) in ProtobufFields(answer) {
        let (1, ProtobufValue::Bytes(partial)) = (field, value) else { continue };
        for part in ProtobufFields(partial) {
            match part {
                (1, ProtobufValue::Number(count)) => rejected.0 = u64::try_from(count as i64).unwrap_or_default(),
                (2, ProtobufValue::Bytes(why)) => rejected.1 = String::from_utf8_lossy(why).into_owned(),
                _ => {}
            }
        }
    }
    rejected
}

pub(crate) enum ProtobufValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed,
}

/// Iterates over the fields of a message, until its end or an invalid field.
pub(crate) struct ProtobufFields<'a>(pub(crate) &'a [u8]);

impl<'a> ProtobufFields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(taken)
    }
}

impl<'a> Iterator for ProtobufFields<'a> {
    type Item = (u64, ProtobufValue<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let key = self.varint()?;
        let value = match key & 7 {
            VARINT => ProtobufValue::Number(self.varint()?),
            BYTES => {
                let length = self.varint()?;
                ProtobufValue::Bytes(self.take(length)?)
            }
            FIXED_64 => self.take(8).map(|_| ProtobufValue::Fixed)?,
            FIXED_32 => self.take(4).map(|_| ProtobufValue::Fixed)?,
            _ => return None,
        };
        Some((key >> 3, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_what_was_rejected() {
        let mut answer = Vec::new();
        message(&mut answer, 1, |out| {
            number(out, 1, 300);
            text(out, 2, b"too old");
        });
        assert_eq!(rejected(&answer), (300, "too old".to_owned()));
        for cut in 0..answer.len() {
            assert_eq!(rejected(&answer[..cut]).0, 0, "what is cut says nothing");
        }
        for none in [&b""[..], b"\xff", b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\x0b"] {
            assert_eq!(rejected(none), (0, String::new()));
        }
    }
}
