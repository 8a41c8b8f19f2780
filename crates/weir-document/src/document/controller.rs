//! Controllers: where a node pulls its resources from (`store.controller`), and how `weir controller` serves them (`controller`).

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};
use weir_client::ServiceUrl;
use weir_net::tls::server_name;

use super::kubernetes::{self, KUBERNETES, KubernetesSettings};
use super::listen::{self, ListenAddress};
use crate::keys;
use crate::keys::KeyRule;
use crate::keys::kinds::{
    Custom, DistinctList, Form, Or, ParsedText, SubMap, Text, Time, any_text, custom, form, section, set, text, time,
};
use crate::keys::schema::Definitions;
use crate::text::read::{MapReader, NodeReader, shortened};

/// The controllers that a node pulls its resources from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullSettings {
    /// URLs such as `https://weir-controller:9443`.
    pub hosts: Vec<Box<str>>,
    pub certificates: NodeCertificates,
    /// The name that the controllers' certificates must have, if it is not the host in `hosts`.
    pub server_name: Option<Box<str>>,
}

/// What `weir controller` follows, and where it serves the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedClusterSettings {
    pub kubernetes: KubernetesSettings,
    pub listen: SocketAddr,
    pub certificates: ControllerCertificates,
    pub node_names: NodeNames,
}

/// Where the certificate of a node comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeCertificates {
    /// Others write it to these files.
    Files(MutualTlsFiles),
    /// The controllers issue it.
    Enrolment(EnrolmentFiles),
}

/// Files by which a node gets a certificate of the controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnrolmentFiles {
    /// The token of the service account that the node runs as.
    pub token: Box<str>,
    /// The authorities of the controllers.
    pub authorities: Box<str>,
}

/// Where the certificates of a controller come from, and those that nodes must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerCertificates {
    /// Others write them to these files.
    Files(MutualTlsFiles),
    /// The controllers issue them.
    Issued(IssueSettings),
}

/// How controllers issue certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssueSettings {
    /// The Secret with the authority, and the ConfigMap with the public half of it, in the namespace of the credentials.
    pub secret: Box<str>,
    pub config_map: Box<str>,
    /// The names in the certificates of controllers.
    pub names: Vec<Box<str>>,
    /// The service accounts that nodes run as: `NAMESPACE/NAME`.
    pub accounts: Vec<Box<str>>,
    /// What the tokens of nodes must be made for.
    pub audience: Box<str>,
    /// How long a certificate is valid, and an authority.
    pub lifetime: Duration,
    pub authority_lifetime: Duration,
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
    pub(super) static PULL: PullKeys = "store_controller", rules &[KeyRule::ExactlyOne("tls", "enrolment")];

    /// The URLs of the controllers. The next one is tried when one fails.
    hosts: Form = form("list: URL", hosts_schema), own(), required("write `hosts: [\"https://weir-controller:9443\"]`"),
        example("[\"https://weir-controller:9443\"]");
    /// The certificate of this node, and the authority of the controllers.
    tls: SubMap<MutualTlsFiles> = section(&MUTUAL_TLS, read_tls), own();
    /// In its place, the controllers issue a certificate to this node (their `issue`), for a token of its service account.
    enrolment: SubMap<EnrolmentFiles> = section(&ENROLMENT, read_enrolment), own(),
        guide("kubernetes.md#certificates-by-the-controllers");
    /// The name that the certificates of the controllers must have.
    sni: Text = text(1, MOST_PATH), own(), absent("the host in `hosts`"), example("weir-controller.weir-system.svc");
}

keys! {
    /// What `weir controller` follows, and where nodes pull the resources from.
    pub(super) static CONTROLLER: ControllerKeys = "controller", rules &[
        KeyRule::ExactlyOne("tls", "issue"),
        KeyRule::AtMostOne("issue", "node_names"),
    ];

    /// The cluster of Kubernetes whose objects are the resources.
    kubernetes: SubMap<KubernetesSettings> = section(&KUBERNETES, kubernetes::read), own(),
        required("write `kubernetes: { in_cluster: true }`"), guide("kubernetes.md");
    /// The address that nodes connect to.
    listen: Custom<ListenAddress> = custom("`:PORT`, or IP address with port", listen::address_schema, listen::address), own(),
        absent("`:9443`"), example(":9443");
    /// The certificate of the controller, and the authority of the nodes.
    tls: SubMap<MutualTlsFiles> = section(&MUTUAL_TLS, read_tls), own();
    /// In its place, the controllers have an authority of their own, which issues their certificates and those of the nodes.
    issue: SubMap<IssueSettings> = section(&ISSUE, read_issue), own(), guide("kubernetes.md#certificates-by-the-controllers");
    /// The names in certificates of nodes: DNS names and URIs, or common names of certificates without these. One `*` in a name stands for
    /// any characters. The authority's other certificates get 403.
    node_names: Custom<NodeNames> = custom("list: names", node_names_schema, node_names), own(), absent("`[weir-node]`"),
        example("[\"spiffe://example/ns/weir-system/sa/weir\"]");
}

keys! {
    /// How controllers issue certificates to themselves and to nodes. The authority is in a Secret of the namespace of the credentials. It
    /// is made when it is absent, and replaced in time: the next one is published after half of its lifetime, and used after three quarters.
    static ISSUE: IssueKeys = "controller_issue", rules &[];

    /// The Secret with the authority and its key.
    secret: Or<Text> = text(1, LONGEST_OBJECT).or("weir-controller-ca"), own();
    /// The ConfigMap whose `ca.crt` has the authorities that nodes trust.
    config_map: Or<Text> = text(1, LONGEST_OBJECT).or("weir-controller-ca"), own();
    /// The names in the certificates of controllers: those by which nodes reach them.
    names: DistinctList<ParsedText<Box<str>>> = set(text(1, LONGEST_OBJECT).parsed(certificate_name)), own(),
        required("write `names: [weir-controller.weir-system.svc]`"), example("[weir-controller.weir-system.svc]");
    /// The service accounts that nodes run as, each as `NAMESPACE/NAME`. Others get no certificate.
    accounts: DistinctList<ParsedText<Box<str>>> = set(any_text().parsed(account)), own(),
        required("write `accounts: [weir-system/weir]`"), example("[weir-system/weir]");
    /// The audience that tokens of nodes must be made for.
    audience: Or<Text> = text(1, LONGEST_OBJECT).or("weir-controller"), own();
    /// How long a certificate is valid. A node renews it after about two thirds of that, a controller after a quarter. Less than an hour is
    /// for tests: renewals need time.
    lifetime: Or<Time> = time().between(Duration::from_secs(1), Duration::from_secs(30 * DAY)).or(Duration::from_secs(DAY)), own();
    /// How long an authority is valid: at least eight times as long as a certificate. Nodes have a quarter of it to learn the next one, for
    /// which kubelets need minutes: less than a day is for tests.
    authority_lifetime: Or<Time> = time().between(Duration::from_secs(8), Duration::from_secs(3_650 * DAY)).or(Duration::from_secs(90 * DAY)), own();
}

keys! {
    /// How a node gets a certificate of the controllers. Its key is made by the node, and is in its memory alone.
    static ENROLMENT: EnrolmentKeys = "controller_enrolment", rules &[KeyRule::All {
        keys: &["token", "ca"],
        problem: "needs `token` and `ca`",
        advice: "add the file of a projected ServiceAccount token with the audience of the controllers, and the file with their \
                 authorities, which is `ca.crt` in the ConfigMap that they write",
    }];

    /// The file with the token. It is read for each certificate, so it may be renewed.
    token: Text = text(1, MOST_PATH), own(), example("/var/run/secrets/weir/token");
    /// The file with the authorities of the controllers. It is read for each connection.
    ca: Text = text(1, MOST_PATH), own(), example("/etc/weir-ca/ca.crt");
}

const DAY: u64 = 24 * 60 * 60;
/// The ConfigMap that a cluster has in each namespace.
const CLUSTER_AUTHORITY: &str = "kube-root-ca.crt";
/// The longest name of an object of Kubernetes.
const LONGEST_OBJECT: usize = 253;

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
        certificates: match fields.read(&PULL.tls) {
            Some(files) => NodeCertificates::Files(files),
            None => NodeCertificates::Enrolment(fields.read(&PULL.enrolment)?),
        },
    })
}

pub(super) fn read(fields: &MapReader) -> Option<ServedClusterSettings> {
    Some(ServedClusterSettings {
        listen: fields.read(&CONTROLLER.listen).unwrap_or(DEFAULT_LISTEN).socket_addr(),
        kubernetes: fields.read(&CONTROLLER.kubernetes)?,
        certificates: match fields.read(&CONTROLLER.tls) {
            Some(files) => ControllerCertificates::Files(files),
            None => ControllerCertificates::Issued(fields.read(&CONTROLLER.issue)?),
        },
        node_names: fields.read(&CONTROLLER.node_names).unwrap_or_default(),
    })
}

fn read_issue(fields: &MapReader) -> Option<IssueSettings> {
    let settings = IssueSettings {
        secret: fields.value(&ISSUE.secret),
        config_map: fields.value(&ISSUE.config_map),
        names: fields.read(&ISSUE.names)?,
        accounts: fields.read(&ISSUE.accounts)?,
        audience: fields.value(&ISSUE.audience),
        lifetime: fields.value(&ISSUE.lifetime),
        authority_lifetime: fields.value(&ISSUE.authority_lifetime),
    };
    if &*settings.config_map == CLUSTER_AUTHORITY
        && let Some(at) = fields.get(&ISSUE.config_map)
    {
        let told = format!("`{CLUSTER_AUTHORITY}` is the ConfigMap with the authority of the cluster");
        at.report_advising(told, "name one that only the controllers write");
    }
    if settings.authority_lifetime < settings.lifetime * 8 {
        let told = "has an `authority_lifetime` of less than eight times its `lifetime`";
        fields
            .at()
            .report_advising(told, "nodes have to learn the next authority while certificates of this one are valid");
    }
    Some(settings)
}

fn certificate_name(at: &NodeReader, text: &str) -> Option<Box<str>> {
    let is_address = text.parse::<IpAddr>().is_ok();
    if !is_address && (text.contains(':') || server_name(text).is_none()) {
        let told = format!("`{}` is not a DNS name or an IP address", shortened(text));
        at.report_advising(told, "write as `weir-controller.weir-system.svc`");
        return None;
    }
    Some(text.into())
}

fn account(at: &NodeReader, text: &str) -> Option<Box<str>> {
    let is_name = |name: &str| !name.is_empty() && name.len() <= LONGEST_OBJECT && !name.contains(['/', ':']);
    match text.split_once('/') {
        Some((namespace, name)) if is_name(namespace) && is_name(name) => Some(text.into()),
        _ => {
            let told = format!("`{}` is not a service account", shortened(text));
            at.report_advising(told, "write as `NAMESPACE/NAME`: `weir-system/weir`");
            None
        }
    }
}

fn read_enrolment(fields: &MapReader) -> Option<EnrolmentFiles> {
    let [token, ca] = [&ENROLMENT.token, &ENROLMENT.ca].map(|key| fields.read(key));
    Some(EnrolmentFiles { token: token?, authorities: ca? })
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
        let neither = of("hosts: ['https://a:1']");
        assert!(neither[0].contains("`tls`") && neither[0].contains("`enrolment`"), "{neither:?}");
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
        let neither = of("kubernetes: { in_cluster: true }");
        assert!(neither[0].contains("`tls`") && neither[0].contains("`issue`"), "{neither:?}");
    }

    #[test]
    fn certificates_are_given_or_issued() {
        let node = |text: &str| faults(&format!("store: {{ controller: {{ hosts: ['https://a:1'], {text} }} }}\n"));
        assert_eq!(node("enrolment: { token: t, ca: ca.crt }"), [""; 0]);
        assert!(node("enrolment: { token: t }")[0].contains("needs `token` and `ca`"));
        assert!(!node(&format!("enrolment: {{ token: t, ca: ca.crt }}, {TLS}")).is_empty(), "one of them");
        let of = |text: &str| faults(&format!("controller: {{ kubernetes: {{ in_cluster: true }}, {text} }}\n"));
        let issue = |more: &str| of(&format!("issue: {{ names: [a.svc], accounts: [ns/weir]{more} }}"));
        assert_eq!(issue(", lifetime: 1h, authority_lifetime: 8h"), [""; 0]);
        assert!(issue(", lifetime: 1h, authority_lifetime: 7h")[0].contains("less than eight times"));
        assert!(issue(", config_map: kube-root-ca.crt")[0].contains("authority of the cluster"));
        assert!(of("issue: { names: [a.svc] }")[0].contains("has no `accounts`"));
        assert!(of("issue: { names: ['a b'], accounts: [ns/weir] }")[0].contains("is not a DNS name"));
        assert!(of("issue: { accounts: [ns/weir] }")[0].contains("has no `names`"));
        for wrong in ["weir", "ns/", "/weir", "ns/a/b", "'system:serviceaccount:ns:weir'"] {
            let told = of(&format!("issue: {{ names: [a.svc], accounts: [{wrong}] }}"));
            assert!(told[0].contains("is not a service account"), "{told:?}");
        }
        assert!(!of("issue: { names: [a.svc], accounts: [ns/weir] }, node_names: [a]").is_empty(), "names are decided");
        assert!(!of(&format!("issue: {{ names: [a.svc], accounts: [ns/weir] }}, {TLS}")).is_empty(), "one of them");
    }
}
