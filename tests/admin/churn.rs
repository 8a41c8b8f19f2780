//! Resources change all the time while traffic flows, and no request notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use weir_testkit::{Answer, Client, Origin, scaled};

use crate::api::{ADMIN, Api, admin_addr, file};
use crate::weir;

const ROUTES: usize = 500;

#[test]
fn changes_fail_no_request() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let gateway = weir().start(&format!("worker_processes: 2\n{}", file()));
    let mut api = Api::of(&gateway);
    let upstream = json!({"nodes": {origin.addr().to_string(): 1}});
    let mut operations = vec![json!({"put": "upstreams/u", "value": upstream})];
    operations.extend((0..ROUTES).map(|number| {
        json!({"put": format!("routes/r{number}"), "value": {"uri": format!("/{number}/*"), "upstream_id": "u"}})
    }));
    let filled = api.ask("PATCH", "configs", "", &json!({"operations": operations}).to_string());
    assert_eq!(filled.status, 200, "{}", filled.text());

    let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let address = gateway.addr();
    let clients = (0..4).map(|client| {
        let (stop, served) = (Arc::clone(&stop), Arc::clone(&served));
        thread::spawn(move || {
            let mut connection = Client::connect(address);
            let mut number = client;
            while !stop.load(Relaxed) {
                let answer = connection.get(&format!("/{}/x", number % ROUTES)).expect("an answer");
                assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
                served.fetch_add(1, Relaxed);
                number += 7;
            }
        })
    });
    let clients: Vec<_> = clients.collect();

    let changes = scaled(100, 3_000);
    let address = admin_addr(&gateway);
    let began = Instant::now();
    let writers = (0..2).map(|writer| {
        thread::spawn(move || {
            let mut api = Api::with_key(address, ADMIN);
            for change in 0..changes / 2 {
                let number = (change * 2 + writer) % ROUTES;
                let route = json!({"uri": format!("/{number}/*"), "upstream_id": "u", "name": format!("n{change}")});
                api.put(&format!("routes/r{number}"), &route.to_string());
                // The pace of the changes, 50 in a second, which nothing waits for.
                thread::sleep(Duration::from_millis(40));
            }
        })
    });
    writers.collect::<Vec<_>>().into_iter().for_each(|writer| writer.join().expect("every change is made"));
    let took = began.elapsed();
    stop.store(true, Relaxed);
    clients.into_iter().for_each(|client| client.join().expect("no request fails"));
    println!("{changes} changes in {took:.1?} beside {} requests, of {ROUTES} routes", served.load(Relaxed));
    assert!(served.load(Relaxed) > changes);
    assert_eq!(gateway.status()["configuration"]["store_revision"], changes as u64 + 1);
}
