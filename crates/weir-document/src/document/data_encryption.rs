//! `data_encryption`: the keys that a store encrypts secrets with.

use std::fmt;

use serde_json::{Value, json};

use super::reference_text::literal_secret;
use crate::keys;
use crate::keys::kinds::{Flag, Form, Or, flag, form};
use crate::keys::schema::Definitions;
use crate::text::read::{MapReader, NodeReader, listed};

/// The prefix of a secret that no key of the ring decrypts; it is never used as a value.
pub const UNREADABLE: &str = "$encrypted://";

/// How a store encrypts secrets (APISIX `apisix.data_encryption`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataEncryption {
    /// All keys decrypt; the first one encrypts.
    pub keyring: Vec<EncryptionKey>,
    /// If off, secrets are stored in plain text, and encrypted ones are still decrypted.
    pub enable: bool,
}

/// A key of 16 bytes (AES-128 in APISIX's form), or 32 (AES-256).
#[derive(Clone, PartialEq, Eq)]
pub struct EncryptionKey(pub Box<[u8]>);

/// Without the key.
impl fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EncryptionKey")
    }
}

/// APISIX's default ring, which is publicly known.
const KNOWN_KEYS: [&str; 2] = ["qeddd145sfvddff3", "edd1c9f0985e76a2"];

const GENERATE: &str = "generate a key of 32 characters: `openssl rand -hex 16`";

keys! {
    /// How the store encrypts secrets.
    pub(super) static DATA_ENCRYPTION: DataEncryptionKeys = "data_encryption";

    /// Keys of 16 bytes (AES-128, as APISIX has it) or 32 (AES-256). The first one encrypts, all of them decrypt.
    keyring: Form = form("list: text of 16 or 32 bytes", keyring_schema), secret(),
        required("add `keyring: [KEY]`; generate a key of 32 characters: `openssl rand -hex 16`"),
        example("[0a8f2c4b6d7e19f3a5b7c9d1e3f50718]");
    /// With `false`, secrets are stored in plain text, and encrypted ones are still decrypted.
    enable: Or<Flag> = flag().or(true);
}

fn keyring_schema(_: &mut Definitions) -> Value {
    json!({ "type": "array", "minItems": 1, "items": { "type": "string", "pattern": "^(.{16}|.{32})$" } })
}

pub(super) fn read(fields: &MapReader) -> Option<DataEncryption> {
    let enable = fields.value(&DATA_ENCRYPTION.enable);
    let ring = fields.get(&DATA_ENCRYPTION.keyring)?;
    let keyring: Vec<EncryptionKey> =
        ring.items().enumerate().filter_map(|(index, item)| key(&item, enable && index == 0)).collect();
    if ring.is_list() && ring.items().next().is_none() {
        ring.report_advising("is empty", GENERATE);
    }
    Some(DataEncryption { keyring, enable })
}

fn key(at: &NodeReader, encrypts: bool) -> Option<EncryptionKey> {
    let text = literal_secret(at, at.text()?)?;
    if !matches!(text.len(), 16 | 32) {
        at.report_advising(format!("has {} bytes, and a key has 16 or 32", text.len()), GENERATE);
        return None;
    }
    if encrypts && KNOWN_KEYS.contains(&text) {
        at.report_advising(
            "is a key that is publicly known",
            format!("put a key of your own before it, which encrypts from then on; {GENERATE}"),
        );
        return None;
    }
    Some(EncryptionKey(text.as_bytes().into()))
}

/// The problem and the advice for one secret that cannot be decrypted.
pub(super) fn unreadable() -> (String, String) {
    let problem = "is encrypted, and no key of `data_encryption.keyring` decrypts it".to_owned();
    (problem, "add the key that it was encrypted with, or write the value again".to_owned())
}

/// The same for several secrets, given by their places.
pub fn all_unreadable(places: &[String]) -> (String, String) {
    const TOLD: usize = 3;
    let told: Vec<&str> = places.iter().take(TOLD).map(String::as_str).collect();
    let more = match places.len().saturating_sub(TOLD) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let problem = format!("no key of `data_encryption.keyring` decrypts {}{more}", listed(&told));
    (problem, "add the key that they were encrypted with to `data_encryption.keyring`".to_owned())
}

#[cfg(test)]
mod tests {
    use crate::check_text;

    #[test]
    fn keys_are_checked() {
        let faults = |text: &str| -> Vec<String> {
            let text = format!("admin: {{}}\ndata_encryption: {text}\n");
            check_text(&text).err().unwrap_or_default().iter().map(ToString::to_string).collect()
        };
        assert_eq!(faults("{ keyring: [0123456789abcdef] }"), [""; 0]);
        assert_eq!(faults("{ keyring: [0123456789abcdef0123456789abcdef, qeddd145sfvddff3] }"), [""; 0]);
        assert_eq!(faults("{ keyring: [qeddd145sfvddff3], enable: false }"), [""; 0]);
        assert!(faults("{ keyring: [short] }")[0].contains("data_encryption.keyring[0]: has 5 bytes"));
        assert!(faults("{ keyring: [edd1c9f0985e76a2] }")[0].contains("publicly known"));
        assert!(faults("{ keyring: [] }")[0].contains("is empty"));
        assert!(faults("{ enable: true }")[0].contains("has no `keyring`"));
        let alone = check_text("data_encryption: { keyring: [0123456789abcdef] }\n").expect_err("there is no store");
        assert!(alone[0].to_string().contains("this node has none"), "{}", alone[0]);
    }
}
