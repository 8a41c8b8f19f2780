//! F06: endpoints that stand behind names, in DNS and in files.

use std::fs;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use weir_testkit::{Answer, Authority, DEADLINE, Dns, Gateway, Origin, Reading, TlsServer, eventually};

use crate::{named, weir};

/// Origins on as many loopback addresses, all on one port; each answers with the last number of its address.
fn origins(count: u8) -> Vec<Origin> {
    let one = |host: u8, port: u16| {
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{host}");
        Origin::scripted_at((Ipv4Addr::new(127, 0, 0, host), port).into(), Reading::Strict, move |connection| {
            while connection.request().is_ok() && connection.send(&answer).is_ok() {}
        })
    };
    let first = one(1, 0);
    let port = first.addr().port();
    std::iter::once(first).chain((2..=count).map(|host| one(host, port))).collect()
}

fn addresses(hosts: impl IntoIterator<Item = u8>) -> Vec<Ipv4Addr> {
    hosts.into_iter().map(|host| Ipv4Addr::new(127, 0, 0, host)).collect()
}

fn gateway(dns: &Dns, upstream: &str) -> Gateway {
    weir().start(&format!(
        "dns_resolver: [\"{}\"]\nroutes:\n  - id: all\n    uri: /*\n    upstream: {{ {upstream} }}\n",
        dns.addr()
    ))
}

#[test]
fn f06_a_new_address_is_in_use_within_its_time_to_live_and_a_second() {
    let (dns, origins) = (Dns::start(), origins(2));
    dns.addresses("orders.test", 1, addresses([1]));
    let gateway = gateway(&dns, &format!("nodes: {{ \"orders.test:{}\": 1 }}", origins[0].addr().port()));
    assert_eq!(gateway.get("/").text(), "1");
    // A busy machine may be late; one time of five it is not.
    let took = [2, 1, 2, 1, 2].map(|host: u8| {
        let changed = Instant::now();
        dns.addresses("orders.test", 1, addresses([host]));
        eventually("the new address is used", DEADLINE, || {
            let answer = gateway.get("/");
            assert_eq!(answer.status, 200, "no request fails meanwhile");
            answer.text() == host.to_string()
        });
        changed.elapsed()
    });
    assert!(took.iter().any(|took| *took <= Duration::from_millis(2_100)), "{took:?}");
}

#[test]
fn f06_an_answer_that_is_good_for_no_time_is_asked_for_once_a_second() {
    let (dns, origins) = (Dns::start(), origins(1));
    dns.addresses("orders.test", 0, addresses([1]));
    let gateway = gateway(&dns, &format!("nodes: {{ \"orders.test:{}\": 1 }}", origins[0].addr().port()));
    // In this order: a question in between would come too early otherwise.
    let (since, asked) = (Instant::now(), dns.asked("orders.test"));
    eventually("it is asked again", DEADLINE, || dns.asked("orders.test") >= asked + 3);
    assert!(since.elapsed() >= Duration::from_secs(2), "three questions in {:?}", since.elapsed());
    assert_eq!(gateway.get("/").status, 200);
}

#[test]
fn f06_the_last_good_answer_is_kept_while_dns_is_down_or_knows_nothing() {
    let (dns, origins) = (Dns::start(), origins(1));
    dns.addresses("orders.test", 1, addresses([1]));
    let gateway = gateway(&dns, &format!("nodes: {{ \"orders.test:{}\": 1 }}", origins[0].addr().port()));
    // Every request has its answer meanwhile, and none waits for DNS. The result is the number of them.
    let asked = |times: usize| {
        let (before, mut answered) = (dns.asked("orders.test"), 0);
        eventually("it is asked again", DEADLINE, || {
            assert_eq!(gateway.get("/").text(), "1");
            answered += 1;
            dns.asked("orders.test") >= before + times
        });
        answered
    };
    dns.be_silent(true);
    assert!((0..3).any(|_| asked(2) > 4), "requests wait while DNS is asked twice and does not answer");
    dns.be_silent(false);
    dns.remove("orders.test");
    asked(2);
    // A reload does not forget it either.
    gateway.signal(weir_testkit::Signal::HUP);
    asked(1);
}

#[test]
fn a_file_that_is_refused_takes_no_address_from_the_one_that_is_served() {
    let (dns, origins) = (Dns::start(), origins(1));
    dns.addresses("orders.test", 1, addresses([1]));
    let gateway = gateway(&dns, &format!("nodes: {{ \"orders.test:{}\": 1 }}", origins[0].addr().port()));
    let file = std::fs::read_to_string(gateway.file()).expect("its file");
    // Another name, and a fault that only compiling finds.
    gateway
        .replace_file(&file.replace("orders.test", "other.test").replace("uri: /*", "uri: /*\n    upstream_id: none"));
    gateway.wait_stderr("refused", |line| line.contains("configuration rejected"));
    let before = dns.asked("orders.test");
    eventually("the name that is served is asked for again", DEADLINE, || {
        assert_eq!(gateway.get("/").text(), "1");
        dns.asked("orders.test") >= before + 2
    });
}

#[test]
fn f06_a_name_that_does_not_exist_yet_is_used_as_soon_as_it_does() {
    let (dns, origins) = (Dns::start(), origins(1));
    let gateway = gateway(&dns, &format!("nodes: {{ \"orders.test:{}\": 1 }}", origins[0].addr().port()));
    assert_eq!(gateway.get("/").status, 503);
    gateway.wait_stderr("which name it is", |line| line.contains("`orders.test` cannot be resolved"));
    dns.addresses("orders.test", 60, addresses([1]));
    eventually("it is used", DEADLINE, || gateway.get("/").status == 200);
}

#[test]
fn f06_a_thousand_addresses_are_a_thousand_endpoints() {
    let (dns, origins) = (Dns::start(), origins(1));
    let all = (0..1_000_u16).map(|number| Ipv4Addr::new(127, 1, (number >> 8) as u8, number as u8));
    dns.addresses("many.test", 60, all);
    let gateway = gateway(&dns, &format!("nodes: {{ \"many.test:{}\": 1 }}", origins[0].addr().port()));
    let status = gateway.status();
    assert_eq!(status["upstreams"][0]["endpoints"].as_array().map(Vec::len), Some(1_000));
}

#[test]
fn services_say_where_their_nodes_are_and_which_goes_first() {
    let (dns, origins) = (Dns::start(), origins(2));
    let port = origins[0].addr().port();
    dns.addresses("first.test", 60, addresses([1]));
    dns.addresses("second.test", 60, addresses([2]));
    dns.services("_http._tcp.orders.test", 1, [(10, 5, port, "first.test"), (20, 5, port, "second.test")]);
    let gateway = gateway(&dns, "service_name: _http._tcp.orders.test, discovery_type: dns");
    assert!((0..10).all(|_| gateway.get("/").text() == "1"), "the lower SRV priority is used first");
    dns.services("_http._tcp.orders.test", 1, [(10, 5, port, "second.test")]);
    eventually("the other is used", DEADLINE, || gateway.get("/").text() == "2");
}

#[test]
fn a_target_of_a_service_without_an_address_takes_nothing_from_the_others() {
    let (dns, origins) = (Dns::start(), origins(2));
    let port = origins[0].addr().port();
    let name = "_http._tcp.orders.test";
    dns.addresses("first.test", 1, addresses([1]));
    dns.services(name, 1, [(10, 5, port, "gone.test"), (20, 5, port, "first.test")]);
    let gateway = gateway(&dns, &format!("service_name: {name}, discovery_type: dns"));
    assert_eq!(gateway.get("/").text(), "1", "at the start");
    gateway.wait_stderr("which target it is", |line| line.contains("left out") && line.contains("gone.test"));
    dns.addresses("second.test", 1, addresses([2]));
    dns.services(name, 1, [(10, 5, port, "second.test"), (20, 5, port, "gone.test")]);
    eventually("a change is used", DEADLINE, || gateway.get("/").text() == "2");
    dns.addresses("gone.test", 1, addresses([1]));
    dns.services(name, 1, [(10, 5, port, "gone.test")]);
    eventually("it has an address", DEADLINE, || gateway.get("/").text() == "1");
}

#[test]
fn the_targets_of_a_service_are_looked_up_at_once() {
    let (dns, origins) = (Dns::start(), origins(1));
    let port = origins[0].addr().port();
    // No answer about the first nine: one after the other they would take longer than a load waits for names.
    let silent = ["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9"];
    silent.iter().for_each(|name| dns.be_silent_about(name));
    dns.addresses("z.test", 60, addresses([1]));
    let records = silent.iter().copied().chain(["z.test"]).map(|target| (10, 5, port, target));
    dns.services("_http._tcp.orders.test", 60, records);
    let gateway = gateway(&dns, "service_name: _http._tcp.orders.test, discovery_type: dns");
    assert_eq!(gateway.get("/").text(), "1", "known at the start");
}

#[test]
fn a_service_record_without_a_port_stands_for_the_port_of_the_scheme() {
    let dns = Dns::start();
    dns.addresses("first.test", 60, addresses([1]));
    dns.services("_http._tcp.orders.test", 60, [(10, 5, 0, "first.test")]);
    let gateway = gateway(&dns, "service_name: _http._tcp.orders.test, discovery_type: dns");
    let status = gateway.status();
    assert_eq!(status["upstreams"][0]["endpoints"][0]["name"], "first.test:80");
}

#[test]
fn endpoint_named_by_a_service_record_has_to_prove_its_name() {
    let (dns, authority) = (Dns::start(), Authority::of_tests());
    let origin = |identity: &str| {
        Origin::serving_tls(&TlsServer::new(&authority.identity(&[identity])), |request| {
            Answer::ok(request.headers.get("host").unwrap_or_default())
        })
    };
    let (itself, other) = (origin("first.test"), origin("second.test"));
    dns.addresses("first.test", 60, addresses([1]));
    dns.services("_https._tcp.orders.test", 1, [(10, 5, itself.addr().port(), "First.test")]);
    let tls = format!("scheme: https, pass_host: node, tls: {{ ca: {:?} }}", authority.certificate);
    let gateway = gateway(&dns, &format!("service_name: _https._tcp.orders.test, discovery_type: dns, {tls}"));
    assert_eq!(gateway.get("/").text(), format!("first.test:{}", itself.addr().port()));
    dns.services("_https._tcp.orders.test", 1, [(10, 5, other.addr().port(), "first.test")]);
    eventually("somebody else is there, and not believed", DEADLINE, || gateway.get("/").status == 502);
    assert!(other.requests().is_empty());
}

#[test]
fn nodes_in_a_file_follow_it() {
    let origins = [named("one"), named("two")];
    let directory = weir_testkit::TempDir::new();
    let nodes = |origin: &Origin| format!("{{ \"{}\": 1 }}\n", origin.addr());
    let file = directory.write("orders.yaml", nodes(&origins[0]));
    let gateway = weir()
        .start(&format!("routes:\n  - {{ id: all, uri: /*, upstream: {{ nodes_file: \"{}\" }} }}\n", file.display()));
    assert_eq!(gateway.get("/").text(), "one");
    let next = directory.write("next", nodes(&origins[1]));
    fs::rename(next, &file).expect("its own directory");
    eventually("the file is read again", DEADLINE, || gateway.get("/").text() == "two");
    let next = directory.write("next", "{ \"nowhere:99999\": 1 }\n");
    fs::rename(next, &file).expect("its own directory");
    gateway.wait_stderr("what is wrong with it", |line| line.contains("invalid port `99999`"));
    assert_eq!(gateway.get("/").text(), "two", "the last good one stays in use");
}
