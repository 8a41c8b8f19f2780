//! The state that the browser keeps in cookies: a session, or a login that has begun. It is encrypted and authenticated.

use std::collections::BTreeMap;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{hmac, rand};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_plugin::{Exchange, Stop};

use crate::auth::credentials::hide_cookies;

/// The session of a user who has logged in. Times are seconds since 1970.
#[derive(Serialize, Deserialize)]
pub(super) struct OpenidSession {
    pub access_token: String,
    pub refresh_token: Option<String>,
    /// The encoded ID token, if it is forwarded to the upstream.
    pub raw: Option<String>,
    /// The claims of the ID token.
    pub identity: Map<String, Value>,
    pub userinfo: Option<Map<String, Value>>,
    pub scope: String,
    /// When the access token expires.
    pub until_s: u64,
    pub began_s: u64,
}

/// A login for which the browser has been redirected to the provider.
#[derive(Serialize, Deserialize)]
pub(super) struct PendingLogin {
    pub state: String,
    pub nonce: String,
    /// The code verifier (RFC 7636 §4.1).
    pub verifier: String,
    /// The path and query of the request that started the login.
    pub target: String,
    pub at_s: u64,
}

/// Encrypts the values of cookies, with a secret that all gateways of a site share.
pub(super) struct Sealer {
    key: LessSafeKey,
    /// The client id; part of the authenticated data, so that a value for one client cannot be used with another.
    client: String,
}

impl Sealer {
    pub(super) fn new(secret: &str, client: &str) -> Sealer {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let derived = hmac::sign(&secret, b"weir: cookies of openid-connect, AES-256-GCM");
        let key = UnboundKey::new(&AES_256_GCM, derived.as_ref()).expect("SHA-256 has as many bytes as the key");
        Sealer { key: LessSafeKey::new(key), client: client.to_owned() }
    }

    fn aad(&self, purpose: &str) -> Aad<Vec<u8>> {
        Aad::from(format!("{purpose} {}", self.client).into_bytes())
    }

    /// Encrypts `what`; it can only be opened with the same `purpose`.
    pub(super) fn seal(&self, purpose: &str, what: &impl Serialize) -> Result<String, Stop> {
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).map_err(|_| Stop::Internal)?;
        let mut text = serde_json::to_vec(what).map_err(|_| Stop::Internal)?;
        let sealed =
            self.key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), self.aad(purpose), &mut text);
        sealed.map_err(|_| Stop::Internal)?;
        Ok(URL_SAFE_NO_PAD.encode([&nonce[..], &text].concat()))
    }

    /// `None` if it was not sealed with this key, client and purpose.
    pub(super) fn open<T: DeserializeOwned>(&self, purpose: &str, sealed: &str) -> Option<T> {
        let sealed = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (nonce, text) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut text = text.to_vec();
        let text = self.key.open_in_place(nonce, self.aad(purpose), &mut text).ok()?;
        serde_json::from_slice(text).ok()
    }
}

/// The attributes of the cookies.
pub(super) struct Cookies {
    pub name: String,
    pub path: String,
    pub domain: Option<String>,
    /// If `None`, `Secure` is set for requests over TLS.
    pub secure: Option<bool>,
    pub http_only: bool,
    /// `Strict`, `Lax` or `None`; without a value, the attribute is left out.
    pub same_site: Option<&'static str>,
}

/// The most bytes of a value in one cookie: browsers support 4,096 bytes, attributes included (RFC 6265 §6.1).
const PART: usize = 3600;
/// The most cookies of a session: a larger one would not fit into the head of a request.
const MAX_PARTS: usize = 6;

impl Cookies {
    fn part(&self, index: usize) -> String {
        if index == 0 { self.name.clone() } else { format!("{}_{index}", self.name) }
    }

    /// The value of the first cookie of this name in the request.
    pub(super) fn value(exchange: &Exchange, name: &str) -> Option<String> {
        let pairs = exchange.request.head.values(b"cookie").flat_map(|value| value.split(|&byte| byte == b';'));
        let mut values = pairs.filter_map(|pair| {
            let (key, value) = str::from_utf8(pair).ok()?.split_once('=')?;
            (key.trim_ascii() == name).then(|| value.trim_ascii().to_owned())
        });
        values.next()
    }

    /// The sealed session, joined from its cookies.
    pub(super) fn read(&self, exchange: &Exchange) -> Option<String> {
        let mut whole = Cookies::value(exchange, &self.name)?;
        for index in 1..MAX_PARTS {
            let Some(part) = Cookies::value(exchange, &self.part(index)) else { break };
            whole += &part;
        }
        Some(whole)
    }

    /// The beginning of the names of cookies for logins.
    pub(super) fn login_prefix(&self) -> String {
        format!("{}_login_", self.name)
    }

    /// The names and values of the cookies for logins in the request, each name once.
    pub(super) fn logins(&self, exchange: &Exchange) -> BTreeMap<String, String> {
        let prefix = self.login_prefix();
        let pairs = exchange.request.head.values(b"cookie").flat_map(|value| value.split(|&byte| byte == b';'));
        let login = |pair| {
            let (name, value) = str::from_utf8(pair).ok()?.split_once('=')?;
            let name = name.trim_ascii();
            // What the gateway has set, and nothing that could change the attributes of a cookie.
            let state = name.strip_prefix(&prefix)?;
            let is_ours = state.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
            is_ours.then(|| (name.to_owned(), value.trim_ascii().to_owned()))
        };
        pairs.filter_map(login).collect()
    }

    /// Removes the cookies of the session and of logins before the request is forwarded.
    pub(super) fn hide(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let prefix = self.login_prefix();
        let parts: Vec<String> = (0..MAX_PARTS).map(|index| self.part(index)).collect();
        hide_cookies(exchange, |name| {
            name.starts_with(prefix.as_bytes()) || parts.iter().any(|part| part.as_bytes() == name)
        })
    }

    /// Sets the cookies of a session; an empty session deletes them.
    pub(super) fn write(&self, exchange: &mut Exchange, session: &str, for_s: u64) -> Result<(), Stop> {
        if session.len() > PART * MAX_PARTS {
            return Err(Stop::Internal);
        }
        let mut rest = session;
        for index in 0..MAX_PARTS {
            let (part, after) = rest.split_at(rest.len().min(PART));
            rest = after;
            let name = self.part(index);
            // A cookie that is left over from a longer session is deleted, so that it is not read as a part of this one.
            if !part.is_empty() || Cookies::value(exchange, &name).is_some() {
                let for_s = if part.is_empty() { 0 } else { for_s };
                self.set(exchange, &name, part, for_s, self.same_site)?;
            }
        }
        Ok(())
    }

    /// Sets the cookie of a login that has begun. The browser returns from another site, so `Strict` is relaxed to `Lax`.
    pub(super) fn set_login_cookie(
        &self,
        exchange: &mut Exchange,
        name: &str,
        value: &str,
        for_s: u64,
    ) -> Result<(), Stop> {
        let same_site = self.same_site.map(|same_site| if same_site == "Strict" { "Lax" } else { same_site });
        self.set(exchange, name, value, for_s, same_site)
    }

    fn set(
        &self,
        exchange: &mut Exchange,
        name: &str,
        value: &str,
        for_s: u64,
        same_site: Option<&str>,
    ) -> Result<(), Stop> {
        let mut cookie = format!("{name}={value}; Path={}; Max-Age={for_s}", self.path);
        if let Some(domain) = &self.domain {
            cookie += &format!("; Domain={domain}");
        }
        if self.secure.unwrap_or(exchange.client.tls) {
            cookie += "; Secure";
        }
        if self.http_only {
            cookie += "; HttpOnly";
        }
        if let Some(same_site) = same_site {
            cookie += &format!("; SameSite={same_site}");
        }
        exchange.response.head.add(b"Set-Cookie", cookie.as_bytes()).map_err(|_| Stop::Internal)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{exchange, get};

    #[test]
    fn sealed_value_opens_only_for_its_purpose_and_keys() {
        let sealer = Sealer::new("a secret of sixteen", "us");
        let what = json!({"a": 1});
        let sealed = sealer.seal("session", &what).expect("sealed");
        assert_eq!(sealer.open("session", &sealed), Some(what.clone()));
        assert_ne!(sealed, sealer.seal("session", &what).expect("sealed"), "never the same twice");
        let none: Option<Value> = None;
        assert_eq!(sealer.open("login", &sealed), none);
        assert_eq!(Sealer::new("a secret of sixteen", "them").open("session", &sealed), none);
        assert_eq!(Sealer::new("another secret of sixteen", "us").open("session", &sealed), none);
        for at in [0, 20, sealed.len() - 1] {
            let mut changed = sealed.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(sealer.open("session", str::from_utf8(&changed).expect("ASCII")), none);
        }
        assert_eq!(sealer.open("session", ""), none);
    }

    #[test]
    fn a_large_session_comes_in_parts() {
        let same_site = Some("Lax");
        let cookies =
            Cookies { name: "s".into(), path: "/".into(), domain: None, secure: None, http_only: true, same_site };
        let mut first = get("/");
        let session = "ab".repeat(4000);
        cookies.write(&mut first, &session, 60).expect("written");
        let sent: Vec<String> = first
            .response
            .head
            .values(b"set-cookie")
            .map(|value| String::from_utf8_lossy(value).into_owned())
            .collect();
        assert_eq!(sent.len(), 3);
        assert!(sent[1].starts_with("s_1=ab") && sent[1].ends_with("; Path=/; Max-Age=60; HttpOnly; SameSite=Lax"));
        let pairs: Vec<&str> = sent.iter().map(|cookie| cookie.split(';').next().expect("a pair")).collect();
        let mut next =
            exchange(&format!("GET / HTTP/1.1\nHost: h\nCookie: a=b; s_login_a-_9=x; {}; s_log=1", pairs.join("; ")));
        assert_eq!(cookies.read(&next), Some(session));
        cookies.write(&mut next, "short", 60).expect("written");
        assert_eq!(
            next.response
                .head
                .values(b"set-cookie")
                .filter(|value| value.windows(9).any(|w| w == b"Max-Age=0"))
                .count(),
            2
        );
        cookies.hide(&mut next).expect("hidden");
        assert_eq!(next.request.head.value(b"cookie"), Some(&b"a=b; s_log=1"[..]));
    }
}
