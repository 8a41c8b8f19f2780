//! Secret managers, which `$secret://vault/1/PATH/KEY` in options of plugins refers to (APISIX `secret`).

use std::fmt;
use std::time::Duration;

use super::resource;
use crate::text::read::NodeReader;

/// APISIX's cache time for fetched secrets.
const TTL: Duration = Duration::from_secs(300);

/// A HashiCorp Vault, or an OpenBao, which has the same API.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SecretManager {
    /// Such as `vault/1`.
    pub id: Box<str>,
    /// Such as `https://vault.example:8200`.
    pub uri: Box<str>,
    /// The secrets engine and the path that references are relative to: `kv/apisix`, or `kv/data/apisix` for version 2.
    pub prefix: Box<str>,
    pub token: Box<str>,
    pub namespace: Option<Box<str>>,
    /// How long a value is used before it is fetched again. Not an option of APISIX.
    pub ttl: Duration,
}

impl fmt::Debug for SecretManager {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").field("id", &self.id).field("uri", &self.uri).finish_non_exhaustive()
    }
}

pub(super) fn read(at: &NodeReader, _: usize) -> Option<SecretManager> {
    const OWN: &[&str] = &["uri", "prefix", "token", "namespace", "ttl"];
    let fields = at.fields(&[OWN, resource::COMMON].concat())?;
    resource::common(&fields);
    let Some(id) = fields.get("id") else {
        at.report_advising("has no `id`", "add `id: vault/1`");
        return None;
    };
    let name = id.text_of(1..=256)?;
    match name.split_once('/') {
        Some(("vault", rest)) if !rest.is_empty() && !rest.contains('/') => {}
        Some(("aws" | "gcp", _)) => {
            id.report_advising(
                "secrets managers of this kind are not supported",
                "keep the secret in a Vault, or in an environment variable (`$env://`)",
            );
            return None;
        }
        _ => {
            id.report_advising("is not the id of a secrets manager", "write as `vault/1`");
            return None;
        }
    }
    let required = |key: &str| {
        let found = fields.get(key);
        if found.is_none() {
            at.report_advising(format!("has no `{key}`"), format!("add `{key}`"));
        }
        found?.text_of(1..=4096)
    };
    let (uri, prefix, token) = (required("uri"), required("prefix"), required("token"));
    let namespace = fields.get("namespace").and_then(|at| at.text_of(1..=256));
    let ttl = fields.get("ttl").and_then(|at| at.duration()).unwrap_or(TTL);
    let uri = uri?.trim_end_matches('/');
    if !uri.starts_with("http://") && !uri.starts_with("https://") {
        fields.get("uri")?.report_advising("is not the URL of a Vault", "write as `https://vault.example:8200`");
        return None;
    }
    Some(SecretManager {
        id: name.into(),
        uri: uri.into(),
        prefix: prefix?.trim_matches('/').into(),
        token: token?.into(),
        namespace: namespace.map(Into::into),
        ttl,
    })
}
