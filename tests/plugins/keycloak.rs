//! Keycloak's authorization services decide which requests pass. A stand-in answers as Keycloak does; with `WEIR_TEST_FULL` a real one
//! has to pass the same tests.

mod server;

use std::net::TcpListener;

use serde_json::Value;
use weir_testkit::{Answer, Client, Gateway, Origin};

use server::{CLIENT, KeycloakRealm, RealKeycloak, StandIn};

/// A gateway whose routes ask a realm in different ways.
fn gateway(origin: &Origin, realm: &KeycloakRealm) -> Gateway {
    let discovery = format!("discovery: \"{}/.well-known/uma2-configuration\"", realm.url);
    let plugin = |more: &str| format!("authz-keycloak: {{ {discovery}, {CLIENT}, timeout: 20000, {more} }}");
    let redirect = "access_denied_redirect_uri: \"https://shop.example/no\"";
    let routes = [
        ("stated", "/stated/*", plugin("permissions: [\"orders#DELETE\"]")),
        ("several", "/several/*", plugin("permissions: [orders, reports], http_method_as_scope: true")),
        ("unknown", "/unknown/*", plugin("permissions: [nothing]")),
        ("orders", "/orders/*", plugin("lazy_load_paths: true, http_method_as_scope: true")),
        ("reports", "/reports/*", plugin(&format!("lazy_load_paths: true, {redirect}"))),
        ("free", "/free/*", plugin("lazy_load_paths: true, policy_enforcement_mode: PERMISSIVE")),
        ("others", "/others/*", plugin("lazy_load_paths: true")),
        ("login", "/api/token", plugin("password_grant_token_generation_incoming_uri: /api/token")),
    ];
    let upstream = format!("upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }}", origin.addr());
    let route = |(id, uri, plugin): &(&str, &str, String)| {
        format!("  - {{ id: {id}, uri: \"{uri}\", plugins: {{ {plugin} }}, {upstream} }}\n")
    };
    let routes: String = routes.iter().map(route).collect();
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!("routes:\n{routes}"))
}

fn origin() -> Origin {
    Origin::serving(|request| Answer::ok(format!("{} {}", request.method, request.target)))
}

/// A client by HTTP/1.1, and one by HTTP/2.
fn clients(gateway: &Gateway) -> [Client; 2] {
    [Client::connect(gateway.addr()), Client::connect(gateway.addr()).by_http2()]
}

fn request(method: &str, path: &str, token: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {token}\r\n\r\n")
}

/// Jack buys, and Jill is a clerk: she alone deletes orders and reads reports.
fn owners_of_permissions_pass(realm: &KeycloakRealm) {
    let origin = origin();
    let gateway = gateway(&origin, realm);
    let (jack, jill) = (realm.token("jack", "jacks-word"), realm.token("jill", "jills-word"));
    for mut client in clients(&gateway) {
        for (method, path, of_jack, of_jill) in [
            ("GET", "/stated/1", 403, 200),
            ("GET", "/several/1", 200, 200),
            ("DELETE", "/several/1", 403, 200),
            ("GET", "/unknown/1", 400, 400),
            ("GET", "/orders/1?x=1", 200, 200),
            ("DELETE", "/orders/1", 403, 200),
            ("PURGE", "/orders/1", 400, 400),
            ("GET", "/reports/1", 307, 200),
            ("GET", "/reports/../orders/1", 200, 200),
            ("GET", "/orders/%2e%2e/reports/1", 307, 200),
            ("GET", "/orders/caf%C3%A9", 200, 200),
            ("GET", "/orders/1;a", 403, 403),
            ("GET", "/orders/1%3Ba", 403, 403),
            ("GET", "/others/1", 403, 403),
            ("GET", "/free/1", 200, 200),
        ] {
            for (name, token, want) in [("jack", &jack, of_jack), ("jill", &jill, of_jill)] {
                let answer = client.ask(request(method, path, token)).expect("an answer");
                assert_eq!(answer.status, want, "{name}: {method} {path}: {}", answer.text());
                match want {
                    307 => assert_eq!(answer.headers.get("location"), Some("https://shop.example/no")),
                    403 => assert!(answer.text().contains("access_denied"), "{}", answer.text()),
                    400 => assert!(answer.text().contains("invalid_"), "{}", answer.text()),
                    _ => {}
                }
            }
        }
        let forged = client.ask(request("GET", "/orders/1", "nonsense")).expect("an answer");
        assert_eq!(
            (forged.status, forged.headers.get("www-authenticate")),
            (401, Some("Bearer error=\"invalid_token\""))
        );
        let without = client.get("/orders/1").expect("an answer");
        assert_eq!((without.status, without.headers.get("www-authenticate")), (401, Some("Bearer")));
        let odd = client.ask(request("GET#DELETE", "/orders/1", &jack)).expect("an answer");
        assert_eq!(odd.status, 403, "Keycloak would read the scope `GET`");
    }
}

/// Clients get a token for a user and a password, with which they pass.
fn tokens_are_given_for_passwords(realm: &KeycloakRealm) {
    let origin = origin();
    let gateway = gateway(&origin, realm);
    for mut client in clients(&gateway) {
        let mut log_in = |form: &str| {
            let kind = "Content-Type: application/x-www-form-urlencoded";
            let length = form.len();
            let post =
                format!("POST /api/token HTTP/1.1\r\nHost: t\r\n{kind}\r\nContent-Length: {length}\r\n\r\n{form}");
            client.ask(post).expect("an answer")
        };
        let given = log_in("username=jill&password=jills-word");
        assert_eq!((given.status, given.headers.get("cache-control")), (200, Some("no-store")), "{}", given.text());
        let given: Value = serde_json::from_slice(&given.body).expect("JSON");
        assert_eq!(log_in("username=jill&password=wrong").status, 401);
        let missing = log_in("username=jill");
        assert_eq!((missing.status, missing.text()), (422, "{\"message\":\"password is missing.\"}\n".to_owned()));
        assert_eq!(log_in("").status, 422);
        let token = given["access_token"].as_str().expect("a token");
        assert_eq!(client.ask(request("DELETE", "/orders/2", token)).expect("an answer").text(), "DELETE /orders/2");
        let get = client.ask(request("GET", "/api/token", token)).expect("an answer");
        assert_eq!(get.status, 403, "it is not a login, and needs a permission");
    }
    assert!(origin.targets().iter().all(|target| target == "/orders/2"), "{:?}", origin.targets());
}

#[test]
fn owners_of_permissions_pass_over_both_protocols() {
    owners_of_permissions_pass(&StandIn::start().realm);
}

#[test]
fn tokens_are_given_for_passwords_over_both_protocols() {
    tokens_are_given_for_passwords(&StandIn::start().realm);
}

/// `body-transformer` changes the content of a login, and `traffic-label` its type, after the login was let through without a token.
#[test]
fn a_login_that_other_plugins_change_does_not_reach_the_upstream() {
    let (origin, stand_in) = (origin(), StandIn::start());
    let login = format!(
        "authz-keycloak: {{ token_endpoint: \"{}/token\", {CLIENT}, password_grant_token_generation_incoming_uri: /api/token }}",
        stand_in.realm.url
    );
    let transformer = "body-transformer: { request: { input_format: plain, template: \"{*_body*}\", content_type: application/json } }";
    let label = "traffic-label: { rules: [{ actions: [{ set_headers: { Content-Type: application/json } }] }] }";
    for other in [transformer, label] {
        let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
            "routes: [{{ id: login, uri: /api/token, plugins: {{ {login}, {other} }}, \
             upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }} }}]\n",
            origin.addr()
        ));
        for mut client in clients(&gateway) {
            let mut post = |kind: &str, form: &str| {
                let head = format!("POST /api/token HTTP/1.1\r\nHost: t\r\nContent-Type: {kind}\r\n");
                client.ask(format!("{head}Content-Length: {}\r\n\r\n{form}", form.len())).expect("an answer").status
            };
            let form = "application/x-www-form-urlencoded";
            assert_eq!(post(form, "username=jack&password=jacks-word"), 200, "{other}");
            assert_eq!(post(form, "username=jack&password=wrong"), 401, "{other}");
            assert_eq!(post(form, "a=b"), 422, "{other}");
            assert_eq!(post("application/json", "{}"), 401, "{other}");
        }
    }
    assert_eq!(origin.targets(), [""; 0]);
}

#[test]
fn a_real_keycloak_decides_as_the_stand_in_does() {
    let Some(keycloak) = RealKeycloak::start() else { return };
    owners_of_permissions_pass(&keycloak.realm);
    tokens_are_given_for_passwords(&keycloak.realm);
}

#[test]
fn the_gateways_own_token_is_kept_and_replaced_when_it_is_refused() {
    let (origin, stand_in) = (origin(), StandIn::start());
    let gateway = gateway(&origin, &stand_in.realm);
    let jack = stand_in.realm.token("jack", "jacks-word");
    let mut client = gateway.client();
    let mut ask = || client.ask(request("GET", "/orders/1", &jack)).expect("an answer").status;
    assert_eq!([ask(), ask(), ask()], [200; 3]);
    assert_eq!((stand_in.discoveries(), stand_in.own_tokens()), (1, 1));
    stand_in.forget_own_tokens();
    assert_eq!([ask(), ask()], [200; 2]);
    assert_eq!((stand_in.discoveries(), stand_in.own_tokens()), (1, 2));
    stand_in.refuse_own_tokens();
    assert_eq!([ask(), ask(), ask()], [503; 3]);
    assert!(stand_in.own_tokens() <= 4, "it is not asked again for each request");
    gateway.wait_stderr("it is said", |text| text.contains("does not accept the gateway's own token"));
}

#[test]
fn a_token_at_its_end_is_renewed_with_its_refresh_token() {
    let (origin, stand_in) = (origin(), StandIn::start());
    // Its end is at once.
    let plugin = format!(
        "authz-keycloak: {{ token_endpoint: \"{0}/token\", resource_registration_endpoint: \"{0}/resource_set\", {CLIENT}, \
         lazy_load_paths: true, access_token_expires_leeway: 300 }}",
        stand_in.realm.url
    );
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes: [{{ id: orders, uri: /*, plugins: {{ {plugin} }}, upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }} }}]\n",
        origin.addr()
    ));
    let jack = stand_in.realm.token("jack", "jacks-word");
    let mut client = gateway.client();
    let mut ask = || client.ask(request("GET", "/orders/1", &jack)).expect("an answer").status;
    assert_eq!([ask(), ask(), ask()], [200; 3]);
    assert_eq!((stand_in.own_tokens(), stand_in.refreshes(), stand_in.discoveries()), (1, 2, 0));
}

#[test]
fn without_a_decision_requests_are_refused() {
    let origin = origin();
    let gateway_at = |url: &str, timeout_ms: u32| {
        Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
            "routes: [{{ id: orders, uri: /*, plugins: {{ authz-keycloak: {{ token_endpoint: \"{url}\", {CLIENT}, permissions: [orders], \
             timeout: {timeout_ms} }} }}, upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }} }}]\n",
            origin.addr()
        ))
    };
    let status = |gateway: &Gateway| gateway.client().ask(request("GET", "/orders/1", "t")).expect("an answer").status;
    let gone = gateway_at(&format!("http://127.0.0.1:{}", weir_testkit::free_port()), 20_000);
    assert_eq!(status(&gone), 503);
    gone.wait_stderr("it is said", |text| text.contains("authz-keycloak: http://127.0.0.1"));
    assert_eq!(gone.metrics().sum("weir_policy_errors_total", &["policy=\"authz-keycloak\""]), 1.0);
    // Accepts connections and does not answer.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = format!("http://{}", silent.local_addr().expect("it is bound"));
    assert_eq!(status(&gateway_at(&silent, 300)), 503);
    for (answer, why) in [
        (Answer::with(200, "", "{}"), "no decision"),
        (Answer::with(200, "", r#"{"result":false}"#), "no decision"),
        (Answer::with(200, "", "<html>"), "no decision"),
        (Answer::with(302, "Location: /\r\n", r#"{"result":true}"#), "answers with 302"),
        (Answer::with(404, "", "no such realm"), "answers with 404"),
        (Answer::with(500, "", r#"{"result":true}"#), "answers with 500"),
    ] {
        let keycloak = Origin::serving(move |_| answer.clone());
        let gateway = gateway_at(&format!("http://{}", keycloak.addr()), 20_000);
        assert_eq!(status(&gateway), 503, "{why}");
        gateway.wait_stderr("it is said", |text| text.contains(why));
    }
    assert_eq!(origin.targets(), [""; 0]);
}
