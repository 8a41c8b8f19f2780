//! Texts in PEM.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Whether a text has a PEM block whose label ends so (RFC 7468), with DER inside.
pub(super) fn has_pem(text: &str, label: &str) -> bool {
    const DER_SEQUENCE: u8 = 0x30;
    let mut lines = text.lines().map(str::trim);
    let begins = |line: &str| line.starts_with("-----BEGIN ") && line.ends_with(&format!("{label}-----"));
    if !lines.any(begins) {
        return false;
    }
    let content: String = lines.take_while(|line| !line.starts_with("-----END ")).collect();
    STANDARD.decode(content).is_ok_and(|der| der.first() == Some(&DER_SEQUENCE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pem_block_has_a_label_and_der() {
        let pem = |label: &str, content: &str| format!("-----BEGIN {label}-----\n{content}\n-----END {label}-----\n");
        assert!(has_pem(&pem("CERTIFICATE", "MAA="), "CERTIFICATE"));
        assert!(has_pem(&pem("EC PRIVATE KEY", "MAA="), "PRIVATE KEY"));
        assert!(!has_pem(&pem("CERTIFICATE", "MAA="), "PRIVATE KEY"));
        assert!(!has_pem(&pem("CERTIFICATE", "hello"), "CERTIFICATE"));
        assert!(!has_pem("CERTIFICATE", "CERTIFICATE"));
    }
}
