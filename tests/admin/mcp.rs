//! A client that others wrote: `apisix-mcp`, which speaks the Admin API with axios.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};
use weir_testkit::{Program, skipped};

use crate::api::{ADMIN, admin_addr, file};
use crate::weir;

struct Mcp {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    number: u64,
}

impl Mcp {
    /// `None` where it is not installed, which has been said then.
    fn start(port: u16) -> Option<Mcp> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository");
        let program = root.join(".cache/apisix-mcp/node_modules/apisix-mcp/dist/index.js");
        if !program.exists() {
            skipped("there is no apisix-mcp");
            return None;
        }
        let mut command = Program::find("node")?;
        command.arg(program).env("APISIX_ADMIN_API_PORT", port.to_string()).env("APISIX_ADMIN_KEY", ADMIN);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("node starts");
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut mcp = Mcp { child, input, output, number: 0 };
        let client = json!({"name": "test", "version": "1"});
        mcp.request("initialize", json!({"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": client}));
        mcp.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        Some(mcp)
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input, "{message}").expect("it reads");
    }

    fn request(&mut self, method: &str, parameters: Value) -> Value {
        self.number += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.number, "method": method, "params": parameters}));
        loop {
            let mut line = String::new();
            let count = self.output.read_line(&mut line).expect("it writes text");
            assert!(count > 0, "it has ended");
            let answer: Value = serde_json::from_str(&line).expect("a line is JSON");
            if answer["id"] == self.number {
                return answer["result"].clone();
            }
        }
    }

    /// What the Admin API has answered.
    #[track_caller]
    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.request("tools/call", json!({"name": tool, "arguments": arguments}));
        let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{tool}: {result}"));
        assert_ne!(result["isError"], true, "{tool}: {text}");
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{tool}: {error}: {text}"))
    }
}

impl Drop for Mcp {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_client_of_others_works() {
    let gateway = weir().start(&file());
    let Some(mut mcp) = Mcp::start(admin_addr(&gateway).port()) else { return };
    let upstream = json!({"type": "roundrobin", "nodes": [{"host": "127.0.0.1", "port": 9, "weight": 1}]});
    let route = json!({"uri": "/r", "upstream": upstream, "plugins": {"mocking": {"response_example": "by mcp"}}});
    let made = mcp.call("create_route", json!({"id": "r", "route": route}));
    assert_eq!(made["key"], "/apisix/routes/r");
    assert_eq!(gateway.get("/r").text(), "by mcp");
    let made = mcp.call("create_route", json!({"route": {"uri": "/posted", "upstream": upstream}}));
    assert!(made["key"].as_str().is_some_and(|key| key.starts_with("/apisix/routes/0000000000000")), "{made}");
    mcp.call("update_route", json!({"id": "r", "route": {"uri": "/moved", "upstream": upstream}}));
    assert_eq!(gateway.get("/moved").text(), "by mcp");
    let listed = mcp.call("get_resource", json!({"type": "routes"}));
    assert_eq!((&listed["total"], listed["list"].as_array().map(Vec::len)), (&json!(2), Some(2)));
    mcp.call("create_upstream", json!({"id": "u", "upstream": upstream}));
    mcp.call("create_service", json!({"id": "s", "service": {"name": "s", "upstream_id": "u"}}));
    mcp.call("create_or_update_consumer", json!({"username": "jack", "plugins": {"key-auth": {"key": "jack-key"}}}));
    // Its tool for credentials sends its own arguments in place of the credential, which APISIX refuses as well.
    let plugins = mcp.call("get_all_plugin_names", json!({}));
    assert!(plugins.as_array().is_some_and(|names| names.contains(&json!("key-auth"))), "{plugins}");
    let schema = mcp.call("get_plugin_schema", json!({"name": "limit-count"}));
    assert_eq!(schema["type"], "object");
    for (kind, id) in [("routes", "r"), ("services", "s"), ("upstreams", "u"), ("consumers", "jack")] {
        assert_eq!(mcp.call("delete_resource", json!({"type": kind, "id": id}))["deleted"], "1", "{kind}");
    }
    assert_eq!(gateway.get("/moved").status, 404);
}
