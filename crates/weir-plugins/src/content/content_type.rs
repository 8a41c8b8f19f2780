//! What values of `Content-Type` say (RFC 9110 §8.3).

use weir_plugin::proto::field;

/// The media type, without parameters.
fn name(value: &[u8]) -> &[u8] {
    field::trim(value.split(|&byte| byte == b';').next().unwrap_or_default())
}

/// Whether it is this media type, in lower case here and in any case there.
pub fn is(value: &[u8], media_type: &str) -> bool {
    name(value).eq_ignore_ascii_case(media_type.as_bytes())
}

/// `application/json`, `text/json` or `.../...+json` (RFC 6839 §3.1).
pub fn is_json(value: &[u8]) -> bool {
    is(value, "application/json") || is(value, "text/json") || ends(value, b"+json")
}

/// `application/xml`, `text/xml` or `.../...+xml` (RFC 7303 §8).
pub fn is_xml(value: &[u8]) -> bool {
    is(value, "application/xml") || is(value, "text/xml") || ends(value, b"+xml")
}

fn ends(value: &[u8], suffix: &[u8]) -> bool {
    let name = name(value);
    name.len() > suffix.len() && name[name.len() - suffix.len()..].eq_ignore_ascii_case(suffix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_known_with_parameters_and_suffixes() {
        for value in ["application/json", "Application/JSON ;charset=utf-8", "text/json", "application/ld+json;a=b"] {
            assert!(is_json(value.as_bytes()) && !is_xml(value.as_bytes()), "{value}");
        }
        for value in ["text/xml", "application/xml", "image/svg+XML"] {
            assert!(is_xml(value.as_bytes()) && !is_json(value.as_bytes()), "{value}");
        }
        for value in ["", "+json", "application/jsonx", "text/plain; a=+json"] {
            assert!(!is_json(value.as_bytes()), "{value}");
        }
    }
}
