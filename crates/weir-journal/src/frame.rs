//! The format of one record on disk.

use crate::Seq;

/// Length of the header before the payload.
pub(crate) const HEADER_BYTES: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub seq: Seq,
    pub time_ms: u64,
    pub payload: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decoded<'a> {
    /// A valid frame, and its length in bytes.
    Whole(Frame<'a>, usize),
    /// The bytes end within the frame. It has at least this many bytes in total.
    Partial(usize),
    /// The bytes are not a frame.
    Broken,
}

/// Appends a frame of the journal `id` to `out`. The payload must not be longer than `u32::MAX` bytes.
pub(crate) fn encode(out: &mut Vec<u8>, id: u64, seq: Seq, time_ms: u64, payload: &[u8]) {
    let start = out.len();
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&seq.to_le_bytes());
    out.extend_from_slice(&time_ms.to_le_bytes());
    out.extend_from_slice(payload);
    let crc = checksum(id, payload.len() as u32, &out[start + 8..]);
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
}

/// CRC-32 of the frame. It includes the journal's id, which is random, so that a payload cannot contain bytes that pass for a
/// frame after damage; and the length, so that a flipped bit there does not make another valid frame.
fn checksum(id: u64, length: u32, rest: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&id.to_le_bytes());
    hasher.update(&length.to_le_bytes());
    hasher.update(rest);
    hasher.finalize()
}

/// Decodes the frame of journal `id` at the start of `bytes`. A length above `max_payload` counts as damage.
pub(crate) fn decode(bytes: &[u8], id: u64, max_payload: u32) -> Decoded<'_> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return Decoded::Partial(HEADER_BYTES) };
    let length = u32::from_le_bytes(part(header, 0));
    // A block of zeros looks like an empty frame with sequence number 0, which no record has.
    let seq = u64::from_le_bytes(part(header, 8));
    if length > max_payload || seq == 0 {
        return Decoded::Broken;
    }
    let total = HEADER_BYTES + length as usize;
    let Some(frame) = bytes.get(..total) else { return Decoded::Partial(total) };
    if checksum(id, length, &frame[8..]) != u32::from_le_bytes(part(header, 4)) {
        return Decoded::Broken;
    }
    let time_ms = u64::from_le_bytes(part(header, 16));
    Decoded::Whole(Frame { seq, time_ms, payload: &frame[HEADER_BYTES..] }, total)
}

fn part<const N: usize>(header: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    header[at..at + N].try_into().expect("the header is longer than its parts")
}

/// The offset, 1 or higher, of the next valid frame that may follow record `after`.
pub(crate) fn resync(bytes: &[u8], id: u64, max_payload: u32, after: Seq) -> Option<usize> {
    // No more frames fit in between. Without this bound random bytes would often look like headers of long frames, each of which
    // costs a checksum.
    let newest = after.saturating_add((bytes.len() / HEADER_BYTES) as u64 + 1);
    (1..bytes.len().saturating_sub(HEADER_BYTES - 1)).find(|at| {
        let bytes = &bytes[*at..];
        let header = bytes.first_chunk().expect("there is room for a header");
        let seq = u64::from_le_bytes(part(header, 8));
        (after + 1..=newest).contains(&seq) && matches!(decode(bytes, id, max_payload), Decoded::Whole(..))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: u64 = 42;

    fn encoded(seq: Seq, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out, ID, seq, 1_700_000_000_000, payload);
        out
    }

    #[test]
    fn a_zeroed_block_is_no_frame() {
        assert_eq!(decode(&[0; 4096], ID, 1024), Decoded::Broken);
    }

    #[test]
    fn a_payload_beyond_the_limit_is_damage() {
        assert_eq!(decode(&encoded(1, &[7; 100]), ID, 99), Decoded::Broken);
    }

    #[test]
    fn resync_finds_the_next_frame_and_no_older_one() {
        let mut bytes = encoded(5, b"damaged");
        bytes[30] ^= 1;
        let next = bytes.len();
        bytes.extend(encoded(6, b"good"));
        assert_eq!(decode(&bytes, ID, 1024), Decoded::Broken);
        assert_eq!(resync(&bytes, ID, 1024, 4), Some(next));
        assert_eq!(resync(&bytes, ID, 1024, 6), None);
    }

    #[test]
    fn resync_finds_a_frame_without_payload_at_the_very_end() {
        let mut bytes = vec![0xee; 7];
        bytes.extend(encoded(5, b""));
        assert_eq!(resync(&bytes, ID, 1024, 4), Some(7));
    }

    #[test]
    fn a_payload_that_looks_like_a_frame_is_none() {
        let mut bytes = Vec::new();
        encode(&mut bytes, ID, 5, 0, &encoded(6, b"forged"));
        let mut of_another = Vec::new();
        encode(&mut of_another, ID + 1, 6, 0, b"forged");
        assert_eq!(decode(&of_another, ID, 1024), Decoded::Broken);
    }

    proptest! {
        #[test]
        fn frame_survives_encoding_and_decoding(seq in 1..u64::MAX, time_ms: u64, payload: Vec<u8>, rest: Vec<u8>) {
            let mut bytes = Vec::new();
            encode(&mut bytes, ID, seq, time_ms, &payload);
            let total = bytes.len();
            for cut in 0..total {
                prop_assert!(matches!(decode(&bytes[..cut], ID, u32::MAX), Decoded::Partial(_)));
            }
            bytes.extend(rest);
            prop_assert_eq!(
                decode(&bytes, ID, u32::MAX),
                Decoded::Whole(Frame { seq, time_ms, payload: &payload }, total)
            );
        }

        #[test]
        fn a_flipped_bit_is_seen(payload in prop::collection::vec(any::<u8>(), 0..64), bit: prop::sample::Index) {
            let mut bytes = encoded(9, &payload);
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!matches!(decode(&bytes, ID, 1 << 20), Decoded::Whole(..)));
        }
    }
}
