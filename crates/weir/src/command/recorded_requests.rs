//! Reads requests from a file: those of an access log, or of a list written by hand.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

/// The most different requests, which is the limit of the Admin API.
const MOST_REQUESTS: usize = 10_000;

/// The different requests of a file, as the Admin API expects them. Each line is a method and a URL, or a JSON object of the access
/// log (`format: json`) or of `weir tail`.
///
/// # Errors
/// If the file cannot be read, with the number of the line.
pub(super) fn read(file: &Path) -> Result<Vec<Value>, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: cannot be read: {error}", file.display()))?;
    let mut seen = BTreeSet::new();
    let mut requests = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let request = of_line(line.trim()).map_err(|problem| format!("{}:{}: {problem}", file.display(), index + 1))?;
        if request.as_ref().is_some_and(|request| seen.insert(request.to_string())) {
            requests.extend(request);
        }
    }
    match requests.len() {
        0 => Err(format!("{}: contains no request", file.display())),
        count if count > MOST_REQUESTS => {
            Err(format!("{}: contains {count} different requests, and the limit is {MOST_REQUESTS}", file.display()))
        }
        _ => Ok(requests),
    }
}

/// `None` for a line of the log that is not about a request that could be parsed.
fn of_line(line: &str) -> Result<Option<Value>, String> {
    if !line.starts_with('{') {
        let is_request = line.split_once(' ').is_some_and(|(method, _)| method.bytes().all(|b| b.is_ascii_uppercase()));
        return match is_request {
            true => Ok(Some(line.into())),
            false => Err("is neither JSON nor a request such as `GET https://shop.example/orders/1`".to_owned()),
        };
    }
    let logged: Value = serde_json::from_str(line).map_err(|error| format!("is not JSON: {error}"))?;
    let text = |names: &[&str]| {
        let found = names.iter().find_map(|name| logged[*name].as_str());
        found.filter(|text| !text.is_empty() && *text != "-")
    };
    let (method, target) = (text(&["request_method", "method"]), text(&["request_uri", "uri"]));
    let (Some(method), Some(target)) = (method, target) else { return Ok(None) };
    let (host, scheme) = (text(&["host"]).unwrap_or_default(), text(&["scheme"]).unwrap_or("http"));
    let mut request = json!({ "method": method, "url": format!("{scheme}://{host}{target}") });
    if let Some(client) = text(&["remote_addr", "client"]) {
        request["from"] = client.into();
    }
    Ok(Some(request))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_logs_and_plain_requests_are_read() {
        let of = |line: &str| of_line(line).expect("a line");
        assert_eq!(of("GET https://a/b"), Some("GET https://a/b".into()));
        let logged =
            r#"{"remote_addr":"10.0.0.1","request_method":"PUT","request_uri":"/a?b","host":"shop","status":200}"#;
        assert_eq!(of(logged), Some(json!({"method": "PUT", "url": "http://shop/a?b", "from": "10.0.0.1"})));
        let tail = r#"{"client":"::1","method":"GET","scheme":"https","host":"shop","uri":"/a","status":200}"#;
        assert_eq!(of(tail), Some(json!({"method": "GET", "url": "https://shop/a", "from": "::1"})));
        assert_eq!(of(r#"{"skipped":7}"#), None);
        assert!(of_line("127.0.0.1 - - [x] \"GET / HTTP/1.1\" 200").is_err());
        assert!(of_line("{").is_err());
    }
}
