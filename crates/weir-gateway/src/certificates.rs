//! Which certificate a client gets, and whether it must show one itself: by the server name it asks for.

use std::collections::HashMap;
use std::sync::Arc;

use regex::bytes::RegexSet;
use weir_net::tls::Server;
use weir_plugin::Tls;

/// One entry of `ssls`.
#[derive(Clone, Debug)]
pub struct Certificate {
    pub server: Server,
    /// Set if clients must show a certificate.
    pub proof: Option<RequiredClientCertificate>,
}

impl Certificate {
    fn admit(&self, path: &[u8], tls: &Tls) -> Admission {
        match &self.proof {
            None => Admission::Admitted,
            Some(_) if self.server.scope() != tls.proof => Admission::Misdirected,
            Some(_) if tls.certificate.is_some() => Admission::Proved,
            Some(wanted) if !wanted.except.is_match(path) => Admission::Unproved,
            Some(_) => Admission::Admitted,
        }
    }
}

/// The requirement that clients show a certificate.
#[derive(Clone, Debug)]
pub struct RequiredClientCertificate {
    /// Paths that need none (APISIX `skip_mtls_uri_regex`).
    pub except: Arc<RegexSet>,
}

/// Answers a certificate authority that validates, within a TLS handshake, that a name is served here (RFC 8737).
pub trait ChallengeCertificates: std::fmt::Debug + Send + Sync {
    /// The server identity for the validation of this name, in lower case; `None` if no order for it is open.
    fn challenge_certificate(&self, name: &str) -> Option<Server>;
}

/// All certificates of a configuration.
#[derive(Default, Debug)]
pub struct Certificates {
    /// `None`: handshakes for the names are refused.
    all: Vec<Option<Arc<Certificate>>>,
    exact: HashMap<Box<str>, usize>,
    /// Keyed by the part after `*.`.
    wildcard: HashMap<Box<str>, usize>,
    default: Option<usize>,
    /// Some certificate requires client certificates, or some name is refused, so the hosts of requests must be checked.
    proof: bool,
    prover: Option<Arc<dyn ChallengeCertificates>>,
    /// By the ids of listeners that have certificates of their own.
    of_listeners: HashMap<Box<str>, Certificates>,
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
        self.proof |= certificate.proof.is_some();
        self.add_names(Some(Arc::new(certificate)), names)
    }

    /// Refuses handshakes for names, and requests to them on connections for other names.
    ///
    /// # Errors
    /// As [`Certificates::add`].
    pub fn refuse<'n>(&mut self, names: impl Iterator<Item = &'n str>) -> Result<(), Vec<usize>> {
        self.proof = true;
        self.add_names(None, names)
    }

    fn add_names<'n>(
        &mut self,
        certificate: Option<Arc<Certificate>>,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<(), Vec<usize>> {
        let number = self.all.len();
        self.all.push(certificate);
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

    /// The certificates that only this listener has, which are none at first.
    pub fn of_listener_mut(&mut self, id: &str) -> &mut Certificates {
        self.of_listeners.entry(id.into()).or_default()
    }

    /// The certificates of a listener: its own if it has any, and otherwise these.
    #[inline]
    pub fn of_listener(&self, id: Option<&str>) -> &Certificates {
        match id {
            Some(id) if !self.of_listeners.is_empty() => self.of_listeners.get(id).unwrap_or(self),
            _ => self,
        }
    }

    /// The certificate for a name in lower case: of that name, of the wildcard that covers it, or the default.
    pub fn find(&self, name: Option<&str>) -> Option<&Arc<Certificate>> {
        self.all[name.and_then(|name| self.own(name)).or(self.default)?].as_ref()
    }

    /// The certificate whose requirement of client certificates holds for requests to a host in lower case. Wildcards in the
    /// `hosts` of routes stand for any number of labels, so a host that no certificate covers belongs to the nearest wildcard
    /// above it that requires client certificates, however many labels are between them.
    pub fn governing(&self, host: &str) -> Option<&Arc<Certificate>> {
        self.all[self.governing_number(host)?].as_ref()
    }

    fn governing_number(&self, host: &str) -> Option<usize> {
        self.own(host).or_else(|| self.above(host)).or(self.default)
    }

    /// The number of the certificate of the name itself, or of the wildcard one label above it.
    fn own(&self, name: &str) -> Option<usize> {
        let exact = self.exact.get(name);
        exact.or_else(|| name.split_once('.').and_then(|(_, rest)| self.wildcard.get(rest))).copied()
    }

    /// That of the nearest wildcard at least two labels above the name that requires client certificates, or is refused.
    fn above(&self, name: &str) -> Option<usize> {
        let ends = name.match_indices('.').skip(1).map(|(dot, _)| &name[dot + 1..]);
        let mut all = ends.filter_map(|end| self.wildcard.get(end).copied());
        all.find(|&number| self.all[number].as_ref().is_none_or(|certificate| certificate.proof.is_some()))
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

    /// Whether a request for this host and path may be served on the connection with these TLS facts.
    ///
    /// A host that has a certificate of its own is subject to that certificate's requirement. For any other host, and for
    /// requests without one, two requirements hold: that of [`Certificates::governing`], and that of the name in the handshake.
    #[inline]
    pub fn admit(&self, host: &[u8], path: &[u8], tls: &Tls) -> Admission {
        match self.proof {
            false => Admission::Admitted,
            true => self.admit_proved(host, path, tls),
        }
    }

    fn admit_proved(&self, host: &[u8], path: &[u8], tls: &Tls) -> Admission {
        // Hosts are ASCII (`weir_proto::authority`).
        let host = std::str::from_utf8(host).unwrap_or_default();
        let admission = |number: usize| match &self.all[number] {
            Some(certificate) => certificate.admit(path, tls),
            None => Admission::Misdirected,
        };
        if let Some(own) = self.own(host) {
            return admission(own);
        }
        let of_name = tls.server_name.as_deref().and_then(|name| self.own(name)).or(self.default);
        let [of_host, of_name] =
            [self.governing_number(host), of_name].map(|number| number.map_or(Admission::Admitted, admission));
        // What the name in the handshake demanded proves nothing to another host.
        match of_name {
            Admission::Misdirected | Admission::Unproved if of_host.is_admitted() => of_name,
            _ => of_host,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty() && self.of_listeners.is_empty()
    }
}

/// The result of [`Certificates::admit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Admitted,
    /// The client has shown a certificate that is valid for this host.
    Proved,
    /// The host needs client certificates of another scope than the server name of the connection.
    Misdirected,
    /// The client has shown no certificate.
    Unproved,
}

impl Admission {
    fn is_admitted(self) -> bool {
        matches!(self, Admission::Admitted | Admission::Proved)
    }
}
