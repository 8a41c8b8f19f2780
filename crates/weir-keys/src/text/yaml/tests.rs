use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

fn tree(text: &str) -> Result<TreeNode, String> {
    let source: Arc<str> = "f".into();
    let Parsed { tree, faults } =
        parse(&source, text, &|_| None, TextLimits::default()).map_err(|faults| faults[0].to_string())?;
    faults.first().map_or(Ok(tree), |fault| Err(fault.to_string()))
}

fn value(text: &str) -> Value {
    tree(text).unwrap_or_else(|fault| panic!("{fault}")).to_json()
}

fn refused(text: &str) -> String {
    tree(text).expect_err("refused")
}

#[test]
fn yaml_and_json_are_the_same_tree() {
    let expected = json!({ "a": { "b": [1, "x", null, true], "c": {} }, "d": "1" });
    assert_eq!(value("a:\n  b: [1, x, ~, yes]\n  c: {}\nd: '1'\n#END\n"), expected);
    assert_eq!(value("{\n\t\"a\": {\"b\": [1, \"x\", null, true], \"c\": {}},\n\t\"d\": \"1\"\n}\n"), expected);
    assert_eq!(value("\u{feff}a:\r\n  b: 1\r\n"), json!({ "a": { "b": 1 } }));
    assert_eq!(value(r#"{"a": "\ud83d\ude00\u00e9\/"}"#), json!({ "a": "😀é/" }));
}

#[test]
fn keys_are_text_whatever_they_look_like() {
    assert_eq!(value("80: a\nyes: b\n~: c\n"), json!({ "80": "a", "yes": "b", "~": "c" }));
}

#[test]
fn values_and_keys_know_their_places() {
    let tree = tree("é: ü\nroutes:\n  - uri: /a\n    nodes: {\"127.0.0.1:80\": 1}\n").expect("is YAML");
    let place = |path: &str| {
        let TextPosition { line, column } = tree.place_of(path);
        (line, column)
    };
    assert_eq!(place("routes[0].uri"), (3, 10));
    assert_eq!(place("routes[0].nodes"), (4, 12));
    assert_eq!(place("routes[0].nodes[\"127.0.0.1:80\"]"), (4, 29));
    assert_eq!(place("routes[0].nodes.other"), (4, 12), "the deepest that exists");
    let entry = tree.entry("routes").expect("is there");
    assert_eq!((entry.key_place.line, entry.key_place.column), (2, 1));
}

#[test]
fn places_survive_substitution() {
    let source: Arc<str> = "f".into();
    let text = "a: ${{LONG}}\nb: [${{LONG}}, 1]\n";
    let long = |_: &str| Some("a-value-longer-than-its-name".to_owned());
    let tree = parse(&source, text, &long, TextLimits::default()).expect("is YAML").tree;
    assert_eq!(tree.place_of("b[1]"), TextPosition { line: 2, column: 16 });
    assert_eq!(tree.place_of("b[0]"), TextPosition { line: 2, column: 5 });
}

#[test]
fn aliases_and_merge_keys_stand_for_what_they_name() {
    assert_eq!(value("a: &x {k: 1, l: 2}\nb: *x\nc: {<<: *x, k: 3}\n")["b"], json!({ "k": 1, "l": 2 }));
    assert_eq!(value("a: &x {k: 1, l: 2}\nc: {<<: *x, k: 3}\n")["c"], json!({ "k": 3, "l": 2 }));
    assert_eq!(value("a: &x {k: 1}\nb: &y {k: 2, m: 3}\nc: {<<: [*x, *y]}\n")["c"], json!({ "k": 1, "m": 3 }));
    assert_eq!(value("a: &x k\n*x : 1\n"), json!({ "a": "k", "k": 1 }));
    assert_eq!(value("&x k: *x\n"), json!({ "k": "k" }));
    assert_eq!(value("\"<<\": 1\n"), json!({ "<<": 1 }));
    assert_eq!(refused("a: {<<: 1}\n"), "f:1:9: `<<` needs a map or a list of maps");
    assert!(refused("a: &x [*x]\n").contains("is inside the value that it refers to"));
    assert!(
        refused("a: *nowhere\n")
            .ends_with("unknown anchor; put text that begins with `*` in quotes, such as `\"*.example.com\"`")
    );
}

#[test]
fn duplicate_keys_are_found_all_at_once_and_the_first_stays() {
    let source: Arc<str> = "f".into();
    let text = "a: 1\nb:\n- {c: 1, c: 2, c: 3}\n\"a\": 2\n\"x.y\": {\"z.z\": 1, z.z: 2}\n";
    let Parsed { tree, faults } = parse(&source, text, &|_| None, TextLimits::default()).expect("is YAML");
    let lines: Vec<String> = faults.iter().map(Diagnostic::to_string).collect();
    assert_eq!(
        lines,
        [
            "f:3:10: b[0].c: the key `c` is given twice; the first is in line 3; keep one",
            "f:3:16: b[0].c: the key `c` is given twice; the first is in line 3; keep one",
            "f:4:1: a: the key `a` is given twice; the first is in line 1; keep one",
            "f:5:19: [\"x.y\"][\"z.z\"]: the key `z.z` is given twice; the first is in line 5; keep one",
        ]
    );
    assert_eq!(tree.to_json(), json!({ "a": 1, "b": [{ "c": 1 }], "x.y": { "z.z": 1 } }));
    let many: String = (0..50).map(|key| format!("k{}: 1\n", key % 40)).collect();
    let Parsed { faults, .. } = parse(&source, &many, &|_| None, TextLimits::default()).expect("is YAML");
    assert_eq!(faults.len(), 10);
}

#[test]
fn invalid_yaml_is_reported_with_place_and_reason() {
    let cases = [
        (
            "a: [1, 2",
            "f:2:1: is not YAML: while parsing a flow sequence, expected ',' or ']'; the text ends too early; was it cut off?",
        ),
        (
            "a:\n\tb: 1\n",
            "f:2:2: is not YAML: tabs disallowed within this context (block indentation); indent with spaces, not with tabs",
        ),
        (
            "a: 1\nb: @x\n",
            "f:2:4: is not YAML: unexpected character: `@'; put text that begins with such a character in quotes",
        ),
        (
            "a: b: c\n",
            "f:1:5: is not YAML: mapping values are not allowed in this context; check the indentation, or put text with `: ` in quotes",
        ),
        ("a: 1\n---\nb: 1\n", "f:2:1: a second document begins; keep one document per file"),
        ("? [a]\n: 1\n", "f:1:3: a key is not text; use a plain word as the key"),
        ("a: !!int x\n", "f:1:4: `x` does not match its tag `!!int`"),
        ("a: !mine x\n", "f:1:4: the tag `!mine` is not supported; leave it out"),
        ("", "f: contains no configuration; write `routes: []` if this is intended"),
        ("# nothing\n#END\n", "f: contains no configuration; write `routes: []` if this is intended"),
    ];
    for (text, expected) in cases {
        assert_eq!(refused(text), expected, "{text:?}");
    }
}

#[test]
fn a_variable_whose_value_breaks_the_text_is_named() {
    let refused = |text: &str, value: &str| {
        let lookup = |name: &str| (name == "KEY").then(|| value.to_owned());
        let faults = parse(&"f".into(), text, &lookup, TextLimits::default()).expect_err("it is not YAML");
        faults[0].to_string()
    };
    let text = "a:\n  key: \"${{KEY}}\"\n";
    let advice = "and is put in as it is; in options of a plugin write `$env://KEY`, which is always one text";
    for (value, what) in [("one\ntwo", "a line break"), ("one\"two", "a quote"), ("\"", "a quote")] {
        let said = refused(text, value);
        let named = format!("the value of the environment variable `KEY` has {what}, {advice}");
        assert!(said.starts_with("f:2:") && said.ends_with(&named), "{said}");
    }
    let other = refused("a: ${{KEY}}\nb: @x\n", "{\"k\": 1}");
    assert!(!other.contains("KEY"), "a fault in another line has another reason: {other}");
}

#[test]
fn every_truncation_of_a_document_is_handled() {
    let text = "routes:\n  - uri: \"/é\"\n    upstream: {nodes: {\"a:1\": 1}}\n  - &x {uri: '/b', plugins: [*x]}\n";
    for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
        let _ = tree(&text[..end]);
    }
}

#[test]
fn r06_bombs_are_refused_quickly() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..20 {
        let uses = format!("*a{}, ", level - 1).repeat(9);
        bomb.push_str(&format!("a{level}: &a{level} [{uses}]\n"));
    }
    assert!(refused(&bomb).contains("more than 4000000 values, counting the values of each alias"));
    assert!(refused(&"[".repeat(1_000_000)).contains("recursion limit exceeded"));
    assert!(refused(&"- ".repeat(100_000)).contains("lists and maps are nested more than 64 levels deep"));
    assert!(
        refused(&format!("a: &a {}1{}\nb: {}*a{}\n", "[".repeat(40), "]".repeat(40), "[".repeat(40), "]".repeat(40)))
            .contains("more than 64")
    );
    let source: Arc<str> = "f".into();
    let limits = TextLimits { bytes: 10, ..TextLimits::default() };
    let faults = parse(&source, "a: 12345678", &|_| None, limits).expect_err("too long");
    assert_eq!(faults[0].to_string(), "f: 11 bytes are too many for a configuration; the limit is 10 bytes");
    let faults =
        parse(&source, "a: ${{A}}", &|_| Some("x".repeat(20)), limits).expect_err("too long after substitution");
    assert!(faults[0].problem.starts_with("23 bytes"));
}

mod json {
    use proptest::prelude::*;
    use serde_json::{Map, Number, Value};

    use super::value;

    fn any_json() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(|number| Value::Number(number.into())),
            (-1e300..1e300_f64).prop_map(|number| Value::Number(Number::from_f64(number).expect("is finite"))),
            any::<String>().prop_map(Value::String),
            "[a-z0-9:#,{}\\[\\]&*!|>'\"%@` \\\\~-]{0,12}".prop_map(Value::String),
        ];
        scalar.prop_recursive(4, 40, 6, |inner| {
            let key = prop_oneof![any::<String>(), "[a-z<~:]{0,3}"];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
                prop::collection::vec((key, inner), 0..6)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_json_text_is_understood(inner in any_json(), pretty in any::<bool>()) {
            let document = Value::Array(vec![inner]);
            let text = if pretty { format!("{document:#}") } else { document.to_string() };
            let found = value(&text);
            prop_assert_eq!(found, document, "{}", text);
        }
    }
}

#[test]
fn values_and_keys_have_ends() {
    let text = "a: [1, {b: \"x y\"}]   # c\nlist:\n  - one\n  - two: 2\n\n\nlast:\n";
    let tree = parse(&"t".into(), text, &|_| None, TextLimits::default()).expect("it is YAML").tree;
    let cut = |place: TextPosition, end: TextPosition| {
        let index = |at: TextPosition| {
            let before: usize = text.split_inclusive('\n').take(at.line as usize - 1).map(str::len).sum();
            before + at.column as usize - 1
        };
        &text[index(place)..index(end)]
    };
    let entry = |key: &str| tree.entry(key).expect("it is there");
    let of_value = |key: &str| cut(entry(key).value.place, entry(key).value.end);
    assert_eq!(of_value("a"), "[1, {b: \"x y\"}]");
    assert_eq!(of_value("list"), "- one\n  - two: 2");
    assert_eq!(of_value("last"), "");
    assert_eq!(cut(entry("list").key_place, entry("list").key_end), "list");
    assert_eq!(cut(tree.place, tree.end).lines().count(), 7, "the last key has no value, which is where its line ends");
}
