//! Texts that try to be more than texts.

use weir_testkit::{BROWSER_DEADLINE, BrowserPage, eventually_some};

use crate::api::{self, Api};
use crate::bench::{Bench, Store, resources};
use crate::screens::SCREENS;

const HOSTILE: &str =
    "\\\"><img src=x onerror=window.hacked=1><script>window.hacked=1</script>{{7*7}}${window.hacked=1}";

#[test]
fn texts_of_resources_stay_texts_on_every_screen() {
    let Some(bench) = Bench::logged_out(&api::file()) else { return };
    let mut admin = Api::of(&bench.gateway);
    // A label has no spaces.
    let label = HOSTILE.replace(' ', "/");
    let words = format!(r#""name":"{}","desc":"{HOSTILE}","labels":{{"{label}":"{label}"}}"#, &HOSTILE[..60]);
    admin.put("upstreams/u", &format!(r#"{{{words},"nodes":{{"127.0.0.1:1":1}}}}"#));
    admin.put("services/s", &format!(r#"{{{words},"upstream_id":"u"}}"#));
    admin.put(
        "routes/r",
        &format!(
            r#"{{{words},"uri":"/<img src=x onerror=window.hacked=1>","service_id":"s",
                "plugins":{{"mocking":{{"response_example":"{HOSTILE}","response_headers":{{"X-A":"{HOSTILE}"}}}}}}}}"#
        ),
    );
    admin.put(
        "consumers/c",
        &format!(r#"{{"username":"c","desc":"{HOSTILE}","plugins":{{"key-auth":{{"key":"{HOSTILE}"}}}}}}"#),
    );
    bench.log_in(api::ADMIN);
    for place in [
        "#/overview",
        "#/routes",
        "#/services",
        "#/upstreams",
        "#/consumers",
        "#/routes/r",
        "#/routes/r?tab=json",
        "#/routes/r?tab=history",
        "#/consumers/c",
        "#/history",
        "#/explain?url=%22%3E%3Cimg%20src%3Dx%20onerror%3Dwindow.hacked%3D1%3E",
        "#/routes?q=%3Cimg%20src%3Dx%20onerror%3Dwindow.hacked%3D1%3E",
        "#/%3Cimg%20src=x%20onerror=window.hacked=1%3E",
        "#/routes/%3Cimg%20src=x%20onerror=window.hacked=1%3E",
    ] {
        bench.go(place);
        let made = bench.page.evaluate(
            "window.hacked ?? document.querySelectorAll('#app img:not([src=\"icon.svg\"]), #app script').length",
        );
        assert_eq!(made, 0, "{place}");
    }
    bench.check_quiet();
}

/// The page made an element of a text, or ran it.
const MADE: &str = "window.hacked ?? document.querySelectorAll('#app img:not([src=\"icon.svg\"]), #app script').length";

#[test]
fn texts_of_requests_stay_texts() {
    let Some(bench) = Bench::logged_out(&api::file()) else { return };
    bench.log_in(api::ADMIN);
    bench.go("#/live");
    bench.page.wait("it follows", "document.querySelector('#content .actions').textContent.includes('Stop')");
    let client = &mut bench.gateway.client();
    let request = "GET /<img/src=x/onerror=window.hacked=1> HTTP/1.1\r\nHost: a.example\r\n\
                   User-Agent: <img src=x onerror=window.hacked=1>\r\nReferer: <script>window.hacked=1</script>\r\n\r\n";
    eventually_some("the page shows the request", BROWSER_DEADLINE, || {
        client.ask(request).ok()?;
        let rows = bench.page.evaluate("document.querySelectorAll('weir-table .body .row').length");
        rows.as_u64().filter(|rows| *rows > 0)
    });
    // Its details, too.
    bench.page.click("weir-table .body .row");
    bench.page.wait("the details", "document.querySelector('aside.request')?.textContent.includes('<img')");
    assert_eq!(bench.page.evaluate(MADE), 0);
    bench.check_quiet();
}

/// Neither the page nor its storage has a secret of a resource: not in what is drawn, nor in a field.
#[test]
fn secrets_of_resources_are_in_no_page_of_a_viewer() {
    let Some(page) = BrowserPage::open() else { return };
    let Some((bench, _company)) = Bench::in_store(page, Store::Embedded, resources) else { return };
    bench.page.click("#menu .who button");
    bench.page.wait("the page of the log-in", "document.querySelector('#key')");
    bench.log_in(api::VIEWER);
    let places = SCREENS.iter().filter(|place| !place.contains("live") && !place.starts_with("#/new"));
    for place in places.chain(&[
        "#/ssls/shop-cert",
        "#/ssls/shop-cert?tab=json",
        "#/consumers/jack?tab=json",
        "#/secrets/vault/1",
    ]) {
        bench.go(place);
        let seen = bench.page.evaluate(
            "JSON.stringify([document.documentElement.outerHTML, [...document.querySelectorAll('input, textarea')].map((one) => one.value),
                [...document.querySelectorAll('weir-editor')].map((one) => one.shadowRoot.textContent), { ...localStorage }, { ...sessionStorage }])",
        );
        let seen = seen.as_str().expect("a text");
        for secret in ["key-of-jack", "a-token", "PRIVATE KEY", api::ADMIN, api::VIEWER] {
            assert!(!seen.contains(secret), "{place} has {secret}");
        }
    }
    bench.check_quiet();
}
