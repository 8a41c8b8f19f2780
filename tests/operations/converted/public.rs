//! Configurations as services of public repositories have them, rewritten: `NAME.EXTENSION` in `public/`. `NAME.found` lists the
//! findings; with `WEIR_BLESS=1` it is written anew: read the difference. `NAME.ask` lists requests that the real nginx and the
//! gateway are sent: method, target, host, fields that `;` separates. A request after `!` is answered differently, and the part of a
//! finding that says so follows ` ## `.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use weir_testkit::{Answer, Authority, Client, Nginx, Origin, Reading, Request, TempDir, free_port, skipped};

use super::weir;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/operations/converted/public")
}

/// The files of a dialect's folder, in the order of their names, without those that say what is expected.
fn files(dialect: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder().join(dialect)).expect("the folder is there");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be read").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension != "found" && extension != "ask"));
    files.sort();
    files
}

/// Replaces the words that stand for addresses and files.
fn filled(text: &str, words: &[(&str, String)]) -> String {
    let mut out = String::new();
    let mut word = String::new();
    for char in text.chars().chain([' ']) {
        if char.is_ascii_uppercase() || char == '_' {
            word.push(char);
            continue;
        }
        let is_inside = out.ends_with(|char: char| char.is_ascii_alphanumeric()) || char.is_ascii_alphanumeric();
        let value = words.iter().find(|(name, _)| *name == word && !is_inside);
        out.push_str(value.map_or(&word, |(_, value)| value));
        word.clear();
        out.push(char);
    }
    out.pop();
    out
}

/// A converted file in a directory, with what it refers to.
struct PublicFile {
    directory: TempDir,
    findings: String,
    yaml: String,
}

fn converted(dialect: &str, file: &Path, text: &str) -> PublicFile {
    let directory = TempDir::new();
    let name = file.file_name().expect("a file").to_string_lossy().into_owned();
    let path = directory.write(&name, text);
    let command = if dialect == "apisix" { "apisix-config" } else { dialect };
    let output =
        Command::new(env!("CARGO_BIN_EXE_weir")).args(["convert", command]).arg(&path).output().expect("it runs");
    let told = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{name}: {told}");
    let place = format!("{}:", path.display());
    let findings = told.lines().map(|line| line.trim_start_matches("weir: ").replace(&place, "") + "\n").collect();
    PublicFile { directory, findings, yaml: String::from_utf8(output.stdout).expect("text") }
}

/// What stands in the place of the words when nothing runs.
fn usual_words(directory: &TempDir) -> Vec<(&'static str, String)> {
    let tls = Authority::of_tests().identity(&["files.example"]);
    vec![
        ("PORT", "8000".to_owned()),
        ("TLSPORT", "8443".to_owned()),
        ("ONE", "10.0.0.1:80".to_owned()),
        ("TWO", "10.0.0.2:80".to_owned()),
        ("HOST_ONE", "10.0.0.1".to_owned()),
        ("HOST_TWO", "10.0.0.2".to_owned()),
        ("PORT_ONE", "80".to_owned()),
        ("PORT_TWO", "80".to_owned()),
        ("CERT", directory.write("cert.pem", &tls.certificate).display().to_string()),
        ("KEY", directory.write("key.pem", &tls.key).display().to_string()),
    ]
}

#[test]
fn converted_files_of_public_services_pass_the_check_and_what_is_lost_is_listed() {
    let bless = std::env::var_os("WEIR_BLESS").is_some();
    let keys = TempDir::new();
    let words = usual_words(&keys);
    let (mut wrong, mut count) = (Vec::new(), 0);
    for dialect in ["nginx", "caddy", "kong", "apisix", "ingress"] {
        for file in files(dialect) {
            count += 1;
            let text = std::fs::read_to_string(&file).expect("it can be read");
            let text = if dialect == "nginx" { filled(&text, &words) } else { text };
            let result = converted(dialect, &file, &text);
            let written = result.directory.write("weir.yaml", &result.yaml);
            result.directory.write("apisix.yaml", "routes: []\n#END\n");
            let mut check = Command::new(env!("CARGO_BIN_EXE_weir"));
            check.arg("check").arg(&written).env("WEIR_ADMIN_KEY", "a-key-of-our-own-0123456789");
            check.env("WEIR_VIEWER_KEY", "another-key-of-our-own-0123");
            let check = check.output().expect("it runs");
            if !check.status.success() {
                wrong.push(format!("{}: {}", file.display(), String::from_utf8_lossy(&check.stderr)));
            }
            let findings =
                words.iter().skip(8).fold(result.findings, |text, (name, value)| text.replace(value.as_str(), name));
            let expected = file.with_extension("found");
            if bless {
                std::fs::write(&expected, &findings).expect("it can be written");
            } else if std::fs::read_to_string(&expected).ok().as_deref() != Some(&findings) {
                wrong.push(format!("{}: found\n{findings}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 40, "there are {count} files");
}

/// Fields that a gateway sends to upstreams by itself; nginx only sends what is configured.
const FORWARDED: [&str; 5] =
    ["x-forwarded-for", "x-forwarded-host", "x-forwarded-port", "x-forwarded-proto", "x-real-ip"];
/// Fields of a request that are not compared: they concern one connection only, or are random.
const UNCOMPARED_OF_REQUESTS: [&str; 7] =
    ["connection", "accept-encoding", "content-length", "transfer-encoding", "te", "x-request-id", "upgrade"];
/// The same of responses. `Vary` is also added to errors of nginx; `Expires` needs a clock.
const UNCOMPARED_OF_RESPONSES: [&str; 13] = [
    "date",
    "server",
    "connection",
    "keep-alive",
    "content-length",
    "transfer-encoding",
    "vary",
    "age",
    "expires",
    "etag",
    "cache-status",
    "apisix-cache-status",
    "x-apisix-upstream-status",
];

/// An origin whose answer says what it has received.
fn describing(name: &'static str) -> Origin {
    Origin::reading(Reading::Strict, move |request: &Request| {
        let target = request.target.as_str();
        let host = request.headers.get("host").unwrap_or_default();
        let mut told = vec![format!("{name} {} {target} {}", request.method, request.body.len())];
        told.extend(request.headers.0.iter().filter_map(|(field, value)| {
            let field = field.to_ascii_lowercase();
            (!UNCOMPARED_OF_REQUESTS.contains(&field.as_str())).then(|| format!("{field}={value}"))
        }));
        if target.contains("long") {
            told.push("and more ".repeat(200));
        }
        let kinds = [("json", "application/json"), ("html", "text/html"), ("png", "image/png")];
        let kind = kinds.iter().find(|(part, _)| target.contains(part)).map_or("text/css", |(_, kind)| kind);
        let fields = format!("X-Origin: yes\r\nContent-Type: {kind}\r\n");
        // The answer of a service that is asked whether a request may pass.
        let fields = if target.contains("check") { format!("{fields}X-Access-Token: issued\r\n") } else { fields };
        match () {
            () if target.contains("check") && request.headers.has("x-deny") => {
                Answer::with(401, &format!("{fields}WWW-Authenticate: Bearer\r\n"), "")
            }
            () if target.contains("moved") => {
                Answer::with(302, &format!("{fields}Location: http://{host}/next\r\n"), "")
            }
            () if target.contains("status503") => Answer::with(503, &fields, ""),
            () => Answer::with(200, &fields, told.join("\n")),
        }
    })
}

/// A line of a file of requests.
struct AskedRequest<'a> {
    /// Method, target, host, fields.
    words: Vec<&'a str>,
    /// The part of a finding that tells a different answer.
    finding: Option<&'a str>,
}

fn asked(line: &str) -> AskedRequest<'_> {
    let (request, finding) = match line.strip_prefix('!').and_then(|line| line.split_once(" ## ")) {
        Some((request, finding)) => (request, Some(finding)),
        None => (line, None),
    };
    AskedRequest { words: request.splitn(4, ' ').collect(), finding }
}

/// Status and fields of a response, and what the origin received.
#[derive(PartialEq, Eq)]
struct PublicAnswer {
    status: u16,
    fields: Vec<String>,
    /// The fields of the request under the empty name the request line.
    received: BTreeMap<String, String>,
}

fn answer(addr: SocketAddr, request: &AskedRequest) -> PublicAnswer {
    let [method, target, host, ..] = request.words[..] else { panic!("method, target and host are missing") };
    let port = addr.port().to_string();
    let host = host.replace("PORT", &port);
    let fields: String =
        request.words.get(3).iter().flat_map(|fields| fields.split(';')).map(|field| format!("{field}\r\n")).collect();
    let length =
        fields.split("Content-Length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok()).unwrap_or(0);
    let bytes = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n{}", "b".repeat(length));
    let response = Client::connect(addr).ask(bytes).expect("an answer");
    let is_success = (200..300).contains(&response.status);
    let own = format!("http://{}:{port}/", host.split(':').next().unwrap_or_default());
    let compared = |(field, value): (&str, &str)| {
        let field = field.to_ascii_lowercase();
        let is_of_error = field == "content-type" && (!is_success || response.body.is_empty());
        let is_compared = !is_of_error && !UNCOMPARED_OF_RESPONSES.contains(&field.as_str());
        // A `Location` on the server itself may be absolute or relative.
        is_compared.then(|| format!("{field}={}", value.replace(&own, "/").replace(&port, "PORT")))
    };
    let mut fields: Vec<String> =
        response.headers.0.iter().filter_map(|(field, value)| compared((field.as_str(), value.as_str()))).collect();
    fields.sort();
    let is_readable = is_success && response.headers.get("content-encoding").is_none();
    let text = if is_readable { response.text().replace(&port, "PORT") } else { String::new() };
    let received = text.lines().filter(|line| !line.starts_with("and more")).map(|line| match line.split_once('=') {
        Some((field, value)) if !line.contains(' ') || FORWARDED.contains(&field) => {
            (field.to_owned(), value.to_owned())
        }
        _ => (String::new(), line.to_owned()),
    });
    PublicAnswer { status: response.status, fields, received: received.collect() }
}

#[test]
fn converted_files_of_public_services_answer_as_nginx_does() {
    let (one, two) = (describing("one"), describing("two"));
    let (mut wrong, mut count) = (Vec::new(), 0);
    for file in files("nginx") {
        let Ok(requests) = std::fs::read_to_string(file.with_extension("ask")) else { continue };
        count += 1;
        let text = std::fs::read_to_string(&file).expect("it can be read");
        let directory = TempDir::new();
        let at = |port: u16| {
            let mut words = usual_words(&directory);
            let part = |origin: &Origin| (origin.addr().ip().to_string(), origin.addr().port().to_string());
            let ((host_one, port_one), (host_two, port_two)) = (part(&one), part(&two));
            let own = [
                ("PORT", port.to_string()),
                ("TLSPORT", free_port().to_string()),
                ("ONE", one.addr().to_string()),
                ("TWO", two.addr().to_string()),
                ("HOST_ONE", host_one),
                ("HOST_TWO", host_two),
                ("PORT_ONE", port_one),
                ("PORT_TWO", port_two),
            ];
            words.splice(..own.len(), own);
            filled(&text, &words)
        };
        let Some(nginx) = Nginx::start(at) else { return skipped("there is no nginx") };
        let result = converted("nginx", &file, &at(free_port()));
        let gateway = weir().start(&result.yaml);
        for request in requests.lines().map(asked) {
            let (theirs, mut ours) = (answer(nginx.addr(), &request), answer(gateway.addr(), &request));
            ours.received
                .retain(|field, _| !FORWARDED.contains(&field.as_str()) || theirs.received.contains_key(field));
            let name = format!("{} {}", file.display(), request.words.join(" "));
            match request.finding {
                None if theirs != ours => wrong.push(format!("{name}\n  theirs: {theirs}\n    ours: {ours}")),
                Some(_) if theirs == ours => wrong.push(format!("{name}: is answered alike")),
                Some(part) if !result.findings.contains(part) => wrong.push(format!("{name}: `{part}` is not found")),
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 20, "there are {count} files with requests");
}

impl std::fmt::Display for PublicAnswer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} {} {:?}", self.status, self.fields.join(" "), self.received)
    }
}
