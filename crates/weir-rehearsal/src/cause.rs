//! The causes under which differences are grouped, and what each may mean.

/// What kind of difference it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DifferenceCause {
    Connect,
    Tls,
    TimedOut,
    Closed,
    Status,
    TrailingSlash,
    Redirect,
    Authentication,
    ContentType,
    ContentEncoding,
    Caching,
    Cors,
    Security,
    RateLimit,
    CookieSet,
    CookieAttributes,
    FieldMissing,
    FieldAdded,
    FieldChanged,
    FieldOrder,
    HeadLength,
    BodyMissing,
    BodyKind,
    BodyMembers,
    BodyValues,
    BodyWriting,
    BodyText,
    BodyBytes,
}

/// The identity of a difference: what it concerns, without the values.
pub type DifferenceKey = (DifferenceCause, String);

/// A cause in words.
pub(crate) struct CauseWords {
    /// As `--ignore` takes it.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What the difference may mean, and what changes it in Weir's configuration.
    pub(crate) meaning: &'static str,
}

const fn words(name: &'static str, title: &'static str, meaning: &'static str) -> CauseWords {
    CauseWords { name, title, meaning }
}

impl DifferenceCause {
    pub const ALL: [DifferenceCause; 28] = [
        DifferenceCause::Connect,
        DifferenceCause::Tls,
        DifferenceCause::TimedOut,
        DifferenceCause::Closed,
        DifferenceCause::Status,
        DifferenceCause::TrailingSlash,
        DifferenceCause::Redirect,
        DifferenceCause::Authentication,
        DifferenceCause::ContentType,
        DifferenceCause::ContentEncoding,
        DifferenceCause::Caching,
        DifferenceCause::Cors,
        DifferenceCause::Security,
        DifferenceCause::RateLimit,
        DifferenceCause::CookieSet,
        DifferenceCause::CookieAttributes,
        DifferenceCause::FieldMissing,
        DifferenceCause::FieldAdded,
        DifferenceCause::FieldChanged,
        DifferenceCause::FieldOrder,
        DifferenceCause::HeadLength,
        DifferenceCause::BodyMissing,
        DifferenceCause::BodyKind,
        DifferenceCause::BodyMembers,
        DifferenceCause::BodyValues,
        DifferenceCause::BodyWriting,
        DifferenceCause::BodyText,
        DifferenceCause::BodyBytes,
    ];

    pub fn name(self) -> &'static str {
        self.words().name
    }

    /// Whether the new gateway did not answer.
    pub(crate) fn is_absence(self) -> bool {
        use DifferenceCause::{Closed, Connect, TimedOut, Tls};
        matches!(self, Connect | Tls | TimedOut | Closed)
    }

    pub fn of_name(name: &str) -> Option<DifferenceCause> {
        DifferenceCause::ALL.into_iter().find(|cause| cause.name() == name)
    }

    pub(crate) fn words(self) -> CauseWords {
        // Long, since it is the table of all causes.
        match self {
            DifferenceCause::Connect => words(
                "connect",
                "No connection",
                "The new gateway does not accept connections here: compare the address with `listen` or `listeners`.",
            ),
            DifferenceCause::Tls => words(
                "tls",
                "TLS handshake",
                "The new gateway has no certificate for the host, or no version or cipher in common: see `ssls` and `tls` of the listener.",
            ),
            DifferenceCause::TimedOut => words(
                "time-out",
                "Time-out",
                "The new gateway or an endpoint behind it is slower or not reachable: see `timeout` and `nodes` of the upstream.",
            ),
            DifferenceCause::Closed => words(
                "closed",
                "Connection closed",
                "The connection ended before the answer was complete: an endpoint broke off, or a limit was passed; see the access log.",
            ),
            DifferenceCause::Status => words(
                "status",
                "Status",
                "Another route, a plugin that refuses, or another endpoint: see `uri`, `hosts`, `methods` and `plugins` of the route.",
            ),
            DifferenceCause::TrailingSlash => words(
                "trailing-slash",
                "Trailing slash",
                "One gateway redirects to the path with or without its last slash: add both paths to `uris`, or a `redirect` with `regex_uri`.",
            ),
            DifferenceCause::Redirect => words(
                "redirect",
                "Redirect target",
                "The redirect leads elsewhere: see `redirect`, and `proxy-rewrite` and `response-rewrite` for redirects of the upstream.",
            ),
            DifferenceCause::Authentication => words(
                "authentication",
                "Authentication challenge",
                "Clients are asked for credentials in another way: see the auth plugin of the route and its `realm`.",
            ),
            DifferenceCause::ContentType => words(
                "content-type",
                "Content type",
                "A server adds a type or charset by itself: set `Content-Type` with `response-rewrite`, where clients need it.",
            ),
            DifferenceCause::ContentEncoding => words(
                "content-encoding",
                "Compression",
                "The same content is compressed by one gateway only or in another way: see `gzip` and `brotli`, with `types` and `min_length`.",
            ),
            DifferenceCause::Caching => words(
                "caching",
                "Caching",
                "Clients and caches keep the answer differently: see `proxy-cache`, and `response-rewrite` for `Cache-Control` and `Expires`.",
            ),
            DifferenceCause::Cors => words(
                "cors",
                "Cross-origin access",
                "Browsers may refuse or allow other pages: see the options of `cors`.",
            ),
            DifferenceCause::Security => words(
                "security-fields",
                "Security fields",
                "Browsers protect the page differently: set the field with `response-rewrite`, for all routes in a global rule.",
            ),
            DifferenceCause::RateLimit => words(
                "rate-limit",
                "Rate limit fields",
                "Clients are told another limit: see `limit-count`, `limit-req` and `limit-conn`, and their `show_limit_quota_header`.",
            ),
            DifferenceCause::CookieSet => words(
                "cookie",
                "Cookies",
                "A cookie is set by one gateway only, or has another value: sessions and sticky endpoints may not survive the switch.",
            ),
            DifferenceCause::CookieAttributes => words(
                "cookie-attributes",
                "Cookie attributes",
                "Browsers will send the cookie in other cases: rewrite `Set-Cookie` with `response-rewrite`, or the path with the upstream's.",
            ),
            DifferenceCause::FieldMissing => words(
                "field-missing",
                "Field missing",
                "The old gateway sends the field, the new one does not: set it with `response-rewrite`, if clients need it.",
            ),
            DifferenceCause::FieldAdded => words(
                "field-added",
                "Field added",
                "The new gateway sends a field that the old one did not: remove it with `response-rewrite`, if clients must not see it.",
            ),
            DifferenceCause::FieldChanged => words(
                "field-changed",
                "Field changed",
                "The field has another value: see `response-rewrite`, and `proxy-rewrite` for what the upstream was asked.",
            ),
            DifferenceCause::FieldOrder => words(
                "field-order",
                "Repeated field",
                "The same values come in another order or number of lines: it only matters to clients that read the first or the last one.",
            ),
            DifferenceCause::HeadLength => words(
                "head-length",
                "Length of HEAD",
                "The length of the content that is told without it differs: compression or a plugin that changes content is the usual reason.",
            ),
            DifferenceCause::BodyMissing => words(
                "body-missing",
                "Body missing",
                "One answer has content, the other has none: a plugin answers in place of the upstream, or `response-rewrite` replaces the body.",
            ),
            DifferenceCause::BodyKind => words(
                "body-kind",
                "Kind of body",
                "One answer is JSON and the other is not: it is usually an error page or another upstream; see `upstream_id` of the route.",
            ),
            DifferenceCause::BodyMembers => words(
                "body-members",
                "Members of JSON",
                "Members are missing, added, or of another type: another version answers, or a plugin such as `body-transformer` is missing.",
            ),
            DifferenceCause::BodyValues => words(
                "body-values",
                "Values in JSON",
                "A value differs that is the same in all answers of the old gateway: the upstream was asked something else, or is another one.",
            ),
            DifferenceCause::BodyWriting => words(
                "body-writing",
                "Writing of JSON",
                "The same JSON value is written differently (order, spaces): it only matters to clients that compare bytes, or to signatures.",
            ),
            DifferenceCause::BodyText => words(
                "body-text",
                "Text",
                "The text differs in a place that is the same in all answers of the old gateway: see `response-rewrite` with `filters`.",
            ),
            DifferenceCause::BodyBytes => words(
                "body-bytes",
                "Content",
                "Content that is not compared as text has other bytes or another length: another file, or a part of it, was answered.",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn causes_have_names_of_their_own_and_one_sentence() {
        let names: BTreeSet<&str> = DifferenceCause::ALL.iter().map(|cause| cause.name()).collect();
        assert_eq!(names.len(), DifferenceCause::ALL.len());
        for cause in DifferenceCause::ALL {
            assert_eq!(DifferenceCause::of_name(cause.name()), Some(cause));
            assert!(cause.words().meaning.ends_with('.'), "{}", cause.name());
        }
    }
}
