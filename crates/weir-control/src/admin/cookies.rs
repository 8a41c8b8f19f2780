//! Cookies of browsers that log in.

use std::time::Duration;

use http::header::{COOKIE, HeaderMap, HeaderValue, SET_COOKIE};

use super::answer::AdminResponse;

/// When browsers send a cookie (RFC 6265bis §5.4.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CookieSite {
    /// With requests that pages of the same site make.
    Strict,
    /// Also when another site leads the browser here, as a provider does at the end of a log-in.
    Lax,
}

/// A cookie by its name. Browsers accept names with `__Host-` only with `Secure`, for the whole host and no other (RFC 6265bis
/// §4.1.3.2), so that no page of a subdomain can set it.
#[derive(Clone, Copy)]
pub(super) struct HostCookie {
    pub(super) name: &'static str,
    pub(super) same_site: CookieSite,
}

impl HostCookie {
    /// Its value in a request.
    pub(super) fn value(self, headers: &HeaderMap) -> Option<&str> {
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(name, _)| *name == self.name).map(|(_, value)| value)
    }

    /// Sets it, to a value of letters, digits and `-._`.
    pub(super) fn set(self, answer: &mut AdminResponse, value: &str, lifetime: Duration) {
        let HostCookie { name, same_site } = self;
        let seconds = lifetime.as_secs();
        let text = format!("{name}={value}; Path=/; Secure; HttpOnly; SameSite={same_site:?}; Max-Age={seconds}");
        let text = HeaderValue::from_str(&text).expect("the values are letters, digits and marks");
        answer.headers_mut().append(SET_COOKIE, text);
    }

    pub(super) fn clear(self, answer: &mut AdminResponse) {
        self.set(answer, "", Duration::ZERO);
    }
}
