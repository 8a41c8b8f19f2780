//! Heads and trailers as field sections (RFC 9114 §4.2, §4.3), by the rules of HTTP/2.

use super::error::{H3ErrorCode, H3Fault};
use super::frame::{self, kind};
use super::qpack::{self, SectionWriter};
use crate::field_sink::FieldSink;
use crate::h2::trailers::TrailersReader;
use crate::h2::{Priority, RequestReader};
use crate::head::{RequestHead, Version};
use crate::limits::Limits;
use crate::request::Reject;
use crate::trailers::Trailers;

/// The longest encoded section that is read with these limits, in bytes: that of a head that is refused for its size is decoded, as
/// far as possible, so that it is answered.
pub fn max_section(limits: &Limits) -> usize {
    const LEAST: usize = 64 * 1024;
    LEAST.max(2 * limits.head_bytes)
}

/// What a request's section comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The client's `Priority` field (RFC 9218).
    pub priority: Option<Priority>,
    /// Why the request is refused. [`Reject::Malformed`] ends its stream without an answer (H3_MESSAGE_ERROR).
    pub parsed: Result<(), Reject>,
}

/// Makes a head of a request's section; `request` must be clear. With `ended` no content follows. An error ends the connection.
pub fn read_request(
    section: &[u8],
    ended: bool,
    limits: &Limits,
    request: &mut RequestHead,
) -> Result<ReadRequest, H3ErrorCode> {
    let mut reader = RequestReader::new(request, limits);
    let decoded = qpack::decode(section, |field| reader.field(field));
    decoded.map_err(|_| H3ErrorCode::QPACK_DECOMPRESSION_FAILED)?;
    let (priority, parsed) = (reader.priority(), reader.finish(ended));
    request.version = Version::Http3;
    Ok(ReadRequest { priority, parsed })
}

/// Makes trailers of a section.
pub fn read_trailers(section: &[u8], limits: &Limits) -> Result<Trailers, H3Fault> {
    let mut reader = TrailersReader::new(*limits);
    let decoded = qpack::decode(section, |field| reader.field(field));
    decoded.map_err(|_| H3Fault::Connection(H3ErrorCode::QPACK_DECOMPRESSION_FAILED))?;
    reader.finish().ok_or(H3Fault::Stream(H3ErrorCode::H3_MESSAGE_ERROR))
}

/// Appends a HEADERS frame with the head of a response; returns the size of its fields as HTTP/1 lines, in bytes.
pub fn write_response(out: &mut Vec<u8>, status: u16, fields: impl FnOnce(&mut SectionWriter<'_>)) -> usize {
    write_section(out, |writer| {
        writer.status(status);
        fields(writer);
    })
}

/// Appends a HEADERS frame with trailers.
pub fn write_trailers(out: &mut Vec<u8>, trailers: &Trailers) {
    write_section(out, |writer| trailers.fields().for_each(|(name, value)| writer.add(name, value)));
}

fn write_section(out: &mut Vec<u8>, fields: impl FnOnce(&mut SectionWriter<'_>)) -> usize {
    let mut section = Vec::with_capacity(256);
    let mut writer = SectionWriter::begin(&mut section);
    fields(&mut writer);
    let bytes = writer.bytes();
    frame::write_head(out, kind::HEADERS, section.len());
    out.extend_from_slice(&section);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::Framing;
    use crate::method::Method;

    fn section(fields: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = SectionWriter::begin(&mut out);
        fields.iter().for_each(|(name, value)| writer.add(name.as_bytes(), value.as_bytes()));
        out
    }

    const GET: [(&str, &str); 4] =
        [(":method", "GET"), (":scheme", "https"), (":authority", "a.test"), (":path", "/x")];

    fn read(fields: &[(&str, &str)], ended: bool) -> (RequestHead, ReadRequest) {
        let mut request = RequestHead::default();
        let read = read_request(&section(fields), ended, &Limits::default(), &mut request).expect("it can be decoded");
        (request, read)
    }

    #[test]
    fn a_request_is_read_by_the_rules_of_http2() {
        let (request, read) =
            read(&[&GET[..], &[("priority", "u=1"), ("cookie", "a=b"), ("cookie", "c=d")]].concat(), true);
        assert_eq!(read, ReadRequest { priority: Some(Priority::parse(b"u=1")), parsed: Ok(()) });
        assert_eq!((request.method, request.version, request.framing), (Method::Get, Version::Http3, Framing::None));
        assert_eq!((request.path(), request.host()), (&b"/x"[..], &b"a.test"[..]));
        assert_eq!(request.head.value(b"cookie"), Some(&b"a=b; c=d"[..]));
    }

    #[test]
    fn malformed_heads_are_told_from_those_that_are_answered() {
        for (more, reject) in [
            (&[("connection", "close")][..], Reject::Malformed),
            (&[(":path", "/")], Reject::Malformed),
            (&[("x", "1"), (":protocol", "websocket")], Reject::Malformed),
            (&[("content-length", "1")], Reject::Malformed),
            (&[("te", "gzip")], Reject::Malformed),
            (&[("host", "b.test")], Reject::Host),
        ] {
            assert_eq!(read(&[&GET[..], more].concat(), true).1.parsed, Err(reject), "{more:?}");
        }
        assert_eq!(read(&GET[1..], true).1.parsed, Err(Reject::Malformed), "without a method");
        let long = "x".repeat(40_000);
        assert_eq!(read(&[&GET[..], &[("x", &long)]].concat(), true).1.parsed, Err(Reject::HeadTooLarge));
    }

    #[test]
    fn a_section_that_cannot_be_decoded_ends_the_connection() {
        let mut request = RequestHead::default();
        let read = read_request(&[0, 0, 0x80], true, &Limits::default(), &mut request);
        assert_eq!(read, Err(H3ErrorCode::QPACK_DECOMPRESSION_FAILED));
        let failed = H3Fault::Connection(H3ErrorCode::QPACK_DECOMPRESSION_FAILED);
        assert_eq!(read_trailers(&[1, 0], &Limits::default()), Err(failed));
    }

    #[test]
    fn trailers_have_no_pseudo_fields() {
        let trailers = read_trailers(&section(&[("x-sum", "1")]), &Limits::default()).expect("valid");
        assert_eq!(trailers.fields().collect::<Vec<_>>(), [(&b"x-sum"[..], &b"1"[..])]);
        let malformed = Err(H3Fault::Stream(H3ErrorCode::H3_MESSAGE_ERROR));
        assert_eq!(read_trailers(&section(&[(":status", "200")]), &Limits::default()), malformed);
    }

    #[test]
    fn a_response_is_written_as_one_frame() {
        let mut out = Vec::new();
        let bytes = write_response(&mut out, 200, |writer| writer.add(b"Content-Type", b"text/plain"));
        assert_eq!(bytes, "content-type: text/plain\r\n".len());
        assert_eq!(out, [1, 4, 0, 0, 0xd9, 0xf5], "both stand in the static table");
    }
}
