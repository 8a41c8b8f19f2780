//! Copies of requests, and what Prometheus is told of routes.

use std::net::TcpListener;

use weir_testkit::{Answer, DEADLINE, Gateway, Origin, eventually, free_port};

fn gateway(origin: &Origin, plugins: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:
  - id: one
    name: named
    uri: /*
    plugins: {plugins}
    upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }}
",
        origin.addr()
    ))
}

fn mirrored(gateway: &Gateway, outcome: &str) -> f64 {
    gateway.metrics().sum("weir_mirrored_requests_total", &[&format!("outcome=\"{outcome}\"")])
}

#[test]
fn a_copy_is_what_the_upstream_gets() {
    let (origin, other) = (Origin::serving(|_| Answer::ok("ok")), Origin::serving(|_| Answer::status(500, "other")));
    let plugins = format!(
        "{{ proxy-mirror: {{ host: \"http://{}\" }}, proxy-rewrite: {{ regex_uri: [\"^/a/(.*)\", \"/b/$1\"], headers: {{ X-Added: \"1\" }} }} }}",
        other.addr()
    );
    let gateway = gateway(&origin, &plugins);
    let mut client = gateway.client();
    for request in [
        "GET /a/1?x=y HTTP/1.1\r\nHost: shop.example\r\n\r\n",
        "POST /a/2 HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 5\r\n\r\nhello",
        "PUT /a/3 HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3\r\n...\r\n0\r\n\r\n",
    ] {
        assert_eq!(client.ask(request).expect("an answer").text(), "ok");
    }
    let (mut copies, sent) = (other.wait_requests(3), origin.requests());
    copies.sort_by(|one, other| one.target.cmp(&other.target));
    for (copy, sent) in copies.iter().zip(&sent) {
        assert_eq!((&copy.method, &copy.target, &copy.body), (&sent.method, &sent.target, &sent.body));
        assert_eq!((copy.headers.get("host"), copy.headers.get("x-added")), (Some("shop.example"), Some("1")));
    }
    assert_eq!(copies[2].body, b"hello...");
    // Looking at a request does not change it.
    assert_eq!(sent[1].headers.get("content-length"), Some("5"));
    assert!(!sent[1].headers.has("transfer-encoding"));
    eventually("they are counted", DEADLINE, || mirrored(&gateway, "sent") == 3.0);
}

#[test]
fn copies_go_to_a_path_of_their_own_and_only_of_what_is_forwarded() {
    let (origin, other) = (Origin::serving(|_| Answer::ok("ok")), Origin::serving(|_| Answer::ok("")));
    for (more, target) in [("", "/x?a=1"), ("path_concat_mode: prefix", "/x/1?a=1")] {
        let plugins = format!(
            "{{ proxy-mirror: {{ host: \"http://{}\", path: /x, {more} }}, uri-blocker: {{ block_rules: [blocked] }} }}",
            other.addr()
        );
        let gateway = gateway(&origin, &plugins);
        assert_eq!([gateway.get("/1?blocked").status, gateway.get("/1?a=1").status], [403, 200]);
        other.wait_requests(1);
        assert_eq!(other.targets(), [target]);
        other.forget();
    }
}

#[test]
fn copies_have_the_host_that_is_set_for_them() {
    let (origin, other) = (Origin::serving(|_| Answer::ok("ok")), Origin::serving(|_| Answer::ok("")));
    let plugins = format!(
        "{{ proxy-mirror: {{ targets: [{{ host: \"http://{0}\", path: /own, host_header: \"Copies.example:81\" }}, {{ host: \"http://{0}\", path: /same }}] }} }}",
        other.addr()
    );
    let gateway = gateway(&origin, &plugins);
    let answer = gateway.client().ask("GET /1 HTTP/1.1\r\nHost: shop.example\r\n\r\n").expect("an answer");
    assert_eq!((answer.status, origin.requests()[0].headers.get("host")), (200, Some("shop.example")));
    for copy in other.wait_requests(2) {
        let host = if copy.target == "/own" { "Copies.example:81" } else { "shop.example" };
        assert_eq!(copy.headers.get("host"), Some(host), "{}", copy.target);
    }
}

#[test]
fn copies_without_content_are_sent_whatever_the_content_is() {
    let (origin, other) = (Origin::serving(|_| Answer::ok("ok")), Origin::serving(|_| Answer::ok("")));
    let plugins = format!(
        "{{ proxy-mirror: {{ targets: [{{ host: \"http://{0}\", path: /whole }}, {{ host: \"http://{0}\", path: /head, body: false }}] }} }}",
        other.addr()
    );
    let gateway = gateway(&origin, &plugins);
    // Copies with more than 1 MiB of content are dropped.
    let large = "x".repeat((1 << 20) + 1);
    for content in ["hello", &large] {
        let head = format!("POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", content.len());
        assert_eq!(gateway.client().ask(head + content).expect("an answer").status, 200);
    }
    let mut copies: Vec<_> = other.wait_requests(3).into_iter().map(|copy| (copy.target, copy.body.len())).collect();
    copies.sort();
    assert_eq!(copies, [("/head".to_owned(), 0), ("/head".to_owned(), 0), ("/whole".to_owned(), 5)]);
}

#[test]
fn failed_and_dropped_copies_do_not_affect_clients() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let gone = format!("{{ proxy-mirror: {{ host: \"http://127.0.0.1:{}\" }} }}", free_port());
    let without = gateway(&origin, &gone);
    let mut client = without.client();
    (0..20).for_each(|_| assert_eq!(client.get("/").expect("an answer").status, 200));
    eventually("they are counted", DEADLINE, || mirrored(&without, "failed") == 20.0);
    // Takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = silent.local_addr().expect("it is bound");
    let held = gateway(&origin, &format!("{{ proxy-mirror: {{ host: \"http://{address}\" }} }}"));
    let mut client = held.client();
    (0..200).for_each(|_| assert_eq!(client.get("/").expect("an answer").status, 200));
    // 128 may be under way; those that have waited for ten seconds have failed, and make room.
    eventually("they are counted", DEADLINE, || {
        let dropped = mirrored(&held, "dropped");
        dropped > 0.0 && dropped + mirrored(&held, "failed") >= 72.0
    });
    assert_eq!(mirrored(&held, "sent"), 0.0);
}

#[test]
fn u19_prometheus_sees_routes_that_ask_for_it() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let plain = gateway(&origin, "{ prometheus: {} }");
    let named = gateway(&origin, "{ prometheus: { prefer_name: true } }");
    let silent = gateway(&origin, "{}");
    for (gateway, label) in [(&plain, "route=\"one\""), (&named, "route=\"named\"")] {
        (0..3).for_each(|_| assert_eq!(gateway.get("/").status, 200));
        let sum = |metric: &str, labels: &[&str]| gateway.metrics().sum(metric, labels);
        // An exchange is counted when it has ended, which its client need not wait for.
        let labels = [label, "code=\"200\"", "node=\"127.0.0.1\""];
        eventually("they are counted", DEADLINE, || {
            let latencies = sum("apisix_http_latency_count", &[label, "type=\"upstream\""]);
            (sum("apisix_http_status", &labels), latencies) == (3.0, 3.0)
        });
        assert!(sum("apisix_bandwidth", &[label, "type=\"egress\""]) > 0.0);
    }
    let page = plain.ask_status("/metrics").text();
    for (family, kind) in [("http_status", "counter"), ("bandwidth", "counter"), ("node_info", "gauge")] {
        assert!(page.contains(&format!("# TYPE apisix_{family} {kind}\n")), "u19: {family}, in\n{page}");
    }
    assert_eq!(plain.metrics().sum("apisix_node_info", &["hostname=", "version="]), 1.0);
    silent.get("/");
    assert_eq!(silent.metrics().sum("apisix_http_status", &[]), 0.0);
}

#[test]
fn prometheus_names_what_a_request_has_matched_and_follows_its_metadata() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let file = |metadata: &str| {
        format!(
            "plugin_metadata: [{{ id: prometheus, {metadata} }}]
routes:
  - id: one
    uris: [/a/*, /b/:name]
    hosts: [t, '*.t']
    plugins: {{ prometheus: {{}} }}
    upstream: {{ nodes: {{ \"{}\": 1 }} }}
  - {{ id: two, uri: /refused, plugins: {{ prometheus: {{}}, fault-injection: {{ abort: {{ http_status: 403 }} }} }} }}
",
            origin.addr()
        )
    };
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file("disabled_labels: {}"));
    let ask = |path: &str, host: &str| {
        gateway.client().ask(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).expect("an answer").status
    };
    let count = |labels: &[&str]| gateway.metrics().sum("apisix_http_status", labels);
    assert_eq!([ask("/a/b", "t"), ask("/b/c", "x.t"), ask("/refused", "t")], [200, 200, 403]);
    for labels in [
        [
            "matched_uri=\"/a/*\"",
            "matched_host=\"t\"",
            "response_source=\"upstream\"",
            "request_type=\"traditional_http\"",
        ],
        ["matched_uri=\"/b/:name\"", "matched_host=\"*.t\"", "response_source=\"upstream\"", "node=\"127.0.0.1\""],
        ["matched_uri=\"/refused\"", "matched_host=\"\"", "response_source=\"apisix\"", "code=\"403\""],
    ] {
        eventually(labels[0], DEADLINE, || count(&labels) == 1.0);
    }
    let metadata = "disabled_labels: { http_status: [node], http_latency: [route] }, \
                    extra_labels: { http_status: [{ zone: \"${http_x_zone ?? none}\" }] }";
    gateway.rewrite(&file(metadata));
    assert_eq!(ask("/a/b", "t"), 200);
    eventually("the label has come", DEADLINE, || count(&["zone=\"none\""]) == 1.0);
    let page = gateway.ask_status("/metrics").text();
    let lines = |family: &str| page.lines().filter(|line| line.starts_with(family)).collect::<Vec<_>>().join("\n");
    assert!(!lines("apisix_http_status{").contains("node="), "{page}");
    assert!(lines("apisix_bandwidth{").contains("node=\"127.0.0.1\""), "{page}");
    assert!(!lines("apisix_http_latency_bucket{").contains("route="), "{page}");
}

#[test]
fn each_of_several_mirrors_gets_its_own_copies() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let (all, also, rarely) = (Origin::serving(|_| Answer::ok("")), Origin::serving(|_| Answer::ok("")), free_port());
    let gateway = gateway(
        &origin,
        &format!(
            "{{ proxy-mirror: {{ targets: [{{ host: \"http://{}\" }}, {{ host: \"http://{}\", path: /x }}, \
             {{ host: \"http://127.0.0.1:{rarely}\", sample_ratio: 0.00001 }}] }} }}",
            all.addr(),
            also.addr()
        ),
    );
    let request = "POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello";
    assert_eq!(gateway.client().ask(request).expect("an answer").text(), "ok");
    for (mirror, target) in [(all, "/a"), (also, "/x")] {
        let copies = mirror.wait_requests(1);
        assert_eq!((&*copies[0].target, &*copies[0].body), (target, &b"hello"[..]));
    }
}
