//! Log-in to the console at an OpenID Connect provider: a real one, and one that sends what no real one does.

#[path = "../plugins/oidc/browser.rs"]
#[expect(dead_code, reason = "logins of the plugin use the rest")]
mod browser;
mod person;
mod scripted;
#[path = "../plugins/oidc/server.rs"]
#[expect(dead_code, reason = "tests of the plugin use the rest")]
mod server;

use aws_lc_rs::hmac;
use aws_lc_rs::signature::KeyPair;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use weir_testkit::{Answer, Authority, DEADLINE, Gateway, Response, eventually, eventually_some, free_port};

use crate::api::{ADMIN, Api, VIEWER, file};
use crate::sessions;
use crate::tokens::{Signer, now_s, signed_part};
use crate::weir;
use person::{CALLBACK, Person};
use scripted::{CLIENT, ScriptedProvider, argument};
use server::{Provider, SECRET};

/// The file of a node whose console is at this port.
fn settings(port: u16, issuer: &str, roles: &str, more: &str) -> String {
    let file = file().replace("127.0.0.1:0", &format!("127.0.0.1:{port}"));
    format!(
        "{file}  audit: {{ path: audit.log }}\n  oidc:\n    issuer: \"{issuer}\"\n    client_id: {CLIENT}\n    client_secret: \"{SECRET}\"\n    \
         redirect_uri: \"http://127.0.0.1:{port}{CALLBACK}\"\n    scope: openid groups\n    name: Example SSO\n    \
         roles: {roles}\n{more}"
    )
}

const ROLES: &str = "{ claim: groups, map: { gateway-admins: admin, staff: viewer } }";

/// A real provider, the port that its client's console will have, and its URL; `None` if it is not installed.
fn real_provider() -> Option<(Provider, u16, String)> {
    let port = free_port();
    let provider = Provider::start_for(free_port(), &format!("http://127.0.0.1:{port}{CALLBACK}"))?;
    let issuer = format!("http://127.0.0.1:{}", provider.port);
    Some((provider, port, issuer))
}

/// A node that sends people to a scripted provider.
fn node(provider: &ScriptedProvider) -> (Gateway, u16) {
    let port = free_port();
    (weir().start(&settings(port, &provider.url, ROLES, "")), port)
}

/// The lines of the audit log, when there are so many.
#[track_caller]
fn audited(gateway: &Gateway, count: usize) -> Vec<Value> {
    eventually_some(&format!("{count} lines of the audit log"), DEADLINE, || {
        let text = std::fs::read_to_string(gateway.directory().join("audit.log")).ok()?;
        let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (lines.len() >= count).then_some(lines)
    })
}

/// Checks that a page says why there is no session.
#[track_caller]
fn assert_page(answer: &Response, status: u16, told: &str) {
    assert_eq!(answer.status, status, "{}", answer.text());
    assert_eq!(answer.headers.get("content-type"), Some("text/html; charset=utf-8"), "{told}");
    assert!(answer.text().contains(told), "{told}: {}", answer.text());
    assert!(answer.text().contains("To the console</a>"), "{}", answer.text());
    let policy = answer.headers.get("content-security-policy");
    assert_eq!(policy, Some("default-src 'none'; frame-ancestors 'none'"));
    assert_eq!(answer.headers.get("location"), None, "there is no ticket");
}

#[test]
fn a_log_in_at_a_provider_begins_the_session_that_a_key_does() {
    let Some((_provider, port, issuer)) = real_provider() else { return };
    let gateway = weir().start(&settings(port, &issuer, ROLES, "    session_lifetime: 10m\n"));
    let mut person = Person::at(port);
    let url = person.begin();
    assert!(url.starts_with(&format!("{issuer}/auth?")), "{url}");
    assert_eq!(
        (argument(&url, "response_type"), argument(&url, "code_challenge_method")),
        ("code".into(), "S256".into())
    );
    assert_eq!(argument(&url, "scope"), "openid%20groups");
    let target = person.visit(&url);
    let back = person.come_back(&target);
    assert_eq!(
        (back.status, back.headers.get("location")),
        (303, Some(&*format!("../../../../console/?oidc#{}", person.ticket)))
    );
    assert!(back.headers.all("set-cookie").all(|set| !set.contains(&person.ticket)), "no other port gets the ticket");
    assert_eq!(person.cookie("__Host-weir-oidc"), None, "it is used up");
    let answer = person.redeem();
    let told: Value = serde_json::from_str(&answer.text()).expect("JSON");
    // The claim `groups` is in the user information of this provider, not in its ID token.
    assert_eq!(
        (&told["name"], &told["role"], &told["scopes"]),
        (&json!("oidc:jack"), &json!("admin"), &json!([])),
        "{told}"
    );
    let lasts_ms = told["expires_ms"].as_u64().zip(told["now_ms"].as_u64()).map(|(end, now)| end - now);
    assert!(lasts_ms.is_some_and(|ms| ms > 500_000 && ms <= 600_000), "{told}");
    let token = told["token"].as_str().expect("a token").to_owned();
    let put = person.ask(&token, "PUT", "/apisix/admin/routes/r", r#"{"uri": "/r", "plugins": {}}"#);
    assert_eq!(put.status, 201, "{}", put.text());
    assert!(
        Api::with_key(([127, 0, 0, 1], port).into(), ADMIN).ask("GET", "history", "", "").text().contains("oidc:jack")
    );
    assert_eq!(person.ask(&token, "DELETE", "/weir/v1/session", "").status, 204);
    assert_eq!(person.ask(&token, "GET", "/weir/v1/session", "").status, 401);
    let lines = audited(&gateway, 3);
    for (line, method) in lines.iter().zip(["POST", "PUT", "DELETE"]) {
        let told = [&line["method"], &line["who"], &line["role"], &line["outcome"]];
        assert_eq!(told, [&json!(method), &json!("oidc:jack"), &json!("admin"), &json!("accepted")], "{line}");
    }
    let kept = std::fs::read_to_string(gateway.directory().join("audit.log")).expect("a log") + &gateway.stderr();
    for secret in [SECRET, &token, &argument(&target, "code"), &argument(&target, "state")] {
        assert!(!kept.contains(secret), "{secret} in {kept}");
    }
}

#[test]
fn a_log_out_leads_to_the_provider_if_it_is_to() {
    let Some((provider, port, issuer)) = real_provider() else { return };
    let _gateway = weir().start(&settings(port, &issuer, ROLES, "    end_session: true\n"));
    let mut person = Person::at(port);
    let told = person.log_in();
    let token = told["token"].as_str().expect("a token");
    let gone = person.ask(token, "DELETE", "/weir/v1/session", "");
    assert_eq!(gone.status, 200, "{}", gone.text());
    let told: Value = serde_json::from_str(&gone.text()).expect("JSON");
    let url = told["end_session"].as_str().expect("a URL");
    assert!(url.starts_with(&format!("{issuer}/session/end?client_id=web&")), "{url}");
    let target = url.strip_prefix(&issuer).expect("it is there");
    let page = person.browser.ask(provider.port, "GET", target);
    assert_eq!(page.status, 200, "the provider knows the address of the console: {}", page.text());
    assert_eq!(person.ask(token, "GET", "/weir/v1/session", "").status, 401);
    // Who has logged in with a key has nothing to end there.
    let mut viewer = sessions::log_in(([127, 0, 0, 1], port).into(), VIEWER);
    assert_eq!(viewer.ask("DELETE", "/weir/v1/session", "", "").status, 204);
}

#[test]
fn a_client_without_a_secret_logs_in_by_pkce_alone() {
    let Some((_provider, port, issuer)) = real_provider() else { return };
    // `sub` is in the ID token.
    let settings =
        settings(port, &issuer, "{ claim: sub, map: { jack: { role: editor, scopes: [{ kinds: [routes] }] } } }", "");
    let public = settings
        .replace(&format!("    client_secret: \"{SECRET}\"\n"), "")
        .replace("client_id: web", "client_id: public");
    let _gateway = weir().start(&public);
    let told = Person::at(port).log_in();
    assert_eq!((&told["name"], &told["role"]), (&json!("oidc:jack"), &json!("editor")));
    assert_eq!(told["scopes"], json!([{ "kinds": ["routes"], "id_prefix": "", "labels": {} }]));
}

#[test]
fn a_user_without_a_role_is_told_so_and_is_in_the_audit_log() {
    let Some((_provider, port, issuer)) = real_provider() else { return };
    let gateway = weir().start(&settings(port, &issuer, "{ claim: groups, map: { others: admin } }", ""));
    let mut person = Person::at(port);
    let url = person.begin();
    let target = person.visit(&url);
    let answer = person.come_back(&target);
    assert_page(&answer, 403, "the provider knows jack, but no value of the claim `groups` gives a role here");
    let line = &audited(&gateway, 1)[0];
    let told = [&line["who"], &line["outcome"], &line["status"], &line["path"]];
    assert_eq!(told, [&json!("oidc:jack"), &json!("refused"), &json!(403), &json!(CALLBACK)], "{line}");
    assert!(line["reason"].as_str().is_some_and(|reason| reason.contains("no value of the claim")), "{line}");
    assert_eq!(person.redeem().status, 401);
}

#[test]
fn a_log_in_ends_in_the_browser_that_began_it_and_once() {
    let provider = ScriptedProvider::start();
    let (gateway, port) = node(&provider);
    let (mut alice, mut mallory) = (Person::at(port), Person::at(port));
    let (own, others) = (alice.begin(), mallory.begin());
    provider.gives(&provider.signer.token(&provider.claims(&others)));
    let back = |url: &str| format!("{CALLBACK}?code=c&state={}", argument(url, "state"));
    let other = "no log-in of this browser has this state";
    // The victim follows a link with the attacker's code and state (RFC 6749 §10.12).
    assert_page(&alice.come_back(&back(&others)), 403, other);
    assert_page(&Person::at(port).come_back(&back(&others)), 403, other);
    assert_page(&alice.come_back(&format!("{CALLBACK}?code=c&state=x")), 403, other);
    assert_page(&alice.come_back(&format!("{CALLBACK}?code=c")), 400, "has no `state`");
    assert_page(&alice.come_back(&format!("{CALLBACK}?state={}", argument(&own, "state"))), 400, "has no `code`");
    assert!(!provider.origin.targets().contains(&"/token".to_owned()), "no code was exchanged");
    // Even with the attacker's cookie, which a page of another port can set, the session is of another page.
    let planted = mallory.cookie("__Host-weir-oidc").expect("a cookie");
    alice.browser.0.entry(port).or_default().insert("__Host-weir-oidc".to_owned(), planted);
    alice.kept = "another page".to_owned();
    assert_eq!(alice.come_back(&back(&others)).status, 303);
    let answer = alice.redeem();
    assert_eq!(answer.status, 401, "{}", answer.text());
    // Nor has the attacker, who knows the other half, a session of hers: the ticket is in her URL alone.
    assert_eq!(mallory.redeem().status, 401);
    // The state is used up, also in the browser that began it.
    assert_page(&mallory.come_back(&back(&others)), 403, "has ended already");
    let lines = audited(&gateway, 5);
    assert!(lines.iter().all(|line| line["outcome"] == "refused"), "{lines:?}");
}

#[test]
fn a_browser_may_have_several_log_ins_and_completes_each() {
    let provider = ScriptedProvider::start();
    let (_gateway, port) = node(&provider);
    let mut person = Person::at(port);
    let urls: Vec<String> = (0..5).map(|_| person.begin()).collect();
    let mut come_back = |url: &str| {
        provider.gives(&provider.signer.token(&provider.claims(url)));
        person.come_back(&format!("{CALLBACK}?code=c&state={}", argument(url, "state")))
    };
    for url in urls[1..].iter().rev() {
        assert_eq!(come_back(url).status, 303);
    }
    assert_page(&come_back(&urls[0]), 403, "no log-in of this browser has this state");
}

#[test]
fn a_ticket_is_for_one_page_and_for_one_time() {
    let provider = ScriptedProvider::start();
    let (_gateway, port) = node(&provider);
    let ticket_of = |person: &mut Person| {
        let url = person.begin();
        provider.gives(&provider.signer.token(&provider.claims(&url)));
        assert_eq!(person.come_back(&format!("{CALLBACK}?code=c&state={}", argument(&url, "state"))).status, 303);
        person.ticket.clone()
    };
    let mut alice = Person::at(port);
    let ticket = ticket_of(&mut alice);
    // Who has the ticket has not what the page keeps.
    let mut thief = Person::at(port);
    thief.ticket = ticket;
    thief.kept = "a guess".to_owned();
    assert_eq!(thief.redeem().status, 401);
    assert_eq!(alice.redeem().status, 401, "a guess costs the ticket");
    let ticket = ticket_of(&mut alice);
    let cross = alice.browser.send(
        port,
        "POST",
        "/weir/v1/session",
        "Sec-Fetch-Site: same-site\r\n",
        &json!({ "oidc": alice.kept, "ticket": ticket }).to_string(),
    );
    assert_eq!(cross.status, 403, "{}", cross.text());
    assert_eq!(alice.redeem().status, 200);
    assert_eq!(alice.redeem().status, 401, "it was used");
}

#[test]
fn a_log_in_takes_over_no_session() {
    let provider = ScriptedProvider::start();
    let (_gateway, port) = node(&provider);
    let address = ([127, 0, 0, 1], port).into();
    let fixed = sessions::log_in(address, VIEWER);
    let mut alice = Person::at(port);
    let (name, value) = fixed.cookie.split_once('=').expect("a pair");
    alice.browser.0.entry(port).or_default().insert(name.to_owned(), value.to_owned());
    let url = alice.begin();
    provider.gives(&provider.signer.token(&provider.claims(&url)));
    alice.come_back(&format!("{CALLBACK}?code=c&state={}", argument(&url, "state")));
    let body = json!({ "oidc": alice.kept, "ticket": alice.ticket }).to_string();
    let fields = format!("X-Weir-Session: {}\r\n", fixed.token);
    let answer = alice.browser.send(port, "POST", "/weir/v1/session", &fields, &body);
    let told: Value = serde_json::from_str(&answer.text()).expect("JSON");
    assert_eq!((answer.status, &told["role"]), (200, &json!("admin")), "{told}");
    assert!(told["token"] != json!(fixed.token) && alice.cookie(name).as_deref() != Some(value));
    let mut fixed = fixed;
    assert_eq!(fixed.ask("GET", "/weir/v1/session", "", "").status, 401, "the former session has ended");
}

fn with(claims: &Value, name: &str, value: Value) -> Value {
    let mut claims = claims.clone();
    match value {
        Value::Null => drop(claims.as_object_mut().expect("a map").remove(name)),
        value => claims[name] = value,
    }
    claims
}

#[test]
fn an_id_token_must_be_good_and_for_this_log_in() {
    let provider = ScriptedProvider::start();
    let other = Signer::new("one");
    let signed = |claims: &Value| provider.signer.token(claims);
    let by_public_key = |claims: &Value| {
        let signed = signed_part(&json!({"alg": "HS256", "kid": "one"}), claims);
        let key = hmac::Key::new(hmac::HMAC_SHA256, provider.signer.pair.public_key().as_ref());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes())))
    };
    let by_secret = |claims: &Value| {
        let signed = signed_part(&json!({"alg": "HS256"}), claims);
        let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes())))
    };
    let now = now_s();
    type Forge<'a> = Box<dyn Fn(&Value) -> String + 'a>;
    let changed = |name: &'static str, value: Value| -> Forge<'_> {
        Box::new(move |claims| signed(&with(claims, name, value.clone())))
    };
    let table: Vec<(Forge<'_>, &str)> = vec![
        (changed("nonce", Value::Null), "belongs to another login"),
        (changed("nonce", json!("another")), "belongs to another login"),
        (changed("nonce", json!([])), "belongs to another login"),
        (changed("aud", json!("other")), "for another audience"),
        (changed("aud", json!([CLIENT, "other"])), "for another audience"),
        (changed("aud", Value::Null), "has no audience"),
        (changed("azp", json!("other")), "for another audience"),
        (changed("iss", json!("https://other.example")), "issuer is not accepted"),
        (changed("exp", json!(now - 60)), "has expired"),
        (changed("exp", Value::Null), "no expiry"),
        (changed("iat", json!(now + 600)), "issued in the future"),
        (changed("sub", Value::Null), "whose it is"),
        (changed("groups", json!("guests")), "gives a role here"),
        (Box::new(|claims| other.token(claims)), "signature of the token is not valid"),
        (Box::new(by_public_key), "signature of the token is not valid"),
        (Box::new(by_secret), "signature of the token is not valid"),
        (
            Box::new(|claims| format!("{}.x", signed_part(&json!({"alg": "none"}), claims))),
            "algorithm of the token is not accepted",
        ),
        (Box::new(|claims| format!("{}.", signed_part(&json!({"alg": "none"}), claims))), "is not a signed JWT"),
        (Box::new(|_| "nonsense".to_owned()), "is not a signed JWT"),
    ];
    // As many as an address may fail in a row.
    let (_gateway, port) = node(&provider);
    for (forge, told) in &table {
        let mut person = Person::at(port);
        let url = person.begin();
        provider.gives(&forge(&provider.claims(&url)));
        let back = format!("{CALLBACK}?code=c&state={}", argument(&url, "state"));
        assert_page(&person.come_back(&back), 403, told);
        assert_eq!(person.ticket, "", "{told}");
    }
    let mut person = Person::at(port);
    let url = person.begin();
    provider.gives(&provider.signer.token(&with(
        &with(&provider.claims(&url), "aud", json!([CLIENT, "other"])),
        "azp",
        json!(CLIENT),
    )));
    assert_eq!(person.come_back(&format!("{CALLBACK}?code=c&state={}", argument(&url, "state"))).status, 303);
    let requests = provider.origin.requests();
    let verifiers: Vec<_> =
        requests.iter().filter(|request| request.target == "/token").map(|request| &request.body).collect();
    assert_eq!(verifiers.len(), table.len() + 1, "each code is exchanged once");
    assert!(verifiers.windows(2).all(|two| two[0] != two[1]), "each log-in has its own verifier");
}

#[test]
fn a_response_of_another_provider_is_refused() {
    let provider = ScriptedProvider::start();
    provider.says(json!({ "authorization_response_iss_parameter_supported": true }));
    let (_gateway, port) = node(&provider);
    let come_back = |issuer: &str| {
        let mut person = Person::at(port);
        let url = person.begin();
        provider.gives(&provider.signer.token(&provider.claims(&url)));
        person.come_back(&format!("{CALLBACK}?code=c&state={}{issuer}", argument(&url, "state")))
    };
    for other in ["", "&iss=https://other.example", "&iss="] {
        assert_page(&come_back(other), 403, "from another provider");
    }
    assert!(!provider.origin.targets().contains(&"/token".to_owned()), "another provider's code is not sent");
    assert_eq!(come_back(&format!("&iss={}", provider.url)).status, 303);
}

#[test]
fn a_refusal_of_the_provider_is_told_without_its_words() {
    let provider = ScriptedProvider::start();
    let (gateway, port) = node(&provider);
    let come_back = |more: &str| {
        let mut person = Person::at(port);
        let url = person.begin();
        person.come_back(&format!("{CALLBACK}?state={}{more}", argument(&url, "state")))
    };
    assert_page(&come_back("&error=access_denied&error_description=x"), 403, "refused the log-in: access_denied.");
    assert_page(&come_back("&error=%3Cscript%3E"), 403, "refused the log-in.");
    assert_page(&come_back("&code=c"), 403, "refuses the code: invalid_grant.");
    provider.answers(Answer::status(401, format!("{{\"error\": \"{SECRET}\"}}")));
    assert_page(&come_back("&code=c"), 403, "refuses the code.");
    provider.answers(Answer::status(500, SECRET));
    assert_page(&come_back("&code=c"), 503, "answers with 500");
    provider.answers(Answer::ok("[]"));
    assert_page(&come_back("&code=c"), 503, "an answer that is no JSON object");
    provider.answers(Answer::ok("{}"));
    assert_page(&come_back("&code=c"), 403, "sent no ID token");
    assert!(!gateway.stderr().contains(SECRET), "{}", gateway.stderr());
    assert!(!gateway.ask_status("/status").text().contains(SECRET));
}

#[test]
fn a_log_in_begins_on_a_page_of_this_address_and_ends_at_the_console() {
    let provider = ScriptedProvider::start();
    let (_gateway, port) = node(&provider);
    let mut person = Person::at(port);
    let begins_at = person.begins_at();
    let mut begin = |target: &str, fields: &str| person.browser.send(port, "GET", target, fields, "");
    for (fields, status) in [
        ("Sec-Fetch-Site: cross-site\r\n", 403),
        ("Sec-Fetch-Site: same-site\r\n", 403),
        ("Origin: http://127.0.0.1:1\r\n", 403),
        ("Host: rebound.example\r\n", 421),
        ("Host: localhost\r\n", 421),
        ("Host: 127.0.0.1:1\r\n", 421),
        ("Sec-Fetch-Site: same-origin\r\n", 302),
        ("Sec-Fetch-Site: none\r\n", 302),
    ] {
        assert_eq!(begin(&begins_at, fields).status, status, "{fields}");
    }
    let elsewhere = begin(&begins_at, &format!("Host: localhost:{port}\r\n"));
    assert_page(&elsewhere, 421, &format!("begin at http://127.0.0.1:{port}/console/"));
    for wrong in ["", "?page=", "?page=abc", &format!("?page={}", "g".repeat(64))] {
        let answer = begin(&format!("/weir/v1/session/oidc{wrong}"), "");
        assert_page(&answer, 400, "begins on the log-in page");
    }
    // Nothing that a request says leads elsewhere.
    let evil = "&next=https://evil.example&return_to=//evil.example&redirect_uri=https://evil.example";
    let answer = begin(&format!("{begins_at}{evil}"), "");
    let url = answer.headers.get("location").expect("a location").to_owned();
    assert!(!url.contains("evil"), "{url}");
    provider.gives(&provider.signer.token(&provider.claims(&url)));
    let back = person.come_back(&format!("{CALLBACK}?code=c&state={}{evil}", argument(&url, "state")));
    assert_eq!(
        (back.status, back.headers.get("location")),
        (303, Some(&*format!("../../../../console/?oidc#{}", person.ticket))),
        "{}",
        back.text()
    );
}

#[test]
fn log_ins_that_have_begun_take_no_place_of_others() {
    let provider = ScriptedProvider::start();
    let (gateway, port) = node(&provider);
    let mut person = Person::at(port);
    let url = person.begin();
    let set = person.browser.ask(port, "GET", &person.begins_at());
    let set = set.headers.get("set-cookie").expect("a cookie").to_owned();
    for part in ["__Host-weir-oidc=", "Path=/", "Secure", "HttpOnly", "SameSite=Lax", "Max-Age=600"] {
        assert!(set.contains(part), "{set}");
    }
    let before = gateway.rss();
    let begins_at = person.begins_at();
    let mut client = weir_testkit::Client::connect(([127, 0, 0, 1], port).into());
    for _ in 0..5_000 {
        let answer =
            client.ask(format!("GET {begins_at} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n")).expect("an answer");
        assert_eq!(answer.status, 302);
    }
    let grown = gateway.rss().saturating_sub(before);
    assert!(grown < 16 << 20, "5,000 log-ins take {grown} bytes");
    provider.gives(&provider.signer.token(&provider.claims(&url)));
    assert_eq!(person.come_back(&format!("{CALLBACK}?code=c&state={}", argument(&url, "state"))).status, 303);
    let asked = provider.origin.targets();
    assert_eq!(asked.len(), 3, "metadata and keys are read once: {asked:?}");
}

#[test]
fn codes_of_an_address_are_limited_and_keys_are_not() {
    let provider = ScriptedProvider::start();
    let (_gateway, port) = node(&provider);
    let mut statuses = Vec::new();
    // One more is allowed every six seconds.
    let (mut person, url, answer) = eventually_some("a log-in is refused", 2 * DEADLINE, || {
        let mut person = Person::at(port);
        let url = person.begin();
        let answer = person.come_back(&format!("{CALLBACK}?code=c&state={}", argument(&url, "state")));
        statuses.push(answer.status);
        (answer.status == 429).then_some((person, url, answer))
    });
    let failed = statuses.len() - 1;
    assert!(failed >= 20 && statuses[..failed].iter().all(|status| *status == 403), "{statuses:?}");
    assert!(answer.headers.get("retry-after").is_some_and(|wait| wait.parse::<u64>().is_ok()));
    assert_page(&answer, 429, "too many log-ins of this address have failed");
    let exchanged = provider.origin.targets().iter().filter(|target| *target == "/token").count();
    assert_eq!(exchanged, failed, "the code of a log-in that is refused is not sent");
    sessions::log_in(([127, 0, 0, 1], port).into(), VIEWER);
    // The log-in is not lost: it ends when the page is loaded again.
    provider.gives(&provider.signer.token(&provider.claims(&url)));
    eventually("the log-in ends", DEADLINE, || {
        person.come_back(&format!("{CALLBACK}?code=c&state={}", argument(&url, "state"))).status == 303
    });
}

#[test]
fn a_provider_that_is_down_or_hangs_keeps_nobody_else_waiting() {
    let port = free_port();
    let gone = format!("http://127.0.0.1:{}", free_port());
    let down = weir().start(&settings(port, &gone, ROLES, ""));
    let mut person = Person::at(port);
    assert_page(
        &person.browser.ask(port, "GET", &person.begins_at()),
        503,
        "the provider cannot be asked: http://127.0.0.1",
    );
    sessions::log_in(([127, 0, 0, 1], port).into(), VIEWER);
    drop(down);

    let Some((provider, port, issuer)) = real_provider() else { return };
    let _gateway = weir().start(&settings(port, &issuer, ROLES, ""));
    let mut people: Vec<(Person, String)> = Vec::new();
    for _ in 0..12 {
        let mut person = Person::at(port);
        let url = person.begin();
        let target = person.visit(&url);
        people.push((person, target));
    }
    provider.freeze();
    let answers: Vec<Response> = std::thread::scope(|scope| {
        let waiting: Vec<_> =
            people.iter_mut().map(|(person, target)| scope.spawn(|| person.come_back(target))).collect();
        // Keys and sessions do not wait for the provider.
        let mut other = sessions::log_in(([127, 0, 0, 1], port).into(), ADMIN);
        for _ in 0..20 {
            other.get("/apisix/admin/routes");
        }
        waiting.into_iter().map(|waiting| waiting.join().expect("no panic")).collect()
    });
    let told =
        |text: &str| answers.iter().filter(|answer| answer.status == 503 && answer.text().contains(text)).count();
    // Eight at a time. One that comes late on a busy machine may have the place of one that was given up.
    let (asked, refused) = (told("cannot be asked"), told("as many log-ins end as may"));
    assert!(asked >= 8 && refused >= 1 && asked + refused == 12, "{asked} and {refused}");
    provider.thaw();
    let mut person = Person::at(port);
    assert_eq!(person.log_in()["role"], "admin");
}

#[test]
fn a_provider_is_asked_over_tls_that_is_verified() {
    let provider = ScriptedProvider::start_over(true);
    let port = free_port();
    let untrusted = weir().start(&settings(port, &provider.url, ROLES, ""));
    let mut person = Person::at(port);
    let refused = person.browser.ask(port, "GET", &person.begins_at());
    assert_page(&refused, 503, "the provider cannot be asked");
    drop(untrusted);
    assert!(provider.origin.targets().is_empty());

    let roots = Authority::of_tests().certificate.replace('\n', "\n  ");
    let port = free_port();
    let _trusted =
        weir().start(&format!("{}ssl_trusted_certificate: |\n  {roots}\n", settings(port, &provider.url, ROLES, "")));
    let mut person = Person::at(port);
    let url = person.begin();
    assert!(url.starts_with("https://localhost:"), "{url}");
    provider.gives(&provider.signer.token(&provider.claims(&url)));
    assert_eq!(person.come_back(&format!("{CALLBACK}?code=c&state={}", argument(&url, "state"))).status, 303);
}

#[test]
fn endpoints_in_the_clear_get_nothing() {
    for endpoint in ["authorization_endpoint", "token_endpoint"] {
        let provider = ScriptedProvider::start();
        provider.says(json!({ endpoint: "http://login.example/x" }));
        let (_gateway, port) = node(&provider);
        let mut person = Person::at(port);
        let mut answer = person.browser.ask(port, "GET", &person.begins_at());
        if let Some(url) = answer.headers.get("location").map(str::to_owned) {
            answer = person.come_back(&format!("{CALLBACK}?code=c&state={}", argument(&url, "state")));
        }
        assert_page(&answer, 503, &format!("`{endpoint}` is not an `https` URL"));
    }
}

#[test]
fn the_log_in_page_knows_of_the_provider_only_if_there_is_one() {
    let provider = ScriptedProvider::start();
    let (_gateway, port) = node(&provider);
    let hint = |port: u16| {
        let answer = Person::at(port).browser.ask(port, "GET", "/weir/v1/session/hint");
        serde_json::from_str::<Value>(&answer.text()).expect("JSON")
    };
    let console = format!("http://127.0.0.1:{port}/console/");
    assert_eq!(hint(port)["oidc"], json!({ "name": "Example SSO", "console": console }));
    assert!(provider.origin.requests().is_empty(), "a hint sends no request");
    let without = weir().start(&file());
    let port = crate::api::admin_addr(&without).port();
    assert_eq!(hint(port).get("oidc"), None);
    for target in [&Person::at(port).begins_at(), CALLBACK] {
        assert_eq!(Person::at(port).browser.ask(port, "GET", target).status, 401, "a path like any other");
    }
    let answer = Person::at(port).redeem();
    assert_eq!(answer.status, 400, "{}", answer.text());
}
