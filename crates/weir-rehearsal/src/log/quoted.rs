//! The formats in which a request line stands in quotes: common, combined, and Envoy's default.

use super::{LogLine, RecordedRequest, moment, present};

/// The most words of a line that are looked at.
const MAX_WORDS: usize = 64;

/// A part of a line, without its quotes or brackets.
#[derive(Debug, PartialEq, Eq)]
enum LogWord {
    Bare(String),
    Quoted(String),
    Bracketed(String),
}

impl LogWord {
    fn text(&self) -> &str {
        let (LogWord::Bare(text) | LogWord::Quoted(text) | LogWord::Bracketed(text)) = self;
        text
    }
}

/// # Errors
/// The line has neither a time in brackets nor a request in quotes after it.
pub(super) fn of_line(line: &str) -> LogLine {
    const UNKNOWN: &str =
        "is neither JSON, nor a line of a known access log, nor a request such as `GET https://shop.example/orders/1`";
    let words = words(line);
    let at = words.iter().position(|word| matches!(word, LogWord::Bracketed(_))).ok_or(UNKNOWN)?;
    let Some(LogWord::Quoted(request_line)) = words.get(at + 1) else { return Err(UNKNOWN.to_owned()) };
    let mut request = RecordedRequest { at_ms: moment::millis(words[at].text()), ..RecordedRequest::default() };
    if request.set_request_line(request_line).is_none() {
        return Ok(None);
    }
    let rest = &words[at + 2..];
    request.status = rest.first().and_then(|word| word.text().parse().ok());
    if at == 0 {
        add_of_envoy(&mut request, rest)
    } else {
        add_of_combined(&mut request, &words[..at], rest)
    }
    Ok(Some(request))
}

/// `[TIME] "REQUEST" STATUS … "X-FORWARDED-FOR" "USER-AGENT" "REQUEST-ID" "AUTHORITY" "ENDPOINT"`.
fn add_of_envoy(request: &mut RecordedRequest, rest: &[LogWord]) {
    let quoted: Vec<&str> = rest.iter().filter(|word| matches!(word, LogWord::Quoted(_))).map(LogWord::text).collect();
    let Some([forwarded, agent, _, authority, _]) = quoted.last_chunk::<5>() else { return };
    request.client = forwarded.split(',').next().and_then(|client| client.trim().parse().ok());
    request.host = present(authority).map(str::to_owned).or(request.host.take());
    request.fields.extend(present(agent).map(|agent| ("user-agent".to_owned(), agent.to_owned())));
}

/// `[HOST:PORT] CLIENT IDENTITY USER [TIME] "REQUEST" STATUS SIZE ["REFERER" "USER-AGENT"]`.
fn add_of_combined(request: &mut RecordedRequest, before: &[LogWord], rest: &[LogWord]) {
    let (host, client) = match before {
        // Two addresses are those of the client and of a proxy.
        [first, second, ..] if is_address(second.text()) && !is_address(first.text()) => {
            (present(first.text()), second.text())
        }
        [first, ..] => (None, first.text()),
        [] => (None, ""),
    };
    request.client = client.parse().ok();
    request.host = host.map(str::to_owned).or(request.host.take());
    let quoted = |index: usize| match rest.get(index) {
        Some(LogWord::Quoted(text)) => present(text),
        _ => None,
    };
    for (name, value) in [("referer", quoted(2)), ("user-agent", quoted(3))] {
        request.fields.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    }
}

fn is_address(text: &str) -> bool {
    text.parse::<std::net::IpAddr>().is_ok()
}

/// Splits a line at spaces outside quotes and brackets.
fn words(line: &str) -> Vec<LogWord> {
    let (mut words, mut rest) = (Vec::new(), line.trim_start());
    while !rest.is_empty() && words.len() < MAX_WORDS {
        let (word, length) = match rest.as_bytes()[0] {
            b'"' => {
                let end = end_of_quoted(rest);
                (LogWord::Quoted(unescaped(&rest[1..end])), (end + 1).min(rest.len()))
            }
            b'[' => {
                let end = rest.find(']').unwrap_or(rest.len());
                (LogWord::Bracketed(rest[1..end].to_owned()), (end + 1).min(rest.len()))
            }
            _ => {
                let end = rest.find(' ').unwrap_or(rest.len());
                (LogWord::Bare(rest[..end].to_owned()), end)
            }
        };
        words.push(word);
        rest = rest[length..].trim_start();
    }
    words
}

/// The position of the quote that ends a quoted word, or the end of the text.
fn end_of_quoted(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at,
            _ => at += 1,
        }
    }
    text.len()
}

/// nginx writes bytes as `\x22`, Apache also as `\"` and `\n`.
fn unescaped(text: &str) -> String {
    if !text.contains('\\') {
        return text.to_owned();
    }
    let (bytes, mut out, mut at) = (text.as_bytes(), Vec::with_capacity(text.len()), 0);
    while at < bytes.len() {
        let hex = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        let (byte, length) = match (bytes[at], bytes.get(at + 1)) {
            (b'\\', Some(b'x')) => match (hex(at + 2), hex(at + 3)) {
                (Some(high), Some(low)) => ((high * 16 + low) as u8, 4),
                _ => (b'\\', 1),
            },
            (b'\\', Some(b'n')) => (b'\n', 2),
            (b'\\', Some(b't')) => (b'\t', 2),
            (b'\\', Some(b'r')) => (b'\r', 2),
            (b'\\', Some(&escaped)) => (escaped, 2),
            (byte, _) => (byte, 1),
        };
        out.push(byte);
        at += length;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(line: &str) -> RecordedRequest {
        of_line(line).expect("a known format").expect("a request")
    }

    #[test]
    fn combined_and_common_lines_are_read() {
        let line = r#"203.0.113.9 - alice [10/Oct/2026:13:55:36 +0200] "GET /a%20b?c=\x22d\x22 HTTP/1.1" 304 0 "https://shop.example/" "Agent \"1\"" "-""#;
        let found = request(line);
        assert_eq!((&*found.method, &*found.target, found.status), ("GET", "/a%20b?c=\"d\"", Some(304)));
        assert_eq!((found.at_ms, found.client), (Some(1_791_633_336_000), "203.0.113.9".parse().ok()));
        let fields: Vec<(&str, &str)> = found.fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(fields, [("referer", "https://shop.example/"), ("user-agent", "Agent \"1\"")]);
        let common = request(r#"::1 - - [10/Oct/2026:13:55:36 +0200] "HEAD / HTTP/1.0" 200 12"#);
        assert_eq!((&*common.method, common.fields.len(), common.host), ("HEAD", 0, None));
        let hosts =
            request(r#"shop.example:443 192.0.2.1 - - [10/Oct/2026:13:55:36 +0200] "GET / HTTP/2.0" 200 12 "-" "-""#);
        assert_eq!((hosts.host.as_deref(), hosts.client), (Some("shop.example:443"), "192.0.2.1".parse().ok()));
        let proxied = request(r#"203.0.113.9 192.0.2.1 - - [10/Oct/2026:13:55:36 +0200] "GET / HTTP/1.1" 200 12"#);
        assert_eq!((proxied.host, proxied.client), (None, "203.0.113.9".parse().ok()));
    }

    #[test]
    fn envoy_lines_of_both_lengths_are_read() {
        let short = r#"[2026-10-10T11:55:36.120Z] "POST /api HTTP/2" 503 UF 10 91 3 - "192.0.2.7, 10.0.0.1" "curl/8" "id" "api.example:8080" "-""#;
        let long = r#"[2026-10-10T11:55:36.120Z] "POST /api HTTP/2" 503 - via_upstream - "-" 10 91 3 2 "192.0.2.7" "curl/8" "id" "api.example:8080" "10.0.0.9:80""#;
        for line in [short, long] {
            let found = request(line);
            assert_eq!((&*found.method, &*found.target, found.status), ("POST", "/api", Some(503)));
            assert_eq!((found.host.as_deref(), found.client), (Some("api.example:8080"), "192.0.2.7".parse().ok()));
            assert_eq!((found.at_ms, &*found.fields[0].1), (Some(1_791_633_336_120), "curl/8"));
        }
    }

    #[test]
    fn requests_that_nothing_can_be_sent_for_are_none() {
        for line in [
            "\"-\" 400 0",
            "\"\\x16\\x03\\x01\" 400 0",
            "\"CONNECT a:443 HTTP/1.1\" 405 0",
            "\"OPTIONS * HTTP/1.1\" 200 0",
        ] {
            let line = format!("192.0.2.1 - - [10/Oct/2026:13:55:36 +0200] {line}");
            assert_eq!(of_line(&line), Ok(None), "{line}");
        }
        let absolute =
            request(r#"192.0.2.1 - - [10/Oct/2026:13:55:36 +0200] "GET http://other.example/x HTTP/1.1" 200 0"#);
        assert_eq!((absolute.host.as_deref(), &*absolute.target), (Some("other.example"), "/x"));
    }

    #[test]
    fn lines_of_other_programs_are_faults() {
        for line in ["Oct 10 13:55:36 host sshd[1]: accepted", "[error] 12#12: *1 open() failed", "a [b] c"] {
            assert!(of_line(line).is_err(), "{line}");
        }
    }
}
