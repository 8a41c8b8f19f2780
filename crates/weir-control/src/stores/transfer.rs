//! Import of resources into a store, and export from it, on a node that is not running.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};
use weir_plugin::Registry;

use super::embedded::IN_USE;
use super::file_access::FileAccess;
use super::live::{LiveResources, ResourceEdit};
use super::loader::{DocumentLoader, LoadedDocument};
use super::open::with_store;
use super::resources::{Author, ResourceKey, StoredResource};
use super::shared::SharedStore;
use super::store::{CommitFailure, StoreFailure};
use crate::compile::compile;
use crate::data_directory::store_path;
use crate::document::StoreKind;
use crate::text::diagnostic::Diagnostic;

/// The most changes in one transaction of a shared store, if they are small.
const AT_A_TIME: usize = 100;

/// The lists in the order in which their resources are written: what others refer to comes before them.
const ORDER: [&str; 13] = [
    "secrets",
    "protos",
    "plugin_metadata",
    "listeners",
    "ssls",
    "upstreams",
    "services",
    "plugin_configs",
    "consumer_groups",
    "consumers",
    "global_rules",
    "routes",
    "stream_routes",
];

/// What is exported of a store.
#[derive(Debug)]
pub struct StoreExport {
    /// The resources, as lists of a configuration file.
    pub resources: Value,
    /// The faults of the resources that are not among them, since an import would refuse them. One resource may have several.
    pub left_out: Vec<Diagnostic>,
    /// The number of these resources.
    pub missing: usize,
    /// What other resources lack outside of the configuration, such as a file. They are exported.
    pub lacking: Vec<Diagnostic>,
}

/// The resources of a store that can be imported again, and the faults of the others.
///
/// # Errors
/// If the file configures no store, or the store cannot be read.
pub fn export_store(file: &Path, registry: &Registry) -> Result<StoreExport, Vec<Diagnostic>> {
    let loaded = DocumentLoader::of_file_directly(file).read()?;
    must_exist(file, &loaded)?;
    let (mut loader, live) = opened(file, &loaded)?;
    let (faulty, lacking) = faulty_resources(&mut loader, &live, registry)?;
    let committed = live.committed();
    let whole = committed.all.iter().filter(|(key, _)| !faulty.contains_key(*key));
    let (resources, missing) = (as_lists(whole), faulty.len());
    Ok(StoreExport { resources, left_out: faulty.into_values().flatten().collect(), missing, lacking })
}

type FaultsOfResources = BTreeMap<ResourceKey, Vec<Diagnostic>>;

/// The resources with faults in their text, and those that refer to such a resource. The second part are faults of others, which lack
/// something outside of the configuration.
fn faulty_resources(
    loader: &mut DocumentLoader,
    live: &Arc<LiveResources>,
    registry: &Registry,
) -> Result<(FaultsOfResources, Vec<Diagnostic>), Vec<Diagnostic>> {
    let mut faulty = FaultsOfResources::new();
    // Each round leaves out at least one resource, and those that refer to it are found by the next.
    loop {
        let mut trial = live.begin();
        let gone = faulty.keys().map(|key| ResourceEdit::Delete { key: key.clone() }).collect();
        trial.stage(gone, Author::default());
        let loaded = loader.read_trial(Some(&mut trial))?;
        let Err(faults) = compile(&loaded.document, registry, None) else { return Ok((faulty, Vec::new())) };
        let sorted = trial.sort(&faults).resources;
        let is_of_text = |faults: &Vec<Diagnostic>| faults.iter().any(|fault| !fault.cause.is_outside());
        let (new, lacking): (BTreeMap<_, _>, BTreeMap<_, _>) =
            sorted.into_iter().partition(|(_, faults)| is_of_text(faults));
        if new.is_empty() {
            return Ok((faulty, lacking.into_values().flatten().collect()));
        }
        faulty.extend(new);
    }
}

fn as_lists<'r>(resources: impl Iterator<Item = (&'r ResourceKey, &'r StoredResource)>) -> Value {
    let mut lists: Map<String, Value> = Map::new();
    for (key, resource) in resources {
        let mut value = resource.value();
        let needs_id = key.list() != "consumers" || key.consumer_of_credential().is_some();
        if let Some(members) = value.as_object_mut().filter(|_| needs_id) {
            members.insert("id".to_owned(), key.id().into());
        }
        let list = lists.entry(key.list()).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(items) = list {
            items.push(value);
        }
    }
    Value::Object(lists)
}

/// Replaces all resources of a store by these, in one revision, if they can be served. Returns the number of changes, and the
/// revision.
///
/// # Errors
/// All faults of the resources, or that the store cannot be written.
pub fn import_into_store(
    file: &Path,
    resources: BTreeMap<ResourceKey, Value>,
    registry: &Registry,
) -> Result<(usize, u64), Vec<Diagnostic>> {
    let (mut loader, live) = opened(file, &DocumentLoader::of_file_directly(file).read()?)?;
    // Resources encrypted with an old key are written again.
    let outdated = live.store().outdated();
    let mut trial = live.begin();
    let edits = {
        let view = trial.view();
        let mut edits: Vec<ResourceEdit> = Vec::new();
        for (key, value) in &resources {
            if outdated.contains(key) || view.get(key).is_none_or(|stored| *stored.json != *value.to_string()) {
                edits.push(ResourceEdit::Put { key: key.clone(), value: value.clone(), expires_ms: None });
            }
        }
        let gone = view.set.all.keys().filter(|key| !resources.contains_key(*key));
        edits.extend(gone.map(|key| ResourceEdit::Delete { key: key.clone() }));
        sort_by_references(&mut edits);
        edits
    };
    if edits.is_empty() {
        return Ok((0, trial.revision()));
    }
    let author = Author { name: "weir store import".to_owned(), ..Author::default() };
    let record = trial.stage(edits.clone(), author);
    let loaded = loader.read_trial(Some(&mut trial))?;
    compile(&loaded.document, registry, None).map_err(|faults| trial.sort(&faults).into_all())?;
    let failed = |failure| match failure {
        CommitFailure::Failed(failure) => vec![told(loader.source_name(), failure)],
        CommitFailure::MovedOn => {
            let failure = StoreFailure::new("the store was changed during the import", "repeat the import");
            vec![told(loader.source_name(), failure)]
        }
    };
    let Some(shared) = live.store().shared() else {
        trial.commit().map_err(failed)?;
        return Ok((record.changes.len(), record.revision));
    };
    // A transaction of a shared store is limited, so there are several; nodes may serve the states in between. Nothing is written
    // unless all of them fit.
    drop(trial);
    let mut transactions = Vec::new();
    for some in edits.chunks(AT_A_TIME) {
        split(&live, shared, some, &record.author, &mut transactions)
            .map_err(|failure| vec![told(loader.source_name(), failure)])?;
    }
    let mut revision = 0;
    for some in transactions {
        let mut trial = live.begin();
        trial.stage(some.to_vec(), record.author.clone());
        revision = trial.commit().map_err(failed)?.unwrap_or(revision);
    }
    Ok((record.changes.len(), revision))
}

/// Sorts edits so that between several transactions no resource refers to one that is not there yet, or not any more. Deletions are
/// last: nothing is gone before its replacement is there.
fn sort_by_references(edits: &mut [ResourceEdit]) {
    let rank = |key: &ResourceKey| ORDER.iter().position(|list| *list == key.list()).unwrap_or(ORDER.len());
    edits.sort_by_key(|edit| match edit {
        ResourceEdit::Put { key, .. } => rank(key),
        ResourceEdit::Delete { key } => 2 * ORDER.len() + 1 - rank(key),
    });
}

/// Splits edits into transactions that the store accepts.
fn split<'e>(
    live: &Arc<LiveResources>,
    shared: &dyn SharedStore,
    edits: &'e [ResourceEdit],
    author: &Author,
    into: &mut Vec<&'e [ResourceEdit]>,
) -> Result<(), StoreFailure> {
    let record = live.begin().stage(edits.to_vec(), author.clone());
    match (shared.fits(&record), &record.changes[..]) {
        (Ok(()), _) => into.push(edits),
        (Err(failure), [only]) => {
            let problem = format!("{}: {}; nothing was imported", only.key, failure.problem);
            return Err(StoreFailure::new(problem, "make this resource smaller"));
        }
        (Err(_), _) => {
            let (first, second) = edits.split_at(edits.len() / 2);
            split(live, shared, first, author, into)?;
            split(live, shared, second, author, into)?;
        }
    }
    Ok(())
}

/// A store that is not there would be made, and an empty export looks like a backup.
fn must_exist(file: &Path, loaded: &LoadedDocument) -> Result<(), Vec<Diagnostic>> {
    let settings = &loaded.document.settings;
    let Some(StoreKind::Embedded { path }) = settings.store.as_ref().map(|store| &store.kind) else { return Ok(()) };
    let path = store_path(settings, path.as_deref(), file.parent().unwrap_or(Path::new("")));
    if path.exists() {
        return Ok(());
    }
    let fault = Diagnostic::of_source(&loaded.document.source, format!("there is no store {}", path.display()));
    let advice =
        "set `data_dir` to the directory of the node; systemd gives a service one of its own, such as /var/lib/weir";
    Err(vec![fault.advise(advice).outside()])
}

fn opened(file: &Path, loaded: &LoadedDocument) -> Result<(DocumentLoader, Arc<LiveResources>), Vec<Diagnostic>> {
    let loader = with_store(file, FileAccess::direct(), loaded, (Registry::new(&[]), &|_| ()));
    let loader = loader.map_err(|faults| faults.into_iter().map(of_a_running_node).collect::<Vec<_>>())?;
    let found = loader.and_then(|loader| loader.live().map(Arc::clone).map(|live| (loader, live)));
    found.ok_or_else(|| {
        let problem = "has no store: the resources of this node stand in this file and those that it includes";
        let fault = Diagnostic::of_source(&loaded.document.source, problem);
        vec![fault.advise("use the file itself, as `weir check FILE` does; for a store add `admin` or `store` to it")]
    })
}

/// A store that is open belongs to a node that runs, and can be asked.
fn of_a_running_node(fault: Diagnostic) -> Diagnostic {
    match fault.problem.ends_with(IN_USE) {
        true => {
            fault.advise("stop the node; while it runs, `weir get` shows its resources, and `weir apply` changes them")
        }
        false => fault,
    }
}

fn told(source: &Arc<str>, failure: StoreFailure) -> Diagnostic {
    Diagnostic::of_source(source, failure.problem).advise(failure.advice).outside()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{RESOURCE_LISTS, kinds};

    #[test]
    fn lists_come_after_those_that_they_refer_to() {
        let rank = |list: &str| ORDER.iter().position(|other| *other == list).expect(list);
        for list in RESOURCE_LISTS.iter().copied() {
            let kind = kinds::find(list).expect(list);
            for (key, other) in kind.references().filter(|(_, other)| *other != list && RESOURCE_LISTS.contains(other))
            {
                assert!(rank(other) < rank(list), "`{key}` of {list} refers to {other}");
            }
        }
        assert_eq!(ORDER.len(), RESOURCE_LISTS.len());
    }

    #[test]
    fn deletions_come_last_and_in_the_other_order() {
        let key = ResourceKey::new;
        let put = |key| ResourceEdit::Put { key, value: Value::Null, expires_ms: None };
        let delete = |key| ResourceEdit::Delete { key };
        let mut edits = [
            delete(key("upstreams", "old")),
            delete(key("routes", "old")),
            put(key("routes", "new")),
            put(key("upstreams", "new")),
        ];
        sort_by_references(&mut edits);
        let told = edits.iter().map(|edit| match edit {
            ResourceEdit::Put { key, .. } => format!("+{key}"),
            ResourceEdit::Delete { key } => format!("-{key}"),
        });
        let told: Vec<String> = told.collect();
        assert_eq!(told, ["+upstreams/new", "+routes/new", "-routes/old", "-upstreams/old"]);
    }
}
