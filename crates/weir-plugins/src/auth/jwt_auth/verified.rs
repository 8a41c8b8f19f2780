//! Tokens whose signatures have been found good, remembered by each worker on its own.

use std::cell::RefCell;
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

/// The keys of one document. What was found out with those of another does not count.
pub(super) struct Seal(u64);

#[derive(Default)]
struct VerifiedTokens {
    seal: u64,
    /// By token; then by the claim that named the key.
    tokens: HashMap<Box<[u8]>, (Box<str>, Verified)>,
}

thread_local! {
    static MEMORY: RefCell<VerifiedTokens> = RefCell::default();
}

impl Seal {
    pub(super) fn new() -> Seal {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Seal(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn find(&self, token: &[u8], claim: &str) -> Option<Verified> {
        MEMORY.with_borrow(|memory| {
            let (of_claim, verified) = memory.tokens.get(token).filter(|_| memory.seal == self.0)?;
            (**of_claim == *claim).then_some(*verified)
        })
    }

    pub(super) fn remember(&self, token: &[u8], claim: &str, verified: Verified) {
        MEMORY.with_borrow_mut(|memory| {
            if memory.seal != self.0 || memory.tokens.len() >= MAX_TOKENS {
                memory.tokens.clear();
                memory.seal = self.0;
            }
            memory.tokens.insert(token.into(), (claim.into(), verified));
        });
    }
}
