//! Tokens of a real OpenID Connect provider.

mod server;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::Value;
use weir_testkit::{Answer, DEADLINE, Gateway, Origin, eventually};

use server::{Provider, SECRET};

/// A gateway whose route `/guarded/*` wants a token; `/free` wants nothing.
fn gateway(origin: &Origin, port: u16, more: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:
  - id: guarded
    uri: /guarded/*
    plugins:
      openid-connect:
        client_id: opaque
        client_secret: \"{SECRET}\"
        discovery: http://127.0.0.1:{port}/.well-known/openid-configuration
        bearer_only: true
        {more}
    upstream: {{ nodes: {{ \"{addr}\": 1 }}, type: roundrobin }}
  - {{ id: free, uri: /free, upstream: {{ nodes: {{ \"{addr}\": 1 }}, type: roundrobin }} }}
",
        addr = origin.addr()
    ))
}

/// Answers with what it was told of the user.
fn origin() -> Origin {
    Origin::serving(|request| Answer::ok(request.headers.all("x-userinfo").collect::<Vec<_>>().join(" ")))
}

fn ask(gateway: &Gateway, token: &str) -> weir_testkit::Response {
    let fields = format!("Authorization: Bearer {token}\r\nX-Userinfo: admin\r\nX-ID-Token: admin\r\n");
    let request = format!("GET /guarded/a HTTP/1.1\r\nHost: t\r\n{fields}\r\n");
    gateway.client().ask(request).expect("an answer")
}

fn claims(answer: &weir_testkit::Response) -> Value {
    let text = STANDARD.decode(answer.text()).expect("one value, in base64");
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn a_signed_token_is_verified_with_the_providers_keys() {
    let Some(provider) = Provider::start() else { return };
    let origin = origin();
    let jwks = gateway(&origin, provider.port, "use_jwks: true");
    for client in ["api", "short"] {
        let answer = ask(&jwks, &provider.token(client));
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!((&claims(&answer)["client_id"], &claims(&answer)["aud"]), (&client.into(), &"us".into()));
    }
    assert!(!origin.raw_text().contains("admin"));
    let nothing = jwks.get("/guarded/a");
    assert_eq!((nothing.status, nothing.headers.get("www-authenticate")), (401, Some("Bearer realm=\"apisix\"")));
    let token = provider.token("api");
    for (more, status) in [
        ("required_scopes: [read]", 200),
        ("required_scopes: [read, write]", 403),
        ("claim_validator: { audience: { match_with_client_id: true } }", 401),
        ("claim_validator: { issuer: { valid_issuers: [\"https://other.example\"] } }", 401),
        ("token_signing_alg_values_expected: ES256", 401),
        ("token_signing_alg_values_expected: RS256", 200),
        ("jwt_verification_cache_ignore: true", 200),
    ] {
        let gateway = gateway(&origin, provider.port, &format!("use_jwks: true\n        {more}"));
        for _ in 0..2 {
            assert_eq!(ask(&gateway, &token).status, status, "{more}");
        }
    }
}

#[test]
fn p03_a_token_does_not_say_how_it_is_to_be_verified() {
    let Some(provider) = Provider::start() else { return };
    let origin = origin();
    let gateway = gateway(&origin, provider.port, "use_jwks: true");
    let good = provider.token("api");
    let (signed, signature) = good.rsplit_once('.').expect("three parts");
    let (header, payload) = signed.split_once('.').expect("three parts");
    let kid =
        serde_json::from_slice::<Value>(&URL_SAFE_NO_PAD.decode(header).expect("base64")).expect("JSON")["kid"].clone();
    let head = |alg: &str| URL_SAFE_NO_PAD.encode(format!("{{\"alg\":\"{alg}\",\"kid\":{kid}}}"));
    let admin =
        URL_SAFE_NO_PAD.encode(format!("{{\"iss\":\"http://127.0.0.1:{}\",\"exp\":9999999999}}", provider.port));
    for forged in [
        format!("{}.{payload}.", head("none")),
        format!("{}.{payload}.{signature}", head("none")),
        format!("{}.{payload}.{signature}", head("HS256")),
        format!("{}.{payload}.{signature}", head("ES256")),
        format!("{}.{payload}.{signature}", head("PS256")),
        format!("{header}.{admin}.{signature}"),
        format!("{signed}.AAAA"),
        signed.to_owned(),
        "x".to_owned(),
    ] {
        assert_eq!(ask(&gateway, &forged).status, 401, "{forged}");
    }
    assert_eq!(ask(&gateway, &good).status, 200);
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn the_provider_is_asked_about_tokens_that_only_it_can_read() {
    let Some(provider) = Provider::start() else { return };
    let origin = origin();
    for proof in ["client_secret_basic", "client_secret_post"] {
        let more = format!("introspection_endpoint_auth_method: {proof}");
        let gateway = gateway(&origin, provider.port, &more);
        let (token, other) = (provider.token("opaque"), provider.token("opaque"));
        let answer = ask(&gateway, &token);
        assert_eq!((answer.status, &claims(&answer)["client_id"]), (200, &"opaque".into()), "{proof}");
        assert_eq!(ask(&gateway, "nonsense").status, 401);
        provider.freeze();
        assert_eq!(ask(&gateway, &token).status, 200, "from memory");
        let mut waiting = gateway.client();
        waiting.send(format!("GET /guarded/a HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {other}\r\n\r\n"));
        for _ in 0..20 {
            assert_eq!(gateway.get("/free").status, 200);
        }
        assert_eq!(waiting.response().expect("an answer").status, 503);
        provider.thaw();
        eventually("it is asked again", DEADLINE, || ask(&gateway, &other).status == 200);
    }
}

#[test]
fn new_keys_are_found() {
    let Some(provider) = Provider::start() else { return };
    let origin = origin();
    let gateway = gateway(&origin, provider.port, "use_jwks: true\n        jwt_verification_cache_ignore: true");
    let old = provider.token("api");
    assert_eq!(ask(&gateway, &old).status, 200);
    let port = provider.port;
    drop(provider);
    assert_eq!(ask(&gateway, &old).status, 200, "its keys are known");
    let Some(provider) = Provider::start_on(port) else { return };
    let new = provider.token("api");
    eventually("the new key is known", DEADLINE, || ask(&gateway, &new).status == 200);
    assert_eq!(ask(&gateway, &old).status, 401);
}

#[test]
fn f23_unknown_keys_do_not_flood_the_provider() {
    let provider = Origin::serving(|request| {
        let host = request.headers.get("host").expect("a host").to_owned();
        match &*request.target {
            "/keys" => Answer::ok("{\"keys\": []}"),
            _ => Answer::ok(format!("{{\"issuer\": \"http://{host}\", \"jwks_uri\": \"http://{host}/keys\"}}")),
        }
    });
    let origin = origin();
    let gateway = gateway(&origin, provider.addr().port(), "use_jwks: true");
    for turn in 0..50 {
        let head = URL_SAFE_NO_PAD.encode(format!("{{\"alg\":\"RS256\",\"kid\":\"{turn}\"}}"));
        assert_eq!(ask(&gateway, &format!("{head}.e30.AAAA")).status, 401);
    }
    assert!(provider.requests().len() <= 4, "{:?}", provider.targets());
}

#[test]
fn a_provider_that_is_gone_fails_closed() {
    let origin = origin();
    let gateway = gateway(&origin, weir_testkit::free_port(), "use_jwks: true");
    let head = URL_SAFE_NO_PAD.encode("{\"alg\":\"RS256\"}");
    assert_eq!(ask(&gateway, &format!("{head}.e30.AAAA")).status, 503);
    assert_eq!([gateway.get("/guarded/a").status, gateway.get("/free").status], [401, 200]);
    gateway.wait_stderr("it is said", |said| said.contains("openid-connect: http://127.0.0.1"));
}
