//! Texts with variables in them: `$remote_addr`, `${arg_name ?? nobody}`.
//!
//! A template is compiled once and rendered per exchange. `$name` takes the longest run of letters, digits and `_`, `$1` the
//! longest run of digits; `${name}` allows any name, and a default for a missing value after `??`. `\$` is a dollar sign, and so
//! is every `$` that starts none of these forms: every text is valid. A missing variable is the empty text, unless the style
//! defines another.

use std::fmt;

use crate::escape;
use crate::variable::{Variable, Variables};

/// A compiled text with variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    segments: Box<[TemplatePart]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Text(Box<[u8]>),
    Variable { variable: Variable, default: Option<Box<[u8]>> },
}

/// How values are escaped for the text around them.
#[derive(Clone, Copy)]
pub struct TemplateStyle {
    /// Escapes and appends a value. Not called for the template's own text.
    pub escape: fn(value: &[u8], out: &mut Vec<u8>),
    /// The text for a missing value without a default.
    pub missing: &'static str,
}

impl TemplateStyle {
    /// Values unchanged.
    pub const PLAIN: TemplateStyle = TemplateStyle { escape: copy, missing: "" };
    /// Values as parts of a JSON string; invalid UTF-8 becomes U+FFFD.
    pub const JSON: TemplateStyle = TemplateStyle { escape: |value, out| escape::json(out, value), missing: "" };
    /// Values in a line of a log, as nginx escapes them: `"`, `\`, control characters and everything beyond ASCII as
    /// `\xHH`. A missing value is `-`.
    pub const LOG_LINE: TemplateStyle = TemplateStyle { escape: escape_log_line, missing: "-" };
}

impl TemplatePart {
    fn render(&self, style: TemplateStyle, variables: &(impl Variables + ?Sized), out: &mut Vec<u8>) {
        match self {
            TemplatePart::Text(text) => out.extend_from_slice(text),
            TemplatePart::Variable { variable, default } => match (variables.variable(variable), default) {
                (Some(value), _) => (style.escape)(&value, out),
                (None, Some(default)) => (style.escape)(default, out),
                (None, None) => out.extend_from_slice(style.missing.as_bytes()),
            },
        }
    }
}

impl Template {
    /// Compiles a text. Every text is a template.
    pub fn compile(text: &str) -> Template {
        Template::compile_within(text, TemplateStyle::PLAIN)
    }

    /// Compiles a text whose own characters are escaped as well, as for one that becomes part of a JSON string.
    pub fn compile_within(text: &str, style: TemplateStyle) -> Template {
        let mut segments = Vec::new();
        let mut literal = Vec::new();
        let mut rest = text;
        while let Some(dollar) = memchr::memchr(b'$', rest.as_bytes()) {
            let (before, after) = (&rest[..dollar], &rest[dollar + 1..]);
            let reference = match before.strip_suffix('\\') {
                Some(before) => {
                    literal.extend_from_slice(before.as_bytes());
                    None
                }
                None => {
                    literal.extend_from_slice(before.as_bytes());
                    reference(after)
                }
            };
            match reference {
                Some((segment, after)) => {
                    push_text(&mut segments, &mut literal, style);
                    segments.push(segment);
                    rest = after;
                }
                None => {
                    literal.push(b'$');
                    rest = after;
                }
            }
        }
        literal.extend_from_slice(rest.as_bytes());
        push_text(&mut segments, &mut literal, style);
        Template { segments: segments.into() }
    }

    /// Appends the text with the values inserted.
    pub fn render(&self, variables: &(impl Variables + ?Sized), out: &mut Vec<u8>) {
        self.render_as(TemplateStyle::PLAIN, variables, out);
    }

    /// Appends the text with the values inserted and escaped in a style.
    pub fn render_as(&self, style: TemplateStyle, variables: &(impl Variables + ?Sized), out: &mut Vec<u8>) {
        self.segments.iter().for_each(|segment| segment.render(style, variables, out));
    }

    /// Appends the text with the values inserted. Ends after the part with which `out` has more than `most` bytes.
    pub fn render_within(&self, most: usize, variables: &(impl Variables + ?Sized), out: &mut Vec<u8>) {
        for segment in &self.segments {
            if out.len() > most {
                break;
            }
            segment.render(TemplateStyle::PLAIN, variables, out);
        }
    }

    /// The text, if it has no variables and so is the same for every exchange.
    pub fn constant(&self) -> Option<&[u8]> {
        match &*self.segments {
            [] => Some(b""),
            [TemplatePart::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Whether a variable has a default.
    pub fn has_defaults(&self) -> bool {
        self.segments.iter().any(|segment| matches!(segment, TemplatePart::Variable { default: Some(_), .. }))
    }

    /// The variables, with repetitions. Unknown names ([`Variable::Unknown`]) deserve a warning.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.segments.iter().filter_map(|segment| match segment {
            TemplatePart::Text(_) => None,
            TemplatePart::Variable { variable, .. } => Some(variable),
        })
    }
}

fn push_text(segments: &mut Vec<TemplatePart>, literal: &mut Vec<u8>, style: TemplateStyle) {
    if !literal.is_empty() {
        let mut text = Vec::with_capacity(literal.len());
        (style.escape)(literal, &mut text);
        segments.push(TemplatePart::Text(text.into()));
        literal.clear();
    }
}

/// Parses what follows a `$`: the variable, and the rest of the text.
fn reference(text: &str) -> Option<(TemplatePart, &str)> {
    if let Some(braced) = text.strip_prefix('{') {
        let (inner, after) = braced.split_once('}')?;
        let (name, default) = match inner.split_once("??") {
            Some((name, default)) => (name.trim(), Some(default.trim().as_bytes().into())),
            None => (inner.trim(), None),
        };
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.*[]@$".contains(&byte);
        if name.is_empty() || !name.bytes().all(known) {
            return None;
        }
        return Some((TemplatePart::Variable { variable: Variable::named(name), default }, after));
    }
    let is_group = text.starts_with(|first: char| first.is_ascii_digit());
    let in_name = |byte: &u8| byte.is_ascii_digit() || (!is_group && (byte.is_ascii_alphabetic() || *byte == b'_'));
    let end = text.bytes().take_while(in_name).count();
    let (name, after) = text.split_at(end + path_after(text, end));
    (!name.is_empty()).then(|| (TemplatePart::Variable { variable: Variable::named(name), default: None }, after))
}

/// The length of the path that follows `post_arg` at `end`, as in `$post_arg.a.b[0]`. A dot at its end is text.
fn path_after(text: &str, end: usize) -> usize {
    if &text[..end] != "post_arg" || !text[end..].starts_with('.') {
        return 0;
    }
    let in_path = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.[]*".contains(byte);
    let path: String = text[end..].bytes().take_while(in_path).map(char::from).collect();
    path.trim_end_matches('.').len()
}

fn copy(value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(value);
}

fn escape_log_line(value: &[u8], out: &mut Vec<u8>) {
    let escaped = |byte| !matches!(byte, 0x20..=0x7e) || matches!(byte, b'"' | b'\\');
    escape_bytes(value, escaped, escape_log_byte, out);
}

fn escape_log_byte(byte: u8, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\\x");
    push_hexadecimal(byte, b"0123456789ABCDEF", out);
}

/// Copies runs of bytes that need no escape as a whole: almost every value is one run.
fn escape_bytes(value: &[u8], escaped: impl Fn(u8) -> bool, escape: fn(u8, &mut Vec<u8>), out: &mut Vec<u8>) {
    let mut rest = value;
    while let Some(index) = rest.iter().position(|byte| escaped(*byte)) {
        out.extend_from_slice(&rest[..index]);
        escape(rest[index], out);
        rest = &rest[index + 1..];
    }
    out.extend_from_slice(rest);
}

fn push_hexadecimal(byte: u8, digits: &[u8; 16], out: &mut Vec<u8>) {
    out.extend_from_slice(&[digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]);
}

impl fmt::Debug for TemplateStyle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Style").field("missing", &self.missing).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use proptest::prelude::*;

    use super::*;

    struct Request;

    impl Variables for Request {
        fn variable(&self, variable: &Variable) -> Option<Cow<'_, [u8]>> {
            match variable.to_string().as_str() {
                "remote_addr" => Some(b"10.0.0.1".into()),
                "arg_name" => Some(b"a\"\\\n\x01b".into()),
                "http_user_agent" => Some("caf\u{e9}".as_bytes().into()),
                "http_raw" => Some(b"\xff!".into()),
                "1" => Some(b"first".into()),
                "post_arg.a.b[0]" => Some(b"deep".into()),
                "arg_empty" => Some(b"".into()),
                _ => None,
            }
        }
    }

    fn render_as(style: TemplateStyle, text: &str) -> String {
        let mut out = Vec::new();
        Template::compile_within(text, style).render_as(style, &Request, &mut out);
        String::from_utf8(out).expect("the tests render text")
    }

    fn render(text: &str) -> String {
        render_as(TemplateStyle::PLAIN, text)
    }

    #[test]
    fn variables_are_replaced() {
        assert_eq!(render("from $remote_addr!"), "from 10.0.0.1!");
        assert_eq!(render("${remote_addr}_x"), "10.0.0.1_x");
        assert_eq!(render("$remote_addr_x."), ".");
        assert_eq!(render("$remote_addr$remote_addr"), "10.0.0.110.0.0.1");
        assert_eq!(render("/$1/${ 1 }"), "/first/first");
        assert_eq!(render("/$1_v$1a"), "/first_vfirsta");
        assert_eq!(render("${http_user-agent} ${post_arg.a.b[0]}"), "caf\u{e9} deep");
        assert_eq!(render("$post_arg.a.b[0]. $remote_addr.x $post_arg."), "deep. 10.0.0.1.x .");
    }

    #[test]
    fn no_part_follows_one_that_exceeds_a_bound() {
        let rendered = |most: usize| {
            let mut out = Vec::new();
            Template::compile("$remote_addr/$remote_addr/$remote_addr").render_within(most, &Request, &mut out);
            out.len()
        };
        assert_eq!([8, 9, 26, 100].map(rendered), [8 + 1, 17, 26, 26]);
    }

    #[test]
    fn missing_values_are_empty_or_the_default() {
        assert_eq!(render("[$arg_none]"), "[]");
        assert_eq!(render("[${arg_none ?? some one}]"), "[some one]");
        assert_eq!(render("[${arg_none??}]"), "[]");
        assert_eq!(render("[${arg_empty ?? x}]"), "[]");
        assert_eq!(render("[${remote_addr ?? x}]"), "[10.0.0.1]");
    }

    #[test]
    fn other_dollars_are_text() {
        for text in ["$", "a$", "$$", "5 $ and", "$-", "${", "${}", "${ ?? x}", "${a b}", "${open", "$\u{e9}"] {
            assert_eq!(render(text), text);
        }
        assert_eq!(render(r"\$remote_addr"), "$remote_addr");
        assert_eq!(render(r"\${remote_addr} \n \\"), r"${remote_addr} \n \\");
        assert_eq!(render("$$remote_addr"), "$10.0.0.1");
    }

    #[test]
    fn values_are_escaped_for_where_they_stand() {
        assert_eq!(render_as(TemplateStyle::JSON, "\"$arg_name"), "\\\"a\\\"\\\\\\n\\u0001b");
        assert_eq!(render_as(TemplateStyle::JSON, "$http_user_agent $http_raw"), "caf\u{e9} \u{fffd}!");
        assert_eq!(
            render_as(TemplateStyle::LOG_LINE, "$arg_name $http_user_agent $arg_none"),
            r"a\x22\x5C\x0A\x01b caf\xC3\xA9 -"
        );
    }

    #[test]
    fn constants_are_recognised() {
        assert_eq!(Template::compile("").constant(), Some(&b""[..]));
        assert_eq!(Template::compile(r"costs \$5").constant(), Some(&b"costs $5"[..]));
        let template = Template::compile("$arg_a-$nonsense");
        assert_eq!(template.constant(), None);
        let variables: Vec<&Variable> = template.variables().collect();
        assert_eq!(variables, [&Variable::Argument("a".into()), &Variable::Unknown("nonsense".into())]);
    }

    proptest! {
        #[test]
        fn every_text_compiles(text in r"[a-z${}?\\ \u{e9}]{0,20}") {
            let template = Template::compile(&text);
            template.render(&Request, &mut Vec::new());
            // Without a dollar sign the text is constant.
            if !text.contains('$') {
                prop_assert_eq!(template.constant(), Some(text.as_bytes()));
            }
        }
    }
}
