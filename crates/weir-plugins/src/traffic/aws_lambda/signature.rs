//! Signature Version 4 of AWS, in the field `Authorization`.

use aws_lc_rs::{digest, hmac};
use http::Request;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::body::Bytes;
use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use weir_plugin::form;

/// Signs requests with a key of AWS.
pub(crate) struct RequestSigner {
    pub access_key: String,
    pub secret_key: String,
    pub region: String,
    pub service: String,
}

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// What credentials are for, at the end of their scope.
const TERMINATOR: &str = "aws4_request";
const DATE: HeaderName = HeaderName::from_static("x-amz-date");

/// All but the characters that are not reserved (RFC 3986 §2.3).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The same for a path, whose segments are encoded.
const ENCODED_IN_PATH: &AsciiSet = &ENCODED.remove(b'/');

impl RequestSigner {
    /// Adds `X-Amz-Date` and `Authorization` for this time. The query is encoded anew, so that it is what is signed. `Host`,
    /// `Content-Type` and all `X-Amz-*` are signed; other fields may be changed on the way. `None` if there is no valid field or target for
    /// the request.
    pub(crate) fn sign(&self, request: &mut Request<Bytes>, unix_s: u64) -> Option<()> {
        let time = Timestamp::from_second(i64::try_from(unix_s).ok()?).ok()?;
        let stamp = time.strftime("%Y%m%dT%H%M%SZ").to_string();
        request.headers_mut().remove(AUTHORIZATION);
        request.headers_mut().insert(DATE, HeaderValue::from_str(&stamp).ok()?);
        let mut query = encoded_query(request.uri().query().unwrap_or_default());
        if request.uri().query().is_some() {
            let mark = if query.is_empty() { "" } else { "?" };
            *request.uri_mut() = format!("{}{mark}{}", request.uri().path(), joined(&query)).parse().ok()?;
        }
        query.sort();
        let (fields, names) = canonical_fields(request.headers());
        let head = format!("{}\n{}\n{}\n", request.method(), canonical_path(request.uri().path()), joined(&query));
        let end = format!("\n{names}\n{}", sha256(request.body()));
        let canonical = [head.as_bytes(), &fields, end.as_bytes()].concat();
        let scope = format!("{}/{}/{}/{TERMINATOR}", &stamp[..8], self.region, self.service);
        let to_sign = format!("{ALGORITHM}\n{stamp}\n{scope}\n{}", sha256(&canonical));
        let signature = hex::encode(hmac(self.key(&stamp[..8]).as_ref(), &to_sign));
        let credential = format!("Credential={}/{scope}", self.access_key);
        let value = format!("{ALGORITHM} {credential}, SignedHeaders={names}, Signature={signature}");
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, value);
        Some(())
    }

    /// The key of one day, region and service.
    fn key(&self, day: &str) -> hmac::Tag {
        let of_day = hmac(format!("AWS4{}", self.secret_key).as_bytes(), day);
        let of_service = hmac(hmac(of_day.as_ref(), &self.region).as_ref(), &self.service);
        hmac(of_service.as_ref(), TERMINATOR)
    }
}

fn hmac(key: &[u8], text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(digest::digest(&digest::SHA256, bytes))
}

/// The parameters of a query, decoded and encoded again, in their order.
fn encoded_query(query: &str) -> Vec<(String, String)> {
    let encode = |text: &[u8]| percent_encode(text, ENCODED).to_string();
    form::pairs(query.as_bytes()).map(|(name, value)| (encode(&name), encode(&value))).collect()
}

fn joined(query: &[(String, String)]) -> String {
    query.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

/// The path without empty segments and dot segments, encoded once more than it is sent.
fn canonical_path(path: &str) -> String {
    let mut segments = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let end = if path.ends_with('/') && !segments.is_empty() { "/" } else { "" };
    percent_encode(format!("/{}{end}", segments.join("/")).as_bytes(), ENCODED_IN_PATH).to_string()
}

/// The lines of the fields that are signed, in the order of their names, and these names. Values are bytes, which need not be UTF-8.
fn canonical_fields(fields: &HeaderMap) -> (Vec<u8>, String) {
    let is_signed =
        |name: &&HeaderName| **name == HOST || **name == CONTENT_TYPE || name.as_str().starts_with("x-amz-");
    let mut names: Vec<&HeaderName> = fields.keys().filter(is_signed).collect();
    names.sort_by_key(|name| name.as_str());
    let value = |value: &HeaderValue| {
        let words = value.as_bytes().split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join(&b' ')
    };
    let line = |name: &&HeaderName| {
        let values: Vec<_> = fields.get_all(*name).iter().map(value).collect();
        [name.as_str().as_bytes(), b":", &values.join(&b','), b"\n"].concat()
    };
    let joined = names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(";");
    (names.iter().flat_map(line).collect(), joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2015-08-30 12:36:00 UTC, the time of AWS's test suite.
    const TIME_S: u64 = 1_440_938_160;

    fn signer(region: &str, service: &str) -> RequestSigner {
        let [access_key, secret_key] = ["AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"].map(str::to_owned);
        RequestSigner { access_key, secret_key, region: region.to_owned(), service: service.to_owned() }
    }

    fn signed(of: &RequestSigner, method: &str, target: &str, fields: &[(&str, &str)], body: &str) -> Request<Bytes> {
        let builder = Request::builder().method(method).uri(target).header(HOST, "example.amazonaws.com");
        let builder = fields.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value));
        let mut request = builder.body(Bytes::copy_from_slice(body.as_bytes())).expect("valid");
        of.sign(&mut request, TIME_S).expect("it can be signed");
        request
    }

    fn value<'a>(request: &'a Request<Bytes>, name: &str) -> &'a str {
        request.headers()[name].to_str().expect("text")
    }

    /// `get-vanilla`, `post-vanilla`, `post-x-www-form-urlencoded`, `get-vanilla-query-order-value` and
    /// `get-vanilla-query-order-key-case` of AWS's test suite for this version.
    #[test]
    fn signatures_are_those_of_the_published_test_suite() {
        let form: &[(&str, &str)] = &[("Content-Type", "application/x-www-form-urlencoded")];
        for (method, target, fields, body, names, signature) in [
            (
                "GET",
                "/",
                &[][..],
                "",
                "host;x-amz-date",
                "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
            ),
            (
                "POST",
                "/",
                &[],
                "",
                "host;x-amz-date",
                "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
            ),
            (
                "POST",
                "/",
                form,
                "Param1=value1",
                "content-type;host;x-amz-date",
                "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
            ),
            (
                "GET",
                "/?Param1=value2&Param1=Value1",
                &[],
                "",
                "host;x-amz-date",
                "eedbc4e291e521cf13422ffca22be7d2eb8146eecf653089df300a15b2382bd1",
            ),
            (
                "GET",
                "/?Param2=value2&Param1=value1",
                &[],
                "",
                "host;x-amz-date",
                "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
            ),
        ] {
            let request = signed(&signer("us-east-1", "service"), method, target, fields, body);
            let scope = "AKIDEXAMPLE/20150830/us-east-1/service/aws4_request";
            let expected = format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={names}, Signature={signature}");
            assert_eq!(value(&request, "authorization"), expected, "{method} {target}");
            assert_eq!(value(&request, "x-amz-date"), "20150830T123600Z");
            assert_eq!(request.uri(), target);
        }
    }

    /// The signatures were computed with botocore.
    #[test]
    fn queries_and_paths_are_signed_as_they_are_sent() {
        let query = "/?a-b=1&a=2&c=x+y%2fz%26&d";
        let request = signed(&signer("us-east-1", "service"), "GET", query, &[], "");
        let signature = "90b273f2eb289f37d1e9cf60cc337725185fec40c81cddf3621431d3a7b4febd";
        assert!(value(&request, "authorization").ends_with(signature));
        assert_eq!(request.uri(), "/?a-b=1&a=2&c=x%20y%2Fz%26&d=");
        let fields = [
            ("Content-Type", "application/json"),
            ("X-Amz-Meta", "  one   two "),
            ("Authorization", "Bearer t"),
            ("A", "b"),
        ];
        let path = "/prod//a%20b/../caf%C3%A9:1/";
        let request = signed(&signer("eu-west-1", "execute-api"), "PUT", path, &fields, "{\"a\":\"é\"}");
        let signature = "dc4f12618e3bfe6b75b5a6398db8e41f8cbef6825fb5b1429e90aa52eac44b39";
        assert!(value(&request, "authorization").ends_with(signature), "{}", value(&request, "authorization"));
        assert_eq!((request.uri().path(), value(&request, "a")), (path, "b"));
    }

    #[test]
    fn a_query_without_parameters_is_not_sent() {
        for query in ["/a?", "/a?&", "/a?&&"] {
            let request = signed(&signer("r", "s"), "GET", query, &[], "");
            assert_eq!(request.uri(), "/a", "{query}");
            assert_eq!(
                value(&request, "authorization"),
                value(&signed(&signer("r", "s"), "GET", "/a", &[], ""), "authorization")
            );
        }
    }

    #[test]
    fn values_are_signed_as_the_bytes_that_are_sent() {
        let mut fields = HeaderMap::new();
        fields.insert(CONTENT_TYPE, HeaderValue::from_bytes(b"a/b;  c=\xE9").expect("valid"));
        assert_eq!(canonical_fields(&fields).0, b"content-type:a/b; c=\xE9\n");
    }

    #[test]
    fn each_part_of_a_request_counts() {
        let of = |method: &str, target: &str, body: &str| {
            value(&signed(&signer("r", "s"), method, target, &[], body), "authorization").to_owned()
        };
        let all = [
            of("GET", "/a", ""),
            of("PUT", "/a", ""),
            of("GET", "/b", ""),
            of("GET", "/a?b", ""),
            of("GET", "/a", "c"),
        ];
        let distinct: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(distinct.len(), all.len(), "{all:?}");
        assert!(!all[0].contains("wJalr"));
    }
}
