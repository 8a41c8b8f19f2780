//! Responses of upstreams (RFC 9113 §8.3.2), which are trusted no more than clients are.

use super::{check, push};
use crate::field::Known;
use crate::h1::{BadResponse, Limits, content_length};
use crate::head::{Framing, ResponseHead, Version};
use crate::method::Method;

/// Makes a head of a response's field section; `response` must be clear, and `method` is the one of the request it
/// answers. `ended` says that no content follows.
pub fn response_head<'a>(
    status: u16,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ended: bool,
    limits: &Limits,
    method: Method,
    response: &mut ResponseHead,
) -> Result<(), BadResponse> {
    response.version = Version::Http2;
    response.status = status;
    if !(100..=599).contains(&status) || status == 101 {
        return Err(BadResponse::Syntax); // RFC 9113 §8.6: 101 is not for HTTP/2
    }
    let mut length = None;
    let head = &mut response.head;
    for (name, value) in fields {
        check(name, value).map_err(|_| BadResponse::Syntax)?;
        if head.fields.len() == limits.fields || head.bytes.len() + name.len() + value.len() + 4 > limits.head_bytes {
            return Err(BadResponse::HeadTooLarge);
        }
        push(head, name, value);
        let field = head.fields.last_mut().expect("it was pushed just now");
        let for_client = matches!(field.known, Known::ProxyAuthenticate | Known::ProxyAuthenticationInfo);
        field.removed = field.known.is_hop_by_hop() && !for_client;
        if field.known == Known::ContentLength {
            let value = content_length(value).ok_or(BadResponse::Framing)?;
            if length.replace(value).is_some() {
                return Err(BadResponse::Framing);
            }
        }
    }
    if matches!(status, 100..=199 | 204) {
        head.remove_known(Known::ContentLength); // RFC 9110 §8.6
    }
    response.keep_alive = true;
    let is_bodiless = method == Method::Head || matches!(status, 100..=199 | 204 | 304);
    response.framing = match length {
        _ if is_bodiless => Framing::None,
        Some(length) if ended && length > 0 => return Err(BadResponse::Framing),
        Some(length) => Framing::Sized(length),
        None if ended => Framing::Sized(0),
        None => Framing::UntilClose,
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(status: u16, fields: &[(&str, &str)], ended: bool) -> Result<ResponseHead, BadResponse> {
        let mut response = ResponseHead::default();
        let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        response_head(status, fields, ended, &Limits::default(), Method::Get, &mut response)?;
        Ok(response)
    }

    #[test]
    fn framing_follows_length_and_end() {
        let framing = |status, fields: &[(&str, &str)], ended| parse(status, fields, ended).map(|head| head.framing);
        assert_eq!(framing(200, &[("content-length", "5")], false), Ok(Framing::Sized(5)));
        assert_eq!(framing(200, &[], false), Ok(Framing::UntilClose));
        assert_eq!(framing(200, &[], true), Ok(Framing::Sized(0)));
        assert_eq!(framing(304, &[("content-length", "5")], true), Ok(Framing::None));
        assert_eq!(framing(200, &[("content-length", "5")], true), Err(BadResponse::Framing));
        assert_eq!(framing(200, &[("content-length", "5"), ("content-length", "5")], false), Err(BadResponse::Framing));
    }

    #[test]
    fn u10_a_204_loses_its_length() {
        let response = parse(204, &[("a", "b"), ("content-length", "5")], true).expect("valid");
        assert_eq!(response.head.fields().collect::<Vec<_>>(), [(&b"a"[..], &b"b"[..])]);
    }

    #[test]
    fn doubtful_responses_are_refused() {
        for field in [("A", "1"), ("a", "1\r\nb: 2"), ("a", " 1"), ("connection", "close"), ("a b", "1")] {
            assert_eq!(parse(200, &[field], true).err(), Some(BadResponse::Syntax), "{field:?}");
        }
        for status in [0, 99, 101, 600] {
            assert_eq!(parse(status, &[], true).err(), Some(BadResponse::Syntax), "{status}");
        }
        let many = vec![("a", "1"); 101];
        assert_eq!(parse(200, &many, true).err(), Some(BadResponse::HeadTooLarge));
        let long = "x".repeat(40_000);
        assert_eq!(parse(200, &[("a", &long)], true).err(), Some(BadResponse::HeadTooLarge));
    }
}
