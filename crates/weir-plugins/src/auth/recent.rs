//! A bounded cache of results about secrets, such as verified tokens. It stores a keyed hash rather than the secret.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Instant;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;

/// Identifies a secret without revealing it: an HMAC with a random key of this process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecretDigest([u8; 32]);

impl SecretDigest {
    /// The digest of several parts together.
    pub fn of(parts: &[&[u8]]) -> SecretDigest {
        static KEY: LazyLock<hmac::Key> = LazyLock::new(|| {
            hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).expect("the system has random numbers")
        });
        let mut context = hmac::Context::with_key(&KEY);
        for part in parts {
            // Each part is preceded by its length, so that other divisions of the same bytes have other digests.
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        SecretDigest(context.sign().as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

/// A cache for one thread. When it is full, expired entries are removed; if it is still full, all are.
pub struct RecentResults<T> {
    most: usize,
    known: HashMap<SecretDigest, (Instant, T)>,
}

impl<T: Clone> RecentResults<T> {
    pub fn new(most: usize) -> RecentResults<T> {
        RecentResults { most, known: HashMap::new() }
    }

    pub fn find(&self, mark: SecretDigest) -> Option<T> {
        self.known.get(&mark).filter(|(until, _)| Instant::now() < *until).map(|(_, what)| what.clone())
    }

    pub fn keep(&mut self, mark: SecretDigest, what: T, until: Instant) {
        if self.known.len() >= self.most {
            let now = Instant::now();
            self.known.retain(|_, (until, _)| now < *until);
            if self.known.len() >= self.most {
                self.known.clear();
            }
        }
        self.known.insert(mark, (until, what));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_forgets_in_time_and_never_grows() {
        let mut recent = RecentResults::new(2);
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(3600));
        let mark = |text: &str| SecretDigest::of(&[text.as_bytes()]);
        recent.keep(mark("a"), 1, later);
        recent.keep(mark("b"), 2, now);
        assert_eq!((recent.find(mark("a")), recent.find(mark("b"))), (Some(1), None));
        recent.keep(mark("c"), 3, later);
        assert_eq!((recent.find(mark("a")), recent.find(mark("c"))), (Some(1), Some(3)), "the expired one has gone");
        recent.keep(mark("d"), 4, later);
        assert_eq!(["a", "b", "c", "d"].map(|text| recent.find(mark(text))), [None, None, None, Some(4)]);
    }

    #[test]
    fn parts_are_told_apart() {
        assert!(SecretDigest::of(&[b"ab", b"c"]) != SecretDigest::of(&[b"a", b"bc"]));
        assert!(SecretDigest::of(&[b"ab", b"c"]) == SecretDigest::of(&[b"ab", b"c"]));
    }
}
