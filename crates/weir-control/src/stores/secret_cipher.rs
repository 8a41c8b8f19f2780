//! Encrypts and decrypts the secrets of a resource; its other members stay readable.

use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::cipher::{
    AES_128, AES_256, DecryptionContext, EncryptionContext, PaddedBlockDecryptingKey, PaddedBlockEncryptingKey,
    UnboundCipherKey,
};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::{hmac, rand};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::resources::ResourceKey;
use crate::document::{ApisixStorage, DataEncryption, EncryptionKey, UNREADABLE, for_each_secret};

/// The prefix of a private key in PEM.
const PEM: &str = "---";
/// The size of an AES block and of an IV, in bytes.
const BLOCK: usize = 16;
/// The HMAC message that derives the GCM key from a key of the ring, so that it differs from the key of APISIX's form.
const PURPOSE: &[u8] = b"weir data_encryption AES-256-GCM";

/// The form of encrypted secrets in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CipherForm {
    /// `$encrypted://` and the base64 of a nonce and the AES-256-GCM ciphertext. Bound to one member of one resource.
    Weir,
    /// Apache APISIX's form: the base64 of the AES-CBC ciphertext, with the key as the IV. Only secrets that APISIX encrypts.
    Apisix,
}

/// The keys of the ring, with the form.
pub(super) struct SecretCipher {
    form: CipherForm,
    keys: Vec<CipherKey>,
    /// Whether secrets are encrypted when they are written.
    encrypts: bool,
}

struct CipherKey {
    gcm: LessSafeKey,
    encrypting: PaddedBlockEncryptingKey,
    decrypting: PaddedBlockDecryptingKey,
    iv: [u8; BLOCK],
}

/// A decrypted resource.
pub(super) struct OpenedResource {
    pub(super) json: Arc<str>,
    /// Whether the stored form is the one in which it would be written now.
    pub(super) is_current: bool,
    /// The paths of the secrets that no key decrypts. Their text begins with [`UNREADABLE`].
    pub(super) unreadable: Vec<String>,
}

/// The result of decrypting a stored text.
enum OpenedText {
    Plain,
    /// The plain text, and the index of the key.
    Decrypted(String, usize),
    Unreadable,
}

impl SecretCipher {
    pub(super) fn new(form: CipherForm, settings: Option<&DataEncryption>) -> SecretCipher {
        let keys = settings.map(|settings| settings.keyring.iter().map(CipherKey::of).collect()).unwrap_or_default();
        SecretCipher { form, keys, encrypts: settings.is_some_and(|settings| settings.enable) }
    }

    pub(super) fn form(&self) -> CipherForm {
        self.form
    }

    pub(super) fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Decrypts the secrets of a stored resource.
    pub(super) fn opened(&self, key: &ResourceKey, json: &Arc<str>) -> OpenedResource {
        let mut opened = OpenedResource { json: Arc::clone(json), is_current: true, unreadable: Vec::new() };
        // Without keys, only undecryptable texts need to be found.
        if self.keys.is_empty() && !json.contains(UNREADABLE) {
            return opened;
        }
        let Ok(mut value) = serde_json::from_str::<Value>(json) else { return opened };
        let mut changed = false;
        for_each_secret(key.list(), &mut value, |field, text| {
            if !self.concerns(field.apisix) {
                return;
            }
            match self.opened_text(&place(key, field.path), field.apisix, text) {
                OpenedText::Plain => opened.is_current &= !self.is_to_be_encrypted(field.apisix, text),
                OpenedText::Decrypted(plain, by) => {
                    opened.is_current &= by == 0 && self.encrypts;
                    *text = plain;
                    changed = true;
                }
                OpenedText::Unreadable => {
                    opened.unreadable.push(format!("{key}: {}", field.path));
                    if !text.starts_with(UNREADABLE) {
                        text.insert_str(0, UNREADABLE);
                        changed = true;
                    }
                }
            }
        });
        if changed {
            opened.json = value.to_string().into();
        }
        opened
    }

    /// Encrypts the secrets of a resource for the store.
    pub(super) fn sealed(&self, key: &ResourceKey, json: &Arc<str>) -> Arc<str> {
        let restores = self.form == CipherForm::Apisix && json.contains(UNREADABLE);
        if !self.encrypts && !restores {
            return Arc::clone(json);
        }
        let Ok(mut value) = serde_json::from_str::<Value>(json) else { return Arc::clone(json) };
        let mut changed = false;
        for_each_secret(key.list(), &mut value, |field, text| {
            if !self.concerns(field.apisix) {
                return;
            }
            let sealed = match text.strip_prefix(UNREADABLE) {
                // A secret that could not be decrypted is written back unchanged.
                Some(kept) if self.form == CipherForm::Apisix => kept.to_owned(),
                Some(_) => return,
                None if self.is_to_be_encrypted(field.apisix, text) => self.sealed_text(&place(key, field.path), text),
                None => return,
            };
            *text = sealed;
            changed = true;
        });
        if changed { value.to_string().into() } else { Arc::clone(json) }
    }

    fn concerns(&self, apisix: ApisixStorage) -> bool {
        self.form == CipherForm::Weir || apisix != ApisixStorage::Plain
    }

    fn is_to_be_encrypted(&self, apisix: ApisixStorage, text: &str) -> bool {
        let is_left_plain = self.form == CipherForm::Apisix && apisix == ApisixStorage::EncryptedPem;
        self.encrypts && (!is_left_plain || text.starts_with(PEM))
    }

    fn sealed_text(&self, place: &str, text: &str) -> String {
        // The settings do not allow an empty ring.
        let key = self.keys.first().expect("what encrypts has a key");
        match self.form {
            CipherForm::Weir => key.sealed_by_gcm(place, text),
            CipherForm::Apisix => key.sealed_by_cbc(text),
        }
    }

    fn opened_text(&self, place: &str, apisix: ApisixStorage, text: &str) -> OpenedText {
        let decrypted = match self.form {
            CipherForm::Weir => {
                let Some(kept) = text.strip_prefix(UNREADABLE) else { return OpenedText::Plain };
                let Ok(kept) = STANDARD.decode(kept) else { return OpenedText::Unreadable };
                self.first_that(|key| key.opened_by_gcm(place, &kept))
            }
            CipherForm::Apisix => {
                let is_plain = apisix == ApisixStorage::EncryptedPem && text.starts_with(PEM);
                let Some(kept) = ciphertext(text).filter(|_| !is_plain) else { return OpenedText::Plain };
                self.first_that(|key| key.opened_by_cbc(&kept))
            }
        };
        decrypted.unwrap_or(OpenedText::Unreadable)
    }

    fn first_that(&self, opens: impl Fn(&CipherKey) -> Option<String>) -> Option<OpenedText> {
        self.keys.iter().enumerate().find_map(|(index, key)| Some(OpenedText::Decrypted(opens(key)?, index)))
    }
}

/// The additional authenticated data: it prevents that a ciphertext is moved to another member or resource by someone with write
/// access to the file.
fn place(key: &ResourceKey, path: &str) -> String {
    format!("{key}: {path}")
}

/// The AES-CBC ciphertext in a text, if it can be one. Sixty-four hexadecimal digits are taken for a generated key in plain text,
/// although they are valid base64.
fn ciphertext(text: &str) -> Option<Vec<u8>> {
    let bytes = STANDARD.decode(text).ok()?;
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (!bytes.is_empty() && bytes.len().is_multiple_of(BLOCK) && !is_hex).then_some(bytes)
}

impl CipherKey {
    fn of(EncryptionKey(key): &EncryptionKey) -> CipherKey {
        const LENGTH: &str = "settings refuse keys of other lengths";
        let algorithm = if key.len() == BLOCK { &AES_128 } else { &AES_256 };
        let cbc = || UnboundCipherKey::new(algorithm, key).expect(LENGTH);
        let own = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), PURPOSE);
        CipherKey {
            gcm: LessSafeKey::new(UnboundKey::new(&AES_256_GCM, own.as_ref()).expect("HMAC-SHA-256 has 32 bytes")),
            encrypting: PaddedBlockEncryptingKey::cbc_pkcs7(cbc()).expect(LENGTH),
            decrypting: PaddedBlockDecryptingKey::cbc_pkcs7(cbc()).expect(LENGTH),
            iv: key[..BLOCK].try_into().expect(LENGTH),
        }
    }

    fn sealed_by_gcm(&self, place: &str, text: &str) -> String {
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).expect("the system has random numbers");
        let mut bytes = text.as_bytes().to_vec();
        let aad = Aad::from(place.as_bytes());
        let sealed = self.gcm.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut bytes);
        sealed.expect("a text is shorter than the limit of AES-GCM");
        format!("{UNREADABLE}{}", STANDARD.encode([&nonce[..], &bytes].concat()))
    }

    fn opened_by_gcm(&self, place: &str, kept: &[u8]) -> Option<String> {
        let (nonce, bytes) = kept.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut bytes = bytes.to_vec();
        let plain = self.gcm.open_in_place(nonce, Aad::from(place.as_bytes()), &mut bytes).ok()?;
        String::from_utf8(plain.to_vec()).ok()
    }

    fn sealed_by_cbc(&self, text: &str) -> String {
        let mut bytes = text.as_bytes().to_vec();
        let context = EncryptionContext::Iv128(FixedLength::from(&self.iv));
        self.encrypting.less_safe_encrypt(&mut bytes, context).expect("any text can be padded and encrypted");
        STANDARD.encode(bytes)
    }

    /// `None` for a wrong key, which shows by invalid padding, or, if the padding is valid by chance, by invalid UTF-8.
    fn opened_by_cbc(&self, kept: &[u8]) -> Option<String> {
        let mut bytes = kept.to_vec();
        let context = DecryptionContext::Iv128(FixedLength::from(&self.iv));
        let plain = self.decrypting.decrypt(&mut bytes, context).ok()?;
        String::from_utf8(plain.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const OLD: &str = "0123456789abcdef";
    const NEW: &str = "fedcba9876543210fedcba9876543210";

    fn cipher(form: CipherForm, keys: &[&str], enable: bool) -> SecretCipher {
        let keyring = keys.iter().map(|key| EncryptionKey(key.as_bytes().into())).collect();
        SecretCipher::new(form, Some(&DataEncryption { keyring, enable }))
    }

    fn jack(secret: &str) -> (ResourceKey, Arc<str>) {
        let json = json!({"username": "jack", "plugins": {"key-auth": {"key": secret}}});
        (ResourceKey::new("consumers", "jack"), json.to_string().into())
    }

    #[test]
    fn the_form_of_apisix_is_that_of_apisix() {
        // The first one was stored by Apache APISIX 3.18; the second is the output of `openssl enc -aes-256-cbc`.
        let table = [
            ("qeddd145sfvddff3", "k1", "sGfoff/k5TVaPiyGca5e5w=="),
            ("edd1c9f0985e76a2edd1c9f0985e76a2", "auth-one", "vCGxvssiN8THB4ng5C4xqA=="),
        ];
        for (ring, text, encrypted) in table {
            let cipher = cipher(CipherForm::Apisix, &[ring], true);
            let (key, plain) = jack(text);
            let sealed = cipher.sealed(&key, &plain);
            assert_eq!(sealed, jack(encrypted).1, "{ring}");
            assert_eq!(cipher.opened(&key, &sealed).json, plain);
        }
    }

    #[test]
    fn the_first_key_encrypts_and_all_decrypt() {
        for form in [CipherForm::Weir, CipherForm::Apisix] {
            let (key, plain) = jack("s3cret-of-jack");
            let before = cipher(form, &[OLD], true).sealed(&key, &plain);
            assert!(!before.contains("s3cret"), "{before}");
            assert!(cipher(form, &[OLD], true).opened(&key, &before).is_current);
            let rotated = cipher(form, &[NEW, OLD], true);
            let opened = rotated.opened(&key, &before);
            assert_eq!((&opened.json, opened.is_current), (&plain, false));
            let after = rotated.sealed(&key, &opened.json);
            assert_eq!(cipher(form, &[NEW], true).opened(&key, &after).json, plain);
            // Plain texts are outdated if encryption is on, and encrypted ones if it is off.
            assert!(!rotated.opened(&key, &plain).is_current);
            let off = cipher(form, &[NEW], false);
            let opened = off.opened(&key, &after);
            assert_eq!((&opened.json, opened.is_current), (&plain, false));
            assert_eq!(off.sealed(&key, &plain), plain);
        }
    }

    #[test]
    fn secret_that_no_key_decrypts_is_named_and_kept_unchanged() {
        for form in [CipherForm::Weir, CipherForm::Apisix] {
            let (key, plain) = jack("s3cret-of-jack");
            let kept = cipher(form, &[OLD], true).sealed(&key, &plain);
            let other = cipher(form, &[NEW], true);
            let opened = other.opened(&key, &kept);
            assert_eq!(opened.unreadable, ["consumers/jack: plugins.key-auth.key"]);
            assert!(opened.json.contains(UNREADABLE), "{}", opened.json);
            assert_eq!(other.sealed(&key, &opened.json), kept);
        }
        let none = SecretCipher::new(CipherForm::Weir, None);
        let (key, plain) = jack("s3cret-of-jack");
        let kept = cipher(CipherForm::Weir, &[OLD], true).sealed(&key, &plain);
        assert_eq!(none.opened(&key, &kept).unreadable.len(), 1, "without any key, too");
    }

    #[test]
    fn a_secret_is_of_one_place_alone() {
        let cipher = cipher(CipherForm::Weir, &[NEW], true);
        let (key, plain) = jack("s3cret-of-jack");
        let kept = cipher.sealed(&key, &plain);
        assert_eq!(cipher.opened(&ResourceKey::new("consumers", "rose"), &kept).unreadable.len(), 1);
    }

    #[test]
    fn plain_values_stay_plain_where_apisix_reads_them_so() {
        let cipher = cipher(CipherForm::Apisix, &[OLD], true);
        for text in ["auth-one", "", "c2hvcnQ=", &"0123456789abcdef".repeat(4)] {
            let (key, plain) = jack(text);
            let opened = cipher.opened(&key, &plain);
            assert_eq!((opened.json, opened.unreadable.len()), (plain, 0), "{text}");
        }
        let key = ResourceKey::new("secrets", "vault/1");
        let vault: Arc<str> = json!({"uri": "http://v", "token": "t0ken"}).to_string().into();
        assert_eq!(cipher.sealed(&key, &vault), vault, "APISIX reads tokens of managers as they are");
        let ssl = ResourceKey::new("ssls", "1");
        let file: Arc<str> = json!({"cert": "a.crt", "key": "a.key"}).to_string().into();
        assert_eq!(cipher.sealed(&ssl, &file), file, "the name of a file is no private key");
    }
}
