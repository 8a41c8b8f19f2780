//! What remains of a stream: a log line, metrics, and what readers of `weir tail` see.

use std::fs;

use weir_testkit::{DEADLINE, eventually, eventually_some};

use crate::peers::{Endpoint, connect, expect, ping, refusing, rest, upstream};
use crate::{file, weir};

#[test]
fn a_stream_that_has_ended_has_a_line_in_the_access_log() {
    let endpoint = Endpoint::echo("hello\n");
    let settings = "enable_access_log: { path: access.log, format: json }\n";
    let gateway = weir().start(&(file(&upstream(&[endpoint.node()])) + settings));
    let mut client = connect(gateway.addrs_of("tcp")[0]);
    expect(&mut client, "hello\n");
    ping(&mut client, "four\n");
    client.shutdown(std::net::Shutdown::Write).expect("open");
    rest(&mut client).expect("a clean end");
    let log = gateway.directory().path().join("access.log");
    let line = eventually_some("the line is written", DEADLINE, || {
        fs::read_to_string(&log).ok().filter(|text| text.ends_with('\n'))
    });
    let line: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
    assert_eq!(line["protocol"], "TCP");
    assert_eq!(line["status"], 200);
    assert_eq!(line["bytes_received"], 5);
    assert_eq!(line["bytes_sent"], 11);
    assert_eq!(line["upstream_addr"], endpoint.addr.to_string());
    assert_eq!(line["route_id"], "stream_route/s");
    assert_eq!(line["remote_addr"], "127.0.0.1");
    assert!(line["session_time"].as_f64().is_some_and(|seconds| seconds >= 0.0), "{line}");
}

#[test]
fn a_stream_that_fails_says_why_and_whom_it_tried() {
    let settings = "enable_access_log: access.log\n";
    let gateway = weir().start(&(file(&upstream(&[refusing()])) + settings));
    assert!(rest(&mut connect(gateway.addrs_of("tcp")[0])).is_err());
    let log = gateway.directory().path().join("access.log");
    let line = eventually_some("the line is written", DEADLINE, || {
        fs::read_to_string(&log).ok().filter(|text| text.ends_with('\n'))
    });
    assert!(line.contains(" TCP 502 0 0 "), "{line}");
    assert!(line.trim_end().ends_with("\"connect_failed\""), "{line}");
}

#[test]
fn open_streams_and_their_bytes_are_counted_by_route() {
    let endpoint = Endpoint::echo("hello\n");
    let gateway = weir().start(&file(&upstream(&[endpoint.node()])));
    let mut client = connect(gateway.addrs_of("tcp")[0]);
    expect(&mut client, "hello\n");
    let value = |series: &str| gateway.metrics().get(series);
    assert_eq!(value("weir_streams"), Some(1.0));
    assert_eq!(value("weir_route_streams{route=\"stream_route/s\"}"), Some(1.0));
    drop(client);
    eventually("it has ended", DEADLINE, || value("weir_streams") == Some(0.0));
    assert_eq!(value("weir_streams_opened_total"), Some(1.0));
    assert_eq!(value("weir_route_streams_opened_total{route=\"stream_route/s\"}"), Some(1.0));
    let sent = || value("weir_route_bytes_total{route=\"stream_route/s\",direction=\"sent\"}");
    eventually("its bytes are counted", DEADLINE, || sent() == Some(6.0));
    assert_eq!(gateway.metrics().sum("weir_http_requests_total", &[]), 0.0);
}
