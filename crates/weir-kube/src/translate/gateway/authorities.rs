//! Certificates of authorities, which ConfigMaps have.

use super::super::pem::has_pem;
use crate::objects::meta::ObjectReference;
use crate::world::{ObjectName, World};

/// Why a reference does not lead to certificates.
pub(super) struct AuthorityFault {
    /// It names an object of a kind that has none.
    pub is_kind: bool,
    pub message: String,
}

/// The certificates that a reference in an object of a namespace leads to, as PEM.
pub(super) fn resolve<'a>(
    world: &'a World,
    namespace: &str,
    reference: &ObjectReference,
) -> Result<&'a str, AuthorityFault> {
    let (group, kind) = (reference.group.as_deref().unwrap_or(""), reference.kind.as_deref().unwrap_or("ConfigMap"));
    let name = ObjectName::new(reference.namespace.as_deref().unwrap_or(namespace), &reference.name);
    if (group, kind) != ("", "ConfigMap") {
        let message = format!("{kind} {name} cannot have certificates of authorities: refer to a ConfigMap");
        return Err(AuthorityFault { is_kind: true, message });
    }
    let fault = |message: String| AuthorityFault { is_kind: false, message };
    let found = world.config_maps.get(&name).ok_or_else(|| fault(format!("ConfigMap {name} does not exist")))?;
    let text = found.data.get("ca.crt").filter(|text| has_pem(text, "CERTIFICATE"));
    text.map(String::as_str)
        .ok_or_else(|| fault(format!("ca.crt of ConfigMap {name} is not a PEM text with a CERTIFICATE")))
}
