//! A file of Apache APISIX with every plugin of the list, as people write them, loads as it is.

use std::process::Command;

use weir_testkit::TempDir;

const FILE: &str = include_str!("apisix.yaml");

/// Those that Weir promises to have.
const LIST: [&str; 39] = [
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
fn what_is_not_supported_is_named_with_its_place() {
    let (code, said) = check(&FILE.replace("host: \"http://127.0.0.1:9797\"", "host: \"grpc://127.0.0.1:9797\""));
    assert_eq!(code, Some(1));
    assert!(said.contains("plugins.proxy-mirror.host: must begin with `http://` or `https://`"), "{said}");
    let (code, said) = check(&FILE.replace("prometheus: {}", "kafka-logger: {}"));
    assert_eq!(code, Some(1));
    assert!(said.contains("kafka-logger"), "{said}");
}
