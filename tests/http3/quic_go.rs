//! HTTP/3 by quic-go, which moves to other ports and proves each of them first.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use weir_testkit::{Authority, Identity, TempDir, runs_for_minutes, scaled};

use crate::client::{NAME, ask, client, request, run};
use crate::programs::{
    Http3Program, MIB, accepted, bodies, large_content_is_whole, objects_come_over_one_connection, origin,
};
use crate::relay::{self, BadNetwork};
use crate::with_workers;

#[test]
fn quic_go_gets_100_objects_over_one_connection() {
    objects_come_over_one_connection(Http3Program::QuicGo);
}

#[test]
fn quic_go_sends_and_receives_large_content() {
    large_content_is_whole(Http3Program::QuicGo, scaled(64 * MIB, 1024 * MIB));
}

#[test]
fn quic_go_moves_from_port_to_port() {
    let origin = origin();
    let served = with_workers(&origin, 2);
    let Some(said) = Http3Program::QuicGo.ask(&served, &["move", "20"]) else { return };
    assert_eq!(said["bodies"], bodies(21));
    let ports: std::collections::BTreeSet<_> =
        said["ports"].as_array().expect("a list").iter().map(|port| port.to_string()).collect();
    assert_eq!((ports.len(), accepted(&served)), (21, 1));
}

/// A server of quic-go's, which ends with it.
struct QuicGoServer {
    child: Child,
    addr: SocketAddr,
}

impl QuicGoServer {
    fn start(authority: &Authority) -> Option<QuicGoServer> {
        let directory = TempDir::new();
        let Identity { certificate, key } = authority.identity(&[NAME]);
        let mut command = Http3Program::QuicGo.command()?;
        command.arg("serve").arg(directory.write("cert.pem", certificate)).arg(directory.write("key.pem", key));
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it is installed");
        let mut port = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut port).expect("it says its port");
        let port: u16 = port.trim().parse().expect("a port");
        Some(QuicGoServer { child, addr: SocketAddr::from(([127, 0, 0, 1], port)) })
    }
}

impl Drop for QuicGoServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How long 1 MiB takes over a network that loses 1 % and delays by 15 ms in each direction.
fn lossy_download(authority: &Authority, server: SocketAddr, seed: u64) -> Duration {
    run(async {
        let network = BadNetwork { lost: 10, delay: Duration::from_millis(15), ..BadNetwork::default() };
        let (address, _counts) = relay::start(server, network, seed).await;
        let (mut sender, _quic) = client(authority, address).await;
        let started = Instant::now();
        let (response, content) = ask(&mut sender, request("GET", &format!("/content/{MIB}"))).await;
        assert_eq!((response.status().as_u16(), content.len()), (200, MIB));
        started.elapsed()
    })
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Most of the time is that of the network: what is compared is how each recovers losses and how fast it sends, not the machine. Which
/// packets are lost differs, so that the ratio of two medians varies by a tenth or two.
#[test]
fn a_lossy_network_costs_at_most_half_more_than_with_quic_go() {
    if !runs_for_minutes("it downloads a hundred times with 30 ms for each round trip") {
        return;
    }
    let origin = origin();
    let served = with_workers(&origin, 1);
    let Some(other) = QuicGoServer::start(&served.authority) else { return };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for seed in 0..51 {
        ours.push(lossy_download(&served.authority, served.gateway.tls_addr(), seed));
        theirs.push(lossy_download(&served.authority, other.addr, seed));
    }
    let (ours, theirs) = (median(ours), median(theirs));
    println!("1 MiB: {ours:?} with Weir, {theirs:?} with quic-go");
    assert!(ours <= theirs.mul_f64(1.5), "{ours:?} with Weir, {theirs:?} with quic-go");
}
