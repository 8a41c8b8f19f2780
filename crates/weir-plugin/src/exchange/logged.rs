//! An exchange as logs show it: with the secrets in its target masked.

use std::borrow::Cow;
use std::net::IpAddr;

use super::Exchange;
use crate::form::{decoded, encoded};
use crate::variable::{Variable, Variables};

/// Replaces a secret.
const MASK: &[u8] = b"***";
/// The referring URL, whose query may contain secrets.
const REFERER: &str = "referer";

/// The variables of an exchange, with the values of its secret arguments replaced by `***`.
pub struct LoggedExchange<'a>(pub &'a Exchange);

impl Variables for LoggedExchange<'_> {
    fn variable(&self, variable: &Variable) -> Option<Cow<'_, [u8]>> {
        let LoggedExchange(exchange) = self;
        let value = exchange.variable(variable);
        if exchange.secret_arguments().is_empty() {
            return value;
        }
        match variable {
            Variable::Argument(name) if self.is_secret(name.as_bytes()) => value.map(|_| Cow::Borrowed(MASK)),
            Variable::Query => Some(Cow::Owned(self.masked(&value?))),
            Variable::RequestUri | Variable::UpstreamUri | Variable::RequestLine => Some(self.without_secrets(value?)),
            Variable::EscapedRequestUri => {
                Some(Cow::Owned(encoded(&self.without_secrets(exchange.request.origin_form()))))
            }
            // The referring page may have been requested with the same secret.
            Variable::Header(name) if name.eq_ignore_ascii_case(REFERER) => Some(self.without_secrets(value?)),
            _ => value,
        }
    }

    fn any_element(&self, variable: &Variable, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.0.any_element(variable, test)
    }

    fn address(&self, variable: &Variable) -> Option<IpAddr> {
        self.0.address(variable)
    }
}

impl LoggedExchange<'_> {
    fn is_secret(&self, name: &[u8]) -> bool {
        self.0.secret_arguments().iter().any(|secret| **secret == *name)
    }

    /// A field's value as logs show it.
    pub fn field<'v>(&self, name: &[u8], value: &'v [u8]) -> Cow<'v, [u8]> {
        match name.eq_ignore_ascii_case(REFERER.as_bytes()) && !self.0.secret_arguments().is_empty() {
            true => self.without_secrets(Cow::Borrowed(value)),
            false => Cow::Borrowed(value),
        }
    }

    /// Masks the secrets in the query of a target, a URL or a request line.
    fn without_secrets<'v>(&self, text: Cow<'v, [u8]>) -> Cow<'v, [u8]> {
        let Some(mark) = text.iter().position(|&byte| byte == b'?') else { return text };
        // A target contains no blank. In a request line the version follows after one, and in a URL a fragment after `#`.
        let end = text[mark..].iter().position(|byte| matches!(byte, b' ' | b'#')).map_or(text.len(), |end| mark + end);
        Cow::Owned([&text[..=mark], &self.masked(&text[mark + 1..end]), &text[end..]].concat())
    }

    /// Masks the secrets of a query, also if their names are percent-encoded.
    fn masked(&self, query: &[u8]) -> Vec<u8> {
        let pairs = query.split(|&byte| byte == b'&').map(|pair| {
            let length = pair.iter().position(|&byte| byte == b'=').unwrap_or(pair.len());
            match self.is_secret(&decoded(&pair[..length])) {
                true => Cow::Owned([&pair[..length], b"=", MASK].concat()),
                false => Cow::Borrowed(pair),
            }
        });
        pairs.collect::<Vec<_>>().join(&b'&')
    }
}

#[cfg(test)]
mod tests {
    use weir_proto::h1::{Limits, parse_request};

    use super::*;

    #[test]
    fn p05_secret_arguments_are_masked_in_every_spelling() {
        let mut exchange = Exchange::default();
        let head = "GET /a?b=1&apikey=k&%61pikey=k2&apikey&c=apikey HTTP/1.1\r\nHost: h\r\n\r\n";
        parse_request(head.as_bytes(), &Limits::default(), &mut exchange.request).expect("valid").expect("complete");
        let shown = |exchange: &Exchange, name: &str| {
            let logged = LoggedExchange(exchange);
            let value = logged.variable(&Variable::named(name)).expect("there");
            String::from_utf8(value.into_owned()).expect("text")
        };
        assert_eq!(shown(&exchange, "args"), "b=1&apikey=k&%61pikey=k2&apikey&c=apikey");
        exchange.hide_argument(b"apikey"[..].into());
        let query = "b=1&apikey=***&%61pikey=***&apikey=***&c=apikey";
        for (name, want) in [
            ("args", query.to_owned()),
            ("request_uri", format!("/a?{query}")),
            (
                "escaped_request_uri",
                "%2Fa%3Fb%3D1%26apikey%3D***%26%2561pikey%3D***%26apikey%3D***%26c%3Dapikey".to_owned(),
            ),
            ("upstream_uri", format!("/a?{query}")),
            ("request", format!("GET /a?{query} HTTP/1.1")),
            ("arg_apikey", "***".to_owned()),
            ("arg_c", "apikey".to_owned()),
            ("uri", "/a".to_owned()),
        ] {
            assert_eq!(shown(&exchange, name), want, "{name}");
        }
    }

    #[test]
    fn u08_secrets_are_masked_in_the_referer() {
        let mut exchange = Exchange::default();
        let head = "GET / HTTP/1.1\r\nHost: h\r\nReferer: http://h/a?b=1&apikey=k#c\r\n\r\n";
        parse_request(head.as_bytes(), &Limits::default(), &mut exchange.request).expect("valid").expect("complete");
        exchange.hide_argument(b"apikey"[..].into());
        let logged = LoggedExchange(&exchange);
        let shown = logged.variable(&Variable::named("http_referer")).expect("there");
        assert_eq!(&*shown, b"http://h/a?b=1&apikey=***#c");
        assert_eq!(&*logged.field(b"Referer", b"/?apikey=k"), b"/?apikey=***");
        assert_eq!(&*logged.field(b"X", b"/?apikey=k"), b"/?apikey=k");
    }
}
