//! `/weir/v1/environments`: other nodes, in what their resources differ from those of this one, and changes that make them equal.
//!
//! The node asks the other nodes, with keys that no browser gets. Secrets are not compared, and masked for every role.

mod client;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};
use tokio::time::timeout;
use weir_client::HttpClient;

use super::answer::{self, AdminResponse, Refused, json_of, refuse};
use super::audit::AuditedPromotion;
use super::context::AdminContext;
use super::difference::members_of_shown;
use super::file_mode::mask_variables;
use super::hubs::no_such_path;
use super::redact::redact;
use super::request::AdminRequest;
use super::resources::{PIECE, pause};
use crate::document::{AdminEnvironment, AdminRole, UNREADABLE};
use crate::stores::file_resources::ResourcePlace;
use crate::stores::resources::{ResourceKey, ResourceSet};
use client::{EnvironmentClient, EnvironmentFault, EnvironmentResources};

/// How long a comparison or a change waits for another one with the same environment.
const LONGEST_TURN: Duration = Duration::from_secs(10);
/// The most resources of a difference that are listed.
const MOST_LISTED: usize = 1_000;
/// The most bytes of their members. Of further ones, only the keys are listed.
const MOST_MEMBERS: usize = 4 << 20;
/// The most resources that are promoted at once.
const MOST_KEYS: usize = 1_000;
/// The most bytes of them.
const MOST_SENT: usize = 16 << 20;

/// The other environments of a node, and the client that asks them.
pub struct EnvironmentParts {
    pub settings: Vec<AdminEnvironment>,
    pub client: HttpClient,
}

/// What answers requests about other environments.
pub(super) struct Environments {
    list: Vec<AdminEnvironment>,
    client: HttpClient,
    /// One for each environment: it is compared or changed once at a time, and delays no other one.
    turns: Vec<Semaphore>,
    /// What all of them said last, and when. Requests that wait for it share it.
    states: Mutex<Option<(Instant, Vec<Value>)>>,
    /// Tells this process from others, in whose revisions of files the same numbers mean other resources.
    process: String,
    /// What this node is called in the history of others.
    node: String,
}

impl Environments {
    pub(super) fn new(parts: EnvironmentParts, node: String) -> Environments {
        let EnvironmentParts { settings, client } = parts;
        let turns = settings.iter().map(|_| Semaphore::new(1)).collect();
        let process = format!("{:016x}", rand::random::<u64>());
        Environments { list: settings, client, turns, states: Mutex::new(None), process, node }
    }

    /// The right to compare or to change an environment, for a client that is still there.
    async fn turn(
        &self,
        environment: &AdminEnvironment,
        request: &AdminRequest,
    ) -> Refused<Option<SemaphorePermit<'_>>> {
        let Some(index) = self.list.iter().position(|one| one.name == environment.name) else { return Ok(None) };
        let Ok(turn) = timeout(LONGEST_TURN, self.turns[index].acquire()).await else {
            let problem = "another comparison or change with this environment takes long; try again later";
            return Err(Box::new(json_of(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error_msg": problem }))));
        };
        pause(request).await?;
        // The semaphore is never closed.
        Ok(turn.ok())
    }

    /// The revision of this node, by which a promotion says what was compared.
    fn own_revision(&self, context: &AdminContext, revision: u64) -> Value {
        match context.files {
            // It counts from the start of the process.
            Some(_) => format!("{revision}-{}", self.process).into(),
            None => revision.into(),
        }
    }

    fn client<'e>(&'e self, environment: &'e AdminEnvironment) -> EnvironmentClient<'e> {
        EnvironmentClient { environment, client: &self.client }
    }

    fn find(&self, name: &str) -> Refused<&AdminEnvironment> {
        self.list.iter().find(|one| *one.name == *name).ok_or_else(|| {
            let problem = "`admin.environments` has no environment of this name";
            Box::new(json_of(StatusCode::NOT_FOUND, &json!({ "error_msg": problem })))
        })
    }
}

/// Responds to requests below `/environments`.
pub(super) async fn answer(
    context: &AdminContext,
    environments: Option<&Environments>,
    request: &AdminRequest,
    path: &[&str],
) -> Refused<AdminResponse> {
    request.caller.needs_all("the comparison with other environments")?;
    let Some(own) = environments else {
        let problem = "this node knows no other environments; configure `admin.environments`";
        return Ok(json_of(StatusCode::NOT_FOUND, &json!({ "error_msg": problem })));
    };
    match (path, &request.method) {
        ([], &Method::GET) => Ok(states(own, request).await),
        ([name], &Method::GET) => compare(context, own, request, own.find(name)?).await,
        ([name, "promote"], &Method::POST) => promote(context, own, request, own.find(name)?).await,
        ([] | [_], method) => Ok(answer::other_method(method, "GET")),
        ([_, "promote"], method) => Ok(answer::other_method(method, "POST")),
        _ => Ok(no_such_path()),
    }
}

/// All environments, with what they say about themselves. They are asked once at a time.
async fn states(own: &Environments, request: &AdminRequest) -> AdminResponse {
    let begun = Instant::now();
    let mut states = own.states.lock().await;
    let told = match &*states {
        Some((at, told)) if *at > begun => told.clone(),
        _ => {
            let asked = own.list.iter().map(|environment| async move {
                match own.client(environment).state().await {
                    Ok(state) => json!({ "state": state }),
                    Err(fault) => json!({ "state": null, "error_msg": fault.problem }),
                }
            });
            states.insert((Instant::now(), join_all(asked).await)).1.clone()
        }
    };
    drop(states);
    let list = own.list.iter().zip(told).map(|(environment, mut told)| {
        told["name"] = (*environment.name).into();
        told["url"] = (*environment.url).into();
        told["can_promote"] = may_promote(environment, request).into();
        told
    });
    json_of(StatusCode::OK, &json!({ "list": list.collect::<Vec<_>>() }))
}

fn may_promote(environment: &AdminEnvironment, request: &AdminRequest) -> bool {
    environment.promote && request.caller.role == AdminRole::Admin
}

/// What promoting all differing resources would change in an environment.
async fn compare(
    context: &AdminContext,
    own: &Environments,
    request: &AdminRequest,
    environment: &AdminEnvironment,
) -> Refused<AdminResponse> {
    let _turn = own.turn(environment, request).await?;
    let EnvironmentResources { revision, all: theirs } = own.client(environment).resources().await.map_err(refused)?;
    let set = context.live.committed();
    let places = context.files.as_ref().map(|files| files.places());
    let keys: BTreeSet<&ResourceKey> =
        set.all.keys().filter(|key| key.consumer_of_credential().is_none()).chain(theirs.keys()).collect();
    let credentials = credentials(set.all.keys());
    let (mut equal, mut differing, mut bytes, mut list) = (0, 0, 0, Vec::new());
    for (index, key) in keys.into_iter().enumerate() {
        if index % PIECE == 0 {
            pause(request).await?;
        }
        let place = places.as_ref().and_then(|places| places.get(key));
        let value = |text: &str| comparable(key, serde_json::from_str(text).unwrap_or_default(), place);
        let before = theirs.get(key).map(|text| value(text));
        let after = set.all.get(key).map(|resource| value(&resource.json));
        if before == after {
            equal += 1;
            continue;
        }
        differing += 1;
        if list.len() == MOST_LISTED {
            continue;
        }
        let (mut told, members) = difference(key, (before.as_ref(), after.as_ref()), &credentials);
        bytes += members.to_string().len();
        if bytes <= MOST_MEMBERS {
            told["members"] = members;
        }
        list.push(told);
    }
    Ok(json_of(
        StatusCode::OK,
        &json!({
            "name": environment.name,
            "revision": revision,
            "own_revision": own.own_revision(context, set.revision),
            "equal": equal,
            "differing": differing,
            "more": differing - list.len(),
            "can_promote": may_promote(environment, request),
            "list": list,
        }),
    ))
}

/// A resource as it is compared: without secrets, and without what nodes add.
fn comparable(key: &ResourceKey, mut value: Value, place: Option<&ResourcePlace>) -> Value {
    redact(key.list(), &mut value, AdminRole::Viewer);
    if let Some(place) = place {
        mask_variables(&mut value, place, AdminRole::Viewer);
    }
    if let Value::Object(members) = &mut value {
        for name in ["id", "create_time", "update_time"] {
            members.shift_remove(name);
        }
    }
    value
}

/// How a resource differs, and the members that do.
fn difference(
    key: &ResourceKey,
    (before, after): (Option<&Value>, Option<&Value>),
    credentials: &BTreeMap<&str, usize>,
) -> (Value, Value) {
    let action = match (before, after) {
        (None, _) => "created",
        (_, None) => "deleted",
        _ => "changed",
    };
    let mut told = json!({ "key": key, "action": action });
    if key.list() == "consumers"
        && let Some(number) = credentials.get(key.id())
    {
        told["credentials"] = (*number).into();
    }
    (told, members_of_shown(before, after).into())
}

/// The number of credentials of each consumer that has some. They are neither compared nor promoted.
fn credentials<'k>(keys: impl Iterator<Item = &'k ResourceKey>) -> BTreeMap<&'k str, usize> {
    let mut numbers = BTreeMap::new();
    for consumer in keys.filter_map(ResourceKey::consumer_of_credential) {
        *numbers.entry(consumer).or_default() += 1;
    }
    numbers
}

fn refused(fault: EnvironmentFault) -> Box<AdminResponse> {
    let EnvironmentFault { status, problem, diagnostics, .. } = fault;
    let mut body = json!({ "error_msg": problem });
    if !diagnostics.is_empty() {
        body["diagnostics"] = diagnostics.into();
    }
    Box::new(json_of(status, &body))
}

/// Makes resources of an environment those of this node: `{"keys": ["routes/r1"], "own_revision": 7, "if_revision": 12}`. A resource that
/// this node does not have is deleted there.
async fn promote(
    context: &AdminContext,
    own: &Environments,
    request: &AdminRequest,
    environment: &AdminEnvironment,
) -> Refused<AdminResponse> {
    if !may_promote(environment, request) {
        let problem =
            "this environment is only compared; `promote: true` in `admin.environments` allows admins to change it";
        return refuse_with(StatusCode::FORBIDDEN, problem);
    }
    let body = request.json()?.unwrap_or_default();
    let keys = wanted(&body["keys"])?;
    // Also of one that is refused, or of which is not known whether it was made.
    let mut answer =
        promoted(context, own, request, (environment, &keys, &body)).await.unwrap_or_else(|refusal| *refusal);
    let keys = keys.iter().map(ToString::to_string).collect();
    answer.extensions_mut().insert(AuditedPromotion { environment: environment.name.to_string(), keys });
    Ok(answer)
}

fn refuse_with<T>(status: StatusCode, problem: &str) -> Refused<T> {
    Err(Box::new(json_of(status, &json!({ "error_msg": problem }))))
}

async fn promoted(
    context: &AdminContext,
    own: &Environments,
    request: &AdminRequest,
    (environment, keys, body): (&AdminEnvironment, &[ResourceKey], &Value),
) -> Refused<AdminResponse> {
    let (seen, Some(there)) = (&body["own_revision"], body["if_revision"].as_u64()) else {
        return refuse("`if_revision` must be the revision of the environment, as the comparison tells it");
    };
    if !(seen.is_u64() || seen.is_string()) {
        return refuse("`own_revision` must be the revision of this node, as the comparison tells it");
    }
    let _turn = own.turn(environment, request).await?;
    let set = context.live.committed();
    let now = own.own_revision(context, set.revision);
    if *seen != now {
        let problem = format!("this node is at revision {now} now, not at {seen}; compare again");
        return refuse_with(StatusCode::PRECONDITION_FAILED, &problem);
    }
    let operations = operations(context, &set, keys)?;
    let mut message = format!("promoted by {} from {}, revision {}", request.caller.name, own.node, set.revision);
    let more = request.author().message;
    if !more.is_empty() {
        message.push_str(": ");
        message.push_str(&more);
    }
    let transaction = json!({ "operations": operations, "if_revision": there, "message": message });
    let dry_run = request.query.is_true("dry_run");
    let told = own.client(environment).change(&transaction, dry_run).await.map_err(refused)?;
    Ok(json_of(StatusCode::OK, &told))
}

/// What makes resources elsewhere as they are here.
fn operations(context: &AdminContext, set: &ResourceSet, keys: &[ResourceKey]) -> Refused<Vec<Value>> {
    let places = context.files.as_ref().map(|files| files.places());
    let (mut operations, mut bytes) = (Vec::with_capacity(keys.len()), 0);
    for key in keys {
        let place = places.as_ref().and_then(|places| places.get(key));
        let Some(resource) = set.all.get(key) else {
            operations.push(json!({ "delete": key }));
            continue;
        };
        let problem = if place.is_some_and(|place| !place.variables.is_empty()) {
            "has texts that come from variables of this node, which are others elsewhere; change it there"
        } else if resource.expires_ms.is_some() {
            "expires here, and would not do so there; create it there with `ttl`"
        } else if resource.json.contains(UNREADABLE) {
            "has a secret that no key of this node decrypts; write the secret again, or change it there"
        } else {
            bytes += resource.json.len();
            operations.push(json!({ "put": key, "value": without_times(resource.value()) }));
            continue;
        };
        return refuse_with(StatusCode::CONFLICT, &format!("{key} {problem}"));
    }
    if bytes > MOST_SENT {
        let problem = format!("the resources have more than {} MiB; promote fewer at once", MOST_SENT >> 20);
        return refuse_with(StatusCode::PAYLOAD_TOO_LARGE, &problem);
    }
    Ok(operations)
}

fn without_times(mut value: Value) -> Value {
    if let Value::Object(members) = &mut value {
        members.shift_remove("create_time");
        members.shift_remove("update_time");
    }
    value
}

/// The keys of resources to be promoted.
fn wanted(list: &Value) -> Refused<Vec<ResourceKey>> {
    let texts: Option<Vec<&str>> = list.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
    let Some(texts) = texts.filter(|texts| !texts.is_empty() && texts.len() <= MOST_KEYS) else {
        return refuse(format!("`keys` must be a list of 1 to {MOST_KEYS} keys such as `routes/r1`"));
    };
    let key = |text: &&str| ResourceKey::parse(text).filter(|key| key.consumer_of_credential().is_none());
    match texts.iter().find(|text| key(text).is_none()) {
        Some(wrong) => refuse(format!("`{wrong}` is not the key of a resource that is compared")),
        None => Ok(texts.iter().filter_map(key).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::MASK;

    #[test]
    fn additions_of_nodes_and_secrets_make_no_difference() {
        let key = ResourceKey::new("consumers", "jack");
        let of = |secret: &str, time: u64| json!({ "id": "jack", "username": "jack", "update_time": time, "plugins": { "key-auth": { "key": secret } } });
        let [one, other] = [of("a", 1), of("b", 2)].map(|value| comparable(&key, value, None));
        assert_eq!(one, json!({ "username": "jack", "plugins": { "key-auth": { "key": MASK } } }));
        assert!(members_of_shown(Some(&one), Some(&other)).is_empty());
    }

    #[test]
    fn credentials_are_counted_for_each_consumer() {
        let keys = ["consumers/a", "consumers/a/credentials/1", "consumers/a/credentials/2", "routes/a"]
            .map(|key| ResourceKey::parse(key).expect("a key"));
        assert_eq!(credentials(keys.iter()), BTreeMap::from([("a", 2)]));
    }

    #[test]
    fn keys_of_resources_are_promoted_and_no_others() {
        assert_eq!(wanted(&json!(["routes/r1", "secrets/vault/1"])).map(|keys| keys.len()).ok(), Some(2));
        for wrong in [json!(null), json!([]), json!([1]), json!(["r1"]), json!(["consumers/a/credentials/b"])] {
            assert!(wanted(&wrong).is_err(), "{wrong}");
        }
        let many: Vec<String> = (0..=MOST_KEYS).map(|number| format!("routes/{number}")).collect();
        assert!(wanted(&json!(many)).is_err());
    }
}
