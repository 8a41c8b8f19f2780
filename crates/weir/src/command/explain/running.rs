//! What a running node says of a request.

use std::path::Path;

use http::Method;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_control::explain::{Explanation, RequestDescription};

use crate::command::admin_client::{AdminAccess, AdminClient, UNIX};
use crate::exit::ExitCause;

/// The address of an Admin API, if it is written in place of a file.
pub(crate) fn server(file: &Path) -> Option<&str> {
    let text = file.to_str()?;
    ["http://", "https://", UNIX].iter().any(|scheme| text.starts_with(scheme)).then_some(text)
}

/// # Errors
/// The node cannot be reached, or refuses the request.
pub(super) fn explanation(
    server: &str,
    access: &AdminAccess,
    question: &RequestDescription,
    headers: Map<String, Value>,
) -> Result<Explanation, ExitCause> {
    explanation_of(&AdminClient::at(server, "the URL in place of FILE", access)?, question, headers)
}

/// # Errors
/// Like [`explanation`].
pub(crate) fn explanation_of(
    node: &AdminClient,
    question: &RequestDescription,
    headers: Map<String, Value>,
) -> Result<Explanation, ExitCause> {
    let RequestDescription { method, url, from, server_name, .. } = question;
    let mut body = json!({ "method": method, "url": url, "headers": headers, "from": from });
    if let Some(name) = server_name {
        body["server_name"] = name.as_str().into();
    }
    let answer = node.ask(Method::POST, "/weir/v1/explain", &[], Some(&body))?.body;
    Explanation::deserialize(answer).map_err(|_| node.is_foreign().into())
}

/// Fields as the Admin API takes them: several of one name are one, with all values (RFC 9110 5.3).
pub(crate) fn fields(headers: &[String]) -> Result<Map<String, Value>, String> {
    let mut fields = Map::new();
    for header in headers {
        let (name, value) =
            header.split_once(':').ok_or_else(|| format!("`{header}` does not have the form `Name: value`"))?;
        let value = value.trim();
        let whole = match fields.get(name).and_then(Value::as_str) {
            Some(earlier) => format!("{earlier}, {value}"),
            None => value.to_owned(),
        };
        fields.insert(name.to_owned(), whole.into());
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_from_a_file() {
        let is_server = |text: &str| server(Path::new(text)).is_some();
        assert!(is_server("http://127.0.0.1:9180") && is_server("https://node:9180") && is_server("unix:/run/a.sock"));
        assert!(!is_server("weir.yaml") && !is_server("./http") && !is_server("/etc/weir/weir.yaml"));
    }

    #[test]
    fn fields_of_one_name_are_joined() {
        let joined = fields(&["A: 1".to_owned(), "B: c:d".to_owned(), "A: 2".to_owned()]).expect("fields");
        assert_eq!(Value::Object(joined), json!({"A": "1, 2", "B": "c:d"}));
        assert!(fields(&["A".to_owned()]).is_err());
    }
}
