//! The directives of `Cache-Control` (RFC 9111 §5.2, RFC 5861).

/// The largest number of seconds that counts (RFC 9111 §1.2.2).
const MOST_SECONDS: u64 = 1 << 31;

/// The directives of one message. Of a directive that is repeated, the first counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CacheDirectives {
    pub no_store: bool,
    /// Also with names of fields: it is then treated as without (RFC 9111 §5.2.2.4).
    pub no_cache: bool,
    /// Also with names of fields.
    pub private: bool,
    pub public: bool,
    pub must_revalidate: bool,
    /// The same for shared caches, but without leave to store the response to an authorized request (RFC 9111 §3.5).
    pub proxy_revalidate: bool,
    pub only_if_cached: bool,
    pub max_age: Option<u64>,
    pub s_maxage: Option<u64>,
    pub min_fresh: Option<u64>,
    /// `max-stale` without a value allows any age.
    pub max_stale: Option<u64>,
    pub stale_while_revalidate: Option<u64>,
    pub stale_if_error: Option<u64>,
}

impl CacheDirectives {
    /// Reads the values of all `Cache-Control` fields of a message. Unknown directives are ignored.
    pub(super) fn read<'a>(values: impl Iterator<Item = &'a [u8]>) -> CacheDirectives {
        let mut directives = CacheDirectives::default();
        for member in values.flat_map(members) {
            let (name, value) = match memchr::memchr(b'=', member) {
                Some(at) => (member[..at].trim_ascii(), Some(unquoted(member[at + 1..].trim_ascii()))),
                None => (member, None),
            };
            directives.take(&name.to_ascii_lowercase(), value);
        }
        directives
    }

    fn take(&mut self, name: &[u8], value: Option<&[u8]>) {
        match name {
            b"no-store" => self.no_store = true,
            b"no-cache" => self.no_cache = true,
            b"private" => self.private = true,
            b"public" => self.public = true,
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"only-if-cached" => self.only_if_cached = true,
            b"max-age" => set(&mut self.max_age, value),
            b"s-maxage" => set(&mut self.s_maxage, value),
            b"min-fresh" => set(&mut self.min_fresh, value),
            b"max-stale" => set(&mut self.max_stale, value.or(Some(b"99999999999"))),
            b"stale-while-revalidate" => set(&mut self.stale_while_revalidate, value),
            b"stale-if-error" => set(&mut self.stale_if_error, value),
            _ => {}
        }
    }
}

/// An invalid number counts as 0, so that a response with one is stale (RFC 9111 §4.2.1).
fn set(seconds: &mut Option<u64>, value: Option<&[u8]>) {
    seconds.get_or_insert(value.and_then(delta_seconds).unwrap_or(0));
}

/// A number of seconds (RFC 9111 §1.2.2); one that is too large counts as 2^31. `None` if it is not a number.
pub(super) fn delta_seconds(text: &[u8]) -> Option<u64> {
    let add = |sum: u64, digit: &u8| (sum * 10 + u64::from(digit - b'0')).min(MOST_SECONDS);
    (!text.is_empty() && text.iter().all(u8::is_ascii_digit)).then(|| text.iter().fold(0, add))
}

/// The members of a list; commas within quoted strings do not separate them. A quotation mark without a second one begins no
/// string: it would hide directives that forbid to store the response.
fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(value);
    std::iter::from_fn(move || {
        let text = rest.take()?;
        let (mut is_quoted, mut is_escaped) = (false, false);
        let separates = |byte: &u8| {
            let was_escaped = std::mem::take(&mut is_escaped);
            match byte {
                b'"' if !was_escaped => is_quoted = !is_quoted,
                b'\\' if is_quoted => is_escaped = !was_escaped,
                b',' => return !is_quoted,
                _ => {}
            }
            false
        };
        let end = text.iter().position(separates);
        let end = if end.is_none() && is_quoted { memchr::memchr(b',', text) } else { end };
        let (member, after) = match end {
            Some(end) => (&text[..end], Some(&text[end + 1..])),
            None => (text, None),
        };
        rest = after;
        Some(member.trim_ascii())
    })
}

fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> CacheDirectives {
        CacheDirectives::read(values.iter().map(|value| value.as_bytes()))
    }

    #[test]
    fn directives_are_read_from_all_fields() {
        let got = read(&["max-age=60, PRIVATE=\"set-cookie, x\"", "no-cache , s-maxage=\"5\", other=1, max-age=7"]);
        let want = CacheDirectives {
            no_cache: true,
            private: true,
            max_age: Some(60),
            s_maxage: Some(5),
            ..CacheDirectives::default()
        };
        assert_eq!(got, want);
    }

    #[test]
    fn an_invalid_number_is_none_at_all() {
        for (value, want) in [
            ("max-age", 0),
            ("max-age=", 0),
            ("max-age=-1", 0),
            ("max-age=1.5", 0),
            ("max-age=\"9", 0),
            ("max-age = 9", 9),
            ("max-age=99999999999999999999999", MOST_SECONDS),
        ] {
            assert_eq!(read(&[value]).max_age, Some(want), "{value}");
        }
        assert_eq!(read(&["max-stale"]).max_stale, Some(MOST_SECONDS));
    }

    #[test]
    fn a_quoted_comma_hides_no_directive() {
        assert!(read(&["no-cache=\"a\\\", b\", no-store"]).no_store);
        assert!(!read(&["x=\"no-store"]).no_store && !read(&["x=\", no-store\""]).no_store);
        assert!(read(&["max-age=9, x=\"a, private"]).private, "a string without an end");
        assert!(read(&["x=\"a", "b\", private"]).private, "a string in two fields");
        assert_eq!(read(&["", ",,", "no-storex"]), CacheDirectives::default());
    }
}
