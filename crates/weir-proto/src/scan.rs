//! Finds the end of a run of bytes of one class: sixteen bytes at a time where SSE2 is available, as on every x86-64, and one at
//! a time elsewhere.

use crate::field;

/// A class of bytes that a part of a head (name, value, target, …) consists of.
trait ByteClass {
    /// Whether a byte belongs to the class.
    fn has(byte: u8) -> bool;

    /// A mask with bit `i` set if byte `i` of the block does not belong to the class.
    #[cfg(target_feature = "sse2")]
    fn marks(bytes: x86::Block) -> u32;
}

/// Letters, digits and `-`: all that most field names contain.
struct PlainNameBytes;

/// Bytes allowed in a field value, except the tab (RFC 9110 §5.5).
struct ValueBytes;

/// Bytes allowed in a request target.
struct TargetBytes;

/// Bytes allowed in a query.
struct QueryBytes;

/// Letters, digits, `-`, `_` and `/`: a path of these has no dot segments and nothing to decode.
struct PlainPathBytes;

/// Lower-case letters, digits, `-` and `.`.
struct PlainHostBytes;

/// The end of the field name (a token, RFC 9110 §5.6.2) that starts at `at`, and whether it contains only letters, digits and
/// `-`.
#[inline]
pub(crate) fn name_end(bytes: &[u8], at: usize) -> (usize, bool) {
    let mut end = run_end::<PlainNameBytes>(bytes, at);
    if !bytes.get(end).is_some_and(|&byte| field::is_token_byte(byte)) {
        return (end, true);
    }
    while bytes.get(end).is_some_and(|&byte| field::is_token_byte(byte)) {
        end += 1;
    }
    (end, false)
}

/// The offset of the first byte from `at` on that a field value cannot contain: a control character other than a tab.
#[inline]
pub(crate) fn value_end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        at = run_end::<ValueBytes>(bytes, at);
        match bytes.get(at) {
            Some(b'\t') => at += 1,
            _ => return at,
        }
    }
}

/// The offset of the first byte from `at` on that a request target cannot contain.
#[inline]
pub(crate) fn target_end(bytes: &[u8], at: usize) -> usize {
    run_end::<TargetBytes>(bytes, at)
}

/// The offset of the first byte from `at` on that a query cannot contain. More is allowed than in RFC 3986 §3.4, as clients send
/// other characters, too.
#[inline]
pub(crate) fn query_end(bytes: &[u8], at: usize) -> usize {
    run_end::<QueryBytes>(bytes, at)
}

/// The end of the part from `at` on that is certainly canonical: a path of plain segments, none of them empty. What follows may
/// be canonical too, and needs the full check.
#[inline]
pub(crate) fn plain_path_end(bytes: &[u8], at: usize) -> usize {
    segments_end::<PlainPathBytes>(bytes, at, b'/')
}

/// Like `plain_path_end` for a host: labels of lower-case letters, digits and `-`, none of them empty except the first.
#[inline]
pub(crate) fn plain_host_end(bytes: &[u8], at: usize) -> usize {
    segments_end::<PlainHostBytes>(bytes, at, b'.')
}

/// The offset of the first byte from `at` on that is not of the class, or that is the second of two adjacent separators.
#[cfg(target_feature = "sse2")]
#[inline(always)]
fn segments_end<C: ByteClass>(bytes: &[u8], mut at: usize, separator: u8) -> usize {
    let Some(last) = bytes.len().checked_sub(x86::STEP) else {
        return segments_end_scalar::<C>(bytes, at, separator);
    };
    let mut after_separator = 0;
    while at <= last {
        let block = x86::block(bytes, at);
        let separators = x86::set(x86::equal(block, separator));
        let marks = C::marks(block) | separators & (separators << 1 | after_separator);
        if marks != 0 {
            return at + marks.trailing_zeros() as usize;
        }
        after_separator = separators >> (x86::STEP - 1);
        at += x86::STEP;
    }
    // The last block ends with the input; its first `seen` bytes were checked already.
    let (block, seen) = (x86::block(bytes, last), at - last);
    let separators = x86::set(x86::equal(block, separator)) >> seen;
    let marks = C::marks(block) >> seen | separators & (separators << 1 | after_separator);
    if marks == 0 { bytes.len() } else { at + marks.trailing_zeros() as usize }
}

#[cfg(not(target_feature = "sse2"))]
fn segments_end<C: ByteClass>(bytes: &[u8], at: usize, separator: u8) -> usize {
    segments_end_scalar::<C>(bytes, at, separator)
}

fn segments_end_scalar<C: ByteClass>(bytes: &[u8], at: usize, separator: u8) -> usize {
    let mut after_separator = false;
    let is_in = |byte: &&u8| {
        let ends = after_separator && **byte == separator;
        after_separator = **byte == separator;
        !ends && C::has(**byte)
    };
    at + bytes.get(at..).unwrap_or_default().iter().take_while(is_in).count()
}

/// The offset of the first byte from `at` on that is not of the class, or the length of `bytes`.
#[cfg(target_feature = "sse2")]
#[inline(always)]
fn run_end<C: ByteClass>(bytes: &[u8], mut at: usize) -> usize {
    let Some(last) = bytes.len().checked_sub(x86::STEP) else { return run_end_scalar::<C>(bytes, at) };
    while at <= last {
        let marks = C::marks(x86::block(bytes, at));
        if marks != 0 {
            return at + marks.trailing_zeros() as usize;
        }
        at += x86::STEP;
    }
    // The last block ends with the input; its first `at - last` bytes were checked already.
    let marks = C::marks(x86::block(bytes, last)) >> (at - last);
    if marks == 0 { bytes.len() } else { at + marks.trailing_zeros() as usize }
}

#[cfg(not(target_feature = "sse2"))]
fn run_end<C: ByteClass>(bytes: &[u8], at: usize) -> usize {
    run_end_scalar::<C>(bytes, at)
}

fn run_end_scalar<C: ByteClass>(bytes: &[u8], at: usize) -> usize {
    let run = bytes.get(at..).unwrap_or_default().iter().take_while(|&&byte| C::has(byte));
    at + run.count()
}

impl ByteClass for PlainNameBytes {
    fn has(byte: u8) -> bool {
        byte.is_ascii_alphanumeric() || byte == b'-'
    }

    #[cfg(target_feature = "sse2")]
    #[inline(always)]
    fn marks(bytes: x86::Block) -> u32 {
        let letters = x86::between(x86::or(bytes, x86::all(0x20)), b'a', b'z');
        let digits = x86::between(bytes, b'0', b'9');
        x86::unset(x86::or(x86::or(letters, digits), x86::equal(bytes, b'-')))
    }
}

impl ByteClass for ValueBytes {
    fn has(byte: u8) -> bool {
        byte >= b' ' && byte != 0x7f
    }

    #[cfg(target_feature = "sse2")]
    #[inline(always)]
    fn marks(bytes: x86::Block) -> u32 {
        x86::set(x86::or(x86::at_most(bytes, 0x1f), x86::equal(bytes, 0x7f)))
    }
}

impl ByteClass for TargetBytes {
    fn has(byte: u8) -> bool {
        matches!(byte, 0x21..=0x7e)
    }

    #[cfg(target_feature = "sse2")]
    #[inline(always)]
    fn marks(bytes: x86::Block) -> u32 {
        x86::unset(x86::between(bytes, 0x21, 0x7e))
    }
}

impl ByteClass for QueryBytes {
    fn has(byte: u8) -> bool {
        TargetBytes::has(byte) && byte != b'#'
    }

    #[cfg(target_feature = "sse2")]
    #[inline(always)]
    fn marks(bytes: x86::Block) -> u32 {
        TargetBytes::marks(bytes) | x86::set(x86::equal(bytes, b'#'))
    }
}

impl ByteClass for PlainPathBytes {
    fn has(byte: u8) -> bool {
        PlainNameBytes::has(byte) || byte == b'_' || byte == b'/'
    }

    #[cfg(target_feature = "sse2")]
    #[inline(always)]
    fn marks(bytes: x86::Block) -> u32 {
        PlainNameBytes::marks(bytes) & !x86::set(x86::or(x86::equal(bytes, b'_'), x86::equal(bytes, b'/')))
    }
}

impl ByteClass for PlainHostBytes {
    fn has(byte: u8) -> bool {
        matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.')
    }

    #[cfg(target_feature = "sse2")]
    #[inline(always)]
    fn marks(bytes: x86::Block) -> u32 {
        let letters = x86::between(bytes, b'a', b'z');
        let digits = x86::between(bytes, b'0', b'9');
        let others = x86::between(bytes, b'-', b'.');
        x86::unset(x86::or(x86::or(letters, digits), others))
    }
}

/// The SSE2 instructions the classes need. SAFETY of each: this module is compiled only for targets with SSE2.
#[cfg(target_feature = "sse2")]
#[expect(unsafe_code, reason = "the library has these instructions as intrinsics only")]
mod x86 {
    #[cfg(target_arch = "x86")]
    use std::arch::x86::*;
    #[cfg(target_arch = "x86_64")]
    use std::arch::x86_64::*;

    pub(super) type Block = __m128i;

    /// Bytes in a block.
    pub(super) const STEP: usize = size_of::<Block>();

    /// The block that begins at `at`.
    #[inline(always)]
    pub(super) fn block(bytes: &[u8], at: usize) -> Block {
        assert!(bytes.len() >= STEP && at <= bytes.len() - STEP);
        // SAFETY: the assertion guarantees `STEP` bytes from `at` on; the instruction needs no alignment.
        unsafe { _mm_loadu_si128(bytes.as_ptr().add(at).cast()) }
    }

    #[inline(always)]
    pub(super) fn all(byte: u8) -> Block {
        unsafe { _mm_set1_epi8(byte as i8) }
    }

    #[inline(always)]
    pub(super) fn or(one: Block, other: Block) -> Block {
        unsafe { _mm_or_si128(one, other) }
    }

    #[inline(always)]
    pub(super) fn equal(bytes: Block, byte: u8) -> Block {
        unsafe { _mm_cmpeq_epi8(bytes, all(byte)) }
    }

    #[inline(always)]
    pub(super) fn at_most(bytes: Block, most: u8) -> Block {
        unsafe { _mm_cmpeq_epi8(_mm_min_epu8(bytes, all(most)), bytes) }
    }

    #[inline(always)]
    pub(super) fn between(bytes: Block, first: u8, last: u8) -> Block {
        at_most(unsafe { _mm_sub_epi8(bytes, all(first)) }, last - first)
    }

    /// A mask with one bit per byte, set if the byte's highest bit is set; a comparison sets all bits of a byte or none.
    #[inline(always)]
    pub(super) fn set(bytes: Block) -> u32 {
        unsafe { _mm_movemask_epi8(bytes) as u32 }
    }

    /// The complement of [`set`] for the sixteen bytes.
    #[inline(always)]
    pub(super) fn unset(bytes: Block) -> u32 {
        set(bytes) ^ 0xffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agrees<C: ByteClass>(bytes: &[u8]) {
        for at in 0..=bytes.len() {
            assert_eq!(run_end::<C>(bytes, at), run_end_scalar::<C>(bytes, at), "{} from {at}", bytes.escape_ascii());
            for separator in [b'/', b'.'] {
                let fast = segments_end::<C>(bytes, at, separator);
                let slow = segments_end_scalar::<C>(bytes, at, separator);
                assert_eq!(fast, slow, "{} from {at}", bytes.escape_ascii());
            }
        }
    }

    #[test]
    fn each_byte_is_of_the_same_class_in_blocks_and_alone() {
        for byte in 0..=255 {
            for (length, place) in [(1, 0), (16, 0), (16, 15), (17, 16), (31, 16), (40, 33)] {
                let mut bytes = vec![b'a'; length];
                bytes[place] = byte;
                agrees::<PlainNameBytes>(&bytes);
                agrees::<ValueBytes>(&bytes);
                agrees::<TargetBytes>(&bytes);
                agrees::<QueryBytes>(&bytes);
                agrees::<PlainPathBytes>(&bytes);
                agrees::<PlainHostBytes>(&bytes);
            }
        }
    }

    #[test]
    fn separators_side_by_side_are_found_wherever_they_are() {
        for length in [2, 15, 16, 17, 31, 32, 33, 48] {
            for place in 0..length - 1 {
                let mut bytes = vec![b'a'; length];
                bytes[place..place + 2].copy_from_slice(b"//");
                agrees::<PlainPathBytes>(&bytes);
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn runs_end_where_one_at_a_time_finds_it(bytes in proptest::collection::vec(proptest::sample::select(b"aZ9-_ \t:\x7f\x80\xff\r\n\x00\x1fz~!".to_vec()), 0..80), at in 0usize..80) {
            let at = at.min(bytes.len());
            let (end, is_plain) = name_end(&bytes, at);
            let name = &bytes[at..end];
            proptest::prop_assert!(name.iter().all(|&byte| field::is_token_byte(byte)));
            proptest::prop_assert!(bytes.get(end).is_none_or(|&byte| !field::is_token_byte(byte)));
            proptest::prop_assert_eq!(is_plain, name.iter().all(|&byte| PlainNameBytes::has(byte)));
            let slow = (at..bytes.len()).find(|&index| !field::is_value(&bytes[index..=index])).unwrap_or(bytes.len());
            proptest::prop_assert_eq!(value_end(&bytes, at), slow);
            let slow = (at..bytes.len()).find(|&index| !matches!(bytes[index], 0x21..=0x7e)).unwrap_or(bytes.len());
            proptest::prop_assert_eq!(target_end(&bytes, at), slow);
        }
    }
}
