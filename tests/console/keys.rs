//! Keys that are pressed quickly: none does something to what the user has not seen, and nothing is lost that was typed.

use serde_json::{Value, json};
use weir_testkit::{BrowserPage, runs_for_minutes};

use crate::api::Api;
use crate::bench::{Bench, Company, Store, resources};

const CHECKS: [fn(&Bench); 7] = [
    focus_moves_at_once,
    keys_before_their_screen_do_nothing,
    keys_before_their_screen_lead_elsewhere,
    typed_text_keeps_its_field,
    a_resource_is_created_once,
    changes_during_a_save_are_kept,
    changes_during_a_creation_are_kept,
];

fn check(page: Option<BrowserPage>, check: fn(&Bench)) -> Option<()> {
    let (bench, _company): (Bench, Company) = Bench::in_store(page?, Store::Embedded, resources)?;
    check(&bench);
    bench.check_quiet();
    Some(())
}

#[test]
fn keys_are_taken_in_firefox_as_in_chromium() {
    if runs_for_minutes("keys in a second browser take minutes") {
        for one in CHECKS {
            check(BrowserPage::in_firefox(), one);
        }
    }
}

/// Presses a key within the page, and tells in the same moment whether an element of a selector has the focus.
fn leads_to(bench: &Bench, key: &str, selector: &str) -> Value {
    bench.page.evaluate(&format!(
        "document.body.dispatchEvent(new KeyboardEvent('keydown', {{ key: {key:?}, bubbles: true, cancelable: true }}));
        document.activeElement.closest({selector:?}) !== null"
    ))
}

#[test]
fn a_key_that_leads_to_a_field_moves_the_focus_at_once() {
    check(BrowserPage::open(), focus_moves_at_once);
}

fn focus_moves_at_once(bench: &Bench) {
    for (key, field) in [("e", "[data-pointer='/uri']"), ("p", "#add-plugin-search"), ("/", "#search")] {
        bench.go("#/routes/orders-2?tab=json");
        assert_eq!(leads_to(bench, key, field), json!(true), "{key}");
        bench.page.press("Escape");
        bench.go("#/overview");
    }
    // A plugin that was chosen is where its options are typed.
    bench.go("#/routes/orders-2");
    bench.page.press("p");
    bench.page.write("limit-count");
    bench.page.press("Enter");
    let field = "document.activeElement.closest('[data-pointer]')?.dataset.pointer";
    let has = bench.page.evaluate(field);
    assert!(has.as_str().is_some_and(|place| place.starts_with("/plugins/limit-count/")), "{has}");
}

/// From now on no answer comes to the page until `answer()` is called.
const SILENCE: &str = "(() => {
    const ask = window.fetch;
    const silence = new Promise((answer) => (window.answer = answer));
    window.fetch = async (...all) => (await silence, ask(...all));
})()";

/// Goes to a place whose screen does not come yet.
fn begin_to_go(bench: &Bench, place: &str) {
    bench.page.evaluate(SILENCE);
    bench.page.evaluate(&format!("location.hash = {place:?}"));
    bench.page.wait(
        "the screen is on its way",
        "document.querySelector('#content .waiting') && !document.querySelector('#content h1')",
    );
}

fn press_all(bench: &Bench, keys: &[&str]) {
    for key in keys {
        bench.page.press(key);
    }
}

#[test]
fn keys_that_come_before_their_screen_do_nothing_to_what_is_not_seen() {
    check(BrowserPage::open(), keys_before_their_screen_do_nothing);
}

/// A notice goes by itself after fifteen seconds. From now on it stays, however long a busy machine takes for what follows.
const KEEP_NOTICES: &str = "(() => {
    const own = window.setTimeout;
    window.setTimeout = (run, ms, ...all) => own(run, ms === 15000 ? 1e9 : ms, ...all);
})()";

fn keys_before_their_screen_do_nothing(bench: &Bench) {
    bench.page.evaluate(KEEP_NOTICES);
    // There is something to undo, too.
    bench.go("#/routes/images");
    bench.page.press("Delete");
    bench.wait_text("Deleted images");
    begin_to_go(bench, "#/routes/orders-2");
    press_all(bench, &["Delete", "Ctrl+Enter", "j", "x", "e", "p", "u", "n", "Enter", "Delete"]);
    bench.page.evaluate("window.answer()");
    bench.settle("the route");
    assert_eq!(bench.page.evaluate("location.hash"), "#/routes/orders-2");
    assert_eq!(bench.page.evaluate("document.querySelector('.notice').textContent.includes('Deleted images')"), true);
    // All keys of the page have its full effect now; what is undone is the first deletion.
    bench.page.press("u");
    bench.wait_text("Undone");
    assert!(bench.resource("routes/images").is_some() && bench.resource("routes/orders-2").is_some());
    // Neither is the first row deleted, nor a revision gone back to, once the table and the history are there.
    for (place, keys) in [("#/consumers", ["j", "x", "Delete"]), ("#/history", ["j", "j", "Ctrl+Enter"])] {
        bench.page.evaluate(SILENCE);
        bench.page.evaluate(&format!("location.hash = {place:?}"));
        bench.page.wait("its screen without data", &format!("document.querySelector('#content').dataset.place === {place:?} && document.querySelector('#content .waiting')"));
        press_all(bench, &keys);
        bench.page.evaluate("window.answer()");
        bench.settle(place);
    }
    assert!(bench.resource("consumers/jack").is_some());
    assert_eq!(bench.page.evaluate("document.querySelectorAll('.revisions [aria-pressed=true]').length"), 0);
    assert!(bench.resource("routes/images").is_some());
}

#[test]
fn keys_that_come_before_a_screen_lead_elsewhere() {
    check(BrowserPage::open(), keys_before_their_screen_lead_elsewhere);
}

fn keys_before_their_screen_lead_elsewhere(bench: &Bench) {
    begin_to_go(bench, "#/routes/orders-2");
    bench.page.press("/");
    bench.page.write("gold");
    assert_eq!(bench.page.evaluate("document.querySelector('#search').value"), "gold");
    bench.page.press("Escape");
    bench.page.press("?");
    assert_eq!(bench.page.evaluate("document.querySelector('#help').open"), true);
    bench.page.press("Escape");
    bench.page.wait("the help is closed", "!document.querySelector('#help').open");
    press_all(bench, &["g", "c"]);
    assert_eq!(bench.page.evaluate("location.hash"), "#/consumers");
    bench.page.evaluate("window.answer()");
    bench.settle("consumers");
    assert_eq!(bench.page.evaluate("document.querySelector('#content h1').textContent"), "Consumers");
}

#[test]
fn a_screen_that_comes_takes_the_focus_from_no_field() {
    check(BrowserPage::open(), typed_text_keeps_its_field);
}

fn typed_text_keeps_its_field(bench: &Bench) {
    begin_to_go(bench, "#/new/ssls");
    bench.page.press("/");
    bench.page.write("ord");
    bench.page.evaluate("window.answer()");
    bench.settle("the form");
    bench.page.write("ers");
    assert_eq!(
        bench.page.evaluate("[document.activeElement.id, document.activeElement.value]"),
        json!(["search", "orders"])
    );
}

const PATH: &str = "[data-pointer='/uri'] input";

/// The ids of routes with a path.
fn routes_of(bench: &Bench, uri: &str) -> Vec<String> {
    let told = Api::of(&bench.gateway).get("routes");
    let list = told["list"].as_array().expect("a list");
    let own = list.iter().filter(|one| one["value"]["uri"] == uri);
    own.map(|one| one["value"]["id"].as_str().expect("an id").to_owned()).collect()
}

#[test]
fn a_new_resource_is_created_once() {
    check(BrowserPage::open(), a_resource_is_created_once);
}

fn a_resource_is_created_once(bench: &Bench) {
    bench.go("#/new/routes");
    bench.page.fill(PATH, "/once");
    bench.page.fill("[data-pointer='/upstream/nodes'] .pair:first-child input:first-child", "127.0.0.1:1");
    bench.page.evaluate(SILENCE);
    press_all(bench, &["Ctrl+Enter", "Ctrl+Enter"]);
    bench.page.click(".bar .main");
    bench.page.evaluate("window.answer()");
    bench.page.wait("its page", "location.hash !== '#/new/routes'");
    bench.settle("its page");
    assert_eq!(routes_of(bench, "/once").len(), 1);
}

#[test]
fn texts_that_are_typed_during_a_save_are_kept() {
    check(BrowserPage::open(), changes_during_a_save_are_kept);
}

fn changes_during_a_save_are_kept(bench: &Bench) {
    bench.go("#/routes/orders-2");
    bench.page.fill(PATH, "/one");
    bench.page.evaluate(SILENCE);
    bench.page.press("Ctrl+Enter");
    bench.page.fill(PATH, "/two");
    bench.page.evaluate("window.answer()");
    bench.wait_text("Saved orders-2");
    bench.eventually_is("routes/orders-2", "/uri", &json!("/one"));
    assert_eq!(bench.page.evaluate(&format!("document.querySelector({PATH:?}).value")), "/two");
    assert_eq!(bench.page.evaluate("document.activeElement.closest('[data-pointer]')?.dataset.pointer"), "/uri");
    // It is compared with what was saved, so that it can be saved.
    bench.page.press("Ctrl+Enter");
    bench.eventually_is("routes/orders-2", "/uri", &json!("/two"));
}

#[test]
fn texts_that_are_typed_during_a_creation_are_kept() {
    check(BrowserPage::open(), changes_during_a_creation_are_kept);
}

fn changes_during_a_creation_are_kept(bench: &Bench) {
    bench.go("#/new/routes");
    bench.page.fill(PATH, "/first");
    bench.page.fill("[data-pointer='/upstream/nodes'] .pair:first-child input:first-child", "127.0.0.1:1");
    bench.page.evaluate(SILENCE);
    bench.page.press("Ctrl+Enter");
    bench.page.fill(PATH, "/second");
    bench.page.evaluate("window.answer()");
    bench.page.wait("its page", "location.hash !== '#/new/routes'");
    bench.settle("its page");
    let made = routes_of(bench, "/first");
    assert_eq!(made.len(), 1);
    assert_eq!(bench.page.evaluate(&format!("document.querySelector({PATH:?}).value")), "/second");
    bench.page.press("Ctrl+Enter");
    bench.eventually_is(&format!("routes/{}", made[0]), "/uri", &json!("/second"));
}
