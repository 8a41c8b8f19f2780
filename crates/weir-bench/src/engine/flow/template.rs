//! Texts with values: `${name}` is a value that is encoded as its place demands, `${name:raw}` one that is not, and `$${` is
//! `${` itself.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::uri_characters::RESERVED;

/// What cannot stand in the target of a request in any form.
const UNFIT: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'<').add(b'>').add(b'\\').add(b'^').add(b'`');

/// Where a text stands, which decides how its values are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValuePlace {
    /// Path and query of a URL: all but unreserved characters are percent-encoded (RFC 3986 §2.3).
    Target,
    /// A header field: control characters become spaces.
    Field,
    /// JSON: the value is escaped as within a string (RFC 8259 §7).
    Json,
    /// The fields of a form: as in a query.
    Form,
    /// Any other text: nothing is encoded.
    Plain,
}

/// A text that has been split into what is always the same and what is replaced.
#[derive(Debug, Default)]
pub(super) struct TextTemplate(Vec<TextPiece>);

#[derive(Debug, PartialEq)]
enum TextPiece {
    Fixed(String),
    Value { variable: usize, place: ValuePlace, is_raw: bool },
}

impl TextTemplate {
    /// Reads a text; `names` are those of the plan. The error says what is wrong with it.
    ///
    /// Without names, `${` has no meaning.
    pub(super) fn read(text: &str, names: &[String], place: ValuePlace) -> Result<Self, String> {
        if names.is_empty() {
            return Ok(Self(vec![TextPiece::Fixed(text.to_owned())]));
        }
        let mut pieces = Vec::new();
        let mut fixed = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            fixed.push_str(&rest[..at]);
            rest = &rest[at..];
            if let Some(after) = rest.strip_prefix("$${") {
                fixed.push_str("${");
                rest = after;
                continue;
            }
            let Some(after) = rest.strip_prefix("${") else {
                fixed.push('$');
                rest = &rest[1..];
                continue;
            };
            let (inside, after) = after.split_once('}').ok_or_else(|| {
                let start: String = rest.chars().take(20).collect();
                format!("\"{start}\" has no closing }}; `$${{` stands for `${{` itself")
            })?;
            let (name, is_raw) = inside.strip_suffix(":raw").map_or((inside, false), |name| (name, true));
            let variable = names.iter().position(|known| known == name).ok_or_else(|| unknown(name, names))?;
            if !fixed.is_empty() {
                pieces.push(TextPiece::Fixed(std::mem::take(&mut fixed)));
            }
            pieces.push(TextPiece::Value { variable, place, is_raw });
            rest = after;
        }
        fixed.push_str(rest);
        if !fixed.is_empty() {
            pieces.push(TextPiece::Fixed(fixed));
        }
        Ok(Self(pieces))
    }

    /// The variables that the text contains.
    pub(super) fn variables(&self) -> impl Iterator<Item = usize> {
        self.0.iter().filter_map(|piece| match piece {
            TextPiece::Value { variable, .. } => Some(*variable),
            TextPiece::Fixed(_) => None,
        })
    }

    /// Appends the text with its values.
    pub(super) fn write(&self, values: &[String], out: &mut Vec<u8>) {
        for piece in &self.0 {
            match piece {
                TextPiece::Fixed(text) => out.extend_from_slice(text.as_bytes()),
                TextPiece::Value { variable, place, is_raw } => write_value(&values[*variable], *place, *is_raw, out),
            }
        }
    }

    /// The text with its values.
    pub(super) fn text(&self, values: &[String]) -> String {
        let mut out = Vec::new();
        self.write(values, &mut out);
        String::from_utf8(out).expect("texts and values are UTF-8, and encodings keep it")
    }
}

fn unknown(name: &str, names: &[String]) -> String {
    let known = names.join(", ");
    format!("${{{name}}} is not a name of `data` or `take` ({known}); `$${{` stands for `${{` itself")
}

fn write_value(value: &str, place: ValuePlace, is_raw: bool, out: &mut Vec<u8>) {
    let percent = |set: &'static AsciiSet, out: &mut Vec<u8>| {
        utf8_percent_encode(value, set).for_each(|part| out.extend_from_slice(part.as_bytes()));
    };
    match (place, is_raw) {
        (ValuePlace::Target | ValuePlace::Form, false) => percent(RESERVED, out),
        (ValuePlace::Target, true) => percent(UNFIT, out),
        (ValuePlace::Field, _) => out.extend(value.bytes().map(|byte| if breaks_field(byte) { b' ' } else { byte })),
        (ValuePlace::Json, false) => {
            let quoted = serde_json::to_string(value).expect("a text is JSON");
            out.extend_from_slice(&quoted.as_bytes()[1..quoted.len() - 1]);
        }
        (ValuePlace::Plain, _) | (ValuePlace::Json | ValuePlace::Form, true) => out.extend_from_slice(value.as_bytes()),
    }
}

/// Whether a byte would end a header field, or make it invalid: all control characters but the tab (RFC 9110 §5.5).
pub(in crate::engine) fn breaks_field(byte: u8) -> bool {
    byte.is_ascii_control() && byte != b'\t'
}

/// What can stand in the target of a request of a text from outside, such as a `Location`.
pub(super) fn fit_target(text: &str) -> String {
    utf8_percent_encode(text, UNFIT).to_string()
}

/// Scheme and authority of a URL, and the rest of it: its path and query, without a fragment. A raw value may stand for all of
/// the rest.
pub(super) fn split_url(url: &str) -> (&str, &str) {
    let url = url.split_once('#').map_or(url, |(before, _)| before);
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find(['/', '?']).map_or(url.len(), |at| start + at);
    let is_whole = |at: usize| url[at..].find('}').is_some_and(|close| at + close + 1 == url.len());
    let raw = url[start..end].find("${").map(|at| start + at);
    let raw = raw.filter(|at| *at > start && url.ends_with(":raw}") && is_whole(*at));
    url.split_at(raw.unwrap_or(end))
}

/// A URL with a letter in place of each value, so that its parts can be told apart; the error says what is wrong with it.
pub(in crate::engine) fn without_values(url: &str) -> Result<String, String> {
    let (origin, target) = split_url(url);
    if origin.contains("${") {
        return Err(format!("{url:?} has a value in its host or port; values can stand in the path and the query"));
    }
    let mut out = origin.to_owned();
    if !target.starts_with('/') {
        out.push('/');
    }
    let mut rest = target;
    while let Some((before, inside)) = rest.split_once("${") {
        let Some((_, after)) = inside.split_once('}') else { break };
        out.push_str(before);
        out.push('x');
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        vec!["user".to_owned(), "path".to_owned()]
    }

    fn written(text: &str, place: ValuePlace, value: &str) -> String {
        let template = TextTemplate::read(text, &names(), place).expect("a good text");
        template.text(&[value.to_owned(), value.to_owned()])
    }

    #[test]
    fn values_are_encoded_as_their_place_demands() {
        let value = "a b/\"ü\"&\r\n";
        assert_eq!(
            written("/u/${user}?q=${user}", ValuePlace::Target, "a b/&ü"),
            "/u/a%20b%2F%26%C3%BC?q=a%20b%2F%26%C3%BC"
        );
        assert_eq!(written("${path:raw}", ValuePlace::Target, "/a/b?c=%20d e\r\n"), "/a/b?c=%20d%20e%0D%0A");
        assert_eq!(written("Bearer ${user}", ValuePlace::Field, "a\r\nX: b"), "Bearer a  X: b");
        assert_eq!(written("${user}", ValuePlace::Field, "a\u{1b}b\tc\u{7f}"), "a b\tc ");
        assert_eq!(written("{\"u\": \"${user}\"}", ValuePlace::Json, value), "{\"u\": \"a b/\\\"ü\\\"&\\r\\n\"}");
        assert_eq!(written("u=${user}", ValuePlace::Form, "a b&c"), "u=a%20b%26c");
        assert_eq!(written("${user}", ValuePlace::Plain, value), value);
        assert_eq!(written("{${user:raw}}", ValuePlace::Json, "\"a\": 1"), "{\"a\": 1}");
    }

    #[test]
    fn dollar_signs_without_a_name_are_kept() {
        assert_eq!(written("$5 $${user} $", ValuePlace::Plain, "x"), "$5 ${user} $");
    }

    #[test]
    fn fault_of_a_text_says_what_would_be_right() {
        let fault = |text: &str| TextTemplate::read(text, &names(), ValuePlace::Plain).expect_err("a fault");
        assert_eq!(
            fault("${usr}"),
            "${usr} is not a name of `data` or `take` (user, path); `$${` stands for `${` itself"
        );
        assert_eq!(fault("a ${user"), "\"${user\" has no closing }; `$${` stands for `${` itself");
    }

    #[test]
    fn texts_without_names_are_kept() {
        let template = TextTemplate::read("${user} ${", &[], ValuePlace::Plain).expect("a good text");
        assert_eq!(template.text(&[]), "${user} ${");
    }

    #[test]
    fn url_is_split_before_its_path() {
        assert_eq!(split_url("http://a:1/b?c#d"), ("http://a:1", "/b?c"));
        assert_eq!(split_url("http://a?${user}"), ("http://a", "?${user}"));
        assert_eq!(split_url("http://a:1${path:raw}"), ("http://a:1", "${path:raw}"));
        assert_eq!(without_values("http://a/${user}?${path:raw}").as_deref(), Ok("http://a/x?x"));
        assert_eq!(without_values("http://a:1${path:raw}").as_deref(), Ok("http://a:1/x"));
        for host in [
            "http://${user}/",
            "http://a:${user}",
            "http://${path:raw}",
            "http://a:80${port:raw}/x",
            "http://a${user:raw}.evil${path:raw}",
        ] {
            assert!(without_values(host).is_err_and(|problem| problem.contains("in its host or port")), "{host}");
        }
    }
}
