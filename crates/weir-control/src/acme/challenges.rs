//! What an authority asks for on port 80 while an order is open (`http-01`, RFC 8555 §8.3).

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use weir_gateway::route::PathSet;

/// Where it asks; the token follows.
pub const PREFIX: &str = "/.well-known/acme-challenge/";

/// The tokens that are open now, with what is to be answered. Older than any snapshot, as an order is.
#[derive(Default)]
pub struct Challenges(ArcSwap<HashMap<Box<str>, Arc<str>>>);

impl Challenges {
    /// The answer for a path.
    pub fn answer(&self, path: &[u8]) -> Option<Arc<str>> {
        let token = std::str::from_utf8(path.strip_prefix(PREFIX.as_bytes())?).ok()?;
        self.0.load().get(token).cloned()
    }

    /// From now on the token is answered.
    pub(super) fn open(&self, token: &str, answer: &str) {
        self.change(|all| drop(all.insert(token.into(), answer.into())));
    }

    /// From now on nobody answers the token.
    pub(super) fn close(&self, token: &str) {
        self.change(|all| drop(all.remove(token)));
    }

    /// From now on these are answered, and no other.
    pub(super) fn replace(&self, all: HashMap<Box<str>, Arc<str>>) {
        if **self.0.load() != all {
            self.0.store(Arc::new(all));
        }
    }

    fn change(&self, change: impl Fn(&mut HashMap<Box<str>, Arc<str>>)) {
        self.0.rcu(|all| {
            let mut all = HashMap::clone(all);
            change(&mut all);
            all
        });
    }
}

impl std::fmt::Debug for Challenges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.load().keys()).finish()
    }
}

impl PathSet for Challenges {
    fn has(&self, path: &[u8]) -> bool {
        self.answer(path).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tokens_that_are_open_are_answered() {
        let challenges = Challenges::default();
        let answer = |path: &str| challenges.answer(path.as_bytes()).map(|text| text.to_string());
        assert_eq!(answer("/.well-known/acme-challenge/a"), None);
        challenges.open("a", "a.x");
        assert_eq!(answer("/.well-known/acme-challenge/a").as_deref(), Some("a.x"));
        for path in ["/.well-known/acme-challenge/", "/.well-known/acme-challenge/a/", "/a", "a", "/\u{e9}"] {
            assert_eq!(answer(path), None, "{path}");
        }
        challenges.close("a");
        assert_eq!(answer("/.well-known/acme-challenge/a"), None);
    }
}
