//! Lines of a head, found and checked in one pass.
//!
//! A line ends in CRLF and in nothing else. RFC 9112 §2.2 would let us take a lone LF for a line end; we do not, since
//! others may not see one there.

use crate::field::{self, Known};
use crate::head::{Field, Head, Span};

/// A line that is not `name ":" OWS value OWS CRLF`, or more lines than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadLines {
    Syntax,
    TooMany,
}

/// Indexes the field lines of `bytes` from `at` to the blank line, and copies everything to its end into `head`.
/// Returns that end, or `None` while the blank line is missing. Without the blank line `head` holds the bytes before
/// `at` and no fields, so that what was said of the start line can still be read.
pub(super) fn fields(bytes: &[u8], at: usize, most: usize, head: &mut Head) -> Result<Option<usize>, BadLines> {
    let end = index(bytes, at, most, head);
    let known = match end {
        Ok(Some(end)) => end,
        Ok(None) | Err(_) => {
            head.fields.clear();
            at
        }
    };
    head.bytes.extend_from_slice(&bytes[..known]);
    end
}

fn index(bytes: &[u8], mut at: usize, most: usize, head: &mut Head) -> Result<Option<usize>, BadLines> {
    loop {
        match &bytes[at.min(bytes.len())..] {
            [b'\r', b'\n', ..] => return Ok(Some(at + 2)),
            [] | [b'\r'] => return Ok(None),
            _ => {}
        }
        if head.fields.len() == most {
            return Err(BadLines::TooMany);
        }
        match line(bytes, at)? {
            None => return Ok(None),
            Some((field, end)) => {
                head.fields.push(field);
                at = end;
            }
        }
    }
}

/// One field line at `at`, and where the next line starts. A line that begins with a blank (obs-fold, RFC 9112 §5.2)
/// has no name, and so is refused.
fn line(bytes: &[u8], at: usize) -> Result<Option<(Field, usize)>, BadLines> {
    let name_end = at + bytes[at..].iter().take_while(|&&byte| field::is_token_byte(byte)).count();
    match bytes.get(name_end) {
        None => return Ok(None),
        Some(b':') if name_end > at => {}
        Some(_) => return Err(BadLines::Syntax), // RFC 9112 §5.1: also white space before the colon
    }
    let mut value_start = name_end + 1;
    while let Some(b' ' | b'\t') = bytes.get(value_start) {
        value_start += 1;
    }
    let line_end = visible_end(bytes, value_start);
    match bytes.get(line_end..) {
        None | Some([] | [b'\r']) => return Ok(None),
        Some([b'\r', b'\n', ..]) => {}
        Some(_) => return Err(BadLines::Syntax),
    }
    let mut value_end = line_end;
    while value_end > value_start && matches!(bytes[value_end - 1], b' ' | b'\t') {
        value_end -= 1;
    }
    let verbatim = value_end == line_end && value_start == name_end + 2 && bytes[name_end + 1] == b' ';
    let field = Field {
        name: Span::new(at, name_end),
        value: Span::new(value_start, value_end),
        known: Known::parse(&bytes[at..name_end]),
        removed: false,
        added: false,
        verbatim,
    };
    Ok(Some((field, line_end + 2)))
}

/// The offset of the first byte from `at` on that may not stand in a field value: a control character other than a
/// tab (RFC 9110 §5.5). Eight bytes at a time.
pub(super) fn visible_end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        while let Some(word) = bytes.get(at..at + 8) {
            let word = u64::from_le_bytes(word.try_into().expect("the slice has eight bytes"));
            let found = below_blank(word) | equal_to(word, 0x7f);
            if found != 0 {
                at += (found.trailing_zeros() / 8) as usize;
                break;
            }
            at += 8;
        }
        while at < bytes.len() && bytes[at] >= b' ' && bytes[at] != 0x7f {
            at += 1;
        }
        match bytes.get(at) {
            Some(b'\t') => at += 1,
            _ => return at.min(bytes.len()),
        }
    }
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Marks bytes below 0x20. The lowest mark is exact; marks above it may be carries.
fn below_blank(word: u64) -> u64 {
    word.wrapping_sub(ONES * 0x20) & !word & HIGHS
}

/// Marks bytes equal to `byte`, with the same reservation.
fn equal_to(word: u64, byte: u8) -> u64 {
    let zeroed = word ^ (ONES * u64::from(byte));
    zeroed.wrapping_sub(ONES) & !zeroed & HIGHS
}

/// A `Content-Length`: digits only (RFC 9110 §8.6). A list, even of equal values, is refused by the caller's count.
pub(crate) fn content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    value.iter().try_fold(0u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

/// Marks the fields a `Connection` names as hop-by-hop (RFC 9110 §7.6.1). What frames or routes the message cannot be
/// unsaid this way, and neither can the identity fields we set later.
pub(super) fn remove_nominated(head: &mut Head) {
    for index in 0..head.fields.len() {
        if head.fields[index].known != Known::Connection {
            continue;
        }
        let value = head.fields[index].value;
        for other in 0..head.fields.len() {
            let candidate = head.fields[other];
            if matches!(candidate.known, Known::ContentLength | Known::Host | Known::TransferEncoding) {
                continue;
            }
            let name = head.slice(candidate.name);
            if field::list(head.slice(value)).any(|nominated| nominated.eq_ignore_ascii_case(name)) {
                head.fields[other].removed = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn eight_at_a_time_finds_what_one_at_a_time_finds(bytes in proptest::collection::vec(proptest::sample::select(b"a\t \x7f\x80\xff\r\n\x00\x1fz~".to_vec()), 0..40), at in 0usize..40) {
            let at = at.min(bytes.len());
            let slow = (at..bytes.len()).find(|&index| !field::is_value(&bytes[index..=index])).unwrap_or(bytes.len());
            proptest::prop_assert_eq!(visible_end(&bytes, at), slow);
        }

        /// httparse is forgiving where we are strict, so it accepts all we accept, and finds the same fields.
        #[test]
        fn what_we_accept_httparse_reads_alike(lines in proptest::collection::vec("[A-Za-z-]{1,12}:[ \t]{0,2}[ -~\t]{0,12}\r?\n?", 0..6)) {
            let text = format!("{}\r\n", lines.concat());
            let mut head = Head::default();
            if let Ok(Some(end)) = fields(text.as_bytes(), 0, 100, &mut head) {
                let mut slots = [httparse::EMPTY_HEADER; 100];
                let parsed = httparse::parse_headers(text.as_bytes(), &mut slots);
                let httparse::Status::Complete((length, theirs)) = parsed.expect("httparse accepts it") else {
                    panic!("httparse sees the end")
                };
                proptest::prop_assert_eq!(length, end);
                let ours: Vec<_> = head.fields().collect();
                let theirs: Vec<_> = theirs.iter().map(|header| (header.name.as_bytes(), header.value)).collect();
                proptest::prop_assert_eq!(ours, theirs);
            }
        }
    }
}
