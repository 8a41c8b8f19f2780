//! h2spec, the conformance suite for servers of HTTP/2, in its strict mode. Where it is not installed the tests are
//! skipped, and say so.

use std::path::Path;
use std::process::{Command, Stdio};

use weir_testkit::{Authority, Identity, Origin, Reading, skipped};

use crate::harness::weir;

/// Runs all of it against a gateway with this `listen`, and expects every case to pass.
#[track_caller]
fn all_of_it(listen: &str, scheme: &str, options: &[&str]) {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/bin/h2spec");
    if !program.exists() {
        skipped("there is no h2spec");
        return;
    }
    let origin = Origin::echo(Reading::Strict);
    let routes = format!("routes: [{{ uri: /*, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]\n", origin.addr());
    let gateway = weir().start(&format!("{listen}{routes}"));
    let addr = gateway.addrs_of(scheme)[0];
    let mut command = Command::new(program);
    // An answer that takes a busy machine more than two seconds, the default, is no fault.
    command.args(["--strict", "--timeout", "20", "--host", "127.0.0.1", "--port", &addr.port().to_string()]);
    command.args(options);
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("146 tests, 146 passed, 0 skipped, 0 failed"), "{text}");
    let stderr = gateway.stderr();
    assert!(!stderr.contains("panicked"), "{stderr}");
}

#[test]
fn strictly_over_tls() {
    let Identity { certificate, key } = Authority::of_tests().identity(&["127.0.0.1"]);
    let listen = format!(
        "listen: [{{ address: \"127.0.0.1:0\", tls: true }}]\n\
         ssls: [{{ sni: \"*\", cert: {certificate:?}, key: {key:?} }}]\n"
    );
    all_of_it(&listen, "https", &["--tls", "--insecure"]);
}

/// Where HTTP/1 is spoken as well, a beginning that is neither gets the answer that HTTP/1 has for it (400), and h2spec
/// wants none: it takes an address for HTTP/2 alone.
#[test]
fn strictly_with_prior_knowledge() {
    all_of_it("listen: [{ address: \"127.0.0.1:0\", h2c: true }]\n", "h2c", &[]);
}
