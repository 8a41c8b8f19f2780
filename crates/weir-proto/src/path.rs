//! The canonical path: computed once, and used by the router, plugins, logs and the upstream, so that no two of them interpret a
//! path differently (RFC 3986 §6.2.2).

/// Why a path is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadPath {
    /// A byte that is not allowed in a path, or `%` without two hexadecimal digits.
    Syntax,
    /// `%00`.
    Nul,
    /// `..` above the root, or a dot segment hidden by parameters (`..;x`) or encoded separators (`..%2Fx`).
    DotSegment,
}

/// What [`canonical`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canonical {
    /// The bytes are canonical as they are; nothing was written.
    AsIs,
    /// The canonical form was appended to `out`.
    Rewritten {
        /// The path contains `%2F` or `%5C`, which an upstream may take for a separator. Refused unless the route allows it.
        encoded_separator: bool,
        /// The path has empty segments, and no dot segments: [`with_empty_segments`] gives the form that keeps them.
        empty_segments: bool,
    },
}

const PLAIN: u8 = 1; // allowed, and canonical as it is
const ENCODE: u8 = 2; // accepted from clients, percent-encoded in the canonical form

/// The class of each byte of a path; 0 is refused.
const CLASS: [u8; 256] = {
    let mut class = [0u8; 256];
    let mut byte = 0x21;
    while byte < 0x7f {
        class[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => PLAIN,
            b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' | b':' | b'@' => PLAIN,
            b'"' | b'<' | b'>' | b'[' | b']' | b'^' | b'`' | b'{' | b'|' | b'}' => ENCODE,
            _ => 0,
        };
        byte += 1;
    }
    class
};

/// Converts a path (from its leading `/`, without the query) to its canonical form: unreserved bytes decoded, other escapes kept
/// with upper-case digits, empty and dot segments resolved.
pub fn canonical(path: &[u8], out: &mut Vec<u8>) -> Result<Canonical, BadPath> {
    if is_canonical(path) {
        return Ok(Canonical::AsIs);
    }
    rewrite(path, out, EmptySegments::Merged)
}

/// The canonical form of a path that keeps its empty segments. [`canonical`] has accepted the path and found such segments. No path
/// with dot segments has this form, since `/a//../b` is `/b` to some servers and `/a/b` to others (RFC 3986 §5.2.4).
pub fn with_empty_segments(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let found = rewrite(path, &mut out, EmptySegments::Kept);
    debug_assert!(matches!(found, Ok(Canonical::Rewritten { empty_segments: true, .. })));
    out
}

/// What becomes of the segments between `//`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EmptySegments {
    Merged,
    Kept,
}

fn is_canonical(path: &[u8]) -> bool {
    // A path with an empty segment, a segment that starts with a dot, or an escape is left to `rewrite`.
    let mut segment_start = true;
    let [b'/', rest @ ..] = path else { return false };
    for &byte in rest {
        if byte == b'/' {
            if segment_start {
                return false;
            }
            segment_start = true;
        } else {
            if CLASS[byte as usize] != PLAIN || (segment_start && byte == b'.') {
                return false;
            }
            segment_start = false;
        }
    }
    true
}

fn rewrite(path: &[u8], out: &mut Vec<u8>, empty: EmptySegments) -> Result<Canonical, BadPath> {
    let base = out.len();
    let [b'/', rest @ ..] = path else { return Err(BadPath::Syntax) };
    let (mut encoded_separator, mut has_dots, mut has_empty) = (false, false, false);
    out.push(b'/');
    let mut segments = rest.split(|&byte| byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        let start = out.len();
        encoded_separator |= push_segment(segment, out)?;
        let is_dots = matches!(&out[start..], b"." | b"..");
        if !is_dots && has_hidden_dots(&out[start..]) {
            return Err(BadPath::DotSegment);
        }
        has_dots |= is_dots;
        match &out[start..] {
            b"" if is_last => {}
            b"" => {
                has_empty = true;
                if empty == EmptySegments::Kept {
                    out.push(b'/');
                }
            }
            b"." => out.truncate(start),
            b".." => {
                out.truncate(start);
                if out.len() == base + 1 {
                    return Err(BadPath::DotSegment);
                }
                out.pop();
                while out.last() != Some(&b'/') {
                    out.pop();
                }
            }
            _ if !is_last => out.push(b'/'),
            _ => {}
        }
    }
    Ok(Canonical::Rewritten { encoded_separator, empty_segments: has_empty && !has_dots })
}

/// Whether a segment with normalised escapes contains a dot segment to an upstream that removes parameters or decodes separators:
/// `..;x` and `..%2Fx` are `..` to some and names to others.
fn has_hidden_dots(segment: &[u8]) -> bool {
    let ends_part = |rest: &[u8]| {
        matches!(rest, [] | [b';', ..]) || [&b"%2F"[..], b"%5C", b"%3B"].iter().any(|end| rest.starts_with(end))
    };
    let begins_part = |before: &[u8]| before.is_empty() || before.ends_with(b"%2F") || before.ends_with(b"%5C");
    let is_dots = |at: usize| {
        let (before, rest) = segment.split_at(at);
        begins_part(before) && (ends_part(&rest[1..]) || (rest.get(1) == Some(&b'.') && ends_part(&rest[2..])))
    };
    memchr::memchr_iter(b'.', segment).any(is_dots)
}

/// Appends one segment with its escapes normalised; returns whether it contains an encoded separator.
fn push_segment(segment: &[u8], out: &mut Vec<u8>) -> Result<bool, BadPath> {
    let mut encoded_separator = false;
    let mut bytes = segment.iter();
    while let Some(&byte) = bytes.next() {
        if byte == b'%' {
            let (Some(high), Some(low)) = (bytes.next().and_then(hex), bytes.next().and_then(hex)) else {
                return Err(BadPath::Syntax);
            };
            let decoded = high << 4 | low;
            match decoded {
                0 => return Err(BadPath::Nul),
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(decoded),
                _ => {
                    encoded_separator |= matches!(decoded, b'/' | b'\\');
                    push_escape(decoded, out);
                }
            }
        } else {
            match CLASS[byte as usize] {
                PLAIN => out.push(byte),
                ENCODE => push_escape(byte, out),
                _ => return Err(BadPath::Syntax),
            }
        }
    }
    Ok(encoded_separator)
}

fn push_escape(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.extend_from_slice(&[b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
}

fn hex(digit: &u8) -> Option<u8> {
    (*digit as char).to_digit(16).map(|value| value as u8)
}

/// Whether a segment of a canonical path has parameters (RFC 3986 §3.3), or would have them after decoding.
pub fn has_parameters(path: &[u8]) -> bool {
    memchr::memchr(b';', path).is_some() || memchr::memmem::find(path, b"%3B").is_some()
}

/// A query may contain any visible character but `#`. Its meaning is up to the upstream, so it is passed unchanged.
pub fn is_query(query: &[u8]) -> bool {
    query.iter().all(|&byte| (0x21..0x7f).contains(&byte) && byte != b'#')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(path: &str) -> Result<String, BadPath> {
        let mut out = Vec::new();
        Ok(match canonical(path.as_bytes(), &mut out)? {
            Canonical::AsIs => path.to_owned(),
            Canonical::Rewritten { .. } => String::from_utf8(out).expect("canonical paths are ASCII"),
        })
    }

    #[test]
    fn plain_paths_stay_as_they_are() {
        for path in ["/", "/a", "/a/b/", "/a.b/c;v=1", "/a,b/@me"] {
            assert_eq!(canonical(path.as_bytes(), &mut Vec::new()), Ok(Canonical::AsIs), "{path}");
        }
    }

    #[test]
    fn different_spellings_become_one() {
        for (path, want) in [
            ("//admin", "/admin"),
            ("/./admin", "/admin"),
            ("/%61dmin", "/admin"),
            ("/api/../admin", "/admin"),
            ("/api/%2e%2e/admin", "/admin"),
            ("/api/%2E./admin", "/admin"),
            ("/api/.", "/api/"),
            ("/api/b/..", "/api/"),
            ("/a//b///c", "/a/b/c"),
            ("/api%2e/admin", "/api./admin"),
            ("/api/%252e%252e/admin", "/api/%252e%252e/admin"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/a|b", "/a%7Cb"),
            ("/.hidden", "/.hidden"),
            ("/..hidden/...", "/..hidden/..."),
            ("/a%2f..b%2f.c/...;x", "/a%2F..b%2F.c/...;x"),
            ("/a/../b/../c", "/c"),
        ] {
            assert_eq!(run(path).as_deref(), Ok(want), "{path}");
        }
    }

    #[test]
    fn ambiguous_paths_are_refused() {
        for (path, why) in [
            ("/..", BadPath::DotSegment),
            ("/../etc", BadPath::DotSegment),
            ("/api/..;/admin", BadPath::DotSegment),
            ("/api/.;x/admin", BadPath::DotSegment),
            ("/api/%2e%2e;a=b/admin", BadPath::DotSegment),
            ("/api/..%2fadmin", BadPath::DotSegment),
            ("/api/%2e%2e%5Cadmin", BadPath::DotSegment),
            ("/api/a%2f..%2fadmin", BadPath::DotSegment),
            ("/api/a%2f..", BadPath::DotSegment),
            ("/api/..%3bx", BadPath::DotSegment),
            ("/admin%00", BadPath::Nul),
            ("/a%", BadPath::Syntax),
            ("/a%4", BadPath::Syntax),
            ("/a%zz", BadPath::Syntax),
            ("\\admin", BadPath::Syntax),
            ("/a\\b", BadPath::Syntax),
            ("/a#b", BadPath::Syntax),
            ("/a b", BadPath::Syntax),
            ("/a\x7f", BadPath::Syntax),
            ("/é", BadPath::Syntax),
            ("", BadPath::Syntax),
        ] {
            assert_eq!(run(path), Err(why), "{path}");
        }
    }

    #[test]
    fn encoded_separators_are_seen() {
        for path in ["/a%2fb", "/a%2Fb", "/a%5cb"] {
            let found = canonical(path.as_bytes(), &mut Vec::new());
            assert_eq!(found, Ok(Canonical::Rewritten { encoded_separator: true, empty_segments: false }), "{path}");
        }
    }

    #[test]
    fn empty_segments_are_kept_unless_dots_make_them_ambiguous() {
        for (path, kept) in [
            ("//admin", Some("//admin")),
            ("/ocsp/MFEw//Akg==", Some("/ocsp/MFEw//Akg==")),
            ("/%61//b|///", Some("/a//b%7C///")),
            ("//", Some("//")),
            ("/a/", None),
            ("/%61/", None),
            ("/a//../b", None),
            ("/a//./b", None),
            ("/%2e//b", None),
        ] {
            let found = canonical(path.as_bytes(), &mut Vec::new()).unwrap();
            let has = matches!(found, Canonical::Rewritten { empty_segments: true, .. });
            let form = has.then(|| String::from_utf8(with_empty_segments(path.as_bytes())).unwrap());
            assert_eq!(form.as_deref(), kept, "{path}");
        }
    }

    proptest::proptest! {
        #[test]
        fn both_forms_of_a_path_differ_in_empty_segments_only(path in "/[a./%|26fe]{0,24}") {
            let mut merged = Vec::new();
            if let Ok(Canonical::Rewritten { empty_segments: true, .. }) = canonical(path.as_bytes(), &mut merged) {
                let kept = with_empty_segments(path.as_bytes());
                let mut again = Vec::new();
                canonical(&kept, &mut again).unwrap();
                proptest::prop_assert_eq!(&again, &merged);
                proptest::prop_assert_eq!(with_empty_segments(&kept), kept);
            }
        }

        #[test]
        fn canonical_is_a_fixed_point(path in "/[ -~]{0,40}") {
            if let Ok(once) = run(&path) {
                let twice = run(&once);
                proptest::prop_assert_eq!(twice.as_deref(), Ok(once.as_str()));
                proptest::prop_assert!(!once.contains("//"));
                proptest::prop_assert!(once.split('/').all(|segment| segment != "." && segment != ".."));
            }
        }
    }
}
