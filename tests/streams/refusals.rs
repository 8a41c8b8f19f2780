//! What a configuration cannot mean is refused when it is read, and a client that may not connect is closed.

use std::process::Command;

use weir_testkit::TempDir;

use crate::peers::{Endpoint, connect, expect, rest, upstream};
use crate::start;

/// What `weir check` says about a file.
fn check(text: &str) -> String {
    let directory = TempDir::new();
    let file = directory.write("weir.yaml", text);
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("check").arg(&file).output().expect("it runs");
    assert!(!output.status.success(), "nothing is wrong with it:\n{text}");
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

fn check_route(route: &str) -> String {
    check(&format!("stream_routes: [{{ id: s, {route} }}]\n"))
}

const UPSTREAM: &str = "upstream: { scheme: tcp, nodes: { \"127.0.0.1:1\": 1 } }";

#[test]
fn a_protocol_of_xrpc_is_refused_with_the_reason() {
    let said = check_route(&format!("protocol: {{ name: redis }}, {UPSTREAM}"));
    assert!(said.contains("protocol") && said.contains("the bytes are carried as they are"), "{said}");
}

#[test]
fn a_plugin_for_requests_is_refused_with_those_that_work() {
    let said = check_route(&format!("plugins: {{ key-auth: {{}} }}, {UPSTREAM}"));
    assert!(said.contains("`key-auth` works on HTTP requests"), "{said}");
    assert!(said.contains("`ip-restriction`, ") && said.contains("`traffic-split`"), "{said}");
}

#[test]
fn a_plugin_for_requests_in_the_service_is_refused_too() {
    let said = check(&format!(
        "services: [{{ id: v, plugins: {{ key-auth: {{}} }}, {UPSTREAM} }}]\nstream_routes: [{{ id: s, service_id: v }}]\n"
    ));
    assert!(said.contains("its service `v` has the plugin `key-auth`"), "{said}");
}

#[test]
fn a_plugin_for_streams_is_refused_where_requests_pass() {
    let plugins = "plugins: { mqtt-proxy: { protocol_level: 4 } }";
    let nodes = "upstream: { nodes: { \"127.0.0.1:1\": 1 } }";
    for text in [
        format!("routes: [{{ uri: /, {plugins}, {nodes} }}]\n"),
        format!("services: [{{ id: v, {plugins}, {nodes} }}]\nroutes: [{{ uri: /, service_id: v }}]\n"),
        format!("plugin_configs: [{{ id: p, {plugins} }}]\nroutes: [{{ uri: /, plugin_config_id: p, {nodes} }}]\n"),
        format!("global_rules: [{{ id: g, {plugins} }}]\n"),
        format!("consumers: [{{ username: a, {plugins} }}]\n"),
        format!("consumer_groups: [{{ id: g, {plugins} }}]\n"),
    ] {
        let said = check(&text);
        assert!(said.contains("`mqtt-proxy` works on streams, and not on requests"), "{text}{said}");
    }
}

#[test]
fn an_upstream_has_a_scheme_that_fits() {
    let said = check_route("upstream: { scheme: grpc, nodes: { \"127.0.0.1:1\": 1 } }");
    assert!(said.contains("`scheme: tcp`"), "{said}");
    let said = check(&format!("routes: [{{ uri: /, {UPSTREAM} }}]\n"));
    assert!(said.contains("is for stream routes"), "{said}");
    let said = check_route("upstream: { scheme: tcp, nodes: { \"127.0.0.1\": 1 } }");
    assert!(said.contains("has no port"), "{said}");
}

#[test]
fn a_route_says_where_connections_go() {
    assert!(check_route("server_port: 9100").contains("add `upstream`, `upstream_id` or `service_id`"));
    let both = check_route(&format!("sni: a.example, snis: [b.example], {UPSTREAM}"));
    assert!(both.contains("sni"), "{both}");
}

#[test]
fn a_listener_for_streams_has_no_http() {
    let said = check("listen: [{ address: \"127.0.0.1:9\", protocol: tcp, h2c: true }]\n");
    assert!(said.contains("is HTTP, and the address has `protocol: tcp`"), "{said}");
    let said = check("listen: [{ address: \"127.0.0.1:9\", tls_passthrough: true }]\n");
    assert!(said.contains("add `protocol: tcp`"), "{said}");
}

#[test]
fn a_client_that_may_not_connect_is_closed() {
    let endpoint = Endpoint::echo("in\n");
    let plugin = |list: &str| format!("plugins: {{ ip-restriction: {{ {list} }} }}, {}", upstream(&[endpoint.node()]));
    let (gateway, addr) = start(&plugin("blacklist: [127.0.0.0/8]"));
    assert!(rest(&mut connect(addr)).is_err());
    assert_eq!(endpoint.accepted(), 0);
    gateway.rewrite(&crate::file(&plugin("whitelist: [127.0.0.0/8]")));
    expect(&mut connect(addr), "in\n");
}

#[test]
fn traffic_is_split_between_upstreams() {
    let [usual, canary] = ["usual\n", "canary\n"].map(Endpoint::echo);
    let split = format!(
        "plugins: {{ traffic-split: {{ rules: [{{ match: [{{ vars: [[remote_addr, \"==\", 127.0.0.1]] }}], \
         weighted_upstreams: [{{ upstream: {{ scheme: tcp, nodes: {{ {} }} }} }}] }}] }} }}",
        canary.node()
    );
    let (_gateway, addr) = start(&format!("{split}, {}", upstream(&[usual.node()])));
    expect(&mut connect(addr), "canary\n");
    assert_eq!(usual.accepted(), 0);
}

#[test]
fn a_connection_is_explained_without_being_opened() {
    let directory = TempDir::new();
    let file = directory.write(
        "weir.yaml",
        format!(
            "listen: [{{ address: \"127.0.0.1:9\", protocol: tcp, tls_passthrough: true }}]\nstream_routes:\n\
             - {{ id: any, {UPSTREAM} }}\n- {{ id: named, sni: \"*.example.com\", plugins: {{ ip-restriction: {{ whitelist: [10.0.0.0/8] }} }}, {UPSTREAM} }}\n"
        ),
    );
    let explain = |sni: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let output =
            command.arg("explain").arg(&file).args(["TCP", "10.0.0.5:5432"]).args(sni).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = explain(&["--sni", "db.example.com"]);
    assert!(
        said.contains("stream_route/named") && said.contains("Plugins in the order in which they run: ip-restriction"),
        "{said}"
    );
    assert!(said.contains("outranked"), "{said}");
    assert!(!explain(&[]).contains("stream_route/named"));
}

#[test]
fn a_connection_that_no_stream_route_takes_is_explained_by_each_of_them() {
    let directory = TempDir::new();
    let file = directory.write(
        "weir.yaml",
        format!(
            "listen: [{{ address: \"127.0.0.1:5432\", protocol: tcp, tls_passthrough: true }}, \"127.0.0.1:80\"]\nstream_routes:\n\
             - {{ id: port, server_port: 5433, {UPSTREAM} }}\n- {{ id: client, remote_addr: 10.0.0.0/8, {UPSTREAM} }}\n\
             - {{ id: name, sni: \"*.example.com\", {UPSTREAM} }}\n- {{ id: udp, upstream: {{ scheme: udp, nodes: {{ \"127.0.0.1:1\": 1 }} }} }}\n"
        ),
    );
    let explain = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("explain").arg(&file).args(arguments).output();
        String::from_utf8_lossy(&output.expect("it runs").stdout).into_owned()
    };
    let said = explain(&["tcp", "127.0.0.1:5432", "--sni", "db.example.org"]);
    for wanted in [
        "No stream route takes this connection",
        "stream_route/port                no match: another port",
        "stream_route/client              no match: another address of the client (`remote_addr`)",
        "stream_route/name                no match: another server name",
        "stream_route/udp                 no match: an upstream of another transport (`scheme`)",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    assert!(!said.contains("No listener"), "{said}");
    assert!(
        explain(&["TCP", "127.0.0.1:5432"]).contains("stream_route/name                no match: needs a server name")
    );
    for (transport, address) in [("TCP", ":80"), ("TCP", ":5434"), ("UDP", ":5432"), ("TCP", "127.0.0.2:5432")] {
        let said = explain(&[transport, address]);
        let wanted = format!("No listener with `protocol: {}` is at port", transport.to_lowercase());
        assert!(said.contains(&wanted), "{transport} {address}: {said}");
    }
}

#[test]
fn datagrams_have_neither_tls_nor_a_proxy_header() {
    for key in ["tls", "proxy_protocol", "h2c", "tls_passthrough"] {
        let listen = format!("listen: [{{ address: \":53\", protocol: udp, {key}: true }}]\n");
        let said = check(&(listen + "trusted_addresses: [10.0.0.1]\n"));
        assert!(said.contains("datagrams have none"), "{key}: {said}");
    }
}
