//! The messages in the content of a gRPC answer.

use weir_services::grpc_call::PREFIX;

/// Why no further message can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageFault {
    /// No compression was offered.
    Compressed,
    TooLarge,
}

/// Takes messages out of content that comes in pieces of any size.
#[derive(Debug)]
pub(super) struct MessageFrames {
    unread: Vec<u8>,
    /// The bytes of `unread` that were taken.
    taken: usize,
    /// The most bytes of a message.
    most: usize,
}

impl MessageFrames {
    pub(super) fn new(most: usize) -> MessageFrames {
        MessageFrames { unread: Vec::new(), taken: 0, most }
    }

    pub(super) fn push(&mut self, piece: &[u8]) {
        self.unread.drain(..std::mem::take(&mut self.taken));
        self.unread.extend_from_slice(piece);
    }

    /// The next message; `None` if it is not complete.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, MessageFault> {
        let Some((prefix, rest)) = self.unread[self.taken..].split_first_chunk::<PREFIX>() else { return Ok(None) };
        let [flag, length @ ..] = *prefix;
        let length = u32::from_be_bytes(length) as usize;
        if flag != 0 {
            return Err(MessageFault::Compressed);
        }
        if length > self.most {
            return Err(MessageFault::TooLarge);
        }
        if rest.len() < length {
            return Ok(None);
        }
        let start = self.taken + PREFIX;
        self.taken = start + length;
        Ok(Some(&self.unread[start..self.taken]))
    }

    /// Whether all bytes were taken.
    pub(super) fn is_empty(&self) -> bool {
        self.taken == self.unread.len()
    }
}

#[cfg(test)]
mod tests {
    use weir_services::grpc_call::framed;

    use super::*;

    #[test]
    fn messages_are_taken_from_pieces_of_any_size() {
        let content = [framed(b"one"), framed(b""), framed(b"three")].concat();
        for size in 1..=content.len() {
            let mut frames = MessageFrames::new(5);
            let mut found = Vec::new();
            for piece in content.chunks(size) {
                frames.push(piece);
                while let Some(message) = frames.next().expect("valid") {
                    found.push(message.to_vec());
                }
            }
            assert_eq!(found, [&b"one"[..], b"", b"three"], "{size}");
            assert!(frames.is_empty());
        }
    }

    #[test]
    fn large_and_compressed_messages_are_faults_before_they_are_complete() {
        let mut frames = MessageFrames::new(2);
        frames.push(&framed(b"abc")[..PREFIX]);
        assert_eq!(frames.next(), Err(MessageFault::TooLarge));
        let mut frames = MessageFrames::new(2);
        frames.push(&[1, 0, 0, 0, 1]);
        assert_eq!(frames.next(), Err(MessageFault::Compressed));
        let mut frames = MessageFrames::new(2);
        frames.push(&framed(b"ab")[..PREFIX + 1]);
        assert_eq!(frames.next(), Ok(None));
        assert!(!frames.is_empty());
    }
}
