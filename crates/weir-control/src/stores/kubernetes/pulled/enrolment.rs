//! The certificate that controllers issue to this node, for a token of its service account.
//!
//! Its key is made here, and is in memory alone. Each renewal has a new key and needs the token: who has stolen a certificate cannot renew
//! it.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use http::{Request, StatusCode};
use rcgen::{CertificateParams, KeyPair};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use weir_client::{CallSettings, HttpClient, HttpClientSettings, HttpProtocol, ServerVerification, ServiceUrl};
use weir_net::backoff::Backoff;
use weir_net::tls::{self, CertificateFacts, CertifiedKey};

use super::super::issuing::SKEW;
use super::PullFiles;
use super::terms::{self, CONNECT};
use crate::document::EnrolmentFiles;

/// The time for the answer to a request for a certificate.
const ANSWER: Duration = Duration::from_secs(10);
/// The most bytes of an answer.
const MOST_ANSWER: usize = 64 << 10;
/// The most bytes of a token.
const MOST_TOKEN: usize = 16 << 10;
/// The most bytes of a controller's reason that are told.
const MOST_REASON: usize = 600;
/// The part of its lifetime after which a certificate is renewed, chosen at random so that nodes that started together do not come together.
const RENEWAL: std::ops::Range<f64> = 0.6..0.67;
/// The pauses between tries to renew a certificate that is still valid.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// How often the clock is looked at while nothing is due: a machine may have been suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// A certificate that is older than this is replaced if a controller does not take it.
const YOUNG: Duration = Duration::from_secs(10);
/// The least time between two renewals: the authority may be nearly over, and then certificates are short.
const LEAST_PAUSE: Duration = Duration::from_secs(1);

/// The certificate of this node.
pub(super) struct NodeEnrolment {
    files: EnrolmentFiles,
    beside: PathBuf,
    issued: Mutex<Option<NodeCertificate>>,
    /// Why the certificate cannot be renewed, while that is so.
    problem: Mutex<Option<String>>,
}

/// A certificate with its key.
struct NodeCertificate {
    identity: Arc<CertifiedKey>,
    got: SystemTime,
    /// Counted from when it came: this machine's clock may differ from that of the controllers.
    lifetime: Duration,
    renewal: Duration,
    is_doubted: bool,
}

impl NodeCertificate {
    fn age(&self, now: SystemTime) -> Option<Duration> {
        // `None`: the clock has been set back.
        now.duration_since(self.got).ok()
    }

    fn is_valid(&self, now: SystemTime) -> bool {
        self.age(now).is_some_and(|age| age < self.lifetime)
    }

    fn is_due(&self, now: SystemTime) -> bool {
        self.is_doubted || self.age(now).is_none_or(|age| age >= self.renewal)
    }
}

impl NodeEnrolment {
    pub(super) fn new(files: EnrolmentFiles, beside: PathBuf) -> NodeEnrolment {
        NodeEnrolment { files, beside, issued: Mutex::new(None), problem: Mutex::new(None) }
    }

    fn issued(&self) -> MutexGuard<'_, Option<NodeCertificate>> {
        self.issued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The certificate: a new one from this controller if there is none, or if controllers may not take it any more. One that is valid is
    /// renewed while there is a stream, and not before: the API server may be away.
    pub(super) async fn certificate(&self, files: &PullFiles, host: &str) -> Result<Arc<CertifiedKey>, String> {
        if !self.is_doubted()
            && let Some(valid) = self.valid()
        {
            return Ok(valid);
        }
        let renewed = self.renew(files, host).await;
        self.tell(host, renewed.as_ref().err());
        if let Some(issued) = &mut *self.issued() {
            // Without another one it is shown again before the next try.
            issued.is_doubted = false;
        }
        self.valid().ok_or_else(|| renewed.err().unwrap_or_else(|| "the certificate was issued for no time".to_owned()))
    }

    /// The certificate, if there is one that is valid.
    pub(super) fn valid(&self) -> Option<Arc<CertifiedKey>> {
        let now = SystemTime::now();
        self.issued().as_ref().filter(|issued| issued.is_valid(now)).map(|issued| issued.identity.clone())
    }

    fn is_doubted(&self) -> bool {
        self.issued().as_ref().is_some_and(|issued| issued.is_doubted)
    }

    /// Why the certificate cannot be renewed, while that is so and it should be.
    pub(super) fn problem(&self) -> Option<String> {
        if !self.is_due() {
            return None;
        }
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps what hinders a renewal, and logs when that begins and when it ends.
    fn tell(&self, host: &str, problem: Option<&String>) {
        let mut known = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        match (known.is_some(), problem) {
            (false, Some(problem)) => {
                tracing::warn!(controller = %host, %problem, "the certificate of this node cannot be renewed, it is tried again");
            }
            (true, None) => tracing::info!(controller = %host, "the certificate of this node is renewed again"),
            _ => {}
        }
        *known = problem.map(|problem| format!("the certificate of this node cannot be renewed: {host}: {problem}"));
    }

    fn is_due(&self) -> bool {
        let now = SystemTime::now();
        self.issued().as_ref().is_none_or(|issued| issued.is_due(now))
    }

    /// A controller has refused the certificate: it may be one that controllers do not take any more.
    pub(super) fn doubt(&self) {
        if let Some(issued) = &mut *self.issued()
            && issued.age(SystemTime::now()).is_none_or(|age| age >= YOUNG)
        {
            issued.is_doubted = true;
        }
    }

    /// How long until it is time for another one, at most [`LONGEST_SLEEP`].
    fn pause(&self) -> Duration {
        let now = SystemTime::now();
        let issued = self.issued();
        let left = issued.as_ref().and_then(|issued| issued.renewal.checked_sub(issued.age(now)?)).unwrap_or_default();
        left.min(LONGEST_SLEEP)
    }

    async fn renew(&self, files: &PullFiles, host: &str) -> Result<(), String> {
        let token = self.token()?;
        let key = KeyPair::generate().map_err(|error| format!("a key cannot be made: {error}"))?;
        let request = CertificateParams::default().serialize_request(&key);
        let request = request.map_err(|error| format!("a request for a certificate cannot be made: {error}"))?;
        let terms = terms::connector(files, &self.files.authorities, None)?;
        let text = ask(files, host, terms, (&token, request.der().to_vec())).await?;
        let issued = NodeCertificate::new(&text, &key.serialize_pem(), SystemTime::now());
        let issued = issued.map_err(|problem| format!("the certificate that it issues cannot be used: {problem}"))?;
        *self.issued() = Some(issued);
        Ok(())
    }

    fn token(&self) -> Result<String, String> {
        let path = self.beside.join(&*self.files.token);
        let wrong = |problem: &dyn std::fmt::Display| {
            format!(
                "store.controller.enrolment: {} cannot be used: {problem}; mount a projected ServiceAccount token there, with the audience \
                 of the controllers (`controller.issue.audience`)",
                path.display()
            )
        };
        let text = fs::read_to_string(&path).map_err(|error| wrong(&error))?;
        match text.trim() {
            "" => Err(wrong(&"it is empty")),
            token if token.len() > MOST_TOKEN => Err(wrong(&format!("it has more than {MOST_TOKEN} bytes"))),
            token => Ok(token.to_owned()),
        }
    }
}

impl NodeCertificate {
    fn new(certificate: &[u8], key: &str, now: SystemTime) -> Result<NodeCertificate, String> {
        let chain = tls::certificates(certificate).map_err(|error| error.to_string())?;
        let facts = CertificateFacts::of(&chain[0]).map_err(|error| error.to_string())?;
        let valid = Duration::from_secs(u64::try_from(facts.until.saturating_sub(facts.since)).unwrap_or(0));
        let lifetime = valid.saturating_sub(SKEW);
        let identity = tls::certified(chain, key.as_bytes()).map_err(|error| error.to_string())?;
        let renewal = lifetime.mul_f64(rand::random_range(RENEWAL));
        Ok(NodeCertificate { identity, got: now, lifetime, renewal, is_doubted: false })
    }
}

/// Asks a controller for a certificate, on a connection of its own. Returns the certificate, as PEM.
async fn ask(
    files: &PullFiles,
    host: &str,
    terms: tls::TlsConnector,
    (token, request): (&str, Vec<u8>),
) -> Result<bytes::Bytes, String> {
    let client = HttpClient::new(HttpClientSettings { dns: files.dns.clone(), ..HttpClientSettings::default() });
    let how = CallSettings {
        connect_timeout: CONNECT,
        timeout: ANSWER,
        protocol: HttpProtocol::Http2,
        verification: ServerVerification::Terms(terms),
        max_content_bytes: MOST_ANSWER,
        ..CallSettings::default()
    };
    let url = ServiceUrl::parse(host).map_err(|error| error.to_string())?;
    let request = Request::post("/v1/certificate")
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", "application/pkcs10")
        .body(request.into())
        .map_err(|_| "the token has characters that no token has".to_owned())?;
    let answer = client.call(&url, request, &how).await;
    client.forget(&url, &how);
    let answer = answer.map_err(|error| error.to_string())?;
    match answer.status() {
        StatusCode::OK => Ok(answer.into_body()),
        status => {
            let said = answer.into_body();
            let said = String::from_utf8_lossy(&said[..said.len().min(MOST_REASON)]).trim().to_owned();
            Err(format!("it issues no certificate ({status}): {said}"))
        }
    }
}

/// Renews the certificate while there is a stream, so that it is valid when the stream has to be opened again and no token can be
/// reviewed. Ends with this value.
pub(super) struct RenewalTask(JoinHandle<()>);

impl RenewalTask {
    pub(super) fn start(files: PullFiles, host: String) -> RenewalTask {
        RenewalTask(tokio::spawn(async move {
            let Some(enrolment) = files.enrolment.clone() else { return };
            let mut failures = 0;
            loop {
                sleep(enrolment.pause()).await;
                if !enrolment.is_due() {
                    continue;
                }
                let renewed = enrolment.renew(&files, &host).await;
                enrolment.tell(&host, renewed.as_ref().err());
                failures = if renewed.is_ok() { 0 } else { failures + 1 };
                let pause = if failures == 0 { LEAST_PAUSE } else { PAUSES.after(failures) };
                sleep(pause.mul_f64(rand::random_range(0.5..1.5))).await;
            }
        }))
    }
}

impl Drop for RenewalTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use weir_client::DnsSettings;
    use weir_testkit::Authority;

    use super::*;
    use crate::document::{NodeCertificates, PullSettings};

    fn issued(now: SystemTime) -> NodeCertificate {
        let identity = Authority::new().identity_with(&["weir-node"], weir_testkit::KeyKind::Ecdsa, |params| {
            params.not_before = (now - SKEW).into();
            params.not_after = (now + Duration::from_secs(86_400)).into();
        });
        NodeCertificate::new(identity.certificate.as_bytes(), &identity.key, now).expect("a certificate")
    }

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_by_the_clock_of_this_machine() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let certificate = issued(now);
        let hour = Duration::from_secs(3_600);
        assert_eq!(certificate.lifetime, 24 * hour);
        let states = [0, 14, 17, 23, 24, 48].map(|hours| {
            let at = now + hours * hour;
            (certificate.is_due(at), certificate.is_valid(at))
        });
        assert_eq!(states, [(false, true), (false, true), (true, true), (true, true), (true, false), (true, false)]);
        // A clock that has been set back says nothing about its age.
        assert!(certificate.is_due(now - hour) && !certificate.is_valid(now - hour));
        // The clocks of the controllers are an hour behind or before.
        let mut late = issued(now - hour);
        late.got = now;
        assert!(late.is_valid(now + 23 * hour));
    }

    #[test]
    fn a_node_without_a_token_says_where_it_must_be() {
        let files = EnrolmentFiles { token: "absent/token".into(), authorities: "ca.crt".into() };
        let enrolment = NodeEnrolment::new(files, PathBuf::from("/nowhere"));
        let problem = enrolment.token().expect_err("there is none");
        assert!(
            problem.contains("/nowhere/absent/token") && problem.contains("projected ServiceAccount token"),
            "{problem}"
        );
    }

    #[test]
    fn a_certificate_that_is_refused_is_replaced_unless_it_is_new() {
        let files = EnrolmentFiles { token: "token".into(), authorities: "ca.crt".into() };
        let enrolment = NodeEnrolment::new(files, PathBuf::new());
        assert!(enrolment.is_due(), "there is none");
        *enrolment.issued() = Some(issued(SystemTime::now()));
        enrolment.doubt();
        assert!(!enrolment.is_due(), "the controller may have other reasons");
        *enrolment.issued() = Some(issued(SystemTime::now() - 2 * YOUNG));
        assert!(!enrolment.is_due());
        enrolment.doubt();
        assert!(enrolment.is_due() && enrolment.valid().is_some(), "it is shown while there is no other");
    }

    #[tokio::test]
    async fn a_certificate_that_is_valid_is_shown_without_asking_for_another() {
        let files = EnrolmentFiles { token: "absent".into(), authorities: "ca.crt".into() };
        let enrolment = NodeEnrolment::new(files.clone(), PathBuf::from("/nowhere"));
        let pulled = PullFiles {
            settings: PullSettings {
                hosts: Vec::new(),
                server_name: None,
                certificates: NodeCertificates::Enrolment(files),
            },
            beside: PathBuf::from("/nowhere"),
            dns: DnsSettings::default(),
            enrolment: None,
        };
        let host = "https://controller.invalid";
        assert!(enrolment.certificate(&pulled, host).await.is_err(), "there is none, and no token");
        assert!(enrolment.problem().is_some_and(|problem| problem.contains("/nowhere/absent")));
        *enrolment.problem.lock().expect("no panic") = None;
        *enrolment.issued() = Some(issued(SystemTime::now() - Duration::from_secs(20 * 3_600)));
        assert!(enrolment.is_due() && enrolment.certificate(&pulled, host).await.is_ok());
        assert_eq!(enrolment.problem(), None, "nothing was asked for");
        enrolment.doubt();
        assert!(enrolment.certificate(&pulled, host).await.is_ok());
        assert!(enrolment.problem().is_some(), "another one was asked for");
        assert!(!enrolment.is_doubted(), "it is shown again before the next try");
    }
}
