//! ApisixTls: certificates for server names.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::super::expressions::Expressions;
use super::super::upstream_settings::within;
use super::matches::is_host;
use super::outcomes::ApisixProblem;
use super::secrets::{authorities, check_texts, key_pair};
use super::{ApisixContext, ApisixOutcome, of_class};
use crate::objects::apisix::ApisixTls;
use crate::objects::meta::ObjectMeta;
use crate::objects::{Kind, ObjectRef};
use crate::translation::{DerivedResource, KubeOptions, ResourceList, Translation, resource_id};
use crate::world::World;

/// The most certificates between that of a client and one of an authority.
const MOST_DEPTH: i64 = 16;

fn all<'a>(world: &'a World, options: &KubeOptions) -> Vec<&'a ApisixTls> {
    of_class((world, options), &world.apisix_tls, |tls| &tls.spec.ingress_class_name)
}

/// The names whose clients the oldest ApisixTls for them asks for certificates, each with the metadata of that ApisixTls: an Ingress would
/// let clients in without.
pub(in super::super) fn demanding<'a>(world: &'a World, options: &KubeOptions) -> BTreeMap<String, &'a ObjectMeta> {
    let mut oldest: BTreeMap<String, &ApisixTls> = BTreeMap::new();
    if options.adopt_apisix {
        for tls in all(world, options) {
            let names = tls.spec.hosts.iter().map(|host| host.to_ascii_lowercase()).filter(|name| is_name(name));
            names.for_each(|name| _ = oldest.entry(name).or_insert(tls));
        }
    }
    let asking = oldest.into_iter().filter(|(_, tls)| tls.spec.client.is_some());
    asking.map(|(name, tls)| (name, &tls.metadata)).collect()
}

/// Adds the certificates of all of them, and their statuses. Of several for a name, that of an Ingress counts, which has left aside the names
/// that are [`demanding`], and then the oldest.
pub(super) fn add(context: &ApisixContext, expressions: &mut Expressions, translation: &mut Translation) {
    let mut taken: BTreeSet<String> = context.taken_names.clone();
    for tls in all(context.world, context.options) {
        let mut outcome = ApisixOutcome::default();
        let names = names(tls, &taken, &mut outcome);
        let mut value = match value(context, tls, expressions) {
            Ok(value) => Some(value),
            Err(problem) => {
                outcome.add(problem);
                // Clients would get in without their certificates, by an entry for a wider name.
                tls.spec.client.is_some().then(|| json!({ "reject_handshake": true }))
            }
        };
        if let Some(value) = value.as_mut().filter(|_| !names.is_empty()) {
            value["snis"] = json!(names);
            taken.extend(names);
            let id = resource_id(&["apisixtls", &tls.metadata.namespace, &tls.metadata.name]);
            translation.resources.push(DerivedResource {
                kind: ResourceList::Ssls,
                id,
                value: value.take(),
                origin: ObjectRef::of(tls),
                beside: Vec::new(),
            });
        }
        translation.statuses.push(outcome.status(tls, &tls.status.conditions));
    }
}

/// The names that no other object has.
fn names(tls: &ApisixTls, taken: &BTreeSet<String>, outcome: &mut ApisixOutcome) -> Vec<String> {
    let mut names = Vec::new();
    if tls.spec.hosts.is_empty() {
        outcome.add(ApisixProblem::Spec("hosts: is empty".to_owned()));
    }
    for (index, host) in tls.spec.hosts.iter().enumerate() {
        let name = host.to_ascii_lowercase();
        if !is_name(&name) {
            let problem = format!("hosts[{index}]: `{host}` is no name such as `a.example` or `*.a.example`");
            outcome.add(ApisixProblem::Spec(problem));
        } else if taken.contains(&name) {
            let problem = format!("hosts[{index}]: another object has a certificate for `{host}`, which counts");
            outcome.add(ApisixProblem::Conflict(problem));
        } else if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn is_name(name: &str) -> bool {
    name == "*" || is_host(name)
}

fn value(context: &ApisixContext, tls: &ApisixTls, expressions: &mut Expressions) -> Result<Value, ApisixProblem> {
    let namespace = &*tls.metadata.namespace;
    let from = (Kind::ApisixTls, namespace);
    let (cert, key) = key_pair(context, from, &tls.spec.secret).map_err(|problem| problem.at("secret"))?;
    let mut value = json!({ "cert": cert, "key": key });
    if let Some(client) = &tls.spec.client {
        let ca = authorities(context, from, &client.ca_secret).map_err(|problem| problem.at("client.caSecret"))?;
        value["client"] = json!({ "ca": ca });
        if let Some(depth) = client.depth {
            let depth = within("client.depth", depth, (0, MOST_DEPTH)).map_err(ApisixProblem::Spec)?;
            value["client"]["depth"] = depth.into();
        }
        for pattern in &client.skip_mtls_uri_regex {
            let checked = expressions.check(namespace, pattern);
            checked.map_err(|problem| ApisixProblem::Spec(format!("client.skip_mtls_uri_regex: {problem}")))?;
        }
        if !client.skip_mtls_uri_regex.is_empty() {
            value["client"]["skip_mtls_uri_regex"] = json!(client.skip_mtls_uri_regex);
        }
    }
    check_texts(&value)?;
    Ok(value)
}
