//! Plugins that see and change content.

use weir_testkit::Answer;

use super::{WasmRig, WasmRigOptions};

/// Puts `<` before each piece and `>` after the end.
const STREAMS: &str = r#"
  (func (export "proxy_on_request_body") (param i32) (param $size i32) (param $end i32) (result i32)
    (drop (call $proxy_set_buffer_bytes (i32.const 0) (i32.const 0) (i32.const 0) $"<"))
    (if (local.get $end) (then
      (drop (call $proxy_set_buffer_bytes (i32.const 0) (i32.const 100000) (i32.const 0) $">"))))
    (i32.const 0))"#;

#[test]
fn a_wasm_plugin_changes_content_piece_by_piece() {
    let rig = WasmRig::of(STREAMS);
    let mut client = rig.gateway.client();
    let request = "POST /own/a HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let told = client.ask(request).expect("an answer").text();
    let content = told.split_once("\n\n").expect("head and content").1;
    // In how many pieces it comes is up to the connection, but it comes in one at least, and ends once.
    assert!(content.starts_with("<abc") || content.starts_with("<a"), "{content}");
    assert!(content.ends_with('>') && content.matches('>').count() == 1, "{content}");
    assert_eq!(content.replace(['<', '>'], ""), "abc");
}

/// Holds requests until their content is there, and answers with its length if it is too long.
const HOLDS: &str = r#"
  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (i32.const 1))
  (func (export "proxy_on_request_body") (param i32) (param $size i32) (param $end i32) (result i32)
    (if (i32.gt_u (local.get $size) (i32.const 4)) (then
      (drop (call $proxy_send_local_response (i32.const 413) $"" $"too long" $"" (i32.const -1)))
      (return (i32.const 1))))
    (drop (call $proxy_add_header_map_value (i32.const 0) $"x-seen" $"all"))
    (drop (call $proxy_set_buffer_bytes (i32.const 0) (i32.const 0) (i32.const 100) $"other"))
    (i32.const 0))"#;

#[test]
fn a_wasm_plugin_that_holds_a_request_sees_all_of_it_and_may_still_change_its_head() {
    let rig = WasmRig::of(HOLDS);
    let ask = |content: &str| {
        let request = format!("POST /own/a HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{content}", content.len());
        rig.gateway.client().ask(request).expect("an answer")
    };
    let told = ask("1234").text();
    assert!(told.contains("x-seen: all\n") && told.ends_with("\n\nother"), "{told}");
    let refused = ask("12345");
    assert_eq!((refused.status, refused.text()), (413, "too long".to_owned()));
    assert_eq!(rig.origin.requests().len(), 1);
}

/// Replaces the content of responses, whose length it says in a field.
const REPLACES: &str = r#"
  (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
    (drop (call $proxy_remove_header_map_value (i32.const 2) $"content-length"))
    (i32.const 1))
  (func (export "proxy_on_response_body") (param i32) (param $size i32) (param $end i32) (result i32)
    (drop (call $proxy_replace_header_map_value (i32.const 2) $"x-seen" $"all"))
    (drop (call $proxy_set_buffer_bytes (i32.const 1) (i32.const 0) (local.get $size) $"replaced"))
    (i32.const 0))"#;

#[test]
fn a_wasm_plugin_that_holds_a_response_replaces_all_of_it() {
    let rig = WasmRig::of(REPLACES);
    let answer = rig.get("/own/a");
    assert_eq!((answer.text(), answer.headers.get("x-seen")), ("replaced".to_owned(), Some("all")));
    assert_eq!(answer.headers.get("content-length"), Some("8"));
}

/// Fails in the content of a response whose head has been sent, and in that of a request.
const FAILS: &str = r#"
  (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32) unreachable)
  (func (export "proxy_on_response_body") (param i32 i32 i32) (result i32) unreachable)"#;

#[test]
fn a_wasm_plugin_that_fails_in_content_ends_its_exchange_unless_it_may_be_left_out() {
    let post = "POST /own/a HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nhi";
    let rig = WasmRig::of(FAILS);
    assert_eq!(rig.gateway.client().ask(post).expect("an answer").status, 500);
    let rig = WasmRig::with(WasmRigOptions { functions: FAILS, keys: ", fail: open", ..WasmRigOptions::default() });
    let answer = rig.gateway.client().ask(post).expect("an answer");
    assert!(answer.status == 200 && answer.text().ends_with("\n\nhi"), "{answer:?}");
    assert_eq!(rig.get("/free").status, 200);
}

/// Adds a trailer to what has trailers.
const TRAILERS: &str = r#"
  (func (export "proxy_on_response_trailers") (param i32) (param $count i32) (result i32)
    (drop (call $proxy_add_header_map_value (i32.const 3) $"x-added" $"1"))
    (drop (call $proxy_remove_header_map_value (i32.const 3) $"x-gone"))
    (i32.const 0))"#;

#[test]
fn a_wasm_plugin_changes_trailers() {
    let rig = WasmRig::with_origin(
        WasmRigOptions { functions: TRAILERS, ..WasmRigOptions::default() },
        weir_testkit::Origin::serving(|_| {
            Answer::raw(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n\
                 2\r\nhi\r\n0\r\nx-sum: 7\r\nx-gone: 1\r\n\r\n",
            )
        }),
    );
    let mut client = rig.gateway.client();
    client.send("GET /own/a HTTP/1.1\r\nHost: t\r\nTE: trailers\r\n\r\n");
    let answer = client.response().expect("an answer");
    assert_eq!(answer.text(), "hi");
    let trailers = &answer.trailers;
    assert_eq!((trailers.get("x-sum"), trailers.get("x-added")), (Some("7"), Some("1")), "{answer:?}");
    assert!(!trailers.has("x-gone"));
}

/// Waits for the end of a request's content, piece by piece, and refuses what is too long.
const JUDGES: &str = r#"
  (func (export "proxy_on_request_body") (param i32) (param $size i32) (param $end i32) (result i32)
    (if (i32.eqz (local.get $end)) (then (return (i32.const 1))))
    (if (i32.gt_u (local.get $size) (i32.const 4)) (then
      (drop (call $proxy_send_local_response (i32.const 403) $"" $"" $"" (i32.const -1)))
      (return (i32.const 1))))
    (i32.const 0))"#;

fn chunked(content: &str, trailers: &str) -> String {
    let size = content.len();
    format!(
        "POST /own/a HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n{size:x}\r\n{content}\r\n0\r\n{trailers}\r\n"
    )
}

#[test]
fn a_wasm_plugin_that_judges_content_at_its_end_is_not_passed_by_with_a_trailer() {
    let rig = WasmRig::of(JUDGES);
    for trailers in ["", "x: y\r\n"] {
        let passed = rig.gateway.client().ask(chunked("1234", trailers)).expect("an answer");
        assert!(passed.status == 200 && passed.text().ends_with("\n\n1234"), "{passed:?}");
        let refused = rig.gateway.client().ask(chunked("12345", trailers)).expect("an answer");
        assert_eq!(refused.status, 403, "{trailers:?}");
    }
    assert_eq!(rig.origin.requests().len(), 2, "what is refused does not arrive");
}

#[test]
fn a_wasm_plugin_that_answers_in_trailers_refuses_the_request() {
    let functions = r#"
      (func (export "proxy_on_request_trailers") (param i32 i32) (result i32)
        (drop (call $proxy_send_local_response (i32.const 403) $"" $"" $"" (i32.const -1)))
        (i32.const 1))"#;
    let rig = WasmRig::of(functions);
    assert_eq!(rig.gateway.client().ask(chunked("1234", "")).expect("an answer").status, 200);
    assert_eq!(rig.gateway.client().ask(chunked("1234", "x: y\r\n")).expect("an answer").status, 403);
    assert_eq!(rig.origin.requests().len(), 1);
}

#[test]
fn a_wasm_plugin_that_holds_content_at_its_end_for_nothing_has_failed() {
    let functions = r#"(func (export "proxy_on_request_body") (param i32 i32 i32) (result i32) (i32.const 1))"#;
    let strict = WasmRig::of(functions);
    assert_eq!(strict.gateway.client().ask(chunked("1234", "")).expect("an answer").status, 500);
    strict.gateway.wait_stderr("why", |log| log.contains("it holds a message for which it waits for nothing"));
    let open = WasmRig::with(WasmRigOptions { functions, keys: ", fail: open", ..WasmRigOptions::default() });
    let passed = open.gateway.client().ask(chunked("1234", "")).expect("an answer");
    assert!(passed.status == 200 && passed.text().ends_with("\n\n1234"), "{passed:?}");
}

#[test]
fn a_wasm_plugin_that_takes_the_content_of_a_response_by_its_status_leaves_the_connection_in_step() {
    let functions = r#"
      (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32) (i32.const 1))
      (func (export "proxy_on_response_body") (param i32 i32 i32) (result i32)
        (drop (call $proxy_replace_header_map_value (i32.const 2) $":status" $"204"))
        (i32.const 0))"#;
    let rig = WasmRig::of(functions);
    let mut client = rig.gateway.client();
    for _ in 0..2 {
        let answer = client.ask("GET /own/a HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer");
        assert_eq!((answer.status, answer.body.len(), answer.headers.get("content-length")), (204, 0, None));
    }
    assert_eq!(client.ask("GET /free HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer").status, 200);
}
