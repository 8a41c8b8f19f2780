//! The recipe for a web application firewall: the service in deploy/recipes/crs refuses attacks, and lets plain requests pass.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use weir_testkit::{Answer, DEADLINE, Gateway, Origin, TempDir, eventually, runs_for_minutes, skipped};

/// The service, which is killed with this.
pub(crate) struct Firewall {
    child: Child,
    pub address: String,
}

impl Firewall {
    /// Builds the service and starts it. `None` where there is no Go, or not the modules.
    fn start() -> Option<Firewall> {
        Firewall::start_with(&[])
    }

    /// The same with further arguments.
    pub(crate) fn start_with(more: &[&str]) -> Option<Firewall> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let binary = root.join(".cache/bin/crs");
        let build =
            Command::new("go").current_dir(root.join("deploy/recipes/crs")).args(["build", "-o"]).arg(&binary).status();
        if !build.is_ok_and(|status| status.success()) {
            skipped("Go cannot build deploy/recipes/crs");
            return None;
        }
        let mut command = Command::new(binary);
        command.args(["-listen", "127.0.0.1:0"]).args(more).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let said = BufReader::new(child.stdout.take().expect("it is a pipe")).lines().next();
        let said = said.expect("it says its address").expect("it says text");
        let address = said.strip_prefix("listening on ").expect("it says its address").to_owned();
        Some(Firewall { child, address })
    }
}

impl Drop for Firewall {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text<'a>(request: &'a Value, key: &str) -> &'a str {
    request[key].as_str().expect("text")
}

fn bytes_of(request: &Value) -> String {
    let mut head = format!("{} HTTP/1.1\r\nHost: shop.example\r\nAccept: */*\r\n", text(request, "line"));
    let own = request["fields"].as_object().expect("fields");
    if !own.contains_key("User-Agent") {
        head += "User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\n";
    }
    for (name, value) in own {
        head += &format!("{name}: {}\r\n", value.as_str().expect("text"));
    }
    let body = text(request, "body");
    if !body.is_empty() {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    format!("{head}\r\n{body}")
}

/// A gateway that asks the service about each request; each response names the rules that matched.
pub(crate) fn guarded(firewall: &Firewall, origin: &Origin) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "enable_access_log: {{ path: access.log, format: \"$status $ext_proc_rules\" }}
routes:
  - uri: /*
    plugins:
      ext-proc:
        grpc_service: {{ uri: \"http://{}\", timeout: 60s }}
        message_timeout: 20000
        processing_mode: {{ request_body_mode: BUFFERED, response_header_mode: SKIP }}
        metadata_options: {{ receiving_namespaces: {{ untyped: [crs] }} }}
      response-rewrite: {{ headers: {{ set: {{ X-Rules: \"$ext_proc_rules \" }} }} }}
    upstream: {{ nodes: {{ \"{}\": 1 }} }}
",
        firewall.address,
        origin.addr()
    ))
}

#[test]
fn crs_recipe_refuses_attacks_and_lets_plain_requests_pass() {
    if !runs_for_minutes("it builds a firewall of Go modules") {
        return;
    }
    let Some(firewall) = Firewall::start() else { return };
    let origin = Origin::serving(|_| Answer::ok(""));
    let gateway = guarded(&firewall, &origin);
    let requests: Vec<Value> =
        include_str!("crs_requests.jsonl").lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let mut attacks = 0;
    for request in &requests {
        let is_attack = text(request, "kind") == "attack";
        attacks += usize::from(is_attack);
        for mut client in [gateway.client(), gateway.client().by_http2()] {
            let answer = client.ask(bytes_of(request)).expect("an answer");
            let refusal = request.get("status").map_or(403, |status| status.as_u64().expect("a number") as u16);
            assert_eq!(answer.status, if is_attack { refusal } else { 200 }, "{}", text(request, "about"));
        }
    }
    assert_eq!((attacks, requests.len()), (24, 44));
    assert_eq!(origin.requests().len(), 40);
    let written = || std::fs::read_to_string(gateway.directory().path().join("access.log")).unwrap_or_default();
    eventually("all are written", DEADLINE, || written().lines().count() == 88);
    // The rules of a refusal end with the one that compares the score: 949110.
    let explained = written().lines().filter(|line| line.starts_with("403 9") && line.ends_with(" 949110")).count();
    assert_eq!(explained, 42, "{}", written());
    let unread = written().lines().filter(|line| ["400 101", "400 102"].contains(line)).count();
    assert_eq!(unread, 6, "{}", written());
}

#[test]
fn crs_recipe_makes_exceptions_as_its_files_say() {
    if !runs_for_minutes("it builds a firewall of Go modules") {
        return;
    }
    let place = TempDir::new();
    let for_one = r#"SecRule REQUEST_FILENAME "@streq /a.env" "id:1000,phase:1,pass,nolog,ctl:ruleRemoveById=930130""#;
    let setup = place.write("setup.conf", for_one).to_string_lossy().into_owned();
    let exclusions = place.write("exclusions.conf", "SecRuleRemoveById 930130\n").to_string_lossy().into_owned();
    let origin = Origin::serving(|_| Answer::ok(""));
    let statuses = |arguments: &[&str]| {
        let firewall = Firewall::start_with(arguments)?;
        let gateway = guarded(&firewall, &origin);
        let attack = "/b.env?id=7%27%20OR%20%271%27%3D%271";
        Some(["/a.env", "/b.env", attack].map(|target| {
            let request = serde_json::json!({"line": format!("GET {target}"), "fields": {}, "body": ""});
            gateway.client().ask(bytes_of(&request)).expect("an answer").status
        }))
    };
    let Some(without) = statuses(&[]) else { return };
    assert_eq!(without, [403, 403, 403]);
    assert_eq!(statuses(&["-setup", &setup]), Some([200, 403, 403]));
    assert_eq!(statuses(&["-setup", &exclusions]), Some([403, 403, 403]));
    assert_eq!(statuses(&["-exclusions", &exclusions]), Some([200, 200, 403]));
}
