use std::time::Duration;

use serde_json::{Value, json};

use super::*;

mod properties;

fn operation(value: Value) -> EditOperation {
    serde_json::from_value(value).expect("it is an operation")
}

fn add(path: &str, value: Value) -> EditOperation {
    operation(json!({ "op": "add", "path": path, "value": value }))
}

fn remove(path: &str) -> EditOperation {
    operation(json!({ "op": "remove", "path": path }))
}

fn shift(from: &str, path: &str) -> EditOperation {
    operation(json!({ "op": "move", "from": from, "path": path }))
}

fn edited(text: &str, operation: EditOperation) -> String {
    edit(&"f".into(), text, &[operation], &mut EditBudget::default())
        .unwrap_or_else(|faults| panic!("{text}: {faults:?}"))
}

fn refused(text: &str, operation: EditOperation) -> String {
    let faults = edit(&"f".into(), text, &[operation], &mut EditBudget::default()).expect_err("it is refused");
    faults.iter().map(Diagnostic::to_string).collect::<Vec<_>>().join("\n")
}

const COMMENTED: &str = "\
# the node
workers: 2   # two

routes:
  # about the first
  - uri: /a   # its path
    upstream: { nodes: { 'h:1': 1 } }

  # about the second
  - id: b
    uri: \"/b\"
    plugins:
      # why
      cors: {}
#END
";

#[test]
fn a_scalar_keeps_its_quotes_and_its_comment() {
    let cases = [
        ("a: 1 # c\n", json!(2), "a: 2 # c\n"),
        ("a: 'x' # c\n", json!("it's"), "a: 'it''s' # c\n"),
        ("a: \"x\"  # c\n", json!("y"), "a: \"y\"  # c\n"),
        ("a: x\n", json!("yes"), "a: \"yes\"\n"),
        ("a: x\n", json!("a: b"), "a: \"a: b\"\n"),
        ("a:   # c\nb: 1\n", json!("x"), "a: x   # c\nb: 1\n"),
        ("a: x\n  y # c\nb: 1\n", json!("z"), "a: z # c\nb: 1\n"),
        ("a: &k 1\n", json!(2), "a: &k 2\n"),
        ("a: !!str 1 # c\n", json!(2), "a: 2 # c\n"),
        ("a: 1", json!(2), "a: 2"),
        ("a: 1\r\nb: 2\r\n", json!(null), "a: null\r\nb: 2\r\n"),
        ("\u{feff}a: é # é\n", json!("ü"), "\u{feff}a: ü # é\n"),
    ];
    for (text, value, expected) in cases {
        assert_eq!(edited(text, add("/a", value)), expected);
    }
}

#[test]
fn a_block_scalar_stays_one() {
    let text = "a: | # c\n    one\n    two\n\nb: 1\n";
    assert_eq!(edited(text, add("/a", json!("one\n2\n"))), "a: | # c\n    one\n    2\n\nb: 1\n");
    assert_eq!(edited(text, add("/a", json!("x\ny"))), "a: |- # c\n    x\n    y\n\nb: 1\n");
    assert_eq!(edited(text, add("/a", json!(5))), "a: 5 # c\n\nb: 1\n");
    assert_eq!(edited("a: x # c\n", add("/a", json!("x\ny\n"))), "a: | # c\n  x\n  y\n");
    assert_eq!(edited(text, remove("/a")), "\nb: 1\n");
    assert_eq!(edited("- |+\n  a\n\n- b\n", add("/1", json!("x"))), "- |+\n  a\n\n- x\n- b\n");
}

#[test]
fn a_new_key_is_a_line_behind_the_others() {
    assert_eq!(
        edited(COMMENTED, add("/routes/1/plugins/key-auth", json!({}))),
        COMMENTED.replace("      cors: {}\n", "      cors: {}\n      key-auth: {}\n")
    );
    assert_eq!(
        edited(COMMENTED, add("/routes/0/upstream/nodes/g:2", json!(1))),
        COMMENTED.replace("'h:1': 1 }", "'h:1': 1, \"g:2\": 1 }")
    );
    assert_eq!(edited("a: 1", add("/b", json!({ "c": [1, { "d": 2 }] }))), "a: 1\nb:\n  c:\n    - 1\n    - d: 2");
    assert_eq!(edited("a: 1\r\n", add("/b", json!("x"))), "a: 1\r\nb: x\r\n");
    assert_eq!(edited("a: {}  # c\n", add("/a/b", json!(1))), "a: { b: 1 }  # c\n");
    assert_eq!(edited("a: {}  # c\n", add("/a/b", json!({ "c": 1 }))), "a:  # c\n  b:\n    c: 1\n");
    assert_eq!(
        edited("a: {\n  b: 1, # c\n  d: 2  # e\n}\n", add("/a/f", json!(3))),
        "a: {\n  b: 1, # c\n  d: 2,  # e\n  f: 3\n}\n"
    );
}

#[test]
fn a_key_is_removed_with_its_lines_only() {
    assert_eq!(edited(COMMENTED, remove("/workers")), COMMENTED.replace("workers: 2   # two\n", ""));
    assert_eq!(
        edited(COMMENTED, remove("/routes/1/plugins/cors")),
        COMMENTED.replace("plugins:\n      # why\n      cors: {}\n", "plugins: {}\n      # why\n")
    );
    assert_eq!(edited(COMMENTED, remove("/routes/1/id")), COMMENTED.replace("- id: b\n    uri", "- uri"));
    assert_eq!(edited("a: { b: 1, c: 2 } # d\n", remove("/a/c")), "a: { b: 1 } # d\n");
    assert_eq!(edited("a: { b: 1, c: 2 } # d\n", remove("/a/b")), "a: { c: 2 } # d\n");
    assert_eq!(edited("a: {\n  b: 1, # x\n  c: 2  # y\n}\n", remove("/a/c")), "a: {\n  b: 1 # x\n}\n");
    assert_eq!(edited("a: 1\nb: 2", remove("/b")), "a: 1");
}

#[test]
fn items_are_inserted_removed_and_moved_with_their_comments() {
    let text = "list:\n# first\n- a\n\n# second\n- b # own\n- c";
    assert_eq!(edited(text, add("/list/-", json!("d"))), "list:\n# first\n- a\n\n# second\n- b # own\n- c\n- d");
    assert_eq!(edited(text, add("/list/0", json!("d"))), "list:\n- d\n# first\n- a\n\n# second\n- b # own\n- c");
    assert_eq!(
        edited(text, add("/list/1", json!({ "x": 1 }))),
        "list:\n# first\n- a\n- x: 1\n\n# second\n- b # own\n- c"
    );
    assert_eq!(edited(text, remove("/list/2")), "list:\n# first\n- a\n\n# second\n- b # own");
    assert_eq!(edited(text, shift("/list/1", "/list/2")), "list:\n# first\n- a\n\n- c\n# second\n- b # own");
    assert_eq!(edited(text, shift("/list/2", "/list/0")), "list:\n- c\n# first\n- a\n\n# second\n- b # own");
    assert_eq!(edited("a: [1, 2, 3] # c\n", shift("/a/0", "/a/2")), "a: [2, 3, 1] # c\n");
    assert_eq!(edited("a: [x, 2] # c\n", add("/a/1", json!(5))), "a: [x, 5, 2] # c\n");
    assert_eq!(edited("a:\n  - 1\nb: 2\n", remove("/a/0")), "a: []\nb: 2\n");
    assert_eq!(edited("a:\n  - { x: 1 }\n", add("/a/-", json!({ "x": 2 }))), "a:\n  - { x: 1 }\n  - { x: 2 }\n");
    assert_eq!(edited("- - a\n  - b\n", remove("/0/0")), "- - b\n");
    assert_eq!(edited("- - a\n  - b\n", add("/0/0", json!("x"))), "- - x\n  - a\n  - b\n");
}

#[test]
fn only_what_differs_of_a_value_is_written() {
    let value = json!({ "id": "b", "uri": "/new", "plugins": { "cors": { "max_age": 5 }, "key-auth": {} } });
    assert_eq!(
        edited(COMMENTED, operation(json!({ "op": "replace", "path": "/routes/1", "value": value }))),
        COMMENTED.replace("\"/b\"", "\"/new\"").replace("cors: {}\n", "cors: { max_age: 5 }\n      key-auth: {}\n")
    );
}

#[test]
fn an_alias_says_that_others_would_change() {
    let text = "x: &t { a: 1 }\ny: *t\nz:\n  <<: *t\n  b: 2\n";
    assert_eq!(
        refused(text, add("/y/a", json!(2))),
        "f:2:4: the value is an alias, and cannot be changed here without changing others; change the value of its anchor, or write the whole value here"
    );
    assert_eq!(
        refused(text, add("/x/a", json!(2))),
        "f:1:4: the value has an anchor, and cannot be changed without changing others; it is used at 2:4; change it in the text"
    );
    assert!(refused(text, remove("/z/a")).starts_with("f:4:3: the key comes from another map through `<<`"));
    assert!(refused(text, remove("/x")).contains("an anchor that is used elsewhere; it is used at 2:4"));
    let own = text.replace("  b: 2", "  a: 2");
    assert!(refused(&own, remove("/z/a")).starts_with("f:4:3: the key comes from another map"));
    assert_eq!(edited(text, add("/z/a", json!(3))), format!("{text}  a: 3\n"), "its own value goes first");
    assert_eq!(edited(text, add("/y", json!(5))), text.replace("y: *t", "y: 5"));
    assert_eq!(edited(text, add("/z/b", json!(5))), text.replace("b: 2", "b: 5"));
}

#[test]
fn variables_stay_as_they_are_written() {
    let text = "a: ${{PORT}} # é\nlist:\n  - ${{ ONE:=1 }}\n  - two\nb: 'x${{Y}}'\n";
    assert_eq!(edited(text, add("/list/1", json!("x"))), text.replace("  - two", "  - x\n  - two"));
    assert_eq!(
        edited(text, shift("/list/1", "/list/0")),
        text.replace("  - ${{ ONE:=1 }}\n  - two", "  - two\n  - ${{ ONE:=1 }}")
    );
    assert_eq!(edited(text, add("/a", json!(5))), text.replace("${{PORT}}", "5"));
    assert!(refused(text, add("/a", json!("${{HOME}}"))).contains("would be a variable"));
    assert!(refused(text, add("/${{HOME}}", json!(1))).contains("would be a variable"));
    assert!(refused("a: ${{MAP}}\n", add("/a/b", json!(1))).contains("is neither a map nor a list"));
}

#[test]
fn json_stays_json() {
    let text = "{\n  \"a\": [1, 2],\n  \"b\": {\n    \"c\": \"\\ud83d\\ude00\"\n  }\n}\n";
    assert_eq!(edited(text, add("/b/d", json!("x"))), text.replace("\\ude00\"\n", "\\ude00\",\n    \"d\": \"x\"\n"));
    assert_eq!(edited(text, remove("/b")), "{\n  \"a\": [1, 2]\n}\n");
    assert_eq!(edited(text, add("/a/-", json!(null))), text.replace("1, 2", "1, 2, null"));
    assert_eq!(edited("{\"a\":1}", add("/b", json!({ "c": [true] }))), "{\"a\":1,\"b\":{\"c\":[true]}}");
    for result in
        [edited(text, add("/b/d", json!({ "long": "x".repeat(60), "other": [] }))), edited(text, add("/e", json!({})))]
    {
        serde_json::from_str::<Value>(&result).expect("it is JSON");
    }
}

#[test]
fn an_edit_that_does_not_fit_is_refused() {
    for operation in [
        add("/x/y", json!(1)),
        add("/a/9", json!(1)),
        remove("/b"),
        remove(""),
        shift("/a/0", "/c"),
        add("a", json!(1)),
    ] {
        refused("a: [1, 2]\nc: 1\n", operation);
    }
    assert!(refused("a: [", remove("/a")).contains("is not YAML"));
    assert!(refused("a: 1\na: 2\n", remove("/a")).contains("given twice"));
    assert!(serde_json::from_value::<EditOperation>(json!({ "op": "test", "path": "" })).is_err());
}

/// One request has one budget, however many texts and operations it has.
#[test]
fn a_budget_is_for_all_edits_together() {
    let (source, text, hour) = ("f".into(), "a: 1\nlist: []\n", Duration::from_secs(3_600));
    let value = json!({ "b": 1, "c": 2 });
    let two =
        [add("/a", value.clone()), operation(json!({ "op": "replace", "path": "/a", "value": { "b": 3, "c": 4 } }))];
    let cases = [
        ((3, 99), 1_000, hour, "the operations that it may have"),
        // The second operation has two steps.
        ((99, 5), 1_000, hour, "the steps that they may consist of"),
        ((99, 99), 9 * text.len(), hour, "the bytes that may be read for them"),
        ((99, 99), 1_000, Duration::ZERO, "the time that there is for them"),
    ];
    for (counts, bytes, time, expected) in cases {
        let mut budget = EditBudget::new(counts, bytes, time);
        let first = edit(&source, text, &two, &mut budget);
        assert_eq!((first.is_ok(), budget.is_spent()), (!time.is_zero(), time.is_zero()), "{expected}: {first:?}");
        let faults = edit(&source, text, &two, &mut budget).expect_err("it is more than the budget");
        assert!(faults[0].problem.ends_with(&format!("need more together than {expected}")), "{faults:?}");
        assert!(budget.is_spent());
    }
}

#[test]
fn scalars_are_found_where_they_are_written() {
    let text = "\u{feff}a: é # x\nb: &k |\n  one\n  two\nc: [*k, 'd e', ${{X:=y}}]\nf:\n";
    let scalars = WrittenScalars::of(&"f".into(), text).expect("it is YAML");
    let at = |line, column| scalars.at(text, TextPosition { line, column }).map(|range| text[range].to_owned());
    assert_eq!(at(1, 4).as_deref(), Some("é"));
    assert_eq!(at(2, 7).as_deref(), Some("|\n  one\n  two"));
    assert_eq!(at(3, 3).as_deref(), Some("|\n  one\n  two"), "inside of it");
    assert_eq!(at(5, 9).as_deref(), Some("'d e'"));
    assert_eq!(at(5, 16).as_deref(), Some("${{X:=y}}"));
    assert_eq!(at(1, 1), None, "a key");
    assert_eq!(at(5, 5), None, "an alias has no text of its own");
    assert_eq!((at(6, 1), at(9, 1), at(1, 99)), (None, None, None));
}
