//! Which Ingresses are ours, and how they are read.

use super::super::apisix::APISIX;
use crate::objects::ingress::{Ingress, IngressClass};
use crate::translation::KubeOptions;
use crate::world::{ObjectName, World};

/// The rules by which an Ingress is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IngressDialect {
    /// Those of the Kubernetes API alone.
    Standard,
    /// With the annotations and defaults of ingress-nginx.
    IngressNginx,
    /// With the annotations of the APISIX ingress controller.
    Apisix,
}

/// The controller of ingress-nginx, in `spec.controller` of its IngressClass.
const INGRESS_NGINX: &str = "k8s.io/ingress-nginx";
/// The class of an Ingress before `spec.ingressClassName` existed.
const CLASS: &str = "kubernetes.io/ingress.class";
/// On an IngressClass: Ingresses without a class are of this one.
const IS_DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";

/// How an Ingress is read; `None` if it is another controller's.
pub(super) fn dialect(ingress: &Ingress, world: &World, options: &KubeOptions) -> Option<IngressDialect> {
    let written = ingress.metadata.annotations.get(CLASS);
    let Some(name) = written.or(ingress.spec.ingress_class_name.as_ref()) else {
        let defaults = world.ingress_classes.values().filter(|class| is_default(class));
        let found = defaults.filter_map(|class| of_controller(class, options)).next();
        return found.or(options.offline.then_some(IngressDialect::IngressNginx));
    };
    match world.ingress_classes.get(&ObjectName::new("", name)) {
        Some(class) => of_controller(class, options),
        None if options.offline => Some(IngressDialect::IngressNginx),
        // The old annotation needs no IngressClass.
        None if written.is_some() && name == "nginx" && options.adopt_ingress_nginx => {
            Some(IngressDialect::IngressNginx)
        }
        None => None,
    }
}

fn of_controller(class: &IngressClass, options: &KubeOptions) -> Option<IngressDialect> {
    match class.spec.controller.as_str() {
        controller if controller == options.ingress_controller => Some(IngressDialect::Standard),
        INGRESS_NGINX if options.adopt_ingress_nginx => Some(IngressDialect::IngressNginx),
        APISIX if options.adopt_apisix => Some(IngressDialect::Apisix),
        _ => None,
    }
}

fn is_default(class: &IngressClass) -> bool {
    class.metadata.annotations.get(IS_DEFAULT).is_some_and(|value| value == "true")
}
