//! S16–S21: lines, names, bytes, versions, targets, hosts.

use weir_testkit::{Answer, Origin, Reading};

use crate::harness::{Case, Rig, own_answer, refused, refused_with, routes, run, seen, served, weir};

#[test]
fn s16_a_line_ends_in_crlf() {
    run(&[
        refused("GET / HTTP/1.1\nHost: t\n\n"),
        refused("GET / HTTP/1.1\nHost: t\r\n\r\n"),
        refused("GET / HTTP/1.1\r\nHost: t\n\r\n"),
        refused("GET / HTTP/1.1\r\nHost: t\r\n\n"),
        refused("GET / HTTP/1.1\r\nHost: t\r\nX: y\nZ: z\r\n\r\n"),
        refused("GET / HTTP/1.1\rHost: t\r\r"),
        refused("GET / HTTP/1.1\r\nHost: t\rX: y\r\n\r\n"),
        refused("GET / HTTP/1.1\r\nHost: t\r\nX: a\rSmuggled: b\r\n\r\n"),
        refused("GET / HTTP/1.1\r\nHost: t\r\nX: a\r\r\n\r\n"),
        refused("GET / HTTP/1.1\r\r\nHost: t\r\n\r\n"),
        refused("GET / HTTP/1.1\r\nHost: t\r\n\r\r\n"),
        refused("GET / HTTP/1.1\n\rHost: t\n\r\n\r"),
        refused("\nGET / HTTP/1.1\r\nHost: t\r\n\r\n"),
        refused("\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\n"),
        refused("\rGET / HTTP/1.1\r\nHost: t\r\n\r\n"),
        // RFC 9112 §2.2: one empty line before a request is forgiven.
        served(seen("GET", "/", ""), "\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\n"),
    ]);
}

#[test]
fn s17_a_field_is_a_name_a_colon_and_a_value_on_one_line() {
    let cases: Vec<Case> = [
        "X: y\r\n z",
        "X: y\r\n\tz",
        "X:\r\n y",
        " X: y",
        "\tX: y",
        "X : y",
        "X\t: y",
        "X",
        "X y",
        ": y",
        ":",
        " : y",
        "X Y: z",
        "X[Y: z",
        "X]: z",
        "X(Y): z",
        "X<Y: z",
        "X@Y: z",
        "X,Y: z",
        "X;Y: z",
        "X/Y: z",
        "X?Y: z",
        "X=Y: z",
        "X{Y}: z",
        "X\\Y: z",
        "\"X\": y",
    ]
    .iter()
    .flat_map(|line| {
        [
            refused(format!("GET / HTTP/1.1\r\n{line}\r\nHost: t\r\n\r\n")),
            refused(format!("GET / HTTP/1.1\r\nHost: t\r\n{line}\r\n\r\n")),
        ]
    })
    .collect();
    run(&cases);
    run(&[
        served(seen("GET", "/", ""), "GET / HTTP/1.1\r\nHost: t\r\nX:\r\n\r\n"),
        served(seen("GET", "/", ""), "GET / HTTP/1.1\r\nHost:t\r\nX:y\r\nZ: \t \r\n!#$%&'*+-.^`|~09azAZ: a:b\r\n\r\n"),
    ]);
}

#[test]
fn s18_control_bytes_are_refused_everywhere() {
    let mut cases = Vec::new();
    let with = |before: &str, byte: u8, after: &str| [before.as_bytes(), &[byte], after.as_bytes()].concat();
    let controls = (0..0x20).chain([0x7f]).filter(|&byte| byte != b'\t');
    for byte in controls.clone().chain([0x80, 0x85, 0xa0, 0xff, b'\t']) {
        cases.push(refused_with(&[400, 501], with("G", byte, "T / HTTP/1.1\r\nHost: t\r\n\r\n")));
        cases.push(refused_with(&[400, 505], with("GET /a", byte, "b HTTP/1.1\r\nHost: t\r\n\r\n")));
        cases.push(refused(with("GET / HTTP/1.1\r\nHost: t\r\nX", byte, "Y: z\r\n\r\n")));
        cases.push(refused(with("GET / HTTP/1.1\r\nHost: ", byte, "t\r\n\r\n")).unless_trimmed(byte));
        cases.push(refused(with("GET / HTTP/1.1\r\nHost: t", byte, "t\r\n\r\n")));
    }
    for byte in controls {
        cases.push(refused(with("GET / HTTP/1.1\r\nHost: t\r\nX: y", byte, "z\r\n\r\n")));
        cases.push(refused(with("GET / HTTP/1.1\r\nHost: t\r\nX: ", byte, "\r\n\r\n")));
    }
    run(&cases);
}

impl Case {
    /// A tab around a value is white space and not part of it.
    fn unless_trimmed(self, byte: u8) -> Case {
        if byte == b'\t' { served(seen("GET", "/", ""), self.bytes) } else { self }
    }
}

#[test]
fn s18_bytes_beyond_ascii_pass_unchanged_in_values() {
    let rig = Rig::echo(Reading::Strict);
    for byte in 0x80..=0xff_u8 {
        rig.origin.forget();
        let request = [&b"GET / HTTP/1.1\r\nHost: t\r\nX: "[..], &[byte], b"admin", &[byte], b"\r\n\r\n"].concat();
        assert_eq!(rig.gateway.client().ask(request).expect("an answer").status, 200);
        let expected = format!("{0}admin{0}", char::from(byte));
        assert_eq!(rig.origin.requests()[0].headers.get("X"), Some(expected.as_str()), "{byte:#x}");
    }
}

#[test]
fn s19_only_http_1_0_and_1_1_are_spoken() {
    let mut cases = Vec::new();
    for version in ["HTTP/2.0", "HTTP/2", "HTTP/3.0", "HTTP/0.9", "HTTP/9.9", "HTTP/1", "HTTP/11"] {
        cases.push(refused_with(&[400, 505], format!("GET / {version}\r\nHost: t\r\n\r\n")));
    }
    for version in [
        "HTTP/01.01",
        "HTTP/1.01",
        "HTTP/1.1.1",
        "HTTP/1.10",
        "HTTP/1,1",
        "HTTP/ 1.1",
        "HTTP /1.1",
        "HTTP/-1.1",
        "HTTP/1.1 ",
        " HTTP/1.1",
        "HTTP/1.1\t",
        "\tHTTP/1.1",
        "http/1.1",
        "Http/1.1",
        "HTTP-1.1",
        "HTTPS/1.1",
        "SIP/2.0",
        "1.1",
        "HTTP/",
        "HTTP",
        "",
        "HTTP/1.1 x",
        "x HTTP/1.1",
        "HTTP/1.1\x00",
        "HTTP/\u{661}.1",
    ] {
        cases.push(refused_with(&[400, 505], format!("GET / {version}\r\nHost: t\r\n\r\n")));
    }
    cases.push(refused_with(&[400, 505], "GET /\r\n"));
    cases.push(refused_with(&[400, 505], "GET /\r\n\r\n"));
    cases.push(refused_with(&[400, 505], "GET\r\n\r\n"));
    cases.push(refused("GET  / HTTP/1.1\r\nHost: t\r\n\r\n"));
    cases.push(refused_with(&[400, 505], "GET /  HTTP/1.1\r\nHost: t\r\n\r\n"));
    cases.push(refused(" GET / HTTP/1.1\r\nHost: t\r\n\r\n"));
    cases.push(refused_with(&[400, 505], "GET\t/\tHTTP/1.1\r\nHost: t\r\n\r\n"));
    cases.push(refused_with(&[400, 501], "G(T / HTTP/1.1\r\nHost: t\r\n\r\n"));
    cases.push(refused_with(&[400, 501], "\"GET\" / HTTP/1.1\r\nHost: t\r\n\r\n"));
    cases.push(refused_with(&[400, 501], "GET: / HTTP/1.1\r\nHost: t\r\n\r\n"));
    run(&cases);
}

#[test]
fn s20_a_target_has_one_of_the_forms_of_its_method() {
    let get = |target: &str, host: &str| format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let mut cases = Vec::new();
    for target in [
        "*",
        "?x",
        "x",
        "a/b",
        "t:80",
        "/a b",
        "/#x",
        "/a#x",
        "/a?b#c",
        "#",
        "http://evil/",
        "http://t:81/",
        "http://evil/@t",
        "http:///",
        "http://",
        "http://t#x",
        "http://user@t/",
        "http://user:pass@t/",
        "http://t:99999/",
        "http://t:0/",
        "http://t:x/",
        "http:/t/",
        "http:t",
        "ftp://t/",
        "file:///etc/passwd",
        "javascript:x",
        "//evil@t:x/ HTTP/1.1",
        "\\",
        "\\\\evil\\",
        "/a\\b",
        "/%",
        "/%4",
        "/%zz",
        "/\u{e9}",
    ] {
        cases.push(refused_with(&[400, 505], get(target, "t")));
    }
    cases.push(refused("POST * HTTP/1.1\r\nHost: t\r\n\r\n"));
    cases.push(refused("OPTIONS *x HTTP/1.1\r\nHost: t\r\n\r\n"));
    cases.push(served(seen("GET", "/abs?q", ""), get("http://t/abs?q", "t")));
    cases.push(served(seen("GET", "/", ""), get("http://t", "t")));
    cases.push(served(seen("GET", "/?q", ""), get("http://t?q", "t")));
    cases.push(served(seen("GET", "/", ""), get("HTTP://T/", "t")));
    cases.push(served(seen("GET", "//evil/", ""), get("//evil/", "t")));
    cases.push(served(seen("GET", "/http://evil/", ""), get("/http://evil/", "t")));
    cases.push(served(seen("GET", "/a?b?c&d=%zz|{}[]", ""), get("/a?b?c&d=%zz|{}[]", "t")));
    run(&cases);
}

#[test]
fn s20_absolute_form_decides_the_host() {
    let rig = Rig::echo(Reading::Strict);
    let answer = rig.gateway.client().ask("GET http://t/a HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer");
    own_answer(&answer, "GET", "/a", 0).unwrap_or_else(|what| panic!("{what}"));
    let request = &rig.origin.requests()[0];
    assert_eq!(request.headers.all("Host").collect::<Vec<_>>(), ["t"]);
    assert_eq!(request.target, "/a");
}

#[test]
fn u10_a_higher_minor_version_is_served() {
    let request = "GET /minor HTTP/1.2\r\nHost: t\r\n\r\n";
    run(&[
        served(seen("GET", "/minor", ""), request),
        served(seen("GET", "/minor", ""), request.replace("1.2", "1.9")),
    ]);
}

#[test]
fn u10_the_default_port_makes_no_other_authority() {
    run(&[
        served(seen("GET", "/a", ""), "GET http://t:80/a HTTP/1.1\r\nHost: t\r\n\r\n"),
        served(seen("GET", "/a", ""), "GET http://t/a HTTP/1.1\r\nHost: t:80\r\n\r\n"),
        refused("GET http://t:81/a HTTP/1.1\r\nHost: t\r\n\r\n"),
        refused("GET http://evil/a HTTP/1.1\r\nHost: t\r\n\r\n"),
    ]);
}

#[test]
fn u10_a_target_can_be_told_to_replace_the_host() {
    let origin = Origin::echo(Reading::Strict);
    let gateway = weir().start(&format!("absolute_target_replaces_host: true\n{}", routes(origin.addr())));
    let answer = gateway.client().ask("GET http://t/a HTTP/1.1\r\nHost: other\r\n\r\n").expect("an answer");
    own_answer(&answer, "GET", "/a", 0).unwrap_or_else(|what| panic!("{what}"));
    assert_eq!(origin.requests()[0].headers.all("Host").collect::<Vec<_>>(), ["t"]);
}

#[test]
fn u10_messages_say_through_whom_they_came_where_that_is_wanted() {
    let origin = Origin::serving(|request| {
        Answer::with(200, "Via: 1.0 cache\r\n", request.headers.all("via").collect::<Vec<_>>().join(" | "))
    });
    let asked = |settings: &str, by_http2: bool| {
        let gateway = weir().start(&format!("{settings}\n{}", routes(origin.addr())));
        let mut client = gateway.client();
        if by_http2 {
            client = client.by_http2();
        }
        let answer = client.ask("GET / HTTP/1.1\r\nHost: t\r\nVia: 1.0 fred\r\n\r\n").expect("an answer");
        (answer.text(), answer.headers.all("via").collect::<Vec<_>>().join(" | "))
    };
    assert_eq!(asked("", false), ("1.0 fred".into(), "1.0 cache".into()), "by default it is not to be seen");
    assert_eq!(asked("via: edge-1", false), ("1.0 fred | 1.1 edge-1".into(), "1.0 cache | 1.1 edge-1".into()));
    assert_eq!(asked("via: edge-1", true), ("1.0 fred | 2.0 edge-1".into(), "1.0 cache | 1.1 edge-1".into()));
    let gateway = weir().start(&format!("via: edge-1\n{}", routes(origin.addr()).replace("/*", "/here")));
    assert_eq!(gateway.get("/elsewhere").headers.get("via"), None, "it is the gateway's own answer");
}

#[test]
fn u10_a_request_that_may_go_no_further_is_answered() {
    let rig = Rig::echo(Reading::Strict);
    let mut client = rig.gateway.client();
    for (method, status) in [("OPTIONS", 200), ("TRACE", 405)] {
        let request = format!("{method} /a HTTP/1.1\r\nHost: t\r\nMax-Forwards: 0\r\n\r\n");
        let answer = client.ask(request).expect("an answer");
        assert_eq!(answer.status, status, "{method}");
        assert!(answer.headers.get("Allow").is_some_and(|allow| allow.contains("GET") && !allow.contains("TRACE")));
    }
    assert!(rig.origin.requests().is_empty());
    client.ask("OPTIONS /a HTTP/1.1\r\nHost: t\r\nMax-Forwards: 7\r\n\r\n").expect("an answer");
    assert_eq!(rig.origin.requests()[0].headers.get("Max-Forwards"), Some("6"));
}

#[test]
fn u07_other_spellings_of_a_method_and_a_host_are_refused() {
    run(&[
        refused("delete / HTTP/1.1\r\nHost: t\r\n\r\n"),
        refused("Get / HTTP/1.1\r\nHost: t\r\n\r\n"),
        refused("GET / HTTP/1.1\r\nHost: t..\r\n\r\n"),
        refused("GET / HTTP/1.1\r\nHost: .t\r\n\r\n"),
        served(seen("GET", "/;x/a", ""), "GET /;x/a HTTP/1.1\r\nHost: t\r\n\r\n"),
    ]);
}

#[test]
fn u07_path_parameters_can_be_refused() {
    let origin = Origin::echo(Reading::Strict);
    let gateway = weir().start(&format!("refuse_path_parameters: true\n{}", routes(origin.addr())));
    for path in ["/admin;x", "/;x/admin", "/admin%3Bx", "/admin%3bx"] {
        assert_eq!(gateway.client().get(path).expect("an answer").status, 400, "{path}");
    }
    assert_eq!(gateway.client().get("/admin?a;b").expect("an answer").status, 200);
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn s20_options_asterisk_is_answered_or_passed_on_as_it_is() {
    let rig = Rig::echo(Reading::Strict);
    let mut client = rig.gateway.client();
    let answer = client.ask("OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer");
    assert_eq!(answer.status, 200, "u10: the gateway itself is asked");
    assert!(rig.origin.targets().iter().all(|target| target == "*"), "{:?}", rig.origin.targets());
    own_answer(&client.get("/canary").expect("an answer"), "GET", "/canary", 0).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn s21_a_request_names_one_host() {
    let mut cases = vec![
        refused("GET / HTTP/1.1\r\n\r\n"),
        refused("GET / HTTP/1.1\r\nX: y\r\n\r\n"),
        refused("GET http://t/ HTTP/1.1\r\n\r\n"),
        refused("GET / HTTP/1.1\r\nHost: t\r\nHost: t\r\n\r\n"),
        refused("GET / HTTP/1.1\r\nHost: t\r\nHost: evil\r\n\r\n"),
        refused("GET / HTTP/1.1\r\nHost: evil\r\nX: y\r\nhost: t\r\n\r\n"),
        refused("GET / HTTP/1.1\r\nHost:\r\nHost: t\r\n\r\n"),
        refused("GET / HTTP/1.0\r\nHost: t\r\nHost: evil\r\n\r\n"),
    ];
    for host in [
        "",
        " ",
        ".",
        "a, b",
        "t,t",
        "t, evil",
        "user@t",
        "user:pass@t",
        "t/path",
        "t/",
        "/",
        "t:0",
        "t:99999",
        "t:65536",
        "t:",
        "t:x",
        "t:+80",
        "t:-1",
        "t:80:80",
        "t:80x",
        "t 80",
        "t:8 0",
        "evil\x00",
        "t\x00.evil",
        "t\\",
        "t?x",
        "t#x",
        "http://t",
        "[::1",
        "::1",
        "[::1]x",
        "[zz]",
        "[127.0.0.1]",
        "t%00",
        "t%2eevil",
        "\"t\"",
        "<t>",
        "t|evil",
        "t\u{e9}",
    ] {
        cases.push(refused(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")));
    }
    run(&cases);
    let case = |host: &str| served(seen("GET", "/", ""), format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    run(&[case("t"), case("T"), case("t:80"), case("t:8080"), case("t.")]);
}
