//! The Admin API on a Unix socket: its owner needs no key, and nobody else can connect.

use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};

use weir_testkit::{DEADLINE, Gateway, Signal, TempDir};

use crate::api::ADMIN;
use crate::weir;

const ROUTE: &str = "uri: /r\nplugins: { mocking: { response_example: one } }\n";

fn command(arguments: &[&str], socket: &Path, key: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).env("WEIR_ADMIN", format!("unix:{}", socket.display())).env_remove("WEIR_ADMIN_KEY");
    if let Some(key) = key {
        command.env("WEIR_ADMIN_KEY", key);
    }
    command.output().expect("the binary starts")
}

#[track_caller]
fn done(arguments: &[&str], socket: &Path, key: Option<&str>) -> String {
    let output = command(arguments, socket, key);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The whole answer to a request, as it comes.
fn ask(socket: &Path, head: &str) -> String {
    let mut stream = UnixStream::connect(socket).expect("a connection");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).expect("it is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

fn started(gateway: &Gateway) {
    gateway.wait_stderr("where its Admin API is", |line| line.starts_with("weir: admin on unix:"));
}

#[test]
fn a_command_without_a_key_says_how_to_give_one() {
    let place = TempDir::new();
    let socket = place.path().join("admin.sock");
    let keys = format!("keys: [{{ name: ops, key: {ADMIN} }}]");
    let gateway = weir().start(&format!("admin: {{ listen: 'unix:{}', {keys} }}\n", socket.display()));
    started(&gateway);
    for key in [None, Some(""), Some("0123456789abcdefwrong")] {
        let output = command(&["get", "routes"], &socket, key);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(5), "{said}");
        assert!(said.contains("; set WEIR_ADMIN_KEY, or give a file with `--key-file`"), "{key:?}: {said}");
    }
    let mut unset = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = unset.args(["get", "routes"]).env("WEIR_ADMIN_KEY", "").output().expect("the binary starts");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("no Admin API key: set WEIR_ADMIN_KEY"), "{said}");
}

#[test]
fn the_owner_of_the_socket_needs_no_key() {
    let place = TempDir::new();
    let socket = place.path().join("admin.sock");
    let gateway = weir().start(&format!("admin: {{ listen: 'unix:{}' }}\n", socket.display()));
    started(&gateway);
    let file = std::fs::symlink_metadata(&socket).expect("a file");
    assert!(file.file_type().is_socket());
    assert_eq!(file.permissions().mode() & 0o777, 0o600, "others cannot connect");
    assert!(!gateway.stderr().contains("the key of the Admin API"), "none is made: {}", gateway.stderr());
    let route = place.write("route.yaml", ROUTE);
    done(&["put", "routes/r", "-f", route.to_str().expect("a path")], &socket, None);
    assert_eq!(gateway.get("/r").text(), "one");
    let history = done(&["history"], &socket, None);
    assert!(history.contains("created routes/r") && history.contains("socket"), "{history}");
    // No browser gets here, so that no name is another's.
    let answer = ask(&socket, "GET /apisix/admin/routes HTTP/1.1\r\nHost: any.example\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"total\":1"), "{answer}");
}

#[test]
fn a_key_that_is_configured_is_asked_for_on_a_socket_too() {
    let place = TempDir::new();
    let socket = place.path().join("admin.sock");
    let keys = format!("keys: [{{ name: ann, key: {ADMIN}, role: admin }}]");
    let gateway = weir().start(&format!("admin: {{ listen: 'unix:{}', {keys} }}\n", socket.display()));
    started(&gateway);
    let answer = ask(&socket, "GET /apisix/admin/routes HTTP/1.1\r\nHost: localhost\r\n");
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    assert!(!command(&["get", "routes"], &socket, None).status.success());
    assert!(done(&["get", "routes"], &socket, Some(ADMIN)).contains("\"total\": 0"));
}

#[test]
fn only_what_nobody_uses_is_replaced() {
    let place = TempDir::new();
    let socket = place.path().join("admin.sock");
    let file = format!("admin: {{ listen: 'unix:{}' }}\n", socket.display());
    let refused = || {
        let mut gateway = weir().spawn(&file);
        assert!(!gateway.wait_exit(DEADLINE).success());
        gateway.stderr()
    };
    std::fs::write(&socket, "notes").expect("a file");
    let told = refused();
    assert!(told.contains("the file exists and is not a socket"), "{told}");
    assert_eq!(std::fs::read_to_string(&socket).expect("it is there still"), "notes");
    std::fs::remove_file(&socket).expect("it is removed");

    let mut used = weir().start(&file);
    started(&used);
    let told = refused();
    assert!(told.contains("another process listens there"), "{told}");
    done(&["get", "routes"], &socket, None);
    used.signal(Signal::KILL);
    used.wait_exit(DEADLINE);

    // What is left is the file of a process that has ended.
    let left = std::fs::symlink_metadata(&socket).expect("a file").ino();
    let mut gateway = weir().start(&file);
    started(&gateway);
    assert_ne!(std::fs::symlink_metadata(&socket).expect("a file").ino(), left);
    done(&["get", "routes"], &socket, None);
    gateway.signal(Signal::TERM);
    gateway.wait_exit(DEADLINE);
    assert!(!socket.exists(), "a process that ends takes its socket with it");
}

#[test]
fn another_binary_takes_the_socket_over() {
    let place = TempDir::new();
    let socket = place.path().join("admin.sock");
    let gateway = weir().start(&format!("admin: {{ listen: 'unix:{}' }}\n", socket.display()));
    started(&gateway);
    let (before, route) = (gateway.pid(), place.write("route.yaml", ROUTE));
    let put = ["put", "routes/r", "-f", route.to_str().expect("a path")];
    done(&put, &socket, None);
    gateway.signal(Signal::USR2);
    gateway.wait_stderr("that another serves", |line| line.ends_with(&format!("; process {before} drains")));
    done(&put, &socket, None);
    assert!(done(&["history"], &socket, None).contains("changed routes/r"));
    assert_eq!(gateway.get("/r").text(), "one");
}

#[test]
fn a_relative_path_begins_where_the_file_is() {
    let gateway = weir().start("admin: { listen: 'unix:own.sock' }\n");
    started(&gateway);
    assert!(done(&["get", "routes"], &gateway.directory().join("own.sock"), None).contains("\"total\": 0"));
}
