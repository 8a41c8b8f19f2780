//! Responses to an authority's validations while an order is open: over HTTP on port 80 (`http-01`, RFC 8555 §8.3), or in a TLS
//! handshake on port 443 (`tls-alpn-01`, RFC 8737).

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use weir_gateway::route::PathSet;
use weir_gateway::snapshot::ChallengeCertificates;
use weir_net::handshake::ACME_TLS;
use weir_net::tls::{self, CertificateFacts, Server, ServerTerms, Versions};

/// The path prefix of HTTP challenges, before the token.
pub const PREFIX: &str = "/.well-known/acme-challenge/";
/// The suffix in the names of challenges that are a certificate with its key. A token contains no dot.
pub(super) const CERTIFICATE: &str = ".pem";

/// The currently open challenges. They outlive snapshots, since an order may take longer.
#[derive(Default)]
pub struct Challenges(ArcSwap<OpenChallenges>);

#[derive(Default)]
struct OpenChallenges {
    /// All challenges by their names in the storage, where other processes find them.
    all: HashMap<Box<str>, Arc<str>>,
    /// Responses to HTTP challenges, by token.
    answers: HashMap<Box<str>, Arc<str>>,
    /// Server identities for handshakes, by host.
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

/// The host and the server identity of a certificate. `None` if it is damaged; the validation then fails.
fn server(pem: &str) -> Option<(Box<str>, Server)> {
    let chain = tls::certificates(pem.as_bytes()).ok()?;
    let host = CertificateFacts::of(&chain[0]).ok()?.names.first()?.as_str().into();
    let keys = vec![tls::unchecked(chain, pem.as_bytes()).ok()?];
    let terms = ServerTerms { keys, versions: Versions::ALL, clients: None, protocols: &[ACME_TLS] };
    Some((host, Server::new(terms).ok()?))
}

impl Challenges {
    /// The response for a path.
    pub fn answer(&self, path: &[u8]) -> Option<Arc<str>> {
        let token = std::str::from_utf8(path.strip_prefix(PREFIX.as_bytes())?).ok()?;
        self.0.load().answers.get(token).cloned()
    }

    /// Adds a challenge.
    pub(super) fn open(&self, name: &str, answer: &str) {
        self.change(|all| drop(all.insert(name.into(), answer.into())));
    }

    /// Removes a challenge.
    pub(super) fn close(&self, name: &str) {
        self.change(|all| drop(all.remove(name)));
    }

    /// Replaces all challenges.
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
    fn challenge_certificate(&self, name: &str) -> Option<Server> {
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
        assert!(
            challenges.challenge_certificate("a.test").is_some()
                && challenges.challenge_certificate("b.test").is_none()
        );
        for token in ["t.pem", "t"] {
            assert_eq!(challenges.answer(format!("{PREFIX}{token}").as_bytes()), None, "there is a key in it");
        }
        challenges.open("u.pem", "damaged");
        challenges.close("t.pem");
        assert!(challenges.challenge_certificate("a.test").is_none());
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
