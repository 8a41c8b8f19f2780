//! A plugin made with the SDK for Rust, which `scripts/wasm-filter` builds.

use std::path::Path;

use weir_testkit::{Answer, Origin, runs_for_minutes, skipped};

use super::{WasmRig, WasmRigOptions};

/// The plugin, if it has been built.
fn built() -> Option<Vec<u8>> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/wasm/our_filter.wasm")).ok()
}

#[test]
fn a_wasm_plugin_of_the_sdk_changes_asks_shouts_and_panics() {
    // It is built by `make test-full`.
    let Some(code) = built() else {
        if runs_for_minutes("its plugin takes a minute to build") {
            skipped("`scripts/wasm-filter` has built no plugin");
        }
        return;
    };
    let service = Origin::serving(|request| {
        let user = if request.headers.has("x-nobody") { "" } else { "X-User: jack\r\n" };
        Answer::with(200, user, "")
    });
    let more = format!("upstreams: [{{ id: auth, type: roundrobin, nodes: {{ \"{}\": 1 }} }}]\n", service.addr());
    // Nothing is optimised in tests, the compiler of the plugin included: its first calls take longer than they may.
    let options = WasmRigOptions {
        options: "{ conf: shop }",
        keys: ", callback_time: 1s",
        more: &more,
        ..WasmRigOptions::default()
    };
    let rig = WasmRig::with_code(options, WasmRig::telling_origin(), &code);
    let ask = |fields: &str| {
        let request = format!("POST /own/a HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n{fields}\r\nhi");
        rig.gateway.client().ask(request).expect("an answer")
    };
    let told = ask("").text();
    assert!(told.contains("X-TEAM: SHOP\n") && told.ends_with("\n\nHI"), "{told}");
    let told = ask("X-Ask: 1\r\n").text();
    assert!(told.contains("X-USER: JACK\n"), "{told}");
    assert_eq!(ask("X-Panic: 1\r\n").status, 500);
    rig.gateway.wait_stderr("the panic", |line| line.contains("as the client wishes"));
    assert_eq!(ask("").status, 200, "it is started again");
    assert_eq!(service.requests().len(), 1);
}
