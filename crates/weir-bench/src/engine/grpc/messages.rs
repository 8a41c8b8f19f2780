//! Messages as they stand one after the other in the body of a call.

/// The bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The longest message of an answer that is kept until it is complete.
const LONGEST_KEPT: usize = 1024 * 1024;

/// Appends a message.
pub(super) fn append(message: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    let length = u32::try_from(message.len()).map_err(|_| "has more than 4 GiB in one message".to_owned())?;
    out.push(0);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(message);
    Ok(())
}

/// A message has come.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::engine) enum ReceivedMessage<'a> {
    Kept(&'a [u8]),
    /// It is too long to be kept.
    TooLong,
}

/// The answer is no sequence of messages, or has a compressed one, which no call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct NotMessages;

/// Finds the messages of an answer in its pieces.
#[derive(Debug, Default)]
pub(in crate::engine) struct MessageReader {
    /// Whether messages are kept until they are complete; otherwise they are only counted.
    keeps: bool,
    prefix: [u8; PREFIX],
    prefix_bytes: usize,
    /// The bytes of the message that are still to come.
    left: usize,
    is_too_long: bool,
    kept: Vec<u8>,
    count: u64,
}

impl MessageReader {
    pub(in crate::engine) fn new(keeps: bool) -> Self {
        Self { keeps, ..Self::default() }
    }

    /// The messages that are complete.
    pub(in crate::engine) fn count(&self) -> u64 {
        self.count
    }

    /// Whether the last message is complete.
    pub(in crate::engine) fn is_at_end(&self) -> bool {
        self.prefix_bytes == 0
    }

    /// Takes a piece of the answer; `complete` gets each message that ends in it, if messages are kept.
    pub(in crate::engine) fn feed(
        &mut self,
        mut piece: &[u8],
        mut complete: impl FnMut(ReceivedMessage<'_>) -> Result<(), NotMessages>,
    ) -> Result<(), NotMessages> {
        while !piece.is_empty() {
            if self.prefix_bytes < PREFIX {
                self.prefix[self.prefix_bytes] = piece[0];
                self.prefix_bytes += 1;
                piece = &piece[1..];
                if self.prefix_bytes < PREFIX {
                    continue;
                }
                let [compressed, length @ ..] = self.prefix;
                if compressed != 0 {
                    return Err(NotMessages);
                }
                self.left = u32::from_be_bytes(length) as usize;
                self.is_too_long = self.left > LONGEST_KEPT;
            }
            let (now, rest) = piece.split_at(self.left.min(piece.len()));
            if self.keeps && !self.is_too_long {
                self.kept.extend_from_slice(now);
            }
            self.left -= now.len();
            piece = rest;
            if self.left == 0 {
                self.prefix_bytes = 0;
                self.count += 1;
                if self.keeps {
                    complete(if self.is_too_long {
                        ReceivedMessage::TooLong
                    } else {
                        ReceivedMessage::Kept(&self.kept)
                    })?;
                    self.kept.clear();
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(messages: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        messages.iter().for_each(|message| append(message, &mut out).expect("it is short"));
        out
    }

    #[test]
    fn messages_are_found_in_pieces_of_any_length() {
        let long = vec![b'x'; LONGEST_KEPT + 1];
        let bytes = framed(&[b"first", b"", &long, b"last"]);
        for size in [1, 2, 3, 7, 64 * 1024, bytes.len()] {
            let (mut reader, mut seen) = (MessageReader::new(true), Vec::new());
            for piece in bytes.chunks(size) {
                let kept = |message: ReceivedMessage<'_>| {
                    seen.push(match message {
                        ReceivedMessage::Kept(bytes) => Some(bytes.to_owned()),
                        ReceivedMessage::TooLong => None,
                    });
                    Ok(())
                };
                assert_eq!(reader.feed(piece, kept), Ok(()));
            }
            assert_eq!(seen, [Some(b"first".to_vec()), Some(Vec::new()), None, Some(b"last".to_vec())], "{size}");
            assert!(reader.is_at_end() && reader.count() == 4);
        }
    }

    #[test]
    fn message_that_is_cut_or_compressed_is_a_fault() {
        let mut reader = MessageReader::new(false);
        let bytes = framed(&[b"first", b"second"]);
        assert_eq!(reader.feed(&bytes[..bytes.len() - 1], |_| Ok(())), Ok(()));
        assert!(!reader.is_at_end() && reader.count() == 1);
        assert_eq!(MessageReader::new(false).feed(&[1, 0, 0, 0, 0], |_| Ok(())), Err(NotMessages));
    }
}
