//! What defines a plugin: its name, its place in the order, its options with a schema, and a working example.

pub mod file_plugin;

use std::cell::{Cell, RefCell};
use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use weir_client::HttpClient;

use crate::allowed_folders::{AllowedFolders, AppendedFile, ReadFile};
use crate::config_error::ConfigError;
use crate::consumer::{Consumers, Credential};
use crate::option_error::{self, Quoting};
use crate::plugin::Plugin;
use crate::protos::ProtoDefinitions;
use crate::schema;
use crate::state::{self, PerWorker};
use crate::suggest;
use crate::template::Template;
use crate::variable::ExchangePhase;
use crate::vars::Expression;
use crate::written_name::WrittenName;
use file_plugin::{LoadedPlugin, LoadedPlugins, PluginRuntime};

/// When a plugin runs on a request. All of `Rewrite`, by priority, run before all of `Access` (APISIX phases).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Rewrite,
    Access,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Stage::Rewrite => "rewrite",
            Stage::Access => "access",
        })
    }
}

/// The options of a plugin type, and how a plugin is built from them.
pub trait Definition: DeserializeOwned + JsonSchema + 'static {
    const NAME: &'static str;
    /// Higher runs earlier within a stage. The numbers are those of Apache APISIX.
    const PRIORITY: i32;
    const STAGE: Stage;
    /// A valid configuration, as written under `plugins:`.
    const EXAMPLE: &'static str;

    /// Checks what a schema cannot express, such as relations between options, and builds the plugin. Must not start anything,
    /// since a configuration that is only checked is built as well. See [`Plugin::start`]. Reports all faults that are independent of
    /// each other: see [`Build::fault`] and [`crate::AllOf`].
    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError>;
}

/// The context a plugin is built in.
#[derive(Debug, Default)]
pub struct Build {
    /// Options that are valid but probably a mistake; shown by `weir check`.
    pub warnings: Vec<ConfigError>,
    /// See [`Build::fault`].
    faults: Vec<ConfigError>,
    /// The resource whose configuration contains the plugin, by kind and id: `route/1`.
    owner: String,
    /// The name of the plugin; empty for those that know theirs.
    name: &'static str,
    is_part: bool,
    identity: String,
    upstreams: Vec<(Box<str>, u32)>,
    proto: Option<Arc<ProtoDefinitions>>,
    shared: Rc<BuildContext>,
}

/// What the plugins of one document share while they are built.
///
/// Plugins reach it only through [`Build`], which records what each of them uses.
#[derive(Debug, Default)]
pub struct BuildContext {
    pub consumers: Consumers,
    /// APISIX `plugin_metadata`: settings of a plugin that apply wherever it is used, by plugin name.
    pub metadata: HashMap<Box<str>, Value>,
    /// What plugins must configure identically, by topic: see [`Build::agree`].
    agreements: RefCell<HashMap<String, String>>,
    /// Names of query arguments that contain secrets, for all plugins.
    secret_arguments: RefCell<BTreeSet<Arc<[u8]>>>,
    secret_fields: Arc<SecretFields>,
    /// Facts plugins have declared since the last `take_declarations`.
    told: RefCell<Vec<Declaration>>,
    /// Parts of the document plugins have used since the last `take_inputs`.
    inputs: Cell<BuildInputs>,
    /// The port to which plain-text clients are redirected for TLS.
    https_port: Option<u16>,
    http: HttpClient,
    data_dir: Option<PathBuf>,
    log_folders: Option<Arc<AllowedFolders>>,
    read_folders: Option<Arc<AllowedFolders>>,
    file_plugins: Arc<LoadedPlugins>,
    services: Arc<Services>,
}

/// The upstreams as services that plugins call by the gateway's own client, by id.
pub type Services = HashMap<Box<str>, CalledService>;

/// An upstream as a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalledService {
    /// Of its endpoints; there is one at least.
    pub urls: Box<[Box<str>]>,
    /// The certificates of its endpoints are verified.
    pub is_verified: bool,
}

/// The parts of a document, besides its options, that a plugin was built from. If none of them changes, the plugin is kept for
/// the next version of the document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuildInputs {
    pub consumers: bool,
    pub metadata: bool,
    pub http: bool,
    pub https_port: bool,
    /// The directories in which resources may write and read files.
    pub folders: bool,
    pub protos: bool,
    /// The files of plugins in files.
    pub plugin_files: bool,
    /// The upstreams as services.
    pub services: bool,
}

/// A fact a plugin declared while it was built, which affects other parts. It is declared again if the plugin is kept for the
/// next version of a document.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Declaration {
    SecretArgument(Arc<[u8]>),
    SecretField(Box<[u8]>),
    Agreed { topic: Box<str>, terms: Box<str> },
}

/// Names of header fields whose values are secrets, in lower case. Complete once all plugins of a document are built.
#[derive(Debug, Default)]
pub struct SecretFields(RwLock<BTreeSet<Box<[u8]>>>);

impl SecretFields {
    pub fn names(&self) -> RwLockReadGuard<'_, BTreeSet<Box<[u8]>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, name: Box<[u8]>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(name);
    }
}

impl BuildContext {
    /// The context of a node that serves TLS on this port, if on any.
    pub fn new(https_port: Option<u16>) -> BuildContext {
        BuildContext { https_port, ..BuildContext::default() }
    }

    /// Sets the HTTP client that plugins call external services with.
    pub fn with_http(self, http: HttpClient) -> BuildContext {
        BuildContext { http, ..self }
    }

    /// Sets the directory for persistent data, if the node has one.
    pub fn with_data_dir(self, data_dir: Option<PathBuf>) -> BuildContext {
        BuildContext { data_dir, ..self }
    }

    /// Sets the directories in which plugins may write files; `None`: anywhere.
    pub fn with_log_folders(self, log_folders: Option<Arc<AllowedFolders>>) -> BuildContext {
        BuildContext { log_folders, ..self }
    }

    /// Sets the directories in which plugins may read files; `None`: anywhere.
    pub fn with_read_folders(self, read_folders: Option<Arc<AllowedFolders>>) -> BuildContext {
        BuildContext { read_folders, ..self }
    }

    /// Sets the plugins in files that were loaded.
    pub fn with_file_plugins(self, file_plugins: Arc<LoadedPlugins>) -> BuildContext {
        BuildContext { file_plugins, ..self }
    }

    /// Sets the upstreams that plugins may call as services.
    pub fn with_services(self, services: Arc<Services>) -> BuildContext {
        BuildContext { services, ..self }
    }

    /// Takes what plugins have declared since the last call.
    pub fn take_declarations(&self) -> Vec<Declaration> {
        self.told.take()
    }

    /// Takes what plugins have been built from since the last call.
    pub fn take_inputs(&self) -> BuildInputs {
        self.inputs.take()
    }

    /// Repeats a declaration of a plugin that is not built again; `false` if it contradicts another plugin's.
    pub fn redeclare(&self, told: &Declaration) -> bool {
        match told {
            Declaration::SecretArgument(name) => {
                self.secret_arguments.borrow_mut().insert(Arc::clone(name));
            }
            Declaration::SecretField(name) => self.secret_fields.add(name.clone()),
            Declaration::Agreed { topic, terms } => return self.agree(topic, terms),
        }
        true
    }

    fn agree(&self, topic: &str, terms: &str) -> bool {
        match self.agreements.borrow_mut().entry(topic.to_owned()) {
            Slot::Occupied(said) => said.get() == terms,
            Slot::Vacant(slot) => {
                slot.insert(terms.to_owned());
                true
            }
        }
    }

    /// Names of header fields that a plugin declared to be secrets, sorted.
    pub fn secret_fields(&self) -> Vec<Box<[u8]>> {
        self.secret_fields.names().iter().cloned().collect()
    }

    /// Names of query arguments that a plugin declared to be secrets.
    pub fn secret_arguments(&self) -> Vec<Arc<[u8]>> {
        self.secret_arguments.borrow().iter().cloned().collect()
    }
}

impl Build {
    /// The context for a plugin of `owner`, a resource by kind and id, as `route/1`.
    pub fn of(owner: String, shared: &Rc<BuildContext>) -> Build {
        Build { owner, shared: Rc::clone(shared), ..Build::default() }
    }

    /// Sets the name of the plugin, for one whose code does not know it.
    pub fn named(self, name: &'static str) -> Build {
        Build { name, ..self }
    }

    /// The name of the plugin.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The resource whose configuration contains the plugin, by kind and id: `route/1`.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Sets the identity of a plugin in a file.
    pub(crate) fn identify(&mut self, options: &Value) {
        self.identity = format!("{} of {}: {options}", self.name, self.owner);
    }

    /// The code of the plugin, if it is one in a file that was loaded.
    pub(crate) fn file_plugin(&self) -> Option<Arc<dyn LoadedPlugin>> {
        self.note(|inputs| inputs.plugin_files = true);
        self.shared.file_plugins.get(self.name).cloned()
    }

    /// The upstreams that the plugin may call as services.
    pub fn services(&self) -> Arc<Services> {
        self.note(|inputs| inputs.services = true);
        Arc::clone(&self.shared.services)
    }

    /// Reports a fault without an end of `build`, which goes on to find others: what it returns is dropped then. An error that it
    /// returns is reported after these.
    pub fn fault(&mut self, place: impl Into<String>, problem: impl Into<String>) {
        self.faults.push(ConfigError::new(place, problem));
    }

    /// The value of an option; if it has a fault, that is reported as by [`Build::fault`], and `build` goes on with the default.
    pub fn keep<T: Default>(&mut self, checked: Result<T, ConfigError>) -> T {
        checked.unwrap_or_else(|fault| {
            self.faults.push(fault);
            T::default()
        })
    }

    /// The client for calls to external services over HTTP, with the resolver and the trusted CAs of the node.
    pub fn http(&self) -> &HttpClient {
        self.note(|inputs| inputs.http = true);
        &self.shared.http
    }

    fn note(&self, asked: impl FnOnce(&mut BuildInputs)) {
        let mut inputs = self.shared.inputs.get();
        asked(&mut inputs);
        self.shared.inputs.set(inputs);
    }

    /// The directory for persistent data (`data_dir`), if configured. Nothing may be created there before [`Plugin::start`].
    pub fn data_dir(&self) -> Option<&Path> {
        self.shared.data_dir.as_deref()
    }

    /// A file that the plugin appends to, named by the option at `place`. A relative path starts at the directory of the process, and
    /// in a resource of a store at that of the configuration file. The only way for a plugin to write a file: it decides
    /// which files the resources of a store may write.
    ///
    /// # Errors
    /// If the name can never be that of a file, or a resource of a store names a file that it may not write.
    pub fn appended_file(&self, path: &str, place: &str) -> Result<AppendedFile, ConfigError> {
        let folders = self.shared.log_folders.clone();
        let path = self.named_file(path, place, folders.as_deref(), ["write", "resource_log_files"])?;
        Ok(AppendedFile::new(path, folders))
    }

    /// A file that the plugin reads while it runs, named by the option at `place`, likewise: it decides which files the resources of a
    /// store may read.
    ///
    /// # Errors
    /// If the name can never be that of a file, or a resource of a store names a file that it may not read.
    pub fn read_file(&self, path: &str, place: &str) -> Result<ReadFile, ConfigError> {
        let folders = self.shared.read_folders.clone();
        let path = self.named_file(path, place, folders.as_deref(), ["read", "resource_files"])?;
        Ok(ReadFile::new(path, folders))
    }

    /// The path of a file that an option names. `setting` lists the directories in which resources of a store may do with it what `may`
    /// says.
    fn named_file(
        &self,
        name: &str,
        place: &str,
        folders: Option<&AllowedFolders>,
        [may, setting]: [&str; 2],
    ) -> Result<PathBuf, ConfigError> {
        if let Some(fault) = WrittenName::File.fault(name) {
            return Err(ConfigError::new(place, fault));
        }
        self.note(|inputs| inputs.folders = true);
        let Some(folders) = folders else { return Ok(PathBuf::from(name)) };
        let path = folders.path_of(name);
        if folders.may_name(&path) {
            return Ok(path);
        }
        let problem = format!(
            "names a file that no resource of the store may {may}; \
             list its directory in `{setting}` of the node's configuration file"
        );
        let problem = match AllowedFolders::advice(name) {
            Some(advice) => format!("{problem}; {advice}"),
            None => problem,
        };
        Err(ConfigError::new(place, problem))
    }

    /// The context for a plugin nested in this one, by its place in the options.
    pub fn within(&self, place: &str) -> Build {
        Build { is_part: true, ..Build::of(format!("{} {place}", self.owner), &self.shared) }
    }

    /// The plugin is nested in another one.
    pub fn is_part(&self) -> bool {
        self.is_part
    }

    /// Adds the upstreams that options name, by the place of the name, as `rules[0].weighted_upstreams[1]`.
    pub fn with_upstreams(self, upstreams: Vec<(Box<str>, u32)>) -> Build {
        Build { upstreams, ..self }
    }

    /// The number of the upstream that is named at a place of the options, for [`crate::Exchange::divert_to`]. `None` if none is
    /// named there; an unknown name has been reported already.
    pub fn upstream(&self, place: &str) -> Option<u32> {
        self.upstreams.iter().find(|(named_at, _)| **named_at == *place).map(|(_, number)| *number)
    }

    /// Adds the resource of `protos` that the options name.
    pub fn with_proto(self, proto: Option<Arc<ProtoDefinitions>>) -> Build {
        Build { proto, ..self }
    }

    /// The resource of `protos` that the options name. `None` if they name none, or one that is not known.
    pub fn proto(&self) -> Option<&Arc<ProtoDefinitions>> {
        self.note(|inputs| inputs.protos = true);
        self.proto.as_ref()
    }

    /// Compiles a text with variables at a place of the options. Warns of variables that can never have a value.
    pub fn template(&mut self, text: &str, place: &str) -> Template {
        self.template_at(ExchangePhase::Answer, text, place)
    }

    /// Like [`Build::template`], for texts rendered into the records of ended exchanges.
    pub fn template_of_record(&mut self, text: &str, place: &str) -> Template {
        self.template_at(ExchangePhase::Record, text, place)
    }

    fn template_at(&mut self, moment: ExchangePhase, text: &str, place: &str) -> Template {
        let template = Template::compile(text);
        for variable in template.variables() {
            let Some(mut problem) = suggest::absence(variable, moment) else { continue };
            if !variable.is_known() && suggest::meant(variable).is_none() {
                problem.push_str("; write `\\$` for a dollar sign");
            }
            self.warnings.push(ConfigError::new(place, problem));
        }
        template
    }

    /// Compiles a condition on requests at a place of the options. A condition on variables that have no value yet would have
    /// the same result for every request, so it is refused.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn condition(&mut self, value: &Value, place: &str) -> Result<Expression, ConfigError> {
        self.condition_at(ExchangePhase::Request, value, place)
    }

    /// Like [`Build::condition`], for ended exchanges, including the content that was read of them.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn condition_of_record(&mut self, value: &Value, place: &str) -> Result<Expression, ConfigError> {
        self.condition_at(ExchangePhase::Record, value, place)
    }

    fn condition_at(&mut self, moment: ExchangePhase, value: &Value, place: &str) -> Result<Expression, ConfigError> {
        let condition = Expression::compile(value).map_err(|error| {
            ConfigError::new(format!("{place}{}", error.place), format!("{}; {}", error.reason, error.help))
        })?;
        for variable in condition.variables() {
            let Some(problem) = suggest::absence(variable, moment) else { continue };
            let told = ConfigError::new(place, problem);
            // An unknown name may be a variable of a custom APISIX plugin, so it is only a warning.
            if variable.is_known() {
                return Err(told);
            }
            self.warnings.push(told);
        }
        let doubts = condition.doubts().iter();
        self.warnings.extend(doubts.map(|doubt| {
            ConfigError::new(format!("{place}{}", doubt.place), format!("{}; {}", doubt.reason, doubt.help))
        }));
        Ok(condition)
    }

    /// Declares a header field to be a secret: records do not show its value.
    pub fn secret_field(&self, name: &[u8]) {
        let name: Box<[u8]> = name.to_ascii_lowercase().into();
        self.shared.told.borrow_mut().push(Declaration::SecretField(name.clone()));
        self.shared.secret_fields.add(name);
    }

    /// The secret fields, including those of plugins that are yet to be built.
    pub fn secret_fields(&self) -> Arc<SecretFields> {
        Arc::clone(&self.shared.secret_fields)
    }

    /// The port to which plain-text clients are redirected for TLS.
    pub fn https_port(&self) -> Option<u16> {
        self.note(|inputs| inputs.https_port = true);
        self.shared.https_port
    }

    pub fn consumers(&self) -> &Consumers {
        self.note(|inputs| inputs.consumers = true);
        &self.shared.consumers
    }

    /// The settings of plugin `D` that apply wherever it is used; the default if none are configured. Invalid settings have been
    /// reported already.
    pub fn metadata<D: HasMetadata>(&self) -> D::Metadata {
        self.written_metadata::<D>()
            .and_then(|value| schema::enforce::<D::Metadata>(value, Quoting::Allowed).ok())
            .and_then(|value| option_error::read(&value, Quoting::Allowed).ok())
            .unwrap_or_default()
    }

    /// The settings of plugin `D` that apply wherever it is used, as written.
    pub fn written_metadata<D: HasMetadata>(&self) -> Option<&Value> {
        self.note(|inputs| inputs.metadata = true);
        self.shared.metadata.get(D::NAME)
    }

    /// Plugin, owner and options as text: two builds with the same identity are the same plugin in two versions of a document.
    /// State with this key survives a reload that does not affect the plugin.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The options as written: the part of the identity that plugins with equal options share, whatever their owner.
    pub fn written_options(&self) -> &str {
        self.identity.split_once(": ").map_or("", |(_, options)| options)
    }

    /// State of which each worker has its own value; all plugins that use this name and key share it, also after reloads. A
    /// worker creates its value on first use, and drops it after the last plugin that uses it. For a plugin's own state the key
    /// is [`Build::identity`].
    pub fn per_worker<T: 'static>(
        &self,
        name: &'static str,
        key: &str,
        make: impl Fn() -> T + Send + Sync + 'static,
    ) -> PerWorker<T> {
        state::per_worker(name, key, make)
    }

    /// State shared by all workers and by all plugins that use this name and key, also after reloads. It is dropped with the
    /// last plugin that uses it.
    pub fn shared<T: Send + Sync + 'static>(&self, name: &'static str, key: &str, make: impl FnOnce() -> T) -> Arc<T> {
        state::shared(name, key, make)
    }

    /// Like [`Build::shared`], but kept until the process ends: totals for metrics.
    pub fn permanent<T: Send + Sync + Default + 'static>(&self, name: &'static str) -> Arc<T> {
        state::permanent(name)
    }

    /// Declares a query argument to be a secret. Logs mask it even if an exchange ends before the plugin runs.
    pub fn secret_argument(&self, name: &Arc<[u8]>) {
        self.shared.told.borrow_mut().push(Declaration::SecretArgument(Arc::clone(name)));
        self.shared.secret_arguments.borrow_mut().insert(Arc::clone(name));
    }

    /// Declares terms for `topic`; returns whether all plugins have declared the same.
    pub fn agree(&self, topic: &str, terms: &str) -> bool {
        self.shared.told.borrow_mut().push(Declaration::Agreed { topic: topic.into(), terms: terms.into() });
        self.shared.agree(topic, terms)
    }
}

/// A plugin that identifies consumers by their credentials.
pub trait Authenticator: Definition {
    /// The plugin's options under a consumer.
    type Credential: DeserializeOwned + JsonSchema + 'static;

    /// Checks what a schema cannot express. Returns the key the credential is looked up by, which must be unique.
    fn check(credential: Self::Credential) -> Result<String, ConfigError>;

    /// The options of a consumer's credential. `None` if they are invalid, which the check of the document has reported.
    fn read(credential: &Credential) -> Option<Self::Credential> {
        read_credential::<Self>(&credential.options).ok()
    }
}

/// A plugin with settings that apply wherever it is used (APISIX `plugin_metadata`).
pub trait HasMetadata: Definition {
    type Metadata: PluginMetadata;
}

/// Settings of a plugin that apply wherever it is used.
pub trait PluginMetadata: DeserializeOwned + JsonSchema + Default + 'static {
    /// Checks what a schema cannot express.
    fn check(self) -> Result<(), ConfigError> {
        drop(self);
        Ok(())
    }
}

/// The registry's entry for the settings of a [`HasMetadata`] plugin.
#[derive(Clone, Copy)]
pub struct MetadataEntry {
    pub schema: fn() -> Value,
    /// See [`PluginMetadata::check`].
    pub check: fn(&Value) -> Result<(), ConfigError>,
}

/// The registry's entry for the credentials of an auth plugin.
#[derive(Clone, Copy)]
pub struct CredentialEntry {
    pub schema: fn() -> Value,
    /// See [`Authenticator::check`].
    pub check: fn(&Value) -> Result<String, ConfigError>,
}

/// Builds a plugin from its options.
pub type BuildPlugin = fn(&Value, &mut Build) -> Result<Arc<dyn Plugin>, ConfigError>;

/// The registry's entry for one plugin.
#[derive(Clone, Copy)]
pub struct Entry {
    pub name: &'static str,
    pub priority: i32,
    pub stage: Stage,
    pub example: &'static str,
    pub schema: fn() -> Value,
    pub build: BuildPlugin,
    /// For auth plugins: their options under a consumer.
    pub credential: Option<CredentialEntry>,
    /// The plugin may identify the consumer.
    pub identifies: bool,
    /// The plugin answers requests, some or all of them, or chooses their upstream: a route with it needs no upstream of its own. It
    /// is not said of plugins that only refuse requests.
    pub answers: bool,
    /// The plugin works without HTTP, on stream routes.
    pub on_streams: bool,
    /// It works there alone: requests have nothing that it could do.
    pub only_on_streams: bool,
    pub metadata: Option<MetadataEntry>,
    /// Why it is a matter of the whole node, if it is: users of a part of a cluster cannot configure it for their part.
    pub of_node: Option<&'static str>,
}

impl Entry {
    pub const fn of<D: Definition>() -> Entry {
        Entry {
            name: D::NAME,
            priority: D::PRIORITY,
            stage: D::STAGE,
            example: D::EXAMPLE,
            schema: schema::of::<D>,
            build: build::<D>,
            credential: None,
            identifies: false,
            answers: false,
            on_streams: false,
            only_on_streams: false,
            metadata: None,
            of_node: None,
        }
    }

    /// The entry of a plugin in a file.
    pub(crate) const fn in_file(
        name: &'static str,
        priority: i32,
        stage: Stage,
        example: &'static str,
        schema: fn() -> Value,
        build: BuildPlugin,
    ) -> Entry {
        Entry {
            name,
            priority,
            stage,
            example,
            schema,
            build,
            credential: None,
            identifies: false,
            answers: true,
            on_streams: false,
            only_on_streams: false,
            metadata: None,
            of_node: None,
        }
    }

    pub const fn authenticating<D: Authenticator>() -> Entry {
        let credential = CredentialEntry { schema: schema::of::<D::Credential>, check: check::<D> };
        Entry { credential: Some(credential), ..Entry::of::<D>() }.identifying()
    }

    /// Marks the plugin as one that may identify the consumer.
    pub const fn identifying(self) -> Entry {
        Entry { identifies: true, ..self }
    }

    /// Marks the plugin as one with which a route needs no upstream of its own.
    pub const fn answering(self) -> Entry {
        Entry { answers: true, ..self }
    }

    /// Marks the plugin as a matter of the whole node, for this reason.
    pub const fn of_node(self, reason: &'static str) -> Entry {
        Entry { of_node: Some(reason), ..self }
    }

    /// Marks the plugin as one that works without HTTP, on stream routes. It must not identify a client or write fields of the request or
    /// response: these are not kept while bytes are carried ([`crate::BareExchange`]).
    pub const fn on_streams(self) -> Entry {
        Entry { on_streams: true, ..self }
    }

    /// Marks the plugin as one that works on stream routes alone, as [`Entry::on_streams`] says.
    pub const fn only_on_streams(self) -> Entry {
        Entry { on_streams: true, only_on_streams: true, ..self }
    }

    /// The entry of a plugin with settings that apply wherever it is used.
    pub const fn described<D: HasMetadata>() -> Entry {
        let metadata = MetadataEntry { schema: schema::of::<D::Metadata>, check: check_metadata::<D> };
        Entry { metadata: Some(metadata), ..Entry::of::<D>() }
    }
}

/// Errors must not quote the credential, which is a secret.
fn read_credential<D: Authenticator>(value: &Value) -> Result<D::Credential, ConfigError> {
    let value = schema::enforce::<D::Credential>(value, Quoting::Never)?;
    option_error::read(&value, Quoting::Never)
}

fn check<D: Authenticator>(value: &Value) -> Result<String, ConfigError> {
    D::check(read_credential::<D>(value)?)
}

fn check_metadata<D: HasMetadata>(value: &Value) -> Result<(), ConfigError> {
    let value = schema::enforce::<D::Metadata>(value, Quoting::Allowed)?;
    option_error::read::<D::Metadata>(&value, Quoting::Allowed)?.check()
}

fn build<D: Definition>(value: &Value, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
    let value = schema::enforce::<D>(value, Quoting::Allowed)?;
    let options: D = option_error::read(&value, Quoting::Allowed)?;
    // Of the numbers, so that `10s` in place of `10` keeps the state of the plugin.
    build.identity = format!("{} of {}: {value}", D::NAME, build.owner);
    let built = options.build(build);
    let faults = std::mem::take(&mut build.faults).into_iter().chain(built.as_ref().err().cloned());
    ConfigError::of_faults(faults).map_or(built, Err)
}

/// The plugins that a configuration may use, by name: those of this binary, and those in files that the configuration declares.
#[derive(Clone, Copy)]
pub struct Registry {
    entries: &'static [Entry],
    built_in: usize,
    runtime: Option<&'static dyn PluginRuntime>,
}

impl Registry {
    pub const fn new(entries: &'static [Entry]) -> Registry {
        Registry { entries, built_in: entries.len(), runtime: None }
    }

    /// Adds what runs plugins in files.
    pub const fn with_runtime(self, runtime: &'static dyn PluginRuntime) -> Registry {
        Registry { runtime: Some(runtime), ..self }
    }

    /// What runs plugins in files; `None` in a binary that cannot run any.
    pub fn runtime(&self) -> Option<&'static dyn PluginRuntime> {
        self.runtime
    }

    /// The plugins of the binary, with these in files: names, which are not those of others, priorities and stages.
    pub fn with_files(&self, added: &[(Box<str>, i32, Stage)]) -> Registry {
        let built_in = &self.entries[..self.built_in];
        let entries = if added.is_empty() { built_in } else { file_plugin::entries(built_in, added) };
        Registry { entries, ..*self }
    }

    pub fn entries(&self) -> &'static [Entry] {
        self.entries
    }

    /// Those of the binary.
    pub fn built_in(&self) -> &'static [Entry] {
        &self.entries[..self.built_in]
    }

    pub fn find(&self, name: &str) -> Option<&'static Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// A number in place of the plugin's name, for cheaper comparison. It is the same in all configurations of this process.
    pub fn number(&self, name: &str) -> Option<u16> {
        let index = self.entries.iter().position(|entry| entry.name == name)?;
        let number = match index < self.built_in {
            true => index,
            false => self.built_in + file_plugin::number(name)?,
        };
        u16::try_from(number).ok()
    }

    /// The name of the plugin with a number, in any configuration of this process.
    pub fn name_of(&self, number: u16) -> Option<&'static str> {
        let number = usize::from(number);
        match number.checked_sub(self.built_in) {
            None => Some(self.entries[number].name),
            Some(added) => file_plugin::name(added),
        }
    }
}
