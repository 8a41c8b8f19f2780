//! A panic of one piece of code is a refusal. The thread that makes all changes goes on.

use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_control::stores::resources::{Author, ResourceKey, ResourceView};
use weir_control::stores::{ResourceEdit, WriteOutcome, WriteRequest};
use weir_control::{
    ConfigWatch, Diagnostic, DocumentLoader, PreparedPublication, Publication, Publisher, Subscriber, publish_first,
    watch,
};
use weir_plugin::{Build, ConfigError, Definition, Entry, Plugin, Registry, Stage};
use weir_testkit::TempDir;

/// A plugin whose build panics.
#[derive(Deserialize, JsonSchema)]
struct Panics {}

impl Definition for Panics {
    const NAME: &'static str = "panics";
    const PRIORITY: i32 = 1;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "panics: {}";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        panic!("as asked");
    }
}

struct Silent;

impl Subscriber for Silent {
    fn published(&self, _: &Publication, _: PreparedPublication<'_>) {}

    fn refused(&self, _: &[Diagnostic]) {}
}

fn node(directory: &TempDir) -> ConfigWatch {
    let file: PathBuf = directory.write("weir.yaml", "store: { path: store.redb }\n");
    let (mut loader, loaded) = DocumentLoader::open(&file).unwrap_or_else(|faults| panic!("{faults:#?}"));
    let registry = Registry::new(&[const { Entry::of::<Panics>() }]);
    let publisher = Arc::new(Publisher::new("weir.yaml", registry, Box::new(Silent)));
    let (loaded, _) = publish_first(&mut loader, loaded, &publisher).unwrap_or_else(|faults| panic!("{faults:#?}"));
    watch(loader, loaded, publisher).expect("a thread")
}

fn write(watch: &ConfigWatch, plan: impl Fn() -> Value + Send + Sync + 'static) -> WriteOutcome {
    let plan = Box::new(move |_: &ResourceView| {
        let key = ResourceKey::new("routes", "one");
        Ok(vec![ResourceEdit::Put { key, value: plan(), expires_ms: None }])
    });
    let request =
        WriteRequest { plan, author: Author::default(), of_admin: true, forced: false, pattern_bytes: 1 << 20 };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(watch.writer().write(request))
}

#[test]
fn a_plan_that_panics_fails_alone() {
    let directory = TempDir::new();
    let watch = node(&directory);
    let outcome = write(&watch, || panic!("as asked"));
    assert!(matches!(outcome, WriteOutcome::Failed(_)), "{outcome:?}");
    let outcome = write(&watch, || json!({ "uri": "/", "plugins": {} }));
    assert!(matches!(outcome, WriteOutcome::Applied(_)), "{outcome:?}");
}

#[test]
fn a_plugin_whose_build_panics_is_refused() {
    let directory = TempDir::new();
    let watch = node(&directory);
    let outcome = write(&watch, || json!({ "uri": "/", "plugins": { "panics": {} } }));
    assert!(!matches!(outcome, WriteOutcome::Applied(_)), "{outcome:?}");
    assert!(format!("{outcome:?}").contains("internal error"), "{outcome:?}");
    let outcome = write(&watch, || json!({ "uri": "/", "plugins": {} }));
    assert!(matches!(outcome, WriteOutcome::Applied(_)), "{outcome:?}");
}
