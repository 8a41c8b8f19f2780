//! Digests of several parts.

use aws_lc_rs::digest::{Context, SHA256};

/// Adds a part with its length, so that the boundaries between parts are unambiguous.
pub(super) fn add(hash: &mut Context, part: &[u8]) {
    hash.update(&part.len().to_be_bytes());
    hash.update(part);
}

pub(super) fn finish(hash: Context) -> [u8; 32] {
    hash.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// A digest of parts, to find out whether something has changed.
pub fn digest_of<'p>(parts: impl Iterator<Item = &'p [u8]>) -> [u8; 32] {
    let mut hash = Context::new(&SHA256);
    parts.for_each(|part| add(&mut hash, part));
    finish(hash)
}
