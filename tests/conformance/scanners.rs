//! Scanners of TLS by other people, against the defaults. Where one is not installed its tests are skipped, and say so.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use weir_testkit::{Authority, Gateway, Identity, KeyKind, Program, runs_for_minutes, skipped};

use crate::harness::weir;

/// A gateway with certificates of both kinds as public authorities issue them, and what else is said of them.
fn gateway(more: &str) -> (Gateway, PathBuf) {
    let authority = Authority::of_tests();
    let [ecdsa, rsa] = [KeyKind::Ecdsa, KeyKind::Rsa].map(|kind| authority.public_identity("localhost", kind));
    let Identity { certificate, key } = ecdsa;
    let gateway = weir().start(&format!(
        "listen: [{{ address: \"127.0.0.1:0\", tls: true }}]\n\
         ssls: [{{ sni: \"*\", cert: {certificate:?}, key: {key:?}, certs: [{:?}], keys: [{:?}]{more} }}]\n\
         routes: [{{ uri: /*, plugins: {{ mocking: {{ response_example: hello }} }} }}]\n",
        rsa.certificate, rsa.key
    ));
    let file = gateway.directory().write("authority.pem", &authority.certificate);
    (gateway, file)
}

fn target(gateway: &Gateway) -> String {
    format!("localhost:{}", gateway.tls_addr().port())
}

/// What sslyze says of a gateway, held against a configuration that Mozilla recommends.
fn is_compliant(more: &str, configuration: &str) {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/sslyze/bin/sslyze");
    if !program.exists() {
        skipped("there is no sslyze");
        return;
    }
    let (gateway, authority) = gateway(more);
    let mut command = Command::new(program);
    command.arg(format!("--mozilla_config={configuration}")).arg("--certinfo_ca_file").arg(authority);
    let Output { status, stdout, stderr } =
        command.arg(target(&gateway)).stdin(Stdio::null()).output().expect("it starts");
    let (said, complaint) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success() && said.contains("OK - Compliant."), "{said}\n{complaint}");
    assert!(!said.contains("Error when running"), "{said}");
    assert!(!gateway.stderr().contains("panicked"));
}

#[test]
fn sslyze_finds_the_defaults_as_mozilla_wants_them_for_many_clients() {
    is_compliant("", "intermediate");
}

#[test]
fn sslyze_finds_tls_1_3_alone_as_mozilla_wants_it_for_new_clients() {
    is_compliant(", ssl_protocols: [TLSv1.3]", "modern");
}

/// What testssl.sh finds that is true and no fault of the gateway, or not true; everything else has to be fine.
const KNOWN: [(&str, &str); 4] = [
    // The scanner's own openssl lacks what it would like to have.
    ("engine_problem", "No engine"),
    // All suites are good, so the client chooses the one that is quick for it, as Mozilla's configurations have it.
    ("cipher_order", "NOT a cipher order configured"),
    // An authority of tests revokes nothing.
    ("cert_revocation", "Neither CRL nor OCSP URI provided"),
    // Security headers are for the application, or for `response-rewrite`.
    ("security_headers", "--"),
];

/// It takes minutes.
#[test]
fn r09_testssl_finds_nothing() {
    if !runs_for_minutes("testssl takes minutes") {
        return;
    }
    let Some(mut command) = Program::find("testssl") else { return };
    let (gateway, authority) = gateway("");
    let debian = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/debian");
    // It looks for its tables beside itself, and asks for a resolver, which comes with it.
    if debian.join("usr/bin/testssl").exists() {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&folders).chain([debian.join("usr/bin")]);
        let path: OsString = std::env::join_paths(folders).expect("no colons");
        command.env("PATH", path).env("TESTSSL_INSTALL_DIR", debian.join("etc/testssl"));
    }
    let found = gateway.directory().path().join("found.csv");
    command.args(["--warnings", "batch", "--color", "0", "--nodns", "none", "--ip", "127.0.0.1", "--add-ca"]);
    command.arg(authority).arg("--csvfile").arg(&found).arg(format!("https://{}", target(&gateway)));
    let output = command.env("TERM", "dumb").stdin(Stdio::null()).output().expect("it starts");
    let found =
        std::fs::read_to_string(found).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stdout)));
    // "id","fqdn/ip","port","severity","finding","cve","cwe"
    let cells = |line: &str| line.trim_matches('"').split("\",\"").map(str::to_owned).collect::<Vec<String>>();
    let lines: Vec<Vec<String>> = found.lines().skip(1).map(cells).collect();
    assert!(lines.len() > 100, "{found}");
    let is_fine = |line: &&Vec<String>| matches!(&*line[3], "OK" | "INFO" | "LOW");
    let is_known =
        |line: &&Vec<String>| KNOWN.iter().any(|(id, said)| line[0].starts_with(id) && line[4].contains(said));
    let faults: Vec<&Vec<String>> = lines.iter().filter(|line| !is_fine(line) && !is_known(line)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(!gateway.stderr().contains("panicked"));
}
