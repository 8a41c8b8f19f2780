//! What Keycloak is asked about a request, and what it decides.

use std::borrow::Cow;
use std::sync::Arc;

use http::Response;
use http::header::HeaderValue;
use hyper::body::Bytes;
use percent_encoding::percent_decode;
use serde_json::Value;
use weir_plugin::Exchange;

use super::server::{KeycloakFailure, KeycloakServer};

/// The permissions that a request needs.
pub(crate) enum Permissions {
    Stated(Vec<String>),
    /// Those of the resources for its path.
    OfPath,
}

/// Decides about requests.
pub(crate) struct Authorization {
    pub server: Arc<KeycloakServer>,
    pub permissions: Permissions,
    /// The method of a request is the scope that it needs.
    pub method_is_scope: bool,
    /// Keycloak is also asked about requests that need no permission.
    pub is_permissive: bool,
}

/// The answer about a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum KeycloakDecision {
    Allowed,
    /// The status and the body of the refusal.
    Denied(u16, Bytes),
}

/// The refusal of the gateway, in the words of Keycloak.
const NOT_AUTHORIZED: &[u8] = br#"{"error":"access_denied","error_description":"not_authorized"}"#;

/// The refusal of a path of which the resource is not clear.
const UNCLEAR_PATH: &[u8] = br#"{"error":"access_denied","error_description":"the path has a semicolon, an encoded slash or backslash, or is not UTF-8"}"#;

impl Authorization {
    /// Decides about the owner of a token, which is a value of `Authorization`.
    ///
    /// # Errors
    /// Keycloak has not decided.
    pub(crate) async fn decide(
        &self,
        exchange: &Exchange,
        token: &HeaderValue,
    ) -> Result<KeycloakDecision, KeycloakFailure> {
        let request = &exchange.request;
        let mut permissions = match &self.permissions {
            Permissions::Stated(stated) => stated.clone(),
            Permissions::OfPath => match decoded(request.client_path()) {
                Some(path) => self.server.resources_of(&path).await?,
                None => return Ok(KeycloakDecision::Denied(403, Bytes::from_static(UNCLEAR_PATH))),
            },
        };
        let denied = || Ok(KeycloakDecision::Denied(403, Bytes::from_static(NOT_AUTHORIZED)));
        if permissions.is_empty() && !self.is_permissive {
            return denied();
        }
        if self.method_is_scope {
            let method = String::from_utf8_lossy(request.client_method_name());
            // Keycloak reads `orders#GET#X` as the scope `GET`, and the method would be another one.
            if method.contains('#') {
                return denied();
            }
            permissions.iter_mut().for_each(|permission| *permission += &format!("#{method}"));
        }
        read(self.server.decide(token, &permissions).await?)
    }
}

/// A canonical path, decoded, as resources are compared with it. `None` if servers differ in where its segments end: Keycloak could decide
/// about another resource than the one that the upstream serves.
fn decoded(path: &[u8]) -> Option<String> {
    let has = |wanted: &[u8]| path.windows(wanted.len()).any(|part| part == wanted);
    match [&b";"[..], b"%3B", b"%2F", b"%5C"].into_iter().any(has) {
        true => None,
        false => percent_decode(path).decode_utf8().ok().map(Cow::into_owned),
    }
}

/// Only a decision that is there counts as one.
fn read(answer: Response<Bytes>) -> Result<KeycloakDecision, KeycloakFailure> {
    match answer.status().as_u16() {
        200 => {
            let decision: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
            match decision["result"] {
                Value::Bool(true) => Ok(KeycloakDecision::Allowed),
                _ => Err(KeycloakFailure::new("the token endpoint has sent no decision".to_owned())),
            }
        }
        status @ (400 | 401 | 403) => Ok(KeycloakDecision::Denied(status, answer.into_body())),
        status => Err(KeycloakFailure::new(format!("the token endpoint answers with {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_looked_up_decoded_and_refused_if_its_segments_are_not_clear() {
        for (path, want) in [
            ("/orders/1", Some("/orders/1")),
            ("/caf%C3%A9/a%20b%23", Some("/café/a b#")),
            ("/a%252Fb", Some("/a%2Fb")),
            ("/orders;a/1", None),
            ("/orders%3Ba/1", None),
            ("/orders%2F1", None),
            ("/orders%5C1", None),
            ("/%FF", None),
        ] {
            assert_eq!(decoded(path.as_bytes()).as_deref(), want, "{path}");
        }
    }

    #[test]
    fn only_a_decision_is_one() {
        let read = |status: u16, body: &'static str| {
            let answer = Response::builder().status(status).body(Bytes::from_static(body.as_bytes()));
            read(answer.expect("valid"))
        };
        assert_eq!(read(200, r#"{"result":true}"#).expect("a decision"), KeycloakDecision::Allowed);
        for status in [400, 401, 403] {
            let body = r#"{"error":"invalid_resource"}"#;
            assert_eq!(read(status, body).expect("a decision"), KeycloakDecision::Denied(status, body.into()));
        }
        for (status, body) in [
            (200, ""),
            (200, "<html>"),
            (200, r#"{"result":false}"#),
            (200, r#"{"result":"true"}"#),
            (200, r#"{"access_token":"t"}"#),
            (204, ""),
            (302, r#"{"result":true}"#),
            (404, r#"{"error":"Realm does not exist"}"#),
            (503, r#"{"result":true}"#),
        ] {
            assert!(read(status, body).is_err(), "{status} {body}");
        }
    }
}
