//! The tour of the guide: each step of the page is done, in its order.

use std::fs;
use std::path::Path;

use weir_testkit::{BROWSER_DEADLINE, DEADLINE, eventually, eventually_some};

use crate::api;
use crate::bench::Bench;

/// A heading of the page, and what it tells to do.
type TourStep = (&'static str, fn(&Bench));

const STEPS: &[TourStep] = &[
    ("1. Log in", log_in),
    ("2. Publish the backend", publish),
    ("3. Watch requests", watch),
    ("4. Limit the route", limit),
    ("5. Find out why", explain),
    ("6. Undo", undo),
    ("7. Go back", go_back),
    ("8. Take it with you", take_along),
];

#[test]
fn the_tour_is_done_step_by_step() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/console-tour.md");
    let page = fs::read_to_string(page).expect("the page is there");
    let headings: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!(headings, STEPS.iter().map(|(title, _)| *title).collect::<Vec<_>>(), "each step has a test");
    let Some(bench) = Bench::logged_out(&api::file()) else { return };
    for (title, step) in STEPS {
        println!("{title}");
        step(&bench);
    }
    bench.check_quiet();
}

fn go(bench: &Bench, letter: &str, place: &str) {
    bench.page.press("g");
    bench.page.press(letter);
    bench.page.wait(place, &format!("location.hash.startsWith({place:?})"));
    bench.settle(place);
}

/// The routes, `/`, a text, and Enter.
fn open(bench: &Bench) {
    go(bench, "r", "#/routes");
    bench.page.press("/");
    bench.page.wait("the search box", "document.activeElement.id === 'search'");
    bench.page.write("orders");
    bench.page.wait("the row", "document.querySelectorAll('weir-table .body .row').length === 1");
    bench.page.press("Enter");
    bench.page.wait("the route", "location.hash.startsWith('#/routes/')");
    bench.settle("the route");
}

fn log_in(bench: &Bench) {
    bench.log_in(api::ADMIN);
    assert_eq!(bench.page.evaluate("document.querySelector('h1').textContent"), "Overview");
}

fn publish(bench: &Bench) {
    bench.page.press("n");
    bench.page.wait("the form", "document.activeElement.closest('[data-pointer=\"/uri\"]')");
    bench.page.write("/orders/*");
    let address = bench.origin.addr().to_string();
    bench.page.fill("[data-pointer='/upstream/nodes'] .pair:first-child input:first-child", &address);
    bench.page.press("Ctrl+Enter");
    bench.wait_text("Created");
    bench.page.wait("its page", "location.hash.startsWith('#/routes/')");
    bench.settle("the route");
    assert_eq!(bench.gateway.get("/orders/1").status, 200);
}

fn watch(bench: &Bench) {
    go(bench, "l", "#/live");
    bench.page.wait("it follows", "document.querySelector('#content .actions').textContent.includes('Stop')");
    let client = &mut bench.gateway.client();
    eventually_some("a request appears", BROWSER_DEADLINE, || {
        client.get("/orders/seen").ok()?;
        let rows = "[...document.querySelectorAll('weir-table .body .row')].some((row) => row.textContent.includes('/orders/seen'))";
        (bench.page.evaluate(rows) == true).then_some(())
    });
}

fn limit(bench: &Bench) {
    open(bench);
    bench.page.press("p");
    bench.page.wait("the list", "document.activeElement.id === 'add-plugin-search'");
    bench.page.write("limit-count");
    bench.page.press("Enter");
    bench.page.fill("[data-pointer='/plugins/limit-count/count'] input", "2");
    bench.page.fill("[data-pointer='/plugins/limit-count/time_window'] input", "60");
    bench.page.press("Ctrl+Enter");
    bench.wait_text("Saved");
    // A window may end in between.
    eventually("the third is refused", DEADLINE, || [0; 3].map(|_| bench.gateway.get("/orders/1").status)[2] == 503);
}

fn explain(bench: &Bench) {
    go(bench, "x", "#/explain");
    bench.page.wait("the field", "document.activeElement.id === 'explain-url'");
    bench.page.write("/orders/1");
    bench.page.press("Enter");
    bench.page.wait("the plugin", "document.querySelector('#content').innerText.includes('limit-count')");
    // The key does not go into the field, and what is typed then takes the place of the text there.
    bench.page.press("/");
    bench.page.wait("the field", "document.activeElement.id === 'explain-url'");
    bench.page.write("/order/1");
    bench.page.press("Enter");
    bench.wait_text("No route takes this request");
    assert_eq!(bench.page.evaluate("document.getElementById('explain-url').value"), "/order/1");
}

fn undo(bench: &Bench) {
    open(bench);
    bench.page.press("Delete");
    bench.wait_text("Deleted");
    assert_eq!(bench.gateway.get("/orders/1").status, 404);
    bench.settle("the table");
    bench.page.press("u");
    bench.wait_text("Undone");
    eventually("it is back", DEADLINE, || bench.gateway.get("/orders/1").status != 404);
}

fn go_back(bench: &Bench) {
    go(bench, "h", "#/history");
    let revisions = "document.querySelectorAll('.revisions .revision').length";
    bench.page.wait("four changes", &format!("{revisions} === 4"));
    // Undone, deleted, limited, created.
    for _ in 0..4 {
        bench.page.press("j");
    }
    bench.page.wait(
        "what would change",
        "[...document.querySelectorAll('.rollback .diff .removed')].some((line) => line.textContent.includes('limit-count'))",
    );
    bench.page.press("Ctrl+Enter");
    bench.wait_text("Everything is as it was at revision 1");
    eventually("it is not limited", DEADLINE, || [0; 3].map(|_| bench.gateway.get("/orders/1").status) == [200; 3]);
}

fn take_along(bench: &Bench) {
    open(bench);
    // What is written to the clipboard may not be read.
    bench.page.evaluate("void (navigator.clipboard.writeText = async (text) => { window.copied = text; })");
    bench.page.press("y");
    bench.wait_text("Copied");
    let text = bench.page.evaluate("window.copied");
    assert!(text.as_str().is_some_and(|text| text.contains("uri: /orders/*")), "{text}");
    go(bench, "p", "#/price");
}
