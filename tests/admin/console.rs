//! The files of the console, and what every answer of the admin address forbids browsers to do with it.

use weir_testkit::{Client, Response};

use crate::api::{ADMIN, Api, admin_addr, file};
use crate::weir;

/// Asks for a path, with further fields, each ended by CR LF.
#[track_caller]
fn ask(client: &mut Client, method: &str, path: &str, fields: &str) -> Response {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{fields}\r\n");
    client.ask(request).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

#[track_caller]
fn field(answer: &Response, name: &str) -> String {
    answer.headers.get(name).unwrap_or_else(|| panic!("no {name}: {:?}", answer.headers)).to_owned()
}

#[test]
fn the_console_is_served_to_who_has_no_key() {
    let gateway = weir().start(&file());
    let client = &mut Client::connect(admin_addr(&gateway));
    let page = ask(client, "GET", "/console/", "");
    assert_eq!((page.status, &*field(&page, "content-type")), (200, "text/html; charset=utf-8"));
    assert!(page.text().to_ascii_lowercase().contains("<!doctype html>"), "{}", page.text());
    let policy = field(&page, "content-security-policy");
    assert!(policy.contains("script-src 'self'; ") && policy.contains("trusted-types lit-html"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    for screen in ["/console/index.html", "/console/routes", "/console/routes/r1"] {
        assert_eq!(ask(client, "GET", screen, "").text(), page.text(), "{screen}");
    }
    assert_eq!(ask(client, "HEAD", "/console/", "").status, 200);
    for none in ["/console/none.js", "/console/../Cargo.toml", "/console/%2e%2e/Cargo.toml", "/console/.gitignore"] {
        assert_eq!(ask(client, "GET", none, "").status, 404, "{none}");
    }
    assert_eq!(ask(client, "POST", "/console/", "Content-Length: 0\r\n").status, 405);
}

#[test]
fn a_browser_that_asks_for_the_address_is_led_to_the_console() {
    let gateway = weir().start(&file());
    let client = &mut Client::connect(admin_addr(&gateway));
    let led = ask(client, "GET", "/", "Accept: text/html,application/xhtml+xml;q=0.9,*/*;q=0.8\r\n");
    assert_eq!((led.status, &*field(&led, "location")), (303, "/console/"));
    let led = ask(client, "GET", "/console", "");
    assert_eq!((led.status, &*field(&led, "location")), (308, "/console/"));
    assert_eq!(ask(client, "GET", "/", "Accept: application/json\r\n").status, 404, "a tool has no use for a page");
}

#[test]
fn a_file_that_a_browser_has_is_not_sent_again() {
    let gateway = weir().start(&file());
    let client = &mut Client::connect(admin_addr(&gateway));
    let plain = ask(client, "GET", "/console/", "");
    let tag = field(&plain, "etag");
    assert_eq!(field(&plain, "cache-control"), "no-cache");
    for tags in [tag.clone(), format!("\"x\", {tag}")] {
        let same = ask(client, "GET", "/console/", &format!("If-None-Match: {tags}\r\n"));
        assert_eq!((same.status, same.body.len(), field(&same, "etag")), (304, 0, tag.clone()));
    }
    assert_eq!(ask(client, "GET", "/console/", "If-None-Match: \"x\"\r\n").status, 200);
}

#[test]
fn the_console_can_be_switched_off() {
    let gateway = weir().start(&file().replacen("admin:\n", "admin:\n  console: false\n", 1));
    let client = &mut Client::connect(admin_addr(&gateway));
    for path in ["/console/", "/console", "/"] {
        assert_eq!(ask(client, "GET", path, "Accept: text/html\r\n").status, 404, "{path}");
    }
    assert_eq!(Api::of(&gateway).ask("GET", "routes", "", "").status, 200);
}

#[test]
fn no_answer_can_be_framed_or_run() {
    let gateway = weir().start(&file());
    let client = &mut Client::connect(admin_addr(&gateway));
    let key = format!("X-API-KEY: {ADMIN}\r\n");
    for path in ["/", "/console/", "/console/none.js", "/apisix/admin/routes", "/apisix/admin/none", "/weir/v1/hubs"] {
        for fields in ["", &key, "Host: rebound.example\r\n", "Origin: http://other.example\r\n"] {
            let host = if fields.starts_with("Host") { "" } else { "Host: 127.0.0.1\r\n" };
            let answer = client.ask(format!("GET {path} HTTP/1.1\r\n{host}{fields}\r\n")).expect("an answer");
            assert!(field(&answer, "content-security-policy").contains("default-src 'none'"), "{path}");
            assert!(field(&answer, "content-security-policy").contains("frame-ancestors 'none'"), "{path}");
            assert_eq!(field(&answer, "x-content-type-options"), "nosniff");
            assert_eq!(field(&answer, "referrer-policy"), "no-referrer");
            assert_eq!(field(&answer, "cross-origin-opener-policy"), "same-origin");
        }
    }
}

#[test]
fn the_console_has_no_foreign_name() {
    let gateway = weir().start(&file());
    let client = &mut Client::connect(admin_addr(&gateway));
    let rebound = client.ask("GET /console/ HTTP/1.1\r\nHost: rebound.example\r\n\r\n").expect("an answer");
    assert_eq!(rebound.status, 421);
}
