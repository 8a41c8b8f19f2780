//! The account at an authority: registered with the first order, and kept in the storage.

use std::sync::Arc;

use instant_acme::{Account, AccountCredentials, ExternalAccountKey, NewAccount};
use serde::{Deserialize, Serialize};

use super::AcmeTerms;
use super::authority::AuthorityClient;
use super::failure::OrderFailure;
use super::storage::AcmeStorage;

/// The account of an authority's orders.
pub(super) struct AcmeAccount {
    terms: Arc<AcmeTerms>,
    http: AuthorityClient,
    storage: AcmeStorage,
    /// The lock prevents that concurrent orders register several.
    current: tokio::sync::Mutex<Option<Account>>,
}

/// What an account was registered with.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Registration {
    contacts: Vec<String>,
    /// The key id of the external account that it belongs to.
    external_account: Option<String>,
}

impl Registration {
    fn wanted(terms: &AcmeTerms) -> Registration {
        Registration {
            contacts: terms.emails.iter().map(|email| format!("mailto:{email}")).collect(),
            external_account: terms.external_account.as_ref().map(|external| external.key_id.to_string()),
        }
    }

    fn contacts(&self) -> Vec<&str> {
        self.contacts.iter().map(String::as_str).collect()
    }

    /// An account belongs to its external account for ever, so another external account needs another account.
    fn needs_another_account_than(&self, saved: &Registration) -> bool {
        self.external_account.is_some() && self.external_account != saved.external_account
    }
}

impl AcmeAccount {
    pub(super) fn new(terms: Arc<AcmeTerms>, http: AuthorityClient, storage: AcmeStorage) -> AcmeAccount {
        AcmeAccount { terms, http, storage, current: tokio::sync::Mutex::default() }
    }

    /// The account, which is loaded or registered if necessary.
    pub(super) async fn get(&self) -> Result<Account, OrderFailure> {
        let mut current = self.current.lock().await;
        if let Some(account) = &*current {
            return Ok(account.clone());
        }
        let wanted = Registration::wanted(&self.terms);
        let account = match self.saved(&wanted).await? {
            Some(account) => account,
            None => self.register(&wanted).await?,
        };
        Ok(current.insert(account).clone())
    }

    /// Tells the authority now if the registration has changed, and not with the next order, which may be weeks later.
    pub(super) async fn tell_registration(&self) {
        let saved = self.storage.registration::<Registration>();
        if saved.is_some_and(|saved| saved != Registration::wanted(&self.terms)) {
            // Otherwise the next order tries again, and reports the failure.
            let _ = self.get().await;
        }
    }

    /// The authority does not know this account any more, as after the loss of its data: the next one is registered anew.
    pub(super) async fn forget(&self, account: &Account) -> Result<(), OrderFailure> {
        let mut current = self.current.lock().await;
        // Another order may have found out first.
        if current.as_ref().is_some_and(|current| current.id() == account.id()) {
            self.set_aside()?;
            *current = None;
        }
        Ok(())
    }

    fn set_aside(&self) -> Result<(), OrderFailure> {
        self.storage
            .set_account_aside()
            .map_err(|error| OrderFailure::own(format!("the account cannot be replaced: {error}")))
    }

    /// The saved account, with the contacts that it should have; `None` if there is none that can be used.
    async fn saved(&self, wanted: &Registration) -> Result<Option<Account>, OrderFailure> {
        let Some(credentials) = self.storage.account::<AccountCredentials>().map_err(OrderFailure::own)? else {
            return Ok(None);
        };
        let saved = self.storage.registration::<Registration>();
        if saved.as_ref().is_some_and(|saved| wanted.needs_another_account_than(saved)) {
            self.set_aside()?;
            return Ok(None);
        }
        let builder = Account::builder_with_http(Box::new(self.http.clone()));
        let account = builder.from_credentials(credentials).await?;
        if saved.is_none_or(|saved| saved.contacts != wanted.contacts) {
            match account.update_contacts(&wanted.contacts()).await.map_err(OrderFailure::from) {
                Ok(()) => self.save(wanted)?,
                Err(failure) if failure.unknown_account => {
                    self.set_aside()?;
                    return Ok(None);
                }
                // Certificates matter more than contacts.
                Err(failure) => tracing::warn!(
                    directory = %self.terms.directory,
                    "the authority did not take the changed `email`: {}", failure.reason
                ),
            }
        }
        Ok(Some(account))
    }

    async fn register(&self, wanted: &Registration) -> Result<Account, OrderFailure> {
        let contact = wanted.contacts();
        let new = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
        let external = self.terms.external_account.as_ref().map(|external| {
            let key = base64::Engine::decode(&base64::prelude::BASE64_URL_SAFE_NO_PAD, &*external.hmac_key);
            key.map(|key| ExternalAccountKey::new(external.key_id.to_string(), &key))
        });
        let external = external.transpose().map_err(OrderFailure::own)?;
        let builder = Account::builder_with_http(Box::new(self.http.clone()));
        let (account, credentials) = builder.create(&new, self.terms.directory.to_string(), external.as_ref()).await?;
        let unsaved = |error| OrderFailure::own(format!("the account cannot be saved: {error}"));
        self.storage.save_account(&credentials).map_err(unsaved)?;
        self.save(wanted)?;
        Ok(account)
    }

    fn save(&self, registration: &Registration) -> Result<(), OrderFailure> {
        let unsaved = |error| OrderFailure::own(format!("the registration cannot be saved: {error}"));
        self.storage.save_registration(registration).map_err(unsaved)
    }
}
