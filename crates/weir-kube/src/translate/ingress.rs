//! Ingress: the rules of the Kubernetes API, and on demand the annotations and defaults of ingress-nginx.

pub mod annotations;
mod canaries;
mod certificates;
mod claimed;
mod class;
mod matcher;
mod reach;
mod routes;
mod settings;
mod sites;
mod targets;

use serde_json::json;

use self::claimed::Claimed;
pub use self::claimed::SERVED;
use self::class::IngressDialect;
use self::routes::RouteWriter;
use super::backends::ServiceBackends;
use super::expressions::Expressions;
use crate::translation::{KubeOptions, ObjectStatus, Translation};
use crate::world::World;

pub(super) fn translate(
    world: &World,
    options: &KubeOptions,
    backends: &mut ServiceBackends,
    expressions: &mut Expressions,
    translation: &mut Translation,
) {
    let all = claimed::all(world, options, translation);
    let tls = certificates::add(&all, world, translation);
    let sites = sites::collect(&all, translation);
    let mut writer = RouteWriter { backends, options, tls: &tls, translation, expressions };
    for (host, site) in &sites {
        writer.site(host, site, &sites);
    }
    let default = all.iter().filter(|claimed| has_default(claimed));
    if let Some((claimed, backend)) =
        default.filter_map(|claimed| Some((claimed, claimed.ingress.spec.default_backend.as_ref()?))).next()
    {
        writer.default_backend(claimed, backend);
    }
    translation.statuses.extend(all.iter().map(|claimed| status(claimed, options)));
}

/// Whether its default backend is that of all hosts; with ingress-nginx it is that of the hosts of its rules, if it has rules.
fn has_default(claimed: &Claimed) -> bool {
    claimed.dialect == IngressDialect::Standard || claimed.ingress.spec.rules.is_empty()
}

/// The addresses, unless the Ingress is not served.
fn status(claimed: &Claimed, options: &KubeOptions) -> ObjectStatus {
    let entry = |address: &String| match address.parse::<std::net::IpAddr>() {
        Ok(_) => json!({ "ip": address }),
        Err(_) => json!({ "hostname": address }),
    };
    let addresses: Vec<_> = options.publish_addresses.iter().filter(|_| !claimed.is_refused).map(entry).collect();
    let balancer = if addresses.is_empty() { json!({}) } else { json!({ "ingress": addresses }) };
    ObjectStatus {
        object: claimed.object(),
        generation: claimed.ingress.metadata.generation,
        status: json!({ "loadBalancer": balancer }),
    }
}
