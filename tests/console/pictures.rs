//! The pictures of the guide: with `WEIR_CONSOLE_PICTURES=yes`, they are written to `docs/pictures` as the screens look now, and one of
//! each screen, in both schemes and two widths, to `target/console-pictures`, to be looked at.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use weir_testkit::{BROWSER_DEADLINE, BrowserPage, eventually};

use crate::api::Api;
use crate::bench::{Bench, Store, resources};
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
    let is_wanted = std::env::var("WEIR_CONSOLE_PICTURES").is_ok_and(|value| value == "yes");
    let Some(page) = BrowserPage::open() else { return };
    let Some((bench, _company)) = Bench::in_store(page, Store::Embedded, resources) else { return };
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
        write_all(&bench);
    }
    bench.check_quiet();
}

fn write(bench: &Bench, folder: &str, name: &str) {
    let picture = STANDARD.decode(bench.page.screenshot()).expect("base64");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join(format!("{name}.webp")), picture).expect("a file");
}

/// Of each screen, in both schemes and two widths.
fn write_all(bench: &Bench) {
    for (scheme, width) in [("light", 1280), ("dark", 1280), ("light", 360), ("dark", 360)] {
        bench.page.prefer(scheme);
        bench.page.resize(width, 800);
        for place in SCREENS {
            bench.go(place);
            let name: String = place.chars().map(|one| if one.is_ascii_alphanumeric() { one } else { '-' }).collect();
            write(bench, "target/console-pictures", &format!("{scheme}-{width}{}", name.trim_end_matches('-')));
        }
    }
}
