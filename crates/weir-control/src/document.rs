//! The configuration as written: node settings and resources side by side, with Apache APISIX's names and defaults.
//!
//! Reading finds every fault of a text that parses and keeps them in the document; [`crate::compile`] adds its own and
//! reports all at once.

mod access_log;
mod acme;
mod balance;
mod certificate;
mod checks;
mod condition;
mod consumer;
mod names;
mod persistence;
mod plugins;
mod references;
mod resource;
mod route;
mod secrets;
mod settings;
mod shares;
mod upstream;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use weir_net::tls::CertificateDer;

use crate::text::diagnostic::{Diagnostic, Faults};
use crate::text::fingerprint::Fingerprint;
use crate::text::read::{MapReader, NodeReader};
use crate::text::substitute::VariableLookup;
use crate::text::tree::{NodeKind, TextPosition, TreeNode};
use crate::text::yaml::{self, Parsed, TextLimits};

pub use access_log::{AccessLogFormat, AccessLogSpec};
pub use acme::{AcmeHost, AcmeSpec, Challenge, ExternalAccount};
pub use balance::BalanceSpec;
pub use certificate::{ClientVerification, Pem, PemSource, ServerName, Ssl, UpstreamIdentity, UpstreamTls};
pub use checks::ActiveChecksSpec;
pub use consumer::{ConsumerSpec, CredentialSpec};
pub use names::{NameQuery, ResolvedName, ResolvedNames};
pub use persistence::PersistenceSpec;
pub use plugins::{ErrorResponse, PluginSpec, PluginSpecs};
pub use references::SecretReference;
pub use resource::{Reference, ResourceOrigin};
pub use route::{RouteSpec, ServiceSpec};
pub use secrets::SecretManager;
pub use settings::{Listen, ListenAddress, LogLevel, NodeSettings};
pub use shares::TrafficShare;
pub use upstream::{NodeSpec, NodesFile, Scheme, UpstreamSpec};

/// A configuration as written.
#[derive(Debug)]
pub struct Document {
    /// The name of the file, or of what else it came from.
    pub source: Arc<str>,
    pub settings: NodeSettings,
    /// Hosts whose certificates come from an authority by themselves.
    pub acme: Option<AcmeSpec>,
    pub routes: Vec<RouteSpec>,
    pub services: Vec<ServiceSpec>,
    pub upstreams: Vec<UpstreamSpec>,
    pub plugin_configs: Vec<PluginSet>,
    pub global_rules: Vec<PluginSet>,
    pub ssls: Vec<Ssl>,
    pub consumers: Vec<ConsumerSpec>,
    pub credentials: Vec<CredentialSpec>,
    pub consumer_groups: Vec<PluginSet>,
    /// Settings of plugins that hold wherever these are used.
    pub plugin_metadata: Vec<PluginSpec>,
    /// Who keeps secrets that options of plugins refer to.
    managers: Vec<SecretManager>,
    /// What of them is referred to, and where.
    secrets: Vec<(SecretReference, TextPosition)>,
    /// APISIX's list `plugins`: if it is there, no other plugin may be used.
    pub enabled_plugins: Option<HashSet<Box<str>>>,
    /// What names among the upstreams stand for, as far as the store has looked them up.
    pub found: ResolvedNames,
    /// The texts that stand in files and variables, as far as the store has read them.
    pub files: Files,
    /// Where names of files start from.
    pub directory: PathBuf,
    /// Certificates of those the system trusts, DER, where they are needed.
    pub system_roots: Vec<CertificateDer<'static>>,
    /// The nodes that stand in files of their own.
    pub node_files: HashMap<Box<str>, Vec<NodeSpec>>,
    /// When it was read, to tell what has expired.
    pub read_at: SystemTime,
    /// What is wrong, as far as one can tell without knowing the plugins.
    pub faults: Vec<Diagnostic>,
    /// Of all but what is compiled part by part.
    pub(crate) context: Fingerprint,
    /// What all this was read from.
    pub tree: TreeNode,
}

/// The content of files by their names as written, or why they cannot be read. Reading is I/O, too.
pub type Files = HashMap<Box<str>, Result<Arc<[u8]>, String>>;

/// Plugins that are shared: a plugin_config, a consumer_group, or a global_rule.
#[derive(Clone, Debug)]
pub struct PluginSet {
    pub origin: ResourceOrigin,
    /// Of all that it says.
    pub(crate) content: Fingerprint,
    pub id: Box<str>,
    pub plugins: PluginSpecs,
}

/// Parts of the object model that have a name and a place but are not carried out yet. An empty list is fine.
const NOT_YET: &[&str] = &["protos", "stream_routes"];

/// Resources that are compiled one by one.
const PARTS: &[&str] = &["routes", "services", "upstreams", "plugin_configs"];

const RESOURCES: &[&str] = &[
    "routes",
    "services",
    "upstreams",
    "plugin_configs",
    "global_rules",
    "consumers",
    "consumer_groups",
    "plugin_metadata",
    "ssls",
    "secrets",
    "plugins",
];

impl Document {
    /// Parses and reads a text.
    ///
    /// # Errors
    /// Where the text is not even YAML. All other faults are in the document.
    pub fn parse(
        source: &str,
        text: &str,
        lookup: VariableLookup,
        limits: TextLimits,
    ) -> Result<Document, Vec<Diagnostic>> {
        let source: Arc<str> = source.into();
        let Parsed { mut tree, mut faults } = yaml::parse(&source, text, lookup, limits)?;
        faults.extend(references::resolve(&source, &mut tree, lookup));
        let (secrets, wrong) = references::secrets(&source, &mut tree);
        faults.extend(wrong);
        let mut document = Document::read(source, tree);
        document.secrets = secrets;
        faults.append(&mut document.faults);
        faults.extend(document.without_manager());
        document.faults = faults;
        Ok(document)
    }

    /// The secrets that options refer to, and who keeps them.
    pub fn secrets(&self) -> impl Iterator<Item = (&SecretManager, &SecretReference)> {
        self.secrets.iter().filter_map(|(secret, _)| Some((self.manager(secret)?, secret)))
    }

    /// The same configuration with secrets put in for what refers to them. What cannot be had is a fault.
    pub fn with_secrets(self, value: impl Fn(&SecretManager, &SecretReference) -> Result<String, String>) -> Document {
        let Document { source, mut tree, managers, secrets, .. } = self;
        let find = |secret: &SecretReference| {
            let keeper = managers.iter().find(|manager| manager.id == secret.manager);
            let keeper = keeper.ok_or_else(|| format!("there is no manager `{}`", secret.manager))?;
            value(keeper, secret)
        };
        let faults = references::put_secrets(&source, &mut tree, &find);
        let mut document = Document::read(source, tree);
        document.secrets = secrets;
        document.faults.extend(faults);
        document
    }

    fn manager(&self, secret: &SecretReference) -> Option<&SecretManager> {
        self.managers.iter().find(|manager| manager.id == secret.manager)
    }

    fn without_manager(&self) -> impl Iterator<Item = Diagnostic> {
        let unknown = self.secrets.iter().filter(|(secret, _)| self.manager(secret).is_none());
        unknown.map(|(secret, place)| {
            let problem = format!("there is no manager of secrets `{}`", secret.manager);
            Diagnostic::at_place(&self.source, *place, problem).advise("add it to the list `secrets`")
        })
    }

    /// Reads a tree, whether it came from a text or not.
    pub fn read(source: Arc<str>, tree: TreeNode) -> Document {
        let faults = Faults::new(source.clone());
        let mut document = Document {
            source,
            settings: NodeSettings::default(),
            acme: None,
            routes: Vec::new(),
            services: Vec::new(),
            upstreams: Vec::new(),
            plugin_configs: Vec::new(),
            global_rules: Vec::new(),
            ssls: Vec::new(),
            consumers: Vec::new(),
            credentials: Vec::new(),
            consumer_groups: Vec::new(),
            plugin_metadata: Vec::new(),
            managers: Vec::new(),
            secrets: Vec::new(),
            enabled_plugins: None,
            found: ResolvedNames::new(),
            files: Files::new(),
            directory: PathBuf::new(),
            system_roots: Vec::new(),
            node_files: HashMap::new(),
            read_at: SystemTime::now(),
            faults: Vec::new(),
            context: Fingerprint::of_entries(&tree, |key| !PARTS.contains(&key)),
            tree: TreeNode { place: TextPosition::default(), kind: NodeKind::Null },
        };
        let root = NodeReader::root(&tree, &faults);
        let known: Vec<&str> = [settings::KEYS, &["acme"], RESOURCES, NOT_YET].concat();
        if let Some(fields) = root.fields(&known) {
            document.settings = settings::read(&fields);
            document.acme = fields.get("acme").and_then(|at| acme::read(&at));
            document.routes = resource::list(&fields, "routes", route::read_route, |route| route.id.to_string());
            document.services = resource::list(&fields, "services", route::read_service, |one| one.id.to_string());
            document.upstreams = resource::list(&fields, "upstreams", upstream::read_named, |one| one.id.to_string());
            let sets = |key, read| resource::list(&fields, key, read, |set: &PluginSet| set.id.to_string());
            document.plugin_configs =
                sets("plugin_configs", read_plugin_config as fn(&NodeReader, usize) -> Option<PluginSet>);
            document.global_rules = sets("global_rules", read_global_rule);
            document.consumer_groups = sets("consumer_groups", read_plugin_config);
            for item in resource::list(&fields, "consumers", consumer::read, consumer::ConsumerItem::key) {
                match item {
                    consumer::ConsumerItem::Consumer(consumer) => document.consumers.push(consumer),
                    consumer::ConsumerItem::Credential(credential) => document.credentials.push(credential),
                }
            }
            document.plugin_metadata =
                resource::list(&fields, "plugin_metadata", plugins::read_metadata, |one| one.name.to_string());
            document.ssls = resource::list(&fields, "ssls", certificate::read, |ssl| ssl.id.to_string());
            document.managers = resource::list(&fields, "secrets", secrets::read, |one| one.id.to_string());
            document.enabled_plugins = read_enabled_plugins(&fields);
            refuse_what_is_not_served(&fields);
        }
        document.faults = faults.into_diagnostics();
        document.tree = tree;
        document
    }

    /// What must be looked up before endpoints have addresses.
    pub fn queries(&self) -> BTreeSet<NameQuery> {
        let hosts = self.nodes().filter_map(NodeSpec::host_name).map(|name| NameQuery::Host(name.into()));
        let services = self.all_upstreams().filter_map(|upstream| upstream.service.as_ref());
        hosts.chain(services.map(|(name, _)| NameQuery::Service(name.clone()))).collect()
    }

    /// Where the name stands that is looked up.
    pub fn place_of(&self, query: &NameQuery) -> TextPosition {
        let place = match query {
            NameQuery::Host(name) => self.nodes().find(|node| node.host_name() == Some(&**name)).map(|node| node.place),
            NameQuery::Service(name) => {
                let mut services = self.all_upstreams().filter_map(|upstream| upstream.service.as_ref());
                services.find(|(service, _)| service == name).map(|(_, place)| *place)
            }
        };
        place.unwrap_or_default()
    }

    /// What must be read before everything is there: names of files, and `$env://NAME`.
    pub fn file_names(&self) -> BTreeSet<&str> {
        let of_upstreams = self.all_upstreams().flat_map(|upstream| upstream.tls.pems());
        let pems = self.ssls.iter().flat_map(Ssl::pems).chain(of_upstreams).chain(&self.settings.trusted);
        let authority = self.acme.iter().filter_map(|acme| acme.authorities.as_ref());
        let pems = pems.chain(authority);
        pems.filter_map(Pem::elsewhere).chain(self.node_files_named().map(|file| &*file.path)).collect()
    }

    /// Where certificates are that may not be there yet.
    pub fn files_to_come(&self) -> impl Iterator<Item = String> {
        self.acme.iter().flat_map(|acme| acme.hosts.iter().map(|host| acme.file_of(&host.name)))
    }

    /// Whether some upstream, or an authority, must be vouched for by whom the system trusts.
    pub fn needs_system_roots(&self) -> bool {
        let needs = |upstream: &UpstreamSpec| {
            let verify = upstream.tls.verify.unwrap_or(self.settings.verifies_upstreams());
            let checks = upstream.active.as_ref().and_then(|active| active.verifies(verify));
            upstream.tls.authorities.is_none() && (upstream.scheme.is_secured() && verify || checks == Some(true))
        };
        let acme = self.acme.as_ref().is_some_and(|acme| acme.authorities.is_none());
        acme || self.settings.trusted.is_none() && self.all_upstreams().any(needs)
    }

    /// Takes in the nodes that stand in files. What is wrong with them becomes a fault of the document.
    pub fn read_nodes(&mut self, lookup: VariableLookup, limits: TextLimits) {
        let named: Vec<NodesFile> = self.node_files_named().cloned().collect();
        for NodesFile { path, place, default_port } in named {
            let text = match self.files.get(&path) {
                Some(Ok(content)) => std::str::from_utf8(content).map_err(|_| "it is not UTF-8".to_owned()),
                Some(Err(reason)) => Err(reason.clone()),
                None => continue,
            };
            let source: Arc<str> = (*path).into();
            match text.map(|text| yaml::parse(&source, text, lookup, limits)) {
                Ok(Ok(Parsed { tree, faults })) => {
                    self.faults.extend(faults);
                    let faults = Faults::new(source);
                    self.node_files.insert(path, upstream::nodes(&NodeReader::root(&tree, &faults), default_port));
                    self.faults.extend(faults.into_diagnostics());
                }
                Ok(Err(faults)) => self.faults.extend(faults),
                Err(reason) => {
                    let problem = format!("the file `{path}` cannot be read: {reason}");
                    self.faults.push(Diagnostic::at_place(&self.source, place, problem));
                }
            }
        }
    }

    fn node_files_named(&self) -> impl Iterator<Item = &NodesFile> {
        self.all_upstreams().filter_map(|upstream| upstream.nodes_file.as_ref())
    }

    /// The nodes of all upstreams, wherever they stand.
    fn nodes(&self) -> impl Iterator<Item = &NodeSpec> {
        self.all_upstreams().flat_map(|upstream| &upstream.nodes).chain(self.node_files.values().flatten())
    }

    /// All upstreams, wherever they stand.
    fn all_upstreams(&self) -> impl Iterator<Item = &UpstreamSpec> {
        let inline = self.routes.iter().filter_map(|route| route.upstream.as_ref());
        let of_services = self.services.iter().filter_map(|service| service.upstream.as_ref());
        let of_plugins = self.shares().filter_map(|(_, _, share)| share.upstream.as_ref());
        self.upstreams.iter().chain(inline).chain(of_services).chain(of_plugins)
    }

    /// The shares of traffic that plugins give to upstreams, with the kind and id of the resource the plugin stands in.
    pub(crate) fn shares(&self) -> impl Iterator<Item = (&'static str, &str, &TrafficShare)> {
        let routes = self.routes.iter().map(|route| ("route", &*route.id, &route.plugins));
        let services = self.services.iter().map(|service| ("service", &*service.id, &service.plugins));
        let consumers = self.consumers.iter().map(|consumer| ("consumer", &*consumer.username, &consumer.plugins));
        let owners = routes.chain(services).chain(consumers);
        let sets = [
            ("plugin_config", &self.plugin_configs),
            ("global_rule", &self.global_rules),
            ("consumer_group", &self.consumer_groups),
        ];
        let sets = sets.into_iter().flat_map(|(kind, sets)| sets.iter().map(move |set| (kind, &*set.id, &set.plugins)));
        owners.chain(sets).flat_map(|(kind, id, plugins)| {
            plugins.iter().flat_map(|plugin| &plugin.shares).map(move |share| (kind, id, share))
        })
    }
}

fn read_plugin_config(at: &NodeReader, index: usize) -> Option<PluginSet> {
    let fields = at.fields(&["id", "name", "desc", "labels", "create_time", "update_time", "plugins"])?;
    resource::common(&fields);
    read_plugin_set(&fields, index)
}

fn read_global_rule(at: &NodeReader, index: usize) -> Option<PluginSet> {
    let fields = at.fields(&["id", "create_time", "update_time", "plugins"])?;
    read_plugin_set(&fields, index)
}

fn read_plugin_set(fields: &MapReader, index: usize) -> Option<PluginSet> {
    if !fields.has("plugins") {
        fields.at().report_advising("has no `plugins`", "add `plugins: {}`");
    }
    let plugins = plugins::read(fields);
    let content = Fingerprint::of_node(fields.at().node());
    Some(PluginSet { origin: ResourceOrigin::of(fields.at()), content, id: resource::id(fields, index), plugins })
}

/// APISIX's list of plugins that are switched on: `[{ name: limit-count }, { name: mqtt-proxy, stream: true }]`.
fn read_enabled_plugins(fields: &MapReader) -> Option<HashSet<Box<str>>> {
    let list = fields.get("plugins")?;
    let names = list.items().filter_map(|item| {
        let fields = item.fields(&["name", "stream"])?;
        let Some(name) = fields.get("name") else {
            item.report_advising("has no `name`", "add `name: <plugin>`");
            return None;
        };
        let stream = fields.get("stream").and_then(|at| at.boolean()).unwrap_or(false);
        name.text_of(1..=256).filter(|_| !stream).map(Box::from)
    });
    Some(names.collect())
}

fn refuse_what_is_not_served(fields: &MapReader) {
    for list in NOT_YET.iter().filter_map(|key| fields.get(key)) {
        if !list.is_list() {
            list.report_advising("expected a list", "write `[]` or leave it out");
        } else if let Some(first) = list.items().next() {
            first.report_advising(
                "this kind of resource is not supported yet by this version",
                "leave the list out; nothing of it would be carried out",
            );
        }
    }
}
