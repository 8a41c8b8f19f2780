//! Controllers: where a node pulls its resources from (`store.controller`), and how `weir controller` serves them (`controller`).

use std::fmt;
use std::net::SocketAddr;

use serde_json::{Value, json};
use weir_client::ServiceUrl;

use super::kubernetes::{self, KUBERNETES, KubernetesSettings};
use super::listen::{self, ListenAddress};
use crate::keys;
use crate::keys::KeyRule;
use crate::keys::kinds::{Custom, Form, SubMap, Text, custom, form, section, text};
use crate::keys::schema::Definitions;
use crate::text::read::{MapReader, NodeReader, shortened};

/// The controllers that a node pulls its resources from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullSettings {
    /// URLs such as `https://weir-controller:9443`.
    pub hosts: Vec<Box<str>>,
    pub tls: MutualTlsFiles,
    /// The name that the controllers' certificates must have, if it is not the host in `hosts`.
    pub server_name: Option<Box<str>>,
}

/// What `weir controller` follows, and where it serves the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedClusterSettings {
    pub kubernetes: KubernetesSettings,
    pub listen: SocketAddr,
    pub tls: MutualTlsFiles,
    pub node_names: NodeNames,
}

/// The names of nodes in their certificates, some with a `*` that stands for any characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNames(Vec<Box<str>>);

impl NodeNames {
    /// Whether a certificate that is issued to this name is that of a node.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| match pattern.split_once('*') {
            Some((start, end)) => name.strip_prefix(start).is_some_and(|rest| rest.ends_with(end)),
            None => name == &**pattern,
        })
    }
}

impl Default for NodeNames {
    fn default() -> NodeNames {
        NodeNames(vec!["weir-node".into()])
    }
}

/// Separated by commas.
impl fmt::Display for NodeNames {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0.join(", "))
    }
}

/// PEM files of one end of connections between nodes and controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MutualTlsFiles {
    /// The certificate of this end.
    pub cert: Box<str>,
    pub key: Box<str>,
    /// The authorities that the certificate of the other end is verified with.
    pub authorities: Box<str>,
}

/// The most controllers of a node.
const MOST_HOSTS: usize = 16;
/// The longest path of a file, and the longest name.
const MOST_PATH: usize = 4_096;
/// The most names of nodes, and the longest one: a URI.
const MOST_NODE_NAMES: usize = 64;
const LONGEST_NODE_NAME: usize = 2_048;
const DEFAULT_LISTEN: ListenAddress = ListenAddress::Everywhere(9_443);

keys! {
    /// Controllers (`weir controller`) that a node pulls its resources from. They are changed in the cluster that these follow.
    pub(super) static PULL: PullKeys = "store_controller", rules &[];

    /// The URLs of the controllers. The next one is tried when one fails.
    hosts: Form = form("list: URL", hosts_schema), own(), required("write `hosts: [\"https://weir-controller:9443\"]`"),
        example("[\"https://weir-controller:9443\"]");
    /// The certificate of this node, and the authority of the controllers.
    tls: SubMap<MutualTlsFiles> = section(&MUTUAL_TLS, read_tls), own(), required(ADD_TLS);
    /// The name that the certificates of the controllers must have.
    sni: Text = text(1, MOST_PATH), own(), absent("the host in `hosts`"), example("weir-controller.weir-system.svc");
}

keys! {
    /// What `weir controller` follows, and where nodes pull the resources from.
    pub(super) static CONTROLLER: ControllerKeys = "controller", rules &[];

    /// The cluster of Kubernetes whose objects are the resources.
    kubernetes: SubMap<KubernetesSettings> = section(&KUBERNETES, kubernetes::read), own(),
        required("write `kubernetes: { in_cluster: true }`"), guide("kubernetes.md");
    /// The address that nodes connect to.
    listen: Custom<ListenAddress> = custom("`:PORT`, or IP address with port", listen::address_schema, listen::address), own(),
        absent("`:9443`"), example(":9443");
    /// The certificate of the controller, and the authority of the nodes.
    tls: SubMap<MutualTlsFiles> = section(&MUTUAL_TLS, read_tls), own(), required(ADD_TLS);
    /// The names in certificates of nodes: DNS names and URIs, or common names of certificates without these. One `*` in a name stands for
    /// any characters. The authority's other certificates get 403.
    node_names: Custom<NodeNames> = custom("list: names", node_names_schema, node_names), own(), absent("`[weir-node]`"),
        example("[\"spiffe://example/ns/weir-system/sa/weir\"]");
}

const ADD_TLS: &str = "write `tls: { cert: tls.crt, key: tls.key, ca: ca.crt }`";

keys! {
    /// TLS between nodes and controllers, with PEM files. Both ends have a certificate. The files are read again when they change.
    static MUTUAL_TLS: MutualTlsKeys = "mutual_tls", rules &[KeyRule::All {
        keys: &["cert", "key", "ca"],
        problem: "needs `cert`, `key` and `ca`",
        advice: "add PEM files with the certificate of this end, its key, and the CA certificate of the other end",
    }];

    /// The file with the certificate of this end.
    cert: Text = text(1, MOST_PATH), own(), example("tls.crt");
    /// The file with its key.
    key: Text = text(1, MOST_PATH), own(), example("tls.key");
    /// The file with the CA certificate that the certificate of the other end must be issued by.
    ca: Text = text(1, MOST_PATH), own(), example("ca.crt");
}

fn hosts_schema(_: &mut Definitions) -> Value {
    json!({
        "type": "array", "minItems": 1, "maxItems": MOST_HOSTS, "items": { "type": "string", "pattern": "^https://" },
    })
}

pub(super) fn read_pull(fields: &MapReader) -> Option<PullSettings> {
    let hosts = fields.get(&PULL.hosts).map(|list| list.distinct(host)).unwrap_or_default();
    if let Some(at) = fields.get(&PULL.hosts)
        && hosts.len() > MOST_HOSTS
    {
        let told = format!("has {} controllers, and the maximum is {MOST_HOSTS}", hosts.len());
        at.report_advising(told, "name a Service that stands for several");
    }
    if let Some(at) = fields.get(&PULL.hosts)
        && hosts.is_empty()
    {
        at.report_advising("names no controller".to_owned(), "write `hosts: [\"https://weir-controller:9443\"]`");
        return None;
    }
    Some(PullSettings {
        hosts: hosts.into_iter().map(Box::from).collect(),
        server_name: fields.read(&PULL.sni),
        tls: fields.read(&PULL.tls)?,
    })
}

pub(super) fn read(fields: &MapReader) -> Option<ServedClusterSettings> {
    Some(ServedClusterSettings {
        listen: fields.read(&CONTROLLER.listen).unwrap_or(DEFAULT_LISTEN).socket_addr(),
        kubernetes: fields.read(&CONTROLLER.kubernetes)?,
        tls: fields.read(&CONTROLLER.tls)?,
        node_names: fields.read(&CONTROLLER.node_names).unwrap_or_default(),
    })
}

fn node_names_schema(_: &mut Definitions) -> Value {
    let name =
        json!({ "type": "string", "minLength": 1, "maxLength": LONGEST_NODE_NAME, "pattern": r"^[^*]*\*?[^*]*$" });
    json!({ "type": "array", "minItems": 1, "maxItems": MOST_NODE_NAMES, "items": name })
}

fn node_names(at: &NodeReader) -> Option<NodeNames> {
    let names = at.distinct(node_name);
    if names.len() > MOST_NODE_NAMES {
        let told = format!("has {} names, and the maximum is {MOST_NODE_NAMES}", names.len());
        at.report_advising(told, "write a `*` for the part in which they differ");
    }
    Some(NodeNames(names.into_iter().map(Box::from).collect()))
}

fn node_name(at: &NodeReader) -> Option<String> {
    let text = at.text_of(1..=LONGEST_NODE_NAME)?;
    if text.matches('*').count() > 1 {
        at.report_advising(format!("`{}` has more than one `*`", shortened(text)), "write several names");
    }
    // DNS names are compared in lower case, URIs as they are written.
    Some(if text.contains(':') { text.to_owned() } else { text.to_ascii_lowercase() })
}

fn read_tls(fields: &MapReader) -> Option<MutualTlsFiles> {
    let [cert, key, ca] = [&MUTUAL_TLS.cert, &MUTUAL_TLS.key, &MUTUAL_TLS.ca].map(|key| fields.read(key));
    Some(MutualTlsFiles { cert: cert?, key: key?, authorities: ca? })
}

fn host(at: &NodeReader) -> Option<String> {
    let text = at.text_of(1..=1024)?;
    let is_plain_url = ServiceUrl::parse(text).is_ok_and(|url| url.target() == "/");
    if !text.starts_with("https://") || !is_plain_url {
        let told = format!("`{}` is not the URL of a controller", shortened(text));
        at.report_advising(told, "write as `https://weir-controller.weir-system.svc:9443`, without a path");
    }
    Some(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{MOST_NODE_NAMES, NodeNames};
    use crate::check_text;

    fn faults(text: &str) -> Vec<String> {
        check_text(text).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    const TLS: &str = "tls: { cert: a.crt, key: a.key, ca: ca.crt }";

    #[test]
    fn controllers_of_a_node_are_named_by_https_and_have_tls() {
        let of = |text: &str| faults(&format!("store: {{ controller: {{ {text} }} }}\n"));
        assert_eq!(of(&format!("hosts: ['https://weir-controller:9443'], sni: weir, {TLS}")), [""; 0]);
        assert!(of(TLS)[0].contains("has no `hosts`"));
        assert!(of("hosts: ['https://a:1']")[0].contains("has no `tls`"));
        for wrong in ["http://a:1", "a:1", "https://a:1/path"] {
            let told = of(&format!("hosts: ['{wrong}'], {TLS}"));
            assert!(told[0].contains("is not the URL of a controller"), "{told:?}");
        }
        let told = of("hosts: ['https://a:1'], tls: { cert: a.crt, key: a.key }");
        assert!(told[0].contains("needs `cert`, `key` and `ca`"), "{told:?}");
        let both = faults(&format!(
            "store: {{ kubernetes: {{ in_cluster: true }}, controller: {{ hosts: ['https://a:1'], {TLS} }} }}\n"
        ));
        assert!(!both.is_empty(), "one place of resources");
    }

    #[test]
    fn names_of_nodes_are_whole_or_have_one_star() {
        let names = |list: &[&str]| NodeNames(list.iter().map(|&name| name.into()).collect());
        let some = names(&["weir-node", "*.nodes.example", "spiffe://example/ns/*"]);
        for name in ["weir-node", "a.nodes.example", "spiffe://example/ns/weir/sa/a"] {
            assert!(some.has(name), "{name}");
        }
        for name in ["weir-node2", "a-weir-node", "nodes.example", "spiffe://other/ns/weir", "", "weir-controller"] {
            assert!(!some.has(name), "{name}");
        }
        assert!(!names(&["ab*ba"]).has("aba"), "the parts do not overlap");
        let of = |list: &str| {
            faults(&format!("controller: {{ kubernetes: {{ in_cluster: true }}, node_names: {list}, {TLS} }}\n"))
        };
        assert_eq!(of("[a, 'b*', 'spiffe://c/*']"), [""; 0]);
        assert!(of("['*.*']")[0].contains("more than one `*`"));
        assert!(of("[]")[0].contains("is empty"));
        let many: Vec<String> = (0..=MOST_NODE_NAMES).map(|number| format!("n{number}")).collect();
        assert!(of(&format!("[{}]", many.join(", ")))[0].contains("has 65 names"));
    }

    #[test]
    fn a_controller_needs_a_cluster_and_tls() {
        let of = |text: &str| faults(&format!("controller: {{ {text} }}\n"));
        assert_eq!(of(&format!("kubernetes: {{ in_cluster: true }}, listen: ':9443', {TLS}")), [""; 0]);
        assert!(of(TLS)[0].contains("has no `kubernetes`"));
        assert!(of("kubernetes: { in_cluster: true }")[0].contains("has no `tls`"));
    }
}
