//! URLs of services.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::Uri;
use http::header::HeaderValue;
use http::uri::{PathAndQuery, Scheme};

/// An absolute `http` or `https` URL without user and password.
#[derive(Clone, Debug)]
pub struct ServiceUrl {
    pub(crate) origin: Arc<UrlOrigin>,
    /// Host and port as written, the value of `Host`.
    pub(crate) authority: HeaderValue,
    /// `/` if the URL has none.
    target: PathAndQuery,
}

/// Scheme, host and port (RFC 6454): requests to one origin share connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UrlOrigin {
    pub is_https: bool,
    /// A name in lower case, or an IP address without brackets.
    pub host: Box<str>,
    pub port: u16,
}

/// Why a text is not a usable URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlError {
    Syntax,
    Scheme,
    /// RFC 9110 §4.2.4: user information in a URL is deprecated, and would end up in logs.
    UserInformation,
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UrlError::Syntax => "it is not an absolute URL, such as `http://service.example:8080`",
            UrlError::Scheme => "its scheme is neither `http` nor `https`",
            UrlError::UserInformation => "it contains a user name; send credentials in a header field",
        })
    }
}

impl std::error::Error for UrlError {}

impl ServiceUrl {
    /// # Errors
    /// The text is not an absolute `http` or `https` URL.
    pub fn parse(url: &str) -> Result<ServiceUrl, UrlError> {
        Self::of(&url.parse().map_err(|_| UrlError::Syntax)?)
    }

    /// # Errors
    /// As for [`ServiceUrl::parse`].
    pub fn of(uri: &Uri) -> Result<ServiceUrl, UrlError> {
        let authority = uri.authority().ok_or(UrlError::Syntax)?;
        let is_https = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(UrlError::Scheme),
        };
        if authority.as_str().contains('@') {
            return Err(UrlError::UserInformation);
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        if host.is_empty() {
            return Err(UrlError::Syntax);
        }
        let port = authority.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        Ok(ServiceUrl {
            origin: Arc::new(UrlOrigin { is_https, host: host.into(), port }),
            authority: HeaderValue::from_str(authority.as_str()).map_err(|_| UrlError::Syntax)?,
            target: uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")),
        })
    }

    /// Scheme, host and port. Logs may contain these, but not path and query, which may contain secrets.
    pub fn origin(&self) -> &UrlOrigin {
        &self.origin
    }

    /// Host and port as written.
    pub fn authority(&self) -> &HeaderValue {
        &self.authority
    }

    /// Path and query; `/` if the URL has none.
    pub fn target(&self) -> &PathAndQuery {
        &self.target
    }
}

/// As `https://[::1]:8443`.
impl fmt::Display for UrlOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

/// A text with `…` in place of user and password of each URL in it. A URL ends with white space or a backtick; a password in it may
/// contain anything else.
pub fn without_users(text: &str) -> Cow<'_, str> {
    if !text.contains("://") || !text.contains('@') {
        return Cow::Borrowed(text);
    }
    let (mut told, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        told.push_str(before);
        let end = after.find(|c: char| c.is_whitespace() || c == '`').unwrap_or(after.len());
        let user = after[..end].rfind('@');
        told.push_str(if user.is_some() { "…" } else { "" });
        rest = &after[user.unwrap_or_default()..];
    }
    told.push_str(rest);
    Cow::Owned(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_an_origin_and_a_target() {
        for (url, origin, target) in [
            ("http://a.example", "http://a.example:80", "/"),
            ("https://A.example/check?b=1", "https://a.example:443", "/check?b=1"),
            ("http://[::1]:9000/x", "http://[::1]:9000", "/x"),
        ] {
            let url = ServiceUrl::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!((url.origin().to_string().as_str(), url.target().as_str()), (origin, target));
        }
    }

    #[test]
    fn users_of_urls_are_left_out_of_a_text() {
        for (text, told) in [
            ("`http://bob:pw@a.example/x` is no URL", "`http://…@a.example/x` is no URL"),
            ("`redis://:p@ss/w@a` and https://u@b c@d", "`redis://…@a` and https://…@b c@d"),
            ("http://a.example is not ops@a.example", "http://a.example is not ops@a.example"),
            ("a@b", "a@b"),
        ] {
            assert_eq!(without_users(text), told);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for (url, error) in [
            ("a.example", UrlError::Scheme),
            ("/check", UrlError::Syntax),
            ("ftp://a.example", UrlError::Scheme),
            ("http://user@a.example/", UrlError::UserInformation),
            ("http://", UrlError::Syntax),
            ("http://a b/", UrlError::Syntax),
        ] {
            assert_eq!(ServiceUrl::parse(url).map(|_| ()), Err(error), "{url}");
        }
    }
}
