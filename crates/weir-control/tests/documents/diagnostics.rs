//! Pairs of a document and what comes of it: `tests/config/NAME.yaml` (or `.json`) and `NAME.txt` beside it, which holds
//! `accepted`, the warnings, or every diagnostic. With `WEIR_BLESS=1` the outcomes are written anew: read the difference.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

use weir_control::document::WrittenDocument;
use weir_control::document::file_schema;
use weir_control::text::yaml::{self, TextLimits};
use weir_control::{Diagnostic, check_document};

use crate::plugins;

fn environment(name: &str) -> Option<String> {
    match name {
        "BACKEND" => Some("127.0.0.1:8001".to_owned()),
        "NODES" => Some("{ \"127.0.0.1:8001\": 1, \"127.0.0.1:8002\": 2 }".to_owned()),
        "PORT" => Some("9080".to_owned()),
        _ => None,
    }
}

fn outcome(source: &str, text: &str) -> String {
    let result = WrittenDocument::parse(source, text, &environment, TextLimits::default())
        .and_then(|document| check_document(&document.without_secrets().alone(), &plugins::REGISTRY));
    let listed = |diagnostics: &[Diagnostic]| {
        diagnostics.iter().fold(String::new(), |mut all, diagnostic| {
            writeln!(all, "{diagnostic}").expect("a String takes everything");
            all
        })
    };
    match result {
        Ok(warnings) => format!("accepted\n{}", listed(&warnings)),
        Err(faults) => listed(&faults),
    }
}

fn documents() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/config");
    let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let paths = entries.map(|entry| entry.expect("the directory can be listed").path());
    let mut documents: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|kind| kind == "yaml" || kind == "json")).collect();
    documents.sort();
    assert!(documents.len() > 10, "{} holds documents", directory.display());
    documents
}

#[test]
fn documents_have_the_expected_outcome() {
    let bless = env::var_os("WEIR_BLESS").is_some();
    let mut differing = String::new();
    for path in documents() {
        let text = fs::read_to_string(&path).expect("the document can be read");
        let source = path.file_name().expect("has a name").to_string_lossy();
        let found = outcome(&source, &text);
        let expected_path = path.with_extension("txt");
        if bless {
            fs::write(&expected_path, &found).expect("the outcome can be written");
        }
        let expected = fs::read_to_string(&expected_path).unwrap_or_default();
        if found != expected {
            write!(differing, "--- {source}, expected:\n{expected}--- found:\n{found}")
                .expect("a String takes everything");
        }
    }
    assert!(differing.is_empty(), "{differing}");
}

/// Editors and forms must not call wrong what is accepted.
#[test]
fn accepted_documents_match_the_schema_of_files() {
    let schema = jsonschema::validator_for(&file_schema()).expect("it is a schema");
    let mut refused = String::new();
    for path in documents() {
        let text = fs::read_to_string(&path).expect("the document can be read");
        if !outcome("f", &text).starts_with("accepted") {
            continue;
        }
        let parsed = yaml::parse(&"f".into(), &text, &environment, TextLimits::default()).expect("it is YAML");
        for error in schema.iter_errors(&parsed.tree.to_json()) {
            writeln!(refused, "{}: {}: {error}", path.display(), error.instance_path())
                .expect("a String takes everything");
        }
    }
    assert!(refused.is_empty(), "{refused}");
}
