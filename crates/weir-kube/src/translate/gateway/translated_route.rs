//! What is known of a route since it was translated last.

use std::collections::BTreeSet;

use super::super::backends::{ServiceBackends, UpstreamKey};
use super::super::expressions::Expressions;
use super::super::shared::{SharedKey, SharedResources};
use super::attaching_route::RouteSource;
use super::context::Context;
use super::parents::Parents;
use super::routes::{self, RouteOutcome};
use super::streams::StreamClaims;
use crate::translation::{ObjectStatus, ResourceList, TranslationReader};
use crate::world::ObjectName;

pub(super) struct TranslatedRoute {
    outcome: RouteOutcome,
    /// The ids of its resources, and their list.
    resources: Box<[(ResourceList, String)]>,
    upstreams: Box<[UpstreamKey]>,
    /// The plugins of policies.
    plugins: Box<[SharedKey]>,
    /// The Services that it refers to.
    services: Box<[ObjectName]>,
    /// Those whose addresses are in its resources.
    addressed: Box<[ObjectName]>,
    pub has_expressions: bool,
}

impl TranslatedRoute {
    /// Translates a route, in place of what was known before.
    pub(super) fn new(
        (context, parents): (&Context, &Parents),
        route: RouteSource,
        (expressions, claims): (&mut Expressions, &mut StreamClaims),
        (shared, reader): (&mut SharedResources, &mut dyn TranslationReader),
        before: Option<TranslatedRoute>,
    ) -> TranslatedRoute {
        let mut read = route.read();
        read.check_expressions(expressions);
        let (mut backends, mut resources) = (ServiceBackends::new(context.world), Vec::new());
        let outcome = routes::translate(context, parents, &read, claims, &mut backends, &mut resources);
        match routes::status(context, &read, &outcome) {
            Some(status) => reader.status(status),
            None => reader.no_status(&route.object()),
        }
        let (plugins, resources) = shared.plugins.take(resources);
        let (wanted, lookups) = backends.finish();
        let names = |services: BTreeSet<ObjectName>| services.into_iter().collect();
        let known = TranslatedRoute {
            outcome,
            resources: resources.iter().map(|resource| (resource.kind, resource.id.clone())).collect(),
            upstreams: wanted.map(|wanted| shared.upstreams.add(wanted)).collect(),
            plugins: plugins.into(),
            services: names(lookups.services),
            addressed: names(lookups.addresses),
            has_expressions: read.has_expressions(),
        };
        if let Some(before) = before {
            let gone = before.resources.iter().filter(|(kind, id)| !known.has(*kind, id));
            gone.for_each(|(kind, id)| reader.remove(*kind, id));
            before.release(shared);
        }
        resources.into_iter().for_each(|resource| reader.put(resource));
        known
    }

    /// Removes all that there is of it.
    pub(super) fn remove(self, shared: &mut SharedResources, reader: &mut dyn TranslationReader) {
        self.resources.iter().for_each(|(kind, id)| reader.remove(*kind, id));
        self.release(shared);
    }

    /// It does not need what others may need as well.
    fn release(&self, shared: &mut SharedResources) {
        self.upstreams.iter().for_each(|key| shared.upstreams.release(key));
        self.plugins.iter().for_each(|key| shared.plugins.release(key));
    }

    /// Whether one of its parents is ours.
    pub(super) fn is_own(&self) -> bool {
        self.outcome.has_parents()
    }

    /// Whether it refers to one of these Services, or has addresses of one whose endpoints have changed.
    pub(super) fn is_concerned(&self, services: &BTreeSet<ObjectName>, endpoints: &BTreeSet<ObjectName>) -> bool {
        self.services.iter().any(|service| services.contains(service))
            || self.addressed.iter().any(|service| endpoints.contains(service))
    }

    /// Its status after a change of nothing but its status.
    pub(super) fn status(&self, context: &Context, route: RouteSource) -> Option<ObjectStatus> {
        routes::status(context, &route.read(), &self.outcome)
    }

    /// The listeners that it attaches to, as numbers.
    pub(super) fn attached(&self) -> &[usize] {
        &self.outcome.attached
    }

    /// Called when all listeners get other numbers.
    pub(super) fn detach(&mut self) {
        self.outcome.attached = Box::default();
    }

    /// Whether a resource comes from it.
    pub(super) fn has(&self, kind: ResourceList, id: &str) -> bool {
        self.resources.iter().any(|(list, name)| *list == kind && name == id)
    }
}
