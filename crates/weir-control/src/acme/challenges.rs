//! What an authority asks for while an order is open: over HTTP on port 80 (`http-01`, RFC 8555 §8.3), or in a handshake
//! on port 443 (`tls-alpn-01`, RFC 8737).

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use weir_gateway::route::PathSet;
use weir_gateway::snapshot::ChallengeCertificates;
use weir_net::tls::{self, ACME_TLS, Facts, Server, ServerTerms, Versions};

/// Where it asks over HTTP; the token follows.
pub const PREFIX: &str = "/.well-known/acme-challenge/";
/// What the names of answers end in that are a certificate and its key. No token has a dot in it.
pub(super) const CERTIFICATE: &str = ".pem";

/// The answers that are wanted now. Older than any snapshot, as an order is.
#[derive(Default)]
pub struct Challenges(ArcSwap<OpenChallenges>);

#[derive(Default)]
struct OpenChallenges {
    /// All by name, as they are kept for other processes.
    all: HashMap<Box<str>, Arc<str>>,
    /// Those of HTTP, by token.
    answers: HashMap<Box<str>, Arc<str>>,
    /// Those of handshakes, by host.
    servers: HashMap<Box<str>, Server>,
}

impl OpenChallenges {
    fn new(all: HashMap<Box<str>, Arc<str>>) -> OpenChallenges {
        let is_certificate = |name: &str| name.ends_with(CERTIFICATE);
        let answers = all.iter().filter(|(name, _)| !is_certificate(name));
        let certificates = all.iter().filter(|(name, _)| is_certificate(name));
        OpenChallenges {
            answers: answers.map(|(token, answer)| (token.clone(), Arc::clone(answer))).collect(),
            servers: certificates.filter_map(|(_, certificate)| server(certificate)).collect(),
            all,
        }
    }
}

/// Who answers with this certificate, and for whom. Nothing where it is damaged, which the authority will tell.
fn server(pem: &str) -> Option<(Box<str>, Server)> {
    let chain = tls::certificates(pem.as_bytes()).ok()?;
    let host = Facts::of(&chain[0]).ok()?.names.first()?.as_str().into();
    let keys = vec![tls::unchecked(chain, pem.as_bytes()).ok()?];
    let terms = ServerTerms { keys, versions: Versions::ALL, clients: None, protocols: &[ACME_TLS] };
    Some((host, Server::new(terms).ok()?))
}

impl Challenges {
    /// The answer for a path.
    pub fn answer(&self, path: &[u8]) -> Option<Arc<str>> {
        let token = std::str::from_utf8(path.strip_prefix(PREFIX.as_bytes())?).ok()?;
        self.0.load().answers.get(token).cloned()
    }

    /// From now on this is answered.
    pub(super) fn open(&self, name: &str, answer: &str) {
        self.change(|all| drop(all.insert(name.into(), answer.into())));
    }

    /// From now on nobody answers that.
    pub(super) fn close(&self, name: &str) {
        self.change(|all| drop(all.remove(name)));
    }

    /// From now on these are answered, and no other.
    pub(super) fn replace(&self, all: HashMap<Box<str>, Arc<str>>) {
        if self.0.load().all != all {
            self.0.store(Arc::new(OpenChallenges::new(all)));
        }
    }

    fn change(&self, change: impl Fn(&mut HashMap<Box<str>, Arc<str>>)) {
        self.0.rcu(|open| {
            let mut all = open.all.clone();
            change(&mut all);
            OpenChallenges::new(all)
        });
    }
}

impl std::fmt::Debug for Challenges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.load().all.keys()).finish()
    }
}

impl PathSet for Challenges {
    fn has(&self, path: &[u8]) -> bool {
        self.answer(path).is_some()
    }
}

impl ChallengeCertificates for Challenges {
    fn prove(&self, name: &str) -> Option<Server> {
        self.0.load().servers.get(name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_answer_in_handshakes_alone() {
        let challenges = Challenges::default();
        let identity = weir_testkit::Authority::of_tests().identity(&["a.test"]);
        challenges.open("t.pem", &(identity.key + &identity.certificate));
        assert!(challenges.prove("a.test").is_some() && challenges.prove("b.test").is_none());
        for token in ["t.pem", "t"] {
            assert_eq!(challenges.answer(format!("{PREFIX}{token}").as_bytes()), None, "there is a key in it");
        }
        challenges.open("u.pem", "damaged");
        challenges.close("t.pem");
        assert!(challenges.prove("a.test").is_none());
    }

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
