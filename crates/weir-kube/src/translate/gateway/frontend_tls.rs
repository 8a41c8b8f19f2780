//! How the clients of a Gateway are verified.

use super::super::conditions::Problem;
use super::super::grants::{GROUP, GrantReferent, GrantReferrer};
use super::authorities;
use super::context::Context;
use crate::objects::gateway::{FrontendTlsValidation, KubeGateway};
use crate::objects::meta::ObjectReference;

/// What it means for a listener with TLS.
#[derive(Default)]
pub(super) struct FrontendVerification {
    /// Clients must have a certificate that one of these has issued, as PEM; empty: they are not asked for one.
    pub authorities: String,
    /// They are served without one as well, or with another one.
    pub is_insecure: bool,
    /// Why the listener cannot be served: to serve it without a verification that was asked for would be worse.
    pub refused: Option<Problem>,
    /// A reference does not lead anywhere.
    pub unresolved: Option<Problem>,
}

/// The verification of clients on a port.
pub(super) fn of_port(context: &Context, gateway: &KubeGateway, port: u16) -> FrontendVerification {
    let mut verification = FrontendVerification::default();
    let Some(frontend) = gateway.spec.tls.as_ref().and_then(|tls| tls.frontend.as_ref()) else { return verification };
    let of_port = frontend.per_port.iter().find(|one| one.port == port).map(|one| &one.tls);
    let Some(wanted) = &of_port.unwrap_or(&frontend.default).validation else { return verification };
    for reference in &wanted.ca_certificate_refs {
        match resolve(context, gateway, reference) {
            Ok(text) => verification.authorities.extend([text.trim(), "\n"]),
            Err(problem) => verification.unresolved = verification.unresolved.take().or(Some(problem)),
        }
    }
    verification.is_insecure = wanted.mode == INSECURE;
    verification.refused = refusal(wanted, &verification.authorities);
    verification
}

/// Whether clients of some port are served without a valid certificate.
pub(super) fn is_insecure(gateway: &KubeGateway) -> bool {
    let Some(frontend) = gateway.spec.tls.as_ref().and_then(|tls| tls.frontend.as_ref()) else { return false };
    let mut all = frontend.per_port.iter().map(|one| &one.tls).chain([&frontend.default]);
    all.any(|config| config.validation.as_ref().is_some_and(|wanted| wanted.mode == INSECURE))
}

const INSECURE: &str = "AllowInsecureFallback";

fn refusal(wanted: &FrontendTlsValidation, authorities: &str) -> Option<Problem> {
    if !matches!(&*wanted.mode, "" | "AllowValidOnly" | INSECURE) {
        let message = format!("mode {} of the validation of clients is not known", wanted.mode);
        return Some(Problem::new("Invalid", message));
    }
    let message = "no caCertificateRefs of the validation of clients lead to certificates";
    authorities.is_empty().then(|| Problem::new("NoValidCACertificate", message))
}

fn resolve<'a>(context: &Context<'a>, gateway: &KubeGateway, reference: &ObjectReference) -> Result<&'a str, Problem> {
    let own = &*gateway.metadata.namespace;
    let namespace = reference.namespace.as_deref().unwrap_or(own);
    let kind = reference.kind.as_deref().unwrap_or("ConfigMap");
    let referent =
        GrantReferent { group: reference.group.as_deref().unwrap_or(""), kind, namespace, name: &reference.name };
    if !context.grants.permit(GrantReferrer { group: GROUP, kind: "Gateway", namespace: own }, referent) {
        let message =
            format!("no ReferenceGrant in {namespace} permits the reference to {kind} {namespace}/{}", reference.name);
        return Err(Problem::new("RefNotPermitted", message));
    }
    authorities::resolve(context.world, own, reference).map_err(|fault| {
        let reason = if fault.is_kind { "InvalidCACertificateKind" } else { "InvalidCACertificateRef" };
        Problem::new(reason, fault.message)
    })
}
