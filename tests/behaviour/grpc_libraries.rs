//! gRPC of Go, Java and Node against each other: through the gateway every call ends as it does without one. Libraries that
//! are not installed are named on stderr (`skipped: …`); `scripts/setup` installs them.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use weir_testkit::{Gateway, Program, scaled, skipped};

/// A server and a client in one process (tests/clients/README.md).
struct Library {
    name: &'static str,
    child: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
    port: String,
}

/// A file of this repository.
fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn go() -> Option<Command> {
    let client = file(".cache/bin/calls");
    client.exists().then(|| Command::new(client))
}

fn java() -> Option<Command> {
    let jars = file(".cache/java");
    if !jars.exists() {
        return None;
    }
    let mut command = Program::java()?;
    command.arg("-cp").arg(jars.join("*")).arg(file("tests/clients/Calls.java"));
    Some(command)
}

fn node() -> Option<Command> {
    let modules = file(".cache/node/node_modules");
    if !modules.join("@grpc/grpc-js").exists() {
        return None;
    }
    let mut command = Program::find("node")?;
    command.arg(file("tests/clients/calls.cjs")).env("NODE_PATH", modules);
    Some(command)
}

impl Library {
    fn start(name: &'static str, command: Option<Command>) -> Option<Library> {
        let Some(mut command) = command else {
            skipped(&format!("there is no gRPC for {name}"));
            return None;
        };
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it is installed");
        let orders = child.stdin.take().expect("it is a pipe");
        let mut said = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
        let line = said.next().expect("it says its port").expect("it says text");
        let port = line.strip_prefix("port ").expect("it says its port").to_owned();
        Some(Library { name, child, orders, said, port })
    }

    /// All that are installed.
    fn all() -> Vec<Library> {
        let all = [("Go", go()), ("Java", java()), ("Node", node())];
        all.into_iter().filter_map(|(name, command)| Library::start(name, command)).collect()
    }

    fn ask(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").expect("it listens");
        self.said.next().expect("it answers").expect("it says text")
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What each client says of each server, directly and through the gateway.
fn of_all_pairs(order: impl Fn(&str) -> String) -> Vec<(String, String, String)> {
    let mut all = Library::all();
    let servers: Vec<_> = all.iter().map(|library| (library.name, format!("127.0.0.1:{}", library.port))).collect();
    let mut said = Vec::new();
    for (server, addr) in servers {
        let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir"))
            .start(&format!("routes: [{{ uri: /*, upstream: {{ scheme: grpc, nodes: {{ \"{addr}\": 1 }} }} }}]\n"));
        for client in &mut all {
            let direct = client.ask(&order(&addr));
            let through = client.ask(&order(&gateway.addr().to_string()));
            said.push((format!("{} to {server}", client.name), direct, through));
        }
    }
    said
}

#[test]
fn calls_of_every_kind_end_as_without_a_gateway() {
    for (pair, direct, through) in of_all_pairs(|addr| format!("calls {addr}")) {
        assert_eq!((&*direct, &*through), ("ok", "ok"), "{pair}");
    }
}

#[test]
fn deadlines_and_cancels_end_as_without_a_gateway() {
    let count = scaled(20, 1_000);
    for (pair, direct, through) in of_all_pairs(|addr| format!("repeat {addr} {count}")) {
        assert_eq!(direct, through, "{pair}");
        let all = format!("deadlines {count}, of streams {count}, cancels {count}, seen {count}");
        assert_eq!(through, all, "{pair}");
    }
}
