//! Findings about configurations that are valid but probably not intended. `weir check` compares all resources with each other, which
//! would make a reload too slow. A change of a store's resources looks only at those that it puts there, and what they refer to.

mod bodies;
mod client_certificates;
mod consumers;
mod counters;
mod identity;
mod nodes;
mod plugin_list;
mod redirects;
mod routes;
mod seconds;
mod stream_routes;
mod streams;
mod tracing;
mod transcoding;
mod unanswered;
mod uris;
mod variables;

use std::collections::{HashMap, HashSet};

use weir_plugin::Registry;

use crate::document::{
    Document, PluginSet, PluginSpec, PluginSpecs, ResourceOrigin, RouteSpec, ServiceSpec, StreamRouteSpec, UpstreamSpec,
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
    let resources = ReferredResources::of(document);
    let found = Doubts {
        services: document.services.iter().collect(),
        upstreams: document.upstreams.iter().collect(),
        stream_routes: document.stream_routes.iter().collect(),
        ..Doubts::new(document, *registry, routes, plugins.collect(), resources)
    };
    found.look(usize::MAX);
    consumers::without_credentials(&found, registry);
    consumers::admitted_nowhere(&found, registry);
    plugin_list::without_a_plugin(&found, registry);
    client_certificates::not_needed_without_tls(&found);
    redirects::to_nowhere(&found);
    seconds::of_document(&found);
    document.read_warnings.iter().cloned().chain(found.list.into_diagnostics()).collect()
}

/// A resource that a change puts into a store.
#[derive(Clone, Copy)]
pub(crate) struct PutResource<'k> {
    pub list: &'k str,
    pub id: &'k str,
    pub json: &'k str,
}

/// The findings about these resources of a store that are told without the others. The cost depends on their number, and on that of
/// the resources that every change reads again.
pub(crate) fn about_resources(document: &Document, registry: &Registry, put: &[PutResource]) -> Vec<Diagnostic> {
    let of_list = |wanted: &'static str| put.iter().filter(move |one| one.list == wanted).map(|one| one.id);
    let routes = of_list("routes").filter_map(|id| document.routes.find(id)).collect();
    let known = |list: &'static str| of_list(list).collect::<HashSet<&str>>();
    let (rules, groups, consumers) = (known("global_rules"), known("consumer_groups"), known("consumers"));
    let stream_routes = known("stream_routes");
    let services: Vec<&ServiceSpec> = of_list("services").filter_map(|id| document.services.find(id)).collect();
    let sets = of_list("plugin_configs").filter_map(|id| document.plugin_configs.find(id));
    let sets = sets
        .chain(document.global_rules.iter().filter(|set| rules.contains(&*set.id)))
        .chain(document.consumer_groups.iter().filter(|set| groups.contains(&*set.id)));
    let of_consumers = document.consumers.iter().filter(|consumer| consumers.contains(&*consumer.username));
    let plugins = services
        .iter()
        .map(|service| (&service.origin, &service.plugins))
        .chain(of_consumers.map(|consumer| (&consumer.origin, &consumer.plugins)))
        .chain(sets.map(|set| (&set.origin, &set.plugins)));
    let plugins = plugins.collect();
    let found = Doubts {
        services,
        upstreams: of_list("upstreams").filter_map(|id| document.upstreams.find(id)).collect(),
        stream_routes: document.stream_routes.iter().filter(|route| stream_routes.contains(&*route.id)).collect(),
        ..Doubts::new(document, *registry, routes, plugins, ReferredResources::InStore(document))
    };
    found.look(MOST_COMPARED);
    seconds::of_resources(&found, put);
    found.list.into_diagnostics()
}

/// The findings so far, with what is looked at.
struct Doubts<'a> {
    document: &'a Document,
    registry: Registry,
    /// The routes, and the plugins of all resources, that are looked at.
    routes: Vec<&'a RouteSpec>,
    plugins: Vec<(&'a ResourceOrigin, &'a PluginSpecs)>,
    services: Vec<&'a ServiceSpec>,
    upstreams: Vec<&'a UpstreamSpec>,
    stream_routes: Vec<&'a StreamRouteSpec>,
    resources: ReferredResources<'a>,
    list: Faults,
}

impl<'a> Doubts<'a> {
    /// `plugins` are those of other resources than routes.
    fn new(
        document: &'a Document,
        registry: Registry,
        routes: Vec<&'a RouteSpec>,
        plugins: Vec<(&'a ResourceOrigin, &'a PluginSpecs)>,
        resources: ReferredResources<'a>,
    ) -> Doubts<'a> {
        let routes: Vec<&RouteSpec> = routes.into_iter().filter(|route| route.enabled).collect();
        let of_routes = routes.iter().map(|route| (&route.origin, &route.plugins));
        let plugins = of_routes.chain(plugins).collect();
        let list = Faults::new(document.source.clone());
        let (services, upstreams, stream_routes) = (Vec::new(), Vec::new(), Vec::new());
        Doubts { document, registry, routes, plugins, services, upstreams, stream_routes, resources, list }
    }

    fn look(&self, most_compared: usize) {
        routes::indistinguishable(self, most_compared);
        uris::taken_literally(self);
        streams::held_as_a_whole(self);
        variables::taken_literally(self);
        bodies::limited_by_the_node(self);
        counters::with_an_unused_server(self);
        transcoding::without_http2(self);
        nodes::without_a_usable_node(self);
        unanswered::without_a_target(self);
        identity::without_authentication(self);
        identity::with_unknown_names(self);
        tracing::to_nowhere(self);
        stream_routes::without_a_listener(self);
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

    /// The path of a resource of a store; `None` if it is not looked at.
    fn path_of(&self, list: &str, id: &str) -> Option<String> {
        let document = self.document;
        let origins = |sets: &'a [PluginSet]| sets.iter().find(|set| *set.id == *id).map(|set| &set.origin);
        let origin = match list {
            "routes" | "services" | "upstreams" | "plugin_configs" => return Some(format!("{list}[{id}]")),
            "stream_routes" => document.stream_routes.iter().find(|route| *route.id == *id).map(|route| &route.origin),
            "global_rules" => origins(&document.global_rules),
            "consumer_groups" => origins(&document.consumer_groups),
            "consumers" => document.consumers.iter().find(|one| *one.username == *id).map(|one| &one.origin),
            _ => None,
        };
        origin.map(|origin| origin.path.to_string())
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
        self.service(&route.service_id.as_ref()?.id)
    }

    fn service(&self, id: &str) -> Option<&'a ServiceSpec> {
        match self {
            ReferredResources::Listed { services, .. } => services.get(id).copied(),
            ReferredResources::InStore(document) => document.services.find(id),
        }
    }

    fn upstream(&self, id: &str) -> Option<&'a UpstreamSpec> {
        match self {
            ReferredResources::Listed { upstreams, .. } => upstreams.get(id).copied(),
            ReferredResources::InStore(document) => document.upstreams.find(id),
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
        if let Some(upstream) = route.upstream.as_deref() {
            return Some(upstream);
        }
        if let Some(reference) = &route.upstream_id {
            return self.upstream(&reference.id);
        }
        let service = self.service_of(route)?;
        service.upstream.as_ref().or_else(|| self.upstream(&service.upstream_id.as_ref()?.id))
    }
}
