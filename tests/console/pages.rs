//! What pages of resources show while they are changed, and tables of many resources.

use serde_json::json;
use weir_testkit::BrowserPage;

use crate::api::Api;
use crate::bench::{Bench, Store, ten_thousand_routes};

#[test]
fn a_form_shows_what_is_so_after_an_undo() {
    let Some(bench) = Bench::start() else { return };
    bench.go("#/routes/orders-2");
    let field = "document.querySelector(\"[data-pointer='/uri'] input\")?.value";
    bench.page.wait("the path as it was", &format!("{field} === '/orders/*'"));
    for by_key in [false, true] {
        bench.page.fill("[data-pointer='/uri'] input", "/again");
        bench.page.press("Ctrl+Enter");
        bench.eventually_is("routes/orders-2", "/uri", &json!("/again"));
        bench.wait_text("Saved orders-2");
        match by_key {
            true => bench.page.press("u"),
            false => bench.page.click(".notice button:first-of-type"),
        }
        bench.wait_text("Undone");
        bench.page.wait("the path as it was", &format!("{field} === '/orders/*'"));
    }
    // A text is left, too.
    bench.go("#/routes/orders-2?tab=json");
    bench.page.evaluate(
        "const editor = document.querySelector('weir-editor');
         const text = editor.shadowRoot.querySelector('.cm-content').innerText.replace('/orders/*', '/as-text');
         editor.focus();
         editor.dispatchEvent(new CustomEvent('edit', { detail: text }));",
    );
    bench.page.press("Ctrl+Enter");
    bench.eventually_is("routes/orders-2", "/uri", &json!("/as-text"));
    bench.wait_text("Saved orders-2");
    bench.page.press("u");
    bench.wait_text("Undone");
    bench.eventually_is("routes/orders-2", "/uri", &json!("/orders/*"));
    bench.go("#/routes/orders-2");
    // What is set is in front of what is not.
    bench.page.wait(
        "the upstream's id before the options of an inline one",
        "(() => {
            const all = [...document.querySelectorAll('.form > .members > [data-pointer]')].map((one) => one.dataset.pointer);
            return all.indexOf('/upstream_id') < all.indexOf('/upstream') && all.indexOf('/uri') === 0;
        })()",
    );
    bench.check_quiet();
}

#[test]
fn a_save_over_that_of_another_user_shows_both() {
    let Some(bench) = Bench::start() else { return };
    bench.go("#/routes/images");
    bench.page.fill("[data-pointer='/desc'] input, [data-pointer='/uris'] textarea", "/mine");
    let mut admin = Api::of(&bench.gateway);
    let origin = bench.origin.addr();
    admin.put("routes/images", &format!(r#"{{"uris":["/theirs"],"upstream":{{"nodes":{{"{origin}":1}}}}}}"#));
    bench.page.press("Ctrl+Enter");
    bench.wait_text("Another user has saved this resource");
    bench.wait_text("Their changes");
    bench.page.click("aside .danger");
    bench.eventually_is("routes/images", "/uris/0", &json!("/mine"));
    bench.check_quiet();
}

#[test]
fn a_table_of_ten_thousand_routes_draws_what_is_visible() {
    let Some(page) = BrowserPage::open() else { return };
    let Some((bench, _company)) = Bench::in_store(page, Store::Embedded, ten_thousand_routes) else { return };
    bench.go("#/routes");
    bench.wait_text("10,000 routes");
    let drawn = bench.page.evaluate("document.querySelectorAll('weir-table .body .row').length");
    assert!(drawn.as_u64().is_some_and(|drawn| drawn < 80), "{drawn}");
    bench.page.evaluate("document.querySelector('weir-table').scrollTop = 1e9");
    bench.page.wait(
        "the last row",
        "[...document.querySelectorAll('weir-table .body .row')].some((row) => row.ariaRowIndex === '10001')",
    );
    bench.page.press("/");
    bench.page.write("h7.example /shop/1057/");
    bench.page.wait("one row", "document.querySelectorAll('weir-table .body .row').length === 1");
    bench.page.press("Enter");
    bench.page.wait("the route", "document.querySelector('#content h1')?.textContent === 'r1057'");
    bench.check_quiet();
}
