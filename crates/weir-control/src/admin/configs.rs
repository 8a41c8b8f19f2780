//! `/apisix/admin/configs`: many resources at once. PATCH is a transaction; GET, HEAD and PUT are those of API-driven standalone
//! mode, where one request replaces the whole configuration.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Method, StatusCode};
use serde_json::{Map, Value, json};

use super::answer::{self, AdminResponse, Refused, json_of, refuse, text};
use super::context::{AdminContext, StandaloneResources, StandaloneState, WantedChange};
use super::difference::difference;
use super::dry_run;
use super::host::take_room;
use super::plans::now_seconds;
use super::redact::{redact, unmask};
use super::request::AdminRequest;
use super::resources::{PIECE, pause};
use super::scopes::within;
use super::sent_lists::{self, key_of};
use super::transaction::Transaction;
use crate::document::{AdminRole, RESOURCE_LISTS};
use crate::stores::live::ResourceEdit;
use crate::stores::resources::{ResourceKey, ResourceView};
use crate::stores::writes::{Plan, PlanRefusal, WriteReceipt};

const DIGEST: HeaderName = HeaderName::from_static("x-digest");
const LAST_MODIFIED: HeaderName = HeaderName::from_static("x-last-modified");

/// The list of plugins, which has a version as well.
const PLUGINS: &str = "plugins";

pub(super) async fn answer(context: &AdminContext, request: &AdminRequest) -> Refused<AdminResponse> {
    if context.standalone.is_some() {
        request.caller.needs_all("the configuration as a whole")?;
    }
    match (&context.standalone, &request.method) {
        (None, &Method::PATCH) => transaction(context, request).await,
        (None, _) => {
            let description = "only a node with `store: standalone` takes its resources as a whole; here, PATCH changes many of them in one \
                               transaction, and `weir store import` replaces all while no node runs";
            let problem = json!({ "error_msg": "Unsupported resource type: configs", "description": description });
            Ok(json_of(StatusCode::NOT_FOUND, &problem))
        }
        (Some(state), &Method::GET) => whole(&state.current(), request).await,
        (Some(state), &Method::HEAD) => {
            let mut answer = text(StatusCode::OK, "");
            mark(&mut answer, &state.current());
            Ok(answer)
        }
        (Some(state), &Method::PUT) => replace(context, request, state).await,
        (Some(_), _) => Ok(answer::not_found()),
    }
}

async fn transaction(context: &AdminContext, request: &AdminRequest) -> Refused<AdminResponse> {
    let Some(body) = request.json()? else { return refuse("missing configurations") };
    let transaction = Transaction::of(&body, request)?;
    let mut author = request.author();
    author.message = transaction.message.clone().unwrap_or(author.message);
    if request.query.is_true("force") {
        request.caller.needs_all("`force=true`, which affects resources of others,")?;
    }
    let plan = within(&request.caller, transaction.keys(), Box::new(move |view| transaction.plan(view)));
    let requests = dry_run::requests(request, body.get("requests"))?;
    let wanted = WantedChange { plan, author, forced: request.query.is_true("force"), requests };
    let answered = async |receipt: WriteReceipt| {
        let answer = changed(&receipt);
        context.after_wait(request, &receipt, answer).await
    };
    Ok(context.change(request, wanted, answered).await)
}

fn changed(receipt: &WriteReceipt) -> AdminResponse {
    let record = &receipt.record;
    let changes: Vec<Value> = record.changes.iter().map(difference).collect();
    let mut body = json!({ "revision": record.revision, "changes": changes });
    answer::warn(&mut body, &receipt.warnings);
    let mut answer = json_of(StatusCode::OK, &body);
    answer::at_revision(&mut answer, record.revision);
    answer
}

/// The configuration as it was sent, with its versions. An admin, who sends it, gets it whole; others get no secret that other end
/// points do not show them.
async fn whole(state: &StandaloneState, request: &AdminRequest) -> Refused<AdminResponse> {
    let role = request.caller.role;
    let permit = take_room(&*request.host, state.bytes).await?;
    let mut body = b"{".to_vec();
    let name = |body: &mut Vec<u8>, name: &str| {
        let separator = if body.len() > 1 { "," } else { "" };
        body.extend(format!("{separator}\"{name}\":").as_bytes());
    };
    for (list, items) in &state.lists {
        name(&mut body, list);
        body.push(b'[');
        for (index, item) in items.as_array().into_iter().flatten().enumerate() {
            if index > 0 {
                body.push(b',');
            }
            let mut shown = Cow::Borrowed(item);
            if role != AdminRole::Admin {
                redact(list, shown.to_mut(), role);
            }
            body.extend(shown.to_string().as_bytes());
            if index % PIECE == 0 {
                pause(request).await?;
            }
        }
        body.push(b']');
    }
    for list in versioned_lists() {
        name(&mut body, &format!("{list}_conf_version"));
        body.extend(state.versions.get(list).copied().unwrap_or_default().to_string().as_bytes());
    }
    if let Some(digest) = &state.digest {
        name(&mut body, "X-Last-Modified");
        body.extend(state.last_modified.to_string().as_bytes());
        name(&mut body, "X-Digest");
        body.extend(Value::from(digest.as_str()).to_string().as_bytes());
    }
    body.push(b'}');
    let mut answer = permit.answer(body);
    mark(&mut answer, state);
    let accepted = request.headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    if accepted.is_some_and(|accepted| accepted.starts_with("application/yaml")) {
        // JSON is valid YAML.
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
    }
    Ok(answer)
}

fn versioned_lists() -> impl Iterator<Item = &'static str> {
    RESOURCE_LISTS.iter().copied().chain([PLUGINS])
}

fn mark(answer: &mut AdminResponse, state: &StandaloneState) {
    if let Some(digest) = state.digest.as_ref().and_then(|digest| HeaderValue::from_str(digest).ok()) {
        answer.headers_mut().insert(DIGEST, digest);
        answer.headers_mut().insert(LAST_MODIFIED, state.last_modified.into());
    }
}

/// A configuration that was sent, and the change that replaces the present one by it.
pub(super) struct WholeConfiguration {
    next: StandaloneState,
    pub(super) plan: Box<Plan>,
}

impl WholeConfiguration {
    /// Reads the lists; faults that show only with other resources and plugins are found when the change is tried.
    pub(super) fn of(state: &StandaloneState, lists: &Map<String, Value>) -> Refused<WholeConfiguration> {
        let mut next = next_state(state, lists)?;
        let wanted = resources_of(&next.lists)?;
        next.bytes = wanted.values().map(|value| value.to_string().len()).sum();
        Ok(WholeConfiguration { next, plan: Box::new(move |view| Ok(edits(view, &wanted))) })
    }
}

async fn replace(
    context: &AdminContext,
    request: &AdminRequest,
    resources: &StandaloneResources,
) -> Refused<AdminResponse> {
    let Some(digest) = request.headers.get(DIGEST).and_then(|value| value.to_str().ok()) else {
        return refuse("missing digest header");
    };
    let lists = sent_lists::body(request)?;
    let dry_run = request.query.is_true("dry_run");
    // A dry run replaces nothing, so it does not wait for other changes.
    let _replacing = if dry_run { None } else { Some(resources.replacing.lock().await) };
    let state = resources.current();
    if state.digest.as_deref() == Some(digest) {
        let mut answer = text(StatusCode::NO_CONTENT, Bytes::new());
        answer.headers_mut().remove(CONTENT_TYPE);
        return Ok(answer);
    }
    if let Some(error) = sent_lists::malformed(&lists).first() {
        return refuse(error.problem.clone());
    }
    let WholeConfiguration { mut next, plan } = WholeConfiguration::of(&state, &lists)?;
    let requests = dry_run::requests(request, None)?;
    let plan = within(&request.caller, Vec::new(), plan);
    let wanted = WantedChange { plan, author: request.author(), forced: false, requests };
    let answered = async |receipt: WriteReceipt| {
        next.digest = Some(digest.to_owned());
        // Increases with each change, even within one second.
        next.last_modified = now_seconds().max(state.last_modified + 1);
        let next = Arc::new(next);
        resources.replace(Arc::clone(&next));
        // With `?wait=`, all workers serve the change when the response is sent; APISIX has status 200 for that.
        let status = if request.query.get("wait").is_some() { StatusCode::OK } else { StatusCode::ACCEPTED };
        let mut answer = match receipt.warnings.is_empty() {
            true => text(status, ""),
            false => {
                let mut body = json!({});
                answer::warn(&mut body, &receipt.warnings);
                json_of(status, &body)
            }
        };
        mark(&mut answer, &next);
        context.after_wait(request, &receipt, answer).await
    };
    Ok(context.change(request, wanted, answered).await)
}

/// The lists and versions after this request.
fn next_state(state: &StandaloneState, sent: &Map<String, Value>) -> Refused<StandaloneState> {
    let mut next = state.clone();
    for list in versioned_lists() {
        let name = format!("{list}_conf_version");
        let stored = state.versions.get(list).copied().unwrap_or_default();
        let version = match sent.get(&name) {
            None => stored.saturating_add(1),
            Some(version) => match version.as_u64() {
                Some(version) => version,
                None => return refuse(format!("{name} must be a number")),
            },
        };
        if version < stored {
            return refuse(format!("{name} must be greater than or equal to ({stored})"));
        }
        let replaces = version > stored;
        next.versions.insert(list, version);
        match sent.get(list) {
            // An equal version means an unchanged list, whatever was sent.
            _ if !replaces => {}
            Some(items) if items.as_array().is_some_and(|items| !items.is_empty()) => {
                drop(next.lists.insert(list, items.clone()));
            }
            _ => drop(next.lists.remove(list)),
        }
    }
    Ok(next)
}

type WantedResources = BTreeMap<ResourceKey, Value>;

fn resources_of(lists: &BTreeMap<&'static str, Value>) -> Refused<WantedResources> {
    let mut wanted = BTreeMap::new();
    for (list, items) in lists {
        if *list == PLUGINS {
            return refuse("the list `plugins` belongs in the configuration file of the node; leave it out");
        }
        for (index, item) in items.as_array().into_iter().flatten().enumerate() {
            let key = key_of(list, index, item);
            let mut item = item.clone();
            sent_lists::without_index(&mut item);
            // The whole configuration is sent, with its secrets.
            if let Err(PlanRefusal::Wrong(problem)) = unmask(list, &mut item, None) {
                return refuse(format!("{list}[{index}]: {problem}"));
            }
            wanted.insert(key, item);
        }
    }
    Ok(wanted)
}

fn edits(view: &ResourceView, wanted: &WantedResources) -> Vec<ResourceEdit> {
    let lists = RESOURCE_LISTS.iter().flat_map(|list| view.list(list));
    let gone =
        lists.filter(|(key, _)| !wanted.contains_key(*key)).map(|(key, _)| ResourceEdit::Delete { key: key.clone() });
    let mut edits: Vec<ResourceEdit> = gone.collect();
    for (key, value) in wanted {
        if view.get(key).is_none_or(|stored| *stored.json != *value.to_string()) {
            edits.push(ResourceEdit::Put { key: key.clone(), value: value.clone(), expires_ms: None });
        }
    }
    edits
}
