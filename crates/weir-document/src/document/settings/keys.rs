//! The settings of a node: all keys of its file besides the lists of resources.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use weir_discovery::{DISCOVERY, DiscoverySettings};
use weir_net::tls::SpiffeId;
use weir_plugin::WrittenName;

use super::super::access_log::{self, ACCESS_LOG, AccessLogSpec};
use super::super::acme::{self, ACME, AcmeSpec};
use super::super::admin::{self, ADMIN, AdminSettings};
use super::super::certificate::{self, Pem};
use super::super::controller::{self, CONTROLLER, ServedClusterSettings};
use super::super::cpu_list;
use super::super::data_encryption;
use super::super::data_encryption::{DATA_ENCRYPTION, DataEncryption};
use super::super::listen::{self, LISTEN, Listen};
use super::super::listener::{self, AllowedAddresses};
use super::super::otlp_metrics::{self, OTLP_METRICS, OtlpMetricsSettings};
use super::super::resource_access::{self, NameRule, RESOURCE_RULE};
use super::super::spiffe::{self, SPIFFE, SpiffeSettings};
use super::super::store::{self, STORE, StoreSettings};
use super::super::wasm::{self, WASM, WasmSettings};
use super::clients::CLIENTS;
use super::{LEVELS, LogLevel};
use crate::keys;
use crate::keys::kinds::{
    ByteSize, Custom, DistinctList, Flag, Form, List, Or, ParsedText, SubMap, Text, Time, Whole, Words, WrittenPath,
    any_text, any_time, custom, flag, form, list, section, set, size, text, time, whole, words, written,
};

/// The longest path of a file.
const MOST_PATH: usize = 4_096;

keys! {
    /// What concerns the node as a whole.
    pub(in crate::document) static NODE: NodeKeys = "settings", shared CLIENTS;

    /// The addresses on which Weir accepts client connections: one address or a list of addresses. `":9080"` (or `9080`) is port 9080 on
    /// every interface. With a map, an address can have TLS, HTTP/2 alone, or the PROXY protocol.
    listen: Custom<Vec<Listen>> = custom("address, map, or list of these", listen::schema, listen::listens).with(&LISTEN),
        own(), absent("`\":9080\"`"), example("[\":9080\", { address: \":9443\", tls: true }]");
    /// The number of worker threads. `auto` is the number of processors that the process may run on, or the CPU quota of its cgroup, rounded
    /// down, if that is less.
    worker_processes: Custom<Option<u16>> = custom("`auto`, or a whole number, 1 to 1024", super::workers_schema, super::worker_processes),
        restart(), absent("`auto`"), example("4");
    /// The file of the access log: its path, or a map that names the format of its lines as well. `false`: no access log.
    enable_access_log: Custom<AccessLogSpec> = custom("path, map, or `false`", access_log::schema, access_log::read).with(&ACCESS_LOG),
        restart(), absent("`false`"), example("logs/access.log");
    /// The least severe messages that the error log has.
    error_log_level: Or<Words<LogLevel>> = words(LEVELS).or(LogLevel::Warn), restart();
    /// The address that serves `/status`, `/metrics` and other pages about the node. `false` disables it.
    status: Custom<Option<SocketAddr>> = custom("IP address with port, or `false`", listen::status_schema, listen::status_address), own(),
        restart(), absent("`127.0.0.1:7085`"), example("0.0.0.0:7085"), guide("observing.md");
    /// How long a node that was told to shut down accepts connections as before, while `/status/ready` answers 503, so that load balancers
    /// notice. The packages and the image have `10s`.
    shutdown_delay: Or<Time> = any_time().or(Duration::ZERO), own(), guide("operating.md#behind-a-load-balancer");
    /// How long a node waits for exchanges in flight when it shuts down.
    worker_shutdown_timeout: Or<Time> = any_time().or(Duration::from_secs(30));
    /// The DNS servers that are asked. Without a port, the port is 53.
    dns_resolver: List<ParsedText<SocketAddr>> = list(any_text().parsed(super::dns_server)),
        absent("those of `/etc/resolv.conf`"), example("[10.0.0.2, \"127.0.0.1:5353\"]");
    /// How long a DNS answer is used, in place of its TTL.
    dns_resolver_valid: Time = time(), absent("the TTL of the answer"), example("30s");
    /// The registries of services that upstreams with `discovery_type` take their endpoints from.
    discovery: SubMap<DiscoverySettings> = section(&DISCOVERY, weir_discovery::read), absent("none"),
        guide("configuration.md#service-discovery-by-eureka");
    /// CA certificates that certificates of upstreams are verified against: PEM text, `$env://NAME`, or the path of a PEM file.
    ssl_trusted_certificate: Custom<Pem> = custom("PEM text, or the path of a file", |_| json!({ "type": "string", "minLength": 1 }),
        certificate::pem_of_settings), absent("those of the system"), example("/etc/ssl/certs/internal-ca.pem"), guide("tls.md#to-upstreams");
    /// Whether certificates of upstreams with `scheme: https` are verified. `tls.verify` of an upstream overrides it.
    upstream_tls_verify: Flag = flag(), own(), absent("`true`"), guide("tls.md#to-upstreams");
    /// Forward paths with `%2F` and `%5C`, still encoded. Otherwise such requests are answered with 400.
    allow_encoded_slashes: Or<Flag> = flag().or(false), own(), compiles_routes();
    /// Remove empty segments from the paths that are forwarded, so that an upstream gets `/a//b` as `/a/b`. Routes are chosen, and
    /// plugins decide, by the path without them in any case. A path with dot segments is always forwarded without empty ones.
    merge_slashes: Or<Flag> = flag().or(false), own(), compiles_routes();
    /// Hosts for which the gateway obtains and renews certificates.
    acme: SubMap<AcmeSpec> = section(&ACME, acme::read), own(), absent("none"), guide("tls.md#automatic-certificates");
    /// The SPIFFE Workload API, for certificates (`svid`) and for the verification of clients and upstreams (`spiffe_ids`).
    spiffe: SubMap<SpiffeSettings> = section(&SPIFFE, spiffe::read), own(), absent("none"), guide("spiffe.md");
    /// Files whose resources are added to those of this file: paths, names with `*` and `?`, or directories.
    include: Form = form("text, or list: text", |_| json!({ "oneOf": [
            { "type": "string" }, { "type": "array", "items": { "type": "string" } }] })), own(), compiles_routes(),
        absent("none"), example("[upstreams.yaml, \"routes/*.yaml\"]"), guide("configuration.md#several-files");
    /// The plugins that may be used. Entries for stream plugins have no effect.
    plugins: List<SubMap<super::EnabledPlugin>> = list(section(&ENABLED_PLUGIN, super::enabled_plugin)), compiles_routes(),
        absent("all plugins"), example("[{ name: limit-count }]");
    /// Plugins of one's own, whose code is in WebAssembly files.
    wasm: SubMap<WasmSettings> = section(&WASM, wasm::read), compiles_routes(), absent("none"), guide("wasm.md");
    /// The Admin API. With it, resources are read from a store, unless it has `store: file`.
    admin: SubMap<AdminSettings> = section(&ADMIN, admin::read), own(), restart(), absent("none"), guide("admin-api.md");
    /// Where resources are read from instead of this file, which then must not contain any.
    store: Custom<StoreSettings> = custom("`embedded`, `standalone`, or a map", store::schema, store::store).with(&STORE), own(),
        restart(), absent("`embedded` with `admin`, otherwise none"), example("{ path: /var/lib/weir/store.redb }"), guide("admin-api.md");
    /// Makes this the file of a controller (`weir controller`): it follows a cluster, and serves no traffic.
    controller: SubMap<ServedClusterSettings> = section(&CONTROLLER, controller::read), own(), restart(), absent("none"),
        guide("kubernetes.md#controllers-apart-from-nodes");
    /// Environment variables that resources of a store may read with `$env://`. `*` at the end of a name stands for any rest.
    resource_env: List<Custom<NameRule>> = list(NAME_RULE), own(), absent("none"), example("[SHOP_TOKEN]"),
        guide("admin-api.md#variables-secrets-and-files");
    /// Secrets that resources of a store may read with `$secret://`, without this prefix.
    resource_secrets: List<Custom<NameRule>> = list(NAME_RULE), own(), absent("none"), example("[\"vault/1/shop/*\"]"),
        guide("admin-api.md#variables-secrets-and-files");
    /// Directories with files that resources of a store may read, relative to the directory of this file.
    resource_files: DistinctList<Text> = set(text(1, MOST_PATH)), own(), absent("none"),
        example("[certs]"), guide("admin-api.md#variables-secrets-and-files");
    /// Directories in which resources of a store may write files (`file-logger`), relative to the directory of this file. They must be
    /// separate from `resource_files`.
    resource_log_files: DistinctList<Text> = set(text(1, MOST_PATH)), own(), absent("none"),
        example("[logs]"), guide("admin-api.md#variables-secrets-and-files");
    /// Addresses that listeners of a store may name. A range of ports is written `:9000-9099`.
    resource_listeners: List<Custom<AllowedAddresses>> = list(custom("`:PORT`, or IP address with port; also a range of ports",
        listener::allowed_schema, listener::allowed)), own(), absent("none"), example("[\":9443\", \"127.0.0.1:9000-9099\"]"),
        guide("listeners.md#listeners-as-resources");
    /// The workloads that upstreams of a store may show an X.509-SVID of the node to, by their SPIFFE IDs; a trust domain stands for all
    /// of its workloads.
    resource_spiffe_ids: List<ParsedText<SpiffeId>> = list(spiffe::ID), own(), absent("none"),
        example("[\"spiffe://example.org/orders\"]"), guide("spiffe.md#resources-of-a-store");
    /// Encrypts keys, passwords and tokens in the store.
    data_encryption: SubMap<DataEncryption> = section(&DATA_ENCRYPTION, data_encryption::read), restart(), absent("no encryption"),
        guide("admin-api.md#encrypted-in-the-store");
    /// The directory for files that the node writes: the store, a generated key, and the spool of log records. The spool requires it.
    /// If systemd provides a directory (`StateDirectory=`), that is the default.
    data_dir: WrittenPath = written(WrittenName::Directory), own(), restart(), compiles_routes(), absent("`weir-data` beside the file"),
        example("/var/lib/weir");
    /// The cost of plugins, which `/policies` shows, is measured on one exchange in this many, chosen at random. 0 measures none.
    price_every: Or<Whole<u32>> = whole(0, 1_000_000).or(128), own();
    /// How many routes have metrics under their own names, how many upstreams, and how many endpoints. All others of a kind are summed
    /// under `(other)`.
    metrics_names: Or<Whole<u16>> = whole(0, 10_000).or(500), own(), restart(), guide("watching.md#how-many-series");
    /// The OpenTelemetry collector that gets the metrics.
    otlp_metrics: SubMap<OtlpMetricsSettings> = section(&OTLP_METRICS, otlp_metrics::read), own(), absent("none"),
        guide("watching.md#metrics-by-opentelemetry");
    /// The number of threads that encode and send log records.
    records_threads: Or<Whole<u16>> = whole(1, 64).or(1), own(), restart(), compiles_routes();
    /// The processors on which these threads run: `1` or `0,2-3`. If the machine does not have them, the threads run anywhere and the
    /// error log says so.
    records_cpus: Custom<Box<[u16]>> = custom("numbers and ranges, 0 to 1023", cpu_list::schema, cpu_list::read), own(), restart(),
        compiles_routes(), absent("those of the process"), example("\"0,2-3\""), guide("observing.md");
    /// The most memory for log records of all loggers together; each logger uses at most 64 MiB. Above it, records are dropped and
    /// counted.
    records_max_memory: Or<ByteSize> = size(1 << 20, u64::MAX).or(256 << 20), own(), restart(), compiles_routes();
}

const NAME_RULE: Custom<NameRule> =
    custom("name, or map", resource_access::rule_schema, resource_access::rule).with(&RESOURCE_RULE);

keys! {
    /// A plugin that may be used.
    pub(super) static ENABLED_PLUGIN: EnabledPluginKeys = "enabled_plugin";

    /// The name of the plugin.
    name: Text = text(1, 256), required("add `name: <plugin>`"), example("limit-count");
    /// Whether it is a stream plugin.
    stream: Or<Flag> = flag().or(false);
}
