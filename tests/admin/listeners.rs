//! Listeners that are resources: a node gets a port by the Admin API, if its file allows that.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use serde_json::json;
use weir_testkit::{Client, DEADLINE, Gateway, Signal, eventually, eventually_some};

use crate::api::{ADMIN, Api, EDITOR, admin_addr, file, json as content};
use crate::weir;

/// Ports that no other test gets.
fn ports() -> &'static [u16; 10] {
    static PORTS: OnceLock<[u16; 10]> = OnceLock::new();
    PORTS.get_or_init(|| [(); 10].map(|()| weir_testkit::free_port()))
}

/// The next one of them that is free.
fn free_port() -> u16 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    eventually_some("a port is free", DEADLINE, || {
        let port = ports()[NEXT.fetch_add(1, Relaxed) % ports().len()];
        TcpListener::bind(loopback(port)).is_ok().then_some(port)
    })
}

/// A node whose resources may listen on a range of ports of loopback, with all of these.
fn allowing() -> String {
    let (first, last) = (ports().iter().min().expect("ten"), ports().iter().max().expect("ten"));
    format!("{}resource_listeners: [\"127.0.0.1:{first}-{last}\"]\n", file())
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn listener(port: u16) -> String {
    json!({"address": format!("127.0.0.1:{port}")}).to_string()
}

/// A route on everything, whose answer is the port.
fn route(api: &mut Api, port: u16) {
    let vars = json!([["server_port", "==", port.to_string()]]);
    let plugins = json!({"mocking": {"response_example": port.to_string()}});
    api.put(&format!("routes/p{port}"), &json!({"uri": "/*", "vars": vars, "plugins": plugins}).to_string());
}

fn asked(port: u16) -> Option<String> {
    Client::try_connect(loopback(port)).ok()?.get("/a").ok().map(|answer| answer.text())
}

#[track_caller]
fn wait_gone(port: u16) {
    eventually("the port is closed", DEADLINE, || TcpStream::connect(loopback(port)).is_err());
}

#[test]
fn listeners_come_and_go_by_the_admin_api() {
    let gateway = weir().start(&allowing());
    let mut api = Api::of(&gateway);
    let (one, two) = (free_port(), free_port());
    route(&mut api, one);
    route(&mut api, two);
    // It listens when the answer comes.
    api.put("listeners/a", &listener(one));
    assert_eq!(asked(one), Some(one.to_string()));
    api.put("listeners/a", &listener(two));
    assert_eq!(asked(two), Some(two.to_string()));
    wait_gone(one);
    assert_eq!(api.get("listeners/a")["value"]["address"], format!("127.0.0.1:{two}"));
    assert_eq!(api.ask("PATCH", "listeners/a", "", "{\"proxy_protocol\": true}").status, 400, "no sender is trusted");
    assert_eq!(asked(two), Some(two.to_string()));
    assert_eq!(api.ask("DELETE", "listeners/a", "", "").status, 200);
    wait_gone(two);
}

#[test]
fn listeners_that_the_file_does_not_allow_are_refused() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let refused = |api: &mut Api, body: &str, why: &str| {
        let answer = api.ask("PUT", "listeners/a", "", body);
        let told = answer.text();
        assert!(answer.status == 400 && told.contains(why), "{} {told}", answer.status);
    };
    let port = free_port();
    refused(&mut api, &listener(port), "`resource_listeners`");
    gateway.rewrite(&allowing());
    refused(&mut api, &listener(80), "`resource_listeners`");
    refused(&mut api, &json!({"address": format!(":{port}")}).to_string(), "`resource_listeners`");
    let taken = TcpListener::bind(loopback(port)).expect("it was free");
    refused(&mut api, &listener(port), &format!("cannot listen on 127.0.0.1:{port}: Address already in use"));
    assert_eq!(api.ask("GET", "listeners/a", "", "").status, 404, "nothing is kept of it");
    drop(taken);
    api.put("listeners/a", &listener(port));
    let twice = api.ask("PUT", "listeners/b", "", &listener(port));
    assert!(twice.status == 400 && twice.text().contains("is listened on already"), "{}", twice.text());

    let mut editor = Api::with_key(admin_addr(&gateway), EDITOR);
    assert_eq!(editor.ask("PUT", "listeners/c", "", &listener(free_port())).status, 403);
    assert_eq!(editor.ask("DELETE", "listeners/a", "", "").status, 403);

    // What the file does not allow any more is set aside.
    gateway.rewrite(&file());
    wait_gone(port);
    let kept = Api::with_key(admin_addr(&gateway), ADMIN).ask("GET", "listeners/a", "", "");
    assert_eq!(content(&kept)["value"]["address"], format!("127.0.0.1:{port}"));
}

#[test]
fn listeners_of_a_store_are_there_after_a_restart_and_an_upgrade() {
    let directory = weir_testkit::TempDir::new();
    let yaml = format!("{}data_dir: {}\n", allowing(), directory.path().display());
    let (one, two) = (free_port(), free_port());
    let mut gateway = weir().start(&yaml);
    let mut api = Api::of(&gateway);
    for port in [one, two] {
        route(&mut api, port);
        api.put(&format!("listeners/p{port}"), &listener(port));
    }
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(DEADLINE).success());
    // One of the two is taken meanwhile: the node starts without it.
    let taken = TcpListener::bind(loopback(two)).expect("no process listens there");
    let gateway: Gateway = weir().start(&yaml);
    assert_eq!(asked(one), Some(one.to_string()));
    let said = format!("cannot listen on 127.0.0.1:{two}: Address already in use");
    gateway.wait_stderr("what it does without", |line| line.contains(&said));
    drop(taken);
    let before = gateway.pid();
    gateway.signal(Signal::USR2);
    gateway.wait_stderr("that another serves", |line| line.ends_with(&format!("; process {before} drains")));
    for port in [one, two] {
        eventually("the new process listens", DEADLINE, || asked(port) == Some(port.to_string()));
    }
}
