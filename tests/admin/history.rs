//! The history of a store: what it takes on the disk, and what reading it takes in memory.

use std::fs;

use serde_json::{Value, json};
use weir_testkit::{TempDir, scaled};

use crate::api::{Api, file};
use crate::etcd::Etcd;
use crate::weir;

const MIB: u64 = 1 << 20;
/// The changes of one resource, each with more than a megabyte before and after it: together more than `READING`.
fn changes() -> u64 {
    scaled(40, 64) as u64
}

/// What reading all of them may add to the node's memory: two parts of 8 MiB, each as text and read, and an answer.
const READING: u64 = 64 * MIB;

fn route(id: u64, bytes: usize) -> String {
    json!({"uri": format!("/{id}"), "desc": "d", "plugins": {"mocking": {"response_example": "x".repeat(bytes)}}})
        .to_string()
}

/// The number of revisions that the history has.
fn kept(api: &mut Api) -> usize {
    let (mut count, mut before) = (0, u64::MAX);
    loop {
        let page = api.get(&format!("history?count=1000&brief=true&before={before}"));
        let list = page["list"].as_array().expect("a list");
        count += list.len();
        match list.last().and_then(|last| last["revision"].as_u64()) {
            Some(last) => before = last,
            None => return count,
        }
    }
}

#[test]
fn large_revisions_are_read_in_parts() {
    let directory = TempDir::new();
    let store = format!("store: {{ path: {}, history_bytes: 1GiB }}\n", directory.join("store.redb").display());
    let gateway = weir().start(&format!("worker_processes: 1\n{}{store}", file()));
    let mut api = Api::of(&gateway);
    let changes = changes();
    for id in 0..changes {
        api.put("routes/large", &route(id, 1_300_000));
    }
    assert_eq!(api.get("history?count=1&brief=true")["list"][0]["revision"], changes);
    let before = gateway.rss();
    let brief = api.get(&format!("history?count={changes}&brief=true"));
    assert_eq!(brief["list"].as_array().map(|list| list.len() as u64), Some(changes));
    let of_another = api.get("history?count=1000&key=routes/another");
    assert_eq!(of_another["list"], json!([]), "all revisions are read for it");
    let table = api.get("/weir/v1/table/routes?since=1");
    assert_eq!((&table["since"], &table["removed"]), (&json!(1), &json!([])), "{table}");
    let grown = gateway.rss().saturating_sub(before);
    println!("{} MiB more", grown / MIB);
    assert!(grown <= READING, "{} MiB more", grown / MIB);
}

#[test]
fn the_history_takes_no_more_bytes_than_it_may() {
    let directory = TempDir::new();
    let path = directory.join("store.redb");
    let store = format!("store: {{ path: {}, history_bytes: 2MiB }}\n", path.display());
    let gateway = weir().start(&format!("worker_processes: 1\n{}{store}", file()));
    let mut api = Api::of(&gateway);
    let changes = 64;
    for id in 0..changes {
        api.put("routes/large", &route(id, 325_000));
    }
    assert_eq!(kept(&mut api), 3, "a revision takes 650 kB");
    let bytes = fs::metadata(&path).expect("a store").len();
    println!("the file has {} MiB", bytes / MIB);
    // 64 revisions would take 41 MB. Pages of deleted revisions are used again.
    assert!(bytes <= 16 * MIB, "{} MiB", bytes / MIB);
    let refused = api.ask("POST", "history/10/rollback", "", "");
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("`store.history_bytes` limit what is kept"), "{}", refused.text());
    let rolled = api.ask("POST", &format!("history/{}/rollback", changes - 1), "", "");
    assert_eq!(rolled.status, 200, "{}", rolled.text());
    assert_eq!(api.get("routes/large")["value"]["uri"], format!("/{}", changes - 2));
}

#[test]
fn the_history_in_etcd_takes_no_more_bytes_than_it_may() {
    let Some(etcd) = Etcd::of(1) else { return };
    let directory = TempDir::new();
    let gateway = weir().start(&etcd.node(&directory).replace("] } }", "] }, history_bytes: 1MiB }"));
    let mut api = Api::of(&gateway);
    // As Weir 0.1 has written one: its key does not say how many bytes it has.
    let old: Value = json!({"revision": 1, "at_ms": 5, "author": {}, "changes": []});
    etcd.ctl(&["put", "/apisix.weir/history/0000000000000005-a-01234567", &old.to_string()]);
    for id in 0..60 {
        api.put("routes/large", &route(id, 60_000));
    }
    let entries = etcd.ctl(&["get", "--prefix", "--keys-only", "/apisix.weir/history/"]);
    let entries = entries.lines().filter(|line| !line.is_empty()).count();
    // At the 51st change the surplus over eight revisions of 120 kB was deleted.
    assert_eq!((entries, kept(&mut api)), (17, 17));
}
