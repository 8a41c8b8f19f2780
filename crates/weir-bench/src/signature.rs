//! Signatures of files in the format of minisign, so that its own program verifies those made here, and this one those of
//! minisign.
//!
//! Signed is the BLAKE2b hash of a file (algorithm `ED`), so files of any length are read in pieces. Signatures of the whole file
//! (`Ed`, `minisign -l`) are refused: they would need all of it in memory. A private key is read only without a password: `minisign`
//! itself signs with the others.

mod error;
pub(crate) mod fuzzing;
mod id;
mod key;

use std::{
    fmt,
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use blake2::{Blake2b512, Digest as _};

pub use self::{
    error::SignatureError,
    id::SigningKeyId,
    key::{FileSigner, FileVerifier, public_of},
};
use crate::errors::FileError;

/// The most bytes of a key file or a signature file.
const LONGEST_FILE: u64 = 8_192;
/// What the name of a signature file has after that of the signed file.
const ENDING: &str = ".minisig";
/// The algorithm of a signature of a hash, and of one of a whole file.
const OF_HASH: [u8; 2] = *b"ED";
const OF_FILE: [u8; 2] = *b"Ed";
/// Begins the line with the comment that is signed.
const TRUSTED: &str = "trusted comment: ";
const PIECE: usize = 64 << 10;

/// The signature file of a file.
pub struct FileSignature {
    key: SigningKeyId,
    /// Of the hash of the file.
    signature: [u8; 64],
    /// Signed with it: when the file was signed, and what its name was.
    pub comment: String,
    /// Of `signature` and `comment`.
    whole: [u8; 64],
}

/// `FILE.minisig` of a file.
pub fn place_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(ENDING);
    PathBuf::from(name)
}

impl FileSignature {
    /// Signs a file as it is now.
    pub fn sign(file: &Path, signer: &FileSigner, unix_s: i64) -> Result<FileSignature, SignatureError> {
        let signature = signer.sign(&hash(file)?);
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        // A line of its own, so a name cannot end it.
        let name: String = name.chars().map(|one| if one.is_control() { '?' } else { one }).collect();
        let comment = format!("timestamp:{unix_s}\tfile:{name}\thashed");
        let whole = signer.sign(&[&signature[..], comment.as_bytes()].concat());
        Ok(FileSignature { key: signer.id(), signature, comment, whole })
    }

    /// Reads a signature file. Nothing in it is verified yet.
    pub fn read(path: &Path) -> Result<FileSignature, SignatureError> {
        FileSignature::parse(&text(path)?).map_err(|problem| problem.of(path))
    }

    fn parse(text: &str) -> Result<FileSignature, SignatureProblem> {
        let mut lines = text.lines();
        let (_, signature) = (lines.next(), lines.next().and_then(decoded::<74>));
        let comment = lines.next().and_then(|line| line.strip_prefix(TRUSTED));
        let whole = lines.next().and_then(decoded::<64>);
        let (Some(bytes), Some(comment), Some(whole)) = (signature, comment, whole) else {
            return Err(SignatureProblem::Form);
        };
        // It is printed to a terminal.
        if comment.chars().any(|one| one.is_control() && one != '\t') {
            return Err(SignatureProblem::Form);
        }
        let (algorithm, key, signature) = (part(&bytes, 0), part(&bytes, 2), part(&bytes, 10));
        match algorithm {
            OF_HASH => Ok(FileSignature { key: SigningKeyId(key), signature, comment: comment.to_owned(), whole }),
            OF_FILE => Err(SignatureProblem::OfWholeFile),
            _ => Err(SignatureProblem::Form),
        }
    }

    /// Whether the key has signed this file as it is now, and the comment.
    pub fn verify(&self, file: &Path, verifier: &FileVerifier) -> Result<(), SignatureError> {
        if self.key != verifier.id() {
            return Err(SignatureError::OtherKey { path: file.to_owned(), signed: self.key, expected: verifier.id() });
        }
        if !verifier.has_signed(&hash(file)?, &self.signature) {
            return Err(SignatureError::OtherFile(file.to_owned()));
        }
        let with_comment = [&self.signature[..], self.comment.as_bytes()].concat();
        if verifier.has_signed(&with_comment, &self.whole) {
            return Ok(());
        }
        Err(SignatureError::OtherComment(file.to_owned()))
    }
}

impl fmt::Display for FileSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = [&OF_HASH[..], &self.key.0, &self.signature].concat();
        writeln!(f, "untrusted comment: signature of weir bench, verify with key {}", self.key)?;
        writeln!(f, "{}\n{TRUSTED}{}\n{}", STANDARD.encode(bytes), self.comment, STANDARD.encode(self.whole))
    }
}

/// Why a text is no signature that can be used.
enum SignatureProblem {
    Form,
    OfWholeFile,
}

impl SignatureProblem {
    fn of(self, path: &Path) -> SignatureError {
        match self {
            SignatureProblem::Form => SignatureError::Form(path.to_owned()),
            SignatureProblem::OfWholeFile => SignatureError::OfWholeFile(path.to_owned()),
        }
    }
}

fn hash(path: &Path) -> Result<[u8; 64], FileError> {
    let at = FileError::at(path);
    let mut file = File::open(path).map_err(&at)?;
    let (mut hash, mut piece) = (Blake2b512::new(), vec![0; PIECE]);
    loop {
        match file.read(&mut piece).map_err(&at)? {
            0 => return Ok(hash.finalize().into()),
            read => hash.update(&piece[..read]),
        }
    }
}

/// The text of a small file.
fn text(path: &Path) -> Result<String, SignatureError> {
    // It may be a link to a device, which has no length and no end, or to a pipe, which nothing writes to.
    if !fs::metadata(path).map_err(FileError::at(path))?.is_file() {
        return Err(SignatureError::Form(path.to_owned()));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(FileError::at(path))?;
    file.take(LONGEST_FILE + 1).read_to_end(&mut bytes).map_err(FileError::at(path))?;
    if bytes.len() as u64 > LONGEST_FILE {
        return Err(SignatureError::Form(path.to_owned()));
    }
    String::from_utf8(bytes).map_err(|_| SignatureError::Form(path.to_owned()))
}

/// The bytes of a line of base64, if there are as many as that.
fn decoded<const LENGTH: usize>(line: &str) -> Option<[u8; LENGTH]> {
    STANDARD.decode(line.trim_end()).ok()?.try_into().ok()
}

/// Some of the bytes. There are always enough: their number is part of the type that they were read as.
fn part<const LENGTH: usize>(bytes: &[u8], from: usize) -> [u8; LENGTH] {
    bytes[from..from + LENGTH].try_into().expect("the slice has this length")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with a key pair and a file, which is removed at the end.
    struct Desk(PathBuf);

    impl Desk {
        fn new(name: &str) -> Desk {
            let path = std::env::temp_dir().join(format!("weir-bench-signature-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("result.json"), "{}").unwrap();
            FileSigner::create(&path.join("key")).unwrap();
            Desk(path)
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }

        fn verifier(&self, name: &str) -> FileVerifier {
            FileVerifier::read(&self.at(name).display().to_string()).unwrap()
        }

        /// The text of a signature of the file.
        fn signed(&self) -> String {
            let signer = FileSigner::read(&self.at("key")).unwrap();
            FileSignature::sign(&self.at("result.json"), &signer, 1_796_000_000).unwrap().to_string()
        }

        fn verified(&self, signature: &str) -> Result<(), String> {
            let signature =
                FileSignature::parse(signature).map_err(|problem| problem.of(Path::new("s")).to_string())?;
            let verifier = self.verifier("key.pub");
            signature.verify(&self.at("result.json"), &verifier).map_err(|error| error.to_string())
        }
    }

    impl Drop for Desk {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_the_signed_file_and_comment_are_verified() {
        let desk = Desk::new("alters");
        let signed = desk.signed();
        assert!(signed.contains("timestamp:1796000000\tfile:result.json\thashed"), "{signed}");
        assert_eq!(desk.verified(&signed), Ok(()));
        let other_name = signed.replace("file:result.json", "file:another.json");
        assert!(desk.verified(&other_name).unwrap_err().contains("comment"));
        fs::write(desk.at("result.json"), "{ }").unwrap();
        assert!(desk.verified(&signed).unwrap_err().contains("has changed"));
    }

    #[test]
    fn another_key_is_named_and_nothing_else_is_a_signature() {
        let desk = Desk::new("keys");
        let signed = desk.signed();
        FileSigner::create(&desk.at("other")).unwrap();
        let signature = FileSignature::parse(&signed).ok().unwrap();
        let error = signature.verify(&desk.at("result.json"), &desk.verifier("other.pub")).unwrap_err().to_string();
        let (ours, theirs) = (desk.verifier("key.pub").id(), desk.verifier("other.pub").id());
        assert!(error.contains(&ours.to_string()) && error.contains(&theirs.to_string()), "{error}");
        let coloured = signed.replace("hashed", "\u{1b}[2J");
        for text in ["", "a\nb\nc\nd\n", &signed.replace("\nRU", "\nRW"), &signed.replace(TRUSTED, ""), &coloured] {
            assert!(desk.verified(text).is_err(), "{text}");
        }
    }

    #[test]
    fn keys_with_a_password_or_for_others_to_read_are_refused_with_the_reason() {
        use std::os::unix::fs::PermissionsExt as _;
        let desk = Desk::new("private");
        let error = |name: &str| FileSigner::read(&desk.at(name)).unwrap_err().to_string();
        assert!(error("key.pub").contains("other users"), "{}", error("key.pub"));
        let text = fs::read_to_string(desk.at("key")).unwrap();
        let (comment, key) = text.split_once('\n').unwrap();
        let mut bytes = STANDARD.decode(key.trim_end()).unwrap();
        let write = |bytes: &[u8]| {
            fs::write(desk.at("key"), format!("{comment}\n{}\n", STANDARD.encode(bytes))).unwrap();
            error("key")
        };
        bytes[2..4].copy_from_slice(b"Sc");
        assert!(write(&bytes).contains("password"));
        bytes[2..4].copy_from_slice(&[0, 0]);
        bytes[70] ^= 1;
        assert!(write(&bytes).contains("not a private key"), "its halves do not belong together");
        assert_eq!(fs::metadata(desk.at("key")).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn names_of_files_cannot_end_the_line_of_the_comment() {
        let desk = Desk::new("names");
        let file = desk.at("a\nb.json");
        fs::write(&file, "{}").unwrap();
        let signer = FileSigner::read(&desk.at("key")).unwrap();
        let signature = FileSignature::sign(&file, &signer, 0).unwrap().to_string();
        assert!(FileSignature::parse(&signature).is_ok_and(|one| one.comment.contains("file:a?b.json")), "{signature}");
    }
}
