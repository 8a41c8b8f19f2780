//! The body of a batch, and the requests in it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use weir_plugin::proto::authority::HostPort;
use weir_plugin::proto::{Known, RequestHead};
use weir_plugin::{InnerRequest, form};

use crate::content::json::{Container, JsonError, JsonToken, Scanner};

/// The most names in `headers` or in `query`, of the batch or of a request.
const MOST_NAMES: usize = 200;
/// The most bytes of names and values that a batch may add to each of its requests.
const MOST_COMMON_BYTES: usize = 64 << 10;
/// The depth of JSON that serde_json reads.
const MOST_DEPTH: usize = 128;

/// What requests of a batch may name.
#[derive(Clone, Copy)]
pub(super) struct BatchRules<'a> {
    /// Names of fields that they cannot set.
    pub protected: &'a [String],
    /// Whether they may name another host than the batch.
    pub other_hosts: bool,
}

/// A request names another host than its batch, and must not.
#[derive(Debug)]
pub(super) struct OtherHost;

/// A batch as it is written. Its requests are read one by one, when they are served: a small text can hold many that are large once
/// they have what all have in common.
pub(super) struct RequestBatch<'a> {
    body: &'a [u8],
    common: BatchMembers,
    /// Where the requests are in the body.
    requests: Vec<Range<usize>>,
}

#[derive(Deserialize)]
struct BatchMembers {
    #[serde(default)]
    query: PlainValues,
    #[serde(default)]
    headers: PlainValues,
    timeout: Option<u64>,
    #[serde(rename = "pipeline")]
    _pipeline: IgnoredAny,
}

/// A request as it is written. Other members, such as `version`, have no effect.
#[derive(Deserialize)]
struct BatchedRequest {
    method: Option<String>,
    path: String,
    #[serde(default)]
    query: PlainValues,
    #[serde(default)]
    headers: PlainValues,
    body: Option<String>,
}

/// Names, and values of which each is a text, a number or a boolean.
#[derive(Clone, Default)]
struct PlainValues(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for PlainValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PlainValues, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = PlainValues;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with names and values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<PlainValues, A::Error> {
                let mut values = BTreeMap::new();
                while let Some((name, PlainValue(value))) = members.next_entry()? {
                    values.insert(name, value);
                    if values.len() > MOST_NAMES {
                        return Err(A::Error::custom(format!("more than {MOST_NAMES} names")));
                    }
                }
                Ok(PlainValues(values))
            }
        }

        deserializer.deserialize_map(Members)
    }
}

struct PlainValue(String);

impl<'de> Deserialize<'de> for PlainValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PlainValue, D::Error> {
        struct Scalar;

        impl Visitor<'_> for Scalar {
            type Value = PlainValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a number or a boolean")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<PlainValue, E> {
                Ok(PlainValue(text.to_owned()))
            }

            fn visit_bool<E: Error>(self, flag: bool) -> Result<PlainValue, E> {
                Ok(PlainValue(flag.to_string()))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<PlainValue, E> {
                Ok(PlainValue(number.to_string()))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<PlainValue, E> {
                Ok(PlainValue(number.to_string()))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<PlainValue, E> {
                Ok(PlainValue(number.to_string()))
            }
        }

        deserializer.deserialize_any(Scalar)
    }
}

impl PlainValues {
    fn bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    fn lower_case(self) -> PlainValues {
        PlainValues(self.0.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect())
    }
}

impl RequestBatch<'_> {
    /// Reads a batch of at most `most` requests, each of which is checked and not kept.
    ///
    /// # Errors
    /// What is wrong with it, for the client.
    pub(super) fn read(body: &[u8], most: usize) -> Result<RequestBatch<'_>, String> {
        let mut common: BatchMembers = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        common.headers = std::mem::take(&mut common.headers).lower_case();
        let bytes = common.headers.bytes() + common.query.bytes();
        if bytes > MOST_COMMON_BYTES {
            let problem =
                format!("`headers` and `query` have {bytes} bytes, and at most {MOST_COMMON_BYTES} are allowed");
            return Err(problem);
        }
        let requests =
            ranges(body, most + 1).map_err(|_| "invalid JSON")?.ok_or("`pipeline` is not a list of requests")?;
        match requests.len() {
            0 => return Err("`pipeline` is empty".to_owned()),
            count if count > most => return Err(format!("`pipeline` has more than {most} requests")),
            _ => {}
        }
        for (index, range) in requests.iter().enumerate() {
            check(&body[range.clone()]).map_err(|problem| format!("pipeline[{index}]: {problem}"))?;
        }
        Ok(RequestBatch { body, common, requests })
    }

    /// The time for all requests, in milliseconds.
    pub(super) fn timeout_ms(&self) -> Option<u64> {
        self.common.timeout
    }

    /// The requests, with what they have in common among themselves and with the request that brings them; `Err` in place of one
    /// for another host, if that is not allowed.
    pub(super) fn requests<'b>(
        &'b self,
        carrier: &'b RequestHead,
        rules: BatchRules<'b>,
    ) -> impl Iterator<Item = Result<InnerRequest, OtherHost>> + 'b {
        self.requests.iter().map(move |range| {
            let request: BatchedRequest =
                serde_json::from_slice(&self.body[range.clone()]).expect("it was read before");
            request.with_common(&self.common, carrier, rules)
        })
    }
}

/// Where the first `most` members of the list `pipeline` are; `None` if it is no list.
fn ranges(body: &[u8], most: usize) -> Result<Option<Vec<Range<usize>>>, JsonError> {
    let mut scanner = Scanner::new(body, MOST_DEPTH)?;
    let (mut depth, mut is_next, mut start, mut ranges) = (0, false, 0, None);
    // The depth of the members, while the scanner is in the list.
    let mut within = None;
    while let Some(token) = scanner.token()? {
        let at = scanner.position();
        match &token {
            JsonToken::Open(container) => {
                if depth == 1 && is_next && *container == Container::List {
                    (within, ranges) = (Some(2), Some(Vec::new()));
                } else if within == Some(depth) {
                    start = at - 1;
                }
                depth += 1;
            }
            JsonToken::Close(_) => {
                depth -= 1;
                match (&mut ranges, within) {
                    (Some(ranges), Some(members)) if members == depth => ranges.push(start..at),
                    (_, Some(members)) if members > depth => within = None,
                    _ => {}
                }
            }
            JsonToken::Text(range) | JsonToken::Plain(range) => {
                if let (Some(ranges), true) = (&mut ranges, within == Some(depth)) {
                    ranges.push(range.clone());
                }
            }
            JsonToken::Name(_) => {}
        }
        if ranges.as_ref().is_some_and(|ranges| ranges.len() == most) {
            break;
        }
        is_next = match &token {
            JsonToken::Name(name) => depth == 1 && scanner.unquoted(name)? == "pipeline",
            _ => false,
        };
    }
    Ok(ranges)
}

fn check(text: &[u8]) -> Result<(), String> {
    if text.first() != Some(&b'{') {
        return Err("is not an object".to_owned());
    }
    let request: BatchedRequest = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if !request.path.starts_with('/') {
        return Err("`path` does not begin with `/`".to_owned());
    }
    // A TRACE is answered with the request, in which a script could read cookies that are not meant for it.
    match request.method.as_deref() {
        Some(method @ ("CONNECT" | "TRACE")) => Err(format!("the method {method} is not allowed in a batch")),
        _ => Ok(()),
    }
}

impl BatchedRequest {
    fn with_common(
        self,
        common: &BatchMembers,
        carrier: &RequestHead,
        rules: BatchRules<'_>,
    ) -> Result<InnerRequest, OtherHost> {
        let target = target(self.path, &self.query.0, &common.query.0);
        let mut own = self.headers.lower_case().0;
        for (name, value) in &common.headers.0 {
            own.entry(name.clone()).or_insert_with(|| value.clone());
        }
        let host = carrier.client_authority();
        let authority = own.remove("host").map_or_else(|| host.into(), |host| bytes(&host));
        let is_same_site = is_same_site(&authority, host);
        if !is_same_site && !rules.other_hosts {
            return Err(OtherHost);
        }
        let is_told =
            |name: &[u8]| is_told_by_sender(name) || rules.protected.iter().any(|kept| is_name(name, kept.as_bytes()));
        let mut fields: Vec<_> = own
            .iter()
            .filter(|(name, _)| !belongs_to_connection(name.as_bytes()) && !is_told(name.as_bytes()))
            .map(|(name, value)| (bytes(name), bytes(value)))
            .collect();
        for (name, value) in carrier.head.fields() {
            let name = name.to_ascii_lowercase();
            let is_given = std::str::from_utf8(&name).is_ok_and(|name| own.contains_key(name));
            if !belongs_to_connection(&name) && (is_told(&name) || is_same_site && !is_given && is_shared(&name)) {
                fields.push((name.into(), value.into()));
            }
        }
        let method = bytes(self.method.as_deref().unwrap_or("GET"));
        let content = self.body.unwrap_or_default().into_bytes();
        Ok(InnerRequest { method, authority, target: target.into(), fields, content })
    }
}

fn bytes(text: &str) -> Box<[u8]> {
    text.as_bytes().into()
}

/// Path and query: what is in `path`, then the arguments of the request, then those of the batch that it does not have.
fn target(path: String, own: &BTreeMap<String, String>, common: &BTreeMap<String, String>) -> Vec<u8> {
    let mut target = path.into_bytes();
    let mut mark = if target.contains(&b'?') { b'&' } else { b'?' };
    let missing = common.iter().filter(|(name, _)| !own.contains_key(*name));
    for (name, value) in own.iter().chain(missing) {
        target.push(std::mem::replace(&mut mark, b'&'));
        form::write_encoded(name.as_bytes(), &mut target);
        target.push(b'=');
        form::write_encoded(value.as_bytes(), &mut target);
    }
    target
}

/// Whether two authorities are equal: the host, whose case does not matter, and the port.
fn is_same_site(one: &[u8], other: &[u8]) -> bool {
    match (HostPort::parse(one), HostPort::parse(other)) {
        (Ok(one), Ok(other)) => one.host.eq_ignore_ascii_case(other.host) && one.port == other.port,
        _ => false,
    }
}

/// Whether a field says how a message is sent on a connection, which the gateway says itself.
fn belongs_to_connection(name: &[u8]) -> bool {
    let known = Known::parse(name);
    known.is_hop_by_hop() || matches!(known, Known::ContentLength | Known::Expect | Known::Host)
}

/// The fields in which a browser, or a proxy in front, says something about the client or the page, which the page cannot change. The
/// gateway itself looks after [`Known::is_forwarding`].
const TOLD_BY_SENDER: [&[u8]; 11] = [
    b"via",
    b"cdn-loop",
    b"origin",
    b"referer",
    b"true-client-ip",
    b"x-client-ip",
    b"x-cluster-client-ip",
    b"fastly-client-ip",
    b"client-cert",
    b"client-cert-chain",
    b"x-azure-clientip",
];
/// How the names of further ones begin.
const TOLD_BY_SENDER_BEGIN: [&[u8]; 4] = [b"sec-", b"cf-", b"x-ssl-client-", b"x-amzn-"];

fn is_told_by_sender(name: &[u8]) -> bool {
    TOLD_BY_SENDER.iter().any(|told| is_name(name, told))
        || TOLD_BY_SENDER_BEGIN.iter().any(|begin| name.get(..begin.len()).is_some_and(|start| is_name(start, begin)))
}

/// Whether a name in lower case is this one. Some servers read `_` in a name as `-`.
fn is_name(name: &[u8], wanted: &[u8]) -> bool {
    let read = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    name.iter().map(read).eq(wanted.iter().map(read))
}

/// Whether the requests of a batch have this field of the request that brings them.
fn is_shared(name: &[u8]) -> bool {
    let is_about_content = name.starts_with(b"content-") || name.starts_with(b"if-");
    !is_about_content && ![&b"accept-encoding"[..], b"range", b"digest", b"repr-digest"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::exchange;

    const CARRIER: &str = "POST /batch HTTP/1.1\nHost: shop:81\nAuthorization: a\nCookie: b=1\nOrigin: https://page\nX-A: outer\n\
                         Content-Type: application/json\nAccept-Encoding: gzip\nIf-Match: x\nConnection: close\nCdn-Ip: 1";

    fn told_with(batch: &str, protected: &[&str]) -> Result<Vec<String>, String> {
        let carrier = exchange(CARRIER).request;
        let protected: Vec<_> = protected.iter().map(|name| (*name).to_owned()).collect();
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        let one = |request: InnerRequest| {
            let InnerRequest { method, authority, target, fields, content } = &request;
            let mut fields: Vec<_> =
                fields.iter().map(|(name, value)| format!("{}={}", text(name), text(value))).collect();
            fields.sort_unstable();
            format!("{} {} {} {} {}", text(method), text(authority), text(target), fields.join(","), text(content))
        };
        let batch = RequestBatch::read(batch.as_bytes(), 3)?;
        let rules = BatchRules { protected: &protected, other_hosts: true };
        Ok(batch.requests(&carrier, rules).map(|request| one(request.expect("any host is allowed"))).collect())
    }

    /// The requests of a batch, as text.
    fn told(batch: &str) -> Result<Vec<String>, String> {
        told_with(batch, &[])
    }

    #[test]
    fn requests_have_what_the_batch_and_its_request_have_unless_they_say_otherwise() {
        let batch = r#"{"query": {"q": "1 2", "p": 3}, "headers": {"X-B": "common", "Content-Type": "text/plain"}, "version": 1,
            "pipeline": [{"path": "/a"},
                         {"method": "POST", "path": "/b?r=1", "query": {"q": true}, "body": "hi", "headers": {"x-a": "own",
                          "x-b": 5, "Host": "SHOP:81", "Connection": "x", "Content-Length": "9", "Cookie": "c=1"}}]}"#;
        let all = "authorization=a,cdn-ip=1";
        let want = [
            format!(
                "GET shop:81 /a?p=3&q=1%202 {all},content-type=text/plain,cookie=b=1,origin=https://page,x-a=outer,x-b=common "
            ),
            format!(
                "POST SHOP:81 /b?r=1&q=true&p=3 {all},content-type=text/plain,cookie=c=1,origin=https://page,x-a=own,x-b=5 hi"
            ),
        ];
        assert_eq!(told(batch).expect("a batch"), want);
    }

    #[test]
    fn requests_to_another_host_have_no_fields_of_the_client_but_what_it_cannot_choose() {
        for host in ["other", "shop", "shop:82", "shop:81:81", ""] {
            let batch = format!(r#"{{"pipeline": [{{"path": "/", "headers": {{"Host": "{host}", "X-A": "own"}}}}]}}"#);
            assert_eq!(told(&batch).expect("a batch"), [format!("GET {host} / origin=https://page,x-a=own ")]);
        }
    }

    #[test]
    fn requests_to_another_host_are_refused_unless_that_is_allowed() {
        let carrier = exchange(CARRIER).request;
        let batch = r#"{"pipeline": [{"path": "/"}, {"path": "/", "headers": {"hOST": "other"}}, {"path": "/", "headers": {"Host": "Shop:81"}}]}"#;
        let batch = RequestBatch::read(batch.as_bytes(), 3).expect("a batch");
        let rules = BatchRules { protected: &[], other_hosts: false };
        let served: Vec<_> = batch.requests(&carrier, rules).map(|request| request.is_ok()).collect();
        assert_eq!(served, [true, false, true]);
    }

    #[test]
    fn requests_cannot_set_what_browsers_and_proxies_tell() {
        let forged = r#""CF-Connecting-IP": "x", "client_cert": "x", "Sec_Fetch_Site": "same-origin", "x-amzn-oidc-identity": "x", "Origin": "x", "REFERER": "x", "Sec-Fetch-Site": "same-origin", "Via": "x", "CDN_Loop": "x", "cdn_ip": "x""#;
        for batch in [
            format!(r#"{{"pipeline": [{{"path": "/", "headers": {{"Host": "other", {forged}}}}}]}}"#),
            format!(r#"{{"headers": {{"Host": "other", {forged}}}, "pipeline": [{{"path": "/"}}]}}"#),
        ] {
            let want = ["GET other / cdn-ip=1,origin=https://page "];
            assert_eq!(told_with(&batch, &["CDN-IP"]).expect("a batch"), want);
        }
    }

    #[test]
    fn a_body_that_is_no_batch_is_an_error() {
        let many = |count: usize| vec![r#"{"path": "/"}"#; count].join(",");
        let names: Vec<_> = (0..=MOST_NAMES).map(|number| format!("\"{number}\": 1")).collect();
        for (batch, want) in [
            ("".to_owned(), "EOF while parsing"),
            ("[]".to_owned(), "invalid"),
            ("{}".to_owned(), "missing field `pipeline`"),
            (r#"{"pipeline": []}"#.to_owned(), "`pipeline` is empty"),
            (r#"{"pipeline": {"path": "/"}}"#.to_owned(), "`pipeline` is not a list"),
            (r#"{"a": {"pipeline": [1]}, "pipeline": 1}"#.to_owned(), "`pipeline` is not a list"),
            (r#"{"pipeline": [1], "pipeline": []}"#.to_owned(), "duplicate field"),
            (format!(r#"{{"pipeline": [{}]}}"#, many(4)), "`pipeline` has more than 3 requests"),
            (
                r#"{"pipeline": [{"path": "/"}, {"path": "a"}]}"#.to_owned(),
                "pipeline[1]: `path` does not begin with `/`",
            ),
            (r#"{"pipeline": [{"path": "/"}, 5]}"#.to_owned(), "pipeline[1]: is not an object"),
            (r#"{"pipeline": [{"method": "GET"}]}"#.to_owned(), "pipeline[0]: missing field `path`"),
            (r#"{"pipeline": [["GET", "/"]]}"#.to_owned(), "pipeline[0]: is not an object"),
            (r#"{"pipeline": [{"method": "TRACE", "path": "/"}]}"#.to_owned(), "the method TRACE is not allowed"),
            (r#"{"pipeline": [{"path": "/", "headers": {"a": []}}]}"#.to_owned(), "a string, a number or a boolean"),
            (r#"{"pipeline": [{"path": "/", "body": {}}]}"#.to_owned(), "expected a string"),
            (format!(r#"{{"pipeline": [{{"path": "/", "query": {{{}}}}}]}}"#, names.join(",")), "more than 200 names"),
            (
                format!(
                    r#"{{"headers": {{"a": "{}"}}, "pipeline": [{{"path": "/"}}]}}"#,
                    "x".repeat(MOST_COMMON_BYTES)
                ),
                "`headers` and `query` have 65537 bytes, and at most 65536",
            ),
        ] {
            let problem = told(&batch).expect_err(&batch);
            assert!(problem.contains(want), "{batch}: {problem}");
        }
        assert_eq!(told(&format!(r#"{{"p\u0069peline": [{}]}}"#, many(3))).expect("a batch").len(), 3);
    }
}
