//! The members of a resource that are secrets. This one list decides what API responses mask and what stores encrypt.

use std::collections::BTreeSet;

use serde_json::Value;
use weir_plugin::secret_name::{SECRET_NAMES, has_headers, is_secret_header};

use super::data_encryption::UNREADABLE;
use super::kinds::{self, ResourceKind};
use super::reference_text::is_reference;
use super::settings;
use crate::keys::{AboutKey, KeyTable};

/// Plugins whose `key` is a secret; in other plugins it names what is counted or hashed. In consumers, `key` is a secret in every
/// plugin.
const KEY_IS_SECRET: &[&str] = &["csrf"];

/// Options that Apache APISIX encrypts (`encrypt_fields` of its plugins). The value is a text, or a list or map of texts.
const APISIX_OPTIONS: &[(&str, &[&str])] = &[
    ("authz-keycloak", &["client_secret"]),
    ("aws-lambda", &["authorization.apikey", "authorization.iam.accesskey", "authorization.iam.secretkey"]),
    ("azure-functions", &["authorization.apikey"]),
    ("clickhouse-logger", &["password"]),
    ("csrf", &["key"]),
    ("elasticsearch-logger", &["auth.password", "headers"]),
    ("google-cloud-logging", &["auth_config.private_key"]),
    ("http-logger", &["auth_header"]),
    ("kafka-logger", &["brokers.sasl_config.password"]),
    ("lago", &["token"]),
    ("limit-conn", &["redis_password"]),
    ("graphql-limit-count", &["redis_password", "sentinel_password"]),
    ("limit-count", &["redis_password", "sentinel_password"]),
    ("limit-req", &["redis_password"]),
    ("loggly", &["customer_token"]),
    ("loki-logger", &["headers"]),
    ("openfunction", &["authorization.service_token"]),
    (
        "openid-connect",
        &["client_secret", "client_rsa_private_key", "dpop.private_key", "session.secret", "session.redis.password"],
    ),
    ("openwhisk", &["service_token"]),
    ("sls-logger", &["access_key_secret"]),
    ("splunk-hec-logging", &["endpoint.token"]),
    ("tencent-cloud-cls", &["secret_key"]),
];

/// Secret options that APISIX does not encrypt, or does not have.
const OWN_OPTIONS: &[(&str, &[&str])] =
    &[("oas-validator", &["spec_url_request_headers"]), ("otlp-logger", &["headers"])];

/// Options that APISIX encrypts in consumers and credentials, besides those above.
const APISIX_CONSUMER_OPTIONS: &[(&str, &[&str])] =
    &[("basic-auth", &["password"]), ("hmac-auth", &["secret_key"]), ("jwt-auth", &["secret"]), ("key-auth", &["key"])];

/// Plugins whose URLs every client gets.
const PUBLIC_URLS: &[&str] = &["redirect"];

/// What responses contain in place of a secret.
pub const MASK: &str = "***";
/// What stands in a sent resource for a masked secret until the stored one is found; no text of a client contains it.
pub const PENDING_SECRET: &str = "\u{0}masked\u{0}";

/// How Apache APISIX stores a secret in etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApisixStorage {
    Plain,
    Encrypted,
    /// A private key; encrypted if it is PEM.
    EncryptedPem,
}

/// A secret in a resource.
pub struct SecretField<'a> {
    /// Such as `plugins.key-auth.key` or `keys[0]`.
    pub path: &'a str,
    pub apisix: ApisixStorage,
}

/// Calls `visit` with each secret in a resource of this list, and its text. References such as `$secret://vault/1/jack/key`
/// contain no secret and are left out.
pub fn for_each_secret(list: &str, resource: &mut Value, mut visit: impl FnMut(SecretField<'_>, &mut String)) {
    walk(list, resource, &mut |field, value| {
        if let Value::String(text) = value {
            visit(field, text);
        }
    });
}

/// Puts [`MASK`] in place of each secret, also of those that are written as a number.
pub fn mask_secrets(list: &str, resource: &mut Value) {
    walk(list, resource, &mut |_, value| *value = MASK.into());
}

fn walk(list: &str, resource: &mut Value, visit: &mut dyn FnMut(SecretField<'_>, &mut Value)) {
    SecretWalk { list, path: String::new(), names: Vec::new(), visit }.value(resource);
}

struct SecretWalk<'v> {
    list: &'v str,
    path: String,
    /// The names of the members that lead to the current value, without indices of lists.
    names: Vec<String>,
    visit: &'v mut dyn FnMut(SecretField<'_>, &mut Value),
}

impl SecretWalk<'_> {
    fn value(&mut self, value: &mut Value) {
        let length = self.path.len();
        match value {
            Value::String(text) if is_reference(text) => {}
            Value::String(_) | Value::Number(_) | Value::Bool(_) => {
                let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
                let by_text = || {
                    says_secret(self.list, &names, value.as_str().unwrap_or_default()).then_some(ApisixStorage::Plain)
                };
                if let Some(apisix) = kind_of(self.list, &names).or_else(by_text) {
                    (self.visit)(SecretField { path: &self.path, apisix }, value);
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.path.push_str(&format!("[{index}]"));
                    self.value(item);
                    self.path.truncate(length);
                }
            }
            Value::Object(members) => {
                for (name, member) in members {
                    self.path.push_str(if length == 0 { "" } else { "." });
                    self.path.push_str(name);
                    self.names.push(name.clone());
                    self.value(member);
                    self.names.pop();
                    self.path.truncate(length);
                }
            }
            Value::Null => {}
        }
    }
}

/// Whether a text under these names is a secret.
pub fn is_secret_at(list: &str, names: &[&str]) -> bool {
    kind_of(list, names).is_some()
}

/// Resources whose secrets no role sees.
const SHOWN_TO_NONE: &[&str] = &["ssls", "secrets", "hubs"];

/// Whether no role sees the value under these names of a file: secrets of the node's settings, private keys of certificates, what secret
/// managers are asked with, and secrets of hubs. Items of lists have no name.
pub fn is_shown_to_none(names: &[&str]) -> bool {
    let Some((first, rest)) = names.split_first() else { return false };
    match kinds::find(first) {
        Some(_) => SHOWN_TO_NONE.contains(first) && is_secret_at(first, rest),
        None => declared(settings::table(), names).is_some(),
    }
}

/// Marks the secrets in the schema of a value under these names with `writeOnly`.
pub fn mark_secrets(list: &str, names: &[&str], schema: &mut Value) {
    let mut marking = SecretMarking { list, schema, secrets: BTreeSet::new() };
    let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    marking.within("", &mut names);
    for pointer in marking.secrets {
        if let Some(Value::Object(members)) = schema.pointer_mut(&pointer) {
            members.insert("writeOnly".to_owned(), true.into());
        }
    }
}

/// The deepest option that is looked for: definitions may refer to themselves.
const MOST_NAMES: usize = 12;

struct SecretMarking<'s> {
    list: &'s str,
    schema: &'s Value,
    /// JSON Pointers into the schema.
    secrets: BTreeSet<String>,
}

impl SecretMarking<'_> {
    /// Looks into the part of the schema at `pointer`, which describes the value under `names`.
    fn within(&mut self, pointer: &str, names: &mut Vec<String>) {
        let Some(Value::Object(node)) = self.schema.pointer(pointer) else { return };
        if names.len() > MOST_NAMES {
            return;
        }
        let path: Vec<&str> = names.iter().map(String::as_str).collect();
        let is_definition = pointer.starts_with("/$defs/") && pointer.matches('/').count() == 2;
        if kind_of(self.list, &path).is_some() && !is_definition {
            self.secrets.insert(pointer.to_owned());
        }
        if let Some(reference) = node.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#')) {
            self.within(reference, names);
        }
        for name in node.get("properties").and_then(Value::as_object).into_iter().flat_map(|map| map.keys()) {
            names.push(name.clone());
            self.within(&format!("{pointer}/properties/{}", name.replace('~', "~0").replace('/', "~1")), names);
            names.pop();
        }
        self.within(&format!("{pointer}/items"), names);
        for form in ["anyOf", "oneOf", "allOf"] {
            let count = node.get(form).and_then(Value::as_array).map_or(0, Vec::len);
            (0..count).for_each(|index| self.within(&format!("{pointer}/{form}/{index}"), names));
        }
    }
}

/// Whether the value under these names is a secret, and how APISIX stores it.
fn kind_of(list: &str, names: &[&str]) -> Option<ApisixStorage> {
    let is_named = |name: &&str| SECRET_NAMES.contains(name);
    if let Some(about) = kinds::find(list).and_then(ResourceKind::table).and_then(|table| declared(table, names)) {
        return Some(if about.is_pem { ApisixStorage::EncryptedPem } else { ApisixStorage::Plain });
    }
    match (list, names) {
        (_, ["plugins", plugin, option @ ..]) => {
            let is_consumer = list == "consumers";
            let is_of = |table: &[(&str, &[&str])]| {
                let options = table.iter().filter(|(name, _)| name == plugin).flat_map(|(_, options)| *options);
                options.into_iter().any(|wanted| leads_to(wanted, option))
            };
            if is_of(APISIX_OPTIONS) || is_consumer && is_of(APISIX_CONSUMER_OPTIONS) {
                return Some(ApisixStorage::Encrypted);
            }
            if is_of(OWN_OPTIONS) {
                return Some(ApisixStorage::Plain);
            }
            let key_is_secret = is_consumer || KEY_IS_SECRET.contains(plugin);
            let is_secret = option.last().is_some_and(|last| is_named(last) || key_is_secret && *last == "key");
            is_secret.then_some(ApisixStorage::Plain)
        }
        ("plugin_metadata", ["collector", "request_headers", _]) => Some(ApisixStorage::Plain),
        // Of `azure-functions`.
        ("plugin_metadata", ["master_apikey"]) => Some(ApisixStorage::Encrypted),
        (_, [.., last]) => is_named(last).then_some(ApisixStorage::Plain),
        (_, []) => None,
    }
}

/// Whether a text that no name marks contains a secret: a header field with credentials, in a map or as `Name: value`, or a URL of a
/// plugin with a query or a user. A text that already stands for a secret in such a place counts, too.
fn says_secret(list: &str, names: &[&str], text: &str) -> bool {
    let is_field = names.iter().any(|name| has_headers(name));
    let is_plugin = match names {
        ["plugins", plugin, ..] => !PUBLIC_URLS.contains(plugin),
        _ => list == "plugin_metadata",
    };
    let stands_for_secret = || [MASK, PENDING_SECRET].contains(&text) || text.starts_with(UNREADABLE);
    let is_header = || {
        let line = text.split_once(':').map(|(name, _)| name);
        // `{key: Authorization, value: …}`, whose name is not looked at.
        let by_name = |name: &&str| *name == "value" || is_secret_header(name) && !has_headers(name);
        names.last().is_some_and(by_name) || line.is_some_and(is_secret_header)
    };
    is_field && (is_header() || stands_for_secret()) || is_plugin && (is_private_url(text) || stands_for_secret())
}

/// Whether a text is an absolute URL with a query or a user, either of which may be a credential.
fn is_private_url(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else { return false };
    let is_scheme =
        !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let has_user = || rest.split('/').next().is_some_and(|authority| authority.contains('@'));
    is_scheme && (rest.split_once('?').is_some_and(|(_, query)| !query.is_empty()) || has_user())
}

/// What is declared of the key under these names, if it is a secret.
fn declared(table: &'static KeyTable, names: &[&str]) -> Option<&'static AboutKey> {
    let (first, rest) = names.split_first()?;
    let key = table.find(first)?;
    match key.inner() {
        Some(inner) if !rest.is_empty() => declared(inner, rest),
        _ => Some(key.about()).filter(|about| about.is_secret),
    }
}

/// Whether an option is the one written as `auth.password`, or a direct member of it.
fn leads_to(wanted: &str, option: &[&str]) -> bool {
    let mut rest = option.iter();
    wanted.split('.').all(|part| rest.next() == Some(&part)) && rest.count() <= 1
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(list: &str, mut resource: Value) -> Vec<(String, ApisixStorage)> {
        let mut found = Vec::new();
        for_each_secret(list, &mut resource, |field, _| found.push((field.path.to_owned(), field.apisix)));
        found
    }

    #[test]
    fn secrets_that_are_numbers_are_masked() {
        let mut route = json!({"priority": 5, "plugins": {
            "proxy-rewrite": {"headers": {"set": {"X-Api-Key": 12345, "X-Version": 2}, "add": {"Authorization": true}}},
            "limit-count": {"count": 3, "redis_password": 1234}}});
        mask_secrets("routes", &mut route);
        assert_eq!(
            route,
            json!({"priority": 5, "plugins": {
            "proxy-rewrite": {"headers": {"set": {"X-Api-Key": "***", "X-Version": 2}, "add": {"Authorization": "***"}}},
            "limit-count": {"count": 3, "redis_password": "***"}}})
        );
    }

    #[test]
    fn secrets_are_found_by_their_plugin_or_their_name() {
        use ApisixStorage::{Encrypted, EncryptedPem, Plain};
        let table = [
            ("consumers", json!({"plugins": {"key-auth": {"key": "k"}}}), vec![("plugins.key-auth.key", Encrypted)]),
            ("routes", json!({"plugins": {"limit-count": {"key": "remote_addr"}}}), vec![]),
            ("routes", json!({"plugins": {"csrf": {"key": "k"}}}), vec![("plugins.csrf.key", Encrypted)]),
            (
                "routes",
                json!({"plugins": {"kafka-logger": {"brokers": [{"host": "h"}, {"sasl_config": {"password": "p"}}]}}}),
                vec![("plugins.kafka-logger.brokers[1].sasl_config.password", Encrypted)],
            ),
            (
                "global_rules",
                json!({"plugins": {"loki-logger": {"headers": {"Authorization": "a"}}}}),
                vec![("plugins.loki-logger.headers.Authorization", Encrypted)],
            ),
            (
                "routes",
                json!({"plugins": {"otlp-logger": {"headers": {"X-Tenant": "t"}}}}),
                vec![("plugins.otlp-logger.headers.X-Tenant", Plain)],
            ),
            (
                "plugin_metadata",
                json!({"collector": {"address": "a", "request_headers": {"X-Tenant": "t"}}}),
                vec![("collector.request_headers.X-Tenant", Plain)],
            ),
            (
                "routes",
                json!({"plugins": {"some-plugin": {"a": {"token": "t"}}}}),
                vec![("plugins.some-plugin.a.token", Plain)],
            ),
            (
                "ssls",
                json!({"cert": "c", "key": "k", "keys": ["l"]}),
                vec![("key", EncryptedPem), ("keys[0]", EncryptedPem)],
            ),
            ("upstreams", json!({"key": "arg_a", "tls": {"client_key": "k"}}), vec![("tls.client_key", EncryptedPem)]),
            ("secrets", json!({"uri": "u", "token": "t"}), vec![("token", Plain)]),
            (
                "routes",
                json!({"plugins": {"proxy-rewrite": {"headers": {
                    "set": {"authorization": "Bearer t", "X-Tenant": "t", "X-API-Key": "k"},
                    "add": ["Cookie: a=b", "X-Tenant: t"], "remove": ["Authorization"]}}}}),
                vec![
                    ("plugins.proxy-rewrite.headers.set.authorization", Plain),
                    ("plugins.proxy-rewrite.headers.set.X-API-Key", Plain),
                    ("plugins.proxy-rewrite.headers.add[0]", Plain),
                ],
            ),
            (
                "upstreams",
                json!({"checks": {"active": {"req_headers": ["X-Token: t", "Accept: a"], "http_req_body": "b"}}}),
                vec![("checks.active.req_headers[0]", Plain), ("checks.active.http_req_body", Plain)],
            ),
            (
                "routes",
                json!({"uri": "/a?b", "plugins": {
                    "http-logger": {"uri": "https://h/?token=t", "a": "https://u:p@h/", "b": "https://h/a@b", "c": "/a?b=c"},
                    "redirect": {"uri": "https://h/?a=b"}, "zipkin": {"endpoint_addrs": ["http://h/a", "http://h/a?b"]}}}),
                vec![
                    ("plugins.http-logger.uri", Plain),
                    ("plugins.http-logger.a", Plain),
                    ("plugins.zipkin.endpoint_addrs[1]", Plain),
                ],
            ),
            ("consumers", json!({"plugins": {"key-auth": {"key": "$ENV://KEY"}}}), vec![]),
        ];
        for (list, resource, expected) in table {
            let expected: Vec<_> = expected.into_iter().map(|(path, kind)| (path.to_owned(), kind)).collect();
            assert_eq!(found(list, resource.clone()), expected, "{resource}");
        }
    }

    /// Each one that is declared, and no other.
    #[test]
    fn secrets_of_settings_are_shown_to_none() {
        fn walk(table: &'static KeyTable, names: &mut Vec<&'static str>, found: &mut Vec<String>) {
            assert!(names.len() < MOST_NAMES, "{names:?}");
            for key in table.keys() {
                names.push(key.about().name);
                if is_shown_to_none(names) {
                    found.push(names.join("."));
                }
                // A value of a map that is a secret as a whole.
                names.push("any");
                assert_eq!(is_shown_to_none(names), key.about().is_secret && key.inner().is_none(), "{names:?}");
                names.pop();
                assert_eq!(is_shown_to_none(names), key.about().is_secret, "{names:?}");
                if let Some(inner) = key.inner() {
                    walk(inner, names, found);
                }
                names.pop();
            }
        }
        let mut found = Vec::new();
        walk(settings::table(), &mut Vec::new(), &mut found);
        for known in
            ["admin.keys.key", "discovery.consul.token", "discovery.eureka.host", "acme.external_account.hmac_key"]
        {
            assert!(found.iter().any(|one| one.as_str() == known), "{known}: {found:?}");
        }
        for (names, expected) in [
            (&["ssls", "key"][..], true),
            (&["ssls", "cert"], false),
            (&["secrets", "token"], true),
            (&["hubs", "kafka", "sasl", "password"], true),
            (&["hubs", "publish", "secret"], true),
            (&["upstreams", "tls", "client_key"], false),
            (&["consumers", "plugins", "key-auth", "key"], false),
            (&[], false),
        ] {
            assert_eq!(is_shown_to_none(names), expected, "{names:?}");
        }
    }
}
