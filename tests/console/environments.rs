//! The screen of other environments: two nodes, of which one is compared with the other and made as it is.

use weir_testkit::Gateway;

use crate::api::{self, Api};
use crate::bench::{Bench, axe};

const KEY: &str = "the-key-of-this-node-at-the-other";
const ROUTE: &str = r#"{"uri": "/a", "upstream": {"nodes": {"127.0.0.1:1": 1}}}"#;

/// Another node, and a page of one that knows it.
fn start() -> Option<(Gateway, Bench)> {
    let other = Gateway::with_binary(env!("CARGO_BIN_EXE_weir"))
        .start(&format!("{}  - {{ name: staging, key: {KEY}, role: admin }}\n", api::file()));
    let url = format!("http://{}", api::admin_addr(&other));
    let live = format!("  environments:\n  - {{ name: live, url: '{url}', key: {KEY}, promote: true }}\n");
    // The other one is not there.
    let gone = "  - { name: gone, url: 'http://127.0.0.1:1', key: a-key-of-sixteen-characters }\n";
    let bench = Bench::logged_out(&(api::file() + &live + gone))?;
    let mut own = Api::of(&bench.gateway);
    own.put("routes/new", ROUTE);
    own.put("routes/changed", &ROUTE.replace("/a", "/<img src=x>"));
    Api::of(&other).put("routes/changed", ROUTE);
    bench.log_in(api::ADMIN);
    Some((other, bench))
}

#[test]
fn another_environment_is_compared_and_made_as_this_one() {
    let Some((other, bench)) = start() else { return };
    let mut there = Api::of(&other);
    bench.page.click("#menu a[href='#/environments']");
    bench.settle("the environments");
    bench.page.wait("both", "document.querySelectorAll('.cards section').length === 2");
    bench
        .page
        .wait("the one that is not there", "document.querySelector('.cards .problem')?.textContent.includes('gone')");
    bench.page.click("a[href='#/environments/live']");
    bench.wait_text("2 resources differ");
    assert_eq!(bench.page.evaluate("document.querySelectorAll('#content img').length"), 0);
    // By pointer: one of them, tried first.
    bench.page.click("input[aria-label='Select routes/new']");
    bench.page.click("#content .actions .main");
    bench.wait_text("live would accept this change");
    assert_eq!(there.ask("GET", "routes/new", "", "").status, 404);
    bench.page.click("#content .actions .main");
    bench.wait_text("1 resource of live is as here now");
    assert_eq!(there.get("routes/new")["value"]["uri"], "/a");
    bench.wait_text("1 resource differs");
    // By keys: all that is left.
    bench.page.press("a");
    bench.page.press("Ctrl+Enter");
    bench.wait_text("live would accept this change");
    bench.page.press("Ctrl+Enter");
    bench.wait_text("No difference");
    assert_eq!(there.get("routes/changed")["value"]["uri"], "/<img src=x>");
    // Neither the key nor the address of its use is in the page.
    let page = bench.page.evaluate("document.documentElement.outerHTML + JSON.stringify({ ...sessionStorage })");
    assert!(!page.as_str().expect("a text").contains(KEY));
    bench.check_quiet();
}

/// What was compared is no longer so: it is compared again, and is to be chosen again.
#[test]
fn a_change_there_meanwhile_is_compared_again() {
    let Some((other, bench)) = start() else { return };
    bench.go("#/environments/live");
    bench.wait_text("2 resources differ");
    bench.page.click("input[aria-label='Select routes/new']");
    bench.page.click("#content .actions .main");
    bench.wait_text("live would accept this change");
    let mut there = Api::of(&other);
    there.put("routes/another", ROUTE);
    bench.page.click("#content .actions .main");
    bench.wait_text("answers with 412");
    bench.wait_text("3 resources differ");
    assert_eq!(there.ask("GET", "routes/new", "", "").status, 404);
    // The next attempt is one against what is there now.
    bench.page.click("input[aria-label='Select routes/new']");
    bench.page.click("#content .actions .main");
    bench.wait_text("live would accept this change");
    bench.page.click("#content .actions .main");
    bench.wait_text("1 resource of live is as here now");
    assert_eq!(there.get("routes/new")["value"]["uri"], "/a");
}

#[test]
fn environments_are_accessible() {
    let (Some(axe), Some((_other, bench))) = (axe(), start()) else { return };
    bench.page.evaluate(&axe);
    bench.check_accessible(&["#/environments", "#/environments/live"]);
}
