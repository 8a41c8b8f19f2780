//! Following redirects (RFC 9110 §15.4), if a call allows them.

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST, LOCATION, PROXY_AUTHORIZATION,
};
use http::{HeaderMap, Method, Request, StatusCode};

use crate::error::CallError;
use crate::url::ServiceUrl;

/// The request to send for a redirect; `None` if the response is not a redirect that can be followed automatically.
pub(crate) fn next(
    from: &ServiceUrl,
    request: &Request<Bytes>,
    status: StatusCode,
    headers: &HeaderMap,
) -> Result<Option<(ServiceUrl, Request<Bytes>)>, CallError> {
    let becomes_get = match status {
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => *request.method() == Method::POST,
        StatusCode::SEE_OTHER => *request.method() != Method::HEAD,
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => false,
        _ => return Ok(None),
    };
    let Some(location) = headers.get(LOCATION) else { return Ok(None) };
    let refuse = |reason: &str| CallError::Redirect { origin: from.origin().to_string(), reason: reason.to_owned() };
    let location = location.to_str().map_err(|_| refuse("its `Location` is not a URL"))?;
    let to = resolve(from, location).ok_or_else(|| refuse("its `Location` is not an http or https URL"))?;
    if from.origin().is_https && !to.origin().is_https {
        return Err(refuse("it leads from https to http"));
    }
    let mut next = request.clone();
    *next.uri_mut() = to.target().clone().into();
    let fields = next.headers_mut();
    fields.remove(HOST);
    if from.origin() != to.origin() {
        // Credentials were meant for the first origin.
        for secret in [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION] {
            fields.remove(secret);
        }
    }
    if becomes_get {
        for of_content in [CONTENT_LENGTH, CONTENT_TYPE, CONTENT_ENCODING] {
            fields.remove(of_content);
        }
        *next.method_mut() = Method::GET;
        *next.body_mut() = Bytes::new();
    }
    Ok(Some((to, next)))
}

/// Resolves a reference (RFC 3986 §5.2) of the forms servers send: absolute, `//host/path`, `/path`, `?query`, or `name`.
fn resolve(from: &ServiceUrl, location: &str) -> Option<ServiceUrl> {
    let location = location.split('#').next().unwrap_or_default();
    let origin = from.origin();
    let scheme = if origin.is_https { "https" } else { "http" };
    let authority = from.authority().to_str().ok()?;
    let path = from.target().path();
    let absolute = match location {
        // A scheme ends before anything that can begin a path or a query (RFC 3986 §3.1).
        _ if location.split(['/', '?']).next().is_some_and(|start| start.ends_with(':')) => location.to_owned(),
        _ if location.starts_with("//") => format!("{scheme}:{location}"),
        _ if location.starts_with('/') => format!("{scheme}://{authority}{location}"),
        _ if location.starts_with('?') => format!("{scheme}://{authority}{path}{location}"),
        _ => format!("{scheme}://{authority}{}{location}", &path[..=path.rfind('/').unwrap_or(0)]),
    };
    ServiceUrl::parse(&absolute).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_resolved_against_the_url_that_was_asked() {
        let from = ServiceUrl::parse("https://a.example:8443/b/c?d").expect("a URL");
        for (location, expected) in [
            ("https://z.example/x", "https://z.example:443/x"),
            ("//z.example/x#part", "https://z.example:443/x"),
            ("/x?y", "https://a.example:8443/x?y"),
            ("?y", "https://a.example:8443/b/c?y"),
            ("x", "https://a.example:8443/b/x"),
            ("/x?next=https://b/", "https://a.example:8443/x?next=https://b/"),
        ] {
            let to = resolve(&from, location).expect(location);
            assert_eq!(format!("{}{}", to.origin(), to.target()), expected, "{location}");
        }
        assert!(resolve(&from, "ftp://a/").is_none());
    }

    #[test]
    fn credentials_stay_with_their_origin_and_a_post_becomes_a_get() {
        let from = ServiceUrl::parse("http://a.example/login").expect("a URL");
        let request =
            Request::post("/login").header(AUTHORIZATION, "secret").body(Bytes::from("x")).expect("a request");
        let headers = |to: &str| HeaderMap::from_iter([(LOCATION, to.parse().expect("a value"))]);
        let follow =
            |status, to: &str| next(&from, &request, status, &headers(to)).expect("allowed").expect("a redirect").1;
        let same = follow(StatusCode::TEMPORARY_REDIRECT, "/b");
        assert!(same.method() == Method::POST && same.headers().contains_key(AUTHORIZATION) && same.body() == "x");
        let other = follow(StatusCode::SEE_OTHER, "http://b.example/");
        assert!(other.method() == Method::GET && other.headers().is_empty() && other.body().is_empty());
        assert!(next(&from, &request, StatusCode::OK, &headers("/b")).expect("an answer").is_none());
    }
}
