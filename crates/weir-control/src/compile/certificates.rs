//! `ssls`: the certificates that clients see, and the requirement of client certificates.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use regex::bytes::RegexSet;
use weir_gateway::snapshot::{Certificate, Certificates, RequiredClientCertificate};
use weir_net::tls::{
    self, CertificateDer, CertificateFacts, CertifiedKey, ClientDemand, ClientTerms, ClientTrust, KeyError, Server,
    ServerTerms, SpiffePeers,
};
use weir_plugin::pattern::{self, PatternFault};
use weir_plugin::secret_name::may_be_secret;

use super::Compiler;
use super::spiffe::FoundSvid;
use crate::document::resource_access::advice_on_file;
use crate::document::{ClientAuthorities, Pem, PemSource, ResourceOrigin, ServerName, Ssl};
use crate::text::diagnostic::{Diagnostic, FaultCause};
use crate::text::read::shortened;

/// The protocols offered by ALPN.
const PROTOCOLS: &[&str] = &["h2", "http/1.1"];
const PROTOCOLS_WITHOUT_HTTP2: &[&str] = &["http/1.1"];
/// The most memory, in bytes, that the compiled patterns of one certificate may take.
const PATTERN_SIZE: usize = 1 << 20;

/// The certificates of a document, by their SHA-1 fingerprints.
#[derive(Default)]
pub(crate) struct DocumentCertificates {
    all: RefCell<HashSet<String>>,
    /// The expired and the not yet valid ones.
    untimely: RefCell<Vec<UntimelyCertificate>>,
    /// The server names whose certificates are valid now.
    valid: RefCell<HashSet<String>>,
    /// The earliest expiry of the certificates of each name, in seconds since 1970.
    ends: RefCell<BTreeMap<String, i64>>,
    /// The certificates of each entry of `ssls`, and those for upstreams.
    listed: RefCell<Vec<ListedCertificate>>,
}

/// A certificate that is not valid now.
struct UntimelyCertificate {
    fingerprint: String,
    names: Vec<String>,
    told: Diagnostic,
}

/// The certificates in use, as far as their successors are compared with them.
#[derive(Clone, Default)]
pub(crate) struct ServedCertificates(Arc<(HashSet<String>, HashSet<String>)>);

/// When a certificate expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateEnd {
    /// The first name in the certificate, or its subject.
    pub name: Arc<str>,
    /// Seconds since 1970.
    pub at: i64,
}

/// A certificate in use: that of an entry of `ssls`, or one that the node presents to upstreams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedCertificate {
    /// The server names that it is presented for; for an upstream the names in it, or its subject.
    pub names: Box<[Box<str>]>,
    /// Its expiry, in seconds since 1970.
    pub until: i64,
}

impl DocumentCertificates {
    /// The reasons to refuse these certificates as the successors of `served`: a certificate with invalid dates does not replace a
    /// valid one. Where there is none to keep, it is only a warning; and a certificate that expires while it is served does not
    /// block other changes.
    pub(crate) fn against(&self, served: &ServedCertificates) -> Vec<Diagnostic> {
        let (fingerprints, valid) = &*served.0;
        let untimely = self.untimely.borrow();
        let replaces = |one: &&UntimelyCertificate| {
            !fingerprints.contains(&one.fingerprint) && one.names.iter().any(|name| valid.contains(name))
        };
        untimely.iter().filter(replaces).map(|one| one.told.clone().outside()).collect()
    }

    pub(crate) fn served(&self) -> ServedCertificates {
        ServedCertificates(Arc::new((self.all.borrow().clone(), self.valid.borrow().clone())))
    }

    /// All of them, those first that expire first.
    pub(crate) fn listed(&self) -> Vec<ListedCertificate> {
        let mut all = self.listed.borrow().clone();
        all.sort_by_key(|one| one.until);
        all
    }

    /// The expiries, earliest first.
    pub(crate) fn ends(&self) -> Vec<CertificateEnd> {
        let ends = self.ends.borrow();
        let mut all: Vec<_> =
            ends.iter().map(|(name, at)| CertificateEnd { name: name.as_str().into(), at: *at }).collect();
        all.sort_by_key(|end| end.at);
        all
    }
}

/// Who vouches for clients.
enum TrustedClients {
    Authorities(Vec<CertificateDer<'static>>, usize),
    Spiffe(SpiffePeers),
}

impl Compiler<'_> {
    pub(super) fn certificates(&self) -> Certificates {
        let mut all = Certificates::default();
        for written in self.document.ssls.iter().filter(|written| written.enabled && !written.for_upstreams) {
            let certificate = match written.refuses {
                true => None,
                false => {
                    let Some(certificate) = self.certificate(written) else { continue };
                    Some(certificate)
                }
            };
            self.warn_of_missing_listeners(&written.origin, &written.listeners);
            let listeners: Vec<&str> = written.listeners.iter().map(|listener| &*listener.id).collect();
            let add = |to: &mut Certificates| {
                let names = written.names.iter().map(|name| &*name.name);
                match &certificate {
                    Some(certificate) => to.add(certificate.clone(), names),
                    None => to.refuse(names),
                }
            };
            let taken = match &*listeners {
                [] => add(&mut all),
                named => named.iter().try_for_each(|id| add(all.of_listener_mut(id))),
            };
            for index in taken.err().unwrap_or_default() {
                let name = &written.names[index];
                let problem = format!("`{}` already has a certificate", name.name);
                let advice = "put further certificates for a name into `certs` and `keys` of its first entry";
                self.report(&name.origin.path, name.origin.place, problem, Some(advice.into()));
            }
        }
        all
    }

    /// The paths for which a client needs no certificate. `None` if a fault has been reported.
    fn paths(&self, patterns: &[(String, ResourceOrigin)]) -> Option<Arc<RegexSet>> {
        let texts: Vec<String> = patterns.iter().map(|(text, _)| text.clone()).collect();
        let fault = match pattern::compile_set(&texts, false, PATTERN_SIZE) {
            Ok(set) => return Some(set),
            Err(fault) => fault,
        };
        let own_fault = |text: &str| pattern::compile(text, false, PATTERN_SIZE).err();
        let of_one = patterns.iter().find_map(|(text, origin)| Some((text, origin, own_fault(text)?)));
        let (text, origin, fault) = of_one.unwrap_or((&patterns[0].0, &patterns[0].1, fault));
        let problem = match fault {
            PatternFault::Invalid { reason } => format!("`{}` is not a valid pattern: {reason}", shortened(text)),
            PatternFault::TooLarge => {
                format!("the patterns must not exceed {} KiB when they are compiled", PATTERN_SIZE >> 10)
            }
        };
        self.report(&origin.path, origin.place, problem, None);
        None
    }

    fn certificate(&self, written: &Ssl) -> Option<Certificate> {
        let keys = self.keys(written);
        let clients = match &written.clients {
            None => None,
            Some(clients) => Some((clients, self.trusted_clients(&clients.trust)?)),
        };
        let except = match clients.as_ref().map(|(clients, _)| *clients) {
            None => None,
            Some(clients) if clients.demand == ClientDemand::Valid => Some(self.paths(&clients.except)?),
            // On no path is a certificate demanded.
            Some(clients) => Some(self.paths(&[(String::new(), clients.trust.origin().clone())])?),
        };
        let terms = ServerTerms {
            keys: keys?,
            versions: written.versions,
            clients: clients.as_ref().map(|(clients, trusted)| ClientTerms {
                trust: match trusted {
                    TrustedClients::Authorities(all, depth) => ClientTrust::Authorities(all, *depth),
                    TrustedClients::Spiffe(peers) => ClientTrust::Spiffe(peers),
                },
                demand: match clients.demand {
                    ClientDemand::Valid if !clients.except.is_empty() => ClientDemand::ValidOrNone,
                    demand => demand,
                },
            }),
            protocols: self.protocols(),
        };
        let complain = |wrong: tls::InvalidTerms| {
            let origin = written.clients.as_ref().map_or(&written.origin, |clients| clients.trust.origin());
            self.report(&origin.path, origin.place, format!("cannot be used: {wrong}"), None);
        };
        let server = Server::new(terms).map_err(complain).ok()?;
        Some(Certificate { server, proof: except.map(|except| RequiredClientCertificate { except }) })
    }

    /// The certificates of an entry with their keys. Without any, which is so until the Workload API gives its X.509-SVID, handshakes
    /// are refused, while requests on other connections are subject to its `client` all the same. `None` if a fault has been reported.
    fn keys(&self, written: &Ssl) -> Option<Vec<Arc<CertifiedKey>>> {
        if let Some(choice) = &written.svid {
            return Some(match self.svid(choice)? {
                FoundSvid::Present(certified) => vec![certified],
                FoundSvid::Absent => Vec::new(),
            });
        }
        let keys: Vec<_> =
            written.pairs.iter().filter_map(|(cert, key)| self.certified(&written.names, cert, key)).collect();
        // If there are fewer than written, a fault has been reported.
        (!keys.is_empty() && keys.len() == written.pairs.len()).then_some(keys)
    }

    fn trusted_clients(&self, written: &ClientAuthorities) -> Option<TrustedClients> {
        match written {
            ClientAuthorities::Own(pem, depth) => Some(TrustedClients::Authorities(self.chain(pem)?, *depth)),
            ClientAuthorities::Spiffe(ids, origin) => Some(TrustedClients::Spiffe(self.peers(ids, origin)?)),
        }
    }

    pub(super) fn protocols(&self) -> &'static [&'static str] {
        if self.document.settings.clients.http2 { PROTOCOLS } else { PROTOCOLS_WITHOUT_HTTP2 }
    }

    /// A certificate with its key. Faults are reported at their own places.
    pub(super) fn certified(&self, names: &[ServerName], cert: &Pem, key: &Pem) -> Option<Arc<CertifiedKey>> {
        // Both are read before returning, so that the faults of both are reported.
        let (chain, text) = (self.chain(cert), self.text(key));
        let (chain, text) = (chain?, text?);
        let facts = CertificateFacts::of(&chain[0]).map_err(|error| self.report_pem(cert, &error)).ok()?;
        let certified = tls::certified(chain, &text);
        let certified = certified.map_err(|error| self.report_pem(key, &error)).ok()?;
        self.present(names, cert, &facts);
        for name in names.iter().filter(|name| &*name.name != "*" && !facts.is_good_for(&name.name)) {
            let problem = format!("the certificate is not for `{}`; it is for {}", name.name, facts.told_names());
            self.warnings.report_text(&name.origin.path, name.origin.place, problem, None);
        }
        Some(certified)
    }

    /// Warns of a certificate that is not valid now; whether it is refused depends on what is served already.
    fn present(&self, names: &[ServerName], cert: &Pem, facts: &CertificateFacts) {
        let now = self.document.read_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let wrong = match (facts.since > now, facts.until < now) {
            (true, _) => {
                Some(("is not valid yet", "the other side rejects the certificate until then; is the clock right?"))
            }
            (_, true) => Some(("has expired", "the other side rejects the certificate; renew it")),
            _ => None,
        };
        if let Some((problem, advice)) = wrong {
            let told = Diagnostic::at_place(&self.document.source, cert.place(), problem);
            let told = self.document.located(Diagnostic { path: cert.origin.path.to_string(), ..told.advise(advice) });
            self.warnings.add(told.clone());
            let names = names.iter().map(|name| name.name.to_string()).collect();
            let untimely = UntimelyCertificate { fingerprint: facts.fingerprint.clone(), names, told };
            self.presented.untimely.borrow_mut().push(untimely);
        } else {
            self.presented.valid.borrow_mut().extend(names.iter().map(|name| name.name.to_string()));
        }
        let is_new = self.presented.all.borrow_mut().insert(facts.fingerprint.clone());
        let own: Vec<&str> = match &facts.names[..] {
            [] => vec![&facts.subject],
            own => own.iter().map(String::as_str).collect(),
        };
        let first = own[0].to_owned();
        let is_for_upstream = names.is_empty();
        let shown: Vec<&str> = if is_for_upstream { own } else { names.iter().map(|name| &*name.name).collect() };
        let names = shown.into_iter().map(Box::from).collect();
        // One that upstreams are shown is listed once, however many use it.
        if !is_for_upstream || is_new {
            self.presented.listed.borrow_mut().push(ListedCertificate { names, until: facts.until });
        }
        let mut ends = self.presented.ends.borrow_mut();
        ends.entry(first).and_modify(|end| *end = facts.until.min(*end)).or_insert(facts.until);
    }

    /// The certificates of a text, at least one.
    pub(super) fn chain(&self, pem: &Pem) -> Option<Vec<CertificateDer<'static>>> {
        let text = self.text(pem)?;
        tls::certificates(&text).map_err(|error| self.report_pem(pem, &error)).ok()
    }

    /// The PEM text, inline or as read by the store.
    fn text(&self, pem: &Pem) -> Option<Arc<[u8]>> {
        let (name, by) = match &pem.source {
            PemSource::Here(text) => return Some(text.as_bytes().into()),
            PemSource::Elsewhere { name, by } => (name, *by),
        };
        let (problem, advice) = match self.document.beside.files.get(name, by) {
            Some(Ok(text)) => return Some(Arc::clone(text)),
            Some(Err(reason)) => {
                let problem = format!("{} cannot be read: {reason}", named(pem, name));
                let fault = Diagnostic::at_place(&self.document.source, pem.place(), problem);
                let cause = FaultCause::of_unread_file(reason);
                let is_relative = cause.is_outside() && !name.starts_with('/') && !name.starts_with("$env://");
                let fault = Diagnostic { path: pem.origin.path.to_string(), cause, ..fault };
                self.faults.add(match is_relative {
                    true => fault.advise("a relative name begins at the folder of the configuration file"),
                    false => fault,
                });
                return None;
            }
            // It may not be read, which was reported with the reference.
            None if name.starts_with("$env://") && self.document.access().is_some() => return None,
            None if self.document.access().is_some() => {
                let problem = format!("the file {} may not be named by a resource of the store", named(pem, name));
                (problem, Some(advice_on_file(name)))
            }
            None => {
                let advice = "write the PEM text itself".to_owned();
                (format!("{} is a file name, and files cannot be used here", named(pem, name)), Some(advice))
            }
        };
        self.report(&pem.origin.path, pem.place(), problem, advice);
        None
    }

    fn report_pem(&self, pem: &Pem, error: &KeyError) {
        let problem = match pem.elsewhere() {
            Some(name) => format!("{} {error}", named(pem, name)),
            None => error.to_string(),
        };
        let advice = match error {
            KeyError::NoCertificate => "a PEM certificate begins with the line `-----BEGIN CERTIFICATE-----`",
            KeyError::NoKey => "a PEM key begins with a line such as `-----BEGIN PRIVATE KEY-----`",
            KeyError::Encrypted => "decrypt it with `openssl pkey -in KEY -out PLAIN`",
            KeyError::Mismatch => {
                "use the key that the certificate was issued for; check whether the files were mixed up"
            }
            KeyError::Damaged(_) => "copy the text again, including its first and last line",
            KeyError::Unusable(_) => "use ECDSA with P-256 or P-384, Ed25519, or RSA with 2048 bits or more",
        };
        let fault = Diagnostic::at_place(&self.document.source, pem.place(), problem).advise(advice);
        let fault = Diagnostic { path: pem.origin.path.to_string(), ..fault };
        // The content of a file may change, and that of a resource stays.
        self.faults.add(if pem.elsewhere().is_some() { fault.outside() } else { fault });
    }

    /// Warns of TLS addresses without a certificate, and of certificates without a TLS address.
    pub(super) fn warn_of_silence(&self, certificates: &Certificates) {
        let document = self.document;
        let speaks = document.listens().any(|listen| listen.settings.protocol.uses_tls());
        let has_none = certificates.is_empty() && document.acme.is_none();
        // With a store the file has no certificates; they are added to the store, perhaps later.
        if has_none && document.settings.store.is_some() {
            return;
        }
        let (path, problem, advice) = match (speaks, has_none) {
            (true, true) if document.ssls.is_empty() => (
                "listen",
                "an address uses TLS, but there is no certificate: every handshake fails",
                "add one to `ssls`",
            ),
            (false, false) => {
                let path = if document.ssls.is_empty() { "acme" } else { "ssls" };
                (path, "no `listen` address uses TLS", "add one: `listen: [{ address: \":9443\", tls: true }]`")
            }
            _ => return,
        };
        self.warnings.report_text(path, document.place_at(path), problem, Some(advice.into()));
    }
}
/// The file name of a PEM text for an error. What stands in place of a private key, has no PEM header and does not look like a file
/// name may be the key itself (Base64 has neither a dot nor a colon), so it is not quoted.
fn named(pem: &Pem, name: &str) -> String {
    let last = pem.origin.path.rsplit('.').next().unwrap_or_default();
    let member = last.split('[').next().unwrap_or_default();
    match may_be_secret([member]) && !name.contains(['.', ':']) {
        true => "`…`".to_owned(),
        false => format!("`{}`", shortened(name)),
    }
}
