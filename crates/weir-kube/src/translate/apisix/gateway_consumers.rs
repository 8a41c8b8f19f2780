//! Consumers (`v1alpha1`): those of the routes of a Gateway, with plugins and several credentials.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::grants::{GROUP, GrantReferent, GrantReferrer};
use super::consumers::{TakenCredentials, TakenIdentities, of_secret, proved, username};
use super::outcomes::ApisixProblem;
use super::plugins::PluginChecker;
use super::{ApisixContext, ApisixOutcome};
use crate::objects::apisix_gateway::{GatewayConsumer, GatewayCredential};
use crate::objects::{Kind, ObjectRef};
use crate::translation::{DerivedResource, ResourceList, Translation, resource_id};
use crate::world::ObjectName;

/// The auth plugins of credentials.
const TYPES: [&str; 4] = ["basic-auth", "hmac-auth", "jwt-auth", "key-auth"];

/// Adds those whose Gateway is ours, and their statuses.
pub(super) fn add(
    context: &ApisixContext,
    checker: &mut PluginChecker,
    taken: &mut TakenIdentities,
    translation: &mut Translation,
) {
    let all = context.world.gateway_consumers.values().map(|consumer| &**consumer);
    let mut ours: Vec<&GatewayConsumer> = all.filter(|consumer| is_ours(context, consumer)).collect();
    ours.sort_by(|one, other| super::super::precedence::precedence(&one.metadata, &other.metadata));
    for consumer in ours {
        let mut outcome = ApisixOutcome::default();
        match resources(context, consumer, (checker, taken), &mut outcome) {
            Ok(resources) => translation.resources.extend(resources),
            Err(problem) => outcome.add(problem),
        }
        translation.statuses.push(outcome.status(consumer, &consumer.status.conditions));
    }
}

fn is_ours(context: &ApisixContext, consumer: &GatewayConsumer) -> bool {
    let reference = &consumer.spec.gateway_ref;
    let is_gateway = reference.group.as_deref().is_none_or(|group| group == GROUP)
        && reference.kind.as_deref().is_none_or(|kind| kind == "Gateway");
    let namespace = reference.namespace.as_deref().unwrap_or(&consumer.metadata.namespace);
    let gateway = context.world.gateways.get(&ObjectName::new(namespace, &*reference.name));
    let class = gateway
        .and_then(|gateway| context.world.gateway_classes.get(&ObjectName::new("", &*gateway.spec.gateway_class_name)));
    is_gateway && class.is_some_and(|class| class.spec.controller_name == context.options.controller_name)
}

fn resources(
    context: &ApisixContext,
    consumer: &GatewayConsumer,
    (checker, taken): (&mut PluginChecker, &mut TakenIdentities),
    outcome: &mut ApisixOutcome,
) -> Result<Vec<DerivedResource>, ApisixProblem> {
    let metadata = &consumer.metadata;
    let username = username(metadata)?;
    if !taken.names.insert(username.clone()) {
        let problem = format!("an ApisixConsumer, or another Consumer, is `{username}` already");
        return Err(ApisixProblem::Conflict(problem));
    }
    let plugins = checker.list(&metadata.namespace, &consumer.spec.plugins)?;
    let resource = |id: String, value: Value| DerivedResource {
        kind: ResourceList::Consumers,
        id,
        value,
        origin: ObjectRef::of(consumer),
        beside: Vec::new(),
    };
    let mut all = vec![resource(username.clone(), json!({ "username": username, "plugins": plugins }))];
    let mut ids = BTreeSet::new();
    for (index, credential) in consumer.spec.credentials.iter().enumerate() {
        let place = format!("credentials[{index}]");
        let part =
            if credential.name.is_empty() { format!("credential-{index}") } else { resource_id(&[&credential.name]) };
        let options = match ids.insert(part.clone()) {
            true => options(context, consumer, credential, &mut taken.credentials),
            false => Err(ApisixProblem::Spec("name: another credential has it".to_owned())),
        };
        match options {
            Ok(options) => {
                let id = format!("{username}/credentials/{part}");
                let kind = &*credential.kind;
                all.push(resource(id.clone(), json!({ "id": id, "plugins": { kind: options } })));
            }
            Err(problem) => outcome.add(problem.at(&place)),
        }
    }
    Ok(all)
}

fn options(
    context: &ApisixContext,
    consumer: &GatewayConsumer,
    credential: &GatewayCredential,
    taken: &mut TakenCredentials,
) -> Result<Value, ApisixProblem> {
    if !TYPES.contains(&&*credential.kind) {
        let problem = format!("type: `{}` is none of {}", credential.kind, TYPES.join(", "));
        return Err(ApisixProblem::Spec(problem));
    }
    let written = match &credential.secret_ref {
        None => credential.config.clone(),
        Some(reference) => {
            let own = &*consumer.metadata.namespace;
            let (namespace, name) = (reference.namespace.as_deref().unwrap_or(own), &*reference.name);
            let from = GrantReferrer { group: Kind::Consumer.group(), kind: Kind::Consumer.name(), namespace: own };
            if !context.grants.permit(from, GrantReferent { group: "", kind: "Secret", namespace, name }) {
                let problem = format!("secretRef: no ReferenceGrant of the namespace `{namespace}` permits it");
                return Err(ApisixProblem::Reference(problem));
            }
            of_secret(context, namespace, name).map_err(|problem| problem.at("secretRef"))?
        }
    };
    proved(context, &credential.kind, &written, taken)
}
