use std::fmt;

/// The number of a key pair, as minisign shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SigningKeyId(pub(super) [u8; 8]);

impl fmt::Display for SigningKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016X}", u64::from_le_bytes(self.0))
    }
}
