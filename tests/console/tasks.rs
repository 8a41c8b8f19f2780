//! What a first day asks for, by pointer and by keys. Typing into a field is no click; each task has an upper bound of clicks.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use weir_testkit::{Authority, BrowserPage, Identity, KeyKind, eventually, eventually_some, is_full};

use crate::api::{self, Api};
use crate::bench::Bench;
use crate::hub_peers::{HubNode, Subscriber};

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
    bench.put_into_use();
    eventually_some(&format!("{key}{pointer} is {expected}"), weir_testkit::DEADLINE, || {
        (bench.resource(key)?.pointer(pointer)? == expected).then_some(())
    });
}

/// Does a task on a node with a store of its own.
#[track_caller]
fn in_store(task: fn(&Bench)) {
    let Some(bench) = Bench::start() else { return };
    task(&bench);
    bench.check_quiet();
}

/// Does tasks one after the other, each from the first screen.
#[track_caller]
fn one_after_the_other(bench: &Bench, tasks: &[fn(&Bench)]) {
    for task in tasks {
        bench.go("#/overview");
        bench.page.take_clicks();
        task(bench);
    }
    bench.check_quiet();
}

#[test]
fn tasks_are_done_on_two_nodes_that_share_an_etcd() {
    let Some((etcd, bench)) = Bench::on_etcd() else { return };
    let tasks = [explain, watch_failures, publish, add_plugin, change_path, add_consumer];
    let more = [delete_and_undo, split_traffic, rotate_certificate, history_and_yaml, limit_all];
    one_after_the_other(&bench, &tasks);
    if is_full() {
        one_after_the_other(&bench, &more);
        one_after_the_other(&bench, &[roll_back]);
    }
    for path in ["/by-pointer", "/by-keys"] {
        eventually("the other node serves it", weir_testkit::DEADLINE, || etcd.other.get(path).status == 200);
    }
    bench.go("#/nodes");
    bench.page.wait(
        "both nodes, in step",
        "[...document.querySelectorAll('.wide-table tbody tr')].filter((row) => row.querySelector('.badge.good')).length >= 2",
    );
}

#[test]
fn tasks_are_done_with_resources_in_files() {
    let Some(bench) = Bench::in_files() else { return };
    let tasks = [explain, watch_failures, publish, add_plugin, change_path, add_consumer];
    one_after_the_other(&bench, &tasks);
    if is_full() {
        one_after_the_other(&bench, &[change_endpoints, split_traffic, limit_all]);
    }
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
    in_store(publish);
}

fn publish(bench: &Bench) {
    let address = bench.origin.addr().to_string();
    let nodes = "[data-pointer='/upstream/nodes'] .pair:first-child input:first-child";
    // By pointer: 2 clicks and 2 fields.
    bench.page.take_clicks();
    bench.page.click("a.new");
    bench.settle("the form");
    bench.page.fill("[data-pointer='/uri'] input", "/by-pointer");
    bench.page.fill(nodes, &address);
    bench.page.click(".bar .main");
    wait_created(bench);
    at_most(bench, 2);
    bench.put_into_use();
    eventually("it is served", weir_testkit::DEADLINE, || bench.gateway.get("/by-pointer").status == 200);
    // By keys.
    bench.go("#/overview");
    bench.page.press("n");
    bench.page.wait("the form", "document.activeElement.closest('[data-pointer=\"/uri\"]')");
    bench.page.write("/by-keys");
    bench.page.fill(nodes, &address);
    bench.page.press("Ctrl+Enter");
    wait_created(bench);
    bench.put_into_use();
    eventually("it is served", weir_testkit::DEADLINE, || bench.gateway.get("/by-keys").status == 200);
}

#[test]
fn a_plugin_is_added_and_switched_off() {
    in_store(add_plugin);
}

/// Adds a plugin to the form of a route, by the pointer.
fn choose_plugin(bench: &Bench, name: &str) {
    search(bench, "images", "images");
    bench.page.click("#found-0");
    bench.settle("the route");
    bench.page.click("#add-plugin");
    bench.page.fill("#add-plugin-search", name);
    bench.page.click("#add-plugin-0");
}

fn add_plugin(bench: &Bench) {
    bench.page.take_clicks();
    choose_plugin(bench, "key-auth");
    bench.page.click(".bar .main");
    bench.wait_text("Saved images");
    at_most(bench, 4);
    eventually_is(bench, "routes/images", "/plugins/key-auth", &json!({}));
    // By keys.
    bench.go("#/overview");
    open_by_keys(bench, "orders-2");
    bench.page.press("p");
    bench.page.wait("the list", "document.activeElement.id === 'add-plugin-search'");
    bench.page.write("key-auth");
    bench.page.press("Enter");
    bench.page.wait("the plugin", "document.querySelector('.card')");
    bench.page.press("Ctrl+Enter");
    bench.wait_text("Saved orders-2");
    eventually_is(bench, "routes/orders-2", "/plugins/key-auth", &json!({}));
    // Off, with its options kept: 2 clicks from the first screen.
    bench.go("#/overview");
    bench.page.take_clicks();
    search(bench, "shop", "shop");
    bench.page.click("#found-0");
    bench.settle("the service");
    bench.page.click(".card .switch");
    bench.wait_text("Saved shop");
    eventually_is(bench, "services/shop", "/plugins/limit-count/_meta/disable", &json!(true));
    at_most(bench, 2);
    eventually_is(bench, "services/shop", "/plugins/limit-count/count", &json!(100_000));
}

#[test]
fn a_consumer_gets_a_key() {
    in_store(add_consumer);
}

fn add_consumer(bench: &Bench) {
    bench.page.take_clicks();
    bench.page.click("#menu a[href='#/consumers']");
    bench.settle("consumers");
    bench.page.click("#content a.main");
    bench.settle("the form");
    bench.page.fill("[data-pointer='/username'] input", "jill");
    bench.page.fill("[data-pointer='/plugins/key-auth/key'] input", "key-of-jill");
    bench.page.click(".bar .main");
    bench.wait_text("Created jill");
    at_most(bench, 3);
    eventually_is(bench, "consumers/jill", "/plugins/key-auth/key", &json!("key-of-jill"));
    go_by_keys(bench, "c", "#/consumers");
    bench.page.press("n");
    bench.page.wait("the form", "document.activeElement.closest('[data-pointer=\"/username\"]')");
    bench.page.write("joe");
    bench.page.fill("[data-pointer='/plugins/key-auth/key'] input", "key-of-joe");
    bench.page.press("Ctrl+Enter");
    bench.wait_text("Created joe");
}

#[test]
fn a_route_gets_another_path() {
    in_store(change_path);
}

fn change_path(bench: &Bench) {
    bench.page.take_clicks();
    search(bench, "orders-2", "orders-2");
    bench.page.click("#found-0");
    bench.settle("the route");
    bench.page.fill("[data-pointer='/uri'] input", "/moved");
    bench.page.click(".bar .main");
    bench.wait_text("Saved orders-2");
    at_most(bench, 3);
    eventually_is(bench, "routes/orders-2", "/uri", &json!("/moved"));
    bench.go("#/overview");
    open_by_keys(bench, "orders-2");
    bench.page.press("e");
    bench.page.wait("the field", "document.activeElement.closest('[data-pointer=\"/uri\"]')");
    bench.page.fill("[data-pointer='/uri'] input", "/again");
    bench.page.press("Ctrl+Enter");
    bench.wait_text("Saved orders-2");
    eventually_is(bench, "routes/orders-2", "/uri", &json!("/again"));
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
    in_store(delete_and_undo);
}

fn delete_and_undo(bench: &Bench) {
    let before = bench.resource("routes/images").expect("it is there");
    bench.page.take_clicks();
    search(bench, "images", "images");
    bench.page.click("#found-0");
    bench.settle("the route");
    bench.page.click("#content .danger");
    bench.wait_text("Deleted images");
    at_most(bench, 3);
    assert_eq!(bench.resource("routes/images"), None);
    bench.page.click(".notice button:first-of-type");
    bench.wait_text("Undone");
    at_most(bench, 1);
    let comparable = |mut value: Value| {
        let map = value.as_object_mut().expect("a resource is a map");
        map.retain(|name, _| !name.ends_with("_time"));
        value
    };
    assert_eq!(bench.resource("routes/images").map(comparable), Some(comparable(before)));
    // By keys.
    bench.go("#/overview");
    open_by_keys(bench, "images");
    bench.page.press("Delete");
    bench.wait_text("Deleted images");
    bench.page.press("u");
    bench.wait_text("Undone");
    assert!(bench.resource("routes/images").is_some());
}

#[test]
fn everything_goes_back_to_a_revision() {
    in_store(roll_back);
}

fn roll_back(bench: &Bench) {
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
    at_most(bench, 3);
    assert_eq!(bench.resource("routes/mistake"), None);
    // By keys.
    admin.put("routes/mistake", r#"{"uri":"/mistake","upstream_id":"orders"}"#);
    bench.go("#/overview");
    go_by_keys(bench, "h", "#/history");
    bench.page.press("j");
    bench.page.press("j");
    bench.page.wait("the difference", "document.querySelector('.rollback .diff .removed')");
    bench.page.press("Ctrl+Enter");
    eventually("the route is gone", weir_testkit::DEADLINE, || bench.resource("routes/mistake").is_none());
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
    in_store(explain);
}

fn explain(bench: &Bench) {
    bench.page.take_clicks();
    bench.page.click("#menu a[href='#/explain']");
    bench.settle("explain");
    bench.page.fill("#explain-url", "http://other.example/images/1");
    bench.page.press("Enter");
    bench.wait_text("No route takes this request");
    at_most(bench, 1);
    bench.page.wait("why", "[...document.querySelectorAll('td')].some((cell) => cell.textContent.includes('images'))");
    bench.go("#/overview");
    go_by_keys(bench, "x", "#/explain");
    bench.page.wait("the field", "document.activeElement.id === 'explain-url'");
    bench.page.write("/orders/1?version=2");
    bench.page.press("Enter");
    bench.wait_text("Route orders-2");
}

#[test]
fn an_endpoint_is_added_and_taken_out() {
    in_store(change_endpoints);
}

fn change_endpoints(bench: &Bench) {
    bench.page.take_clicks();
    search(bench, "orders", "orders");
    let upstream = "#found a[href='#/upstreams/orders']";
    bench.page.click(upstream);
    bench.settle("the upstream");
    bench.page.fill("[data-pointer='/nodes'] .pair.new input", "127.0.0.1:2");
    bench.page.press("Tab");
    bench.page.click(".bar .main");
    bench.wait_text("Saved orders");
    at_most(bench, 3);
    eventually_is(bench, "upstreams/orders", "/nodes/127.0.0.1:2", &json!(1));
    bench.go("#/overview");
    bench.page.take_clicks();
    bench.page.click("button[title*='127.0.0.1:2 ']");
    bench.wait_text("Saved orders");
    eventually_is(bench, "upstreams/orders", "/nodes/127.0.0.1:2", &json!(0));
    at_most(bench, 2);
}

#[test]
fn all_traffic_is_limited() {
    in_store(limit_all);
}

fn limit_all(bench: &Bench) {
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
    at_most(bench, 4);
}

#[test]
fn a_small_share_goes_to_a_new_version() {
    in_store(split_traffic);
}

/// Five requests of a hundred go to the upstream of another version.
fn split_traffic(bench: &Bench) {
    let share = "[data-pointer='/plugins/traffic-split/rules/0/weighted_upstreams/0/upstream_id'] input";
    bench.page.take_clicks();
    choose_plugin(bench, "traffic-split");
    bench.page.fill(share, "orders");
    bench.page.click(".bar .main");
    bench.wait_text("Saved images");
    at_most(bench, 4);
    let shares = json!([{ "upstream_id": "orders", "weight": 5 }, { "weight": 95 }]);
    eventually_is(bench, "routes/images", "/plugins/traffic-split/rules/0/weighted_upstreams", &shares);
    // By keys, with another weight.
    bench.go("#/overview");
    open_by_keys(bench, "orders-2");
    bench.page.press("p");
    bench.page.wait("the list", "document.activeElement.id === 'add-plugin-search'");
    bench.page.write("traffic-split");
    bench.page.press("Enter");
    bench.page.wait("the plugin", "document.querySelector('.card')");
    bench.page.fill(share, "orders");
    bench.page.fill(&share.replace("upstream_id", "weight"), "1");
    bench.page.press("Ctrl+Enter");
    bench.wait_text("Saved orders-2");
    eventually_is(bench, "routes/orders-2", "/plugins/traffic-split/rules/0/weighted_upstreams/0/weight", &json!(1));
}

#[test]
fn a_certificate_is_rotated_with_its_dates_compared() {
    in_store(rotate_certificate);
}

/// Days since 1970, at noon.
const JANUARY_2_2020: u64 = 18263;
const MARCH_4_2021: u64 = 18690;
const MAY_6_2040: u64 = 25693;
const FEBRUARY_3_2041: u64 = 25966;
const MAY_6_2062: u64 = 33728;

/// A certificate that is valid from one day to another.
fn certificate(from: u64, until: u64) -> Identity {
    let noon = |day: u64| UNIX_EPOCH + Duration::from_secs(day * 86_400 + 43_200);
    Authority::of_tests().identity_with(&["shop.example.com"], KeyKind::Ecdsa, |parameters| {
        parameters.not_before = noon(from).into();
        parameters.not_after = noon(until).into();
    })
}

fn rotate_certificate(bench: &Bench) {
    let body = |identity: &Identity| {
        json!({ "snis": ["shop.example.com"], "cert": identity.certificate, "key": identity.key }).to_string()
    };
    let old = certificate(JANUARY_2_2020, FEBRUARY_3_2041);
    Api::of(&bench.gateway).put("ssls/shop-cert", &body(&old));
    let stored = |certificate: &str| json!(certificate.trim());
    let is_now = |identity: &Identity| {
        eventually("it is the new one", weir_testkit::DEADLINE, || {
            let now = bench.resource("ssls/shop-cert");
            now.is_some_and(|now| now["cert"].as_str().map(str::trim) == stored(&identity.certificate).as_str())
        });
    };
    let fill = |identity: &Identity| {
        bench.page.fill("[data-pointer='/cert'] textarea", &identity.certificate);
        bench.page.fill("[data-pointer='/key'] textarea", &identity.key);
    };
    let dates = |text: &str| {
        let shown = format!("document.querySelector('#dates')?.innerText.replace(/\\s+/g, ' ').includes({text:?})");
        bench.page.wait(text, &shown);
    };
    bench.go("#/overview");
    bench.page.take_clicks();
    bench.page.click("#menu a[href='#/ssls']");
    bench.settle("certificates");
    bench.page.click("weir-table .body a");
    bench.settle("the certificate");
    bench.page.fill("[data-pointer='/cert'] textarea", "$env://SHOP_CERTIFICATE");
    dates("As edited –");
    bench.page.wait("what is no PEM text is not doubted", "!document.querySelector('#dates .badge')");
    let new = certificate(MARCH_4_2021, MAY_6_2062);
    fill(&new);
    dates("As saved 2020-01-02 to 2041-02-03 As edited 2021-03-04 to 2062-05-06");
    bench.page.wait("the node's word", "!document.querySelector('#dates .badge')");
    bench.page.click(".bar .main");
    bench.wait_text("Saved shop-cert");
    at_most(bench, 3);
    is_now(&new);
    // By keys. One that ends earlier is told to.
    bench.go("#/overview");
    go_by_keys(bench, "t", "#/ssls");
    bench.page.press("/");
    bench.page.write("shop-cert");
    bench.page.press("Enter");
    bench.page.wait("the certificate", "document.querySelector('#content h1')?.textContent === 'shop-cert'");
    bench.settle("the certificate");
    bench.page.press("e");
    let earlier = certificate(MARCH_4_2021, MAY_6_2040);
    fill(&earlier);
    dates("2040-05-06 ends earlier than the one it replaces");
    bench.page.press("Ctrl+Enter");
    bench.wait_text("Saved shop-cert");
    is_now(&earlier);
}

/// Failures are final.
const GIVES_UP: &str = "  delivery: { retry_for: 1ms, retry_first: 1ms, retry_max: 1ms }\n";

#[test]
fn a_dead_letter_is_found_and_replayed() {
    let Some(page) = BrowserPage::open() else { return };
    let (node, subscriber) = (HubNode::administered(GIVES_UP), Subscriber::start());
    node.subscribe(&subscriber, "/in", &[]);
    subscriber.refuse(400);
    for content in ["one", "two"] {
        node.publish(content);
    }
    eventually("both are given up", weir_testkit::DEADLINE, || node.status()["dead_lettered"] == 2);
    subscriber.answer(|_| None);
    let before = subscriber.deliveries().len();
    let bench = Bench::of(page, node.gateway);
    bench.log_in(api::ADMIN);
    bench.page.take_clicks();
    bench.page.click("#menu a[href='#/streaming']");
    bench.settle("streaming");
    bench.page.click(".segments button:nth-child(2)");
    bench.page.wait("both dead letters", "document.querySelectorAll('weir-table .body .row').length === 2");
    bench.page.click("weir-table .body .row input");
    bench.page.click("#content .actions .main");
    bench.wait_text("1 event is delivered again");
    at_most(&bench, 4);
    subscriber.wait_deliveries(before + 1);
    bench.page.wait("one is left", "document.querySelectorAll('weir-table .body .row').length === 1");
    // By keys.
    bench.go("#/overview");
    go_by_keys(&bench, "w", "#/streaming");
    bench.page.press("d");
    bench.page.wait("the other one", "document.querySelectorAll('weir-table .body .row').length === 1");
    for key in ["j", "x", "Ctrl+Enter"] {
        bench.page.press(key);
    }
    bench.wait_text("1 event is delivered again");
    subscriber.wait_deliveries(before + 2);
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
    in_store(watch_failures);
}

fn watch_failures(bench: &Bench) {
    bench.page.take_clicks();
    bench.page.click("#menu a[href='#/live']");
    bench.settle("live requests");
    bench.page.click(".segments button:nth-child(2)");
    at_most(bench, 2);
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
}

#[test]
fn the_last_change_of_a_route_and_a_copy_as_yaml() {
    in_store(history_and_yaml);
}

fn history_and_yaml(bench: &Bench) {
    bench.page.take_clicks();
    search(bench, "images", "images");
    bench.page.click("#found-0");
    bench.settle("the route");
    bench.page.click(".tabs a:last-child");
    bench.wait_text("by ann");
    at_most(bench, 2);
    bench
        .page
        .call("Browser.grantPermissions", &json!({ "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"] }));
    bench.page.press("y");
    bench.wait_text("Copied");
    bench.page.evaluate("document.querySelector('.notice .quiet').click()");
    bench.go("#/overview");
    open_by_keys(bench, "images");
    bench.page.press("h");
    bench.wait_text("by ann");
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
