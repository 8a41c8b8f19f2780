//! Parameters in the `uri` of a route: `/users/:id/orders` names the second segment `id`.

use std::ops::Range;

/// A `uri` with parameters, matched against canonical paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UriTemplate(Box<str>);

impl UriTemplate {
    /// `None` if no segment is a parameter.
    pub fn parse(uri: &str) -> Option<UriTemplate> {
        uri.split('/').any(|segment| parameter(segment).is_some()).then(|| UriTemplate(uri.into()))
    }
}

/// Whether a canonical path fits the `uri` of a route, in which `:name` stands for a segment and `*` for any text.
pub fn uri_fits(uri: &str, path: &[u8]) -> bool {
    parameters(uri, path).is_some()
}

/// The value of each parameter in a path, in order. `None` if the path does not fit.
fn parameters<'a>(uri: &'a str, path: &'a [u8]) -> Option<Vec<(&'a str, &'a [u8])>> {
    let mut found = Vec::new();
    let mut rest = path;
    let mut segments = uri.split('/').peekable();
    while let Some(segment) = segments.next() {
        // `*` matches text of any length, slashes included, so parameters after it are ambiguous.
        if segment.starts_with('*') {
            return Some(found);
        }
        if let (None, Some(begin)) = (segments.peek(), segment.strip_suffix('*')) {
            return rest.starts_with(begin.as_bytes()).then_some(found);
        }
        let end = memchr::memchr(b'/', rest).unwrap_or(rest.len());
        let (here, after) = rest.split_at(end);
        match parameter(segment) {
            Some(_) if here.is_empty() => return None,
            Some(name) => found.push((name, here)),
            None if here != segment.as_bytes() => return None,
            None => {}
        }
        match (segments.peek(), after.split_first()) {
            (None, None) => return Some(found),
            (Some(_), Some((_, after))) => rest = after,
            _ => return None,
        }
    }
    None
}

/// The parameter's name, if the segment is one.
fn parameter(segment: &str) -> Option<&str> {
    segment.strip_prefix(':').filter(|name| !name.is_empty())
}

/// The parameters of one request.
#[derive(Clone, Debug, Default)]
pub struct UriParameters {
    values: Vec<u8>,
    found: Vec<(Box<str>, Range<usize>)>,
}

impl UriParameters {
    /// The parameters of the first template that fits the path.
    pub fn of(templates: &[UriTemplate], path: &[u8]) -> Option<UriParameters> {
        let mut taken = UriParameters::default();
        for (name, value) in templates.iter().find_map(|template| parameters(&template.0, path))? {
            let start = taken.values.len();
            taken.values.extend_from_slice(value);
            taken.found.push((name.into(), start..taken.values.len()));
        }
        Some(taken)
    }

    /// Names and values, in order.
    pub fn all(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.found.iter().map(|(name, value)| (&**name, &self.values[value.clone()]))
    }

    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.found.iter().find(|(known, _)| **known == *name).map(|(_, value)| &self.values[value.clone()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u18_parameters_are_segments() {
        let named = |uri: &str, path: &str, name: &str| {
            let templates = [UriTemplate::parse(uri).expect("it has parameters")];
            let parameters = UriParameters::of(&templates, path.as_bytes());
            parameters?.get(name).map(|value| String::from_utf8_lossy(value).into_owned())
        };
        for (uri, path, name, want) in [
            ("/users/:id", "/users/7", "id", Some("7")),
            ("/users/:id/orders/:order", "/users/7/orders/9", "order", Some("9")),
            ("/users/:id/*", "/users/7/a/b", "id", Some("7")),
            ("/users/:id", "/users/", "id", None),
            ("/users/:id", "/users/7/8", "id", None),
            ("/users/:id", "/users/7", "name", None),
        ] {
            assert_eq!(named(uri, path, name).as_deref(), want, "{uri} {path}");
        }
        assert_eq!(UriTemplate::parse("/a:b/:"), None);
    }

    #[test]
    fn the_template_whose_begin_of_the_last_segment_fits_is_taken() {
        let templates = ["/:shop/a*", "/:user/b*"].map(|uri| UriTemplate::parse(uri).expect("it has parameters"));
        let parameters = UriParameters::of(&templates, b"/7/b1").expect("the second one fits");
        assert_eq!((parameters.get("shop"), parameters.get("user")), (None, Some(&b"7"[..])));
    }
}
