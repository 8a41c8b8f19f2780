//! The certificates that listeners show to clients, and Gateways to backends.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::super::conditions::Problem;
use super::super::grants::{GROUP, GrantReferent, GrantReferrer};
use super::super::pem::has_pem;
use super::context::Context;
use crate::objects::core::Secret;
use crate::objects::gateway::KubeGateway;
use crate::objects::meta::ObjectReference;
use crate::world::ObjectName;

/// A certificate chain and its key, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TlsCertificate {
    pub secret: ObjectName,
    pub chain: String,
    pub key: String,
}

/// The certificate that a Gateway shows to backends, if it refers to one.
///
/// # Errors
/// The reason for the condition `ResolvedRefs` of the Gateway.
pub(super) fn of_gateway(context: &Context, gateway: &KubeGateway) -> Result<Option<TlsCertificate>, Problem> {
    let backend = gateway.spec.tls.as_ref().and_then(|tls| tls.backend.as_ref());
    let Some(reference) = backend.and_then(|backend| backend.client_certificate_ref.as_ref()) else { return Ok(None) };
    let from = GrantReferrer { group: GROUP, kind: "Gateway", namespace: &gateway.metadata.namespace };
    let invalid = |problem: Problem| match problem.reason {
        INVALID => Problem { reason: "InvalidClientCertificateRef", ..problem },
        _ => problem,
    };
    resolve(context, from, reference).map(Some).map_err(invalid)
}

const INVALID: &str = "InvalidCertificateRef";

/// The certificate that a listener, in `from`, refers to.
///
/// # Errors
/// The reason for the condition `ResolvedRefs`.
pub(super) fn resolve(
    context: &Context,
    from: GrantReferrer,
    reference: &ObjectReference,
) -> Result<TlsCertificate, Problem> {
    let (group, kind) = (reference.group.as_deref().unwrap_or(""), reference.kind.as_deref().unwrap_or("Secret"));
    let namespace = reference.namespace.as_deref().unwrap_or(from.namespace);
    let secret = ObjectName::new(namespace, &reference.name);
    let invalid = |message: String| Problem::new(INVALID, message);
    if (group, kind) != ("", "Secret") {
        return Err(invalid(format!("{kind} {secret} cannot be a certificate: refer to a Secret")));
    }
    if !context.grants.permit(from, GrantReferent { group, kind, namespace, name: &reference.name }) {
        let message = format!("no ReferenceGrant in {namespace} permits the reference to Secret {secret}");
        return Err(Problem::new("RefNotPermitted", message));
    }
    let Some(found) = context.world.secrets.get(&secret) else {
        return Err(invalid(format!("Secret {secret} does not exist, or is not of type kubernetes.io/tls")));
    };
    let part = |key: &str, label: &str| {
        let text = text_of(found, key).filter(|text| has_pem(text, label));
        text.ok_or_else(|| invalid(format!("{key} of Secret {secret} is not a PEM text with a {label}")))
    };
    Ok(TlsCertificate { chain: part("tls.crt", "CERTIFICATE")?, key: part("tls.key", "PRIVATE KEY")?, secret })
}

/// A value of a Secret, if it is text.
pub(super) fn text_of(secret: &Secret, key: &str) -> Option<String> {
    let from_data = || String::from_utf8(STANDARD.decode(secret.data.get(key)?).ok()?).ok();
    secret.string_data.get(key).cloned().or_else(from_data)
}
