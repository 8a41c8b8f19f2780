//! Consumers: their credentials, and the plugins they add to the routes they use.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::Arc;

use weir_gateway::snapshot::ListenerProtocol;
use weir_plugin::{BuildContext, ConfigError, Consumer, LoadedPlugins, Proof, Registry};

use super::plugin_findings::{inside, path_of, report_unknown};
use super::{Compiler, by_id};
use crate::data_directory::configured_directory;
use crate::document::{self, CredentialSpec, Document, Listen, PluginSet, PluginSpec, ResourceOrigin};
use crate::text::diagnostic::{Diagnostic, FaultCause};

/// The inputs that are needed before any plugin can be built, and the sources of overlays.
pub(super) struct KnownConsumers<'a> {
    pub(super) shared: BuildContext,
    /// Indexed by [`Consumer::overlay`].
    pub(super) overlays: Vec<OverlayLayers<'a>>,
}

/// The sources of an overlay. A consumer's own plugins take precedence over those of its group.
#[derive(Clone, Copy)]
pub(super) struct OverlayLayers<'a> {
    pub(super) consumer: Option<&'a document::ConsumerSpec>,
    pub(super) group: Option<&'a PluginSet>,
}

impl KeyOwner<'_> {
    /// The key of the resource in a store.
    fn stored_key(self) -> Box<str> {
        match self.credential {
            "" => format!("consumers/{}", self.consumer).into(),
            credential => format!("consumers/{}/credentials/{credential}", self.consumer).into(),
        }
    }

    /// For a diagnostic about another one; with the place in the text, if there is one.
    fn named(self, document: &Document) -> String {
        let KeyOwner { origin, consumer, credential } = self;
        let name = match credential {
            "" => format!("the consumer `{consumer}`"),
            credential => format!("the credential `{credential}` of the consumer `{consumer}`"),
        };
        // The index of a store's resource is one of a list that only the compiler has.
        match document.store_revision() {
            Some(_) => name,
            None => format!("{name} ({})", document.named(origin)),
        }
    }
}

pub(super) fn read<'a>(
    compiler: &'a Compiler<'a>,
    registry: &'a Registry,
    file_plugins: &Arc<LoadedPlugins>,
) -> KnownConsumers<'a> {
    let tls = compiler.document.listens().find(|listen| listen.settings.protocol == ListenerProtocol::Https);
    let port = |listen: &Listen| listen.public_port.unwrap_or(listen.address.port());
    let https_port = tls.map(port).filter(|port| *port != 0);
    let mut reader = ConsumerReader {
        compiler,
        registry,
        shared: BuildContext::new(https_port)
            .with_http(compiler.http.clone())
            .with_data_dir(configured_directory(compiler.lasting(), &compiler.document.beside.directory))
            .with_file_plugins(Arc::clone(file_plugins))
            .with_services(compiler.services())
            .with_log_folders(compiler.document.access().map(|access| Arc::clone(&access.writable)))
            .with_read_folders(compiler.document.access().map(|access| Arc::clone(&access.readable))),
        taken: HashMap::new(),
    };
    reader.metadata();
    let overlays = reader.consumers();
    KnownConsumers { shared: reader.shared, overlays }
}

struct ConsumerReader<'a> {
    compiler: &'a Compiler<'a>,
    registry: &'a Registry,
    shared: BuildContext,
    /// The keys of all credentials, by plugin, with the owner of each.
    taken: HashMap<(&'a str, String), KeyOwner<'a>>,
}

/// The resource that has a key.
#[derive(Clone, Copy)]
struct KeyOwner<'a> {
    origin: &'a ResourceOrigin,
    /// The name of the consumer.
    consumer: &'a str,
    /// The id of the credential; empty for a key in the consumer itself.
    credential: &'a str,
}

impl<'a> ConsumerReader<'a> {
    fn metadata(&mut self) {
        let document = self.compiler.document;
        for (index, settings) in document.plugin_metadata.iter().enumerate() {
            let path = format!("plugin_metadata[{index}]");
            let Some(entry) = self.registry.find(&settings.name) else {
                report_unknown(self.compiler, self.registry, &format!("{path}.id"), settings);
                continue;
            };
            let Some(metadata) = entry.metadata else {
                let problem = format!("`{}` has no options in `plugin_metadata`", settings.name);
                self.compiler.report(&path, settings.place, problem, Some("leave it out".to_owned()));
                continue;
            };
            let faults = (metadata.check)(&settings.options).err().into_iter().flat_map(ConfigError::each);
            for error in faults.filter(|error| !document.awaits_value(&settings.options, &error.path)) {
                let (path, place) = inside(self.compiler, path.clone(), settings.place, &error);
                self.compiler.report(&path, place, error.problem, None);
            }
            self.shared.metadata.insert(settings.name.clone(), settings.options.clone());
        }
    }

    fn consumers(&mut self) -> Vec<OverlayLayers<'a>> {
        let document = self.compiler.document;
        let groups: HashMap<&str, &PluginSet> = by_id(document.consumer_groups.iter(), |group| &group.id);
        let mut proofs: HashMap<&str, Vec<Proof>> = HashMap::new();
        let consumers = by_id(document.consumers.iter(), |consumer| &consumer.username);
        for CredentialSpec { origin, id, consumer, plugins } in &document.credentials {
            let known = self.compiler.referred(origin, "id", &Some(consumer.clone()), &consumers, "consumers");
            let owner = KeyOwner { origin, consumer: &consumer.id, credential: id };
            for plugin in plugins.iter().filter(|plugin| !plugin.disabled) {
                match self.proof(owner, plugin) {
                    Some(Some(proof)) if known.is_some() => proofs.entry(&consumer.id).or_default().push(proof),
                    Some(_) => {}
                    None => {
                        let problem = format!("`{}` is not an auth plugin, so it cannot be a credential", plugin.name);
                        let advice = "credentials are for auth plugins, such as `key-auth`".to_owned();
                        self.compiler.report(&path_of(origin, plugin), plugin.place, problem, Some(advice));
                    }
                }
            }
        }
        let mut overlays = Vec::new();
        let mut of_groups: HashMap<&str, u32> = HashMap::new();
        for consumer in &document.consumers {
            let mut own = proofs.remove(&*consumer.username).unwrap_or_default();
            let mut has_policies = false;
            let owner = KeyOwner { origin: &consumer.origin, consumer: &consumer.username, credential: "" };
            for plugin in &consumer.plugins {
                match plugin.disabled && self.is_auth(plugin) {
                    true => {}
                    false => match self.proof(owner, plugin) {
                        Some(proof) => own.extend(proof),
                        None => has_policies = true,
                    },
                }
            }
            let group =
                self.compiler.referred(&consumer.origin, "group_id", &consumer.group_id, &groups, "consumer_groups");
            let mut add = |layers| {
                overlays.push(layers);
                overlays.len() as u32 - 1
            };
            let overlay = match group {
                _ if has_policies => Some(add(OverlayLayers { consumer: Some(consumer), group })),
                Some(set) if !set.plugins.is_empty() => {
                    Some(*of_groups.entry(&set.id).or_insert_with(|| add(OverlayLayers { consumer: None, group })))
                }
                _ => None,
            };
            let known = Consumer {
                username: consumer.username.clone(),
                custom_id: consumer.custom_id.clone(),
                labels: consumer.labels.clone(),
                group_id: group.map(|set| set.id.clone()).unwrap_or_default(),
                overlay,
            };
            self.shared.consumers.add(known, own);
        }
        overlays
    }

    fn is_auth(&self, plugin: &PluginSpec) -> bool {
        self.registry.find(&plugin.name).is_some_and(|entry| entry.credential.is_some())
    }

    /// The options of a plugin as a credential; `None` if the plugin takes no credentials. The inner `None` stands for a fault
    /// that has been reported.
    fn proof(&mut self, owner: KeyOwner<'a>, plugin: &'a PluginSpec) -> Option<Option<Proof>> {
        let KeyOwner { origin, credential: id, .. } = owner;
        let entry = self.registry.find(&plugin.name)?;
        let credential = entry.credential?;
        let key = match (credential.check)(&plugin.options) {
            Ok(key) => key,
            Err(error) => {
                let document = self.compiler.document;
                for error in error.each().filter(|error| !document.awaits_value(&plugin.options, &error.path)) {
                    let (path, place) = inside(self.compiler, path_of(origin, plugin), plugin.place, &error);
                    self.compiler.report(&path, place, error.problem, None);
                }
                return Some(None);
            }
        };
        match self.taken.entry((entry.name, key)) {
            Slot::Vacant(slot) => slot.insert(owner),
            Slot::Occupied(other) => {
                // The key is not shown, since it is a secret.
                let problem = format!("has the same key as {}", other.get().named(self.compiler.document));
                let fault = Diagnostic::at_place(&self.compiler.document.source, plugin.place, problem);
                let cause = FaultCause::SameSecret(Box::new([owner.stored_key(), other.get().stored_key()]));
                let fault = Diagnostic { path: path_of(origin, plugin), cause, ..fault };
                self.compiler.faults.add(fault.advise("give each consumer a different key"));
                return Some(None);
            }
        };
        Some(Some(Proof { plugin: plugin.name.clone(), id: id.into(), options: plugin.options.clone() }))
    }
}
