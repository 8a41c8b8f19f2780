//! The configurations on pages of the documentation are ones that `weir check` accepts.
//!
//! A block that begins with ` ```yaml ` is a complete configuration. ` ```yaml route ` and ` ```yaml upstream ` are parts
//! of a route and of an upstream, which are completed before they are checked. ` ```yaml fragment ` is not checked: it shows
//! alternatives, or is for another program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use weir_testkit::{Authority, TempDir};

/// A fenced block of a page.
#[derive(Debug, PartialEq, Eq)]
pub struct Block<'a> {
    /// The line on which it begins.
    pub line: usize,
    /// What follows the fence: a language, and a mark.
    pub info: &'a str,
    pub text: String,
}

/// The fenced blocks of a page.
pub fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut found: Vec<Block> = Vec::new();
    let mut is_inside = false;
    for (number, line) in page.lines().enumerate() {
        match line.strip_prefix("```") {
            Some(_) if is_inside => is_inside = false,
            Some(info) => {
                is_inside = true;
                found.push(Block { line: number + 1, info, text: String::new() });
            }
            None if is_inside => {
                let block = found.last_mut().expect("it has begun");
                block.text.push_str(line);
                block.text.push('\n');
            }
            None => {}
        }
    }
    found
}

/// Certificates for recipes and pages, by the names that these give to their files.
pub fn certificates() -> Vec<(String, String)> {
    let authority = Authority::of_tests();
    let mut files = vec![("certs/ca.pem".to_owned(), authority.certificate.clone())];
    for (name, host) in [("localhost", "localhost"), ("client", "client"), ("example", "*.example.com")] {
        let identity = authority.identity(&[host]);
        files.push((format!("certs/{name}.pem"), identity.certificate));
        files.push((format!("certs/{name}.key"), identity.key));
    }
    files
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every page below `docs`, and README.md.
fn pages() -> Vec<PathBuf> {
    let mut folders = vec![root().join("docs")];
    let mut pages = vec![root().join("README.md")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the project").flatten() {
            let path = entry.path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(extension) if extension == "md" => pages.push(path),
                _ => {}
            }
        }
    }
    pages
}

/// The configuration that a block stands for, if it is to be checked.
fn configuration(block: &Block) -> Option<String> {
    let indented = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let part = indented(&block.text);
    match block.info {
        "yaml" => Some(block.text.clone()),
        "yaml route" => {
            Some(format!("routes:\n  - uri: /*\n    upstream: {{ nodes: {{ \"127.0.0.1:8001\": 1 }} }}\n{part}"))
        }
        "yaml upstream" => Some(format!("upstreams:\n  - nodes: {{ \"127.0.0.1:8001\": 1 }}\n{part}")),
        _ => None,
    }
}

/// The environment variables that a text refers to.
fn variables(text: &str) -> Vec<&str> {
    let ends = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_';
    let after = |mark: &'static str| {
        text.match_indices(mark).filter_map(move |(at, _)| text[at + mark.len()..].split(ends).next())
    };
    after("${{").chain(after("$env://")).collect()
}

/// What `weir check` says against a configuration.
fn refusal(text: &str) -> Option<String> {
    let place = TempDir::new();
    for (name, content) in certificates() {
        place.write(&name, content);
    }
    // The file that an `include` names without a wildcard.
    place.write("upstreams.yaml", "upstreams: []\n");
    place.write("teams/a.yaml", "routes: []\n");
    place.write("routes/a.yaml", "routes: []\n");
    let file = place.write("weir.yaml", text);
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("check").arg(&file);
    for name in variables(text) {
        command.env(name, format!("a value of sixteen characters and more, {name}"));
    }
    let output = command.output().expect("it runs");
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn every_configuration_of_the_documentation_is_valid() {
    let mut problems = Vec::new();
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page of the project");
        for block in blocks(&text) {
            let place = format!("{}:{}", page.display(), block.line);
            let known = ["yaml", "yaml route", "yaml upstream", "yaml fragment"];
            if block.info.starts_with("yaml") && !known.contains(&block.info) {
                problems.push(format!("{place}: `{}` is not one of {known:?}", block.info));
            }
            let Some(configuration) = configuration(&block) else { continue };
            count += 1;
            problems.extend(refusal(&configuration).map(|said| format!("{place}: {said}\n{configuration}")));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(count > 80, "only {count} configurations were found");
}
