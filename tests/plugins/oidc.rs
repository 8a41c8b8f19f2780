//! Tests with tokens of a real OpenID Connect provider.

mod browser;
pub(crate) mod server;

use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::Value;
use weir_testkit::{Answer, Authority, DEADLINE, Gateway, KeyKind, Origin, TempDir, eventually};

use browser::Browser;
use server::{Provider, SECRET};

/// A gateway whose route `/guarded/*` requires a token; `/free` does not.
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

/// An origin that answers with the identity fields of the request.
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
fn f23_unknown_keys_do_not_flood_a_provider_that_fails() {
    let provider = Origin::serving(|request| {
        let host = request.headers.get("host").expect("a host").to_owned();
        match &*request.target {
            "/keys" => Answer::with(500, "", String::new()),
            _ => Answer::ok(format!("{{\"issuer\": \"http://{host}\", \"jwks_uri\": \"http://{host}/keys\"}}")),
        }
    });
    let origin = origin();
    let gateway = gateway(&origin, provider.addr().port(), "use_jwks: true");
    for turn in 0..50 {
        let head = URL_SAFE_NO_PAD.encode(format!("{{\"alg\":\"RS256\",\"kid\":\"{turn}\"}}"));
        assert_eq!(ask(&gateway, &format!("{head}.e30.AAAA")).status, 503);
    }
    assert!(provider.requests().len() <= 4, "{:?}", provider.targets());
}

/// The same as [`gateway`], for an issuer that has keys at a URL and no discovery document.
fn gateway_with_key_set(origin: &Origin, url: &str, issuer: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:
  - id: guarded
    uri: /guarded/*
    plugins:
      openid-connect:
        client_id: us
        jwks_uri: {url}
        bearer_only: true
        claim_validator: {{ issuer: {{ valid_issuers: [\"{issuer}\"] }} }}
    upstream: {{ nodes: {{ \"{addr}\": 1 }}, type: roundrobin }}
",
        addr = origin.addr()
    ))
}

#[test]
fn a_signed_token_is_verified_with_keys_at_a_url_without_a_discovery_document() {
    let Some(provider) = Provider::start() else { return };
    let origin = origin();
    let issuer = format!("http://127.0.0.1:{}", provider.port);
    let token = provider.token("api");
    let ours = gateway_with_key_set(&origin, &format!("{issuer}/jwks"), &issuer);
    let answer = ask(&ours, &token);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(claims(&answer)["client_id"], "api");
    let other = gateway_with_key_set(&origin, &format!("{issuer}/jwks"), "https://other.example");
    assert_eq!(ask(&other, &token).status, 401, "it is of another issuer");
    let (signed, _) = token.rsplit_once('.').expect("three parts");
    assert_eq!(ask(&ours, &format!("{signed}.AAAA")).status, 401);
}

#[test]
fn f23_keys_at_a_url_are_read_once_and_not_for_each_unknown_key() {
    let keys = Origin::serving(|_| Answer::ok("{\"keys\": []}"));
    let origin = origin();
    let gateway = gateway_with_key_set(&origin, &format!("http://{}/keys?set=1", keys.addr()), "https://a.example");
    for turn in 0..50 {
        let head = URL_SAFE_NO_PAD.encode(format!("{{\"alg\":\"RS256\",\"kid\":\"{turn}\"}}"));
        assert_eq!(ask(&gateway, &format!("{head}.e30.AAAA")).status, 401);
    }
    assert!(keys.requests().len() <= 3, "{:?}", keys.targets());
    assert!(keys.targets().iter().all(|target| target == "/keys?set=1"), "{:?}", keys.targets());
}

#[test]
fn keys_that_one_worker_has_fetched_are_known_to_all() {
    let keys = Origin::serving(|_| Answer::ok("{\"keys\": []}"));
    let origin = origin();
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "worker_processes: 2
routes:
  - id: guarded
    uri: /guarded/*
    plugins:
      openid-connect:
        client_id: us
        jwks_uri: http://{keys}/keys
        bearer_only: true
        claim_validator: {{ issuer: {{ valid_issuers: [\"https://a.example\"] }} }}
    upstream: {{ nodes: {{ \"{addr}\": 1 }}, type: roundrobin }}
",
        keys = keys.addr(),
        addr = origin.addr()
    ));
    let head = URL_SAFE_NO_PAD.encode("{\"alg\":\"RS256\"}");
    let begun = Instant::now();
    eventually("both workers have refused a token", DEADLINE, || {
        assert_eq!(ask(&gateway, &format!("{head}.e30.AAAA")).status, 401);
        let status = gateway.status();
        status["workers"].as_array().expect("workers").iter().all(|worker| worker["requests"].as_u64() > Some(0))
    });
    // A token with an unknown key has the node fetch them again, at most once every five seconds.
    let allowed = 1 + begun.elapsed().as_secs() as usize / 5;
    assert!(keys.requests().len() <= allowed, "{:?} in {:?}", keys.targets(), begun.elapsed());
}

/// A gateway with a worker, and routes `/guarded/N/*` that ask providers at these URLs of keys, each within so many seconds.
fn gateway_with_key_sets(origin: &Origin, sets: &[(String, u64)]) -> Gateway {
    let routes = sets.iter().enumerate().map(|(number, (url, seconds))| {
        format!(
            "- uri: /guarded/{number}/*
  plugins:
    openid-connect:
      client_id: us
      jwks_uri: {url}
      timeout: {seconds}
      bearer_only: true
      claim_validator: {{ issuer: {{ valid_issuers: [\"https://a.example\"] }} }}
  upstream: {{ nodes: {{ \"{addr}\": 1 }}, type: roundrobin }}
",
            addr = origin.addr()
        )
    });
    let routes: String = routes.collect();
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!("worker_processes: 1\nroutes:\n{routes}"))
}

/// The status of a request with a signed token to the route of this number.
fn status_at(gateway: &Gateway, number: usize) -> u16 {
    let token = format!("{}.e30.AAAA", URL_SAFE_NO_PAD.encode("{\"alg\":\"RS256\"}"));
    let request = format!("GET /guarded/{number}/a HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {token}\r\n\r\n");
    gateway.client().ask(request).expect("an answer").status
}

#[test]
fn failed_fetch_is_shared_by_configurations_with_the_same_time_out_alone() {
    let keys = Origin::serving(|_| Answer::with(500, "", String::new()));
    let origin = origin();
    let url = format!("http://{}/keys", keys.addr());
    let gateway = gateway_with_key_sets(&origin, &[(url.clone(), 60), (url.clone(), 60), (url, 59)]);
    let begun = Instant::now();
    let asked = [0, 1, 2].map(|number| {
        assert_eq!(status_at(&gateway, number), 503);
        keys.requests().len()
    });
    // A failure is kept for five seconds.
    if begun.elapsed().as_secs() < 5 {
        assert_eq!(asked, [1, 1, 2]);
    }
}

#[test]
fn failed_fetch_of_one_provider_is_none_of_another() {
    let keys = Origin::serving(|request| match &*request.target {
        "/failing" => Answer::with(500, "", String::new()),
        _ => Answer::ok("{\"keys\": []}"),
    });
    let origin = origin();
    let sets = ["failing", "working"].map(|path| (format!("http://{}/{path}", keys.addr()), 60));
    let gateway = gateway_with_key_sets(&origin, &sets);
    assert_eq!([0, 1].map(|number| status_at(&gateway, number)), [503, 401]);
}

#[test]
fn keys_at_a_url_that_does_not_answer_fail_closed_and_the_log_has_the_url() {
    let origin = origin();
    let url = format!("http://127.0.0.1:{}/keys", weir_testkit::free_port());
    let gateway = gateway_with_key_set(&origin, &url, "https://a.example");
    let head = URL_SAFE_NO_PAD.encode("{\"alg\":\"RS256\"}");
    assert_eq!(ask(&gateway, &format!("{head}.e30.AAAA")).status, 503);
    gateway.wait_stderr("it is said", |said| said.contains("openid-connect: http://127.0.0.1"));
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

/// A gateway that redirects to a login, its provider, and an origin that answers with the identity fields.
fn logins(more: &str) -> Option<(Origin, Gateway, Provider)> {
    logins_at(1, more)
}

fn logins_at(workers: usize, more: &str) -> Option<(Origin, Gateway, Provider)> {
    let client = format!("client_id: web\n        client_secret: \"{SECRET}\"");
    logins_of(workers, &client, more, Provider::start_for)
}

fn logins_of(
    workers: usize,
    client: &str,
    more: &str,
    provider: impl FnOnce(u16, &str) -> Option<Provider>,
) -> Option<(Origin, Gateway, Provider)> {
    let origin = Origin::serving(|request| {
        let told = ["x-id-token", "x-userinfo", "x-access-token", "x-refresh-token", "cookie"];
        let told = told.map(|name| request.headers.get(name).unwrap_or("-").to_owned());
        Answer::ok(format!("{} {}", request.target, told.join(" ")))
    });
    let port = weir_testkit::free_port();
    let more = format!(
        "redirect_uri: /guarded/back\n        logout_path: /guarded/logout\n        \
         session: {{ secret: a-secret-of-sixteen }}\n        {more}"
    );
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "worker_processes: {workers}
routes:
  - id: guarded
    uri: /guarded/*
    plugins:
      openid-connect:
        {client}
        discovery: http://127.0.0.1:{port}/.well-known/openid-configuration
        {more}
    upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }}
",
        origin.addr()
    ));
    let provider = provider(port, &format!("http://{}/guarded/back", gateway.addr()))?;
    Some((origin, gateway, provider))
}

#[test]
fn a_browser_logs_in_and_out() {
    let Some((origin, gateway, provider)) = logins("set_refresh_token_header: true") else { return };
    let (port, mut browser) = (gateway.addr().port(), Browser::default());
    // The redirect has all parameters that a login of this gateway needs.
    let sent = browser.ask(port, "GET", "/guarded/a?x=1");
    let location = sent.headers.get("location").expect("to the provider");
    assert_eq!(sent.status, 302);
    for part in
        ["response_type=code", "client_id=web", "&state=", "&nonce=", "&code_challenge=", "code_challenge_method=S256"]
    {
        assert!(location.contains(part), "{location}");
    }
    let cookie = sent.headers.get("set-cookie").expect("a cookie");
    assert!(cookie.contains("; HttpOnly; SameSite=Lax") && cookie.contains("Max-Age=600"), "{cookie}");
    assert_eq!(browser.ask(port, "POST", "/guarded/a").status, 401, "what a form sends would be lost");
    // The whole login: to the provider and back.
    let (target, answer) = browser.follow(port, "/guarded/a?x=1");
    assert_eq!((&*target, answer.status), ("/guarded/a?x=1", 200), "{}", answer.text());
    let text = answer.text();
    let told: Vec<&str> = text.split(' ').collect();
    let claims = |text: &str| serde_json::from_slice::<Value>(&STANDARD.decode(text).expect("base64")).expect("JSON");
    assert_eq!(
        (told[0], &claims(told[1])["sub"], &claims(told[2])["sub"]),
        ("/guarded/a?x=1", &"jack".into(), &"jack".into())
    );
    assert!(told[3].len() > 20 && told[4].len() > 20, "{text}");
    // None of the gateway's own cookies is sent upstream, also not that of the login that was never completed.
    assert!(told[5] == "-" && !text.contains("a-secret"), "{text}");
    // Only a gateway with the secret can create or change a session.
    let session = browser.0[&port]["session"].clone();
    let first = if session.starts_with('A') { 'B' } else { 'A' };
    for changed in [format!("{first}{}", &session[1..]), "x".to_owned(), String::new()] {
        let mut other = Browser::default();
        other.0.entry(port).or_default().insert("session".to_owned(), changed);
        assert_eq!(other.ask(port, "GET", "/guarded/a").status, 302);
    }
    assert_eq!(origin.requests().len(), 1);
    provider.freeze();
    assert_eq!(browser.ask(port, "GET", "/guarded/b").status, 200, "a session needs nobody");
    provider.thaw();
    let left = browser.ask(port, "GET", "/guarded/logout");
    assert_eq!(left.status, 302);
    assert!(left.headers.get("location").is_some_and(|to| to.contains("/session/end?client_id=web")));
    assert_eq!(browser.ask(port, "GET", "/guarded/b").status, 302);
}

#[test]
fn a_client_with_a_private_key_pushes_its_logins_and_needs_no_secret() {
    let identity = Authority::of_tests().identity_with(&["keyed"], KeyKind::Rsa, |_| ());
    let key = serde_json::to_string(&identity.key).expect("text");
    let client = format!(
        "client_id: keyed
        client_rsa_private_key: {key}
        client_rsa_private_key_id: k1
        token_endpoint_auth_method: private_key_jwt"
    );
    let start = |port, redirect_uri: &str| Provider::start_with_key(port, redirect_uri, &identity.certificate);
    let Some((_origin, gateway, _provider)) = logins_of(1, &client, "par: { enabled: true }", start) else { return };
    let (port, mut browser) = (gateway.addr().port(), Browser::default());
    let sent = browser.ask(port, "GET", "/guarded/a");
    let location = sent.headers.get("location").unwrap_or_else(|| panic!("{}", sent.text())).to_owned();
    assert!(location.contains("client_id=keyed&request_uri=urn%3A"), "{location}");
    assert!(!location.contains("state=") && !location.contains("redirect_uri="), "{location}");
    let (target, answer) = browser.follow(port, "/guarded/a");
    assert_eq!((&*target, answer.status), ("/guarded/a", 200), "{}", answer.text());
    eventually("the token is renewed by an assertion", DEADLINE, || {
        browser.ask(port, "GET", "/guarded/a").status == 307
    });
}

#[test]
fn tokens_of_a_session_are_revoked_at_a_logout_if_asked_for() {
    for revokes in [false, true] {
        let more = format!("set_refresh_token_header: true\n        revoke_tokens_on_logout: {revokes}");
        let Some((_origin, gateway, provider)) = logins(&more) else { return };
        let (port, mut browser) = (gateway.addr().port(), Browser::default());
        let (_, answer) = browser.follow(port, "/guarded/a");
        let text = answer.text();
        let token = text.split(' ').nth(4).expect("a refresh token");
        assert!(provider.is_active(token), "{text}");
        assert_eq!(browser.ask(port, "GET", "/guarded/logout").status, 302);
        assert_eq!(provider.is_active(token), !revokes);
    }
}

#[test]
fn claims_that_do_not_match_the_schema_of_a_route_are_refused() {
    let Some(provider) = Provider::start() else { return };
    let origin = origin();
    let token = provider.token("api");
    for (schema, status) in [
        ("{ properties: { client_id: { const: api } }, required: [client_id] }", 200),
        ("{ properties: { client_id: { const: web } } }", 401),
        ("{ required: [department] }", 401),
    ] {
        let gateway = gateway(&origin, provider.port, &format!("use_jwks: true\n        claim_schema: {schema}"));
        let answer = ask(&gateway, &token);
        assert_eq!(answer.status, status, "{schema}");
        let challenge = answer.headers.get("www-authenticate").unwrap_or_default();
        assert_eq!(challenge.contains("the claims do not match"), status == 401, "{challenge}");
    }
    for (schema, status) in [
        ("{ required: [user, access_token, id_token], properties: { user: { required: [sub] } } }", 200),
        ("{ properties: { id_token: { properties: { sub: { const: jill } } } } }", 401),
    ] {
        let Some((_origin, gateway, _provider)) = logins(&format!("claim_schema: {schema}")) else { return };
        let (_, answer) = Browser::default().follow(gateway.addr().port(), "/guarded/a");
        assert_eq!(answer.status, status, "{schema}: {}", answer.text());
    }
}

#[test]
fn login_of_another_browser_logs_no_one_in() {
    let Some((origin, gateway, _provider)) = logins("") else { return };
    let port = gateway.addr().port();
    let mut attacker = Browser::default();
    // The attacker logs in, and stops before the last step.
    let mut target =
        attacker.ask(port, "GET", "/guarded/a").headers.get("location").expect("to the provider").to_owned();
    let back = format!("http://127.0.0.1:{port}");
    while !target.starts_with(&back) {
        let rest = target.strip_prefix("http://127.0.0.1:").expect("the provider").to_owned();
        let (to, path) = rest.split_once('/').expect("a path");
        target = attacker
            .ask(to.parse().expect("a port"), "GET", &format!("/{path}"))
            .headers
            .get("location")
            .expect("further")
            .to_owned();
        if target.starts_with('/') {
            target = format!("http://127.0.0.1:{to}{target}");
        }
    }
    let last = target.strip_prefix(&back).expect("it is").to_owned();
    // The victim's browser is made to send the last step.
    let answer = Browser::default().ask(port, "GET", &last);
    assert_eq!((answer.status, answer.headers.has("set-cookie")), (401, false));
    // Also refused with another state, and without a code.
    for wrong in [
        "/guarded/back",
        "/guarded/back?state=x&code=y",
        &last.replace("state=", "state=A"),
        &last.replace("code=", "kode="),
    ] {
        assert_eq!(attacker.ask(port, "GET", wrong).status, 401, "{wrong}");
    }
    assert_eq!(attacker.ask(port, "GET", &last).status, 302);
    assert_eq!(attacker.ask(port, "GET", &last).status, 401, "a code is good once");
    assert_eq!(attacker.ask(port, "GET", "/guarded/a").status, 200);
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn a_token_that_has_ended_is_renewed() {
    let Some((_origin, gateway, _provider)) = logins("") else { return };
    let (port, mut browser) = (gateway.addr().port(), Browser::default());
    let (_, first) = browser.follow(port, "/guarded/a");
    assert_eq!(first.status, 200);
    eventually("it is renewed", DEADLINE, || browser.ask(port, "GET", "/guarded/a").status == 307);
    let (target, second) = browser.follow(port, "/guarded/a");
    assert_eq!((&*target, second.status), ("/guarded/a", 200));
    assert_ne!(first.text(), second.text());
}

#[test]
fn requests_that_come_together_renew_a_token_once() {
    // The provider accepts a refresh token once, and counts a second use as theft.
    let Some((_origin, gateway, _provider)) = logins_at(2, "") else { return };
    let (port, mut browser) = (gateway.addr().port(), Browser::default());
    let (_, first) = browser.follow(port, "/guarded/a");
    assert_eq!(first.status, 200);
    let cookie = |browser: &Browser| {
        let pairs: Vec<String> = browser.0[&port].iter().map(|(name, value)| format!("{name}={value}")).collect();
        pairs.join("; ")
    };
    let mut session = cookie(&browser);
    eventually("it is renewed", DEADLINE, || {
        let before = cookie(&browser);
        let is_renewed = browser.ask(port, "GET", "/guarded/a").status == 307;
        if !is_renewed {
            session = before;
        }
        is_renewed
    });
    // The session from before is what the browser's other requests had, with whichever worker.
    let mut clients: Vec<_> = (0..4).map(|_| gateway.client()).collect();
    for (turn, client) in clients.iter_mut().enumerate() {
        let request = format!("GET /guarded/a HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: {session}\r\n\r\n");
        assert_eq!(client.ask(request).expect("an answer").status, 307, "{turn}");
    }
    eventually("the session goes on", DEADLINE, || browser.ask(port, "GET", "/guarded/a").status == 307);
}

#[test]
fn logins_that_are_begun_and_left_do_not_pile_up() {
    let Some((_origin, gateway, _provider)) = logins("") else { return };
    let (port, mut browser) = (gateway.addr().port(), Browser::default());
    for _ in 0..20 {
        assert_eq!(browser.ask(port, "GET", "/guarded/a").status, 302);
        assert!(browser.0[&port].len() <= 5, "{:?}", browser.0[&port].keys());
    }
    let (_, answer) = browser.follow(port, "/guarded/a");
    assert_eq!(answer.status, 200, "the last one can be completed");
    for field in ["Sec-Fetch-Mode: cors", "Sec-Fetch-Mode: no-cors", "X-Requested-With: XMLHttpRequest"] {
        let request = format!("GET /guarded/a HTTP/1.1\r\nHost: t\r\n{field}\r\n\r\n");
        let answer = gateway.client().ask(request).expect("an answer");
        assert_eq!((answer.status, answer.headers.has("set-cookie")), (401, false), "{field}");
    }
    let navigation = "GET /guarded/a HTTP/1.1\r\nHost: t\r\nSec-Fetch-Mode: navigate\r\n\r\n";
    assert_eq!(gateway.client().ask(navigation).expect("an answer").status, 302);
}

#[test]
fn unauthenticated_request_is_refused_or_passes_by_unauth_action() {
    for (action, status) in [("deny", 401), ("pass", 200)] {
        let Some((_origin, gateway, _provider)) = logins(&format!("unauth_action: {action}")) else { return };
        assert_eq!(gateway.get("/guarded/a").status, status, "{action}");
    }
}

/// A hub whose topics need a scope or a claim of the provider's tokens. `how` are further options of `openid-connect`.
fn hub(data: &TempDir, port: u16, how: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "data_dir: {}
routes:
  - id: hub
    uri: /*
    hub_id: h
    plugins:
      openid-connect:
        client_id: opaque
        client_secret: \"{SECRET}\"
        discovery: http://127.0.0.1:{port}/.well-known/openid-configuration
        bearer_only: true
        {how}
hubs:
  - id: h
    url: http://gw.example/hub
    topics: [\"http://gw.example/*\"]
    subscribe: {{ callbacks: {{ allow: [127.0.0.0/8] }} }}
    rights:
      - topics: [\"http://gw.example/t/*\"]
        publish: {{ scopes: [read] }}
        subscribe: {{ topic_claim: topics }}
      - topics: [\"http://gw.example/closed/*\"]
        publish: {{ scopes: [write] }}
        subscribe: {{ topic_claim: topics }}
",
        data.path().display()
    ))
}

/// Sends a request with a token to a hub.
fn send(gateway: &Gateway, method: &str, target: &str, token: &str, content: &str) -> weir_testkit::Response {
    let kind = if target == "/hub" { "application/x-www-form-urlencoded" } else { "text/plain" };
    let length = content.len();
    let fields = format!("Authorization: Bearer {token}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n");
    let request = format!("{method} {target} HTTP/1.1\r\nHost: gw.example\r\n{fields}\r\n{content}");
    gateway.client().ask(request).expect("an answer")
}

/// A callback that confirms every verification.
fn subscriber() -> Origin {
    Origin::serving(|request| {
        let challenge = request.target.split(['?', '&']).find_map(|pair| pair.strip_prefix("hub.challenge="));
        Answer::ok(challenge.unwrap_or_default())
    })
}

fn subscribe(gateway: &Gateway, token: &str, topic: &str, subscriber: &Origin) -> u16 {
    let form = format!("hub.mode=subscribe&hub.topic={topic}&hub.callback=http://{}/", subscriber.addr());
    send(gateway, "POST", "/hub", token, &form).status
}

#[test]
fn rights_of_a_hub_may_depend_on_the_claims_of_the_providers_tokens() {
    let Some(provider) = Provider::start() else { return };
    let (data, subscriber) = (TempDir::new(), subscriber());
    let gateway = hub(&data, provider.port, "use_jwks: true");
    let token = provider.token("api");
    let statuses = ["/t/1", "/closed/1"].map(|path| send(&gateway, "POST", path, &token, "x").status);
    assert_eq!(statuses, [202, 403], "the token has the scope `read`");
    assert_eq!(["/t/1", "/closed/1"].map(|path| send(&gateway, "GET", path, &token, "").status), [200, 403]);
    let topics = ["http://gw.example/t/1", "http://gw.example/closed/1"];
    assert_eq!(topics.map(|topic| subscribe(&gateway, &token, topic, &subscriber)), [202, 403]);
    eventually("it is verified", DEADLINE, || gateway.status()["hubs"][0]["subscriptions"] == 1);
    assert_eq!(send(&gateway, "POST", "/t/1", &token, "delivered").status, 202);
    eventually("it is delivered", DEADLINE, || subscriber.requests().iter().any(|it| it.body == b"delivered"));
    assert_eq!(send(&gateway, "POST", "/t/1", "nonsense", "x").status, 401);
}

#[test]
fn a_subscription_ends_with_the_providers_token() {
    let Some(provider) = Provider::start() else { return };
    let (data, subscriber) = (TempDir::new(), subscriber());
    let gateway = hub(&data, provider.port, "use_jwks: true");
    // Tokens of this client last for a second, so on a busy machine one may be too old.
    let taken = || subscribe(&gateway, &provider.token("short"), "http://gw.example/t/1", &subscriber) == 202;
    eventually("a token is taken", DEADLINE, taken);
    let ended = || {
        let ends = gateway.metrics().get("weir_hub_subscriptions_ended_total{hub=\"h\",reason=\"lease_ended\"}");
        ends == Some(1.0) && gateway.status()["hubs"][0]["subscriptions"] == 0
    };
    eventually("the lease has ended", DEADLINE, ended);
}
