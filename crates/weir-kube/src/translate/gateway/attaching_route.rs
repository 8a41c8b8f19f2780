//! What HTTPRoutes and GRPCRoutes have in common, as one type.

use super::super::expressions::Expressions;
use super::backend_refs;
use super::matches::{self, RouteMatch};
use super::precedence::precedence;
use crate::objects::meta::{ObjectMeta, ObjectReference};
use crate::objects::routes::{BackendRef, GrpcRoute, HttpRetry, HttpRoute, HttpTimeouts, RouteFilter, RouteStatus};
use crate::objects::{Kind, ObjectRef};
use crate::world::{ObjectName, World};

/// A route that attaches to listeners.
#[derive(Clone, Copy)]
pub(super) enum RouteSource<'a> {
    Http(&'a HttpRoute),
    Grpc(&'a GrpcRoute),
}

impl<'a> RouteSource<'a> {
    /// All routes of a world, in the order in which conflicts are decided.
    pub(super) fn all(world: &'a World) -> Vec<RouteSource<'a>> {
        let http = world.http_routes.values().map(|route| RouteSource::Http(route));
        let mut all: Vec<_> = http.chain(world.grpc_routes.values().map(|route| RouteSource::Grpc(route))).collect();
        all.sort_by(|one, other| precedence(one.metadata(), other.metadata()));
        all
    }

    pub(super) fn find(world: &'a World, route: &ObjectRef) -> Option<RouteSource<'a>> {
        let name = ObjectName::new(&route.namespace, &route.name);
        match route.kind {
            Kind::HTTPRoute => world.http_routes.get(&name).map(|route| RouteSource::Http(route)),
            Kind::GRPCRoute => world.grpc_routes.get(&name).map(|route| RouteSource::Grpc(route)),
            _ => None,
        }
    }

    fn metadata(self) -> &'a ObjectMeta {
        match self {
            RouteSource::Http(route) => &route.metadata,
            RouteSource::Grpc(route) => &route.metadata,
        }
    }

    pub(super) fn object(self) -> ObjectRef {
        match self {
            RouteSource::Http(route) => ObjectRef::of(route),
            RouteSource::Grpc(route) => ObjectRef::of(route),
        }
    }

    pub(super) fn read(self) -> AttachingRoute<'a> {
        match self {
            RouteSource::Http(route) => of_http(route),
            RouteSource::Grpc(route) => of_grpc(route),
        }
    }

    /// The Services of its rules.
    pub(super) fn services(self) -> impl Iterator<Item = ObjectName> {
        let refs: Vec<&BackendRef> = match self {
            RouteSource::Http(route) => route.spec.rules.iter().flat_map(|rule| &rule.backend_refs).collect(),
            RouteSource::Grpc(route) => route.spec.rules.iter().flat_map(|rule| &rule.backend_refs).collect(),
        };
        let namespace = &self.metadata().namespace;
        refs.into_iter().map(|backend| backend_refs::service_name(&backend.reference, namespace))
    }
}

/// What an HTTPRoute and a GRPCRoute have in common.
pub(super) struct AttachingRoute<'a> {
    pub kind: Kind,
    pub metadata: &'a ObjectMeta,
    pub parent_refs: &'a [ObjectReference],
    pub hostnames: &'a [String],
    pub before: &'a RouteStatus,
    pub rules: Vec<RuleParts<'a>>,
}

pub(super) struct RuleParts<'a> {
    pub name: Option<&'a str>,
    pub matches: Vec<RouteMatch>,
    pub filters: &'a [RouteFilter],
    pub backends: &'a [BackendRef],
    pub timeouts: Option<&'a HttpTimeouts>,
    pub retry: Option<&'a HttpRetry>,
    pub has_session: bool,
}

impl AttachingRoute<'_> {
    /// Whether it has regular expressions: whether they are served depends on those of other routes.
    pub(super) fn has_expressions(&self) -> bool {
        self.rules.iter().flat_map(|rule| &rule.matches).any(RouteMatch::has_expressions)
    }

    /// Finds the matches whose expressions cannot be served.
    pub(super) fn check_expressions(&mut self, expressions: &mut Expressions) {
        for found in self.rules.iter_mut().flat_map(|rule| &mut rule.matches) {
            found.check_expressions(expressions, &self.metadata.namespace);
        }
    }
}

fn of_http(route: &HttpRoute) -> AttachingRoute<'_> {
    let rules = route.spec.rules.iter().map(|rule| RuleParts {
        name: rule.name.as_deref(),
        matches: match &*rule.matches {
            [] => vec![matches::of_http(&Default::default())],
            all => all.iter().map(matches::of_http).collect(),
        },
        filters: &rule.filters,
        backends: &rule.backend_refs,
        timeouts: rule.timeouts.as_ref(),
        retry: rule.retry.as_ref(),
        has_session: rule.session_persistence.is_some(),
    });
    AttachingRoute {
        kind: Kind::HTTPRoute,
        metadata: &route.metadata,
        parent_refs: &route.spec.parent_refs,
        hostnames: &route.spec.hostnames,
        before: &route.status,
        rules: rules.collect(),
    }
}

fn of_grpc(route: &GrpcRoute) -> AttachingRoute<'_> {
    let rules = route.spec.rules.iter().map(|rule| RuleParts {
        name: rule.name.as_deref(),
        matches: match &*rule.matches {
            [] => vec![matches::of_grpc(&Default::default())],
            all => all.iter().map(matches::of_grpc).collect(),
        },
        filters: &rule.filters,
        backends: &rule.backend_refs,
        timeouts: None,
        retry: None,
        has_session: rule.session_persistence.is_some(),
    });
    AttachingRoute {
        kind: Kind::GRPCRoute,
        metadata: &route.metadata,
        parent_refs: &route.spec.parent_refs,
        hostnames: &route.spec.hostnames,
        before: &route.status,
        rules: rules.collect(),
    }
}
