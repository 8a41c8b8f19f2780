//! Shared by the auth plugins: the response to unauthenticated clients, and removing credentials from requests.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use weir_plugin::proto::field;
use weir_plugin::{AllOf, Build, ConfigError, Credential, Exchange, Stop, form};

/// The treatment of clients that have not authenticated.
pub(crate) struct Unauthenticated {
    /// The consumer that such requests are attributed to, if there is one.
    anonymous: Option<Arc<Credential>>,
    /// Otherwise they get this challenge (RFC 9110 §11.6.1).
    challenge: Box<str>,
}

impl Unauthenticated {
    /// From the options `anonymous_consumer` and `realm`, which all auth plugins have.
    pub(crate) fn new(
        scheme: &str,
        realm: &str,
        anonymous: Option<&str>,
        build: &Build,
    ) -> Result<Unauthenticated, ConfigError> {
        let is_quotable = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        let realm = match realm.bytes().all(is_quotable) {
            true => Ok(realm),
            false => {
                let problem = "must be printable ASCII characters, without quotes and backslashes";
                Err(ConfigError::new("realm", problem))
            }
        };
        let anonymous = anonymous.map(|username| {
            let consumer = build.consumers().consumer(username).ok_or_else(|| {
                ConfigError::new("anonymous_consumer", format!("`{username}` is not a consumer; add it to `consumers`"))
            })?;
            Ok(Arc::new(Credential { consumer: Arc::clone(consumer), id: Box::default(), options: json!({}) }))
        });
        let (anonymous, realm) = (anonymous.transpose(), realm).all_of()?;
        Ok(Unauthenticated { anonymous, challenge: format!("{scheme} realm=\"{realm}\"").into() })
    }

    /// Attributes the request to the anonymous consumer, if there is one; otherwise refuses it with `fault` as the message.
    /// `hide` removes the credentials that were not accepted, so that the upstream does not take them for verified. A refused
    /// request keeps them: another plugin of `multi-auth` may accept them.
    pub(crate) fn admit_or_refuse(
        &self,
        exchange: &mut Exchange,
        fault: &str,
        hide: impl FnOnce(&mut Exchange) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        if let Some(anonymous) = &self.anonymous {
            hide(exchange)?;
            return exchange.identify(anonymous);
        }
        Err(self.refuse(exchange, fault))
    }

    /// Refuses the request with 401, the challenge, and `fault` as the message.
    pub(crate) fn refuse(&self, exchange: &mut Exchange, fault: &str) -> Stop {
        let body = format!("{}\n", json!({ "message": fault }));
        let stop = exchange.respond(401, "application/json", body.as_bytes());
        let added = exchange.response.head.add(b"WWW-Authenticate", self.challenge.as_bytes());
        added.map_or(Stop::Internal, |()| stop)
    }
}

/// What becomes of a request after its name and password (`Authorization: Basic`, RFC 7617) have been checked.
pub(crate) struct BasicOutcome {
    /// Whether the field is removed before the request is forwarded.
    pub hide: bool,
    pub unauthenticated: Unauthenticated,
}

impl BasicOutcome {
    /// Attributes the request to the owner of the credential, whose name was `name`.
    pub(crate) fn admit(
        &self,
        exchange: &mut Exchange,
        credential: &Arc<Credential>,
        name: Vec<u8>,
    ) -> Result<(), Stop> {
        self.admit_user(exchange, name);
        exchange.identify(credential)
    }

    /// The same for a name that no consumer has.
    pub(crate) fn admit_user(&self, exchange: &mut Exchange, name: Vec<u8>) {
        if self.hide {
            exchange.set_remote_user(name);
            exchange.request.head.remove(b"Authorization");
        }
    }

    /// As [`Unauthenticated::admit_or_refuse`].
    pub(crate) fn admit_or_refuse(&self, exchange: &mut Exchange, fault: &str) -> Result<(), Stop> {
        self.unauthenticated.admit_or_refuse(exchange, fault, |exchange| {
            if self.hide {
                hide_authorization(exchange, b"Basic");
            }
            Ok(())
        })
    }
}

const PROTOCOLS: &[u8] = b"Sec-WebSocket-Protocol";

/// A credential among the subprotocols that a WebSocket's handshake offers (RFC 6455 §4.1): browsers cannot set other fields of
/// it. The credential follows an entry with this name, as in `new WebSocket(url, ["bearer", token])`.
pub(crate) struct OfferedCredential(Arc<[u8]>);

impl OfferedCredential {
    /// From the option `websocket_protocol`, which all plugins with such a credential have.
    pub(crate) fn new(name: &str, build: &mut Build) -> Result<OfferedCredential, ConfigError> {
        // A subprotocol is a token (RFC 9110 §5.6.2), as the name of a field is.
        if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
            let problem = format!("`{name}` is not the name of a subprotocol; write letters, digits, `-`, `.` or `_`");
            return Err(ConfigError::new("websocket_protocol", problem));
        }
        build.secret_field(PROTOCOLS);
        Ok(OfferedCredential(name.as_bytes().into()))
    }

    fn offers(exchange: &Exchange) -> impl Iterator<Item = &[u8]> {
        let lists = exchange.request.head.values(PROTOCOLS).filter(|_| exchange.request.upgrade);
        lists.flat_map(|list| list.split(|&byte| byte == b',')).map(<[u8]>::trim_ascii)
    }

    /// The credential, if the request opens a WebSocket and offers one.
    pub(crate) fn shown<'a>(&self, exchange: &'a Exchange) -> Option<&'a [u8]> {
        Self::offers(exchange).skip_while(|offer| **offer != *self.0).nth(1).filter(|credential| !credential.is_empty())
    }

    /// Answers the handshake with the name, since a browser closes a WebSocket for which none of its offers was chosen. Removes
    /// both entries from the forwarded request if they are to be hidden.
    pub(crate) fn accept(&self, exchange: &mut Exchange, hide: bool) -> Result<(), Stop> {
        if self.shown(exchange).is_none() {
            return Ok(());
        }
        exchange.choose_websocket_protocol(Arc::clone(&self.0));
        if !hide {
            return Ok(());
        }
        let mut follows = false;
        let kept = Self::offers(exchange).filter(|offer| {
            let is_name = **offer == *self.0;
            !is_name & !std::mem::replace(&mut follows, is_name)
        });
        let kept = kept.collect::<Vec<_>>().join(&b", "[..]);
        let head = &mut exchange.request.head;
        head.remove(PROTOCOLS);
        if kept.is_empty() { Ok(()) } else { head.add(PROTOCOLS, &kept).map_err(|_| Stop::Internal) }
    }
}

/// Longer encoded credentials are refused without being decoded.
const MAX_CREDENTIALS: usize = 8 << 10;

/// The name and password in the field `Authorization` (RFC 7617), or the message for a refusal.
pub(crate) fn name_and_password(exchange: &Exchange) -> Result<(Vec<u8>, Vec<u8>), &'static str> {
    let shown = exchange.request.head.value(b"authorization").ok_or("Missing authorization in request")?;
    let invalid = "Invalid authorization in request";
    let (scheme, encoded) = shown.split_at_checked(6).ok_or(invalid)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") || encoded.len() > MAX_CREDENTIALS {
        return Err(invalid);
    }
    let mut name = STANDARD.decode(field::trim(encoded)).map_err(|_| invalid)?;
    let colon = name.iter().position(|&byte| byte == b':').ok_or(invalid)?;
    let password = name.split_off(colon + 1);
    name.pop();
    Ok((name, password))
}

/// Removes `Authorization` before the request is forwarded, if its scheme is this one. Credentials of another scheme are meant
/// for the upstream.
pub(crate) fn hide_authorization(exchange: &mut Exchange, scheme: &[u8]) {
    let head = &mut exchange.request.head;
    let is_meant = head.value(b"authorization").and_then(|value| value.split_at_checked(scheme.len())).is_some_and(
        |(shown, rest)| shown.eq_ignore_ascii_case(scheme) && matches!(rest.first(), None | Some(b' ' | b'\t')),
    );
    if is_meant {
        head.remove(b"Authorization");
    }
}

/// Removes an argument from the query before the request is forwarded.
pub(crate) fn hide_argument(exchange: &mut Exchange, name: &[u8]) -> Result<(), Stop> {
    let request = &mut exchange.request;
    let Some(query) = request.query() else { return Ok(()) };
    // In any percent-encoding that decodes to the name.
    let is_other = |pair: &&[u8]| *form::decoded(form::halves(pair).0) != *name;
    let kept = query.split(|&byte| byte == b'&').filter(is_other).collect::<Vec<_>>().join(&b'&');
    request.set_query(&kept).map_err(|_| Stop::Internal)
}

/// Removes a cookie before the request is forwarded.
pub(crate) fn hide_cookie(exchange: &mut Exchange, name: &[u8]) -> Result<(), Stop> {
    hide_cookies(exchange, |other| other == name)
}

/// Removes the cookies with these names before the request is forwarded.
pub(crate) fn hide_cookies(exchange: &mut Exchange, is_hidden: impl Fn(&[u8]) -> bool) -> Result<(), Stop> {
    let head = &mut exchange.request.head;
    let is_other = |pair: &&[u8]| !is_hidden(pair.split(|&byte| byte == b'=').next().unwrap_or_default().trim_ascii());
    let kept = head.values(b"cookie").flat_map(|value| value.split(|&byte| byte == b';')).filter(is_other);
    let kept = kept.map(<[u8]>::trim_ascii).collect::<Vec<_>>().join(&b"; "[..]);
    head.remove(b"Cookie");
    if kept.is_empty() { Ok(()) } else { head.add(b"Cookie", &kept).map_err(|_| Stop::Internal) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::get;

    #[test]
    fn an_argument_is_hidden_in_every_spelling() {
        for (target, want) in [
            ("/p?key=1", None),
            ("/p?a=1&key=1&b=2", Some("a=1&b=2")),
            ("/p?%6bey=1&a=%6b", Some("a=%6b")),
            ("/p?key&keys=1", Some("keys=1")),
            ("/p?a=key=1", Some("a=key=1")),
            ("/p", None),
        ] {
            let mut exchange = get(target);
            hide_argument(&mut exchange, b"key").expect("valid");
            assert_eq!(exchange.request.query(), want.map(str::as_bytes), "{target}");
            assert_eq!(exchange.request.path(), b"/p");
        }
    }

    #[test]
    fn credentials_of_the_scheme_that_was_not_accepted_are_hidden() {
        for (value, is_hidden) in
            [("Basic eDp5", true), ("BASIC", true), ("Bearer abc", false), ("Basically x", false), ("Ba", false)]
        {
            let mut exchange = crate::testing::exchange(&format!("GET / HTTP/1.1\nHost: h\nAuthorization: {value}"));
            hide_authorization(&mut exchange, b"Basic");
            assert_eq!(exchange.request.head.value(b"authorization").is_none(), is_hidden, "{value}");
        }
    }

    #[test]
    fn a_credential_is_found_among_the_subprotocols() {
        let offered = OfferedCredential(b"bearer"[..].into());
        for (lines, want, left) in [
            ("Sec-WebSocket-Protocol: bearer, abc.def", Some("abc.def"), None),
            ("Sec-WebSocket-Protocol: chat,bearer ,abc, v2", Some("abc"), Some("chat, v2")),
            ("Sec-WebSocket-Protocol: chat, bearer\nSec-WebSocket-Protocol: abc", Some("abc"), Some("chat")),
            ("Sec-WebSocket-Protocol: chat, bearer", None, Some("chat, bearer")),
            ("Sec-WebSocket-Protocol: chat", None, Some("chat")),
            ("A: b", None, None),
        ] {
            let request =
                |upgrade: &str| crate::testing::exchange(&format!("GET / HTTP/1.1\nHost: h\n{upgrade}{lines}"));
            let mut exchange = request("Connection: upgrade\nUpgrade: websocket\n");
            assert_eq!(offered.shown(&exchange), want.map(str::as_bytes), "{lines}");
            offered.accept(&mut exchange, true).expect("valid");
            assert_eq!(exchange.request.head.value(PROTOCOLS), left.map(str::as_bytes), "{lines}");
            assert_eq!(exchange.chosen_websocket_protocol().is_some(), want.is_some(), "{lines}");
            assert_eq!(offered.shown(&request("")), None, "no WebSocket");
        }
    }
}
