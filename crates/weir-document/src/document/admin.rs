//! `admin`: the Admin API, and who may use it.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Value, json};
use weir_plugin::WrittenName;

use super::admin_access::{self, AdminRole, AdminScope, AdminTokens, ROLES, SCOPES, TOKENS};
use super::admin_environments::{self, AdminEnvironment, ENVIRONMENT};
use super::admin_oidc::{self, AdminOidc, ConsoleAddress, OIDC};
use super::reference_text::literal_secret;
use crate::keys;
use crate::keys::kinds::{
    Custom, DistinctList, Flag, List, Or, ParsedText, SubMap, Text, Words, WrittenPath, any_text, custom, flag, list,
    section, set, text, words, written,
};
use crate::keys::schema::Definitions;
use crate::keys::{KeyRule, MapKeys};
use crate::text::read::{MapReader, NodeReader, shortened};
use crate::text::tree::NodeKind;

/// The Admin API of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminSettings {
    /// The address to listen on. Default: `127.0.0.1:9180`.
    pub listen: AdminAddress,
    /// May be empty only with `tokens` or `oidc`, on a loopback address, where the node generates a key, or on a Unix socket, which only
    /// its owner can open.
    pub keys: Vec<AdminKey>,
    pub tls: Option<AdminTls>,
    /// Host names that requests may have in `Host`, besides addresses and the names of this machine.
    pub hosts: Vec<Box<str>>,
    /// Origins of web pages that may read responses (CORS), as `https://console.example`.
    pub origins: Vec<Box<str>>,
    /// JSON Web Tokens that are accepted in place of keys.
    pub tokens: Option<AdminTokens>,
    /// The identity provider at which people log in to the console.
    pub oidc: Option<AdminOidc>,
    /// The file of the audit log.
    pub audit: Option<PathBuf>,
    /// Whether the address serves the console, and browsers may log in.
    pub console: bool,
    /// Whether the API shows the resources of this file (`store: file`), which it cannot change.
    pub shows_file: bool,
    /// Whether the API may write the file and those that it includes.
    pub draft: Option<DraftRight>,
    /// The directory with results of the lab that the console shows; a relative path starts at the directory of the configuration.
    pub lab: Option<PathBuf>,
    /// Other nodes whose resources the console compares with those of this one.
    pub environments: Vec<AdminEnvironment>,
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

const DEFAULT_PORT: u16 = 9180;
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
    /// The keys that requests may have, with their rights. Without keys, `tokens` and `oidc`, the node generates a key if it listens on a
    /// loopback address, and asks for none on a Unix socket.
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
    /// The identity provider at which people log in to the console.
    oidc: SubMap<AdminOidc> = section(&OIDC, admin_oidc::read), own(), absent("none"),
        guide("admin-api.md#log-in-at-an-identity-provider");
    /// Whether the address serves the console, and browsers may log in.
    console: Or<Flag> = flag().or(true), own();
    /// With `file`, the API shows the resources of this file, which it cannot change, in place of a store.
    store: Words<bool> = words(FILE), own(), absent("a store");
    /// Lets admins read the file, and those that it includes, as texts, and change them in a draft; with `write`, write them, too
    /// (`store: file` only). They are trusted as the owner of these files is.
    draft: Words<DraftRight> = words(DRAFTS), own(), only_if("store", &["file"]), absent("no draft"), guide("admin-api.md#the-draft");
    /// The directory with results of `weir bench run` that the console shows. Every role without `scopes` can read them.
    lab: WrittenPath = written(WrittenName::Directory), own(), absent("none"), example("bench-results"),
        guide("console.md#results-of-the-lab");
    /// Other nodes, such as that of production, whose resources the console compares with those of this node.
    environments: List<SubMap<AdminEnvironment>> = list(section(&ENVIRONMENT, admin_environments::read)), own(), absent("none"),
        example("[{ name: production, url: 'https://gateway.example:9180', key: '${{PRODUCTION_KEY}}' }]"),
        guide("console.md#other-environments");
}

/// What admins may do with the files that resources stand in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftRight {
    Read,
    Write,
}

const DRAFTS: &[(&str, DraftRight)] = &[("read", DraftRight::Read), ("write", DraftRight::Write)];
const FILE: &[(&str, bool)] = &[("file", true)];

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
    path: WrittenPath = written(WrittenName::File), own(), required("add `path: logs/audit.log`"), example("logs/audit.log");
}

pub(super) fn read(fields: &MapReader) -> Option<AdminSettings> {
    let at = fields.at();
    let default = AdminAddress::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)));
    let listen = if fields.has(&ADMIN.listen) { fields.read(&ADMIN.listen)? } else { default };
    let keys = fields.read(&ADMIN.keys).unwrap_or_default();
    if let AdminAddress::Tcp(listen) = listen
        && keys.is_empty()
        // A key that cannot be read is a fault of its own.
        && !fields.get(&ADMIN.keys).is_some_and(|keys| matches!(&keys.node().kind, NodeKind::List(keys) if !keys.is_empty()))
        && !fields.has(&ADMIN.tokens)
        && !fields.has(&ADMIN.oidc)
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
    if let (false, Some(draft)) = (fields.has(&ADMIN.store), fields.get(&ADMIN.draft)) {
        draft.report_advising("is for resources in files", "add `store: file`, or remove it");
    }
    let admin = AdminSettings {
        listen,
        keys,
        tls: fields.read(&ADMIN.tls),
        hosts: fields.read(&ADMIN.hosts).unwrap_or_default(),
        origins: fields.read(&ADMIN.origins).unwrap_or_default(),
        tokens: fields.read(&ADMIN.tokens),
        oidc: fields.read(&ADMIN.oidc),
        audit: fields.read(&ADMIN.audit),
        console: fields.value(&ADMIN.console),
        shows_file: fields.read(&ADMIN.store).unwrap_or(false),
        draft: fields.read(&ADMIN.draft),
        lab: fields.read(&ADMIN.lab).map(|path| path.into_string().into()),
        environments: fields.read(&ADMIN.environments).unwrap_or_default(),
    };
    if let Some(at) = fields.get(&ADMIN.environments) {
        admin_environments::check(&at, &admin.environments);
    }
    if let (Some(at), Some(oidc)) = (fields.get(&ADMIN.oidc), &admin.oidc) {
        let address = ConsoleAddress {
            is_socket: matches!(admin.listen, AdminAddress::Unix(_)),
            has_tls: admin.tls.is_some(),
            has_console: admin.console,
            hosts: &admin.hosts,
        };
        admin_oidc::check(&at, oidc, &address);
    }
    Some(admin)
}

fn audit(fields: &MapReader) -> Option<PathBuf> {
    fields.read(&AUDIT.path).map(|path| path.into_string().into())
}

#[expect(clippy::unnecessary_wraps, reason = "it stands for functions that report faults")]
fn lowered(_: &NodeReader, text: &str) -> Option<Box<str>> {
    Some(text.to_lowercase().into())
}

fn keys_schema(definitions: &mut Definitions) -> Value {
    json!({ "type": "array", "items": { "$ref": definitions.reference(ADMIN_KEY.table()) } })
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
            if let (Some(other), Some(at)) = (of_hash(&keys, &hash), fields.get(&ADMIN_KEY.key)) {
                at.report(format!("is the key of `{}`, too", shortened(&other.name)));
            }
            keys.push(AdminKey { name, hash, role, scopes });
        }
    }
    Some(keys)
}

fn of_hash<'a>(keys: &'a [AdminKey], hash: &[u8; 32]) -> Option<&'a AdminKey> {
    keys.iter().find(|key| key.hash == *hash)
}

fn hash(at: &NodeReader, text: &str) -> Option<[u8; 32]> {
    let text = literal_secret(at, text)?;
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
    fn a_key_that_is_refused_is_not_missing_as_well() {
        let short = faults("admin: { listen: '0.0.0.0:9180', keys: [{ name: a, key: short }] }\n");
        assert!(short.len() == 1 && short[0].contains("admin.keys[0].key: "), "{short:?}");
        let none = faults("admin: { listen: '0.0.0.0:9180', keys: [] }\n");
        assert!(none[0].contains("admin: has no key"), "{none:?}");
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
        let shared = "admin: { keys: [{ name: a, key: 0123456789abcdefg }, { name: b, key: 0123456789abcdefg, role: viewer }] }\n";
        assert!(faults(shared)[0].contains("is the key of `a`, too"), "{:?}", faults(shared));
    }
}
