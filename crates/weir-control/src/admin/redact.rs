//! What is a secret in an answer.

use serde_json::Value;

use crate::document::AdminRole;

/// What stands in its place.
const MASK: &str = "***";

/// Options of plugins, and members of resources, whose value is a secret.
const SECRET_MEMBERS: &[&str] = &[
    "access_key_id",
    "auth_header",
    "client_key",
    "client_secret",
    "key",
    "password",
    "private_key",
    "redis_password",
    "secret",
    "secret_access_key",
    "secret_key",
    "sentinel_password",
    "session_token",
    "token",
];

/// Names that are secrets under some plugins or in some resources, and elsewhere say what is looked at.
const AMBIGUOUS: &str = "key";

/// Removes secrets from a resource. No role sees private keys of certificates or tokens of secret managers; a viewer sees no
/// secret at all. References such as `$secret://vault/1/jack/key` are not secrets.
pub(super) fn redact(list: &str, value: &mut Value, role: AdminRole) {
    let Value::Object(members) = value else { return };
    match list {
        "ssls" => {
            members.shift_remove("key");
            members.shift_remove("keys");
        }
        "secrets" => mask_members(members.iter_mut(), true),
        _ if role == AdminRole::Viewer => {
            let is_consumer = list == "consumers";
            for (key, member) in members.iter_mut() {
                match key.as_str() {
                    "plugins" => mask_plugins(member, is_consumer),
                    _ => mask(member, false),
                }
            }
        }
        _ => {}
    }
}

/// Puts back what was masked: who sends a resource as it was shown means to leave its secrets as they are.
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

fn mask_plugins(plugins: &mut Value, is_consumer: bool) {
    for (name, options) in plugins.as_object_mut().into_iter().flatten() {
        mask(options, is_consumer || matches!(name.as_str(), "csrf"));
    }
}

fn mask(value: &mut Value, key_is_secret: bool) {
    match value {
        Value::Object(members) => mask_members(members.iter_mut(), key_is_secret),
        Value::Array(items) => items.iter_mut().for_each(|item| mask(item, key_is_secret)),
        _ => {}
    }
}

fn mask_members<'m>(members: impl Iterator<Item = (&'m String, &'m mut Value)>, key_is_secret: bool) {
    for (name, member) in members {
        let is_secret = SECRET_MEMBERS.contains(&name.as_str()) && (name != AMBIGUOUS || key_is_secret);
        match member {
            Value::String(text) if is_secret && !text.starts_with("$secret://") && !text.starts_with("$env://") => {
                *text = MASK.to_owned();
            }
            member => mask(member, key_is_secret),
        }
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
