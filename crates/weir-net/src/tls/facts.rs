//! Contents of a certificate as text.

use std::fmt::Write;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::x509::X509Name;

use super::KeyError;

/// The contents of a certificate as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Distinguished names as RFC 4514 writes them, the most specific part first.
    pub subject: String,
    pub issuer: String,
    /// Hexadecimal, in upper case.
    pub serial: String,
    /// SHA-1 of the certificate, hexadecimal in lower case, as in nginx.
    pub fingerprint: String,
    pub pem: String,
    /// The names (SAN) it is valid for, in lower case; addresses as text.
    pub names: Vec<String>,
    /// Validity in seconds since 1970: `since` is the first second, `until` the last.
    pub since: i64,
    pub until: i64,
}

impl CertificateFacts {
    /// # Errors
    /// The bytes are not a certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<CertificateFacts, KeyError> {
        Ok(CertificateFacts::read(certificate, &parse(certificate)?))
    }

    /// The same of a client's certificate, with what identifies its owner.
    ///
    /// # Errors
    /// The bytes are not a certificate.
    pub fn of_client(certificate: &CertificateDer<'_>) -> Result<(CertificateFacts, ClientNames), KeyError> {
        let parsed = parse(certificate)?;
        Ok((CertificateFacts::read(certificate, &parsed), ClientNames::read(certificate, &parsed)))
    }

    fn read(certificate: &CertificateDer<'_>, parsed: &X509Certificate<'_>) -> CertificateFacts {
        let names = parsed.subject_alternative_name().ok().flatten();
        let names = names.map(|names| names.value.general_names.iter().filter_map(shown).collect());
        CertificateFacts {
            subject: distinguished(parsed.subject()),
            issuer: distinguished(parsed.issuer()),
            serial: hex::encode_upper(parsed.raw_serial()),
            fingerprint: hex::encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, certificate)),
            pem: pem(certificate),
            names: names.unwrap_or_default(),
            since: parsed.validity().not_before.timestamp(),
            until: parsed.validity().not_after.timestamp(),
        }
    }

    /// The names as a message tells them.
    pub fn told_names(&self) -> String {
        match &*self.names {
            [] => "no name: it has no subject alternative names (SAN)".to_owned(),
            [..] => self.names.join(", "),
        }
    }

    /// Whether the certificate is valid for a host name; a name in it may have `*` as its first label.
    pub fn is_good_for(&self, name: &str) -> bool {
        self.names.iter().any(|own| match own.strip_prefix("*.") {
            _ if own == name => true,
            Some(rest) => name.split_once('.').is_some_and(|(_, after)| after == rest),
            None => false,
        })
    }
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, KeyError> {
    let parsed = X509Certificate::from_der(certificate);
    parsed.map(|(_, parsed)| parsed).map_err(|error| {
        KeyError::Damaged(match error {
            x509_parser::nom::Err::Incomplete(_) => "it is cut off".to_owned(),
            x509_parser::nom::Err::Error(error) | x509_parser::nom::Err::Failure(error) => error.to_string(),
        })
    })
}

/// The most names of one kind that count for a client; its certificate may have as many as fit into a handshake.
const MAX_CLIENT_NAMES: usize = 64;

/// What identifies the owner of a client certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientNames {
    /// Its alternative names (RFC 5280 §4.2.1.6), of each kind the first 64: URIs as they are, DNS names in lower case, and e-mail
    /// addresses with their domain in lower case. Names with a comma, a space or a control character are left out, so that a list
    /// with commas has no other names than these.
    pub uris: Vec<String>,
    pub hosts: Vec<String>,
    pub emails: Vec<String>,
    /// The only common name of the subject, if the certificate has no alternative name of these kinds (RFC 9525 §6.3).
    pub common_name: Option<String>,
    /// SHA-256 of the certificate, hexadecimal in lower case.
    pub fingerprint: String,
}

impl ClientNames {
    fn read(certificate: &CertificateDer<'_>, parsed: &X509Certificate<'_>) -> ClientNames {
        let fingerprint = hex::encode(digest(&SHA256, certificate));
        let mut names = ClientNames { fingerprint, ..ClientNames::default() };
        // A certificate whose names cannot be read has none, nor a common name in their place.
        let Ok(alternative) = parsed.subject_alternative_name() else { return names };
        let mut is_named = false;
        for name in alternative.iter().flat_map(|alternative| &alternative.value.general_names) {
            let (list, name) = match name {
                GeneralName::URI(uri) => (&mut names.uris, (*uri).to_owned()),
                GeneralName::DNSName(host) => (&mut names.hosts, host.to_ascii_lowercase()),
                GeneralName::RFC822Name(email) => (&mut names.emails, normalised_email(email)),
                // It may be one of these kinds.
                GeneralName::Invalid(..) => {
                    is_named = true;
                    continue;
                }
                _ => continue,
            };
            is_named = true;
            if list.len() < MAX_CLIENT_NAMES && is_listable(&name) {
                list.push(name);
            }
        }
        let mut common = parsed.subject().iter_common_name();
        if let (false, Some(name), None) = (is_named, common.next(), common.next()) {
            names.common_name = name.as_str().ok().map(str::to_owned);
        }
        names
    }
}

fn is_listable(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',')
}

/// An e-mail address with its domain in lower case; the part before it belongs to the domain (RFC 5280 §7.5).
pub fn normalised_email(email: &str) -> String {
    match email.rsplit_once('@') {
        Some((local, domain)) => format!("{local}@{}", domain.to_ascii_lowercase()),
        None => email.to_owned(),
    }
}

/// Whether a certificate has this URI among its alternative names (RFC 5280 §4.2.1.6).
pub(super) fn has_uri(certificate: &CertificateDer<'_>, wanted: &str) -> bool {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return false };
    let Ok(Some(names)) = parsed.subject_alternative_name() else { return false };
    names.value.general_names.iter().any(|name| matches!(name, GeneralName::URI(uri) if *uri == wanted))
}

/// What a certificate is issued to: its DNS names in lower case, and its URIs; without both, the common name of its subject in lower case.
pub fn identities(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let names = parsed.subject_alternative_name().ok().flatten();
    let named = names.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    });
    let named: Vec<String> = named.collect();
    match named.is_empty() {
        true => parsed
            .subject()
            .iter_common_name()
            .filter_map(|name| name.as_str().ok())
            .map(str::to_ascii_lowercase)
            .collect(),
        false => named,
    }
}

fn shown(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|bytes| std::net::IpAddr::from(bytes).to_string()),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| std::net::IpAddr::from(bytes).to_string()),
        },
        _ => None,
    }
}

/// RFC 4514 §2 and §3, with the attribute names of nginx and OpenSSL where the RFC defines none.
fn distinguished(name: &X509Name<'_>) -> String {
    let parts: Vec<_> = name.iter().collect();
    let mut text = String::new();
    for part in parts.iter().rev() {
        if !text.is_empty() {
            text.push(',');
        }
        for (index, attribute) in part.iter().enumerate() {
            if index > 0 {
                text.push('+');
            }
            let oid = attribute.attr_type().to_id_string();
            match KINDS.iter().find(|(known, _)| *known == oid) {
                Some((_, kind)) => text.push_str(kind),
                None => text.push_str(&oid),
            }
            text.push('=');
            let value = attribute.as_str().map(str::to_owned);
            escape(&mut text, &value.unwrap_or_else(|_| format!("#{}", hex::encode(attribute.attr_value().data))));
        }
    }
    text
}

const KINDS: &[(&str, &str)] = &[
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.42", "GN"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];

fn escape(text: &mut String, value: &str) {
    let last = value.chars().count().saturating_sub(1);
    for (at, letter) in value.chars().enumerate() {
        let special = matches!(letter, ',' | '+' | '"' | '\\' | '<' | '>' | ';')
            || (at == 0 && matches!(letter, ' ' | '#'))
            || (at == last && letter == ' ');
        if letter.is_control() {
            let mut bytes = [0; 4];
            letter
                .encode_utf8(&mut bytes)
                .bytes()
                .for_each(|byte| write!(text, "\\{byte:02X}").expect("text takes all"));
            continue;
        }
        if special {
            text.push('\\');
        }
        text.push(letter);
    }
}

fn pem(certificate: &[u8]) -> String {
    use base64::Engine;
    let encoded = base64::engine::general_purpose::STANDARD.encode(certificate);
    let lines: Vec<&str> =
        encoded.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).expect("base64 is ASCII")).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType, SerialNumber};

    #[test]
    fn a_certificate_is_issued_to_its_alternative_names_or_to_its_common_name() {
        let issued_to = |alternative: Vec<SanType>| {
            let mut params = CertificateParams::default();
            params.subject_alt_names = alternative;
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, "Common");
            let key = KeyPair::generate().expect("a key");
            identities(params.self_signed(&key).expect("a certificate").der())
        };
        let dns = || SanType::DnsName("A.test".try_into().expect("ASCII"));
        let uri = || SanType::URI("spiffe://a.test/ns/One".try_into().expect("ASCII"));
        assert_eq!(issued_to(vec![dns(), uri()]), ["a.test", "spiffe://a.test/ns/One"]);
        assert_eq!(issued_to(vec![uri()]), ["spiffe://a.test/ns/One"]);
        assert_eq!(issued_to(Vec::new()), ["common"]);
        assert_eq!(identities(&CertificateDer::from(vec![1, 2])), [""; 0]);
    }

    #[test]
    fn a_client_is_named_by_its_alternative_names_or_else_by_its_only_common_name() {
        let names = |alternative: &[SanType], common: &[&str]| {
            let mut params = CertificateParams::default();
            params.subject_alt_names = alternative.to_vec();
            params.distinguished_name = rcgen::DistinguishedName::new();
            for (index, name) in common.iter().enumerate() {
                // A second attribute of the same type is written by its number.
                let kind = if index == 0 { DnType::CommonName } else { DnType::CustomDnType(vec![2, 5, 4, 3]) };
                params.distinguished_name.push(kind, *name);
            }
            let key = KeyPair::generate().expect("a key");
            CertificateFacts::of_client(params.self_signed(&key).expect("a certificate").der()).expect("it is one").1
        };
        let uri = |text: &str| SanType::URI(text.try_into().expect("ASCII"));
        let dns = |text: &str| SanType::DnsName(text.try_into().expect("ASCII"));
        let email = |text: &str| SanType::Rfc822Name(text.try_into().expect("ASCII"));
        let all = names(&[dns("A.test"), uri("spiffe://a/One"), email("Jack@A.test"), dns("*.b.test")], &["jack"]);
        assert_eq!(all.uris, ["spiffe://a/One"]);
        assert_eq!(all.hosts, ["a.test", "*.b.test"]);
        assert_eq!(all.emails, ["Jack@a.test"]);
        assert_eq!((all.common_name, all.fingerprint.len()), (None, 64));
        // Neither what a list could not tell apart, nor a common name in its place.
        let odd = names(&[uri("spiffe://a/x,spiffe://a/admin"), dns("a.test\0"), dns("")], &["jack"]);
        assert_eq!((odd.uris.len(), odd.hosts.len(), odd.common_name), (0, 0, None));
        let address = SanType::IpAddress([127, 0, 0, 1].into());
        assert_eq!(names(&[address], &["jack"]).common_name.as_deref(), Some("jack"));
        assert_eq!(names(&[], &["jack", "admin"]).common_name, None);
        let many: Vec<SanType> = (0..100).map(|number| dns(&format!("{number}.test"))).collect();
        assert_eq!(names(&many, &[]).hosts.len(), MAX_CLIENT_NAMES);
        assert!(CertificateFacts::of_client(&CertificateDer::from(vec![1, 2])).is_err());
    }

    #[test]
    fn a_certificate_in_words() {
        let names = ["A.test".to_owned(), "*.b.test".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in [
            (DnType::CountryName, "DE"),
            (DnType::OrganizationName, "Dam, Weir + Sons"),
            (DnType::CommonName, " #jack\n"),
        ] {
            params.distinguished_name.push(kind, value);
        }
        params.serial_number = Some(SerialNumber::from_slice(&[1, 0xab]));
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let facts = CertificateFacts::of(certificate.der()).expect("it is one");
        assert_eq!(facts.subject, "CN=\\ #jack\\0A,O=Dam\\, Weir \\+ Sons,C=DE");
        assert_eq!(facts.issuer, facts.subject);
        assert_eq!((facts.serial.as_str(), facts.fingerprint.len()), ("01AB", 40));
        assert_eq!(super::super::certificates(facts.pem.as_bytes()), Ok(vec![certificate.der().clone()]));
        for (name, good) in [
            ("a.test", true),
            ("x.b.test", true),
            ("*.b.test", true),
            ("b.test", false),
            ("x.y.b.test", false),
            ("127.0.0.1", true),
        ] {
            assert_eq!(facts.is_good_for(name), good, "{name}");
        }
        assert!(facts.until > 0);
        assert!(CertificateFacts::of(&CertificateDer::from(vec![0; 10])).is_err());
    }
}
