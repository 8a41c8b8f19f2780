//! HTTP/3 by curl: large content, trailers, other protocols where there is no HTTP/3, and the change to HTTP/3 by `Alt-Svc`.

use serde_json::json;
use weir_testkit::{free_port, scaled};

use crate::alternatives::with_http3_at;
use crate::programs::{Http3Program, MIB, large_content_is_whole, objects_come_over_one_connection, origin};
use crate::serve;

/// The versions of HTTP as libcurl numbers them.
const HTTP2: u8 = 3;
const HTTP3: u8 = 30;

#[test]
fn curl_gets_100_objects_over_one_connection() {
    objects_come_over_one_connection(Http3Program::Curl);
}

#[test]
fn curl_sends_and_receives_large_content() {
    large_content_is_whole(Http3Program::Curl, scaled(64 * MIB, 1024 * MIB));
}

#[test]
fn curl_sends_content_of_unknown_length() {
    let origin = origin();
    let served = serve(&origin, "");
    let Some(said) = Http3Program::Curl.ask(&served, &["upload", "/sum", "300000", "unknown"]) else { return };
    assert_eq!((&said["status"], &said["version"], &said["body"]), (&json!(200), &json!(HTTP3), &said["sum"]));
}

#[test]
fn curl_receives_trailers() {
    let origin = origin();
    let served = serve(&origin, "");
    let Some(said) = Http3Program::Curl.ask(&served, &["download", "/trailers"]) else { return };
    assert_eq!(said["body"], "ok");
    let fields = said["fields"].as_array().expect("a list");
    assert!(fields.contains(&json!("x-sum: 7")), "{fields:?}");
}

#[test]
fn curl_takes_http2_where_there_is_no_http3() {
    let origin = origin();
    let served = with_http3_at(free_port(), &origin, "");
    let addresses = served.gateway.addrs_of("https");
    let Some(said) = Http3Program::Curl.ask_at(&served, addresses[1], &["either", "/object/1"]) else { return };
    assert_eq!((&said["version"], &said["body"]), (&json!(HTTP2), &json!("/object/1")));
    let refused = Http3Program::Curl.ask_at(&served, addresses[1], &["only", "/object/1"]).expect("it is installed");
    assert_ne!(refused["error"], 0, "there is no HTTP/3");
    let served_there =
        Http3Program::Curl.ask_at(&served, addresses[0], &["only", "/object/1"]).expect("it is installed");
    assert_eq!(served_there["error"], 0);
}

#[test]
fn curl_changes_to_http3_once_it_is_told() {
    let origin = origin();
    let served = with_http3_at(free_port(), &origin, "");
    let file = served.gateway.directory().join("alternatives");
    let file = file.to_str().expect("it is UTF-8");
    let Some(said) = Http3Program::Curl.ask(&served, &["told", "/object/1", file]) else { return };
    assert_eq!(said["versions"], json!([HTTP2, HTTP3]));
}
