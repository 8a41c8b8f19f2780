//! A node that starts from a store serves what can be served, and names the rest.

use std::sync::{Arc, Mutex};

use weir_control::stores::embedded::EmbeddedStore;
use weir_control::stores::resources::{Author, ResourceChange, ResourceKey, RevisionRecord, StoredResource};
use weir_control::stores::store::ResourceStore;
use weir_control::{
    Diagnostic, DocumentLoader, PreparedPublication, Publication, Publisher, Subscriber, publish_first,
};
use weir_plugin::Registry;
use weir_testkit::TempDir;

/// Keeps what is refused.
#[derive(Clone, Default)]
struct Refusals(Arc<Mutex<Vec<Diagnostic>>>);

impl Subscriber for Refusals {
    fn published(&self, _: &Publication, _: PreparedPublication<'_>) {}

    fn refused(&self, diagnostics: &[Diagnostic]) {
        self.0.lock().expect("nobody panics with it").extend_from_slice(diagnostics);
    }
}

fn stored(key: &str, json: &str) -> ResourceChange {
    let after = StoredResource { json: json.into(), created: 1, modified: 1, expires_ms: None };
    ResourceChange { key: ResourceKey::parse(key).expect("a key"), before: None, after: Some(after) }
}

fn kept_in(directory: &TempDir, changes: Vec<ResourceChange>) {
    let store = EmbeddedStore::open(&directory.join("store.redb"), 10).expect("a new store");
    let record = RevisionRecord { revision: 1, at_ms: 1, author: Author::default(), changes };
    store.commit(&[record]).expect("a disk");
}

#[test]
fn one_bad_resource_among_many_is_set_aside_by_name() {
    let directory = TempDir::new();
    let mut changes: Vec<ResourceChange> = (0..100)
        .map(|number| stored(&format!("routes/r{number}"), &format!("{{\"uri\":\"/{number}\",\"upstream_id\":\"u\"}}")))
        .collect();
    changes.push(stored("upstreams/u", "{\"nodes\":{\"127.0.0.1:9\":1}}"));
    changes.push(stored("upstreams/bad", "{\"nodes\":7}"));
    changes.push(stored("routes/bad", "{\"uri\":\"/bad\",\"upstream_id\":\"bad\"}"));
    changes.push(stored("routes/worse", "{\"uri\":7}"));
    kept_in(&directory, changes);
    let file = directory.write("weir.yaml", "store: { path: store.redb }\n");
    let (mut loader, loaded) = DocumentLoader::open(&file).expect("a good file");
    let refusals = Refusals::default();
    let publisher = Publisher::new("weir.yaml", Registry::new(&[]), Box::new(refusals.clone()));
    let (_, publication) = publish_first(&mut loader, loaded, &publisher).expect("the rest serves");
    // `routes/bad` is closed; of `routes/worse`, nothing says which requests it is for.
    assert_eq!(publication.snapshot.routes.len(), 101);
    let aside = loader.live().expect("it has a store").set_aside();
    let keys: Vec<&str> = aside.keys().map(ResourceKey::as_str).collect();
    assert_eq!(keys, ["routes/bad", "routes/worse", "upstreams/bad"]);
    let warnings: Vec<String> = publication.warnings.iter().map(ToString::to_string).collect();
    assert!(
        warnings.iter().any(|warning| warning.contains("routes/worse") && warning.contains("not served")),
        "{warnings:?}"
    );
    assert_eq!(publisher.status().store_revision, Some(1));
    assert!(refusals.0.lock().expect("nobody panics with it").is_empty());
}

#[test]
fn a_file_that_is_wrong_is_refused_whatever_the_store_holds() {
    let directory = TempDir::new();
    kept_in(&directory, vec![stored("upstreams/u", "{\"nodes\":{\"127.0.0.1:9\":1}}")]);
    let file = directory.write("weir.yaml", "store: { path: store.redb }\nlisten: [nothing]\n");
    let faults = DocumentLoader::open(&file).err().expect("it is refused");
    assert!(faults[0].to_string().contains("`nothing` is not an address"), "{faults:?}");
}
