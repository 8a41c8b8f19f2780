//! JSON lines: the names of members that gateways and their usual formats have.

use serde_json::{Map, Value};

use super::{LogLine, RecordedRequest, moment, present};

/// The most fields of a request that are read.
const MAX_FIELDS: usize = 128;

const METHOD: &[&str] = &["request_method", "method", "RequestMethod", "http_method"];
const TARGET: &[&str] = &["request_uri", "uri", "path", "RequestPath", "url"];
const HOST: &[&str] = &["http_host", "host", "authority", ":authority", "RequestHost", "server_name"];
const CLIENT: &[&str] = &["remote_addr", "client", "client_ip", "remote_ip", "ClientHost", "downstream_remote_address"];
const SCHEME: &[&str] = &["scheme", "RequestScheme"];
const STATUS: &[&str] = &["status", "response_code", "DownstreamStatus", "status_code"];
const TIME: &[&str] = &[
    "time_iso8601",
    "time",
    "@timestamp",
    "timestamp",
    "time_local",
    "msec",
    "start_time",
    "started_at",
    "ts",
    "StartUTC",
];
/// A request line in one member.
const REQUEST_LINE: &[&str] = &["request", "request_line"];
const QUERY: &[&str] = &["args", "query_string"];
/// Members that are fields of the request.
const FIELDS: &[(&str, &str)] = &[
    ("http_user_agent", "user-agent"),
    ("user_agent", "user-agent"),
    ("agent", "user-agent"),
    ("http_referer", "referer"),
    ("referer", "referer"),
    ("http_accept", "accept"),
    ("http_accept_language", "accept-language"),
    ("http_accept_encoding", "accept-encoding"),
    ("http_cookie", "cookie"),
    ("http_authorization", "authorization"),
];

/// The first of some members that has a text or a number.
fn text(of: &Map<String, Value>, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| match of.get(*name)? {
        Value::String(text) => present(text).map(str::to_owned),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    })
}

pub(super) fn of_line(line: &str) -> LogLine {
    let logged: Value = serde_json::from_str(line).map_err(|error| format!("is not JSON: {error}"))?;
    let Value::Object(logged) = logged else { return Ok(None) };
    // Containers' logs have the line of the program as a text.
    if let Some(Value::String(inner)) = logged.get("log")
        && text(&logged, METHOD).is_none()
    {
        let inner = inner.trim();
        return if inner.starts_with("{\"log\"") { Ok(None) } else { super::of_line(inner) };
    }
    if let Some(Value::Object(inner)) = logged.get("log")
        && text(&logged, METHOD).is_none()
    {
        return Ok(of_object(inner));
    }
    Ok(of_object(&logged))
}

/// `None` for an object that is not about a request.
fn of_object(logged: &Map<String, Value>) -> Option<RecordedRequest> {
    let nothing = Map::new();
    let nested = |name: &str| logged.get(name).and_then(Value::as_object).unwrap_or(&nothing);
    let (asked, answered) = (nested("request"), nested("response"));
    let find = |names: &[&str]| text(logged, names).or_else(|| text(asked, names));
    let mut request = RecordedRequest::default();
    // The line is what the client sent; a path beside it may be decoded or rewritten.
    let line = text(logged, REQUEST_LINE);
    if line.and_then(|line| request.set_request_line(&line)).is_none() {
        request.method = find(METHOD)?;
        request.set_url(&find(TARGET)?);
    }
    if let Some(query) = find(QUERY).filter(|_| !request.target.contains('?')) {
        request.target = format!("{}?{query}", request.target);
    }
    add_fields(&mut request, logged, asked);
    let at = request.fields.iter().position(|(name, _)| name == "host");
    let field = at.map(|index| request.fields.remove(index).1);
    request.host = field.or_else(|| find(HOST)).or(request.host);
    request.scheme = find(SCHEME).or(request.scheme);
    request.client = find(CLIENT).and_then(|client| address(&client));
    request.status = text(answered, STATUS).or_else(|| text(logged, STATUS)).and_then(|status| status.parse().ok());
    request.at_ms = find(TIME).and_then(|time| moment::millis(&time));
    request.body = text(asked, &["body"]).unwrap_or_default().into_bytes();
    Some(request)
}

/// An IP address, also with a port.
fn address(text: &str) -> Option<std::net::IpAddr> {
    text.parse().ok().or_else(|| text.parse().ok().map(|address: std::net::SocketAddr| address.ip()))
}

fn add_fields(request: &mut RecordedRequest, logged: &Map<String, Value>, asked: &Map<String, Value>) {
    let headers = asked.get("headers").or(logged.get("request_headers")).and_then(Value::as_object);
    for (name, value) in headers.into_iter().flatten() {
        let values = match value {
            Value::Array(values) => values.as_slice(),
            value => std::slice::from_ref(value),
        };
        let values = values.iter().filter_map(Value::as_str);
        request.fields.extend(values.map(|value| (name.to_ascii_lowercase(), value.to_owned())));
    }
    request.fields.truncate(MAX_FIELDS);
    for (member, field) in FIELDS {
        if let Some(value) = text(logged, &[member])
            && !request.fields.iter().any(|(name, _)| name == field)
        {
            request.fields.push(((*field).to_owned(), value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(line: &str) -> RecordedRequest {
        of_line(line).expect("JSON").expect("a request")
    }

    #[test]
    fn flat_lines_of_access_logs_are_read() {
        let found = request(
            r#"{"remote_addr":"10.0.0.1","time_iso8601":"2026-10-10T13:55:36+02:00","request_method":"PUT","request_uri":"/a?b","host":"shop","status":"200","http_user_agent":"x","http_referer":"-"}"#,
        );
        assert_eq!((&*found.method, &*found.target, found.host.as_deref()), ("PUT", "/a?b", Some("shop")));
        assert_eq!((found.status, found.at_ms), (Some(200), Some(1_791_633_336_000)));
        assert_eq!(found.fields, [("user-agent".to_owned(), "x".to_owned())]);
        let line = request(r#"{"request":"GET /x HTTP/1.1","status":404,"ts":1791633336.5}"#);
        assert_eq!((&*line.target, line.status, line.at_ms), ("/x", Some(404), Some(1_791_633_336_500)));
        let rewritten = request(
            r#"{"request":"GET /a%20b?c HTTP/1.1","method":"GET","uri":"/index.html","http_host":"h:81","host":"h"}"#,
        );
        assert_eq!((&*rewritten.target, rewritten.host.as_deref()), ("/a%20b?c", Some("h:81")));
        let split = request(r#"{"method":"GET","uri":"/x","args":"a=1"}"#);
        assert_eq!(split.target, "/x?a=1");
        let envoy = request(
            r#"{"method":"GET","path":"/x","authority":"a.example","response_code":503,"downstream_remote_address":"10.0.0.2:5000"}"#,
        );
        assert_eq!(
            (envoy.host.as_deref(), envoy.status, envoy.client),
            (Some("a.example"), Some(503), "10.0.0.2".parse().ok())
        );
    }

    #[test]
    fn records_with_a_request_and_a_response_are_read() {
        let record = r#"{"client_ip":"10.0.0.3","start_time":1791633336120,"request":{"method":"POST","uri":"/v1/a?b=1","url":"http://shop.example:9080/v1/a?b=1","headers":{"host":"shop.example","x-tenant":"a","accept":["x","y"]},"body":"{}"},"response":{"status":201}}"#;
        let found = request(record);
        assert_eq!((found.host.as_deref(), &*found.target), (Some("shop.example"), "/v1/a?b=1"));
        assert_eq!((found.status, found.at_ms, &*found.body), (Some(201), Some(1_791_633_336_120), &b"{}"[..]));
        assert!(found.fields.contains(&("x-tenant".to_owned(), "a".to_owned())), "{:?}", found.fields);
        assert_eq!(found.fields.iter().filter(|(name, _)| name == "accept").count(), 2);
        let caddy = request(
            r#"{"ts":1791633336.12,"request":{"remote_ip":"10.0.0.4","method":"GET","host":"b.example","uri":"/"},"status":200}"#,
        );
        assert_eq!((caddy.host.as_deref(), caddy.client), (Some("b.example"), "10.0.0.4".parse().ok()));
    }

    #[test]
    fn lines_within_logs_of_containers_are_read() {
        let line =
            r#"{"log":"192.0.2.1 - - [10/Oct/2026:13:55:36 +0200] \"GET /x HTTP/1.1\" 200 0\n","stream":"stdout"}"#;
        assert_eq!(request(line).target, "/x");
        assert_eq!(of_line(r#"{"log":"{\"log\":\"deeper\"}"}"#), Ok(None));
        let mut within = None;
        let object = r#"{"log":{"request_method":"GET","request_uri":"/y","status":200}}"#;
        super::super::read(object.as_bytes(), |_, line| {
            within = line.expect("a line");
            std::ops::ControlFlow::Continue(())
        })
        .expect("it is no HTTP archive");
        assert_eq!(within.map(|request| request.target).as_deref(), Some("/y"));
    }

    #[test]
    fn objects_about_something_else_are_none() {
        assert_eq!(of_line(r#"{"skipped":7}"#), Ok(None));
        assert_eq!(of_line("{}"), Ok(None));
        assert_eq!(of_line(r#"{"request":"\u0016"}"#), Ok(None));
    }
}
