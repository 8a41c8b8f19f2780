//! Which objects are ours.

use crate::objects::ingress::IngressClass;
use crate::translation::KubeOptions;
use crate::world::{ObjectName, World};

/// `spec.controller` of the classes of the APISIX ingress controller.
const APISIX: &str = "apisix.apache.org/apisix-ingress-controller";
/// On an IngressClass: objects without a class are of this one.
const IS_DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";

/// Whether objects with this `ingressClassName`, which may be empty, are ours.
pub(super) fn is_ours(class: &str, world: &World, options: &KubeOptions) -> bool {
    let is_of_controller =
        |class: &IngressClass| class.spec.controller == APISIX || class.spec.controller == options.ingress_controller;
    let is_default =
        |class: &&IngressClass| class.metadata.annotations.get(IS_DEFAULT).is_some_and(|value| value == "true");
    match class {
        "" => world.ingress_classes.values().map(|class| &**class).filter(is_default).any(is_of_controller),
        name => world.ingress_classes.get(&ObjectName::new("", name)).is_some_and(|class| is_of_controller(class)),
    }
}

/// Whether an object that others refer to can be used: it is ours, or says nothing of its class.
pub(super) fn is_usable(class: &str, world: &World, options: &KubeOptions) -> bool {
    class.is_empty() || is_ours(class, world, options)
}
