//! Keys that are pressed quickly: each is for what the key before it has led to.

use serde_json::json;

use crate::api::Api;
use crate::bench::Bench;

/// Presses a key within the page, and tells in the same moment whether an element of a selector has the focus.
fn leads_to(bench: &Bench, key: &str, selector: &str) -> serde_json::Value {
    bench.page.evaluate(&format!(
        "document.body.dispatchEvent(new KeyboardEvent('keydown', {{ key: {key:?}, bubbles: true, cancelable: true }}));
        document.activeElement.closest({selector:?}) !== null"
    ))
}

#[test]
fn a_key_that_leads_to_a_field_moves_the_focus_at_once() {
    let Some(bench) = Bench::start() else { return };
    for (key, field) in [("e", "[data-pointer='/uri']"), ("p", "#add-plugin-search"), ("/", "#search")] {
        bench.go("#/routes/orders-2?tab=json");
        assert_eq!(leads_to(&bench, key, field), json!(true), "{key}");
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
    bench.check_quiet();
}

/// From now on no answer comes to the page until `answer()` is called.
const SILENCE: &str = "(() => {
    const ask = window.fetch;
    const silence = new Promise((answer) => (window.answer = answer));
    window.fetch = async (...all) => (await silence, ask(...all));
})()";

#[test]
fn keys_that_come_before_their_screen_are_its_keys() {
    let Some(bench) = Bench::start() else { return };
    bench.page.evaluate(SILENCE);
    // `/`, `u` and `n` mean something else where there is no field.
    for key in ["n", "/", "u", "n"] {
        bench.page.press(key);
    }
    assert_eq!(bench.page.evaluate("location.hash"), "#/new/routes");
    assert_eq!(bench.page.evaluate("document.activeElement.id"), "");
    bench.page.evaluate("window.answer()");
    bench.page.wait("the text", "document.querySelector(\"[data-pointer='/uri'] input\")?.value === '/un'");
    assert_eq!(bench.page.evaluate("document.activeElement.closest('[data-pointer]').dataset.pointer"), "/uri");
    bench.check_quiet();
}

#[test]
fn keys_that_come_before_a_list_move_in_it_when_it_has_come() {
    let Some(bench) = Bench::start() else { return };
    bench.page.evaluate(SILENCE);
    for key in ["g", "r", "j", "j", "Enter"] {
        bench.page.press(key);
    }
    assert_eq!(bench.page.evaluate("location.hash"), "#/routes");
    bench.page.evaluate("window.answer()");
    bench.page.wait("the second route", "document.querySelector('#content h1')?.textContent === 'orders'");
    bench.check_quiet();
}

#[test]
fn a_text_that_is_searched_before_the_tables_have_come_opens_its_resource() {
    let Some(bench) = Bench::start() else { return };
    bench.page.evaluate(SILENCE);
    bench.page.press("/");
    bench.page.write("orders-2");
    for key in ["Enter", "e"] {
        bench.page.press(key);
    }
    bench.page.evaluate("window.answer()");
    bench.page.wait("the route", "document.querySelector('#content h1')?.textContent === 'orders-2'");
    bench.page.wait("its field", "document.activeElement.closest('[data-pointer=\"/uri\"]')");
    bench.check_quiet();
}

#[test]
fn a_revision_that_is_chosen_quickly_is_gone_back_to_when_its_difference_has_come() {
    let Some(bench) = Bench::start() else { return };
    Api::of(&bench.gateway).put("routes/mistake", r#"{"uri":"/mistake","upstream_id":"orders"}"#);
    bench.page.evaluate(SILENCE);
    for key in ["g", "h", "j", "j", "Ctrl+Enter"] {
        bench.page.press(key);
    }
    bench.page.evaluate("window.answer()");
    bench.wait_text("Everything is as it was at revision 1");
    assert_eq!(bench.resource("routes/mistake"), None);
    bench.check_quiet();
}
