//! Responses of the gateway itself, as plugins.

use crate::yaml::Yaml;

/// `fault-injection` with this status and body for every request.
pub(crate) fn answer(status: i64, body: &str, content_type: Option<&str>) -> (String, Yaml) {
    let mut abort = vec![("http_status".to_owned(), Yaml::Integer(status)), ("body".to_owned(), Yaml::text(body))];
    if let Some(kind) = content_type {
        abort.push(("headers".to_owned(), Yaml::map([("Content-Type", Yaml::text(kind))])));
    }
    ("fault-injection".to_owned(), Yaml::map([("abort", Yaml::Map(abort))]))
}
