//! Keys land where nginx puts them.

use weir_testkit::{Answer, Client, DEADLINE, Nginx, Origin, eventually, skipped};

use crate::{named, one_route, weir};

#[test]
fn chash_places_keys_as_nginx_does() {
    let origins: Vec<Origin> = (0..5).map(|number| named(number.to_string())).collect();
    let weights = [1, 2, 1, 3, 1];
    let weighted = |format: &dyn Fn(&Origin, u32) -> String, separator: &str| {
        let all: Vec<String> = origins.iter().zip(weights).map(|(origin, weight)| format(origin, weight)).collect();
        all.join(separator)
    };
    let servers = weighted(&|origin, weight| format!("server {} weight={weight};", origin.addr()), " ");
    let http = |port| {
        format!(
            "upstream backend {{ hash $arg_k consistent; {servers} }}\n\
             server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://backend; }} }}"
        )
    };
    let Some(nginx) = Nginx::start(http) else {
        skipped("there is no nginx");
        return;
    };
    let nodes = weighted(&|origin, weight| format!("\"{}\": {weight}", origin.addr()), ", ");
    let gateway = weir()
        .start(&format!("routes:\n  - uri: /*\n    upstream: {{ type: chash, key: arg_k, nodes: {{ {nodes} }} }}\n"));
    let mut ours = gateway.client();
    let mut seen = [0; 5];
    for key in 0..1_000 {
        let target = format!("/?k=key-{key}");
        let expected = Client::connect(nginx.addr()).get(&target).expect("nginx answers").text();
        assert_eq!(ours.get(&target).expect("an answer").text(), expected, "{target}");
        seen[expected.parse::<usize>().expect("a number")] += 1;
    }
    assert!(seen.iter().all(|&count| count > 50), "{seen:?}");
}

#[test]
fn requests_are_told_apart_by_what_hash_on_names() {
    let origins: Vec<Origin> = (0..8).map(|number| named(number.to_string())).collect();
    for (balance, of_one, of_another) in [
        ("type: chash, hash_on: header, key: X-User", "X-User: a", "X-User: "),
        ("type: chash, hash_on: cookie, key: sid", "Cookie: x=1; sid=a", "Cookie: x=1; sid="),
        ("type: chash, hash_on: vars_combinations, key: \"$http_a$http_b\"", "A: a", "B: "),
    ] {
        let gateway = weir().start(&one_route(&origins, balance));
        let mut client = gateway.client();
        let mut ask = |field: String| {
            let request = format!("GET / HTTP/1.1\r\nHost: t\r\n{field}\r\n\r\n");
            client.ask(request).expect("an answer").text()
        };
        let first = ask(of_one.to_owned());
        assert!((0..20).all(|_| ask(of_one.to_owned()) == first), "{balance}: one key has moved");
        let others: std::collections::HashSet<String> =
            (0..60).map(|number| ask(format!("{of_another}{number}"))).collect();
        assert!(others.len() >= 6, "{balance}: sixty keys met {others:?}");
    }
}

#[test]
fn ip_hash_keeps_a_client_with_its_endpoint() {
    let origins: Vec<Origin> = (0..4).map(|number| named(number.to_string())).collect();
    let gateway = weir().start(&one_route(&origins, "type: ip_hash"));
    let first = gateway.get("/").text();
    assert!((0..20).all(|_| gateway.get("/").text() == first));
}

#[test]
fn least_conn_goes_by_what_is_in_flight() {
    use weir_testkit::{Answer, Gate, Reading};
    let gate = Gate::new();
    let busy = Origin::reading(Reading::Strict, {
        let gate = gate.clone();
        move |_| {
            gate.wait();
            Answer::ok("busy")
        }
    });
    let origins = [busy, named("idle")];
    let gateway = weir().start(&one_route(&origins, "type: least_conn"));
    let mut waiting = Vec::new();
    // Ties are broken by lot, so that the busy one gets its first request soon.
    while origins[0].requests().is_empty() {
        let mut client = gateway.client();
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        let reached = || origins[0].requests().len() + origins[1].requests().len() > waiting.len();
        eventually("the request has arrived", DEADLINE, reached);
        if origins[0].requests().is_empty() {
            assert_eq!(client.response().expect("an answer").text(), "idle");
        }
        waiting.push(client);
    }
    // The busy one alone: where both had one in flight, it would be by lot again.
    let busy = || gateway.metrics().sum("weir_upstream_connections", &["state=\"busy\""]);
    eventually("one request is in flight", DEADLINE, || busy() == 1.0);
    let mut client = gateway.client();
    for _ in 0..50 {
        assert_eq!(client.get("/").expect("an answer").text(), "idle");
    }
    gate.open();
}

#[test]
fn a_response_goes_to_the_client_where_no_other_endpoint_takes_requests() {
    let (own, drained) = (Origin::serving(|_| Answer::status(404, "its own")), named("drained"));
    let other = Origin::serving(|_| Answer::status(404, "its own"));
    let route = |uri: &str, nodes: &str| {
        format!("  - uri: {uri}\n    upstream: {{ retry_on: [http_404], retry_budget: 1000, nodes: {{ {nodes} }} }}\n")
    };
    let gateway = weir().start(&format!(
        "routes:\n{}{}",
        route("/drained", &format!("\"{}\": 1, \"{}\": 0", own.addr(), drained.addr())),
        route("/both", &format!("\"{}\": 1, \"{}\": 1", own.addr(), other.addr())),
    ));
    for (target, most) in [("/drained", 1), ("/both", 2)] {
        let before = own.requests().len() + other.requests().len();
        let response = gateway.get(target);
        assert_eq!((response.status, response.text().as_str()), (404, "its own"), "{target}");
        assert_eq!(own.requests().len() + other.requests().len() - before, most, "{target}");
    }
}
