//! The authorities of controllers, and the certificates that they issue. The time and what is stored are given: nothing is read or written.
//!
//! ```text
//! made ──────────── 1/2 ──────────── 3/4 ──────────── 1 lifetime
//! active:           next is made     next is active   not trusted any more
//!                   and trusted      and issues
//! ```
//!
//! The next one is active later than at 3/4 if it has not been published for a quarter then.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use weir_net::tls::{self, CertificateDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::request::NodeKey;

/// What is issued is valid since this long before: the clocks of machines differ.
pub(in super::super) const SKEW: Duration = Duration::from_secs(60 * 60);
/// The name in certificates of nodes. It is among the names that a controller takes for those of nodes by default.
const NODE: &str = "weir-node";
/// The longest common name (RFC 5280 appendix A.1).
const MOST_COMMON_NAME: usize = 64;

/// The entries of the Secret. Those of the next authority, and of former ones, may be absent.
const ACTIVE: [&str; 2] = ["active.crt", "active.key"];
const NEXT: [&str; 2] = ["next.crt", "next.key"];
const FORMER: &str = "former.crt";
/// Since when nodes can learn the next authority, in seconds since 1970.
const PUBLISHED_SINCE: &str = "next.published";
/// What the names of authorities begin with.
const COMMON_NAME: &str = "weir controllers ";
/// An authority issues nothing for less than this part of the lifetime of a certificate.
const LEAST_PART: u32 = 16;

/// The authority that issues, the one after it, and those before it whose certificates may still be in use.
pub(super) struct IssuingAuthorities {
    active: IssuingAuthority,
    next: Option<IssuingAuthority>,
    /// Since when the next one has been published without a break.
    published: Option<SystemTime>,
    former: Vec<KnownCertificate>,
}

/// An authority with its key.
struct IssuingAuthority {
    certificate: KnownCertificate,
    key: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate of an authority.
#[derive(Clone, PartialEq, Eq)]
struct KnownCertificate {
    der: CertificateDer<'static>,
    pem: String,
    made: SystemTime,
    /// The last second at which it is valid.
    until: SystemTime,
}

/// A certificate for a controller, with its key.
pub(super) struct IssuedPair {
    pub certificate: String,
    pub key: String,
}

impl IssuingAuthorities {
    /// A first authority, which is valid for so long.
    pub(super) fn new(now: SystemTime, lifetime: Duration) -> Result<IssuingAuthorities, String> {
        let active = IssuingAuthority::new(now, lifetime)?;
        Ok(IssuingAuthorities { active, next: None, published: None, former: Vec::new() })
    }

    /// The authorities that are stored; `None` if there are no entries.
    ///
    /// # Errors
    /// If the entries are others, or cannot be used.
    pub(super) fn read(entries: &BTreeMap<String, Vec<u8>>) -> Result<Option<IssuingAuthorities>, String> {
        if entries.is_empty() {
            return Ok(None);
        }
        let Some(active) = IssuingAuthority::read(entries, ACTIVE)? else {
            return Err(format!("it has entries, but neither `{}` nor `{}`", ACTIVE[0], ACTIVE[1]));
        };
        let former = match entries.get(FORMER) {
            Some(text) => {
                let all = tls::certificates(text).map_err(|error| format!("`{FORMER}` {error}"))?;
                all.into_iter().map(KnownCertificate::new).collect::<Result<_, _>>()?
            }
            None => Vec::new(),
        };
        let published = entries.get(PUBLISHED_SINCE).map(|text| published_since(text)).transpose()?;
        Ok(Some(IssuingAuthorities { active, next: IssuingAuthority::read(entries, NEXT)?, published, former }))
    }

    /// As they are stored.
    pub(super) fn entries(&self) -> BTreeMap<String, Vec<u8>> {
        let mut entries = BTreeMap::new();
        for (names, authority) in [(ACTIVE, Some(&self.active)), (NEXT, self.next.as_ref())] {
            let Some(IssuingAuthority { certificate, key, .. }) = authority else { continue };
            entries.insert(names[0].to_owned(), certificate.pem.clone().into_bytes());
            entries.insert(names[1].to_owned(), key.clone().into_bytes());
        }
        if let Some(published) = self.published {
            let seconds = published.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
            entries.insert(PUBLISHED_SINCE.to_owned(), seconds.to_string().into_bytes());
        }
        if !self.former.is_empty() {
            let former: String = self.former.iter().map(|known| known.pem.as_str()).collect();
            entries.insert(FORMER.to_owned(), former.into_bytes());
        }
        entries
    }

    /// What is due now; what is made is valid for so long. `is_published` says whether these authorities had been published before they
    /// were read. The second value says whether something has changed, which has to be stored before it is used.
    pub(super) fn step(
        mut self,
        now: SystemTime,
        lifetime: Duration,
        is_published: bool,
    ) -> Result<(IssuingAuthorities, bool), String> {
        let was_published = self.published;
        self.published = was_published.filter(|_| is_published && self.next.is_some());
        if !is_published {
            // Nothing is replaced as long as nodes cannot learn it.
            let has_changed = self.published != was_published;
            return Ok((self, has_changed));
        }
        if self.next.is_some() && self.published.is_none() {
            self.published = Some(now);
        }
        let KnownCertificate { made, until, .. } = self.active.certificate;
        let quarter = until.duration_since(made).unwrap_or_default() / 4;
        let (is_over, has_passed) = (until <= now, |quarters: u32| made + quarters * quarter <= now);
        let is_known = self.published.is_some_and(|since| since + quarter <= now);
        let mut has_changed = true;
        match self.next.take().filter(|next| next.certificate.until > now) {
            Some(next) if is_over || has_passed(3) && is_known => {
                self.former.push(std::mem::replace(&mut self.active, next).certificate);
                self.published = None;
            }
            // Nothing has run for a long time: nodes come with their tokens, once they know it.
            None if is_over => return Ok((IssuingAuthorities::new(now, lifetime)?, true)),
            None if has_passed(2) => {
                self.next = Some(IssuingAuthority::new(now, lifetime)?);
                self.published = None;
            }
            next => (self.next, has_changed) = (next, self.published != was_published),
        }
        let before = self.former.len();
        self.former.retain(|known| known.until > now);
        has_changed |= self.former.len() < before;
        Ok((self, has_changed))
    }

    /// The certificates that are trusted, as PEM.
    pub(super) fn bundle(&self) -> String {
        self.known().map(|known| known.pem.as_str()).collect()
    }

    /// The same.
    pub(super) fn trusted(&self) -> Vec<CertificateDer<'static>> {
        self.known().map(|known| known.der.clone()).collect()
    }

    fn known(&self) -> impl Iterator<Item = &KnownCertificate> {
        let next = self.next.iter().map(|next| &next.certificate);
        std::iter::once(&self.active.certificate).chain(next).chain(&self.former)
    }

    /// Until when the active authority is valid.
    pub(super) fn until(&self) -> SystemTime {
        self.active.certificate.until
    }

    /// Whether the next authority is published.
    pub(super) fn has_next(&self) -> bool {
        self.next.is_some()
    }

    /// Issues a certificate for a controller with these names.
    pub(super) fn issue_to_controller(
        &self,
        names: &[Box<str>],
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<IssuedPair, String> {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let common = names.first().map_or("weir-controller", String::as_str).to_owned();
        let mut params = CertificateParams::new(names).map_err(failed)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.complete(&mut params, &common, now, lifetime);
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.active.issuer).map_err(failed)?.pem();
        Ok(IssuedPair { certificate, key: key.serialize_pem() })
    }

    /// Issues a certificate for a node that runs in this pod. The node's request decides nothing but the key.
    pub(super) fn issue_to_node(
        &self,
        key: &NodeKey,
        pod: &str,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<String, String> {
        if self.until() < now + lifetime / LEAST_PART {
            return Err("the authority of the controllers is over, and the next one cannot be used yet".to_owned());
        }
        let mut params = CertificateParams::new([NODE.to_owned()]).map_err(failed)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.complete(&mut params, if pod.is_empty() { NODE } else { pod }, now, lifetime);
        Ok(params.signed_by(key, &self.active.issuer).map_err(failed)?.pem())
    }

    fn complete(&self, params: &mut CertificateParams, common: &str, now: SystemTime, lifetime: Duration) {
        let common: String = common.chars().take(MOST_COMMON_NAME).collect();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.not_before = (now - SKEW).into();
        params.not_after = (now + lifetime).min(self.until()).into();
    }
}

impl IssuingAuthority {
    fn new(now: SystemTime, lifetime: Duration) -> Result<IssuingAuthority, String> {
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = IssuingAuthority::params(&format!("{COMMON_NAME}{:016x}", rand::random::<u64>()));
        params.not_before = (now - SKEW).into();
        params.not_after = (now + lifetime).into();
        let certificate = params.self_signed(&key).map_err(failed)?;
        let (text, certificate) = (key.serialize_pem(), KnownCertificate::new(certificate.der().clone())?);
        Ok(IssuingAuthority { certificate, key: text, issuer: Issuer::new(params, key) })
    }

    fn params(common: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
    }

    /// The authority in these entries; `None` if both are absent.
    fn read(entries: &BTreeMap<String, Vec<u8>>, names: [&str; 2]) -> Result<Option<IssuingAuthority>, String> {
        let [certificate, key] = match names.map(|name| entries.get(name)) {
            [None, None] => return Ok(None),
            [Some(certificate), Some(key)] => [certificate, key],
            _ => return Err(format!("it has only one of `{}` and `{}`", names[0], names[1])),
        };
        let of = |name: &str, error: &dyn std::fmt::Display| format!("`{name}` {error}");
        let chain = tls::certificates(certificate).map_err(|error| of(names[0], &error))?;
        tls::certified(chain.clone(), key).map_err(|error| of(names[1], &error))?;
        let known = KnownCertificate::new(chain[0].clone()).map_err(|error| of(names[0], &error))?;
        let text = String::from_utf8(key.clone()).map_err(|error| of(names[1], &error))?;
        let key = KeyPair::from_pem(&text).map_err(|error| of(names[1], &error))?;
        // What is issued names its issuer in the same bytes, or no one finds the way from one to the other.
        let (parsed, common) = known.parsed()?;
        let params = IssuingAuthority::params(&common);
        let again = params.self_signed(&key).map_err(failed)?;
        let again = KnownCertificate::new(again.der().clone())?;
        if again.parsed()?.0.subject().as_raw() != parsed.subject().as_raw() || !parsed.is_ca() {
            return Err(of(names[0], &"is not a certificate that a controller has made"));
        }
        Ok(Some(IssuingAuthority { certificate: known, key: text, issuer: Issuer::new(params, key) }))
    }
}

impl KnownCertificate {
    fn new(der: CertificateDer<'static>) -> Result<KnownCertificate, String> {
        let facts = tls::CertificateFacts::of(&der).map_err(|error| error.to_string())?;
        let at = |seconds: i64| SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let (made, until) = (at(facts.since) + SKEW, at(facts.until));
        Ok(KnownCertificate { der, pem: facts.pem, made, until })
    }

    /// With the common name.
    fn parsed(&self) -> Result<(X509Certificate<'_>, String), String> {
        let (_, parsed) = X509Certificate::from_der(&self.der).map_err(|error| error.to_string())?;
        let common = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        let common = common.unwrap_or_default().to_owned();
        Ok((parsed, common))
    }
}

/// Whether these are certificates, as PEM, of authorities that controllers have made.
pub(super) fn are_of_controllers(text: &[u8]) -> bool {
    let is_one = |der| {
        let known = KnownCertificate::new(der);
        known.is_ok_and(|known| known.parsed().is_ok_and(|(_, common)| common.starts_with(COMMON_NAME)))
    };
    tls::certificates(text).is_ok_and(|all| all.into_iter().all(is_one))
}

fn published_since(text: &[u8]) -> Result<SystemTime, String> {
    let seconds = std::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok());
    let since = seconds.and_then(|seconds| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
    since.ok_or_else(|| format!("`{PUBLISHED_SINCE}` is not a number of seconds"))
}

fn failed(error: rcgen::Error) -> String {
    format!("a certificate cannot be made: {error}")
}

#[cfg(test)]
mod tests {
    use weir_net::tls::{CertificateFacts, identities};

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    const LIFETIME: Duration = Duration::from_secs(80 * 24 * 60 * 60);

    /// Certificates have whole seconds.
    fn start() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    fn stored(authorities: &IssuingAuthorities) -> IssuingAuthorities {
        IssuingAuthorities::read(&authorities.entries()).expect("it can be read").expect("there is one")
    }

    fn facts(pem: &str) -> CertificateFacts {
        let all = tls::certificates(pem.as_bytes()).expect("a certificate");
        CertificateFacts::of(&all[0]).expect("a certificate")
    }

    #[test]
    fn an_authority_is_followed_by_one_that_was_trusted_long_before() {
        let mut now = IssuingAuthorities::new(start(), LIFETIME).expect("an authority");
        let first = now.active.certificate.der.clone();
        let mut events = Vec::new();
        for day in 0..130 {
            let (after, has_changed) = stored(&now).step(start() + day * DAY, LIFETIME, true).expect("a step");
            let is_noted = after.published != now.published && after.has_next();
            if has_changed && !is_noted {
                events.push((day, after.has_next(), after.active.certificate.der == first, after.trusted().len()));
            }
            now = after;
        }
        // The next one is made, is used a quarter after the day on which it was seen to be published, and the first one is over while there is a third.
        let expected = [(40, true, true, 2), (61, false, false, 2), (80, true, false, 2), (101, false, false, 2)];
        assert_eq!(events[..4], expected, "{events:?}");
    }

    #[test]
    fn an_authority_that_nodes_do_not_know_yet_is_not_used_before_the_other_is_over() {
        let first = IssuingAuthorities::new(start(), LIFETIME).expect("an authority");
        // No controller has run for a long time.
        let (late, has_changed) = first.step(start() + 70 * DAY, LIFETIME, true).expect("a step");
        assert!(has_changed && late.has_next());
        let (later, has_changed) = late.step(start() + 79 * DAY, LIFETIME, true).expect("a step");
        assert!(has_changed && later.has_next() && later.published == Some(start() + 79 * DAY));
        let (over, has_changed) = later.step(start() + 81 * DAY, LIFETIME, true).expect("a step");
        assert!(has_changed && !over.has_next() && over.trusted().len() == 1);
        let (anew, has_changed) = over.step(start() + 400 * DAY, LIFETIME, true).expect("a step");
        assert!(has_changed && anew.until() == start() + 480 * DAY);
    }

    #[test]
    fn an_authority_is_used_a_quarter_after_it_was_published_and_not_after_it_was_made() {
        let first = IssuingAuthorities::new(start(), LIFETIME).expect("an authority");
        let issuer = first.active.certificate.der.clone();
        let at = |known: &IssuingAuthorities, day: u32, is_published: bool| {
            let stepped = stored(known).step(start() + day * DAY, LIFETIME, is_published);
            let (after, has_changed) = stepped.expect("a step");
            (after.active.certificate.der == issuer, has_changed, after)
        };
        let (_, has_changed, made) = at(&first, 40, true);
        assert!(has_changed && made.has_next());
        // It cannot be published for a long time.
        let (is_first, has_changed, unknown) = at(&made, 64, false);
        assert!(is_first && !has_changed && unknown.published.is_none());
        let (is_first, has_changed, known) = at(&unknown, 65, true);
        assert!(is_first && has_changed, "nodes can learn it for the first time");
        // What is published is taken away for a while: nodes may have forgotten it.
        let (is_first, has_changed, lost) = at(&known, 66, false);
        assert!(is_first && has_changed && lost.published.is_none());
        let (.., again) = at(&known, 84, true);
        assert!(at(&known, 79, true).0, "14 days");
        assert!(again.former.is_empty() && !at(&known, 84, true).0, "the first one is over");
        let (.., early) = at(&made, 41, true);
        assert!(at(&early, 60, true).0, "19 days");
        assert!(!at(&early, 61, true).0, "20 days");
    }

    #[test]
    fn an_authority_that_is_nearly_over_issues_nothing_to_nodes() {
        let authorities = IssuingAuthorities::new(start(), LIFETIME).expect("an authority");
        let key = NodeKey::of_tests();
        for (left, is_issued) in [(DAY / 8, true), (DAY / 32, false), (Duration::ZERO, false)] {
            let issued = authorities.issue_to_node(&key, "weir-1", start() + LIFETIME - left, DAY);
            assert_eq!(issued.is_ok(), is_issued, "{left:?}");
        }
        assert!(authorities.issue_to_node(&key, "weir-1", start() + 2 * LIFETIME, DAY).is_err());
    }

    #[test]
    fn certificates_of_controllers_are_told_from_others() {
        let own = IssuingAuthorities::new(start(), LIFETIME).expect("an authority").bundle();
        let other = weir_testkit::Authority::new().certificate;
        assert!(are_of_controllers(own.as_bytes()));
        for foreign in [other.clone(), own + &other, "nothing".to_owned()] {
            assert!(!are_of_controllers(foreign.as_bytes()), "{foreign}");
        }
    }

    #[test]
    fn a_certificate_is_for_its_purpose_and_for_its_time() {
        let authorities = stored(&IssuingAuthorities::new(start(), LIFETIME).expect("an authority"));
        let key = NodeKey::of_tests();
        let node = authorities.issue_to_node(&key, "weir-1", start(), DAY).expect("a certificate");
        let told = facts(&node);
        assert_eq!((&*told.subject, told.names.as_slice()), ("CN=weir-1", ["weir-node".to_owned()].as_slice()));
        assert_eq!((told.since, told.until), (1_800_000_000 - 3_600, 1_800_000_000 + 86_400));
        let all = tls::certificates(node.as_bytes()).expect("a certificate");
        assert_eq!(identities(&all[0]), ["weir-node"]);
        let (_, parsed) = X509Certificate::from_der(&all[0]).expect("a certificate");
        let usage = parsed.extended_key_usage().expect("it can be read").expect("there is one").value;
        assert!(usage.client_auth && !usage.server_auth && !parsed.is_ca());
        // None outlives its authority.
        let last = authorities.issue_to_node(&key, "", start() + 80 * DAY - DAY / 2, DAY).expect("a certificate");
        assert_eq!(facts(&last).until, 1_800_000_000 + 80 * 86_400);
        let names = ["weir-controller.ns.svc".into(), "127.0.0.1".into()];
        let pair = authorities.issue_to_controller(&names, start(), DAY).expect("a certificate");
        let all = tls::certificates(pair.certificate.as_bytes()).expect("a certificate");
        assert_eq!(facts(&pair.certificate).names, ["weir-controller.ns.svc", "127.0.0.1"]);
        let (_, parsed) = X509Certificate::from_der(&all[0]).expect("a certificate");
        let usage = parsed.extended_key_usage().expect("it can be read").expect("there is one").value;
        assert!(usage.server_auth && !usage.client_auth);
        assert!(tls::certified(all, pair.key.as_bytes()).is_ok());
    }

    #[test]
    fn entries_that_no_controller_has_made_are_refused() {
        let refused =
            |entries: BTreeMap<String, Vec<u8>>| IssuingAuthorities::read(&entries).err().expect("they are refused");
        assert!(IssuingAuthorities::read(&BTreeMap::new()).expect("no fault").is_none());
        let good = IssuingAuthorities::new(start(), LIFETIME).expect("an authority").entries();
        assert!(refused([("tls.crt".to_owned(), Vec::new())].into()).contains("neither `active.crt` nor `active.key`"));
        let mut half = good.clone();
        half.remove("active.key");
        assert!(refused(half).contains("only one of"));
        let other = IssuingAuthorities::new(start(), LIFETIME).expect("an authority").entries();
        let mut mixed = good.clone();
        mixed.insert("active.key".to_owned(), other["active.key"].clone());
        assert!(refused(mixed).contains("`active.key` is not the key of this certificate"));
        let foreign = weir_testkit::Authority::new().identity(&["a.test"]);
        let pair = [foreign.certificate, foreign.key].map(String::into_bytes);
        let foreign = ACTIVE.map(str::to_owned).into_iter().zip(pair).collect();
        assert!(refused(foreign).contains("is not a certificate that a controller has made"));
    }
}
