//! Changes take turns: those of an editor, however large and many, delay an admin's by no more than one of them.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_testkit::{Client, DEADLINE, EndOfAttack, eventually, is_full};

use crate::api::{ADMIN, Api, EDITOR, VIEWER, admin_addr, file};
use crate::own_addresses::request;
use crate::weir;

/// Large changes of an editor that are sent at once, again and again.
const PARALLEL: usize = 20;
const ROUNDS: usize = 10;
/// The most changes of the editor between an admin's request and its change: one that was begun, one that was before in turn, and
/// one while the two requests of a round were on their way.
const MOST_BETWEEN: u64 = 3;
/// What an admin's change may take beside them, where nothing else runs on the machine.
const MOST_PUT: Duration = Duration::from_millis(300);

/// A route of 1.4 MB with 20,000 labels.
fn large(id: usize) -> String {
    let labels: Value = (0..20_000).map(|number| (format!("l{number}"), Value::from("x"))).collect();
    json!({"uri": format!("/e{id}"), "labels": labels, "plugins": {"mocking": {"response_example": "x".repeat(1_100_000)}}})
        .to_string()
}

fn revision(api: &mut Api) -> u64 {
    let answer = api.ask("GET", "routes/small", "", "");
    answer.headers.get("x-weir-revision").and_then(|revision| revision.parse().ok()).expect("a revision")
}

#[test]
fn an_admin_s_change_waits_for_few_of_an_editor() {
    let gateway = weir().start(&file());
    let address = admin_addr(&gateway);
    let small = r#"{"uri": "/small", "plugins": {"mocking": {"response_example": "small"}}}"#;
    let (mut admin, mut viewer) = (Api::with_key(address, ADMIN), Api::with_key(address, VIEWER));
    admin.put("routes/small", small);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for id in 0..PARALLEL {
            let stop = &stop;
            scope.spawn(move || {
                let put =
                    request("PUT", &format!("routes/e{id}"), EDITOR, &large(id)).replacen("a.example", "127.0.0.1", 1);
                let mut editor = Client::connect(address);
                while !stop.load(Relaxed) {
                    // A connection gives way if its body comes too slowly.
                    if editor.ask(&put).is_err() {
                        editor = Client::connect(address);
                    }
                }
            });
        }
        let _end = EndOfAttack(&stop);
        eventually("all are under way", 6 * DEADLINE, || revision(&mut viewer) > PARALLEL as u64 / 2);
        let mut rounds: Vec<(u64, Duration)> = Vec::new();
        for _ in 0..ROUNDS {
            let (before, began) = (revision(&mut viewer), Instant::now());
            let answer = admin.put("routes/small", small);
            let made = answer.headers.get("x-weir-revision").and_then(|revision| revision.parse::<u64>().ok());
            rounds.push((made.expect("a revision") - before - 1, began.elapsed()));
        }
        println!("changes of the editor in between, and the time of an admin's: {rounds:?}");
        rounds.sort_unstable();
        // Most rounds: the machine may do something else between two requests.
        assert!(rounds[ROUNDS / 2].0 <= MOST_BETWEEN, "{rounds:?}");
        if is_full() {
            let slowest = rounds.iter().map(|(_, time)| *time).max().expect("rounds");
            assert!(slowest <= MOST_PUT, "{rounds:?}");
        }
    });
}
