//! Findings about configurations that are valid but probably not intended. `weir check` compares all resources with each other, which
//! would make a reload too slow. A change of a store's resources looks only at those that it puts there, and what they refer to.

mod bodies;
mod consumers;
mod plugin_list;
mod routes;
mod stream_routes;
mod streams;
mod transcoding;
mod uris;
mod variables;

use std::collections::{HashMap, HashSet};

use weir_plugin::Registry;

use crate::document::{
    Document, PluginSet, PluginSpec, PluginSpecs, ResourceOrigin, RouteSpec, ServiceSpec, UpstreamSpec,
};
use crate::text::diagnostic::{Diagnostic, Faults};
use crate::text::read::join;
use crate::text::tree::TextPosition;

/// The most pairs of host and uri that the routes of one change are compared by. Other changes wait meanwhile.
const MOST_COMPARED: usize = 1 << 16;

/// The findings about a document that compiles, in the order of its text.
pub(crate) fn about_document(document: &Document, registry: &Registry) -> Vec<Diagnostic> {
    let routes = document.routes.iter().collect();
    let sets = document.plugin_configs.iter().chain(&document.global_rules).chain(&document.consumer_groups);
    let plugins = document
        .services
        .iter()
        .map(|service| (&service.origin, &service.plugins))
        .chain(document.consumers.iter().map(|consumer| (&consumer.origin, &consumer.plugins)))
        .chain(document.credentials.iter().map(|credential| (&credential.origin, &credential.plugins)))
        .chain(sets.map(|set| (&set.origin, &set.plugins)));
    let found = Doubts::new(document, routes, plugins.collect(), ReferredResources::of(document));
    found.look(usize::MAX);
    consumers::without_credentials(&found, registry);
    consumers::admitted_nowhere(&found, registry);
    plugin_list::without_a_plugin(&found, registry);
    stream_routes::without_a_listener(&found);
    document.read_warnings.iter().cloned().chain(found.list.into_diagnostics()).collect()
}

/// The findings about these resources of a store, given by list and id, that are told without the others. The cost depends on their
/// number, and on that of the resources that every change reads again.
pub(crate) fn about_resources<'k>(
    document: &Document,
    keys: impl Iterator<Item = (&'k str, &'k str)> + Clone,
) -> Vec<Diagnostic> {
    let of_list = |wanted: &'static str| keys.clone().filter(move |(list, _)| *list == wanted).map(|(_, id)| id);
    let routes = of_list("routes").filter_map(|id| document.routes.find(id)).collect();
    let known = |list: &'static str| of_list(list).collect::<HashSet<&str>>();
    let (rules, groups, consumers) = (known("global_rules"), known("consumer_groups"), known("consumers"));
    let services = of_list("services").filter_map(|id| document.services.find(id));
    let sets = of_list("plugin_configs").filter_map(|id| document.plugin_configs.find(id));
    let sets = sets
        .chain(document.global_rules.iter().filter(|set| rules.contains(&*set.id)))
        .chain(document.consumer_groups.iter().filter(|set| groups.contains(&*set.id)));
    let of_consumers = document.consumers.iter().filter(|consumer| consumers.contains(&*consumer.username));
    let plugins = services
        .map(|service| (&service.origin, &service.plugins))
        .chain(of_consumers.map(|consumer| (&consumer.origin, &consumer.plugins)))
        .chain(sets.map(|set| (&set.origin, &set.plugins)));
    let found = Doubts::new(document, routes, plugins.collect(), ReferredResources::InStore(document));
    found.look(MOST_COMPARED);
    found.list.into_diagnostics()
}

/// The findings so far, with what is looked at.
struct Doubts<'a> {
    document: &'a Document,
    /// The routes, and the plugins of all resources, that are looked at.
    routes: Vec<&'a RouteSpec>,
    plugins: Vec<(&'a ResourceOrigin, &'a PluginSpecs)>,
    resources: ReferredResources<'a>,
    list: Faults,
}

impl<'a> Doubts<'a> {
    /// `plugins` are those of other resources than routes.
    fn new(
        document: &'a Document,
        routes: Vec<&'a RouteSpec>,
        plugins: Vec<(&'a ResourceOrigin, &'a PluginSpecs)>,
        resources: ReferredResources<'a>,
    ) -> Doubts<'a> {
        let routes: Vec<&RouteSpec> = routes.into_iter().filter(|route| route.enabled).collect();
        let of_routes = routes.iter().map(|route| (&route.origin, &route.plugins));
        let plugins = of_routes.chain(plugins).collect();
        Doubts { document, routes, plugins, resources, list: Faults::new(document.source.clone()) }
    }

    fn look(&self, most_compared: usize) {
        routes::indistinguishable(self, most_compared);
        uris::taken_literally(self);
        streams::held_as_a_whole(self);
        variables::taken_literally(self);
        bodies::limited_by_the_node(self);
        transcoding::without_http2(self);
    }

    fn enabled_routes(&self) -> impl Iterator<Item = &'a RouteSpec> {
        self.routes.iter().copied()
    }

    /// The plugins that are not disabled, wherever they are written, each with its resource.
    fn enabled_plugins(&self) -> impl Iterator<Item = (&'a ResourceOrigin, &'a PluginSpec)> {
        let all = self.plugins.iter().flat_map(|(origin, plugins)| plugins.iter().map(move |plugin| (*origin, plugin)));
        all.filter(|(_, plugin)| !plugin.disabled)
    }

    /// How another resource is named in a finding.
    fn named(&self, origin: &ResourceOrigin) -> String {
        match origin.path.strip_suffix(']').and_then(|path| path.split_once('[')) {
            Some((list, id)) if self.is_of_store() => format!("{list}/{id}"),
            _ => self.document.named(origin),
        }
    }

    fn is_of_store(&self) -> bool {
        self.document.store_revision().is_some()
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
            (_, place) if route.uris.len() > 1 || place == route.origin.place && !self.is_of_store() => {
                place_of(&format!("uris[{index}]"))
            }
            single => single,
        };
        self.report(&path, place, problem, advice);
    }
}

/// The resources that routes refer to, by id.
enum ReferredResources<'a> {
    Listed {
        services: HashMap<&'a str, &'a ServiceSpec>,
        plugin_configs: HashMap<&'a str, &'a PluginSet>,
        upstreams: HashMap<&'a str, &'a UpstreamSpec>,
    },
    /// The lists of a store are sorted by id.
    InStore(&'a Document),
}

impl<'a> ReferredResources<'a> {
    fn of(document: &'a Document) -> ReferredResources<'a> {
        ReferredResources::Listed {
            services: document.services.iter().map(|service| (&*service.id, service)).collect(),
            plugin_configs: document.plugin_configs.iter().map(|set| (&*set.id, set)).collect(),
            upstreams: document.upstreams.iter().map(|upstream| (&*upstream.id, upstream)).collect(),
        }
    }

    fn service_of(&self, route: &RouteSpec) -> Option<&'a ServiceSpec> {
        let id = &*route.service_id.as_ref()?.id;
        match self {
            ReferredResources::Listed { services, .. } => services.get(id).copied(),
            ReferredResources::InStore(document) => document.services.find(id),
        }
    }

    fn plugin_config_of(&self, route: &RouteSpec) -> Option<&'a PluginSet> {
        let id = &*route.plugin_config_id.as_ref()?.id;
        match self {
            ReferredResources::Listed { plugin_configs, .. } => plugin_configs.get(id).copied(),
            ReferredResources::InStore(document) => document.plugin_configs.find(id),
        }
    }

    /// The upstream of a route, if it has one by itself or by its service.
    fn upstream_of(&self, route: &'a RouteSpec) -> Option<&'a UpstreamSpec> {
        let named = |id: &str| match self {
            ReferredResources::Listed { upstreams, .. } => upstreams.get(id).copied(),
            ReferredResources::InStore(document) => document.upstreams.find(id),
        };
        if let Some(upstream) = route.upstream.as_deref() {
            return Some(upstream);
        }
        if let Some(reference) = &route.upstream_id {
            return named(&reference.id);
        }
        let service = self.service_of(route)?;
        service.upstream.as_ref().or_else(|| named(&service.upstream_id.as_ref()?.id))
    }
}
