//! Plugins that decide where a request goes, and when.

use std::net::SocketAddr;

use weir_testkit::{Answer, Gateway, Origin, free_port};

use crate::{Rig, refused};

fn named(name: &'static str) -> Origin {
    Origin::serving(move |_| Answer::ok(name))
}

#[test]
fn shares_of_the_traffic_go_elsewhere() {
    let (own, inline, by_id) = (named("own"), named("inline"), named("by id"));
    let file = |weight: u32| {
        format!(
            "upstreams: [{{ id: other, type: roundrobin, nodes: {{ \"{}\": 1 }} }}]
routes:
  - uri: /*
    upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }}
    plugins:
      traffic-split:
        rules:
          - match: [{{ vars: [[http_x_canary, '==', 'yes']] }}]
            weighted_upstreams: [{{ upstream_id: other }}]
          - weighted_upstreams: [{{ upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }}, weight: {weight} }}, {{ weight: 3 }}]
",
            by_id.addr(),
            own.addr(),
            inline.addr()
        )
    };
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file(1));
    let count = |text: &str| (0..40).filter(|_| gateway.get("/").text() == text).count();
    assert_eq!(count("inline"), 10);
    assert_eq!(count("own"), 30);
    let canary = gateway.client().ask("GET / HTTP/1.1\r\nHost: t\r\nX-Canary: yes\r\n\r\n").expect("an answer");
    assert_eq!(canary.text(), "by id");
    gateway.rewrite(&file(0));
    assert_eq!(count("own"), 40);
}

#[test]
fn the_host_of_a_diverted_request_is_what_its_upstream_says() {
    let origin = Origin::serving(|request| Answer::ok(request.headers.get("host").unwrap_or_default()));
    let port = origin.addr().port();
    let split = |upstream: &str| {
        format!(
            "{{ traffic-split: {{ rules: [{{ weighted_upstreams: [{{ upstream: {{ type: roundrobin, {upstream}, \
             nodes: {{ \"localhost:{port}\": 1 }} }} }}] }}] }} }}"
        )
    };
    let rig = Rig::with(&split("pass_host: node"));
    let asked = |rig: &Rig| rig.gateway.client().ask("GET / HTTP/1.1\r\nHost: shop\r\n\r\n").expect("an answer").text();
    assert_eq!(asked(&rig), format!("localhost:{port}"));
    rig.change(&split("pass_host: rewrite, upstream_host: canary.example"));
    assert_eq!(asked(&rig), "canary.example");
    rig.change(&split("pass_host: pass"));
    assert_eq!(asked(&rig), "shop");
}

#[test]
fn a_diverted_request_is_tried_again_where_it_was_sent() {
    let other = named("other");
    let closed = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let rig = Rig::with(&format!(
        "{{ traffic-split: {{ rules: [{{ weighted_upstreams: [{{ upstream: {{ type: roundrobin, nodes: \
         {{ \"{closed}\": 1, \"{}\": 1 }} }} }}] }}] }} }}",
        other.addr()
    ));
    for _ in 0..4 {
        assert_eq!(rig.gateway.get("/").text(), "other");
    }
    assert_eq!(rig.origin.requests().len(), 0);
}

#[test]
fn labels_of_requests_reach_the_upstream_and_choose_another() {
    let canary = named("canary");
    let own = Origin::serving(|request| Answer::ok(request.headers.get("x-label").unwrap_or("none")));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:
  - uri: /*
    upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }}
    plugins:
      traffic-label:
        rules:
          - match: [[arg_plain, '==', '1']]
            actions: [{{ weight: 1 }}]
          - actions: [{{ set_headers: {{ X-Label: canary }}, weight: 1 }}, {{ set_headers: {{ X-Label: 'stable for $arg_user' }}, weight: 3 }}]
      traffic-split:
        rules:
          - match: [{{ vars: [[http_x_label, '==', canary]] }}]
            weighted_upstreams: [{{ upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }} }}]
",
        own.addr(),
        canary.addr()
    ));
    let texts: Vec<String> = (0..40).map(|_| gateway.get("/?user=ann").text()).collect();
    let count = |text: &str| texts.iter().filter(|told| *told == text).count();
    assert_eq!((count("canary"), count("stable for ann")), (10, 30));
    assert_eq!(gateway.get("/?plain=1").text(), "none");
    let forged = "GET /?user=ann HTTP/1.1\r\nHost: t\r\nX-Label: forged\r\n\r\n";
    let texts: Vec<String> = (0..4).map(|_| gateway.client().ask(forged).expect("an answer").text()).collect();
    assert!(texts.iter().all(|text| text != "forged"), "{texts:?}");
}

#[test]
fn upstreams_in_options_are_checked_where_they_stand() {
    let share =
        |share: &str| refused(&format!("{{ traffic-split: {{ rules: [{{ weighted_upstreams: [{share}] }}] }} }}"));
    let place = "routes[0].plugins.traffic-split.rules[0].weighted_upstreams[0]";
    for (options, want) in [
        ("{ upstream_id: nobody }", format!("{place}.upstream_id: `upstreams` has no `nobody`")),
        ("{ upstream: { type: roundrobin } }", format!("{place}.upstream: has no `nodes`")),
        ("{ upstream: { nodes: { 'h:0': 1 } } }", format!("{place}.upstream.nodes")),
        ("{ upstream: { nodes: {} }, upstream_id: a }", format!("{place}.upstream_id: `upstream` and `upstream_id`")),
        ("{ wait: 1 }", format!("{place}.wait: the option `wait` is not known")),
        ("{ weight: 0 }", "weighted_upstreams: has no weight above 0".to_owned()),
    ] {
        let said = share(options);
        assert!(said.contains(&want), "{options}: {said}");
    }
}

#[test]
fn doors_are_closed_at_certain_times() {
    let rig = Rig::with("{ time-restriction: { allow: [{}] } }");
    assert_eq!(rig.gateway.get("/").status, 200);
    rig.change(
        "{ time-restriction: { deny: [{}], time_zone: Pacific/Auckland, rejected_code: 404, message: closed } }",
    );
    let answer = rig.gateway.get("/");
    assert_eq!((answer.status, answer.text()), (404, "{\"message\":\"closed\"}\n".to_owned()));
    assert_eq!(rig.origin.requests().len(), 1);
    let said = refused("{ time-restriction: { allow: [{ from: '25:00' }] } }");
    assert!(said.contains("routes[0].plugins.time-restriction.allow[0].from: `25:00` is not a time of day"), "{said}");
}
