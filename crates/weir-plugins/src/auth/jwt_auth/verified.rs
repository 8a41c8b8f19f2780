//! Each worker's cache of tokens whose signatures have been verified.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_tokens::Claims;

/// The most tokens in a cache, all of them valid; when it is full, it is emptied.
const MAX_TOKENS: usize = 4096;
/// The most bytes of their texts and claims' names; when they are more, it is emptied as well.
const MAX_BYTES: usize = 4 << 20;

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
    bytes: Cell<usize>,
    tokens: RefCell<HashMap<Rc<[u8]>, OfClaim>>,
}

impl VerifiedTokens {
    /// The result for a token, with its text.
    pub(super) fn find(&self, keys: KeySet, token: &[u8], claim: &str) -> Option<(Verified, Rc<[u8]>)> {
        let tokens = self.tokens.borrow();
        let (text, (of_claim, verified)) = tokens.get_key_value(token).filter(|_| self.of.get() == keys.0)?;
        (**of_claim == *claim).then(|| (*verified, Rc::clone(text)))
    }

    /// Adds a result; returns the token's text.
    pub(super) fn remember(&self, keys: KeySet, token: &[u8], claim: &str, verified: Verified) -> Rc<[u8]> {
        let mut tokens = self.tokens.borrow_mut();
        let bytes = token.len() + claim.len();
        let is_full = tokens.len() >= MAX_TOKENS || self.bytes.get() + bytes > MAX_BYTES;
        if self.of.replace(keys.0) != keys.0 || is_full {
            tokens.clear();
            self.bytes.set(0);
        }
        self.bytes.set(self.bytes.get() + bytes);
        let text: Rc<[u8]> = token.into();
        tokens.insert(Rc::clone(&text), (claim.into(), verified));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_bounded_in_number_and_in_bytes() {
        let (tokens, keys) = (VerifiedTokens::default(), KeySet::new());
        let verified = Verified { known: 0, claims: Claims { exp: None, nbf: None, iat: None } };
        let held = || tokens.tokens.borrow().iter().map(|(text, (claim, _))| text.len() + claim.len()).sum::<usize>();
        for number in 0..3 * MAX_BYTES / 16_384 {
            let token = format!("{number:016384}");
            tokens.remember(keys, token.as_bytes(), "key", verified);
            assert!(tokens.find(keys, token.as_bytes(), "key").is_some());
            assert!(held() <= MAX_BYTES && held() == tokens.bytes.get(), "{}", held());
        }
        for number in 0..2 * MAX_TOKENS {
            tokens.remember(keys, number.to_string().as_bytes(), "key", verified);
            assert!(tokens.tokens.borrow().len() <= MAX_TOKENS);
        }
    }
}
