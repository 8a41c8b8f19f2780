//! Error pages for browsers whose log-in has failed. The browser has left the console, so no script of the console can show the error.

use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Map, Value};

use super::super::answer::AdminResponse;
use super::super::audit::AuditedRefusal;

/// A refusal as a page, with a link to the console.
pub(super) fn page_of(refusal: AdminResponse, console: &str) -> AdminResponse {
    let (mut head, body) = refusal.into_parts();
    let told: Map<String, Value> = serde_json::from_slice(&body).unwrap_or_default();
    let problem = told.get("error_msg").and_then(Value::as_str).unwrap_or("the node has refused it");
    if head.extensions.get::<AuditedRefusal>().is_none() {
        head.extensions.insert(AuditedRefusal { who: None, reason: problem.to_owned() });
    }
    head.headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    let text = page(head.status, problem, console);
    AdminResponse::from_parts(head, text.into())
}

fn page(status: StatusCode, problem: &str, console: &str) -> String {
    let title = match status.is_server_error() {
        true => "The log-in is not possible at present",
        false => "The log-in has failed",
    };
    let (problem, console) = (escaped(problem), escaped(console));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<h1>{title}</h1>\n<p>{problem}.</p>\n<p><a href=\"{console}\">To the console</a></p>\n"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::answer::json_of;
    use super::*;

    #[test]
    fn a_page_escapes_its_text() {
        let refusal = json_of(StatusCode::FORBIDDEN, &json!({ "error_msg": "<script>\"&" }));
        let page = page_of(refusal, "/console/");
        let text = String::from_utf8_lossy(page.body());
        assert!(text.contains("<p>&lt;script&gt;&quot;&amp;.</p>") && text.contains("href=\"/console/\""), "{text}");
        assert_eq!(page.status(), StatusCode::FORBIDDEN);
        let audited = page.extensions().get::<AuditedRefusal>().map(|refusal| &*refusal.reason);
        assert_eq!(audited, Some("<script>\"&"));
    }
}
