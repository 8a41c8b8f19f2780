//! Plugins: built once where they are written, merged per route, and put in order.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use weir_gateway::snapshot::Chain;
use weir_plugin::{Build, ConfigError, Registry, Shared, Stage, Step};

use super::{Compiler, meta};
use crate::document::{self, Origin, Plugin, PluginSet, Service};
use crate::read::{join, listed};
use crate::suggest::closest;
use crate::tree::Path;

/// What a resource says about one plugin: how it runs, or that it does not.
struct Built {
    name: Box<str>,
    /// Nothing where `_meta.disable` is set; that, too, overrides what a service says.
    run: Option<Run>,
}

#[derive(Clone)]
struct Run {
    step: Step,
    stage: Stage,
    priority: i32,
}

/// Makes the chain of each route.
pub(super) struct Chains<'a> {
    compiler: &'a Compiler<'a>,
    registry: &'a Registry,
    services: HashMap<&'a str, Vec<Built>>,
    /// Indices into `sets`.
    plugin_configs: HashMap<&'a str, usize>,
    sets: Vec<Vec<Built>>,
    /// In running order.
    global: Vec<Run>,
    shared: Rc<Shared>,
}

impl<'a> Chains<'a> {
    pub(super) fn new(compiler: &'a Compiler<'a>, registry: &'a Registry) -> Self {
        let document = compiler.document;
        let mut chains = Chains {
            compiler,
            registry,
            services: HashMap::new(),
            plugin_configs: HashMap::new(),
            sets: Vec::new(),
            global: Vec::new(),
            shared: Rc::default(),
        };
        for Service { id, origin, plugins, .. } in &document.services {
            chains.services.insert(id, chains.built(&format!("service/{id}"), origin, plugins));
        }
        for PluginSet { id, origin, plugins } in &document.plugin_configs {
            chains.plugin_configs.insert(id, chains.sets.len());
            chains.sets.push(chains.built(&format!("plugin_config/{id}"), origin, plugins));
        }
        let mut global = Vec::new();
        let mut seen = HashSet::new();
        for PluginSet { id, origin, plugins } in &document.global_rules {
            for plugin in plugins.iter().filter(|plugin| !plugin.disabled && !seen.insert(&*plugin.name)) {
                // APISIX drops such a plugin altogether.
                let problem = format!("`{}` stands in two global rules", plugin.name);
                chains.report(origin, plugin, problem, Some("keep it in one".to_owned()));
            }
            let owner = format!("global_rule/{id}");
            global.extend(chains.built(&owner, origin, plugins).into_iter().filter_map(|built| built.run));
        }
        global.sort_by_key(|run| Reverse(run.priority));
        chains.global = global;
        chains
    }

    /// What runs where no route matches.
    pub(super) fn unmatched(&self) -> Chain {
        chain(&self.global, &[])
    }

    /// Each plugin is taken whole from the route, or else from its plugin_config, or else from its service.
    pub(super) fn of_route(&self, route: &document::Route, service: Option<&Service>) -> Chain {
        let own = self.built(&format!("route/{}", route.id), &route.origin, &route.plugins);
        let reference = &route.plugin_config_id;
        let config = self
            .compiler
            .referred(&route.origin, "plugin_config_id", reference, &self.plugin_configs, "plugin_configs")
            .map(|index| &self.sets[index]);
        let of_service = service.and_then(|service| self.services.get(&*service.id));
        let mut taken: HashSet<&str> = HashSet::new();
        let mut runs: Vec<Run> = Vec::new();
        for built in [Some(&own), config, of_service].into_iter().flatten().flatten() {
            if taken.insert(&built.name) {
                runs.extend(built.run.clone());
            }
        }
        runs.sort_by_key(|run| Reverse(run.priority));
        chain(&self.global, &runs)
    }

    /// The plugins of `owner`, a resource by kind and id.
    fn built(&self, owner: &str, origin: &Origin, plugins: &[Plugin]) -> Vec<Built> {
        let build = |plugin: &Plugin| {
            let run = match plugin.disabled {
                true => None,
                false => Some(self.run(owner, origin, plugin)?),
            };
            Some(Built { name: plugin.name.clone(), run })
        };
        // By name, so that plugins of one priority have an order that does not hang on the text's.
        let mut built: Vec<Built> = plugins.iter().filter_map(build).collect();
        built.sort_by(|a, b| a.name.cmp(&b.name));
        built
    }

    /// Nothing where a fault has been reported.
    fn run(&self, owner: &str, origin: &Origin, plugin: &Plugin) -> Option<Run> {
        let Some(entry) = self.registry.find(&plugin.name) else {
            self.report_unknown(origin, plugin);
            return None;
        };
        if self.compiler.document.enabled_plugins.as_ref().is_some_and(|enabled| !enabled.contains(&plugin.name)) {
            let problem = "is not in the list `plugins` of this file".to_owned();
            self.report(origin, plugin, problem, Some(format!("add `- name: {}` there", plugin.name)));
            return None;
        }
        if entry.credential.is_some() {
            // Without consumers it would refuse everybody, which is safe and of no use to anybody.
            let problem = "needs `consumers`, which are not supported yet by this version".to_owned();
            self.report(origin, plugin, problem, None);
            return None;
        }
        let mut build = Build::of(owner.to_owned(), &self.shared);
        let step = match (entry.build)(&plugin.options, &mut build) {
            Ok(step) => step,
            Err(error) => {
                let (path, place) = self.inside(origin, plugin, &error);
                self.compiler.report(&path, place, error.problem, None);
                return None;
            }
        };
        for warning in build.warnings {
            let (path, place) = self.inside(origin, plugin, &warning);
            self.compiler.warnings.report_text(&path, place, warning.problem, None);
        }
        let step = meta::wrapped(step, plugin.filter.clone(), plugin.error_response.clone());
        Some(Run { step, stage: entry.stage, priority: plugin.priority.unwrap_or(entry.priority) })
    }

    fn report_unknown(&self, origin: &Origin, plugin: &Plugin) {
        let names: Vec<&str> = self.registry.entries().iter().map(|entry| entry.name).collect();
        let advice = match closest(&plugin.name, names.iter().copied()) {
            Some(known) => format!("did you mean `{known}`?"),
            None if names.len() <= 8 => format!("there are {}", listed(&names)),
            None => "leave it out".to_owned(),
        };
        self.report(origin, plugin, format!("this version has no plugin `{}`", plugin.name), Some(advice));
    }

    fn report(&self, origin: &Origin, plugin: &Plugin, problem: String, advice: Option<String>) {
        self.compiler.report(&path_of(origin, plugin), plugin.place, problem, advice);
    }

    fn inside(&self, origin: &Origin, plugin: &Plugin, error: &ConfigError) -> (String, crate::tree::Place) {
        let path = join(&path_of(origin, plugin), &error.path);
        let place = match error.path.is_empty() {
            true => plugin.place,
            false => self.compiler.document.tree.place_of(&path),
        };
        (path, place)
    }
}

fn path_of(origin: &Origin, plugin: &Plugin) -> String {
    join(&origin.path, &format!("plugins{}", Path::suffix(&plugin.name)))
}

/// Both lists are ordered by priority. Requests pass global rules and then the route's plugins in stage `Rewrite`, and
/// again both in stage `Access`; responses and the log know no stages.
fn chain(global: &[Run], own: &[Run]) -> Chain {
    let mut chain = Chain::default();
    for stage in [Stage::Rewrite, Stage::Access] {
        let of_stage = global.iter().chain(own).filter(|run| run.stage == stage && run.step.phases().request);
        chain.request.extend(of_stage.map(|run| run.step.clone()));
    }
    for run in global.iter().chain(own) {
        let phases = run.step.phases();
        if phases.response {
            chain.response.push(run.step.clone());
        }
        if phases.log {
            chain.log.push(run.step.clone());
        }
    }
    chain
}
