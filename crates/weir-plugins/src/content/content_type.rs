//! What `Content-Type` says (RFC 9110 §8.3): one reading of it for every plugin that looks at content.
//!
//! Recipients disagree about several fields, and about lists in one: some take the first, some the last, some all of it.
//! A plugin that took another than the upstream would look at other content than the upstream does, so such requests are
//! refused.

use weir_plugin::proto::{Head, field};
use weir_plugin::{Exchange, Stop};

/// A head says several types, or something that is none: recipients would read it differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ambiguous;

/// The type of a message's content as its recipient will read it; `None` where nothing is said.
pub fn of(head: &Head) -> Result<Option<&[u8]>, Ambiguous> {
    let mut values = head.values(b"content-type");
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() || !is_one(value) { Err(Ambiguous) } else { Ok(Some(value)) }
}

/// The same for a request, which is refused where it is ambiguous.
pub fn of_request(exchange: &mut Exchange) -> Result<Option<&[u8]>, Stop> {
    if of(&exchange.request.head).is_err() {
        let text = b"Content-Type must be one valid media type\n";
        return Err(exchange.respond(400, "text/plain; charset=utf-8", text));
    }
    Ok(of(&exchange.request.head).unwrap_or(None))
}

/// `type "/" subtype *( OWS ";" OWS [ name "=" ( token / quoted-string ) ] )`, and nothing more.
fn is_one(value: &[u8]) -> bool {
    let Some(slash) = value.iter().position(|&byte| byte == b'/') else { return false };
    let (kind, rest) = (&value[..slash], &value[slash + 1..]);
    let end = rest.iter().position(|&byte| !field::is_token_byte(byte)).unwrap_or(rest.len());
    field::is_name(kind) && end > 0 && are_parameters(field::trim(&rest[end..]))
}

fn are_parameters(mut rest: &[u8]) -> bool {
    while let Some((b';', after)) = rest.split_first() {
        rest = field::trim(after);
        let end = rest.iter().position(|&byte| !field::is_token_byte(byte)).unwrap_or(rest.len());
        rest = match &rest[end..] {
            [b'=', b'"', quoted @ ..] if end > 0 => match after_quotes(quoted) {
                Some(after) => after,
                None => return false,
            },
            [b'=', plain @ ..] if end > 0 => {
                // Boundaries often hold what no token may (RFC 2046 §5.1.1), and nobody reads them in two ways.
                let ends = |byte: &u8| matches!(byte, b';' | b',' | b'"' | b' ' | b'\t') || !byte.is_ascii();
                let end = plain.iter().position(ends).unwrap_or(plain.len());
                &plain[end..]
            }
            after if end == 0 => after,
            _ => return false,
        };
        rest = field::trim(rest);
    }
    rest.is_empty()
}

/// What follows the quote that ends a string.
fn after_quotes(mut rest: &[u8]) -> Option<&[u8]> {
    loop {
        rest = match rest {
            [b'"', after @ ..] => return Some(after),
            [b'\\', _, after @ ..] => after,
            [_, after @ ..] => after,
            [] => return None,
        };
    }
}

/// The media type, without parameters.
fn name(value: &[u8]) -> &[u8] {
    field::trim(value.split(|&byte| byte == b';').next().unwrap_or_default())
}

/// Whether it is this media type, in lower case here and in any case there.
pub fn is(value: &[u8], media_type: &str) -> bool {
    name(value).eq_ignore_ascii_case(media_type.as_bytes())
}

/// The fields of a form in a request's content, as browsers send them unless told otherwise.
pub fn is_form(value: &[u8]) -> bool {
    is(value, "application/x-www-form-urlencoded")
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

    fn head(values: &[&str]) -> Head {
        let mut head = Head::default();
        for value in values {
            head.add(b"Content-Type", value.as_bytes()).expect("valid");
        }
        head
    }

    #[test]
    fn u06_one_type_is_what_everybody_reads() {
        assert_eq!(of(&head(&[])), Ok(None));
        for value in [
            "application/json",
            "application/json;charset=utf-8",
            "application/json ; charset=\"utf-8\" ; a=b",
            "multipart/form-data; boundary=\"a,b;c\\\"d\"",
            "text/plain;",
            "text/plain;;a=b",
        ] {
            assert_eq!(of(&head(&[value])), Ok(Some(value.as_bytes())), "{value}");
        }
    }

    #[test]
    fn u06_several_types_are_ambiguous() {
        for values in [
            &["application/json", "application/json"][..],
            &["application/x-www-form-urlencoded", "application/json"],
            &["text/plain, application/json"],
            &["text/plain,application/json"],
            &["text/plain;a=b, application/json"],
            &["text/plain;a=\"b\", application/json"],
            &["text/plain application/json"],
            &["text/plain; application/json"],
            &["text/plain;a=\"b"],
            &["application/json\u{a0}"],
            &["json"],
            &["/json"],
            &["application/"],
            &[""],
        ] {
            assert_eq!(of(&head(values)), Err(Ambiguous), "{values:?}");
        }
    }
}
