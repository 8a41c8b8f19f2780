//! The first example of the guide's page about hubs, tried as a user would: its configuration is served, and its commands are run.

use std::process::Command;

use weir_testkit::{Gateway, TempDir};

const PAGE: &str = include_str!("../../docs/guide/hub.md");
/// The node of the page.
const NODE: &str = "https://api.example.com";
const KEY: (&str, &str) = ("SHOP_KEY", "key-of-the-shop");

/// The blocks of the page with this language, in their order.
fn blocks(language: &str) -> Vec<&'static str> {
    let parts = PAGE.split("\n```").skip(1).step_by(2);
    parts.filter_map(|part| part.strip_prefix(language)?.strip_prefix('\n')).collect()
}

#[test]
fn the_first_example_of_the_guide_works_as_printed() {
    let data = TempDir::new();
    let configuration = blocks("yaml")[0].replace("/var/lib/weir", &data.path().display().to_string());
    let launcher = Gateway::with_binary(env!("CARGO_BIN_EXE_weir"));
    let gateway = launcher.env(KEY.0, KEY.1).env("ORDERS_SECRET", "of the publisher").start(&configuration);
    let node = format!("http://{}", gateway.addr());
    let commands = blocks("sh");
    assert!(commands.len() >= 2, "an event is published, and a subscription is requested");
    for command in commands {
        // The first address is where the request goes; others are names of topics.
        let command = command.replacen(NODE, &node, 1);
        let output = Command::new("sh").args(["-c", &command]).env(KEY.0, KEY.1).output().expect("sh starts");
        let answer = String::from_utf8_lossy(&output.stdout);
        assert!(answer.starts_with("HTTP/1.1 202 "), "{command}\n{answer}");
    }
}
