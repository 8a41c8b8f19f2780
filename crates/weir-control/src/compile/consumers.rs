//! Consumers: what proves who they are, and what they add to the routes they use.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;

use weir_plugin::{Consumer, Proof, Registry, Shared};

use super::chains::{inside, path_of, report_unknown};
use super::{Compiler, by_id};
use crate::document::{self, CredentialSpec, PluginSet, PluginSpec, ResourceOrigin};

/// What has to be known before any plugin can be built, and whose plugins become overlays.
pub(super) struct Known<'a> {
    pub(super) shared: Shared,
    /// Indexed by [`Consumer::overlay`].
    pub(super) overlays: Vec<Layers<'a>>,
}

/// Whose plugins make up an overlay. A consumer's own count before those of its group.
#[derive(Clone, Copy)]
pub(super) struct Layers<'a> {
    pub(super) consumer: Option<&'a document::ConsumerSpec>,
    pub(super) group: Option<&'a PluginSet>,
}

pub(super) fn read<'a>(compiler: &'a Compiler<'a>, registry: &'a Registry) -> Known<'a> {
    let tls = compiler.document.settings.listen.iter().find(|listen| listen.tls);
    let https_port = tls.map(|listen| listen.address.port()).filter(|port| *port != 0);
    let mut reader = Reader {
        compiler,
        registry,
        shared: Shared::new(https_port).with_http(compiler.http.clone()),
        taken: HashMap::new(),
    };
    reader.metadata();
    let overlays = reader.consumers();
    Known { shared: reader.shared, overlays }
}

struct Reader<'a> {
    compiler: &'a Compiler<'a>,
    registry: &'a Registry,
    shared: Shared,
    /// What credentials are found by, each for its plugin, and where it stands.
    taken: HashMap<(&'a str, String), &'a str>,
}

impl<'a> Reader<'a> {
    fn metadata(&mut self) {
        let document = self.compiler.document;
        for (index, settings) in document.plugin_metadata.iter().enumerate() {
            let path = format!("plugin_metadata[{index}]");
            let Some(entry) = self.registry.find(&settings.name) else {
                report_unknown(self.compiler, self.registry, &format!("{path}.id"), settings);
                continue;
            };
            let Some(metadata) = entry.metadata else {
                let problem = format!("`{}` has no settings of this kind", settings.name);
                self.compiler.report(&path, settings.place, problem, Some("leave it out".to_owned()));
                continue;
            };
            if let Err(error) = (metadata.check)(&settings.options) {
                let (path, place) = inside(self.compiler, path, settings.place, &error);
                self.compiler.report(&path, place, error.problem, None);
            }
            self.shared.metadata.insert(settings.name.clone(), settings.options.clone());
        }
    }

    fn consumers(&mut self) -> Vec<Layers<'a>> {
        let document = self.compiler.document;
        let groups: HashMap<&str, &PluginSet> = by_id(&document.consumer_groups, |group| &group.id);
        let mut proofs: HashMap<&str, Vec<Proof>> = HashMap::new();
        let consumers = by_id(&document.consumers, |consumer| &consumer.username);
        for CredentialSpec { origin, id, consumer, plugins } in &document.credentials {
            let known = self.compiler.referred(origin, "id", &Some(consumer.clone()), &consumers, "consumers");
            for plugin in plugins.iter().filter(|plugin| !plugin.disabled) {
                match self.proof(origin, plugin, id) {
                    Some(Some(proof)) if known.is_some() => proofs.entry(&consumer.id).or_default().push(proof),
                    Some(_) => {}
                    None => {
                        let problem = format!("`{}` proves nobody who they are", plugin.name);
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
            for plugin in &consumer.plugins {
                match plugin.disabled && self.is_auth(plugin) {
                    true => {}
                    false => match self.proof(&consumer.origin, plugin, "") {
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
                _ if has_policies => Some(add(Layers { consumer: Some(consumer), group })),
                Some(set) if !set.plugins.is_empty() => {
                    Some(*of_groups.entry(&set.id).or_insert_with(|| add(Layers { consumer: None, group })))
                }
                _ => None,
            };
            let known = Consumer {
                username: consumer.username.clone(),
                custom_id: consumer.custom_id.clone(),
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

    /// A plugin's options as proof of who somebody is; nothing if it proves nothing. The inner nothing is a fault that
    /// has been reported.
    fn proof(&mut self, origin: &'a ResourceOrigin, plugin: &'a PluginSpec, id: &str) -> Option<Option<Proof>> {
        let entry = self.registry.find(&plugin.name)?;
        let credential = entry.credential?;
        let key = match (credential.check)(&plugin.options) {
            Ok(key) => key,
            Err(error) => {
                let (path, place) = inside(self.compiler, path_of(origin, plugin), plugin.place, &error);
                self.compiler.report(&path, place, error.problem, None);
                return Some(None);
            }
        };
        match self.taken.entry((entry.name, key)) {
            Slot::Vacant(slot) => slot.insert(&origin.path),
            Slot::Occupied(other) => {
                // The key itself is a secret.
                let problem = format!("has the same key as {}", other.get());
                let advice = "give each its own, or nobody can say who it is".to_owned();
                self.compiler.report(&path_of(origin, plugin), plugin.place, problem, Some(advice));
                return Some(None);
            }
        };
        Some(Some(Proof { plugin: plugin.name.clone(), id: id.into(), options: plugin.options.clone() }))
    }
}
