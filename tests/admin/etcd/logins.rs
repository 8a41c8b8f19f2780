//! An etcd that wants a name and a password. It forgets the tokens that it gives for them.

use std::fs;
use std::path::Path;

use weir_testkit::{DEADLINE, Gateway, TempDir, eventually};

use super::{Etcd, mocking, serves};
use crate::api::Api;
use crate::weir;

const ROOT: &[&str] = &["--user", "root:secret"];

/// How many tokens etcd has forgotten because they were not used, as it writes to its log.
fn forgotten(log: &Path) -> usize {
    fs::read_to_string(log).unwrap_or_default().matches("deleted a simple token").count()
}

fn write(gateway: &Gateway, text: &str) {
    let answer = Api::of(gateway).ask("PUT", "routes/r", "", &mocking(text));
    assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
    assert!(serves(gateway, "/r", text));
}

#[test]
fn a_token_that_etcd_has_forgotten_is_renewed() {
    let Some(mut etcd) = Etcd::at(&["127.0.0.1"]) else { return };
    let directory = TempDir::new();
    let log = directory.join("etcd.log");
    let output = log.to_str().expect("a path");
    etcd.start_with(0, &["--auth-token-ttl", "1", "--log-level", "debug", "--log-outputs", output]);
    etcd.wait();
    etcd.ctl(&["user", "add", "root:secret"]);
    etcd.ctl(&["role", "add", "root"]);
    etcd.ctl(&["role", "add", "other"]);
    etcd.ctl(&["user", "grant-role", "root", "root"]);
    etcd.ctl(&["auth", "enable"]);
    let file = etcd.node(&directory).replace("hosts:", "user: root, password: secret, hosts:");
    let gateway = weir().start(&file);
    for round in ["first", "second"] {
        let before = forgotten(&log);
        write(&gateway, round);
        eventually("the token is forgotten", DEADLINE, || forgotten(&log) > before);
    }
    write(&gateway, "after a pause");
    // A change of the user's roles ends its tokens at once.
    etcd.ctl(&[ROOT, &["user", "grant-role", "root", "other"]].concat());
    write(&gateway, "after a change of roles");
    assert!(!gateway.stderr().contains("does not answer"), "the connection is kept: {}", gateway.stderr());
}
