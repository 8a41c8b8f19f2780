//! Tokens whose signatures have been found good, remembered by each worker on its own.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::auth::json_web_token::Claims;

/// So many tokens a worker remembers. Only good ones get in; when it is full, it begins anew.
const MAX_TOKENS: usize = 4096;

/// What was found out about a token and does not change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verified {
    /// The key it is signed with, as a number of this document's keys.
    pub(super) known: u32,
    pub(super) claims: Claims,
}

/// The keys of one document, by number. What was found out with those of another does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeySet(u64);

impl KeySet {
    pub(super) fn new() -> KeySet {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        KeySet(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The claim that named the key, and what came of the token.
type OfClaim = (Box<str>, Verified);

/// The tokens that one worker remembers, by their text.
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
