//! What plugins do to requests and responses.

use super::{WasmRig, WasmRigOptions};

const ADDS_FIELDS: &str = r#"
  (func (export "proxy_on_request_headers") (param $context i32) (param i32 i32) (result i32)
    (drop (call $proxy_add_header_map_value (i32.const 0) $"x-own" $"request"))
    (drop (call $proxy_replace_header_map_value (i32.const 0) $":path" $"/changed?b=2"))
    (drop (call $proxy_remove_header_map_value (i32.const 0) $"x-secret"))
    (i32.const 0))
  (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
    (drop (call $proxy_replace_header_map_value (i32.const 2) $"x-own" $"response"))
    (drop (call $proxy_remove_header_map_value (i32.const 2) $"x-origin"))
    (drop (call $proxy_replace_header_map_value (i32.const 2) $":status" $"201"))
    (i32.const 0))
"#;

#[test]
fn a_wasm_plugin_changes_the_heads_of_requests_and_responses() {
    let rig = WasmRig::of(ADDS_FIELDS);
    let request = "GET /own/a?b=1 HTTP/1.1\r\nHost: t\r\nX-Secret: 1\r\n\r\n";
    let answer = rig.gateway.client().ask(request).expect("an answer");
    assert_eq!((answer.status, answer.headers.get("x-own")), (201, Some("response")));
    assert!(!answer.headers.has("x-origin"));
    let told = answer.text();
    assert!(told.starts_with("GET /changed?b=2\n"), "{told}");
    assert!(told.contains("x-own: request\n") && !told.to_lowercase().contains("x-secret"), "{told}");
    assert_eq!(rig.get("/free").status, 200);
}

#[test]
fn a_wasm_plugin_answers_by_itself() {
    let rig = WasmRig::of(
        r#"
  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
    (drop (call $proxy_send_local_response (i32.const 403) $"" $"no entry"
      $"\01\00\00\00\05\00\00\00\01\00\00\00x-why\001\00" (i32.const -1)))
    (i32.const 1))"#,
    );
    let answer = rig.get("/own/a");
    assert_eq!((answer.status, answer.text(), answer.headers.get("x-why")), (403, "no entry".to_owned(), Some("1")));
    assert!(rig.origin.requests().is_empty());
}

#[test]
fn a_wasm_plugin_gets_its_configuration_and_refuses_what_it_does_not_understand() {
    // Answers with its configuration, and accepts none that is empty.
    let functions = r#"
  (func (export "proxy_on_configure") (param i32) (param $size i32) (result i32)
    (if (i32.eqz (local.get $size)) (then (drop (call $proxy_log (i32.const 4) $"it is empty"))))
    (local.get $size))
  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
    (drop (call $proxy_get_buffer_bytes (i32.const 7) (i32.const 0) (i32.const 100) (global.get $place) (global.get $size)))
    (drop (call $proxy_send_local_response (i32.const 200) $"" (call $got_place) (call $got_size) $"" (i32.const -1)))
    (i32.const 1))"#;
    for (options, told) in [("{ conf: a text }", "a text"), ("{ conf: { b: [1] } }", "{\"b\":[1]}")] {
        let rig = WasmRig::with(WasmRigOptions { functions, options, ..WasmRigOptions::default() });
        assert_eq!(rig.get("/own/a").text(), told);
    }
}
