//! Findings about configurations that are valid but probably not intended. Only `weir check` looks for them: it compares all
//! resources with each other, which would make a reload too slow.

mod bodies;
mod consumers;
mod routes;
mod streams;
mod uris;
mod variables;

use std::collections::HashMap;

use weir_plugin::Registry;

use crate::document::{Document, PluginSet, PluginSpec, ResourceOrigin, RouteSpec, ServiceSpec};
use crate::text::diagnostic::{Diagnostic, Faults};
use crate::text::read::join;
use crate::text::tree::TextPosition;

/// The findings about a document that compiles, in the order of its text.
pub(super) fn doubts(document: &Document, registry: &Registry) -> Vec<Diagnostic> {
    let found = Doubts { document, resources: ResourcesById::of(document), list: Faults::new(document.source.clone()) };
    routes::indistinguishable(&found);
    uris::taken_literally(&found);
    streams::held_as_a_whole(&found);
    variables::taken_literally(&found);
    bodies::limited_by_the_node(&found);
    consumers::without_credentials(&found, registry);
    consumers::admitted_nowhere(&found, registry);
    found.list.into_diagnostics()
}

/// The findings so far, with the document.
struct Doubts<'a> {
    document: &'a Document,
    resources: ResourcesById<'a>,
    list: Faults,
}

impl<'a> Doubts<'a> {
    fn enabled_routes(&self) -> impl Iterator<Item = &'a RouteSpec> {
        self.document.routes.iter().filter(|route| route.enabled)
    }

    /// The plugins that are not disabled, wherever they are written, each with its resource.
    fn enabled_plugins(&self) -> impl Iterator<Item = (&'a ResourceOrigin, &'a PluginSpec)> {
        let document = self.document;
        let of_routes = self.enabled_routes().map(|route| (&route.origin, &route.plugins));
        let of_services = document.services.iter().map(|service| (&service.origin, &service.plugins));
        let of_consumers = document.consumers.iter().map(|consumer| (&consumer.origin, &consumer.plugins));
        let of_credentials = document.credentials.iter().map(|credential| (&credential.origin, &credential.plugins));
        let sets = document.plugin_configs.iter().chain(&document.global_rules).chain(&document.consumer_groups);
        let of_sets = sets.map(|set| (&set.origin, &set.plugins));
        let all = of_routes.chain(of_services).chain(of_consumers).chain(of_credentials).chain(of_sets);
        all.flat_map(|(origin, plugins)| plugins.iter().map(move |plugin| (origin, plugin)))
            .filter(|(_, plugin)| !plugin.disabled)
    }

    fn report(&self, path: &str, place: TextPosition, problem: String, advice: String) {
        self.list.report_text(path, place, problem, Some(advice));
    }

    /// Reports a finding about one of a route's `uris`, or its `uri`.
    fn report_uri(&self, route: &RouteSpec, index: usize, problem: String, advice: String) {
        let place_of = |key: &str| {
            let path = join(&route.origin.path, key);
            let place = self.document.place_at(&path);
            (path, place)
        };
        let (path, place) = match place_of("uri") {
            (_, place) if route.uris.len() > 1 || place == route.origin.place => place_of(&format!("uris[{index}]")),
            single => single,
        };
        self.report(&path, place, problem, advice);
    }
}

/// The resources that routes refer to, by id.
struct ResourcesById<'a> {
    services: HashMap<&'a str, &'a ServiceSpec>,
    plugin_configs: HashMap<&'a str, &'a PluginSet>,
}

impl<'a> ResourcesById<'a> {
    fn of(document: &'a Document) -> ResourcesById<'a> {
        ResourcesById {
            services: document.services.iter().map(|service| (&*service.id, service)).collect(),
            plugin_configs: document.plugin_configs.iter().map(|set| (&*set.id, set)).collect(),
        }
    }

    fn service_of(&self, route: &RouteSpec) -> Option<&'a ServiceSpec> {
        self.services.get(&*route.service_id.as_ref()?.id).copied()
    }

    fn plugin_config_of(&self, route: &RouteSpec) -> Option<&'a PluginSet> {
        self.plugin_configs.get(&*route.plugin_config_id.as_ref()?.id).copied()
    }
}
