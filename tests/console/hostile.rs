//! Texts that try to be more than texts.

use crate::api::{self, Api};
use crate::bench::Bench;

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
    let client = &mut bench.gateway.client();
    let _ = client.get("/%3Cimg%20src=x%20onerror=window.hacked=1%3E");
    bench.go("#/live");
    bench.check_quiet();
}
