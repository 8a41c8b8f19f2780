//! Reads a document from a tree.

use std::sync::Arc;
use std::time::SystemTime;

use super::lists::{LongLists, ReferringResource, SpecList};
use super::plugin_set::PluginSet;
use super::references::KeptReferences;
use super::resolved_texts::ResolvedTexts;
use super::settings::NodeSettings;
use super::text_positions::TextPositions;
use super::{
    Document, StoreOrigin, certificate, consumer, hub, kinds, listener, plugin_set, plugins, proto, resource, secrets,
    settings, stream_route,
};
use crate::text::diagnostic::Faults;
use crate::text::read::{MapReader, NodeReader};
use crate::text::tree::TreeNode;

/// The advice for a text that is YAML and has no keys.
const NO_CONFIGURATION: &str = "a configuration has keys, such as `routes:`; `weir convert nginx FILE`, or `caddy`, converts that of \
                                another gateway";

impl Document {
    /// Reads a document from a tree whose references, to the environment as well, are not replaced.
    pub fn with_references(source: Arc<str>, tree: TreeNode) -> Document {
        Document { kept: KeptReferences::All, ..Document::build(source, tree, None) }
    }

    /// If `stored` is `None`, the long lists are read from the tree.
    pub(super) fn build(source: Arc<str>, mut tree: TreeNode, stored: Option<(LongLists, StoreOrigin)>) -> Document {
        let faults =
            if stored.is_some() { Faults::of_each_resource(source.clone()) } else { Faults::new(source.clone()) };
        let mut document = Document::empty(source, &tree);
        let (lists, store) = stored.unzip();
        document.store = store;
        let nodes = LongLists::KEYS.map(|key| tree.take_list(key));
        let root = NodeReader::root(&tree, &faults);
        let lists_of_resources: Vec<&str> = kinds::KINDS.iter().map(|kind| kind.list).collect();
        let no_map = || Some(NO_CONFIGURATION.to_owned());
        let is_map = root.entries_advising(&no_map).is_some();
        if is_map && let Some(fields) = root.map_with(settings::table(), &lists_of_resources) {
            document.settings = settings::read(&fields);
            document.acme = settings::acme(&fields);
            // The lists were taken out of the tree; this reports a value that is not a list.
            LongLists::KEYS.iter().filter_map(|key| fields.get(key)).for_each(|at| drop(at.items()));
            document.put_lists(lists.unwrap_or_else(|| LongLists::of_nodes(nodes, &faults)), &faults);
            document.read_resources(&fields);
            document.enabled_plugins = settings::enabled_plugins(&fields);
        }
        document.faults = faults.into_diagnostics();
        document
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
            unread_hubs: Vec::new(),
            listeners: Vec::new(),
            stream_routes: Vec::new(),
            consumers: Vec::new(),
            credentials: Vec::new(),
            consumer_groups: Vec::new(),
            plugin_metadata: Vec::new(),
            managers: Vec::new(),
            protos: Vec::new(),
            enabled_plugins: None,
            store: None,
            read_at: SystemTime::now(),
            faults: Vec::new(),
            kept: KeptReferences::None,
            resolved: ResolvedTexts::default(),
            read_warnings: Vec::new(),
            positions: TextPositions::of(tree),
        }
    }

    fn put_lists(&mut self, lists: LongLists, faults: &Faults) {
        let LongLists { routes, enabled_routes, services, upstreams, plugin_configs, .. } = lists;
        let LongLists { faults: found, resolved, .. } = lists;
        found.into_iter().for_each(|fault| faults.add(fault));
        self.routes = routes;
        self.enabled_routes = enabled_routes;
        self.services = services;
        self.upstreams = upstreams;
        self.plugin_configs = plugin_configs;
        self.resolved.of_lists = resolved;
    }

    /// The long lists, of which these resources refer to secrets.
    pub(super) fn take_lists(&mut self, referring: Vec<Arc<ReferringResource>>) -> LongLists {
        LongLists {
            routes: std::mem::take(&mut self.routes),
            enabled_routes: self.enabled_routes,
            services: std::mem::take(&mut self.services),
            upstreams: std::mem::take(&mut self.upstreams),
            plugin_configs: std::mem::take(&mut self.plugin_configs),
            faults: Vec::new(),
            referring,
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
        self.unread_hubs =
            resource::ids(fields, "hubs").filter(|id| self.hubs.iter().all(|hub| hub.id != *id)).collect();
        self.listeners = resource::list(fields, "listeners", listener::read_resource, |one| (&*one.id).into());
        self.stream_routes = resource::list(fields, "stream_routes", stream_route::read, |route| (&*route.id).into());
        self.managers = resource::list(fields, "secrets", secrets::read, |one| (&*one.id).into());
        self.protos = resource::list(fields, "protos", proto::read, |one| (&*one.id).into());
    }
}
