//! Tasks that change something. What by pointer and by keys is done to different resources can be told apart later.

use serde_json::{Value, json};
use weir_testkit::{DEADLINE, Identity, eventually};

use super::Manner::{self, Keys, Pointer};
use super::{go_by_keys, open, open_by_keys, open_row_by_keys, press, replace, search, tab_to, wait_focus};
use crate::api::Api;
use crate::bench::{Bench, certificate};

pub(super) fn publish(bench: &Bench, manner: Manner) {
    let nodes = "[data-pointer='/upstream/nodes'] .pair:first-child input:first-child";
    let address = bench.origin.addr().to_string();
    match manner {
        Pointer => {
            bench.page.click("a.new");
            bench.settle("the form");
            bench.page.fill("[data-pointer='/uri'] input", "/by-pointer");
            bench.page.fill(nodes, &address);
            bench.page.click(".bar .main");
        }
        Keys => {
            press(bench, &["n"]);
            wait_focus(bench, "[data-pointer='/uri']");
            bench.page.write("/by-keys");
            tab_to(bench, nodes);
            bench.page.write(&address);
            press(bench, &["Ctrl+Enter"]);
        }
    }
    // The console tells it, and goes to the page of what it has created.
    bench.page.wait(
        "it is created",
        "document.querySelector('.notice')?.textContent.includes('Created') && location.hash !== '#/new/routes'",
    );
}

pub(super) fn is_published(bench: &Bench, manner: Manner) {
    let path = if manner == Pointer { "/by-pointer" } else { "/by-keys" };
    bench.put_into_use();
    eventually("it is served", DEADLINE, || bench.gateway.get(path).status == 200);
}

/// The route that a plugin is added to.
fn extended(manner: Manner) -> &'static str {
    if manner == Pointer { "images" } else { "orders-2" }
}

/// Adds a plugin to the form of a route.
fn choose_plugin(bench: &Bench, manner: Manner, name: &str) {
    match manner {
        Pointer => {
            open(bench, extended(manner));
            bench.page.click("#add-plugin");
            bench.page.fill("#add-plugin-search", name);
            bench.page.click("#add-plugin-0");
        }
        Keys => {
            open_by_keys(bench, extended(manner));
            press(bench, &["p"]);
            wait_focus(bench, "#add-plugin-search");
            bench.page.write(name);
            press(bench, &["Enter"]);
        }
    }
}

fn save(bench: &Bench, manner: Manner, id: &str) {
    match manner {
        Pointer => bench.page.click(".bar .main"),
        Keys => bench.page.press("Ctrl+Enter"),
    }
    bench.wait_text(&format!("Saved {id}"));
}

pub(super) fn add_plugin(bench: &Bench, manner: Manner) {
    choose_plugin(bench, manner, "key-auth");
    save(bench, manner, extended(manner));
}

pub(super) fn has_plugin(bench: &Bench, manner: Manner) {
    bench.eventually_is(&format!("routes/{}", extended(manner)), "/plugins/key-auth", &json!({}));
}

fn added(manner: Manner) -> (&'static str, &'static str) {
    if manner == Pointer { ("jill", "the-key-of-jill-here") } else { ("joe", "the-key-of-joe-here") }
}

pub(super) fn add_consumer(bench: &Bench, manner: Manner) {
    let (name, key) = added(manner);
    let field = "[data-pointer='/plugins/key-auth/key'] input";
    match manner {
        Pointer => {
            bench.page.click("#menu a[href='#/consumers']");
            bench.settle("consumers");
            bench.page.click("#content a.main");
            bench.settle("the form");
            bench.page.fill("[data-pointer='/username'] input", name);
            bench.page.fill(field, key);
            bench.page.click(".bar .main");
        }
        Keys => {
            go_by_keys(bench, &["g", "c"]);
            press(bench, &["n"]);
            wait_focus(bench, "[data-pointer='/username']");
            bench.page.write(name);
            tab_to(bench, field);
            bench.page.write(key);
            press(bench, &["Ctrl+Enter"]);
        }
    }
    bench.wait_text(&format!("Created {name}"));
}

pub(super) fn has_consumer(bench: &Bench, manner: Manner) {
    let (name, key) = added(manner);
    bench.eventually_is(&format!("consumers/{name}"), "/plugins/key-auth/key", &json!(key));
}

fn moved(manner: Manner) -> &'static str {
    if manner == Pointer { "/moved" } else { "/again" }
}

pub(super) fn change_path(bench: &Bench, manner: Manner) {
    match manner {
        Pointer => {
            open(bench, "orders-2");
            bench.page.fill("[data-pointer='/uri'] input", moved(manner));
        }
        Keys => {
            open_by_keys(bench, "orders-2");
            press(bench, &["e"]);
            wait_focus(bench, "[data-pointer='/uri']");
            replace(bench, moved(manner));
        }
    }
    save(bench, manner, "orders-2");
}

pub(super) fn has_moved(bench: &Bench, manner: Manner) {
    bench.eventually_is("routes/orders-2", "/uri", &json!(moved(manner)));
}

pub(super) fn delete(bench: &Bench, manner: Manner) {
    match manner {
        Pointer => {
            open(bench, "images");
            bench.page.click("#content .danger");
        }
        Keys => {
            open_by_keys(bench, "images");
            press(bench, &["Delete"]);
        }
    }
    bench.wait_text("Deleted images");
}

/// It is gone, unless only a draft deletes it; the next tasks are to find it.
pub(super) fn comes_back(bench: &Bench, _: Manner) {
    assert_eq!(bench.resource("routes/images").is_some(), bench.has_draft());
    undo(bench, Keys);
}

pub(super) fn delete_by_keys(bench: &Bench) {
    delete(bench, Keys);
}

pub(super) fn undo(bench: &Bench, manner: Manner) {
    // What is created or deleted leads to another screen.
    bench.settle("the screen");
    match manner {
        Pointer => bench.page.click(".notice button:first-of-type"),
        Keys => bench.page.press("u"),
    }
    bench.wait_text("Undone");
}

pub(super) fn is_as_before(bench: &Bench, _: Manner) {
    let route = bench.resource("routes/images").expect("it is there");
    assert_eq!((&route["uris"], &route["hosts"]), (&json!(["/images/*", "/img/*"]), &json!(["shop.example.com"])));
    let draft = bench.page.evaluate("document.querySelector('.top a[href=\"#/draft\"]') === null");
    assert_eq!(draft, true, "nothing is left in the draft");
}

pub(super) fn make_mistake(bench: &Bench) {
    Api::of(&bench.gateway).put("routes/mistake", r#"{"uri":"/mistake","upstream_id":"orders"}"#);
}

pub(super) fn roll_back(bench: &Bench, manner: Manner) {
    match manner {
        Pointer => {
            bench.page.click("#menu a[href='#/history']");
            bench.settle("the history");
            bench.page.click(".revisions li:nth-child(2) button");
            bench.wait_text("What would change if everything went back");
            bench.page.wait("the difference", "document.querySelector('.rollback .diff .removed')");
            bench.page.click(".rollback .main");
        }
        Keys => {
            go_by_keys(bench, &["g", "h"]);
            press(bench, &["j", "j"]);
            bench.page.wait("the difference", "document.querySelector('.rollback .diff .removed')");
            press(bench, &["Ctrl+Enter"]);
        }
    }
    bench.wait_text("Everything is as it was at revision");
}

pub(super) fn is_rolled_back(bench: &Bench, _: Manner) {
    assert_eq!(bench.resource("routes/mistake"), None);
}

/// Days since 1970.
const MARCH_4_2021: u64 = 18690;
const MAY_6_2040: u64 = 25693;
const MAY_6_2062: u64 = 33728;

const CERTIFICATE: &str = "[data-pointer='/cert'] textarea";
const PRIVATE_KEY: &str = "[data-pointer='/key'] textarea";

fn wait_dates(bench: &Bench, text: &str) {
    let shown = format!("document.querySelector('#dates')?.innerText.replace(/\\s+/g, ' ').includes({text:?})");
    bench.page.wait(text, &shown);
}

/// By keys, one that ends earlier, which is told.
pub(super) fn rotate_certificate(bench: &Bench, manner: Manner) {
    match manner {
        Pointer => {
            let Identity { certificate, key } = certificate(MARCH_4_2021, MAY_6_2062);
            bench.page.click("#menu a[href='#/ssls']");
            bench.settle("certificates");
            bench.page.click("weir-table .body a");
            bench.settle("the certificate");
            bench.page.fill(CERTIFICATE, &certificate);
            bench.page.fill(PRIVATE_KEY, &key);
            wait_dates(bench, "As saved 2020-01-02 to 2041-02-03 As edited 2021-03-04 to 2062-05-06");
            bench.page.wait("nothing is doubted", "!document.querySelector('#dates .badge')");
        }
        Keys => {
            let Identity { certificate, key } = certificate(MARCH_4_2021, MAY_6_2040);
            go_by_keys(bench, &["g", "t"]);
            open_row_by_keys(bench, "shop-cert");
            press(bench, &["e"]);
            wait_focus(bench, "[data-pointer='/snis']");
            tab_to(bench, CERTIFICATE);
            replace(bench, &certificate);
            tab_to(bench, PRIVATE_KEY);
            replace(bench, &key);
            wait_dates(bench, "2040-05-06 ends earlier than the one it replaces");
        }
    }
    save(bench, manner, "shop-cert");
}

pub(super) fn is_rotated(bench: &Bench, manner: Manner) {
    let until = if manner == Pointer { "2062" } else { "2040" };
    bench.put_into_use();
    eventually("it is the new one", DEADLINE, || {
        let told = Api::of(&bench.gateway).get("/weir/v1/certificates");
        let ends = told["list"][0]["not_after_ms"].as_u64().map(|ms| 1970 + ms / 31_556_952_000);
        ends.is_some_and(|year| year.to_string() == until)
    });
}

fn endpoint(manner: Manner) -> &'static str {
    if manner == Pointer { "127.0.0.1:2" } else { "127.0.0.1:3" }
}

pub(super) fn add_endpoint(bench: &Bench, manner: Manner) {
    let new = "[data-pointer='/nodes'] .pair.new input";
    match manner {
        Pointer => {
            search(bench, "orders", "orders");
            bench.page.click("#found a[href='#/upstreams/orders']");
            bench.settle("the upstream");
            bench.page.fill(new, endpoint(manner));
        }
        Keys => {
            open_upstream(bench);
            tab_to(bench, new);
            bench.page.write(endpoint(manner));
        }
    }
    save(bench, manner, "orders");
}

/// The upstream's form, with the focus in its first field.
fn open_upstream(bench: &Bench) {
    go_by_keys(bench, &["g", "u"]);
    open_row_by_keys(bench, "orders");
    press(bench, &["e"]);
    wait_focus(bench, "[data-pointer='/nodes']");
}

pub(super) fn has_endpoint(bench: &Bench, manner: Manner) {
    bench.eventually_is("upstreams/orders", &format!("/nodes/{}", endpoint(manner)), &json!(1));
}

pub(super) fn take_out(bench: &Bench, manner: Manner) {
    match manner {
        Pointer => bench.page.click(&format!("button[title*='{} ']", endpoint(manner))),
        Keys => {
            open_upstream(bench);
            tab_to(bench, &format!("[data-pointer='/nodes'] input[aria-label='Value of {}']", endpoint(manner)));
            replace(bench, "0");
            bench.page.press("Ctrl+Enter");
        }
    }
    bench.wait_text("Saved orders");
}

pub(super) fn is_taken_out(bench: &Bench, manner: Manner) {
    bench.eventually_is("upstreams/orders", &format!("/nodes/{}", endpoint(manner)), &json!(0));
}

/// The resource with a plugin that is switched off, and the plugin.
fn switched(manner: Manner) -> (&'static str, &'static str) {
    if manner == Pointer { ("gold", "limit-count") } else { ("standard", "cors") }
}

pub(super) fn switch_off(bench: &Bench, manner: Manner) {
    let (id, plugin) = switched(manner);
    match manner {
        Pointer => {
            open(bench, id);
            bench.page.click(".card .switch");
        }
        Keys => {
            open_by_keys(bench, id);
            press(bench, &["e"]);
            wait_focus(bench, ".form");
            tab_to(bench, &format!(".card[aria-label='{plugin}'] header .switch"));
            press(bench, &[" "]);
        }
    }
    bench.wait_text(&format!("Saved {id}"));
}

pub(super) fn is_off(bench: &Bench, manner: Manner) {
    match manner {
        Pointer => {
            bench.eventually_is("consumer_groups/gold", "/plugins/limit-count/_meta/disable", &json!(true));
            bench.eventually_is("consumer_groups/gold", "/plugins/limit-count/count", &json!(10));
        }
        Keys => bench.eventually_is("plugin_configs/standard", "/plugins/cors/_meta/disable", &json!(true)),
    }
}

pub(super) fn limit_all(bench: &Bench, manner: Manner) {
    let [count, window] =
        ["count", "time_window"].map(|name| format!("[data-pointer='/plugins/limit-count/{name}'] input"));
    match manner {
        Pointer => {
            bench.page.click("#menu a[href='#/global_rules']");
            bench.settle("global rules");
            bench.page.click("#content a.main");
            bench.settle("the form");
            bench.page.click("#add-plugin");
            bench.page.fill("#add-plugin-search", "limit-count");
            bench.page.press("Enter");
            bench.page.fill(&count, "1000000");
            bench.page.fill(&window, "60");
            bench.page.click(".bar .main");
        }
        Keys => {
            go_by_keys(bench, &["g", "b"]);
            go_by_keys(bench, &["n"]);
            press(bench, &["p"]);
            wait_focus(bench, "#add-plugin-search");
            bench.page.write("limit-count");
            press(bench, &["Enter"]);
            tab_to(bench, &count);
            bench.page.write("1000000");
            tab_to(bench, &window);
            bench.page.write("60");
            press(bench, &["Ctrl+Enter"]);
        }
    }
    bench.wait_text("Created");
}

/// No second one may limit the same.
pub(super) fn is_limited(bench: &Bench, _: Manner) {
    bench.page.evaluate("document.activeElement.blur()");
    undo(bench, Keys);
}

const SHARE: &str = "[data-pointer='/plugins/traffic-split/rules/0/weighted_upstreams/0/upstream_id'] input";

/// Five requests of a hundred go to the upstream of another version.
pub(super) fn split_traffic(bench: &Bench, manner: Manner) {
    choose_plugin(bench, manner, "traffic-split");
    match manner {
        Pointer => bench.page.fill(SHARE, "orders"),
        Keys => {
            tab_to(bench, SHARE);
            bench.page.write("orders");
        }
    }
    save(bench, manner, extended(manner));
}

pub(super) fn is_split(bench: &Bench, manner: Manner) {
    let shares: Value = json!([{ "upstream_id": "orders", "weight": 5 }, { "weight": 95 }]);
    let key = format!("routes/{}", extended(manner));
    bench.eventually_is(&key, "/plugins/traffic-split/rules/0/weighted_upstreams", &shares);
}
