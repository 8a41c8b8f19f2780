//! What can be said of the console's files without a browser: the contrast of colours, sizes as a node sends them, and what the page may not contain.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use weir_testkit::{BROWSER_DEADLINE, Client, Gateway};

use crate::api;

/// The whole console, and what the first screen needs before curves are drawn, in bytes as they are sent. Browsers accept Brotli on
/// loopback and over TLS, where alone one can log in.
const WHOLE: usize = 250_000;
const FIRST_SCREEN: usize = 40_000;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../console")
}

fn read(name: &str) -> String {
    fs::read_to_string(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The relative luminance of `#rrggbb` (WCAG 2.2).
fn luminance(colour: &str) -> f64 {
    let part = |at: usize| {
        let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).expect("two hexadecimal digits")) / 255.0;
        if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
}

fn contrast(one: &str, other: &str) -> f64 {
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

/// The tokens of a block of `tokens.css`.
fn tokens(block: &str) -> HashMap<&str, &str> {
    let declarations =
        block.lines().filter_map(|line| line.trim().strip_prefix("--")?.trim_end_matches(';').split_once(": "));
    declarations.collect()
}

#[test]
fn pairs_of_colours_have_enough_contrast() {
    let file = read("tokens.css");
    let (light, dark) = file.split_once(":root[data-scheme=\"dark\"]").expect("two schemes");
    let [light, dark] = [tokens(light), tokens(dark)];
    let mut pairs = 0;
    for line in file.lines().filter_map(|line| line.trim().strip_prefix("pairs ")) {
        let (least, list) = line.split_once(": ").expect("a number and pairs");
        let least: f64 = least.parse().expect("a number");
        for pair in list.trim_end_matches("*/").split_whitespace() {
            let (text, ground) = pair.split_once('/').expect("two tokens");
            for (scheme, tokens) in [("light", &light), ("dark", &dark)] {
                let found = contrast(tokens[text], tokens[ground]);
                assert!(found >= least, "{scheme}: {text} on {ground} has {found:.2}, not {least}");
                pairs += 1;
            }
        }
    }
    assert!(pairs > 60, "only {pairs} pairs are compared");
}

/// All files that a browser can ask for, by name.
fn files() -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder()).expect("below it").display().to_string();
            let is_served =
                [".js", ".css", ".html", ".svg"].iter().any(|end| name.ends_with(end)) && !name.ends_with(".entry.js");
            if is_served {
                found.push((name, fs::read(&path).expect("a file")));
            }
        }
    }
    found
}

/// The length of a file as a node sends it to such a browser. Small files are sent as they are.
fn transferred(client: &mut Client, name: &str) -> usize {
    let request =
        format!("GET /console/{name} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n\r\n");
    let answer = client.ask(request).unwrap_or_else(|error| panic!("{name}: {error}"));
    let is_encoded = answer.headers.get("Content-Encoding") == Some("br");
    assert!(answer.status == 200 && (is_encoded || answer.body.len() < 512), "{name}: {} {is_encoded}", answer.status);
    answer.body.len()
}

/// The files that a file imports when it is loaded, itself among them. `import(…)` comes later.
fn with_imports(name: &str, known: &mut Vec<String>) {
    if known.iter().any(|one| one == name) {
        return;
    }
    known.push(name.to_owned());
    let text = read(name);
    let beside = Path::new(name).parent().expect("a name has one");
    for line in text.lines().filter(|line| line.starts_with("import ") || line.starts_with("} from ")) {
        let Some(target) = line.split('"').nth(1) else { continue };
        let mut path = beside.to_owned();
        for part in Path::new(target).components() {
            match part {
                std::path::Component::ParentDir => drop(path.pop()),
                std::path::Component::Normal(part) => path.push(part),
                _ => {}
            }
        }
        with_imports(&path.display().to_string(), known);
    }
}

#[test]
fn the_console_is_small() {
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&api::file());
    let mut client = Client::connect(api::admin_addr(&gateway));
    // The first use of a file compresses it.
    client.set_deadline(BROWSER_DEADLINE);
    let sizes: HashMap<String, usize> =
        files().into_iter().map(|(name, _)| (name.clone(), transferred(&mut client, &name))).collect();
    let whole: usize = sizes.values().sum();
    assert!(whole <= WHOLE, "{whole} bytes");
    let mut first = ["index.html", "tokens.css", "style.css", "icon.svg"].map(str::to_owned).to_vec();
    with_imports("main.js", &mut first);
    with_imports("screens/overview.js", &mut first);
    let of_first: usize = first.iter().map(|name| sizes[name]).sum();
    assert!(of_first <= FIRST_SCREEN, "{of_first} bytes: {first:?}");
    println!("whole: {whole} bytes, first screen: {of_first} bytes of {} files", first.len());
}

#[test]
fn own_files_are_short_and_name_no_other_host() {
    for (name, content) in files() {
        if name.starts_with("vendor/") {
            continue;
        }
        let text = String::from_utf8(content).expect("text");
        let lines = text.lines().count();
        assert!(lines <= 450, "{name} has {lines} lines");
        for forbidden in ["innerHTML", "eval(", "document.write", " style=\"", "localStorage.setItem(TOKEN"] {
            assert!(!text.contains(forbidden), "{name} has `{forbidden}`");
        }
        let urls = text
            .match_indices("http")
            .map(|(at, _)| text[at..].split(['"', '`', ' ', '\'']).next().unwrap_or_default());
        for url in urls.filter(|url| url.contains("://")) {
            let is_allowed = ["example.com", "www.w3.org/2000/svg", "://${"].iter().any(|part| url.contains(part));
            assert!(is_allowed, "{name} names {url}");
        }
    }
}
