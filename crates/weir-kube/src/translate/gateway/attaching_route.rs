//! What the routes of all kinds have in common, as one type.

use std::cmp::Ordering;

use super::super::expressions::Expressions;
use super::super::precedence::precedence;
use super::backend_refs;
use super::matches::{self, RouteMatch};
use crate::objects::meta::{ObjectMeta, ObjectReference};
use crate::objects::routes::{BackendRef, GrpcRoute, HttpRetry, HttpRoute, HttpTimeouts, RouteFilter, RouteStatus};
use crate::objects::streams::KubeStreamSpec;
use crate::objects::{Kind, KubeObject, ObjectRef};
use crate::world::{ObjectName, World};

/// A route that attaches to listeners.
#[derive(Clone, Copy)]
pub(super) enum RouteSource<'a> {
    Http(&'a HttpRoute),
    Grpc(&'a GrpcRoute),
    Stream(StreamSource<'a>),
}

/// A TCPRoute, a TLSRoute or a UDPRoute.
#[derive(Clone, Copy)]
pub(super) struct StreamSource<'a> {
    kind: Kind,
    metadata: &'a ObjectMeta,
    spec: &'a KubeStreamSpec,
    status: &'a RouteStatus,
}

impl<'a> RouteSource<'a> {
    /// All routes of a world, in the order in which conflicts are decided.
    pub(super) fn all(world: &'a World) -> Vec<RouteSource<'a>> {
        let mut all: Vec<_> = world.http_routes.values().map(|route| RouteSource::Http(route)).collect();
        all.extend(world.grpc_routes.values().map(|route| RouteSource::Grpc(route)));
        all.extend(world.tcp_routes.values().map(|route| stream(&**route, &route.spec, &route.status)));
        all.extend(world.tls_routes.values().map(|route| stream(&**route, &route.spec, &route.status)));
        all.extend(world.udp_routes.values().map(|route| stream(&**route, &route.spec, &route.status)));
        all.sort_by(RouteSource::precedence);
        all
    }

    /// The order in which conflicts are decided.
    pub(super) fn precedence(&self, other: &RouteSource<'a>) -> Ordering {
        precedence(self.metadata(), other.metadata())
    }

    pub(super) fn find(world: &'a World, route: &ObjectRef) -> Option<RouteSource<'a>> {
        let name = ObjectName::new(&route.namespace, &route.name);
        match route.kind {
            Kind::HTTPRoute => world.http_routes.get(&name).map(|route| RouteSource::Http(route)),
            Kind::GRPCRoute => world.grpc_routes.get(&name).map(|route| RouteSource::Grpc(route)),
            Kind::TCPRoute => world.tcp_routes.get(&name).map(|route| stream(&**route, &route.spec, &route.status)),
            Kind::TLSRoute => world.tls_routes.get(&name).map(|route| stream(&**route, &route.spec, &route.status)),
            Kind::UDPRoute => world.udp_routes.get(&name).map(|route| stream(&**route, &route.spec, &route.status)),
            _ => None,
        }
    }

    fn metadata(self) -> &'a ObjectMeta {
        match self {
            RouteSource::Http(route) => &route.metadata,
            RouteSource::Grpc(route) => &route.metadata,
            RouteSource::Stream(route) => route.metadata,
        }
    }

    pub(super) fn object(self) -> ObjectRef {
        match self {
            RouteSource::Http(route) => ObjectRef::of(route),
            RouteSource::Grpc(route) => ObjectRef::of(route),
            RouteSource::Stream(StreamSource { kind, metadata, .. }) => {
                let ObjectMeta { namespace, name, .. } = metadata;
                ObjectRef { kind, namespace: namespace.clone(), name: name.clone() }
            }
        }
    }

    pub(super) fn read(self) -> AttachingRoute<'a> {
        match self {
            RouteSource::Http(route) => of_http(route),
            RouteSource::Grpc(route) => of_grpc(route),
            RouteSource::Stream(route) => of_stream(route),
        }
    }

    /// The Services of its rules.
    pub(super) fn services(self) -> impl Iterator<Item = ObjectName> {
        let refs: Vec<&BackendRef> = match self {
            RouteSource::Http(route) => route.spec.rules.iter().flat_map(|rule| &rule.backend_refs).collect(),
            RouteSource::Grpc(route) => route.spec.rules.iter().flat_map(|rule| &rule.backend_refs).collect(),
            RouteSource::Stream(route) => route.spec.rules.iter().flat_map(|rule| &rule.backend_refs).collect(),
        };
        let namespace = &self.metadata().namespace;
        refs.into_iter().map(|backend| backend_refs::service_name(&backend.reference, namespace))
    }
}

fn stream<'a, T: KubeObject>(route: &'a T, spec: &'a KubeStreamSpec, status: &'a RouteStatus) -> RouteSource<'a> {
    RouteSource::Stream(StreamSource { kind: T::KIND, metadata: route.metadata(), spec, status })
}

/// What is translated of a route.
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
    /// None of a route for streams.
    pub matches: Vec<RouteMatch>,
    pub filters: &'a [RouteFilter],
    pub backends: &'a [BackendRef],
    pub timeouts: Option<&'a HttpTimeouts>,
    pub retry: Option<&'a HttpRetry>,
    pub has_session: bool,
}

/// The most characters in the name of a resource.
const LONGEST_NAME: usize = 100;

impl AttachingRoute<'_> {
    pub(super) fn object(&self) -> ObjectRef {
        let ObjectMeta { namespace, name, .. } = self.metadata;
        ObjectRef { kind: self.kind, namespace: namespace.clone(), name: name.clone() }
    }

    /// The name of a resource for people: that of the route, and that of the rule if it has one.
    pub(super) fn resource_name(&self, rule: &RuleParts) -> String {
        let ObjectMeta { namespace, name, .. } = self.metadata;
        let full = [Some(&**namespace), Some(&**name), rule.name].into_iter().flatten().collect::<Vec<_>>().join("/");
        full.chars().take(LONGEST_NAME).collect()
    }

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

fn of_stream(route: StreamSource<'_>) -> AttachingRoute<'_> {
    let rules = route.spec.rules.iter().map(|rule| RuleParts {
        name: rule.name.as_deref(),
        matches: Vec::new(),
        filters: &[],
        backends: &rule.backend_refs,
        timeouts: None,
        retry: None,
        has_session: false,
    });
    AttachingRoute {
        kind: route.kind,
        metadata: route.metadata,
        parent_refs: &route.spec.parent_refs,
        hostnames: &route.spec.hostnames,
        before: route.status,
        rules: rules.collect(),
    }
}
