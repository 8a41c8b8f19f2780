//! SPIFFE: names of workloads, the certificates that carry them (X.509-SVIDs), and the authorities of each trust domain.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest::Context;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{CertificateError, Error, OtherError, RootCertStore};
use webpki::KeyUsage;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use super::hashing::add;
use super::provider;

/// The longest SPIFFE ID, and the longest trust domain in it (SPIFFE-ID §2.3).
const MOST_ID: usize = 2_048;
const MOST_TRUST_DOMAIN: usize = 255;
const SCHEME: &str = "spiffe://";

/// The name of a workload, `spiffe://example.org/shop`; without a path, that of a trust domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpiffeId {
    text: Box<str>,
    /// Where the trust domain ends.
    end: usize,
}

impl SpiffeId {
    /// # Errors
    /// What the text lacks (SPIFFE-ID §2).
    pub fn parse(text: &str) -> Result<SpiffeId, &'static str> {
        if text.len() > MOST_ID {
            return Err("it has more than 2048 bytes");
        }
        let rest = text.strip_prefix(SCHEME).ok_or("it does not begin with `spiffe://`")?;
        let (trust_domain, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let of_domain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_');
        if trust_domain.is_empty() || trust_domain.len() > MOST_TRUST_DOMAIN || !trust_domain.bytes().all(of_domain) {
            return Err("its trust domain has other characters than lower-case letters, digits, `.`, `-` and `_`");
        }
        let of_segment = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let is_segment = |segment: &str| !matches!(segment, "" | "." | "..") && segment.bytes().all(of_segment);
        if !path.split('/').skip(1).all(is_segment) {
            return Err(
                "a part of its path is empty, `.` or `..`, or has other characters than letters, digits, `.`, `-` and `_`",
            );
        }
        Ok(SpiffeId { text: text.into(), end: SCHEME.len() + trust_domain.len() })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn trust_domain(&self) -> &str {
        &self.text[SCHEME.len()..self.end]
    }

    /// Whether it names a workload, and not a trust domain.
    pub fn has_path(&self) -> bool {
        self.end < self.text.len()
    }

    /// Whether this is the other id, or the trust domain of it.
    pub fn covers(&self, other: &SpiffeId) -> bool {
        self == other || !self.has_path() && self.trust_domain() == other.trust_domain()
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why a certificate proves no SPIFFE ID that is accepted.
#[derive(Clone, PartialEq, Eq)]
pub enum SvidFault {
    /// The bytes are not a certificate.
    Unreadable,
    /// It has this many URIs among its alternative names, and not exactly one.
    Uris(usize),
    /// Its URI is not a SPIFFE ID.
    NotSpiffe(&'static str),
    /// Its SPIFFE ID is that of a trust domain.
    NoPath,
    /// It belongs to an authority.
    Authority,
    /// Its SPIFFE ID is not accepted here.
    NotAccepted(SpiffeId),
    /// There is no trust bundle of its trust domain.
    NoBundle(SpiffeId),
    /// Nothing is accepted, since the node has no identity or trust bundle yet.
    NotYet,
}

impl fmt::Display for SvidFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SvidFault::Unreadable => f.write_str("the certificate cannot be read"),
            SvidFault::Uris(count) => {
                write!(f, "an X.509-SVID has exactly one URI as its name, and the certificate has {count}")
            }
            SvidFault::NotSpiffe(why) => write!(f, "the URI of the certificate is not a SPIFFE ID: {why}"),
            SvidFault::NoPath => f.write_str("the SPIFFE ID of the certificate names a trust domain, and no workload"),
            SvidFault::Authority => f.write_str("the certificate is that of an authority, and of no workload"),
            SvidFault::NotAccepted(id) => write!(f, "the SPIFFE ID `{id}` is not among those accepted"),
            SvidFault::NotYet => {
                f.write_str("the SPIFFE Workload API has not given the node what it needs for this connection")
            }
            SvidFault::NoBundle(id) => write!(f, "there is no trust bundle for the SPIFFE ID `{id}`"),
        }
    }
}

impl fmt::Debug for SvidFault {
    /// In words: so rustls shows the errors of others.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for SvidFault {}

impl From<SvidFault> for Error {
    fn from(fault: SvidFault) -> Error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(fault))))
    }
}

/// The SPIFFE ID of a certificate that may authenticate a workload (X509-SVID §5.2). Says nothing about who issued it.
///
/// # Errors
/// A rule for such certificates is broken.
pub fn svid_id(certificate: &CertificateDer<'_>) -> Result<SpiffeId, SvidFault> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| SvidFault::Unreadable)?;
    // An extension that is there twice is an error.
    let names = parsed.subject_alternative_name().map_err(|_| SvidFault::Unreadable)?;
    let constraints = parsed.basic_constraints().map_err(|_| SvidFault::Unreadable)?;
    let usage = parsed.key_usage().map_err(|_| SvidFault::Unreadable)?;
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let uris: Vec<&str> = names
        .filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        })
        .collect();
    let [uri] = uris[..] else { return Err(SvidFault::Uris(uris.len())) };
    let signs = usage.is_some_and(|usage| usage.value.key_cert_sign() || usage.value.crl_sign());
    if signs || constraints.is_some_and(|constraints| constraints.value.ca) {
        return Err(SvidFault::Authority);
    }
    let id = SpiffeId::parse(uri).map_err(SvidFault::NotSpiffe)?;
    if id.has_path() { Ok(id) } else { Err(SvidFault::NoPath) }
}

/// Whether the certificate of an authority constrains the URIs that it may vouch for. Such an authority vouches for no workload here:
/// webpki does not implement constraints of URIs, and refuses all of them.
pub fn constrains_uris(authority: &CertificateDer<'_>) -> bool {
    let Ok((_, parsed)) = X509Certificate::from_der(authority) else { return false };
    let Ok(Some(constraints)) = parsed.name_constraints() else { return false };
    let subtrees = [&constraints.value.permitted_subtrees, &constraints.value.excluded_subtrees];
    subtrees.into_iter().flatten().flatten().any(|subtree| matches!(subtree.base, GeneralName::URI(_)))
}

/// The CA certificates of each trust domain.
#[derive(Default)]
pub struct TrustBundles(BTreeMap<Box<str>, RootCertStore>);

impl TrustBundles {
    /// Adds the bundle of a trust domain, whole or not at all.
    ///
    /// # Errors
    /// A certificate of it cannot be used.
    pub fn add(&mut self, trust_domain: &str, certificates: &[CertificateDer<'static>]) -> Result<(), String> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates {
            roots.add(certificate.clone()).map_err(|error| error.to_string())?;
        }
        self.0.insert(trust_domain.into(), roots);
        Ok(())
    }

    /// The trust domains that have a bundle.
    pub fn trust_domains(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|name| &**name)
    }

    pub fn has(&self, trust_domain: &str) -> bool {
        self.0.contains_key(trust_domain)
    }
}

impl fmt::Debug for TrustBundles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The workloads that are accepted as peers, and who vouches for them.
#[derive(Clone, Debug, Default)]
pub struct SpiffePeers {
    /// Without any, none is accepted.
    pub bundles: Arc<TrustBundles>,
    /// Workloads, and trust domains all of whose workloads are accepted.
    pub ids: Box<[SpiffeId]>,
}

impl SpiffePeers {
    /// The id of the peer with this certificate. Its chain leads to an authority of its own trust domain, and to no other.
    pub(super) fn verify(
        &self,
        peer: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<SpiffeId, Error> {
        if self.ids.is_empty() {
            return Err(SvidFault::NotYet.into());
        }
        let id = svid_id(peer)?;
        if !self.ids.iter().any(|accepted| accepted.covers(&id)) {
            return Err(SvidFault::NotAccepted(id).into());
        }
        let Some(roots) = self.bundles.0.get(id.trust_domain()) else { return Err(SvidFault::NoBundle(id).into()) };
        let parsed = webpki::EndEntityCert::try_from(peer).map_err(|_| SvidFault::Unreadable)?;
        let algorithms = provider().signature_verification_algorithms.all;
        let verified = parsed.verify_for_usage(algorithms, &roots.roots, between, now, usage, None, None);
        verified.map_err(unverified)?;
        Ok(id)
    }

    /// Adds what is accepted, and not the authorities: they change while connections that were accepted go on.
    pub(super) fn add_ids(&self, hash: &mut Context) {
        add(hash, b"spiffe");
        self.ids.iter().for_each(|id| add(hash, id.as_str().as_bytes()));
    }

    /// Adds all that decides whether a peer is accepted.
    pub(super) fn add_all(&self, hash: &mut Context) {
        self.add_ids(hash);
        for (trust_domain, roots) in &self.bundles.0 {
            add(hash, trust_domain.as_bytes());
            for root in &roots.roots {
                add(hash, &root.subject);
                add(hash, &root.subject_public_key_info);
                add(hash, root.name_constraints.as_deref().unwrap_or_default());
            }
        }
    }
}

/// As rustls reports it.
fn unverified(error: webpki::Error) -> Error {
    Error::InvalidCertificate(match error {
        webpki::Error::CertExpired { .. } => CertificateError::Expired,
        webpki::Error::CertNotValidYet { .. } => CertificateError::NotValidYet,
        webpki::Error::UnknownIssuer => CertificateError::UnknownIssuer,
        webpki::Error::InvalidSignatureForPublicKey => CertificateError::BadSignature,
        other => CertificateError::Other(OtherError(Arc::new(other))),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use aws_lc_rs::digest::SHA256;
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType};

    use super::super::hashing::finish;
    use super::*;

    fn params(uris: &[&str]) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.subject_alt_names = uris.iter().map(|uri| SanType::URI((*uri).try_into().expect("ASCII"))).collect();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params
    }

    /// An authority of a trust domain, with its certificate.
    fn authority(trust_domain: &str) -> (Issuer<'static, KeyPair>, CertificateDer<'static>) {
        let mut params = params(&[trust_domain]);
        params.distinguished_name.push(DnType::CommonName, trust_domain);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate").der().clone();
        (Issuer::new(params, key), certificate)
    }

    fn issued(by: &Issuer<'_, KeyPair>, params: &CertificateParams) -> CertificateDer<'static> {
        params.signed_by(&KeyPair::generate().expect("a key"), by).expect("a certificate").der().clone()
    }

    #[test]
    fn ids_have_a_trust_domain_and_a_path_of_plain_segments() {
        let id = SpiffeId::parse("spiffe://example.org/ns/Shop_1/sa.a-b").expect("an id");
        assert_eq!((id.trust_domain(), id.has_path()), ("example.org", true));
        let domain = SpiffeId::parse("spiffe://example.org").expect("a trust domain");
        assert!(!domain.has_path() && domain.covers(&id) && id.covers(&id) && !id.covers(&domain));
        assert!(!domain.covers(&SpiffeId::parse("spiffe://example.org.evil/a").expect("an id")));
        let long = format!("spiffe://example.org/{}", "a".repeat(MOST_ID));
        for wrong in [
            "",
            "https://example.org/a",
            "SPIFFE://example.org/a",
            "spiffe://",
            "spiffe:///a",
            "spiffe://Example.org/a",
            "spiffe://example.org:80/a",
            "spiffe://user@example.org/a",
            "spiffe://example.org/",
            "spiffe://example.org/a/",
            "spiffe://example.org//a",
            "spiffe://example.org/./a",
            "spiffe://example.org/../a",
            "spiffe://example.org/a%20b",
            "spiffe://example.org/a?b",
            "spiffe://example.org/a#b",
            &long,
        ] {
            assert!(SpiffeId::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn svid_is_the_certificate_of_one_workload() {
        let key = KeyPair::generate().expect("a key");
        let of = |params: CertificateParams| svid_id(params.self_signed(&key).expect("a certificate").der());
        assert_eq!(of(params(&["spiffe://a.test/x"])).map(|id| id.to_string()), Ok("spiffe://a.test/x".to_owned()));
        assert_eq!(of(params(&[])), Err(SvidFault::Uris(0)));
        assert_eq!(of(params(&["spiffe://a.test/x", "spiffe://a.test/y"])), Err(SvidFault::Uris(2)));
        assert_eq!(of(params(&["spiffe://a.test/x", "https://a.test"])), Err(SvidFault::Uris(2)));
        assert!(matches!(of(params(&["https://a.test/x"])), Err(SvidFault::NotSpiffe(_))));
        assert_eq!(of(params(&["spiffe://a.test"])), Err(SvidFault::NoPath));
        for usage in [KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign] {
            let mut signing = params(&["spiffe://a.test/x"]);
            signing.key_usages.push(usage);
            assert_eq!(of(signing), Err(SvidFault::Authority));
        }
        let mut authority = params(&["spiffe://a.test/x"]);
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        assert_eq!(of(authority), Err(SvidFault::Authority));
        assert_eq!(svid_id(&CertificateDer::from(vec![0; 9])), Err(SvidFault::Unreadable));
    }

    #[test]
    fn peers_are_vouched_for_by_an_authority_of_their_own_trust_domain() {
        let ((a, root_of_a), (b, root_of_b)) = (authority("spiffe://a.test"), authority("spiffe://b.test"));
        let mut bundles = TrustBundles::default();
        bundles.add("a.test", std::slice::from_ref(&root_of_a)).expect("a bundle");
        bundles.add("b.test", std::slice::from_ref(&root_of_b)).expect("a bundle");
        let ids = ["spiffe://a.test/x", "spiffe://b.test", "spiffe://c.test"];
        let ids = ids.map(|id| SpiffeId::parse(id).expect("an id"));
        let peers = SpiffePeers { bundles: Arc::new(bundles), ids: ids.into() };
        let verify = |certificate: &CertificateDer<'_>| {
            let verified = peers.verify(certificate, &[], UnixTime::now(), KeyUsage::client_auth());
            verified.map(|id| id.to_string()).map_err(|error| error.to_string())
        };
        let of = |by, id: &str| verify(&issued(by, &params(&[id])));
        assert_eq!(of(&a, "spiffe://a.test/x"), Ok("spiffe://a.test/x".to_owned()));
        assert_eq!(of(&b, "spiffe://b.test/any"), Ok("spiffe://b.test/any".to_owned()));
        let refused = |told: Result<String, String>, expected: &str| {
            let told = told.expect_err("it is refused");
            assert!(told.contains(expected), "{told}");
        };
        refused(of(&a, "spiffe://a.test/y"), "`spiffe://a.test/y` is not among those accepted");
        refused(of(&b, "spiffe://a.test/x"), "UnknownIssuer");
        refused(of(&a, "spiffe://b.test/any"), "UnknownIssuer");
        refused(of(&a, "spiffe://c.test/x"), "no trust bundle for the SPIFFE ID `spiffe://c.test/x`");
        let mut old = params(&["spiffe://a.test/x"]);
        old.not_after = old.not_before + Duration::from_secs(60);
        refused(verify(&issued(&a, &old)), "xpired");
    }

    #[test]
    fn peers_have_one_scope_while_authorities_change() {
        let with = |trusted: &[CertificateDer<'static>], id: &str| {
            let mut bundles = TrustBundles::default();
            bundles.add("a.test", trusted).expect("a bundle");
            SpiffePeers { bundles: Arc::new(bundles), ids: [SpiffeId::parse(id).expect("an id")].into() }
        };
        let hash = |peers: &SpiffePeers, all: bool| {
            let mut hash = Context::new(&SHA256);
            if all {
                peers.add_all(&mut hash)
            } else {
                peers.add_ids(&mut hash)
            }
            finish(hash)
        };
        let roots = [authority("spiffe://a.test").1, authority("spiffe://a.test").1];
        let (old, new) = (with(&roots[..1], "spiffe://a.test/x"), with(&roots[1..], "spiffe://a.test/x"));
        assert_eq!(hash(&old, false), hash(&new, false));
        assert_ne!(hash(&old, true), hash(&new, true));
        assert_ne!(hash(&old, false), hash(&with(&roots[..1], "spiffe://a.test/y"), false));
    }
}
