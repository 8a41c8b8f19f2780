//! Plugins for tests, written as WebAssembly text: what all of them have, and the functions that a test adds.

use std::fmt::Write as _;

/// The functions of the host that tests use, with the numbers of their parameters.
pub(crate) const IMPORTS: &[(&str, &str)] = &[
    ("proxy_log", "i32 i32 i32"),
    ("proxy_get_log_level", "i32"),
    ("proxy_get_current_time_nanoseconds", "i32"),
    ("proxy_set_tick_period_milliseconds", "i32"),
    ("proxy_get_buffer_bytes", "i32 i32 i32 i32 i32"),
    ("proxy_get_buffer_status", "i32 i32 i32"),
    ("proxy_set_buffer_bytes", "i32 i32 i32 i32 i32"),
    ("proxy_get_header_map_pairs", "i32 i32 i32"),
    ("proxy_get_header_map_size", "i32 i32"),
    ("proxy_get_header_map_value", "i32 i32 i32 i32 i32"),
    ("proxy_set_header_map_pairs", "i32 i32 i32"),
    ("proxy_add_header_map_value", "i32 i32 i32 i32 i32"),
    ("proxy_replace_header_map_value", "i32 i32 i32 i32 i32"),
    ("proxy_remove_header_map_value", "i32 i32 i32"),
    ("proxy_continue_stream", "i32"),
    ("proxy_continue_request", ""),
    ("proxy_continue_response", ""),
    ("proxy_clear_route_cache", ""),
    ("proxy_get_configuration", "i32 i32"),
    ("proxy_close_stream", "i32"),
    ("proxy_send_local_response", "i32 i32 i32 i32 i32 i32 i32 i32"),
    ("proxy_http_call", "i32 i32 i32 i32 i32 i32 i32 i32 i32 i32"),
    ("proxy_get_property", "i32 i32 i32 i32"),
    ("proxy_set_property", "i32 i32 i32 i32"),
    ("proxy_get_shared_data", "i32 i32 i32 i32 i32"),
    ("proxy_set_shared_data", "i32 i32 i32 i32 i32"),
    ("proxy_define_metric", "i32 i32 i32 i32"),
    ("proxy_record_metric", "i32 i64"),
    ("proxy_increment_metric", "i32 i64"),
    ("proxy_get_metric", "i32 i32"),
    ("proxy_done", ""),
    ("proxy_set_effective_context", "i32"),
    ("proxy_call_foreign_function", "i32 i32 i32 i32 i32 i32"),
    ("proxy_register_shared_queue", "i32 i32 i32"),
    ("proxy_resolve_shared_queue", "i32 i32 i32 i32 i32"),
    ("proxy_enqueue_shared_queue", "i32 i32 i32"),
    ("proxy_dequeue_shared_queue", "i32 i32 i32"),
    ("proxy_grpc_call", "i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32"),
    ("proxy_grpc_stream", "i32 i32 i32 i32 i32 i32 i32 i32 i32"),
    ("proxy_grpc_send", "i32 i32 i32 i32"),
    ("proxy_grpc_close", "i32"),
    ("proxy_grpc_cancel", "i32"),
    ("proxy_get_status", "i32 i32 i32"),
];

pub(crate) const WASI: &[(&str, &str)] = &[
    ("fd_write", "i32 i32 i32 i32"),
    ("clock_time_get", "i32 i64 i32"),
    ("random_get", "i32 i32"),
    ("environ_get", "i32 i32"),
    ("environ_sizes_get", "i32 i32"),
    ("args_get", "i32 i32"),
    ("args_sizes_get", "i32 i32"),
    ("fd_close", "i32"),
    ("fd_seek", "i32 i64 i32 i32"),
    ("path_open", "i32 i32 i32 i32 i32 i64 i64 i32 i32"),
];

/// Memory for what the host gives, used again and again; `$place` and `$size` are where functions write where it is.
const COMMON: &str = r#"
  (memory (export "memory") 2)
  (global $heap (mut i32) (i32.const 65536))
  (global $place i32 (i32.const 16))
  (global $size i32 (i32.const 20))
  (func (export "proxy_on_memory_allocate") (param $bytes i32) (result i32)
    (local $at i32)
    (if (i32.gt_u (i32.add (global.get $heap) (local.get $bytes)) (i32.const 131072))
      (then (global.set $heap (i32.const 65536))))
    (local.set $at (global.get $heap))
    (global.set $heap (i32.add (global.get $heap) (local.get $bytes)))
    (local.get $at))
  (func $got_place (result i32) (i32.load (global.get $place)))
  (func $got_size (result i32) (i32.load (global.get $size)))
"#;

/// The text of a module with these functions. `$"text"` in them stands for the place and the length of a text in memory, in which
/// `\00` is a NUL.
pub(super) fn text(functions: &str) -> String {
    let mut module = "(module\n".to_owned();
    for (from, list) in [("env", IMPORTS), ("wasi_snapshot_preview1", WASI)] {
        for (name, parameters) in list.iter().filter(|(name, _)| functions.contains(&format!("${name}"))) {
            let _ =
                writeln!(module, "  (import \"{from}\" \"{name}\" (func ${name} (param {parameters}) (result i32)))");
        }
    }
    module.push_str(COMMON);
    let (functions, data) = with_texts(functions);
    module.push_str(&functions);
    module.push_str(&data);
    for always in
        ["(func (export \"proxy_abi_version_0_2_1\"))", "(func (export \"proxy_on_context_create\") (param i32 i32))"]
    {
        let name = always.split('"').nth(1).expect("an export has a name");
        // A test may have its own.
        if !(functions.contains(name) || name.contains("abi_version") && functions.contains("proxy_abi_version")) {
            module.push_str(always);
        }
    }
    module.push(')');
    module
}

/// Replaces texts by where they are, and returns what puts them there.
fn with_texts(functions: &str) -> (String, String) {
    const FIRST: usize = 1024;
    let (mut out, mut data, mut at) = (String::new(), String::new(), FIRST);
    let mut rest = functions;
    while let Some((before, after)) = rest.split_once("$\"") {
        let (text, after) = after.split_once('"').expect("a text ends");
        let length = text.len() - 2 * text.matches('\\').count();
        let _ = write!(out, "{before}(i32.const {at}) (i32.const {length})");
        let _ = writeln!(data, "(data (i32.const {at}) \"{text}\")");
        at += length;
        rest = after;
    }
    out.push_str(rest);
    (out, data)
}

/// A module with these functions.
pub(crate) fn module(functions: &str) -> Vec<u8> {
    let text = text(functions);
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}
