//! The shared secret of agents and the programs that command them, and TLS by it.
//!
//! Both sides derive the same Ed25519 key pair from the secret, show a certificate of it, and accept no other. So neither side
//! sends the secret, and there are no certificates to distribute.

use std::{
    fmt, fs, io,
    num::NonZeroU32,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
    sync::Arc,
};

use aws_lc_rs::{
    pbkdf2,
    rand::{SecureRandom as _, SystemRandom},
    signature::Ed25519KeyPair,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime},
    server::{
        ParsedCertificate,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    version::TLS13,
};

use super::super::machine_error::{AgentKeyError, LONGEST_KEY_FILE, SHORTEST_SECRET};
use crate::{engine::provider, errors::FileError};

/// The bytes of a secret that is made here.
const NEW_SECRET: usize = 32;
/// Distinguishes these keys from others that are derived from the same secret.
const SALT: &[u8] = b"weir bench agent 1";
/// Rounds of PBKDF2 (OWASP's figure for HMAC-SHA-256): the certificate shows a key that a guess can be compared with.
const ROUNDS: NonZeroU32 = NonZeroU32::new(600_000).expect("not 0");
/// The name in the certificates; the domain `invalid` is never registered (RFC 6761 §6.4).
pub(super) const SERVER_NAME: &str = "agent.invalid";

/// What proves the knowledge of the secret, and checks that of the peer.
#[derive(Clone)]
pub struct AgentKey {
    certificate: CertificateDer<'static>,
    /// PKCS #8.
    key: Vec<u8>,
    expected: SubjectPublicKeyInfoDer<'static>,
}

/// Without the private key.
impl fmt::Debug for AgentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentKey")
    }
}

impl AgentKey {
    /// Reads a key file. White space around the secret does not count.
    pub fn read(path: &Path) -> Result<AgentKey, AgentKeyError> {
        let metadata = fs::metadata(path).map_err(FileError::at(path))?;
        if metadata.mode() & 0o077 != 0 {
            return Err(AgentKeyError::Readable { path: path.to_owned() });
        }
        if metadata.len() > LONGEST_KEY_FILE {
            return Err(AgentKeyError::NotText { path: path.to_owned() });
        }
        let bytes = fs::read(path).map_err(FileError::at(path))?;
        let text = String::from_utf8(bytes).map_err(|_| AgentKeyError::NotText { path: path.to_owned() })?;
        let secret = text.trim();
        let characters = secret.chars().count();
        if characters < SHORTEST_SECRET {
            return Err(AgentKeyError::TooShort { path: path.to_owned(), characters });
        }
        AgentKey::derive(secret)
    }

    /// Writes a new key file with a random secret. An existing file stays, and is an error.
    pub fn create(path: &Path) -> Result<(), AgentKeyError> {
        use std::io::Write as _;
        let mut secret = [0; NEW_SECRET];
        SystemRandom::new().fill(&mut secret).map_err(|_| FileError::at(path)(io::Error::other("no random bytes")))?;
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(FileError::at(path))?;
        let text = format!("{}\n", URL_SAFE_NO_PAD.encode(secret));
        file.write_all(text.as_bytes()).map_err(FileError::at(path))?;
        Ok(())
    }

    fn derive(secret: &str) -> Result<AgentKey, AgentKeyError> {
        let wrong = |what: &dyn std::fmt::Debug| AgentKeyError::KeyPair(format!("{what:?}"));
        let mut seed = [0; 32];
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, ROUNDS, SALT, secret.as_bytes(), &mut seed);
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|error| wrong(&error))?;
        let key = pair.to_pkcs8v1().map_err(|error| wrong(&error))?.as_ref().to_vec();
        let signing =
            rcgen::KeyPair::try_from(&PrivatePkcs8KeyDer::from(key.clone())).map_err(|error| wrong(&error))?;
        let parameters = rcgen::CertificateParams::new([SERVER_NAME.to_owned()]).map_err(|error| wrong(&error))?;
        let certificate = parameters.self_signed(&signing).map_err(|error| wrong(&error))?.der().clone();
        let expected = shown_key(&certificate).map_err(|error| wrong(&error))?;
        Ok(AgentKey { certificate, key, expected })
    }

    fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.clone()).into()
    }

    fn verifier(&self) -> Arc<PinnedKey> {
        Arc::new(PinnedKey { expected: self.expected.clone(), provider: provider() })
    }

    /// The agent's side.
    pub(super) fn server(&self) -> Result<Arc<ServerConfig>, rustls::Error> {
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(self.verifier())
            .with_single_cert(vec![self.certificate.clone()], self.private_key())?;
        Ok(Arc::new(config))
    }

    /// The side that commands the agent.
    pub(super) fn client(&self) -> Result<Arc<ClientConfig>, rustls::Error> {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(self.verifier())
            .with_client_auth_cert(vec![self.certificate.clone()], self.private_key())?;
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Arc::new(config))
    }
}

/// The public key that a certificate shows.
fn shown_key(certificate: &CertificateDer<'_>) -> Result<SubjectPublicKeyInfoDer<'static>, rustls::Error> {
    Ok(ParsedCertificate::try_from(certificate)?.subject_public_key_info())
}

/// Accepts one public key and no other. The handshake proves that the peer has the private one.
#[derive(Debug)]
struct PinnedKey {
    expected: SubjectPublicKeyInfoDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl PinnedKey {
    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        match shown_key(certificate)? == self.expected {
            true => Ok(()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }
}

/// TLS 1.2 is not offered.
fn only_tls13() -> rustls::Error {
    rustls::Error::General("only TLS 1.3 is offered".to_owned())
}

impl ServerCertVerifier for PinnedKey {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(certificate).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

impl ClientCertVerifier for PinnedKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(certificate).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use super::*;

    fn file(name: &str, text: &str, mode: u32) -> PathBuf {
        let path = std::env::temp_dir().join(format!("weir-bench-key-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn a_key_file_that_is_short_readable_or_no_text_is_refused() {
        let refused = |path: &Path| {
            let error = AgentKey::read(path).unwrap_err().to_string();
            fs::remove_file(path).unwrap();
            error
        };
        let error = refused(&file("short", "fifteen letters\n", 0o600));
        assert!(error.contains("at least 16 characters, and this one has 15"), "{error}");
        let error = refused(&file("open", "sixteen letters and more", 0o640));
        assert!(error.contains("chmod 600"), "{error}");
        let error = refused(&file("long", &"x".repeat(5_000), 0o600));
        assert!(error.contains("at most 4096 bytes"), "{error}");
    }

    #[test]
    fn a_new_key_file_is_private_and_never_replaces_another() {
        let path = std::env::temp_dir().join(format!("weir-bench-key-new-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        AgentKey::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(AgentKey::read(&path).is_ok());
        assert!(AgentKey::create(&path).is_err());
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn equal_secrets_give_equal_keys_and_others_do_not() {
        let key = |secret: &str| AgentKey::derive(secret).unwrap().expected;
        assert_eq!(key("sixteen letters and more"), key("sixteen letters and more"));
        assert_ne!(key("sixteen letters and more"), key("sixteen letters and more!"));
    }
}
