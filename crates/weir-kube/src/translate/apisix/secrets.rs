//! Secrets that objects refer to.

use serde_json::{Map, Value};

use super::super::grants::{GrantReferent, GrantReferrer};
use super::super::node_references::is_reference;
use super::super::pem::has_pem;
use super::super::secret_options;
use super::ApisixContext;
use super::outcomes::ApisixProblem;
use crate::objects::Kind;
use crate::objects::apisix::ApisixSecretReference;
use crate::objects::core::Secret;
use crate::world::ObjectName;

/// The names under which a Secret may have a certificate, its key, and certificates of authorities.
const CERTIFICATE: [&str; 2] = ["cert", "tls.crt"];
const KEY: [&str; 2] = ["key", "tls.key"];
const AUTHORITIES: [&str; 3] = ["cert", "ca.crt", "tls.crt"];

/// The values of a Secret of a namespace that is meant for options.
///
/// # Errors
/// Why there are none.
pub(super) fn values(
    context: &ApisixContext,
    namespace: &str,
    name: &str,
) -> Result<Map<String, Value>, ApisixProblem> {
    secret_options::values(context.world, namespace, name).map_err(ApisixProblem::Reference)
}

/// A certificate and its key.
///
/// # Errors
/// Why they cannot be used.
pub(super) fn key_pair(
    context: &ApisixContext,
    from: (Kind, &str),
    reference: &ApisixSecretReference,
) -> Result<(String, String), ApisixProblem> {
    let secret = find(context, from, reference)?;
    let cert = pem(secret, &CERTIFICATE, "CERTIFICATE")?;
    Ok((cert, pem(secret, &KEY, "PRIVATE KEY")?))
}

/// The certificates of authorities.
///
/// # Errors
/// Why they cannot be used.
pub(super) fn authorities(
    context: &ApisixContext,
    from: (Kind, &str),
    reference: &ApisixSecretReference,
) -> Result<String, ApisixProblem> {
    pem(find(context, from, reference)?, &AUTHORITIES, "CERTIFICATE")
}

/// A Secret of the own namespace, or of one that grants it.
fn find<'a>(
    context: &ApisixContext<'a>,
    (kind, own): (Kind, &str),
    reference: &ApisixSecretReference,
) -> Result<&'a Secret, ApisixProblem> {
    let namespace = if reference.namespace.is_empty() { own } else { &reference.namespace };
    let name = &reference.name;
    let from = GrantReferrer { group: Kind::ApisixRoute.group(), kind: kind.name(), namespace: own };
    if !context.grants.permit(from, GrantReferent { group: "", kind: "Secret", namespace, name }) {
        let problem =
            format!("no ReferenceGrant of the namespace `{namespace}` permits {kind} of `{own}` the Secret `{name}`");
        return Err(ApisixProblem::Reference(problem));
    }
    let found = context.world.secrets.get(&ObjectName::new(namespace, name));
    let missing = || ApisixProblem::Reference(format!("there is no Secret `{namespace}/{name}`"));
    found.map(|secret| &**secret).ok_or_else(missing)
}

/// The first of these values, which must be PEM: a file name or a reference would be read by the node.
fn pem(secret: &Secret, keys: &[&str], label: &str) -> Result<String, ApisixProblem> {
    let name = &secret.metadata.name;
    let has = |key: &&&str| secret.data.contains_key(**key) || secret.string_data.contains_key(**key);
    let text = match keys.iter().find(has) {
        Some(key) => secret.text(key).map_err(ApisixProblem::Reference)?,
        None => {
            let problem = format!("the Secret `{name}` has none of {}", keys.join(", "));
            return Err(ApisixProblem::Reference(problem));
        }
    };
    match has_pem(&text, label) {
        true => Ok(text),
        false => Err(ApisixProblem::Reference(format!("the Secret `{name}` has no {label} in PEM"))),
    }
}

/// Refuses texts that the node would replace by values of its environment or of a store of secrets.
///
/// # Errors
/// The first of them.
pub(super) fn check_texts(value: &Value) -> Result<(), ApisixProblem> {
    match value {
        Value::String(text) if is_reference(text) => Err(ApisixProblem::Spec(
            "has a text that begins with `$env://` or `$secret://`: use `secretRef` for values of a Secret".to_owned(),
        )),
        Value::Array(items) => items.iter().try_for_each(check_texts),
        Value::Object(members) => members.values().try_for_each(check_texts),
        _ => Ok(()),
    }
}
