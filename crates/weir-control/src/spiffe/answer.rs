//! The messages of the Workload API (`workloadapi.proto`), and what an answer says.

use std::collections::BTreeMap;
use std::fmt;

use prost::Message;
use weir_net::tls::{self, CertificateDer, CertificateFacts, SpiffeId, TrustBundles};

use crate::document::{WorkloadIdentity, X509Svid};

#[derive(Clone, PartialEq, Message)]
pub(super) struct X509SvidRequest {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct X509SvidResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) svids: Vec<SvidMessage>,
    /// Revocation lists (tag 2) are not used.
    #[prost(btree_map = "string, bytes", tag = "3")]
    pub(super) federated_bundles: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(super) struct SvidMessage {
    #[prost(string, tag = "1")]
    pub(super) spiffe_id: String,
    /// Certificates one after the other, the node's own first.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) x509_svid: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) x509_svid_key: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) bundle: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(super) hint: String,
}

impl fmt::Debug for SvidMessage {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SvidMessage").field("spiffe_id", &self.spiffe_id).finish_non_exhaustive()
    }
}

/// The most X.509-SVIDs, and the most trust domains, of an answer.
const MOST_SVIDS: usize = 64;
const MOST_TRUST_DOMAINS: usize = 1_024;
/// The most certificates of a chain, and those of a trust bundle.
const MOST_CHAIN: usize = 16;
const MOST_AUTHORITIES: usize = 256;

/// What an answer says. One with a fault in what is the node's own is not used at all: part of an identity may be less than what is
/// needed. A federated bundle with a fault is left out: other trust domains must not decide whether the node has an identity.
pub(super) fn read(answer: X509SvidResponse) -> Result<WorkloadIdentity, String> {
    let X509SvidResponse { svids: sent, federated_bundles } = answer;
    if sent.is_empty() {
        return Err("it has no X.509-SVID".to_owned());
    }
    if sent.len() > MOST_SVIDS || federated_bundles.len() > MOST_TRUST_DOMAINS {
        return Err(format!("it has more than {MOST_SVIDS} X.509-SVIDs, or {MOST_TRUST_DOMAINS} trust bundles"));
    }
    let digest = digest(&sent, &federated_bundles);
    let (mut svids, mut bundles, mut complaints) = (Vec::new(), TrustBundles::default(), Vec::new());
    for mut message in sent {
        let bundle = std::mem::take(&mut message.bundle);
        let svid = svid(message)?;
        let domain = svid.id.trust_domain();
        if !bundles.has(domain) {
            complaints.extend(add_bundle(&mut bundles, domain, &bundle)?);
        }
        svids.push(svid);
    }
    for (name, bundle) in &federated_bundles {
        let added = match trust_domain(name) {
            // That of the node's own trust domain stands beside its X.509-SVID.
            Ok(domain) if bundles.has(&domain) => Ok(None),
            Ok(domain) => add_bundle(&mut bundles, &domain, bundle),
            Err(why) => Err(why),
        };
        complaints.extend(added.unwrap_or_else(Some));
    }
    Ok(WorkloadIdentity { svids, bundles: bundles.into(), complaints, digest })
}

fn digest(svids: &[SvidMessage], federated: &BTreeMap<String, Vec<u8>>) -> [u8; 32] {
    let of_svids = svids.iter().flat_map(|it| {
        [it.spiffe_id.as_bytes(), &it.x509_svid[..], &it.x509_svid_key[..], &it.bundle[..], it.hint.as_bytes()]
    });
    let of_bundles = federated.iter().flat_map(|(name, bundle)| [name.as_bytes(), &bundle[..]]);
    let counts = [svids.len().to_be_bytes(), federated.len().to_be_bytes()];
    tls::digest_of(counts.iter().map(|count| &count[..]).chain(of_svids).chain(of_bundles))
}

fn svid(message: SvidMessage) -> Result<X509Svid, String> {
    let SvidMessage { spiffe_id, x509_svid, x509_svid_key, bundle: _, hint } = message;
    let shown: String = spiffe_id.chars().take(MOST_SHOWN).collect::<String>().escape_default().to_string();
    let wrong = |problem: &dyn fmt::Display| format!("its X.509-SVID `{shown}` cannot be used: {problem}");
    let id = SpiffeId::parse(&spiffe_id).map_err(|why| wrong(&why))?;
    let chain = tls::certificates_der(&x509_svid, MOST_CHAIN).map_err(|error| wrong(&format!("the chain {error}")))?;
    let named = tls::svid_id(&chain[0]).map_err(|fault| wrong(&fault))?;
    if named != id {
        return Err(wrong(&format!("the certificate is that of `{named}`")));
    }
    let facts = CertificateFacts::of(&chain[0]).map_err(|error| wrong(&format!("the certificate {error}")))?;
    let certified = tls::certified_der(chain, x509_svid_key).map_err(|error| wrong(&format!("the key {error}")))?;
    let (since, until, fingerprint) = (facts.since, facts.until, facts.fingerprint);
    Ok(X509Svid { id, hint: hint.into(), certified, since, until, fingerprint })
}

/// The most characters of a name that are quoted.
const MOST_SHOWN: usize = 200;

/// The name of a trust domain, which may be written as a SPIFFE ID.
fn trust_domain(name: &str) -> Result<String, String> {
    let text = if name.contains("://") { name.to_owned() } else { format!("spiffe://{name}") };
    match SpiffeId::parse(&text) {
        Ok(id) if !id.has_path() => Ok(id.trust_domain().to_owned()),
        found => {
            let why = found.err().unwrap_or("it has a path");
            let shown: String = name.chars().take(MOST_SHOWN).collect();
            Err(format!("it has a trust bundle of `{}`, which is not a trust domain: {why}", shown.escape_default()))
        }
    }
}

/// Returns what the bundle lacks, although it is used.
fn add_bundle(bundles: &mut TrustBundles, domain: &str, bundle: &[u8]) -> Result<Option<String>, String> {
    let wrong = |problem: &dyn fmt::Display| format!("the trust bundle of `{domain}` cannot be used: {problem}");
    let certificates: Vec<CertificateDer<'static>> =
        tls::certificates_der(bundle, MOST_AUTHORITIES).map_err(|error| wrong(&format!("it {error}")))?;
    bundles.add(domain, &certificates).map_err(|error| wrong(&error))?;
    let constrained = certificates.iter().any(tls::constrains_uris);
    Ok(constrained.then(|| {
        format!("an authority in the trust bundle of `{domain}` constrains URIs, so none that it issues is accepted")
    }))
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CustomExtension, IsCa, Issuer, KeyPair, SanType};

    use super::*;
    use crate::document::SvidName;

    fn params(id: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(id.try_into().expect("ASCII"))];
        params
    }

    fn message(id: &str, hint: &str) -> SvidMessage {
        let (mut of_authority, key) = (params("spiffe://a.test"), KeyPair::generate().expect("a key"));
        of_authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = of_authority.self_signed(&key).expect("a certificate").der().to_vec();
        let (authority, key) = (Issuer::new(of_authority, key), KeyPair::generate().expect("a key"));
        let certificate = params(id).signed_by(&key, &authority).expect("a certificate").der().to_vec();
        SvidMessage {
            spiffe_id: id.to_owned(),
            x509_svid: certificate,
            x509_svid_key: key.serialize_der(),
            bundle: root,
            hint: hint.to_owned(),
        }
    }

    fn answer(svids: Vec<SvidMessage>, federated: &[(&str, &[u8])]) -> X509SvidResponse {
        let federated = federated.iter().map(|(name, bundle)| ((*name).to_owned(), bundle.to_vec()));
        X509SvidResponse { svids, federated_bundles: federated.collect() }
    }

    #[test]
    fn answer_has_svids_by_id_and_hint_and_bundles_by_trust_domain() {
        let (one, two) = (message("spiffe://a.test/one", ""), message("spiffe://a.test/two", "inside"));
        let other = one.bundle.clone();
        let sent = answer(vec![one, two], &[("spiffe://b.test", &other), ("c.test", &other), ("a.test", b"unused")]);
        let identity = read(sent.clone()).expect("an answer");
        let found = |name: &SvidName| identity.find(name).map(|svid| svid.id.to_string());
        let id = |text: &str| SvidName::Id(SpiffeId::parse(text).expect("an id"));
        assert_eq!(found(&SvidName::Default).as_deref(), Some("spiffe://a.test/one"));
        assert_eq!(found(&id("spiffe://a.test/two")).as_deref(), Some("spiffe://a.test/two"));
        assert_eq!(found(&SvidName::Hint("inside".into())).as_deref(), Some("spiffe://a.test/two"));
        assert_eq!((found(&id("spiffe://a.test/x")), found(&SvidName::Hint("x".into()))), (None, None));
        assert_eq!(identity.bundles.trust_domains().collect::<Vec<_>>(), ["a.test", "b.test", "c.test"]);
        assert_eq!(read(sent.clone()).expect("an answer").digest, identity.digest);
        let fewer = X509SvidResponse { svids: sent.svids[..1].to_vec(), ..sent };
        assert_ne!(read(fewer).expect("an answer").digest, identity.digest);
        assert_eq!(identity.complaints, [""; 0]);
        assert!(!format!("{identity:?}{:?}", message("spiffe://a.test/x", "")).contains("key"), "no key is shown");
    }

    #[test]
    fn answer_with_a_fault_is_refused_with_the_reason() {
        let good = || message("spiffe://a.test/one", "");
        let changed = |change: fn(&mut SvidMessage)| {
            let mut one = good();
            change(&mut one);
            answer(vec![one], &[])
        };
        for (sent, expected) in [
            (answer(vec![], &[]), "no X.509-SVID"),
            (answer(vec![good(); MOST_SVIDS + 1], &[]), "more than 64 X.509-SVIDs"),
            (
                changed(|one| one.spiffe_id = "spiffe://a.test/two".into()),
                "the certificate is that of `spiffe://a.test/one`",
            ),
            (
                changed(|one| one.spiffe_id = "https://a.test\u{1b}".into()),
                "`https://a.test\\u{1b}` cannot be used: it does not begin",
            ),
            (changed(|one| one.x509_svid.truncate(20)), "the chain cannot be read"),
            (changed(|one| one.x509_svid.clear()), "the chain contains no certificate"),
            (changed(|one| one.x509_svid = one.x509_svid.repeat(MOST_CHAIN + 1)), "more than 16 certificates"),
            (changed(|one| one.x509_svid_key = b"garbage".to_vec()), "the key cannot be used"),
            (
                changed(|one| one.x509_svid_key = message("spiffe://a.test/x", "").x509_svid_key),
                "is not the key of this",
            ),
            (
                changed(|one| one.bundle.clear()),
                "the trust bundle of `a.test` cannot be used: it contains no certificate",
            ),
        ] {
            let told = read(sent).expect_err(expected);
            assert!(told.contains(expected), "{told}");
        }
    }

    #[test]
    fn federated_bundles_with_a_fault_are_left_out_with_the_reason() {
        let good = || message("spiffe://a.test/one", "");
        let many = good().bundle.repeat(MOST_AUTHORITIES + 1);
        for (name, bundle, expected) in [
            ("B.test", &good().bundle[..], "`B.test`, which is not a trust domain"),
            ("spiffe://b.test/x", &good().bundle, "`spiffe://b.test/x`, which is not a trust domain: it has a path"),
            ("b.test", b"x", "the trust bundle of `b.test` cannot be used"),
            ("b.test", b"", "the trust bundle of `b.test` cannot be used: it contains no certificate"),
            ("b.test", &many, "more than 256 certificates"),
        ] {
            let identity = read(answer(vec![good()], &[(name, bundle), ("c.test", &good().bundle)])).expect(expected);
            assert!(identity.complaints[0].contains(expected), "{:?}", identity.complaints);
            assert_eq!(identity.bundles.trust_domains().collect::<Vec<_>>(), ["a.test", "c.test"], "{expected}");
        }
    }

    #[test]
    fn authority_that_constrains_uris_is_complained_of() {
        let mut of_authority = params("spiffe://b.test");
        of_authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // NameConstraints: permittedSubtrees with one URI, `b.test` (RFC 5280 §4.2.1.10).
        let constraints = [&[0x30, 12, 0xa0, 10, 0x30, 8, 0x86, 6][..], b"b.test"].concat();
        let constraints = CustomExtension::from_oid_content(&[2, 5, 29, 30], constraints);
        of_authority.custom_extensions.push(constraints);
        let key = KeyPair::generate().expect("a key");
        let bundle = of_authority.self_signed(&key).expect("a certificate").der().to_vec();
        let identity =
            read(answer(vec![message("spiffe://a.test/one", "")], &[("b.test", &bundle)])).expect("an answer");
        assert!(identity.complaints[0].contains("`b.test` constrains URIs"), "{:?}", identity.complaints);
        assert!(identity.bundles.has("b.test"));
    }
}
