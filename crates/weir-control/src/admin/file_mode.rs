//! Resources that stand in files: they are shown with their places, and not changed.

use http::StatusCode;
use serde_json::{Value, json};

use super::answer::{AdminResponse, json_of};
use super::request::{AdminRequest, is_change};
use crate::stores::file_resources::{FileResources, ResourcePlace};
use crate::stores::resources::ResourceKey;

/// Whether a request is a change of resources that stand elsewhere.
pub(super) fn is_refused(request: &AdminRequest) -> bool {
    let AdminRequest { method, path, query, .. } = request;
    is_change(method, path, query) && path.first().is_none_or(|first| first != "plugins")
}

/// The refusal of a change; `None` if the request changes nothing.
pub(super) fn refusal(files: &FileResources, request: &AdminRequest) -> Option<AdminResponse> {
    if !is_refused(request) {
        return None;
    }
    let path = &request.path;
    let key = ResourceKey::parse(&path.join("/"));
    let known = key.and_then(|key| files.place(&key).map(|place| (key, place)));
    let body = match known {
        Some((key, ResourcePlace { source, place })) => json!({
            "error_msg": format!("{key} stands in {source}:{}:{}; change it there", place.line, place.column),
            "key": key,
            "source": source,
            "line": place.line,
            "column": place.column,
        }),
        None => {
            json!({ "error_msg": "the resources of this node stand in files (`admin: { store: file }`); change them there" })
        }
    };
    Some(json_of(StatusCode::CONFLICT, &body))
}

/// Adds the place of a resource to how it is shown.
pub(super) fn add_place(shown: &mut Value, place: Option<&ResourcePlace>) {
    if let Some(ResourcePlace { source, place }) = place {
        shown["source"] = (&**source).into();
        shown["line"] = place.line.into();
        shown["column"] = place.column.into();
    }
}
