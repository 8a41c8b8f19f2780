//! Texts that try to be more than texts.

use serde_json::{Value, json};
use weir_testkit::{BROWSER_DEADLINE, BrowserPage, Gateway, Identity, eventually, eventually_some};

use crate::api::{self, Api};
use crate::bench::{Bench, FEBRUARY_3_2041, JANUARY_2_2020, Store, certificate, resources};
use crate::screens::SCREENS;
use crate::tasks;

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

/// Makes the page take each text of each answer for one that tries to be more, except those that say what kind of thing something is.
const SPOIL: &str = include_str!("spoil.js");

/// Opens places whose texts are all hostile, except those of `without`, which show no text of the node.
#[track_caller]
fn look_at_spoiled(bench: &Bench, places: &[&str], without: &[&str]) {
    let mut problems = Vec::new();
    for place in places {
        bench.go(place);
        if bench.page.evaluate(MADE) != 0 {
            problems.push(format!("{place} made an element of a text"));
        }
        let shows = "document.querySelector('#content').innerText.includes('<img') ||
            [...document.querySelectorAll('#content input, #content textarea')].some((one) => one.value.includes('<img')) ||
            [...document.querySelectorAll('weir-editor')].some((one) => one.shadowRoot.textContent.includes('<img'))";
        let shows = bench.page.evaluate(shows) == true;
        if shows == without.contains(place) {
            problems.push(format!("{place} shows hostile texts: {shows}"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    bench.check_quiet();
}

#[test]
fn texts_of_all_answers_stay_texts() {
    let Some(page) = BrowserPage::open() else { return };
    let (bench, _other) = Bench::with_neighbours(page);
    // One request in 128 has a price.
    let (client, admin) = (&mut bench.gateway.client(), &mut Api::of(&bench.gateway));
    eventually("a price is known", BROWSER_DEADLINE, || {
        (0..200).for_each(|_| drop(client.get("/orders/1")));
        admin.get("/weir/v1/policies").to_string().contains("limit-count")
    });
    bench.page.evaluate(SPOIL.trim());
    // The words of a refusal, too.
    bench.page.fill("#key", "a-key-of-no-user");
    bench.page.press("Enter");
    bench.wait_text("The node does not know this key.");
    assert_eq!(bench.page.evaluate(MADE), 0);
    bench.log_in(api::ADMIN);
    let lab = "#/lab/drain-20261127T032438Z.json";
    let more = ["#/lab", lab, "#/environments", "#/environments/live", "#/explain?url=%2Forders%2F1%3Fversion%3D2"];
    let places: Vec<&str> = SCREENS.iter().copied().chain(more).collect();
    // Two of these have tests of their own, about requests and hubs.
    let without = ["#/explain", "#/live", "#/routes?q=nothing", "#/routes/none", "#/streaming"];
    look_at_spoiled(&bench, &places, &without);
    // The answer to a request that is sent, and what became of a test record.
    bench.go("#/explain?url=%2Forders%2F1");
    bench.page.click("#content button[title^='The node sends this request']");
    bench.page.wait(
        "the response",
        "[...document.querySelectorAll('#content pre')].some((one) => one.innerText.includes('<img'))",
    );
    assert_eq!(bench.page.evaluate(MADE), 0);
    bench.go("#/records");
    bench.page.click("#content section button");
    bench
        .page
        .wait("the outcome", "document.querySelector('#content section [role=status]').innerText.includes('<img')");
    assert_eq!(bench.page.evaluate(MADE), 0);
    bench.check_quiet();
}

#[test]
fn texts_of_hubs_stay_texts() {
    let Some(page) = BrowserPage::open() else { return };
    let Some((bench, _company)) = tasks::start_hub(page, Store::Embedded) else { return };
    bench.page.evaluate(SPOIL.trim());
    look_at_spoiled(&bench, &["#/streaming", "#/streaming?show=dead"], &[]);
}

/// Names of files, comments, values, and what the node says of them at their lines.
#[test]
fn texts_of_a_draft_stay_texts() {
    const IMAGE: &str = "<img src=x onerror=window.hacked=1>";
    let Some(page) = BrowserPage::open() else { return };
    let name = format!("{IMAGE}.yaml");
    let routes = format!("routes:\n# {IMAGE}\n- {{ id: r1, uri: /a, desc: \"{IMAGE}\", plugins: {{ cors: {{}} }} }}\n");
    let file = api::file().replace("admin:\n", "admin:\n  store: file\n  draft: write\n")
        + &format!("include: [\"{name}\"]\n");
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).file(&name, &routes).start(&file);
    let bench = Bench::of(page, gateway);
    bench.log_in(api::ADMIN);
    for path in [format!("/{IMAGE}"), IMAGE.to_owned()] {
        bench.go("#/routes/r1");
        bench.page.fill("[data-pointer='/uri'] input", &path);
        bench.page.press("Ctrl+Enter");
        bench.wait_text("1 change in the draft");
        bench.go("#/draft");
        bench.page.wait("the difference", "document.querySelector('.diff .added')?.textContent.includes('<img')");
        bench.wait_text(&name);
        assert_eq!(bench.page.evaluate(MADE), 0, "{path}");
    }
    bench.check_quiet();
}

/// Those of [`crate::bench::RESOURCES`], and what they are changed to.
const SECRETS: [&str; 5] = ["key-of-jack", "a-token", "PRIVATE KEY", "another-key-for-him", "one-more-for-vault"];

/// Neither the page nor its storage has a secret of a resource: not in what is drawn, nor in a field.
#[test]
fn secrets_of_resources_are_in_no_page_of_a_viewer() {
    let Some(page) = BrowserPage::open() else { return };
    let Some((bench, _company)) = Bench::in_store(page, Store::Embedded, resources) else { return };
    // Secrets that have changed have an old value and a new one.
    let mut admin = Api::of(&bench.gateway);
    admin.put(
        "consumers/jack",
        r#"{"username":"jack","plugins":{"key-auth":{"key":"another-key-for-him"}},"labels":{"tier":"gold"}}"#,
    );
    admin.put("secrets/vault/1", r#"{"uri":"http://127.0.0.1:1","prefix":"kv/weir","token":"one-more-for-vault"}"#);
    let Identity { certificate, key } = certificate(JANUARY_2_2020, FEBRUARY_3_2041);
    let changed = json!({ "snis": ["shop.example.com"], "cert": certificate, "key": key });
    admin.put("ssls/shop-cert", &changed.to_string());
    bench.page.click("#menu .who button");
    bench.page.wait("the page of the log-in", "document.querySelector('#key')");
    bench.log_in(api::VIEWER);
    let places = SCREENS.iter().filter(|place| !place.contains("live") && !place.starts_with("#/new"));
    for place in places {
        bench.go(place);
        has_no_secret(&bench, place);
    }
    // Each shows its resource, and that in all parts of the page: an input, the editor, and elements.
    for (place, part, shown) in [
        ("#/ssls/shop-cert", "fields", "shop.example.com"),
        ("#/ssls/shop-cert?tab=json", "editors", "shop.example.com"),
        ("#/consumers/jack", "fields", "gold"),
        ("#/consumers/jack?tab=json", "editors", "jack"),
        ("#/secrets/vault/1", "fields", "kv/weir"),
        ("#/secrets/vault/1?tab=json", "editors", "kv/weir"),
        ("#/consumers", "html", "jack"),
    ] {
        bench.go(place);
        let seen = has_no_secret(&bench, place);
        assert!(seen[part].to_string().contains(shown), "{place} does not show {shown}: {seen:#}");
    }
    // The values that a revision had before and after.
    for place in
        ["#/history", "#/ssls/shop-cert?tab=history", "#/consumers/jack?tab=history", "#/secrets/vault/1?tab=history"]
    {
        bench.go(place);
        let revisions = bench.page.evaluate("document.querySelectorAll('.revisions button').length");
        let revisions = revisions.as_u64().expect("a number");
        assert!(revisions >= 2, "{place} has {revisions} revisions");
        for number in 1..=revisions {
            bench.page.click(&format!(".revisions li:nth-child({number}) button"));
            // Of a secret that has changed, there is nothing to see.
            bench.page.wait(
                "the revision",
                "(() => {
                    const chosen = document.querySelector('.revisions [aria-pressed=true] b')?.textContent;
                    return [...document.querySelectorAll('.revision-detail h2')].some((title) => title.textContent.includes(`Revision ${chosen} `));
                })()",
            );
            bench.settle(place);
            has_no_secret(&bench, place);
        }
    }
    bench.check_quiet();
}

/// What a page holds, by part; panics if a secret is in it.
#[track_caller]
fn has_no_secret(bench: &Bench, place: &str) -> Value {
    let seen = bench.page.evaluate(
        "({ html: document.documentElement.outerHTML, fields: [...document.querySelectorAll('input, textarea')].map((one) => one.value),
            editors: [...document.querySelectorAll('weir-editor')].map((one) => one.shadowRoot.textContent),
            storage: JSON.stringify([{ ...localStorage }, { ...sessionStorage }]) })",
    );
    let text = seen.to_string();
    for secret in SECRETS.iter().copied().chain([api::ADMIN, api::VIEWER]) {
        assert!(!text.contains(secret), "{place} has {secret}");
    }
    seen
}
