//! `authentication` of a rule: the auth plugin that it stands for.

use serde_json::{Map, Value};

use crate::objects::apisix::ApisixAuthentication;

/// The plugin and its options; `None` if consumers need not identify themselves.
///
/// # Errors
/// If there is no such way.
pub(super) fn plugin(wanted: &ApisixAuthentication) -> Result<Option<(&'static str, Value)>, String> {
    if !wanted.enable {
        return Ok(None);
    }
    let with = |options: &Map<String, Value>| Value::Object(options.clone());
    let none = || Value::Object(Map::new());
    Ok(Some(match &*wanted.kind {
        "keyAuth" => ("key-auth", with(&wanted.key_auth)),
        "jwtAuth" => ("jwt-auth", with(&wanted.jwt_auth)),
        "ldapAuth" => ("ldap-auth", with(&wanted.ldap_auth)),
        "basicAuth" => ("basic-auth", none()),
        "hmacAuth" => ("hmac-auth", none()),
        "wolfRBAC" => return Err("authentication.type: wolfRBAC is not supported".to_owned()),
        other => {
            return Err(format!(
                "authentication.type: `{other}` is none of basicAuth, keyAuth, jwtAuth, hmacAuth and ldapAuth"
            ));
        }
    }))
}
