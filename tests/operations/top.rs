//! `weir top`: a node's figures in a terminal.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;

use weir_testkit::{Answer, DEADLINE, EndOfAttack, Gateway, Origin, eventually, eventually_some, free_port};

use crate::weir;

fn node(origin: &Origin) -> Gateway {
    weir().start(&format!(
        "upstreams:
  - {{ id: orders, nodes: {{ \"{}\": 1 }} }}
  - {{ id: dead, nodes: {{ \"127.0.0.1:{}\": 1 }}, checks: {{ passive: {{ unhealthy: {{ tcp_failures: 1, interval: 1h }} }} }} }}
routes:
  - {{ id: orders-route, uri: /orders, upstream_id: orders, plugins: {{ cors: {{}} }} }}
  - {{ id: dead-route, uri: /dead, upstream_id: dead }}
",
        origin.addr(),
        free_port(),
    ))
}

/// Asks again and again while something else is done.
fn under_load<T>(gateway: &Gateway, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = gateway.client();
            while !is_over.load(Relaxed) {
                assert_eq!(client.get("/orders").expect("an answer").status, 200);
            }
        });
        // Also when a check fails: the scope waits for the client.
        let _end = EndOfAttack(&is_over);
        work()
    })
}

/// `weir top` in a terminal of its own, which ends with it.
pub(crate) struct Terminal(Child);

impl Terminal {
    /// Shows a node in so many columns.
    #[track_caller]
    pub(crate) fn show(gateway: &Gateway, columns: u16) -> Terminal {
        // The size of a pseudo-terminal is that of the one around it, and here there is none.
        let (binary, status) = (env!("CARGO_BIN_EXE_weir"), gateway.status_addr());
        Terminal::run(&format!("stty rows 20 cols {columns}; exec {binary} top --status {status}"))
    }

    fn run(command: &str) -> Terminal {
        let child = Command::new("script")
            .args(["--quiet", "--return", "--command", command, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script is part of every Debian");
        Terminal(child)
    }

    pub(crate) fn screen(&mut self) -> Screen {
        Screen::of(self.0.stdout.take().expect("it is piped"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a program writes, collected by a thread.
pub(crate) struct Screen(Arc<Mutex<Vec<u8>>>);

impl Screen {
    fn of(mut output: impl Read + Send + 'static) -> Screen {
        let collected = Arc::new(Mutex::new(Vec::new()));
        let screen = Screen(Arc::clone(&collected));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                collected.lock().expect("no test panics with it").extend_from_slice(&buffer[..count]);
            }
        });
        screen
    }

    /// Waits until this was written since the last wait.
    pub(crate) fn wait(&self, text: &str) {
        eventually(text, DEADLINE, || {
            let mut collected = self.0.lock().expect("no test panics with it");
            let is_there = String::from_utf8_lossy(&collected).contains(text);
            if is_there {
                collected.clear();
            }
            is_there
        });
    }
}

#[test]
fn one_interval_is_printed_as_text() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let gateway = node(&origin);
    assert_eq!(gateway.get("/dead").status, 502);
    let status = gateway.status_addr().to_string();
    let once = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let output = command.args(["top", "--once", "--status", &status]).output().expect("it runs");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    // In one interval everything else may stand still.
    let has_requests = |line: &str| line.starts_with("orders-route") && line.split_whitespace().nth(1) != Some("0");
    let text = under_load(&gateway, || {
        eventually_some("an interval with requests", DEADLINE, || {
            Some(once()).filter(|text| text.lines().any(has_requests))
        })
    });
    let line = |begin: &str| {
        let line = text.lines().find(|line| line.starts_with(begin));
        line.unwrap_or_else(|| panic!("no line begins with `{begin}`:\n{text}")).split_whitespace().collect::<Vec<_>>()
    };
    assert!(text.contains("1 of 2 endpoints down"), "{text}");
    let orders = line("orders-route");
    assert!(orders[3] == "0" && orders[4] != "-", "{text}");
    assert_eq!(line("dead-route")[1], "0", "{text}");
    assert_eq!(line("orders ")[2], "up", "{text}");
    assert_eq!(line("dead ")[2], "down", "{text}");
}

#[test]
fn a_terminal_takes_keys_and_is_left_as_it_was() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let gateway = node(&origin);
    gateway.get("/orders");
    let mut terminal = Terminal::show(&gateway, 60);
    let mut keys = terminal.0.stdin.take().expect("it is piped");
    let screen = terminal.screen();
    screen.wait("orders-route");
    for (key, shown) in [
        ("e", "Endpoints"),
        ("p", "Plugins"),
        ("r/ord\r", "Routes, filter: ord"),
        ("\r", "Plugins, filter: orders-route"),
    ] {
        keys.write_all(key.as_bytes()).expect("it reads");
        screen.wait(shown);
    }
    keys.write_all(b"q").expect("it reads");
    // The other page of the terminal is left.
    screen.wait("\u{1b}[?1049l");
    assert!(terminal.0.wait().expect("it ends").success());
}

#[test]
fn it_ends_when_its_terminal_is_closed() {
    let gateway = node(&Origin::serving(|_| Answer::ok("ok")));
    let (binary, status) = (env!("CARGO_BIN_EXE_weir"), gateway.status_addr());
    let file = gateway.directory().join("pid");
    // As under `nohup`: the signal that tells of the end ends nothing.
    let command = format!("trap '' HUP; echo $$ > {}; exec {binary} top --status {status}", file.display());
    let mut terminal = Terminal::run(&command);
    terminal.screen().wait("Routes");
    let pid = std::fs::read_to_string(&file).expect("it was written before");
    let process = format!("/proc/{}", pid.trim());
    assert!(Path::new(&process).exists());
    drop(terminal);
    eventually("it has ended", DEADLINE, || !Path::new(&process).exists());
}

#[test]
fn a_node_that_is_not_there_is_named() {
    let address = format!("127.0.0.1:{}", free_port());
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(["top", "--once", "--status", &address]).output();
    let output = output.expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5));
    assert!(told.contains(&address) && told.contains("`--status` is the setting `status`"), "{told}");
}
