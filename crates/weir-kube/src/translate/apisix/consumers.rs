//! ApisixConsumers.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::outcomes::ApisixProblem;
use super::secrets::{self, check_texts};
use super::{ApisixContext, ApisixOutcome, own};
use crate::objects::ObjectRef;
use crate::objects::apisix::{ApisixAuthParameter, ApisixConsumer, ApisixCredential};
use crate::objects::meta::ObjectMeta;
use crate::translation::{DerivedResource, ResourceList, Translation};

/// The longest name of a consumer, in bytes.
const LONGEST_NAME: usize = 256;
/// Options of credentials that current versions of APISIX read no more, or that are for signing.
const LEFT_OUT: [&str; 9] = [
    "access_key",
    "algorithm",
    "clock_skew",
    "encode_uri_params",
    "keep_headers",
    "max_req_body",
    "private_key",
    "signed_headers",
    "validate_request_body",
];

/// What consumers have that no other one can have.
#[derive(Default)]
pub(super) struct TakenIdentities {
    pub names: BTreeSet<String>,
    pub credentials: TakenCredentials,
}

/// Adds all of them, and their statuses. Of several with the same credential, the oldest has it.
pub(super) fn add(context: &ApisixContext, translation: &mut Translation) -> TakenIdentities {
    let mut taken = TakenIdentities::default();
    for consumer in own(context, &context.world.apisix_consumers, |consumer| &consumer.spec.ingress_class_name) {
        let mut outcome = ApisixOutcome::default();
        match resource(context, consumer, &mut taken.credentials) {
            Ok(resource) => {
                taken.names.insert(resource.id.clone());
                translation.resources.push(resource);
            }
            Err(problem) => outcome.add(problem),
        }
        translation.statuses.push(outcome.status(consumer, &consumer.status.conditions));
    }
    taken
}

fn resource(
    context: &ApisixContext,
    consumer: &ApisixConsumer,
    taken: &mut TakenCredentials,
) -> Result<DerivedResource, ApisixProblem> {
    let metadata = &consumer.metadata;
    let username = username(metadata)?;
    let (plugin, credential) = chosen(&consumer.spec.auth_parameter)?;
    let place = format!("authParameter of {plugin}");
    let written = match (&credential.value, &credential.secret_ref) {
        (Some(value), _) => value.clone(),
        (None, Some(reference)) => {
            of_secret(context, &metadata.namespace, &reference.name).map_err(|problem| problem.at(&place))?
        }
        (None, None) => {
            return Err(ApisixProblem::Spec("has neither `value` nor `secretRef`".to_owned()).at(&place));
        }
    };
    let options = proved(context, plugin, &written, taken).map_err(|problem| problem.at(&place))?;
    Ok(DerivedResource {
        kind: ResourceList::Consumers,
        value: json!({ "username": username, "plugins": { plugin: options } }),
        id: username,
        origin: ObjectRef::of(consumer),
        beside: Vec::new(),
    })
}

/// The auth plugin of a consumer.
fn chosen(parameter: &ApisixAuthParameter) -> Result<(&'static str, &ApisixCredential), ApisixProblem> {
    let ways = [
        ("key-auth", &parameter.key_auth),
        ("basic-auth", &parameter.basic_auth),
        ("jwt-auth", &parameter.jwt_auth),
        ("wolf-rbac", &parameter.wolf_rbac),
        ("hmac-auth", &parameter.hmac_auth),
        ("ldap-auth", &parameter.ldap_auth),
    ];
    let found = ways.into_iter().find_map(|(plugin, credential)| Some((plugin, credential.as_ref()?)));
    match found {
        Some(("wolf-rbac", _)) => Err(ApisixProblem::Spec("authParameter.wolfRBAC: is not supported".to_owned())),
        Some(found) => Ok(found),
        None => Err(ApisixProblem::Spec(
            "authParameter: has none of keyAuth, basicAuth, jwtAuth, hmacAuth and ldapAuth".to_owned(),
        )),
    }
}

/// The credentials that consumers have: an auth plugin, and what identifies one there.
pub(super) type TakenCredentials = BTreeSet<(String, String)>;

/// The name of the consumer that an object stands for.
///
/// # Errors
/// If a consumer cannot have it.
pub(super) fn username(metadata: &ObjectMeta) -> Result<String, ApisixProblem> {
    let username = format!("{}_{}", metadata.namespace, metadata.name);
    if username.len() > LONGEST_NAME || username.contains('.') {
        let problem = format!(
            "metadata.name: `{username}` cannot be the name of a consumer: at most {LONGEST_NAME} letters, digits, `_` and `-`"
        );
        return Err(ApisixProblem::Spec(problem));
    }
    Ok(username)
}

/// The options of an auth plugin for a consumer, as they are used. No other consumer can have them then.
///
/// # Errors
/// Why no consumer, or not this one, can have them.
pub(super) fn proved(
    context: &ApisixContext,
    plugin: &str,
    written: &Map<String, Value>,
    taken: &mut TakenCredentials,
) -> Result<Value, ApisixProblem> {
    let mut options = written.clone();
    options.retain(|name, value| {
        let is_kept = !LEFT_OUT.contains(&&**name) || name == "algorithm" && plugin == "jwt-auth";
        is_kept && *value != "" && !(name == "exp" && *value == 0)
    });
    // The older name of the option.
    if let (true, false, Some(key)) = (plugin == "hmac-auth", options.contains_key("key_id"), written.get("access_key"))
    {
        options.insert("key_id".to_owned(), key.clone());
    }
    let options = Value::Object(options);
    check_texts(&options)?;
    let key = context.options.plugins.credential(plugin, &options).map_err(ApisixProblem::Spec)?;
    match taken.insert((plugin.to_owned(), key)) {
        true => Ok(options),
        false => Err(ApisixProblem::Conflict("an older consumer has the same credential, and keeps it".to_owned())),
    }
}

/// The options that a Secret has.
///
/// # Errors
/// Why there are none.
pub(super) fn of_secret(
    context: &ApisixContext,
    namespace: &str,
    name: &str,
) -> Result<Map<String, Value>, ApisixProblem> {
    Ok(typed(secrets::values(context, namespace, name)?))
}

/// The values of a Secret are texts.
fn typed(mut values: Map<String, Value>) -> Map<String, Value> {
    for (name, value) in &mut values {
        let text = value.as_str().unwrap_or_default().trim_end_matches('\n').to_owned();
        *value = match &**name {
            "base64_secret" => (text == "true").into(),
            "exp" | "lifetime_grace_period" => text.parse::<u64>().map_or(Value::from(text), Value::from),
            _ => text.into(),
        };
    }
    values
}
