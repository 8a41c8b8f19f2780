//! The instructions that encoder and decoder send each other (RFC 9204 §4.3, §4.4). Without a dynamic table, nearly none is possible.

use crate::h3::error::H3ErrorCode;

/// The encoder stream of the client, which may only set the capacity of its table to 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct EncoderStream;

impl EncoderStream {
    /// Reads some bytes. An error ends the connection.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), H3ErrorCode> {
        // §4.3.1: Set Dynamic Table Capacity with the value 0, which is the only one that was allowed.
        match bytes.iter().all(|byte| *byte == 0x20) {
            true => Ok(()),
            false => Err(H3ErrorCode::QPACK_ENCODER_STREAM_ERROR),
        }
    }
}

/// The decoder stream of the client. What was sent to it used no dynamic table, so there is nothing to acknowledge.
#[derive(Clone, Copy, Debug, Default)]
pub struct DecoderStream {
    /// Bytes of the current stream number, beyond the first.
    number: u8,
    is_within: bool,
}

/// The most bytes of a stream number beyond its first: 62 bits, of which the first byte has fewer than 6 (RFC 7541 §5.1).
const MOST_BYTES: u8 = 9;

impl DecoderStream {
    /// Reads some bytes. An error ends the connection.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), H3ErrorCode> {
        for byte in bytes {
            let is_fine = match self.is_within {
                true => {
                    (self.number, self.is_within) = (self.number + 1, *byte & 0x80 != 0);
                    self.number <= MOST_BYTES
                }
                false => {
                    // §4.4.2: Stream Cancellation, with a number of which six bits stand here.
                    (self.number, self.is_within) = (0, *byte & 0x3f == 0x3f);
                    byte >> 6 == 0b01
                }
            };
            if !is_fine {
                return Err(H3ErrorCode::QPACK_DECODER_STREAM_ERROR);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoder_may_only_have_no_table() {
        let mut encoder = EncoderStream;
        assert_eq!(encoder.read(&[0x20, 0x20]), Ok(()));
        for bytes in [&[0x21][..], &[0x3f, 1], &[0xc0, 0], &[0x41, b'a', 0], &[0x00]] {
            assert_eq!(encoder.read(bytes), Err(H3ErrorCode::QPACK_ENCODER_STREAM_ERROR), "{bytes:x?}");
        }
    }

    #[test]
    fn a_decoder_may_only_cancel_streams() {
        let mut decoder = DecoderStream::default();
        for bytes in [&[0x40][..], &[0x44, 0x7f], &[0x80], &[0x81, 0x7f, 0x48]] {
            assert_eq!(decoder.read(bytes), Ok(()), "{bytes:x?}");
        }
        for bytes in [
            &[0x80][..],
            &[0x84],
            &[0x01],
            &[0x00],
            &[0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80],
        ] {
            let error = Err(H3ErrorCode::QPACK_DECODER_STREAM_ERROR);
            assert_eq!(DecoderStream::default().read(bytes), error, "{bytes:x?}");
        }
    }
}
