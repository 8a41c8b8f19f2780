//! Finds the texts in XML that a path selects, with their byte ranges, so that they can be changed without touching the rest.

use std::ops::Range;

use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesDecl, BytesRef, BytesStart, Event};
use quick_xml::reader::Reader;

/// Why a text cannot be inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XmlError {
    Syntax,
    Depth,
    /// It has a document type, which could define entities that grow without bounds, or that read files.
    Doctype,
    /// It has an entity that is not predefined in XML.
    Entity,
    /// It declares another encoding than UTF-8.
    Encoding,
}

/// A path such as `/order/customer/name`, `//password`, `/a/*/c` or `//item/@id`. A step without a prefix selects
/// elements of any namespace. The texts of nested elements are included.
#[derive(Clone, Debug)]
pub struct XmlPath {
    steps: Box<[XmlPathStep]>,
    attribute: Option<Box<str>>,
}

#[derive(Clone, Debug)]
struct XmlPathStep {
    /// `None` for any name.
    name: Option<Box<str>>,
    /// Whether the step matches at any depth: `//`.
    anywhere: bool,
}

/// Steps are stored as the bits of a `u64`, with one more for the start.
const MAX_STEPS: usize = 63;

/// A text that a path selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XmlMatch {
    /// The text without escapes, joined from the parts that comments separate.
    pub text: String,
    /// The byte ranges of its parts.
    pub spans: Vec<Range<usize>>,
}

impl XmlPath {
    /// `None` if it is not a path, or uses unsupported features.
    pub fn parse(text: &str) -> Option<XmlPath> {
        let mut rest = text.strip_suffix("/text()").unwrap_or(text);
        let mut steps = Vec::new();
        let mut attribute = None;
        while !rest.is_empty() {
            let anywhere = rest.starts_with("//");
            let after = rest.strip_prefix(if anywhere { "//" } else { "/" })?;
            let (name, after) = after.split_at(after.find('/').unwrap_or(after.len()));
            match name.strip_prefix('@') {
                Some(name) if after.is_empty() && is_name(name) => {
                    attribute = Some(name.into());
                    if anywhere {
                        steps.push(XmlPathStep { name: None, anywhere });
                    }
                }
                None if name == "*" => steps.push(XmlPathStep { name: None, anywhere }),
                None if is_name(name) => steps.push(XmlPathStep { name: Some(name.into()), anywhere }),
                _ => return None,
            }
            rest = after;
        }
        (1..=MAX_STEPS).contains(&steps.len()).then(|| XmlPath { steps: steps.into(), attribute })
    }

    pub fn find(&self, body: &[u8], max_depth: usize) -> Result<Vec<XmlMatch>, XmlError> {
        let text = str::from_utf8(body).map_err(|_| XmlError::Encoding)?;
        let mut reader = Reader::from_str(text);
        let mut open = vec![XmlLevel { reached: 1, found: None }];
        let mut found = Vec::new();
        loop {
            let start = reader.buffer_position() as usize;
            let event = reader.read_event().map_err(|_| XmlError::Syntax)?;
            let span = start..reader.buffer_position() as usize;
            match event {
                Event::Start(element) => {
                    if open.len() > max_depth {
                        return Err(XmlError::Depth);
                    }
                    let level = self.enter(&element, open.last().map_or(0, |level| level.reached), text, &mut found)?;
                    open.push(level);
                }
                Event::Empty(element) => {
                    let level = self.enter(&element, open.last().map_or(0, |level| level.reached), text, &mut found)?;
                    found.extend(level.found);
                }
                Event::End(_) => found.extend(open.pop().and_then(|level| level.found)),
                Event::Text(part) => take(&mut open, span, &part.xml10_content()),
                Event::CData(part) => take(&mut open, span, &part.xml10_content()),
                Event::GeneralRef(reference) => take(&mut open, span, &resolved(&reference)?),
                Event::Decl(declaration) => check_encoding(&declaration)?,
                Event::DocType(_) => return Err(XmlError::Doctype),
                Event::Comment(_) | Event::PI(_) => {}
                Event::Eof if open.len() > 1 => return Err(XmlError::Syntax),
                Event::Eof => return Ok(found),
            }
        }
    }

    fn enter(
        &self,
        element: &BytesStart<'_>,
        before: u64,
        text: &str,
        found: &mut Vec<XmlMatch>,
    ) -> Result<XmlLevel, XmlError> {
        let reached = self.advance(before, element.name().as_ref());
        let is_end = reached & (1 << self.steps.len()) != 0;
        let Some(wanted) = &self.attribute else {
            return Ok(XmlLevel {
                reached,
                found: is_end.then(|| XmlMatch { text: String::new(), spans: Vec::new() }),
            });
        };
        if is_end {
            for attribute in element.attributes().with_checks(false) {
                let attribute = attribute.map_err(|_| XmlError::Syntax)?;
                if is_named(attribute.key.as_ref(), wanted) {
                    let value = attribute.value.as_ref();
                    // The value is a part of `text`, because the reader does not copy it.
                    let start = (value.as_ptr() as usize).wrapping_sub(text.as_ptr() as usize);
                    if text.get(start..start.wrapping_add(value.len())) != Some(value) {
                        return Err(XmlError::Syntax);
                    }
                    let meant = quick_xml::escape::unescape(value).map_err(|_| XmlError::Entity)?;
                    let span = start..start + value.len();
                    found.push(XmlMatch { text: meant.into_owned(), spans: std::iter::once(span).collect() });
                }
            }
        }
        Ok(XmlLevel { reached, found: None })
    }

    /// The steps reached within an element. Bit n is set if n steps have been taken; the last bit is inherited.
    fn advance(&self, before: u64, name: &str) -> u64 {
        let mut after = match self.attribute {
            None => before & (1 << self.steps.len()),
            Some(_) => 0,
        };
        for (taken, step) in self.steps.iter().enumerate().filter(|(taken, _)| before & (1 << taken) != 0) {
            if step.name.as_ref().is_none_or(|wanted| is_named(name, wanted)) {
                after |= 1 << (taken + 1);
            }
            if step.anywhere {
                after |= 1 << taken;
            }
        }
        after
    }
}

/// An open element, or the document.
struct XmlLevel {
    reached: u64,
    /// Its own text, if the path selects it.
    found: Option<XmlMatch>,
}

fn take(open: &mut [XmlLevel], span: Range<usize>, part: &str) {
    if let Some(XmlLevel { found: Some(found), .. }) = open.last_mut() {
        found.text.push_str(part);
        found.spans.push(span);
    }
}

/// The text that `&name;` stands for.
pub fn resolved(reference: &BytesRef<'_>) -> Result<String, XmlError> {
    if let Some(char) = reference.resolve_char_ref().map_err(|_| XmlError::Syntax)? {
        return Ok(char.to_string());
    }
    resolve_predefined_entity(&reference.xml10_content()).map(str::to_owned).ok_or(XmlError::Entity)
}

/// A recipient that used another encoding would read another text.
pub fn check_encoding(declaration: &BytesDecl<'_>) -> Result<(), XmlError> {
    match declaration.encoding() {
        None => Ok(()),
        Some(Ok(name)) if name.eq_ignore_ascii_case("utf-8") || name.eq_ignore_ascii_case("us-ascii") => Ok(()),
        Some(_) => Err(XmlError::Encoding),
    }
}

fn is_named(name: &str, wanted: &str) -> bool {
    name == wanted || (!wanted.contains(':') && name.rsplit_once(':').is_some_and(|(_, local)| local == wanted))
}

fn is_name(text: &str) -> bool {
    let may_stand = |char: char| char.is_alphanumeric() || matches!(char, '_' | '-' | '.' | ':');
    !text.is_empty() && text.chars().all(may_stand)
}

/// Escapes a text for use between tags or in an attribute. Characters that XML 1.0 §2.2 forbids are left out.
pub fn escaped(text: &str) -> String {
    match text.contains(is_forbidden) {
        true => quick_xml::escape::escape(text.replace(is_forbidden, "")).into_owned(),
        false => quick_xml::escape::escape(text).into_owned(),
    }
}

fn is_forbidden(char: char) -> bool {
    matches!(char, '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\u{fffe}' | '\u{ffff}')
}

/// How many bytes an [`escaped`] text has.
pub fn escaped_len(text: &str) -> usize {
    let lengths = text.chars().map(|char| match char {
        '&' => "&amp;".len(),
        '<' | '>' => "&lt;".len(),
        '\'' | '"' => "&quot;".len(),
        '\r' => "&#13;".len(),
        _ if is_forbidden(char) => 0,
        _ => char.len_utf8(),
    });
    lengths.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<o:order xmlns:o=\"urn:o\"><name id=\"1\" x:id='a&amp;b'>\
        J<!-- -->a&#99;k &lt;<![CDATA[<b>]]></name><item><name>x</name><empty id=\"2\"/></item>tail</o:order>";

    fn found(path: &str) -> Vec<String> {
        let found = XmlPath::parse(path).expect("a path").find(TEXT.as_bytes(), 16).expect("XML");
        found.into_iter().map(|found| found.text).collect()
    }

    #[test]
    fn paths_name_places() {
        for (path, want) in [
            ("/order/name", &["Jack <<b>"][..]),
            ("/o:order/name/text()", &["Jack <<b>"]),
            ("//name", &["Jack <<b>", "x"]),
            ("/order/*/name", &["x"]),
            ("/order/item", &["x", "", ""]),
            ("//@id", &["1", "a&b", "2"]),
            ("/order/item/empty/@id", &["2"]),
            ("/order/name/@x:id", &["a&b"]),
            ("/x:order/name", &[]),
            ("/name", &[]),
        ] {
            let mut texts = found(path);
            texts.sort();
            let mut want = want.to_vec();
            want.sort_unstable();
            assert_eq!(texts, want, "{path}");
        }
    }

    #[test]
    fn spans_are_the_parts_as_they_are_written() {
        let spans = |path: &str| {
            let found = XmlPath::parse(path).expect("a path").find(TEXT.as_bytes(), 16).expect("XML");
            found.into_iter().flat_map(|found| found.spans).map(|span| &TEXT[span]).collect::<Vec<_>>()
        };
        assert_eq!(spans("/order/name"), ["J", "a", "&#99;", "k ", "&lt;", "<![CDATA[<b>]]>"]);
        assert_eq!(spans("//@x:id"), ["a&amp;b"]);
    }

    #[test]
    fn ambiguous_xml_is_refused() {
        let fault = |text: &str| XmlPath::parse("//a").expect("a path").find(text.as_bytes(), 4).expect_err("refused");
        assert_eq!(fault("<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>"), XmlError::Doctype);
        assert_eq!(fault("<a>&b;</a>"), XmlError::Entity);
        assert_eq!(fault("<?xml version='1.0' encoding='utf-16'?><a/>"), XmlError::Encoding);
        assert_eq!(fault("<a><a><a><a><a/>x</a></a></a></a><"), XmlError::Syntax);
        assert_eq!(fault("<a><a><a><a><a>"), XmlError::Depth);
        assert_eq!(fault("<a><b></a></b>"), XmlError::Syntax);
        assert_eq!(fault("<a>"), XmlError::Syntax);
        for text in ["", "a", "/", "//", "/a/", "/a b", "/@", "/a[1]", "@a", "/a/@b/c", "/@a"] {
            assert!(XmlPath::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn length_of_an_escaped_text_is_known_before_it_is_made() {
        for text in ["", "plain é", "<a href='/'>&\"\n\r\t</a>", "a\0b\u{1f}<\u{fffe}"] {
            assert_eq!(escaped_len(text), escaped(text).len(), "{text}");
        }
        assert_eq!(escaped("a\0b\u{1f}\t<\u{fffe}"), "ab\t&lt;");
    }
}
