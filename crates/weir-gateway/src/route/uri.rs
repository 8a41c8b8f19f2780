//! The `uri` of a route: a path, a prefix, or a pattern.
//!
//! - `/orders` is that path and no other.
//! - `/orders/*` is every path that begins with `/orders/`; `/orders*` also begins `/orders2`; `*` is every path.
//! - `/orders/*/items` has any text where the `*` is, slashes included. Such a `*` is a whole segment, and may carry a
//!   name (`*id`); anywhere else but at the end it is an ordinary character.
//! - `/users/:id` has one segment where the `:id` is, at least one character long. A colon within a segment is an ordinary
//!   character.
//!
//! Requests are matched by their canonical path, so a `uri` is brought to the same form: `/café` is `/caf%C3%A9`.

use std::fmt::Write;

use memchr::memmem;
use weir_proto::path::{self, BadPath, Canonical};

/// A parsed `uri`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Uri {
    text: Box<str>,
    shape: UriPattern,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum UriPattern {
    Exact,
    /// Only the first this many bytes of the text must match.
    Prefix(usize),
    Pattern(Pattern),
}

/// Runs with text of any length between them: the first at the beginning of the path, the last at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    runs: Box<[Run]>,
}

/// A literal text, then parameters, each a segment, with the literal text that follows each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Run {
    text: Box<str>,
    after_parameters: Box<[Box<str>]>,
}

/// APISIX's limit for `route.uri`, in bytes.
const MAX_LENGTH: usize = 4096;

impl Uri {
    /// Reads a `uri` as written in a configuration.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    pub(super) fn parse(written: &str) -> Result<Uri, String> {
        if written.is_empty() || written.len() > MAX_LENGTH {
            return Err(format!("a uri has 1 to {MAX_LENGTH} bytes, this one has {}", written.len()));
        }
        let text = canonical(written)?;
        let gaps = wildcards(&text);
        let shape = match gaps[..] {
            [] => UriPattern::Exact,
            [UriWildcard { start, end, is_parameter: false }] if end == text.len() => UriPattern::Prefix(start),
            _ => UriPattern::Pattern(Pattern { runs: runs(&text, &gaps) }),
        };
        Ok(Uri { text: text.into(), shape })
    }

    /// The canonical form.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The canonical form without the names of wildcards and parameters.
    pub(super) fn without_names(&self) -> String {
        let mut text = String::with_capacity(self.text.len());
        let mut written = 0;
        for gap in wildcards(&self.text) {
            text.push_str(&self.text[written..gap.start]);
            text.push(if gap.is_parameter { ':' } else { '*' });
            written = gap.end;
        }
        text + &self.text[written..]
    }

    pub(super) fn is_exact(&self) -> bool {
        self.shape == UriPattern::Exact
    }

    pub(super) fn is_pattern(&self) -> bool {
        matches!(self.shape, UriPattern::Pattern(_))
    }

    /// The key in the tables: the whole path, or the part before the first wildcard.
    pub(super) fn key(&self) -> &[u8] {
        let length = match &self.shape {
            UriPattern::Exact => self.text.len(),
            UriPattern::Prefix(length) => *length,
            UriPattern::Pattern(pattern) => pattern.runs[0].text.len(),
        };
        &self.text.as_bytes()[..length]
    }

    /// Whether the rest of `path`, which begins with [`Uri::key`], matches.
    pub(super) fn matches_after_key(&self, path: &[u8]) -> bool {
        let rest = &path[self.key().len()..];
        match &self.shape {
            UriPattern::Exact => rest.is_empty(),
            UriPattern::Prefix(_) => true,
            UriPattern::Pattern(pattern) => pattern.matches(rest),
        }
    }

    pub(super) fn matches(&self, path: &[u8]) -> bool {
        path.starts_with(self.key()) && self.matches_after_key(path)
    }
}

impl Pattern {
    /// Each run is matched at its first occurrence: a later one would only leave less text for the runs after it.
    fn matches(&self, rest: &[u8]) -> bool {
        let [first, others @ ..] = &*self.runs else { return false };
        let Some(mut rest) = first.parameters(rest) else { return false };
        let [middle @ .., last] = others else { return rest.is_empty() };
        for run in middle {
            let Some(after) = run.places(rest).next() else { return false };
            rest = after;
        }
        match last.after_parameters.is_empty() {
            true => rest.ends_with(last.text.as_bytes()),
            false => last.places(rest).any(<[u8]>::is_empty),
        }
    }
}

impl Run {
    /// The text after this run's parameters, which must stand at the beginning of `text`.
    fn parameters<'t>(&self, text: &'t [u8]) -> Option<&'t [u8]> {
        self.after_parameters.iter().try_fold(text, |text, after| {
            let end = memchr::memchr(b'/', text).unwrap_or(text.len());
            if end == 0 { None } else { text[end..].strip_prefix(after.as_bytes()) }
        })
    }

    /// The text after each occurrence of this run in `text`. Occurrences may overlap: in `/a/a/b`, `/a/` occurs once and
    /// `/a` twice.
    fn places<'t>(&'t self, text: &'t [u8]) -> impl Iterator<Item = &'t [u8]> {
        let find = |from: usize| memmem::find(text.get(from..)?, self.text.as_bytes()).map(|start| from + start);
        std::iter::successors(find(0), move |&start| find(start + 1))
            .filter_map(move |start| self.parameters(&text[start + self.text.len()..]))
    }
}

/// A wildcard or parameter of a `uri`.
#[derive(Clone, Copy, Debug)]
struct UriWildcard {
    start: usize,
    end: usize,
    /// `:id`, which is one segment. Otherwise any text.
    is_parameter: bool,
}

/// The wildcards and parameters of a text, with their names.
fn wildcards(text: &str) -> Vec<UriWildcard> {
    let mut gaps = Vec::new();
    let mut start = 0;
    for segment in text.split('/') {
        let end = start + segment.len();
        let is_parameter = start > 0 && segment.len() > 1 && segment.starts_with(':');
        if is_parameter || segment.starts_with('*') {
            gaps.push(UriWildcard { start, end, is_parameter });
        } else if end == text.len() && segment.ends_with('*') {
            gaps.push(UriWildcard { start: end - 1, end, is_parameter });
        }
        start = end + 1;
    }
    gaps
}

/// The literal texts between the wildcards.
fn runs(text: &str, gaps: &[UriWildcard]) -> Box<[Run]> {
    let mut runs = Vec::new();
    let mut parts: Vec<Box<str>> = vec![text[..gaps.first().map_or(text.len(), |gap| gap.start)].into()];
    for (index, gap) in gaps.iter().enumerate() {
        let next = gaps.get(index + 1).map_or(text.len(), |next| next.start);
        if !gap.is_parameter {
            runs.push(Run::of(std::mem::take(&mut parts)));
        }
        parts.push(text[gap.end..next].into());
    }
    runs.push(Run::of(parts));
    runs.into()
}

impl Run {
    fn of(mut parts: Vec<Box<str>>) -> Run {
        let after_parameters = parts.split_off(1).into();
        Run { text: parts.pop().unwrap_or_default(), after_parameters }
    }
}

fn canonical(written: &str) -> Result<String, String> {
    let escaped = escape(written);
    if !escaped.starts_with('/') {
        return Ok(escaped);
    }
    let mut rewritten = Vec::new();
    match path::canonical(escaped.as_bytes(), &mut rewritten) {
        Ok(Canonical::AsIs) => Ok(escaped),
        Ok(Canonical::Rewritten { .. }) => Ok(String::from_utf8(rewritten).expect("canonical paths are ASCII")),
        Err(BadPath::Nul) => {
            Err(format!("{written:?} contains a NUL, which is not allowed in a request; leave it out"))
        }
        Err(BadPath::DotSegment) => Err(format!("{written:?} leads above the root; write the path without ..")),
        Err(BadPath::Syntax) => Err(format!("{written:?} is not a path; write a path such as /orders/*")),
    }
}

/// Percent-encodes what cannot stand in the path of a request, so that configurations may contain it unencoded.
fn escape(written: &str) -> String {
    let bytes = written.as_bytes();
    let mut escaped = String::with_capacity(written.len());
    for (index, &byte) in bytes.iter().enumerate() {
        let hexadecimal = |offset| bytes.get(index + offset).is_some_and(u8::is_ascii_hexdigit);
        let plain = match byte {
            b'%' => hexadecimal(1) && hexadecimal(2),
            b'#' | b'?' | b'\\' => false,
            _ => byte.is_ascii_graphic(),
        };
        if plain {
            escaped.push(char::from(byte));
        } else {
            write!(escaped, "%{byte:02X}").expect("writing to a String does not fail");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        Uri::parse(text).expect("a uri")
    }

    fn matches(written: &str, path: &str) -> bool {
        uri(written).matches(path.as_bytes())
    }

    #[test]
    fn exact_and_prefix() {
        assert!(uri("/blog/foo").is_exact());
        assert!(matches("/blog/foo", "/blog/foo"));
        assert!(!matches("/blog/foo", "/blog/foo/"));
        for path in ["/blog/bar", "/blog/bar/a", "/blog/bar/c/d/e", "/blog/barn"] {
            assert!(matches("/blog/bar*", path), "{path}");
        }
        assert!(matches("/foo/*", "/foo/"));
        assert!(!matches("/foo/*", "/foo"));
        assert!(matches("/*", "/") && matches("*", "/any/path"));
        assert_eq!(uri("/foo/*").key(), b"/foo/");
    }

    #[test]
    fn a_star_within_is_whole_segments() {
        assert!(uri("/a/*/c").is_pattern());
        for path in ["/a/b/c", "/a/b/b/c", "/a//c", "/a/c/c"] {
            assert!(matches("/a/*/c", path), "{path}");
        }
        for path in ["/a/c", "/a/b/c/", "/a/b/cc", "/a/b", "/a/bc"] {
            assert!(!matches("/a/*/c", path), "{path}");
        }
        assert!(matches("/a/*id/c/*rest", "/a/1/c/"));
        assert!(!matches("/a/*id/c/*rest", "/a/1/c"));
        assert!(matches("/a/*/c/*", "/a/x/y/c/d/e"));
        assert!(matches("/a/*/c*", "/a/x/cd"));
        assert!(!matches("/a/*/b/*/a", "/a/b/a"));
        assert!(matches("*/edit", "/x/y/edit"));
    }

    #[test]
    fn other_stars_and_colons_are_characters() {
        assert!(uri("/a*b/c").is_exact());
        assert!(matches("/a*b/c", "/a*b/c") && !matches("/a*b/c", "/axb/c"));
        for literal in ["/v1/orders:cancel", "/a/:", ":a"] {
            assert!(uri(literal).is_exact(), "{literal}");
        }
    }

    #[test]
    fn u18_a_parameter_is_one_segment() {
        assert!(uri("/user/:name").is_pattern());
        assert_eq!(uri("/user/:name").key(), b"/user/");
        for (written, path, want) in [
            ("/user/:name", "/user/jack", true),
            ("/user/:name", "/user/:name", true),
            ("/user/:name", "/user/", false),
            ("/user/:name", "/user/jack/", false),
            ("/user/:name", "/user/jack/age", false),
            ("/user/:name/age", "/user/jack/age", true),
            ("/user/:name/age", "/user//age", false),
            ("/:a/:b/", "/x/y/", true),
            ("/:a/:b/", "/x/y", false),
            ("/:a/*", "/x/y/z", true),
            ("/*/user/:name", "/a/user/user/jack", true),
            ("/*/user/:name", "/a/user/jack/x", false),
            ("/*/user/:name/*/end", "/a/user/jack/x/y/end", true),
            ("/*/user/:name/*/end", "/a/user/jack/end", false),
        ] {
            assert_eq!(matches(written, path), want, "{written} {path}");
        }
    }

    #[test]
    fn spelled_as_requests_are() {
        for (written, canonical) in [
            ("/caf\u{e9}", "/caf%C3%A9"),
            ("/a b", "/a%20b"),
            ("/%7euser/%e4*", "/~user/%E4*"),
            ("//a/./b", "/a/b"),
            ("/100%", "/100%25"),
            ("/a|b?c", "/a%7Cb%3Fc"),
            ("*", "*"),
        ] {
            assert_eq!(uri(written).text(), canonical, "{written}");
        }
    }

    #[test]
    fn impossible_ones_are_refused() {
        for written in ["", "/../a", "/%00", &format!("/{}", "a".repeat(4096))] {
            assert!(Uri::parse(written).is_err(), "{written}");
        }
    }
}
