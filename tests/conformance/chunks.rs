//! S07–S10: chunk sizes, chunk extensions, chunk data, trailers.

use weir_testkit::Reading;

use crate::harness::{Case, Outcome, Rig, refused_in_body, run, seen, served};

fn chunked(body: impl AsRef<[u8]>) -> Vec<u8> {
    [b"POST /a HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n", body.as_ref()].concat()
}

/// A chunk whose size line is this, with five bytes of data and a proper end.
fn sized(line: &[u8]) -> Vec<u8> {
    chunked([line, b"\r\nhello\r\n0\r\n\r\n"].concat())
}

#[test]
fn s07_a_chunk_size_is_hexadecimal_digits() {
    let mut cases = Vec::new();
    for size in [
        &b"0x5"[..],
        b"0X5",
        b"x5",
        b"+5",
        b"-1",
        b"-5",
        b" 5",
        b"\t5",
        b"5 ",
        b"5\t",
        b"1_0",
        b"5_",
        b"_5",
        b"5,",
        b"5.",
        b"5h",
        b"h",
        b"g5",
        b"5\x00",
        b"\x005",
        b"5\x0b",
        b"5\x0c",
        b"5\xa0",
        b"5\x85",
        b"\xd9\xa5",
        b"\xef\xbc\x95",
        b"5\r",
        b"\r5",
        b"\n5",
        b"\r\n5",
        b"",
        b"\"5\"",
        b"5 5",
        b"FFFFFFFFFFFFFFFF0",
        b"10000000000000005",
        b"000000000000000005",
        b"00000000000000000000000000000000000005",
        b"%35",
    ] {
        cases.push(refused_in_body(sized(size)));
    }
    cases.push(refused_in_body(chunked("5\nhello\r\n0\r\n\r\n")));
    cases.push(refused_in_body(chunked("5\r\nhello\r\n0\n\r\n")));
    cases.push(refused_in_body(chunked("5\r\nhello\r\n0\r\n\n")));
    cases.push(refused_in_body(chunked("5\r\nhello\r\n\n0\r\n\r\n")));
    cases.push(refused_in_body(chunked("5\r\nhello\r\n\r\n0\r\n\r\n")));
    for size in ["5", "05", "005", "0000000000000005"] {
        cases.push(served(seen("POST", "/a", "hello"), sized(size.as_bytes())));
    }
    for size in ["a", "A", "0a"] {
        cases.push(served(seen("POST", "/a", "0123456789"), chunked(format!("{size}\r\n0123456789\r\n0\r\n\r\n"))));
    }
    cases.push(served(seen("POST", "/a", ""), chunked("0\r\n\r\n")));
    cases.push(served(seen("POST", "/a", ""), chunked("000\r\n\r\n")));
    run(&cases);
}

#[test]
fn s08_chunk_extensions_are_checked_bounded_and_dropped() {
    let mut cases = Vec::new();
    for line in [
        &b"5;"[..],
        b"5;;a",
        b"5;a;",
        b"5;=b",
        b"5;a=",
        b"5;bad[=x",
        b"5;a=b c",
        b"5;a b",
        b"5;a=\"b\"c",
        b"5;a=\"b",
        b"5;\nX",
        b"5;a=\nb",
        b"5;a\n",
        b"5;a=\rb",
        b"5;a\rb",
        b"5;a\r",
        b"5;\r",
        b"5;a=\"\r\n\"",
        b"5;a=\"\n\"",
        b"5;a=\"\r\"",
        b"5;a=\"\\\r\"",
        b"5;a=\"\\\n\"",
        b"5;a=\x00",
        b"5;a\x00=b",
        b"5;a=\"\x00\"",
        b"5;a=\"\x7f\"",
        b"5;a=\xff",
        b"5\r;a",
        b"5\n;a",
        b"5\x00;a",
        b"5;a\x0b=b",
    ] {
        cases.push(refused_in_body(sized(line)));
    }
    cases.push(refused_in_body(chunked(format!("2;{}\r\nhi\r\n0\r\n\r\n", "a".repeat(65_536)))));
    cases.push(refused_in_body(chunked(format!("2;a=\"{}\"\r\nhi\r\n0\r\n\r\n", "b".repeat(65_536)))));
    // The bound is for the message, so that many small ones are no way around it.
    cases.push(refused_in_body(chunked(format!("{}0\r\n\r\n", "1;abcdefghij\r\nx\r\n".repeat(200)))));
    cases.push(refused_in_body(chunked("5\r\nhello\r\n0;\r\n\r\n")));
    for line in ["5;a", "5;a=b", "5;a=b;c=d", "5;a;b;c", "5;a=\"b;c, d\\\"\"", "5;a=\"\""] {
        cases.push(served(seen("POST", "/a", "hello"), sized(line.as_bytes())));
    }
    cases.push(served(seen("POST", "/a", "hello"), chunked("5\r\nhello\r\n0;last=1\r\n\r\n")));
    run(&cases);
}

#[test]
fn s08_extensions_never_go_upstream() {
    let rig = Rig::echo(Reading::Strict);
    let answer = rig.gateway.client().ask(sized(b"5;secret=ext")).expect("an answer");
    assert_eq!(answer.status, 200);
    let raw = rig.origin.raw_text();
    assert!(!raw.contains("secret") && !raw.contains(';'), "{raw:?}");
}

#[test]
fn s09_chunk_data_is_as_long_as_it_says() {
    let mut cases = Vec::new();
    for body in [
        &b"5\r\nhello!!\r\n0\r\n\r\n"[..],
        b"5\r\nhello0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhello\r0\r\n\r\n",
        b"5\r\nhelloXX0\r\n\r\n",
        b"5\r\nhello\r\r\n0\r\n\r\n",
        b"5\r\nhello \r\n0\r\n\r\n",
        b"4\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhell\r\n0\r\n\r\n",
        b"5\r\nhello\r\nGET /smuggled HTTP/1.1\r\nHost: t\r\n\r\n",
        b"3\r\nabc\r\n5\r\nhello!\r\n0\r\n\r\n",
    ] {
        cases.push(refused_in_body(chunked(body)));
    }
    cases.push(served(seen("POST", "/a", "abchello"), chunked("3\r\nabc\r\n5\r\nhello\r\n0\r\n\r\n")));
    let inner = "GET /smuggled HTTP/1.1\r\nHost: t\r\n\r\n";
    cases.push(served(seen("POST", "/a", inner), chunked(format!("{:x}\r\n{inner}\r\n0\r\n\r\n", inner.len()))));
    run(&cases);
}

#[test]
fn s10_trailers_are_fields_and_bounded() {
    let many = format!("0\r\n{}\r\n", "X: y\r\n".repeat(10_000));
    let long = format!("0\r\nX: {}\r\n\r\n", "y".repeat(100_000));
    let mut cases = vec![
        refused_in_body(chunked("0\r\nX: y\n\r\n")),
        refused_in_body(chunked("0\r\nX: y\r\n\n")),
        refused_in_body(chunked("0\r\nX\r\n\r\n")),
        refused_in_body(chunked("0\r\n: y\r\n\r\n")),
        refused_in_body(chunked("0\r\nX : y\r\n\r\n")),
        refused_in_body(chunked("0\r\nX: y\r\n z\r\n\r\n")),
        refused_in_body(chunked("0\r\n X: y\r\n\r\n")),
        refused_in_body(chunked("0\r\nX: \0\r\n\r\n")),
        refused_in_body(chunked("0\r\nX: a\rb\r\n\r\n")),
        refused_in_body(chunked("0\r\nGET /smuggled HTTP/1.1\r\nHost: t\r\n\r\n")),
        served(seen("POST", "/a", ""), chunked("0\r\nX-Sum: 1\r\n\r\n")),
        served(seen("POST", "/a", "hello"), chunked("5\r\nhello\r\n0\r\nContent-Length: 9\r\nHost: evil\r\n\r\n")),
        served(seen("POST", "/a", "hello"), chunked("5\r\nhello\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n")),
    ];
    for bytes in [chunked(many), chunked(long)] {
        cases.push(Case { bytes, outcome: Outcome::RefusedInBody(&[400, 431]) });
    }
    run(&cases);
}

#[test]
fn s10_a_trailer_cannot_say_what_only_a_header_may() {
    let rig = Rig::echo(Reading::Strict);
    let forbidden = [
        "Content-Length: 9",
        "Transfer-Encoding: chunked",
        "Host: evil",
        "X-Forwarded-For: 6.6.6.6",
        "X-Real-IP: 6.6.6.6",
        "Forwarded: for=6.6.6.6",
        "Authorization: Basic evil",
        "Cookie: evil=1",
        "X-Consumer-Username: evil",
        "X-Credential-Identifier: evil",
        "Connection: close",
        "Upgrade: evil",
        "Expect: 100-continue",
        "Trailer: evil",
        "TE: trailers",
    ];
    for field in forbidden {
        rig.origin.forget();
        let bytes = chunked(format!("5\r\nhello\r\n0\r\n{field}\r\n\r\n"));
        let answer = rig.gateway.client().ask(bytes).expect("an answer");
        assert_eq!(answer.status, 200, "{field}");
        let request = &rig.origin.requests()[0];
        let (name, value) = field.split_once(": ").expect("a field");
        assert!(!request.trailers.has(name), "{field}: {:?}", request.trailers);
        assert!(request.headers.all(name).all(|own| own != value || name == "Transfer-Encoding"), "{field}");
    }
}
