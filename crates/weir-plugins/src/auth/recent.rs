//! A bounded cache of results about secrets, such as verified tokens. It stores a keyed hash rather than the secret.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Instant;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;

/// Identifies a secret without revealing it: an HMAC with a random key of this process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SecretDigest([u8; 32]);

impl SecretDigest {
    /// The digest of several parts together.
    pub(crate) fn of(parts: &[&[u8]]) -> SecretDigest {
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
pub(crate) struct RecentResults<T> {
    most: usize,
    most_bytes: usize,
    known: HashMap<SecretDigest, RecentResult<T>>,
    /// Of what the results refer to, as their callers count it.
    bytes: usize,
}

struct RecentResult<T> {
    until: Instant,
    bytes: usize,
    what: T,
}

impl<T: Clone> RecentResults<T> {
    pub(crate) fn new(most: usize) -> RecentResults<T> {
        RecentResults { most, most_bytes: usize::MAX, known: HashMap::new(), bytes: 0 }
    }

    /// Also bounds the bytes that results refer to.
    pub(crate) fn with_most_bytes(self, most_bytes: usize) -> RecentResults<T> {
        RecentResults { most_bytes, ..self }
    }

    pub(crate) fn find(&self, mark: SecretDigest) -> Option<T> {
        self.known.get(&mark).filter(|one| Instant::now() < one.until).map(|one| one.what.clone())
    }

    /// Keeps a result that refers to nothing that a client or a server chooses the size of.
    pub(crate) fn keep(&mut self, mark: SecretDigest, what: T, until: Instant) {
        self.keep_sized(mark, what, until, 0);
    }

    /// Keeps a result that refers to this many bytes, unless they are more than all may have.
    pub(crate) fn keep_sized(&mut self, mark: SecretDigest, what: T, until: Instant, bytes: usize) {
        if let Some(before) = self.known.remove(&mark) {
            self.bytes -= before.bytes;
        }
        if bytes > self.most_bytes {
            return;
        }
        if self.is_full_for(bytes) {
            let now = Instant::now();
            self.known.retain(|_, one| now < one.until);
            self.bytes = self.known.values().map(|one| one.bytes).sum();
            if self.is_full_for(bytes) {
                self.known.clear();
                self.bytes = 0;
            }
        }
        self.bytes += bytes;
        self.known.insert(mark, RecentResult { until, bytes, what });
    }

    fn is_full_for(&self, bytes: usize) -> bool {
        self.known.len() >= self.most || self.bytes + bytes > self.most_bytes
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
    fn it_is_bounded_in_bytes() {
        let mut recent = RecentResults::new(100).with_most_bytes(1000);
        let later = Instant::now() + Duration::from_secs(3600);
        let mark = |number: usize| SecretDigest::of(&[&number.to_le_bytes()]);
        for number in 0..50 {
            recent.keep_sized(mark(number % 7), number, later, 300);
            assert_eq!(recent.find(mark(number % 7)), Some(number));
            assert!(recent.bytes <= 1000 && recent.bytes == 300 * recent.known.len());
        }
        recent.keep_sized(mark(99), 1, later, 1001);
        assert_eq!(recent.find(mark(99)), None, "it has no room for this one");
    }

    #[test]
    fn parts_are_told_apart() {
        assert!(SecretDigest::of(&[b"ab", b"c"]) != SecretDigest::of(&[b"a", b"bc"]));
        assert!(SecretDigest::of(&[b"ab", b"c"]) == SecretDigest::of(&[b"ab", b"c"]));
    }
}
