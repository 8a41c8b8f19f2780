//! What makes a type a plugin: a name, a place in the order, options with a schema, and an example that works.

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

use crate::config_error::ConfigError;
use crate::consumer::Consumers;
use crate::plugin::Plugin;
use crate::schema;
use crate::state::{self, PerWorker};
use crate::template::Template;
use crate::variable::Moment;
use crate::vars::Expression;

/// When in the way of a request a plugin runs. All of `Rewrite`, by priority, before all of `Access` (APISIX phases).
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

/// A plugin's options, and how they become a plugin.
pub trait Definition: DeserializeOwned + JsonSchema + 'static {
    const NAME: &'static str;
    /// Higher runs earlier within a stage. The numbers are Apache APISIX's.
    const PRIORITY: i32;
    const STAGE: Stage;
    /// A configuration that builds, as it stands under `plugins:`.
    const EXAMPLE: &'static str;

    /// Checks what a schema cannot say, and builds the plugin. Starts nothing: a configuration that is only checked is
    /// built as well. See [`Plugin::start`].
    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError>;
}

/// What a plugin may ask for while it is built.
#[derive(Debug, Default)]
pub struct Build {
    /// Things that are accepted but probably not what was meant; shown by `weir check`.
    pub warnings: Vec<ConfigError>,
    /// The resource that says how the plugin is to be, by kind and id: `route/1`.
    owner: String,
    is_part: bool,
    identity: String,
    upstreams: Vec<(Box<str>, u32)>,
    shared: Rc<BuildContext>,
}

/// What the plugins of one document share while they are built.
///
/// Plugins reach it through [`Build`] alone, which takes note of what they have been built from.
#[derive(Debug, Default)]
pub struct BuildContext {
    pub consumers: Consumers,
    /// APISIX `plugin_metadata`: settings of a plugin that hold wherever it is used, by its name.
    pub metadata: HashMap<Box<str>, Value>,
    /// What plugins must say alike, by topic.
    agreements: RefCell<HashMap<String, String>>,
    /// Names of query arguments that are secrets, wherever plugins look for them.
    secret_arguments: RefCell<BTreeSet<Arc<[u8]>>>,
    secret_fields: Arc<SecretFields>,
    /// What plugins have told since it was last taken.
    told: RefCell<Vec<BuildNote>>,
    /// What plugins have been built from since it was last taken.
    inputs: Cell<BuildInputs>,
    /// Where clients that speak in the clear are told to go for TLS.
    https_port: Option<u16>,
    http: HttpClient,
    data_dir: Option<PathBuf>,
}

/// What of a document a plugin was built from besides its options. Where none of that changes, it is used on in the next version
/// of the document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuildInputs {
    pub consumers: bool,
    pub metadata: bool,
    pub http: bool,
    pub https_port: bool,
}

/// What a plugin has told while it was built that others go by. It is told again where the plugin is used on in the next
/// version of a document.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BuildNote {
    SecretArgument(Arc<[u8]>),
    SecretField(Box<[u8]>),
    Agreed { topic: Box<str>, terms: Box<str> },
}

/// Names of header fields whose values are secrets, in lower case. Known in full once all plugins of a document are built.
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
    /// For a node that speaks TLS on this port, if on any.
    pub fn new(https_port: Option<u16>) -> BuildContext {
        BuildContext { https_port, ..BuildContext::default() }
    }

    /// For a node whose plugins ask services with this client.
    pub fn with_http(self, http: HttpClient) -> BuildContext {
        BuildContext { http, ..self }
    }

    /// For a node that keeps what must outlive it in this directory, if in any.
    pub fn with_data_dir(self, data_dir: Option<PathBuf>) -> BuildContext {
        BuildContext { data_dir, ..self }
    }

    /// What plugins have told since the last time.
    pub fn take_told(&self) -> Vec<BuildNote> {
        self.told.take()
    }

    /// What plugins have been built from since the last time.
    pub fn take_inputs(&self) -> BuildInputs {
        self.inputs.take()
    }

    /// Takes note of what a plugin has told that is not built again; `false` if it does not agree with the others.
    pub fn tell_again(&self, told: &BuildNote) -> bool {
        match told {
            BuildNote::SecretArgument(name) => {
                self.secret_arguments.borrow_mut().insert(Arc::clone(name));
            }
            BuildNote::SecretField(name) => self.secret_fields.add(name.clone()),
            BuildNote::Agreed { topic, terms } => return self.agree(topic, terms),
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

    /// Names of header fields that some plugin takes for secrets, in order.
    pub fn secret_fields(&self) -> Vec<Box<[u8]>> {
        self.secret_fields.names().iter().cloned().collect()
    }

    /// Names of query arguments that some plugin takes for secrets.
    pub fn secret_arguments(&self) -> Vec<Arc<[u8]>> {
        self.secret_arguments.borrow().iter().cloned().collect()
    }
}

impl Build {
    /// For a plugin of `owner`, a resource by kind and id, as `route/1`.
    pub fn of(owner: String, shared: &Rc<BuildContext>) -> Build {
        Build { owner, shared: Rc::clone(shared), ..Build::default() }
    }

    /// The client for services that a plugin asks over HTTP: with the resolver and the authorities of the node.
    pub fn http(&self) -> &HttpClient {
        self.note(|inputs| inputs.http = true);
        &self.shared.http
    }

    fn note(&self, asked: impl FnOnce(&mut BuildInputs)) {
        let mut inputs = self.shared.inputs.get();
        asked(&mut inputs);
        self.shared.inputs.set(inputs);
    }

    /// Where the node keeps what must outlive it (`data_dir`), if anywhere. Nothing may be made there before
    /// [`Plugin::start`].
    pub fn data_dir(&self) -> Option<&Path> {
        self.shared.data_dir.as_deref()
    }

    /// For a plugin within this one, by its place there.
    pub fn within(&self, place: &str) -> Build {
        Build { is_part: true, ..Build::of(format!("{} {place}", self.owner), &self.shared) }
    }

    /// The plugin is a part of another one.
    pub fn is_part(&self) -> bool {
        self.is_part
    }

    /// The same, for options that name upstreams: by the place of what names them, as `rules[0].weighted_upstreams[1]`.
    pub fn with_upstreams(self, upstreams: Vec<(Box<str>, u32)>) -> Build {
        Build { upstreams, ..self }
    }

    /// The number of the upstream that is named at a place of the options, for [`crate::Exchange::diverted`]. Nothing
    /// where none is named; a name without an upstream has been reported where it stands.
    pub fn upstream(&self, place: &str) -> Option<u32> {
        self.upstreams.iter().find(|(named_at, _)| **named_at == *place).map(|(_, number)| *number)
    }

    /// A text with variables, which stands at a place of the options. A variable that is always empty is rarely meant.
    pub fn template(&mut self, text: &str, place: &str) -> Template {
        self.template_at(Moment::Answer, text, place)
    }

    /// The same for what is written down of exchanges that have ended.
    pub fn template_of_record(&mut self, text: &str, place: &str) -> Template {
        self.template_at(Moment::Record, text, place)
    }

    fn template_at(&mut self, moment: Moment, text: &str, place: &str) -> Template {
        let template = Template::compile(text);
        for variable in template.variables() {
            let Some(mut problem) = variable.absence(moment) else { continue };
            if !variable.is_known() {
                problem.push_str("; write `\\$` for a dollar sign");
            }
            self.warnings.push(ConfigError::new(place, problem));
        }
        template
    }

    /// A condition for requests, which stands at a place of the options. One that asks for what is never there would
    /// hold, or not hold, for every request.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn condition(&mut self, value: &Value, place: &str) -> Result<Expression, ConfigError> {
        self.condition_at(Moment::Request, value, place)
    }

    /// The same for exchanges that have been answered, the content that was read of them included.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn condition_of_record(&mut self, value: &Value, place: &str) -> Result<Expression, ConfigError> {
        self.condition_at(Moment::Record, value, place)
    }

    fn condition_at(&mut self, moment: Moment, value: &Value, place: &str) -> Result<Expression, ConfigError> {
        let condition = Expression::compile(value).map_err(|error| {
            ConfigError::new(format!("{place}{}", error.place), format!("{}; {}", error.reason, error.help))
        })?;
        for variable in condition.variables() {
            let Some(problem) = variable.absence(moment) else { continue };
            let told = ConfigError::new(place, problem);
            // In APISIX a name that nobody knows here may be somebody's.
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

    /// A field that carries secrets: records do not show its value.
    pub fn secret_field(&self, name: &[u8]) {
        let name: Box<[u8]> = name.to_ascii_lowercase().into();
        self.shared.told.borrow_mut().push(BuildNote::SecretField(name.clone()));
        self.shared.secret_fields.add(name);
    }

    /// The fields that carry secrets, those of plugins that are not built yet included.
    pub fn secret_fields(&self) -> Arc<SecretFields> {
        Arc::clone(&self.shared.secret_fields)
    }

    /// Where clients that speak in the clear are told to go for TLS.
    pub fn https_port(&self) -> Option<u16> {
        self.note(|inputs| inputs.https_port = true);
        self.shared.https_port
    }

    pub fn consumers(&self) -> &Consumers {
        self.note(|inputs| inputs.consumers = true);
        &self.shared.consumers
    }

    /// The settings of plugin `D` that hold wherever it is used; the defaults where nobody has set any. Wrong ones have
    /// been reported where they stand.
    pub fn metadata<D: Described>(&self) -> D::Metadata {
        self.note(|inputs| inputs.metadata = true);
        self.shared.metadata.get(D::NAME).and_then(|value| read(value).ok()).unwrap_or_default()
    }

    /// Names plugin, owner and options: two builds with the same identity are the same plugin in two versions of a
    /// document. What a plugin counts under its identity goes on over a reload that does not concern it.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The options as written: the part of the identity that plugins with equal options share, wherever they stand.
    pub fn written_options(&self) -> &str {
        self.identity.split_once(": ").map_or("", |(_, options)| options)
    }

    /// State that each worker has for itself, the same for all plugins that ask under this name and key, over reloads too.
    /// It is made on a worker when that worker first uses it, and dropped after the last plugin that has it.
    /// For a plugin's own state the key is [`Build::identity`].
    pub fn per_worker<T: 'static>(
        &self,
        name: &'static str,
        key: &str,
        make: impl Fn() -> T + Send + Sync + 'static,
    ) -> PerWorker<T> {
        state::per_worker(name, key, make)
    }

    /// State that all workers share, the same for all plugins that ask under this name and key, over reloads too. It is
    /// dropped with the last plugin that has it.
    pub fn shared<T: Send + Sync + 'static>(&self, name: &'static str, key: &str, make: impl FnOnce() -> T) -> Arc<T> {
        state::shared(name, key, make)
    }

    /// The same, for what must not be forgotten while the process runs: totals for metrics.
    pub fn permanent<T: Send + Sync + Default + 'static>(&self, name: &'static str) -> Arc<T> {
        state::permanent(name)
    }

    /// A query argument of this name is a secret. Logs do not show it either where a request has ended before the plugin
    /// was asked.
    pub fn secret_argument(&self, name: &Arc<[u8]>) {
        self.shared.told.borrow_mut().push(BuildNote::SecretArgument(Arc::clone(name)));
        self.shared.secret_arguments.borrow_mut().insert(Arc::clone(name));
    }

    /// Whether everybody who has spoken on `topic` so far said the same.
    pub fn agree(&self, topic: &str, terms: &str) -> bool {
        self.shared.told.borrow_mut().push(BuildNote::Agreed { topic: topic.into(), terms: terms.into() });
        self.shared.agree(topic, terms)
    }
}

/// A plugin that finds out who somebody is, by credentials that consumers have.
pub trait Authenticator: Definition {
    /// The plugin's options under a consumer.
    type Credential: DeserializeOwned + JsonSchema + 'static;

    /// Checks what a schema cannot say. Returns what a credential is found by, which no two may have in common.
    fn check(credential: Self::Credential) -> Result<String, ConfigError>;
}

/// A plugin with settings that hold wherever it is used (APISIX `plugin_metadata`).
pub trait Described: Definition {
    type Metadata: DeserializeOwned + JsonSchema + Default + 'static;

    /// Checks what a schema cannot say.
    fn check_metadata(metadata: Self::Metadata) -> Result<(), ConfigError>;
}

/// How the registry knows the settings of a plugin that hold wherever it is used.
#[derive(Clone, Copy)]
pub struct MetadataEntry {
    pub schema: fn() -> Value,
    /// See [`Described::check_metadata`].
    pub check: fn(&Value) -> Result<(), ConfigError>,
}

/// How the registry knows the credentials of an auth plugin.
#[derive(Clone, Copy)]
pub struct CredentialEntry {
    pub schema: fn() -> Value,
    /// See [`Authenticator::check`].
    pub check: fn(&Value) -> Result<String, ConfigError>,
}

/// Builds a plugin of its options.
pub type BuildPlugin = fn(&Value, &mut Build) -> Result<Arc<dyn Plugin>, ConfigError>;

/// One plugin as the registry knows it.
#[derive(Clone, Copy)]
pub struct Entry {
    pub name: &'static str,
    pub priority: i32,
    pub stage: Stage,
    pub example: &'static str,
    pub schema: fn() -> Value,
    pub build: BuildPlugin,
    /// For auth plugins: what consumers have of them.
    pub credential: Option<CredentialEntry>,
    /// It may find out which consumer somebody is.
    pub identifies: bool,
    pub metadata: Option<MetadataEntry>,
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
            metadata: None,
        }
    }

    pub const fn authenticating<D: Authenticator>() -> Entry {
        let credential = CredentialEntry { schema: schema::of::<D::Credential>, check: check::<D> };
        Entry { credential: Some(credential), ..Entry::of::<D>() }.identifying()
    }

    /// The same, for a plugin that may find out which consumer somebody is.
    pub const fn identifying(self) -> Entry {
        Entry { identifies: true, ..self }
    }

    /// A plugin with settings that hold wherever it is used.
    pub const fn described<D: Described>() -> Entry {
        let metadata = MetadataEntry { schema: schema::of::<D::Metadata>, check: check_metadata::<D> };
        Entry { metadata: Some(metadata), ..Entry::of::<D>() }
    }
}

/// What is wrong with a secret is said without the secret.
fn check<D: Authenticator>(value: &Value) -> Result<String, ConfigError> {
    let key = D::check(read(value).map_err(|error| match error.problem.split_once(", expected ") {
        Some((_, expected)) => ConfigError::new(error.path, format!("expected {expected}")),
        None => error,
    })?)?;
    schema::enforce::<D::Credential>(value).map(|()| key)
}

fn check_metadata<D: Described>(value: &Value) -> Result<(), ConfigError> {
    D::check_metadata(read(value)?)?;
    schema::enforce::<D::Metadata>(value)
}

fn read<T: DeserializeOwned>(value: &Value) -> Result<T, ConfigError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        ConfigError::new(if path == "." { String::new() } else { path }, error.inner().to_string())
    })
}

fn build<D: Definition>(value: &Value, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
    let options: D = read(value)?;
    build.identity = format!("{} of {}: {value}", D::NAME, build.owner);
    // What a plugin says of its options is better to read.
    let plugin = options.build(build)?;
    schema::enforce::<D>(value).map(|()| plugin)
}

/// The plugins of this binary, by name.
#[derive(Clone, Copy)]
pub struct Registry {
    entries: &'static [Entry],
}

impl Registry {
    pub const fn new(entries: &'static [Entry]) -> Registry {
        Registry { entries }
    }

    pub fn entries(&self) -> &'static [Entry] {
        self.entries
    }

    pub fn find(&self, name: &str) -> Option<&'static Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// What numbers a plugin has instead of its name where names would take too long to compare.
    pub fn number(&self, name: &str) -> Option<u16> {
        self.entries.iter().position(|entry| entry.name == name).map(|index| index as u16)
    }
}
