//! Certificates: `ssls` for clients, and the `tls` of upstreams.

use std::collections::BTreeSet;

use weir_net::tls::Versions;

use super::data_encryption::{UNREADABLE, unreadable};
use super::resource::{self, Reference, ResourceOrigin};
use crate::text::read::{MapReader, NodeReader, shortened};
use crate::text::tree::TextPosition;

/// APISIX `ssl`.
#[derive(Clone, Debug)]
pub struct Ssl {
    pub origin: ResourceOrigin,
    pub id: Box<str>,
    /// APISIX `type: client`: a client certificate for upstreams, referred to by `tls.client_cert_id`.
    pub for_upstreams: bool,
    /// In lower case: `example.com`, `*.example.com` or `*`.
    pub names: Vec<ServerName>,
    /// Certificates with their keys; several for several key types.
    pub pairs: Vec<(Pem, Pem)>,
    pub clients: Option<ClientVerification>,
    /// APISIX `ssl_protocols`.
    pub versions: Versions,
    /// APISIX `status`.
    pub enabled: bool,
}

#[derive(Clone, Debug)]
pub struct ServerName {
    pub name: Box<str>,
    pub origin: ResourceOrigin,
}

/// APISIX `ssl.client`: the authorities that client certificates must be issued by.
#[derive(Clone, Debug)]
pub struct ClientVerification {
    pub authorities: Pem,
    pub depth: usize,
    /// APISIX `skip_mtls_uri_regex`: paths that need no certificate.
    pub except: Vec<(String, ResourceOrigin)>,
}

/// APISIX `upstream.tls`, and the verification of endpoints, which APISIX configures for the whole node only.
#[derive(Clone, Debug, Default)]
pub struct UpstreamTls {
    /// `None`: as the node is configured, which is yes unless `upstream_tls_verify: false`.
    pub verify: Option<bool>,
    /// The authorities that endpoints' certificates must be issued by; `None`: those of the node.
    pub authorities: Option<Box<Pem>>,
    pub identity: Option<Box<UpstreamIdentity>>,
}

/// The client certificate that is presented to an upstream.
#[derive(Clone, Debug)]
pub enum UpstreamIdentity {
    /// `client_cert` and `client_key`.
    Own(Pem, Pem),
    /// `client_cert_id`: an entry of `ssls` with `type: client`.
    Named(Reference),
}

/// Text in PEM, as written.
#[derive(Clone, Debug)]
pub struct Pem {
    pub origin: ResourceOrigin,
    pub source: PemSource,
}

/// The text itself, or the name of its source.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum PemSource {
    Here(Box<str>),
    /// A file, or `$env://NAME`; the store reads it into [`super::Document::files`].
    Elsewhere(Box<str>),
}

impl std::fmt::Debug for PemSource {
    /// Without the text, which may be a private key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PemSource::Here(_) => f.write_str("Here(..)"),
            PemSource::Elsewhere(name) => f.debug_tuple("Elsewhere").field(name).finish(),
        }
    }
}

/// The largest certificate chain or key, as in APISIX.
const MOST_PEM: usize = 64 * 1024;
const MOST_PATTERN: usize = 4096;
/// The longest certificate chain that `depth` allows.
const MOST_DEPTH: usize = 16;

pub(super) fn read(at: &NodeReader, index: usize) -> Option<Ssl> {
    const OWN: &[&str] = &[
        "type",
        "sni",
        "snis",
        "cert",
        "key",
        "certs",
        "keys",
        "client",
        "status",
        "ssl_protocols",
        "validity_start",
        "validity_end",
    ];
    let fields = at.fields(&[OWN, resource::COMMON].concat())?;
    resource::common(&fields);
    const TYPES: &[(&str, bool)] = &[("server", false), ("client", true)];
    let for_upstreams = fields.get("type").and_then(|at| at.choice(TYPES)).unwrap_or(false);
    let names = match for_upstreams {
        true => Vec::new(),
        false => names(&fields),
    };
    let client = fields.get("client");
    Some(Ssl {
        origin: ResourceOrigin::of(at),
        id: resource::id(&fields, index),
        for_upstreams,
        names,
        pairs: pairs(&fields),
        clients: client.as_ref().and_then(clients),
        versions: fields.get("ssl_protocols").and_then(|at| versions(&at)).unwrap_or(Versions::ALL),
        enabled: fields.get("status").and_then(|at| at.integer(0..=1)).unwrap_or(1) == 1,
    })
}

fn names(fields: &MapReader) -> Vec<ServerName> {
    if !fields.exactly_one("sni", "snis") {
        return Vec::new();
    }
    if let Some(at) = fields.get("sni") {
        return name(&at).into_iter().collect();
    }
    let Some(list) = fields.get("snis") else { return Vec::new() };
    if list.is_list() && list.items().next().is_none() {
        list.report_advising("is empty", "add a host name, or `*` for all other names");
    }
    list.items().filter_map(|item| name(&item)).collect()
}

fn name(at: &NodeReader) -> Option<ServerName> {
    let text = at.text_of(1..=253)?;
    let name = text.strip_prefix("*.").unwrap_or(text);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let is_name = !name.is_empty() && name.bytes().all(plain) && !name.starts_with('.') && !name.ends_with('.');
    if text != "*" && !is_name {
        let problem = format!("`{}` is not a server name", shortened(text));
        at.report_advising(problem, "write as `example.com`, `*.example.com`, or `*` for all others");
        return None;
    }
    if name.parse::<std::net::IpAddr>().is_ok() {
        at.report_advising("is an IP address, which clients do not send as a server name (SNI)", "use `*`");
        return None;
    }
    Some(ServerName { name: text.to_ascii_lowercase().into(), origin: ResourceOrigin::of(at) })
}

fn pairs(fields: &MapReader) -> Vec<(Pem, Pem)> {
    let mut pairs = Vec::new();
    let mut pair = |cert: Option<NodeReader>, key: Option<NodeReader>| {
        if let (Some(cert), Some(key)) = (cert.and_then(|at| pem(&at)), key.and_then(|at| pem(&at))) {
            pairs.push((cert, key));
        }
    };
    for key in ["cert", "key"] {
        if !fields.has(key) {
            fields.at().report_advising(format!("has no `{key}`"), "add PEM text, or the name of a PEM file");
        }
    }
    pair(fields.get("cert"), fields.get("key"));
    let (certs, keys) = (fields.get("certs"), fields.get("keys"));
    let count = |at: &Option<NodeReader>| at.as_ref().filter(|at| at.is_list()).map_or(0, |at| at.items().count());
    if count(&certs) != count(&keys)
        && let Some(at) = keys.as_ref().or(certs.as_ref())
    {
        at.report_advising(
            format!("there are {} `certs` and {} `keys`", count(&certs), count(&keys)),
            "each certificate needs its key, in the same order",
        );
        return pairs;
    }
    if let (Some(certs), Some(keys)) = (&certs, &keys) {
        certs.items().zip(keys.items()).for_each(|(cert, key)| pair(Some(cert), Some(key)));
    }
    pairs
}

pub(super) fn pem(at: &NodeReader) -> Option<Pem> {
    let text = at.text_of(1..=MOST_PEM)?;
    if text.starts_with("$secret://") {
        at.report_advising(
            "references to a secrets manager are not supported here yet by this version",
            "use a file or `$env://NAME`",
        );
        return None;
    }
    if text.starts_with(UNREADABLE) {
        let (problem, advice) = unreadable();
        at.report_advising(problem, advice);
        return None;
    }
    let source = match text.contains("-----BEGIN ") {
        true => PemSource::Here(text.into()),
        false if text.contains('\n') => {
            at.report_advising(
                "is neither PEM nor the name of a file",
                "PEM text has a line such as `-----BEGIN CERTIFICATE-----`",
            );
            return None;
        }
        false => PemSource::Elsewhere(text.into()),
    };
    Some(Pem { origin: ResourceOrigin::of(at), source })
}

fn clients(at: &NodeReader) -> Option<ClientVerification> {
    let fields = at.fields(&["ca", "depth", "skip_mtls_uri_regex"])?;
    let Some(ca) = fields.get("ca") else {
        at.report_advising("has no `ca`", "add the CA certificate that client certificates are verified with");
        return None;
    };
    let except = fields.get("skip_mtls_uri_regex");
    let except = except.iter().flat_map(|list| list.items());
    Some(ClientVerification {
        authorities: pem(&ca)?,
        depth: fields.get("depth").and_then(|at| at.integer(0..=MOST_DEPTH as u32)).map_or(1, |depth| depth as usize),
        except: except
            .filter_map(|item| Some((item.text_of(1..=MOST_PATTERN)?.to_owned(), ResourceOrigin::of(&item))))
            .collect(),
    })
}

fn versions(at: &NodeReader) -> Option<Versions> {
    let mut versions = Versions { tls12: false, tls13: false };
    let mut listed = BTreeSet::new();
    for item in at.items() {
        match item.choice(&[("TLSv1.1", 1), ("TLSv1.2", 2), ("TLSv1.3", 3)])? {
            1 => item.report_advising("this version is deprecated (RFC 8996) and not supported", "leave it out"),
            number => drop(listed.insert(number)),
        }
    }
    versions.tls12 = listed.contains(&2);
    versions.tls13 = listed.contains(&3);
    if listed.is_empty() {
        at.report_advising("contains no version that is supported", "write `[TLSv1.2, TLSv1.3]`");
        return None;
    }
    Some(versions)
}

pub(super) fn read_upstream(at: &NodeReader) -> Option<UpstreamTls> {
    let fields = at.fields(&["client_cert", "client_key", "client_cert_id", "verify", "ca"])?;
    let own = match (fields.get("client_cert"), fields.get("client_key")) {
        (Some(cert), Some(key)) => pem(&cert).zip(pem(&key)).map(|(cert, key)| UpstreamIdentity::Own(cert, key)),
        (None, None) => None,
        (cert, key) => {
            if let Some(at) = cert.or(key) {
                at.report_advising("`client_cert` and `client_key` belong together", "add the other one");
            }
            None
        }
    };
    fields.at_most_one("client_cert", "client_cert_id");
    let named = resource::reference(&fields, "client_cert_id").map(UpstreamIdentity::Named);
    Some(UpstreamTls {
        verify: fields.get("verify").and_then(|at| at.boolean()),
        authorities: fields.get("ca").and_then(|at| pem(&at)).map(Box::new),
        identity: own.or(named).map(Box::new),
    })
}

impl UpstreamTls {
    /// All PEM texts of the section, each of which may be in a file.
    pub fn pems(&self) -> impl Iterator<Item = &Pem> {
        let own = match self.identity.as_deref() {
            Some(UpstreamIdentity::Own(cert, key)) => vec![cert, key],
            _ => Vec::new(),
        };
        own.into_iter().chain(self.authorities.as_deref())
    }
}

impl Ssl {
    /// All PEM texts of the resource, each of which may be in a file.
    pub fn pems(&self) -> impl Iterator<Item = &Pem> {
        let pairs = self.pairs.iter().flat_map(|(cert, key)| [cert, key]);
        pairs.chain(self.clients.iter().map(|clients| &clients.authorities))
    }
}

impl Pem {
    /// The file or variable to read the text from; `None` if it is inline.
    pub fn elsewhere(&self) -> Option<&str> {
        match &self.source {
            PemSource::Here(_) => None,
            PemSource::Elsewhere(name) => Some(name),
        }
    }

    pub fn place(&self) -> TextPosition {
        self.origin.place
    }
}
