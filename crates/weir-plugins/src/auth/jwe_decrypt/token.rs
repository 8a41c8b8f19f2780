//! A JSON Web Encryption token in compact form (RFC 7516 §7.1), encrypted directly with a shared key.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// The length of a key of A256GCM (RFC 7518 §5.3).
pub(super) const KEY_BYTES: usize = 32;
/// The length of its authentication tag.
const TAG_BYTES: usize = 16;

/// A content encryption key.
pub(super) struct ContentKey(LessSafeKey);

impl ContentKey {
    /// `None` if it does not have [`KEY_BYTES`].
    pub(super) fn new(secret: &[u8]) -> Option<ContentKey> {
        let is_long_enough = secret.len() == KEY_BYTES;
        let key = is_long_enough.then(|| UnboundKey::new(&AES_256_GCM, secret).ok()).flatten()?;
        Some(ContentKey(LessSafeKey::new(key)))
    }
}

/// The protected header. Members that a recipient must understand (`crit`) are not known here, nor is compression (`zip`).
#[derive(Deserialize)]
struct ProtectedHeader {
    kid: Box<str>,
    alg: Box<str>,
    enc: Box<str>,
    crit: Option<serde::de::IgnoredAny>,
    zip: Option<serde::de::IgnoredAny>,
}

/// A token that has not been decrypted.
pub(super) struct EncryptedToken<'a> {
    pub kid: Box<str>,
    /// The protected header as it came, which is authenticated.
    header: &'a [u8],
    nonce: [u8; NONCE_LEN],
    /// The encrypted content, followed by its tag.
    content: Vec<u8>,
}

impl<'a> EncryptedToken<'a> {
    /// `None` if it is no token, or is encrypted in another way.
    pub(super) fn parse(token: &'a [u8]) -> Option<EncryptedToken<'a>> {
        let parts: Vec<&[u8]> = token.splitn(6, |&byte| byte == b'.').collect();
        let [header, encrypted_key, nonce, content, tag] = parts[..] else { return None };
        let known: ProtectedHeader = serde_json::from_slice(&decoded(header)?).ok()?;
        let is_direct = &*known.alg == "dir" && encrypted_key.is_empty();
        let is_understood = known.crit.is_none() && known.zip.is_none();
        if !is_direct || &*known.enc != "A256GCM" || !is_understood {
            return None;
        }
        let tag = decoded(tag).filter(|tag| tag.len() == TAG_BYTES)?;
        let mut content = decoded(content)?;
        content.extend_from_slice(&tag);
        Some(EncryptedToken { kid: known.kid, header, nonce: decoded(nonce)?.try_into().ok()?, content })
    }

    /// The content; `None` if it was not encrypted with this key.
    pub(super) fn decrypt(&self, key: &ContentKey) -> Option<Vec<u8>> {
        // A token of APISIX does not authenticate its header. Nothing depends on that: the header says which key is meant and
        // how it is used, and under any other key the content does not open.
        self.open(key, self.header).or_else(|| self.open(key, b""))
    }

    fn open(&self, key: &ContentKey, authenticated: &[u8]) -> Option<Vec<u8>> {
        let nonce = Nonce::assume_unique_for_key(self.nonce);
        let mut content = self.content.clone();
        let length = key.0.open_in_place(nonce, Aad::from(authenticated), &mut content).ok()?.len();
        content.truncate(length);
        Some(content)
    }
}

fn decoded(part: &[u8]) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(part).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A token as a library for RFC 7516 makes it.
    pub(crate) fn encrypted(header: &Value, secret: &[u8], content: &[u8]) -> String {
        let header = URL_SAFE_NO_PAD.encode(header.to_string());
        sealed(&header, header.as_bytes(), secret, content)
    }

    /// A token as APISIX makes it.
    pub(crate) fn encrypted_without_header(header: &Value, secret: &[u8], content: &[u8]) -> String {
        sealed(&URL_SAFE_NO_PAD.encode(header.to_string()), b"", secret, content)
    }

    fn sealed(header: &str, authenticated: &[u8], secret: &[u8], content: &[u8]) -> String {
        let nonce = *b"0123456789ab";
        let mut content = content.to_vec();
        let key = ContentKey::new(secret).expect("32 bytes").0;
        let unique = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(unique, Aad::from(authenticated), &mut content).expect("it is short");
        let (content, tag) = content.split_at(content.len() - TAG_BYTES);
        let [nonce, content, tag] = [&nonce[..], content, tag].map(|part| URL_SAFE_NO_PAD.encode(part));
        format!("{header}..{nonce}.{content}.{tag}")
    }

    const SECRET: [u8; KEY_BYTES] = [3; KEY_BYTES];

    fn decrypt(token: &str) -> Option<Vec<u8>> {
        EncryptedToken::parse(token.as_bytes())?.decrypt(&ContentKey::new(&SECRET)?)
    }

    #[test]
    fn changed_tokens_do_not_open() {
        let token = encrypted(&json!({"alg": "dir", "enc": "A256GCM", "kid": "a"}), &SECRET, b"content");
        assert_eq!(decrypt(&token).as_deref(), Some(&b"content"[..]));
        for (at, byte) in token.bytes().enumerate().filter(|(_, byte)| *byte != b'.') {
            let mut changed = token.clone().into_bytes();
            changed[at] = if byte == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            assert_eq!(decrypt(&changed), None, "byte {at}: {changed}");
        }
    }

    #[test]
    fn only_direct_encryption_by_a256gcm_is_understood() {
        for header in [
            json!({"enc": "A256GCM", "kid": "a"}),
            json!({"alg": "dir", "enc": "A256GCM"}),
            json!({"alg": "RSA-OAEP", "enc": "A256GCM", "kid": "a"}),
            json!({"alg": "dir", "enc": "A128GCM", "kid": "a"}),
            json!({"alg": "dir", "enc": "A256GCM", "kid": "a", "zip": "DEF"}),
            json!({"alg": "dir", "enc": "A256GCM", "kid": "a", "crit": ["exp"]}),
            json!({"alg": "dir", "enc": "A256GCM", "kid": 1}),
        ] {
            assert_eq!(decrypt(&encrypted(&header, &SECRET, b"content")), None, "{header}");
        }
        let token = encrypted(&json!({"alg": "dir", "enc": "A256GCM", "kid": "a"}), &SECRET, b"");
        assert_eq!(decrypt(&token), Some(Vec::new()));
        for wrong in [token.replacen("..", ".AA.", 1), format!("{token}.AA"), token.replacen("..", ".", 1)] {
            assert_eq!(decrypt(&wrong), None, "{wrong}");
        }
        assert!(ContentKey::new(&[0; 31]).is_none());
    }
}
