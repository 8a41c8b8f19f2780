//! The cookies of one client (RFC 6265), kept for the host that set them.

use std::time::{SystemTime, UNIX_EPOCH};

/// The most cookies of a client, as RFC 6265 §6.1 asks for one domain.
const MOST_COOKIES: usize = 50;
/// The longest cookie: name and value, in bytes.
const LONGEST_COOKIE: usize = 4096;

/// The longest value of an attribute, in bytes; longer ones are ignored, as browsers do.
const LONGEST_ATTRIBUTE: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct CookieJar(Vec<KeptCookie>);

#[derive(Debug)]
struct KeptCookie {
    host: usize,
    name: String,
    value: String,
    path: String,
    is_secure: bool,
    /// Unix time in seconds.
    expires: Option<u64>,
}

impl CookieJar {
    /// Takes a `Set-Cookie` of an answer to a request for `target` at a host. What is not a cookie is ignored, as RFC 6265
    /// §5.2 says.
    pub(super) fn take(&mut self, host: usize, target: &str, text: &str) {
        let mut parts = text.split(';').map(str::trim);
        let Some((name, value)) = parts.next().and_then(|pair| pair.split_once('=')) else { return };
        let (name, value) = (name.trim(), value.trim());
        if name.is_empty() || name.len() + value.len() > LONGEST_COOKIE {
            return;
        }
        let now = unix_seconds();
        let mut cookie = KeptCookie {
            host,
            name: name.to_owned(),
            value: value.to_owned(),
            path: default_path(target).to_owned(),
            is_secure: false,
            expires: None,
        };
        let mut max_age = None;
        for attribute in parts {
            let (key, value) = attribute.split_once('=').unwrap_or((attribute, ""));
            if value.len() > LONGEST_ATTRIBUTE {
                continue;
            }
            match key.trim().to_ascii_lowercase().as_str() {
                "path" if value.starts_with('/') => value.clone_into(&mut cookie.path),
                "secure" => cookie.is_secure = true,
                "max-age" => max_age = value.trim().parse::<i64>().ok(),
                "expires" => {
                    // Many servers write hyphens between day, month and a year of four digits.
                    let (text, spaced) = (value.trim(), value.trim().replace('-', " "));
                    let at = httpdate::parse_http_date(text).or_else(|_| httpdate::parse_http_date(&spaced)).ok();
                    cookie.expires = at.map(|at| at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()));
                }
                _ => {}
            }
        }
        if let Some(age) = max_age {
            cookie.expires = Some(u64::try_from(age).map_or(0, |age| now.saturating_add(age)));
        }
        let is_same = |known: &KeptCookie| known.host == host && known.name == cookie.name && known.path == cookie.path;
        self.0.retain(|known| !is_same(known) && known.expires.is_none_or(|at| at > now));
        if cookie.expires.is_none_or(|at| at > now) {
            if self.0.len() == MOST_COOKIES {
                self.0.remove(0);
            }
            self.0.push(cookie);
        }
    }

    /// The value of the field `Cookie` for a request; empty without cookies.
    pub(super) fn field(&self, host: usize, target: &str, is_tls: bool) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let (now, path) = (unix_seconds(), path_of(target));
        let mut fitting: Vec<&KeptCookie> = self
            .0
            .iter()
            .filter(|cookie| cookie.host == host && (is_tls || !cookie.is_secure) && covers(&cookie.path, path))
            .filter(|cookie| cookie.expires.is_none_or(|at| at > now))
            .collect();
        // Longer paths first (RFC 6265 §5.4); the sort keeps the order in which cookies came.
        fitting.sort_by_key(|cookie| std::cmp::Reverse(cookie.path.len()));
        let pairs: Vec<String> = fitting.iter().map(|cookie| format!("{}={}", cookie.name, cookie.value)).collect();
        pairs.join("; ")
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn path_of(target: &str) -> &str {
    target.split_once('?').map_or(target, |(path, _)| path)
}

/// The path of a cookie that names none (RFC 6265 §5.1.4).
fn default_path(target: &str) -> &str {
    match path_of(target).rfind('/') {
        None | Some(0) => "/",
        Some(last) => &target[..last],
    }
}

/// Whether a cookie of `covering` is sent to `path` (RFC 6265 §5.1.4).
fn covers(covering: &str, path: &str) -> bool {
    path.strip_prefix(covering).is_some_and(|rest| rest.is_empty() || covering.ends_with('/') || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_sent_where_they_belong() {
        let mut jar = CookieJar::default();
        jar.take(0, "/a/login?x", "session=1; HttpOnly");
        jar.take(0, "/", "all=2; Path=/; Secure");
        jar.take(1, "/", "other=3");
        assert_eq!(jar.field(0, "/a/b?c", true), "session=1; all=2");
        assert_eq!(jar.field(0, "/a", false), "session=1");
        assert_eq!(jar.field(0, "/ab", false), "");
        assert_eq!(jar.field(1, "/any", false), "other=3");
    }

    #[test]
    fn cookies_are_replaced_and_removed() {
        let mut jar = CookieJar::default();
        jar.take(0, "/", "a=1");
        jar.take(0, "/", "a=2; Max-Age=60");
        assert_eq!(jar.field(0, "/", false), "a=2");
        jar.take(0, "/", "a=; Max-Age=0");
        jar.take(0, "/", "b=1; Expires=Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(jar.field(0, "/", false), "");
        jar.take(0, "/", "c=1; Expires=Fri, 31-Dec-9999 23:59:59 GMT");
        jar.take(0, "/", "d=1; Expires=Thu, 01-Jan-1970 00:00:00 GMT");
        jar.take(0, "/", "e=1; Expires=Thursday, 01-Jan-70 00:00:00 GMT");
        assert_eq!(jar.field(0, "/", false), "c=1");
    }

    #[test]
    fn jar_has_its_bounds() {
        let mut jar = CookieJar::default();
        jar.take(0, "/", &format!("big={}", "x".repeat(LONGEST_COOKIE)));
        jar.take(0, "/", "no cookie");
        jar.take(0, "/", &format!("long=1; Path=/{}", "x".repeat(LONGEST_ATTRIBUTE)));
        assert!(jar.0.iter().all(|cookie| cookie.path == "/"), "{jar:?}");
        jar.take(0, "/", "long=; Max-Age=0");
        assert_eq!(jar.field(0, "/", false), "");
        (0..60).for_each(|number| jar.take(0, "/", &format!("c{number}=1")));
        let sent = jar.field(0, "/", false);
        assert!(sent.split("; ").count() == MOST_COOKIES && sent.contains("c59=1") && !sent.contains("c9=1"), "{sent}");
    }
}
