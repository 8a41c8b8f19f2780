//! The upstream gets the content of encrypted tokens. Python's `cryptography` has made them.

use weir_testkit::{Answer, Client, Gateway, Origin};

/// `{"sub":"jack"}`, with the header as authenticated data (RFC 7516 §5.1).
const STANDARD: &str = "eyJhbGciOiAiZGlyIiwgImVuYyI6ICJBMjU2R0NNIiwgImtpZCI6ICJqYWNrcy1raWQifQ..AAECAwQFBgcICQoL.s7FRSclkGcun0MaVkcI.SQ-QI60-NFSBbM8f0hts1A";
/// The same as APISIX makes it, with a header that is not authenticated.
const OF_APISIX: &str = "eyJhbGciOiAiZGlyIiwgImVuYyI6ICJBMjU2R0NNIiwgImtpZCI6ICJqYWNrcy1raWQifQ..AAECAwQFBgcICQoL.s7FRSclkGcun0MaVkcI.NmIGG1V-JoRlrrjIFaivPA";

/// A gateway before an origin that answers with what it was told, and whose routes are strict and lenient.
fn gateway(origin: &Origin) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:
  - {{ id: strict, uri: /strict, plugins: {{ jwe-decrypt: {{ forward_header: X-Claims }} }}, upstream_id: one }}
  - {{ id: lenient, uri: /lenient, plugins: {{ jwe-decrypt: {{ forward_header: X-Claims, strict: false }} }}, upstream_id: one }}
upstreams:
  - {{ id: one, nodes: {{ \"{}\": 1 }}, type: roundrobin }}
consumers:
  - {{ username: jack, plugins: {{ jwe-decrypt: {{ key: jacks-kid, secret: 0123456789abcdefghijklmnopqrstuv }} }} }}
",
        origin.addr()
    ))
}

#[test]
fn the_upstream_gets_the_content_of_a_token_over_both_protocols() {
    let origin = Origin::serving(|request| {
        let told = |name| request.headers.all(name).collect::<Vec<_>>().join("+");
        Answer::ok(format!("{} {}", told("x-claims"), told("x-consumer-username")))
    });
    let gateway = gateway(&origin);
    for mut client in [Client::connect(gateway.addr()), Client::connect(gateway.addr()).by_http2()] {
        let mut ask = |path: &str, fields: &str| {
            let request = format!("GET {path} HTTP/1.1\r\nHost: t\r\nX-Claims: forged\r\n{fields}\r\n");
            let answer = client.ask(request).expect("an answer");
            (answer.status, answer.text())
        };
        for token in [STANDARD, OF_APISIX] {
            let decrypted = (200, "{\"sub\":\"jack\"} jack".to_owned());
            assert_eq!(ask("/strict", &format!("Authorization: Bearer {token}\r\n")), decrypted);
            assert_eq!(ask("/lenient", &format!("Authorization: {token}\r\n")), decrypted);
        }
        let cut = &STANDARD[..STANDARD.len() - 1];
        let message = |text: &str| format!("{{\"message\":\"{text}\"}}\n");
        for path in ["/strict", "/lenient"] {
            let refused = (400, message("JWE token invalid"));
            assert_eq!(ask(path, &format!("Authorization: Bearer {cut}\r\n")), refused, "{path}");
        }
        assert_eq!(ask("/strict", ""), (403, message("missing JWE token in request")));
        assert_eq!(ask("/lenient", ""), (200, " ".to_owned()), "nothing was decrypted");
    }
}
