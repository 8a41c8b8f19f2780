//! The history of a store: what changed, when, and by whom; and rollback.

use std::collections::BTreeMap;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::answer::{self, AdminResponse, Refused, refuse};
use super::context::{AdminContext, WantedChange};
use super::difference::{action, difference};
use super::dry_run;
use super::host::take_room;
use super::past_consumers::PastConsumers;
use super::redact::redact;
use super::request::AdminRequest;
use super::resources::{PIECE, pause};
use super::scopes::within;
use crate::document::AdminRole;
use crate::stores::live::ResourceEdit;
use crate::stores::resources::{
    PendingResources, ResourceChange, ResourceKey, ResourceView, RevisionRecord, StoredResource,
};
use crate::stores::store::MOST_READ;
use crate::stores::writes::{PlanRefusal, WriteReceipt};

const DEFAULT_COUNT: usize = 50;
const MOST_COUNT: usize = 1_000;
/// The most changes of a revision in a brief list.
const MOST_BRIEF: usize = 100;
/// A page ends with the revision that takes it beyond this many bytes.
const MOST_PAGE: usize = 8 << 20;

/// Responds to requests below `/history`.
pub(super) async fn answer(context: &AdminContext, request: &AdminRequest, path: &[&str]) -> Refused<AdminResponse> {
    match (path, &request.method) {
        ([], &Method::GET) => list(context, request).await,
        ([revision], &Method::GET) => one(context, request, number(revision)?).await,
        ([revision, "rollback"], &Method::POST) => rollback(context, request, number(revision)?).await,
        ([] | [_], method) => Ok(answer::other_method(method, "GET")),
        ([_, "rollback"], method) => Ok(answer::other_method(method, "POST")),
        _ => Ok(answer::json_of(StatusCode::NOT_FOUND, &json!({ "error_msg": "not found" }))),
    }
}

fn number(text: &str) -> Refused<u64> {
    text.parse().map_or_else(|_| refuse(format!("`{text}` is not a revision number")), Ok)
}

/// The latest revision first; `?before=` continues after a page, `?key=` selects one resource.
async fn list(context: &AdminContext, request: &AdminRequest) -> Refused<AdminResponse> {
    let argument = |name: &str| match request.query.get(name).map(str::parse::<u64>) {
        None => Ok(None),
        Some(Ok(number)) => Ok(Some(number)),
        Some(Err(_)) => refuse(format!("invalid argument {name}: it must be a whole number")),
    };
    let end = argument("before")?.unwrap_or(u64::MAX);
    let count = argument("count")?.unwrap_or(DEFAULT_COUNT as u64);
    let count = usize::try_from(count).unwrap_or(MOST_COUNT).clamp(1, MOST_COUNT);
    let key = request.query.get("key");
    if let Some(key) = key.filter(|key| ResourceKey::parse(key).is_none()) {
        return refuse(format!(
            "invalid argument key: `{key}` is not the key of a resource; write it as `routes/orders`"
        ));
    }
    let told_part =
        ToldPart { only: key.filter(|_| request.query.is_true("only")), is_brief: request.query.is_true("brief") };
    let concerned =
        |record: &RevisionRecord| key.is_none_or(|key| record.changes.iter().any(|change| change.key.as_str() == key));
    let (set, nothing) = (context.live.committed(), PendingResources::new());
    let revision = set.revision;
    let mut past = PastConsumers::of(ResourceView { set: &set, pending: &nothing, revision });
    let (mut list, mut listed, mut before) = (Vec::new(), 0, past.first_before(&request.caller, end));
    // Together: requests that wait for a second room while they hold a first could wait for each other.
    let permit = take_room(&*request.host, MOST_PAGE + MOST_READ as usize).await?;
    while listed < count && list.len() < MOST_PAGE {
        let records =
            context.live.store().history(before, PIECE).map_err(|failure| Box::new(answer::failed(&failure)))?;
        let Some(last) = records.last().map(|record| record.revision) else { break };
        for record in records {
            let is_of_page = record.revision < end;
            let seen = past.seen(&request.caller, record).filter(|_| is_of_page);
            let Some(record) = seen.filter(concerned) else { continue };
            if listed == count || list.len() >= MOST_PAGE {
                break;
            }
            let text = told_part.of(&record).to_string();
            list.extend([if listed == 0 { "" } else { "," }.as_bytes(), text.as_bytes()].concat());
            listed += 1;
        }
        before = last;
        pause(request).await?;
    }
    let body = [format!("{{\"revision\":{revision},\"list\":[").as_bytes(), &list, b"]}"].concat();
    let mut answer = permit.answer(body);
    answer::at_revision(&mut answer, revision);
    Ok(answer)
}

async fn one(context: &AdminContext, request: &AdminRequest, revision: u64) -> Refused<AdminResponse> {
    let (set, nothing) = (context.live.committed(), PendingResources::new());
    let mut past = PastConsumers::of(ResourceView { set: &set, pending: &nothing, revision: set.revision });
    let end = revision.saturating_add(1);
    let mut before = past.first_before(&request.caller, end);
    let count = if before == end { 1 } else { PIECE };
    let _reading = take_room(&*request.host, MOST_READ as usize).await?;
    loop {
        let records =
            context.live.store().history(before, count).map_err(|failure| Box::new(answer::failed(&failure)))?;
        if records.is_empty() {
            return Ok(answer::key_not_found());
        }
        for record in records {
            before = record.revision;
            let seen = past.seen(&request.caller, record);
            match seen.filter(|_| before == revision) {
                Some(record) => return Ok(told_or_value(&record, request)),
                None if before <= revision => return Ok(answer::key_not_found()),
                None => {}
            }
        }
        pause(request).await?;
    }
}

/// A revision, or with `?value=routes/r1` a resource that it changed, as it was from then on.
fn told_or_value(record: &RevisionRecord, request: &AdminRequest) -> AdminResponse {
    let role = request.caller.role;
    let Some(key) = request.query.get("value") else {
        return answer::json_of(StatusCode::OK, &told(record));
    };
    let Some(change) = record.changes.iter().find(|change| change.key.as_str() == key) else {
        return answer::key_not_found();
    };
    let value = change.after.as_ref().map(|resource| {
        let mut value = resource.value();
        redact(change.key.list(), &mut value, role);
        value
    });
    answer::json_of(StatusCode::OK, &json!({ "key": change.key, "revision": record.revision, "value": value }))
}

/// The part of a revision that a list has.
#[derive(Clone, Copy, Debug, Default)]
struct ToldPart<'q> {
    /// `only=true`: the changes of this resource alone.
    only: Option<&'q str>,
    /// `brief=true`: the keys of the changed resources without their members, at most [`MOST_BRIEF`].
    is_brief: bool,
}

impl ToldPart<'_> {
    fn of(self, record: &RevisionRecord) -> Value {
        let is_told = |change: &&ResourceChange| self.only.is_none_or(|key| change.key.as_str() == key);
        let all = record.changes.iter().filter(is_told);
        if !self.is_brief {
            return told_with(record, all.map(difference).collect());
        }
        let count = all.clone().count();
        let keys = all.take(MOST_BRIEF).map(|change| json!({ "key": change.key, "action": action(change) }));
        let mut told = told_with(record, keys.collect());
        if count > MOST_BRIEF {
            told["more"] = (count - MOST_BRIEF).into();
        }
        told
    }
}

fn told(record: &RevisionRecord) -> Value {
    ToldPart::default().of(record)
}

fn told_with(record: &RevisionRecord, changes: Vec<Value>) -> Value {
    json!({
        "revision": record.revision,
        "at": record.at_ms / 1_000,
        "at_ms": record.at_ms,
        "author": record.author,
        "changes": changes,
    })
}

/// Restores all resources to their state at a revision, as a new revision.
async fn rollback(context: &AdminContext, request: &AdminRequest, to: u64) -> Refused<AdminResponse> {
    if request.caller.role != AdminRole::Admin {
        let problem = json!({ "error_msg": "only the role admin may roll back" });
        return Err(Box::new(answer::json_of(StatusCode::FORBIDDEN, &problem)));
    }
    let now = context.live.committed().revision;
    if to >= now {
        return refuse(format!("revision {to} is not an earlier revision: the store is at revision {now}"));
    }
    let seen = request.query.get("if_revision").map(number).transpose()?;
    let wanted = before_revision(context, request, to, now).await?;
    let plan = move |view: &ResourceView| {
        if seen.is_some_and(|seen| seen != view.revision) {
            return Err(PlanRefusal::StoreMovedOn(view.revision));
        }
        // Compared with the resources as they are now, which may have changed since `wanted` was read.
        let differs = wanted
            .iter()
            .filter(|(key, wanted)| view.get(key).map(|now| &now.json) != wanted.as_ref().map(|was| &was.json));
        Ok(differs
            .map(|(key, wanted)| match wanted {
                Some(was) => ResourceEdit::Put { key: key.clone(), value: was.value(), expires_ms: was.expires_ms },
                None => ResourceEdit::Delete { key: key.clone() },
            })
            .collect())
    };
    let mut author = request.author();
    if author.message.is_empty() {
        author.message = format!("rollback to revision {to}");
    }
    let plan = within(&request.caller, Vec::new(), Box::new(plan));
    let wanted = WantedChange { plan, author, forced: false, requests: dry_run::requests(request, None)? };
    let answered = async |receipt: WriteReceipt| {
        let mut body = told(&receipt.record);
        answer::warn(&mut body, &receipt.warnings);
        let mut answer = answer::json_of(StatusCode::OK, &body);
        answer::at_revision(&mut answer, receipt.record.revision);
        context.after_wait(request, &receipt, answer).await
    };
    Ok(context.change(request, wanted, answered).await)
}

/// The state at revision `to` of every resource that has changed since.
async fn before_revision(
    context: &AdminContext,
    request: &AdminRequest,
    to: u64,
    now: u64,
) -> Refused<BTreeMap<ResourceKey, Option<StoredResource>>> {
    let mut was = BTreeMap::new();
    // In the order from the latest to the oldest, so that the oldest change determines the state.
    let is_whole = each_since(context, request, (to, now), |record| {
        was.extend(record.changes.into_iter().map(|change| (change.key, change.before)));
    });
    if !is_whole.await? {
        return refuse(format!(
            "the changes since revision {} are no longer in the history; `store.history` and `store.history_bytes` limit what is \
             kept",
            to + 1
        ));
    }
    Ok(was)
}

/// Calls `each` with the records of the revisions after `since`, from the latest to the oldest, in pieces of bounded size. Returns
/// whether the history still has all of them.
pub(super) async fn each_since(
    context: &AdminContext,
    request: &AdminRequest,
    (since, now): (u64, u64),
    mut each: impl FnMut(RevisionRecord),
) -> Refused<bool> {
    let mut oldest = now.saturating_add(1);
    while oldest > since {
        let records =
            context.live.store().history(oldest, PIECE).map_err(|failure| Box::new(answer::failed(&failure)))?;
        // Revisions of a shared store have gaps. If a revision from `since` or before is kept, all later ones are as well.
        let Some(last) = records.last().map(|record| record.revision) else { break };
        oldest = last;
        records.into_iter().filter(|record| record.revision > since).for_each(&mut each);
        pause(request).await?;
    }
    Ok(oldest <= since.saturating_add(1))
}
