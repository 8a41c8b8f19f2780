use std::collections::BTreeMap;

use super::*;
use crate::reader::{Item, Reader};
use crate::simulation::{DiskFaults, Simulated};

fn small() -> Options {
    Options { segment_bytes: 4 << 10, max_bytes: 64 << 10, max_record_bytes: 8 << 10, ..Options::default() }
}

fn open(storage: &Simulated, options: &Options) -> (Log, Recovery) {
    Log::open(Arc::new(storage.clone()), options.clone()).expect("the directory can be read")
}

fn append(log: &mut Log, payloads: &[&[u8]]) -> Result<Seq, AppendError> {
    log.append(payloads, 1_000)
}

type Records = BTreeMap<Seq, Vec<u8>>;
/// The first and last missing number of each gap.
type Gaps = Vec<(Seq, Seq)>;

/// All records after `after`, and the gaps between them.
fn read_all(log: &Log, after: Seq) -> (Records, Gaps) {
    let mut reader = Reader::new(Arc::clone(log.shared()), after, 100);
    let (mut records, mut gaps) = (BTreeMap::new(), Vec::new());
    while let Some(item) = reader.read().expect("segments can be read") {
        match item {
            Item::Record { seq, payload, .. } => assert_eq!(records.insert(seq, payload.to_vec()), None),
            Item::Gone { first, last } => gaps.push((first, last)),
        }
    }
    (records, gaps)
}

#[test]
fn records_are_read_in_order_across_segments_and_restarts() {
    let storage = Simulated::new(1);
    let (mut log, recovery) = open(&storage, &small());
    assert_eq!(recovery, Recovery::default());
    for round in 0..50_u64 {
        assert_eq!(append(&mut log, &[&[1; 300], &[2; 10]]).expect("there is room"), 2 * round + 1);
    }
    assert!(log.shared().status().segments > 3);
    let (records, gaps) = read_all(&log, 0);
    assert_eq!((records.len(), gaps.len()), (100, 0));
    let (log, recovery) = open(&storage, &small());
    assert_eq!((recovery.records, recovery.last_seq, recovery.damage.len()), (100, 100, 0));
    assert_eq!(read_all(&log, 0).0, records);
    assert_eq!(read_all(&log, 99).0.len(), 1);
}

#[test]
fn a_torn_tail_is_cut_off_and_told_once() {
    let storage = Simulated::new(1);
    let (mut log, _) = open(&storage, &small());
    append(&mut log, &[b"one"]).expect("there is room");
    append(&mut log, &[b"two"]).expect("there is room");
    storage.damage(&crate::segment::name(1), |bytes| bytes.truncate(bytes.len() - 1));
    let (mut log, recovery) = open(&storage, &small());
    let torn = Damage::TornTail { segment: crate::segment::name(1), bytes: 26 };
    assert_eq!((recovery.damage, recovery.last_seq), (vec![torn], 1));
    assert_eq!(append(&mut log, &[b"next"]).expect("there is room"), 2);
    let (log, recovery) = open(&storage, &small());
    assert_eq!(recovery.damage, []);
    assert_eq!(read_all(&log, 0), ([(1, b"one".to_vec()), (2, b"next".to_vec())].into(), vec![]));
}

#[test]
fn damage_in_the_middle_costs_its_record_and_is_counted() {
    let storage = Simulated::new(1);
    let (mut log, _) = open(&storage, &small());
    append(&mut log, &[b"one", b"two", b"three"]).expect("there is room");
    storage.damage(&crate::segment::name(1), |bytes| {
        let at = bytes.windows(3).position(|window| window == b"two").expect("it was written");
        bytes[at] ^= 0x40;
    });
    let gone = (BTreeMap::from([(1, b"one".to_vec()), (3, b"three".to_vec())]), vec![(2, 2)]);
    assert_eq!(read_all(&log, 0), gone, "a reader of the process that wrote it");
    let (log, recovery) = open(&storage, &small());
    assert_eq!((recovery.damage, read_all(&log, 0)), (vec![Damage::Lost { first: 2, last: 2 }], gone));
}

#[test]
fn a_record_of_a_closed_segment_that_becomes_unreadable_is_passed() {
    let storage = Simulated::new(1);
    let (mut log, _) = open(&storage, &small());
    for _ in 0..2 {
        append(&mut log, &[&[7; 3_000]]).expect("there is room");
    }
    assert_eq!(log.shared().status().segments, 2);
    // The last record of the first segment.
    storage.damage(&crate::segment::name(1), |bytes| bytes.truncate(100));
    let (records, gaps) = read_all(&log, 0);
    assert_eq!((records.into_keys().collect::<Vec<_>>(), gaps), (vec![2], vec![(1, 1)]));
}

#[test]
fn a_segment_without_records_keeps_none_behind_it() {
    let storage = Simulated::new(1);
    let (mut log, _) = open(&storage, &small());
    append(&mut log, &[b"one"]).expect("there is room");
    log.release(1).expect("segments can be removed");
    // The numbers up to 100 were used before a crash that the records did not survive.
    let (mut log, _) = open(&storage, &Options { min_next_seq: 101, ..small() });
    for _ in 0..6 {
        append(&mut log, &[&[0; 3_000]]).expect("there is room");
    }
    assert_eq!(log.shared().segments().front().map(|first| first.records.load(Ordering::Relaxed)), Some(0));
    log.release(104).expect("segments can be removed");
    assert_eq!(log.shared().status().first_seq, 105);
    assert!(log.shared().take_removals().is_empty());
    log.expire(u64::MAX).expect("segments can be removed");
    assert_eq!(log.shared().status().records, 0);
    let expired: u64 = log.shared().take_removals().iter().map(|removal| removal.records).sum();
    assert_eq!(expired, 2);
}

#[test]
fn a_missing_segment_and_an_unreadable_one_are_counted() {
    let storage = Simulated::new(1);
    let (mut log, _) = open(&storage, &small());
    for _ in 0..6 {
        append(&mut log, &[&[0; 3_000]]).expect("there is room");
    }
    storage.remove(&crate::segment::name(2)).expect("it exists");
    storage.damage(&crate::segment::name(4), |bytes| bytes.fill(0xee));
    storage.damage(&crate::segment::name(5), |bytes| bytes[0] ^= 1);
    let (log, recovery) = open(&storage, &small());
    let [lost, aside, header] = &recovery.damage[..] else { panic!("{:?}", recovery.damage) };
    assert_eq!(*lost, Damage::Lost { first: 2, last: 2 });
    assert!(matches!(aside, Damage::SetAside { renamed, .. } if renamed.ends_with(".bad")), "{aside:?}");
    assert!(matches!(header, Damage::Header { .. }), "{header:?}");
    assert_eq!(read_all(&log, 0).0.into_keys().collect::<Vec<_>>(), [1, 3, 5, 6]);
}

#[test]
fn a_full_journal_refuses_or_drops_the_oldest() {
    let storage = Simulated::new(1);
    let options = Options { max_bytes: 16 << 10, ..small() };
    let (mut log, _) = open(&storage, &options);
    let mut taken = 0;
    let refused = loop {
        match append(&mut log, &[&[0; 1_000]]) {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, AppendError::Full), "{refused}");
    assert!(log.shared().status().error.is_some());
    log.release(8).expect("segments can be removed");
    append(&mut log, &[&[0; 1_000]]).expect("there is room again");
    assert_eq!(log.shared().status().error, None);
    let (mut log, _) = open(&storage, &Options { when_full: WhenFull::DropOldest, ..options });
    for _ in 0..20 {
        log.append(&[[0; 1_000]], 1_000).expect("the oldest make room");
    }
    let removed = log.shared().take_removals();
    let (records, gaps) = read_all(&log, 0);
    let dropped: u64 = removed.iter().map(|removal| removal.records).sum();
    assert_eq!(log.shared().status().records, records.len() as u64);
    assert_eq!(gaps, [(1, records.keys().next().expect("some are left") - 1)]);
    assert!(removed.iter().all(|removal| removal.reason == RemovalReason::Full) && dropped > 10, "{removed:?}");
    assert!(log.shared().status().bytes <= 16 << 10);
    assert!(taken > 10);
}

#[test]
fn released_records_leave_the_disk_and_numbers_go_on() {
    let storage = Simulated::new(1);
    let (mut log, _) = open(&storage, &small());
    for _ in 0..10 {
        append(&mut log, &[&[0; 1_000]]).expect("there is room");
    }
    log.release(10).expect("segments can be removed");
    assert!(log.shared().status().bytes < 100, "{:?}", log.shared().status());
    let (mut log, recovery) = open(&storage, &small());
    assert_eq!(recovery.damage, []);
    assert_eq!(append(&mut log, &[b"next"]).expect("there is room"), 11);
    let after = Options { min_next_seq: 500, ..small() };
    let (mut log, _) = open(&storage, &after);
    assert_eq!(append(&mut log, &[b"later"]).expect("there is room"), 500);
    let (log, recovery) = open(&storage, &small());
    assert_eq!((recovery.damage, read_all(&log, 10).1), (vec![], vec![]), "numbers that were passed over are not lost");
}

#[test]
fn old_records_expire() {
    let storage = Simulated::new(1);
    let (mut log, _) = open(&storage, &small());
    for now_ms in 1..=9 {
        log.append(&[[0; 2_000]], now_ms).expect("there is room");
    }
    log.expire(6).expect("segments can be removed");
    let expired: u64 = log.shared().take_removals().iter().map(|removal| removal.records).sum();
    assert_eq!(expired, 4, "two to a segment, and the sixth is young enough");
    assert_eq!(*read_all(&log, 0).0.keys().next().expect("some are left"), 5);
}

#[test]
fn a_reader_goes_on_while_records_come_in() {
    let storage = Simulated::new(1);
    let (mut log, _) = open(&storage, &small());
    let mut reader = Reader::new(Arc::clone(log.shared()), 0, 64);
    assert_eq!(reader.read().expect("readable"), None);
    for seq in 1..=30 {
        append(&mut log, &[&[seq as u8; 700]]).expect("there is room");
        let item = reader.read().expect("readable");
        assert!(matches!(item, Some(Item::Record { seq: read, .. }) if read == seq), "{item:?}");
        assert_eq!(reader.read().expect("readable"), None);
    }
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let storage = Simulated::new(1);
    let (mut log, _) = open(&storage, &small());
    append(&mut log, &[b"one"]).expect("there is room");
    storage.damage(&crate::segment::name(1), |bytes| {
        bytes[8] = 9;
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&bytes[..12]);
        hasher.update(&bytes[16..40]);
        bytes[12..16].copy_from_slice(&hasher.finalize().to_le_bytes());
    });
    let error = Log::open(Arc::new(storage), small()).err().expect("it is not understood");
    assert!(error.to_string().contains("has format 9"), "{error}");
}

#[test]
fn an_empty_journal_begins_with_the_next_number() {
    let (log, _) = open(&Simulated::new(1), &small());
    let status = log.shared().status();
    assert_eq!((status.first_seq, status.committed, status.records, status.segments), (1, 0, 0, 0));
}

#[test]
fn a_record_above_the_limit_is_refused_with_its_batch() {
    let (mut log, _) = open(&Simulated::new(1), &small());
    let limit = small().max_record_bytes as usize;
    for bytes in [limit + 1, limit + 1_000] {
        let refused = append(&mut log, &[b"small", &vec![0; bytes]]);
        assert!(matches!(refused, Err(AppendError::TooLarge { bytes: told, .. }) if told == bytes), "{refused:?}");
    }
    assert_eq!(append(&mut log, &[&vec![0; limit]]).expect("it is not above the limit"), 1);
    assert_eq!(log.shared().status().records, 1);
}

#[test]
fn a_segment_without_records_makes_room_untold() {
    let storage = Simulated::new(1);
    let (mut log, _) = open(&storage, &small());
    append(&mut log, &[b"one"]).expect("there is room");
    log.release(1).expect("segments can be removed");
    let options = Options { min_next_seq: 101, max_bytes: 8 << 10, when_full: WhenFull::DropOldest, ..small() };
    let (mut log, _) = open(&storage, &options);
    for _ in 0..6 {
        append(&mut log, &[&[0; 3_000]]).expect("the oldest make room");
    }
    let removed = log.shared().take_removals();
    assert!(!removed.is_empty() && removed.iter().all(|removal| removal.records > 0), "{removed:?}");
}

#[test]
fn a_segment_whose_file_has_gone_can_be_released() {
    let storage = Simulated::new(1);
    let (mut log, _) = open(&storage, &small());
    for _ in 0..3 {
        append(&mut log, &[&[0; 3_000]]).expect("there is room");
    }
    storage.remove(&crate::segment::name(1)).expect("it exists");
    log.release(2).expect("what has gone needs no removal");
    assert_eq!(log.shared().status().first_seq, 3);
}

#[test]
fn a_damaged_record_is_passed_once_a_later_one_has_come() {
    let storage = Simulated::new(1);
    let (mut log, _) = open(&storage, &small());
    append(&mut log, &[b"one", b"two"]).expect("there is room");
    storage.damage(&crate::segment::name(1), |bytes| *bytes.last_mut().expect("it has records") ^= 1);
    let mut reader = Reader::new(Arc::clone(log.shared()), 1, 64);
    assert_eq!(reader.read().expect("readable"), None);
    append(&mut log, &[b"three"]).expect("there is room");
    assert_eq!(reader.read().expect("readable"), Some(Item::Gone { first: 2, last: 2 }));
    assert!(matches!(reader.read().expect("readable"), Some(Item::Record { seq: 3, payload: b"three", .. })));
}

#[test]
fn a_segment_is_skipped_with_the_rest_of_its_records() {
    let storage = Simulated::new(1);
    let (mut log, _) = open(&storage, &small());
    for _ in 0..4 {
        append(&mut log, &[&[0; 1_900]]).expect("there is room");
    }
    let mut reader = Reader::new(Arc::clone(log.shared()), 0, 64);
    assert!(matches!(reader.read().expect("readable"), Some(Item::Record { seq: 1, .. })));
    assert_eq!(reader.skip_segment(), Some((2, 2)));
    assert!(matches!(reader.read().expect("readable"), Some(Item::Record { seq: 3, .. })));
    assert_eq!(reader.skip_segment(), Some((4, 4)));
    assert_eq!(reader.skip_segment(), None, "there is none");
}

#[test]
fn a_segment_under_another_ones_name_is_set_aside() {
    let storage = Simulated::new(1);
    let (mut log, _) = open(&storage, &small());
    for _ in 0..3 {
        append(&mut log, &[&[0; 3_000]]).expect("there is room");
    }
    storage.rename(&crate::segment::name(2), &crate::segment::name(3)).expect("it exists");
    let (log, recovery) = open(&storage, &small());
    assert!(matches!(&recovery.damage[..], [Damage::SetAside { .. }]), "{:?}", recovery.damage);
    assert_eq!(read_all(&log, 0).0.into_keys().collect::<Vec<_>>(), [1]);
}

#[test]
fn journals_have_different_ids() {
    let [one, other] = [1, 2].map(|seed| open(&Simulated::new(seed), &small()).0.shared().id);
    assert_ne!(one, other);
}

#[test]
fn all_lost_records_are_counted() {
    let lost = [Damage::Lost { first: 7, last: 7 }, Damage::Lost { first: 11, last: 20 }];
    assert_eq!(Recovery { damage: lost.into(), ..Recovery::default() }.lost(), 11);
}

/// A journal, and the state expected of it.
struct Model {
    storage: Simulated,
    options: Options,
    log: Log,
    random: fastrand::Rng,
    /// Payloads tried under each number; a failed batch may reappear after a crash.
    tried: BTreeMap<Seq, Vec<Vec<u8>>>,
    /// Records committed, and not released or removed.
    kept: BTreeMap<Seq, Vec<u8>>,
    /// Records up to this one must not be lost.
    durable: Seq,
    written: u64,
}

impl Model {
    fn new(seed: u64) -> Model {
        let mut random = fastrand::Rng::with_seed(seed);
        let sync = [Sync::Always, Sync::Every(std::time::Duration::ZERO)][random.usize(0..2)];
        let when_full = [WhenFull::Refuse, WhenFull::DropOldest][random.usize(0..2)];
        let options = Options { sync, when_full, ..small() };
        let storage = Simulated::new(seed);
        let (log, _) = open(&storage, &options);
        let (tried, kept) = Default::default();
        Model { storage, options, log, random, tried, kept, durable: 0, written: 0 }
    }

    fn append(&mut self) {
        let payloads: Vec<Vec<u8>> = (0..self.random.usize(1..6))
            .map(|_| {
                self.written += 1;
                let mut payload = self.written.to_le_bytes().to_vec();
                payload.resize(8 + self.random.usize(0..1_500), self.written as u8);
                payload
            })
            .collect();
        // A failed batch may have had any number.
        let expected = self.log.next_seq;
        for (seq, payload) in (expected..).zip(&payloads) {
            self.tried.entry(seq).or_default().push(payload.clone());
        }
        let result = self.log.append(&payloads, self.written);
        for removal in self.log.shared().take_removals() {
            self.kept.retain(|seq, _| !(removal.first..=removal.last).contains(seq));
        }
        if let Ok(first) = result {
            assert_eq!(first, expected);
            self.kept.extend((first..).zip(payloads));
            if self.options.sync == Sync::Always {
                self.durable = self.log.next_seq - 1;
            }
        }
    }

    fn step(&mut self) {
        match self.random.u32(0..20) {
            0 => {
                let done = self.random.u64(0..=self.log.shared().committed.load(Ordering::Relaxed));
                let _ = self.log.release(done);
                self.kept.retain(|seq, _| *seq > done);
            }
            1 if self.log.sync().is_ok() && self.options.sync != Sync::Always && !self.log.is_dirty() => {
                self.durable = self.log.shared().committed.load(Ordering::Relaxed);
            }
            2 => {
                let chance = |random: &mut fastrand::Rng| if random.u8(0..3) == 0 { 0.2 } else { 0.0 };
                self.storage.set_faults(DiskFaults {
                    write: chance(&mut self.random),
                    // A failed sync breaks the promise that the next one makes records durable.
                    sync: if self.options.sync == Sync::Always { chance(&mut self.random) } else { 0.0 },
                    create: chance(&mut self.random),
                    remove: chance(&mut self.random),
                    set_len: chance(&mut self.random),
                    capacity: if self.random.u8(0..4) == 0 { self.random.u64(1_000..80_000) } else { 0 },
                });
            }
            3 => self.crash(),
            _ => self.append(),
        }
    }

    /// Readers must see exactly the committed records.
    fn check_readers(&self) {
        let (found, _) = read_all(&self.log, 0);
        for (seq, payload) in &self.kept {
            assert_eq!(found.get(seq), Some(payload), "record {seq} is committed");
        }
        self.check_known(&found);
    }

    fn check_known(&self, found: &BTreeMap<Seq, Vec<u8>>) {
        for (seq, payload) in found {
            let tried = self.tried.get(seq).expect("a number that was given out");
            assert!(tried.contains(payload), "record {seq} is not what was written");
        }
    }

    fn crash(&mut self) {
        self.storage = self.storage.after_crash(self.random.u64(..));
        let (log, recovery) = open(&self.storage, &self.options);
        self.log = log;
        let (found, _) = read_all(&self.log, 0);
        assert_eq!(found.len() as u64, recovery.records);
        for (seq, payload) in self.kept.range(..=self.durable) {
            assert_eq!(found.get(seq), Some(payload), "record {seq} was durable; {recovery:?}");
        }
        self.check_known(&found);
        self.durable = recovery.last_seq;
        self.kept = found;
    }
}

fn run(seed: u64) {
    let mut model = Model::new(seed);
    for _ in 0..200 {
        model.step();
    }
    model.check_readers();
    model.crash();
    model.check_readers();
}

/// Prints the seed of a failing test.
struct FailingSeed(u64);

impl Drop for FailingSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}

#[test]
fn crashes_and_faults_lose_nothing_that_was_durable() {
    let runs = if std::env::var_os("WEIR_TEST_FULL").is_some() { 4_000 } else { 100 };
    for seed in 0..runs {
        let _told = FailingSeed(seed);
        run(seed);
    }
}

proptest::proptest! {
    /// Whatever bytes are in the files, the journal opens, can be read, and accepts records.
    #[test]
    fn any_bytes_are_survived(
        changes in proptest::collection::vec((0..6_000_usize, proptest::prelude::any::<u8>()), 1..20),
        cut in 0..8_000_usize,
        segment in 0..3_usize,
    ) {
        let storage = Simulated::new(1);
        let (mut log, _) = open(&storage, &small());
        for _ in 0..9 {
            append(&mut log, &[&[0x55; 1_000], b"small"]).expect("there is room");
        }
        let names: Vec<_> = storage.list().expect("readable");
        storage.damage(&names[segment], |bytes| {
            bytes.truncate(cut);
            for (at, byte) in changes {
                if let Some(found) = bytes.get_mut(at) {
                    *found = byte;
                }
            }
        });
        let (mut log, recovery) = open(&storage, &small());
        let (records, gaps) = read_all(&log, 0);
        let gone: u64 = gaps.iter().map(|(first, last)| last - first + 1).sum();
        proptest::prop_assert_eq!(records.len() as u64, recovery.records);
        proptest::prop_assert!(records.len() as u64 + gone <= 18);
        append(&mut log, &[b"next"]).expect("there is room");
        proptest::prop_assert_eq!(read_all(&log, 0).0.len(), records.len() + 1);
    }
}
