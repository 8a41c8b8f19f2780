//! `acme`: hosts whose certificates the gateway obtains from a certificate authority.

use std::time::Duration;

use super::certificate::{self, Pem};
use super::resource::ResourceOrigin;
use crate::text::read::{MapReader, NodeReader, shortened};
use weir_plugin::WrittenName;

/// The settings for certificates issued by an ACME authority (RFC 8555).
#[derive(Clone, Debug)]
pub struct AcmeSpec {
    pub origin: ResourceOrigin,
    /// Each host gets a certificate of its own.
    pub hosts: Vec<AcmeHost>,
    /// Contact addresses of the account at the authority.
    pub emails: Vec<Box<str>>,
    /// The type of challenge; `None`: chosen by the addresses that the node listens on.
    pub challenge: Option<Challenge>,
    /// The URL of the authority's directory (RFC 8555 §7.1.1).
    pub directory: Box<str>,
    /// The authorities that certify the server of `directory`; `None`: those that the system trusts.
    pub authorities: Option<Pem>,
    /// The directory for the account and the certificates, as written.
    pub storage: Box<str>,
    /// How long before a certificate expires it is renewed; `None`: a third of its lifetime.
    pub renew_before: Option<Duration>,
    pub external_account: Option<ExternalAccount>,
}

/// How the authority validates that a host is served by this gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// By a request on port 80 (RFC 8555 §8.3).
    Http01,
    /// By a TLS handshake on port 443 (RFC 8737).
    TlsAlpn01,
}

#[derive(Clone, Debug)]
pub struct AcmeHost {
    /// In lower case.
    pub name: Box<str>,
    pub origin: ResourceOrigin,
}

/// Binds the ACME account to an existing account at the authority (RFC 8555 §7.3.4).
#[derive(Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    pub key_id: Box<str>,
    /// In base64url without padding.
    pub hmac_key: Box<str>,
}

impl std::fmt::Debug for ExternalAccount {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExternalAccount").field("key_id", &self.key_id).finish_non_exhaustive()
    }
}

const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";
const STORAGE: &str = "acme";
/// Certificates are obtained one by one, so more hosts would take days; a wildcard certificate is the better choice then.
const MOST_HOSTS: usize = 1_000;

pub(super) fn read(at: &NodeReader) -> Option<AcmeSpec> {
    let fields = at.fields(&[
        "hosts",
        "email",
        "terms_of_service_agreed",
        "challenge",
        "directory",
        "ca",
        "storage",
        "renew_before",
        "external_account",
    ])?;
    match fields.get("terms_of_service_agreed") {
        None => agree(at),
        Some(agreed) if agreed.boolean() == Some(false) => agree(&agreed),
        Some(_) => {}
    }
    Some(AcmeSpec {
        origin: ResourceOrigin::of(at),
        hosts: hosts(&fields),
        emails: fields.get("email").map(|at| emails(&at)).unwrap_or_default(),
        challenge: fields
            .get("challenge")
            .and_then(|at| at.choice(&[("http-01", Challenge::Http01), ("tls-alpn-01", Challenge::TlsAlpn01)])),
        directory: fields.get("directory").and_then(|at| directory(&at)).unwrap_or_else(|| LETS_ENCRYPT.into()),
        authorities: fields.get("ca").and_then(|at| certificate::pem_of_settings(&at)),
        storage: fields.get("storage").and_then(|at| at.written_name(WrittenName::Directory)).unwrap_or(STORAGE).into(),
        renew_before: fields.get("renew_before").and_then(|at| at.duration()),
        external_account: fields.get("external_account").and_then(|at| external_account(&at)),
    })
}

fn agree(at: &NodeReader) {
    at.report_advising(
        "the authority issues certificates only if you agree to its terms of service",
        "read the terms, and write `terms_of_service_agreed: true`",
    );
}

fn hosts(fields: &MapReader) -> Vec<AcmeHost> {
    let Some(list) = fields.get("hosts") else {
        fields
            .at()
            .report_advising("has no `hosts`", "list the hosts that need a certificate: `hosts: [www.example.com]`");
        return Vec::new();
    };
    let mut hosts: Vec<AcmeHost> = Vec::new();
    for item in list.items() {
        let Some(name) = host(&item) else { continue };
        if hosts.iter().any(|other| other.name == name) {
            item.report_advising(format!("`{name}` is listed twice"), "keep one");
        } else if hosts.len() == MOST_HOSTS {
            item.report_advising(format!("more than {MOST_HOSTS} hosts"), "use a wildcard certificate in `ssls`");
            break;
        } else {
            hosts.push(AcmeHost { name, origin: ResourceOrigin::of(&item) });
        }
    }
    if list.is_list() && list.items().next().is_none() {
        list.report_advising("is empty", "add a host, or leave `acme` out");
    }
    hosts
}

fn host(at: &NodeReader) -> Option<Box<str>> {
    let text = at.text_of(1..=253)?;
    let label = |label: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=63).contains(&label.len()) && label.bytes().all(plain) && !label.starts_with('-') && !label.ends_with('-')
    };
    let (problem, advice) = match text {
        _ if text.contains('*') => (
            "a wildcard name needs the DNS challenge (dns-01), which is not supported".to_owned(),
            "list each host, or put a wildcard certificate in `ssls`",
        ),
        _ if text.parse::<std::net::IpAddr>().is_ok() => {
            ("is an IP address; certificates are ordered for host names only".to_owned(), "write the host name")
        }
        _ if !text.split('.').all(label) => {
            (format!("`{}` is not the name of a host", shortened(text)), "write as `www.example.com`")
        }
        _ => return Some(text.to_ascii_lowercase().into()),
    };
    at.report_advising(problem, advice);
    None
}

fn emails(at: &NodeReader) -> Vec<Box<str>> {
    let email = |at: &NodeReader| {
        let text = at.text_of(3..=254)?;
        let plain = text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b',' | b'<' | b'>'));
        let parts = text.split_once('@').filter(|(user, host)| !user.is_empty() && !host.is_empty());
        if !plain || parts.is_none_or(|(_, host)| host.contains('@')) {
            at.report_advising(format!("`{}` is not a mail address", shortened(text)), "write as `ops@example.com`");
            return None;
        }
        Some(text.into())
    };
    match at.is_list() {
        true => at.items().filter_map(|item| email(&item)).collect(),
        false => email(at).into_iter().collect(),
    }
}

fn directory(at: &NodeReader) -> Option<Box<str>> {
    let text = at.text_of(1..=2048)?;
    let uri = text.parse::<http::Uri>().ok();
    let is_url = uri.as_ref().is_some_and(|uri| {
        uri.scheme() == Some(&http::uri::Scheme::HTTPS)
            && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
    });
    if !is_url {
        let problem = format!("`{}` is not the https URL of an ACME directory", shortened(text));
        at.report_advising(problem, format!("write as `{LETS_ENCRYPT}`"));
        return None;
    }
    Some(text.into())
}

fn external_account(at: &NodeReader) -> Option<ExternalAccount> {
    let fields = at.fields(&["key_id", "hmac_key"])?;
    let [key_id, hmac_key] = ["key_id", "hmac_key"].map(|key| {
        let value = fields.get(key);
        if value.is_none() {
            at.report_advising(
                format!("has no `{key}`"),
                "the authority issues `key_id` and `hmac_key` together, as text",
            );
        }
        value?.text_of(1..=4096)
    });
    let hmac_key = hmac_key?.trim_end_matches('=');
    let is_key = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if !hmac_key.bytes().all(is_key) || hmac_key.len() % 4 == 1 {
        // The value is not shown, since it is a secret.
        fields.get("hmac_key")?.report_advising("is not base64url", "copy the text as the authority shows it");
        return None;
    }
    Some(ExternalAccount { key_id: key_id?.into(), hmac_key: hmac_key.into() })
}

impl AcmeSpec {
    /// The folder for the files of this authority, under `storage`. Each directory URL has its own, so that certificates of a
    /// staging directory are not used in production.
    pub fn folder(&self) -> String {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
        let rest = self.directory.strip_prefix("https://").unwrap_or(&self.directory);
        let name: String = rest.chars().map(|letter| if plain(letter) { letter } else { '-' }).collect();
        format!("{}/{}", self.storage.trim_end_matches('/'), name.trim_matches(['-', '.']))
    }

    /// The file of a host's certificate chain and key.
    pub fn file_of(&self, host: &str) -> String {
        format!("{}/{host}.pem", self.folder())
    }
}
