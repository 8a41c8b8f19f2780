//! Masks secrets in responses.

use serde_json::Value;

use crate::document::{AdminRole, for_each_secret};

/// The replacement of a secret.
const MASK: &str = "***";

/// Removes secrets from a resource. No role sees private keys of certificates or tokens of secret managers; a viewer sees no
/// secret at all. References such as `$secret://vault/1/jack/key` are not secrets.
pub(super) fn redact(list: &str, value: &mut Value, role: AdminRole) {
    match list {
        "ssls" => {
            let Value::Object(members) = value else { return };
            members.shift_remove("key");
            members.shift_remove("keys");
        }
        "secrets" => mask(list, value),
        _ if role == AdminRole::Viewer => mask(list, value),
        _ => {}
    }
}

fn mask(list: &str, value: &mut Value) {
    for_each_secret(list, value, |_, text| MASK.clone_into(text));
}

/// Restores masked secrets from the stored resource: a client that sends back a resource as it was shown keeps its secrets.
pub(super) fn unmask(value: &mut Value, stored: &Value) {
    match (value, stored) {
        (Value::String(text), Value::String(secret)) if text == MASK => text.clone_from(secret),
        (Value::Object(members), Value::Object(stored)) => {
            for (name, member) in members {
                if let Some(stored) = stored.get(name) {
                    unmask(member, stored);
                }
            }
        }
        (Value::Array(items), Value::Array(stored)) => {
            items.iter_mut().zip(stored).for_each(|(item, stored)| unmask(item, stored));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(list: &str, mut value: Value, role: AdminRole) -> Value {
        redact(list, &mut value, role);
        value
    }

    #[test]
    fn secrets_are_seen_by_few_and_keys_of_certificates_by_nobody() {
        let jack = json!({"username": "jack", "plugins": {"key-auth": {"key": "k1"}, "basic-auth": {"username": "j", "password": "p"}}});
        assert_eq!(seen("consumers", jack.clone(), AdminRole::Editor), jack);
        let masked = json!({"username": "jack", "plugins": {"key-auth": {"key": "***"}, "basic-auth": {"username": "j", "password": "***"}}});
        assert_eq!(seen("consumers", jack, AdminRole::Viewer), masked);
        let ssl = json!({"cert": "c", "key": "k", "keys": ["l"], "sni": "a"});
        assert_eq!(seen("ssls", ssl, AdminRole::Admin), json!({"cert": "c", "sni": "a"}));
        let vault = json!({"uri": "http://v", "token": "t"});
        assert_eq!(seen("secrets", vault, AdminRole::Admin), json!({"uri": "http://v", "token": "***"}));
    }

    #[test]
    fn what_was_masked_is_put_back() {
        let stored = json!({"token": "t", "uri": "http://v", "list": [{"secret": "s"}]});
        let mut sent = json!({"token": "***", "uri": "http://w", "list": [{"secret": "***"}, {"secret": "***"}]});
        unmask(&mut sent, &stored);
        assert_eq!(sent, json!({"token": "t", "uri": "http://w", "list": [{"secret": "s"}, {"secret": "***"}]}));
    }

    #[test]
    fn what_only_says_where_a_secret_is_stays() {
        let route = json!({"plugins": {"limit-count": {"key": "remote_addr", "redis_password": "p"}}, "upstream": {"key": "arg_a", "tls": {"client_key": "k"}}});
        let masked = json!({"plugins": {"limit-count": {"key": "remote_addr", "redis_password": "***"}}, "upstream": {"key": "arg_a", "tls": {"client_key": "***"}}});
        assert_eq!(seen("routes", route, AdminRole::Viewer), masked);
        let jack = json!({"plugins": {"key-auth": {"key": "$secret://vault/1/jack/key"}}});
        assert_eq!(seen("consumers", jack.clone(), AdminRole::Viewer), jack);
    }
}
