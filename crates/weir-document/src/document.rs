//! The configuration as written: node settings and resources side by side, with Apache APISIX's names and defaults.
//!
//! Reading goes on after a fault: faults of the content are collected in the document; compiling adds its own and
//! reports all of them together.

mod access_log;
mod acme;
mod admin;
mod admin_access;
mod balance;
mod certificate;
mod checks;
mod condition;
mod consumer;
mod cpu_list;
mod data_encryption;
mod discovery;
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
mod store;
mod upstream;
mod written;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use weir_net::tls::CertificateDer;

use crate::text::diagnostic::{Diagnostic, FaultCause, Faults};
use crate::text::fingerprint::Fingerprint;
use crate::text::read::{MapReader, NodeReader, join};
use crate::text::substitute::VariableLookup;
use crate::text::tree::{NodeKind, TextPosition, TreeNode};
use crate::text::yaml::{self, Parsed, SourceText, TextLimits};

use include::DocumentText;
use lists::{LongLists, ReferringResource};
use references::{PlacedReference, ReferringText};
use resolved_texts::ResolvedTexts;
use resource_access::{RESOURCE_FILES, ResourceAccess};

pub use access_log::{AccessLogFormat, AccessLogSpec};
pub use acme::{AcmeHost, AcmeSpec, Challenge, ExternalAccount};
pub use admin::{AdminAddress, AdminKey, AdminSettings, AdminTls};
pub use admin_access::{AdminGrant, AdminRole, AdminScope, AdminTokens, TokenKeys, TokenRoles, is_trusted_url};
pub use balance::BalanceSpec;
pub use certificate::{ClientVerification, NamedBy, Pem, PemSource, ServerName, Ssl, UpstreamIdentity, UpstreamTls};
pub use checks::ActiveChecksSpec;
pub use consumer::{ConsumerSpec, CredentialSpec};
pub use data_encryption::{DataEncryption, EncryptionKey, UNREADABLE, all_unreadable};
pub use discovery::{ConsulSettings, DiscoverySettings, EurekaServer, EurekaSettings};
pub use file_schema::file_schema;
pub use hub::HubSpec;
pub use include::{IncludedFile, IncludedFiles, ReadIncluded};
pub use kinds::RESOURCE_LISTS;
pub use kubernetes::{KubernetesSettings, LeasePlace};
pub use listen::{Listen, ListenAddress};
pub use listener::{AllowedAddresses, ListenerSpec};
pub use lists::SpecList;
pub use names::{NameQuery, ResolvedName, ResolvedNames, ServiceInstance};
pub use otlp_metrics::{MetricsProtocol, OtlpMetricsSettings, ResourceAttribute};
pub use persistence::PersistenceSpec;
pub use plugin_set::PluginSet;
pub use plugins::{ErrorResponse, PluginSpec, PluginSpecs};
pub use resolved_texts::ResolvedText;
pub use resource::{Reference, ResourceOrigin};
pub use resource_access::{NameRule, ResourceRights};
pub use route::{RouteSpec, ServiceSpec};
pub use scheme::Scheme;
pub use secret_fields::{
    ApisixStorage, MASK, PENDING_SECRET, SecretField, for_each_secret, is_secret_at, mark_secrets, mask_secrets,
};
pub use secret_reference::SecretReference;
pub use secrets::SecretManager;
pub use settings::{LogLevel, NodeSettings};
pub use shares::TrafficShare;
pub use store::{EtcdSettings, EtcdTlsFiles, StoreKind, StoreSettings};
pub use upstream::{NodeSpec, NodesFile, UpstreamSpec};
pub use written::WrittenResource;

/// A configuration as written.
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
    /// The listeners that are resources, beside those of the setting `listen`.
    pub listeners: Vec<ListenerSpec>,
    pub consumers: Vec<ConsumerSpec>,
    pub credentials: Vec<CredentialSpec>,
    pub consumer_groups: Vec<PluginSet>,
    /// `plugin_metadata`: settings of a plugin that apply wherever the plugin is used.
    pub plugin_metadata: Vec<PluginSpec>,
    /// The managers of the secrets that options of plugins refer to.
    managers: Vec<SecretManager>,
    /// The references to secrets, each with its position.
    secrets: Vec<PlacedReference>,
    /// The resources of long lists that refer to secrets, if the document comes from a store.
    referring: Vec<Arc<ReferringResource>>,
    /// The references that were replaced by their values, so that messages do not quote these.
    resolved: ResolvedTexts,
    /// APISIX's list `plugins`: if present, no other plugin may be used.
    pub enabled_plugins: Option<HashSet<Box<str>>>,
    /// The names to look up, collected on first use.
    queries: OnceLock<BTreeSet<NameQuery>>,
    /// The results of the lookups of host and service names in upstreams, filled in by the store.
    pub found: ResolvedNames,
    /// The contents of referenced files and variables, filled in by the store.
    pub files: NamedFiles,
    /// The directory that relative file names start from.
    pub directory: PathBuf,
    /// The certificate authorities that the system trusts, in DER; filled in only if needed.
    pub system_roots: Vec<CertificateDer<'static>>,
    /// The nodes read from the files of `nodes_file`, by the path as written.
    pub node_files: HashMap<Box<str>, Vec<NodeSpec>>,
    /// The store revision of the resources; `None` if they come from a file.
    pub store_revision: Option<u64>,
    /// What the resources may use of the node; `None` if they come from its file, whose author may use everything.
    pub access: Option<Arc<ResourceAccess>>,
    /// When the document was read: the time against which the expiry of certificates is checked.
    pub read_at: SystemTime,
    /// The faults that were found without knowledge of the plugins.
    pub faults: Vec<Diagnostic>,
    /// The fingerprint of each top-level key except the long lists.
    sections: Vec<(Box<str>, Fingerprint)>,
    /// The positions of the top-level values, by their keys.
    places: Vec<(Box<str>, TextPosition)>,
    /// The text that the document was parsed from, if any.
    text: Option<DocumentText>,
    /// The same document with the position of every value, parsed when a position is first needed.
    tree: OnceLock<TreeNode>,
    /// The tree with references to secrets, from which the document is built again once their values are known.
    with_references: Option<TreeNode>,
}

/// The content of each file by its name as written, or why it cannot be read. Reading is I/O, so it is done before compiling.
pub type Files = HashMap<Box<str>, Result<Arc<[u8]>, String>>;

/// The files of a document, apart by who names them.
#[derive(Clone, Debug, Default)]
pub struct NamedFiles {
    pub of_settings: Files,
    pub of_resources: Files,
}

impl NamedFiles {
    /// `None`: it was not read, since it may not be.
    pub fn get(&self, name: &str, by: NamedBy) -> Option<&Result<Arc<[u8]>, String>> {
        match by {
            NamedBy::Settings => self.of_settings.get(name),
            NamedBy::Resource => self.of_resources.get(name),
        }
    }
}

impl Document {
    /// Parses a text and reads the document from it.
    ///
    /// # Errors
    /// If the text is not valid YAML. All other faults are in the document.
    pub fn parse(
        source: &str,
        text: &str,
        lookup: VariableLookup,
        limits: TextLimits,
    ) -> Result<Document, Vec<Diagnostic>> {
        let name = source.into();
        Document::parse_including(source, text, lookup, limits, &mut |node| include::refuse_files(&name, node))
    }

    /// Like [`Document::parse`], for a text that may include other files; `read` reads them.
    ///
    /// # Errors
    /// If the text is not valid YAML. If the included files have faults, the document contains only these faults.
    pub fn parse_including(
        source: &str,
        text: &str,
        lookup: VariableLookup,
        limits: TextLimits,
        read: ReadIncluded,
    ) -> Result<Document, Vec<Diagnostic>> {
        let source: Arc<str> = source.into();
        let text = SourceText::new(&source, text, lookup, limits)?;
        let Parsed { mut tree, faults } = text.parse()?;
        let include = settings::include(&tree).map(|entry| (entry.key_place, read(&entry.value)));
        let (place, IncludedFiles { files, faults: mut of_files }) = include.unwrap_or_default();
        let mut lists = resources_in(&tree);
        lists.extend(place.known().then_some(("include", place)));
        let (text, of_merge) = DocumentText::merge(text, &mut tree, files);
        of_files.extend(of_merge);
        if !of_files.is_empty() {
            // With an incomplete tree, other checks would report missing resources, so the document stays empty.
            let nothing = TreeNode::unplaced(NodeKind::Map(Vec::new()));
            return Ok(Document::of_tree(source, nothing, of_files, lookup));
        }
        let mut document = Document::of_tree(source, tree, faults, lookup);
        document.text = Some(text);
        document.refuse_two_places_for_resources(lists);
        Ok(document)
    }

    /// Reads a tree, after its references to the environment are resolved. `faults` are faults found earlier.
    pub(crate) fn of_tree(
        source: Arc<str>,
        mut tree: TreeNode,
        mut faults: Vec<Diagnostic>,
        lookup: VariableLookup,
    ) -> Document {
        let mut resolved = Vec::new();
        faults.extend(references::resolve(&source, &mut tree, lookup, ReferringText::Document(None), &mut resolved));
        Document::of_parts(source, tree, None, (faults, resolved), None)
    }

    /// Like [`Document::of_tree`], for the resources of a store: the long lists are already read, everything else is in the tree.
    pub fn of_resources(
        source: Arc<str>,
        mut tree: TreeNode,
        lists: LongLists,
        lookup: VariableLookup,
        access: Arc<ResourceAccess>,
    ) -> Document {
        let (of, mut resolved) = (ReferringText::Document(Some(&access)), Vec::new());
        let faults = references::resolve(&source, &mut tree, lookup, of, &mut resolved);
        Document::of_parts(source, tree, Some(lists), (faults, resolved), Some(access))
    }

    fn of_parts(
        source: Arc<str>,
        mut tree: TreeNode,
        lists: Option<LongLists>,
        (mut faults, resolved): (Vec<Diagnostic>, Vec<ResolvedText>),
        access: Option<Arc<ResourceAccess>>,
    ) -> Document {
        let (secrets, wrong) = references::secrets(&source, &mut tree, ReferringText::Document(access.as_deref()));
        faults.extend(wrong);
        let referring = lists.as_ref().map(|lists| lists.referring.clone()).unwrap_or_default();
        let with_references = (!secrets.is_empty() || !referring.is_empty()).then(|| tree.clone());
        let mut document = Document::build(source, tree, lists);
        document.secrets = secrets;
        document.access = access;
        let of_lists = referring.iter().flat_map(|one| &one.secrets);
        document.secrets.extend(of_lists.cloned());
        document.referring = referring;
        document.with_references = with_references;
        document.resolved.own = resolved;
        faults.append(&mut document.faults);
        faults.extend(document.without_manager());
        document.set_faults(faults);
        document
    }

    /// Resources come either from the file or from a store, not from both. `lists` are those present in the file.
    fn refuse_two_places_for_resources(&mut self, lists: Vec<(&'static str, TextPosition)>) {
        if self.settings.store.is_none() {
            return;
        }
        let problem = "this file contains resources, but `admin` or `store` says that resources come from a store";
        let advice =
            "import the resources with `weir store import` and remove them here, or remove `admin` and `store`";
        self.faults.extend(lists.into_iter().map(|(list, place)| Diagnostic {
            path: list.to_owned(),
            ..Diagnostic::at_place(&self.source, place, problem).advise(advice)
        }));
    }

    /// The references to secrets, each with the manager that keeps the secret.
    pub fn secrets(&self) -> impl Iterator<Item = (&SecretManager, &SecretReference)> {
        self.secrets.iter().filter_map(|found| Some((self.manager(&found.secret)?, &found.secret)))
    }

    /// The same document with references replaced by the values of the secrets. A secret that cannot be read is a fault.
    pub fn with_secrets(
        mut self,
        value: impl Fn(&SecretManager, &SecretReference) -> Result<String, String>,
    ) -> Document {
        let Some(mut tree) = self.with_references.take() else {
            return self;
        };
        let lists = self.store_revision.is_some().then(|| self.take_lists());
        let Document { source, text, managers, secrets, store_revision, access, resolved, .. } = self;
        let mut resolved = resolved.own;
        let find = |secret: &SecretReference| {
            let keeper = managers.iter().find(|manager| manager.id == secret.manager);
            let keeper = keeper.ok_or_else(|| format!("there is no secrets manager `{}`", secret.manager))?;
            value(keeper, secret)
        };
        let faults = references::put_secrets(&source, &mut tree, &find, &mut resolved);
        let lists = lists.map(|mut lists| {
            lists.put_secrets(&source, &find);
            lists
        });
        let mut document = Document::build(source, tree, lists);
        document.secrets = secrets;
        document.store_revision = store_revision;
        document.access = access;
        document.text = text;
        document.resolved.own = resolved;
        let faults = document.faults.drain(..).chain(faults).collect();
        document.set_faults(faults);
        document
    }

    fn set_faults(&mut self, faults: Vec<Diagnostic>) {
        self.faults = faults.into_iter().map(|fault| self.resolved.hidden_in(fault)).collect();
    }

    /// Whether the value at this path is a reference to a secret that was not fetched (`weir check` fetches none), or cannot be read,
    /// which is a fault of its own. Such a value is not a fault of the options.
    pub fn awaits_secret(&self, options: &serde_json::Value, path: &str) -> bool {
        !self.secrets.is_empty() && references::is_secret(options, path)
    }

    fn manager(&self, secret: &SecretReference) -> Option<&SecretManager> {
        self.managers.iter().find(|manager| manager.id == secret.manager)
    }

    fn without_manager(&self) -> impl Iterator<Item = Diagnostic> {
        let unknown = self.secrets.iter().filter(|found| self.manager(&found.secret).is_none());
        unknown.map(|PlacedReference { secret, path, place }| {
            let problem = format!("there is no secrets manager `{}`", secret.manager);
            let fault = Diagnostic::at_place(&self.source, *place, problem).advise("add it to the list `secrets`");
            let cause = FaultCause::missing("secrets", &secret.manager);
            Diagnostic { path: path.clone(), cause, ..fault }
        })
    }

    /// The position of the value at a path such as `routes[2].uri`, or of its closest ancestor that exists.
    ///
    /// The first lookup inside a list parses the text again: positions are rarely needed, and a tree with all of them would add a
    /// third to the memory of each document.
    pub fn place_at(&self, path: &str) -> TextPosition {
        if !path.contains(['.', '[']) {
            return self.places.iter().find(|(key, _)| **key == *path).map(|(_, place)| *place).unwrap_or_default();
        }
        let Some(text) = &self.text else { return TextPosition::default() };
        self.tree.get_or_init(|| text.tree()).place_of(path)
    }

    /// The same diagnostic, with the name, line and path in the included file that it concerns, and with references in place of
    /// their values.
    pub fn located(&self, diagnostic: Diagnostic) -> Diagnostic {
        let diagnostic = self.resolved.hidden_in(diagnostic);
        match &self.text {
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

    /// Reads a document from a tree, without resolving references.
    pub fn read(source: Arc<str>, tree: TreeNode) -> Document {
        Document::build(source, tree, None)
    }

    /// If `lists` is `None`, the long lists are read from the tree.
    fn build(source: Arc<str>, mut tree: TreeNode, lists: Option<LongLists>) -> Document {
        let faults =
            if lists.is_some() { Faults::of_each_resource(source.clone()) } else { Faults::new(source.clone()) };
        let mut document = Document::empty(source, &tree);
        let nodes = LongLists::KEYS.map(|key| tree.take_list(key));
        let root = NodeReader::root(&tree, &faults);
        let lists_of_resources: Vec<&str> = kinds::KINDS.iter().map(|kind| kind.list).collect();
        if let Some(fields) = root.map_with(settings::table(), &lists_of_resources) {
            document.settings = settings::read(&fields);
            document.acme = settings::acme(&fields);
            // The lists were taken out of the tree; this reports a value that is not a list.
            LongLists::KEYS.iter().filter_map(|key| fields.get(key)).for_each(|at| drop(at.items()));
            document.put_lists(lists.unwrap_or_else(|| LongLists::of_nodes(nodes, &faults)), &faults);
            document.read_resources(&fields);
            document.enabled_plugins = settings::enabled_plugins(&fields);
            refuse_what_is_not_served(&fields);
        }
        document.faults = faults.into_diagnostics();
        document
    }

    /// The combined fingerprint of the top-level keys that `wanted` accepts. The long lists (routes, services, upstreams,
    /// plugin_configs) are not included.
    pub fn sections(&self, wanted: impl Fn(&str) -> bool) -> Fingerprint {
        Fingerprint::of_all(self.sections.iter().filter(|(key, _)| wanted(key)).map(Fingerprint::of))
    }

    /// A document of a tree from which nothing has been read yet.
    fn empty(source: Arc<str>, tree: &TreeNode) -> Document {
        Document {
            source,
            settings: NodeSettings::default(),
            acme: None,
            routes: SpecList::default(),
            enabled_routes: 0,
            services: SpecList::default(),
            upstreams: SpecList::default(),
            plugin_configs: SpecList::default(),
            global_rules: Vec::new(),
            ssls: Vec::new(),
            hubs: Vec::new(),
            listeners: Vec::new(),
            consumers: Vec::new(),
            credentials: Vec::new(),
            consumer_groups: Vec::new(),
            plugin_metadata: Vec::new(),
            managers: Vec::new(),
            secrets: Vec::new(),
            referring: Vec::new(),
            resolved: ResolvedTexts::default(),
            enabled_plugins: None,
            queries: OnceLock::new(),
            found: ResolvedNames::new(),
            files: NamedFiles::default(),
            directory: PathBuf::new(),
            system_roots: Vec::new(),
            node_files: HashMap::new(),
            store_revision: None,
            access: None,
            read_at: SystemTime::now(),
            faults: Vec::new(),
            sections: Fingerprint::of_entries(tree, |key| !LongLists::KEYS.contains(&key)),
            places: places(tree),
            text: None,
            tree: OnceLock::new(),
            with_references: None,
        }
    }

    fn put_lists(&mut self, lists: LongLists, faults: &Faults) {
        let LongLists { routes, enabled_routes, services, upstreams, plugin_configs, .. } = lists;
        let LongLists { faults: found, referring, resolved, .. } = lists;
        found.into_iter().for_each(|fault| faults.add(fault));
        self.routes = routes;
        self.enabled_routes = enabled_routes;
        self.services = services;
        self.upstreams = upstreams;
        self.plugin_configs = plugin_configs;
        self.referring = referring;
        self.resolved.of_lists = resolved;
    }

    fn take_lists(&mut self) -> LongLists {
        LongLists {
            routes: std::mem::take(&mut self.routes),
            enabled_routes: self.enabled_routes,
            services: std::mem::take(&mut self.services),
            upstreams: std::mem::take(&mut self.upstreams),
            plugin_configs: std::mem::take(&mut self.plugin_configs),
            faults: Vec::new(),
            referring: std::mem::take(&mut self.referring),
            resolved: std::mem::take(&mut self.resolved.of_lists),
        }
    }

    /// Reads the resources of the lists that are not long.
    fn read_resources(&mut self, fields: &MapReader) {
        let sets = |key, read: fn(&NodeReader, usize) -> Option<PluginSet>| {
            resource::list(fields, key, read, |set: &PluginSet| (&*set.id).into())
        };
        self.global_rules = sets("global_rules", plugin_set::read_global_rule);
        self.consumer_groups = sets("consumer_groups", plugin_set::read);
        for item in resource::list(fields, "consumers", consumer::read, |item| item.key().into()) {
            match item {
                consumer::ConsumerItem::Consumer(consumer) => self.consumers.push(consumer),
                consumer::ConsumerItem::Credential(credential) => self.credentials.push(credential),
            }
        }
        self.plugin_metadata =
            resource::list(fields, "plugin_metadata", plugins::read_metadata, |one| (&*one.name).into());
        self.ssls = resource::list(fields, "ssls", certificate::read, |ssl| (&*ssl.id).into());
        self.hubs = resource::list(fields, "hubs", hub::read, |hub| (&*hub.id).into());
        self.listeners = resource::list(fields, "listeners", listener::read_resource, |one| (&*one.id).into());
        self.managers = resource::list(fields, "secrets", secrets::read, |one| (&*one.id).into());
    }

    /// The addresses to accept clients on. Listeners with hosts may share one.
    pub fn listens(&self) -> impl Iterator<Item = &Listen> {
        self.settings.listen.iter().chain(self.listeners.iter().map(|listener| &listener.listen))
    }

    /// Each address once.
    pub fn listened_addresses(&self) -> Vec<&Listen> {
        let mut known = HashSet::new();
        self.listens().filter(|one| one.address.port() == 0 || known.insert(one.address.socket_addr())).collect()
    }

    /// The names that must be resolved before endpoints have addresses.
    pub fn queries(&self) -> &BTreeSet<NameQuery> {
        self.queries.get_or_init(|| {
            let hosts = self.nodes().filter_map(NodeSpec::host_name).map(|name| NameQuery::Host(name.into()));
            let services = self.noted_upstreams().filter_map(|upstream| upstream.service.as_ref());
            hosts.chain(services.map(|(query, _)| query.clone())).collect()
        })
    }

    /// The position of a name that is looked up.
    pub fn place_of(&self, query: &NameQuery) -> TextPosition {
        let place = match query {
            NameQuery::Host(name) => self.nodes().find(|node| node.host_name() == Some(&**name)).map(|node| node.place),
            NameQuery::Service(_) | NameQuery::Eureka(_) | NameQuery::Consul(_) => {
                let mut services = self.noted_upstreams().filter_map(|upstream| upstream.service.as_ref());
                services.find(|(service, _)| service == query).map(|(_, place)| *place)
            }
        };
        place.unwrap_or_default()
    }

    /// The files that the settings of the node name, to read before the document is compiled: names of files, and `$env://NAME`.
    pub fn files_of_settings(&self) -> BTreeSet<&str> {
        let authority = self.acme.iter().filter_map(|acme| acme.authorities.as_ref());
        authority.chain(&self.settings.trusted).filter_map(Pem::elsewhere).collect()
    }

    /// The same for resources. Files that a resource of a store may not read are left out: a message about a file tells at least
    /// whether it exists.
    pub fn files_of_resources(&self) -> BTreeSet<&str> {
        let of_upstreams = self.noted_upstreams().flat_map(|upstream| upstream.tls.pems());
        let pems = self.ssls.iter().flat_map(Ssl::pems).chain(of_upstreams).filter_map(Pem::elsewhere);
        let names = pems.chain(self.node_files_named().map(|file| &*file.path));
        names.filter(|name| self.access.as_ref().is_none_or(|access| access.may_read(name))).collect()
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
            upstream.tls.authorities.is_none() && (upstream.scheme.is_secured() && verify || checks == Some(true))
        };
        let acme = self.acme.as_ref().is_some_and(|acme| acme.authorities.is_none());
        acme || self.settings.trusted.is_none() && self.noted_upstreams().any(needs)
    }

    /// Parses the content of the `nodes_file`s. Their faults become faults of the document.
    pub fn read_nodes(&mut self, lookup: VariableLookup, limits: TextLimits) {
        let path = |upstream: &UpstreamSpec| join(&upstream.origin.path, "nodes_file");
        let named = self.noted_upstreams().filter_map(|one| Some((path(one), one.nodes_file.clone()?)));
        let named: Vec<(String, NodesFile)> = named.collect();
        self.queries = OnceLock::new();
        let access = self.access.clone();
        // No resource may read the variable, only those that name the file.
        let may_read = |name: &str| access.as_ref().is_none_or(|access| access.variable("", name).is_ok());
        let lookup = |name: &str| lookup(name).filter(|_| may_read(name));
        for (at, NodesFile { path, place, default_port }) in named {
            let text = match self.files.get(&path, NamedBy::Resource) {
                Some(Ok(content)) => std::str::from_utf8(content).map_err(|_| "it is not UTF-8".to_owned()),
                Some(Err(reason)) => Err(reason.clone()),
                None => {
                    let problem = format!("the file `{path}` may not be named by a resource of the store");
                    let fault = Diagnostic { path: at, ..Diagnostic::at_place(&self.source, place, problem) };
                    self.faults.push(fault.advise(RESOURCE_FILES));
                    continue;
                }
            };
            let source: Arc<str> = (*path).into();
            let found = match text.map(|text| yaml::parse(&source, text, &lookup, limits)) {
                Ok(Ok(Parsed { tree, faults: mut found })) => {
                    let faults = Faults::new(source);
                    let nodes = upstream::nodes(&NodeReader::root(&tree, &faults), default_port);
                    self.node_files.insert(path.clone(), nodes);
                    found.extend(faults.into_diagnostics());
                    found
                }
                Ok(Err(faults)) => faults,
                Err(reason) => {
                    let problem = format!("the file `{path}` cannot be read: {reason}");
                    let fault = Diagnostic::at_place(&self.source, place, problem);
                    let cause = FaultCause::of_unread_file(&reason);
                    self.faults.push(Diagnostic { path: at, cause, ..fault });
                    continue;
                }
            };
            if self.store_revision.is_none() {
                self.faults.extend(found);
            } else if let Some(fault) = found.first() {
                // It is a fault of the resource, which is set aside. Not everyone who reads it may read the file, so nothing of the
                // content is repeated: not even a key.
                let of_file = fault.line.zip(fault.column);
                let of_file =
                    of_file.map_or(String::new(), |(line, column)| format!(" at line {line} column {column}"));
                let problem = format!("the file `{path}` is not a list of nodes: there is a fault{of_file}");
                let fault = Diagnostic::at_place(&self.source, place, problem);
                self.faults.push(Diagnostic { path: at, ..fault }.outside());
            }
        }
    }

    fn node_files_named(&self) -> impl Iterator<Item = &NodesFile> {
        self.noted_upstreams().filter_map(|upstream| upstream.nodes_file.as_ref())
    }

    /// All nodes of all upstreams, which may have host names.
    fn nodes(&self) -> impl Iterator<Item = &NodeSpec> {
        self.noted_upstreams().flat_map(|upstream| &upstream.nodes).chain(self.node_files.values().flatten())
    }

    /// The upstreams that need more than their own text (see `ListedSpec::is_noted`), in their list, inline, or in options of
    /// plugins.
    pub fn noted_upstreams(&self) -> impl Iterator<Item = &UpstreamSpec> {
        let inline = self.routes.noted().filter_map(|route| route.upstream.as_deref());
        let of_services = self.services.noted().filter_map(|service| service.upstream.as_ref());
        let of_plugins = self.shares().filter_map(|(_, _, share)| share.upstream.as_ref());
        self.upstreams.noted().chain(inline).chain(of_services).chain(of_plugins)
    }

    /// The shares of traffic that plugins give to upstreams, with the kind and id of the resource that contains the plugin.
    pub fn shares(&self) -> impl Iterator<Item = (&'static str, &str, &TrafficShare)> {
        let routes = self.routes.noted().map(|route| ("route", &*route.id, &route.plugins));
        let services = self.services.noted().map(|service| ("service", &*service.id, &service.plugins));
        let consumers = self.consumers.iter().map(|consumer| ("consumer", &*consumer.username, &consumer.plugins));
        let owners = routes.chain(services).chain(consumers);
        let configs = self.plugin_configs.noted().map(|set| ("plugin_config", set));
        let rules = self.global_rules.iter().map(|set| ("global_rule", set));
        let groups = self.consumer_groups.iter().map(|set| ("consumer_group", set));
        let sets = configs.chain(rules).chain(groups).map(|(kind, set)| (kind, &*set.id, &set.plugins));
        owners.chain(sets).flat_map(|(kind, id, plugins)| {
            plugins.iter().flat_map(|plugin| &plugin.shares).map(move |share| (kind, id, share))
        })
    }
}

/// The lists of resources in a file that are not empty, with their positions.
fn resources_in(tree: &TreeNode) -> Vec<(&'static str, TextPosition)> {
    let has_items = |node: &TreeNode| match &node.kind {
        NodeKind::Null => false,
        NodeKind::List(items) => !items.is_empty(),
        _ => true,
    };
    let entry = |list: &&'static str| tree.entry(list).map(|entry| (*list, entry));
    let entries = RESOURCE_LISTS.iter().filter_map(entry);
    entries.filter(|(_, entry)| has_items(&entry.value)).map(|(list, entry)| (list, entry.key_place)).collect()
}

/// The positions of the values of a map, by their keys.
fn places(tree: &TreeNode) -> Vec<(Box<str>, TextPosition)> {
    let NodeKind::Map(entries) = &tree.kind else { return Vec::new() };
    entries.iter().map(|entry| (entry.key.clone(), entry.value.place)).collect()
}

fn refuse_what_is_not_served(fields: &MapReader) {
    let not_served = kinds::KINDS.iter().filter(|kind| !kind.is_served);
    for list in not_served.filter_map(|kind| fields.get(kind.list)) {
        if !list.is_list() {
            list.report_advising("expected a list", "write `[]` or leave it out");
            continue;
        }
        // Each item, so that a store sets all of them aside at once.
        for item in list.items() {
            item.report_advising(
                "this kind of resource is not supported yet by this version",
                "leave the list out; its entries would have no effect",
            );
        }
    }
}
