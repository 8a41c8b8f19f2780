//! The `uri` of a route: a path, a prefix, or a pattern.
//!
//! - `/orders` is that path and no other.
//! - `/orders/*` is every path that begins with `/orders/`; `/orders*` also begins `/orders2`; `*` is every path.
//! - `/orders/*/items` has any text where the `*` is, slashes included. Such a `*` is a whole segment, and may carry a
//!   name (`*id`); anywhere else but at the end it is an ordinary character.
//!
//! Requests are matched by their canonical path, so a `uri` is brought to the same form: `/café` is `/caf%C3%A9`.

use std::fmt::Write;

use memchr::memmem;
use weir_proto::path::{self, BadPath, Canonical};

/// One `uri`, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Uri {
    text: Box<str>,
    shape: Shape,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Shape {
    Exact,
    /// Only the first so many bytes of the text are asked for.
    Prefix(usize),
    Pattern(Pattern),
}

/// Texts with gaps between them: `prefix`, then the `middle` ones in order, then `suffix` at the very end.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    prefix: usize,
    middle: Box<[Box<str>]>,
    suffix: Box<str>,
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
        let gaps = gaps(&text);
        let shape = match gaps[..] {
            [] => Shape::Exact,
            [(start, end)] if end == text.len() => Shape::Prefix(start),
            [(prefix, _), ..] => {
                let between = gaps.windows(2).map(|pair| text[pair[0].1..pair[1].0].into());
                let last = gaps.last().map_or(0, |gap| gap.1);
                Shape::Pattern(Pattern { prefix, middle: between.collect(), suffix: text[last..].into() })
            }
        };
        Ok(Uri { text: text.into(), shape })
    }

    /// The canonical form.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn is_exact(&self) -> bool {
        self.shape == Shape::Exact
    }

    pub(super) fn is_pattern(&self) -> bool {
        matches!(self.shape, Shape::Pattern(_))
    }

    /// What the tables find it by: the whole path, or what comes before the first gap.
    pub(super) fn key(&self) -> &[u8] {
        let length = match &self.shape {
            Shape::Exact => self.text.len(),
            Shape::Prefix(length) => *length,
            Shape::Pattern(pattern) => pattern.prefix,
        };
        &self.text.as_bytes()[..length]
    }

    /// Whether `path`, which begins with [`Uri::key`], goes on as asked for.
    pub(super) fn matches_after_key(&self, path: &[u8]) -> bool {
        let rest = &path[self.key().len()..];
        match &self.shape {
            Shape::Exact => rest.is_empty(),
            Shape::Prefix(_) => true,
            Shape::Pattern(pattern) => pattern.matches(rest),
        }
    }

    pub(super) fn matches(&self, path: &[u8]) -> bool {
        path.starts_with(self.key()) && self.matches_after_key(path)
    }
}

impl Pattern {
    /// Each text is taken where it first occurs: a later place would leave less room for those after it.
    fn matches(&self, rest: &[u8]) -> bool {
        let Some(mut rest) = rest.strip_suffix(self.suffix.as_bytes()) else { return false };
        self.middle.iter().all(|text| match memmem::find(rest, text.as_bytes()) {
            Some(start) => {
                rest = &rest[start + text.len()..];
                true
            }
            None => false,
        })
    }
}

/// The places of the `*` that stand for any text, with the names they carry: start and end of each.
fn gaps(text: &str) -> Vec<(usize, usize)> {
    let mut gaps = Vec::new();
    let mut start = 0;
    for segment in text.split('/') {
        let end = start + segment.len();
        if segment.starts_with('*') {
            gaps.push((start, end));
        } else if end == text.len() && segment.ends_with('*') {
            gaps.push((end - 1, end));
        }
        start = end + 1;
    }
    gaps
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
        Err(BadPath::Nul) => Err(format!("{written:?} holds a NUL, which no request may; leave it out")),
        Err(BadPath::DotSegment) => Err(format!("{written:?} leads above the root; write the path it means")),
        Err(BadPath::Syntax) => Err(format!("{written:?} is not a path; write one as /orders/*")),
    }
}

/// Escapes what cannot stand in the path of a request, so that people may write it plainly.
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
        assert!(matches("/user/:name", "/user/:name") && !matches("/user/:name", "/user/jack"));
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
