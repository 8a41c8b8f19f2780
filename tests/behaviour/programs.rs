//! Other people's clients: `websockets` for Python, the EventSource of a browser, curl and OpenSSL. A program that is not installed is
//! named on stderr (`skipped: …`), and its test passes; `scripts/setup` installs what can be installed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use weir_testkit::{
    Answer, Authority, BROWSER_DEADLINE, Gateway, Identity, Origin, Reading, TempDir, TlsServer, chromium, eventually,
    skipped,
};

/// A Python that has `websockets`.
fn python() -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/python/bin/python");
    let imports = Command::new(&python).args(["-c", "import websockets"]).stderr(Stdio::null()).status();
    if imports.is_ok_and(|status| status.success()) {
        return Some(python);
    }
    skipped("there is no Python with `websockets`");
    None
}

fn start(yaml: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(yaml)
}

/// A gateway that speaks TLS as `a.test`, before an origin that is spoken to in TLS, too; and the authority's file.
fn tls_gateway() -> (Gateway, Origin, PathBuf) {
    let authority = Authority::of_tests();
    let Identity { certificate, key } = authority.identity(&["a.test"]);
    let origin = Origin::serving_tls(&TlsServer::new(&authority.identity(&["a.test"])), |request| {
        Answer::ok(format!("{} bytes", request.body.len()))
    });
    let gateway = start(&format!(
        "listen: [{{ address: \"127.0.0.1:0\", tls: true }}]\nssls: [{{ sni: a.test, cert: {certificate:?}, key: {key:?} }}]\n\
         routes:\n  - {{ uri: /*, upstream: {{ scheme: https, nodes: {{ \"{}\": 1 }}, tls: {{ ca: {:?} }} }} }}\n",
        origin.addr(),
        authority.certificate
    ));
    let file = gateway.directory().write("ca.pem", &authority.certificate);
    (gateway, origin, file)
}

fn is_installed(program: &str, ask: &str) -> bool {
    let found = Command::new(program).arg(ask).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        skipped(&format!("there is no {program}"));
    }
    found
}

#[test]
fn curl_speaks_tls_through_it() {
    if !is_installed("curl", "--version") {
        return;
    }
    let (gateway, _origin, authority) = tls_gateway();
    let addr = gateway.tls_addr();
    let large = gateway.directory().write("large", vec![b'x'; 3 << 20]);
    for version in [["--tlsv1.2", "--tls-max", "1.2"], ["--tlsv1.3", "--tls-max", "1.3"]] {
        let output = Command::new("curl")
            .args(["--silent", "--show-error", "--fail", "--http1.1", "--cacert"])
            .arg(&authority)
            .args(["--connect-to", &format!("a.test:443:{addr}")])
            .args(version)
            .arg("--data-binary")
            .arg(format!("@{}", large.display()))
            .args(["https://a.test/1", "https://a.test/2"])
            .output()
            .expect("it is installed");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "3145728 bytes".repeat(2), "{version:?}: {said}");
    }
}

#[test]
fn curl_speaks_http2_through_it() {
    if !is_installed("curl", "--version") {
        return;
    }
    let (gateway, _origin, authority) = tls_gateway();
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--fail", "--http2", "--max-time", "20", "--data-binary", "hello"])
        .args(["--write-out", " in HTTP/%{http_version}", "--cacert"])
        .arg(&authority)
        .args(["--connect-to", &format!("a.test:443:{}", gateway.tls_addr()), "https://a.test/1"])
        .output()
        .expect("it is installed");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "5 bytes in HTTP/2", "{said}");
}

/// An answer that comes before the content: what the client may send at once is taken, and of more it is told that nobody
/// wants it. curl before 8.0 sees an error in that, but waits for nothing.
#[test]
fn curl_may_upload_to_who_has_answered_already() {
    if !is_installed("curl", "--version") {
        return;
    }
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir"))
        .start("routes: [{ uri: /*, plugins: { mocking: { response_example: hello } } }]\n");
    for (length, most) in [(100, 0), (200_000, 0), (3_000_000, 92), (20_000_000, 92)] {
        let content = gateway.directory().write("content", "x".repeat(length));
        let output = Command::new("curl")
            .args(["--silent", "--http2-prior-knowledge", "--max-time", "20", "--data-binary"])
            .arg(format!("@{}", content.display()))
            .arg(format!("http://{}/", gateway.addr()))
            .output()
            .expect("it is installed");
        let code = output.status.code().expect("it ends by itself");
        assert!(code == 0 || code == most, "{length} bytes: {code}");
        assert!(code != 0 || output.stdout == b"hello", "{length} bytes");
    }
}

/// What `openssl s_client` says about a connection on which it sends `input`.
fn s_client(gateway: &Gateway, authority: &Path, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new("openssl")
        .args(["s_client", "-connect", &gateway.tls_addr().to_string(), "-servername", "a.test", "-CAfile"])
        .arg(authority)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it is installed");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn openssl_speaks_tls_with_it_and_r09_nothing_that_is_broken() {
    if !is_installed("openssl", "version") {
        return;
    }
    let (gateway, _origin, authority) = tls_gateway();
    let session = gateway.directory().path().join("session");
    let session = session.to_str().expect("it is UTF-8");
    let request = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
    for version in ["-tls1_2", "-tls1_3"] {
        let first = s_client(&gateway, &authority, &["-ign_eof", version, "-sess_out", session], request);
        assert!(first.contains("Verify return code: 0 (ok)") && first.contains("0 bytes"), "{first}");
        assert!(first.contains("Compression: NONE"), "{first}");
        let again = s_client(&gateway, &authority, &["-ign_eof", version, "-sess_in", session], request);
        assert!(again.contains("Reused, TLS") && again.contains("0 bytes"), "{again}");
    }
    // Asking for a renegotiation (a line `R`) ends the connection instead.
    let renegotiation = s_client(&gateway, &authority, &["-tls1_2"], "R\n");
    assert!(!renegotiation.contains("Secure Renegotiation IS NOT"), "{renegotiation}");
    for refused in [&["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"][..], &["-tls1_2", "-cipher", "AES128-SHA"]] {
        let said = s_client(&gateway, &authority, refused, "");
        assert!(said.contains("alert") && said.contains("Cipher is (NONE)"), "{refused:?}: {said}");
    }
}

const SERVER: &str = r#"
import asyncio, websockets
async def echo(connection):
    async for message in connection:
        await connection.send(message)
async def main():
    async with websockets.serve(echo, "127.0.0.1", 0, max_size=None) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.Future()
asyncio.run(main())
"#;

const CLIENT: &str = r#"
import asyncio, sys, websockets
async def main():
    async with websockets.connect(sys.argv[1], max_size=None, ping_interval=0.05) as connection:
        for message in ["hello", "", "x" * 125, "x" * 126, "x" * 70000, b"\x00\xff" * 100000]:
            await connection.send(message)
            assert await connection.recv() == message, "an echo differs"
        await (await connection.ping())
        for number in range(1000):
            await connection.send(str(number))
        for number in range(1000):
            assert await connection.recv() == str(number), "out of order"
    assert connection.close_code == 1000, connection.close_code
    many = await asyncio.gather(*(websockets.connect(sys.argv[1]) for _ in range(20)))
    for connection in many:
        await connection.send("all")
    for connection in many:
        assert await connection.recv() == "all"
        await connection.close()
    print("good")
asyncio.run(main())
"#;

#[test]
fn websockets_for_python_talk_through_a_tunnel() {
    websockets_for_python_talk_through("{}");
}

/// The library offers compression, which is passed on unless something has to read messages.
#[test]
fn websockets_for_python_talk_past_policies() {
    let limits = "{ count: 1000000, bytes: 1000000000, time_window: 60 }";
    websockets_for_python_talk_through(&format!(
        "{{ websocket-policy: {{ ping_interval: 1 }}, limit-events: {limits} }}"
    ));
}

fn websockets_for_python_talk_through(plugins: &str) {
    let Some(python) = python() else { return };
    let mut server = Command::new(&python).args(["-c", SERVER]).stdout(Stdio::piped()).spawn().expect("python runs");
    let mut line = String::new();
    let stdout = server.stdout.take().expect("stdout is piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("a port");
    let gateway = start(&format!(
        "routes:\n  - {{ id: all, uri: /*, plugins: {plugins}, upstream: {{ type: roundrobin, nodes: {{ \"127.0.0.1:{}\": 1 }} }} }}\n",
        line.trim()
    ));
    let url = format!("ws://{}/socket", gateway.addr());
    let output = Command::new(&python).args(["-c", CLIENT, &url]).output().expect("python runs");
    server.kill().expect("it is our child");
    server.wait().expect("it is our child");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.trim() == "good", "{out}\n{err}");
}

const PAGE: &str = r#"<!doctype html><script>
const source = new EventSource("/events"), seen = [];
source.onmessage = event => {
    seen.push(event.data + "@" + event.lastEventId);
    if (seen.length == 3) { source.close(); fetch("/seen?" + encodeURIComponent(seen.join(" "))); }
};
</script>"#;

#[test]
fn the_event_source_of_a_browser_reads_and_reconnects() {
    let Some(browser) = chromium() else { return };
    // Two events, the end of the stream, and the rest for the client that comes back with the last id it saw.
    let origin = Origin::reading(Reading::Strict, |request| match request.target.as_str() {
        "/page" => Answer::with(200, "Content-Type: text/html\r\n", PAGE),
        "/events" => {
            let body = match request.headers.get("Last-Event-ID") {
                None => "retry: 10\n\nid: 1\ndata: one\n\nid: 2\ndata: two\n\n".to_owned(),
                Some(last) => format!("id: 3\ndata: after {last}\n\n"),
            };
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            Answer::raw(format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len()))
        }
        _ => Answer::status(404, ""),
    });
    let gateway = start(&format!(
        "routes:\n  - {{ id: all, uri: /*, upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }} }}\n",
        origin.addr()
    ));
    let seen = browse(browser, &format!("http://{}/page", gateway.addr()), &origin);
    assert_eq!(seen, "/seen?one%401%20two%402%20after%202%403");
}

/// Opens a page, and waits until it has told the origin what it has seen.
fn browse(browser: &str, url: &str, origin: &Origin) -> String {
    let profile = TempDir::new();
    let mut process = Command::new(browser)
        .arg("--ignore-certificate-errors") // no browser knows the authority of tests
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .arg("--remote-debugging-port=0") // keeps it running until it is told to end
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(url)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it has told its version");
    let seen = || origin.targets().into_iter().find(|target| target.starts_with("/seen"));
    let outcome = std::panic::catch_unwind(|| eventually("the browser reports", BROWSER_DEADLINE, || seen().is_some()));
    process.kill().expect("it is our child");
    process.wait().expect("it is our child");
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
    seen().expect("it was there just now")
}

const FETCHES: &str = r#"<!doctype html><script>
(async () => {
    const texts = await Promise.all([1, 2, 3].map(async number => (await fetch("/data?" + number)).text()));
    // The browser may have asked for an icon, too.
    const fetched = performance.getEntriesByType("resource").filter(entry => entry.name.includes("/data?"));
    const spoken = fetched.map(entry => entry.nextHopProtocol);
    fetch("/seen?" + encodeURIComponent(texts.concat(spoken).join(" ")));
})();
</script>"#;

#[test]
fn a_browser_speaks_http2_with_it() {
    let Some(browser) = chromium() else { return };
    let origin = Origin::reading(Reading::Strict, |request| match request.target.split_once('?') {
        Some(("/data", number)) => Answer::ok(number),
        _ if request.target == "/page" => Answer::with(200, "Content-Type: text/html\r\n", FETCHES),
        _ => Answer::status(404, ""),
    });
    let Identity { certificate, key } = Authority::of_tests().identity(&["localhost"]);
    let gateway = start(&format!(
        "listen: [{{ address: \"127.0.0.1:0\", tls: true }}]\nssls: [{{ sni: localhost, cert: {certificate:?}, key: {key:?} }}]\n\
         routes: [{{ uri: /*, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]\n",
        origin.addr()
    ));
    let seen = browse(browser, &format!("https://localhost:{}/page", gateway.tls_addr().port()), &origin);
    assert_eq!(seen, "/seen?1%202%203%20h2%20h2%20h2");
}

/// A page of 200 objects of four kinds, to which a browser gives priorities of its own.
fn page_of_objects() -> String {
    let mut page = "<!doctype html><script>let ran = 0, failed = 0;</script>".to_owned();
    (0..20).for_each(|number| page.push_str(&format!("<link rel=stylesheet href=/css/{number}>")));
    (0..60).for_each(|number| page.push_str(&format!("<script defer src=/script/{number}></script>")));
    (0..80).for_each(|number| page.push_str(&format!("<img src=/image/{number} onerror='failed++'>")));
    page.push_str(
        "<script>
const texts = Promise.all([...Array(40).keys()].map(number => fetch('/text/' + number).then(answer => answer.text())));
addEventListener('load', async () => {
    const fetched = (await texts).filter(text => text.length == 20000).length;
    const styles = [...document.styleSheets].filter(sheet => sheet.cssRules.length == 1).length;
    const entries = performance.getEntriesByType('resource').filter(entry => /css|script|image|text/.test(entry.name));
    const spoken = entries.filter(entry => entry.nextHopProtocol == 'h2').length;
    fetch(`/seen?${styles}-${ran}-${document.images.length - failed}-${fetched}-${spoken}`);
});
</script>",
    );
    page
}

#[test]
fn a_browser_loads_a_page_of_200_objects() {
    let Some(browser) = chromium() else { return };
    let origin = Origin::reading(Reading::Strict, |request| {
        let padding = "x".repeat(20_000);
        let with = |kind, body: String| Answer::with(200, &format!("Content-Type: {kind}\r\n"), body);
        match request.target.split('/').nth(1) {
            Some("page") => with("text/html", page_of_objects()),
            Some("css") => with("text/css", format!("a {{ color: red }} /* {padding} */")),
            Some("script") => with("text/javascript", format!("ran++; // {padding}")),
            Some("image") => with(
                "image/svg+xml",
                format!("<svg xmlns='http://www.w3.org/2000/svg' width='1' height='1'><!-- {padding} --></svg>"),
            ),
            Some("text") => with("text/plain", padding),
            _ => Answer::status(404, ""),
        }
    });
    let Identity { certificate, key } = Authority::of_tests().identity(&["localhost"]);
    let gateway = start(&format!(
        "listen: [{{ address: \"127.0.0.1:0\", tls: true }}]\nssls: [{{ sni: localhost, cert: {certificate:?}, key: {key:?} }}]\n\
         routes: [{{ uri: /*, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]\n",
        origin.addr()
    ));
    let seen = browse(browser, &format!("https://localhost:{}/page", gateway.tls_addr().port()), &origin);
    assert_eq!(seen, "/seen?20-60-80-40-200", "styles, scripts, images, texts, and all of them by HTTP/2");
    let requests = origin.requests();
    let priorities: std::collections::BTreeSet<_> =
        requests.iter().filter_map(|request| request.headers.get("priority")).collect();
    assert!(priorities.len() >= 3, "it says what matters: {priorities:?}");
}
