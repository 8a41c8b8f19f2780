//! Secrets with certificates, for the hosts that name them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::super::apisix;
use super::super::precedence::precedence;
use super::claimed::{Claimed, NO_CERTIFICATE};
use super::sites::IngressSites;
use crate::objects::ObjectRef;
use crate::objects::core::Secret;
use crate::objects::ingress::IngressTls;
use crate::translation::{DerivedResource, EventKind, KubeOptions, ResourceList, Translation, resource_id};
use crate::world::{ObjectName, World};

/// The hosts that are served over TLS.
#[derive(Default)]
pub(super) struct TlsHosts {
    names: BTreeSet<String>,
    /// Those that ask clients for certificates, and have none themselves.
    unproved: BTreeSet<String>,
}

impl TlsHosts {
    pub(super) fn cover(&self, host: &str) -> bool {
        wider(host).any(|name| self.names.contains(&name))
    }

    /// Whether clients of a host could not be asked for their certificates: nothing is served there.
    pub(super) fn is_unproved(&self, host: &str) -> bool {
        self.unproved.contains(&name_of(host))
    }
}

/// The name in a handshake for a host of rules.
fn name_of(host: &str) -> String {
    if host.is_empty() { "*".to_owned() } else { host.to_owned() }
}

/// The names of certificates for a host, the most specific first.
fn wider(host: &str) -> impl Iterator<Item = String> {
    let wildcard = host.split_once('.').map(|(_, rest)| format!("*.{rest}"));
    [Some(name_of(host)), wildcard, Some("*".to_owned())].into_iter().flatten()
}

/// An entry of `spec.tls`, with its Ingress.
type TlsEntry<'a> = (&'a Claimed<'a>, &'a IngressTls);

/// Adds the certificates of all Ingresses. Of several for a host, that of the oldest Ingress is used. Clients are asked for certificates by
/// host, whichever Ingress brings the certificate of the host.
pub(super) fn add(
    all: &[Claimed],
    sites: &IngressSites,
    (world, options): (&World, &KubeOptions),
    translation: &mut Translation,
) -> TlsHosts {
    let mut hosts = TlsHosts::default();
    let mut entries: BTreeMap<String, TlsEntry> = BTreeMap::new();
    for claimed in all {
        for tls in &claimed.ingress.spec.tls {
            if let Err(problem) = secret_of(claimed, tls, world) {
                translation.events.push(claimed.event(EventKind::Warning, NO_CERTIFICATE, problem));
                hosts.names.extend(hosts_of(claimed, tls));
                continue;
            }
            for name in hosts_of(claimed, tls) {
                hosts.names.insert(name.clone());
                // Another Ingress's host has its certificate from an Ingress with rules for it.
                let is_of_others = sites.get(&name).is_some_and(|site| !site.is_owner(claimed));
                if !is_of_others {
                    entries.entry(name).or_insert((claimed, tls));
                }
            }
        }
    }
    let of_sites = sites.iter().filter_map(|(host, site)| Some((name_of(host), site.client_owner()?)));
    let of_default = all.iter().filter(|claimed| claimed.ingress.spec.rules.is_empty());
    let of_default = of_default.filter(|claimed| claimed.settings.client_certificates.is_some());
    let mut asking: BTreeMap<String, &Claimed> = of_sites.collect();
    of_default.for_each(|claimed| _ = asking.entry("*".to_owned()).or_insert(claimed));
    for (name, owner) in &asking {
        // An entry of its own: that of a wildcard asks other clients for nothing.
        match wider(name).find_map(|wider| entries.get(&wider).copied()) {
            Some(entry) => _ = entries.entry(name.clone()).or_insert(entry),
            None => {
                let message =
                    format!("`auth-tls-secret`: `{name}` has no certificate in `spec.tls`; it is answered with 503");
                translation.events.push(owner.event(EventKind::Warning, NO_CERTIFICATE, message));
                hosts.unproved.insert(name.clone());
            }
        }
    }
    leave_demanding(&mut entries, sites, (world, options), translation);
    // What an ApisixTls asks of clients is not what the Ingress wants.
    hosts.unproved.extend(asking.keys().filter(|name| !entries.contains_key(*name)).cloned());
    translation.resources.extend(certificates(entries, &asking, world));
    hosts
}

/// Leaves names to ApisixTls objects that ask clients for certificates, unless an older Ingress with rules for the name has it.
fn leave_demanding(
    entries: &mut BTreeMap<String, TlsEntry>,
    sites: &IngressSites,
    (world, options): (&World, &KubeOptions),
    translation: &mut Translation,
) {
    for (name, metadata) in apisix::demanding(world, options) {
        let is_older = |(claimed, _): &TlsEntry| {
            let has_rules = sites.get(&name).is_some_and(|site| site.is_owner(claimed));
            has_rules && precedence(&claimed.ingress.metadata, metadata).is_lt()
        };
        if entries.get(&name).is_none_or(is_older) {
            continue;
        }
        if let Some((claimed, _)) = entries.remove(&name) {
            let message = format!(
                "`spec.tls`: the ApisixTls `{}/{}` asks the clients of `{name}` for certificates, and keeps the name",
                metadata.namespace, metadata.name
            );
            translation.events.push(claimed.event(EventKind::Warning, NO_CERTIFICATE, message));
        }
    }
}

fn certificates(
    entries: BTreeMap<String, TlsEntry>,
    asking: &BTreeMap<String, &Claimed>,
    world: &World,
) -> Vec<DerivedResource> {
    let mut found: BTreeMap<String, DerivedResource> = BTreeMap::new();
    for (name, entry) in entries {
        let Ok(resource) = certificate(entry, asking.get(&name).copied(), world) else { continue };
        let known = found.entry(resource.id.clone()).or_insert(resource);
        if let Value::Array(names) = &mut known.value["snis"] {
            names.push(name.into());
        }
    }
    found.into_values().collect()
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

/// The Secret of an entry, with its certificate and its key.
fn secret_of<'w>(
    claimed: &Claimed,
    tls: &IngressTls,
    world: &'w World,
) -> Result<(&'w Secret, String, String), String> {
    let name = &tls.secret_name;
    if name.is_empty() {
        return Err("`spec.tls` without `secretName`: add a default certificate with `sni: \"*\"` to `ssls`".to_owned());
    }
    let secret = world.secrets.get(&ObjectName::new(&claimed.ingress.metadata.namespace, name));
    let secret = secret.ok_or_else(|| format!("there is no Secret `{name}`; its hosts have no certificate"))?;
    let (cert, key) = (secret.text("tls.crt")?, secret.text("tls.key")?);
    Ok((secret, cert, key))
}

/// The certificate of an entry, for hosts whose clients are asked for certificates by this Ingress, or by none.
fn certificate((claimed, tls): TlsEntry, asking: Option<&Claimed>, world: &World) -> Result<DerivedResource, String> {
    let (secret, cert, key) = secret_of(claimed, tls, world)?;
    let mut value = json!({ "snis": [], "cert": cert, "key": key });
    let metadata = &claimed.ingress.metadata;
    let mut parts = vec!["ingress", &metadata.namespace, &tls.secret_name];
    if let Some(asking) = asking {
        value["client"] = asking.settings.client_certificates.clone().unwrap_or_default();
        let of_client = &asking.ingress.metadata;
        if of_client.namespace != metadata.namespace {
            parts.push(&of_client.namespace);
        }
        parts.push(&of_client.name);
    }
    let id = resource_id(&parts);
    Ok(DerivedResource { kind: ResourceList::Ssls, id, value, origin: ObjectRef::of(secret), beside: Vec::new() })
}
