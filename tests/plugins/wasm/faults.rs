//! Plugins that are no plugins, fail, or never end.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use weir_testkit::{DEADLINE, Origin, TempDir, eventually};

use super::{WasmRig, WasmRigOptions, module, yaml};

/// What `weir check` says of a file with this plugin.
fn check(content: &[u8], options: WasmRigOptions) -> String {
    let (directory, origin) = (TempDir::new(), Origin::serving(|_| weir_testkit::Answer::ok("")));
    std::fs::write(directory.path().join("own.wasm"), content).expect("a file");
    let file = directory.write("weir.yaml", yaml(&origin, "own.wasm", &options));
    let check = Command::new(env!("CARGO_BIN_EXE_weir")).arg("check").arg(file).output().expect("it runs");
    String::from_utf8([check.stdout, check.stderr].concat()).expect("text")
}

fn default(keys: &'static str) -> WasmRigOptions<'static> {
    WasmRigOptions { keys, ..WasmRigOptions::default() }
}

#[test]
fn check_says_what_is_wrong_with_a_wasm_file_and_where() {
    let of = |functions: &str| check(&module(functions), default(""));
    let told = check(b"#!/bin/sh", default(""));
    assert!(told.contains("wasm.plugins[0].file") && told.contains("is not a WebAssembly module"), "{told}");
    let told = check(b"\0asm\x01\0\0\0\xff", default(""));
    assert!(told.contains("is not a WebAssembly module that can be run"), "{told}");
    let told = check(&wat::parse_str("(module)").expect("a module"), default(""));
    assert!(told.contains("is not a plugin of proxy-wasm"), "{told}");
    let missing = "(module (func (export \"proxy_abi_version_0_2_1\")) (memory (export \"memory\") 1))";
    let told = check(&wat::parse_str(missing).expect("a module"), default(""));
    assert!(told.contains("exports neither `proxy_on_memory_allocate` nor `malloc`"), "{told}");
    let import = super::module::text("").replacen(
        "(module",
        "(module (import \"env\" \"proxy_does_not_exist\" (func (param i32)))",
        1,
    );
    let told = check(&wat::parse_str(import).expect("a module"), default(""));
    assert!(told.contains("imports `env.proxy_does_not_exist`, which Weir does not have"), "{told}");
    let told = check(&module(""), default(", memory: 64KiB"));
    assert!(told.contains("needs 131072 bytes of memory to start"), "{told}");
    let told = of("(func (export \"proxy_on_configure\") (param i32 i32) (result i32) \
                   (drop (call $proxy_log (i32.const 4) $\"wants conf\")) (i32.const 0))");
    assert!(
        told.contains("routes[0].plugins.own.conf: the plugin refuses it (`proxy_on_configure`): wants conf"),
        "{told}"
    );
    let told = of("(func (export \"_initialize\") (loop $again (br $again)))");
    assert!(told.contains("the plugin cannot be started: a call took longer than 1000 ms"), "{told}");
    let told = of("(func (export \"_initialize\") unreachable)");
    assert!(told.contains("the plugin cannot be started: wasm trap") || told.contains("unreachable"), "{told}");
}

#[test]
fn check_says_that_a_name_is_taken_a_file_is_missing_and_an_option_is_unknown() {
    let (directory, origin) = (TempDir::new(), Origin::serving(|_| weir_testkit::Answer::ok("")));
    let check = |text: &str| {
        let file = directory.write("weir.yaml", text);
        let check = Command::new(env!("CARGO_BIN_EXE_weir")).arg("check").arg(file).output().expect("it runs");
        String::from_utf8([check.stdout, check.stderr].concat()).expect("text")
    };
    let missing = yaml(&origin, "nowhere.wasm", &default(""));
    let told = check(&missing);
    assert!(told.contains("wasm.plugins[0].file: the file `nowhere.wasm` cannot be read"), "{told}");
    assert!(!told.contains("this version has no plugin"), "{told}");
    let told = check(&missing.replace("name: own", "name: key-auth"));
    assert!(told.contains("wasm.plugins[0].name: `key-auth` is a plugin of Weir"), "{told}");
    std::fs::write(directory.path().join("nowhere.wasm"), module("")).expect("a file");
    let told = check(&missing.replace("own: {}", "own: { config: 1 }"));
    assert!(told.contains("`config` is not known"), "{told}");
    let told = check(&missing.replace("own: {}", "owm: {}"));
    assert!(told.contains("did you mean `own`?"), "{told}");
}

/// Fails in the way that a field of the request says.
const FAULTY: &str = r#"
  (func $deeper (call $deeper))
  (func $is (param $at i32) (param $size i32) (result i32)
    (drop (call $proxy_get_header_map_value (i32.const 0) $"x-fault" (global.get $place) (global.get $size)))
    (i32.and (i32.eq (call $got_size) (local.get $size))
             (i32.eq (i32.load8_u (call $got_place)) (i32.load8_u (local.get $at)))))
  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
    (i32.store (global.get $size) (i32.const 0))
    (if (call $is $"loop") (then (loop $again (br $again))))
    (if (call $is $"trap") (then unreachable))
    (if (call $is $"deep-in") (then (call $deeper)))
    (if (call $is $"grow-it") (then
      (loop $more (br_if $more (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
      (drop (i32.load (i32.const 0x7ffffff0)))))
    (if (call $is $"pointers") (then
      (drop (call $proxy_get_buffer_bytes (i32.const 7) (i32.const 0) (i32.const -1) (i32.const -4) (i32.const -8)))
      (drop (call $proxy_set_header_map_pairs (i32.const 0) (i32.const -1) (i32.const -1)))
      (drop (call $proxy_get_property (i32.const 0x7fffffff) (i32.const 0x7fffffff) (i32.const 1) (i32.const 2)))
      (drop (call $proxy_set_shared_data (i32.const -1) (i32.const 1) (i32.const 0) (i32.const 131073) (i32.const 0)))
      (drop (call $proxy_log (i32.const 4) (i32.const 131071) (i32.const 2)))))
    (i32.const 0))"#;

fn ask(rig: &WasmRig, fault: &str) -> u16 {
    let request = format!("GET /own/a HTTP/1.1\r\nHost: t\r\nX-Fault: {fault}\r\n\r\n");
    rig.gateway.client().ask(request).expect("an answer").status
}

/// A failing plugin is not started again at once each time; this waits until it is.
fn until_it_serves(rig: &WasmRig) {
    eventually("it is started again", DEADLINE, || rig.get("/own/a").status == 200);
}

#[test]
fn u80_a_wasm_plugin_that_fails_answers_with_500_and_is_started_again() {
    let rig = WasmRig::of(FAULTY);
    for fault in ["trap", "deep-in", "grow-it", "loop"] {
        until_it_serves(&rig);
        assert_eq!(ask(&rig, fault), 500, "{fault}");
        assert_eq!(rig.get("/free").status, 200);
    }
    until_it_serves(&rig);
    assert_eq!(ask(&rig, "pointers"), 200, "bad pointers are answered with a status");
    let metrics = rig.gateway.metrics();
    assert_eq!(metrics.get("weir_wasm_failures_total{plugin=\"own\"}"), Some(4.0));
    assert_eq!(metrics.get("weir_wasm_timeouts_total{plugin=\"own\"}"), Some(1.0));
    let log = rig.gateway.stderr();
    assert!(log.contains("plugin own of route/own: it has failed: a call took longer than 10 ms"), "{log}");
}

#[test]
fn u81_a_wasm_plugin_that_never_ends_does_not_keep_others_from_being_served() {
    let rig = WasmRig::of(FAULTY);
    let others = std::thread::scope(|scope| {
        let loops = scope.spawn(|| (0..5).map(|_| ask(&rig, "loop")).collect::<Vec<_>>());
        let mut client = rig.gateway.client();
        let others = (0..200).map(|_| client.get("/free").expect("an answer").status).collect::<Vec<_>>();
        assert_eq!(loops.join().expect("it ends"), [500; 5]);
        others
    });
    assert_eq!(others, [200; 200]);
}

#[test]
fn u82_a_wasm_plugin_that_fails_is_left_out_if_it_may_be() {
    let rig = WasmRig::with(WasmRigOptions { functions: FAULTY, keys: ", fail: open", ..WasmRigOptions::default() });
    for fault in ["trap", "loop", "trap", "deep-in"] {
        assert_eq!(ask(&rig, fault), 200, "{fault}");
    }
    assert_eq!(rig.origin.requests().len(), 4);
}

/// Answers with a number.
fn numbered(number: usize) -> String {
    format!(
        "(func (export \"proxy_on_request_headers\") (param i32 i32 i32) (result i32)
           (drop (call $proxy_send_local_response (i32.const 200) $\"\" $\"{number}\" $\"\" (i32.const -1)))
           (i32.const 1))"
    )
}

#[test]
fn f15_a_changed_wasm_file_is_used_without_a_failed_request() {
    let rig = WasmRig::of(&numbered(0));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let (mut client, mut last, mut count) = (rig.gateway.client(), 0, 0);
            while !stop.load(Relaxed) {
                let answer = client.get("/own/a").expect("an answer");
                assert_eq!(answer.status, 200);
                let number: usize = answer.text().parse().expect("a number");
                assert!(number >= last, "{number} after {last}");
                (last, count) = (number, count + 1);
            }
            count
        });
        for number in 1..=5 {
            rig.directory.write("own.wasm", module(&numbered(number)));
            eventually("the file is read again", DEADLINE, || rig.get("/own/a").text() == number.to_string());
        }
        stop.store(true, Relaxed);
        assert!(load.join().expect("it ends") > 5);
    });
    // A file that is no plugin changes nothing.
    rig.directory.write("own.wasm", b"\0asm");
    rig.gateway.wait_stderr("why", |log| log.contains("is not a WebAssembly module that can be run"));
    assert_eq!(rig.get("/own/a").text(), "5");
}

#[test]
fn wasm_plugins_are_known_to_the_commands_and_the_admin_api() {
    let port = weir_testkit::free_port();
    let key = "2f1c6f0d5e8b4a97c3d2e1f0a9b8c7d6";
    let more = format!(
        "admin: {{ listen: \"127.0.0.1:{port}\", store: file, keys: [{{ name: ops, key: {key}, role: admin }}] }}\n"
    );
    let rig = WasmRig::with(WasmRigOptions { more: &more, ..WasmRigOptions::default() });
    let file = rig.gateway.file().to_string_lossy().into_owned();
    let said = |arguments: &[&str]| {
        let ran = Command::new(env!("CARGO_BIN_EXE_weir")).args(arguments).output().expect("it runs");
        String::from_utf8([ran.stdout, ran.stderr].concat()).expect("text")
    };
    let told = said(&["explain", &file, "GET", "http://t/own/a"]);
    assert!(told.contains("own") && told.contains("100"), "{told}");
    let told = said(&["plugins", "own", "--file", &file]);
    assert!(told.contains("Priority: 100") && told.contains("conf"), "{told}");
    assert!(said(&["plugins", "own"]).contains("there is no plugin `own`"));
    let mut client = weir_testkit::Client::connect(([127, 0, 0, 1], port).into());
    let mut ask = |path: &str| {
        let request =
            format!("GET /apisix/admin/plugins/{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-API-KEY: {key}\r\n\r\n");
        client.ask(request).expect("an answer")
    };
    let listed = ask("list").text();
    assert!(listed.contains("\"own\"") && listed.contains("\"key-auth\""), "{listed}");
    let schema = ask("own");
    assert!(schema.status == 200 && schema.text().contains("conf"), "{schema:?}");
    rig.get("/own/a");
    assert!(rig.gateway.ask_status("/policies").text().contains("routes"));
}

#[test]
fn output_in_pieces_is_logged_by_lines_and_does_not_hide_a_failure() {
    // 60 times two bytes without a line break, a line break, two more bytes, and a trap.
    let printed = "(func (export \"proxy_on_request_headers\") (param i32 i32 i32) (result i32) (local i32)
        (i32.store (i32.const 64) (i32.const 80)) (i32.store (i32.const 68) (i32.const 2))
        (i32.store16 (i32.const 80) (i32.const 0x6261))
        (loop (drop (call $fd_write (i32.const 2) (i32.const 64) (i32.const 1) (i32.const 72)))
          (local.set 3 (i32.add (local.get 3) (i32.const 1))) (br_if 0 (i32.lt_u (local.get 3) (i32.const 60))))
        (i32.store16 (i32.const 80) (i32.const 0x630a))
        (drop (call $fd_write (i32.const 2) (i32.const 64) (i32.const 1) (i32.const 72)))
        unreachable)";
    let rig = WasmRig::of(printed);
    assert_eq!(rig.get("/own/a").status, 500);
    rig.gateway.wait_stderr("the failure", |line| line.contains("it has failed"));
    let log = rig.gateway.stderr();
    assert!(log.contains(&format!("plugin own of route/own: {}\n", "ab".repeat(60))), "{log}");
    assert!(log.contains("plugin own of route/own: c\n"), "{log}");
}
