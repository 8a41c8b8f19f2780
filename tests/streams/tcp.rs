//! Bytes in both directions, and the choice of the endpoint.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::getpeername;
use rustix::net::sockopt::tcp_nodelay;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use weir_testkit::{DEADLINE, Gateway, eventually, scaled};

use crate::peers::{Endpoint, connect, expect, ping, refusing, rest, upstream};
use crate::redis::Redis;
use crate::{start, weir};

#[test]
fn bytes_go_both_ways_whoever_speaks_first() {
    let endpoint = Endpoint::echo("220 ready\n");
    let (_gateway, addr) = start(&upstream(&[endpoint.node()]));
    let mut client = connect(addr);
    expect(&mut client, "220 ready\n");
    for round in 0..3 {
        ping(&mut client, &format!("round {round}\n"));
    }
}

/// The gateway's own socket that is connected to `peer`.
fn socket_to(gateway: &Gateway, peer: SocketAddr) -> OwnedFd {
    let pid = Pid::from_raw(gateway.pid() as i32).expect("a process has a number");
    let process = pidfd_open(pid, PidfdFlags::empty()).expect("it runs");
    let files = fs::read_dir(format!("/proc/{}/fd", gateway.pid())).expect("it runs");
    let numbers = files.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let copy = |number| match pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) {
        // It has been closed since the folder was read.
        Err(Errno::BADF) => None,
        outcome => Some(outcome.expect("a process may copy the descriptors of one that it has started")),
    };
    let mut files = numbers.filter_map(copy);
    let peer_of = |file: &OwnedFd| SocketAddr::try_from(getpeername(file).ok()??).ok();
    files.find(|file| peer_of(file) == Some(peer)).expect("it is connected")
}

#[test]
fn an_endpoint_gets_each_piece_at_once_and_the_first_needs_no_option_for_that() {
    let endpoint = Endpoint::echo("");
    let (gateway, addr) = start(&upstream(&[endpoint.node()]));
    let mut client = connect(addr);
    ping(&mut client, "first");
    let socket = socket_to(&gateway, endpoint.addr);
    assert!(!tcp_nodelay(&socket).expect("an option of the socket"));
    ping(&mut client, "second");
    assert!(tcp_nodelay(&socket).expect("an option of the socket"));
}

#[test]
fn a_half_that_is_closed_leaves_the_other_open() {
    // The endpoint answers only after the end of what it gets.
    let endpoint = Endpoint::new(|mut stream| {
        let got = rest(&mut stream).expect("a clean end");
        stream.write_all(got.to_uppercase().as_bytes()).expect("the client still reads");
    });
    let (_gateway, addr) = start(&upstream(&[endpoint.node()]));
    let mut client = connect(addr);
    client.write_all(b"all of it").expect("sent");
    client.shutdown(Shutdown::Write).expect("open");
    assert_eq!(rest(&mut client).expect("a clean end"), "ALL OF IT");
}

#[test]
fn an_endpoint_that_closes_its_half_first_still_gets_the_rest() {
    let (sender, received) = std::sync::mpsc::channel();
    let endpoint = Endpoint::new(move |mut stream| {
        stream.write_all(b"bye").expect("sent");
        stream.shutdown(Shutdown::Write).expect("open");
        sender.send(rest(&mut stream).expect("a clean end")).expect("the test waits");
    });
    let (_gateway, addr) = start(&upstream(&[endpoint.node()]));
    let mut client = connect(addr);
    assert_eq!(rest(&mut client).expect("a clean end"), "bye");
    client.write_all(b"and the rest").expect("sent");
    drop(client);
    assert_eq!(received.recv_timeout(DEADLINE).expect("it came"), "and the rest");
}

#[test]
fn a_reset_of_one_side_is_a_reset_for_the_other() {
    let endpoint = Endpoint::new(|mut stream| {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a byte");
        // Closing with an unread byte resets the connection.
        while stream.peek(&mut byte).is_ok_and(|count| count == 0) {}
    });
    let (_gateway, addr) = start(&upstream(&[endpoint.node()]));
    let mut client = connect(addr);
    client.write_all(b"ab").expect("sent");
    assert!(rest(&mut client).is_err(), "an end would look like complete data");
}

#[test]
fn many_megabytes_arrive_unchanged_in_both_directions() {
    let endpoint = Endpoint::echo("");
    let (_gateway, addr) = start(&upstream(&[endpoint.node()]));
    let size = scaled(8, 64) * 1024 * 1024;
    let mut sender = connect(addr);
    let mut receiver = sender.try_clone().expect("a socket");
    let pattern = |at: usize| ((at * 31) >> 3) as u8;
    let writer = std::thread::spawn(move || {
        let bytes: Vec<u8> = (0..size).map(pattern).collect();
        sender.write_all(&bytes).expect("sent");
        sender.shutdown(Shutdown::Write).expect("open");
    });
    let mut got = Vec::new();
    receiver.read_to_end(&mut got).expect("a clean end");
    writer.join().expect("it does not panic");
    assert_eq!(got.len(), size);
    assert!(got.iter().enumerate().all(|(at, byte)| *byte == pattern(at)));
}

#[test]
fn an_endpoint_that_refuses_is_passed_over_before_the_first_byte() {
    let endpoint = Endpoint::echo("hello\n");
    let nodes = [refusing(), endpoint.node()];
    let (gateway, addr) = start(&upstream(&nodes));
    for _ in 0..4 {
        expect(&mut connect(addr), "hello\n");
    }
    assert!(gateway.metrics().get("weir_upstream_retries_total").is_some_and(|count| count >= 1.0));
}

#[test]
fn without_an_endpoint_the_client_is_told_at_once() {
    let (gateway, addr) = start(&upstream(&[refusing()]));
    let mut client = connect(addr);
    assert!(rest(&mut client).is_err(), "a reset, since nothing was answered");
    eventually("it is counted", DEADLINE, || {
        gateway.metrics().get("weir_stream_errors_total{cause=\"connect_failed\"}") == Some(1.0)
    });
}

#[test]
fn a_client_keeps_its_endpoint_by_its_address() {
    let endpoints = ["a\n", "b\n", "c\n"].map(Endpoint::echo);
    let nodes: Vec<String> = endpoints.iter().map(Endpoint::node).collect();
    let hashed =
        format!("upstream: {{ scheme: tcp, type: chash, key: remote_addr, nodes: {{ {} }} }}", nodes.join(", "));
    let (_gateway, addr) = start(&hashed);
    for _ in 0..9 {
        let mut greeting = [0; 2];
        connect(addr).read_exact(&mut greeting).expect("a greeting");
    }
    let mut counts = endpoints.each_ref().map(Endpoint::accepted);
    counts.sort_unstable();
    assert_eq!(counts, [0, 0, 9]);
}

#[test]
fn connections_are_spread_over_endpoints_in_turn() {
    let endpoints = ["a\n", "b\n"].map(Endpoint::echo);
    let (_gateway, addr) = start(&upstream(&endpoints.each_ref().map(Endpoint::node)));
    let mut clients: Vec<TcpStream> = (0..10).map(|_| connect(addr)).collect();
    for client in &mut clients {
        client.read_exact(&mut [0; 2]).expect("a greeting");
    }
    assert_eq!(endpoints.each_ref().map(Endpoint::accepted), [5, 5]);
}

#[test]
fn the_route_is_chosen_by_port_address_and_client() {
    let [any, port, other] = ["any\n", "port\n", "other\n"].map(Endpoint::echo);
    let ports = [weir_testkit::free_port(), weir_testkit::free_port()];
    let file = format!(
        "listen: [{{ address: \"127.0.0.1:{0}\", protocol: tcp }}, {{ address: \"127.0.0.1:{1}\", protocol: tcp }}]\n\
         stream_routes:\n\
         - {{ id: any, {2} }}\n\
         - {{ id: port, server_port: {1}, {3} }}\n\
         - {{ id: other, server_port: {1}, remote_addr: 192.0.2.0/24, {4} }}\n",
        ports[0],
        ports[1],
        upstream(&[any.node()]),
        upstream(&[port.node()]),
        upstream(&[other.node()]),
    );
    let _gateway = weir().start(&file);
    expect(&mut connect(([127, 0, 0, 1], ports[0]).into()), "any\n");
    expect(&mut connect(([127, 0, 0, 1], ports[1]).into()), "port\n");
    assert_eq!(other.accepted(), 0);
}

#[test]
fn a_proxy_header_names_the_client_to_the_route_and_to_the_endpoint() {
    let endpoint = Endpoint::echo("");
    let file = format!(
        "listen: [{{ address: \"127.0.0.1:0\", protocol: tcp, proxy_protocol: true }}]\ntrusted_addresses: [127.0.0.1]\n\
         stream_routes: [{{ id: s, remote_addr: 192.0.2.7, upstream: {{ scheme: tcp, proxy_protocol: v1, nodes: {{ {} }} }} }}]\n",
        endpoint.node()
    );
    let gateway = weir().start(&file);
    let addr = gateway.addrs_of("proxy-tcp")[0];
    let mut client = connect(addr);
    client.write_all(b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 25\r\nMAIL\n").expect("sent");
    let local = format!("PROXY TCP4 192.0.2.7 127.0.0.1 4711 {}\r\nMAIL\n", addr.port());
    expect(&mut client, &local);
    let mut other = connect(addr);
    other.write_all(b"PROXY TCP4 192.0.2.8 10.0.0.1 4711 25\r\nMAIL\n").expect("sent");
    assert!(rest(&mut other).map_or(true, |rest| rest.is_empty()), "no route has this client");
}

#[test]
fn a_redis_is_served() {
    let Some(redis) = Redis::start(&[]) else { return };
    let (_gateway, addr) = start(&upstream(&[format!("\"127.0.0.1:{}\": 1", redis.port)]));
    let mut client = connect(addr);
    for (command, answer) in [("PING\r\n", "+PONG\r\n"), ("SET a 1\r\n", "+OK\r\n"), ("INCR a\r\n", ":2\r\n")] {
        client.write_all(command.as_bytes()).expect("sent");
        expect(&mut client, answer);
    }
    assert_eq!(redis.ask("GET a"), "2");
}
