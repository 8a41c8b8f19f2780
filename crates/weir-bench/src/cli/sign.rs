//! `weir bench sign` and `weir bench verify`: signatures of result files, in the format of minisign.

use std::{fs, path::PathBuf};

use clap::Args;

use super::LabError;
use crate::{
    cli::print::out,
    errors::FileError,
    signature::{FileSignature, FileSigner, FileVerifier, place_of, public_of},
};

#[derive(Debug, Args)]
pub struct SignArguments {
    /// The files; the signature of each is beside it, as FILE.minisig
    #[arg(required_unless_present = "new_key")]
    pub files: Vec<PathBuf>,
    /// The private key: of `--new-key`, or of `minisign -G -W`
    #[arg(long, value_name = "FILE", required_unless_present = "new_key")]
    pub key: Option<PathBuf>,
    /// Writes a new private key, which only its owner may read, and beside it the public key, FILE.pub; and ends
    #[arg(long, value_name = "FILE", conflicts_with_all = ["files", "key"])]
    pub new_key: Option<PathBuf>,
}

pub(super) fn sign(arguments: SignArguments) -> Result<u8, LabError> {
    if let Some(path) = &arguments.new_key {
        let verifier = FileSigner::create(path)?;
        out!("{}: the private key; keep it secret", path.display());
        out!("{}: the public key, {verifier}", public_of(path).display());
        return Ok(0);
    }
    let Some(key) = &arguments.key else { return Ok(0) };
    let signer = FileSigner::read(key)?;
    for file in &arguments.files {
        let signature = FileSignature::sign(file, &signer, jiff::Timestamp::now().as_second())?;
        let place = place_of(file);
        fs::write(&place, signature.to_string()).map_err(FileError::at(&place))?;
        out!("{}: signed by {}", place.display(), signer.id());
    }
    Ok(0)
}

#[derive(Debug, Args)]
pub struct VerifyArguments {
    /// The signed files; the signature of each is beside it, as FILE.minisig
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// The public key, or its file
    #[arg(long, value_name = "KEY|FILE")]
    pub key: String,
}

pub(super) fn verify(arguments: VerifyArguments) -> Result<u8, LabError> {
    let verifier = FileVerifier::read(&arguments.key)?;
    let mut all = true;
    for file in &arguments.files {
        let signature = FileSignature::read(&place_of(file))?;
        match signature.verify(file, &verifier) {
            Ok(()) => out!("{}: signed by {}: {}", file.display(), verifier.id(), signature.comment),
            Err(error) if error.is_verdict() => {
                all = false;
                eprintln!("{error}");
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(u8::from(!all))
}
