//! Refusals of requests with much content, as other people's clients see them: the status reaches each of them, though they
//! are still sending. A client that is not installed is named on stderr (`skipped: …`); `scripts/setup` installs them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use weir_testkit::{Authority, Gateway, Identity, Origin, Program, Reading, is_full, skipped};

/// Each path answers with the status that is its name, by the plugin that would do so in earnest; `/upstream` is refused with
/// 403 by an upstream that reads nothing but the head.
const STATUSES: [(&str, u16); 6] =
    [("/401", 401), ("/403", 403), ("/413", 413), ("/429", 429), ("/503", 503), ("/upstream", 403)];

struct Refusing {
    gateway: Gateway,
    authority: PathBuf,
    _origins: [Origin; 2],
}

impl Refusing {
    fn start() -> Refusing {
        // One that reads all there is, so that it answers none of those that are refused.
        let origin = Origin::echo(Reading::Strict);
        let refusing = Origin::scripted(Reading::Strict, |connection| {
            if connection.head().is_ok() {
                // Without this field the next POST may take the connection before its end has arrived, and be a 502.
                let _ = connection.send("HTTP/1.1 403 X\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno");
                connection.finish_sending();
                connection.wait_gone();
            }
        });
        let Identity { certificate, key } = Authority::of_tests().identity(&["localhost"]);
        let limit = |status| {
            format!("limit-count: {{ count: 1, time_window: 86400, key: remote_addr, rejected_code: {status} }}")
        };
        let (limit_429, limit_503) = (limit(429), limit(503));
        let (addr, refusing_addr) = (origin.addr(), refusing.addr());
        let yaml = format!(
            "listen: [{{ address: \"127.0.0.1:0\", tls: true }}]
ssls: [{{ sni: localhost, cert: {certificate:?}, key: {key:?} }}]
upstreams: [{{ id: any, nodes: {{ \"{addr}\": 1 }} }}]
routes:
  - {{ id: '401', uri: /401, upstream_id: any, plugins: {{ key-auth: {{}} }} }}
  - {{ id: '403', uri: /403, upstream_id: any, plugins: {{ ip-restriction: {{ blacklist: [127.0.0.1] }} }} }}
  - {{ id: '413', uri: /413, upstream_id: any, plugins: {{ client-control: {{ max_body_size: 1024 }} }} }}
  - {{ id: '429', uri: /429, upstream_id: any, plugins: {{ {limit_429} }} }}
  - {{ id: '503', uri: /503, upstream_id: any, plugins: {{ {limit_503} }} }}
  - {{ id: upstream, uri: /upstream, upstream: {{ nodes: {{ \"{refusing_addr}\": 1 }} }} }}
"
        );
        let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&yaml);
        let authority = gateway.directory().write("ca.pem", &Authority::of_tests().certificate);
        let refusing = Refusing { gateway, authority, _origins: [origin, refusing] };
        let first = ["/429", "/503"].map(|path| refusing.curl(path, refusing.content(1)));
        drop(first); // the one request that is let through
        refusing
    }

    fn base(&self) -> String {
        format!("https://localhost:{}", self.gateway.tls_addr().port())
    }

    /// A file of so many bytes.
    fn content(&self, size: usize) -> PathBuf {
        let path = self.gateway.directory().join(&format!("content-{size}"));
        if !path.exists() {
            std::fs::write(&path, vec![b'x'; size]).expect("a directory of its own");
        }
        path
    }

    fn curl(&self, path: &str, content: PathBuf) -> Output {
        Command::new("curl")
            .args(["--silent", "--show-error", "--max-time", "60", "--http2", "--output", "/dev/null"])
            .args(["--write-out", "%{http_code} %{http_version}", "--cacert"])
            .arg(&self.authority)
            .arg("--upload-file")
            .arg(content)
            .args(["--request", "POST"])
            .arg(self.base() + path)
            .output()
            .expect("curl has told its version")
    }

    /// Asks with a client that reads lines `PATH BYTES` and says a status for each; all have to be right.
    fn all_reach(&self, client: &mut Command) {
        let asked = requests();
        let mut child = client
            .arg(self.base())
            .arg(&self.authority)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it is installed");
        let mut lines = child.stdin.take().expect("it is a pipe");
        let text: String = asked.iter().map(|(path, _, size)| format!("{path} {size}\n")).collect();
        let writer = std::thread::spawn(move || lines.write_all(text.as_bytes()));
        let output = child.wait_with_output().expect("it ends");
        writer.join().expect("no panic").expect("it takes all lines");
        let said = String::from_utf8_lossy(&output.stdout);
        let said: Vec<&str> = said.lines().collect();
        assert_eq!(said.len(), asked.len(), "{}", String::from_utf8_lossy(&output.stderr));
        let wrong: Vec<_> = said.iter().zip(&asked).filter(|(said, asked)| **said != asked.1.to_string()).collect();
        assert!(wrong.is_empty(), "{} of {} are wrong: {:?}", wrong.len(), said.len(), &wrong[..wrong.len().min(5)]);
    }
}

/// Sizes, and how often each is refused with each status.
fn rounds() -> [(usize, usize); 4] {
    match is_full() {
        true => [(64 << 10, 100), (300 << 10, 100), (3 << 20, 100), (100 << 20, 100)],
        false => [(64 << 10, 3), (300 << 10, 3), (3 << 20, 2), (100 << 20, 0)],
    }
}

/// What is asked: path, status, size. However few there are, one is of 100 MB.
fn requests() -> Vec<(&'static str, u16, usize)> {
    let of = |(size, times): (usize, usize)| {
        (0..times).flat_map(move |_| STATUSES.map(|(path, status)| (path, status, size)))
    };
    rounds().into_iter().flat_map(of).chain([("/413", 413, 100 << 20)]).collect()
}

fn is_installed(program: &str, ask: &str) -> bool {
    let found = Command::new(program).arg(ask).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        skipped(&format!("there is no {program}"));
    }
    found
}

/// A file of this repository.
fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

#[test]
fn refusals_reach_curl() {
    if !is_installed("curl", "--version") {
        return;
    }
    let refusing = Refusing::start();
    for (path, status, size) in requests() {
        let output = refusing.curl(path, refusing.content(size));
        let said = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((&*said, &*error), (&*format!("{status} 2"), ""), "{path} {size}");
    }
}

#[test]
fn refusals_reach_nghttp() {
    let refusing = Refusing::start();
    for (path, status, size) in requests() {
        let Some(mut command) = Program::find("nghttp") else { return };
        command.args(["--null-out", "--stat", "--data"]).arg(refusing.content(size)).arg(refusing.base() + path);
        let output = command.output().expect("it is installed");
        // A line of its table: number, three times, status, size of the answer, path.
        let said = String::from_utf8_lossy(&output.stdout);
        let row = said.lines().find(|line| line.ends_with(path)).unwrap_or_default();
        let code = row.split_whitespace().rev().nth(2);
        assert_eq!(code, Some(&*status.to_string()), "{path} {size}: {said}");
    }
}

#[test]
fn refusals_reach_h2load() {
    let refusing = Refusing::start();
    for (size, times) in rounds().map(|(size, times)| (size, times.max(1))) {
        for (path, status) in STATUSES {
            let Some(mut command) = Program::find("h2load") else { return };
            let streams = if size > 3 << 20 { "1" } else { "4" };
            command.args(["--clients", "1", "--requests", &times.to_string(), "--max-concurrent-streams", streams]);
            command.arg("--data").arg(refusing.content(size)).arg(refusing.base() + path);
            let output = command.output().expect("it is installed");
            let said = String::from_utf8_lossy(&output.stdout);
            let (of_4xx, of_5xx) = if status < 500 { (times, 0) } else { (0, times) };
            let wanted = format!("status codes: 0 2xx, 0 3xx, {of_4xx} 4xx, {of_5xx} 5xx");
            assert!(said.contains(&wanted), "{path} {size}: {wanted}\n{said}");
            assert!(said.contains(&format!("{times} done")) && said.contains(" 0 errored"), "{path} {size}: {said}");
        }
    }
}

#[test]
fn refusals_reach_httpx() {
    let python = file(".cache/python/bin/python");
    let imports = Command::new(&python).args(["-c", "import httpx, h2"]).stderr(Stdio::null()).status();
    if !imports.is_ok_and(|status| status.success()) {
        return skipped("there is no Python with `httpx`");
    }
    Refusing::start().all_reach(Command::new(python).arg(file("tests/clients/refused.py")));
}

#[test]
fn refusals_reach_node() {
    let Some(mut node) = Program::find("node") else { return };
    Refusing::start().all_reach(node.arg(file("tests/clients/refused.cjs")));
}

#[test]
fn refusals_reach_go() {
    let client = file(".cache/bin/refused");
    if !client.exists() {
        return skipped("there is no client in Go");
    }
    Refusing::start().all_reach(&mut Command::new(client));
}

#[test]
fn refusals_reach_java() {
    if !is_installed("javac", "-version") {
        return;
    }
    Refusing::start().all_reach(Command::new("java").arg(file("tests/clients/Refused.java")));
}
