//! Which references to other namespaces are permitted.

use std::collections::BTreeMap;

use crate::objects::policy::ReferenceGrant;
use crate::world::World;

pub(super) const GROUP: &str = "gateway.networking.k8s.io";

/// The object that refers.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrantReferrer<'a> {
    pub group: &'a str,
    pub kind: &'a str,
    pub namespace: &'a str,
}

/// The object that is referred to.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrantReferent<'a> {
    pub group: &'a str,
    pub kind: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
}

/// The grants, by the namespace that they are in.
pub(super) struct Grants<'a>(BTreeMap<&'a str, Vec<&'a ReferenceGrant>>);

impl<'a> Grants<'a> {
    pub(super) fn new(world: &'a World) -> Grants<'a> {
        let mut grants: BTreeMap<&str, Vec<&ReferenceGrant>> = BTreeMap::new();
        for grant in world.reference_grants.values() {
            grants.entry(&grant.metadata.namespace).or_default().push(grant);
        }
        Grants(grants)
    }

    /// Whether an object may refer to another object: in its own namespace always.
    pub(super) fn permit(&self, from: GrantReferrer, to: GrantReferent) -> bool {
        let is_granted = |grant: &&ReferenceGrant| {
            let mut sources = grant.spec.from.iter();
            let mut targets = grant.spec.to.iter();
            sources.any(|source| {
                source.group == from.group && source.kind == from.kind && source.namespace == from.namespace
            }) && targets.any(|target| {
                let is_name = target.name.as_deref().is_none_or(|name| name == to.name);
                target.group == to.group && target.kind == to.kind && is_name
            })
        };
        from.namespace == to.namespace || self.0.get(to.namespace).is_some_and(|all| all.iter().any(is_granted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANT: &str = "
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: { name: g, namespace: there }
spec:
  from: [{ group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: here }]
  to: [{ group: '', kind: Service, name: a }, { group: '', kind: Secret }]
";

    #[test]
    fn a_grant_permits_what_it_names_and_nothing_else() {
        let world = World::from_manifests(GRANT).unwrap().world;
        let permits = |from: [&str; 2], to: [&str; 3]| {
            let from = GrantReferrer { group: GROUP, kind: from[0], namespace: from[1] };
            Grants::new(&world).permit(from, GrantReferent { group: "", kind: to[0], namespace: to[1], name: to[2] })
        };
        let route = ["HTTPRoute", "here"];
        assert!(permits(route, ["Service", "there", "a"]));
        assert!(permits(route, ["Secret", "there", "any"]));
        assert!(permits(route, ["Service", "here", "own"]));
        assert!(!permits(route, ["Service", "there", "b"]));
        assert!(!permits(route, ["ConfigMap", "there", "a"]));
        assert!(!permits(route, ["Service", "elsewhere", "a"]));
        assert!(!permits(["GRPCRoute", "here"], ["Service", "there", "a"]));
        assert!(!permits(["HTTPRoute", "elsewhere"], ["Service", "there", "a"]));
    }
}
