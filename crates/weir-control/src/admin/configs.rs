//! `/apisix/admin/configs`: many resources at once. PATCH is a transaction; GET, HEAD and PUT are those of API-driven standalone
//! mode, where one request replaces the whole configuration.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Method, StatusCode};
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

use super::answer::{self, AdminResponse, Refused, json_of, refuse, text};
use super::context::{AdminContext, StandaloneState};
use super::difference::difference;
use super::dry_run;
use super::kinds;
use super::plans::now_seconds;
use super::redact::{redact, unmask};
use super::references::id_text;
use super::request::AdminRequest;
use super::scopes::within;
use super::transaction::Transaction;
use super::validate;
use crate::document::{AdminRole, RESOURCE_LISTS};
use crate::stores::live::ResourceEdit;
use crate::stores::resources::{ResourceKey, ResourceView};
use crate::stores::writes::{PlanRefusal, WriteOutcome, WriteReceipt, WriteRequest};

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
            let problem = json!({ "error_msg": "Unsupported resource type: configs" });
            Ok(json_of(StatusCode::NOT_FOUND, &problem))
        }
        (Some(state), &Method::GET) => Ok(whole(&*state.lock().await, request)),
        (Some(state), &Method::HEAD) => {
            let mut answer = text(StatusCode::OK, "");
            mark(&mut answer, &*state.lock().await);
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
    let dry_run = request.query.is_true("dry_run");
    if request.query.is_true("force") {
        request.caller.needs_all("`force=true`, which affects resources of others,")?;
    }
    let plan = within(&request.caller, Box::new(move |view| transaction.plan(view)));
    let requests = dry_run::requests(request, body.get("requests"))?;
    let write = WriteRequest { plan, author, forced: request.query.is_true("force"), dry_run, requests };
    Ok(match context.writer.write(write).await {
        WriteOutcome::Applied(receipt) if dry_run => dry_run::tried(request, &receipt),
        WriteOutcome::Applied(receipt) => {
            let answer = changed(&receipt, request);
            context.after_wait(request, &receipt, answer).await
        }
        WriteOutcome::Refused(refusal) => answer::refused(&refusal),
        WriteOutcome::Invalid(diagnostics) => answer::invalid(&diagnostics),
        WriteOutcome::Failed(failure) => answer::failed(&failure),
    })
}

fn changed(receipt: &WriteReceipt, request: &AdminRequest) -> AdminResponse {
    let record = &receipt.record;
    let changes: Vec<Value> = record.changes.iter().map(|change| difference(change, request.caller.role)).collect();
    let mut answer = json_of(StatusCode::OK, &json!({ "revision": record.revision, "changes": changes }));
    answer::at_revision(&mut answer, record.revision);
    answer
}

/// The configuration as it was sent, with its versions. An admin, who sends it, gets it whole; others get no secret that other end
/// points do not show them.
fn whole(state: &StandaloneState, request: &AdminRequest) -> AdminResponse {
    let mut body = Map::new();
    let role = request.caller.role;
    for (list, items) in &state.lists {
        let mut items = items.clone();
        if role != AdminRole::Admin {
            items.as_array_mut().into_iter().flatten().for_each(|item| redact(list, item, role));
        }
        body.insert((*list).to_owned(), items);
    }
    for list in versioned_lists() {
        let version = state.versions.get(list).copied().unwrap_or_default();
        body.insert(format!("{list}_conf_version"), version.into());
    }
    if let Some(digest) = &state.digest {
        body.insert("X-Last-Modified".to_owned(), state.last_modified.into());
        body.insert("X-Digest".to_owned(), digest.as_str().into());
    }
    let mut answer = json_of(StatusCode::OK, &Value::Object(body));
    mark(&mut answer, state);
    let accepted = request.headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    if accepted.is_some_and(|accepted| accepted.starts_with("application/yaml")) {
        // JSON is valid YAML.
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
    }
    answer
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

async fn replace(
    context: &AdminContext,
    request: &AdminRequest,
    state: &Mutex<StandaloneState>,
) -> Refused<AdminResponse> {
    let Some(digest) = request.headers.get(DIGEST).and_then(|value| value.to_str().ok()) else {
        return refuse("missing digest header");
    };
    let lists = validate::body(request)?;
    let mut state = state.lock().await;
    if state.digest.as_deref() == Some(digest) {
        let mut answer = text(StatusCode::NO_CONTENT, Bytes::new());
        answer.headers_mut().remove(CONTENT_TYPE);
        return Ok(answer);
    }
    if let Some(error) = validate::errors(context, &lists).first() {
        return refuse(error.problem.clone());
    }
    let mut next = next_state(&state, &lists)?;
    let wanted = resources_of(&next.lists)?;
    let plan = within(&request.caller, Box::new(move |view| Ok(edits(view, &wanted))));
    let (dry_run, requests) = (request.query.is_true("dry_run"), dry_run::requests(request, None)?);
    let write = WriteRequest { plan, author: request.author(), forced: false, dry_run, requests };
    let receipt = match context.writer.write(write).await {
        WriteOutcome::Applied(receipt) if dry_run => return Ok(dry_run::tried(request, &receipt)),
        WriteOutcome::Applied(receipt) => receipt,
        WriteOutcome::Refused(refusal) => return Ok(answer::refused(&refusal)),
        WriteOutcome::Invalid(diagnostics) => return Ok(answer::invalid(&diagnostics)),
        WriteOutcome::Failed(failure) => return Ok(answer::failed(&failure)),
    };
    next.digest = Some(digest.to_owned());
    // Increases with each change, even within one second.
    next.last_modified = now_seconds().max(state.last_modified + 1);
    *state = next;
    // With `?wait=`, all workers serve the change when the response is sent; APISIX has status 200 for that.
    let status = if request.query.get("wait").is_some() { StatusCode::OK } else { StatusCode::ACCEPTED };
    let mut answer = text(status, "");
    mark(&mut answer, &state);
    Ok(context.after_wait(request, &receipt, answer).await)
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
        match *list {
            "stream_routes" => return refuse(kinds::NO_STREAM_ROUTES),
            "protos" if items.as_array().is_some_and(|items| !items.is_empty()) => return refuse(kinds::NO_PROTOS),
            PLUGINS => return refuse("the list `plugins` belongs in the configuration file of the node; leave it out"),
            _ => {}
        }
        for (index, item) in items.as_array().into_iter().flatten().enumerate() {
            let own = item.get("id").and_then(id_text);
            let name = item.get("username").and_then(id_text).filter(|_| *list == "consumers");
            let id = name.or(own).unwrap_or_else(|| format!("arr_{}", index + 1));
            let mut item = item.clone();
            validate::without_index(&mut item);
            // The whole configuration is sent, with its secrets.
            if let Err(PlanRefusal::Wrong(problem)) = unmask(list, &mut item, None) {
                return refuse(format!("{list}[{index}]: {problem}"));
            }
            wanted.insert(ResourceKey::new(list, &id), item);
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
