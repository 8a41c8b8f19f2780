//! What a resource of a store gets from its node: only what the node's file lists. Each test is an attack by an editor whose key has
//! scopes, or by an admin where an editor may not write at all.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use weir_testkit::{
    Answer, Authority, Client, DEADLINE, Gateway, Launcher, Origin, Signal, TempDir, TlsClient, eventually,
};

use crate::api::{ADMIN, Api, EDITOR, VIEWER, admin_addr, file};

const SCOPED: &str = "the-key-of-an-editor-of-team-a";
/// The values of the variables that the node's file uses.
const KEY_OF_NODE: &str = "the-key-of-the-environment";
const DATA_KEY: &str = "0123456789abcdef0123456789abcdef";
const LISTED: &str = "a-value-for-resources";

/// A node whose file uses variables, with an editor of the resources with the label `team: a`.
fn weir() -> Launcher {
    let json = r#"{"member": "the-key-of-the-environment"}"#;
    let variables = [("NODE_KEY", KEY_OF_NODE), ("JSON", json), ("DATA_KEY", DATA_KEY), ("LISTED", LISTED)];
    let launcher = variables.iter().fold(crate::weir(), |launcher, (name, value)| launcher.env(name, value));
    launcher.env("WEIR_ADMIN_KEY", KEY_OF_NODE)
}

fn node_file(settings: &str) -> String {
    format!(
        "{}  - {{ name: env, key: \"${{{{NODE_KEY}}}}\" }}\n  - {{ name: team, key: {SCOPED}, role: editor, \
         scopes: [{{ labels: {{ team: a }} }}] }}\ndata_encryption: {{ keyring: [\"${{{{DATA_KEY}}}}\"] }}\n{settings}",
        file()
    )
}

fn scoped(gateway: &Gateway) -> Api {
    Api::with_key(admin_addr(gateway), SCOPED)
}

/// A route with the label of the team.
fn route(plugins: Value) -> String {
    json!({"uri": "/r", "labels": {"team": "a"}, "plugins": plugins}).to_string()
}

/// Resources with a reference in every kind of text that reaches a client, an upstream, or a server of the author.
fn resources_with(reference: &str) -> Vec<(&'static str, String)> {
    let mocked = |plugin: Value| {
        let mut plugins = json!({"mocking": {"response_example": "r"}});
        plugins.as_object_mut().expect("a map").extend(plugin.as_object().expect("a map").clone());
        route(plugins)
    };
    let labels = json!({"team": "a"});
    let plugins = json!({"response-rewrite": {"headers": {"set": {"X-K": reference}}}});
    vec![
        ("routes/r", mocked(json!({"response-rewrite": {"headers": {"set": {"X-K": reference}}}}))),
        ("routes/r", mocked(json!({"response-rewrite": {"headers": {"add": [reference]}}}))),
        ("routes/r", mocked(json!({"response-rewrite": {"body": reference}}))),
        ("routes/r", mocked(json!({"mocking": {"response_example": reference}}))),
        ("routes/r", mocked(json!({"proxy-rewrite": {"headers": {"set": {"X-K": reference}}}}))),
        ("routes/r", mocked(json!({"redirect": {"uri": reference}}))),
        ("routes/r", mocked(json!({"fault-injection": {"abort": {"http_status": 200, "body": reference}}}))),
        ("routes/r", mocked(json!({"http-logger": {"uri": "http://127.0.0.1:9/", "auth_header": reference}}))),
        ("routes/r", mocked(json!({"http-logger": {"uri": reference}}))),
        (
            "routes/r",
            mocked(json!({"mocking": {"response_example": "r", "_meta": {"filter": [["uri", "==", reference]]}}})),
        ),
        ("services/s", json!({"labels": labels, "plugins": plugins}).to_string()),
        ("plugin_configs/p", json!({"labels": labels, "plugins": plugins}).to_string()),
        (
            "consumers/jack",
            json!({"username": "jack", "labels": labels, "plugins": {"key-auth": {"key": reference}}}).to_string(),
        ),
        ("consumer_groups/g", json!({"labels": labels, "plugins": plugins}).to_string()),
        ("ssls/s", json!({"labels": labels, "sni": "a.example", "cert": reference, "key": reference}).to_string()),
        (
            "upstreams/u",
            json!({"labels": labels, "scheme": "https", "nodes": {"127.0.0.1:9": 1},
                   "tls": {"client_cert": reference, "client_key": reference}})
            .to_string(),
        ),
    ]
}

/// Sends a change, a dry run of it and a check of it, all of which have to be refused with this explanation.
#[track_caller]
fn is_refused(api: &mut Api, path: &str, body: &str, reason: &str) {
    let (list, id) = path.split_once('/').expect("a key");
    let mut item: Value = serde_json::from_str(body).expect("JSON");
    if list != "consumers" {
        item["id"] = id.into();
    }
    let transaction =
        json!({"operations": [{"put": path, "value": serde_json::from_str::<Value>(body).expect("JSON")}]});
    for (method, target, body) in [
        ("PUT", path, body),
        ("PUT", &*format!("{path}?dry_run=true"), body),
        ("PATCH", "configs", &*transaction.to_string()),
        ("POST", "configs/validate", &*json!({list: [item]}).to_string()),
    ] {
        let answer = api.ask(method, target, "", body);
        let text = answer.text();
        assert!(matches!(answer.status, 400), "{method} {target} {body}: {} {text}", answer.status);
        assert!(text.contains(reason), "{method} {target} {body}: {text}");
        assert!(
            ![KEY_OF_NODE, DATA_KEY, LISTED, "a-value-of-a-manager"].iter().any(|secret| text.contains(secret)),
            "{text}"
        );
    }
}

#[test]
fn the_environment_is_read_by_no_resource_unless_listed() {
    let gateway = weir().start(&node_file(""));
    let mut api = scoped(&gateway);
    for reference in ["$env://LISTED", "$env://HOME"] {
        for (path, body) in resources_with(reference) {
            is_refused(&mut api, path, &body, "`resource_env`");
        }
    }
    // In options, also in capitals and with a member of JSON.
    for reference in ["$ENV://LISTED", "$Env://JSON/member", "$env://NOT_SET"] {
        let body = route(json!({"mocking": {"response_example": reference}}));
        is_refused(&mut api, "routes/r", &body, "`resource_env`");
    }
    assert_eq!(gateway.get("/r").status, 404);
}

#[test]
fn the_admin_key_and_the_data_key_are_read_by_no_resource_even_if_listed() {
    let gateway = weir().start(&node_file("resource_env: [NODE_KEY, WEIR_ADMIN_KEY, \"*\"]\n"));
    let mut api = scoped(&gateway);
    for reference in ["$env://NODE_KEY", "$env://DATA_KEY", "$env://WEIR_ADMIN_KEY", "$env://DATA_KEY/member"] {
        for (path, body) in resources_with(reference) {
            is_refused(&mut api, path, &body, "is used by the node itself");
        }
    }
    api.put("routes/r", &route(json!({"mocking": {"response_example": "$env://LISTED"}})));
    assert_eq!(gateway.get("/r").text(), LISTED, "what is listed is read");
    for path in ["routes/r", "history"] {
        assert!(!api.ask("GET", path, "", "").text().contains(LISTED), "no answer resolves a reference");
    }
    let tried = api.ask("PUT", "routes/r?dry_run=true", "", &route(json!({"mocking": {"response_example": "x"}})));
    assert!(tried.status == 200 && !tried.text().contains(LISTED), "{}", tried.text());
}

#[test]
fn a_standalone_node_fences_its_environment_as_well() {
    let gateway = weir().start(&node_file("store: standalone\nresource_env: [LISTED]\n"));
    let mut api = Api::of(&gateway);
    let mut put = |reference: &str| {
        let routes =
            json!({"routes": [{"id": "r", "uri": "/r", "plugins": {"mocking": {"response_example": reference}}}]});
        let checked = api.ask("POST", "configs/validate", "", &routes.to_string()).status;
        let answer = api.ask("PUT", "configs", &format!("X-Digest: {reference}\r\n"), &routes.to_string());
        (checked, answer.status, answer.text())
    };
    for (reference, reason) in [("$env://HOME", "`resource_env`"), ("$env://DATA_KEY", "is used by the node itself")] {
        let (checked, status, text) = put(reference);
        assert!((checked, status) == (400, 400) && text.contains(reason), "{checked} {status} {text}");
    }
    assert_eq!(put("$env://LISTED").1, 202);
    assert_eq!(gateway.get("/r").text(), LISTED);
}

#[test]
fn secrets_are_read_by_no_resource_unless_listed() {
    let vault = Origin::serving(|request| match &*request.target {
        "/v1/kv/team-a/web" => Answer::ok(r#"{"data": {"key": "of-team-a"}}"#),
        _ => Answer::ok(r#"{"data": {"key": "of-others"}}"#),
    });
    let gateway = weir().start(&node_file(
        "resource_secrets: [\"vault/1/team-a/*\"]\nresource_env: [{ name: LISTED, resources: [secrets/vault/1] }]\n",
    ));
    let (mut admin, mut editor) = (Api::of(&gateway), scoped(&gateway));
    let manager =
        |token: &str| json!({"uri": format!("http://{}", vault.addr()), "prefix": "kv", "token": token}).to_string();
    is_refused(&mut admin, "secrets/vault/2", &manager("$env://LISTED"), "`resource_env`");
    is_refused(&mut admin, "secrets/vault/1", &manager("$env://NODE_KEY"), "is used by the node itself");
    admin.put("secrets/vault/1", &manager("$env://LISTED"));
    let mocking = |reference: &str| route(json!({"mocking": {"response_example": reference}}));
    // The token of the manager is listed for the manager alone.
    is_refused(&mut editor, "routes/r", &mocking("$env://LISTED"), "`resource_env`");
    for path in ["team-b/web/key", "team-a-web/key"] {
        is_refused(&mut editor, "routes/r", &mocking(&format!("$secret://vault/1/{path}")), "`resource_secrets`");
    }
    for path in ["team-a/../team-b/key", "team-a/%2e%2e/team-b/key"] {
        is_refused(&mut editor, "routes/r", &mocking(&format!("$SECRET://vault/1/{path}")), "plain name");
    }
    assert_eq!(editor.ask("PUT", "secrets/vault/9", "", &manager("t")).status, 403);
    editor.put("routes/r", &mocking("$secret://vault/1/team-a/web/key"));
    assert_eq!(gateway.get("/r").text(), "of-team-a");
}

#[test]
fn the_value_of_a_reference_that_is_refused_is_in_no_answer_and_no_log() {
    let vault = Origin::serving(|_| Answer::ok(r#"{"data": {"key": "a-value-of-a-manager"}}"#));
    let gateway = weir().start(&node_file("resource_secrets: [\"vault/1/*\"]\nresource_env: [LISTED]\n"));
    let (mut admin, mut editor) = (Api::of(&gateway), scoped(&gateway));
    let manager = json!({"uri": format!("http://{}", vault.addr()), "prefix": "kv", "token": "t"});
    admin.put("secrets/vault/1", &manager.to_string());
    for reference in ["$env://LISTED", "$secret://vault/1/web/key"] {
        for plugins in [
            json!({"http-logger": {"uri": reference}}),
            json!({"limit-count": {"count": reference, "time_window": 60}}),
            json!({"limit-count": {"count": 1, "time_window": 60, "policy": reference}}),
            json!({"ip-restriction": {"whitelist": [reference]}}),
            json!({"cors": {"allow_origins": reference}}),
            json!({"real-ip": {"source": "arg_ip", "trusted_addresses": [reference]}}),
        ] {
            let body = json!({"uri": "/r", "labels": {"team": "a"}, "plugins": plugins}).to_string();
            is_refused(&mut editor, "routes/r", &body, reference);
        }
    }
    let log = gateway.stderr();
    assert!(!log.contains(LISTED) && !log.contains("a-value-of-a-manager"), "{log}");
}

#[test]
fn a_logger_of_an_editor_reads_no_file_of_the_node() {
    let gateway = weir().file("certs/a.json", "{}").start(&node_file("resource_files: [certs]\n"));
    let mut api = scoped(&gateway);
    let directory = gateway.directory().path().to_owned();
    let logging = |path: &str| {
        let logger = json!({"auth_file": path, "batch_max_size": 1});
        route(json!({"mocking": {"response_example": "r"}, "google-cloud-logging": logger}))
    };
    let absolute = directory.join("weir.yaml").display().to_string();
    for path in ["weir.yaml", "certs/../weir.yaml", "/proc/self/environ", &absolute] {
        is_refused(&mut api, "routes/r", &logging(path), "`resource_files`");
    }
    symlink("../weir.yaml", directory.join("certs/link")).expect("a link");
    for (path, problem) in [
        ("certs/link", "a resource of the store may not use this file"),
        ("certs/a.json", "a member is missing or has another type"),
    ] {
        api.put("routes/r", &logging(path));
        assert_eq!(gateway.get("/r").status, 200);
        let told = format!("{} cannot be used: {problem}", directory.join(path).display());
        eventually(&told, DEADLINE, || gateway.stderr().contains(&told));
    }
}

#[test]
fn a_logger_of_an_editor_writes_into_no_file_of_the_node() {
    let gateway = weir()
        .file("logs/.keep", "")
        .file("certs/a.pem", "")
        .start(&node_file("resource_log_files: [logs]\nresource_files: [certs]\nenable_access_log: logs/access.log\n"));
    let mut api = scoped(&gateway);
    let directory = gateway.directory().path().to_owned();
    let logging = |path: &str| {
        let format = json!({"text": "routes: {}"});
        route(json!({"mocking": {"response_example": "r"}, "file-logger": {"path": path, "log_format": format}}))
    };
    let absolute = |name: &str| directory.join(name).display().to_string();
    for path in
        ["weir.yaml", "weir-data/x", "logs/../weir.yaml", "certs/a.pem", "/proc/self/environ", &absolute("weir.yaml")]
    {
        is_refused(&mut api, "routes/r", &logging(path), "`resource_log_files`");
    }
    symlink("../weir.yaml", directory.join("logs/link")).expect("a link");
    symlink("..", directory.join("logs/up")).expect("a link");
    fs::hard_link(directory.join("weir.yaml"), directory.join("logs/hard")).expect("a link");
    let before = fs::read_to_string(directory.join("weir.yaml")).expect("it is there");
    let access_log = || fs::read_to_string(directory.join("logs/access.log")).unwrap_or_default();
    for (number, path) in
        ["logs/link", "logs/up/weir.yaml", "logs/up/weir-data/x", "logs/hard", "logs/access.log"].iter().enumerate()
    {
        let name = format!("file-logger {}", directory.join(path).display());
        api.put("routes/r", &logging(path));
        assert_eq!(gateway.get("/r").status, 200);
        eventually(&format!("{path} has been tried"), DEADLINE, || gateway.stderr().contains(&name));
        let told = gateway.stderr();
        assert!(told.contains("a resource of the store may not use this file"), "{number}: {told}");
    }
    assert_eq!(fs::read_to_string(directory.join("weir.yaml")).expect("it is there"), before);
    assert!(!directory.join("weir-data/x").exists());
    assert!(!access_log().contains("routes: {}"), "{}", access_log());
    api.put("routes/r", &logging("logs/team.log"));
    assert_eq!(gateway.get("/r").status, 200);
    let written = || fs::read_to_string(directory.join("logs/team.log")).is_ok_and(|text| text.contains("routes"));
    eventually("a listed directory is written to", DEADLINE, written);
}

#[test]
fn a_log_file_of_a_resource_starts_at_the_directory_of_the_configuration() {
    let elsewhere = TempDir::new();
    elsewhere.write("logs/.keep", "");
    let launcher = weir().file("logs/.keep", "").working_directory(elsewhere.path());
    let gateway = launcher.start(&node_file("resource_log_files: [logs]\n"));
    let plugins = json!({"mocking": {"response_example": "r"}, "file-logger": {"path": "logs/team.log"}});
    scoped(&gateway).put("routes/r", &route(plugins));
    assert_eq!(gateway.get("/r").status, 200);
    let log = gateway.directory().path().join("logs/team.log");
    let written = || fs::read_to_string(&log).is_ok_and(|text| text.ends_with('\n'));
    eventually("the file beside the configuration has the record", DEADLINE, written);
    assert!(!elsewhere.join("logs/team.log").exists());
}

/// Resources that use a file as certificate and key, as authority, and as list of nodes.
fn resources_naming(file: &str) -> Vec<(&'static str, String)> {
    let upstream = |more: Value| {
        let mut upstream = json!({"labels": {"team": "a"}, "scheme": "https", "type": "roundrobin"});
        upstream.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
        upstream.to_string()
    };
    let with_tls = |tls: Value| upstream(json!({"nodes": {"127.0.0.1:9": 1}, "tls": tls}));
    let ssl = json!({"labels": {"team": "a"}, "sni": "b.example", "cert": file, "key": file});
    vec![
        ("ssls/s", ssl.to_string()),
        ("upstreams/u", with_tls(json!({"client_cert": file, "client_key": file}))),
        ("upstreams/u", with_tls(json!({"ca": file}))),
        ("upstreams/u", upstream(json!({"nodes_file": file}))),
    ]
}

#[test]
fn a_name_with_parents_in_a_listed_directory_is_refused_for_that() {
    let gateway =
        weir().file("lists/nodes.yaml", "{ \"127.0.0.1:9\": 1 }\n").start(&node_file("resource_files: [lists]\n"));
    let mut api = Api::with_key(admin_addr(&gateway), ADMIN);
    for (path, body) in resources_naming("lists/../lists/nodes.yaml") {
        is_refused(&mut api, path, &body, "cannot name a file by `..`: write its absolute path");
    }
    let absolute = gateway.file().with_file_name("lists").join("nodes.yaml");
    let body = json!({"type": "roundrobin", "nodes_file": absolute}).to_string();
    let answer = api.ask("PUT", "upstreams/u", "", &body);
    assert_eq!(answer.status, 201, "{}", answer.text());
}

#[test]
fn messages_repeat_nothing_of_a_file_and_a_viewer_makes_the_node_open_none() {
    let gateway = weir()
        .file("lists/secret.txt", "password: the-content-of-a-file\n")
        .start(&node_file("resource_files: [lists]\n"));
    let lists = json!({"upstreams": [{"id": "x", "type": "roundrobin", "nodes_file": "lists/secret.txt"}]}).to_string();
    for (key, is_opened) in [(VIEWER, false), (EDITOR, true), (ADMIN, true)] {
        let told = Api::with_key(admin_addr(&gateway), key).ask("POST", "configs/validate", "", &lists).text();
        assert!(!told.contains("password") && !told.contains("the-content"), "{told}");
        assert_eq!(told.contains("at line 1 column"), is_opened, "{told}");
    }
}

#[test]
fn a_file_that_only_the_settings_name_is_used_by_no_resource() {
    let authority = Authority::of_tests();
    let identity = authority.identity(&["a.example"]);
    let obtained = "acme/127.0.0.1-9-dir/a.example.pem";
    let settings = "listen: [\"127.0.0.1:0\", { address: \"127.0.0.1:0\", tls: true }]\n\
                    ssl_trusted_certificate: trust/ca.pem\nacme:\n  hosts: [a.example]\n  \
                    terms_of_service_agreed: true\n  directory: https://127.0.0.1:9/dir\n  ca: trust/acme.pem\n  \
                    storage: acme\n";
    let gateway = weir()
        .file(obtained, &format!("{}{}", identity.certificate, identity.key))
        .file("trust/ca.pem", &authority.certificate)
        .file("trust/acme.pem", &authority.certificate)
        .start(&node_file(settings));
    let mut api = scoped(&gateway);
    let trusting = json!({"labels": {"team": "a"}, "scheme": "https", "nodes": {"127.0.0.1:9": 1}});
    api.put("upstreams/trusting", &trusting.to_string());
    for file in [obtained, "trust/ca.pem", "trust/acme.pem"] {
        for (path, body) in resources_naming(file) {
            is_refused(&mut api, path, &body, "`resource_files`");
        }
    }
    let served = Client::connect_tls(gateway.tls_addr(), &TlsClient::trusting(authority), "a.example");
    assert!(served.is_ok(), "the node itself uses the file");
}

#[test]
fn the_keys_of_the_node_are_read_by_no_resource_even_in_a_listed_directory() {
    let authority = Authority::of_tests();
    let (own, team) = (authority.identity(&["localhost"]), authority.identity(&["b.example"]));
    let settings = node_file(
        "resource_files: [certs, acme]\nssl_trusted_certificate: certs/ca.pem\nacme:\n  hosts: [a.example]\n  \
                              terms_of_service_agreed: true\n  directory: https://127.0.0.1:9/dir\n  \
                              ca: certs/ca.pem\n  storage: acme\n",
    );
    let obtained = "acme/127.0.0.1-9-dir/a.example.pem";
    let gateway = weir()
        .file("certs/admin.pem", &format!("{}{}", own.certificate, own.key))
        .file("certs/admin.key", &own.key)
        .file("certs/ca.pem", &authority.certificate)
        .file("certs/b.pem", &format!("{}{}", team.certificate, team.key))
        .file(obtained, &format!("{}{}", own.certificate, own.key))
        .start(&settings.replace("admin:\n", "admin:\n  tls: { cert: certs/admin.pem, key: certs/admin.key }\n"));
    let directory = gateway.directory().path();
    symlink("admin.key", directory.join("certs/link.key")).expect("a link");
    fs::hard_link(directory.join("certs/admin.key"), directory.join("certs/hard.key")).expect("a link");
    let client = Client::connect_tls(admin_addr(&gateway), &TlsClient::trusting(authority), "localhost");
    let mut api = Api::over(client.expect("a connection"), SCOPED);
    for (file, reason) in [
        ("certs/admin.pem", "it is a file of the node itself"),
        ("certs/admin.key", "it is a file of the node itself"),
        ("certs/link.key", "it is a file of the node itself"),
        ("certs/hard.key", "it is a file of the node itself"),
        (obtained, "it is in a directory of the node itself"),
    ] {
        for (path, body) in resources_naming(file) {
            is_refused(&mut api, path, &body, reason);
        }
    }
    let resources = resources_naming("certs/b.pem");
    api.put(resources[0].0, &resources[0].1);
    let resources = resources_naming("certs/ca.pem");
    api.put(resources[2].0, &resources[2].1);
}

#[test]
fn a_file_that_is_a_link_out_of_a_listed_directory_is_not_read() {
    let identity = Authority::of_tests().identity(&["a.example"]);
    let gateway = weir()
        .file("certs/a.pem", &identity.certificate)
        .file("certs/a.key", &identity.key)
        .file("secret/b.key", &identity.key)
        .start(&node_file("resource_files: [certs, weir-data]\n"));
    let mut api = scoped(&gateway);
    let directory = gateway.directory().path();
    symlink("../secret/b.key", directory.join("certs/b.key")).expect("a link");
    symlink("a.key", directory.join("certs/c.key")).expect("a link");
    let ssl =
        |key: &str| json!({"labels": {"team": "a"}, "sni": "a.example", "cert": "certs/a.pem", "key": key}).to_string();
    let mut put = |key: &str| {
        let answer = api.ask("PUT", "ssls/s", "", &ssl(key));
        (answer.status, answer.text())
    };
    for key in ["certs/b.key", "weir-data/store.redb"] {
        let (status, text) = put(key);
        assert!(status == 400 && text.contains("may not use this file"), "{key}: {status} {text}");
    }
    let (status, text) = put("certs/c.key");
    assert_eq!(status, 201, "a link within the directory, as Kubernetes makes them: {text}");
}

#[test]
fn a_resource_stored_before_the_lists_existed_is_set_aside_until_it_is_listed() {
    let directory = TempDir::new();
    let yaml = |settings: &str| format!("{}data_dir: {}\n{settings}", node_file(""), directory.path().display());
    let mut gateway = weir().start(&yaml("resource_env: [LISTED]\n"));
    let mut api = scoped(&gateway);
    api.put("routes/r", &route(json!({"mocking": {"response_example": "$env://LISTED"}})));
    api.put(
        "routes/other",
        &json!({"uri": "/o", "labels": {"team": "a"}, "plugins": {"mocking": {"response_example": "o"}}}).to_string(),
    );
    gateway.signal(Signal::TERM);
    gateway.wait_exit(DEADLINE);
    let gateway = weir().start(&yaml(""));
    assert_eq!((gateway.get("/r").status, gateway.get("/o").status), (503, 200));
    let warnings = gateway.status()["configuration"]["warnings"].to_string();
    assert!(warnings.contains("routes/r") && warnings.contains("`resource_env`"), "{warnings}");
    gateway.rewrite(&yaml("resource_env: [LISTED]\n"));
    eventually("the route is back", DEADLINE, || gateway.get("/r").text() == LISTED);
    gateway.rewrite(&yaml(""));
    eventually("what is no longer listed is no longer read", DEADLINE, || {
        gateway.get("/r").text() != LISTED || {
            gateway.status()["configuration"].to_string().contains("`resource_env`")
        }
    });
}

#[test]
fn an_editor_of_a_standalone_node_adds_no_secret_manager() {
    let gateway = weir().start(&node_file("store: standalone\n"));
    let mut editor = Api::with_key(admin_addr(&gateway), EDITOR);
    let manager = json!({"id": "vault/1", "uri": "http://127.0.0.1:9", "prefix": "kv", "token": "t"});
    let mut put = |digest: &str, lists: Value| {
        editor.ask("PUT", "configs", &format!("X-Digest: {digest}\r\n"), &lists.to_string())
    };
    let answer = put("d1", json!({"secrets": [manager]}));
    assert!(answer.status == 403 && answer.text().contains("the role editor"), "{}", answer.text());
    assert_eq!(put("d2", json!({"routes": []})).status, 202);
}

#[test]
fn scopes_without_kinds_include_nothing_that_concerns_all_routes() {
    let gateway = weir().start(&node_file(""));
    let mut api = scoped(&gateway);
    let rule = json!({"labels": {"team": "a"}, "plugins": {"response-rewrite": {"headers": {"set": {"X-A": "a"}}}}});
    for (path, body) in [
        ("global_rules/a", rule.to_string()),
        ("plugin_metadata/file-logger", json!({"labels": {"team": "a"}, "path": "x"}).to_string()),
    ] {
        assert_eq!(api.ask("PUT", path, "", &body).status, 403, "{path}");
        let transaction =
            json!({"operations": [{"put": path, "value": serde_json::from_str::<Value>(&body).expect("JSON")}]});
        assert_eq!(api.ask("PATCH", "configs", "", &transaction.to_string()).status, 403, "{path}");
    }
}

#[test]
fn requests_through_the_gateway_have_no_rights_in_the_admin_api() {
    let gateway = weir().start(&node_file(""));
    let address = admin_addr(&gateway);
    let nodes = json!({address.to_string(): 1});
    let to_admin = json!({"uri": "/apisix/*", "labels": {"team": "a"}, "upstream": {"nodes": nodes}});
    scoped(&gateway).put("routes/admin", &to_admin.to_string());
    assert_eq!(gateway.get("/apisix/admin/routes").status, 401);
    assert_eq!(Api::with_key(address, ADMIN).get("routes")["total"], 1);
}

#[test]
fn identity_of_the_node_is_shown_only_to_workloads_that_the_node_allows() {
    let socket = TempDir::new().path().join("none.sock");
    let settings = format!(
        "spiffe: {{ socket: \"unix://{}\" }}\nresource_spiffe_ids: [\"spiffe://a.test/orders\", \"spiffe://b.test\"]\n",
        socket.display()
    );
    let gateway = weir().start(&node_file(&settings));
    let mut api = scoped(&gateway);
    let mut put = |tls: Value| {
        let upstream = json!({"labels": {"team": "a"}, "scheme": "https", "nodes": {"127.0.0.1:9": 1}, "tls": tls});
        let answer = api.ask("PUT", "upstreams/u", "", &upstream.to_string());
        (answer.status, answer.text())
    };
    let with = |ids: &[&str]| json!({"svid": "default", "spiffe_ids": ids});
    for (tls, refusal) in [
        (json!({"svid": "default"}), "only to workloads that it names"),
        (json!({"svid": "default", "verify": false}), "only to workloads that it names"),
        (with(&["spiffe://a.test"]), "may not be shown to `spiffe://a.test`"),
        (with(&["spiffe://a.test/orders", "spiffe://c.test/x"]), "may not be shown to `spiffe://c.test/x`"),
    ] {
        let (status, text) = put(tls.clone());
        assert!(status == 400 && text.contains(refusal), "{tls}: {status} {text}");
    }
    // To verify others shows nothing of the node.
    for tls in [with(&["spiffe://a.test/orders", "spiffe://b.test/x"]), json!({"spiffe_ids": ["spiffe://c.test"]})] {
        let (status, text) = put(tls.clone());
        assert!(matches!(status, 200 | 201), "{tls}: {status} {text}");
    }
}
