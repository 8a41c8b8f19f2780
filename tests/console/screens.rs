//! Every screen, in light and dark, narrow and wide: no complaint of the browser, no other host, no violation that axe-core finds, no
//! scrolling to the side.

use std::collections::BTreeSet;

use serde_json::json;

use crate::api;
use crate::bench::{Bench, axe};

/// Each screen of a node with a store.
pub(crate) const SCREENS: &[&str] = &[
    "#/overview",
    "#/explain",
    "#/explain?url=%2Forders%2F1",
    "#/price",
    "#/live",
    "#/routes",
    "#/routes?q=nothing",
    "#/services",
    "#/upstreams",
    "#/consumers",
    "#/ssls",
    "#/plugin_configs",
    "#/global_rules",
    "#/consumer_groups",
    "#/secrets",
    "#/routes/orders",
    "#/routes/orders?tab=json",
    "#/routes/orders?tab=history",
    "#/routes/none",
    "#/upstreams/orders",
    "#/consumers/jack",
    "#/new/routes",
    "#/new/ssls",
    "#/streaming",
    "#/records",
    "#/nodes",
    "#/history",
];

/// What a screen reader says of what can be used or read as a whole, by role, in the tree that Chromium gives it.
const NAMED: [&str; 11] = [
    "grid",
    "textbox",
    "searchbox",
    "combobox",
    "checkbox",
    "switch",
    "button",
    "link",
    "listbox",
    "dialog",
    "navigation",
];

#[test]
fn tables_fields_and_plots_have_names() {
    let Some(bench) = Bench::start() else { return };
    bench.page.call("Accessibility.enable", &json!({}));
    let (mut problems, mut met) = (Vec::new(), BTreeSet::new());
    // An open list and a dialog, too.
    let opened = [("#/routes/orders?plugins", "p"), ("#/overview?help", "?")];
    for (place, key) in SCREENS.iter().map(|place| (*place, "")).chain(opened) {
        bench.go(place);
        if !key.is_empty() {
            bench.page.press(key);
        }
        let tree = bench.page.call("Accessibility.getFullAXTree", &json!({}));
        let nodes = tree["nodes"].as_array().expect("a tree");
        assert!(nodes.len() > 20, "{place} has {} nodes", nodes.len());
        for node in nodes.iter().filter(|node| node["ignored"] != true) {
            let (role, name) = (node["role"]["value"].as_str().unwrap_or_default(), &node["name"]["value"]);
            let is_named = name.as_str().is_some_and(|name| !name.trim().is_empty());
            met.extend(NAMED.iter().copied().filter(|named| *named == role));
            if NAMED.contains(&role) && !is_named {
                problems.push(format!("{place}: a {role} without a name: {node}"));
            }
        }
        // What a plot shows is a table beside it.
        let plots = "[...document.querySelectorAll('weir-plot')].filter((plot) => \
                     !(plot.getAttribute('aria-label') && plot.parentElement.querySelector('.values table th'))).length";
        if bench.page.evaluate(plots) != 0 {
            problems.push(format!("{place}: a plot without a name or a table of values"));
        }
        let plots = bench.page.evaluate("document.querySelectorAll('weir-plot canvas').length");
        if place == "#/overview" && plots == 0 {
            problems.push(format!("{place} has no plot"));
        }
    }
    let missing: Vec<&str> = NAMED.into_iter().filter(|role| !met.contains(role)).collect();
    assert!(missing.is_empty(), "no screen has one of these: {missing:?}");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn look_at_all(scheme: &str, width: u32) {
    let (Some(axe), Some(bench)) = (axe(), Bench::start()) else { return };
    bench.page.prefer(scheme);
    bench.page.resize(width, 800);
    bench.page.evaluate(&axe);
    let mut problems = Vec::new();
    for place in SCREENS {
        bench.go(place);
        let found = bench.page.evaluate(
            "axe.run(document, { resultTypes: ['violations'] }).then((found) => found.violations.map((one) =>
                `${one.id}: ${one.nodes.map((node) => node.target.join(' ') + ' ' + (node.any[0]?.message ?? '')).slice(0, 3).join(', ')}`).join('\\n'))",
        );
        if found != "" {
            problems.push(format!("{place}: {}", found.as_str().unwrap_or_default()));
        }
        let scrolls = bench.page.evaluate(
            "document.querySelector('#content').scrollWidth > document.querySelector('#content').clientWidth",
        );
        if scrolls != false {
            problems.push(format!("{place} scrolls to the side"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    bench.check_quiet();
}

#[test]
fn screens_are_accessible_in_light_and_wide() {
    look_at_all("light", 1280);
}

#[test]
fn screens_are_accessible_in_dark_and_wide() {
    look_at_all("dark", 1280);
}

#[test]
fn screens_are_accessible_in_light_and_narrow() {
    look_at_all("light", 360);
}

#[test]
fn screens_are_accessible_in_dark_and_narrow() {
    look_at_all("dark", 360);
}

#[test]
fn resources_of_a_file_are_shown_with_their_places() {
    let file = api::file().replace("admin:\n", "admin:\n  store: file\n")
        + "routes:\n- { id: r1, uri: /a, upstream: { nodes: { \"127.0.0.1:1\": 1 } }, plugins: { cors: {} } }\n";
    let Some(bench) = Bench::logged_out(&file) else { return };
    // Admins have a draft; see `draft`.
    bench.log_in(api::EDITOR);
    for place in ["#/overview", "#/routes", "#/nodes", "#/explain?url=%2Fa", "#/routes/r1?tab=json", "#/routes/r1"] {
        bench.go(place);
    }
    bench.wait_text("weir.yaml, line 12. Change it there");
    assert_eq!(
        bench.page.evaluate("document.querySelectorAll('#content .bar, #content button.danger, a.new').length"),
        0
    );
    assert_eq!(bench.page.evaluate("document.querySelector('#menu a[href=\"#/history\"]')"), serde_json::Value::Null);
    bench.check_quiet();
}

#[test]
fn a_wrong_key_is_refused_in_words_and_is_kept_nowhere() {
    let Some(bench) = Bench::logged_out(&api::file()) else { return };
    let page = &bench.page;
    page.fill("#key", "not-the-key-of-anybody");
    page.press("Enter");
    bench.wait_text("The node does not know this key.");
    page.fill("#key", api::ADMIN);
    page.press("Enter");
    page.wait("the menu", "document.querySelector('#menu a')");
    bench.settle("the overview");
    let kept = "JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, document.documentElement.outerHTML, location.href])";
    let kept = page.evaluate(kept);
    assert!(!kept.as_str().expect("a text").contains(api::ADMIN), "{kept}");
    page.click("#menu .who button");
    page.wait("the page of the log-in", "document.querySelector('#key')");
    assert_eq!(page.evaluate("sessionStorage.length"), 0);
    bench.check_quiet();
}

#[test]
fn a_viewer_sees_everything_and_is_offered_no_change() {
    let Some(bench) = Bench::logged_out(&api::file()) else { return };
    api::Api::of(&bench.gateway).put("routes/r1", r#"{"uri":"/a","upstream":{"nodes":{"127.0.0.1:1":1}}}"#);
    bench.log_in(api::VIEWER);
    bench.go("#/routes/r1");
    assert_eq!(bench.page.evaluate("document.querySelectorAll('#content .bar, #content button.danger').length"), 0);
    assert_eq!(bench.page.evaluate("document.querySelector('#content fieldset').disabled"), true);
    assert_eq!(bench.page.evaluate("document.querySelector('#menu a[href=\"#/live\"]')"), serde_json::Value::Null);
    bench.check_quiet();
}
