//! Streams outlive what happens to the configuration and to the process.

use std::net::SocketAddr;
use std::time::Duration;

use weir_testkit::{DEADLINE, Signal, eventually, free_port, scaled};

use crate::peers::{Endpoint, connect, expect, ping, rest, upstream};
use crate::{file, start, weir};

#[test]
fn reloads_and_an_upgrade_cut_no_stream_and_new_ones_follow_the_new_routes() {
    let [old, new] = ["old\n", "new\n"].map(Endpoint::echo);
    for workers in [1, 2] {
        let of = |endpoint: &Endpoint, round: usize| {
            file(&format!("desc: \"{round}\", {}", upstream(&[endpoint.node()])))
                + &format!("worker_processes: {workers}\n")
        };
        let gateway = weir().start(&of(&old, 0));
        let addr = gateway.addrs_of("tcp")[0];
        // One after the other: the queue of the endpoint is short.
        let open = |_| {
            let mut client = connect(addr);
            expect(&mut client, "old\n");
            client
        };
        let mut clients: Vec<_> = (0..scaled(50, 1_000)).map(open).collect();
        for round in 0..scaled(5, 100) {
            gateway.rewrite(&of(&new, round + 1));
            clients.iter_mut().for_each(|client| ping(client, "still here\n"));
        }
        expect(&mut connect(addr), "new\n");
        gateway.signal(Signal::USR2);
        gateway.wait_stderr("that the old process drains", |line| line.contains("drain"));
        clients.iter_mut().for_each(|client| ping(client, "and after the upgrade\n"));
        expect(&mut connect(addr), "new\n");
    }
}

#[test]
fn a_stream_outlives_its_route() {
    let endpoint = Endpoint::echo("in\n");
    let (gateway, addr) = start(&upstream(&[endpoint.node()]));
    let mut client = connect(addr);
    expect(&mut client, "in\n");
    gateway.rewrite("listen: [\"127.0.0.1:0\", { address: \"127.0.0.1:0\", protocol: tcp }]\n");
    ping(&mut client, "without a route\n");
    assert!(rest(&mut connect(addr)).is_err(), "new connections have none");
}

#[test]
fn a_removed_listener_lets_its_streams_end_in_time() {
    let endpoint = Endpoint::echo("in\n");
    let port = free_port();
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    let routes =
        format!("stream_routes: [{{ id: s, {} }}]\nworker_shutdown_timeout: 4s\n", upstream(&[endpoint.node()]));
    let file = |listen: &str| format!("listen: [\"127.0.0.1:0\"{listen}]\n{routes}");
    let gateway = weir().start(&file(&format!(", {{ address: \"{addr}\", protocol: tcp }}")));
    let mut client = connect(addr);
    expect(&mut client, "in\n");
    gateway.rewrite(&file(""));
    ping(&mut client, "still here\n");
    assert!(rest(&mut client).is_err(), "it is reset when the time to drain is over");
}

#[test]
fn a_node_that_ends_waits_for_its_streams_as_long_as_it_says() {
    let endpoint = Endpoint::echo("in\n");
    for (patience, is_finished) in [("30s", true), ("1s", false)] {
        let settings = format!("worker_shutdown_timeout: {patience}\n");
        let mut gateway = weir().start(&(file(&upstream(&[endpoint.node()])) + &settings));
        let addr = gateway.addrs_of("tcp")[0];
        let mut client = connect(addr);
        expect(&mut client, "in\n");
        gateway.signal(Signal::TERM);
        eventually("it accepts no more", DEADLINE, || {
            std::net::TcpStream::connect_timeout(&addr, Duration::from_secs(1)).is_err()
        });
        match is_finished {
            true => {
                ping(&mut client, "to the end\n");
                client.shutdown(std::net::Shutdown::Write).expect("open");
                assert_eq!(rest(&mut client).expect("a clean end"), "");
            }
            false => assert!(rest(&mut client).is_err(), "it is reset when the time is over"),
        }
        assert!(gateway.wait_exit(DEADLINE).success());
    }
}

#[test]
fn a_binary_upgrade_cuts_no_stream() {
    let endpoint = Endpoint::echo("in\n");
    let gateway = weir().start(&file(&upstream(&[endpoint.node()])));
    let addr = gateway.addrs_of("tcp")[0];
    let mut client = connect(addr);
    expect(&mut client, "in\n");
    gateway.signal(Signal::USR2);
    gateway.wait_stderr("that the old process drains", |line| line.contains("drain"));
    ping(&mut client, "still here\n");
    expect(&mut connect(addr), "in\n");
    ping(&mut client, "and still\n");
}
