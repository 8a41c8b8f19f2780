//! Certificates that controllers issue, to themselves and to nodes. Why so: docs/decisions/node-certificates.md.
//!
//! The authority is in a Secret that all controllers read. Whichever of them sees first that something is due writes it: a write names the
//! version that it is based on, so of two only one succeeds, and the other reads again.

mod authorities;
mod gate;
mod request;

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{MissedTickBehavior, interval};
use weir_kube::cluster::{ApiServer, ClusterError, ReviewedToken, StoredEntries};
use weir_net::tls::{self, CertificateDer};

use crate::document::IssueSettings;
pub(super) use authorities::SKEW;
use authorities::{IssuedPair, IssuingAuthorities, are_of_controllers};
use gate::RequestGate;
use request::NodeKey;

/// The longest request for a certificate: one for a key of the curve P-256 has some 200 bytes.
pub const MOST_SIGNING_REQUEST: usize = 4 << 10;
/// The longest token.
const MOST_TOKEN: usize = 16 << 10;
/// The most tokens that the API server is asked about at a time.
const MOST_REVIEWS: usize = 8;
/// The entry of the ConfigMap.
const PUBLISHED: &str = "ca.crt";
/// The Secret is looked at so often while a certificate is valid, and how long that takes at least and at most.
const LOOKS: u32 = 60;
const SHORTEST_LOOK: Duration = Duration::from_millis(200);
const LONGEST_LOOK: Duration = Duration::from_secs(60);
/// How long after a failure it is tried again at most.
const AGAIN: Duration = Duration::from_secs(2);
/// What was read longer ago than this is read again before it is used: this process may have been suspended.
const MOST_AGE: Duration = LONGEST_LOOK;
/// What all service accounts begin with as users.
const ACCOUNT: &str = "system:serviceaccount:";

/// Issues certificates. Clones are the same.
#[derive(Clone)]
pub struct CertificateIssuer(Arc<SharedIssuer>);

struct SharedIssuer {
    server: Arc<ApiServer>,
    /// What the connections to the API server belong to.
    runtime: Handle,
    settings: IssueSettings,
    gate: RequestGate,
    reviews: Arc<Semaphore>,
    state: Mutex<IssuerState>,
    issued: AtomicU64,
    refused: AtomicU64,
}

struct IssuerState {
    /// `None` until they have been read.
    authorities: Option<Arc<IssuingAuthorities>>,
    serving: Arc<ServingCertificate>,
    /// Whether connections are served with a certificate that nodes trust.
    is_used: bool,
    problem: Option<String>,
    /// Why tokens cannot be reviewed.
    review_problem: Option<String>,
}

/// The certificate of this controller, and the authorities of nodes.
pub struct ServingCertificate {
    pub chain: Vec<CertificateDer<'static>>,
    /// PEM.
    pub key: String,
    pub authorities: Vec<CertificateDer<'static>>,
    /// When it is time for another one.
    renewal: SystemTime,
}

/// Why a node gets no certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnrolmentRefusal {
    /// What it sent is not a request.
    Request(String),
    /// It has not proved itself.
    Token(String),
    /// It has, but is not a node.
    Account(String),
    /// It may try again.
    Later(String),
}

impl fmt::Display for EnrolmentRefusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (EnrolmentRefusal::Request(problem)
        | EnrolmentRefusal::Token(problem)
        | EnrolmentRefusal::Account(problem)
        | EnrolmentRefusal::Later(problem)) = self;
        out.write_str(problem)
    }
}

impl CertificateIssuer {
    /// Nothing is read yet: until then, the certificate of this controller is one that no node trusts.
    ///
    /// # Errors
    /// If the names in the settings are not for certificates.
    pub(super) fn new(
        server: Arc<ApiServer>,
        runtime: Handle,
        settings: &IssueSettings,
    ) -> Result<CertificateIssuer, String> {
        let now = SystemTime::now();
        let serving =
            ServingCertificate::new(&IssuingAuthorities::new(now, settings.authority_lifetime)?, settings, now)?;
        let state = IssuerState {
            authorities: None,
            serving: Arc::new(serving),
            is_used: false,
            problem: None,
            review_problem: None,
        };
        Ok(CertificateIssuer(Arc::new(SharedIssuer {
            server,
            runtime,
            settings: settings.clone(),
            gate: RequestGate::default(),
            reviews: Arc::new(Semaphore::new(MOST_REVIEWS)),
            state: Mutex::new(state),
            issued: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })))
    }

    fn state(&self) -> MutexGuard<'_, IssuerState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether connections are served with a certificate that nodes trust.
    pub fn is_ready(&self) -> bool {
        self.state().is_used
    }

    /// Connections are served with this one from now on.
    pub fn uses(&self, serving: &Arc<ServingCertificate>) {
        let mut state = self.state();
        state.is_used |= state.authorities.is_some() && Arc::ptr_eq(serving, &state.serving);
    }

    /// What connections are served with now.
    pub fn serving(&self) -> Arc<ServingCertificate> {
        Arc::clone(&self.state().serving)
    }

    /// For people.
    pub fn page(&self) -> Value {
        let state = self.state();
        let seconds = |at: SystemTime| at.duration_since(SystemTime::now()).unwrap_or_default().as_secs();
        json!({
            "authority_valid_s": state.authorities.as_ref().map(|all| seconds(all.until())),
            "next_authority_published": state.authorities.as_ref().is_some_and(|all| all.has_next()),
            "issued": self.0.issued.load(Ordering::Relaxed),
            "refused": self.0.refused.load(Ordering::Relaxed),
            "problem": state.problem.as_ref().or(state.review_problem.as_ref()),
        })
    }

    /// Reads the authority again and again, makes what is due, and renews the certificate of this controller.
    pub(super) async fn run(self) {
        let pause = (self.0.settings.lifetime / LOOKS).clamp(SHORTEST_LOOK, LONGEST_LOOK);
        let mut looks = interval(pause.min(AGAIN));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut next = Instant::now();
        loop {
            looks.tick().await;
            if Instant::now() < next {
                continue;
            }
            let mut looked = self.look().await;
            if looked == Ok(true) {
                next = Instant::now() + pause;
            }
            // The certificate of this controller is renewed also while the API server is away.
            let known = self.state().authorities.clone();
            if let Some(known) = known.filter(|_| looked.is_err()) {
                looked = self.use_authorities(known, SystemTime::now()).and(looked);
            }
            self.tell(looked.err());
        }
    }

    fn tell(&self, problem: Option<String>) {
        let mut state = self.state();
        if state.problem == problem {
            return;
        }
        match &problem {
            Some(problem) => tracing::error!(%problem, "certificates of controllers and nodes cannot be renewed"),
            None => tracing::info!("certificates of controllers and nodes are renewed again"),
        }
        state.problem = problem;
    }

    /// Looks once. Returns false if another controller was faster: what it has written is to be read.
    async fn look(&self) -> Result<bool, String> {
        let SharedIssuer { server, settings, .. } = &*self.0;
        let (name, begun) = (&*settings.secret, SystemTime::now());
        // The ConfigMap is read first. So a write of it succeeds only if no other controller has published since the Secret was read.
        let map = self.published().await?;
        let stored = server.read_secret(name).await.map_err(|error| self.failure("Secret", name, &error))?;
        let read = IssuingAuthorities::read(&stored.entries).map_err(|problem| {
            let place = format!("controller.issue: Secret {}/{name}", server.namespace());
            format!("{place}: {problem}; it is never overwritten: remove its entries for a new authority, or name another Secret")
        })?;
        let now = SystemTime::now();
        let is_published = |authorities: &IssuingAuthorities| {
            map.entries.get(PUBLISHED).is_some_and(|text| text == authorities.bundle().as_bytes())
        };
        let (authorities, has_changed, has_published) = match read {
            Some(authorities) => {
                let was_published = is_published(&authorities);
                // An authority is not used as long as nodes cannot know it.
                if !was_published && !self.publish(&authorities, map.version.clone()).await? {
                    return Ok(false);
                }
                let (after, has_changed) = authorities.step(now, settings.authority_lifetime, was_published)?;
                (after, has_changed, !was_published)
            }
            None => (IssuingAuthorities::new(now, settings.authority_lifetime)?, true, false),
        };
        if has_changed {
            let entries = StoredEntries { entries: authorities.entries(), version: stored.version };
            match server.write_secret(name, entries).await {
                Ok(()) => tracing::info!("the authorities of controllers and nodes have changed"),
                Err(error) if error.is_conflict() => return Ok(false),
                Err(error) => return Err(self.failure("Secret", name, &error)),
            }
        }
        let published = match has_published || is_published(&authorities) {
            true => Ok(true),
            false => self.publish(&authorities, map.version).await,
        };
        if SystemTime::now().duration_since(begun).is_ok_and(|age| age > MOST_AGE) {
            return Ok(false);
        }
        self.use_authorities(Arc::new(authorities), now)?;
        published
    }

    /// The ConfigMap as it is.
    async fn published(&self) -> Result<StoredEntries, String> {
        let (server, name) = (&self.0.server, &*self.0.settings.config_map);
        let map = server.read_config_map(name).await.map_err(|error| self.failure("ConfigMap", name, &error))?;
        match map.entries.get(PUBLISHED) {
            Some(text) if !text.is_empty() && !are_of_controllers(text) => Err(format!(
                "controller.issue: ConfigMap {}/{name}: its `{PUBLISHED}` is not what controllers write; it is never overwritten: remove this \
                 entry, or name another ConfigMap",
                server.namespace()
            )),
            _ => Ok(map),
        }
    }

    /// Writes a ConfigMap that has this version. Returns false if another controller was faster.
    async fn publish(&self, authorities: &IssuingAuthorities, version: Option<String>) -> Result<bool, String> {
        let (server, name) = (&self.0.server, &*self.0.settings.config_map);
        match server.write_config_map(name, (PUBLISHED, &authorities.bundle()), version).await {
            Ok(()) => Ok(true),
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(self.failure("ConfigMap", name, &error)),
        }
    }

    /// The API server's message names the verb that it forbids.
    fn failure(&self, kind: &str, name: &str, error: &ClusterError) -> String {
        let advice = match error.is_forbidden() {
            true => "; the service account needs get and update for it, and create if it is absent",
            false => "",
        };
        format!("controller.issue: {kind} {}/{name}: {error}{advice}", self.0.server.namespace())
    }

    fn use_authorities(&self, authorities: Arc<IssuingAuthorities>, now: SystemTime) -> Result<(), String> {
        let mut state = self.state();
        let trusted = authorities.trusted();
        let is_current = state.serving.authorities == trusted && now < state.serving.renewal;
        if !is_current {
            state.serving = Arc::new(ServingCertificate::new(&authorities, &self.0.settings, now)?);
        }
        state.authorities = Some(authorities);
        Ok(())
    }

    /// Issues a certificate, as PEM, for the key of a request (PKCS #10 in DER), if the token is that of a node.
    ///
    /// # Errors
    /// If it is not.
    pub async fn enrol(&self, client: IpAddr, token: &str, request: &[u8]) -> Result<String, EnrolmentRefusal> {
        let issued = self.try_enrol(client, token, request).await;
        let count = if issued.is_ok() { &self.0.issued } else { &self.0.refused };
        count.fetch_add(1, Ordering::Relaxed);
        issued
    }

    async fn try_enrol(&self, client: IpAddr, token: &str, request: &[u8]) -> Result<String, EnrolmentRefusal> {
        let SharedIssuer { settings, gate, reviews, .. } = &*self.0;
        let later = |problem: &str| EnrolmentRefusal::Later(problem.to_owned());
        let Some(authorities) = self.state().authorities.clone() else {
            return Err(later("this controller has no authority yet"));
        };
        if !gate.admits(client, Instant::now()) {
            return Err(later("certificates are asked for too often"));
        }
        if token.is_empty() || token.len() > MOST_TOKEN {
            let problem = format!("a token of 1 to {MOST_TOKEN} bytes is needed: `Authorization: Bearer TOKEN`");
            return Err(EnrolmentRefusal::Token(problem));
        }
        let key = NodeKey::of_request(request).map_err(EnrolmentRefusal::Request)?;
        let Ok(permit) = Arc::clone(reviews).try_acquire_owned() else {
            return Err(later("as many others ask for a certificate as may at a time"));
        };
        let reviewed = self.review(token, permit).await;
        self.tell_of_reviews(reviewed.as_ref().err());
        // What the API server says is for the log: who asks has not proved anything yet.
        let reviewed =
            reviewed.map_err(|_| later("tokens cannot be reviewed now; the controller's log and status say why"))?;
        let (user, pod) = match reviewed {
            ReviewedToken::Valid { user, pod } => (user, pod),
            ReviewedToken::Invalid(reason) => {
                let problem = format!("the token is not valid for the audience `{}`: {reason}", settings.audience);
                return Err(EnrolmentRefusal::Token(problem));
            }
        };
        let account = user.strip_prefix(ACCOUNT).and_then(|rest| rest.split_once(':'));
        let is_node = account.is_some_and(|(namespace, name)| {
            settings.accounts.iter().any(|known| known.split_once('/') == Some((namespace, name)))
        });
        if !is_node {
            let known = settings.accounts.join(", ");
            let problem = format!("the token is that of `{user}`, and nodes are {known} (`controller.issue.accounts`)");
            return Err(EnrolmentRefusal::Account(problem));
        }
        if pod.is_empty() {
            let problem =
                "the token belongs to no pod, as one that kubelet projects does: it would not end with the node"
                    .to_owned();
            return Err(EnrolmentRefusal::Account(problem));
        }
        let issued = authorities.issue_to_node(&key, &pod, SystemTime::now(), settings.lifetime);
        issued.map_err(|problem| later(&problem))
    }

    /// The permit is that of the review, which goes on when the client has gone.
    async fn review(&self, token: &str, permit: OwnedSemaphorePermit) -> Result<ReviewedToken, String> {
        let (server, token) = (Arc::clone(&self.0.server), token.to_owned());
        let audience = self.0.settings.audience.clone();
        let reviewing = self.0.runtime.spawn(async move {
            let reviewed = server.review_token(&token, &audience).await;
            drop(permit);
            reviewed
        });
        let reviewed = reviewing.await.map_err(|error| error.to_string())?;
        reviewed.map_err(|error| match error.is_forbidden() {
            true => {
                format!("{error}; the service account needs the right to create tokenreviews.authentication.k8s.io")
            }
            false => error.to_string(),
        })
    }

    /// Logs when it begins and when it ends, and not for each client.
    fn tell_of_reviews(&self, problem: Option<&String>) {
        let mut state = self.state();
        match (state.review_problem.is_some(), problem) {
            (false, Some(problem)) => tracing::warn!(%problem, "tokens of nodes cannot be reviewed"),
            (true, None) => tracing::info!("tokens of nodes are reviewed again"),
            _ => {}
        }
        state.review_problem = problem.cloned();
    }
}

impl ServingCertificate {
    fn new(
        authorities: &IssuingAuthorities,
        settings: &IssueSettings,
        now: SystemTime,
    ) -> Result<ServingCertificate, String> {
        let IssuedPair { certificate, key } =
            authorities.issue_to_controller(&settings.names, now, settings.lifetime)?;
        let chain = tls::certificates(certificate.as_bytes()).map_err(|error| error.to_string())?;
        Ok(ServingCertificate { chain, key, authorities: authorities.trusted(), renewal: now + settings.lifetime / 4 })
    }
}
