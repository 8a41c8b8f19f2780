//! How exact limits are where it is hard: many connections of both protocols at once, windows that end under load, and
//! more keys than a table has room for.

use std::collections::BTreeMap;
use std::thread;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use weir_testkit::{Gateway, Response, scaled};

use crate::Rig;

/// Connections of each protocol.
const CONNECTIONS: usize = 32;
/// Requests that a connection of HTTP/2 has under way at a time.
const STREAMS: usize = 8;

/// What one request was told: its status, and `X-RateLimit-Remaining`.
type LimitAnswer = (u16, u64);

fn told(answer: &Response) -> LimitAnswer {
    let left = answer.headers.get("x-ratelimit-remaining").expect("it is told what is left");
    (answer.status, left.parse().expect("a number"))
}

fn by_http1(gateway: &Gateway, requests: usize) -> Vec<LimitAnswer> {
    let mut client = gateway.client();
    (0..requests).map(|_| told(&client.get("/").expect("an answer"))).collect()
}

fn by_http2(gateway: &Gateway, requests: usize) -> Vec<LimitAnswer> {
    let addr = gateway.addr();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async move {
        let tcp = TcpStream::connect(addr).await.expect("it listens");
        let (client, connection) = h2::client::handshake(tcp).await.expect("HTTP/2 by prior knowledge");
        tokio::spawn(connection);
        let mut streams = JoinSet::new();
        for stream in 0..STREAMS {
            let mut client = client.clone();
            streams.spawn(async move {
                let share = requests / STREAMS + usize::from(stream < requests % STREAMS);
                let mut all = Vec::with_capacity(share);
                for _ in 0..share {
                    client = client.ready().await.expect("the connection lasts");
                    let request = http::Request::get(format!("http://{addr}/")).body(()).expect("a request");
                    let (answer, _) = client.send_request(request, true).expect("it is sent");
                    let (head, mut body) = answer.await.expect("an answer").into_parts();
                    while let Some(part) = body.data().await {
                        let length = part.expect("the answer is whole").len();
                        body.flow_control().release_capacity(length).expect("it was received");
                    }
                    let left = head.headers["x-ratelimit-remaining"].to_str().expect("text");
                    all.push((head.status.as_u16(), left.parse().expect("a number")));
                }
                all
            });
        }
        streams.join_all().await.concat()
    })
}

/// Sends so many requests over 64 connections at once, half of them HTTP/2.
fn ask(gateway: &Gateway, requests: usize) -> Vec<LimitAnswer> {
    let each = requests.div_ceil(2 * CONNECTIONS);
    thread::scope(|scope| {
        let clients = [by_http1, by_http2].into_iter().cycle().take(2 * CONNECTIONS);
        let clients: Vec<_> = clients.map(|client| scope.spawn(move || client(gateway, each))).collect();
        clients.into_iter().flat_map(|client| client.join().expect("no panic")).collect()
    })
}

/// How often each number of requests left was told to one that was let through.
fn places(told: &[LimitAnswer]) -> BTreeMap<u64, usize> {
    let mut places = BTreeMap::new();
    told.iter().filter(|(status, _)| *status == 200).for_each(|(_, left)| *places.entry(*left).or_default() += 1);
    places
}

#[test]
fn p08_exactly_the_count_passes_over_connections_of_both_protocols() {
    for window in ["fixed", "sliding"] {
        let requests = scaled(8_000, 1_000_000);
        let count = requests as u64 / 8;
        // One window for all of it: 366 days, or the part of one that is left.
        let limit = format!("{{ limit-count: {{ count: {count}, time_window: 31622400, window_type: {window} }} }}");
        let rig = Rig::workers(2, &limit);
        let told = ask(&rig.gateway, requests);
        assert!(told.len() >= requests);
        let places = places(&told);
        assert_eq!(places.len() as u64, count, "{window}");
        assert!(places.into_iter().eq((0..count).map(|left| (left, 1))), "{window}");
        assert_eq!(rig.origin.requests().len() as u64, count, "{window}");
        assert!(told.iter().all(|told| matches!(told, (200, _) | (503, 0))), "{window}");
    }
}

#[test]
fn p08_no_window_lets_through_more_while_windows_end_under_load() {
    const COUNT: u64 = 100;
    let rig = Rig::workers(2, &format!("{{ limit-count: {{ count: {COUNT}, time_window: 1 }} }}"));
    let told = ask(&rig.gateway, scaled(60_000, 1_000_000));
    // A window hands its places out in order. So each place was handed out as often as there were windows, but for those
    // that windows did not come to: never a later place more often than an earlier one.
    let places = places(&told);
    let times: Vec<usize> = (0..COUNT).rev().map(|left| places.get(&left).copied().unwrap_or(0)).collect();
    assert!(times.is_sorted_by(|earlier, later| earlier >= later), "{times:?}");
    assert_eq!(times.iter().sum::<usize>(), told.iter().filter(|(status, _)| *status == 200).count());
    assert!(times[COUNT as usize - 1] > 0 && told.contains(&(503, 0)), "a window was used up: {times:?}");
    println!("{} windows, {} of them used up", times[0], times[COUNT as usize - 1]);
}

/// What the counters add to the memory of a gateway, as `docs/guide/limits.md` says.
const TABLE: u64 = 16 << 20;
/// What its first million of requests touches besides.
const REST: u64 = 4 << 20;

#[test]
fn p08_a_flood_of_keys_neither_fills_memory_nor_frees_who_is_limited() {
    const COUNT: usize = 20;
    // Whom the limit lets through is answered here, so that an origin need not write a million requests down.
    let rig = Rig::with(&format!(
        "{{ limit-count: {{ count: {COUNT}, time_window: 31622400, key: arg_k }}, \
         ip-restriction: {{ blacklist: [\"127.0.0.0/8\"], _meta: {{ priority: 1 }} }} }}"
    ));
    let before = rig.gateway.rss();
    let limited: Vec<String> = (0..50).map(|number| format!("/?k=limited-{number}")).collect();
    let mut client = rig.gateway.client();
    let mut status = |target: &str| client.get(target).expect("an answer").status;
    for target in &limited {
        (0..COUNT).for_each(|_| assert_eq!(status(target), 403));
        assert_eq!(status(target), 503, "its limit is reached");
    }
    let keys = scaled(50_000, 1_000_000);
    let mut flood = rig.gateway.client();
    for batch in 0..keys / 50 {
        let requests = (0..50).map(|number| format!("GET /?k={batch}-{number} HTTP/1.1\r\nHost: t\r\n\r\n"));
        flood.send(requests.collect::<String>());
        (0..50).for_each(|_| assert_eq!(flood.response().expect("an answer").status, 403));
    }
    let grown = rig.gateway.rss().saturating_sub(before);
    println!("{keys} keys: {grown} bytes more");
    assert!(grown <= TABLE + REST, "{keys} keys took {grown} bytes");
    for target in &limited {
        assert_eq!(status(target), 503, "{target} is free again");
    }
}
