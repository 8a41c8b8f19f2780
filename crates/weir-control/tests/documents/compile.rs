//! What documents mean: the snapshots that come of them.

use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use weir_control::document::{CompleteDocument, NameQuery, ResolvedName, WrittenDocument};
use weir_control::text::yaml::TextLimits;
use weir_control::{Compiled, compile};
use weir_discovery::ServiceInstance;
use weir_gateway::route::Lookup;
use weir_gateway::snapshot::{Chain, Concurrency, Link, PassHost, Route, Snapshot, Target, Timeouts};
use weir_plugin::{Exchange, Stop};
use weir_proto::Method;

use crate::plugins;

fn document(text: &str) -> CompleteDocument {
    let document = WrittenDocument::parse("weir.yaml", text, &|_| None, TextLimits::default());
    document.expect("is YAML").without_secrets().alone()
}

fn compiled(text: &str) -> Snapshot {
    snapshot(&document(text))
}

fn snapshot(document: &CompleteDocument) -> Snapshot {
    match compile(document, &plugins::REGISTRY, None) {
        Ok(Compiled { snapshot, warnings, .. }) => {
            assert!(warnings.is_empty(), "{warnings:?}");
            snapshot
        }
        Err(faults) => panic!("{faults:#?}"),
    }
}

fn found<'a>(snapshot: &'a Snapshot, host: &str, path: &str) -> Option<&'a Route> {
    let exchange = Exchange::default();
    let remote_addr: IpAddr = "127.0.0.1".parse().expect("an address");
    let lookup = Lookup {
        host: host.as_bytes(),
        path: path.as_bytes(),
        method: Method::Get,
        listener: None,
        remote_addr,
        variables: &exchange,
    };
    snapshot.table.find(&lookup).map(|number| &*snapshot.routes[number as usize])
}

fn only(snapshot: &Snapshot) -> &Route {
    assert_eq!(snapshot.routes.len(), 1);
    &snapshot.routes[0]
}

fn run(links: &[Link], response: bool, exchange: &mut Exchange) -> Result<(), Stop> {
    for link in links {
        if response {
            link.step.on_response(exchange)?;
            continue;
        }
        let turn = pin!(link.step.on_request(exchange)?.finish());
        match turn.poll_once() {
            Poll::Ready(end) => end?,
            Poll::Pending => panic!("the plugins here do not wait"),
        }
    }
    Ok(())
}

trait PollOnce: Future {
    fn poll_once(self) -> Poll<Self::Output>;
}

impl<F: Future> PollOnce for std::pin::Pin<&mut F> {
    fn poll_once(self) -> Poll<Self::Output> {
        self.poll(&mut Context::from_waker(Waker::noop()))
    }
}

fn marks(chain: &Chain) -> (String, String) {
    let text = |links: &[Link], response| {
        let mut exchange = Exchange::default();
        run(links, response, &mut exchange).expect("nobody stops");
        String::from_utf8(exchange.body).expect("marks are text")
    };
    (text(&chain.request, false), text(&chain.response, true))
}

#[test]
fn defaults_are_those_of_apisix() {
    let snapshot = compiled("routes: [{ uri: /a, upstream: { nodes: { '127.0.0.1': 3, '[::1]:81': 1 } } }]");
    let route = only(&snapshot);
    assert_eq!((&*route.facts.route_id, &*route.facts.route_name), ("arr_1", ""));
    assert!(route.upgrades && !route.encoded_separators && route.timeouts.is_none());
    let Target::Upstream(0) = route.target else { panic!("the first upstream") };
    let upstream = &snapshot.upstreams[0];
    assert_eq!(&*upstream.name, "route/arr_1");
    let shown: Vec<(&str, String, u32, &str)> = upstream
        .endpoints
        .iter()
        .map(|endpoint| (&*endpoint.name, endpoint.addr.to_string(), endpoint.weight, &*endpoint.host))
        .collect();
    let expected = [
        ("127.0.0.1:80", "127.0.0.1:80".to_owned(), 3, "127.0.0.1"),
        ("[::1]:81", "[::1]:81".to_owned(), 1, "[::1]:81"),
    ];
    assert_eq!(shown, expected);
    assert_eq!((upstream.retries, upstream.retry_timeout), (1, None));
    assert_eq!(upstream.timeouts, Timeouts::default());
    assert_eq!(upstream.pass_host, PassHost::Pass);
    assert_eq!(upstream.concurrency, Concurrency::Auto);
    assert_eq!((upstream.keepalive.size, upstream.keepalive.requests), (320, 1000));
    assert_eq!(upstream.keepalive.idle_timeout, Duration::from_secs(60));
}

#[test]
fn a_service_gives_what_its_route_does_not_say() {
    let snapshot = compiled(
        "
upstreams: [{ id: shared, nodes: { '127.0.0.1:1': 1 } }]
services:
  - { id: s, name: shop, hosts: [shop.example], upstream_id: shared, enable_websocket: false }
  - { id: t, upstream: { nodes: { '127.0.0.1:2': 1 } } }
routes:
  - { id: a, name: first, uri: /a, service_id: s }
  - { id: b, uri: /b, service_id: s, host: other.example, enable_websocket: true, upstream: { nodes: {} } }
  - { id: c, uri: /c, service_id: t, timeout: { connect: 1, send: 2, read: 0.5 } }
  - { id: d, uri: /d, service_id: t, upstream_id: shared }
  - { id: e, uri: /e, plugins: {} }
",
    );
    let upstream = |path, host| match found(&snapshot, host, path).expect("a route").target {
        Target::Upstream(index) => &*snapshot.upstreams[index].name,
        Target::Responder(_) => "a responder",
        Target::Nothing => "nothing",
    };
    assert_eq!(upstream("/a", "shop.example"), "shared");
    assert!(found(&snapshot, "else.example", "/a").is_none());
    assert_eq!(upstream("/b", "other.example"), "route/b");
    assert!(found(&snapshot, "shop.example", "/b").is_none());
    assert_eq!(upstream("/c", "any"), "service/t");
    assert_eq!(upstream("/d", "any"), "shared");
    assert_eq!(upstream("/e", "any"), "nothing");
    let facts = &found(&snapshot, "shop.example", "/a").expect("a route").facts;
    assert_eq!((&*facts.route_name, &*facts.service_id, &*facts.service_name), ("first", "s", "shop"));
    assert!(!found(&snapshot, "shop.example", "/a").expect("a route").upgrades);
    assert!(found(&snapshot, "other.example", "/b").expect("a route").upgrades);
    let timeouts = found(&snapshot, "any", "/c").expect("a route").timeouts.expect("its own");
    assert_eq!(timeouts.read, Duration::from_millis(500));
    let names: Vec<&str> = snapshot.upstreams.iter().map(|(_, upstream)| &*upstream.name).collect();
    assert_eq!(names, ["shared", "service/t", "route/b"]);
}

#[test]
fn route_that_is_switched_off_matches_nothing() {
    let snapshot = compiled("routes: [{ uri: /a, status: 0, plugins: {} }, { uri: /b, plugins: {} }]");
    assert!(found(&snapshot, "", "/a").is_none());
    assert!(found(&snapshot, "", "/b").is_some());
}

#[test]
fn a_plugin_is_taken_whole_from_the_nearest_that_names_it() {
    let snapshot = compiled(
        "
services: [{ id: s, plugins: { mark-early: { text: s1 }, mark-late: { text: s2 }, mark-access: { text: s3 } } }]
plugin_configs: [{ id: p, plugins: { mark-late: { text: p2 }, mark-access: { text: p3 } } }]
routes:
  - { uri: /a, service_id: s, plugin_config_id: p, plugins: { mark-access: { text: r3 } } }
  - { uri: /b, service_id: s, plugins: { mark-early: { text: x, _meta: { disable: true } } } }
",
    );
    assert_eq!(marks(&found(&snapshot, "", "/a").expect("a route").chain), ("s1p2r3".into(), "r3s1p2".into()));
    assert_eq!(
        marks(&found(&snapshot, "", "/b").expect("a route").chain),
        ("s2s3".into(), "s3s2".into()),
        "a plugin switched off in the route is off, whatever the service says"
    );
}

#[test]
fn stages_come_first_in_requests_and_global_rules_in_each() {
    let snapshot = compiled(
        "
global_rules:
  - { id: 1, plugins: { mark-late: { text: G1 } } }
  - { id: 2, plugins: { mark-access: { text: G3 } } }
routes:
  - { uri: /a, plugins: { mark-access: { text: r3 }, mark-late: { text: r2 }, mark-early: { text: r1 } } }
  - { uri: /b, plugins: { mark-late: { text: r2, _meta: { priority: 101 } }, mark-early: { text: r1 } } }
",
    );
    assert_eq!(marks(&found(&snapshot, "", "/a").expect("a route").chain), ("G1r1r2G3r3".into(), "G3G1r3r1r2".into()));
    assert_eq!(marks(&found(&snapshot, "", "/b").expect("a route").chain), ("G1r2r1G3".into(), "G3G1r2r1".into()));
    assert_eq!(marks(&snapshot.unmatched), ("G1G3".into(), "G3G1".into()));
}

#[test]
fn meta_filter_lets_other_requests_pass_by() {
    let snapshot = compiled(
        "routes: [{ uri: /a, plugins: { mark-early: { text: x, _meta: { filter: [[remote_addr, '==', 10.0.0.1]] } } } }]",
    );
    let chain = &only(&snapshot).chain;
    let marked = |address: &str| {
        let mut exchange = Exchange::default();
        exchange.client.addr = address.parse().expect("an address");
        run(&chain.request, false, &mut exchange).expect("nobody stops");
        exchange.body
    };
    assert_eq!(marked("10.0.0.1"), b"x");
    assert_eq!(marked("10.0.0.2"), b"");
}

#[test]
fn meta_error_response_replaces_refusals_only() {
    let end = |options: &str| {
        let snapshot = compiled(&format!("routes: [{{ uri: /a, plugins: {{ refuse: {options} }} }}]"));
        let mut exchange = Exchange::default();
        let end = run(&only(&snapshot).chain.request, false, &mut exchange);
        let content_type =
            exchange.response.head.value(b"Content-Type").map(|value| value.to_vec()).unwrap_or_default();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("is text");
        (end, text(exchange.body), text(content_type))
    };
    let json = "_meta: { error_response: { message: denied } }";
    assert_eq!(
        end(&format!("{{ status: 403, {json} }}")),
        (Err(Stop::Answered), "{\"message\":\"denied\"}\n".into(), "application/json".into())
    );
    assert_eq!(
        end("{ status: 401, body: secret, _meta: { error_response: go away } }"),
        (Err(Stop::Answered), "go away".into(), "text/plain; charset=utf-8".into())
    );
    assert_eq!(end(&format!("{{ status: 302, {json} }}")), (Err(Stop::Respond(302)), String::new(), String::new()));
    assert_eq!(
        end(&format!("{{ status: 200, body: fine, {json} }}")),
        (Err(Stop::Answered), "fine".into(), "text/plain".into())
    );
}

#[test]
fn names_become_addresses_where_they_are_known() {
    let mut document =
        document("routes: [{ uri: /a, upstream: { nodes: { 'Backend:81': 1, gone: 1 }, pass_host: node } }]");
    let queries = document.queries();
    assert_eq!(queries.iter().map(NameQuery::name).collect::<Vec<_>>(), ["backend", "gone"]);
    let addresses = vec!["10.0.0.1".parse().expect("an address"), "10.0.0.2".parse().expect("an address")];
    document.found.insert(NameQuery::Host("backend".into()), ResolvedName::Addresses(addresses));
    let endpoints = &snapshot(&document).upstreams[0].endpoints;
    assert_eq!(endpoints.len(), 2);
    assert_eq!(&*endpoints[1].name, "backend:81");
    assert_eq!(&*endpoints[1].host, "backend:81");
    assert_eq!(endpoints[1].addr.to_string(), "10.0.0.2:81");
}

#[test]
fn changed_instances_of_a_service_compile_only_their_upstream() {
    let mut document = document(
        "
discovery: { eureka: { host: ['http://127.0.0.1:8761'] } }
upstreams: [{ id: other, nodes: { '10.0.0.9:80': 1 } }]
routes:
  - { id: a, uri: /a, upstream: { service_name: orders, discovery_type: eureka } }
  - { id: b, uri: /b, upstream_id: other }
",
    );
    let instances = |ports: &[u16]| {
        let one = |port: &u16| ServiceInstance {
            address: [10, 0, 0, 1].into(),
            port: Some(*port),
            secure_port: None,
            host: "orders.example".into(),
            weight: 100,
        };
        ResolvedName::Instances(ports.iter().map(one).collect())
    };
    let query = NameQuery::Registered { registry: "eureka", service: "ORDERS".into() };
    assert!(document.queries().contains(&query));
    document.found.insert(query.clone(), instances(&[1]));
    let first = compile(&document, &plugins::REGISTRY, None).unwrap_or_else(|faults| panic!("{faults:?}"));
    document.found.insert(query, instances(&[1, 2]));
    let second =
        compile(&document, &plugins::REGISTRY, Some(&first.parts)).unwrap_or_else(|faults| panic!("{faults:?}"));
    let (first, second) = (first.snapshot, second.snapshot);
    let ports = |snapshot: &Snapshot| {
        let all = [0, 1].map(|number| &snapshot.upstreams[number]);
        let of_service = all.into_iter().find(|it| it.name.starts_with("route/")).expect("the service");
        of_service.endpoints.iter().map(|endpoint| endpoint.addr.port()).collect::<Vec<_>>()
    };
    assert_eq!((ports(&first), ports(&second)), (vec![1], vec![1, 2]));
    assert!((0..2).all(|number| Arc::ptr_eq(&first.routes[number], &second.routes[number])));
    assert!(Arc::ptr_eq(&first.upstreams[0], &second.upstreams[0]), "the other upstream");
}

#[test]
fn settings_reach_the_snapshot() {
    let snapshot = compiled(
        "
client_max_body_size: 1MiB
client_header_timeout: 3
keepalive_requests: 7
trusted_addresses: [10.0.0.0/8]
allow_encoded_slashes: true
routes: [{ uri: /a, plugins: {} }]
",
    );
    assert_eq!(snapshot.clients.body_bytes, Some(1 << 20));
    assert_eq!(snapshot.clients.header_timeout, Duration::from_secs(3));
    assert_eq!(snapshot.clients.keepalive_requests, Some(7));
    assert_eq!(snapshot.clients.trusted_addresses.len(), 1);
    assert!(only(&snapshot).encoded_separators);
}

#[test]
fn passive_checks_have_the_defaults_of_apisix() {
    let snapshot = compiled("upstreams: [{ id: 1, nodes: {}, checks: { passive: { unhealthy: { timeouts: 0 } } } }]");
    let passive = &snapshot.upstreams[0].passive;
    assert_eq!(passive.unhealthy_statuses, [429, 500, 503]);
    assert_eq!(
        (passive.healthy_successes, passive.http_failures, passive.tcp_failures, passive.timeouts),
        (5, 5, 2, 0)
    );
    assert_eq!((passive.healthy_statuses.len(), passive.retry_after), (19, Duration::from_secs(10)));
}

#[test]
fn plugins_of_a_consumer_precede_those_of_its_group() {
    let snapshot = compiled(
        "
consumer_groups: [{ id: gold, plugins: { mark-late: { text: g2 }, mark-access: { text: g3 } } }]
consumers:
  - { username: jack, group_id: gold, plugins: { door: { key: a }, mark-access: { text: j3 } } }
  - { username: rose, group_id: gold }
  - { username: joe, plugins: { mark-access: { text: x, _meta: { disable: true } } } }
  - { username: ann, plugins: { door: { key: b } } }
  - { id: ann/credentials/c, plugins: { door: { key: c } } }
routes: [{ uri: /a, plugins: { door: {}, mark-access: { text: r3 } } }]
",
    );
    let shown: Vec<_> =
        snapshot.overlays.iter().map(|overlay| (marks(&overlay.chain).0, overlay.overrides.len())).collect();
    assert_eq!(shown, [("g2j3".to_owned(), 2), ("g2g3".to_owned(), 2), (String::new(), 1)]);
    let chain = &only(&snapshot).chain;
    assert_eq!((chain.anonymous, chain.request.len()), (1, 2));
    let mut exchange = Exchange::default();
    run(&chain.request[..1], false, &mut exchange).expect("jack comes in");
    let consumer = &exchange.identity.as_ref().expect("known").consumer;
    assert_eq!((&*consumer.username, &*consumer.group_id, consumer.overlay), ("jack", "gold", Some(0)));
}

#[test]
fn a_hundred_thousand_consumers_are_read_in_time_proportional_to_their_number() {
    let consumers: String =
        (0..100_000).map(|n| format!("  - {{ username: u{n}, plugins: {{ door: {{ key: k{n} }} }} }}\n")).collect();
    let snapshot = compiled(&format!("consumers:\n{consumers}routes: [{{ uri: /a, plugins: {{ door: {{}} }} }}]\n"));
    assert!(snapshot.overlays.is_empty(), "credentials are no policies");
}
