use std::sync::mpsc;

use super::*;
use crate::Item;
use crate::simulation::{DiskFaults, Simulated};

const LONG: Duration = Duration::from_secs(30);

fn open(storage: &Simulated, options: Options) -> (Journal, Recovery) {
    Journal::open_in(Arc::new(storage.clone()), options).expect("it opens")
}

#[test]
fn records_of_many_threads_are_committed_in_groups() {
    let storage = Simulated::new(1);
    let (journal, _) = open(&storage, Options::default());
    let journal = Arc::new(journal);
    let threads: Vec<_> = (0..8)
        .map(|number| {
            let journal = Arc::clone(&journal);
            std::thread::spawn(move || {
                (0..100).map(|_| journal.append_and_wait(vec![number; 50]).expect("written")).collect::<Vec<_>>()
            })
        })
        .collect();
    let mut numbers: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().expect("it ends")).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=800).collect::<Vec<_>>());
    assert_eq!(journal.committed(), 800);
}

#[test]
fn appended_records_are_written_when_the_journal_closes() {
    let storage = Simulated::new(1);
    let (journal, _) = open(&storage, Options { sync: Sync::Every(LONG), ..Options::default() });
    for number in 0..1_000_u32 {
        journal.append(number.to_le_bytes().to_vec(), Box::new(|_| {})).expect("there is room");
    }
    drop(journal);
    let (journal, recovery) = open(&storage.after_crash(7), Options::default());
    assert_eq!((recovery.records, recovery.damage), (1_000, vec![]));
    let mut reader = journal.reader(998);
    let item = reader.read().expect("readable");
    assert!(matches!(item, Some(Item::Record { seq: 999, payload: [0xe6, 3, 0, 0], .. })), "{item:?}");
}

#[test]
fn a_batch_that_cannot_be_written_is_told_to_each_of_its_records() {
    let storage = Simulated::new(1);
    let (journal, _) = open(&storage, Options::default());
    storage.set_faults(DiskFaults { write: 1.0, ..DiskFaults::default() });
    let error = journal.append_and_wait(b"lost".to_vec()).expect_err("nothing can be written");
    assert!(matches!(error, AppendError::Io(_)), "{error}");
    assert!(journal.status().error.is_some());
    storage.set_faults(DiskFaults::default());
    assert_eq!(journal.append_and_wait(b"kept".to_vec()).expect("it can again"), 1);
    assert_eq!(journal.status().error, None);
}

#[test]
fn pending_bytes_are_bounded() {
    let storage = Simulated::new(1);
    let (journal, _) = open(&storage, Options { max_pending_bytes: 100, ..Options::default() });
    let (hold, held) = mpsc::channel::<()>();
    let (begun, has_begun) = mpsc::channel();
    let stop = Box::new(move |_: Result<Seq, AppendError>| {
        begun.send(()).expect("the test waits");
        let _ = held.recv();
    });
    journal.append(vec![0; 200], stop).expect("one is always taken");
    has_begun.recv_timeout(LONG).expect("its callback holds the thread up");
    journal.append(vec![0; 60], Box::new(|_| {})).expect("there is room");
    let refused = journal.append(vec![0; 60], Box::new(|_| {}));
    assert!(matches!(refused, Err(AppendError::Busy)), "{refused:?}");
    let too_large = journal.append(vec![0; (16 << 20) + 1], Box::new(|_| {}));
    assert!(matches!(too_large, Err(AppendError::TooLarge { .. })), "{too_large:?}");
    drop(hold);
}

#[test]
fn a_waiter_is_woken_by_a_commit() {
    let storage = Simulated::new(1);
    let (journal, _) = open(&storage, Options::default());
    let journal = Arc::new(journal);
    let waiter = {
        let journal = Arc::clone(&journal);
        std::thread::spawn(move || journal.wait_for_more(0, LONG))
    };
    journal.append_and_wait(b"one".to_vec()).expect("written");
    assert!(waiter.join().expect("it ends"));
    assert!(!journal.wait_for_more(1, Duration::from_millis(1)));
}

#[test]
fn release_and_expiry_are_done_by_the_thread() {
    let storage = Simulated::new(1);
    let (journal, _) = open(&storage, Options { segment_bytes: 1_000, ..Options::default() });
    for _ in 0..10 {
        journal.append_and_wait(vec![0; 900]).expect("written");
    }
    journal.release(5);
    // The release is executed before the append that follows it.
    journal.append_and_wait(vec![0; 900]).expect("written");
    assert_eq!(journal.status().first_seq, 6);
    assert_eq!(journal.take_removals(), []);
    // Records of the current millisecond are not older than a maximum age of zero.
    let mut expired = 0;
    while expired < 5 {
        journal.expire(Duration::ZERO);
        journal.append_and_wait(b"young".to_vec()).expect("written");
        expired += journal.take_removals().iter().map(|removal| removal.records).sum::<u64>();
    }
}

#[test]
fn a_record_that_must_not_be_lost_is_synced_at_once() {
    let storage = Simulated::new(1);
    let (journal, _) = open(&storage, Options { sync: Sync::Every(LONG), ..Options::default() });
    let (sender, receiver) = mpsc::channel();
    let tell = Box::new(move |result: Result<Seq, AppendError>| drop(sender.send(result)));
    journal.append_synced(b"kept".to_vec(), tell).expect("taken");
    let committed = receiver.recv_timeout(LONG).expect("it is told");
    assert_eq!(committed.expect("written"), 1);
    let (_, recovery) = open(&storage.after_crash(7), Options::default());
    assert_eq!(recovery.records, 1);
}

#[test]
fn limits_can_be_changed_while_it_is_open() {
    let storage = Simulated::new(1);
    let options = Options { segment_bytes: 4 << 10, max_bytes: 8 << 10, ..Options::default() };
    let (journal, _) = open(&storage, options.clone());
    let refused = (0..).find(|_| journal.append_and_wait(vec![0; 1000]).is_err()).expect("it becomes full");
    assert!((5..8).contains(&refused), "{refused}");
    journal.set_options(Options { max_bytes: 16 << 10, ..options });
    journal.append_and_wait(vec![0; 1000]).expect("there is room now");
}

/// Waits until the thread has done what it was asked.
#[track_caller]
fn eventually(what: &str, is_done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_done() {
        assert!(begun.elapsed() < LONG, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn the_thread_is_woken_by_each_kind_of_work_alone() {
    let storage = Simulated::new(1);
    let options = Options { segment_bytes: 1_000, max_bytes: 4 << 10, ..Options::default() };
    let (journal, _) = open(&storage, options.clone());
    for _ in 0..3 {
        journal.append_and_wait(vec![0; 900]).expect("written");
    }
    journal.release(1);
    eventually("records are released", || journal.status().first_seq == 2);
    eventually("the newest record is older than nothing", || {
        journal.expire(Duration::ZERO);
        journal.status().records == 0
    });
    journal.set_options(Options { max_bytes: 64 << 10, ..options });
    for _ in 0..20 {
        journal.append_and_wait(vec![0; 900]).expect("there is room by the new options");
    }
}

#[test]
fn records_are_synced_in_time_while_others_keep_coming() {
    let storage = Simulated::new(1);
    let options = Options { sync: Sync::Every(Duration::from_millis(20)), ..Options::default() };
    let (journal, _) = open(&storage, options);
    let begun = Instant::now();
    loop {
        journal.append_and_wait(b"another".to_vec()).expect("written");
        // Nothing but a sync makes a record survive a crash here.
        if open(&storage.after_crash(7), Options::default()).1.records > 0 {
            return;
        }
        assert!(begun.elapsed() < LONG, "nothing was synced, since there was always something new");
    }
}

#[test]
fn a_reserve_of_free_space_is_kept() {
    let directory = std::env::temp_dir().join(format!("weir-journal-reserve-{}", std::process::id()));
    let with = |reserve_free_bytes| Options { reserve_free_bytes, ..Options::default() };
    let (journal, _) = Journal::open(&directory, with(u64::MAX)).expect("it opens");
    assert!(matches!(journal.append_and_wait(b"refused".to_vec()), Err(AppendError::Full)));
    drop(journal);
    let (journal, _) = Journal::open(&directory, with(1)).expect("it opens");
    journal.append_and_wait(b"kept".to_vec()).expect("the disk has a byte to spare");
    drop(journal);
    std::fs::remove_dir_all(&directory).expect("it can be removed");
}
