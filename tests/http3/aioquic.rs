//! HTTP/3 by aioquic, whose scripts take single steps of QUIC: new keys, other connection ids, sessions with early data; and WebSockets
//! and gRPC above it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use serde_json::json;
use weir_testkit::scaled;

use crate::programs::{
    Http3Program, MIB, accepted, bodies, file, large_content_is_whole, objects_come_over_one_connection, origin, python,
};
use crate::{file_to, serve, serve_file, with_workers};

#[test]
fn aioquic_gets_100_objects_over_one_connection() {
    objects_come_over_one_connection(Http3Program::Aioquic);
}

#[test]
fn aioquic_sends_and_receives_large_content() {
    large_content_is_whole(Http3Program::Aioquic, scaled(4 * MIB, 64 * MIB));
}

#[test]
fn aioquic_gets_an_early_answer_while_it_sends() {
    let origin = origin();
    let served = serve(&origin, "client_max_body_size: 64KiB\n");
    let Some(said) = Http3Program::Aioquic.ask(&served, &["early", "/sum", "4000000"]) else { return };
    // H3_NO_ERROR: the rest of the content is of no use.
    assert_eq!(said, json!({ "status": 413, "stopped": 0x100, "after": "/object/1" }));
}

#[test]
fn aioquic_sends_and_receives_trailers() {
    let origin = origin();
    let served = serve(&origin, "");
    let Some(said) = Http3Program::Aioquic.ask(&served, &["trailers", "/trailers"]) else { return };
    assert_eq!(said, json!({ "status": 200, "body": "ok", "trailers": { "x-sum": "7" } }));
    let raw = origin.raw_text();
    assert!(raw.to_ascii_lowercase().contains("x-check: 9\r\n"), "{raw}");
}

#[test]
fn aioquic_changes_keys_and_connection_ids() {
    let origin = origin();
    // With two workers, a connection id that did not name the right one would lead to the other.
    let served = with_workers(&origin, 2);
    let Some(said) = Http3Program::Aioquic.ask(&served, &["changes", "12"]) else { return };
    assert_eq!(said["bodies"], bodies(12));
    let phases: Vec<u64> = (0..12).map(|number| (number + 1) % 2).collect();
    assert_eq!(said["phases"], json!(phases), "each request has new keys");
    let mut ids: Vec<&str> = said["ids"].as_array().expect("a list").iter().filter_map(|id| id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 12, "each request has another connection id");
    assert_eq!(accepted(&served), 1);
}

#[test]
fn aioquic_resumes_a_session_without_early_data() {
    let origin = origin();
    let served = serve(&origin, "");
    let Some(said) = Http3Program::Aioquic.ask(&served, &["resume"]) else { return };
    let handshake = |resumed| json!({ "body": "/object/1", "resumed": resumed, "early": false });
    // The last one has sent its request as early data, though its ticket does not allow that.
    assert_eq!(said["handshakes"], json!([handshake(false), handshake(true), handshake(true)]));
    assert_eq!(origin.requests().len(), 3, "no request is served twice");
}

#[test]
fn aioquic_has_a_websocket() {
    let origin = crate::websocket::echo();
    let served = serve(&origin, "");
    let Some(said) = Http3Program::Aioquic.ask(&served, &["websocket", "/"]) else { return };
    assert_eq!(said, json!({ "status": 200, "echoes": [true, true, true], "setting": 1 }));
}

/// A server of gRPC in Python.
struct GrpcServer {
    child: Child,
    port: String,
}

impl GrpcServer {
    fn start() -> Option<GrpcServer> {
        let mut command = python("grpc")?;
        command.arg(file("tests/behaviour/calls.py")).arg("calls").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("Python starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is a pipe")).read_line(&mut line).expect("it says its port");
        let port = line.trim().strip_prefix("port ").expect("it says its port").to_owned();
        Some(GrpcServer { child, port })
    }
}

impl Drop for GrpcServer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn aioquic_makes_a_grpc_call() {
    let Some(server) = GrpcServer::start() else { return };
    let upstream = format!("{{ scheme: grpc, nodes: {{ \"127.0.0.1:{}\": 1 }} }}", server.port);
    let served = serve_file(|identity| file_to(identity, &upstream, ""));
    let Some(said) = Http3Program::Aioquic.ask(&served, &["grpc", "/test.Echo/Unary", "world"]) else { return };
    assert_eq!((&said["status"], &said["message"]), (&json!(200), &json!("world hello")));
    let trailers = &said["trailers"];
    assert_eq!((&trailers["grpc-status"], &trailers["x-sum"]), (&json!("0"), &json!("5")), "{trailers}");
    let refused = Http3Program::Aioquic.ask(&served, &["grpc", "/test.Echo/Unary", "refuse"]).expect("it is installed");
    assert_eq!(refused["trailers"]["grpc-status"], "7", "PERMISSION_DENIED");
}
