//! Certificates: `ssls` for clients, and the `tls` of upstreams.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use weir_net::tls::{ClientDemand, SpiffeId, Versions};

use super::data_encryption::{UNREADABLE, unreadable};
use super::resource::{self, COMMON, IdOf, Reference, ResourceOrigin, id_of};
use super::spiffe::{PEERS, SVID, SvidChoice};
use crate::keys;
use crate::keys::KeyRule;
use crate::keys::kinds::{
    Anything, Custom, Flag, List, Or, ParsedText, SubMap, Whole, Words, anything, custom, flag, list, section, text,
    whole, words,
};
use crate::keys::schema::Definitions;
use crate::text::read::{KeyName, MapReader, NodeReader, shortened};
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
    /// Empty: for every listener that has no certificates of its own.
    pub listeners: Vec<Reference>,
    /// Certificates with their keys; several for several key types.
    pub pairs: Vec<(Pem, Pem)>,
    /// Not in APISIX: an X.509-SVID of the node in place of certificates.
    pub svid: Option<SvidChoice>,
    pub clients: Option<ClientVerification>,
    /// APISIX `ssl_protocols`.
    pub versions: Versions,
    /// APISIX `status`.
    pub enabled: bool,
    /// Not in APISIX: there is no certificate, and handshakes for the names are refused.
    pub refuses: bool,
}

#[derive(Clone, Debug)]
pub struct ServerName {
    pub name: Box<str>,
    pub origin: ResourceOrigin,
}

/// APISIX `ssl.client`: what client certificates must prove.
#[derive(Clone, Debug)]
pub struct ClientVerification {
    pub trust: ClientAuthorities,
    /// Not in APISIX: what is demanded on paths that are not in `except`.
    pub demand: ClientDemand,
    /// APISIX `skip_mtls_uri_regex`: paths that need no certificate.
    pub except: Vec<(String, ResourceOrigin)>,
}

/// Who vouches for clients.
#[derive(Clone, Debug)]
pub enum ClientAuthorities {
    /// These, with at most so many intermediate certificates.
    Own(Pem, usize),
    /// Not in APISIX: the trust domains of these workloads.
    Spiffe(Box<[SpiffeId]>, ResourceOrigin),
}

impl ClientAuthorities {
    pub fn origin(&self) -> &ResourceOrigin {
        match self {
            ClientAuthorities::Own(pem, _) => &pem.origin,
            ClientAuthorities::Spiffe(_, origin) => origin,
        }
    }
}

/// APISIX `upstream.tls`, and the verification of endpoints, which APISIX configures for the whole node only.
#[derive(Clone, Debug, Default)]
pub struct UpstreamTls {
    /// `None`: as the node is configured, which is yes unless `upstream_tls_verify: false`.
    pub verify: Option<bool>,
    /// The authorities that endpoints' certificates must be issued by; `None`: those of the node.
    pub authorities: Option<Box<Pem>>,
    pub identity: Option<Box<UpstreamIdentity>>,
    /// Not in APISIX: the server name that is sent and verified, in place of the host.
    pub server_name: Option<Box<str>>,
    /// Not in APISIX: names of which the certificates must have one, in place of the server name.
    pub alt_names: Box<[Box<str>]>,
    /// Not in APISIX: the workloads that endpoints may be, in place of authorities and the server name.
    pub peers: Box<[SpiffeId]>,
}

impl UpstreamTls {
    /// Whether it depends on what the Workload API gives.
    pub fn is_spiffe(&self) -> bool {
        !self.peers.is_empty() || matches!(self.identity.as_deref(), Some(UpstreamIdentity::Svid(_)))
    }
}

/// The client certificate that is presented to an upstream.
#[derive(Clone, Debug)]
pub enum UpstreamIdentity {
    /// `client_cert` and `client_key`.
    Own(Pem, Pem),
    /// `client_cert_id`: an entry of `ssls` with `type: client`.
    Named(Reference),
    /// Not in APISIX: an X.509-SVID of the node.
    Svid(SvidChoice),
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
    Elsewhere {
        name: Box<str>,
        by: NamedBy,
    },
}

/// Who names a file. A resource of a store gets only what it may read itself, also if the settings name the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NamedBy {
    Settings,
    Resource,
}

impl std::fmt::Debug for PemSource {
    /// Without the text, which may be a private key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PemSource::Here(_) => f.write_str("Here(..)"),
            PemSource::Elsewhere { name, by } => f.debug_tuple("Elsewhere").field(name).field(by).finish(),
        }
    }
}

/// The largest certificate chain or key, as in APISIX.
const MOST_PEM: usize = 64 * 1024;
const MOST_PATTERN: usize = 4096;
/// The longest certificate chain that `depth` allows.
const MOST_DEPTH: u32 = 16;

keys! {
    /// Certificates for clients, or one that the gateway shows to upstreams.
    pub(super) static SSL: SslKeys = "ssl", shared COMMON, rules &[
        KeyRule::AnyOf {
            keys: &["cert", "reject_handshake", "svid"],
            problem: "has no certificate",
            advice: "add `cert` and `key`: PEM text, or the names of PEM files",
        },
        KeyRule::AtMostOne("cert", "reject_handshake"),
        KeyRule::AtMostOne("svid", "reject_handshake"),
        KeyRule::AtMostOne("svid", "cert"),
        KeyRule::AtMostOne("svid", "certs"),
        KeyRule::Together("cert", "key"),
    ];

    /// For `server`, the certificate is shown to clients; for `client`, to upstreams that refer to it by `tls.client_cert_id`.
    r#type: Or<Words<SslType>> = words(TYPES).or(SslType::Server);
    /// The host name: `example.com`, `*.example.com` (one label), or `*` for all that no other entry has and for clients that send none.
    sni: ParsedText<ServerName> = NAME, example("www.example.com");
    /// Several host names.
    snis: List<ParsedText<ServerName>> = list(NAME).not_empty("add a host name, or `*` for all other names"),
        example("[example.com, \"*.example.com\"]");
    /// The listeners that show the certificate, by their ids. A listener that some entry names shows only certificates of such entries,
    /// and asks only for client certificates of these.
    listeners: List<IdOf> = list(id_of("listeners")).not_empty("leave it out for all listeners"), own(),
        absent("all that no entry names"), example("[internal]"), guide("listeners.md#certificates-of-one-listener");
    /// A certificate chain: PEM text, the name of a file, or `$env://NAME`. File names are relative to the configuration file.
    cert: Custom<Pem> = PEM, example("example.crt");
    /// The key of `cert`.
    key: Custom<Pem> = PEM, secret_pem(), example("example.key");
    /// There is no certificate: handshakes for the names are refused, and requests to them on connections for other names get 421.
    reject_handshake: Or<Flag> = flag().or(false), own(), guide("tls.md#names-that-are-refused");
    /// The certificate is an X.509-SVID that the Workload API (`spiffe`) gives the node: `default` for the first one, its SPIFFE ID, or
    /// its hint.
    svid: ParsedText<SvidChoice> = SVID, own(), absent("`cert` and `key`"), example("default"), guide("spiffe.md");
    /// Further certificates for the same names, for example with another kind of key.
    certs: List<Custom<Pem>> = list(PEM);
    /// The keys of `certs`, in the same order.
    keys: List<Custom<Pem>> = list(PEM), secret_pem();
    /// Clients must present a certificate.
    client: SubMap<ClientVerification> = section(&SSL_CLIENT, clients), guide("tls.md#from-clients");
    /// 0 disables the entry.
    status: Or<Whole<u32>> = whole(0, 1).or(1);
    /// The versions of TLS that are allowed.
    ssl_protocols: Custom<Versions> = custom("list: `TLSv1.2`, `TLSv1.3`", versions_schema, versions),
        absent("`[TLSv1.2, TLSv1.3]`"), example("[TLSv1.3]");
    /// When the certificate begins to be valid. The Admin API of APISIX writes it; it has no effect.
    validity_start: Anything = anything();
    /// When the certificate ends to be valid. The Admin API of APISIX writes it; it has no effect.
    validity_end: Anything = anything();
}

keys! {
    /// How certificates of clients are verified.
    pub(super) static SSL_CLIENT: SslClientKeys = "ssl_client", rules &[
        KeyRule::AnyOf {
            keys: &["ca", "spiffe_ids"],
            problem: "does not say which certificates of clients are valid",
            advice: "add `ca`, the CA certificate that client certificates are verified with, or `spiffe_ids`",
        },
        KeyRule::AtMostOne("ca", "spiffe_ids"),
    ];

    /// The CA certificates that must have issued those of clients: PEM text, the name of a file, or `$env://NAME`.
    ca: Custom<Pem> = PEM, absent("`spiffe_ids`"), example("ca.crt");
    /// The most intermediate certificates between that of a client and a CA certificate.
    depth: Or<Whole<u32>> = whole(0, MOST_DEPTH).or(1);
    /// The workloads that clients may be, by their SPIFFE IDs; a trust domain stands for all of its workloads. Their certificates are
    /// verified with the trust bundles of the Workload API (`spiffe`).
    spiffe_ids: List<ParsedText<SpiffeId>> = PEERS, own(), absent("`ca`"), example("[\"spiffe://example.org/shop\"]"), guide("spiffe.md");
    /// `required`: clients must present a valid certificate. `optional`: they may present none. `any`: they may also present one that
    /// is not valid, which is then taken for none.
    mode: Or<Words<ClientDemand>> = words(DEMANDS).or(ClientDemand::Valid), own();
    /// Regular expressions for paths that need no certificate.
    skip_mtls_uri_regex: List<ParsedText<(String, ResourceOrigin)>> = list(text(1, MOST_PATTERN).parsed(pattern)),
        example("[\"^/health$\"]");
}

/// APISIX `type` of an `ssl`.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum SslType {
    Server,
    Client,
}

const DEMANDS: &[(&str, ClientDemand)] =
    &[("required", ClientDemand::Valid), ("optional", ClientDemand::ValidOrNone), ("any", ClientDemand::Nothing)];
const TYPES: &[(&str, SslType)] = &[("server", SslType::Server), ("client", SslType::Client)];
const NAME: ParsedText<ServerName> = text(1, 253).pattern(r"^(\*|(\*\.)?[A-Za-z0-9_-][A-Za-z0-9._-]*)$").parsed(name);

pub(super) fn read(at: &NodeReader, index: usize) -> Option<Ssl> {
    let fields = at.keys(&SSL)?;
    resource::common(&fields);
    fields.read(&SSL.validity_start);
    fields.read(&SSL.validity_end);
    let for_upstreams = fields.value(&SSL.r#type) == SslType::Client;
    Some(Ssl {
        origin: ResourceOrigin::of(at),
        id: resource::id(&fields, index),
        for_upstreams,
        names: if for_upstreams { Vec::new() } else { names(&fields) },
        listeners: fields.read(&SSL.listeners).unwrap_or_default(),
        pairs: pairs(&fields),
        svid: svid(&fields, for_upstreams),
        clients: fields.read(&SSL.client),
        versions: fields.read(&SSL.ssl_protocols).unwrap_or(Versions::ALL),
        enabled: fields.value(&SSL.status) == 1,
        refuses: fields.value(&SSL.reject_handshake),
    })
}

/// `svid`, which upstreams have a key of their own for.
fn svid(fields: &MapReader, for_upstreams: bool) -> Option<SvidChoice> {
    let svid = fields.read(&SSL.svid);
    if for_upstreams && let Some(at) = fields.get(&SSL.svid) {
        at.report_advising(
            "is for clients, and the entry has `type: client`",
            "write `tls: { svid: … }` into the upstream",
        );
    }
    svid
}

fn names(fields: &MapReader) -> Vec<ServerName> {
    if !fields.exactly_one(SSL.sni.name(), SSL.snis.name()) {
        return Vec::new();
    }
    let one = fields.read(&SSL.sni).into_iter();
    one.chain(fields.read(&SSL.snis).unwrap_or_default()).collect()
}

fn name(at: &NodeReader, text: &str) -> Option<ServerName> {
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
    let mut pairs: Vec<(Pem, Pem)> = fields.read(&SSL.cert).zip(fields.read(&SSL.key)).into_iter().collect();
    let (certs, keys) = (fields.get(&SSL.certs), fields.get(&SSL.keys));
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
    // A pair with a fault is of no use, but no other pair may form from its half.
    if let (Some(certs), Some(keys)) = (&certs, &keys) {
        let further = certs.items().zip(keys.items()).map(|(cert, key)| (pem(&cert), pem(&key)));
        pairs.extend(further.filter_map(|(cert, key)| cert.zip(key)));
    }
    pairs
}

/// PEM text, or the name of its source.
pub(super) const PEM: Custom<Pem> = custom("PEM text, the name of a file, or `$env://NAME`", pem_schema, pem);

fn pem_schema(_: &mut Definitions) -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": MOST_PEM })
}

pub(super) fn pem(at: &NodeReader) -> Option<Pem> {
    read_pem(at, NamedBy::Resource)
}

pub(super) fn pem_of_settings(at: &NodeReader) -> Option<Pem> {
    read_pem(at, NamedBy::Settings)
}

fn read_pem(at: &NodeReader, by: NamedBy) -> Option<Pem> {
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
        false => PemSource::Elsewhere { name: text.into(), by },
    };
    Some(Pem { origin: ResourceOrigin::of(at), source })
}

fn clients(fields: &MapReader) -> Option<ClientVerification> {
    let except = fields.read(&SSL_CLIENT.skip_mtls_uri_regex).unwrap_or_default();
    let depth = fields.value(&SSL_CLIENT.depth) as usize;
    let demand = fields.value(&SSL_CLIENT.mode);
    let own = fields.read(&SSL_CLIENT.ca).map(|pem| ClientAuthorities::Own(pem, depth));
    let of_workloads = fields.get(&SSL_CLIENT.spiffe_ids).and_then(|at| {
        if let Some(depth) = fields.get(&SSL_CLIENT.depth) {
            depth.report_advising("has no effect with `spiffe_ids`", "remove one of the two");
        }
        Some(ClientAuthorities::Spiffe(fields.read(&SSL_CLIENT.spiffe_ids)?.into(), ResourceOrigin::of(&at)))
    });
    Some(ClientVerification { trust: own.or(of_workloads)?, demand, except })
}

fn pattern(at: &NodeReader, text: &str) -> Option<(String, ResourceOrigin)> {
    Some((text.to_owned(), ResourceOrigin::of(at)))
}

fn versions_schema(_: &mut Definitions) -> Value {
    json!({ "type": "array", "items": { "type": "string", "enum": ["TLSv1.2", "TLSv1.3"] }, "minItems": 1 })
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

keys! {
    /// TLS to the endpoints of an upstream.
    pub(super) static UPSTREAM_TLS: UpstreamTlsKeys = "upstream_tls", rules &[
        KeyRule::AtMostOne("client_cert", "client_cert_id"),
        KeyRule::AtMostOne("svid", "client_cert"),
        KeyRule::AtMostOne("svid", "client_cert_id"),
        KeyRule::AtMostOne("spiffe_ids", "ca"),
        KeyRule::AtMostOne("spiffe_ids", "subject_alt_names"),
    ];

    /// The client certificate for endpoints that ask for one: PEM text, the name of a file, or `$env://NAME`.
    client_cert: Custom<Pem> = PEM, example("client.crt");
    /// The key of `client_cert`.
    client_key: Custom<Pem> = PEM, secret_pem(), example("client.key");
    /// The entry of `ssls` with `type: client` that has the client certificate and its key.
    client_cert_id: IdOf = id_of("ssls");
    /// Whether the certificates of endpoints are verified. In APISIX the default is `false`.
    verify: Flag = flag(), absent("as `upstream_tls_verify` says");
    /// The CA certificates that verify the endpoints: PEM text, the name of a file, or `$env://NAME`.
    ca: Custom<Pem> = PEM, own(), absent("`ssl_trusted_certificate`, or those of the system"), example("ca.crt");
    /// The server name that endpoints get in the handshake (SNI), and that their certificates must have, whatever `Host` requests have.
    server_name: ParsedText<Box<str>> = text(1, 253).parsed(upstream_server_name), own(),
        absent("the node, or the `Host` that is sent"), example("internal.example");
    /// Names of which the certificates of endpoints must have one (SAN), in place of the server name: host names, or URIs.
    subject_alt_names: List<ParsedText<Box<str>>> = list(text(1, 2048).parsed(alt_name)).not_empty("leave it out to verify the server name"),
        own(), absent("the server name"), example("[\"spiffe://cluster.local/ns/shop/sa/orders\"]");
    /// The client certificate is an X.509-SVID that the Workload API (`spiffe`) gives the node: `default` for the first one, its SPIFFE
    /// ID, or its hint.
    svid: ParsedText<SvidChoice> = SVID, own(), absent("none"), example("default"), guide("spiffe.md");
    /// The workloads that endpoints may be, by their SPIFFE IDs; a trust domain stands for all of its workloads. Their certificates are
    /// verified with the trust bundles of the Workload API (`spiffe`), and no server name is verified.
    spiffe_ids: List<ParsedText<SpiffeId>> = PEERS, own(), absent("`ca` and the server name"),
        example("[\"spiffe://example.org/orders\"]"), guide("spiffe.md");
}

fn upstream_server_name(at: &NodeReader, text: &str) -> Option<Box<str>> {
    if text.contains(':') || weir_net::tls::server_name(text).is_none() {
        at.report_advising(
            format!("`{}` is not a server name", shortened(text)),
            "write as `internal.example`, without a port",
        );
        return None;
    }
    Some(text.to_ascii_lowercase().into())
}

/// A URI is compared as it stands.
fn alt_name(at: &NodeReader, text: &str) -> Option<Box<str>> {
    let is_uri = text.split_once(':').is_some_and(|(scheme, rest)| !scheme.is_empty() && rest.starts_with("//"));
    let is_host = || matches!(weir_net::tls::server_name(text), Some(weir_net::tls::ServerName::DnsName(_)));
    if !is_uri && !is_host() {
        at.report_advising(
            format!("`{}` is neither a host name nor a URI", shortened(text)),
            "write as `orders.internal` or `spiffe://cluster.local/ns/shop/sa/orders`",
        );
        return None;
    }
    Some(text.into())
}

pub(super) fn read_upstream(fields: &MapReader) -> Option<UpstreamTls> {
    let own = match (fields.get(&UPSTREAM_TLS.client_cert), fields.get(&UPSTREAM_TLS.client_key)) {
        (Some(_), Some(_)) => {
            let pair = fields.read(&UPSTREAM_TLS.client_cert).zip(fields.read(&UPSTREAM_TLS.client_key));
            pair.map(|(cert, key)| UpstreamIdentity::Own(cert, key))
        }
        (None, None) => None,
        (cert, key) => {
            if let Some(at) = cert.or(key) {
                at.report_advising("`client_cert` and `client_key` belong together", "add the other one");
            }
            None
        }
    };
    let named = fields.read(&UPSTREAM_TLS.client_cert_id).map(UpstreamIdentity::Named);
    let svid = fields.read(&UPSTREAM_TLS.svid).map(UpstreamIdentity::Svid);
    let verify = fields.read(&UPSTREAM_TLS.verify);
    let alt_names = fields.read(&UPSTREAM_TLS.subject_alt_names).unwrap_or_default();
    let needs_verification = [fields.get(&UPSTREAM_TLS.subject_alt_names), fields.get(&UPSTREAM_TLS.spiffe_ids)];
    for at in needs_verification.into_iter().flatten().filter(|_| verify == Some(false)) {
        at.report_advising("has no effect with `verify: false`", "remove one of the two");
    }
    Some(UpstreamTls {
        verify,
        server_name: fields.read(&UPSTREAM_TLS.server_name),
        alt_names: alt_names.into(),
        authorities: fields.read(&UPSTREAM_TLS.ca).map(Box::new),
        identity: own.or(named).or(svid).map(Box::new),
        peers: fields.read(&UPSTREAM_TLS.spiffe_ids).unwrap_or_default().into(),
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
        let of_clients = self.clients.iter().filter_map(|clients| match &clients.trust {
            ClientAuthorities::Own(pem, _) => Some(pem),
            ClientAuthorities::Spiffe(..) => None,
        });
        pairs.chain(of_clients)
    }
}

impl Pem {
    /// The file or variable to read the text from; `None` if it is inline.
    pub fn elsewhere(&self) -> Option<&str> {
        match &self.source {
            PemSource::Here(_) => None,
            PemSource::Elsewhere { name, by: _ } => Some(name),
        }
    }

    pub fn place(&self) -> TextPosition {
        self.origin.place
    }
}
