//! Each worker's cache of tokens whose signatures have been verified.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::auth::json_web_token::Claims;

/// The most tokens in a cache, all of them valid; when it is full, it is emptied.
const MAX_TOKENS: usize = 4096;

/// The properties of a token that do not depend on the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verified {
    /// The index of its key among the keys of this document.
    pub(super) known: u32,
    pub(super) claims: Claims,
}

/// Identifies the keys of one document: results for the keys of another are not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeySet(u64);

impl KeySet {
    pub(super) fn new() -> KeySet {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        KeySet(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The name of the claim that selected the key, and the result.
type OfClaim = (Box<str>, Verified);

/// One worker's cache, by the text of the tokens.
#[derive(Default)]
pub(super) struct VerifiedTokens {
    of: Cell<u64>,
    tokens: RefCell<HashMap<Box<[u8]>, OfClaim>>,
}

impl VerifiedTokens {
    pub(super) fn find(&self, keys: KeySet, token: &[u8], claim: &str) -> Option<Verified> {
        let tokens = self.tokens.borrow();
        let (of_claim, verified) = tokens.get(token).filter(|_| self.of.get() == keys.0)?;
        (**of_claim == *claim).then_some(*verified)
    }

    pub(super) fn remember(&self, keys: KeySet, token: &[u8], claim: &str, verified: Verified) {
        let mut tokens = self.tokens.borrow_mut();
        if self.of.replace(keys.0) != keys.0 || tokens.len() >= MAX_TOKENS {
            tokens.clear();
        }
        tokens.insert(token.into(), (claim.into(), verified));
    }
}
