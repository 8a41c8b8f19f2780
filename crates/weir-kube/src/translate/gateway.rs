//! The Gateway API.

mod addresses;
mod attach;
mod attaching_route;
mod authorities;
mod backend_refs;
mod certificates;
mod context;
mod duration;
mod filters;
mod frontend_tls;
mod hosts;
mod listener_resources;
mod matches;
mod mirrors;
mod parents;
mod policy_statuses;
mod routes;
mod rule_limits;
mod services;
mod statuses;
mod streams;
mod tls_policies;
mod translated_route;

use std::collections::{BTreeMap, BTreeSet};

use self::attaching_route::RouteSource;
use self::context::Context;
use self::parents::Parents;
use self::streams::StreamClaims;
use self::translated_route::TranslatedRoute;
use super::expressions::Expressions;
use super::policies::PluginPolicies;
use super::shared::SharedResources;
use crate::objects::{Kind, ObjectRef};
use crate::translation::{
    GatewayAddresses, KubeOptions, ObjectEvent, OwnedObject, ResourceList, Translation, TranslationReader,
};
use crate::world::{ObjectName, World, WorldChanges};

/// A change of one of these can concern any route.
const OF_ALL_ROUTES: [Kind; 13] = [
    Kind::Namespace,
    Kind::Secret,
    Kind::ConfigMap,
    Kind::GatewayClass,
    Kind::Gateway,
    Kind::ListenerSet,
    Kind::ReferenceGrant,
    Kind::BackendTLSPolicy,
    Kind::WeirPolicy,
    Kind::GatewayProxy,
    Kind::PluginConfig,
    Kind::HTTPRoutePolicy,
    Kind::L4RoutePolicy,
];

/// What the Gateways of our classes mean, and the routes that attach to them.
#[derive(Default)]
pub(super) struct TranslatedGateways {
    routes: BTreeMap<ObjectRef, TranslatedRoute>,
    /// The listeners and their certificates, each with the object that it comes from.
    listeners: BTreeMap<(ResourceList, String), ObjectRef>,
    /// The listeners and certificates that the node does not serve as they are, with the problems.
    refused: BTreeMap<(ResourceList, String), String>,
    /// How many routes are attached to each listener.
    attached: Vec<usize>,
    /// The names of our Gateways.
    own: BTreeSet<ObjectName>,
    /// The objects beside routes that get a status.
    others: BTreeSet<ObjectRef>,
    /// What the expressions of all routes have taken.
    pub expressions: Expressions,
    /// What the routes for streams have taken.
    claims: StreamClaims,
    /// `TCP` or `UDP`, and the port, of the listeners that are served.
    pub ports: BTreeSet<(&'static str, u16)>,
    pub events: Vec<ObjectEvent>,
    pub owned: Vec<OwnedObject>,
}

/// The routes to translate again.
pub(super) enum StaleRoutes {
    All,
    Some(BTreeSet<ObjectRef>),
}

impl StaleRoutes {
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, StaleRoutes::Some(routes) if routes.is_empty())
    }
}

impl TranslatedGateways {
    /// The routes that changes concern.
    pub(super) fn stale(&self, world: &World, options: &KubeOptions, changes: &WorldChanges) -> StaleRoutes {
        let keeps_addresses = matches!(options.addresses, GatewayAddresses::Pool { .. });
        let concerns_all = changes.objects.iter().any(|object| OF_ALL_ROUTES.contains(&object.kind))
            // A Gateway keeps the address in its status.
            || keeps_addresses && changes.statuses.iter().any(|object| object.kind == Kind::Gateway);
        if concerns_all {
            return StaleRoutes::All;
        }
        let own = changes.objects.iter().filter(|object| object.kind.is_route());
        let mut stale: BTreeSet<ObjectRef> = own.cloned().collect();
        let services = changes.services();
        let concerned = self.routes.iter().filter(|(_, known)| known.is_concerned(&services, &changes.endpoints));
        stale.extend(concerned.map(|(route, _)| route.clone()));
        if stale.iter().any(|route| route.kind.is_stream_route()) {
            // Which of them takes a port or a name is decided among all, and they are few.
            stale.extend(self.routes.keys().filter(|route| route.kind.is_stream_route()).cloned());
        }
        let has_expressions = |route: &ObjectRef| {
            self.routes.get(route).is_some_and(|known| known.has_expressions)
                || RouteSource::find(world, route).is_some_and(|found| found.read().has_expressions())
        };
        // Which expressions of a namespace are served is decided in the order of its routes.
        if stale.iter().any(has_expressions) { StaleRoutes::All } else { StaleRoutes::Some(stale) }
    }

    /// Translates these routes again, and everything that belongs to no single route.
    pub(super) fn translate(
        &mut self,
        (world, options, policies): (&World, &KubeOptions, &PluginPolicies),
        changes: &WorldChanges,
        stale: StaleRoutes,
        shared: &mut SharedResources,
        reader: &mut dyn TranslationReader,
    ) {
        let context = Context::new(world, options, policies);
        let mut rest = Translation::default();
        let classes = statuses::classes(&context, &mut rest);
        let mut parents = Parents::collect(&context, &classes);
        self.own = parents.gateways.iter().map(|state| addresses::name_of(state.gateway)).collect();
        let numbered = parents.listeners.iter().enumerate();
        let opened =
            numbered.filter(|(number, state)| state.is_served() && parents.addresses_of(*number).can_be_listened_on());
        self.ports = opened.map(|(_, state)| (state.transport(), state.listener.port)).collect();
        match stale {
            StaleRoutes::All => {
                self.translate_all(&context, &parents, shared, reader);
                listener_resources::write(&parents, &mut rest);
                self.take_listeners(&mut rest, reader);
            }
            StaleRoutes::Some(stale) => {
                let of_status = changes.statuses.iter().filter(|object| !stale.contains(object));
                for object in of_status {
                    let known = self.routes.get(object).zip(RouteSource::find(world, object));
                    let Some((known, route)) = known else { continue };
                    known.status(&context, route).into_iter().for_each(|status| reader.status(status));
                }
                self.translate_some((&context, &parents), stale, shared, reader);
            }
        }
        for (state, attached) in parents.listeners.iter_mut().zip(&self.attached) {
            state.attached = *attached;
            let problem = listener_resources::keys(state).find_map(|key| self.refused.get(&key)).cloned();
            state.not_served = problem;
        }
        self.note_reached(world, &context, &mut parents);
        services::write(&context, &parents, &mut rest);
        statuses::write(&parents, &mut rest);
        policy_statuses::write(&context.tls_policies, &parents, options, &mut rest);
        let others = rest.statuses.iter().map(|status| status.object.clone()).collect();
        let before = std::mem::replace(&mut self.others, others);
        before.difference(&self.others).for_each(|object| reader.no_status(object));
        rest.statuses.into_iter().for_each(|status| reader.status(status));
        (self.events, self.owned) = (rest.events, rest.owned);
    }

    fn translate_all(
        &mut self,
        context: &Context,
        parents: &Parents,
        shared: &mut SharedResources,
        reader: &mut dyn TranslationReader,
    ) {
        self.attached = vec![0; parents.listeners.len()];
        self.expressions = Expressions::default();
        self.claims = StreamClaims::default();
        let mut before = std::mem::take(&mut self.routes);
        before.values_mut().for_each(TranslatedRoute::detach);
        for route in RouteSource::all(context.world) {
            let known = before.remove(&route.object());
            self.renew((context, parents), known, Some(route), shared, reader);
        }
        before.into_values().for_each(|gone| gone.remove(shared, reader));
    }

    fn translate_some(
        &mut self,
        input: (&Context, &Parents),
        stale: BTreeSet<ObjectRef>,
        shared: &mut SharedResources,
        reader: &mut dyn TranslationReader,
    ) {
        if stale.iter().any(|route| route.kind.is_stream_route()) {
            self.claims = StreamClaims::default(); // all of them are stale
        }
        let world = input.0.world;
        for object in stale.iter().filter(|object| RouteSource::find(world, object).is_none()) {
            let before = self.routes.remove(object);
            self.renew(input, before, None, shared, reader);
        }
        let mut left: Vec<RouteSource> = stale.iter().filter_map(|object| RouteSource::find(world, object)).collect();
        left.sort_by(RouteSource::precedence);
        for route in left {
            let before = self.routes.remove(&route.object());
            self.renew(input, before, Some(route), shared, reader);
        }
    }

    /// Translates a route again, or removes what is left of it.
    fn renew(
        &mut self,
        (context, parents): (&Context, &Parents),
        before: Option<TranslatedRoute>,
        route: Option<RouteSource>,
        shared: &mut SharedResources,
        reader: &mut dyn TranslationReader,
    ) {
        before.iter().flat_map(|known| known.attached()).for_each(|listener| self.attached[*listener] -= 1);
        let Some(route) = route else {
            before.into_iter().for_each(|gone| gone.remove(shared, reader));
            return;
        };
        let known = TranslatedRoute::new(
            (context, parents),
            route,
            (&mut self.expressions, &mut self.claims),
            (shared, reader),
            before,
        );
        known.attached().iter().for_each(|listener| self.attached[*listener] += 1);
        self.routes.insert(route.object(), known);
    }

    fn take_listeners(&mut self, rest: &mut Translation, reader: &mut dyn TranslationReader) {
        let resources = std::mem::take(&mut rest.resources);
        let names = resources.iter().map(|one| ((one.kind, one.id.clone()), one.origin.clone())).collect();
        let mut gone = std::mem::replace(&mut self.listeners, names);
        gone.retain(|name, _| !self.listeners.contains_key(name));
        gone.keys().for_each(|(kind, id)| reader.remove(*kind, id));
        resources.into_iter().for_each(|resource| reader.put(resource));
    }

    /// Takes the resources that the node does not serve as they are, by `LIST/ID`, with the problems. Returns the objects whose listeners
    /// they are, as far as that has changed: their statuses say it.
    pub(super) fn set_refused(&mut self, resources: &BTreeMap<String, String>) -> BTreeSet<ObjectRef> {
        let of_listener = |(resource, problem): (&String, &String)| {
            let key = ResourceList::split(resource)?;
            let is_of_listener = matches!(key.0, ResourceList::Listeners | ResourceList::Ssls);
            is_of_listener.then(|| ((key.0, key.1.to_owned()), problem.clone()))
        };
        let refused = resources.iter().filter_map(of_listener).collect();
        let before = std::mem::replace(&mut self.refused, refused);
        let keys = before.keys().chain(self.refused.keys());
        let changed = keys.filter(|key| before.get(*key) != self.refused.get(*key));
        changed.filter_map(|key| self.listeners.get(key)).cloned().collect()
    }

    /// Policies have an entry in their status for each Gateway whose routes lead to their Services.
    fn note_reached(&self, world: &World, context: &Context, parents: &mut Parents) {
        if context.tls_policies.iter().next().is_none() {
            return;
        }
        for (object, known) in &self.routes {
            let Some(route) = RouteSource::find(world, object) else { continue };
            for service in route.services() {
                known.attached().iter().for_each(|listener| parents.reach(*listener, service.clone()));
            }
        }
    }

    /// Whether an object is one of our Gateways, or a route that attaches to one.
    pub(super) fn is_own(&self, object: &ObjectRef) -> bool {
        self.own.contains(&ObjectName::new(&object.namespace, &object.name)) && object.kind == Kind::Gateway
            || self.routes.get(object).is_some_and(TranslatedRoute::is_own)
    }

    /// The object that a resource comes from.
    pub(super) fn origin(&self, kind: ResourceList, id: &str) -> Option<ObjectRef> {
        let listener = self.listeners.get(&(kind, id.to_owned()));
        let route = || self.routes.iter().find(|(_, known)| known.has(kind, id)).map(|(route, _)| route.clone());
        listener.cloned().or_else(route)
    }
}
