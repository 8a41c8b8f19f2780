//! Requests for resources: read, list, put, post, patch, delete.

use std::sync::Arc;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::yield_now;
use weir_plugin::suggest::closest;

use super::answer::{self, AdminResponse, Refused, refuse, refuse_described};
use super::context::{AdminContext, WantedChange};
use super::dry_run;
use super::file_mode::add_place;
use super::host::take_room;
use super::keys::may_write;
use super::kinds::{self, CREDENTIAL, IdRule, ResourceKind};
use super::list::ListQuery;
use super::plans::{self, NewResource, PatchOf, Precondition};
use super::redact::redact;
use super::references::{fault_of_id, id_text};
use super::request::AdminRequest;
use super::scopes::within;
use crate::document::{RESOURCE_LISTS, is_path_step};
use crate::stores::resources::{PendingResources, ResourceKey, ResourceView, RevisionRecord, StoredResource};
use crate::stores::writes::{Plan, WriteReceipt};
use crate::text::diagnostic::Diagnostic;
use crate::text::read::shortened;

/// The prefix of keys in responses.
const PREFIX: &str = "/apisix";

/// The resource or list that a path refers to.
struct ResourceTarget {
    kind: &'static ResourceKind,
    /// The prefix of the list's keys.
    list: String,
    id: Option<String>,
    /// The path of a part of the resource.
    part: Option<String>,
}

impl ResourceTarget {
    fn of(path: &[&str]) -> Refused<ResourceTarget> {
        let Some(kind) = path.first().and_then(|list| kinds::find(list)) else {
            let name = path.first().unwrap_or(&"");
            let meant = closest(name, RESOURCE_LISTS.iter().copied()).map(|list| format!("; did you mean `{list}`?"));
            let problem = format!("Unsupported resource type: {name}{}", meant.unwrap_or_default());
            let problem = json!({ "error_msg": problem });
            return Err(Box::new(answer::json_of(StatusCode::NOT_FOUND, &problem)));
        };
        let joined = |parts: &[&str]| Some(parts.join("/")).filter(|text| !text.is_empty());
        if let ["services", _, "graphql_cost_decorations", ..] = path {
            let problem = json!({ "error_msg": "Unsupported resource type: graphql_cost_decorations" });
            return Err(Box::new(answer::json_of(StatusCode::NOT_FOUND, &problem)));
        }
        Ok(match (kind.id, path) {
            (IdRule::Username, [_, consumer, "credentials", rest @ ..]) => ResourceTarget {
                kind: &CREDENTIAL,
                list: format!("consumers/{consumer}/credentials/"),
                id: rest.first().map(|id| (*id).to_owned()),
                part: joined(rest.get(1..).unwrap_or_default()),
            },
            (IdRule::Manager, [_, manager, rest @ ..]) => ResourceTarget {
                kind,
                list: format!("secrets/{manager}/"),
                id: rest.first().map(|id| (*id).to_owned()),
                part: joined(rest.get(1..).unwrap_or_default()),
            },
            (_, [_, rest @ ..]) => ResourceTarget {
                kind,
                list: format!("{}/", kind.list),
                id: rest.first().map(|id| (*id).to_owned()),
                part: joined(rest.get(1..).unwrap_or_default()),
            },
            (_, []) => unreachable!("a path without a first part has been refused"),
        })
    }

    fn key(&self, id: &str) -> Option<ResourceKey> {
        ResourceKey::parse(&format!("{}{id}", self.list))
    }

    fn required(&self) -> Refused<ResourceKey> {
        match self.id.as_ref().and_then(|id| self.key(id)) {
            Some(key) => Ok(key),
            None => refuse(format!("missing {} id", self.kind.name)),
        }
    }

    /// The key from the path, or from the body.
    fn key_of_put(&self, value: &Value) -> Refused<ResourceKey> {
        if let Some(problem) = fault_of_id(value) {
            let fault = Diagnostic::of_source(&Arc::from("request"), problem);
            return Err(Box::new(answer::invalid(&[Diagnostic { path: "id".to_owned(), ..fault }])));
        }
        let name = self.kind.name;
        let member = if self.kind.id == IdRule::Username { "username" } else { "id" };
        let own = value.get(member).and_then(id_text);
        // The `id` of a secret manager contains its kind: `vault/1`.
        let own = own.map(|own| own.rsplit('/').next().unwrap_or_default().to_owned());
        let id = match (&self.id, own) {
            (Some(id), Some(own)) if *id != own => {
                let what = if member == "username" { "username".to_owned() } else { format!("{name} id") };
                let (id, own) = (shortened(id), shortened(&own));
                let why = format!("`{id}` in the path, `{own}` in the body; write the same in both");
                return refuse_described(&format!("wrong {what}"), &why);
            }
            (Some(id), _) => id.clone(),
            (None, Some(own)) => own,
            (None, None) if member == "username" => {
                return refuse("invalid configuration: property \"username\" is required");
            }
            (None, None) => {
                let list = self.list.trim_end_matches('/');
                let why = format!("write it in the path (`PUT {list}/ID`), or as `id` in the body");
                return refuse_described(&format!("missing {name} id"), &why);
            }
        };
        if !is_id(&id) {
            if member == "username" {
                let problem = "property \"username\" validation failed: use up to 256 letters, digits, `-` and `_`";
                return refuse(format!("invalid configuration: {problem}"));
            }
            let given = shortened(&id);
            return refuse(format!("wrong {name} id `{given}`: use up to 64 letters, digits, `-`, `_` and `.`"));
        }
        self.key(&id).map_or_else(|| refuse(format!("missing {name} id")), Ok)
    }
}

/// Whether an id has only characters that ids may have. Its length depends on the kind of resource, and is checked with the document.
pub(super) fn is_id(id: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=256).contains(&id.len()) && id.bytes().all(is_plain) && !is_path_step(id)
}

pub(super) async fn answer(context: &AdminContext, request: &AdminRequest) -> AdminResponse {
    let answered = match ResourceTarget::of(&request.path()) {
        Ok(target) => resource(context, request, target).await,
        Err(answer) => Err(answer),
    };
    answered.unwrap_or_else(|answer| *answer)
}

async fn resource(context: &AdminContext, request: &AdminRequest, target: ResourceTarget) -> Refused<AdminResponse> {
    let body = request.json()?;
    let expires_ms = request.expires_ms()?;
    let condition = Precondition::of(&request.headers);
    let kind = target.kind;
    if request.method != Method::GET && !may_write(request.caller.role, kind.list) {
        let problem = format!("the role {} may not change {}", request.caller.role.name(), kind.list);
        return Err(Box::new(answer::json_of(StatusCode::FORBIDDEN, &json!({ "error_msg": problem }))));
    }
    if let Some(part) = target.part.as_ref().filter(|_| !matches!(request.method, Method::GET | Method::PATCH)) {
        // Only PATCH may address a part; deleting or replacing the whole resource would not be intended.
        return refuse(format!(
            "invalid sub-path: /{part}; only PATCH changes a part of a {}, and `null` removes it",
            kind.name
        ));
    }
    let (named, plan): (Vec<ResourceKey>, Box<Plan>) = match request.method {
        Method::GET => return read(context, request, &target).await,
        Method::PUT => {
            let value = checked(body, kind)?;
            let key = target.key_of_put(&value)?;
            let new = NewResource { kind, value, expires_ms, condition };
            (vec![key.clone()], Box::new(move |view| new.put(view, &key)))
        }
        Method::POST if kind.id == IdRule::Any => {
            let value = checked(body, kind)?;
            if target.id.is_some() || value.get("id").is_some() {
                let why = format!("POST chooses the id; to choose it yourself, use `PUT {}/ID`", kind.list);
                return refuse_described(&format!("wrong {} id, do not need it", kind.name), &why);
            }
            let new = NewResource { kind, value, expires_ms, condition };
            (Vec::new(), Box::new(move |view| new.post(view)))
        }
        Method::PATCH if kind.patch => {
            let key = target.required()?;
            let patch = match (body, &target.part) {
                (Some(patch), Some(_)) => patch,
                (body, _) => map(body)?,
            };
            let patch = PatchOf { kind, key, path: target.part, patch, expires_ms, condition };
            (vec![patch.key.clone()], Box::new(move |view| patch.plan(view)))
        }
        Method::DELETE => {
            let (key, forced) = (target.required()?, request.query.is_true("force"));
            (vec![key.clone()], Box::new(move |view| plans::delete(view, &key, &condition, forced)))
        }
        _ => return Err(Box::new(without_method(&request.method, kind))),
    };
    if request.query.is_true("force") {
        request.caller.needs_all("`force=true`, which affects resources of others,")?;
    }
    Ok(write(context, request, within(&request.caller, named, plan)).await)
}

/// The answer to a method that a kind of resources does not have.
fn without_method(method: &Method, kind: &ResourceKind) -> AdminResponse {
    let advice = if method == Method::PATCH { ": send the whole of it with `PUT`" } else { "" };
    let problem = format!("not supported `{method}` method for {}{advice}", kind.name);
    let allowed = match (kind.id == IdRule::Any, kind.patch) {
        (true, true) => "GET, POST, PUT, PATCH, DELETE",
        (true, false) => "GET, POST, PUT, DELETE",
        (false, true) => "GET, PUT, PATCH, DELETE",
        (false, false) => "GET, PUT, DELETE",
    };
    answer::method_not_allowed(&problem, allowed)
}

/// The body, which must be a map.
fn map(body: Option<Value>) -> Refused<Value> {
    match body {
        Some(value @ Value::Object(_)) => Ok(value),
        Some(_) => refuse("invalid configuration: wrong type: expected object"),
        None => refuse("missing configurations"),
    }
}

/// Checks of a new resource that need no other resource.
fn checked(body: Option<Value>, kind: &ResourceKind) -> Refused<Value> {
    let value = map(body)?;
    if !kind.timed {
        return Ok(value);
    }
    for (place, members) in
        [("", Some(&value)), ("upstream.", value.get("upstream")), ("plugins.", value.get("plugins"))]
    {
        for time in ["create_time", "update_time"] {
            if members.and_then(|members| members.get(time)).is_some() {
                return refuse(format!("the property is forbidden:  {place}{time}"));
            }
        }
    }
    Ok(value)
}

async fn read(context: &AdminContext, request: &AdminRequest, target: &ResourceTarget) -> Refused<AdminResponse> {
    let Some(id) = &target.id else { return list(context, request, target).await };
    let Some(key) = target.key(id) else { return Ok(answer::key_not_found()) };
    let set = context.live.committed();
    let nothing = PendingResources::new();
    let view = ResourceView { set: &set, pending: &nothing, revision: set.revision };
    let found = view.get(&key).filter(|resource| request.caller.sees(&view, &key, resource));
    let Some(resource) = found else { return Ok(answer::key_not_found()) };
    let mut shown = shown(&key, resource, request);
    add_place(&mut shown, context.files.as_ref().and_then(|files| files.place(&key)).as_ref(), request.caller.role);
    let mut answer = answer::json_of(StatusCode::OK, &shown);
    answer::tag(&mut answer, resource.modified);
    answer::at_revision(&mut answer, set.revision);
    Ok(answer)
}

async fn list(context: &AdminContext, request: &AdminRequest, target: &ResourceTarget) -> Refused<AdminResponse> {
    let wanted = ListQuery::of(target.kind.list, &request.query)?;
    let set = context.live.committed();
    let nothing = PendingResources::new();
    let view = ResourceView { set: &set, pending: &nothing, revision: set.revision };
    let is_credential = std::ptr::eq(target.kind, &CREDENTIAL);
    let mut all = view.below(&target.list);
    all.retain(|(key, _)| is_credential || key.consumer_of_credential().is_none());
    let mut found = Vec::new();
    for piece in all.chunks(PIECE) {
        let seen = piece.iter().copied().filter(|(key, resource)| request.caller.sees(&view, key, resource));
        found.extend(seen.filter(|(_, resource)| wanted.takes(resource)));
        pause(request).await?;
    }
    // APISIX stores no such list, so an empty one is reported as not found.
    if is_credential && found.is_empty() {
        return Ok(answer::key_not_found());
    }
    let total = found.len();
    let page = wanted.page(found);
    let places = context.files.as_ref().map(|files| files.places());
    let mut items = Vec::new();
    let bytes = page.iter().map(|(key, resource)| resource.json.len() + 2 * key.as_str().len()).sum();
    let permit = take_room(&*request.host, bytes).await?;
    for (index, piece) in page.chunks(PIECE).enumerate() {
        for (at, (key, resource)) in piece.iter().enumerate() {
            if index + at > 0 {
                items.push(b',');
            }
            let mut shown = shown(key, resource, request);
            add_place(&mut shown, places.as_ref().and_then(|places| places.get(key)), request.caller.role);
            items.extend(shown.to_string().as_bytes());
        }
        pause(request).await?;
    }
    let body = [format!("{{\"total\":{total},\"list\":[").as_bytes(), &items, b"]}"].concat();
    let mut answer = permit.answer(body);
    answer::tag(&mut answer, set.revision);
    answer::at_revision(&mut answer, set.revision);
    Ok(answer)
}

/// The number of resources between two pauses of a request that reads many.
pub(super) const PIECE: usize = 64;

/// Lets other requests of the lane go on, and ends this one if its client has left.
pub(super) async fn pause(request: &AdminRequest) -> Refused<()> {
    yield_now().await;
    request.client.check()
}

/// A resource as shown in responses to reads.
pub(super) fn shown(key: &ResourceKey, resource: &StoredResource, request: &AdminRequest) -> Value {
    let mut value = resource.value();
    redact(key.list(), &mut value, request.caller.role);
    let mut shown = json!({
        "key": format!("{PREFIX}/{key}"),
        "value": value,
        "createdIndex": resource.created,
        "modifiedIndex": resource.modified,
    });
    if shown["value"].is_null()
        && let Some(fault) = resource.fault()
    {
        shown["error"] = fault.into();
    }
    shown
}

/// Makes a change, and responds with the first changed resource.
async fn write(context: &AdminContext, request: &AdminRequest, plan: Box<Plan>) -> AdminResponse {
    let forced = request.query.is_true("force");
    let requests = match dry_run::requests(request, None) {
        Ok(requests) => requests,
        Err(refusal) => return *refusal,
    };
    let wanted = WantedChange { plan, author: request.author(), forced, requests };
    let answered = async |receipt: WriteReceipt| {
        let answer = changed(&receipt, request);
        context.after_wait(request, &receipt, answer).await
    };
    context.change(request, wanted, answered).await
}

fn changed(receipt: &WriteReceipt, request: &AdminRequest) -> AdminResponse {
    let RevisionRecord { revision, changes, .. } = &receipt.record;
    let Some(change) = changes.first() else { return answer::key_not_found() };
    let key = format!("{PREFIX}/{}", change.key);
    let mut answer = match &change.after {
        None => answer::json_of(StatusCode::OK, &json!({ "deleted": "1", "key": key })),
        Some(resource) => {
            let mut value = resource.value();
            redact(change.key.list(), &mut value, request.caller.role);
            let status = if change.before.is_some() { StatusCode::OK } else { StatusCode::CREATED };
            let mut body = json!({ "key": key, "value": value });
            answer::warn(&mut body, &receipt.warnings);
            let mut answer = answer::json_of(status, &body);
            answer::tag(&mut answer, resource.modified);
            answer
        }
    };
    answer::at_revision(&mut answer, *revision);
    answer
}
