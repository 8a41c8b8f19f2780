//! The configurations on pages of the documentation are ones that `weir check` accepts.
//!
//! A block that begins with ` ```yaml ` is a complete configuration. ` ```yaml route `, ` ```yaml stream_route ` and ` ```yaml upstream `
//! are parts of a route, of a stream route and of an upstream, which are completed before they are checked. ` ```yaml fragment ` is not checked: it shows
//! alternatives, or is for another program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use weir_testkit::{Authority, TempDir};

/// A fenced block of a page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block<'a> {
    /// The line on which it begins.
    pub line: usize,
    /// What follows the fence: a language, and a mark.
    pub info: &'a str,
    pub text: String,
}

/// The fenced blocks of a page.
pub(crate) fn blocks(page: &str) -> Vec<Block<'_>> {
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
pub(crate) fn certificates() -> Vec<(String, String)> {
    let authority = Authority::of_tests();
    let mut files = vec![("certs/ca.pem".to_owned(), authority.certificate.clone())];
    for (name, host) in [("localhost", "localhost"), ("client", "client"), ("example", "*.example.com")] {
        let identity = authority.identity(&[host]);
        files.push((format!("certs/{name}.pem"), identity.certificate));
        files.push((format!("certs/{name}.key"), identity.key));
    }
    // Those of a controller and its nodes have the names that a Secret has.
    let identity = authority.identity(&["weir-controller"]);
    files.push(("ca.crt".to_owned(), authority.certificate.clone()));
    files.push(("tls.crt".to_owned(), identity.certificate));
    files.push(("tls.key".to_owned(), identity.key));
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
        "yaml stream_route" => Some(format!(
            "stream_routes:\n  - id: s\n    upstream: {{ scheme: tcp, nodes: {{ \"127.0.0.1:8001\": 1 }} }}\n{part}"
        )),
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
        command.env(name, format!("a-user:a-value-of-sixteen-characters-and-more-{name}"));
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
            let known = ["yaml", "yaml route", "yaml stream_route", "yaml upstream", "yaml fragment"];
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

/// Tasks of every day, and where a page says how they are done: the page, and its heading.
const EVERYDAY_TASKS: &[(&str, &str, &str)] = &[
    ("install a package", "guide/install.md", "## Debian and Ubuntu"),
    ("route by host and path", "guide/recipes.md", "### Send hosts and paths to upstreams"),
    ("TLS, redirect and HSTS", "guide/recipes.md", "### HTTPS, with a redirect from HTTP and HSTS"),
    ("automatic certificates", "guide/tls.md", "## Automatic certificates"),
    ("health checks", "guide/balancing.md", "## Health"),
    ("canary", "guide/recipes.md", "### Show a new version to testers (canary)"),
    ("WebSocket", "guide/recipes.md", "### WebSocket"),
    ("server-sent events", "guide/recipes.md", "### Server-sent events"),
    ("rate limits", "guide/recipes.md", "### Requests per client address"),
    ("JSON Web Tokens", "guide/recipes.md", "### JSON Web Tokens"),
    ("OpenID Connect", "guide/authentication.md", "## OpenID Connect"),
    ("systemd", "guide/operating.md", "## systemd"),
    ("rotation of logs", "guide/operating.md", "## Log rotation"),
    ("upgrade and drain", "guide/operating.md", "## Upgrade and drain"),
    ("sizing", "guide/operating.md", "## How large a machine"),
    ("metrics and alerts", "guide/watching.md", "# What to watch"),
    ("troubleshooting by symptom", "guide/troubleshooting.md", "## A request gets an error"),
    ("writing a plugin", "guide/writing-a-plugin.md", "## 1. The options"),
];

/// The files that a page links to.
fn linked(page: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(page).expect("a page of the project");
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    targets.filter_map(|target| page.with_file_name(target).canonicalize().ok()).collect()
}

/// The first click leads to the page, and the second to the heading.
#[test]
fn the_page_of_each_everyday_task_is_two_clicks_from_the_index() {
    let docs = root().join("docs").canonicalize().expect("a folder of the project");
    let first = linked(&docs.join("README.md"));
    for (task, page, heading) in EVERYDAY_TASKS {
        let page = docs.join(page);
        let text = fs::read_to_string(&page).unwrap_or_else(|error| panic!("{task}: {}: {error}", page.display()));
        assert!(text.lines().any(|line| line == *heading), "{task}: {} has no `{heading}`", page.display());
        assert!(first.contains(&page), "{task}: the index does not link to {}", page.display());
    }
}
