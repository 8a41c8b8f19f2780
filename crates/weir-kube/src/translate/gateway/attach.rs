//! Which listeners a route attaches to.

use super::super::conditions::Problem;
use super::super::grants::GROUP;
use super::context::Context;
use super::hosts;
use super::parents::Parents;
use crate::objects::meta::{ObjectMeta, ObjectReference};
use crate::objects::{Kind, ObjectRef};

/// What decides about attachment.
#[derive(Clone, Copy)]
pub(super) struct Attaching<'a> {
    pub kind: Kind,
    pub metadata: &'a ObjectMeta,
    pub hostnames: &'a [String],
}

/// The listeners, as numbers, that a route attaches to by a reference. `None` if the parent is not ours.
///
/// # Errors
/// The reason for the condition `Accepted`.
pub(super) fn attach(
    context: &Context,
    parents: &Parents,
    route: Attaching,
    parent: &ObjectReference,
) -> Option<Result<Vec<usize>, Problem>> {
    let owner = owner(route, parent)?;
    let all = parents.listeners_of(&owner)?;
    Some(find(context, parents, route, parent, all))
}

fn owner(route: Attaching, parent: &ObjectReference) -> Option<ObjectRef> {
    let kind = match (parent.group.as_deref().unwrap_or(GROUP), parent.kind.as_deref().unwrap_or("Gateway")) {
        (GROUP, "Gateway") => Kind::Gateway,
        (GROUP, "ListenerSet") => Kind::ListenerSet,
        _ => return None,
    };
    let namespace = parent.namespace.clone().unwrap_or_else(|| route.metadata.namespace.clone());
    Some(ObjectRef { kind, namespace, name: parent.name.clone() })
}

fn find(
    context: &Context,
    parents: &Parents,
    route: Attaching,
    parent: &ObjectReference,
    all: &[usize],
) -> Result<Vec<usize>, Problem> {
    let mut left: Vec<usize> = all.to_vec();
    let mut keep = |reason: &'static str, message: &str, is_kept: &dyn Fn(usize) -> bool| {
        left.retain(|number| is_kept(*number));
        if left.is_empty() { Err(Problem::new(reason, message)) } else { Ok(()) }
    };
    keep("NoMatchingParent", "no listener has this sectionName and port", &|number| {
        let listener = parents.listeners[number].listener;
        parent.section_name.as_ref().is_none_or(|name| *name == listener.name)
            && parent.port.is_none_or(|port| port == listener.port)
    })?;
    keep("NotAllowedByListeners", "allowedRoutes of the listeners do not allow this route", &|number| {
        let state = &parents.listeners[number];
        let allowed = state.listener.allowed_routes.as_ref().and_then(|allowed| allowed.namespaces.as_ref());
        state.kinds.contains(&route.kind)
            && context.allows(allowed, "Same", &state.owner.namespace, &route.metadata.namespace)
    })?;
    keep("NoMatchingListenerHostname", "no listener has a host name of the route", &|number| {
        hosts::any_intersects(parents.listeners[number].host(), route.hostnames)
    })?;
    keep("NotAllowedByListeners", "the listeners are not accepted", &|number| {
        let state = &parents.listeners[number];
        state.refused.is_none() && state.conflict.is_none()
    })?;
    Ok(left)
}
