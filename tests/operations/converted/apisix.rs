//! Settings of Apache APISIX: the converted file starts, listens on the original's addresses, and serves the resources in the
//! file beside it.

use std::fs;
use std::process::Command;

use weir_testkit::{TempDir, free_port};

use super::{ConvertedFile, convert, weir};

const RESOURCES: &str = "routes:\n  - uri: /*\n    upstream: { nodes: { \"ONE\": 1 } }\n#END\n";

#[test]
fn a_node_of_apisix_with_a_file_serves_the_same_resources() {
    let file = ConvertedFile::read("apisix/standalone.yaml");
    let text = file.at(free_port());
    let (yaml, findings) = convert("apisix-config", "config.yaml", &text);
    let found = [
        "12: not converted: `apisix.router`: a route with the request's host goes before one without, and then the longest path \
         counts",
        "22: not converted: `nginx_config.http_server_configuration_snippet`: configuration of nginx is not read",
        "32: not converted: `plugin_attr.prometheus`: metrics are at `/metrics` of the address `status`",
    ];
    assert_eq!(findings, found, "{yaml}");
    let directory = TempDir::new();
    directory.write("apisix.yaml", RESOURCES.replace("ONE", &file.one.addr().to_string()));
    let path = directory.write("weir.yaml", &yaml);
    let check = Command::new(env!("CARGO_BIN_EXE_weir")).arg("check").arg(&path).output().expect("it runs");
    assert!(check.status.success(), "{}\n{yaml}", String::from_utf8_lossy(&check.stderr));
    // The included file is inlined, since the testkit writes the file to another directory.
    let yaml = yaml.replace("include: [apisix.yaml]\n", "").replace("\nroutes: []\n", "");
    let resources = fs::read_to_string(directory.path().join("apisix.yaml")).expect("it was written");
    let gateway = weir().start(&format!("{yaml}{}", resources.replace("#END\n", "")));
    let answer = gateway.get("/a?b=1");
    assert_eq!((answer.status, answer.text().starts_with("one GET /a?b=1")), (200, true), "{}", answer.text());
}
