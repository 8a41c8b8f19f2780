//! `GET /weir/v1/table/{list}`: of each resource only what a table shows, and only what has changed since a revision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::answer::{self, AdminResponse, Refused, refuse};
use super::context::AdminContext;
use super::file_mode::mask_variables;
use super::history::each_since;
use super::host::take_room;
use super::request::AdminRequest;
use super::resources::{PIECE, pause};
use crate::document::AdminRole;
use crate::stores::file_resources::ResourcePlace;
use crate::stores::resources::{PendingResources, ResourceKey, ResourceView, StoredResource};
use crate::stores::store::MOST_READ;

/// The lists with tables.
const LISTS: [&str; 10] = [
    "routes",
    "services",
    "upstreams",
    "consumers",
    "ssls",
    "plugin_configs",
    "global_rules",
    "consumer_groups",
    "plugin_metadata",
    "secrets",
];
/// The columns of all lists, before those of the list, and after them.
const FIRST: [&str; 8] = ["id", "name", "desc", "labels", "plugins", "status", "modified", "updated"];
const LAST: [&str; 2] = ["source", "line"];
/// The most revisions of the history that are read to find what was deleted since a revision.
const MOST_REVISIONS: u64 = 1_000;
/// The bytes that a row takes on average, to reserve room for the answer.
const ROW_BYTES: usize = 256;

/// The table of a list.
pub(super) async fn answer(context: &AdminContext, request: &AdminRequest, list: &str) -> Refused<AdminResponse> {
    let Some(list) = LISTS.into_iter().find(|known| *known == list) else {
        let problem = format!("`{list}` has no table; those that have are {}", LISTS.join(", "));
        return Err(Box::new(answer::json_of(StatusCode::NOT_FOUND, &json!({ "error_msg": problem }))));
    };
    let since = match request.query.get("since").map(str::parse::<u64>) {
        None => None,
        Some(Ok(since)) => Some(since),
        Some(Err(_)) => return refuse("invalid argument since: it is the number of a revision"),
    };
    let set = context.live.committed();
    let nothing = PendingResources::new();
    let view = ResourceView { set: &set, pending: &nothing, revision: set.revision };
    let removed = match since {
        Some(since) => removed_since(context, request, list, since, set.revision).await?,
        None => None,
    };
    let since = since.filter(|_| removed.is_some());
    let places = context.files.as_ref().map(|files| files.places());
    let credentials = credentials(&view, list);
    let mut all = view.below(&format!("{list}/"));
    all.retain(|(key, _)| key.consumer_of_credential().is_none());
    let permit = take_room(&*request.host, all.len() * ROW_BYTES).await?;
    let (mut total, mut rows) = (0, Vec::new());
    for piece in all.chunks(PIECE) {
        for (key, resource) in piece.iter().filter(|(key, resource)| request.caller.sees(&view, key, resource)) {
            total += 1;
            if since.is_none_or(|since| resource.modified > since) {
                let place = places.as_ref().and_then(|places| places.get(*key));
                let own = credentials.get(key.id()).copied().unwrap_or_default();
                push(&mut rows, &row(list, key, resource, own, place, request.caller.role));
            }
        }
        pause(request).await?;
    }
    let columns: Vec<&str> = FIRST.into_iter().chain(columns_of(list).iter().copied()).chain(LAST).collect();
    let head = json!({
        "kind": list,
        "revision": set.revision,
        "since": since,
        "total": total,
        "removed": removed.unwrap_or_default(),
        "columns": columns,
    })
    .to_string();
    let head = head.strip_suffix('}').unwrap_or(&head);
    let body = [head.as_bytes(), b",\"rows\":[", &rows, b"]}"].concat();
    let mut answer = permit.answer(body);
    answer::at_revision(&mut answer, set.revision);
    Ok(answer)
}

fn push(rows: &mut Vec<u8>, row: &Value) {
    if !rows.is_empty() {
        rows.push(b',');
    }
    rows.extend(row.to_string().as_bytes());
}

/// The ids of a list that were deleted since a revision; `None` if that is not known, so that all rows have to be sent.
async fn removed_since(
    context: &AdminContext,
    request: &AdminRequest,
    list: &str,
    since: u64,
    now: u64,
) -> Refused<Option<BTreeSet<String>>> {
    if since == now {
        return Ok(Some(BTreeSet::new()));
    }
    // A caller with scopes sees a part of the resources, and the history does not say what has left this part. Other writers of a shared store leave no history,
    // and files have none.
    let has_history = context.files.is_none() && context.live.store().shared().is_none();
    if since > now || !has_history || !request.caller.scopes.is_empty() {
        return Ok(None);
    }
    if now - since >= MOST_REVISIONS {
        return Ok(None);
    }
    let view = context.live.committed();
    let _reading = take_room(&*request.host, MOST_READ as usize).await?;
    let mut removed = BTreeSet::new();
    let is_whole = each_since(context, request, (since, now), |record| {
        let is_gone = |key: &ResourceKey| key.list() == list && !view.all.contains_key(key);
        let gone = record.changes.into_iter().map(|change| change.key).filter(is_gone);
        removed.extend(gone.map(|key| key.id().to_owned()));
    });
    Ok(is_whole.await?.then_some(removed))
}

/// The number of further credentials of each consumer.
fn credentials<'v>(view: &ResourceView<'v>, list: &str) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    if list == "consumers" {
        for (key, _) in view.below("consumers/") {
            if let Some(consumer) = key.consumer_of_credential() {
                *counts.entry(consumer.to_owned()).or_default() += 1;
            }
        }
    }
    counts
}

/// The columns of a list besides those of all lists.
fn columns_of(list: &str) -> &'static [&'static str] {
    match list {
        "routes" => &["uris", "hosts", "methods", "priority", "service_id", "plugin_config_id", "target"],
        "services" => &["hosts", "target"],
        "upstreams" => &["type", "scheme", "nodes", "discovery_type"],
        "consumers" => &["group_id", "credentials"],
        "ssls" => &["snis", "ssl_type"],
        _ => &[],
    }
}

fn row(
    list: &str,
    key: &ResourceKey,
    resource: &StoredResource,
    credentials: u64,
    place: Option<&ResourcePlace>,
    role: AdminRole,
) -> Value {
    let mut value = resource.value();
    if let Some(place) = place {
        mask_variables(&mut value, place, role);
    }
    let of = |name: &str| value.get(name).cloned().unwrap_or_default();
    let mut row: Vec<Value> = vec![
        key.id().into(),
        of("name"),
        of("desc"),
        of("labels"),
        value.get("plugins").and_then(Value::as_object).map_or(Value::Null, names),
        of("status"),
        resource.modified.into(),
        of("update_time"),
    ];
    for column in columns_of(list) {
        row.push(match *column {
            "uris" => one_or_more(&value, "uri", "uris"),
            "hosts" => one_or_more(&value, "host", "hosts"),
            "snis" => one_or_more(&value, "sni", "snis"),
            "target" => target(&value).into(),
            "nodes" => nodes(&value),
            "credentials" => credentials.into(),
            "ssl_type" => value.get("type").cloned().unwrap_or_else(|| "server".into()),
            name => of(name),
        });
    }
    row.push(place.map_or(Value::Null, |place| (&*Arc::clone(&place.source)).into()));
    row.push(place.map_or(Value::Null, |place| place.place.line.into()));
    row.into()
}

fn names(map: &Map<String, Value>) -> Value {
    map.keys().map(|name| Value::from(name.as_str())).collect()
}

/// What is written as one text, or as a list.
fn one_or_more(value: &Value, one: &str, more: &str) -> Value {
    match (value.get(one), value.get(more)) {
        (Some(one), _) => json!([one]),
        (None, Some(more)) => more.clone(),
        (None, None) => Value::Null,
    }
}

/// Where requests go.
fn target(value: &Value) -> Option<String> {
    let id = |name: &str, list: &str| {
        let id = value.get(name)?;
        Some(format!("{list}/{}", id.as_str().map_or_else(|| id.to_string(), str::to_owned)))
    };
    let inline = || value.get("upstream").map(|_| "inline".to_owned());
    id("hub_id", "hubs")
        .or_else(inline)
        .or_else(|| id("upstream_id", "upstreams"))
        .or_else(|| id("service_id", "services"))
}

/// The number of nodes; null if they come from elsewhere.
fn nodes(value: &Value) -> Value {
    match value.get("nodes") {
        Some(Value::Array(items)) => items.len().into(),
        Some(Value::Object(members)) => members.len().into(),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(list: &str, value: Value) -> Map<String, Value> {
        let key = ResourceKey::new(list, "a");
        let resource = StoredResource { json: value.to_string().into(), created: 1, modified: 7, expires_ms: None };
        let columns = FIRST.into_iter().chain(columns_of(list).iter().copied()).chain(LAST).map(str::to_owned);
        let row = row(list, &key, &resource, 2, None, AdminRole::Viewer);
        columns.zip(row.as_array().expect("a list").clone()).collect()
    }

    #[test]
    fn a_row_has_what_its_table_shows() {
        let route = json!({"uri": "/a", "hosts": ["b"], "service_id": 7, "labels": {"x": "y"}, "plugins": {"cors": {}}, "upstream_id": "u"});
        let row = told("routes", route);
        assert_eq!((&row["id"], &row["modified"], &row["uris"]), (&json!("a"), &json!(7), &json!(["/a"])));
        assert_eq!(
            (&row["hosts"], &row["plugins"], &row["labels"]),
            (&json!(["b"]), &json!(["cors"]), &json!({"x": "y"}))
        );
        assert_eq!(
            (&row["service_id"], &row["target"], &row["name"]),
            (&json!(7), &json!("upstreams/u"), &Value::Null)
        );
        assert_eq!(told("routes", json!({"service_id": 7}))["target"], "services/7");
        assert_eq!(told("services", json!({"upstream": {}}))["target"], "inline");
        assert_eq!(told("upstreams", json!({"nodes": {"a:1": 1, "b:1": 1}}))["nodes"], 2);
        assert_eq!(told("consumers", json!({"username": "a"}))["credentials"], 2);
        assert_eq!(told("ssls", json!({"sni": "a"}))["snis"], json!(["a"]));
        assert_eq!(told("routes", json!(null))["uris"], Value::Null, "a resource that is no JSON has a row as well");
    }
}
