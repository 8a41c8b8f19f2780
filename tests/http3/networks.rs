//! HTTP/3 over networks that lose, delay, duplicate and reorder datagrams, and through a NAT that changes its ports.

use std::time::Duration;

use bytes::Bytes;
use weir_testkit::scaled;

use crate::client::{Sender, ask, client, request, rest, run};
use crate::programs::{MIB, accepted, origin, pieces, sum};
use crate::relay::{self, BadNetwork, RelayCounts};
use crate::with_workers;

/// The bytes of each upload and download.
const LENGTH: u64 = MIB as u64;

/// Sends content of 1 MiB; it has to arrive whole.
async fn upload(mut sender: Sender) {
    let mut stream = sender.send_request(request("POST", "/sum")).await.expect("it is sent");
    for piece in pieces(LENGTH) {
        stream.send_data(Bytes::from(piece)).await.expect("it is taken");
    }
    stream.finish().await.expect("it ends");
    assert_eq!(stream.recv_response().await.expect("a response").status(), 200);
    assert_eq!(rest(&mut stream).await.0, sum(pieces(LENGTH)).into_bytes());
}

/// Receives content of 1 MiB, which has to be whole.
async fn download(mut sender: Sender) {
    let (response, received) = ask(&mut sender, request("GET", &format!("/content/{LENGTH}"))).await;
    assert_eq!(response.status(), 200);
    assert!(received == pieces(LENGTH).flatten().collect::<Vec<_>>(), "{} bytes", received.len());
}

/// So many requests, ten at a time; each has to be answered with its own path.
async fn ask_many(sender: &Sender, count: usize) {
    for first in (0..count).step_by(10) {
        let requests = (first..first + 10).map(|number| {
            let mut sender = sender.clone();
            tokio::spawn(async move {
                let path = format!("/object/{number}");
                let (response, content) = ask(&mut sender, request("GET", &path)).await;
                assert_eq!((response.status().as_u16(), content), (200, path.into_bytes()));
            })
        });
        for request in requests.collect::<Vec<_>>() {
            request.await.expect("it is answered");
        }
    }
}

/// An upload, a download and small requests at the same time, over one connection. All have to be whole.
fn all_is_whole(network: BadNetwork, counted: impl Fn(&RelayCounts)) {
    for seed in 1..=scaled(1, 20) as u64 {
        let origin = origin();
        let served = with_workers(&origin, 2);
        let counts = run(async {
            let (address, counts) = relay::start(served.gateway.tls_addr(), network, seed).await;
            let (sender, quic) = client(&served.authority, address).await;
            let (up, down) = (tokio::spawn(upload(sender.clone())), tokio::spawn(download(sender.clone())));
            ask_many(&sender, 50).await;
            up.await.expect("it is answered");
            down.await.expect("it is answered");
            assert_eq!(quic.close_reason(), None);
            counts
        });
        assert_eq!((accepted(&served), origin.requests().len()), (1, 52));
        counted(&counts);
    }
}

#[test]
fn content_is_whole_over_a_network_that_loses_and_delays() {
    let network = BadNetwork { lost: 10, delay: Duration::from_millis(30), ..BadNetwork::default() };
    all_is_whole(network, |counts| assert!(RelayCounts::of(&counts.lost) > 0, "{counts:?}"));
}

#[test]
fn content_is_whole_over_a_network_that_duplicates_and_reorders() {
    let network = BadNetwork { duplicated: 100, late: 30, delay: Duration::from_millis(2), ..BadNetwork::default() };
    all_is_whole(network, |counts| {
        assert!(RelayCounts::of(&counts.duplicated) > 0 && RelayCounts::of(&counts.late) > 0, "{counts:?}");
    });
}

#[test]
fn content_is_whole_over_a_network_that_reorders_and_changes_ports() {
    let (duplicated, late, delay) = (20, 20, Duration::from_millis(5));
    let network = BadNetwork { duplicated, late, delay, moves_after: Some(100), ..BadNetwork::default() };
    all_is_whole(network, |counts| assert!(RelayCounts::of(&counts.moved) > 5, "{counts:?}"));
}

#[test]
fn a_client_whose_port_changes_all_the_time_loses_no_request() {
    for workers in [1, 2] {
        let origin = origin();
        let served = with_workers(&origin, workers);
        let network = BadNetwork { moves_after: Some(40), ..BadNetwork::default() };
        let moved = run(async {
            let (address, counts) = relay::start(served.gateway.tls_addr(), network, 1).await;
            let (sender, quic) = client(&served.authority, address).await;
            ask_many(&sender, 600).await;
            assert_eq!(quic.close_reason(), None);
            RelayCounts::of(&counts.moved)
        });
        assert!(moved >= 5, "the port has changed {moved} times");
        assert_eq!((accepted(&served), origin.requests().len()), (1, 600), "{workers} workers");
    }
}

#[test]
fn a_client_hello_in_two_datagrams_may_come_in_the_wrong_order() {
    let origin = origin();
    let served = with_workers(&origin, 2);
    let network = BadNetwork { is_first_late: true, delay: Duration::from_millis(20), ..BadNetwork::default() };
    for seed in 0..10 {
        run(async {
            let (address, counts) = relay::start(served.gateway.tls_addr(), network, seed).await;
            let (mut sender, _quic) = client(&served.authority, address).await;
            let (response, content) = ask(&mut sender, request("GET", "/object/1")).await;
            assert_eq!((response.status().as_u16(), content), (200, b"/object/1".to_vec()));
            assert_eq!(RelayCounts::of(&counts.late), 1);
        });
    }
    assert_eq!(accepted(&served), 10);
}
