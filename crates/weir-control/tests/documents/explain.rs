//! What `weir explain` says.

use weir_control::VariableLookup;
use weir_control::document::WrittenDocument;
use weir_control::explain::{RequestDescription, Unexplained, explain};
use weir_control::text::yaml::TextLimits;

use crate::plugins;

const FILE: &str = "
global_rules: [{ id: g, plugins: { mark-access: { text: g } } }]
plugin_configs: [{ id: p, plugins: { mark-late: { text: p } } }]
services: [{ id: s, hosts: [shop.example], plugins: { mark-late: { text: s }, mark-early: { text: s } } }]
routes:
  - { id: orders, uri: /orders/*, service_id: s, plugin_config_id: p, plugins: { door: {}, mark-access: { text: r, _meta: { priority: 5 } } } }
  - { id: posts, uri: /orders/*, methods: [POST], priority: 9, service_id: s, plugins: {} }
  - { id: tenant, uri: /orders/*, priority: 8, service_id: s, vars: [[http_x_tenant, '==', b]], plugins: {} }
  - { id: all, uri: /*, plugins: { mark-early: { text: a, _meta: { disable: true } } } }
  - { id: other, uri: /orders/1, host: other.example, plugins: {} }
";

fn explained(method: &str, url: &str, headers: &[&str]) -> Result<String, Unexplained> {
    let lookup: VariableLookup = &|_| None;
    let document = WrittenDocument::parse("weir.yaml", FILE, lookup, TextLimits::default())
        .expect("is YAML")
        .without_secrets()
        .alone();
    let headers = headers.iter().map(|header| (*header).to_owned()).collect();
    let from = "127.0.0.1".parse().expect("an address");
    let question =
        RequestDescription { method: method.to_owned(), url: url.to_owned(), headers, from, server_name: None };
    explain(&document, &plugins::REGISTRY, &question).map(|explanation| explanation.to_string())
}

#[test]
fn candidates_and_why_each_lost_then_the_plugins_and_whose_they_are() {
    let text = explained("GET", "https://Shop.example:8443/orders/1?x=1", &["X-Tenant: a"]).expect("explained");
    let lines: Vec<String> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "Routes whose path matches:",
        "route/posts shop.example/orders/* no match: the method is different",
        "route/tenant shop.example/orders/* no match: this rule of `vars` is false: ",
        "route/orders shop.example/orders/* chosen",
        "route/all /* outranked: the host is less specific",
        "route/other other.example/orders/1 no match: the host is different",
        "Upstream: none; a request that no plugin answers gets 503 (`no_upstream`)",
        "Plugins in the order in which they run:",
        "rewrite 100 mark-early from service/s",
        "rewrite 75 door from route/orders",
        "rewrite 10 mark-late from plugin_config/p",
        "access 1000 mark-access from global_rule/g",
        "access 5 mark-access from route/orders",
        "Once the consumer is known, the plugins of the consumer and its group take precedence over the route's.",
    ];
    assert_eq!(lines.len(), expected.len(), "{text}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected.trim_end()), "{line}\nwanted {expected}");
    }
}

#[test]
fn an_address_in_the_url_is_that_of_the_node() {
    let text = "routes:\n  - { id: here, uri: /*, priority: 1, vars: [[server_addr, '==', 10.0.0.5]], plugins: {} }\n  - { id: all, uri: /*, plugins: {} }\n";
    let lookup: VariableLookup = &|_| None;
    let document = WrittenDocument::parse("weir.yaml", text, lookup, TextLimits::default()).expect("is YAML");
    let document = document.without_secrets().alone();
    for (url, chosen) in
        [("http://10.0.0.5:8080/", "route/here"), ("http://10.0.0.6/", "route/all"), ("http://a.test/", "route/all")]
    {
        let from = "127.0.0.1".parse().expect("an address");
        let question = RequestDescription {
            method: "GET".to_owned(),
            url: url.to_owned(),
            headers: vec!["Host: a.test".to_owned()],
            from,
            server_name: None,
        };
        let said = explain(&document, &plugins::REGISTRY, &question).expect("explained").to_string();
        let line = said.lines().find(|line| line.ends_with("chosen")).unwrap_or_default();
        assert!(line.contains(chosen), "{url}: {said}");
    }
}

#[test]
fn explanation_shows_no_match_and_plugins_that_are_off() {
    let text = explained("GET", "other.example", &[]).expect("explained");
    assert!(text.contains("mark-early") && text.contains("from route/all (off)"), "{text}");
    let document = WrittenDocument::parse("f", "routes: []", &|_| None, TextLimits::default())
        .expect("is YAML")
        .without_secrets()
        .alone();
    let from = "127.0.0.1".parse().expect("an address");
    let question = RequestDescription {
        method: "GET".to_owned(),
        url: "http://a/".to_owned(),
        headers: Vec::new(),
        from,
        server_name: None,
    };
    let text = explain(&document, &plugins::REGISTRY, &question).expect("explained").to_string();
    assert_eq!(text, "No route matches; the answer is 404.\n");
}

#[test]
fn explanation_of_an_invalid_request_names_the_fault() {
    for (method, url, header, want) in [
        ("G T", "http://a/", "A: b", "would reject this request with 400"),
        ("GET", "ftp://a/", "A: b", "neither http nor https"),
        ("GET", "http://a/", "A", "does not have the form `Name: value`"),
        ("GET", "http://a/", "A: b\r\n\r\nGET / HTTP/1.1", "does not have the form `Name: value`"),
        ("GET", "http://a b/", "A: b", "would reject this request with 400"),
    ] {
        match explained(method, url, &[header]) {
            Err(Unexplained::Request(problem)) => assert!(problem.contains(want), "{problem}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_listener_is_found_by_the_port_and_the_host() {
    let file = "
listeners:
- { id: a, address: \":9090\", public_port: 80, hosts: [a.example] }
- { id: b, address: \":9090\", public_port: 80, hosts: [b.example] }
routes: [{ id: of-a, uri: /*, listeners: [a], plugins: {} }, { id: of-b, uri: /*, listeners: [b], plugins: {} }]
";
    let document =
        WrittenDocument::parse("f", file, &|_| None, TextLimits::default()).expect("is YAML").without_secrets().alone();
    let explained = |url: &str| {
        let from = "127.0.0.1".parse().expect("an address");
        let question = RequestDescription {
            method: "GET".to_owned(),
            url: url.to_owned(),
            headers: Vec::new(),
            from,
            server_name: None,
        };
        let explanation = explain(&document, &plugins::REGISTRY, &question).expect("explained");
        (explanation.route.as_deref().map(str::to_owned), explanation.to_string())
    };
    for (url, route) in [("http://a.example/", "of-a"), ("http://b.example:9090/", "of-b")] {
        let (found, text) = explained(url);
        assert_eq!(found.as_deref(), Some(route), "{text}");
        assert!(text.contains("no match: the request belongs to no listener of `listeners`"), "{text}");
    }
    let told = "No listener of `listeners` has this host on this port, so no route is tried; the answer is 404.\n";
    assert_eq!(explained("http://c.example/"), (None, told.to_owned()));
    assert_eq!(explained("http://a.example:81/").0, None);
}
