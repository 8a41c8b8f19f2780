//! A process that is killed while it writes: what it has acknowledged is there afterwards, once and in order.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use weir_journal::{Item, Journal, Options, Seq};

const DIRECTORY: &str = "WEIR_JOURNAL_TEST_DIRECTORY";

fn options() -> Options {
    Options { segment_bytes: 32 << 10, max_bytes: 512 << 10, ..Options::default() }
}

/// Not a test of its own: what the process does that is killed. It writes the number of each record once it is committed.
#[test]
fn writes_until_it_is_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let (journal, recovery) = Journal::open(PathBuf::from(directory), options()).expect("it opens");
    let mut next = recovery.last_seq + 1;
    loop {
        let payload = next.to_le_bytes().repeat(1 + next as usize % 200);
        journal
            .append(
                payload,
                Box::new(|result| {
                    let seq = result.expect("there is room");
                    let mut out = std::io::stdout().lock();
                    // The parent may have gone; then so does this process.
                    let _ = writeln!(out, "committed {seq}").and_then(|()| out.flush());
                }),
            )
            .expect("little waits");
        next += 1;
        journal.release(next.saturating_sub(500));
        if next % 16 == 0 {
            journal.wait_for_more(next - 2, std::time::Duration::from_secs(10));
        }
    }
}

fn read(journal: &Journal) -> BTreeMap<Seq, Vec<u8>> {
    let mut reader = journal.reader(0);
    let mut found = BTreeMap::new();
    while let Some(item) = reader.read().expect("it can be read") {
        match item {
            Item::Record { seq, payload, .. } => assert_eq!(found.insert(seq, payload.to_vec()), None, "{seq} twice"),
            Item::Gone { first, .. } => assert_eq!(first, 1, "only what was released is gone"),
        }
    }
    found
}

#[test]
fn a_killed_process_loses_nothing_that_it_acknowledged() {
    let directory = std::env::temp_dir().join(format!("weir-journal-kill-{}", std::process::id()));
    let rounds = if std::env::var_os("WEIR_TEST_FULL").is_some() { 1_000 } else { 20 };
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().expect("this test has a file"))
            .args(["--exact", "writes_until_it_is_killed", "--nocapture"])
            .env(DIRECTORY, &directory)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut acknowledged = 0;
        let mut seen = 0;
        for line in lines {
            let line = line.expect("lines are text");
            let Some((_, seq)) = line.split_once("committed ") else { continue };
            acknowledged = seq.parse().expect("a number");
            seen += 1;
            if seen == 1 + round * 37 % 400 {
                child.kill().expect("it runs");
            }
        }
        child.wait().expect("it has ended");
        let (journal, recovery) = Journal::open(&directory, options()).expect("it opens");
        assert_eq!(recovery.lost(), 0, "{recovery:?}");
        assert!(recovery.last_seq >= acknowledged, "{acknowledged} was acknowledged: {recovery:?}");
        let found = read(&journal);
        assert_eq!(found.len() as u64, recovery.records);
        assert_eq!(found.keys().next_back(), Some(&recovery.last_seq));
        for (seq, payload) in found {
            assert_eq!(payload, seq.to_le_bytes().repeat(1 + seq as usize % 200), "record {seq}");
        }
    }
    std::fs::remove_dir_all(&directory).expect("it can be removed");
}
