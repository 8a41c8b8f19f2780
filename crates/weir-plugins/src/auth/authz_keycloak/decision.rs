//! What Keycloak is asked about a request, and what it decides.

use http::Response;
use http::header::HeaderValue;
use hyper::body::Bytes;
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
    pub server: KeycloakServer,
    pub permissions: Permissions,
    /// The method of a request is the scope that it needs.
    pub method_is_scope: bool,
    /// Keycloak is also asked about requests that need no permission.
    pub is_permissive: bool,
}

/// The answer about a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Allowed,
    /// The status and the body of the refusal.
    Denied(u16, Bytes),
}

/// The refusal of the gateway, in the words of Keycloak.
const NOT_AUTHORIZED: &[u8] = br#"{"error":"access_denied","error_description":"not_authorized"}"#;

impl Authorization {
    /// Decides about the owner of a token, which is a value of `Authorization`.
    ///
    /// # Errors
    /// Keycloak has not decided.
    pub(crate) async fn decide(&self, exchange: &Exchange, token: &HeaderValue) -> Result<Decision, KeycloakFailure> {
        let request = &exchange.request;
        let mut permissions = match &self.permissions {
            Permissions::Stated(stated) => stated.clone(),
            // A canonical path is ASCII.
            Permissions::OfPath => self.server.resources_of(&String::from_utf8_lossy(request.client_path())).await?,
        };
        let denied = || Ok(Decision::Denied(403, Bytes::from_static(NOT_AUTHORIZED)));
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

/// Only a decision that is there counts as one.
fn read(answer: Response<Bytes>) -> Result<Decision, KeycloakFailure> {
    match answer.status().as_u16() {
        200 => {
            let decision: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
            match decision["result"] {
                Value::Bool(true) => Ok(Decision::Allowed),
                _ => Err(KeycloakFailure::new("the token endpoint has sent no decision".to_owned())),
            }
        }
        status @ (400 | 401 | 403) => Ok(Decision::Denied(status, answer.into_body())),
        status => Err(KeycloakFailure::new(format!("the token endpoint answers with {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_decision_is_one() {
        let read = |status: u16, body: &'static str| {
            let answer = Response::builder().status(status).body(Bytes::from_static(body.as_bytes()));
            read(answer.expect("valid"))
        };
        assert_eq!(read(200, r#"{"result":true}"#).expect("a decision"), Decision::Allowed);
        for status in [400, 401, 403] {
            let body = r#"{"error":"invalid_resource"}"#;
            assert_eq!(read(status, body).expect("a decision"), Decision::Denied(status, body.into()));
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
