//! Whose certificate it is: by the credentials of consumers, and by their names.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use weir_net::tls::normalised_email;
use weir_plugin::{ClientCertificate, ConfigError, Consumer, Consumers, Credential, Definition};

use super::MtlsAuth;

/// What identifies the certificate of a consumer: exactly one of these options.
///
/// Two consumers cannot have the same one, also if one has it as `subject_name`.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CertificateCredential {
    /// A URI, a DNS name or an e-mail address among the alternative names (SAN), or the common name of a certificate without such
    /// names. Host names are written in lower case.
    #[schemars(length(min = 1))]
    subject_name: Option<String>,
    /// A URI among the alternative names, such as a SPIFFE ID: `spiffe://example.org/orders`.
    #[schemars(length(min = 1))]
    san_uri: Option<String>,
    /// A DNS name among the alternative names.
    #[schemars(length(min = 1))]
    san_dns: Option<String>,
    /// An e-mail address among the alternative names.
    #[schemars(length(min = 1))]
    san_email: Option<String>,
    /// The whole subject, as `$ssl_client_s_dn` has it: `CN=orders,O=Example`.
    #[schemars(length(min = 1))]
    subject_dn: Option<String>,
    /// The SHA-256 fingerprint of the certificate in hexadecimal, with or without colons.
    #[schemars(length(min = 64, max = 95))]
    fingerprint: Option<String>,
}

/// What a name is, in a credential and in a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CertificateName {
    /// Only in credentials: whichever alternative name it is, or the common name.
    Any,
    Uri,
    Dns,
    Email,
    Common,
    Subject,
    Fingerprint,
}

/// A name of a credential, in the form in which certificates have it. No name of one kind is one of another, except for
/// [`CertificateName::Any`] and common names, so the text alone is what two consumers cannot share.
pub(crate) struct CredentialName {
    pub kind: CertificateName,
    pub text: String,
}

impl CertificateCredential {
    /// # Errors
    /// There is not exactly one option, or its value can be in no certificate.
    pub(crate) fn name(self) -> Result<CredentialName, ConfigError> {
        use CertificateName::{Any, Dns, Email, Fingerprint, Subject, Uri};
        let given = [
            ("subject_name", Any, self.subject_name),
            ("san_uri", Uri, self.san_uri),
            ("san_dns", Dns, self.san_dns),
            ("san_email", Email, self.san_email),
            ("subject_dn", Subject, self.subject_dn),
            ("fingerprint", Fingerprint, self.fingerprint),
        ];
        let mut given = given.into_iter().filter_map(|(option, kind, text)| Some((option, kind, text?)));
        let (Some((option, kind, text)), None) = (given.next(), given.next()) else {
            let all = "`subject_name`, `san_uri`, `san_dns`, `san_email`, `subject_dn` and `fingerprint`";
            return Err(ConfigError::new("", format!("needs exactly one of {all}")));
        };
        let text = match kind {
            Dns => text.to_ascii_lowercase(),
            Email => normalised_email(&text),
            Fingerprint => text.replace(':', "").to_ascii_lowercase(),
            _ => text,
        };
        let problem = match kind {
            Uri if !is_name(&text) || !text.contains(':') => "is not a URI; write as `spiffe://example.org/orders`",
            Dns if !is_name(&text) || text.contains([':', '@', '/']) => {
                "is not a DNS name; write as `orders.example.org`"
            }
            Email if !is_name(&text) || !text.contains('@') => {
                "is not an e-mail address; write as `orders@example.org`"
            }
            Subject if !text.contains('=') => "is not a subject; write as `CN=orders,O=Example`",
            Fingerprint if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                "is not a SHA-256 fingerprint: 64 hexadecimal digits, as `openssl x509 -fingerprint -sha256` prints them"
            }
            _ => return Ok(CredentialName { kind, text }),
        };
        Err(ConfigError::new(option, problem))
    }
}

/// Whether it can be in the lists of [`ClientCertificate`].
fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',')
}

/// The names of a certificate that are not of the whole of it, in the order in which they count.
pub(super) fn all(certificate: &ClientCertificate) -> impl Iterator<Item = (CertificateName, &str)> {
    let lists = [
        (CertificateName::Uri, &certificate.san_uri),
        (CertificateName::Dns, &certificate.san_dns),
        (CertificateName::Email, &certificate.san_email),
    ];
    let listed = lists.into_iter().flat_map(|(kind, list)| list.split(',').map(move |name| (kind, name)));
    let common = (CertificateName::Common, &*certificate.common_name);
    listed.chain([common]).filter(|(_, name)| !name.is_empty())
}

/// The credentials of all consumers, by their names.
pub(super) struct OwnersOfCertificates(HashMap<Box<str>, (CertificateName, Arc<Credential>)>);

impl OwnersOfCertificates {
    pub(super) fn new(consumers: &Consumers) -> OwnersOfCertificates {
        let owners = consumers.credentials(MtlsAuth::NAME).iter().filter_map(|credential| {
            // Credentials with other options are invalid, and have been reported by the document's checks.
            let options: CertificateCredential = serde_json::from_value(credential.options.clone()).ok()?;
            let name = options.name().ok()?;
            Some((name.text.into(), (name.kind, Arc::clone(credential))))
        });
        OwnersOfCertificates(owners.collect())
    }

    pub(super) fn find(&self, certificate: &ClientCertificate) -> Option<&Arc<Credential>> {
        let whole =
            [(CertificateName::Fingerprint, &*certificate.sha256), (CertificateName::Subject, &*certificate.subject)];
        let own = |(kind, name): (CertificateName, &str)| self.owner(kind, name);
        whole.into_iter().find_map(own).or_else(|| all(certificate).find_map(own))
    }

    fn owner(&self, kind: CertificateName, name: &str) -> Option<&Arc<Credential>> {
        let (of, credential) = self.0.get(name)?;
        let is_part = !matches!(kind, CertificateName::Fingerprint | CertificateName::Subject);
        (*of == kind || is_part && *of == CertificateName::Any).then_some(credential)
    }
}

/// The consumers by attributes that a certificate may name.
pub(super) struct ConsumerNames {
    usernames: HashMap<Box<str>, Arc<Credential>>,
    /// `None` if several consumers have it.
    custom_ids: HashMap<Box<str>, Option<Arc<Credential>>>,
}

impl ConsumerNames {
    pub(super) fn new(consumers: &Consumers) -> ConsumerNames {
        let mut names = ConsumerNames { usernames: HashMap::new(), custom_ids: HashMap::new() };
        for consumer in consumers.all() {
            let credential = Arc::new(without_credential(consumer));
            names.usernames.insert(consumer.username.clone(), Arc::clone(&credential));
            if consumer.custom_id.is_empty() {
                continue;
            }
            match names.custom_ids.entry(consumer.custom_id.clone()) {
                Entry::Vacant(place) => _ = place.insert(Some(credential)),
                Entry::Occupied(mut place) => _ = place.insert(None),
            }
        }
        names
    }

    pub(super) fn by_username(&self, name: &str) -> Option<&Arc<Credential>> {
        self.usernames.get(name)
    }

    pub(super) fn by_custom_id(&self, name: &str) -> Option<&Arc<Credential>> {
        self.custom_ids.get(name)?.as_ref()
    }
}

/// The identity of a consumer that was found by a name of its own.
fn without_credential(consumer: &Arc<Consumer>) -> Credential {
    Credential { consumer: Arc::clone(consumer), id: Box::default(), options: json!({}) }
}
