//! `acme`: hosts whose certificates the gateway obtains from a certificate authority.

use std::time::Duration;

use serde_json::json;

use super::certificate::{self, Pem};
use super::resource::ResourceOrigin;
use crate::keys;
use crate::keys::KeyRule;
use crate::keys::kinds::{
    Custom, Form, ParsedText, SubMap, Text, Time, Words, WrittenPath, custom, form, section, text, time, words, written,
};
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

const CHALLENGES: &[(&str, Challenge)] = &[("http-01", Challenge::Http01), ("tls-alpn-01", Challenge::TlsAlpn01)];

const AGREE: (&str, &str) = (
    "the authority issues certificates only if you agree to its terms of service",
    "read the terms, and write `terms_of_service_agreed: true`",
);
const AGREED: &[KeyRule] = &[KeyRule::AnyOf { keys: &["terms_of_service_agreed"], problem: AGREE.0, advice: AGREE.1 }];

keys! {
    /// Hosts for which the gateway obtains and renews certificates from an ACME authority (RFC 8555).
    pub(super) static ACME: AcmeKeys = "acme", rules AGREED;

    /// The host names. Each one gets a certificate of its own.
    hosts: Form = form("list: text", |_| json!({ "type": "array", "minItems": 1, "maxItems": MOST_HOSTS,
            "items": { "type": "string", "pattern": "^[A-Za-z0-9.-]+$" } })), own(),
        required("list the hosts that need a certificate: `hosts: [www.example.com]`"), example("[www.example.com]");
    /// Mail addresses at which the authority reaches you: one, or a list.
    email: Custom<Vec<Box<str>>> = custom("text, or list: text", |_| json!({ "oneOf": [
            { "type": "string", "minLength": 3 }, { "type": "array", "items": { "type": "string", "minLength": 3 } }] }), emails), own(),
        absent("none"), example("ops@example.com");
    /// Your agreement to the terms of service of the authority.
    terms_of_service_agreed: Custom<()> = custom("`true`", |_| json!({ "type": "boolean", "const": true }), agreed), own(),
        example("true");
    /// How the authority checks that a host is served by this gateway: by a request on port 80, or by a TLS handshake on port 443.
    challenge: Words<Challenge> = words(CHALLENGES), own(), absent("by the addresses in `listen`");
    /// The `https` URL of the directory of the authority.
    directory: ParsedText<Box<str>> = text(1, 2_048).pattern("^https://").parsed(directory), own(), absent("that of Let's Encrypt"),
        example("https://acme-staging-v02.api.letsencrypt.org/directory");
    /// The CA certificates that the server of the authority is verified against: PEM text, or the path of a PEM file.
    ca: Custom<Pem> = custom("PEM text, or the path of a file", |_| json!({ "type": "string", "minLength": 1 }),
        certificate::pem_of_settings), own(), absent("those of the system"), example("/etc/ssl/certs/internal-ca.pem");
    /// The directory for the account and the certificates.
    storage: WrittenPath = written(WrittenName::Directory), own(), absent("`acme`"), example("/var/lib/weir/acme");
    /// How long before its end a certificate is renewed.
    renew_before: Time = time(), own(), absent("a third of its lifetime"), example("30d");
    /// Binds the account to one that you have at the authority (RFC 8555 §7.3.4).
    external_account: SubMap<ExternalAccount> = section(&EXTERNAL_ACCOUNT, external_account), own(), absent("none");
}

const ADD_ACCOUNT: &str = "the authority issues `key_id` and `hmac_key` together, as text";

keys! {
    /// An account at an ACME authority.
    static EXTERNAL_ACCOUNT: ExternalAccountKeys = "acme_external_account";

    /// The id of the account.
    key_id: Text = text(1, 4_096), own(), required(ADD_ACCOUNT), example("kid-1");
    /// The key of the account, in base64url.
    hmac_key: ParsedText<Box<str>> = text(1, 4_096).pattern("^[A-Za-z0-9_-]+=*$").parsed(hmac_key), own(), secret(),
        required(ADD_ACCOUNT), example("zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W");
}

pub(super) fn read(fields: &MapReader) -> Option<AcmeSpec> {
    fields.read(&ACME.terms_of_service_agreed);
    Some(AcmeSpec {
        origin: ResourceOrigin::of(fields.at()),
        hosts: hosts(fields),
        emails: fields.read(&ACME.email).unwrap_or_default(),
        challenge: fields.read(&ACME.challenge),
        directory: fields.read(&ACME.directory).unwrap_or_else(|| LETS_ENCRYPT.into()),
        authorities: fields.read(&ACME.ca),
        storage: fields.read(&ACME.storage).unwrap_or_else(|| STORAGE.into()),
        renew_before: fields.read(&ACME.renew_before),
        external_account: fields.read(&ACME.external_account),
    })
}

fn agreed(at: &NodeReader) -> Option<()> {
    if at.boolean()? {
        return Some(());
    }
    at.report_advising(AGREE.0, AGREE.1);
    None
}

fn hosts(fields: &MapReader) -> Vec<AcmeHost> {
    let Some(list) = fields.get(&ACME.hosts) else { return Vec::new() };
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

fn emails(at: &NodeReader) -> Option<Vec<Box<str>>> {
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
    Some(match at.is_list() {
        true => at.items().filter_map(|item| email(&item)).collect(),
        false => email(at).into_iter().collect(),
    })
}

fn directory(at: &NodeReader, text: &str) -> Option<Box<str>> {
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

fn external_account(fields: &MapReader) -> Option<ExternalAccount> {
    let key_id = fields.read(&EXTERNAL_ACCOUNT.key_id);
    let hmac_key = fields.read(&EXTERNAL_ACCOUNT.hmac_key);
    Some(ExternalAccount { key_id: key_id?, hmac_key: hmac_key? })
}

fn hmac_key(at: &NodeReader, text: &str) -> Option<Box<str>> {
    let text = text.trim_end_matches('=');
    let is_key = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if !text.bytes().all(is_key) || text.len() % 4 == 1 {
        // The value is not shown, since it is a secret.
        at.report_advising("is not base64url", "copy the text as the authority shows it");
        return None;
    }
    Some(text.into())
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
