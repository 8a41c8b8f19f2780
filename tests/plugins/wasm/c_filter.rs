//! A plugin in C, which `scripts/setup` compiles with Zig: its binary interface is written by hand, and not that of an SDK.

use std::path::Path;

use super::{WasmRig, WasmRigOptions};

/// The plugin, if it could be built.
fn built() -> Option<Vec<u8>> {
    let code = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/wasm/c_filter.wasm"));
    if code.is_err() {
        weir_testkit::skipped("there is no Zig that compiles c_filter.c");
    }
    code.ok()
}

#[test]
fn a_wasm_plugin_in_c_changes_and_refuses() {
    let Some(code) = built() else { return };
    let options = WasmRigOptions {
        options: "{ conf: shop }",
        // Nothing is optimised in tests, the compiler of the plugin included.
        keys: ", callback_time: 1s",
        ..WasmRigOptions::default()
    };
    let rig = WasmRig::with_code(options, WasmRig::telling_origin(), &code);
    for mut client in [rig.gateway.client(), rig.gateway.client().by_http2()] {
        for _ in 0..3 {
            let answer = client.get("/own/a").expect("an answer");
            assert!(answer.text().contains("x-team: shop\n"), "{}", answer.text());
            assert_eq!((answer.status, answer.headers.get("x-seen")), (200, Some("in C")));
        }
        let refused = client.ask("GET /own/a HTTP/1.1\r\nHost: t\r\nX-Refuse: 1\r\n\r\n").expect("an answer");
        assert_eq!((refused.status, refused.text()), (403, "not here".to_owned()));
    }
    assert_eq!(rig.origin.requests().len(), 6);
    assert!(!rig.get("/free").text().contains("x-team"));
    rig.gateway.wait_stderr("it is logged", |log| log.contains("a response was seen"));
}
