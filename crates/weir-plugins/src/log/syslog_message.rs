//! The messages of syslog (RFC 5424) that several loggers send: the text of a message is a record as JSON.

use jiff::Timestamp;
use weir_records::Record;

use crate::log::captured::{self, BatchWriter};

/// As in Apache APISIX, so that existing rules of syslog servers still match.
const APP_NAME: &str = "apisix";
/// The longest name of a host in a message (RFC 5424 §6).
const MAX_HOSTNAME: usize = 255;
/// A message without structured data (RFC 5424 §6.3).
pub(crate) const NO_DATA: &str = "-";

/// What a message has before its text.
pub(crate) struct SyslogHead<'a> {
    /// Facility and severity (RFC 5424 §6.2.1).
    pub priority: u8,
    /// The host that the client has asked for.
    pub host: &'a [u8],
    /// The structured data, or [`NO_DATA`].
    pub data: &'a str,
}

impl SyslogHead<'_> {
    /// Appends the message of a record.
    pub(crate) fn write(&self, record: &Record, writer: &BatchWriter<'_>, out: &mut Vec<u8>) {
        let time = Timestamp::from_millisecond(captured::end_ms(record) as i64).unwrap_or_default();
        let is_printable =
            !self.host.is_empty() && self.host.len() <= MAX_HOSTNAME && self.host.iter().all(u8::is_ascii_graphic);
        let host = if is_printable { String::from_utf8_lossy(self.host) } else { "-".into() };
        let (priority, pid, data) = (self.priority, std::process::id(), self.data);
        out.extend_from_slice(format!("<{priority}>1 {time:.3} {host} {APP_NAME} {pid} - {data} ").as_bytes());
        writer.json(record, out);
    }
}

/// An element of structured data (RFC 5424 §6.3), whose values may be any text.
pub(crate) fn structured_data<'a>(id: &str, parameters: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut data = format!("[{id}");
    for (name, value) in parameters {
        data += &format!(" {name}=\"");
        for char in value.chars() {
            data.extend("\"\\]".contains(char).then_some('\\'));
            data.push(char);
        }
        data.push('"');
    }
    data.push(']');
    data
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::log::captured::RecordWriter;
    use crate::testing::captured_at;

    #[test]
    fn a_message_is_one_of_rfc_5424() {
        let message = |host: &[u8], data: &str| {
            let mut out = Vec::new();
            let record = captured_at(1_700_000_000_123, 1, json!({"a": "b\nc"}), &[]);
            SyslogHead { priority: 46, host, data }.write(&record, &RecordWriter::default().batch(), &mut out);
            String::from_utf8(out).expect("text")
        };
        let pid = std::process::id();
        assert_eq!(
            message(b"h.example", NO_DATA),
            format!("<46>1 2023-11-14T22:13:20.123Z h.example apisix {pid} - - {{\"a\":\"b\\nc\"}}")
        );
        assert!(message(b"", NO_DATA).starts_with("<46>1 2023-11-14T22:13:20.123Z - apisix "));
        assert!(message(b"a b", NO_DATA).starts_with("<46>1 2023-11-14T22:13:20.123Z - apisix "));
        let data = structured_data("id", [("a", "b"), ("c", "\"d\\]")]);
        assert_eq!(data, r#"[id a="b" c="\"d\\\]"]"#);
        assert!(message(b"h", &data).ends_with(&format!("h apisix {pid} - {data} {{\"a\":\"b\\nc\"}}")));
    }
}
