//! Response heads from upstreams (RFC 9113 §8.3.2), which are trusted no more than clients.

use super::class::FieldClass;
use super::hpack::DecodedField;
use super::push;
use crate::field::Known;
use crate::h1::{BadResponse, Limits, content_length};
use crate::head::{Framing, ResponseHead, Version};
use crate::method::Method;

/// Makes a head of a response's field section; `response` must be clear, `method` is the method of the request being answered.
/// With `ended` no content follows.
pub fn response_head<'a>(
    status: u16,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ended: bool,
    limits: &Limits,
    method: Method,
    response: &mut ResponseHead,
) -> Result<(), BadResponse> {
    let mut reader = ResponseReader::new(response, limits);
    reader.field(DecodedField::of(b":status", format!("{status:03}").as_bytes()));
    fields.for_each(|(name, value)| reader.field(DecodedField::of(name, value)));
    reader.finish(ended, method)
}

/// Builds a head from fields as they are decoded. After a refusal the remaining fields are ignored.
pub struct ResponseReader<'r> {
    response: &'r mut ResponseHead,
    limits: &'r Limits,
    length: Option<u64>,
    count: usize,
    refused: Option<BadResponse>,
}

impl<'r> ResponseReader<'r> {
    /// `response` must be clear.
    pub fn new(response: &'r mut ResponseHead, limits: &'r Limits) -> ResponseReader<'r> {
        response.version = Version::Http2;
        ResponseReader { response, limits, length: None, count: 0, refused: None }
    }

    /// Adds a field of a known class.
    pub fn field(&mut self, DecodedField { class, name, value, never_indexed }: DecodedField<'_>) {
        if self.refused.is_some() {
            return;
        }
        let taken = match class {
            FieldClass::Status => self.status(value),
            FieldClass::Field(known) => self.regular(known, name, value, never_indexed),
            FieldClass::Cookie => self.regular(Known::Other, name, value, never_indexed),
            _ => Err(BadResponse::Syntax),
        };
        self.refused = taken.err();
    }

    fn status(&mut self, value: &[u8]) -> Result<(), BadResponse> {
        let &[a @ b'1'..=b'5', b @ b'0'..=b'9', c @ b'0'..=b'9'] = value else { return Err(BadResponse::Syntax) };
        let status = u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0');
        // RFC 9113 §8.3: one `:status`, before the fields; §8.6: 101 does not exist in HTTP/2.
        if self.response.status != 0 || self.count > 0 || status == 101 {
            return Err(BadResponse::Syntax);
        }
        self.response.status = status;
        Ok(())
    }

    fn regular(&mut self, known: Known, name: &[u8], value: &[u8], never_indexed: bool) -> Result<(), BadResponse> {
        let head = &mut self.response.head;
        if self.count == self.limits.fields || head.bytes.len() + name.len() + value.len() + 4 > self.limits.head_bytes
        {
            return Err(BadResponse::HeadTooLarge);
        }
        self.count += 1;
        push(head, known, name, value);
        if never_indexed {
            head.mark_never_indexed();
        }
        let for_client = matches!(known, Known::ProxyAuthenticate | Known::ProxyAuthenticationInfo);
        head.fields.last_mut().expect("it was pushed just now").removed = known.is_hop_by_hop() && !for_client;
        if known == Known::ContentLength {
            let length = content_length(value).ok_or(BadResponse::Framing)?;
            if self.length.replace(length).is_some() {
                return Err(BadResponse::Framing);
            }
        }
        Ok(())
    }

    /// Completes the head of a response to a request with this method. With `ended` the response has no content.
    pub fn finish(self, ended: bool, method: Method) -> Result<(), BadResponse> {
        let ResponseReader { response, length, refused, .. } = self;
        if let Some(bad) = refused {
            return Err(bad);
        }
        if response.status == 0 {
            return Err(BadResponse::Syntax);
        }
        if matches!(response.status, 100..=199 | 204) {
            response.head.remove_known(Known::ContentLength); // RFC 9110 §8.6
        }
        response.keep_alive = true;
        let is_bodiless = method == Method::Head || matches!(response.status, 100..=199 | 204 | 304);
        response.framing = match length {
            _ if is_bodiless => Framing::None,
            Some(length) if ended && length > 0 => return Err(BadResponse::Framing),
            Some(length) => Framing::Sized(length),
            None if ended => Framing::Sized(0),
            None => Framing::UntilClose,
        };
        Ok(())
    }
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
