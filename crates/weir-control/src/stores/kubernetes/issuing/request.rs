//! The request of a node for a certificate (PKCS #10, RFC 2986): all that counts is its key, and the proof that the node has the key.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rcgen::{PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

/// What stands before the point in a public key of the curve P-256 (RFC 5480 §2): its algorithm, its curve, and the head of the bit string.
const P256: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// The bytes of a point that is not compressed.
const POINT: usize = 65;

/// A public key of the curve P-256 whose owner has signed a request with it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NodeKey(Vec<u8>);

impl NodeKey {
    /// The key of a request in DER. The names and all else that it asks for are not looked at.
    ///
    /// # Errors
    /// If it is not a request, or one for another kind of key, or not signed with this key.
    pub(super) fn of_request(der: &[u8]) -> Result<NodeKey, String> {
        let (rest, request) = X509CertificationRequest::from_der(der)
            .map_err(|_| "it is not a certificate signing request (PKCS #10) in DER".to_owned())?;
        if !rest.is_empty() {
            return Err("there are bytes after the request".to_owned());
        }
        let info = &request.certification_request_info;
        let point = info.subject_pki.raw.strip_prefix(&P256).filter(|point| point.len() == POINT);
        let point = point.ok_or("its key is not one of the curve P-256")?;
        let verified =
            UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point).verify(info.raw, &request.signature_value.data);
        verified.map_err(|_| "it is not signed with its key, by ECDSA with SHA-256".to_owned())?;
        Ok(NodeKey(point.to_vec()))
    }

    #[cfg(test)]
    pub(super) fn of_tests() -> NodeKey {
        let key = rcgen::KeyPair::generate().expect("a key");
        let request = rcgen::CertificateParams::default().serialize_request(&key).expect("a request");
        NodeKey::of_request(request.der()).expect("it is one")
    }
}

impl PublicKeyData for NodeKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};

    use super::*;

    fn request(key: &KeyPair) -> Vec<u8> {
        let params = CertificateParams::new(["weir-controller.weir-system.svc".to_owned()]).expect("a name");
        params.serialize_request(key).expect("a request").der().to_vec()
    }

    #[test]
    fn a_request_gives_its_key() {
        let key = KeyPair::generate().expect("a key");
        assert_eq!(NodeKey::of_request(&request(&key)), Ok(NodeKey(key.der_bytes().to_vec())));
    }

    #[test]
    fn a_request_of_another_kind_is_refused() {
        let problem = |der: &[u8]| NodeKey::of_request(der).expect_err("it is refused");
        for kind in [&PKCS_ECDSA_P384_SHA384, &PKCS_ED25519] {
            let key = KeyPair::generate_for(kind).expect("a key");
            assert!(problem(&request(&key)).contains("not one of the curve P-256"));
        }
        let whole = request(&KeyPair::generate().expect("a key"));
        assert!(problem(&whole[..whole.len() - 1]).contains("not a certificate signing request"));
        assert!(problem(&[&whole[..], &[0]].concat()).contains("bytes after the request"));
        assert!(problem(b"").contains("not a certificate signing request"));
        // No bit of it can be changed.
        let signed = whole.len();
        for at in [40, signed / 2, signed - 1] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert!(NodeKey::of_request(&changed).is_err(), "{at}");
        }
    }
}
