//! The Huffman code of strings (RFC 7541 §5.2 and appendix B). The code is canonical, so the code lengths determine it; all
//! tables are computed from them at compile time.

use super::BrokenFieldSection;

/// The length of each byte's code in bits; the last is that of EOS.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12,
    10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6,
    5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22,
    22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28,
    27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28,
    27, 27, 27, 27, 27, 26, 30,
];

/// Each symbol's code, in the low bits.
const CODES: [u32; 257] = {
    let mut codes = [0; 257];
    let (mut code, mut length) = (0_u32, 5);
    while length <= 30 {
        let mut symbol = 0;
        while symbol < 257 {
            if LENGTHS[symbol] == length {
                codes[symbol] = code;
                code += 1;
            }
            symbol += 1;
        }
        code <<= 1;
        length += 1;
    }
    codes
};

/// For each value of the next eight bits: the first byte they encode and its code length, or length 0 if the code is longer than
/// 8 bits.
const SHORT: [(u8, u8); 256] = {
    let mut table = [(0, 0); 256];
    let mut symbol = 0;
    while symbol < 256 {
        let length = LENGTHS[symbol];
        if length <= 8 {
            let first = CODES[symbol] << (8 - length);
            let mut at = first;
            while at < first + (1 << (8 - length)) {
                table[at as usize] = (symbol as u8, length);
                at += 1;
            }
        }
        symbol += 1;
    }
    table
};

const LONGEST: usize = 30;

/// For each code length: the first code of this length, their number, and the position of their symbols in [`SORTED`].
const GROUPS: [(u32, u32, usize); LONGEST + 1] = {
    let mut groups = [(0, 0, 0); LONGEST + 1];
    let (mut length, mut place) = (1, 0);
    while length <= LONGEST {
        groups[length].2 = place;
        let mut symbol = 0;
        while symbol < 257 {
            if LENGTHS[symbol] as usize == length {
                if groups[length].1 == 0 {
                    groups[length].0 = CODES[symbol];
                }
                groups[length].1 += 1;
                place += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    groups
};

/// The symbols in the order of their codes; EOS (256) is the last.
const SORTED: [u16; 257] = {
    let mut sorted = [0; 257];
    let (mut length, mut place) = (1, 0);
    while length <= LONGEST as u8 {
        let mut symbol = 0;
        while symbol < 257 {
            if LENGTHS[symbol] == length {
                sorted[place] = symbol as u16;
                place += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    sorted
};

const EOS: u16 = 256;

/// Length of `text` in the Huffman code, in bytes.
pub(crate) fn encoded_len(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|&byte| usize::from(LENGTHS[usize::from(byte)])).sum();
    bits.div_ceil(8)
}

/// Appends `text` in the Huffman code, padded with ones to a whole byte.
pub(crate) fn encode(text: &[u8], out: &mut Vec<u8>) {
    let (mut bits, mut count) = (0_u64, 0_u32);
    for &byte in text {
        let length = u32::from(LENGTHS[usize::from(byte)]);
        bits = bits << length | u64::from(CODES[usize::from(byte)]);
        count += length;
        if count >= 32 {
            count -= 32;
            out.extend_from_slice(&((bits >> count) as u32).to_be_bytes());
        }
    }
    while count >= 8 {
        count -= 8;
        out.push((bits >> count) as u8);
    }
    if count > 0 {
        out.push((bits << (8 - count)) as u8 | 0xff >> count);
    }
}

/// Decodes `code` and appends the text. EOS, more than seven bits of padding, or padding other than ones is an error (RFC 7541
/// §5.2).
pub(crate) fn decode(code: &[u8], out: &mut Vec<u8>) -> Result<(), BrokenFieldSection> {
    // The next bits to decode are the `count` highest of `bits`.
    let (mut bits, mut count) = (0_u64, 0_u32);
    let mut rest = code;
    loop {
        if count <= 32 {
            if let Some((four, others)) = rest.split_first_chunk::<4>() {
                bits |= u64::from(u32::from_be_bytes(*four)) << (32 - count);
                count += 32;
                rest = others;
            } else {
                for &byte in rest {
                    bits |= u64::from(byte) << (56 - count);
                    count += 8;
                }
                rest = &[];
            }
        }
        while count >= 8 {
            let (byte, length) = SHORT[(bits >> 56) as usize];
            if length == 0 {
                break;
            }
            out.push(byte);
            bits <<= length;
            count -= u32::from(length);
        }
        if count < 8 && rest.is_empty() {
            return end(bits, count, out);
        }
        if count >= LONGEST as u32 || rest.is_empty() && count >= 8 {
            // A code of more than eight bits, or the end of the input.
            let Some((byte, length)) = long(bits, count)? else { return end(bits, count, out) };
            out.push(byte);
            bits <<= length;
            count -= length;
        }
    }
}

/// Decodes a code of more than eight bits, to the byte and its length. `None` if fewer bits are left than the code needs.
fn long(bits: u64, count: u32) -> Result<Option<(u8, u32)>, BrokenFieldSection> {
    for (length, &(first, codes, place)) in GROUPS.iter().enumerate().skip(5) {
        if length as u32 > count {
            return Ok(None);
        }
        let at = ((bits >> (64 - length)) as u32).wrapping_sub(first);
        if at < codes {
            return match SORTED[place + at as usize] {
                EOS => Err(BrokenFieldSection),
                byte => Ok(Some((byte as u8, length as u32))),
            };
        }
    }
    Err(BrokenFieldSection)
}

/// Decodes what is left: codes of less than eight bits, and padding.
fn end(mut bits: u64, mut count: u32, out: &mut Vec<u8>) -> Result<(), BrokenFieldSection> {
    while count > 0 {
        let (byte, length) = SHORT[(bits >> 56) as usize];
        if length == 0 || u32::from(length) > count {
            break;
        }
        out.push(byte);
        bits <<= length;
        count -= u32::from(length);
    }
    let is_padding = count < 8 && bits >> (64 - count.max(1)) == (1 << count.max(1)) - 1;
    if count == 0 || is_padding { Ok(()) } else { Err(BrokenFieldSection) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coded(text: &[u8]) -> Vec<u8> {
        let mut code = Vec::new();
        encode(text, &mut code);
        assert_eq!(code.len(), encoded_len(text));
        code
    }

    fn decoded(code: &[u8]) -> Result<Vec<u8>, BrokenFieldSection> {
        let mut text = Vec::new();
        decode(code, &mut text).map(|()| text)
    }

    #[test]
    fn strings_of_the_specification() {
        // RFC 7541 appendix C.4 and C.6.
        for (text, code) in [
            ("www.example.com", &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff][..]),
            ("no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]),
            ("custom-key", &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f]),
            ("302", &[0x64, 0x02]),
            ("private", &[0xae, 0xc3, 0x77, 0x1a, 0x4b]),
        ] {
            assert_eq!(coded(text.as_bytes()), code, "{text}");
            assert_eq!(decoded(code).as_deref(), Ok(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn every_byte_comes_back_wherever_it_stands() {
        for byte in 0..=255u8 {
            for count in 1..9 {
                for before in ["", "0", "a%", "~~~"] {
                    let text = [before.as_bytes(), &vec![byte; count]].concat();
                    assert_eq!(decoded(&coded(&text)).as_ref(), Ok(&text), "{byte} {count} times after {before:?}");
                }
            }
        }
    }

    #[test]
    fn padding_is_ones_and_less_than_a_byte() {
        assert_eq!(decoded(&[0x1f]), Ok(b"a".to_vec()), "three ones behind five bits");
        for bad in [&[0x1e][..], &[0x18], &[0x1f, 0xff], &[0xff], &[0xff; 4], &[0xff; 30], &[0x00, 0x0f, 0xfe]] {
            assert_eq!(decoded(bad), Err(BrokenFieldSection), "{bad:x?}");
        }
        let eos = [0xff, 0xff, 0xff, 0xfc | 3];
        assert_eq!(decoded(&eos), Err(BrokenFieldSection), "EOS stands in it");
        assert_eq!(decoded(&[]), Ok(Vec::new()));
    }

    proptest::proptest! {
        #[test]
        fn text_survives_coding_and_decoding(text in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            proptest::prop_assert_eq!(decoded(&coded(&text)), Ok(text));
        }

        #[test]
        fn decoded_text_has_exactly_the_code_it_came_from(code in proptest::collection::vec(proptest::num::u8::ANY, 0..40)) {
            if let Ok(text) = decoded(&code) {
                proptest::prop_assert_eq!(coded(&text), code);
            }
        }
    }
}
