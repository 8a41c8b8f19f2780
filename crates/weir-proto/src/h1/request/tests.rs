use super::*;

fn parse(bytes: &str) -> Result<RequestHead, Reject> {
    parse_bytes(bytes.as_bytes())
}

fn parse_bytes(bytes: &[u8]) -> Result<RequestHead, Reject> {
    let mut request = RequestHead::default();
    let length = parse_request(bytes, &Limits::default(), &mut request)?.expect("test heads are complete");
    assert_eq!(length, bytes.len());
    Ok(request)
}

fn with(fields: &str) -> Result<RequestHead, Reject> {
    parse(&format!("POST / HTTP/1.1\r\nHost: t\r\n{fields}\r\n"))
}

#[test]
fn a_plain_request() {
    let request = parse("GET /a?b=c HTTP/1.1\r\nHost: T.example.:80\r\nX-Y:  z \r\nEmpty:\r\n\r\n").unwrap();
    assert_eq!(request.method, Method::Get);
    assert_eq!(request.path(), b"/a");
    assert_eq!(request.query(), Some(&b"b=c"[..]));
    assert_eq!(request.host(), b"t.example");
    assert_eq!(request.authority(), b"T.example.:80");
    assert_eq!(request.head.value(b"x-y"), Some(&b"z"[..]));
    assert_eq!(request.head.value(b"empty"), Some(&b""[..]));
    assert!(request.keep_alive);
    let mut out = Vec::new();
    request.head.write_fields(&mut out, |field| field.known != Known::Host);
    assert_eq!(out, b"X-Y: z\r\nEmpty: \r\n");
}

#[test]
fn incomplete_heads_wait_and_long_ones_do_not() {
    let limits = Limits { head_bytes: 200, target_bytes: 50, ..Limits::default() };
    let run = |bytes: &[u8]| parse_request(bytes, &limits, &mut RequestHead::default());
    for partial in ["", "\r", "\r\n", "G", "GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: t\r\n\r"] {
        assert_eq!(run(partial.as_bytes()), Ok(None), "{partial:?}");
    }
    assert_eq!(run(format!("GET /{}", "a".repeat(150)).as_bytes()), Err(Reject::TargetTooLong));
    assert_eq!(
        run(format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", "a".repeat(60)).as_bytes()),
        Err(Reject::TargetTooLong)
    );
    assert_eq!(
        run(format!("GET / HTTP/1.1\r\nHost: t\r\nA: {}", "a".repeat(250)).as_bytes()),
        Err(Reject::HeadTooLarge)
    );
    let many = format!("GET / HTTP/1.1\r\nHost: t\r\n{}\r\n", "A: b\r\n".repeat(300));
    assert_eq!(
        parse_request(many.as_bytes(), &Limits::default(), &mut RequestHead::default()),
        Err(Reject::HeadTooLarge)
    );
}

#[test]
fn an_empty_line_before_the_request_is_skipped_once() {
    assert!(parse("\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\n").is_ok());
    assert_eq!(parse("\r\n\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\n").err(), Some(Reject::Syntax));
    assert_eq!(parse("\nGET / HTTP/1.1\r\nHost: t\r\n\r\n").err(), Some(Reject::Syntax));
}

#[test]
fn lengths_that_two_readers_could_read_differently() {
    for (fields, why) in [
        ("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", Reject::Framing),
        ("Content-Length: 5\r\nContent-Length: 5\r\n", Reject::Framing),
        ("Content-Length: 5, 5\r\n", Reject::Framing),
        ("Content-Length: +5\r\n", Reject::Framing),
        ("Content-Length: -1\r\n", Reject::Framing),
        ("Content-Length: 0x5\r\n", Reject::Framing),
        ("Content-Length: 5_0\r\n", Reject::Framing),
        ("Content-Length: 1 0\r\n", Reject::Framing),
        ("Content-Length: ٥\r\n", Reject::Framing),
        ("Content-Length:\r\n", Reject::Framing),
        ("Content-Length: 99999999999999999999\r\n", Reject::Framing),
        ("Transfer-Encoding: xchunked\r\n", Reject::TransferCoding),
        ("Transfer-Encoding: gzip, chunked\r\n", Reject::Framing),
        ("Transfer-Encoding: gzip\r\n", Reject::TransferCoding),
        ("Transfer-Encoding: chunked, identity\r\n", Reject::Framing),
        ("Transfer-Encoding: ,chunked\r\n", Reject::Framing),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", Reject::Framing),
        ("Transfer-Encoding: \"chunked\"\r\n", Reject::Framing),
        ("Transfer-Encoding: chunked;q=1\r\n", Reject::Framing),
        ("Transfer-Encoding: chunked\x0b\r\n", Reject::Syntax),
        ("Transfer-Encoding : chunked\r\n", Reject::Syntax),
        ("Transfer-Encoding:\r\n", Reject::Framing),
    ] {
        assert_eq!(with(fields).err(), Some(why), "{fields:?}");
    }
    assert_eq!(with("Transfer-Encoding: CHUNKED\r\n").unwrap().framing, Framing::Chunked);
    assert_eq!(with("Content-Length: 005\r\n").unwrap().framing, Framing::Sized(5));
    let old = parse("POST / HTTP/1.0\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(old.err(), Some(Reject::Framing));
}

#[test]
fn lines_out_of_order() {
    for bytes in [
        &b"GET / HTTP/1.1\nHost: t\n\n"[..],
        b"GET / HTTP/1.1\r\nHost: t\n\r\n",
        b"GET / HTTP/1.1\r\nHost: t\r\n\n",
        b"GET / HTTP/1.1\r\r\nHost: t\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: t\rX: y\r\n\r\n",
        b"GET / HTTP/1.1\r\n Host: t\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: t\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : t\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: t\r\nnocolon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: t\r\n: empty\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: t\r\nBad[Name: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: t\r\nA: \x00\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: t\r\n\r\n",
        b"GET /  HTTP/1.1\r\nHost: t\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: t\r\n\r\n",
        b" GET / HTTP/1.1\r\nHost: t\r\n\r\n",
        b"G\x00T / HTTP/1.1\r\nHost: t\r\n\r\n",
        b"GET / HTTP/1.1 \r\nHost: t\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1\r\nHost: t\r\n\r\n",
        b"GET / http/1.1\r\nHost: t\r\n\r\n",
        b"GET / HTTP/01.01\r\nHost: t\r\n\r\n",
    ] {
        let got = parse_request(bytes, &Limits::default(), &mut RequestHead::default());
        assert_eq!(got, Err(Reject::Syntax), "{}", bytes.escape_ascii());
    }
}

#[test]
fn refused_request_shows_its_method_and_target() {
    for bytes in ["GET /a HTTP/1.1\r\nHost: t\r\nAccept: x\r\nbad line\r\n\r\n", "GET /a HTTP/1.1\r\nAccept: x\r\nA: b"]
    {
        let mut request = RequestHead::default();
        let _ = parse_request(bytes.as_bytes(), &Limits::default(), &mut request);
        assert_eq!((request.method_name(), request.target()), (&b"GET"[..], &b"/a"[..]), "{bytes:?}");
        assert_eq!(request.head.value(b"accept"), None);
        assert_eq!(request.head.fields().count(), 0);
    }
}

#[test]
fn other_versions_are_named_as_such() {
    for version in ["HTTP/2.0", "HTTP/3.1", "HTTP/0.9"] {
        let got = parse(&format!("GET / {version}\r\nHost: t\r\n\r\n"));
        assert_eq!(got.err(), Some(Reject::Version), "{version}");
    }
}

#[test]
fn u07_methods_in_lower_case_are_refused() {
    for method in ["delete", "Delete", "get", "m-search", "QUERy"] {
        let got = parse(&format!("{method} / HTTP/1.1\r\nHost: t\r\n\r\n"));
        assert_eq!(got.err(), Some(Reject::Method), "{method}");
    }
    assert!(parse("M-SEARCH / HTTP/1.1\r\nHost: t\r\n\r\n").is_ok());
}

#[test]
fn u07_path_parameters_can_be_refused() {
    let limits = Limits { refuse_path_parameters: true, ..Limits::default() };
    for (path, status) in
        [("/admin;x", 400), ("/;x/admin", 400), ("/admin%3Bx", 400), ("/admin%3bx", 400), ("/a?b;c", 200)]
    {
        let bytes = format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n");
        let got = parse_request(bytes.as_bytes(), &limits, &mut RequestHead::default());
        assert_eq!(got.err().map_or(200, Reject::status), status, "{path}");
        assert!(parse(&bytes).is_ok(), "{path}");
    }
}

#[test]
fn u10_higher_minor_versions_are_processed_as_1_1() {
    for version in ["HTTP/1.2", "HTTP/1.9"] {
        let request = parse(&format!("GET / {version}\r\nHost: t\r\n\r\n")).expect(version);
        assert_eq!((request.version, request.keep_alive), (Version::Http11, true), "{version}");
    }
    assert_eq!(parse("GET / HTTP/1.2\r\n\r\n").err(), Some(Reject::Host), "the rules of 1.1 hold");
}

#[test]
fn u10_a_method_longer_than_any_is_not_implemented() {
    let run = |bytes: &str| parse_request(bytes.as_bytes(), &Limits::default(), &mut RequestHead::default());
    let method = |length: usize| "M".repeat(length);
    assert_eq!(run(&method(100_000)), Err(Reject::MethodTooLong));
    assert_eq!(run(&format!("{} / HTTP/1.1\r\nHost: t\r\n\r\n", method(65))), Err(Reject::MethodTooLong));
    assert_eq!(run(&method(64)), Ok(None));
    assert!(run(&format!("{} / HTTP/1.1\r\nHost: t\r\n\r\n", method(64))).is_ok());
    assert_eq!(Reject::MethodTooLong.status(), 501);
}

#[test]
fn u10_the_same_authority_with_its_default_port() {
    for (target, host) in [
        ("http://a.example:80/", "a.example"),
        ("http://a.example/", "a.example:80"),
        ("http://A.example./", "a.EXAMPLE:80"),
        ("https://a.example:443/", "a.example"),
    ] {
        let request = parse(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")).expect(target);
        assert_eq!((request.host(), request.path()), (&b"a.example"[..], &b"/"[..]), "{target} {host}");
    }
    for (target, host) in [
        ("http://a.example:81/", "a.example"),
        ("https://a.example:80/", "a.example"),
        ("http://b.example/", "a.example"),
        ("http://a.example/", "a.example:443"),
    ] {
        let bytes = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(parse(&bytes).err(), Some(Reject::Host), "{target} {host}");
        let limits = Limits { target_replaces_host: true, ..Limits::default() };
        let mut request = RequestHead::default();
        assert!(parse_request(bytes.as_bytes(), &limits, &mut request).is_ok(), "{target} {host}");
        assert_ne!(request.authority(), host.as_bytes(), "the target's counts");
    }
}

#[test]
fn targets_and_hosts() {
    for (bytes, why) in [
        ("GET http://evil/ HTTP/1.1\r\nHost: t\r\n\r\n", Reject::Host),
        ("GET http:/// HTTP/1.1\r\nHost: t\r\n\r\n", Reject::Host),
        ("GET ftp://t/ HTTP/1.1\r\nHost: t\r\n\r\n", Reject::Target),
        ("GET * HTTP/1.1\r\nHost: t\r\n\r\n", Reject::Target),
        ("GET ?x HTTP/1.1\r\nHost: t\r\n\r\n", Reject::Target),
        ("GET /#x HTTP/1.1\r\nHost: t\r\n\r\n", Reject::Target),
        ("GET /?a#x HTTP/1.1\r\nHost: t\r\n\r\n", Reject::Target),
        ("GET / HTTP/1.1\r\n\r\n", Reject::Host),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", Reject::Host),
        ("GET / HTTP/1.1\r\nHost: a\r\nAuthorization: a\r\nauthorization: a\r\n\r\n", Reject::Authorization),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", Reject::Host),
        ("GET / HTTP/1.1\r\nHost: u@h\r\n\r\n", Reject::Host),
        ("CONNECT t HTTP/1.1\r\nHost: t\r\n\r\n", Reject::Target),
        ("CONNECT / HTTP/1.1\r\nHost: t\r\n\r\n", Reject::Target),
    ] {
        assert_eq!(parse(bytes).err(), Some(why), "{bytes:?}");
    }
    let path = |head: &str| parse(head).unwrap().path().to_owned();
    assert_eq!(path("OPTIONS http://t HTTP/1.1\r\nHost: t\r\n\r\n"), b"*", "RFC 9112 §3.2.4");
    assert_eq!(path("OPTIONS http://t/ HTTP/1.1\r\nHost: t\r\n\r\n"), b"/");
    assert_eq!(path("OPTIONS http://t?x HTTP/1.1\r\nHost: t\r\n\r\n"), b"/");
    let absolute = parse("GET HTTP://T?x HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    assert_eq!((absolute.path(), absolute.query(), absolute.host()), (&b"/"[..], Some(&b"x"[..]), &b"t"[..]));
    assert_eq!(&*absolute.origin_form(), b"/?x");
    for (target, origin_form) in
        [("http://t", "/"), ("https://t:80/a/../b?c=://", "/a/../b?c=://"), ("/://a/b", "/://a/b")]
    {
        let request = parse(&format!("GET {target} HTTP/1.1\r\nHost: t:80\r\n\r\n")).unwrap();
        assert_eq!(&*request.origin_form(), origin_form.as_bytes(), "{target}");
    }
    assert_eq!(parse("OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n").unwrap().path(), b"*");
    assert_eq!(parse("CONNECT t:443 HTTP/1.1\r\nHost: t:443\r\n\r\n").unwrap().method, Method::Connect);
    assert!(parse("GET / HTTP/1.0\r\n\r\n").is_ok());
}

#[test]
fn connection_options() {
    assert!(!with("Connection: close\r\n").unwrap().keep_alive);
    assert!(!parse("GET / HTTP/1.0\r\n\r\n").unwrap().keep_alive);
    assert!(parse("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").unwrap().keep_alive);
    let request =
        with("Connection: close, X-Mine, Host, Content-Length\r\nX-Mine: 1\r\nContent-Length: 3\r\nX-Other: 2\r\n");
    let request = request.unwrap();
    assert_eq!(request.head.value(b"x-mine"), None);
    assert_eq!(request.head.value(b"x-other"), Some(&b"2"[..]));
    assert_eq!(request.framing, Framing::Sized(3));
    assert_eq!(request.host(), b"t");
}

#[test]
fn upgrades_and_expectations() {
    let upgrade = |fields: &str| parse(&format!("GET / HTTP/1.1\r\nHost: t\r\n{fields}\r\n")).unwrap().upgrade;
    assert!(upgrade("Connection: Upgrade\r\nUpgrade: websocket\r\n"));
    assert!(!upgrade("Upgrade: websocket\r\n"));
    assert!(!upgrade("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n"));
    assert!(!upgrade("Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 3\r\n"));
    assert!(!upgrade("Connection: Upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n"), "the first would be forwarded");
    assert!(with("Expect: 100-Continue\r\nContent-Length: 3\r\n").unwrap().expects_continue);
    assert!(!with("Expect: 100-continue\r\n").unwrap().expects_continue);
    assert_eq!(with("Expect: y100-continue\r\n").err(), Some(Reject::Expectation));
}

#[test]
fn names_nobody_may_send() {
    let request = with("X_User: a\r\nX-Consumer-Username: admin\r\nX-Good: b\r\n").unwrap();
    assert_eq!(request.head.fields().map(|(name, _)| name).collect::<Vec<_>>(), [&b"Host"[..], b"X-Good"]);
    let head = "GET / HTTP/1.1\r\nHost: t\r\nX_User: a\r\nX-Consumer_Username: admin\r\nX_Real_IP: 1.1.1.1\r\n\r\n";
    let mut request = RequestHead::default();
    let allowed = Limits { underscores_in_names: true, ..Limits::default() };
    assert!(parse_request(head.as_bytes(), &allowed, &mut request).is_ok_and(|length| length.is_some()));
    assert_eq!(request.head.fields().map(|(name, _)| name).collect::<Vec<_>>(), [&b"Host"[..], b"X_User"]);
}

proptest::proptest! {
    #[test]
    fn never_panics_and_never_reads_past_the_end(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
        let mut request = RequestHead::default();
        if let Ok(Some(length)) = parse_request(&bytes, &Limits::default(), &mut request) {
            proptest::prop_assert!(length <= bytes.len());
        }
    }
}

#[test]
fn request_as_sent_has_what_plugins_took_and_nothing_else() {
    let mut request = with(
        "Connection: close, X-Hop\r\nX-Hop: 1\r\nTE: trailers\r\nX-Consumer-Username: root\r\nX_Real_IP: 1\r\nAuthorization: a\r\n",
    )
    .unwrap();
    request.head.remove(b"authorization");
    request.head.withhold(b"X-Forwarded-Port");
    request.head.add(b"X-Consumer-Username", b"ann").unwrap();
    request.set_authority(b"other").unwrap();
    let sent = request.as_sent();
    let fields: Vec<_> = sent.head.fields().collect();
    assert_eq!(fields, [(&b"Host"[..], &b"t"[..]), (b"Authorization", b"a")]);
    assert_eq!((sent.authority(), sent.head.is_withheld(Known::XForwardedPort)), (&b"t"[..], false));
}
