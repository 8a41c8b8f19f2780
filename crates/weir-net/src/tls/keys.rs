//! Certificates and keys in PEM, and the choice among them for a client.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::provider;

/// Why a certificate or a key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The text contains no certificate.
    NoCertificate,
    NoKey,
    /// The key is protected by a password.
    Encrypted,
    /// The text is not PEM, or its content does not match the label.
    Damaged(String),
    /// The key belongs to another certificate.
    Mismatch,
    /// The algorithm or key size is not supported.
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

/// Parses the certificates of a PEM text: the server's own first, then its issuers.
pub fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, KeyError> {
    let all = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>();
    match all {
        Ok(all) if all.is_empty() => Err(KeyError::NoCertificate),
        Ok(all) => Ok(all),
        Err(error) => Err(KeyError::Damaged(reason(&error))),
    }
}

/// The certificates that stand one after the other in DER, at most `most`.
pub fn certificates_der(der: &[u8], most: usize) -> Result<Vec<CertificateDer<'static>>, KeyError> {
    let (mut all, mut rest) = (Vec::new(), der);
    while !rest.is_empty() {
        if all.len() == most {
            return Err(KeyError::Damaged(format!("it has more than {most} certificates")));
        }
        let (after, _) = X509Certificate::from_der(rest)
            .map_err(|_| KeyError::Damaged("it is not a list of certificates in DER".to_owned()))?;
        all.push(CertificateDer::from(rest[..rest.len() - after.len()].to_vec()));
        rest = after;
    }
    if all.is_empty() { Err(KeyError::NoCertificate) } else { Ok(all) }
}

/// Parses a key in PEM, and combines it with its certificate chain.
pub fn certified(chain: Vec<CertificateDer<'static>>, key: &[u8]) -> Result<Arc<CertifiedKey>, KeyError> {
    matching(unchecked(chain, key)?)
}

/// The same for a key in DER (PKCS #8).
pub fn certified_der(chain: Vec<CertificateDer<'static>>, key: Vec<u8>) -> Result<Arc<CertifiedKey>, KeyError> {
    matching(loaded(chain, PrivatePkcs8KeyDer::from(key).into())?)
}

fn matching(certified: Arc<CertifiedKey>) -> Result<Arc<CertifiedKey>, KeyError> {
    match certified.keys_match() {
        // Some key types cannot be compared.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(Error::InconsistentKeys(_)) => Err(KeyError::Mismatch),
        Err(error) => Err(unusable(error)),
    }
}

/// The same without the check that key and certificate match, for a certificate made here for a CA's validation (RFC 8737 §3).
/// Its critical extension makes clients, and the check, reject it.
pub fn unchecked(chain: Vec<CertificateDer<'static>>, key: &[u8]) -> Result<Arc<CertifiedKey>, KeyError> {
    if find(key, b"-----BEGIN ENCRYPTED PRIVATE KEY-----") || find(key, b"Proc-Type: 4,ENCRYPTED") {
        return Err(KeyError::Encrypted);
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
        pem::Error::NoItemsFound => KeyError::NoKey,
        error => KeyError::Damaged(reason(&error)),
    })?;
    loaded(chain, key)
}

fn loaded(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Arc<CertifiedKey>, KeyError> {
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

/// The certificates of one name; a client gets the first one it supports.
#[derive(Debug)]
pub(super) struct Keys(Vec<Arc<CertifiedKey>>);

impl Keys {
    /// Sorts ECDSA before RSA, since a signature costs a tenth; otherwise keeps the order given.
    pub(super) fn new(mut keys: Vec<Arc<CertifiedKey>>) -> Keys {
        keys.sort_by_key(|key| key.key.algorithm() == rustls::SignatureAlgorithm::RSA);
        Keys(keys)
    }
}

impl ResolvesServerCert for Keys {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let schemes = hello.signature_schemes();
        let fitting = self.0.iter().find(|key| key.key.choose_scheme(schemes).is_some());
        // Without any, rustls would send the alert `access_denied`. With one the client cannot use, the handshake finds no
        // common algorithm and sends `handshake_failure` (RFC 5246 §7.2.2), which clients expect.
        fitting.or(self.0.first()).cloned()
    }
}
