//! Validation without a change: of one resource, or of whole lists.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use http::StatusCode;
use serde_json::{Map, Value, json};
use weir_plugin::{Registry, pattern_budget};

use super::answer::{self, AdminResponse, Refused, list_findings, message, refuse, text};
use super::configs::WholeConfiguration;
use super::context::AdminContext;
use super::kinds::{self, IdRule, ResourceKind};
use super::request::{AdminRequest, too_large};
use super::scopes::within_for_check;
use super::sent_lists::{ListError, body, key_of, malformed};
use super::told::told_to;
use super::transaction::{MOST_OPERATIONS, Transaction};
use crate::compile::compile;
use crate::document::{AdminRole, Document, RESOURCE_LISTS};
use crate::stores::checker::ChangeCheck;
use crate::stores::resources::ResourceKey;
use crate::stores::writes::{Plan, WriteOutcome};
use crate::text::diagnostic::{Diagnostic, FaultCause};

/// `POST schema/validate/routes`: validates the resource itself with its plugins, without references.
pub(super) fn one(list: &str, registry: Registry, request: &AdminRequest) -> Refused<AdminResponse> {
    let Some(kind) = kinds::find(list) else { return refuse(format!("not found schema: {list}")) };
    let Some(mut value) = request.json()? else { return refuse("missing configurations") };
    // APISIX's schema of a secrets manager has no id, which stands in the path of a request.
    if let (IdRule::Manager, Value::Object(members)) = (kind.id, &mut value) {
        members.entry("id").or_insert_with(|| "vault/1".into());
    }
    let found = || faults_of(kind, value, &registry);
    let (faults, is_spent) = pattern_budget::within(request.pattern_bytes(), found);
    Ok(match &faults[..] {
        _ if is_spent => answer::too_costly(request.pattern_bytes()),
        [] => text(StatusCode::OK, ""),
        faults => answer::invalid(faults),
    })
}

/// The faults of a resource with its plugins, with paths relative to it. Values that it refers to are not looked up, and neither are
/// other resources: no fault is what only a node can know.
fn faults_of(kind: &ResourceKind, value: Value, registry: &Registry) -> Vec<Diagnostic> {
    let document = Document::with_references(Arc::from("request"), json!({ kind.list: [value] }).into());
    if !document.faults.is_empty() {
        return document.faults.iter().map(below).collect();
    }
    let faults = compile(&document.alone(), registry, None).err().unwrap_or_default();
    let faults = faults.iter().filter(|fault| fault.cause == FaultCause::Text).map(below);
    let is_of_plugin = |fault: &Diagnostic| fault.path.starts_with("plugins") || kind.list == "plugin_metadata";
    faults.filter(is_of_plugin).collect()
}

/// `POST configs/validate`: what making these changes would answer. In API-driven standalone mode the lists replace all resources,
/// otherwise they are put beside those of the store.
pub(super) fn lists(context: &AdminContext, request: &AdminRequest) -> Refused<AdminResponse> {
    let lists = body(request)?;
    check_number(&lists)?;
    let mut errors = malformed(&lists);
    let (named, plan): (Vec<ResourceKey>, Box<Plan>) = match &context.standalone {
        _ if !errors.is_empty() => return Ok(invalid(&lists, &errors, &[])),
        Some(resources) => {
            request.caller.needs_all("the configuration as a whole")?;
            (Vec::new(), WholeConfiguration::of(&resources.current(), &lists)?.plan)
        }
        None => {
            let (transaction, wrong) = Transaction::of_lists(&lists);
            errors.extend(wrong);
            if !errors.is_empty() {
                return Ok(invalid(&lists, &errors, &[]));
            }
            (transaction.keys(), Box::new(move |view| transaction.plan(view)))
        }
    };
    let outcome = context.checker.check(&ChangeCheck {
        plan: within_for_check(&request.caller, named, plan),
        author: request.author(),
        forced: false,
        requests: Vec::new(),
        // A viewer may change nothing, so it must not choose either what the node reads. Others are refused if they change what only
        // an admin may: the address of a manager.
        looks_outside: request.caller.role != AdminRole::Viewer,
        pattern_bytes: request.pattern_bytes(),
    });
    Ok(match outcome {
        WriteOutcome::Applied(receipt) => {
            let mut body = json!({});
            answer::warn(&mut body, &receipt.warnings);
            answer::json_of(StatusCode::OK, &body)
        }
        WriteOutcome::Invalid(diagnostics) => {
            let diagnostics = told_to(&request.caller, &context.live, diagnostics);
            invalid(&lists, &errors_of(&lists, &diagnostics), &diagnostics)
        }
        WriteOutcome::Refused(refusal) => answer::refused(&refusal),
        WriteOutcome::TooCostly(bytes) => answer::too_costly(bytes),
        WriteOutcome::Failed(failure) => answer::failed(&failure),
    })
}

/// Refuses lists with more items than a check may have: as many as a transaction may have operations.
fn check_number(lists: &Map<String, Value>) -> Refused<()> {
    let count: usize = RESOURCE_LISTS.iter().filter_map(|list| Some(lists.get(*list)?.as_array()?.len())).sum();
    match count <= MOST_OPERATIONS {
        true => Ok(()),
        false => {
            let problem = format!(
                "{count} resources are more than the limit of {MOST_OPERATIONS}; check them in several requests"
            );
            Err(Box::new(too_large(&problem)))
        }
    }
}

fn invalid(lists: &Map<String, Value>, errors: &[ListError], diagnostics: &[Diagnostic]) -> AdminResponse {
    let mut body = json!({ "error_msg": "Configuration validation failed" });
    list_findings(&mut body, "errors", errors, |error| error.told(lists));
    if !diagnostics.is_empty() {
        list_findings(&mut body, "diagnostics", diagnostics, answer::diagnostic);
    }
    answer::json_of(StatusCode::BAD_REQUEST, &body)
}

/// The first fault of each item of the lists, and of other resources that they concern.
fn errors_of(lists: &Map<String, Value>, diagnostics: &[Diagnostic]) -> Vec<ListError> {
    let places: HashMap<String, (&'static str, usize)> = RESOURCE_LISTS
        .iter()
        .flat_map(|list| {
            let items = lists.get(*list).and_then(Value::as_array).into_iter().flatten().enumerate();
            items.map(move |(index, item)| (key_of(list, index, item).to_string(), (*list, index)))
        })
        .collect();
    let (mut errors, mut known) = (Vec::new(), HashSet::new());
    for fault in diagnostics {
        let key = fault.path.split_once(": ").map_or(&*fault.path, |(key, _)| key);
        let list = || RESOURCE_LISTS.iter().copied().find(|list| key.starts_with(list)).unwrap_or_default();
        let (list, index) = places.get(key).map_or_else(|| (list(), None), |(list, index)| (*list, Some(*index)));
        if index.is_none() || known.insert((list, index)) {
            errors.push(ListError { list, index, problem: message(fault) });
        }
    }
    errors
}

/// The same fault, with a path relative to the resource.
fn below(fault: &Diagnostic) -> Diagnostic {
    let rest = fault.path.split_once(']').map_or("", |(_, rest)| rest.trim_start_matches('.'));
    Diagnostic { path: rest.to_owned(), ..fault.clone() }
}
