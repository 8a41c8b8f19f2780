//! Finds the end of HTTP/1.1 responses.

use httparse::Status;

use crate::chunked::{Chunked, MalformedMessage};

/// The longest accepted head, in bytes.
const LONGEST_HEAD: usize = 256 * 1024;
/// The most fields of a head.
const MOST_FIELDS: usize = 128;

/// Receives the parts of a response; `()` drops them.
pub(in crate::engine) trait AnswerSink {
    /// A head, that of an interim response included.
    fn head(&mut self, status: u16, fields: &[httparse::Header<'_>]);

    /// Some bytes of the content.
    fn content(&mut self, data: &[u8]);
}

impl AnswerSink for () {
    #[inline]
    fn head(&mut self, _: u16, _: &[httparse::Header<'_>]) {}

    #[inline]
    fn content(&mut self, _: &[u8]) {}
}

/// Parses the responses on one connection, one after the other.
#[derive(Debug, Default)]
pub(in crate::engine) struct ResponseParser {
    phase: ResponsePhase,
    /// The beginning of a head that was received in pieces.
    partial: Vec<u8>,
    status: u16,
    keep_alive: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum ResponsePhase {
    #[default]
    Head,
    /// The number of bytes of the body that are still to come.
    Length(u64),
    Chunked(Chunked),
    UntilClose,
}

/// The result of feeding bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum ResponseStep {
    More,
    /// The response ended after this many of the fed bytes.
    Done {
        used: usize,
    },
}

impl ResponseParser {
    /// Prepares for the next response.
    #[inline]
    pub(in crate::engine) fn reset(&mut self) {
        self.phase = ResponsePhase::Head;
        self.partial.clear();
    }

    /// The status of the last head.
    #[inline]
    pub(in crate::engine) fn status(&self) -> u16 {
        self.status
    }

    /// Whether the connection can be used again.
    #[inline]
    pub(in crate::engine) fn keeps_alive(&self) -> bool {
        self.keep_alive
    }

    /// Whether the peer's close completes the response.
    pub(in crate::engine) fn ends_at_close(&self) -> bool {
        self.phase == ResponsePhase::UntilClose
    }

    /// Parses more bytes. `head_only`: the response is to a HEAD request.
    #[inline]
    pub(in crate::engine) fn feed(&mut self, data: &[u8], head_only: bool) -> Result<ResponseStep, MalformedMessage> {
        self.feed_to(data, head_only, &mut ())
    }

    /// Parses more bytes, and passes their parts to `sink`.
    #[inline]
    pub(in crate::engine) fn feed_to(
        &mut self,
        data: &[u8],
        head_only: bool,
        sink: &mut impl AnswerSink,
    ) -> Result<ResponseStep, MalformedMessage> {
        let mut used = 0;
        while self.phase == ResponsePhase::Head {
            match self.head(&data[used..], head_only, sink)? {
                None => return Ok(ResponseStep::More),
                Some(length) => used += length,
            }
            // An interim response (1xx) is followed by the final one.
            if self.phase == ResponsePhase::Head && used == data.len() {
                return Ok(ResponseStep::More);
            }
        }
        let rest = &data[used..];
        match &mut self.phase {
            ResponsePhase::Head => unreachable!("the head has been read"),
            ResponsePhase::Length(left) => {
                if *left <= rest.len() as u64 {
                    sink.content(&rest[..*left as usize]);
                    return Ok(ResponseStep::Done { used: used + *left as usize });
                }
                sink.content(rest);
                *left -= rest.len() as u64;
                Ok(ResponseStep::More)
            }
            ResponsePhase::Chunked(state) => Ok(state
                .feed(rest, |data| sink.content(data))?
                .map_or(ResponseStep::More, |length| ResponseStep::Done { used: used + length })),
            ResponsePhase::UntilClose => {
                sink.content(rest);
                Ok(ResponseStep::More)
            }
        }
    }

    /// Parses a head; returns how many of the bytes belong to it, or `None` while it is incomplete.
    fn head(
        &mut self,
        data: &[u8],
        head_only: bool,
        sink: &mut impl AnswerSink,
    ) -> Result<Option<usize>, MalformedMessage> {
        if self.partial.is_empty() {
            let length = self.parse(data, head_only, sink)?;
            if length.is_none() {
                self.partial.extend_from_slice(data);
            }
            return Ok(length);
        }
        let before = self.partial.len();
        let mut partial = std::mem::take(&mut self.partial);
        partial.extend_from_slice(data);
        let length = self.parse(&partial, head_only, sink)?;
        if length.is_none() {
            self.partial = partial;
        }
        Ok(length.map(|length| length - before))
    }

    fn parse(
        &mut self,
        data: &[u8],
        head_only: bool,
        sink: &mut impl AnswerSink,
    ) -> Result<Option<usize>, MalformedMessage> {
        let mut fields = [const { std::mem::MaybeUninit::uninit() }; MOST_FIELDS];
        let mut response = httparse::Response::new(&mut []);
        let parsed = httparse::ParserConfig::default()
            .parse_response_with_uninit_headers(&mut response, data, &mut fields)
            .map_err(|_| MalformedMessage)?;
        let Status::Complete(length) = parsed else {
            return if data.len() > LONGEST_HEAD { Err(MalformedMessage) } else { Ok(None) };
        };
        self.status = response.code.ok_or(MalformedMessage)?;
        sink.head(self.status, response.headers);
        self.keep_alive = response.version == Some(1);
        let mut content_length = None;
        let mut transfer_coding = None;
        for field in response.headers.iter() {
            match field.name.len() {
                14 if field.name.eq_ignore_ascii_case("content-length") => {
                    let value = decimal(field.value).ok_or(MalformedMessage)?;
                    if content_length.replace(value).is_some_and(|other| other != value) {
                        return Err(MalformedMessage);
                    }
                }
                17 if field.name.eq_ignore_ascii_case("transfer-encoding") => {
                    let last = field.value.rsplit(|byte| *byte == b',').next().unwrap_or_default().trim_ascii();
                    transfer_coding = Some(last.eq_ignore_ascii_case(b"chunked"));
                }
                10 if field.name.eq_ignore_ascii_case("connection") => {
                    for option in field.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                        if option.eq_ignore_ascii_case(b"close") {
                            self.keep_alive = false;
                        } else if option.eq_ignore_ascii_case(b"keep-alive") {
                            self.keep_alive = true;
                        }
                    }
                }
                _ => {}
            }
        }
        // In the order of RFC 9112 §6.3.
        self.phase = match (self.status, transfer_coding, content_length) {
            (101, ..) => return Err(MalformedMessage),
            (100..=199, ..) => ResponsePhase::Head,
            (204 | 304, ..) => ResponsePhase::Length(0),
            _ if head_only => ResponsePhase::Length(0),
            (_, Some(true), _) => ResponsePhase::Chunked(Chunked::default()),
            (_, None, Some(length)) => ResponsePhase::Length(length),
            (_, Some(false), _) | (_, None, None) => {
                self.keep_alive = false;
                ResponsePhase::UntilClose
            }
        };
        Ok(Some(length))
    }
}

fn decimal(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    digits.then(|| std::str::from_utf8(value).ok()?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds the response at once and byte by byte; both must give the same (status, keep-alive, length).
    fn read(response: &str) -> Result<(u16, bool, usize), MalformedMessage> {
        let mut whole = ResponseParser::default();
        let at_once = whole.feed(response.as_bytes(), false);
        let mut reader = ResponseParser::default();
        for (at, byte) in response.bytes().enumerate() {
            if let ResponseStep::Done { used } = reader.feed(&[byte], false)? {
                assert_eq!(at_once, Ok(ResponseStep::Done { used: at + used }));
                return Ok((reader.status(), reader.keeps_alive(), at + used));
            }
        }
        assert_eq!(at_once, Ok(ResponseStep::More));
        Ok((reader.status(), reader.keeps_alive(), usize::MAX))
    }

    #[test]
    fn finds_the_end_of_each_kind_of_body() {
        let length = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(read(&format!("{length}tail")), Ok((200, true, length.len())));
        let chunked =
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0a\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(read(chunked), Ok((200, true, chunked.len())));
        let trailers = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nA: b\r\n\r\n";
        assert_eq!(read(trailers), Ok((200, true, trailers.len())));
        let none = "HTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(read(&format!("{none}x")), Ok((204, true, none.len())));
        let interim = "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(read(interim), Ok((404, true, interim.len())));
    }

    #[test]
    fn a_body_without_length_ends_at_close() {
        let mut reader = ResponseParser::default();
        assert_eq!(reader.feed(b"HTTP/1.1 200 OK\r\n\r\nany", false), Ok(ResponseStep::More));
        assert!(reader.ends_at_close() && !reader.keeps_alive());
    }

    #[test]
    fn head_responses_have_no_body() {
        let mut reader = ResponseParser::default();
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(reader.feed(head, true), Ok(ResponseStep::Done { used: head.len() }));
    }

    #[test]
    fn knows_which_connections_stay_open() {
        let keeps = |head: &str| read(&format!("{head}\r\nContent-Length: 0\r\n\r\n")).map(|(_, keeps, _)| keeps);
        assert_eq!(keeps("HTTP/1.1 200 OK"), Ok(true));
        assert_eq!(keeps("HTTP/1.1 200 OK\r\nConnection: x, Close"), Ok(false));
        assert_eq!(keeps("HTTP/1.0 200 OK"), Ok(false));
        assert_eq!(keeps("HTTP/1.0 200 OK\r\nConnection: keep-alive"), Ok(true));
    }

    #[test]
    fn refuses_what_is_not_a_response() {
        for bad in [
            "SSH-2.0-OpenSSH_9.2\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab",
        ] {
            assert_eq!(read(bad), Err(MalformedMessage), "{bad:?}");
        }
    }
}
