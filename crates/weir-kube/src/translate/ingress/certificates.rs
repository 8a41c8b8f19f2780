//! Secrets with certificates, for the hosts that name them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::claimed::Claimed;
use crate::objects::ObjectRef;
use crate::objects::ingress::IngressTls;
use crate::translation::{DerivedResource, EventKind, ResourceList, Translation, resource_id};
use crate::world::{ObjectName, World};

/// The hosts that are served over TLS.
#[derive(Default)]
pub(super) struct TlsHosts(BTreeSet<String>);

impl TlsHosts {
    pub(super) fn cover(&self, host: &str) -> bool {
        let wildcard = host.split_once('.').map(|(_, rest)| format!("*.{rest}"));
        self.0.contains(host) || self.0.contains("*") || wildcard.is_some_and(|wildcard| self.0.contains(&wildcard))
    }
}

/// Adds the certificates of all Ingresses. Of several for a host, that of the oldest Ingress is used.
pub(super) fn add(all: &[Claimed], world: &World, translation: &mut Translation) -> TlsHosts {
    let mut hosts = TlsHosts::default();
    let mut found: BTreeMap<String, DerivedResource> = BTreeMap::new();
    for claimed in all {
        for tls in &claimed.ingress.spec.tls {
            let own: Vec<String> =
                hosts_of(claimed, tls).into_iter().filter(|host| hosts.0.insert(host.clone())).collect();
            if own.is_empty() {
                continue;
            }
            match certificate(claimed, tls, world) {
                Ok((id, resource)) => {
                    let known = found.entry(id).or_insert(resource);
                    if let Value::Array(names) = &mut known.value["snis"] {
                        names.extend(own.into_iter().map(Value::from));
                    }
                }
                Err(problem) => translation.events.push(claimed.event(EventKind::Warning, "NoCertificate", problem)),
            }
        }
    }
    translation.resources.extend(found.into_values());
    hosts
}

/// The hosts of an entry; those of the rules if it names none.
fn hosts_of(claimed: &Claimed, tls: &IngressTls) -> Vec<String> {
    let rules = claimed.ingress.spec.rules.iter().map(|rule| &rule.host);
    let named: Vec<String> = match tls.hosts.is_empty() {
        false => tls.hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
        true => rules.filter(|host| !host.is_empty()).map(|host| host.to_ascii_lowercase()).collect(),
    };
    if named.is_empty() { vec!["*".to_owned()] } else { named }
}

fn certificate(claimed: &Claimed, tls: &IngressTls, world: &World) -> Result<(String, DerivedResource), String> {
    let name = &tls.secret_name;
    if name.is_empty() {
        return Err("`spec.tls` without `secretName`: add a default certificate with `sni: \"*\"` to `ssls`".to_owned());
    }
    let namespace = &claimed.ingress.metadata.namespace;
    let secret = world.secrets.get(&ObjectName::new(namespace, name));
    let secret = secret.ok_or_else(|| format!("there is no Secret `{name}`; its hosts have no certificate"))?;
    let (cert, key) = (secret.text("tls.crt")?, secret.text("tls.key")?);
    let mut value = json!({ "snis": [], "cert": cert, "key": key });
    // Certificates of clients are a matter of the Ingress, so its entry is its own.
    let id = match &claimed.settings.client_certificates {
        None => resource_id(&["ingress", namespace, name]),
        Some(client) => {
            value["client"] = client.clone();
            resource_id(&["ingress", namespace, name, &claimed.ingress.metadata.name])
        }
    };
    let origin = ObjectRef::of(&**secret);
    Ok((id.clone(), DerivedResource { kind: ResourceList::Ssls, id, value, origin, beside: Vec::new() }))
}
