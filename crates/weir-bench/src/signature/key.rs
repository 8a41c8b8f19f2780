use std::{
    fmt,
    fs::{self, OpenOptions},
    io::Write as _,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use aws_lc_rs::{
    rand::{SecureRandom as _, SystemRandom},
    signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::{SignatureError, SigningKeyId, decoded, part, text};
use crate::errors::FileError;

/// Ed25519, in both kinds of key files.
const ED25519_KEY: [u8; 2] = *b"Ed";
/// A private key that no password protects.
const NO_PASSWORD: [u8; 2] = [0, 0];
const CHECKSUM: [u8; 2] = *b"B2";
/// Bytes of a private key file: algorithms, salt and costs of the password, number, seed and public key, checksum.
const PRIVATE: usize = 158;
const ID_AT: usize = 54;
const SEED_AT: usize = 62;
const PUBLIC_AT: usize = 94;

/// What signs files: a private key.
pub struct FileSigner {
    id: SigningKeyId,
    pair: Ed25519KeyPair,
}

/// Why a text is no private key that can be used.
#[derive(Debug)]
pub(super) enum PrivateKeyProblem {
    Form,
    Password,
}

/// Without the private key.
impl fmt::Debug for FileSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileSigner {}", self.id)
    }
}

/// The public key beside a private one: the same name, and `.pub`.
pub fn public_of(key: &Path) -> PathBuf {
    let mut name = key.as_os_str().to_owned();
    name.push(".pub");
    PathBuf::from(name)
}

impl FileSigner {
    /// Reads a private key file, which only its owner may read.
    pub fn read(path: &Path) -> Result<FileSigner, SignatureError> {
        let wrong = || SignatureError::NoPrivateKey(path.to_owned());
        let metadata = fs::metadata(path).map_err(FileError::at(path))?;
        if metadata.mode() & 0o077 != 0 {
            return Err(SignatureError::Readable(path.to_owned()));
        }
        let text = match text(path) {
            Err(SignatureError::Form(_)) => return Err(wrong()),
            text => text?,
        };
        FileSigner::of_text(&text).map_err(|problem| match problem {
            PrivateKeyProblem::Form => wrong(),
            PrivateKeyProblem::Password => SignatureError::Password(path.to_owned()),
        })
    }

    /// Reads the text of a private key file.
    pub(super) fn of_text(text: &str) -> Result<FileSigner, PrivateKeyProblem> {
        let bytes = text.lines().nth(1).and_then(decoded::<PRIVATE>).ok_or(PrivateKeyProblem::Form)?;
        if part::<2>(&bytes, 0) != ED25519_KEY {
            return Err(PrivateKeyProblem::Form);
        }
        if part::<2>(&bytes, 2) != NO_PASSWORD {
            return Err(PrivateKeyProblem::Password);
        }
        // minisign leaves the checksum of a key without a password at 0, but both halves have to belong together.
        let (seed, public) = (part::<32>(&bytes, SEED_AT), part::<32>(&bytes, PUBLIC_AT));
        let pair = Ed25519KeyPair::from_seed_and_public_key(&seed, &public).map_err(|_| PrivateKeyProblem::Form)?;
        Ok(FileSigner { id: SigningKeyId(part(&bytes, ID_AT)), pair })
    }

    /// Writes a new key pair: the private key into this file, the public one beside it. Existing files stay, and are an error.
    pub fn create(path: &Path) -> Result<FileVerifier, SignatureError> {
        let random = SystemRandom::new();
        let (mut id, mut seed) = ([0; 8], [0; 32]);
        let filled = random.fill(&mut id).and_then(|()| random.fill(&mut seed));
        filled.map_err(|_| SignatureError::NotMade)?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| SignatureError::NotMade)?;
        let verifier = FileSigner { id: SigningKeyId(id), pair }.verifier();
        let mut bytes = [0; PRIVATE];
        bytes[..2].copy_from_slice(&ED25519_KEY);
        bytes[4..6].copy_from_slice(&CHECKSUM);
        bytes[ID_AT..SEED_AT].copy_from_slice(&id);
        bytes[SEED_AT..PUBLIC_AT].copy_from_slice(&seed);
        bytes[PUBLIC_AT..PUBLIC_AT + 32].copy_from_slice(&verifier.public);
        let private = format!("untrusted comment: minisign private key {}\n{}\n", verifier.id, STANDARD.encode(bytes));
        write_new(path, 0o600, &private)?;
        let public = format!("untrusted comment: minisign public key {}\n{verifier}\n", verifier.id);
        write_new(&public_of(path), 0o644, &public).inspect_err(|_| {
            // Half of a pair is of no use, and would be in the way of the next one.
            let _ = std::fs::remove_file(path);
        })?;
        Ok(verifier)
    }

    pub fn id(&self) -> SigningKeyId {
        self.id
    }

    /// The public key of this private one.
    pub(super) fn verifier(&self) -> FileVerifier {
        let public = self.pair.public_key().as_ref().try_into().expect("a public key of Ed25519 has 32 bytes");
        FileVerifier { id: self.id, public }
    }

    pub(super) fn sign(&self, bytes: &[u8]) -> [u8; 64] {
        self.pair.sign(bytes).as_ref().try_into().expect("a signature of Ed25519 has 64 bytes")
    }
}

fn write_new(path: &Path, mode: u32, text: &str) -> Result<(), FileError> {
    let at = FileError::at(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(&at)?;
    file.write_all(text.as_bytes()).map_err(at)
}

/// What verifies signatures: a public key. Its text is base64.
#[derive(Clone, Debug)]
pub struct FileVerifier {
    id: SigningKeyId,
    public: [u8; 32],
}

impl FileVerifier {
    /// Reads a public key: a file, or the key itself.
    pub fn read(key: &str) -> Result<FileVerifier, SignatureError> {
        if let Some(verifier) = FileVerifier::of_line(key) {
            return Ok(verifier);
        }
        let wrong = || SignatureError::NoPublicKey(key.to_owned());
        let text = match text(Path::new(key)) {
            Err(SignatureError::Form(_)) => return Err(wrong()),
            text => text?,
        };
        FileVerifier::of_text(&text).ok_or_else(wrong)
    }

    /// Reads the text of a public key file.
    pub(super) fn of_text(text: &str) -> Option<FileVerifier> {
        text.lines().find_map(FileVerifier::of_line)
    }

    fn of_line(line: &str) -> Option<FileVerifier> {
        let bytes = decoded::<42>(line)?;
        let is_known = part::<2>(&bytes, 0) == ED25519_KEY;
        is_known.then(|| FileVerifier { id: SigningKeyId(part(&bytes, 2)), public: part(&bytes, 10) })
    }

    pub fn id(&self) -> SigningKeyId {
        self.id
    }

    pub(super) fn has_signed(&self, bytes: &[u8], signature: &[u8; 64]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.public).verify(bytes, signature).is_ok()
    }
}

impl fmt::Display for FileVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode([&ED25519_KEY[..], &self.id.0, &self.public].concat()))
    }
}
