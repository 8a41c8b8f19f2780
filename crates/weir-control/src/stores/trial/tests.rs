//! Random writes to every kind of store of this process, with faults and dropped trials: what is committed and what is staged are
//! together what a trial shows, and nothing else stays of a trial that is not committed.

use std::cell::Cell;
use std::sync::Mutex;

use serde_json::{Value, json};
use weir_testkit::TempDir;

use super::super::embedded::EmbeddedStore;
use super::super::encrypted::EncryptedStore;
use super::super::memory::MemoryStore;
use super::super::secret_cipher::{CipherForm, SecretCipher};
use super::super::store::{ResourceStore, StoreFailure};
use super::*;

/// A store that fails when it is told to.
struct FaultyStore {
    store: Box<dyn ResourceStore>,
    next: Arc<Mutex<Option<CommitFailure>>>,
}

impl ResourceStore for FaultyStore {
    fn name(&self) -> String {
        self.store.name()
    }

    fn load(&self) -> Result<ResourceSet, StoreFailure> {
        self.store.load()
    }

    fn commit(&self, revisions: &[RevisionRecord]) -> Result<u64, CommitFailure> {
        match self.next.lock().expect("no thread panics while it holds this lock").take() {
            Some(failure) => Err(failure),
            None => self.store.commit(revisions),
        }
    }

    fn history(&self, before: u64, count: usize) -> Result<Vec<RevisionRecord>, StoreFailure> {
        self.store.history(before, count)
    }
}

type Model = BTreeMap<ResourceKey, Value>;

fn of_view(view: &ResourceView) -> Model {
    let all = RESOURCE_LISTS.iter().flat_map(|list| view.list(list));
    all.map(|(key, resource)| (key.clone(), resource.value())).collect()
}

fn of_live(live: &Arc<LiveResources>) -> Model {
    live.committed().all.iter().map(|(key, resource)| (key.clone(), resource.value())).collect()
}

fn random_edit(random: &mut fastrand::Rng, number: u64) -> ResourceEdit {
    let list = *random.choice(&["routes", "upstreams", "consumers", "ssls"]).expect("there are some");
    let key = ResourceKey::new(list, &format!("k{}", random.u8(0..12)));
    match random.u8(0..3) {
        0 => ResourceEdit::Delete { key },
        _ => ResourceEdit::Put { key, value: json!({ "desc": number.to_string() }), expires_ms: None },
    }
}

fn apply(model: &mut Model, edits: &[ResourceEdit]) {
    for edit in edits {
        match edit {
            ResourceEdit::Put { key, value, .. } => drop(model.insert(key.clone(), value.clone())),
            ResourceEdit::Delete { key } => drop(model.remove(key)),
        }
    }
}

fn keeps_what_is_committed(store: Box<dyn ResourceStore>, seed: u64) {
    let (mut random, next) = (fastrand::Rng::with_seed(seed), Arc::default());
    let live = LiveResources::of_store(Box::new(FaultyStore { store, next: Arc::clone(&next) })).expect("it loads");
    let live = Arc::new(live);
    let (mut model, numbers, source) = (Model::new(), Cell::new(0), Arc::from("store"));
    let access = Arc::default();
    // A reader that began earlier keeps what it saw.
    let mut earlier = (live.begin(), model.clone());
    for _ in 0..300 {
        let (mut trial, mut staged) = (live.begin(), model.clone());
        let revision = trial.revision();
        for _ in 0..random.u8(0..4) {
            let edits: Vec<ResourceEdit> = (0..random.u8(0..5))
                .map(|_| {
                    numbers.set(numbers.get() + 1);
                    random_edit(&mut random, numbers.get())
                })
                .collect();
            apply(&mut staged, &edits);
            trial.stage(edits, Author::default());
            assert_eq!(of_view(&trial.view()), staged);
        }
        if random.bool() {
            let faulty = staged.keys().next().cloned().into_iter();
            let fault = |key: ResourceKey| (key, Diagnostic::of_source(&source, "a fault"));
            trial.lists(&source, &access);
            trial.leave_out(faulty.map(fault).collect());
            trial.lists(&source, &access);
        }
        assert_eq!(of_live(&live), model, "nothing shows before it is committed");
        let aside = live.set_aside();
        match random.u8(0..5) {
            0 => drop(trial),
            1 => {
                *next.lock().expect("no thread panics while it holds this lock") = Some(match random.bool() {
                    true => CommitFailure::MovedOn,
                    false => CommitFailure::Failed(StoreFailure::new("the disk is full", "")),
                });
                let failed = trial.is_change() && trial.commit().is_err();
                *next.lock().expect("no thread panics while it holds this lock") = None;
                if !failed {
                    model = of_live(&live);
                }
            }
            _ => {
                let is_change = trial.is_change();
                let committed = trial.commit().expect("it can be written");
                assert_eq!(committed.is_some(), is_change);
                assert!(live.committed().revision >= revision);
                model = staged;
                assert_eq!(of_view(&trial.view()), model);
            }
        }
        assert_eq!(of_live(&live), model);
        assert_eq!(of_view(&live.begin().view()), model);
        assert!(live.set_aside().keys().all(|key| model.contains_key(key) || aside.contains_key(key)));
        assert_eq!(of_view(&earlier.0.view()), earlier.1);
        if random.u8(0..10) == 0 {
            earlier = (live.begin(), model.clone());
        }
    }
    let stored = live.store().load().map(|set| set.all).unwrap_or_default();
    let is_kept = live.store().name() != "memory";
    assert!(!is_kept || stored == live.committed().all, "the store has what is committed");
}

#[test]
fn a_trial_shows_what_is_committed_and_staged_and_leaves_nothing_when_it_is_dropped() {
    for seed in 0..4 {
        keeps_what_is_committed(Box::new(MemoryStore::new(100, u64::MAX)), seed);
        let directory = TempDir::new();
        let embedded = || EmbeddedStore::open(&directory.join("store.redb"), 100).expect("a new store");
        keeps_what_is_committed(Box::new(embedded()), seed);
        let directory = TempDir::new();
        let embedded = EmbeddedStore::open(&directory.join("store.redb"), 100).expect("a new store");
        let cipher = SecretCipher::new(CipherForm::Weir, None);
        keeps_what_is_committed(Box::new(EncryptedStore::new(embedded, cipher)), seed);
    }
}

/// A store that closes what cannot be served.
struct ClosingStore(MemoryStore);

impl ResourceStore for ClosingStore {
    fn name(&self) -> String {
        self.0.name()
    }

    fn load(&self) -> Result<ResourceSet, StoreFailure> {
        self.0.load()
    }

    fn commit(&self, revisions: &[RevisionRecord]) -> Result<u64, CommitFailure> {
        self.0.commit(revisions)
    }

    fn history(&self, before: u64, count: usize) -> Result<Vec<RevisionRecord>, StoreFailure> {
        self.0.history(before, count)
    }

    fn substitute(&self, _: &ResourceKey, json: &str) -> Substitute {
        let mut value: Value = serde_json::from_str(json).expect("JSON");
        value["closed"] = true.into();
        Substitute::Text(value.to_string().into())
    }
}

#[test]
fn a_faulty_resource_is_served_closed_or_at_last_as_the_version_before() {
    let store = ClosingStore(MemoryStore::new(100, u64::MAX));
    let live = Arc::new(LiveResources::of_store(Box::new(store)).expect("it loads"));
    let (key, source) = (ResourceKey::new("routes", "r"), Arc::from("store"));
    let edit = |uri: &str| ResourceEdit::Put { key: key.clone(), value: json!({ "uri": uri }), expires_ms: None };
    let mut trial = live.begin();
    trial.stage(vec![edit("/before")], Author::default());
    trial.lists(&source, &Arc::default());
    trial.commit().expect("it is in memory");

    let mut trial = live.begin();
    trial.stage(vec![edit("/new")], Author::default());
    let mut round = || {
        let fault = Diagnostic::of_source(&source, "a fault");
        trial.leave_out([(key.clone(), fault)].into());
        trial.form.instead.get(&key).map(|text| serde_json::from_str::<Value>(text).expect("JSON"))
    };
    let closed = |uri: &str| Some(json!({ "uri": uri, "closed": true }));
    assert_eq!([round(), round(), round()], [closed("/new"), closed("/before"), None]);
}
