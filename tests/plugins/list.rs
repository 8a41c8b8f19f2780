//! A file of Apache APISIX with every plugin of the list, as people write them, loads as it is.

use std::process::Command;

use weir_testkit::TempDir;

const FILE: &str = include_str!("apisix.yaml");

/// Those that Weir promises to have.
const LIST: [&str; 41] = [
    "real-ip",
    "client-control",
    "request-id",
    "fault-injection",
    "mocking",
    "cors",
    "ip-restriction",
    "ua-restriction",
    "referer-restriction",
    "uri-blocker",
    "request-validation",
    "openid-connect",
    "ldap-auth",
    "hmac-auth",
    "basic-auth",
    "jwt-auth",
    "key-auth",
    "multi-auth",
    "consumer-restriction",
    "acl",
    "attach-consumer-label",
    "forward-auth",
    "proxy-mirror",
    "proxy-rewrite",
    "api-breaker",
    "limit-conn",
    "limit-count",
    "limit-req",
    "gzip",
    "brotli",
    "traffic-split",
    "redirect",
    "response-rewrite",
    "prometheus",
    "http-logger",
    "file-logger",
    "csrf",
    "workflow",
    "content-filter",
    "message-size",
    "time-restriction",
];

fn check(text: &str) -> (Option<i32>, String) {
    let place = TempDir::new();
    let file = place.write("apisix.yaml", text);
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("check").arg(file).output().expect("it was built");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_file_with_every_plugin_loads_unchanged() {
    for plugin in LIST {
        assert!(FILE.contains(&format!("{plugin}:")), "the file lacks {plugin}");
    }
    let (code, said) = check(FILE);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_check_starts_no_thread_and_opens_no_socket() {
    let place = TempDir::new();
    let every_plugin = place.write("apisix.yaml", FILE);
    let documents = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/config");
    let documents = std::fs::read_dir(documents).expect("it is there").map(|entry| entry.expect("readable").path());
    let documents = documents.filter(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    for file in std::iter::once(every_plugin).chain(documents) {
        let trace = place.join("trace");
        let calls = "trace=clone,clone3,fork,vfork,socket,socketpair,connect,bind,listen";
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-e", calls, "-e", "signal=none", "-o"]).arg(&trace);
        let output = command.arg(env!("CARGO_BIN_EXE_weir")).arg("check").arg(&file).output();
        let output = output.expect("strace is installed by scripts/setup");
        assert!(matches!(output.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&output.stderr));
        let trace = std::fs::read_to_string(&trace).expect("it was written");
        assert_eq!(trace, "", "{}", file.display());
    }
}

#[test]
fn unsupported_option_is_named_with_its_place() {
    let (code, said) = check(&FILE.replace("host: \"http://127.0.0.1:9797\"", "host: \"grpc://127.0.0.1:9797\""));
    assert_eq!(code, Some(1));
    assert!(said.contains("plugins.proxy-mirror.host: must begin with `http://` or `https://`"), "{said}");
    let (code, said) = check(&FILE.replace("prometheus: {}", "rocketmq-logger: {}"));
    assert_eq!(code, Some(1));
    assert!(said.contains("rocketmq-logger"), "{said}");
}

#[test]
fn names_that_are_always_empty_are_said_where_they_stand() {
    let file = |plugin: &str| {
        format!("routes:\n- uri: /a\n  upstream: {{ nodes: {{ \"127.0.0.1:9001\": 1 }} }}\n  plugins:\n    {plugin}\n")
    };
    let (unknown, unread) = ("which does not exist", "the body is not read here");
    for (plugin, wrong, why) in [
        (
            r#"fault-injection: { abort: { http_status: 503, vars: [[[uri_parameter_id, "==", "1"]]] } }"#,
            "abort.vars[0]",
            unknown,
        ),
        ("proxy-rewrite: { headers: { set: { X-None: $none } } }", "headers.set.X-None", unknown),
        ("proxy-rewrite: { headers: { set: { X-Body: $request_body } } }", "headers.set.X-Body", unread),
        (r#"file-logger: { path: a, match: [[stats, ">", 399]] }"#, "match", unknown),
        ("file-logger: { path: a, log_format: { a: { b: of $hots } } }", "log_format.a.b", unknown),
        (
            r#"file-logger: { path: a, include_resp_body: true, include_resp_body_expr: [[stats, ">", 399]] }"#,
            "include_resp_body_expr",
            unknown,
        ),
        ("limit-count: { count: 1, time_window: 60, key: post_arg_user }", "key", unread),
        ("limit-count: { count: 1, time_window: 60, key: status }", "key", "before the request is answered"),
    ] {
        let (code, said) = check(&file(plugin));
        assert!(
            code == Some(0) && said.contains(&format!("{wrong}: names the variable")) && said.contains(why),
            "{plugin}: {said}"
        );
    }
    for (plugin, wrong) in [
        (
            r#"traffic-split: { rules: [{ match: [{ vars: [[post_arg_a, "==", "b"]] }], weighted_upstreams: [{ weight: 1 }] }] }"#,
            "rules[0].match[0].vars",
        ),
        (
            r#"workflow: { rules: [{ case: [[graphql_name, "==", "b"]], actions: [[return, { code: 403 }]] }] }"#,
            "rules[0].case",
        ),
        (
            r#"workflow: { rules: [{ case: [[status, "==", 403]], actions: [[return, { code: 404 }]] }] }"#,
            "rules[0].case",
        ),
        ("limit-count: { count: $nope, time_window: 60 }", "count"),
        (r#"file-logger: { path: a, match: [[graphql_name, "==", "b"]] }"#, "match"),
    ] {
        let (code, said) = check(&file(plugin));
        assert!(code == Some(1) && said.contains(&format!("{wrong}: names the variable")), "{plugin}: {said}");
    }
    let (code, said) = check(&file(
        "file-logger: { path: a, include_req_body: true, log_format: { a: $request_body, b: $post_arg_a, c: $error_cause } }",
    ));
    assert!(code == Some(0) && !said.contains("names the variable"), "{said}");
}
