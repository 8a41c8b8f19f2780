//! Settings of the node: where it listens, how it logs, and how it treats clients.

mod clients;
mod keys;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};
use weir_client::DnsSettings;
use weir_discovery::DiscoverySettings;
use weir_gateway::snapshot::{ClientSettings, ListenerProtocol};

use super::access_log::AccessLogSpec;
use super::acme::AcmeSpec;
use super::admin::{ADMIN, AdminAddress, AdminSettings};
use super::certificate::Pem;
use super::controller::ServedClusterSettings;
use super::data_encryption::DataEncryption;
use super::kinds;
use super::listen::{self, Listen};
use super::listener::AllowedAddresses;
use super::otlp_metrics::OtlpMetricsSettings;
use super::resource_access::{self, ResourceRights, SvidRight};
use super::spiffe::SpiffeSettings;
use super::store::{self, StoreKind, StoreSettings};
use super::wasm::WasmSettings;
use crate::keys::schema::Definitions;
use crate::keys::{AnyKey, KeyTable, MapKeys};
use crate::text::diagnostic::Faults;
use crate::text::read::{KeyName, MapReader, NodeReader, shortened};
use crate::text::tree::{MapEntry, NodeKind, TreeNode};

use clients::CLIENTS;
use keys::ENABLED_PLUGIN;
pub(super) use keys::NODE;

/// Settings of the node itself. Changes of some need a restart or binary upgrade: see `publish::unchangeable`.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// Default: `:9080`.
    pub listen: Vec<Listen>,
    /// Worker threads; `None` means one per processor that this process may use.
    pub worker_processes: Option<u16>,
    pub enable_access_log: Option<AccessLogSpec>,
    pub error_log_level: LogLevel,
    /// The address of `/status`, `/status/ready` and `/metrics`. Default: `127.0.0.1:7085`; `None` (`false` in the file) disables
    /// them.
    pub status: Option<SocketAddr>,
    pub clients: ClientSettings,
    /// Whether `%2F` and `%5C` in paths are accepted, still encoded, instead of being refused.
    pub allow_encoded_slashes: bool,
    /// Whether empty segments are removed from the paths that are forwarded.
    pub merge_slashes: bool,
    /// CA certificates for upstreams without their own; `None` means those of the system.
    pub trusted: Option<Pem>,
    /// Whether certificates of upstreams with TLS are verified unless the upstream says otherwise; `None` means yes.
    pub upstream_tls_verify: Option<bool>,
    /// How long a node that was told to shut down accepts connections, while it says that it is not ready.
    pub shutdown_delay: Duration,
    /// How long a node that shuts down waits for exchanges in flight.
    pub worker_shutdown_timeout: Duration,
    pub dns: DnsSettings,
    /// The registries that upstreams with `discovery_type` use.
    pub discovery: DiscoverySettings,
    /// The directory for the node's own data.
    pub data_dir: Option<Box<str>>,
    /// The source of the resources; `None` means this file.
    pub store: Option<StoreSettings>,
    pub admin: Option<AdminSettings>,
    /// What makes this the file of a controller, and not of a node.
    pub controller: Option<ServedClusterSettings>,
    /// What resources of the store may use of the node.
    pub resources: ResourceRights,
    /// The encryption of secrets in the store; `None` means no encryption.
    pub data_encryption: Option<DataEncryption>,
    /// The cost of plugins is measured on one exchange in this many, on average; 0 measures none. Default: 128.
    pub price_every: u32,
    /// The most routes, upstreams and endpoints, each, with metrics under their own names.
    pub metrics_names: u16,
    pub records: RecordSettings,
    /// The OpenTelemetry collector that gets the metrics; `None` means none.
    pub otlp_metrics: Option<OtlpMetricsSettings>,
    pub wasm: WasmSettings,
    /// The Workload API that gives certificates and trust bundles; `None` means none.
    pub spiffe: Option<SpiffeSettings>,
}

/// The limits of records of exchanges on their way to log receivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordSettings {
    /// Threads that encode and send records.
    pub threads: u16,
    /// The processors on which these threads run; empty means those of the process.
    pub cpus: Box<[u16]>,
    /// Bytes of records in memory.
    pub memory: u64,
}

/// From the least to the most verbose, with the names of nginx.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Emerg,
    Alert,
    Crit,
    Error,
    Warn,
    Notice,
    Info,
    Debug,
}

const LEVELS: &[(&str, LogLevel)] = &[
    ("emerg", LogLevel::Emerg),
    ("alert", LogLevel::Alert),
    ("crit", LogLevel::Crit),
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("notice", LogLevel::Notice),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
];

impl Default for NodeSettings {
    /// Those of a file without settings.
    fn default() -> Self {
        let (nothing, faults) = (TreeNode::unplaced(NodeKind::Map(Vec::new())), Faults::new("".into()));
        read(&NodeReader::root(&nothing, &faults).empty_map())
    }
}

impl NodeSettings {
    /// Whether certificates of upstreams with TLS are verified unless the upstream says otherwise.
    pub fn verifies_upstreams(&self) -> bool {
        self.upstream_tls_verify.unwrap_or(true)
    }
}

/// What a change of a setting compiles again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingScope {
    /// No route, or only those that depend on it in a way of their own (`compile::dependencies`).
    Node,
    /// Every route: routes and plugins are compiled from it.
    Routes,
}

/// What a change of a setting compiles again; `None` if there is no such setting.
pub fn scope(key: &str) -> Option<SettingScope> {
    let known = NODE.table().find(key)?;
    Some(if known.about().compiles_routes { SettingScope::Routes } else { SettingScope::Node })
}

/// The settings that a running node cannot change.
pub fn unchangeable() -> impl Iterator<Item = &'static str> {
    NODE.table().keys().map(AnyKey::about).filter(|about| about.needs_restart).map(|about| about.name)
}

/// All keys of a file besides the lists of resources.
pub fn table() -> &'static KeyTable {
    NODE.table()
}

/// `include` of a file, which is followed before its settings are read.
pub(super) fn include(tree: &TreeNode) -> Option<&MapEntry> {
    #[cfg(test)]
    crate::text::read::asked::note(NODE.table().name, NODE.include.name());
    tree.entry(NODE.include.name())
}

/// `acme`.
pub(super) fn acme(fields: &MapReader) -> Option<AcmeSpec> {
    fields.read(&NODE.acme)
}

/// `plugins`: the names of those that may be used. Stream plugins are left out.
pub(super) fn enabled_plugins(fields: &MapReader) -> Option<HashSet<Box<str>>> {
    let found = fields.read(&NODE.plugins)?;
    Some(found.into_iter().filter(|plugin| !plugin.is_stream).map(|plugin| plugin.name).collect())
}

pub(super) fn read(fields: &MapReader) -> NodeSettings {
    let clients = clients::read(fields);
    let store = store(fields);
    let settings = NodeSettings {
        listen: listen(fields, &clients),
        clients,
        worker_processes: fields.read(&NODE.worker_processes).flatten(),
        enable_access_log: fields.read(&NODE.enable_access_log),
        error_log_level: fields.value(&NODE.error_log_level),
        status: status(fields),
        allow_encoded_slashes: fields.value(&NODE.allow_encoded_slashes),
        merge_slashes: fields.value(&NODE.merge_slashes),
        trusted: fields.read(&NODE.ssl_trusted_certificate),
        upstream_tls_verify: fields.read(&NODE.upstream_tls_verify),
        shutdown_delay: fields.value(&NODE.shutdown_delay),
        worker_shutdown_timeout: fields.value(&NODE.worker_shutdown_timeout),
        dns: DnsSettings {
            servers: fields.read(&NODE.dns_resolver).unwrap_or_default(),
            valid: fields.read(&NODE.dns_resolver_valid),
        },
        discovery: fields.read(&NODE.discovery).unwrap_or_default(),
        resources: resource_rights(fields, store.as_ref()),
        data_dir: fields.read(&NODE.data_dir),
        store,
        admin: fields.read(&NODE.admin),
        controller: controller(fields),
        data_encryption: data_encryption(fields),
        price_every: fields.value(&NODE.price_every),
        metrics_names: fields.value(&NODE.metrics_names),
        records: RecordSettings {
            threads: fields.value(&NODE.records_threads),
            cpus: fields.read(&NODE.records_cpus).unwrap_or_default(),
            memory: fields.value(&NODE.records_max_memory),
        },
        otlp_metrics: fields.read(&NODE.otlp_metrics),
        wasm: fields.read(&NODE.wasm).unwrap_or_default(),
        spiffe: fields.read(&NODE.spiffe),
    };
    refuse_taken_addresses(fields, &settings);
    settings
}

/// Reports addresses beside `listen` at which the node listens already. A controller serves no clients at `listen`.
fn refuse_taken_addresses(fields: &MapReader, settings: &NodeSettings) {
    let admin = settings.admin.as_ref().and_then(|admin| match &admin.listen {
        AdminAddress::Tcp(address) => Some((*address, fields.get(&NODE.admin)?)),
        AdminAddress::Unix(_) => None,
    });
    let controller = settings.controller.as_ref();
    let controller = controller.and_then(|controller| Some((controller.listen, fields.get(&NODE.controller)?)));
    // The default of `status` is taken by an address of `listen`.
    let status_at = fields.get(&NODE.status).or_else(|| fields.get(&NODE.listen));
    let status = settings.status.zip(status_at);
    let listen: &[Listen] = if controller.is_some() { &[] } else { &settings.listen };
    let mut taken: Vec<SocketAddr> = Vec::new();
    for (address, at) in [admin, controller, status].into_iter().flatten() {
        let is_taken = listen.iter().any(|listen| listen.takes(address))
            || taken.iter().any(|other| listen::have_one_port(*other, address));
        taken.push(address);
        if is_taken {
            let (problem, advice) = (format!("this node listens at {address} already"), "choose another port");
            match at.node().entry("listen") {
                Some(entry) => at.below(entry).report_advising(problem, advice),
                None => at.report_advising(problem, advice),
            }
        }
    }
}

/// `listen`, and what it needs of other settings.
fn listen(fields: &MapReader, clients: &ClientSettings) -> Vec<Listen> {
    let Some(at) = fields.get(&NODE.listen) else { return vec![Listen::by_default()] };
    let listen = fields.read(&NODE.listen).unwrap_or_default();
    if listen.iter().any(|listen| listen.settings.proxy_protocol) && clients.trusted_addresses.is_empty() {
        at.report_advising(
            "expects the PROXY protocol, but `trusted_addresses` names no sender",
            "add the addresses of the load balancers: `trusted_addresses: [10.0.0.1]`",
        );
    }
    if !clients.http2
        && listen.iter().any(|listen| listen.settings.protocol == ListenerProtocol::Http2)
        && let Some(at) = fields.get(&CLIENTS.enable_http2)
    {
        at.report_advising("is off, and `listen` has an address with `h2c`", "leave one of the two out");
    }
    listen
}

/// `status`; `None` if it is `false`.
fn status(fields: &MapReader) -> Option<SocketAddr> {
    if !fields.has(&NODE.status) {
        return Some(listen::DEFAULT_STATUS);
    }
    fields.read(&NODE.status).flatten()
}

/// The default is `embedded` if there is an Admin API, and no store otherwise.
fn store(fields: &MapReader) -> Option<StoreSettings> {
    let shows_file = |admin: NodeReader| admin.node().entry(ADMIN.store.name()).is_some();
    if fields.get(&NODE.admin).is_some_and(shows_file) {
        if let Some(at) = fields.get(&NODE.store) {
            at.report_advising("is a second place for resources: `admin` has `store: file`", "remove one of the two");
            // Read all the same: what is wrong in it is reported as well.
            fields.read(&NODE.store);
        }
        return None;
    }
    let has_api = fields.has(&NODE.admin);
    let Some(at) = fields.get(&NODE.store) else { return has_api.then(|| store::embedded(None)) };
    let store = fields.read(&NODE.store)?;
    if store.kind == StoreKind::Standalone && !has_api {
        at.report_advising("is a store that the Admin API fills, and there is no Admin API", "add `admin`");
    }
    Some(store)
}

/// `controller`, whose resources come from its cluster alone.
fn controller(fields: &MapReader) -> Option<ServedClusterSettings> {
    let at = fields.get(&NODE.controller)?;
    if fields.has(&NODE.store) || fields.has(&NODE.admin) {
        at.report_advising(
            "is of a controller, and `store` and `admin` are of a node",
            "give the controller a file of its own: `weir controller -c FILE`",
        );
    }
    let of_traffic = |name: &&str| *name == NODE.listen.name() || kinds::find(name).is_some();
    for name in fields.names().filter(of_traffic) {
        if let Some(found) = fields.find(name) {
            found.report_advising(
                "has no effect: a file with `controller` serves no traffic",
                "remove it, or move it to the file of a node",
            );
        }
    }
    fields.read(&NODE.controller)
}

/// `data_encryption`, which needs a store.
fn data_encryption(fields: &MapReader) -> Option<DataEncryption> {
    let at = fields.get(&NODE.data_encryption)?;
    if !fields.has(&NODE.store) && !fields.has(&NODE.admin) {
        at.report_advising(
            "encrypts secrets in a store, and this node has none",
            "add `admin` or `store`, or leave `data_encryption` out",
        );
    }
    fields.read(&NODE.data_encryption)
}

/// The settings `resource_…`.
fn resource_rights(fields: &MapReader, store: Option<&StoreSettings>) -> ResourceRights {
    let mut rights = ResourceRights {
        variables: fields.read(&NODE.resource_env).unwrap_or_default(),
        secrets: fields.read(&NODE.resource_secrets).unwrap_or_default(),
        files: fields.read(&NODE.resource_files).unwrap_or_default(),
        log_files: fields.read(&NODE.resource_log_files).unwrap_or_default(),
        listeners: fields.read(&NODE.resource_listeners).unwrap_or_default(),
        svid: SvidRight::To(fields.read(&NODE.resource_spiffe_ids).unwrap_or_default()),
    };
    if let Some(StoreKind::Kubernetes(settings)) = store.map(|store| &store.kind) {
        rights.listeners.extend(settings.gateway_addresses.map(AllowedAddresses::network));
    }
    if let Some(at) = fields.get(&NODE.resource_log_files) {
        resource_access::keep_apart(&rights, &at);
    }
    rights
}

const DNS_PORT: u16 = 53;
const MOST_WORKERS: u16 = 1_024;

fn dns_server(at: &NodeReader, text: &str) -> Option<SocketAddr> {
    let address = text
        .parse::<SocketAddr>()
        .or_else(|_| text.trim_matches(['[', ']']).parse::<IpAddr>().map(|address| SocketAddr::new(address, DNS_PORT)));
    if address.is_err() {
        let problem = format!("`{}` is not the IP address of a DNS server", shortened(text));
        at.report_advising(problem, "write as `10.0.0.2` or `127.0.0.1:5353`");
    }
    address.ok()
}

fn worker_processes(at: &NodeReader) -> Option<Option<u16>> {
    match &at.node().kind {
        NodeKind::Text(text) if &**text == "auto" => Some(None),
        NodeKind::Text(_) => {
            at.report_advising("expected a number of workers", "write `auto` or a number from 1 to 1024");
            None
        }
        _ => at.integer(1..=MOST_WORKERS).map(Some),
    }
}

fn workers_schema(_: &mut Definitions) -> Value {
    json!({ "oneOf": [{ "const": "auto" }, { "type": "integer", "minimum": 1, "maximum": MOST_WORKERS }] })
}

/// An entry of `plugins`.
pub(super) struct EnabledPlugin {
    name: Box<str>,
    is_stream: bool,
}

fn enabled_plugin(fields: &MapReader) -> Option<EnabledPlugin> {
    let is_stream = fields.value(&ENABLED_PLUGIN.stream);
    Some(EnabledPlugin { name: fields.read(&ENABLED_PLUGIN.name)?, is_stream })
}
