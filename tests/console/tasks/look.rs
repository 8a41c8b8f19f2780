//! Tasks that find something.

use serde_json::json;
use weir_testkit::{BROWSER_DEADLINE, eventually, eventually_some};

use super::Manner::{self, Keys, Pointer};
use super::{go_by_keys, open, open_by_keys, press, search, wait_focus};
use crate::api::{self, Api};
use crate::bench::Bench;

pub(super) fn find(bench: &Bench, manner: Manner) {
    match manner {
        Pointer => search(bench, "/shop/7777/", "r7777"),
        Keys => {
            press(bench, &["/"]);
            bench.page.write("/shop/1057/");
            bench.page.wait("the result", "document.querySelector('#found-0 b')?.textContent === 'r1057'");
            press(bench, &["Enter"]);
            bench.page.wait("the route", "document.querySelector('#content h1')?.textContent === 'r1057'");
        }
    }
}

/// What was found by pointer is not opened.
pub(super) fn leave_search(bench: &Bench, _: Manner) {
    bench.page.press("Escape");
}

pub(super) fn explain(bench: &Bench, manner: Manner) {
    match manner {
        Pointer => {
            bench.page.click("#menu a[href='#/explain']");
            bench.settle("explain");
            bench.page.fill("#explain-url", "http://other.example/images/1");
        }
        Keys => {
            press(bench, &["g", "x"]);
            wait_focus(bench, "#explain-url");
            bench.page.write("http://other.example/images/1");
        }
    }
    bench.page.press("Enter");
    bench.wait_text("No route takes this request");
    bench.page.wait("why", "[...document.querySelectorAll('td')].some((cell) => cell.textContent.includes('images'))");
}

/// One request in 128 is measured, by chance.
pub(super) fn be_measured(bench: &Bench) {
    let client = &mut bench.gateway.client();
    let mut admin = Api::of(&bench.gateway);
    eventually("a request is measured", BROWSER_DEADLINE, || {
        for number in 0..100 {
            assert_eq!(client.get(&format!("/orders/{number}")).map(|answer| answer.status).ok(), Some(200));
        }
        admin.get("/weir/v1/policies")["routes"].to_string().contains("proxy-rewrite")
    });
}

pub(super) fn dearest(bench: &Bench, manner: Manner) {
    match manner {
        Pointer => bench.page.click("#menu a[href='#/price']"),
        Keys => press(bench, &["g", "p"]),
    }
    bench.wait_text("proxy-rewrite");
}

pub(super) fn watch(bench: &Bench, manner: Manner) {
    match manner {
        Pointer => {
            bench.page.click("#menu a[href='#/live']");
            bench.settle("live requests");
            bench.page.click(".segments button:nth-child(2)");
        }
        Keys => {
            go_by_keys(bench, &["g", "l"]);
            press(bench, &["5"]);
        }
    }
    bench.page.wait("it follows", "document.querySelector('#content .actions')?.textContent.includes('Stop')");
}

pub(super) fn shows_failures(bench: &Bench, _: Manner) {
    let client = &mut bench.gateway.client();
    eventually_some("the page shows the failed request alone", BROWSER_DEADLINE, || {
        for target in ["/orders/slow?fail=1", "/orders/1"] {
            client.get(target).ok()?;
        }
        let rows = bench
            .page
            .evaluate("[...document.querySelectorAll('weir-table .body .row')].map((row) => row.textContent)");
        let rows = rows.as_array()?;
        (!rows.is_empty() && rows.iter().all(|row| row.as_str().is_some_and(|row| row.contains("503")))).then_some(())
    });
}

/// The last change of this route is by another user than all others of it, and so is that of another route.
pub(super) fn be_changed_by_others(bench: &Bench) {
    let route = |uri: &str| format!(r#"{{"uri":"{uri}","upstream_id":"orders"}}"#);
    let mut admin = Api::of(&bench.gateway);
    let mut value = admin.get("routes/images")["value"].clone();
    value["desc"] = json!("changed");
    for time in ["create_time", "update_time"] {
        value.as_object_mut().expect("a route").remove(time);
    }
    let mut editor = Api::with_key(bench.admin_addr(), api::EDITOR);
    value["priority"] = json!(value["priority"].as_i64().unwrap_or_default() + 1);
    editor.put("routes/images", &value.to_string());
    admin.put("routes/changed-later", &route("/changed-later"));
}

pub(super) fn last_change(bench: &Bench, manner: Manner) {
    match manner {
        Pointer => {
            open(bench, "images");
            bench.page.click(".tabs a:last-child");
        }
        Keys => {
            open_by_keys(bench, "images");
            press(bench, &["h"]);
        }
    }
    bench.page.wait("the last change", "document.querySelector('.revisions li')?.innerText.includes('by ed')");
}

pub(super) fn copy_yaml(bench: &Bench, manner: Manner) {
    bench.page.allow_clipboard();
    match manner {
        Pointer => {
            open(bench, "images");
            bench.page.click("#content .actions button:first-of-type");
        }
        Keys => {
            open_by_keys(bench, "images");
            press(bench, &["y"]);
        }
    }
    bench.wait_text("Copied");
}

/// What the page hands to the clipboard is kept, since a page cannot read that of every browser.
pub(super) fn watch_clipboard(bench: &Bench) {
    bench.page.evaluate(
        "(() => {
            const clipboard = navigator.clipboard;
            const own = (window.writeClipboard ??= clipboard.writeText.bind(clipboard));
            window.copied = null;
            clipboard.writeText = async (text) => (await own(text), (window.copied = text), undefined);
        })()",
    );
}

pub(super) fn is_copied(bench: &Bench, _: Manner) {
    let copied = bench.page.evaluate("window.copied");
    let copied = copied.as_str().expect("a text was copied");
    for part in ["routes:", "/images/*", "shop.example.com"] {
        assert!(copied.contains(part), "{part} is missing: {copied}");
    }
}
