//! What a stream may hold: time, memory, and places at an endpoint.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use weir_testkit::{DEADLINE, Gate, Gateway, eventually};

use crate::peers::{Endpoint, connect, expect, greeted, ping, rest, upstream};
use crate::start;

#[test]
fn a_stream_without_bytes_ends_after_its_idle_time() {
    let endpoint = Endpoint::echo("hello\n");
    let (gateway, addr) = start(&format!("idle_timeout: 300ms, {}", upstream(&[endpoint.node()])));
    let mut client = greeted(addr, "hello\n");
    assert!(rest(&mut client).is_err(), "it was reset");
    eventually("it is counted", DEADLINE, || {
        gateway.metrics().get("weir_stream_errors_total{cause=\"idle_timeout\"}") >= Some(1.0)
    });
}

#[test]
fn the_timeout_of_an_upstream_is_the_idle_time() {
    let endpoint = Endpoint::echo("hello\n");
    let upstream = format!(
        "upstream: {{ scheme: tcp, timeout: {{ connect: 5, send: 100ms, read: 300ms }}, nodes: {{ {} }} }}",
        endpoint.node()
    );
    let (_gateway, addr) = start(&upstream);
    let mut client = greeted(addr, "hello\n");
    assert!(rest(&mut client).is_err(), "it was reset");
}

/// What the kernel waits for on the socket that is connected to `peer`, as /proc/net/tcp has it: `02` is the next keep-alive probe.
fn timer_of_socket_to(peer: SocketAddr) -> Option<String> {
    let sockets = std::fs::read_to_string("/proc/net/tcp").expect("it is mounted");
    let SocketAddr::V4(peer) = peer else { panic!("the endpoint is on IPv4") };
    let peer = format!("{:08X}:{:04X}", u32::from_ne_bytes(peer.ip().octets()), peer.port());
    let mut lines = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|fields| fields[2] == peer && fields[3] == "01")?;
    Some(line[5].split(':').next()?.to_owned())
}

#[test]
fn the_kernel_watches_the_endpoint_of_a_stream_that_lasts() {
    let endpoint = Endpoint::echo("");
    let (_gateway, addr) = start(&upstream(&[endpoint.node()]));
    let mut client = connect(addr);
    ping(&mut client, "x");
    assert_eq!(timer_of_socket_to(endpoint.addr).as_deref(), Some("00"), "most streams end before it would matter");
    // Nothing moves on the stream meanwhile: its timer alone begins it, in the tenth second.
    eventually("the kernel watches it", DEADLINE + Duration::from_secs(10), || {
        timer_of_socket_to(endpoint.addr).as_deref() == Some("02")
    });
    ping(&mut client, "y");
}

/// The bytes in the pipes of the gateway, which are no memory of its process.
fn bytes_in_pipes(gateway: &Gateway) -> u64 {
    let directory = format!("/proc/{}/fd", gateway.pid());
    let files = fs::read_dir(directory).expect("it runs").filter_map(|entry| Some(entry.ok()?.path()));
    // Both ends of a pipe have its number.
    let pipes: BTreeMap<_, _> = files
        .filter_map(|file| Some((fs::read_link(&file).ok()?, file)))
        .filter(|(number, _)| number.to_string_lossy().starts_with("pipe:"))
        .collect();
    let open = |file| rustix::fs::open(file, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
    let held = |file| open(file).and_then(rustix::io::ioctl_fionread).ok();
    pipes.into_values().filter_map(held).sum()
}

#[test]
fn u22_a_slow_reader_stops_its_sender_and_holds_little_memory() {
    let gate = Gate::new();
    let held = gate.clone();
    // Reads nothing until the gate opens.
    let endpoint = Endpoint::new(move |mut stream| {
        held.wait();
        let got = rest(&mut stream).expect("a clean end").len();
        stream.write_all(got.to_string().as_bytes()).expect("the client still reads");
    });
    let (gateway, addr) = start(&upstream(&[endpoint.node()]));
    let before = gateway.rss();
    let mut client = connect(addr);
    client.set_write_timeout(Some(Duration::from_millis(500))).expect("set");
    let piece = vec![7; 1 << 20];
    let mut sent = 0;
    let stopped = loop {
        match client.write(&piece) {
            Ok(count) => sent += count,
            Err(error) => break error.kind(),
        }
        assert!(sent < 256 << 20, "nothing stops the sender");
    };
    assert!(matches!(stopped, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{stopped:?}");
    let (grown, in_pipes) = (gateway.rss().saturating_sub(before), bytes_in_pipes(&gateway));
    // In the kernel 1 MiB, or 64 KiB of its own.
    assert!(grown + in_pipes < 2 << 20, "{grown} and {in_pipes} bytes for one stream");
    gate.open();
    client.shutdown(std::net::Shutdown::Write).expect("open");
    assert_eq!(rest(&mut client).expect("a clean end"), sent.to_string());
}

#[test]
fn an_endpoint_has_no_more_streams_than_its_concurrency() {
    let endpoint = Endpoint::echo("in\n");
    let upstream = format!(
        "upstream: {{ scheme: tcp, concurrency: 2, queue: {{ timeout: 30s }}, nodes: {{ {} }} }}",
        endpoint.node()
    );
    let (gateway, addr) = start(&format!("{upstream}, name: x"));
    let mut clients: Vec<_> = (0..2).map(|_| connect(addr)).collect();
    clients.iter_mut().for_each(|client| expect(client, "in\n"));
    let mut third = connect(addr);
    eventually("the third waits", DEADLINE, || gateway.metrics().sum("weir_upstream_queued", &[]) == 1.0);
    assert_eq!(endpoint.accepted(), 2);
    drop(clients.pop());
    expect(&mut third, "in\n");
}

#[test]
fn without_a_number_streams_are_not_limited_by_what_is_measured_of_requests() {
    let endpoint = Endpoint::echo("in\n");
    let (_gateway, addr) = start(&upstream(&[endpoint.node()]));
    let mut clients: Vec<_> = (0..200).map(|_| connect(addr)).collect();
    clients.iter_mut().for_each(|client| expect(client, "in\n"));
    clients.iter_mut().for_each(|client| ping(client, "all are open\n"));
}

#[test]
fn u23_a_flood_of_connections_of_one_client_is_bounded() {
    let endpoint = Endpoint::echo("in\n");
    let settings = crate::file(&upstream(&[endpoint.node()])) + "client_max_connections: 20\n";
    let gateway = crate::weir().start(&settings);
    let addr = gateway.addrs_of("tcp")[0];
    let mut clients: Vec<_> = (0..100).map(|_| connect(addr)).collect();
    // None leaves before all have an answer: its place would be another's.
    let served = clients.iter_mut().filter_map(|client| client.read(&mut [0; 3]).ok().filter(|count| *count > 0));
    assert_eq!(served.count(), 20);
}

#[test]
fn the_plugin_limit_conn_counts_streams() {
    let endpoint = Endpoint::echo("in\n");
    let plugin = "plugins: { limit-conn: { conn: 1, burst: 0, default_conn_delay: 0.1, key: remote_addr } }";
    let (_gateway, addr) = start(&format!("{plugin}, {}", upstream(&[endpoint.node()])));
    let mut first = connect(addr);
    expect(&mut first, "in\n");
    assert!(rest(&mut connect(addr)).is_err(), "the first is still open");
    drop(first);
    eventually("there is room again", DEADLINE, || connect(addr).read(&mut [0; 3]).is_ok_and(|count| count > 0));
}
