//! Active checks where traffic goes in HTTP/2.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use weir_testkit::{Authority, DEADLINE, Gateway, eventually};

use crate::sides::{Http2, Plain, Secure, UpstreamSide};

fn endpoints_are_asked_in_http2<U: UpstreamSide>(terms: &str) {
    let health = Arc::new(AtomicU16::new(200));
    let told = Arc::clone(&health);
    let origin = U::origin(move |exchange| {
        let fields = exchange.fields();
        assert_eq!(fields.get("x-check"), Some("1"));
        assert_eq!(fields.get("user-agent"), Some("weir-health-check"));
        let (method, target) = (exchange.method().to_owned(), exchange.target().to_owned());
        let content = exchange.body().expect("all of it");
        let is_right = (&*method, &*target, &*content) == ("POST", "/health?x", b"ping");
        exchange.answer(if is_right { told.load(Ordering::SeqCst) } else { 500 }, &[], "");
    });
    let addr = origin.addr();
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:\n  - uri: /*\n    upstream:\n      nodes: {{ \"{addr}\": 1 }}\n      {terms}\n      checks:\n        \
         active: {{ http_method: POST, http_path: /health?x, http_req_body: ping, req_headers: [\"X-Check: 1\"], \
         type: {}, host: t, timeout: 1, healthy: {{ interval: 50ms }}, unhealthy: {{ interval: 50ms, http_failures: 2 }} }}\n",
        if U::TLS { "https" } else { "http" }
    ));
    let is_up = || gateway.metrics().sum("weir_upstream_endpoint_up", &[]) == 1.0;
    let healthy = || gateway.metrics().get("weir_health_checks_total{outcome=\"healthy\"}") >= Some(3.0);
    eventually("it says it is well", DEADLINE, healthy);
    assert!(is_up());
    health.store(503, Ordering::SeqCst);
    eventually("it is taken out", DEADLINE, || !is_up());
    health.store(200, Ordering::SeqCst);
    eventually("it is taken back", DEADLINE, is_up);
}

#[test]
fn endpoints_are_asked_in_http2_in_the_clear() {
    endpoints_are_asked_in_http2::<Http2<Plain>>("http2: true");
}

#[test]
fn endpoints_are_asked_in_http2_over_tls() {
    let authority = &Authority::of_tests().certificate;
    endpoints_are_asked_in_http2::<Http2<Secure>>(&format!("scheme: grpcs\n      tls: {{ ca: {authority:?} }}"));
}
