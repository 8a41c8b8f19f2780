//! The queue of records in memory.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::batching::Batching;
use crate::books::RecordTally;
use crate::ring::Attachment;

/// The digits of an id: of the process, and the least of the sequence number.
const BOOT_DIGITS: usize = 16;
const SEQUENCE_DIGITS: usize = 12;
const ID_BYTES: usize = BOOT_DIGITS + 1 + SEQUENCE_DIGITS;
/// The first sequence number with more than [`SEQUENCE_DIGITS`].
const LONG_SEQUENCE: u64 = 10_u64.pow(SEQUENCE_DIGITS as u32);

/// A record that its sink has taken out of a ring.
#[derive(Debug)]
pub struct Record {
    /// A number of the process that wrote the record: together with the sequence it identifies the record permanently.
    pub boot: u64,
    /// The record's number in the sink. A gap means that records before it were lost.
    pub sequence: u64,
    pub payload: Vec<u8>,
    pub attachments: Vec<Attachment>,
}

impl Record {
    pub fn bytes(&self) -> u64 {
        let attached: usize = self.attachments.iter().map(|attachment| attachment.len()).sum();
        (self.payload.len() + attached) as u64
    }

    /// The id of the record for its store: the same at each try, and unique.
    pub fn id(&self) -> String {
        let mut id = Vec::with_capacity(ID_BYTES);
        self.write_id(&mut id);
        String::from_utf8(id).expect("digits")
    }

    /// Appends [`Record::id`]: 16 hexadecimal digits, `-`, and at least 12 decimal digits.
    pub fn write_id(&self, out: &mut Vec<u8>) {
        let [high, low] = [self.boot >> 32, self.boot & 0xffff_ffff].map(hexadecimal);
        out.extend_from_slice(&high);
        out.extend_from_slice(&low);
        out.push(b'-');
        let mut buffer = itoa::Buffer::new();
        // The leading 1, which is left out, keeps the zeroes behind it.
        let digits = match self.sequence < LONG_SEQUENCE {
            true => &buffer.format(LONG_SEQUENCE + self.sequence)[1..],
            false => buffer.format(self.sequence),
        };
        out.extend_from_slice(digits.as_bytes());
    }
}

/// The eight digits of a number of 32 bits, all at once.
fn hexadecimal(number: u64) -> [u8; 8] {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let pairs = (number << 16 | number) & 0x0000_ffff_0000_ffff;
    let bytes = (pairs << 8 | pairs) & 0x00ff_00ff_00ff_00ff;
    let digits = (bytes << 4 | bytes) & (ONES * 0x0f);
    // Adding 6 carries into the upper half of a byte from 10 on.
    let letters = ((digits + ONES * 6) >> 4) & ONES;
    (digits + ONES * u64::from(b'0') + letters * u64::from(b'a' - b'9' - 1)).to_be_bytes()
}

/// The tally of some records.
pub(crate) fn tally<'a>(records: impl IntoIterator<Item = &'a Record>) -> RecordTally {
    records.into_iter().map(|record| RecordTally::one(record.bytes())).sum()
}

/// A queue in the order of sequence numbers.
#[derive(Default)]
pub(crate) struct RecordQueue {
    records: VecDeque<Record>,
    bytes: u64,
    /// When the first record arrived, and when the last one did.
    first: Option<Instant>,
    last: Option<Instant>,
    /// The queue contains records that are due: they were before, or are to be sent at once.
    is_due: bool,
}

/// When the next batch is due.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    Now,
    In(Duration),
    /// The queue is empty.
    Empty,
}

impl RecordQueue {
    pub(crate) fn push(&mut self, record: Record, now: Instant) {
        self.bytes += record.bytes();
        self.first.get_or_insert(now);
        self.last = Some(now);
        self.records.push_back(record);
    }

    /// Makes the next batch due at once.
    pub(crate) fn hurry(&mut self) {
        self.is_due = true;
    }

    /// Puts unsent records back, before those with higher numbers.
    pub(crate) fn put_back(&mut self, records: Vec<Record>, now: Instant) {
        let Some(first) = records.first().map(|record| record.sequence) else { return };
        self.bytes += tally(&records).bytes;
        let after = self.records.split_off(self.records.partition_point(|queued| queued.sequence < first));
        self.records.extend(records);
        self.records.extend(after);
        self.is_due = true;
        self.first.get_or_insert(now);
        self.last.get_or_insert(now);
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(crate) fn ready(&self, batching: &Batching, now: Instant) -> Ready {
        let (Some(first), Some(last)) = (self.first, self.last) else { return Ready::Empty };
        if self.is_empty() {
            return Ready::Empty;
        }
        let due = (first + batching.oldest).min(last + batching.inactive);
        if self.is_due || self.len() >= batching.max_records || self.bytes >= batching.max_bytes as u64 || due <= now {
            return Ready::Now;
        }
        Ready::In(due - now)
    }

    /// Takes as many records as a batch may have; at least one, if there is one.
    pub(crate) fn batch(&mut self, max_records: usize, max_bytes: usize, now: Instant) -> Vec<Record> {
        let mut bytes = 0;
        let fits = |record: &&Record| {
            bytes += record.bytes();
            bytes <= max_bytes as u64
        };
        let count = self.records.iter().take(max_records).take_while(fits).count().max(1).min(self.len());
        let batch: Vec<Record> = self.records.drain(..count).collect();
        self.bytes -= tally(&batch).bytes;
        // How long the remaining records have waited is not known; at most as long as those of the batch. Their wait starts anew.
        self.first = (!self.is_empty()).then_some(now);
        self.is_due &= !self.is_empty();
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(sequence: u64, bytes: usize) -> Record {
        Record { boot: 1, sequence, payload: vec![0; bytes], attachments: Vec::new() }
    }

    #[test]
    fn an_id_has_at_least_twelve_digits_of_the_sequence() {
        for (boot, sequence) in [(0, 0), (1, 2), (0xfedc_ba98_7654_3210, 999_999_999_999), (u64::MAX, u64::MAX)] {
            let record = Record { boot, sequence, payload: Vec::new(), attachments: Vec::new() };
            assert_eq!(record.id(), format!("{boot:016x}-{sequence:012}"));
        }
    }

    #[test]
    fn a_batch_is_ready_when_it_is_full_or_old() {
        let batching = Batching {
            max_records: 3,
            max_bytes: 100,
            inactive: Duration::from_secs(5),
            oldest: Duration::from_secs(8),
        };
        let (mut queue, begin) = (RecordQueue::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(queue.ready(&batching, begin), Ready::Empty);
        queue.push(record(1, 10), begin);
        assert_eq!(queue.ready(&batching, begin), Ready::In(Duration::from_secs(5)));
        queue.push(record(2, 10), at(4));
        assert_eq!(queue.ready(&batching, at(6)), Ready::In(Duration::from_secs(2)), "its oldest record counts");
        assert_eq!(queue.ready(&batching, at(8)), Ready::Now);
        queue.push(record(3, 90), at(8));
        let numbers = |batch: Vec<Record>| batch.iter().map(|record| record.sequence).collect::<Vec<_>>();
        let first = queue.batch(3, 100, at(8));
        assert_eq!(first.len(), 2, "the third does not fit");
        queue.put_back(first, at(8));
        assert_eq!((queue.len(), queue.bytes()), (3, 110));
        assert_eq!(numbers(queue.batch(1, 100, at(8))), [1]);
        // Parcels whose writes have failed come back one after the other.
        queue.put_back(vec![record(1, 10)], at(8));
        let last = queue.batch(9, 200, at(8)).split_off(1);
        queue.put_back(vec![record(1, 10)], at(8));
        queue.put_back(last, at(8));
        assert_eq!(numbers(queue.batch(1, 100, at(8))), [1]);
        assert_eq!(numbers(queue.batch(9, 5, at(8))), [2], "one is always taken");
        assert_eq!(numbers(queue.batch(9, 5, at(8))), [3]);
        assert_eq!((queue.bytes(), queue.ready(&batching, at(99))), (0, Ready::Empty));
    }
}
