//! The pictures of the guide: with `WEIR_CONSOLE_PICTURES=yes`, they are written to `docs/pictures` as the screens look now.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use weir_testkit::{BROWSER_DEADLINE, eventually};

use crate::api::Api;
use crate::bench::Bench;

/// Name, place, width, height, scheme, and a text on it.
const PICTURES: &[(&str, &str, u32, u32, &str, &str)] = &[
    ("console-overview", "#/overview", 1280, 800, "light", "Requests per second"),
    ("console-route", "#/routes/orders", 1280, 800, "dark", "proxy-rewrite"),
    ("console-explain", "#/explain?url=%2Forders%2F1%3Fversion%3D1", 1280, 640, "light", "Route orders"),
    ("console-price", "#/price", 1280, 640, "dark", "limit-count"),
    ("console-phone", "#/overview", 360, 740, "dark", "Requests"),
];

/// So many seconds of figures are on the pictures.
const SECONDS: usize = 100;

#[test]
fn the_pictures_of_the_guide_show_what_they_are_about() {
    let is_wanted = std::env::var("WEIR_CONSOLE_PICTURES").is_ok_and(|value| value == "yes");
    let Some(bench) = Bench::start() else { return };
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
            let picture = STANDARD.decode(bench.page.screenshot()).expect("base64");
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures").join(format!("{name}.webp"));
            std::fs::write(path, picture).expect("a file");
        }
    }
    bench.check_quiet();
}
