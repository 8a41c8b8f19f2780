//! The draft of a node whose resources stand in files: the forms of every day, whose changes become texts of files.

use std::fs;

use weir_testkit::{DEADLINE, eventually};

use crate::api;
use crate::bench::{Bench, axe};

const RESOURCES: &str = "# what clients may ask for
routes:
  # the first
  - id: r1
    uri: /a   # its path
    upstream: { nodes: { \"127.0.0.1:1\": 1 } }
  - { id: r2, uri: /b, upstream: { nodes: { \"127.0.0.1:1\": 1 } } }
  - { id: r3, uri: /c, upstream: { nodes: { \"127.0.0.1:1\": 1 } } }
";

fn start(more: &str) -> Option<Bench> {
    let file = api::file().replace("admin:\n", &format!("admin:\n  store: file\n{more}")) + RESOURCES;
    let bench = Bench::logged_out(&file)?;
    bench.log_in(api::ADMIN);
    Some(bench)
}

fn file(bench: &Bench) -> String {
    fs::read_to_string(bench.gateway.file()).expect("the configuration")
}

/// Saves the route with another path, which puts the change into the draft.
fn change_path(bench: &Bench, id: &str, path: &str) {
    bench.go(&format!("#/routes/{id}"));
    bench.page.fill("[data-pointer='/uri'] input", path);
    bench.page.press("Ctrl+Enter");
    bench.wait_text(&format!("In the draft: Saved {id}"));
}

/// The lines of the difference that is shown, with their marks.
fn difference(bench: &Bench) -> String {
    let lines = "[...document.querySelectorAll('.diff > div')].map((one) => one.querySelector('i').textContent + one.lastElementChild.textContent)
        .filter((line) => !' …'.includes(line[0])).join('\\n')";
    bench.page.evaluate(lines).as_str().expect("a text").to_owned()
}

#[test]
fn a_draft_is_collected_undone_and_written() {
    let Some(bench) = start("  draft: write\n") else { return };
    let before = file(&bench);
    change_path(&bench, "r1", "/changed");
    bench.wait_text("1 change in the draft");
    assert_eq!(file(&bench), before, "nothing is written yet");
    bench.page.press("Escape");
    change_path(&bench, "r2", "/other");
    bench.wait_text("2 changes in the draft");
    bench.page.evaluate("document.activeElement.blur()");
    bench.page.press("u");
    bench.wait_text("1 change in the draft");
    bench.go("#/draft");
    assert_eq!(difference(&bench), "-    uri: /a   # its path\n+    uri: /changed   # its path");
    bench.wait_text("The node would accept this.");
    bench.page.press("Ctrl+Enter");
    bench.wait_text("Written, and served");
    assert_eq!(file(&bench), before.replace("uri: /a ", "uri: /changed "));
    eventually("the route is served", DEADLINE, || {
        bench.resource("routes/r1").is_some_and(|one| one["uri"] == "/changed")
    });
    bench.check_quiet();
}

#[test]
fn several_are_deleted_in_the_draft_at_once() {
    let Some(bench) = start("  draft: read\n") else { return };
    bench.go("#/routes");
    bench.page.press("j");
    bench.page.press("x");
    bench.page.press("j");
    bench.page.press("x");
    bench.page.press("Delete");
    bench.wait_text("In the draft: Deleted 2 resources");
    bench.page.wait("one row is left", "document.querySelector('weir-table').shown.length === 1");
    bench.go("#/draft");
    assert_eq!(difference(&bench).lines().filter(|line| line.starts_with('-')).count(), 4, "{}", difference(&bench));
    bench.wait_text("Put it into use");
    assert!(!bench.page.evaluate("document.body.innerText").as_str().expect("a text").contains("Written"));
    assert!(file(&bench).contains("r1"), "it is not written");
    bench.check_quiet();
}

#[test]
fn findings_stand_at_their_lines_and_keep_the_draft_from_being_written() {
    let Some(bench) = start("  draft: write\n") else { return };
    let before = file(&bench);
    change_path(&bench, "r1", "no-slash");
    bench.go("#/draft?tab=text");
    let line = before.lines().position(|line| line.contains("uri: /a")).expect("it is there") + 1;
    bench
        .page
        .wait("the finding", &format!("document.querySelector('.findings .place')?.textContent.includes(':{line}:')"));
    bench
        .page
        .wait("its mark", "document.querySelector('weir-editor').shadowRoot.querySelector('.cm-lint-marker-error')");
    assert_eq!(bench.page.evaluate("document.querySelector('#content .actions .main').disabled"), true);
    bench.page.press("Ctrl+Enter");
    assert_eq!(file(&bench), before);
    bench.check_quiet();
}

#[test]
fn a_draft_is_made_again_when_the_files_have_changed() {
    let Some(bench) = start("  draft: write\n") else { return };
    change_path(&bench, "r1", "/changed");
    let theirs = format!("{}# another program\n", file(&bench));
    fs::write(bench.gateway.file(), &theirs).expect("it is written");
    bench.go("#/draft");
    bench.wait_text("The node would accept this.");
    bench.page.press("Ctrl+Enter");
    bench.wait_text("The files have changed since the draft began.");
    assert_eq!(file(&bench), theirs);
    bench.page.click("aside .main");
    bench.wait_text("The node would accept this.");
    bench.page.press("Ctrl+Enter");
    bench.wait_text("Written, and served");
    assert_eq!(file(&bench), theirs.replace("uri: /a ", "uri: /changed "));
}

#[test]
fn the_draft_is_accessible() {
    let (Some(axe), Some(bench)) = (axe(), start("  draft: write\n")) else { return };
    bench.page.evaluate(&axe);
    change_path(&bench, "r1", "/changed");
    bench.check_accessible(&["#/draft", "#/draft?tab=text", "#/routes", "#/routes/r1"]);
    bench.check_quiet();
}

/// The names of the files that the page has loaded.
fn loaded(bench: &Bench) -> String {
    let names = "performance.getEntriesByType('resource').map((one) => one.name.split('/').at(-1)).join(' ')";
    bench.page.evaluate(names).as_str().expect("a text").to_owned()
}

/// Most nodes have a store, and the first screen is to be there at once.
#[test]
fn code_for_drafts_is_loaded_only_where_it_is_needed() {
    let Some(bench) = start("  draft: read\n") else { return };
    bench.go("#/overview");
    assert!(loaded(&bench).contains("drafts.js") && !loaded(&bench).contains("draft.js"), "{}", loaded(&bench));
    bench.go("#/routes");
    assert!(loaded(&bench).contains("draft.js") && loaded(&bench).contains("draft-texts.js"), "{}", loaded(&bench));
    let Some(bench) = Bench::logged_out(&api::file()) else { return };
    bench.log_in(api::ADMIN);
    for place in ["#/routes", "#/new/routes", "#/overview"] {
        bench.go(place);
    }
    assert!(loaded(&bench).contains("detail.js"), "{}", loaded(&bench));
    assert!(!loaded(&bench).contains("draft.js") && !loaded(&bench).contains("draft-texts.js"), "{}", loaded(&bench));
}

#[test]
fn the_text_of_a_file_is_searched() {
    let Some(bench) = start("  draft: read\n") else { return };
    bench.go("#/draft?tab=text");
    let within = |what: &str| format!("document.querySelector('weir-editor')?.shadowRoot.querySelector('{what}')");
    bench.page.wait("the editor", &format!("!!{}", within(".cm-content")));
    bench.page.evaluate(&format!("{}.focus()", within(".cm-content")));
    bench.page.press("Ctrl+f");
    bench.page.wait("a box to search in", &format!("!!{}", within(".cm-search")));
    bench.page.press("Escape");
    bench.page.wait("it is closed", &format!("!{}", within(".cm-search")));
    bench.check_quiet();
}

#[test]
fn resources_without_ids_are_deleted_as_they_were_selected() {
    let file = api::file().replace("admin:\n", "admin:\n  store: file\n  draft: read\n")
        + "routes:\n  - { uri: /1, upstream: { nodes: { \"127.0.0.1:1\": 1 } } }\n  - { uri: /2, upstream: { nodes: { \"127.0.0.1:1\": 1 } } }\n  \
           - { uri: /3, upstream: { nodes: { \"127.0.0.1:1\": 1 } } }\n";
    let Some(bench) = Bench::logged_out(&file) else { return };
    bench.log_in(api::ADMIN);
    bench.go("#/routes");
    for key in ["j", "x", "j", "x", "Delete"] {
        bench.page.press(key);
    }
    bench.wait_text("In the draft: Deleted 2 resources");
    bench.go("#/draft");
    let difference = difference(&bench);
    let gone: Vec<&str> = difference.lines().filter(|line| line.starts_with('-')).collect();
    assert!(gone.len() == 2 && gone[0].contains("/1") && gone[1].contains("/2"), "{gone:?}");
    bench.check_quiet();
}
