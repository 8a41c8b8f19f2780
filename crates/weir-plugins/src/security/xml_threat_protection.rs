use std::collections::HashSet;
use std::sync::Arc;

use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, Phases, Plugin, Stage, Stop};

use crate::content::content_type;
use crate::content::xml;
use crate::security::threat::{self, ThreatBounds};

/// Refuses requests whose XML body could harm the upstream: with a document type (DTD entities can expand without
/// bounds and read files), nested too deeply, with too many or too long parts, or not valid XML.
///
/// All request bodies must be XML, whatever their `Content-Type`. With `only_xml_types`, bodies of other types are not
/// checked.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct XmlThreatProtection {
    /// The largest body, in bytes after decoding. A larger body is refused with 413.
    #[serde(default = "threat::default_max_body_size")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_body_size: u64,
    /// The maximum nesting depth of elements, 1 to 1000.
    #[serde(default = "threat::default_max_depth")]
    #[schemars(range(min = 1, max = 1000))]
    max_depth: usize,
    /// The maximum number of direct child elements of an element.
    #[serde(default = "threat::default_max_parts")]
    max_children: u64,
    /// The maximum number of attributes of an element, including namespace declarations.
    #[serde(default = "default_max_attributes")]
    max_attributes: usize,
    /// The maximum length of a text between tags, in bytes of UTF-8.
    #[serde(default = "threat::default_max_text_length")]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_text_length: usize,
    /// The maximum length of the value of an attribute, in bytes of UTF-8.
    #[serde(default = "default_max_attribute_length")]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_attribute_length: usize,
    /// The maximum length of the name of an element or an attribute, in bytes of UTF-8.
    #[serde(default = "default_max_name_length")]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_name_length: usize,
    /// Does not check bodies whose `Content-Type` is not XML.
    #[serde(default)]
    only_xml_types: bool,
    /// The status of a refusal, 400 to 599.
    #[serde(default = "threat::default_rejected_code")]
    #[schemars(range(min = 400, max = 599))]
    rejected_code: u16,
}

fn default_max_attributes() -> usize {
    100
}

fn default_max_attribute_length() -> usize {
    4096
}

fn default_max_name_length() -> usize {
    256
}

impl Definition for XmlThreatProtection {
    const NAME: &'static str = "xml-threat-protection";
    const PRIORITY: i32 = 2819;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "xml-threat-protection: { max_depth: 8, max_attributes: 20, max_text_length: 4096 }";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(self))
    }
}

impl Plugin for XmlThreatProtection {
    fn phases(&self) -> Phases {
        Phases::REQUEST_BODY
    }

    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        let is_xml = content_type::of_request(exchange)?.is_some_and(content_type::is_xml);
        let passes = self.only_xml_types && !is_xml;
        Ok(if passes { None } else { Some(self.max_body_size) })
    }

    fn on_request_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<Flow<'static>, Stop> {
        self.bounds().judge(exchange, body, |plain| self.check(plain)).map(Flow::from)
    }
}

const NOT_XML: &str = "The body is not XML";

impl XmlThreatProtection {
    fn bounds(&self) -> ThreatBounds {
        ThreatBounds { max_body_size: self.max_body_size, rejected_code: self.rejected_code }
    }

    fn check(&self, body: &[u8]) -> Result<(), &'static str> {
        let text = str::from_utf8(body).map_err(|_| "The body is not UTF-8")?;
        let mut reader = Reader::from_str(text);
        // The number of child elements of each open element; the document may have one.
        let mut open = vec![0];
        // The bytes of text since the last tag.
        let mut length = 0;
        loop {
            let event = reader.read_event().map_err(|_| NOT_XML)?;
            match event {
                Event::Start(element) => {
                    self.enter(&element, &mut open)?;
                    open.push(0);
                    length = 0;
                }
                Event::Empty(element) => {
                    self.enter(&element, &mut open)?;
                    length = 0;
                }
                Event::End(_) => {
                    open.pop();
                    length = 0;
                }
                Event::Text(part) => length += part.into_inner().len(),
                Event::CData(part) => length += part.into_inner().len(),
                Event::GeneralRef(reference) => {
                    length += xml::resolved(&reference).map_err(|_| "The body has a custom entity")?.len();
                }
                Event::Decl(declaration) => xml::check_encoding(&declaration).map_err(|_| "The body is not UTF-8")?,
                Event::DocType(_) => return Err("The body has a document type"),
                Event::Comment(_) | Event::PI(_) => {}
                Event::Eof if open == [1] => return Ok(()),
                Event::Eof => return Err(NOT_XML),
            }
            if length > self.max_text_length {
                return Err("A text in the body is too long");
            }
        }
    }

    fn enter(&self, element: &BytesStart<'_>, open: &mut [u64]) -> Result<(), &'static str> {
        let depth = open.len();
        if depth > self.max_depth {
            return Err("The body is nested too deep");
        }
        let children = open.last_mut().ok_or(NOT_XML)?;
        *children += 1;
        if depth == 1 && *children > 1 {
            return Err(NOT_XML);
        }
        if *children > self.max_children {
            return Err("An element of the body has too many children");
        }
        if element.name().as_ref().len() > self.max_name_length {
            return Err("A name in the body is too long");
        }
        let mut names = HashSet::new();
        for attribute in element.attributes().with_checks(false) {
            let attribute = attribute.map_err(|_| NOT_XML)?;
            if names.len() == self.max_attributes {
                return Err("An element of the body has too many attributes");
            }
            if attribute.key.as_ref().len() > self.max_name_length {
                return Err("A name in the body is too long");
            }
            if attribute.value.len() > self.max_attribute_length {
                return Err("An attribute in the body is too long");
            }
            if !names.insert(attribute.key.as_ref().to_owned()) {
                return Err("An element of the body has an attribute twice");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{body, build, exchange, on_request_body, refused};

    const LIMITS: &str = r#"{"max_depth": 3, "max_children": 2, "max_attributes": 2, "max_text_length": 5,
        "max_attribute_length": 4, "max_name_length": 3}"#;

    #[test]
    fn xml_within_its_limits_passes() {
        let step = build::<XmlThreatProtection>(serde_json::from_str(LIMITS).expect("JSON"));
        for (content, want) in [
            ("<?xml version='1.0'?><a b='1' c='1234'><b>1234&amp;</b><c/></a>\n", None),
            ("<a><b><c><d/></c></b></a>", Some("The body is nested too deep")),
            ("<a><b/><b/><b/></a>", Some("An element of the body has too many children")),
            ("<a b='1' c='2' d='3'/>", Some("An element of the body has too many attributes")),
            ("<a b='1' b='2'/>", Some("An element of the body has an attribute twice")),
            ("<a b='12345'/>", Some("An attribute in the body is too long")),
            ("<a>123<!-- -->456</a>", Some("A text in the body is too long")),
            ("<a><![CDATA[123456]]></a>", Some("A text in the body is too long")),
            ("<abcd/>", Some("A name in the body is too long")),
            ("<!DOCTYPE a><a/>", Some("The body has a document type")),
            ("<a>&x;</a>", Some("The body has a custom entity")),
            ("<?xml version='1.0' encoding='utf-7'?><a/>", Some("The body is not UTF-8")),
            ("<a/><b/>", Some("The body is not XML")),
            ("<a>", Some("The body is not XML")),
            ("{}", Some("The body is not XML")),
        ] {
            let mut exchange = exchange("POST / HTTP/1.1\nHost: h\nContent-Type: text/xml");
            let end = on_request_body(&step, &mut exchange, content);
            let said = want.map(|text| format!("{{\"message\":\"{text}\"}}\n"));
            assert_eq!(end.is_err(), want.is_some(), "{content}");
            assert_eq!((!body(&exchange).is_empty()).then(|| body(&exchange).to_owned()), said, "{content}");
        }
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let error = refused::<XmlThreatProtection>(json!({"max_text_length": -1}));
        assert!(error.starts_with("max_text_length: expected a whole number of bytes, 0 or more"), "{error}");
    }
}
