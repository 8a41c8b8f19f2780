//! `weir get`, `put`, `delete`, `diff`, `apply`, `history`, `rollback` and `store`.

use std::process::{Command, Output};

use serde_json::json;
use weir_testkit::{Answer, Authority, DEADLINE, Gateway, Origin, Signal, TempDir, free_port};

use crate::api::{ADMIN, VIEWER, admin_addr, file};
use crate::weir;

fn command(arguments: &[&str], gateway: &Gateway) -> Output {
    let server = format!("http://{}", admin_addr(gateway));
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).env("WEIR_ADMIN", server).env("WEIR_ADMIN_KEY", ADMIN);
    command.output().expect("the binary starts")
}

#[track_caller]
pub(crate) fn done(arguments: &[&str], gateway: &Gateway) -> String {
    let output = command(arguments, gateway);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned() + &errors
}

#[track_caller]
fn refused(arguments: &[&str], code: i32, gateway: &Gateway) -> String {
    let output = command(arguments, gateway);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned() + &errors
}

#[test]
fn a_running_node_is_changed_from_a_shell() {
    let gateway = weir().start(&file());
    let place = TempDir::new();
    let route = place.write("route.yaml", "uri: /r\nplugins: { mocking: { response_example: one } }\n");
    let route = route.to_str().expect("a path");
    assert!(done(&["put", "routes/r", "-f", route, "-m", "by hand"], &gateway).contains("routes/r: created"));
    assert_eq!(gateway.get("/r").text(), "one");
    assert!(done(&["get", "routes/r"], &gateway).contains("\"modifiedIndex\": 1"));
    assert!(refused(&["get", "routes/none"], 5, &gateway).contains("`routes/none` does not exist"));
    assert!(refused(&["put", "routes/r", "-f", route, "--if-revision", "7"], 5, &gateway).contains("412"));
    place.write("route.yaml", "uri: r\nplugins: {}\n");
    assert!(refused(&["put", "routes/r", "-f", route], 5, &gateway).contains("routes/r: uri"));
    let history = done(&["history"], &gateway);
    assert!(history.contains("created routes/r") && history.contains("\"by hand\""), "{history}");
    done(&["delete", "routes/r"], &gateway);
    assert_eq!(gateway.get("/r").status, 404);
    assert!(refused(&["delete", "routes/r"], 5, &gateway).contains("`routes/r` does not exist"));
    let first = done(&["history", "1"], &gateway);
    assert!(first.contains("created routes/r\n  uri: \"/r\"\n") && first.contains("\"by hand\""), "{first}");
    let unasked = refused(&["rollback", "1"], 1, &gateway);
    assert!(unasked.contains("created routes/r\n") && unasked.contains("use `--yes`"), "{unasked}");
    assert_eq!(gateway.get("/r").status, 404);
    done(&["rollback", "1", "--yes"], &gateway);
    assert_eq!(gateway.get("/r").text(), "one");
}

#[test]
fn resources_are_printed_as_files_that_are_applied() {
    let gateway = weir().start(&file());
    let place = TempDir::new();
    let text = "routes:
- { id: \"1\", uri: /r, desc: \"on\", labels: { a: \"1e3\" }, plugins: { mocking: { response_example: \"one\\n two: #3\" } } }
consumers: [{ username: jack, plugins: { key-auth: { key: a-key-of-jack } } }]
";
    let first = place.write("first.yaml", text);
    done(&["apply", "-f", first.to_str().expect("a path"), "--yes"], &gateway);
    let mut all = String::new();
    for list in ["routes", "consumers"] {
        all += &done(&["get", list, "-o", "yaml"], &gateway);
    }
    assert!(all.contains("routes:\n") && !all.contains("modifiedIndex") && !all.contains("update_time"), "{all}");
    let printed = place.write("printed.yaml", &all);
    assert!(done(&["diff", "-f", printed.to_str().expect("a path")], &gateway).contains("no changes"), "{all}");
    let one = place.write("one.yaml", done(&["get", "routes/1", "-o", "yaml"], &gateway).replace("/r", "/s"));
    done(&["put", "routes/1", "-f", one.to_str().expect("a path")], &gateway);
    assert_eq!(gateway.get("/s").text(), "one\n two: #3");
}

#[test]
fn a_running_node_tells_the_routes_of_a_rehearsal() {
    let gateway = weir().start(&file());
    let place = TempDir::new();
    let routes = place.write(
        "routes.yaml",
        "routes: [{ id: b, uri: /b/*, hosts: [shop], plugins: { mocking: { response_example: new } } }]\n",
    );
    done(&["apply", "-f", routes.to_str().expect("a path"), "--yes"], &gateway);
    let old = Origin::serving(|_| Answer::with(200, "Content-Type: application/json;charset=utf8\r\n", "old"));
    let log = place.write("list", "GET http://shop/b/1\nGET http://other/b/1\n");
    let [server, old, new] =
        [admin_addr(&gateway), old.addr(), gateway.addr()].map(|address| format!("http://{address}"));
    let log = log.to_str().expect("a path");
    let said = refused(&["rehearse", "--log", log, "--old", &old, "--new", &new, "--explain", &server], 1, &gateway);
    assert!(said.contains("as GET shop/b/1 (route b)") && said.contains("as GET other/b/1 (no route)"), "{said}");
    let unknown = ["rehearse", "--log", log, "--old", &old, "--new", &new, "--explain", &new];
    assert!(refused(&unknown, 2, &gateway).contains("`--explain`"), "the address of a listener is no Admin API");
}

#[test]
fn a_running_node_explains_a_request() {
    let routes = "routes:
- { id: a, uri: /a/*, hosts: [shop], plugins: { key-auth: {}, cors: {} } }
- { id: b, uri: /*, plugins: { mocking: { response_example: b } } }
";
    let gateway = weir().start(&file());
    let place = TempDir::new();
    let routes = place.write("routes.yaml", routes);
    done(&["apply", "-f", routes.to_str().expect("a path"), "--yes"], &gateway);
    let server = format!("http://{}", admin_addr(&gateway));
    let said = done(&["explain", &server, "GET", "/a/b", "-H", "Host: shop", "-H", "X-A: b"], &gateway);
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("route/a shop/a/* chosen") && words.contains("route/b /* outranked"), "{said}");
    assert!(words.contains("4000 cors from route/a") && words.contains("2500 key-auth from route/a"), "{said}");
    assert!(refused(&["explain", &server, "GET", "gopher://t/"], 5, &gateway).contains("neither http nor https"));
    assert!(refused(&["explain", &server, "TCP", ":5432"], 1, &gateway).contains("by a file only"));
    let node = place.write("node.yaml", format!("{}data_dir: data\n", file()));
    let node = node.to_str().expect("a path");
    for question in [&["explain", node, "GET", "/a/b"], &["explain", node, "TCP", ":5432"]] {
        let told = refused(question, 1, &gateway);
        assert!(
            told.contains("in its store, not in this file; ask the node: `weir explain http://127.0.0.1:"),
            "{told}"
        );
    }
    let identity = Authority::of_tests().identity(&["gw.example"]);
    place.write("gw.crt", &identity.certificate);
    place.write("gw.key", &identity.key);
    let tls = file().replacen("admin:\n", "admin:\n  tls: { cert: gw.crt, key: gw.key }\n", 1);
    let node = place.write("tls.yaml", format!("{tls}data_dir: data\n"));
    let told = refused(&["explain", node.to_str().expect("a path"), "GET", "/a/b"], 1, &gateway);
    assert!(told.contains("ask the node: `weir explain https://127.0.0.1:"), "{told}");
}

#[test]
fn another_program_in_place_of_a_node_is_no_success() {
    let other = Origin::serving(|_| Answer::ok("{\"hello\": 1}"));
    let server = format!("http://{}", other.addr());
    for arguments in [
        &["history"][..],
        &["history", "1"],
        &["rollback", "1", "--dry-run"],
        &["nodes"],
        &["hub", "subscriptions", "h"],
        &["hub", "dead-letters", "h"],
        &["hub", "replay", "h", "--all"],
        &["get", "routes", "-o", "yaml"],
        &["explain", &server, "GET", "/"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let output = command.args(arguments).env("WEIR_ADMIN", &server).env("WEIR_ADMIN_KEY", ADMIN).output();
        let output = output.expect("it runs");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{arguments:?}: {told}");
        assert!(told.contains("is not one of Weir's Admin API"), "{arguments:?}: {told}");
    }
}

#[test]
fn a_wrong_address_is_told_with_the_setting_that_names_it() {
    let gateway = weir().start(&file());
    let said = |arguments: &[&str], server: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let command = command.args(arguments).env("WEIR_ADMIN", server).env("WEIR_ADMIN_KEY", ADMIN);
        let output = command.output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let setting = "`--server`, or WEIR_ADMIN, is the setting `admin.listen` of the node";
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let [status, listen] = [gateway.status_addr(), gateway.addr()].map(|addr| addr.to_string());
    for (server, expected) in [
        (&nowhere, format!("no response from {nowhere}")),
        (&format!("http://{status}"), "is not one of Weir's Admin API".to_owned()),
        (&format!("http://{listen}"), "is not one of Weir's Admin API".to_owned()),
    ] {
        for arguments in [&["get", "routes"][..], &["nodes"], &["history"], &["hub", "subscriptions", "h"]] {
            let (code, text) = said(arguments, server);
            assert!(code == Some(5) && text.contains(&expected) && text.contains(setting), "{arguments:?}: {text}");
        }
        let (code, text) = said(&["explain", server, "http://a/"], server);
        let setting = "the URL in place of FILE is the setting `admin.listen` of the node";
        assert!(code == Some(5) && text.contains(&expected) && text.contains(setting), "{text}");
    }
    let other = weir_testkit::Origin::serving(|_| weir_testkit::Answer::ok(r#"{"a": 1}"#));
    for arguments in [&["get", "routes"][..], &["get", "routes/r", "-o", "yaml"]] {
        let (code, text) = said(arguments, &format!("http://{}", other.addr()));
        assert!(code == Some(5) && text.contains("is not one of Weir's Admin API"), "{arguments:?}: {text}");
    }
    for arguments in [&["tail"][..], &["top", "--once"], &["trace", "http://a/"]] {
        let (code, text) = said(&[arguments, &["--status", &listen]].concat(), "");
        let expected = "is not the status address of a node; `--status` is the setting `status` of the node";
        assert!(code == Some(5) && text.contains(expected), "{arguments:?}: {text}");
    }
    let (code, text) = said(&["get", "rutes"], &format!("http://{}", admin_addr(&gateway)));
    assert!(
        code == Some(5) && text.contains("Unsupported resource type: rutes") && text.contains("the lists are routes,"),
        "{text}"
    );
}

/// Such a file would otherwise be one without resources, and `store import` replaces all that there are.
#[test]
fn a_file_of_another_program_has_no_resources() {
    let place = TempDir::new();
    let node = place.write("node.yaml", format!("{}data_dir: data\n", file()));
    let node = node.to_str().expect("a path");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let output = command.args(arguments).env("WEIR_ADMIN_KEY", ADMIN).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let other = place.write("nginx.conf", "http { server { listen 80; } }\n");
    let empty = place.write("empty.yaml", "# nothing yet\n");
    for (file, expected) in [(&other, "is not a map; resources stand in lists"), (&empty, "contains no configuration")]
    {
        let file = file.to_str().expect("a path");
        for arguments in [&["store", "import", node, file][..], &["apply", "-f", file], &["diff", "-f", file]] {
            let (code, text) = run(arguments);
            assert!(code == Some(1) && text.contains(expected), "{arguments:?}: {text}");
        }
    }
    let directory = place.path().to_str().expect("a path");
    for arguments in [&["put", "routes/r", "-f", directory][..], &["convert", "kong", directory]] {
        let (code, text) = run(arguments);
        assert!(code == Some(1) && text.contains("is a directory; give the path of a file"), "{arguments:?}: {text}");
    }
    for arguments in [&["records", directory][..], &["records", "/nowhere"], &["trace", "ftp://a/"]] {
        let (code, text) = run(arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {text}");
    }
    let resources = place.write("file.yaml", "routes: []\n");
    let (code, text) = run(&["store", "export", resources.to_str().expect("a path")]);
    assert!(code == Some(1) && text.contains("has no store: the resources of this node stand in this file"), "{text}");
}

#[test]
fn files_are_compared_and_applied() {
    let gateway = weir().start(&file());
    let place = TempDir::new();
    let of = |answer: &str| {
        format!(
            "upstreams:\n- {{ id: u, labels: {{ team: a }}, nodes: {{ \"127.0.0.1:9\": 1 }} }}\n\
             routes:\n- {{ id: r, labels: {{ team: a }}, uri: /r, upstream_id: u, plugins: {{ mocking: {{ response_example: {answer} }} }} }}\n"
        )
    };
    let path = place.write("all.yaml", of("one"));
    let path = path.to_str().expect("a path");
    let plan = refused(&["diff", "-f", path], 1, &gateway);
    assert!(plan.contains("created routes/r") && plan.contains("created upstreams/u"), "{plan}");
    assert_eq!(gateway.get("/r").status, 404, "a plan changes nothing");
    assert!(refused(&["apply", "-f", path], 1, &gateway).contains("use `--yes`"));
    let wrong = place.write("wrong.yaml", "routes: [{ uri: /a }]\n");
    let wrong = wrong.to_str().expect("a path");
    for arguments in [
        &["apply", "--yes", "-f", wrong][..],
        &["diff", "-f", wrong],
        &["put", "routes/r", "-f", "/nowhere.yaml"],
        &["diff", "-f", path, "--requests", "/nowhere.log"],
        &["get", "routes", "--ca", "/nowhere.pem"],
        &["get", "routes", "--key-file", "/nowhere.key"],
    ] {
        // To try again is of no use, as it may be with a node that refuses.
        let told = refused(arguments, 1, &gateway);
        assert!(told.contains("wrong.yaml:1:10") || told.contains("/nowhere"), "{arguments:?}: {told}");
    }
    done(&["apply", "-f", path, "--yes"], &gateway);
    assert_eq!(gateway.get("/r").text(), "one");
    assert!(done(&["diff", "-f", path], &gateway).contains("no changes"));
    place.write("all.yaml", of("two"));
    let plan = refused(&["diff", "-f", path], 1, &gateway);
    assert!(plan.contains("plugins.mocking.response_example: \"one\" -> \"two\""), "{plan}");
    done(&["apply", "-f", path, "--yes"], &gateway);
    assert_eq!(gateway.get("/r").text(), "two");
    place.write("all.yaml", "routes: []\n");
    done(&["apply", "-f", path, "--yes"], &gateway);
    assert_eq!(gateway.get("/r").text(), "two", "what stands in no file stays");
    let log = r#"{"remote_addr":"10.0.0.1","request_method":"GET","request_uri":"/r?a","host":"shop"}"#;
    let requests = place.write("access.log", format!("{log}\n{log}\nGET http://shop/none\n"));
    let requests = requests.to_str().expect("a path");
    let plan = refused(&["diff", "-f", path, "--prune", "team=a", "--requests", requests], 1, &gateway);
    let told = "2 different requests compared, 1 handled differently\n  GET http://shop/r?a: route r -> none; \
                plugins [mocking from route/r] -> none; upstream upstreams/u -> none\n";
    assert!(plan.contains(told), "{plan}");
    done(&["apply", "-f", path, "--yes", "--prune", "team=a"], &gateway);
    assert_eq!(gateway.get("/r").status, 404);
}

#[test]
fn secrets_that_are_as_in_the_files_are_no_change() {
    let (place, authority) = (TempDir::new(), Authority::of_tests());
    let [old, new] = ["a.example", "a.example"].map(|name| authority.identity(&[name]));
    place.write("cert.pem", &old.certificate);
    place.write("key.pem", &old.key);
    let gateway = weir().start(&format!("{}resource_files: [{:?}]\n", file(), place.path()));
    let of = |sni: &str, token: &str| {
        let ssls = json!([
            {"id": "named", "sni": "b.example", "cert": place.path().join("cert.pem"), "key": place.path().join("key.pem")},
            {"id": "inline", "sni": sni, "cert": old.certificate, "key": old.key},
        ]);
        let manager = json!({"id": "vault/1", "uri": "http://127.0.0.1:1", "prefix": "kv", "token": token});
        json!({"ssls": ssls, "secrets": [manager]}).to_string()
    };
    let path = place.write("all.json", of("a.example", "t0ken"));
    let path = path.to_str().expect("a path");
    let applied = done(&["apply", "-f", path, "--yes"], &gateway);
    // The certificate is for another name.
    let warning = ": ssls/named: sni: the certificate is not for `b.example`";
    assert_eq!(applied.matches(warning).count(), 1, "it is said once: {applied}");
    let same = done(&["diff", "-f", path], &gateway);
    assert!(same.contains("no changes") && !same.contains("warning"), "{same}");
    done(&["apply", "-f", path, "--yes"], &gateway);
    let history = done(&["history"], &gateway);
    assert_eq!(history.lines().count(), 1, "the second made no revision: {history}");

    place.write("all.json", of("a.example", "an0ther"));
    let plan = refused(&["diff", "-f", path], 1, &gateway);
    assert_eq!(plan, "changed secrets/vault/1\n  token: \"***\" -> \"***\"\n");
    let changed = of("a.example", "t0ken").replace(&json!(old.key).to_string(), &json!(new.key).to_string());
    let changed = changed.replace(&json!(old.certificate).to_string(), &json!(new.certificate).to_string());
    place.write("all.json", changed);
    let plan = refused(&["diff", "-f", path], 1, &gateway);
    assert!(
        plan.starts_with("changed ssls/inline\n  cert: ") && plan.contains("  key: \"***\" -> \"***\"\n"),
        "{plan}"
    );
    let secret = new.key.lines().nth(1).expect("a line of it");
    assert!(!plan.contains(secret) && !plan.contains("ssls/named"), "{plan}");
    place.write("all.json", of("c.example", "t0ken"));
    let plan = refused(&["diff", "-f", path], 1, &gateway);
    let warning = format!("warning: {path}:1:");
    assert!(
        plan.contains(&warning) && plan.contains("ssls/inline: sni: the certificate is not for `c.example`"),
        "{plan}"
    );
}

#[test]
fn a_viewer_is_told_which_role_a_comparison_needs() {
    let gateway = weir().start(&file());
    let place = TempDir::new();
    let routes = place.write("routes.yaml", "routes: [{ id: r, uri: /r, plugins: {} }]\n");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["diff", "-f", routes.to_str().expect("a path")]);
    command.env("WEIR_ADMIN", format!("http://{}", admin_addr(&gateway))).env("WEIR_ADMIN_KEY", VIEWER);
    let output = command.output().expect("the binary starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("need a key with the role editor or admin") && !told.contains("WEIR_ADMIN_KEY"), "{told}");
}

#[test]
fn a_store_is_filled_and_emptied_while_no_node_runs() {
    let mut gateway = weir().start(&file());
    let place = TempDir::new();
    let apisix = place.write(
        "apisix.yaml",
        "routes:\n- { id: 1, uri: /r, plugins: { mocking: { response_example: imported } } }\n#END\n",
    );
    let node = gateway.file().to_str().expect("a path").to_owned();
    let busy = refused(&["store", "export", &node], 5, &gateway);
    assert!(busy.contains("in use by another process; stop the node; while it runs, `weir get` shows"), "{busy}");
    gateway.signal(Signal::TERM);
    gateway.wait_exit(DEADLINE);
    done(&["store", "import", &node, apisix.to_str().expect("a path")], &gateway);
    let backup = place.write("backup.json", "an older one");
    done(&["store", "export", &node, "--output", backup.to_str().expect("a path")], &gateway);
    let exported = done(&["store", "export", &node], &gateway);
    assert_eq!(std::fs::read_to_string(&backup).expect("a file"), exported);
    assert!(exported.contains("\"uri\": \"/r\"") && exported.contains("\"id\": \"1\""), "{exported}");
    // A file that names another directory has no store, and an export of none is no backup.
    let elsewhere = format!("{}data_dir: {}\n", file(), place.path().join("other").display());
    let elsewhere = place.write("elsewhere.yaml", elsewhere);
    let missing = refused(&["store", "export", elsewhere.to_str().expect("a path")], 5, &gateway);
    assert!(missing.contains("there is no store ") && !place.path().join("other").exists(), "{missing}");
    // All faults of the resources, at their places.
    let wrong = place.write(
        "wrong.yaml",
        "routes:\n- { id: 1, uri: r, plugins: {} }\n- id: 2\n  uri: /r\n  plugins:\n    limit-count: { count: 1, time_window: x }\n    nope: {}\n",
    );
    let told = refused(&["store", "import", &node, wrong.to_str().expect("a path")], 1, &gateway);
    for (place, path) in [
        ("2:17", "routes/1: uri"),
        ("6:43", "routes/2: plugins.limit-count.time_window"),
        ("7:11", "routes/2: plugins.nope"),
    ] {
        assert!(told.contains(&format!("{}:{place}: {path}: ", wrong.display())), "{told}");
    }
    let still = done(&["store", "export", &node], &gateway);
    assert_eq!(still, exported, "nothing was imported");
    let path = gateway.directory().join("weir-data/store.redb");
    let again = weir().start(&format!("{}store: {{ path: {} }}\n", file(), path.display()));
    assert_eq!(again.get("/r").text(), "imported");
}

#[test]
fn a_command_waits_for_a_response_no_longer_than_it_is_told() {
    // It accepts connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let server = format!("http://{}", silent.local_addr().expect("an address"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["get", "routes", "--timeout", "1"]).env("WEIR_ADMIN", &server).env("WEIR_ADMIN_KEY", ADMIN);
    let output = command.output().expect("the binary starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{told}");
    assert!(told.contains(&format!("no response from {server} within 1 s")) && told.contains("--timeout"), "{told}");
}
