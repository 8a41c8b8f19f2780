//! Inflates compressed messages (RFC 7692 §7.2.2).

use flate2::{Decompress, FlushDecompress, Status};

/// What a sender removes from the end of a message (RFC 7692 §7.2.1): the length fields of an empty block.
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];
/// Bytes inflated at once.
const PIECE_BYTES: usize = 4 << 10;

/// Why a compressed message cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InflateFault {
    /// It is not DEFLATE (RFC 1951), or refers to data that the receiver need not have.
    Invalid,
    /// It has data after its final block. Receivers do not agree on whether such data belongs to the message.
    DataAfterEnd,
    /// It is larger than the limit.
    TooLarge,
}

impl InflateFault {
    /// A description for the close frame.
    pub fn reason(self) -> &'static str {
        match self {
            InflateFault::Invalid => "a compressed message cannot be inflated",
            InflateFault::DataAfterEnd => "a compressed message has data after its final block",
            InflateFault::TooLarge => "an inflated message is too large",
        }
    }
}

/// Inflates the messages of one direction, one after the other. With context takeover, a message may refer to data of those before it,
/// so all compressed messages of the direction have to be inflated, in order.
pub struct MessageInflater {
    stream: Decompress,
    /// The most bytes of a message, inflated.
    limit: usize,
    /// Bytes of the message so far, inflated.
    size: usize,
    /// The message has had a final block.
    has_ended: bool,
}

impl MessageInflater {
    /// Its memory, in bytes: the window, whose size does not depend on what was negotiated, and the state of the decoder.
    pub const MEMORY_BYTES: usize = 48 << 10;

    /// `window_bits` is the negotiated size of the sender's window, 8 to 15.
    pub fn new(window_bits: u8, limit: usize) -> MessageInflater {
        // A window of 8 bits is one of 9 bits that is not used completely.
        let stream = Decompress::new_with_window_bits(false, window_bits.clamp(9, 15));
        MessageInflater { stream, limit, size: 0, has_ended: false }
    }

    /// Inflates the next bytes of a message and passes the result on in pieces.
    ///
    /// # Errors
    /// The message cannot be read, and neither can those after it.
    pub fn push(&mut self, mut compressed: &[u8], mut take: impl FnMut(&[u8])) -> Result<(), InflateFault> {
        let mut piece = [0; PIECE_BYTES];
        loop {
            let (read, written) = (self.stream.total_in(), self.stream.total_out());
            let status = self.stream.decompress(compressed, &mut piece, FlushDecompress::None);
            let status = status.map_err(|_| InflateFault::Invalid)?;
            compressed = &compressed[(self.stream.total_in() - read) as usize..];
            let inflated = &piece[..(self.stream.total_out() - written) as usize];
            if self.has_ended && !inflated.is_empty() {
                return Err(InflateFault::DataAfterEnd);
            }
            self.size += inflated.len();
            if self.size > self.limit {
                return Err(InflateFault::TooLarge);
            }
            take(inflated);
            match status {
                // A sender that ends a message with a final block begins the next one with an empty window (RFC 7692 §7.2.3.4).
                Status::StreamEnd => {
                    self.stream.reset(false);
                    self.has_ended = true;
                }
                Status::Ok | Status::BufError if inflated.len() == PIECE_BYTES => {}
                Status::Ok | Status::BufError if compressed.is_empty() => return Ok(()),
                Status::Ok => {}
                Status::BufError => return Err(InflateFault::Invalid),
            }
        }
    }

    /// Ends a message.
    ///
    /// # Errors
    /// As of [`MessageInflater::push`].
    pub fn end(&mut self, take: impl FnMut(&[u8])) -> Result<(), InflateFault> {
        self.push(&TAIL, take)?;
        (self.size, self.has_ended) = (0, false);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use flate2::{Compress, Compression, FlushCompress};
    use proptest::prelude::*;

    use super::*;

    /// Compresses a message as RFC 7692 §7.2.1 says.
    fn compress(stream: &mut Compress, text: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len() * 2 + 64);
        stream.compress_vec(text, &mut out, FlushCompress::Sync).expect("it has room");
        if out.is_empty() {
            // §7.2.3.6: of an empty message, a second flush makes nothing.
            return vec![0];
        }
        assert!(out.ends_with(&TAIL));
        out.truncate(out.len() - TAIL.len());
        out
    }

    fn inflate(inflater: &mut MessageInflater, compressed: &[u8], cut: usize) -> Result<Vec<u8>, InflateFault> {
        let mut text = Vec::new();
        for piece in compressed.chunks(cut) {
            inflater.push(piece, |bytes| text.extend_from_slice(bytes))?;
        }
        inflater.end(|bytes| text.extend_from_slice(bytes))?;
        Ok(text)
    }

    #[test]
    fn the_examples_of_rfc_7692_7_2_3_are_read() {
        let hello: [&[u8]; 4] = [
            // §7.2.3.1: one block; §7.2.3.3: no compression; §7.2.3.4: a final block; §7.2.3.5: two blocks.
            &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00],
            &[0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00],
            &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00],
            &[0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00],
        ];
        for message in hello {
            for cut in [1, 3, message.len()] {
                let mut inflater = MessageInflater::new(15, 100);
                assert_eq!(inflate(&mut inflater, message, cut).as_deref(), Ok(&b"Hello"[..]), "{message:x?}");
            }
        }
        // §7.2.3.2: the second message refers to the first one. §7.2.3.6: an empty message.
        let mut inflater = MessageInflater::new(15, 100);
        for (message, want) in [(hello[0], "Hello"), (&[0xf2, 0x00, 0x11, 0x00, 0x00], "Hello"), (&[0x00], "")] {
            assert_eq!(inflate(&mut inflater, message, 2).as_deref(), Ok(want.as_bytes()));
        }
        assert_eq!(
            inflate(&mut MessageInflater::new(15, 100), &[0xf2, 0x00, 0x11, 0x00, 0x00], 9),
            Err(InflateFault::Invalid)
        );
    }

    #[test]
    fn invalid_compressed_messages_are_refused() {
        for (message, want) in [
            // A reserved block type, a distance without data, and lengths that contradict each other.
            (&[0x07, 0x00][..], InflateFault::Invalid),
            (&[0x4b, 0x02, 0x12, 0x00], InflateFault::Invalid),
            (&[0x00, 0x05, 0x00, 0x00, 0x00], InflateFault::Invalid),
            // Two final blocks, each with a text.
            (
                &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00],
                InflateFault::DataAfterEnd,
            ),
        ] {
            assert_eq!(inflate(&mut MessageInflater::new(15, 100), message, 1), Err(want), "{message:x?}");
        }
    }

    #[test]
    fn a_bomb_is_given_up_at_the_limit() {
        let bomb = compress(&mut Compress::new(Compression::best(), false), &vec![0; 100 << 20]);
        let (mut inflater, mut taken) = (MessageInflater::new(15, 65_536), 0);
        assert_eq!(inflater.push(&bomb, |bytes| taken += bytes.len()), Err(InflateFault::TooLarge));
        assert!(taken <= 65_536 && bomb.len() < 200_000, "{taken} of {}", bomb.len());
    }

    proptest! {
        #[test]
        fn messages_come_back_as_they_were(
            messages in prop::collection::vec(prop_oneof!["[ab]{0,300}", ".{0,40}"], 1..8),
            window_bits in 9_u8..16,
            cut in 1..40_usize,
            keeps_context in any::<bool>(),
        ) {
            let mut sender = Compress::new_with_window_bits(Compression::best(), false, window_bits);
            let mut inflater = MessageInflater::new(window_bits, 1 << 20);
            for message in messages {
                let compressed = compress(&mut sender, message.as_bytes());
                let inflated = inflate(&mut inflater, &compressed, cut);
                prop_assert_eq!(inflated.as_deref(), Ok(message.as_bytes()));
                if !keeps_context {
                    sender.reset();
                    inflater = MessageInflater::new(window_bits, 1 << 20);
                }
            }
        }

        #[test]
        fn inflater_keeps_to_its_limit_however_the_input_is_cut(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            cut in 1..20_usize,
        ) {
            let whole = inflate(&mut MessageInflater::new(15, 1_000), &bytes, 1_000);
            prop_assert!(whole.as_ref().is_ok_and(|text| text.len() <= 1_000) || whole.is_err());
            let cut = inflate(&mut MessageInflater::new(15, 1_000), &bytes, cut);
            prop_assert_eq!(cut.ok(), whole.ok(), "only the reason may differ");
        }
    }
}
