//! `admin` and `store`: the source of resources if it is not the file, and who may change them.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};

use super::admin_access::{self, AdminRole, AdminScope, AdminTokens, ROLES};
use super::kubernetes::{self, KubernetesSettings};
use crate::text::read::{MapReader, NodeReader, shortened};
use crate::text::tree::NodeKind;
use weir_plugin::WrittenName;

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
    /// Whether the API shows the resources of this file (`store: file`), which it cannot change.
    pub shows_file: bool,
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
    /// The objects of a Kubernetes cluster, translated. They are changed there.
    Kubernetes(KubernetesSettings),
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
const ETCD_TIMEOUT_S: i64 = 5;
const DEFAULT_HISTORY: u64 = 1_000;
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

pub(super) fn read(at: &NodeReader) -> Option<AdminSettings> {
    let fields = at.fields(&["listen", "keys", "tls", "hosts", "origins", "audit", "tokens", "console", "store"])?;
    let default = AdminAddress::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)));
    let listen = fields.get("listen").map_or(Some(default), |at| address(&at))?;
    let keys = fields.get("keys").map(|at| keys(&at)).unwrap_or_default();
    if let AdminAddress::Tcp(listen) = listen
        && keys.is_empty()
        && !fields.has("tokens")
        && !listen.ip().is_loopback()
    {
        at.report_advising(
            format!("has no key, and {listen} can be reached from other machines"),
            "add `keys: [{ name: ops, key: ..., role: admin }]`, or listen on 127.0.0.1 or on a Unix socket",
        );
    }
    if let (AdminAddress::Unix(_), Some(tls)) = (&listen, fields.get("tls")) {
        tls.report_advising("is not used on a Unix socket", "remove `tls`, or listen on an IP address");
    }
    let texts = |key: &str| -> Vec<Box<str>> {
        let list = fields.get(key).map(|list| list.distinct(|item| item.text_of(1..=256).map(str::to_lowercase)));
        list.unwrap_or_default().into_iter().map(Box::from).collect()
    };
    Some(AdminSettings {
        listen,
        keys,
        tls: fields.get("tls").and_then(|at| tls(&at)),
        hosts: texts("hosts"),
        origins: texts("origins"),
        tokens: fields.get("tokens").and_then(|at| admin_access::tokens(&at)),
        audit: fields.get("audit").and_then(|at| audit(&at)),
        console: fields.get("console").and_then(|at| at.boolean()).unwrap_or(true),
        shows_file: fields.get("store").and_then(|at| at.choice(&[("file", true)])).unwrap_or(false),
    })
}

fn audit(at: &NodeReader) -> Option<PathBuf> {
    let fields = at.fields(&["path"])?;
    let Some(path) = fields.get("path") else {
        at.report_advising("has no `path`", "add `path: logs/audit.log`");
        return None;
    };
    path.written_name(WrittenName::File).map(PathBuf::from)
}

/// The default is `embedded` if there is an Admin API, and no store otherwise.
pub(super) fn read_store(fields: &MapReader) -> Option<StoreSettings> {
    let embedded = |path| StoreSettings { kind: StoreKind::Embedded { path }, history: DEFAULT_HISTORY };
    if fields.get("admin").is_some_and(|admin| admin.node().entry("store").is_some()) {
        if let Some(at) = fields.get("store") {
            at.report_advising("is a second place for resources: `admin` has `store: file`", "remove one of the two");
        }
        return None;
    }
    let Some(at) = fields.get("store") else { return fields.has("admin").then(|| embedded(None)) };
    if let NodeKind::Text(_) = &at.node().kind {
        return match at.choice(&[("embedded", true), ("standalone", false)])? {
            true => Some(embedded(None)),
            false => {
                if !fields.has("admin") {
                    at.report_advising("is a store that the Admin API fills, and there is no Admin API", "add `admin`");
                }
                Some(StoreSettings { kind: StoreKind::Standalone, history: DEFAULT_HISTORY })
            }
        };
    }
    let own = at.fields(&["path", "history", "etcd", "kubernetes"])?;
    for (one, other) in [("path", "etcd"), ("path", "kubernetes"), ("etcd", "kubernetes"), ("history", "kubernetes")] {
        own.at_most_one(one, other);
    }
    let path = own.get("path").and_then(|at| at.written_name(WrittenName::File)).map(Box::from);
    let history = own.get("history").and_then(|at| at.integer(1..=1_000_000)).unwrap_or(DEFAULT_HISTORY as i64);
    let history = history as u64;
    Some(match (own.get("etcd"), own.get("kubernetes")) {
        (Some(etcd), _) => StoreSettings { kind: StoreKind::Etcd(read_etcd(&etcd)?), history },
        (None, Some(cluster)) => {
            StoreSettings { kind: StoreKind::Kubernetes(kubernetes::read(&cluster)?), history: DEFAULT_HISTORY }
        }
        (None, None) => StoreSettings { history, ..embedded(path) },
    })
}

fn read_etcd(at: &NodeReader) -> Option<EtcdSettings> {
    let fields = at.fields(&["hosts", "prefix", "user", "password", "timeout", "tls"])?;
    let text = |key: &str| fields.get(key).and_then(|at| at.text_of(1..=4096)).map(Box::<str>::from);
    let tls = fields.get("tls").map(|at| read_etcd_tls(&at));
    let hosts = fields.get("hosts").map(|list| list.distinct(|item| etcd_host(item, tls.is_some())));
    let hosts: Vec<Box<str>> = hosts.unwrap_or_default().into_iter().map(Box::from).collect();
    if hosts.is_empty() {
        at.report_advising("has no `hosts`", "write `hosts: [\"http://127.0.0.1:2379\"]`, with all members");
    }
    let prefix = text("prefix").unwrap_or_else(|| DEFAULT_PREFIX.into());
    if !prefix.starts_with('/') || prefix.len() < 2 || prefix.ends_with('/') {
        let told = format!("`{}` is not a key prefix", shortened(&prefix));
        at.report_advising(told, "write as `/apisix`, with a slash at the start and none at the end");
    }
    let user = match (text("user"), text("password")) {
        (Some(user), Some(password)) => Some((user, password)),
        (None, None) => None,
        _ => {
            at.report_advising("has only one of `user` and `password`", "write both, or neither");
            None
        }
    };
    let timeout = fields.get("timeout").and_then(|at| at.integer(1..=60)).unwrap_or(ETCD_TIMEOUT_S);
    Some(EtcdSettings { hosts, prefix, user, tls: tls.flatten(), timeout: Duration::from_secs(timeout as u64) })
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

fn read_etcd_tls(at: &NodeReader) -> Option<EtcdTlsFiles> {
    let fields = at.fields(&["ca", "cert", "key", "sni"])?;
    let text = |key: &str| fields.get(key).and_then(|at| at.text_of(1..=4096)).map(Box::<str>::from);
    if !fields.has("ca") {
        at.report_advising(
            "has no `ca`",
            "add the PEM file with the CA certificate that the members are verified with",
        );
    }
    let identity = text("cert").zip(text("key"));
    if identity.is_none() && (fields.has("cert") || fields.has("key")) {
        at.report_advising("has only one of `cert` and `key`", "write both, or neither");
    }
    Some(EtcdTlsFiles { authorities: text("ca"), identity, server_name: text("sni") })
}

fn address(at: &NodeReader) -> Option<AdminAddress> {
    let text = at.text()?;
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

fn keys(at: &NodeReader) -> Vec<AdminKey> {
    let mut names = HashSet::new();
    let read = |item: NodeReader| {
        let fields = item.fields(&["name", "key", "role", "scopes"])?;
        let (Some(name), Some(key)) = (fields.get("name"), fields.get("key")) else {
            item.report_advising("needs `name` and `key`", "write `{ name: ops, key: ..., role: admin }`");
            return None;
        };
        let text = name.text_of(1..=64)?;
        if !names.insert(text.to_owned()) {
            name.report(format!("`{}` is the name of two keys", shortened(text)));
        }
        let role = fields.get("role").map_or(Some(AdminRole::Admin), |at| at.choice(ROLES))?;
        let scopes = admin_access::scopes(&fields);
        Some(AdminKey { name: text.into(), hash: hash(&key)?, role, scopes })
    };
    at.items().collect::<Vec<_>>().into_iter().filter_map(read).collect()
}

fn hash(at: &NodeReader) -> Option<[u8; 32]> {
    let text = at.text()?;
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

fn tls(at: &NodeReader) -> Option<AdminTls> {
    let fields = at.fields(&["cert", "key", "ca"])?;
    let file = |key: &str| fields.get(key).and_then(|at| at.text_of(1..=4096)).map(Box::<str>::from);
    let (Some(cert), Some(key)) = (file("cert"), file("key")) else {
        at.report_advising("needs `cert` and `key`", "add a PEM file with the certificate, and one with its key");
        return None;
    };
    Some(AdminTls { cert, key, ca: file("ca") })
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
    fn the_api_shows_the_resources_of_its_file() {
        assert_eq!(faults("admin: { store: file }\nroutes: [{ id: a, uri: /a, plugins: {} }]\n"), [""; 0]);
        assert!(faults("admin: { store: etcd }\n")[0].contains("`etcd` is not an allowed value"));
        let both = faults("admin: { store: file }\nstore: embedded\n");
        assert!(both[0].contains("store: is a second place for resources"), "{both:?}");
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
