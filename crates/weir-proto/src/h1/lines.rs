//! Finds and checks the lines of a head in one pass.
//!
//! Only CRLF ends a line. RFC 9112 §2.2 permits taking a lone LF for a line end; that is refused here, since the next parser on
//! the path may not see a line end there.

use crate::field::{self, Known};
use crate::head::{Field, Head, Span};
use crate::scan;

/// Why field lines are refused: a line that is not `name ":" OWS value OWS CRLF`, or more lines than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadLines {
    Syntax,
    TooMany,
}

/// The result of indexing the field lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FieldLines {
    /// The offset after the blank line.
    pub end: usize,
    /// Every name contains only letters, digits and `-`.
    pub is_plain: bool,
}

/// Indexes the field lines of `bytes` from `at` to the blank line, and copies everything up to and including it into `head`.
/// Returns the end, or `None` while the blank line is missing. Without the blank line, and on an error, `head` holds only the
/// bytes before `at` and no fields, so that the start line can still be logged.
pub(super) fn fields(bytes: &[u8], at: usize, most: usize, head: &mut Head) -> Result<Option<FieldLines>, BadLines> {
    let section = index(bytes, at, most, head);
    let known = match section {
        Ok(Some(section)) => {
            // In a second pass: within the scanning loop this would spill the registers the scanner uses.
            for field in &mut head.fields {
                field.known = Known::parse(&bytes[field.name.range()]);
            }
            section.end
        }
        Ok(None) | Err(_) => {
            head.fields.clear();
            at
        }
    };
    head.bytes.extend_from_slice(&bytes[..known]);
    section
}

fn index(bytes: &[u8], mut at: usize, most: usize, head: &mut Head) -> Result<Option<FieldLines>, BadLines> {
    let mut is_plain = true;
    loop {
        let (name_end, is_plain_name) = scan::name_end(bytes, at);
        if name_end == at {
            match bytes.get(at..) {
                Some([b'\r', b'\n', ..]) => return Ok(Some(FieldLines { end: at + 2, is_plain })),
                None | Some([] | [b'\r']) => return Ok(None),
                _ => {}
            }
        }
        if head.fields.len() == most {
            return Err(BadLines::TooMany);
        }
        is_plain &= is_plain_name;
        let name = Span::new(at, name_end);
        let (value, verbatim) = match usual_value(bytes, name_end) {
            Some(value) if name_end > at => (value, true),
            _ => match value(bytes, name)? {
                None => return Ok(None),
                Some(value) => value,
            },
        };
        let FieldValue { span: value, line_end } = value;
        head.fields.push(Field { name, value, known: Known::Other, removed: false, added: false, verbatim });
        at = line_end + 2;
    }
}

/// A field's value, and where its line ends.
struct FieldValue {
    span: Span,
    line_end: usize,
}

/// The value after a name in the common form `name: value\r\n`, without optional white space to trim.
#[inline(always)]
fn usual_value(bytes: &[u8], name_end: usize) -> Option<FieldValue> {
    let [b':', b' ', first] = bytes.get(name_end..)?.first_chunk()? else { return None };
    let start = name_end + 2;
    let line_end = scan::value_end(bytes, start);
    let [last, b'\r', b'\n'] = bytes.get(line_end - 1..)?.first_chunk()? else { return None };
    let has_blanks = matches!(first, b' ' | b'\t') || matches!(last, b' ' | b'\t');
    (!has_blanks).then(|| FieldValue { span: Span::new(start, line_end), line_end })
}

/// The value after a name in any valid form, and whether the line is byte for byte `name: value\r\n`. `None` while the line is
/// incomplete. A line that begins with a blank (obs-fold, RFC 9112 §5.2) has no name, and so is refused.
#[cold]
fn value(bytes: &[u8], name: Span) -> Result<Option<(FieldValue, bool)>, BadLines> {
    let name_end = name.end as usize;
    match bytes.get(name_end) {
        None => return Ok(None),
        Some(b':') if !name.is_empty() => {}
        Some(_) => return Err(BadLines::Syntax), // RFC 9112 §5.1: also white space before the colon
    }
    let mut start = name_end + 1;
    while let Some(b' ' | b'\t') = bytes.get(start) {
        start += 1;
    }
    let line_end = scan::value_end(bytes, start);
    match bytes.get(line_end..) {
        None | Some([] | [b'\r']) => return Ok(None),
        Some([b'\r', b'\n', ..]) => {}
        Some(_) => return Err(BadLines::Syntax),
    }
    let mut end = line_end;
    while end > start && matches!(bytes[end - 1], b' ' | b'\t') {
        end -= 1;
    }
    let verbatim = end == line_end && start == name_end + 2 && bytes[name_end + 1] == b' ';
    Ok(Some((FieldValue { span: Span::new(start, end), line_end }, verbatim)))
}

/// Options of the `Connection` fields (RFC 9112 §9.3, RFC 9110 §7.8).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConnectionOptions {
    pub close: bool,
    pub keep_alive: bool,
    pub upgrade: bool,
    /// An option besides `close` and `keep-alive`, which may name a field to remove as hop-by-hop.
    pub names_field: bool,
    /// How many options there are; the usual `keep-alive` alone is not counted.
    count: usize,
}

/// The most options that are looked at: each is compared with the name of every field. Today's clients send two or three.
const MOST_OPTIONS: usize = 64;

impl ConnectionOptions {
    pub(super) fn add(&mut self, value: &[u8]) {
        if field::same_name(value, b"keep-alive") {
            self.keep_alive = true; // the usual value, recognised without splitting a list
            return;
        }
        for option in field::list(value) {
            self.count += 1;
            if field::same_name(option, b"close") {
                self.close = true;
            } else if field::same_name(option, b"keep-alive") {
                self.keep_alive = true;
            } else {
                self.upgrade |= field::same_name(option, b"upgrade");
                self.names_field = true;
            }
        }
    }

    pub(super) fn are_too_many(&self) -> bool {
        self.count > MOST_OPTIONS
    }
}

/// Parses a `Content-Length`: digits only (RFC 9110 §8.6). A list, even of equal values, gives `None`; the caller refuses
/// repeated fields.
pub(crate) fn content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    value.iter().try_fold(0u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

/// Fields for all recipients of a message, which must not be named in `Connection` (RFC 9110 §7.6.1) and stay if they are: without
/// them a cache would keep what it must not, and a client would misread the content.
const FOR_ALL_RECIPIENTS: [&[u8]; 9] = [
    b"cache-control",
    b"content-encoding",
    b"content-range",
    b"content-type",
    b"date",
    b"expires",
    b"pragma",
    b"set-cookie",
    b"vary",
];

/// Removes the fields that the `Connection` fields name as hop-by-hop (RFC 9110 §7.6.1): not more names than
/// [`ConnectionOptions::are_too_many`] allows. `Content-Length`, `Transfer-Encoding` and `Host` stay, since they frame and route
/// the message, and so do [`FOR_ALL_RECIPIENTS`]. Identity fields are added later, so a client cannot remove them this way.
pub(super) fn remove_nominated(head: &mut Head) {
    let (bytes, fields) = (&head.bytes, &mut head.fields);
    let mut nominated: [&[u8]; MOST_OPTIONS] = [b""; MOST_OPTIONS];
    let mut count = 0;
    let connection = fields.iter().filter(|field| field.known == Known::Connection);
    let options = connection.flat_map(|field| field::list(&bytes[field.value.range()]));
    // `Keep-Alive` itself is never forwarded.
    let stays = |option: &[u8]| {
        field::same_name(option, b"keep-alive") || FOR_ALL_RECIPIENTS.iter().any(|kept| field::same_name(option, kept))
    };
    for option in options.filter(|option| !stays(option)).take(MOST_OPTIONS) {
        nominated[count] = option;
        count += 1;
    }
    for field in fields {
        if !matches!(field.known, Known::ContentLength | Known::Host | Known::TransferEncoding) {
            let name = &bytes[field.name.range()];
            field.removed |= nominated[..count].iter().any(|option| field::same_name(option, name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        /// httparse is more lenient, so it must accept every head that is accepted here, and find the same fields.
        #[test]
        fn accepted_fields_are_read_alike_by_httparse(lines in proptest::collection::vec("[A-Za-z-]{1,12}:[ \t]{0,2}[ -~\t]{0,12}\r?\n?", 0..6)) {
            let text = format!("{}\r\n", lines.concat());
            let mut head = Head::default();
            if let Ok(Some(FieldLines { end, .. })) = fields(text.as_bytes(), 0, 100, &mut head) {
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
