//! `PUT draft`: writes the files.

use std::time::{Duration, Instant};

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::findings::PlacesOfWords;
use super::{CheckedDraft, DraftAccess, SentDraft, checked, is_too_costly};
use crate::admin::answer::{self, AdminResponse, Refused, json_of, list_findings, refuse};
use crate::admin::audit::{AuditedFiles, audit_change, audit_files};
use crate::admin::context::AdminContext;
use crate::admin::request::AdminRequest;
use crate::document::{RESOURCE_LISTS, WrittenResource};
use crate::stores::draft::{DraftFile, ReadDraft, Unwritten, revision_of, served_hash};
use crate::stores::live::now_ms;
use crate::stores::resources::{ResourceChange, ResourceKey, ResourceSet, RevisionRecord, StoredResource};
use crate::text::diagnostic::Diagnostic;
use crate::text::edit::WrittenPlaces;

/// How long the response to a written draft waits until it is served.
const SERVED_WITHIN: Duration = Duration::from_secs(10);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(20);

/// What was written, or would have been.
struct PutDraft {
    files: Vec<DraftFile>,
    checked: CheckedDraft,
    audited: AuditedFiles,
    changes: Vec<ResourceChange>,
}

pub(super) async fn answer(context: &AdminContext, request: &AdminRequest) -> Refused<AdminResponse> {
    let is_dry = request.query.is_true("dry_run");
    let put = put(context, request, is_dry)?;
    let revision = revision_of(&put.files);
    let hash = served_hash(&put.files);
    let serves = || context.files.as_ref().is_some_and(|files| files.serves(&hash));
    let deadline = Instant::now() + SERVED_WITHIN;
    while !is_dry && !serves() && Instant::now() < deadline {
        sleep(LOOK).await;
    }
    let store_revision = context.live.committed().revision;
    let mut body = json!({ "revision": revision, "store_revision": store_revision });
    body[if is_dry { "dry_run" } else { "served" }] = (is_dry || serves()).into();
    body["files"] = put.audited.written.iter().map(|name| &**name).collect::<Value>();
    answer::warn(&mut body, &put.checked.warnings);
    let mut answer = json_of(StatusCode::OK, &body);
    answer::at_revision(&mut answer, store_revision);
    let PutDraft { changes, audited, .. } = put;
    let record = RevisionRecord { revision: store_revision, at_ms: now_ms(), author: request.author(), changes };
    audit_change(&mut answer, &record, is_dry);
    audit_files(&mut answer, audited);
    Ok(answer)
}

/// Checks the whole and writes it; in a dry run, only checks it. What is checked is what is written.
fn put(context: &AdminContext, request: &AdminRequest, is_dry: bool) -> Refused<PutDraft> {
    let DraftAccess { files: draft, checker } = DraftAccess::of(context)?;
    let before_resources = context.live.committed();
    let sent = SentDraft::of(request)?;
    let Some(revision) = sent.revision.as_deref() else {
        return refuse("`revision` is missing: send that of the files that were read");
    };
    let turn = draft.turn().map_err(|faults| Box::new(answer::invalid(&faults)))?;
    let Some(turn) = turn else {
        let problem =
            "this node may not write its files; set `admin: { store: file, draft: write }`, or write the text yourself";
        return Err(Box::new(json_of(StatusCode::CONFLICT, &json!({ "error_msg": problem }))));
    };
    let now = turn.before.revision();
    if now != revision {
        let problem = "the files have changed since they were read; read them again";
        let body = json!({ "error_msg": problem, "revision": now });
        return Err(Box::new(json_of(StatusCode::PRECONDITION_FAILED, &body)));
    }
    let files = sent.whole(&turn.before)?.restored;
    let (outcome, is_spent) = checked(checker, request, &files);
    if is_spent {
        return Err(Box::new(is_too_costly(request)));
    }
    let checked = outcome.map_err(|faults| Box::new(invalid(&files, &faults)))?;
    let mut audited = AuditedFiles { settings: changed_settings(&turn.before, &files), ..AuditedFiles::default() };
    let changes = changes(&before_resources, &checked.resources);
    audited.written = match is_dry {
        true => turn
            .before
            .files
            .iter()
            .zip(&files)
            .filter(|(old, new)| old != new)
            .map(|(_, new)| new.name.clone())
            .collect(),
        false => turn.write(&files).map_err(|unwritten| Box::new(failed(unwritten, audited.clone())))?,
    };
    Ok(PutDraft { files, checked, audited, changes })
}

fn invalid(files: &[DraftFile], faults: &[Diagnostic]) -> AdminResponse {
    let places = PlacesOfWords::of(files);
    let mut told = json!({ "error_msg": faults.first().map(Diagnostic::to_string) });
    list_findings(&mut told, "diagnostics", faults, |fault| places.told(fault, "error"));
    json_of(StatusCode::BAD_REQUEST, &told)
}

/// The response if not all files have been written: which have nevertheless, and of which that is not known.
fn failed(unwritten: Unwritten, audited: AuditedFiles) -> AdminResponse {
    let Unwritten { problem, renamed, left, unknown } = unwritten;
    let names = |names: &[Box<str>]| names.iter().map(|name| &**name).collect::<Value>();
    let mut body = json!({ "error_msg": problem, "written": names(&renamed), "not_written": names(&left) });
    if !unknown.is_empty() {
        body["unknown"] = names(&unknown);
    }
    let mut answer = json_of(StatusCode::SERVICE_UNAVAILABLE, &body);
    audit_files(&mut answer, AuditedFiles { written: renamed, not_written: left, unknown, ..audited });
    answer
}

/// The settings of the node that are others than before.
fn changed_settings(before: &ReadDraft, files: &[DraftFile]) -> Vec<String> {
    let written = |file: Option<&DraftFile>| {
        let places = file.and_then(|file| WrittenPlaces::of(&(&*file.name).into(), &file.text).ok());
        places.map(|places| places.values()).unwrap_or_default()
    };
    let (old, new) = (written(before.files.first()), written(files.first()));
    let names = |value: &Value| value.as_object().into_iter().flat_map(|map| map.keys().cloned()).collect::<Vec<_>>();
    let mut all: Vec<String> = names(&old).into_iter().chain(names(&new)).collect();
    all.sort();
    all.dedup();
    all.retain(|name| !RESOURCE_LISTS.contains(&&**name) && old.get(name) != new.get(name));
    all
}

/// The effects on resources, for the audit log.
fn changes(before: &ResourceSet, resources: &[WrittenResource]) -> Vec<ResourceChange> {
    let stored = |value: &Value| StoredResource {
        json: value.to_string().into(),
        created: before.revision,
        modified: before.revision,
        expires_ms: None,
    };
    let after: Vec<(ResourceKey, StoredResource)> =
        resources.iter().map(|one| (ResourceKey::new(one.list, &one.id), stored(&one.value))).collect();
    let keys: std::collections::BTreeSet<&ResourceKey> = after.iter().map(|(key, _)| key).collect();
    let gone = before.all.iter().filter(|(key, _)| !keys.contains(key));
    let gone = gone.map(|(key, old)| ResourceChange { key: key.clone(), before: Some(old.clone()), after: None });
    let mut all: Vec<ResourceChange> = gone.collect();
    let put = after.into_iter().filter_map(|(key, new)| {
        let old = before.all.get(&key).cloned();
        let is_same = old.as_ref().is_some_and(|old| old.json == new.json);
        (!is_same).then_some(ResourceChange { key, before: old, after: Some(new) })
    });
    all.extend(put);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_may_have_been_written_are_told() {
        let unwritten = Unwritten {
            problem: "it is not known".to_owned(),
            renamed: Vec::new(),
            left: Vec::new(),
            unknown: vec!["weir.yaml".into()],
        };
        let answer = failed(unwritten, AuditedFiles::default());
        let body: Value = serde_json::from_slice(answer.body()).expect("JSON");
        assert_eq!((&body["written"], &body["unknown"]), (&json!([]), &json!(["weir.yaml"])));
        let audited = answer.extensions().get::<AuditedFiles>().expect("they are audited");
        assert_eq!((audited.written.len(), &*audited.unknown), (0, &["weir.yaml".into()][..]));
    }
}
