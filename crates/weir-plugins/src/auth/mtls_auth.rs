mod names;

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    AllOf, Authenticator, Build, ClientCertificate, ConfigError, Credential, Definition, Exchange, Flow, Plugin, Stage,
    Stop,
};

use crate::auth::credentials::Unauthenticated;
use crate::clock;

use names::{CertificateCredential, ConsumerNames, OwnersOfCertificates};

/// Requires a client certificate that belongs to a consumer.
///
/// Clients are asked for certificates by `client` of the entry in `ssls` for their server name, which also has the authorities that
/// certificates are verified with. Only a certificate that was verified as the entry for the host of the request demands names a
/// consumer: not one that is not valid (`mode: any`), and not one that only another entry demands, although the connection is used
/// for both. A certificate that has expired since the connection began is refused.
///
/// The first of these that belongs to a consumer counts: the fingerprint, the subject, the URIs, the DNS names and the e-mail addresses
/// among the alternative names in their order, and, for a certificate without such names, its common name.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MtlsAuth {
    /// Attributes of consumers that a name in the certificate may equal, if no credential has it: `username`, `custom_id`. In Kong,
    /// the default is both.
    #[serde(default)]
    consumer_by: Vec<ConsumerAttribute>,
    /// Accepts every certificate that is verified, and looks for no consumer.
    #[serde(default)]
    skip_consumer_lookup: bool,
    /// The consumer that requests without such a certificate are attributed to, instead of being refused.
    #[schemars(length(min = 1))]
    anonymous_consumer: Option<String>,
    /// The `realm` parameter in the field `WWW-Authenticate` of a refusal.
    #[serde(default = "default_realm")]
    #[schemars(length(min = 1, max = 128))]
    realm: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ConsumerAttribute {
    Username,
    CustomId,
}

fn default_realm() -> String {
    "mtls".to_owned()
}

impl Definition for MtlsAuth {
    const NAME: &'static str = "mtls-auth";
    const PRIORITY: i32 = 2550;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = "mtls-auth: {}";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let owners = match (self.skip_consumer_lookup, &*self.consumer_by) {
            (true, []) => Ok(None),
            (true, _) => {
                let problem = "no consumer is looked for, because of `skip_consumer_lookup`; leave one of them out";
                Err(ConfigError::new("consumer_by", problem))
            }
            (false, _) => Ok(Some(build.consumers().index(OwnersOfCertificates::new))),
        };
        let by = |attribute| self.consumer_by.contains(&attribute);
        let unauthenticated = Unauthenticated::new("mTLS", &self.realm, self.anonymous_consumer.as_deref(), build);
        let (owners, unauthenticated) = (owners, unauthenticated).all_of()?;
        Ok(Arc::new(CertificateAuthenticator {
            owners,
            names: build.consumers().index(ConsumerNames::new),
            by_username: by(ConsumerAttribute::Username),
            by_custom_id: by(ConsumerAttribute::CustomId),
            unauthenticated,
        }))
    }
}

impl Authenticator for MtlsAuth {
    type Credential = CertificateCredential;

    fn check(credential: CertificateCredential) -> Result<String, ConfigError> {
        credential.name().map(|name| name.text)
    }
}

struct CertificateAuthenticator {
    /// `None` if every certificate is accepted.
    owners: Option<Arc<OwnersOfCertificates>>,
    names: Arc<ConsumerNames>,
    by_username: bool,
    by_custom_id: bool,
    unauthenticated: Unauthenticated,
}

impl Plugin for CertificateAuthenticator {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let (owner, until) = match self.judge(exchange, clock::now()) {
            Ok(accepted) => accepted,
            Err(fault) => {
                return self.unauthenticated.admit_or_refuse(exchange, fault, |_| Ok(())).map(Flow::from);
            }
        };
        exchange.set_identity_ends_at(until);
        match owner {
            Some(owner) => exchange.identify(&owner).map(Flow::from),
            None => Ok(Flow::Continue),
        }
    }
}

impl CertificateAuthenticator {
    /// The owner of the client's certificate, if one is looked for, and when the certificate expires; or the message for a refusal.
    fn judge(&self, exchange: &Exchange, now: Duration) -> Result<(Option<Arc<Credential>>, Duration), &'static str> {
        let certificate = exchange.tls.as_ref().and_then(|tls| tls.certificate.as_ref());
        let certificate = certificate.ok_or("Missing client certificate")?;
        if !exchange.client_is_proved {
            return Err("The client certificate does not count for this host");
        }
        // The certificate is valid up to the end of this second.
        let until = Duration::from_secs(u64::try_from(certificate.until).unwrap_or_default().saturating_add(1));
        if now >= until {
            return Err("The client certificate has expired");
        }
        match &self.owners {
            None => Ok((None, until)),
            Some(owners) => match owners.find(certificate).or_else(|| self.consumer_named_in(certificate)) {
                Some(owner) => Ok((Some(Arc::clone(owner)), until)),
                None => Err("The client certificate belongs to no consumer"),
            },
        }
    }

    fn consumer_named_in(&self, certificate: &ClientCertificate) -> Option<&Arc<Credential>> {
        names::all(certificate).find_map(|(_, name)| {
            let by_username = || self.names.by_username(name).filter(|_| self.by_username);
            by_username().or_else(|| self.names.by_custom_id(name).filter(|_| self.by_custom_id))
        })
    }
}

#[cfg(test)]
mod tests;
