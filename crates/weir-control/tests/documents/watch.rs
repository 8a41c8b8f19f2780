//! A file that is watched: what happens to it is served, or refused and said.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use weir_control::stores::{FileAccess, FileSource};
use weir_control::{
    ConfigStatus, ConfigWatch, Diagnostic, DocumentLoader, PreparedPublication, Publication, Publisher, Subscriber,
    watch,
};
use weir_testkit::{DEADLINE, TempDir, eventually, eventually_some};

use crate::plugins;

/// What was published and refused, in order.
#[derive(Clone, Default)]
struct PublishedEvents(Arc<Mutex<Vec<Event>>>);

#[derive(Clone, Debug, PartialEq)]
enum Event {
    Published { revision: u64, routes: usize, warnings: Vec<String> },
    Refused(Vec<String>),
}

fn lines(diagnostics: &[Diagnostic]) -> Vec<String> {
    let text = |diagnostic: &Diagnostic| diagnostic.to_string();
    // Without the directory, which has another name each time.
    diagnostics.iter().map(text).map(|line| line[line.rfind("weir.yaml").unwrap_or(0)..].to_owned()).collect()
}

impl PublishedEvents {
    fn say(&self, event: Event) {
        self.0.lock().expect("nobody panics").push(event);
    }

    fn last(&self) -> Option<Event> {
        self.0.lock().expect("nobody panics").last().cloned()
    }
}

impl Subscriber for PublishedEvents {
    fn published(&self, publication: &Publication, _: PreparedPublication<'_>) {
        assert_eq!(publication.revision, publication.snapshot.revision);
        self.say(Event::Published {
            revision: publication.revision,
            routes: publication.snapshot.routes.len(),
            warnings: lines(&publication.warnings),
        });
    }

    fn refused(&self, diagnostics: &[Diagnostic]) {
        self.say(Event::Refused(lines(diagnostics)));
    }
}

struct Node {
    publisher: Arc<Publisher>,
    heard: PublishedEvents,
    watch: ConfigWatch,
}

fn start(path: &Path) -> Node {
    start_with(DocumentLoader::of_file(path))
}

fn start_with(mut loader: DocumentLoader) -> Node {
    let heard = PublishedEvents::default();
    let publisher = Arc::new(Publisher::new(loader.source_name(), plugins::REGISTRY, Box::new(heard.clone())));
    let loaded = loader.load().expect("the first version is good");
    publisher
        .publish(&loaded.document, loaded.revision.clone(), loaded.warnings.clone())
        .expect("the first version is published");
    let watch = watch(loader, loaded, publisher.clone()).expect("a thread can be started");
    Node { publisher, heard, watch }
}

impl Node {
    fn status_when(&self, what: &str, fact: impl Fn(&ConfigStatus) -> bool) -> Arc<ConfigStatus> {
        eventually_some(what, DEADLINE, || Some(self.publisher.status()).filter(|status| fact(status)))
    }

    fn serves(&self, routes: usize) -> Arc<ConfigStatus> {
        self.status_when(&format!("{routes} routes are served"), |status| {
            status.routes == routes && status.last_error.is_none()
        })
    }

    fn refuses(&self, problem: &str) -> Arc<ConfigStatus> {
        self.status_when(&format!("refused: {problem}"), |status| {
            let refusal = status.last_error.as_ref();
            refusal.is_some_and(|refusal| refusal.diagnostics.iter().any(|found| found.problem.contains(problem)))
        })
    }
}

fn routes(count: usize) -> String {
    (0..count).fold("routes:\n".to_owned(), |text, number| format!("{text}  - {{ uri: /{number}, plugins: {{}} }}\n"))
}

/// In one step, so that no half-written version can be seen however slow the machine is.
fn replace(directory: &TempDir, content: impl AsRef<[u8]>) {
    let new = directory.write("new", content);
    fs::rename(new, directory.join("weir.yaml")).expect("the file can be replaced");
}

#[test]
fn a_change_is_served_and_a_bad_one_is_refused_whole() {
    let directory = TempDir::new();
    let path = directory.write("weir.yaml", routes(1));
    let node = start(&path);
    let first = node.publisher.status();
    assert_eq!((first.revision, first.routes, first.reloads_ok, first.reloads_failed), (1, 1, 0, 0));

    replace(&directory, routes(2));
    let second = node.serves(2);
    assert_eq!((second.revision, second.reloads_ok), (2, 1));
    assert_ne!(second.hash, first.hash);

    // F13: truncated, an unknown option, a plugin's schema, no text, larger than allowed, gone.
    replace(&directory, "routes:\n  - { uri: /a, plugins: {");
    node.refuses("is not YAML");
    replace(&directory, "routes:\n  - { uri: /a, plugin: {} }\n");
    node.refuses("the key `plugin` is not known");
    replace(&directory, "routes:\n  - { uri: /a, plugins: { mark-early: { txt: a } } }\n");
    node.refuses("the option `txt` is not known");
    replace(&directory, b"routes: \xff");
    node.refuses("is not UTF-8");
    replace(&directory, vec![b'#'; 50_000_001]);
    node.refuses("is larger than 50000000 bytes");
    replace(&directory, "");
    node.refuses("contains no configuration");
    fs::remove_file(&path).expect("the file can go");
    let gone = node.refuses("cannot be read: No such file or directory");
    assert_eq!((gone.revision, gone.routes, gone.reloads_ok, gone.reloads_failed), (2, 2, 1, 7));
    assert_eq!(gone.hash, second.hash);
    let Some(Event::Refused(lines)) = node.heard.last() else { panic!("a refusal is said") };
    assert_eq!(lines, ["weir.yaml: cannot be read: No such file or directory (os error 2)"]);

    replace(&directory, routes(3));
    let third = node.serves(3);
    assert_eq!((third.revision, third.reloads_ok, third.reloads_failed), (3, 2, 7));
    assert!(matches!(node.heard.last(), Some(Event::Published { revision: 3, routes: 3, .. })));
}

#[test]
fn an_editor_that_replaces_the_file_is_followed() {
    let directory = TempDir::new();
    let path = directory.write("weir.yaml", routes(1));
    let node = start(&path);
    for count in 2..5 {
        replace(&directory, routes(count));
        node.serves(count);
        directory.write("weir.yaml", routes(count + 10));
        node.serves(count + 10);
    }
}

#[test]
fn links_are_followed_where_they_lead() {
    // As Kubernetes mounts a ConfigMap: weir.yaml -> ..data/weir.yaml, ..data -> a directory that changes.
    let directory = TempDir::new();
    let version = |name: &str, count| {
        fs::create_dir(directory.join(name)).expect("a directory can be made");
        fs::write(directory.join(name).join("weir.yaml"), routes(count)).expect("the file can be written");
    };
    version("..2026_1", 1);
    symlink("..2026_1", directory.join("..data")).expect("a link can be made");
    symlink("..data/weir.yaml", directory.join("weir.yaml")).expect("a link can be made");
    let node = start(&directory.join("weir.yaml"));

    version("..2026_2", 2);
    symlink("..2026_2", directory.join("..data_tmp")).expect("a link can be made");
    fs::rename(directory.join("..data_tmp"), directory.join("..data")).expect("the link can be turned");
    fs::remove_dir_all(directory.join("..2026_1")).expect("the old version can go");
    node.serves(2);
}

#[test]
fn a_link_to_another_directory_is_noticed_without_notifications() {
    let (there, here) = (TempDir::new(), TempDir::new());
    let target = there.write("real.yaml", routes(1));
    symlink(&target, here.join("weir.yaml")).expect("a link can be made");
    let node = start(&here.join("weir.yaml"));
    there.write("real.yaml", routes(2));
    node.serves(2);
}

#[test]
fn a_file_that_lost_its_end_mark_is_taken_only_when_asked_for() {
    let directory = TempDir::new();
    let path = directory.write("weir.yaml", routes(2) + "#END\n");
    let node = start(&path);
    directory.write("weir.yaml", routes(1));
    let refused = node.refuses("has no `#END` line");
    assert_eq!(refused.routes, 2);
    node.watch.reload();
    node.serves(1);
    directory.write("weir.yaml", routes(3));
    node.serves(3);
}

#[test]
fn a_reload_publishes_without_a_change() {
    let directory = TempDir::new();
    let node = start(&directory.write("weir.yaml", routes(1)));
    node.watch.reload();
    let status = node.status_when("the second revision", |status| status.revision == 2);
    assert_eq!(status.reloads_ok, 1);
}

#[test]
fn setting_that_a_running_node_cannot_change_is_a_warning() {
    let directory = TempDir::new();
    let node = start(&directory.write("weir.yaml", format!("status: '127.0.0.1:7085'\n{}", routes(1))));
    directory.write("weir.yaml", format!("status: '127.0.0.1:7086'\n{}", routes(2)));
    let status = node.serves(2);
    assert_eq!(
        lines(&status.warnings),
        ["weir.yaml:1:9: status: has changed, and a running node cannot apply this change; \
             it takes effect at the next start or binary upgrade"]
    );
}

#[test]
fn a_name_without_an_address_is_a_warning_and_the_rest_serves() {
    let directory = TempDir::new();
    let path = directory.write(
        "weir.yaml",
        "routes:\n  - uri: /a\n    upstream: { nodes: { \"nowhere.invalid:80\": 1, \"127.0.0.1:80\": 1 } }\n",
    );
    let node = start(&path);
    let warnings = lines(&node.publisher.status().warnings);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("weir.yaml:3:26: the name `nowhere.invalid` cannot be resolved: "), "{warnings:?}");
    assert!(warnings[0].ends_with("; its nodes get no requests until the name can be resolved"), "{warnings:?}");
}

#[test]
fn a_hundred_changes_in_a_row_end_with_the_last() {
    let directory = TempDir::new();
    let path = directory.write("weir.yaml", routes(1));
    let node = start(&path);
    for count in (2..100).chain([7]) {
        directory.write("weir.yaml", routes(count));
    }
    node.serves(7);
}

#[test]
fn status_is_ready_to_be_shown() {
    let directory = TempDir::new();
    let node = start(&directory.write("weir.yaml", routes(1)));
    directory.write("weir.yaml", "routes: 5\n");
    let status = node.refuses("expected a list");
    let json = serde_json::to_value(&*status).expect("is JSON");
    assert_eq!(json["revision"], 1);
    assert_eq!(json["last_error"]["diagnostics"][0]["path"], "routes");
    assert_eq!(json["last_error"]["diagnostics"][0]["line"], 1);
    assert!(json["loaded_at"].as_u64().is_some_and(|ms| ms > 1_700_000_000_000));
}

#[test]
fn dropping_the_watch_ends_it() {
    let directory = TempDir::new();
    let Node { publisher, heard, watch } = start(&directory.write("weir.yaml", routes(1)));
    drop(watch);
    eventually("the watch lets go of the publisher", DEADLINE, || Arc::strong_count(&publisher) == 1);
    directory.write("weir.yaml", routes(2));
    assert!(matches!(heard.last(), Some(Event::Published { revision: 1, .. })));
}

/// A FIFO in the place of the file: opened for reading, it would wait for a writer for ever.
#[test]
fn p12_a_file_that_cannot_be_read_to_its_end_is_refused_and_wedges_nothing() {
    let directory = TempDir::new();
    let path = directory.write("weir.yaml", routes(1));
    let files = FileAccess::limited_to(Duration::from_millis(500));
    let node = start_with(DocumentLoader::new(FileSource::new(&path, files.clone()), files));
    let fifo = directory.join("new");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a directory of our own");
    fs::rename(&fifo, &path).expect("the file can be replaced");
    node.refuses("cannot be read: no data was written to the pipe in time");
    // More than any queue holds, and none waits.
    (0..1_000).for_each(|_| node.watch.reload());
    replace(&directory, routes(2));
    node.serves(2);
}
