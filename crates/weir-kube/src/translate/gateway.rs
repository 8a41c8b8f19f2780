//! The Gateway API.

mod addresses;
mod attach;
mod authorities;
mod backend_refs;
mod certificates;
mod conditions;
mod context;
mod duration;
mod filters;
mod frontend_tls;
mod grants;
mod hosts;
mod listener_resources;
mod matches;
mod mirrors;
mod parents;
mod pem;
mod policy_statuses;
mod precedence;
mod routes;
mod rule_limits;
mod services;
mod statuses;
mod tls_policies;

use self::context::Context;
use self::parents::Parents;
use self::precedence::precedence;
use super::backends::ServiceBackends;
use super::expressions::Expressions;
use crate::translation::{KubeOptions, Translation};
use crate::world::World;

/// Adds what the Gateways of our classes mean, and the statuses of all that refers to them.
pub(super) fn translate(
    world: &World,
    options: &KubeOptions,
    backends: &mut ServiceBackends,
    expressions: &mut Expressions,
    translation: &mut Translation,
) {
    let context = Context::new(world, options);
    let classes = statuses::classes(&context, translation);
    let mut parents = Parents::collect(&context, &classes);
    let http = world.http_routes.values().map(|route| routes::of_http(route));
    let grpc = world.grpc_routes.values().map(|route| routes::of_grpc(route));
    let mut all: Vec<_> = http.chain(grpc).collect();
    all.sort_by(|one, other| precedence(one.metadata, other.metadata));
    for route in &mut all {
        route.check_expressions(expressions);
        routes::translate(&context, &mut parents, route, backends, translation);
    }
    listener_resources::write(&parents, translation);
    services::write(&context, &parents, translation);
    statuses::write(&parents, translation);
    policy_statuses::write(&context.tls_policies, &parents, options, translation);
}
