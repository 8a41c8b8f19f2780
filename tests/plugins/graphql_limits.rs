//! `graphql-limit-count`: queries are counted by their costs.

use serde_json::json;
use weir_testkit::{Client, Gateway, Response};

use crate::redis::Redis;
use crate::{Rig, refused};

/// A client by HTTP/1.1, and one by HTTP/2.
fn clients(gateway: &Gateway) -> [Client; 2] {
    [gateway.client(), gateway.client().by_http2()]
}

fn post(client: &mut Client, kind: &str, body: &str) -> Response {
    let head = "POST /graphql HTTP/1.1\r\nHost: t";
    let request = format!("{head}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    client.ask(request).expect("an answer")
}

/// The status of the answer to a query, and how much is left.
fn asked(client: &mut Client, query: &str) -> (u16, Option<u64>) {
    let answer = post(client, "application/json", &json!({"query": query, "variables": {"n": 4}}).to_string());
    (answer.status, answer.headers.get("x-ratelimit-remaining").and_then(|left| left.parse().ok()))
}

#[test]
fn depths_of_queries_are_added_up() {
    let limit = "{ graphql-limit-count: { count: 20, time_window: 600, rejected_code: 429, rejected_msg: enough } }";
    let rig = Rig::with(limit);
    let [mut first, mut second] = clients(&rig.gateway);
    assert_eq!(asked(&mut first, "{a {b {c {d}}} e}"), (200, Some(16)));
    assert_eq!(asked(&mut second, "query A {a} query B {...F} fragment F on T {b {c}}"), (200, Some(14)));
    let deep = format!("{}{}", "{a ".repeat(15), "}".repeat(15));
    assert_eq!(asked(&mut second, &deep), (429, Some(14)), "what is refused costs nothing");
    assert_eq!(post(&mut first, "application/graphql", &deep[3..deep.len() - 1]).status, 200);
    let refusal = post(&mut second, "application/graphql", "{a}");
    assert_eq!((refusal.status, refusal.text()), (429, "{\"error_msg\":\"enough\"}\n".to_owned()));
    assert!(refusal.headers.has("retry-after"));
    assert_eq!(rig.origin.requests().len(), 3);
}

#[test]
fn lengths_of_lists_count_and_one_query_has_a_limit_of_its_own() {
    let with = |options: &str| {
        Rig::with(&format!(
            "{{ graphql-limit-count: {{ count: 1000, time_window: 600, window_type: sliding, {options} }} }}"
        ))
    };
    let query = "query ($n: Int = 9) {a(first: $n) {b(limit: 10) {c}}}";
    for (options, status, left) in [
        ("cost_strategy: complexity", 200, Some(1000 - (1 + 4 * (1 + 10)))),
        ("cost_strategy: complexity, resolve_variables: false", 200, Some(1000 - (1 + 9 * (1 + 10)))),
        ("cost_strategy: complexity, list_arguments: [first]", 200, Some(1000 - (1 + 4 * (1 + 1)))),
        ("cost_strategy: node_quantifier", 200, Some(1000 - (1 + 4))),
        ("cost_strategy: complexity, score_factor: 0.1", 200, Some(1000 - 5)),
        ("cost_strategy: complexity, max_cost: 45", 200, Some(1000 - 45)),
        ("cost_strategy: complexity, max_cost: 44", 403, None),
    ] {
        let rig = with(options);
        assert_eq!(asked(&mut rig.gateway.client().by_http2(), query), (status, left), "{options}");
    }
}

#[test]
fn requests_whose_cost_cannot_be_told_are_refused() {
    let rig = Rig::with("{ graphql-limit-count: { count: 9, time_window: 600, max_body_size: 1000 } }");
    for mut client in clients(&rig.gateway) {
        assert_eq!(client.get("/graphql?query=%7Ba%7D").expect("an answer").status, 405);
        assert_eq!(post(&mut client, "text/plain", "{a}").status, 415);
        for body in ["{\"query\": \"{a\"}", "{}", "[{\"query\": \"{a}\"}]", "{\"query\": \"{a}\", \"Query\": \"{b}\"}"]
        {
            assert_eq!(post(&mut client, "application/json", body).status, 400, "{body}");
        }
        let twice = "POST /?query=%7Ba%7D HTTP/1.1\r\nHost: t\r\nContent-Type: application/graphql\r\nContent-Length: 3\r\n\r\n{a}";
        assert_eq!(client.ask(twice).expect("an answer").status, 400);
        let empty = "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(client.ask(empty).expect("an answer").status, 400);
        assert_eq!(asked(&mut client, "{...F} fragment F on T {...F}").0, 400);
        assert_eq!(post(&mut client, "application/graphql", &" ".repeat(1001)).status, 413);
    }
    assert!(rig.origin.requests().is_empty());
    assert_eq!(asked(&mut rig.gateway.client(), "{a}"), (200, Some(8)));
}

#[test]
fn gateways_with_one_server_add_up_costs_together() {
    let Some(redis) = Redis::start(&[]) else { return };
    for window in ["fixed", "sliding"] {
        let limit = format!(
            "{{ graphql-limit-count: {{ count: 10, time_window: 600, window_type: {window}, policy: redis, redis_host: 127.0.0.1, redis_port: {}, redis_timeout: 20000 }} }}",
            redis.port
        );
        let [one, other] = [Rig::with(&limit), Rig::with(&limit)];
        let deep = |depth: usize| format!("{}{}", "{a ".repeat(depth), "}".repeat(depth));
        let mut first = one.gateway.client();
        let mut second = other.gateway.client().by_http2();
        assert_eq!(asked(&mut first, &deep(11)), (503, Some(10)), "{window}");
        assert_eq!(asked(&mut first, &deep(6)), (200, Some(4)), "{window}");
        assert_eq!(asked(&mut second, &deep(5)), (503, Some(4)), "{window}");
        assert_eq!(asked(&mut second, &deep(4)), (200, Some(0)), "{window}");
        assert_eq!(asked(&mut first, "{a}"), (503, Some(0)), "{window}");
    }
}

#[test]
fn query_that_one_rule_refuses_costs_nothing_by_the_others_on_a_server() {
    let Some(redis) = Redis::start(&[]) else { return };
    for window in ["window_type: fixed", "window_type: sliding", "sync_interval: 5"] {
        let limit = format!(
            "{{ graphql-limit-count: {{ {window}, policy: redis, redis_host: 127.0.0.1, redis_port: {}, redis_timeout: 20000, rules: [\
             {{ count: 9, time_window: 600, key: a }}, {{ count: 4, time_window: 300, key: b }}] }} }}",
            redis.port
        );
        let rig = Rig::with(&limit);
        let wanted = [(5, (503, "9", "4")), (3, (200, "6", "1"))];
        for (mut client, (depth, want)) in clients(&rig.gateway).into_iter().zip(wanted) {
            let query = format!("{}{}", "{a ".repeat(depth), "}".repeat(depth));
            let answer = post(&mut client, "application/graphql", &query);
            let left = |rule: u8| answer.headers.get(&format!("x-{rule}-ratelimit-remaining")).unwrap_or_default();
            assert_eq!((answer.status, left(1), left(2)), want, "{window}");
        }
    }
}

#[test]
fn wrong_costs_are_refused_with_their_place() {
    let said = refused(
        "{ graphql-limit-count: { count: 1, time_window: 1, cost_strategy: width, score_factor: 0, unknown: 1 } }",
    );
    for place in ["cost_strategy", "score_factor", "unknown"] {
        assert!(said.contains(&format!("plugins.graphql-limit-count.{place}")), "{place}: {said}");
    }
}
