//! `skywalking`: the context that upstreams get, and the segments that the OAP server gets.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use weir_testkit::{Answer, DEADLINE, Gateway, Origin, Reading, Request, eventually};

/// A caller's context: of trace `a.b.c`, segment `d.e.f`, span 3.
const CALLER: &str = "1-YS5iLmM=-ZC5lLmY=-3-c2hvcA==-c2hvcC0x-L29yZGVycw==-MTAuMC4wLjE6ODA=";

fn gateway(nodes: &str, server: &Origin, options: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:
  - id: traced
    uri: /a/*
    plugins: {{ skywalking: {{ endpoint_addr: \"http://{}/\", service_name: front, service_instance_name: front-1{options} }} }}
    upstream: {{ type: roundrobin, nodes: {{ {nodes} }} }}
",
        server.addr()
    ))
}

fn server() -> Origin {
    Origin::serving(|_| Answer::with(200, "Content-Type: application/json\r\n", "[]"))
}

/// The segments of all requests to the server.
fn segments(requests: &[Request]) -> Vec<Value> {
    let lists = requests.iter().map(|request| {
        assert_eq!((&*request.method, &*request.target), ("POST", "/v3/segments"));
        assert_eq!(request.headers.get("content-type"), Some("application/json"));
        serde_json::from_slice::<Vec<Value>>(&request.body).expect("a list")
    });
    lists.flatten().collect()
}

/// The parts of the context that an upstream has got, decoded.
fn context(request: &Request) -> Vec<String> {
    let field = request.headers.get("sw8").expect("the upstream is told").to_owned();
    let part = |(index, part): (usize, &str)| match index {
        0 | 3 => part.to_owned(),
        _ => String::from_utf8(STANDARD.decode(part).expect("base64")).expect("text"),
    };
    field.split('-').enumerate().map(part).collect()
}

#[test]
fn trace_of_a_caller_goes_on_and_each_attempt_has_a_span() {
    let asked = Arc::new(AtomicUsize::new(0));
    let origins = [(); 2].map(|()| {
        let asked = Arc::clone(&asked);
        Origin::scripted(Reading::Strict, move |connection| {
            while connection.request().is_ok() {
                if asked.fetch_add(1, Ordering::SeqCst) == 0
                    || connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err()
                {
                    return;
                }
            }
        })
    });
    let server = server();
    let nodes = format!("\"{}\": 1, \"{}\": 1", origins[0].addr(), origins[1].addr());
    let gateway = gateway(&nodes, &server, "");
    let request = format!("GET /a/b?token=s3cret HTTP/1.1\r\nHost: t\r\nsw8: {CALLER}\r\nCookie: a=s3cret\r\n\r\n");
    assert_eq!(gateway.client().ask(request).expect("an answer").status, 200);
    server.wait_requests(1);
    assert!(!server.raw_text().contains("s3cret"));
    let [segment] = &segments(&server.requests())[..] else { panic!("one segment") };
    for (name, value) in [("traceId", "a.b.c"), ("service", "front"), ("serviceInstance", "front-1")] {
        assert_eq!(segment[name], json!(value), "{name}");
    }
    let spans = segment["spans"].as_array().expect("a list");
    let said: Vec<_> = spans
        .iter()
        .map(|span| {
            [&span["spanType"], &span["spanId"], &span["parentSpanId"], &span["isError"]]
                .map(Value::to_string)
                .join(" ")
        })
        .collect();
    assert_eq!(said, ["\"Entry\" 0 -1 false", "\"Exit\" 1 0 true", "\"Exit\" 2 0 false"]);
    assert_eq!(spans[0]["operationName"], json!("GET /a/*"));
    let reference = json!({
        "refType": "CrossProcess", "traceId": "a.b.c", "parentTraceSegmentId": "d.e.f", "parentSpanId": 3,
        "parentService": "shop", "parentServiceInstance": "shop-1", "parentEndpoint": "/orders",
        "networkAddressUsedAtPeer": "10.0.0.1:80",
    });
    assert_eq!((&spans[0]["refs"], &spans[1]["refs"]), (&json!([reference]), &Value::Null));
    let status = json!({"key": "http.status_code", "value": "200"});
    assert!(spans[0]["tags"].as_array().is_some_and(|tags| tags.contains(&status)), "{segment:#}");
    assert!(spans.iter().all(|span| span["startTime"].as_u64() <= span["endTime"].as_u64()));
    let mut told: Vec<_> = origins.iter().flat_map(Origin::requests).map(|request| context(&request)).collect();
    told.sort();
    let id = segment["traceSegmentId"].as_str().expect("an id");
    assert_eq!(told.len(), 2, "both attempts were told");
    for (span, told) in ["1", "2"].into_iter().zip(told) {
        assert_eq!(told, ["1", "a.b.c", id, span, "front", "front-1", "GET /a/*", "upstream of traced"]);
    }
    assert_eq!(spans[1]["peer"], json!("upstream of traced"));
}

#[test]
fn a_trace_begins_here_by_either_protocol_unless_the_caller_decides_otherwise() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let server = server();
    let gateway = gateway(&format!("\"{}\": 1", origin.addr()), &server, "");
    let mut expected = Vec::new();
    for mut client in [gateway.client(), gateway.client().by_http2()] {
        origin.forget();
        let unsampled = format!("GET /a/b HTTP/1.1\r\nHost: t\r\nsw8: 0{}\r\n\r\n", &CALLER[1..]);
        assert_eq!(client.ask(unsampled).expect("an answer").status, 200);
        let passed = origin.wait_requests(1).remove(0);
        assert_eq!(passed.headers.get("sw8"), Some(&*format!("0{}", &CALLER[1..])));
        for field in ["", "sw8: nonsense\r\n"] {
            let request = format!("GET /a/b HTTP/1.1\r\nHost: t\r\n{field}\r\n");
            assert_eq!(client.ask(request).expect("an answer").status, 200);
            let told = context(origin.requests().last().expect("it was forwarded"));
            expected.push((told[1].clone(), told[2].clone()));
        }
    }
    let ids = |segment: &Value| {
        ["traceId", "traceSegmentId"].map(|name| segment[name].as_str().unwrap_or_default().to_owned())
    };
    eventually("the server has all segments", DEADLINE, || segments(&server.requests()).len() == 4);
    let mut found: Vec<_> =
        segments(&server.requests()).iter().map(ids).map(|[trace, segment]| (trace, segment)).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

/// The server answers with 500 to a list with one segment that it cannot read, and takes none of the list.
#[test]
fn one_segment_that_the_server_refuses_does_not_stop_the_others() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let (refused, taken) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (seen, kept) = (Arc::clone(&refused), Arc::clone(&taken));
    let server = Origin::serving(move |request| {
        let ids: Vec<_> = segments(std::slice::from_ref(request)).iter().map(|own| own["traceId"].clone()).collect();
        if ids.contains(&json!("a.b.c")) {
            seen.fetch_add(1, Ordering::SeqCst);
            return Answer::with(500, "", "not an int32");
        }
        kept.lock().expect("no panic").extend(ids);
        Answer::with(200, "Content-Type: application/json\r\n", "[]")
    });
    let gateway = gateway(&format!("\"{}\": 1", origin.addr()), &server, "");
    let mut client = gateway.client();
    for field in ["", "", CALLER, ""] {
        let field = if field.is_empty() { String::new() } else { format!("sw8: {field}\r\n") };
        let request = format!("GET /a/b HTTP/1.1\r\nHost: t\r\n{field}\r\n");
        assert_eq!(client.ask(request).expect("an answer").status, 200);
    }
    eventually("the server has the other segments", DEADLINE, || taken.lock().expect("no panic").len() == 3);
    assert!(refused.load(Ordering::SeqCst) > 0, "it has refused the one");
}
