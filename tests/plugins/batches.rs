//! `batch-requests`: several requests in one, served by the gateway itself.

use serde_json::{Value, json};
use weir_testkit::{Answer, DEADLINE, Gate, Gateway, Origin, Reading, Response, eventually};

/// Requests of a batch may name another host.
const OTHER_HOSTS: &str = "plugin_metadata: [{ id: batch-requests, other_hosts: true }]\n";

/// Routes behind a batch. The origin answers with what it has received.
struct Site {
    gateway: Gateway,
    origin: Origin,
}

impl Site {
    fn with(settings: &str) -> Site {
        Site::before(
            settings,
            Origin::serving(|request| match request.target.split('?').next().unwrap_or_default() {
                "/binary" => Answer::with(200, "", [0xff, 0]),
                "/large" => Answer::ok("x".repeat(5000)),
                "/fields" => Answer::with(201, "X-A: 1\r\nX-A: 2\r\nSet-Cookie: a=1; HttpOnly\r\n", ""),
                _ => {
                    let field = |name: &str| request.headers.get(name).unwrap_or("-").to_owned();
                    let (host, label, body) = (field("host"), field("x-label"), request.body.escape_ascii());
                    Answer::ok(format!("{} {host}{} {label} {body}", request.method, request.target))
                }
            }),
        )
    }

    fn before(settings: &str, origin: Origin) -> Site {
        let upstream = format!("upstream: {{ nodes: {{ '{}': 1 }} }}", origin.addr());
        let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
            "{settings}
consumers: [{{ username: ann, plugins: {{ key-auth: {{ key: secret }} }} }}]
routes:
  - {{ id: batch, uri: /batch, plugins: {{ batch-requests: {{}} }} }}
  - {{ id: api, uri: /apisix/batch-requests, plugins: {{ public-api: {{}} }} }}
  - {{ id: keyed, uri: /keyed, plugins: {{ key-auth: {{}} }}, {upstream} }}
  - {{ id: counted, uri: /counted, plugins: {{ limit-count: {{ count: 2, time_window: 600, key: remote_addr }} }}, {upstream} }}
  - {{ id: near, uri: /near, plugins: {{ ip-restriction: {{ whitelist: [127.0.0.0/8] }} }}, {upstream} }}
  - {{ id: far, uri: /far, plugins: {{ ip-restriction: {{ whitelist: [10.0.0.0/8] }} }}, {upstream} }}
  - {{ id: checked, uri: /checked, plugins: {{ json-threat-protection: {{ max_depth: 2 }} }}, {upstream} }}
  - {{ id: told, uri: /told, plugins: {{ real-ip: {{ source: http_cf_connecting_ip, trusted_addresses: [127.0.0.1] }} }}, {upstream} }}
  - {{ id: all, uri: /*, {upstream} }}
"
        ));
        Site { gateway, origin }
    }

    fn post(&self, fields: &str, batch: &Value) -> Response {
        self.post_to("/batch", fields, batch)
    }

    fn post_to(&self, path: &str, fields: &str, batch: &Value) -> Response {
        let body = batch.to_string();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: t\r\n{fields}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.gateway.client().ask(request).expect("an answer")
    }

    /// The responses to the requests of a batch.
    fn responses(&self, fields: &str, pipeline: Value) -> Vec<Value> {
        list(&self.post(fields, &json!({ "pipeline": pipeline })))
    }
}

fn list(answer: &Response) -> Vec<Value> {
    assert_eq!((answer.status, answer.headers.get("content-type")), (200, Some("application/json")));
    serde_json::from_str(&answer.text()).expect("a list of responses")
}

fn statuses(responses: &[Value]) -> Vec<u64> {
    responses.iter().map(|response| response["status"].as_u64().expect("a status")).collect()
}

#[test]
fn batch_of_requests_is_answered_in_their_order() {
    let site = Site::with(OTHER_HOSTS);
    let batch = json!({
        "query": {"q": "1 2"},
        "headers": {"X-Label": "common"},
        "pipeline": [
            {"path": "/a"},
            {"method": "POST", "path": "/b?r=1", "query": {"q": "own"}, "headers": {"X-Label": "own", "Host": "other"}, "body": "hi"},
            {"path": "/fields"},
            {"path": "/binary"},
            {"method": "HEAD", "path": "/c"},
            {"path": "/a/../d"},
        ],
    });
    let responses = list(&site.post("", &batch));
    assert_eq!(statuses(&responses), [200, 200, 201, 200, 200, 200]);
    assert_eq!((&responses[0]["reason"], &responses[0]["body"]), (&json!("OK"), &json!("GET t/a?q=1%202 common ")));
    assert_eq!(responses[1]["body"], "POST other/b?r=1&q=own own hi");
    let fields = &responses[2]["headers"];
    assert_eq!((&fields["x-a"], fields.get("set-cookie")), (&json!(["1", "2"]), None));
    assert_eq!((&responses[3]["body_base64"], responses[3].get("body")), (&json!("/wA="), None));
    assert_eq!(responses[4]["body"], "");
    assert_eq!(responses[5]["body"], "GET t/d?q=1%202 common ");
    assert_eq!(list(&site.post_to("/apisix/batch-requests", "", &batch)).len(), 6);
}

#[test]
fn batch_of_requests_runs_all_plugins_for_the_client() {
    let site = Site::with("");
    let keyed = json!([
        {"path": "/keyed"},
        {"path": "/keyed", "headers": {"apikey": "wrong"}},
        {"path": "/near"},
        {"path": "/far"},
        {"method": "POST", "path": "/checked", "body": "[[[1]]]"},
        {"method": "POST", "path": "/checked", "body": "[[1]]"},
    ]);
    assert_eq!(statuses(&site.responses("apikey: secret\r\n", keyed)), [200, 401, 200, 403, 400, 200]);
    let counted = json!([{"path": "/counted"}, {"path": "/counted"}, {"path": "/counted"}]);
    assert_eq!(statuses(&site.responses("", counted)), [200, 200, 503]);
    assert_eq!(site.gateway.get("/counted").status, 503, "the count is that of the client");
}

#[test]
fn batch_of_requests_reaches_what_the_client_could_reach_and_no_more() {
    let site = Site::with("");
    let pipeline = json!([
        {"path": "/a b"},
        {"method": "get", "path": "/a"},
        {"method": "GET /", "path": "/a"},
        {"path": "/a", "headers": {"X-Label": "x\r\nX-Other: 1"}},
        {"path": "/a", "headers": {"Transfer-Encoding": "chunked", "X-Consumer-Username": "root"}},
        {"method": "POST", "path": "/batch", "headers": {"Content-Type": "application/json"}, "body": "{\"pipeline\": [{\"path\": \"/a\"}]}"},
        {"path": "/after"},
    ]);
    let responses = site.responses("", pipeline);
    assert_eq!(statuses(&responses), [400, 400, 400, 400, 200, 400, 200]);
    assert_eq!(responses[5]["body"], "{\"error_msg\":\"a batch cannot contain a batch\"}\n");
    assert_eq!(site.origin.targets(), ["/a", "/after"]);
    assert!(site.origin.requests().iter().all(|request| !request.headers.has("x-consumer-username")));
}

#[test]
fn batch_of_requests_cannot_forge_what_proxies_tell_about_the_client() {
    let site = Site::with(&format!("trusted_addresses: [127.0.0.1]\n{OTHER_HOSTS}"));
    let forged = json!({"X-Forwarded-For": "6.6.6.6", "x_forwarded_for": "6.6.6.6", "X-Real-IP": "6.6.6.6", "Forwarded": "for=6.6.6.6",
        "X-Forwarded-Proto": "https", "X-Forwarded-Host": "evil", "X-Forwarded-User": "root", "X-Original-URL": "/admin",
        "CF-Connecting-IP": "6.6.6.6"});
    let told = "X-Forwarded-For: 9.9.9.9\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: shop\r\nCF-Connecting-IP: 9.9.9.9\r\n";
    for batch in [
        json!({"headers": forged, "pipeline": [{"path": "/told"}]}),
        json!({"pipeline": [{"path": "/told", "headers": forged}]}),
        json!({"headers": {"Host": "other"}, "pipeline": [{"path": "/told", "headers": forged}]}),
    ] {
        site.origin.forget();
        assert_eq!(statuses(&list(&site.post(told, &batch))), [200]);
        let requests = site.origin.requests();
        let received = |name: &str| requests[0].headers.get(name).unwrap_or("-").to_owned();
        assert_eq!(received("x-forwarded-for"), "9.9.9.9, 127.0.0.1");
        assert_eq!((received("x-real-ip"), received("x-forwarded-host")), ("9.9.9.9".to_owned(), "shop".to_owned()));
        assert_eq!(received("x-forwarded-proto"), "http");
        for name in ["x_forwarded_for", "forwarded", "x-forwarded-user", "x-original-url"] {
            assert_eq!(received(name), "-", "{name}");
        }
    }
}

#[test]
fn batch_of_requests_has_the_address_that_a_balancer_tells() {
    let site = Site::with(
        "global_rules: [{ id: 1, plugins: { real-ip: { source: http_x_forwarded_for, trusted_addresses: [127.0.0.1] } } }]\n",
    );
    let pipeline =
        json!([{"path": "/near"}, {"path": "/far"}, {"path": "/far", "headers": {"X-Forwarded-For": "127.0.0.1"}}]);
    assert_eq!(statuses(&site.responses("X-Forwarded-For: 10.1.1.1\r\n", pipeline.clone())), [403, 200, 200]);
    assert_eq!(statuses(&site.responses("X-Forwarded-For: 127.0.0.1\r\n", pipeline)), [200, 403, 403]);
}

#[test]
fn batch_of_requests_sends_credentials_to_the_host_they_are_for() {
    let site = Site::with(OTHER_HOSTS);
    let pipeline = json!([{"path": "/a"}, {"path": "/b", "headers": {"Host": "other"}}]);
    let fields = "Cookie: a=1\r\nAuthorization: Bearer x\r\napikey: k\r\nOrigin: https://page\r\n";
    assert_eq!(statuses(&site.responses(fields, pipeline)), [200, 200]);
    let seen = |name: &str| site.origin.requests().iter().map(|request| request.headers.has(name)).collect::<Vec<_>>();
    for name in ["cookie", "authorization", "apikey"] {
        assert_eq!(seen(name), [true, false], "{name}");
    }
    assert_eq!(seen("origin"), [true, true]);
}

#[test]
fn batch_of_requests_does_not_reach_other_hosts() {
    let site = Site::with("");
    let pipeline = json!([{"path": "/a"}, {"path": "/b", "headers": {"Host": "other"}}, {"path": "/c"}]);
    let responses = site.responses("", pipeline);
    assert_eq!(statuses(&responses), [200, 403, 200]);
    assert_eq!(responses[1]["reason"], "it names another `Host` than the batch");
    assert_eq!(site.origin.targets(), ["/a", "/c"]);
}

#[test]
fn batch_of_requests_is_recorded_without_its_body() {
    let site = Site::with(
        "enable_access_log: false\nglobal_rules: [{ id: 1, plugins: { file-logger: { path: batch.log, include_req_body: true, include_resp_body: true } } }]\n",
    );
    let pipeline = json!([{"method": "POST", "path": "/a", "body": "own body"}]);
    assert_eq!(statuses(&site.responses("", pipeline)), [200]);
    let records = || -> Vec<Value> {
        let text = std::fs::read_to_string(site.gateway.directory().join("batch.log")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    eventually("both have a record", DEADLINE, || records().len() == 2);
    let bodies: Vec<_> = records().iter().map(|record| record["request"]["body"].clone()).collect();
    assert!(bodies.contains(&json!("own body")) && bodies.contains(&Value::Null), "{bodies:?}");
}

#[test]
fn batch_of_requests_passes_on_nothing_that_the_gateway_has_added() {
    let site = Site::with(
        "global_rules: [{ id: 1, plugins: { request-id: { include_in_response: false } } }]\n\
         plugin_metadata: [{ id: batch-requests, protected_headers: [CF-Connecting-IP] }]\n",
    );
    let pipeline = json!([{"path": "/a"}, {"path": "/b", "headers": {"cf-connecting-ip": "6.6.6.6"}}]);
    site.responses("CF-Connecting-IP: 9.9.9.9\r\n", pipeline);
    let requests = site.origin.requests();
    let ids: Vec<_> = requests.iter().filter_map(|request| request.headers.get("x-request-id")).collect();
    assert!(ids.len() == 2 && ids[0] != ids[1], "{ids:?}");
    assert!(requests.iter().all(|request| request.headers.get("cf-connecting-ip") == Some("9.9.9.9")));
}

#[test]
fn batch_of_requests_ends_with_its_client() {
    let gate = Gate::new();
    let arrived = gate.clone();
    let origin = Origin::scripted(Reading::Strict, move |connection| {
        connection.request().expect("a request");
        arrived.open();
        connection.wait_gone();
    });
    let site = Site::before("", origin);
    let body =
        json!({"pipeline": [{"method": "POST", "path": "/slow", "body": "x".repeat(10_000)}, {"path": "/after"}]})
            .to_string();
    let mut client = site.gateway.client();
    let head = "POST /batch HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n";
    client.send(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()));
    site.origin.wait_requests(1);
    assert!(site.gateway.metrics().get("weir_held_content_bytes").is_some_and(|bytes| bytes >= 10_000.0));
    client.reset();
    eventually("the origin's connection is closed, and nothing is held", DEADLINE, || {
        let held = site.gateway.metrics().get("weir_held_content_bytes");
        site.origin.open_connections() == 0 && held == Some(0.0)
    });
    assert_eq!(site.origin.targets(), ["/slow"]);
}

#[test]
fn batch_of_requests_has_bounds() {
    let metadata = "plugin_metadata: [{ id: batch-requests, max_pipeline_items: 3, max_body_size: 1000, max_response_size: 4000, max_total_response_size: 100 }]\n";
    let site = Site::with(metadata);
    let four = json!({"pipeline": [{"path": "/a"}, {"path": "/a"}, {"path": "/a"}, {"path": "/a"}]});
    let answer = site.post("", &four);
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("`pipeline` has more than 3 requests"), "{}", answer.text());
    assert_eq!(site.post("", &json!({"pipeline": [{"path": "/a", "body": "x".repeat(1000)}]})).status, 413);
    assert_eq!(site.post("", &json!({"pipeline": []})).status, 400);
    assert_eq!(site.gateway.get("/batch").status, 405);
    assert_eq!(site.origin.requests(), []);
    let responses = site.responses("", json!([{"path": "/large"}, {"path": "/a"}]));
    assert_eq!(statuses(&responses), [502, 200]);
    assert_eq!(responses[0]["reason"], "the response is larger than `max_response_size`");
    let responses = site.responses("", json!([{"path": "/a"}, {"path": "/a"}, {"path": "/a"}]));
    assert_eq!(statuses(&responses)[2], 503);
    assert_eq!(responses[2]["reason"], "the responses before are larger than `max_total_response_size`");
    let form = "POST /batch HTTP/1.1\r\nHost: t\r\nContent-Type: text/plain\r\nContent-Length: 33\r\n\r\n{\"pipeline\": [{\"path\": \"/form\"}]}";
    assert_eq!(site.gateway.client().ask(form).expect("an answer").status, 415);
    assert!(!site.origin.targets().contains(&"/form".to_owned()));
}

#[test]
fn batch_of_requests_ends_in_its_time() {
    let gate = Gate::new();
    let closed = gate.clone();
    let origin = Origin::serving(move |request| {
        if request.target == "/slow" {
            closed.wait();
        }
        Answer::ok("ok")
    });
    let site = Site::before("", origin);
    let answer = site.post("", &json!({ "timeout": 300, "pipeline": [{"path": "/slow"}, {"path": "/after"}] }));
    gate.open();
    assert_eq!(statuses(&list(&answer)), [504, 504]);
    assert!(!site.origin.targets().contains(&"/after".to_owned()));
}
