//! Host names of listeners and of routes.

/// Whether a host name of a listener and one of a route have a host in common. `*.example.com` covers any number of labels in
/// place of the asterisk, but at least one.
pub(super) fn intersect(listener: &str, route: &str) -> bool {
    let (listener, route) = (listener.to_ascii_lowercase(), route.to_ascii_lowercase());
    match (listener.strip_prefix('*'), route.strip_prefix('*')) {
        (None, None) => listener == route,
        (Some(suffix), None) => is_below(&route, suffix),
        (None, Some(suffix)) => is_below(&listener, suffix),
        (Some(one), Some(other)) => one.ends_with(other) || other.ends_with(one),
    }
}

/// The hosts that a host name of a listener and one of a route have in common, in lower case: the narrower of both.
pub(super) fn intersection(listener: &str, route: &str) -> Option<String> {
    let is_narrower = !route.starts_with('*') || listener.starts_with('*') && route.len() >= listener.len();
    intersect(listener, route).then(|| if is_narrower { route } else { listener }.to_ascii_lowercase())
}

/// Whether the host names of a route have a host in common with that of a listener. None are all hosts.
pub(super) fn any_intersects(listener: Option<&str>, route: &[String]) -> bool {
    match listener.filter(|host| !host.is_empty()) {
        Some(listener) => route.is_empty() || route.iter().any(|host| intersect(listener, host)),
        None => true,
    }
}

fn is_below(host: &str, suffix: &str) -> bool {
    host.len() > suffix.len() && host.ends_with(suffix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_intersect_if_a_host_satisfies_both() {
        for (listener, route, expected) in [
            ("a.example.com", "a.example.com", true),
            ("A.example.com", "a.Example.com", true),
            ("a.example.com", "b.example.com", false),
            ("*.example.com", "a.example.com", true),
            ("*.example.com", "a.b.example.com", true),
            ("*.example.com", "example.com", false),
            ("a.example.com", "*.example.com", true),
            ("example.com", "*.example.com", false),
            ("*.example.com", "*.com", true),
            ("*.com", "*.example.com", true),
            ("*.example.com", "*.example.org", false),
            ("*.example.com", "*.badexample.com", false),
        ] {
            assert_eq!(intersect(listener, route), expected, "{listener} and {route}");
        }
    }

    #[test]
    fn the_hosts_in_common_are_the_narrower_name() {
        for (listener, route, expected) in [
            ("A.example.com", "a.example.com", Some("a.example.com")),
            ("*.example.com", "a.example.com", Some("a.example.com")),
            ("a.example.com", "*.example.com", Some("a.example.com")),
            ("*.example.com", "*.com", Some("*.example.com")),
            ("*.com", "*.example.com", Some("*.example.com")),
            ("*.example.com", "*.example.com", Some("*.example.com")),
            ("*.example.com", "example.com", None),
        ] {
            assert_eq!(intersection(listener, route).as_deref(), expected, "{listener} and {route}");
        }
    }

    #[test]
    fn no_host_is_every_host() {
        assert!(any_intersects(None, &["a.example".to_owned()]));
        assert!(any_intersects(Some("a.example"), &[]));
        assert!(!any_intersects(Some("a.example"), &["b.example".to_owned()]));
    }
}
