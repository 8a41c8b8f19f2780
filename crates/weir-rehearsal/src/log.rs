//! Reads requests from the logs of gateways, whichever format they have.
//!
//! The format is recognised line by line: the combined and common formats of nginx and Apache (also with the virtual host before
//! them), Envoy's default format, JSON objects with the usual names of members, and lists of methods and URLs. An HTTP archive
//! (HAR) is recognised by its beginning.

mod har;
mod json;
mod moment;
mod quoted;

use std::io::{self, BufRead, Read};
use std::net::IpAddr;
use std::ops::ControlFlow;

/// The longest line that is read. Longer ones are skipped.
pub const MAX_LINE_BYTES: usize = 1 << 20;
/// The largest HTTP archive that is read: it is one JSON value, so its requests are all in memory.
pub const MAX_ARCHIVE_BYTES: u64 = 512 << 20;

/// A request as a log tells it. What the log does not tell is `None` or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedRequest {
    pub method: String,
    pub scheme: Option<String>,
    /// With its port, if it is written.
    pub host: Option<String>,
    /// Path and query.
    pub target: String,
    pub client: Option<IpAddr>,
    /// When it arrived or was logged, in milliseconds since 1970.
    pub at_ms: Option<i64>,
    /// The status that it was answered with.
    pub status: Option<u16>,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// What a line contains: a request, or something else that is no fault, such as a request that could not be parsed.
pub type LogLine = Result<Option<RecordedRequest>, String>;

/// Hands over every line that is not empty with its number, until the caller has enough. The entries of an HTTP archive are counted
/// as lines.
///
/// # Errors
/// The log cannot be read, or is an HTTP archive that is too large or not valid.
pub fn read(mut input: impl BufRead, mut each: impl FnMut(u64, LogLine) -> ControlFlow<()>) -> io::Result<()> {
    if har::begins(input.fill_buf()?) {
        return har::read(input, each);
    }
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if input.by_ref().take(MAX_LINE_BYTES as u64).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let told = if line.len() == MAX_LINE_BYTES && !line.ends_with(b"\n") {
            skip_line(&mut input)?;
            Err(format!("is longer than {MAX_LINE_BYTES} bytes"))
        } else {
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_start_matches('\u{feff}').trim();
            if text.is_empty() {
                continue;
            }
            of_line(text)
        };
        if each(number, told).is_break() {
            break;
        }
    }
    Ok(())
}

fn skip_line(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let available = input.fill_buf()?;
        let (read, ended) = match available.iter().position(|byte| *byte == b'\n') {
            Some(end) => (end + 1, true),
            None => (available.len(), available.is_empty()),
        };
        input.consume(read);
        if ended {
            return Ok(());
        }
    }
}

/// Reads one line of a log.
///
/// # Errors
/// The format of the line is not known.
pub fn of_line(line: &str) -> LogLine {
    if line.starts_with('{') {
        return json::of_line(line);
    }
    match of_list(line) {
        Some(request) => Ok(Some(request)),
        None => quoted::of_line(line),
    }
}

/// `GET https://shop.example/orders/1`, or with a path alone.
fn of_list(line: &str) -> Option<RecordedRequest> {
    let (method, url) = line.split_once(' ')?;
    if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_uppercase()) {
        return None;
    }
    let mut request = RecordedRequest { method: method.to_owned(), ..RecordedRequest::default() };
    let url = url.trim();
    let url = match url.rsplit_once(' ') {
        Some((url, version)) if version.starts_with("HTTP/") => url.trim_end(),
        _ => url,
    };
    request.set_url(url);
    Some(request)
}

impl RecordedRequest {
    /// Takes scheme, host and target of a URL, or the target alone of a path. A user name and password are left out.
    fn set_url(&mut self, url: &str) {
        let url = url.split('#').next().unwrap_or_default();
        let (scheme, rest) = match url.split_once("://") {
            Some((scheme, rest)) if !scheme.contains(['/', '?']) => (Some(scheme), rest),
            _ => (None, url),
        };
        let (authority, target) = match scheme {
            None if rest.starts_with('/') => ("", rest),
            _ => rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len())),
        };
        let host = authority.rsplit('@').next().unwrap_or_default();
        self.scheme = scheme.map(str::to_ascii_lowercase);
        if !host.is_empty() {
            self.host = Some(host.to_owned());
        }
        self.target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
    }

    /// Takes a request line such as `GET /orders?page=2 HTTP/1.1`. `None` for what no client of a website sends: a tunnel, or a
    /// request without a path.
    fn set_request_line(&mut self, line: &str) -> Option<()> {
        let (method, rest) = line.split_once(' ')?;
        let target = match rest.rsplit_once(' ') {
            Some((target, version)) if version.starts_with("HTTP/") => target,
            _ => rest,
        };
        let is_method =
            !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_alphabetic() || b"-_".contains(&byte));
        if !is_method || method == "CONNECT" || !(target.starts_with('/') || target.contains("://")) {
            return None;
        }
        self.method = method.to_owned();
        // A target of the absolute form names the host as well.
        if target.starts_with('/') {
            self.target = target.to_owned()
        } else {
            self.set_url(target)
        }
        Some(())
    }
}

/// A value that says something: logs write `-` for a value that is not there.
fn present(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty() && *text != "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<(u64, LogLine)> {
        let mut lines = Vec::new();
        read(text.as_bytes(), |number, line| {
            lines.push((number, line));
            ControlFlow::Continue(())
        })
        .expect("it can be read");
        lines
    }

    #[test]
    fn lines_of_a_list_are_requests() {
        let lines =
            all("GET https://user:pw@shop.example:8443/a?b=1#c\n\nPOST /orders\nGET shop.example\nGET /v HTTP/1.1\n");
        let of = |index: usize| lines[index].1.clone().expect("a line").expect("a request");
        assert_eq!(of(0).host.as_deref(), Some("shop.example:8443"));
        assert_eq!((of(0).scheme.as_deref(), &*of(0).target), (Some("https"), "/a?b=1"));
        assert_eq!((lines[1].0, &*of(1).method, &*of(1).target, of(1).host), (3, "POST", "/orders", None));
        assert_eq!((of(2).host.as_deref(), &*of(2).target), (Some("shop.example"), "/"));
        assert_eq!(&*of(3).target, "/v");
    }

    #[test]
    fn lines_that_are_too_long_are_skipped_and_named() {
        let lines = all(&format!("GET /{}\nGET /next\n", "a".repeat(2 * MAX_LINE_BYTES)));
        assert!(
            lines[0].1.as_ref().is_err_and(|problem| problem.contains("longer than 1048576 bytes")),
            "{:?}",
            lines[0]
        );
        assert_eq!(lines[1].1.as_ref().map(|line| line.as_ref().map(|request| &*request.target)), Ok(Some("/next")));
        assert_eq!(lines[1].0, 2);
    }

    #[test]
    fn lines_of_an_unknown_format_are_faults() {
        assert!(of_line("hello").is_err());
        assert!(of_line("get /").is_err());
        assert!(of_line("{").is_err());
    }
}
