//! Encrypted parcels.
//!
//! ```text
//! sealed = 2 | key id 4 | nonce 12 | AES-256-GCM of a parcel
//! ```

use std::borrow::Cow;
use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand;

/// Bytes of a key.
pub const SPOOL_KEY_BYTES: usize = 32;
/// The most keys of a spool.
pub const MAX_SPOOL_KEYS: usize = 4;

/// The first byte of an encrypted parcel. An unencrypted one begins with its version.
const SEALED: u8 = 2;
const ID_BYTES: usize = 4;
const HEADER_BYTES: usize = 1 + ID_BYTES;

/// The keys of a spool: the first one encrypts, all decrypt.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct SpoolKeys {
    keys: [[u8; SPOOL_KEY_BYTES]; MAX_SPOOL_KEYS],
    count: usize,
}

impl fmt::Debug for SpoolKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SpoolKeys").field(&self.count).finish()
    }
}

/// The error for a parcel that was encrypted with a key that is not configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MissingKey;

impl SpoolKeys {
    /// `None` if there are more than `MAX_SPOOL_KEYS`.
    pub fn new(given: &[[u8; SPOOL_KEY_BYTES]]) -> Option<SpoolKeys> {
        let mut keys = [[0; SPOOL_KEY_BYTES]; MAX_SPOOL_KEYS];
        keys.get_mut(..given.len())?.copy_from_slice(given);
        Some(SpoolKeys { keys, count: given.len() })
    }

    fn each(&self) -> &[[u8; SPOOL_KEY_BYTES]] {
        &self.keys[..self.count]
    }

    /// Encrypts a parcel, if there is a key.
    pub(crate) fn seal(&self, parcel: Vec<u8>) -> Vec<u8> {
        let Some(key) = self.each().first() else { return parcel };
        let mut out = vec![SEALED];
        out.extend_from_slice(&id_of(key));
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).expect("the system gives random bytes");
        let header = Aad::from(<[u8; HEADER_BYTES]>::try_from(&*out).expect("it has this length"));
        let mut content = parcel;
        let nonce_of_parcel = Nonce::assume_unique_for_key(nonce);
        cipher(key).seal_in_place_append_tag(nonce_of_parcel, header, &mut content).expect("it is not too long");
        out.extend_from_slice(&nonce);
        out.extend_from_slice(&content);
        out
    }

    /// Decrypts a parcel; `None` if it is damaged. An unencrypted parcel is returned as it is.
    ///
    /// # Errors
    /// The key is not configured.
    pub(crate) fn open<'a>(&self, bytes: &'a [u8]) -> Result<Option<Cow<'a, [u8]>>, MissingKey> {
        if bytes.first() != Some(&SEALED) {
            return Ok(Some(Cow::Borrowed(bytes)));
        }
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let Some((nonce, sealed)) = rest.split_first_chunk::<NONCE_LEN>() else { return Ok(None) };
        let key = self.each().iter().find(|key| id_of(key) == header[1..]).ok_or(MissingKey)?;
        let mut content = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = cipher(key).open_in_place(nonce, Aad::from(*header), &mut content).map(|opened| opened.len());
        Ok(opened.ok().map(|length| {
            content.truncate(length);
            Cow::Owned(content)
        }))
    }
}

fn cipher(key: &[u8; SPOOL_KEY_BYTES]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("a key of AES-256 has 32 bytes"))
}

/// Identifies a key without revealing it.
fn id_of(key: &[u8; SPOOL_KEY_BYTES]) -> [u8; ID_BYTES] {
    let digest = digest(&SHA256, &[&b"weir spool key "[..], key].concat());
    digest.as_ref()[..ID_BYTES].try_into().expect("it has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_parcel_is_opened_by_its_key_only() {
        let keys = |keys: &[u8]| SpoolKeys::new(&keys.iter().map(|byte| [*byte; 32]).collect::<Vec<_>>()).expect("few");
        let sealed = keys(&[1]).seal(b"\x01parcel".to_vec());
        assert!(!sealed.windows(6).any(|window| window == b"parcel"));
        for ring in [&[1][..], &[2, 1]] {
            assert_eq!(keys(ring).open(&sealed), Ok(Some(Cow::Borrowed(&b"\x01parcel"[..]))));
        }
        for ring in [&[][..], &[2]] {
            assert_eq!(keys(ring).open(&sealed), Err(MissingKey));
        }
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert_ne!(keys(&[1]).open(&damaged), Ok(Some(Cow::Borrowed(&b"\x01parcel"[..]))), "{at}");
            assert!(!matches!(keys(&[1]).open(&sealed[..at]), Ok(Some(opened)) if opened.len() > at), "{at}");
        }
        assert_eq!(keys(&[]).seal(b"\x01parcel".to_vec()), b"\x01parcel");
        assert_eq!(
            keys(&[3]).open(b"\x01parcel"),
            Ok(Some(Cow::Borrowed(&b"\x01parcel"[..]))),
            "from before there was a key"
        );
        assert_eq!((SpoolKeys::new(&[[0; 32]; 5]), format!("{:?}", keys(&[7]))), (None, "SpoolKeys(1)".to_owned()));
    }
}
