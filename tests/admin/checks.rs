//! Checks and reads beside changes: what they cost the changes of others, and what is left of them when their clients leave.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use weir_testkit::{Client, ClientMode, DEADLINE, EndOfAttack, Gateway, eventually, is_full, p99, scaled};

use crate::api::{ADMIN, Api, EDITOR, VIEWER, admin_addr, file};
use crate::own_addresses::Site;
use crate::weir;

/// What an admin's change may take at the 99th percentile where nothing else runs on the machine.
const MOST_PUT: Duration = Duration::from_millis(250);
/// Clients that check or read at a time.
const CLIENTS: usize = 4;

fn route(id: usize) -> String {
    json!({"uri": format!("/{id}"), "plugins": {"mocking": {"response_example": id.to_string()}}}).to_string()
}

/// Lists of routes with this many expressions, each of which takes some KiB when it is compiled.
fn expressions(count: usize) -> String {
    let mut routes = String::new();
    for first in (0..count).step_by(50) {
        let rules: Vec<String> = (first..count.min(first + 50))
            .map(|number| format!(r#"["arg_a","~~","^(a{number}|[b-y]{{1,40}}z?){{2}}[0-9a-f]{{8,64}}x{number}y$"]"#))
            .collect();
        let _ = write!(
            routes,
            r#"{}{{"id":"v{first}","uri":"/v{first}","plugins":{{}},"vars":[{}]}}"#,
            if first == 0 { "" } else { "," },
            rules.join(",")
        );
    }
    format!(r#"{{"routes":[{routes}]}}"#)
}

/// A node with routes, put in transactions.
fn with_routes(count: usize, settings: &str) -> Gateway {
    let gateway = weir().start(&format!("{}{settings}", file()));
    put_routes(&mut Api::of(&gateway), count);
    gateway
}

fn put_routes(api: &mut Api, count: usize) {
    for first in (0..count).step_by(5_000) {
        let operation = |id: usize| format!(r#"{{"put":"routes/{id:06}","value":{}}}"#, route(id));
        let operations: Vec<String> = (first..count.min(first + 5_000)).map(operation).collect();
        let body = format!(r#"{{"operations":[{}]}}"#, operations.join(","));
        let answer = api.ask("PATCH", "configs", "", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

/// A request, with the key that it brings.
#[derive(Clone, Copy)]
struct Asked<'a>(&'static str, &'a str, &'a str, &'a str);

/// Makes changes as an admin while clients send this request again and again, and reads as another client of the gateway.
fn changes_beside(site: &Site, Asked(key, method, path, body): Asked<'_>) {
    let gateway = &site.gateway;
    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let asking = || {
        let mut api = Api::over(site.client(), key);
        while !stop.load(Relaxed) {
            let answer = api.ask(method, path, "", body);
            let is_told = matches!(answer.status, 200 | 413 | 429 | 503);
            assert!(is_told, "{method} {path}: {} {}", answer.status, answer.text());
            answered.fetch_add(1, Relaxed);
        }
    };
    thread::scope(|scope| {
        (0..CLIENTS).for_each(|_| _ = scope.spawn(asking));
        let _end = EndOfAttack(&stop);
        eventually("they are under way", 4 * DEADLINE, || answered.load(Relaxed) >= 1);
        let (mut admin, mut client) = (Api::over(site.client(), ADMIN), gateway.client());
        let mut id = 0;
        let puts = p99(scaled(3, 100), || {
            let answer = admin.ask("PUT", "routes/changed", "", &route(id));
            assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
            id += 1;
        });
        let gets = p99(scaled(20, 3_000), || {
            assert_eq!(client.get("/changed-by-nobody").expect("an answer").status, 404);
        });
        println!(
            "{:?}, workers: {}, beside {method} {path} of {key}: p99 of an admin's PUT {puts:?}, of a client's GET {gets:?}",
            site.mode, site.workers
        );
        if is_full() {
            assert!(puts <= MOST_PUT, "{method} {path}: a change takes {puts:?}");
            assert!(gets <= Duration::from_millis(10), "{method} {path}: a request takes {gets:?}");
        }
    });
}

#[test]
fn checks_and_reads_of_others_do_not_hold_a_change() {
    // All forms with full counts, otherwise each mode and each number of workers once.
    let forms: &[(ClientMode, usize)] = match is_full() {
        true => &[
            (ClientMode::Clear, 1),
            (ClientMode::Clear, 2),
            (ClientMode::Tls, 1),
            (ClientMode::Tls, 2),
            (ClientMode::Http2, 1),
            (ClientMode::Http2, 2),
        ],
        false => &[(ClientMode::Clear, 1), (ClientMode::Tls, 2), (ClientMode::Http2, 1)],
    };
    for (mode, workers) in forms {
        let site = Site::start(*mode, *workers);
        put_routes(&mut Api::over(site.client(), ADMIN), scaled(1_000, 20_000));
        changes_beside_all(&site, *mode == ClientMode::Clear || is_full());
    }
}

/// Makes changes beside each of the checks and reads, or beside those that cost most.
fn changes_beside_all(site: &Site, each: bool) {
    let (small, large) = (expressions(20), expressions(scaled(200, 1_500)));
    let dry = r#"{"operations":[{"put":"routes/d","value":{"uri":"/d","plugins":{}}}]}"#;
    let costly = [Asked(VIEWER, "POST", "configs/validate", &large), Asked(VIEWER, "GET", "routes", "")];
    let all = [
        Asked(VIEWER, "POST", "configs/validate", &large),
        Asked(VIEWER, "POST", "configs/validate", &small),
        Asked(VIEWER, "POST", "schema/validate/routes", &route(1)),
        Asked(VIEWER, "GET", "routes", ""),
        Asked(VIEWER, "GET", "routes?uri=%5E/1%5B0-9%5D*9%24", ""),
        Asked(VIEWER, "GET", "routes?page=3&page_size=500", ""),
        Asked(VIEWER, "GET", "history?count=1000", ""),
        Asked(VIEWER, "GET", "history?key=routes/none", ""),
        Asked(VIEWER, "GET", "plugins?all=true", ""),
        Asked(VIEWER, "GET", "schema/route", ""),
        Asked(VIEWER, "GET", "/weir/v1/hubs", ""),
        Asked(EDITOR, "PATCH", "configs?dry_run=true&request=GET%20http://a/1", dry),
        Asked(EDITOR, "POST", "configs/validate", &large),
        Asked(ADMIN, "POST", "configs/validate", &large),
        Asked(ADMIN, "GET", "routes", ""),
    ];
    let asked: &[Asked<'_>] = if each { &all } else { &costly };
    asked.iter().for_each(|asked| changes_beside(site, *asked));
}

#[test]
fn a_change_is_made_while_checks_of_a_viewer_wait() {
    let gateway = with_routes(1, "");
    let address = admin_addr(&gateway);
    let (body, answered, stop) = (expressions(scaled(400, 500)), AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut api = Api::with_key(address, VIEWER);
                // There is always one that waits, so that who waits for all of them is never answered.
                while !stop.load(Relaxed) {
                    match api.ask("POST", "configs/validate", "", &body).status {
                        200 => drop(answered.fetch_add(1, Relaxed)),
                        // It has waited for too long behind the others.
                        status => assert_eq!(status, 503),
                    }
                }
            });
        }
        let _end = EndOfAttack(&stop);
        eventually("one is answered", 4 * DEADLINE, || answered.load(Relaxed) >= 1);
        Api::with_key(address, ADMIN).put("routes/r", &route(7));
        assert_eq!(Api::with_key(address, ADMIN).ask("POST", "configs/validate", "", &expressions(1)).status, 200);
    });
}

#[test]
fn expressions_of_a_request_are_bounded_together() {
    let gateway = with_routes(1, "");
    let mut api = Api::of(&gateway);
    let large = expressions(4_000);
    assert!(large.len() < 1 << 20, "{}", large.len());
    assert_eq!(api.ask("POST", "configs/validate", "", &expressions(50)).status, 200);
    let one = serde_json::from_str::<serde_json::Value>(&expressions(50)).expect("JSON")["routes"][0].to_string();
    assert_eq!(api.ask("PUT", "routes/v0", "", &one).status, 201);
    let mut regexes: Vec<String> = Vec::new();
    for number in 0..100 {
        regexes.push(format!("[a-z]{{9000}}{number}"));
    }
    let blocker = json!({"uri": "/b", "plugins": {"response-rewrite": {"filters": regexes
        .iter()
        .map(|regex| json!({"regex": regex, "replace": "x", "scope": "global"}))
        .collect::<Vec<_>>()}, "mocking": {"response_example": "x"}}});
    for (method, path, body) in [
        ("POST", "configs/validate", large.as_str()),
        ("POST", "configs/validate", &json!({"routes": [blocker]}).to_string()),
        ("PUT", "routes/b", &blocker.to_string()),
        ("PUT", "routes/b?dry_run=true", &blocker.to_string()),
    ] {
        let answer = api.ask(method, path, "", body);
        assert_eq!(answer.status, 413, "{method} {path}: {}", answer.text());
        assert!(answer.text().contains("regular expressions of this request"), "{}", answer.text());
    }
    assert_eq!(api.ask("GET", "routes/b", "", "").status, 404);
    api.put("routes/r", &route(7));
}

#[test]
fn expressions_that_are_served_cost_the_changes_of_others_nothing() {
    let gateway = with_routes(1, "");
    let mut api = Api::of(&gateway);
    let shared = |number: usize| json!({"plugins": {"request-id": {"header_name": format!("X-{number}")}}}).to_string();
    api.put("services/shared", &shared(0));
    // Together more than the expressions of one request may take.
    for number in 0..40 {
        let filter = json!({"regex": format!("[a-z]{{9000}}{number}"), "replace": "x", "scope": "global"});
        let condition = json!(["arg_a", "~~", format!("[a-z]{{3000}}{number}$")]);
        let route = json!({"uri": format!("/{number}"), "service_id": "shared", "vars": [condition],
            "plugins": {"response-rewrite": {"filters": [filter]}, "mocking": {"response_example": "x"}}});
        api.put(&format!("routes/{number}"), &route.to_string());
    }
    let log_format = json!({"log_format": {"a": "$host"}}).to_string();
    for (path, body) in [
        ("services/shared", shared(1)),
        ("plugin_metadata/http-logger", log_format),
        ("plugin_metadata/opentelemetry", json!({"resource": {"service.name": "a"}}).to_string()),
        ("secrets/vault/a", json!({"uri": "http://127.0.0.1:1", "prefix": "kv", "token": "t"}).to_string()),
        ("consumers/jack", json!({"username": "jack", "plugins": {"key-auth": {"key": "k"}}}).to_string()),
        ("global_rules/g", json!({"plugins": {"request-id": {}}}).to_string()),
    ] {
        let checked = api.ask("PUT", &format!("{path}?dry_run=true"), "", &body);
        assert_eq!(checked.status, 200, "{path}: {}", checked.text());
        api.put(path, &body);
    }
}

#[test]
fn lists_for_clients_that_have_left_hold_nobody() {
    let gateway = with_routes(scaled(2_000, 20_000), "");
    let address = admin_addr(&gateway);
    let request = format!("GET /apisix/admin/routes HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-KEY: {VIEWER}\r\n\r\n");
    for _ in 0..500 {
        let mut client = Client::connect(address);
        client.send(&request);
        client.reset();
    }
    let began = Instant::now();
    let body = route(7);
    let request = format!(
        "PUT /apisix/admin/routes/r HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-KEY: {ADMIN}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    // A connection that comes while as many wait as may is closed at once, and its client comes again.
    eventually("the change is made", DEADLINE, || {
        Client::connect(address).ask(&request).is_ok_and(|answer| matches!(answer.status, 200 | 201))
    });
    let put = began.elapsed();
    let request = format!("GET /apisix/admin/routes/r HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-KEY: {VIEWER}\r\n\r\n");
    eventually("another viewer is answered", DEADLINE, || {
        Client::connect(address).ask(&request).is_ok_and(|answer| answer.status == 200)
    });
    let all = began.elapsed();
    println!("after 500 reads that nobody waits for: a PUT {put:?}, a viewer's GET {all:?}");
    if is_full() {
        assert!(put <= MOST_PUT, "{put:?}");
        assert!(all <= Duration::from_secs(2), "{all:?}");
    }
}

#[test]
fn reads_of_a_standalone_configuration_do_not_hold_its_replacement() {
    let gateway = weir().start(&format!("{}store: standalone\n", file()));
    let mut api = Api::of(&gateway);
    let items = |name: &str| {
        let item = |id: usize| format!(r#"{{"id":"{id}","name":"{name}","uri":"/{id}","plugins":{{}}}}"#);
        format!(r#"{{"routes":[{}]}}"#, (0..scaled(2_000, 20_000)).map(item).collect::<Vec<_>>().join(","))
    };
    assert_eq!(api.ask("PUT", "configs", "X-Digest: d\r\n", &items("a")).status, 202);
    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut api = Api::with_key(admin_addr(&gateway), VIEWER);
                while !stop.load(Relaxed) {
                    let list = api.get("configs");
                    assert_eq!(list["routes"].as_array().map(Vec::len), Some(scaled(2_000, 20_000)));
                    answered.fetch_add(1, Relaxed);
                }
            });
        }
        let _end = EndOfAttack(&stop);
        eventually("they are under way", 4 * DEADLINE, || answered.load(Relaxed) >= 1);
        for name in ["b", "c", "d"] {
            let began = Instant::now();
            let digest = format!("X-Digest: {name}\r\n");
            assert_eq!(api.ask("PUT", "configs", &digest, &items(name)).status, 202);
            println!("a replacement beside reads takes {:?}", began.elapsed());
        }
    });
}
