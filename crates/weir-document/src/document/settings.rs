//! Settings of the node: where it listens, how it logs, and how it treats clients.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use weir_client::DnsSettings;
use weir_gateway::snapshot::{ClientSettings, ConnectionShare, ListenerProtocol};
use weir_plugin::WrittenName;
use weir_plugin::vars::parse_network;
use weir_proto::field::is_token_byte;

use super::access_log::{self, AccessLogSpec};
use super::admin::{self, AdminSettings, StoreSettings};
use super::certificate::{self, Pem};
use super::cpu_list;
use super::data_encryption::{self, DataEncryption};
use super::discovery::{self, DiscoverySettings};
use super::listen::{self, Listen, ListenAddress};
use super::otlp_metrics::{self, OtlpMetricsSettings};
use super::resource_access::{self, ResourceRights};
use crate::text::read::{MapReader, NodeReader, shortened};
use crate::text::tree::NodeKind;

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

impl Default for RecordSettings {
    fn default() -> Self {
        RecordSettings { threads: 1, cpus: Box::default(), memory: 256 << 20 }
    }
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

impl Default for NodeSettings {
    fn default() -> Self {
        NodeSettings {
            listen: vec![Listen::by_default()],
            worker_processes: None,
            enable_access_log: None,
            error_log_level: LogLevel::Warn,
            status: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 7085))),
            clients: ClientSettings::default(),
            allow_encoded_slashes: false,
            merge_slashes: false,
            trusted: None,
            upstream_tls_verify: None,
            shutdown_delay: Duration::ZERO,
            worker_shutdown_timeout: Duration::from_secs(30),
            dns: DnsSettings::default(),
            discovery: DiscoverySettings::default(),
            data_dir: None,
            store: None,
            admin: None,
            resources: ResourceRights::default(),
            data_encryption: None,
            price_every: 128,
            metrics_names: 500,
            records: RecordSettings::default(),
            otlp_metrics: None,
        }
    }
}

impl NodeSettings {
    /// Whether certificates of upstreams with TLS are verified unless the upstream says otherwise.
    pub fn verifies_upstreams(&self) -> bool {
        self.upstream_tls_verify.unwrap_or(true)
    }
}

const DNS_PORT: u16 = 53;

/// What a change of a setting compiles again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingScope {
    /// No route, or only those that depend on it in a way of their own (`compile::dependencies`).
    Node,
    /// Every route: routes and plugins are compiled from it.
    Routes,
}

/// All settings of a node.
pub const SETTINGS: &[(&str, SettingScope)] = &[
    ("listen", SettingScope::Node),
    ("worker_processes", SettingScope::Node),
    ("enable_access_log", SettingScope::Node),
    ("error_log_level", SettingScope::Node),
    ("status", SettingScope::Node),
    ("shutdown_delay", SettingScope::Node),
    ("worker_shutdown_timeout", SettingScope::Node),
    ("dns_resolver", SettingScope::Node),
    ("dns_resolver_valid", SettingScope::Node),
    ("discovery", SettingScope::Node),
    ("trusted_addresses", SettingScope::Node),
    ("allow_encoded_slashes", SettingScope::Routes),
    ("merge_slashes", SettingScope::Routes),
    ("underscores_in_headers", SettingScope::Routes),
    ("absolute_target_replaces_host", SettingScope::Routes),
    ("refuse_path_parameters", SettingScope::Routes),
    ("ssl_handshake_timeout", SettingScope::Node),
    ("ssl_trusted_certificate", SettingScope::Node),
    ("upstream_tls_verify", SettingScope::Node),
    ("client_header_timeout", SettingScope::Node),
    ("client_max_header_size", SettingScope::Node),
    ("client_max_header_count", SettingScope::Node),
    ("client_max_uri_size", SettingScope::Node),
    ("client_max_body_size", SettingScope::Node),
    ("client_body_min_rate", SettingScope::Node),
    ("client_body_grace", SettingScope::Node),
    ("client_half_close_timeout", SettingScope::Node),
    ("held_content_max", SettingScope::Node),
    ("held_content_max_per_client", SettingScope::Node),
    ("keepalive_timeout", SettingScope::Node),
    ("client_first_byte_timeout", SettingScope::Node),
    ("client_max_connections", SettingScope::Node),
    ("via", SettingScope::Node),
    ("keepalive_requests", SettingScope::Node),
    ("enable_http2", SettingScope::Node),
    ("http2_max_concurrent_streams", SettingScope::Node),
    ("send_timeout", SettingScope::Node),
    ("price_every", SettingScope::Node),
    ("metrics_names", SettingScope::Node),
    ("data_dir", SettingScope::Routes),
    ("store", SettingScope::Node),
    ("admin", SettingScope::Node),
    // What resources may use is an input of its own.
    ("resource_env", SettingScope::Node),
    ("resource_secrets", SettingScope::Node),
    ("resource_files", SettingScope::Node),
    ("resource_log_files", SettingScope::Node),
    ("resource_listeners", SettingScope::Node),
    ("data_encryption", SettingScope::Node),
    ("records_threads", SettingScope::Routes),
    ("records_cpus", SettingScope::Routes),
    ("records_max_memory", SettingScope::Routes),
    ("otlp_metrics", SettingScope::Node),
];

pub(super) fn read(fields: &MapReader) -> NodeSettings {
    let default = NodeSettings::default();
    let clients = clients(fields);
    let listen: Vec<Listen> = fields.get("listen").map_or(default.listen, |at| listen::read(&at));
    if listen.iter().any(|listen| listen.settings.proxy_protocol)
        && clients.trusted_addresses.is_empty()
        && let Some(at) = fields.get("listen")
    {
        at.report_advising(
            "expects the PROXY protocol, but `trusted_addresses` names no sender",
            "add the addresses of the load balancers: `trusted_addresses: [10.0.0.1]`",
        );
    }
    if !clients.http2
        && listen.iter().any(|listen| listen.settings.protocol == ListenerProtocol::Http2)
        && let Some(at) = fields.get("enable_http2")
    {
        at.report_advising("is off, and `listen` has an address with `h2c`", "leave one of the two out");
    }
    NodeSettings {
        listen,
        worker_processes: fields.get("worker_processes").and_then(|at| worker_processes(&at)),
        enable_access_log: fields.get("enable_access_log").and_then(|at| access_log::read(&at)),
        error_log_level: fields
            .get("error_log_level")
            .and_then(|at| at.choice(LEVELS))
            .unwrap_or(default.error_log_level),
        status: fields.get("status").map_or(default.status, |at| status(&at)),
        clients,
        allow_encoded_slashes: flag(fields, "allow_encoded_slashes"),
        merge_slashes: flag(fields, "merge_slashes"),
        trusted: fields.get("ssl_trusted_certificate").and_then(|at| certificate::pem_of_settings(&at)),
        upstream_tls_verify: fields.get("upstream_tls_verify").and_then(|at| at.boolean()),
        shutdown_delay: fields.get("shutdown_delay").and_then(|at| at.any_duration()).unwrap_or(default.shutdown_delay),
        worker_shutdown_timeout: fields
            .get("worker_shutdown_timeout")
            .and_then(|at| at.any_duration())
            .unwrap_or(default.worker_shutdown_timeout),
        dns: DnsSettings {
            servers: fields.get("dns_resolver").map(|at| dns_servers(&at)).unwrap_or_default(),
            valid: fields.get("dns_resolver_valid").and_then(|at| at.duration()),
        },
        discovery: fields.get("discovery").and_then(|at| discovery::read(&at)).unwrap_or_default(),
        resources: resource_access::read(fields),
        data_dir: fields.get("data_dir").and_then(|at| at.written_name(WrittenName::Directory)).map(Box::from),
        store: admin::read_store(fields),
        admin: fields.get("admin").and_then(|at| admin::read(&at)),
        data_encryption: data_encryption::read(fields),
        price_every: fields.get("price_every").and_then(|at| at.integer(0..=1_000_000)).unwrap_or(default.price_every),
        metrics_names: fields
            .get("metrics_names")
            .and_then(|at| at.integer(0..=10_000))
            .map_or(default.metrics_names, |names| names as u16),
        records: records(fields),
        otlp_metrics: fields.get("otlp_metrics").and_then(|at| otlp_metrics::read(&at)),
    }
}

fn records(fields: &MapReader) -> RecordSettings {
    let default = RecordSettings::default();
    let memory = fields.get("records_max_memory").and_then(|at| {
        let size = at.size()?;
        if size < MIN_RECORDS_MEMORY {
            at.report(format!("{size} bytes are too few; the minimum is {MIN_RECORDS_MEMORY}"));
            return None;
        }
        Some(size)
    });
    RecordSettings {
        threads: fields.get("records_threads").and_then(|at| at.integer(1..=64)).unwrap_or(default.threads),
        cpus: fields.get("records_cpus").and_then(|at| cpu_list::read(&at)).unwrap_or(default.cpus),
        memory: memory.unwrap_or(default.memory),
    }
}

const MIN_RECORDS_MEMORY: u64 = 1 << 20;

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

fn flag(fields: &MapReader, key: &str) -> bool {
    fields.get(key).and_then(|at| at.boolean()).unwrap_or(false)
}

fn clients(fields: &MapReader) -> ClientSettings {
    let mut clients = ClientSettings::default();
    let duration = |key: &str, into: &mut Duration| {
        if let Some(value) = fields.get(key).and_then(|at| at.duration()) {
            *into = value;
        }
    };
    duration("ssl_handshake_timeout", &mut clients.handshake_timeout);
    duration("client_header_timeout", &mut clients.header_timeout);
    duration("client_body_grace", &mut clients.body_grace);
    duration("client_half_close_timeout", &mut clients.half_close_timeout);
    duration("keepalive_timeout", &mut clients.idle_timeout);
    duration("client_first_byte_timeout", &mut clients.first_byte_timeout);
    duration("send_timeout", &mut clients.write_timeout);
    let size = |key: &str, least: u64, most: u64| {
        let at = fields.get(key)?;
        let size = at.size()?;
        if !(least..=most).contains(&size) {
            at.report(format!("{size} bytes are out of range; {least} to {most} are allowed"));
            return None;
        }
        usize::try_from(size).ok()
    };
    let limits = &mut clients.limits;
    limits.head_bytes = size("client_max_header_size", 1 << 10, 1 << 20).unwrap_or(limits.head_bytes);
    limits.target_bytes = size("client_max_uri_size", 1 << 8, 1 << 20).unwrap_or(limits.target_bytes);
    if let Some(most) = fields.get("client_max_header_count").and_then(|at| at.integer(1..=MAX_FIELDS)) {
        limits.fields = most as usize;
    }
    limits.underscores_in_names = flag(fields, "underscores_in_headers");
    limits.refuse_path_parameters = flag(fields, "refuse_path_parameters");
    limits.target_replaces_host = flag(fields, "absolute_target_replaces_host");
    // As in nginx, 0 is no limit.
    let held = &mut clients.held;
    held.node = size("held_content_max", 1 << 20, 1 << 40).map_or(held.node, |size| size as u64);
    held.client = size("held_content_max_per_client", 1 << 16, 1 << 40).map_or(held.node / 4, |size| size as u64);
    clients.via = fields.get("via").and_then(|at| via(&at));
    if let Some(most) = fields.get("client_max_connections").and_then(|at| at.integer(0..=u32::MAX)) {
        clients.connections = match most {
            0 => ConnectionShare::Unlimited,
            most => ConnectionShare::AtMost(most),
        };
    }
    clients.body_bytes = fields.get("client_max_body_size").and_then(|at| at.size()).filter(|size| *size > 0);
    let requests = fields.get("keepalive_requests").and_then(|at| at.integer(0..=u32::MAX));
    clients.keepalive_requests = requests.filter(|requests| *requests > 0).map(u64::from);
    clients.http2 = fields.get("enable_http2").and_then(|at| at.boolean()).unwrap_or(clients.http2);
    if let Some(most) = fields.get("http2_max_concurrent_streams").and_then(|at| at.integer(1..=MAX_STREAMS)) {
        clients.concurrent_streams = most;
    }
    if let Some(rate) = fields.get("client_body_min_rate").and_then(|at| at.size()) {
        clients.body_min_rate = rate;
    }
    if let Some(at) = fields.get("trusted_addresses") {
        clients.trusted_addresses = at.items().filter_map(|item| network(&item)).collect();
    }
    clients
}

/// Parses a pseudonym: the `received-by` of RFC 9110 §7.6.3.
fn via(at: &NodeReader) -> Option<Box<str>> {
    let text = at.text_of(1..=255)?;
    if text.bytes().all(|byte| is_token_byte(byte) || b":[]".contains(&byte)) {
        return Some(text.into());
    }
    let problem = format!("`{}` is neither a name nor a host with a port", shortened(text));
    at.report_advising(problem, "write one word, such as `edge-1` or `proxy.example.com:443`");
    None
}

/// The limit of concurrent streams that can be set: each stream can hold memory that its client does not release.
const MAX_STREAMS: u32 = 10_000;
const MAX_FIELDS: u32 = weir_proto::limits::MAX_FIELDS as u32;

fn network(at: &NodeReader) -> Option<ipnet::IpNet> {
    let text = at.text()?;
    let network = parse_network(text);
    if network.is_none() {
        let problem = format!("`{}` is neither an address nor a range", shortened(text));
        at.report_advising(problem, "write as `10.0.0.1`, `10.0.0.0/8` or `fd00::/8`");
    }
    network
}

fn status(at: &NodeReader) -> Option<SocketAddr> {
    if matches!(at.node().kind, NodeKind::Bool(false)) {
        return None;
    }
    match listen::address(at)? {
        ListenAddress::One(address) => Some(address),
        ListenAddress::Everywhere(port) => {
            let advice = format!("write `127.0.0.1:{port}`, or `0.0.0.0:{port}` if every client may read it");
            at.report_advising("the status address must include the IP address of an interface", advice);
            None
        }
    }
}

fn dns_servers(at: &NodeReader) -> Vec<SocketAddr> {
    let server = |at: &NodeReader| {
        let text = at.text()?;
        let address = text.parse::<SocketAddr>().or_else(|_| {
            text.trim_matches(['[', ']']).parse::<IpAddr>().map(|address| SocketAddr::new(address, DNS_PORT))
        });
        if address.is_err() {
            let problem = format!("`{}` is not the IP address of a DNS server", shortened(text));
            at.report_advising(problem, "write as `10.0.0.2` or `127.0.0.1:5353`");
        }
        address.ok()
    };
    at.items().filter_map(|item| server(&item)).collect()
}

fn worker_processes(at: &NodeReader) -> Option<u16> {
    match &at.node().kind {
        NodeKind::Text(text) if &**text == "auto" => None,
        NodeKind::Text(_) => {
            at.report_advising("expected a number of workers", "write `auto` or a number from 1 to 1024");
            None
        }
        _ => at.integer(1..=1024),
    }
}
