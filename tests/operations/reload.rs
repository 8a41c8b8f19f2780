//! F13, F14: the configuration changes while traffic flows.

use std::fs;
use std::ops::RangeInclusive;
use std::os::unix::fs::symlink;

use serde_json::Value;
use weir_testkit::{DEADLINE, Gateway, Origin, Signal, eventually, scaled};

use crate::load::{Load, origin, routes};
use crate::weir;

/// A route that the gateway answers itself, with `answer`.
fn fixed(answer: usize) -> String {
    format!("  - id: version\n    uri: /version\n    plugins: {{ mocking: {{ response_example: \"{answer}\" }} }}\n")
}

#[test]
fn f14_reloads_under_load_fail_nothing_and_apply_at_once() {
    let origin = origin();
    let file = |version| routes(&origin) + &fixed(version);
    let gateway = weir().start(&format!("worker_processes: 2\n{}", file(0)));
    let load = Load::with_streams(gateway.addr());
    for version in 1..=scaled(10, 100) {
        // A hundred reloads last a minute or so.
        load.wait_for(scaled(20, 15_000));
        // It returns when every worker says that it serves the new file.
        gateway.rewrite(&format!("worker_processes: 2\n{}", file(version)));
        for _ in 0..4 {
            assert_eq!(gateway.get("/version").text(), version.to_string(), "an old configuration was used");
        }
    }
    load.wait_for(20);
    load.finish();
    assert_eq!(gateway.metrics().get("weir_config_reloads_total{outcome=\"refused\"}"), Some(0.0));
}

#[test]
fn f14_reloads_do_not_pile_up_in_memory() {
    let origin = origin();
    let gateway = weir().start(&routes(&origin));
    let reload = |times: usize| {
        for _ in 0..times {
            let before = gateway.revision().expect("one worker agrees with itself");
            gateway.signal(Signal::HUP);
            eventually("the file is read again", DEADLINE, || gateway.revision().is_some_and(|now| now > before));
        }
    };
    reload(50);
    let before = gateway.rss();
    reload(scaled(200, 1_000));
    let after = gateway.rss();
    assert!(after as f64 <= before as f64 * 1.05, "{before} bytes before, {after} after");
}

/// A route with a limit that stays, and others whose plugins are different each time.
fn changing(version: usize, origin: &Origin) -> String {
    let seconds = 3600 + version;
    let mut file = routes(origin);
    file.push_str(&format!(
        "  - id: kept
    uri: /kept
    plugins: {{ limit-count: {{ count: 3, time_window: 31622400 }}, response-rewrite: {{ headers: {{ set: {{ x-version: \"{version}\" }} }} }} }}
    upstream: {{ type: roundrobin, nodes: {{ \"{addr}\": 1 }} }}
  - id: tables
    uri: /tables
    plugins:
      limit-count: {{ count: 3, time_window: 31622400, key: http_x_key }}
      limit-req: {{ rate: 1, burst: 1, key: http_x_key }}
      limit-conn: {{ conn: 1, burst: 0, default_conn_delay: 0.1, key: http_x_key }}
    upstream: {{ type: roundrobin, nodes: {{ \"{addr}\": 1 }} }}
  - id: changed
    uri: /changed
    plugins:
      key-auth: {{ header: x-key-{version} }}
      limit-count: {{ count: {seconds}, time_window: {seconds} }}
      limit-req: {{ rate: {seconds}, burst: {version}, key: remote_addr }}
      limit-conn: {{ conn: {seconds}, burst: {version}, default_conn_delay: 0.1, key: remote_addr }}
      api-breaker: {{ break_response_code: 502, max_breaker_sec: {seconds} }}
      proxy-rewrite: {{ uri: /{version}, headers: {{ set: {{ x-version: \"{version}\" }} }} }}
      uri-blocker: {{ block_rules: [\"version-{version}-.*$\"] }}
      response-rewrite: {{ headers: {{ set: {{ x-version: \"{version}\" }} }} }}
    upstream: {{ type: roundrobin, nodes: {{ \"{addr}\": 1 }} }}
consumers:
  - {{ username: jack, plugins: {{ key-auth: {{ key: key-{version} }} }} }}
",
        addr = origin.addr(),
    ));
    file
}

/// Limits count in tables of 16 MiB, whose pages are the system's until a key stands in them. Each version of a limit is a
/// new key in a page that chance chooses, which is not a leak; so all of them are touched first.
fn touch_the_tables(gateway: &Gateway) {
    let mut client = gateway.client();
    for number in 0..20_000 {
        let request = format!("GET /tables HTTP/1.1\r\nHost: t\r\nx-key: {number}\r\n\r\n");
        assert_eq!(client.ask(&request).expect("an answer").status, 200);
    }
}

#[test]
fn f14_reloads_that_change_plugins_do_not_pile_up_in_memory() {
    let origin = origin();
    let gateway = weir().start(&changing(0, &origin));
    let kept = || gateway.get("/kept").status;
    assert_eq!([kept(), kept(), kept(), kept()], [200, 200, 200, 503]);
    let reload = |versions: RangeInclusive<usize>| {
        for version in versions {
            gateway.replace_file(&changing(version, &origin));
            // Without waiting for the file to be looked at.
            gateway.signal(Signal::HUP);
            let request = format!("GET /changed HTTP/1.1\r\nHost: t\r\nx-key-{version}: key-{version}\r\n\r\n");
            eventually("the new plugins are served", DEADLINE, || {
                let answer = gateway.client().ask(&request).expect("an answer");
                answer.status == 200 && answer.text() == format!("GET /{version} 0")
            });
        }
    };
    touch_the_tables(&gateway);
    let (warm, last) = (50, 50 + scaled(150, 10_000));
    reload(1..=warm);
    let before = gateway.rss();
    reload(warm + 1..=last);
    let after = gateway.rss();
    println!("{} reloads: {before} bytes before, {after} after", last - warm);
    assert!(after as f64 <= before as f64 * 1.05, "{before} bytes before, {after} after");
    assert_eq!(kept(), 503, "what did not change counts on");
}

/// Replaces the file with one that must be refused, and checks that everybody says so and nothing else changes.
fn refuse(gateway: &Gateway, what: &str, bad: &str, place: &str) {
    let refused = "weir_config_reloads_total{outcome=\"refused\"}";
    let before = gateway.metrics().get(refused).expect("it is counted");
    let revision = gateway.revision();
    // As written, not completed: what a file lacks must not be added to a broken one.
    let next = gateway.directory().write("next", bad);
    fs::rename(next, gateway.file()).expect("its own directory");
    eventually(&format!("{what} is refused"), DEADLINE, || gateway.metrics().get(refused) > Some(before));

    let status = gateway.status();
    let faults = status["configuration"]["last_error"]["diagnostics"].as_array().cloned().unwrap_or_default();
    let place_of = |fault: &Value| {
        format!("{}:{}", fault["line"].as_u64().unwrap_or(0), fault["path"].as_str().unwrap_or_default())
    };
    let fault = faults.iter().find(|fault| place_of(fault) == place);
    let fault = fault.unwrap_or_else(|| panic!("{what}: nothing is said of {place}: {status:#}"));
    let problem = fault["problem"].as_str().expect("a fault has a problem");
    gateway.wait_stderr(what, |line| line.contains(problem));
    assert_eq!(gateway.revision(), revision, "{what}");
    assert_eq!(gateway.ask_status("/status/ready").status, 200, "{what}");
}

#[test]
fn f13_a_bad_file_is_refused_whole_and_said_everywhere() {
    let origin = origin();
    let good = routes(&origin) + &fixed(1);
    let gateway = weir().start(&good);
    let load = Load::with_streams(gateway.addr());
    let node = origin.addr();
    for (what, bad, place) in [
        ("a file cut off", "routes:\n  - id: a\n    uri: \"/cut", "3:"),
        ("an unknown key", "routes:\n  - id: a\n    uri: /*\n    upstraem: {}\n", "4:routes[0].upstraem"),
        (
            "a bad expression",
            &format!(
                "routes:\n  - id: a\n    uri: /*\n    vars: [[uri, \"~~\", \"(\"]]\n    upstream: {{ nodes: {{ \"{node}\": 1 }} }}\n"
            ),
            "4:routes[0].vars[0][2]",
        ),
        (
            "a plugin's option of the wrong type",
            "routes:\n  - id: a\n    uri: /*\n    plugins:\n      mocking: { response_status: soon }\n",
            "5:routes[0].plugins.mocking.response_status",
        ),
        ("an empty file", "", "0:"),
    ] {
        refuse(&gateway, what, bad, place);
        assert_eq!(gateway.get("/version").text(), "1", "{what}: the good file is not served any more");
    }
    gateway.rewrite(&(routes(&origin) + &fixed(2)));
    assert_eq!(gateway.get("/version").text(), "2");
    eventually("a good file ends the complaint", DEADLINE, || {
        gateway.status()["configuration"]["last_error"].is_null()
    });
    load.finish();
}

#[test]
fn f13_a_file_as_large_as_a_disk_image_is_refused() {
    let origin = origin();
    let gateway = weir().start(&routes(&origin));
    let load = Load::start(gateway.addr());
    refuse(&gateway, "a file of 60 MB", &"# padding\n".repeat(6_000_000), "0:");
    gateway.wait_stderr("why", |line| line.contains("is larger than"));
    load.finish();
}

#[test]
fn a_directory_of_links_is_followed_when_it_is_turned_as_a_whole() {
    // As Kubernetes mounts a ConfigMap: weir.yaml -> ..data/weir.yaml, ..data -> a directory that is replaced.
    let origin = origin();
    let gateway = weir().start(&(routes(&origin) + &fixed(0)));
    let place = gateway.directory();
    let settings = "listen: [\"127.0.0.1:0\"]\nstatus: \"127.0.0.1:0\"\nworker_processes: 1\n";
    let turn = |version: usize| {
        let directory = format!("..{version}");
        fs::create_dir(place.join(&directory)).expect("its own directory");
        place.write(&format!("{directory}/weir.yaml"), format!("{settings}{}{}", routes(&origin), fixed(version)));
        symlink(&directory, place.join("..data_tmp")).expect("its own directory");
        fs::rename(place.join("..data_tmp"), place.join("..data")).expect("its own directory");
    };
    turn(1);
    symlink("..data/weir.yaml", place.join("link")).expect("its own directory");
    fs::rename(place.join("link"), gateway.file()).expect("its own directory");
    for version in 1..4 {
        eventually("the new directory is read", DEADLINE, || gateway.get("/version").text() == version.to_string());
        turn(version + 1);
    }
}

#[test]
fn a_change_of_an_included_file_is_served_and_a_fault_in_it_is_not() {
    let place = weir_testkit::TempDir::new();
    let routes = place.join("routes");
    fs::create_dir(&routes).expect("a directory");
    let write = |name: &str, text: &str| {
        // Replaced as a whole, so that no half of it is read.
        let next = place.write("next", text);
        fs::rename(next, routes.join(name)).expect("it can be renamed");
    };
    let route = |path: &str, answer: &str| {
        let plugins = format!("{{ mocking: {{ response_example: \"{answer}\" }} }}");
        format!("routes: [{{ id: {path}, uri: /{path}, plugins: {plugins} }}]\n")
    };
    write("a.yaml", &route("a", "one"));
    let gateway = weir().start(&format!("include: [\"{}\"]\nroutes: []\n", routes.display()));
    assert_eq!(gateway.get("/a").text(), "one");
    write("a.yaml", &route("a", "two"));
    eventually("the changed file is served", DEADLINE, || gateway.get("/a").text() == "two");
    write("b.yaml", &route("b", "new"));
    eventually("the file that is new is served", DEADLINE, || gateway.get("/b").status == 200);
    write("b.yaml", "routes: [{ uri: 5 }]\n");
    let refused = || gateway.metrics().get("weir_config_reloads_total{outcome=\"refused\"}") >= Some(1.0);
    eventually("the fault is refused", DEADLINE, refused);
    assert_eq!(gateway.get("/b").text(), "new");
    write("b.yaml", &route("b", "mended"));
    eventually("the file that was mended is served", DEADLINE, || gateway.get("/b").text() == "mended");
    fs::remove_file(routes.join("b.yaml")).expect("it is there");
    eventually("the file that is gone is not served", DEADLINE, || gateway.get("/b").status == 404);
    assert_eq!(gateway.get("/a").text(), "two");
}
