//! Escaping of client data for logs, so that it stays one value in one line.
//!
//! For any input the result contains no line break, no control character (terminals interpret some, also above 0x7f), and
//! nothing that ends the enclosing value.

/// Appends `bytes` as the inside of a JSON string. The result is valid UTF-8; invalid bytes become U+FFFD.
pub fn json(out: &mut Vec<u8>, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    if is_plain(bytes) {
        out.extend_from_slice(bytes);
        return;
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        return json_str(out, text);
    }
    for chunk in bytes.utf8_chunks() {
        json_str(out, chunk.valid());
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
}

/// Whether nothing has to be escaped.
#[inline]
fn is_plain(bytes: &[u8]) -> bool {
    // The last word may overlap with the one before, and in short texts bytes may be in it twice.
    let last = match (bytes.last_chunk::<8>(), bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        (Some(last), _, _) => *last,
        (_, Some(&[a, b, c, d]), Some(&[e, f, g, h])) => [a, b, c, d, e, f, g, h],
        _ => match *bytes {
            [] => return true,
            [first, ..] => {
                let (middle, last) = (bytes[bytes.len() / 2], bytes[bytes.len() - 1]);
                [first, middle, last, first, first, first, first, first]
            }
        },
    };
    let is_plain = |word: &[u8; 8]| special_bytes(*word) == 0;
    bytes.as_chunks::<8>().0.iter().all(is_plain) && is_plain(&last)
}

/// Eight bytes at once: not 0 if any has to be escaped, or is not ASCII. Where the result of a subtraction borrows from the byte
/// above, the byte below has to be escaped itself.
#[inline]
fn special_bytes(word: [u8; 8]) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let word = u64::from_le_bytes(word);
    let equals = |byte: u8| (word ^ (ONES * u64::from(byte))).wrapping_sub(ONES);
    let is_control = word.wrapping_sub(ONES * u64::from(b' '));
    // Adding 1 turns 0x7f into 0x80. All others have their high bit already, or do not get it.
    let is_high = word | word.wrapping_add(ONES);
    (is_control | equals(b'"') | equals(b'\\') | is_high) & (ONES << 7)
}

/// Copied as it is.
const PLAIN: u8 = 0;
/// Written as `\u` with its code.
const CODED: u8 = 1;
/// The first byte of characters of which some are written as `\u` with their code.
const LEAD: u8 = 2;

/// What is done with each byte of UTF-8 text. Other values than the three above are the letter after a backslash.
const TREATMENTS: [u8; 256] = {
    let mut treatments = [PLAIN; 256];
    let mut control = 0;
    while control < 0x20 {
        treatments[control] = CODED;
        control += 1;
    }
    treatments[0x7f] = CODED;
    treatments[b'"' as usize] = b'"';
    treatments[b'\\' as usize] = b'\\';
    treatments[b'\n' as usize] = b'n';
    treatments[b'\r' as usize] = b'r';
    treatments[b'\t' as usize] = b't';
    treatments[0xc2] = LEAD;
    treatments[0xe2] = LEAD;
    treatments
};

/// Copies the parts between the characters that are escaped.
fn json_str(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    let mut copied = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        let treatment = TREATMENTS[usize::from(byte)];
        if treatment == PLAIN {
            continue;
        }
        let (code, length) = match (treatment, &bytes[at..]) {
            // Control characters above 0x7f.
            (LEAD, &[0xc2, second @ 0x80..=0x9f, ..]) => (u16::from(second), 2),
            // U+2028 and U+2029 are line ends in JavaScript and in some log readers.
            (LEAD, &[0xe2, 0x80, third @ (0xa8 | 0xa9), ..]) => (0x2000 | u16::from(third & 0x3f), 3),
            (LEAD, _) => continue,
            _ => (u16::from(byte), 1),
        };
        out.extend_from_slice(&bytes[copied..at]);
        match treatment {
            CODED | LEAD => unicode_escape(out, code),
            letter => out.extend_from_slice(&[b'\\', letter]),
        }
        copied = at + length;
    }
    out.extend_from_slice(&bytes[copied..]);
}

fn unicode_escape(out: &mut Vec<u8>, code: u16) {
    let [a, b, c, d] = [12, 8, 4, 0].map(|shift| hex((code >> shift) as u8 & 15));
    out.extend_from_slice(&[b'\\', b'u', a, b, c, d]);
}

fn hex(nibble: u8) -> u8 {
    b"0123456789ABCDEF"[usize::from(nibble)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn as_json(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        json(&mut out, bytes);
        String::from_utf8(out).expect("valid UTF-8")
    }

    #[test]
    fn p14_json_survives_every_byte_alone_and_in_pairs() {
        for first in 0..=u8::MAX {
            for second in 0..=u8::MAX {
                let bytes = [b'a', first, second, b'z'];
                let escaped = as_json(&bytes);
                assert!(!escaped.chars().any(char::is_control), "{bytes:?} became {escaped:?}");
                let parsed: String = serde_json::from_str(&format!("\"{escaped}\"")).expect("it is a JSON string");
                assert_eq!(parsed, String::from_utf8_lossy(&bytes), "{bytes:?} became {escaped:?}");
            }
        }
    }

    #[test]
    fn p14_what_readers_take_for_a_line_break_or_a_command_is_escaped() {
        assert_eq!(as_json("a\u{2028}b\u{2029}c".as_bytes()), r"a\u2028b\u2029c");
        assert_eq!(as_json("\u{9b}2J\u{1b}[2J\u{7f}".as_bytes()), r"\u009B2J\u001B[2J\u007F");
        assert_eq!(as_json("{\"index\":{}}\n".as_bytes()), r#"{\"index\":{}}\n"#);
    }

    #[test]
    fn a_special_byte_is_found_at_each_place_in_texts_of_each_length() {
        for length in 1..40 {
            for at in 0..length {
                for special in [0, 0x1f, b'"', b'\\', 0x7f, 0x80, 0xa0, 0xff] {
                    let mut bytes = vec![b'~'; length];
                    assert!(is_plain(&bytes));
                    bytes[at] = special;
                    assert!(!is_plain(&bytes), "{special:#x} at {at} of {length}");
                }
                let all = (b' '..=b'~').filter(|byte| !b"\"\\".contains(byte));
                for plain in all {
                    let mut bytes = vec![b' '; length];
                    bytes[at] = plain;
                    assert!(is_plain(&bytes), "{plain:#x} at {at} of {length}");
                }
            }
        }
    }

    #[test]
    fn plain_text_stays_as_it_is() {
        assert_eq!(as_json(b"GET /a?b=c&d=%20 HTTP/1.1"), "GET /a?b=c&d=%20 HTTP/1.1");
        assert_eq!(as_json("Zürich → Bern".as_bytes()), "Zürich → Bern");
    }
}
