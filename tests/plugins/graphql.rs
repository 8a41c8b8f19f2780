//! Plugins for GraphQL upstreams.

use serde_json::{Value, json};
use weir_testkit::{Answer, Gateway, Origin};

use crate::Rig;

fn post(content_type: &str, body: &str) -> String {
    format!(
        "POST /a HTTP/1.1\r\nHost: t\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn graphql_queries_are_made_of_rest_requests() {
    let rig = Rig::with(
        "{ degraphql: { query: 'query Q($id: Int) { person(id: $id) { name } }', variables: [id], operation_name: Q },
           proxy-rewrite: { uri: /graphql } }",
    );
    let mut client = rig.gateway.client();
    assert_eq!(client.get("/people?id=7&other=1").expect("an answer").status, 200);
    // A query of the client's own goes nowhere.
    let posted = post("text/plain", "{\"id\": 8, \"other\": 1}").replacen("/a", "/a?query=%7Bb%7D", 1);
    assert_eq!(client.ask(posted).expect("an answer").status, 200);
    assert_eq!(client.ask(post("text/plain", "[]")).expect("an answer").status, 400);
    assert_eq!(client.ask("POST /a HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer").status, 400);
    let with_body = "GET /a HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}";
    assert_eq!(client.ask(with_body).expect("an answer").status, 400);
    assert_eq!(client.ask("DELETE /a HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer").status, 405);
    let requests = rig.origin.requests();
    assert_eq!(
        requests[0].target,
        "/graphql?query=query%20Q%28%24id%3A%20Int%29%20%7B%20person%28id%3A%20%24id%29%20%7B%20name%20%7D%20%7D\
         &variables=%7B%22id%22%3A7%7D&operationName=Q"
    );
    let body: Value = serde_json::from_slice(&requests[1].body).expect("JSON");
    let query = "query Q($id: Int) { person(id: $id) { name } }";
    assert_eq!(body, json!({"query": query, "variables": {"id": 8}, "operationName": "Q"}));
    assert_eq!(
        (requests[1].target.as_str(), requests[1].headers.get("content-type")),
        ("/graphql", Some("application/json"))
    );
    assert_eq!(requests[1].headers.get("content-length"), Some(requests[1].body.len().to_string().as_str()));
    assert_eq!(requests.len(), 2);
}

#[test]
fn graphql_queries_without_variables_need_no_content_and_keep_the_connection() {
    let origin = Origin::serving(|request| Answer::ok(&request.body));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:
  - {{ uri: /*, upstream: {{ nodes: {{ '{0}': 1 }} }}, plugins: {{ degraphql: {{ query: '{{ people {{ name }} }}' }} }} }}
  - {{ uri: /limited, upstream: {{ nodes: {{ '{0}': 1 }} }}, plugins: {{
        degraphql: {{ query: '{{a}}', _meta: {{ priority: 5000 }} }}, ip-restriction: {{ blacklist: [127.0.0.1], _meta: {{ priority: 10 }} }} }} }}
  - {{ uri: /seen, upstream: {{ nodes: {{ '{0}': 1 }} }}, plugins: {{ degraphql: {{ query: '{{a}}' }}, json-threat-protection: {{}} }} }}
",
        origin.addr()
    ));
    let mut client = gateway.client();
    for request in ["POST /a HTTP/1.1\r\nHost: t\r\n\r\n", "POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n"] {
        let answer = client.ask(request).expect("on the same connection");
        assert_eq!((answer.status, answer.text().as_str()), (200, "{\"query\":\"{ people { name } }\"}"));
    }
    assert_eq!(
        client.ask(post("text/plain", "ignored")).expect("an answer").text(),
        "{\"query\":\"{ people { name } }\"}"
    );
    // Refused after the plugin has made content: what follows on the connection is the next request.
    let refused = client.ask("POST /limited HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer");
    assert_eq!((refused.status, refused.closes()), (403, false));
    assert_eq!(client.ask("POST /seen HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer").text(), "{\"query\":\"{a}\"}");
}

#[test]
fn graphql_queries_beyond_their_bounds_reach_no_upstream() {
    let rig = Rig::with("{ graphql-threat-protection: { max_depth: 2, max_cost: 100, introspection: false } }");
    let mut client = rig.gateway.client();
    let mut ask = |query: &str| {
        let answer = client.ask(post("application/json", &json!({ "query": query }).to_string())).expect("an answer");
        (answer.status, answer.text())
    };
    assert_eq!(ask("{a {b}}").0, 200);
    let refused =
        (400, "{\"errors\":[{\"message\":\"The depth of the query is 3, and at most 2 is allowed\"}]}\n".to_owned());
    assert_eq!(ask("{a {...F}} fragment F on T {b {c}}"), refused);
    assert_eq!(ask("{a(first: 1000) {b}}").0, 400);
    assert_eq!(ask("{__schema {types}}").0, 400);
    assert_eq!(client.ask(post("text/plain", "{a}")).expect("an answer").status, 415);
    assert_eq!(rig.gateway.get("/graphql?query=%7Ba%7Bb%7Bc%7D%7D%7D").status, 400);
    assert_eq!(rig.gateway.get("/graphql?query=%7Ba%7D").status, 200);
    assert_eq!(rig.origin.requests().len(), 2);
}
