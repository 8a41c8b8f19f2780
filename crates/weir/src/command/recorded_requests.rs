//! Reads requests from a file: those of an access log, or of a list written by hand.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::Path;

use serde_json::{Value, json};
use weir_rehearsal::log::{self, RecordedRequest};

/// The most different requests, which is the limit of the Admin API.
const MOST_REQUESTS: usize = 10_000;
/// The first bytes of what gzip has compressed (RFC 1952 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Opens a log, which may be compressed with gzip; `-` is standard input.
///
/// # Errors
/// The file cannot be opened or read.
pub(super) fn open(file: &Path) -> io::Result<Box<dyn BufRead + Send>> {
    let input: Box<dyn Read + Send> = if file == Path::new("-") {
        Box::new(io::stdin())
    } else {
        let file = File::open(file)?;
        match file.metadata()? {
            // What is logged from now on, perhaps by this command's own requests, is not read.
            about if about.is_file() => Box::new(file.take(about.len())),
            _ => Box::new(file),
        }
    };
    let mut input = BufReader::new(input);
    if input.fill_buf()?.starts_with(&GZIP) {
        return Ok(Box::new(BufReader::new(flate2::bufread::MultiGzDecoder::new(input))));
    }
    Ok(Box::new(input))
}

/// The different requests of a file, as the Admin API expects them.
///
/// # Errors
/// If the file cannot be read, with the number of the line.
pub(super) fn read(file: &Path) -> Result<Vec<Value>, String> {
    let unreadable = |error| format!("{}: cannot be read: {error}", file.display());
    let (mut seen, mut requests, mut fault) = (BTreeSet::new(), Vec::new(), None);
    let read = log::read(open(file).map_err(unreadable)?, |number, line| {
        match line {
            Ok(None) => {}
            Ok(Some(request)) => {
                let request = of_admin_api(&request);
                requests.extend(seen.insert(request.to_string()).then_some(request));
            }
            Err(problem) => fault = Some(format!("{}:{number}: {problem}", file.display())),
        }
        // A log may have gigabytes.
        if fault.is_some() || requests.len() > MOST_REQUESTS {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    read.map_err(unreadable)?;
    match (fault, requests.len()) {
        (Some(fault), _) => Err(fault),
        (None, 0) => Err(format!("{}: contains no request", file.display())),
        (None, count) if count > MOST_REQUESTS => {
            Err(format!("{}: contains more than {MOST_REQUESTS} different requests; give a part of it", file.display()))
        }
        _ => Ok(requests),
    }
}

fn of_admin_api(request: &RecordedRequest) -> Value {
    let RecordedRequest { method, scheme, host, target, client, .. } = request;
    let url = match host {
        Some(host) => format!("{}://{host}{target}", scheme.as_deref().unwrap_or("http")),
        None => target.clone(),
    };
    let mut told = json!({ "method": method, "url": url });
    if let Some(client) = client {
        told["from"] = client.to_string().into();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_logs_and_plain_requests_are_read() {
        let of = |line: &str| log::of_line(line).expect("a line").map(|request| of_admin_api(&request));
        assert_eq!(of("GET https://a/b"), Some(json!({"method": "GET", "url": "https://a/b"})));
        assert_eq!(of("GET /b"), Some(json!({"method": "GET", "url": "/b"})));
        let logged =
            r#"{"remote_addr":"10.0.0.1","request_method":"PUT","request_uri":"/a?b","host":"shop","status":200}"#;
        assert_eq!(of(logged), Some(json!({"method": "PUT", "url": "http://shop/a?b", "from": "10.0.0.1"})));
        let tail = r#"{"client":"::1","method":"GET","scheme":"https","host":"shop","uri":"/a","status":200}"#;
        assert_eq!(of(tail), Some(json!({"method": "GET", "url": "https://shop/a", "from": "::1"})));
        assert_eq!(of(r#"{"skipped":7}"#), None);
        let combined = r#"127.0.0.1 - - [10/Oct/2026:13:55:36 +0200] "GET /c HTTP/1.1" 200 1 "-" "-""#;
        assert_eq!(of(combined), Some(json!({"method": "GET", "url": "/c", "from": "127.0.0.1"})));
    }

    #[test]
    fn reading_stops_at_the_limit_of_requests() {
        let directory = weir_testkit::TempDir::new();
        let lines: String = (0..=MOST_REQUESTS).map(|number| format!("GET /{number}\n")).collect();
        let file = directory.write("list", format!("{lines}not a request\n"));
        let problem = read(&file).expect_err("it has too many");
        assert!(problem.contains("more than 10000 different requests"), "{problem}");
    }
}
