//! One order, from its creation to the key and certificate chain.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Error, Identifier, NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, KeyPair};

use super::AcmeTerms;
use super::account::AcmeAccount;
use super::authority::{AuthorityClient, noting_waits};
use super::challenges::{CERTIFICATE, Challenges};
use super::failure::{OrderFailure, in_words};
use super::storage::{AcmeStorage, Validity};
use crate::document::Challenge;

/// How long the authority may take to validate, and to issue. It is polled with growing intervals.
const PATIENCE: RetryPolicy =
    RetryPolicy::new().initial_delay(Duration::from_millis(500)).backoff(1.5).timeout(Duration::from_secs(120));

/// Orders certificates from one authority, with one account.
pub(super) struct Orders {
    terms: Arc<AcmeTerms>,
    storage: AcmeStorage,
    challenges: Arc<Challenges>,
    account: AcmeAccount,
}

impl Orders {
    pub(super) fn new(terms: Arc<AcmeTerms>, storage: AcmeStorage, challenges: Arc<Challenges>) -> Orders {
        let http = AuthorityClient::new(terms.http.clone(), &terms.client);
        let account = AcmeAccount::new(Arc::clone(&terms), http, storage.clone());
        Orders { terms, storage, challenges, account }
    }

    /// Obtains a certificate for a host, and saves it with a new key.
    pub(super) async fn obtain(&self, host: &str) -> Result<Validity, OrderFailure> {
        let (obtained, wait_until) = noting_waits(self.with_account(host)).await;
        obtained.map_err(|failure| OrderFailure { wait_until, ..failure })
    }

    /// Tells the authority of changed contacts.
    pub(super) async fn tell_registration(&self) {
        self.account.tell_registration().await;
    }

    async fn with_account(&self, host: &str) -> Result<Validity, OrderFailure> {
        let account = self.account.get().await?;
        match self.ordered(&account, host).await {
            Err(failure) if failure.unknown_account => {
                self.account.forget(&account).await?;
                self.ordered(&self.account.get().await?, host).await
            }
            obtained => obtained,
        }
    }

    async fn ordered(&self, account: &Account, host: &str) -> Result<Validity, OrderFailure> {
        let identifiers = [Identifier::Dns(host.to_owned())];
        let mut order = account.new_order(&NewOrder::new(&identifiers)).await?;
        // Closed again when this is dropped.
        let _open = self.prove(&mut order, host).await?;
        match order.poll_ready(&PATIENCE).await {
            Ok(OrderStatus::Ready) => {}
            Ok(_) => return Err(refusal(&mut order, None).await),
            Err(error @ Error::Api(_)) => return Err(refusal(&mut order, Some(error.into())).await),
            Err(error) => return Err(error.into()),
        }
        let key = order.finalize().await?;
        let chain = order.poll_certificate(&PATIENCE).await?;
        let pem = format!("{key}{chain}");
        let validity = Validity::of(pem.as_bytes(), host).map_err(OrderFailure::own)?;
        if validity.until <= SystemTime::now() {
            return Err(OrderFailure::own("the new certificate has already expired; is the clock right?"));
        }
        let unsaved = |error| OrderFailure::own(format!("the certificate cannot be saved: {error}"));
        self.storage.save_certificate(host, &pem).map_err(unsaved)?;
        Ok(validity)
    }

    /// Opens each challenge of an order, and tells the authority that it is ready.
    async fn prove(&self, order: &mut Order, host: &str) -> Result<Vec<OpenChallenge<'_>>, OrderFailure> {
        let mut open = Vec::new();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            match authorization.status {
                AuthorizationStatus::Pending => {}
                AuthorizationStatus::Valid => continue, // validated recently
                status => {
                    return Err(OrderFailure::own(format!("the authorization already has the status {status:?}")));
                }
            }
            let (kind, otherwise) = match self.terms.challenge {
                Challenge::Http01 => (ChallengeType::Http01, "the authority does not offer the challenge http-01"),
                Challenge::TlsAlpn01 => {
                    (ChallengeType::TlsAlpn01, "the authority does not offer the challenge tls-alpn-01")
                }
            };
            let mut challenge = authorization.challenge(kind).ok_or_else(|| OrderFailure::own(otherwise))?;
            let answer = challenge.key_authorization();
            open.push(match self.terms.challenge {
                Challenge::Http01 => self.open(&challenge.token, "", answer.as_str())?,
                Challenge::TlsAlpn01 => {
                    let certificate = proof(host, answer.digest().as_ref()).map_err(OrderFailure::own)?;
                    self.open(&challenge.token, CERTIFICATE, &certificate)?
                }
            });
            challenge.set_ready().await?;
        }
        Ok(open)
    }

    /// `kind` is the suffix of the challenge's name.
    fn open(&self, token: &str, kind: &str, answer: &str) -> Result<OpenChallenge<'_>, OrderFailure> {
        // Saved in a file as well, since a new process of an upgrade may accept the authority's connection.
        let unsaved = |error| OrderFailure::own(format!("the answer to the challenge cannot be saved: {error}"));
        let name = self.storage.open_challenge(token, kind, answer).map_err(unsaved)?;
        self.challenges.open(&name, answer);
        Ok(OpenChallenge { orders: self, name })
    }
}

/// An open challenge. Dropping it closes it.
struct OpenChallenge<'a> {
    orders: &'a Orders,
    name: Box<str>,
}

impl Drop for OpenChallenge<'_> {
    fn drop(&mut self) {
        self.orders.challenges.close(&self.name);
        self.orders.storage.close_challenge(&self.name);
    }
}

/// The certificate for a TLS-ALPN challenge, with the digest that the authority expects, and its key (RFC 8737 §3).
fn proof(host: &str, digest: &[u8]) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::new([host.to_owned()])?;
    params.custom_extensions.push(CustomExtension::new_acme_identifier(digest));
    let key = KeyPair::generate()?;
    Ok(key.serialize_pem() + &params.self_signed(&key)?.pem())
}

/// The reason why an order has failed, from the error of its challenge if there is one.
async fn refusal(order: &mut Order, of_order: Option<OrderFailure>) -> OrderFailure {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        // If it cannot be fetched, the last known state is used.
        let _ = authorization.refresh().await;
        let problem = authorization.challenges.iter().find_map(|challenge| challenge.error.as_ref());
        if let Some(problem) = problem {
            return OrderFailure::own(in_words(problem));
        }
    }
    of_order.unwrap_or_else(|| OrderFailure::own("the order is invalid, and the authority gives no reason"))
}
