//! What a first day asks for, by pointer and by keys, with the resources in each kind of store. How a page is used is counted; a task
//! has an upper bound of clicks, and all counts are those of the table in `docs/decisions/console.md`.

mod change;
mod hub;
mod look;

pub(crate) use hub::start as start_hub;

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use weir_testkit::{BrowserPage, DEADLINE, Uses, eventually, is_full, runs_for_minutes};

use crate::bench::{Bench, Company, Store, resources, ten_thousand_routes};

/// The node that a task is done on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Node {
    /// With a few resources of each kind.
    Usual,
    /// With 10,000 routes.
    Large,
    /// With a hub that has given up two deliveries.
    Hub,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Pointer,
    Keys,
}

/// A task, as the table of the page names it.
struct Task {
    about: &'static str,
    /// As many clicks at most, by pointer.
    aim: usize,
    node: Node,
    /// Files have no history.
    needs_history: bool,
    /// Makes what the task is about; it is not counted.
    prepare: fn(&Bench),
    /// Does it from the first screen, and waits until it is done.
    perform: fn(&Bench, Manner),
    /// Looks whether it is done; this is not counted.
    verify: fn(&Bench, Manner),
}

impl Task {
    const fn new(about: &'static str, aim: usize, perform: fn(&Bench, Manner)) -> Task {
        let (node, needs_history) = (Node::Usual, false);
        Task { about, aim, node, needs_history, prepare: |_| {}, perform, verify: |_, _| {} }
    }
}

const TASKS: &[Task] = &[
    Task { verify: change::is_published, ..Task::new("publish a backend at a path", 2, change::publish) },
    Task { verify: change::has_plugin, ..Task::new("add `key-auth` to a route", 4, change::add_plugin) },
    Task { verify: change::has_consumer, ..Task::new("add a consumer with a key", 3, change::add_consumer) },
    Task { verify: change::has_moved, ..Task::new("change the path of a route", 3, change::change_path) },
    Task { verify: change::comes_back, ..Task::new("delete a route", 3, change::delete) },
    Task { prepare: change::delete_by_keys, verify: change::is_as_before, ..Task::new("undo that", 1, change::undo) },
    Task {
        needs_history: true,
        prepare: change::make_mistake,
        verify: change::is_rolled_back,
        ..Task::new("roll back to an earlier revision", 3, change::roll_back)
    },
    Task {
        node: Node::Large,
        verify: look::leave_search,
        ..Task::new("find one of 10,000 routes by a part of its path", 0, look::find)
    },
    Task::new("find out why a URL is 404", 1, look::explain),
    Task { verify: change::is_rotated, ..Task::new("rotate a certificate", 3, change::rotate_certificate) },
    Task { verify: change::has_endpoint, ..Task::new("add an endpoint", 3, change::add_endpoint) },
    Task { verify: change::is_taken_out, ..Task::new("take an endpoint out of rotation", 2, change::take_out) },
    Task { verify: change::is_off, ..Task::new("switch a plugin off, and keep its options", 2, change::switch_off) },
    Task { verify: change::is_limited, ..Task::new("limit all traffic", 4, change::limit_all) },
    Task { verify: change::is_split, ..Task::new("send 5 % to a new version", 4, change::split_traffic) },
    Task { prepare: look::be_measured, ..Task::new("find the dearest plugin", 1, look::dearest) },
    Task { verify: look::shows_failures, ..Task::new("watch requests with 5xx", 2, look::watch) },
    Task {
        node: Node::Hub,
        verify: hub::is_delivered,
        ..Task::new("find a dead letter and replay it", 4, hub::replay)
    },
    Task {
        needs_history: true,
        prepare: look::be_changed_by_others,
        ..Task::new("see who changed a route last", 2, look::last_change)
    },
    Task {
        prepare: look::watch_clipboard,
        verify: look::is_copied,
        ..Task::new("copy a route as YAML", 2, look::copy_yaml)
    },
];

/// Tasks that are done by default where another test does all of them.
const FEW: &[&str] = &["publish a backend at a path", "change the path of a route", "rotate a certificate"];

#[derive(Clone, Copy)]
enum Program {
    Chromium,
    Firefox,
}

impl Program {
    #[track_caller]
    fn open(self) -> Option<BrowserPage> {
        match self {
            Program::Chromium => BrowserPage::open(),
            Program::Firefox => BrowserPage::in_firefox(),
        }
    }
}

/// A page of a node, and what is beside it.
fn start(program: Program, store: Store, node: Node) -> Option<(Bench, Company)> {
    let page = program.open()?;
    let made = match node {
        Node::Usual => resources,
        Node::Large => ten_thousand_routes,
        Node::Hub => return hub::start(page, store),
    };
    Bench::in_store(page, store, made)
}

/// `1 click, 2 texts`
fn words(uses: Uses) -> String {
    let part = |count: usize, name: &str| match count {
        0 => None,
        1 => Some(format!("1 {name}")),
        _ => Some(format!("{count} {name}s")),
    };
    let parts = [part(uses.clicks, "click"), part(uses.keys, "key"), part(uses.texts, "text")];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The rows of the table: the aim and the counts of a task.
fn table() -> HashMap<String, Vec<String>> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/decisions/console.md");
    let page = fs::read_to_string(page).expect("the page is there");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let mut cells = rows.map(|row| row.split(" | ").map(|cell| cell.trim().to_owned()));
    let mut table = HashMap::new();
    for mut row in cells.by_ref() {
        table.insert(row.next().expect("a row has a cell"), row.collect());
    }
    table
}

#[test]
fn the_table_of_tasks_has_all_tasks_with_their_aims() {
    let table = table();
    for task in TASKS {
        let row = table.get(task.about).unwrap_or_else(|| panic!("there is no row `{}`", task.about));
        assert_eq!(row[0], task.aim.to_string(), "{}", task.about);
    }
}

/// Does tasks one after the other, each from the first screen and in both manners; panics with all that are not as the table says.
fn do_tasks(program: Program, store: Store, is_chosen: impl Fn(&Task) -> bool) {
    let table = table();
    let mut problems = Vec::new();
    for node in [Node::Usual, Node::Large, Node::Hub] {
        let tasks = TASKS.iter().filter(|task| task.node == node && is_chosen(task));
        let mut tasks = tasks.filter(|task| store != Store::Files || !task.needs_history).peekable();
        if tasks.peek().is_none() {
            continue;
        }
        // What is not installed is reported, and what was found before stays found.
        let Some((bench, company)) = start(program, store, node) else { break };
        for task in tasks {
            for (manner, at) in [(Manner::Pointer, 1), (Manner::Keys, 2)] {
                println!("{}: {store:?}: {manner:?} …", task.about);
                let uses = count(&bench, task, manner);
                let at = if store == Store::Files { at + 2 } else { at };
                let told = table.get(task.about).and_then(|row| row.get(at));
                println!("{}: {store:?}: {manner:?}: {}", task.about, words(uses));
                if told != Some(&words(uses)) || (manner == Manner::Pointer && uses.clicks > task.aim) {
                    problems.push(format!("{}: {manner:?}: {}, not {told:?}", task.about, words(uses)));
                }
            }
        }
        bench.check_quiet();
        if node == Node::Usual {
            check_other(&bench, &company);
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn count(bench: &Bench, task: &Task, manner: Manner) -> Uses {
    bench.go("#/overview");
    // What the task before has told.
    bench.page.evaluate("document.querySelector('.notice .quiet')?.click()");
    (task.prepare)(bench);
    bench.page.take_uses();
    (task.perform)(bench, manner);
    let uses = bench.page.take_uses();
    (task.verify)(bench, manner);
    uses
}

/// What was published is served by the other node, and the console shows both nodes in step.
fn check_other(bench: &Bench, company: &Company) {
    let Some(other) = &company.other else { return };
    for path in ["/by-pointer", "/by-keys"] {
        eventually("the other node serves it", DEADLINE, || other.get(path).status == 200);
    }
    bench.go("#/nodes");
    bench.page.wait(
        "both nodes, in step",
        "[...document.querySelectorAll('.wide-table tbody tr')].filter((row) => row.querySelector('.badge.good')).length >= 2",
    );
}

#[test]
fn tasks_are_done_with_a_store_of_the_node() {
    do_tasks(Program::Chromium, Store::Embedded, |_| true);
}

#[test]
fn tasks_are_done_on_two_nodes_that_share_an_etcd() {
    do_tasks(Program::Chromium, Store::Etcd, |task| is_full() || FEW.contains(&task.about));
}

#[test]
fn tasks_are_done_with_resources_in_files() {
    do_tasks(Program::Chromium, Store::Files, |task| is_full() || FEW.contains(&task.about));
}

#[test]
fn tasks_are_done_in_firefox_with_resources_in_files() {
    if runs_for_minutes("all tasks in a second browser take minutes") {
        do_tasks(Program::Firefox, Store::Files, |_| true);
    }
}

#[test]
fn tasks_are_done_in_firefox_with_a_store_of_the_node() {
    if runs_for_minutes("all tasks in a second browser take minutes") {
        do_tasks(Program::Firefox, Store::Embedded, |_| true);
    }
}

/// Types into the search box, and waits until the first result is this one.
#[track_caller]
fn search(bench: &Bench, text: &str, first: &str) {
    bench.page.fill("#search", text);
    bench.page.wait("the result", &format!("document.querySelector('#found-0 b')?.textContent === {first:?}"));
}

/// The page of a resource, by the search box and the pointer.
#[track_caller]
fn open(bench: &Bench, id: &str) {
    search(bench, id, id);
    bench.page.click("#found-0");
    bench.settle(id);
}

/// `/`, the id, Enter, once the result is there.
#[track_caller]
fn open_by_keys(bench: &Bench, id: &str) {
    bench.page.press("/");
    bench.page.write(id);
    bench.page.wait("the result", &format!("document.querySelector('#found-0 b')?.textContent === {id:?}"));
    bench.page.press("Enter");
    bench.settle(id);
}

/// Goes to a screen by keys, and looks whether all of it is there before the next key.
#[track_caller]
fn go_by_keys(bench: &Bench, keys: &[&str]) {
    press(bench, keys);
    bench.settle(&keys.join(" "));
}

/// On a table, `/`, the id, Enter, once the row is there.
#[track_caller]
fn open_row_by_keys(bench: &Bench, id: &str) {
    press(bench, &["/"]);
    wait_focus(bench, "#search");
    bench.page.write(id);
    bench.page.wait(
        "the row",
        &format!("(([row, another]) => row && !another && row.textContent.includes({id:?}))([...document.querySelectorAll('weir-table .body .row')])"),
    );
    press(bench, &["Enter"]);
    bench.settle(id);
}

/// Presses keys, each as soon as the one before was taken.
#[track_caller]
fn press(bench: &Bench, keys: &[&str]) {
    for key in keys {
        bench.page.press(key);
    }
}

/// Waits until what has the focus is, or is in, an element of a selector.
#[track_caller]
fn wait_focus(bench: &Bench, selector: &str) {
    bench.page.wait(&format!("`{selector}` has the focus"), &format!("document.activeElement?.closest({selector:?})"));
}

/// Goes on with Tab until an element of a selector has the focus.
#[track_caller]
fn tab_to(bench: &Bench, selector: &str) {
    for _ in 0..60 {
        if bench.page.evaluate(&format!("document.activeElement?.matches({selector:?}) ?? false")) == true {
            return;
        }
        bench.page.press("Tab");
    }
    panic!("60 times Tab do not lead to {selector}");
}

/// Types in place of what a field has.
#[track_caller]
fn replace(bench: &Bench, text: &str) {
    bench.page.press("Ctrl+a");
    bench.page.write(text);
}
