//! The work for an input of twice the size is at most about twice the work: counted as instructions, by valgrind, so that the machine's
//! speed says nothing.

#[allow(dead_code)]
#[path = "targets.rs"]
mod targets;

use std::env;
use std::process::Command;

use weir_testkit::{runs_for_minutes, skipped};

/// An input of any size: its beginning, a part for each number, and its end.
type GrowingInput = (&'static str, &'static str, fn(usize) -> String, &'static str);

/// Inputs of each target, of all that can be there often.
const INPUTS: &[GrowingInput] = &[
    ("transcoding", r#"{"list":["#, |_| r#"{"text":"a"},"#.to_owned(), "{}]}"),
    ("transcoding", r#"{"texts":{"#, |number| format!("\"k{number}\":\"v\","), r#""":""}}"#),
    ("transcoding", r#"{"text":""#, |_| "\\u00e9x".to_owned(), "\"}"),
    ("transcoding", r#"{"numbers":["#, |number| format!("{number},"), "0]}"),
    ("transcoding", "", |number| format!("numbers={number}&"), "text=a"),
    ("transcoding", "", |number| format!("texts.k{number}=v&"), "text=a"),
    ("transcoding", "/v1/{text=**}\n/v1/", |_| "a/".to_owned(), "b"),
    ("transcoding", "", |_| "\u{1a}\u{2}\u{a}\u{0}".to_owned(), ""),
    ("xml", "<a>", |_| "<b><c>x</c></b>".to_owned(), "</a>"),
    ("xml", "<a ", |number| format!("x{number}=\"1\" "), "/>"),
    ("xml", "<a>", |_| "&amp;<!-- x -->".to_owned(), "</a>"),
    ("xml", "<a>", |_| "<![CDATA[x]]>".to_owned(), "</a>"),
    ("body_values", "<a>", |_| "<b>x</b>".to_owned(), "</a>"),
    ("body_values", "<a>", |number| format!("<b{number}>x</b{number}>y"), "</a>"),
    ("body_values", "<a ", |number| format!("x{number}=\"1\" "), "/>"),
    ("body_values", "[", |_| "{\"a\":[1]},".to_owned(), "0]"),
    ("body_values", "", |number| format!("a={number}&"), "a=0"),
    ("body_values", "", |number| format!("a{number}={number}&"), "a=0"),
    (
        "body_values",
        "",
        |number| format!("--b\r\nContent-Disposition: form-data; name=\"a{number}\"\r\n\r\nx\r\n"),
        "--b--\r\n",
    ),
    ("body_template", "", |_| "{{a.b[1]}} {* c *}".to_owned(), ""),
    ("proto_text", "syntax = \"proto3\"; ", |number| format!("message M{number} {{ string a = 1; }} "), ""),
    ("proto_text", "syntax = \"proto3\"; message A { ", |number| format!("string f{number} = {}; ", number + 1), "}"),
    ("proto_text", "syntax = \"proto3\"; enum E { Z = 0; ", |number| format!("V{number} = {}; ", number + 1), "}"),
    (
        "proto_text",
        "syntax = \"proto3\"; message A {} service S { ",
        |number| format!("rpc R{number} (A) returns (A); "),
        "}",
    ),
    ("graphql", "{ ", |number| format!("a{number}: b(c: [1, \"x\"]) {{ d }} "), "}"),
    ("graphql", "{ a ", |_| "...F ".to_owned(), "} fragment F on T { b }"),
    ("json", "[", |_| "{\"a\": [1, \"\\n\"]},".to_owned(), "0]"),
];

/// The variable that has the number of an input, and how many parts it has.
const CHOSEN: &str = "WEIR_GROWTH";
const PARTS: usize = 150;

#[test]
#[ignore = "it is run by the other test, under valgrind"]
fn one_input() {
    let chosen = env::var(CHOSEN).expect("the other test sets it");
    let (number, parts) = chosen.split_once(' ').expect("two numbers");
    let (name, start, part, end) = INPUTS[number.parse::<usize>().expect("a number")];
    let input = format!("{start}{}{end}", (0..parts.parse().expect("a number")).map(part).collect::<String>());
    let (_, target) = targets::ALL.iter().find(|(own, _)| *own == name).expect("a target of this name");
    target(input.as_bytes());
}

/// The instructions for an input; `None` without valgrind.
fn instructions(number: usize, parts: usize) -> Option<u64> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(env::current_exe().expect("it runs"));
    command.args(["--exact", "one_input", "--ignored", "--test-threads=1"]).env(CHOSEN, format!("{number} {parts}"));
    let output = command.output().ok()?;
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let count = told.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    Some(count.unwrap_or_else(|| panic!("valgrind says no count: {told}")))
}

#[test]
fn targets_need_at_most_about_twice_the_work_for_twice_the_size() {
    if !runs_for_minutes("it runs every input under valgrind") {
        return;
    }
    let mut wrong = Vec::new();
    for (number, (name, start, ..)) in INPUTS.iter().enumerate() {
        let Some(nothing) = instructions(number, 0) else { return skipped("there is no valgrind") };
        let [once, twice] =
            [PARTS, 2 * PARTS].map(|parts| instructions(number, parts).expect("it was there").saturating_sub(nothing));
        let growth = twice as f64 / once.max(1) as f64;
        println!("{name} {start:?}: {once} and {twice} instructions, {growth:.2}");
        // Beside what grows with the size there is what grows with its logarithm, and buffers that double.
        if growth > 2.4 && twice > 1_000_000 {
            wrong.push(format!("{name} {start:?}: {growth:.2} times"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
