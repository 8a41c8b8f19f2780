//! Which objects are ours.

use crate::objects::ingress::IngressClass;
use crate::translation::KubeOptions;
use crate::world::{ObjectName, World};

/// `spec.controller` of the classes of the APISIX ingress controller.
pub(in super::super) const APISIX: &str = "apisix.apache.org/apisix-ingress-controller";
/// On an IngressClass: objects without a class are of this one.
const IS_DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";

/// Whether an IngressClass with this `spec.controller` is ours.
pub(super) fn is_of_controller(controller: &str, options: &KubeOptions) -> bool {
    controller == APISIX || controller == options.ingress_controller
}

/// Whether objects with this `ingressClassName`, which may be empty, are ours.
pub(super) fn is_ours(class: &str, world: &World, options: &KubeOptions) -> bool {
    let is_own = |class: &IngressClass| is_of_controller(&class.spec.controller, options);
    let is_default =
        |class: &&IngressClass| class.metadata.annotations.get(IS_DEFAULT).is_some_and(|value| value == "true");
    match class {
        "" => world.ingress_classes.values().map(|class| &**class).filter(is_default).any(is_own),
        name => world.ingress_classes.get(&ObjectName::new("", name)).is_some_and(|class| is_own(class)),
    }
}

/// Whether an object that others refer to can be used: it is ours, or says nothing of its class.
pub(super) fn is_usable(class: &str, world: &World, options: &KubeOptions) -> bool {
    class.is_empty() || is_ours(class, world, options)
}
