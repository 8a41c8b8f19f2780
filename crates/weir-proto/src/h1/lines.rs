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
    let line_end = visible_end(bytes, at);
    match &bytes[line_end..] {
        [] | [b'\r'] => return Ok(None),
        [b'\r', b'\n', ..] => {}
        _ => return Err(BadLines::Syntax),
    }
    let line = &bytes[..line_end];
    let name_end = colon(line, at).ok_or(BadLines::Syntax)?;
    let name = &line[at..name_end];
    let known = Known::parse(name);
    // RFC 9112 §5.1: also white space before the colon. A name that was recognised has been looked at byte by byte.
    if matches!(known, Known::Other | Known::Identity) && !field::is_name(name) {
        return Err(BadLines::Syntax);
    }
    let mut value_start = name_end + 1;
    while let Some(b' ' | b'\t') = line.get(value_start) {
        value_start += 1;
    }
    let mut value_end = line_end;
    while value_end > value_start && matches!(line[value_end - 1], b' ' | b'\t') {
        value_end -= 1;
    }
    let verbatim = value_end == line_end && value_start == name_end + 2 && line[name_end + 1] == b' ';
    let field = Field {
        name: Span::new(at, name_end),
        value: Span::new(value_start, value_end),
        known,
        removed: false,
        verbatim,
    };
    Ok(Some((field, line_end + 2)))
}

/// The offset of the first byte from `at` on that may not stand in a field value: a control character other than a
/// tab (RFC 9110 §5.5). Eight bytes at a time.
pub(super) fn visible_end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        let (words, tail) = bytes[at..].as_chunks::<8>();
        let in_words =
            words.iter().enumerate().find_map(|(index, word)| first(control(*word)).map(|at| index * 8 + at));
        let in_tail = || tail.iter().position(|&byte| byte < b' ' || byte == 0x7f);
        at += in_words.unwrap_or_else(|| words.len() * 8 + in_tail().unwrap_or(tail.len()));
        match bytes.get(at) {
            Some(b'\t') => at += 1,
            _ => return at,
        }
    }
}

/// The offset of the first colon from `at` on.
fn colon(line: &[u8], at: usize) -> Option<usize> {
    let (words, tail) = line[at..].as_chunks::<8>();
    let in_words =
        words.iter().enumerate().find_map(|(index, word)| first(equal_to(*word, b':')).map(|at| index * 8 + at));
    let found = in_words.or_else(|| Some(words.len() * 8 + tail.iter().position(|&byte| byte == b':')?))?;
    Some(at + found)
}

const ONES: u64 = 0x0101_0101_0101_0101;
const LOWS: u64 = ONES * 0x7f;
const HIGHS: u64 = ONES * 0x80;

/// The place of the first byte whose highest bit is set.
fn first(marks: u64) -> Option<usize> {
    (marks != 0).then(|| (marks.trailing_zeros() / 8) as usize)
}

/// Marks control characters, each in its own highest bit.
fn control(word: [u8; 8]) -> u64 {
    let word = u64::from_le_bytes(word);
    let lows = word & LOWS;
    let is_blank_or_more = lows + ONES * 0x60;
    let is_delete = lows + ONES;
    (!is_blank_or_more | is_delete) & !word & HIGHS
}

/// Marks bytes equal to `byte`, likewise.
fn equal_to(word: [u8; 8], byte: u8) -> u64 {
    let differs = u64::from_le_bytes(word) ^ (ONES * u64::from(byte));
    !(((differs & LOWS) + LOWS) | differs) & HIGHS
}

/// A `Content-Length`: digits only (RFC 9110 §8.6). A list, even of equal values, is refused by the caller's count.
pub(super) fn content_length(value: &[u8]) -> Option<u64> {
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
