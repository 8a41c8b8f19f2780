//! Answers that their clients do not read: they take no room of other clients, and a change that was made is answered as made.

use std::net::Ipv4Addr;

use serde_json::json;
use weir_testkit::{Client, ClientMode, DEADLINE, eventually};

use crate::api::{ADMIN, VIEWER, json};
use crate::own_addresses::{Site, request};

const MIB: u64 = 1 << 20;
/// Attackers: three client addresses, each of which asks for more than its share of 64 MiB.
const ATTACKERS: [Ipv4Addr; 3] =
    [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3), Ipv4Addr::new(127, 0, 0, 4)];
/// The lists that each of them asks for.
const LISTS: usize = 8;

fn route(id: usize) -> String {
    json!({"uri": format!("/{id}"), "desc": "d".repeat(50), "plugins": {"mocking": {"response_example": "x".repeat(1_000_000)}}})
        .to_string()
}

/// A site with a list of twelve megabytes, and connections whose clients do not read it.
fn attacked(workers: usize) -> (Site, Vec<Client>) {
    let site = Site::start(ClientMode::Clear, workers);
    let mut admin = site.client();
    for id in 0..12 {
        let put = admin.ask(request("PUT", &format!("routes/l{id}"), ADMIN, &route(id))).expect("an answer");
        assert_eq!(put.status, 201, "{}", put.status);
    }
    let mut unread = Vec::new();
    for attacker in ATTACKERS {
        for _ in 0..LISTS {
            let mut client = Client::connect_from(attacker, site.admin()).expect("a connection");
            client.send(request("GET", "routes", VIEWER, ""));
            unread.push(client);
        }
    }
    (site, unread)
}

#[test]
fn u05_unread_answers_of_some_clients_take_no_room_of_others() {
    for workers in [1, 2] {
        let (site, unread) = attacked(workers);
        let before = site.gateway.rss();
        let mut admin = site.client();
        for id in 0..20 {
            let put = admin.ask(request("PUT", &format!("routes/l{}", id % 12), ADMIN, &route(id))).expect("an answer");
            assert_eq!(put.status, 200, "{}", put.text());
            assert_eq!(json(&put)["value"]["uri"], format!("/{id}"), "the whole resource");
        }
        let list = admin.ask(request("GET", "routes", ADMIN, "")).expect("an answer");
        assert_eq!(list.status, 200, "{}", list.text());
        assert_eq!(json(&list)["total"], 12);
        site.serves("unread answers");
        let grown = site.gateway.rss().saturating_sub(before);
        println!("workers: {workers}: {} MiB more", grown / MIB);
        // What answers may hold, and as much again for what is being made and how memory is handed out.
        assert!(grown <= 320 * MIB, "{} MiB more", grown / MIB);
        drop(unread);
    }
}

#[test]
fn u05_a_change_that_was_made_is_answered_as_made_whatever_its_client_reads() {
    let (site, _unread) = attacked(1);
    let mut own = Client::connect_from(ATTACKERS[0], site.admin()).expect("a connection");
    for id in 0..20 {
        let put = own.ask(request("PUT", "routes/l1", ADMIN, &route(id))).expect("an answer");
        assert_eq!(put.status, 200, "{}", put.text());
        let told = json(&put);
        let is_short = told["message"].as_str().is_some_and(|message| message.starts_with("the change was made"));
        assert!(is_short || told["value"]["uri"] == format!("/{id}"), "{}", put.text());
        assert!(!is_short || told["revision"].is_u64());
        let read = own.ask(request("GET", "routes/l1", ADMIN, "")).expect("an answer");
        assert_eq!(json(&read)["value"]["uri"], format!("/{id}"));
    }
    eventually("its own slow answers have given way", 3 * DEADLINE, || {
        site.gateway.metrics().sum("weir_server_connections_closed_total", &["why=\"slow\"", "server=\"admin\""]) >= 1.0
    });
}
