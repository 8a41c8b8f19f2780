//! gRPC by a client in Go that knows the server by reflection only.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use weir_testkit::{Authority, Gateway, Identity, Program, skipped};

/// The server; dropping it ends its process.
struct Words(Child, String);

impl Words {
    fn start() -> Option<Words> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let python = root.join(".cache/python/bin/python");
        let imports = Command::new(&python).args(["-c", "import grpc_reflection"]).stderr(Stdio::null()).status();
        if !imports.is_ok_and(|status| status.success()) {
            skipped("there is no Python with `grpcio-reflection`");
            return None;
        }
        let mut command = Command::new(python);
        let command = command.arg(root.join("tests/behaviour/words.py")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("Python starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is a pipe")).read_line(&mut line).expect("it says its port");
        let port = line.trim().strip_prefix("port ").expect("it says its port").to_owned();
        Some(Words(child, port))
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What it prints, on one line and without spaces.
fn says(arguments: &[&str]) -> String {
    let mut command = Program::find("grpcurl").expect("it was there just now");
    let output = command.args(["-max-time", "20"]).args(arguments).output().expect("it starts");
    let said = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&said).split_whitespace().collect()
}

fn calls_of_every_kind(listen: &str, addr: impl Fn(&Gateway) -> String, security: &[&str]) {
    if Program::find("grpcurl").is_none() {
        return;
    }
    let Some(words) = Words::start() else { return };
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "{listen}routes: [{{ uri: /*, upstream: {{ scheme: grpc, nodes: {{ \"127.0.0.1:{}\": 1 }} }} }}]\n",
        words.1
    ));
    let authority = gateway.directory().write("authority.pem", &Authority::of_tests().certificate);
    let security: Vec<&str> =
        security.iter().map(|word| if *word == "CA" { authority.to_str().expect("UTF-8") } else { *word }).collect();
    let addr = addr(&gateway);
    let call = |method: &str, messages: &str| {
        says(&[&security[..], &["-d", messages, &addr, &format!("test.Words/{method}")]].concat())
    };
    assert_eq!(call("Say", r#"{"text": "a"}"#), r#"{"text":"a"}"#);
    assert_eq!(call("Repeat", r#"{"text": "a", "times": 2}"#), r#"{"text":"a","times":1}{"text":"a","times":2}"#);
    assert_eq!(call("Join", r#"{"text": "a"} {"text": "b"} {"text": "c"}"#), r#"{"text":"abc"}"#);
    assert_eq!(call("Echo", r#"{"text": "a"} {"text": "b"}"#), r#"{"text":"A"}{"text":"B"}"#);
    let refused = call("Say", "{}");
    assert!(refused.contains("InvalidArgument") && refused.contains("saysomething"), "{refused}");
    let listed = says(&[&security[..], &[&addr, "list"]].concat());
    assert!(listed.contains("test.Words"), "{listed}");
}

#[test]
fn calls_of_every_kind_pass() {
    calls_of_every_kind("", |gateway| gateway.addr().to_string(), &["-plaintext"]);
}

#[test]
fn calls_of_every_kind_pass_over_tls() {
    let Identity { certificate, key } = Authority::of_tests().identity(&["localhost"]);
    let listen = format!(
        "listen: [{{ address: \"127.0.0.1:0\", tls: true }}]\n\
         ssls: [{{ sni: localhost, cert: {certificate:?}, key: {key:?} }}]\n"
    );
    let addr = |gateway: &Gateway| format!("localhost:{}", gateway.tls_addr().port());
    calls_of_every_kind(&listen, addr, &["-cacert", "CA"]);
}
