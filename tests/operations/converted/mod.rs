//! Typical configurations, converted: they answer as nginx and Caddy do, and as Kong's documentation says.
//!
//! The files follow the documentation of the three; `PORT` is the port to listen on, `ONE` and `TWO` are origins. A request that
//! is answered differently is listed with the finding that says so.

mod apisix;
mod caddy;
mod kong;
mod nginx;
mod public;
mod streams;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use weir_testkit::{Answer, Client, Gateway, Origin, Reading, Request, TempDir};

use crate::weir;

/// A request: method, target, host, and additional fields. With `Content-Length`, it has a body of this length.
type ConvertedRequest = (&'static str, &'static str, &'static str, &'static str);

/// A configuration file that the original server can run, too.
struct ConvertedCase {
    file: &'static str,
    /// All findings, without the name of the file.
    findings: &'static [&'static str],
    asked: &'static [ConvertedRequest],
    /// Requests that are answered differently, and a part of the finding that says so.
    apart: &'static [(ConvertedRequest, &'static str)],
}

/// Fields of responses that are compared.
const FIELDS: [&str; 13] = [
    "location",
    "refresh",
    "set-cookie",
    "content-type",
    "content-encoding",
    "cache-control",
    "www-authenticate",
    "strict-transport-security",
    "x-content-type-options",
    "x-frame-options",
    "referrer-policy",
    "x-origin",
    "x-served-by",
];

/// An origin that describes the request in its answer; the answer is long if the path says so. It redirects, and sets cookies, for names
/// of its own if the path says so.
fn echo(name: &'static str) -> Origin {
    Origin::reading(Reading::Strict, move |request: &Request| {
        if request.target.ends_with("/moved") || request.target.ends_with("/page") {
            return moved(request);
        }
        let fields = ["host", "x-tenant", "x_tenant", "x-api-version", "authorization", "x-api-key"];
        // An empty field and a missing one are treated as the same.
        let told = fields.map(|field| format!("{field}={}", request.headers.get(field).unwrap_or_default()));
        let more = if request.target.contains("long") { " and more".repeat(200) } else { String::new() };
        let body = format!("{name} {} {} {}{more}", request.method, request.target, told.join(" "));
        Answer::with(200, "X-Origin: yes\r\nContent-Type: text/css\r\n", body)
    })
}

/// The cookies of an origin that redirects.
const COOKIES: [&str; 3] = [
    "session=1; Domain=inner.example; Path=/app/x",
    "tmp_a=2; Domain=A.internal; Path=/one/x; Secure",
    "Session=3; Path=/; SameSite=none; HttpOnly",
];

fn moved(request: &Request) -> Answer {
    let host = request.headers.get("host").unwrap_or_default();
    let place = match request.target.ends_with("/page") {
        true => "http://Inner.Example/about".to_owned(),
        false => format!("http://{host}{}/next?a=b", request.target),
    };
    let cookies: String = COOKIES.iter().map(|cookie| format!("Set-Cookie: {cookie}\r\n")).collect();
    let refresh = format!("Refresh: 5; url=http://{host}/app/later\r\n");
    Answer::with(302, &format!("Location: {place}\r\n{refresh}{cookies}"), "")
}

/// Two origins, and a file with their addresses.
struct ConvertedFile {
    one: Origin,
    two: Origin,
    text: String,
}

impl ConvertedFile {
    fn read(name: &str) -> ConvertedFile {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/operations/converted").join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        ConvertedFile { one: echo("one"), two: echo("two"), text }
    }

    fn at(&self, port: u16) -> String {
        let (one, two) = (self.one.addr().to_string(), self.two.addr().to_string());
        self.text.replace("PORT", &port.to_string()).replace("ONE", &one).replace("TWO", &two)
    }
}

/// The output of `weir convert`, and its findings without the name of the file.
fn convert(dialect: &str, file: &str, text: &str) -> (String, Vec<String>) {
    let directory = TempDir::new();
    let path: PathBuf = directory.write(file.rsplit('/').next().unwrap_or(file), text);
    let output =
        Command::new(env!("CARGO_BIN_EXE_weir")).args(["convert", dialect]).arg(&path).output().expect("it runs");
    let errors = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{file}: {errors}");
    let name = format!("weir: {}:", path.display());
    let findings = errors.lines().map(|line| line.replace(&name, "").replace(&name[6..], "")).collect();
    (String::from_utf8(output.stdout).expect("text"), findings)
}

/// The status, the fields that are compared, and the body of a success.
fn told(addr: SocketAddr, (method, target, host, fields): ConvertedRequest) -> String {
    let length =
        fields.split("Content-Length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok()).unwrap_or(0);
    let request = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n{}", "b".repeat(length));
    let response = Client::connect(addr).ask(request).expect("an answer");
    let is_success = (200..300).contains(&response.status);
    // A `Location` on the server itself may be absolute or relative.
    let own = format!("http://{host}:{}/", addr.port());
    // Each server has its own cookies for persistence.
    let name = |cookie: &str| cookie.split('=').next().map(str::to_owned);
    let is_of_origin = |cookie: &&str| COOKIES.iter().any(|known| name(known) == name(cookie));
    let value = |field: &str| match (field, response.headers.get(field)?) {
        ("location", place) => Some(place.replace(&own, "/")),
        ("set-cookie", _) => Some(response.headers.all(field).filter(is_of_origin).collect::<Vec<_>>().join(" + ")),
        ("content-type", _) if !is_success || response.body.is_empty() => None,
        (_, value) => Some(value.to_owned()),
    };
    let fields: Vec<String> = FIELDS.iter().filter_map(|field| Some(format!("{field}={}", value(field)?))).collect();
    let is_readable = is_success && response.headers.get("content-encoding").is_none();
    let mut body = if is_readable { response.text() } else { String::new() };
    body.truncate(200);
    format!("{} {} {body}", response.status, fields.join(" "))
}

/// Sends the same requests to both servers; returns the differences that the case does not list.
fn compare(case: &ConvertedCase, theirs: SocketAddr, ours: &Gateway, findings: &[String]) -> Vec<String> {
    let mut wrong = Vec::new();
    if findings != case.findings {
        wrong.push(format!("{}: found {findings:#?}", case.file));
    }
    for &asked in case.asked {
        let (theirs, ours) = (told(theirs, asked), told(ours.addr(), asked));
        if ours != theirs {
            wrong.push(format!("{}: {asked:?}\n  theirs: {theirs}\n    ours: {ours}", case.file));
        }
    }
    for &(asked, finding) in case.apart {
        if told(ours.addr(), asked) == told(theirs, asked) {
            wrong.push(format!("{}: {asked:?} is answered alike", case.file));
        }
        if !findings.iter().any(|found| found.contains(finding)) {
            wrong.push(format!("{}: `{finding}` is not found", case.file));
        }
    }
    wrong
}
