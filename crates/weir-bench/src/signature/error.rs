use std::path::PathBuf;

use super::id::SigningKeyId;
use crate::errors::FileError;

/// Why a file is not signed, or its signature not taken.
#[derive(Debug, thiserror::Error)]
pub enum SignatureError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: has changed since it was signed", .0.display())]
    OtherFile(PathBuf),
    #[error("{}: the comment of its signature has changed since it was signed", .0.display())]
    OtherComment(PathBuf),
    #[error("{}: signed by the key {signed}, and not by {expected}", .path.display())]
    OtherKey { path: PathBuf, signed: SigningKeyId, expected: SigningKeyId },
    #[error("{}: not a signature file of minisign", .0.display())]
    Form(PathBuf),
    #[error("{}: a signature of the whole file, not of its hash; sign it again, by minisign without -l", .0.display())]
    OfWholeFile(PathBuf),
    #[error("{0}: not a public key of minisign, and not the path of one")]
    NoPublicKey(String),
    #[error("{}: not a private key; `weir bench sign --new-key {}` makes a pair", .0.display(), .0.display())]
    NoPrivateKey(PathBuf),
    #[error("{}: is protected by a password; sign with `minisign -Sm FILE -s {}`, and verify here", .0.display(), .0.display())]
    Password(PathBuf),
    #[error("{}: other users of this machine can read it; `chmod 600 {}` changes that", .0.display(), .0.display())]
    Readable(PathBuf),
    /// The system has no random bytes, or the library no memory.
    #[error("no key pair could be made")]
    NotMade,
}

impl SignatureError {
    /// Whether it says that a file is not the signed one, rather than that nothing could be compared.
    pub fn is_verdict(&self) -> bool {
        matches!(self, SignatureError::OtherFile(_) | SignatureError::OtherComment(_) | SignatureError::OtherKey { .. })
    }
}
