use super::{FileSignature, FileSigner, FileVerifier};

/// The signature file that a text is, written again; `None` if it is none.
pub fn signature_again(text: &str) -> Option<String> {
    let signature = FileSignature::parse(text).ok()?;
    assert!(!signature.comment.chars().any(|one| one.is_control() && one != '\t'), "it is printed to a terminal");
    Some(signature.to_string())
}

/// The public key in a text, written again; `None` if there is none.
pub fn public_key_again(text: &str) -> Option<String> {
    Some(FileVerifier::of_text(text)?.to_string())
}

/// Whether its public key verifies what the private key in a text signs; `None` if there is none.
pub fn private_key_signs(text: &str, bytes: &[u8]) -> Option<bool> {
    let signer = FileSigner::of_text(text).ok()?;
    Some(signer.verifier().has_signed(bytes, &signer.sign(bytes)))
}
