//! Topics: URLs that events are published under.

/// The longest accepted topic or callback, in bytes.
pub(crate) const MAX_URL_BYTES: usize = 2_048;

/// One topic, or with `*` at its end all topics with this prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPattern(Box<str>);

impl TopicPattern {
    /// Parses a pattern; `None` if it is not an `http` or `https` URL, or has a `*` elsewhere than at its end.
    pub fn parse(text: &str) -> Option<TopicPattern> {
        let fixed = text.strip_suffix('*').unwrap_or(text);
        let is_url = is_http_url(fixed) && !fixed.contains('*');
        is_url.then(|| TopicPattern(normalized(text).into()))
    }

    pub fn matches(&self, topic: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(start) => topic.starts_with(start),
            None => topic == &*self.0,
        }
    }

    /// Whether there can be a topic that both patterns match.
    pub fn overlaps(&self, other: &TopicPattern) -> bool {
        match (self.0.strip_suffix('*'), other.0.strip_suffix('*')) {
            (Some(start), Some(other)) => start.starts_with(other) || other.starts_with(start),
            (Some(_), None) => self.matches(&other.0),
            (None, _) => other.matches(&self.0),
        }
    }

    /// The normalised text.
    pub fn as_text(&self) -> &str {
        &self.0
    }

    /// The topic, unless the pattern has a `*`.
    pub fn single(&self) -> Option<&str> {
        (!self.0.ends_with('*')).then_some(&*self.0)
    }

    /// The topic of this pattern whose URL has this path.
    pub fn at_path(&self, path: &str) -> Option<String> {
        let (text, path) = (self.0.strip_suffix('*').unwrap_or(&self.0), &*normalized(path));
        let (origin, own) = text.split_at(path_start(text)?);
        match self.0.ends_with('*') {
            true => path.starts_with(own).then(|| format!("{origin}{path}")),
            false => (own == path || own.is_empty() && path == "/").then(|| text.to_owned()),
        }
    }
}

fn path_start(url: &str) -> Option<usize> {
    let authority = url.find("://")? + 3;
    Some(url[authority..].find(['/', '?', '#']).map_or(url.len(), |at| authority + at))
}

/// Scheme and authority of a URL, in lower case.
pub fn origin_of(url: &str) -> Option<String> {
    path_start(url).map(|end| url[..end].to_ascii_lowercase())
}

/// Whether a text is an absolute `http` or `https` URL without user information and fragment, of printable ASCII.
pub fn is_http_url(text: &str) -> bool {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let Some(rest) = rest else { return false };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    text.len() <= MAX_URL_BYTES
        && !authority.is_empty()
        && !authority.contains('@')
        && !text.contains('#')
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`'))
}

/// Whether the path of a URL has a segment `.` or `..` (RFC 3986 §5.2.4). As servers differ, an encoded slash separates segments, too, so
/// does a backslash, and what follows a `;` is not part of a segment.
pub(crate) fn has_dot_segments(url: &str) -> bool {
    let path = url.find("://").and_then(|at| url[at + 3..].split(['?', '#']).next()).unwrap_or(url);
    let path: Vec<u8> = percent_encoding::percent_decode_str(path).collect();
    let names =
        path.split(|byte| matches!(byte, b'/' | b'\\')).map(|segment| segment.split(|byte| *byte == b';').next());
    names.flatten().any(|name| matches!(name, b"." | b".."))
}

/// Decodes what need not be encoded (W3C WebSub §5.1, RFC 3986 §2.3): `%7E` and `~` name the same topic.
pub(crate) fn normalized(url: &str) -> String {
    let mut out = String::with_capacity(url.len());
    let mut rest = url;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 3).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match code {
            Some(byte) if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') => {
                out.push(byte as char);
                rest = &rest[at + 3..];
            }
            _ => {
                out.push('%');
                rest = &rest[at + 1..];
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreserved_characters_are_decoded_and_no_others() {
        assert_eq!(normalized("http://a/%7Eb%2Fc%41%zz%"), "http://a/~b%2FcA%zz%");
    }

    #[test]
    fn patterns_name_one_topic_or_all_below() {
        let one = TopicPattern::parse("https://a.example/orders/%7Enew").expect("a topic");
        assert!(one.matches("https://a.example/orders/~new") && !one.matches("https://a.example/orders/~new/2"));
        let all = TopicPattern::parse("https://a.example/orders/*").expect("a pattern");
        assert!(all.matches("https://a.example/orders/7") && !all.matches("https://a.example/invoices"));
        let encoded = TopicPattern::parse("https://a.example/%6frders/*").expect("a pattern");
        assert!(encoded.matches("https://a.example/orders/7"), "topics are normalised, too");
        for wrong in ["orders", "ftp://a/", "http://", "http://a/*/b", "http://u@a/", "http://a/#b", "http://a/ü"] {
            assert_eq!(TopicPattern::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn patterns_overlap_if_a_topic_can_match_both() {
        for (one, other, want) in [
            ("http://a/x", "http://a/x", true),
            ("http://a/x", "http://a/y", false),
            ("http://a/*", "http://a/x", true),
            ("http://a/*", "http://a/x/*", true),
            ("http://a/x/*", "http://a/y/*", false),
            ("http://a/x/*", "http://a/x", false),
            ("http://A/*", "http://a/x", false),
        ] {
            let [one, other] = [one, other].map(|text| TopicPattern::parse(text).expect("a pattern"));
            assert_eq!((one.overlaps(&other), other.overlaps(&one)), (want, want), "{one:?} {other:?}");
        }
    }

    #[test]
    fn a_path_leads_to_its_topic() {
        let pattern = |text| TopicPattern::parse(text).expect("a pattern");
        assert_eq!(pattern("https://a/b").at_path("/b").as_deref(), Some("https://a/b"));
        assert_eq!(pattern("https://a/b").at_path("/b/c"), None);
        assert_eq!(pattern("https://a/b/*").at_path("/b/c").as_deref(), Some("https://a/b/c"));
        assert_eq!(pattern("https://a").at_path("/").as_deref(), Some("https://a"));
        assert_eq!(pattern("https://a/~b").at_path("/%7eb").as_deref(), Some("https://a/~b"), "one topic");
        assert_eq!(pattern("https://a/b/*").at_path("/b/%63%2F").as_deref(), Some("https://a/b/c%2F"));
    }

    #[test]
    fn urls_lead_to_origins() {
        assert_eq!(origin_of("HTTP://A.example:80/x?y").as_deref(), Some("http://a.example:80"));
        assert_eq!(origin_of("http://a?y").as_deref(), Some("http://a"));
    }
}
