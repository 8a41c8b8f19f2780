//! The body of one direction: decoded from one framing and written in another, checked on the way, never buffered whole.

use weir_net::timer::NEVER;
use weir_plugin::Stop;
use weir_proto::h1::chunked::{self, ChunkedDecoder, Step};
use weir_proto::{Framing, Trailers};

use crate::message::forward::HopFraming;

/// The state of decoding a body, by its framing.
pub(crate) enum BodyTransfer {
    Sized(u64),
    Chunked(Box<ChunkedDecoder>),
    UntilClose,
    /// So many bytes of content are still to come, and then the end, which the protocol marks apart from the content (HTTP/2).
    Marked(u64),
    /// All content has come. The end may come until this time, with trailers.
    AwaitsEnd {
        until_ns: u64,
    },
    /// The body is complete, with its trailers.
    Done(Trailers),
    /// No more of it is read for now: a [`PausedBody`] has it. Not in here, so that dropping one without a pause takes few instructions.
    Paused,
}

/// A body whose rate is limited, while no more of it is read.
#[derive(Default)]
pub(crate) struct PausedBody(Option<Box<BodyTransfer>>);

/// The body's framing is broken.
pub(crate) struct BrokenFraming;

/// What one call of [`BodyTransfer::transfer`] did.
pub(crate) struct TransferProgress {
    /// Bytes taken from the input; what is left belongs to the next message.
    pub consumed: usize,
    /// Bytes of content among them, without the framing.
    pub content: u64,
}

impl PausedBody {
    /// Nothing changes if it is paused.
    pub(crate) fn pause(&mut self, body: &mut BodyTransfer) {
        if !matches!(body, BodyTransfer::Paused) {
            self.0 = Some(Box::new(std::mem::replace(body, BodyTransfer::Paused)));
        }
    }

    /// Nothing changes if it is not paused.
    pub(crate) fn resume(&mut self, body: &mut BodyTransfer) {
        if let (BodyTransfer::Paused, Some(paused)) = (&*body, self.0.take()) {
            *body = *paused;
        }
    }

    /// The body is paused, and all of it has been read.
    pub(crate) fn is_at_end(&self, body: &BodyTransfer) -> bool {
        matches!(body, BodyTransfer::Paused) && self.0.as_ref().is_some_and(|paused| paused.is_done())
    }
}

impl BodyTransfer {
    pub(crate) fn new(framing: Framing, trailer_limit: usize) -> BodyTransfer {
        match framing {
            Framing::None | Framing::Sized(0) => BodyTransfer::Done(Trailers::default()),
            Framing::Sized(length) => BodyTransfer::Sized(length),
            Framing::Chunked => BodyTransfer::Chunked(Box::new(ChunkedDecoder::new(trailer_limit))),
            Framing::UntilClose => BodyTransfer::UntilClose,
        }
    }

    /// The same for a message whose protocol marks its end apart from its content, as HTTP/2 does: neither a length nor a
    /// status without content shows that there are no trailers.
    pub(crate) fn with_marked_end(framing: Framing, trailer_limit: usize) -> BodyTransfer {
        match framing {
            Framing::None => BodyTransfer::Marked(0),
            Framing::Sized(length) => BodyTransfer::Marked(length),
            framing => BodyTransfer::new(framing, trailer_limit),
        }
    }

    /// All content has come, but the end has not been looked for.
    pub(crate) fn lacks_end(&self) -> bool {
        matches!(self, BodyTransfer::Marked(0))
    }

    /// When the end is no longer waited for.
    pub(crate) fn end_deadline_ns(&self) -> u64 {
        match self {
            BodyTransfer::AwaitsEnd { until_ns } => *until_ns,
            _ => NEVER,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self, BodyTransfer::Done(_))
    }

    /// No more of the body is read, at least for now.
    pub(crate) fn is_done_or_paused(&self) -> bool {
        matches!(self, BodyTransfer::Done(_) | BodyTransfer::Paused)
    }

    /// The trailers; `None` until the body is complete.
    pub(crate) fn trailers(&self) -> Option<&Trailers> {
        match self {
            BodyTransfer::Done(trailers) => Some(trailers),
            _ => None,
        }
    }

    /// The same, so that plugins can change them.
    pub(crate) fn trailers_mut(&mut self) -> Option<&mut Trailers> {
        match self {
            BodyTransfer::Done(trailers) => Some(trailers),
            _ => None,
        }
    }

    /// Moves what `input` holds of this body to `out`, in the coding for the next hop.
    pub(crate) fn transfer(
        &mut self,
        input: &[u8],
        coding: HopFraming,
        out: &mut Vec<u8>,
    ) -> Result<TransferProgress, BrokenFraming> {
        self.decode(input, |content| write(out, coding, content))
    }

    /// The same for content that `observe` sees first. A piece that it refuses is not moved.
    ///
    /// # Errors
    /// That of `observe`, or `broken` if the framing is.
    pub(crate) fn transfer_observed(
        &mut self,
        input: &[u8],
        (coding, out): (HopFraming, &mut Vec<u8>),
        mut observe: impl FnMut(&[u8]) -> Result<(), Stop>,
        broken: Stop,
    ) -> Result<TransferProgress, Stop> {
        let mut observed = Ok(());
        let moved = self.decode(input, |content| {
            observed = observed.and_then(|()| observe(content));
            if observed.is_ok() {
                write(out, coding, content);
            }
        });
        observed.and(moved.map_err(|_| broken))
    }

    /// Passes the content that `input` holds of this body to `each`, piece by piece.
    pub(crate) fn decode(
        &mut self,
        input: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> Result<TransferProgress, BrokenFraming> {
        match self {
            BodyTransfer::Done(_) | BodyTransfer::AwaitsEnd { .. } | BodyTransfer::Paused => {
                Ok(TransferProgress { consumed: 0, content: 0 })
            }
            BodyTransfer::Marked(remaining) => {
                let length = usize::try_from(*remaining).unwrap_or(usize::MAX).min(input.len());
                each(&input[..length]);
                *remaining -= length as u64;
                Ok(TransferProgress { consumed: length, content: length as u64 })
            }
            BodyTransfer::UntilClose => {
                each(input);
                Ok(TransferProgress { consumed: input.len(), content: input.len() as u64 })
            }
            BodyTransfer::Sized(remaining) => {
                let length = usize::try_from(*remaining).unwrap_or(usize::MAX).min(input.len());
                each(&input[..length]);
                *remaining -= length as u64;
                if *remaining == 0 {
                    *self = BodyTransfer::Done(Trailers::default());
                }
                Ok(TransferProgress { consumed: length, content: length as u64 })
            }
            BodyTransfer::Chunked(decoder) => {
                let mut moved = TransferProgress { consumed: 0, content: 0 };
                while moved.consumed < input.len() {
                    match decoder.next(&input[moved.consumed..]).map_err(|_| BrokenFraming)? {
                        Step::More => moved.consumed = input.len(),
                        Step::Data { skip, length } => {
                            let start = moved.consumed + skip;
                            each(&input[start..start + length]);
                            moved.consumed = start + length;
                            moved.content += length as u64;
                        }
                        Step::End { consumed } => {
                            moved.consumed += consumed;
                            *self = BodyTransfer::Done(decoder.take_trailers());
                            break;
                        }
                    }
                }
                Ok(moved)
            }
        }
    }

    /// The sender has closed its side: the end of a body that is delimited by the close, a truncation of any other.
    pub(crate) fn close(&mut self, trailers: Trailers) -> Result<(), BrokenFraming> {
        match self {
            BodyTransfer::UntilClose | BodyTransfer::Marked(0) | BodyTransfer::AwaitsEnd { .. } => {
                *self = BodyTransfer::Done(trailers);
                Ok(())
            }
            BodyTransfer::Done(_) => Ok(()),
            BodyTransfer::Sized(_) | BodyTransfer::Marked(_) | BodyTransfer::Chunked(_) | BodyTransfer::Paused => {
                Err(BrokenFraming)
            }
        }
    }
}

/// Writes content in a coding.
pub(crate) fn write(out: &mut Vec<u8>, coding: HopFraming, content: &[u8]) {
    match coding {
        HopFraming::None => {}
        HopFraming::Plain | HopFraming::UntilClose => out.extend_from_slice(content),
        HopFraming::Chunked if content.is_empty() => {}
        HopFraming::Chunked => {
            chunked::write_size(out, content.len());
            out.extend_from_slice(content);
            out.extend_from_slice(b"\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(framing: Framing, coding: HopFraming, input: &[u8]) -> Option<(String, usize, bool)> {
        let mut body = BodyTransfer::new(framing, 1000);
        let mut out = Vec::new();
        let moved = body.transfer(input, coding, &mut out).ok()?;
        Some((String::from_utf8(out).expect("test bodies are text"), moved.consumed, body.is_done()))
    }

    #[test]
    fn each_framing_reaches_each_coding() {
        let chunked = b"5;ext\r\nhello\r\n0\r\nA: b\r\n\r\nNEXT";
        let end = chunked.len() - 4;
        assert_eq!(run(Framing::Sized(5), HopFraming::Plain, b"helloNEXT"), Some(("hello".into(), 5, true)));
        assert_eq!(run(Framing::Chunked, HopFraming::Chunked, chunked), Some(("5\r\nhello\r\n".into(), end, true)));
        assert_eq!(run(Framing::Chunked, HopFraming::UntilClose, chunked), Some(("hello".into(), end, true)));
        assert_eq!(run(Framing::UntilClose, HopFraming::Chunked, b"hello"), Some(("5\r\nhello\r\n".into(), 5, false)));
        assert!(run(Framing::Chunked, HopFraming::Chunked, b"zz").is_none());
    }

    #[test]
    fn trailers_are_there_at_the_end() {
        let mut body = BodyTransfer::new(Framing::Chunked, 1000);
        assert!(body.transfer(b"1\r\nx\r\n", HopFraming::None, &mut Vec::new()).is_ok() && body.trailers().is_none());
        assert!(body.transfer(b"0\r\nA: b\r\n\r\n", HopFraming::None, &mut Vec::new()).is_ok());
        let trailers = body.trailers().expect("it is over");
        assert_eq!(trailers.fields().collect::<Vec<_>>(), [(&b"A"[..], &b"b"[..])]);
    }

    #[test]
    fn a_marked_end_is_waited_for_after_the_content() {
        let mut body = BodyTransfer::with_marked_end(Framing::Sized(5), 1000);
        assert!(body.transfer(b"hel", HopFraming::Plain, &mut Vec::new()).is_ok() && !body.lacks_end());
        assert!(body.close(Trailers::default()).is_err(), "two bytes are missing");
        assert!(body.transfer(b"lo", HopFraming::Plain, &mut Vec::new()).is_ok() && body.lacks_end());
        assert!(!body.is_done() && body.close(Trailers::default()).is_ok() && body.is_done());
        assert!(BodyTransfer::with_marked_end(Framing::None, 1000).lacks_end());
        assert_eq!(BodyTransfer::AwaitsEnd { until_ns: 5 }.end_deadline_ns(), 5);
    }

    #[test]
    fn a_paused_body_is_as_it_was_when_it_goes_on() {
        let mut body = BodyTransfer::new(Framing::Sized(5), 0);
        let mut paused = PausedBody::default();
        paused.pause(&mut body);
        paused.pause(&mut body);
        assert!(body.is_done_or_paused() && !body.is_done() && !paused.is_at_end(&body));
        assert!(body.transfer(b"hello", HopFraming::Plain, &mut Vec::new()).is_ok_and(|moved| moved.consumed == 0));
        paused.resume(&mut body);
        paused.resume(&mut body);
        assert!(!body.is_done_or_paused());
        assert!(body.transfer(b"hello", HopFraming::Plain, &mut Vec::new()).is_ok() && body.is_done());
        assert!(!paused.is_at_end(&body), "it is not paused");
        paused.pause(&mut body);
        assert!(
            !body.is_done() && paused.is_at_end(&body),
            "what has been read of a complete body may still have to be sent"
        );
        body = BodyTransfer::UntilClose;
        paused.resume(&mut body);
        assert!(!paused.is_at_end(&body) && !body.is_done(), "a body that was ended while it was paused stays so");
    }

    #[test]
    fn closing_ends_only_what_may_end_so() {
        assert!(BodyTransfer::new(Framing::UntilClose, 0).close(Trailers::default()).is_ok());
        assert!(BodyTransfer::new(Framing::Sized(1), 0).close(Trailers::default()).is_err());
        assert!(BodyTransfer::new(Framing::Chunked, 0).close(Trailers::default()).is_err());
        assert!(BodyTransfer::new(Framing::None, 0).close(Trailers::default()).is_ok());
    }
}
