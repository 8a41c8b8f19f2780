//! Which certificate a client gets, and what it must prove: by the name it asks for.

use std::collections::HashMap;
use std::sync::Arc;

use regex::bytes::RegexSet;
use weir_net::tls::{Scope, Server};

/// One entry of `ssls`.
#[derive(Clone, Debug)]
pub struct Certificate {
    pub server: Server,
    /// Clients must show a certificate.
    pub proof: Option<RequiredClientCertificate>,
}

/// What clients must prove.
#[derive(Clone, Debug)]
pub struct RequiredClientCertificate {
    /// Paths that need none (APISIX `skip_mtls_uri_regex`).
    pub except: RegexSet,
}

/// Answers an authority of certificates that asks within a handshake whether a name is ours (RFC 8737).
pub trait ChallengeCertificates: std::fmt::Debug + Send + Sync {
    /// As whom to answer for this name, in lower case; `None` while no order is open.
    fn prove(&self, name: &str) -> Option<Server>;
}

/// All certificates of a configuration.
#[derive(Default, Debug)]
pub struct Certificates {
    all: Vec<Arc<Certificate>>,
    exact: HashMap<Box<str>, usize>,
    /// By what stands behind the `*.`.
    wildcard: HashMap<Box<str>, usize>,
    default: Option<usize>,
    /// Some name asks its clients for proof, so hosts must be looked at.
    proof: bool,
    prover: Option<Arc<dyn ChallengeCertificates>>,
}

impl Certificates {
    /// Adds a certificate for names in lower case: `example.com`, `*.example.com` for one label before it, or `*` for
    /// whoever asks for nothing else that is here.
    ///
    /// # Errors
    /// Names that another certificate has already, by their place among `names`.
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

    /// The certificate for a name in lower case: its own, one for all names beside it, or the default.
    pub fn find(&self, name: Option<&str>) -> Option<&Arc<Certificate>> {
        let own = name.and_then(|name| {
            let exact = self.exact.get(name);
            exact.or_else(|| name.split_once('.').and_then(|(_, rest)| self.wildcard.get(rest)))
        });
        own.copied().or(self.default).map(|number| &self.all[number])
    }

    /// From now on authorities get their answers from here.
    pub fn answer_with(&mut self, prover: Arc<dyn ChallengeCertificates>) {
        self.prover = Some(prover);
    }

    /// As whom to answer an authority that asks for a proof of this name.
    pub fn prove(&self, name: Option<&str>) -> Option<Server> {
        self.prover.as_ref()?.prove(name?)
    }

    /// Whether this very name, in lower case, has a certificate.
    pub fn names(&self, name: &str) -> bool {
        self.exact.contains_key(name)
    }

    /// Whether a request may be served that came over a connection whose client was asked for `proof`.
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

/// What [`Certificates::admit`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Admitted,
    /// The host asks for another proof than the connection's name does.
    Misdirected,
    /// The client has shown no certificate.
    Unproved,
}
