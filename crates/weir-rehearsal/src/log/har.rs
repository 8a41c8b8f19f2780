//! HTTP archives (HAR 1.2), as browsers and proxies export them.

use std::io::{self, Read};
use std::ops::ControlFlow;

use serde::{Deserialize, Deserializer};

use super::{LogLine, MAX_ARCHIVE_BYTES, RecordedRequest, moment};

#[derive(Deserialize)]
struct Archive {
    log: ArchiveLog,
}

#[derive(Deserialize)]
struct ArchiveLog {
    entries: Vec<ArchiveEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArchiveEntry {
    #[serde(default, deserialize_with = "or_default")]
    started_date_time: String,
    request: ArchiveRequest,
    response: Option<ArchiveResponse>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArchiveRequest {
    method: String,
    url: String,
    #[serde(default, deserialize_with = "or_default")]
    headers: Vec<ArchiveField>,
    post_data: Option<ArchiveContent>,
}

#[derive(Deserialize)]
struct ArchiveField {
    name: String,
    #[serde(default, deserialize_with = "or_default")]
    value: String,
}

#[derive(Deserialize)]
struct ArchiveContent {
    #[serde(default, deserialize_with = "or_default")]
    text: String,
}

#[derive(Deserialize)]
struct ArchiveResponse {
    #[serde(default, deserialize_with = "or_default")]
    status: i32,
}

/// A member that is `null` is not there.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The members of the object `log` of an archive.
const MEMBERS: [&[u8]; 6] = [b"version", b"creator", b"browser", b"pages", b"entries", b"comment"];

/// Whether a text is an object whose first member is the object `log` of an archive.
pub(super) fn begins(text: &[u8]) -> bool {
    let mut bytes = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    for part in [&b"{"[..], b"\"log\"", b":", b"{"] {
        bytes = match bytes.trim_ascii_start().strip_prefix(part) {
            Some(rest) => rest,
            None => return false,
        };
    }
    let first = bytes.trim_ascii_start().strip_prefix(b"\"").unwrap_or_default();
    let is_named = |name: &[u8]| first.strip_prefix(name).is_some_and(|rest| rest.starts_with(b"\""));
    MEMBERS.into_iter().any(is_named) || first.starts_with(b"_")
}

pub(super) fn read(input: impl Read, mut each: impl FnMut(u64, LogLine) -> ControlFlow<()>) -> io::Result<()> {
    let mut limited = input.take(MAX_ARCHIVE_BYTES);
    let archive: Result<Archive, _> = serde_json::from_reader(&mut limited);
    let archive = archive.map_err(|error| match limited.limit() {
        0 => io::Error::other(format!("the HTTP archive is larger than {MAX_ARCHIVE_BYTES} bytes; split it")),
        _ => io::Error::other(format!("the HTTP archive is not valid: {error}")),
    })?;
    for (number, entry) in (1..).zip(archive.log.entries) {
        if each(number, Ok(request_of(entry))).is_break() {
            break;
        }
    }
    Ok(())
}

/// `None` for what is not HTTP, such as `data:` and `blob:`.
fn request_of(entry: ArchiveEntry) -> Option<RecordedRequest> {
    let ArchiveRequest { method, url, headers, post_data } = entry.request;
    if method.is_empty() || !(url.starts_with("http://") || url.starts_with("https://")) {
        return None;
    }
    let mut request =
        RecordedRequest { method, at_ms: moment::millis(&entry.started_date_time), ..RecordedRequest::default() };
    request.set_url(&url);
    // Those of HTTP/2 that begin with a colon are in the URL already.
    let fields =
        headers.into_iter().filter(|field| !field.name.starts_with(':') && !field.name.eq_ignore_ascii_case("host"));
    request.fields = fields.map(|field| (field.name.to_ascii_lowercase(), field.value)).collect();
    request.body = post_data.map(|content| content.text.into_bytes()).unwrap_or_default();
    request.status =
        entry.response.and_then(|response| u16::try_from(response.status).ok()).filter(|status| *status > 0);
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARCHIVE: &str = r#"
        { "log": { "version": "1.2", "entries": [
            { "startedDateTime": "2026-10-10T11:55:36.120Z", "time": 3,
              "request": { "method": "POST", "url": "https://shop.example/cart?a=1", "httpVersion": "h2",
                "headers": [{ "name": ":path", "value": "/cart" }, { "name": "Cookie", "value": "a=b" }],
                "postData": { "mimeType": "text/plain", "text": "hello" } },
              "response": { "status": 201, "content": { "size": 5, "text": "long" } } },
            { "startedDateTime": "", "request": { "method": "GET", "url": "data:text/plain,a", "headers": null, "postData": null }, "response": null }
        ] } }"#;

    #[test]
    fn archives_are_read_entry_by_entry() {
        assert!(begins(ARCHIVE.as_bytes()));
        let mut found = Vec::new();
        super::super::read(ARCHIVE.as_bytes(), |number, line| {
            found.push((number, line));
            ControlFlow::Continue(())
        })
        .expect("an archive");
        let (number, line) = &found[0];
        let request = line.clone().expect("an entry").expect("a request");
        assert_eq!((*number, &*request.method, request.host.as_deref()), (1, "POST", Some("shop.example")));
        assert_eq!(
            (&*request.target, request.scheme.as_deref(), request.status),
            ("/cart?a=1", Some("https"), Some(201))
        );
        assert_eq!(request.fields, [("cookie".to_owned(), "a=b".to_owned())]);
        assert_eq!((&*request.body, request.at_ms), (&b"hello"[..], Some(1_791_633_336_120)));
        assert_eq!(found[1], (2, Ok(None)));
    }

    #[test]
    fn archives_that_are_cut_are_faults() {
        let cut = &ARCHIVE[..ARCHIVE.len() - 10];
        let error = super::super::read(cut.as_bytes(), |_, _| ControlFlow::Continue(())).expect_err("it is cut");
        assert!(error.to_string().contains("not valid"), "{error}");
        assert!(!begins(br#"{"log":"a line"}"#) && !begins(b"{") && !begins(b""));
    }
}
