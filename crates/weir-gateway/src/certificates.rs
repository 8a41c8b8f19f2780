//! Which certificate a client gets, and whether it must show one itself: by the server name it asks for.

use std::collections::HashMap;
use std::sync::Arc;

use regex::bytes::RegexSet;
use weir_net::tls::{Scope, Server};

/// One entry of `ssls`.
#[derive(Clone, Debug)]
pub struct Certificate {
    pub server: Server,
    /// Set if clients must show a certificate.
    pub proof: Option<RequiredClientCertificate>,
}

/// The requirement that clients show a certificate.
#[derive(Clone, Debug)]
pub struct RequiredClientCertificate {
    /// Paths that need none (APISIX `skip_mtls_uri_regex`).
    pub except: RegexSet,
}

/// Answers a certificate authority that validates, within a TLS handshake, that a name is served here (RFC 8737).
pub trait ChallengeCertificates: std::fmt::Debug + Send + Sync {
    /// The server identity for the validation of this name, in lower case; `None` if no order for it is open.
    fn challenge_certificate(&self, name: &str) -> Option<Server>;
}

/// All certificates of a configuration.
#[derive(Default, Debug)]
pub struct Certificates {
    all: Vec<Arc<Certificate>>,
    exact: HashMap<Box<str>, usize>,
    /// Keyed by the part after `*.`.
    wildcard: HashMap<Box<str>, usize>,
    default: Option<usize>,
    /// Some certificate requires client certificates, so the hosts of requests must be checked.
    proof: bool,
    prover: Option<Arc<dyn ChallengeCertificates>>,
}

impl Certificates {
    /// Adds a certificate for names in lower case: `example.com`, `*.example.com` for exactly one more label, or `*` for
    /// clients that ask for a name without a certificate, or for none.
    ///
    /// # Errors
    /// The indices in `names` of those that already have another certificate.
    pub fn add<'n>(
        &mut self,
        certificate: Certificate,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<(), Vec<usize>> {
        let number = self.all.len();
        self.proof |= certificate.proof.is_some();
        self.all.push(Arc::new(certificate));
        let mut taken = Vec::new();
        for (index, name) in names.enumerate() {
            let before = match (name, name.strip_prefix("*.")) {
                ("*", _) => self.default.replace(number),
                (_, Some(rest)) => self.wildcard.insert(rest.into(), number),
                (name, None) => self.exact.insert(name.into(), number),
            };
            if before.is_some() {
                taken.push(index);
            }
        }
        if taken.is_empty() { Ok(()) } else { Err(taken) }
    }

    /// The certificate for a name in lower case: of that name, of the wildcard that covers it, or the default.
    pub fn find(&self, name: Option<&str>) -> Option<&Arc<Certificate>> {
        let own = name.and_then(|name| {
            let exact = self.exact.get(name);
            exact.or_else(|| name.split_once('.').and_then(|(_, rest)| self.wildcard.get(rest)))
        });
        own.copied().or(self.default).map(|number| &self.all[number])
    }

    /// From now on `prover` answers the validations of authorities.
    pub fn set_challenge_certificates(&mut self, prover: Arc<dyn ChallengeCertificates>) {
        self.prover = Some(prover);
    }

    /// The server identity for an authority that validates this name.
    pub fn challenge_certificate(&self, name: Option<&str>) -> Option<Server> {
        self.prover.as_ref()?.challenge_certificate(name?)
    }

    /// Whether exactly this name, in lower case, has a certificate.
    pub fn names(&self, name: &str) -> bool {
        self.exact.contains_key(name)
    }

    /// Whether a request may be served on a connection whose handshake had the scope `proof`; `proved`: the client showed a
    /// certificate.
    pub fn admit(&self, host: &[u8], path: &[u8], proof: Scope, proved: bool) -> Admission {
        if !self.proof {
            return Admission::Admitted;
        }
        let host = std::str::from_utf8(host).ok().filter(|host| !host.is_empty());
        let Some(certificate) = self.find(host) else { return Admission::Admitted };
        match &certificate.proof {
            None => Admission::Admitted,
            Some(_) if certificate.server.scope() != proof => Admission::Misdirected,
            Some(wanted) if !proved && !wanted.except.is_match(path) => Admission::Unproved,
            Some(_) => Admission::Admitted,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

/// The result of [`Certificates::admit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Admitted,
    /// The host needs client certificates of another scope than the server name of the connection.
    Misdirected,
    /// The client has shown no certificate.
    Unproved,
}
