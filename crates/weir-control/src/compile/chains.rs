//! Plugins: built once per resource, merged per route, and sorted.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use serde_json::json;
use weir_gateway::snapshot::{Chain, ChainReach, ConsumerPlugins, Link, Rank};
use weir_plugin::{Build, BuildContext, BuildInputs, Declaration, Entry, ProtoDefinitions, Registry};

use super::built::{BuiltPlugin, BuiltSet, Sets, nearest};
use super::consumers::{KnownConsumers, OverlayLayers};
use super::dependencies::Dependencies;
use super::plugin_findings::{inside, path_of, report_unknown, split_credential};
use super::{Compiler, by_id, meta};
use crate::document::{
    self, PluginSet, PluginSpec, ProtoSpec, ResourceOrigin, ServiceSpec, StreamRouteSpec, TrafficShare,
};
use crate::text::fingerprint::Fingerprint;
use crate::text::read::{join, listed};
use crate::text::tree::TreePath;

/// Findings from building a route's own plugins.
pub(super) struct OwnPlugins {
    pub(super) declarations: Vec<Declaration>,
    /// The inputs of these plugins besides their options.
    pub(super) inputs: BuildInputs,
}

/// The plugins that a route shares with others, with the key of all of its plugins.
pub(super) struct RoutePlugins<'c> {
    config: Option<&'c BuiltSet>,
    service: Option<&'c BuiltSet>,
    /// The fingerprint of the inputs of all plugins; `None` if building caused a warning.
    pub(super) key: Option<Fingerprint>,
}

/// The names of the plugins of some kind.
fn names(registry: &Registry, is_one: fn(&Entry) -> bool) -> Vec<&'static str> {
    registry.entries().iter().filter(|entry| is_one(entry)).map(|entry| entry.name).collect()
}

/// Builds the plugin chain of each route.
pub(super) struct Chains<'a> {
    compiler: &'a Compiler<'a>,
    registry: &'a Registry,
    services: HashMap<&'a str, BuiltSet>,
    /// Indices into `sets`.
    plugin_configs: HashMap<&'a str, usize>,
    sets: Vec<BuiltSet>,
    global: Vec<Link>,
    /// The fingerprint of the inputs of the global rules; `None` if building caused a warning.
    global_key: Option<Fingerprint>,
    known_sets: Sets<'a>,
    /// The inputs that have not changed; sets built only from these are reused.
    unchanged: Dependencies,
    disagrees: Cell<bool>,
    groups: HashMap<&'a str, usize>,
    protos: HashMap<&'a str, &'a ProtoSpec>,
    overlays: Vec<OverlayLayers<'a>>,
    /// The numbers of the upstreams in options, by the path of the option.
    upstreams: HashMap<&'a str, u32>,
    /// The names of plugins that requests have nothing for.
    only_on_streams: Vec<&'static str>,
    shared: Rc<BuildContext>,
}

impl<'a> Chains<'a> {
    pub(super) fn new(
        compiler: &'a Compiler<'a>,
        registry: &'a Registry,
        known: KnownConsumers<'a>,
        upstreams: HashMap<&'a str, u32>,
        known_sets: Sets<'a>,
        unchanged: Dependencies,
    ) -> Self {
        let document = compiler.document;
        let mut chains = Chains {
            compiler,
            registry,
            services: HashMap::new(),
            plugin_configs: HashMap::new(),
            sets: Vec::new(),
            global: Vec::new(),
            global_key: None,
            known_sets,
            unchanged,
            disagrees: Cell::new(false),
            groups: HashMap::new(),
            protos: by_id(document.protos.iter(), |proto| &proto.id),
            overlays: known.overlays,
            upstreams,
            only_on_streams: names(registry, |entry| entry.only_on_streams),
            shared: Rc::new(known.shared),
        };
        for ServiceSpec { id, origin, content, plugins, .. } in document.services.iter() {
            chains.services.insert(id, chains.set("service", id, *content, origin, plugins));
        }
        for PluginSet { id, origin, content, plugins } in document.plugin_configs.iter() {
            chains.plugin_configs.insert(id, chains.sets.len());
            chains.sets.push(chains.set("plugin_config", id, *content, origin, plugins));
        }
        for PluginSet { id, origin, content, plugins } in &document.consumer_groups {
            chains.refuse_doors(origin, plugins);
            chains.groups.insert(id, chains.sets.len());
            let set = chains.set("consumer_group", id, *content, origin, plugins);
            set.built.iter().for_each(|built| chains.refuse_on_requests(origin, built));
            chains.sets.push(set);
        }
        chains.add_global_rules();
        chains
    }

    /// Builds the global rules, and what stands beside them.
    fn add_global_rules(&mut self) {
        let document = self.compiler.document;
        let mut seen = HashSet::new();
        let mut sets = Vec::new();
        for PluginSet { id, origin, content, plugins } in &document.global_rules {
            for plugin in plugins.iter().filter(|plugin| !plugin.disabled && !seen.insert(&*plugin.name)) {
                // APISIX would silently ignore the second one.
                let problem = format!("`{}` is in two global rules", plugin.name);
                self.report(origin, plugin, problem, Some("keep it in one of them".to_owned()));
            }
            let set = self.set("global_rule", id, *content, origin, plugins);
            set.built.iter().for_each(|built| self.refuse_on_requests(origin, built));
            sets.push((set, ChainReach::Global));
        }
        if let Some(PluginSet { id, origin, content, plugins }) = self.said_of_http3() {
            sets.push((self.set("listen", &id, content, &origin, &plugins), ChainReach::Own));
        }
        let links = sets.iter().flat_map(|(set, reach)| {
            let links = set.built.iter().filter_map(|built| built.link.clone());
            links.map(|link| Link { rank: Rank { reach: *reach, ..link.rank }, ..link })
        });
        self.global = links.collect();
        self.global_key = sets.iter().map(|(set, _)| set.key).collect::<Option<Vec<_>>>().map(Fingerprint::of);
    }

    /// The plugin by which addresses with `http3` are told to clients, unless a global rule decides that. A port that the system chooses
    /// is not known here.
    fn said_of_http3(&self) -> Option<PluginSet> {
        const NAME: &str = "alt-svc";
        let document = self.compiler.document;
        let serving = document.settings.listen.iter().filter(|listen| listen.http3 && listen.address.port() != 0);
        let ports: BTreeSet<u16> = serving.clone().map(|listen| listen.address.port()).collect();
        let is_enabled = document.enabled_plugins.as_ref().is_none_or(|enabled| enabled.contains(NAME));
        let is_named = document.global_rules.iter().flat_map(|rule| rule.plugins.iter()).any(|one| *one.name == *NAME);
        if is_named || !is_enabled || self.registry.find(NAME).is_none() {
            return None;
        }
        let origin = serving.clone().next()?.origin.clone();
        let content = Fingerprint::of(&ports);
        let plugin = PluginSpec {
            name: NAME.into(),
            place: origin.place,
            options: json!({ "on_ports": ports }),
            disabled: false,
            // After all others, so that any of them may set the field.
            priority: Some(i32::MIN),
            filter: None,
            error_response: None,
            shares: Vec::new(),
            proto: None,
        };
        Some(PluginSet { id: "http3".into(), origin, content, plugins: vec![plugin] })
    }

    /// The fingerprint of the inputs of the global rules; `None` if building caused a warning.
    pub(super) fn global_key(&self) -> Option<Fingerprint> {
        self.global_key
    }

    /// The fingerprint of the inputs of all sets that routes refer to; `None` if building caused a warning.
    pub(super) fn sets_key(&self) -> Option<Fingerprint> {
        let document = self.compiler.document;
        let key = |set: &BuiltSet| set.key;
        let services =
            document.services.iter().map(|one| Some((&*one.id, one.content, key(&self.services[&*one.id])?)));
        let configs = document.plugin_configs.iter();
        let configs = configs.map(|one| Some((&*one.id, one.content, key(&self.sets[self.plugin_configs[&*one.id]])?)));
        Some(Fingerprint::of((services.collect::<Option<Vec<_>>>()?, configs.collect::<Option<Vec<_>>>()?)))
    }

    /// The chain for requests that match no route.
    pub(super) fn unmatched(&self) -> Chain {
        Chain::new(self.global.clone())
    }

    /// The plugins that a route shares with others, and the key of all of its plugins.
    pub(super) fn plugins_of(&self, route: &document::RouteSpec, service: Option<&ServiceSpec>) -> RoutePlugins<'_> {
        let reference = &route.plugin_config_id;
        let config = self
            .compiler
            .referred(&route.origin, "plugin_config_id", reference, &self.plugin_configs, "plugin_configs")
            .map(|index| &self.sets[index]);
        let service = service.and_then(|service| self.services.get(&*service.id));
        // `None` if one of them has no key.
        let shared = |set: Option<&BuiltSet>| set.map_or(Some(None), |set| set.key.map(Some));
        let key = || {
            let own = self.share_numbers(&route.plugins);
            Some(Fingerprint::of((self.global_key?, shared(config)?, shared(service)?, own)))
        };
        RoutePlugins { config, service, key: key() }
    }

    /// The chain of a route, and the findings from building its own plugins. A plugin is taken as a whole from the route, or else
    /// from its plugin_config, or else from its service.
    pub(super) fn of_route(&self, route: &document::RouteSpec, plugins: &RoutePlugins) -> (Chain, OwnPlugins) {
        let own = self.built(&format!("route/{}", route.id), &route.origin, &route.plugins);
        let mut links = self.global.clone();
        let shared = [plugins.config, plugins.service].map(|set| set.map(|set| &*set.built));
        let layers = [Some(&*own), shared[0], shared[1]];
        let nearest = nearest(layers).inspect(|built| self.refuse_on_requests(&route.origin, built));
        links.extend(nearest.filter_map(|built| built.link.clone()));
        let chain = Chain::new(links);
        self.compiler.warn_of_two_answers(&route.origin, &chain.request, layers.map(Option::unwrap_or_default));
        (chain, OwnPlugins { declarations: self.shared.take_declarations(), inputs: self.shared.take_inputs() })
    }

    /// The same for a stream route, which global rules do not apply to: as in APISIX, they are about requests.
    pub(super) fn plugins_of_stream(&self, route: &StreamRouteSpec, service: Option<&ServiceSpec>) -> RoutePlugins<'_> {
        let service = service.and_then(|service| self.services.get(&*service.id));
        let shared = service.map_or(Some(None), |set| set.key.map(Some));
        let key = shared.map(|shared| Fingerprint::of((shared, self.share_numbers(&route.plugins))));
        RoutePlugins { config: None, service, key }
    }

    /// The chain of a stream route, and the findings from building its own plugins.
    pub(super) fn of_stream(&self, route: &StreamRouteSpec, plugins: &RoutePlugins) -> (Chain, OwnPlugins) {
        let own = self.built(&format!("stream_route/{}", route.id), &route.origin, &route.plugins);
        let layers = [Some(&*own), plugins.service.map(|set| &*set.built)];
        let links = nearest(layers).filter_map(|built| built.link.clone()).collect();
        (
            Chain::new(links),
            OwnPlugins { declarations: self.shared.take_declarations(), inputs: self.shared.take_inputs() },
        )
    }

    /// Reports plugins of a stream route, and of its service, that work on requests: a check that is not made must not look as if it
    /// were.
    pub(super) fn refuse_plugins_for_http(&self, route: &StreamRouteSpec, service: Option<&ServiceSpec>) {
        let is_for_http = |plugin: &&PluginSpec| {
            !plugin.disabled && self.registry.find(&plugin.name).is_some_and(|entry| !entry.on_streams)
        };
        let others = || names(self.registry, |entry| entry.on_streams);
        let advice = || Some(format!("plugins for stream routes are {}", listed(&others())));
        for plugin in route.plugins.iter().filter(is_for_http) {
            let problem = format!("`{}` works on HTTP requests, and a stream route has none", plugin.name);
            self.report(&route.origin, plugin, problem, advice());
        }
        let Some(service) = service else { return };
        let own = |plugin: &&PluginSpec| route.plugins.iter().any(|own| own.name == plugin.name);
        for plugin in service.plugins.iter().filter(is_for_http).filter(|plugin| !own(plugin)) {
            let problem = format!(
                "its service `{}` has the plugin `{}`, which works on HTTP requests, and a stream route has none",
                service.id, plugin.name
            );
            let advice = format!(
                "use a service without it, or switch it off: `{}: {{ _meta: {{ disable: true }} }}`",
                plugin.name
            );
            self.compiler.report(&route.origin.path, route.origin.place, problem, Some(advice));
        }
    }

    /// Reports a plugin that works on streams alone where requests pass it.
    fn refuse_on_requests(&self, origin: &ResourceOrigin, built: &BuiltPlugin) {
        if built.link.is_some() && self.only_on_streams.contains(&&*built.name) {
            let problem = format!("the plugin `{}` works on streams, and not on requests", built.name);
            let advice = "put it into a stream route, or a service that only stream routes use".to_owned();
            self.compiler.report(&origin.path, origin.place, problem, Some(advice));
        }
    }

    /// Repeats the declarations of plugins that are reused.
    pub(super) fn redeclare(&self, declarations: &[Declaration]) {
        if !declarations.iter().all(|declarations| self.shared.redeclare(declarations)) {
            self.disagrees.set(true);
        }
    }

    /// Whether reused plugins contradict others.
    pub(super) fn disagrees(&self) -> bool {
        self.disagrees.get()
    }

    /// Names of header fields that are secrets. Complete only after every plugin has been built.
    pub(super) fn secret_fields(&self) -> Vec<Box<[u8]>> {
        self.shared.secret_fields()
    }

    pub(super) fn into_sets(self) -> Sets<'a> {
        self.known_sets
    }

    /// The plugins of a resource of this kind and id, reused if possible.
    fn set(
        &self,
        kind: &str,
        id: &str,
        content: Fingerprint,
        origin: &ResourceOrigin,
        plugins: &[PluginSpec],
    ) -> BuiltSet {
        let written = Fingerprint::of((kind, id, content, self.share_numbers(plugins)));
        let is_same = |known: &BuiltSet| Dependencies::from(known.inputs).are_among(self.unchanged);
        if let Some(known) = self.known_sets.find(written, is_same) {
            self.redeclare(&known.declarations);
            return known.clone();
        }
        let warnings = self.compiler.warnings.count();
        let built = self.built(&format!("{kind}/{id}"), origin, plugins).into();
        let has_warned = self.compiler.warnings.count() > warnings;
        let (declarations, inputs) = (self.shared.take_declarations().into(), self.shared.take_inputs());
        // The key contains the inputs, so that routes are compiled again together with a set whose text is unchanged.
        let key = (!has_warned).then(|| Fingerprint::of((written, self.compiler.surroundings.of_inputs(inputs))));
        let set = BuiltSet { key, built, declarations, inputs };
        if !has_warned {
            self.known_sets.add(written, set.clone());
        }
        set
    }

    /// The numbers of the upstreams in options.
    fn share_numbers(&self, plugins: &[PluginSpec]) -> Vec<Option<u32>> {
        let shares = plugins.iter().flat_map(|plugin| &plugin.shares);
        shares.map(|share| self.upstreams.get(&*share.origin.path).copied()).collect()
    }

    /// Names of query arguments that plugins treat as secrets. Complete only after every plugin has been built.
    pub(super) fn secret_arguments(&self) -> Vec<Arc<[u8]>> {
        self.shared.secret_arguments()
    }

    /// The plugins that each consumer, or its group, adds to every route.
    pub(super) fn overlays(&self) -> Vec<ConsumerPlugins> {
        let overlay = |layers: &OverlayLayers| {
            let own = layers.consumer.map(|consumer| {
                // Credentials have been read before, by `consumers::read`.
                let is_proof = |plugin: &PluginSpec| {
                    self.registry.find(&plugin.name).is_some_and(|entry| entry.credential.is_some())
                };
                let policies: Vec<PluginSpec> =
                    consumer.plugins.iter().filter(|plugin| !is_proof(plugin)).cloned().collect();
                self.refuse_doors(&consumer.origin, &policies);
                let own = self.built(&format!("consumer/{}", consumer.username), &consumer.origin, &policies);
                own.iter().for_each(|built| self.refuse_on_requests(&consumer.origin, built));
                own
            });
            let group = layers.group.and_then(|set| self.groups.get(&*set.id)).map(|index| &*self.sets[*index].built);
            let built: Vec<&BuiltPlugin> = nearest([own.as_deref(), group]).collect();
            ConsumerPlugins {
                chain: Chain::new(built.iter().filter_map(|built| built.link.clone()).collect()),
                overrides: built.iter().filter_map(|built| self.registry.number(&built.name)).collect(),
            }
        };
        self.overlays.iter().map(overlay).collect()
    }

    /// Refuses auth plugins among the plugins of a consumer: these run when the consumer is already authenticated.
    fn refuse_doors(&self, origin: &ResourceOrigin, plugins: &[PluginSpec]) {
        let is_door = |plugin: &&PluginSpec| self.registry.find(&plugin.name).is_some_and(|entry| entry.identifies);
        for plugin in plugins.iter().filter(is_door) {
            let problem = format!(
                "`{}` is an auth plugin, and the plugins here run when the consumer is already known",
                plugin.name
            );
            self.report(
                origin,
                plugin,
                problem,
                Some("put the plugin in a route, and the credentials in consumers".to_owned()),
            );
        }
    }

    /// Builds the plugins of `owner`, a resource by kind and id.
    fn built(&self, owner: &str, origin: &ResourceOrigin, plugins: &[PluginSpec]) -> Vec<BuiltPlugin> {
        let build = |plugin: &PluginSpec| {
            let link = match plugin.disabled {
                true => None,
                false => Some(self.link(owner, origin, plugin)?),
            };
            Some(BuiltPlugin { name: plugin.name.clone(), link })
        };
        // Sorted by name, so that the order of plugins with equal priority does not depend on the text.
        let mut built: Vec<BuiltPlugin> = plugins.iter().filter_map(build).collect();
        built.sort_by(|a, b| a.name.cmp(&b.name));
        self.compiler.refuse_two_answers(origin, plugins, &built);
        built
    }

    /// `None` if a fault has been reported.
    fn link(&self, owner: &str, origin: &ResourceOrigin, plugin: &PluginSpec) -> Option<Link> {
        let Some(entry) = self.registry.find(&plugin.name) else {
            report_unknown(self.compiler, self.registry, &path_of(origin, plugin), plugin);
            return None;
        };
        if self.compiler.document.enabled_plugins.as_ref().is_some_and(|enabled| !enabled.contains(&plugin.name)) {
            let problem = "is not in the list `plugins` of this file, so it is not enabled".to_owned();
            self.report(origin, plugin, problem, Some(format!("add `- name: {}` there", plugin.name)));
            return None;
        }
        let number = |share: &TrafficShare| Some((share.path.clone(), *self.upstreams.get(&*share.origin.path)?));
        let upstreams = plugin.shares.iter().filter_map(number).collect();
        let proto = match &plugin.proto {
            Some(_) => Some(self.proto(origin, plugin)?),
            None => None,
        };
        let build = Build::of(owner.to_owned(), &self.shared).named(entry.name);
        let mut build = build.with_upstreams(upstreams).with_proto(proto);
        let step = match (entry.build)(&plugin.options, &mut build) {
            Ok(step) => step,
            Err(error) => {
                for error in error.each() {
                    if self.compiler.document.awaits_value(&plugin.options, &error.path) {
                        continue;
                    }
                    let (path, place) = inside(self.compiler, path_of(origin, plugin), plugin.place, &error);
                    let (problem, advice) = split_credential(entry, error);
                    self.compiler.report(&path, place, problem, advice);
                }
                return None;
            }
        };
        for warning in build.warnings {
            let (path, place) = inside(self.compiler, path_of(origin, plugin), plugin.place, &warning);
            self.compiler.warnings.report_text(&path, place, warning.problem, None);
        }
        if let Some(filter) = &plugin.filter {
            self.compiler.warn_of_condition(&join(&path_of(origin, plugin), "_meta.filter"), filter);
        }
        let step = meta::wrapped(step, plugin.filter.clone(), plugin.error_response.clone());
        let priority = Reverse(plugin.priority.unwrap_or(entry.priority));
        let first_in_responses = step.phases().first_in_responses;
        Some(Link {
            step,
            rank: Rank { stage: entry.stage, reach: ChainReach::Own, priority, first_in_responses },
            plugin: self.registry.number(entry.name).expect("it was found there"),
            name: entry.name,
            identifies: entry.identifies,
        })
    }

    /// The definitions that a plugin refers to; `None` if a fault has been reported.
    fn proto(&self, origin: &ResourceOrigin, plugin: &PluginSpec) -> Option<Arc<ProtoDefinitions>> {
        let key = format!("plugins{}.proto_id", TreePath::suffix(&plugin.name));
        let found = self.compiler.referred(origin, &key, &plugin.proto, &self.protos, "protos");
        found?.definitions.clone()
    }

    fn report(&self, origin: &ResourceOrigin, plugin: &PluginSpec, problem: String, advice: Option<String>) {
        self.compiler.report(&path_of(origin, plugin), plugin.place, problem, advice);
    }
}
