//! Responses of the gateway itself, as plugins.

use crate::yaml::Yaml;

/// `mocking` with this status and body for every request that the plugins before it let pass: those that authenticate, control access
/// or limit.
pub(crate) fn answer_behind_plugins(status: i64, body: &str, content_type: Option<&str>) -> (String, Yaml) {
    let options = Yaml::map([
        ("response_status", Yaml::Integer(status)),
        ("response_example", Yaml::text(body)),
        ("content_type", Yaml::text(content_type.unwrap_or("text/plain"))),
        ("with_mock_header", Yaml::Boolean(false)),
        ("_meta", Yaml::map([("priority", Yaml::Integer(1))])),
    ]);
    ("mocking".to_owned(), options)
}

/// `fault-injection` with this status and body for every request.
pub(crate) fn answer(status: i64, body: &str, content_type: Option<&str>) -> (String, Yaml) {
    let mut abort = vec![("http_status".to_owned(), Yaml::Integer(status)), ("body".to_owned(), Yaml::text(body))];
    if let Some(kind) = content_type {
        abort.push(("headers".to_owned(), Yaml::map([("Content-Type", Yaml::text(kind))])));
    }
    ("fault-injection".to_owned(), Yaml::map([("abort", Yaml::Map(abort))]))
}
