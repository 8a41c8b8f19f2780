//! Reads `Content-Type` (RFC 9110 §8.3), in the same way for all plugins that inspect content.
//!
//! Recipients differ in how they read several fields, or a list in one: some take the first type, some the last, some
//! all. If a plugin read another type than the upstream, it would inspect the content differently, so such requests are
//! refused.

use weir_plugin::proto::{Head, field};
use weir_plugin::{Exchange, Stop};

/// The head has several types, or an invalid one; recipients would read it differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AmbiguousContentType;

/// The media type of a message's content; `None` if there is none.
pub(crate) fn of(head: &Head) -> Result<Option<&[u8]>, AmbiguousContentType> {
    let mut values = head.values(b"content-type");
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() || !is_one(value) { Err(AmbiguousContentType) } else { Ok(Some(value)) }
}

/// The same for a request, which is refused if its type is ambiguous.
pub(crate) fn of_request(exchange: &mut Exchange) -> Result<Option<&[u8]>, Stop> {
    if of(&exchange.request.head).is_err() {
        let text = b"Content-Type must be one valid media type\n";
        return Err(exchange.respond(400, "text/plain; charset=utf-8", text));
    }
    Ok(of(&exchange.request.head).unwrap_or(None))
}

/// Matches `type "/" subtype *( OWS ";" OWS [ name "=" ( token / quoted-string ) ] )`, and nothing more.
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
                // Boundaries often contain bytes that tokens must not (RFC 2046 §5.1.1), but these are not ambiguous.
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

/// The rest after the quote that ends a quoted string.
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

/// The media type without its parameters.
fn name(value: &[u8]) -> &[u8] {
    field::trim(value.split(|&byte| byte == b';').next().unwrap_or_default())
}

/// Whether the value has this media type, which is given in lower case; case is ignored.
pub(crate) fn is(value: &[u8], media_type: &str) -> bool {
    name(value).eq_ignore_ascii_case(media_type.as_bytes())
}

/// Whether a request names the type in `Accept`, with any weight.
pub(crate) fn is_accepted(head: &Head, media_type: &[u8]) -> bool {
    head.values(b"accept").any(|value| {
        let types = value.split(|byte| *byte == b',').map(|kind| kind.split(|byte| *byte == b';').next());
        types.flatten().any(|kind| kind.trim_ascii().eq_ignore_ascii_case(media_type))
    })
}

/// Whether the content is a form as browsers send it by default.
pub(crate) fn is_form(value: &[u8]) -> bool {
    is(value, "application/x-www-form-urlencoded")
}

/// Whether the type is `application/json`, `text/json` or `.../...+json` (RFC 6839 §3.1).
pub(crate) fn is_json(value: &[u8]) -> bool {
    is(value, "application/json") || is(value, "text/json") || ends(value, b"+json")
}

/// Whether the type is `application/xml`, `text/xml` or `.../...+xml` (RFC 7303 §8).
pub(crate) fn is_xml(value: &[u8]) -> bool {
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
            assert_eq!(of(&head(values)), Err(AmbiguousContentType), "{values:?}");
        }
    }
}
