//! Plugins that call services, keep data and metrics, and do things at times.

use weir_testkit::{Answer, DEADLINE, Origin, eventually};

use super::{WasmRig, WasmRigOptions};

/// Asks `auth` about each request: what it answers with 200 goes on with its field `x-user`, and the rest is refused with its status.
const ASKS: &str = r#"
  (global $context (mut i32) (i32.const 0))
  (func (export "proxy_on_request_headers") (param $context i32) (param i32 i32) (result i32)
    (if (call $proxy_http_call $"auth"
          $"\03\00\00\00\07\00\00\00\03\00\00\00\05\00\00\00\06\00\00\00\0a\00\00\00\04\00\00\00:method\00GET\00:path\00/check\00:authority\00auth\00"
          $"" $"" (i32.const 5000) (i32.const 32))
      (then (drop (call $proxy_send_local_response (i32.const 502) $"" $"no call" $"" (i32.const -1)))))
    (i32.const 1))
  (func (export "proxy_on_http_call_response") (param $context i32) (param i32) (param $fields i32) (param i32 i32)
    (if (i32.eqz (local.get $fields)) (then
      (drop (call $proxy_send_local_response (i32.const 503) $"" $"no answer" $"" (i32.const -1)))
      (return)))
    (drop (call $proxy_get_header_map_value (i32.const 6) $"x-user" (global.get $place) (global.get $size)))
    (if (i32.eqz (call $got_size)) (then
      (drop (call $proxy_send_local_response (i32.const 401) $"" $"who?" $"" (i32.const -1)))
      (return)))
    (drop (call $proxy_replace_header_map_value (i32.const 0) $"x-user" (call $got_place) (call $got_size)))
    (drop (call $proxy_continue_stream (i32.const 0))))"#;

fn asks(service: &str) -> WasmRig {
    let more = format!("upstreams: [{{ id: auth, type: roundrobin, nodes: {{ \"{service}\": 1 }} }}]\n");
    WasmRig::with(WasmRigOptions { functions: ASKS, more: &more, ..WasmRigOptions::default() })
}

#[test]
fn a_wasm_plugin_asks_a_service_and_goes_on_when_it_has_answered() {
    let service = Origin::serving(|_| Answer::with(200, "X-User: jack\r\n", ""));
    let rig = asks(&service.addr().to_string());
    let told = rig.get("/own/a").text();
    assert!(told.contains("x-user: jack\n"), "{told}");
    let asked = &service.requests()[0];
    assert_eq!((&*asked.method, &*asked.target, asked.headers.get("host")), ("GET", "/check", Some("auth")));
    let nobody = Origin::serving(|_| Answer::with(200, "X-User: \r\n", ""));
    let rig = asks(&nobody.addr().to_string());
    assert_eq!((rig.get("/own/a").status, rig.origin.requests().len()), (401, 0));
}

#[test]
fn a_wasm_plugin_is_told_that_a_service_does_not_answer() {
    let port = weir_testkit::free_port();
    let rig = asks(&format!("127.0.0.1:{port}"));
    let answer = rig.get("/own/a");
    assert_eq!((answer.status, answer.text()), (503, "no answer".to_owned()));
    rig.gateway.wait_stderr("why", |log| log.contains("its call of a service has failed"));
}

/// Holds a request for nothing.
const STUCK: &str = "(func (export \"proxy_on_request_headers\") (param i32 i32 i32) (result i32) (i32.const 1))";

#[test]
fn a_wasm_plugin_that_waits_for_nothing_is_not_waited_for() {
    let rig = WasmRig::of(STUCK);
    assert_eq!(rig.get("/own/a").status, 500);
    rig.gateway.wait_stderr("why", |log| log.contains("it holds a message for which it waits for nothing"));
}

/// Counts requests in data that all workers share, and in a metric; says how many it has seen. Counts ticks as well.
const COUNTS: &str = r#"
  (func (export "proxy_on_vm_start") (param i32 i32) (result i32)
    (drop (call $proxy_define_metric (i32.const 0) $"requests" (i32.const 100)))
    (drop (call $proxy_define_metric (i32.const 1) $"ticks" (i32.const 104)))
    (drop (call $proxy_set_tick_period_milliseconds (i32.const 10)))
    (i32.const 1))
  (func (export "proxy_on_tick") (param i32)
    (drop (call $proxy_increment_metric (i32.load (i32.const 104)) (i64.const 1))))
  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
    (drop (call $proxy_increment_metric (i32.load (i32.const 100)) (i64.const 1)))
    (i32.store (i32.const 112) (i32.const 48))
    (if (i32.eqz (call $proxy_get_shared_data $"seen" (global.get $place) (global.get $size) (i32.const 108)))
      (then (i32.store (i32.const 112) (i32.add (i32.load8_u (call $got_place)) (i32.const 1)))))
    (drop (call $proxy_set_shared_data $"seen" (i32.const 112) (i32.const 1) (i32.const 0)))
    (drop (call $proxy_send_local_response (i32.const 200) $"" (i32.const 112) (i32.const 1) $"" (i32.const -1)))
    (i32.const 1))"#;

#[test]
fn a_wasm_plugin_keeps_data_and_metrics_and_does_things_at_times() {
    let rig = WasmRig::of(COUNTS);
    for count in 0..5 {
        assert_eq!(rig.get("/own/a").text(), count.to_string());
    }
    let requests = "weir_wasm_counter_total{plugin=\"own\",name=\"requests\"}";
    assert_eq!(rig.gateway.metrics().get(requests), Some(5.0));
    let ticks = || rig.gateway.metrics().get("weir_wasm_gauge{plugin=\"own\",name=\"ticks\"}");
    eventually("it ticks", DEADLINE, || ticks().is_some_and(|ticks| ticks > 3.0));
    assert_eq!(rig.gateway.metrics().get("weir_wasm_instances{plugin=\"own\"}"), Some(1.0));
}

#[test]
fn a_wasm_plugin_sees_exchanges_that_have_ended() {
    let rig = WasmRig::of(
        r#"
  (func (export "proxy_on_log") (param i32)
    (drop (call $proxy_get_property $"response\00headers\00x-origin" (global.get $place) (global.get $size)))
    (drop (call $proxy_log (i32.const 4) (call $got_place) (call $got_size)))
    (drop (call $proxy_get_header_map_value (i32.const 0) $":path" (global.get $place) (global.get $size)))
    (drop (call $proxy_log (i32.const 4) (call $got_place) (call $got_size))))"#,
    );
    rig.get("/own/seen");
    rig.gateway.wait_stderr("the field", |line| line.contains("plugin own of route/own: 1"));
    rig.gateway.wait_stderr("the path", |line| line.contains("plugin own of route/own: /own/seen"));
}
