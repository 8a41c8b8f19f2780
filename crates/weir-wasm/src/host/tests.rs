//! Every function of the host, called by a plugin.

use std::collections::BTreeSet;

use wasmtime::ExternType;

use super::linker;
use crate::engine::engine;
use crate::pairs;
use crate::state::{Access, CallAnswer, HostState, LocalAnswer, Rights};
use crate::testing::{ALL, Ran, facts, run, run_with, started};
use crate::vm::PluginFailure;

const OK: u32 = 0;
const NOT_FOUND: u32 = 1;
const BAD_ARGUMENT: u32 = 2;
const PARSE_FAILURE: u32 = 4;
const INVALID_MEMORY: u32 = 6;
const CAS_MISMATCH: u32 = 8;
const INTERNAL: u32 = 10;
const UNIMPLEMENTED: u32 = 12;

/// Calls, and what the functions answer. All of them are made in a request whose head, content and answers may be used.
const ANSWERS: &[(&str, u32)] = &[
    ("(call $proxy_log (i32.const 2) $\"text\")", OK),
    ("(call $proxy_log (i32.const 6) $\"no such level\")", BAD_ARGUMENT),
    ("(call $proxy_log (i32.const 2) (i32.const 131000) (i32.const 4000))", INVALID_MEMORY),
    ("(call $proxy_log (i32.const 2) (i32.const -1) (i32.const -1))", INVALID_MEMORY),
    ("(call $proxy_get_log_level (i32.const 32))", OK),
    ("(call $proxy_get_log_level (i32.const 131071))", INVALID_MEMORY),
    ("(call $proxy_get_current_time_nanoseconds (i32.const 32))", OK),
    ("(call $proxy_get_current_time_nanoseconds (i32.const -4))", INVALID_MEMORY),
    ("(call $proxy_set_tick_period_milliseconds (i32.const 100))", OK),
    ("(call $proxy_done)", OK),
    ("(call $proxy_clear_route_cache)", OK),
    ("(call $proxy_set_effective_context (i32.const 1))", OK),
    ("(call $proxy_set_effective_context (i32.const 99))", BAD_ARGUMENT),
    ("(call $proxy_continue_stream (i32.const 0))", OK),
    ("(call $proxy_continue_stream (i32.const 2))", UNIMPLEMENTED),
    ("(call $proxy_continue_request)", OK),
    ("(call $proxy_continue_response)", OK),
    ("(call $proxy_close_stream (i32.const 0))", OK),
    ("(call $proxy_close_stream (i32.const 3))", UNIMPLEMENTED),
    ("(call $proxy_get_configuration (global.get $place) (global.get $size))", OK),
    (
        "(call $proxy_get_buffer_bytes (i32.const 7) (i32.const 0) (i32.const 9) (global.get $place) (global.get $size))",
        OK,
    ),
    (
        "(call $proxy_get_buffer_bytes (i32.const 0) (i32.const 0) (i32.const 9) (global.get $place) (global.get $size))",
        NOT_FOUND,
    ),
    (
        "(call $proxy_get_buffer_bytes (i32.const 2) (i32.const 0) (i32.const 9) (global.get $place) (global.get $size))",
        BAD_ARGUMENT,
    ),
    (
        "(call $proxy_get_buffer_bytes (i32.const 7) (i32.const 0) (i32.const 9) (i32.const -8) (global.get $size))",
        INVALID_MEMORY,
    ),
    ("(call $proxy_get_buffer_status (i32.const 7) (i32.const 32) (i32.const 36))", OK),
    ("(call $proxy_get_buffer_status (i32.const 4) (i32.const 32) (i32.const 36))", NOT_FOUND),
    ("(call $proxy_set_buffer_bytes (i32.const 0) (i32.const 0) (i32.const 0) $\"x\")", NOT_FOUND),
    ("(call $proxy_set_buffer_bytes (i32.const 7) (i32.const 0) (i32.const 0) $\"x\")", BAD_ARGUMENT),
    ("(call $proxy_get_header_map_pairs (i32.const 0) (global.get $place) (global.get $size))", OK),
    ("(call $proxy_get_header_map_pairs (i32.const 1) (global.get $place) (global.get $size))", BAD_ARGUMENT),
    ("(call $proxy_get_header_map_pairs (i32.const 77) (global.get $place) (global.get $size))", BAD_ARGUMENT),
    ("(call $proxy_get_header_map_size (i32.const 0) (i32.const 32))", OK),
    ("(call $proxy_get_header_map_size (i32.const 6) (i32.const 32))", BAD_ARGUMENT),
    ("(call $proxy_set_header_map_pairs (i32.const 0) $\"\\00\\00\\00\\00\")", OK),
    ("(call $proxy_set_header_map_pairs (i32.const 0) $\"\\ff\\ff\\ff\\ff\")", PARSE_FAILURE),
    ("(call $proxy_set_header_map_pairs (i32.const 3) $\"\\00\\00\\00\\00\")", BAD_ARGUMENT),
    ("(call $proxy_get_header_map_value (i32.const 0) $\"x-one\" (global.get $place) (global.get $size))", OK),
    ("(call $proxy_get_header_map_value (i32.const 0) $\"x-none\" (global.get $place) (global.get $size))", NOT_FOUND),
    ("(call $proxy_get_header_map_value (i32.const 1) $\"x-one\" (global.get $place) (global.get $size))", NOT_FOUND),
    ("(call $proxy_add_header_map_value (i32.const 0) $\"x-new\" $\"1\")", OK),
    ("(call $proxy_add_header_map_value (i32.const 0) $\"x new\" $\"1\")", BAD_ARGUMENT),
    ("(call $proxy_add_header_map_value (i32.const 0) $\"x-new\" $\"a\\0d\\0ab\")", BAD_ARGUMENT),
    ("(call $proxy_replace_header_map_value (i32.const 2) $\":status\" $\"404\")", OK),
    ("(call $proxy_replace_header_map_value (i32.const 2) $\":status\" $\"99\")", BAD_ARGUMENT),
    ("(call $proxy_replace_header_map_value (i32.const 0) $\":path\" $\"a b\")", BAD_ARGUMENT),
    ("(call $proxy_replace_header_map_value (i32.const 0) $\":method\" $\"A B\")", BAD_ARGUMENT),
    ("(call $proxy_replace_header_map_value (i32.const 0) $\":other\" $\"1\")", BAD_ARGUMENT),
    ("(call $proxy_remove_header_map_value (i32.const 0) $\"content-length\")", OK),
    ("(call $proxy_remove_header_map_value (i32.const 0) $\":path\")", BAD_ARGUMENT),
    ("(call $proxy_remove_header_map_value (i32.const 0) $\"x-none\")", OK),
    ("(call $proxy_send_local_response (i32.const 99) $\"\" $\"\" $\"\" (i32.const -1))", BAD_ARGUMENT),
    ("(call $proxy_send_local_response (i32.const 200) $\"\" $\"\" $\"\\01\" (i32.const -1))", PARSE_FAILURE),
    (
        "(call $proxy_send_local_response (i32.const 200) $\"\" (i32.const 0) (i32.const -1) $\"\" (i32.const -1))",
        INVALID_MEMORY,
    ),
    ("(call $proxy_http_call $\"nobody\" $\"\" $\"\" $\"\" (i32.const 10) (i32.const 32))", BAD_ARGUMENT),
    ("(call $proxy_http_call $\"auth\" $\"\" $\"\" $\"\" (i32.const 10) (i32.const 32))", BAD_ARGUMENT),
    ("(call $proxy_http_call $\"auth\" $\"\\01\" $\"\" $\"\" (i32.const 10) (i32.const 32))", PARSE_FAILURE),
    ("(call $proxy_get_property $\"plugin_name\" (global.get $place) (global.get $size))", OK),
    ("(call $proxy_get_property $\"no\\00such\" (global.get $place) (global.get $size))", NOT_FOUND),
    ("(call $proxy_set_property $\"own\" $\"1\")", OK),
    ("(call $proxy_get_shared_data $\"none\" (global.get $place) (global.get $size) (i32.const 32))", NOT_FOUND),
    ("(call $proxy_set_shared_data $\"key\" $\"1\" (i32.const 0))", OK),
    ("(call $proxy_set_shared_data $\"key\" $\"1\" (i32.const 7))", CAS_MISMATCH),
    ("(call $proxy_define_metric (i32.const 0) $\"answers\" (i32.const 32))", OK),
    ("(call $proxy_define_metric (i32.const 3) $\"answers\" (i32.const 32))", BAD_ARGUMENT),
    ("(call $proxy_define_metric (i32.const 0) $\"\\ff\" (i32.const 32))", BAD_ARGUMENT),
    ("(call $proxy_record_metric (i32.const 0) (i64.const 1))", NOT_FOUND),
    ("(call $proxy_increment_metric (i32.const 99) (i64.const 1))", NOT_FOUND),
    ("(call $proxy_get_metric (i32.const 99) (i32.const 32))", NOT_FOUND),
    ("(call $proxy_call_foreign_function $\"f\" $\"\" (global.get $place) (global.get $size))", NOT_FOUND),
    ("(call $proxy_register_shared_queue $\"q\" (i32.const 32))", UNIMPLEMENTED),
    ("(call $proxy_resolve_shared_queue $\"v\" $\"q\" (i32.const 32))", UNIMPLEMENTED),
    ("(call $proxy_enqueue_shared_queue (i32.const 1) $\"x\")", UNIMPLEMENTED),
    ("(call $proxy_dequeue_shared_queue (i32.const 1) (global.get $place) (global.get $size))", UNIMPLEMENTED),
    ("(call $proxy_grpc_call $\"a\" $\"b\" $\"c\" $\"\" $\"\" (i32.const 1) (i32.const 32))", UNIMPLEMENTED),
    ("(call $proxy_grpc_stream $\"a\" $\"b\" $\"c\" $\"\" (i32.const 32))", UNIMPLEMENTED),
    ("(call $proxy_grpc_send (i32.const 1) $\"x\" (i32.const 1))", UNIMPLEMENTED),
    ("(call $proxy_grpc_close (i32.const 1))", UNIMPLEMENTED),
    ("(call $proxy_grpc_cancel (i32.const 1))", UNIMPLEMENTED),
    ("(call $proxy_get_status (i32.const 32) (global.get $place) (global.get $size))", UNIMPLEMENTED),
    // Of WASI, whose errors have numbers of their own.
    ("(call $fd_write (i32.const 1) (i32.const 40) (i32.const 0) (i32.const 32))", 0),
    ("(call $fd_write (i32.const 5) (i32.const 40) (i32.const 0) (i32.const 32))", 8),
    ("(call $fd_write (i32.const 2) (i32.const 40) (i32.const -1) (i32.const 32))", 21),
    ("(call $clock_time_get (i32.const 0) (i64.const 1) (i32.const 32))", 0),
    ("(call $random_get (i32.const 32) (i32.const 8))", 0),
    ("(call $random_get (i32.const 32) (i32.const -1))", 21),
    ("(call $environ_get (i32.const 32) (i32.const 36))", 0),
    ("(call $environ_sizes_get (i32.const 32) (i32.const 36))", 0),
    ("(call $args_get (i32.const 32) (i32.const 36))", 0),
    ("(call $args_sizes_get (i32.const 32) (i32.const 36))", 0),
    ("(call $fd_close (i32.const 3))", 8),
    ("(call $fd_seek (i32.const 3) (i64.const 0) (i32.const 0) (i32.const 32))", 8),
    (
        "(call $path_open (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i64.const 0) (i64.const 0) (i32.const 0) (i32.const 32))",
        52,
    ),
];

#[test]
fn functions_of_the_host_answer_as_the_table_says() {
    for (call, status) in ANSWERS {
        let mut ran = run(call);
        assert_eq!(ran.result.clone().map(|_| ran.status()), Ok(*status), "{call}");
    }
}

#[test]
fn functions_of_the_host_are_all_in_the_table() {
    let mut store = wasmtime::Store::new(engine(), HostState::new(&facts("table").into(), Default::default(), false));
    let linker = linker().expect("all functions");
    let is_function =
        |found: &wasmtime::Extern, store: &wasmtime::Store<HostState>| matches!(found.ty(store), ExternType::Func(_));
    let all: Vec<_> = linker.iter(&mut store).collect::<Vec<_>>();
    let names: BTreeSet<String> =
        all.iter().filter(|(_, _, found)| is_function(found, &store)).map(|(_, name, _)| (*name).to_owned()).collect();
    assert!(names.len() > 60, "{names:?}");
    // Those that a runtime may import, and that have nothing to do.
    let idle = ["sched_yield", "clock_res_get", "poll_oneoff", "proc_exit"];
    let missing: Vec<&String> = names
        .iter()
        .filter(|name| {
            !ANSWERS.iter().any(|(call, _)| call.contains(&format!("${name} ")) || call.contains(&format!("${name})")))
        })
        .filter(|name| !idle.contains(&name.as_str()) && !name.starts_with("fd_") && !name.starts_with("path_"))
        .collect();
    assert_eq!(missing, Vec::<&String>::new());
}

/// What a call gives to the plugin.
fn given(call: &str) -> String {
    let mut ran = run(call);
    assert_eq!(ran.status(), OK, "{call}");
    String::from_utf8_lossy(&ran.given()).into_owned()
}

#[test]
fn values_of_heads_are_joined_and_pseudo_fields_are_there() {
    let of = |kind: u32, name: &str| {
        given(&format!(
            "(call $proxy_get_header_map_value (i32.const {kind}) $\"{name}\" (global.get $place) (global.get $size))"
        ))
    };
    for (name, value) in [
        (":path", "/a?b=1"),
        (":method", "GET"),
        (":authority", "shop.example"),
        ("host", "shop.example"),
        (":scheme", "http"),
        ("x-one", "1"),
        ("X-Two", "2, 3"),
    ] {
        assert_eq!(of(0, name), value, "{name}");
    }
    assert_eq!((of(2, ":status"), of(2, "x-three")), ("200".to_owned(), "3".to_owned()));
}

#[test]
fn pairs_of_a_head_come_with_pseudo_fields_first_and_can_be_replaced() {
    let mut ran = run("(call $proxy_get_header_map_pairs (i32.const 0) (global.get $place) (global.get $size))");
    let pairs = pairs::decode(&ran.given()).expect("pairs");
    let shown: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value)))
        .collect();
    assert_eq!(
        shown,
        [":authority=shop.example", ":path=/a?b=1", ":method=GET", ":scheme=http", "x-one=1", "x-two=2", "x-two=3"]
    );
    let mut ran = run("(call $proxy_set_header_map_pairs (i32.const 0) \
                       $\"\\02\\00\\00\\00\\05\\00\\00\\00\\02\\00\\00\\00\\02\\00\\00\\00\\01\\00\\00\\00:path\\00/c\\00ab\\00d\\00\")");
    assert_eq!(ran.status(), OK);
    let head = &ran.exchange.request;
    assert_eq!((head.path(), head.query(), head.host()), (&b"/c"[..], None, &b"shop.example"[..]));
    assert_eq!((head.head.value(b"ab"), head.head.value(b"x-one")), (Some(&b"d"[..]), None));
}

#[test]
fn heads_that_have_been_passed_on_cannot_be_changed() {
    let rights = Rights { request: Access::Read, ..ALL };
    let change = "(i32.store (i32.const 0) (call $proxy_add_header_map_value (i32.const 0) $\"x-new\" $\"1\"))";
    assert_eq!(run_with(rights, change, |_| ()).status(), BAD_ARGUMENT);
    let read = "(i32.store (i32.const 0) (call $proxy_get_header_map_value (i32.const 0) $\"x-one\" \
                (global.get $place) (global.get $size)))";
    assert_eq!(run_with(rights, read, |_| ()).status(), OK);
}

#[test]
fn properties_are_those_that_plugins_for_envoy_read() {
    let of =
        |path: &str| given(&format!("(call $proxy_get_property $\"{path}\" (global.get $place) (global.get $size))"));
    for (path, value) in [
        ("request\\00path", "/a?b=1"),
        ("request\\00url_path", "/a"),
        ("request\\00query", "b=1"),
        ("request\\00method", "GET"),
        ("request\\00host", "shop.example"),
        ("request\\00headers\\00x-one", "1"),
        ("request\\00protocol", "HTTP/1.1"),
        ("source\\00address", "0.0.0.0:0"),
        ("plugin_name", "tested"),
        ("plugin_root_id", ""),
        ("connection\\00mtls", "\0"),
        ("response\\00code", "\u{fffd}\0\0\0\0\0\0\0"),
        ("destination\\00port", "\0\0\0\0\0\0\0\0"),
    ] {
        assert_eq!(of(path), value, "{path}");
    }
    let set = "(drop (call $proxy_set_property $\"own\" $\"1\")) (i32.store (i32.const 0) \
               (call $proxy_get_property $\"own\" (global.get $place) (global.get $size)))";
    let mut ran = run_with(ALL, set, |_| ());
    assert_eq!((ran.status(), ran.given()), (OK, b"1".to_vec()));
}

#[test]
fn answers_of_services_are_there_while_the_plugin_is_told_of_them() {
    let read = "(i32.store (i32.const 0) (call $proxy_get_header_map_value (i32.const 6) $\":status\" \
                (global.get $place) (global.get $size)))";
    let with_answer = |vm: &mut crate::vm::Vm| {
        let fields = vec![(b":status".to_vec(), b"204".to_vec())];
        vm.state().call_answer = Some(CallAnswer { fields, ..CallAnswer::default() });
    };
    let mut ran = run_with(ALL, read, with_answer);
    assert_eq!((ran.status(), ran.given()), (OK, b"204".to_vec()));
    assert_eq!(run_with(ALL, read, |_| ()).status(), NOT_FOUND);
}

#[test]
fn local_responses_have_status_fields_and_content() {
    let call = "(call $proxy_send_local_response (i32.const 418) $\"\" $\"tea\" \
                $\"\\01\\00\\00\\00\\01\\00\\00\\00\\01\\00\\00\\00a\\00b\\00\" (i32.const -1))";
    let mut ran = run(call);
    let wanted = LocalAnswer { status: 418, fields: vec![(b"a".to_vec(), b"b".to_vec())], body: b"tea".to_vec() };
    assert_eq!((ran.status(), ran.vm.take_answer(ran.context)), (OK, Some(wanted)));
    let rights = Rights { answers: false, ..ALL };
    let mut ran = run_with(rights, &format!("(i32.store (i32.const 0) {call})"), |_| ());
    assert_eq!(ran.status(), BAD_ARGUMENT, "where nothing can be answered");
}

#[test]
fn calls_of_services_are_requests_with_what_the_plugin_said() {
    let fields = "\\04\\00\\00\\00\\07\\00\\00\\00\\04\\00\\00\\00\\05\\00\\00\\00\\02\\00\\00\\00\\0a\\00\\00\\00\\01\\00\\00\\00\
                  \\01\\00\\00\\00\\01\\00\\00\\00:method\\00POST\\00:path\\00/x\\00:authority\\00h\\00k\\00v\\00";
    let call = format!("(call $proxy_http_call $\"auth\" $\"{fields}\" $\"body\" $\"\" (i32.const 10) (i32.const 32))");
    let mut ran = run(&call);
    assert_eq!(ran.status(), OK);
    let calls = ran.vm.take_calls(ran.context);
    assert_eq!(calls.len(), 1);
    assert_eq!((calls[0].token, &*calls[0].url), (ran.number(32), "http://127.0.0.1:1"));
    let request = &calls[0].request;
    assert_eq!((request.method().as_str(), request.uri().path(), &**request.body()), ("POST", "/x", &b"body"[..]));
    assert_eq!(
        (&request.headers()["host"], &request.headers()["k"]),
        (&"h".parse().expect("a value"), &"v".parse().expect("a value"))
    );
    let rights = Rights { calls: false, ..ALL };
    let mut ran = run_with(rights, &format!("(i32.store (i32.const 0) {call})"), |_| ());
    assert_eq!(ran.status(), INTERNAL, "where nothing can wait for the answer");
    assert!(ran.vm.take_calls(ran.context).is_empty());
}

#[test]
fn instances_start_only_if_the_plugin_accepts() {
    let refuses = "(func (export \"proxy_on_vm_start\") (param i32 i32) (result i32) (i32.const 0))";
    assert!(matches!(started(refuses, facts("refuses")), Err(PluginFailure::Refused(_))));
    let exits = "(func (export \"_initialize\") (unreachable))";
    assert!(matches!(started(exits, facts("exits")), Err(PluginFailure::Trap(_))));
}

/// Runs a body that fails.
fn failure(body: &str) -> PluginFailure {
    let Ran { result, .. } = run_with(ALL, body, |_| ());
    result.expect_err("it fails")
}

#[test]
fn code_that_fails_is_ended() {
    assert!(matches!(failure("(loop $again (br $again))"), PluginFailure::TimedOut(_)));
    assert!(matches!(failure("(unreachable)"), PluginFailure::Trap(_)));
    assert!(matches!(failure("(drop (i32.load (i32.const -16)))"), PluginFailure::Trap(_)));
    assert!(matches!(failure("(drop (i32.div_s (i32.const 1) (i32.const 0)))"), PluginFailure::Trap(_)));
}

#[test]
fn memory_grows_up_to_the_limit_and_no_further() {
    // A page has 64 KiB, and the limit is 1 MiB; two are there from the start.
    let mut ran = run("(memory.grow (i32.const 14))");
    assert_eq!(ran.status(), 2);
    let mut ran = run("(memory.grow (i32.const 15))");
    assert_eq!(ran.status() as i32, -1);
}

#[test]
fn recursion_without_end_is_ended() {
    let functions = "(func $deeper (call $deeper)) \
                     (func (export \"proxy_on_request_headers\") (param i32 i32 i32) (result i32) (call $deeper) (i32.const 0))";
    let mut vm = started(functions, facts("deep")).unwrap_or_else(|failure| panic!("{failure}"));
    let context = vm.open().unwrap_or_else(|failure| panic!("{failure}"));
    let failure = vm.on_headers(crate::vm::MessageSide::Request, context, ALL, true).expect_err("it fails");
    assert!(failure.to_string().contains("call stack exhausted"), "{failure}");
}

#[test]
fn contexts_end_with_their_exchanges() {
    let Ran { mut vm, context, .. } = run("(i32.const 0)");
    assert_eq!(vm.contexts(), 2, "that of the plugin, and that of the exchange");
    vm.close(context, Rights::default()).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(vm.contexts(), 1);
}

#[test]
fn older_plugins_have_functions_with_fewer_parameters() {
    let functions = "(func (export \"proxy_abi_version_0_1_0\")) \
                     (func (export \"proxy_on_request_headers\") (param i32 i32) (result i32) (i32.const 1))";
    let mut vm = started(functions, facts("old")).unwrap_or_else(|failure| panic!("{failure}"));
    let context = vm.open().unwrap_or_else(|failure| panic!("{failure}"));
    let action = vm.on_headers(crate::vm::MessageSide::Request, context, ALL, true);
    assert_eq!(action, Ok(crate::abi::CallbackAction::Pause));
}
