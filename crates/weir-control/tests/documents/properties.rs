//! Whatever is thrown at it, the configuration's reader answers with diagnostics.

use proptest::prelude::*;
use weir_control::check_text;

/// Pieces that make documents which get far, put together at random.
fn piece() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "routes:",
        "upstreams:",
        "services:",
        "plugins:",
        "listen:",
        "uri:",
        "uris:",
        "nodes:",
        "vars:",
        "checks:",
        "id:",
        "upstream:",
        "timeout:",
        "plugin_configs:",
        "\n",
        "\n  ",
        "\n  - ",
        "\n    ",
        " ",
        "\t",
        ": ",
        "{",
        "}",
        "[",
        "]",
        ", ",
        "/a",
        "/*",
        "\"127.0.0.1:80\"",
        "1",
        "-1",
        "1e400",
        "0x",
        "yes",
        "~",
        "null",
        "'",
        "\"",
        "&a ",
        "*a",
        "<<: ",
        "!!int ",
        "!x ",
        "| ",
        "> ",
        "? ",
        "- ",
        "#END",
        "# ",
        "${{A}}",
        "${{A:=1}}",
        "${{",
        "}}",
        "\\ud83d\\ude00",
        "\\u",
        "é",
        "\u{feff}",
        "---\n",
        "...\n",
        "%YAML 1.1\n",
        "\0",
        "\r\n",
        "\r",
        "${{A:=1}}",
        "==",
        "~~",
        "(((",
        "a*b",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pieces_of_documents_never_panic(pieces in prop::collection::vec(piece(), 0..60)) {
        let _ = check_text(&pieces.concat());
    }

    #[test]
    fn any_text_never_panics(text in "\\PC{0,200}") {
        let _ = check_text(&text);
    }

    #[test]
    fn any_change_of_a_good_document_never_panics(at in 0_usize..900, with in piece(), length in 0_usize..20) {
        let good = include_str!("../../../../tests/config/apisix.yaml");
        let start = (at..).find(|at| good.is_char_boundary(*at)).expect("the end is a boundary").min(good.len());
        let end = (start + length).min(good.len());
        let end = (end..).find(|end| good.is_char_boundary(*end)).expect("the end is a boundary");
        let _ = check_text(&format!("{}{with}{}", &good[..start], &good[end..]));
    }

    #[test]
    fn diagnostics_are_within_the_text(pieces in prop::collection::vec(piece(), 0..60)) {
        let text = pieces.concat();
        let lines = text.matches(['\n', '\r']).count() as u32 + 2;
        for diagnostic in check_text(&text).err().unwrap_or_default() {
            prop_assert!(diagnostic.line.is_none_or(|line| (1..=lines).contains(&line)), "{diagnostic} of {text:?}");
            prop_assert!(diagnostic.column != Some(0));
            prop_assert!(!diagnostic.problem.is_empty());
        }
    }
}
