//! The pictures of the guide: with `WEIR_CONSOLE_PICTURES=yes`, they are written to `docs/pictures` as the screens look now, and one of
//! each screen, in both schemes and two widths, to `target/console-pictures`, to be looked at.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use weir_testkit::{BROWSER_DEADLINE, BrowserPage, eventually};

use crate::api::{self, Api};
use crate::bench::Bench;
use crate::screens::SCREENS;

/// Name, place, width, height, scheme, and a text on it.
const PICTURES: &[(&str, &str, u32, u32, &str, &str)] = &[
    ("console-overview", "#/overview", 1280, 800, "light", "Requests per second"),
    ("console-route", "#/routes/orders", 1280, 800, "dark", "proxy-rewrite"),
    ("console-explain", "#/explain?url=%2Forders%2F1%3Fversion%3D1", 1280, 640, "light", "Route orders"),
    ("console-price", "#/price", 1280, 640, "dark", "limit-count"),
    ("console-phone", "#/overview", 360, 740, "dark", "Requests"),
    ("console-routes", "#/routes", 1280, 480, "light", "3 routes"),
    ("console-text", "#/routes/orders?tab=json", 1280, 640, "light", "JSON"),
    ("console-phone-route", "#/services/shop", 360, 740, "light", "limit-count"),
];

/// Pictures of what needs more than a place: a name, what leads to it, a text on it, and the scheme.
type Acted = (&'static str, fn(&Bench), &'static str, &'static str);
const ACTED: &[Acted] = &[
    ("console-records", send_tests, "It is not sent again", "dark"),
    ("console-live", follow_requests, "/orders/slow", "dark"),
    ("console-history", look_back, "What would change", "light"),
];

fn follow_requests(bench: &Bench) {
    bench.go("#/live");
    bench.page.wait("it follows", "document.querySelector('#content .actions').textContent.includes('Stop')");
    let client = &mut bench.gateway.client();
    eventually("the page shows requests", BROWSER_DEADLINE, || {
        for target in ["/orders/1", "/orders/slow?fail=1", "/orders/2?version=1", "/nowhere"] {
            let _ = client.get(target);
        }
        let rows = bench.page.evaluate("document.querySelectorAll('weir-table .body .row').length");
        rows.as_u64().is_some_and(|rows| rows > 8)
    });
    bench.page.click("weir-table .body .row:nth-child(2)");
}

/// One to a destination that takes records, and one to a destination that is not there.
fn send_tests(bench: &Bench) {
    let down = json!({ "uri": "/down", "plugins": { "http-logger": { "uri": "http://127.0.0.1:1/logs" } } });
    bench.fill(&[("routes/down".to_owned(), down)]);
    bench.go("#/records");
    bench.page.wait("both destinations", "document.querySelectorAll('.cards section button').length === 2");
    for number in 1..=2 {
        bench.page.click(&format!(".cards section:nth-child({number}) button"));
    }
    bench.wait_text("was delivered");
    bench.wait_text("It is not sent again");
}

fn look_back(bench: &Bench) {
    let mut admin = Api::of(&bench.gateway);
    admin.put("routes/images", r#"{"uri":"/pictures/*","upstream_id":"orders"}"#);
    bench.go("#/history");
    bench.page.click(".revisions li:nth-child(2) button");
    bench.page.wait("the difference", "document.querySelector('.rollback .diff .removed')");
}

/// So many seconds of figures are on the pictures.
const SECONDS: usize = 100;

#[test]
fn the_pictures_of_the_guide_show_what_they_are_about() {
    let is_wanted = is_wanted();
    let Some(page) = BrowserPage::open() else { return };
    let (bench, _other) = Bench::with_neighbours(page);
    bench.log_in(api::ADMIN);
    let client = &mut bench.gateway.client();
    let mut admin = Api::of(&bench.gateway);
    let least = if is_wanted { SECONDS } else { 1 };
    let mut number: usize = 0;
    // One request in 128 is measured, and the figures have a value for each second.
    eventually("there are figures", BROWSER_DEADLINE * 3, || {
        for _ in 0..60 + 20 * (number / 600 % 4) {
            number += 1;
            let target = if number.is_multiple_of(61) { "/orders/slow?fail=1" } else { "/orders/1" };
            let _ = client.get(target);
        }
        let figures = admin.get("/weir/v1/metrics/history");
        let known = figures["series"]["p50_ms"]
            .as_array()
            .map_or(0, |list| list.iter().filter(|value| !value.is_null()).count());
        known >= least && admin.get("/weir/v1/policies").to_string().contains("limit-count")
    });
    for (name, place, width, height, scheme, text) in PICTURES {
        bench.page.resize(*width, *height);
        bench.page.prefer(scheme);
        bench.go(place);
        bench.wait_text(text);
        if is_wanted {
            write(&bench, "docs/pictures", name);
        }
    }
    bench.page.resize(1280, 640);
    for (name, act, text, scheme) in ACTED {
        bench.page.prefer(scheme);
        act(&bench);
        bench.wait_text(text);
        if is_wanted {
            write(&bench, "docs/pictures", name);
        }
    }
    if is_wanted {
        write_all(&bench, &[SCREENS, NEIGHBOURS].concat());
    }
    bench.check_quiet();
}

/// Screens of what is beside a node.
const NEIGHBOURS: &[&str] = &["#/lab", "#/lab/drain-20261127T032438Z.json", "#/environments", "#/environments/live"];

const RESOURCES: &str = "\
# The shop.
routes:
- id: orders
  uri: /orders/*      # of all customers
  upstream_id: backend
  plugins:
    limit-count: { count: 100, time_window: 60 }   # a minute
upstreams:
- id: backend
  nodes: { \"127.0.0.1:8001\": 1, \"127.0.0.1:8002\": 1 }
";

#[test]
fn the_picture_of_a_draft_shows_a_difference() {
    let file = api::file().replace("admin:\n", "admin:\n  store: file\n  draft: write\n") + RESOURCES;
    let Some(bench) = Bench::logged_out(&file) else { return };
    bench.log_in(api::ADMIN);
    bench.page.resize(1280, 640);
    bench.go("#/routes/orders");
    bench.page.fill("[data-pointer='/uri'] input", "/purchases/*");
    bench.page.press("Ctrl+Enter");
    bench.wait_text("1 change in the draft");
    bench.page.click(".notice [aria-label='Close']");
    bench.go("#/draft");
    bench.page.wait("the difference", "document.querySelector('.diff .added')?.textContent.includes('/purchases/*')");
    bench.wait_text("The node would accept this.");
    if is_wanted() {
        write(&bench, "docs/pictures", "console-draft");
        write_all(&bench, &["#/draft"]);
    }
    bench.check_quiet();
}

fn is_wanted() -> bool {
    std::env::var("WEIR_CONSOLE_PICTURES").is_ok_and(|value| value == "yes")
}

fn write(bench: &Bench, folder: &str, name: &str) {
    let picture = STANDARD.decode(bench.page.screenshot()).expect("base64");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join(format!("{name}.webp")), picture).expect("a file");
}

/// Of each screen, in both schemes and two widths.
fn write_all(bench: &Bench, places: &[&str]) {
    for (scheme, width) in [("light", 1280), ("dark", 1280), ("light", 360), ("dark", 360)] {
        bench.page.prefer(scheme);
        bench.page.resize(width, 800);
        for place in places {
            bench.go(place);
            let name: String = place.chars().map(|one| if one.is_ascii_alphanumeric() { one } else { '-' }).collect();
            write(bench, "target/console-pictures", &format!("{scheme}-{width}{}", name.trim_end_matches('-')));
        }
    }
}
