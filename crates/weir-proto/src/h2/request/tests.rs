use super::*;

const GET: PseudoField<'_> = PseudoField {
    method: b"GET",
    scheme: Some(b"https"),
    authority: Some(b"a.test"),
    path: Some(b"/"),
    protocol: None,
    ended: true,
};

fn parse(pseudo: PseudoField<'_>, fields: &[(&str, &str)]) -> Result<RequestHead, Reject> {
    let mut request = RequestHead::default();
    let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    request_head(&pseudo, fields, &Limits::default(), &mut request)?;
    Ok(request)
}

fn lines(request: &RequestHead) -> String {
    let mut out = Vec::new();
    request.head.write_fields(&mut out, |field| field.known != Known::Host);
    String::from_utf8(out).expect("test heads are text")
}

#[test]
fn a_request_reads_like_one_of_http1() {
    let pseudo = PseudoField { authority: Some(b"A.Test:8443"), path: Some(b"/a/./b%41?c=d"), ..GET };
    let request = parse(pseudo, &[("accept", "*/*"), ("te", "trailers"), ("x-a", "1")]).expect("valid");
    assert_eq!((request.method, request.version), (Method::Get, Version::Http2));
    assert_eq!((request.path(), request.query()), (&b"/a/bA"[..], Some(&b"c=d"[..])));
    assert_eq!(request.target(), b"/a/./b%41?c=d");
    assert_eq!((request.host(), request.port()), (&b"a.test"[..], Some(8443)));
    assert_eq!(request.authority(), b"A.Test:8443");
    assert_eq!(request.head.value(b"host"), Some(&b"A.Test:8443"[..]));
    assert!(request.takes_trailers && request.sends_te && !request.keep_alive);
    assert_eq!(lines(&request), "accept: */*\r\nx-a: 1\r\n");
}

#[test]
fn lengths_and_ends_make_the_framing() {
    let framing = |method: &'static [u8], ended, fields: &[(&str, &str)]| {
        parse(PseudoField { method, ended, ..GET }, fields).map(|request| request.framing)
    };
    assert_eq!(framing(b"GET", true, &[]), Ok(Framing::None));
    assert_eq!(framing(b"POST", true, &[]), Ok(Framing::Sized(0)));
    assert_eq!(framing(b"POST", false, &[]), Ok(Framing::UntilClose));
    assert_eq!(framing(b"POST", false, &[("content-length", "7")]), Ok(Framing::Sized(7)));
    assert_eq!(framing(b"POST", true, &[("content-length", "7")]), Err(Reject::Malformed));
    assert_eq!(framing(b"POST", false, &[("content-length", "+7")]), Err(Reject::Framing));
    assert_eq!(framing(b"POST", false, &[("content-length", "7"), ("content-length", "7")]), Err(Reject::Framing));
}

#[test]
fn h08_what_would_become_another_request_is_malformed() {
    for (name, value) in [
        ("transfer-encoding", "chunked"),
        ("connection", "x-a"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "close"),
        ("upgrade", "websocket"),
        ("te", "gzip"),
        ("te", "trailers, gzip"),
        ("X-Upper", "1"),
        ("a b", "1"),
        ("a:b", "1"),
        ("", "1"),
        ("a\r\nhost", "1"),
        ("a", "1\r\ntransfer-encoding: chunked"),
        ("a", "1\n"),
        ("a", "\0"),
        ("a", " 1"),
        ("a", "1\t"),
    ] {
        assert_eq!(parse(GET, &[(name, value)]).err(), Some(Reject::Malformed), "{name:?}: {value:?}");
    }
    for method in [&b"GET /admin HTTP/1.1\r\nx: "[..], b"", b"G T"] {
        assert_eq!(parse(PseudoField { method, ..GET }, &[]).err(), Some(Reject::Malformed));
    }
    for path in [&b"/ HTTP/1.1\r\nhost: x"[..], b"/\0", b"/\n"] {
        // RFC 9113 §8.2.1 forbids these bytes in any field value, so the request is malformed.
        assert_eq!(parse(PseudoField { path: Some(path), ..GET }, &[]).err(), Some(Reject::Malformed));
    }
    for path in [&b"/a b"[..], b"relative", b"*", b"http://x/", b"/../x", b"/a#b"] {
        assert_eq!(
            parse(PseudoField { path: Some(path), ..GET }, &[]).err(),
            Some(Reject::Target),
            "{}",
            path.escape_ascii()
        );
    }
    for authority in [&b"a\r\nb"[..], b"a\0"] {
        assert_eq!(parse(PseudoField { authority: Some(authority), ..GET }, &[]).err(), Some(Reject::Malformed));
    }
}

#[test]
fn h09_pseudo_fields_are_what_they_may_be() {
    for authority in [&b"user@a.test"[..], b"", b"a.test/x", b"a,b", b"a b"] {
        let refused = parse(PseudoField { authority: Some(authority), ..GET }, &[]).err();
        assert_eq!(refused, Some(Reject::Host), "{}", authority.escape_ascii());
    }
    assert_eq!(parse(PseudoField { path: Some(b""), ..GET }, &[]).err(), Some(Reject::Malformed));
    assert_eq!(parse(PseudoField { path: None, ..GET }, &[]).err(), Some(Reject::Malformed));
    assert_eq!(parse(PseudoField { scheme: Some(b"ftp"), ..GET }, &[]).err(), Some(Reject::Target));
    assert_eq!(parse(PseudoField { authority: None, ..GET }, &[]).err(), Some(Reject::Host));
    assert_eq!(parse(GET, &[("host", "b.test")]).err(), Some(Reject::Host));
    assert_eq!(
        parse(PseudoField { authority: None, ..GET }, &[("host", "a"), ("host", "a")]).err(),
        Some(Reject::Host)
    );
    let twice = [("authorization", "a"), ("authorization", "b")];
    assert_eq!(parse(GET, &twice).err(), Some(Reject::Authorization));
    let agreeing = parse(GET, &[("host", "A.test")]).expect("both say the same");
    assert_eq!(agreeing.head.values(b"host").count(), 1);
    let only_host =
        parse(PseudoField { authority: None, ..GET }, &[("host", "b.test")]).expect("one of both is enough");
    assert_eq!(only_host.host(), b"b.test");
    assert!(parse(PseudoField { method: b"OPTIONS", path: Some(b"*"), ..GET }, &[]).is_ok());
}

#[test]
fn only_a_call_of_grpc_says_how_long_its_client_waits() {
    let post = PseudoField { method: b"POST", ended: false, ..GET };
    let timeout = |kind, value| {
        let request = parse(post, &[("grpc-timeout", value), ("content-type", kind)]).expect("valid");
        assert!(lines(&request).contains("grpc-timeout"), "it goes upstream");
        request.timeout_ns()
    };
    assert_eq!(timeout("application/grpc+proto", "200m"), Some(200_000_000));
    assert_eq!(timeout("application/json", "200m"), None);
    assert_eq!(timeout("application/grpc", "soon"), None);
}

#[test]
fn h04_fields_are_limited_by_number_and_by_bytes() {
    let many = vec![("a", "1"); 101];
    assert_eq!(parse(GET, &many).err(), Some(Reject::HeadTooLarge));
    let crumbs = vec![("cookie", ""); 101];
    assert_eq!(parse(GET, &crumbs).err(), Some(Reject::HeadTooLarge), "crumbs count");
    let long = "x".repeat(40_000);
    assert_eq!(parse(GET, &[("a", &long)]).err(), Some(Reject::HeadTooLarge));
    let path = format!("/{long}");
    assert_eq!(parse(PseudoField { path: Some(path.as_bytes()), ..GET }, &[]).err(), Some(Reject::TargetTooLong));
}

#[test]
fn cookies_are_one_field() {
    for fields in [
        &[("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "c=3"), ("x", "1")][..],
        &[("x", "1"), ("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "c=3")],
        &[("cookie", "a=1"), ("x", "1"), ("cookie", "b=2"), ("cookie", "c=3")],
    ] {
        let request = parse(GET, fields).expect("valid");
        assert_eq!(request.head.values(b"cookie").collect::<Vec<_>>(), [b"a=1; b=2; c=3"]);
        let lines = lines(&request);
        assert!(lines.contains("cookie: a=1; b=2; c=3\r\n") && lines.contains("x: 1\r\n"), "{lines}");
        assert_eq!(lines.len(), "cookie: a=1; b=2; c=3\r\nx: 1\r\n".len());
    }
}

#[test]
fn fields_that_claim_an_identity_are_left_out() {
    let request = parse(GET, &[("x-consumer-username", "root"), ("x_forwarded_for", "1.2.3.4")]).expect("valid");
    assert_eq!(lines(&request), "");
}

#[test]
fn a_websocket_asks_as_in_http1() {
    let connect = PseudoField { method: b"CONNECT", protocol: Some(b"websocket"), ended: false, ..GET };
    let request = parse(connect, &[("sec-websocket-version", "13")]).expect("valid");
    assert!(request.upgrade && request.method == Method::Get && request.framing == Framing::None);
    assert_eq!(request.head.known(Known::Upgrade), Some(&b"websocket"[..]));
    assert_eq!(lines(&request), "sec-websocket-version: 13\r\n");
    let other = parse(PseudoField { protocol: Some(b"connect-udp"), ..connect }, &[]).expect("no route serves it");
    assert!(other.method == Method::Connect && !other.upgrade);
    assert_eq!(parse(PseudoField { protocol: Some(b"websocket"), ..GET }, &[]).err(), Some(Reject::Malformed));
}

#[test]
fn connect_has_an_authority_and_nothing_else() {
    let connect = PseudoField { method: b"CONNECT", scheme: None, path: None, authority: Some(b"a.test:443"), ..GET };
    let request = parse(connect, &[]).expect("valid");
    assert_eq!((request.method, request.target()), (Method::Connect, &b"a.test:443"[..]));
    assert_eq!(parse(PseudoField { path: Some(b"/"), ..connect }, &[]).err(), Some(Reject::Malformed));
}

proptest::proptest! {
    #[test]
    fn accepted_request_is_a_valid_head_of_http1(
        path in "/[ -~]{0,12}",
        authority in "[a-zA-Z0-9.:@]{0,8}",
        fields in proptest::collection::vec(("[a-zA-Z:-]{0,6}|cookie|host|te|expect", "[ -~\r\n\t]{0,8}"), 0..6),
    ) {
        let pseudo = PseudoField { authority: Some(authority.as_bytes()), path: Some(path.as_bytes()), ..GET };
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        if let Ok(request) = parse(pseudo, &fields) {
            let mut out = [b"GET ", request.path(), b" HTTP/1.1\r\nHost: ", request.authority(), b"\r\n"].concat();
            request.head.write_fields(&mut out, |field| !matches!(field.known, Known::Host));
            out.extend_from_slice(b"\r\n");
            let mut again = RequestHead::default();
            let length = crate::h1::parse_request(&out, &Limits::default(), &mut again);
            proptest::prop_assert_eq!(length, Ok(Some(out.len())));
            proptest::prop_assert_eq!(again.path(), request.path());
            proptest::prop_assert_eq!(again.host(), request.host());
        }
    }
}

/// RFC 7541 §6.2.3.
#[test]
fn never_indexed_fields_stay_marked_for_forwarding() {
    let (mut request, limits) = (RequestHead::default(), Limits::default());
    let mut reader = RequestReader::new(&mut request, &limits);
    let names: Vec<_> = (0..70).map(|number| format!("x-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        let never_indexed = matches!(number, 0 | 62 | 65);
        reader.field(DecodedField { never_indexed, ..DecodedField::of(name.as_bytes(), b"1") });
    }
    // Those after the first 63 are as secret as one of them.
    let secret: Vec<_> = (0..70).filter(|index| request.head.is_never_indexed(*index)).collect();
    assert_eq!(secret, [&[0, 62][..], &(63..70).collect::<Vec<_>>()].concat());
    request.clear();
    assert!(!request.head.is_never_indexed(0));
}
