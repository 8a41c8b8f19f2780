//! `admin` and `store`: the source of resources if it is not the file, and who may change them.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};

use serde_json::{Value, json};

use super::admin_access::{self, AdminRole, AdminScope, AdminTokens, ROLES, SCOPES, TOKENS};
use super::settings::NODE;
use crate::keys::kinds::{
    Custom, DistinctList, Flag, Form, List, Or, ParsedText, SubMap, Text, Whole, Words, any_text, custom, flag, form,
    section, set, text, whole, words,
};
use crate::keys::schema::Definitions;
use crate::keys::{KeyRule, MapKeys, keys};
use crate::text::read::{MapReader, NodeReader, shortened};
use crate::text::tree::NodeKind;

/// The Admin API of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminSettings {
    /// The address to listen on. Default: `127.0.0.1:9180`.
    pub listen: AdminAddress,
    /// May be empty only with `tokens`, on a loopback address, where the node generates a key, or on a Unix socket, which only
    /// its owner can open.
    pub keys: Vec<AdminKey>,
    pub tls: Option<AdminTls>,
    /// Host names that requests may have in `Host`, besides addresses and the names of this machine.
    pub hosts: Vec<Box<str>>,
    /// Origins of web pages that may read responses (CORS), as `https://console.example`.
    pub origins: Vec<Box<str>>,
    /// JSON Web Tokens that are accepted in place of keys.
    pub tokens: Option<AdminTokens>,
    /// The file of the audit log.
    pub audit: Option<PathBuf>,
    /// Whether the address serves the console, and browsers may log in.
    pub console: bool,
}

/// Where the Admin API listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    Tcp(SocketAddr),
    /// A Unix socket that only the user of the process can connect to; a relative path starts at the directory of the
    /// configuration.
    Unix(PathBuf),
}

/// A key of the Admin API, with the rights that it gives.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminKey {
    pub name: Box<str>,
    /// SHA-256 of the key: the key itself is not kept.
    pub hash: [u8; 32],
    pub role: AdminRole,
    /// The resources that it gives access to; empty: all.
    pub scopes: Arc<[AdminScope]>,
}

impl std::fmt::Debug for AdminKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminKey").field("name", &self.name).field("role", &self.role).finish_non_exhaustive()
    }
}

/// PEM files. With `ca`, clients must present a certificate issued by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminTls {
    pub cert: Box<str>,
    pub key: Box<str>,
    pub ca: Option<Box<str>>,
}

/// Where resources are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    pub kind: StoreKind,
    /// The number of revisions in the history.
    pub history: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// A file; without a path, one in the data directory.
    Embedded {
        path: Option<Box<str>>,
    },
    /// Memory, filled by `PUT /apisix/admin/configs`.
    Standalone,
    Etcd(EtcdSettings),
}

/// A cluster of etcd.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdSettings {
    /// URLs such as `http://127.0.0.1:2379`.
    pub hosts: Vec<Box<str>>,
    /// The prefix of the keys of all resources.
    pub prefix: Box<str>,
    /// A name and a password.
    pub user: Option<(Box<str>, Box<str>)>,
    pub tls: Option<EtcdTlsFiles>,
    /// The time limit of a request.
    pub timeout: Duration,
}

impl std::fmt::Debug for EtcdSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdSettings").field("hosts", &self.hosts).field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// PEM files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdTlsFiles {
    pub authorities: Option<Box<str>>,
    /// The client certificate of this node, and its key.
    pub identity: Option<(Box<str>, Box<str>)>,
    /// The name that the members' certificates must have, if it is not the host in `hosts`.
    pub server_name: Option<Box<str>>,
}

const DEFAULT_PORT: u16 = 9180;
const DEFAULT_PREFIX: &str = "/apisix";
const ETCD_TIMEOUT_S: u32 = 5;
const DEFAULT_HISTORY: u32 = 1_000;
/// In characters; shorter keys could be guessed.
const LEAST_KEY: usize = 16;
/// Default keys of Apache APISIX's documentation and packages, which are publicly known.
const KNOWN_KEYS: [&str; 2] = ["edd1c9f034335f136f87ad84b625c8f1", "4054f7cf07e344346cd3f287985e76a2"];
/// The prefix of the address of a Unix socket.
const UNIX: &str = "unix:";
/// In bytes. The kernel allows 107; the socket is created under a longer, temporary name beside it.
const MOST_SOCKET_PATH: usize = 100;
/// The prefix of a key given by its SHA-256 hash.
const HASHED: &str = "sha256:";

/// The longest path of a file.
const MOST_PATH: usize = 4_096;

keys! {
    /// The Admin API.
    pub(super) static ADMIN: AdminKeys = "admin";

    /// The address to listen on: an IP address with a port, or `unix:PATH` for a Unix socket that only the user of the process can
    /// connect to.
    listen: ParsedText<AdminAddress> = any_text().pattern(ADDRESS).parsed(address), own(), absent("`127.0.0.1:9180`"),
        example("unix:/run/weir/admin.sock");
    /// The keys that requests may have, with their rights. Without keys and `tokens`, the node generates a key if it listens on a loopback
    /// address, and asks for none on a Unix socket.
    keys: Custom<Vec<AdminKey>> = custom("list: maps", keys_schema, keys).with(&ADMIN_KEY), own(), guide("admin-api.md#permissions"),
        example("[{ name: ops, key: 2f1c6f0d5e8b4a97c3d2e1f0a9b8c7d6, role: admin }]");
    /// TLS for connections to the API.
    tls: SubMap<AdminTls> = section(&ADMIN_TLS, tls), own(), absent("no TLS");
    /// Host names that requests may have in `Host`, besides addresses and the names of this machine.
    hosts: DistinctList<ParsedText<Box<str>>> = NAMES, own(), absent("none"), example("[admin.example.com]"),
        guide("admin-api.md#names-and-origins");
    /// Origins of web pages that may read responses (CORS).
    origins: DistinctList<ParsedText<Box<str>>> = NAMES, own(), absent("none"), example("[\"https://console.example\"]"),
        guide("admin-api.md#names-and-origins");
    /// The audit log.
    audit: SubMap<PathBuf> = section(&AUDIT, audit), own(), absent("none");
    /// JSON Web Tokens of an identity provider, accepted in place of keys.
    tokens: SubMap<AdminTokens> = section(&TOKENS, admin_access::tokens), own(), absent("none"),
        guide("admin-api.md#tokens-of-an-identity-provider");
    /// Whether the address serves the console, and browsers may log in.
    console: Or<Flag> = flag().or(true), own();
}

const ADDRESS: &str = r"^(([0-9.]+|\[[0-9a-fA-F:.%]+\]):[0-9]{1,5}|unix:.+)$";
const NAMES: DistinctList<ParsedText<Box<str>>> = set(text(1, 256).parsed(lowered));

keys! {
    /// A key of the Admin API, with the rights that it gives.
    static ADMIN_KEY: AdminKeyKeys = "admin_key",
        rules &[KeyRule::All {
            keys: &["name", "key"],
            problem: "needs `name` and `key`",
            advice: "write `{ name: ops, key: ..., role: admin }`",
        }];

    /// A name, which the audit log has.
    name: Text = text(1, 64), own(), example("ops");
    /// The key: at least 16 characters, or `sha256:` with its SHA-256 hash in hexadecimal digits.
    key: ParsedText<[u8; 32]> = any_text().pattern("^(sha256:[0-9a-fA-F]{64}|.{16,})$").parsed(hash), own(), secret(),
        example("2f1c6f0d5e8b4a97c3d2e1f0a9b8c7d6");
    /// What it may do: read with secrets masked (`viewer`), read and write resources (`editor`), or everything (`admin`).
    role: Or<Words<AdminRole>> = words(ROLES).or(AdminRole::Admin), own();
    /// The resources that it gives access to.
    scopes: List<SubMap<AdminScope>> = SCOPES, own(), absent("all"), guide("admin-api.md#some-resources-only");
}

keys! {
    /// TLS of the Admin API, with PEM files.
    static ADMIN_TLS: AdminTlsKeys = "admin_tls",
        rules &[KeyRule::All {
            keys: &["cert", "key"],
            problem: "needs `cert` and `key`",
            advice: "add a PEM file with the certificate, and one with its key",
        }];

    /// The file with the certificate.
    cert: Text = text(1, MOST_PATH), own(), example("admin.crt");
    /// The file with its key.
    key: Text = text(1, MOST_PATH), own(), example("admin.key");
    /// The file with the CA certificate that certificates of clients must be issued by. Without it, clients need none.
    ca: Text = text(1, MOST_PATH), own(), example("clients-ca.crt");
}

keys! {
    /// The audit log: one line for each change of a resource, and for each refused request.
    static AUDIT: AuditKeys = "audit";

    /// The path of the file.
    path: Text = text(1, MOST_PATH), own(), required("add `path: logs/audit.log`"), example("logs/audit.log");
}

pub(super) fn read(fields: &MapReader) -> Option<AdminSettings> {
    let at = fields.at();
    let default = AdminAddress::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)));
    let listen = if fields.has(&ADMIN.listen) { fields.read(&ADMIN.listen)? } else { default };
    let keys = fields.read(&ADMIN.keys).unwrap_or_default();
    if let AdminAddress::Tcp(listen) = listen
        && keys.is_empty()
        && !fields.has(&ADMIN.tokens)
        && !listen.ip().is_loopback()
    {
        at.report_advising(
            format!("has no key, and {listen} can be reached from other machines"),
            "add `keys: [{ name: ops, key: ..., role: admin }]`, or listen on 127.0.0.1 or on a Unix socket",
        );
    }
    if let (AdminAddress::Unix(_), Some(tls)) = (&listen, fields.get(&ADMIN.tls)) {
        tls.report_advising("is not used on a Unix socket", "remove `tls`, or listen on an IP address");
    }
    Some(AdminSettings {
        listen,
        keys,
        tls: fields.read(&ADMIN.tls),
        hosts: fields.read(&ADMIN.hosts).unwrap_or_default(),
        origins: fields.read(&ADMIN.origins).unwrap_or_default(),
        tokens: fields.read(&ADMIN.tokens),
        audit: fields.read(&ADMIN.audit),
        console: fields.value(&ADMIN.console),
    })
}

fn audit(fields: &MapReader) -> Option<PathBuf> {
    fields.read(&AUDIT.path).map(|path| path.into_string().into())
}

#[expect(clippy::unnecessary_wraps, reason = "it stands for functions that report faults")]
fn lowered(_: &NodeReader, text: &str) -> Option<Box<str>> {
    Some(text.to_lowercase().into())
}

keys! {
    /// A store: a file of the node, or a cluster of etcd.
    pub(super) static STORE: StoreKeys = "store", rules &[KeyRule::AtMostOne("path", "etcd")];

    /// The file of an embedded store.
    path: Text = text(1, MOST_PATH), own(), absent("one in `data_dir`"), example("/var/lib/weir/store.redb");
    /// The number of revisions in the history.
    history: Or<Whole<u32>> = whole(1, 1_000_000).or(DEFAULT_HISTORY), own();
    /// A cluster of etcd, which several nodes may share.
    etcd: SubMap<EtcdSettings> = section(&ETCD, read_etcd), own(), guide("clusters.md");
}

keys! {
    /// A cluster of etcd that keeps the resources.
    static ETCD: EtcdKeys = "etcd", rules &[KeyRule::Together("user", "password")];

    /// The URLs of all members.
    hosts: Form = form("list: URL", hosts_schema), own(), required(ADD_MEMBERS), example("[\"http://127.0.0.1:2379\"]");
    /// The prefix of the keys of all resources.
    prefix: ParsedText<Box<str>> = text(1, MOST_PATH).pattern("^/.*[^/]$").parsed(key_prefix), own(), absent("`/apisix`"),
        example("/apisix");
    /// The user.
    user: Text = text(1, MOST_PATH), own(), absent("none"), example("weir");
    /// The password of the user.
    password: Text = text(1, MOST_PATH), own(), secret(), example("c0ffee-and-cake");
    /// The longest time of a request.
    timeout: Or<Whole<u32>> = whole(1, 60).or(ETCD_TIMEOUT_S), own(), unit("s");
    /// TLS to the members, with PEM files. It is needed for `https` URLs.
    tls: SubMap<EtcdTlsFiles> = section(&ETCD_TLS, read_etcd_tls), own(), absent("no TLS");
}

const ADD_MEMBERS: &str = "write `hosts: [\"http://127.0.0.1:2379\"]`, with all members";

keys! {
    /// TLS to the members of a cluster of etcd, with PEM files.
    static ETCD_TLS: EtcdTlsKeys = "etcd_tls", rules &[KeyRule::Together("cert", "key")];

    /// The file with the CA certificate that the members are verified with.
    ca: Text = text(1, MOST_PATH), own(), required("add the PEM file with the CA certificate that the members are verified with"),
        example("etcd-ca.crt");
    /// The file with the client certificate of this node.
    cert: Text = text(1, MOST_PATH), own(), absent("none"), example("node.crt");
    /// The file with the key of this certificate.
    key: Text = text(1, MOST_PATH), own(), absent("none"), example("node.key");
    /// The name that the certificates of the members must have.
    sni: Text = text(1, MOST_PATH), own(), absent("the host in `hosts`"), example("etcd.internal");
}

fn hosts_schema(_: &mut Definitions) -> Value {
    json!({ "type": "array", "minItems": 1, "items": { "type": "string", "pattern": "^https?://" } })
}

fn keys_schema(definitions: &mut Definitions) -> Value {
    json!({ "type": "array", "items": { "$ref": definitions.reference(ADMIN_KEY.table()) } })
}

pub(super) fn store_schema(definitions: &mut Definitions) -> Value {
    json!({ "oneOf": [{ "enum": ["embedded", "standalone"] }, { "$ref": definitions.reference(STORE.table()) }] })
}

/// The default is `embedded` if there is an Admin API, and no store otherwise.
pub(super) fn read_store(fields: &MapReader) -> Option<StoreSettings> {
    let has_api = fields.has(&NODE.admin);
    let Some(at) = fields.get(&NODE.store) else { return has_api.then(|| embedded(None)) };
    let store = fields.read(&NODE.store)?;
    if store.kind == StoreKind::Standalone && !has_api {
        at.report_advising("is a store that the Admin API fills, and there is no Admin API", "add `admin`");
    }
    Some(store)
}

fn embedded(path: Option<Box<str>>) -> StoreSettings {
    StoreSettings { kind: StoreKind::Embedded { path }, history: DEFAULT_HISTORY.into() }
}

/// A word, or a map.
pub(super) fn store(at: &NodeReader) -> Option<StoreSettings> {
    if let NodeKind::Text(_) = &at.node().kind {
        return Some(match at.choice(&[("embedded", true), ("standalone", false)])? {
            true => embedded(None),
            false => StoreSettings { kind: StoreKind::Standalone, history: DEFAULT_HISTORY.into() },
        });
    }
    let fields = at.keys(&STORE)?;
    let path = fields.read(&STORE.path);
    let history = fields.value(&STORE.history).into();
    Some(match fields.has(&STORE.etcd) {
        true => StoreSettings { kind: StoreKind::Etcd(fields.read(&STORE.etcd)?), history },
        false => StoreSettings { history, ..embedded(path) },
    })
}

fn read_etcd(fields: &MapReader) -> Option<EtcdSettings> {
    let tls = fields.read(&ETCD.tls);
    let has_tls = fields.has(&ETCD.tls);
    let hosts = fields.get(&ETCD.hosts).map(|list| list.distinct(|item| etcd_host(item, has_tls)));
    let hosts: Vec<Box<str>> = hosts.unwrap_or_default().into_iter().map(Box::from).collect();
    Some(EtcdSettings {
        hosts,
        prefix: fields.read(&ETCD.prefix).unwrap_or_else(|| DEFAULT_PREFIX.into()),
        user: fields.read(&ETCD.user).zip(fields.read(&ETCD.password)),
        tls,
        timeout: Duration::from_secs(fields.value(&ETCD.timeout).into()),
    })
}

fn key_prefix(at: &NodeReader, text: &str) -> Option<Box<str>> {
    if !text.starts_with('/') || text.len() < 2 || text.ends_with('/') {
        let told = format!("`{}` is not a key prefix", shortened(text));
        at.report_advising(told, "write as `/apisix`, with a slash at the start and none at the end");
        return None;
    }
    Some(text.into())
}

fn etcd_host(at: &NodeReader, has_tls: bool) -> Option<String> {
    let text = at.text_of(1..=1024)?;
    let is_plain = text.starts_with("http://");
    if !is_plain && !text.starts_with("https://") {
        let told = format!("`{}` is not the URL of an etcd member", shortened(text));
        at.report_advising(told, "write as `http://127.0.0.1:2379` or `https://etcd-1.example:2379`");
    } else if is_plain == has_tls {
        at.report_advising(
            "needs `tls` with `https://`, and no `tls` with `http://`",
            "add `tls: { ca: etcd-ca.crt }` for `https://`, or leave `tls` out for `http://`",
        );
    }
    Some(text.to_owned())
}

fn read_etcd_tls(fields: &MapReader) -> Option<EtcdTlsFiles> {
    Some(EtcdTlsFiles {
        authorities: fields.read(&ETCD_TLS.ca),
        identity: fields.read(&ETCD_TLS.cert).zip(fields.read(&ETCD_TLS.key)),
        server_name: fields.read(&ETCD_TLS.sni),
    })
}

fn address(at: &NodeReader, text: &str) -> Option<AdminAddress> {
    if let Some(path) = text.strip_prefix(UNIX) {
        if path.is_empty() || path.len() > MOST_SOCKET_PATH || path.contains('\0') {
            let problem =
                format!("the path of the Unix socket has {} bytes; 1 to {MOST_SOCKET_PATH} are allowed", path.len());
            at.report_advising(problem, "write as `unix:/run/weir/admin.sock`");
            return None;
        }
        return Some(AdminAddress::Unix(path.into()));
    }
    let address = text.parse().ok().map(AdminAddress::Tcp);
    if address.is_none() {
        let problem = format!("`{}` is not an IP address with a port", shortened(text));
        at.report_advising(
            problem,
            "write as `127.0.0.1:9180`, `0.0.0.0:9180` if other machines may connect, or `unix:/run/weir/admin.sock`",
        );
    }
    address
}

fn keys(at: &NodeReader) -> Option<Vec<AdminKey>> {
    let mut names = HashSet::new();
    let mut keys = Vec::new();
    for item in at.items() {
        let Some(fields) = item.keys(&ADMIN_KEY) else { continue };
        let name = fields.read(&ADMIN_KEY.name);
        if let Some(name) = &name
            && !names.insert(name.clone())
            && let Some(at) = fields.get(&ADMIN_KEY.name)
        {
            at.report(format!("`{}` is the name of two keys", shortened(name)));
        }
        let role = fields.value(&ADMIN_KEY.role);
        let scopes = admin_access::scopes(&fields, &ADMIN_KEY.scopes);
        if let (Some(name), Some(hash)) = (name, fields.read(&ADMIN_KEY.key)) {
            keys.push(AdminKey { name, hash, role, scopes });
        }
    }
    Some(keys)
}

fn hash(at: &NodeReader, text: &str) -> Option<[u8; 32]> {
    if let Some(digits) = text.strip_prefix(HASHED) {
        let hash = hex(digits);
        if hash.is_none() {
            at.report_advising(
                "is not a SHA-256 hash",
                "write `sha256:` and 64 hexadecimal digits, as `sha256sum` prints them",
            );
        }
        return hash;
    }
    if KNOWN_KEYS.contains(&text) {
        at.report_advising("is a key that is publicly known", "generate a key: `openssl rand -hex 24`");
        return None;
    }
    if text.len() < LEAST_KEY {
        let problem = format!("is shorter than {LEAST_KEY} characters and could be guessed");
        at.report_advising(problem, "generate a key: `openssl rand -hex 24`");
        return None;
    }
    digest(&SHA256, text.as_bytes()).as_ref().try_into().ok()
}

fn hex(digits: &str) -> Option<[u8; 32]> {
    let digits = digits.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(hash)
}

fn tls(fields: &MapReader) -> Option<AdminTls> {
    let [cert, key, ca] = [&ADMIN_TLS.cert, &ADMIN_TLS.key, &ADMIN_TLS.ca].map(|key| fields.read(key));
    Some(AdminTls { cert: cert?, key: key?, ca })
}

#[cfg(test)]
mod tests {
    use crate::check_text;

    fn faults(text: &str) -> Vec<String> {
        check_text(text).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_address_that_others_reach_needs_a_key() {
        assert_eq!(faults("admin: {}\n"), [""; 0]);
        assert_eq!(faults("admin: { listen: '0.0.0.0:9180', keys: [{ name: a, key: 0123456789abcdefg }] }\n"), [""; 0]);
        let open = faults("admin: { listen: '0.0.0.0:9180' }\n");
        assert_eq!(faults("admin: { audit: { path: logs/audit.log } }\n"), [""; 0]);
        assert!(faults("admin: { audit: {} }\n")[0].contains("admin.audit: has no `path`"));
        assert!(open[0].starts_with("text:1:8: admin: has no key, and 0.0.0.0:9180 can be reached"), "{open:?}");
    }

    #[test]
    fn a_unix_socket_needs_neither_key_nor_tls() {
        assert_eq!(faults("admin: { listen: 'unix:/run/weir/admin.sock' }\n"), [""; 0]);
        let none = faults("admin: { listen: 'unix:' }\n");
        assert!(none[0].contains("admin.listen: the path of the Unix socket has 0 bytes"), "{none:?}");
        let long = faults(&format!("admin: {{ listen: 'unix:/{}' }}\n", "a".repeat(100)));
        assert!(long[0].contains("has 101 bytes; 1 to 100 are allowed"), "{long:?}");
        let tls = faults("admin: { listen: 'unix:/a', tls: { cert: a.crt, key: a.key } }\n");
        assert!(tls[0].contains("admin.tls: is not used on a Unix socket"), "{tls:?}");
    }

    #[test]
    fn keys_that_can_be_guessed_are_refused() {
        let of = |key: &str| faults(&format!("admin: {{ keys: [{{ name: a, key: '{key}' }}] }}\n"));
        assert!(of("short")[0].contains("shorter than 16"));
        assert!(of("edd1c9f034335f136f87ad84b625c8f1")[0].contains("publicly known"));
        assert!(of("sha256:12")[0].contains("is not a SHA-256 hash"));
        assert_eq!(of(&format!("sha256:{}", "0a".repeat(32))), [""; 0]);
        let twice = "admin: { keys: [{ name: a, key: 0123456789abcdefg }, { name: a, key: 0123456789abcdefh }] }\n";
        assert!(faults(twice)[0].contains("`a` is the name of two keys"));
    }

    #[test]
    fn resources_come_from_one_place() {
        let both = faults("admin: {}\nroutes: [{ id: a, uri: /a, plugins: {} }]\n");
        assert!(both[0].starts_with("text:2:1: routes: this file contains resources"), "{both:?}");
        assert_eq!(faults("store: { path: s.redb, history: 10 }\nroutes: []\n"), [""; 0]);
        assert!(
            faults("store: standalone\n")[0].contains("is a store that the Admin API fills, and there is no Admin API")
        );
        assert!(faults("store: etcd\n")[0].contains("`etcd` is not an allowed value"));
    }

    #[test]
    fn etcd_is_named_by_its_members() {
        let of = |etcd: &str| faults(&format!("store: {{ etcd: {etcd} }}\n"));
        assert_eq!(of("{ hosts: ['http://127.0.0.1:2379'], prefix: /gateways, user: a, password: b }"), [""; 0]);
        assert_eq!(of("{ hosts: ['https://etcd:2379'], tls: { ca: ca.crt, cert: a.crt, key: a.key } }"), [""; 0]);
        assert!(of("{}")[0].contains("has no `hosts`"));
        assert!(of("{ hosts: ['127.0.0.1:2379'] }")[0].contains("is not the URL of an etcd member"));
        assert!(of("{ hosts: ['https://etcd:2379'] }")[0].contains("needs `tls` with `https://`"));
        assert!(of("{ hosts: ['http://a:1'], prefix: apisix }")[0].contains("is not a key prefix"));
        assert!(of("{ hosts: ['http://a:1'], user: x }")[0].contains("only one of `user` and `password`"));
    }
}
