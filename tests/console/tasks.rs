//! What a first day asks for, by pointer and by keys. Typing into a field is no click; each task has an upper bound of clicks.

use serde_json::{Value, json};
use weir_testkit::{eventually, eventually_some};

use crate::api::{self, Api};
use crate::bench::Bench;

/// Ends a task by pointer: not more clicks than this.
#[track_caller]
fn at_most(bench: &Bench, clicks: usize) {
    let used = bench.page.take_clicks();
    assert!(used <= clicks, "{used} clicks, not {clicks}");
}

/// Types into the search box, and waits until the first result is this one.
#[track_caller]
fn search(bench: &Bench, text: &str, first: &str) {
    bench.page.fill("#search", text);
    bench.page.wait("the result", &format!("document.querySelector('#found-0 b')?.textContent === {first:?}"));
}

#[track_caller]
fn open_by_keys(bench: &Bench, id: &str) {
    bench.page.press("/");
    bench.page.wait("the search box", "document.activeElement.id === 'search'");
    bench.page.write(id);
    bench.page.wait("the result", &format!("document.querySelector('#found-0 b')?.textContent === {id:?}"));
    bench.page.press("Enter");
    bench.page.wait("the resource", &format!("document.querySelector('#content h1')?.textContent === {id:?}"));
    bench.settle(id);
}

/// `g` and a letter.
#[track_caller]
fn go_by_keys(bench: &Bench, letter: &str, place: &str) {
    bench.page.press("g");
    bench.page.press(letter);
    bench.page.wait(place, &format!("location.hash.startsWith({place:?})"));
    bench.settle(place);
}

#[track_caller]
fn eventually_is(bench: &Bench, key: &str, pointer: &str, expected: &Value) {
    eventually_some(&format!("{key}{pointer} is {expected}"), weir_testkit::DEADLINE, || {
        (bench.resource(key)?.pointer(pointer)? == expected).then_some(())
    });
}

/// The console tells it, and goes to the page of what it has created.
#[track_caller]
fn wait_created(bench: &Bench) {
    bench.page.wait(
        "it is created",
        "document.querySelector('.notice')?.textContent.includes('Created') && location.hash !== '#/new/routes'",
    );
}

#[test]
fn a_backend_is_published_at_a_path() {
    let Some(bench) = Bench::start() else { return };
    let address = bench.origin.addr().to_string();
    let nodes = "[data-pointer='/upstream/nodes'] .pair:first-child input:first-child";
    // By pointer: 2 clicks and 2 fields.
    bench.page.take_clicks();
    bench.page.click("a.new");
    bench.settle("the form");
    bench.page.fill("[data-pointer='/uri'] input", "/by-pointer");
    bench.page.fill(nodes, &address);
    bench.page.click(".bar .main");
    wait_created(&bench);
    at_most(&bench, 2);
    assert_eq!(bench.gateway.get("/by-pointer").status, 200);
    // By keys.
    bench.go("#/overview");
    bench.page.press("n");
    bench.page.wait("the form", "document.activeElement.closest('[data-pointer=\"/uri\"]')");
    bench.page.write("/by-keys");
    bench.page.fill(nodes, &address);
    bench.page.press("Ctrl+Enter");
    wait_created(&bench);
    assert_eq!(bench.gateway.get("/by-keys").status, 200);
    bench.check_quiet();
}

#[test]
fn a_plugin_is_added_and_switched_off() {
    let Some(bench) = Bench::start() else { return };
    bench.page.take_clicks();
    search(&bench, "images", "images");
    bench.page.click("#found-0");
    bench.settle("the route");
    bench.page.click("#add-plugin");
    bench.page.fill("#add-plugin-search", "key-auth");
    bench.page.click("#add-plugin-0");
    bench.page.click(".bar .main");
    bench.wait_text("Saved images");
    at_most(&bench, 4);
    eventually_is(&bench, "routes/images", "/plugins/key-auth", &json!({}));
    // By keys.
    bench.go("#/overview");
    open_by_keys(&bench, "orders-2");
    bench.page.press("p");
    bench.page.wait("the list", "document.activeElement.id === 'add-plugin-search'");
    bench.page.write("key-auth");
    bench.page.press("Enter");
    bench.page.wait("the plugin", "document.querySelector('.card')");
    bench.page.press("Ctrl+Enter");
    bench.wait_text("Saved orders-2");
    eventually_is(&bench, "routes/orders-2", "/plugins/key-auth", &json!({}));
    // Off, with its options kept: 2 clicks from the first screen.
    bench.go("#/overview");
    bench.page.take_clicks();
    search(&bench, "shop", "shop");
    bench.page.click("#found-0");
    bench.settle("the service");
    bench.page.click(".card .switch");
    eventually_is(&bench, "services/shop", "/plugins/limit-count/_meta/disable", &json!(true));
    at_most(&bench, 2);
    eventually_is(&bench, "services/shop", "/plugins/limit-count/count", &json!(100_000));
    bench.check_quiet();
}

#[test]
fn a_consumer_gets_a_key() {
    let Some(bench) = Bench::start() else { return };
    bench.page.take_clicks();
    bench.page.click("#menu a[href='#/consumers']");
    bench.settle("consumers");
    bench.page.click("#content a.main");
    bench.settle("the form");
    bench.page.fill("[data-pointer='/username'] input", "jill");
    bench.page.fill("[data-pointer='/plugins/key-auth/key'] input", "key-of-jill");
    bench.page.click(".bar .main");
    bench.wait_text("Created jill");
    at_most(&bench, 3);
    eventually_is(&bench, "consumers/jill", "/plugins/key-auth/key", &json!("key-of-jill"));
    go_by_keys(&bench, "c", "#/consumers");
    bench.page.press("n");
    bench.page.wait("the form", "document.activeElement.closest('[data-pointer=\"/username\"]')");
    bench.page.write("joe");
    bench.page.fill("[data-pointer='/plugins/key-auth/key'] input", "key-of-joe");
    bench.page.press("Ctrl+Enter");
    bench.wait_text("Created joe");
    bench.check_quiet();
}

#[test]
fn a_route_gets_another_path() {
    let Some(bench) = Bench::start() else { return };
    bench.page.take_clicks();
    search(&bench, "orders-2", "orders-2");
    bench.page.click("#found-0");
    bench.settle("the route");
    bench.page.fill("[data-pointer='/uri'] input", "/moved");
    bench.page.click(".bar .main");
    bench.wait_text("Saved orders-2");
    at_most(&bench, 3);
    eventually_is(&bench, "routes/orders-2", "/uri", &json!("/moved"));
    bench.go("#/overview");
    open_by_keys(&bench, "orders-2");
    bench.page.press("e");
    bench.page.wait("the field", "document.activeElement.closest('[data-pointer=\"/uri\"]')");
    bench.page.fill("[data-pointer='/uri'] input", "/again");
    bench.page.press("Ctrl+Enter");
    eventually_is(&bench, "routes/orders-2", "/uri", &json!("/again"));
    bench.check_quiet();
}

#[test]
fn a_form_shows_what_is_so_after_an_undo() {
    let Some(bench) = Bench::start() else { return };
    bench.go("#/routes/orders-2");
    let field = "document.querySelector(\"[data-pointer='/uri'] input\")?.value";
    bench.page.wait("the path as it was", &format!("{field} === '/orders/*'"));
    for by_key in [false, true] {
        bench.page.fill("[data-pointer='/uri'] input", "/again");
        bench.page.press("Ctrl+Enter");
        eventually_is(&bench, "routes/orders-2", "/uri", &json!("/again"));
        bench.wait_text("Saved orders-2");
        match by_key {
            true => bench.page.press("u"),
            false => bench.page.click(".notice button:first-of-type"),
        }
        bench.wait_text("Undone");
        bench.page.wait("the path as it was", &format!("{field} === '/orders/*'"));
    }
    // A text is left, too.
    bench.go("#/routes/orders-2?tab=json");
    bench.page.evaluate(
        "const editor = document.querySelector('weir-editor');
         const text = editor.shadowRoot.querySelector('.cm-content').innerText.replace('/orders/*', '/as-text');
         editor.focus();
         editor.dispatchEvent(new CustomEvent('edit', { detail: text }));",
    );
    bench.page.press("Ctrl+Enter");
    eventually_is(&bench, "routes/orders-2", "/uri", &json!("/as-text"));
    bench.wait_text("Saved orders-2");
    bench.page.press("u");
    bench.wait_text("Undone");
    eventually_is(&bench, "routes/orders-2", "/uri", &json!("/orders/*"));
    bench.go("#/routes/orders-2");
    // What is set is in front of what is not.
    bench.page.wait(
        "the upstream's id before the options of an inline one",
        "(() => {
            const all = [...document.querySelectorAll('.form > .members > [data-pointer]')].map((one) => one.dataset.pointer);
            return all.indexOf('/upstream_id') < all.indexOf('/upstream') && all.indexOf('/uri') === 0;
        })()",
    );
    bench.check_quiet();
}

#[test]
fn a_route_is_deleted_and_comes_back() {
    let Some(bench) = Bench::start() else { return };
    let before = bench.resource("routes/images").expect("it is there");
    bench.page.take_clicks();
    search(&bench, "images", "images");
    bench.page.click("#found-0");
    bench.settle("the route");
    bench.page.click("#content .danger");
    bench.wait_text("Deleted images");
    at_most(&bench, 3);
    assert_eq!(bench.resource("routes/images"), None);
    bench.page.click(".notice button:first-of-type");
    bench.wait_text("Undone");
    at_most(&bench, 1);
    let comparable = |mut value: Value| {
        let map = value.as_object_mut().expect("a resource is a map");
        map.retain(|name, _| !name.ends_with("_time"));
        value
    };
    assert_eq!(bench.resource("routes/images").map(comparable), Some(comparable(before)));
    // By keys.
    bench.go("#/overview");
    open_by_keys(&bench, "images");
    bench.page.press("Delete");
    bench.wait_text("Deleted images");
    bench.page.press("u");
    bench.wait_text("Undone");
    assert!(bench.resource("routes/images").is_some());
    bench.check_quiet();
}

#[test]
fn everything_goes_back_to_a_revision() {
    let Some(bench) = Bench::start() else { return };
    let mut admin = Api::of(&bench.gateway);
    admin.put("routes/mistake", r#"{"uri":"/mistake","upstream_id":"orders"}"#);
    bench.page.take_clicks();
    bench.page.click("#menu a[href='#/history']");
    bench.settle("the history");
    bench.page.click(".revisions li:nth-child(2) button");
    bench.wait_text("What would change if everything went back");
    bench.page.wait("the difference", "document.querySelector('.rollback .diff .removed')");
    bench.page.click(".rollback .main");
    bench.wait_text("Everything is as it was at revision");
    at_most(&bench, 3);
    assert_eq!(bench.resource("routes/mistake"), None);
    // By keys.
    admin.put("routes/mistake", r#"{"uri":"/mistake","upstream_id":"orders"}"#);
    bench.go("#/overview");
    go_by_keys(&bench, "h", "#/history");
    bench.page.press("j");
    bench.page.press("j");
    bench.page.wait("the difference", "document.querySelector('.rollback .diff .removed')");
    bench.page.press("Ctrl+Enter");
    eventually("the route is gone", weir_testkit::DEADLINE, || bench.resource("routes/mistake").is_none());
    bench.check_quiet();
}

#[test]
fn one_of_ten_thousand_routes_is_found() {
    let Some(bench) = Bench::logged_out(&api::file()) else { return };
    let routes: Vec<Value> = (0..10_000)
        .map(|number| json!({ "put": format!("routes/r{number}"), "value": { "uri": format!("/shop/{number}/*"), "host": format!("h{}.example", number % 50), "upstream_id": "u" } }))
        .collect();
    let mut operations = vec![json!({ "put": "upstreams/u", "value": { "nodes": { "127.0.0.1:1": 1 } } })];
    operations.extend(routes);
    let mut admin = Api::of(&bench.gateway);
    let answer = admin.ask("PATCH", "configs", "", &json!({ "operations": operations }).to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    bench.log_in(api::ADMIN);
    // From the first screen: no click, one field.
    bench.page.take_clicks();
    search(&bench, "/shop/7777/", "r7777");
    at_most(&bench, 0);
    bench.page.press("Escape");
    // The table draws what is visible, and keeps its rows in their places while it scrolls.
    bench.go("#/routes");
    bench.wait_text("10,000 routes");
    let drawn = bench.page.evaluate("document.querySelectorAll('weir-table .body .row').length");
    assert!(drawn.as_u64().is_some_and(|drawn| drawn < 80), "{drawn}");
    bench.page.evaluate("document.querySelector('weir-table').scrollTop = 1e9");
    bench.page.wait(
        "the last row",
        "[...document.querySelectorAll('weir-table .body .row')].some((row) => row.ariaRowIndex === '10001')",
    );
    bench.page.press("/");
    bench.page.write("h7.example /shop/1057/");
    bench.page.wait("one row", "document.querySelectorAll('weir-table .body .row').length === 1");
    bench.page.press("Enter");
    bench.page.wait("the route", "document.querySelector('#content h1')?.textContent === 'r1057'");
    bench.check_quiet();
}

#[test]
fn a_404_is_explained() {
    let Some(bench) = Bench::start() else { return };
    bench.page.take_clicks();
    bench.page.click("#menu a[href='#/explain']");
    bench.settle("explain");
    bench.page.fill("#explain-url", "http://other.example/images/1");
    bench.page.press("Enter");
    bench.wait_text("No route takes this request");
    at_most(&bench, 1);
    bench.page.wait("why", "[...document.querySelectorAll('td')].some((cell) => cell.textContent.includes('images'))");
    bench.go("#/overview");
    go_by_keys(&bench, "x", "#/explain");
    bench.page.wait("the field", "document.activeElement.id === 'explain-url'");
    bench.page.write("/orders/1?version=2");
    bench.page.press("Enter");
    bench.wait_text("Route orders-2");
    bench.check_quiet();
}

#[test]
fn an_endpoint_is_added_and_taken_out() {
    let Some(bench) = Bench::start() else { return };
    bench.page.take_clicks();
    search(&bench, "orders", "orders");
    let upstream = "#found a[href='#/upstreams/orders']";
    bench.page.click(upstream);
    bench.settle("the upstream");
    bench.page.fill("[data-pointer='/nodes'] .pair.new input", "127.0.0.1:2");
    bench.page.press("Tab");
    bench.page.click(".bar .main");
    bench.wait_text("Saved orders");
    at_most(&bench, 3);
    eventually_is(&bench, "upstreams/orders", "/nodes/127.0.0.1:2", &json!(1));
    bench.go("#/overview");
    bench.page.take_clicks();
    bench.page.click("button[title*='127.0.0.1:2 ']");
    eventually_is(&bench, "upstreams/orders", "/nodes/127.0.0.1:2", &json!(0));
    at_most(&bench, 2);
    bench.check_quiet();
}

#[test]
fn all_traffic_is_limited() {
    let Some(bench) = Bench::start() else { return };
    bench.page.take_clicks();
    bench.page.click("#menu a[href='#/global_rules']");
    bench.settle("global rules");
    bench.page.click("#content a.main");
    bench.settle("the form");
    bench.page.click("#add-plugin");
    bench.page.fill("#add-plugin-search", "limit-count");
    bench.page.press("Enter");
    bench.page.fill("[data-pointer='/plugins/limit-count/count'] input", "1000");
    bench.page.fill("[data-pointer='/plugins/limit-count/time_window'] input", "60");
    bench.page.click(".bar .main");
    bench.wait_text("Created");
    at_most(&bench, 4);
    bench.check_quiet();
}

#[test]
fn the_dearest_plugin_is_first() {
    let Some(bench) = Bench::start() else { return };
    let client = &mut bench.gateway.client();
    let mut admin = Api::of(&bench.gateway);
    // One request in 128 is measured, by chance.
    eventually("a request is measured", weir_testkit::BROWSER_DEADLINE, || {
        for number in 0..100 {
            assert_eq!(client.get(&format!("/orders/{number}")).map(|answer| answer.status).ok(), Some(200));
        }
        admin.get("/weir/v1/policies")["routes"][0]["policies"].to_string().contains("limit-count")
    });
    bench.page.take_clicks();
    bench.page.click("#menu a[href='#/price']");
    bench.wait_text("limit-count");
    at_most(&bench, 1);
    bench.go("#/overview");
    go_by_keys(&bench, "p", "#/price");
    bench.check_quiet();
}

#[test]
fn requests_with_5xx_are_watched() {
    let Some(bench) = Bench::start() else { return };
    bench.page.take_clicks();
    bench.page.click("#menu a[href='#/live']");
    bench.settle("live requests");
    bench.page.click(".segments button:nth-child(2)");
    at_most(&bench, 2);
    bench.page.wait("it follows", "document.querySelector('#content .actions').textContent.includes('Stop')");
    let client = &mut bench.gateway.client();
    eventually_some("the page shows the failed request alone", weir_testkit::BROWSER_DEADLINE, || {
        for target in ["/orders/slow?fail=1", "/orders/1"] {
            client.get(target).ok()?;
        }
        let rows = bench
            .page
            .evaluate("[...document.querySelectorAll('weir-table .body .row')].map((row) => row.textContent)");
        let rows = rows.as_array()?;
        (!rows.is_empty() && rows.iter().all(|row| row.as_str().is_some_and(|row| row.contains("503")))).then_some(())
    });
    bench.check_quiet();
}

#[test]
fn the_last_change_of_a_route_and_a_copy_as_yaml() {
    let Some(bench) = Bench::start() else { return };
    bench.page.take_clicks();
    search(&bench, "images", "images");
    bench.page.click("#found-0");
    bench.settle("the route");
    bench.page.click(".tabs a:last-child");
    bench.wait_text("by ann");
    at_most(&bench, 2);
    bench
        .page
        .call("Browser.grantPermissions", &json!({ "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"] }));
    bench.page.press("y");
    bench.wait_text("Copied");
    bench.page.evaluate("document.querySelector('.notice .quiet').click()");
    bench.go("#/overview");
    open_by_keys(&bench, "images");
    bench.page.press("h");
    bench.wait_text("by ann");
    bench.check_quiet();
}

#[test]
fn a_save_over_that_of_another_user_shows_both() {
    let Some(bench) = Bench::start() else { return };
    bench.go("#/routes/images");
    bench.page.fill("[data-pointer='/desc'] input, [data-pointer='/uris'] textarea", "/mine");
    let mut admin = Api::of(&bench.gateway);
    let origin = bench.origin.addr();
    admin.put("routes/images", &format!(r#"{{"uris":["/theirs"],"upstream":{{"nodes":{{"{origin}":1}}}}}}"#));
    bench.page.press("Ctrl+Enter");
    bench.wait_text("Another user has saved this resource");
    bench.wait_text("Their changes");
    bench.page.click("aside .danger");
    eventually_is(&bench, "routes/images", "/uris/0", &json!("/mine"));
    bench.check_quiet();
}
