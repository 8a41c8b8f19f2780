//! Datagrams: sessions, the choice of the endpoint, limits, and what happens to sessions at a reload.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use weir_testkit::{DEADLINE, Gateway, eventually, eventually_some, free_port};

use crate::weir;

/// An endpoint that sends each datagram back after its own name.
struct DatagramEndpoint {
    addr: SocketAddr,
    received: Arc<AtomicUsize>,
}

impl DatagramEndpoint {
    fn echo(name: &str) -> DatagramEndpoint {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback has a free port");
        let addr = socket.local_addr().expect("it is bound");
        let (name, received) = (name.to_owned(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&received);
        thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                count.fetch_add(1, Ordering::SeqCst);
                let answer = [name.as_bytes(), &buffer[..length]].concat();
                let _ = socket.send_to(&answer, from);
            }
        });
        DatagramEndpoint { addr, received }
    }

    fn node(&self) -> String {
        format!("\"{}\": 1", self.addr)
    }
}

/// A port at which nothing receives, and which no other test is given.
fn closed_port() -> String {
    format!("\"127.0.0.1:{}\": 1", crate::servers::port_of_both())
}

fn upstream(nodes: &[String]) -> String {
    format!("upstream: {{ scheme: udp, nodes: {{ {} }} }}", nodes.join(", "))
}

fn file(listen: &str, route: &str) -> String {
    format!(
        "listen: [\"127.0.0.1:0\", {{ address: \"{listen}\", protocol: udp }}]\nstream_routes: [{{ id: s, {route} }}]\n"
    )
}

#[track_caller]
fn start(route: &str) -> (Gateway, SocketAddr) {
    let gateway = weir().start(&file("127.0.0.1:0", route));
    let addr = gateway.addrs_of("udp")[0];
    (gateway, addr)
}

#[track_caller]
fn client(to: SocketAddr) -> UdpSocket {
    let client = UdpSocket::bind(if to.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" }).expect("a port");
    client.connect(to).expect("an address");
    client.set_read_timeout(Some(DEADLINE)).expect("an option");
    client
}

#[track_caller]
fn ask(client: &UdpSocket, text: &str) -> String {
    client.send(text.as_bytes()).expect("sent");
    let mut answer = vec![0; 65_536];
    let length = client.recv(&mut answer).expect("an answer");
    String::from_utf8(answer[..length].to_vec()).expect("text")
}

#[test]
fn each_client_gets_its_own_answers_with_one_worker_and_with_two() {
    let endpoint = DatagramEndpoint::echo("");
    for workers in [1, 2] {
        let text = file("127.0.0.1:0", &upstream(&[endpoint.node()])) + &format!("worker_processes: {workers}\n");
        let gateway = weir().start(&text);
        let clients: Vec<UdpSocket> = (0..20).map(|_| client(gateway.addrs_of("udp")[0])).collect();
        for round in 0..3 {
            for (number, client) in clients.iter().enumerate() {
                let text = format!("client {number}, round {round}");
                assert_eq!(ask(client, &text), text);
            }
        }
        let opened = gateway.metrics().get("weir_streams_opened_total");
        assert_eq!(opened, Some(20.0), "a client has one session, on {workers} workers");
    }
}

#[test]
fn datagrams_keep_their_bounds_up_to_the_largest() {
    let endpoint = DatagramEndpoint::echo("");
    let (_gateway, addr) = start(&upstream(&[endpoint.node()]));
    let client = client(addr);
    for length in [0, 1, 1_472, 9_000, 65_507] {
        let text = "x".repeat(length);
        assert_eq!(ask(&client, &text).len(), length);
    }
}

#[test]
fn an_answer_comes_from_the_address_that_was_asked() {
    let endpoint = DatagramEndpoint::echo("");
    let port = free_port();
    let _gateway = weir().start(&file(&format!(":{port}"), &upstream(&[endpoint.node()])));
    // A connected socket takes only what comes from the address that it sends to.
    for addr in ["127.0.0.1", "127.0.0.9"] {
        let addr: SocketAddr = format!("{addr}:{port}").parse().expect("an address");
        assert_eq!(ask(&client(addr), "who"), "who");
    }
}

#[test]
fn a_port_of_tcp_and_one_of_udp_have_routes_of_their_own() {
    let datagrams = DatagramEndpoint::echo("udp ");
    let bytes = crate::peers::Endpoint::echo("tcp\n");
    let port = free_port();
    let text = format!(
        "listen: [{{ address: \"127.0.0.1:{port}\", protocol: udp }}, {{ address: \"127.0.0.1:{port}\", protocol: tcp }}]\n\
         stream_routes:\n- {{ id: u, server_port: {port}, {} }}\n- {{ id: t, server_port: {port}, {} }}\n",
        upstream(&[datagrams.node()]),
        crate::peers::upstream(&[bytes.node()])
    );
    let _gateway = weir().start(&text);
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    assert_eq!(ask(&client(addr), "a"), "udp a");
    crate::peers::expect(&mut crate::peers::connect(addr), "tcp\n");
}

#[test]
fn an_endpoint_that_refuses_is_passed_over_before_its_first_answer() {
    let endpoint = DatagramEndpoint::echo("alive ");
    let (gateway, addr) = start(&upstream(&[closed_port(), endpoint.node()]));
    for number in 0..4 {
        assert_eq!(ask(&client(addr), &number.to_string()), format!("alive {number}"));
    }
    assert!(gateway.metrics().get("weir_upstream_retries_total").is_some_and(|count| count >= 1.0));
}

#[test]
fn a_session_lives_through_a_reload_and_new_ones_follow_the_new_routes() {
    let [old, new] = ["old ", "new "].map(DatagramEndpoint::echo);
    let port = free_port();
    let of = |endpoint: &DatagramEndpoint| file(&format!("127.0.0.1:{port}"), &upstream(&[endpoint.node()]));
    let gateway = weir().start(&of(&old));
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    let first = client(addr);
    assert_eq!(ask(&first, "1"), "old 1");
    gateway.rewrite(&of(&new));
    assert_eq!(ask(&first, "2"), "old 2");
    assert_eq!(ask(&client(addr), "3"), "new 3");
}

#[test]
fn a_session_ends_when_nothing_comes_and_leaves_a_record() {
    let endpoint = DatagramEndpoint::echo("hello ");
    // A busy machine takes longer than some milliseconds for an answer.
    let route = format!("idle_timeout: 2s, {}", upstream(&[endpoint.node()]));
    let settings = "enable_access_log: { path: access.log, format: json }\n";
    let gateway = weir().start(&(file("127.0.0.1:0", &route) + settings));
    let client = client(gateway.addrs_of("udp")[0]);
    assert_eq!(ask(&client, "four"), "hello four");
    let log = gateway.directory().path().join("access.log");
    let line = eventually_some("the line is written", DEADLINE, || {
        std::fs::read_to_string(&log).ok().filter(|text| text.ends_with('\n'))
    });
    let line: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
    assert_eq!((&line["protocol"], &line["status"]), (&"UDP".into(), &200.into()));
    assert_eq!((&line["bytes_received"], &line["bytes_sent"]), (&4.into(), &10.into()));
    assert_eq!(line["upstream_addr"], endpoint.addr.to_string());
    eventually("it has ended", DEADLINE, || gateway.metrics().get("weir_streams") == Some(0.0));
    assert_eq!(ask(&client, "again"), "hello again", "with a new session");
}

#[test]
fn a_datagram_that_no_route_takes_is_counted_and_costs_no_session() {
    let endpoint = DatagramEndpoint::echo("");
    let route = format!("remote_addr: 192.0.2.0/24, {}", upstream(&[endpoint.node()]));
    let (gateway, addr) = start(&route);
    client(addr).send(b"a").expect("sent");
    eventually("it is counted", DEADLINE, || {
        gateway.metrics().get("weir_stream_datagrams_dropped_total{cause=\"no_route\"}") == Some(1.0)
    });
    assert_eq!(gateway.metrics().get("weir_streams_opened_total"), Some(0.0));
    assert_eq!(endpoint.received.load(Ordering::SeqCst), 0);
}

#[test]
fn a_client_has_no_more_sessions_than_connections() {
    let endpoint = DatagramEndpoint::echo("");
    let settings = "client_max_connections: 3\n";
    let gateway = weir().start(&(file("127.0.0.1:0", &upstream(&[endpoint.node()])) + settings));
    let addr = gateway.addrs_of("udp")[0];
    let clients: Vec<UdpSocket> = (0..3).map(|_| client(addr)).collect();
    clients.iter().for_each(|client| assert_eq!(ask(client, "a"), "a"));
    client(addr).send(b"one too many").expect("sent");
    eventually("it is counted", DEADLINE, || {
        gateway.metrics().get("weir_stream_datagrams_dropped_total{cause=\"sessions_of_client\"}") == Some(1.0)
    });
    clients.iter().for_each(|client| assert_eq!(ask(client, "b"), "b"));
}

#[test]
fn plugins_decide_on_sessions() {
    let endpoint = DatagramEndpoint::echo("");
    let route =
        format!("plugins: {{ ip-restriction: {{ blacklist: [127.0.0.1] }} }}, {}", upstream(&[endpoint.node()]));
    let (gateway, addr) = start(&route);
    client(addr).send(b"a").expect("sent");
    eventually("it is refused", DEADLINE, || {
        let metrics = gateway.metrics();
        metrics.get("weir_streams_opened_total") == Some(1.0) && metrics.get("weir_streams") == Some(0.0)
    });
    assert_eq!(endpoint.received.load(Ordering::SeqCst), 0);
}

#[test]
fn an_upgrade_hands_the_port_over() {
    let endpoint = DatagramEndpoint::echo("");
    let (gateway, addr) = start(&upstream(&[endpoint.node()]));
    let client = client(addr);
    assert_eq!(ask(&client, "before"), "before");
    gateway.signal(weir_testkit::Signal::USR2);
    gateway.wait_stderr("that the old process drains", |line| line.contains("drain"));
    for round in 0..10 {
        let text = format!("after {round}");
        assert_eq!(ask(&client, &text), text);
    }
}

#[test]
fn explain_names_the_route_of_a_datagram() {
    let endpoint = DatagramEndpoint::echo("");
    let (gateway, _) = start(&format!("server_port: 53, {}", upstream(&[endpoint.node()])));
    let explain = |method: &str| {
        let file = gateway.directory().path().join("weir.yaml");
        let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("explain").arg(file).args([method, ":53"]).output();
        String::from_utf8_lossy(&output.expect("it runs").stdout).into_owned()
    };
    assert!(explain("UDP").contains("stream_route/s"), "{}", explain("UDP"));
    assert!(explain("TCP").contains("No stream route takes this connection"), "{}", explain("TCP"));
}
