//! Secret managers, which `$secret://vault/1/PATH/KEY` in options of plugins refers to (APISIX `secret`).

use std::fmt;
use std::time::Duration;

use super::resource::{self, RESOURCE};
use crate::keys;
use crate::keys::kinds::{Or, ParsedText, Text, Time, text, time};
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

keys! {
    /// A HashiCorp Vault, or an OpenBao, which has the same API: where `$secret://vault/ID/PATH/KEY` in options of plugins leads.
    pub(super) static SECRET_MANAGER: SecretManagerKeys = "secret", shared RESOURCE;

    /// The URL of the server.
    uri: Text = text(1, 4096), required("add `uri`"), example("https://vault.example:8200");
    /// The secrets engine and the path that references are relative to; for version 2 of the engine with `data` after its name.
    prefix: Text = text(1, 4096), required("add `prefix`"), example("kv/data/apisix");
    /// The token that is sent to the server.
    token: Text = text(1, 4096), secret(), required("add `token`");
    /// The namespace of the server.
    namespace: Text = text(1, 256), absent("none");
    /// How long a value is used before it is fetched again.
    ttl: Or<Time> = time().or(TTL), own();
    /// The kind of the manager and its number: `vault/1`.
    id: ParsedText<Box<str>> = text(1, 256).pattern("^vault/[^/]+$").parsed(id), required("add `id: vault/1`"), example("vault/1");
}

pub(super) fn read(at: &NodeReader, _: usize) -> Option<SecretManager> {
    let fields = at.keys(&SECRET_MANAGER)?;
    resource::common(&fields);
    let id = fields.read(&SECRET_MANAGER.id);
    let (uri, prefix) = (fields.read(&SECRET_MANAGER.uri), fields.read(&SECRET_MANAGER.prefix));
    let token = fields.read(&SECRET_MANAGER.token);
    let namespace = fields.read(&SECRET_MANAGER.namespace);
    let ttl = fields.value(&SECRET_MANAGER.ttl);
    let uri = uri?;
    if !uri.starts_with("http://") && !uri.starts_with("https://") {
        let at = fields.get(&SECRET_MANAGER.uri)?;
        at.report_advising("is not the URL of a Vault", "write as `https://vault.example:8200`");
        return None;
    }
    Some(SecretManager {
        id: id?,
        uri: uri.trim_end_matches('/').into(),
        prefix: prefix?.trim_matches('/').into(),
        token: token?,
        namespace,
        ttl,
    })
}

fn id(at: &NodeReader, name: &str) -> Option<Box<str>> {
    match name.split_once('/') {
        Some(("vault", rest)) if !rest.is_empty() && !rest.contains('/') => Some(name.into()),
        Some(("aws" | "gcp", _)) => {
            at.report_advising(
                "secrets managers of this kind are not supported",
                "keep the secret in a Vault, or in an environment variable (`$env://`)",
            );
            None
        }
        _ => {
            at.report_advising("is not the id of a secrets manager", "write as `vault/1`");
            None
        }
    }
}
