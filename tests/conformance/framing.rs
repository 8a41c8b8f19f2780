//! S01–S06: two lengths, doubtful codings, doubtful lengths.

use crate::harness::{Case, refused, refused_with, run, seen, served};

/// A POST with these header lines (each with its CRLF, `Host` is there already) and whatever follows the head.
fn post(lines: impl AsRef<[u8]>, after: &str) -> Vec<u8> {
    [b"POST /a HTTP/1.1\r\nHost: t\r\n", lines.as_ref(), b"\r\n", after.as_bytes()].concat()
}

#[test]
fn s01_s02_both_lengths_are_refused() {
    let mut cases = Vec::new();
    for (length, body) in [
        (6, "0\r\n\r\nG"),
        (4, "5c\r\nGPOST /smuggled HTTP/1.1\r\nHost: t\r\n\r\n0\r\n\r\n"),
        (0, "0\r\n\r\n"),
        (5, "0\r\n\r\n"),
        (37, "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: t\r\n\r\n"),
    ] {
        for lines in [
            format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"),
            format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"),
            format!("transfer-encoding: CHUNKED\r\nX: y\r\ncontent-length: {length}\r\n"),
        ] {
            cases.push(refused(post(lines, body)));
        }
    }
    run(&cases);
}

/// Values of `Transfer-Encoding` that some server somewhere has read as `chunked`, or has not.
const DOUBTFUL_CODINGS: &[&[u8]] = &[
    b"xchunked",
    b"chunkedx",
    b"chunkedd",
    b"chunke",
    b"chunk",
    b"chunked\x0b",
    b"\x0bchunked",
    b"chunked\x0c",
    b"\x0cchunked",
    b"chunked\x00",
    b"\x00chunked",
    b"chunk\x00ed",
    b"chunked\x1f",
    b"chunked\x7f",
    b"chunked\x08",
    b"chunked\x85",
    b"\x85chunked",
    b"chunked\xa0",
    b"\xa0chunked",
    b"\xffchunked",
    b"chunked\xff",
    b"chun\xe2\x84\xaaed",
    b"\xef\xbb\xbfchunked",
    b"chunked\r",
    b"\rchunked",
    b"chunked\nX: y",
    b"\nchunked",
    b"\r\n chunked",
    b"\r\n\tchunked",
    b"chunked\r\n , identity",
    b",chunked",
    b"chunked,",
    b", chunked",
    b"chunked ,",
    b",,chunked",
    b"chunked,,",
    b"chunked, identity",
    b"identity, chunked",
    b"chunked, chunked",
    b"chunked,chunked",
    b"chunked chunked",
    b"gzip, chunked",
    b"chunked, gzip",
    b"cow, chunked",
    b"chunked, cow",
    b"identity",
    b"gzip",
    b"deflate",
    b"compress",
    b"x-gzip",
    b"br",
    b"cow",
    b"\"chunked\"",
    b"'chunked'",
    b"(chunked)",
    b"[chunked]",
    b"chunked;q=1",
    b"chunked; q=0.5",
    b"chunked;",
    b";chunked",
    b"chunked;a=\"b\"",
    b"chunked=1",
    b"chunked/1",
    b"chunked\\",
    b"chun ked",
    b"chunked q",
    b"%63hunked",
    b"=?utf-8?q?chunked?=",
    b"",
    b" ",
    b"0",
];

#[test]
fn s03_only_chunked_and_alone_is_a_coding() {
    let mut cases = Vec::new();
    for value in DOUBTFUL_CODINGS {
        let line = [b"Transfer-Encoding: ", *value, b"\r\n"].concat();
        let both = [&line[..], b"Content-Length: 5\r\n"].concat();
        cases.push(refused_with(&[400, 501], post(line, "0\r\n\r\n")));
        cases.push(refused_with(&[400, 501], post(both, "0\r\n\r\n")));
    }
    for value in ["chunked", "CHUNKED", "Chunked", "  chunked", "\tchunked", "chunked ", "chunked\t \t", "cHuNkEd"] {
        let bytes = post(format!("Transfer-Encoding:{value}\r\n"), "5\r\nhello\r\n0\r\n\r\n");
        cases.push(served(seen("POST", "/a", "hello"), bytes));
    }
    run(&cases);
}

#[test]
fn s03_a_coding_stands_in_one_field_of_the_right_name() {
    let mut cases: Vec<Case> = Vec::new();
    for lines in [
        &b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"[..],
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding:\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding:\r\n",
        b"Transfer-Encoding: chunked\r\ntransfer-encoding: cow\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding\t: chunked\r\n",
        b" Transfer-Encoding: chunked\r\n",
        b"\tTransfer-Encoding: chunked\r\n",
        b"X: y\r\n Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding\r\n : chunked\r\n",
        b"Transfer-Encoding\r\n: chunked\r\n",
        b"Transfer-Encoding\x00: chunked\r\n",
        b"\x00Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding\x0b: chunked\r\n",
        b"\x0bTransfer-Encoding: chunked\r\n",
        b"Transfer\\-Encoding: chunked\r\n",
        b"Transfer Encoding: chunked\r\n",
        b"Transfer-Encoding; chunked\r\n",
        b"Transfer-Encoding chunked\r\n",
        b"Transfer-Encoding\r\n",
        b"\"Transfer-Encoding\": chunked\r\n",
        b"Transfer\xe2\x80\x93Encoding: chunked\r\n",
        b"Tran\xc5\xbffer-Encoding: chunked\r\n",
        b"Transfer-Encoding\xa0: chunked\r\n",
        b"X: y\nTransfer-Encoding: chunked\r\n",
        b"X: y\rTransfer-Encoding: chunked\r\n",
        b"X: y\r\r\nTransfer-Encoding: chunked\r\n",
        b"X: y\x00Transfer-Encoding: chunked\r\n",
    ] {
        cases.push(refused(post(lines, "0\r\n\r\n")));
        cases.push(refused(post([lines, b"Content-Length: 5\r\n"].concat(), "0\r\n\r\n")));
    }
    // Names that are somebody else's never frame anything: dropped, or passed on as what they are.
    for name in
        ["Transfer_Encoding", "transfer_encoding", "TransferEncoding", "X-Transfer-Encoding", "Transfer-Encodin"]
    {
        cases.push(served(seen("POST", "/a", ""), post(format!("{name}: chunked\r\n"), "")));
        let both = post(format!("{name}: chunked\r\nContent-Length: 5\r\n"), "0\r\n\r\n");
        cases.push(served(seen("POST", "/a", "0\r\n\r\n"), both));
    }
    run(&cases);
}

#[test]
fn s04_http_1_0_has_no_codings() {
    let with = |lines: &str| format!("POST /a HTTP/1.0\r\nHost: t\r\nConnection: keep-alive\r\n{lines}\r\n0\r\n\r\n");
    run(&[
        refused(with("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n")),
        refused(with("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n")),
        refused(with("Transfer-Encoding: chunked\r\n")),
        refused_with(&[400, 501], with("Transfer-Encoding: identity\r\n")),
    ]);
}

#[test]
fn s05_a_length_stands_once() {
    run(&[
        refused(post("Content-Length: 5\r\nContent-Length: 10\r\n", "hello")),
        refused(post("Content-Length: 10\r\nContent-Length: 5\r\n", "hello")),
        refused(post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello")),
        refused(post("Content-Length: 5\r\nX: y\r\ncontent-length: 5\r\n", "hello")),
        refused(post("Content-Length: 0\r\nContent-Length: 5\r\n", "hello")),
        refused(post("Content-Length:\r\nContent-Length: 5\r\n", "hello")),
        refused(post("Content-Length: 5, 10\r\n", "hello")),
        refused(post("Content-Length: 5, 5\r\n", "hello")),
        refused(post("Content-Length: 5,5\r\n", "hello")),
        refused(post("Content-Length: 5,\r\n", "hello")),
        refused(post("Content-Length: ,5\r\n", "hello")),
    ]);
}

#[test]
fn s06_a_length_is_digits() {
    let mut cases = Vec::new();
    for value in [
        &b"+5"[..],
        b"-1",
        b"-0",
        b"-5",
        b"+0",
        b"0x5",
        b"0X5",
        b"5_0",
        b"1 0",
        b"5 5",
        b"5\t5",
        b"\xd9\xa5",
        b"\xef\xbc\x95",
        b"",
        b" ",
        b"5\x00",
        b"\x005",
        b"5\x0b",
        b"\x0c5",
        b"5\xa0",
        b"99999999999999999999",
        b"18446744073709551616",
        b"18446744073709551621",
        b"340282366920938463463374607431768211461",
        b"0o5",
        b"0b101",
        b"5.0",
        b"5.",
        b".5",
        b"5e0",
        b"1e1",
        b"5;",
        b"5;a=b",
        b"\"5\"",
        b"'5'",
        b"(5)",
        b"5h",
        b"f",
        b"five",
        b"5\r\n 0",
        b"\r\n 5",
        b"5\n",
        b"5\r",
        b"NaN",
        b"%35",
    ] {
        cases.push(refused(post([b"Content-Length: ", value, b"\r\n"].concat(), "hello")));
    }
    for line in
        ["Content-Length : 5", " Content-Length: 5", "Content-Length\t: 5", "Content-Length", "Content Length: 5"]
    {
        cases.push(refused(post(format!("{line}\r\n"), "hello")));
    }
    for value in ["5", "005", "0000000000000000000000000000005", " 5", "5 ", "\t5\t"] {
        cases.push(served(seen("POST", "/a", "hello"), post(format!("Content-Length:{value}\r\n"), "hello")));
    }
    cases.push(served(seen("POST", "/a", ""), post("Content_Length: 5\r\n", "")));
    run(&cases);
}

#[test]
fn s06_a_length_is_passed_on_in_one_form() {
    let rig = crate::harness::Rig::echo(weir_testkit::Reading::Strict);
    let answer = rig.gateway.client().ask(post("Content-Length: 005\r\n", "hello")).expect("an answer");
    assert_eq!(answer.status, 200);
    let requests = rig.origin.requests();
    assert_eq!(requests[0].headers.all("Content-Length").collect::<Vec<_>>(), ["5"]);
}
