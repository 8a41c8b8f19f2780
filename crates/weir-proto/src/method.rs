//! Request methods: the set that routes and metrics distinguish, and [`Method::Other`].

/// A request method. The name of an [`Method::Other`] is in the request head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Delete,
    Patch,
    Options,
    Connect,
    Trace,
    Purge,
    Other,
}

impl Method {
    /// Parses a method; case-sensitive (RFC 9110 §9.1): `get` is [`Method::Other`].
    pub fn parse(name: &[u8]) -> Method {
        match name {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"PATCH" => Method::Patch,
            b"OPTIONS" => Method::Options,
            b"CONNECT" => Method::Connect,
            b"TRACE" => Method::Trace,
            b"PURGE" => Method::Purge,
            _ => Method::Other,
        }
    }

    /// The name on the wire; `None` for [`Method::Other`], whose name is in the head.
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
            Method::Patch => "PATCH",
            Method::Options => "OPTIONS",
            Method::Connect => "CONNECT",
            Method::Trace => "TRACE",
            Method::Purge => "PURGE",
            Method::Other => return None,
        })
    }

    /// Sending the request twice has the same effect as sending it once (RFC 9110 §9.2.2), so it may be retried.
    pub fn is_idempotent(self) -> bool {
        matches!(self, Method::Get | Method::Head | Method::Put | Method::Delete | Method::Options | Method::Trace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_case_matters() {
        for name in ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", "PURGE"] {
            assert_eq!(Method::parse(name.as_bytes()).name(), Some(name));
        }
        assert_eq!(Method::parse(b"get"), Method::Other);
        assert_eq!(Method::parse(b"M-SEARCH"), Method::Other);
    }

    #[test]
    fn post_and_unknown_methods_are_not_idempotent() {
        assert!(!Method::Post.is_idempotent());
        assert!(!Method::Patch.is_idempotent());
        assert!(!Method::Other.is_idempotent());
        assert!(Method::Put.is_idempotent());
    }
}
