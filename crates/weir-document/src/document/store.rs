//! `store`: the source of resources if it is not the file.

use std::time::Duration;

use serde_json::{Value, json};
use weir_plugin::WrittenName;

use super::controller::{self, PULL, PullSettings};
use super::kubernetes::{self, KUBERNETES, KubernetesSettings};
use super::reference_text::literal_secret;
use crate::keys;
use crate::keys::kinds::{
    ByteSize, Form, Or, ParsedText, SubMap, Text, Whole, WrittenPath, any_text, form, section, size, text, whole,
    written,
};
use crate::keys::schema::Definitions;
use crate::keys::{KeyRule, MapKeys};
use crate::text::read::{MapReader, NodeReader, shortened};
use crate::text::tree::NodeKind;

/// Where resources are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    pub kind: StoreKind,
    /// The number of revisions in the history.
    pub history: u64,
    /// The most bytes of these revisions.
    pub history_bytes: u64,
    /// The zone of a node of a cluster, if it is known.
    pub zone: Option<Box<str>>,
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
    /// The same, from controllers that follow the cluster.
    Controller(PullSettings),
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

const DEFAULT_PREFIX: &str = "/apisix";
const ETCD_TIMEOUT_S: u32 = 5;
const DEFAULT_HISTORY: u32 = 1_000;
const DEFAULT_HISTORY_BYTES: u64 = 256 << 20;
/// A revision of less than this is never a reason to keep no other.
const LEAST_HISTORY_BYTES: u64 = 1 << 20;
/// The longest path of a file.
const MOST_PATH: usize = 4_096;

keys! {
    /// A store: a file of the node, a cluster of etcd, a cluster of Kubernetes, or controllers that follow one.
    pub(super) static STORE: StoreKeys = "store", rules &[
        KeyRule::AtMostOne("path", "etcd"), KeyRule::AtMostOne("path", "kubernetes"),
        KeyRule::AtMostOne("etcd", "kubernetes"), KeyRule::AtMostOne("history", "kubernetes"),
        KeyRule::AtMostOne("history_bytes", "kubernetes"), KeyRule::AtMostOne("path", "controller"),
        KeyRule::AtMostOne("etcd", "controller"), KeyRule::AtMostOne("kubernetes", "controller"),
        KeyRule::AtMostOne("history", "controller"), KeyRule::AtMostOne("history_bytes", "controller"),
    ];

    /// The file of an embedded store.
    path: WrittenPath = written(WrittenName::File), own(), absent("one in `data_dir`"), example("/var/lib/weir/store.redb");
    /// The number of revisions in the history.
    history: Or<Whole<u32>> = whole(1, 1_000_000).or(DEFAULT_HISTORY), own();
    /// The size of the history: a revision has each resource that it changes before and after the change. The oldest revisions are
    /// deleted first, the latest one never.
    history_bytes: Or<ByteSize> = size(LEAST_HISTORY_BYTES, u64::MAX).or(DEFAULT_HISTORY_BYTES), own();
    /// A cluster of etcd, which several nodes may share.
    etcd: SubMap<EtcdSettings> = section(&ETCD, read_etcd), own(), guide("clusters.md");
    /// A cluster of Kubernetes whose objects are the resources. They are changed there.
    kubernetes: SubMap<KubernetesSettings> = section(&KUBERNETES, kubernetes::read), own(), guide("kubernetes.md");
    /// Controllers (`weir controller`) that follow a cluster, so that this node needs no rights there.
    controller: SubMap<PullSettings> = section(&PULL, controller::read_pull), own(),
        guide("kubernetes.md#controllers-apart-from-nodes");
    /// The zone that this node is in, with `kubernetes` or `controller`: endpoints that EndpointSlices give to it by hints are used first.
    /// An empty text is none.
    zone: Text = any_text(), own(), absent("not known"), example("europe-west1-b"), guide("kubernetes.md#zones");
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
    password: ParsedText<Box<str>> = text(1, MOST_PATH).parsed(password), own(), secret(), example("c0ffee-and-cake");
    /// The longest time of a request.
    timeout: Or<Whole<u32>> = whole(1, 60).or(ETCD_TIMEOUT_S), own(), unit("s");
    /// TLS to the members, with PEM files. It is needed for `https` URLs.
    tls: SubMap<EtcdTlsFiles> = section(&ETCD_TLS, read_etcd_tls), own(), absent("no TLS");
}

fn password(at: &NodeReader, text: &str) -> Option<Box<str>> {
    literal_secret(at, text).map(Box::from)
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

pub(super) fn schema(definitions: &mut Definitions) -> Value {
    json!({ "oneOf": [{ "enum": ["embedded", "standalone"] }, { "$ref": definitions.reference(STORE.table()) }] })
}

/// A store in a file of the node.
pub(super) fn embedded(path: Option<Box<str>>) -> StoreSettings {
    of_kind(StoreKind::Embedded { path })
}

fn of_kind(kind: StoreKind) -> StoreSettings {
    StoreSettings { kind, history: DEFAULT_HISTORY.into(), history_bytes: DEFAULT_HISTORY_BYTES, zone: None }
}

/// A word, or a map.
pub(super) fn store(at: &NodeReader) -> Option<StoreSettings> {
    if let NodeKind::Text(_) = &at.node().kind {
        return Some(match at.choice(&[("embedded", true), ("standalone", false)])? {
            true => embedded(None),
            false => of_kind(StoreKind::Standalone),
        });
    }
    let fields = at.keys(&STORE)?;
    let path = fields.read(&STORE.path);
    let (history, history_bytes) = (fields.value(&STORE.history).into(), fields.value(&STORE.history_bytes));
    let kind = if fields.has(&STORE.etcd) {
        StoreKind::Etcd(fields.read(&STORE.etcd)?)
    } else if fields.has(&STORE.kubernetes) {
        StoreKind::Kubernetes(fields.read(&STORE.kubernetes)?)
    } else if fields.has(&STORE.controller) {
        StoreKind::Controller(fields.read(&STORE.controller)?)
    } else {
        StoreKind::Embedded { path }
    };
    let is_cluster = matches!(kind, StoreKind::Kubernetes(_) | StoreKind::Controller(_));
    if let Some(zone) = fields.get(&STORE.zone).filter(|_| !is_cluster) {
        zone.report_advising("has no effect without `kubernetes` or `controller`", "remove it");
    }
    let zone = fields.read(&STORE.zone).filter(|zone| !zone.is_empty());
    Some(StoreSettings { kind, history, history_bytes, zone })
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

#[cfg(test)]
mod tests {
    use crate::check_text;

    fn faults(text: &str) -> Vec<String> {
        check_text(text).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn resources_come_from_one_place() {
        let both = faults("admin: {}\nroutes: [{ id: a, uri: /a, plugins: {} }]\n");
        assert!(both[0].starts_with("text:2:1: routes: this file contains resources"), "{both:?}");
        assert_eq!(faults("store: { path: s.redb, history: 10, history_bytes: 64MiB }\nroutes: []\n"), [""; 0]);
        let few = faults("store: { path: s.redb, history_bytes: 10 }\nroutes: []\n");
        assert!(few[0].contains("history_bytes: 10 bytes are too few; the minimum is 1048576"), "{few:?}");
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
