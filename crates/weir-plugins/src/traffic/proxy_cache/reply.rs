//! What a client gets of a stored response: all of it, a part, or only that it has it already (RFC 9111 §4.3.2, RFC 9110 §13
//! and §14).

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use weir_plugin::proto::RequestHead;
use weir_plugin::{ReplyField, ReplyHead};

use super::freshness::{date, parse_date, value};
use super::zone::StoredHead;

/// How a response came about: the values of `Apisix-Cache-Status`, as nginx and Apache APISIX have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheOutcome {
    Hit,
    /// Nothing was stored.
    Miss,
    /// A stored response was too old, and another one was received.
    Expired,
    /// A stored response that is too old was used: the upstream has failed, or the client accepts it.
    Stale,
    /// The same, while a newer one is requested.
    Updating,
    /// The upstream has confirmed a stored response.
    Revalidated,
    /// A condition of the configuration, or the request, did not allow a stored response.
    Bypass,
}

impl CacheOutcome {
    pub(super) const ALL: [CacheOutcome; 7] = {
        use CacheOutcome::{Bypass, Expired, Hit, Miss, Revalidated, Stale, Updating};
        [Hit, Miss, Expired, Stale, Updating, Revalidated, Bypass]
    };

    pub(super) fn name(self) -> &'static str {
        match self {
            CacheOutcome::Hit => "HIT",
            CacheOutcome::Miss => "MISS",
            CacheOutcome::Expired => "EXPIRED",
            CacheOutcome::Stale => "STALE",
            CacheOutcome::Updating => "UPDATING",
            CacheOutcome::Revalidated => "REVALIDATED",
            CacheOutcome::Bypass => "BYPASS",
        }
    }

    /// The value of `Cache-Status` (RFC 9211). `seconds_left` is how long the response is still fresh.
    fn cache_status(self, seconds_left: i64) -> String {
        match self {
            CacheOutcome::Hit | CacheOutcome::Stale | CacheOutcome::Updating => {
                format!("Weir; hit; ttl={seconds_left}")
            }
            CacheOutcome::Miss => "Weir; fwd=miss".to_owned(),
            CacheOutcome::Expired => "Weir; fwd=stale".to_owned(),
            CacheOutcome::Revalidated => format!("Weir; fwd=stale; fwd-status=304; ttl={seconds_left}"),
            CacheOutcome::Bypass => "Weir; fwd=bypass".to_owned(),
        }
    }
}

/// What of a stored response is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReplyPart {
    Whole,
    /// The client has it: 304.
    NotModified,
    /// These bytes of the content: 206.
    Bytes(Range<u64>),
    /// The client asks for bytes that the content does not have: 416.
    Unsatisfiable,
}

/// The most fields that a response has besides those of the stored one.
const MOST_ADDED: usize = 5;

/// What of a stored response the client asks for. Without a length, ranges are ignored.
pub(super) fn part_for(request: &RequestHead, head: &ReplyHead, length: Option<u64>) -> ReplyPart {
    // Preconditions and ranges apply to what would be a success (RFC 9110 §13.2.1).
    if head.status != 200 {
        return ReplyPart::Whole;
    }
    if is_known(request, head) {
        return ReplyPart::NotModified;
    }
    let (Some(range), Some(length)) = (request.head.value(b"range"), length) else { return ReplyPart::Whole };
    let is_current = request.head.value(b"if-range").is_none_or(|condition| is_current(condition, head));
    if is_current && request.client_method() == weir_plugin::proto::Method::Get {
        range_of(range, length)
    } else {
        ReplyPart::Whole
    }
}

/// Whether `If-None-Match`, or without it `If-Modified-Since`, says that the client has the response.
fn is_known(request: &RequestHead, head: &ReplyHead) -> bool {
    let mut tags = request.head.values(b"if-none-match").flat_map(|value| value.split(|byte| *byte == b',')).peekable();
    if tags.peek().is_some() {
        let weak = |tag: &[u8]| tag.strip_prefix(b"W/").unwrap_or(tag).to_vec();
        let own = value(head, b"etag").map(weak);
        return tags.map(<[u8]>::trim_ascii).any(|tag| tag == b"*" || own.as_deref() == Some(&weak(tag)));
    }
    let since = request.head.value(b"if-modified-since").and_then(parse_date);
    let modified = date(head, b"last-modified").flatten();
    since.zip(modified).is_some_and(|(since, modified)| modified <= since)
}

/// Whether the validator of `If-Range` is that of the response, in the strong comparison.
fn is_current(condition: &[u8], head: &ReplyHead) -> bool {
    let name: &[u8] = if condition.ends_with(b"\"") { b"etag" } else { b"last-modified" };
    !condition.starts_with(b"W/") && value(head, name) == Some(condition)
}

/// The part that `Range` asks for. A server may ignore what it does not support (RFC 9110 §14.2): other units, several ranges.
pub(super) fn range_of(range: &[u8], length: u64) -> ReplyPart {
    let text = std::str::from_utf8(range).ok().and_then(|text| text.trim().strip_prefix("bytes="));
    let Some((first, last)) = text.and_then(|text| text.split_once('-')) else { return ReplyPart::Whole };
    let number =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let (start, end) = match (first, last, number(first), number(last)) {
        ("", _, _, Some(suffix)) => (length.saturating_sub(suffix), length),
        (_, "", Some(start), _) => (start, length),
        (_, _, Some(start), Some(last)) if start <= last => (start, last.saturating_add(1).min(length)),
        _ => return ReplyPart::Whole,
    };
    if start < end { ReplyPart::Bytes(start..end) } else { ReplyPart::Unsatisfiable }
}

/// The head of the response to one client.
pub(super) struct ClientHead {
    /// The stored head, if the client gets all of its fields: they are not copied for each response.
    pub shared: Option<Arc<ReplyHead>>,
    /// The status, and the other fields.
    pub own: ReplyHead,
}

/// The head of the response to one client.
pub(super) fn head_for(
    stored: &StoredHead,
    part: &ReplyPart,
    length: Option<u64>,
    (outcome, now): (CacheOutcome, Duration),
    hides_control: bool,
) -> ClientHead {
    let age = stored.age.at(now);
    let shared = (*part != ReplyPart::NotModified && !hides_control).then(|| Arc::clone(&stored.head));
    let mut fields = match &shared {
        Some(_) => Vec::with_capacity(MOST_ADDED),
        None => stored.head.fields.clone(),
    };
    let mut add = |name: &[u8], value: &str| fields.push((name.into(), value.as_bytes().into()));
    add(b"age", itoa::Buffer::new().format(age.as_secs()));
    let status = match part {
        ReplyPart::Whole => stored.head.status,
        ReplyPart::NotModified => 304,
        ReplyPart::Bytes(_) => 206,
        ReplyPart::Unsatisfiable => 416,
    };
    let sent = match (part, length) {
        (ReplyPart::Bytes(bytes), Some(length)) => {
            add(b"content-range", &format!("bytes {}-{}/{length}", bytes.start, bytes.end - 1));
            Some(bytes.end - bytes.start)
        }
        (ReplyPart::Unsatisfiable, Some(length)) => {
            add(b"content-range", &format!("bytes */{length}"));
            Some(0)
        }
        (ReplyPart::Whole, length) => length.filter(|_| !matches!(status, 204 | 304)),
        _ => None,
    };
    if let Some(sent) = sent {
        add(b"content-length", itoa::Buffer::new().format(sent));
    }
    if *part == ReplyPart::NotModified {
        fields.retain(|(name, _)| !name.starts_with(b"content-") || **name == *b"content-location");
    }
    let left = stored.lifetime.fresh.as_secs() as i64 - age.as_secs() as i64;
    ClientHead { shared, own: marked(ReplyHead { status, fields }, outcome, left, hides_control) }
}

/// A head with the fields that tell how it came about.
pub(super) fn marked(mut head: ReplyHead, outcome: CacheOutcome, seconds_left: i64, hides_control: bool) -> ReplyHead {
    if hides_control {
        head.fields.retain(|(name, _)| !matches!(&**name, b"cache-control" | b"expires"));
    }
    let field = |name: &[u8], value: &str| -> ReplyField { (name.into(), value.as_bytes().into()) };
    head.fields.push(field(b"apisix-cache-status", outcome.name()));
    head.fields.push(field(b"cache-status", &outcome.cache_status(seconds_left)));
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::exchange;

    fn head(status: u16, fields: &[(&str, &str)]) -> ReplyHead {
        let field = |(name, value): &(&str, &str)| (name.as_bytes().into(), value.as_bytes().into());
        ReplyHead { status, fields: fields.iter().map(field).collect() }
    }

    fn part(fields: &str) -> ReplyPart {
        let head = head(200, &[("etag", "\"a\""), ("last-modified", "Tue, 15 Nov 1994 12:00:00 GMT")]);
        part_for(&exchange(&format!("GET / HTTP/1.1\nHost: t\n{fields}")).request, &head, Some(10))
    }

    #[test]
    fn clients_that_have_the_response_get_304() {
        for (fields, want) in [
            ("If-None-Match: \"a\"", ReplyPart::NotModified),
            ("If-None-Match: \"b\", W/\"a\"", ReplyPart::NotModified),
            ("If-None-Match: *", ReplyPart::NotModified),
            ("If-None-Match: \"b\"\nIf-Modified-Since: Tue, 15 Nov 1994 12:00:00 GMT", ReplyPart::Whole),
            ("If-Modified-Since: Tue, 15 Nov 1994 12:00:00 GMT", ReplyPart::NotModified),
            ("If-Modified-Since: Tue, 15 Nov 1994 11:59:59 GMT", ReplyPart::Whole),
            ("If-Modified-Since: yesterday", ReplyPart::Whole),
            ("", ReplyPart::Whole),
        ] {
            assert_eq!(part(fields), want, "{fields}");
        }
        let missing = head(404, &[("etag", "\"a\"")]);
        let request = exchange("GET / HTTP/1.1\nHost: t\nIf-None-Match: \"a\"\nRange: bytes=0-1").request.clone();
        assert_eq!(part_for(&request, &missing, Some(10)), ReplyPart::Whole);
    }

    #[test]
    fn a_range_selects_bytes() {
        for (range, want) in [
            ("bytes=0-0", ReplyPart::Bytes(0..1)),
            ("bytes=2-99", ReplyPart::Bytes(2..10)),
            ("bytes=5-", ReplyPart::Bytes(5..10)),
            ("bytes=-3", ReplyPart::Bytes(7..10)),
            ("bytes=-99", ReplyPart::Bytes(0..10)),
            ("bytes=-0", ReplyPart::Unsatisfiable),
            ("bytes=10-", ReplyPart::Unsatisfiable),
            ("bytes=9-18446744073709551615", ReplyPart::Bytes(9..10)),
            ("bytes=3-2", ReplyPart::Whole),
            ("bytes=0-1,4-5", ReplyPart::Whole),
            ("bytes=-", ReplyPart::Whole),
            ("bytes=+1-2", ReplyPart::Whole),
            ("lines=0-1", ReplyPart::Whole),
            ("bytes=0-1\nIf-Range: \"a\"", ReplyPart::Bytes(0..2)),
            ("bytes=0-1\nIf-Range: Tue, 15 Nov 1994 12:00:00 GMT", ReplyPart::Bytes(0..2)),
            ("bytes=0-1\nIf-Range: W/\"a\"", ReplyPart::Whole),
            ("bytes=0-1\nIf-Range: \"b\"", ReplyPart::Whole),
        ] {
            assert_eq!(part(&format!("Range: {range}")), want, "{range}");
        }
    }
}
