//! A plugin in WebAssembly whose configuration is a list of calls: which function of the host, and with what arguments.

use std::fmt::Write as _;

use weir_wasm::trial::TriedModule;

#[path = "../tests/plugins/wasm/module.rs"]
mod text;

/// The most bytes of a list.
pub(crate) const MOST: usize = 4096;

/// Arguments that say more than small numbers do: the ends of the memory, places of texts and of results, and of no memory at all.
const ARGUMENTS: [i64; 32] = [
    -1,
    -2,
    -8,
    0x7fff_ffff,
    -0x8000_0000,
    65_535,
    65_536,
    131_064,
    131_071,
    131_072,
    131_073,
    1 << 20,
    16,
    20,
    32,
    36,
    100,
    200,
    404,
    499,
    600,
    1000,
    65_000,
    100_000,
    1 << 16,
    1 << 24,
    255,
    256,
    4095,
    4096,
    i64::MAX,
    i64::MIN,
];

/// Callbacks with their parameters; those with a result say to go on.
const CALLBACKS: [(&str, &str, bool); 11] = [
    ("proxy_on_request_headers", "i32 i32 i32", true),
    ("proxy_on_request_body", "i32 i32 i32", true),
    ("proxy_on_request_trailers", "i32 i32", true),
    ("proxy_on_response_headers", "i32 i32 i32", true),
    ("proxy_on_response_body", "i32 i32 i32", true),
    ("proxy_on_response_trailers", "i32 i32", true),
    ("proxy_on_tick", "i32", false),
    ("proxy_on_http_call_response", "i32 i32 i32 i32 i32", false),
    ("proxy_on_done", "i32", true),
    ("proxy_on_log", "i32", false),
    ("proxy_on_delete", "i32", false),
];

/// Texts that functions know, at 1024 and behind: names of services, properties and fields, and a map.
const TEXTS: &str = "auth\\00:path\\00x-one\\00request\\00host\\00plugin_name\\00\\01\\00\\00\\00\\01\\00\\00\\00\\01\\00\\00\\00a\\00b\\00";

/// A list of calls is read at `$at`. A byte below 128 is an argument, one below 192 a place in the texts, and the others are `ARGUMENTS`.
const READING: &str = r#"
  (global $at (mut i32) (i32.const 0))
  (global $end (mut i32) (i32.const 0))
  (func $byte (result i32)
    (local $read i32)
    (if (i32.ge_u (global.get $at) (global.get $end)) (then (return (i32.const 0))))
    (local.set $read (i32.load8_u (global.get $at)))
    (global.set $at (i32.add (global.get $at) (i32.const 1)))
    (local.get $read))
  (func $long (result i64)
    (local $read i32)
    (local.set $read (call $byte))
    (if (i32.lt_u (local.get $read) (i32.const 128)) (then (return (i64.extend_i32_u (local.get $read)))))
    (if (i32.lt_u (local.get $read) (i32.const 192))
      (then (return (i64.extend_i32_u (i32.add (i32.const 896) (local.get $read))))))
    (i64.load (i32.add (i32.const 512) (i32.mul (i32.and (local.get $read) (i32.const 31)) (i32.const 8)))))
  (func $argument (result i32) (i32.wrap_i64 (call $long)))
  (func (export "proxy_on_configure") (param $context i32) (param $size i32) (result i32)
    (drop (call $proxy_get_buffer_bytes (i32.const 7) (i32.const 0) (local.get $size) (i32.const 16) (i32.const 20)))
    (memory.copy (i32.const 8192) (i32.load (i32.const 16)) (local.get $size))
    (global.set $at (i32.const 8192))
    (global.set $end (i32.add (i32.const 8192) (local.get $size)))
    (i32.const 1))
  (func $some
    (local $left i32)
    (local.set $left (i32.and (call $byte) (i32.const 15)))
    (loop $next
      (call $one)
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $next (i32.gt_s (local.get $left) (i32.const 0)))))
"#;

/// `$one` makes the next call of the list.
fn one_call() -> String {
    let functions: Vec<_> = text::IMPORTS.iter().chain(text::WASI).collect();
    let count = functions.len();
    let mut out = "(func $one (block $end\n".to_owned();
    for number in (0..count).rev() {
        let _ = write!(out, "(block $call{number} ");
    }
    let all: Vec<String> = (0..count).map(|number| format!("$call{number}")).collect();
    let _ = writeln!(out, "(br_table {} (i32.rem_u (call $byte) (i32.const {count}))))", all.join(" "));
    for (number, (name, parameters)) in functions.iter().enumerate() {
        let arguments = parameters.split_whitespace().map(|kind| match kind {
            "i64" => "(call $long)",
            _ => "(call $argument)",
        });
        let arguments = arguments.collect::<Vec<_>>().join(" ");
        let end = if number + 1 < count { ")" } else { "" };
        let _ = writeln!(out, "(drop (call ${name} {arguments})) (br $end){end}");
    }
    out + "))\n"
}

/// The module.
pub(crate) fn module() -> TriedModule {
    let mut functions = format!("{READING}{}", one_call());
    for (name, parameters, has_result) in CALLBACKS {
        let (result, value) = if has_result { ("(result i32)", "(i32.const 0)") } else { ("", "") };
        let _ = writeln!(functions, "(func (export \"{name}\") (param {parameters}) {result} (call $some) {value})");
    }
    let bytes = |value: &i64| value.to_le_bytes().map(|byte| format!("\\{byte:02x}")).concat();
    let arguments: String = ARGUMENTS.iter().map(bytes).collect();
    let _ = writeln!(functions, "(data (i32.const 512) \"{arguments}\") (data (i32.const 1024) \"{TEXTS}\")");
    TriedModule::of(&text::module(&functions)).expect("it is a plugin")
}
