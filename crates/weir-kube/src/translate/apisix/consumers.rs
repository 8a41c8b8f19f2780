//! ApisixConsumers.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::outcomes::ApisixProblem;
use super::secrets::{self, check_texts};
use super::{ApisixContext, Outcome, own};
use crate::objects::ObjectRef;
use crate::objects::apisix::{ApisixAuthParameter, ApisixConsumer, ApisixCredential};
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

/// Adds all of them, and their statuses. Of several with the same credential, the oldest has it.
pub(super) fn add(context: &ApisixContext, translation: &mut Translation) {
    let mut taken = BTreeSet::new();
    for consumer in own(context, &context.world.apisix_consumers, |consumer| &consumer.spec.ingress_class_name) {
        let mut outcome = Outcome::default();
        match resource(context, consumer, &mut taken) {
            Ok(resource) => translation.resources.push(resource),
            Err(problem) => outcome.add(problem),
        }
        translation.statuses.push(outcome.status(consumer, &consumer.status.conditions));
    }
}

fn resource(
    context: &ApisixContext,
    consumer: &ApisixConsumer,
    taken: &mut BTreeSet<(&'static str, String)>,
) -> Result<DerivedResource, ApisixProblem> {
    let metadata = &consumer.metadata;
    let username = format!("{}_{}", metadata.namespace, metadata.name);
    if username.len() > LONGEST_NAME || username.contains('.') {
        let problem = format!(
            "metadata.name: `{username}` cannot be the name of a consumer: at most {LONGEST_NAME} letters, digits, `_` and `-`"
        );
        return Err(ApisixProblem::Spec(problem));
    }
    let (plugin, credential) = chosen(&consumer.spec.auth_parameter)?;
    let place = format!("authParameter of {plugin}");
    let options = options(context, &metadata.namespace, plugin, credential).map_err(|problem| problem.at(&place))?;
    let key = context.options.plugins.credential(plugin, &options);
    let key = key.map_err(|problem| ApisixProblem::Spec(problem).at(&place))?;
    if !taken.insert((plugin, key)) {
        let problem = "an older consumer has the same credential, and keeps it".to_owned();
        return Err(ApisixProblem::Conflict(problem).at(&place));
    }
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

fn options(
    context: &ApisixContext,
    namespace: &str,
    plugin: &str,
    credential: &ApisixCredential,
) -> Result<Value, ApisixProblem> {
    let written = match (&credential.value, &credential.secret_ref) {
        (Some(value), _) => value.clone(),
        (None, Some(reference)) => typed(secrets::values(context, namespace, &reference.name)?),
        (None, None) => {
            return Err(ApisixProblem::Spec("has neither `value` nor `secretRef`".to_owned()));
        }
    };
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
    Ok(options)
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
