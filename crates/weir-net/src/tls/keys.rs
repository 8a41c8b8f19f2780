//! Certificates with their keys, as PEM, and which of them a client gets.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};

use super::provider;

/// What is wrong with a certificate or a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The text has none.
    NoCertificate,
    NoKey,
    /// It is protected by a password.
    Encrypted,
    /// It is not PEM, or what is in it is not what its label says.
    Damaged(String),
    /// The key belongs to another certificate.
    Mismatch,
    /// An algorithm or a size that is not used here.
    Unusable(String),
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::NoCertificate => f.write_str("contains no certificate"),
            KeyError::NoKey => f.write_str("contains no private key"),
            KeyError::Encrypted => f.write_str("is protected by a password"),
            KeyError::Damaged(how) => write!(f, "cannot be read: {how}"),
            KeyError::Mismatch => f.write_str("is not the key of this certificate"),
            KeyError::Unusable(why) => write!(f, "cannot be used: {why}"),
        }
    }
}

/// The certificates of a PEM text, the first of them the one that the others vouch for.
pub fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, KeyError> {
    let all = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>();
    match all {
        Ok(all) if all.is_empty() => Err(KeyError::NoCertificate),
        Ok(all) => Ok(all),
        Err(error) => Err(KeyError::Damaged(reason(&error))),
    }
}

/// A certificate chain and its key, as PEM.
pub fn certified(chain: Vec<CertificateDer<'static>>, key: &[u8]) -> Result<Arc<CertifiedKey>, KeyError> {
    let certified = unchecked(chain, key)?;
    match certified.keys_match() {
        // Some kinds of keys do not tell.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(Error::InconsistentKeys(_)) => Err(KeyError::Mismatch),
        Err(error) => Err(unusable(error)),
    }
}

/// The same of a certificate that was made here to prove something to an authority (RFC 8737 §3). What it proves stands in
/// an extension that no client may accept, and neither would a check.
pub fn unchecked(chain: Vec<CertificateDer<'static>>, key: &[u8]) -> Result<Arc<CertifiedKey>, KeyError> {
    if find(key, b"-----BEGIN ENCRYPTED PRIVATE KEY-----") || find(key, b"Proc-Type: 4,ENCRYPTED") {
        return Err(KeyError::Encrypted);
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
        pem::Error::NoItemsFound => KeyError::NoKey,
        error => KeyError::Damaged(reason(&error)),
    })?;
    let key = provider().key_provider.load_private_key(key).map_err(unusable)?;
    Ok(Arc::new(CertifiedKey::new(chain, key)))
}

fn unusable(error: Error) -> KeyError {
    KeyError::Unusable(match error {
        Error::General(text) => text,
        error => error.to_string(),
    })
}

fn reason(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => "the end of a section is missing".into(),
        pem::Error::IllegalSectionStart { .. } => "the start of a section is damaged".into(),
        pem::Error::Base64Decode(_) => "it is not base64".into(),
        error => error.to_string(),
    }
}

fn find(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// The certificates of one name, of which a client gets the first that it can check.
#[derive(Debug)]
pub struct Keys(Vec<Arc<CertifiedKey>>);

impl Keys {
    /// ECDSA before RSA, as signing with it costs a tenth; otherwise in the order given.
    pub fn new(mut keys: Vec<Arc<CertifiedKey>>) -> Keys {
        keys.sort_by_key(|key| key.key.algorithm() == rustls::SignatureAlgorithm::RSA);
        Keys(keys)
    }
}

impl ResolvesServerCert for Keys {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let schemes = hello.signature_schemes();
        let fitting = self.0.iter().find(|key| key.key.choose_scheme(schemes).is_some());
        // With none, a client would be told `access_denied`, as if it were not welcome. With any, the handshake finds that
        // the two have nothing in common, and says `handshake_failure` (RFC 5246 §7.2.2), which others wait for.
        fitting.or(self.0.first()).cloned()
    }
}
