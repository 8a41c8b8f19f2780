//! Reads bodies of all formats into one kind of value.

use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_plugin::form;
use weir_plugin::proto::field;

use crate::content::content_type;
use crate::content::json::Scanner;
use crate::content::xml;

/// How a body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum InputFormat {
    Xml,
    Json,
    /// A form as browsers send it by default.
    Encoded,
    /// The query of the request, not its body.
    Args,
    /// Not read: the template has `_body`.
    Plain,
    /// The fields of a form in parts.
    Multipart,
}

/// The deepest nesting of a body.
const MOST_DEPTH: usize = 100;
/// The most values in a body: each takes about a hundred bytes, however short it is.
const MOST_VALUES: usize = 100_000;

impl InputFormat {
    /// The format of a media type; `None` for others.
    pub fn of(media_type: &[u8]) -> Option<InputFormat> {
        if content_type::is_xml(media_type) {
            Some(InputFormat::Xml)
        } else if content_type::is_json(media_type) {
            Some(InputFormat::Json)
        } else if content_type::is_form(media_type) {
            Some(InputFormat::Encoded)
        } else if content_type::is(media_type, "text/plain") {
            Some(InputFormat::Plain)
        } else if media_type.get(..10).is_some_and(|start| start.eq_ignore_ascii_case(b"multipart/")) {
            Some(InputFormat::Multipart)
        } else {
            None
        }
    }

    /// The value of a body, or of a query. An empty one has no members.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(self, body: &[u8], media_type: &[u8]) -> Result<Value, String> {
        if body.is_empty() {
            return Ok(Value::Object(Map::new()));
        }
        match self {
            InputFormat::Xml => read_xml(body),
            InputFormat::Json => read_json(body),
            InputFormat::Encoded | InputFormat::Args => read_form(body),
            InputFormat::Plain => Ok(Value::Object(Map::new())),
            InputFormat::Multipart => read_parts(body, media_type),
        }
    }
}

fn too_many() -> String {
    format!("has more than {MOST_VALUES} values")
}

/// Adds a member; another of the same name makes a list of both.
fn add(members: &mut Map<String, Value>, name: &str, value: Value) {
    match members.get_mut(name) {
        None => {
            members.insert(name.to_owned(), value);
        }
        Some(Value::Array(values)) => values.push(value),
        Some(first) => *first = Value::Array(vec![first.take(), value]),
    }
}

fn read_json(body: &[u8]) -> Result<Value, String> {
    let wrong = |_| format!("is no JSON, or is nested deeper than {MOST_DEPTH} levels");
    let mut scanner = Scanner::new(body, MOST_DEPTH).map_err(wrong)?;
    let mut count = 0;
    while scanner.token().map_err(wrong)?.is_some() {
        count += 1;
        if count > MOST_VALUES {
            return Err(too_many());
        }
    }
    serde_json::from_slice(body).map_err(|error| format!("is no JSON: {error}"))
}

/// A name without `=` has the value `true`, as in nginx.
fn read_form(body: &[u8]) -> Result<Value, String> {
    let mut members = Map::new();
    let pairs = body.split(|&byte| byte == b'&').filter(|pair| !pair.is_empty());
    for (count, pair) in pairs.enumerate() {
        if count == MOST_VALUES {
            return Err(too_many());
        }
        let text = |part: &[u8]| String::from_utf8(form::decoded(part).into_owned()).map_err(|_| "is not UTF-8");
        let (name, value) = form::halves(pair);
        let value = if pair.contains(&b'=') { Value::String(text(value)?) } else { Value::Bool(true) };
        add(&mut members, &text(name)?, value);
    }
    Ok(Value::Object(members))
}

/// An element that is open, or the document.
#[derive(Default)]
struct OpenElement {
    name: String,
    members: Map<String, Value>,
    text: String,
    /// The number of texts that are members.
    texts: usize,
}

impl OpenElement {
    /// The text so far is a member of its own, because an element follows it, or the end.
    fn keep_text(&mut self) {
        let text = self.text.trim();
        if !text.is_empty() {
            self.texts += 1;
            self.members.insert(self.texts.to_string(), Value::String(text.to_owned()));
        }
        self.text.clear();
    }

    /// The value of the element: its text, if it has nothing else.
    fn finish(mut self) -> (String, Value) {
        self.keep_text();
        let value = match (self.members.len(), self.texts) {
            (0, _) => Value::String(String::new()),
            (1, 1) => self.members.get_mut("1").map(Value::take).unwrap_or_default(),
            _ => Value::Object(self.members),
        };
        (self.name, value)
    }
}

/// The name without its prefix.
fn local(name: &str) -> &str {
    name.rsplit_once(':').map_or(name, |(_, local)| local)
}

/// An element with text only is this text. Others have their elements as members, of which those with the same name make a list, their
/// attributes in `_attr`, and their texts as `[1]`, `[2]` and so on. Prefixes of names are left out.
fn read_xml(body: &[u8]) -> Result<Value, String> {
    const NOT_XML: &str = "is no XML";
    let text = str::from_utf8(body).map_err(|_| "is not UTF-8")?;
    let mut reader = Reader::from_str(text);
    let (mut open, mut count) = (vec![OpenElement::default()], 0);
    loop {
        let event = reader.read_event().map_err(|error| format!("{NOT_XML}: {error}"))?;
        let top = open.last_mut().ok_or(NOT_XML)?;
        match event {
            Event::Start(element) => {
                top.keep_text();
                let opened = opened(&element, &mut count)?;
                open.push(opened);
                if open.len() > MOST_DEPTH {
                    return Err(format!("is nested deeper than {MOST_DEPTH} levels"));
                }
            }
            Event::Empty(element) => {
                top.keep_text();
                let (name, value) = opened(&element, &mut count)?.finish();
                add(&mut top.members, &name, value);
            }
            Event::End(_) => {
                let (name, value) = open.pop().map(OpenElement::finish).ok_or(NOT_XML)?;
                add(&mut open.last_mut().ok_or(NOT_XML)?.members, &name, value);
            }
            Event::Text(part) => top.text.push_str(&part.xml10_content()),
            Event::CData(part) => top.text.push_str(&part.xml10_content()),
            Event::GeneralRef(reference) => {
                top.text.push_str(&xml::resolved(&reference).map_err(|_| "has an entity that XML does not define")?);
            }
            Event::Decl(declaration) => xml::check_encoding(&declaration).map_err(|_| "is not UTF-8")?,
            Event::DocType(_) => return Err("has a document type".to_owned()),
            Event::Comment(_) | Event::PI(_) => {}
            Event::Eof => break,
        }
    }
    let document = open.pop().filter(|_| open.is_empty()).ok_or(NOT_XML)?;
    let has_one = document.members.len() == 1 && !document.members.values().any(Value::is_array);
    match has_one && document.text.trim().is_empty() {
        true => Ok(Value::Object(document.members)),
        false => Err(NOT_XML.to_owned()),
    }
}

fn opened(element: &BytesStart<'_>, count: &mut usize) -> Result<OpenElement, String> {
    let mut attributes = Map::new();
    for attribute in element.attributes().with_checks(false) {
        *count += 1;
        let attribute = attribute.map_err(|_| "has a wrong attribute")?;
        let value = quick_xml::escape::unescape(attribute.value.as_ref())
            .map_err(|_| "has an entity that XML does not define")?;
        add(&mut attributes, local(attribute.key.as_ref()), Value::String(value.into_owned()));
        if *count > MOST_VALUES {
            return Err(too_many());
        }
    }
    *count += 1;
    if *count > MOST_VALUES {
        return Err(too_many());
    }
    let mut opened = OpenElement { name: local(element.name().as_ref()).to_owned(), ..OpenElement::default() };
    if !attributes.is_empty() {
        opened.members.insert("_attr".to_owned(), Value::Object(attributes));
    }
    Ok(opened)
}

/// The fields of a form in parts (RFC 7578), by name. Parts without a name, and those that are not UTF-8, such as images, are left out.
fn read_parts(body: &[u8], media_type: &[u8]) -> Result<Value, String> {
    let boundary = parameter(media_type, "boundary").ok_or("has no `boundary` in its Content-Type")?;
    let delimiter = [b"\r\n--", &*boundary].concat();
    // The first delimiter has no line end before it if nothing precedes it.
    let body = [b"\r\n", body].concat();
    let mut members = Map::new();
    let mut rest = after(&body, &delimiter).ok_or("has no part")?;
    for _ in 0..MOST_VALUES {
        if rest.starts_with(b"--") {
            return Ok(Value::Object(members));
        }
        let start = memchr::memmem::find(rest, b"\r\n").ok_or("has a part without an end")?;
        let end = memchr::memmem::find(&rest[start..], &delimiter).ok_or("has a part without an end")? + start;
        let part = &rest[start..end];
        let head_end = memchr::memmem::find(part, b"\r\n\r\n").ok_or("has a part without a head")?;
        if let (Some(name), Ok(content)) = (name_of_part(&part[..head_end]), str::from_utf8(&part[head_end + 4..])) {
            add(&mut members, &name, Value::String(content.to_owned()));
        }
        rest = &rest[end + delimiter.len()..];
    }
    Err(too_many())
}

fn after<'a>(text: &'a [u8], delimiter: &[u8]) -> Option<&'a [u8]> {
    memchr::memmem::find(text, delimiter).map(|start| &text[start + delimiter.len()..])
}

/// The `name` in the `Content-Disposition` of a part.
fn name_of_part(head: &[u8]) -> Option<String> {
    let lines = head.split(|&byte| byte == b'\n').map(field::trim);
    let mut values = lines.filter_map(|line| {
        let colon = memchr::memchr(b':', line)?;
        line[..colon].eq_ignore_ascii_case(b"content-disposition").then(|| &line[colon + 1..])
    });
    Some(String::from_utf8_lossy(&parameter(values.next()?, "name")?).into_owned())
}

/// A parameter of a value such as `form-data; name="a"`.
fn parameter(value: &[u8], wanted: &str) -> Option<Vec<u8>> {
    let mut rest = &value[memchr::memchr(b';', value)? + 1..];
    loop {
        let equals = memchr::memchr(b'=', rest)?;
        let name = field::trim(&rest[..equals]);
        rest = &rest[equals + 1..];
        let mut text = Vec::new();
        if let Some(quoted) = rest.strip_prefix(b"\"") {
            let mut bytes = quoted.iter();
            loop {
                match bytes.next()? {
                    b'"' => break,
                    b'\\' => text.push(*bytes.next()?),
                    byte => text.push(*byte),
                }
            }
            rest = bytes.as_slice();
        } else {
            let end = memchr::memchr(b';', rest).unwrap_or(rest.len());
            text.extend_from_slice(field::trim(&rest[..end]));
            rest = &rest[end..];
        }
        if name.eq_ignore_ascii_case(wanted.as_bytes()) {
            return Some(text).filter(|text| !text.is_empty());
        }
        rest = &rest[memchr::memchr(b';', rest)? + 1..];
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(format: InputFormat, body: &str) -> Result<Value, String> {
        format.read(body.as_bytes(), b"multipart/form-data; charset=x; boundary=\"b 1\"")
    }

    #[test]
    fn xml_has_the_shape_of_xml2lua() {
        for (body, want) in [
            ("<a/>", json!({"a": ""})),
            ("<?xml version='1.0'?>\n<a> x &amp; <![CDATA[<y>]]>\n</a>\n", json!({"a": "x & <y>"})),
            ("<s:a xmlns:s='u'><s:b>1</s:b></s:a>", json!({"a": {"_attr": {"s": "u"}, "b": "1"}})),
            ("<a><b>1</b><c/><b>2</b><b><d>3</d></b></a>", json!({"a": {"b": ["1", "2", {"d": "3"}], "c": ""}})),
            ("<f xml:lang='en'>why&#33;</f>", json!({"f": {"_attr": {"lang": "en"}, "1": "why!"}})),
            ("<a>x<b/>y<!-- -->z</a>", json!({"a": {"1": "x", "b": "", "2": "yz"}})),
        ] {
            assert_eq!(read(InputFormat::Xml, body), Ok(want), "{body}");
        }
    }

    #[test]
    fn forms_and_queries_have_members() {
        let want = json!({"name": ["a b", "c"], "flag": true, "empty": "", "é": "&"});
        for format in [InputFormat::Encoded, InputFormat::Args] {
            assert_eq!(read(format, "name=a+b&flag&name=c&&empty=&%C3%A9=%26"), Ok(want.clone()));
        }
        let parts = "--b 1\r\nContent-Disposition: form-data; name=\"a \\\"b\\\"\"\r\nContent-Type: text/plain\r\n\r\n1\r\n2\r\n--b 1\r\n\
            content-disposition: form-data; filename=f; name=c\r\n\r\n\r\n--b 1  \r\nContent-Disposition: form-data\r\n\r\nx\r\n--b 1--\r\n";
        assert_eq!(read(InputFormat::Multipart, parts), Ok(json!({"a \"b\"": "1\r\n2", "c": ""})));
        assert_eq!(read(InputFormat::Plain, "x"), Ok(json!({})));
        assert_eq!(read(InputFormat::Json, ""), Ok(json!({})));
    }

    #[test]
    fn content_of_another_format_is_an_error() {
        let deep = |open: &str| open.repeat(MOST_DEPTH + 1);
        for (format, body, want) in [
            (InputFormat::Json, "{".to_owned(), "is no JSON"),
            (InputFormat::Json, deep("["), "nested deeper than 100"),
            (InputFormat::Json, format!("[{}1]", "1,".repeat(MOST_VALUES)), "has more than 100000 values"),
            (InputFormat::Xml, "<a>".to_owned(), "is no XML"),
            (InputFormat::Xml, "<a></b>".to_owned(), "is no XML"),
            (InputFormat::Xml, "<a/><b/>".to_owned(), "is no XML"),
            (InputFormat::Xml, "<a/><a/>".to_owned(), "is no XML"),
            (InputFormat::Xml, "<a/>x".to_owned(), "is no XML"),
            (InputFormat::Xml, "x".to_owned(), "is no XML"),
            (InputFormat::Xml, deep("<a>"), "nested deeper than 100"),
            (InputFormat::Xml, format!("<a>{}</a>", "<b/>".repeat(MOST_VALUES)), "has more than 100000 values"),
            (InputFormat::Xml, "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>".to_owned(), "has a document type"),
            (InputFormat::Xml, "<a>&b;</a>".to_owned(), "has an entity"),
            (InputFormat::Xml, "<a b='&c;'/>".to_owned(), "has an entity"),
            (InputFormat::Xml, "<?xml version='1.0' encoding='latin1'?><a/>".to_owned(), "is not UTF-8"),
            (InputFormat::Encoded, "a&".repeat(MOST_VALUES + 1), "has more than 100000 values"),
            (InputFormat::Args, "a=%FF".to_owned(), "is not UTF-8"),
            (InputFormat::Multipart, "x".to_owned(), "has no part"),
            (InputFormat::Multipart, "--b 1\r\nA: b\r\n\r\nx".to_owned(), "has a part without an end"),
        ] {
            let problem = read(format, &body).expect_err(&body[..body.len().min(50)]);
            assert!(problem.contains(want), "{problem}");
        }
        let problem = InputFormat::Multipart.read(b"x", b"multipart/form-data").expect_err("no boundary");
        assert!(problem.contains("has no `boundary`"), "{problem}");
    }

    #[test]
    fn formats_follow_from_media_types() {
        for (media_type, want) in [
            ("text/xml; charset=utf-8", Some(InputFormat::Xml)),
            ("application/soap+xml", Some(InputFormat::Xml)),
            ("Application/JSON", Some(InputFormat::Json)),
            ("application/x-www-form-urlencoded", Some(InputFormat::Encoded)),
            ("Multipart/Related; boundary=x", Some(InputFormat::Multipart)),
            ("text/plain", Some(InputFormat::Plain)),
            ("image/png", None),
            ("", None),
        ] {
            assert_eq!(InputFormat::of(media_type.as_bytes()), want, "{media_type}");
        }
    }
}
