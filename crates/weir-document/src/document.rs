//! The configuration as written: node settings and resources side by side, with Apache APISIX's names and defaults.
//!
//! Reading goes on after a fault: faults of the content are collected in the document; compiling adds its own and
//! reports all of them together.

mod access_log;
mod acme;
mod admin;
mod admin_access;
mod admin_environments;
mod admin_oidc;
mod balance;
mod certificate;
mod checks;
mod complete;
mod condition;
mod consumer;
mod controller;
mod cpu_list;
mod data_encryption;
#[cfg(test)]
mod declared;
mod file_schema;
mod hub;
mod hub_log;
mod include;
pub mod kinds;
mod kubernetes;
mod listen;
mod listener;
pub mod lists;
mod methods;
mod names;
mod network;
mod otlp_metrics;
mod own_files;
mod persistence;
mod plugin_set;
mod plugins;
mod proto;
mod reading;
mod reference_text;
mod references;
mod resolved_texts;
mod resource;
pub mod resource_access;
mod route;
mod scheme;
mod secret_fields;
mod secret_reference;
mod secrets;
pub mod settings;
mod shared_list;
mod shares;
mod spiffe;
mod store;
mod stream_route;
mod text_positions;
mod upstream;
mod wasm;
mod written;
mod written_document;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use crate::text::diagnostic::Diagnostic;

use references::KeptReferences;
use resolved_texts::ResolvedTexts;
use resource_access::ResourceAccess;
use text_positions::TextPositions;

pub use access_log::{AccessLogFormat, AccessLogSpec};
pub use acme::{AcmeHost, AcmeSpec, Challenge, ExternalAccount};
pub use admin::{AdminAddress, AdminKey, AdminSettings, AdminTls, DraftRight};
pub use admin_access::{AdminGrant, AdminRole, AdminScope, AdminTokens, TokenKeys, TokenRoles, is_trusted_url};
pub use admin_environments::AdminEnvironment;
pub use admin_oidc::{AdminOidc, OIDC_CALLBACK, SecretProof, is_local_name};
pub use balance::BalanceSpec;
pub use certificate::{
    ClientAuthorities, ClientVerification, NamedBy, Pem, PemSource, ServerName, Ssl, UpstreamIdentity, UpstreamTls,
};
pub use checks::ActiveChecksSpec;
pub use complete::{BesideDocument, CompleteDocument, Files, NamedFiles};
pub use consumer::{ConsumerSpec, CredentialSpec};
pub use controller::{
    ControllerCertificates, EnrolmentFiles, IssueSettings, MutualTlsFiles, NodeCertificates, NodeNames, PullSettings,
    ServedClusterSettings,
};
pub use data_encryption::{DataEncryption, EncryptionKey, UNREADABLE, all_unreadable};
pub use file_schema::file_schema;
pub use hub::HubSpec;
pub use include::{IncludedFile, IncludedFiles, ReadIncluded};
pub use kinds::RESOURCE_LISTS;
pub use kubernetes::{KubernetesSettings, LeasePlace};
pub use listen::{Listen, ListenAddress};
pub use listener::{AllowedAddresses, ListenerSpec};
pub use lists::SpecList;
pub use names::{NameQuery, ResolvedName, ResolvedNames};
pub use otlp_metrics::{MetricsProtocol, OtlpMetricsSettings, ResourceAttribute};
pub use persistence::PersistenceSpec;
pub use plugin_set::PluginSet;
pub use plugins::{ErrorResponse, PluginSpec, PluginSpecs};
pub use proto::{ProtoSpec, TRANSCODING};
pub use resolved_texts::ResolvedText;
pub use resource::{Reference, ReferringPlugin, ResourceOrigin, is_path_step, is_position_id, position_id};
pub use resource_access::{NameRule, ResourceRights, SvidRight};
pub use route::{RouteSpec, ServiceSpec};
pub use scheme::Scheme;
pub use secret_fields::{
    ApisixStorage, MASK, PENDING_SECRET, SecretField, for_each_secret, is_secret_at, is_shown_to_none, mark_secrets,
    mask_secrets,
};
pub use secret_reference::{SecretReference, UnreadSecret};
pub use secrets::SecretManager;
pub use settings::{LogLevel, NodeSettings};
pub use shares::{PAGING, SPLITTING, TrafficShare};
pub use spiffe::{SpiffeSettings, SvidChoice, SvidName, WorkloadEndpoint, WorkloadIdentity, X509Svid};
pub use store::{EtcdSettings, EtcdTlsFiles, StoreKind, StoreSettings};
pub use stream_route::StreamRouteSpec;
pub use upstream::{NodeSpec, NodesFile, UpstreamSpec};
pub use wasm::{WasmPluginSpec, WasmSettings};
pub use written::{WrittenResource, find_written};
pub use written_document::WrittenDocument;

/// A configuration as read: node settings and resources.
///
/// It is the second of three stages. A [`WrittenDocument`] may contain references to secrets, of which this one has the values (unless
/// it is only checked), and a [`CompleteDocument`] has in addition what the files and names stand for that are mentioned here.
#[derive(Debug)]
pub struct Document {
    /// The name of the file, or of the store, for diagnostics.
    pub source: Arc<str>,
    pub settings: NodeSettings,
    /// The hosts whose certificates are obtained from an ACME authority.
    pub acme: Option<AcmeSpec>,
    pub routes: SpecList<RouteSpec>,
    /// The number of routes that are not switched off (`status: 0`).
    pub enabled_routes: usize,
    pub services: SpecList<ServiceSpec>,
    pub upstreams: SpecList<UpstreamSpec>,
    pub plugin_configs: SpecList<PluginSet>,
    pub global_rules: Vec<PluginSet>,
    pub ssls: Vec<Ssl>,
    pub hubs: Vec<HubSpec>,
    /// The ids of hubs that are left out because of a fault.
    pub unread_hubs: Vec<Box<str>>,
    /// The listeners that are resources, beside those of the setting `listen`.
    pub listeners: Vec<ListenerSpec>,
    pub stream_routes: Vec<StreamRouteSpec>,
    pub consumers: Vec<ConsumerSpec>,
    pub credentials: Vec<CredentialSpec>,
    pub consumer_groups: Vec<PluginSet>,
    /// `plugin_metadata`: settings of a plugin that apply wherever the plugin is used.
    pub plugin_metadata: Vec<PluginSpec>,
    /// The managers of the secrets that options of plugins refer to.
    managers: Vec<SecretManager>,
    /// The definitions that options of plugins refer to.
    pub protos: Vec<ProtoSpec>,
    /// APISIX's list `plugins`: if present, no other plugin may be used.
    pub enabled_plugins: Option<HashSet<Box<str>>>,
    /// The store of the resources; `None` if they come from the file.
    store: Option<StoreOrigin>,
    /// When the document was read: the time against which the expiry of certificates is checked.
    pub read_at: SystemTime,
    /// The faults that were found without knowledge of the plugins.
    pub faults: Vec<Diagnostic>,
    /// What was found while the texts were read, and is no fault.
    pub read_warnings: Vec<Diagnostic>,
    /// The references that may stand in place of values of options.
    kept: KeptReferences,
    /// The references that were replaced by their values, so that messages do not quote these.
    resolved: ResolvedTexts,
    positions: TextPositions,
}

/// The store that the resources of a document come from.
#[derive(Clone, Debug)]
pub struct StoreOrigin {
    pub revision: u64,
    /// What the resources may use of the node. Those of its file may use everything.
    pub access: Arc<ResourceAccess>,
}

impl Document {
    /// What the resources may use of the node; `None` if they come from its file, whose author may use everything.
    pub fn access(&self) -> Option<&Arc<ResourceAccess>> {
        self.store.as_ref().map(|store| &store.access)
    }

    /// The store revision of the resources; `None` if they come from a file.
    pub fn store_revision(&self) -> Option<u64> {
        self.store.as_ref().map(|store| store.revision)
    }

    /// Whether the value at this path is a reference whose value was not looked up (`weir check` fetches no secrets), or cannot be read,
    /// which is a fault of its own. Such a value is not a fault of the options.
    pub fn awaits_value(&self, options: &serde_json::Value, path: &str) -> bool {
        self.kept.has(options, path)
    }

    /// The same diagnostic, with the name, line and path in the included file that it concerns, and with references in place of
    /// their values.
    pub fn located(&self, diagnostic: Diagnostic) -> Diagnostic {
        let diagnostic = self.resolved.hidden_in(diagnostic);
        match &self.positions.text {
            Some(text) => text.located(diagnostic),
            None => diagnostic,
        }
    }

    /// The path of a resource, for diagnostics about another one; with file and line if it is in an included file.
    pub fn named(&self, origin: &ResourceOrigin) -> String {
        let told = Diagnostic::at_place(&self.source, origin.place, "");
        let told = self.located(Diagnostic { path: origin.path.to_string(), ..told });
        match told.line.filter(|_| told.source != self.source) {
            Some(line) => format!("{} in {}:{line}", told.path, told.source),
            None => told.path,
        }
    }

    /// The addresses to accept clients on. Listeners with hosts may share one.
    pub fn listens(&self) -> impl Iterator<Item = &Listen> {
        self.settings.listen.iter().chain(self.listeners.iter().map(|listener| &listener.listen))
    }

    /// Each address once for each transport.
    pub fn listened_addresses(&self) -> Vec<&Listen> {
        let mut known = HashSet::new();
        let socket = |one: &Listen| (one.address.socket_addr(), one.settings.protocol.transport());
        self.listens().filter(|one| one.address.port() == 0 || known.insert(socket(one))).collect()
    }

    /// The files that the settings of the node name, to read before the document is compiled: names of files, and `$env://NAME`.
    pub fn files_of_settings(&self) -> BTreeSet<&str> {
        let authority = self.acme.iter().filter_map(|acme| acme.authorities.as_ref());
        authority.chain(&self.settings.trusted).filter_map(Pem::elsewhere).chain(self.plugin_files()).collect()
    }

    /// Those of them that are the code of plugins, and may be larger than others.
    pub fn plugin_files(&self) -> impl Iterator<Item = &str> {
        self.settings.wasm.plugins.iter().map(|plugin| &*plugin.file)
    }

    /// The same for resources. Files that a resource of a store may not read are left out: a message about a file tells at least
    /// whether it exists.
    pub fn files_of_resources(&self) -> BTreeSet<&str> {
        let of_upstreams = self.noted_upstreams().flat_map(|upstream| upstream.tls.pems());
        let pems = self.ssls.iter().flat_map(Ssl::pems).chain(of_upstreams).filter_map(Pem::elsewhere);
        let names = pems.chain(self.node_files_named().map(|file| &*file.path));
        names.filter(|name| self.access().is_none_or(|access| access.may_read(name))).collect()
    }

    /// The certificate files of `acme`, which may not exist yet.
    pub fn files_to_come(&self) -> impl Iterator<Item = String> {
        self.acme.iter().flat_map(|acme| acme.hosts.iter().map(|host| acme.file_of(&host.name)))
    }

    /// Whether some upstream, or the ACME authority, is verified with the authorities that the system trusts.
    pub fn needs_system_roots(&self) -> bool {
        let needs = |upstream: &UpstreamSpec| {
            let verify = upstream.tls.verify.unwrap_or(self.settings.verifies_upstreams());
            let checks = upstream.active.as_ref().and_then(|active| active.verifies(verify));
            let is_own = upstream.tls.authorities.is_some() || !upstream.tls.peers.is_empty();
            !is_own && (upstream.scheme.is_secured() && verify || checks == Some(true))
        };
        let acme = self.acme.as_ref().is_some_and(|acme| acme.authorities.is_none());
        acme || self.settings.trusted.is_none() && self.noted_upstreams().any(needs)
    }

    fn node_files_named(&self) -> impl Iterator<Item = &NodesFile> {
        self.noted_upstreams().filter_map(|upstream| upstream.nodes_file.as_ref())
    }

    /// The upstreams that need more than their own text (see `ListedSpec::is_noted`), in their list, inline, or in options of
    /// plugins.
    pub fn noted_upstreams(&self) -> impl Iterator<Item = &UpstreamSpec> {
        let inline = self.routes.noted().filter_map(|route| route.upstream.as_deref());
        let of_services = self.services.noted().filter_map(|service| service.upstream.as_ref());
        let of_streams = self.stream_routes.iter().filter_map(|route| route.upstream.as_deref());
        let of_plugins = self.shares().filter_map(|(_, _, share)| share.upstream.as_ref());
        self.upstreams.noted().chain(inline).chain(of_services).chain(of_streams).chain(of_plugins)
    }

    /// The shares of traffic that plugins give to upstreams, with the kind and id of the resource that contains the plugin.
    pub fn shares(&self) -> impl Iterator<Item = (&'static str, &str, &TrafficShare)> {
        let routes = self.routes.noted().map(|route| ("route", &*route.id, &route.plugins));
        let services = self.services.noted().map(|service| ("service", &*service.id, &service.plugins));
        let consumers = self.consumers.iter().map(|consumer| ("consumer", &*consumer.username, &consumer.plugins));
        let streams = self.stream_routes.iter().map(|route| ("stream_route", &*route.id, &route.plugins));
        let owners = routes.chain(services).chain(consumers).chain(streams);
        let configs = self.plugin_configs.noted().map(|set| ("plugin_config", set));
        let rules = self.global_rules.iter().map(|set| ("global_rule", set));
        let groups = self.consumer_groups.iter().map(|set| ("consumer_group", set));
        let sets = configs.chain(rules).chain(groups).map(|(kind, set)| (kind, &*set.id, &set.plugins));
        owners.chain(sets).flat_map(|(kind, id, plugins)| {
            plugins.iter().flat_map(|plugin| &plugin.shares).map(move |share| (kind, id, share))
        })
    }
}
