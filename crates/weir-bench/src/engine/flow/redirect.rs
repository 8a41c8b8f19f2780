//! Where a redirect leads.

use super::template::{fit_target, split_url};

/// A request that a redirect asks for (RFC 9110 §15.4).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RedirectedRequest {
    pub(super) target: String,
    /// The method and the content stay; otherwise it is a GET without content.
    pub(super) keeps_method: bool,
}

/// Whether a status asks for another request, if there is a `Location`.
pub(super) fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

/// The request that follows an answer. `origin` is the scheme and authority of the request, `target` its path and query. The
/// error says why the redirect is not followed.
pub(super) fn redirected(
    status: u16,
    method: &str,
    location: &str,
    origin: &str,
    target: &str,
) -> Result<RedirectedRequest, String> {
    let location = location.split_once('#').map_or(location, |(before, _)| before).trim();
    let scheme = origin.split_once("//").map_or(origin, |(scheme, _)| scheme);
    let absolute = if location.starts_with("//") { format!("{scheme}{location}") } else { location.to_owned() };
    let reference = if is_absolute(&absolute) {
        let (there, rest) = split_url(&absolute);
        if normal(there) != normal(origin) {
            return Err(format!("it leads to {absolute}, and only those within {origin} are followed"));
        }
        if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") }
    } else {
        location.to_owned()
    };
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    let next = match reference.as_str() {
        "" => target.to_owned(),
        rooted if rooted.starts_with('/') => rooted.to_owned(),
        query if query.starts_with('?') => format!("{path}{query}"),
        relative => without_dots(&format!("{}/{relative}", path.rsplit_once('/').map_or("", |(folder, _)| folder))),
    };
    let keeps_method = matches!(status, 307 | 308) || method == "HEAD" || method == "GET";
    Ok(RedirectedRequest { target: fit_target(&next), keeps_method })
}

/// Whether a reference begins with a scheme and an authority (RFC 3986 §4.3).
fn is_absolute(reference: &str) -> bool {
    reference.split_once("://").is_some_and(|(scheme, _)| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    })
}

/// A scheme and authority in lower case and without the port of the scheme.
fn normal(origin: &str) -> String {
    let origin = origin.to_ascii_lowercase();
    let default = if origin.starts_with("https:") { ":443" } else { ":80" };
    origin.strip_suffix(default).map_or(origin.clone(), str::to_owned)
}

/// A path without segments `.` and `..` (RFC 3986 §5.2.4).
fn without_dots(target: &str) -> String {
    let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => drop(segments.pop()),
            other => segments.push(other),
        }
    }
    let ends_in_folder = path.ends_with("/.") || path.ends_with("/..");
    let slash = if ends_in_folder && !segments.is_empty() { "/" } else { "" };
    let query = query.map_or(String::new(), |query| format!("?{query}"));
    format!("/{}{slash}{query}", segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(location: &str) -> Result<String, String> {
        redirected(302, "GET", location, "http://a:1", "/x/y?z").map(|next| next.target)
    }

    #[test]
    fn locations_are_resolved() {
        for (location, expected) in [
            ("/b?c#d", "/b?c"),
            ("http://a:1/b", "/b"),
            ("HTTP://A:1", "/"),
            ("http://a:1?q", "/?q"),
            ("//a:1/b", "/b"),
            ("/login?next=https://app.example/", "/login?next=https://app.example/"),
            ("login?next=https://app.example/", "/x/login?next=https://app.example/"),
            ("?q", "/x/y?q"),
            ("w", "/x/w"),
            ("../w/./v?q", "/w/v?q"),
            ("..", "/"),
            ("/with space\r\n", "/with%20space"),
        ] {
            assert_eq!(target(location).as_deref(), Ok(expected), "{location}");
        }
    }

    #[test]
    fn port_of_the_scheme_is_the_same_as_none() {
        for (origin, location) in [("http://a", "http://A:80/b"), ("https://a:443", "https://a/b")] {
            let next = redirected(302, "GET", location, origin, "/");
            assert_eq!(next.map(|next| next.target).as_deref(), Ok("/b"), "{location}");
        }
        assert!(redirected(302, "GET", "http://a:443/b", "https://a", "/").is_err());
    }

    #[test]
    fn other_origins_are_not_followed() {
        for location in ["http://a:11/b", "https://a:1/b", "//b/c", "http://a:1@evil/"] {
            assert!(target(location).is_err_and(|problem| problem.contains("within http://a:1")), "{location}");
        }
    }

    #[test]
    fn method_stays_where_the_status_says_so() {
        let keeps =
            |status, method| redirected(status, method, "/b", "http://a", "/").expect("it is followed").keeps_method;
        assert_eq!(
            [keeps(302, "POST"), keeps(303, "PUT"), keeps(307, "POST"), keeps(308, "POST")],
            [false, false, true, true]
        );
        assert_eq!([keeps(301, "GET"), keeps(303, "HEAD")], [true, true]);
    }
}
